"""Accountants of dp_accounting's kind: by its own generic tests, by its calibration, and beside its own accountants."""

import math

import numpy as np
import pytest

pytest.importorskip("dp_accounting")
import dp_accounting
from dp_accounting import dp_event, pld, rdp
from dp_accounting.privacy_accountant_test import PrivacyAccountantTest

import jaxacct as ja
from jaxacct.adapters.dp_accounting import ExactAccountant, RenyiAccountant, calibrate
from jaxacct.mechanisms import DIRECTIONS

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
DP_SGD = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)


class TestExactByTheirTests(PrivacyAccountantTest):
    def _make_test_accountants(self):
        return [ExactAccountant(), ExactAccountant(REPLACE_ONE)]


class TestRenyiByTheirTests(PrivacyAccountantTest):
    def _make_test_accountants(self):
        return [RenyiAccountant(), RenyiAccountant(REPLACE_ONE)]


del PrivacyAccountantTest


def test_answers_are_the_library_s():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    accountant = ExactAccountant().compose(DP_SGD)
    assert accountant.get_epsilon(1e-5) == ja.epsilon(mechanism, 1000, 1e-5).upper
    assert accountant.get_delta(1.5) == ja.delta(mechanism, 1000, 1.5).upper
    assert RenyiAccountant().compose(DP_SGD).get_epsilon(1e-5) == ja.rdp.epsilon(mechanism, 1000, 1e-5)


def test_no_bound_is_above_theirs():
    assert ExactAccountant().compose(DP_SGD).get_epsilon(1e-5) <= pld.PLDAccountant().compose(DP_SGD).get_epsilon(1e-5)
    assert RenyiAccountant().compose(DP_SGD).get_epsilon(1e-5) <= rdp.RdpAccountant().compose(DP_SGD).get_epsilon(1e-5)


@pytest.mark.parametrize("make", [ExactAccountant, RenyiAccountant])
def test_counts_are_honoured(make):
    event = dp_event.GaussianDpEvent(5.0)
    at_once = make().compose(event, 12)
    nested = make().compose(dp_event.ComposedDpEvent([event, dp_event.SelfComposedDpEvent(event, 5)]), 2)
    assert at_once.get_epsilon(1e-5) == nested.get_epsilon(1e-5) > make().compose(event, 11).get_epsilon(1e-5)


@pytest.mark.exhaustive
def test_their_accountant_ignores_the_count_of_randomized_response():
    """What theirs reports for many runs is what a single one costs: the bound is on the wrong side."""
    event, count = dp_event.RandomizedResponseDpEvent(0.5, 2), 4
    theirs = pld.PLDAccountant(REPLACE_ONE).compose(event, count).get_epsilon(1e-5)
    ours = ExactAccountant(REPLACE_ONE).compose(event, count).get_epsilon(1e-5)
    assert theirs == pytest.approx(math.log(3), abs=1e-3)
    assert ours == pytest.approx(count * math.log(3), abs=1e-3)


def gaussian_tree(rng, depth=3):
    """A random tree of compositions, and the precision of the one Gaussian that it is."""
    if depth == 0:
        noise = float(rng.uniform(5.0, 20.0))
        return dp_event.GaussianDpEvent(noise), noise**-2
    inner = [gaussian_tree(rng, depth - 1) for _ in range(int(rng.integers(1, 4)))]
    count = int(rng.integers(1, 5))
    together = dp_event.ComposedDpEvent([event for event, _ in inner])
    return dp_event.SelfComposedDpEvent(together, count), count * sum(precision for _, precision in inner)


@pytest.mark.first_tier("0")
@pytest.mark.parametrize("seed", range(5))
def test_counts_of_random_trees_are_honoured(seed):
    """bench/peers/event_trees.py has trees of all kinds, beside dp_accounting's mesh."""
    event, precision = gaussian_tree(np.random.default_rng(seed))
    for accountant, moved in ((ExactAccountant(), 1), (ExactAccountant(REPLACE_ONE), 2)):
        ours = accountant.compose(event, 3).get_epsilon(1e-5)
        exact = ja.convert.gdp_to_epsilon(moved * math.sqrt(3 * precision), 1e-5)
        assert ours == pytest.approx(float(exact), rel=1e-9)


def test_a_relation_that_an_event_is_not_known_under_is_not_supported():
    event = dp_event.SampledWithoutReplacementDpEvent(100, 10, dp_event.GaussianDpEvent(1.0))
    assert not ExactAccountant().supports(event)
    assert ExactAccountant(REPLACE_ONE).supports(event)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="not known under"):
        ExactAccountant().compose(event)


def test_a_special_record_is_zeroed_out_where_that_is_known():
    special = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    event = dp_event.SingleEpochTreeAggregationDpEvent(6.0, [7, 7])
    if "zero_out" in DIRECTIONS:
        accountant = ExactAccountant(special)
        assert accountant.supports(event) == ("zero_out" in ja.Gaussian.relations)
    else:
        with pytest.raises(ValueError, match="no counterpart"):
            ExactAccountant(special)


@pytest.mark.parametrize("make", [ExactAccountant, RenyiAccountant])
def test_what_is_out_of_range_is_a_value_error(make):
    with pytest.raises(ValueError, match="noise_multiplier"):
        make().compose(dp_event.GaussianDpEvent(-1.0))
    accountant = make().compose(dp_event.GaussianDpEvent(1.0))
    for delta in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            accountant.get_epsilon(delta)
    for epsilon in (-0.1, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            accountant.get_delta(epsilon)


def make_event(noise):
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(noise)), 1000)


def test_calibrates_as_theirs_does_and_directly():
    theirs = dp_accounting.calibrate_dp_mechanism(ExactAccountant, make_event, 1.0, 1e-5)
    direct = calibrate(make_event, 1.0, 1e-5)
    best = ja.calibrate.noise_multiplier(1.0, 1e-5, 0.01, 1000).value
    assert best * (1 - 1e-6) <= theirs <= best + 2e-6
    assert best * (1 - 1e-6) <= direct <= best * (1 + 1e-5)
    assert ExactAccountant().compose(make_event(direct)).get_epsilon(1e-5) <= 1.0


def test_a_budget_out_of_reach_is_an_error():
    with pytest.raises(ValueError, match="no parameter"):
        calibrate(lambda _: dp_event.NonPrivateDpEvent(), 1.0, 1e-5)
