"""Batches for ``jax.vmap``: pytrees of one structure as one, and how the entries of one are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Tree = TypeVar("Tree")
Result = TypeVar("Result")


def stack(*trees: Tree) -> Tree:
    """Returns pytrees of equal structure and shapes as one, with a new leading axis.

    >>> stack({"a": 1.0}, {"a": 2.0})["a"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def rows(values: Any, size: int) -> list[Any]:
    """Returns numbers (n,) in rows of one size, the last of them repeated; traced ones, of a known number, in one.

    >>> [row.tolist() for row in rows([1.0, 2.0, 3.0], 2)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    if isinstance(values, jax.core.Tracer):
        return [values]
    values = np.asarray(values, np.float64)
    return list(np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size))


def one_by_one(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns ``function``, whose batches a CPU works off one entry after the other; other devices side by side.

    So the arrays of an entry stay in the cache, its loops end when it is done and not when the slowest is, and only the
    branch that it takes is run. Batches may be traced after a scope is left: a function that needs one enters it.
    """
    wrapped: Any = jax.custom_batching.sequential_vmap
    return wrapped(function) if jax.default_backend() == "cpu" else function
