"""Elementary functions of pairs with exponents, with error bounds, and a check of what pairs assume of a backend.

Errors are in units of u^2 = 2^-48, to first order. Each function brings its argument near an entry of a table, and adds
a short series or polynomial in the rest. In reading order: sin, cos and atan2; erf and erfc; exp, log and the functions
made of them; the check of a backend. The next three paragraphs are of sin, cos and atan2.

*Turns.* pi / 2 is taken in seven parts of 14 bits, and its multiple k in groups of 1024 and a rest, both below 2^10:
all products are exact, and so is the rest of the high part after the first ones (numbers close to each other). The
others are summed as in three times the precision (errors of sums summed with their errors): off by (13 u)^3 times 200.
Up to |x| = 11.7, k has three bits. Partial sums that cancel are exact, and after the part c_i the sum is at most
|r| + 7 2^(-14 i): the error is below 2 u^2 |r| wherever |r| > 2^-46. Pairs that are closer to a multiple of pi / 2 are
few, and all of them are in the tests.

*sin and cos.* With a of j/64 from the table and b its derivative, a + (b sin z + a (cos z - 1)): products make 14, the
series 12 of |z|, which is at most the result; sums 3 + 3, the row 2, r 2 to 4: below 40, where 64 are allowed. Beyond
|x| = 11.7 that is an absolute error.

*atan2.* z = (a - c b) / (b + c a) for c = j/64 near a / b, |z| < 1/80: c is at most twice the result, so the product
makes 28, the sums and the quotient 31, the series 12, the row and the sum 5; pi / 2 or pi 4 more: below 80, where 128
are allowed. The device's quotient a / b is a guess, and a z that is too large makes NaN.

Sources: Euler's series of arctan and Machin's formula, for the constants; Ogita, Rump and Oishi (2005), "Accurate sum
and dot product", for the sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32

from jaxacct.numerics.arithmetic import platform, refuse
from jaxacct.numerics.float_pairs import pair, wide
from jaxacct.numerics.float_pairs.pair import Pair, Single, U, halves, power_of_two, product, quick_two_sum, two_sum
from jaxacct.numerics.float_pairs.wide import INFINITE, NOTHING, Wide


def _arctan(x: Fraction, digits: int) -> Decimal:
    """Returns arctan x for |x| <= 1, by Euler's series, whose terms have one sign."""
    ratio = x * x / (1 + x * x)
    one = 10**digits
    term = total = one * x.numerator * x.denominator // (x.numerator**2 + x.denominator**2)
    n = 0
    # In whole numbers of the last digit: each term from the one before, until it is below that digit.
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
    # Rows of the table of sin and cos: the rest of a turn is below 0.9, for k may be one too many or too few where x is
    # very large.
    turn_rows = 60
    with localcontext(DIGITS) as context:
        context.prec = 50
        step = Decimal(1) / STEPS
        sine, cosine = (
            sum((-1) ** (n // 2) * step**n / math.factorial(n) for n in range(first, 30, 2)) for first in (1, 0)
        )
        rows, s, c = [], Decimal(0), Decimal(1)
        # Each row from the one before, by the sum of angles.
        for _ in range(turn_rows):
            rows.append([*parts(s, 24, 24), *parts(c, 24, 24)])
            s, c = s * cosine + c * sine, c * cosine - s * sine
        return parts(quarter_turn(), *(14,) * 7), round_to(1 / quarter_turn()), list(np.transpose(rows))


def _reduce_by_quarters(x: Wide) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns r and k such that x = k pi / 2 + r, with |r| < 0.9; NaN for more quarters than 2^20."""
    # Quarters in a group: they are counted in whole groups and a rest, both in few bits. Exact products rest on it.
    group = 1024
    # Most quarters of a turn that are taken off; for more the result is NaN. The exact products above rest on it.
    quarters = 2.0**20
    quarter, inverse, _ = _circle()
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, 21)))
    k = lax.round(high * inverse, lax.RoundingMethod.TO_NEAREST_EVEN)
    groups = group * lax.round(k * np.float32(1 / group), lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = k - groups
    total = (high - groups * quarter[0]) - rest * quarter[0]
    terms = [-(groups * quarter[1]), -(rest * quarter[1]), low]
    terms += [-(count * c) for c in quarter[2:5] for count in (groups, rest)]
    terms += [-(rest * c) for c in quarter[5:]]
    errors, left = jnp.zeros_like(total), jnp.zeros_like(total)
    # The sum as in three times the precision: its errors are summed with theirs.
    for n, term in enumerate(terms):
        total, error = two_sum(total, term)
        if not n:
            errors = error
            continue
        errors, error = two_sum(errors, error)
        left = left + error
    total, errors = two_sum(total, errors)
    total, errors = quick_two_sum(total, errors + left)
    return Pair(jnp.where(jnp.abs(k) < quarters, total, jnp.nan), errors), k.astype(jnp.int32)


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


def _sine_of_sum(a: Pair, b: Pair, sine: Pair, cosine: Pair) -> Pair:
    """Returns sin(a + z) = a + (a (cos z - 1) + b sin z), with b the derivative of a."""
    return pair.add(a, pair.add(pair.multiply(b, sine), pair.multiply(a, cosine)))


def _if(which: Array, yes: Pair, no: Pair) -> Pair:
    return Pair(*(jnp.where(which, a, b) for a, b in zip(yes, no, strict=True)))


def _sine_of(x: Wide, k_more: int) -> Wide:
    """Returns sin(x + k_more pi / 2)."""
    r, k = _reduce_by_quarters(x)
    k = k + k_more
    s, c, sine, cosine = _split(r)
    is_cosine = (k & 1) == 1
    found = _sine_of_sum(_if(is_cosine, c, s), _if(is_cosine, pair.negative(s), c), sine, cosine)
    turn = jnp.where((k & 2) == 2, np.float32(-1), np.float32(1))
    return wide.normal(pair.scale(found, turn), 0)


def sine_and_cosine(x: Wide) -> list[Wide]:
    """Returns sin x and cos x, the same numbers as :func:`sin` and :func:`cos`."""
    r, k = _reduce_by_quarters(x)
    s, c, sine, cosine = _split(r)
    of_sine, of_cosine = _sine_of_sum(s, c, sine, cosine), _sine_of_sum(c, pair.negative(s), sine, cosine)
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
    # An infinite operand is replaced by 1, and the other by 0 or 1.
    one, zero = wide.constant(1.0), wide.constant(0.0)
    far = b.exponent == INFINITE
    a = wide.select(far & ~jnp.isnan(a.high), wide.select(a.exponent == INFINITE, one, zero), a)
    b = wide.select((far & ~jnp.isnan(b.high)) | (b.high == 0), one, b)
    # The device's quotient is a guess, and its residual z is checked.
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


# ----------------------------------------------------------------------------------------------------
# erf and erfc, by tables of Taylor polynomials
#
# Below 1/2, erf(x) = x P(x^2); above, erfc(x) = e^(-x^2) P(1 / (1 + x)). P is a Taylor polynomial of degree 6, of a
# table with a row for each 1/64 of its argument, the first three coefficients pairs, the others float32.
#
# *P.* Where x < 1/2 its argument makes 1.2 and its sums and products 5. Elsewhere the argument is off by 14, which
# counts at most 1.3 times; sums and products of pairs make 11; float32's errors in the third-order terms, and the terms
# left out, are at most 28 for x < 3 and 7 (1 + 2 x^2) always.
#
# *erf* is within 20 below 1/2, and 75 above, where it is 1 - erfc; 96 are allowed. *erfc* is within 64 (1 + 2 x^2): the
# square is off by 14 x^2, the exponential by 10 and the product by 14; 128 (1 + 2 x^2) are allowed. Beyond x = 43 it is
# 0, which is below the smallest float64.
# ----------------------------------------------------------------------------------------------------

TERMS = 7
"""Number of coefficients of a Taylor polynomial. The error bounds above rest on it."""

FARTHEST = 43.0
"""Argument beyond which erfc is taken for 0. The last row, of 1/(1 + x) = 1/64, holds from x = 41.7 to 84.3; its series
is within its bound up to here."""

PAIRS = 3
"""Number of the first coefficients that are pairs. The error bounds above rest on it."""


def _scaled_tail(x: Decimal) -> Decimal:
    """Returns e^(x^2) erfc x, by a series with terms of one sign, or far out by Laplace's continued fraction."""
    root = (2 * quarter_turn()).sqrt()
    if x > 6:
        # The continued fraction, from its far end inward.
        ratio = x
        for n in range(120, 0, -1):
            ratio = x + Decimal(n) / 2 / ratio
        return 1 / (root * ratio)
    term = total = x
    # Each term from the one before, until it is below 60 digits of the sum.
    n = 0
    while term > Decimal(10) ** -60 * total:
        n += 1
        term = term * 2 * x * x / (2 * n + 1)
        total += term
    return (x * x).exp() - 2 / root * total


def _far(w: Decimal) -> list[Decimal]:
    """Returns the Taylor coefficients of y(w) = e^(x^2) erfc x, x = 1/w - 1.

    They follow from w^3 y' = -2 (1 - w) y + 2 w / sqrt(pi).
    """
    drive = 2 / (2 * quarter_turn()).sqrt()
    y = [Decimal(0), Decimal(0), _scaled_tail(1 / w - 1)]  # those of index -2 and -1 are 0
    # Each coefficient from the three before, by the differential equation.
    for n in range(TERMS - 1):
        known = -2 * ((1 - w) * y[-1] - y[-2]) + drive * (w if n == 0 else 1 if n == 1 else 0)
        known -= 3 * w**2 * n * y[-1] + 3 * w * (n - 1) * y[-2] + (n - 2) * y[-3]
        y.append(known / (w**3 * (n + 1)))
    return y[2:]


def _near_one(s: Decimal) -> list[Decimal]:
    """Returns the Taylor coefficients of erf(x) / x as a function of s = x^2."""
    found = []
    drive = 2 / (2 * quarter_turn()).sqrt()
    # Coefficient by coefficient, each from a series of its own.
    for m in range(TERMS):
        # The m-th derivative over m! of the sum of (-s)^n / (n! (2 n + 1)), term by term.
        total, power = Decimal(0), Decimal(1)
        for n in range(m, m + 40):
            total += power * (-1) ** n / (2 * n + 1)
            power = power * s / (n + 1 - m)
        found.append(drive * total / math.factorial(m))
    return found


@functools.cache
def _tables() -> tuple[list[np.ndarray], int]:
    """Returns the coefficients, the first ones in two parts each, and how far the row of 1 / (1 + x) = j/64 is from j.

    The first rows are for x^2 = j/64 up to 1/4.
    """
    near, far = range(17), range(1, 44)
    with localcontext(DIGITS) as context:
        context.prec = 70
        rows = [_near_one(Decimal(j) / STEPS) for j in near] + [_far(Decimal(j) / STEPS) for j in far]
        split = [
            [part for c in row[:PAIRS] for part in parts(c, 24, 24)] + [round_to(c) for c in row[PAIRS:]]
            for row in rows
        ]
        return list(np.transpose(split)), len(near) - far[0]


def _tail(x: Wide) -> tuple[Bool[Array, " ..."], Wide]:
    """Returns whether |x| < 1/2, and erf |x| where it is so, erfc |x| where not."""
    x = wide.absolute(x)
    # There are no rows beyond: at 1024 the exponential is 0, whichever row it multiplies.
    x = wide.select(wide.less(wide.constant(FARTHEST), x), wide.constant(1024.0), x)
    near = x.exponent < -1
    square = wide.multiply(x, x)
    # Not 1 everywhere: a compiler would rewrite (1 + x) - 1.
    one = jnp.where(near, np.float32(2), np.float32(1))
    zero = jnp.zeros_like(one)
    w = pair.divide(
        Pair(one, zero), pair.add(Pair(one, zero), pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -9, 10))))
    )
    s = pair.scale(square.pair, power_of_two(jnp.clip(square.exponent, -100, 0)))
    t = Pair(jnp.where(near, s.high, w.high), jnp.where(near, s.low, w.low))
    j = lax.round(t.high * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN)
    tables, apart = _tables()
    row = j.astype(jnp.int32) + jnp.where(near, 0, apart)
    h = two_sum(t.high - j * np.float32(1 / STEPS), t.low)
    columns = looked_up(row, tables)
    g = columns[-1]
    # Horner's rule: the small coefficients in float32, then the first three in pairs.
    for c in columns[-2 : 2 * PAIRS - 1 : -1]:
        g = product(h.high, g) + c
    found = two_sum(columns[2 * PAIRS - 2], product(h.high, g))
    found = Pair(found.high, found.low + columns[2 * PAIRS - 1])
    for n in range(2 * PAIRS - 4, -1, -2):
        found = pair.add(Pair(columns[n], columns[n + 1]), pair.multiply(h, found))
    factor = wide.select(near, x, exp(wide.negative(square)))
    return near, wide.multiply(wide.normal(found, 0), factor)


