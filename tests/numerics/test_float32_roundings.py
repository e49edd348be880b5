"""The stated bounds of float32's elementary functions, derived again by a program, for every way of rounding.

A function is run on numbers that carry three things: a float32 value, what the same steps give in exact arithmetic, and
a bound on the distance of the two for *any* results of ``+ - *`` that are within half a unit in the last place, so with
products contracted or not, on this device or another. Steps are exact where IEEE 754 makes them: differences of numbers
within a factor of two, products by powers of two, results that float32 holds of arguments that are exact.
"""

import math
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from jaxacct.numerics import elementary_float32 as elementary
from jaxacct.numerics.elementary_float32 import TINY, UNIT, UNITS
from tests.helpers.thorough import draws
from tests.numerics.test_elementary_float32 import BOUNDS, some_arguments


def half_unit(size):
    """Half a unit in the last place of float32 numbers of this size; for those that may be flushed, all of it."""
    return np.where(size < TINY, size, np.ldexp(1.0, np.frexp(np.maximum(size, TINY))[1] - 25))


def nearest(x):
    rounded = x.astype(np.float32)
    return np.where(np.abs(rounded) < TINY, np.float32(0) * rounded, rounded).astype(np.float64)


@dataclass
class Rounded:
    """Float32 numbers, the exact ones that they stand for, and bounds on how far these are apart."""

    value: Any
    exact: Any
    off: Any
    __array_ufunc__ = None

    @staticmethod
    def of(x):
        if isinstance(x, Rounded):
            return x
        x = np.asarray(x)
        known = nearest(x.astype(np.float64))
        return Rounded(known, known, np.zeros_like(known))

    def _result(self, exact, off, is_exact, value):
        is_held = (self.off == 0) & (off == 0) & (nearest(exact) == exact)
        more = np.where(is_exact | is_held, 0.0, half_unit(np.abs(exact) + off))
        return Rounded(nearest(value), exact, off + more)

    def __add__(self, other):
        a, b = self, Rounded.of(other)
        low = np.minimum(np.abs(a.exact) - a.off, np.abs(b.exact) - b.off)
        high = np.maximum(np.abs(a.exact) + a.off, np.abs(b.exact) + b.off)
        is_near = (np.sign(a.exact) * np.sign(b.exact) < 0) & (2 * low >= high)
        is_zero = ((a.exact == 0) & (a.off == 0)) | ((b.exact == 0) & (b.off == 0))
        return self._result(a.exact + b.exact, a.off + b.off, is_near | is_zero, a.value + b.value)

    def __mul__(self, other):
        a, b = self, Rounded.of(other)
        off = np.abs(a.exact) * b.off + np.abs(b.exact) * a.off + a.off * b.off
        is_power = ((np.frexp(a.exact)[0] % 0.5 == 0) & (a.off == 0)) | (
            (np.frexp(b.exact)[0] % 0.5 == 0) & (b.off == 0)
        )
        size = np.abs(a.exact * b.exact)
        return self._result(a.exact * b.exact, off, is_power & (size >= TINY), a.value * b.value)

    def __neg__(self):
        return Rounded(-self.value, -self.exact, self.off)

    def __sub__(self, other):
        return self + -Rounded.of(other)

    def __rsub__(self, other):
        return Rounded.of(other) + -self

    __radd__, __rmul__ = __add__, __mul__

    def __abs__(self):
        return Rounded(np.abs(self.value), np.abs(self.exact), self.off)

    # A step is decided by the values that this device computes. Near a switch both sides hold.
    def __lt__(self, other):
        return self.value < Rounded.of(other).value

    def __le__(self, other):
        return self.value <= Rounded.of(other).value

    def __gt__(self, other):
        return self.value > Rounded.of(other).value

    def __ge__(self, other):
        return self.value >= Rounded.of(other).value

    def __ne__(self, other):
        return self.value != Rounded.of(other).value

    def astype(self, kind):
        return self.value.astype(int) if kind == "int32" else self


class Whole(np.ndarray):
    """Integers, which become float32 numbers exactly."""

    def astype(self, kind, **more):
        return Rounded.of(np.asarray(self)) if kind == "float32" else super().astype(kind, **more)


def choose(condition, a, b):
    if not isinstance(a, Rounded) and not isinstance(b, Rounded) and np.asarray(a).dtype.kind == "i":
        return np.where(condition, a, b)
    a, b = Rounded.of(a), Rounded.of(b)
    return Rounded(*(np.where(condition, *pair) for pair in ((a.value, b.value), (a.exact, b.exact), (a.off, b.off))))


def smaller(a, b):
    return choose(a <= b, a, b) if isinstance(a, Rounded) else np.minimum(a, b)


def larger(a, b):
    return choose(a >= b, a, b) if isinstance(a, Rounded) else np.maximum(a, b)


JNP = types.SimpleNamespace(
    minimum=smaller,
    maximum=larger,
    floor=lambda x: Rounded.of(np.floor(x.value)),
    abs=abs,
    isnan=lambda x: np.isnan(x.value),
    full_like=lambda x, c: Rounded.of(np.full_like(x.value, c)),
    float32="float32",
    int32="int32",
    inf=np.inf,
    nan=np.nan,
    ones_like=lambda x: Rounded.of(np.ones_like(x.value)),
)


def scaled(x, exponent):
    return Rounded(*(np.ldexp(v, np.asarray(exponent)) for v in (x.value, x.exact, x.off)))


def parts(x):
    fraction, exponent = np.frexp(x.value)
    exponent = np.where(fraction < math.sqrt(0.5), exponent - 1, exponent)
    return scaled(x, -exponent), exponent.view(Whole)


