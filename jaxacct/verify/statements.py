"""The dominating pairs that the referee judges by, as laws of the privacy loss in balls, and delta of special cases.

The last part, from :func:`state` on, states each mechanism's dominating pairs from the theorems, without the code of
the accountants. A reader has to compare it with the papers. The parts before it serve the compositions that
the contour integral (``contour.py``) is too slow for.

In reading order:

- :func:`delta_of_two_runs`: two runs, by an integral over the first one's outcome.
- :func:`delta_of_two_batches`: one epoch of random allocation over two batches, by one integral.
- :func:`delta_of_shuffles`: epochs of shuffled batches, from both sides.
- :func:`mixtures` to :func:`mixture_of_noise`: laws of mixtures of Gaussian or Laplace noise.
- :func:`likely`: laws without outcomes of negligible mass.
- :func:`delta_of_many_laplace`: runs of plain Laplace noise in closed form.
- :func:`state` to :data:`STATEMENTS`: the mechanisms' pairs, and compositions of them.

Sources: F. Johansson, "Numerical integration in arbitrary-precision ball arithmetic" (2018), for the integrals; each
statement names its theorem.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from flint import acb, arb, arb_poly, ctx, fmpz_poly

from jaxacct.verify import contour
from jaxacct.verify.contour import Loss, Piece, Terms, Tilt, TooMuch, ball, total

# ----------------------------------------------------------------------------------------------------
# Two runs: delta as an integral over the outcome x of the first, where a contour would need too many frequencies.
#
# With y* the outcome of the second run at which the two losses sum to eps, and P_B, Q_B its masses beyond y*,
#
#     delta(eps) = integral of p_A(x) P_B - e^eps q_A(x) Q_B dx,
#
# and atoms of either law ask for the closed form of one run. The exponents of a piece being alpha, alpha + D, alpha +
# 2 D at most, u = e^(D y*) solves sum_k (c_k - E d_k) u^k = 0, E = e^(eps - Y_A(x)): a quadratic with one positive
# root, for the loss is monotone. So the integrand is analytic where root and logarithm are, and Arb's adaptive rule
# ("Numerical integration in arbitrary-precision ball arithmetic", 2018) encloses the integral. On the real line the
# integrand lies in [0, p_A(x)], which bounds the remainder at the ends, where y* goes to infinity.
# ----------------------------------------------------------------------------------------------------


def delta_of_two_runs(first: Loss, second: Loss, epsilon: arb) -> arb:
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
    """Returns the part of delta that comes from one piece of each run."""
    low, high, missed = Tilt(a, arb(0)).ends()
    edges = sorted({float(b.loss_at(False)): b.loss_at(False), float(b.loss_at(True)): b.loss_at(True)}.items())
    infimum, supremum = edges[0][1], edges[-1][1]
    value = arb(0, missed)
    # Where the first loss exceeds eps less B's infimum, all of B counts, in closed form; where it is below eps less B's
    # supremum, nothing does. The integral is over the outcomes between.
    bounds = sorted((a.loss(low), a.loss(high)), key=float)
    start, stop = (low, high) if a.rises else (high, low)  # losses rise from start to stop
    if supremum.is_finite() and bounds[0] < epsilon - supremum:
        if bounds[1] <= epsilon - supremum:
            return value
        start = a.threshold(epsilon - supremum)
    if infimum.is_finite() and bounds[1] > epsilon - infimum:
        edge = start
        if not bounds[0] >= epsilon - infimum:
            edge = a.threshold(epsilon - infimum)
        left, right = (edge, stop) if a.rises else (stop, edge)
        value += a.mass(a.p, left, right) * b.mass(b.p, b.low, b.high)
        value -= epsilon.exp() * a.mass(a.q, left, right) * b.mass(b.q, b.low, b.high)
        stop = edge
    left, right = (start, stop) if a.rises else (stop, start)
    # Thresholds are balls. The integral goes from midpoint to midpoint; P's mass within the two balls bounds the rest.
    for end in (left, right):
        value += arb(0).union((2 * end.rad() * total(a.p, end) * (-a.curvature * end * end / 2).exp()).upper())
    return value + _integral(a, b, epsilon, left.mid(), right.mid())


def _integral(a: Piece, b: Piece, epsilon: arb, left: arb, right: arb) -> arb:
    """Returns the integral of :func:`_integrand` between two places, 0 where they are in the other order."""
    if not left < right:
        return arb(0)
    # What has no quadratic is refused here: an error that is raised within Arb's integral leaves it as a SystemError.
    exponents, _ = b.by_exponent()
    if len(exponents) not in (2, 3):
        raise TooMuch("two runs of a law with more than three places of noise")
    if len(exponents) == 3 and not (exponents[2] - 2 * exponents[1] + exponents[0]).contains(0):
        raise TooMuch("two runs of a law whose places of noise are not evenly spaced")
    integral = acb.integral(
        lambda x, analytic: _integrand(a, b, epsilon, x, analytic), acb(left), acb(right), rel_tol=arb(2) ** -70,
        abs_tol=arb(2) ** -170, eval_limit=60_000, depth_limit=200,
    )  # fmt: skip
    if not integral.is_finite():
        raise TooMuch("the integral over two runs asks for more evaluations")
    return integral.real


def _integrand(a: Piece, b: Piece, epsilon: arb, x: acb, analytic: bool) -> acb:
    """Returns p_A(x) P_B - e^eps q_A(x) Q_B; not finite where it has to be analytic over the ball x and is not.

    On the real line, where it need not be, the bound [0, p_A(x)] narrows a wide ball.
    """
    common = (-a.curvature * x * x / 2).exp()
    p, q = total(a.p, x), total(a.q, x)
    above = p * common
    value = acb(arb.nan())
    place = _place(b, epsilon.exp() * q / p, analytic)
    if place.is_finite():
        value = above * _beyond(b, b.p, place) - epsilon.exp() * q * common * _beyond(b, b.q, place)
    if analytic:
        return value
    most = acb(arb(0).union(above.real.abs_upper()))
    if not value.is_finite():
        return most
    return acb(value.real.intersection(most.real)) if value.real.overlaps(most.real) else value


def _place(b: Piece, ratio: acb, analytic: bool) -> acb:
    """Returns the y at which p_B = ratio q_B."""
    exponents, (over, under) = b.by_exponent()
    gap = exponents[1] - exponents[0]
    weights = [c - ratio * d for c, d in zip(over, under, strict=True)]
    if len(weights) == 2:
        return (-weights[0] / weights[1]).log(analytic=analytic) / gap
    c, middle, most = weights
    root = (middle * middle - 4 * most * c).sqrt(analytic=analytic)
    # Of the two forms of the positive root the one without cancellation.
    u = -2 * c / (root + middle) if middle.real.mid() > 0 else (root - middle) / (2 * most)
    return u.log(analytic=analytic) / gap


def _beyond(b: Piece, terms: Terms, y: acb) -> acb:
    """Returns the mass of a density on the side of y where the loss is larger."""
    end = b.high if b.rises else b.low
    total = acb(0)
    for c, alpha in terms:
        if not b.curvature > 0:
            # Exponents of Laplace noise are 1 and -1, so the division is safe.
            part = ((alpha * end).exp() - (alpha * y).exp()) / alpha
            total += c * (part if b.rises else -part)
            continue
        root, m = (b.curvature / 2).sqrt(), alpha / b.curvature
        side = 1 if b.rises else -1
        part = (side * root * (y - m)).erfc() - (0 if end is None else (side * root * (end - m)).erfc())
        total += c * (arb.pi() / (2 * b.curvature)).sqrt() * (alpha**2 / (2 * b.curvature)).exp() * part
    return total


# ----------------------------------------------------------------------------------------------------
# Two batches: one epoch of random allocation, by one integral.
#
# An example is in one of two sums with noise N(0, s^2), and moves it by 1. With x_i the sums over s, independent and
# standard normal where nobody is added, and sigma = 1/s, the likelihood ratio is L = (W_1 + W_2)/2, where W_i =
# e^(sigma x_i - sigma^2/2) is log-normal with mean 1. So with P the data with the example
#
#     delta = E[(L - e^eps)+] = E[(W_1 + W_2 - K)+]/2,   K = 2 e^eps,             ("remove")
#     delta = e^eps E[(K - W_1 - W_2)+]/2,               K = 2 e^-eps,            ("add")
#
# means over the data without it. Given W_1 = w the mean over W_2 is closed: with k = K - w, if that is above 0, and d =
# sigma/2 - log(k)/sigma, E[(W - k)+] = Phi(d) - k Phi(d - sigma), E[(k - W)+] = k Phi(sigma - d) - Phi(-d); else 1 - k,
# and 0. There remains an integral over x_1 up to where w = K, which Arb computes with its error. The last 2^-bits
# before that point, bits being the precision, and the range beyond 60 deviations are bounded by the integrand's bound.
# ----------------------------------------------------------------------------------------------------


def delta_of_two_batches(direction: str, noise: arb, epsilon: arb) -> arb:
    """Returns a ball for delta of one epoch, for the direction "remove" or "add"."""
    sigma, removes = 1 / noise, direction == "remove"
    bound = 2 * (epsilon if removes else -epsilon).exp()
    last = bound.log() / sigma + sigma / 2

    def inner(x: acb, analytic: bool) -> acb:
        """Returns the mean over the second sum, times the density of the first at x but for its constant."""
        k = bound - (sigma * x - sigma**2 / 2).exp()
        if not k.real > 0:  # the ball may cross a branch of the logarithm, and no analytic function does
            return acb(arb.nan(), arb.nan()) if analytic else acb(arb(0).union(bound + 1))
        d = sigma / 2 - k.log() / sigma
        excess = _phi(d) - k * _phi(d - sigma) if removes else k * _phi(sigma - d) - _phi(-d)
        return excess * (-x * x / 2).exp()

    # Standard deviations at which the integral ends, beyond which lies a mass of less than e^-1800. Any value above 0
    # is sound: the result includes the mass beyond.
    far = 60
    low = arb(-far)
    if not last > low + 1:
        raise ArithmeticError("noise so small that all lies beyond what is integrated")
    end = last - arb(2) ** -ctx.prec
    high = end if not end > far else arb(far)
    value = acb.integral(inner, acb(low), acb(high)).real / (2 * arb.pi()).sqrt()
    # The two inner means are at most 1 and K, so the ends that were cut off hold at most that times their mass.
    most = arb(1).max(bound)
    left_out = most * (2 * _phi(acb(-far)).real + (arb(2) ** -ctx.prec))
    value += arb(0).union(left_out)
    if removes:
        value += (1 - bound) * _phi(acb(-last)).real + _phi(acb(sigma - last)).real
        return value / 2
    return value * epsilon.exp() / 2


def _phi(x: acb) -> acb:
    """Returns the normal distribution function."""
    return (-x / acb(2).sqrt()).erfc() / 2


# ----------------------------------------------------------------------------------------------------
# Shuffled batches: delta between that of one event and that of Gaussian noise.
#
# T batches of one epoch, z the example that differs. Let all others contribute -u, and z contribute u under P, nothing
# under Q. The number of others in a batch is known, so a batch's sum along u may be raised by its size: it then is
# y ~ N(2, s^2) under P, and N(1, s^2) under Q, in the batch of z, and N(0, s^2) in all others, wherever z is. The event
# that some batch's y is at least c (Chua et al. (2024), "How private are DP-SGD implementations?") has
#
#     P_c = 1 - Phi((c - 2)/s) Phi(c/s)^(T-1),   Q_c = 1 - Phi((c - 1)/s) Phi(c/s)^(T-1).
#
# Under "replace" z contributes -u under Q, and Q_c = R_c = 1 - Phi(c/s)^T. An example that is in no batch with
# probability 1 - w, the same under P and Q, mixes R_c into both. The least possible w may be taken: a smaller v is a
# channel of w, which keeps the answer with probability v/w and else draws it by R_c. A last batch of fewer examples is
# one more batch.
#
# E runs, each with its own order and the same data: the number of those in which the event happened is binomial, which
# is a function of what was released. From above an example is in one batch an epoch, whatever is known of the order: m
# epochs with one order are Gaussian noise of s/sqrt(m), in both bounds, and E of these of s/sqrt(m E).
# ----------------------------------------------------------------------------------------------------

MOST_SHUFFLES = 10_000
"""Largest number of runs whose binomial law is summed. Any value is sound."""

Case: TypeAlias = tuple[int, Fraction]
"""A number of batches, and the least probability that an example is in one of them."""


def delta_of_shuffles(noise: arb, cases: Sequence[Case], count: int, replaces: bool, epsilon: arb) -> arb:
    """Returns a ball for delta of ``count`` runs, which holds all numbers between the two bounds.

    Args:
        noise: standard deviation of the noise of an epoch, or of as many as have one order, over the clipping norm.
        cases: those that are possible: the least lower bound of them holds.
        count: number of runs.
        replaces: whether an example is replaced by another; else its contribution becomes 0.
        epsilon: at which delta is asked.
    """
    most = normal(noise / arb(count).sqrt(), 2 if replaces else 1).single(epsilon)
    least = arb(1)
    for batches, chance in cases:
        cut = _best_cut(float(noise), batches, float(chance), count, replaces, float(epsilon))
        p, q = _event_probabilities(noise, batches, ball(chance), replaces, arb(cut))
        terms = (
            (p**k * (1 - p) ** (count - k) - epsilon.exp() * q**k * (1 - q) ** (count - k)).max(arb(0))
            * arb.bin_uiui(count, k)
            for k in range(count + 1)
        )
        least = least.min(sum(terms, arb(0)))
    return arb(least.lower()).union(arb(most.upper())).intersection(arb(0).union(1))


def _event_probabilities(noise: arb, batches: int, chance: arb, replaces: bool, cut: arb) -> tuple[arb, arb]:
    """Returns the probabilities that some batch's result is at least ``cut``, under P and under Q."""

    def below(place: int) -> arb:
        return ((place - cut) / (noise * arb(2).sqrt())).erfc() / 2

    others = below(0) ** (batches - 1)
    absent = (1 - chance) * below(0) * others
    p, q = (1 - absent - chance * below(place) * others for place in (2, 0 if replaces else 1))
    return p, q


