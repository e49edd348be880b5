"""Tests of brackets that single roundings decide: tiny losses, tiny deltas, huge epsilons, many steps on one mesh."""

from fractions import Fraction

import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_judged
from helpers.oracle import gaussian_delta
from helpers.thorough import cases, draws

import jaxacct as ja
from jaxacct.numerics.precision import TINY

Q = np.array([0.25, 0.25, 0.5])
CLOSE = Q + 2.0**-46 * np.array([2.0, -5.0, 3.0]), Q


@pytest.mark.exhaustive
@pytest.mark.parametrize("relation", ["remove", "add"])
@pytest.mark.parametrize("accountant", [ja, ja.prv])
def test_losses_of_a_few_units_of_roundoff(accountant, relation):
    p, q = CLOSE if relation == "remove" else CLOSE[::-1]
    truth = sum(max(Fraction(a) - Fraction(b), Fraction(0)) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    bounds = accountant.delta(ja.DiscretePair(*CLOSE), 1, 0.0, relation=relation)
    assert Fraction(float(bounds.lower)) <= truth <= Fraction(float(bounds.upper))
    assert bounds.gap < 1e-3


def test_an_upper_bound_of_a_positive_delta_is_positive():
    assert ja.prv.delta(ja.Gaussian(1.0), 1, 38.0, points=1024).upper >= TINY
    assert ja.prv.delta(ja.Gaussian(1.0), 1, 1e4, points=1024).upper >= TINY


@pytest.mark.exhaustive
def test_delta_is_zero_beyond_the_supremum_of_the_loss():
    assert ja.prv.delta(ja.PureDP(1.0), 3, 3.01, points=1024).upper == 0
    assert ja.prv.delta(ja.PureDP(1.0), 3, 2.99, points=1024).upper > 0
    assert ja.prv.delta(ja.ApproximateDP(1.0, 1e-3), 1, 2.0, points=1024).upper == pytest.approx(1e-3, rel=1e-12)
    assert ja.prv.epsilon(ja.PureDP(1.0), 3, 1e-200, points=1024).upper < 3 * (1 + 1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("steps", "epsilon"), cases([(1, 36.0), (100, 30.0)], [(1, 20.0), (1, 30.0), (100, 20.0), (100, 36.0)])
)
def test_deltas_far_below_any_use(steps, epsilon):
    bounds = ja.prv.delta(ja.Gaussian(float(np.sqrt(steps))), steps, epsilon, tolerance=5e-3)
    assert_holds(bounds, gaussian_delta(1, epsilon), 1e-12)
    assert bounds.gap < 5e-3


def test_epsilon_of_a_tiny_delta():
    bounds = ja.prv.epsilon(ja.Gaussian(10.0), 100, 1e-290)
    assert gaussian_delta(1, bounds.upper) <= 1e-290 <= gaussian_delta(1, bounds.lower)
    assert bounds.gap < 1e-3


@pytest.mark.exhaustive
def test_a_trade_off_beyond_the_range_of_exp():
    rates = np.array([0.0, 1e-300, 0.5, 1.0])
    bounds = ja.tradeoff.curve(ja.Gaussian(0.02), 1, rates)
    assert np.all((bounds.lower >= 0) & (bounds.lower <= bounds.upper) & (bounds.upper <= 1 - rates))
    assert bounds.lower[0] > 0.99


@pytest.mark.parametrize("steps", cases([2**16], [2**18]))
def test_one_mesh_for_all_steps(steps):
    mechanism = ja.Gaussian(512.0)
    bounds = ja.prv.epsilon(mechanism, steps, 1e-5)
    assert bounds.gap <= 1e-3
    assert_judged("epsilon", mechanism, steps, 1e-5, bounds)


@pytest.mark.exhaustive
def test_random_finite_pairs_judged_exactly():
    pytest.importorskip("flint")
    from bench.studies import finite_pairs

    # The short form of the bench, which judges them by the ten thousand; those of two outcomes, which come first, are
    # the simpler ones, and programs of their own.
    record = finite_pairs.judge(finite_pairs.cases(draws(24, 120), seed=17)[draws(12, 0) :])
    assert record["prv"]["violations"] == 0, record["prv"]["first"]
    assert record["saddlepoint"]["violations"] == 0, record["saddlepoint"]["first"]
