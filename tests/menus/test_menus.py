"""Certified menus: one item is a plan, several are at least any fixed sequence, and no budget beats the limit."""

import numpy as np
import pytest
from helpers.thorough import cases, draws

import jaxacct as ja
from jaxacct import calibrate, certified
from jaxacct.menus import MenuFilter, certify, limit
from jaxacct.menus.game import sizes_and_costs, whole_costs

STEP = ja.PoissonSubsampledGaussian(1.5, 0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize("epsilon", cases([1.0], [3.0]))
def test_a_menu_of_one_item_is_a_plan(epsilon):
    menu = certify(epsilon, 1e-5, [STEP])
    planned = calibrate.steps(epsilon, 1e-5, STEP.noise_multiplier, STEP.sampling_rate)
    assert menu.budget == int(planned.value) == calibrate.most_runs(STEP, epsilon, 1e-5)
    assert limit(menu) == menu.budget == limit(certify(epsilon, 1e-5, [STEP], costs=[7])) // 7
    assert menu.value <= 1e-5
    assert menu.share(0) == 1.0
    assert certify(epsilon, 1e-5, [STEP], costs=[7]).budget == 7 * menu.budget


@pytest.mark.exhaustive
def test_no_limit_is_below_what_the_costlier_items_plan_certifies():
    """Runs of the smaller range are runs of the larger: as many of either as a plan has are within the budget."""
    items = [(ja.ExponentialMechanism(span), 1) for span in (0.25, 0.2)]
    menu = certify(1.0, 1e-5, items, costs=[1, 1])
    assert menu.budget <= calibrate.most_runs(ja.ExponentialMechanism(0.25), 1.0, 1e-5) <= limit(menu)


@pytest.mark.exhaustive
def test_no_fixed_sequence_within_the_budget_costs_more_than_the_value():
    items = [
        (ja.PoissonSubsampledGaussian(*numbers), 50) for numbers in cases([(1.5, 0.01), (1.0, 0.005)], [(2.5, 0.01)])
    ]
    menu = certify(2.0, 1e-5, items)
    rng = np.random.default_rng(0)
    assert menu.value <= 1e-5
    assert menu.budget <= limit(menu) <= 1.02 * menu.budget
    for share in (*np.eye(len(items)), *rng.dirichlet(np.ones(len(items)), draws(1, 3))):
        blocks = [int(part * menu.budget / item.cost) for part, item in zip(share, menu.items, strict=True)]
        noises, rates = zip(
            *((i.mechanism.noise_multiplier, i.mechanism.sampling_rate) for i in menu.items), strict=True
        )
        mechanisms = ja.PoissonSubsampledGaussian(np.array(noises), np.array(rates))
        assert certified.delta(mechanisms, 50 * np.array(blocks), 2.0).lower <= menu.value
    assert min(menu.share(i) for i in range(len(items))) >= 0.97


@pytest.mark.exhaustive
def test_few_runs_keep_their_proportion():
    # A budget of ten of the one and of twenty of the other: what a block costs is not the same for both.
    menu = certify(0.1, 1e-9, [ja.PureDP(0.01), ja.PureDP(0.02)])
    assert min(menu.share(i) for i in range(2)) >= 0.9
    assert menu.items[1].cost >= 1.8 * menu.items[0].cost
    assert menu.budget // menu.items[0].cost <= 10


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("epsilon", "delta", "noise", "runs"), [(0.0, 1e-3, 2000.0, 25), (1e-3, 1e-12, 1e6, 34500), (20.0, 1e-12, 1.0, 6)]
)
def test_a_guess_that_is_far_off_costs_nothing(epsilon, delta, noise, runs):
    menu = certify(epsilon, delta, [ja.Gaussian(noise), ja.Gaussian(2 * noise)])
    item = menu.items[0]
    assert certified.delta(item.mechanism, menu.budget // item.cost * item.count, epsilon).lower <= delta
    assert item.alone * item.count >= 0.97 * runs


def test_costs_are_in_proportion():
    for plays in ([26.7, 48.7, 89.8, 179.7], [3.0, 1000.0]):
        costs = np.array(whole_costs(plays))
        assert np.ptp(costs * plays) <= 0.02 * np.max(costs * plays)
    for runs in ([3.1, 7.1], [26.0, 1e6], [1.0, 1.0]):
        sizes, costs = sizes_and_costs(runs, [None, None])
        budgets = np.array(costs) * runs / sizes
        assert np.ptp(budgets) <= 0.01 * np.max(budgets)


def test_bad_menus_say_what_is_wrong():
    with pytest.raises(ValueError, match="menu is empty"):
        certify(1.0, 1e-5, [])
    with pytest.raises(ValueError, match="do not fit"):
        certify(1.0, 1e-5, [STEP], costs=[1, 2])
    for costs in ([0], [-1], [2**21]):
        with pytest.raises(ValueError, match="costs"):
            certify(1.0, 1e-5, [STEP], costs=costs)
    for epsilon, delta in ((-1.0, 1e-5), (np.nan, 1e-5), (np.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (1.0, np.nan)):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            certify(epsilon, delta, [STEP])
    with pytest.raises(ValueError, match="one by one"):
        certify(1.0, 1e-5, [ja.PoissonSubsampledGaussian(np.array([1.0, 2.0]), 0.01)])
    with pytest.raises(ValueError, match="DiscretePair, whose fields are arrays"):
        certify(1.0, 1e-5, [STEP, ja.DiscretePair([0.75, 0.25], [0.25, 0.75])])
    with pytest.raises(ValueError, match="count"):
        certify(1.0, 1e-5, [(STEP, 0)])
    with pytest.raises(ValueError, match="costs more than"):
        certify(1.0, 1e-5, [ja.Gaussian(0.5)])
    with pytest.raises(ValueError, match="costs more than"):
        certify(1.0, 1e-5, [ja.Gaussian(0.6), ja.Gaussian(0.5)])
    mixed = certify(1.0, 1e-5, [ja.Gaussian(0.5), ja.Gaussian(20.0)])
    assert not MenuFilter.of(mixed).would_grant(0)
    assert mixed.share(0) == 0


@pytest.mark.first_tier("100.0-costs1")
@pytest.mark.parametrize(("noise", "costs"), [(1e6, None), (100.0, [2**20, 1])])
def test_what_is_never_granted_is_refused_by_the_largest_budgets(noise, costs):
    mixed = certify(3.0, 1e-5, [ja.Gaussian(noise), ja.Gaussian(0.1)], costs=costs)
    assert mixed.budget == 2**31 - 1
    budget = MenuFilter.of(mixed)
    assert budget.would_grant(0)
    assert not budget.would_grant(1)
    assert budget.remaining(1) == 0


@pytest.mark.parametrize("delta", [1e-15, 1e-18])
def test_a_block_that_is_far_too_large_is_never_granted(delta):
    menu = certify(1.0, delta, [(STEP, 20), (ja.PoissonSubsampledGaussian(3.0, 0.01), 80)])
    budget = MenuFilter.of(menu)
    assert not budget.would_grant(0)
    most = int(budget.remaining(1))
    assert most > 0
    assert certified.delta(menu.items[1].mechanism, most, 1.0).lower <= delta


@pytest.mark.exhaustive
def test_pure_items_are_paid_for_at_any_delta():
    menu = certify(1.0, 1e-24, [ja.PureDP(0.1), ja.PureDP(0.03)])
    budget = MenuFilter.of(menu)
    assert budget.remaining(0) <= 10
    assert budget.remaining(1) == 33  # which lose 0.99
    assert menu.value <= 1e-24


@pytest.mark.exhaustive
def test_pure_items_are_paid_for_as_often_as_they_may_be():
    """However far above their losses epsilon is: eight of one add up to less, and two of the other."""
    first = 0.09183723356345333
    items = [(ja.RandomizedResponse(first), 1), (ja.RandomizedResponse(3 * first), 1)]
    budget = MenuFilter.of(certify(0.78106043939745, 2.832209034925761e-06, items))
    assert (budget.remaining(0), budget.remaining(1)) == (8, 2)
    budget = MenuFilter.of(certify(0.75, 1e-6, [(ja.RandomizedResponse(0.3), 1), (ja.Gaussian(30.0), 1)]))
    assert budget.remaining(0) == 2
