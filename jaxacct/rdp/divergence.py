"""Which Rényi orders are tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.convert.renyi import ToDelta, kernel
from jaxacct.mechanisms import Mechanism, Mechanisms, RenyiOnly, Steps
from jaxacct.mechanisms.mechanism import Relation, sequence
from jaxacct.numerics.arithmetic import scaled
from jaxacct.numerics.by_work import stack
from jaxacct.numerics.precision import as_float64, is_concrete

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05),
    *(round(0.1 * i, 1) for i in range(11, 110)),
    *(float(i) for i in range(11, 65)),
    *(float(order) for order in np.round(np.geomspace(67, 1024, 56))),
)
"""Orders tried unless others are given: steps of 0.1 to 10.9, of 1 to 64, then of 5 % to 1024.

Orders near 1 serve a large epsilon, high ones a small one. Between two neighbours the loss of epsilon is of second
order: below 0.2 % for a Gaussian with epsilon in [0.05, 30] at delta = 1e-5 (tests/test_rdp.py). A subsampled Gaussian
has a sharper best order, where its largest losses begin to count: of 1,000 settings (noise 0.5 to 8, rates 1e-4 to 0.2,
up to 1e5 steps) epsilon was more than 0.2 % above that of a continuum of orders in 30 %, more than 1 % in 12 %, and
3.2 % at most, all with epsilon below 0.1. ``orders="continuous"`` looks between them.
"""

CONTINUOUS = "continuous"

ABOVE_ONE = 1 + 2.0**-33
"""The order that stands for order 1, the Kullback-Leibler divergence.

The divergence rises with its order, continuously where it is finite. So that of an order just above 1 bounds that of
order 1 from above, at a relative cost of about the distance. Order infinity is the supremum of the privacy loss.
"""


def tried_orders(orders: Any) -> Any:
    """Returns the orders that are computed in the place of ``orders``: one above 1 for 1, any for infinity."""
    if isinstance(orders, np.ndarray):
        return np.where(np.isinf(orders), 2.0, np.where(orders == 1, ABOVE_ONE, orders))
    return orders


# ----------------------------------------------------------------------------------------------------
# The Rényi divergence of one run of a mechanism and of compositions, at a vector of orders.
# ----------------------------------------------------------------------------------------------------

ALLOWANCE = 1e-10
"""Relative amount by which every divergence is rounded up, for quadrature and rounding.

The largest error in 150,000 random settings (s in [0.01, 1000], q in [1e-12, 1], orders to 1100, adding) was 7e-12,
near s = 0.1 with q = 1e-12. Removing, it was 4e-12 in 45,000 (s in [0.02, 1000], q in [1e-60, 1]), near s = 1.15,
where the spacing of nodes decides. tests/test_cumulants.py and tests/test_rdp.py measure it again.
"""


def allowance() -> float:
    """Returns :data:`ALLOWANCE` in the arithmetic traced for: where it is coarser, all of the error may be rounding."""
    return scaled(ALLOWANCE)


FLOOR = 2.0**-960
"""Smallest divergence reported for a run: below it (q under 1e-144) squares of q lose their digits to underflow."""


@dataclass(frozen=True)
class Within:
    """The curves of mechanisms within a mechanism's own (:class:`.Curves`), under a relation."""

    relation: Relation

    def of(self, mechanism: Mechanisms, steps: Steps, orders: Any) -> Array:
        return at_orders(lambda orders: total(mechanism, steps, orders, self.relation), orders)

    def delta(self, curve: Array, orders: Array, epsilon: Array) -> Array:
        every = jax.vmap(
            lambda value: ToDelta("improved").of_orders(curve, orders, jnp.broadcast_to(value, orders.shape))
        )
        return jnp.min(every(epsilon), axis=1)


def single(mechanism: Mechanism, orders: Array, relation: Relation) -> Array:
    """Returns the divergence of one run, rounded up: above 0 unless nothing is released."""
    if isinstance(mechanism, RenyiOnly):
        found = _rounded_up(mechanism.divergence(as_float64(orders), relation, Within(relation)))
    else:
        found = _of_pairs(mechanism, orders, relation)
    return jnp.where(mechanism.releases_nothing(), 0.0, found)


def _of_pairs(mechanism: Mechanism, orders: Array, relation: Relation) -> Array:
    pairs = mechanism.dominating_pairs(relation)
    pairs = tuple(pair for pair in pairs if not any(other.outcosts(pair) for other in pairs))
    if len(pairs) == 1 or len({jax.tree.structure(pair) for pair in pairs}) > 1:
        return functools.reduce(jnp.maximum, (_rounded_up(pair.divergence(orders)) for pair in pairs))
    # Directions of one kind run one after the other: half the code to compile.
    every = jax.lax.map(lambda pair: _rounded_up(pair.divergence(orders)), stack(*pairs))
    return jnp.max(every, axis=0)


