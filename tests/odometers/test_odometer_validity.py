"""Odometers hold at every moment: the probability of ever crossing one, computed exactly for randomized response."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import cases, draws
from helpers.walks import best_adversary, crossing_constant, positions, up

from jaxacct import PureDP, RandomizedResponse
from jaxacct.odometers import (
    FilterOdometer,
    MixtureOdometer,
    RenyiOdometer,
    RogersOdometer,
    StitchedOdometer,
    VilleOdometer,
)

DELTAS = cases((1e-2, 1e-6), (1e-4,))
ROUNDS = draws(2_500, 10_000)
MAKERS = {
    "doubling": RenyiOdometer,
    "ville": VilleOdometer,
    "filter": lambda delta: FilterOdometer(delta, epsilon=3.0),
    "mixture": lambda delta: MixtureOdometer(delta, rho=0.1),
    "stitched": StitchedOdometer,
    "rogers": lambda delta: RogersOdometer(delta, examples=1000),
}


@functools.partial(jax.jit, static_argnums=0)
def curve_of(kind, odometer, epsilon):
    def reading(steps):
        return odometer.spend(RandomizedResponse(epsilon), steps)[1].epsilon()

    return jax.lax.map(reading, jnp.arange(1, ROUNDS + 1), batch_size=1000)


@pytest.mark.first_tier("mixture")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_constant_epsilon_ever_crosses_with_probability_at_most_delta(kind):
    odometers = [MAKERS[kind](delta) for delta in DELTAS]
    for epsilon in cases([0.03, 0.1, 1.0], [0.01]):
        readings = np.stack([np.asarray(curve_of(kind, odometer, epsilon), np.float64) for odometer in odometers])
        assert np.all(np.diff(readings) >= -1e-6 * readings[:, 1:])
        for delta, reached in zip(DELTAS, crossing_constant(epsilon, readings), strict=True):
            assert 0 < reached <= delta or (reached == 0 and epsilon > 0.05), (delta, epsilon, reached)


@pytest.mark.parametrize("boundary", ["mixture", "stitched"])
def test_the_abbreviated_formulas_without_drift_fail(boundary):
    # The displays of a summary of the theorems leave out V/2. At epsilon = 1 the walk's drift of 0.46 a step carries it
    # over any boundary that grows like sqrt(V log log V).
    n, epsilon, delta, rho = np.arange(1, ROUNDS + 1), 1.0, 1e-2, 0.1
    variance = n * epsilon**2
    displays = {
        "mixture": np.sqrt(2 * np.log(np.sqrt(variance / rho + 1) / (2 * delta) + 1) * (variance + rho)),
        "stitched": 1.7 * np.sqrt(variance * (np.log(np.log(2 * n)) + 0.72 * math.log(5.2 / delta))),
    }
    assert crossing_constant(epsilon, displays[boundary]) > 0.99
    assert crossing_constant(epsilon, displays[boundary] + variance / 2) <= delta


UNIT, MULTIPLES, COUNTS = 0.25, (1, 3), (36, 12)


@functools.partial(jax.jit, static_argnums=0)
def readings_of_pairs(kind, odometer):
    """Returns the readings after i uses of one epsilon and j of the other; StitchedOdometer's start is the smaller."""

    def reading(counts):
        pair = tuple(RandomizedResponse(UNIT * multiple) for multiple in MULTIPLES)
        return odometer.spend(pair, (counts[0], counts[1]))[1].epsilon()

    i, j = jnp.meshgrid(jnp.arange(COUNTS[0] + 1), jnp.arange(COUNTS[1] + 1), indexing="ij")
    flat = jax.lax.map(reading, jnp.stack([i.ravel(), j.ravel()], axis=1), batch_size=100)
    return flat.reshape(i.shape)


@pytest.mark.first_tier("mixture", "stitched")
@pytest.mark.parametrize("kind", MAKERS)
def test_no_adaptive_adversary_crosses_more_often(kind):
    loss = positions(UNIT, MULTIPLES, COUNTS)
    constant = {}
    for delta in DELTAS:
        odometer = StitchedOdometer(delta, start=UNIT**2) if kind == "stitched" else MAKERS[kind](delta)
        table = np.asarray(readings_of_pairs(kind, odometer), np.float64)
        crossed = best_adversary(UNIT, MULTIPLES, COUNTS, lambda i, j, table=table: 1.0 * (loss > table[i, j]))
        assert crossed <= delta
        constant[delta] = crossing_constant(UNIT, table[1:, 0])
        assert constant[delta] <= crossed * (1 + 1e-12)  # the search finds this adversary, too


