"""Rényi differential privacy: the curve of a mechanism over the orders, and the (epsilon, delta) it implies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.batching import stack
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.protocol import sequence
from jaxacct.precision import TINY, UNIT_ROUNDOFF, as_float64, in_float64, outside

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05),
    *(round(0.1 * i, 1) for i in range(11, 110)),
    *(float(i) for i in range(11, 33)),
    *(float(i) for i in range(34, 65, 2)),
    *(float(order) for order in np.round(np.geomspace(70, 1024, 24))),
)
"""Orders tried unless others are given: steps of 0.1 to 10.9, of 1 to 32, of 2 to 64, then geometric to 1024.

Orders near 1 serve a large epsilon, high ones a small one. Between two neighbours the loss of epsilon is of second
order: below 0.2 % for a Gaussian with epsilon in [0.05, 30] at delta = 1e-5 (tests/test_rdp.py).
"""

ALLOWANCE = 1e-10
"""Relative amount by which every divergence is rounded up, for quadrature and rounding.

The largest error in 150,000 random settings (s in [0.01, 1000], q in [1e-12, 1], orders to 1100, both directions) was
7e-12, near s = 0.1 with q = 1e-12; for s above 0.15 it was 2e-13. tests/test_cumulants.py measures it again.
"""

FLOOR = 2.0**-960
"""Smallest divergence reported for a run: below it (q under 1e-144) squares of q lose their digits to underflow."""

CONVERSIONS = ("improved", "mironov")


def curve(
    mechanism: Mechanism, orders: Sequence[float] | ArrayLike, *, relation: str = "add_or_remove"
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of one run of a mechanism at each order, rounded up.

    Args:
        mechanism: one mechanism, scalar fields; they may be traced. Batches are ``jax.vmap``.
        orders (orders,): real Rényi orders above 1. They may be traced.
        relation: neighbouring relation, one that the mechanism supports; of two directions the larger counts.

    Returns float64 (orders,). ``inf`` where nothing is known: no noise, invalid traced parameters, a traced order that
    is not above 1.

    Formal guarantee: an upper bound on D_order(M(x) || M(x')) for all neighbours x, x' under ``relation`` and under the
    sampling that the mechanism names; above the dominating pair's divergence by a relative 2e-10 at most.

    Raises ValueError where a concrete field, order or the relation is not valid.

    Source: Mironov (2017), "Rényi differential privacy"; sampled Gaussian, Mironov, Talwar and Zhang (2019).

    >>> from jaxacct import Gaussian
    >>> curve(Gaussian(noise_multiplier=2.0), orders=[2.0, 8.0]).round(6).tolist()
    [0.25, 1.0]
    """
    mechanism.validate()
    if mechanism.batch_shape:
        raise ValueError("curve takes one mechanism with scalar fields: use jax.vmap for a batch of them.")
    return _composed_curve(mechanism, 1, _checked_orders(orders), relation)


