"""The search for the saddle point: Newton's steps in the logarithm of the order, within a bracket that is halved."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

LEAST = 4.0**-16
"""Smallest order considered, over the largest."""

STEPS = 40
"""Most steps. Three to five are usual; nearly all are bisections where moments rise like e^(t^2), for large losses are
rare."""

RELIEF = 6
"""Of so many steps one is a bisection: Newton's that gain little from one side are relieved by it."""

ROUGHLY = 0.02
"""Nats of log delta, or share of the saddle point's equation, to which it is met: any t > 0 is right."""


class Search(NamedTuple):
    """For the saddle point: steps done, what it lies between, the order to look at next, and whether it is met."""

    steps: Array
    low: Array
    high: Array
    order: Array
    met: Array

    @property
    def is_over(self) -> Array:
        """Whether the order is what was sought, or no more steps are taken."""
        return self.met | (self.steps >= STEPS)

    def advanced(self, value: Array, slope: Array, met: Array) -> Search:
        """Returns the search after a look at its order, where the function sought has this value and slope in log t."""
        # NaN counts as beyond.
        low, high = jnp.where(value > 0, self.order, self.low), jnp.where(value > 0, self.high, self.order)
        newton = self.order * jnp.exp(jnp.clip(-value / slope, -2.0, 2.0))
        inside = (newton > low) & (newton < high) & (self.steps % RELIEF != RELIEF - 1)
        ahead = jnp.where(inside, newton, jnp.sqrt(low * high))
        return Search(self.steps + 1, low, high, jnp.where(met, self.order, ahead), met)

    def is_known(self, largest: Array) -> Array:
        """Returns whether the saddle point lies among orders up to the largest."""
        between = (self.low > largest * LEAST) & (self.high < largest)
        return (self.met | between) & (largest > 0) & jnp.isfinite(largest)


def search_from(start: Array, largest: Array, wanted: Array | bool) -> Search:
    """Returns the beginning of a search for the saddle point below an order; its end, where none is wanted."""
    least = largest * LEAST
    middle = jnp.sqrt(least * largest)
    order = jnp.where(jnp.isnan(start), middle, jnp.clip(start, 2 * least, largest / 2))
    return Search(jnp.where(wanted, 0, STEPS), least, largest, order, jnp.asarray(False))
