"""Derivatives of conversions, and arrays of the caller's that were constants of a trace before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, iteration

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 32.0])

VERBS = {
    "rdp_to_epsilon": (lambda r: convert.rdp_to_epsilon(r * ORDERS, ORDERS, 1e-5), 0.1),
    "rdp_to_delta": (lambda r: convert.rdp_to_delta(r * ORDERS, ORDERS, 2.0), 0.1),
    "least_rdp": (lambda e: convert.least_rdp(e, 1e-5, [4.0])[0], 1.0),
    "zcdp_to_epsilon": (lambda rho: convert.zcdp_to_epsilon(rho, 1e-5), 0.5),
    "zcdp_to_delta": (lambda rho: convert.zcdp_to_delta(rho, 3.0), 0.1),
    "zcdp_to_rdp": (lambda rho: convert.zcdp_to_rdp(rho, ORDERS)[2], 0.5),
    "tcdp_to_epsilon": (lambda rho: convert.tcdp_to_epsilon(rho, 20.0, 1e-5), 0.1),
    "rdp_to_tcdp": (lambda r: convert.rdp_to_tcdp(r * ORDERS, ORDERS)[0], 0.1),
    "pure_to_rdp": (lambda e: convert.pure_to_rdp(e, ORDERS)[2], 0.5),
    "pure_to_zcdp": (convert.pure_to_zcdp, 0.5),
    "gdp_to_rdp": (lambda mu: convert.gdp_to_rdp(mu, ORDERS)[1], 1.0),
    "gdp_to_epsilon": (lambda mu: convert.gdp_to_epsilon(mu, 1e-5), 1.0),
    "mechanism_to_dp": (lambda b: convert.mechanism_to_dp(ja.Laplace(b))[0], 2.0),
    "mechanism_to_zcdp": (lambda s: convert.mechanism_to_zcdp(ja.Gaussian(s))[0], 2.0),
    "amplified_mu": (lambda s: iteration.amplified_mu([1.0, 1.0], s), 1.5),
    "amplified_mu of shifts": (lambda s: iteration.amplified_mu(jnp.stack([s, s]), 1.0), 1.5),
    "theta": (lambda e: iteration.theta(e, 0.5), 1.0),
    "contracted_delta": (lambda e: iteration.contracted_delta(e, 1e-2, 0.9, 2), 0.5),
}
WAYS = {
    "grad": lambda f, x: jax.grad(f)(x[0]),
    "jacfwd": lambda f, x: jax.jacfwd(f)(x[0]),
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(f))(x)[0],
    "jit of vmap of grad": lambda f, x: jax.jit(jax.vmap(jax.grad(f)))(x)[0],
    "grad of jit": lambda f, x: jax.grad(jax.jit(f))(x[0]),
}


@pytest.mark.first_tier("rdp_to_epsilon")
@pytest.mark.parametrize("name", VERBS)
def test_conversions_have_derivatives_however_they_are_asked_for(name):
    verb, at = VERBS[name]
    step = 1e-3 * at
    slope = (float(verb(at + step)) - float(verb(at - step))) / (2 * step)
    assert slope != 0
    for way, derive in WAYS.items():
        assert float(derive(verb, np.array([at, 1.1 * at]))) == pytest.approx(slope, rel=2e-3), way


def test_an_array_that_was_a_constant_of_a_trace_is_asked_with_afterwards():
    """JAX remembers such an array as float32; programs of float64 numbers have to get their own."""
    mine = np.array([1.25, 2.5, 3.5])
    alone = float(convert.rdp_to_epsilon(0.1 * mine, mine, 1e-5))
    traced = jax.vmap(jax.grad(lambda r: convert.rdp_to_epsilon(r * mine, mine, 1e-5)))(np.array([0.1]))
    assert np.all(np.isfinite(traced))
    assert float(convert.rdp_to_epsilon(0.1 * mine, mine, 1e-5)) == alone
    np.testing.assert_allclose(convert.gdp_to_rdp(1.0, mine), mine / 2, rtol=1e-14)
    spent = ja.epsilon(ja.Gaussian(mine), np.array([1, 2, 3]), 1e-5)
    assert float(spent.upper) == float(ja.epsilon(ja.Gaussian(mine.copy()), np.array([1, 2, 3]), 1e-5).upper)
