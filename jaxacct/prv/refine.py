"""From the directions of a relation to one answer, on a mesh fine enough for the gap asked for."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.batching import stack
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts
from jaxacct.precision import outside
from jaxacct.prv import chernoff, one_mesh
from jaxacct.prv.coarse import without_composing
from jaxacct.prv.compose import METHODS
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.kernel import answer_of, asked_of, bounds_of, composed
from jaxacct.prv.outline import Outline
from jaxacct.question import ForDelta, ForEpsilon, Question

SIZES = tuple(sorted({2**i for i in range(10, 20)} | {3 * 2**i for i in range(9, 18)}))
"""Mesh points to choose from where a tolerance is given, each 3/2 or 4/3 of the one before."""

USUAL = 2**12
"""Mesh points that do for most questions at their default tolerances."""

COARSE = 2**10
"""Mesh points that tell which direction counts, before many more are spent on it."""

MANY = 8
"""Losses of which it is worth a size of its own to compile to look at the second direction on few points first."""

SAFETY = 2.5
"""By how much the gap foreseen for a mesh must lie below the tolerance for the mesh to be chosen."""

FARTHEST = 16
"""By how much the number of mesh points grows at most before another look at the gap."""

Answer = tuple[Bounds, Diagnostics]

Goal = float | tuple[float, float]
"""What is wanted of an answer: a relative gap, or errors of epsilon and of delta."""


class ToleranceWarning(UserWarning):
    """The bracket is valid, but wider than the tolerance asked for."""


class _Found:
    """The brackets of a relation's directions, as far as they have been needed; of concrete arguments."""

    def __init__(self, directions: list[Parts], question: Question, goal: Goal, method: str):
        self.directions, self.question, self.goal, self.method = directions, question, goal, method
        self.answers: dict[int, Answer] = {}
        self.beside: dict[int, list[Bounds]] = {}

    def begin(self, points: int) -> None:
        """Finds the first direction, which mostly decides, on so many points, and the others on few if that does."""
        self.improve([0], points)
        for rung in (COARSE, points) if points > COARSE else (points,):
            self.improve(range(1, len(self.directions)), rung)

    def improve(self, which: Sequence[int], points: int) -> None:
        """Narrows, on meshes of so many points, the brackets of those directions that may be the largest."""
        threshold = max((bounds.lower for bounds, _ in self.answers.values()), default=0.0)
        for i in which:
            old = self.answers.get(i)
            if old is None or old[0].upper > threshold:
                (new, *self.beside[i]), record = self.solved(i, points)
                # The finer mesh has the estimate.
                self.answers[i] = new if old is None else replace(old[0], converged=False).intersection(new), record

    def solved(self, which: int, points: int) -> tuple[list[Bounds], Diagnostics]:
        """Returns the brackets that answer all questions of a direction, and the record of the first."""
        sum_ = composed(self.directions[which], self.question, points, self.method)
        found = [answer_of(sum_, self.question.at(value), points, self.method) for value in self.values()]
        return [outside(bounds) for bounds, _ in found], found[0][1]

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


def at_points(directions: list[Parts], question: Question, points: int, method: str) -> Answer:
    """Returns the answer of concrete arguments on meshes of ``points`` points, coarser where that does not count."""
    found = _Found(directions, question, question.tolerance, method)
    found.begin(points)
    return found.largest()


def traced(directions: list[Parts], question: Question, points: int, method: str) -> Answer:
    """Returns the answer inside a trace; directions of one structure share their code."""
    if len({jax.tree.structure(parts) for parts in directions}) > 1 or len(directions) == 1:
        answers = [bounds_of(parts, question, points, method) for parts in directions]
    else:
        batch = jax.lax.map(lambda parts: bounds_of(parts, question, points, method), stack(*directions))
        answers = [jax.tree.map(operator.itemgetter(i), batch) for i in range(len(directions))]
    return functools.reduce(functools.partial(_larger, question.tolerance), answers)


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


def _size(least: float) -> int:
    """Returns the least of the sizes that is not below a number, or the largest."""
    return next((size for size in SIZES if size >= least), SIZES[-1])


LEAST_STEPS = 64
"""Fewer are too few for their spectrum to fall."""

MOST_LOSSES = 4096
"""More are composed one after the other: what is kept of each is 33 kB."""

LOOKS = 4
"""Times that one mesh for all steps is made finer."""


SHARE_OF_DELTA = 10
"""A delta is asked for as narrowly as the evolving meshes give it: they have to overshoot, for the same goal."""


