"""Two composers of laws that are arrays beside the frozen brackets: the contour, and the evolving mesh.

    python -m bench.frozen compare --evaluator bench.composers:contour [--only WORD] [--sample N]
    python -m bench.frozen compare --evaluator bench.composers:evolving

A mechanism compiles its law alone; each composer is one program for all mechanisms of as many rows. Sizes come from the
environment: COMPOSER_CELLS (1024), COMPOSER_SIDE (32) for the contour, COMPOSER_POINTS (8192) for the mesh. Answers are
closed by the facts of a composition, as those of every accountant are.
"""

from __future__ import annotations

import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bench.frozen import Setting, build
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, ForDelta, ForEpsilon, Question, directed_parts, facts_of, laws_of
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.numerics.precision import leave_scope, scope
from jaxacct.numerics.programs import compiled
from jaxacct.prv import evolving as mesh
from jaxacct.saddlepoint import composer

CELLS = int(os.environ.get("COMPOSER_CELLS", "1024"))
SIDE = int(os.environ.get("COMPOSER_SIDE", "32"))
POINTS = int(os.environ.get("COMPOSER_POINTS", "8192"))

VERBS = {"epsilon": ForEpsilon, "delta": ForDelta, "saddlepoint.epsilon": ForEpsilon, "saddlepoint.delta": ForDelta}
VERBS |= {"prv.epsilon": ForEpsilon, "prv.delta": ForDelta}

FAR = 60.0
"""Nats up to which tails are resolved where no delta is given."""


@compiled(static=("side",))
def by_contour(side: int, laws: Atoms, counts: Array, question: Question, facts: Facts) -> Bounds:
    """Returns a direction's bracket by the contour."""
    verb = composer.epsilon if isinstance(question, ForEpsilon) else composer.delta
    return close(*verb(laws, counts, question.value, side=side), question, facts)


@compiled(static=("points",))
def by_mesh(points: int, laws: Atoms, counts: Array, question: Question, facts: Facts) -> Bounds:
    """Returns a direction's bracket by the evolving mesh."""
    if isinstance(question, ForEpsilon):
        found = mesh.compose(laws, counts, points, log_delta=jnp.log(question.delta))
        return close(*mesh.bound_epsilon(found, question.delta), question, facts)
    found = mesh.compose(laws, counts, points, epsilon=question.epsilon)
    return close(*mesh.bound_delta(found, question.epsilon), question, facts)


def close(lower: Array, upper: Array, question: Question, facts: Facts) -> Bounds:
    """Returns a bracket closed by the facts of a composition."""
    return question.close(Bounds(lower, (lower + upper) / 2, upper, jnp.zeros((), bool)), facts)


def ask(program: Any, size: int, setting: Setting) -> Bounds | None:
    """Returns the bracket of the worst direction, or None where a composer does not answer."""
    kind = VERBS.get(setting.verb)
    mechanism, steps = setting.run()
    if kind is None or has_renyi_only(mechanism):
        return None
    with scope():
        question = kind(np.float64(build(setting.at)))
        every = []
        # Each direction has pairs, and so laws, of its own.
        for parts in directed_parts(mechanism, steps, setting.relation):
            runs = max(float(sum(np.sum(counts) for _, counts in parts)), 1.0)
            nats = 12.0 - np.log(question.delta) if kind is ForEpsilon and question.delta > 0 else FAR
            laws, counts = laws_of(CELLS, parts, np.float64(nats + np.log(runs)))
            every.append(leave_scope(program(size, laws, counts, question, facts_of(parts))))
    lower, estimate, upper = (max(float(getattr(b, end)) for b in every) for end in ("lower", "estimate", "upper"))
    return Bounds(np.float64(lower), np.float64(estimate), np.float64(upper), np.bool_(False))


def contour(setting: Setting) -> Bounds | None:
    """Evaluates a setting by the contour."""
    return ask(by_contour, SIDE, setting)


def evolving(setting: Setting) -> Bounds | None:
    """Evaluates a setting by the evolving mesh."""
    return ask(by_mesh, POINTS, setting)