def _best_cut(noise: float, batches: int, chance: float, count: int, replaces: bool, epsilon: float) -> float:
    """Returns a cut whose event tells the data sets apart well, by floats; any is sound."""
    binomials = np.array([math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
                          for k in range(count + 1)])  # fmt: skip
    k = np.arange(count + 1)

    def delta(cut: float) -> float:
        below = [math.erfc((place - cut) / (noise * math.sqrt(2))) / 2 for place in (0, 1, 2)]
        others = math.exp((batches - 1) * math.log(max(below[0], 1e-300)))
        p, q = (1 - others * ((1 - chance) * below[0] + chance * below[place]) for place in (2, 0 if replaces else 1))
        logs = [binomials + k * math.log(max(x, 1e-300)) + (count - k) * math.log1p(-min(x, 1 - 1e-16)) for x in (p, q)]
        return float(np.sum(np.maximum(np.exp(logs[0]) - np.exp(np.minimum(logs[1] + epsilon, 700.0)), 0.0)))

    low, high = -3 * noise, 2 + 9 * noise
    # Four grids, each on the two cells around the best cut of the one before.
    for _ in range(4):
        cuts = np.linspace(low, high, 33)
        best = int(np.argmax([delta(cut) for cut in cuts]))
        low, high = cuts[max(best - 1, 0)], cuts[min(best + 1, 32)]
    return float(cuts[best])


