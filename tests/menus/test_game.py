"""The game's bounds against games small enough to enumerate: every adaptive strategy, in exact rationals."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import verify
from jaxacct.menus.game import blocks_of, losses_on, solve_game, window_for
from jaxacct.numerics.precision import leave_scope, scope
from jaxacct.prv import accountant

POINTS, ITEMS, RING, LEVELS, NEVER = 2048, 3, 8, 16, 2**30
ROUNDING = 1e-11


def exact(pairs, costs, budget, likelihood, *, path=False):
    """Returns the value of a game of P and Q masses: of the best strategy, or of the best that is fixed in advance.

    ``likelihood`` is e^epsilon, or one for each number of units left.
    """

    @functools.cache
    def value(left, p, q):
        best = max(p - (likelihood[left] if isinstance(likelihood, tuple) else likelihood) * q, Fraction(0))
        for pair, cost in zip(pairs, costs, strict=True):
            if cost <= left:
                best = max(best, sum((value(left - cost, p * a, q * b) for a, b in pair), Fraction(0)))
        return best

    @functools.cache
    def fixed(left, masses):
        best = sum((max(p - likelihood * q, Fraction(0)) for p, q in masses), Fraction(0))
        for pair, cost in zip(pairs, costs, strict=True):
            if cost <= left:
                best = max(best, fixed(left - cost, tuple(sorted((p * a, q * b) for p, q in masses for a, b in pair))))
        return best

    one = Fraction(1)
    return float(fixed(budget, ((one, one),)) if path else value(budget, one, one))


def random_pairs(rng, *, infinite=False):
    """Returns three pairs of three outcomes with masses in 64ths, which floats hold; some with infinite losses."""
    pairs = []
    for strength in (6, 10, 16):
        p, q = np.array([22, 20, 22]), np.array([22, 20, 22])
        moved = rng.integers(strength // 2, strength + 1, 2)
        p += np.array([moved[0], 0, -moved[0]])
        q -= np.array([moved[1], 0, -moved[1]])
        if infinite:
            p += np.array([-1, 1, 0])
            q += np.array([0, q[2], -q[2]]) if strength == 16 else 0
        pairs.append([(Fraction(int(a), 64), Fraction(int(b), 64)) for a, b in zip(p, q, strict=True)])
    return pairs


def discrete(pair):
    return ja.DiscretePair(*(np.array([float(outcome[side]) for outcome in pair]) for side in (0, 1)))


def game(items, epsilon, relation="remove", plays=(4.0, 4.0, 4.0)):
    """Returns both sides' losses and their window, on a circle of :data:`POINTS`."""
    rows = blocks_of([(item, 1) for item in items], [number / ITEMS for number in plays], relation, epsilon)
    window, points = window_for(rows, plays, epsilon, 1e-3)
    assert points <= POINTS
    window = window._replace(last=np.int32(POINTS - points) + window.last)
    return [losses_on(rows, window, POINTS, side) for side in (0, 1)], window


def values(losses, window, costs, budget, epsilon, side):
    epsilons = np.resize(epsilon, LEVELS)
    found = solve_game(
        RING, losses, np.asarray(costs, np.int32), epsilons, window, np.float64(1.0),
        np.int32(budget), np.bool_(side == 0),
    )  # fmt: skip
    return leave_scope(found).values[: budget + 1]


