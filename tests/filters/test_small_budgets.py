"""Filters at their edges: budgets that are small, spent to the end, or pure; and what has an epsilon of its own."""

import dataclasses
import math

import jax
import mpmath
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, filters, strategies
from jaxacct.filters import FILTER_ORDERS, ApproximateDPFilter, GDPFilter, RenyiFilter, ZCDPFilter

BUDGETS = [(epsilon, delta) for epsilon in (1e-6, 1e-3, 0.01, 0.1, 1.0, 10.0) for delta in (1e-300, 1e-12, 1e-6, 0.1)]


def best_power(epsilon, delta):
    """The best order for Gaussian noise, less 1."""
    size = -math.log(delta)
    return (size + math.sqrt(size * (size + epsilon))) / epsilon


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_default_orders_are_as_many_and_reach_as_far_for_every_budget(epsilon, delta):
    orders = np.array(filters.orders_for(epsilon, delta))
    assert len(orders) == len(FILTER_ORDERS)
    assert sum(math.exp(filters.log_share(order)) for order in orders) <= 1
    if epsilon > -math.log(delta):  # the best order is below all of them
        return
    # What the orders grant of Gaussian noise, against a dense set.
    rho = np.max((epsilon + math.log(delta) / (orders - 1)) / orders)
    dense = 1 + best_power(epsilon, delta) * np.geomspace(0.5, 8, 10_000)
    assert rho >= 0.93 * np.max((epsilon + math.log(delta) / (dense - 1)) / dense)


def test_a_small_budget_grants_what_it_pays_for():
    mu = float(convert.dp_to_gdp(0.01, 1e-6))
    noise = ja.Gaussian(math.sqrt(1065.5) / mu)  # the exact accountant pays for 1,065 runs
    assert RenyiFilter(0.01, 1e-6).remaining(ja.Gaussian(1e9)) > 10**9
    assert RenyiFilter(0.01, 1e-6).remaining(noise) > 1065 / 3.5
    assert GDPFilter(0.01, 1e-6).remaining(noise) == 1065


@pytest.mark.exhaustive
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_no_budget_grants_nothing_or_too_much(epsilon, delta):
    noise = ja.Gaussian(100 / float(convert.dp_to_gdp(epsilon, delta)))
    most = int(GDPFilter(epsilon, delta).remaining(noise))
    # Where delta is not far below epsilon^2 one order says little of Gaussian noise, by whatever conversion.
    share = 0.25 if delta < min(epsilon**2 / 2, 0.01) else -1.0
    for budget in (RenyiFilter(epsilon, delta), RenyiFilter(epsilon, delta, conversion="optimal")):
        assert share * most < budget.remaining(noise) <= most
    assert 2.5 * share * most < ZCDPFilter(epsilon, delta).remaining(noise) <= most


def test_orders_that_grant_nothing_are_not_silent():
    with pytest.warns(UserWarning, match=r"orders = .* have no budget at epsilon = 0.01.*give some above") as caught:
        assert RenyiFilter(0.01, 1e-6, orders=FILTER_ORDERS).remaining(ja.PureDP(0.001)) == 0
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="have no budget") as caught:  # from one call deeper
        filters.IndividualRenyiFilter.create(2, 0.01, 1e-6, orders=FILTER_ORDERS)
    assert caught[0].filename == __file__
    assert RenyiFilter(0.0, 1e-6, orders=FILTER_ORDERS).remaining(ja.PureDP(0.1)) == 0


# ----------------------------------------------------------------------------------------------------
# What is spent to the end
# ----------------------------------------------------------------------------------------------------

