"""The elementary functions of float32: their bounds over float32 arguments, their ends, and the same bits everywhere.

References are NumPy's and SciPy's in float64, whose errors are 10^-8 of a unit of float32.
"""

import functools
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.thorough import draws
from scipy.special import log_ndtr, ndtr

from jaxacct.numerics import elementary_float32 as elementary
from jaxacct.numerics.arithmetic import UnsoundBackendError
from jaxacct.numerics.elementary_float32 import LARGEST, TINY, UNIT, UNITS

CHUNK = 2**20
BLOCK = 2**15
"""Arguments in float64 at a time, so that they stay in a processor's cache."""


def less_than_two_terms(x):
    """e^x - 1 - x in float64, by its series where it would cancel."""
    small = np.abs(x) < 0.5
    found = np.expm1(x) - x
    if small.any():
        v, terms = x[small], 0.0
        for n in range(15, 2, -1):
            terms = (1 + terms) * v / n
        found[small] = 0.5 * v * v * (1 + terms)
    return found


def sin_less(x):
    """sin x - x in float64, by its series where it would cancel."""
    small = np.abs(x) < 1
    found = np.sin(x) - x
    if small.any():
        v, terms = x[small], 0.0
        w = v * v
        for n in range(9, 1, -1):
            terms = (1 + terms) * w / (-2 * n * (2 * n + 1))
        found[small] = -v * w / 6 * (1 + terms)
    return found


class Bound(NamedTuple):
    """A function, its reference in float64, its bound in units, and what that is relative to, if not the truth."""

    function: Callable
    truth: Callable
    units: float
    size: Callable = lambda x, truth: np.abs(truth)


BOUNDS = {
    "exp": Bound(elementary.exp, np.exp, UNITS.exp),
    "expm1": Bound(elementary.expm1, np.expm1, UNITS.expm1),
    "exp_remainder": Bound(elementary.exp_remainder, less_than_two_terms, UNITS.exp_remainder),
    "log": Bound(elementary.log, np.log, UNITS.log),
    "log1p": Bound(elementary.log1p, np.log1p, UNITS.log1p),
    "reciprocal": Bound(elementary.reciprocal, np.reciprocal, UNITS.reciprocal),
    "square_root": Bound(elementary.square_root, np.sqrt, UNITS.square_root),
    "cos": Bound(
        lambda x: elementary.cos_and_sin_remainders(x)[0],
        lambda x: -2 * np.sin(0.5 * x) ** 2,
        UNITS.cos_less_one,
        # 7 units of 4/7 |x| are 2 units of 2 |x|.
        lambda x, _: np.minimum(0.5 * x * x, np.where(np.abs(x) <= 2**17, 2.0, 4 / 7 * np.abs(x))),
    ),
    "sin": Bound(lambda x: elementary.cos_and_sin_remainders(x)[1], sin_less, UNITS.sin_less_argument),
    "normal_tail": Bound(elementary.normal_tail, lambda x: ndtr(-x), UNITS.normal_tail),
    "log_normal_tail": Bound(elementary.log_normal_tail, lambda x: log_ndtr(-x), UNITS.log_normal_tail),
}


@functools.cache
def program(name):
    return jax.jit(BOUNDS[name].function)


def arguments(step, offset=0):
    """Chunks of the float32 numbers, in the order of their bits, of which each ``step``-th is taken."""
    for start in range(offset, 2**32, step * CHUNK):
        bits = np.arange(start, min(start + step * CHUNK, 2**32), step, dtype=np.int64).astype(np.uint32)
        yield np.resize(bits, CHUNK).view(np.float32)


def excess(bound, x, values):
    """The errors, in units; inf where a value is NaN or infinite and the truth is not, or the other way round."""
    x, values = x.astype(np.float64), values.astype(np.float64)
    x[np.abs(x) < TINY] *= 0.0
    truth = bound.truth(x)
    error = np.abs(values - truth)
    size = np.maximum(bound.size(x, truth), TINY)
    units = error / (size * UNIT)
    # What may be flushed: results below the smallest normal number, or at it.
    units[error <= 1.0001 * TINY] = 0.0
    odd = ~np.isfinite(units)
    if odd.any() or np.abs(truth).max(initial=0.0) > LARGEST:
        rounded = np.where(np.abs(truth) > LARGEST * (1 + UNIT / 2), np.copysign(np.inf, truth), truth)
        is_same = (values == rounded) | (np.isnan(values) & np.isnan(rounded))
        units = np.where(is_same, 0.0, np.where(np.isfinite(rounded) & np.isfinite(values), units, np.inf))
    return units