# ----------------------------------------------------------------------------------------------------
# Mixtures of noise: P and Q as weights of Gaussian or Laplace noise around some places, as atoms and pieces.
#
# Under Gaussian noise the whole line, or the part above ``low``, is one piece. Laplace densities have a kink at each
# place: the line is split there, and an interval on which the loss is constant is an atom.
# ----------------------------------------------------------------------------------------------------

Weights = Sequence[tuple[arb, arb]]
"""Weights of a mixture, and the places that noise is centred on."""


def nothing() -> Loss:
    """The loss of a mechanism that releases nothing."""
    return Loss(("nothing",), atoms=((arb(1), arb(0)),), lattice=(Fraction(0), Fraction(0)))


def mixtures(kind: str, scale: arb, p: Weights, q: Weights, factor: arb | int, low: arb | None = None) -> Loss:
    """Returns atoms and pieces of P against Q, mixtures of noise around places, for outcomes x above ``low``.

    Args:
        kind: "gaussian" or "laplace".
        scale: standard deviation or scale of the noise.
        p: weights and places of P.
        q: weights and places of Q.
        factor: a number that all weights are multiplied by.
        low: where outcomes begin; None for the whole line.
    """
    p, q = [[(w * factor, place) for w, place in side if w != 0] for side in (p, q)]
    if kind == "gaussian":
        kappa, root = 1 / scale**2, (2 * arb.pi()).sqrt() * scale

        def terms(side: Weights) -> Any:
            """Returns the coefficients and exponents of a mixture's density."""
            return tuple((w / root * (-(place**2) * kappa / 2).exp(), place * kappa) for w, place in side)

        return Loss((), pieces=(Piece(kappa, terms(p), terms(q), low, None),))
    # Laplace pieces count outcomes in units of the scale, so that the exponents are 1 and -1, exactly.
    places = sorted({float(place): place for _, place in (*p, *q)}.items())
    kinks = [place for _, place in places if low is None or place > low]
    ends = [low, *kinks, None]
    atoms, pieces = [], []
    # Between two kinks noise around a place rises or falls throughout: the densities are sums of e^x and e^-x there.
    for start, stop in itertools.pairwise(ends):
        inner = stop if start is None else start if stop is None else (start + stop) / 2

        def parts(side: Weights, inner: Any = inner, first: bool = start is None) -> Any:
            """Returns the coefficients and exponents of one mixture on this interval."""
            # Noise around a place at the right of the interval, or at its end, rises there.
            rising = [(w, c) for w, c in side if c > inner or (c == inner and first)]
            falling = [(w, c) for w, c in side if not (c > inner or (c == inner and first))]
            risen = sum((w * (-c / scale).exp() for w, c in rising), arb(0)) / 2
            fallen = sum((w * (c / scale).exp() for w, c in falling), arb(0)) / 2
            return tuple((c, arb(a)) for c, a, some in ((risen, 1, rising), (fallen, -1, falling)) if some)

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


