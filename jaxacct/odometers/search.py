"""How many steps an odometer's reading allows."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int32

from jaxacct.arithmetic import roundoff
from jaxacct.precision import as_float64
from jaxacct.rounded_sum import rounding_of_one

BITS = 30


def rounding_of_reading() -> float:
    """Returns the relative rounding of a reading: some tens of operations, and the sums' own, rounded up apart."""
    return 128 * roundoff()


def most_steps(reading: Callable[[Array, Array], Array], epsilon: ArrayLike) -> Int32[Array, ""]:
    """Returns the most steps, below 2^30, whose reading is at most ``epsilon``; int32, inside the float64 scope.

    Args:
        reading: the largest one on the way to a number of steps, with a factor above 1 for what rounding adds when they
            come one by one; it rises with both. NaN counts as too large.
        epsilon: traced or not.
    """
    epsilon = as_float64(epsilon)

    def fits(count: Array) -> Array:
        # Two readings of sums that rise may differ the wrong way by what each is off.
        return reading(count, 1 + count * rounding_of_one()) * (1 + 2 * rounding_of_reading()) <= epsilon

    def refine(index: Array, count: Array) -> Array:
        more = count + jnp.left_shift(1, BITS - 1 - index)  # exp2 would not be exact
        return jnp.where(fits(more), more, count)

    return jax.lax.fori_loop(0, BITS, refine, jnp.zeros(())).astype(jnp.int32)