KINDS = {
    "GDP": GDPFilter,
    "zCDP, mironov": lambda epsilon, delta: ZCDPFilter(epsilon, delta, conversion="mironov"),
    "approximate": ApproximateDPFilter,
    "Rényi": lambda epsilon, delta: RenyiFilter(epsilon, delta, orders=FILTER_ORDERS),
    "zCDP": ZCDPFilter,
    "zCDP, closed": lambda epsilon, delta: ZCDPFilter(epsilon, delta, conversion="closed"),
    "zCDP, improved": lambda epsilon, delta: ZCDPFilter(epsilon, delta, conversion="improved"),
    "Rényi, optimal": lambda epsilon, delta: RenyiFilter(epsilon, delta, orders=[8.0], conversion="optimal"),
    "Rényi, improved": lambda epsilon, delta: RenyiFilter(epsilon, delta, orders=[8.0], conversion="improved"),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if i > 1 else ()) for i, kind in enumerate(KINDS)]
)
def test_a_budget_spent_to_the_end_never_reads_above_itself(kind):
    rng = np.random.default_rng(0)
    epsilon, delta = 10 ** rng.uniform(-2, 1.5, 200), 10 ** rng.uniform(-12, -1, 200)
    epsilon[:3] = 0.3, 1.0, 3.0

    def read(epsilon, delta):
        opened = KINDS[kind](epsilon, delta)
        full = opened._with(dataclasses.replace(opened.state, total=opened.state.budget))
        return full.epsilon()

    with jax.enable_x64(True):
        readings = np.asarray(jax.jit(jax.vmap(read))(epsilon, delta))
    assert np.all(readings <= epsilon)
    known = readings > 0  # a single order may have no budget, and a large delta needs no epsilon
    assert known.sum() > (20 if "Rényi" in kind else 190)
    assert np.all(readings[known] >= 0.2 * epsilon[known])
    assert np.mean(readings[known] / epsilon[known]) > 0.8


def test_a_filter_reads_at_most_its_epsilon_after_its_last_grant():
    budget = ZCDPFilter(1.0, 1e-5, conversion="mironov")
    cost = float(budget.budget)
    granted, spent = budget.spend(ja.ZeroConcentratedDP(cost * (1 - 1e-12)))
    assert granted
    assert 1 - 1e-9 < spent.epsilon() <= 1


def test_mironovs_rule_of_zcdp_is_its_closed_form():
    rng = np.random.default_rng(1)
    for rho, delta in ((0.5, 1e-5), *zip(10 ** rng.uniform(-8, 3, 30), 10 ** rng.uniform(-30, -0.3, 30), strict=True)):
        size = -mpmath.log(mpmath.mpf(float(delta)))
        exact = mpmath.mpf(float(rho)) + 2 * mpmath.sqrt(mpmath.mpf(float(rho)) * size)
        found = float(convert.zcdp_to_epsilon(rho, delta, "mironov"))
        assert exact <= found <= exact * (1 + mpmath.mpf("1e-13"))


def test_mironovs_rule_of_tcdp_ends_at_omega():
    rho, delta, omega = 1e-4, 1e-6, 5.0
    least = omega * rho - math.log(delta) / (omega - 1)
    assert least <= convert.tcdp_to_epsilon(rho, omega, delta, "mironov") <= least * (1 + 1e-9)


# ----------------------------------------------------------------------------------------------------
# delta = 0
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ApproximateDPFilter, RenyiFilter])
def test_a_pure_budget_adds_up_the_largest_losses(kind):
    budget = kind(1.0, 0)
    granted, spent = budget.spend((ja.Laplace(4.0), ja.PureDP(0.5)), (2, 0))
    assert granted
    assert 0.5 <= spent.epsilon() <= 0.5 * (1 + 1e-9)
    assert spent.remaining(ja.PureDP(0.1)) == 4  # and the fifth would need rounding not to be
    granted, spent = spent.spend(ja.PureDP(0.4999), 1)
    assert granted
    assert 0.9999 <= spent.epsilon() <= 1
    assert not spent.would_grant(ja.PureDP(0.001))
    assert not budget.would_grant(ja.ApproximateDP(1e-3, 1e-12))


def test_a_pure_budget_keeps_nothing_for_failures():
    assert RenyiFilter(1.0, 0).proven_delta == 0
    assert not RenyiFilter(1.0, 0).would_grant(ja.Gaussian(1e6))
    with pytest.raises(ValueError, match="mechanism_delta"):
        ApproximateDPFilter(1.0, 0, mechanism_delta=1e-9)
    with pytest.raises(ValueError, match=r"orders .* leave orders out"):
        RenyiFilter(1.0, 0, orders=[2.0])


# ----------------------------------------------------------------------------------------------------
# Mechanisms with numbers of their own
# ----------------------------------------------------------------------------------------------------

