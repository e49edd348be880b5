"""From the directions of a relation to one answer, as tight as was asked, by any composer of laws.

A relation such as add-or-remove has several directions, each with dominating pairs of its own; its delta, and its
epsilon, are the largest of theirs. A composer (:class:`Composer`) proves a bracket of one direction from the laws of
its pairs (:func:`.composition.laws_for`), the tighter the larger it is. Concrete arguments are answered by larger and
larger sizes; inside a trace the size is fixed beforehand.

In reading order: :class:`Composer`; :func:`within` and :func:`at_size`, for concrete arguments; :func:`in_trace`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, ForDelta, ForEpsilon, Parts, Question, facts_of, laws_for
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.numerics import batched_loops
from jaxacct.numerics.batched_loops import stack
from jaxacct.numerics.precision import leave_scope

Size = Any
"""A size of a composer, hashable: part of its programs."""

Answer = tuple[Bounds, Any]
"""A bracket, and the composer's record of it: None, or a dataclass with the bracket's flag ``converged``."""

Goal = float | tuple[float, float]
"""The gap wanted of an answer: relative to its upper end, or as errors of epsilon and of delta."""


class ToleranceWarning(UserWarning):
    """The bracket is valid, but wider than the tolerance asked for."""


@dataclass(frozen=True)
class Composer:
    """A way from laws to brackets, of which one compiled program serves all mechanisms."""

    sizes: tuple[Size, ...]
    """Sizes that may be chosen, from small to large."""
    shares: tuple[float, ...]
    """The gap that is foreseen for each size, over that of the first. Speed only."""
    cells: Callable[[Size], int]
    """Number of atoms of the laws for a size."""
    lanes: Callable[[Size], int]
    """Number of lanes of a batch that are worked on side by side on devices other than CPUs. Speed and memory only."""
    answers: Callable[[Size, Atoms, Array, Question, Facts], Answer]
    """The program: brackets of the answers to questions (n,) of one kind, and the record of the first."""
    rough: Callable[[Parts, Question], tuple[Array, Array]] | None = None
    """Bounds that need no composing, for where the first size says hardly anything."""


# ----------------------------------------------------------------------------------------------------
# Concrete arguments: larger and larger sizes.
# ----------------------------------------------------------------------------------------------------


class _Found:
    """The brackets of a relation's directions, as far as they have been needed; for concrete arguments only.

    ``answers`` has, by direction, the bracket and its record; ``beside`` the brackets at an error below and above the
    value asked at, where the goal is errors.
    """

    def __init__(self, composer: Composer, directions: list[Parts], question: Question, goal: Goal):
        self.composer, self.directions, self.question, self.goal = composer, directions, question, goal
        self.answers: dict[int, Answer] = {}
        self.beside: dict[int, list[Bounds]] = {}

    def improve(self, size: Size) -> None:
        """Narrows, by a composer of a size, the brackets of those directions that may be the largest."""
        # One direction at a time, so that the one solved last is skipped where the others' lower ends rule it out.
        for i in range(len(self.directions)):
            threshold = max((bounds.lower for bounds, _ in self.answers.values()), default=0.0)
            old = self.answers.get(i)
            if old is None or old[0].upper > threshold:
                (new, *self.beside[i]), record = self.solve(i, size)
                # Both brackets hold, so their intersection does; the larger size gives the estimate.
                self.answers[i] = new if old is None else replace(old[0], converged=False).intersection(new), record

    def solve(self, which: int, size: Size) -> tuple[list[Bounds], Any]:
        """Returns the brackets that answer all questions of a direction, and the record of the first."""
        parts, values = self.directions[which], self.question.at(np.asarray(self.values(), np.float64))
        laws, counts = laws_for(self.composer.cells(size), parts, self.question)
        bounds, record = leave_scope(self.composer.answers(size, laws, counts, values, facts_of(parts)))
        ends: Any = bounds.lower, bounds.estimate, bounds.upper, bounds.converged
        return [Bounds(*row) for row in zip(*ends, strict=True)], record

    def values(self) -> list[Any]:
        """Returns the value asked at and, if the goal is errors, the values an error below and above it."""
        value = self.question.value
        if not isinstance(self.goal, tuple):
            return [value]
        step = self.goal[isinstance(self.question, ForEpsilon)]
        return [value, max(value - step, 0.0), value + step]

    def excess(self) -> float:
        """Returns the gap between the bounds over the goal: at most 1 where the goal is reached.

        With errors (a, b), and e(d) for epsilon at delta d: upper <= e(d - b) + a if the upper end is at most a above
        the lower end at d - b, and lower >= e(d + b) - a if the upper end at d + b is at most a above the lower end.
        The same holds for delta with the roles of a and b exchanged.
        """
        every = [bounds for bounds, _ in self.answers.values()]
        lower, upper = max(b.lower for b in every), max(b.upper for b in every)
        if lower == upper:
            return 0.0
        if not isinstance(self.goal, tuple):
            return float(Bounds(lower=lower, estimate=lower, upper=upper).gap) / self.goal
        before = max(below.lower for below, _ in self.beside.values())
        after = max(above.upper for _, above in self.beside.values())
        apart = max(upper - before, after - lower) / self.goal[not isinstance(self.question, ForEpsilon)]
        return float(apart) if np.isfinite(apart) else float("inf")

    def narrow(self, rough: Callable[[Parts, Question], tuple[Array, Array]]) -> None:
        """Intersects each bracket with bounds that need no composing."""
        for i, (bounds, record) in self.answers.items():
            lower, upper = leave_scope(rough(self.directions[i], self.question))
            simple = Bounds(lower=lower, estimate=bounds.estimate, upper=upper, converged=False)
            self.answers[i] = simple.intersection(bounds), record

    def largest(self) -> Answer:
        """Returns the bracket of the largest direction, and the record of the one with the largest upper end.

        It has converged where both ends are one number, be it infinite, or are as near as was asked.
        """
        every = [bounds for bounds, _ in self.answers.values()]
        _, record = max(self.answers.values(), key=lambda answer: float(answer[0].upper))
        converged = np.asarray(self.excess() <= 1)[()]
        bounds = Bounds(
            lower=max(b.lower for b in every),
            estimate=max(b.estimate for b in every),
            upper=max(b.upper for b in every),
            converged=converged,
        )
        return bounds, record if record is None else replace(record, converged=converged)


def at_size(composer: Composer, directions: list[Parts], question: Question, size: Size) -> Answer:
    """Returns the answer of concrete arguments by a composer of one size."""
    found = _Found(composer, directions, question, question.tolerance)
    found.improve(size)
    return found.largest()


def within(
    composer: Composer, directions: list[Parts], question: Question, goal: Goal, *, quiet: bool = False
) -> Answer:
    """Returns the answer of concrete arguments by the smallest size found to reach a goal; warns where none does.

    The first two sizes tell how far the gap has to fall, and whether it does. A direction whose upper end lies below
    another's lower end needs no refinement. ``quiet`` leaves the warning to the caller.
    """
    # Factor by which the gap foreseen for a size must lie below the goal for it to be chosen. Speed only.
    safety = 1.5
    # Least share of a gap that one step may be foreseen to leave, before another look at the gap. Speed only.
    farthest = 2.0**-8
    found, sizes, shares = _Found(composer, directions, question, goal), composer.sizes, composer.shares
    which, previous, stalls = 0, float("inf"), 0
    # Each round intersects the brackets with those of a larger size, so they only narrow.
    while True:
        found.improve(sizes[which])
        bounds, record = found.largest()
        if float(bounds.gap) >= 0.5 and which == 0 and composer.rough is not None:
            # The bracket that needs no composing may be all that is asked, or rule out a direction.
            found.narrow(composer.rough)
            bounds, record = found.largest()
        gap, excess = float(bounds.gap), found.excess()
        # Where only rounding, truncation or the two laws themselves are left of the gap a larger size does not help:
        # two stalls tell.
        stalls += 0.8 * previous < gap
        if bounds.converged or stalls == 2 or which == len(sizes) - 1:
            break
        # A gap far above the goal is a poor guide to how it will fall: 0.3 caps what is read from it.
        wanted = 1 / (safety * excess * min(0.3 / gap, 1.0)) if np.isfinite(gap) else 0.0
        # Whether a larger size helps at all is seen at the next one, which costs least.
        later = range(which + 1, which + 2 if which == 0 else len(sizes))
        enough = (i for i in later if shares[i] <= shares[which] * max(wanted, farthest))
        which, previous = next(enough, later[-1]), gap
    if not bounds.converged and not quiet:
        warn_of(question, gap, goal)
    return bounds, record


def warn_of(question: Question, gap: float, goal: Goal) -> None:
    """Warns that a goal was not reached."""
    asked = "the errors" if isinstance(goal, tuple) else f"the {goal:.1e}"
    validation.warn_caller(
        f"{question.name} is known to a relative gap of {gap:.1e}, not {asked} asked for: the bracket is valid and "
        "as wide as it says.",
        ToleranceWarning,
    )


# ----------------------------------------------------------------------------------------------------
# Traces: one size.
# ----------------------------------------------------------------------------------------------------


def in_trace(composer: Composer, directions: list[Parts], question: Question, size: Size) -> Answer:
    """Returns the answer inside a trace, or those to questions (n,) that share a law.

    All directions are one mapped composer, and pairs of one structure one law. On devices other than CPUs the lanes of
    a batch are worked on side by side.
    """
    one = functools.partial(_of_directions, composer, size)
    return batched_loops.in_lanes(one, most=composer.lanes(size))(directions, question)


def _of_directions(composer: Composer, size: Size, directions: list[Parts], question: Question) -> Answer:
    is_one = not question.value.ndim
    questions = question.at(jnp.atleast_1d(question.value))
    # A law resolves tails for the least delta of all.
    hardest = questions.at(jnp.max(questions.value) if isinstance(question, ForDelta) else jnp.min(questions.value))

    def describe(parts: Parts) -> tuple[Atoms, Array, Facts]:
        return *laws_for(composer.cells(size), parts, hardest), facts_of(parts)

    def answer(row: tuple[Atoms, Array, Facts]) -> Answer:
        laws, counts, facts = row
        bounds, record = composer.answers(size, laws, counts, questions, facts)
        return jax.tree.map(operator.itemgetter(0), bounds) if is_one else bounds, record

    if len(directions) == 1:
        return answer(describe(directions[0]))
    if len({jax.tree.structure(parts) for parts in directions}) > 1:
        rows = _stack_rows([describe(parts) for parts in directions])
    else:
        rows = jax.lax.map(describe, stack(*directions))
    batch = jax.lax.map(answer, rows)
    every = [jax.tree.map(operator.itemgetter(i), batch) for i in range(len(directions))]
    return functools.reduce(functools.partial(_larger, question.tolerance), every)


def _stack_rows(rows: Sequence[tuple[Atoms, Array, Facts]]) -> Any:
    """Returns the laws, counts and facts of several directions as one, filled up with atoms, and rows, of no mass."""
    longest = max(laws.losses.shape[-1] for laws, _, _ in rows)
    most = max(len(counts) for _, counts, _ in rows)
    filled = []
    # Facts that some directions know without numbers become numbers: no infinite losses, and no bounds.
    for laws, counts, facts in rows:
        missing = most - len(counts)
        wider = [jnp.pad(leaf, [(0, missing), *[(0, 0)] * (leaf.ndim - 1)]) for leaf in laws.fill(longest)]
        laws = Atoms(*wider)
        filled.append((laws, jnp.pad(counts, (0, missing)), facts.in_numbers()))
    return stack(*filled)


def _larger(tolerance: float, first: Answer, second: Answer) -> Answer:
    (a, record), (b, other) = first, second
    decides = b.upper > a.upper
    bounds = Bounds(
        lower=jnp.maximum(a.lower, b.lower),
        estimate=jnp.maximum(a.estimate, b.estimate),
        upper=jnp.maximum(a.upper, b.upper),
        converged=a.converged & b.converged,
    )
    # It is enough that the direction that decides is tight.
    bounds = replace(bounds, converged=bounds.converged | (bounds.gap <= tolerance))
    return bounds, jax.tree.map(lambda x, y: jnp.where(decides, y, x), record, other)
