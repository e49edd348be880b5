"""Elementary functions of float32, made of ``+ - *``, comparisons and bits alone.

A device without float64 has functions of its own that no bound can rest on: a TPU v5e's exp is 116 units in the last
place off, its expm1 1,772, its log 4,030 and its 1/x 198. The functions here use none of them, so that their bounds
hold on every device whose ``+ - *`` of float32 round to nearest (:func:`check` asks a device for that).

*Unit.* Errors are in units of roundoff, u = 2^-24: a value v is k units off if |v - truth| <= k u |truth|, or k u
times the size that a docstring names. Each bound holds for every float32 argument, and adds up roundings: of one
operation at most one unit, of a polynomial's rounded coefficients what ``python -m bench float32_coefficients`` says.
tests/numerics/test_float32_roundings.py adds roundings up again, by a program, for any way to round and to contract.
*Largest errors seen* are those of one in 17 of all 2^32 arguments on x86-64 with FMA, and of one in 251 without it.

*What is assumed of a device.* ``+ - *`` round to nearest; comparisons, ``floor``, conversions between int32 and small
whole float32 numbers, and operations on bits are exact. Arguments and results below 2^-126, the smallest normal number,
may be flushed to 0 or kept: a function takes a subnormal argument for 0 or returns what it is, and where the truth is
below 2^-126 returns 0, unless it says otherwise. Division and sqrt are not assumed: XLA makes of ``x / 3`` a product
by the rounded 1/3, of ``(x / y) / z`` the quotient ``x / (y z)``, and of ``1 / sqrt(x)`` an approximate ``rsqrt``.

*What compilers do.* A product may be contracted with the sum that it enters (FMA): it then rounds once, not twice,
and a bound that counts both holds. No step relies on a product's rounding; products that have to be exact (by a few
digits, by a power of two) are exact either way. XLA folds constants through chains of additions: ``(1 + x) - 1`` is x,
and ``x - ((1 + x) - 1)`` is 0. So nothing here subtracts a constant from a sum with another one; where the digits of
1 + x are needed they are read as bits, which no compiler sees through. A caller's operations that made x are kept apart
by a clip, a comparison or bits: in ``1 + x`` those of ``x = y - 1`` would be undone. So a function gives the same bits
whether it is called, jitted or mapped, and whatever made its argument, but not with contraction and without.

*Derivatives.* The bits have none; to differentiate a function here raises TypeError. Callers have closed forms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, localcontext
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.numerics import elementary
from jaxacct.numerics.arithmetic import platform, refuse
from jaxacct.numerics.elementary import By

UNIT = 2.0**-24
"""The unit of roundoff u: bound on the relative error of ``+ - *``."""

TINY = 2.0**-126
"""Smallest normal float32."""

LARGEST = float(np.finfo(np.float32).max)
"""Largest finite float32."""


class Units(NamedTuple):
    """Bounds on the errors of the functions here, in units of roundoff. Smaller ones would break bounds.

    Attributes:
        exp: of itself, and so the next ones.
        expm1: units of e^x - 1.
        exp_remainder: units of e^x - 1 - x.
        log: units of log x.
        log1p: units of log(1 + x).
        reciprocal: units of 1/x.
        square_root: units of the square root.
        cos_less_one: units of min(x^2/2, 2) up to |x| = 2^17, of min(x^2/2, 2|x|) for all x.
        sin_less_argument: units of sin x - x.
        angle: units of the angle.
        normal_tail: units of Phi(-x).
        log_normal_tail: units of log Phi(-x).
        normal_mass: units of a cell's mass.
    """

    exp: float = 2.0
    expm1: float = 5.0
    exp_remainder: float = 6.0
    log: float = 2.5
    log1p: float = 3.0
    reciprocal: float = 2.1
    square_root: float = 1.7
    cos_less_one: float = 7.0
    sin_less_argument: float = 6.0
    angle: float = 8.0
    normal_tail: float = 10.0
    log_normal_tail: float = 18.0
    normal_mass: float = 10.0


UNITS = Units()
"""The bounds, derived in the functions' docstrings."""

Function = TypeVar("Function", bound=Callable[..., Any])

# ----------------------------------------------------------------------------------------------------
# Bits
# ----------------------------------------------------------------------------------------------------


def of_float32(function: Function) -> Function:
    """Returns a function of float32 arrays that refuses other types and has no derivative.

    It is jitted: so a call by numbers is computed as one within a trace, and a program that calls it twice for one
    shape holds it once.
    """
    program: Any = jax.custom_jvp(jax.jit(function))

    @program.defjvp
    def refuse(*_: Any) -> Any:
        raise TypeError(f"{function.__name__} of float32 is made of bits, which have no derivative")

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        wrong = [getattr(arg, "dtype", type(arg).__name__) for arg in args if getattr(arg, "dtype", None) != np.float32]
        if wrong:
            raise TypeError(f"{function.__name__} takes arrays of float32, not of {wrong[0]}")
        return program(*(args if len({arg.shape for arg in args}) == 1 else jnp.broadcast_arrays(*args)))

    call.__wrapped__ = function
    result: Any = call
    return result


