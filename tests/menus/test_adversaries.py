"""Adversaries that are enumerated or played forward, and fixed sequences: none beats what was certified."""

import math
from fractions import Fraction

import numpy as np
import pytest
from helpers.thorough import THOROUGH, draws
from test_game import GAMES, POINTS, ROUNDING, discrete, exact, game, plainly, random_pairs, values

import jaxacct as ja
from jaxacct import calibrate, certified
from jaxacct.menus import certify, limit
from jaxacct.numerics.precision import scope
from jaxacct.odometers import MenuOdometer

PATHS = 100_000


@pytest.mark.parametrize("seed", range(draws(1, 2)))
@pytest.mark.parametrize("setting", range(len(GAMES)))
def test_an_odometers_value_is_never_below_that_of_the_best_strategy(setting, seed):
    # Judged by a reading that rises with what is spent, wherever it stops.
    largest, costs, budget, infinite = GAMES[setting]
    pairs = random_pairs(np.random.default_rng([setting, seed, 2]), infinite=infinite)
    steps = [Fraction(1) + (largest - 1) * Fraction(i, 2) for i in range(3)]
    likelihoods = tuple(steps[-(-(budget - left) * 2 // budget)] for left in range(budget + 1))
    epsilons = [math.log(likelihood) for likelihood in likelihoods]
    with scope():
        (above, below), window = game([discrete(pair) for pair in pairs], math.log(largest))
        # Rounding of the logarithms, relative to the readings.
        upper = values(above, window, costs, budget, np.array([*epsilons, *[9.0] * 16])[:16], 0)[-1]
        lower = values(below, window, costs, budget, np.array([*epsilons, *[9.0] * 16])[:16], 1)[-1]
    truth = exact(pairs, costs, budget, likelihoods)
    fixed = exact(pairs, costs, budget, largest)
    assert lower * (1 - ROUNDING) <= truth <= upper * (1 + ROUNDING)
    assert upper <= 1.01 * truth or infinite
    assert truth >= fixed  # stopping early where the reading is low may only help


def loss_of(noise, rate, draws):
    """Returns the losses of removal at draws from N(0 or 1, noise^2)."""
    return np.log1p(rate * np.expm1((2 * draws - 1) / (2 * noise**2)))


@pytest.mark.exhaustive
def test_the_games_own_strategy_is_not_worth_more_when_it_is_played():
    noises, rate, costs, budget, epsilon = (0.8, 1.2, 2.0), 0.2, (5, 2, 1), 15, 1.0
    with scope():
        sampled = [ja.PoissonSubsampledGaussian(noise, rate) for noise in noises]
        (above, below), window = game(sampled, epsilon, plays=(3.0, 7.0, 15.0))
        upper = values(above, window, costs, budget, epsilon, 0)[-1]
        lower = values(below, window, costs, budget, epsilon, 1)[-1]
    _, choices = plainly(above, window, costs, budget, epsilon, above=1.0)
    rng = np.random.default_rng(7)
    losses, left, plays = np.zeros(PATHS), np.full(PATHS, budget), np.zeros(3, int)
    while True:
        places = np.clip(np.rint(losses / window.mesh).astype(int) - int(window.start), 0, POINTS - 1)
        chosen = choices[left, places]
        if np.all(chosen < 0):
            break
        for item, (noise, cost) in enumerate(zip(noises, costs, strict=True)):
            own = np.flatnonzero(chosen == item)
            draws = rng.normal(rng.random(own.size) < rate, noise)
            losses[own] += loss_of(noise, rate, draws)
            left[own] -= cost
            plays[item] += own.size
    worth = np.maximum(-np.expm1(epsilon - losses), 0.0)
    error = worth.std() / math.sqrt(PATHS)
    assert np.count_nonzero(plays > PATHS / 100) >= 2  # it chooses
    assert worth.mean() <= upper + 4 * error
    assert worth.mean() >= lower - 4 * error  # it is nearly the best one
    assert upper <= 1.1 * lower


def assert_no_mix_costs_more(menu, mixes):
    """Asserts that no fixed sequence within the budget has a delta above the menu's value."""
    assert menu.value <= menu.delta
    assert not THOROUGH or menu.budget <= limit(menu)  # as in test_menus.py, where it is always asked
    mechanisms = tuple(item.mechanism for item in menu.items)
    for shares in mixes:
        blocks = [int(share * menu.budget / item.cost) for share, item in zip(shares, menu.items, strict=True)]
        runs = tuple(item.count * number for item, number in zip(menu.items, blocks, strict=True))
        bounds = certified.delta(mechanisms, runs, menu.epsilon, relation=menu.relation)
        assert bounds.lower <= menu.value, (shares, runs)


MIXED = {
    "kinds": (1.0, 1e-5, [ja.Gaussian(30.0), ja.Laplace(60.0), ja.RandomizedResponse(0.1)], "replace"),
    "costs": (1.0, 1e-6, [ja.Gaussian(6.0), ja.Gaussian(600.0)], "add_or_remove"),
}


@pytest.mark.first_tier("costs")
@pytest.mark.parametrize("name", MIXED)
def test_no_fixed_sequence_beats_a_mixed_menu(name):
    epsilon, delta, items, relation = MIXED[name]
    menu = certify(epsilon, delta, items, relation=relation)
    every = np.eye(len(items))
    assert_no_mix_costs_more(menu, [*every, every.mean(axis=0)])
    assert min(menu.share(index) for index in range(len(items))) >= 0.5
    if name == "kinds":
        # One who is replaced moves a sum by two units: half the noise.
        half = certify(epsilon, delta, [ja.Gaussian(15.0), items[2]])
        assert abs(menu.items[0].alone * menu.items[0].count - half.items[0].alone * half.items[0].count) <= 0.2
    if name == "costs":
        assert menu.items[0].cost / menu.items[0].count >= 1000 * menu.items[1].cost / menu.items[1].count


@pytest.mark.exhaustive
def test_the_last_play_of_pure_privacy_is_granted():
    # Ten times 0.01 in float64 is just below 0.1, and so is five times 0.02.
    menu = certify(0.1, 1e-9, [ja.PureDP(0.01), ja.PureDP(0.02)])
    assert [menu.budget // item.cost * item.count for item in menu.items] == [10, 5]


@pytest.mark.exhaustive
def test_one_item_of_pure_privacy_is_a_plan():
    # What costs nothing at all up to an edge, searched for in float64.
    menu = certify(0.1, 1e-9, [ja.PureDP(0.01)])
    assert menu.budget == 10
    assert MenuOdometer.of(menu).menu.budget >= 9
    # A count that float32 cannot hold.
    runs = calibrate.most_runs(ja.Gaussian(3.0001e4), 1.0, 1e-5)
    assert int(np.float32(runs)) != runs


def worst_of_ranges(ranges, costs, budget, epsilon, fine=20):
    """Returns the value of an adversary who chooses exponential mechanisms, and their losses, from all results so far.

    Of a range e a run has the losses t and t - e, with t a multiple of a twentieth of the smallest range. So all paths
    are on a mesh, and the value is that of one adversary, though not of the best.
    """
    mesh = min(ranges) / fine
    reach = round(budget // min(costs) * max(ranges) / mesh)
    losses = mesh * np.arange(-reach, reach + 1)
    values = [np.maximum(-np.expm1(epsilon - losses), 0.0)]
    for left in range(1, budget + 1):
        best = values[0]
        for e, cost in zip(ranges, costs, strict=True):
            if cost > left:
                continue
            last = round(e / mesh)
            # Beyond the mesh nothing is won, and below it as little.
            padded = np.pad(values[left - cost], last)
            for t in range(last + 1):
                share = math.expm1(t * mesh - e) / math.expm1(-e)
                higher, lower = (padded[last + by :][: losses.size] for by in (t, t - last))
                best = np.maximum(best, share * higher + (1 - share) * lower)
        values.append(best)
    return [float(value[reach]) for value in values]


def test_an_adversary_breaks_whatever_exceeds_the_limit():
    """The pair of exponential mechanisms is the worst of many: in a game no adversary has the losses of that pair."""
    ranges, costs = (0.5, 0.25), (3, 1)
    items = [(ja.ExponentialMechanism(e), 1) for e in ranges]
    menu = certify(1.0, 1e-2, items, costs=costs)
    most = limit(menu)
    values = worst_of_ranges(ranges, costs, most + 1, 1.0)
    assert values[menu.budget] <= menu.value <= 1e-2 < values[most + 1]


@pytest.mark.exhaustive
def test_the_limit_of_one_item_is_below_the_first_run_that_is_known_to_cost_more():
    menu = certify(1.0, 1e-2, [ja.ExponentialMechanism(0.5)])
    most = limit(menu)
    assert menu.budget <= most <= 1.5 * menu.budget
    assert certified.delta(ja.ExponentialMechanism(0.5), most + 1, 1.0).lower > 1e-2
