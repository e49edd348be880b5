"""The contour integral of the referee: delta of a composition from the transform M(z) of its privacy loss, in balls.

The law of a privacy loss is held as atoms, a normal part, and pieces with analytic densities. A piece is an interval on
which P and Q have densities of one form,

    p(x) = e^(-kappa x^2 / 2) sum_k c_k e^(alpha_k x),    q(x) likewise with the same kappa,

kappa = 1/s^2 for Gaussian noise, 0 for Laplace noise between two of its kinks. The loss Y(x) = log p(x)/q(x) rises
if no exponent of P is below one of Q's (Y' is P's posterior mean of alpha less Q's), and falls if none is above.

In reading order:

- :class:`Piece` and :class:`Loss`: the law, and delta of one run in closed form.
- :func:`cumulants` to :func:`sketched_log_delta`: saddle points and other estimates in floats, which prove nothing.
- :class:`Tilt` to :func:`values_at`: M(z) on a line by Gauss's rule, with bounds on its error.
- :func:`bound` to :func:`table`: bounds on |M(t + iw)| beyond a frequency.
- :class:`BallLine` to :func:`reach`: the trapezoid sum over frequencies, with bounds on all that it leaves out.

Sources: those of :mod:`jaxacct.verify`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from flint import acb, acb_mat, arb, ctx, fmpq

Terms = tuple[tuple[arb, arb], ...]
"""Coefficients c > 0 and exponents alpha of a density, or in the law of a loss masses of P and losses."""


@dataclass(frozen=True, eq=False)
class Piece:
    """An interval of outcomes with densities of P and Q of the form at the head of this file.

    Attributes:
        curvature: kappa.
        p, q: coefficients and exponents of the densities.
        low, high: the ends of the interval; None for an infinite end, which takes a curvature above 0.
    """

    curvature: arb
    p: Terms
    q: Terms
    low: Any = None
    high: Any = None

    @property
    def rises(self) -> bool:
        """Whether the loss is nondecreasing in x; raises ArithmeticError where neither direction is certain."""
        p, q = [alpha for _, alpha in self.p], [alpha for _, alpha in self.q]
        if all(a >= b for a in p for b in q):
            return True
        if all(a <= b for a in p for b in q):
            return False
        raise ArithmeticError("a piece whose loss is not monotone")

    def loss(self, x: arb) -> arb:
        """Returns Y(x)."""
        return (total(self.p, x) / total(self.q, x)).log()

    def slope(self, x: arb) -> arb:
        """Returns Y'(x)."""
        return posterior_mean(self.p, x) - posterior_mean(self.q, x)

    def loss_at(self, above: bool) -> arb:
        """Returns the limit of the loss at an end, infinite if it is."""
        end = self.high if above else self.low
        if end is not None:
            return self.loss(end)
        choose = (lambda a, b: a if a[1] > b[1] else b) if above else (lambda a, b: a if a[1] < b[1] else b)
        (c, alpha), (d, beta) = reduce(choose, self.p), reduce(choose, self.q)
        if alpha > beta or alpha < beta:
            return arb.pos_inf() if (alpha > beta) == above else arb.neg_inf()
        return (c / d).log()

    def supremum(self) -> arb:
        """Returns the supremum of the loss."""
        return self.loss_at(above=self.rises)

    def by_exponent(self) -> tuple[list[arb], list[list[arb]]]:
        """Returns the exponents in rising order, and for P and for Q the coefficient of each, 0 where there is none.

        Exponents count as the same where their balls are the same, and not merely their floats.
        """
        named = {(a.mid().man_exp(), a.rad().man_exp()): a for _, a in (*self.p, *self.q)}
        order = sorted(named.values(), key=lambda a: a.mid())
        coefficients = [
            [sum((c for c, a in terms if a.mid() == b.mid() and a.rad() == b.rad()), arb(0)) for b in order]
            for terms in (self.p, self.q)
        ]
        return order, coefficients

    def near(self, losses: np.ndarray) -> np.ndarray:
        """Returns the outcomes at which the loss is about each of ``losses``, by floats: nothing proved rests on it."""
        bounds = [None if end is None else float(end) for end in (self.low, self.high)]
        if self.curvature > 0:
            unit = float(self.curvature) ** -0.5
            centres = [float(alpha) * unit**2 for _, alpha in (*self.p, *self.q)]
            bounds[0] = min(centres) - 60 * unit if bounds[0] is None else bounds[0]
            bounds[1] = max(max(centres), bounds[0]) + 60 * unit if bounds[1] is None else bounds[1]
        low, high = np.full(len(losses), bounds[0]), np.full(len(losses), bounds[1])
        # Bisection of all losses at once: the loss is monotone, and 64 halvings exhaust a float.
        for _ in range(64):
            middle = (low + high) / 2
            short = log_total(self.p, middle) - log_total(self.q, middle) < losses
            is_right = short if self.rises else ~short
            low, high = np.where(is_right, middle, low), np.where(is_right, high, middle)
        return (low + high) / 2

    def threshold(self, loss: arb) -> arb:
        """Returns a ball that holds the x at which the loss is ``loss``, which lies between the limits."""

        def is_past(x: arb, above: bool) -> bool:
            """Whether the x sought is certainly below x, or above it."""
            end = self.high if above else self.low
            if end is not None and (x >= end if above else x <= end):
                return True
            gap = self.loss(x) - loss
            return bool(gap > 0 if above == self.rises else gap < 0)

        unit = 1 / self.curvature.sqrt() if self.curvature > 0 else self.high - self.low
        x = step = arb(float(self.near(np.array([float(loss)]))[0]))
        # Newton's steps on midpoints double the digits of the float that they start from. They prove nothing.
        for _ in range(6):
            newton = (x - (self.loss(x) - loss) / self.slope(x)).mid()
            if not newton.is_finite():
                break
            x, step = newton, abs(newton - x)
        radius = (step + (abs(x) + unit) * arb(2) ** (8 - ctx.prec) + loss.rad() / abs(self.slope(x)) * 4).upper()
        radius = radius if radius.is_finite() else unit.upper()
        # The loss is monotone, so signs at two ends prove that x lies between. The radius grows until both are certain:
        # where the loss is flat its own rounding hides the sign.
        for _ in range(40):
            if is_past(x - radius, False) and is_past(x + radius, True):
                return arb(x, radius)
            radius *= 64
        raise ArithmeticError("a loss too flat to be met")

    def excess(self, loss: arb) -> arb:
        """Returns the integral of (p - e^loss q)+ over the piece."""
        ends = sorted((self.loss_at(False), self.loss_at(True)), key=float)
        low, high = self.low, self.high
        if ends[1] <= loss:
            return arb(0)
        if not ends[0] >= loss:
            if not (ends[0] < loss < ends[1]):  # at an end, to all digits: the integrand nearly vanishes there
                difference = self.mass(self.p, low, high) - loss.exp() * self.mass(self.q, low, high)
                return difference.max(arb(0)).union(arb(0)) if not ends[1] > loss else difference.max(arb(0))
            x = self.threshold(loss)
            low, high = (x, high) if self.rises else (low, x)
        return self.mass(self.p, low, high) - loss.exp() * self.mass(self.q, low, high)

    def mass(self, terms: Terms, low: arb | None, high: arb | None) -> arb:
        """Returns the integral of a density from ``low`` to ``high``."""
        return sum((c * self._integral(alpha, low, high) for c, alpha in terms), arb(0))

    def _integral(self, alpha: arb, low: Any, high: Any) -> arb:
        """Returns the integral of e^(-kappa x^2 / 2 + alpha x) from ``low`` to ``high``."""
        if not self.curvature > 0:
            if alpha == 0:
                return high - low
            return ((alpha * high).exp() - (alpha * low).exp()) / alpha
        # With m the peak of the integrand, erfc is taken on the side of m where the difference does not cancel. The
        # comparisons choose among forms that are all right everywhere.
        root = (self.curvature / 2).sqrt()
        m = alpha / self.curvature
        full = (arb.pi() / (2 * self.curvature)).sqrt() * (alpha**2 / (2 * self.curvature)).exp()
        below = arb(0) if low is None else (-root * (low - m)).erfc()
        above = arb(0) if high is None else (root * (high - m)).erfc()
        if low is not None and low > m:
            return full * ((root * (low - m)).erfc() - above)
        if high is not None and high < m:
            return full * ((-root * (high - m)).erfc() - below)
        return full * (2 - below - above)