def _bits(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x, jnp.int32)


def _float(bits: Array) -> Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _horner(x: Array, coefficients: Sequence[float]) -> Array:
    """Returns the polynomial with these coefficients, lowest degree first."""
    value: Array = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value


def _select(condition: Array, a: Array | float, b: Array | float) -> Array:
    """Returns a or b, one of which may be a number: of the other's type, as ``jnp.where`` would not take it."""
    like = b if isinstance(a, float | int) else a
    a, b = (jax.lax.full_like(like, v) if isinstance(v, float | int) else v for v in (a, b))
    return jax.lax.select(condition, a, b)


def _clip(x: Array, low: float, high: float) -> Array:
    return jnp.minimum(jnp.maximum(x, low), high)


def _clip_to_finite(x: Array) -> Array:
    """Returns x, clipped to the finite numbers: for a compiler x is then one number, rounded once.

    Where a caller's x is y - 1, XLA makes y of 1 + x; where it is a product, one sum would meet it unrounded, and
    another rounded.
    """
    return _clip(x, -LARGEST, LARGEST)


def power_of_two(exponent: Array) -> Array:
    """Returns 2^exponent as float32, exactly, for int32 exponents from -126 to 127.

    Below it is 0, above it is inf.

    >>> power_of_two(jnp.int32(-3)).item()
    0.125
    """
    return _float(_clip(exponent, -127, 128) + 127 << 23)


@of_float32
def exponent(x: Array) -> Array:
    """Returns the largest integer n with 2^n <= |x| as int32, exactly: -127 for 0 and subnormals, 128 for inf and NaN.

    >>> exponent(jnp.float32(-0.75)).item()
    -1
    """
    return (_bits(x) >> 23 & 0xFF) - 127


@of_float32
def next_up(x: Array) -> Array:
    """Returns the next larger float32 that is 0 or normal: 2^-126 after 0 and after all subnormals, 0 after -2^-126.

    +inf and NaN stay. For a subnormal x both neighbours are among those that a device which flushes knows.

    >>> (next_up(jnp.float32(1.0)) - 1).item() == 2.0**-23
    True
    """
    bits = _bits(x)
    size = bits & 0x7FFFFFFF
    # Below zero the size falls; what it falls to below 2^-126 is 0.
    lower = _select(size - 1 < 0x00800000, 0, bits - 1)
    is_below_zero = (bits < 0) & (size >= 0x00800000)
    higher = _select(is_below_zero, lower, _select(size < 0x00800000, 0x00800000, bits + 1))
    return _float(_select((size > 0x7F800000) | (bits == 0x7F800000), bits, higher))


@of_float32
def next_down(x: Array) -> Array:
    """Returns the next smaller float32 that is 0 or normal, ``-next_up(-x)``.

    >>> next_down(jnp.float32(0.0)).item() == -(2.0**-126)
    True
    """
    return -next_up(-x)


# ----------------------------------------------------------------------------------------------------
# Exponentials
# ----------------------------------------------------------------------------------------------------

LOG2_E = 1 / math.log(2)
LN2_HIGH = 22713 / 2**15
"""log 2 to 15 bits: its product with a whole number of up to 9 bits is exact."""
LN2_LOW = float(np.float32(math.log(2) - LN2_HIGH))
"""The rest, 1.43e-6: its rounding and that of its products are below 10^-3 u for such numbers."""

LOWEST, HIGHEST = -87.3365, 88.72283172607422
"""Arguments of exp from which on it is at least 2^-126, and up to which it is finite."""

EXP = (0.5, 0.166666672, 0.0416665301, 0.00833324622, 0.00139288139, 0.000199080721)
"""(e^r - 1 - r)/r^2 for |r| <= 0.3475, to 0.07 units."""

REMAINDER = (
    *(0.5, 0.166666672, 0.0416666679, 0.00833329558, 0.00138888566, 0.000198488866),
    *(2.47965381e-05, 2.70143073e-06, 2.85294334e-07, 3.61966315e-08),
)
"""(e^x - 1 - x)/x^2 for -1 <= x <= 1.5, to 0.03 units."""


def _reduce(x: Array, low: Array | None = None) -> tuple[Array, Array]:
    """Returns p = e^r - 1 and int32 n with x + low = n log 2 + r; for x from LOWEST to HIGHEST, and 0 >= low >= -0.06.

    n is within 1/2 (and 2^-10) of x/log 2. Where it is 0, r is x. Elsewhere x - n LN2_HIGH is exact: the product has at
    most 22 bits; by Sterbenz's lemma so is the difference if the two are within a factor of two, as they are (n = 1
    needs x >= 0.34657, half the product is 0.346573 less a rounding). r rounds once, to u/4, for |r| < 1/2.
    """
    multiple = jnp.floor((x if low is None else x + low) * LOG2_E + 0.5)
    rest = multiple * LN2_LOW
    r = (x - multiple * LN2_HIGH) - (rest if low is None else rest - low)
    return r + r * r * _horner(r, EXP), multiple.astype(jnp.int32)