def erf(x: Wide) -> Wide:
    """Returns erf x."""
    near, tail = _tail(x)
    found = wide.select(near, tail, wide.subtract(wide.constant(1.0), tail))
    return wide.select(x.high < 0, wide.negative(found), found)


def erfc(x: Wide) -> Wide:
    """Returns 1 - erf x."""
    near, tail = _tail(x)
    below = x.high < 0
    one = wide.constant(1.0)
    base = wide.select(below & ~near, wide.constant(2.0), one)
    signed = wide.select(below & near, tail, wide.negative(tail))
    return wide.select(below | near, wide.add(base, signed), tail)


# ----------------------------------------------------------------------------------------------------
# exp, log and the functions made of them: a row of a table, then a short series
#
# An argument is brought near 0, where a table has a row for each 1/64; the rest, z, is below 1/80, and a series in z
# needs a pair for its second term, a sum of exact products for its third, and plain float32 beyond. Constants are made
# here, of 40 decimals. Errors below are relative, in units of u^2 = 2^-48, to first order; 16 of them are one
# :data:`~jaxacct.numerics.float_pairs.pair.ROUNDING`.
#
# *One value, wherever it is computed.* Products that are rounded are
# :func:`~jaxacct.numerics.float_pairs.pair.product`, and no constant is an operand of a sum whose error is used:
# compilers make (x + 1) - 1 into x.
#
# ========  =====================================================  ========
# function  error                                                  allowed
# ========  =====================================================  ========
# exp       10; 24 where |x| > 745                                 64
# exp2      10; none at whole numbers                              64
# expm1     68; 38 below 0                                         128
# log       44                                                     64
# log1p     53, for all arguments                                  80
# tanh      69                                                     128
# logistic  24; 38 where |x| > 745                                 128
# power     12 + 60 |y log x|
# ========  =====================================================  ========
#
# *exp.* With ln 2 in parts of 11, 11, 11 and 24 bits and |k| <= 2^13, products of k with the first three are exact,
# high minus the first is exact (they are close), and r is off by the rounding of k l4, below 2^-26 for k <= 2^13, and
# of the last sum of pairs: 5 u^2 for |x| <= 745, 18 u^2 always. Nothing is rounded for k = 0. The row adds 1, the
# series 15 / 128, the product 14 / 127 and the last two sums 1 and 2.
#
# *expm1.* For k = 0 and j != 0, |e^(j/64) - 1| <= 2.03 |y| and |p| <= 1.02 |y|: the row 2.1, the series 15.3, the
# product 0.3, the sums of low parts 2.1 + 3.1 + 3.1 + 5.1, the last sum 3; 34 in all. Else the sum with 1 - 2^-k, which
# is exact, makes it at most (31 |y| + 5 (1 + y)) / |1 - 2^-k + y| + 3, largest at k = 1, y = -0.293: 64; 37 at k = -1.
#
# *log.* c_j has 12 bits, so products with halves of t are exact; for j != 0, |t| >= 2^-7 and the first sum, of
# multiples of 2^-30 below 2^-6, is exact too. z is off by u^2 (2 |t| c + |z|), at most 3.6 of the result; it is exact
# for j = 0. The series makes 30.4 of the result where |j| = 1, less elsewhere; the row 2.1, the sums of low parts 3.1 +
# 4.1. Where the exponent is not 0 the result is above 0.34: the series makes 2, and the parts of e ln 2, at most twice
# the result, and sums of them less than 20.
#
# *The others* by the conditions of their formulas: log1p near 0 is log's core with t exact, and elsewhere 1 + x adds
# 3 / 0.34; tanh = -e / (2 + e) with e = expm1(-2 |x|) makes at most 1.5 times e's error, 3 and 11; logistic 10 + 3 +
# 11.
# ----------------------------------------------------------------------------------------------------