def composed_curve(
    mechanism: Any, steps: Any, orders: Sequence[float] | ArrayLike, *, relation: str = "add_or_remove"
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of an adaptive composition at each order, rounded up; float64 (orders,).

    Args:
        mechanism: one mechanism with scalar fields; or fields with one leading axis (n,), composed together; or a tuple
            of either, composed together.
        steps: number of runs, a whole number: (), or (n,), or a tuple that matches. Traced ones that are no whole
            number give ``inf``; no steps at all give 0.
        orders (orders,): as in :func:`curve`, whose guarantee and errors these are.
        relation: likewise.

    Source: additivity, Mironov (2017), Proposition 1.

    >>> from jaxacct import Gaussian
    >>> pair = Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=1.0)
    >>> composed_curve(pair, (4, 1), orders=[2.0]).round(6).tolist()
    [2.0]
    """
    _check_composition(mechanism, steps)
    return _composed_curve(mechanism, steps, _checked_orders(orders), relation)


def epsilon(
    mechanism: Any,
    steps: Any,
    delta: ArrayLike,
    *,
    orders: Sequence[float] | ArrayLike = DEFAULT_ORDERS,
    relation: str = "add_or_remove",
    conversion: str = "improved",
) -> Float[Array, ""]:
    """Returns an upper bound on epsilon of a composition at ``delta``, by way of Rényi divergences; float64 ().

    Args:
        mechanism: what is composed, as in :func:`composed_curve`. Batches are ``jax.vmap``.
        steps: how many runs of it, likewise.
        delta (): failure probability in (0, 1). May be traced.
        orders (orders,): Rényi orders above 1; the best of them counts.
        relation: neighbouring relation, one that the mechanism supports.
        conversion: "improved" (Canonne, Kamath and Steinke; Balle et al.) or "mironov", which is never smaller.

    Formal guarantee: the composition is (epsilon, delta)-DP under ``relation`` and the mechanism's own sampling, for
    mechanisms whose *parameters* are fixed beforehand (for parameters chosen from results see
    :mod:`jaxacct.filters`). Rounding is included. ``inf`` for no noise and for invalid traced values; 0 for no steps.

    Raises ValueError where a concrete argument is out of range.

    Source: Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", Proposition 12;
    Mironov (2017), Proposition 3.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> round(float(epsilon(PoissonSubsampledGaussian(1.0, 0.01), steps=1000, delta=1e-5)), 4)
    2.1014
    """
    validation.check_delta(delta)
    validation.check_one_of(conversion, "conversion", CONVERSIONS)
    _check_composition(mechanism, steps)
    orders = _checked_orders(orders)
    return _epsilon(_composed_curve(mechanism, steps, orders, relation), orders, delta, conversion)


def delta(
    mechanism: Any,
    steps: Any,
    epsilon: ArrayLike,
    *,
    orders: Sequence[float] | ArrayLike = DEFAULT_ORDERS,
    relation: str = "add_or_remove",
    conversion: str = "improved",
) -> Float[Array, ""]:
    """Returns an upper bound on delta of a composition at ``epsilon``, in [0, 1]; float64 ().

    Arguments, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for
    delta. 1 for no noise and for invalid traced values; 0 for no steps.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> bound = delta(PoissonSubsampledGaussian(1.0, 0.01), steps=1000, epsilon=2.5)
    >>> bool(0 < bound < 1e-6)
    True
    """
    validation.check_epsilon(epsilon)
    validation.check_one_of(conversion, "conversion", CONVERSIONS)
    _check_composition(mechanism, steps)
    orders = _checked_orders(orders)
    return _delta(_composed_curve(mechanism, steps, orders, relation), orders, epsilon, conversion)


def epsilon_improved(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies: Canonne, Kamath and Steinke (2020), Proposition 12."""
    return rdp + jnp.log1p(-1 / orders) - (jnp.log(delta) + jnp.log(orders)) / (orders - 1)


