"""Mechanisms that are known by Rényi curves alone, against exact divergences of finite toys; all by NumPy."""

import math

import jax
import numpy as np
import pytest
from helpers.thorough import cases, draws

import jaxacct as ja
from jaxacct.mechanisms import PoissonSubsampled, RenyiOnly, SubsampledWithoutReplacement, ZeroConcentratedDP
from jaxacct.selection import TruncatedNegativeBinomial

ORDERS = np.array([1.05, 1.5, 2.0, 2.5, 3.0, 7.3, 20.0, 64.5, 128.0, 200.0])


def divergence(p, q, orders):
    orders = np.asarray(orders)[:, None]
    return np.logaddexp.reduce(orders * np.log(p) + (1 - orders) * np.log(q), axis=1) / (orders[:, 0] - 1)


class Exact:
    """Curves of the worst of given pairs, and their exact delta."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def of(self, mechanism, steps, orders):
        return np.max([divergence(p, q, orders) for p, q in self.pairs], axis=0)

    def delta(self, curve, orders, epsilon):
        steps = np.exp(np.asarray(epsilon))[:, None]
        return np.max([np.sum(np.maximum(p - steps * q, 0), axis=1) for p, q in self.pairs], axis=0)


def bound(mechanism, relation, curves):
    with jax.enable_x64(True):
        return np.asarray(mechanism.divergence(ORDERS, relation, curves))


def laws(rng, count):
    """Random laws of three outcomes: near each other, far apart, with rare outcomes."""
    spread = rng.choice([0.01, 0.3, 2.0])
    logs = rng.normal(size=3) + spread * rng.normal(size=(count, 3))
    return np.exp(logs) / np.sum(np.exp(logs), axis=1, keepdims=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(draws(6, 12)))
def test_poisson_samples_cost_no_more_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    (p, q), rate = laws(rng, 2), 10 ** rng.uniform(-3, 0)
    found = bound(PoissonSubsampled(ja.PureDP(1.0), 1, rate), "add_or_remove", Exact((p, q), (q, p)))
    for with_it, without in ((p, q), (q, p)):
        sampled = (1 - rate) * without + rate * with_it
        for one, other in ((sampled, without), (without, sampled)):
            assert np.all(divergence(one, other, ORDERS) <= found * (1 + 1e-9) + 1e-15)
    assert np.all(found <= Exact((p, q), (q, p)).of(None, 1, ORDERS) * (1 + 1e-9))


@pytest.mark.first_tier("2")
@pytest.mark.parametrize("seed", range(draws(6, 12)))
def test_samples_of_fixed_size_cost_no_more_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    (p, q, r), rate = laws(rng, 3), 10 ** rng.uniform(-3, 0)
    pairs = [(a, b) for a in (p, q, r) for b in (p, q, r) if a is not b]
    found = bound(SubsampledWithoutReplacement(ja.PureDP(1.0), 1, rate), "replace", Exact(*pairs))
    one, other = ((1 - rate) * r + rate * x for x in (p, q))
    assert np.all(divergence(one, other, ORDERS) <= found * (1 + 1e-9) + 1e-15)


def best_of(law, mean, shape):
    """The law of the best of K draws, the last outcome being the best; for Poisson's law with that of no draw."""
    below = np.concatenate([[0.0], np.cumsum(law)])
    below[-1] = 1.0
    if shape == math.inf:
        generated = np.exp(mean * (below - 1))
        return np.concatenate([[generated[0]], np.diff(generated)])

    def expected(g):
        return (1 / g - 1) / math.log(1 / g) if shape == 0 else shape * (1 / g - 1) / (1 - g**shape)

    low, high = 1e-9, 1.0 - 1e-12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) > mean else (low, middle)
    g = (low + high) / 2
    if shape == 0:
        generated = np.log(1 - (1 - g) * below) / math.log(g)
    else:
        generated = ((1 - (1 - g) * below) ** -shape - 1) / (g**-shape - 1)
    return np.diff(generated)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 4.0, math.inf])
@pytest.mark.parametrize("seed", range(draws(2, 4)))
def test_the_best_of_many_runs_costs_no_more_than_the_bound(seed, shape):
    rng = np.random.default_rng(seed)
    (p, q), mean = laws(rng, 2), float(rng.uniform(1.5, 30.0))
    trials = ja.selection.Poisson(mean) if shape == math.inf else TruncatedNegativeBinomial(mean, shape)
    mechanism = ja.RepeatAndSelect(ja.PureDP(1.0), 1, trials)
    found = bound(mechanism, "add_or_remove", Exact((p, q), (q, p)))
    one, other = (best_of(law, mean, shape) for law in (p, q))
    assert np.all(np.maximum(divergence(one, other, ORDERS), divergence(other, one, ORDERS)) <= found * (1 + 1e-6))


def test_one_run_is_one_run():
    curves = Exact((np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])))
    for shape in (0.0, 1.0):
        found = bound(
            ja.RepeatAndSelect(ja.PureDP(1.0), 1, TruncatedNegativeBinomial(1.0, shape)), "add_or_remove", curves
        )
        np.testing.assert_allclose(found, curves.of(None, 1, ORDERS), rtol=1e-12)


