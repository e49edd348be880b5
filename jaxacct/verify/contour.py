"""delta as an integral over a line in the complex plane, every omitted term bounded.

Let S be the sum of the losses, M(z) = E[e^(zS); S < inf] and z = t + iw with t > 0. Since (1 - e^(-y))+ is the inverse
transform of 1/(z (z + 1)),

    delta(eps) = E[(1 - e^(eps - S))+] = 1/(2 pi) integral of M(z) e^(-z eps) / (z (z + 1)) dw.

Theorem. Let T be the trapezoid sum with step h over w = m h, |m| < n, and L = 2 pi / h. Then

    delta(eps) = T - sum over m != 0 of delta(eps + L m) e^(t L m) + truncation

by Poisson's formula, the transform of delta(eps + y) e^(ty) being the integrand. The terms of the sum are not negative.
- m < 0: delta <= M(0), so at most M(0) / (e^(tL) - 1) together.
- m > 0: delta(e) <= E[e^(u (S - e))] sup_y e^(-uy) (1 - e^(-y)) = M(u) e^(-ue) u^u / (1 + u)^(1 + u) for each u > t.
- Truncation: |M(t + iw)| <= B beyond w = (n - 1) h, |z (z + 1)| >= w^2 and sum over m >= n of 1/m^2 <= 1/(n - 1) give
  at most B e^(-t eps) / (pi h (n - 1)).

B is the product of the laws' bounds (:mod:`.decay`), each to the power of its count; M(z) itself is quadrature
(:mod:`.quadrature`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flint import acb, arb, ctx

from jaxacct.verify import decay, quadrature, sketch
from jaxacct.verify.losses import Loss
from jaxacct.verify.quadrature import TooMuch

ACCURACY = 44.0
"""Natural logarithm of the relative accuracy aimed at, e^-44 = 8e-20."""

MOST_PRODUCTS = 4e7
"""Nodes times frequencies of one law: about four seconds."""

LESS = ((ACCURACY, MOST_PRODUCTS), (27.0, MOST_PRODUCTS), (16.0, MOST_PRODUCTS), (16.0, 4 * MOST_PRODUCTS))
"""Accuracies, and products for them, that are tried in turn where the transform falls slowly: e^-27 = 2e-12 and e^-16 =
1e-7. The last is for few runs at small rates, whose loss is nearly an atom."""

LOWER = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Parts of the saddle point that a line is tried at."""

MOST_FREQUENCIES = 200_000

MOST_ROWS = 40
"""Rows of tables that are proved for one line."""


@dataclass(frozen=True, eq=False)
class Line:
    """The integrand on a line, but for e^(-z eps); serves every eps near the one that it was placed for."""

    t: arb
    period: arb
    values: list[acb]
    scale: arb
    decayed: arb
    farther: arb
    farther_moment: arb
    mass: arb

    def delta(self, epsilon: arb) -> arb:
        """Returns a ball that holds the delta at ``epsilon``, finite losses alone."""
        step, t = 2 * arb.pi() / self.period, self.t
        turn = -step * epsilon
        total = self.values[0].real / 2
        for m, value in enumerate(self.values[1:], 1):
            total += (value * acb(0, m * turn).exp()).real
        whole = total * step / arb.pi() * self.scale * (-t * epsilon).exp()
        low = self.mass / ((t * self.period).exp() - 1)
        u = self.farther
        falls = (-(u - t) * self.period).exp()
        high = self.farther_moment * (-u * epsilon).exp() * (u * u.log() - (1 + u) * (1 + u).log()).exp()
        high *= falls / (1 - falls)
        last = step * (len(self.values) - 1)
        cut = self.decayed * (-t * epsilon).exp() / (arb.pi() * last)
        aliases = (low + high).upper()
        value = whole - arb(0).union(aliases) + arb(0, cut.upper())
        return value.intersection(arb(0).union(self.mass.upper()))


def moment(runs: sketch.Runs, t: arb, accuracy: int) -> arb:
    """Returns M(t), real, of a composition."""
    value = arb(1)
    for law, count in runs:
        if law.normal is not None:
            value *= (law.normal * (t * t + t) / 2 * count).exp()
        else:
            rough = arb(sketch.cumulants(law, float(t))[0]).exp()
            found = quadrature.nodes(law, t, 0.0, rough, accuracy)
            value *= (sum(found.weights, arb(0)) + arb(0, found.error)) ** count
    return value


def chernoff(runs: sketch.Runs, epsilon: arb) -> arb:
    """Returns Chernoff's bound on delta, finite losses alone: (1 - e^-y)+ <= e^(ty) t^t / (1 + t)^(1 + t)."""
    t = arb(sketch.saddle(runs, float(epsilon)))
    return moment(runs, t, 20) * (t * t.log() - (1 + t) * (1 + t).log() - t * epsilon).exp()


def place(runs: sketch.Runs, epsilon: float, accuracy: float) -> tuple[float, float, float, float]:
    """Returns t, the period L, u, and about log delta, by floats.

    t is the saddle point, or below it where the terms of m > 0 would ask for a longer period than those of m < 0: where
    M is flat, as of few runs with little noise, a half of it may take a half of the frequencies.
    """
    saddle = sketch.saddle(runs, epsilon)
    log_delta = sketch.log_delta(runs, saddle, epsilon)
    best: tuple[float, float, float] | None = None
    for t in (saddle * share for share in LOWER):
        if sketch.together(runs, t)[0] - sketch.together(runs, saddle)[0] + (saddle - t) * epsilon > 3:
            break  # the integrand would be e^3 times as large
        least = (accuracy - log_delta) / t
        if best is not None and best[1] <= 1.15 * least:
            break
        best = _period(runs, epsilon, t, least, accuracy - log_delta, best) or best
    if best is None:
        raise TooMuch("the tail of the loss falls too slowly for one line")
    return *best, log_delta


