"""The compiled part: from dominating pairs and a question to a bracket, one program for each kind of pair and size."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts, facts_of
from jaxacct.precision import TINY
from jaxacct.programs import compiled
from jaxacct.prv.compose import Sum, composed
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.evaluate import bracket_of, slack_effect
from jaxacct.prv.plan import Asked
from jaxacct.pytrees import of_each
from jaxacct.question import ForEpsilon, Question

FARTHEST = 1e9
"""Largest epsilon, of either sign, that a mesh is chosen for. Tightness only."""

Goal = tuple[Array, Array]
"""The gap that a mesh is chosen for: relative to the answer, and beside it."""


def summed(parts: Parts, facts: Facts, question: Question, goal: Goal, points: int) -> Sum:
    """Returns the composition on lattices of ``points`` points; tilt and mesh are chosen for ``question``.

    Others may be asked after. At the ends of the range, for which no mesh can be chosen, it is one near by.
    """
    is_epsilon = isinstance(question, ForEpsilon)
    if is_epsilon:
        value = jnp.clip(question.value - facts.infinite[1], TINY, 1.0)
    else:
        value = jnp.clip(question.value, -FARTHEST, FARTHEST)
    return composed(parts, Asked(value, jnp.asarray(is_epsilon), *goal), points)


@compiled(static=("points",))
def answers(points: int, parts: Parts, questions: Question, goal: Goal) -> tuple[Bounds, Diagnostics]:
    """Returns the brackets that answer questions (n,) of one kind for one direction, and the record of the first."""
    facts = facts_of(parts)
    first = questions.at(questions.value[0])
    found = summed(parts, facts, first, goal, points)
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
