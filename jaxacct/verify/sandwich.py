"""delta between two values, on a lattice of losses: where a transform falls too slowly for :mod:`.contour`.

With Z = e^(-Y) and the other runs fixed, a run enters delta as E[g(Y)] for g(y) = E[(1 - e^(eps - y - S'))+], which is
increasing in y and, as (1 - cZ)+ is, convex in Z; and E[Z; a cell] is Q's mass there. So one run's law may be replaced,
one run after the other:

- *Above:* a cell's masses (p, q) of losses in [y, y + h] are put on the two ends, with the same p and q:
  (p - q e^y) / (1 - e^(-h)) on the upper one, the rest on the lower one. On an interval a convex function is at most
  its chord. Losses may also be raised: those by up to eta too low for their cell become y, which takes at most a
  share eta of q away, and what lies below all cells goes to the lowest point.
- *Below:* a cell's mass p is put on log p/q, by Jensen's inequality: what a curator knows who is told the cell alone.
  Then the loss is lowered to a lattice point. The cells reach from the middle of two points to the next, a
  little higher, so that log p/q is at or just above a point. Mass may be dropped.

Either moves the loss by a multiple of h^2 at most, but for the ends of a density. Sums of lattice losses are products
of polynomials. With the tilt t masses are kept times e^(ty); as (1 - e^(eps - y))+ <= C e^(t (y - eps)) with C = t^t /
(1 + t)^(1 + t), tilted mass r that is cut away adds at most C e^(-t eps) r to delta, and P's mass beyond the cells
itself. What is cut below is dropped.

Where all losses are points of one lattice already, both laws are the law itself: :func:`.cells.exact`.

Source: the two directions of "connect the dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), with the
merged cells as a post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_poly, ctx

from jaxacct.verify import cells, sketch
from jaxacct.verify.quadrature import TooMuch

BITS = 160

TAIL = 34.0
"""Natural logarithm of the shares that windows leave out, of tilted mass and of delta: e^-34 = 2e-15."""

EXACT_TAIL, MOST_POINTS = 46.0, 2**19
"""The same where nothing else is left out, and how many points there may be then."""


@dataclass(frozen=True)
class Tilted:
    """Tilted masses on consecutive lattice points, and a bound on those that were cut away."""

    start: int
    poly: arb_poly
    cut: arb

    def whole(self) -> arb:
        """Returns the sum of the masses kept."""
        return self.poly(arb(1))


@dataclass(frozen=True)
class Windows:
    """Where a composition's tilted sums lie but for e^-TAIL of their mass, by floats."""

    t: float
    others: np.ndarray
    cumulants: np.ndarray
    tail: float

    @classmethod
    def of(cls, runs: sketch.Runs, t: float, tail: float) -> Windows:
        # No farther than the sketch's points go.
        reach = [1500 * float(p.curvature) ** 0.5 / float(max(abs(a) for _, a in (*p.p, *p.q)) + 1e-9)
                 for law, _ in runs for p in cells.pieces(law) if p.curvature > 0]  # fmt: skip
        beyond = max(t, min([1e3 * max(t, 1.0), *reach]) - t)
        below = np.geomspace(1e-3, 1, 20) * t
        others = t + np.concatenate([-below, -t - np.geomspace(0.1, 30, 12), np.geomspace(1e-3 * t, beyond, 30)])
        at = [[sketch.cumulants(law, u)[0] for u in (t, *others)] for law, _ in runs]
        table = np.array(at)
        return cls(t, others, table[:, 1:] - table[:, :1], tail)

    def window(self, counts: np.ndarray) -> tuple[float, float]:
        """Returns the least and the largest sum, by Chernoff's bound."""
        k = counts @ self.cumulants
        with np.errstate(all="ignore"):
            ends = (k + self.tail) / (self.others - self.t)
        ends = np.where(np.isfinite(ends), ends, np.where(self.others > self.t, np.inf, -np.inf))
        return float(np.max(ends[self.others < self.t])), float(np.min(ends[self.others > self.t]))


