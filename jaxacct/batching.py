"""Pytrees of one structure as one batch, for ``jax.vmap``."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def stack(*trees: Tree) -> Tree:
    """Returns pytrees of equal structure and shapes as one, with a new leading axis.

    >>> stack({"a": 1.0}, {"a": 2.0})["a"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)
