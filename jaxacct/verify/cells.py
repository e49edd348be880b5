"""Discrete laws of the privacy loss, and delta from their sums: lattice laws, lists of sums, composed lattice laws.

A law with finitely many losses is composed by listing its sums. A law with a density is enclosed by two laws on a
lattice o + h Z: an upper one, under which no delta of any composition is smaller, and a lower one, under which none is
larger. Both are composed as polynomials, and delta lies between the two values. This is the way where the
characteristic function falls too slowly for a contour integral.

In reading order:

- :class:`Lattice` to :func:`lower`: one run's law on a lattice, above and below. Masses of P and Q on intervals of
  outcomes are in closed form. The ends of an interval are floats, near to where the loss meets a lattice point (upper
  law) or the middle of two (lower law). The proof stands before :class:`Tilted`.
- :func:`sums` to :func:`delta`: the sums of finitely many losses, and delta from them.
- :class:`Composed`: the two composed laws on a lattice, and delta between them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb, arb_poly, ctx

from jaxacct.verify import contour
from jaxacct.verify.contour import Loss, Piece, TooMuch, ball, total
from jaxacct.verify.statements import pieces


@dataclass(frozen=True)
class Lattice:
    """The points offset + step * j for whole j; both numbers are exact floats, or balls where every loss is a point."""

    offset: Any
    step: Any

    def point(self, j: int) -> arb:
        """Returns the point j."""
        return arb(self.offset) + arb(self.step) * j

    def below(self, y: arb) -> int:
        """Returns a j whose point is certainly at most y, the largest but for y's radius."""
        # The division only guesses j; the comparison of balls decides, and holds after at most a few steps down.
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
    """Masses of P on lattice points, and the masses of P that lie on none."""

    points: dict[int, arb] = field(default_factory=dict)
    left_out: list[arb] = field(default_factory=list)

    def add(self, j: int, mass: arb) -> None:
        """Adds a mass."""
        self.points[j] = self.points[j] + mass if j in self.points else mass


def common(runs: contour.Runs) -> list[Lattice] | None:
    """Returns a lattice for each law, all of one step, on which all its losses lie; None where there is none."""
    laws = [law for law, _ in runs]
    # Two losses always lie on a lattice, that of their difference; more do where a law knows its own exact one.
    if len(laws) == 1 and len(laws[0].atoms) == 2 and laws[0].lattice is None:
        low, high = sorted((y for _, y in laws[0].atoms), key=float)
        return [Lattice(low, high - low)]
    if any(law.lattice is None or not law.is_finite for law in laws):
        return None
    # The common step is the greatest common divisor of the steps as fractions; a step of 0 is a single loss.
    steps = [law.lattice[1] for law in laws if law.lattice[1]]
    denominator = math.lcm(*(step.denominator for step in steps))
    step = Fraction(math.gcd(*(int(step * denominator) for step in steps)), denominator)
    return [Lattice(ball(law.lattice[0]), ball(step)) for law in laws] if step else None


def lattice(law: Loss, step: float) -> Lattice:
    """Returns a lattice of the given step, one of whose points is a law's heaviest atom or an end of its losses."""
    places = [float(y.lower()) for _, y in law.atoms]
    ends = [piece.loss_at(above) for piece in pieces(law) for above in (False, True)]
    bounded = [float(end.lower()) for end in ends if end.is_finite()]
    offset = min(bounded, default=0.0)
    if places:
        heavy = float(max(law.atoms, key=lambda atom: float(atom[0]))[1].lower())
        distance = (max(places) - heavy) / step
        offset = max(places) if abs(distance - round(distance)) < 1e-9 * (1 + distance) else heavy
    # The offset is lowered a little, so that the loss there is certainly above the point.
    return Lattice(min(math.nextafter(offset, -math.inf), offset - 1e-14 * step), step)


def dividing(law: Loss, step: float) -> float:
    """Returns a step of at most about the given one that divides half the distance of a law's outermost atoms."""
    places = [float(y) for _, y in law.atoms]
    width = max(places, default=0.0) - min(places, default=0.0)
    return width / (2 * math.ceil(width / (2 * step))) * (1 + 1e-15) if width > step else step


