"""Tests of the bounds that right guesses prove: they hold for mechanisms of exactly known laws, and are not loose."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from jaxacct import audit

GRID = audit.EPSILONS


def gaussian_delta(mu, epsilon):
    return np.clip(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu), 0, 1) + 1e-15


def chance(epsilon):
    return 1 / (1 + math.exp(-epsilon))


def poisson_binomial_tails(chances):
    law = np.ones(1)
    for p in chances:
        law = np.convolve(law, [1 - p, p])
    return np.cumsum(law[::-1])[::-1]


def published(correct, guesses, canaries, epsilon, delta):
    """The p-value of Steinke, Nasr and Jagielski (2023) for approximate differential privacy."""
    law = binom(guesses, chance(epsilon))
    i = np.arange(1, correct + 1)
    window = (law.sf(correct - i - 1) - law.sf(correct - 1)) / i
    return law.sf(correct - 1) + 2 * canaries * delta * max(window, default=0.0)


@settings(max_examples=60, deadline=None)
@given(
    guesses=st.integers(1, 80), epsilon=st.floats(0, 6), delta=st.floats(0, 0.05), share=st.floats(0, 1),
    together=st.floats(0, 1),
)  # fmt: skip
def test_no_mechanism_with_failures_beats_the_p_values(guesses, epsilon, delta, share, together):
    # Randomized response that fails: with probability `delta` in all it shows a canary, some of it all of them at once.
    common = delta * together
    alone = (delta - common) / (1 - common)
    law = binom(guesses, alone + (1 - alone) * chance(epsilon))
    correct = round(share * guesses)
    truth = common + (1 - common) * law.sf(correct - 1)
    assert audit.p_value_of_pair(correct, guesses, guesses, epsilon, delta) >= truth * (1 - 1e-9)
    assert audit.p_value(correct, guesses, guesses, [epsilon], [delta]) >= truth * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(guesses=st.integers(1, 100), epsilon=st.floats(0, 5), share=st.floats(0, 1))
def test_without_delta_the_binomial_tail_is_attained(guesses, epsilon, share):
    correct = round(share * guesses)
    truth = binom.sf(correct - 1, guesses, chance(epsilon))
    bound = audit.p_value_of_pair(correct, guesses, guesses, epsilon, 0.0)
    assert truth * (1 - 1e-9) <= bound
    if correct > guesses * chance(epsilon):
        assert bound <= truth * (1 + 2e-5) + 1e-300
        assert bound <= audit.p_value(correct, guesses, guesses, [epsilon], [0.0]) + 1e-12


@pytest.mark.parametrize(("canaries", "guesses", "epsilon"), [(1000, 1000, 0.5), (1000, 100, 3.0), (500, 125, 2.0)])
def test_the_term_with_delta_is_below_the_published_one_where_bounds_are_decided(canaries, guesses, epsilon):
    correct = int(binom.isf(0.05, guesses, chance(epsilon))) + 1
    for delta in (1e-6, 1e-4):
        ours = audit.p_value_of_pair(correct, guesses, canaries, epsilon, delta)
        assert binom.sf(correct - 1, guesses, chance(epsilon)) < ours < published(
            correct, guesses, canaries, epsilon, delta
        )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    mu=st.floats(0.05, 3), canaries=st.integers(2, 60), share=st.floats(0, 1), rare=st.floats(0, 0.2),
    lies=st.lists(st.floats(0, 1), min_size=60, max_size=60),
)  # fmt: skip
def test_gaussian_canaries_stay_within_the_p_value(mu, canaries, share, rare, lies):
    # Each canary is released with noise 1/m_i, m_i at most mu; a public coin of probability `rare` picks those at mu.
    # Given the coin every release is mu-GDP, so that their mixture has the profile of mu. Without it releases differ.
    best = norm.cdf(mu / 2) * np.ones(canaries)
    worse = norm.cdf(mu / 2 * np.array(lies[:canaries]))
    tails = rare * poisson_binomial_tails(best) + (1 - rare) * poisson_binomial_tails(worse)
    correct = round(share * canaries)
    deltas = gaussian_delta(mu, GRID)
    assert audit.p_value(correct, canaries, canaries, GRID, deltas) >= tails[correct] * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), canaries=st.integers(1, 5), outcomes=st.integers(2, 6), share=st.floats(0.01, 1),
    private=st.floats(0, 1),
)  # fmt: skip
def test_any_mechanism_and_the_best_guesses_stay_within_the_p_values(seed, canaries, outcomes, share, private):
    # A law over a few outcomes for each choice of canaries; some guesses are left out, those with the least to say.
    random = np.random.default_rng(seed)
    coins = (np.arange(2**canaries)[:, None] >> np.arange(canaries)) & 1
    laws = random.dirichlet(np.full(outcomes, 0.3), 2**canaries)
    laws = (1 - private) * laws + private * laws.mean(axis=0)
    neighbours = [(s, s ^ (1 << i)) for s in range(2**canaries) for i in range(canaries)]
    epsilons = np.array([0.0, 0.3, 1.0, 2.0])
    deltas = np.array(
        [max(np.maximum(laws[s] - np.exp(e) * laws[t], 0).sum() for s, t in neighbours) for e in epsilons]
    )
    guesses = max(1, round(share * canaries))
    chances = (laws.T @ coins) / laws.sum(axis=0)[:, None]  # of each canary to be in, for each outcome
    guessed = np.argsort(-np.abs(chances - 0.5), axis=1)[:, :guesses]
    said = np.take_along_axis(chances, guessed, axis=1) > 0.5
    right = (coins[:, guessed] == said[None]).sum(axis=2)  # (choices, outcomes)
    for correct in range(1, guesses + 1):
        truth = laws[right >= correct].sum() / 2**canaries
        profile = audit.p_value(correct, guesses, canaries, epsilons, np.minimum(deltas + 1e-12, 1))
        assert profile >= truth * (1 - 1e-6) - 1e-9
        for epsilon, delta in zip(epsilons, deltas, strict=True):
            assert audit.p_value_of_pair(correct, guesses, canaries, epsilon, min(delta, 1)) >= truth * (1 - 1e-6)


def test_a_mechanism_that_is_loose_in_rare_runs_shows_what_one_run_cannot():
    # Shows everything with probability 0.04 and nothing otherwise: (0, 0.04)-DP, and right 100 times of 100 as often.
    assert audit.p_value(100, 100, 100, [0.0], [0.04]) == pytest.approx(0.04, rel=0.03)


def test_abstaining_costs_what_other_canaries_could_have_hidden():
    few = audit.p_value(19, 20, 20, GRID, gaussian_delta(1.0, GRID))
    many = audit.p_value(19, 20, 200, GRID, gaussian_delta(1.0, GRID))
    assert few < many


def test_bounds_on_epsilon_keep_their_confidence_and_come_near():
    # Exact chance of a bound above the truth: sum over the outcomes that give one.
    epsilon, guesses, delta = 1.0, 200, 1e-5
    law = binom(guesses, chance(epsilon))
    outcomes = range(law.ppf(1e-6).astype(int), law.ppf(1 - 1e-9).astype(int) + 1)
    bounds = {v: audit.epsilon_lower_bound(v, guesses, guesses, delta, 0.9) for v in outcomes}
    wrong = sum(law.pmf(v) for v, bound in bounds.items() if bound > epsilon)
    assert 0.02 < wrong <= 0.1  # a discrete law does not use up all of the tenth
    assert sorted(bounds.values()) == list(bounds.values())
    assert 0.6 < bounds[round(law.mean())] < epsilon


@pytest.mark.exhaustive
def test_bounds_on_mu_keep_their_confidence_and_grow_with_what_is_shown():
    mu, canaries = 1.0, 100
    law = binom(canaries, norm.cdf(mu / 2))
    bounds = {v: audit.mu_lower_bound([v], canaries, canaries) for v in range(60, 101, 5)}
    wrong = min(v for v, bound in bounds.items() if bound > mu)
    assert law.sf(wrong - 5) <= 0.05  # at 5 fewer the bound was still right: no fewer than that many are needed
    assert sorted(bounds.values()) == list(bounds.values())
    assert 0.25 < bounds[70] < mu < bounds[100]
    assert audit.mu_lower_bound([85, 85, 85], canaries, canaries) > bounds[85]


def test_independent_runs_are_combined_by_fishers_method():
    from scipy.stats import combine_pvalues

    for values in ([0.2], [0.04, 0.7], [1e-9, 1.0, 0.3], [1.0, 1.0], [1e-12] * 30):
        assert audit.combined(values) == pytest.approx(combine_pvalues(values).pvalue, rel=1e-6)
    assert audit.combined([0.0, 0.5]) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: audit.p_value_of_pair(5, 4, 4, 1.0, 0.0), "correct = 5"),
        (lambda: audit.p_value_of_pair(1, 5, 4, 1.0, 0.0), "guesses = 5"),
        (lambda: audit.p_value_of_pair(1, 4, 4, -1.0, 0.0), "epsilon = -1.0"),
        (lambda: audit.p_value_of_pair(1, 4, 4, 1.0, 1.5), "delta = 1.5"),
        (lambda: audit.epsilon_lower_bound(1, 4, 4, 0.0, 1.0), "confidence = 1.0"),
        (lambda: audit.p_value(1, 4, 4, [1.0, 2.0], [0.1]), "one length"),
        (lambda: audit.p_value(1, 4, 4, [1.0], [math.nan]), "deltas = nan"),
        (lambda: audit.combined([]), "p_values"),
        (lambda: audit.combined([1.2]), "p_values = 1.2"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
