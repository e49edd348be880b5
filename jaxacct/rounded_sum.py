"""Sums that are rounded to the safe side: bounds on binomial tails, and running sums that never fall below the exact.

In reading order: :func:`binomial_tail`, tails of the binomial law from above and from below; :class:`RoundedSum`, the
running sums of filters and odometers, and :func:`runs_within`, the number of further runs that a budget allows.

*Tails* are made of additions, multiplications and divisions alone. The ratio of neighbouring terms is
``(n - k) / (k + 1) * p / (1 - p)``. From the mode outwards the ratios are at most 1, so products of them cannot
overflow, and their total norms them: no logarithm, factorial or power is formed. Each ratio has five roundings, so a
term j places off the mode errs by at most about 5 j u of itself, and a sum of N terms by N u more. Beyond the last term
that is kept the ratios still fall, so that the terms left out are below a geometric series.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Float32

from jaxacct.numerics.arithmetic import arithmetic, roundoff, with_own_form
from jaxacct.numerics.precision import TINY, UNIT_ROUNDOFF, as_float64, exact_float64, kept_positive
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.validation import MOST_COUNT


class BinomialTail(NamedTuple):
    """Bounds on ``P(K >= k)``, and on ``E[1 / (K + 1); K >= k]``, for a binomial K.

    Attributes:
        least: lower bound on the probability.
        most: upper bound on the probability; 0 only where the probability is 0.
        inverse: upper bound on the expectation.
    """

    least: float
    most: float
    inverse: float


def binomial_tail(trials: int, probability: float, least: int) -> BinomialTail:
    """Returns bounds on the probability that a binomial variable is at least ``least``, and on its inverse there.

    Args:
        trials: n, from 0 to 2^53.
        probability: p, in (0, 1]; of each trial.
        least: k, at least 1.

    Returns:
        :class:`BinomialTail`. The bounds are within about 1e-13 sqrt(n p) of the probability, or of its distance from 1
        where that is less; a probability below 1e-290 is bounded by about 1e-290.

    Formal guarantee: rounding and all terms left out are counted; see the module. Time and memory are those of about
    80 sqrt(n p) terms.

    >>> tail = binomial_tail(10, 0.5, 8)
    >>> tail.least <= 56 / 1024 <= tail.most, tail.most - tail.least < 1e-13
    (True, True)
    """
    if least > trials:
        return BinomialTail(0.0, 0.0, 0.0)
    if probability >= 1:
        return BinomialTail(1.0, 1.0, (1 / (trials + 1)) * (1 + 2 * UNIT_ROUNDOFF))
    mode = min(int((trials + 1) * probability), trials)
    odds = probability / (1 - probability)
    # Terms below 1e-290 of the mode's are bounded by a series: sound for any number so far above the smallest normal
    # float64 (2e-308) that no product is subnormal. By Bernstein's inequality terms farther off are below it. If 2^22
    # terms on either side, enough for the whole law of 10^10 trials, cut some that are not, the bound on the rest
    # counts them: tightness only.
    least_term = 1e-290
    reach = min(600 + int(38 * math.sqrt((trials + 1) * probability)), 2**22)
    above = np.arange(mode, min(mode + reach, trials), dtype=np.float64)
    below = np.arange(mode, max(mode - reach, 0), -1, dtype=np.float64)
    rising = np.concatenate([[1.0], np.cumprod((trials - above) / (above + 1) * odds)])
    falling = np.cumprod(below / (trials - below + 1) / odds)
    rising, falling = rising[rising >= least_term], falling[falling >= least_term]
    first, last = mode - len(falling), mode + len(rising) - 1
    terms, k = np.concatenate([falling[::-1], rising]), np.arange(first, last + 1, dtype=np.float64)
    error = UNIT_ROUNDOFF * (8 * len(terms) + 32)
    rest_above = _bound_later_terms(rising[-1], (trials - last) / (last + 1) * odds)
    rest_below = _bound_later_terms(terms[0], first / (trials - first + 1) / odds)
    split = min(max(least - first, 0), len(terms))
    inside, outside = float(np.sum(terms[split:])), float(np.sum(terms[:split]))
    # If ``least`` lies among terms that are not summed, that rest may count on either side.
    inside_most = inside * (1 + error) + rest_above + (rest_below if least < first else 0.0)
    outside_most = outside * (1 + error) + rest_below + (rest_above if least > last + 1 else 0.0)
    most = min(max(_share_of_sum(inside_most, outside * (1 - error)) * (1 + 8 * UNIT_ROUNDOFF), TINY), 1.0)
    fewest = _share_of_sum(inside * (1 - error), outside_most) * (1 - 8 * UNIT_ROUNDOFF)
    inverse = most / (least + 1)
    if inside > 0:
        rests = rest_above / (last + 1) + (rest_below / (least + 1) if least < first else 0.0)
        mean = (float(np.sum(terms[split:] / (k[split:] + 1))) * (1 + error) + rests) / (inside * (1 - error))
        inverse = min(inverse, most * mean)
    return BinomialTail(fewest, most, inverse * (1 + 8 * UNIT_ROUNDOFF))


def _share_of_sum(part: float, other: float) -> float:
    """Returns ``part / (part + other)`` for numbers that may be 0 or infinite."""
    return 1 / (1 + other / part) if part > 0 else 0.0


def _bound_later_terms(term: float, ratio: float) -> float:
    """Returns an upper bound on the terms after one, where the next ratio is ``ratio`` and those after it are less."""
    ratio = float(ratio) * (1 + 8 * UNIT_ROUNDOFF)
    # The term itself is right to far less than 1e-6, and 1 - ratio to 1e-16 / 1e-10.
    return float(term) * ratio / (1 - ratio) * (1 + 2e-6) if ratio < 1 - 1e-10 else math.inf


# ----------------------------------------------------------------------------------------------------
# Running sums that never fall below the exact ones, kept in float32 leaves.
#
# The sum that a filter or an odometer has spent must survive ``jit``, ``scan`` and checkpoints of a float32 program,
# and 10^6 small spends. It is a pair of float32 numbers, 48 bits, read and added to in float64 and rounded up.
#
# *In float32* (:mod:`jaxacct.numerics.arithmetic`) a sum is one number, raised by :func:`rounding` with each addition,
# and what the first number lacks is 0. Reading a sum that another device has stored may round there, which
# :func:`rounding` counts.
# ----------------------------------------------------------------------------------------------------

SMALLEST_FLOAT32 = 2.0**-126
"""Smallest normal float32. A positive remainder is never stored as less, because XLA may flush that to zero."""

LEAST_COST = 2.0**-960
"""Least cost of a run that is not free, which stands for the values of formulas that underflow.