def _edges(piece: Piece, tiny: float, floor: float) -> tuple[arb | None, arb | None, arb, arb, arb, list[arb]]:
    """Returns the outcomes at which cells start and stop, the loss there, and P's masses below and above these losses.

    Start and stop are in the order of losses. Where a loss has no bound the cells end where P's mass beyond is about
    ``tiny``; at the lower end they start no lower than about where the loss is ``floor``.
    """
    ends: list[arb | None] = [piece.low, piece.high]
    limits = [piece.loss_at(False), piece.loss_at(True)]
    outside = [arb(0), arb(0)]
    # An end with an infinite loss moves inwards. Floats choose the place, and the mass beyond it is counted as a ball.
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
    """Returns the masses of P and Q between neighbouring outcomes, given in the order of their losses.

    P and Q share the noise, so one value of ``erfc`` or ``exp`` for each exponent serves both. Raises TooMuch where the
    outcomes are not certainly in order, as where cells are narrower than floats can tell.
    """
    kappa, rises, last = piece.curvature, piece.rises, len(edges) - 1
    exponents, coefficients = piece.by_exponent()

    def factor(alpha: arb) -> arb:
        """Returns the factor of an exponent's ``erfc`` or ``exp`` in the integral of e^(-kappa x^2 / 2 + alpha x)."""
        return (arb.pi() / (2 * kappa)).sqrt() * (alpha**2 / (2 * kappa)).exp() if kappa > 0 else 1 / alpha

    factors = [factor(alpha) for alpha in exponents]
    sides = [[c * factor for c, factor in zip(side, factors, strict=True)] for side in coefficients]

    def before(x: arb | None, high: bool) -> list[arb]:
        """Returns the masses of P and Q below x, but for additive constants; x = None is an infinite end."""
        if x is None:
            parts = [arb(0 if high else -2) for _ in exponents]
        elif kappa > 0:
            root = (kappa / 2).sqrt()
            parts = [-((x - alpha / kappa) * root).erfc() for alpha in exponents]
        else:
            parts = [(alpha * x).exp() for alpha in exponents]
        return [sum((w * v for w, v in zip(side, parts, strict=True)), arb(0)) for side in sides]

    sums = [before(x, (i == last) == rises) for i, x in enumerate(edges)]
    sign = 1 if rises else -1
    cells = [(sign * (b[0] - a[0]), sign * (b[1] - a[1])) for a, b in itertools.pairwise(sums)]
    ordered = edges if rises else edges[::-1]
    if not all(a is None or b is None or a <= b for a, b in itertools.pairwise(ordered)):
        raise TooMuch("a lattice finer than floats")
    return [(p.max(arb(0)), q.max(arb(0))) for p, q in cells]


def _under(piece: Piece, x: float, point: arb) -> tuple[arb, arb]:
    """Returns an outcome near x whose loss is certainly at most ``point``, and a bound on how far it is below."""
    # Newton's step from the certain excess, four times as long at each try: where the loss is flat, one is not enough.
    place, push = arb(x), arb(1)
    for _ in range(12):
        gap = point - (total(piece.p, place) / total(piece.q, place)).log()
        if gap >= 0:
            return place, gap.upper()
        step = push * (abs(gap).upper() + 1e-16) / abs(piece.slope(place))
        place = arb(float(place - step if piece.rises else place + step))
        push *= 4
    raise TooMuch("a lattice point near to where the loss is flat")


def _lattice_beyond(points: Lattice, least: arb, largest: arb) -> tuple[int, int]:
    """Returns the lattice points at or outside the least and the largest loss."""
    first, last = points.below(least), points.above(largest)
    if last - first > 300_000:  # any number is sound
        raise TooMuch("more cells than a lattice may have")
    return first, last