def join(key: tuple, *laws: Loss, atoms: Any = ()) -> Loss:
    """Returns the law of disjoint sets of outcomes, each with a law that has its share of the mass."""
    return Loss(
        key,
        infinite=sum((law.infinite for law in laws), arb(0)),
        atoms=tuple(atoms) + sum((law.atoms for law in laws), ()),
        pieces=sum((law.pieces for law in laws), ()),
    )


def mixture_of_noise(kind: str, key: tuple, scale: arb, p: Weights, q: Weights, factor: arb | int = 1) -> Loss:
    """Returns the law of mixtures of noise, times ``factor``; without noise the places themselves are the outcomes."""
    if scale == arb.pos_inf() or float(scale) == np.inf:
        return nothing()
    if scale == 0:
        there = {float(place): w for w, place in q if w != 0}
        seen = [(factor * w, w, there.get(float(place))) for w, place in p if w != 0]
        infinite = sum((mass for mass, _, against in seen if against is None), arb(0))
        atoms = tuple((mass, (w / v).log()) for mass, w, v in seen if v is not None)
        return Loss(key, infinite=infinite, atoms=atoms)
    return join(key, mixtures(kind, scale, p, q, factor))


# ----------------------------------------------------------------------------------------------------
# Likely outcomes: laws without the outcomes of negligible mass, for few runs at small sampling rates.
#
# A subsampled run's losses log(1 - q + q e^x) grow as outcomes do, though P gives large outcomes hardly any mass. Under
# a tilt t they weigh q^t e^(t^2 / (2 s^2)), which is above all others from t = 2 s^2 log(1/q) on. So the best tilt of
# the whole law stays below that, however narrow the losses are that delta comes from, and a sum over frequencies is
# long. Without the outcomes beyond a place the best tilt may be a hundred times as large.
#
# *Proof.* Let a run's outcomes beyond its place have P's mass m. Where no run is beyond its place, the laws are the cut
# ones, and the rest of E[(1 - e^(eps - S))+] lies in [0, sum of the m]. So delta is that of the cut laws plus a number
# between 0 and this sum.
# ----------------------------------------------------------------------------------------------------

WORTH = 1.2
"""Least factor by which the best tilt has to grow for a cut to be used. Any value is sound."""


def likely(runs: contour.Runs, epsilon: float, wanted: float) -> tuple[contour.Runs, arb]:
    """Returns laws without outcomes that together have about e^-wanted of delta, and a bound on these outcomes' mass.

    Returns the runs themselves and 0 where the cut gains nothing.
    """
    if not any(not piece.supremum().is_finite() for law, _ in runs for piece in law.pieces):
        return runs, arb(0)
    tilt = contour.sketched_saddle(runs, epsilon)
    log_delta = contour.sketched_log_delta(runs, tilt, epsilon)
    share = wanted + math.log(sum(k for _, k in runs))
    # The place of the cut depends on delta, and the estimate of delta on the cut: both are iterated until the estimate
    # falls by less than a factor e. Under the whole law's tilt it is far too high, so it only falls.
    # Any number of guesses is sound.
    for _ in range(16):
        laws = [drop_tail(law, math.sqrt(2 * (share - log_delta))) for law, _ in runs]
        cut = [(law, k) for (law, _), (_, k) in zip(laws, runs, strict=True)]
        # A cut that the cumulant (nats) does not see gains nothing. Any value is sound.
        if contour.together(cut, tilt)[0] > contour.together(runs, tilt)[0] - 1e-6:
            return runs, arb(0)
        raised = contour.sketched_saddle(cut, epsilon)
        # delta of the cut law, but no less than about the mass that the cut was placed for.
        log_cut = max(contour.sketched_log_delta(cut, raised, epsilon), log_delta - wanted)
        if log_cut > log_delta - 1:
            break
        log_delta = log_cut
    if raised < WORTH * tilt:
        return runs, arb(0)
    return cut, sum((k * mass for (_, mass), (_, k) in zip(laws, runs, strict=True)), arb(0)).upper()


def drop_tail(law: Loss, reach: float) -> tuple[Loss, arb]:
    """Returns a law without its largest losses, and P's mass of these.

    A piece with unbounded losses ends ``reach`` standard deviations of the noise beyond P's outermost centre or its own
    start.
    """
    pieces, beyond = [], arb(0)
    for piece in law.pieces:
        if not piece.supremum().is_finite():
            unit = float(piece.curvature) ** -0.5
            places = [float(alpha) * unit**2 for _, alpha in piece.p]
            start = piece.low if piece.rises else piece.high
            places += [] if start is None else [float(start)]
            place = arb(max(places) + reach * unit if piece.rises else min(places) - reach * unit)
            beyond += piece.mass(piece.p, *((place, None) if piece.rises else (None, place)))
            piece = dataclasses.replace(piece, **{"high" if piece.rises else "low": place})
        pieces.append(piece)
    return dataclasses.replace(law, pieces=tuple(pieces)), beyond


