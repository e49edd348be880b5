"""Tests of the best of K runs: its cost against the winner's exact law, on toys of 3 outcomes and 4 candidates."""

import itertools
import math
from decimal import MIN_EMIN, Context, Decimal, localcontext

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.bounds import Bounds
from jaxacct.selection import (
    Binomial,
    Fixed,
    Geometric,
    Logarithmic,
    OneWay,
    Poisson,
    Selection,
    TruncatedNegativeBinomial,
    pair_of,
)

LAWS = [
    Poisson(7.0), Poisson(1.0), TruncatedNegativeBinomial(9.0, 0.5), TruncatedNegativeBinomial(30.0, 5.0),
    TruncatedNegativeBinomial(1.0, 2.0), Geometric(12.0), Logarithmic(15.0), Binomial(20, 0.3), Fixed(1), Fixed(5),
]  # fmt: skip


def parameter(law):
    """g of a law from 1 up, by halving."""

    def expected(g):
        if law.shape == 0:
            return (1 / g - 1) / math.log(1 / g)
        return law.shape * (1 / g - 1) / (1 - g**law.shape)

    low, high = 1e-9, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) > law.mean else (low, middle)
    return min((low + high) / 2, 1 - 1e-12)


def generating(law, x):
    """E[x^K]."""
    if isinstance(law, Poisson):
        return np.exp(law.mean * (x - 1))
    if isinstance(law, Binomial):
        return (1 - law.probability + law.probability * x) ** law.count
    if law.mean == 1:
        return x
    g = parameter(law)
    if law.shape == 0:
        return np.log1p((g - 1) * x) / math.log(g)
    return ((1 - (1 - g) * x) ** -law.shape - 1) / (g**-law.shape - 1)


def winner(law, probabilities, ranks):
    """The law of the best of K draws, ties being broken at random; no draw is the last outcome."""
    ends = [np.sum(probabilities[ranks <= rank]) for rank in range(int(max(ranks)) + 1)]
    wins = np.diff(generating(law, np.minimum(np.concatenate([[0.0], ends]), 1.0)))
    within = np.array([np.sum(probabilities[ranks == rank]) for rank in ranks])
    return np.append(wins[ranks] * probabilities / within, generating(law, np.zeros(1)))


def delta(p, q, epsilons):
    return np.sum(np.maximum(p - np.exp(epsilons)[:, None] * q, 0.0), axis=1)


def bracket(values):
    return Bounds(values * (1 - 1e-13), values, values * (1 + 1e-13))


def toy(rng, candidates):
    """Laws of a candidate, drawn at random, and its outcome on two data sets."""
    spread = rng.choice([0.1, 0.5, 1.5])
    logs = rng.normal(size=(candidates, 3)) + spread * rng.normal(size=(2, candidates, 3))
    laws = np.exp(logs) / np.sum(np.exp(logs), axis=2, keepdims=True)
    return (laws / candidates).reshape(2, -1)


@pytest.mark.first_tier(
    "Binomial(count=20, probability=0.3)", "Fixed(count=1, probability=1.0)", "Fixed(count=5, probability=1.0)"
)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_no_order_of_results_costs_more(law):
    rng = np.random.default_rng(0)
    asked = np.array([0.0, 0.05, 0.4, 1.0, 2.5])
    for _ in range(5):
        p, q = toy(rng, 4)
        grid = np.linspace(0.0, float(np.max(np.abs(np.log(p / q)))), 30)
        way = OneWay.of(grid, bracket(delta(p, q, grid)), bracket(delta(q, p, grid)))
        found = Selection(way, law)
        upper = np.array([found.upper(epsilon) for epsilon in asked])
        likeliest = np.argsort(np.argsort(p / q))
        split = np.where(likeliest > 9, 1, np.where(likeliest > 5, 0, 2))
        orders = [rng.permutation(12) for _ in range(40)] + [rng.integers(0, 3, 12) for _ in range(20)]
        for ranks in (likeliest, 11 - likeliest, split, *orders):
            ranks = np.unique(ranks, return_inverse=True)[1]
            exact = delta(winner(law, p, ranks), winner(law, q, ranks), asked)
            assert np.all(exact <= upper + 1e-12), (law, ranks)
        least = found.least_epsilon(float(upper[2]))
        assert least <= asked[2] * (1 + 1e-6)
        assert found.upper(least) <= upper[2]
    if law == Fixed(1):
        at = grid[::6]
        np.testing.assert_allclose([found.upper(epsilon) for epsilon in at], delta(p, q, at), rtol=1e-9, atol=1e-10)


