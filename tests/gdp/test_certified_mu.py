"""The certified mu and its regret: brackets that contain what is known, and what they promise."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import program
from scipy import stats

import jaxacct as ja
from jaxacct import gdp
from jaxacct.gdp import POINTS, summarize
from jaxacct.numerics.precision import leave_scope
from jaxacct.tradeoff import Profile, certify_profile

ORACLE = pathlib.Path(__file__).parents[3] / "shared/oracles/delta_truth.json"


@pytest.mark.exhaustive
def test_bracket_contains_the_gaussian():
    # Of rate 1, but not told so: the general route.
    found = gdp.certified_mu(ja.PoissonSubsampledGaussian(10.0, 1.0), 1000)
    assert found.mu.lower <= np.sqrt(10) <= found.mu.upper
    assert found.mu.gap < 1e-3
    assert 0 <= found.regret.upper < 2e-4
    exact = gdp.certified_mu((ja.Gaussian(2.0), ja.Gaussian(np.array([1.0, 4.0]))), (4, np.array([1, 2])))
    assert exact.mu.lower <= np.sqrt(1 + 1 + 1 / 8) <= exact.mu.upper
    assert exact.mu.gap < 1e-13
    assert exact.delta == 0


def test_agrees_with_gdpnum():
    """gdpnum 0.1.2 gives 1.56850 and 0.001027, by a mesh of 1e-4 that only raises; mu is 1.56847 then.

    The regret moves with mu: by 0.13 for each unit of mu.
    """
    found = gdp.certified_mu(ja.PoissonSubsampledGaussian(9.4, 0.328), 2000)
    assert found.mu.upper == pytest.approx(1.56850, abs=5e-5)
    assert found.regret.upper == pytest.approx(0.001027, abs=5e-6)
    assert found.mu.gap < 1e-5
    assert found.regret.upper - found.regret.lower < 2e-6


@pytest.mark.exhaustive
@pytest.mark.skipif(not ORACLE.exists(), reason="no oracle values beside this checkout")
def test_promises_hold_for_exact_deltas():
    values = json.loads(ORACLE.read_text())
    some = [v for v in values if v["delta"] > 1e-12 and v["eps"] < 30][:6]
    assert len(some) == 6
    for v in some:
        found = gdp.certified_mu(ja.PoissonSubsampledGaussian(v["sigma"], v["q"]), v["k"])
        gaussian = gdp.gaussian_delta(found.mu.upper, v["eps"])
        assert v["delta"] <= max(gaussian, found.delta)
        if v["direction"] == "remove":
            assert gaussian <= v["delta"] + found.regret.upper * (1 + np.exp(v["eps"]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", [(1.0, 0.01, 10_000), (0.7, 256 / 60_000, 10_547)])
def test_promises_hold_between_the_places_of_the_grid(setting):
    s, q, k = setting
    mechanism = ja.PoissonSubsampledGaussian(s, q)
    found = gdp.certified_mu(mechanism, k)
    assert found.mu.gap < 1e-5
    epsilons = np.linspace(0, 12, 256)
    exact = leave_scope(certify_profile(mechanism, k, epsilons, "add_or_remove"))
    gaussian = gdp.gaussian_delta(found.mu.upper, epsilons)
    assert np.all(exact.lower <= np.maximum(gaussian, found.delta))
    assert np.all(gaussian <= exact.upper + found.regret.upper * (1 + np.exp(epsilons)))
    # A smaller mu is above the curve at some rate: f is the supremum of its tangents, of which the grid has enough.
    rates = np.geomspace(1e-10, 0.1, 200)
    curve = np.array([np.max(1 - exact.lower - np.exp(epsilons) * rate) for rate in rates])
    assert np.any(curve < stats.norm.cdf(stats.norm.isf(rates) - 0.999 * found.mu.lower))
    assert np.all(curve >= stats.norm.cdf(stats.norm.isf(rates) - 1.001 * found.mu.upper))


def exact_profile(delta_of, end):
    epsilon = end * np.linspace(0, 1, POINTS)
    delta = delta_of(epsilon)
    return Profile(*(jnp.asarray(v) for v in (epsilon, delta, delta)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("epsilon", "value"), [(np.log(3), 1.34898), (np.log(0.55 / 0.45), 0.25132)])
def test_randomized_response(epsilon, value):
    """Its curve is below 1 at rates under 1/(1 + e^epsilon), where G_mu touches its corner (facts F105 and F106)."""
    chance = 1 / (1 + np.exp(-epsilon))
    with jax.enable_x64(True):
        profile = exact_profile(lambda e: np.maximum(chance - np.exp(e) * (1 - chance), 0), 1.5 * epsilon)
        found = leave_scope(summarize(profile, jnp.asarray(1e-10), True)[0])
    assert found.mu.lower <= 2 * stats.norm.ppf(chance) + 1e-12
    assert 2 * stats.norm.ppf(chance) <= found.mu.upper
    assert found.mu.upper == pytest.approx(value, rel=2e-3)
    # The corner of f against the curve of G_mu.
    rates = np.linspace(1e-9, 1 - chance, 1000)[:-1]
    assert np.all(1 - np.exp(epsilon) * rates >= stats.norm.cdf(stats.norm.isf(rates) - found.mu.upper))


@pytest.mark.exhaustive
def test_loose_bounds_stay_bounds():
    """A bracket of 1 % around a Gaussian profile: mu and regret are bracketed still."""
    with jax.enable_x64(True):
        epsilon = 9 * np.linspace(0, 1, POINTS)
        delta = gdp.gaussian_delta(1.3, epsilon)
        profile = Profile(*(jnp.asarray(v) for v in (epsilon, 0.99 * delta, np.minimum(1.01 * delta, 1))))
        found = leave_scope(summarize(profile, jnp.asarray(1e-10), True)[0])
    assert found.mu.lower <= 1.3 <= found.mu.upper < 1.35
    attained = (gdp.gaussian_delta(found.mu.upper, epsilon) - delta) / (1 + np.exp(epsilon))
    assert np.max(attained) <= found.regret.upper


@pytest.mark.exhaustive
def test_nothing_known_is_infinite():
    for found in (
        gdp.certified_mu(ja.Gaussian(0.0), 1),
        gdp.certified_mu(ja.PoissonSubsampledGaussian(0.0, 1.0), 10),
    ):
        assert found.mu.upper == np.inf
        assert found.delta == found.regret.upper == 1
    assert gdp.certified_mu(ja.Gaussian(1.0), 0).mu.upper == 0


@pytest.mark.exhaustive
def test_traced():
    noise = 1.2

    def summary(s):
        return gdp.certified_mu(ja.PoissonSubsampledGaussian(s, 0.01), 10_000)

    with jax.enable_x64(True):
        found, exact = program(summary)(noise), summary(noise)
    assert exact.mu.lower <= np.asarray(found.mu.upper) <= exact.mu.upper * (1 + 1e-3)
    assert np.asarray(found.mu.lower) <= exact.mu.upper
    assert exact.regret.lower <= np.asarray(found.regret.upper) <= exact.regret.upper * 1.2
    squared = jax.vmap(lambda s: gdp.certified_mu(ja.Gaussian(s), 4).mu.upper)(np.array([1.0, 2.0]))
    np.testing.assert_allclose(squared, [2.0, 1.0], rtol=1e-6)


def test_rates_are_checked():
    with pytest.raises(ValueError, match=r"fpr = 0\.5 is not an error rate"):
        gdp.certified_mu(ja.Gaussian(1.0), 1, fpr=0.5)