def _times_power_of_two(y: Array, n: Array) -> Array:
    """Returns y 2^n for positive normal numbers whose product is normal, or 2^128 (inf)."""
    return _float(_bits(y) + (n << 23))


@of_float32
def exp(x: Array) -> Array:
    """Returns e^x, to 2 units; the largest error seen is 1.4.

    p errs by at most 0.85 u for r > 0, and 0.64 u for r < 0: u/4 times e^r by r, 0.24 u by the term of second order
    (|p - r| <= 0.068, to 3.5 units), u/4 by the last sum. 1 + p rounds by u and by u/2 then, at most. Over e^r that
    is 1.4 units and 1.6.

    It is 0 for x < -87.3365, where the truth is below 1.00005 2^-126, and inf for x > 88.72283, where it is above the
    largest float32. It is 1 at 0 and at subnormals, NaN at NaN.

    >>> exp(jnp.float32(1.0)).item()
    2.7182817459106445
    """
    p, n = _reduce(_clip(x, LOWEST, HIGHEST))
    value = _select(x < LOWEST, 0.0, _select(x > HIGHEST, jnp.inf, _times_power_of_two(1 + p, n)))
    return _select(jnp.isnan(x), x, value)


@of_float32
def expm1(x: Array) -> Array:
    """Returns e^x - 1, to 5 units; the largest error seen is 2.0.

    Where n = 0 it is p, with r = x: the term of second order is at most 0.18 p, to 3.5 units, and the sum rounds: 1.7.
    Elsewhere p 2^n is exact, 2^n - 1 is to 2^-25, and the sum rounds: the error is largest at x = 0.3466 with n = 1,
    where p errs by 0.64 u and the result is 0.414: 2 0.64/0.414 + 1 = 4.1.

    It is -1 for x < -18, inf for x > 88.72283, x at 0 and at subnormals (or 0), NaN at NaN.
    """
    p, n = _reduce(_clip(x, LOWEST, HIGHEST))
    scale = power_of_two(jnp.minimum(n, 64))
    value = _select(x > 30, _select(x > HIGHEST, jnp.inf, _times_power_of_two(1 + p, n)), p * scale + (scale - 1))
    return _select(jnp.isnan(x), x, value)


@of_float32
def exp_remainder(x: Array) -> Array:
    """Returns e^x - 1 - x, which is never negative, to 6 units; the largest error seen is 3.4.

    For -1 <= x <= 1.5: x^2, its product with the polynomial, and of Horner's scheme 2.3 units at x = 1.5, where its
    partial sums are shares 0.43, 0.15, 0.04 ... of the whole: 4.3. Elsewhere exp, 1 + x and the difference round: at
    x = 1.5 by 1.7 4.48 + 2 over 1.98, and by 1: 5.9.

    It is inf for x > 88.72283 and at -inf, 0 where |x| < 2^-63, NaN at NaN.
    """
    known = _clip_to_finite(x)
    near = known * known * _horner(_clip(x, -1.0, 1.5), REMAINDER)
    far = exp(x) - (1 + known)
    value = _select((x >= -1) & (x <= 1.5), near, _select((x > HIGHEST) | (x < -LARGEST), jnp.inf, far))
    return _select(jnp.isnan(x), x, value)


# ----------------------------------------------------------------------------------------------------
# Logarithms
# ----------------------------------------------------------------------------------------------------

ROOT_HALF = 0x3F3504F3
"""The bits of the float32 next to the square root of 1/2."""

LOG = (
    *(0.333333313, -0.24999994, 0.200007007, -0.1666805, 0.142496184),
    *(-0.124203756, 0.116750091, -0.115128681, 0.0704030842),
)
"""(log(1 + f) - f + f^2/2)/f^3 for sqrt(1/2) <= 1 + f <= sqrt(2), to 1.1 units."""


def _mantissa_and_exponent(x: Array) -> tuple[Array, Array]:
    """Returns m from sqrt(1/2) to sqrt(2), and int32 e, with x = m 2^e, for positive normal x."""
    bits = _bits(x)
    e = bits - ROOT_HALF >> 23
    return _float(bits - (e << 23)), e


def _log_of(f: Array, e: Array, more: Array | None = None) -> Array:
    """Returns log(1 + f) + e log 2 + more, f from sqrt(1/2) - 1 to sqrt(2) - 1, |more| below 2u."""
    n, square = e.astype(jnp.float32), f * f
    # At most one product of each sum is inexact: else compilers could choose which one to contract.
    later = square * f * _horner(f, LOG) - 0.5 * square
    return ((later if more is None else later + more) + n * LN2_LOW) + f + n * LN2_HIGH


@of_float32
def log(x: Array) -> Array:
    """Returns log x, to 2.5 units; the largest error seen is 1.4.

    Let D be the series without f: its cubic part is to 6 units of at most 0.018, f^2 to u; their sum rounds to u/16.
    With f + D, to u/4 where it is below 1/2, the error is at most 0.51 u for f = 0.414 and 0.39 u for f = -0.293: 1.5
    units where e = 0. With e = -1 and f = 0.414 the result is -0.3466, rounded to u/4 and u/16 more: 0.82/0.3466 = 2.4.
    With e = 1 it is 1.9. Beyond, the result grows faster than what it is rounded by.

    It is -inf at 0 and at subnormals of either sign, NaN for x <= -2^-126 and at NaN, inf at inf.
    """
    m, e = _mantissa_and_exponent(x)
    value = _select(x > LARGEST, x, _log_of(m - 1, e))
    return _with_ends(x, x, value)