DIGITS = Context(prec=40)
"""Decimal context of constants before they are rounded: 40 digits, far more than a pair has."""

STEPS = 64
"""Rows of a table for each unit of its argument. The error bounds rest on it."""

ROWS = 24
"""Rows on the lower side of a table: exponentials have rows from -24/64 to 24/64, logarithms up to 30/64."""

Number = Decimal | Fraction | int
"""A number of the host, known to more digits than a pair has."""


def round_to(value: Number, bits: int = 24) -> np.float32:
    """Returns a number of the host in so many bits, rounded to nearest."""
    exact = Fraction(value)
    if not exact:
        return np.float32(0)
    unit = Fraction(2) ** (int(np.frexp(float(exact))[1]) - bits)
    return np.float32(float(round(exact / unit) * unit))


def parts(value: Number, *bits: int) -> list[np.float32]:
    """Returns numbers of so many bits each, each of them the rest that the ones before leave, rounded."""
    rest, found = Fraction(value), []
    for count in bits:
        found.append(round_to(rest, count))
        rest -= Fraction(float(found[-1]))
    return found


def looked_up(row: Int32[Array, " ..."], columns: Sequence[np.ndarray]) -> list[Single]:
    """Returns the columns' entries in a row, 0 where there is none: a sum in which all terms but one are 0.

    A sum over the first axis takes only a few instructions to compile, and runs in vectors.
    """
    shape = (len(columns[0]), *(1,) * row.ndim)
    hit = row[None] == np.arange(len(columns[0]), dtype=np.int32).reshape(shape)
    return [jnp.sum(jnp.where(hit, column.reshape(shape), np.float32(0)), axis=0) for column in columns]


