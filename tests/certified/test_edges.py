"""The ends of every range: what costs nothing, what delta 0 and epsilon infinity ask for, what lies next to them."""

import warnings
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import cases

import jaxacct as ja

LAW_OF_TWO = (ja.PureDP(1.0), ja.PureDP(2.0))
ACCOUNTANTS = {"best": ja, "exact": ja.saddlepoint, "mesh": ja.prv}

FREE = {
    "pure": ja.PureDP(0.0),
    "response": ja.RandomizedResponse(0.0, outcomes=3),
    "approximate": ja.ApproximateDP(0.0, 0.0),
    "gaussian": ja.Gaussian(np.inf),
    "laplace": ja.Laplace(np.inf),
    "unsampled": ja.PoissonSubsampledGaussian(1.0, 0.0),
    "unsampled without noise": ja.PoissonSubsampledGaussian(0.0, 0.0),
    "unsampled laplace": ja.PoissonSubsampledLaplace(2.0, 0.0),
    "mixture": ja.GaussianMixture(np.inf, [1.0, 2.0], [0.5, 0.5]),
    "fixed size": ja.GaussianWithoutReplacement(np.inf, 0.5),
    "allocation": ja.RandomAllocation(np.inf, 10),
    "integers": ja.DiscreteLaplace(np.inf),
    "same": ja.DiscretePair([0.25, 0.75], [0.25, 0.75]),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ja.prv.ToleranceWarning)
        yield


@pytest.mark.parametrize("name", FREE)
def test_what_releases_nothing_costs_exactly_nothing(name):
    mechanism = FREE[name]
    relation = mechanism.relations[0]
    for accountant in (ja, ja.prv):
        for bounds in (
            accountant.epsilon(mechanism, 2**40, 1e-9, relation=relation),
            accountant.epsilon(mechanism, 3, 0.0, relation=relation),
            accountant.delta(mechanism, 3, 0.0, relation=relation),
        ):
            assert (bounds.lower, bounds.estimate, bounds.upper, bounds.converged) == (0, 0, 0, True)


@pytest.mark.exhaustive
def test_what_releases_nothing_adds_nothing():
    some = ja.PoissonSubsampledGaussian(1.0, 0.01)
    together = ja.epsilon((some, ja.Gaussian(np.inf), ja.PureDP(0.0)), (1000, 10, 10), 1e-5)
    assert together.upper == pytest.approx(ja.epsilon(some, 1000, 1e-5).upper, rel=1e-12)
    rows = ja.PoissonSubsampledGaussian(np.array([1.0, np.inf, 2.0]), np.array([0.01, 0.5, 0.0]))
    assert ja.epsilon(rows, np.array([1000, 7, 7]), 1e-5).upper == pytest.approx(together.upper, rel=1e-12)


@pytest.mark.exhaustive
def test_nothing_and_something_inside_one_batch():
    """A traced field that is at its edge costs 0; one that is out of range still costs inf."""

    def upper(noise, rate):
        return ja.saddlepoint.epsilon(ja.PoissonSubsampledGaussian(noise, rate), 1000, 1e-5, relation="remove").upper

    noise, rate = np.array([1.0, np.inf, 1.0, np.inf, np.nan, -1.0]), np.array([0.01, 0.01, 0.0, 2.0, 0.0, 0.0])
    found = np.asarray(jax.jit(jax.vmap(upper))(jnp.asarray(noise), jnp.asarray(rate)))
    assert found[0] == pytest.approx(1.8282366, rel=1e-6)
    np.testing.assert_array_equal(found[1:], [0, 0, np.inf, np.inf, np.inf])


def test_a_count_that_is_no_number_of_runs_costs_inf_whatever_is_run():
    def upper(noise, steps):
        return ja.saddlepoint.epsilon(ja.Gaussian(noise), steps, 1e-5).upper

    ask = jax.jit(jax.vmap(upper))
    counts = np.array([-1.0, np.nan, 0.5, 1e30, -1e-40, 1e-40], np.float32)
    for noise in (np.inf, 1.0):
        assert np.all(np.isposinf(np.asarray(ask(np.full(6, noise, np.float32), counts))))
    # No runs release nothing, of whatever: noise that is none, less than none, or no number.
    noises = np.array([np.nan, -1.0, 0.0, 1.0, np.inf, 1e-40], np.float32)
    np.testing.assert_array_equal(ask(noises, np.zeros(6, np.float32)), 0)
    assert np.all(np.isposinf(np.asarray(ask(noises, np.ones(6, np.float32)))[:3]))


@pytest.mark.first_tier(
    "mechanism1-steps1-3.0-0-jaxacct.saddlepoint",
    "mechanism2-3-6.0-0-jaxacct.saddlepoint",
    "mechanism4-4-inf-mass4-jaxacct.saddlepoint",
)
@pytest.mark.parametrize("accountant", cases([ja, ja.saddlepoint], [ja.prv]))
@pytest.mark.parametrize(
    ("mechanism", "steps", "pure", "mass"),
    [
        (ja.RandomizedResponse(1.0), 5, 5.0, 0),
        (LAW_OF_TWO, (1, 1), 3.0, 0),
        (ja.Laplace(0.5), 3, 6.0, 0),
        (ja.PoissonSubsampledGaussian(1.0, 0.5), 2, np.inf, 0),
        (ja.ApproximateDP(1.0, 1e-3), 4, np.inf, 1 - (1 - Fraction(1e-3)) ** 4),
    ],
)
def test_the_pure_epsilon_and_the_infinite_mass(accountant, mechanism, steps, pure, mass):
    size = {"points": 256} if accountant is ja.prv else {}  # all of it is known without composing
    bounds = accountant.epsilon(mechanism, steps, 0.0, **size)
    assert bounds.lower <= pure <= bounds.upper
    assert bounds.upper <= pure * (1 + 1e-12)
    assert bounds.lower >= pure * (1 - 1e-12)
    assert bounds.converged
    found = accountant.delta(mechanism, steps, np.inf, **size)
    assert Fraction(float(found.lower)) <= mass <= Fraction(float(found.upper)) <= mass * (1 + Fraction(1e-12))
    assert found.converged


