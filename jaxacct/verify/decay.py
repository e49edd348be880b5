"""How far |M(t + iw)| falls beyond a frequency: the bounds of :mod:`.quadrature`, placed by floats, proved in balls."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from flint import acb, arb

from jaxacct.verify import sketch
from jaxacct.verify.losses import Loss, Piece, Terms, log_total
from jaxacct.verify.quadrature import WIDEST, Tilt, _base, spread

SHIFTS = (0.03, 0.06, 0.12, 0.25, 0.45, 0.7, 1.0, 1.4, 2.0, 3.0)
"""Distances that a path is moved by, in units of the noise."""

TINY = 1e-60
"""Share of M(t) that is not looked at closely."""


def bound(law: Loss, t: arb, frequency: float, shifts: list[float]) -> arb:
    """Returns a bound on |M(t + iw)| for all w >= ``frequency``, the pieces' paths moved by ``shifts``."""
    value = sum((p * (t * y).exp() for p, y in law.atoms), arb(0))
    tiny = arb(sketch.cumulants(law, float(t))[0]).exp() * TINY
    for piece, shift in zip(law.pieces, shifts, strict=True):
        value += _piece(Tilt(piece, t), arb(frequency), arb(shift), tiny)
    return value.upper()


def _piece(tilt: Tilt, frequency: arb, v: arb, tiny: arb) -> arb:
    piece = tilt.piece
    if not (spread(piece.p) * v < WIDEST and spread(piece.q) * v < WIDEST):
        return arb.pos_inf()
    value = tilt.growth(v) * tilt.ends()[2]
    for middle, half, above in tilt.cells(0.06 if piece.curvature > 0 else 0.01, tiny):
        least = _argument(piece, acb(arb(middle, half), v if piece.rises else -v))
        value += tilt.growth(v, middle - half, middle + half) * above * (-frequency * least).exp()
    for end in (piece.low, piece.high):
        if end is None:
            continue
        # Up to the path, in steps that widen: the argument starts at 0.
        density, low = tilt.log_density(end).exp(), arb(0)
        for i in range(60):
            high = v * arb(2) ** (i - 59) if i < 40 else v * arb(i - 39) / 20 if i > 40 else v / 20
            high = high.max(low)
            if not high > low:
                continue
            middle, half = (low + high) / 2, (high - low) / 2
            height = arb(middle, half)
            least = _argument(piece, acb(end, height if piece.rises else -height))
            value += tilt.growth(high, end, end) * density * (high - low) * (-frequency * least).exp()
            low = high
    return value


def _argument(piece: Piece, z: acb) -> arb:
    """Returns a lower bound of |arg r| over a ball on the side of the line where it is at least 0."""

    def turned(terms: Terms, least: bool) -> arb:
        c, alpha = _base(terms, least)
        if len(terms) == 1:
            return arb(0)
        others = sum((d * ((beta - alpha) * z).exp() for d, beta in terms if beta != alpha), acb(c))
        angle = abs(others.arg())
        return arb(angle.abs_lower()) if angle.is_finite() else arb(0)

    rises = piece.rises
    apart = abs(_base(piece.p, rises)[1] - _base(piece.q, not rises)[1]) * arb(abs(z.imag).abs_lower())
    return turned(piece.p, rises) + turned(piece.q, not rises) + apart


@dataclass(frozen=True)
class Table:
    """Floats: for rising frequencies, about the log of what :func:`bound` gives over M(t), and the shifts.

    ``bounds`` has by their rows those that were proved.
    """

    frequencies: np.ndarray
    logs: np.ndarray
    shifts: list[list[float]]
    variance: float | None = None
    bounds: dict[int, arb] = field(default_factory=dict)

    def at(self, frequency: float) -> tuple[float, int, int]:
        """Returns the log of the bound on |phi| beyond ``frequency``, the table's row and the multiple n used."""
        if self.variance is not None:
            return -self.variance * frequency**2 / 2, 0, 1
        n = np.maximum(1.0, np.ceil(self.frequencies / frequency))
        square = np.minimum(np.exp(2 * self.logs), 1.0)
        with np.errstate(divide="ignore"):
            logs = np.where(n > 1, 0.5 * np.log1p(-(1 - square) / n**2), np.minimum(self.logs, 0.0))
        row = int(np.argmin(logs))
        return float(logs[row]), row, int(n[row])

    def proved(self, law: Loss, t: arb, frequency: float, top: arb) -> Table:
        """Returns the table with the row for ``frequency`` proved; ``top`` is M(t)."""
        log, row, _ = self.at(frequency)
        if log >= 0 or not law.pieces or row in self.bounds:
            return self
        beyond = bound(law, t, float(self.frequencies[row]), self.shifts[row])
        logs, found = self.logs.copy(), float((beyond / top).log())
        logs[row] = found if found < 0 else 0.0
        return replace(self, logs=logs, bounds={**self.bounds, row: beyond})