def log_total(terms: Terms, x: np.ndarray) -> np.ndarray:
    """Returns an estimate of log of :func:`total`, by floats."""
    return np.logaddexp.reduce([float(c.log()) + float(alpha) * x for c, alpha in terms])


def total(terms: Terms, x: arb) -> arb:
    """Returns sum_k c_k e^(alpha_k x), for real or complex x."""
    return sum((c * (alpha * x).exp() for c, alpha in terms[1:]), terms[0][0] * (terms[0][1] * x).exp())


def posterior_mean(terms: Terms, x: arb) -> arb:
    """Returns the derivative of log of :func:`total`: the posterior mean of alpha, nondecreasing in x."""
    if len(terms) == 1:
        return terms[0][1]
    values = [c * (alpha * x).exp() for c, alpha in terms]
    return sum((v * alpha for v, (_, alpha) in zip(values, terms, strict=True)), arb(0)) / sum(values, arb(0))


def ball(value: Fraction) -> arb:
    """Returns a fraction as a ball."""
    return arb(fmpq(value.numerator, value.denominator))


@dataclass(frozen=True, eq=False)
class Loss:
    """The law of one run's privacy loss under P.

    Attributes:
        key: an identifier; laws with equal keys are equal.
        infinite: P(Y = inf).
        atoms: masses of P and losses, all different.
        pieces: intervals of outcomes on which the law is continuous.
        normal: mu^2 where the loss is N(mu^2 / 2, mu^2), and nothing else; else None.
        lattice: exact offset and step, if all losses are offset + step * integer; else None.
        lost: P's mass of atoms left out, far out on a lattice that has no end.
        laplace: a, the largest loss, where this is plain Laplace noise; else None.
        alone: a function from epsilon to delta of one run, where nothing else is known of the law, which then cannot be
            composed; else None.
        together: a function from a number of runs to the ``alone`` of them all, where that is known instead; else None.
        gap: why that ``alone`` gives wide balls; empty where they are narrow.
    """

    key: tuple
    infinite: arb = field(default_factory=arb)
    atoms: Terms = ()
    pieces: tuple[Piece, ...] = ()
    normal: Any = None
    lattice: Any = None
    lost: arb = field(default_factory=arb)
    laplace: Any = None
    alone: Any = None
    together: Any = None
    gap: str = ""

    @property
    def is_finite(self) -> bool:
        """Whether the law has atoms alone."""
        return not self.pieces and self.normal is None

    def supremum(self) -> arb:
        """Returns the supremum of the finite losses."""
        if self.alone is not None or self.normal is not None or self.lost > 0:
            return arb.pos_inf()
        suprema = [loss for _, loss in self.atoms] + [piece.supremum() for piece in self.pieces]
        return reduce(lambda a, b: a.max(b), suprema, arb.neg_inf())

    def single(self, epsilon: arb) -> arb:
        """Returns E[(1 - e^(epsilon - Y))+; Y < inf] of one run."""
        if self.alone is not None:
            return self.alone(epsilon)
        value = sum((p * (1 - (epsilon - y).exp()).max(arb(0)) for p, y in self.atoms), arb(0))
        if self.normal is not None:
            mu = self.normal.sqrt()
            far = (mu / 2 + epsilon / mu) / arb(2).sqrt()
            value += ((epsilon / mu - mu / 2) / arb(2).sqrt()).erfc() / 2 - epsilon.exp() * far.erfc() / 2
        value += sum((piece.excess(epsilon) for piece in self.pieces), arb(0))
        return value + arb(0).union(self.lost) if self.lost > 0 else value


# ----------------------------------------------------------------------------------------------------
# Estimates in floats: cumulants and saddle points, which place a contour. Nothing here is proved, and nothing proved
# rests on it.
#
# A contour is placed by the cumulants K(t) = log E[e^(tY)] and their two derivatives. A poor guess makes balls wide,
# and a verdict UNDECIDED, never wrong.
# ----------------------------------------------------------------------------------------------------

Runs = Sequence[tuple[Loss, int]]
"""A composition: laws, and how often each is run."""


def _grid(piece: Piece, t: float) -> np.ndarray:
    """Returns evenly spaced outcomes that cover a piece's mass under the tilt t.

    Gaussian noise tilted by p^(1+t) q^(-t) is a sum of parts around (1 + t) a - t b, over kappa, for exponents a of P
    and b of Q.
    """
    low, high = (math.nan if end is None else float(end) for end in (piece.low, piece.high))
    kappa = float(piece.curvature)
    if kappa == 0:
        return np.linspace(low, high, 801)
    p, q = [float(a) for _, a in piece.p], [float(a) for _, a in piece.q]
    s = kappa**-0.5
    centres = [((1 + t) * a - t * b) / kappa for a in p for b in q]
    # The grid reaches 13 standard deviations beyond the tilted centres, by at most 20,000 points. Any values are sound.
    first, last = min(centres) - 13 * s, max(centres) + 13 * s
    first, last = max(first, low) if low == low else first, min(last, high) if high == high else last
    if high == high:
        first = min(first, last - s)
    last = max(last, first + s)
    return np.linspace(first, last, int(min(20_000, max(200, (last - first) / s / 0.1))))


