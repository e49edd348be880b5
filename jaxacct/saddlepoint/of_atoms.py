"""The accountant of discretized losses: a bracket of any composition of pairs, by the contour over atoms.

The exact accountant knows the losses of some mechanisms, and its integrals converge for most settings. This one needs
no more of a loss than two discrete laws beside it (:mod:`jaxacct.mechanisms.atoms`), so it has a bracket for every
mechanism, and one program composes the laws of all of them (:mod:`.composer`). The gap is that of the laws and of a
smoothing, and falls with both sizes: :data:`LADDER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds, zero
from jaxacct.composition import (
    Facts,
    ForDelta,
    ForEpsilon,
    Parts,
    Question,
    bracket_of,
    directed_parts,
    facts_of,
    is_out_of_range,
    laws_for,
    runs_nothing,
    unknown,
)
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.precision import as_float64, is_concrete, leave_scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.vmapped_loops import rows
from jaxacct.refinement import Composer, Goal, in_trace, within
from jaxacct.saddlepoint import composer


class Size(NamedTuple):
    """A size of the composer."""

    cells: int
    """About how many atoms a law has."""
    side: int
    """Number of powers in each of the two tables of frequencies."""


LADDER = (Size(1024, 32), Size(4096, 64), Size(16384, 256))
"""Sizes, from small to large. Tightness and speed only."""

SHARES = (1.0, 2.0**-4, 2.0**-8)
"""About the gaps of these sizes, over that of the first. Speed only."""


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
    shares=SHARES,
    cells=lambda size: size.cells,
    # Two tables of a side's powers for each atom, in both directions: a gigabyte. Speed and memory only.
    lanes=lambda size: max(2**25 // (size.cells * size.side), 1),
    answers=answers,
)
"""The contour over atoms, as a composer of laws."""

OF_ATOMS = replace(CONTOUR, sizes=(LADDER[0], Size(1024, 256), LADDER[-1]), shares=(1.0, 2.0**-9, 2.0**-11))
"""The same for losses that have most of their mass in atoms: what they lose is lost by smoothing."""


def answer(mechanism: Any, steps: Any, question: Question, relation: Relation, goal: Goal | None = None) -> Bounds:
    """Returns the bracket of a composition; arguments are checked, and the scope of float64 is entered.

    ``goal`` is the gap wanted of concrete arguments. By default it is a twentieth of the question's own, and for losses
    with atoms a thousandth of that: either is reached in a tenth of a second by nearly all. Whether it is reached is
    left to the caller.
    """
    directions = directed_parts(mechanism, steps, relation)
    if not is_concrete(mechanism, steps, question):
        return in_trace(CONTOUR, directions, question.at(as_float64(question.value)), LADDER[0])[0]
    if runs_nothing(directions):
        return zero()
    if is_out_of_range(directions):
        return leave_scope(unknown(question))
    question, is_atomic = question.at(np.asarray(question.value, np.float64)), _has_atoms(directions)
    aimed = question.tolerance / (20_000 if is_atomic else 20)
    return within(OF_ATOMS if is_atomic else CONTOUR, directions, question, goal or aimed, quiet=True)[0]


def _has_atoms(directions: Sequence[Parts]) -> bool:
    """Returns whether the losses of all pairs are known, and have atoms."""
    return all((law := pair.law()) is not None and law.recurring > 0 for parts in directions for pair, _ in parts)


ROW = 8
"""Number of deltas of a curve that share a law: it resolves tails for the smallest. Tightness and speed only."""


def curve(mechanism: Any, steps: Any, epsilons: np.ndarray, relation: Relation) -> Bounds:
    """Returns brackets on delta at epsilons (n,) of a composition, of concrete arguments, by the first size."""
    directions, order = directed_parts(mechanism, steps, relation), np.argsort(epsilons)
    if is_out_of_range(directions):
        return leave_scope(unknown(ForDelta(epsilons)))
    every = []
    # Rows of neighbours, of one length, the last one padded: one program serves any number of epsilons.
    for row in rows(epsilons[order], ROW):
        each = []
        # The largest delta of all directions counts.
        for parts in directions:
            laws, counts = laws_for(LADDER[0].cells, parts, ForDelta(np.max(row)))
            each.append(leave_scope(answers(LADDER[0], laws, counts, ForDelta(row), facts_of(parts))[0]))
        every.append(jax.tree.map(lambda *leaves: np.max(leaves, axis=0), *each))
    found = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: epsilons.size][np.argsort(order)], *every)
    return replace(found, converged=found.gap <= ForDelta.tolerance)
