"""Programs for devices that are not here: accountants and a training step are lowered for GPUs and TPUs.

That a program exports says that every operation has a lowering there, not that its results were looked at. What each
function is made of, and what a TPU's own compiler takes: tests/project/test_accelerators_page.py.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from helpers.thorough import THOROUGH

import jaxacct as ja
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.noise import privatize

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
PLATFORMS = ("cuda", "tpu")


def saddlepoint(noise_multiplier, sampling_rate, steps):
    mechanism = ja.PoissonSubsampledGaussian(noise_multiplier, sampling_rate)
    return ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove")


def saddlepoint_float32(noise_multiplier, sampling_rate, steps):
    mechanism = ja.PoissonSubsampledGaussian(noise_multiplier, sampling_rate)
    return ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove", arithmetic="float32").estimate


def mesh(noise_multiplier, sampling_rate, steps):
    mechanism = ja.PoissonSubsampledGaussian(noise_multiplier, sampling_rate)
    return ja.prv.epsilon(mechanism, steps, 1e-5, relation="remove", points=128)


def private_gradient(key, weights, examples, mask):
    total, unclipped = clip_and_sum(
        lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), weights, examples, mask, rule=Flat(1.0), ghost=True
    )
    return privatize(key, total, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=4.0), unclipped


GRADIENT = (
    jax.eval_shape(lambda: jax.random.key(0)),
    jax.ShapeDtypeStruct((3, 2), jnp.float32),
    jax.ShapeDtypeStruct((4, 3), jnp.float32),
    jax.ShapeDtypeStruct((4,), jnp.bool_),
)

KERNELS = {
    "saddlepoint": (saddlepoint, lambda: (SCALAR,) * 3),
    "saddlepoint in float32": (saddlepoint_float32, lambda: (SCALAR,) * 3),
    "mesh": (mesh, lambda: (SCALAR,) * 3),
    "private gradient": (private_gradient, lambda: GRADIENT),
}


NO_TPU = {"mesh"} if THOROUGH else {"mesh", "saddlepoint"}
"""Which take seconds to lower for a TPU, of operations that tests/project/test_accelerators_page.py lowers."""


@pytest.mark.first_tier("saddlepoint in float32")
@pytest.mark.parametrize("name", KERNELS)
def test_lowers_for_devices_that_are_not_here(name):
    function, arguments = KERNELS[name]
    platforms = tuple(platform for platform in PLATFORMS if platform != "tpu" or name not in NO_TPU)
    exported = jax.export.export(jax.jit(function), platforms=platforms)(*arguments())
    assert exported.platforms == platforms
    text = exported.mlir_module()
    assert "custom_call" not in text, "a library of one device, or Python on the host"
    done = {found for line in text.splitlines() if "f64>" in line for found in re.findall(r"stablehlo\.(\w+)", line)}
    assert (done <= {"convert", "constant", "return"}) == (name == "saddlepoint in float32"), "nothing in float64"
    assert ("stablehlo.fft" in text) == (name == "mesh")


def test_what_looks_at_values_says_so():
    """A tolerance is reached by looking at results and refining in Python, so it is for concrete arguments only."""

    def epsilon(steps):
        return ja.prv.epsilon(ja.Gaussian(5.0), steps, 1e-5, tolerance=1e-3)

    with pytest.raises(ValueError, match="tolerance"):
        jax.export.export(jax.jit(epsilon), platforms=PLATFORMS)(SCALAR)
