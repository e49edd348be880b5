"""Rényi differential privacy: the curve of a mechanism over orders, and what it says about (epsilon, delta)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.mechanisms import Mechanism
from jaxacct.precision import as_float64, in_float64

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05),
    *(round(0.1 * i, 1) for i in range(11, 110)),
    *(float(i) for i in range(11, 65)),
    *(float(v) for v in np.round(np.geomspace(70, 1024, 24))),
)
"""Orders of the Rényi accountant."""

ALLOWANCE = 1e-10


def total_curve(mechanism, steps, orders, relation="add_or_remove") -> Array:
    """Inside the scope: total RDP."""
    pairs = mechanism.dominating_pairs(relation)
    orders = as_float64(orders)
    curves = []
    for pair in pairs:
        value = pair.cumulant(orders - 1) / (orders - 1)
        curves.append(jnp.where(pair.is_valid() & (orders > 1) & (value >= 0), value, jnp.inf))
    total = functools.reduce(jnp.maximum, curves) * (1 + ALLOWANCE)
    steps = as_float64(steps)
    valid = (steps >= 0) & (jnp.floor(steps) == steps) & (steps < jnp.inf)
    return jnp.where(steps == 0, 0.0, jnp.where(valid, total * steps, jnp.inf))


def curve(
    mechanism: Mechanism, orders: Sequence[float] | ArrayLike, *, relation: str = "add_or_remove"
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of each order."""
    return in_float64(jax.jit(total_curve, static_argnames=("relation",)))(
        mechanism, 1, np.asarray(orders), relation=relation
    )
