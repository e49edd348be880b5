"""Numbers of other types as pairs with exponents, and back."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, DTypeLike

from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.pair import Pair, power_of_two
from jaxacct.float_pairs.wide import INFINITE, NOTHING, Wide

PIECE = 20
"""Bits of a whole number that are taken at once."""


def of_array(value: Array) -> Wide:
    """Returns an array of real numbers, exactly; of float64, right to 2^-49, and of more than 46 bits, to 2^-44."""
    value = jnp.asarray(value)
    if jnp.issubdtype(value.dtype, jnp.bool_):
        one = value.astype(jnp.float32)
        return Wide(one, jnp.zeros_like(one), jnp.where(value, 0, NOTHING))
    if jnp.issubdtype(value.dtype, jnp.integer):
        return _of_whole(value)
    if value.dtype == jnp.float64:
        return _of_float64(value)
    return single(value.astype(jnp.float32))


def single(value: Array) -> Wide:
    """Returns float32 numbers; subnormal ones are 0."""
    return wide.normal(Pair(value, jnp.zeros_like(value)), 0)


def _of_whole(value: Array) -> Wide:
    """By pieces of :data:`PIECE` bits, each a float32 number: a sum of two is exact, and one of three up to 46 bits."""
    is_wider = value.dtype.itemsize > 4 or jnp.issubdtype(value.dtype, jnp.unsignedinteger)
    value = value.astype(jnp.int64 if is_wider else jnp.int32)
    pieces = [(value & (2**PIECE - 1)).astype(jnp.float32)]
    if is_wider:
        value = value >> PIECE
        pieces.append((value & (2**PIECE - 1)).astype(jnp.float32) * np.float32(2.0**PIECE))
    # Of at most 24 bits, with the sign; not below the next piece, or 0.
    pieces.append((value >> PIECE).astype(jnp.float32) * np.float32(2.0 ** (PIECE * len(pieces))))
    total = pair.quick_two_sum(pieces[-1], pieces[-2])
    if is_wider:
        total = pair.add(total, Pair(pieces[0], jnp.zeros_like(pieces[0])))
    return wide.normal(total, 0)


def _of_float64(value: Array) -> Wide:
    found, exponent = lax.platform_dependent(value, tpu=taken_apart, default=_by_powers)
    return wide.normal(found, exponent)


def taken_apart(value: Array) -> tuple[Pair, Array]:
    """Returns pairs, and powers of two beside them, of float64 numbers that are two float32 ones, of their range.

    One difference takes them apart, exactly; a power brings them to where pairs are made normal.
    """
    high = value.astype(jnp.float32)
    low = jnp.where(jnp.isfinite(high), (value - high.astype(jnp.float64)).astype(jnp.float32), np.float32(0))
    size = jnp.abs(high)
    moved = 64 * ((size < np.float32(2.0**-62)).astype(jnp.int32) - (size >= np.float32(2.0**64)).astype(jnp.int32))
    return pair.scale(Pair(high, low), power_of_two(moved)), -moved


def _by_powers(value: Array) -> tuple[Pair, Array]:
    """Brings numbers between 1/2 and 2 by powers of two, each a product in float64."""
    exponent = jnp.zeros(value.shape, jnp.int32)
    is_number = jnp.isfinite(value) & (value != 0)
    for shift in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        up, down = jnp.float64(2.0**shift), jnp.float64(2.0**-shift)
        large, small = is_number & (jnp.abs(value) >= up), is_number & (jnp.abs(value) < 2 * down)
        value = jnp.where(large, value * down, jnp.where(small, value * up, value))
        exponent = exponent + jnp.where(large, shift, jnp.where(small, -shift, 0))
    high = value.astype(jnp.float32)
    low = jnp.where(jnp.isfinite(value), value - high.astype(jnp.float64), 0.0).astype(jnp.float32)
    return pair.quick_two_sum(high, low), exponent


def to_float64(x: Wide) -> Array:
    """Returns numbers as float64: exactly where that has its range; on a TPU as two float32 numbers, of theirs."""
    found: Array = lax.platform_dependent(x, tpu=to_two_singles, default=_to_double)
    return found


def to_two_singles(x: Wide) -> Array:
    """Returns the two float32 numbers that a number is, beyond their range inf, below it 0; the one sum is exact.

    XLA has no other way to a float64 on a TPU: nothing is made of its bits there. Low parts below 2^-126 are 0.
    """
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -126, 127)))
    high = jnp.where(x.exponent < -126, np.float32(0), jnp.where(x.exponent > 127, x.high * np.float32(np.inf), high))
    low = jnp.where((x.exponent < -126) | (x.exponent > 127), np.float32(0), low)
    return jnp.where(jnp.isfinite(high), high.astype(jnp.float64) + low.astype(jnp.float64), high.astype(jnp.float64))


def _to_double(x: Wide) -> Array:
    value = x.high.astype(jnp.float64) + x.low.astype(jnp.float64)
    value = jnp.where(wide.is_finite(x), value, x.high.astype(jnp.float64))
    exponent = jnp.where(wide.is_finite(x), jnp.clip(x.exponent, -1200, 1200), 0)
    half = exponent >> 1

    def power(exponent: Array) -> Array:
        """2^exponent, of which float32 has the eighth root, but for whole powers."""
        root, rest = (power_of_two(part).astype(jnp.float64) for part in (exponent >> 3, exponent & 7))
        return root**8 * rest

    return value * power(half) * power(exponent - half)


def to_float32(x: Wide) -> Array:
    """Returns the nearest float32 numbers; subnormal ones are 0."""
    large, small = x.exponent > 127, x.exponent < -126
    value = x.high * power_of_two(jnp.clip(x.exponent, -126, 127))
    return jnp.where(large & (x.exponent < INFINITE), value * jnp.inf, jnp.where(small, 0.0, value))


def to_whole(x: Wide, dtype: DTypeLike) -> Array:
    """Returns the whole parts, towards 0, of numbers that ``dtype`` holds; the nearest that it holds of others."""
    toward_zero = wide.select(x.high < 0, wide.ceiling(x), wide.floor(x))
    limits = np.iinfo(dtype)
    is_unsigned = limits.min == 0
    near = jnp.clip(toward_zero.exponent, -23, 62)

    def part(value: Array) -> Array:
        # A whole multiple of 2^(near - 23 - ...): the low part of a whole number is whole.
        whole, rest = value * 2.0**23, near - 23
        left = jnp.left_shift(jnp.int64(1), jnp.maximum(rest, 0).astype(jnp.int64)) * whole.astype(jnp.int64)
        return jnp.where(rest >= 0, left, (whole * power_of_two(jnp.minimum(rest, 0))).astype(jnp.int64))

    low = toward_zero.low * power_of_two(jnp.clip(near, -23, 100))
    total = part(toward_zero.high) + low.astype(jnp.int64)
    beyond = toward_zero.exponent > 62
    total = jnp.where(beyond, jnp.where(x.high < 0, jnp.iinfo(jnp.int64).min, jnp.iinfo(jnp.int64).max), total)
    total = jnp.where(jnp.isnan(x.high), 0, total)
    least = 0 if is_unsigned else max(limits.min, np.iinfo(np.int64).min)
    return jnp.clip(total, least, min(limits.max, np.iinfo(np.int64).max)).astype(dtype)


def steps(shape: tuple[int, ...], dimension: int) -> Wide:
    """Returns 0, 1, 2, ... along one axis."""
    return _of_whole(lax.broadcasted_iota(jnp.int32, shape, dimension))
