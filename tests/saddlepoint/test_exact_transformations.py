"""Tests of the exact accountant under jit and vmap, of derivatives, and of a program for a device without float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import saddlepoint
from jaxacct.mechanisms.shifted_noise import subsampled_pair


def upper_and_estimate(noise_multiplier, sampling_rate, steps, delta=1e-5, arithmetic="auto"):
    mechanism = ja.PoissonSubsampledGaussian(noise_multiplier, sampling_rate)
    return saddlepoint.epsilon(mechanism, steps, delta, relation="remove", arithmetic=arithmetic)


@pytest.mark.exhaustive
def test_a_batch_is_what_its_entries_are():
    noises, rates = jnp.array([0.8, 1.0, 3.0]), jnp.array([0.005, 0.01, 0.1])
    steps = jnp.array([1000, 10_000, 300])
    batch = jax.jit(jax.vmap(upper_and_estimate))(noises, rates, steps)
    for i in range(3):
        one = upper_and_estimate(float(noises[i]), float(rates[i]), int(steps[i]))
        assert one.converged
        np.testing.assert_allclose(batch.estimate[i], one.estimate, rtol=1e-6)  # the batch is read as float32


@pytest.mark.exhaustive
def test_concrete_numbers_in_a_trace_are_traced():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    for answer in (saddlepoint.epsilon, saddlepoint.delta):
        assert jax.eval_shape(lambda answer=answer: answer(mechanism, 10_000, 0.5).upper).shape == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("argument", range(4))
def test_derivatives_are_those_of_the_exact_value(argument):
    at = [1.0, 0.01, 10_000.0, 1e-5]
    found = jax.grad(lambda *a: upper_and_estimate(*a).estimate, argnums=argument)(*at)
    step = 1.0 if argument == 2 else 1e-4 * at[argument]
    sides = []
    for sign in (1, -1):
        moved = list(at)
        moved[argument] += sign * step
        sides.append(float(upper_and_estimate(*moved).estimate))
    assert float(found) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_a_sampled_pair_of_numbers_is_what_a_traced_one_is(direction):
    with jax.enable_x64(True):
        found = subsampled_pair(0.7, np.float64(0.1), direction, "laplace")
        traced = jax.jit(lambda s, q: subsampled_pair(s, q, direction, "laplace"))(0.7, 0.1)
    for number, array in zip(jax.tree.leaves(found), jax.tree.leaves(traced), strict=True):
        assert isinstance(number, np.ndarray)  # no operation was compiled for it
        np.testing.assert_array_equal(number, array)


@pytest.mark.exhaustive
def test_delta_falls_with_epsilon_at_the_rate_it_says():
    def delta(epsilon):
        return saddlepoint.delta(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, epsilon, relation="remove").estimate

    found = jax.grad(delta)(4.0)
    assert float(found) == pytest.approx((float(delta(4.001)) - float(delta(3.999))) / 0.002, rel=1e-5)


@pytest.mark.exhaustive
def test_a_program_for_tpus_does_nothing_in_float64():
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    def estimate(noise_multiplier, sampling_rate, steps):
        return upper_and_estimate(noise_multiplier, sampling_rate, steps, arithmetic="float32").estimate

    exported = jax.export.export(jax.jit(estimate), platforms=["tpu"])(scalar, scalar, scalar)
    text = exported.mlir_module()
    done = {name for line in text.splitlines() if "f64>" in line for name in re.findall(r"stablehlo\.(\w+)", line)}
    assert done <= {"convert", "constant", "broadcast_in_dim"}
    assert "complex" not in text
    found = estimate(1.0, 0.01, 10_000.0)
    assert float(found) == pytest.approx(6.187712389971, rel=1e-5)
