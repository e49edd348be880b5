"""Wide numbers: pairs of float32 with an exponent beside them, with one relative error over the whole range of float64.

A number is ``(high + low) 2^exponent`` with 1 <= |high| < 2 and low a multiple of 2^-70, or 0 with the exponent
:data:`NOTHING`. So nothing under- or overflows before 2^-+16000, and every operation has the relative error of
:mod:`jaxacct.numerics.float_pairs.pair`; terms that are moved below 2^-100 of a result on the way are lost beside that.
inf and NaN are as IEEE has them. Conversions from and to other types stand last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Int32

from jaxacct.numerics.float_pairs import pair
from jaxacct.numerics.float_pairs.pair import LEAST, Pair, Single, bits, from_bits, power_of_two

LARGEST = 16384
"""Largest exponent of a number; exponents beyond are those of inf, and of 0."""

NOTHING = np.int32(-(2**17))
"""Exponent of 0: below any other, so that a sum takes the other one."""

INFINITE = np.int32(2**18)
"""Exponent of inf and NaN: so far up that beside the exponent of 0 it leaves the range upwards, where products are
NaN."""

DUST = 2.0**-70
"""Unit of low parts, so that sums and differences have no subnormal errors; rounding to it loses 2^-22 u^2."""


_TO_DUST, _ZERO = np.float32(DUST * 2.0**23 * 1.5), np.float32(0)
"""Constants of float32: numbers of Python would be float64 here, and each be converted. The first rounds to
:data:`DUST`."""


class Wide(NamedTuple):
    """Numbers (...): ``(high + low) 2^exponent``."""

    high: Single
    low: Single
    exponent: Int32[Array, " ..."]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return self.high.shape

    @property
    def pair(self) -> Pair:
        """The numbers without their exponents, between 1 and 2."""
        return Pair(self.high, self.low)


def normal(of: Pair, exponent: Array | int, plain: Single | None = None) -> Wide:
    """Returns ``of 2^exponent`` as a number, for pairs of which the high part is 0 or between 2^-120 and 2^120.

    ``plain`` is the result of one float32 operation: inf or NaN where the result is so. A pair's error terms would make
    NaN of both.
    """
    high, low = of
    field = (bits(high) >> 23) & 0xFF
    is_special = field == 255
    # The factor that brings high to [1, 2): 2^127 for 0, and the smallest for inf and NaN, which it leaves as they are.
    factor = from_bits(jnp.maximum(254 - field, 1) << 23)
    exponent = jnp.where(field == 0, NOTHING, jnp.where(is_special, INFINITE, exponent + (field - 127)))
    high = (high if plain is None else jnp.where(is_special, plain, high)) * factor
    return Wide(high, jnp.where(is_special, _ZERO, _without_dust(low * factor)), exponent)


def _without_dust(low: Single) -> Single:
    """Returns low parts rounded to multiples of :data:`DUST`: the maximum keeps XLA from taking (t + c) - c for t."""
    return jnp.maximum(low + _TO_DUST, LEAST) - _TO_DUST


def in_range(x: Wide, plain: Single | None = None) -> Wide:
    """Returns the numbers with those beyond the range as inf, and those below it as 0.

    ``plain`` is the result of one float32 operation, where that may be inf or NaN; it has the numbers' signs.
    """
    # An infinite number keeps its sign by a product with inf; NaN stays NaN.
    beyond, up = jnp.abs(x.exponent) > LARGEST, x.exponent > 0
    end = jnp.where(up, (x.high if plain is None else plain) * np.float32(np.inf), _ZERO)
    return select(beyond, Wide(end, jnp.zeros_like(end), jnp.where(up, INFINITE, NOTHING)), x)


def fill(value: float, shape: tuple[int, ...]) -> Wide:
    """Returns one number of the host at all places."""
    return Wide(*(jnp.broadcast_to(part, shape) for part in constant(value)))


def constant(value: np.ndarray | float) -> Wide:
    """Returns numbers of the host, right to 2^-49 of themselves."""
    mantissa, exponent = np.frexp(np.asarray(value, np.float64))  # of [1/2, 1)
    finite = np.isfinite(mantissa)
    doubled = 2 * mantissa
    # Rounding to float32 may carry to 2, which is then halved.
    high = doubled.astype(np.float32)
    low = np.where(finite, doubled - np.where(finite, high, 0), 0).astype(np.float32)
    up = np.abs(high) == 2
    high, low, exponent = np.where(up, high / 2, high), np.where(up, low / 2, low), exponent - 1 + up
    exponent = np.where(mantissa == 0, NOTHING, np.where(finite, exponent, INFINITE)).astype(np.int32)
    low = np.where(finite, np.where(np.abs(low) >= DUST, low, 0), 0)
    return Wide(jnp.asarray(high, jnp.float32), jnp.asarray(low, jnp.float32), jnp.asarray(exponent))


def align(x: Wide, exponent: Array) -> Pair:
    """Returns the numbers over 2^exponent, which is at least their own; below 2^-126 as if their power were that."""
    return pair.scale(x.pair, power_of_two(jnp.maximum(x.exponent - exponent, -126)))


def add(x: Wide, y: Wide) -> Wide:
    """Returns x + y."""
    exponent = jnp.maximum(x.exponent, y.exponent)
    a, b = align(x, exponent), align(y, exponent)
    return normal(pair.add(a, b), exponent, a.high + b.high)


def negative(x: Wide) -> Wide:
    """Returns -x."""
    return Wide(-x.high, -x.low, x.exponent)


def subtract(x: Wide, y: Wide) -> Wide:
    """Returns x - y."""
    return add(x, negative(y))


def multiply(x: Wide, y: Wide) -> Wide:
    """Returns x y. The exponents of 0, inf and NaN need no cases: sums with them leave the range on the right side."""
    high, low = pair.multiply(x.pair, y.pair)
    # A product of numbers from 1 to 2 is below 4: one halving makes it normal, without a look at its bits.
    is_large = jnp.abs(high) >= 2
    factor = jnp.where(is_large, jnp.float32(0.5), jnp.float32(1))
    exponent = x.exponent + y.exponent + is_large.astype(jnp.int32)
    return in_range(Wide(high * factor, _without_dust(low * factor), exponent), x.high * y.high)


def square(x: Wide) -> Wide:
    """Returns x^2, as :func:`multiply`."""
    high, low = pair.square(x.pair)
    is_large = high >= 2
    factor = jnp.where(is_large, jnp.float32(0.5), jnp.float32(1))
    exponent = 2 * x.exponent + is_large.astype(jnp.int32)
    return in_range(Wide(high * factor, _without_dust(low * factor), exponent), x.high * x.high)


def divide(x: Wide, y: Wide) -> Wide:
    """Returns x / y."""
    high, low = pair.divide(x.pair, y.pair)
    # A quotient of numbers from 1 to 2 is above 1/2: one doubling makes it normal.
    is_small = jnp.abs(high) < 1
    factor = jnp.where(is_small, jnp.float32(2), jnp.float32(1))
    exponent = x.exponent - y.exponent - is_small.astype(jnp.int32)
    # For 0, inf and NaN the high parts decide, and there is no residual to check.
    plain = x.high / y.high
    # 0 / 0 and inf / inf have ordinary exponents.
    exponent = jnp.where(jnp.isnan(plain), INFINITE, exponent)
    found = in_range(Wide(high * factor, _without_dust(low * factor), exponent), plain)
    is_nan = jnp.isnan(high) & jnp.isfinite(plain) & (plain != 0)
    return Wide(jnp.where(is_nan, jnp.nan, found.high), found.low, jnp.where(is_nan, INFINITE, found.exponent))


def square_root(x: Wide) -> Wide:
    """Returns the root; NaN below 0."""
    odd = x.exponent & 1
    found = pair.square_root(pair.scale(x.pair, power_of_two(odd)))
    root = normal(found, (x.exponent - odd) >> 1)
    return select((x.high <= 0) | (x.exponent == INFINITE), single(jnp.sqrt(x.high)), root)


def times_power(x: Wide, exponent: Array) -> Wide:
    """Returns x 2^exponent, exactly; whole exponents."""
    return by_power(x, jnp.clip(exponent, -4 * LARGEST, 4 * LARGEST).astype(jnp.int32))


def by_power(x: Wide, exponent: Array | np.int32) -> Wide:
    """Returns x 2^exponent, exactly, for whole exponents of at most four times :data:`LARGEST`, to either side."""
    is_number = jnp.abs(x.exponent) < INFINITE
    return in_range(Wide(x.high, x.low, jnp.where(is_number, x.exponent + exponent, x.exponent)))


def select(which: Bool[Array, " ..."], yes: Wide, no: Wide) -> Wide:
    """Returns ``yes`` where ``which`` holds, else ``no``."""
    return Wide(*(jnp.where(which, a, b) for a, b in zip(yes, no, strict=True)))


def order(x: Any) -> Int32[Array, " ..."]:
    """Returns the first key of a comparison of numbers, pairs or not: the exponent, with the sign."""
    rank = x.exponent - (NOTHING - 1)
    return jnp.where(x.high > 0, rank, jnp.where(x.high < 0, -rank, 0))


def less(x: Wide, y: Wide) -> Bool[Array, " ..."]:
    """Returns whether x < y, exactly: one number has one form, for its high part is the sum of both, rounded."""
    # As float32, which holds all exponents, and NaN where a number is NaN: that is neither less nor equal.
    a, b = ((n.exponent - (NOTHING - 1)).astype(jnp.float32) * jnp.sign(n.high) for n in (x, y))
    within = (x.high < y.high) | ((x.high == y.high) & (x.low < y.low))
    return (a < b) | ((a == b) & within)


def equal(x: Wide, y: Wide) -> Bool[Array, " ..."]:
    """Returns whether x == y."""
    return (x.high == y.high) & (x.low == y.low) & (x.exponent == y.exponent)


def less_or_equal(x: Wide, y: Wide) -> Bool[Array, " ..."]:
    """Returns whether x <= y."""
    return less(x, y) | equal(x, y)


def largest(x: Wide, y: Wide) -> Wide:
    """Returns the larger number; NaN if either is NaN."""
    return select(less(x, y) | jnp.isnan(y.high), y, x)


def smallest(x: Wide, y: Wide) -> Wide:
    """Returns the smaller number; NaN if either is NaN."""
    return select(less(y, x) | jnp.isnan(y.high), y, x)


def absolute(x: Wide) -> Wide:
    """Returns |x|."""
    return select(x.high < 0, negative(x), x)


def is_finite(x: Wide) -> Bool[Array, " ..."]:
    """Returns where numbers are neither inf nor NaN."""
    return x.exponent < INFINITE


def floor(x: Wide) -> Wide:
    """Returns the largest whole number at most x, exactly.

    A high part that is not whole is farther from the next whole number than its low part reaches.
    """
    near = jnp.clip(x.exponent, -30, 100)
    high, low = pair.scale(x.pair, power_of_two(near))
    whole = jnp.floor(high)
    # High parts above 2^24 are whole; XLA's floor is exact.
    rest = jnp.where(whole == high, jnp.floor(low), _ZERO)
    found = normal(pair.quick_two_sum(whole, rest), x.exponent - near)
    small = select(x.high < 0, constant(-1.0), constant(0.0))
    return select(x.exponent > 99, x, select(x.exponent < -30, small, found))


def ceiling(x: Wide) -> Wide:
    """Returns the smallest whole number at least x, exactly."""
    return negative(floor(negative(x)))


def nearest_whole(x: Wide) -> Wide:
    """Returns the whole number nearest to x, the even one of two."""
    # Ties go to the even neighbour, as IEEE 754 has it.
    below = floor(x)
    distance = subtract(x, below)
    half = constant(0.5)
    half_below = times_power(below, jnp.int32(-1))
    is_odd = ~equal(floor(half_below), half_below)
    up = less(half, distance) | (equal(half, distance) & is_odd)
    one = constant(1.0)
    return select(up & is_finite(x), add(below, one), below)


# ----------------------------------------------------------------------------------------------------
# Conversions: numbers of other types as pairs with exponents, and back
# ----------------------------------------------------------------------------------------------------


def of_array(value: Array) -> Wide:
    """Returns an array of real numbers: exactly; float64 to 2^-49, and whole numbers of more than 46 bits to 2^-44."""
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
    return normal(Pair(value, jnp.zeros_like(value)), 0)


def _of_whole(value: Array) -> Wide:
    """Returns whole numbers, by pieces of `piece` bits, each a float32 number.

    A sum of two pieces is exact, and one of three up to 46 bits.
    """
    # Bits of a whole number that are taken at once. Exact sums rest on it.
    piece = 20
    is_wider = value.dtype.itemsize > 4 or jnp.issubdtype(value.dtype, jnp.unsignedinteger)
    value = value.astype(jnp.int64 if is_wider else jnp.int32)
    pieces = [(value & (2**piece - 1)).astype(jnp.float32)]
    if is_wider:
        value = value >> piece
        pieces.append((value & (2**piece - 1)).astype(jnp.float32) * np.float32(2.0**piece))
    # The top piece has at most 24 bits, with the sign; it is not below the next piece in size, or is 0.
    pieces.append((value >> piece).astype(jnp.float32) * np.float32(2.0 ** (piece * len(pieces))))
    total = pair.quick_two_sum(pieces[-1], pieces[-2])
    if is_wider:
        total = pair.add(total, Pair(pieces[0], jnp.zeros_like(pieces[0])))
    return normal(total, 0)


def _of_float64(value: Array) -> Wide:
    found, exponent = lax.platform_dependent(value, tpu=taken_apart, default=_by_powers)
    return normal(found, exponent)


def taken_apart(value: Array) -> tuple[Pair, Array]:
    """Returns pairs, and powers of two beside them, of float64 numbers that are two float32 ones, of their range.

    One difference takes them apart, exactly; a power brings them into the range of :func:`normal`.
    """
    high = value.astype(jnp.float32)
    low = jnp.where(jnp.isfinite(high), (value - high.astype(jnp.float64)).astype(jnp.float32), np.float32(0))
    size = jnp.abs(high)
    moved = 64 * ((size < np.float32(2.0**-62)).astype(jnp.int32) - (size >= np.float32(2.0**64)).astype(jnp.int32))
    return pair.scale(Pair(high, low), power_of_two(moved)), -moved


def _by_powers(value: Array) -> tuple[Pair, Array]:
    """Returns numbers brought between 1/2 and 2 by powers of two, each a product in float64, and those powers."""
    exponent = jnp.zeros(value.shape, jnp.int32)
    is_number = jnp.isfinite(value) & (value != 0)
    # A power for each bit of the exponent, from the largest: every product is exact.
    for shift in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        up, down = jnp.float64(2.0**shift), jnp.float64(2.0**-shift)
        large, small = is_number & (jnp.abs(value) >= up), is_number & (jnp.abs(value) < 2 * down)
        value = jnp.where(large, value * down, jnp.where(small, value * up, value))
        exponent = exponent + jnp.where(large, shift, jnp.where(small, -shift, 0))
    high = value.astype(jnp.float32)
    low = jnp.where(jnp.isfinite(value), value - high.astype(jnp.float64), 0.0).astype(jnp.float32)
    return pair.quick_two_sum(high, low), exponent


def to_float64(x: Wide) -> Array:
    """Returns numbers as float64: exactly in its range; on a TPU as two float32 numbers, in their range."""
    found: Array = lax.platform_dependent(x, tpu=to_two_singles, default=_to_double)
    return found


def to_two_singles(x: Wide) -> Array:
    """Returns the two float32 numbers of a number, inf beyond their range, 0 below it; their one sum is exact.

    XLA has no other way to a float64 on a TPU: it makes nothing of its bits there. Low parts below 2^-126 are 0.
    """
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -126, 127)))
    high = jnp.where(x.exponent < -126, np.float32(0), jnp.where(x.exponent > 127, x.high * np.float32(np.inf), high))
    low = jnp.where((x.exponent < -126) | (x.exponent > 127), np.float32(0), low)
    return jnp.where(jnp.isfinite(high), high.astype(jnp.float64) + low.astype(jnp.float64), high.astype(jnp.float64))


def _to_double(x: Wide) -> Array:
    value = x.high.astype(jnp.float64) + x.low.astype(jnp.float64)
    # The power is applied in two halves, so that neither overflows where the result does not; what float64 cannot hold
    # is inf or 0.
    value = jnp.where(is_finite(x), value, x.high.astype(jnp.float64))
    exponent = jnp.where(is_finite(x), jnp.clip(x.exponent, -1200, 1200), 0)
    half = exponent >> 1

    def power(exponent: Array) -> Array:
        """Returns 2^exponent: float32 has its eighth root, but for whole powers."""
        root, rest = (power_of_two(part).astype(jnp.float64) for part in (exponent >> 3, exponent & 7))
        return root**8 * rest

    return value * power(half) * power(exponent - half)


def to_float32(x: Wide) -> Array:
    """Returns the nearest float32 numbers; subnormal ones are 0."""
    # The high part is the nearest float32 number to the pair already.
    large, small = x.exponent > 127, x.exponent < -126
    value = x.high * power_of_two(jnp.clip(x.exponent, -126, 127))
    return jnp.where(large & (x.exponent < INFINITE), value * jnp.inf, jnp.where(small, 0.0, value))


def to_whole(x: Wide, dtype: DTypeLike) -> Array:
    """Returns the whole parts, towards 0, as ``dtype``; numbers beyond its range become the nearest that it holds."""
    # The sum of both parts is formed in int64; the range of wider types is cut to it.
    toward_zero = select(x.high < 0, ceiling(x), floor(x))
    limits = np.iinfo(dtype)
    is_unsigned = limits.min == 0
    near = jnp.clip(toward_zero.exponent, -23, 62)

    def part(value: Array) -> Array:
        # The part times 2^near, in whole numbers: high has 23 bits behind its point. The low part of a whole number is
        # whole.
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
