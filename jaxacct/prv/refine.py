"""From the directions of a relation to one answer, on lattices fine enough for the gap asked for."""

from __future__ import annotations

import functools
import operator
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct import by_work
from jaxacct.batching import stack
from jaxacct.bounds import Bounds
from jaxacct.composition import Parts
from jaxacct.precision import outside
from jaxacct.prv import kernel
from jaxacct.prv.coarse import without_composing
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.kernel import LEAST, aimed_at, answers
from jaxacct.question import ForEpsilon, Question

MOST = 2**17
"""Most points of each loss where a tolerance is given, from :data:`.kernel.LEAST` on by powers of two."""

GROWTH = 16
"""By how much the number of points grows at most before another look at the gap."""

SAFETY = 1.5
"""By how much the gap foreseen for a lattice must lie below the tolerance for it to be chosen."""

Answer = tuple[Bounds, Diagnostics]

Goal = float | tuple[float, float]
"""What is wanted of an answer: a relative gap, or errors of epsilon and of delta."""


class ToleranceWarning(UserWarning):
    """The bracket is valid, but wider than the tolerance asked for."""


class _Found:
    """The brackets of a relation's directions, as far as they have been needed; of concrete arguments."""

    def __init__(self, directions: list[Parts], question: Question, goal: Goal, aim: kernel.Goal):
        self.directions, self.question, self.goal, self.aim = directions, question, goal, aim
        self.answers: dict[int, Answer] = {}
        self.beside: dict[int, list[Bounds]] = {}

    def improve(self, points: int) -> None:
        """Narrows, by lattices of so many points, the brackets of those directions that may be the largest."""
        for i in range(len(self.directions)):
            threshold = max((bounds.lower for bounds, _ in self.answers.values()), default=0.0)
            old = self.answers.get(i)
            if old is None or old[0].upper > threshold:
                (new, *self.beside[i]), record = self.solved(i, points)
                # The finer lattice has the estimate.
                self.answers[i] = new if old is None else replace(old[0], converged=False).intersection(new), record

    def solved(self, which: int, points: int) -> tuple[list[Bounds], Diagnostics]:
        """Returns the brackets that answer all questions of a direction, and the record of the first."""
        values = self.question.at(np.asarray(self.values(), np.float64))
        bounds, record = outside(answers(points, self.directions[which], values, self.aim))
        ends: Any = bounds.lower, bounds.estimate, bounds.upper, bounds.converged
        return [Bounds(*row) for row in zip(*ends, strict=True)], record

    def values(self) -> list[Any]:
        """Returns what is asked at, and an error below and above it if the goal is errors."""
        value = self.question.value
        if not isinstance(self.goal, tuple):
            return [value]
        step = self.goal[isinstance(self.question, ForEpsilon)]
        return [value, max(value - step, 0.0), value + step]

    def excess(self) -> float:
        """Returns how many times the goal the brackets are apart.

        With errors (a, b), and e(d) for epsilon, at delta d: upper <= e(d - b) + a and lower >= e(d + b) - a if the
        upper end is at most a above the lower one at d - b, and that at d + b likewise above the lower end. Of delta
        alike.
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

    def narrow(self) -> None:
        """Adds what is known without a mesh, which is little but holds where a mesh says nothing."""
        for i, (bounds, record) in self.answers.items():
            lower, upper = without_composing(self.directions[i], self.question)
            rough = Bounds(lower=lower, estimate=bounds.estimate, upper=upper, converged=False)
            self.answers[i] = rough.intersection(bounds), record

    def largest(self) -> Answer:
        """Returns the larger of the brackets, and the record of the one with the largest upper end.

        It has converged where both ends are one number, be it infinite, or as near as was asked.
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
        return bounds, replace(record, converged=converged)


def at_points(directions: list[Parts], question: Question, points: int) -> Answer:
    """Returns the answer of concrete arguments by lattices of ``points`` points."""
    found = _Found(directions, question, question.tolerance, aimed_at(type(question), points))
    found.improve(points)
    return found.largest()


