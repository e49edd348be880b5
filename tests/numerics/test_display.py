"""Bounds as text, wherever the package prints one: never on the wrong side of the number."""

import ast
import pathlib
from decimal import Decimal, localcontext

import numpy as np
import pytest

from jaxacct import display

PACKAGE = pathlib.Path(__file__).parents[2] / "jaxacct"

SPECS = [".0f", ".4f", ".3e", ".5g", "12.2f", "e", "g", "f", "12", "_.2f", "#.3g", ".2%", ".17g", "n"]
NUMBERS = (np.random.default_rng(0).lognormal(sigma=20.0, size=300) * np.tile([1, -1], 150)).tolist()


def number(text: str) -> Decimal:
    plain = text.strip().replace("_", "").replace(",", "")
    with localcontext(prec=400):
        return Decimal(plain[:-1]) / 100 if plain.endswith("%") else Decimal(plain)


@pytest.mark.parametrize("spec", SPECS)
def test_texts_hold_the_number_between_them(spec):
    for value in [*NUMBERS, 1e-5, 0.1, 2.0, 999999.5, 5e-324, 1.7e308]:
        for given, exact in ((value, Decimal(repr(value))), (Decimal(value), Decimal(value))):
            if spec == "12" and isinstance(given, Decimal):  # a width alone: the shortest text of the float
                continue
            assert number(display.rounded_down(given, spec)) <= exact <= number(display.rounded_up(given, spec))


@pytest.mark.parametrize("value", [1e-5, 0.1, 2.0, 123456.0, 1e22, -0.25])
def test_what_is_written_in_few_digits_stays_as_it_is(value):
    assert display.rounded_up(value) == display.rounded_down(value) == f"{value:.6g}"


@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan])
def test_what_has_no_digits(value):
    assert display.rounded_up(value) == display.rounded_down(value) == f"{value + 0.0:.6g}"


BOUNDS = {"upper", "lower", "epsilon", "delta", "spent_epsilon", "renyi_epsilon", "overflow_delta",
          "epsilon_renyi", "epsilon_certified", "cut_probability", "budget", "p_value", "bound"}  # fmt: skip


def named(node: ast.AST) -> set[str]:
    """The names that an expression reads, as attributes, variables or keys."""
    return {
        name
        for part in ast.walk(node)
        for name in (getattr(part, "id", None), getattr(part, "attr", None), getattr(part, "value", None))
        if isinstance(name, str)
    }


def test_no_bound_is_formatted_to_nearest():
    """Outside of errors, which repeat what was given, and of examples, every text of a bound is made by one helper."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
        wrong += [
            f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None and id(node) not in raised
            if named(node.value) & BOUNDS
        ]
    assert not wrong