def epsilon_mironov(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies: Mironov (2017), Proposition 3."""
    return rdp - jnp.log(delta) / (orders - 1)


def log_delta_improved(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_improved` solved for delta."""
    return (orders - 1) * (rdp - epsilon + jnp.log1p(-1 / orders)) - jnp.log(orders)


def log_delta_mironov(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_mironov` solved for delta."""
    return (orders - 1) * (rdp - epsilon)


def _checked_orders(orders: Sequence[float] | ArrayLike) -> Any:
    if isinstance(orders, (list, tuple)) and any(isinstance(order, jax.core.Tracer) for order in orders):
        return tuple(orders)
    if isinstance(orders, jax.core.Tracer):
        return orders
    values = np.asarray(orders, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.all((values > 1) & np.isfinite(values)):
        raise ValueError(f"orders = {orders} are not Rényi orders: give a vector of finite numbers above 1.")
    return values


def _check_composition(mechanism: Any, steps: Any) -> None:
    if isinstance(mechanism, (tuple, list)):
        if not isinstance(steps, (tuple, list)) or len(steps) != len(mechanism):
            raise ValueError(f"steps = {steps} do not match {len(mechanism)} mechanisms: give one number for each.")
        for part, count in zip(mechanism, steps, strict=True):
            _check_composition(part, count)
        return
    mechanism.validate()
    validation.check_steps(steps)
    shape = mechanism.batch_shape
    if len(shape) > 1 or np.shape(steps) != shape:
        raise ValueError(
            f"steps of shape {np.shape(steps)} do not match a mechanism of shape {shape}: give one number of steps for "
            "each mechanism of a sequence; batches are jax.vmap."
        )


def _single(mechanism: Mechanism, orders: Array, relation: str) -> Array:
    """Returns the divergence of one run, rounded up."""

    def directed(pair: DominatingPair) -> Array:
        divergence = pair.cumulant(orders - 1) / (orders - 1) * (1 + ALLOWANCE)
        known = pair.is_valid() & (pair.infinite_mass() == 0) & (orders > 1) & (divergence >= 0)
        return jnp.where(known, jnp.maximum(divergence, FLOOR), jnp.inf)

    pairs = mechanism.dominating_pairs(relation)
    if len({jax.tree.structure(pair) for pair in pairs}) > 1:
        return functools.reduce(jnp.maximum, map(directed, pairs))
    # Directions of one kind run as one batch: half the code to compile.
    batch = stack(*pairs)
    return jnp.max(jax.vmap(directed)(batch), axis=0)


def _total(mechanism: Any, steps: Any, orders: Array, relation: str) -> Array:
    """Returns the divergence of the composition; the rounding of its sums is far inside ALLOWANCE."""
    if isinstance(mechanism, (tuple, list)):
        parts = (_total(part, count, orders, relation) for part, count in zip(mechanism, steps, strict=True))
        return sum(parts, jnp.zeros(orders.shape, jnp.float64))
    steps = as_float64(steps)
    if steps.ndim:
        parts = sequence(mechanism, len(steps))
        return jnp.sum(jax.vmap(lambda m, k: _total(m, k, orders, relation))(parts, steps), axis=0)
    counted = (steps >= 0) & (jnp.floor(steps) == steps)
    some = jnp.where(counted & (steps < jnp.inf), steps * _single(mechanism, orders, relation), jnp.inf)
    return jnp.where(steps == 0, 0.0, some)


def _kernel(function):
    """Returns ``function(*arrays, choice)`` compiled once for all values of one shape, and entered in float64.

    Numbers of every type come in as float64, lest an int and a float be compiled apart; concrete results leave as NumPy
    arrays. The last argument is static.
    """
    count = function.__code__.co_argcount
    compiled = jax.jit(function, static_argnums=count - 1)

    @functools.wraps(function)
    @in_float64
    def run(*args):
        *arrays, choice = args
        return outside(compiled(*jax.tree.map(_as_float64_leaf, arrays), choice))

    return run


def _as_float64_leaf(leaf: Any) -> Any:
    return as_float64(leaf) if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf, np.float64)


@_kernel
def _composed_curve(mechanism: Any, steps: Any, orders: Any, relation: str) -> Array:
    return _total(mechanism, steps, as_float64(orders), relation)


@_kernel
def _epsilon(total: Array, orders: Any, delta: Array, conversion: str) -> Array:
    orders = as_float64(orders)
    convert = epsilon_improved if conversion == "improved" else epsilon_mironov
    # Sixteen units of roundoff of the largest terms: each of them is right to a few, and so is their sum.
    error = 16 * UNIT_ROUNDOFF * (total - jnp.log1p(-1 / orders) + (jnp.log(orders) - jnp.log(delta)) / (orders - 1))
    bounds = convert(total, orders, delta) + error
    valid = (delta > 0) & (delta < 1)
    least = jnp.min(jnp.where(valid & (bounds < jnp.inf), bounds, jnp.inf))
    return jnp.where(jnp.all(total == 0), jnp.where(valid, 0.0, jnp.inf), jnp.maximum(least, 0.0))


@_kernel
def _delta(total: Array, orders: Any, epsilon: Array, conversion: str) -> Array:
    orders = as_float64(orders)
    convert = log_delta_improved if conversion == "improved" else log_delta_mironov
    logs = convert(total, orders, epsilon)
    error = 16 * UNIT_ROUNDOFF * (1 + (orders - 1) * (total + jnp.abs(epsilon) + 1) + jnp.log(orders))
    implied = jnp.where(epsilon == jnp.inf, 0.0, jnp.exp(logs + error))
    bounds = jnp.where((total < jnp.inf) & (logs < 0), implied, 1.0)
    # What is below TINY would be flushed to zero.
    least = jnp.clip(jnp.min(bounds), TINY, 1.0)
    return jnp.where(jnp.all(total == 0), 0.0, jnp.where(epsilon >= 0, least, 1.0))