@of_float32
def log1p(x: Array) -> Array:
    """Returns log(1 + x), to 3 units; the largest error seen is 1.4.

    With y = 1 + x rounded, y = m 2^e, it is log y + (1 + x - y)/y where e is not 0, and the series of :func:`log` in x
    where it is. The part that y lost, at most u m, enters times 1 - f + f^2 in place of 1/(1 + f), within 0.05 of it,
    and with one more sum that rounds to u/16: (0.82 + 0.05 + 0.06)/0.3466 = 2.7 units.

    It is -inf at -1, NaN below and at NaN, x at 0 and at subnormals (or 0), inf at inf.
    """
    known = _clip_to_finite(x)
    y = 1 + known
    m, e = _mantissa_and_exponent(y)
    # What y has lost, times 2^-e: exact. From 2^24 on it is less than u log y, and below 0 there is none.
    scale = power_of_two(-jnp.minimum(e, 24))
    f = m - 1
    lost = _select((e < 24) & (e != 0), known * scale - (m - scale), 0.0)
    value = _select(x > LARGEST, x, _log_of(_select(e == 0, known, f), e, lost * (1 - f * (1 - f))))
    return _with_ends(x, y, value)


def _with_ends(x: Array, y: Array, value: Array) -> Array:
    """Returns a logarithm of y, a function of x, with its values at the ends: y at most 0, and NaN."""
    value = _select(y <= -TINY, jnp.nan, _select(y < TINY, -jnp.inf, value))
    return _select(jnp.isnan(x), x, value)


# ----------------------------------------------------------------------------------------------------
# Reciprocals and square roots
# ----------------------------------------------------------------------------------------------------

RECIPROCAL = (2.82841134, -2.93931746, 1.33100641, -0.221833557)
"""1/m for 1 <= m <= 2, to 1.8e-3: where Newton's iteration starts."""

RECIPROCAL_ROOT = (1.55617595, -0.738847136, 0.194678977, -0.0190495439)
"""1/sqrt(m) for 1 <= m <= 4, to 7.1e-3."""


@of_float32
def reciprocal(x: Array) -> Array:
    """Returns 1/x, to 2.1 units; the largest error seen is 1.7.

    Two steps of Newton's iteration y + y (1 - m y) take the start's error to 10^-3 u; of the last, m y rounds by u at
    most, the difference is exact (Sterbenz), and the sum rounds once.

    It is inf with x's sign at 0 and at subnormals, 0 where |x| > 2^126, NaN at NaN.
    """
    bits = _bits(x)
    size, sign = bits & 0x7FFFFFFF, bits & ~0x7FFFFFFF
    m = _float(size & 0x007FFFFF | 0x3F800000)
    y = _horner(m, RECIPROCAL)
    y = y + y * (1 - m * y)
    y = y + y * (1 - m * y)
    scaled = _bits(y) - ((size >> 23) - 127 << 23)
    scaled = _select(size < 0x00800000, 0x7F800000, _select(size > 0x7E800000, 0, scaled))
    return _float(_select(size > 0x7F800000, size, scaled) | sign)


@of_float32
def square_root(x: Array) -> Array:
    """Returns the square root of x, to 1.7 units; the largest error seen is 1.6.

    A step of Newton's iteration takes the start y of 1/sqrt(m) from 7.1e-3 to 7.6e-5. So root = m y errs by as much;
    3/2 of the square of that, 0.15 u, is left in root + y (m - root^2)/2. There root^2 rounds by u, which counts half,
    the difference is exact (Sterbenz), and the sum rounds once.

    It is 0 at 0 and at subnormals of either sign, NaN for x <= -2^-126 and at NaN, inf at inf.
    """
    size = _bits(x)
    half = size - 0x3F800000 >> 24  # of the exponent, rounded down
    m = _float(size - (half << 24))
    y = _horner(m, RECIPROCAL_ROOT)
    y = y + 0.5 * y * (1 - m * y * y)
    root = m * y
    root = root + 0.5 * y * (m - root * root)
    value = _select(x > LARGEST, x, _float(_bits(root) + (half << 23)))
    value = _select(x <= -TINY, jnp.nan, _select(x < TINY, 0.0, value))
    return _select(jnp.isnan(x), x, value)


# ----------------------------------------------------------------------------------------------------
# Sines and angles
# ----------------------------------------------------------------------------------------------------

PI = (201 / 64, 127 / 2**17, float(np.float32(math.pi - 201 / 64 - 127 / 2**17)))
"""pi in three parts, of 8, 7 and 24 bits."""

SIN = (-0.166666672, 0.00833347347, -0.000199005241, 3.3724325e-06)
"""(sin h - h)/h^3 in h^2 for |h| <= pi/4, to 0.5 units."""

