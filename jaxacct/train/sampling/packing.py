"""From a random choice of examples to rows of a fixed shape, whatever was drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

Batch = tuple[Int32[Array, " capacity"], Bool[Array, " capacity"]]
"""Indices into the data set, and which of the rows are real. The others point at example 0 and count for nothing."""

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


def random_order(key: jax.Array, first: UInt32[Array, " n"], count: int) -> Int32[Array, " count"]:
    """Returns the indices of the ``count`` least of ``first``, in rising order; ties are broken by 64 random bits.

    The order among equal ones is uniform, but for ties in all bits.
    """
    ties = jax.random.bits(key, (2, first.shape[0]), jnp.uint32)
    indices = jax.lax.iota(jnp.int32, first.shape[0])
    return jax.lax.sort((first, ties[0], ties[1], indices), num_keys=3)[3][:count]
