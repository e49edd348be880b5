"""Errors that docstrings and comments state, at the points where they are largest, against 50 digits."""

import ast
import inspect

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax.scipy.special import erf, ndtr

from jaxacct.mechanisms import normal
from jaxacct.mechanisms.normal import cosm1_and_sin
from jaxacct.mechanisms.pair import Lines, exp_remainder
from jaxacct.numerics.elementary import ASSUMED, By
from jaxacct.numerics.precision import log_complement, log_peak

U = mp.mpf(2) ** -53


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(50), jax.enable_x64(True):
        yield


def beside(*places, steps=2):
    """The places, and their neighbours in float64."""
    found = [np.asarray(places, np.float64)]
    for side in (-np.inf, np.inf):
        near = found[0]
        for _ in range(steps):
            near = np.nextafter(near, side)
            found.append(near)
    return np.concatenate(found)


def both_signs(x):
    return np.concatenate([x, -x])


def worst(found, x, truth, scale=lambda x, t: abs(t)):
    """Largest error over the scale, in units of roundoff, and where it is."""
    rows = []
    for value, at in zip(np.asarray(found), np.asarray(x), strict=True):
        t = truth(mp.mpf(float(at)))
        size = scale(mp.mpf(float(at)), t)
        rows.append((abs(mp.mpf(float(value)) - t) / (size * U) if size else mp.mpf(0), float(at)))
    return max(rows)


# Beside branch points of XLA's functions, and at the worst of 10^7 random points.
ARGUMENTS = {
    "exp": beside(-708.0, 709.0, 0.34657359, -0.34657359, -301.1531819476038, 102.93377412905261),
    "expm1": np.concatenate([beside(0.5, -0.5, 0.25, -0.25, 0.34657359), [0.007950556538045382, 0.03420704460655065]]),
    "log": np.concatenate([beside(0.5, 2.0, 0.70710678, 1.41421356), [0.9999999999999998, 1.1334402709424043]]),
    "log1p": np.concatenate([beside(0.25, 0.41421356), [-0.25, 0.41491111766223276, 0.42076820737999665]]),
    "tanh": np.array([-17.001317345351186, 15.821456461354451, 14.134465163319444, 19.999907016887686, 0.625, 1e-9]),
    "erf": np.concatenate([beside(0.5, 1.0), [1e-300, 8.850213623207906e-4, 5.9]]),
    "ndtr": -np.concatenate([beside(1.0, 1.41421356, 0.70710678, 8.0, 37.5), [1.2792429877160936, 1e-9]]),
}
TRUTHS = {"ndtr": mp.ncdf} | {name: getattr(mp, name) for name in ARGUMENTS if name != "ndtr"}


@pytest.mark.parametrize("by", By, ids=lambda by: by.name)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_functions_err_by_no_more_than_certificates_assume(name, by):
    function, x = {"erf": erf, "ndtr": ndtr}.get(name, ASSUMED[name].function), ARGUMENTS[name]
    # In vectors, as any program has them: for a few operands XLA makes other code.
    filled = np.concatenate([x, np.full(1024 - len(x), x[0])])
    found = jax.jit(lambda v: function(v)).lower(filled).compile(by.options)(filled)[: len(x)]
    scale = (lambda x, t: t * (1 + x * x)) if name == "ndtr" else (lambda x, t: abs(t))
    units, at = worst(found, x, TRUTHS[name], scale)
    assert units <= ASSUMED[name].units, at


@pytest.mark.first_tier("True")
@pytest.mark.parametrize("jit", [False, True])
def test_remainders_and_complements_at_their_switches(jit):
    compiled = jax.jit if jit else lambda function: function
    x = np.concatenate([beside(0.5, -0.5, 0.25), both_signs(np.geomspace(1e-150, 0.5, 40)), [0.49705615110115525]])
    found = compiled(lambda x: exp_remainder(x, jnp.expm1(x)))(x)

    def remainder(x):
        return mp.expm1(x) - x if abs(x) > 1e-6 else x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))

    inside = np.abs(x) <= 0.5
    assert worst(found[inside], x[inside], remainder)[0] <= 22.5
    assert worst(found[~inside], x[~inside], remainder)[0] <= 16 * 8
    p = np.concatenate([beside(0.25, 0.5), np.geomspace(1e-300, 0.2, 20), 1 - np.geomspace(1.2e-16, 0.4, 20)])
    assert worst(compiled(log_complement)(p), p, lambda p: mp.log1p(-p))[0] <= 8
    t = np.geomspace(1e-300, 1e300, 60)
    found = compiled(log_peak)(t)
    assert worst(found, t, lambda t: -t * mp.log1p(1 / t) - mp.log1p(t), lambda t, _: 1 + mp.log1p(t))[0] <= 8


def constant(function, name):
    """The value that a function of the normal law's module gives a name of its own."""
    for node in ast.walk(ast.parse(inspect.getsource(normal))):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
                    return ast.literal_eval(each.value)
    raise LookupError(name)


def test_parts_of_turns_are_short_enough():
    turn, whole = constant("cosm1_and_sin", "turn"), 2 * mp.pi
    assert all(float(part).as_integer_ratio()[0].bit_length() <= 33 for part in turn[:2])
    assert abs(sum(map(mp.mpf, turn)) - whole) < whole * mp.mpf(2) ** -95


def test_the_series_of_a_quarter_s_sine_is_as_near_as_is_said():
    series = (1.0, *constant("cosm1_and_sin", "series"))

    def off(r):
        return abs(sum(mp.mpf(c) * r ** (2 * n) for n, c in enumerate(series)) / (mp.sin(r) / r) - 1)

    assert max(off(mp.mpf(i) / 1000) for i in range(1, 786)) <= mp.mpf("2.1e-17")


AT_TURNS = np.concatenate([beside(*(k * np.pi / 4 for k in range(-40, 41) if k)), [-217414.84770036617, 1e-300, 1e-8]])


@pytest.mark.parametrize("jit", [False, True])
def test_sines_next_to_zeros_and_switches(jit):
    compiled = jax.jit if jit else lambda function: function
    less, sine = compiled(cosm1_and_sin)(AT_TURNS)
    assert worst(less, AT_TURNS, lambda x: -2 * mp.sin(x / 2) ** 2, lambda x, _: abs(x))[0] <= 5
    assert worst(sine, AT_TURNS, mp.sin, lambda x, _: abs(x))[0] <= 5


@pytest.mark.parametrize("step", [0.1, 3.0, 60.0, 1e4])
def test_a_rule_s_error_is_no_less_than_the_theorem_s(step):
    """Also where it is near 1 and more, as for long steps."""
    lines = Lines(jnp.array([1.0]), jnp.array([0.3]), jnp.zeros(1), jnp.zeros(1))
    found = mp.mpf(float(lines.log_error(jnp.float64(1.0), 0.0, jnp.float64(step))))
    assert found >= mp.log(2 * mp.exp(mp.mpf(0.3)) / mp.expm1(2 * mp.pi / step)) - 64 * U
