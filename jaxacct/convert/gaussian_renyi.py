"""Gaussian differential privacy to Rényi divergences."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.convert.gaussian import check_mu
from jaxacct.convert.kernels import kernel
from jaxacct.convert.orders import Orders, checked_orders
from jaxacct.precision import UNIT_ROUNDOFF, as_float64

MARGIN = 8 * UNIT_ROUNDOFF
"""Relative amount by which a divergence is rounded up: it is a product of three numbers."""


def gdp_to_rdp(mu: Float[ArrayLike, "*batch"], orders: Orders) -> Float[Array, "*batch orders"]:
    """Returns the Rényi divergence of a mu-GDP mechanism at each order, ``order mu^2 / 2``; float64 (..., orders).

    Formal guarantee: an upper bound, attained by the Gaussian mechanism; so mu-GDP implies (mu^2/2)-zCDP (Dong, Roth
    and Su 2022, "Gaussian differential privacy", Corollary B.6). Raises ValueError where a concrete mu is negative or
    an order is not above 1; traced ones give ``inf``.

    >>> gdp_to_rdp(0.5, [2.0, 8.0]).round(9).tolist()
    [0.25, 1.0]
    """
    check_mu(mu)
    return _gdp_to_rdp(mu, checked_orders(orders))


@kernel
def _gdp_to_rdp(mu: Array, orders: Array) -> Array:
    mu, orders = as_float64(mu), as_float64(orders)
    shape = (*mu.shape, *orders.shape)
    mu = jnp.broadcast_to(mu[..., None], shape)
    orders = jnp.broadcast_to(orders.reshape((1,) * (len(shape) - 1) + orders.shape), shape)
    known = (mu >= 0) & (orders > 1) & (orders < jnp.inf)
    return jnp.where(known, orders * mu**2 / 2 * (1 + MARGIN), jnp.inf)
