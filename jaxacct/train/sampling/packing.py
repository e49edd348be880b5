"""From a random choice of examples to rows of a fixed shape, whatever was drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

Batch = tuple[Int32[Array, " capacity"], Bool[Array, " capacity"]]
"""Indices into the data set, and which of the rows are real. The others point at example 0 and count for nothing."""

MOST_BINS = 2**16
"""64 random bits modulo the number of bins are then formed in 32-bit arithmetic, without overflow."""

RATE_UNIT = 2**32
"""An example takes part if 32 random bits, as a number, fall below sampling_rate * 2^32: the rate is met exactly."""


def pack(
    selected: Bool[Array, " num_examples"], capacity: int
) -> tuple[Int32[Array, " capacity"], Bool[Array, " capacity"]]:
    """Returns the first ``capacity`` selected indices and a mask of the rows in use.

    >>> indices, mask = pack(jnp.array([False, True, False, True]), 3)
    >>> indices.tolist(), mask.tolist()
    ([1, 3, 0], [True, True, False])
    """
    (indices,) = jnp.nonzero(selected, size=capacity, fill_value=0)
    return indices.astype(jnp.int32), jnp.arange(capacity) < jnp.sum(selected)


def coins(key: jax.Array, count: int, rate: float) -> Bool[Array, " count"]:
    """Returns which of ``count`` examples take part, each by itself, at a rate that is a multiple of 2^-32."""
    threshold = round(rate * RATE_UNIT)
    if threshold == RATE_UNIT:  # 2^32 itself does not fit into 32 bits
        return jnp.ones(count, bool)
    return jax.random.bits(key, (count,), jnp.uint32) < jnp.uint32(threshold)


def places(key: jax.Array, count: int, bins: int) -> Int32[Array, " count"]:
    """Returns for each of ``count`` examples one of at most 2^16 bins, by 64 random bits modulo their number."""
    return modulo(jax.random.bits(key, (2, count), jnp.uint32), jnp.uint32(bins))


def modulo(words: UInt32[Array, "2 n"], bins: Array) -> Int32[Array, " n"]:
    """Returns (2^32 high + low) mod bins, at most 2^16: neither products of residues nor the last sum wrap."""
    unit = (jnp.uint32(RATE_UNIT - 1) % bins + jnp.uint32(1)) % bins
    return (((words[0] % bins) * unit % bins + words[1] % bins) % bins).astype(jnp.int32)


def random_order(key: jax.Array, first: UInt32[Array, " n"], count: int) -> Int32[Array, " count"]:
    """Returns the indices of the ``count`` least of ``first``, in rising order; ties are broken by 64 random bits.

    The order among equal ones is uniform, but for ties in all bits.
    """
    ties = jax.random.bits(key, (2, first.shape[0]), jnp.uint32)
    indices = jax.lax.iota(jnp.int32, first.shape[0])
    return jax.lax.sort((first, ties[0], ties[1], indices), num_keys=3)[3][:count]