# ----------------------------------------------------------------------------------------------------
# Plain Laplace noise: k runs in closed form.
#
# With a the largest loss and u = z + 1/2, M(z) = e^(-a/2)/2 [e^(au) (1 + v) + e^(-au) (1 - v)], v = 1/(2u), and
# z (z + 1) = u^2 (1 - v) (1 + v). So the integrand of the contour integral is, for n = 0 .. k, a sum of
#
#     C(k, n) (e^(-a/2)/2)^k e^(eps/2) e^(uy) (1 + v)^(n-1) (1 - v)^(k-n-1) / u^2,    y = a (2n - k) - eps.
#
# For y <= 0 the path closes to the right and gives 0. For y > 0, n < k, it is a polynomial in v, and the residue of
# e^(uy) u^(-2-j) at 0 is y^(1+j) / (1+j)!. For n = k, (1 + v)^(k-1) = (1 - v) R(v) + 2^(k-1), and 2^(k-1) e^(uy) / (u
# (u - 1/2)) leaves 2^k (e^(y/2) - 1). The polynomials have whole coefficients of both signs; further bits make up for
# their cancellation.
# ----------------------------------------------------------------------------------------------------


def delta_of_many_laplace(a: arb, count: int, epsilon: arb) -> arb:
    """Returns a ball that holds the delta at ``epsilon`` of ``count`` runs, for ``epsilon`` of any sign."""
    least = -count * a
    if not epsilon >= least:  # below all losses delta is 1 - e^eps, and nowhere less; it falls
        below = 1 - epsilon.exp()
        return below if epsilon < least else below.union(1 - least.exp())
    with ctx.workprec(ctx.prec + 4 * count + 64):
        value = arb(0)
        # One term of the sum for each n, the number of runs in which e^(au) is taken; y falls with n.
        for n in range(count, 0, -1):
            y = a * (2 * n - count) - epsilon
            if y <= 0:
                continue
            y = y.max(arb(0))
            if n == count:
                rest = fmpz_poly([1, 1]) ** (count - 1) - fmpz_poly([2 ** (count - 1)])
                poly = rest // fmpz_poly([1, -1])
                extra = arb(2) ** count * ((y / 2).exp() - 1)
            else:
                poly = fmpz_poly([1, 1]) ** (n - 1) * fmpz_poly([1, -1]) ** (count - n - 1)
                extra = arb(0)
            series = arb_poly([c / arb.fac_ui(j + 1) for j, c in enumerate(arb_poly(poly).coeffs())])
            term = y * series(y / 2) + extra
            value += term * arb.bin_uiui(count, n)
        return value * ((-a / 2).exp() / 2) ** count * (epsilon / 2).exp()


# ----------------------------------------------------------------------------------------------------
# Statements: each mechanism's dominating pairs, from the theorems, without the code of the accountants.
#
# A statement reads a mechanism's JSON record alone (``border.py`` makes it): its type, and its fields, in which a float
# stands for exactly the number that it is. A statement returns for a direction of a relation the law of Y = log P/Q
# under P. Where P and Q are mixtures of noise around some places, :func:`mixtures` splits the line at the kinks of the
# noise.
# ----------------------------------------------------------------------------------------------------


class Unstated(Exception):
    """The error of a mechanism without a statement that can be evaluated; its text says why."""


def everything() -> Loss:
    """The loss of a mechanism that releases the data."""
    return Loss(("everything",), infinite=arb(1))


Record: TypeAlias = dict[str, Any]
"""A mechanism as a JSON object: ``type``, and the fields."""


def state(record: Record, relation: str) -> list[Loss]:
    """Returns one law for each direction of ``relation``, or a single one where the directions' laws are equal."""
    kind = record["type"]
    if kind not in STATEMENTS or (kind, relation) == ("RandomizedResponse", "zero_out"):
        raise Unstated(f"the referee has no statement of the pair of {kind}")
    # A user's own pair (p, q) is in the order of "remove", and replacing may be either.
    own = kind == "DiscretePair" and relation == "replace"
    directions = ("remove", "add") if own or relation in ("add_or_remove", "zero_out") else (relation,)
    fields = {name: value for name, value in record.items() if name != "type"}
    statement = (STATED_ONE_WAY if relation in ("remove", "add") else {}).get(kind, STATEMENTS[kind])
    laws = [statement(direction, **fields) for direction in directions]
    return list({law.key: law for law in laws}.values())


def composition(runs: Sequence[tuple[Record, int]], relation: str) -> list[list[tuple[Loss, int]]]:
    """Returns, for each direction, the laws and how often each is run.

    Equal laws are counted together, and mechanisms that release nothing are left out.
    """
    parts = [(state(record, relation), count) for record, count in runs if count]
    directions = []
    # Direction i of every law; a law that serves for all directions has a single entry, used in each.
    for i in range(max((len(laws) for laws, _ in parts), default=1)):
        together: dict[tuple, tuple[Loss, int]] = {}
        for laws, count in parts:
            law = laws[min(i, len(laws) - 1)]
            if law.key != ("nothing",):
                together[law.key] = law, count + together.get(law.key, (law, 0))[1]
        # Runs that are known together alone become one.
        directions.append(
            [
                (dataclasses.replace(law, alone=law.together(count), together=None), 1)
                if law.together
                else (law, count)
                for law, count in together.values()
            ]
        )
        if any(law.alone is not None for law, _ in directions[-1]) and sum(count for _, count in directions[-1]) > 1:
            raise Unstated(
                "random allocation over two batches has a statement of one epoch, alone, and shuffled batches one of "
                "epochs that are alike, alone"
            )
    return directions


def run_count(steps: Any) -> int:
    """Returns a number of runs as an integer; raises ValueError where it is none."""
    count = exact(steps, "steps")
    if isinstance(count, float) or count < 0 or count.denominator != 1:
        raise ValueError(f"steps = {steps} is not a number of steps: give a whole number, at least 0.")
    if count >= 2**1000:  # floats that choose how to compute do not hold it
        raise ValueError(f"steps, of {int(count).bit_length()} bits, are too many: give a number below 2**1000.")
    return int(count)


