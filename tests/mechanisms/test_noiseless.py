"""Mechanisms whose noise is 0: exact answers where an example is seen if it is sampled, and inf where it always is."""

import numpy as np
import pytest

import jaxacct as ja
from jaxacct import calibrate
from jaxacct.composition import directed_parts, facts_of

RATE, RUNS = 1e-3, 3
SEEN = 1 - (1 - RATE) ** RUNS
"""Probability that an example is in a batch at all."""

SAMPLED = [
    ja.PoissonSubsampledGaussian(0.0, RATE),
    ja.PoissonSubsampledLaplace(0.0, RATE),
    ja.GaussianMixture(0.0, [0.0, 1.0, 2.0], [1 - RATE, RATE / 2, RATE / 2]),
    ja.GaussianWithoutReplacement(0.0, RATE),
    ja.LaplaceWithoutReplacement(0.0, RATE),
    ja.TruncatedPoissonGaussian(0.0, RATE, 0.0),
]
TOLD = [
    ja.Gaussian(0.0),
    ja.Laplace(0.0),
    ja.RandomAllocation(0.0, 4),
    ja.RandomAllocation(0.0, 4, participations=4),
    ja.TreeAggregation(0.0, 3),
    ja.PoissonSubsampledGaussian(0.0, 1.0),
]
CASES = [(each, relation) for each in SAMPLED for relation in each.relations]


def named(mechanism):
    return type(mechanism).__name__ if isinstance(mechanism, ja.Mechanism) else str(mechanism)


def encloses(bounds, truth):
    margin = 1e-14 * (1 + abs(truth)) if np.isfinite(truth) else 0.0
    return bounds.lower <= truth + margin and truth - margin <= bounds.upper and bounds.converged


@pytest.mark.parametrize(("mechanism", "relation"), CASES, ids=named)
def test_a_sampled_mechanism_is_known_exactly(mechanism, relation):
    """With the example in some batch everything is told; where it is in none, P and Q agree but for log(1 - q)."""
    told = relation != "add"
    assert encloses(ja.epsilon(mechanism, RUNS, 0.5, relation=relation), 0.0)
    most = np.inf if told else np.log1p(-1e-3) - RUNS * np.log1p(-RATE)
    assert encloses(ja.epsilon(mechanism, RUNS, 1e-3, relation=relation), most)
    least = SEEN if told else -np.expm1(1e-3 + RUNS * np.log1p(-RATE))
    assert encloses(ja.delta(mechanism, RUNS, 1e-3, relation=relation), least)


@pytest.mark.parametrize("size", [1, 3])
def test_groups_without_noise(size):
    group = ja.group(ja.PoissonSubsampledGaussian(0.0, RATE), size)
    assert encloses(ja.delta(group, 1, 0.0), -np.expm1(size * np.log1p(-RATE)))
    fixed = ja.WithoutReplacementGroup(0.0, 1000, 1, size)
    assert encloses(ja.delta(fixed, 1, 0.0, relation="replace"), size / 1000)


@pytest.mark.parametrize("mechanism", TOLD, ids=named)
def test_what_is_always_seen_has_no_epsilon(mechanism):
    relation = mechanism.relations[0]
    found = ja.epsilon(mechanism, 2, 0.5, relation=relation)
    assert (found.lower, found.upper) == (np.inf, np.inf)
    assert ja.delta(mechanism, 2, 1.0, relation=relation).lower > 1 - 1e-12


def test_a_sequence_with_some_noise_is_that_of_its_parts():
    """Rows without noise are taken apart; what is told, and the noise of the others, is as in a tuple."""
    kind = ja.PoissonSubsampledGaussian
    rows = kind(np.array([0.0, 1.0, 0.0]), np.array([1e-3, 0.01, 2e-3]))
    counts = np.array([2, 5, 1])
    parts = (kind(1.0, 0.01), kind(0.0, 1e-3), kind(0.0, 2e-3))
    for one, other in zip(
        directed_parts(rows, counts, "add_or_remove"), directed_parts(parts, (5, 2, 1), "add_or_remove"), strict=True
    ):
        mine, theirs = (sorted((type(p).__name__, k.tolist()) for p, k in each) for each in (one, other))
        assert mine == theirs
        np.testing.assert_allclose(facts_of(one).infinite, facts_of(other).infinite, rtol=1e-14)
    mixture = ja.GaussianMixture(np.array([0.0, 1.0]), [[0.0, 1.0]] * 2, [[0.9, 0.1]] * 2)
    assert sorted(len(k) for _, k in directed_parts(mixture, np.array([1, 1]), "remove")[0]) == [1, 1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("relation", ["add_or_remove", "remove", "add"])
def test_no_noise_is_returned_only_where_it_is_right(relation):
    for epsilon, delta, rate, runs in ((0.5, 0.5, 1e-3, 3), (0.5, 0.004, 1e-3, 3), (2.0, 0.2, 0.1, 2)):
        found = calibrate.noise_multiplier(epsilon, delta, rate, runs, relation=relation)
        run = ja.PoissonSubsampledGaussian(float(found.value), rate)
        assert ja.delta(run, runs, epsilon, relation=relation).lower <= delta
        if found.value == 0:
            assert ja.epsilon(run, runs, delta, relation=relation).upper <= epsilon
            assert found.reached.upper <= epsilon
    known = calibrate.steps(1.0, 1e-5, 0.0, 1e-3, relation="add")
    assert known.value == np.floor((1 - np.log1p(-1e-5)) / -np.log1p(-1e-3))


@pytest.mark.exhaustive
def test_traced_noise_of_0_is_sound():
    import jax

    for make in (ja.Gaussian, ja.Laplace, lambda s: ja.PoissonSubsampledGaussian(s, RATE)):
        found = jax.jit(lambda s, make=make: ja.delta(make(s), RUNS, 0.5))(0.0)
        assert found.upper >= ja.delta(make(0.0), RUNS, 0.5).lower
