"""The compiled part: from dominating pairs and a question to a bracket, one program for each kind of pair and size."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts, facts_of
from jaxacct.precision import TINY
from jaxacct.programs import compiled
from jaxacct.prv.compose import composed
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.evaluate import bracket_of, slack_effect
from jaxacct.prv.plan import Asked
from jaxacct.pytrees import of_each
from jaxacct.question import ForEpsilon, Kind, Question

FARTHEST = 1e9
"""Largest epsilon, of either sign, that a mesh is chosen for. Tightness only."""

Goal = tuple[Any, Any]
"""The gap that a mesh is chosen for: relative to the answer, and beside it."""

LEAST = 2**9
"""Points of each loss with which answers are looked for first. Speed only."""

AIMED = 0.1
"""Share of the default tolerance that lattices of :data:`LEAST` points are chosen for, where their size is given."""


def aimed_at(kind: Kind, points: int) -> Goal:
    """Returns the gap that lattices of so many points are chosen for: it falls with the square of the mesh."""
    return np.float64(AIMED * kind.tolerance * min((LEAST / points) ** 2, 1.0)), np.float64(0.0)


def asked_of(facts: Facts, question: Question, goal: Goal) -> Asked:
    """Returns what a composition is chosen for; at the ends of the range, which take none, for what is near by."""
    if isinstance(question, ForEpsilon):
        value = jnp.clip(question.value - facts.infinite[1], TINY, 1.0)
    else:
        value = jnp.clip(question.value, -FARTHEST, FARTHEST)
    return Asked(value, jnp.asarray(isinstance(question, ForEpsilon)), *goal)


@compiled(static=("points",))
def answers(points: int, parts: Parts, questions: Question, goal: Goal) -> tuple[Bounds, Diagnostics]:
    """Returns the brackets that answer questions (n,) of one kind for one direction, and the record of the first."""
    facts = facts_of(parts)
    first = questions.at(questions.value[0])
    found = composed(parts, asked_of(facts, first, goal), points)
    bounds = of_each(lambda question: bracket_of(found, question, facts))(questions)
    at = bounds.estimate[0] if isinstance(first, ForEpsilon) else first.value
    return bounds, Diagnostics(
        points=points,
        order=found.order,
        mesh=found.mesh,
        start=found.start,
        length=found.length,
        slack=found.slack,
        slack_delta=slack_effect(found, at),
        shift=found.shift,
        infinite_mass=facts.infinite[1],
        lost=found.lost,
        converged=bounds.converged[0],
    )