def table(law: Loss, t: float) -> Table:
    """Returns where the bounds of a law are worth having."""
    k, _, variance = sketch.cumulants(law, t)
    if law.normal is not None:
        return Table(np.zeros(1), np.zeros(1), [[]], variance)
    frequencies = np.geomspace(0.3, 1e6, 60) / math.sqrt(variance) if variance > 0 else np.ones(1)
    log_masses, places = sketch._atoms(law)
    atoms = np.sum(np.exp(np.minimum(0.0, log_masses + t * places - k)))
    sums = np.full(len(frequencies), float(atoms))
    shifts: list[list[float]] = [[] for _ in frequencies]
    for piece in law.pieces:
        found = _rows(piece, t, k, frequencies)
        for i in range(len(frequencies)):
            j = int(np.argmin(found[1][:, i]))
            sums[i] += 1.06 * found[1][j, i]
            shifts[i].append(found[0][j])
    return Table(frequencies, np.log(np.maximum(sums * 1.0001, 1e-300)), shifts)


def _rows(piece: Piece, t: float, k: float, frequencies: np.ndarray) -> tuple[list[float], np.ndarray]:
    x = sketch._grid(piece, t)
    kappa, widths = float(piece.curvature), [float(spread(side)) for side in (piece.p, piece.q)]
    apart = [abs(float(a) - float(b)) for _, a in piece.p for _, b in piece.q]
    unit = kappa**-0.5 if kappa > 0 else 1 / max(apart)
    log_f = (1 + t) * log_total(piece.p, x) - t * log_total(piece.q, x) - kappa * x**2 / 2 - k
    dx = x[1] - x[0]
    largest = np.exp(np.max([float(c.log()) + float(a) * x for c, a in piece.q], axis=0) - log_total(piece.q, x))
    mixed = np.minimum(1 - largest**2, 0.5)
    shifts: list[float] = []
    rows = []
    for shift in SHIFTS:
        v = shift * unit
        if max(widths) * v >= WIDEST - 0.01:
            break
        growth = kappa * v * v / 2 - t / 2 * np.log(1 - mixed * (1 - math.cos(widths[1] * v)))
        turn = sum(np.abs(_turn(side, x, v)) for side in _sides(piece))
        row = np.exp(np.minimum(log_f + growth + math.log(dx), 700.0))[None] * np.exp(-np.outer(frequencies, turn))
        value = np.sum(row, axis=1)
        for end, at in ((piece.low, 0), (piece.high, -1)):
            if end is not None:
                rate = float(piece.slope(end).mid())
                value += np.exp(min(700.0, log_f[at] + growth[at])) / np.maximum(1 / v, frequencies * abs(rate))
        shifts.append(v)
        rows.append(value)
    if not shifts:
        return [0.0], np.full((1, len(frequencies)), np.inf)
    return shifts, np.array(rows)


def _sides(piece: Piece) -> list[tuple[list[float], list[float]]]:
    """Returns log coefficients and exponents of P and of Q, from the exponent of P nearest to Q's for both."""
    base = float(_base(piece.p, piece.rises)[1])
    return [([float(c.log()) for c, _ in side], [float(a) - base for _, a in side]) for side in (piece.p, piece.q)]


def _turn(side: tuple[list[float], list[float]], x: np.ndarray, v: float) -> np.ndarray:
    logs = np.array([c + a * x for c, a in zip(*side, strict=True)])
    weights = np.exp(logs - np.max(logs, axis=0))
    angles = np.array(side[1])[:, None] * v
    return np.arctan2(np.sum(weights * np.sin(angles), axis=0), np.sum(weights * np.cos(angles), axis=0))
