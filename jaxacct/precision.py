"""Float64 by scope, and the constants of directed rounding.

The kernel computes in float64 whatever the ambient JAX setting is, by entering ``jax.enable_x64`` around its own
trace. Nothing global changes. Concrete results leave it as NumPy values, so that whatever is done with them keeps
float64. Traced ones stay float64 arrays; arithmetic done on them outside the scope follows the ambient setting, that is
float32 by default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import elementary

UNIT_ROUNDOFF = 2.0**-53
"""Half the distance from 1 to the next float64: the relative error of one rounded operation."""

TINY = 2.0**-1022
"""Smallest normal float64. XLA flushes subnormals to zero, so a positive number that must not vanish is kept above."""

Params = ParamSpec("Params")
Result = TypeVar("Result")
Tree = TypeVar("Tree")


def in_float64(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Returns ``function`` run, and traced, with float64 enabled for its own extent.

    The first time on a backend its arithmetic is checked (:mod:`jaxacct.elementary`), and refused where it fails.
    """

    @functools.wraps(function)
    def scoped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        elementary.check()
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped


def as_float64(value) -> jax.Array:
    """Returns ``value`` as a float64 array. To be called inside the scope only."""
    return jnp.asarray(value, dtype=jnp.float64)


def as_real(value: ArrayLike) -> jax.Array:
    """Returns ``value`` as an array of the widest real type at hand: float64 inside the scope, else float32."""
    return jnp.asarray(value, dtype=jax.dtypes.canonicalize_dtype(jnp.float64))


def outside(tree: Tree) -> Tree:
    """Returns ``tree`` fit to leave the scope: concrete arrays as NumPy ones, tracers as they are.

    NumPy compares and adds float64 as float64 whatever JAX is set to; a JAX array would be rounded to the nearest
    float32 first, to the wrong side half the time.
    """
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)[()], tree)


def log_complement(probability: jax.Array) -> jax.Array:
    """Returns log(1 - p), right to a few units of roundoff for every p in [0, 1].

    XLA's log1p on a CPU was measured 240 units off for arguments between -0.42 and -0.35; the plain logarithm is right
    there, for 1 - p rounds once and is not near 1.
    """
    return jnp.where(probability < 0.25, jnp.log1p(-jnp.minimum(probability, 0.25)), jnp.log(1 - probability))


def first_index(condition: jax.Array) -> jax.Array:
    """Returns the first index where a vector of booleans holds, its length where none does.

    In place of argmin and argmax: within somebody else's trace those are lowered after the scope is left, and then mix
    float64 operands with float32 constants.
    """
    size = condition.shape[-1]
    return jnp.min(jnp.where(condition, jnp.arange(size), size), axis=-1)


def is_concrete(*trees) -> bool:
    """Returns whether no leaf of ``trees`` is a tracer, so that Python may look at the values."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))
