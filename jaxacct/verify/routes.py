"""Which formula gives delta of a composition, for one direction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from flint import arb, ctx

from jaxacct.verify import cells, contour, enumeration, many_laplace, outcomes, sandwich, sketch, two_runs
from jaxacct.verify.losses import Loss
from jaxacct.verify.quadrature import TooMuch

ENOUGH = 1e-14
"""Relative radius of a ball that no further route is tried for."""

FINE = 1e-10
"""Relative radius of a ball that no lattice would make smaller."""

MOST_ATOMS = 2000
"""Sums of finite losses, each of which asks for a closed form once."""

MOST_PAIRS = 20
"""The same, where each asks for an integral over two runs."""

SIZES = (2**11, 2**13, 2**15, 2**17, 2**19)
"""Points of the sandwich's lattices."""

SECONDS = 16.0
"""Processor time within which a finer lattice is begun, which takes about five times as long as the one before."""

BITS = 192


class Direction:
    """A composition's losses in one direction: delta as a function of epsilon, in balls.

    Args:
        runs: laws and how often each is run, all different.
    """

    def __init__(self, runs: sketch.Runs) -> None:
        normals = [law.normal * k for law, k in runs if law.normal is not None]
        self.runs = [(law, k) for law, k in runs if law.normal is None]
        if normals:
            self.runs.append((Loss(("normal",), normal=sum(normals, arb(0))), 1))
        self.infinite = self._infinite()
        self.supremum = arb(0)
        for law, k in self.runs:
            self.supremum += k * law.supremum()
        self.refused = ""
        self.lines: list[tuple[float, contour.Line, arb, float]] = []
        self.composed: dict[int, tuple[float, sandwich.Composed]] = {}

    def _infinite(self) -> arb:
        """Returns the mass of infinite losses, 1 - prod (1 - m)^k."""
        some = [(law.infinite, k) for law, k in self.runs if law.infinite != 0]
        if len(some) == 1 and some[0][1] == 1:
            return some[0][0]
        if any(m == 1 for m, _ in some):
            return arb(1)
        if all(m > 1e-15 for m, _ in some):  # no digits are lost, and simple numbers stay exact
            left = arb(1)
            for m, k in some:
                left *= (1 - m) ** k
            return 1 - left
        return -sum((k * (-m).log1p() for m, k in some), arb(0)).expm1() if some else arb(0)

    @property
    def bounded(self) -> bool:
        """Whether no loss is infinite and all lie below a finite supremum."""
        return self.infinite == 0 and self.supremum.is_finite()

    def delta(self, epsilon: float) -> arb:
        """Returns a ball that holds the delta at ``epsilon``.

        Where no route is short enough it says nothing, and ``refused`` what they would have taken.
        """
        if not self.runs:
            return arb(0)
        if math.isinf(epsilon) or self.infinite == 1 or self.supremum <= epsilon:
            return self.infinite
        best, refused = None, []
        routes = self._routes()
        for bits in (BITS, 3 * BITS):
            with ctx.workprec(bits + sum(k for _, k in self.runs).bit_length()):
                for route in list(routes):
                    try:
                        found = route(arb(epsilon))
                    except (TooMuch, ArithmeticError, OverflowError) as missing:
                        refused.append(str(missing) or type(missing).__name__)
                        if isinstance(missing, TooMuch):
                            routes.remove(route)  # more bits are no less work
                        continue
                    if not found.is_finite():
                        continue
                    found = self.infinite + found
                    best = found if best is None or found.rad() < best.rad() else best
                    if best.rad() <= ENOUGH * abs(best):
                        return best
        if best is None:
            self.refused = "; ".join(dict.fromkeys(refused)) or "no ball is finite"
        return self.infinite.union(arb(1)) if best is None else best

    def below(self, epsilon: float, delta: float) -> arb | None:
        """Returns a ball for the delta at ``epsilon`` that is below another, where Chernoff's bound is; else None."""
        if not self.runs or math.isinf(epsilon) or not self.infinite < delta or self.runs[0][0].alone is not None:
            return None
        t = self._tilt(arb(epsilon))
        if not sketch.log_most(self.runs, t, epsilon) < math.log(delta):
            return None
        with ctx.workprec(BITS):
            try:
                ball = self.infinite + arb(0).union(contour.chernoff(self.runs, arb(epsilon)))
            except (TooMuch, ArithmeticError, OverflowError):
                return None
        return ball if ball < delta else None

    def narrowed(self, epsilon: float, ball: arb, enough: Callable[[arb], bool]) -> arb:
        """Returns a part of a ball for delta at ``epsilon``, by sandwiches ever finer until it is enough.

        It stays as it is where it is narrow already, and where no lattice is worth its time.
        """
        if not self.runs or ball.rad() <= FINE * abs(ball) or len(self.runs) == sum(k for _, k in self.runs) == 1:
            return ball
        start = time.process_time()
        for size in SIZES:
            if enough(ball) or time.process_time() - start > SECONDS:
                break
            try:
                with ctx.workprec(BITS + 32):
                    found = self.infinite + self._sandwiched(arb(epsilon), size)
            except (TooMuch, ArithmeticError, OverflowError, ValueError):
                continue
            if found.is_finite() and found.overlaps(ball):
                ball = found.intersection(ball)
        return ball

    def _sandwiched(self, epsilon: arb, size: int) -> arb:
        finite = [run for run in self.runs if run[0].is_finite]
        rest = [run for run in self.runs if not run[0].is_finite]
        try:
            enumeration.listed(finite, self._tilt(epsilon), most=MOST_ATOMS)
        except TooMuch:
            finite, rest = [], list(self.runs)
        return self._shifted(finite if rest else [], self._placed(rest or self.runs, epsilon, size).delta, epsilon)

    def _placed(self, runs: sketch.Runs, epsilon: arb, size: int, points: Any = None) -> sandwich.Composed:
        """Returns a sandwich placed for this epsilon or for one nearby."""
        where, composed = self.composed.get(size, (math.inf, None))
        if composed is None or not abs(where - float(epsilon)) <= 1e-2 * abs(where):
            likely, beyond = outcomes.likely(runs, float(epsilon), sandwich.TAIL)
            composed = sandwich.Composed(likely, float(epsilon), size, points, beyond)
            self.composed[size] = float(epsilon), composed
        return composed

    def _routes(self) -> list[Callable[[arb], arb]]:
        finite = [run for run in self.runs if run[0].is_finite]
        rest = [run for run in self.runs if not run[0].is_finite]
        if len(self.runs) == 1 and self.runs[0][1] == 1:
            return [self.runs[0][0].single]
        if not rest:
            points = cells.common(self.runs)
            routes = [lambda e: enumeration.delta(self.runs, e, self._tilt(e))]
            return [lambda e: self._placed(self.runs, e, 0, points).delta(e), *routes] if points else routes
        if len(rest) == 1 and (closed := closed_form(*rest[0])) is not None:
            return [lambda e: self._shifted(finite, closed, e), self._integrated]
        pair = [law for law, k in rest for _ in range(min(k, 3))]
        if len(pair) == 2:
            return [
                lambda e: self._shifted(finite, lambda y: two_runs.delta(pair[0], pair[1], y), e, MOST_PAIRS),
                self._integrated,
            ]
        return [self._integrated]

    def _tilt(self, epsilon: arb) -> float:
        return sketch.saddle(self.runs, float(epsilon))

    def _shifted(self, finite: sketch.Runs, closed: Callable[[arb], arb], epsilon: arb, most: int = MOST_ATOMS) -> arb:
        """Returns the mean of a closed form over the finite losses."""
        if not finite:
            return closed(epsilon)
        (entries,) = enumeration.listed(finite, self._tilt(epsilon), 5 * most, count=1)
        if len(entries) > most:
            raise TooMuch(f"more than {most} sums of finite losses")
        lost = sum((law.lost * k for law, k in finite), arb(0))
        value = sum((entry.mass * closed(epsilon - entry.loss) for entry in entries), arb(0))
        return value + arb(0).union(lost.upper())

    def _integrated(self, epsilon: arb) -> arb:
        """Returns the contour integral, on a line placed for this epsilon or for one nearby."""
        for where, line, beyond, share in self.lines:
            if abs(where - float(epsilon)) <= 1e-3 * abs(where):
                found = line.delta(epsilon) + beyond
                if found.rad() <= share * abs(found):
                    return found
        for wanted, most in contour.LESS:
            try:
                runs, beyond = outcomes.likely(self.runs, float(epsilon), wanted)
                line = contour.line(runs, float(epsilon), wanted, most)
                break
            except TooMuch:
                if (wanted, most) == contour.LESS[-1]:
                    raise
        beyond = arb(0).union(beyond)
        self.lines.append((float(epsilon), line, beyond, max(ENOUGH, math.exp(5 - wanted))))
        return line.delta(epsilon) + beyond


def closed_form(law: Loss, count: int) -> Callable[[arb], arb] | None:
    """Returns delta of so many runs as a closed function of epsilon of any sign, or None."""
    if count == 1:
        return law.single
    if law.laplace is not None and count <= many_laplace.MOST:
        return lambda epsilon: many_laplace.delta(law.laplace, count, epsilon)
    return None