def _upper(piece: Piece, points: Lattice, tiny: float, floor: float, masses: Masses) -> None:
    """Adds a piece's masses to the upper law."""
    if piece.supremum() <= floor:
        masses.add(points.above(arb(floor)), piece.mass(piece.p, piece.low, piece.high))
        return
    start, stop, least, largest, below, above = _edges(piece, tiny, floor)
    first, last = _lattice_beyond(points, least, largest)
    inner = [j for j in range(first + 1, last) if points.point(j) > least and points.point(j) < largest]
    if len(inner) != last - first - 1:
        raise TooMuch("a lattice point at the end of the losses")
    guesses = piece.near(np.array([float(points.point(j)) for j in inner]) - 1e-15)
    placed = [_under(piece, x, points.point(j)) for j, x in zip(inner, guesses.tolist(), strict=True)]
    cells = _cells(piece, [start, *(x for x, _ in placed), stop])
    step_share = 1 - (-arb(points.step)).exp()
    ratio, growth = points.point(first).exp(), arb(points.step).exp()
    # A cell's p and q go to its two ends. ``ratio`` is e^y of the lower end; each cell multiplies it by one factor.
    # ``miss``, eta of the proof, is how far the cell's losses may reach below y: so much of q may be lost. Rounding
    # enlarges the part moved up and keeps P's mass, so that it only makes the law worse.
    for i, (p, q) in enumerate(cells):
        miss = placed[i - 1][1] if i else arb(0)
        moved = ((p - q * (ratio - ratio * miss)) / step_share).upper().max(arb(0)).min(p)
        masses.add(first + i, p - moved)
        masses.add(first + i + 1, moved)
        ratio *= growth
    masses.add(first, below)
    masses.left_out.extend(above)


def _lower(piece: Piece, points: Lattice, tiny: float, floor: float, masses: Masses) -> None:
    """Adds a piece's masses to the lower law."""
    if piece.supremum() <= floor:
        return
    start, stop, least, largest, _, _ = _edges(piece, tiny, floor)
    first, last = _lattice_beyond(points, least, largest)
    middles = np.array([float(points.point(j)) for j in range(first, last)]) + points.step / 2
    inside = (middles > float(least)) & (middles < float(largest))
    first += int(np.argmax(inside)) if inside.any() else 0
    middles = middles[inside]
    shift = np.zeros(len(middles))
    # The first pass cuts at the middles of points and finds by how much each cell's log p/q is short of its point. The
    # second cuts a little higher, so that few cells fall by a whole step when they are lowered to a lattice point.
    # Any cut is sound: floats only choose it.
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
    edge_ratio, growth = points.point(first).exp(), arb(points.step).exp()
    # Each cell's p goes to a point certainly at or below log p/q, mostly its own or the one before: no logarithm then.
    for i, (p, q) in enumerate(cells):
        j = first + i if p >= q * edge_ratio else first + i - 1
        if j < first + i and not p * growth >= q * edge_ratio:
            if not (p > 0 and q > 0):
                edge_ratio *= growth
                continue
            j = points.below((p / q).log())
        masses.add(j, p)
        edge_ratio *= growth


def exact(law: Loss, points: Lattice, tiny: float, floor: float) -> Masses:
    """Returns the law itself, all of whose losses are points; ``tiny`` and ``floor`` are not used."""
    masses = Masses(left_out=[law.lost])
    for p, y in law.atoms:
        masses.add(int(((y - points.offset) / points.step + arb(0.5)).floor().unique_fmpz()), p)
    return masses


def upper(law: Loss, points: Lattice, tiny: float, floor: float) -> Masses:
    """Returns a law on the lattice under which no delta is smaller; P's mass left out counts as infinite losses.

    Losses below ``floor`` may be raised to it.
    """
    masses = Masses()
    # An atom between two points is shared among them as a cell's mass is, with q = p e^(-y).
    step_share = 1 - (-arb(points.step)).exp()
    for p, y in law.atoms:
        j = points.below(y.max(arb(floor)))
        moved = (p * (1 - (points.point(j) - y.max(arb(floor))).exp()) / step_share).upper().min(p)
        masses.add(j, p - moved)
        masses.add(j + 1, moved)
    for piece in pieces(law):
        _upper(piece, points, tiny, floor, masses)
    masses.left_out.append(law.lost)
    return masses


def lower(law: Loss, points: Lattice, tiny: float, floor: float) -> Masses:
    """Returns a law on the lattice under which no delta is larger; losses below ``floor`` may be missing."""
    masses = Masses()
    for p, y in law.atoms:
        if y >= floor:
            masses.add(points.below(y), p)
    for piece in pieces(law):
        _lower(piece, points, tiny, floor, masses)
    return masses


