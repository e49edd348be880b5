"""Rényi orders: which are allowed, and the search for the best one between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.precision import as_float64, first_index

Orders: TypeAlias = Float[ArrayLike, " orders"] | Sequence[float]
"""Rényi orders: an array, or a list of numbers."""

Divergences: TypeAlias = Float[ArrayLike, "*batch orders"] | Sequence[float]
"""Rényi divergences, one for each order: an array, or a list of numbers."""

POINTS = 12
"""Orders looked at in one round of the search."""

ROUNDS = 4
"""Rounds; each leaves 2/(POINTS + 1) of the interval. 4 leave 6e-4 of it: of second order in a bound, 4e-7 of what one
order and the next differ by."""


def checked_orders(orders: Orders, *, one: bool = False, infinity: bool = False) -> Any:
    """Returns ``orders`` as a float64 array, or as they are where they are traced; raises ValueError on a bad one.

    Orders are above 1 and finite, but for what is allowed: order ``one``, the Kullback-Leibler divergence, or
    ``infinity``, the supremum of the privacy loss.
    """
    if isinstance(orders, (list, tuple)) and any(isinstance(order, jax.core.Tracer) for order in orders):
        return tuple(orders)
    if isinstance(orders, jax.core.Tracer):
        return orders
    values = np.asarray(orders, dtype=np.float64)
    known = (values > 1) & np.isfinite(values) | (values == 1) & one | (values == np.inf) & infinity
    if values.ndim != 1 or not values.size or not np.all(known):
        wanted = ("finite " if not infinity else "") + "numbers " + ("of at least 1" if one else "above 1")
        raise ValueError(f"orders = {orders} are not Rényi orders: give a vector of {wanted}.")
    return values


def checked_divergences(rdp: Any, orders: Any) -> Any:
    """Returns divergences as a float64 array, or as they are where traced; raises ValueError on a bad one."""
    is_sequence = isinstance(rdp, (list, tuple))
    if is_sequence and any(isinstance(value, jax.core.Tracer) for value in rdp):
        rdp = tuple(rdp)
        shape: tuple[int, ...] = (len(rdp),)
    elif isinstance(rdp, jax.core.Tracer):
        shape = rdp.shape
    else:
        rdp = np.asarray(rdp, dtype=np.float64)
        shape = rdp.shape
        if not np.all(rdp >= 0):
            raise ValueError(f"rdp = {rdp[~(rdp >= 0)].ravel()[0]} is not a divergence: give numbers of at least 0.")
    count = len(orders)
    if not shape or shape[-1] != count:
        raise ValueError(f"rdp of shape {shape} does not match {count} orders: give one divergence for each of them.")
    return rdp


def by_order(values: Array, orders: Array) -> tuple[Array, Array]:
    """Returns both with the shape (..., orders): each value (...) at each order. Inside the float64 scope."""
    values, orders = as_float64(values), as_float64(orders)
    shape = (*values.shape, *orders.shape)
    each = orders.reshape((1,) * values.ndim + orders.shape)
    return jnp.broadcast_to(values[..., None], shape), jnp.broadcast_to(each, shape)


def least_between(bound: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Returns the least value of ``bound`` found between two orders, each a scalar.

    ``bound`` takes orders (n,) and returns (n,) numbers, each of which is a bound by itself: what is returned is one,
    however good the search. It looks at a geometric grid of order - 1 and goes on between the best point's neighbours.
    Infinite values are passed over.
    """
    inner = jnp.arange(1, POINTS + 1) / (POINTS + 1)

    def narrow(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, right, least = state
        step = (right - left) / (POINTS + 1)
        values = bound(1 + jnp.exp(left + (right - left) * inner))
        smallest = jnp.nanmin(values)
        best = left + step * (1 + first_index(values == smallest))
        return jnp.maximum(best - step, left), jnp.minimum(best + step, right), jnp.fmin(least, smallest)

    start = (jnp.log(low - 1), jnp.log(high - 1), jnp.full_like(low, jnp.inf))
    return jax.lax.fori_loop(0, ROUNDS, narrow, start)[2]
