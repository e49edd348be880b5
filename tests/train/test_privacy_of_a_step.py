"""Clipping bounds every example, noise has the stated scale, and without either the step is plain SGD."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxacct.train.clipping import clipped_sum
from jaxacct.train.noise import privatize, standard_normal


def linear_loss(params, example):
    """A loss whose gradient is the example itself."""
    return sum(jnp.vdot(params[name], example[name]) for name in params)


PARAMS = {"w": jnp.zeros((4, 3)), "b": jnp.zeros(5)}


def random_examples(count, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(scale * rng.normal(size=(count, *leaf.shape)), jnp.float32) for name, leaf in PARAMS.items()
    }


def norm(tree):
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.longdouble) ** 2) for leaf in jax.tree.leaves(tree))))


@given(st.floats(-12, 12), st.floats(-3, 3), st.integers(0, 1000))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_one_example_contributes_at_most_the_clip_norm(log_scale, log_clip, seed):
    clip = float(np.float32(10**log_clip))
    total = clipped_sum(linear_loss, PARAMS, random_examples(1, 10**log_scale, seed), jnp.array([True]), clip_norm=clip)
    assert norm(total) <= clip


def test_short_gradients_are_left_alone_and_long_ones_scaled():
    short, long = random_examples(1, 1e-3), random_examples(1, 10.0)
    kept = clipped_sum(linear_loss, PARAMS, short, jnp.array([True]), clip_norm=1.0)
    np.testing.assert_allclose(kept["b"], short["b"][0], rtol=1e-6)
    scaled = clipped_sum(linear_loss, PARAMS, long, jnp.array([True]), clip_norm=1.0)
    assert norm(scaled) > 0.9999
    np.testing.assert_allclose(scaled["b"] / scaled["b"][0], long["b"][0] / long["b"][0][0], rtol=1e-5)


def test_masked_and_non_finite_examples_contribute_nothing():
    examples = random_examples(6)
    examples["b"] = examples["b"].at[1, 2].set(jnp.nan).at[4, 0].set(jnp.inf).at[5].set(jnp.nan)
    mask = jnp.array([True, True, True, False, True, False])
    total = clipped_sum(linear_loss, PARAMS, examples, mask, clip_norm=1.0)
    alone = {name: leaf[jnp.array([0, 2])] for name, leaf in examples.items()}
    expected = clipped_sum(linear_loss, PARAMS, alone, jnp.array([True, True]), clip_norm=1.0)
    for name in PARAMS:
        np.testing.assert_array_equal(np.asarray(total[name]), np.asarray(expected[name]))


@pytest.mark.parametrize("microbatch_size", [1, 3, 7, 50])
def test_microbatches_change_nothing(microbatch_size):
    examples, mask = random_examples(7), jnp.array([True, False, True, True, True, False, True])
    whole = clipped_sum(linear_loss, PARAMS, examples, mask, clip_norm=2.0)
    parts = clipped_sum(linear_loss, PARAMS, examples, mask, clip_norm=2.0, microbatch_size=microbatch_size)
    for name in PARAMS:
        np.testing.assert_allclose(np.asarray(parts[name]), np.asarray(whole[name]), rtol=2e-6)  # float32 norms


def test_without_clipping_or_noise_it_is_the_mean_gradient():
    def loss(params, example):
        return jnp.sum(jnp.tanh(params["w"].T @ example["b"][:4]) ** 2) + params["b"] @ example["b"]

    examples = random_examples(9)
    total = clipped_sum(loss, PARAMS, examples, jnp.ones(9, bool), clip_norm=float("inf"))
    mean = privatize(jax.random.key(0), total, noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=9)
    plain = jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, examples)))(PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(np.asarray(mean[name]), plain[name], rtol=1e-5, atol=1e-7)


NOISE, CLIP, BATCH = 1.7, 0.4, 32.0


@pytest.fixture(scope="module")
def noise_values():
    zeros = {"a": jnp.zeros((100, 100)), "b": jnp.zeros(10_000)}
    noisy = privatize(jax.random.key(5), zeros, noise_multiplier=NOISE, clip_norm=CLIP, expected_batch_size=BATCH)
    return {name: np.asarray(leaf).ravel() * BATCH for name, leaf in noisy.items()}


def test_noise_has_the_stated_scale(noise_values):
    for values in noise_values.values():
        assert stats.kstest(values, "norm", (0, NOISE * CLIP)).pvalue > 1e-4


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_scale_test_rejects_other_scales(noise_values, factor):
    for values in noise_values.values():
        assert stats.kstest(values, "norm", (0, factor * NOISE * CLIP)).pvalue < 1e-10


def test_leaves_and_keys_get_independent_noise(noise_values):
    correlation = np.corrcoef(noise_values["a"], noise_values["b"])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(10_000)
    first, second = (np.asarray(standard_normal(jax.random.key(i), (10_000,))) for i in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(10_000)


def test_an_empty_batch_is_noise_alone():
    total = clipped_sum(linear_loss, PARAMS, random_examples(4), jnp.zeros(4, bool), clip_norm=1.0)
    assert all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(total))


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan")])
def test_bad_clip_norm(clip_norm):
    with pytest.raises(ValueError, match="clip_norm"):
        clipped_sum(linear_loss, PARAMS, random_examples(1), jnp.array([True]), clip_norm=clip_norm)
