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
        laws = [within(law, math.sqrt(2 * (share - log_delta))) for law, _ in runs]
        cut = [(law, k) for (law, _), (_, k) in zip(laws, runs, strict=True)]
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
    return cut, sum((k * mass for (_, mass), (_, k) in zip(laws, runs, strict=True)), arb(0)).upper()


def within(law: Loss, reach: float) -> tuple[Loss, arb]:
    """Returns a law without its largest losses, and P's mass of these.

    Pieces whose losses rise without end stop so many deviations of the noise beyond P's last centre, or their start.
    """
    pieces, beyond = [], arb(0)
    for piece in law.pieces:
        if _endless(piece):
            unit = float(piece.curvature) ** -0.5
            places = [float(alpha) * unit**2 for _, alpha in piece.p]
            start = piece.low if piece.rises else piece.high
            places += [] if start is None else [float(start)]
            place = arb(max(places) + reach * unit if piece.rises else min(places) - reach * unit)
            beyond += piece.mass(piece.p, *((place, None) if piece.rises else (None, place)))
            piece = dataclasses.replace(piece, **{"high" if piece.rises else "low": place})
        pieces.append(piece)
    return dataclasses.replace(law, pieces=tuple(pieces)), beyond


def _endless(piece: Piece) -> bool:
    """Whether losses rise without end as outcomes do."""
    return not piece.supremum().is_finite()
