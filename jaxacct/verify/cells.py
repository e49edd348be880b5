"""One run's loss on a lattice o + h Z, once as a law that is never better and once as one that is never worse.

Masses are of P and Q on intervals of outcomes, in closed form; the ends of an interval are floats, near to where the
loss meets a lattice point (for the upper law) or the middle of two (for the lower one). :mod:`.sandwich` has the proof.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from jaxacct.verify import sketch
from jaxacct.verify.losses import Loss, Piece, ball, total
from jaxacct.verify.quadrature import TooMuch
from jaxacct.verify.two_runs import pieces

MOST_CELLS = 300_000


@dataclass(frozen=True)
class Lattice:
    """Points offset + step * j, of exact floats, or balls where all losses are such points."""

    offset: Any
    step: Any

    def point(self, j: int) -> arb:
        """Returns the point j."""
        return arb(self.offset) + arb(self.step) * j

    def below(self, y: arb) -> int:
        """Returns a j whose point is certainly at most y, the largest but for y's radius."""
        j = math.floor(float(((y - self.offset) / self.step).lower())) + 1
        while not self.point(j) <= y:
            j -= 1
        return j

    def above(self, y: arb) -> int:
        """Returns a j whose point is certainly at least y."""
        j = self.below(y)
        while not self.point(j) >= y:
            j += 1
        return j


@dataclass(frozen=True)
class Masses:
    """Masses of P on lattice points, and what of P is not among them."""

    points: dict[int, arb] = field(default_factory=dict)
    left_out: list[arb] = field(default_factory=list)

    def add(self, j: int, mass: arb) -> None:
        """Adds a mass."""
        self.points[j] = self.points[j] + mass if j in self.points else mass


def common(runs: sketch.Runs) -> list[Lattice] | None:
    """Returns each law's lattice, of one step, where all losses are points of them; None where there is none."""
    laws = [law for law, _ in runs]
    if len(laws) == 1 and len(laws[0].atoms) == 2 and laws[0].lattice is None:
        low, high = sorted((y for _, y in laws[0].atoms), key=float)
        return [Lattice(low, high - low)]
    if any(law.lattice is None or not law.is_finite for law in laws):
        return None
    steps = [law.lattice[1] for law in laws if law.lattice[1]]
    denominator = math.lcm(*(step.denominator for step in steps))
    step = Fraction(math.gcd(*(int(step * denominator) for step in steps)), denominator)
    return [Lattice(ball(law.lattice[0]), ball(step)) for law in laws] if step else None


def lattice(law: Loss, step: float) -> Lattice:
    """Returns a lattice of a step for a law, on a point of which its heaviest atom or an end of its losses lies."""
    places = [float(y.lower()) for _, y in law.atoms]
    ends = [piece.loss_at(above) for piece in pieces(law) for above in (False, True)]
    bounded = [float(end.lower()) for end in ends if end.is_finite()]
    offset = min(bounded, default=0.0)
    if places:
        heavy = float(max(law.atoms, key=lambda atom: float(atom[0]))[1].lower())
        apart = (max(places) - heavy) / step
        offset = max(places) if abs(apart - round(apart)) < 1e-9 * (1 + apart) else heavy
    # A little lower: what lies there is certainly above the point.
    return Lattice(min(math.nextafter(offset, -math.inf), offset - 1e-14 * step), step)


def dividing(law: Loss, step: float) -> float:
    """Returns a step of at most about this one that divides half the distance of a law's outermost atoms."""
    places = [float(y) for _, y in law.atoms]
    apart = max(places, default=0.0) - min(places, default=0.0)
    return apart / (2 * math.ceil(apart / (2 * step))) * (1 + 1e-15) if apart > step else step


