"""Tests of the proof of the Gaussian curve's margins: the rule's error, its nodes, and quantiles that it certifies."""

import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jaxacct import PureDP
from jaxacct.convert import mechanism_to_gdp
from jaxacct.mechanisms import normal
from jaxacct.mechanisms.normal import LOWEST, NODES, STEP, WEIGHTS, quantile


def modulus(t, mu, height):
    """The integral of the integrand's modulus on the line at a height above the real one, with 40 digits."""

    def integrand(x):
        grown = mp.exp(x + 1j * height)
        s = mp.log(1 + grown)
        return abs(mp.exp(-t * s - s**2 / 2) * (1 - mp.exp(-mu * s)) * grown / (1 + grown))

    return mp.quad(integrand, np.linspace(-90, 20, 45).tolist())


@pytest.mark.first_tier("1e-06-1000.0", "1.0-38.0")
@pytest.mark.parametrize("t", [-8.5, 0.0, 2.0, 38.0, 1000.0])
@pytest.mark.parametrize("mu", [1e-6, 1.0, 1e6])
def test_the_integrand_off_the_line_is_what_the_rules_error_allows(t, mu):
    mp.mp.dps = 20
    on = modulus(mp.mpf(t), mp.mpf(mu), mp.mpf(0))
    for height in (0.7, 1.4):
        assert modulus(mp.mpf(t), mp.mpf(mu), mp.mpf(height)) <= mp.exp(height**2 / 2) / mp.cos(height) ** 3 * on
    error = 2 * mp.exp(mp.mpf(1.4) ** 2 / 2) / mp.cos(1.4) ** 3 / mp.expm1(2 * mp.pi * 1.4 / mp.mpf(STEP))
    assert error < 1.8e-16


def test_nodes_and_weights_are_right_and_reach_far_enough():
    mp.mp.dps = 40
    places = [mp.mpf(STEP) * x for x in range(-201, 85)]
    exact = [mp.log(1 + mp.exp(x)) for x in places]
    weights = [mp.mpf(STEP) / (mp.sqrt(2 * mp.pi) * (1 + mp.exp(-x))) for x in places]
    unit = mp.mpf(2) ** -53
    assert max(abs(mp.mpf(float(s)) / truth - 1) for s, truth in zip(NODES, exact, strict=True)) < 4 * unit
    assert max(abs(mp.mpf(float(w)) / truth - 1) for w, truth in zip(WEIGHTS, weights, strict=True)) < 6 * unit
    # What lies beyond: below the first node at most its s of F there, and above the last a normal tail.
    assert NODES[0] * (40 + 1.25) < unit
    for t in (LOWEST, 0.0, 38.0):
        last = mp.mpf(float(NODES[-1]))
        whole = mp.quad(lambda s, t=t: mp.exp(-t * s - s**2 / 2) * -mp.expm1(-s / 10**6), [0, 1, 10, 40])
        beyond = mp.quad(lambda s, t=t: mp.exp(-t * s - s**2 / 2) * -mp.expm1(-s / 10**6), [last, 40])
        assert beyond < unit * whole


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_errors_of_log_delta_and_its_roots_are_bounds(seed):
    """Against 400 digits: log delta within its error, roots within their brackets."""
    rng = np.random.default_rng(seed)
    count = 60
    mu, epsilon = settings(count, rng)
    other, delta = 10 ** rng.uniform(-8, 4, count), 10 ** rng.uniform(-300, 0, count)
    delta = np.where(rng.random(count) < 0.2, 1 - 10 ** rng.uniform(-9, -1, count), delta)
    with jax.enable_x64(True):
        value, error = (np.asarray(v) for v in jax.jit(normal.log_delta_at)(mu, epsilon))
        low, high = (np.asarray(v) for v in jax.jit(jax.vmap(normal.epsilon_bounds))(other, delta))
        least, most = (np.asarray(v) for v in jax.jit(jax.vmap(normal.mu_bounds))(epsilon, delta))
    for i in range(count):
        with mp.workdps(400):
            assert abs(mp.mpf(float(value[i])) - mp.log(true_delta(mu[i], epsilon[i]))) <= mp.mpf(float(error[i]))
            assert true_delta(other[i], high[i]) <= delta[i]
            assert low[i] == 0 or true_delta(other[i], low[i]) >= delta[i]
            assert true_delta(least[i], epsilon[i]) <= delta[i] <= true_delta(most[i], epsilon[i])


