"""sin, cos and atan2 of pairs with exponents. Errors in units of u^2 = 2^-48, to first order.

*Turns.* pi / 2 is taken in seven parts of 14 bits, and its multiple k in groups of 1024 and a rest, both below 2^10:
all products are exact, and so is what is left of the high part after the first ones (numbers close to each other). The
rest is summed as in three times the precision (errors of sums summed with their errors): off by (13 u)^3 times 200.
Up to |x| = 11.7, k has three bits. Partial sums that cancel are exact, and after the part c_i the sum is at most
|r| + 7 2^(-14 i): the error is below 2 u^2 |r| wherever |r| > 2^-46. Pairs that are closer to a multiple of pi / 2 are
few, and all of them are in the tests.

*sin and cos.* With a of j/64 from the table and b its derivative, a + (b sin z + a (cos z - 1)): products make 14, the
series 12 of |z|, which is at most the result; sums 3 + 3, the row 2, r 2 to 4: below 40, where 64 are asked for. Beyond
|x| = 11.7 that is an absolute error.

*atan2.* z = (a - c b) / (b + c a) for c = j/64 near a / b, |z| < 1/80: c is at most twice the result, so the product
makes 28, the sums and the quotient 31, the series 12, the row and the sum 5; pi / 2 or pi 4 more: below 80, where 128
are asked for. The device's quotient a / b is a guess, and a z that is too large makes NaN.

Sources: Euler's series of arctan and Machin's formula, for the constants; Ogita, Rump and Oishi (2005), "Accurate sum
and dot product", for the sums.
"""

from __future__ import annotations

import functools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.functions import DIGITS, STEPS, looked_up, parts, rounded, series
from jaxacct.float_pairs.pair import Pair, power_of_two, product, quick_two_sum, two_sum
from jaxacct.float_pairs.wide import INFINITE, Wide

QUARTERS = 2.0**20
"""More quarters of a turn are not taken off: the result is NaN."""

TURN_ROWS = 60
"""Of sin and cos: what is left of a turn is below 0.9, for k may be one too many or too few where x is very large."""

GROUP = 1024
"""Quarters are counted in whole groups and a rest, both in few bits."""


def _arctan(x: Fraction, digits: int) -> Decimal:
    """Returns arctan x for |x| <= 1, by Euler's series, whose terms have one sign."""
    ratio = x * x / (1 + x * x)
    one = 10**digits
    term = total = one * x.numerator * x.denominator // (x.numerator**2 + x.denominator**2)
    n = 0
    while term:
        n += 1
        term = term * 2 * n * ratio.numerator // ((2 * n + 1) * ratio.denominator)
        total += term
    return Decimal(total).scaleb(-digits)


@functools.cache
def quarter_turn() -> Decimal:
    """Returns pi / 2 to 60 digits: 8 arctan(1/5) - 2 arctan(1/239) (Machin)."""
    with localcontext(DIGITS) as context:
        context.prec = 70
        return 8 * _arctan(Fraction(1, 5), 66) - 2 * _arctan(Fraction(1, 239), 66)


