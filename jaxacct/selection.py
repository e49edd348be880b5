"""Private selection, the release of the best of a random number of runs: laws of that number, and its privacy profile.

A search looks at private data once for each setting that it tries. Draw the number of trials from one of these laws,
release the best run alone, and account for it by :class:`jaxacct.RepeatAndSelect`: it costs about as much as two or
three runs, however many there are on average. In reading order:

- :class:`Trials`, the laws of the number of trials K, which are public while K is known to nobody. For privacy a law
  is its generating function's derivative f', here with bounds that include rounding;
- :class:`OneWay`, bounds on the profile of one run, :class:`Selection`, delta and epsilon of the best one, with the
  proof, and :func:`pair_of`, a finite pair (P, Q) that dominates it.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
import secrets
from dataclasses import dataclass, field
from decimal import MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import jax  # noqa: F401  (whole, before jaxtyping asks for a part of it)
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.numerics.pytrees import register_dataclass, widen_fields
from jaxacct.numerics.root_search import bisect, bracket

__all__ = ["Binomial", "Fixed", "Geometric", "Logarithmic", "Poisson", "Trials", "TruncatedNegativeBinomial"]

ROUNDING = 1e-13
"""Relative error allowed for an exponent, and for a product with its exponential: a few dozen roundings, and more."""

DRAWING = 1e-12
"""Distance in total variation of the draws of :meth:`Trials.draw` from the law, for each thousand trials expected."""

DEEPEST = 60.0
"""Depth, in nats, below the largest f', or below a probability of 1, from which it does not matter how deep one is."""

FINE = np.concatenate([np.linspace(0.0, 0.5, 5000, endpoint=False), 1 - np.geomspace(0.5, 1e-15, 15_000), [1.0]])
"""A grid from 0 to 1, ever finer towards 1, between whose points levels are interpolated. Any grid is sound."""