# ----------------------------------------------------------------------------------------------------
# Lists of sums: delta of finitely many losses, exact but for the balls' own rounding.
#
# The k runs of a law with m atoms have as many types as k has splits into m counts, each with a multinomial coefficient
# as its weight. On a lattice the types of one sum are one coefficient of a power of a polynomial. Two lists are enough
# for any number of laws: for each entry a of the one, the entries b > eps - a of the other are an end of it when it is
# sorted, whose masses of P and of Q are running sums.
# ----------------------------------------------------------------------------------------------------


Sums = list[tuple[arb, arb]]
"""Masses under P and losses, as the atoms of a law, of sums of losses."""


def sums(law: Loss, count: int, tilt: float, most: int) -> Sums:
    """Returns the sums of ``count`` losses, at most so many; on a lattice a fifth, as transforms do better there.

    Masses are precise where e^(tilt * loss) times the mass is not small.
    """
    size = len(law.atoms)
    if law.lattice is not None or size == 2:
        return _on_lattice(law, count, tilt, most // 5)
    if math.comb(count + size - 1, size - 1) > most:
        raise TooMuch(f"{count} runs of {size} losses have more than {most} sums")
    partial = [(count, arb(1), arb(0))]
    # One atom after the other takes j of the runs that are left. ``partial`` holds the number left, with the mass and
    # sum so far; the update of ``mass`` makes the binomial coefficient C(left, j).
    for p, y in law.atoms[:-1]:
        grown = []
        for left, mass, loss in partial:
            for j in range(left + 1):
                grown.append((left - j, mass, loss + j * y))
                mass = mass * p * (left - j) / (j + 1)
        partial = grown
    # The last atom takes all that are left.
    p, y = law.atoms[-1]
    return [(mass * p**left, loss + left * y) if left else (mass, loss) for left, mass, loss in partial]


def _on_lattice(law: Loss, count: int, tilt: float, most: int) -> Sums:
    """Returns :func:`sums` of a law on a lattice, as coefficients of a power of a polynomial.

    The polynomial has tilted masses: its power's balls have radii relative to the largest coefficient, which the tilt
    puts where the masses are wanted.
    """
    atoms = sorted(law.atoms, key=lambda atom: float(atom[1]))
    if len(atoms) == 1:
        return [(atoms[0][0] ** count, count * atoms[0][1])]
    low = atoms[0][1]
    step = ball(law.lattice[1]) if law.lattice is not None else atoms[1][1] - low
    places = [int((((y - low) / step + arb(0.5)).floor().unique_fmpz()) or 0) for _, y in atoms]
    if places[-1] * count > most:
        raise TooMuch(f"more than {most} sums on a lattice")
    t = arb(tilt)
    coefficients = [arb(0)] * (places[-1] + 1)
    for place, (p, y) in zip(places, atoms, strict=True):
        coefficients[place] += p * (t * (y - low)).exp()
    powers = (arb_poly(coefficients) ** count).coeffs()
    # The tilt is undone point by point.
    turn, weight, entries = (-t * step).exp(), arb(1), []
    for j, mass in enumerate(powers):
        entries.append((mass * weight, count * low + j * step))
        weight *= turn
    return entries


def list_sums(runs: contour.Runs, tilt: float, most: int = 600_000, count: int = 2) -> list[Sums]:
    """Returns at most ``count`` lists of sums, one entry of each adding up to the composition's sums.

    Two short lists are joined into one. A list has at most ``most`` sums; any number is sound.
    """
    # The two shortest lists become the list of their sums, so the number of lists falls by one each time.
    lists = sorted((sums(law, k, tilt, most) for law, k in runs), key=len)
    while len(lists) > count or (len(lists) == 2 and len(lists[0]) * len(lists[1]) <= 1000):
        if len(lists[0]) * len(lists[1]) > most:
            raise TooMuch(f"more than {most} sums")
        product = [(p * q, x + y) for p, x in lists[0] for q, y in lists[1]]
        lists = sorted([product, *lists[2:]], key=len)
    return lists


def delta(runs: contour.Runs, epsilon: arb, tilt: float) -> arb:
    """Returns a ball that holds the delta at ``epsilon``, finite losses alone."""
    lists = list_sums(runs, tilt)
    short, long = lists if len(lists) == 2 else ([(arb(1), arb(0))], lists[0])
    if not long:
        return arb(0)
    # All losses get the largest radius, so that the order of the midpoints is the order of the balls.
    radius = max((float(loss.rad()) for _, loss in long), default=0.0) * 1.001
    order = sorted((loss.mid(), i) for i, (_, loss) in enumerate(long))
    losses = [arb(middle, radius) for middle, _ in order]
    masses = [long[i][0] for _, i in order]
    # Entry i of the running sums has the i largest losses.
    p_above, q_above = [arb(0)], [arb(0)]
    for loss, mass in zip(reversed(losses), reversed(masses), strict=True):
        p_above.append(p_above[-1] + mass)
        q_above.append(q_above[-1] + mass * (-loss).exp())
    size, j = len(losses), len(losses)
    total = arb(0)
    # Thresholds rise from entry to entry, so j only moves on, but for rounding: losses[j:] are certainly above the
    # threshold. A loss that is certainly neither above nor below adds a ball from 0 to the most that it can.
    for mass, loss in sorted(short, key=lambda entry: -float(entry[1])):
        threshold = epsilon - loss
        while j < size and not losses[j] > threshold:
            j += 1  # the order by floats may be off by their rounding
        while j > 0 and losses[j - 1] > threshold:
            j -= 1
        total += mass * (p_above[size - j] - threshold.exp() * q_above[size - j])
        i = j - 1
        while i >= 0 and not losses[i] < threshold:
            total += arb(0).union((mass * masses[i] * (1 - (threshold - losses[i]).exp()).max(arb(0))).upper())
            i -= 1
    lost = sum((law.lost * k for law, k in runs), arb(0))
    return total + arb(0).union(lost.upper()) if lost > 0 else total


# ----------------------------------------------------------------------------------------------------
# Composed lattice laws: delta between two values, where a transform falls too slowly for a contour integral.
#
# With Z = e^(-Y) and the other runs fixed, a run enters delta as E[g(Y)] for g(y) = E[(1 - e^(eps - y - S'))+], which
# is increasing in y and, as (1 - cZ)+ is, convex in Z; and E[Z; a cell] is Q's mass there. So one run's law may be
# replaced, one run after the other:
#
# - *Above:* a cell's masses (p, q) of losses in [y, y + h] are put on the two ends, with the same p and q:
#   (p - q e^y) / (1 - e^(-h)) on the upper one, the rest on the lower one. On an interval a convex function is at most
#   its chord. Losses may also be raised: those by up to eta too low for their cell become y, which takes at most a
#   share eta of q away, and the losses below all cells go to the lowest point.
# - *Below:* a cell's mass p is put on log p/q, by Jensen's inequality: the law of the loss for an observer who is told
#   the cell alone. Then the loss is lowered to a lattice point. The cells reach from the middle of two points to the
#   next, a little higher, so that log p/q is at or just above a point. Mass may be dropped.
#
# Either moves the loss by a multiple of h^2 at most, but for the ends of a density. Sums of lattice losses are products
# of polynomials. With the tilt t masses are kept times e^(ty); as (1 - e^(eps - y))+ <= C e^(t (y - eps)) with C = t^t
# / (1 + t)^(1 + t), tilted mass r that is cut away adds at most C e^(-t eps) r to delta, and P's mass beyond the cells
# adds at most itself. Both are added above; below, mass that is cut is dropped.
#
# Where all losses are points of one lattice already, both laws are the law itself: :func:`exact`.
#
# Source: the two directions of "connect the dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), with the
# joining of cells as a post-processing.
# ----------------------------------------------------------------------------------------------------


TAIL = 34.0
"""Negative natural logarithm of the share of tilted mass and of delta that windows leave out: e^-34 = 2e-15.

Any value is sound: the mass cut is counted.
"""


@dataclass(frozen=True)
class Tilted:
    """A tilted law: masses on consecutive lattice points from ``start`` on, and a bound on the mass cut away."""

    start: int
    poly: arb_poly
    cut: arb

    def mass(self) -> arb:
        """Returns the sum of the masses kept."""
        return self.poly(arb(1))


def _place_others(runs: contour.Runs, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns tilts below and above t, and log E[e^(uY)] there less that at t, one row for each law, by floats."""
    # Tilts no larger than those that the float cumulants' grids can hold.
    reach = [1500 * float(p.curvature) ** 0.5 / float(max(abs(a) for _, a in (*p.p, *p.q)) + 1e-9)
             for law, _ in runs for p in pieces(law) if p.curvature > 0]  # fmt: skip
    beyond = max(t, min([1e3 * max(t, 1.0), *reach]) - t)
    below = np.geomspace(1e-3, 1, 20) * t
    others = t + np.concatenate([-below, -t - np.geomspace(0.1, 30, 12), np.geomspace(1e-3 * t, beyond, 30)])
    table = np.array([[contour.cumulants(law, u)[0] for u in (t, *others)] for law, _ in runs])
    return others, table[:, 1:] - table[:, :1]


class Composed:
    """A composition's upper and lower laws on a lattice of about ``size`` points, for delta at any epsilon.

    The ball is valid at every epsilon, and narrow near the one that the tilt was chosen for.

    Args:
        runs: laws and how often each is run.
        epsilon: the epsilon that the tilt is chosen for.
        size: number of lattice points across the window.
        points: lattices on which all losses lie already, which replace ``size`` and make both laws exact.
        beyond: further mass to count as infinite losses in the upper value.
    """

    def __init__(
        self,
        runs: contour.Runs,
        epsilon: float,
        size: int,
        points: list[Lattice] | None = None,
        beyond: arb | None = None,
    ) -> None:
        self.t = contour.sketched_saddle(runs, epsilon)
        sides = (exact,) if points else (upper, lower)
        # Exact laws are cropped less: e^-46 = 1e-20. Any value is sound.
        self.tail = 46.0 if points else TAIL
        self.others, self.cumulants = _place_others(runs, self.t)
        counts = np.array([float(k) for _, k in runs])
        low, high = self._window(counts)
        low = max(low, sum(k * _infimum(law) for law, k in runs))
        high = min(high, sum(k * float(law.supremum()) for law, k in runs))
        if points is None:
            heaviest = max(runs, key=lambda run: run[1] * bool(run[0].atoms))[0]
            points = [lattice(law, dividing(heaviest, (high - low) / size)) for law, _ in runs]
        elif high - low > 2**19 * points[0].step:  # any number is sound
            raise TooMuch("a window of too many lattice points")
        self.points, self.step = points, points[0].step
        self.offset = sum((arb(own.offset) * k for own, (_, k) in zip(points, runs, strict=True)), arb(0))
        logs = [contour.cumulants(law, self.t)[0] for law, _ in runs]
        self.scale = sum((arb(k) * log for (_, k), log in zip(runs, logs, strict=True)), arb(0))
        tiny = math.exp(max(-650.0, contour.sketched_log_delta(runs, self.t, epsilon) - TAIL)) / float(np.sum(counts))
        self.missing = arb(0) if beyond is None else beyond
        self.ends: list[tuple[arb, list[arb], list[arb], int]] = []
        # Each law is tilted, cropped to its window and raised to its count, and the powers are multiplied. ``counted``
        # follows how many runs of each law the product has, which decides the window that it is cropped to.
        for side in sides:
            total: Tilted | None = None
            counted = np.zeros(len(runs))
            # Law by law: the masses of one run are tilted, cropped, raised to their power, and multiplied into the
            # product.
            for i, ((law, k), own, log) in enumerate(zip(runs, points, logs, strict=True)):
                masses = side(law, own, tiny, (log - TAIL) / self.t)
                if side is not lower:
                    self.missing += k * sum(masses.left_out, arb(0))
                alone = np.zeros(len(runs))
                alone[i] = 1
                one = self._crop(self._tilt(masses, own, log), alone)
                power = self._power(one, k, alone)
                counted = counted + k * alone
                total = power if total is None else self._product(total, power, counted)
            assert total is not None
            self.ends.append(self._sums(total))

    def _window(self, counts: np.ndarray) -> tuple[float, float]:
        """Returns the least and the largest sum of ``counts`` runs of each law, but for about e^-tail of tilted mass.

        They are the best of Chernoff's bounds, by floats. Nothing proved rests on them: the mass outside is bounded in
        balls when it is cut.
        """
        k = counts @ self.cumulants
        with np.errstate(all="ignore"):
            ends = (k + self.tail) / (self.others - self.t)
        ends = np.where(np.isfinite(ends), ends, np.where(self.others > self.t, np.inf, -np.inf))
        return float(np.max(ends[self.others < self.t])), float(np.min(ends[self.others > self.t]))

    def _tilt(self, masses: Masses, points: Lattice, log: float) -> Tilted:
        """Returns the masses times e^(ty - log): with ``log`` the cumulant at t, about 1 in all."""
        start, stop = min(masses.points), max(masses.points)
        tilted = [arb(0)] * (stop - start + 1)
        t = arb(self.t)
        turn, weight = (t * points.step).exp(), (t * points.point(start) - log).exp()
        # The weight goes from point to point by one product, whose rounding adds up: hence the further bits.
        with ctx.workprec(ctx.prec + 40):
            for j in range(start, stop + 1):
                if j in masses.points:
                    tilted[j - start] = (masses.points[j] * weight).max(arb(0))
                weight *= turn
        return Tilted(start, arb_poly(tilted), arb(0))

    def _crop(self, law: Tilted, counts: np.ndarray) -> Tilted:
        """Returns a law without the masses outside its window, which are added to what is cut."""
        low, high = self._window(counts)
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
        """Returns the law of a sum of two independent sums; its cut mass counts every product with a cut factor."""
        cut = arb(0)
        if a.cut > 0 or b.cut > 0:
            cut = (a.cut * (b.mass() + b.cut) + a.mass() * b.cut).upper()
        return self._crop(Tilted(a.start + b.start, a.poly * b.poly, cut), counts)

    def _power(self, one: Tilted, count: int, alone: np.ndarray) -> Tilted:
        """Returns the law of ``count`` runs, by squaring along the binary digits of ``count`` from the second on."""
        power = one
        # ``done`` is the number formed by the leading digits so far, so ``power`` is its power after each step.
        for i, bit in enumerate(bin(count)[3:], 1):
            done = count >> (count.bit_length() - i - 1)
            power = self._product(power, power, alone * (done - done % 2))
            if bit == "1":
                power = self._product(power, one, alone * done)
        return power

    def _sums(self, law: Tilted) -> tuple[arb, list[arb], list[arb], int]:
        """Returns the mass cut, for each i the untilted masses of P and Q on the last i points, and the last point."""
        coefficients = law.poly.coeffs()
        last = law.start + len(coefficients) - 1
        top = self.offset + arb(self.step) * last
        p, q, sums_p, sums_q = arb(0), arb(0), [arb(0)], [arb(0)]
        over_p, over_q = (-self.t * top + self.scale).exp(), (-(arb(self.t) + 1) * top + self.scale).exp()
        turn_p, turn_q = (arb(self.t) * self.step).exp(), ((arb(self.t) + 1) * self.step).exp()
        # From the largest loss down: a mass of P is the tilted one times e^(-ty), a mass of Q times e^(-(t + 1) y).
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
        # The measures above and below: each gives a bound on delta at epsilon.
        for _, sums_p, sums_q, last in self.ends:
            # P's mass less e^eps times Q's is largest over the points above eps; floats know their number to within 1.
            near = [min(max(last - math.floor(ratio) + i, 0), len(sums_p) - 1) for i in (-1, 0, 1)]
            differences = [sums_p[i] - epsilon.exp() * sums_q[i] for i in near]
            values.append(differences[0].max(differences[1]).max(differences[2]))
        front = (contour.log_peak(t) - t * epsilon + self.scale).exp()
        above = values[0] + self.ends[0][0] * front + self.missing
        return values[-1].lower().max(arb(0)).union(above.upper())


def _infimum(law) -> float:
    """Returns the infimum of a law's losses."""
    ends = [float(y) for _, y in law.atoms]
    ends += [float(piece.loss_at(not piece.rises)) for piece in pieces(law)]
    return min(ends)
