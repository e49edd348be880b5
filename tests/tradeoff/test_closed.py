"""Trade-off functions with closed forms."""

import jax
import mpmath
import numpy as np
import pytest

from jaxacct import gdp, tradeoff


def true_gaussian(mu, rate):
    with mpmath.workdps(250):
        quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(float(rate)))
        return mpmath.ncdf(quantile - mpmath.mpf(float(mu)))


def test_gaussian_against_fifty_digits():
    rng = np.random.default_rng(0)
    mus, rates = rng.uniform(0, 12, 30), np.concatenate([10 ** rng.uniform(-200, 0, 15), rng.uniform(0, 1, 15)])
    for mu, rate, found in zip(mus, rates, tradeoff.gaussian(mus, rates), strict=True):
        truth = true_gaussian(mu, rate)
        if truth > 1e-200:
            assert abs(found / truth - 1) < 1e-12


def test_gaussian_is_its_own_inverse_and_dual_to_delta():
    mu = 1.3
    epsilon = np.linspace(0, 6, 30)
    # Where G_mu has slope -e^epsilon.
    touching = mpmath_ndtr(-epsilon / mu - mu / 2)
    supported = 1 - tradeoff.gaussian(mu, touching) - np.exp(epsilon) * touching
    np.testing.assert_allclose(supported, gdp.gaussian_delta(mu, epsilon), rtol=1e-10, atol=1e-14)
    rates = np.linspace(0.01, 0.99, 30)
    np.testing.assert_allclose(tradeoff.gaussian(mu, tradeoff.gaussian(mu, rates)), rates, rtol=1e-10)


def mpmath_ndtr(values):
    return np.array([float(mpmath.ncdf(mpmath.mpf(float(v)))) for v in values])


def test_approximate_dp_by_its_definition():
    """The least error of any test of binary randomized response with a leak, by trying all of them."""
    epsilon, delta = 0.7, 0.1
    chance = np.exp(epsilon) / (1 + np.exp(epsilon))
    p = np.array([delta, (1 - delta) * chance, (1 - delta) * (1 - chance), 0])
    q = p[::-1]
    # Outcomes in the order of p/q: the most powerful tests take a part of one of them.
    steps = np.concatenate([[0], np.cumsum(q)]), np.concatenate([[1], 1 - np.cumsum(p)])
    rates = np.linspace(0, 1, 50)
    direct = np.interp(rates, steps[0][1:], steps[1][1:])
    np.testing.assert_allclose(tradeoff.approximate_dp(epsilon, delta, rates), direct, atol=1e-14)


@pytest.mark.parametrize(
    "curve", [lambda a: tradeoff.gaussian(1.5, a), lambda a: tradeoff.approximate_dp(1.0, 0.05, a)]
)
def test_curves_are_convex_and_below_perfect(curve):
    rates = np.linspace(0, 1, 101)
    values = curve(rates)
    assert np.all(values <= tradeoff.perfect(rates))
    assert np.all(np.diff(values, 2) >= -1e-14)


def test_ends_and_transformations():
    np.testing.assert_array_equal(tradeoff.gaussian(2.0, [0.0, 1.0]), [1.0, 0.0])
    np.testing.assert_array_equal(tradeoff.gaussian(np.inf, [0.0, 0.5, 1.0]), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(tradeoff.approximate_dp(np.inf, 0.2, [0.0, 0.5]), [0.8, 0.0])
    traced = jax.jit(jax.vmap(tradeoff.gaussian, in_axes=(0, None)))(np.array([1.0, -1.0]), np.array([0.5, 2.0]))
    np.testing.assert_allclose(traced, [[0.15865525, 0.0], [0.0, 0.0]], rtol=1e-6)


def test_values_out_of_range_are_named():
    with pytest.raises(ValueError, match=r"fpr = 1\.5"):
        tradeoff.gaussian(1.0, [0.5, 1.5])
    with pytest.raises(ValueError, match="epsilon = -1"):
        tradeoff.approximate_dp(-1.0, 0.0, 0.5)
