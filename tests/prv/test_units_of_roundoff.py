"""Tests that certificates count in the roundoff of the arithmetic that a program is traced for, never in float64's."""

import ast
import contextlib
import pathlib

import jax
import numpy as np
import pytest
from helpers.thorough import program

import jaxacct as ja
from jaxacct.numerics.arithmetic import FLOAT32, FLOAT64, in_float32
from jaxacct.prv import evolving
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


def certificates(points):
    """What errors of a transform, and of a number that is stored, are allowed for."""
    return {"transform": evolving.transform_error(points), "one": rounding_of_one()}


def test_certificates_grow_with_the_unit():
    with jax.enable_x64(True):
        first = certificates(1024)
        with in_float32():
            second = certificates(1024)
    unit = FLOAT32.roundoff / FLOAT64.roundoff
    assert second["transform"] / first["transform"] >= unit * 0.99
    assert second["one"] >= 32 * FLOAT32.roundoff


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
    with in_float32():
        wider = jax.jit(bound)(1.5)
    assert 1 < float(wider) / float(wide) < 1 + 1e-4


def test_stored_sums_are_never_below_and_any_device_reads_them():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(1, 4, 500) * 2.0 ** rng.integers(-200, 126, 500), [0.0, 2.0**-126, 3e38]])
    values = np.concatenate([values, -values, [np.inf]])
    for arithmetic in (contextlib.nullcontext, in_float32):
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
