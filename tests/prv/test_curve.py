"""Privacy profiles and trade-off curves against the Gaussian's closed forms."""

import jax
import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_judged
from helpers.oracle import gaussian_delta
from helpers.thorough import cases

import jaxacct as ja
from jaxacct.bounds import Bounds

POINTS = 2**10
GRID = np.linspace(-6.0, 8.0, 29)
SETTINGS = [(10.0, 100), (1.0, 4), (1.0, 1), (20.0, 1)]


def row(bounds, i):
    return Bounds(lower=bounds.lower[i], estimate=bounds.estimate[i], upper=bounds.upper[i])


@pytest.mark.parametrize(("noise", "steps"), SETTINGS)
def test_profile_of_a_gaussian(noise, steps):
    delta = ja.prv.curve(ja.Gaussian(noise), steps, GRID, points=POINTS).delta
    with mpmath.workdps(60):
        mu = mpmath.sqrt(steps) / noise
    for i, epsilon in enumerate(GRID):
        assert_holds(row(delta, i), gaussian_delta(mu, float(epsilon)))
    np.testing.assert_array_equal(delta.converged, np.asarray(delta.gap) <= 1e-2)
    assert np.all(delta.upper < 1)
    assert np.all(np.diff(delta.upper) <= 1e-12)
    assert np.all(np.diff(delta.lower) <= 1e-12)


def test_profile_of_a_sampled_gaussian():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.05)
    profile = ja.prv.curve(mechanism, 300, np.linspace(0.0, 8.0, 29), points=POINTS)
    for i in (0, 14, 28):
        assert_judged("delta", mechanism, 300, profile.epsilon[i], row(profile.delta, i), refutes=i == 14)


@pytest.mark.exhaustive
def test_profile_of_no_steps_and_of_no_noise():
    nothing = ja.prv.curve(ja.Gaussian(1.0), 0, GRID, points=POINTS).delta
    truth = [max(float(-mpmath.expm1(e)), 0.0) for e in GRID]
    assert np.all(nothing.lower <= truth)
    assert np.all(truth <= nothing.upper)
    assert np.all(ja.prv.curve(ja.Gaussian(0.0), 1, GRID, points=POINTS).delta.upper == 1)


@pytest.mark.exhaustive
def test_default_range_of_a_profile():
    profile = ja.prv.curve(ja.Gaussian(2.0), 3, points=POINTS)
    assert profile.epsilon[0] == 0
    assert 1e-14 < profile.delta.upper[-1] < 1e-11
    with pytest.raises(ValueError, match="give the epsilons"):
        jax.jit(lambda s: ja.prv.curve(ja.Gaussian(s), 3, points=POINTS))(2.0)


def gaussian_tradeoff(mu, rate):
    """G_mu(a) = Phi(Phi^-1(1 - a) - mu) (Dong, Roth and Su 2022)."""
    with mpmath.workdps(40):
        if rate in (0, 1):
            return mpmath.mpf(1 - rate)
        quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(rate))
        return mpmath.ncdf(quantile - mu)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("noise", "steps"), cases(SETTINGS[:1], SETTINGS[1:]))
def test_tradeoff_of_a_gaussian(noise, steps):
    rates = np.array([0.0, 1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0])
    found = ja.tradeoff.curve(ja.Gaussian(noise), steps, rates)
    with mpmath.workdps(40):
        mu = mpmath.sqrt(steps) / noise
    for i, rate in enumerate(rates):
        assert_holds(row(found, i), gaussian_tradeoff(mu, float(rate)))
    assert np.all(np.diff(found.lower) <= 0)
    assert np.all(np.diff(found.upper) <= 0)
    # And it says something.
    assert np.all((found.upper - found.lower)[[4, 6]] < 0.01) or (noise, steps) != SETTINGS[0]


@pytest.mark.exhaustive
def test_tradeoff_without_noise_protects_from_nothing():
    found = ja.tradeoff.curve(ja.Gaussian(0.0), 1, [0.0, 0.3])
    assert np.all(found.lower == 0)
    assert np.all(found.upper <= [1.0, 0.7])