@pytest.mark.first_tier("Poisson(mean=7.0)", "Binomial(count=20, probability=0.3)", "Fixed(count=1, probability=1.0)")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_some_order_costs_as_much_as_the_lower_bound(law):
    rng = np.random.default_rng(1)
    asked = np.array([0.01, 0.2, 0.6])
    for _ in range(8):
        p, q = toy(rng, 1)
        grid = np.linspace(0.0, float(np.max(np.abs(np.log(p / q)))), 30)
        found = Selection(OneWay.of(grid, bracket(delta(p, q, grid)), bracket(delta(q, p, grid))), law)
        orders = [np.unique(ranks, return_inverse=True)[1] for ranks in itertools.product(range(3), repeat=3)]
        worst = np.max([delta(winner(law, p, ranks), winner(law, q, ranks), asked) for ranks in orders], axis=0)
        for epsilon, exact in zip(asked, worst, strict=True):
            lower = found.lower(epsilon)
            assert lower <= exact * (1 + 1e-9)
            if lower > 0:
                assert abs(found.most_epsilon(lower * (1 - 1e-9)) - epsilon) < 1e-6 * (1 + epsilon)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_slopes_and_draws_are_those_of_the_law(law):
    x = np.linspace(0.02, 0.98, 25)
    low, high = law.slope(x)
    by_differences = (generating(law, x + 1e-5) - generating(law, x - 1e-5)) / 2e-5
    assert np.all(low <= high)
    assert np.all(high <= low * (1 + 1e-10))
    np.testing.assert_allclose(high, by_differences, rtol=1e-5, atol=1e-9)
    assert abs(law.missed(0.3) - float(generating(law, np.array(0.7)))) < 1e-6
    draws = np.array([law.draw() for _ in range(400)])
    deviation = np.std(0.7**draws) / 20 + 1e-7
    assert abs(np.mean(0.7**draws) - law.missed(0.3)) < 6 * deviation


def test_draws_are_quantiles_of_the_law_to_the_last_digits(monkeypatch):
    mean, last = 3000, 2987
    with localcontext(Context(prec=40, Emin=MIN_EMIN)):
        below = term = Decimal(-mean).exp()
        for k in range(1, last + 1):
            term *= Decimal(mean) / k
            below += term
    for offset, drawn in ((-1e-13, last), (1e-13, last + 1)):
        monkeypatch.setattr("secrets.randbits", lambda bits, u=below + Decimal(offset): int(u * 2**bits))
        assert Poisson(mean).draw() == drawn


def test_of_very_many_trials_slopes_are_as_narrow():
    low, high = Binomial(2**53, 1e-15).slope(np.zeros(1))
    mean = 2**53 * 1e-15
    assert low <= mean * math.exp(-mean) * (1 + 1e-14) <= high <= low * (1 + 1e-10)


def test_a_loss_beyond_the_largest_epsilon_is_no_infinite_one():
    # One of two outcomes has a loss of 900: delta is its half below that, and 0 above.
    grid = np.linspace(0.0, 600.0, 30)
    back = np.maximum(1 - 0.5 * np.exp(grid), 0.0)
    found = Selection(OneWay.of(grid, bracket(np.full(30, 0.5)), bracket(back)), Geometric(5.0))
    assert 0 == found.lower(1000.0) < 0.5 < found.lower(500.0)


