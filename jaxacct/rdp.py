"""The Rényi accountant: Rényi curves of mechanisms and of their compositions, and the (epsilon, delta) they imply.

The Rényi divergence of a mechanism at an order is that of its dominating pair, rounded up by an allowance for
quadrature and rounding; composition adds the divergences; and each order implies an epsilon at delta, or a delta at
epsilon; the least over the orders counts. In reading order:

1. the orders that are tried: :data:`DEFAULT_ORDERS`;
2. the divergence of one run and of compositions, at a vector of orders: :func:`single`, :func:`composed_divergence`;
3. compositions with infinite losses of some probability: :func:`least_beside_failures`;
4. the accountant's functions: :func:`curve`, :func:`composed_curve`, :func:`epsilon`, :func:`delta`.

Sources: Mironov (2017), "Rényi differential privacy", Propositions 1 and 3; Mironov, Talwar and Zhang (2019); Asoodeh
et al. (2021), Theorem 1; Canonne, Kamath and Steinke (2020), Proposition 12.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import convert, validation
from jaxacct.convert.renyi import (
    Conversion,
    Orders,
    ToDelta,
    ToEpsilon,
    checked_orders,
    epsilon_improved,
    epsilon_mironov,
    least_implied,
    least_of,
    log_delta_improved,
    log_delta_mironov,
)
from jaxacct.mechanisms import Mechanism, RenyiOnly
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.mechanisms.mechanism import (
    Mechanisms,
    Relation,
    Steps,
    check_count,
    check_mechanism,
    counts_of,
    directions,
    parts_of,
    sequence,
)
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.batched_loops import stack
from jaxacct.numerics.derivatives import Differences, is_below_one
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import TINY, as_float64, is_concrete, kernel, log_complement

__all__ = [
    "ALLOWANCE",
    "CONVERSIONS",
    "DEFAULT_ORDERS",
    "FLOOR",
    "composed_curve",
    "curve",
    "delta",
    "epsilon",
    "epsilon_improved",
    "epsilon_mironov",
    "log_delta_improved",
    "log_delta_mironov",
]

# ----------------------------------------------------------------------------------------------------
# The Rényi orders that are tried.
# ----------------------------------------------------------------------------------------------------

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05),
    *(round(0.1 * i, 1) for i in range(11, 110)),
    *(float(i) for i in range(11, 65)),
    *(float(order) for order in np.round(np.geomspace(67, 1024, 56))),
)
"""Orders tried unless others are given: in steps of 0.1 up to 10.9, of 1 up to 64, then of 5 % up to 1024.

Any orders above 1 are sound: they decide the tightness, and the time.

Orders near 1 serve a large epsilon, high ones a small one. Between two neighbours the loss of epsilon is of second
order: below 0.2 % for a Gaussian with epsilon in [0.05, 30] at delta = 1e-5 (tests/rdp/test_rdp.py). A subsampled
Gaussian has a sharper best order, where its largest losses begin to count: of 1,000 settings (noise 0.5 to 8, rates
1e-4 to 0.2, up to 1e5 steps) epsilon was more than 0.2 % above that of a continuum of orders in 30 %, more than 1 % in
12 %, and 3.2 % at most, all with epsilon below 0.1. ``orders="continuous"`` looks between them.
"""


def tried_orders(orders: Any) -> Any:
    """Returns the orders computed in the place of ``orders``: `above_one` for 1, and any order for infinity."""
    # The order that stands for order 1, the Kullback-Leibler divergence. The divergence rises with its order,
    # continuously where it is finite. So the divergence of an order just above 1 bounds that of order 1 from above, at
    # a relative cost of about the distance. Any value above 1 is sound. (Order infinity has its own program: its
    # divergence is the supremum of the privacy loss.)
    above_one = 1 + 2.0**-33
    if isinstance(orders, np.ndarray):
        return np.where(np.isinf(orders), 2.0, np.where(orders == 1, above_one, orders))
    return orders


# ----------------------------------------------------------------------------------------------------
# The Rényi divergence of one run of a mechanism and of compositions, at a vector of orders.
#
# A run's divergence is the largest of its dominating pairs', each rounded up once; that of a composition is the sum
# over its runs; equal runs are multiplied and not repeated.
# ----------------------------------------------------------------------------------------------------

ALLOWANCE = 1e-10
"""Relative amount by which every divergence is rounded up, for quadrature and rounding.

