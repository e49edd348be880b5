"""The law of a privacy loss as the referee holds it: atoms, a normal part, and pieces with analytic densities.

A piece is an interval on which P and Q have densities of one form,

    p(x) = e^(-kappa x^2 / 2) sum_k c_k e^(alpha_k x),    q(x) likewise with the same kappa,

kappa = 1/s^2 for Gaussian noise, 0 for Laplace noise between two of its kinks. The loss Y(x) = log p(x)/q(x) rises
if no exponent of P is below one of Q's (Y' is P's posterior mean of alpha less Q's), and falls if none is above.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

Terms = tuple[tuple[arb, arb], ...]
"""Coefficients c > 0 and exponents alpha."""

ZERO = arb(0)

END = None
"""An end of a piece at infinity."""


@dataclass(frozen=True, eq=False)
class Piece:
    """An interval of outcomes; see above.

    Attributes:
        curvature: kappa.
        p, q: coefficients and exponents of the densities.
        low, high: the interval; None where it has no end, which takes a curvature above 0.
    """

    curvature: arb
    p: Terms
    q: Terms
    low: Any = END
    high: Any = END

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
        return mean(self.p, x) - mean(self.q, x)

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
        """Returns the exponents, rising, and of P and of Q the coefficient of each, 0 where there is none.

        Exponents are the same where their balls are: not where floats would be.
        """
        named = {(a.mid().man_exp(), a.rad().man_exp()): a for _, a in (*self.p, *self.q)}
        order = sorted(named.values(), key=lambda a: a.mid())
        coefficients = [
            [sum((c for c, a in terms if a.mid() == b.mid() and a.rad() == b.rad()), arb(0)) for b in order]
            for terms in (self.p, self.q)
        ]
        return order, coefficients

    def near(self, losses: np.ndarray) -> np.ndarray:
        """Returns about where the loss is each of some, by floats: nothing proved rests on it."""
        bounds = [None if end is None else float(end) for end in (self.low, self.high)]
        if self.curvature > 0:
            unit = float(self.curvature) ** -0.5
            centres = [float(alpha) * unit**2 for _, alpha in (*self.p, *self.q)]
            bounds[0] = min(centres) - 60 * unit if bounds[0] is None else bounds[0]
            bounds[1] = max(max(centres), bounds[0]) + 60 * unit if bounds[1] is None else bounds[1]
        low, high = np.full(len(losses), bounds[0]), np.full(len(losses), bounds[1])
        for _ in range(64):
            middle = (low + high) / 2
            short = log_total(self.p, middle) - log_total(self.q, middle) < losses
            up = short if self.rises else ~short
            low, high = np.where(up, middle, low), np.where(up, high, middle)
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
        for _ in range(6):
            newton = (x - (self.loss(x) - loss) / self.slope(x)).mid()
            if not newton.is_finite():
                break
            x, step = newton, abs(newton - x)
        radius = (step + (abs(x) + unit) * arb(2) ** (8 - ctx.prec) + loss.rad() / abs(self.slope(x)) * 4).upper()
        radius = radius if radius.is_finite() else unit.upper()
        for _ in range(40):
            if is_past(x - radius, False) and is_past(x + radius, True):
                return arb(x, radius)
            radius *= 64  # where the loss is flat its own rounding hides the sign
        raise ArithmeticError("a loss too flat to be met")

    def excess(self, loss: arb) -> arb:
        """Returns the integral of (p - e^loss q)+ over the piece."""
        ends = sorted((self.loss_at(False), self.loss_at(True)), key=float)
        low, high = self.low, self.high
        if ends[1] <= loss:
            return arb(0)
        if not ends[0] >= loss:
            if not (ends[0] < loss < ends[1]):  # at an end, to all digits: the integrand nearly vanishes there
                whole = self.mass(self.p, low, high) - loss.exp() * self.mass(self.q, low, high)
                return whole.max(arb(0)).union(arb(0)) if not ends[1] > loss else whole.max(arb(0))
            x = self.threshold(loss)
            low, high = (x, high) if self.rises else (low, x)
        return self.mass(self.p, low, high) - loss.exp() * self.mass(self.q, low, high)

    def mass(self, terms: Terms, low: arb | None, high: arb | None) -> arb:
        """Returns the integral of a density from ``low`` to ``high``."""
        return sum((c * self._integral(alpha, low, high) for c, alpha in terms), arb(0))

    def _integral(self, alpha: arb, low: Any, high: Any) -> arb:
        if not self.curvature > 0:
            if alpha == 0:
                return high - low
            return ((alpha * high).exp() - (alpha * low).exp()) / alpha
        # erfc from the side where it does not cancel; each form is right everywhere.
        root = (self.curvature / 2).sqrt()
        m = alpha / self.curvature
        whole = (arb.pi() / (2 * self.curvature)).sqrt() * (alpha**2 / (2 * self.curvature)).exp()
        below = arb(0) if low is None else (-root * (low - m)).erfc()
        above = arb(0) if high is None else (root * (high - m)).erfc()
        if low is not None and low > m:
            return whole * ((root * (low - m)).erfc() - above)
        if high is not None and high < m:
            return whole * ((-root * (high - m)).erfc() - below)
        return whole * (2 - below - above)


def log_total(terms: Terms, x: np.ndarray) -> np.ndarray:
    """Returns about log of :func:`total`, by floats."""
    return np.logaddexp.reduce([float(c.log()) + float(alpha) * x for c, alpha in terms])


def total(terms: Terms, x: arb) -> arb:
    """Returns sum_k c_k e^(alpha_k x), for real or complex x."""
    return sum((c * (alpha * x).exp() for c, alpha in terms[1:]), terms[0][0] * (terms[0][1] * x).exp())


def mean(terms: Terms, x: arb) -> arb:
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
        key: what tells two laws apart; equal keys are equal laws.
        infinite: P(Y = inf).
        atoms: masses of P and losses, all different.
        pieces: where the law is continuous.
        normal: mu^2 where the loss is N(mu^2 / 2, mu^2), and nothing else; else None.
        lattice: exact offset and step, if all losses are offset + step * integer; else None.
        lost: P's mass of atoms left out, far out on a lattice that has no end.
        laplace: a, the largest loss, where this is plain Laplace noise; else None.
        alone: delta of one run at an epsilon, where nothing else is known of the law, which is then not composed; else
            None.
    """

    key: tuple
    infinite: arb = ZERO
    atoms: Terms = ()
    pieces: tuple[Piece, ...] = ()
    normal: Any = None
    lattice: Any = None
    lost: arb = ZERO
    laplace: Any = None
    alone: Any = None

    @property
    def is_finite(self) -> bool:
        """Whether there are atoms alone."""
        return not self.pieces and self.normal is None

    def supremum(self) -> arb:
        """Returns the supremum of the finite losses."""
        if self.alone is not None or self.normal is not None or self.lost > 0:
            return arb.pos_inf()
        found = [loss for _, loss in self.atoms] + [piece.supremum() for piece in self.pieces]
        return reduce(lambda a, b: a.max(b), found, arb.neg_inf())

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
