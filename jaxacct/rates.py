"""Sampling rates and numbers of steps as people think of them: batches of so many examples, epochs. Needs no JAX."""

from __future__ import annotations

import math
from fractions import Fraction


def up(value: Fraction) -> float:
    """Returns a float64 that is not below the exact value.

    >>> up(Fraction(1, 3)) > Fraction(1, 3)
    True
    """
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def number(text: str) -> float:
    """Returns the number that a text says, of a fraction rounded up; raises ValueError where it is none.

    >>> number("1e-5"), number("64/1000")
    (1e-05, 0.064)
    """
    over, slash, under = (word.strip() for word in text.partition("/"))
    if slash and Fraction(under) == 0:
        raise ValueError(f"{text!r} divides by 0")
    return up(Fraction(over) / Fraction(under)) if slash else float(text)


def rate_of(batch_size: float, examples: float) -> float:
    """Returns the sampling rate of batches of an expected size, rounded up.

    >>> rate_of(64, 1000)
    0.064
    """
    if not 0 < batch_size <= examples < math.inf:
        given = f"batch_size = {batch_size:g} of examples = {examples:g}"
        raise ValueError(f"{given}: give numbers above 0, the first not the larger.")
    return up(Fraction(batch_size) / Fraction(examples))


def steps_of(epochs: float, sampling_rate: float) -> int:
    """Returns the steps that are at least so many expected passes over the data; numbers count as they are written.

    A rate that is a quotient was rounded itself, so a number of steps that is whole but for that stays as it is.

    >>> steps_of(10, 0.07), steps_of(10, 1 / 3)
    (143, 30)
    """
    if not (0 < epochs < math.inf and 0 < sampling_rate <= 1):
        given = f"epochs = {epochs:g} at a sampling rate of {sampling_rate:g}"
        raise ValueError(f"{given}: give epochs above 0, and a rate in (0, 1].")
    quotient = Fraction(repr(float(epochs))) / Fraction(repr(float(sampling_rate)))
    steps = math.ceil(quotient * (1 - Fraction(1, 2**51)))
    if steps > 2**53:
        raise ValueError(f"epochs = {epochs:g} at a sampling rate of {sampling_rate:g} are too many steps: give fewer.")
    return steps