The largest error in 150,000 random settings (s in [0.01, 1000], q in [1e-12, 1], orders to 1100, adding) was 7e-12,
near s = 0.1 with q = 1e-12. Removing, it was 4e-12 in 45,000 (s in [0.02, 1000], q in [1e-60, 1]), near s = 1.15,
where the spacing of nodes decides. tests/rdp/test_cumulants.py and tests/rdp/test_rdp.py measure it again.
"""


def allowance(counts_rounding: bool = False) -> float:
    """Returns :data:`ALLOWANCE` in the arithmetic that is traced for: in a coarser one all of it may be rounding.

    Where a pair ``counts_rounding`` itself it is that of the rule, and of what is done with the divergence: some
    products, and sums over parts (:func:`composed_divergence` counts these).
    """
    return ALLOWANCE + 32 * roundoff() if counts_rounding else scale_error(ALLOWANCE)


FLOOR = 2.0**-960
"""Smallest divergence reported for a run, in nats: below it (q under 1e-144) squares of q lose digits to underflow."""


@dataclass(frozen=True)
class CurvesWithin:
    """The curves that a mechanism may ask of the mechanisms within it (:class:`.Curves`), under a relation."""

    relation: Relation

    def of(self, mechanism: Mechanisms, steps: Steps, orders: Any) -> Array:
        return at_orders(lambda orders: composed_divergence(mechanism, steps, orders, self.relation), orders)

    def delta(self, curve: Array, orders: Array, epsilon: Array) -> Array:
        every = jax.vmap(
            lambda value: ToDelta("improved").of_orders(curve, orders, jnp.broadcast_to(value, orders.shape))
        )
        return jnp.min(every(epsilon), axis=1)


def single(mechanism: Mechanism, orders: Array, relation: Relation) -> Array:
    """Returns the divergence of one run, rounded up: above 0 unless nothing is released."""
    if isinstance(mechanism, RenyiOnly):
        divergences = _rounded_up(mechanism.divergence(as_float64(orders), relation, CurvesWithin(relation)))
    else:
        divergences = _of_pairs(mechanism, orders, relation)
    return jnp.where(mechanism.releases_nothing(), 0.0, divergences)


def _of_pairs(mechanism: Mechanism, orders: Array, relation: Relation) -> Array:
    pairs = mechanism.dominating_pairs(relation)
    # A direction does not count where another one's divergence is known never to be smaller.
    pairs = tuple(pair for pair in pairs if not any(other.has_larger_divergences_than(pair) for other in pairs))
    if len(pairs) == 1 or len({jax.tree.structure(pair) for pair in pairs}) > 1:
        return functools.reduce(jnp.maximum, (_divergence(pair, orders) for pair in pairs))
    # Directions of one kind run one after the other: half the code to compile.
    every = jax.lax.map(lambda pair: _divergence(pair, orders), stack(*pairs))
    return jnp.max(every, axis=0)


def _divergence(pair: Any, orders: Array) -> Array:
    """Returns the divergence of a pair, rounded up, with what the sum of Q misses (:func:`_surplus`)."""
    divergences = _rounded_up(pair.divergence(orders), pair.counts_rounding and arithmetic().has_few_digits)
    return _known(divergences + 1.01 * pair.surplus()[1]) if isinstance(pair, FinitePair) else divergences


def _rounded_up(divergence: Array, counts_rounding: bool = False) -> Array:
    """Returns the divergence with the allowance for its errors; ``inf`` for NaN."""
    # FLOOR is as far above the smallest normal number in any arithmetic.
    least = FLOOR * (arithmetic().tiny / TINY)
    return jnp.maximum(_known(divergence) * (1 + allowance(counts_rounding)), least)


def _known(divergence: Array) -> Array:
    """Returns the divergence; ``inf`` where it is NaN or below 0.

    NaN is asked for by name: XLA takes a square, or a maximum with 0, to be at least 0 though it be NaN.
    """
    return jnp.where(jnp.isnan(divergence) | (divergence < 0), jnp.inf, divergence)


def composed_divergence(mechanism: Any, steps: Any, orders: Array, relation: Relation) -> Array:
    """Returns the divergence of the composition; in float64 the rounding of its sums is far inside the allowance."""
    one = functools.partial(single, orders=orders, relation=relation)
    divergences = composed_by(one, mechanism, steps, jnp.zeros(orders.shape, jnp.float64))
    return divergences * (1 + 2 * roundoff() * _count_sums(mechanism)) if arithmetic().has_few_digits else divergences


def _count_sums(mechanism: Any) -> int:
    """Returns at least the number of sums that a composition takes."""
    if isinstance(mechanism, (tuple, list)):
        return len(mechanism) + sum(map(_count_sums, mechanism))
    return 8 + sum(np.size(leaf) for leaf in jax.tree.leaves(mechanism))


def composed_by(of_run: Callable[[Mechanism], Array], mechanism: Any, steps: Any, nothing: Array) -> Array:
    """Returns the sum of ``one`` over all runs; ``inf`` where a number of steps is no whole number."""
    # The kinds of composition, from the outside in: a tuple, a mechanism that is itself a composition, a batch of
    # fields.
    if isinstance(mechanism, (tuple, list)):
        return sum(
            (composed_by(of_run, part, count, nothing) for part, count in zip(mechanism, steps, strict=True)), nothing
        )
    if mechanism.composed:
        return sum(
            (composed_by(of_run, part, count, nothing) for part, count in mechanism.decompose(counts_of(steps))),
            nothing,
        )
    if np.ndim(steps):
        # A batch of fields is one program for a row of it, and a sum over the rows.
        parts, steps = sequence(mechanism, len(steps)), as_float64(steps)
        return jnp.sum(jax.vmap(lambda m, k: composed_by(of_run, m, k, nothing))(parts, steps), axis=0)
    # Concrete steps keep the operations for traced ones out of the program; no run has 0, even where one is infinite.
    if is_concrete(steps) and steps == 0:
        return nothing
    if is_concrete(steps) and 1 <= steps < np.inf and steps == np.floor(steps):
        return of_run(mechanism) * float(steps) if steps > 1 else of_run(mechanism)
    steps = as_float64(steps)
    counted = (steps >= 0) & (jnp.floor(steps) == steps)
    some = jnp.where(counted & (steps < jnp.inf), steps * of_run(mechanism), jnp.inf)
    return jnp.where(steps == 0, nothing, some)


def compose(mechanism: Any, steps: Any, orders: Any, relation: Relation) -> Array:
    """Returns :func:`composed_divergence`, compiled once for each shape and relation.

    Only concrete orders may be 1 or infinity.
    """
    return _compose(mechanism, steps, orders, tried_orders(orders), has_infinity(orders), relation)


def has_infinity(orders: Any) -> bool:
    """Returns whether some concrete order is infinite."""
    return is_concrete(orders) and bool(np.any(np.isinf(orders)))


@kernel(compiles=By.XLA_FAST, static=2, derivatives=Differences())
def _compose(mechanism: Any, steps: Any, orders: Any, tried: Any, infinity: bool, relation: Relation) -> Array:
    return of_all_orders(mechanism, steps, orders, tried, relation, infinity=infinity)


def of_all_orders(mechanism: Any, steps: Any, orders: Any, tried: Any, relation: Relation, *, infinity: bool) -> Array:
    """Returns the divergence of a composition at ``orders``, computed at ``tried``; inside the float64 scope."""
    curve = at_orders(lambda tried: composed_divergence(mechanism, steps, tried, relation), tried)
    if not infinity:
        return curve
    one = functools.partial(_largest_loss, relation=relation)
    return jnp.where(orders == jnp.inf, composed_by(one, mechanism, steps, jnp.zeros(())), curve)


def at_orders(curve: Callable[[Any], Array], orders: Any) -> Array:
    """Returns ``curve`` at ``orders``, and ``inf`` at traced orders that are not above 1 and finite."""
    if is_concrete(orders):
        return curve(np.asarray(orders, np.float64))
    orders = as_float64(orders)
    # A traced order cannot raise: a valid one stands in for one that is not, and inf for its result.
    valid = (orders > 1) & (orders < jnp.inf)
    return jnp.where(valid, curve(jnp.where(valid, orders, 2.0)), jnp.inf)


@kernel(compiles=By.XLA_FAST, static=1, derivatives=Differences())
def largest_losses(mechanism: Any, steps: Any, relation: Relation) -> Array:
    """Returns the divergence of order infinity of a composition, rounded up: the sum of the suprema of its losses."""
    return composed_by(functools.partial(_largest_loss, relation=relation), mechanism, steps, jnp.zeros(()))


def _largest_loss(mechanism: Mechanism, relation: Relation) -> Array:
    """Returns the supremum of the loss of one run, rounded up; ``inf`` where it is not known."""
    if isinstance(mechanism, RenyiOnly):
        losses = [mechanism.largest_loss()]
    else:
        pairs = mechanism.dominating_pairs(relation)
        losses = [jnp.where(pair.is_valid(), pair.largest_loss(), jnp.inf) for pair in pairs]
    largest = functools.reduce(jnp.maximum, losses) * (1 + allowance())
    return jnp.where(mechanism.releases_nothing(), 0.0, _known(largest))


# ----------------------------------------------------------------------------------------------------
# Compositions with infinite losses of some probability, by Rényi divergences given that the losses are finite.
#
# Let P_i have infinite losses of mass m_i, and P_i' be P_i given that the loss is finite. For adaptive compositions let
# 1 - m be the product of the 1 - m_i. The best event consists of all outcomes of an infinite loss and an event A of the
# others, so that
#
#     delta(epsilon) = m + sup_A ((1 - m) P'(A) - e^epsilon Q(A)) <= m + (1 - m) delta'(epsilon),
#
# where delta' is that of P' = prod P_i' against Q, which the sum of the divergences D(P_i' || Q_i) bounds. With Y the
# loss of P_i, D_a(P_i' || Q_i) = (log E[e^((a-1) Y); Y < inf] - a log(1 - m_i)) / (a - 1).
# ----------------------------------------------------------------------------------------------------

ROUNDING = 1024
"""Units of roundoff allowed for the total mass of infinite losses, and for the mass that remains.

