"""The Rényi divergence of one run of a mechanism and of compositions, at a vector of orders."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.batching import stack
from jaxacct.convert.kernels import kernel
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms import Mechanism, PoissonSubsampledGaussian, RandomAllocation
from jaxacct.mechanisms.mechanism import Relation, directions, sequence
from jaxacct.precision import as_float64
from jaxacct.rdp.closed_forms import CLOSED_FORMS
from jaxacct.rdp.edges import supremum, tried_orders
from jaxacct.rdp.orders import Kinds
from jaxacct.rdp.subsampled_gaussian import log_moments

ALLOWANCE = 1e-10
"""Relative amount by which every divergence is rounded up, for quadrature and rounding.

The largest error in 150,000 random settings (s in [0.01, 1000], q in [1e-12, 1], orders to 1100, both directions) was
7e-12, near s = 0.1 with q = 1e-12; for s above 0.15 it was 2e-13. tests/test_cumulants.py and tests/test_rdp.py measure
it again.
"""

FLOOR = 2.0**-960
"""Smallest divergence reported for a run: below it (q under 1e-144) squares of q lose their digits to underflow."""


def single(mechanism: Mechanism, orders: Array, relation: Relation, kinds: Kinds) -> Array:
    """Returns the divergence of one run, rounded up: above 0 unless nothing is released."""
    free = (orders > 1) & mechanism.releases_nothing()
    return jnp.where(free, 0.0, _single(mechanism, orders, relation, kinds))


def _single(mechanism: Mechanism, orders: Array, relation: Relation, kinds: Kinds) -> Array:
    closed = CLOSED_FORMS.get(type(mechanism))
    if closed is not None:
        return _rounded_up(closed(mechanism, orders, relation), orders)
    # Of adding and removing an example the latter costs more (Mironov, Talwar and Zhang 2019, Theorem 5).
    if isinstance(mechanism, PoissonSubsampledGaussian) and directions(mechanism, relation)[0] == "remove":
        pair = mechanism.dominating_pairs("remove")[0]
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        valid = pair.is_valid() & (orders > 1)
        s, q = jnp.where(pair.is_valid(), s, 1.0), jnp.where(pair.is_valid(), q, 1.0)
        moments = log_moments(s, q, jnp.where(orders > 1, orders, 2.0), kinds)
        return _rounded_up(jnp.where(valid, moments, jnp.nan) / (orders - 1), orders)
    pairs = mechanism.dominating_pairs(relation)
    if len({jax.tree.structure(pair) for pair in pairs}) > 1:
        return functools.reduce(jnp.maximum, (_directed(pair, orders) for pair in pairs))
    # Directions of one kind run as one batch: half the code to compile.
    batch = stack(*pairs)
    return jnp.max(jax.vmap(lambda pair: _directed(pair, orders))(batch), axis=0)


def _directed(pair: DominatingPair, orders: Array) -> Array:
    divergence = pair.cumulant(orders - 1) / (orders - 1)
    known = pair.is_valid() & (pair.infinite_mass() == 0)
    return _rounded_up(jnp.where(known, divergence, jnp.nan), orders)


def _rounded_up(divergence: Array, orders: Array) -> Array:
    """Returns the divergence with the allowance for its errors; ``inf`` for NaN and where the order is none."""
    raised = jnp.maximum(divergence * (1 + ALLOWANCE), FLOOR)
    return jnp.where((orders > 1) & (divergence >= 0), raised, jnp.inf)


def total(mechanism: Any, steps: Any, orders: Array, relation: Relation, kinds: Kinds) -> Array:
    """Returns the divergence of the composition; the rounding of its sums is far inside ALLOWANCE."""
    one = functools.partial(single, orders=orders, relation=relation, kinds=kinds)
    return _summed(mechanism, steps, one, jnp.zeros(orders.shape, jnp.float64))


def _summed(mechanism: Any, steps: Any, one: Callable[[Mechanism], Array], nothing: Array) -> Array:
    """Returns the sum of what ``one`` gives for each run; ``inf`` where a number of steps is none."""
    if isinstance(mechanism, (tuple, list)):
        return sum((_summed(part, count, one, nothing) for part, count in zip(mechanism, steps, strict=True)), nothing)
    steps = as_float64(steps)
    if steps.ndim:
        parts = sequence(mechanism, len(steps))
        return jnp.sum(jax.vmap(lambda m, k: _summed(m, k, one, nothing))(parts, steps), axis=0)
    counted = (steps >= 0) & (jnp.floor(steps) == steps)
    some = jnp.where(counted & (steps < jnp.inf), steps * one(mechanism), jnp.inf)
    return jnp.where(steps == 0, nothing, some)


def composed(mechanism: Any, steps: Any, orders: Any, relation: Relation, kinds: Kinds) -> Array:
    """Returns :func:`total`, compiled once for each shape and relation, and each kinds where they are used.

    Orders 1 and infinity, which only concrete ones may be, are :mod:`.edges`.
    """
    kinds = kinds if _uses_kinds(mechanism) else NO_KINDS
    curve = _composed(mechanism, steps, tried_orders(orders), relation, kinds)
    if not isinstance(orders, np.ndarray) or not np.any(np.isinf(orders)):
        return curve
    return _with_largest(curve, orders, largest_losses(mechanism, steps, relation))


@kernel
def _with_largest(curve: Array, orders: Array, largest: Array) -> Array:
    return jnp.where(orders == jnp.inf, largest, curve)


NO_KINDS = Kinds((), (), ())
"""In place of kinds that nobody looks at: they hold the whole orders themselves, each list of which is a program."""


def largest_losses(mechanism: Any, steps: Any, relation: Relation) -> Array:
    """Returns the divergence of order infinity of a composition, rounded up: the sum of the suprema of its losses."""
    return _largest_losses(mechanism, steps, relation)


def _uses_kinds(mechanism: Any) -> bool:
    if isinstance(mechanism, (tuple, list)):
        return any(map(_uses_kinds, mechanism))
    return isinstance(mechanism, PoissonSubsampledGaussian)


@kernel(static=2)
def _composed(mechanism: Any, steps: Any, orders: Any, relation: Relation, kinds: Kinds) -> Array:
    return total(mechanism, steps, as_float64(orders), relation, kinds)


@kernel(static=1)
def _largest_losses(mechanism: Any, steps: Any, relation: Relation) -> Array:
    return _summed(mechanism, steps, functools.partial(_largest_loss, relation=relation), jnp.zeros(()))


def _largest_loss(mechanism: Mechanism, relation: Relation) -> Array:
    """Returns the supremum of the loss of one run, rounded up; ``inf`` where it is not known."""
    if isinstance(mechanism, RandomAllocation):  # its pairs have the tails cut off
        return jnp.where(mechanism.releases_nothing(), 0.0, jnp.inf)
    pairs = mechanism.dominating_pairs(relation)
    losses = [jnp.where(pair.is_valid(), supremum(pair), jnp.inf) for pair in pairs]
    largest = functools.reduce(jnp.maximum, losses) * (1 + ALLOWANCE)
    return jnp.where(mechanism.releases_nothing(), 0.0, jnp.where(largest >= 0, largest, jnp.inf))
