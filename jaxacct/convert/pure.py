"""Pure differential privacy, epsilon-DP, as Rényi and as concentrated differential privacy."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.arithmetic import arithmetic
from jaxacct.convert.kernels import kernel
from jaxacct.convert.logs import softplus
from jaxacct.convert.orders import Orders, by_order, checked_orders
from jaxacct.precision import TINY, as_float64, is_zero


def margin() -> float:
    """Returns the rounding of five functions at most, of which the sum of three is no less than a tenth in size."""
    return 32 * arithmetic().function


def pure_to_rdp(epsilon: Float[ArrayLike, "*batch"], orders: Orders) -> Float[Array, "*batch orders"]:
    """Returns the largest Rényi divergence of an epsilon-DP mechanism at each order; float64 (..., orders).

    Args:
        epsilon (...): at least 0.
        orders (orders,): above 1.

    Formal guarantee: an upper bound, attained by randomized response, which dominates every epsilon-DP mechanism
    (Kairouz, Oh and Viswanath 2015): log(cosh((order - 1/2) epsilon)/cosh(epsilon/2))/(order - 1). ``inf`` where an
    argument is traced and invalid. (An epsilon with delta > 0 bounds no divergence at all.)

    >>> pure_to_rdp(1.0, [2.0, 100.0]).round(6).tolist()
    [0.735326, 0.996836]
    """
    validation.check_epsilon(epsilon)
    return _pure_to_rdp(epsilon, checked_orders(orders))


def pure_to_zcdp(epsilon: Float[ArrayLike, "*batch"]) -> Float[Array, "*batch"]:
    """Returns the least rho such that every epsilon-DP mechanism is rho-zCDP: epsilon tanh(epsilon/2); float64 (...).

    Below the epsilon^2/2 of Bun and Steinke (2016), "Concentrated differential privacy", Proposition 1.4. With
    u = order - 1/2, the divergence of randomized response over its order is

        (log cosh(u epsilon) - log cosh(epsilon/2)) / (u^2 - 1/4),

    a chord's slope of v -> log cosh(epsilon sqrt(v)), which is concave; so its supremum is the slope at v = 1/4, that
    is, at order 1, and no smaller rho holds for randomized response.

    Formal guarantee: an upper bound, rounding included. ``inf`` where epsilon is traced and invalid. Raises ValueError
    where a concrete one is negative or NaN.

    >>> round(float(pure_to_zcdp(1.0)), 6)
    0.462117
    """
    validation.check_epsilon(epsilon)
    return _pure_to_zcdp(epsilon)


@kernel
def _pure_to_rdp(epsilon: Array, orders: Array) -> Array:
    x, order = by_order(epsilon, orders)
    power = order - 1
    # Its moment is 1 + (e^(b x) - 1) (1 - e^(-a x))/(1 + e^-x), a the order and b = a - 1: however close to 1, all of
    # its distance is there. Where b x is above 1 its logarithm, at least 0.43 then, is summed.
    excess = jnp.expm1(jnp.minimum(power * x, 1.0)) * -jnp.expm1(-(power + 1) * x) / (1 + jnp.exp(-x))
    far = power * x + softplus(-(2 * power + 1) * x) - softplus(-x)
    divergence = jnp.where(power * x < 1, jnp.log1p(excess), far) / power
    known = (x >= 0) & (power > 0) & (power < jnp.inf)
    bound = jnp.where(x == 0, 0.0, jnp.minimum(divergence * (1 + margin()), x))
    return jnp.where(known, jnp.where(x == jnp.inf, jnp.inf, bound), jnp.inf)


@kernel
def _pure_to_zcdp(epsilon: Array) -> Array:
    epsilon = as_float64(epsilon)
    # Above 0 where the product underflows: what costs anything keeps a cost.
    rho = jnp.maximum(epsilon * jnp.tanh(epsilon / 2) * (1 + margin()), TINY)
    return jnp.where(epsilon >= 0, jnp.where(is_zero(epsilon), 0.0, rho), jnp.inf)
