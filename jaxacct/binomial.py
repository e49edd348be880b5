"""Tails of the binomial law from above and from below, by additions, multiplications and divisions alone.

The ratio of neighbouring terms is ``(n - k) / (k + 1) * p / (1 - p)``. From the mode outwards the ratios are at most 1,
so products of them cannot overflow, and their total norms them: no logarithm, factorial or power is formed. Each ratio
has five roundings, so a term j places off the mode errs by at most about 5 j u of itself, a sum of N terms by N u more.
Beyond the last term that is kept the ratios still fall, so that what is left out is below a geometric series.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jaxacct.precision import TINY, UNIT_ROUNDOFF

LEAST_TERM = 1e-290
"""Terms below, relative to the mode's, are not summed but bounded; above, no product is subnormal."""

MOST_TERMS = 2**22
"""Terms summed on either side of the mode; enough for the whole of 10^10 trials. Beyond, bounds are looser."""


class BinomialTail(NamedTuple):
    """Bounds on ``P(K >= k)``, and on ``E[1 / (K + 1); K >= k]``, for a binomial K.

    Attributes:
        least: lower bound on the probability.
        most: upper bound on the probability; 0 only where it is.
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
        where that is less; what is below 1e-290 is bounded by about that.

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
    # By Bernstein's inequality terms farther off are below LEAST_TERM; those that are not are bounded all the same.
    reach = min(600 + int(38 * math.sqrt((trials + 1) * probability)), MOST_TERMS)
    above = np.arange(mode, min(mode + reach, trials), dtype=np.float64)
    below = np.arange(mode, max(mode - reach, 0), -1, dtype=np.float64)
    rising = np.concatenate([[1.0], np.cumprod((trials - above) / (above + 1) * odds)])
    falling = np.cumprod(below / (trials - below + 1) / odds)
    rising, falling = rising[rising >= LEAST_TERM], falling[falling >= LEAST_TERM]
    first, last = mode - len(falling), mode + len(rising) - 1
    terms, k = np.concatenate([falling[::-1], rising]), np.arange(first, last + 1, dtype=np.float64)
    error = UNIT_ROUNDOFF * (8 * len(terms) + 32)
    rest_above = _rest(rising[-1], (trials - last) / (last + 1) * odds)
    rest_below = _rest(terms[0], first / (trials - first + 1) / odds)
    split = min(max(least - first, 0), len(terms))
    inside, outside = float(np.sum(terms[split:])), float(np.sum(terms[:split]))
    # A rest that ``least`` lies in may count on either side.
    inside_most = inside * (1 + error) + rest_above + (rest_below if least < first else 0.0)
    outside_most = outside * (1 + error) + rest_below + (rest_above if least > last + 1 else 0.0)
    most = min(max(_share(inside_most, outside * (1 - error)) * (1 + 8 * UNIT_ROUNDOFF), TINY), 1.0)
    fewest = _share(inside * (1 - error), outside_most) * (1 - 8 * UNIT_ROUNDOFF)
    inverse = most / (least + 1)
    if inside > 0:
        rests = rest_above / (last + 1) + (rest_below / (least + 1) if least < first else 0.0)
        mean = (float(np.sum(terms[split:] / (k[split:] + 1))) * (1 + error) + rests) / (inside * (1 - error))
        inverse = min(inverse, most * mean)
    return BinomialTail(fewest, most, inverse * (1 + 8 * UNIT_ROUNDOFF))


def _share(part: float, other: float) -> float:
    """Returns ``part / (part + other)``, of numbers that may be 0 or infinite."""
    return 1 / (1 + other / part) if part > 0 else 0.0


def _rest(term: float, ratio: float) -> float:
    """Returns an upper bound on the terms after one, where the next ratio is ``ratio`` and those after it are less."""
    ratio = float(ratio) * (1 + 8 * UNIT_ROUNDOFF)
    # The term itself is right to far less than 1e-6, and 1 - ratio to 1e-16 / 1e-10.
    return float(term) * ratio / (1 - ratio) * (1 + 2e-6) if ratio < 1 - 1e-10 else math.inf