Fewer than the operations take would break the bounds.
"""


def may_fail(mechanism: Any) -> bool:
    """Returns whether a mechanism, or any of several, may have infinite losses with some probability."""
    if isinstance(mechanism, (tuple, list)):
        return any(map(may_fail, mechanism))
    return bool(mechanism.may_fail)


def least_beside_failures(
    mechanism: Any, steps: Any, number: Any, orders: Any, relation: Relation, to: Conversion, between: bool
) -> Array:
    """Returns the least epsilon at a delta, or delta at an epsilon, where losses may be infinite.

    The curve is that given finite losses; the mass m of infinite ones comes off delta first, or is added to it. If
    ``between``, orders between those given are tried as well.
    """
    curve, log_kept = _finite_part(mechanism, steps, orders, relation)
    if isinstance(to, ToEpsilon):
        number = _remaining_delta(number, log_kept)
    least = least_implied(curve, orders, number, to)
    if between:
        least = _least_between(mechanism, steps, number, orders, curve, least, relation, to)
    return least if isinstance(to, ToEpsilon) else _with_failures(least, log_kept)


@kernel(compiles=By.XLA_FAST, static=2, derivatives=Differences())
def _least_between(
    mechanism: Any, steps: Any, number: Any, orders: Any, rdp: Any, least: Any, relation: Relation, to: Conversion
) -> Array:
    """Returns the least of ``least`` and of what divergences given finite losses imply between the orders."""

    def curve(orders: Array) -> Array:
        return _finite_part(mechanism, steps, orders, relation)[0]

    return jnp.fmin(least, to.between(curve, as_float64(rdp), as_float64(orders), as_float64(number)))


@kernel(compiles=By.XLA_FAST, static=1, derivatives=Differences())
def _finite_part(mechanism: Any, steps: Any, orders: Any, relation: Relation) -> tuple[Array, Array]:
    """Returns the divergences given finite losses, rounded up, and log(1 - m), rounded down."""

    def curve(orders: Array) -> Array:
        one = functools.partial(_divergence_of_finite, orders=orders, relation=relation)
        return composed_by(one, mechanism, steps, jnp.zeros(orders.shape))

    failures = functools.partial(_failure_cost, relation=relation)
    log_lost = composed_by(failures, mechanism, steps, jnp.zeros(()))
    return at_orders(curve, orders), -log_lost * (1 + ROUNDING * roundoff())


def _surplus(pair: Any) -> tuple[Array, Array]:
    """Returns bounds a, b on the distances from one of the sums of P and Q, of numbers that are taken for exact.

    Let P' and Q' be P and Q over their sums where these are above 1, and P and Q otherwise. Then P - e^eps Q is at most
    P' - e^eps Q' besides the mass a, which counts as an infinite loss (:func:`_failure_cost`).

    The losses of P' and Q' are shifted by s = a + b at most. A cumulant of order t takes sums for 1, so that its moment
    is 1 and the mean of g(Y) = phi(tY) + t phi(-Y), phi(x) = e^x - 1 - x (:func:`.pair.moments`). As |phi'(x)| is at
    most phi(x) + (2 phi(x))^(1/2), |g'| is at most (t + 1) g + (t + t^(1/2)) (2g)^(1/2); hence by Minkowski the root of
    the mean of g rises by a share of (t + 1) s/2 and by (t + t^(1/2)) s/2^(1/2), up to terms of order s^2.

    That is the cumulant of P and of Q over its sum, where Q misses b of its mass. To k runs of Q itself epsilon is as
    epsilon - k b to these, at which delta is k b more at most, as its slope is at least -1: so b counts as an infinite
    loss besides. A divergence is that of Q over its sum and b more.
    """
    return pair.surplus() if isinstance(pair, FinitePair) else (jnp.zeros(()), jnp.zeros(()))


def _shift_of(pair: Any, moment: Array, t: Array) -> Array:
    """Returns what the moment's logarithm may rise by where sums miss one (:func:`_surplus`), a hundredth too much."""
    shift = sum(_surplus(pair), jnp.zeros(()))
    share = jnp.maximum(-jnp.expm1(-moment), 0.0) + (t + 1) * pair.infinite_mass() * jnp.exp(-moment)
    risen = (t + jnp.sqrt(t)) * shift * jnp.exp(-moment / 2)
    return 1.01 * (2 * (t + 2) * shift * share + 2 * jnp.sqrt(share) * risen + risen * risen)


