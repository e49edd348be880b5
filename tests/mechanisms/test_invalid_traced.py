"""Parameters out of range that nobody can see in a trace: no composition that runs them is valid."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, iteration
from jaxacct.composition import directed_parts, facts_of
from jaxacct.mechanisms.bounded_range import together
from jaxacct.mechanisms.mechanism import is_count
from jaxacct.numerics.precision import kernel

NO_NUMBER, NO_RATE = (-1.0, -1e-30, -1e3, math.nan), (-0.5, -1e-30, 1.5, math.nan)

SAMPLED = {
    "PoissonSubsampledDP": (ja.PoissonSubsampledDP, "add_or_remove"),
    "DPWithoutReplacement": (ja.DPWithoutReplacement, "replace"),
}

HIDING = {
    "AboveThreshold": (ja.AboveThreshold, (2.0, 4.0), (NO_NUMBER, NO_NUMBER)),
    "GaussianAboveThreshold": (
        lambda s, b: ja.GaussianAboveThreshold(s, b, 3.0),
        (2.0, 4.0),
        (NO_NUMBER, NO_NUMBER),
    ),
    "monotone": (functools.partial(ja.AboveThreshold, monotone=True), (2.0, 4.0), (NO_NUMBER, NO_NUMBER)),
    "group of samples": (lambda s, q: ja.PoissonSubsampledGroup(s, q, 3), (2.0, 0.1), (NO_NUMBER, NO_RATE)),
    "group without replacement": (lambda s: ja.WithoutReplacementGroup(s, 20, 5, 3), (2.0,), (NO_NUMBER,)),
}
"""Mechanisms whose pairs are made of sums, squares or cut-off numbers, which may hide an invalid one."""

OTHERS = {
    "PureDP": (ja.PureDP, (0.5,), (NO_NUMBER,)),
    "ApproximateDP": (ja.ApproximateDP, (0.5, 0.1), (NO_NUMBER, NO_RATE)),
    "RandomizedResponse": (functools.partial(ja.RandomizedResponse, outcomes=3), (0.5,), (NO_NUMBER,)),
    "ExponentialMechanism": (ja.ExponentialMechanism, (0.5,), (NO_NUMBER,)),
    "Gaussian": (ja.Gaussian, (2.0,), (NO_NUMBER,)),
    "Laplace": (ja.Laplace, (2.0,), (NO_NUMBER,)),
    "DiscreteLaplace": (ja.DiscreteLaplace, (2.0,), (NO_NUMBER,)),
    "DiscreteGaussian": (ja.DiscreteGaussian, (2.0,), (NO_NUMBER,)),
    "PoissonSubsampledGaussian": (ja.PoissonSubsampledGaussian, (2.0, 0.1), (NO_NUMBER, NO_RATE)),
    "PoissonSubsampledLaplace": (ja.PoissonSubsampledLaplace, (2.0, 0.1), (NO_NUMBER, NO_RATE)),
    "GaussianWithoutReplacement": (ja.GaussianWithoutReplacement, (2.0, 0.1), (NO_NUMBER, NO_RATE)),
    "LaplaceWithoutReplacement": (ja.LaplaceWithoutReplacement, (2.0, 0.1), (NO_NUMBER, NO_RATE)),
    "TreeAggregation": (ja.TreeAggregation, (2.0, 4.0), (NO_NUMBER, NO_NUMBER)),
    "group of PureDP": (lambda e: ja.group(ja.PureDP(e), 3), (0.5,), (NO_NUMBER,)),
    "group of ApproximateDP": (
        lambda e, d: ja.group(ja.ApproximateDP(e, d), 3),
        (0.5, 1e-3),
        (NO_NUMBER, (-1.0, -1e-30)),
    ),
    "group of Laplace samples": (
        lambda s, q: ja.PoissonSubsampledGroup(s, q, 3, "laplace"),
        (2.0, 0.1),
        (NO_NUMBER, NO_RATE),
    ),
    "RandomAllocation": (lambda s: ja.RandomAllocation(s, 4, points=64), (2.0,), (NO_NUMBER,)),
    "two steps": (lambda s: ja.RandomAllocation(s, 4, participations=2, points=64), (2.0,), (NO_NUMBER,)),
    "AllocatedMechanism": (lambda s: ja.AllocatedMechanism(ja.Laplace(s), 4), (2.0,), (NO_NUMBER,)),
    "PoissonSampledMechanism": (
        lambda s, q: ja.PoissonSampledMechanism(ja.DiscreteLaplace(s), q),
        (2.0, 0.1),
        (NO_NUMBER, NO_RATE),
    ),
    "BallsInBins": (
        lambda s: ja.BallsInBins(ja.strategies.square_root(2).normalized(), s, 8),
        (2.0,),
        (NO_NUMBER,),
    ),
    "ShuffledGaussian": (
        lambda s, t: ja.ShuffledGaussian(s, t, remainder="even"),
        (2.0, 4.0),
        (NO_NUMBER, (-1.0, 0.5, math.nan)),
    ),
    "ShuffledRandomizedResponse": (
        lambda e, n: ja.ShuffledRandomizedResponse(e, 3, n),
        (1.0, 20.0),
        (NO_NUMBER, (-1.0, 1.5, math.nan)),
    ),
    "GaussianMixture": (
        lambda s, q: ja.GaussianMixture(s, jnp.stack([jnp.zeros(()), jnp.ones(())]), jnp.stack([1 - q, q])),
        (2.0, 0.1),
        (NO_NUMBER, NO_RATE),
    ),
    "DiscretePair": (
        lambda p: ja.DiscretePair(jnp.stack([p, 1 - p]), jnp.stack([1 - p, p])),
        (0.25,),
        (NO_RATE,),
    ),
    "TruncatedPoissonGaussian": (
        lambda s, q, r: ja.TruncatedPoissonGaussian(s, q, r),
        (2.0, 0.1, 0.01),
        (NO_NUMBER, NO_RATE, NO_RATE),
    ),
}


def validity(kind, relation):
    """A program of a mechanism's numbers: whether each of its compositions is valid, by the facts that verbs ask."""

    @jax.jit
    @kernel
    def valid(*numbers):
        return [facts_of(parts).is_valid for parts in directed_parts(kind(*numbers), 1, relation)]

    return valid


