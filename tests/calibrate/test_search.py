"""The search for the least setting: what it returns passes, what it says was refuted was, and it asks seldom."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from scipy.stats import norm

import jaxacct as ja
from jaxacct.bounds import Bounds
from jaxacct.calibrate.search import SearchAim, search, start_at
from jaxacct.numerics.precision import kernel, leave_scope

TOLERANCE = 1e-4


def delta_of(noise, epsilon):
    """Returns delta of a Gaussian mechanism: Balle and Wang (2018), Theorem 8."""
    mu = 1 / noise
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@kernel
def searched(delta_at, target, start, *, whole=False, narrows=False, tolerance=TOLERANCE):
    """Returns the last state, and the values that were evaluated."""
    asked = []

    def evaluate(state, _):
        asked.append(float(state.value))
        low, high = delta_at(float(state.value), float(state.gap)) if narrows else delta_at(float(state.value))
        return Bounds(np.float64(low), np.float64(high), np.float64(high), np.bool_(True))

    real = np.float64
    ends = (real(-36.0), real(0.0)) if whole else (real(-4.0), real(30.0))
    aim = SearchAim(
        real(target), *ends, real(tolerance), real(start), real(0.0), rises=not whole, is_whole=whole, narrows=narrows
    )
    # The slope of a Gaussian's log delta, roughly.
    aim = dataclasses.replace(aim, slope=real(-25.0 * float(aim.steepness())))
    return search(evaluate, aim, leave_scope(start_at(aim))), asked


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
        target, math.log(noise) + rng.normal() * rng.choice([1e-6, 1e-3, 0.3]),
    )  # fmt: skip
    found, distance = float(state.best_value), float(state.best - state.refuted)
    assert delta_of(found, epsilon) * (1 + blur) <= target
    assert delta_of(found * math.exp(-distance * (1 + 1e-9)), epsilon) > target
    assert distance <= TOLERANCE
    assert noise <= found * (1 + 1e-12) <= noise * (1 + 2 * TOLERANCE)
    assert len(asked) <= 8


def test_a_good_guess_takes_few_evaluations_and_the_last_is_what_is_reported():
    target = delta_of(2.0, 1.0)
    state, asked = searched(lambda value: 2 * (delta_of(value, 1.0),), target, math.log(2.0) + 1e-3)
    assert len(asked) <= 4
    assert asked[-1] == state.best_value
    assert float(state.reached.upper) == delta_of(asked[-1], 1.0)


@pytest.mark.parametrize("width", [1e-3, 1e-2])
def test_narrower_brackets_are_asked_for_where_usual_ones_end_far_from_the_least(width):
    """From the best setting by usual ones, whose narrow bracket is the first; and as few as are needed."""

    gaps = []

    def delta_at(value, gap):
        gaps.append(gap)
        return delta_of(value, 1.0) * (1 - min(gap, width)), delta_of(value, 1.0)

    target = delta_of(2.0, 1.0)
    state, asked = searched(delta_at, target, math.log(2.0) + 0.1, narrows=True, tolerance=1e-6)
    first = next(i for i, gap in enumerate(gaps) if gap < math.inf)
    assert asked[first] in asked[:first]
    assert len(asked) - first <= 5
    assert 1e-9 <= gaps[-1] <= 2e-4
    assert 0 <= state.best - state.refuted <= 1e-6
    assert delta_of(float(state.best_value), 1.0) <= delta_of(2.0, 1.0)


def test_brackets_that_get_no_narrower_end_a_search():
    gaps = []

    def delta_at(value, gap):
        gaps.append(gap)
        return delta_of(value, 1.0) * 0.99, delta_of(value, 1.0)

    state, _ = searched(delta_at, delta_of(2.0, 1.0), math.log(2.0), narrows=True, tolerance=1e-6)
    assert len([gap for gap in gaps if gap < math.inf]) <= 1
    assert 2.0 <= float(state.best_value) <= 2.02


@pytest.mark.parametrize("off", [-1.0, 0.3, 2.0])
def test_upper_bounds_alone_lead_to_the_least(off):
    """As those of curves, which refute nothing: within the tolerance of a setting that failed."""
    state, asked = searched(lambda value: (0.0, delta_of(value, 1.0)), delta_of(2.0, 1.0), math.log(2.0) + off)
    assert 2.0 <= float(state.best_value) <= 2.0 * (1 + 1.01 * TOLERANCE)
    assert state.refuted == -math.inf
    assert len(asked) <= 10


def test_nothing_is_called_near_the_least_that_was_not_refuted():
    """Bounds that say nothing below some noise: the search goes to where they do, and says how little it knows."""

    def delta_at(value):
        return (0.0, 1.0) if value < 3.0 else 2 * (delta_of(value, 1.0),)

    state, _ = searched(delta_at, delta_of(2.0, 1.0), math.log(2.0))
    assert 3.0 <= state.best_value <= 3.1
    assert state.best - state.refuted == math.inf
    nothing, asked = searched(lambda value: (0.0, 1.0), 1e-5, 0.0)
    assert nothing.best == math.inf
    assert len(asked) <= 6


@pytest.mark.parametrize("steps", [1, 2, 37, 10_000, 99_999_999])
@pytest.mark.parametrize("off", [0.0, 0.2])
def test_whole_numbers_end_at_neighbours(steps, off):
    def delta_at(value):
        return 2 * (delta_of(4e4 / math.sqrt(value), 1e-6),)

    target = math.sqrt(delta_at(steps)[0] * delta_at(steps + 1)[0])
    state, asked = searched(delta_at, target, -math.log(steps) + off, whole=True)
    assert state.best_value == steps
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
