"""The same search by the mesh accountant, for concrete targets that the exact one cannot certify.

It is certified everywhere and slow, tens of milliseconds an evaluation, so this runs outside of JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jaxacct.bounds import Bounds
from jaxacct.calibrate.result import Status
from jaxacct.calibrate.search import PROBE

ROUNDS = 60
"""Most evaluations of a stage; about ten are usual."""

CLOSE, GAP = 5e-5, 2e-4
"""First a bracket of u so wide, by bounds on delta so far apart, relative; then what the tolerance asks for."""

LEAST_GAP = 1e-9
"""Least gap that is asked for."""

FIRST_STEP = 0.02


class _Search:
    """The settings looked at so far, and what they reach: bounds on delta at the epsilon of the budget."""

    def __init__(
        self, delta_at: Callable[[float, float], Bounds], target: float, ends: tuple[float, float], whole: bool
    ):
        self.delta_at, self.target, self.whole = delta_at, target, whole
        self.least, self.most = ends
        self.found: dict[float, Bounds] = {}
        self.refuted = -math.inf
        self.gap = GAP

    def snapped(self, u: float) -> float:
        """Returns a setting in the range, of a whole value where values are whole."""
        u = min(max(u, self.least), self.most)
        return -math.log(max(round(math.exp(-u)), 1)) if self.whole else u

    def excess(self, u: float) -> float:
        """Returns how far the upper bound is above the target, in logarithms."""
        if u not in self.found:
            self.found[u] = self.delta_at(u, self.gap)
            if float(self.found[u].lower) > self.target:
                self.refuted = max(self.refuted, u)
        return _log(float(self.found[u].upper)) - _log(self.target)

    def bracket(self, start: float, step: float, close: float) -> tuple[float, float]:
        """Returns a setting that fails and one that passes, ``close`` to one another; equal ones at the range's end.

        First outward from ``start`` by steps that double, then by regula falsi, with bisection every third time.
        """
        u = self.snapped(start)
        passes = self.excess(u) <= 0
        low = high = u
        while passes == (self.excess(u) <= 0):
            if (passes and u <= self.least) or (not passes and u >= self.most):
                return u, u
            low, high = (low, u) if passes else (u, high)
            u = self.snapped(u - step if passes else u + step)
            step *= 2 if u not in self.found else 4
        low, high = (u, high) if passes else (low, u)
        for i in range(ROUNDS):
            if round(math.exp(-low)) - round(math.exp(-high)) <= 1 if self.whole else high - low <= close:
                break
            below, above = self.excess(low), self.excess(high)
            share = below / (below - above) if math.isfinite(below - above) and i % 3 < 2 else 0.5
            u = low + share * (high - low)
            # A little to the side where the bracket is wide, so that both ends move.
            u = self._inside(u + math.copysign(close / 3, share - 0.5), low, high, close)
            low, high = (low, u) if self.excess(u) <= 0 else (u, high)
        return low, high

    def _inside(self, u: float, low: float, high: float, close: float) -> float:
        if not self.whole:
            return min(max(u, low + 0.1 * close), high - 0.1 * close)
        fewest, most = round(math.exp(-high)), round(math.exp(-low))
        return -math.log(min(max(round(math.exp(-u)), fewest + 1), most - 1))


def search_by_mesh(
    delta_at: Callable[[float, float], Bounds],
    target: float,
    start: float,
    ends: tuple[float, float],
    *,
    whole: bool,
    tolerance: float,
) -> tuple[float, Bounds, Status]:
    """Returns about the least u in ``ends`` at which at most ``target`` is certified, what is reached there, a status.

    ``delta_at(u, gap)`` bounds delta, by the mesh, to about that relative gap. The answer is CONVERGED where a setting
    no more than ``tolerance`` below it is refuted by its lower bound.
    """
    search = _Search(delta_at, target, ends, whole)
    low, high = search.bracket(start, FIRST_STEP, CLOSE)
    if low < high and not whole and high - search.refuted > tolerance:
        # Delta's bounds blur u by their gap over its slope.
        rise = (search.excess(low) - search.excess(high)) / (high - low)
        search.gap = min(max(0.2 * tolerance * rise, LEAST_GAP), GAP) if math.isfinite(rise) else GAP
        search.found.clear()
        low, high = search.bracket(high, max(0.5 * CLOSE, 2 * tolerance), 0.4 * tolerance)
        if low < high and high - search.refuted > tolerance:
            search.excess(max(high - PROBE * tolerance, search.least))
    reached = search.found[high]
    if search.excess(high) > 0:
        return high, reached, Status.INFEASIBLE if float(reached.lower) > target else Status.UNKNOWN
    if high <= search.least:
        return high, reached, Status.NOT_BINDING
    allowed = tolerance + (math.exp(high) if whole else 0.0)
    return high, reached, Status.CONVERGED if high - search.refuted <= allowed else Status.LOOSE


def _log(x: float) -> float:
    # Finite at 0, so that regula falsi can use it.
    return math.log(max(x, 1e-300)) if x < math.inf else math.inf
