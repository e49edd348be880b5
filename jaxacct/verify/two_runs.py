"""delta of two runs, as an integral over the outcome x of the first: where a contour would need too many frequencies.

With y* the outcome of the second run at which the two losses sum to eps, and P_B, Q_B its laws beyond y*,

    delta(eps) = integral of p_A(x) P_B - e^eps q_A(x) Q_B dx,

and atoms of either law ask for the closed form of one run. The exponents of a piece being alpha, alpha + D, alpha + 2 D
at most, u = e^(D y*) solves sum_k (c_k - E d_k) u^k = 0, E = e^(eps - Y_A(x)): a quadratic with one positive root,
for the loss is monotone. So the integrand is analytic where root and logarithm are, and Arb's adaptive rule
("Numerical integration in arbitrary-precision ball arithmetic", 2018) encloses the integral. On the real line it lies
in [0, p_A(x)], which bounds what is left at the ends, where y* goes to infinity.
"""

from __future__ import annotations

from flint import acb, arb

from jaxacct.verify.losses import Loss, Piece, Terms, total
from jaxacct.verify.quadrature import Tilt, TooMuch


def delta(first: Loss, second: Loss, epsilon: arb) -> arb:
    """Returns a ball that holds the delta at ``epsilon``, finite losses alone."""
    value = sum((p * second.single(epsilon - y) for p, y in first.atoms), arb(0))
    one, other = pieces(first), pieces(second)
    for p, y in second.atoms:
        value += p * sum((piece.excess(epsilon - y) for piece in one), arb(0))
    for a in one:
        for b in other:
            value += _both(a, b, epsilon)
    return value


def pieces(law: Loss) -> tuple[Piece, ...]:
    """Returns a law's pieces; a normal loss is that of N(mu, 1) against N(0, 1)."""
    if law.normal is None:
        return law.pieces
    root = 1 / (2 * arb.pi()).sqrt()
    return (Piece(arb(1), ((root * (-law.normal / 2).exp(), law.normal.sqrt()),), ((root, arb(0)),)),)


def _both(a: Piece, b: Piece, epsilon: arb) -> arb:
    """Returns what two pieces add."""
    low, high, missed = Tilt(a, arb(0)).ends()
    edges = sorted({float(b.loss_at(False)): b.loss_at(False), float(b.loss_at(True)): b.loss_at(True)}.items())
    infimum, supremum = edges[0][1], edges[-1][1]
    value = arb(0, missed)
    # Where the first loss alone decides: above, all of B counts; below, nothing.
    bounds = sorted((a.loss(low), a.loss(high)), key=float)
    start, stop = (low, high) if a.rises else (high, low)  # losses rise from start to stop
    if supremum.is_finite() and bounds[0] < epsilon - supremum:
        if bounds[1] <= epsilon - supremum:
            return value
        start = a.threshold(epsilon - supremum)
    if infimum.is_finite() and bounds[1] > epsilon - infimum:
        whole = start
        if not bounds[0] >= epsilon - infimum:
            whole = a.threshold(epsilon - infimum)
        left, right = (whole, stop) if a.rises else (stop, whole)
        value += a.mass(a.p, left, right) * b.mass(b.p, b.low, b.high)
        value -= epsilon.exp() * a.mass(a.q, left, right) * b.mass(b.q, b.low, b.high)
        stop = whole
    left, right = (start, stop) if a.rises else (stop, start)
    # Thresholds are balls: between their middles, and what lies within the balls.
    for end in (left, right):
        value += arb(0).union((2 * end.rad() * total(a.p, end) * (-a.curvature * end * end / 2).exp()).upper())
    left, right = left.mid(), right.mid()
    if not left < right:
        return value
    found = acb.integral(
        lambda x, analytic: _integrand(a, b, epsilon, x, analytic), acb(left), acb(right), rel_tol=arb(2) ** -70,
        abs_tol=arb(2) ** -170, eval_limit=60_000, depth_limit=200,
    )  # fmt: skip
    if not found.is_finite():
        raise TooMuch("the integral over two runs asks for more evaluations")
    return value + found.real


def _integrand(a: Piece, b: Piece, epsilon: arb, x: acb, analytic: bool) -> acb:
    common = (-a.curvature * x * x / 2).exp()
    p, q = total(a.p, x), total(a.q, x)
    above = p * common
    found = acb(arb.nan())
    place = _place(b, epsilon.exp() * q / p, analytic)
    if place.is_finite():
        found = above * _beyond(b, b.p, place) - epsilon.exp() * q * common * _beyond(b, b.q, place)
    if analytic:
        return found
    most = acb(arb(0).union(above.real.abs_upper()))
    if not found.is_finite():
        return most
    return acb(found.real.intersection(most.real)) if found.real.overlaps(most.real) else found


def _place(b: Piece, ratio: acb, analytic: bool) -> acb:
    """Returns the y at which p_B = ratio q_B."""
    exponents, (over, under) = b.by_exponent()
    if len(exponents) == 1 or len(exponents) > 3:
        raise TooMuch("two runs of a law with more than three places of noise")
    gap = exponents[1] - exponents[0]
    if len(exponents) == 3 and not (exponents[2] - exponents[1] - gap).contains(0):
        raise TooMuch("two runs of a law whose places of noise are not evenly spaced")
    weights = [c - ratio * d for c, d in zip(over, under, strict=True)]
    if len(weights) == 2:
        return (-weights[0] / weights[1]).log(analytic=analytic) / gap
    c, middle, most = weights
    root = (middle * middle - 4 * most * c).sqrt(analytic=analytic)
    # Two forms of the positive root: the one without cancellation.
    u = -2 * c / (root + middle) if middle.real.mid() > 0 else (root - middle) / (2 * most)
    return u.log(analytic=analytic) / gap


def _beyond(b: Piece, terms: Terms, y: acb) -> acb:
    """Returns the mass of a density on the side of y where the loss is larger."""
    end = b.high if b.rises else b.low
    found = acb(0)
    for c, alpha in terms:
        if not b.curvature > 0:
            # An exponent of Laplace noise is never 0.
            part = ((alpha * end).exp() - (alpha * y).exp()) / alpha
            found += c * (part if b.rises else -part)
            continue
        root, m = (b.curvature / 2).sqrt(), alpha / b.curvature
        side = 1 if b.rises else -1
        part = (side * root * (y - m)).erfc() - (0 if end is None else (side * root * (end - m)).erfc())
        found += c * (arb.pi() / (2 * b.curvature)).sqrt() * (alpha**2 / (2 * b.curvature)).exp() * part
    return found