def series(z: Pair, second: float, further: Sequence[Number]) -> Pair:
    """Returns z + second z^2 + c3 z^3 + c4 z^4 + ..., for |z| < 1/80, second 1/2, -1/2 or 0, and |c_n| <= 1/n.

    It is off by at most (12 + 240 |c4| (80 z)^3) u^2 |z|. y = c3 z + c4 z^2 + ... is a sum of an exact product and
    terms of size |z g|, |g| <= 2^-14 + 1.04 |c4 z|, whose roundings make less than u |z| (6.3 |g| + 0.0002); that
    counts z^2 times. z^2 y is rounded in terms of 2^-11 of itself, 1.2 u^2 at most; sums of low parts make
    2 + 1 + 1.5 + 3.5.
    """
    c3, *rest_of = further
    head = round_to(c3, 12)
    tail = [round_to(Fraction(c3) - Fraction(float(head))), *(round_to(c) for c in rest_of)]
    z1, z2 = halves(z.high)
    square = pair.square(z)
    # y = c3 z + c4 z^2 + ..., by Horner's rule.
    g = jnp.full_like(z.high, tail[-1])
    for c in tail[-2::-1]:
        g = product(z.high, g) + c
    y, y_low = quick_two_sum(z1 * head, product(z2 + z.low, head) + product(z.high, g))
    # z^2 y, with the leading product exact.
    (a1, a2), (b1, b2) = halves(square.high), halves(y)
    t = a1 * b1
    t_low = (a1 * b2 + product(a2, y)) + (product(square.high, y_low) + product(square.low, y))
    if not second:
        total, then = quick_two_sum(z.high, t)
        return quick_two_sum(total, then + (z.low + t_low))
    total, first = quick_two_sum(z.high, second * square.high)
    total, then = quick_two_sum(total, t)
    return quick_two_sum(total, (first + then) + ((z.low + second * square.low) + t_low))


