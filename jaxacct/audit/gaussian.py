"""From right guesses about canaries to Gaussian differential privacy: the profile of mu-GDP, refuted or not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxacct.audit import profiles
from jaxacct.audit.approximate import check_confidence
from jaxacct.convert import gdp_to_delta

SMALLEST, LARGEST = 2.0**-10, 2.0**6
"""Values of mu between which the bound is looked for."""

HALVINGS = 10
"""Of the ratio of both: mu is found to 1.1 %."""


def mu_lower_bound(correct: Sequence[int], guesses: int, canaries: int, confidence: float = 0.95) -> float:
    """Returns a lower bound on mu, of a mechanism that is mu-GDP for some mu: 0 where nothing is shown.

    Args:
        correct: right guesses, of each of several independent runs.
        guesses: guesses of each run, fixed in advance.
        canaries: of each run, put in or left out by a fair coin each.
        confidence: in (0, 1).

    Formal guarantee: with probability at least ``confidence``, no run's mechanism is mu-GDP, for adding or removing one
    canary, for any mu below the returned number. It is the largest mu whose profile is refuted
    (:func:`~jaxacct.audit.profiles.p_value`), found to 1.1 % from below. A larger mu has larger deltas and so a larger
    p-value: if any mu of at least the true one is refuted, so is the true one. What follows for epsilon by
    :func:`jaxacct.convert.gdp_to_epsilon` holds of Gaussian mechanisms only: others have the same mu and less epsilon.

    Source: the profile is Corollary 2.13 of Dong, Roth and Su (2022), "Gaussian differential privacy".

    Raises ValueError where an argument is out of range.

    >>> mu_lower_bound([50], 100, 100), round(mu_lower_bound([99, 98], 100, 100), 1)
    (0.0, 1.5)
    """
    check_confidence(confidence)

    def refuted(mu: float) -> bool:
        deltas = np.asarray(gdp_to_delta(mu, profiles.EPSILONS))
        each = [profiles.p_value(right, guesses, canaries, profiles.EPSILONS, deltas) for right in correct]
        return profiles.combined(each) < 1 - confidence

    if not refuted(SMALLEST):
        return 0.0
    if refuted(LARGEST):
        return LARGEST
    low, high = SMALLEST, LARGEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