def plainly(losses, window, costs, budget, epsilon, *, above):
    """Returns the recursion in NumPy, without a tilt and without errors, the window ended by ``above`` or by 1.

    Values and best items (-1: to stop) for what is left and the loss so far.
    """
    first, last, h = int(window.first), int(window.last), float(window.mesh)
    at = (int(window.start) + np.arange(POINTS)) * h
    masses = []
    for weights in losses.weights[0]:
        ordered = np.concatenate([weights[POINTS - first :], weights[: POINTS - last]])
        masses.append(ordered * np.exp(-window.order[0] * h * np.arange(-first, POINTS - last)))
    stopped = np.maximum(-np.expm1(epsilon - at), 0.0)
    levels, choices, inside = [], [], slice(first, last + 1)
    for r in range(budget + 1):
        value, choice = stopped.copy(), np.full(POINTS, -1)
        for item, (mass, cost) in enumerate(zip(masses, costs, strict=True)):
            if cost <= r:
                played = np.correlate(levels[r - cost], mass, "valid")[: last + 1 - first]
                choice[inside] = np.where(played > value[inside], item, choice[inside])
                value[inside] = np.maximum(value[inside], played)
        value[:first], value[last + 1 :] = value[first], above
        choice[:first] = choice[first]
        levels.append(value)
        choices.append(choice)
    return np.array(levels), np.array(choices)


GAMES = [
    (Fraction(3, 2), (1, 2, 4), 5, False),
    (Fraction(2), (2, 3, 5), 9, False),
    (Fraction(5, 4), (1, 2, 3), 4, True),
    (Fraction(2), (2, NEVER, 3), 8, True),
    (Fraction(1), (2, 3, 4), 8, False),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(draws(2, 6)))
@pytest.mark.parametrize("setting", range(len(GAMES)))
def test_the_value_is_never_below_that_of_the_best_strategy(setting, seed):
    likelihood, costs, budget, infinite = GAMES[setting]
    pairs = random_pairs(np.random.default_rng([setting, seed]), infinite=infinite)
    epsilon = math.log(likelihood)
    with scope():
        (above, below), window = game([discrete(pair) for pair in pairs], epsilon)
        upper = values(above, window, costs, budget, epsilon, 0)
        lower = values(below, window, costs, budget, epsilon, 1)
    for r in range(budget + 1):
        truth = exact(pairs, costs, r, likelihood)
        assert lower[r] * (1 - ROUNDING) <= truth <= upper[r] * (1 + ROUNDING)


@pytest.mark.exhaustive
def test_the_value_is_near_that_of_the_best_strategy():
    for setting, (likelihood, costs, budget, infinite) in enumerate(GAMES):
        pairs = random_pairs(np.random.default_rng([setting, 0]), infinite=infinite)
        epsilon = math.log(likelihood)
        with scope():
            (above, below), window = game([discrete(pair) for pair in pairs], epsilon)
            upper = values(above, window, costs, budget, epsilon, 0)[-1]
            lower = values(below, window, costs, budget, epsilon, 1)[-1]
        truth = exact(pairs, costs, budget, likelihood)
        # Splitting an atom adds (h/sd)^2/6 to its variance; infinite masses are added up.
        assert upper <= 1.002 * truth or infinite
        assert lower >= 0.8 * truth or infinite  # an atom between two points falls to the lower one


@pytest.mark.exhaustive
def test_wrong_filters_are_caught():
    caught = dict.fromkeys(("costs", "path", "window", "infinite"), 0)
    for likelihood, costs, budget, infinite in GAMES:
        pairs = random_pairs(np.random.default_rng([9, 0]), infinite=infinite)
        epsilon, truth = math.log(likelihood), exact(pairs, costs, budget, likelihood)
        with scope():
            (above, _), window = game([discrete(pair) for pair in pairs], epsilon)
            dearer = values(above, window, [cost + 1 for cost in costs], budget, epsilon, 0)[-1]
            finite = above._replace(infinite=np.zeros_like(above.infinite))
            without = values(finite, window, costs, budget, epsilon, 0)[-1]
        narrow = window._replace(last=np.int32(round(epsilon / window.mesh) - window.start + 4))
        start = -int(window.start)
        plain = [plainly(above, narrow, costs, budget, epsilon, above=end)[0][-1, start] for end in (0.0, 1.0)]
        assert plain[1] + budget * above.infinite.max() >= truth * (1 - ROUNDING)
        caught["costs"] += dearer < truth * (1 - ROUNDING)  # charging one unit less than was certified
        caught["path"] += exact(pairs, costs, budget, likelihood, path=True) < truth * (1 - ROUNDING)
        caught["window"] += plain[0] < truth * (1 - ROUNDING)
        caught["infinite"] += without < truth * (1 - ROUNDING)
    assert caught["costs"] >= 3  # in the others one block more of any item is as good
    assert caught["window"] >= 3
    assert caught["infinite"] == sum(infinite for *_, infinite in GAMES)
    assert caught["path"] >= 1


