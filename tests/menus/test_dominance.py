"""Tests that dominated mechanisms cost no more, whatever epsilon, relation and number of runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import certified
from jaxacct.menus.game import costlier, dominates

SAMPLED = {
    ja.Gaussian: ja.PoissonSubsampledGaussian,
    ja.Laplace: ja.PoissonSubsampledLaplace,
}


def random_item(rng, kind):
    scale, rate = float(rng.choice([0.8, 1.0, 1.5, 3.0])), float(rng.choice([0.01, 0.05, 0.3, 1.0]))
    return SAMPLED[kind](scale, rate)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SAMPLED)
def test_what_is_dominated_has_the_smaller_delta(kind):
    rng = np.random.default_rng(3)
    pairs = [(random_item(rng, kind), random_item(rng, kind)) for _ in range(40)]
    said = [(item, other) for item, other in pairs if dominates(item, other) and item != other][:4]
    assert len(said) == 4
    for item, other in said:
        relation = ("remove", "add")[int(rng.integers(2))]
        runs, epsilon = int(rng.integers(2, 6)), float(rng.choice([0.0, 0.1, 0.5, 1.0, 2.0]))
        bounds = [certified.delta(mechanism, runs, epsilon, relation=relation) for mechanism in (item, other)]
        assert bounds[1].lower <= bounds[0].upper, (item, other, runs, epsilon, relation)


def test_no_sampling_is_a_rate_of_one():
    for kind, sampled in SAMPLED.items():
        assert dominates(kind(1.0), sampled(1.0, 1.0))
        assert dominates(sampled(1.0, 1.0), kind(1.0))
        assert not dominates(sampled(1.0, 0.5), kind(1.0))


def test_no_kind_dominates_another():
    items = [ja.Gaussian(1.0), ja.Laplace(1.0), ja.RandomizedResponse(1.0), ja.PureDP(1.0), ja.ApproximateDP(1.0, 1e-5)]
    for i, item in enumerate(items):
        assert [bool(dominates(item, other)) for other in items] == [i == j for j in range(len(items))]


def test_nothing_dominates_what_is_out_of_range():
    item = ja.PoissonSubsampledGaussian(1.0, 0.1)
    ask = jax.jit(lambda noise, rate: dominates(item, ja.PoissonSubsampledGaussian(noise, rate)))
    ordinary = [(1.0, 0.1, True), (jnp.inf, 0.0, True), (0.9999999, 0.1, False), (1.0, 0.1000001, False)]
    invalid = [(jnp.nan, 0.1, False), (2.0, jnp.nan, False), (-2.0, 0.1, False), (2.0, -0.1, False)]
    for noise, rate, answer in ordinary + invalid:
        assert bool(ask(np.float32(noise), np.float32(rate))) is answer


def test_the_costlier_one_has_float32_numbers_and_dominates():
    for value in (0.1, 1.3, 1 + 1e-12, 1e39, 1e300, 1e-50, float(np.float32(0.7)), np.inf):
        scale = costlier(ja.Gaussian(value)).noise_multiplier
        assert np.float32(scale) == scale <= value
        assert value == np.inf or scale < np.inf
    for value in (0.1, 1e-50, 0.0, 1.0, 1 - 1e-12):
        rate = costlier(ja.PoissonSubsampledLaplace(1.0, value)).sampling_rate
        assert np.float32(rate) == rate >= value