def exact(value: Any, name: str) -> Fraction | float:
    """Returns a number exactly, as a fraction; infinity and NaN as floats. Raises TypeError where it is no number."""
    if isinstance(value, Fraction):
        return value
    try:
        array = value if isinstance(value, int) else np.asarray(value)
    except TypeError:
        raise TypeError(f"{name} = {value} is traced, or no number: a verdict is about numbers.") from None
    if isinstance(value, bool) or (not isinstance(array, int) and (array.dtype.kind not in "iuf" or array.ndim)):
        raise TypeError(f"{name} = {value!r} of type {type(value).__name__}: give a number.")
    if isinstance(array, int) or array.dtype.kind in "iu":
        return Fraction(int(array))
    number = float(array)
    return Fraction(number) if math.isfinite(number) else number


def real(value: Any) -> arb:
    """Returns the number that a field stands for, as a ball."""
    number = exact(value, "a field")
    return arb(number) if isinstance(number, float) else arb(number.numerator) / number.denominator


def rational(value: Any) -> Fraction:
    """Returns the number that a field stands for, as a fraction."""
    return Fraction(exact(value, "a field"))


def normal(scale: arb, shift: int) -> Loss:
    """N(shift, s^2) against N(0, s^2): the loss is normal, of variance mu^2 = shift^2/s^2 and mean mu^2/2."""
    if float(scale) == np.inf:
        return nothing()
    return everything() if scale == 0 else Loss(("normal", float(scale), shift), normal=(shift / scale) ** 2)


def gaussian(direction: str, noise_multiplier: Any) -> Loss:
    """The Gaussian mechanism: half-lines are optimal for a shift (Balle and Wang 2018); replacing shifts by 2."""
    return normal(real(noise_multiplier), 2 if direction == "replace" else 1)


def sides(direction: str, mixed: Weights) -> tuple[Weights, Weights]:
    """Returns P and Q, as weights and places of noise, where a sample moves a sum to the places of ``mixed``.

    Zhu, Dong and Wang (2022), Theorem 11; Choquette-Choo et al. (2024): with B the noise around 0, the mixture against
    B, its reverse, and for replacing two mixtures. Those of Q lie on the other side of 0, so that the loss rises.
    """
    base, mirrored = [(arb(1), arb(0))], [(weight, -place) for weight, place in mixed]
    return {"remove": (mixed, base), "add": (base, mirrored), "replace": (mixed, mirrored)}[direction]


def sample(rate: arb, size: int = 1) -> Weights:
    """Returns the mixture of places where noise is centred: the number of a group's examples that a rate samples."""
    return [(math.comb(size, k) * rate**k * (1 - rate) ** (size - k), arb(k)) for k in range(size + 1)]


def subsampled(direction: str, scale: Any, sampling_rate: Any, size: int = 1, noise: str = "gaussian") -> Loss:
    """A Poisson sample of a group, or of one example: noise on the number of those sampled, which is binomial."""
    scale, rate = real(scale), real(sampling_rate)
    if rate == 0:
        return nothing()
    if noise == "gaussian" and rate == 1:
        return normal(scale, size * (2 if direction == "replace" else 1))
    key = (noise, float(scale), float(rate), size, direction)
    return mixture_of_noise(noise, key, scale, *sides(direction, sample(rate, size)))


def subsampled_gaussian(direction: str, noise_multiplier: Any, sampling_rate: Any) -> Loss:
    """Poisson samples and Gaussian noise."""
    return subsampled(direction, noise_multiplier, sampling_rate)


def gaussian_mixture(direction: str, noise_multiplier: Any, sensitivities: Any, probabilities: Any) -> Loss:
    """Noise around places, whose probabilities are weights that are divided by their sum."""
    places = np.asarray(sensitivities, np.float64).tolist()
    weights = np.asarray(probabilities, np.float64).tolist()
    together: dict[float, arb] = {}
    for place, weight in zip(places, weights, strict=True):
        together[place] = together.get(place, arb(0)) + arb(weight)
    total_weight = sum(together.values(), arb(0))
    mixed = [(w / total_weight, arb(place)) for place, w in sorted(together.items()) if w != 0]
    key = ("mixture", float(real(noise_multiplier)), tuple(places), tuple(weights), direction)
    if all(place == 0 for _, place in mixed):
        return nothing()
    return mixture_of_noise("gaussian", key, real(noise_multiplier), *sides(direction, mixed))


def truncate(
    direction: str,
    noise_multiplier: Any,
    sampling_rate: Any,
    overflow_probability: Any,
    least_overflow_probability: Any,
    overflow_rate: Any,
    overflow_slack: Any,
) -> Loss:
    """The theorem of :class:`jaxacct.TruncatedPoissonGaussian`: one of three sampled Gaussians is run, known which.

    Half the noise at the rate r with probability v; half the noise at the rate q with probability min(e, w - v); else
    all the noise at the rate q.
    """
    s, q, most = real(noise_multiplier), real(sampling_rate), real(overflow_probability)
    least, r = real(least_overflow_probability), real(overflow_rate)
    if float(s) == np.inf or q == 0:
        return nothing()
    slack = real(overflow_slack).min(most - least)
    parts: dict[tuple[float, float], tuple[arb, arb, arb]] = {}
    for weight, scale, rate in ((least, s / 2, r), (slack, s / 2, q), (1 - least - slack, s, q)):
        if weight != 0:
            place = float(scale), float(rate)
            parts[place] = weight + (parts[place][0] if place in parts else 0), scale, rate
    laws = [
        mixture_of_noise("gaussian", (), scale, *sides(direction, sample(rate)), weight)
        for weight, scale, rate in parts.values()
    ]
    fields = (s, q, most, least, r, slack)
    return join(("truncated", *(float(field) for field in fields), direction), *laws)


