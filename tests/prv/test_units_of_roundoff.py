"""Tests that certificates count in the roundoff of the arithmetic that a program is traced for, never in float64's."""

import ast
import contextlib
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import program

import jaxacct as ja
from jaxacct.numerics.arithmetic import FLOAT64, PAIR, in_pairs
from jaxacct.prv.compose import _move, log_moments, spectrum_of
from jaxacct.prv.plan import RATES, Plan
from jaxacct.rounded_sum import RoundedSum, rounding_of_one

PACKAGE = pathlib.Path(ja.__file__).parent

ROOMS = ("prv", "convert", "calibrate")
MODULES = (
    "rdp.py",
    "filters.py",
    "odometers.py",
    "ledger.py",
    "rounded_sum.py",
    "gdp.py",
    "tradeoff.py",
    "iteration.py",
)

ROUNDING_NAMES = {"UNIT_ROUNDOFF", "FUNCTION", "FLOAT64", "nextafter", "finfo", "ldexp", "frexp"}

ALLOWED = {
    ("prv/plan.py", "ldexp"): "a table made by NumPy",
    ("prv/plan.py", "2e-14"): "ROUNDING, by which a choice is made",
    ("prv/plan.py", "1e-12"): "goals and meshes, of choices",
    ("prv/accountant.py", "1e-12"): "a delta",
    ("prv/evolving.py", "ldexp"): "a power of two, exact in any type",
    ("calibrate/search.py", "1e-12"): "a sampling rate",
    ("filters.py", "2.0**-46"): "what is stored of log 1/delta is two float32 numbers, rounded up",
    ("convert/one_parameter.py", "4e-14"): "Python's own floats",
    ("convert/one_parameter.py", "1e-12"): "likewise",
    ("tradeoff.py", "1e-13"): "a gap that no mesh needs to close",
    ("rounded_sum.py", "UNIT_ROUNDOFF"): "binomial tails are Python's own floats",
    ("rounded_sum.py", "finfo"): "of a narrower type, in which a curve came in",
    ("rounded_sum.py", "nextafter"): "of float32, which every device has",
    ("rounded_sum.py", "2.0**-47"): "what two float32 numbers hold",
}
"""Each with its reason. Numbers: those of the size of a rounding, outside ``scale_error``."""


def uses(tree):
    """Names and numbers of rounding in a module, but for those that ``scale_error`` is told of."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "scale_error":
        return
    if isinstance(tree, (ast.Import, ast.ImportFrom)):
        return
    name = getattr(tree, "id", getattr(tree, "attr", None))
    if isinstance(tree, (ast.Name, ast.Attribute)) and name in ROUNDING_NAMES:
        yield name
    if isinstance(tree, ast.Constant) and isinstance(tree.value, float) and 1e-16 <= tree.value <= 1e-11:
        yield f"{tree.value:g}"
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow) and ast.unparse(tree.left) == "2.0":
        power = ast.unparse(tree.right)
        if power.startswith("-") and power[1:].isdigit() and 44 <= int(power[1:]) <= 60:
            yield f"2.0**{power}"
    for part in ast.iter_child_nodes(tree):
        yield from uses(part)


def test_no_traced_module_keeps_the_unit_of_float64():
    paths = [path for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py"))]
    found = {
        (path.relative_to(PACKAGE).as_posix(), use)
        for path in (*paths, *(PACKAGE / name for name in MODULES))
        for use in uses(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(ALLOWED)


POINTS = 128


def certificates(weights, about):
    """Of a step of random weights: what errors of spectra and moments are allowed for."""
    plan = Plan(*[jnp.ones(())] * 4, *[jnp.asarray(0.01)] * 2, *[jnp.zeros(())] * 5)._replace(length=jnp.asarray(1e6))
    errors = [spectrum_of(POINTS, weights, about, plan._replace(is_whole=jnp.asarray(w)))[1] for w in (True, False)]
    kappa = log_moments(weights, about, jnp.asarray(1e-3), jnp.zeros(2))
    exact = jnp.log1p(jnp.sum(weights[:, None] * jnp.expm1(RATES[None, :, None] * 1e-3 * about), axis=2))
    return {"whole": errors[0], "low": errors[1], "kappa": kappa[0, 9] - exact[0, 9], "one": rounding_of_one()}


def test_certificates_grow_with_the_unit():
    weights = np.random.default_rng(0).uniform(size=(2, POINTS))
    weights, about = weights / weights.sum(axis=1, keepdims=True), np.arange(POINTS) - 64.0
    with jax.numpy_rank_promotion("allow"), jax.enable_x64(True):
        first = jax.device_get(program(certificates)(weights, about))
        with in_pairs():
            second = jax.device_get(program(certificates)(weights, about))
    unit = PAIR.roundoff / FLOAT64.roundoff
    # Pairs have a transform of their own, with a constant of its own; to neither eight units are added.
    assert second["whole"] / first["whole"] >= unit * PAIR.of_level / 12 * 0.99
    assert second["low"] / first["low"] == pytest.approx(unit, rel=1e-9)
    assert first["kappa"] > 0
    assert second["kappa"] / first["kappa"] > unit / 4
    assert second["one"] >= 32 * PAIR.roundoff


@pytest.mark.parametrize("function", ["rdp", "convert", "filter"])
def test_bounds_grow_with_the_unit(function):
    """No constant of a bound that is traced anew stays as it was."""

    def bound(number):
        if function == "rdp":
            return ja.rdp.curve(ja.Gaussian(number), [8.0])[0]
        if function == "convert":
            return ja.convert.rdp_to_epsilon(number * np.ones(1), [8.0], 1e-5)
        return ja.filters.ZCDPFilter(1.0, 1e-5).spend(ja.Gaussian(10 * number), 3)[1].spent

    wide = jax.jit(bound)(1.5)
    with in_pairs():
        wider = jax.jit(bound)(1.5)
    assert 1 < float(wider) / float(wide) < 1 + 1e-6


def test_stored_sums_are_never_below_and_any_device_reads_them():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(1, 4, 500) * 2.0 ** rng.integers(-200, 126, 500), [0.0, 2.0**-126, 3e38]])
    values = np.concatenate([values, -values, [np.inf]])
    for arithmetic in (contextlib.nullcontext, in_pairs):
        with jax.enable_x64(True), arithmetic():
            stored = program(RoundedSum.above)(values)
        high, low = (np.asarray(part, np.float64) for part in (stored.high, stored.low))
        total = np.where(np.isinf(high), high, high + low)
        assert np.all(total >= values)
        large = np.isfinite(values) & (np.abs(values) >= 2.0**-70)
        assert np.all(total[large] - values[large] <= 2.0**-47 * np.abs(values[large]))
        assert np.all((total == 0)[values == 0])
        # The sum of both has 53 bits.
        finite = np.isfinite(high)
        assert np.all(low[finite] == total[finite] - high[finite])


def test_masses_without_an_error_stay():
    masses, errors = np.array([0.3, 1e-9, 0.7, 0.0]), np.array([0.0, 0.0, 1e-10, 0.0])
    for arithmetic in (contextlib.nullcontext, in_pairs):
        with jax.enable_x64(True), arithmetic():
            down, up = map(np.asarray, program(lambda m, e: (_move(m, e, -1.0), _move(m, e, 1.0)))(masses, errors))
        assert np.all(down[:2] == masses[:2])
        assert np.all(up[:2] == masses[:2])
        assert down[2] < masses[2] - errors[2] < masses[2] + errors[2] < up[2]
        assert up[3] > 0