@functools.lru_cache(maxsize=64)
def _atoms(law: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Returns logs of the atoms' masses, and their losses."""
    return np.array([float(p.log()) for p, _ in law.atoms]), np.array([float(y) for _, y in law.atoms])


def tilted_sample(law: Loss, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns logs of weights, e^(tY) times mass, and losses: the atoms, and points in the pieces."""
    log_masses, places = _atoms(law)
    logs, losses = [log_masses + t * places], [places]
    # A piece's integral is the trapezoid rule on its grid, in logarithms, as tilted densities overflow.
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
    logs, losses = tilted_sample(law, t)
    top = float(np.max(logs))
    weights = np.exp(logs - top)
    total = float(np.sum(weights))
    mean = float(np.sum(weights * losses)) / total
    return top + math.log(total), mean, float(np.sum(weights * (losses - mean) ** 2)) / total


def together(runs: Runs, t: float) -> tuple[float, float, float]:
    """Returns the cumulant K(t) and its two derivatives of a composition, sums over the runs."""
    parts = [(np.array(cumulants(law, t)), count) for law, count in runs]
    k, first, second = sum((float(count) * part for part, count in parts), np.zeros(3))
    return float(k), float(first), float(second)


def root(function, low: float, high: float) -> float:
    """Returns an estimate of the t > 0 at which an increasing function crosses 0, by bisection of log t."""
    for _ in range(46):
        middle = math.sqrt(low * high)
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def sketched_saddle(runs: Runs, epsilon: float) -> float:
    """Returns the t > 0 that minimizes K(t) - t epsilon - log t - log(1 + t)."""
    return _saddle(tuple(runs), epsilon)


@functools.lru_cache(maxsize=64)
def _saddle(runs: Runs, epsilon: float) -> float:
    """Returns the zero of the derivative, which increases, as K is convex."""
    return root(lambda t: together(runs, t)[1] - epsilon - 1 / t - 1 / (1 + t), 1e-9, 1e7)


def farther(runs: Runs, loss: float, above: float) -> float:
    """Returns the t at which the tilted mean is ``loss``, or just more than ``above`` where that would be less."""
    return root(lambda t: together(runs, t)[1] - loss, above * 1.0001, 1e7)


def log_most(runs: Runs, t: float, epsilon: float) -> float:
    """Returns an estimate of the log of Chernoff's bound on delta: (1 - e^-y)+ <= e^(ty) t^t / (1 + t)^(1 + t)."""
    return together(runs, t)[0] - t * epsilon + t * math.log(t) - (1 + t) * math.log1p(t)


def sketched_log_delta(runs: Runs, t: float, epsilon: float) -> float:
    """Returns an estimate of the logarithm of delta, by the saddle point t."""
    k, _, variance = together(runs, t)
    spread = variance + 1 / t**2 + 1 / (1 + t) ** 2
    return min(0.0, k - t * epsilon - math.log(t * (1 + t)) - 0.5 * math.log(2 * math.pi * spread))


# ----------------------------------------------------------------------------------------------------
# The transform M(z) = E[e^(zY)] on a line z = t + iw, and how far it falls, with every error in the balls.
#
# On a piece the integrand is F(x) = p(x)^(1+z) q(x)^(-z), entire but for the zeros of p and q. At x + iv, write a for
# the least and b for the largest exponent of a sum sum c_k e^(alpha_k x): the terms' arguments lie within v (b - a) of
# each other. So while that is below pi the sum is not 0, and its modulus is at most its value at x. With w_j the terms'
# shares at x, the square of the ratio is 1 - sum over all i, j of w_i w_j (1 - cos(v (alpha_i - alpha_j))) >= 1 - A,
# where A = min(1/2, 1 - max w_j^2) (1 - cos(v (b - a))); the half is that of cos^2(v (b - a) / 2). With the common
# factor e^(-kappa x^2 / 2), whose modulus grows by e^(kappa v^2 / 2), and A of q,
#
#     |F(x + iv)| <= f(x) e^(kappa v^2 / 2) (1 - A)^(-t/2) e^(-w arg r(x + iv)),    f = p^(1+t) q^(-t), r = p/q.
#
# *Gauss's rule* of n nodes on a panel of half-width H misses at most 64/15 H sup|F| rho^(-2n) / (1 - rho^(-2)), the
# supremum over the ellipse of semi-axes H (rho +- 1/rho) / 2 (Trefethen 2013, Theorem 19.3). f is bounded on an
# interval by its middle value and its logarithmic slope -kappa x + (1 + t) E_p[alpha] - t E_q[alpha]: the posterior
# means are nondecreasing in x, so their values at the interval's ends bound them. The argument of a sum that is 1 + u
# times its base, the term nearest to the other distribution, is at most v (b - a). With R the other terms' sum over the
# base at x it is at most pi/2 R where R < 1, since |arg(1 + u)| <= pi/2 |u|; and at most v (b - a) R where
# v (b - a) < pi/2, for there Re u >= 0 and |Im u| <= R sin(v (b - a)). R is monotone in x, and the interval's ends
# bound it.
#
# *Tails.* Beyond an end where -kappa x + lambda, with lambda the largest value of the other two terms, is below 0, f
# falls at least as e^(-(x - end) (kappa end - lambda)): its integral is at most f(end) / (kappa end - lambda).
#
# *Decay.* arg r(x + iv) >= 0 for v > 0 where the loss rises (P's exponents are at or above Q's), v < 0 where it falls.
# So moving the path to Im x = v bounds |M(t + iw)| by integrals that only fall as w rises: one value holds for all w
# beyond. Where the interval ends the path goes up there.
#
# *Smaller w.* With phi(w) = M(t + iw) / M(t), |phi|^2 is the transform of a symmetric law, and 1 - cos(n u)
# <= n^2 (1 - cos u), so 1 - |phi(w)|^2 >= (1 - |phi(n w)|^2) / n^2.
# ----------------------------------------------------------------------------------------------------

MOST_IN_ALL = 100_000
"""Largest number of nodes of a law, beyond which the integral is given up. Any value is sound."""

WIDEST = 2.9
"""Largest width of the arguments, in radians, among which a sum's terms may lie.

It has to be below pi: the proof above fails beyond.
"""


class TooMuch(Exception):
    """The error of a route that would take more work than a verdict is worth; its text says of what."""


def spread(terms: Terms) -> arb:
    """Returns the largest exponent less the least."""
    values = [alpha for _, alpha in terms]
    return functools.reduce(arb.max, values) - functools.reduce(arb.min, values)


@dataclass(frozen=True, eq=False)
class Tilt:
    """A piece under the tilt t: its density f(x) = p(x)^(1+t) q(x)^(-t), and bounds on it."""

    piece: Piece
    t: arb

    def log_density(self, x: arb) -> arb:
        """Returns log f(x)."""
        p, q = total(self.piece.p, x).log(), total(self.piece.q, x).log()
        return p + self.t * (p - q) - self.piece.curvature * x * x / 2

    def supremum(self, middle: arb, half: arb) -> arb:
        """Returns an upper bound of f on an interval."""
        # The logarithm of f lies within half the width times the largest absolute slope of its value in the middle.
        piece, t = self.piece, self.t
        low, high = middle - half, middle + half
        p, q = ([posterior_mean(terms, end) for end in (low, high)] for terms in (piece.p, piece.q))
        rise = -piece.curvature * low + (1 + t) * p[1] - t * q[0]
        fall = -piece.curvature * high + (1 + t) * p[0] - t * q[1]
        return (self.log_density(middle) + half * rise.max(-fall).max(arb(0))).exp().upper()

    def growth(self, v: arb, low: arb | None = None, high: arb | None = None) -> arb:
        """Returns a bound on |F(x + iu)| / f(x) but for e^(-w arg r), for x in [low, high] or any x, and u up to v."""
        q, mixed = self.piece.q, arb(0.5)
        if low is not None:
            # The share of the term of the largest exponent is least at ``low``, that of the smallest at ``high``.
            largest = (1 / (1 + _relative_rest(q, high, least=True))).max(1 / (1 + _relative_rest(q, low, least=False)))
            mixed = (1 - largest**2).min(mixed)
        loss = mixed * (1 - (spread(q) * v).cos())
        return (self.piece.curvature * v * v / 2 - self.t / 2 * (1 - loss).log()).exp()

    def argument(self, low: arb, high: arb, v: arb) -> arb:
        """Returns a bound on |arg r(x + iu)| for x in [low, high] and u up to v."""
        rises = self.piece.rises
        near_p = _relative_rest(self.piece.p, high if rises else low, least=rises)
        near_q = _relative_rest(self.piece.q, low if rises else high, least=not rises)
        local = []
        for rest, terms in ((near_p, self.piece.p), (near_q, self.piece.q)):
            widest = spread(terms) * v
            least = widest.min(arb.pi() / 2 * rest) if rest < 1 else widest
            local.append(least.min(rest * widest) if widest < arb.pi() / 2 else least)
        turn = abs(_base(self.piece.p, least=rises)[1] - _base(self.piece.q, least=not rises)[1]) * v
        return (local[0] + local[1] + turn).upper()

    def ends(self) -> tuple[arb, arb, arb]:
        """Returns an interval outside of which f is negligible, and a bound on its integral there."""
        piece, t = self.piece, self.t
        if piece.low is not None and piece.high is not None:
            return piece.low, piece.high, arb(0)
        p, q = [a for _, a in piece.p], [a for _, a in piece.q]
        least = (1 + t) * functools.reduce(arb.min, p) - t * functools.reduce(arb.max, q)
        most = (1 + t) * functools.reduce(arb.max, p) - t * functools.reduce(arb.min, q)
        # Panels reach 18 standard deviations of the noise beyond the outermost tilted place: e^(-18^2/2) = 2^-233.
        # Any number above 0 is sound: the integral beyond is bounded and counted.
        kappa, reach = piece.curvature, 18 / piece.curvature.sqrt()
        low = (least / kappa - reach).mid() if piece.low is None else piece.low
        high = (most / kappa + reach).mid() if piece.high is None else piece.high
        if piece.low is not None:
            high = high.max(low + reach).mid()
        elif piece.high is not None:
            low = low.min(high - reach).mid()
        beyond = arb(0)
        if piece.low is None:
            beyond += self.log_density(low).exp() / (least - kappa * low)
        if piece.high is None:
            beyond += self.log_density(high).exp() / (kappa * high - most)
        return low, high, beyond.upper()

    def cells(self, width: float, tiny: arb) -> Iterator[tuple[arb, arb, arb]]:
        """Yields middles and half-widths of parts between the ends, in their order, and bounds on f's integrals there.

        Parts are equal cells, or many of them together where they hold less than ``tiny``: under a strong tilt f is
        narrow, and far from its ends.
        """
        low, high, _ = self.ends()
        unit = 1 / self.piece.curvature.sqrt() if self.piece.curvature > 0 else high - low
        count = max(1, int(float((high - low) / (unit * width))) + 1)
        half = (high - low) / (2 * count)
        left, number = [(0, count)], 0
        # Bisection with a stack of index ranges, the leftmost on top, so that parts come in their order. A range is one
        # part when it is a single cell or its bound is below ``tiny``; else its halves follow.
        while left:
            first, last = left.pop()
            middle, reach = low + (first + last) * half, (last - first) * half
            above = 2 * reach * self.supremum(middle, reach)
            if last - first == 1 or above < tiny:
                number += 1
                if number > 20_000:  # any number is sound
                    raise TooMuch(f"the tilted density reaches over {count} cells")
                yield middle, reach, above
            else:
                between = (first + last) // 2
                left += [(between, last), (first, between)]


def _base(terms: Terms, least: bool) -> tuple[arb, arb]:
    """Returns the term of the least exponent, or of the largest."""
    return functools.reduce(lambda a, b: a if (a[1] < b[1]) == least else b, terms)


def _relative_rest(terms: Terms, x: arb, least: bool) -> arb:
    """Returns the sum of all terms but the base's, over the base's."""
    if len(terms) == 1:
        return arb(0)
    c, alpha = _base(terms, least)
    return total(terms, x) / (c * (alpha * x).exp()) - 1


@functools.lru_cache(maxsize=400)
def _gauss(n: int, bits: int) -> tuple[tuple[arb, arb], ...]:
    """Returns the nodes and weights of Gauss's rule on [-1, 1], as balls."""
    with ctx.workprec(bits):
        return tuple(arb.legendre_p_root(n, k, weight=True) for k in range(n))


@dataclass(frozen=True)
class BallNodes:
    """Points of a law under a tilt t: M(t + iw) is sum weight e^(iw loss) within ``error``, for |w| up to a limit."""

    weights: list[arb]
    losses: list[arb]
    error: arb


def nodes(law: Loss, t: arb, limit: float, scale: arb, accuracy: int, most: float = MOST_IN_ALL) -> BallNodes:
    """Returns nodes for |w| <= ``limit``, with an error near 2^-accuracy times ``scale``, which is about M(t).

    Raises TooMuch where more than ``most`` nodes are needed.
    """
    goal = scale * arb(2) ** -accuracy
    weights, losses, error = _atom_nodes(law, t, goal)
    panels: list[tuple[Tilt, arb, arb]] = []
    # ``run`` collects neighbouring cells of some weight, which become panels together. A cell below ``tiny`` ends the
    # run and adds its whole integral to the error.
    for piece in law.pieces:
        tilt = Tilt(piece, t)
        error += tilt.ends()[2]
        run: list[tuple[arb, arb]] = []
        tiny = goal / 1000
        # Cells that hold next to nothing are left to the error; runs of all others become panels.
        for middle, half, above in tilt.cells(0.5 if piece.curvature > 0 else 0.125, tiny):
            if above < tiny:
                error += above
                panels += [(tilt, *panel) for panel in _merge(run)]
                run = []
            else:
                run.append((middle, half))
        panels += [(tilt, *panel) for panel in _merge(run)]
    for tilt, middle, half in panels:
        if len(weights) <= most:
            error += _panel(tilt, middle, half, arb(limit), goal, weights, losses)
    if len(weights) > most:
        raise TooMuch(f"more than {int(most)} nodes")
    return BallNodes(weights, losses, error.upper())


def _atom_nodes(law: Loss, t: arb, goal: arb) -> tuple[list[arb], list[arb], arb]:
    """Returns the tilted weights and the losses of a law's atoms, and a bound on the weight of those left out."""
    weights = [p * (t * y).exp() for p, y in law.atoms]
    error = arb(0)
    if law.lost > 0:
        # Atoms beyond the outermost: their tilted masses fall off faster than a geometric series.
        for near, far in ((weights[1], weights[0]), (weights[-2], weights[-1])):
            ratio = far / near
            error += far * ratio / (1 - ratio) if ratio < 1 else arb.pos_inf()
    # Of many atoms those of negligible weight become part of the error: each node costs a product at every frequency.
    counts = [len(weights) < 20 or not weight < goal / 1e4 for weight in weights]
    error += sum((weight for weight, count in zip(weights, counts, strict=True) if not count), arb(0))
    losses = [y for (_, y), count in zip(law.atoms, counts, strict=True) if count]
    return [weight for weight, count in zip(weights, counts, strict=True) if count], losses, error


def _merge(run: list[tuple[arb, arb]]) -> list[tuple[arb, arb]]:
    """Returns the panels, by middle and half-width, that neighbouring cells make, up to eight a panel."""
    intervals = []
    for i in range(0, len(run), 8):
        part = run[i : i + 8]
        low, high = part[0][0] - part[0][1], part[-1][0] + part[-1][1]
        intervals.append((((low + high) / 2), (high - low) / 2))
    return intervals


def _panel(
    tilt: Tilt, middle: arb, half: arb, limit: arb, goal: arb, weights: list[arb], losses: list[arb], depth: int = 0
) -> arb:
    """Adds the nodes of a panel, halved as often as it takes; returns a bound on their error."""
    best: tuple[int, arb] = (10**9, arb.pos_inf())
    widest = spread(tilt.piece.p).max(spread(tilt.piece.q))
    # Each ellipse gives a bound on F, and so the number of nodes for the error wanted; the fewest nodes win. A wider
    # ellipse makes the error fall faster and the bound larger, until terms of a sum may cancel. An ellipse is given by
    # the sum of its semi-axes over the panel's half-width: any values above 1 are sound.
    for rho in map(arb, (1.25, 1.5, 1.8, 2.2, 2.7, 3.3, 4, 5, 6.5, 8.5, 11, 15)):
        v, reach = half * (rho - 1 / rho) / 2, half * (rho + 1 / rho) / 2
        if widest * v > WIDEST:
            break
        bound = tilt.supremum(middle, reach) * tilt.growth(v, middle - reach, middle + reach)
        bound *= (limit * tilt.argument(middle - reach, middle + reach, v)).exp()
        bound *= half * 64 / 15 / (1 - rho**-2)
        needed = float((bound / goal).log() / (2 * rho.log()))
        n = max(4, int(min(needed, 1e8)) + 1) if needed == needed else 10**9
        if n < best[0]:
            best = n, bound * rho ** (-2 * n)
    n, error = best
    if n > 48:  # the panel is halved; any number is sound
        if depth > 14 or len(weights) > MOST_IN_ALL:
            raise TooMuch(f"more than {MOST_IN_ALL} nodes")
        parts = [(middle - half / 2, half / 2), (middle + half / 2, half / 2)]
        return sum((_panel(tilt, m, h, limit, goal, weights, losses, depth + 1) for m, h in parts), arb(0))
    kappa, t = tilt.piece.curvature, tilt.t
    # Gauss's nodes on the panel; each is a loss with the weight of the tilted density there.
    for node, weight in _gauss(n, ctx.prec):
        x = middle + half * node
        p = total(tilt.piece.p, x)
        loss = (p / total(tilt.piece.q, x)).log()
        weights.append(half * weight * p * (t * loss - kappa * x * x / 2).exp())
        losses.append(loss)
    return error


def values_at(nodes: BallNodes, step: arb, count: int) -> list[acb]:
    """Returns M(t + i m step) for m = 0 .. count - 1, by a product of two matrices: small steps and large ones.

    With m = r + R c, e^(i m step y) is e^(i r step y) e^(i R c step y): about sqrt(count) powers of each node suffice.
    """
    rows = max(1, int(count**0.5))
    columns = -(-count // rows)
    table = acb_mat(rows, columns)
    # So many nodes are summed by one product of matrices: speed and memory only.
    block = 1000
    for i in range(0, len(nodes.losses), block):
        losses, weights = nodes.losses[i : i + block], nodes.weights[i : i + block]
        small = _powers([acb(0, step * y).exp() for y in losses], rows)
        large = _powers([acb(0, step * rows * y).exp() for y in losses], columns)
        weighted = [row[j] * weight for j, weight in enumerate(weights) for row in large]
        size = len(losses)
        table += acb_mat(rows, size, [v for row in small for v in row]) * acb_mat(size, columns, weighted)
    entries = table.entries()
    missed = arb(0, nodes.error)
    miss = acb(missed, missed)
    return [entries[(m % rows) * columns + m // rows] + miss for m in range(count)]


def _powers(bases: list[acb], count: int) -> list[list[acb]]:
    """Returns the powers 0 .. count - 1, each the product of two of about half its order.

    In a chain of ``count`` products the rectangle of a complex ball would grow by up to sqrt 2 at each turn.
    """
    powers = [[acb(1)] * len(bases), bases][:count]
    for i in range(2, count):
        powers.append([a * b for a, b in zip(powers[i // 2], powers[i - i // 2], strict=True)])
    return powers


# ----------------------------------------------------------------------------------------------------
# Decay of |M(t + iw)| beyond a frequency: the bounds proved above, placed by floats and evaluated in balls.
#
# A table holds for rising frequencies the estimate of a bound and the shifts of the path that give it. Only the rows
# that a sum over frequencies rests on are proved.
# ----------------------------------------------------------------------------------------------------


def bound(law: Loss, t: arb, frequency: float, shifts: list[float]) -> arb:
    """Returns a bound on |M(t + iw)| for all w >= ``frequency``, with the pieces' paths moved by ``shifts``."""
    value = sum((p * (t * y).exp() for p, y in law.atoms), arb(0))
    # Parts of a piece below this share of M(t) are bounded together. Any value is sound.
    tiny = arb(cumulants(law, float(t))[0]).exp() * 1e-60
    for piece, shift in zip(law.pieces, shifts, strict=True):
        value += _piece(Tilt(piece, t), arb(frequency), arb(shift), tiny)
    return value.upper()


def _piece(tilt: Tilt, frequency: arb, v: arb, tiny: arb) -> arb:
    """Returns a bound on a piece's part of :func:`bound`: the path at the height v, and the ways up at finite ends."""
    piece = tilt.piece
    if not (spread(piece.p) * v < WIDEST and spread(piece.q) * v < WIDEST):
        return arb.pos_inf()
    value = tilt.growth(v) * tilt.ends()[2]
    # Cell by cell, the integral of f times the growth, times the fall e^(-w arg r) at the least argument in the cell.
    for middle, half, above in tilt.cells(0.06 if piece.curvature > 0 else 0.01, tiny):
        least = _argument(piece, acb(arb(middle, half), v if piece.rises else -v))
        value += tilt.growth(v, middle - half, middle + half) * above * (-frequency * least).exp()
    for end in (piece.low, piece.high):
        if end is None:
            continue
        # At a finite end the path goes up from the real line to v. The argument starts at 0 and the integrand does not
        # fall there, so the first 40 steps widen twofold; 20 even ones follow.
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
    """Returns a lower bound of |arg r| over a ball, on the side of the real line on which |M| is bounded."""

    def turn(terms: Terms, least: bool) -> arb:
        """Returns a lower bound of the argument of a sum over its base term."""
        c, alpha = _base(terms, least)
        if len(terms) == 1:
            return arb(0)
        others = sum((d * ((beta - alpha) * z).exp() for d, beta in terms if beta != alpha), acb(c))
        angle = abs(others.arg())
        return arb(angle.abs_lower()) if angle.is_finite() else arb(0)

    rises = piece.rises
    between = abs(_base(piece.p, rises)[1] - _base(piece.q, not rises)[1]) * arb(abs(z.imag).abs_lower())
    return turn(piece.p, rises) + turn(piece.q, not rises) + between


@dataclass(frozen=True)
class DecayTable:
    """Estimates of the decay of a law under a tilt, in floats, and the bounds proved so far.

    Attributes:
        frequencies: rising frequencies, one for each row.
        logs: for each row about the log of :func:`bound` over M(t); what was proved, where it was.
        shifts: for each row the distance by which each piece's path is moved.
        variance: that of a normal loss, whose decay is known in closed form; else None.
        bounds: by row, the bounds that were proved.
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
        # A row beyond the frequency serves through the least multiple n of the frequency that reaches it.
        n = np.maximum(1.0, np.ceil(self.frequencies / frequency))
        square = np.minimum(np.exp(2 * self.logs), 1.0)
        with np.errstate(divide="ignore"):
            logs = np.where(n > 1, 0.5 * np.log1p(-(1 - square) / n**2), np.minimum(self.logs, 0.0))
        row = int(np.argmin(logs))
        return float(logs[row]), row, int(n[row])

    def prove(self, law: Loss, t: arb, frequency: float, top: arb) -> DecayTable:
        """Returns the table with the row for ``frequency`` proved; ``top`` is M(t)."""
        log, row, _ = self.at(frequency)
        if log >= 0 or not law.pieces or row in self.bounds:
            return self
        beyond = bound(law, t, float(self.frequencies[row]), self.shifts[row])
        logs, log_bound = self.logs.copy(), float((beyond / top).log())
        logs[row] = log_bound if log_bound < 0 else 0.0
        return replace(self, logs=logs, bounds={**self.bounds, row: beyond})


def table(law: Loss, t: float) -> DecayTable:
    """Returns the estimated decay of a law at frequencies around its scale, with nothing proved yet."""
    k, _, variance = cumulants(law, t)
    if law.normal is not None:
        return DecayTable(np.zeros(1), np.zeros(1), [[]], variance)
    frequencies = np.geomspace(0.3, 1e6, 60) / math.sqrt(variance) if variance > 0 else np.ones(1)
    log_masses, places = _atoms(law)
    atoms = np.sum(np.exp(np.minimum(0.0, log_masses + t * places - k)))
    sums = np.full(len(frequencies), float(atoms))
    shifts: list[list[float]] = [[] for _ in frequencies]
    for piece in law.pieces:
        rows = _rows(piece, t, k, frequencies)
        for i in range(len(frequencies)):
            j = int(np.argmin(rows[1][:, i]))
            sums[i] += 1.06 * rows[1][j, i]
            shifts[i].append(rows[0][j])
    return DecayTable(frequencies, np.log(np.maximum(sums * 1.0001, 1e-300)), shifts)


def _rows(piece: Piece, t: float, k: float, frequencies: np.ndarray) -> tuple[list[float], np.ndarray]:
    """Returns the shifts that are allowed, and for each of them about a piece's bound over M(t) at the frequencies.

    The estimate follows :func:`_piece`, with a sum over a grid for the cells and one term for each way up.
    """
    x = _grid(piece, t)
    kappa, widths = float(piece.curvature), [float(spread(side)) for side in (piece.p, piece.q)]
    gaps = [abs(float(a) - float(b)) for _, a in piece.p for _, b in piece.q]
    unit = kappa**-0.5 if kappa > 0 else 1 / max(gaps)
    log_f = (1 + t) * log_total(piece.p, x) - t * log_total(piece.q, x) - kappa * x**2 / 2 - k
    dx = x[1] - x[0]
    largest = np.exp(np.max([float(c.log()) + float(a) * x for c, a in piece.q], axis=0) - log_total(piece.q, x))
    mixed = np.minimum(1 - largest**2, 0.5)
    shifts: list[float] = []
    rows = []
    # The path is moved by so many standard deviations of Gaussian noise; for Laplace noise the unit is 1 over the
    # largest difference of an exponent of P and one of Q. Any values above 0 are sound.
    for shift in (0.03, 0.06, 0.12, 0.25, 0.45, 0.7, 1.0, 1.4, 2.0, 3.0):
        v = shift * unit
        if max(widths) * v >= WIDEST - 0.01:
            break
        growth = kappa * v * v / 2 - t / 2 * np.log(1 - mixed * (1 - math.cos(widths[1] * v)))
        turn = sum(np.abs(_turn(side, x, v)) for side in _logs_and_exponents(piece))
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


def _logs_and_exponents(piece: Piece) -> list[tuple[list[float], list[float]]]:
    """Returns log coefficients and exponents of P and of Q, from the exponent of P nearest to Q's for both."""
    base = float(_base(piece.p, piece.rises)[1])
    return [([float(c.log()) for c, _ in side], [float(a) - base for _, a in side]) for side in (piece.p, piece.q)]


def _turn(side: tuple[list[float], list[float]], x: np.ndarray, v: float) -> np.ndarray:
    """Returns the argument of a sum at x + iv, by floats."""
    logs = np.array([c + a * x for c, a in zip(*side, strict=True)])
    weights = np.exp(logs - np.max(logs, axis=0))
    angles = np.array(side[1])[:, None] * v
    return np.arctan2(np.sum(weights * np.sin(angles), axis=0), np.sum(weights * np.cos(angles), axis=0))


# ----------------------------------------------------------------------------------------------------
# The line integral: delta as an integral over a line in the complex plane, with every omitted term bounded.
#
# Let S be the sum of the losses, M(z) = E[e^(zS); S < inf] and z = t + iw with t > 0. Since (1 - e^(-y))+ is the
# inverse transform of 1/(z (z + 1)),
#
#     delta(eps) = E[(1 - e^(eps - S))+] = 1/(2 pi) integral of M(z) e^(-z eps) / (z (z + 1)) dw.
#
# Theorem. Let T be the trapezoid sum with step h over w = m h, |m| < n, and L = 2 pi / h. Then
#
#     delta(eps) = T - sum over m != 0 of delta(eps + L m) e^(t L m) + truncation
#
# by Poisson's formula, the transform of delta(eps + y) e^(ty) being the integrand. No term of the sum is negative.
#
# - m < 0: delta <= M(0), so at most M(0) / (e^(tL) - 1) together.
# - m > 0: delta(e) <= E[e^(u (S - e))] sup_y e^(-uy) (1 - e^(-y)) = M(u) e^(-ue) u^u / (1 + u)^(1 + u) for each u > t.
# - Truncation: |M(t + iw)| <= B beyond w = (n - 1) h, |z (z + 1)| >= w^2 and sum over m >= n of 1/m^2 <= 1/(n - 1) give
#   at most B e^(-t eps) / (pi h (n - 1)).
#
# B is the product of the laws' bounds (:func:`bound`), each to the power of its count; M(z) itself is quadrature
# (:func:`nodes`).
# ----------------------------------------------------------------------------------------------------

ACCURACY = 44.0
"""Negative natural logarithm of the relative accuracy aimed at: e^-44 = 8e-20. Any value is sound."""

MOST_PRODUCTS = 4e7
"""Largest product of nodes and frequencies of one law: about four seconds. Any value is sound."""


@dataclass(frozen=True, eq=False)
class BallLine:
    """The integrand on a line, but for e^(-z eps): it gives delta at any epsilon, tight near the one it was placed for.

    Attributes:
        t: the real part of the line.
        period: L = 2 pi / h.
        values: M(z) / (M(t) z (z + 1)) at the frequencies m h, m = 0, 1, ...
        scale: M(t).
        decayed: a bound on |M| beyond the last frequency.
        farther: u > t, for the terms of m > 0.
        farther_moment: M(u), rounded up.
        mass: M(0), the mass of finite losses.
    """

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
        # Terms of m and -m are conjugate: half of the sum is the term of m = 0 halved, and the real parts of m > 0.
        for m, value in enumerate(self.values[1:], 1):
            total += (value * acb(0, m * turn).exp()).real
        integral = total * step / arb.pi() * self.scale * (-t * epsilon).exp()
        low = self.mass / ((t * self.period).exp() - 1)
        u = self.farther
        falls = (-(u - t) * self.period).exp()
        high = self.farther_moment * (-u * epsilon).exp() * log_peak(u).exp()
        high *= falls / (1 - falls)
        last = step * (len(self.values) - 1)
        cut = self.decayed * (-t * epsilon).exp() / (arb.pi() * last)
        aliases = (low + high).upper()
        # The terms of m != 0 only add to the sum, so they are taken away from one side; the truncation has any sign.
        value = integral - arb(0).union(aliases) + arb(0, cut.upper())
        return value.intersection(arb(0).union(self.mass.upper()))


def moment(runs: Runs, t: arb, accuracy: int) -> arb:
    """Returns M(t) of a composition, for real t."""
    value = arb(1)
    for law, count in runs:
        if law.normal is not None:
            value *= (law.normal * (t * t + t) / 2 * count).exp()
        else:
            rough = arb(cumulants(law, float(t))[0]).exp()
            rule = nodes(law, t, 0.0, rough, accuracy)
            value *= (sum(rule.weights, arb(0)) + arb(0, rule.error)) ** count
    return value


def log_peak(t: arb) -> arb:
    """Returns the log of the greatest ratio of (1 - e^-y)+ to e^(ty), which is t^t / (1 + t)^(1 + t)."""
    return t * t.log() - (1 + t) * (1 + t).log()


def chernoff(runs: Runs, epsilon: arb) -> arb:
    """Returns Chernoff's bound on delta, finite losses alone."""
    t = arb(sketched_saddle(runs, float(epsilon)))
    return moment(runs, t, 20) * (log_peak(t) - t * epsilon).exp()


def place(runs: Runs, epsilon: float, accuracy: float) -> tuple[float, float, float, float]:
    """Returns t, the period L, u, and an estimate of log delta, by floats.

    t is the saddle point, or below it where the terms of m > 0 would ask for a longer period than those of m < 0. Where
    M is flat, as for few runs with little noise, half the tilt may take half the frequencies.
    """
    saddle = sketched_saddle(runs, epsilon)
    log_delta = sketched_log_delta(runs, saddle, epsilon)
    best: tuple[float, float, float] | None = None
    # The period that m < 0 asks for grows as t falls, the one that m > 0 asks for shrinks. ``best`` is the shortest so
    # far that suits both; no lower t can better it once the first alone is as long.
    # Any shares above 0 are sound.
    for t in (saddle * share for share in (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.1)):
        if together(runs, t)[0] - together(runs, saddle)[0] + (saddle - t) * epsilon > 3:
            break  # the integrand would be e^3 times as large
        least = (accuracy - log_delta) / t
        if best is not None and best[1] <= 1.15 * least:
            break
        best = _period(runs, epsilon, t, least, accuracy - log_delta, best) or best
    if best is None:
        raise TooMuch("the tail of the loss falls too slowly for one line")
    return *best, log_delta


def _period(
    runs: Runs,
    epsilon: float,
    t: float,
    period: float,
    wanted: float,
    best: tuple[float, float, float] | None,
) -> tuple[float, float, float] | None:
    """Returns t, a period of at least the given one at which terms of m > 0 are below e^-wanted, and its u.

    Returns None where the period would be no shorter than the best one known.
    """

    def excess(u: float) -> float:
        """Returns about the logarithm of the terms of m > 0 by Chernoff's bound at u."""
        return together(runs, u)[0] - u * epsilon - (u - t) * period

    # The period grows by 15 percent until the best u makes the terms small enough.
    for _ in range(60):
        if best is not None and period >= best[1]:
            break
        u = farther(runs, epsilon + period, t)
        if excess(u) < -wanted:
            # Any u that suffices does, so it is moved towards t: a moment under a stronger tilt is more work.
            while excess(math.sqrt(u * t)) < -wanted:
                u = math.sqrt(u * t)
            return t, period, u
        period *= 1.15
    return None


def line(runs: Runs, epsilon: float, wanted: float = ACCURACY, most: float = MOST_PRODUCTS) -> BallLine:
    """Returns a line placed for an epsilon; ``wanted`` as :data:`ACCURACY`, ``most`` as :data:`MOST_PRODUCTS`."""
    t, period, u, log_delta = place(runs, epsilon, wanted)
    base = together(runs, t)[0] - t * epsilon
    step, exact_t, exact_period = 2 * math.pi / period, arb(t), arb(period)
    exact_step = 2 * arb.pi() / exact_period
    # Errors of nodes are relative to M(t) e^(-t eps), which may be far above delta; at full accuracy there is room.
    # A power multiplies the relative error, so as many further bits as the number of runs has.
    accuracy = max(wanted, min(wanted + base - log_delta, ACCURACY))
    bits = int(accuracy / math.log(2)) + 8 + sum(k for _, k in runs).bit_length()
    scales = [arb(cumulants(law, t)[0]).exp() for law, _ in runs]
    count, fallen = reach(runs, exact_t, step, log_delta - base - wanted, scales)
    product, scale, decayed = [acb(1)] * count, arb(1), arb(1)
    z = [acb(exact_t, exact_step * m) for m in range(count)]
    # Three products grow law by law: (M(z) / M(t))^k, M(t)^k and the bound beyond the last frequency. Dividing by M(t)
    # keeps the numbers near 1.
    for (law, k), rough, share in zip(runs, scales, fallen, strict=True):
        if law.normal is not None:
            v = law.normal * k
            values = [(v * (w * w + w) / 2).exp() for w in z]
            top, k = values[0].real, 1
        else:
            with ctx.workprec(min(ctx.prec, bits + ctx.prec // 4)):
                try:
                    points = nodes(law, exact_t, step * count, rough, bits, most / count)
                except TooMuch as missing:
                    raise TooMuch(f"{missing} at {count} frequencies") from None
                values = values_at(points, exact_step, count)
            top = values[0].real
        product = [a * (b / top) ** k for a, b in zip(product, values, strict=True)]
        scale *= top**k
        decayed *= share(top)
    values = [a / (w * (w + 1)) for a, w in zip(product, z, strict=True)]
    return BallLine(
        exact_t, exact_period, values, scale, (decayed * scale).upper(), arb(u), moment(runs, arb(u), 40).upper(),
        moment(runs, arb(0), bits),
    )  # fmt: skip


def reach(runs: Runs, t: arb, step: float, goal: float, scales: list[arb]) -> tuple[int, list[Callable[[arb], arb]]]:
    """Returns the number of frequencies to take, and for each law a function from M(t) to a bound beyond the last one.

    The bound is on (|M(t + iw)| / M(t))^k. ``goal`` is the natural logarithm of the product's bound that is wanted at
    the frequency 1 / pi; elsewhere it may be larger in proportion to the frequency.
    """
    tables = [table(law, float(t)) for law, _ in runs]
    frequency = step
    # The frequency rises until the tables' estimates reach the goal; then the rows used are proved. Where the proofs
    # fall short, the next round goes on from the proved values. The bounds returned are proved at the last frequency;
    # after the last round they may miss the goal.
    for _ in range(40):  # any number is sound
        # The tables' estimates decide how far the frequency rises; nothing is proved by them.
        while True:
            logs = sum(k * decay.at(frequency)[0] for decay, (_, k) in zip(tables, runs, strict=True))
            if logs - math.log(math.pi * frequency) <= goal + 1:
                break
            frequency *= 1.04
            if frequency > step * 200_000:  # any number is sound
                raise TooMuch("the characteristic function falls too slowly for a sum over frequencies")
        # The last frequency taken, (count - 1) steps, is above the one that bounds are proved for.
        count = int(frequency / step) + 3
        # A proved value replaces the estimate in its row, after which another row may be better.
        tables = [
            decay.prove(law, t, frequency, top) for decay, (law, _), top in zip(tables, runs, scales, strict=True)
        ]
        shares = [_modulus_bound(decay, law, t, frequency, k) for decay, (law, k) in zip(tables, runs, strict=True)]
        proved = sum(float(share(top).log()) for share, top in zip(shares, scales, strict=True))
        if proved - math.log(math.pi * frequency) <= goal + 2:
            break
    return count, shares


def _modulus_bound(decay: DecayTable, law: Loss, t: arb, frequency: float, k: int) -> Callable[[arb], arb]:
    """Returns a function of M(t) that bounds (|M(t + iw)| / M(t))^k for all w from ``frequency`` on."""
    if law.normal is not None:
        fall = (-law.normal * k * arb(frequency) ** 2 / 2).exp()
        return lambda top: fall
    log, row, multiple = decay.at(frequency)
    if log >= 0 or row not in decay.bounds:
        return lambda top: arb(1)
    beyond = decay.bounds[row]
    assert multiple * frequency >= decay.frequencies[row]

    def share(top: arb) -> arb:
        """Returns the bound from the row's frequency, carried down to the n-th part of it."""
        square = ((beyond / top) ** 2).min(arb(1))
        return (1 - (1 - square) / multiple**2).upper().sqrt() ** k

    return share
