"""Tests that a mechanism which releases nothing costs exactly 0 in every ledger, and any other costs more."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_ledger_counts import EXAMPLES, LEDGERS, assert_identical, charged

import jaxacct as ja
from jaxacct import filters, rounded_sum
from jaxacct.numerics.precision import exact_float64

FREE = {"pure": (0.0, -0.0, np.float32(0), 0), "noisy": (math.inf, np.float32(np.inf))}
TINY = {
    "pure": (5e-324, 1e-310, 1e-200, np.float32(1e-45), jnp.float32(1e-40)),
    "noisy": (1e160, 1e308, np.float32(3e38)),
}
"""Parameters whose costs underflow, are subnormal, or below the smallest normal float32."""

NOTHING = (
    ja.RandomizedResponse(0.0, outcomes=5),
    ja.ApproximateDP(0.0, 0.0),
    ja.Laplace(math.inf),
    ja.PoissonSubsampledLaplace(math.inf, 0.1),
    ja.PoissonSubsampledGaussian(math.inf, 0.1),
    ja.TruncatedPoissonGaussian(math.inf, 0.1, 0.0),
    ja.GaussianWithoutReplacement(math.inf, 0.1),
    ja.LaplaceWithoutReplacement(math.inf, 0.1),
    ja.GaussianMixture(math.inf, [1.0, 2.0], [0.5, 0.5]),
    ja.RandomAllocation(math.inf, 10),
)
LITTLE = (
    ja.RandomizedResponse(5e-324, outcomes=5),
    ja.ApproximateDP(0.0, 5e-324),
    ja.ApproximateDP(5e-324, 0.0),
    ja.Laplace(1.7e308),
    ja.PoissonSubsampledGaussian(1.0, 5e-324),
    ja.DiscreteLaplace(1e300),
)


def kinds(name):
    """Which of the two kinds of mechanism a ledger takes, as makers."""
    wide = (lambda value: np.full(EXAMPLES, value)) if name == "IndividualRenyiFilter" else lambda value: value
    made = {"pure": lambda value: ja.PureDP(wide(value)), "noisy": lambda value: ja.Gaussian(wide(value))}
    return {"pure": made["pure"]} if LEDGERS[name][1] == ja.PureDP(2.0**-20) else made


@pytest.mark.parametrize("name", LEDGERS)
def test_nothing_is_free_and_little_is_not(name):
    ledger, regular = LEDGERS[name][0](), LEDGERS[name][1]
    for kind, make in kinds(name).items():
        for value in FREE[kind]:
            for before in (ledger, ledger.spend(regular, 3)[1]):
                for runs in (1, 2**53):
                    granted, after = before.spend(make(value), runs)
                    assert np.all(granted), value
                    assert_identical(after, before)
            assert np.all(ledger.remaining(make(value)) >= 2**30 - 1)
        for value in TINY[kind]:
            granted, after = ledger.spend(make(value))
            assert not np.any(granted) or charged(after) > 0, value


@pytest.mark.parametrize("name", ["RenyiFilter", "ZCDPFilter", "ApproximateDPFilter", "GDPFilter", "RogersOdometer"])
def test_little_is_not_free_when_traced(name):
    """A float32 program flushes subnormals to zero, and zero would be free."""
    ledger, make = LEDGERS[name][0](), kinds(name)["pure"]
    values = np.array([0.0, -0.0, 1e-45, 1e-40, 1e-30], np.float32)
    granted, after = jax.jit(jax.vmap(lambda value: ledger.spend(make(value), 3)))(values)
    assert np.all(granted)
    spent = [charged(jax.tree.map(lambda leaf, i=i: leaf[i], after)) for i in range(len(values))]
    assert spent[0] == spent[1] == 0
    assert min(spent[2:]) > 0


def test_which_mechanisms_release_nothing():
    with jax.enable_x64(True):
        assert all(mechanism.releases_nothing() for mechanism in NOTHING)
        assert not any(mechanism.releases_nothing() for mechanism in LITTLE)
        invalid = jax.vmap(lambda s, q: ja.PoissonSubsampledGaussian(s, q).releases_nothing())
        assert not np.any(invalid(np.array([math.nan, -1.0, math.inf, math.inf]), np.array([0.0, 0.0, -0.1, math.nan])))


def test_not_even_a_budget_is_needed():
    budget = filters.RenyiFilter(0.0, 1e-5)
    granted, after = budget.spend(ja.Gaussian(math.inf), 5)
    assert granted
    assert after.epsilon() == 0
    assert_identical(after, budget)


def test_a_rate_of_zero_is_free_and_one_next_to_it_is_not():
    budget = filters.RenyiFilter(1.0, 1e-5, orders=[16.0, 32.0])
    rates = np.array([0.0, 1e-45, 1e-30, -1e-45, np.nan], np.float32)
    spend = jax.jit(jax.vmap(lambda s, q: budget.spend(ja.PoissonSubsampledGaussian(s, q))))
    granted, after = spend(np.ones(5, np.float32), rates)
    assert granted.tolist()[3:] == [False, False]
    charges = np.max(np.asarray(jax.vmap(lambda each: each.spent)(after)), axis=1)
    assert granted[0]
    assert charges[0] == 0
    assert all(charge > 0 or not fits for fits, charge in zip(granted[1:], charges[1:], strict=True))
    granted, _ = spend(np.array([math.nan, -1.0, 0.0, 1.0, 1.0], np.float32), np.zeros(5, np.float32))
    assert granted.tolist() == [False, False, True, True, True]


def test_an_exhausted_filter_grants_what_is_free():
    mechanism = ja.Gaussian(20.0)
    for budget in (filters.ZCDPFilter(1.0, 1e-5, conversion="mironov"), filters.RenyiFilter(1.0, 1e-5)):
        _, spent = budget.spend(mechanism, int(budget.remaining(mechanism)))
        assert not spent.would_grant(mechanism)
        assert spent.would_grant(ja.PureDP(0.0), 10**6)
        assert spent.remaining(ja.PureDP(0.0)) == 2**31 - 1


def test_remaining_of_an_infinite_budget_ends_where_the_sum_does():
    """The sums end at 3.4e38, after which nothing more is granted."""
    budget = filters.ZCDPFilter(math.inf, 1e-5, conversion="mironov")
    vast = ja.Gaussian(1e-18)
    runs = int(budget.remaining(vast))
    assert 0 < runs < 1000
    granted, after = budget.spend(vast, runs)
    assert granted
    assert after.spent < math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_numbers_become_float64_exactly(dtype):
    kind = jnp.dtype(dtype)
    bits = np.random.default_rng(0).integers(0, 2 ** (8 * kind.itemsize), 4000).astype(f"uint{8 * kind.itemsize}")
    edges = np.arange(40, dtype=bits.dtype)  # zero and the smallest subnormals
    values = np.concatenate([bits, bits >> 6, edges]).view(kind)
    with np.errstate(invalid="ignore"):
        values = values[~np.isnan(values)]
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(exact_float64)(values), values.astype(np.float64))
        slope = jax.jit(jax.grad(lambda x: 3 * exact_float64(x)))(jnp.asarray(1.5, kind))
    assert slope == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_curve_of_any_type_is_not_below_the_one_it_was(dtype):
    """A narrow type loses up to half a unit, which below its normal numbers is not a part of the number."""
    kind = jnp.dtype(dtype)
    curve = 10.0 ** np.random.default_rng(1).uniform(-60, 4, 3000)
    curve[:500] = 10.0 ** np.random.default_rng(2).uniform(-9, -4, 500)
    with jax.enable_x64(True):
        assert np.all(np.asarray(jax.jit(rounded_sum.precise)(curve.astype(kind))) >= curve)
        assert rounded_sum.precise(np.zeros(1))[0] == 0
        assert rounded_sum.precise(np.array([5e-324]))[0] > 0