def test_concentrated_privacy_is_no_below_a_gaussian_that_has_it():
    mechanism = ZeroConcentratedDP(rho=0.005)
    found = ja.epsilon(mechanism, steps=100, delta=1e-5)
    assert (found.lower, bool(found.converged)) == (0.0, False)
    assert ja.epsilon(ja.Gaussian(10.0), steps=100, delta=1e-5).upper < found.upper
    assert found.upper == ja.rdp.epsilon(mechanism, steps=100, delta=1e-5)
    assert found.upper <= ja.convert.zcdp_to_epsilon(0.5, 1e-5) * (1 + 2e-3)


def test_a_pure_guarantee_among_them_stays_pure():
    assert ja.epsilon(ZeroConcentratedDP(0.0, 1.0), 3, 0.0).upper == pytest.approx(3.0, rel=1e-9)
    assert ja.epsilon(ZeroConcentratedDP(0.1, 1.0), 3, 0.0).upper == math.inf


def test_composes_with_what_has_pairs_and_with_failures():
    parts, steps = (ZeroConcentratedDP(0.005), ja.Gaussian(10.0), ja.ApproximateDP(0.1, 1e-7)), (50, 50, 3)
    both = ja.epsilon(parts, steps, 1e-5).upper
    assert ja.epsilon((ZeroConcentratedDP(0.005), ja.PureDP(0.1)), (100, 3), 1e-5).upper < both
    assert both <= ja.epsilon((ZeroConcentratedDP(0.005), ja.PureDP(0.1)), (100, 3), 9.69e-6).upper
    assert ja.epsilon(parts, steps, 2e-7).upper == math.inf
    assert ja.delta(parts, steps, 1e3).upper >= 3e-7 * (1 - 1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("delta", cases([1e-4], [1e-7, 0.03]))
def test_rényi_bounds_with_failures_hold(delta):
    run = ja.ApproximateDP(0.2, delta), 20
    assert ja.rdp.delta(*run, 2.0) >= ja.delta(*run, 2.0).lower
    budget = 1 - (1 - delta) ** 20 * (1 - 1e-3)
    assert math.inf > ja.rdp.epsilon(*run, budget) >= ja.epsilon(*run, budget).lower
    assert ja.rdp.curve(run[0], [2.0])[0] == math.inf


def test_a_failure_beside_dp_sgd_costs_its_delta():
    sampled = ja.PoissonSubsampledGaussian(1.0, 0.01)
    beside = ja.rdp.epsilon((sampled, ja.ApproximateDP(0.0, 1e-6)), (1000, 1), 1e-5)
    alone = ja.rdp.epsilon(sampled, 1000, 9e-6)
    assert alone <= beside <= alone * (1 + 1e-5)


def test_what_needs_a_pair_says_what_to_use():
    with pytest.raises(ValueError, match="known by its Rényi curve alone"):
        ja.prv.epsilon(ZeroConcentratedDP(0.1), 1, 1e-5)
    with pytest.raises(ValueError, match="relation = 'add_or_remove'"):
        ja.epsilon(SubsampledWithoutReplacement(ja.Gaussian(1.0), 1, 0.1), 1, 1e-5)
    with pytest.raises(ValueError, match="rho = -1"):
        ZeroConcentratedDP(-1.0)
    with pytest.raises(ValueError, match=r"mean = 0\.5"):
        ja.RepeatAndSelect(ja.Gaussian(1.0), 1, TruncatedNegativeBinomial(0.5, 1.0))


def test_traced_nonsense_costs_everything():
    def cost(rho):
        return ja.epsilon(ZeroConcentratedDP(rho), 100, 1e-5).upper

    found = jax.jit(jax.vmap(cost))(np.array([0.005, -1.0, np.nan]))
    np.testing.assert_allclose(found[0], cost(0.005), rtol=1e-6)
    assert np.all(np.isinf(found[1:]))


def test_a_curve_of_your_own_is_one():
    assert issubclass(ZeroConcentratedDP, RenyiOnly)


SEEN = ja.DiscretePair([0.99, 0.01], [1.0, 0.0])
"""A sampled example without noise."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "run", cases([SEEN], [ja.PoissonSubsampledGaussian(0.05, 0.01)]), ids=lambda run: type(run).__name__
)
def test_a_search_is_not_known_one_way(run):
    """The best of K runs on a sampled example: the event that it took part is likelier one way than the other."""
    search = ja.RepeatAndSelect(run, 1, TruncatedNegativeBinomial(100.0, 1.0))
    # Outcomes above 1/2 are best: without the example none is, with it the geometric law's best is one with 1 - g(.99).
    geometric = 0.01 * 0.99 / (1 - 0.99 * 0.99)
    assert ja.delta(search, 1, 0.2).upper >= 1 - np.exp(0.2) * geometric > 0.3
    for relation in ("add", "remove"):
        with pytest.raises(ValueError, match="not supported by RepeatAndSelect"):
            ja.delta(search, 1, 0.2, relation=relation)


def test_what_is_made_of_others_can_be_lowered_and_asked_often():
    for mechanism in (
        ja.RepeatAndSelect(ja.Gaussian(5.0), 1, TruncatedNegativeBinomial(10.0, 1.0)),
        ja.PoissonSubsampled(ja.ZeroConcentratedDP(0.01), 1, 0.1),
    ):
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), np.float32), mechanism)
        assert jax.eval_shape(lambda mechanism: ja.rdp.epsilon(mechanism, 1, 1e-5), shapes).shape == ()
        assert jax.tree.unflatten(jax.tree.structure(mechanism), [object()] * len(jax.tree.leaves(mechanism)))
