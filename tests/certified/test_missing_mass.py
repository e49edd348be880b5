"""Pairs whose masses miss one by as much as is accepted: brackets against sums of the numbers given, in 60 digits."""

import math
from typing import NamedTuple

import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja

MISSED = 9e-13


class Setting(NamedTuple):
    """A pair of losses of l, -l and, with probability m, infinity; alone, or beside a Gaussian mechanism."""

    p: np.ndarray
    q: np.ndarray
    runs: int
    mu: float
    epsilon: float

    @classmethod
    def draw(cls, random: np.random.Generator, beside: bool) -> "Setting":
        runs = round(math.exp(random.uniform(0, math.log(100 if beside else 300))))
        m, loss = (
            math.exp(random.uniform(math.log(least), math.log(most))) for least, most in ((1e-6, 0.5), (1e-3, 3))
        )
        x = 1 / (1 + math.exp(-loss))
        p, q = np.array([(1 - m) * x, (1 - m) * (1 - x), m, 0]), np.array([(1 - m) * (1 - x), (1 - m) * x, 0, m])
        off = random.choice([-MISSED, 0.0, MISSED], 2)
        p[random.integers(3)] += off[0]
        q[random.choice([0, 1, 3])] += off[1]
        mu = random.uniform(0.3, 2) if beside else 0.0
        epsilon = random.choice([0.0, random.uniform(0, runs * loss * 1.2), random.uniform(0, 3) * runs**0.5 * loss])
        return cls(p, q, runs, mu, float(epsilon) + 2 * mu)

    def composition(self) -> tuple[object, object]:
        pair = ja.DiscretePair(p=self.p, q=self.q)
        return ((pair, ja.Gaussian(noise_multiplier=1 / self.mu)), (self.runs, 1)) if self.mu else (pair, self.runs)

    def delta(self, epsilon: float) -> mp.mpf:
        """Returns the sum over all outcomes of the runs, of the products of the numbers given."""
        p, q = (list(map(mp.mpf, side.tolist())) for side in (self.p, self.q))
        total, epsilon = sum(p) ** self.runs - (sum(p) - p[2]) ** self.runs, mp.mpf(epsilon)
        mu = 1 / mp.mpf(1 / self.mu) if self.mu else mp.mpf(0)
        for n in range(self.runs + 1):
            a, b = (mp.binomial(self.runs, n) * x[0] ** n * x[1] ** (self.runs - n) for x in (p, q))
            if mu:
                far = (epsilon - mp.log(a / b)) / mu
                total += a * mp.ncdf(mu / 2 - far) - mp.exp(epsilon) * b * mp.ncdf(-mu / 2 - far)
            else:
                total += max(a - mp.exp(epsilon) * b, 0)
        return min(total, mp.mpf(1))


def by_mesh(verb):
    return lambda *args, **kwargs: verb(*args, points=8192, **kwargs)


@pytest.mark.exhaustive
@pytest.mark.first_tier("alone")
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside noise"])
def test_brackets_hold_for_masses_that_miss_one(beside):
    random = np.random.default_rng(beside)
    told = 0
    for _ in range(draws(15, 1000)):
        setting = Setting.draw(random, beside)
        with mp.workdps(60):
            truth = setting.delta(setting.epsilon)
            for verb in (ja.delta, ja.saddlepoint.delta, by_mesh(ja.prv.delta)):
                found = verb(*setting.composition(), setting.epsilon, relation="remove")
                assert float(found.lower) <= truth <= float(found.upper)
                # A bracket that is nowhere near as wide as what is missing would tell nothing.
                told += bool(found.gap < 100 * MISSED * setting.runs)
            given = float(truth)
            if given < 1:
                for verb in (ja.epsilon, by_mesh(ja.prv.epsilon)):
                    found = verb(*setting.composition(), given, relation="remove")
                    assert not np.isfinite(found.upper) or setting.delta(float(found.upper)) <= given
                    assert found.lower == 0 or setting.delta(min(float(found.lower), 1e6)) >= given
    assert told > 5


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:epsilon is known to a relative gap")
@pytest.mark.parametrize("runs", [1, 10**6, 10**9])
@pytest.mark.parametrize("verb", [ja.epsilon, ja.prv.epsilon], ids=["top level", "mesh"])
def test_losses_that_are_all_negative_take_from_the_largest(verb, runs):
    """Where P's sum is less than Q's, all losses of a pair may be negative: so is its share of the pure epsilon."""
    missing = 4e-13
    pair = ja.DiscretePair(p=np.full(2, 0.5 - missing), q=np.full(2, 0.5 + missing))
    p, q = (mp.mpf(float(masses[0])) for masses in (pair.p, pair.q))
    with mp.workdps(60):
        truth = 1 + runs * mp.log(p / q)
    found = verb((pair, ja.RandomizedResponse(1.0)), (runs, 1), 0.0, relation="remove")
    assert float(found.lower) <= truth <= float(found.upper)
