"""Inverse of an increasing function, by Newton steps that keep a bracket."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import roundoff

MOST_STEPS = 600
"""Every ninth step halves, so that this many narrow any bracket by 2^-66; Newton's steps need about ten."""


def invert(
    function: Callable[[Array], tuple[Array, Array]], values: Array, low: Array, high: Array, gap: Array
) -> Array:
    """Returns x where a nondecreasing function takes the given values, elementwise.

    Args:
        function: x -> (value, derivative), as computed; the derivative only steers.
        values (...): to be attained within (low, high).
        low (): where the function is at most every value.
        high (): where it is above every value.
        gap (): how far the function may be off.

    At the result the function as computed is at most the value. Either it is above ``value - gap`` there, or a point
    where it is above the value lies within ``4u |x| + 2^-64 (high - low)``. So a bracket is kept. Newton's steps start
    from the end whose value is nearest and are lengthened a little, lest all of them land on the same side.
    """
    span = high - low

    def resolution(below: Array, above: Array) -> Array:
        return 2 * roundoff() * (jnp.abs(below) + jnp.abs(above)) + 2.0**-64 * span

    def is_open(state) -> Array:
        _, _, (below, below_off, _), (above, above_off, _) = state
        return (above - below > resolution(below, above)) & ~(above_off - below_off <= gap)

    def advance(state):
        step, x, below, above = state
        value, slope = function(x)
        off = value - values
        here = (x, off, slope)
        at_most = off <= 0
        below = tuple(jnp.where(at_most, new, old) for new, old in zip(here, below, strict=True))
        above = tuple(jnp.where(at_most, old, new) for new, old in zip(here, above, strict=True))
        from_below = -below[1] <= above[1]
        start, miss, steep = (jnp.where(from_below, b, a) for b, a in zip(below, above, strict=True))
        beyond = jnp.maximum(resolution(below[0], above[0]) / 2, gap / 4 / steep)
        newton = start - miss / steep + jnp.where(from_below, beyond, -beyond)
        halves = (step % 9 == 8) | ~((newton > below[0]) & (newton < above[0]))
        following = jnp.where(halves, below[0] + (above[0] - below[0]) / 2, newton)
        # Both ends come first: values next to an end's are found from there.
        following = jnp.where(step == 0, high, following)
        # A lane that is done stays as it is while others go on.
        following = jnp.where(is_open((step, x, below, above)), following, below[0])
        return step + 1, following, below, above

    like = jnp.zeros_like(values)
    start = (
        jnp.int32(0),
        low + like,
        (low + like, like - jnp.inf, like),
        (high + like, like + jnp.inf, like),
    )
    final = jax.lax.while_loop(lambda state: (state[0] < MOST_STEPS) & jnp.any(is_open(state)), advance, start)
    return final[2][0]