@functools.cache
def _circle() -> tuple[list[np.float32], np.float32, list[np.ndarray]]:
    """Returns pi / 2 in parts, 2 / pi, and sin and cos of j/64, in two parts each."""
    with localcontext(DIGITS) as context:
        context.prec = 50
        step = Decimal(1) / STEPS
        sine, cosine = (
            sum((-1) ** (n // 2) * step**n / math.factorial(n) for n in range(first, 30, 2)) for first in (1, 0)
        )
        rows, s, c = [], Decimal(0), Decimal(1)
        for _ in range(TURN_ROWS):
            rows.append([*parts(s, 24, 24), *parts(c, 24, 24)])
            s, c = s * cosine + c * sine, c * cosine - s * sine
        return parts(quarter_turn(), *(14,) * 7), rounded(1 / quarter_turn()), list(np.transpose(rows))


def _turned(x: Wide) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns r and k such that x = k pi / 2 + r, with |r| < 0.9; NaN beyond :data:`QUARTERS`."""
    quarter, inverse, _ = _circle()
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, 21)))
    k = lax.round(high * inverse, lax.RoundingMethod.TO_NEAREST_EVEN)
    groups = GROUP * lax.round(k * np.float32(1 / GROUP), lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = k - groups
    total = (high - groups * quarter[0]) - rest * quarter[0]
    terms = [-(groups * quarter[1]), -(rest * quarter[1]), low]
    terms += [-(count * c) for c in quarter[2:5] for count in (groups, rest)]
    terms += [-(rest * c) for c in quarter[5:]]
    errors, left = jnp.zeros_like(total), jnp.zeros_like(total)
    for n, term in enumerate(terms):
        total, error = two_sum(total, term)
        if not n:
            errors = error
            continue
        errors, error = two_sum(errors, error)
        left = left + error
    total, errors = two_sum(total, errors)
    total, errors = quick_two_sum(total, errors + left)
    return Pair(jnp.where(jnp.abs(k) < QUARTERS, total, jnp.nan), errors), k.astype(jnp.int32)


def _split(r: Pair) -> tuple[Pair, Pair, Pair, Pair]:
    """Returns sin and cos of j/64, and sin z and cos z - 1, for r = j/64 + z and |z| < 1/127."""
    j = lax.round(r.high * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN)
    z = two_sum(r.high - j * np.float32(1 / STEPS), r.low)
    sign = jnp.where(j < 0, np.float32(-1), np.float32(1))
    s1, s2, c1, c2 = looked_up(jnp.abs(j).astype(jnp.int32), _circle()[2])
    sine = series(z, 0.0, [Fraction(-1, 6), 0, Fraction(1, 120)])
    square = pair.square(z)
    fourth = product(product(square.high, square.high), np.float32(1 / 24) - product(square.high, np.float32(1 / 720)))
    cosine = quick_two_sum(-0.5 * square.high, fourth - 0.5 * square.low)
    return Pair(s1 * sign, s2 * sign), Pair(c1, c2), sine, cosine


def _joined(a: Pair, b: Pair, sine: Pair, cosine: Pair) -> Pair:
    """Returns sin(a + z) = a + (a (cos z - 1) + b sin z), with b the derivative of a."""
    return pair.add(a, pair.add(pair.multiply(b, sine), pair.multiply(a, cosine)))


def _if(which: Array, yes: Pair, no: Pair) -> Pair:
    return Pair(*(jnp.where(which, a, b) for a, b in zip(yes, no, strict=True)))


def _sine_of(x: Wide, k_more: int) -> Wide:
    """Returns sin(x + k_more pi / 2)."""
    r, k = _turned(x)
    k = k + k_more
    s, c, sine, cosine = _split(r)
    is_cosine = (k & 1) == 1
    found = _joined(_if(is_cosine, c, s), _if(is_cosine, pair.negative(s), c), sine, cosine)
    turn = jnp.where((k & 2) == 2, np.float32(-1), np.float32(1))
    return wide.normal(pair.scale(found, turn), 0)


def sine_and_cosine(x: Wide) -> list[Wide]:
    """Returns sin x and cos x, as either by itself."""
    r, k = _turned(x)
    s, c, sine, cosine = _split(r)
    of_sine, of_cosine = _joined(s, c, sine, cosine), _joined(c, pair.negative(s), sine, cosine)
    is_odd, turn = (k & 1) == 1, jnp.where((k & 2) == 2, np.float32(-1), np.float32(1))
    first = wide.normal(pair.scale(_if(is_odd, of_cosine, of_sine), turn), 0)
    second = wide.normal(pair.scale(_if(is_odd, pair.negative(of_sine), of_cosine), turn), 0)
    return [_or_nan(x, wide.select(x.exponent < -50, x, first)), _or_nan(x, second)]


def _or_nan(x: Wide, found: Wide) -> Wide:
    return found._replace(
        high=jnp.where(x.exponent == INFINITE, jnp.nan, found.high),
        exponent=jnp.where(x.exponent == INFINITE, np.int32(INFINITE), found.exponent),
    )


def sin(x: Wide) -> Wide:
    """Returns sin x; NaN where |x| is above a million."""
    return _or_nan(x, wide.select(x.exponent < -50, x, _sine_of(x, 0)))


def cos(x: Wide) -> Wide:
    """Returns cos x; NaN where |x| is above a million."""
    return _or_nan(x, _sine_of(x, 1))


@functools.cache
def _arctans() -> tuple[list[np.ndarray], list[list[np.float32]]]:
    """Returns arctan(j/64), for j from 0 to 64, in two parts, and pi / 2 and pi."""
    rows = [parts(_arctan(Fraction(j, STEPS), 40), 24, 24) for j in range(STEPS + 1)]
    quarter = Fraction(quarter_turn())
    return list(np.transpose(rows)), [parts(quarter, 24, 24), parts(2 * quarter, 24, 24)]


def atan2(y: Wide, x: Wide) -> Wide:
    """Returns the angle of (x, y), between -pi and pi; 0 at (0, 0), whatever the signs of zeros."""
    table, (half, whole) = _arctans()
    a, b = wide.absolute(y), wide.absolute(x)
    steep = wide.less(b, a)
    a, b = wide.select(steep, b, a), wide.select(steep, a, b)
    # What is infinite is as if 1 beside 0 or 1.
    one, zero = wide.constant(1.0), wide.constant(0.0)
    far = b.exponent == INFINITE
    a = wide.select(far & ~jnp.isnan(a.high), wide.select(a.exponent == INFINITE, one, zero), a)
    b = wide.select((far & ~jnp.isnan(b.high)) | (b.high == 0), one, b)
    # The device's quotient is a guess; what it leaves is looked at.
    guess = (a.high / b.high) * power_of_two(jnp.clip(a.exponent - b.exponent, -100, 0))
    j = jnp.clip(lax.round(guess * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN), 0, STEPS)
    c = wide.normal(Pair(j * np.float32(1 / STEPS), jnp.zeros_like(j)), 0)
    z = wide.divide(wide.subtract(a, wide.multiply(c, b)), wide.add(b, wide.multiply(c, a)))
    near = pair.scale(z.pair, power_of_two(jnp.clip(z.exponent, -100, 0)))
    near = Pair(jnp.where(jnp.abs(near.high) < np.float32(1 / 80), near.high, jnp.nan), near.low)
    arc = series(near, 0.0, [Fraction(-1, 3), 0, Fraction(1, 5), 0, Fraction(-1, 7)])
    first = Pair(*looked_up(j.astype(jnp.int32), table))
    r = pair.add(first, arc)
    behind = x.high < 0
    outward = jnp.where(steep ^ behind, np.float32(-1), np.float32(1))
    base = Pair(*(jnp.where(steep, p, jnp.where(behind, q, 0.0)) for p, q in zip(half, whole, strict=True)))
    outward = jnp.where(steep, jnp.where(behind, np.float32(1), np.float32(-1)), outward)
    found = wide.normal(pair.add(base, pair.scale(r, outward)), 0)
    found = wide.select((z.exponent < -50) & (j == 0) & ~steep & ~behind, z, found)
    return wide.select(y.high < 0, wide.negative(found), found)
