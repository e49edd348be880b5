"""Tests of all filters and odometers: pure spends that work under transformations, refuse whole, and lose nothing."""

import fractions
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import filters, odometers

PURE, NOISY = ja.PureDP(0.01), ja.Gaussian(50.0)
LEDGERS = {
    "RenyiFilter": (lambda: filters.RenyiFilter(2.0, 1e-5), NOISY),
    "ZCDPFilter": (lambda: filters.ZCDPFilter(2.0, 1e-5), NOISY),
    "ApproximateDPFilter": (lambda: filters.ApproximateDPFilter(2.0, 1e-5), PURE),
    "GDPFilter": (lambda: filters.GDPFilter(2.0, 1e-5), NOISY),
    "RenyiOdometer": (lambda: odometers.RenyiOdometer(1e-5), NOISY),
    "VilleOdometer": (lambda: odometers.VilleOdometer(1e-5), NOISY),
    "FilterOdometer": (lambda: odometers.FilterOdometer(1e-5), NOISY),
    "MixtureOdometer": (lambda: odometers.MixtureOdometer(1e-5), NOISY),
    "StitchedOdometer": (lambda: odometers.StitchedOdometer(1e-5), NOISY),
    "RogersOdometer": (lambda: odometers.RogersOdometer(1e-5), PURE),
}
FILTERS = [name for name in LEDGERS if name.endswith("Filter")]
ODOMETERS = [name for name in LEDGERS if name.endswith("Odometer")]
MILLION_OF_STEPS = {"xla_backend_optimization_level": "1"}
"""What is told XLA of a program that runs for longer than it takes to compile."""


def made(name):
    make, mechanism = LEDGERS[name]
    return make(), mechanism


def assert_identical(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.array_equal(a, b)


def assert_close(one, other):
    """Costs are rounded up from floating-point code, whose last bits depend on what it is compiled with."""
    np.testing.assert_allclose(np.asarray(one.spent), np.asarray(other.spent), rtol=1e-13)


@pytest.mark.first_tier("MixtureOdometer", "StitchedOdometer", "RogersOdometer")
@pytest.mark.parametrize("name", LEDGERS)
def test_spends_are_the_same_eager_traced_and_in_batches(name):
    ledger, mechanism = made(name)
    counted, eager = ledger.spend(mechanism, 7)
    assert counted

    def spent_and_read(steps):
        _, after = ledger.spend(mechanism, steps)
        return after, after.epsilon()

    batch, readings = jax.jit(jax.vmap(spent_and_read))(jnp.array([7, 3]))
    assert_close(eager, jax.tree.map(lambda leaf: leaf[0], batch))
    readings = np.asarray(readings)
    assert readings[0] == pytest.approx(float(eager.epsilon()), rel=1e-6)
    assert 0 < readings[1] <= readings[0]
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(ledger))


@pytest.mark.parametrize("name", LEDGERS)
def test_state_survives_pickle_and_arrays(name):
    ledger, mechanism = made(name)
    _, spent = ledger.spend(mechanism, 5)
    assert_identical(pickle.loads(pickle.dumps(spent)), spent)
    leaves, structure = jax.tree.flatten(spent)
    again = jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves])
    assert again.epsilon() == spent.epsilon()
    assert again.would_grant(mechanism)


@pytest.mark.first_tier("ApproximateDPFilter", "GDPFilter", "StitchedOdometer")
@pytest.mark.parametrize("name", LEDGERS)
def test_what_is_invalid_is_refused_and_leaves_no_trace(name):
    ledger, mechanism = made(name)
    _, ledger = ledger.spend(mechanism, 3)
    field = "epsilon" if mechanism is PURE else "noise_multiplier"
    values = jnp.array([math.nan, -1.0, math.inf if mechanism is PURE else 0.0])
    counted, after = jax.jit(jax.vmap(lambda value: ledger.spend(type(mechanism)(**{field: value}))))(values)
    assert counted.tolist() == [False, False, False]
    for i in range(3):
        assert_identical(jax.tree.map(lambda leaf, i=i: leaf[i], after), ledger)
    counted, after = jax.vmap(lambda steps: ledger.spend(mechanism, steps))(jnp.array([-1.0, 0.5, math.nan, 2.0]))
    assert counted.tolist() == [False, False, False, True]
    assert_identical(jax.tree.map(lambda leaf: leaf[1], after), ledger)
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match=field):
            ledger.spend(type(mechanism)(**{field: bad}))
    with pytest.raises(ValueError, match="steps"):
        ledger.spend(mechanism, -1)
    with pytest.raises(ValueError, match="delta"):
        type(ledger)(2.0) if name in ODOMETERS else type(ledger)(1.0, 2.0)


