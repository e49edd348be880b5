"""A root of a continuous function between two points where its signs differ, elementwise."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array


def root(function: Callable[[Array], Array], low: Array, high: Array, rounds: int) -> Array:
    """Returns where ``function`` rises through 0 between ``low`` and ``high``, after so many evaluations.

    Chandrupatla (1997), "A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function
    without using derivatives": inverse quadratic interpolation where three points allow it, bisection elsewhere; so a
    fixed number of rounds does for all elements. Of the last two points that enclose the root, the one with the smaller
    value is returned. The ends are not evaluated: it is taken to be negative at ``low`` and positive at ``high``, and
    runs into one of them where it is not. NaN counts as positive.
    """

    def sign(value: Array) -> Array:
        return jnp.where(value < 0, -1.0, 1.0)

    def narrow(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        near, near_value, far, far_value, share = state
        point = near + share * (far - near)
        value = function(point)
        keeps = sign(value) == sign(near_value)
        other, other_value = jnp.where(keeps, near, far), jnp.where(keeps, near_value, far_value)
        far, far_value = jnp.where(keeps, far, near), jnp.where(keeps, far_value, near_value)
        # Where the values at the three points are monotone enough, interpolation stays between the two (Chandrupatla).
        position = (point - far) / (other - far)
        height = (value - far_value) / (other_value - far_value)
        is_safe = (height**2 < position) & ((1 - height) ** 2 < 1 - position)
        step = value / (far_value - value) * other_value / (far_value - other_value) + (other - point) / (
            far - point
        ) * value / (other_value - value) * far_value / (other_value - far_value)
        share = jnp.where(is_safe & jnp.isfinite(step), jnp.clip(step, 1e-9, 1 - 1e-9), 0.5)
        return point, value, far, far_value, share

    unknown = jnp.full_like(low, jnp.inf)
    start = (low, -unknown, high, unknown, jnp.full_like(low, 0.5))
    near, near_value, far, far_value, _ = jax.lax.fori_loop(0, rounds, narrow, start)
    return jnp.where(jnp.abs(near_value) <= jnp.abs(far_value), near, far)
