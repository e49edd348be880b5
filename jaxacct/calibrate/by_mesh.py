"""The same search by calls, for concrete targets that the exact accountant cannot certify: it may ask the mesh.

A mesh takes tens of milliseconds, and longer the narrower its bracket is wanted. So the search is made twice: first to
about the setting, by rough bounds, then from there, by bounds that blur the setting by a share of the tolerance.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from jaxacct import certified, prv
from jaxacct.bounds import Bounds
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.search import Aim, State, search_by_calls
from jaxacct.calibrate.solve import Config, Given, aimed, graded
from jaxacct.precision import in_float64, outside

CLOSE, GAP = 5e-5, 2e-4
"""Tolerance of the first search, and the relative gap of the bounds on delta that it takes."""

BLUR = 0.2
"""Share of the tolerance by which the second one's bounds may blur the setting: they need room to refute within it."""

LEAST_GAP = 1e-9
"""Least gap that is asked for."""

SLOPE = -20.0
"""Of log delta in u, before two settings tell; of an epsilon's height it is -1/2."""


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
    aim = aimed(config, Given(*map(np.float64, given)), ends)

    def bounds_at(value: Any, gap: float) -> Bounds:
        return certified.answer(*compose(value), given.asked(config.budget), config.relation, gap)

    steepness = float(aim.steepness())
    slope = SLOPE * steepness if aim.scale is None else -0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", prv.ToleranceWarning)
        rough = _searched(bounds_at, replace(aim, tolerance=max(CLOSE, config.tolerance)), start, slope, False, GAP)
        found = rough.found
        if np.isfinite(found.setting):
            gap = float(np.clip(-BLUR * config.tolerance * rough.slope / max(steepness, 1e-3), LEAST_GAP, GAP))
            finer = _searched(bounds_at, aim, found.setting, rough.slope, True, gap).found
            found = finer if np.isfinite(finer.setting) else found
        result = outside(graded(aim, found))
        worse = not result.satisfied or (result.value > before.value if aim.rises else result.value < before.value)
        return before if result.status == Status.UNKNOWN or (before.satisfied and worse) else result


def _searched(
    bounds_at: Callable[[Any, float], Bounds], aim: Aim, start: Any, slope: Any, known: bool, gap: float
) -> State:
    """Returns the last state of the search, by bounds of about a relative gap."""
    return search_by_calls(
        lambda value: bounds_at(value, gap), aim, np.float64(start), np.float64(slope), np.bool_(known)
    )
