"""The same search outside of JAX, for concrete targets that the exact accountant cannot certify: it may ask the mesh.

A mesh takes tens of milliseconds, and longer the narrower its bracket is wanted. So the search is made twice: first to
about the setting, by rough bounds, then from there, by bounds that blur the setting by a share of the tolerance.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxacct import certified, prv
from jaxacct.bounds import Bounds
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.search import Aim, State, by_delta, search
from jaxacct.calibrate.solve import Config, Given, aimed, graded, with_epsilon
from jaxacct.precision import in_float64, outside
from jaxacct.question import ForEpsilon

CLOSE, GAP = 5e-5, 2e-4
"""Tolerance of the first search, and the relative gap of the bounds on delta that it takes."""

BLUR = 0.2
"""Share of the tolerance by which the second one's bounds may blur the setting: they need room to refute within it."""

LEAST_GAP = 1e-9
"""Least gap that is asked for."""

SLOPE = -20.0
"""Of log delta in u, before two settings tell."""


@in_float64(by_programs=True)
def improved(
    config: Config,
    compose: Callable[[Any], tuple[Any, Any]],
    before: Calibrated,
    start: float,
    given: Given,
    ends: tuple[float, float],
) -> Calibrated:
    """Returns what is certified with the mesh's help, or ``before`` where that satisfies the budget and is no worse.

    ``compose`` gives the mechanism and the steps for a value of what is looked for.
    """
    aim = aimed(config, given, ends)._replace(reports=np.bool_(False))

    def delta_at(value: Any, gap: float) -> Bounds:
        return certified.delta(*compose(value), given.epsilon, relation=config.relation, tolerance=gap)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", prv.ToleranceWarning)
        rough = _searched(delta_at, aim._replace(tolerance=max(CLOSE, config.tolerance)), start, None, GAP)
        found = rough.found
        if np.isfinite(found.setting):
            gap = float(np.clip(-BLUR * config.tolerance * rough.slope / aim.steepness(), LEAST_GAP, GAP))
            finer = _searched(delta_at, aim, found.setting, rough.slope / aim.steepness(), gap).found
            found = finer if np.isfinite(finer.setting) else found
        result = outside(graded(aim, found))
        worse = not result.satisfied or (result.value > before.value if aim.rises else result.value < before.value)
        if result.status == Status.UNKNOWN or (before.satisfied and worse):
            return before
        if config.budget is ForEpsilon and result.satisfied:
            bounds = certified.epsilon(*compose(result.value), given.delta, relation=config.relation)
            result = outside(with_epsilon(result, bounds, np.float64(given.epsilon)))
    return result


def _searched(delta_at: Callable[[Any, float], Bounds], aim: Aim, start: Any, slope: Any, gap: float) -> State:
    """Returns the last state of :func:`.search.search`, by bounds of about a relative gap; None is no known slope."""
    known = slope is not None
    first = np.float64(slope if known else SLOPE)
    evaluate = by_delta(lambda value: delta_at(value, gap))
    return search(evaluate, (), aim, np.float64(start), first, np.bool_(known))
