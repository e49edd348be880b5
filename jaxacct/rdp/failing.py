"""Compositions with infinite losses of some probability, by Rényi divergences of what remains.

Let P_i have infinite losses of mass m_i, and P_i' be P_i given that the loss is finite. For adaptive compositions let
1 - m be the product of the 1 - m_i. An event is at best all outcomes of an infinite loss and an event A of the others,
so that

    delta(epsilon) = m + sup_A ((1 - m) P'(A) - e^epsilon Q(A)) <= m + (1 - m) delta'(epsilon),

where delta' is that of P' = prod P_i' against Q, which the sum of the divergences D(P_i' || Q_i) bounds. With Y the
loss of P_i, D_a(P_i' || Q_i) = (log E[e^((a-1) Y); Y < inf] - a log(1 - m_i)) / (a - 1).
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.convert.kernels import kernel
from jaxacct.convert.renyi import Conversion, ToEpsilon, least_implied
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.precision import log_complement
from jaxacct.rdp.divergence import allowance, at_orders, composed_by, single

ROUNDING = 1024
"""Units of roundoff that are allowed for the failures' total, and for the rest's."""


def may_fail(mechanism: Any) -> bool:
    """Returns whether a mechanism, or any of several, says that it may have infinite losses with some probability."""
    if isinstance(mechanism, (tuple, list)):
        return any(map(may_fail, mechanism))
    return bool(mechanism.may_fail)


def least_beside_failures(
    mechanism: Any, steps: Any, number: Any, orders: Any, relation: Relation, to: Conversion
) -> Array:
    """Returns the least epsilon at a delta, or delta at an epsilon, that the curve of what remains implies."""
    curve, log_kept = _remaining(mechanism, steps, orders, relation)
    if isinstance(to, ToEpsilon):
        return least_implied(curve, orders, _left(number, log_kept), to)
    return _with_failures(least_implied(curve, orders, number, to), log_kept)


@kernel(static=1)
def _remaining(mechanism: Any, steps: Any, orders: Any, relation: Relation) -> tuple[Array, Array]:
    """Returns the divergences of what remains, rounded up, and log(1 - m), rounded down."""

    def curve(orders: Array) -> Array:
        one = functools.partial(_finite, orders=orders, relation=relation)
        return composed_by(one, mechanism, steps, jnp.zeros(orders.shape))

    failures = functools.partial(_failure, relation=relation)
    log_lost = composed_by(failures, mechanism, steps, jnp.zeros(()))
    return at_orders(curve, orders), -log_lost * (1 + ROUNDING * roundoff())


def _mass(pair: Any) -> Array:
    mass = pair.infinite_mass() * (1 + pair.infinite_mass_error() + ROUNDING * roundoff())
    return jnp.where(pair.is_valid(), jnp.minimum(mass, 1.0), 1.0)


def _failure(mechanism: Mechanism, relation: Relation) -> Array:
    """Returns -log(1 - m_i), the larger of the directions'."""
    if not mechanism.may_fail:
        return jnp.zeros(())
    return functools.reduce(jnp.maximum, (-log_complement(_mass(p)) for p in mechanism.dominating_pairs(relation)))


def _finite(mechanism: Mechanism, orders: Array, relation: Relation) -> Array:
    """Returns D(P_i' || Q_i), rounded up, the larger of the directions'."""
    if not mechanism.may_fail:
        return single(mechanism, orders, relation)

    def divergence(pair: Any) -> Array:
        moment, lost = pair.cumulant(orders - 1), orders * -log_complement(_mass(pair))
        raised = moment + lost + allowance() * (jnp.abs(moment) + lost)
        known = pair.is_valid() & (orders > 1) & ~jnp.isnan(raised)
        return jnp.where(known, jnp.maximum(raised, 0.0) / (orders - 1), jnp.inf)

    found = functools.reduce(jnp.maximum, map(divergence, mechanism.dominating_pairs(relation)))
    return jnp.where((orders > 1) & mechanism.releases_nothing(), 0.0, found)


@kernel
def _left(delta: Array, log_kept: Array) -> Array:
    """Returns what is left of delta for what remains, rounded down; NaN, which has no epsilon, where nothing."""
    lost = -jnp.expm1(log_kept) * (1 + ROUNDING * roundoff())
    left = (delta - lost) / (1 - lost) * (1 - ROUNDING * roundoff())
    return jnp.where(left > 0, left, jnp.nan)


@kernel
def _with_failures(delta: Array, log_kept: Array) -> Array:
    lost = -jnp.expm1(log_kept) * (1 + ROUNDING * roundoff())
    total = lost + (1 - lost) * delta
    return jnp.where(jnp.isnan(total), 1.0, jnp.minimum(total * (1 + ROUNDING * roundoff()), 1.0))