COS = (0.0416666679, -0.00138892431, 2.49527984e-05, -4.36344521e-07)
"""(cos h - 1 + h^2/2)/h^4 in h^2 for |h| <= pi/4, to 0.5 units."""

SIN_LESS = (
    *(-0.166666672, 0.00833341945, -0.000198658032, 3.01294494e-06),
    *(-1.4742217e-07, 2.70652816e-08, -2.22326602e-09),
)
"""(sin x - x)/x^3 in x^2 for |x| <= 2, to 0.5 units."""

ARCTAN = (-0.333333313, 0.199994504, -0.142609045, 0.107114144, -0.0634701252)
"""(arctan t - t)/t^3 in t^2 for |t| <= tan(pi/8), to 1 unit."""


@of_float32
def cos_and_sin_remainders(x: Array) -> tuple[Array, Array]:
    """Returns cos x - 1 and sin x - x, errors of second order beside x.

    - cos x - 1 errs by at most 7 units of min(x^2/2, 2) for |x| <= 2^17, and 2 units of 2|x| beyond; the largest
      error seen is 3.4.
    - sin x - x errs by at most 6 units of itself; the largest error seen is 3.8.

    With x = n pi + 2h, cos x - 1 is -2 sin^2 h for even n and -2 cos^2 h for odd n, and sin x is (-1)^n 2 sin h cos h.
    Up to 2^17 n has 16 bits, so that its first two products are exact, and the differences are (they are multiples of a
    unit in the last place of x, or of 2^-17, below 2^24 of these); the third rounds r by u, and pi's rest moves it by
    4e-14 n < 0.03 u. Then sin h is to 2.6 units (1.6 where n = 0 and r = x) and cos h to 2.4; squares to twice that and
    1, the product to 6. Below 2, sin x - x is a series: x, x^2 and their products round three times, Horner's scheme by
    1.5 units, and its coefficients by 0.5. From 2 on it is at least 1.09, and the sine's error at most 6 |sin x| u.

    Beyond 2^17 the products round as well, which moves the angle by 1.01 u |x|; n may be off by as much over pi; a clip
    moves what is left to the range of the series. From 2^23 on the result is any number of the right range.

    They are 0 and 0 (or, for sin x - x, nothing below 2^-126) where x^2 or x^3 are below 2^-126; NaN at inf and NaN.
    """
    is_infinite, x = jnp.abs(x) > LARGEST, _clip_to_finite(x)
    n = jnp.floor(x * (1 / math.pi) + 0.5)
    r = ((x - n * PI[0]) - n * PI[1]) - n * PI[2]
    h = 0.5 * _clip(r, -1.6, 1.6)
    w = h * h
    s, c = h + h * w * _horner(w, SIN), 1 + (w * w * _horner(w, COS) - 0.5 * w)
    # n/2 - floor(n/2) is 1/2 for odd n.
    is_odd = n * 0.5 != jnp.floor(n * 0.5)
    far, one = 2 * s * c, _select(is_odd, c, s)
    square = x * x
    near = x * square * _horner(jnp.minimum(square, 4.0), SIN_LESS)
    sine = _select(jnp.abs(x) < 2, near, _select(is_odd, -far, far) - x)
    return _select(is_infinite, jnp.nan, -2 * one * one), _select(is_infinite, jnp.nan, sine)


@of_float32
def angle(y: Array, x: Array) -> Array:
    """Returns the angle of the point (x, y), from -pi to pi (arctan2), to 8 units; the largest seen is 4.4.

    t is the smaller coordinate over the larger one, or, where that is above tan(pi/8), the tangent of the angle less
    pi/4: to 3.1 and 5.1 units. The series adds 1.4. By pi/4 an error of 2.5 u is added to, where the sum is at least
    0.3927 and rounds to u/4 as pi/4 does: 7.7 units. By pi/2 and pi the angle grows, and the error by 1 unit of it.

    It is 0 at (0, 0) and 0 or pi for y = 0, whatever the zeros' signs; NaN where a coordinate is inf or NaN. Points
    with both coordinates subnormal are at 0.
    """
    height, width = jnp.abs(y), jnp.abs(x)
    # By a power of two the larger coordinate is brought to [1, 4).
    scale = power_of_two(-_clip(exponent(jnp.maximum(height, width)), -126, 126))
    small, large = jnp.minimum(height, width) * scale, jnp.maximum(height, width) * scale
    is_wide = small > 0.41421356 * large
    below = _select(is_wide, small + large, _select(large < TINY, 1.0, large))
    t = _select(is_wide, small - large, small) * reciprocal(below)
    w = t * t
    value = t + t * w * _horner(w, ARCTAN)
    value = _select(is_wide, value + 0.25 * math.pi, value)
    value = _select(height > width, 0.5 * math.pi - value, value)
    value = _select(x <= -TINY, math.pi - value, value)
    return _select(y < 0, -value, value)


# ----------------------------------------------------------------------------------------------------
# The normal law
# ----------------------------------------------------------------------------------------------------