def without_replacement(direction: str, scale: Any, sampling_rate: Any, noise: str = "gaussian") -> Loss:
    """A sample without replacement (Zhu, Dong and Wang 2022, Theorem 11), for replacing.

    With the noise B around 0, A around 2, M = (1-q) B + q A: above 0 the law is that of log M/B under M where x > 1,
    below 0 that of -log M/B under B there (reflect x -> 2 - x), and the rest, 1 - M(x > 1) - B(x > 1), is an atom at 0.
    """
    scale, rate = real(scale), real(sampling_rate)
    if float(scale) == np.inf or rate == 0:
        return nothing()
    zero, one, two = arb(0), arb(1), arb(2)
    if scale == 0:
        return Loss(("bare", float(rate)), infinite=rate, atoms=((1 - rate, zero),)) if rate < 1 else everything()
    mixed, base = [(1 - rate, zero), (rate, two)], [(one, zero)]
    above, below = mixtures(noise, scale, mixed, base, one, one), mixtures(noise, scale, base, mixed, one, one)
    inner_mass = 1 - (-1 / scale).exp() if noise == "laplace" else (1 / (scale * two.sqrt())).erf()
    atom = [((1 - rate) * inner_mass, zero)] if rate < 1 else []
    return join(("without", noise, float(scale), float(rate)), above, below, atoms=atom)


def gaussian_without_replacement(direction: str, noise_multiplier: Any, sampling_rate: Any) -> Loss:
    """Batches of fixed size and Gaussian noise."""
    return without_replacement(direction, noise_multiplier, sampling_rate)


def laplace(direction: str, scale: Any) -> Loss:
    """Laplace noise around the shift D against noise around 0; the loss lies within a = D/scale."""
    s, shift = real(scale), arb(2 if direction == "replace" else 1)
    law = mixture_of_noise("laplace", ("laplace", float(s), float(shift)), s, [(arb(1), shift)], [(arb(1), arb(0))])
    return dataclasses.replace(law, laplace=shift / s) if law.pieces else law


def discrete_laplace(direction: str, scale: Any, sensitivity: int) -> Loss:
    """Discrete Laplace noise of mass (1-a)/(1+a) a^|n|, a = e^(-1/scale), against itself moved by D.

    The losses are (2n - D)/scale for n from 0 to D; the two ends also have the mass beyond them.
    """
    if float(np.asarray(scale)) == np.inf:
        return nothing()
    s, width = rational(scale), int(sensitivity)
    a = (-1 / ball(s)).exp()
    atoms = []
    for n in range(width + 1):
        share = 1 / (1 + a) if n in (0, width) else (1 - a) / (1 + a)
        atoms.append((share * a ** (width - n), ball((2 * n - width) / s)))
    return Loss(("discrete laplace", s, width), atoms=tuple(atoms), lattice=(-width / s, 2 / s))


def discrete_gaussian(direction: str, scale: Any, sensitivity: int, reach: int) -> Loss:
    """Discrete Gaussian noise of mass proportional to e^(-n^2/(2 s^2)), moved by D: loss D (2n - D)/(2 s^2).

    Atoms further than R from P's centre are left out: sum over |n| > R of e^(-n^2/(2 s^2)) <= 2 e^(-(R+1)^2/(2 s^2)) /
    (1 - e^(-(R+1)/s^2)), over a sum that is at least 1.
    """
    if float(np.asarray(scale)) == np.inf:
        return nothing()
    s, width = rational(scale), int(sensitivity)
    kappa = ball(1 / s**2)
    limit = int(42 * max(float(s), 0.05)) + 2
    half = [(-kappa * n * n / 2).exp() for n in range(limit + 1)]
    beyond = 2 * (-kappa * (limit + 1) ** 2 / 2).exp() / (1 - (-kappa * (limit + 1)).exp())
    normalizer = half[0] + 2 * sum(half[1:], arb(0)) + arb(0).union(beyond)
    step = width / s**2
    atoms = [
        (half[abs(n - width)] / normalizer, ball(step * (2 * n - width) / 2))
        for n in range(width - limit, width + limit + 1)
    ]
    key = ("discrete gaussian", s, width)
    return Loss(key, atoms=tuple(atoms), lattice=(-step * width / 2, step), lost=beyond)


def pure(direction: str, epsilon: Any) -> Loss:
    """Pure DP, which binary randomized response dominates (Kairouz, Oh and Viswanath 2015)."""
    return approximate(direction, epsilon, 0.0)


def approximate(direction: str, epsilon: Any, delta: Any) -> Loss:
    """Approximate DP: binary randomized response, which releases the data with probability delta."""
    d = real(delta)
    if float(np.asarray(epsilon)) == np.inf or d == 1:
        return everything()
    e = rational(epsilon)
    if e == 0:
        atoms, lattice = [(1 - d, arb(0))], (Fraction(0), Fraction(0))
        return nothing() if d == 0 else Loss(("failure", float(d)), infinite=d, atoms=tuple(atoms), lattice=lattice)
    high = 1 / (1 + (-ball(e)).exp())
    atoms = [((1 - d) * high, ball(e)), ((1 - d) * high * (-ball(e)).exp(), -ball(e))]
    return Loss(("binary", e, float(d)), infinite=d, atoms=tuple(atoms), lattice=(-e, 2 * e))


def one_way(direction: str, epsilon: Any, delta: Any = 0.0) -> Loss:
    """Approximate DP in one direction: P(S) <= e^eps Q(S) + delta for all S, and nothing of the reverse.

    At worst the loss is infinite with probability delta and epsilon otherwise: Q has (1 - delta) e^-eps of the one
    outcome that P shares with it.
    """
    d = real(delta)
    if float(np.asarray(epsilon)) in (0.0, np.inf) or d == 1:
        return approximate(direction, epsilon, delta)
    e = rational(epsilon)
    return Loss(("one way", e, float(d)), infinite=d, atoms=((1 - d, ball(e)),), lattice=(e, Fraction(0)))


