"""Conversions of Gaussian differential privacy: delta from mu and epsilon, both ways back, and Rényi divergences.

The values are those of :mod:`jaxacct.mechanisms.normal`, rounded to the safe side.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.renyi import Orders, by_order, checked_orders, kernel
from jaxacct.mechanisms.normal import LOG_NORMAL, delta_above, epsilon_bounds, mu_bounds
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, in_float64, outside, scope
from jaxacct.numerics.programs import compiled, lowered


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> Float[Array, ...]:
    """Returns the delta of a mu-GDP mechanism at ``epsilon``, rounded up; float64, of the arguments' common shape.

    Args:
        mu (...): at least 0; ``inf`` gives 1.
        epsilon (...): any real number, negative ones too; ``inf`` gives 0.

    Formal guarantee: an upper bound on the exact value, above it by less than ``2e-13 (1 + eps/mu + mu)^2`` of it for
    mu >= 1e-9, or by the smallest normal float64. Traced arguments out of range give 1. Derivatives are those of the
    exact value.

    Raises ValueError where a concrete mu is negative or NaN.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Corollary 2.13; eq. 3.2 of Bu, Dong, Long and Su
    (2020), "Deep learning with Gaussian differential privacy".

    >>> print(f"{gaussian_delta(1.0, 1.0):.8f} {gaussian_delta(0.1, 3.0):.4e}")
    0.12693674 7.3048e-200
    """
    check_mu(mu)
    return _exact("delta", mu, epsilon)


def gaussian_epsilon(mu: ArrayLike, delta: ArrayLike) -> Float[Array, ...]:
    """Returns the epsilon of a mu-GDP mechanism at ``delta``, rounded up; float64, of the arguments' common shape.

    Args:
        mu (...): at least 0; ``inf`` gives ``inf``.
        delta (...): in (0, 1), from 1e-300 up.

    Formal guarantee: an upper bound on the exact value, above it by less than 1e-11 of it for mu in [1e-3, 1e3]; 0
    where epsilon = 0 already has that delta. Traced arguments out of range give ``inf``. Derivatives are exact.

    Source: as for :func:`gaussian_delta`.

    >>> print(f"{gaussian_epsilon(1.0, 1e-5):.8f}")
    4.37717810
    """
    check_mu(mu)
    validation.check_delta(delta)
    return _exact("epsilon", mu, delta)


def gaussian_mu(epsilon: ArrayLike, delta: ArrayLike) -> Float[Array, ...]:
    """Returns the largest mu whose mu-GDP mechanisms are (epsilon, delta)-DP, rounded down; float64.

    Args:
        epsilon (...): at least 0, finite.
        delta (...): in (0, 1), from 1e-300 up; shapes broadcast.

    Formal guarantee: a mu-GDP mechanism with the mu returned is (epsilon, delta)-DP; it is less than 1e-11 of itself
    below the largest such mu where epsilon is at most 1e3. (An (epsilon, delta)-DP mechanism is *not* mu-GDP: a single
    point of the curve says nothing of the others.) Traced arguments out of range give 0. Derivatives are exact.

    Source: as for :func:`gaussian_delta`.

    >>> print(f"{gaussian_mu(4.0, 1e-5):.8f}")
    0.92493090
    """
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    return _exact_below("mu", epsilon, delta)


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


def check_mu(mu: ArrayLike, name: str = "mu") -> None:
    """Raises where a concrete mu is negative or NaN."""
    seen = validation.concrete_value(mu)
    if seen is not None and not np.all(seen >= 0):
        raise ValueError(f"{name} = {mu} is not a GDP parameter: give a number of at least 0 (a distance of means).")


@kernel
def _gdp_to_rdp(mu: Array, orders: Array) -> Array:
    mu, orders = by_order(mu, orders)
    known = (mu >= 0) & (orders > 1) & (orders < jnp.inf)
    # A product of three numbers, rounded up.
    return jnp.where(known, orders * mu**2 / 2 * (1 + 8 * roundoff()), jnp.inf)


def _epsilon_above(mu: Array, delta: Array) -> Array:
    valid = (delta > 0) & (delta < 1)
    ordinary = valid & (mu > 0) & (mu < jnp.inf)
    _, above = epsilon_bounds(jnp.where(ordinary, mu, 1.0), jnp.where(ordinary, delta, 0.5))
    return jnp.where(ordinary, above, jnp.where(valid & (mu == 0), 0.0, jnp.inf))


def _mu_below(epsilon: Array, delta: Array) -> Array:
    ordinary = (delta > 0) & (delta < 1) & (epsilon >= 0) & (epsilon < jnp.inf)
    below, _ = mu_bounds(jnp.where(ordinary, epsilon, 1.0), jnp.where(ordinary, delta, 0.5))
    return jnp.where(ordinary, below, 0.0)


_QUANTITIES = {"delta": delta_above, "epsilon": _epsilon_above, "mu": _mu_below}
"""Functions of the three quantities, each from the other two and rounded to its safe side."""


@in_float64
def _exact(quantity: str, first: ArrayLike, second: ArrayLike) -> Array:
    # The scope is entered before the derivative's rule, which would take NumPy's float64 for float32.
    return outside(_answer(quantity, first, second))


@in_float64(safe=lowered)
def _exact_below(quantity: str, first: ArrayLike, second: ArrayLike) -> Array:
    return _exact(quantity, first, second)


@compiled(static=("quantity",))
def _each(quantity: str, first: Array, second: Array) -> Array:
    return jnp.vectorize(_QUANTITIES[quantity])(first, second)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _answer(quantity: str, first: ArrayLike, second: ArrayLike) -> Array:
    return _each(quantity, as_float64(first), as_float64(second))


@_answer.defjvp
def _answer_jvp(quantity: str, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    """Differentiates delta in closed form, the other two by the implicit function."""
    value = _answer(quantity, *primals)
    with scope():
        first, second = (as_float64(primal) for primal in primals)
        found = as_float64(value)
        mu, epsilon = {"delta": (first, second), "epsilon": (first, found), "mu": (found, first)}[quantity]
        by_mu = jnp.exp(-0.5 * (epsilon / mu - mu / 2) ** 2 - LOG_NORMAL)
        by_epsilon = -jnp.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
        slopes = {
            "delta": (by_mu, by_epsilon),
            "epsilon": (-by_mu / by_epsilon, 1 / by_epsilon),
            "mu": (-by_epsilon / by_mu, 1 / by_mu),
        }[quantity]
        # An epsilon of 0 stays at 0, whichever way the arguments move.
        held = (found <= 0) if quantity == "epsilon" else False
        moves = (as_float64(move) for move in tangents)
        tangent = sum(slope * move for slope, move in zip(slopes, moves, strict=True))
        return value, jnp.where(held, 0.0, tangent)
