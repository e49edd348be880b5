"""Compositions of finitely many outcomes, against the sum over all multisets of outcomes in 60 digits."""

import itertools

import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_inverts
from helpers.oracle import finite_delta
from helpers.thorough import cases
from test_single_steps import approximate_dp, discrete_laplace, randomized_response

import jaxacct as ja

POINTS = 2**10


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", cases([7, 200], [2, 64]))
def test_pure_dp_composed(steps):
    for level in cases([0.01, 2.0], [0.3]):
        pair = randomized_response(level, 2)
        for share in (0.0, 0.1, 0.5, 0.9):
            epsilon = share * level * steps
            assert_holds(
                ja.prv.delta(ja.PureDP(level), steps, epsilon, points=POINTS), finite_delta(*pair, steps, epsilon)
            )


@pytest.mark.first_tier("30")
@pytest.mark.parametrize("steps", cases([2, 30], [200]))
def test_randomized_response_composed(steps):
    pair = randomized_response(0.8, 5)
    merged = [pair[0][0], sum(pair[0][1:-1]), pair[0][-1]], [pair[1][0], sum(pair[1][1:-1]), pair[1][-1]]
    for epsilon in (0.0, 1.0, 10.0):
        truth = finite_delta(*merged, steps, epsilon)
        assert_holds(ja.prv.delta(ja.RandomizedResponse(0.8, outcomes=5), steps, epsilon, points=POINTS), truth)


def approximate_dp_delta(level, delta, steps, epsilon):
    """Infinite losses of any step, or else the binomial law (Kairouz, Oh and Viswanath 2015)."""
    with mpmath.workdps(60):
        none = (1 - mpmath.mpf(delta)) ** steps
        return 1 - none + none * finite_delta(*randomized_response(level, 2), steps, epsilon)


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", cases([5, 200], [1]))
def test_approximate_dp_composed(steps):
    for level, delta in ((0.1, 1e-9), (0.5, 1e-3), (1.0, 0.2)):
        mechanism = ja.ApproximateDP(level, delta)
        for epsilon in (0.0, 0.3 * level * steps, 2 * level * steps):
            truth = approximate_dp_delta(level, delta, steps, epsilon)
            assert_holds(ja.prv.delta(mechanism, steps, epsilon, points=POINTS), truth)


@pytest.mark.exhaustive
def test_published_guarantees_that_differ_compose_to_the_optimum():
    """Heterogeneous, after Murtagh and Vadhan (2016): the sum over all outcomes of randomized responses."""
    levels, deltas, times = np.array([0.1, 0.4, 0.7]), np.array([1e-7, 0.0, 1e-4]), np.array([4, 3, 1])
    runs = np.repeat(levels, times)
    signs = np.array(list(itertools.product((1, -1), repeat=len(runs))))
    losses, p = signs @ runs, np.prod(1 / (1 + np.exp(-signs * runs)), axis=1)
    none = np.prod((1 - deltas) ** times)
    for epsilon in (0.0, 1.0, 2.2):
        truth = 1 - none + none * np.sum(p * np.maximum(-np.expm1(epsilon - losses), 0.0))
        assert_holds(ja.prv.delta(ja.ApproximateDP(levels, deltas), times, epsilon, points=POINTS), truth, 1e-15)


@pytest.mark.exhaustive
def test_epsilon_of_approximate_dp_composed():
    for level, delta, steps in ((0.1, 1e-9, 100), (0.5, 1e-6, 10), (1.0, 1e-3, 200)):
        wanted = 2 * steps * delta
        bounds = ja.prv.epsilon(ja.ApproximateDP(level, delta), steps, wanted, points=POINTS)
        assert bounds.upper < float("inf")
        assert_inverts(bounds, lambda e, row=(level, delta, steps): approximate_dp_delta(*row, e), wanted)


def test_two_runs_of_a_single_step_agree_with_the_enumeration():
    p, q = approximate_dp(0.5, 0.01)
    assert abs(finite_delta(p, q, 3, 0.7) - approximate_dp_delta(0.5, 0.01, 3, 0.7)) < mpmath.mpf(10) ** -50


@pytest.mark.parametrize("steps", cases([6], [2, 40]))
def test_discrete_laplace_composed(steps):
    for scale in (0.7, 4.0):
        p, q = discrete_laplace(scale, 2)
        middle = len(p) // 2 + 1  # the outcome 1 has the loss 0; those beyond 0 and 2 have the losses of these
        merged = [[sum(v[:middle]), v[middle], sum(v[middle + 1 :])] for v in (p, q)]
        for epsilon in (0.0, 0.5, steps / scale):
            truth = finite_delta(*merged, steps, epsilon)
            # What the enumeration cuts off weighs e^-150.
            assert_holds(
                ja.prv.delta(ja.DiscreteLaplace(scale, sensitivity=2), steps, epsilon, points=POINTS), truth, 1e-50
            )
