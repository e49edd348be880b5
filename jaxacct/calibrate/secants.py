"""A search by secants, for what takes seconds to evaluate and need not be met to the last digit."""

from __future__ import annotations

import math
from collections.abc import Callable

LONGEST = 2.0
"""The largest logarithm of a cost that counts, of either sign."""

STEEPER = 4.0
"""By how much a slope may be steeper or flatter than the one that is expected."""


def least(cost: Callable[[float], float], start: float, *, close: float, rounds: int, slope: float = -1.0) -> float:
    """Returns a setting u of cost at most 1 that is near the least, one that was evaluated; inf where none was found.

    Args:
        cost: falls in u, about as a power of e^u.
        start: the first setting.
        close: distance from 0 in the logarithm of the cost at which to end.
        rounds: most evaluations.
        slope: about d log(cost) / du.

    >>> u = least(lambda u: 100.0 * math.exp(-u), 0.0, close=1e-3, rounds=10)
    >>> 0.0 <= u - math.log(100.0) <= 1e-3
    True
    """
    passed, failed = math.inf, -math.inf
    u, expected, before = start, slope, None
    for _ in range(rounds):
        height = math.log(min(max(cost(u), math.exp(-LONGEST)), math.exp(LONGEST)))
        if height <= 0:
            passed = min(passed, u)
        else:
            failed = max(failed, u)
        if -close <= height <= 0:
            break
        if before is not None and abs(height) < LONGEST and u != before[0]:
            secant = (height - before[1]) / (u - before[0])
            slope = min(max(secant, STEEPER * expected), expected / STEEPER)
        before = u, height
        u -= (height + close / 2) / slope
        if not failed < u < passed:
            u = (failed + passed) / 2 if passed < math.inf else failed + LONGEST / 2
    return passed