def test_one_direction_may_have_a_supremum():
    add = ja.epsilon(ja.PoissonSubsampledGaussian(1.0, 0.25), 10, 0.0, relation="add")
    assert add.lower <= -10 * np.log(0.75) <= add.upper <= -10 * np.log(0.75) * (1 + 1e-12)


@pytest.mark.first_tier("jaxacct-mechanism0-1")
@pytest.mark.parametrize(
    ("mechanism", "steps"), [(ja.Laplace(1.0), 1), (LAW_OF_TWO, (1, 1)), (ja.RandomizedResponse(1.0), 5)]
)
@pytest.mark.parametrize("accountant", cases([ja], [ja.prv]))
def test_no_epsilon_exceeds_the_sum_of_the_suprema(accountant, mechanism, steps):
    bounds = accountant.epsilon(mechanism, steps, 1e-20)
    pure = ja.epsilon(mechanism, steps, 0.0).upper
    assert pure * (1 - 1e-9) <= bounds.lower <= bounds.upper <= pure
    assert bounds.converged


@pytest.mark.exhaustive
def test_no_bound_of_a_positive_delta_is_0():
    for name, accountant in ACCOUNTANTS.items():
        size = {} if name == "exact" else {"points": 1024}
        assert accountant.delta(ja.Gaussian(1.0), 1, 38.0, **size).upper >= 2.0**-1022
        assert accountant.delta(ja.PoissonSubsampledGaussian(1.0, 1e-3), 3, 60.0, **size).upper >= 2.0**-1022
        assert accountant.epsilon(ja.Gaussian(1.0), 1, 0.0).upper == np.inf


@pytest.mark.exhaustive
def test_beyond_all_losses_only_infinite_ones_count():
    for accountant in ACCOUNTANTS.values():
        assert accountant.delta(ja.RandomizedResponse(1.0), 5, 5.0001).upper == 0
        beyond = accountant.delta(ja.ApproximateDP(1.0, 0.25), 1, 1.5)
        assert beyond.lower <= 0.25 <= beyond.upper <= 0.25 * (1 + 1e-13)


def test_a_delta_that_is_all_failure_leaves_the_pure_part():
    bounds = ja.epsilon(ja.ApproximateDP(1.0, 1e-5), 1, 1e-5)
    assert bounds.lower <= 1 <= bounds.upper <= 1 + 1e-13
    assert bounds.converged
    assert ja.epsilon(ja.ApproximateDP(1.0, 1e-5), 1, 0.9e-5).lower == np.inf


@pytest.mark.exhaustive
def test_a_bracket_that_says_nothing_has_not_converged():
    """Converged means as tight as was asked, on every route; where nothing was asked, as the default tolerance."""
    for points in cases([256], [1024, 128, None]):
        bounds = ja.prv.epsilon(ja.Gaussian(1e-4), 1, 1e-5, points=points)
        assert bool(bounds.converged) == bool(bounds.gap <= 1e-3)
    # Without noise the answer is known where it is seen, and in a trace nothing is.
    known = ja.prv.epsilon(ja.Gaussian(0.0), 1, 1e-5)
    assert known.lower == known.upper == np.inf
    assert known.converged
    nothing = jax.jit(lambda noise: ja.prv.epsilon(ja.Gaussian(noise), 1, 1e-5, points=256))(0.0)
    assert np.asarray(nothing.upper) == np.inf
    assert not nothing.converged


def test_a_slope_beyond_float64_weighs_nothing_of_a_rate_of_0():
    rates = ja.tradeoff.curve(ja.Gaussian(0.02), 1, [0.0, 0.5])
    assert np.all(np.isfinite(rates.lower) & np.isfinite(rates.upper))
    assert rates.lower[0] > 0.99
    assert rates.lower[1] <= 1e-9 < rates.upper[0]


CORNERS = {
    "rare and large": (ja.PoissonSubsampledGaussian(0.1, 1024 / 1e8), 976_563, 1e-7),
    "hardly ever": (ja.PoissonSubsampledGaussian(0.02, 1e-12), 1, 1e-5),
    "hardly ever, a million times": (ja.PoissonSubsampledGaussian(0.02, 1e-12), 10**6, 1e-5),
    "few steps at a small rate": (ja.PoissonSubsampledGaussian(0.6, 1e-4), 100, 1e-5),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", cases([*CORNERS][:1], [*CORNERS][1:]))
def test_corners_that_were_valid_are_useful(name):
    bounds = ja.epsilon(*CORNERS[name])
    assert bounds.gap <= 1e-3
    assert bounds.converged


@pytest.mark.exhaustive
@pytest.mark.parametrize(("noise", "rate", "epsilon"), cases([(0.3, 0.1, 1e5)], [(0.5, 0.01, 100.0)]))
def test_a_delta_next_to_1_is_known_to_be(noise, rate, epsilon):
    bounds = ja.prv.delta(ja.PoissonSubsampledGaussian(noise, rate), 10**6, epsilon)
    assert 1 - 1e-5 <= bounds.lower <= bounds.upper <= 1
    assert bounds.converged