def parts_of_known(x):
    """1 + x is rounded once, from a number that is exact: every device has the same result."""
    return parts(Rounded.of(x.value))


def reciprocal(x):
    exact = 1 / x.exact
    off = x.off / np.abs(x.exact * (np.abs(x.exact) - x.off))
    return Rounded(nearest(1 / x.value), exact, off + 2.1 * UNIT * (np.abs(exact) + off))


def upper_half(x):
    high = (x.value.astype(np.float32).view(np.int32) & ~0xFFF).view(np.float32)
    assert (x.off == 0).all()
    return Rounded.of(high)


@pytest.fixture
def traced(monkeypatch):
    """The module's functions, of numbers that carry bounds."""
    replaced = {
        "jnp": JNP,
        "_select": choose,
        "_clip": lambda x, low, high: smaller(larger(x, low), high),
        "_times_power_of_two": scaled,
        "_mantissa_and_exponent": parts,
        "reciprocal": reciprocal,
        "power_of_two": lambda n: Rounded.of(np.ldexp(1.0, np.asarray(n))),
        "exponent": lambda x: np.frexp(x.value)[1] - 1,
        "_bits": lambda x: x,
        "_float": upper_half,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(elementary, name, value)
    # What functions call of one another is not of float32 arrays here.
    for name in ("exp", "log", "log1p", "normal_tail"):
        monkeypatch.setattr(elementary, name, getattr(elementary, name).__wrapped__)
    monkeypatch.setattr(Rounded, "__and__", lambda self, mask: self, raising=False)
    return monkeypatch


RANGES = {
    "exp": (-87.3, 88.7),
    "expm1": (-87.3, 88.7),
    "exp_remainder": (-1e3, 88.7),
    "log": (1e-37, 3e38),
    "log1p": (-0.99999994, 3e38),
    "cos": (-1e6, 1e6),
    "sin": (-1e6, 1e6),
    "normal_tail": (-14, 12.9),
    "log_normal_tail": (-12, 1e4),
}


def wrapped(name):
    found = {
        "cos": lambda x: elementary.cos_and_sin_remainders.__wrapped__(x)[0],
        "sin": lambda x: elementary.cos_and_sin_remainders.__wrapped__(x)[1],
    }.get(name)
    return found or getattr(elementary, name)


def numbers_within(low, high, count):
    """Numbers of all sizes and of like sizes as the ends, and those beside the places where functions switch."""
    rng = np.random.default_rng(0)
    ends = max(low, -99), min(high, 99)
    with np.errstate(invalid="ignore"):
        x = np.concatenate([some_arguments(count), rng.uniform(*ends, count), rng.uniform(-2, 2, count)])
    near = [
        0.34657359,
        0.5,
        0.70710678,
        1.0,
        1.41421356,
        1.5,
        2.0,
        math.pi / 2,
        math.pi,
        1.0397208,
        0.41421356,
        0.29289322,
    ]
    beside = np.multiply.outer(near, 1 + np.linspace(-1e-4, 1e-4, 400)).ravel()
    x = np.concatenate([x, beside, -beside]).astype(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return x[(x >= low) & (x <= high) & (np.abs(x) >= 1e-15)]


@pytest.mark.parametrize("name", RANGES)
def test_bounds_hold_however_a_device_rounds(name, traced):
    if name == "log1p":
        traced.setattr(elementary, "_mantissa_and_exponent", parts_of_known)
    function, bound = wrapped(name), BOUNDS[name]
    function = getattr(function, "__wrapped__", function)
    x = numbers_within(*RANGES[name], draws(2**14, 2**20))
    with np.errstate(all="ignore"):
        found, truth = function(Rounded.of(x)), bound.truth(x)
        size = np.maximum(bound.size(x, truth), TINY)
        units = (np.abs(found.exact - truth) + found.off) / (size * UNIT)
    units = np.where(np.abs(truth) < 1e-36, 0.0, units)
    assert units.max() <= bound.units, (units.max(), x[units.argmax()])
    # The program is not idle: roundings do add up, and those that happen are among those that may.
    assert units.max() > 0.3 * bound.units
    assert (np.abs(found.value - found.exact) <= found.off * 1.0001).all()


def test_bounds_of_angles_and_cells_hold_however_a_device_rounds(traced):
    rng = np.random.default_rng(0)
    count = draws(2**14, 2**20)
    y, x, middle = (v.astype(np.float32).astype(np.float64) for v in rng.normal(size=(3, count)) * [[1], [1], [4]])
    x[: count // 4] = np.float32(y[: count // 4] * (1 + math.sqrt(2)) * (1 + rng.uniform(-0.01, 0.01, count // 4)))
    half = np.exp(rng.uniform(math.log(1e-7), math.log(0.125), count)).astype(np.float32).astype(np.float64)
    half[: count // 4] = 0.125
    found = elementary.angle.__wrapped__(Rounded.of(y), Rounded.of(x))
    truth = np.arctan2(y, x)
    assert np.max((np.abs(found.exact - truth) + found.off) / np.abs(truth)) <= UNITS.angle * UNIT
    middle = np.clip(middle, -12, 12)
    nodes, weights = np.polynomial.legendre.leggauss(14)
    truth = sum(w * np.exp(-0.5 * (middle + half * z) ** 2) for z, w in zip(nodes, weights, strict=True))
    truth *= half / math.sqrt(2 * math.pi)
    found = elementary.normal_mass.__wrapped__(Rounded.of(middle), Rounded.of(half))
    assert np.max((np.abs(found.exact - truth) + found.off) / truth) <= UNITS.normal_mass * UNIT
