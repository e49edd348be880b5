"""erf and erfc of pairs with exponents. Errors in units of u^2 = 2^-48, to first order.

Below 1/2, erf(x) = x P(x^2); above, erfc(x) = e^(-x^2) P(1 / (1 + x)). P is a Taylor polynomial of degree 6, of a table
with a row for each 1/64 of its argument, the first three coefficients pairs, the others float32.

*P.* Where x < 1/2 its argument makes 1.2 and its sums and products 5. Elsewhere the argument is off by 14, which counts
at most 1.3 times; sums and products of pairs make 11; what float32 makes of the third-order terms, and what is left
out, is at most 28 for x < 3 and 7 (1 + 2 x^2) always.

*erf* is within 20 below 1/2, and 75 above, where it is 1 - erfc; 96 are asked for. *erfc* is within 64 (1 + 2 x^2): the
square is off by 14 x^2, the exponential by 10 and the product by 14; 128 (1 + 2 x^2) are asked for. Beyond x = 43 it
is 0, which is below the smallest float64.
"""

from __future__ import annotations

import functools
import math
from decimal import Decimal, localcontext

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.functions import DIGITS, STEPS, exp, looked_up, parts, rounded
from jaxacct.float_pairs.pair import Pair, power_of_two, product, two_sum
from jaxacct.float_pairs.trigonometric import quarter_turn
from jaxacct.float_pairs.wide import Wide

TERMS = 7
"""Of the Taylor polynomials."""

PAIRS = 3
"""How many of them are pairs."""

NEAR_ROWS = 17
"""Rows for x^2 = j/64 up to 1/4; those after are for 1 / (1 + x) = j/64 with j from 2 on."""

FAR_ROWS = range(2, 44)


def _scaled_tail(x: Decimal) -> Decimal:
    """Returns e^(x^2) erfc x: by a series with terms of one sign, or far out by Laplace's continued fraction."""
    root = (2 * quarter_turn()).sqrt()
    if x > 6:
        ratio = x
        for n in range(120, 0, -1):
            ratio = x + Decimal(n) / 2 / ratio
        return 1 / (root * ratio)
    term = total = x
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
    for n in range(TERMS - 1):
        known = -2 * ((1 - w) * y[-1] - y[-2]) + drive * (w if n == 0 else 1 if n == 1 else 0)
        known -= 3 * w**2 * n * y[-1] + 3 * w * (n - 1) * y[-2] + (n - 2) * y[-3]
        y.append(known / (w**3 * (n + 1)))
    return y[2:]


def _near(s: Decimal) -> list[Decimal]:
    """Returns the Taylor coefficients of erf(x) / x as a function of s = x^2."""
    found = []
    drive = 2 / (2 * quarter_turn()).sqrt()
    for m in range(TERMS):
        # The m-th derivative over m! of the sum of (-s)^n / (n! (2 n + 1)).
        total, power = Decimal(0), Decimal(1)
        for n in range(m, m + 40):
            total += power * (-1) ** n / (2 * n + 1)
            power = power * s / (n + 1 - m)
        found.append(drive * total / math.factorial(m))
    return found


@functools.cache
def _tables() -> list[np.ndarray]:
    """Returns the coefficients, the first ones in two parts each."""
    with localcontext(DIGITS) as context:
        context.prec = 70
        rows = [_near(Decimal(j) / STEPS) for j in range(NEAR_ROWS)] + [_far(Decimal(j) / STEPS) for j in FAR_ROWS]
        split = [
            [part for c in row[:PAIRS] for part in parts(c, 24, 24)] + [rounded(c) for c in row[PAIRS:]] for row in rows
        ]
        return list(np.transpose(split))


def _tail(x: Wide) -> tuple[Bool[Array, " ..."], Wide]:
    """Returns whether |x| < 1/2, and erf |x| where it is, erfc |x| where not."""
    x = wide.smallest(wide.absolute(x), wide.constant(1024.0))
    near = x.exponent < -1
    square = wide.multiply(x, x)
    # Not 1 everywhere: a compiler rewrites (1 + x) - 1.
    one = jnp.where(near, np.float32(2), np.float32(1))
    zero = jnp.zeros_like(one)
    w = pair.divide(
        Pair(one, zero), pair.add(Pair(one, zero), pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -9, 10))))
    )
    s = pair.scale(square.pair, power_of_two(jnp.clip(square.exponent, -100, 0)))
    t = Pair(jnp.where(near, s.high, w.high), jnp.where(near, s.low, w.low))
    j = lax.round(t.high * STEPS, lax.RoundingMethod.TO_NEAREST_EVEN)
    row = j.astype(jnp.int32) + jnp.where(near, 0, NEAR_ROWS - FAR_ROWS[0])
    h = two_sum(t.high - j * np.float32(1 / STEPS), t.low)
    columns = looked_up(row, _tables())
    g = columns[-1]
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