@functools.cache
def _exponentials() -> tuple[list[np.float32], np.float32, list[np.ndarray], list[np.ndarray], list[Fraction]]:
    """Returns ln 2 in parts, 1 / ln 2, e^(j/64), e^(j/64) - 1, and 1/n! from 3! on."""
    with localcontext(DIGITS):
        two = Decimal(2).ln()
        powers = [(Decimal(j) / STEPS).exp() for j in range(-ROWS, ROWS + 1)]
        tables = [list(np.transpose([parts(v - less, 24, 24) for v in powers])) for less in (0, 1)]
        return (
            parts(two, 11, 11, 11, 24),
            round_to(1 / two),
            tables[0],
            tables[1],
            [Fraction(1, n) for n in (6, 24, 120, 720)],
        )


def _near(r: Pair) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns p and the row of j such that e^r = e^(j/64) (1 + p), with |p| < 1/127; for |r| < 0.36."""
    j = lax.round(r.high * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN)
    p = series(two_sum(r.high - j * np.float32(1 / STEPS), r.low), 0.5, _exponentials()[4])
    return p, j.astype(jnp.int32) + ROWS


def _reduce_by_log_two(x: Wide) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns r and k such that x = k ln 2 + r, with |r| < 0.35; for finite x."""
    (l1, l2, l3, l4), inverse, *_ = _exponentials()
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, 13)))
    k = lax.round(high * inverse, lax.RoundingMethod.TO_NEAREST_EVEN)
    c, d = two_sum(low, -(k * l3))
    r = pair.add(two_sum(high - k * l1, -(k * l2)), Pair(c, d - product(k, l4)))
    return r, k.astype(jnp.int32)


def _power(r: Pair, k: Int32[Array, " ..."]) -> Wide:
    """Returns 2^k e^r, for |r| < 0.36."""
    p, row = _near(r)
    t = Pair(*looked_up(row, _exponentials()[2]))
    q = pair.multiply(t, p)
    high, error = quick_two_sum(t.high, q.high)
    return wide.in_range(wide.normal(quick_two_sum(high, error + (t.low + q.low)), _beyond(k)))


def _beyond(k: Int32[Array, " ..."]) -> Int32[Array, " ..."]:
    """Returns exponents, where those beyond the range of exponentials are moved beyond that of numbers."""
    # Largest power of two of an exponential: exponentials beyond 2^8192 are inf, and those below 2^-8192 are 0.
    largest_power = 8192
    return jnp.where(jnp.abs(k) > largest_power, 4 * k, k)