def replaced(good, bad):
    """All settings of which one number is out of range."""
    return [(*good[:i], wrong, *good[i + 1 :]) for i, row in enumerate(bad) for wrong in row]


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_of_no_guarantee_has_none(name):
    """A share of a delta above 1 may be a probability, and an epsilon below 0 is not the least one above it."""
    kind, relation = SAMPLED[name]
    valid = validity(kind, relation)
    assert all(valid(0.5, 1e-3, 0.1))
    for numbers in replaced((0.5, 1e-3, 0.1), (NO_NUMBER, NO_RATE, NO_RATE)):
        assert not any(valid(*numbers)), numbers


@pytest.mark.parametrize("delta", [1.5, -0.5, math.nan])
def test_conversions_of_a_sample_refuse_what_is_no_probability(delta):
    sampled = jax.jit(lambda d: convert.mechanism_to_dp(ja.PoissonSubsampledDP(0.5, d, 0.1)))
    assert [float(x) for x in sampled(delta)] == [math.inf, 1.0]


def test_the_highest_order_of_invalid_numbers_claims_nothing():
    order = jax.jit(iteration.highest_order)
    assert abs(float(order(1.0, 5.0)) - 4.0707) < 1e-3
    assert all(float(order(*pair)) == 1.0 for pair in ((-1.0, 5.0), (1.0, -5.0), (math.nan, 5.0), (1.0, math.nan)))


def test_ranges_that_are_summed_hide_no_invalid_one():
    """Runs of equal ranges are one sum; an invalid number of runs, or range, beside a valid one stays invalid."""

    @jax.jit
    @kernel
    def runs(epsilons, counts):
        ranges = [(ja.ExponentialMechanism(epsilons[i]), counts[i]) for i in range(2)]
        return [(mechanism.epsilon, count) for mechanism, count in together(ranges)]

    def ask(epsilons, counts):
        found = runs(jnp.asarray(epsilons, jnp.float32), jnp.asarray(counts, jnp.float32))
        found = jax.tree.map(np.asarray, found)
        return all(np.all(is_count(k) & ((k == 0) | (span >= 0))) for span, k in found)

    assert ask((0.5, 0.5), (3, 10))
    assert ask((0.5, 0.25), (3, 0))
    for counts in ((-3, 10), (10, -3), (2.5, 1.5), (math.nan, 10), (-3, 3), (math.inf, -math.inf)):
        assert not ask((0.5, 0.5), counts), counts
    for epsilons in ((0.5, math.nan), (math.nan, 0.5), (math.nan, math.nan), (-0.5, 0.5), (0.5, -0.5)):
        assert not ask(epsilons, (3, 10)), epsilons
    assert not ask((0.0, 1.0), (-3, 10))


@pytest.mark.parametrize("name", HIDING)
def test_no_sum_or_square_hides_an_invalid_number(name):
    kind, good, bad = HIDING[name]
    valid = validity(kind, "replace")
    assert all(valid(*good))
    for numbers in replaced(good, bad):
        assert not any(valid(*numbers)), numbers


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*HIDING, *OTHERS])
def test_no_invalid_number_is_valid_in_a_trace(name):
    kind, good, bad = (HIDING | OTHERS)[name]
    relations = ("add_or_remove", "remove", "add", "replace", "zero_out")
    concrete = kind(*(np.float64(value) for value in good))
    for relation in (r for r in relations if r in concrete.relations):
        valid = validity(kind, relation)
        assert all(valid(*good)), relation
        for numbers in replaced(good, bad):
            assert not any(valid(*numbers)), (relation, numbers)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*HIDING, *OTHERS])
def test_no_invalid_number_has_a_curve_in_a_trace(name):
    """Divergences may be known in closed form, which asks nothing of the pair and squares its numbers."""
    kind, good, bad = (HIDING | OTHERS)[name]
    relation = kind(*(np.float64(value) for value in good)).relations[0]
    curve = jax.jit(lambda *numbers: ja.rdp.curve(kind(*numbers), [2.0], relation=relation))
    assert curve(*good) > 0
    for numbers in replaced(good, bad):
        assert curve(*numbers) == math.inf, numbers
    # XLA takes squares and absolute values to be at least 0, though they be NaN.
    curve = jax.jit(
        lambda *numbers: ja.rdp.curve(kind(*(abs(numbers[0]), *numbers[1:])), [2.0, 3.0], relation=relation)
    )
    assert np.all(curve(math.nan, *good[1:]) == math.inf)