MILLS = (
    *(0.655679524, -0.344320446, 0.155680239, -0.0628804415, 0.0231954996, -0.00793693215),
    *(0.00255381828, -0.000764550525, 0.000211374296, -7.00604942e-05, 2.12165742e-05),
)
"""Phi(-x)/phi(x) in x - 1, for 0 <= x <= 2, to 0.5 units."""

MILLS_FAR = (
    *(0.905354083, -0.592748404, 0.925810695, -2.01488185, 5.28722572, -16.382597),
    *(57.3032341, -112.919022, 149.718811, -6453.57861, 33293.4883),
)
"""x Phi(-x)/phi(x) in 1/x^2 - 1/8, for x >= 2, to 0.4 units."""


def _mills(x: Array) -> Array:
    """Returns Mills' ratio Phi(-x)/phi(x) for x >= 0, to 5 units.

    Up to 2: x - 1 rounds to u/2, which counts 0.4; Horner's scheme errs by 3 units at x = 2, where its partial sums are
    0.56, 0.26, 0.11 ... of the whole; coefficients by 0.5. Beyond: 1/x enters to 2.1 units, times 0.75 (the ratio's own
    slope, x (1/M - x), is between that and 1), its square rounds, Horner's scheme errs by 1.4, and the product rounds.
    In powers of 1/x^2 itself the scheme's partial sums would be five times the whole.
    """
    z = reciprocal(jnp.maximum(x, 2.0))
    far = z * _horner(z * z - 0.125, MILLS_FAR)
    return _select(x < 2, _horner(jnp.minimum(x, 2.0) - 1, MILLS), far)


def _density(x: Array) -> Array:
    """Returns e^(-x^2/2) for 0 <= x <= 13, where it is normal, to 2 units.

    x is split after 12 bits: the square of the first part is exact, and what is left of the exponent is at most 0.051,
    to 2 units of it. So r is to 0.4 u instead of u/4, and :func:`exp`'s 1.6 units become 1.8.
    """
    high = _float(_bits(x) & ~0xFFF)
    p, n = _reduce(-0.5 * (high * high), -0.5 * ((x - high) * (x + high)))
    return _times_power_of_two(1 + p, n)


def _normal_tails(size: Array) -> tuple[Array, Array]:
    """Returns Phi(-x), and Phi(-x) e^(x^2/2), for x >= 0; the first is 0 where it is below 2^-126."""
    scaled = _mills(size) * (1 / math.sqrt(2 * math.pi))
    tail = _density(jnp.minimum(size, 13.0)) * scaled
    return _select((tail < TINY) | (size > 13), 0.0, tail), scaled


@of_float32
def normal_tail(x: Array) -> Array:
    """Returns Phi(-x), the mass of a standard normal law above x, to 10 units; the largest seen is 4.7.

    The density is to 2 units, Mills' ratio to 5 (4 below 2), the constant to 0.5, and two products round: 9.5. Below 0
    the difference from 1 rounds, too, and is at least as large as what it is taken from.

    It is 0 for x > 12.97, where the truth is below 2^-126, 1 at -inf, NaN at NaN.
    """
    tail, _ = _normal_tails(jnp.abs(x))
    return _select(jnp.isnan(x), x, _select(x < 0, 1 - tail, tail))


@of_float32
def log_normal_tail(x: Array) -> Array:
    """Returns log Phi(-x), to 18 units; the largest error seen is 7.5.

    For x >= 0 it is log(Phi(-x) e^(x^2/2)), from a number to 6.5 units (5 near 0), less x^2/2: both negative. At 0, the
    least favourable place, 5/0.693 + 2.5 + 1 = 10.7. Below 0 it is log(1 - t), t = Phi(x) to 8.5 units for |x| < 2: up
    to t = 0.29 these count 1.2 times at most, and the series' 1.5; from there on 1 - t rounds to u/2:
    (8.5 0.293 + 0.5)/0.707/0.3466 + 2.5 = 14.7.

    It is -inf where the truth is below the largest negative float32 (x > 2.6e19), 0 for x < -13, NaN at NaN.
    """
    size = jnp.abs(x)
    tail, scaled = _normal_tails(size)
    # One logarithm serves both signs: of 1 - Phi(x), and of Phi(-x) e^(x^2/2).
    m, e = _mantissa_and_exponent(_select(x < 0, 1 - tail, scaled))
    log_tail = _log_of(_select((x < 0) & (e == 0), -tail, m - 1), e)
    # Behind a minimum the product rounds for itself, however the difference is compiled.
    half_square = jnp.minimum(0.5 * size * size, LARGEST)
    above = _select(half_square >= LARGEST, -jnp.inf, log_tail - half_square)
    return _select(jnp.isnan(x), x, _select(x < 0, log_tail, above))


WIDEST = 0.125
"""Half the width of the widest cell of :func:`normal_mass`."""

CELL = tuple(
    tuple((-0.5) ** j / math.factorial(j) / (math.factorial(2 * k) * (2 * j + 2 * k + 1)) for k in range(terms))
    for j, terms in enumerate((8, 6, 4, 2))
)
"""Coefficients of d^(2j) (m d)^(2k) in the integral of cosh(m d v) e^(-d^2 v^2/2) over v from 0 to 1."""


