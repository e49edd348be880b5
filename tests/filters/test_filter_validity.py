"""Tests that a filter's grants are (epsilon, delta)-DP: by the exact accountant, and against adaptive adversaries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers.walks import best_adversary, positions, up

import jaxacct as ja
from jaxacct.filters import ApproximateDPFilter, GDPFilter, RenyiFilter, ZCDPFilter

FILTERS = {
    "renyi": RenyiFilter,
    "renyi optimal": lambda epsilon, delta: RenyiFilter(epsilon, delta, conversion="optimal"),
    "renyi, one order": lambda epsilon, delta: RenyiFilter(epsilon, delta, orders=[6.0], conversion="optimal"),
    "zcdp": ZCDPFilter,
    "zcdp improved": lambda epsilon, delta: ZCDPFilter(epsilon, delta, conversion="improved"),
    "approximate": lambda epsilon, delta: ApproximateDPFilter(epsilon, delta, mechanism_delta=0.0),
    "gdp": GDPFilter,
}
UNIT, MULTIPLES, COUNTS = 0.15, (1, 3), (60, 8)


@functools.partial(jax.jit, static_argnums=0)
def granted(kind, filter_):
    """Returns whether i uses of one epsilon and j of the other are granted, one spend after the other."""

    def fits(counts):
        pair = tuple(ja.RandomizedResponse(UNIT * multiple) for multiple in MULTIPLES)
        return filter_.would_grant(pair, (counts[0], counts[1]))

    i, j = jnp.meshgrid(jnp.arange(COUNTS[0] + 1), jnp.arange(COUNTS[1] + 1), indexing="ij")
    return jax.lax.map(fits, jnp.stack([i.ravel(), j.ravel()], axis=1), batch_size=64).reshape(i.shape)


@pytest.mark.first_tier("renyi optimal", "zcdp", "approximate", "gdp")
@pytest.mark.parametrize("kind", FILTERS)
def test_no_adaptive_adversary_gets_more_than_delta(kind):
    # The hockey-stick divergence of a walk that bets what the filter still grants, and stops when it likes.
    loss = positions(UNIT, MULTIPLES, COUNTS)
    for epsilon, delta in ((2.0, 1e-2), (3.0, 1e-3), (4.0, 1e-5)):
        allowed = np.asarray(granted(kind, FILTERS[kind](epsilon, delta)))
        assert allowed[0, 0]
        gain = np.maximum(-np.expm1(epsilon - loss), 0.0)
        nothing = np.full_like(gain, -np.inf)
        reached = best_adversary(
            UNIT, MULTIPLES, COUNTS, lambda i, j, gain=gain, no=nothing, allowed=allowed: gain if allowed[i, j] else no
        )
        assert 0 <= reached <= delta
        if kind == "renyi, one order" and epsilon < 4:  # the best order here: the adversary gets most of delta
            assert reached > 0.6 * delta


def test_the_check_rejects_a_filter_that_forgets_its_drift():
    # The same check of a filter that grants while sqrt(2 log(1/delta) sum of squares) <= epsilon, without half of the
    # sum: at a large epsilon it spends several times delta.
    epsilon, delta = 2.0, 1e-2
    unit, multiples, counts = 0.2, (1, 3), (24, 8)
    loss = positions(unit, multiples, counts)
    gain = np.maximum(-np.expm1(epsilon - loss), 0.0)

    def value(i, j):
        square = unit**2 * (i + 9 * j)
        return gain if np.sqrt(2 * np.log(1 / delta) * square) / 2 <= epsilon else np.full_like(gain, -np.inf)

    assert best_adversary(unit, multiples, counts, value) > delta


@pytest.mark.parametrize("kind", FILTERS)
def test_runs_fixed_in_advance_stay_within_delta(kind):
    for epsilon, delta in ((0.5, 1e-5), (4.0, 1e-6)):
        filter_ = FILTERS[kind](epsilon, delta)
        noise = 9.0 / epsilon
        mechanism = ja.Gaussian(noise) if kind.startswith(("zcdp", "gdp", "renyi")) else ja.PureDP(epsilon / 40)
        steps = int(filter_.remaining(mechanism))
        spent, ok = filter_, True
        for part in (steps // 3, steps - steps // 3):
            ok, spent = spent.spend(mechanism, part)
            assert ok
        assert not spent.would_grant(mechanism)
        if isinstance(mechanism, ja.Gaussian):
            assert ja.delta(mechanism, steps, epsilon).upper <= delta
            if kind == "gdp":  # tight to the step
                assert ja.delta(mechanism, steps + 1, epsilon).lower > delta
        else:
            # Randomized response is the worst; this is the exact law of its walk.
            k = np.arange(steps + 1)
            gain = np.maximum(-np.expm1(epsilon - (2 * k - steps) * epsilon / 40), 0.0)
            assert np.sum(scipy.stats.binom.pmf(k, steps, up(epsilon / 40)) * gain) <= delta


@pytest.mark.exhaustive
def test_subsampled_runs_by_the_exact_accountant():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    for conversion in ("mironov", "improved", "optimal"):
        budget = RenyiFilter(2.0, 1e-5, conversion=conversion)
        steps = int(budget.remaining(mechanism))
        assert ja.delta(mechanism, steps, 2.0).upper <= 1e-5
        assert steps > 200


def test_what_is_left_for_a_training_is_what_it_is_granted():
    """A mechanism that is always taken for others is asked for as those."""
    training = ja.MatrixMechanism(ja.strategies.square_root(4), 2.0, ja.strategies.SinglePass(steps=8))
    budget = ja.filters.ZCDPFilter(4.0, 1e-5)
    left = int(budget.remaining(training))
    assert left >= 1
    assert budget.spend(training, steps=left)[0]
    assert not budget.spend(training, steps=left + 1)[0]