def randomized_response(direction: str, epsilon: Any, outcomes: int) -> Loss:
    """Randomized response over k outcomes (Kairouz, Bonawitz and Ramage 2016, equation (2)), for two true values."""
    if outcomes == 2 or float(np.asarray(epsilon)) in (0.0, np.inf):
        return pure(direction, epsilon)
    e = rational(epsilon)
    ratio = (-ball(e)).exp()
    likely = 1 / (1 + (outcomes - 1) * ratio)
    atoms = [(likely, ball(e)), ((outcomes - 2) * ratio * likely, arb(0)), (ratio * likely, -ball(e))]
    return Loss(("response", e, outcomes), atoms=tuple(atoms), lattice=(-e, e))


def discrete_pair(direction: str, p: Any, q: Any) -> Loss:
    """A user's own pair: its outcomes, those of one likelihood ratio p/q, compared exactly, together."""
    p, q = (np.asarray(side, np.float64).tolist() for side in (p, q))
    if direction == "add":
        p, q = q, p
    infinite = sum((Fraction(a) for a, b in zip(p, q, strict=True) if b == 0), Fraction(0))
    masses: dict[Fraction, Fraction] = {}
    for a, b in zip(p, q, strict=True):
        if a > 0 and b > 0:
            ratio = Fraction(a) / Fraction(b)
            masses[ratio] = masses.get(ratio, Fraction(0)) + Fraction(a)
    if not infinite and set(masses) == {1} and sum(masses.values()) == 1:
        return nothing()
    atoms = tuple((ball(mass), ball(ratio).log()) for ratio, mass in sorted(masses.items()))
    return Loss(("pair", tuple(sorted(masses.items())), infinite), infinite=ball(infinite), atoms=atoms)


def random_allocation(direction: str, noise_multiplier: Any, batches: Any, points: int, participations: int) -> Loss:
    """Random allocation: the Gaussian mechanism for one batch, an integral for one epoch over two.

    The likelihood ratio is a mean of log-normal variables, one for each batch: :func:`delta_of_two_batches` integrates
    over two, and more have no closed form. Infinite noise releases nothing, and no noise releases the data.
    """
    if float(np.asarray(batches)) == 1 or float(np.asarray(noise_multiplier)) == np.inf:
        return gaussian(direction, noise_multiplier)
    noise = exact(noise_multiplier, "noise_multiplier")
    if float(np.asarray(batches)) == 2 and participations == 1 and not isinstance(noise, float):
        if noise == 0:
            return everything()
        s = ball(noise)
        return Loss(
            ("two batches", direction, noise), alone=lambda epsilon: delta_of_two_batches(direction, s, epsilon)
        )
    raise Unstated(
        "the likelihood ratio of random allocation, a mean of log-normal variables, has no density in closed form: one "
        "epoch of one or two batches has a statement"
    )


def shuffled_gaussian(
    direction: str,
    noise_multiplier: Any,
    batches: Any,
    epochs_per_shuffle: Any,
    remainder: Any = None,
    stop_after: Any = None,
) -> Loss:
    """Shuffled batches, both directions together: between one event and Gaussian noise (:func:`delta_of_shuffles`)."""
    s, full, epochs = real(noise_multiplier), int(rational(batches)), int(rational(epochs_per_shuffle))
    if float(s) == np.inf:
        return nothing()
    if s == 0:
        return everything()
    # Cases by what becomes of examples that fill no batch; of an epoch that stops after some batches the least
    # probability to be in one of them. That several epochs with one order stop early has no statement from below.
    part = Fraction(full, full + 1)
    cases: dict[str, Case] = {"even": (full, Fraction(1)), "small": (full + 1, Fraction(1)), "dropped": (full, part)}
    if stop_after is not None:
        ran = int(stop_after)
        never = Fraction(epochs == 1)
        cases = {name: (ran, never * Fraction(ran, full + (name != "even"))) for name in cases}
    possible = tuple(dict.fromkeys(cases.values() if remainder is None else [cases[remainder]]))
    noise = s / arb(epochs).sqrt()

    def together(count: int) -> Callable[[arb], arb]:
        if count > MOST_SHUFFLES:
            raise Unstated(f"shuffled batches have a statement of {MOST_SHUFFLES} runs at most")
        return lambda epsilon: delta_of_shuffles(noise, possible, count, direction == "replace", epsilon)

    key = ("shuffled", float(s), possible, epochs, direction == "replace")
    return Loss(
        key,
        together=together,
        gap="shuffled batches are stated from below by the largest of an epoch's results, and from above by Gaussian "
        "noise: between these lies the value claimed",
    )


def unknown_functions(direction: str, **_: Any) -> Loss:
    """A user's distribution functions, which return floats, so that nothing can be proved."""
    raise Unstated("the distribution functions of PrivacyLoss return floats, which prove nothing in ball arithmetic")


STATEMENTS: dict[str, Callable[..., Loss]] = {
    "Gaussian": gaussian,
    "PoissonSubsampledGaussian": subsampled_gaussian,
    "PoissonSubsampledGroup": subsampled,
    "GaussianMixture": gaussian_mixture,
    "TruncatedPoissonGaussian": truncate,
    "GaussianWithoutReplacement": gaussian_without_replacement,
    "LaplaceWithoutReplacement": functools.partial(without_replacement, noise="laplace"),
    "Laplace": laplace,
    "PoissonSubsampledLaplace": functools.partial(subsampled, noise="laplace"),
    "DiscreteLaplace": discrete_laplace,
    "DiscreteGaussian": discrete_gaussian,
    "PureDP": pure,
    "ApproximateDP": approximate,
    "RandomizedResponse": randomized_response,
    "DiscretePair": discrete_pair,
    "RandomAllocation": random_allocation,
    "ShuffledGaussian": shuffled_gaussian,
    "PrivacyLoss": unknown_functions,
}
"""The statement of each type of mechanism: a function of a direction and the record's fields."""

STATED_ONE_WAY: dict[str, Callable[..., Loss]] = {"PureDP": one_way, "ApproximateDP": one_way}
"""The statements under "remove" and "add" of what is then a guarantee of one direction alone."""