@pytest.mark.exhaustive
def test_known_mechanisms_and_approximate_ones():
    # Items of different kinds, with infinite losses; the exact masses are those of the documented pairs.
    likelihoods, delta = (Fraction(2), Fraction(3, 2)), Fraction(1, 1024)
    responses = [[(e / (1 + e), 1 / (1 + e)), (1 / (1 + e), e / (1 + e))] for e in likelihoods]
    approximate = [((1 - delta) * p, (1 - delta) * q) for p, q in responses[1]] + [(delta, Fraction(0))]
    items = [
        ja.RandomizedResponse(math.log(2)), ja.RandomizedResponse(math.log(1.5)),
        ja.ApproximateDP(math.log(1.5), float(delta)),
    ]  # fmt: skip
    epsilon, costs, budget = math.log(2.5), (3, 2, 3), 9
    with scope():
        sides, window = game(items, epsilon, "replace")
        bounds = [values(losses, window, costs, budget, epsilon, side) for side, losses in enumerate(sides)]
    for r in range(budget + 1):
        truth = exact([*responses, approximate], costs, r, Fraction(5, 2))
        assert bounds[1][r] * (1 - ROUNDING) <= truth <= bounds[0][r] * (1 + ROUNDING)
        assert bounds[0][r] <= 1.02 * truth + 1e-6


@pytest.mark.exhaustive
def test_a_tilt_beyond_float64_gives_no_small_value(monkeypatch):
    # Twelve runs have a delta above 4e-7; under so high a tilt all of it is flushed to zero.
    epsilon, item = 0.01, ja.RandomizedResponse(0.001)
    planned = accountant._plan_together
    monkeypatch.setattr(
        accountant, "_plan_together", lambda *given: leave_scope(planned(*given))._replace(order=np.float64(1e5))
    )
    with scope():
        rows = blocks_of([(item, 1)] * ITEMS, [0.5] * ITEMS, "remove", epsilon)
        window, points = window_for(rows, [1.5] * ITEMS, epsilon, 1e-12)
        assert window.order[0] * epsilon > 745
        window = window._replace(last=np.int32(POINTS - points) + window.last)
        losses = [losses_on(rows, window, POINTS, side) for side in (0, 1)]
        upper, lower = [values(losses[side], window, (1, NEVER, NEVER), 12, epsilon, side)[-1] for side in (0, 1)]
    truth = float(verify.delta(item, 12, epsilon, (0.0, 1.0)).status == "PROVED") * 4e-7
    assert lower <= 1e-6
    assert upper >= truth > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("item", [ja.Gaussian(4.0), ja.PoissonSubsampledGaussian(1.0, 0.05), ja.Laplace(5.0)])
def test_the_referee_proves_what_a_game_of_one_item_says(item):
    epsilon, runs = 1.0, 14
    with scope():
        sides, window = game([item] * ITEMS, epsilon, plays=(runs, runs, runs))
        upper, lower = [values(sides[side], window, (1, NEVER, NEVER), runs, epsilon, side)[-1] for side in (0, 1)]
    assert 0 < lower < upper <= 1.4 * lower  # Laplace losses have atoms, which fall by up to a mesh
    assert verify.delta(item, runs, epsilon, (lower, upper), relation="remove").status == "PROVED"
    assert verify.delta(item, runs, epsilon, (0.0, lower * 0.99), relation="remove").status == "REFUTED"
