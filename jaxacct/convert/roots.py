"""The least of the bounds that a search for a root comes upon, elementwise."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array


def least_near_root(function: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, rounds: int) -> Array:
    """Returns the least bound seen in a search for a root between ``low`` and ``high``, of so many evaluations.

    ``function`` gives a value, which rises through 0 at the root, and a bound, which holds wherever it is taken and is
    best at the root: so the search decides how good a bound is found and never whether it is one.

    Chandrupatla (1997), "A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function
    without using derivatives": inverse quadratic interpolation where three points allow it, bisection elsewhere; so a
    fixed number of rounds does for all elements. The ends are not evaluated: the value is taken to be negative at
    ``low`` and positive at ``high``, and the search runs into one of them where it is not. A value that is NaN counts
    as positive, a bound that is NaN for none.
    """

    def narrow(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        near, near_value, far, far_value, share, least = state
        point = near + share * (far - near)
        value, bound = function(point)
        least = jnp.where(bound < least, bound, least)
        keeps = (value < 0) == (near_value < 0)
        other, other_value = jnp.where(keeps, near, far), jnp.where(keeps, near_value, far_value)
        far, far_value = jnp.where(keeps, far, near), jnp.where(keeps, far_value, near_value)
        # Where the values at the three points are monotone enough, interpolation stays between the two (Chandrupatla).
        position, height = (point - far) / (other - far), (value - far_value) / (other_value - far_value)
        is_safe = (height**2 < position) & ((1 - height) ** 2 < 1 - position)
        step = value / (far_value - value) * other_value / (far_value - other_value) + (other - point) / (
            far - point
        ) * value / (other_value - value) * far_value / (other_value - far_value)
        share = jnp.where(is_safe & (jnp.abs(step) < jnp.inf), jnp.clip(step, 1e-9, 1 - 1e-9), 0.5)
        return point, value, far, far_value, share, least

    unknown = jnp.full_like(low, jnp.inf)
    start = (low, -unknown, high, unknown, jnp.full_like(low, 0.5), unknown)
    return jax.lax.fori_loop(0, rounds, narrow, start)[-1]
