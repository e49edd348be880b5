"""Sums of w (e^(i f a) - 1) over many angles a, at f = 1, 2, ...: by rotations, and products of digits.

:func:`turned_sums` is for the characteristic function of a law, at frequencies that come in tiles of eight. It gives
the same sum as one product in pairs for each angle and frequency, for a tenth of the work, with numbers that are no
larger than they need be: without exponents, over the largest weight of a lane. At the end are functions of the
mathematics in forms of their own for pairs (:data:`WHOLE`).

*Errors*, in units of u^2 = 2^-48, relative to f |a|, as moduli of complex numbers. An angle 10, and 20 where it is a
product with a frequency; sine and cosine of its half 40 each, so -2 sin^2 and 2 sin cos, 90 more: 110. The product of
two turns, F G + F + G, has the errors of both, for 1 + F has modulus 1; the product makes 17.2 |F| |G| (each part two
of 10, and a sum), the sums 6 of the larger angle. |F| is at most 2 and at most its angle: so three doublings, a = b =
x, 2x, 4x, make at most 34, and 18 in sums: 152 up to e^(8ia) - 1, by which a tile is turned into the next. Seven such
from a turn that is made anew make 34 and 42 besides: 228. Weights make 10: 238, and both factors of a node err by no
more.

*Digits.* Numbers below 2 are whole numbers of 2^-53, written in seven digits from -128 to 127. Devices multiply
matrices of such digits by the thousand, and sums in int32 are exact: 2^23 at most for 512 products of two digits, and
seven of them for one power of 256. The last digit leaves at most 0.51 of its units in either factor, 2^-52.9 for a
product; the powers below those that are summed leave at most 2^-57. For 512 products in each part that is 2^-43.4 of
the largest possible w f |a| of a lane, which is at most their sum: 24. Sums of w F by themselves, 256 terms cut off at
2^-54 of eight times the largest w |a|, at f from 2 on: 23. Two last sums: 6.

All in all 291 < 19 units of roundoff, relative to the sum of w f |a|. Numbers below 2^-126, or flushed to zero, are
negligible beside it where the largest w |a| is above 2^-64 of the largest w. Where it is not, or a number is infinite
or NaN, or an angle of a tile is above three million, results are NaN.
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
from jaxacct.numerics.float_pairs.functions import parts, round_to, sine_and_cosine
from jaxacct.numerics.float_pairs.pair import (
    LEAST,
    Complex,
    Pair,
    Single,
    bits,
    halves,
    power_of_two,
    product,
    quick_two_sum,
)
from jaxacct.numerics.float_pairs.sums import add, cut, join, multiply
from jaxacct.numerics.float_pairs.wide import Wide

TILE = 8
"""Frequencies of a tile. The error bounds rest on it."""


DIGITS = 7
"""Digits of a number, of eight bits each. The error bounds rest on it."""


def turned_sums(weights: Wide, angles: Wide, first: Array, tiles: Array, real: Wide, imaginary: Wide) -> list[Wide]:
    """Returns ``real`` and ``imaginary`` (lanes, frequencies) with sums added, from each lane's tile ``first`` on.

    ``weights`` (lanes, n), n up to 256, are not negative; ``angles`` (lanes, n) are those at frequency 1. All lanes
    have as many tiles filled as the largest of ``tiles`` (lanes,).
    """
    # Tiles after which a turn is made anew. The error bounds rest on it.
    at_once = 8
    # Share of the largest weight that the largest product with an angle has to reach; below it results are NaN.
    least_tile = 2.0**-64
    top = jnp.max(weights.exponent, axis=1)
    w, once = wide.align(weights, top[:, None]), _turn(angles)
    # No product exceeds this times its frequency.
    most = jnp.max(w.high * jnp.abs(_plain(angles).high), axis=1) * np.float32(1 + 2.0**-10)
    known = jnp.all(jnp.isfinite(w.high + once.real.high), axis=1) & ((most == 0) | (most >= np.float32(least_tile)))
    # Turns by 1 to 8 times the angle, by three doublings, and then those by 0 to 7 times: (lanes, 8, n).
    turns = jax.tree.map(lambda part: part[:, None], once)
    for _ in range(3):
        both = _both(turns, jax.tree.map(lambda part: part[:, -1:], turns))
        turns = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), turns, both)
    step = jax.tree.map(lambda part: part[:, -1], turns)
    turns = jax.tree.map(lambda part: jnp.concatenate([jnp.zeros_like(part[:, :1]), part[:, :-1]], axis=1), turns)
    own, weighed_step = _sums(_weigh(w, turns), TILE * most, top), _weigh(w, step)
    # The table holds cosines and sines; turns are cosines less 1, so 1 is added to those.
    ones = np.where(np.arange(2 * TILE) < TILE, np.int32(1 << 21), 0).reshape(1, -1, 1)
    table = _digits(Pair(*(jnp.concatenate(parts, axis=1) for parts in zip(*turns, strict=True))), ones)
    table, own, weighed_step = lax.optimization_barrier((table, own, weighed_step))

    # One tile: the products of the table with the weighed turn of its first frequency, in exact digits. The state is
    # the sums, that turn, and where it is a number; the turn then goes on by eight frequencies.
    def tile(i: Array, state: tuple[Wide, Complex[Pair], Array]) -> tuple[Wide, Complex[Pair], Array]:
        sums, turn, is_known = state
        exponent = _exponent(most * _frequency(first + i))
        columns = _digits(Pair(*(_over(jnp.stack(parts, axis=1), exponent) for parts in zip(*turn, strict=True))))
        # (lanes, digit, cosine or sine, digit, real or imaginary)
        products = lax.dot_general(table, columns, (((3,), (3,)), ((0,), (0,))), preferred_element_type=jnp.int32)
        carried = _carry(_to_complex(_by_powers(products, jnp.minimum(last, 1))))
        found = wide.add(wide.normal(carried, (exponent + top - 10)[None, None]), own)
        found = found._replace(high=jnp.where(is_known[None, None], found.high, jnp.nan))
        at = jnp.int32(0), TILE * i, jnp.int32(0)
        found = wide.add(Wide(*(lax.dynamic_slice(part, at, found.shape) for part in sums)), found)
        sums = Wide(*(lax.dynamic_update_slice(part, new, at) for part, new in zip(sums, found, strict=True)))
        return sums, add(add(multiply(turn, step), turn), weighed_step), is_known

    # A group of tiles begins with a turn that is made anew, so that errors of rotations do not add up without end.
    def group(i: Array, sums: Wide) -> Wide:
        fresh = _turn(wide.multiply(wide.single(_frequency(first + at_once * i)[:, None]), angles))
        is_known = known & jnp.all(jnp.isfinite(fresh.real.high), axis=1)
        end = jnp.minimum(at_once * (i + 1), last)
        return lax.fori_loop(at_once * i, end, tile, (sums, _weigh(w, fresh), is_known))[0]

    last = jnp.max(tiles).astype(jnp.int32)
    sums = Wide(*(jnp.stack([part.T for part in parts]) for parts in zip(real, imaginary, strict=True)))
    sums = lax.fori_loop(jnp.int32(0), lax.div(last + (at_once - 1), jnp.int32(at_once)), group, sums)
    return [Wide(*(part[i].T for part in sums)) for i in range(2)]


def _frequency(tile: Array) -> Single:
    """Returns the first frequency of a tile."""
    return (TILE * tile + 1).astype(jnp.float32)


def _plain(x: Wide) -> Pair:
    """Returns numbers below 2^126; those below 2^-126 as if their exponent were -126."""
    return pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -126, 126)))


def _turn(angle: Wide) -> Complex[Pair]:
    """Returns e^(ia) - 1."""
    sine, cosine = map(_plain, sine_and_cosine(wide.by_power(angle, np.int32(-1))))
    # By the half angle: e^(ia) - 1 = -2 sin^2(a/2) + 2 i sin(a/2) cos(a/2), in which nothing cancels for small angles.
    squared, product = pair.square(sine), pair.multiply(sine, cosine)
    return Complex(Pair(-2 * squared.high, -2 * squared.low), Pair(2 * product.high, 2 * product.low))


def _both(x: Complex[Pair], y: Complex[Pair]) -> Complex[Pair]:
    """Returns e^(i(a+b)) - 1, from e^(ia) - 1 and e^(ib) - 1."""
    return add(add(multiply(x, y), x), jax.tree.map(lambda a, b: jnp.broadcast_to(a, b.shape), y, x))


def _weigh(w: Pair, z: Complex[Pair]) -> Complex[Pair]:
    """Returns w z, for z (lanes, n) or (lanes, rows, n)."""
    w = w if z.real.high.ndim == 2 else jax.tree.map(lambda part: part[:, None], w)
    return Complex(pair.multiply(w, z.real), pair.multiply(w, z.imaginary))


def _exponent(value: Single) -> Int32[Array, " ..."]:
    """Returns e with 2^e <= value < 2^(e + 1), from -120 up."""
    return jnp.maximum(((bits(value) >> 23) & 0xFF) - 127, -120)


def _over(values: Single, exponent: Int32[Array, " lanes"]) -> Single:
    return values * power_of_two(-exponent).reshape(-1, *[1] * (values.ndim - 1))


def _pieces(x: Pair) -> tuple[Array, Array, Array]:
    """Returns numbers below 2 as whole numbers of 2^-21, 2^-37 and 2^-53, of either sign."""
    # Each piece is cut off exactly; only the last one is rounded.
    first, rest = cut(x.high, 2.0**21)
    second, rest = cut(rest, 2.0**16)
    more, low = cut(x.low, 2.0**37)
    last = lax.round((rest + low) * np.float32(2.0**16), lax.RoundingMethod.TO_NEAREST_EVEN)
    return first, second + more, last.astype(jnp.int32)


def _digits(x: Pair, more: np.ndarray | int = 0) -> Int8[Array, "lanes digits rows n"]:
    """Returns digits of eight bits, the largest first, of numbers (lanes, rows, n) plus ``more`` times 2^-21."""
    # The number with 128 in each of three digits: added to a number, it makes digits from -128 on bytes from 0 on.
    bias = 0x808080
    # With `bias` added digits are plain bytes, and a carry goes to the piece above; then 128 is taken off each.
    first, second, last = _pieces(x)
    last = last + (bias & 0xFFFF)
    second = second + (bias & 0xFFFF) + (last >> 16)
    first, second, last = lax.optimization_barrier((first + bias + more + (second >> 16), second, last))
    # All digits are taken from the pieces by one operation: a device would compute the pieces anew for each digit.
    at = np.arange(DIGITS).reshape(1, -1, 1, 1)
    shift = jnp.asarray(np.array([16, 8, 0, 8, 0, 8, 0], np.int32).reshape(at.shape))
    piece = jnp.where(at < 3, first[:, None], jnp.where(at < 5, second[:, None], last[:, None]))
    return (((piece >> shift) & 0xFF) - 128).astype(jnp.int8)


def _by_powers(products: Array, once: Array) -> Int32[Array, "powers 2 16 lanes"]:
    """Returns the sums of products (lanes, digit, row, digit, part) for each power of 256.

    Lanes come last, as vector units have them. A compiler would rather leave numbers as a product of matrices laid them
    out, with most of a vector unit idle; the state of a loop, even of one that runs ``once``, is laid out as it says.
    """
    # Powers of 256, from the largest down, that are summed. The error bounds rest on it.
    powers = 8

    def add_row(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, _ = state
        sums: Any = [sum(rows[i, n - i] for i in range(DIGITS) if 0 <= n - i < DIGITS) for n in range(powers)]
        return rows + 1, jnp.stack(sums)

    rows = jnp.transpose(products, (1, 3, 4, 2, 0))
    nothing = jnp.zeros((powers, *rows.shape[2:]), jnp.int32)
    return lax.fori_loop(jnp.int32(0), once, add_row, (rows, nothing))[1]


def _to_complex(sums: Array) -> Int32[Array, "powers 2 8 lanes"]:
    """Returns sums (powers, part, row, lanes) as the real and imaginary parts of complex products."""
    cosines, sines = sums[:, :, :TILE], sums[:, :, TILE:]
    return jnp.stack([cosines[:, 0] - sines[:, 1], cosines[:, 1] + sines[:, 0]], axis=1)


def _carry(sums: Array) -> Pair:
    """Returns the sum of whole numbers (powers, ...) over powers of 256, from 256^0 down."""
    *above, carry = sums
    digits: list[Array] = []
    # From the lowest power up: a byte stays, the rest is carried to the next.
    for number in above[::-1]:
        digits.insert(0, carry & 0xFF)
        carry = number + (carry >> 8)
    # The carry of the first is left, below 2^28 and of either sign; each three of the others are a float32 number.
    parts = [(carry >> 12).astype(jnp.float32) * 2.0**12, (carry & 0xFFF).astype(jnp.float32)]
    for i in range(0, len(digits), 3):
        whole = sum(digit << 8 * (2 - j) for j, digit in enumerate(digits[i : i + 3]))
        parts.append(jnp.asarray(whole).astype(jnp.float32) * 2.0 ** (-8 * (i + 3)))
    return join(parts)


def _sums(z: Complex[Pair], most: Single, top: Array) -> Wide:
    """Returns the sums of both parts of (lanes, rows, n) numbers up to ``most`` 2^top, as (2, rows, lanes)."""
    # int32 holds sums of 256 pieces exactly: only the rounding of the last pieces errs, whatever the order.
    exponent = _exponent(most)
    both = Pair(*(_over(jnp.concatenate(parts, axis=1), exponent) for parts in zip(*z, strict=True)))
    sums = (jnp.sum(piece, axis=-1, dtype=jnp.int32).T for piece in _pieces(both))
    first, second, last = (part.reshape(2, TILE, -1) for part in sums)
    second = second + (last >> 16)
    first = first + (second >> 16)
    whole = [first >> 12, first & 0xFFF, second & 0xFFFF, last & 0xFFFF]
    found = join([part.astype(jnp.float32) * 2.0**-s for part, s in zip(whole, (9, 21, 37, 53), strict=True)])
    return wide.normal(found, (exponent + top)[None, None])


# ----------------------------------------------------------------------------------------------------
# Functions of the mathematics in forms of their own for pairs, by the names that they are traced by
#
# Operation by operation a Taylor series of thirteen terms in pairs takes thousands of instructions; but a term that
# does not reach the last bit needs no pair.
# ----------------------------------------------------------------------------------------------------


@functools.cache
def _remainders() -> tuple[list[list[np.float32]], list[np.float32]]:
    """Returns 2/(n + 2)!: the first in two parts each, and further ones; the terms left out are below 2^-57."""
    # Terms of the series of e^x - 1 - x that are pairs; the next is at most 2^-24 of the first. The error bound of
    # :func:`exp_remainder` rests on it.
    paired = 7
    every = [Fraction(2, factorial(n + 2)) for n in range(14)]
    return [parts(value, 24, 24) for value in every[:paired]], [round_to(value) for value in every[paired:]]


def _onto(constant: np.float32, t: Single) -> Pair:
    """Returns the sum with a larger constant, exactly: the maximum keeps XLA from taking (t + c) - c for t."""
    total = jnp.maximum(t + constant, LEAST)
    return Pair(total, t - (total - constant))


def exp_remainder(x: Wide, expm1_x: Wide) -> list[Wide]:
    """Returns e^x - 1 - x, given e^x - 1; within 32 u^2 of itself for |x| < 1/2 - 2^-26, where it ignores the latter.

    Nearer to 1/2 the high part may be 1/2, for which the difference is taken, as beyond: it costs less than four bits.

    It is x^2/2 times S = 1 + x/3 + ..., between 0.84 and 1.2. In units of u^2: the terms that are no pairs come to
    2^-24.5, are off by 3 u and so count for 2. At each coefficient, c_n = 2/(n + 2)!, the added product is off by 9 of
    itself and its low parts' sum by 4, and the coefficient and the sum by 3 of c_n; relative to c_n the product is
    below 1/5, so the error of a partial sum over c_n is at most 3 + (13 + e)/5 with e that of the next: at most 7. The
    square errs by 8 and the last product by 10: 27, over 0.84 where the 7 are concerned.
    """
    coefficients, further = _remainders()
    high, low = pair.scale(x.pair, power_of_two(jnp.clip(x.exponent, -100, -2)))
    x1, x2 = halves(high)
    tail = jnp.full_like(high, further[-1])
    # Horner's rule: first in float32, then in pairs from the smallest coefficient that is one.
    for c in further[-2::-1]:
        tail = product(high, tail) + c
    (last, last_low), *rest = coefficients[::-1]
    p, q = _onto(last, product(high, tail))
    q = q + last_low
    # Horner's rule, from the second highest coefficient down, in two floats.
    for c, d in rest:
        # c + d + x (p + q), formed as in pair.multiply; the larger terms come first.
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


def cosm1_and_sin(angle: Wide) -> list[Wide]:
    """Returns cos - 1 and sin of an angle, from sine and cosine of its half.

    These are within 40 u^2 each, and so both together within 90 u^2 of the angle.
    """
    sine, cosine = functions.sine_and_cosine(wide.by_power(angle, np.int32(-1)))
    once = np.int32(1)
    less = wide.negative(wide.by_power(wide.square(sine), once))
    return [less, wide.multiply(wide.by_power(sine, once), cosine)]


def remaining_weight(least: Wide, slack: Wide) -> list[Wide]:
    """Returns 1 - least - slack, or less.

    1 - least is rounded down by five units of roundoff at most, so the result is not above the truth. Where slack is at
    least half of 1 - least it is below it by ten units of slack at most, and else right to fourteen of itself.
    """
    rest = wide.subtract(wide.fill(1.0, least.shape), least)
    return [wide.subtract(wide.multiply(rest, wide.constant(1 - 3 * pair.ROUNDING)), slack)]


def missing_above(value: Wide, high: Wide) -> list[Wide]:
    """Returns what ``high``, a float32 number, lacks of ``value``, raised to a multiple of 2^-52 of its power of two.

    The difference is right to a unit of roundoff of itself and is raised by four, of which the sum takes one. The rest
    is exact; where ``high`` is below 2^-126 it counts as that.
    """
    rest = wide.subtract(value, high)
    rest = wide.add(rest, wide.by_power(wide.absolute(rest), np.int32(-42)))
    power = jnp.clip(high.exponent, -126, 127) - 52
    whole = wide.by_power(wide.ceiling(wide.by_power(rest, -power)), power)
    return [wide.select(jnp.isinf(high.high), wide.fill(0.0, value.shape), whole)]


WHOLE: dict[str, Callable[..., list[Wide]]] = {
    "exp_remainder": exp_remainder,
    "lower_tail": lower_tail,
    "missing_above": missing_above,
    "remaining_weight": remaining_weight,
    "sine_and_cosine": functions.sine_and_cosine,
    "cosm1_and_sin": cosm1_and_sin,
    "turned_sums": turned_sums,
}
"""Functions that are jitted by these names, in their forms for pairs."""
