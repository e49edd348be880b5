"""exp, log and what is made of them, of pairs with exponents: a row of a table, then a short series.

An argument is brought near 0, where a table has a row for each 1/64; what is left, z, is below 1/80, and a series in z
needs a pair for its second term, a sum of exact products for its third, and plain float32 beyond. Constants are made
here, of 40 decimals. Errors below are relative, in units of u^2 = 2^-48, to first order; 16 of them are one
:data:`~jaxacct.float_pairs.pair.ROUNDING`.

*One value, wherever it is computed.* Products that are rounded are :func:`~jaxacct.float_pairs.pair.product`, and no
constant is an operand of a sum of which the error is asked for: compilers make (x + 1) - 1 into x.

========  =====================================================  ========
function  error                                                  asked for
========  =====================================================  ========
exp       10; 24 where |x| > 745                                 64
exp2      10; none at whole numbers                              64
expm1     68; 38 below 0                                         128
log       44                                                     64
log1p     53, for all arguments                                  80
tanh      69                                                     128
logistic  24; 38 where |x| > 745                                 128
power     12 + 60 |y log x|
========  =====================================================  ========

*exp.* With ln 2 in parts of 11, 11, 11 and 24 bits and |k| <= 2^13, products of k with the first three are exact, high
minus the first is exact (they are close), and r is off by what is rounded at k l4, below 2^-26 for k <= 2^13, and in
the last sum of pairs: 5 u^2 for |x| <= 745, 18 u^2 always. Nothing is rounded for k = 0. The row adds 1, the series
15 / 128, the product 14 / 127 and the last two sums 1 and 2.

*expm1.* For k = 0 and j != 0, |e^(j/64) - 1| <= 2.03 |y| and |p| <= 1.02 |y|: the row 2.1, the series 15.3, the product
0.3, the sums of low parts 2.1 + 3.1 + 3.1 + 5.1, the last sum 3; 34 in all. Else the sum with 1 - 2^-k, which is exact,
makes it at most (31 |y| + 5 (1 + y)) / |1 - 2^-k + y| + 3, largest at k = 1, y = -0.293: 64; 37 at k = -1.

*log.* c_j has 12 bits, so products with halves of t are exact; for j != 0, |t| >= 2^-7 and the first sum, of multiples
of 2^-30 below 2^-6, is exact too. z is off by u^2 (2 |t| c + |z|), at most 3.6 of the result; it is exact for j = 0.
The series makes 30.4 of the result where |j| = 1, less elsewhere; the row 2.1, the sums of low parts 3.1 + 4.1. Where
the exponent is not 0 the result is above 0.34: the series makes 2, and the parts of e ln 2, at most twice the result,
and sums of them less than 20.

*The others* by the conditions of their formulas: log1p near 0 is log's core with t exact, and elsewhere 1 + x adds
3 / 0.34; tanh = -e / (2 + e) with e = expm1(-2 |x|) makes at most 1.5 times e's error, 3 and 11; logistic 10 + 3 + 11.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.pair import Pair, Single, halves, power_of_two, product, quick_two_sum, two_sum
from jaxacct.float_pairs.wide import INFINITE, NOTHING, Wide

DIGITS = Context(prec=40)
"""Of constants, before they are rounded."""

STEPS = 64
"""Tables have a row for each 1/64."""

ROWS = 24
"""From -24/64 to 30/64."""

Number = Decimal | Fraction | int

LARGEST_POWER = 8192
"""Exponentials beyond 2^8192 are inf, and below 2^-8192 they are 0."""


def rounded(value: Number, bits: int = 24) -> np.float32:
    """Returns a number of the host in so many bits, to nearest."""
    exact = Fraction(value)
    if not exact:
        return np.float32(0)
    unit = Fraction(2) ** (int(np.frexp(float(exact))[1]) - bits)
    return np.float32(float(round(exact / unit) * unit))


def parts(value: Number, *bits: int) -> list[np.float32]:
    """Returns numbers of so many bits each, of which each is what the ones before leave."""
    rest, found = Fraction(value), []
    for count in bits:
        found.append(rounded(rest, count))
        rest -= Fraction(float(found[-1]))
    return found


def looked_up(row: Int32[Array, " ..."], columns: Sequence[np.ndarray]) -> list[Single]:
    """Returns what columns hold in a row, 0 where there is none: a sum of which all terms but one are 0.

    A sum over the first axis is no more than a few instructions to compile, and is done in vectors.
    """
    shape = (len(columns[0]), *(1,) * row.ndim)
    hit = row[None] == np.arange(len(columns[0]), dtype=np.int32).reshape(shape)
    return [jnp.sum(jnp.where(hit, column.reshape(shape), np.float32(0)), axis=0) for column in columns]


def series(z: Pair, second: float, further: Sequence[Number]) -> Pair:
    """Returns z + second z^2 + c3 z^3 + c4 z^4 + ..., for |z| < 1/80, second 1/2, -1/2 or 0, and |c_n| <= 1/n.

    Off by at most (12 + 240 |c4| (80 z)^3) u^2 |z|. y = c3 z + c4 z^2 + ... is a sum of an exact product and terms of
    size |z g|, |g| <= 2^-14 + 1.04 |c4 z|, of which roundings make less than u |z| (6.3 |g| + 0.0002); that counts z^2
    times. z^2 y is rounded in terms of 2^-11 of itself, 1.2 u^2 at most; sums of low parts make 2 + 1 + 1.5 + 3.5.
    """
    c3, *rest_of = further
    head = rounded(c3, 12)
    tail = [rounded(Fraction(c3) - Fraction(float(head))), *(rounded(c) for c in rest_of)]
    z1, z2 = halves(z.high)
    square = pair.square(z)
    # c3 z + c4 z^2 + ...
    g = jnp.full_like(z.high, tail[-1])
    for c in tail[-2::-1]:
        g = product(z.high, g) + c
    y, y_low = quick_two_sum(z1 * head, product(z2 + z.low, head) + product(z.high, g))
    # z^2 times that
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
            rounded(1 / two),
            tables[0],
            tables[1],
            [Fraction(1, n) for n in (6, 24, 120, 720)],
        )


@functools.cache
def _log_two() -> list[np.float32]:
    with localcontext(DIGITS):
        return parts(Decimal(2).ln(), 24, 24)


def _near(r: Pair) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns p and the row of j such that e^r = e^(j/64) (1 + p), with |p| < 1/127; for |r| < 0.36."""
    j = lax.round(r.high * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN)
    p = series(two_sum(r.high - j * np.float32(1 / STEPS), r.low), 0.5, _exponentials()[4])
    return p, j.astype(jnp.int32) + ROWS


