"""Gaussian noise on a clipped sum, and the division by the expected batch size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64, PyTree

from jaxacct import validation
from jaxacct.precision import in_float64


def privatize(
    key: jax.Array, total: PyTree, *, noise_multiplier: float, clip_norm: float, expected_batch_size: float
) -> PyTree:
    """Returns ``(total + noise) / expected_batch_size``: a private estimate of the mean clipped gradient.

    Args:
        key: typed scalar key, used for nothing else.
        total: pytree of arrays, the :func:`~jaxacct.train.clipping.clipped_sum`.
        noise_multiplier: standard deviation of the noise over ``clip_norm``, the same on every entry.
        clip_norm: sensitivity of ``total``, finite.
        expected_batch_size: a public number. The realized size would leak who takes part.

    Returns:
        Pytree like ``total``, float64. What is done with it later is post-processing.

    Formal guarantee: if one example moves ``total`` by at most ``clip_norm`` in L2, this is the Gaussian mechanism with
    that noise multiplier, up to the generator: Threefry stands for true randomness, and float64 for the real line.

    Raises ValueError where an argument is out of range.

    >>> noisy = privatize(jax.random.key(0), jnp.ones(3), noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=4.0)
    >>> noisy.tolist()
    [0.25, 0.25, 0.25]
    """
    validation.check_noise_multiplier(noise_multiplier)
    validation.check_positive(clip_norm, "clip_norm")
    validation.check_positive(expected_batch_size, "expected_batch_size")
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, max(len(leaves), 1))
    noise = [standard_normal(keys[i], leaf.shape) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(
        structure, _noisy_mean(leaves, noise, float(noise_multiplier) * float(clip_norm), float(expected_batch_size))
    )


@in_float64
def _noisy_mean(leaves: list[Array], noise: list[Array], deviation: float, divisor: float) -> list[Array]:
    return [(leaf.astype(jnp.float64) + deviation * draw) / divisor for leaf, draw in zip(leaves, noise, strict=True)]


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> Float64[Array, ...]:
    """Returns independent standard normal float64 values, whatever the ambient precision is.

    Box and Muller's transform of 64-bit uniform numbers: values reach 9.4. A float32 normal is cut at 5.4, an event
    of probability 7e-8 for each entry, which for a large model is no smaller than delta.

    >>> standard_normal(jax.random.key(1), (2,)).dtype
    dtype('float64')
    """
    # 32-bit words: jax lowers 64-bit ones outside the float64 scope, and fails.
    return _box_muller(jax.random.bits(key, (4, *shape), jnp.uint32))


@in_float64
def _box_muller(words: Array) -> Array:
    high, low, turn_high, turn_low = words.astype(jnp.float64)
    uniform = (high * 2.0**32 + low + 0.5) * 2.0**-64  # above 0 always; rounds to 1 at most, whose logarithm is 0
    turn = (turn_high * 2.0**32 + turn_low) * 2.0**-64
    return jnp.sqrt(-2 * jnp.log(uniform)) * jnp.cos(2 * jnp.pi * turn)
