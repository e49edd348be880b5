"""delta where all losses lie on one lattice o + eta Z: the contour integral folded into one period.

With y0 the first point above eps, the weights (1 - e^(eps - y))+ e^(-zy) of the points sum to

    G(z) = e^(-z y0) / (1 - e^(-z eta)) - e^(eps - (z + 1) y0) / (1 - e^(-(z + 1) eta)),

and delta(eps) = eta/(2 pi) integral of M(z) G(z) over one period of w. The trapezoid rule with N nodes, L = N eta,
again gives the sum over all m of delta(eps + L m) e^(t L m), aliases as in :mod:`.contour`, and no frequency is left
out unless a bound on |M| says that it is negligible: for two atoms |phi|^2 = 1 - 4 p (1 - p) sin^2(w eta / 2), and
for discrete Gaussian noise, tilted or not, Poisson's formula: |phi| <= sum_j e^(-s^2 (w eta - 2 pi j)^2 / 2) over the
same at w = 0 with its worst signs. Both fall over [0, pi].
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from flint import acb, arb

from jaxacct.verify import contour, quadrature, sketch
from jaxacct.verify.losses import Loss, ball
from jaxacct.verify.quadrature import TooMuch


def common(runs: sketch.Runs) -> tuple[arb, arb] | None:
    """Returns offset and step of the lattice of all sums, or None where there is none."""
    if len(runs) == 1 and len(runs[0][0].atoms) == 2 and runs[0][0].lattice is None:
        law, count = runs[0]
        low, high = sorted((y for _, y in law.atoms), key=float)
        return count * low, high - low
    if any(law.lattice is None or not law.is_finite for law, _ in runs):
        return None
    offset = sum((law.lattice[0] * count for law, count in runs), Fraction(0))
    steps = [law.lattice[1] for law, _ in runs if law.lattice[1]]
    if not steps:
        return None
    denominator = math.lcm(*(step.denominator for step in steps))
    step = Fraction(math.gcd(*(int(step * denominator) for step in steps)), denominator)
    return ball(offset), ball(step)


def delta(runs: sketch.Runs, epsilon: arb, offset: arb, step: arb) -> arb:
    """Returns a ball that holds the delta at ``epsilon``, finite losses alone."""
    t, period, u, log_delta = contour.place(runs, float(epsilon), contour.ACCURACY)
    width = float(step)
    count = 2 * int(period / width / 2) + 3
    kept = (count + 1) // 2
    base = sketch.together(runs, t)[0] - t * float(epsilon)
    goal = log_delta - base - contour.ACCURACY - math.log(2 / min(1.0, t * width))
    theta = 2 * math.pi / count
    if kept > 64:
        places = np.unique(np.geomspace(1.0, min(float(kept), 1e15), 400).astype(int))
        good = [m for m in places if sum(k * _log_share(law, t, m * theta) for law, k in runs) < goal]
        kept = min(kept, int(good[0]) + 1 if good else kept)
    if kept > contour.MOST_FREQUENCIES:
        raise TooMuch(f"{kept} frequencies on a fine lattice")
    exact_t, exact_u = arb(t), arb(u)
    frequency = 2 * arb.pi() / (step * count)
    accuracy = contour.bits_of_nodes(runs, contour.ACCURACY)
    product, scale, decayed = [acb(1)] * kept, arb(1), arb(1)
    for law, k in runs:
        rough = arb(sketch.cumulants(law, t)[0]).exp()
        points = quadrature.nodes(law, exact_t, 0.0, rough, accuracy)
        if len(points.weights) * kept > contour.MOST_PRODUCTS:
            raise TooMuch(f"{len(points.weights)} atoms at {kept} frequencies")
        values = quadrature.values(points, frequency, kept)
        top = values[0].real
        product = [a * (b / top) ** k for a, b in zip(product, values, strict=True)]
        scale *= top**k
        decayed *= (_share(law, exact_t, 2 * arb.pi() * kept / count) + points.error / top).min(arb(1)) ** k
    # The first point above epsilon for certain; one that may be there, too, weighs next to nothing.
    place = math.floor(float((epsilon - offset) / step)) - 1
    while not offset + place * step > epsilon:
        place += 1
    first = offset + place * step
    before = (1 - (epsilon - offset - (place - 1) * step).exp()).max(arb(0)) * contour.moment(runs, arb(0), accuracy)
    total = acb(0)
    shift = (epsilon - first).exp()
    small = (-step).exp()
    for m, value in enumerate(product):
        around = acb(-exact_t * step, -frequency * step * m).exp()
        kernel = 1 / (1 - around) - shift / (1 - around * small)
        total += value * acb(0, -frequency * first * m).exp() * kernel / (2 if m == 0 else 1)
    front = scale * (-exact_t * first).exp()
    whole = 2 * total.real / count * front
    left = (count + 1) // 2 - kept
    fall = (-exact_t * step).exp()
    cut = front * decayed * 2 * left / count * (1 / (1 - fall) + shift / (1 - fall * small))
    mass = contour.moment(runs, arb(0), accuracy)
    length = step * count
    low = mass / ((exact_t * length).exp() - 1)
    falls = (-(exact_u - exact_t) * length).exp()
    high = contour.moment(runs, exact_u, 40).upper() * (-exact_u * epsilon).exp()
    high *= (exact_u * exact_u.log() - (1 + exact_u) * (1 + exact_u).log()).exp() * falls / (1 - falls)
    lost = sum((law.lost * k for law, k in runs), arb(0))
    value = whole - arb(0).union((low + high).upper()) + arb(0, cut.upper()) + arb(0).union((before + lost).upper())
    return value.intersection(arb(0).union(mass.upper() + lost.upper()))


def _log_share(law: Loss, t: float, theta: float) -> float:
    share = _share(law, arb(t), arb(min(theta, math.pi)))
    return float(share.log()) if share > 0 else 0.0


def _share(law: Loss, t: arb, theta: arb) -> arb:
    """Returns a bound on |M(t + iw)| / M(t) for w eta in [theta, pi], 1 where none is known."""
    if law.gaussian_scale is not None and law.gaussian_scale > 0.4:
        half = law.gaussian_scale**2 / 2
        terms = 2 * sum(((-half * (2 * arb.pi() * j - arb.pi()) ** 2).exp() for j in range(1, 4)), arb(0))
        below = 1 - 2 * sum(((-half * (2 * arb.pi() * j) ** 2).exp() for j in range(1, 4)), arb(0))
        rest = (-half * (6 * arb.pi()) ** 2).exp() * 4  # all further terms of either sum
        return (((-half * theta**2).exp() + terms + rest) / (below - rest)).min(arb(1)).upper()
    if len(law.atoms) == 2:
        a, b = (p * (t * y).exp() for p, y in law.atoms)
        share = a / (a + b)
        return (1 - 4 * share * (1 - share) * (theta / 2).sin() ** 2).max(arb(0)).sqrt().upper()
    return arb(1)
