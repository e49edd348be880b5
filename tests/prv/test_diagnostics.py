"""Tests of the record of a bracket, and of the flag and the warning of a tolerance."""

import warnings

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.prv import accountant

POINTS = 2**10
MECHANISM = ja.PoissonSubsampledGaussian(1.0, 0.01)


def record(steps=10_000, **options):
    return ja.prv.epsilon(MECHANISM, steps, 1e-5, points=POINTS, return_diagnostics=True, **options)


@pytest.mark.exhaustive
def test_what_is_chosen_is_recorded():
    bounds, seen = record(relation="remove")
    assert seen.points == POINTS
    assert seen.mesh > 0
    assert seen.length >= POINTS
    assert bounds.lower <= 6.1877 + 5e-5
    assert bounds.upper >= 6.1877 - 5e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", list(ja.prv.Method))
def test_every_choice_of_meshes_holds_the_same(method):
    exact = ja.epsilon(MECHANISM, 1000, 1e-5)
    bounds = ja.prv.epsilon(MECHANISM, 1000, 1e-5, points=2**13, method=method)
    assert bounds == ja.prv.epsilon(MECHANISM, 1000, 1e-5, points=2**13, method=method.value)
    assert bounds.lower <= exact.upper
    assert bounds.upper >= exact.lower
    assert bounds.gap < 0.1


def test_a_method_that_is_none_is_refused():
    with pytest.raises(ValueError, match="method = 'evolving'"):
        ja.prv.epsilon(MECHANISM, 1000, 1e-5, method="evolving")


@pytest.mark.exhaustive
def test_allowances_are_small_and_not_negative():
    bounds, seen = record()
    assert seen.order > 0
    assert np.all((seen.slack > 0) & (seen.slack < 1e-3))
    assert np.all((seen.slack_delta >= 0) & (seen.slack_delta < 1e-2 * 1e-5))
    assert np.all((seen.shift >= 0) & (seen.shift < 1e-9))
    assert seen.infinite_mass == 0
    assert 0 <= seen.lost < 1e-5
    assert seen.start < bounds.lower
    assert bounds.upper < seen.start + seen.length * seen.mesh


@pytest.mark.exhaustive
def test_infinite_losses_are_recorded():
    _, seen = ja.prv.epsilon(ja.ApproximateDP(0.1, 1e-6), 10, 1e-4, points=POINTS, return_diagnostics=True)
    truth = -np.expm1(10 * np.log1p(-1e-6))
    assert truth * (1 - 1e-12) <= seen.infinite_mass <= truth * (1 + 1e-12)


@pytest.mark.exhaustive
def test_delta_has_a_record_too():
    bounds, seen = ja.prv.delta(MECHANISM, 100, 0.5, points=POINTS, return_diagnostics=True)
    assert bounds == ja.prv.delta(MECHANISM, 100, 0.5, points=POINTS)
    assert seen.converged == bounds.converged


def test_default_tolerance_is_met_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ja.prv.ToleranceWarning)
        bounds, seen = ja.prv.epsilon(MECHANISM, 10_000, 1e-5, return_diagnostics=True)
    assert bounds.converged
    assert seen.converged
    assert bounds.gap <= 1e-3
    assert bounds.lower <= 6.1877 + 5e-5
    assert bounds.upper >= 6.1877 - 5e-5


@pytest.mark.exhaustive
def test_a_tolerance_out_of_reach_is_said_to_be(monkeypatch):
    # Two sizes in place of all: a tolerance is as far out of reach of the second as of the last, and each compiles.
    monkeypatch.setattr(accountant, "SIZES", accountant.SIZES[:2])
    with pytest.warns(ja.prv.ToleranceWarning, match="valid") as caught:
        bounds, seen = ja.prv.epsilon(ja.Gaussian(10.0), 100, 1e-5, tolerance=1e-9, return_diagnostics=True)
    assert caught[0].filename == __file__
    assert not bounds.converged
    assert not seen.converged
    assert 1e-9 < bounds.gap < 1e-4
    assert bounds.lower <= 4.377178095681225 <= bounds.upper  # mu = 1 in closed form
    assert bounds.upper >= 4.377177


@pytest.mark.exhaustive
def test_a_tolerance_that_is_not_reached_is_warned_of():
    with pytest.warns(ja.prv.ToleranceWarning, match="epsilon is known to a relative gap of"):
        # Less than the rounding that every bracket allows for, on any machine.
        bounds = ja.prv.epsilon(ja.Laplace(1.0), 40, 1e-5, tolerance=1e-15)
    assert not bounds.converged
