"""Concentrated and pure differential privacy in and out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import program

import jaxacct as ja
from jaxacct import Gaussian, PoissonSubsampledGaussian, PureDP, convert, rdp

ORDERS = (1.01, 1.5, 2.0, 5.0, 17.0, 200.0)


def test_pure_privacy_is_that_of_randomized_response():
    for epsilon in (1e-9, 0.01, 1.0, 30.0, 2000.0):
        values = convert.pure_to_rdp(epsilon, ORDERS)
        truth = rdp.curve(PureDP(epsilon), ORDERS)
        np.testing.assert_allclose(values, truth, rtol=5e-10)
        assert np.all(values >= truth * (1 - 2 * rdp.ALLOWANCE))
        assert np.all(values <= epsilon)


def test_rho_of_pure_privacy_is_the_least():
    orders = 1 + np.geomspace(1e-5, 1e4, 60)
    for epsilon in (1e-3, 0.5, 3.0, 40.0):
        ratio = convert.pure_to_rdp(epsilon, orders) / orders
        rho = convert.pure_to_zcdp(epsilon)
        assert np.all(ratio <= rho * (1 + 1e-10))
        assert ratio[0] == pytest.approx(rho, rel=1e-3)
        assert rho <= epsilon**2 / 2


def test_what_is_known_to_be_zcdp_has_its_number():
    """xi + rho a is at most (xi + rho) a at orders above 1; a filter grants it as it does Gaussian noise."""
    mechanism = ja.ZeroConcentratedDP(np.array([0.005, 0.0, 0.005]), np.array([0.0, 0.0, 0.1]))
    rho, delta = convert.mechanism_to_zcdp(mechanism, relation="replace")
    assert np.all(delta == 0)
    assert np.all(rho >= [0.005, 0.0, 0.105])
    assert np.all(rho <= np.array([0.005, 0.0, 0.105]) * (1 + 1e-12))
    assert np.all(np.isinf(jax.jit(lambda x: convert.mechanism_to_zcdp(ja.ZeroConcentratedDP(x))[0])(-1.0)))
    budget = ja.filters.ZCDPFilter(epsilon=1.0, delta=1e-5)
    each = [int(budget.remaining(run)) for run in (ja.ZeroConcentratedDP(0.005), ja.Gaussian(10.0))]
    assert each[0] == each[1] > 3


def test_zcdp_by_mironov_is_bun_and_steinkes_closed_form():
    for rho in (1e-6, 0.01, 2.0):
        for delta in (1e-12, 0.01):
            closed = rho + 2 * math.sqrt(rho * math.log(1 / delta))
            value = convert.zcdp_to_epsilon(rho, delta, "mironov")
            assert 0 <= value / closed - 1 < 1e-6


@pytest.mark.parametrize("method", ["optimal", "improved"])
def test_zcdp_is_above_the_gaussian_and_no_worse_than_a_grid_of_orders(method):
    orders = 1 + np.geomspace(1e-2, 1e4, 164)
    for mu in (0.01, 0.3, 3.0):
        rho = mu**2 / 2
        for delta in (1e-10, 1e-3):
            epsilon = convert.zcdp_to_epsilon(rho, delta, method)
            assert epsilon >= convert.gdp_to_epsilon(mu, delta)
            assert epsilon <= convert.rdp_to_epsilon(convert.zcdp_to_rdp(rho, orders), orders, delta, method) * (
                1 + 1e-6
            )
            back = convert.zcdp_to_delta(rho, epsilon, method)
            assert back >= convert.gdp_to_delta(mu, epsilon)
            assert back == pytest.approx(delta, rel=1e-5)


def test_truncation_costs_where_the_best_order_is_cut_off():
    free = convert.zcdp_to_epsilon(0.01, 1e-6)
    values = [convert.tcdp_to_epsilon(0.01, omega, 1e-6) for omega in (2.0, 10.0, 1e3)]
    assert values[0] > values[1] > values[2] == pytest.approx(free, rel=1e-12)
    # At omega itself the divergence is within the definition.
    assert values[0] <= convert.rdp_to_epsilon([0.02], [2.0], 1e-6) * (1 + 1e-12)
    assert convert.tcdp_to_delta(0.01, 2.0, 1.0) > convert.zcdp_to_delta(0.01, 1.0)
    np.testing.assert_array_equal(np.isinf(convert.tcdp_to_rdp(0.01, 5.0, ORDERS)), np.array(ORDERS) > 5)


def test_divergences_to_tcdp_hold_between_the_orders_given():
    dense = np.concatenate([1 + np.geomspace(1e-3, 1, 82, endpoint=False), np.geomspace(2, 64, 82)])
    sparse = np.array([1.3, 2.0, 5.0, 16.0, 64.0])
    for mechanism in (PoissonSubsampledGaussian(1.0, 0.02), PoissonSubsampledGaussian(0.6, 0.3), PureDP(2.0)):
        rho, omega = convert.rdp_to_tcdp(rdp.curve(mechanism, sparse), sparse)
        truth = rdp.curve(mechanism, dense)
        assert omega == 64
        assert np.all(convert.tcdp_to_rdp(rho, omega, dense) >= truth * (1 - 3e-10))
        assert rho <= 3 * np.max(truth / dense)
    rho, _ = convert.rdp_to_tcdp(
        rdp.curve(Gaussian(2.0), 1 + np.geomspace(1e-3, 50, 164)), 1 + np.geomspace(1e-3, 50, 164)
    )
    assert rho == pytest.approx(1 / 8, rel=5e-3)


@pytest.mark.exhaustive
def test_traced_values_and_nonsense():
    bad = jnp.array([-1.0, jnp.nan])
    found = jax.jit(jax.vmap(lambda r: convert.zcdp_to_epsilon(r, 2.0**-20)))(jnp.array([0.25, *bad]))
    value, *rest = np.asarray(found)
    assert np.all(np.array(rest) == np.inf)
    assert np.all(np.asarray(program(jax.vmap(lambda r: convert.zcdp_to_delta(r, 1.0)))(bad)) == 1)
    assert np.all(np.asarray(program(jax.vmap(lambda r: convert.zcdp_to_rdp(r, ORDERS)))(bad)) == np.inf)
    assert np.all(np.asarray(program(jax.vmap(convert.pure_to_zcdp))(bad)) == np.inf)
    assert np.all(np.asarray(program(jax.vmap(lambda e: convert.pure_to_rdp(e, ORDERS)))(bad)) == np.inf)
    assert np.asarray(program(lambda a: convert.rdp_to_tcdp([1.0, 2.0], a)[0])(jnp.array([3.0, 2.0]))) == np.inf
    assert value == pytest.approx(float(convert.zcdp_to_epsilon(0.25, 2.0**-20)), rel=1e-12)
    assert convert.zcdp_to_epsilon(0.0, 0.1) == 0
    assert convert.zcdp_to_delta(0.0, 0.1) == 0
    assert convert.zcdp_to_epsilon(np.inf, 0.1) == np.inf
    with pytest.raises(ValueError, match="rho = -1"):
        convert.zcdp_to_epsilon(-1, 0.1)
    with pytest.raises(ValueError, match="omega = 1"):
        convert.tcdp_to_delta(1.0, 1, 0.1)
    with pytest.raises(ValueError, match="do not increase"):
        convert.rdp_to_tcdp([1.0, 1.0], [3.0, 2.0])
    with pytest.raises(ValueError, match="epsilon = -1"):
        convert.pure_to_rdp(-1, [2.0])
