"""Questions as values, and whole curves: each entry is as a single answer is, by the same rule."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers.thorough import THOROUGH

import jaxacct as ja
from jaxacct.bounds import Bounds
from jaxacct.certified import narrow_down
from jaxacct.composition import ForDelta, ForEpsilon, unknown

EPSILONS = np.array([6.0, 0.0, 1.0, 2.0])
RUNS = {
    "exact": (ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000),
    "gaussian": (ja.Gaussian(10.0), 100),
    "open": (ja.PoissonSubsampledGaussian(1.0, 0.001), 10),
    "idle": (ja.Gaussian(10.0), 0),
    "no noise": (ja.Gaussian(0.0), 1),
}


@pytest.mark.parametrize("question", [ForEpsilon(1e-5), ForDelta(1.0)])
def test_a_question_has_one_leaf_and_keeps_its_kind(question):
    assert jax.tree.leaves(question) == [question.value]
    doubled = jax.jit(jax.vmap(lambda asked: asked.at(2 * asked.value)))(question.at(np.ones(3, np.float32)))
    assert type(doubled) is type(question)
    np.testing.assert_array_equal(doubled.value, 2.0)
    nothing = unknown(question)
    assert (nothing.lower, nothing.upper, bool(nothing.converged)) == (0, question.worst, False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RUNS)
def test_a_profile_holds_what_single_deltas_do(name):
    mechanism, steps = RUNS[name]
    found = ja.curve(mechanism, steps, epsilons=EPSILONS)
    assert found.lower.dtype == np.float64
    for i, epsilon in enumerate(EPSILONS):
        one = ja.delta(mechanism, steps, epsilon, points=2**13)
        assert max(one.lower, found.lower[i]) <= min(one.upper, found.upper[i])
        assert found.lower[i] <= found.estimate[i] <= found.upper[i]
        if one.converged and one.gap < 1e-9:
            assert found.converged[i]
            assert found.upper[i] <= one.upper * (1 + 1e-9)


@pytest.mark.exhaustive
def test_epsilons_over_deltas_are_the_inverse():
    mechanism, steps = RUNS["exact"]
    deltas = ja.curve(mechanism, steps, epsilons=[2.0, 4.0]).estimate
    back = ja.curve(mechanism, steps, deltas=list(deltas))
    np.testing.assert_allclose(back.estimate, [2.0, 4.0], rtol=1e-9)


def test_a_traced_profile_is_the_same():
    name = "exact" if THOROUGH else "gaussian"  # the other route is traced in tests/certified/test_certified.py
    mechanism, steps = RUNS[name]
    curve = jax.jit(lambda noise, at: ja.curve(replace(mechanism, noise_multiplier=noise), steps, epsilons=at).upper)
    with jax.enable_x64(True):
        found = curve(mechanism.noise_multiplier, EPSILONS)
    np.testing.assert_allclose(found, ja.curve(mechanism, steps, epsilons=EPSILONS).upper, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["epsilons", "deltas"]),
        ({"epsilons": [1.0], "deltas": [1e-5]}, ["epsilons", "deltas"]),
        ({"epsilons": 1.0}, ["epsilons", "list"]),
        ({"deltas": []}, ["deltas", "list"]),
        ({"epsilons": [1.0, -1.0]}, ["epsilon", "-1"]),
        ({"deltas": [1e-5, 2.0]}, ["delta", "2.0"]),
        ({"epsilons": [1.0], "relation": "swap"}, ["relation", "swap"]),
    ],
)
def test_wrong_uses_of_a_curve_are_named(options, words):
    with pytest.raises(ValueError, match="(?s)" + ".*".join(words)):
        ja.curve(*RUNS["gaussian"], **options)


def test_the_mesh_is_asked_once_where_anything_is_open_and_proves_no_less():
    calls = []
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.1, 1.0, 6)
    exact, mesh = (Bounds(truth * (1 - w), truth, truth * (1 + w), w < 1e-6) for w in rng.choice([1e-9, 0.3], (2, 6)))

    def asked():
        calls.append(1)
        return mesh

    both = narrow_down(exact, asked, 1e-2)
    assert len(calls) == 1
    assert np.all((both.lower <= truth) & (truth <= both.upper))
    assert np.all((both.lower >= exact.lower) & (both.upper <= exact.upper))
    np.testing.assert_array_equal(both.converged, exact.converged | mesh.converged)
    settled = Bounds(truth, truth, truth, np.ones(6, bool))
    assert np.all(narrow_down(settled, asked, 1e-2).upper == truth)
    assert len(calls) == 1


@pytest.mark.exhaustive
@pytest.mark.first_tier("epsilons")
@pytest.mark.parametrize(
    "given", [{"epsilons": np.array([0.5, 1.0])}, {"deltas": [1e-5, 1e-3]}], ids=["epsilons", "deltas"]
)
def test_a_profile_at_known_numbers_in_a_trace(given):
    """What is asked at is an array of NumPy's, or a list, while the mechanism is traced."""
    known = ja.curve(ja.Gaussian(10.0), 100, **given)
    traced = jax.jit(jax.vmap(lambda noise: ja.curve(ja.Gaussian(noise), 100, **given)))(np.array([10.0, 20.0]))
    np.testing.assert_allclose(np.asarray(traced.upper)[0], known.upper, rtol=1e-6)
    assert np.all(np.asarray(traced.upper)[1] < known.upper)
    jax.eval_shape(jax.jit(lambda noise: ja.curve(ja.PoissonSubsampledGaussian(noise, 0.01), 9, **given)), 1.0)
