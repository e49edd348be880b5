"""Pairs, sums of two float32 numbers: 48 bits from float32's +, - and *, rounded to nearest, and from checked guesses.

u = 2^-24 is float32's unit of roundoff. A pair (high, low) stands for high + low; high is that sum rounded, so that
|low| <= u |high|. The only assumptions on a device are that sums and differences are rounded to nearest and that
products which fit into 24 bits are exact. Quotients and roots of the device are first guesses whose residuals are
computed here: a guess that is worse than allowed makes the result NaN, and NaN makes no bound.

*Contraction.* A compiler may round a product and a sum once (fma), here or there as it likes. So no product is formed
whose rounding matters twice: numbers are split into halves of 12 bits by their bits, and products of halves are exact,
fused or not. (Splitting by a factor of 2^12 + 1, as Dekker does, is not safe: both differences fused give the number
itself.) A product that is rounded is used once, as a term of second order.

*Subnormals* may be flushed to zero. Operands between 2^-30 and 2^30 in absolute value, whose low parts are 0 or above
2^-70, keep every error term of a sum above 2^-126; products lose less than 2^-100 of the result.
:mod:`jaxacct.numerics.float_pairs.wide` keeps its numbers there.

Sources: Dekker (1971), "A floating-point technique for extending the available precision"; Knuth, The Art of Computer
Programming 2, 4.2.2; Joldes, Muller and Popescu (2017), "Tight and rigorous error bounds for basic building blocks of
double-word arithmetic", algorithms 6 and 11.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Float32, Int32

U = 2.0**-24
"""Float32's unit of roundoff."""

ROUNDING = 16 * U**2
"""Bound on the relative error of a sum, difference, product, quotient or root of pairs: 2^-44."""

Single = Float32[Array, " ..."]
"""One float32 number for each place."""


class Pair(NamedTuple):
    """Numbers (...), each the sum ``high + low``."""

    high: Single
    low: Single


Part = TypeVar("Part")


class Complex(NamedTuple, Generic[Part]):
    """Complex numbers by their parts, which are pairs or :class:`.wide.Wide`."""

    real: Part
    imaginary: Part


def constant(value: float) -> Pair:
    """Returns a number of the host, right to 2^-49 of itself."""
    high = np.float32(value)
    return Pair(jnp.asarray(high), jnp.asarray(np.float32(np.float64(value) - np.float64(high))))


def bits(value: Single) -> Int32[Array, " ..."]:
    """Returns the bits of float32 numbers."""
    return lax.bitcast_convert_type(value, jnp.int32)


def from_bits(value: Int32[Array, " ..."]) -> Single:
    """Returns the float32 numbers that have these bits."""
    return lax.bitcast_convert_type(value, jnp.float32)


def power_of_two(exponent: Int32[Array, " ..."]) -> Single:
    """Returns 2^exponent, for exponents from -126 to 127."""
    return from_bits((exponent + 127) << 23)


def two_sum(a: Single, b: Single) -> Pair:
    """Returns a + b exactly (Knuth)."""
    total = a + b
    part = total - a
    return Pair(total, (a - (total - part)) + (b - part))


def quick_two_sum(a: Single, b: Single) -> Pair:
    """Returns a + b exactly, where |a| >= |b| or a is 0 (Dekker)."""
    total = a + b
    return Pair(total, b - (total - a))


def halves(a: Single) -> Pair:
    """Returns ``a`` as a number of 12 bits, the nearest, and the rest, of 12 bits as well."""
    # Half a unit of the kept bits is added to the bits, and the rest cleared: rounding to nearest, without a product.
    high = from_bits((bits(a) + 0x800) & ~0xFFF)
    return Pair(high, a - high)


def two_product(a: Single, b: Single) -> Pair:
    """Returns p and e whose sum is a b, exactly (Dekker): |e| at most 2 u |p|.

    For a and b from 1 to 2, halves being whole multiples of 2^-11 and 2^-23: p, the sum of the three larger products,
    is one of 2^-23 and differs from a b by its own rounding, u |p|, by the product of the low halves, 2^-24, and by the
    rounding of the middle ones. So the rest after each subtraction fits into 24 bits: multiples of 2^-23 up to
    2^-9, of 2^-34 up to 2^-10 and, with that product, of 2^-34 up to 2^-22; then e, of 2^-46 up to 2^-22. Products of
    halves are exact and p is the same sum wherever it is compiled, fused or not.
    """
    (a1, a2), (b1, b2) = halves(a), halves(b)
    whole, crossed, other = a1 * b1, a1 * b2, a2 * b1
    # The larger products are summed first; what their sum lost is then recovered term by term, each difference exact.
    p = whole + (crossed + other)
    return Pair(p, a2 * b2 - (((p - whole) - other) - crossed))


def product(a: Single, b: Single | np.float32) -> Single:
    """Returns a b, rounded wherever it is compiled: the maximum keeps it from being fused with a sum.

    A compiler may compute a value several times over, fused in one place and not in another. A pair whose high part
    comes from the one place and whose low part from the other would be off by a unit in the last place of the high one.
    """
    return jnp.maximum(a * b, LEAST)