SAMPLED = math.log1p(0.1 * math.expm1(0.5))
WITH_AN_EPSILON = {
    "ExponentialMechanism": (ja.ExponentialMechanism(0.5), 0.5, 0.0),
    "AboveThreshold": (ja.AboveThreshold(4.0, 8.0), 0.5, 0.0),
    "PoissonSubsampledDP": (ja.PoissonSubsampledDP(0.5, 1e-6, 0.1), SAMPLED, 1e-7),
    "DPWithoutReplacement": (ja.DPWithoutReplacement(0.5, 1e-6, 0.1), SAMPLED, 1e-7),
    "LaplaceWithoutReplacement": (ja.LaplaceWithoutReplacement(2.0, 0.1), math.log1p(0.1 * math.expm1(1.0)), 0.0),
    "DiscretePair": (ja.DiscretePair([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]), math.log(4), 0.0),
    "DiscretePair that may fail": (ja.DiscretePair([1.0, 0.0], [0.99, 0.01]), -math.log(0.99), 0.01),
}


@pytest.mark.parametrize("name", WITH_AN_EPSILON)
def test_mechanisms_with_an_epsilon_of_their_own_have_it(name):
    mechanism, epsilon, delta = WITH_AN_EPSILON[name]
    relation = mechanism.relations[0]
    found, failing = convert.mechanism_to_dp(mechanism, relation=relation)
    assert epsilon * (1 - 1e-15) <= found <= epsilon * (1 + 1e-6)
    assert delta <= failing <= delta * (1 + 1e-12)
    if delta:
        with pytest.raises(ValueError, match=r"delta = .* not GDP"):
            convert.mechanism_to_gdp(mechanism, relation=relation)


def test_correlated_noise_without_sampling_is_gaussian_noise():
    tree = ja.TreeAggregation(2.0, 3)
    assert 3**0.5 <= convert.mechanism_to_gdp(tree, relation="replace") <= 3**0.5 * (1 + 1e-12)
    noise = ja.MatrixMechanism(strategies.BandedToeplitz([4.0, 3.0]), 3.5, strategies.SinglePass(10))
    rho, delta = convert.mechanism_to_zcdp(noise)
    assert delta == 0
    assert 25 / 3.5**2 / 2 <= rho <= 25 / 3.5**2 / 2 * (1 + 1e-12)


def test_the_exponential_mechanism_costs_a_range_and_not_an_epsilon():
    rho, _ = convert.mechanism_to_zcdp(ja.ExponentialMechanism(0.5))
    assert 0.5**2 / 8 <= rho <= 0.5**2 / 8 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        (ja.Gaussian(1.0), "no upper end"),
        (ja.PoissonSubsampledGaussian(1.0, 0.1), "counts its sampling"),
        (ja.ZeroConcentratedDP(0.1), "Rényi divergences"),
        (ja.GaussianMixture(1.0, [1.0], [1.0]), "no .* is stated here"),
    ],
)
def test_why_a_mechanism_has_no_epsilon_is_said_truly(mechanism, why):
    with pytest.raises(ValueError, match=rf"{why}.*ja.ApproximateDP\(epsilon, delta\)"):
        convert.mechanism_to_dp(mechanism)


def test_noise_on_integers_is_not_gdp():
    """Its laws are further apart than those of Gaussian noise of its scale: by p(0), for a scale of 1/2."""
    scale = 0.5
    weights = np.exp(-(np.arange(-40, 41.0) ** 2) / (2 * scale**2))
    apart = 1 / weights.sum()
    assert apart > 1.1 * float(convert.gdp_to_delta(1 / scale, 0.0))
    with pytest.raises(ValueError, match="DiscreteGaussian is not known to be GDP"):
        GDPFilter(1.0, 1e-5).remaining(ja.DiscreteGaussian(scale))


@pytest.mark.parametrize(
    ("make", "starts"),
    [
        (lambda: RenyiFilter(0.3, 1e-5), "RenyiFilter(epsilon=0.3, delta=1e-05, spent=0, "),
        (lambda: GDPFilter(0.3, 1e-5), "GDPFilter(epsilon=0.3, delta=1e-05, spent=0, "),
        (lambda: ApproximateDPFilter(0.3, 0), "ApproximateDPFilter(epsilon=0.3, delta=0, spent=0, "),
    ],
)
def test_a_printed_filter_says_what_it_keeps_and_what_is_spent(make, starts):
    assert repr(make()).startswith(starts)
    _, spent = make().spend(ja.PureDP(0.01))
    assert repr(spent).startswith(starts.replace("spent=0, ", "spent=0.0"))
    masks = [jax.tree.map(lambda _, mark=mark: mark, spent) for mark in (True, "frozen", None)]
    for rebuilt in (jax.eval_shape(lambda: spent), *masks):  # as Orbax and Optax do
        assert repr(rebuilt).startswith(type(spent).__name__)
