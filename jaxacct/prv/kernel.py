"""The compiled part: from dominating pairs to a composed lattice, and from that to a bracket."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.batching import stack
from jaxacct.bounds import Bounds
from jaxacct.precision import UNIT_ROUNDOFF, log_complement
from jaxacct.prv import plan
from jaxacct.prv.compose import Stages, merge, self_compose
from jaxacct.prv.composition import Part
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.discretize import discretize
from jaxacct.prv.evaluate import delta_of, epsilon_of, slack_effect
from jaxacct.prv.lattice import LossLattice


def composed(
    parts: tuple[Part, ...], value: Array, quantity: str, points: int, method: str
) -> tuple[LossLattice, Stages, Array, Array]:
    """Returns the lattices above and below (2, points) of a composition, its stages, what it lost, and its tilt.

    ``value`` is the delta or epsilon, as ``quantity`` says, by which the tilt is chosen; others may be asked for after.
    The lattices hold the finite losses. Lost is the probability, at most, that a loss beyond the meshes counts as
    infinite, which only the upper bound needs.
    """
    plans = plan.choose(parts, value, quantity, points, method)
    order, log_tail = plans.order, plans.log_tail
    number = sum(len(steps) for _, steps in parts)
    meshes = [
        jax.vmap(plan.mesh, in_axes=(0, 0, None))(pairs, length, points)
        for (pairs, _), length in zip(parts, plans.lengths, strict=True)
    ]
    if number > 1:
        meshes = _doubles_of_one(parts, meshes)

    def power(row: Any) -> tuple[LossLattice, Stages, Array]:
        pair, steps, low, high, h = row
        start = plan.placed(pair, low, h)
        upper, lower, lost = discretize(pair, order, plans.log_weight, start, h, high, points)
        return *self_compose(stack(upper, lower), steps, method, log_tail), steps * lost

    rows = [(*part, *window, h) for part, window, h in zip(parts, plans.windows, meshes, strict=True)]
    if number == 1:
        return *power(jax.tree.map(lambda leaf: leaf[0], rows[0])), order
    # One after the other: their windows and stages differ, and so the memory is that of the results.
    powers = [jax.lax.map(power, row) for row in rows]
    lattices, stages, lost = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *powers)
    first = jax.tree.map(lambda leaf: leaf[0], stages)
    return _tournament(lattices, log_tail), first, jnp.sum(lost), order


def _doubles_of_one(parts: tuple[Part, ...], meshes: list[Array]) -> list[Array]:
    """Returns meshes at least as wide, of which each is another's double, so that they can be brought together.

    The unit is a mesh on which atoms lie, if there is one.
    """
    unit = meshes[0][0]
    for (pairs, _), h in reversed(list(zip(parts, meshes, strict=True))):
        with_atoms = jnp.isfinite(jax.vmap(lambda pair: pair.anchors()[1])(pairs))
        unit = jnp.where(with_atoms[0], h[0], unit)
    # By exponents: XLA's exp2 of a whole number need not be a power of two.
    return [jnp.ldexp(unit, jnp.ceil(jnp.log2(h / unit) - 1e-6).astype(jnp.int32)) for h in meshes]


def _tournament(lattices: LossLattice, log_tail: Array) -> LossLattice:
    """Returns the sum of (m, rows, n) lattices, merged in pairs, those of like mesh first."""
    meshes = lattices.mesh[:, 0]
    count = len(meshes)
    index = jnp.arange(count)
    before = (meshes[None, :] < meshes[:, None]) | (
        (meshes[None, :] == meshes[:, None]) & (index[None, :] < index[:, None])
    )
    rank = jnp.sum(before, axis=1)
    lattices = jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[rank].set(leaf), lattices)

    def play(all_: LossLattice, pairing: Array) -> tuple[LossLattice, None]:
        first = jax.tree.map(lambda leaf: leaf[pairing[0]], all_)
        second = jax.tree.map(lambda leaf: leaf[pairing[1]], all_)
        merged = merge(first, second, log_tail)
        return jax.tree.map(lambda leaf, new: leaf.at[pairing[0]].set(new), all_, merged), None

    final, _ = jax.lax.scan(play, lattices, jnp.asarray(_pairings(count)))
    return jax.tree.map(lambda leaf: leaf[0], final)


def _pairings(count: int) -> np.ndarray:
    """Returns the (count - 1, 2) slots that are merged one after the other, into the first of each."""
    slots, pairings = list(range(count)), []
    while len(slots) > 1:
        pairings += [(slots[i], slots[i + 1]) for i in range(0, len(slots) - 1, 2)]
        slots = slots[::2]
    return np.asarray(pairings)


def valid_parts(parts: tuple[Part, ...]) -> Array:
    """Returns whether all pairs and counts are in range."""
    valid = jnp.asarray(True)
    for pairs, steps in parts:
        whole = (steps >= 0) & (steps == jnp.floor(steps)) & (steps <= 2.0**53)
        valid &= jnp.all(jax.vmap(lambda pair: pair.is_valid())(pairs) & whole)
    return valid


def infinite_mass(parts: tuple[Part, ...]) -> tuple[Array, Array]:
    """Returns bounds (lower, upper) on the probability of an infinite loss in the composition."""
    log_finite, terms = jnp.zeros(()), 0
    for pairs, steps in parts:
        mass = jax.vmap(lambda pair: pair.infinite_mass())(pairs)
        log_finite += jnp.sum(jnp.where(steps > 0, steps * log_complement(mass), 0.0))
        terms += len(steps)
    mass = -jnp.expm1(log_finite)
    # The masses, their logarithms, products and sum: relative errors of positive terms only.
    error = (32 + 2 * terms) * UNIT_ROUNDOFF
    return jnp.maximum(mass * (1 - error), 0.0), jnp.minimum(mass * (1 + error), 1.0)


def infinite_share(parts: tuple[Part, ...], lost: Array) -> Array:
    """Returns what infinite losses, and those that count as such, add to delta: (2,), at most and at least."""
    least, most = infinite_mass(parts)
    # The union bound on either, rounded up.
    return jnp.stack([jnp.minimum(most + lost * (1 + 8 * UNIT_ROUNDOFF), 1.0), least])


def delta_at(lattices: LossLattice, infinite: Array, epsilon: Array) -> Array:
    """Returns delta at ``epsilon`` from above and from below, (2,), of the lattices above and below."""
    finite = jax.vmap(delta_of, in_axes=(0, None))(lattices, epsilon)
    return jnp.clip(finite + infinite * (1 + jnp.array([4.0, -4.0]) * UNIT_ROUNDOFF), 0.0, 1.0)


def is_idle(parts: tuple[Part, ...]) -> Array:
    """Returns whether nothing is run at all."""
    return jnp.all(jnp.stack([jnp.all(steps == 0) for _, steps in parts]))


@functools.partial(jax.jit, static_argnames=("quantity", "points", "method"))
def bounds_of(
    parts: tuple[Part, ...], value: Array, quantity: str, points: int, method: str
) -> tuple[Bounds, Diagnostics]:
    """Returns the bracket of epsilon at a delta, or of delta at an epsilon, for one direction."""
    is_epsilon = quantity == "epsilon"
    valid = valid_parts(parts) & ((value > 0) & (value < 1) if is_epsilon else value >= 0)
    worst = jnp.inf if is_epsilon else 1.0
    lattice, stages, lost, order = composed(parts, value, quantity, points, method)
    infinite = infinite_share(parts, lost)
    if is_epsilon:
        # Infinite losses take their share of delta first; the difference rounds by one unit of delta.
        room = value - infinite - jnp.array([1.0, -1.0]) * UNIT_ROUNDOFF * value * (infinite > 0)
        results = jax.vmap(epsilon_of)(lattice, room)
        results = jnp.where(room > 0, results, jnp.inf)
    else:
        results = delta_at(lattice, infinite, value)
    upper, lower = results[0], results[1]
    idle = valid & is_idle(parts)
    upper = jnp.where(idle, 0.0, jnp.where(valid & ~jnp.isnan(upper), upper, worst))
    lower = jnp.where(valid & ~idle, lower, 0.0)
    estimate = jnp.where(upper < worst, (lower + upper) / 2, upper)
    bounds = Bounds(lower=lower, estimate=estimate, upper=upper, converged=upper < worst)
    at = results if is_epsilon else jnp.broadcast_to(value, (2,))
    shown = jax.tree.map(lambda leaf: leaf[0], replace(lattice, weights=jnp.zeros((2, 0))))
    return bounds, Diagnostics(
        points=points,
        method=method,
        order=order,
        stages=stages,
        mesh=shown.mesh,
        start=shown.start,
        slack=lattice.slack,
        slack_delta=jax.vmap(slack_effect)(lattice, at),
        shift=lattice.shift,
        infinite_mass=infinite_mass(parts)[1],
        lost=lost,
        converged=upper < worst,
    )
