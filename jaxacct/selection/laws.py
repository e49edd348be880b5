"""Laws of the number of trials K of a search: the law is public, and K itself is known to nobody.

For privacy a law is its generating function's derivative f' (:class:`Trials`), here with bounds that include rounding.
:meth:`Trials.draw` draws K by the operating system's entropy.
"""

from __future__ import annotations

import abc
import math
import secrets
from dataclasses import dataclass, field
from decimal import MIN_EMIN, Context, Decimal, localcontext
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.numerics.pytrees import register_dataclass

MOST_TRIALS = 2.0**53
"""Largest expected, or largest possible, number of trials: whole numbers up to it are exact in float64."""

ROUNDING = 1e-13
"""Relative error allowed for an exponent, and for a product with its exponential: a few dozen roundings, and more."""

DRAWING = 1e-12
"""Distance in total variation of the draws of :meth:`Trials.draw` from the law, for each thousand trials expected."""

DEEPEST = 60.0
"""Depth, in nats, below the largest f', or below a probability of 1, from which it does not matter how deep one is."""

FINE = np.concatenate([np.linspace(0.0, 0.5, 5000, endpoint=False), 1 - np.geomspace(0.5, 1e-15, 15_000), [1.0]])
"""A grid from 0 to 1, ever finer towards 1, between whose points levels are interpolated. Sound for any grid."""


class Trials(abc.ABC):
    """The law of the number of trials K that a search makes: the base class of the laws here.

    With f(x) = E[x^K] the generating function of K, privacy depends on the derivative f' alone: it rises from f'(0),
    the probability of a single trial, to f'(1), the expected number.

    Attributes:
        mean: expected number of trials.
    """

    mean: Any

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range; a traced field cannot raise."""
        mean = validation.concrete_value(self.mean)
        if mean is not None and not np.all((mean >= 1) & (mean <= MOST_TRIALS)):
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
        return (_number(self.mean) * (1 - x),) * 2

    def _recursion(self) -> tuple[int, float, float, float]:
        return 0, -_number(self.mean), 0.0, _number(self.mean)


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
        mean, shape = _number(self.mean), _number(self.shape)

        def expected(u: float) -> float:
            x = shape * u
            return (math.expm1(u) / u if u > 0 else 1.0) * (x / -math.expm1(-x) if x > 0 else 1.0)

        ends = []
        # Bisection down to neighbouring doubles, once with the mean raised and once lowered by its rounding: the outer
        # ends of the two brackets are bounds.
        for margin in (1 + ROUNDING, 1 - ROUNDING):
            low, high = 0.0, 2 * math.log(mean) * (1 + 1e-12) + 1e-12
            while low < (middle := (low + high) / 2) < high:
                low, high = (middle, high) if expected(middle) * margin < mean else (low, middle)
            ends.append((low, high))
        return ends[0][0], ends[1][1]

    def _fall(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # f' is mean (1 + (1/g - 1) (1 - x))^-(1 + eta).
        low, high = ((1 + _number(self.shape)) * np.log1p(math.expm1(u) * (1 - x)) for u in self._odds())
        return low, high

    def _recursion(self) -> tuple[int, float, float, float]:
        rest = -math.expm1(-self._odds()[1])
        return (
            1,
            math.log(_number(self.mean)) - float(self._fall(np.zeros(()))[1]),
            rest,
            rest * (_number(self.shape) - 1),
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
        return _number(self.count) * _number(self.probability)

    def validate(self) -> None:
        count = validation.concrete_value(self.count)
        if count is not None and not np.all((count >= 1) & (count <= MOST_TRIALS) & (count == np.floor(count))):
            raise ValueError(f"count = {self.count} is not a number of trials: give a whole one, from 1 to 2**53.")
        validation.check_positive(self.probability, "probability")
        validation.check_probability(self.probability, "probability")

    def _fall(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        others, chance = _number(self.count) - 1, _number(self.probability)
        # A single possible trial: f' is constant.
        if others == 0:
            return (np.zeros_like(x),) * 2
        missing = chance * (1 - x)
        with np.errstate(divide="ignore"):  # each form where it is right to a few roundings
            logs = np.where(missing < 0.5, np.log1p(-missing), np.log((1 - chance) + chance * x))
        return (-others * logs,) * 2

    def _recursion(self) -> tuple[int, float, float, float]:
        count, chance = _number(self.count), _number(self.probability)
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


def _number(value: Any) -> float:
    return float(value)
