"""Gaussian differential privacy and (epsilon, delta), against mpmath; honesty apart from accuracy."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

from jaxacct import Gaussian, rdp
from jaxacct.convert import dp_to_gdp, gdp_to_delta, gdp_to_epsilon, gdp_to_rdp


def delta_of(mu, epsilon):
    """Returns Bu et al. (2020), equation 3.2, with digits enough for its difference and for e^epsilon."""
    mp.mp.dps = 60 + int(epsilon / 2) + int((epsilon / mu) ** 2 / 4) + max(0, int(-2 * np.log10(mu)))
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def random_settings(seed, count):
    """Returns mu in [1e-6, 30] and epsilon with epsilon/mu - mu/2 in [-3, 36.5]: delta from 1 - 1e-3 to 1e-291."""
    rng = np.random.default_rng(seed)
    mu, a = np.exp(rng.uniform(np.log(1e-6), np.log(30), count)), rng.uniform(-3, 36.5, count)
    epsilon = mu * (a + mu / 2)
    return mu[epsilon >= 0], epsilon[epsilon >= 0]


@pytest.mark.exhaustive
def test_delta_is_above_the_formula_and_near_it():
    count = draws(60, 250)
    mu, epsilon = random_settings(0, count)
    assert len(mu) > 0.8 * count
    truths = [delta_of(*setting) for setting in zip(mu, epsilon, strict=True)]
    excess = np.array([float(mp.mpf(float(v)) / t - 1) for v, t in zip(gdp_to_delta(mu, epsilon), truths, strict=True)])
    assert np.all(excess >= 0)
    assert np.max(excess) < 1e-10


@pytest.mark.exhaustive
def test_epsilon_keeps_within_delta_and_wastes_nothing():
    mu = np.array([1e-3, 0.1, 1.0, 8.0])[:, None] * np.ones(5)
    delta = np.array([0.9, 0.1, 1e-5, 1e-100, 1e-300]) * np.ones((4, 1))
    for m, d, e in zip(mu.ravel(), delta.ravel(), gdp_to_epsilon(mu, delta).ravel(), strict=True):
        assert delta_of(m, e) <= d
        if e > 0:
            assert delta_of(m, e * (1 - 1e-9)) > d


def test_largest_mu_keeps_within_the_budget_and_wastes_nothing():
    epsilon = np.array([0.0, 1e-3, 1.0, 20.0])[:, None] * np.ones(5)
    delta = np.array([0.9, 0.1, 1e-5, 1e-100, 1e-300]) * np.ones((4, 1))
    for e, d, m in zip(epsilon.ravel(), delta.ravel(), dp_to_gdp(epsilon, delta).ravel(), strict=True):
        assert delta_of(m, e) <= d < delta_of(m * (1 + 1e-9), e)


def test_published_values():
    # F097: three Gaussians of noise sqrt(3) are 1-GDP. Bu et al. (2020), Table 1: mu = 1.13 and 0.23 at delta = 1e-5.
    assert gdp_to_delta(1.0, 1.0) == pytest.approx(0.126936737, abs=1e-9)
    assert gdp_to_epsilon(1.13, 1e-5) == pytest.approx(5.07, abs=0.03)
    assert gdp_to_epsilon(0.23, 1e-5) == pytest.approx(0.83, abs=0.03)


def test_divergence_is_the_gaussians():
    orders = [1.5, 2.0, 30.0]
    np.testing.assert_allclose(gdp_to_rdp(0.5, orders), rdp.curve(Gaussian(2.0), orders), rtol=1e-9)
    assert np.all(gdp_to_rdp(0.5, orders) >= np.array(orders) / 8)


def test_extremes():
    assert gdp_to_delta(0.0, 0.0) == 0
    assert gdp_to_epsilon(0.0, 1e-9) == 0
    assert gdp_to_delta(np.inf, 1.0) == 1
    assert gdp_to_epsilon(np.inf, 0.1) == np.inf
    assert 0 < gdp_to_delta(1.0, 1e6) < 1e-300
    assert gdp_to_delta(1.0, np.inf) < 1e-300
    assert gdp_to_delta(80.0, 0.0) == 1
    assert gdp_to_epsilon(2.0, 0.9) == 0


def test_traced_values_and_nonsense():
    mu = jnp.array([1.0, -1.0, jnp.nan, 1.0, 1.0])
    other = jnp.array([0.25, 0.25, 0.25, -0.25, jnp.nan])
    delta, epsilon, largest = (
        np.asarray(jax.jit(jax.vmap(f))(mu, other)) for f in (gdp_to_delta, gdp_to_epsilon, dp_to_gdp)
    )
    assert delta.dtype == np.float64
    assert delta[0] == gdp_to_delta(1.0, 0.25)
    assert epsilon[0] == pytest.approx(gdp_to_epsilon(1.0, 0.25), rel=1e-14)
    assert largest[0] == pytest.approx(dp_to_gdp(1.0, 0.25), rel=1e-15)  # other programs, other last places
    # Below 0 epsilon has a delta, too.
    assert np.all(delta[[1, 2, 4]] == 1)
    assert np.all(epsilon[1:] == np.inf)
    assert np.all(largest[1:] == 0)
    with pytest.raises(ValueError, match="mu = -1"):
        gdp_to_delta(-1, 1.0)
    with pytest.raises(ValueError, match="delta = 0"):
        gdp_to_epsilon(1.0, 0.0)
    with pytest.raises(ValueError, match="epsilon = -1"):
        dp_to_gdp(-1.0, 0.1)


@pytest.mark.parametrize("mu", [1e-307, 1e-200, 1e-100])
def test_what_is_next_to_nothing_is_a_number(mu):
    assert 0 < gdp_to_delta(mu, 0.01) < 1e-300
    assert gdp_to_delta(mu, 0.0) >= mu / 2.6