def worst_of(name, step, offset=0):
    """The largest error in units, and where it is."""
    bound, worst, at = BOUNDS[name], 0.0, 0.0
    # All arguments of a step, by chunks in float32, and by blocks in float64.
    for x in arguments(step, offset):
        values = np.asarray(program(name)(x))
        for start in range(0, CHUNK, BLOCK):
            with np.errstate(all="ignore"):
                units = excess(bound, x[start : start + BLOCK], values[start : start + BLOCK])
            i = int(np.argmax(units))
            if units[i] > worst:
                worst, at = float(units[i]), float(x[start + i])
    return worst, at


@pytest.mark.first_tier("exp", "log1p")
@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_hold_for_every_251st_float32(name):
    worst, at = worst_of(name, 251)
    assert worst <= BOUNDS[name].units, at


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_hold_for_every_float32(name):
    """One in 67 of them, and all in a thorough run."""
    worst, at = worst_of(name, draws(67, 1), draws(5, 0))
    assert worst <= BOUNDS[name].units, at


def test_a_bound_that_is_too_small_is_seen():
    """The comparison sees an error of more units, a NaN, an infinity, and a number in their place."""
    bound, x = BOUNDS["exp"], np.float32([1.0, 100.0, np.nan, -3.0])
    good = np.asarray(elementary.exp(x))
    with np.errstate(all="ignore"):
        assert excess(bound, x, good).max() <= bound.units
        for i, wrong in ((0, good[0] * (1 + 2.0**-22)), (0, np.nan), (0, np.inf), (1, LARGEST), (2, 1.0), (3, 0.0)):
            values = good.copy()
            values[i] = wrong
            assert excess(bound, x, values)[i] > bound.units


def test_docstrings_state_the_bounds_that_callers_use():
    for name, units in UNITS._asdict().items():
        function = getattr(elementary, name, elementary.cos_and_sin_remainders)
        assert f"{units:g} units" in " ".join(function.__doc__.split())


NAN, INF, SMALL = math.nan, math.inf, 2.0**-140

# Arguments, and what a function has to be there: 0, -0, a subnormal of either sign, inf, -inf, NaN, and others.
ENDS = {
    "exp": ((0, 1), (-0.0, 1), (SMALL, 1), (INF, INF), (-INF, 0), (NAN, NAN), (88.75, INF), (-87.34, 0), (-3e38, 0)),
    "expm1": ((0, 0), (INF, INF), (-INF, -1), (NAN, NAN), (88.75, INF), (-3e38, -1), (-20, -1)),
    "exp_remainder": ((0, 0), (1e-20, 0), (INF, INF), (-INF, INF), (NAN, NAN), (88.75, INF)),
    "log": (
        (0, -INF),
        (-0.0, -INF),
        (SMALL, -INF),
        (-SMALL, -INF),
        (-1, NAN),
        (INF, INF),
        (-INF, NAN),
        (NAN, NAN),
        (1, 0),
    ),
    "log1p": ((0, 0), (-1, -INF), (-1.5, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)),
    "reciprocal": (
        *((0, INF), (-0.0, -INF), (SMALL, INF), (-SMALL, -INF), (INF, 0), (-INF, 0), (NAN, NAN)),
        *((TINY, 1 / TINY), (1 / TINY, TINY), (-2 / TINY, 0), (LARGEST, 0), (1, 1), (-0.25, -4)),
    ),
    "square_root": (
        (0, 0),
        (SMALL, 0),
        (-SMALL, 0),
        (-1, NAN),
        (INF, INF),
        (-INF, NAN),
        (NAN, NAN),
        (4, 2),
        (TINY, 2.0**-63),
    ),
    "cos": ((0, 0), (1e-20, 0), (INF, NAN), (-INF, NAN), (NAN, NAN)),
    "sin": ((0, 0), (1e-20, 0), (INF, NAN), (-INF, NAN), (NAN, NAN)),
    "normal_tail": ((INF, 0), (-INF, 1), (NAN, NAN), (12.98, 0), (1e20, 0), (-20, 1)),
    "log_normal_tail": ((INF, -INF), (-INF, 0), (NAN, NAN), (3e19, -INF), (-14, 0)),
}


