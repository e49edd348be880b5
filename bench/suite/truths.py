"""The truths that answers are judged by: closed forms, quadrature, or brackets that the referee (``ja.verify``) proves.

Where that cannot decide, brackets that two of our accountants prove together.

A truth is a pair (at least, at most) for each number that a setting asks for. A claimed upper bound below the first, or
a lower bound above the second, is wrong, not inaccurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Bracket = tuple[float, float]
Ask = Callable[[str, list[dict[str, Any]]], list[dict[str, Any]]]
"""Runs a task of ours, by name, on settings."""

ROUNDING = 1e-13
"""Relative width given to values computed here in float64; a bisection to 40 digits is rounded to the nearest."""


def _around(value: float) -> Bracket:
    return value * (1 - ROUNDING), value * (1 + ROUNDING)


def _brackets(records: list[dict[str, Any]]) -> list[Bracket]:
    for record in records:
        if "error" in record:
            raise RuntimeError(f"no truth: {record['error']}")
    return [(record["lower"], record["upper"]) for record in records]


def epsilons(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    asked = [{"mechanisms": s["mechanisms"], "delta": s["delta"], "points": points} for s in settings]
    return [[bracket] for bracket in _brackets(ask("reference", asked))]


def rows(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    found = []
    for s in settings:
        asked = [{"mechanisms": [row], "delta": s["delta"], "points": points} for row in s["rows"][: s.get("judged")]]
        found.append(_brackets(ask("reference", asked)))
    return found


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns epsilon of a Gaussian mechanism: Balle and Wang (2018), theorem 8, solved by bisection to 40 digits."""
    import mpmath

    with mpmath.workdps(50):
        m, d = mpmath.mpf(mu), mpmath.mpf(delta)

        def excess(epsilon: Any) -> Any:
            return mpmath.ncdf(m / 2 - epsilon / m) - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m) - d

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while excess(high) > 0:
            high *= 2
        for _ in range(140):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


def gaussians(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    found = []
    for s in settings:
        mu = math.sqrt(math.fsum(steps / noise**2 for noise, rate, steps in s["mechanisms"]))
        found.append([_around(gaussian_epsilon(mu, s["delta"]))])
    return found


def divergence(noise: float, rate: float, order: float) -> float:
    """Returns the Rényi divergence of a subsampled Gaussian when an example is removed, which is the larger direction.

    Mironov, Talwar and Zhang (2019). The trapezoid rule on E_Q[r^a - 1 - a (r - 1)], r the likelihood ratio: the mean
    of r - 1 vanishes, and with it taken off nothing cancels. The rule converges geometrically: the integrand falls like
    a Gaussian and is analytic in a strip about the axis.
    """
    x = np.linspace(-45 * noise, order + 45 * noise, 40_001)
    log_density = -((x / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
    shift = (2 * x - 1) / (2 * noise**2)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + shift) if rate < 1 else shift
    near = np.abs(order * log_ratio) < 0.5
    excess = np.where(near, rate * np.expm1(np.minimum(shift, 700.0)), 0.0)
    # Far out the terms are added up as exponentials, which must not overflow before the density makes them small.
    far = np.exp(order * log_ratio + log_density) - (1 + order * np.expm1(np.minimum(log_ratio, 700))) * np.exp(
        log_density
    )
    close = (np.expm1(order * np.log1p(excess)) - order * excess) * np.exp(log_density)
    moment = np.sum(np.where(near, close, far)) * (x[1] - x[0])
    return float(np.log1p(moment) / (order - 1))


def curves(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    """Of each judged row, at each order, in a row; where the quadrature leaves float64, at most infinity."""
    found = []
    for s in settings:
        values = [divergence(*row, order) for row in s["rows"][: s.get("judged")] for order in s["orders"]]
        # The sum of 40,001 rounded terms; the near ones have cancelled to about 1e-11 of themselves.
        found.append([(v * (1 - 1e-9), v * (1 + 1e-9)) if math.isfinite(v) else (0.0, math.inf) for v in values])
    return found


def least_noises(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    asked = [{"targets": s["targets"][: s.get("judged")], "delta": s["delta"]} for s in settings]
    records = ask("least_noise", asked)
    for record in records:
        if "error" in record:
            raise RuntimeError(f"no truth: {record['error']}")
    return [[(low, high) for low, high in record["brackets"]] for record in records]


def mus(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    """The lower end is certified apart from the upper one: no mu below it is below the trade-off curve."""
    return [[bracket] for bracket in _brackets(ask("mu", [{"mechanisms": s["mechanisms"]} for s in settings]))]


def none(settings: list[dict[str, Any]], ask: Ask, points: int) -> list[list[Bracket]]:
    return [[] for _ in settings]
