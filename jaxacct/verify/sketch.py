"""Where to look, in floats: nothing here is proved, and nothing proved rests on it.

A contour is placed by the cumulants K(t) = log E[e^(tY)] and their two derivatives. A poor guess makes balls wide, and
a verdict UNDECIDED, never wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from jaxacct.verify.losses import Loss, Piece, log_total

REACH = 13.0
"""Standard deviations of Gaussian noise beyond which no tilted mass is looked for."""

MOST = 20_000
"""Points for a piece at most."""

Runs = Sequence[tuple[Loss, int]]


def _grid(piece: Piece, t: float) -> np.ndarray:
    low, high = (math.nan if end is None else float(end) for end in (piece.low, piece.high))
    kappa = float(piece.curvature)
    if kappa == 0:
        return np.linspace(low, high, 801)
    p, q = [float(a) for _, a in piece.p], [float(a) for _, a in piece.q]
    s = kappa**-0.5
    centres = [((1 + t) * a - t * b) / kappa for a in p for b in q]
    first, last = min(centres) - REACH * s, max(centres) + REACH * s
    first, last = max(first, low) if low == low else first, min(last, high) if high == high else last
    if high == high:
        first = min(first, last - s)
    last = max(last, first + s)
    return np.linspace(first, last, int(min(MOST, max(200, (last - first) / s / 0.1))))


@functools.lru_cache(maxsize=64)
def _atoms(law: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Returns logs of masses, and losses."""
    return np.array([float(p.log()) for p, _ in law.atoms]), np.array([float(y) for _, y in law.atoms])


def tilted(law: Loss, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns logs of weights, e^(tY) times mass, and losses: the atoms, and points in the pieces."""
    log_masses, places = _atoms(law)
    logs, losses = [log_masses + t * places], [places]
    for piece in law.pieces:
        x = _grid(piece, t)
        log_p, log_q = log_total(piece.p, x), log_total(piece.q, x)
        weight = np.full(len(x), math.log(x[1] - x[0]))
        weight[[0, -1]] -= math.log(2)
        logs.append((1 + t) * log_p - t * log_q - float(piece.curvature) * x**2 / 2 + weight)
        losses.append(log_p - log_q)
    return np.concatenate(logs), np.concatenate(losses)


def cumulants(law: Loss, t: float) -> tuple[float, float, float]:
    """Returns K(t), K'(t) and K''(t) of one run."""
    if law.normal is not None:
        v = float(law.normal)
        return v * (t * t + t) / 2, v * (t + 0.5), v
    logs, losses = tilted(law, t)
    top = float(np.max(logs))
    weights = np.exp(logs - top)
    total = float(np.sum(weights))
    mean = float(np.sum(weights * losses)) / total
    return top + math.log(total), mean, float(np.sum(weights * (losses - mean) ** 2)) / total


def together(runs: Runs, t: float) -> tuple[float, float, float]:
    """Returns the same of a composition."""
    parts = [(np.array(cumulants(law, t)), count) for law, count in runs]
    k, first, second = sum((float(count) * part for part, count in parts), np.zeros(3))
    return float(k), float(first), float(second)


def root(function, low: float, high: float) -> float:
    """Returns about where an increasing function of t > 0 crosses 0, on a scale of logarithms."""
    for _ in range(46):
        middle = math.sqrt(low * high)
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def saddle(runs: Runs, epsilon: float) -> float:
    """Returns the t > 0 that minimizes K(t) - t epsilon - log t - log(1 + t)."""
    return _saddle(tuple(runs), epsilon)


@functools.lru_cache(maxsize=64)
def _saddle(runs: Runs, epsilon: float) -> float:
    return root(lambda t: together(runs, t)[1] - epsilon - 1 / t - 1 / (1 + t), 1e-9, 1e7)


def farther(runs: Runs, loss: float, above: float) -> float:
    """Returns the t at which the tilted mean is ``loss``, if beyond ``above``."""
    return root(lambda t: together(runs, t)[1] - loss, above * 1.0001, 1e7)


def log_most(runs: Runs, t: float, epsilon: float) -> float:
    """Returns about the logarithm of Chernoff's bound on delta: (1 - e^-y)+ <= e^(ty) t^t / (1 + t)^(1 + t)."""
    return together(runs, t)[0] - t * epsilon + t * math.log(t) - (1 + t) * math.log1p(t)


def log_delta(runs: Runs, t: float, epsilon: float) -> float:
    """Returns about the logarithm of delta, by the saddle point t."""
    k, _, variance = together(runs, t)
    spread = variance + 1 / t**2 + 1 / (1 + t) ** 2
    return min(0.0, k - t * epsilon - math.log(t * (1 + t)) - 0.5 * math.log(2 * math.pi * spread))