RUN = ja.Gaussian(4.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("law", [Logarithmic(10.0), Geometric(10.0), Poisson(10.0)], ids=str)
def test_costs_less_than_by_divergences(law):
    delta = 1e-6
    search = ja.RepeatAndSelect(RUN, 1, law)
    found = ja.epsilon(search, 1, delta)
    assert ja.epsilon(RUN, 1, delta).upper < found.lower < found.upper < 0.9 * ja.rdp.epsilon(search, 1, delta)
    assert ja.delta(search, 1, found.upper).upper < delta * 1.1


@pytest.mark.parametrize("law", LAWS[::2], ids=str)
def test_the_pair_of_a_search_dominates_it_alone_and_twice(law, monkeypatch):
    monkeypatch.setattr("jaxacct.selection.LEVELS", 500)  # a bound with any, and fast
    rng = np.random.default_rng(2)
    asked = np.array([0.0, 0.02, 0.3, 1.0, 3.0])
    for _ in range(2):
        p, q = toy(rng, 4)
        grid = np.linspace(0.0, float(np.max(np.abs(np.log(p / q)))), 30)
        ends = bracket(delta(p, q, grid)), bracket(delta(q, p, grid))
        ways = [Selection(OneWay.of(grid, forth, back), law) for forth, back in (ends, ends[::-1])]
        pair = pair_of(ways, 1e-9)
        assert pair is not None
        assert all(abs(np.sum(masses) - 1) < 1e-13 for masses in pair)
        for way, (one, other) in zip(ways, (pair, pair[::-1]), strict=True):
            bounds = np.array([way.upper(epsilon) for epsilon in asked])
            assert np.all(delta(one, other, asked) <= bounds * (1 + 2e-2) + 1e-4)
        likeliest = np.argsort(np.argsort(p / q))
        for ranks in (likeliest, 11 - likeliest, np.where(likeliest > 9, 1, np.where(likeliest > 5, 0, 2))):
            wins = [winner(law, side, ranks) for side in (p, q)]
            for one, other in ((0, 1), (1, 0)):
                assert np.all(delta(wins[one], wins[other], asked) <= delta(pair[one], pair[other], asked) + 1e-12)
                exact, bound = ([np.outer(s, s).ravel() for s in (two[one], two[other])] for two in (wins, pair))
                assert np.all(delta(*exact, asked) <= delta(*bound, asked) + 1e-12)


@pytest.mark.exhaustive
def test_searches_compose_with_others_by_their_pairs():
    search = ja.RepeatAndSelect(RUN, 1, Geometric(10.0))
    found = ja.epsilon((search, RUN), (2, 1), 1e-6)
    assert 2 < found.upper < 0.85 * ja.rdp.epsilon((search, RUN), (2, 1), 1e-6)
    assert found.lower == 0
    assert ja.delta((search, RUN), (2, 1), found.upper).upper < 1.1e-6


@pytest.mark.exhaustive
def test_of_a_fixed_number_all_runs_are_an_upper_bound():
    two = ja.epsilon(ja.RepeatAndSelect(RUN, 1, Fixed(2)), 1, 1e-5)
    assert two.upper <= ja.epsilon(RUN, 2, 1e-5).upper
    one = ja.epsilon(ja.RepeatAndSelect((RUN,), (3,), Fixed(1)), 1, 1e-5)
    assert one.lower <= ja.epsilon(RUN, 3, 1e-5).upper <= one.upper < one.lower * 1.01


@pytest.mark.exhaustive
def test_ends_of_the_range():
    assert ja.epsilon(ja.RepeatAndSelect(ja.ApproximateDP(0.1, 1e-6), 1, Geometric(50.0)), 1, 1e-5).upper == math.inf
    failing = ja.RepeatAndSelect(ja.ApproximateDP(0.1, 1e-6), 1, Geometric(5.0))
    assert 0.1 < ja.epsilon(failing, 1, 1e-5).upper < 0.3
    assert 5e-6 <= ja.delta(failing, 1, 30.0).upper < 5.1e-6
    many = ja.curve(ja.RepeatAndSelect(RUN, 1, Geometric(5.0)), 1, deltas=[1e-6, 1e-3])
    assert many.upper[0] > many.upper[1] > many.lower[1] > 0
