"""The search for the saddle point: Newton's steps in the logarithm of the order, within a bracket that is halved."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

LEAST = 4.0**-16
"""Smallest order considered, over the largest."""

BISECTIONS, STEPS = 5, 40
"""Steps for the saddle point: the first bring its logarithm to within 0.7, Newton's then take about four.

Up to 40, nearly all of them bisections, where moments rise like e^(t^2) because large losses are rare.
"""

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

    def advanced(self, value: Array, slope: Array) -> Search:
        """Returns the search after a look at its order, where the function sought has this value and slope in log t."""
        # NaN counts as beyond.
        low, high = jnp.where(value > 0, self.order, self.low), jnp.where(value > 0, self.high, self.order)
        newton = self.order * jnp.exp(jnp.clip(-value / slope, -2.0, 2.0))
        inside = (newton >= low) & (newton <= high) & (self.steps >= BISECTIONS)
        # Newton's steps that gain little from one side are relieved by a bisection now and then.
        inside = inside & (self.steps % 4 != 0)
        met = jnp.abs(value) < ROUGHLY
        ahead = jnp.where(inside, newton, jnp.sqrt(low * high))
        return Search(self.steps + 1, low, high, jnp.where(met, self.order, ahead), met)

    def is_known(self, largest: Array) -> Array:
        """Returns whether the saddle point lies among orders up to the largest."""
        between = (self.low > largest * LEAST) & (self.high < largest)
        return (self.met | between) & (largest > 0) & jnp.isfinite(largest)


def search_from(largest: Array, wanted: Array | bool) -> Search:
    """Returns the beginning of a search for the saddle point below an order; its end, where none is wanted."""
    least = largest * LEAST
    return Search(jnp.where(wanted, 0, STEPS), least, largest, jnp.sqrt(least * largest), jnp.asarray(False))