@pytest.mark.parametrize("name", LEDGERS)
def test_float64_casts_are_noticed(name):
    ledger, mechanism = made(name)
    broken = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), ledger)
    with pytest.raises(TypeError, match="float32"):
        broken.spend(mechanism)


@pytest.mark.parametrize("name", FILTERS)
def test_a_refusal_is_bit_identical_and_remaining_is_right(name):
    ledger, mechanism = made(name)
    steps = int(ledger.remaining(mechanism))
    assert steps > 0
    granted, spent = ledger.spend(mechanism, steps)
    assert granted
    assert spent.epsilon() <= 2.0
    refused, same = spent.spend(mechanism)
    assert not refused
    assert_identical(same, spent)
    assert not ledger.would_grant(mechanism, steps + 1)
    assert spent.remaining(mechanism) == 0
    part = ledger.spend(mechanism, steps // 2)[1]
    assert part.remaining(mechanism) == steps - steps // 2


@pytest.mark.parametrize("name", ODOMETERS)
def test_remaining_of_an_odometer_is_until_a_reading(name):
    ledger, mechanism = made(name)
    _, ledger = ledger.spend(mechanism, 5)
    steps = int(ledger.remaining(mechanism, 3.0))
    assert steps > 0
    assert ledger.spend(mechanism, steps)[1].epsilon() <= 3.0
    assert ledger.spend(mechanism, steps + 1)[1].epsilon() > 3.0
    assert ledger.remaining(mechanism) == 2**30 - 1


@pytest.mark.parametrize("name", ["ZCDPFilter", "RenyiOdometer", "MixtureOdometer"])
def test_many_spends_in_float32_never_fall_below_the_exact_sum(name):
    ledger = {"ZCDPFilter": filters.ZCDPFilter(1e9, 1e-5)}.get(name) or made(name)[0]
    mechanism, count = ja.Gaussian(300.0), draws(100_000, 1_000_000)

    @functools.partial(jax.jit, compiler_options=MILLION_OF_STEPS)
    def run(ledger):
        def body(carry, _):
            counted, new = carry.spend(mechanism)
            return new, counted

        return jax.lax.scan(body, ledger, None, length=count)

    spent, counted = run(ledger)
    assert jnp.all(counted)
    exact = fractions.Fraction(count) / fractions.Fraction(300) ** 2
    orders = getattr(ledger, "orders", None)
    truth = [exact / 2 * fractions.Fraction(order) for order in orders] if orders else [exact]
    if name == "ZCDPFilter":
        truth = [exact / 2]
    have = np.atleast_1d(np.asarray(spent.spent, np.float64))
    excess = [float(fractions.Fraction(float(value)) / right - 1) for value, right in zip(have, truth, strict=True)]
    assert min(excess) >= 0
    assert max(excess) < 1e-6


def test_failure_probabilities_have_a_budget_of_their_own():
    mechanism = ja.ApproximateDP(0.01, 1e-7)
    budget = filters.ApproximateDPFilter(1.0, 1e-5, mechanism_delta=1e-6)
    assert budget.remaining(mechanism) in (9, 10)  # 1e-7 ten times may round above 1e-6
    _, spent = budget.spend(mechanism, 9)
    assert not spent.would_grant(mechanism, 2)
    assert spent.would_grant(ja.PureDP(0.01), 2)
    assert not filters.ZCDPFilter(1.0, 1e-5).would_grant(mechanism)
    odometer = odometers.MixtureOdometer(1e-5, mechanism_delta=1e-6)
    assert odometer.spend(mechanism, 9)[1].epsilon() < 1
    assert odometer.spend(mechanism, 11)[1].epsilon() == math.inf
    with pytest.raises(ValueError, match="leaves nothing"):
        filters.ApproximateDPFilter(1.0, 1e-5, mechanism_delta=1e-5)


def test_mechanisms_without_the_number_are_refused_by_name():
    sampled = ja.PoissonSubsampledGaussian(1.0, 0.01)
    for ledger in (filters.ZCDPFilter(1.0, 1e-5), filters.GDPFilter(1.0, 1e-5), odometers.MixtureOdometer(1e-5)):
        with pytest.raises(ValueError, match="PoissonSubsampledGaussian"):
            ledger.spend(sampled)
    with pytest.raises(ValueError, match="not known to be GDP"):
        filters.GDPFilter(1.0, 1e-5).spend(ja.ApproximateDP(0.1, 1e-6))


def test_sequences_and_tuples_are_granted_together():
    several = ja.Gaussian(np.array([40.0, 60.0])), ja.PureDP(0.02)
    counts = np.array([3, 4]), 2
    for name in ("ZCDPFilter", "GDPFilter", "VilleOdometer", "StitchedOdometer"):
        ledger, _ = made(name)
        _, together = ledger.spend(several, counts)
        for mechanism, steps in ((ja.Gaussian(40.0), 3), (ja.Gaussian(60.0), 4), (ja.PureDP(0.02), 2)):
            _, ledger = ledger.spend(mechanism, steps)
        assert together.epsilon() == pytest.approx(float(ledger.epsilon()), rel=1e-9)


def test_a_stitched_odometer_shows_the_variance_that_it_starts_from():
    for ledger in (odometers.StitchedOdometer(1e-5), odometers.StitchedOdometer(1e-5, start=0.5)):
        _, spent = ledger.spend(ja.PureDP(0.1))
        shown = float(repr(spent).split(", start=")[1].rstrip(")").split(",")[0])
        assert shown == pytest.approx(float(spent.state.start), rel=1e-3)
        assert f"least_variance={ledger.least_variance}" in repr(spent)


def test_individual_budgets_are_independent():
    budgets = filters.IndividualRenyiFilter.create(3, 1.0, 1e-5)
    noise = np.array([5.0, 50.0, 500.0])
    granted, budgets = jax.jit(lambda b, s: b.spend(ja.Gaussian(s), jnp.array([4, 4, 4])))(budgets, noise)
    assert granted.tolist() == [False, True, True]
    one = filters.RenyiFilter(1.0, 1e-5).spend(ja.Gaussian(50.0), 4)[1]
    epsilons = np.asarray(budgets.epsilon())
    assert epsilons[1] == pytest.approx(float(one.epsilon()), rel=1e-6)
    assert epsilons[0] == 0
    assert budgets.remaining(ja.Gaussian(np.full(3, 50.0))).tolist()[1] == int(one.remaining(ja.Gaussian(50.0)))
    with pytest.raises(ValueError, match="3 examples"):
        budgets.spend(ja.Gaussian(np.ones(2)))


@pytest.mark.exhaustive
def test_invalid_traced_budgets_grant_nothing_and_read_inf():
    epsilons, deltas = jnp.array([math.nan, -1.0, 1.0, 1.0, 1.0]), jnp.array([1e-5, 1e-5, 0.0, 1.0, math.nan])
    for make in (filters.ZCDPFilter, filters.GDPFilter, filters.ApproximateDPFilter):
        granted = jax.jit(jax.vmap(lambda e, d, make=make: make(e, d).would_grant(ja.PureDP(0.001))))(epsilons, deltas)
        assert granted.tolist() == [False] * 5
    for make in (odometers.MixtureOdometer, odometers.VilleOdometer, odometers.FilterOdometer):
        reading = jax.jit(jax.vmap(lambda d, make=make: make(d).spend(ja.PureDP(0.1))[1].epsilon()))(deltas[2:])
        assert np.asarray(reading).tolist() == [math.inf] * 3