@pytest.mark.first_tier("exp", "log")
@pytest.mark.parametrize("name", BOUNDS)
def test_the_ends_are_as_stated(name):
    x, truth = np.float32(ENDS[name]).T
    with np.errstate(all="ignore"):
        assert np.array_equal(np.asarray(program(name)(x)), truth, equal_nan=True)


BY_NAME = {name: getattr(elementary, name) for name in BOUNDS if hasattr(elementary, name)} | {
    "cos_and_sin_remainders": elementary.cos_and_sin_remainders,
    "angle": lambda x: elementary.angle(x, x * np.float32(-0.75)),
    "next_up": elementary.next_up,
}


def some_arguments(size, seed=0):
    """Numbers of all bits, of standard normal size, and from -90 to 90, in equal parts."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    parts = bits, rng.normal(size=size).astype(np.float32), rng.uniform(-90, 90, size).astype(np.float32)
    return np.concatenate(parts)


def bits_of(tree):
    return np.concatenate([np.asarray(leaf).view(np.uint32).ravel() for leaf in jax.tree.leaves(tree)])


@pytest.mark.first_tier("exp", "cos_and_sin_remainders")
@pytest.mark.parametrize("name", BY_NAME)
def test_bits_are_the_same_however_a_function_is_called(name):
    function, x = BY_NAME[name], some_arguments(1024)
    rows = x.reshape(12, 256)
    expected = bits_of(function(x))
    assert np.array_equal(expected, bits_of(jax.jit(function)(x)))
    # As one of the results of a program that goes on with it, by a product, a sum and a logarithm.
    within = jax.jit(lambda x: (function(x), jax.tree.map(lambda r: elementary.log(r * x + r).sum(), function(x))))
    assert np.array_equal(expected, bits_of(within(x)[0]))
    assert np.array_equal(expected, bits_of(jax.vmap(function)(rows)))
    scanned = jax.lax.scan(lambda carry, row: (carry, function(row)), 0, rows)[1]
    assert np.array_equal(expected, bits_of(scanned))


MADE = {
    "scaled": lambda y: y * np.float32(0.3),
    "divided": lambda y: y / 3,
    "above one": lambda y: 1 + y,
    "below one": lambda y: 1 - y,
    "less one": lambda y: y - 1,
    "squared": lambda y: y * y,
}


@pytest.mark.first_tier("log1p", "exp")
@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "angle"])
def test_what_made_an_argument_changes_no_bit(name):
    """A compiler that sees both knows constants and products of one that it could fold into the other."""
    rng = np.random.default_rng(4)
    parts = rng.uniform(-3, 3, 4096), rng.normal(size=4096) * 1e-3, rng.uniform(-90, 90, 4096)
    y = np.concatenate(parts).astype(np.float32)
    function = BY_NAME[name]
    made = jax.jit(lambda y: [function(make(y)) for make in MADE.values()])(y)
    for make, found in zip(MADE.values(), made, strict=True):
        x = np.asarray(jax.jit(make)(y))
        assert np.array_equal(bits_of(found), bits_of(function(x)))


PLAIN = {
    *("add", "subtract", "multiply", "negate", "abs", "floor", "minimum", "maximum", "compare", "select", "convert"),
    *("bitcast_convert", "and", "or", "not", "shift_left", "shift_right_arithmetic", "constant", "broadcast_in_dim"),
}
"""Operations that a device is taken to compute exactly, or rounded to nearest."""


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("name", [*BY_NAME, "normal_mass"])
def test_programs_hold_plain_operations_alone(name, platform):
    """No other is asked of a device, in whatever way JAX lowers for it, and no number of 64 bits."""
    function, x = BY_NAME.get(name, lambda x: elementary.normal_mass(x, x)), np.ones(4, np.float32)
    with jax.enable_x64(True):
        text = jax.jit(function).trace(x).lower(lowering_platforms=(platform,)).as_text()
    assert set(re.findall(r"= stablehlo\.(\w+)", text)) <= PLAIN
    assert not re.search(r"[fi]64>", text)
    assert text.count(" = ") <= 460


def test_other_types_and_derivatives_are_refused():
    for wrong in (1.0, np.float64(1.0), np.ones(2), jnp.ones(2, jnp.bfloat16), jnp.arange(2)):
        with pytest.raises(TypeError, match="exp takes arrays of float32, not of"):
            elementary.exp(wrong)
    with jax.enable_x64(True):
        with pytest.raises(TypeError, match="not of float64"):
            elementary.log(jnp.ones(2))
        assert elementary.log(jnp.ones(2, jnp.float32)).dtype == jnp.float32
    with pytest.raises(TypeError, match="bits, which have no derivative"):
        jax.grad(elementary.exp)(jnp.float32(1.0))


def test_bits_that_are_asked_for_are_exact():
    exponents = np.arange(-130, 132, dtype=np.int32)
    powers = np.ldexp(1.0, exponents)
    expected = np.where(exponents < -126, 0.0, np.where(exponents > 127, np.inf, powers))
    assert np.array_equal(np.asarray(elementary.power_of_two(exponents)), expected)
    x = some_arguments(2**16)
    with np.errstate(all="ignore"):
        size = np.abs(x.astype(np.float64))
    is_normal = np.isfinite(size) & (size >= TINY)
    expected = np.where(is_normal, np.frexp(np.where(is_normal, size, 1.0))[1] - 1, np.where(size < TINY, -127, 128))
    assert np.array_equal(np.asarray(elementary.exponent(x)), expected)


def test_neighbours_are_the_next_normal_numbers():
    x = np.concatenate([some_arguments(2**16), np.float32([0.0, -0.0, SMALL, -SMALL, TINY, -TINY, LARGEST, -LARGEST])])
    x = np.concatenate([x, np.float32([INF, -INF, NAN, 1.0, -1.0, 2.0, -2.0])])
    with np.errstate(all="ignore"):
        up = np.nextafter(x, np.float32(INF))
    small, is_below = np.abs(x) < TINY, x == -np.float32(TINY)
    up = np.where(small, np.float32(TINY), np.where(is_below, np.float32(0), up))
    assert np.array_equal(np.asarray(elementary.next_up(x)), up, equal_nan=True)
    assert np.array_equal(np.asarray(elementary.next_down(-x)), -up, equal_nan=True)


def test_angles_are_within_their_bound():
    rng = np.random.default_rng(1)
    y, x = rng.normal(size=(2, 2**18)) * np.exp(rng.uniform(-40, 40, (2, 2**18)) * rng.integers(0, 2, 2**18))
    y, x = y.astype(np.float32), x.astype(np.float32)
    # Beside pi/8, where the tangent of the difference takes over, and along the axes and diagonals.
    x[:2000] = y[:2000] * np.float32(math.sqrt(2) + 1) * (1 + np.arange(-1000, 1000, dtype=np.float32) * 1e-6)
    y[2000:2008], x[2000:2008] = [0, 1, 0, -1, 1, 3e38, 1e-38, 2.0**-126], [1, 0, -1, 0, 1, 3e38, -3e38, 2.0**-126]
    found, truth = np.asarray(elementary.angle(y, x), np.float64), np.arctan2(y.astype(np.float64), x)
    error = np.abs(found - truth)
    units = np.where(error <= 1.0001 * TINY, 0.0, error / (np.maximum(np.abs(truth), TINY) * UNIT))
    assert units.max() <= UNITS.angle
    assert elementary.angle(np.float32([0, -0.0]), np.float32([0, -1])).tolist() == [0, np.float32(math.pi)]


def test_masses_of_cells_are_within_their_bound():
    """Against Gauss' rule of 16 nodes in float64, for cells from 10^-8 to 1/8 wide to either side."""
    rng = np.random.default_rng(3)
    middle = rng.uniform(-13, 13, 2**17).astype(np.float32)
    half = np.exp(rng.uniform(math.log(1e-8), math.log(0.125), 2**17)).astype(np.float32)
    half[:1000] = 0.125
    m, d = middle.astype(np.float64), half.astype(np.float64)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    truth = sum(w * np.exp(-0.5 * (m + d * z) ** 2) for z, w in zip(nodes, weights, strict=True))
    truth *= d / math.sqrt(2 * math.pi)
    error = np.abs(np.asarray(elementary.normal_mass(middle, half), np.float64) - truth)
    units = np.where(error <= 1.0001 * TINY, 0.0, error / (truth * UNIT))
    assert units.max() <= UNITS.normal_mass
    ends = elementary.normal_mass(np.float32([0, 0, 0, 0, 20, NAN]), np.float32([0, 0.126, -0.1, NAN, 0.1, 0.1]))
    assert np.array_equal(ends, [0, NAN, NAN, NAN, 0, NAN], equal_nan=True)


