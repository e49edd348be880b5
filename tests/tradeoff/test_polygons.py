"""Trade-off curves as arrays: duality, subsampling, inverse and double conjugate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct import gdp, tradeoff


def polygon(seed, count=12):
    """A random convex curve from (0, b) with b <= 1 to (1, 0), below 1 - fpr."""
    rng = np.random.default_rng(seed)
    q, p = rng.dirichlet(np.ones(count)), rng.dirichlet(np.ones(count))
    order = np.argsort(-p / q)
    fpr, fnr = np.concatenate([[0], np.cumsum(q[order])]), np.concatenate([[1], 1 - np.cumsum(p[order])])
    fpr[-1], fnr[-1] = 1, 0
    return fpr, fnr


def test_delta_and_back():
    epsilon = np.linspace(0, 8, 60)
    delta = gdp.gaussian_delta(1.2, epsilon)
    rates = np.unique(np.concatenate([np.linspace(0, 1, 200), tangent_rates(1.2, epsilon)]))
    lower = tradeoff.from_delta(epsilon, delta, rates)
    # Every epsilon's tangent touches the polygon at one of the rates.
    np.testing.assert_allclose(tradeoff.to_delta(rates, lower, epsilon), delta, rtol=1e-9, atol=1e-13)
    # A polygon of tangents lies below, one through points of the curve above; so do and so don't their deltas.
    exact = tradeoff.gaussian(1.2, rates)
    assert np.all(lower <= exact + 1e-15)
    assert np.all(tradeoff.to_delta(rates, exact, epsilon) <= delta + 1e-15)
    np.testing.assert_allclose(tradeoff.to_delta(rates, exact, epsilon), delta, rtol=1e-10, atol=1e-14)


def tangent_rates(mu, epsilon):
    from scipy import stats

    return stats.norm.cdf(-epsilon / mu - mu / 2)


def test_from_delta_is_the_supremum_of_both_sides():
    epsilon, delta = np.array([0.0, 0.5, 1.5]), np.array([0.4, 0.2, 0.05])
    rates = np.linspace(0, 1, 101)
    each = [tradeoff.approximate_dp(e, d, rates) for e, d in zip(epsilon, delta, strict=True)]
    np.testing.assert_allclose(tradeoff.from_delta(epsilon, delta, rates), np.max(each, axis=0), atol=1e-15)


def test_subsampling_is_that_of_the_mixture():
    """p f + (1-p) Id against the likelihood-ratio tests of ((1-p) Q + p P, Q), by brute force."""
    fpr, fnr = polygon(1)
    q, p = np.diff(fpr), -np.diff(fnr)
    rate = 0.3
    mixture = (1 - rate) * q + rate * p
    order = np.argsort(-mixture / q)
    a, b = np.concatenate([[0], np.cumsum(q[order])]), np.concatenate([[1], 1 - np.cumsum(mixture[order])])
    np.testing.assert_allclose(np.interp(fpr, a, b), tradeoff.subsampled(fpr, fnr, rate), atol=1e-14)


def test_inverse_exchanges_the_errors():
    fpr, fnr = polygon(2)
    back = tradeoff.inverse(*tradeoff.inverse(fpr, fnr))
    np.testing.assert_array_equal(back, (fpr, fnr))
    rates = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(
        tradeoff.at(*tradeoff.inverse(fpr, fnr), tradeoff.at(fpr, fnr, rates)), rates, atol=1e-12
    )


def hull_by_chords(a, b):
    """The least of all chords over each place: the definition."""
    least = b.copy()
    for i, x in enumerate(a):
        for j in range(len(a)):
            for k in range(len(a)):
                if a[j] <= x <= a[k] and a[j] < a[k]:
                    share = (x - a[j]) / (a[k] - a[j])
                    least[i] = min(least[i], b[j] + share * (b[k] - b[j]))
    return least


@pytest.mark.parametrize("seed", range(4))
def test_convex_minorant_is_the_least_of_all_chords(seed):
    rng = np.random.default_rng(seed)
    a = np.sort(np.concatenate([[0, 1], rng.uniform(size=18)]))
    b = np.sort(np.concatenate([[0, 1], rng.uniform(size=18)]))[::-1]
    np.testing.assert_allclose(tradeoff.convex_minorant(a, b), hull_by_chords(a, b), atol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_symmetrized_is_the_greatest_convex_function_below_both(seed):
    fpr, fnr = polygon(seed)
    fnr = tradeoff.subsampled(fpr, fnr, 0.4)
    rates, misses = tradeoff.symmetrized(fpr, fnr)
    both = np.minimum(np.interp(rates, fpr, fnr), np.interp(rates, *tradeoff.inverse(fpr, fnr)))
    assert np.all(misses <= both + 1e-14)
    np.testing.assert_allclose(misses, hull_by_chords(rates, both), atol=1e-12)
    # Its own inverse, so that both exchanges have the same deltas: the larger of the two.
    epsilon = np.linspace(0, 2, 9)
    deltas = [tradeoff.to_delta(fpr, fnr, epsilon), tradeoff.to_delta(*tradeoff.inverse(fpr, fnr), epsilon)]
    np.testing.assert_allclose(tradeoff.to_delta(rates, misses, epsilon), np.max(deltas, axis=0), atol=1e-14)


def test_pair_has_the_curve():
    fpr, fnr = polygon(5)
    mechanism = tradeoff.pair(fpr, fnr)
    epsilon = np.linspace(-2, 2, 9)
    direct = [np.sum(np.maximum(mechanism.p - np.exp(e) * mechanism.q, 0)) for e in epsilon]
    np.testing.assert_allclose(tradeoff.to_delta(fpr, fnr, epsilon), direct, atol=1e-14)


def test_transformations():
    fpr, fnr = polygon(6)
    curves = np.stack([fnr, tradeoff.subsampled(fpr, fnr, 0.5)])
    found = jax.jit(jax.vmap(lambda b: tradeoff.symmetrized(fpr, b)[1]))(curves)
    for row, values in zip(found, curves, strict=True):
        np.testing.assert_allclose(row, tradeoff.symmetrized(fpr, values)[1], atol=1e-6)
    found = jax.jit(lambda d: tradeoff.from_delta([0.0, 1.0], d, [0.1, 0.2]))(np.array([0.3, 0.1]))
    np.testing.assert_allclose(found, tradeoff.from_delta([0.0, 1.0], [0.3, 0.1], [0.1, 0.2]), atol=1e-6)


@pytest.mark.parametrize("curve", [([0.0, 0.5], [1.0, 1.2]), ([0.5, 0.0], [1.0, 0.0]), ([0.0, 1.0], [0.0, 1.0])])
def test_curves_that_are_none_are_refused(curve):
    with pytest.raises(ValueError, match="are no trade-off curve"):
        tradeoff.symmetrized(*curve)


def test_traced_nonsense_promises_nothing():
    rates, fnr = np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.2, 0.0])
    sampled = jax.jit(lambda rate: tradeoff.subsampled(rates, fnr, rate))
    for rate in (-0.1, 1.1, np.nan):
        np.testing.assert_array_equal(sampled(rate), 0.0)
    supremum = jax.jit(lambda e, d: tradeoff.from_delta(jnp.stack([0 * e, e]), jnp.stack([d, d]), rates))
    for epsilon, delta in ((-1.0, 0.1), (np.nan, 0.1), (1.0, -0.1), (1.0, np.nan)):
        np.testing.assert_array_equal(supremum(epsilon, delta), 0.0)
    deltas = jax.jit(lambda shift, e: tradeoff.to_delta(rates, fnr + shift, jnp.stack([e])))
    for shift, epsilon in ((np.nan, 1.0), (0.5, 1.0), (0.0, np.nan)):
        np.testing.assert_array_equal(deltas(shift, epsilon), 1.0)