def _reduced(x: Wide) -> tuple[Pair, Int32[Array, " ..."]]:
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
    """Returns exponents, those beyond the range of exponentials beyond that of numbers."""
    return jnp.where(jnp.abs(k) > LARGEST_POWER, 4 * k, k)


def _or_limit(x: Wide, below: float, found: Wide) -> Wide:
    """Returns what was found, for finite x; beyond, ``below`` for -inf, and inf and NaN for themselves."""
    limit = jnp.where(x.high < 0, np.float32(below), x.high)
    exponent = jnp.where(x.high < 0, np.int32(0 if below else NOTHING), np.int32(INFINITE))
    return wide.select(x.exponent == INFINITE, Wide(limit, jnp.zeros_like(limit), exponent), found)


def exp(x: Wide) -> Wide:
    """Returns e^x."""
    return _or_limit(x, 0.0, _power(*_reduced(x)))


def exp2(x: Wide) -> Wide:
    """Returns 2^x, exactly for whole numbers."""
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, 14)))
    k = lax.round(high, lax.RoundingMethod.TO_NEAREST_EVEN)
    two = Pair(*(jnp.full_like(high, part) for part in _log_two()))
    return _or_limit(x, 0.0, _power(pair.multiply(two_sum(high - k, low), two), k.astype(jnp.int32)))


def expm1(x: Wide) -> Wide:
    """Returns e^x - 1."""
    r, k = _reduced(x)
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
            c = rounded(Fraction(STEPS, STEPS + j), 12)
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


def _folded(x: Wide) -> tuple[Pair, Int32[Array, " ..."]]:
    """Returns t and e such that x = (1 + t) 2^e, with 1 + t between the roots of 1/2 and 2; for x > 0, finite."""
    large = x.high > np.float32(np.sqrt(2))
    high, low = pair.scale(x.pair, jnp.where(large, np.float32(0.5), np.float32(1)))
    # 1 is the nearest float32 to a few pairs below it.
    return quick_two_sum(high - 1, low), x.exponent + large.astype(jnp.int32)


def _log_limit(x: Wide, argument: Wide, found: Wide) -> Wide:
    """Returns what was found for positive finite arguments; -inf for 0, NaN below."""
    limit = jnp.where(argument.high == 0, -jnp.inf, jnp.where(argument.high < 0, jnp.nan, argument.high))
    special = (argument.high <= 0) | (x.exponent == INFINITE)
    return wide.select(special, Wide(limit, jnp.zeros_like(limit), jnp.full_like(x.exponent, INFINITE)), found)


def log(x: Wide) -> Wide:
    """Returns log x; -inf at 0, NaN below."""
    t, e = _folded(x)
    return _log_limit(x, x, wide.normal(_logarithm(t, jnp.clip(e, -20000, 20000)), 0))


def log1p(x: Wide) -> Wide:
    """Returns log(1 + x); -inf at -1, NaN below."""
    sum_ = wide.add(x, wide.constant(1.0))
    t, e = _folded(sum_)
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