def settings(count, rng):
    """Mus from 1e-8 to 1e4, epsilons for deltas from next to 1 to below 1e-300; every fifth epsilon is 0."""
    mu = 10 ** rng.uniform(-8, 4, count)
    epsilon = np.maximum(mu * (rng.uniform(-9, 38, count) + mu / 2), 0)
    return mu, np.where(rng.random(count) < 0.2, 0.0, epsilon)


def true_delta(mu, epsilon):
    mu, epsilon = mp.mpf(float(mu)), mp.mpf(float(epsilon))
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def test_quantiles_are_within_their_error():
    mp.mp.dps = 60
    tails = np.concatenate([np.geomspace(1e-300, 0.4, 20), 0.5 - np.geomspace(1e-15, 0.1, 10)])
    rates = np.concatenate([tails, 1 - tails[tails > 1e-12]])
    with jax.enable_x64(True):
        places, errors = (np.asarray(v) for v in jax.jit(jax.vmap(quantile))(jnp.asarray(rates)))
    for rate, place, error in zip(rates, places, errors, strict=True):
        below, above = (mp.ncdf(mp.mpf(float(place)) + side * mp.mpf(float(error))) for side in (-1, 1))
        assert below <= mp.mpf(rate) <= above
        assert error < 3e-13 * max(1, abs(place))


def test_the_gdp_of_a_pure_epsilon_is_bounded_closely():
    mp.mp.dps = 60
    for epsilon in (1e-12, 1e-4, 0.3, 0.5, 1.0, 30.0, 600.0):
        mu = mp.mpf(float(mechanism_to_gdp(PureDP(epsilon))))
        x = mp.mpf(epsilon)
        assert mp.ncdf(-mu / 2) <= 1 / (1 + mp.exp(x))
        assert mp.ncdf(-mu * (1 - mp.mpf(1e-8)) / 2) > 1 / (1 + mp.exp(x))


@pytest.mark.first_tier("1e-20-0.0", "1e-20-1000.0", "inf-37.0")
@pytest.mark.parametrize("t", [-8.5, 0.0, 5.0, 37.0, 1000.0])
@pytest.mark.parametrize("mu", [1e-20, 1.0, 1e12, 1e16, 1e18, np.inf])
def test_hardly_any_of_the_integral_is_beyond_the_nodes(t, mu):
    """Infinite mu is the integrand without F, as Mills' ratio takes it."""
    with mp.workdps(30):
        first, last = (mp.mpf(float(node)) for node in (NODES[0], NODES[-1]))

        def integrand(s):
            return mp.exp(-s * (s / 2 + t)) * (1 if mu == np.inf else -mp.expm1(-mu * s))

        scale = mp.mpf(1) / max(abs(t), 1)
        marks = {0, first, last, last + 10, *(first * mp.mpf(10) ** k for k in range(1, 40)), 20 * scale, 60 * scale}
        marks = sorted(mark for mark in marks | {mp.mpf(k) / 2 for k in range(1, 34)} if mark <= last + 10)
        parts = [mp.quad(integrand, ends) for ends in itertools.pairwise(marks)]
        outside = sum(part for part, end in zip(parts, marks[1:], strict=True) if end <= first or end > last)
        assert outside <= (mp.mpf("2e-17") + mp.mpf("2e-18") * max(t, 0)) * sum(parts)
