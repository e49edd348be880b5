"""The search for the saddle point: Newton's steps in the logarithm of the order, within a bracket that is halved."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.arithmetic import roughly
from jaxacct.composition import Part
from jaxacct.dominating_pairs.law import Moments, Nodes
from jaxacct.pytrees import each
from jaxacct.saddlepoint.sums import summed, total

LEAST = 4.0**-16
"""Smallest order considered, over the largest."""

STEPS = 40
"""Most steps. Three to five are usual; nearly all are bisections where moments rise like e^(t^2), for large losses are
rare."""

CLOSE = 1.0001
"""Ratio of orders between which there is nothing left to seek: most often next to the largest."""

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
        return self.met | (self.steps >= STEPS) | (self.high < CLOSE * self.low)

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


class Saddle(NamedTuple):
    """Where the saddle point is, roughly."""

    order: Array
    epsilon: Array
    """The eps whose saddle point this order is."""
    log_delta: Array
    """There, by Laplace's method."""
    is_known: Array
    """Whether it was found."""


def log_normal_delta(found: Moments, order: Array) -> tuple[Array, Array, Array]:
    """Returns the eps whose saddle point is ``order``, log delta there by Laplace's method, and the curvature."""
    t, (value, slope, curvature) = order, found
    bend = curvature + 1 / t**2 + 1 / (1 + t) ** 2
    epsilon = slope - 1 / t - 1 / (1 + t)
    log_delta = value - t * epsilon - jnp.log(t) - jnp.log1p(t) - 0.5 * jnp.log(2 * jnp.pi * bend)
    return epsilon, log_delta, bend


def _variance(nodes: Nodes) -> Array:
    """Returns about the variance of a loss."""
    p = jnp.exp(nodes.log_p)
    return jnp.sum(p * (nodes.losses - jnp.sum(p * nodes.losses)) ** 2)


def gaussian_order(epsilon: Array, mu: Array) -> Array:
    """Returns roughly the saddle point of a mu-GDP mechanism at ``epsilon``: K'(t) = (t + 1/2) mu^2 = eps + 3/(2t)."""
    half = (epsilon / mu**2 - 0.5) / 2
    return half + jnp.sqrt(half**2 + 1.5 / mu**2)


def excess(found: Moments, order: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns a function that falls through 0 at the saddle point for ``epsilon``, and its slope in log t.

    The equation t K'(t) = t eps + 1 + t/(1 + t) is taken in logarithms, for K' grows like an exponential where large
    losses are rare.
    """
    near, mean = order / (1 + order), order * found.slope
    right = order * epsilon + 1 + near
    slope = (order * epsilon + near / (1 + order)) / right - (mean + order**2 * found.curvature) / mean
    return jnp.log(right / mean), slope


@roughly
def saddle_for(
    parts: tuple[Part, ...],
    scans: list[Nodes],
    largest: Array,
    epsilon: Array,
    log_delta: Array,
    by_delta: Array | bool,
    wanted: Array | bool,
) -> Saddle:
    """Returns the saddle point for ``epsilon``; where ``by_delta``, for the eps of ``log_delta`` by Laplace's method.

    A guess: whatever it is, lines are good or bad, and brackets valid. It is not sought where it is not ``wanted``.
    Orders are below the ``largest``.
    """
    by_delta = jnp.asarray(by_delta)
    given = parts, scans, epsilon, log_delta, by_delta
    nothing = jnp.zeros_like(epsilon)
    variance = summed(
        parts, [each(part, lambda _, rows: _variance(rows), rows) for part, rows in zip(parts, scans, strict=True)]
    )
    # Where a Gaussian loss of this variance has it.
    mu = jnp.sqrt(variance)
    by_tail = 0.9 * jnp.sqrt(jnp.maximum(-2 * log_delta, 0.0)) / mu
    start = search_from(jnp.where(by_delta, by_tail, gaussian_order(epsilon, mu)), largest, wanted)
    search, at, reached = by_work.while_loop(
        lambda state, _: ~state[0].is_over, _one_look, (start, nothing, nothing), given
    )
    return Saddle(search.order, at, reached, search.is_known(largest))


def _one_look(state: tuple[Search, Array, Array], given: Any) -> tuple[Search, Array, Array]:
    """Returns the search after a look at its order, and what Laplace's method says there."""
    (search, *_), (parts, scans, epsilon, log_delta, by_delta) = state, given
    found = total(parts, scans, search.order)
    at, reached, bend = log_normal_delta(found, search.order)
    value, slope = excess(found, search.order, epsilon)
    # Of a Gaussian loss the logarithm of log delta is nearly linear in that of the order.
    short = reached / log_delta
    has_log = short > 0
    value = jnp.where(by_delta, jnp.where(has_log, -jnp.log(short), reached - log_delta), value)
    slope = jnp.where(by_delta, search.order**2 * bend / jnp.where(has_log, reached, -1.0), slope)
    met = jnp.abs(jnp.where(by_delta, reached - log_delta, value)) < ROUGHLY
    return search.advanced(value, slope, met), at, reached