class Measured:
    """Masses of P and Q of a piece between outcomes."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.exponents, coefficients = piece.by_exponent()
        scales = [self._scale(alpha) for alpha in self.exponents]
        self.sides = [[c * scale for c, scale in zip(side, scales, strict=True)] for side in coefficients]

    def _scale(self, alpha: arb) -> arb:
        kappa = self.piece.curvature
        if not kappa > 0:
            return 1 / alpha
        return (arb.pi() / (2 * kappa)).sqrt() * (alpha**2 / (2 * kappa)).exp()

    def before(self, x: arb | None, high: bool) -> tuple[arb, arb]:
        """Returns the masses of P and Q below x, but for constants; None is the end without a bound."""
        kappa = self.piece.curvature
        if x is None:
            parts = [arb(0 if high else -2) for _ in self.exponents]
        elif kappa > 0:
            root = (kappa / 2).sqrt()
            parts = [-((x - alpha / kappa) * root).erfc() for alpha in self.exponents]
        else:
            parts = [(alpha * x).exp() for alpha in self.exponents]
        return tuple(sum((w * v for w, v in zip(side, parts, strict=True)), arb(0)) for side in self.sides)


def _edges(piece: Piece, tiny: float, floor: float) -> tuple[arb | None, arb | None, arb, arb, arb, list[arb]]:
    """Returns where cells start and stop, in the order of losses, the least and the largest loss, P's masses outside.

    The outer masses are those of losses below the least and above the largest: where a loss has no bound the interval
    ends where P's mass beyond is about ``tiny``, and anyway about where the loss is ``floor``.
    """
    ends: list[arb | None] = [piece.low, piece.high]
    limits = [piece.loss_at(False), piece.loss_at(True)]
    outside = [arb(0), arb(0)]
    for i in (0, 1):
        if not limits[i].is_finite():
            unit = float(piece.curvature) ** -0.5
            centres = [float(alpha) * unit**2 for _, alpha in piece.p]
            reach = unit * (math.sqrt(2 * -math.log(tiny)) + 1)
            x = arb(max(centres) + reach if i else min(centres) - reach)
            other = ends[1 - i]
            if other is not None:
                x = x.max(other + unit) if i else x.min(other - unit)
            x = x.mid()
            outside[i] = piece.mass(piece.p, *((x, None) if i else (None, x)))
            ends[i], limits[i] = x, piece.loss(x)
    order = (0, 1) if piece.rises else (1, 0)
    if limits[order[0]] < floor < limits[order[1]]:
        x = arb(float(piece.near(np.array([floor]))[0]))
        i = order[0]
        outside[i] = piece.mass(piece.p, *((x, piece.high) if i else (piece.low, x)))
        ends[i], limits[i] = x, piece.loss(x)
    a, b = order
    return ends[a], ends[b], limits[a], limits[b], outside[a], [outside[b]]


def _cells(piece: Piece, edges: list[arb | None]) -> list[tuple[arb, arb]]:
    """Returns the masses of P and Q between neighbouring outcomes, given in the order of their losses."""
    measured = Measured(piece)
    rises, last = piece.rises, len(edges) - 1
    sums = [measured.before(x, (i == last) == rises) for i, x in enumerate(edges)]
    sign = 1 if rises else -1
    found = [(sign * (b[0] - a[0]), sign * (b[1] - a[1])) for a, b in itertools.pairwise(sums)]
    ordered = edges if rises else edges[::-1]
    if not all(a is None or b is None or a <= b for a, b in itertools.pairwise(ordered)):
        raise TooMuch("a lattice finer than floats")
    return [(p.max(arb(0)), q.max(arb(0))) for p, q in found]


def _under(piece: Piece, x: float, point: arb) -> tuple[arb, arb]:
    """Returns an outcome near x whose loss is certainly at most ``point``, and by how much at most."""
    place, push = arb(x), arb(1)
    for _ in range(12):
        gap = point - (total(piece.p, place) / total(piece.q, place)).log()
        if gap >= 0:
            return place, gap.upper()
        step = push * (abs(gap).upper() + 1e-16) / abs(piece.slope(place))
        place = arb(float(place - step if piece.rises else place + step))
        push *= 4
    raise TooMuch("a lattice point near to where the loss is flat")


def _between(points: Lattice, least: arb, largest: arb) -> tuple[int, int]:
    first, last = points.below(least), points.above(largest)
    if last - first > MOST_CELLS:
        raise TooMuch("more cells than a lattice may have")
    return first, last


def _upper(piece: Piece, points: Lattice, tiny: float, floor: float, found: Masses) -> None:
    if piece.supremum() <= floor:
        found.add(points.above(arb(floor)), piece.mass(piece.p, piece.low, piece.high))
        return
    start, stop, least, largest, below, above = _edges(piece, tiny, floor)
    first, last = _between(points, least, largest)
    inner = [j for j in range(first + 1, last) if points.point(j) > least and points.point(j) < largest]
    if len(inner) != last - first - 1:
        raise TooMuch("a lattice point at the end of the losses")
    guesses = piece.near(np.array([float(points.point(j)) for j in inner]) - 1e-15)
    placed = [_under(piece, x, points.point(j)) for j, x in zip(inner, guesses.tolist(), strict=True)]
    cells = _cells(piece, [start, *(x for x, _ in placed), stop])
    whole = 1 - (-arb(points.step)).exp()
    up, growth = points.point(first).exp(), arb(points.step).exp()
    for i, (p, q) in enumerate(cells):
        miss = placed[i - 1][1] if i else arb(0)
        moved = ((p - q * (up - up * miss)) / whole).upper().max(arb(0)).min(p)
        found.add(first + i, p - moved)
        found.add(first + i + 1, moved)
        up *= growth
    found.add(first, below)
    found.left_out.extend(above)


def _lower(piece: Piece, points: Lattice, tiny: float, floor: float, found: Masses) -> None:
    if piece.supremum() <= floor:
        return
    start, stop, least, largest, _, _ = _edges(piece, tiny, floor)
    first, last = _between(points, least, largest)
    middles = np.array([float(points.point(j)) for j in range(first, last)]) + points.step / 2
    inside = (middles > float(least)) & (middles < float(largest))
    first += int(np.argmax(inside)) if inside.any() else 0
    middles = middles[inside]
    shift = np.zeros(len(middles))
    for attempt in range(2):
        places = np.minimum(middles + shift, float(largest))
        keep = np.flatnonzero(places < float(largest) - 1e-3 * points.step)
        edges = [start, *(arb(x) for x in piece.near(places[keep]).tolist()), stop]
        cells = _cells(piece, edges)
        if attempt == 1:
            break
        with np.errstate(all="ignore"):
            ratio = np.array([float((p / q).log()) if p > 0 and q > 0 else 0.0 for p, q in cells])
        short = np.array([float(points.point(first + i)) for i in range(len(cells))]) - ratio
        short[0] = short[-1] = 0.0
        raised = np.zeros(len(middles))
        lack = np.where(np.isfinite(short), np.clip(short + 1e-14, 0, points.step / 4), 0.0)
        both = np.maximum(lack[:-1], lack[1:]) * 1.2
        raised[keep] = both
        shift = shift + raised
    up, growth = points.point(first).exp(), arb(points.step).exp()
    for i, (p, q) in enumerate(cells):
        j = first + i if p >= q * up else first + i - 1
        if j < first + i and not p * growth >= q * up:
            if not (p > 0 and q > 0):
                up *= growth
                continue
            j = points.below((p / q).log())
        found.add(j, p)
        up *= growth


def exact(law: Loss, points: Lattice, tiny: float, floor: float) -> Masses:
    """Returns the law itself, all of whose losses are points."""
    found = Masses(left_out=[law.lost])
    for p, y in law.atoms:
        found.add(int(((y - points.offset) / points.step + arb(0.5)).floor().unique_fmpz()), p)
    return found


def upper(law: Loss, points: Lattice, tiny: float, floor: float) -> Masses:
    """Returns a law on the lattice that is never better; P's mass left out counts as infinite losses.

    Losses below ``floor`` may be raised to it.
    """
    found = Masses()
    whole = 1 - (-arb(points.step)).exp()
    for p, y in law.atoms:
        j = points.below(y.max(arb(floor)))
        moved = (p * (1 - (points.point(j) - y.max(arb(floor))).exp()) / whole).upper().min(p)
        found.add(j, p - moved)
        found.add(j + 1, moved)
    for piece in pieces(law):
        _upper(piece, points, tiny, floor, found)
    found.left_out.append(law.lost)
    return found


def lower(law: Loss, points: Lattice, tiny: float, floor: float) -> Masses:
    """Returns a law on the lattice that is never worse; losses below ``floor`` may be missing."""
    found = Masses()
    for p, y in law.atoms:
        if y >= floor:
            found.add(points.below(y), p)
    for piece in pieces(law):
        _lower(piece, points, tiny, floor, found)
    return found