def _rounded_up(divergence: Array) -> Array:
    """Returns the divergence with the allowance for its errors; ``inf`` for NaN."""
    return jnp.where(divergence >= 0, jnp.maximum(divergence * (1 + allowance()), FLOOR), jnp.inf)


def total(mechanism: Any, steps: Any, orders: Array, relation: Relation) -> Array:
    """Returns the divergence of the composition; the rounding of its sums is far inside the allowance."""
    one = functools.partial(single, orders=orders, relation=relation)
    return composed_by(one, mechanism, steps, jnp.zeros(orders.shape, jnp.float64))


def composed_by(one: Callable[[Mechanism], Array], mechanism: Any, steps: Any, nothing: Array) -> Array:
    """Returns the sum of what ``one`` gives for each run; ``inf`` where a number of steps is none."""
    if isinstance(mechanism, (tuple, list)):
        return sum(
            (composed_by(one, part, count, nothing) for part, count in zip(mechanism, steps, strict=True)), nothing
        )
    if mechanism.composed:
        return sum((composed_by(one, part, count, nothing) for part, count in mechanism.apart(steps)), nothing)
    if np.ndim(steps):
        parts, steps = sequence(mechanism, len(steps)), as_float64(steps)
        return jnp.sum(jax.vmap(lambda m, k: composed_by(one, m, k, nothing))(parts, steps), axis=0)
    if is_concrete(steps) and steps == 0:
        return nothing
    if is_concrete(steps) and 1 <= steps < np.inf and steps == np.floor(steps):
        return one(mechanism) * float(steps) if steps > 1 else one(mechanism)
    steps = as_float64(steps)
    counted = (steps >= 0) & (jnp.floor(steps) == steps)
    some = jnp.where(counted & (steps < jnp.inf), steps * one(mechanism), jnp.inf)
    return jnp.where(steps == 0, nothing, some)


def composed(mechanism: Any, steps: Any, orders: Any, relation: Relation) -> Array:
    """Returns :func:`total`, compiled once for each shape and relation.

    Orders 1 and infinity are for concrete ones only.
    """
    return _composed(mechanism, steps, orders, tried_orders(orders), has_infinity(orders), relation)


def has_infinity(orders: Any) -> bool:
    """Returns whether an order is seen to be infinite."""
    return is_concrete(orders) and bool(np.any(np.isinf(orders)))


@kernel(static=2)
def _composed(mechanism: Any, steps: Any, orders: Any, tried: Any, infinity: bool, relation: Relation) -> Array:
    return of_all_orders(mechanism, steps, orders, tried, relation, infinity=infinity)


def of_all_orders(mechanism: Any, steps: Any, orders: Any, tried: Any, relation: Relation, *, infinity: bool) -> Array:
    """Returns the divergence of a composition at ``orders``, for which ``tried`` are computed; inside the scope."""
    curve = at_orders(lambda tried: total(mechanism, steps, tried, relation), tried)
    if not infinity:
        return curve
    one = functools.partial(_largest_loss, relation=relation)
    return jnp.where(orders == jnp.inf, composed_by(one, mechanism, steps, jnp.zeros(())), curve)


def largest_losses(mechanism: Any, steps: Any, relation: Relation) -> Array:
    """Returns the divergence of order infinity of a composition, rounded up: the sum of the suprema of its losses."""
    return _largest_losses(mechanism, steps, relation)


def at_orders(curve: Callable[[Any], Array], orders: Any) -> Array:
    """Returns what ``curve`` gives at orders, ``inf`` at traced ones that are none."""
    if is_concrete(orders):
        return curve(np.asarray(orders, np.float64))
    orders = as_float64(orders)
    valid = (orders > 1) & (orders < jnp.inf)
    return jnp.where(valid, curve(jnp.where(valid, orders, 2.0)), jnp.inf)


@kernel(static=1)
def _largest_losses(mechanism: Any, steps: Any, relation: Relation) -> Array:
    return composed_by(functools.partial(_largest_loss, relation=relation), mechanism, steps, jnp.zeros(()))


def _largest_loss(mechanism: Mechanism, relation: Relation) -> Array:
    """Returns the supremum of the loss of one run, rounded up; ``inf`` where it is not known."""
    if isinstance(mechanism, RenyiOnly):
        losses = [mechanism.largest_loss()]
    else:
        pairs = mechanism.dominating_pairs(relation)
        losses = [jnp.where(pair.is_valid(), pair.largest_loss(), jnp.inf) for pair in pairs]
    largest = functools.reduce(jnp.maximum, losses) * (1 + allowance())
    return jnp.where(mechanism.releases_nothing(), 0.0, jnp.where(largest >= 0, largest, jnp.inf))
