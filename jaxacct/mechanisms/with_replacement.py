"""Gaussian noise on batches drawn with replacement, in which an example may be several times."""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from jaxtyping import ArrayLike, Float

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, FinitePair
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions
from jaxacct.precision import UNIT_ROUNDOFF
from jaxacct.pytrees import register_dataclass

NEGLIGIBLE = 1e-30
"""Probability, given that an example is drawn, of so many copies or so large a loss that all is counted as known."""

DIGITS, MOST_COPIES = 60, 512
LEAST_NOISE = 0.1
"""Least noise multiplier; with less, losses are too large to be told apart."""

POINTS = 1024
"""Losses above 0 that the pair has: twice as many cost twice as much."""

LARGEST_LOSS = 600.0

ROUNDING = 1e-13
"""Relative error of a normal tail, and of sums of such: erfc's few units, its argument's, some hundred terms."""

SLACK = 1e-11
"""By how much the profile is raised, relatively, for the rounding of masses that are made of it: seen to be enough."""


@register_dataclass
@dataclass(frozen=True)
class GaussianWithReplacement(Mechanism):
    """Gaussian mechanism on a batch of B draws from n examples, each draw uniform and independent of the others.

    :meth:`for_batches` makes one from n and B; noise is relative to the norm of one example's contribution.

    Attributes:
        losses (..., m): privacy losses of the pair; infinite ones too.
        p (..., m): their probabilities under P.
        q (..., m): and under Q.

    Relations: "replace" (default), under which n is public.

    Formal guarantee: the pair dominates. It is above the worst data sets' by the little that the proof gives away (not
    :attr:`~.Mechanism.tight`).

    Proof. Let x be replaced by x', c >= 1, and H_c the hockey-stick divergence. Each of the B draws is the example with
    probability 1/n, independently, and else another, y_j: given all y_j, the sum is that of the y_j, moved by x - y_j,
    or x' - y_j, for each draw that is the example. It is none with probability 1 - p = (1 - 1/n)^B; then the law is R
    either way, and else P' or Q'. By advanced joint convexity, with a = 1 + (c-1)/p and b = c/a = (1-p)/a + p,

        H_c((1-p) R + p P', (1-p) R + p Q') = p H_a(P', (1-b) R + b Q') <= p ((1-b) H_a(P', R) + b H_a(P', Q')).

    P' is a mixture, and moved from R by vectors of norm 2K at most, K the number of copies given that there is one. Of
    all events of one probability under R a half-space has the most under each part of it, by Neyman and Pearson: so
    H_a(P', R) is at most S(a), that of the mixture of N(2K, s^2) against N(0, s^2) on a line. Given which draws are the
    example, P' and Q' are K |x - x'| apart: H_a(P', Q') is at most V(a), the mean of H_a(N(2K, s^2), N(0, s^2)).
    Therefore H_c <= p ((1-p) (S + (V - S)/a) + p V). The divergence is convex in c, and for c < 1 that of x and x'
    exchanged. So it is at most the greatest convex function below this bound at finitely many c, which is the profile
    of a pair of as many losses and their mirror images.

    Source: advanced joint convexity, Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling", Theorem
    2, and Theorem 10 for p V, in place of which this is; mixtures of vectors, Choquette-Choo, Ganesh, Steinke and
    Thakurta (2024), "Privacy amplification for matrix mechanisms"; finitely many losses, Doroshenko et al. (2022),
    "Connect the dots".

    >>> from jaxacct import epsilon
    >>> drawn = GaussianWithReplacement.for_batches(2.0, num_examples=1000, batch_size=10)
    >>> bool(epsilon(drawn, steps=100, delta=1e-5, relation="replace", points=1024).upper < 0.9)
    True
    """

    losses: Float[ArrayLike, "*batch m"] | Sequence[float]
    p: Float[ArrayLike, "*batch m"] | Sequence[float]
    q: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)
    may_fail: ClassVar[bool] = True

    @classmethod
    def for_batches(cls, noise_multiplier: float, num_examples: int, batch_size: int) -> GaussianWithReplacement:
        """Returns the mechanism of B = ``batch_size`` draws from n = ``num_examples``.

        Args:
            noise_multiplier: standard deviation s of the noise over the norm of one example's contribution, a number of
                at least 0.1. (A draw that is replaced by another changes the sum by up to twice that norm: counted.)
            num_examples: n, at least 2.
            batch_size: B, at least 1.

        Raises ValueError or TypeError where an argument is out of range, or an example may be drawn too often.

        >>> bool(GaussianWithReplacement.for_batches(2.0, num_examples=2, batch_size=1).q.sum() <= 1)
        True
        """
        s = float(noise_multiplier)
        if not LEAST_NOISE <= s < math.inf:
            raise ValueError(f"noise_multiplier = {noise_multiplier} is out of range: give a number of at least 0.1.")
        rate, copies, beyond = _copies(num_examples, batch_size)
        above, losses, profile = _profile(s, rate, copies, beyond)
        q, infinite = _masses(above, profile)
        losses, p = losses[1:], q * (1 + above[1:])
        middle = max(1.0 - float(np.sum(p + q)) - infinite, 0.0)
        ends = [np.inf], [-np.inf]
        return cls(
            np.concatenate([ends[0], losses, [0.0], -losses[::-1], ends[1]]),
            np.concatenate([[infinite], p, [middle], q[::-1], [0.0]]),
            np.concatenate([[0.0], q, [middle], p[::-1], [infinite]]),
        )

    def __post_init__(self) -> None:
        for name in ("losses", "p", "q"):
            if isinstance(getattr(self, name), (list, tuple)):  # a pytree of its own, were it left as it is
                object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        self.validate()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields: all but the last."""
        return np.shape(self.p)[:-1]

    def validate(self) -> None:
        for name in ("p", "q"):
            validation.check_probabilities(getattr(self, name), name, 1e-9)

    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        losses, p, q = (cast(ArrayLike, value) for value in (self.losses, self.p, self.q))
        return (FinitePair(p, q, losses, np.full(np.shape(p), 16 * UNIT_ROUNDOFF)),)


def _copies(n: int, draws: int) -> tuple[float, np.ndarray, float]:
    """Returns p, rounded up; the law of K from 1 up, given that it is above 0; and a bound on what that leaves out."""
    validation.check_whole(n, "num_examples", 2, 2**53, "the number of examples, of which one is replaced")
    validation.check_whole(draws, "batch_size", 1, 2**53, "the number of draws")
    with decimal.localcontext(prec=DIGITS):
        size, chance = decimal.Decimal(draws), 1 / decimal.Decimal(n)
        law = [(size * (1 - chance).ln()).exp()]
        some = 1 - law[0]
        for k in range(draws):
            law.append(law[-1] * (size - k) / ((k + 1) * (n - 1)))
            # From four times the mean on each is at most half of the one before, and all that follow at most one.
            if k > 4 * size * chance and law[-1] < decimal.Decimal(NEGLIGIBLE) * some:
                break
            if k > MOST_COPIES:
                raise ValueError(
                    f"batch_size = {draws} draws from num_examples = {n} may hold one more than {MOST_COPIES} times: "
                    "give a smaller batch."
                )
        beyond = float(law[-1] / some) if len(law) <= draws else 0.0
        return min(float(some) * (1 + 2.0**-52), 1.0), np.array([float(w / some) for w in law[1:]]), beyond


def _tail(z: np.ndarray) -> np.ndarray:
    """Returns P(N(0, 1) > z)."""
    return np.vectorize(math.erfc, otypes=[float])(z / math.sqrt(2.0)) / 2


def _profile(s: float, rate: float, copies: np.ndarray, beyond: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns c - 1, log c and an upper bound on the profile there, at c = 1 and at POINTS c above it.

    Each belongs to a point x of the line, at which the mixture's density is a times that of N(0, s^2).
    """
    k = np.arange(1.0, len(copies) + 1)[:, None]
    weights = copies[:, None]

    def log_a(x: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(np.log(np.maximum(weights, 1e-300)) + (2 * k * x - 2 * k**2) / s**2, axis=0)

    def where(falls: bool, target: float, low: float, high: float) -> float:
        for _ in range(200):
            middle = (low + high) / 2
            x = np.array([middle])
            value = float(np.sum(weights * _tail((x - 2 * k) / s))) if falls else float(log_a(x)[0])
            low, high = (middle, high) if (value > target) == falls else (low, middle)
        return (low + high) / 2

    first = where(False, 0.0, 0.0, 2.0 * len(copies))
    # Where c is as large as is counted, if that comes first.
    last = min(
        where(True, NEGLIGIBLE, first, first + 2.0 * len(copies) + 40 * s),
        where(False, LARGEST_LOSS - math.log(rate), first, first + LARGEST_LOSS * s**2 + 2.0 * len(copies)),
    )
    x = np.linspace(first, last, POINTS + 1)
    log_ratio = log_a(x)
    log_ratio[0] = 0.0
    a = np.exp(log_ratio)
    own, base = weights * _tail((x - 2 * k) / s), _tail(x / s)
    secret = np.sum(own, axis=0) * (1 + ROUNDING) - a * base * (1 - ROUNDING)
    edges = (s**2 * log_ratio + 2 * k**2) / (2 * k)
    each = _tail((edges - 2 * k) / s) * (1 + ROUNDING) - a * _tail(edges / s) * (1 - ROUNDING)
    known = np.sum(weights * np.clip(each, 0.0, 1.0), axis=0)
    secret = np.clip(np.minimum(secret, known), 0.0, 1.0)
    bound = rate * ((1 - rate) * (secret + (known - secret) / a) + rate * known) + rate * beyond
    bound = np.minimum(bound * (1 + SLACK), 1.0)
    return rate * (a - 1), np.log1p(rate * (a - 1)), bound


def _masses(above: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns Q's masses at c > 1, and the infinite loss's, of a pair whose profile is no less than ``bound`` at all c.

    Of the greatest convex function below the points, its slopes' increases; where the slope at c = 1 is too steep for a
    mass at loss 0 to be left beside the mirror images, of the larger of it and the steepest line that may be.
    """
    bound = np.maximum.accumulate(bound[::-1])[::-1]
    bound = np.maximum(bound, bound[0] - above * (1 - bound[0]) / 2 * (1 - SLACK))
    kept = [0]
    for i in range(1, len(above)):
        while len(kept) > 1 and (bound[kept[-1]] - bound[kept[-2]]) * (above[i] - above[kept[-2]]) >= (
            bound[i] - bound[kept[-2]]
        ) * (above[kept[-1]] - above[kept[-2]]):
            kept.pop()
        kept.append(i)
    slopes = np.append(np.diff(bound[kept]) / np.diff(above[kept]), 0.0)
    q = np.zeros(len(above))
    q[kept[1:]] = np.maximum(np.diff(slopes), 0.0)
    q[q < 1e-300] = 0.0
    infinite = float(bound[-1])
    # sum over j > i of q_j (c_j - c_i), with what is infinite.
    mass, moment = (np.cumsum(values[::-1])[::-1] for values in (q, q * above))
    found = moment - above * mass + infinite
    if not np.all(found >= bound * (1 - SLACK / 2)):
        raise ValueError("noise_multiplier is too small for the masses of its privacy losses: give more.")
    return q[1:], infinite
