"""Tests of (epsilon, delta) guarantees on samples, and of trees, against exact divergences of toys."""

import mpmath as mp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms import DPWithoutReplacement, PoissonSubsampledDP, TreeAggregation


def delta_of(p, q, epsilon):
    return float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0)))


@pytest.mark.parametrize("seed", range(6))
def test_samples_keep_their_guarantee(seed):
    rng = np.random.default_rng(seed)
    logs = rng.normal(size=(3, 4))
    p, q, r = np.exp(logs) / np.sum(np.exp(logs), axis=1, keepdims=True)
    epsilon, rate = rng.uniform(0.1, 1.5), rng.uniform(0.01, 0.9)
    pairs = [(a, b) for a in (p, q, r) for b in (p, q, r) if a is not b]
    delta = max(delta_of(a, b, epsilon) for a, b in pairs)
    amplified = float(np.log1p(rate * np.expm1(epsilon)))
    one, other = (1 - rate) * r + rate * p, (1 - rate) * r + rate * q
    for mechanism, relation, a, b in [
        (PoissonSubsampledDP(epsilon, delta, rate), "add_or_remove", one, r),
        (PoissonSubsampledDP(epsilon, delta, rate), "add_or_remove", r, one),
        (DPWithoutReplacement(epsilon, delta, rate), "replace", one, other),
    ]:
        bounds = ja.saddlepoint.delta(mechanism, 1, amplified, relation=relation)
        assert delta_of(a, b, amplified) <= bounds.upper
        assert bounds.upper == pytest.approx(rate * delta, rel=1e-6, abs=1e-14)


def test_they_are_known_under_their_own_relation():
    with pytest.raises(ValueError, match="relation"):
        ja.epsilon(PoissonSubsampledDP(1.0, 0.0, 0.1), 1, 1e-5, relation="replace")
    with pytest.raises(ValueError, match="relation"):
        ja.epsilon(TreeAggregation(1.0, 3), 1, 1e-5)


def test_a_tree_is_its_gaussian():
    tree, gaussian = (ja.epsilon(m, 4, 1e-5, relation="replace") for m in (TreeAggregation(6.0, 9), ja.Gaussian(2.0)))
    assert gaussian.lower <= tree.upper <= gaussian.upper * (1 + 1e-9)


@pytest.mark.parametrize("kind", [ja.PoissonSubsampledDP, ja.DPWithoutReplacement])
@pytest.mark.parametrize("rate", [1e-16, 1e-12, 1e-8, 1e-4, 1e-2, 0.5])
def test_no_loss_of_a_sample_is_below_the_formula(kind, rate):
    """Also just above epsilon = 1, where another form of the logarithm begins, and for rates at which that cancels."""
    epsilon = np.concatenate([np.nextafter(1.0, [0.0, 2.0]), [1e-9, 0.5, 1.0, 1.1138, 1.3, 2.0, 5.0, 20.0, 700.0]])
    pair, *_ = kind(epsilon, np.zeros_like(epsilon), np.full_like(epsilon, rate)).dominating_pairs(kind.relations[0])
    with mp.workdps(60):
        for loss, given in zip(pair.losses[:, 1], epsilon, strict=True):
            truth = mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(float(given))))
            assert truth <= mp.mpf(float(loss)) <= truth * (1 + mp.mpf(10) ** -12), given


def test_one_sampled_run_costs_no_less_than_the_formula():
    for epsilon, rate in ((1.0, 1e-4), (1.0, 1e-8), (1.3, 1e-10)):
        found = ja.epsilon(ja.PoissonSubsampledDP(epsilon, 0.0, rate), 1, 0.0).upper
        with mp.workdps(60):
            assert mp.mpf(float(found)) >= mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(epsilon)))


@pytest.mark.exhaustive
def test_a_loss_of_a_sample_where_exponentials_overflow():
    """Beyond epsilon = 700, with q e^700 on both sides of 1."""
    epsilon, rate = map(
        np.ravel, np.meshgrid([690.0, 700.0, 700.5, 709.0, 750.0, 1400.0, 1500.0], [1e-307, 1e-304, 0.1])
    )
    pair, *_ = ja.PoissonSubsampledDP(epsilon, 0.0 * epsilon, rate).dominating_pairs("add_or_remove")
    with mp.workdps(700):
        for loss, e, q in zip(pair.losses[:, 1], epsilon, rate, strict=True):
            truth = mp.log1p(mp.mpf(float(q)) * mp.expm1(mp.mpf(float(e))))
            assert truth <= mp.mpf(float(loss)) <= truth * (1 + mp.mpf(10) ** -12), (e, q)


def test_what_underflows_on_a_sample_is_not_free():
    pair, *_ = ja.PoissonSubsampledDP(1e-20, 1e-20, 1e-300).dominating_pairs("add_or_remove")
    assert pair.losses[1] > 0
    assert pair.p[0] > 0
