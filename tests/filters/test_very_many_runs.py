"""Tests of the remainder of a budget that very many runs fit in: as many as it would grant, but for rounding."""

import jax
import numpy as np
import pytest
from helpers.thorough import THOROUGH, cases

import jaxacct as ja
from jaxacct.filters import ApproximateDPFilter, GDPFilter, IndividualRenyiFilter, RenyiFilter, ZCDPFilter

MOST = 2**31 - 1

FILTERS = {
    "Rényi": (lambda: RenyiFilter(8.0, 1e-5), lambda n: ja.Gaussian(0.9 * np.sqrt(n))),
    "optimal": (lambda: RenyiFilter(8.0, 1e-5, conversion="optimal"), lambda n: ja.Gaussian(0.9 * np.sqrt(n))),
    "zCDP": (lambda: ZCDPFilter(8.0, 1e-5), lambda n: ja.ZeroConcentratedDP(0.8 / n)),
    "GDP": (lambda: GDPFilter(8.0, 1e-5), lambda n: ja.Gaussian(0.5 * np.sqrt(n))),
    "approximate": (lambda: ApproximateDPFilter(8.0, 1e-5), lambda n: ja.PureDP(1.2 / np.sqrt(n))),
}


def granted_at_once(budget, mechanism):
    """The most runs that are granted together, by bisection."""
    low, high = 0, MOST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bool(budget.spend(mechanism, middle)[0]) else (low, middle - 1)
    return low


@pytest.mark.parametrize("runs", cases([1e8, 2.0**31], [1e6, 1e7, 2e7, 3e7, 1e9, 1e10]))
@pytest.mark.parametrize("kind", FILTERS)
def test_as_many_remain_as_are_granted(kind, runs):
    make, mechanism_for = FILTERS[kind]
    budget, mechanism = make(), mechanism_for(runs)
    remaining, together = int(budget.remaining(mechanism)), granted_at_once(budget, mechanism)
    assert together >= min(runs, MOST) / 10  # it is of very many that is asked
    slack = 2 + float(together) ** 2 * 2.0**-46
    assert together - slack <= remaining <= together


def test_the_run_that_was_stopped_after_sixteen_steps():
    budget, step = RenyiFilter(8.0, 1e-5), ja.PoissonSubsampledGaussian(1.0, 1e-4)
    assert int(budget.remaining(step)) > 121_500_000
    examples = IndividualRenyiFilter.create(2, 8.0, 1e-5)
    assert np.all(np.asarray(examples.remaining(ja.PoissonSubsampledGaussian(np.ones(2), np.full(2, 1e-4)))) > 121e6)


def test_one_by_one_as_many_are_granted_as_remain():
    """Each addition rounds its sum up: what was told beforehand counts with all of them."""
    runs = 2e7 if THOROUGH else 2e6
    budget, mechanism = ZCDPFilter(8.0, 1e-5), ja.ZeroConcentratedDP(0.8 / runs)
    count = int(budget.remaining(mechanism))
    assert count > runs / 10

    @jax.jit
    def spent(budget):
        def again(_, state):
            granted, budget = state[1].spend(mechanism)
            return state[0] & granted, budget

        return jax.lax.fori_loop(0, count, again, (jax.numpy.bool_(True), budget))

    granted, left = spent(budget)
    assert granted
    assert int(left.remaining(mechanism)) <= 2 + float(count) ** 2 * 2.0**-46
