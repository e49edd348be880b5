"""Sums of many numbers: exact in whole numbers over one exponent; running sums pair by pair.

*Sums.* Over the largest exponent of what is summed, numbers are cut into pieces of a few bits, as whole numbers whose
sums int32 holds exactly, whatever the order. What is cut off is below 2^-(BITS - 1) of the largest each, so n of them err
by less than n 2^-(BITS - 2) of the sum of absolute values: far below n roundings.

*Running sums* need more than that, for each is to be right relative to its own terms. They are made in log2(n) rounds,
each of which adds to every number what stands 2^i before it (Hillis and Steele): a term goes through at most one
addition a round, each with its own relative error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.pair import Pair, Single
from jaxacct.float_pairs.wide import Wide

BITS = 54
"""Bits below the largest exponent that a sum keeps."""


def over_axes(x: Wide, axes: Sequence[int]) -> Wide:
    """Returns the sums over some axes."""
    count = math.prod(x.shape[axis] for axis in axes)
    if count == 0:
        return wide.filled(0.0, tuple(n for i, n in enumerate(x.shape) if i not in axes))
    axes = tuple(axes)
    largest = jnp.max(x.exponent, axes, keepdims=True)
    high, low = wide.aligned(x, largest)
    # Below 2 in absolute value; so many of them, in pieces of this many bits, stay below 2^30, and a carry more.
    piece = min(22, 29 - math.ceil(math.log2(count)))
    if piece < 8:
        raise NotImplementedError(f"a sum of {count} numbers in pairs of float32: at most 2^21 are summed.")
    is_number = jnp.isfinite(high)
    plain = jnp.sum(jnp.where(is_number, 0.0, high), axes)
    high, low = jnp.where(is_number, high, 0.0), jnp.where(is_number, low, 0.0)
    factor, done, pieces = 2.0 ** (piece - 1), piece - 1, []
    for _ in range(-(-BITS // piece)):
        (whole_high, high), (whole_low, low) = _cut(high, factor), _cut(low, factor)
        pieces.append(jnp.sum(whole_high + whole_low, axes, dtype=jnp.int32))
        factor = 2.0**piece
    # Carried up, all but the first are from 0 to 2^piece.
    for i in range(len(pieces) - 1, 0, -1):
        carry = pieces[i] >> piece
        pieces[i], pieces[i - 1] = pieces[i] - (carry << piece), pieces[i - 1] + carry
    first = pieces[0] >> 8
    parts = [first.astype(jnp.float32) * 2.0 ** (8 - done), (pieces[0] - (first << 8)).astype(jnp.float32) * 2.0**-done]
    parts += [p.astype(jnp.float32) * 2.0 ** -(done + piece * i) for i, p in enumerate(pieces) if i]
    # From the least, which is not negative, up: each exact, but for what is below 2^-24 of the second last.
    total = Pair(parts[-1], jnp.zeros_like(parts[-1]))
    for part in reversed(parts[:-1]):
        high, low = pair.two_sum(part, total.high)
        total = pair.quick_two_sum(high, low + total.low)
    found = wide.normal(total, jnp.squeeze(largest, axes))
    return wide.select(plain == 0, found, wide.normal(Pair(plain, jnp.zeros_like(plain)), 0))


def _cut(value: Single, factor: float) -> tuple[Array, Single]:
    """Returns the whole part of ``value factor``, and the rest, exactly."""
    moved = value * factor
    whole = moved.astype(jnp.int32)
    return whole, moved - whole.astype(jnp.float32)


def running(x: Wide, axis: int, *, reverse: bool = False) -> Wide:
    """Returns the sums of the first 1, 2, ... numbers along an axis."""
    size = x.shape[axis]
    places = jnp.arange(size).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    if reverse:
        places = size - 1 - places

    def one_round(i: Array, sums: Wide) -> Wide:
        apart = jnp.left_shift(jnp.int32(1), i)
        moved = Wide(*(jnp.roll(part, jnp.where(reverse, -apart, apart), axis) for part in sums))
        added = wide.add(sums, moved)
        return wide.select(places >= apart, added, sums)

    return jax.lax.fori_loop(0, max(0, math.ceil(math.log2(max(size, 1)))), one_round, x)


def product_of_matrices(x: Wide, y: Wide, dimension_numbers: object) -> Wide:
    """Returns what ``lax.dot_general`` does; by products of all pairs, for small matrices."""
    ((of_x, of_y), (batch_x, batch_y)) = dimension_numbers  # type: ignore[misc]
    free_x = [i for i in range(len(x.shape)) if i not in (*of_x, *batch_x)]
    free_y = [i for i in range(len(y.shape)) if i not in (*of_y, *batch_y)]

    def laid_out(part: Array, order: Sequence[int], at: int, gaps: int) -> Array:
        part = lax.transpose(part, tuple(order))
        return part.reshape(part.shape[:at] + (1,) * gaps + part.shape[at:])

    batch, ends = len(batch_x), len(batch_x) + len(free_x)
    left = Wide(*(laid_out(part, [*batch_x, *free_x, *of_x], ends, len(free_y)) for part in x))
    right = Wide(*(laid_out(part, [*batch_y, *free_y, *of_y], batch, len(free_x)) for part in y))
    products = wide.multiply(left, right)
    rank = len(products.shape)
    return over_axes(products, range(rank - len(of_x), rank))


def largest_over(x: Wide, axes: Sequence[int]) -> Wide:
    """Returns the largest numbers over some axes; NaN where there is one."""
    axes = tuple(axes)
    order = wide.order(x)
    first = jnp.max(order, axes, keepdims=True)
    high = jnp.max(jnp.where(order == first, x.high, -jnp.inf), axes, keepdims=True)
    high = jnp.where(jnp.any(jnp.isnan(x.high), axes, keepdims=True), jnp.nan, high)
    is_first = (order == first) & (x.high == high)
    low = jnp.max(jnp.where(is_first, x.low, -jnp.inf), axes, keepdims=True)
    exponent = jnp.max(jnp.where(is_first, x.exponent, wide.NOTHING), axes, keepdims=True)
    special = jnp.isnan(high)
    found = Wide(high, jnp.where(special, 0.0, low), jnp.where(special, wide.INFINITE, exponent))
    return Wide(*(jnp.squeeze(part, axes) for part in found))