class Trials(abc.ABC):
    """The law of the number of trials K that a search makes: the base class of the laws here.

    With f(x) = E[x^K] the generating function of K, privacy depends on the derivative f' alone: it rises from f'(0),
    the probability of a single trial, to f'(1), the expected number.

    Attributes:
        mean: expected number of trials.
    """

    mean: Any

    def __post_init__(self) -> None:
        widen_fields(self)
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range; a traced field cannot raise."""
        mean = validation.seen_value(self.mean, "mean")
        if mean is not None and not np.all((mean >= 1) & (mean <= validation.MOST_STEPS)):
            raise ValueError(f"mean = {self.mean} is not an expected number of trials: give one from 1 to 2**53.")

    @abc.abstractmethod
    def _fall(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns lower and upper bounds on log(f'(1)/f'(x)), for x in [0, 1]; the law must not be traced."""

    @abc.abstractmethod
    def _recursion(self) -> tuple[int, float, float, float]:
        """Returns the least k, log P(K = k), and a and b of P(K = k + 1) = (a + b/(k + 1)) P(K = k)."""

    def slope(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns lower and upper bounds on f'(x), for x (n,) in [0, 1], rounding included."""
        less, more = self._fall(np.asarray(x, np.float64))
        # 1e-300 covers results that underflow; no f' of that size counts.
        low = np.exp(-more * (1 + ROUNDING)) * float(self.mean) * (1 - ROUNDING)
        high = np.exp(-less * (1 - ROUNDING)) * float(self.mean) * (1 + ROUNDING)
        return np.maximum(low - 1e-300, 0.0), high + 1e-300

    def levels(self, count: int) -> np.ndarray:
        """Returns up to ``count`` + 2 numbers, rising from 0 to 1, between which f' rises by about equal factors."""
        falls = np.minimum(self._fall(FINE)[1], 2 * DEEPEST)
        # Levels at equal steps of log f', read off the grid backwards: the falls decrease in x.
        inner = np.interp(np.linspace(0.0, min(falls[0], DEEPEST), count), falls[::-1], FINE[::-1])
        return np.unique(np.concatenate([[0.0], inner, [1.0]]))

    def missed(self, share: float) -> float:
        """Returns about the probability that no trial has a setting from a share of all, each being equally likely."""
        x = np.unique(np.concatenate([1 - share * (1 - FINE), [1.0]]))
        return max(1.0 - float(np.trapezoid(self.slope(x)[1], x)), 0.0)

    def draw(self) -> int:
        """Returns a number of trials by the operating system's entropy, within :data:`DRAWING` of the law."""
        count, log, a, b = self._recursion()
        with localcontext(Context(prec=28, Emin=MIN_EMIN)):  # ratios alone round, each by a few 2^-53
            # Inversion: the probabilities of K = 0, 1, ... add up until they pass a uniform number. It ends beyond the
            # mean at the latest where a probability is below ``least``, or where the law ends.
            uniform, least = Decimal(secrets.randbits(64)) / 2**64, Decimal(-DEEPEST).exp()
            term = below = Decimal(log).exp()
            while below <= uniform and not (term < least and count > self.mean):
                count += 1
                if a + b / count <= 0:
                    return count - 1
                term *= Decimal(a + b / count)
                below += term
        return count


@register_dataclass
@dataclass(frozen=True)
class Poisson(Trials):
    """Poisson's law, under which the number of trials varies least; it is 0 with probability e^-mean.

    Attributes:
        mean (): expected number of trials, at least 1.

    >>> Poisson(10.0).draw() >= 0
    True
    """

    mean: ArrayLike

    def _fall(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (_as_number(self.mean) * (1 - x),) * 2

    def _recursion(self) -> tuple[int, float, float, float]:
        return 0, -_as_number(self.mean), 0.0, _as_number(self.mean)


@register_dataclass
@dataclass(frozen=True)
class TruncatedNegativeBinomial(Trials):
    """The negative binomial law truncated at zero: the lower its shape, the less a search costs and the more K varies.

    Attributes:
        mean (): expected number of trials, at least 1.
        shape (): eta, at least 0 and finite. 0 is :class:`Logarithmic`, 1 is :class:`Geometric`; infinity would be
            Poisson's law without its zero.

    >>> TruncatedNegativeBinomial(10.0, 0.5).draw() >= 1
    True
    """

    mean: ArrayLike
    shape: ArrayLike

    def validate(self) -> None:
        super().validate()
        validation.check_epsilon(self.shape, "shape")
        validation.check_finite(self.shape, "shape")

    def _odds(self) -> tuple[float, float]:
        """Returns lower and upper bounds on log(1/g), g being the law's parameter.

        With u = log(1/g) the mean is expm1(u)/u times x/(1 - e^-x) at x = eta u: it rises, and is at least e^(u/2).
        """
        mean, shape = _as_number(self.mean), _as_number(self.shape)

        def expect(u: float) -> float:
            x = shape * u
            return (math.expm1(u) / u if u > 0 else 1.0) * (x / -math.expm1(-x) if x > 0 else 1.0)

        # Down to neighbouring doubles, once with the mean raised and once lowered by its rounding: outer ends of the
        # two brackets are bounds.
        least, most = 0.0, 2 * math.log(mean) * (1 + 1e-12) + 1e-12
        low = bisect(lambda u: expect(u) * (1 + ROUNDING) < mean, least, most)
        return low, bisect(lambda u: expect(u) * (1 - ROUNDING) >= mean, most, least)

    def _fall(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # f' is mean (1 + (1/g - 1) (1 - x))^-(1 + eta).
        low, high = ((1 + _as_number(self.shape)) * np.log1p(math.expm1(u) * (1 - x)) for u in self._odds())
        return low, high

    def _recursion(self) -> tuple[int, float, float, float]:
        rest = -math.expm1(-self._odds()[1])
        return (
            1,
            math.log(_as_number(self.mean)) - float(self._fall(np.zeros(()))[1]),
            rest,
            rest * (_as_number(self.shape) - 1),
        )


@register_dataclass
@dataclass(frozen=True)
class Geometric(TruncatedNegativeBinomial):
    """The geometric law: after each trial the search ends with probability 1/mean.

    Attributes:
        mean (): expected number of trials, at least 1.

    >>> Geometric(10.0).draw() >= 1
    True
    """

    shape: ArrayLike = field(default=1.0, init=False)


@register_dataclass
@dataclass(frozen=True)
class Logarithmic(TruncatedNegativeBinomial):
    """The logarithmic law: few trials mostly, and now and then very many.

    Attributes:
        mean (): expected number of trials, at least 1.

    >>> Logarithmic(10.0).draw() >= 1
    True
    """

    shape: ArrayLike = field(default=0.0, init=False)


@register_dataclass
@dataclass(frozen=True)
class Binomial(Trials):
    """The binomial law of a fixed number of possible trials, each made with a probability; there may be none.

    Attributes:
        count (): number of possible trials, whole, at least 1.
        probability (): probability that each is made, in (0, 1].

    >>> 0 <= Binomial(20, 0.5).draw() <= 20
    True
    """

    count: ArrayLike
    probability: ArrayLike

    @property
    def mean(self) -> float:
        """Expected number of trials, ``count`` times ``probability``."""
        return _as_number(self.count) * _as_number(self.probability)

    def validate(self) -> None:
        count = validation.seen_value(self.count, "count")
        if count is not None and not np.all(
            (count >= 1) & (count <= validation.MOST_STEPS) & (count == np.floor(count))
        ):
            raise ValueError(f"count = {self.count} is not a number of trials: give a whole one, from 1 to 2**53.")
        validation.check_positive(self.probability, "probability")
        validation.check_probability(self.probability, "probability")

    def _fall(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        others, chance = _as_number(self.count) - 1, _as_number(self.probability)
        # A single possible trial: f' is constant.
        if others == 0:
            return (np.zeros_like(x),) * 2
        missing = chance * (1 - x)
        with np.errstate(divide="ignore"):  # each form where it is right to a few roundings
            logs = np.where(missing < 0.5, np.log1p(-missing), np.log((1 - chance) + chance * x))
        return (-others * logs,) * 2

    def _recursion(self) -> tuple[int, float, float, float]:
        count, chance = _as_number(self.count), _as_number(self.probability)
        if chance == 1:
            return int(count), 0.0, 0.0, 0.0
        odds = chance / (1 - chance)
        return 0, count * math.log1p(-chance), -odds, (count + 1) * odds


@register_dataclass
@dataclass(frozen=True)
class Fixed(Binomial):
    """The law of a fixed number of trials: a search whose length is known.

    Attributes:
        count (): number of trials, whole, at least 1.

    >>> Fixed(3).draw()
    3
    """

    probability: ArrayLike = field(default=1.0, init=False)


def _as_number(value: Any) -> float:
    return float(value)


# ----------------------------------------------------------------------------------------------------
# The privacy profile of the best of K runs, K random, from the privacy profile of one run: bounds from both sides.
#
# *The law of the winner.* One run has the law P on a data set and Q on its neighbour. Ties are broken by a uniform
# number that each run draws besides: a rule that looks at the results' order alone gives the winner the same law, and
# one that looks at more of the results is another order. So let the order be total, without ties, and F(y) = P(result
# <= y), G(y) = Q(result <= y). K has the generating function f and is independent of the data. The winner's density is
#
#     sum_k P(K = k) k F(y)^(k - 1) dP(y) = f'(F(y)) dP(y),
#
# and no run at all has the probability f(0) on both sides, which adds at most (1 - e^eps) f(0) <= 0 to
#
#     delta(eps) = int (f'(F) dP - e^eps f'(G) dQ)_+ .                                                               (1)
#
# *From above.* H(c) = sup_E P(E) - c Q(E), c > 0, is the profile: for c >= 1 it is delta of one run at log c, and below
# it is 1 - c + c H'(1/c), with H' the profile of the other direction. For E = {result <= y} it says G(y) >= b(F(y))
# with b(a) = max_c (a - H(c))/c. f' rises. With levels 0 = a_0 < ... < a_J = 1, where F(y) is in (a_(j-1), a_j] the
# integrand of (1) is at most
#
#     (m_j l - e^eps n_j)_+ dQ,    m_j = f'(a_j),  n_j = f'(b(a_(j-1))),
#
# l being the likelihood ratio dP/dQ. A bound on all of these, whatever y,
#
#     S(l) = max_j (m_j l - e^eps n_j)_+ <= sum_i w_i (l - c_i)_+,    w_i >= 0,
#
# therefore bounds delta by sum_i w_i H(c_i). (Q's null sets included: there S counts P by its largest slope.) The w_i
# are those of the chords of S between the ratios c_i at which H is known, 0 among them: S is convex, so that a broken
# line which is above it at each of them, and rises in the end at least as fast, is above it everywhere. The computed
# weights are checked for that, and repaired by a common factor; so no rounding in their making matters. All else is
# sums of positive numbers, rounded up.
#
# The bound on the ratio of the f' alone, delta(eps) <= f'(1) H(e^eps / max f'(a)/f'(b(a))), is Koskela et al. (2024);
# it takes both factors at their worst, which no one y attains. Here each likelihood ratio has its own worst y.
#
# *From below.* Some order costs nearly as much. Let T be the results of likelihood ratios above t, and E, which holds
# T, those above s < t. Let the results of E without T be the worst, then those of T, and all others be better. Then T
# wins with probability f(P(E)) - f(P(E) - P(T)), the integral of f', which is convex and rises: at least P(T) f'(P(E) -
# P(T)/2). On the other side it is at most Q(T) f'(Q(E)). Chords of H, which is convex in c with the slope -Q(l > c),
# bracket the probabilities, P(l > c) = H(c) + c Q(l > c), for t > s > 1. E may have a share of all other results as
# well, chosen by a coin, or all of them: then it is the order by l.
#
# Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy"; Koskela et al. (2024),
# "Privacy profiles for private selection", for the ratio; the integral over levels is proved above.
# ----------------------------------------------------------------------------------------------------

LEVELS = 8000
"""Number of levels of F between which f' is bounded by its ends. Any value is sound.

The loss of tightness falls as their number rises: for a hundred runs it is on average 5 % of epsilon at 1,000 levels,
and 0.7 % here.
"""

MARGIN = 1e-12
"""Relative error allowed for sums of a few hundred positive numbers, which is more than they have."""

SLACK = 1e-6
"""Relative error allowed for the chords between ratios at a distance of 1e-5 or more, which is more than they have."""


LARGEST = 600.0
"""Epsilon, in nats, above which an upper bound is infinite, and a lower bound on delta is 0. Any value is sound."""


@dataclass(frozen=True)
class OneWay:
    """The profile from one data set to its neighbour: bounds on H at some ratios.

    Attributes:
        ratios (n,): the ratios c, rising, 0 first.
        above (n,): upper bounds on H.
        below (n,): lower bounds on H, all of one pair of laws, so that their chords bound its slope; 0 where unknown.
    """

    ratios: np.ndarray
    above: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, epsilons: np.ndarray, forth: Bounds, back: Bounds) -> OneWay:
        """Returns the profile from bounds on delta of one run at ``epsilons`` (n,), rising from 0, forth and back."""
        # Ratios are rounded to the side where H is smaller, and so is c in 1 - c + c H'(1/c).
        rising = np.exp(epsilons) * (1 + MARGIN)
        falling = (1 / rising) * (1 - MARGIN)
        reverse = (1 - falling + falling * np.minimum(np.asarray(back.upper), 1.0)) * (1 + MARGIN)
        above = np.concatenate([[1.0], reverse[::-1], np.asarray(forth.upper)])
        below = np.concatenate([np.zeros(1 + len(falling)), np.asarray(forth.lower) * (1 - MARGIN)])
        return cls(np.concatenate([[0.0], falling[::-1], rising]), np.minimum(above, 1.0), below)

    def least(self, levels: np.ndarray) -> np.ndarray:
        """Returns b: a lower bound on Q(E) for each P(E)."""
        cuts = (levels[:, None] - self.above[None, 1:]) / self.ratios[None, 1:]
        return np.clip(np.max(cuts, axis=1) - MARGIN * 1e-2, 0.0, levels)


class Selection:
    """The best of as many runs as a law says, in one direction: bounds on its delta, and on its epsilon."""

    def __init__(self, way: OneWay, trials: Trials) -> None:
        self.way, self.trials = way, trials
        levels = trials.levels(LEVELS)
        self._most = trials.slope(levels[1:])[1]
        self._least = trials.slope(way.least(levels[:-1]))[0]
        # All k runs together tell at most k times the distance in total variation, H(1); delta falls in epsilon.
        distance = float(np.min(way.above[way.ratios <= 1]))
        self._most_delta = min(float(trials.mean) * distance * (1 + MARGIN), 1.0)

    def upper(self, epsilon: float) -> float:
        """Returns an upper bound on delta."""
        # S at each ratio; the weights of its broken line; and the factor that lifts the line where rounding left it
        # below S.
        c, lines = self.way.ratios, self._most[:, None] * self.way.ratios[None, :]
        scale = math.exp(min(epsilon, LARGEST)) * (1 - MARGIN)
        height = np.maximum(np.max(lines * (1 + MARGIN) - scale * self._least[:, None], axis=0), 0.0)
        height[0] = 0.0
        steepest = self._most[-1]
        slopes = np.append(np.diff(height) / np.diff(c), steepest)
        weights = np.maximum(np.diff(slopes, prepend=0.0), 0.0)
        rises = np.cumsum(weights)
        reached = np.concatenate([[0.0], np.cumsum(rises[:-1] * np.diff(c))]) * (1 - MARGIN)
        with np.errstate(divide="ignore", invalid="ignore"):
            short = np.max(np.where(height > 0, height / reached, 0.0))
        factor = max(1.0, float(short), steepest / (rises[-1] * (1 - MARGIN)))
        bound = factor * float(np.sum(weights * self.way.above)) * (1 + MARGIN)
        return min(bound, self._most_delta) if bound == bound else 1.0

    def lower(self, epsilon: float) -> float:
        """Returns a lower bound on delta."""
        if epsilon > LARGEST:  # the scale is known up to there; 0 is always a lower bound
            return 0.0
        scale = math.exp(epsilon) * (1 + MARGIN)
        shown, cost = self._events
        least = np.min(shown - scale * cost, axis=0)
        return max(float(np.max(least, initial=0.0)) * (1 - MARGIN), 0.0)

    def least_epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon at ``delta``."""
        # Relative distance of an epsilon from above to the least epsilon that the bound allows. Any value is sound.
        close = 1e-7

        # Doubling until delta is small enough, then bisection. What is returned has been checked, so no monotonicity of
        # the bound is needed.
        def is_enough(epsilon: float) -> bool:
            return self.upper(epsilon) <= delta

        if is_enough(0.0):
            return 0.0
        low, high = bracket(lambda epsilon: not is_enough(epsilon), 1.0, LARGEST, safe=0.0)
        return bisect(is_enough, high, low, close=close) if low < high else math.inf

    def most_epsilon(self, delta: float) -> float:
        """Returns a lower bound on epsilon at ``delta``."""
        shown, cost = self._events
        enough = np.all(shown > delta, axis=0)
        ratio = (shown - delta)[:, enough] / np.maximum(cost[:, enough], 1e-300)
        return max(math.log(np.max(np.min(ratio, axis=0), initial=1.0)) - MARGIN, 0.0)

    @functools.cached_property
    def _events(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns gains and costs: for each E and T, (1) is at least the lesser of two values of gain - e^eps cost."""
        # Shares of all other results that E may have in a lower bound. Any values in [0, 1] are sound.
        shares = np.linspace(0.0, 1.0, 9)
        c, above, below = self.way.ratios, self.way.above, self.way.below
        falls, middle = np.diff(c), c[1:-1]
        most = np.minimum((above[:-1] - below[1:]) / falls, 1.0)[:-1] * (1 + SLACK)
        least = np.maximum((below[1:-1] - above[2:]) / falls[1:], 0.0) * (1 - SLACK)
        is_distinct = np.minimum(falls[:-1], falls[1:]) > 1e-5 * middle  # so that neither is below 1
        known = np.flatnonzero((below[1:-1] > 0) & is_distinct)
        c, h, most, least = middle[known], below[1:-1][known] * (1 - SLACK), most[known], least[known]
        # E is one of these events, with a share of all other results, which a coin decides that each run tosses
        # besides.
        p_of, q_of = (
            (end + shares[:, None] * (1 - end)).reshape(-1, 1) for end in (h + c * least, np.minimum(most, 1.0))
        )
        inside = np.clip(p_of - (above[1:-1][known] + c * most) * (1 + SLACK) / 2, 0.0, 1.0)
        gain = self.trials.slope(inside)[0]
        loss = self.trials.slope(np.broadcast_to(q_of, inside.shape))[1]
        holds = np.tile(np.tri(len(c), k=-1, dtype=bool).T, (len(shares), 1))
        shown = np.stack([(h + c * q) * gain for q in (least, most)])
        cost = np.stack([q * loss for q in (least, most)])
        return np.where(holds, shown, 0.0), cost


def pair_of(selections: list[Selection], least: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns P and Q on finitely many outcomes that dominate a search, one way or each; None where none was found.

    Their profile is the lower convex hull of H(0) = 1 and the upper bounds at ``number`` epsilons either way, up to
    where delta is ``least``: the search's own profile is convex, so below the chords, and so below the hull. Each ratio
    u at which the hull's slope rises is an outcome, with that rise for its Q-mass, and u times it for its P-mass. They
    are formed in rational arithmetic, for floats lose the masses of rare losses. The rounding to floats in the end is
    less, relatively, than the margin by which the bounds are raised.
    """
    # Number of epsilons, between which the profile of a search's pair lies on chords. Any value is sound.
    number = 96
    # Smallest mass of a pair's outcome; a smaller one becomes 0, so that no pair holds subnormal numbers.
    smallest = 1e-290
    farthest = max(way.least_epsilon(least) for way in selections)
    if not 0 < farthest < LARGEST:
        return None
    epsilons = np.linspace(0.0, farthest, number)
    ratios = [Fraction(float(ratio)) for ratio in np.exp(epsilons) * (1 + MARGIN)]
    ahead, behind = (
        [Fraction(min(way.upper(float(epsilon)) * (1 + SLACK), 1.0)) for epsilon in epsilons]
        for way in (selections[0], selections[-1])
    )
    back = [(1 / u, 1 - (1 - h) / u) for u, h in zip(ratios, behind, strict=True)]
    points = sorted([(Fraction(0), Fraction(1)), *back, *zip(ratios, ahead, strict=True)])
    hull: list[tuple[Fraction, Fraction]] = []
    # A monotone chain over points in the order of their ratios: a point goes where the slope would not rise at it.
    for u, h in points:
        while len(hull) > 1 and _slope(hull[-1], (u, h)) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        if not hull or h < hull[-1][1]:
            hull.append((u, h))
    slopes = [_slope(one, two) for one, two in itertools.pairwise(hull)] + [Fraction(0)]
    rises = [after - before for before, after in itertools.pairwise(slopes)]
    # The mass beyond the hull's ends has an infinite loss, one way or the other.
    masses = [rise * u for rise, (u, _) in zip(rises, hull[1:], strict=True)] + [hull[-1][1], Fraction(0)]
    p, q = np.array(masses, np.float64), np.array([*rises, Fraction(0), 1 + slopes[0]], np.float64)
    return np.where(p < smallest, 0.0, p), np.where(q < smallest, 0.0, q)


def _slope(one: tuple[Fraction, Fraction], two: tuple[Fraction, Fraction]) -> Fraction:
    return (two[1] - one[1]) / (two[0] - one[0])