def mills_far(z):
    return mpmath.ncdf(-1 / z) / mpmath.npdf(1 / z) / z


POLYNOMIALS = {
    "EXP": (lambda r: (mpmath.expm1(r) - r) / r**2, -0.3475, 0.3475, 0.07),
    "REMAINDER": (lambda x: (mpmath.expm1(x) - x) / x**2, -1.0, 1.5, 0.03),
    "LOG": (lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3, -0.29290, 0.41422, 1.1),
    "RECIPROCAL": (lambda m: 1 / m, 1.0, 2.0, 1.8e-3 / UNIT),
    "RECIPROCAL_ROOT": (lambda m: 1 / mpmath.sqrt(m), 1.0, 4.0, 7.1e-3 / UNIT),
    "SIN": (lambda w: (mpmath.sin(mpmath.sqrt(w)) / mpmath.sqrt(w) - 1) / w, 0.0, (math.pi / 4) ** 2, 0.5),
    "COS": (lambda w: (mpmath.cos(mpmath.sqrt(w)) - 1 + w / 2) / w**2, 0.0, (math.pi / 4) ** 2, 0.5),
    "SIN_LESS": (lambda w: (mpmath.sin(mpmath.sqrt(w)) / mpmath.sqrt(w) - 1) / w, 0.0, 4.0, 0.5),
    "ARCTAN": (lambda w: (mpmath.atan(mpmath.sqrt(w)) / mpmath.sqrt(w) - 1) / w, 0.0, math.tan(math.pi / 8) ** 2, 1.0),
    "MILLS": (lambda t: mpmath.ncdf(-1 - t) / mpmath.npdf(1 + t), -1.0, 1.0, 0.5),
    "MILLS_FAR": (lambda t: mills_far(mpmath.sqrt(t + 0.125)), -0.125 + 1e-3, 0.125, 0.4),
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_are_as_good_as_stated(name):
    function, low, high, units = POLYNOMIALS[name]
    coefficients = getattr(elementary, name)
    assert all(float(np.float32(c)) == pytest.approx(c, rel=1e-8) for c in coefficients)
    with mpmath.workdps(50):
        x = [mpmath.mpf(low + (high - low) * (1 - math.cos(math.pi * (i + 0.5) / 61)) / 2) for i in range(61)]
        values = [mpmath.fsum(float(np.float32(c)) * v**n for n, c in enumerate(coefficients)) for v in x]
        worst = max(abs(value / function(v) - 1) for value, v in zip(values, x, strict=True))
    assert worst <= units * UNIT * 1.02 + 1e-12


def test_this_backend_is_as_assumed():
    operations, functions = elementary.compute()
    assert elementary.failures(operations, functions) == []
    # Constants are asked as well, and what goes wrong is named.
    assert {"x + y, x constant", "x * y, constant"} <= operations.keys()
    assert {"exp, constant", "log, constant"} <= functions.keys()
    for name, values in functions.items():
        wrong = values * np.float32(1 + 2.0**-18)
        assert [line.split(" at ")[0] for line in elementary.failures({}, {name: wrong})] == [name]
    for name, values in operations.items():
        wrong = values + np.float32(2.0**-20)
        assert [line.split(" at ")[0] for line in elementary.failures({name: wrong}, {})] == [name]


def test_a_device_is_checked_once_and_refused_where_it_fails(monkeypatch):
    monkeypatch.setattr(elementary, "_sound", set())
    table = elementary._assumptions()
    few = {"log": table["log"]}
    monkeypatch.setattr(elementary, "_assumptions", lambda: few)

    def use(x):
        elementary.check()  # within a trace, too
        return x + 1

    with jax.enable_x64(True):
        assert jax.jit(use)(1.0) == 2
    assert len(elementary._sound) == 1
    few["log"] = table["log"]._replace(function=lambda x: elementary.log(x) * np.float32(1 + 2.0**-20))
    elementary.check()  # not asked again
    elementary._sound.clear()
    with pytest.raises(
        UnsoundBackendError, match=r"float32 as the certificates assume: log at .* units of roundoff off"
    ):
        elementary.check()
    assert not elementary._sound


CHECKED = """
from jaxacct.numerics import elementary_float32 as elementary
from jaxacct.numerics.arithmetic import UnsoundBackendError
try:
    elementary.check()
    print("sound")
except UnsoundBackendError as error:
    print(error)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flags", "said"), [("--xla_cpu_max_isa=AVX", "sound"), ("--xla_cpu_enable_fast_math=true", "exp at ")]
)
def test_a_device_without_contraction_passes_and_one_that_reorders_fails(flags, said):
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run([sys.executable, "-c", CHECKED], env=environment, capture_output=True, text=True, check=True)
    assert said in done.stdout