@of_float32
def normal_mass(middle: Array, half: Array) -> Array:
    """Returns Phi(m + d) - Phi(m - d), the mass of a cell, to 10 units of itself; the largest seen is 5.7.

    A difference of tails would err by as many units of the tails. The mass is 2d phi(m) times the mean of
    cosh(m d v) e^(-d^2 v^2/2) over v from 0 to 1, a double series in y = (m d)^2 and d^2, for d <= 1/8 and |m| <= 13:
    what it leaves out is 10^-9 of it. y is to 3 units, which count a third; Horner's scheme in y has positive terms, of
    which 1 is at least two thirds: 2 units; the terms in d^2 add 0.05. The density is to 2, its constant to 0.5, and
    three products round.

    Args:
        middle: m. The two edges are m - d and m + d as exact numbers.
        half: d, from 0 to 1/8; NaN for others. 0 where the truth is below 2^-126 or |m| > 13.
    """
    size = jnp.minimum(jnp.abs(middle), 13.0)
    turn, square = size * half, half * half
    y = turn * turn
    inner = [_horner(y, row) for row in CELL]
    mean = inner[0] + square * (inner[1] + square * (inner[2] + square * inner[3]))
    # In this order no part is below 2^-126 where the whole is not.
    mass = (_density(size) * (2 / math.sqrt(2 * math.pi))) * (half * mean)
    mass = _select((mass < TINY) | (jnp.abs(middle) > 13), 0.0, mass)
    return _select((half >= 0) & (half <= WIDEST) & ~jnp.isnan(middle), mass, jnp.nan)


# ----------------------------------------------------------------------------------------------------
# The check of a device
# ----------------------------------------------------------------------------------------------------


class Float32Assumption(NamedTuple):
    """A function of float32, with what a device's values for a table of arguments are compared with.

    Attributes:
        function: function of float32 arrays.
        truth: the same function of a decimal.
        arguments: the table's arguments, float32 numbers.
        units: bound on the relative error, in units of roundoff u = 2^-24.
    """

    function: Callable[..., Array]
    truth: Callable[[Decimal], Decimal]
    arguments: tuple[float, ...]
    units: float


def _test_arguments(*ends: tuple[float, float], signs: tuple[int, ...] = (1,)) -> tuple[float, ...]:
    """Returns eight float32 numbers between each two ends, evenly by their logarithms, with each sign."""
    sizes = np.concatenate([np.geomspace(*pair, 8) for pair in ends])
    return tuple(float(v) for sign in signs for v in (sign * sizes).astype(np.float32))


@functools.cache
def _assumptions() -> dict[str, Float32Assumption]:
    both, truths = (1, -1), {name: assumption.truth for name, assumption in elementary.ASSUMED.items()}
    exp_ends, log_ends, near_one = (1e-6, 1.0), (1e-37, 3e38), (0.5, 1.9)
    upper_tail = _test_arguments((1e-3, 1.9), (2.1, 12.0))
    return {
        "exp": Float32Assumption(exp, Decimal.exp, _test_arguments(exp_ends, (1.0, 87.0), signs=both), UNITS.exp),
        "expm1": Float32Assumption(
            expm1, truths["expm1"], _test_arguments(exp_ends, (1.0, 80.0), signs=both), UNITS.expm1
        ),
        "exp_remainder": Float32Assumption(
            exp_remainder,
            lambda x: x.exp() - 1 - x,
            _test_arguments(exp_ends, (1.0, 80.0), signs=both),
            UNITS.exp_remainder,
        ),
        "log": Float32Assumption(
            log, Decimal.ln, (*_test_arguments(log_ends, near_one), 1 - UNIT, 1 + 2 * UNIT), UNITS.log
        ),
        "log1p": Float32Assumption(
            log1p,
            truths["log1p"],
            _test_arguments((1e-30, 1e-9), (1e-6, 0.9), signs=both) + _test_arguments((1.0, 3e38)),
            UNITS.log1p,
        ),
        "reciprocal": Float32Assumption(
            reciprocal, lambda x: 1 / x, _test_arguments((1e-37, 8e37), near_one, signs=both), UNITS.reciprocal
        ),
        "square_root": Float32Assumption(
            square_root, Decimal.sqrt, _test_arguments(log_ends, near_one), UNITS.square_root
        ),
        "cos x - 1": Float32Assumption(
            lambda x: cos_and_sin_remainders(x)[0],
            lambda x: truths["cos"](x) - 1,
            _test_arguments((1e-6, 1.0), (1.0, 5.0)),
            UNITS.cos_less_one,
        ),
        "sin x - x": Float32Assumption(
            lambda x: cos_and_sin_remainders(x)[1],
            lambda x: truths["sin"](x) - x,
            _test_arguments((1e-6, 1.0), (1.0, 9.0)),
            UNITS.sin_less_argument,
        ),
        "angle": Float32Assumption(
            lambda x: angle(x, jnp.ones_like(x)),
            lambda x: Decimal(math.atan(x)),
            _test_arguments((1e-6, 0.4), (0.41, 2.5), (3.0, 1e6), signs=both),
            UNITS.angle,
        ),
        "normal_tail": Float32Assumption(normal_tail, lambda x: truths["ndtr"](-x), upper_tail, UNITS.normal_tail),
        "log_normal_tail": Float32Assumption(
            log_normal_tail, lambda x: truths["ndtr"](-x).ln(), upper_tail, UNITS.log_normal_tail
        ),
    }


