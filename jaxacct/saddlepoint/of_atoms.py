"""The accountant of discretized losses: a bracket of any composition of pairs, by the contour over atoms.

The exact accountant knows the losses of some mechanisms, and its integrals converge for most settings. This one needs
no more of a loss than two discrete laws beside it (:mod:`jaxacct.mechanisms.atoms`), so it has a bracket for every
mechanism, and one program composes the laws of all of them (:mod:`.composer`). The gap is that of the laws and of a
smoothing, and falls with both sizes: :data:`LADDER`.

Smoothing costs a share of the distance between sums of losses: little of many runs, and much of few, or rare, losses
on a lattice, whatever the size. A mesh has no smoothing, and needs a stage for every few runs, each of which costs. So
one of its sizes is a step of the ladder, before the largest contour (:func:`ladder_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds, zero
from jaxacct.composition import (
    Facts,
    ForDelta,
    ForEpsilon,
    Parts,
    Query,
    Question,
    bracket_of,
    facts_of,
    is_out_of_range,
    laws_for,
    runs_nothing,
    unknown,
)
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.numerics.arithmetic import arithmetic
from jaxacct.numerics.batched_loops import padded_rows
from jaxacct.numerics.precision import as_float64, leave_scope
from jaxacct.numerics.programs import compiled
from jaxacct.prv.accountant import mesh_of
from jaxacct.prv.evolving import Method
from jaxacct.refinement import Composer, in_trace, refine
from jaxacct.saddlepoint import composer


class Size(NamedTuple):
    """A size of the composer."""

    cells: int
    """About how many atoms a law has."""
    side: int
    """Number of powers in each of the two tables of frequencies."""


LADDER = (Size(1024, 32), Size(4096, 64), Size(16384, 256))
"""Sizes, from small to large. Tightness and speed only."""


@compiled(static=("size",))
def answers(size: Size, laws: Atoms, counts: Array, questions: Question, facts: Facts) -> tuple[Bounds, None]:
    """Returns the brackets that answer questions (n,) of one kind for one direction."""
    verb = composer.epsilon if isinstance(questions, ForEpsilon) else composer.delta

    def answer(question: Question) -> Bounds:
        return bracket_of(*verb(laws, counts, question.value, side=size.side), question, facts)

    if len(questions.value) == 1:
        return jax.tree.map(lambda leaf: leaf[None], answer(questions.at(questions.value[0]))), None
    # One question after the other: each ends with its own lines.
    return jax.lax.map(answer, questions), None


CONTOUR = Composer(
    sizes=LADDER,
    # About the gaps of these sizes, over that of the first. Speed only.
    shares=(1.0, 2.0**-4, 2.0**-8),
    cells=lambda size: size.cells,
    # Two tables of a side's powers for each atom, in both directions: a gigabyte. Speed and memory only.
    lanes=lambda size: max(2**25 // (size.cells * size.side), 1),
    answers=answers,
)
"""The contour over atoms, as a composer of laws."""

MESH = mesh_of(Method.RECURSIVE)
"""The mesh, as a composer of laws; its sizes are numbers of points."""

POINTS = 2**15
"""Points of the ladders' mesh. Tightness and speed only."""


def ladder_of(is_atomic: bool, points: int) -> Composer:
    """Returns the composers of both kinds in turn, by what they take: the contour but for one mesh of ``points``.

    Every size proves a bracket of the same number from laws of the same pairs, and a larger one is intersected with
    those before it. The contour's second size is enough for nearly all, in some tens of milliseconds; its last one
    takes ten times as long, and the mesh between the two about as long as the second. Losses that have most of their
    mass in atoms lose by smoothing alone, so more frequencies come before more cells.
    """
    # A contour's gap says nothing of a mesh's: the ladder takes that to be enough.
    sizes: tuple[Size | int, ...]
    shares: tuple[float, ...]
    if is_atomic:
        sizes = LADDER[0], Size(1024, 256), points, Size(4096, 256), LADDER[-1]
        shares = 1.0, 2.0**-9, 2.0**-20, 2.0**-23, 2.0**-24
    else:
        sizes, shares = (*LADDER[:2], points, LADDER[-1]), (*CONTOUR.shares[:2], 2.0**-20, 2.0**-24)
    return replace(
        CONTOUR,
        sizes=sizes,
        shares=shares,
        cells=lambda size: MESH.cells(size) if isinstance(size, int) else size.cells,
        answers=lambda size, *run: (MESH if isinstance(size, int) else CONTOUR).answers(size, *run),
    )