def _infinite_mass(pair: Any) -> Array:
    """Returns the mass m_i of the pair's infinite losses, rounded up; 1 where the pair is not valid."""
    mass = pair.infinite_mass() * (1 + pair.infinite_mass_error() + ROUNDING * roundoff())
    return jnp.where(pair.is_valid(), jnp.minimum(mass, 1.0), 1.0)


def _failure_probability(pair: Any) -> Array:
    """Returns the mass m_i with four times what the sums miss: 1 - delta' of it are added to a delta'."""
    return jnp.minimum(_infinite_mass(pair) + 4 * sum(_surplus(pair), jnp.zeros(())), 1.0)


def _failure_cost(mechanism: Mechanism, relation: Relation) -> Array:
    """Returns -log(1 - m_i), the largest over the directions."""
    if not mechanism.may_fail:
        return jnp.zeros(())
    costs = [-log_complement(_failure_probability(pair)) for pair in mechanism.dominating_pairs(relation)]
    return functools.reduce(jnp.maximum, costs)


def _divergence_of_finite(mechanism: Mechanism, orders: Array, relation: Relation) -> Array:
    """Returns D(P_i' || Q_i), rounded up, the largest over the directions."""
    if not mechanism.may_fail:
        return single(mechanism, orders, relation)

    def divergence(pair: Any) -> Array:
        # Both terms are rounded up by the allowance; only rounding makes their sum negative.
        moment, lost = pair.cumulant(orders - 1), orders * -log_complement(_infinite_mass(pair))
        raised = moment + lost + allowance() * (jnp.abs(moment) + lost)
        raised = raised + _shift_of(pair, moment, jnp.maximum(orders - 1, 0.0))
        known = pair.is_valid() & (orders > 1) & ~jnp.isnan(raised)
        return jnp.where(known, jnp.maximum(raised, 0.0) / (orders - 1), jnp.inf)

    divergences = functools.reduce(jnp.maximum, map(divergence, mechanism.dominating_pairs(relation)))
    return jnp.where((orders > 1) & mechanism.releases_nothing(), 0.0, divergences)


