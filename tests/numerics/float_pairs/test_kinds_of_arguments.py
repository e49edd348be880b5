"""Every verb, lowered for every platform, of each kind of number that people trace: Python's own are typed weakly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import cases

import jaxacct as ja

KINDS = {
    "float": 1.0,
    "int": 1,
    "bool": True,
    "float32": np.float32(1),
    "float64": np.float64(1),
    "0-d array": jnp.asarray(1.0),
    "0-d NumPy array": np.asarray(1.0),
}


def training(noise):
    return ja.PoissonSubsampledGaussian(noise, 0.01)


VERBS = {
    "exact epsilon": lambda noise: ja.saddlepoint.epsilon(training(noise), 1000, 1e-5),
    "its steps": lambda steps: ja.saddlepoint.epsilon(training(1.0), steps, 1e-5),
    "Rényi": lambda noise: ja.rdp.epsilon(training(noise), 1000, 1e-5),
    "filter": lambda noise: ja.filters.RenyiFilter(8.0, 1e-5).spend(training(noise), 10)[0],
}
MORE = {
    "exact delta": lambda noise: ja.saddlepoint.delta(training(noise), 1000, 1.0),
    "its delta": lambda delta: ja.saddlepoint.epsilon(training(1.0), 1000, delta / 2),
    "epsilon": lambda noise: ja.epsilon(training(noise), 1000, 1e-5),
    "delta": lambda noise: ja.delta(training(noise), 1000, 1.0),
    "mesh": lambda noise: ja.prv.epsilon(training(noise), 1000, 1e-5, points=1024),
    "curve": lambda noise: ja.rdp.curve(training(noise), (2.0, 3.0)),
    "calibrate": lambda epsilon: ja.calibrate.noise_multiplier(epsilon, 1e-5, 0.01, 1000),
    "Laplace": lambda scale: ja.saddlepoint.epsilon(ja.Laplace(scale), 10, 1e-5),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", cases(["float", "int"], [kind for kind in KINDS if kind not in ("float", "int")]))
@pytest.mark.parametrize("verb", cases(list(VERBS), list(MORE)))
def test_verbs_are_lowered_for_platforms_without_float64(verb, kind):
    traced = jax.jit((VERBS | MORE)[verb]).trace(KINDS[kind])
    for platform in cases(["tpu"], ["cpu", "cuda"]):
        assert traced.lower(lowering_platforms=(platform,)).compiler_ir()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", cases(["float"], [kind for kind in KINDS if kind != "float"]))
def test_pairs_are_made_for_a_cpu_of_whatever_is_traced(kind):
    """Lowered alone: XLA's CPU backend takes minutes for pairs, and what could fail is the making."""
    asked = jax.jit(lambda noise: ja.epsilon(training(noise), 10, 1e-5, arithmetic="pair", points=256))
    assert asked.trace(KINDS[kind]).lower(lowering_platforms=("cpu",)).compiler_ir()


@pytest.mark.exhaustive
def test_a_batch_of_python_numbers_and_of_a_constant():
    """Constants that are given their batch's size stay typed weakly."""
    traced = jax.jit(
        lambda noise, rate: jax.vmap(
            lambda s: ja.saddlepoint.epsilon(ja.PoissonSubsampledGaussian(s, rate), 100, 1e-5)
        )(noise * jnp.ones(3))
    ).trace(1.0, 0.01)
    assert traced.lower(lowering_platforms=("tpu",)).compiler_ir()
