"""Delta, epsilon and mu of a Gaussian trade-off function, against 60 digits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxacct import gdp
from jaxacct.mechanisms import normal

COUNT = 40
"""Settings of a test: one size, for each is compiled."""


def true_delta(mu, epsilon):
    """The definition, with as many digits as its difference loses."""
    mu, epsilon = mpmath.mpf(float(mu)), mpmath.mpf(float(epsilon))
    with mpmath.workdps(360):
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def settings(count, seed):
    """Mus from 1e-8 to 1e3, epsilons for deltas from above 0.9 to below 1e-300; every fifth epsilon is 0."""
    rng = np.random.default_rng(seed)
    mu = 10 ** rng.uniform(-8, 3, count)
    epsilon = np.maximum(mu * (rng.uniform(-6, 37, count) + mu / 2), 0)
    return mu, np.where(rng.random(count) < 0.2, 0.0, epsilon)


MU, EPSILON = settings(COUNT, 1)
TRUTH = [true_delta(mu, epsilon) for mu, epsilon in zip(MU, EPSILON, strict=True)]


def test_delta_is_an_upper_bound_and_tight():
    found = gdp.gaussian_delta(MU, EPSILON)
    assert found.dtype == np.float64
    for value, truth, mu, epsilon in zip(found, TRUTH, MU, EPSILON, strict=True):
        assert value >= truth
        if truth > 1e-307:
            assert value <= truth * (1 + mpmath.mpf(1e-13) * (1 + epsilon / mu + mu) ** 2)


def test_delta_of_negative_epsilons():
    # The trade-off function is symmetric, so this is the definition at -epsilon.
    found = gdp.gaussian_delta(MU, -EPSILON)
    for value, mu, epsilon in zip(found, MU, EPSILON, strict=True):
        truth = true_delta(mu, -epsilon)
        assert truth <= value <= truth * (1 + mpmath.mpf(1e-13) * (1 + epsilon / mu + mu) ** 2)


@pytest.mark.exhaustive
def test_epsilon_is_an_upper_bound_and_tight():
    rng = np.random.default_rng(2)
    mus, deltas = 10 ** rng.uniform(-3, 3, COUNT), 10 ** rng.uniform(-300, -0.05, COUNT)
    for mu, delta, found in zip(mus, deltas, gdp.gaussian_epsilon(mus, deltas), strict=True):
        assert true_delta(mu, found) <= delta
        if found > 0:
            assert true_delta(mu, found * (1 - 1e-11)) >= delta


@pytest.mark.exhaustive
def test_mu_is_on_the_safe_side_and_tight():
    rng = np.random.default_rng(3)
    epsilons = np.where(rng.random(COUNT) < 0.2, 0.0, 10 ** rng.uniform(-6, 3, COUNT))
    deltas = np.concatenate([10 ** rng.uniform(-300, -0.05, COUNT - 10), rng.uniform(0.1, 0.9, 10)])
    for epsilon, delta, found in zip(epsilons, deltas, gdp.gaussian_mu(epsilons, deltas), strict=True):
        assert true_delta(found, epsilon) <= delta
        with mpmath.workdps(40):
            assert true_delta(found * (1 + 1e-11), epsilon) >= delta


def test_round_trips_to_ten_digits():
    delta = gdp.gaussian_delta(MU, EPSILON)
    known = (delta > 1e-300) & (delta < 0.9)
    assert np.sum(known) > COUNT / 2
    mu, epsilon, delta = (np.where(known, x, 0.5) for x in (MU, EPSILON, delta))
    mu, delta = np.where(known, mu, 1.0), np.where(known, delta, gdp.gaussian_delta(1.0, 0.5))
    np.testing.assert_allclose(gdp.gaussian_mu(epsilon, delta), mu, rtol=1e-10)
    np.testing.assert_allclose(gdp.gaussian_delta(gdp.gaussian_mu(epsilon, delta), epsilon), delta, rtol=1e-10)
    back = gdp.gaussian_epsilon(mu, delta)
    np.testing.assert_allclose(gdp.gaussian_delta(mu, back), delta, rtol=1e-10)


def test_quadrature_meets_its_claim():
    """Delta and Mills' ratio against 40 digits."""
    with jax.enable_x64(True):
        for t in (-8.0, -2.0, -0.5, -0.2, 0.0, 0.7, 3.0, 12.0, 37.0):
            with mpmath.workdps(40):
                truth = mpmath.ncdf(-mpmath.mpf(t)) / mpmath.npdf(mpmath.mpf(t))
            assert t < 0 or abs(float(normal.mills(jnp.asarray(t))) / truth - 1) < 5e-15
            for mu in (1e-12, 1e-3, 0.3, 2.0, 20.0, 1e4):
                with mpmath.workdps(60):
                    a, b = mpmath.mpf(t), mpmath.mpf(t) + mpmath.mpf(mu)
                    truth = mpmath.ncdf(-a) / mpmath.npdf(a) - mpmath.ncdf(-b) / mpmath.npdf(b)
                    truth *= mpmath.exp(-(min(a, mpmath.mpf(0)) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)
                kept = normal.point(jnp.asarray(mu), jnp.asarray(t))[2]
                assert abs(float(kept) / truth - 1) < 1e-14


def test_ends_of_the_range():
    assert gdp.gaussian_delta(0.0, 1.0) <= 2.3e-308
    assert gdp.gaussian_delta(0.0, -1.0) == pytest.approx(1 - np.exp(-1), rel=1e-14)
    assert gdp.gaussian_delta(np.inf, 1.0) == 1
    assert gdp.gaussian_delta(1.0, np.inf) == 0
    assert gdp.gaussian_epsilon(0.0, 0.1) == 0
    assert gdp.gaussian_epsilon(np.inf, 0.1) == np.inf
    assert gdp.gaussian_epsilon(1.0, 0.5) == 0
    assert gdp.gaussian_delta(1.0, 0.0) == pytest.approx(0.38292492254802624, rel=1e-14)


@pytest.mark.exhaustive
def test_transformations_without_global_float64():
    traced = jax.jit(jax.vmap(gdp.gaussian_delta, in_axes=(0, None)))(np.array([0.5, 2.0]), 1.0)
    np.testing.assert_allclose(traced, gdp.gaussian_delta(np.array([0.5, 2.0]), 1.0), rtol=1e-6)
    _, scanned = jax.lax.scan(lambda c, mu: (c, gdp.gaussian_epsilon(mu, 1e-5)), 0, jnp.array([0.5, 2.0]))
    np.testing.assert_allclose(scanned, gdp.gaussian_epsilon(np.array([0.5, 2.0]), 1e-5), rtol=1e-5)
    assert float(jax.jit(gdp.gaussian_delta)(-1.0, 1.0)) == 1
    assert float(jax.jit(gdp.gaussian_epsilon)(1.0, 2.0)) == np.inf
    assert float(jax.jit(gdp.gaussian_mu)(-1.0, 0.1)) == 0


@pytest.mark.first_tier("1-gaussian_delta-at0", "1-gaussian_epsilon-at1")
@pytest.mark.parametrize(
    ("function", "at"),
    [(gdp.gaussian_delta, (1.3, 0.7)), (gdp.gaussian_epsilon, (1.3, 1e-3)), (gdp.gaussian_mu, (2.0, 1e-3))],
)
@pytest.mark.parametrize("which", [0, 1])
def test_derivatives_are_those_of_the_function(function, at, which):
    step = 1e-5 * at[which]
    ends = [[x + side * step * (i == which) for i, x in enumerate(at)] for side in (-1, 1)]
    difference = (function(*ends[1]) - function(*ends[0])) / (2 * step)
    assert jax.grad(function, argnums=which)(*at) == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: gdp.gaussian_delta(-1.0, 1.0), "mu = -1"),
        (lambda: gdp.gaussian_epsilon(1.0, 1.5), "delta = 1.5"),
        (lambda: gdp.gaussian_mu(-1.0, 0.1), "epsilon = -1"),
    ],
)
def test_values_out_of_range_are_named(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def root(function, start):
    return mpmath.findroot(function, (mpmath.mpf(start), mpmath.mpf(start) * (1 + mpmath.mpf(10) ** -9)), tol=1e-80)


NEAR_0 = [*((mu, near) for mu in (0.01, 1.0) for near in (1e-12, 1e-9, 1e-3)), (10.0, 1e-3), (1.0, 1.0), (10.0, 1.0)]


@pytest.mark.parametrize(("mu", "near"), NEAR_0)
def test_an_epsilon_near_0_is_as_near_as_is_said(mu, near):
    """Where delta is next to the one at epsilon = 0; the bound is that of log delta, over its slope."""
    with mpmath.workdps(60):
        delta = float(true_delta(mu, near))
        truth = root(lambda e: mpmath.log(exact(mu, e) / mpmath.mpf(delta)), near)
        value = mpmath.mpf(float(gdp.gaussian_epsilon(mu, delta)))
        assert truth <= value <= truth + said_of_epsilon(mu, delta, truth)


def said_of_epsilon(mu, delta, epsilon):
    delta, mu = mpmath.mpf(delta), mpmath.mpf(mu)
    rate = delta / (mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))
    first = mpmath.mpf("1e-13") * (1 - mpmath.log(delta)) * rate
    assert first < mu / 1000
    return first + mpmath.mpf("1e-15") * (epsilon + 2 * mu**2)