@kernel
def _remaining_delta(delta: Array, log_kept: Array) -> Array:
    """Returns delta' at which m + (1 - m) delta' is delta, rounded down; NaN, which has no epsilon, where none is."""
    # Rounding m up leaves less of delta.
    lost = -jnp.expm1(log_kept) * (1 + ROUNDING * roundoff())
    left = (delta - lost) / (1 - lost) * (1 - ROUNDING * roundoff())
    return jnp.where(left > 0, left, jnp.nan)


@kernel
def _with_failures(delta: Array, log_kept: Array) -> Array:
    lost = -jnp.expm1(log_kept) * (1 + ROUNDING * roundoff())
    total = lost + (1 - lost) * delta
    return jnp.where(jnp.isnan(total), 1.0, jnp.minimum(total * (1 + ROUNDING * roundoff()), 1.0))


# ----------------------------------------------------------------------------------------------------
# The Rényi accountant: curves, and the epsilon and delta of a composition.
# ----------------------------------------------------------------------------------------------------

CONVERSIONS = convert.METHODS
"""Names of the methods that convert a Rényi curve to epsilon or delta."""


@kernel(derivatives=Differences(nested=True))
def curve(mechanism: Mechanism, orders: Orders, *, relation: Relation = "add_or_remove") -> Float[Array, " orders"]:
    """Returns the Rényi divergence of one run of a mechanism at each order, rounded up.

    Args:
        mechanism: one mechanism, scalar fields; they may be traced. Batches are ``jax.vmap``.
        orders (orders,): real Rényi orders, from 1, the Kullback-Leibler divergence, to infinity, the supremum of the
            privacy loss. They may be traced, those strictly between the two.
        relation: neighbouring relation, one that the mechanism supports; of two directions the larger counts.

    Returns float64 (orders,). 0 where nothing is released (infinite noise, a pure epsilon of 0). ``inf`` where the
    divergence is or nothing is known: no noise, invalid traced parameters, a traced order not above 1 and finite.

    Formal guarantee: an upper bound on D_order(M(x) || M(x')) for all neighbours x, x' under ``relation`` and under the
    sampling that the mechanism names. It is above the dominating pair's divergence by a relative 2e-10 at most, at
    order 1 by 1e-9 of it and of its slope, at order infinity by 64 roundings more. For subsampled Gaussian noise with a
    multiplier below 0.01 it is a closed form, 2 % above at orders next to 1 and equal to rounding farther out.

    Raises ValueError where a concrete field, order or the relation is not valid.

    Source: Mironov (2017), "Rényi differential privacy"; sampled Gaussian, Mironov, Talwar and Zhang (2019).

    >>> from jaxacct import Gaussian
    >>> curve(Gaussian(noise_multiplier=2.0), orders=[2.0, 8.0]).round(6).tolist()
    [0.25, 1.0]
    """
    check_mechanism(mechanism)
    directions(mechanism, relation)
    if mechanism.batch_shape and not mechanism.composed:
        raise ValueError("curve takes one mechanism with scalar fields: use jax.vmap for a batch of them.")
    orders = checked_orders(orders, one=True, infinity=True)
    return compose(mechanism, 1, orders, relation)


