"""The search for the least setting: what it returns passes, what it says was refuted was, and it asks seldom."""

import math
import warnings

import numpy as np
import pytest
from scipy.stats import norm

import jaxacct as ja
from jaxacct.bounds import Bounds
from jaxacct.calibrate.search import SearchAim, search_by_calls
from jaxacct.numerics.precision import kernel

TOLERANCE = 1e-4


def delta_of(noise, epsilon):
    """Returns delta of a Gaussian mechanism: Balle and Wang (2018), Theorem 8."""
    mu = 1 / noise
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@kernel
def searched(delta_at, target, start, *, whole=False, known=True, tolerance=TOLERANCE):
    """Returns the last state, and the values that were evaluated."""
    asked = []

    def evaluate(value):
        asked.append(float(value))
        low, high = delta_at(float(value))
        return Bounds(np.float64(low), np.float64(high), np.float64(high), np.bool_(True))

    real = np.float64
    ends = (real(-36.0), real(0.0)) if whole else (real(-4.0), real(30.0))
    aim = SearchAim(real(target), *ends, real(tolerance), None, rises=not whole, whole=whole)
    # The slope of a Gaussian's log delta, roughly.
    slope = real(-25.0 * float(aim.steepness()))
    return search_by_calls(evaluate, aim, real(start), slope, np.bool_(known)), asked


@pytest.mark.parametrize("seed", range(12))
def test_what_is_returned_passes_and_what_is_called_refuted_fails(seed):
    rng = np.random.default_rng(seed)
    epsilon, noise = math.exp(rng.uniform(-3, 2)), math.exp(rng.uniform(-1, 2))
    target = delta_of(noise, epsilon)
    if not 1e-200 < target < 0.9:
        pytest.skip("no target")
    blur = rng.choice([0.0, 1e-9, 1e-6])
    state, asked = searched(
        lambda value: (delta_of(value, epsilon) * (1 - blur), delta_of(value, epsilon) * (1 + blur)),
        target, math.log(noise) + rng.normal() * rng.choice([1e-6, 1e-3, 0.3]), known=bool(rng.integers(2)),
    )  # fmt: skip
    found, distance = float(state.found.value), float(state.found.distance)
    assert delta_of(found, epsilon) * (1 + blur) <= target
    assert delta_of(found * math.exp(-distance * (1 + 1e-9)), epsilon) > target
    assert distance <= TOLERANCE
    assert noise <= found * (1 + 1e-12) <= noise * (1 + 2 * TOLERANCE)
    assert len(asked) <= 8


def test_a_good_guess_takes_two_evaluations_and_the_second_is_what_is_reported():
    target = delta_of(2.0, 1.0)
    state, asked = searched(lambda value: 2 * (delta_of(value, 1.0),), target, math.log(2.0))
    assert len(asked) == 2
    assert asked[1] == state.found.value
    assert float(state.found.reached.upper) == pytest.approx(delta_of(asked[1], 1.0))


def test_nothing_is_called_near_the_least_that_was_not_refuted():
    """Bounds that say nothing below some noise: the search goes to where they do, and says how little it knows."""

    def delta_at(value):
        return (0.0, 1.0) if value < 3.0 else 2 * (delta_of(value, 1.0),)

    state, _ = searched(delta_at, delta_of(2.0, 1.0), math.log(2.0))
    assert 3.0 <= state.found.value <= 3.1
    assert state.found.distance == math.inf
    nothing, asked = searched(lambda value: (0.0, 1.0), 1e-5, 0.0)
    assert nothing.found.setting == math.inf
    assert len(asked) <= 6


@pytest.mark.parametrize("steps", [1, 2, 37, 10_000, 99_999_999])
@pytest.mark.parametrize("off", [0.0, 0.2])
def test_whole_numbers_end_at_neighbours(steps, off):
    def delta_at(value):
        return 2 * (delta_of(4e4 / math.sqrt(value), 1e-6),)

    target = math.sqrt(delta_at(steps)[0] * delta_at(steps + 1)[0])
    state, asked = searched(delta_at, target, -math.log(steps) + off, whole=True, known=off == 0.0)
    assert state.found.value == steps
    assert {steps, steps + 1} <= set(asked)


@pytest.mark.exhaustive
def test_reached_is_asked_of_what_is_returned():
    """By the public door: the bracket is of this very noise, and the budget its upper end."""
    found = ja.calibrate.noise_multiplier(0.7, 1e-6, 0.02, 700, tolerance=1e-4)
    bounds = ja.epsilon(ja.PoissonSubsampledGaussian(found.value, 0.02), 700, 1e-6)
    assert found.reached.lower <= bounds.upper
    assert bounds.lower <= found.reached.upper <= 0.7
    assert found.reached.upper - found.reached.lower < 1e-6


@pytest.mark.exhaustive
def test_most_trials_warns_of_nothing_where_the_exact_accountant_leaves_the_question_open():
    """Its bracket is judged inside the float64 scope: JAX would say that float64 was asked for outside of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = ja.calibrate.most_trials(ja.RandomizedResponse(0.1), 3, 1.0, 1e-3)
    assert law.mean > 1