class Composed:
    """A composition's laws above and below on a lattice of about ``size`` points; serves every epsilon.

    It is narrow near the epsilon that it was placed for.
    """

    def __init__(
        self,
        runs: sketch.Runs,
        epsilon: float,
        size: int,
        points: list[cells.Lattice] | None = None,
        beyond: arb | None = None,
    ) -> None:
        self.t = sketch.saddle(runs, epsilon)
        sides = (cells.exact,) if points else (cells.upper, cells.lower)
        self.windows = Windows.of(runs, self.t, EXACT_TAIL if points else TAIL)
        counts = np.array([float(k) for _, k in runs])
        low, high = self.windows.window(counts)
        low = max(low, sum(k * _least(law) for law, k in runs))
        high = min(high, sum(k * float(law.supremum()) for law, k in runs))
        if points is None:
            heaviest = max(runs, key=lambda run: run[1] * bool(run[0].atoms))[0]
            points = [cells.lattice(law, cells.dividing(heaviest, (high - low) / size)) for law, _ in runs]
        elif high - low > MOST_POINTS * points[0].step:
            raise TooMuch("a window of too many lattice points")
        self.points, self.step = points, points[0].step
        self.offset = sum((arb(own.offset) * k for own, (_, k) in zip(points, runs, strict=True)), arb(0))
        logs = [sketch.cumulants(law, self.t)[0] for law, _ in runs]
        self.scale = sum((arb(k) * log for (_, k), log in zip(runs, logs, strict=True)), arb(0))
        tiny = math.exp(max(-650.0, sketch.log_delta(runs, self.t, epsilon) - TAIL)) / float(np.sum(counts))
        self.missing = arb(0) if beyond is None else beyond
        self.ends: list[tuple[arb, list[arb], list[arb], int]] = []
        for side in sides:
            total: Tilted | None = None
            counted = np.zeros(len(runs))
            for i, ((law, k), own, log) in enumerate(zip(runs, points, logs, strict=True)):
                masses = side(law, own, tiny, (log - TAIL) / self.t)
                if side is not cells.lower:
                    self.missing += k * sum(masses.left_out, arb(0))
                alone = np.zeros(len(runs))
                alone[i] = 1
                one = self._cropped(self._tilted(masses, own, log), alone)
                power = self._power(one, k, alone)
                counted = counted + k * alone
                total = power if total is None else self._product(total, power, counted)
            assert total is not None
            self.ends.append(self._sums(total))

    def _tilted(self, masses: cells.Masses, points: cells.Lattice, log: float) -> Tilted:
        start, stop = min(masses.points), max(masses.points)
        found = [arb(0)] * (stop - start + 1)
        t = arb(self.t)
        turn, weight = (t * points.step).exp(), (t * points.point(start) - log).exp()
        with ctx.workprec(ctx.prec + 40):
            for j in range(start, stop + 1):
                if j in masses.points:
                    found[j - start] = (masses.points[j] * weight).max(arb(0))
                weight *= turn
        return Tilted(start, arb_poly(found), arb(0))

    def _cropped(self, law: Tilted, counts: np.ndarray) -> Tilted:
        low, high = self.windows.window(counts)
        offset, step = sum(c * float(own.offset) for c, own in zip(counts, self.points, strict=True)), float(self.step)
        size = law.poly.length()
        first = max(0, int(max(-1e15, (low - offset) / step)) - 2 - law.start)
        last = min(size, int(min(1e15, (high - offset) / step)) + 3 - law.start)
        if first == 0 and last == size:
            return law
        if last <= first:
            raise TooMuch("a window without a lattice point")
        coefficients = law.poly.coeffs()
        cut = sum(coefficients[:first], arb(0)) + sum(coefficients[last:], arb(0))
        return Tilted(law.start + first, arb_poly(coefficients[first:last]), (law.cut + cut).upper())

    def _product(self, a: Tilted, b: Tilted, counts: np.ndarray) -> Tilted:
        cut = arb(0)
        if a.cut > 0 or b.cut > 0:
            cut = (a.cut * (b.whole() + b.cut) + a.whole() * b.cut).upper()
        return self._cropped(Tilted(a.start + b.start, a.poly * b.poly, cut), counts)

    def _power(self, one: Tilted, count: int, alone: np.ndarray) -> Tilted:
        found = one
        for i, bit in enumerate(bin(count)[3:], 1):
            done = count >> (count.bit_length() - i - 1)
            found = self._product(found, found, alone * (done - done % 2))
            if bit == "1":
                found = self._product(found, one, alone * done)
        return found

    def _sums(self, law: Tilted) -> tuple[arb, list[arb], list[arb], int]:
        """Returns what is cut, and from each point on the sums of the masses times e^-ty and times e^-(t + 1)y."""
        coefficients = law.poly.coeffs()
        last = law.start + len(coefficients) - 1
        top = self.offset + arb(self.step) * last
        p, q, sums_p, sums_q = arb(0), arb(0), [arb(0)], [arb(0)]
        over_p, over_q = (-self.t * top + self.scale).exp(), (-(arb(self.t) + 1) * top + self.scale).exp()
        turn_p, turn_q = (arb(self.t) * self.step).exp(), ((arb(self.t) + 1) * self.step).exp()
        for mass in reversed(coefficients):
            p += mass * over_p
            q += mass * over_q
            sums_p.append(p)
            sums_q.append(q)
            over_p *= turn_p
            over_q *= turn_q
        return law.cut, sums_p, sums_q, last

    def delta(self, epsilon: arb) -> arb:
        """Returns a ball from the value below to the value above, finite losses alone."""
        t = arb(self.t)
        ratio = float(((epsilon - self.offset) / self.step).mid())
        if abs(ratio) > 1e12:
            raise TooMuch("an epsilon far from the lattice")
        values = []
        for _, sums_p, sums_q, last in self.ends:
            # The largest over all numbers of points is that over the points above eps; floats know it to within one.
            near = [min(max(last - math.floor(ratio) + i, 0), len(sums_p) - 1) for i in (-1, 0, 1)]
            found = [sums_p[i] - epsilon.exp() * sums_q[i] for i in near]
            values.append(found[0].max(found[1]).max(found[2]))
        front = (t * t.log() - (1 + t) * (1 + t).log() - t * epsilon + self.scale).exp()
        above = values[0] + self.ends[0][0] * front + self.missing
        return values[-1].lower().max(arb(0)).union(above.upper())


def _least(law) -> float:
    """Returns the infimum of a law's losses."""
    ends = [float(y) for _, y in law.atoms]
    ends += [float(piece.loss_at(not piece.rises)) for piece in cells.pieces(law)]
    return min(ends)