def _or_limit(x: Wide, below: float, found: Wide) -> Wide:
    """Returns ``found`` for finite x; beyond, ``below`` for -inf, and inf and NaN for themselves."""
    limit = jnp.where(x.high < 0, np.float32(below), x.high)
    exponent = jnp.where(x.high < 0, np.int32(0 if below else NOTHING), np.int32(INFINITE))
    return wide.select(x.exponent == INFINITE, Wide(limit, jnp.zeros_like(limit), exponent), found)


def exp(x: Wide) -> Wide:
    """Returns e^x."""
    return _or_limit(x, 0.0, _power(*_reduce_by_log_two(x)))


def exp2(x: Wide) -> Wide:
    """Returns 2^x, exactly for whole numbers."""
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, 14)))
    k = lax.round(high, lax.RoundingMethod.TO_NEAREST_EVEN)
    with localcontext(DIGITS):
        log_two = Pair(*(jnp.full_like(high, part) for part in parts(Decimal(2).ln(), 24, 24)))
    return _or_limit(x, 0.0, _power(pair.multiply(two_sum(high - k, low), log_two), k.astype(jnp.int32)))


def expm1(x: Wide) -> Wide:
    """Returns e^x - 1."""
    r, k = _reduce_by_log_two(x)
    p, row = _near(r)
    e = Pair(*looked_up(row, _exponentials()[3]))
    q = pair.multiply(e, p)
    total, first = quick_two_sum(e.high, p.high)
    total, then = quick_two_sum(total, q.high)
    y = quick_two_sum(total, (first + then) + ((e.low + p.low) + q.low))
    # 2^k (1 + y) - 1 = 2^k ((1 - 2^-k) + y)
    k = jnp.maximum(k, -60)
    power = power_of_two(-jnp.minimum(k, 60))
    up, down = k > 23, k < -23
    one_less = Pair(
        jnp.where(up, np.float32(1), jnp.where(down, -power, 1 - power)),
        jnp.where(up, -power, jnp.where(down, np.float32(1), np.float32(0))),
    )
    found = wide.in_range(wide.normal(pair.add(one_less, y), _beyond(k)))
    return _or_limit(x, -1.0, wide.select(x.exponent < -50, x, found))


@functools.cache
def _logarithms() -> tuple[list[np.float32], list[np.ndarray], list[Fraction]]:
    """Returns ln 2 in parts, c_j near 64 / (64 + j) with its -log c_j, and the coefficients of log(1 + z) from z^3."""
    with localcontext(DIGITS):
        rows = []
        for j in range(-ROWS, ROWS + 7):
            c = round_to(Fraction(STEPS, STEPS + j), 12)
            rows.append([c, *parts(-Decimal(float(c)).ln(), 24, 24)])
        coefficients = [Fraction(-((-1) ** n), n) for n in range(3, 9)]
        return parts(Decimal(2).ln(), 10, 10, 24), [np.array(c) for c in zip(*rows, strict=True)], coefficients


def _logarithm(t: Pair, exponent: Int32[Array, " ..."]) -> Pair:
    """Returns log((1 + t) 2^exponent), for -0.293 < t < 0.4143."""
    (l1, l2, l3), table, coefficients = _logarithms()
    j = lax.round(t.high * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN)
    c, row, row_low = looked_up(j.astype(jnp.int32) + ROWS, table)
    t1, t2 = halves(t.high)
    z, error = two_sum((c - 1) + t1 * c, t2 * c)
    p = series(two_sum(z, error + product(t.low, c)), -0.5, coefficients)
    e = exponent.astype(jnp.float32)
    total, zeroth = quick_two_sum(e * l1, e * l2)
    total, first = quick_two_sum(total, row)
    total, then = quick_two_sum(total, p.high)
    return quick_two_sum(total, ((first + then) + (row_low + p.low)) + (zeroth + product(e, l3)))


