"""Functions of the kernel in forms of their own for pairs, by the names that they are traced by.

Operation by operation a Taylor series of thirteen terms in pairs takes thousands of instructions; but what a term needs
not contribute to the last bit needs no pair.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from math import factorial

import jax.numpy as jnp
import numpy as np

from jaxacct.float_pairs import normal, pair, tiles, trigonometric, wide
from jaxacct.float_pairs.functions import parts, rounded
from jaxacct.float_pairs.pair import LEAST, Pair, Single, halves, power_of_two, product, quick_two_sum
from jaxacct.float_pairs.wide import Wide

PAIRED = 7
"""Terms of the series of e^x - 1 - x that are pairs; the next is at most 2^-24 of the first."""


@functools.cache
def _remainders() -> tuple[list[list[np.float32]], list[np.float32]]:
    """Returns 2/(n + 2)!: in two parts each, and further ones; what is left out is below 2^-57."""
    every = [Fraction(2, factorial(n + 2)) for n in range(14)]
    return [parts(value, 24, 24) for value in every[:PAIRED]], [rounded(value) for value in every[PAIRED:]]


def _onto(constant: np.float32, t: Single) -> Pair:
    """Returns the sum with a larger constant, exactly: the maximum keeps XLA from taking (t + c) - c for t."""
    total = jnp.maximum(t + constant, LEAST)
    return Pair(total, t - (total - constant))


def exp_remainder(x: Wide, expm1_x: Wide) -> list[Wide]:
    """Returns e^x - 1 - x, given e^x - 1, within 32 u^2 of itself for |x| < 1/2, and there without the latter.

    x^2/2 times S = 1 + x/3 + ..., between 0.84 and 1.2. In units of u^2: the terms that are no pairs come to 2^-24.5,
    are off by 3 u and so count for 2. Of what is added to each coefficient, c_n = 2/(n + 2)!, the product is off by 9
    of itself and of its low parts' sum by 4, and the coefficient and the sum by 3 of c_n; relative to c_n the product
    is below 1/5, so the error of a partial sum over c_n is at most 3 + (13 + e)/5 with e that of the next: at most 7.
    The square errs by 8 and the last product by 10: 27, over 0.84 where the 7 are concerned.
    """
    coefficients, further = _remainders()
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, -2)))
    x1, x2 = halves(high)
    tail = jnp.full_like(high, further[-1])
    for c in further[-2::-1]:
        tail = product(high, tail) + c
    (last, last_low), *rest = coefficients[::-1]
    p, q = _onto(last, product(high, tail))
    q = q + last_low
    for c, d in rest:
        # c + d + x (p + q), as pair.multiply has it; what is larger comes first.
        p1, p2 = halves(p)
        whole, crossed, other = x1 * p1, x1 * p2, x2 * p1
        t = whole + (crossed + other)
        e = x2 * p2 - (((t - whole) - other) - crossed)
        e = e + (product(high, q) + product(low, p))
        p, error = _onto(c, t)
        q = error + (e + d)
    series = pair.multiply(pair.square(x.pair), quick_two_sum(p, q))
    near = wide.in_range(wide.normal(series, 2 * x.exponent - 1))
    return [wide.select(x.exponent < -1, near, wide.subtract(expm1_x, x))]


def lower_tail(z: Wide) -> list[Wide]:
    """Returns Phi(z) for z <= 0 as erfc(x) / 2, x = -z / sqrt(2), within 75 (1 + z^2) u^2 of itself.

    The product that makes x is off by 10.5 u^2, with its constant, and moves erfc by 1 + 2 x^2 times that at most, for
    erfc x >= 2 e^(-x^2) / (sqrt(pi) (x + sqrt(x^2 + 2))); erfc is off by 64 (1 + 2 x^2), and 2 x^2 = z^2.
    """
    x = wide.multiply(wide.negative(z), wide.constant(math.sqrt(0.5)))
    return [wide.by_power(normal.erfc(x), np.int32(-1))]


def turned(angle: Wide) -> list[Wide]:
    """Returns cos - 1 and sin, of sine and cosine of the half.

    These are within 40 u^2 each, and so both together within 90 u^2 of the angle.
    """
    sine, cosine = trigonometric.sine_and_cosine(wide.by_power(angle, np.int32(-1)))
    once = np.int32(1)
    less = wide.negative(wide.by_power(wide.square(sine), once))
    return [less, wide.multiply(wide.by_power(sine, once), cosine)]


def remaining_weight(least: Wide, slack: Wide) -> list[Wide]:
    """Returns 1 - least - slack, or less.

    With 1 - least rounded down by five units of roundoff at most it is not above the truth. Where slack is at least
    half of 1 - least it is below it by ten units of slack at most, and else right to fourteen of itself.
    """
    rest = wide.subtract(wide.filled(1.0, least.shape), least)
    return [wide.subtract(wide.multiply(rest, wide.constant(1 - 3 * pair.ROUNDING)), slack)]


def missing_above(value: Wide, high: Wide) -> list[Wide]:
    """Returns what ``high``, a float32 number, lacks of ``value``, raised to a multiple of 2^-52 of its power of two.

    The difference is right to a unit of roundoff of itself and is raised by four, of which the sum takes one. What
    follows is exact, below 2^-126 as if ``high`` were that.
    """
    rest = wide.subtract(value, high)
    rest = wide.add(rest, wide.by_power(wide.absolute(rest), np.int32(-42)))
    power = jnp.clip(high.exponent, -126, 127) - 52
    whole = wide.by_power(wide.ceiling(wide.by_power(rest, -power)), power)
    return [wide.select(jnp.isinf(high.high), wide.filled(0.0, value.shape), whole)]


WHOLE: dict[str, Callable[..., list[Wide]]] = {
    "exp_remainder": exp_remainder,
    "lower_tail": lower_tail,
    "missing_above": missing_above,
    "remaining_weight": remaining_weight,
    "sine_and_cosine": trigonometric.sine_and_cosine,
    "turned": turned,
    "turned_sums": tiles.turned_sums,
}