OPERANDS = tuple(
    (float(np.float32(a)), float(np.float32(b)))
    for a in (1.0, 1 / 3, 0.1, 2.0**-9 / 3, 100 / 7, 1 + 2.0**-23)
    for b in (2.0**-24 * 1.5, 3.0, 1 - 2.0**-24, -1 / 3, 2.0**-12 / 7)
)
"""Pairs of float32 numbers whose exact sums and products have at most 53 bits."""

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    # What a compiler that rewrites as in exact arithmetic gives is y, and it is 0.
    "(x + y) - x": lambda x, y: (x + y) - x,
    "((x + y) - x) - y": lambda x, y: ((x + y) - x) - y,
}
"""Operations whose results for :data:`OPERANDS` have to be those of IEEE 754, to the bit."""


def _by_all(x: Array, y: Array, arguments: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns what a device gives for the operations, and for the functions, of traced numbers and of constants."""
    constants = tuple(jnp.asarray(column, jnp.float32) for column in np.array(OPERANDS, np.float32).T)
    operations = {name: operation(x, y) for name, operation in OPERATIONS.items()}
    # Chains of sums with one constant in them twice are folded: nothing relies on those.
    for name in ("x + y", "x - y", "x * y"):
        operations[f"{name}, x constant"] = OPERATIONS[name](constants[0], y)
        operations[f"{name}, y constant"] = OPERATIONS[name](x, constants[1])
        operations[f"{name}, constant"] = OPERATIONS[name](*constants)
    functions = {}
    # Each function of numbers that are not known when it is compiled, and of the same as constants.
    for name, assumption in _assumptions().items():
        functions[name] = assumption.function(arguments[name])
        functions[f"{name}, constant"] = assumption.function(jnp.asarray(assumption.arguments, jnp.float32))
    return operations, functions


def compute(by: By = By.XLA) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the results of the device in use for operations and for functions, by a program compiled for this."""
    x, y = np.array(OPERANDS, np.float32).T
    arguments = {name: np.array(assumption.arguments, np.float32) for name, assumption in _assumptions().items()}
    with elementary.without_debugging(), jax.core.eval_context():
        # A new function object: JAX must not reuse a program that was traced for another table.
        computed = jax.jit(functools.partial(_by_all), compiler_options=by.options)(x, y, arguments)
        return jax.tree.map(np.asarray, computed)


def failures(operations: dict[str, np.ndarray], functions: dict[str, np.ndarray]) -> list[str]:
    """Returns a line for each assumption that the values for operands and arguments break."""
    lines = []
    # Operations: float64 holds sums and products exactly, so that one rounding to float32 is left.
    x, y = np.array(OPERANDS).T
    for name, values in operations.items():
        kind = name.partition(",")[0]
        first = np.float64(np.float32(x + y))
        second = np.float64(np.float32(first - x))
        exact = {"(x + y) - x": second, "((x + y) - x) - y": second - y}.get(kind)
        exact = np.float32(OPERATIONS[kind](x, y) if exact is None else exact)
        wrong = np.flatnonzero(values != exact)
        if wrong.size:
            i = wrong[0]
            lines.append(
                f"{name} at x = {float(x[i])!r}, y = {float(y[i])!r} is not what IEEE 754 says, rounded to nearest"
            )
    # Functions: the worst argument of each is compared with the units that it is allowed.
    with localcontext(Context(prec=elementary.DIGITS + 20, Emin=-999999, Emax=999999)):
        for name, values in functions.items():
            assumption, worst, at = _assumptions()[name.partition(",")[0]], 0.0, 0.0
            for argument, value in zip(assumption.arguments, values, strict=True):
                truth = assumption.truth(Decimal(argument))
                off = abs(float(Decimal(float(value)) / truth - 1)) / UNIT if np.isfinite(value) else math.inf
                worst, at = max((worst, at), (off, argument))
            if worst > assumption.units:
                lines.append(f"{name} at {at!r} is {worst:.3g} units of roundoff off, more than {assumption.units:g}")
    return lines


_sound: set[tuple[str, By]] = set()
"""Platforms, and the ways of compiling for them, that have passed."""


def check(by: By = By.XLA) -> None:
    """Asks the device in use for the table, once a process for each way of compiling, and raises where it fails.

    The table has each function and operation of numbers that the compiler does not know, and of constants.

    Raises:
        UnsoundBackendError: the device breaks an assumption.
    """
    if (platform(), by) in _sound:
        return
    broken = failures(*compute(by))
    if broken:
        refuse(f"{platform()!r} ({by.value})", "float32 as the certificates assume", broken)
    _sound.add((platform(), by))