def _split_power(x: Wide) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns t and e such that x = (1 + t) 2^e, with 1 + t between the roots of 1/2 and 2; for x > 0, finite."""
    large = x.high > np.float32(np.sqrt(2))
    high, low = pair.scale(x.pair, jnp.where(large, np.float32(0.5), np.float32(1)))
    # For a few pairs below 1 the nearest float32 is 1, so high - 1 may be 0.
    return quick_two_sum(high - 1, low), x.exponent + large.astype(jnp.int32)


def _log_limit(x: Wide, argument: Wide, found: Wide) -> Wide:
    """Returns ``found`` for positive finite arguments; -inf for 0, NaN below."""
    limit = jnp.where(argument.high == 0, -jnp.inf, jnp.where(argument.high < 0, jnp.nan, argument.high))
    special = (argument.high <= 0) | (x.exponent == INFINITE)
    return wide.select(special, Wide(limit, jnp.zeros_like(limit), jnp.full_like(x.exponent, INFINITE)), found)


def log(x: Wide) -> Wide:
    """Returns log x; -inf at 0, NaN below."""
    t, e = _split_power(x)
    return _log_limit(x, x, wide.normal(_logarithm(t, jnp.clip(e, -20000, 20000)), 0))


def log1p(x: Wide) -> Wide:
    """Returns log(1 + x); -inf at -1, NaN below."""
    sum_ = wide.add(x, wide.constant(1.0))
    t, e = _split_power(sum_)
    near = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, 0)))
    is_near = (x.exponent < 0) & (near.high > np.float32(-0.29)) & (near.high < np.float32(0.41))
    t = Pair(jnp.where(is_near, near.high, t.high), jnp.where(is_near, near.low, t.low))
    e = jnp.where(is_near, 0, jnp.clip(e, -20000, 20000))
    found = wide.select(x.exponent < -50, x, wide.normal(_logarithm(t, e), 0))
    return _log_limit(x, sum_, found)


def tanh(x: Wide) -> Wide:
    """Returns tanh x."""
    e = expm1(wide.times_power(wide.negative(wide.absolute(x)), jnp.int32(1)))
    found = wide.divide(e, wide.add(e, wide.constant(2.0)))
    return wide.select(x.high > 0, wide.negative(found), found)


def logistic(x: Wide) -> Wide:
    """Returns 1 / (1 + e^-x)."""
    e = exp(wide.negative(wide.absolute(x)))
    one = wide.constant(1.0)
    return wide.divide(wide.select(x.high < 0, e, one), wide.add(e, one))


def power(x: Wide, y: Wide) -> Wide:
    """Returns x^y = e^(y log x) for x >= 0, within (12 + 60 |y log x|) u^2 of itself; NaN below."""
    one = wide.constant(1.0)
    is_one = wide.equal(x, one) | wide.equal(y, wide.constant(0.0))
    return wide.select(is_one, one, exp(wide.multiply(y, log(x))))


# ----------------------------------------------------------------------------------------------------
# The check of a backend for the assumptions of pairs
#
# Everything in this package rests on little: sums and differences of float32 are rounded to nearest, ties to even;
# products that fit into 24 bits are exact and others off by at most two units of roundoff; rounding to whole numbers
# and operations on the bits are exact; nothing is rewritten as in exact arithmetic. Products may be fused with sums,
# and subnormal numbers be flushed to zero. Quotients and roots need be right to 2^-15 only: their residuals are checked
# wherever they are used.
#
# When pairs are first used on a backend, one small compiled program does all that with a fixed table of operands, and
# the result is compared with Python's whole numbers. A table proves nothing of the numbers between its entries; it does
# find sums that are rounded another way, products of fewer bits, and a compiler that simplifies.
#
# *Rewriting.* XLA makes (x + c) - c into x where c is a constant of the program, on all its backends. So no constant is
# an operand of a sum whose error is used; those here are numbers that depend on an argument.
# ----------------------------------------------------------------------------------------------------


class Operations(NamedTuple):
    """Operations of a backend on arrays, which a test may replace."""

    plus: Callable[[Any, Any], Any] = lax.add
    minus: Callable[[Any, Any], Any] = lax.sub
    times: Callable[[Any, Any], Any] = lax.mul


OPERANDS = tuple(
    (float(np.float32(a)), float(np.float32(b)))
    for a in (1.0, 1 / 3, 0.1, 1 + 2.0**-23, 1 - 2.0**-24, 2.0**20 / 7, 2.0**-20 / 11, 4097 / 4096)
    for b in (2.0**-24, 2.0**-24 * 1.5, 3 * 2.0**-24, 3.0, -1 / 3, 1 - 2.0**-24, 2.0**-15 / 7, 2.0**13 / 13, -1e3 / 3)
)
"""Pairs of operands: ties, carries, and numbers with all their bits, close to each other and far apart."""


class Row(NamedTuple):
    """A quantity that is computed of two numbers.

    Attributes:
        what: its name in words.
        computed: function of the operations and of arrays.
        exact: function of fractions, before it is rounded.
        error: allowed relative error, beside the exact value rounded to nearest.
    """

    what: str
    computed: Callable[[Operations, Array, Array], Array]
    exact: Callable[[Fraction, Fraction], Fraction]
    error: float = 0.0


def _nearest(value: Fraction, bits: int = 24) -> Fraction:
    return Fraction(float(round_to(value, bits)))


def _error_of_sum(do: Operations, a: Array, b: Array) -> Array:
    total = do.plus(a, b)
    part = do.minus(total, a)
    return do.plus(do.minus(a, do.minus(total, part)), do.minus(b, part))


def _head(a: Fraction) -> Fraction:
    """Returns the number of 12 bits nearest to ``a``; of two, the one that is larger in absolute value."""
    unit = Fraction(2) ** (int(np.frexp(float(a))[1]) - 12)
    return (1 if a > 0 else -1) * unit * ((abs(a) / unit + Fraction(1, 2)).__floor__())


TABLE = (
    Row("x + y", lambda do, a, b: do.plus(a, b), lambda a, b: a + b),
    Row("x - y", lambda do, a, b: do.minus(a, b), lambda a, b: a - b),
    Row("(x + y) - x", lambda do, a, b: do.minus(do.plus(a, b), a), lambda a, b: _nearest(a + b) - a),
    Row("the error of x + y", _error_of_sum, lambda a, b: a + b - _nearest(a + b)),
    Row("x to 12 bits", lambda _, a, b: halves(a)[0] + 0 * b, lambda a, b: _head(a)),
    Row("x y of 12 bits each", lambda do, a, b: do.times(halves(a)[0], halves(b)[0]), lambda a, b: _head(a) * _head(b)),
    Row(
        "the rest of x by y to 12 bits",
        lambda do, a, b: do.times(do.minus(a, halves(a)[0]), halves(b)[0]),
        lambda a, b: (a - _head(a)) * _head(b),
    ),
    Row("x y", lambda do, a, b: do.times(a, b), lambda a, b: a * b, 2 * U),
    Row("x / y", lambda _, a, b: a / b, lambda a, b: a / b, 2.0**-15),
    Row("the root of x^2", lambda do, a, b: jnp.sqrt(do.times(b, b)), lambda a, b: abs(b), 2.0**-15),
    Row(
        "x rounded to whole numbers",
        lambda _, a, b: lax.round(a * np.float32(4), lax.RoundingMethod.TO_NEAREST_EVEN) + 0 * b,
        lambda a, b: Fraction(round(4 * a)),
    ),
    Row(
        "inf - inf",
        lambda do, a, b: jnp.where(jnp.isnan(do.minus(jnp.abs(a) * jnp.inf, jnp.abs(b) * jnp.inf)), 1.0, 0.0),
        lambda a, b: Fraction(1),
    ),
)
"""Quantities that a backend has to compute right."""


@functools.cache
def expect() -> list[list[Fraction]]:
    """Returns the right values of each row of the table, rounded to nearest."""
    pairs = [(Fraction(a), Fraction(b)) for a, b in OPERANDS]
    return [[_nearest(row.exact(a, b)) for a, b in pairs] for row in TABLE]


def compute(do: Operations | None = None) -> np.ndarray:
    """Returns the values that the backend in use gives to the table (rows, operands)."""
    operations = do or Operations()
    a, b = (np.asarray(column, np.float32) for column in zip(*OPERANDS, strict=True))
    with jax.transfer_guard("allow"), jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        program = jax.jit(lambda a, b: jnp.stack([row.computed(operations, a, b) for row in TABLE]))
        with jax.core.eval_context():
            return np.asarray(program(a, b))


def failures(values: np.ndarray) -> list[str]:
    """Returns a line for each row whose values are not as assumed."""
    found = []
    # The first value of a row that errs by more than the table says is enough.
    for row, given, exact in zip(TABLE, values, expect(), strict=True):
        for value, truth, (x, y) in zip(given, exact, OPERANDS, strict=True):
            if not (np.isfinite(value) and abs(Fraction(float(value)) - truth) <= Fraction(row.error) * abs(truth)):
                found.append(f"{row.what} is {float(value)!r} at x = {x!r}, y = {y!r}, where it is {float(truth)!r}")
                break
    return found


_sound: set[str] = set()
"""Platforms that have passed."""


def check() -> None:
    """Computes the table on the backend in use, once a process, and raises where it fails.

    Raises:
        UnsoundBackendError: the backend breaks an assumption.
    """
    name = platform()
    if name in _sound:
        return
    broken = failures(compute())
    if broken:
        refuse(repr(name), "with float32 as pairs of them assume", broken)
    _sound.add(name)
