"""Answers from the few frequencies of a sum, on one mesh for all steps; of concrete arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts, combined
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.precision import outside
from jaxacct.programs import compiled
from jaxacct.prv.compose import METHODS, STAGES, Stages
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.discretize import cells_of
from jaxacct.prv.frequencies import BLOCKS, Moments, moments_of, sums_of
from jaxacct.prv.kernel import bracket_of, infinite_share, room_for, with_infinite
from jaxacct.prv.outline import Outline, outline, spacing_of
from jaxacct.prv.parseval import bounds_on_delta, bounds_on_epsilon
from jaxacct.prv.placing import place_apart
from jaxacct.prv.sketch import side_by_side, sketches_of
from jaxacct.pytrees import of_each
from jaxacct.question import ForEpsilon, Question


@compiled(static=("points",))
def answers(
    points: int, parts: Parts, mesh: Array, chosen: Outline, facts: Facts, questions: Question
) -> tuple[Bounds, dict[str, Array]]:
    """Returns the brackets that answer questions (n,) of one kind, and what their records say.

    Of each loss of ``parts`` ``points`` are taken, ``mesh`` apart where they are densest.
    """
    ends = np.cumsum([len(steps) for _, steps in parts])
    rows = [
        _moments(points, pairs, steps, mesh, _rows(chosen, slice(end - len(steps), end)))
        for end, (pairs, steps) in zip(ends, parts, strict=True)
    ]
    every = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
    steps = jnp.concatenate([steps for _, steps in parts])
    return _read(points, every, steps, mesh, chosen.order, chosen.log_tail, facts, questions)


def _rows(chosen: Outline, which: slice) -> Outline:
    """Returns what is chosen for some of the losses."""
    return Outline(*(leaf[which] if np.ndim(leaf) else leaf for leaf in chosen))


def _moments(points: int, pairs: DominatingPair, steps: Array, mesh: Array, chosen: Outline) -> Moments:
    """Returns the moments of losses (m,)."""
    of_rows: list[Any] = [leaf if np.ndim(leaf) else None for leaf in chosen]
    of_all: list[Any] = [None if np.ndim(leaf) else leaf for leaf in chosen]

    def one(row: tuple[DominatingPair, list[Any]], given: tuple[Array, list[Any]]) -> Moments:
        (pair, of_row), (mesh, of_all) = row, given
        own = Outline(*(b if a is None else a for a, b in zip(of_row, of_all, strict=True)))
        spacing, begin = _spaced(points, mesh, own)
        placed = place_apart(points, pair, begin, own.high, mesh, own.order, spacing)
        return moments_of(placed, cells_of(pair, placed, points), own.order, own.log_weight)

    return side_by_side(one, steps, (pairs, of_rows), (mesh, of_all))


@compiled(static=("points",))
def _spaced(points: int, mesh: Array, chosen: Outline) -> tuple[Array, Array]:
    return spacing_of(chosen, mesh, BLOCKS, points // BLOCKS)


@compiled(static=("points",))
def _read(
    points: int, rows: Moments, steps: Array, mesh: Array, order: Array, log_tail: Array, facts: Facts,
    questions: Question,
) -> tuple[Bounds, dict[str, Array]]:  # fmt: skip
    sums = sums_of(rows, steps, mesh, order, log_tail, points)
    infinite = infinite_share(facts, sums.lost)

    def one(question: Question) -> Bounds:
        if isinstance(question, ForEpsilon):
            room = room_for(question, infinite)
            results = bounds_on_epsilon(sums, mesh, order, room)
            results = jnp.where(room > 0, results, jnp.array([jnp.inf, 0.0]))
        else:
            results = with_infinite(bounds_on_delta(sums, mesh, order, question.epsilon), infinite)
        return bracket_of(results, question, facts)

    record = {
        "slack": sums.slack, "shift": sums.shift, "lost": sums.lost, "points": sums.points,
        "start": sums.place + mesh * sums.first,
    }  # fmt: skip
    return of_each(one)(questions), record


@compiled
def outlined(
    parts: Parts, value: Array, is_epsilon: Array, goal: tuple[Array, Array], points: Array
) -> tuple[Outline, Facts, Array]:
    """Returns what is chosen and what is known, and whether a loss has atoms, which evolving meshes keep on points."""
    counts = tuple(steps for _, steps in parts)
    total = sum((steps.sum() for steps in counts), jnp.zeros(()))
    sketches = tuple(sketches_of(part, total, value, is_epsilon, points) for part in parts)
    of_parts = zip(sketches, counts, strict=True)
    have_atoms = [jnp.isfinite(sketch.anchors[:, 0]) & (steps > 0) for sketch, steps in of_parts]
    return *_outlined(sketches, counts, value, is_epsilon, goal), jnp.any(jnp.concatenate(have_atoms))


@compiled
def _outlined(
    sketches: tuple[Any, ...], counts: tuple[Array, ...], value: Array, is_epsilon: Array, goal: tuple[Array, Array]
) -> tuple[Outline, Facts]:
    chosen = outline(sketches, counts, value, is_epsilon, goal)
    return chosen, combined([sketch.known for sketch in sketches], counts)


SIZES = tuple(sorted({2**i for i in range(8, 18)} | {3 * 2**i for i in range(7, 16)}))
"""Mesh points of a step to choose from."""

MARGIN = 4
"""Points for the placing of a lattice by whole points, and for its last one."""


SPARE = 1.2
"""More points than a window takes: blocks end where they must."""


def solved(
    points: int, parts: Parts, chosen: Outline, facts: Facts, question: Question, values: Sequence[Any]
) -> tuple[list[Bounds], Diagnostics]:
    """Returns the brackets that answer a question at some values, and the record of the first."""
    with np.errstate(invalid="ignore"):  # of a direction that has no window nothing will be known
        mesh = chosen.mesh * np.max(chosen.points) * SPARE / (points - MARGIN)
    brackets, seen = outside(answers(points, parts, mesh, chosen, facts, question.at(np.asarray(values))))
    ends: Any = brackets.lower, brackets.estimate, brackets.upper, brackets.converged
    every = [Bounds(*row) for row in zip(*ends, strict=True)]
    row: Any = np.zeros(STAGES)
    row[0] = 1.0
    one: Any = np.int64(1)
    copies = sum(np.sum(steps) for _, steps in parts)
    stages = Stages(one, row * mesh, row * seen["start"], row * copies, row * min(seen["slack"][0], 1e300))
    return every, Diagnostics(
        method=METHODS[0], points=int(seen.pop("points")), order=chosen.order, stages=stages, mesh=mesh,
        slack_delta=seen["slack"], infinite_mass=facts.infinite[1], converged=ends[3][0], **seen,
    )  # fmt: skip
