"""The same search by the mesh accountant, for concrete targets that the exact one cannot certify.

It is certified everywhere and slow, tens of milliseconds an evaluation, so this runs outside of JAX.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxacct import prv
from jaxacct.bounds import Bounds
from jaxacct.calibrate.result import Calibrated, Status

ROUNDS = 60
"""Most evaluations; about ten are usual."""

CLOSE = 5e-5
"""Distance in u at which the search ends: half of what is promised, the other half is for the bounds' own gap."""

GAP = {"epsilon": 2e-5, "delta": 2e-4}
"""Relative gap between the bounds, which moves u by a fraction of it: u moves by about 1/20 of log delta's change."""

FIRST_STEP = 0.02


def search_by_mesh(
    compose: Callable[[float], tuple[Any, Any]],
    value_of: Callable[[float], float],
    quantity: str,
    at: float,
    target: float,
    start: float,
    ends: tuple[float, float],
    *,
    relation: str,
    whole: bool,
) -> Calibrated:
    """Returns about the least u in ``ends`` at which ``prv`` certifies at most ``target``.

    ``compose(value)`` gives mechanism and steps; ``quantity`` is what is budgeted, ``at`` the other one of epsilon and
    delta. First outward from ``start`` by steps that double, to a bracket, then by regula falsi, with bisection where
    that has not halved the bracket in three steps.
    """
    found: dict[float, Bounds] = {}

    def snapped(u: float) -> float:
        return -math.log(max(round(math.exp(-u)), 1)) if whole else u

    def excess(u: float) -> float:
        """Returns how far the upper bound is above the target, in logarithms."""
        if u not in found:
            mechanism, steps = compose(value_of(u))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", prv.ToleranceWarning)
                found[u] = getattr(prv, quantity)(mechanism, steps, at, relation=relation, tolerance=GAP[quantity])
        return _log(float(found[u].upper)) - _log(target)

    def result(u: float, status: Status) -> Calibrated:
        return Calibrated(np.float64(value_of(u)), found[u], int(status))

    least, most = ends
    u = snapped(min(max(start, least), most))
    step, passes = FIRST_STEP, excess(u) <= 0
    low = high = u
    while passes == (excess(u) <= 0):
        if (passes and u <= least) or (not passes and u >= most):
            return result(u, Status.NOT_BINDING if passes else Status.INFEASIBLE)
        low, high = (u, high) if not passes else (low, u)
        u = snapped(min(max(u - step if passes else u + step, least), most))
        step *= 2 if u not in found else 4
    low, high = (low, u) if not passes else (u, high)
    for i in range(ROUNDS):
        narrow = round(math.exp(-low)) - round(math.exp(-high)) <= 1 if whole else high - low <= CLOSE
        if narrow:
            break
        below, above = excess(low), excess(high)
        share = below / (below - above) if math.isfinite(below - above) and i % 3 < 2 else 0.5
        u = low + share * (high - low)
        # A little to the side where the bracket is wide, so that both ends move.
        u += math.copysign(CLOSE / 3, share - 0.5) if not whole else 0.0
        u = _inside(u, low, high, whole)
        low, high = (low, u) if excess(u) <= 0 else (u, high)
    status = Status.CONVERGED if narrow or whole else Status.LOOSE
    blur = _log(float(found[low].upper)) - _log(float(found[low].lower))
    rise = (excess(low) - excess(high)) / (high - low)
    if not whole and not high - low + max(blur - excess(low), 0.0) / rise <= 2 * CLOSE:
        status = Status.LOOSE
    return result(high, status)


def _inside(u: float, low: float, high: float, whole: bool) -> float:
    if not whole:
        return min(max(u, low + 0.1 * CLOSE), high - 0.1 * CLOSE)
    fewest, most = round(math.exp(-high)), round(math.exp(-low))
    return -math.log(min(max(round(math.exp(-u)), fewest + 1), most - 1))


def _log(x: float) -> float:
    # Finite at 0, so that regula falsi can use it.
    return math.log(max(x, 1e-300)) if x < math.inf else math.inf