class _OnOneMesh(_Found):
    """The same, by the frequencies of one mesh for all steps."""

    def __init__(self, directions: list[Parts], question: Question, goal: Goal):
        super().__init__(directions, question, goal, METHODS[0])
        is_epsilon = isinstance(question, ForEpsilon)
        wanted = (0.0, goal[not is_epsilon]) if isinstance(goal, tuple) else (goal, 0.0)
        cut = 1 / min(wanted[0] or question.tolerance, question.tolerance)
        value, self.is_epsilon, self.cut = asked_of(question, cut)
        self.value, self.wanted = np.float64(value), tuple(map(np.float64, wanted))
        self.outlines: dict[int, tuple[Outline, Facts, Array]] = {}

    def outline(self, which: int) -> tuple[Outline, Facts, Array]:
        """Returns what is chosen for a direction, what is known of it, and whether it has atoms."""
        if which not in self.outlines:
            parts = self.directions[which]
            self.outlines[which] = outside(one_mesh.outlined(parts, self.value, self.is_epsilon, self.wanted, self.cut))
        return self.outlines[which]

    def points_for(self, which: int) -> float:
        """Returns how many mesh points a step takes."""
        return one_mesh.SPARE * float(np.max(self.outline(which)[0].points)) + one_mesh.MARGIN

    def solved(self, which: int, points: int) -> tuple[list[Bounds], Diagnostics]:
        chosen, facts, _ = self.outline(which)
        return one_mesh.solved(points, self.directions[which], chosen, facts, self.question, self.values())

    def dismiss(self, which: int, other: int) -> bool:
        """Returns whether a direction is seen not to decide, because another one does."""
        bounds, record = self.answers[other]
        asked = self.value, self.is_epsilon, self.cut
        order = self.outline(other)[0].saddle
        most = np.asarray(chernoff.largest(self.directions[which], order, asked, self.question))[()]
        if not most <= bounds.lower:
            return False
        least = Bounds(lower=0 * most, estimate=most, upper=most, converged=np.bool_(False))
        # At a smaller epsilon, or delta, more is not asked of it; at a larger one the answer is no larger.
        self.answers[which], self.beside[which] = (least, record), [least, least][: len(self.beside[other])]
        return True


def on_one_mesh(directions: list[Parts], question: Question, goal: Goal) -> Answer | None:
    """Returns the answer by the few frequencies of a sum (:mod:`.frequencies`), or None where it is not found so."""
    counts = [np.concatenate([steps for _, steps in parts]) for parts in directions]
    if any(np.sum(steps) < LEAST_STEPS or len(steps) > MOST_LOSSES for steps in counts):
        return None
    if isinstance(question, ForDelta) and not isinstance(goal, tuple):
        goal = goal / SHARE_OF_DELTA
    found = _OnOneMesh(directions, question, goal)
    if found.outline(0)[2]:
        return None
    # The first direction mostly decides.
    order, points, gap = range(len(directions)), found.points_for(0), float("inf")
    for look in range(LOOKS):
        if not points <= one_mesh.SIZES[-1]:
            return None
        size = next(size for size in one_mesh.SIZES if size >= points)
        found.improve(order[:1], size)
        rest = [i for i in order[1:] if look or not found.dismiss(i, 0)]
        if any(found.outline(i)[2] for i in rest):
            return None
        for rung in sorted({one_mesh.SIZES[0], size}):
            found.improve(rest, rung)
        excess = found.excess()
        answer = found.largest()
        if isinstance(question, ForDelta) and not float(answer[0].lower) <= 0.5:
            return None  # where delta is next to 1, how far it is from 1 is what the evolving mesh knows better
        if excess <= 1:
            return answer
        # What rounds, or is let go, is no matter of the mesh; nor is what says nothing, for it was foreseen to.
        if not float(answer[0].gap) < min(0.9 * gap, 1.0):
            return None
        gap, points = float(answer[0].gap), max(size * (1.2 * excess) ** 0.5, size + 1)
    return None


def within(directions: list[Parts], question: Question, goal: Goal, method: str) -> Answer:
    """Returns the answer of concrete arguments on the smallest meshes found to reach a goal.

    The first mesh tells how far the gap has to fall; it falls at least with the square of the mesh as long as rounding
    and truncation do not count. A direction whose upper end lies below the other's lower one needs no refinement.
    """
    if method == METHODS[0]:
        answer = on_one_mesh(directions, question, goal)
        if answer is not None:
            return answer
    found = _Found(directions, question, goal, method)
    tolerance = question.tolerance if isinstance(goal, tuple) else goal
    points, previous, stalls = _size(USUAL * min((question.tolerance / tolerance) ** 0.5, 1.0)), float("inf"), 0
    every, is_narrowed = range(len(directions)), False
    if sum(len(steps) for _, steps in directions[0]) < MANY:
        found.improve(every, points)
    else:
        found.begin(points)
    while True:
        bounds, record = found.largest()
        gap, excess = float(bounds.gap), found.excess()
        if gap >= 0.5 and not is_narrowed:
            # What is known without a mesh may be all that is asked, or rule out a direction.
            found.narrow()
            is_narrowed = True
            continue
        # A finer mesh cannot help where nothing is finite, nor where rounding or truncation is what is left: where it
        # has twice not helped. One mesh for all steps, or for many, may be too coarse for a single one, though.
        stalls += 0.8 * previous < gap < 0.5
        unknown = gap == float("inf") and (method == "recursive" or not np.isfinite(record.mesh))
        hopeless = unknown or stalls == 2
        if bounds.converged or hopeless or points == SIZES[-1]:
            break
        # From afar the gap says little of where it will fall.
        finer = points * (SAFETY * excess * min(0.3 / gap, 1.0)) ** 0.5
        points, previous = _size(min(max(finer, points + 1), FARTHEST * points)), gap
        found.improve(every, points)
    if not bounds.converged and not is_narrowed:
        found.narrow()
        bounds, record = found.largest()
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