def answer(query: Query) -> Bounds:
    """Returns the bracket of a composition; arguments are checked, and the scope of float64 is entered.

    The gap wanted of concrete arguments is the query's tolerance, and without one a twentieth of the question's own, or
    for losses with atoms a ten thousandth: either is reached in some tenths of a second by nearly all. Whether it is
    reached is left to the caller. Concrete arguments may take a mesh of the query's points.
    """
    directions, question = query.directions, query.question
    if not query.is_concrete:
        return _of_first_size(directions, question.at(as_float64(question.value)))
    if runs_nothing(directions):
        return zero()
    if is_out_of_range(directions):
        return leave_scope(unknown(question))
    question, is_atomic = question.at(np.asarray(question.value, np.float64)), _has_atoms(directions)
    aimed = query.tolerance or question.tolerance / (10_000 if is_atomic else 20)
    return refine(ladder_of(is_atomic, query.points or POINTS), directions, question, aimed, quiet=True)[0]


def _of_first_size(directions: list[Parts], question: Question) -> Bounds:
    """Returns the bracket inside a trace; in float32, where atoms are not certified, the trivial one."""
    if not arithmetic().has_transforms:
        return unknown(question)
    bounds: Bounds = in_trace(CONTOUR, directions, question, LADDER[0])[0]
    return bounds


def _has_atoms(directions: Sequence[Parts]) -> bool:
    """Returns whether the losses of all pairs have atoms."""
    laws = ((pair, pair.law()) for parts in directions for pair, _ in parts)
    return all(isinstance(pair, FinitePair) if law is None else law.recurring > 0 for pair, law in laws)


ROW = 8
"""Number of deltas of a curve that share a law: it resolves tails for the smallest. Tightness and speed only."""


def curve(query: Query) -> Bounds:
    """Returns brackets on delta at epsilons (n,) of a composition, by the first size.

    Outside of a trace a mesh answers what that leaves open.
    """
    directions, epsilons = query.directions, query.question.value
    if not query.is_concrete:
        return _curve_in_trace(directions, as_float64(epsilons))
    order = np.argsort(epsilons)
    if is_out_of_range(directions):
        return leave_scope(unknown(ForDelta(epsilons)))
    every = []
    # Rows of neighbours, of one length, the last one padded: one program serves any number of epsilons.
    for row in padded_rows(epsilons[order], ROW):
        bounds = _at_size(LADDER[0], directions, row)
        if np.any(bounds.gap > ForDelta.tolerance):
            bounds = bounds.intersection(_at_size(POINTS, directions, row))
        every.append(bounds)
    bounds = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: epsilons.size][np.argsort(order)], *every)
    return replace(bounds, converged=bounds.gap <= ForDelta.tolerance)


def _at_size(size: Size | int, directions: Sequence[Parts], epsilons: np.ndarray) -> Bounds:
    """Returns brackets on delta at concrete epsilons (n,), which share a law, by a contour's size or a mesh's."""
    chosen, each = MESH if isinstance(size, int) else CONTOUR, []
    # The largest delta of all directions counts.
    for parts in directions:
        laws, counts = laws_for(chosen.cells(size), parts, ForDelta(np.max(epsilons)))
        each.append(leave_scope(chosen.answers(size, laws, counts, ForDelta(epsilons), facts_of(parts))[0]))
    bounds: Bounds = jax.tree.map(lambda *leaves: np.max(leaves, axis=0), *each)
    return bounds


def _curve_in_trace(directions: list[Parts], epsilons: Array) -> Bounds:
    """Returns the brackets at epsilons (n,), which share a law in rows of neighbours: best where they increase."""
    count = epsilons.shape[0]
    padded = jnp.pad(epsilons, (0, -count % ROW), mode="edge").reshape(-1, ROW)
    every = jax.lax.map(lambda row: _of_first_size(directions, ForDelta(row)), padded)
    bounds: Bounds = jax.tree.map(lambda leaf: leaf.reshape(-1)[:count], every)
    return bounds
