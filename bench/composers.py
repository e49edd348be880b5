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

import numpy as np

from bench.frozen import Setting, build
from jaxacct.bounds import Bounds
from jaxacct.composition import ForDelta, ForEpsilon, directed_parts, static_facts
from jaxacct.numerics.precision import scope
from jaxacct.prv.accountant import mesh_of
from jaxacct.prv.evolving import Method
from jaxacct.refinement import Composer, at_size
from jaxacct.saddlepoint.of_atoms import CONTOUR, Size

CELLS = int(os.environ.get("COMPOSER_CELLS", "1024"))
SIDE = int(os.environ.get("COMPOSER_SIDE", "32"))
POINTS = int(os.environ.get("COMPOSER_POINTS", "8192"))

VERBS = {"epsilon": ForEpsilon, "delta": ForDelta, "saddlepoint.epsilon": ForEpsilon, "saddlepoint.delta": ForDelta}
VERBS |= {"prv.epsilon": ForEpsilon, "prv.delta": ForDelta}


def ask(composer: Composer, size: Any, setting: Setting) -> Bounds | None:
    """Returns the bracket of the worst direction by a composer of one size, or None where it does not answer."""
    kind = VERBS.get(setting.verb)
    mechanism, steps = setting.run()
    if kind is None:
        return None
    with scope():
        question = kind(np.float64(build(setting.at)))
        facts = static_facts(mechanism, steps, question)
        if facts.has_curves_only or facts.has_integer_vectors:  # there is no pair
            return None
        return at_size(composer, directed_parts(mechanism, steps, setting.relation), question, size)[0]


def contour(setting: Setting) -> Bounds | None:
    """Evaluates a setting by the contour."""
    return ask(CONTOUR, Size(CELLS, SIDE), setting)


def evolving(setting: Setting) -> Bounds | None:
    """Evaluates a setting by the evolving mesh."""
    return ask(mesh_of(Method.RECURSIVE), POINTS, setting)