@pytest.mark.parametrize("mu", [1e-3, 1.0, 1e3])
def test_an_epsilon_where_delta_is_half_of_that_at_0_is_right_to_most_digits(mu):
    with mpmath.workdps(60):
        delta = float(true_delta(mu, 0.0)) / 2
        value = mpmath.mpf(float(gdp.gaussian_epsilon(mu, delta)))
        truth = root(lambda e: mpmath.log(exact(mu, e) / mpmath.mpf(delta)), value)
        assert truth <= value <= truth * (1 + mpmath.mpf("1e-11"))
        assert value <= truth + said_of_epsilon(mu, delta, truth)


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5, 0.99, 0.999])
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e3])
def test_a_mu_is_as_near_as_is_said_up_to_a_delta_of_999_in_1000(epsilon, delta):
    with mpmath.workdps(60):
        value = mpmath.mpf(float(gdp.gaussian_mu(epsilon, delta)))
        truth = root(lambda m: mpmath.log(exact(m, epsilon) / mpmath.mpf(delta)), value)
        assert truth * (1 - mpmath.mpf("1e-11")) <= value <= truth


def exact(mu, epsilon):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_delta_of_a_negative_epsilon_is_as_near_as_is_said(mu):
    """Where eps/mu + mu = -1: the size of epsilon counts."""
    epsilon = -mu * (1 + mu)
    with mpmath.workdps(60):
        truth, value = exact(mu, epsilon), mpmath.mpf(float(gdp.gaussian_delta(mu, epsilon)))
        share = mpmath.mpf("2e-13") * (1 + abs(mpmath.mpf(epsilon)) / mpmath.mpf(mu) + mpmath.mpf(mu)) ** 2
        assert truth <= value <= truth * (1 + share)
