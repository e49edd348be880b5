"""Tests of brackets as they are read, printed and rounded, and of the names that the top level shows."""

import decimal
import math

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import filters, odometers

NUMBERS = np.random.default_rng(0).lognormal(sigma=20.0, size=300).tolist()


def bracket(lower: float, upper: float, converged: bool = True) -> ja.Bounds:
    return ja.Bounds(np.float64(lower), np.float64(lower), np.float64(upper), np.asarray(converged)[()])


@pytest.mark.parametrize("spec", [".0f", ".4f", ".3e", ".5g", "12.2f", "e", "g", "f", "12", "_.2f", "#.3g"])
def test_a_formatted_bracket_is_its_upper_end_and_never_below_it(spec):
    for number in NUMBERS:
        text = f"{bracket(0.0, number):{spec}}"
        shown = decimal.Decimal(text.strip().replace("_", ""))
        assert shown >= decimal.Decimal(number) or (spec == "12" and float(shown) == number)
        assert len(text) <= len(f"{number:{spec}}") + 3
        assert float(f"{number:{spec}}") <= float(shown)


def test_a_printed_bracket_holds_the_bracket_and_is_short():
    for number in NUMBERS:
        for gap in (0.0, 1e-15, 1e-9, 1e-3, 0.5, 1.0):
            found = bracket(number * (1 - gap), number)
            lower, upper = map(decimal.Decimal, str(found)[1:-1].split(", "))
            assert lower <= decimal.Decimal(float(found.lower))
            assert upper >= decimal.Decimal(number)
            assert len(repr(found)) < 45


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        (bracket(2.15340123, 2.15340127), "[2.153401, 2.153402]"),
        (bracket(0.0, 0.0), "[0, 0]"),
        (bracket(-0.0, -0.0), "[0, 0]"),
        (bracket(2.0, math.inf, False), "[2, inf] not converged"),
        (ja.Bounds(np.array([1.0, 2.0]), np.zeros(2), np.array([3.0, 4.0]), np.array([True, False])),
         "(2,) within [1, 4], 1 not converged"),
    ],
)  # fmt: skip
def test_printed(bounds, shown):
    assert str(bounds) == f"{bounds}" == shown
    assert repr(bounds) == f"Bounds({shown})"


def test_a_bracket_as_a_float_is_its_upper_end():
    assert float(bracket(1.0, 2.0)) == 2.0
    with pytest.raises(TypeError, match=r"shape \(3,\)"):
        float(ja.Bounds(np.zeros(3), np.zeros(3), np.ones(3)))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda upper: float(ja.Bounds(upper, upper, upper)))(1.0)


def test_every_tree_of_a_bracket_prints():
    leaves = bracket(1.0, 2.0)
    assert "Bounds" in repr(jax.tree.map(lambda leaf: None, leaves))
    assert "Bounds" in repr(jax.tree.map(lambda leaf: object(), leaves))
    assert "Bounds" in jax.eval_shape(lambda upper: ja.Bounds(upper, upper, upper), 1.0).__repr__()
    shown = []
    jax.jit(lambda upper: shown.append(repr(ja.Bounds(upper, upper, upper))))(1.0)
    assert "Bounds" in shown[0]


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        (filters.RenyiFilter, (1.0, 1e-5)),
        (filters.GDPFilter, (1.0, 1e-5)),
        (filters.ApproximateDPFilter, (1.0, 1e-5)),
        (odometers.RenyiOdometer, (1e-5,)),
        (odometers.FilterOdometer, (1e-5,)),
    ],
)
def test_a_ledger_prints_short_and_everywhere(kind, budget):
    ledger, shown = kind(*budget), []
    assert repr(ledger).startswith(f"{kind.__name__}(")
    assert len(repr(ledger)) < 200
    jax.eval_shape(lambda each: shown.append(repr(each)), ledger)
    assert kind.__name__ in shown[0]


def test_the_top_level_shows_the_api_and_nothing_else():
    assert sorted(dir(ja)) == sorted([*ja.__all__, "__version__"])
    for name in dir(ja):
        assert getattr(ja, name) is not None


def test_brackets_that_contradict_each_other_are_no_bracket_turned_round():
    low, high = (ja.Bounds(*map(np.float64, ends), np.True_) for ends in ((1.0, 1.5, 2.0), (3.0, 3.5, 4.0)))
    for one, other in ((low, high), (high, low)):
        both = one.intersection(other)
        assert (both.lower, both.upper, bool(both.converged)) == (1.0, 4.0, False)
    shared = low.intersection(ja.Bounds(*map(np.float64, (2.0, 2.5, 3.0)), np.False_))
    assert (shared.lower, shared.upper, bool(shared.converged)) == (2.0, 2.0, True)


@pytest.mark.parametrize("at", [0.0, 1e-3, 0.3])
def test_what_has_converged_is_as_narrow_as_its_question_asks(at):
    """Near an epsilon of 0 the rule's own terms may be known far worse than the sum."""
    rng = np.random.default_rng(5)
    for mechanism, steps in [(ja.PoissonSubsampledGaussian(0.8542, 0.1346), 7)] + [
        (
            ja.PoissonSubsampledGaussian(*np.exp(rng.uniform(np.log([0.5, 1e-2]), np.log([3, 0.9])))),
            int(rng.integers(2, 60)),
        )
        for _ in range(12)
    ]:
        delta = ja.saddlepoint.delta(mechanism, steps, at)
        assert not delta.converged or delta.gap <= 1e-2
        assert np.isnan(delta.estimate) == (not delta.converged)
        epsilon = ja.saddlepoint.epsilon(mechanism, steps, max(float(delta.lower), 1e-9))
        assert not epsilon.converged or epsilon.upper - epsilon.lower <= 1e-3 * epsilon.upper + 1e-6