def _period(
    runs: sketch.Runs,
    epsilon: float,
    t: float,
    period: float,
    wanted: float,
    best: tuple[float, float, float] | None,
) -> tuple[float, float, float] | None:
    """Returns t, a period from the one given on at which terms of m > 0 are below e^-wanted, and the u of it.

    None where it would be no shorter than the best one known.
    """

    def excess(u: float) -> float:
        return sketch.together(runs, u)[0] - u * epsilon - (u - t) * period

    for _ in range(60):
        if best is not None and period >= best[1]:
            break
        u = sketch.farther(runs, epsilon + period, t)
        if excess(u) < -wanted:
            # No farther than it takes: under a strong tilt a moment is more work.
            while excess(math.sqrt(u * t)) < -wanted:
                u = math.sqrt(u * t)
            return t, period, u
        period *= 1.15
    return None


def line(runs: sketch.Runs, epsilon: float, wanted: float = ACCURACY, most: float = MOST_PRODUCTS) -> Line:
    """Returns a line for this epsilon; ``wanted`` as :data:`ACCURACY`, ``most`` as :data:`MOST_PRODUCTS`."""
    t, period, u, log_delta = place(runs, epsilon, wanted)
    base = sketch.together(runs, t)[0] - t * epsilon
    step, exact_t, exact_period = 2 * math.pi / period, arb(t), arb(period)
    exact_step = 2 * arb.pi() / exact_period
    # Errors of nodes are relative to M(t) e^(-t eps), which may be far above delta; at full accuracy there is room.
    bits = bits_of_nodes(runs, max(wanted, min(wanted + base - log_delta, ACCURACY)))
    scales = [arb(sketch.cumulants(law, t)[0]).exp() for law, _ in runs]
    count, fallen = reach(runs, exact_t, step, log_delta - base - wanted, scales)
    product, scale, decayed = [acb(1)] * count, arb(1), arb(1)
    z = [acb(exact_t, exact_step * m) for m in range(count)]
    for (law, k), rough, share in zip(runs, scales, fallen, strict=True):
        if law.normal is not None:
            v = law.normal * k
            values = [(v * (w * w + w) / 2).exp() for w in z]
            top, k = values[0].real, 1
        else:
            with ctx.workprec(min(ctx.prec, bits + ctx.prec // 4)):
                try:
                    points = quadrature.nodes(law, exact_t, step * count, rough, bits, most / count)
                except TooMuch as missing:
                    raise TooMuch(f"{missing} at {count} frequencies") from None
                values = quadrature.values(points, exact_step, count)
            top = values[0].real
        product = [a * (b / top) ** k for a, b in zip(product, values, strict=True)]
        scale *= top**k
        decayed *= share(top)
    values = [a / (w * (w + 1)) for a, w in zip(product, z, strict=True)]
    return Line(
        exact_t, exact_period, values, scale, (decayed * scale).upper(), arb(u), moment(runs, arb(u), 40).upper(),
        moment(runs, arb(0), bits),
    )  # fmt: skip


def reach(
    runs: sketch.Runs, t: arb, step: float, goal: float, scales: list[arb]
) -> tuple[int, list[Callable[[arb], arb]]]:
    """Returns how many frequencies to take, and for each law what its power is at most beyond, given its M(t).

    ``goal`` is the natural logarithm of what the product may be at the frequency 1 / pi.
    """
    tables = [decay.table(law, float(t)) for law, _ in runs]
    frequency = step
    for _ in range(MOST_ROWS):
        while True:
            logs = sum(k * found.at(frequency)[0] for found, (_, k) in zip(tables, runs, strict=True))
            if logs - math.log(math.pi * frequency) <= goal + 1:
                break
            frequency *= 1.04
            if frequency > step * MOST_FREQUENCIES:
                raise TooMuch("the characteristic function falls too slowly for a sum over frequencies")
        # The last frequency taken is (count - 1) steps, and more than this one.
        count = int(frequency / step) + 3
        # An estimate gives way to what is proved, with which other rows of the tables may be better.
        tables = [
            found.proved(law, t, frequency, top) for found, (law, _), top in zip(tables, runs, scales, strict=True)
        ]
        shares = [_share(found, law, t, frequency, k) for found, (law, k) in zip(tables, runs, strict=True)]
        proved = sum(float(share(top).log()) for share, top in zip(shares, scales, strict=True))
        if proved - math.log(math.pi * frequency) <= goal + 2:
            break
    return count, shares


def _share(found: decay.Table, law: Loss, t: arb, frequency: float, k: int) -> Callable[[arb], arb]:
    """Returns a function of M(t) that bounds (|M(t + iw)| / M(t))^k for all w from ``frequency`` on."""
    if law.normal is not None:
        fall = (-law.normal * k * arb(frequency) ** 2 / 2).exp()
        return lambda top: fall
    log, row, multiple = found.at(frequency)
    if log >= 0 or row not in found.bounds:
        return lambda top: arb(1)
    beyond = found.bounds[row]
    assert multiple * frequency >= found.frequencies[row]

    def share(top: arb) -> arb:
        square = ((beyond / top) ** 2).min(arb(1))
        return (1 - (1 - square) / multiple**2).upper().sqrt() ** k

    return share


def bits_of_nodes(runs: sketch.Runs, accuracy: float) -> int:
    """Returns the bits to which a transform is wanted: its power is to have the accuracy."""
    return int(accuracy / math.log(2)) + 8 + sum(k for _, k in runs).bit_length()