def test_the_search_for_an_adversary_finds_a_known_one():
    # One bet of each size: reaching a loss of +1 unit is best done by staking 3 first, unless a lucky 1 is enough.
    unit, multiples, counts = 1.0, (1, 3), (1, 1)
    loss = positions(unit, multiples, counts)
    won = best_adversary(unit, multiples, counts, lambda i, j: 1.0 * (loss >= 1))
    # First 1: won with p1; else 3 must win. First 3: won with p3; else lost for good at -2.
    assert won == pytest.approx(up(1.0) + (1 - up(1.0)) * up(3.0))


@pytest.mark.exhaustive
def test_ville_reads_less_than_the_doubling_filters_at_the_same_orders():
    for delta in DELTAS:
        doubling = RenyiOdometer(delta)
        ville = VilleOdometer(delta, orders=doubling.orders)
        a, b = (
            np.asarray(curve_of(*each)) for each in (("doubling", doubling, 0.1), ("ville at its orders", ville, 0.1))
        )
        assert np.all(b <= a)
        assert b[99] < a[99]


@pytest.mark.first_tier("filter", "rogers")
@pytest.mark.parametrize("kind", ["filter", "mixture", "stitched", "rogers"])
def test_no_boundary_on_the_way_is_above_the_highest(kind):
    generator = np.random.default_rng(3)
    for examples in (4, 5, 1000, 10**6, 2**53):
        odometer = RogersOdometer(1e-4, examples=examples) if kind == "rogers" else MAKERS[kind](1e-4)
        near = examples**-2.0 * (1 + generator.uniform(-1e-3, 1e-3, 500))
        spread = np.exp(generator.uniform(np.log(examples**-2.0 / 100), np.log(100.0), 1500))
        ends = np.array([examples**-2.0, np.nextafter(examples**-2.0, 0), 1.0, 1 + 2.0**-30, 1 + 2.0**-29])
        variances = np.sort(np.concatenate([near, spread, ends]))
        start = 1e-3
        with jax.enable_x64(True):
            boundary = np.asarray(odometer._boundary(variances, start))
            for first in (0, 700):
                highest = np.asarray(odometer._highest(variances[first], variances[first:], start))
                assert np.all(highest >= np.maximum.accumulate(boundary[first:]) * (1 - 2.0**-48))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", MAKERS)
def test_what_remains_keeps_every_reading_on_the_way(kind):
    """Rogers' boundary falls at V = 1/n^2: a number of runs may read less than a smaller one."""
    odometer, each = MAKERS[kind](1e-4), 1e-4
    readings = np.concatenate([[0.0], np.asarray(curve_of(kind, odometer, each), np.float64)])
    assert (kind == "rogers") == bool(np.any(np.diff(readings) < -1e-6))
    remaining = jax.jit(lambda limit: odometer.remaining(RandomizedResponse(each), limit))
    at = np.array([1, 2, 60, 98, 99, 100, 101, 150, 2000])
    for limit in np.concatenate([readings[at], (readings[at] + readings[at + 1]) / 2]):
        steps = int(remaining(limit))
        assert np.all(readings[: steps + 1] <= limit * (1 + 1e-6))
        assert np.any(readings[: steps + 2] >= limit * (1 - 1e-6))


@pytest.mark.parametrize("make", [VilleOdometer, RenyiOdometer, FilterOdometer], ids=lambda make: make.__name__)
def test_a_printed_odometer_says_what_it_reads(make):
    assert repr(make(1e-5)).startswith(f"{make.__name__}(reading=0, ")
    _, spent = make(1e-5).spend(PureDP(0.1))
    shown = float(repr(spent).split("reading=")[1].split(",")[0])
    assert 0 <= shown - spent.epsilon() <= 1e-5  # six digits, rounded up
    repr(jax.tree.map(lambda *leaves: jnp.stack(leaves), spent, spent))  # several that are stacked have no one reading
    assert "reading" not in repr(jax.eval_shape(lambda: spent))