@kernel(derivatives=Differences(nested=True))
def composed_curve(
    mechanism: Mechanisms, steps: Steps, orders: Orders, *, relation: Relation = "add_or_remove"
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of an adaptive composition at each order, rounded up; float64 (orders,).

    Args:
        mechanism: one mechanism with scalar fields; or fields with one leading axis (n,), composed together; or a tuple
            of either, composed together.
        steps: number of runs, a whole number: (), or (n,), or a tuple that matches. Traced ones that are no whole
            number give ``inf``; no steps at all give 0.
        orders (orders,): as in :func:`curve`, whose guarantee and errors these are.
        relation: neighbouring relation, as in :func:`curve`.

    Source: additivity, Mironov (2017), Proposition 1.

    >>> from jaxacct import Gaussian
    >>> pair = Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=1.0)
    >>> composed_curve(pair, (4, 1), orders=[2.0]).round(6).tolist()
    [2.0]
    """
    _check_composition(mechanism, steps, relation)
    orders = checked_orders(orders, one=True, infinity=True)
    return compose(mechanism, steps, orders, relation)


@kernel(derivatives=Differences(nested=True))
def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    orders: Orders | str = DEFAULT_ORDERS,
    relation: Relation = "add_or_remove",
    conversion: str = "optimal",
) -> Float[Array, ""]:
    """Returns an upper bound on epsilon of a composition at ``delta``, by way of Rényi divergences; float64 ().

    Args:
        mechanism: mechanisms to compose, as in :func:`composed_curve`. Batches are ``jax.vmap``.
        steps: numbers of runs, as in :func:`composed_curve`.
        delta (): failure probability in (0, 1). May be traced. 0 asks for the pure epsilon, of order infinity, which is
            ``inf`` where there is none.
        orders (orders,): Rényi orders above 1, infinity too; the best of them counts. "continuous" looks between the
            default ones as well, which takes a few times longer.
        relation: neighbouring relation, one that the mechanism supports.
        conversion: a method of :func:`.convert.rdp_to_epsilon`: "optimal" (default), "closed", "improved" (Canonne,
            Kamath and Steinke; Balle et al.) or "mironov", none below the one before it.

    The default conversion takes 0.15 ms, as much as the curve itself, where "improved" takes a few microseconds. For
    subsampled Gaussians (noise 0.5 to 8, rates 1e-4 to 0.2, up to 1e5 steps) it lowers epsilon by 1.4 % in the median
    and by more than 40 % in one of four, those of few steps and a small epsilon; by nothing where epsilon is large.

    Formal guarantee: the composition is (epsilon, delta)-DP under ``relation`` and the mechanism's own sampling, for
    mechanisms whose *parameters* are fixed beforehand (for parameters chosen from results see
    :mod:`jaxacct.filters`). Rounding is included. ``inf`` for no noise and for invalid traced values; 0 for no steps.

    Source: Asoodeh et al. (2021), "Three variants of differential privacy", Theorem 1; Canonne, Kamath and Steinke
    (2020), "The discrete Gaussian for differential privacy", Proposition 12; Mironov (2017), Proposition 3.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> round(float(epsilon(PoissonSubsampledGaussian(1.0, 0.01), steps=1000, delta=1e-5)), 4)
    2.1009
    """
    validation.check_delta(delta, pure=True)
    validation.check_one_of(conversion, "conversion", CONVERSIONS)
    _check_composition(mechanism, steps, relation)
    tried, between = _orders_to_try(orders)
    # At delta = 0 only the divergence of order infinity implies anything.
    if is_concrete(delta) and not np.any(delta):
        return largest_losses(mechanism, steps, relation)
    return _least_over_orders(mechanism, steps, delta, tried, relation, ToEpsilon(conversion), between)


@kernel(derivatives=Differences(is_below_one, nested=True))
def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    orders: Orders | str = DEFAULT_ORDERS,
    relation: Relation = "add_or_remove",
    conversion: str = "optimal",
) -> Float[Array, ""]:
    """Returns an upper bound on delta of a composition at ``epsilon``, in [0, 1]; float64 ().

    Arguments, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for
    delta. 1 for no noise and for invalid traced values; 0 for no steps.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> bound = delta(PoissonSubsampledGaussian(1.0, 0.01), steps=1000, epsilon=2.5)
    >>> bool(0 < bound < 1e-6)
    True
    """
    validation.check_numbers(epsilon=epsilon)
    validation.check_epsilon(epsilon)
    validation.check_one_of(conversion, "conversion", CONVERSIONS)
    _check_composition(mechanism, steps, relation)
    tried, between = _orders_to_try(orders)
    return _least_over_orders(mechanism, steps, epsilon, tried, relation, ToDelta(conversion), between)


def _check_composition(mechanism: Mechanisms, steps: Steps, relation: Relation) -> None:
    for part, count in parts_of(mechanism, steps):
        check_mechanism(part)
        directions(part, relation)
        check_count(part, count)


def _orders_to_try(orders: Orders | str) -> tuple[ArrayLike, bool]:
    """Returns the orders to try, and whether to go on between them."""
    if isinstance(orders, str):
        validation.check_one_of(orders, "orders", ("continuous",))
        return np.array(DEFAULT_ORDERS), True
    return checked_orders(orders, infinity=True), False


def _least_over_orders(
    mechanism: Mechanisms,
    steps: Steps,
    number: ArrayLike,
    orders: ArrayLike,
    relation: Relation,
    to: Conversion,
    between: bool,
) -> Array:
    """Returns the least that the curve implies at ``number``, over the orders and, if ``between``, those between."""
    if may_fail(mechanism):
        return least_beside_failures(mechanism, steps, number, tried_orders(orders), relation, to, between)
    return _imply(mechanism, steps, number, orders, tried_orders(orders), has_infinity(orders), relation, to, between)


@kernel(compiles=By.XLA_FAST, static=4, derivatives=Differences())
def _imply(
    mechanism: Mechanisms,
    steps: Steps,
    number: Array,
    orders: Array,
    tried: Array,
    infinity: bool,
    relation: Relation,
    to: Conversion,
    between: bool,
) -> Array:
    """Returns :func:`_least_over_orders` without failures, as one program."""
    curve = of_all_orders(mechanism, steps, orders, tried, relation, infinity=infinity)
    least = least_of(curve, orders, number, to)
    if not between:
        return least

    def curve_of(orders: Array) -> Array:
        return composed_divergence(mechanism, steps, orders, relation)

    # The search between the orders may only lower the least; its NaN leaves that of the orders.
    return jnp.fmin(least, to.between(curve_of, curve, as_float64(orders), number))