def traced(directions: list[Parts], question: Question, points: int) -> Answer:
    """Returns the answer inside a trace; directions of one structure share their code, and lanes of a batch a block."""
    return by_work.in_lanes(functools.partial(_traced, points=points))(directions, question)


def _traced(directions: list[Parts], question: Question, points: int) -> Answer:
    goal = aimed_at(type(question), points)
    questions = question.at(question.value[None])

    def answer(parts: Parts) -> Answer:
        bounds, record = answers(points, parts, questions, goal)
        return jax.tree.map(operator.itemgetter(0), bounds), record

    if len({jax.tree.structure(parts) for parts in directions}) > 1 or len(directions) == 1:
        every = [answer(parts) for parts in directions]
    else:
        batch = jax.lax.map(answer, stack(*directions))
        every = [jax.tree.map(operator.itemgetter(i), batch) for i in range(len(directions))]
    return functools.reduce(functools.partial(_larger, question.tolerance), every)


def _larger(tolerance: float, first: Answer, second: Answer) -> Answer:
    (a, record), (b, other) = first, second
    decides = b.upper > a.upper
    bounds = Bounds(
        lower=jnp.maximum(a.lower, b.lower),
        estimate=jnp.maximum(a.estimate, b.estimate),
        upper=jnp.maximum(a.upper, b.upper),
        converged=a.converged & b.converged,
    )
    # The direction that decides may be tight, and the other one need not be.
    bounds = replace(bounds, converged=bounds.converged | (bounds.gap <= tolerance))
    return bounds, jax.tree.map(lambda x, y: jnp.where(decides, y, x), record, other)


def within(directions: list[Parts], question: Question, goal: Goal) -> Answer:
    """Returns the answer of concrete arguments by the smallest lattices found to reach a goal.

    The first ones tell how far the gap has to fall; it falls with the square of the mesh as long as rounding and
    truncation do not count. A direction whose upper end lies below the other's lower one needs no refinement.
    """
    aim = (0.0, goal[not isinstance(question, ForEpsilon)]) if isinstance(goal, tuple) else (goal, 0.0)
    found, points = _Found(directions, question, goal, (np.float64(aim[0]), np.float64(aim[1]))), LEAST
    previous, stalls, is_narrowed = float("inf"), 0, False
    while True:
        found.improve(points)
        bounds, record = found.largest()
        if float(bounds.gap) >= 0.5 and not is_narrowed:
            # What is known without a lattice may be all that is asked, or rule out a direction.
            found.narrow()
            bounds, record = found.largest()
            is_narrowed = True
        gap, excess = float(bounds.gap), found.excess()
        # A finer lattice cannot help where rounding or truncation is what is left: where it has twice not helped.
        stalls += 0.8 * previous < gap
        if bounds.converged or stalls == 2 or points == MOST:
            break
        # From afar the gap says little of where it will fall.
        finer = points * (SAFETY * excess * min(0.3 / gap, 1.0)) ** 0.5 if np.isfinite(gap) else MOST
        least = min(max(finer, points + 1), GROWTH * points, MOST)
        points, previous = 1 << (int(np.ceil(least)) - 1).bit_length(), gap
    if not bounds.converged:
        _warn(question, gap, goal)
    return bounds, record


def nothing_known(question: Question, goal: Goal | None) -> Bounds:
    """Returns the bracket of pairs that are not valid, of which no mesh knows more; warns where a goal is given."""
    worst = np.float64(question.worst)
    if goal is not None:
        _warn(question, worst, goal)
    return Bounds(lower=np.float64(0.0), estimate=worst / 2, upper=worst, converged=np.bool_(False))


def _warn(question: Question, gap: float, goal: Goal) -> None:
    asked = "the errors" if isinstance(goal, tuple) else f"the {goal:.1e}"
    warnings.warn(
        f"{question.name} is known to a relative gap of {gap:.1e}, not {asked} asked for: the bracket is valid and "
        "as wide as it says.",
        ToleranceWarning,
        stacklevel=6,
    )
