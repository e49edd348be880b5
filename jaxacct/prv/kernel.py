"""The compiled part: from dominating pairs to a composed lattice, and from that to a bracket.

It is compiled in stages, each of which depends on as little as can be, for compiling costs a thousand times a run:

* :func:`~jaxacct.prv.sketch.sketched` and :func:`~jaxacct.prv.placing.place` on the kind of pair;
* :func:`~jaxacct.prv.plan.choose` on the number of pairs;
* :func:`~jaxacct.prv.discretize.cells_of` on the kind of pair and the number of mesh points;
* the powers, their merging and the evaluation on the number of mesh points.

So concrete arguments of another kind, size, method or question compile only what is new. Inside somebody else's trace
all is one program.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts, combined
from jaxacct.precision import TINY, UNIT_ROUNDOFF, is_concrete, outside
from jaxacct.programs import compiled
from jaxacct.prv import plan
from jaxacct.prv.compose import METHODS, Stages, merge, self_compose
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.discretize import Cells, cells_of, measures
from jaxacct.prv.evaluate import delta_of, epsilon_of, slack_effect
from jaxacct.prv.lattice import LossLattice
from jaxacct.prv.placing import Placed, place
from jaxacct.prv.sketch import Sketch, joined, sketched
from jaxacct.question import ForEpsilon, Question

FARTHEST = 1e9
"""Largest epsilon, of either sign, that a mesh is chosen for."""


class Composed(NamedTuple):
    """A composition, as far as it does not depend on what is asked of it."""

    lattices: LossLattice
    """Above and below, (2, points); of the finite losses."""
    stages: Stages
    """Those of the first loss."""
    order: Array
    """The tilt."""
    lost: Array
    """The probability, at most, of a loss beyond the meshes; only the upper bound counts it as infinite."""
    facts: Facts


def composed(parts: Parts, question: Question, points: int, method: str) -> Composed:
    """Returns the composition on lattices of ``points`` points.

    The tilt is chosen for ``question``; others may be asked after.
    """
    counts = tuple(steps for _, steps in parts)
    total = functools.reduce(operator.add, [steps.sum() for steps in counts])
    asked = asked_of(question, points)
    sketches = tuple(sketched(pairs, total, *asked) for pairs, _ in parts)
    chosen, facts = _planned(sketches, counts, *asked, np.int64(METHODS.index(method)))

    ends = np.cumsum([len(steps) for steps in counts])
    concrete = is_concrete(chosen)
    windows = chosen.low, chosen.high, chosen.mesh
    if concrete:
        parts, windows = outside((parts, windows))
    rows = [
        (*part, *(leaf[end - len(part[1]) : end] for leaf in windows)) for part, end in zip(parts, ends, strict=True)
    ]
    if int(ends[-1]) == 1 or concrete:
        return _summed(rows, chosen, facts, points, method)
    # One after the other: their windows and stages differ, and so the memory is that of the results.
    results = [jax.lax.map(lambda row: _power_of(row, chosen, points, method), row) for row in rows]
    every, of_all, losses = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)
    lost = jnp.sum(losses) * (1 + len(losses) * roundoff())
    return Composed(_tournament(every, chosen.log_tail), _entry(of_all, 0), chosen.order, lost, facts)


def composed_apart(compositions: list[Parts], shares: list[float], question: Question, points: int) -> list[Composed]:
    """Returns several compositions, each by itself, on lattices that are tilted alike. Concrete arguments only.

    Tilt and meshes are chosen for ``question`` about a sum in which each occurs as often as ``shares`` say.
    """
    asked, method = asked_of(question, points), METHODS[0]
    counts = [[steps for _, steps in parts] for parts in compositions]
    sizes = [sum(map(len, steps)) for steps in counts]
    whole = np.concatenate([share * steps for share, own in zip(shares, counts, strict=True) for steps in own])
    sketches = [[sketched(pairs, whole.sum(), *asked) for pairs, _ in parts] for parts in compositions]
    together = jax.tree.map(outside, joined([sketch for row in sketches for sketch in row]))
    chosen = _chosen((together,), (whole,), *asked, np.int64(0))
    windows = outside((chosen.low, chosen.high, chosen.mesh))
    found = []
    for parts, own, of_parts, end in zip(compositions, counts, sketches, np.cumsum(sizes), strict=True):
        starts = end - sum(map(len, own)) + np.cumsum([0, *map(len, own)])
        rows = [
            (*outside(part), *(leaf[start : start + len(part[1])] for leaf in windows))
            for part, start in zip(parts, starts, strict=False)
        ]
        facts = _facts([sketch.known for sketch in of_parts], own)
        found.append(_summed(rows, chosen, facts, points, method))
    return found


def asked_of(question: Question, points: float) -> tuple[Any, np.bool_, np.float64]:
    """Returns the number that a plan is made for, whether it is a delta, and the mesh points."""
    return _ordinary(question), np.bool_(isinstance(question, ForEpsilon)), np.float64(points)


def _power_of(row: Any, chosen: plan.Plan, points: int, method: str) -> tuple[LossLattice, Stages, Array]:
    pair, steps, low, high, h = row
    placed = place(pair, low, high, h, chosen.order, np.float64(points))
    return _power(
        placed, cells_of(pair, placed, points), steps, np.int64(METHODS.index(method)), chosen.order, chosen.log_weight,
        chosen.log_tail,
    )  # fmt: skip


def _summed(rows: list[Any], chosen: plan.Plan, facts: Facts, points: int, method: str) -> Composed:
    """Returns the sum of concrete losses, or of a single one, by the programs of a single one."""
    number = sum(len(row[1]) for row in rows)
    if number == 1:
        lattices, stages, lost = _power_of(_entry(rows[0], 0), chosen, points, method)
        return Composed(lattices, stages, chosen.order, lost, facts)
    # One after the other; what is not run is left out.
    run = [(row, i) for row in rows for i in np.flatnonzero(row[1]).tolist()] or [(rows[0], 0)]
    powers = [_power_of(_entry(row, i), chosen, points, method) for row, i in run]
    lattices = _tournament_of([lattices for lattices, _, _ in powers], chosen.log_tail)
    lost = np.sum(outside([lost for _, _, lost in powers]))
    return Composed(lattices, powers[0][1], chosen.order, lost * (1 + number * UNIT_ROUNDOFF), facts)


_facts = compiled(combined)


def _ordinary(question: Question) -> Any:
    """Returns a value near by that a mesh can be chosen for, at the ends of the range, which take none."""
    value = question.value
    least, most = (TINY, 1.0) if isinstance(question, ForEpsilon) else (-FARTHEST, FARTHEST)
    return np.clip(value, least, most) if is_concrete(value) else jnp.clip(value, least, most)


def _entry(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


_chosen = compiled(plan.choose)


@compiled
def _planned(
    sketches: tuple[Sketch, ...],
    counts: tuple[Array, ...],
    value: Array,
    is_epsilon: Array,
    points: Array,
    method: Array,
) -> tuple[plan.Plan, Facts]:
    chosen = plan.choose(sketches, counts, value, is_epsilon, points, method)
    return chosen, combined([sketch.known for sketch in sketches], counts)


@compiled
def _power(
    placed: Placed, cells: Cells, steps: Array, method: Array, order: Array, log_weight: Array, log_tail: Array
) -> tuple[LossLattice, Stages, Array]:
    """Returns the lattices of a loss summed ``steps`` times, their stages, and what they lost."""
    lattices, lost = measures(placed, cells, order, log_weight)
    return *self_compose(lattices, steps, method, log_tail), steps * lost


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


def _tournament_of(lattices: list[LossLattice], log_tail: Array) -> LossLattice:
    """Returns the same of concrete lattices, each (rows, n)."""
    meshes = outside([lattice.mesh for lattice in lattices])
    slots = [lattices[i] for i in np.argsort([mesh[0] for mesh in meshes], kind="stable")]
    for first, second in _pairings(len(slots)):
        slots[first] = merge(slots[first], slots[second], log_tail)
    return slots[0]


def _pairings(count: int) -> np.ndarray:
    """Returns the (count - 1, 2) slots that are merged one after the other, into the first of each."""
    slots, pairings = list(range(count)), []
    while len(slots) > 1:
        pairings += [(slots[i], slots[i + 1]) for i in range(0, len(slots) - 1, 2)]
        slots = slots[::2]
    return np.asarray(pairings)


def infinite_share(facts: Facts, lost: Array) -> Array:
    """Returns what infinite losses, and those that count as such, add to delta: (2,), at most and at least."""
    least, most = facts.infinite
    # The union bound on either, rounded up. Concrete ones need no program.
    xp = np if is_concrete(facts, lost) else jnp
    return xp.stack([xp.minimum(most + lost * (1 + 8 * roundoff()), 1.0), least])


def delta_at(lattices: LossLattice, infinite: Array, epsilon: Array) -> Array:
    """Returns delta at ``epsilon`` from above and from below, (2,), of the lattices above and below."""
    return with_infinite(jax.vmap(delta_of, in_axes=(0, None))(lattices, epsilon), infinite)


def with_infinite(finite: Array, infinite: Array) -> Array:
    """Returns delta from above and from below (2,), of the finite losses and of the infinite ones."""
    return jnp.clip(finite + infinite * (1 + jnp.array([4.0, -4.0]) * roundoff()), 0.0, 1.0)


def room_for(question: ForEpsilon, infinite: Array) -> Array:
    """Returns what infinite losses, which take their share of delta first, leave of it on either side, (2,).

    The difference rounds by one unit of delta.
    """
    return question.delta - infinite - jnp.array([1.0, -1.0]) * roundoff() * question.delta * (infinite > 0)


def bracket_of(results: Array, question: Question, facts: Facts) -> Bounds:
    """Returns the bracket that bounds (2,) from above and from below make."""
    upper, lower = jnp.where(jnp.isnan(results), jnp.array([question.worst, 0.0]), results)
    lower = jnp.minimum(lower, upper)
    found = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=jnp.asarray(False))
    bounds = question.close(found, facts)
    return replace(bounds, converged=bounds.converged | (bounds.gap <= question.tolerance))


def bounds_of(parts: Parts, question: Question, points: int, method: str) -> tuple[Bounds, Diagnostics]:
    """Returns the bracket that answers a question, for one direction, and how it came about."""
    return answer_of(composed(parts, question, points, method), question, points, method)


def answer_of(sum_: Composed, question: Question, points: int, method: str) -> tuple[Bounds, Diagnostics]:
    """Returns the bracket that a composition gives, and how it came about."""
    bounds, at = _bracket(sum_.lattices, sum_.lost, sum_.facts, question)
    return bounds, Diagnostics(
        points=points,
        method=method,
        order=sum_.order,
        stages=sum_.stages,
        slack=sum_.lattices.slack,
        shift=sum_.lattices.shift,
        lost=sum_.lost,
        **at,
    )


@compiled
def _bracket(lattices: LossLattice, lost: Array, facts: Facts, question: Question) -> tuple[Bounds, dict[str, Array]]:
    """Returns the bracket that a composition gives, and what its record says of it."""
    infinite = infinite_share(facts, lost)
    if isinstance(question, ForEpsilon):
        room = room_for(question, infinite)
        results = jax.vmap(epsilon_of)(lattices, room)
        results = at = jnp.where(room > 0, results, jnp.array([jnp.inf, 0.0]))
    else:
        results = delta_at(lattices, infinite, question.epsilon)
        at = jnp.broadcast_to(question.epsilon, (2,))
    bounds = bracket_of(results, question, facts)
    return bounds, {
        "converged": jnp.asarray(bounds.converged),
        "mesh": lattices.mesh[0],
        "start": lattices.start[0],
        "slack_delta": jax.vmap(slack_effect)(lattices, at),
        "infinite_mass": facts.infinite[1],
    }
