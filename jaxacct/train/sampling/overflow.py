"""How likely more examples are drawn than a batch has rows, and what cutting it costs."""

from __future__ import annotations

import math

import numpy as np

from jaxacct import validation
from jaxacct.binomial import binomial_tail

KL_ROUNDING = 1e-6
"""Relative allowance for the rounding of the divergence; it is computed to about 1e-10."""


def log_overflow_bound(num_examples: int, sampling_rate: float, capacity: int) -> float:
    """Returns an upper bound on ``log P(more than capacity of num_examples + 1 take part)``: -inf where none can.

    Args:
        num_examples: size of the data set; a neighbour may have one more.
        sampling_rate: of each, independently, in (0, 1].
        capacity: rows of a batch.

    Formal guarantee: an upper bound, with an allowance for rounding: Chernoff's, e^(-n KL(k/n || rate)) for n examples
    and k = capacity + 1. 0, a probability of 1, where it says nothing.

    >>> round(log_overflow_bound(999, 0.1, 199), 2), log_overflow_bound(999, 0.1, 1000)
    (-44.4, -inf)
    """
    total, least = num_examples + 1, capacity + 1
    if least > total:
        return -math.inf
    if least <= total * sampling_rate:
        return 0.0
    divergence = least * math.log(least / (total * sampling_rate))
    if least < total:
        divergence += (total - least) * (math.log((total - least) / total) - math.log1p(-sampling_rate))
    return min(-divergence * (1 - KL_ROUNDING), 0.0)


def log_binomial_tail(trials: int, probability: float, least: int) -> float:
    """Returns an upper bound on ``log P(Binomial(trials, probability) >= least)``, within 1e-5 of it above the mean.

    Formal guarantee: an upper bound, rounding included (:func:`jaxacct.binomial.binomial_tail`); what is below 1e-290
    is bounded by about that. At or below the mean the bound is 0, that is a probability of 1.

    >>> exact = math.log(1 - 0.9**10)
    >>> bool(exact <= log_binomial_tail(10, 0.1, 2 - 1)), log_binomial_tail(10, 0.5, 11)
    (True, -inf)
    """
    if least > trials:
        return -math.inf
    if least <= trials * probability or probability >= 1:
        return 0.0
    bound = math.log(binomial_tail(trials, probability, least).most)
    return min(bound + 1e-15 * abs(bound), 0.0)


def cut_cost(log_probability: float, steps: int, epsilon: float) -> float:
    """Returns ``(1 + e^epsilon) steps p``, at most 1: what events of probability p a step add to delta."""
    if steps <= 0:
        return 0.0
    return math.exp(min(log_probability + math.log(steps) + np.logaddexp(0.0, epsilon), 0.0))


def least_capacity(
    num_examples: int, sampling_rate: float, *, epsilon: float, delta: float, steps: int, allowance: float
) -> int:
    """Returns the least capacity whose :func:`cut_cost` is at most ``allowance * delta``."""
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    if not 0 < allowance < 1:
        raise ValueError(f"allowance = {allowance} is not a share of delta: give a number between 0 and 1.")
    target = math.log(allowance * delta) - math.log(max(steps, 1)) - np.logaddexp(0.0, epsilon)
    low = math.ceil((num_examples + 1) * sampling_rate) + 1
    high = num_examples + 1
    while low < high:
        middle = (low + high) // 2
        if log_overflow_bound(num_examples, sampling_rate, middle) <= target:
            high = middle
        else:
            low = middle + 1
    return high


def log_tie(num_examples: int, bits: int = 96) -> float:
    """Returns an upper bound on the log probability that any two examples agree in so many random bits."""
    return 2 * math.log(num_examples + 1) - (bits + 1) * math.log(2)
