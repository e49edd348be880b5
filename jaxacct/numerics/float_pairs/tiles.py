"""Sums of w (e^(i f a) - 1) over many angles a, at f = 1, 2, ...: by rotations, and products of digits.

What :func:`turned_sums` is for: the characteristic function of a law, of which frequencies come in tiles of eight. It
is the same sum as by one product in pairs for each angle and frequency, for a tenth of that, of numbers that are no
larger than they need be: no exponents, over the largest weight of a lane.

*Errors*, in units of u^2 = 2^-48, relative to f |a|, as moduli of complex numbers. An angle 10, and 20 where it is a
product with a frequency; sine and cosine of its half 40 each, so -2 sin^2 and 2 sin cos, 90 more: 110. What two turns
come to, F G + F + G, has the errors of both, for 1 + F has modulus 1; the product makes 17.2 |F| |G| (each part two of
10, and a sum), the sums 6 of the larger angle. |F| is at most 2 and at most its angle: so three doublings, a = b = x,
2x, 4x, make at most 34, and 18 in sums: 152 up to e^(8ia) - 1, by which a tile is turned into the next. Seven such from
a turn that is made anew make 34 and 42 besides: 228. Weights make 10: 238, and both factors of a node err by no more.

*Digits.* Numbers below 2 are whole numbers of 2^-53, written in seven digits from -128 to 127. Devices multiply
matrices of such digits by the thousand, and sums in int32 are exact: 2^23 at most for 512 products of two digits, and
seven of them for one power of 256. What the last digit does not hold is at most 0.51 of its units in either factor,
2^-52.9 for a product; what is below the powers that are summed is at most 2^-57. For 512 products in each part that is
2^-43.4 of the largest possible w f |a| of a lane, which is at most their sum: 24. Sums of w F by themselves, 256 terms
cut off at 2^-54 of eight times the largest w |a|, at f from 2 on: 23. Two last sums: 6.

All in all 291 < 19 units of roundoff, relative to the sum of w f |a|. What is below 2^-126, or flushed to zero, is
nothing beside it where the largest w |a| is above 2^-64 of the largest w. Where it is not, or a number is infinite or
not known, or an angle of a tile above three million, results are NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from math import factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int8, Int32

from jaxacct.numerics.float_pairs import functions, pair, wide
from jaxacct.numerics.float_pairs.functions import parts, rounded, sine_and_cosine
from jaxacct.numerics.float_pairs.pair import LEAST, Pair, Single, bits, halves, power_of_two, product, quick_two_sum
from jaxacct.numerics.float_pairs.sums import ComplexPair, add, cut, joined, multiply
from jaxacct.numerics.float_pairs.wide import Wide

TILE = 8
"""Frequencies of a tile."""

GROUP = 8
"""Tiles after which a turn is made anew."""

DIGITS = 7
"""Of eight bits, of a number."""

POWERS = 8
"""Of 256, from the largest, that are summed."""

BIAS = 0x808080
"""128 for each of three digits: with these added, digits from -128 are bytes."""

LEAST_TILE = 2.0**-64
"""Of the largest weight, that the largest product with an angle must come to."""


def turned_sums(weights: Wide, angles: Wide, first: Array, tiles: Array, real: Wide, imaginary: Wide) -> list[Wide]:
    """Returns ``real`` and ``imaginary`` (lanes, frequencies) with sums added, from each lane's tile ``first`` on.

    ``weights`` (lanes, n), n up to 256, are not negative; ``angles`` (lanes, n) are those at frequency 1. As many
    ``tiles`` (lanes,) are filled as the lane has that wants most.
    """
    top = jnp.max(weights.exponent, axis=1)
    w, once = wide.aligned(weights, top[:, None]), _turn(angles)
    # No product exceeds this times its frequency.
    most = jnp.max(w.high * jnp.abs(_plain(angles).high), axis=1) * np.float32(1 + 2.0**-10)
    known = jnp.all(jnp.isfinite(w.high + once.real.high), axis=1) & ((most == 0) | (most >= np.float32(LEAST_TILE)))
    # Of 1 to 8 times the angle, and of 0 to 7 times: (lanes, 8, n).
    turns = jax.tree.map(lambda part: part[:, None], once)
    for _ in range(3):
        both = _both(turns, jax.tree.map(lambda part: part[:, -1:], turns))
        turns = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), turns, both)
    step = jax.tree.map(lambda part: part[:, -1], turns)
    turns = jax.tree.map(lambda part: jnp.concatenate([jnp.zeros_like(part[:, :1]), part[:, :-1]], axis=1), turns)
    own, weighed_step = _sums(_weighed(w, turns), TILE * most, top), _weighed(w, step)
    # Cosines, of which these are 1 less, and sines.
    ones = np.where(np.arange(2 * TILE) < TILE, np.int32(1 << 21), 0).reshape(1, -1, 1)
    table = _digits(Pair(*(jnp.concatenate(parts, axis=1) for parts in zip(*turns, strict=True))), ones)
    table, own, weighed_step = lax.optimization_barrier((table, own, weighed_step))

    def tile(i: Array, state: tuple[Wide, ComplexPair, Array]) -> tuple[Wide, ComplexPair, Array]:
        sums, turn, is_known = state
        exponent = _exponent(most * _frequency(first + i))
        columns = _digits(Pair(*(_over(jnp.stack(parts, axis=1), exponent) for parts in zip(*turn, strict=True))))
        # (lanes, digit, cosine or sine, digit, real or imaginary)
        products = lax.dot_general(table, columns, (((3,), (3,)), ((0,), (0,))), preferred_element_type=jnp.int32)
        carried = _carried(_turned(_by_powers(products, jnp.minimum(last, 1))))
        found = wide.add(wide.normal(carried, (exponent + top - 10)[None, None]), own)
        found = found._replace(high=jnp.where(is_known[None, None], found.high, jnp.nan))
        at = jnp.int32(0), TILE * i, jnp.int32(0)
        found = wide.add(Wide(*(lax.dynamic_slice(part, at, found.shape) for part in sums)), found)
        sums = Wide(*(lax.dynamic_update_slice(part, new, at) for part, new in zip(sums, found, strict=True)))
        return sums, add(add(multiply(turn, step), turn), weighed_step), is_known

    def group(i: Array, sums: Wide) -> Wide:
        fresh = _turn(wide.multiply(wide.single(_frequency(first + GROUP * i)[:, None]), angles))
        is_known = known & jnp.all(jnp.isfinite(fresh.real.high), axis=1)
        end = jnp.minimum(GROUP * (i + 1), last)
        return lax.fori_loop(GROUP * i, end, tile, (sums, _weighed(w, fresh), is_known))[0]

    last = jnp.max(tiles).astype(jnp.int32)
    sums = Wide(*(jnp.stack([part.T for part in parts]) for parts in zip(real, imaginary, strict=True)))
    sums = lax.fori_loop(jnp.int32(0), lax.div(last + (GROUP - 1), jnp.int32(GROUP)), group, sums)
    return [Wide(*(part[i].T for part in sums)) for i in range(2)]


def _frequency(tile: Array) -> Single:
    """Returns the first frequency of a tile."""
    return (TILE * tile + 1).astype(jnp.float32)


def _plain(x: Wide) -> Pair:
    """Returns numbers below 2^126, as if 2^-126 of themselves where they are below that."""
    return pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -126, 126)))


def _turn(angle: Wide) -> ComplexPair:
    """Returns e^(ia) - 1."""
    sine, cosine = map(_plain, sine_and_cosine(wide.by_power(angle, np.int32(-1))))
    squared, product = pair.square(sine), pair.multiply(sine, cosine)
    return ComplexPair(Pair(-2 * squared.high, -2 * squared.low), Pair(2 * product.high, 2 * product.low))


def _both(x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """Returns e^(i(a+b)) - 1 of e^(ia) - 1 and e^(ib) - 1."""
    return add(add(multiply(x, y), x), jax.tree.map(lambda a, b: jnp.broadcast_to(a, b.shape), y, x))


def _weighed(w: Pair, z: ComplexPair) -> ComplexPair:
    """Returns w z, (lanes, n) or (lanes, rows, n)."""
    w = w if z.real.high.ndim == 2 else jax.tree.map(lambda part: part[:, None], w)
    return ComplexPair(pair.multiply(w, z.real), pair.multiply(w, z.imaginary))


def _exponent(value: Single) -> Int32[Array, " ..."]:
    """Returns e with 2^e <= value < 2^(e + 1), from -120 up."""
    return jnp.maximum(((bits(value) >> 23) & 0xFF) - 127, -120)


def _over(values: Single, exponent: Int32[Array, " lanes"]) -> Single:
    return values * power_of_two(-exponent).reshape(-1, *[1] * (values.ndim - 1))


def _pieces(x: Pair) -> tuple[Array, Array, Array]:
    """Returns numbers below 2 in whole numbers of 2^-21, 2^-37 and 2^-53, of either sign."""
    first, rest = cut(x.high, 2.0**21)
    second, rest = cut(rest, 2.0**16)
    more, low = cut(x.low, 2.0**37)
    last = lax.round((rest + low) * np.float32(2.0**16), lax.RoundingMethod.TO_NEAREST_EVEN)
    return first, second + more, last.astype(jnp.int32)


def _digits(x: Pair, more: np.ndarray | int = 0) -> Int8[Array, "lanes digits rows n"]:
    """Returns digits of eight bits, the largest first, of numbers (lanes, rows, n), and of so much more of 2^-21."""
    first, second, last = _pieces(x)
    last = last + (BIAS & 0xFFFF)
    second = second + (BIAS & 0xFFFF) + (last >> 16)
    first, second, last = lax.optimization_barrier((first + BIAS + more + (second >> 16), second, last))
    # Digits are taken from pieces by one operation: a device would do it anew for each.
    at = np.arange(DIGITS).reshape(1, -1, 1, 1)
    shift = jnp.asarray(np.array([16, 8, 0, 8, 0, 8, 0], np.int32).reshape(at.shape))
    piece = jnp.where(at < 3, first[:, None], jnp.where(at < 5, second[:, None], last[:, None]))
    return (((piece >> shift) & 0xFF) - 128).astype(jnp.int8)


def _by_powers(products: Array, once: Array) -> Int32[Array, "powers 2 16 lanes"]:
    """Returns the sums of products (lanes, digit, row, digit, part) for each power of 256.

    With lanes last, as vector units have them. A compiler would rather leave numbers as a product of matrices laid them
    out, with most of a vector unit idle; what changes in a loop, be it done ``once``, is laid out as it says.
    """

    def added(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, _ = state
        sums: Any = [sum(rows[i, n - i] for i in range(DIGITS) if 0 <= n - i < DIGITS) for n in range(POWERS)]
        return rows + 1, jnp.stack(sums)

    rows = jnp.transpose(products, (1, 3, 4, 2, 0))
    nothing = jnp.zeros((POWERS, *rows.shape[2:]), jnp.int32)
    return lax.fori_loop(jnp.int32(0), once, added, (rows, nothing))[1]


def _turned(sums: Array) -> Int32[Array, "powers 2 8 lanes"]:
    """Returns sums (powers, part, row, lanes) as those of complex products."""
    cosines, sines = sums[:, :, :TILE], sums[:, :, TILE:]
    return jnp.stack([cosines[:, 0] - sines[:, 1], cosines[:, 1] + sines[:, 0]], axis=1)


def _carried(sums: Array) -> Pair:
    """Returns the sum of whole numbers (powers, ...) over powers of 256, of those from 256^0 on."""
    *above, carry = sums
    digits: list[Array] = []
    for number in above[::-1]:
        digits.insert(0, carry & 0xFF)
        carry = number + (carry >> 8)
    # The first is left, below 2^28 and of either sign; of the others each three are a float32 number.
    parts = [(carry >> 12).astype(jnp.float32) * 2.0**12, (carry & 0xFFF).astype(jnp.float32)]
    for i in range(0, len(digits), 3):
        whole = sum(digit << 8 * (2 - j) for j, digit in enumerate(digits[i : i + 3]))
        parts.append(jnp.asarray(whole).astype(jnp.float32) * 2.0 ** (-8 * (i + 3)))
    return joined(parts)


def _sums(z: ComplexPair, most: Single, top: Array) -> Wide:
    """Returns the sums of both parts of (lanes, rows, n) numbers up to ``most`` 2^top, as (2, rows, lanes)."""
    exponent = _exponent(most)
    both = Pair(*(_over(jnp.concatenate(parts, axis=1), exponent) for parts in zip(*z, strict=True)))
    sums = (jnp.sum(piece, axis=-1, dtype=jnp.int32).T for piece in _pieces(both))
    first, second, last = (part.reshape(2, TILE, -1) for part in sums)
    second = second + (last >> 16)
    first = first + (second >> 16)
    whole = [first >> 12, first & 0xFFF, second & 0xFFFF, last & 0xFFFF]
    found = joined([part.astype(jnp.float32) * 2.0**-s for part, s in zip(whole, (9, 21, 37, 53), strict=True)])
    return wide.normal(found, (exponent + top)[None, None])


# ----------------------------------------------------------------------------------------------------
# Functions of the kernel in forms of their own for pairs, by the names that they are traced by.
#
# Operation by operation a Taylor series of thirteen terms in pairs takes thousands of instructions; but what a term
# needs not contribute to the last bit needs no pair.
# ----------------------------------------------------------------------------------------------------

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
    return [wide.by_power(functions.erfc(x), np.int32(-1))]


def turned(angle: Wide) -> list[Wide]:
    """Returns cos - 1 and sin, of sine and cosine of the half.

    These are within 40 u^2 each, and so both together within 90 u^2 of the angle.
    """
    sine, cosine = functions.sine_and_cosine(wide.by_power(angle, np.int32(-1)))
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
    "sine_and_cosine": functions.sine_and_cosine,
    "turned": turned,
    "turned_sums": turned_sums,
}
