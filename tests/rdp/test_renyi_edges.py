"""Rényi curves at their edges: nothing released, order 1, order infinity, delta 0."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import rdp

EDGES = [1.0, 2.0, math.inf]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "mechanism",
    [
        ja.PureDP(0.0),
        ja.RandomizedResponse(0.0),
        ja.ApproximateDP(0.0, 0.0),
        ja.Gaussian(math.inf),
        ja.Laplace(math.inf),
        ja.PoissonSubsampledGaussian(math.inf, 0.1),
    ],
)
def test_what_releases_nothing_costs_nothing(mechanism):
    assert np.all(rdp.curve(mechanism, EDGES) == 0)
    assert rdp.epsilon(mechanism, 10, 1e-5) == 0
    assert rdp.epsilon(mechanism, 10, 0.0) == 0
    assert rdp.delta(mechanism, 10, 0.0) == 0


def test_a_rate_of_zero_costs_nothing_in_a_trace():
    curve = jax.jit(lambda q: rdp.curve(ja.PoissonSubsampledGaussian(0.5, q), [2.0, 8.0]))
    assert np.all(np.asarray(curve(0.0)) == 0)
    assert np.all(np.asarray(curve(-0.5)) == math.inf)


def test_order_one_is_the_kullback_leibler_divergence():
    cases = [
        (ja.Gaussian(2.0), 1 / 8),
        (ja.Laplace(1.0), math.exp(-1)),
        (ja.PureDP(0.5), 0.5 * math.tanh(0.25)),
        (ja.ApproximateDP(0.5, 0.1), math.inf),
    ]
    for mechanism, truth in cases:
        value = rdp.curve(mechanism, EDGES)[0]
        assert truth <= value <= truth * (1 + 1e-9)


@pytest.mark.exhaustive
def test_order_infinity_is_the_supremum_of_the_loss():
    rate = 0.1
    cases = [
        (ja.Gaussian(2.0), "remove", math.inf),
        (ja.PoissonSubsampledGaussian(1.0, rate), "remove", math.inf),
        (ja.PoissonSubsampledGaussian(1.0, rate), "add", -math.log1p(-rate)),
        (ja.PoissonSubsampledLaplace(1.0, rate), "remove", math.log1p(rate * math.expm1(1))),
        (ja.Laplace(0.5), "replace", 4.0),
        (ja.DiscreteLaplace(2.0), "add", 0.5),
        (ja.DiscreteGaussian(2.0), "add", math.inf),
        (ja.RandomAllocation(1.0, 10), "add", math.inf),
        (ja.DiscretePair([0.75, 0.25], [0.25, 0.75]), "add", math.log(3)),
        (ja.DiscretePair([0.75, 0.25], [1.0, 0.0]), "remove", math.inf),
    ]
    for mechanism, relation, truth in cases:
        value = rdp.curve(mechanism, EDGES, relation=relation)[-1]
        assert truth <= value <= truth * (1 + 1e-9)


@pytest.mark.exhaustive
def test_delta_zero_asks_for_the_pure_epsilon():
    both = ja.PureDP(1.0), ja.Laplace(2.0)
    assert 3.5 <= rdp.epsilon(both, (2, 3), 0.0) <= 3.5 * (1 + 1e-9)
    assert rdp.epsilon((*both, ja.Gaussian(1.0)), (2, 3, 1), 0.0) == math.inf
    assert rdp.epsilon((*both, ja.Gaussian(1.0)), (2, 3, 0), 0.0) < 4
    assert rdp.epsilon(ja.ApproximateDP(1.0, 0.5), 1, 0.0) == math.inf
    # At a tiny delta finite orders say less than the infinite one.
    capped = rdp.epsilon(both, (2, 3), 1e-300, orders=[2.0, 64.0, math.inf])
    assert capped <= 3.5 * (1 + 1e-9) < rdp.epsilon(both, (2, 3), 1e-300, orders=[2.0, 64.0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_sums_that_miss_one_by_rounding_are_counted(seed):
    """Against exact fractions of the numbers as they are given."""
    rng = np.random.default_rng(seed)
    for _ in range(25):
        n = int(rng.integers(2, 6))
        p = rng.random(n)
        p /= p.sum()
        q = p * (1 + rng.normal(size=n) * 10.0 ** rng.uniform(-16, -12))
        q /= q.sum()
        for relation, (first, second) in {"remove": (p, q), "add": (q, p)}.items():
            found = ja.rdp.delta(ja.DiscretePair(p, q), 1, 0.0, relation=relation)
            pairs = zip(first.tolist(), second.tolist(), strict=True)
            assert Fraction(float(found)) >= sum(max(Fraction(a) - Fraction(b), Fraction(0)) for a, b in pairs)
            assert found < 1e-11


@pytest.mark.exhaustive
@pytest.mark.first_tier("1000000")
@pytest.mark.parametrize("runs", [10, 10**6, 10**9])
def test_what_the_sum_of_q_misses_counts_in_every_run(runs):
    """Where P is Q but for that, delta at 0 is what the product of all Q misses, and a divergence what one does."""
    missing = 9e-13
    pair = ja.DiscretePair(np.array([0.5, 0.5]), np.array([0.5, 0.5 - missing]))
    exact = -np.expm1(runs * np.log1p(-missing))
    assert ja.rdp.delta(pair, runs, 0.0, relation="remove") >= exact
    if runs != 10**6:  # the others are of the second tier
        assert ja.epsilon(pair, runs, 0.1 * exact, relation="remove").upper > 0
        assert ja.rdp.curve(pair, [2.0], relation="remove")[0] >= missing
