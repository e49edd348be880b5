"""From the directions of a relation to one answer, on a mesh fine enough for the gap asked for."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.batching import stack
from jaxacct.bounds import Bounds
from jaxacct.composition import Parts
from jaxacct.precision import outside
from jaxacct.prv.coarse import without_composing
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.kernel import bounds_of
from jaxacct.question import Question

SIZES = tuple(sorted({2**i for i in range(10, 20)} | {3 * 2**i for i in range(9, 18)}))
"""Mesh points to choose from where a tolerance is given, each 3/2 or 4/3 of the one before."""

USUAL = 2**12
"""Mesh points that do for most questions at their default tolerances."""

COARSE = 2**10
"""Mesh points that tell which direction counts, before many more are spent on it."""

SAFETY = 2.0
"""By how much the gap foreseen for a mesh must lie below the tolerance for the mesh to be chosen."""

FARTHEST = 16
"""By how much the number of mesh points grows at most before another look at the gap."""

Answer = tuple[Bounds, Diagnostics]


class ToleranceWarning(UserWarning):
    """The bracket is valid, but wider than the tolerance asked for."""


class _Found:
    """The brackets of a relation's directions, as far as they have been needed; of concrete arguments."""

    def __init__(self, directions: list[Parts], question: Question, method: str, *, jumps_apart: bool):
        self.directions, self.question = directions, question
        self.bounds_of = functools.partial(bounds_of, method=method, jumps_apart=jumps_apart)
        self.answers: dict[int, Answer] = {}

    def improve(self, which: Sequence[int], points: int) -> None:
        """Narrows, on meshes of so many points, the brackets of those directions that may be the largest."""
        threshold = max((bounds.lower for bounds, _ in self.answers.values()), default=0.0)
        for i in which:
            old = self.answers.get(i)
            if old is None or old[0].upper > threshold:
                bounds, record = self.bounds_of(self.directions[i], self.question, points)
                new = outside(bounds)
                # The finer mesh has the estimate.
                self.answers[i] = new if old is None else replace(old[0], converged=False).intersection(new), record

    def narrow(self) -> None:
        """Adds what is known without a mesh, which is little but holds where a mesh says nothing."""
        for i, (bounds, record) in self.answers.items():
            lower, upper = without_composing(self.directions[i], self.question)
            rough = Bounds(lower=lower, estimate=bounds.estimate, upper=upper, converged=False)
            self.answers[i] = rough.intersection(bounds), record

    def largest(self, tolerance: float) -> Answer:
        """Returns the larger of the brackets, and the record of the one with the largest upper end.

        It has converged where both ends are one number, be it infinite, or their gap is within the tolerance.
        """
        every = [bounds for bounds, _ in self.answers.values()]
        _, record = max(self.answers.values(), key=lambda answer: float(answer[0].upper))
        bounds = Bounds(
            lower=max(b.lower for b in every),
            estimate=max(b.estimate for b in every),
            upper=max(b.upper for b in every),
        )
        converged = np.asarray((bounds.lower == bounds.upper) | (bounds.gap <= tolerance))[()]
        return replace(bounds, converged=converged), replace(record, converged=converged)


def at_points(directions: list[Parts], question: Question, points: int, method: str) -> Answer:
    """Returns the answer of concrete arguments on meshes of ``points`` points.

    The first direction, which mostly decides, is answered so; the others on a coarse mesh, which does for those that
    turn out not to decide.
    """
    # What a trace would give.
    found = _Found(directions, question, method, jumps_apart=False)
    found.improve([0], points)
    for rung in (COARSE, points) if points > COARSE else (points,):
        found.improve(range(1, len(directions)), rung)
    return found.largest(question.tolerance)


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


def within(directions: list[Parts], question: Question, tolerance: float, method: str) -> Answer:
    """Returns the answer of concrete arguments on the smallest meshes found to reach a relative gap of ``tolerance``.

    The first mesh tells how far the gap has to fall; it falls at least with the square of the mesh as long as rounding
    and truncation do not count. A direction whose upper end lies below the other's lower one needs no refinement.
    """
    found = _Found(directions, question, method, jumps_apart=True)
    points, previous, stalls = _size(USUAL * min((question.tolerance / tolerance) ** 0.5, 1.0)), float("inf"), 0
    while True:
        found.improve(range(len(directions)), points)
        bounds, record = found.largest(tolerance)
        gap = float(bounds.gap)
        # A finer mesh cannot help where nothing is finite, nor where rounding or truncation is what is left: where it
        # has twice not helped. One mesh for all steps, or for many, may be too coarse for a single one, though.
        stalls += 0.8 * previous < gap < 0.5
        unknown = gap == float("inf") and (method == "recursive" or not np.isfinite(record.mesh))
        hopeless = unknown or stalls == 2
        if bounds.converged or hopeless or points == SIZES[-1]:
            break
        # From afar the gap says little of where it will fall.
        finer = points * (SAFETY * min(gap, 0.3) / tolerance) ** 0.5
        points, previous = _size(min(max(finer, points + 1), FARTHEST * points)), gap
    if not bounds.converged:
        found.narrow()
        bounds, record = found.largest(tolerance)
    if not bounds.converged:
        warnings.warn(
            f"{question.name} is known to a relative gap of {gap:.1e}, not the {tolerance:.1e} asked for: the bracket "
            "is valid and as wide as it says.",
            ToleranceWarning,
            stacklevel=5,
        )
    return bounds, record