Sound for any value that stays a normal number, alone or times a number of runs.
"""


def rounding() -> float:
    """Returns a relative allowance that covers the at most three roundings of ``old + steps * cost``, terms >= 0.

    It also covers the reading of that sum, and of the budget it is compared with, which is exact in float64.
    """
    return 8 * roundoff()


def rounding_of_one() -> float:
    """Returns the largest relative excess of a sum over the exact one that each of n <= 2^31 additions may cause.

    Storing adds 2^-47, an addition one and a half times :func:`rounding`, and the comparison with a budget no more than
    that. The second order of n such terms is less than a hundredth of them.
    """
    return 2.0**-47 + max(2.0**-47, 32 * roundoff())


def log_inverse_above(delta: Float[Array, " ..."]) -> Float[Array, " ..."]:
    """Returns log(1/delta), rounded up; ``inf`` where delta is not in (0, 1). Inside the float64 scope.

    The logarithm is within four units of itself, and the product rounds once more: five units, of the eight that are
    allowed for a function.
    """
    inside = (delta > 0) & (delta < 1)
    return jnp.where(inside, -jnp.log(jnp.where(inside, delta, 0.5)) * (1 + arithmetic().function), jnp.inf)


@register_dataclass
@dataclass(frozen=True)
class RoundedSum:
    """An array of numbers, each the sum of two float32 numbers, for use inside the float64 scope.

    Attributes:
        high (...): the number in float32.
        low (...): the part of the number that ``high`` lacks, rounded up.
    """

    high: Float32[Array, " ..."]
    low: Float32[Array, " ..."]

    @classmethod
    def above(cls, value: ArrayLike) -> RoundedSum:
        """Returns a representable sum that is at least ``value``, and at most a relative 2^-47 above it.

        In float64 it is the least such sum.
        """
        return cls(*_split_upwards(as_float64(value)))

    @classmethod
    def below(cls, value: ArrayLike) -> RoundedSum:
        """Returns the largest representable sum that is at most ``value``."""
        opposite = cls.above(-as_float64(value))
        return cls(-opposite.high, -opposite.low)

    def value(self) -> Float[Array, " ..."]:
        """Returns the numbers in float64, exactly; in float32 they round."""
        if self.high.dtype != jnp.float32 or self.low.dtype != jnp.float32:
            raise TypeError(
                f"the state of a filter or odometer came back as {self.high.dtype}: keep its leaves float32 "
                "(exclude it from casts to a training precision, which would drop what has been spent)."
            )
        high = self.high.astype(jnp.float64)
        return jnp.where(jnp.isinf(high), high, high + self.low.astype(jnp.float64))

    def plus(self, added: Float[Array, " ..."]) -> Float[Array, " ..."]:
        """Returns the numbers with ``added`` >= 0, rounded up, in float64; unchanged where nothing is added."""
        old = self.value()
        return jnp.where(added == 0, old, (old + added) * (1 + rounding()))

    def replace_where(self, new: Float[Array, " ..."], where: ArrayLike) -> RoundedSum:
        """Returns the sum with ``new``, rounded up, in the places ``where``, and the same bit for bit elsewhere."""
        rounded = RoundedSum.above(new)
        return RoundedSum(jnp.where(where, rounded.high, self.high), jnp.where(where, rounded.low, self.low))


@with_own_form
def missing_above(value: Float[Array, " ..."], high: Float[Array, " ..."]) -> Float[Array, " ..."]:
    """Returns an upper bound on the part of ``value`` that ``high``, its float32, lacks; 0 where it is infinite.

    In float64 it is the exact difference.
    """
    return jnp.where(jnp.isinf(high), 0.0, value - high)


def precise(curve: ArrayLike) -> Array:
    """Returns ``curve`` in float64, rounded up where it came in a narrower type. Inside the float64 scope.

    Only a float64 0 stays 0: in a narrower type it may have been a small number. A positive value is raised to at least
    LEAST_COST, so that no flush to zero loses it.
    """
    curve = jnp.asarray(curve)
    wide = exact_float64(curve)
    if curve.dtype != jnp.float64 and jnp.issubdtype(curve.dtype, jnp.floating):
        limits = jnp.finfo(curve.dtype)  # the value is off by its last bit, or by a subnormal
        wide = wide * (1 + float(limits.eps)) + float(limits.tiny)
    return kept_positive(wide, LEAST_COST)


def runs_within(
    old: Float[Array, " ..."], budget: Float[Array, " ..."], each: Float[Array, " ..."]
) -> Float[Array, " ..."]:
    """Returns how many times ``each`` may be added to ``old``, at once or one by one, before it exceeds ``budget``.

    The number is never too large, and at most MOST_COUNT, which is the result for free runs. n additions one by one are
    rounded up n times, by r = :func:`rounding_of_one` each, so the result is the largest n for which

        (old + n each) (1 + n r) <= budget:        n (1 + old r / each) + n^2 r <= (budget - old) / each.

    Inside the float64 scope.
    """
    # An infinite budget ends where its sum does: at the largest float32.
    finite = jnp.minimum(budget, (2 - 2.0**-23) * 2.0**127)
    step, r = each + 2 * SMALLEST_FLOAT32, rounding_of_one()
    # The larger root of the quadratic, as a quotient in which nothing cancels and nothing overflows a float32.
    slope = 1 + old / step * r
    linear = jnp.minimum((finite - old) / step, 4.0 * MOST_COUNT) / slope
    guess = jnp.clip(jnp.floor(2 * linear / (1 + jnp.sqrt(1 + 4 * r * linear / slope))), 0, MOST_COUNT)
    most = jnp.zeros_like(guess)
    # The guess may be off by its rounding: the result is the largest of three counts that is itself seen to fit.
    for fewer in range(3):
        count = jnp.maximum(guess - fewer, 0.0)
        fits = (old + count * step) * (1 + count * r) <= finite
        most = jnp.maximum(most, jnp.where(fits, count, 0.0))
    return jnp.where(each == 0, MOST_COUNT, jnp.where(each > 0, most, 0.0))


@functools.partial(jax.jit, inline=True)
def _split_upwards(value: Float[Array, " ..."]) -> tuple[Array, Array]:
    """Returns the two parts of the least sum that is at least ``value``, by one program."""
    # ``reduce_precision`` and not a cast there and back: XLA may drop such a pair of casts as excess precision.
    high = jnp.where(jnp.abs(value) < SMALLEST_FLOAT32, 0.0, jax.lax.reduce_precision(value, 8, 23))
    rest = missing_above(value, high)
    low = jax.lax.reduce_precision(rest, 8, 23)
    rounded = jnp.where(low < rest, jnp.nextafter(low.astype(jnp.float32), jnp.float32(jnp.inf)), low)
    low32 = jnp.where(jnp.abs(rest) < SMALLEST_FLOAT32, jnp.where(rest > 0, SMALLEST_FLOAT32, 0.0), rounded)
    return high.astype(jnp.float32), low32.astype(jnp.float32)
