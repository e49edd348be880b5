"""Integer noise against its account by exact sums over all outcomes, where the noise is small enough for that.

The query is a sum of reals that is rounded after the batch is added up, so that it is not additive: one example may
move it or not, depending on who else is in the batch. The noise is the discrete Gaussian itself.
"""

import itertools
import math

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms.discrete_gaussian import chi_square_of_rounding, cost, total_variation

REACH = 40


def masses(s):
    n = np.arange(-REACH, REACH + 1)
    rho = np.exp(-(n**2) / (2 * s * s))
    return rho / rho.sum()


def law_of(values, others, q, s):
    """Law of the rounded sum plus noise, over sampled batches: ``values`` are in for certain."""
    d = len(others[0])
    law = np.zeros((2 * REACH + 1,) * d)
    single = masses(s)
    for chosen in itertools.product((0, 1), repeat=len(others)):
        weight = math.prod(q if one else 1 - q for one in chosen)
        total = np.rint(sum((v for v, one in zip(others, chosen, strict=True) if one), np.zeros(d)) + values)
        noise = np.ones(())
        for shift in total.astype(int):
            noise = np.multiply.outer(noise, np.roll(single, shift))
        law += weight * noise
    return law


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


class Case:
    """Others' values and the example's, in units of the grid; how they are sampled, and the noise."""

    def __init__(self, s, q, others, mine, steps=1):
        self.s, self.q, self.steps = s, q, steps
        self.others, self.mine = np.atleast_2d(others), np.atleast_1d(mine)
        self.d = self.mine.size
        absent = law_of(np.zeros(self.d), self.others, q, s)
        present = law_of(self.mine, self.others, q, s)
        with_it, without = ((1 - q) * absent + q * present).ravel(), absent.ravel()
        for _ in range(steps - 1):
            first = ((1 - q) * absent + q * present).ravel()
            with_it, without = np.outer(with_it, first).ravel(), np.outer(without, absent.ravel()).ravel()
        self.laws = with_it, without

    def true_delta(self, epsilon):
        p, q = self.laws
        return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))

    def accounted_delta(self, epsilon, *, roots=True):
        """By the multiplier s'/Delta of the sampled Gaussian mechanism, and what the total variation costs."""
        below = math.sqrt(self.s**2 - 1 / 12)
        moved = np.linalg.norm(self.mine) + math.sqrt(self.d) * roots
        mechanism = ja.PoissonSubsampledGaussian(below / moved, self.q) if self.q < 1 else ja.Gaussian(below / moved)
        tau = float(total_variation(self.d * self.steps, chi_square_of_rounding(self.s)))
        delta = ja.delta(mechanism, self.steps, epsilon)
        return float(delta.upper) + float(cost(epsilon, tau))


CASES = {
    "two entries part": lambda: Case(2.0, 1.0, np.array([[0.25, 0.2], [0.2, 0.25]]), [0.1, 0.1]),
    "two entries, sampled": lambda: Case(2.0, 0.4, np.array([[0.45, 0.45], [0.3, 0.2]]), [0.1, 0.1]),
    "three units, twice": lambda: Case(3.0, 0.3, np.array([[0.45], [0.45]]), [0.1], steps=2),
    "two units, twice": lambda: Case(2.0, 1.0, np.array([[0.46], [1.0]]), [0.06], steps=2),
    "large moves": lambda: Case(3.0, 0.6, np.array([[0.4, 0.1], [0.5, 0.7], [0.2, -0.3]]), [1.7, -0.8]),
}
FIRST = "two entries part"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.first_tier(FIRST)
def test_what_is_drawn_is_within_its_account(name):
    case = CASES[name]()
    for epsilon in (0.05, 0.3, 1.0) if name == FIRST else (0.0, 0.05, 0.3, 1.0, 2.0):
        assert case.true_delta(epsilon) <= case.accounted_delta(epsilon)


def test_an_account_without_roundings_would_be_too_small():
    """All entries of a sum may be rounded apart by an example of next to no norm."""
    case = CASES[FIRST]()
    for epsilon in (0.3, 1.0):
        assert case.true_delta(epsilon) > 2 * case.accounted_delta(epsilon, roots=False)


@pytest.mark.exhaustive
def test_random_queries_are_within_their_accounts():
    rng = np.random.default_rng(0)
    for _ in range(12):
        d, q, s = int(rng.integers(1, 3)), float(rng.choice([0.05, 0.3, 1.0])), float(rng.choice([2.0, 3.0]))
        case = Case(s, q, rng.uniform(-2, 2, (int(rng.integers(1, 4)), d)), rng.uniform(-1, 1, d))
        for epsilon in (0.1, 0.7):
            assert case.true_delta(epsilon) <= case.accounted_delta(epsilon)
