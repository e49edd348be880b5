"""What moving averages share: how much weight there is so far, and in which type they are kept."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float32, PyTree


def weight(decay: ArrayLike, updates: Array) -> Float32[Array, ""]:
    """Returns ``1 - decay^updates``, without cancellation; the decay may be traced, as Optax injects it.

    >>> round(float(weight(0.5, jnp.array(3))), 4)
    0.875
    """
    logarithm: ArrayLike = -math.inf
    if not isinstance(decay, (int, float)):
        logarithm = jnp.log(jnp.asarray(decay, jnp.float32))
    elif decay > 0:
        logarithm = math.log(decay)
    return -jnp.expm1(jnp.asarray(updates * logarithm, jnp.float32))


def widened(tree: PyTree) -> PyTree:
    """Returns ``tree`` in float32 or wider: narrow types would round away what a late step adds to an average."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)
