"""Confidence intervals of the mean of variables in [0, 1].

Of such a variable's mean mu, that of n draws is m or further off with a probability of at most e^(-n kl(m, mu)) on
either side, kl the divergence of two coins (Hoeffding 1963, "Probability inequalities for sums of bounded random
variables", Theorem 1). An end of an interval is where this is the probability to miss it: for rare events nearly that
of Clopper and Pearson, which is for events alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxacct import validation


@dataclass(frozen=True)
class Interval:
    """A confidence interval of delta: an estimate, and not a bound.

    Attributes:
        lower, upper: hold the truth except with the failure probability.
        estimate: the mean.
        failure_probability: eta, of both ends together; of each it is half.
        draws: how many were made, for each direction.

    >>> Interval(lower=0.0, estimate=1e-6, upper=8e-6, failure_probability=1e-7, draws=10**6).verifies(1e-5)
    True
    """

    lower: float
    estimate: float
    upper: float
    failure_probability: float
    draws: int

    def verifies(self, delta: float) -> bool:
        """Returns whether a mechanism may go ahead as (epsilon, max(delta, failure_probability))-DP.

        Guarantee: that of estimate, verify, release (:mod:`jaxacct.monte_carlo`), for one set of draws and a delta, an
        epsilon and a failure probability that were fixed before.
        """
        validation.check_delta(delta)
        return self.upper <= delta


def end(mean: float, draws: int, probability: float, *, up: bool) -> float:
    """Returns the end of the interval above or below a mean: where draws kl(mean, end) is log(1/probability)."""
    m, most = min(max(mean, 0.0), 1.0), -math.log(probability) / draws

    def kl(u: float) -> float:
        one = m * math.log(m / u) if m > 0 else 0.0
        return one + ((1 - m) * math.log((1 - m) / (1 - u)) if m < 1 else 0.0)

    inside, outside = m, 1.0 if up else 0.0
    for _ in range(200):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if kl(middle) <= most else (inside, middle)
    return outside
