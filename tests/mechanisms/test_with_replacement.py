"""Draws with replacement against exact sums over all draws of toys, and against the theorem that is improved."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import norm

import jaxacct as ja
from jaxacct.mechanisms import GaussianWithReplacement
from jaxacct.mechanisms.fixed_batches import LEAST_NOISE, _law_of_copies, _normal_tail

X = np.linspace(-70.0, 70.0, 70_001)
EPSILONS = np.array([-2.0, -0.2, 0.0, 0.05, 0.3, 1.5, 6.0])


@pytest.mark.parametrize(("n", "draws"), [(2, 3), (10, 4), (1000, 10), (50_000, 512), (3, 60)])
def test_copies_are_binomial(n, draws):
    rate, copies, beyond = _law_of_copies(n, draws)
    chance = Fraction(1, n)
    exact = [math.comb(draws, k) * chance**k * (1 - chance) ** (draws - k) for k in range(draws + 1)]
    some = 1 - exact[0]
    assert 0 <= Fraction(rate) / some - 1 < Fraction(1, 10**15)
    kept = range(1, len(copies) + 1)
    assert all(abs(Fraction(copies[k - 1]) / (exact[k] / some) - 1) < Fraction(1, 10**15) for k in kept)
    assert sum(exact[len(copies) + 1 :]) / some <= Fraction(beyond) < Fraction(1, 10**29)


def of_pair(mechanism, epsilon):
    """The pair's own divergence at thresholds of either sign, summed as it stands."""
    return np.array([np.sum(np.maximum(mechanism.p - math.exp(e) * mechanism.q, 0.0)) for e in epsilon])


def of_data(values, draws, noise):
    """The law of the noisy sum, by every sequence of draws."""
    sums = [sum(drawn) for drawn in itertools.product(values, repeat=draws)]
    counts = {total: sums.count(total) / len(sums) for total in set(sums)}
    return sum(weight * norm.pdf(X, total, noise) for total, weight in counts.items())


@pytest.mark.first_tier("1", "3")
@pytest.mark.parametrize("seed", range(6))
def test_no_data_sets_of_a_toy_cost_more(seed):
    rng = np.random.default_rng(seed)
    n, draws, noise = int(rng.integers(2, 5)), int(rng.integers(1, 5)), float(rng.uniform(0.4, 4.0))
    bound = of_pair(GaussianWithReplacement.for_batches(noise, n, draws), EPSILONS)
    data = [(1.0, -1.0, *others) for others in ([-1.0] * (n - 1), [1.0] * (n - 1), [0.0] * (n - 1))]
    data += [tuple(rng.choice([-1.0, -0.5, 0.0, 1.0], size=n + 1)) for _ in range(4)]
    for x, other, *others in data:
        one, two = (of_data((value, *others), draws, noise) for value in (x, other))
        for p, q in ((one, two), (two, one)):
            exact = [np.sum(np.maximum(p - math.exp(e) * q, 0.0)) * (X[1] - X[0]) for e in EPSILONS]
            assert np.all(exact <= bound * (1 + 1e-9) + 1e-9)


@pytest.mark.parametrize(("n", "draws", "noise"), [(2, 2, 2.0), (5, 3, 1.0), (1000, 10, 2.0), (100, 100, 4.0)])
def test_no_more_than_the_theorem_and_no_less_than_the_data_of_others_alike(n, draws, noise):
    """Copies given away cost p V; all others at x' cost the mixture against the noise itself."""
    mechanism = GaussianWithReplacement.for_batches(noise, n, draws)
    rate, copies, _ = _law_of_copies(n, draws)
    epsilons = np.array([0.01, 0.3, 1.0, 3.0])
    big = 1 + np.expm1(epsilons) / rate
    moved = 2 * np.arange(1, len(copies) + 1)[:, None] / noise
    each = norm.cdf(moved / 2 - np.log(big) / moved) - big * norm.cdf(-moved / 2 - np.log(big) / moved)
    theorem = rate * np.sum(copies[:, None] * each, axis=0)
    law = np.concatenate([[1 - rate], rate * copies])
    one = sum(w * norm.pdf(X, 2.0 * k, noise) for k, w in enumerate(law))
    two = norm.pdf(X, 0.0, noise)
    least = [np.sum(np.maximum(one - math.exp(e) * two, 0.0)) * (X[1] - X[0]) for e in epsilons]
    found = of_pair(mechanism, epsilons)
    assert np.all(least <= found + 1e-9)
    assert np.all(found <= theorem * (1 + 2e-4))


def test_its_own_mirror_image_and_of_mass_one():
    mechanism = GaussianWithReplacement.for_batches(2.0, 1000, 10)
    assert np.array_equal(mechanism.p, mechanism.q[::-1])
    assert np.array_equal(mechanism.losses, -mechanism.losses[::-1])
    assert abs(np.sum(mechanism.p) - 1) < 1e-14


@pytest.mark.exhaustive
def test_composes():
    drawn = GaussianWithReplacement.for_batches(2.0, 1000, 10)
    found = ja.prv.epsilon(drawn, 100, 1e-5, relation="replace").upper
    # 2.67 by the theorem, and 0.7847 where all others are alike, which is more than of as many without replacement.
    assert 0.7847 < found < 0.89


def test_wrong_uses():
    for wrong in (lambda: (1.0, 1, 5), lambda: (1.0, 2, 100_000), lambda: (0.01, 10, 2), lambda: (math.nan, 10, 2)):
        with pytest.raises(ValueError, match="give"):
            GaussianWithReplacement.for_batches(*wrong())


def test_tails_are_as_near_as_the_profile_counts_on():
    """As far out as tails are normal numbers; the base is asked for farther out than the mixture."""
    s = LEAST_NOISE
    x = np.concatenate([np.linspace(0.0, 37.5 * s, 400), [0.3 * 34.16895981751895 / 3]])
    found = _normal_tail(x / s)
    with mp.workdps(40):
        for value, at in zip(found, x, strict=True):
            truth = mp.erfc(mp.mpf(float(at)) / mp.mpf(s) / mp.sqrt(2)) / 2
            assert abs(mp.mpf(float(value)) / truth - 1) <= 6e-13, at / s
