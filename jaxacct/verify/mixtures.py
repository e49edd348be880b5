"""Mixtures of Gaussian or Laplace noise around some places, as atoms and pieces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from jaxacct.verify.losses import Loss, Piece

Weights = Sequence[tuple[arb, arb]]
"""Weights and places of noise."""


def nothing() -> Loss:
    """The loss of a mechanism that releases nothing."""
    return Loss(("nothing",), atoms=((arb(1), arb(0)),), lattice=(Fraction(0), Fraction(0)))


def mixtures(kind: str, scale: arb, p: Weights, q: Weights, factor: arb, low: arb | None = None) -> Loss:
    """Returns atoms and pieces of P = sum of noise of weights p around places against Q likewise, x above ``low``."""
    p, q = [[(w * factor, place) for w, place in side if w != 0] for side in (p, q)]
    if kind == "gaussian":
        kappa, root = 1 / scale**2, (2 * arb.pi()).sqrt() * scale

        def terms(side: Weights) -> Any:
            return tuple((w / root * (-(place**2) * kappa / 2).exp(), place * kappa) for w, place in side)

        return Loss((), pieces=(Piece(kappa, terms(p), terms(q), low, None),))
    # In units of the scale, so that the exponents are 1 and -1, exactly.
    places = sorted({float(place): place for _, place in (*p, *q)}.items())
    kinks = [place for _, place in places if low is None or place > low]
    ends = [low, *kinks, None]
    atoms, pieces = [], []
    for start, stop in itertools.pairwise(ends):
        inner = stop if start is None else start if stop is None else (start + stop) / 2

        def parts(side: Weights, inner: Any = inner, first: bool = start is None) -> Any:
            # Noise around a place at the right of the interval, or at its end, rises there.
            rising = [(w, c) for w, c in side if c > inner or (c == inner and first)]
            falling = [(w, c) for w, c in side if not (c > inner or (c == inner and first))]
            up = sum((w * (-c / scale).exp() for w, c in rising), arb(0)) / 2
            down = sum((w * (c / scale).exp() for w, c in falling), arb(0)) / 2
            return tuple((c, arb(a)) for c, a, some in ((up, 1, rising), (down, -1, falling)) if some)

        over, under = parts(p), parts(q)
        if start is None or stop is None:  # one exponent: a constant loss
            (c, alpha), (d, _) = over[0], under[0]
            atoms.append((c * (alpha * inner / scale).exp(), (c / d).log()))
            continue
        piece = Piece(arb(0), over, under, start / scale, stop / scale)
        if len(over) == len(under) == 1 and over[0][1] == under[0][1]:
            atoms.append((piece.mass(over, piece.low, piece.high), (over[0][0] / under[0][0]).log()))
        else:
            pieces.append(piece)
    return Loss((), atoms=tuple(atoms), pieces=tuple(pieces))


def joined(key: tuple, *laws: Loss, atoms: Any = ()) -> Loss:
    """Returns the law that several make together, each on outcomes of its own."""
    return Loss(
        key,
        infinite=sum((law.infinite for law in laws), arb(0)),
        atoms=tuple(atoms) + sum((law.atoms for law in laws), ()),
        pieces=sum((law.pieces for law in laws), ()),
    )


def noise(kind: str, key: tuple, scale: arb, p: Weights, q: Weights, factor: arb | None = None) -> Loss:
    """Returns the law of mixtures of noise, times ``factor``; without noise the places themselves are seen."""
    factor = arb(1) if factor is None else factor
    if scale == arb.pos_inf() or float(scale) == np.inf:
        return nothing()
    if scale == 0:
        there = {float(place): w for w, place in q if w != 0}
        seen = [(factor * w, w, there.get(float(place))) for w, place in p if w != 0]
        infinite = sum((mass for mass, _, against in seen if against is None), arb(0))
        atoms = tuple((mass, (w / v).log()) for mass, w, v in seen if v is not None)
        return Loss(key, infinite=infinite, atoms=atoms)
    return joined(key, mixtures(kind, scale, p, q, factor))