LEAST = np.float32(-3e38)
"""A number below any product, so that a maximum with it changes nothing but the compiled code."""


def add(x: Pair, y: Pair) -> Pair:
    """Returns x + y, within 3 u^2 + 13 u^3 of itself whatever cancels (Joldes et al., algorithm 6)."""
    # High and low parts are summed exactly by themselves, and then joined: so the error is relative to the result even
    # where the high parts cancel.
    high, error = two_sum(x.high, y.high)
    low, rest = two_sum(x.low, y.low)
    high, error = quick_two_sum(high, error + low)
    return quick_two_sum(high, error + rest)


def negative(x: Pair) -> Pair:
    """Returns -x."""
    return Pair(-x.high, -x.low)


def subtract(x: Pair, y: Pair) -> Pair:
    """Returns x - y, as :func:`add`."""
    return add(x, negative(y))


def multiply(x: Pair, y: Pair) -> Pair:
    """Returns x y within 10 u^2 of itself.

    In units of u^2 |x y|, second-order terms at their largest: the crossed products are off by 1 each and their sum, at
    most 2 u |x y|, by 2; with the rest of the leading one, at most 2 u, by 4; low times low, 1, is left out. The sum is
    9, and terms of third order.
    """
    # The crossed products are of second order: they may be rounded, but only once, wherever they are compiled.
    p, e = two_product(x.high, y.high)
    return quick_two_sum(p, e + (product(x.high, y.low) + product(x.low, y.high)))


def square(x: Pair) -> Pair:
    """Returns x^2 within 10 u^2 of itself: the two middle products are one, and exact.

    In units of u^2 x^2: the crossed product is off by 2, the sums by 3 and 4; low times low, 1, is left out.
    """
    a, b = halves(x.high)
    p, e = quick_two_sum(a * a, 2 * a * b)
    return quick_two_sum(p, e + (b * b + product(2 * x.high, x.low)))


def scale(x: Pair, factor: Single) -> Pair:
    """Returns x times a power of two, exactly."""
    return Pair(x.high * factor, x.low * factor)


CLOSE = 2.0**-30
"""Largest relative error of a quotient or root after two guesses, at which the next step is enough. The error bounds of
:func:`divide` and :func:`square_root` rest on it."""


def divide(x: Pair, y: Pair) -> Pair:
    """Returns x / y within 14 u^2 of itself; NaN where the device's own quotients are off by more than 2^-17.

    Guess, correct the guess by its residual, and take the residual of that: at most 4 u |x|, for then the quotient is
    right to a bit and a half. Its leading part is exact (the high parts differ by less than a factor of 2); in units of
    u^2 |x| the rest errs by 1 in the product with the low part, 2 in the difference with x's low part, and 2 in its sum
    with the rest of the leading part. A third guess of 12 bits, whose products with halves are exact, leaves 2^-30,
    which is checked, and costs 4 in sums of at most 4 u; a fourth is right to more than is needed; the last sum rounds
    by 1.
    """
    first = x.high / y.high
    p, e = two_product(first, y.high)
    first = first + ((x.high - p) - e) / y.high
    p, e = two_product(first, y.high)
    rest, error = two_sum(x.high - p, -e)
    error = error + (x.low - product(first, y.low))
    (second, _), (b1, b2) = halves((rest + error) / y.high), halves(y.high)
    rest = ((rest - second * b1) - second * b2) + error
    third = rest / y.high
    seen = jnp.abs(rest) <= CLOSE * jnp.abs(x.high)
    high, low = quick_two_sum(first, second)
    high, low = quick_two_sum(high, low + third)
    return Pair(jnp.where(seen, high, jnp.nan), low)


def square_root(x: Pair) -> Pair:
    """Returns the root of x > 0 within 5 u^2 of itself; NaN where the device's own are off by more than 2^-15.

    The steps are those of :func:`divide`; the first residual is off by 3 u^2 x, and a root by half its square's error.
    """
    first = jnp.sqrt(x.high)
    zero = jnp.zeros_like(first)
    # Each guess adds a correction of its residual over twice the root; the last residual is looked at, so a device's
    # root that is too far off makes NaN.
    rest = subtract(x, multiply(Pair(first, zero), Pair(first, zero)))
    second = rest.high / (2 * first)
    # (s + t)^2 - s^2 = t (2 s + t)
    rest = subtract(rest, multiply(Pair(second, zero), two_sum(2 * first, second)))
    third = rest.high / (2 * first)
    left = jnp.abs(rest.high - third * (2 * first))
    seen = (jnp.abs(rest.high) <= CLOSE * x.high) & (left <= U**2 * x.high)
    high, low = quick_two_sum(first, second)
    high, low = quick_two_sum(high, low + third)
    return Pair(jnp.where(seen, high, jnp.nan), low)
