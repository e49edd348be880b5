"""Outcomes that no one sees, taken out of the laws: few runs at small rates are judged by what is likely.

A subsampled run's losses log(1 - q + q e^x) grow as outcomes do, though P gives those hardly any mass. Under a tilt t
they weigh q^t e^(t^2 / (2 s^2)), which is above all others from t = 2 s^2 log(1/q) on. So the best tilt of the law as
it is stays below, however narrow the losses are that delta comes from, and a sum over frequencies is long. Without the
outcomes beyond a place the best tilt may be a hundred times as large.

*Proof.* Beyond its place a run has P's mass m. On runs none of which is beyond, the laws are those cut, and the rest of
E[(1 - e^(eps - S))+] lies in [0, sum of the m]. So delta is that of the cut laws plus a number between 0 and this sum.
"""

from __future__ import annotations

import dataclasses
import math

from flint import arb

from jaxacct.verify import sketch
from jaxacct.verify.losses import Loss, Piece

SEEN = 1e-6
"""Tilted mass beyond from which on it tells where the best tilt is."""

WORTH = 1.2
"""How many times as large the best tilt has to become."""

ROUNDS = 16
"""How often delta is guessed anew."""


def likely(runs: sketch.Runs, epsilon: float, wanted: float) -> tuple[sketch.Runs, arb]:
    """Returns laws without outcomes that together have about e^-wanted of delta, and a bound on what these add.

    The runs themselves, and 0, where nothing is gained.
    """
    if not any(_endless(piece) for law, _ in runs for piece in law.pieces):
        return runs, arb(0)
    tilt = sketch.saddle(runs, epsilon)
    log_delta = sketch.log_delta(runs, tilt, epsilon)
    share = wanted + math.log(sum(k for _, k in runs))
    for _ in range(ROUNDS):
        reach = math.sqrt(2 * (share - log_delta))
        cut = [(_within(law, reach), k) for law, k in runs]
        if sketch.together(cut, tilt)[0] > sketch.together(runs, tilt)[0] - SEEN:
            return runs, arb(0)
        raised = sketch.saddle(cut, epsilon)
        # At most what is kept, and what is not: a guess from the wrong tilt is far too high.
        found = max(sketch.log_delta(cut, raised, epsilon), log_delta - wanted)
        if found > log_delta - 1:
            break
        log_delta = found
    if raised < WORTH * tilt:
        return runs, arb(0)
    missing = [k * _mass_beyond(law, reach) for law, k in runs]
    return cut, sum(missing, arb(0)).upper()


def _endless(piece: Piece) -> bool:
    """Whether losses rise without end as outcomes do."""
    return not piece.supremum().is_finite()


def _split(piece: Piece, reach: float) -> tuple[Piece, Piece]:
    """Returns what lies within so many deviations of the noise from P's last centre, and what lies beyond."""
    unit = float(piece.curvature) ** -0.5
    centres = [float(alpha) * unit**2 for _, alpha in piece.p]
    if piece.rises:
        place = arb(max([*centres, *([] if piece.low is None else [float(piece.low)])]) + reach * unit)
        return dataclasses.replace(piece, high=place), dataclasses.replace(piece, low=place)
    place = arb(min([*centres, *([] if piece.high is None else [float(piece.high)])]) - reach * unit)
    return dataclasses.replace(piece, low=place), dataclasses.replace(piece, high=place)


def _within(law: Loss, reach: float) -> Loss:
    pieces = [_split(piece, reach)[0] if _endless(piece) else piece for piece in law.pieces]
    return dataclasses.replace(law, pieces=tuple(pieces))


def _mass_beyond(law: Loss, reach: float) -> arb:
    beyond = [_split(piece, reach)[1] for piece in law.pieces if _endless(piece)]
    return sum((piece.mass(piece.p, piece.low, piece.high) for piece in beyond), arb(0))
