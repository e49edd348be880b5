"""Numbers as people write them, without JAX: decimals that are rounded to the safe side, and steps and rates of epochs.

The command's help and its tables need no more than this.
"""

from __future__ import annotations

import decimal
import math
import operator
import re
from decimal import Decimal
from fractions import Fraction


def rounded_up(value: float | Decimal, spec: str = ".6g") -> str:
    """Returns ``value`` formatted by ``spec``, rounded up.

    Args:
        value: a float counts as it is written, as the shortest text that is read as it: 1e-5 is shown as that. The
            text is then read as no smaller float. ``Decimal(value)`` counts to its last binary digit, and is shown with
            zeros at the end, in as many digits as ``spec`` asks for.
        spec: the format of a float, with ``e``, ``f``, ``g``, ``n`` or ``%``, or a width alone.

    >>> rounded_up(1 / 3), rounded_up(1e-5), rounded_up(Decimal(1e-5)), rounded_up(2.00001, ".2f")
    ('0.333334', '1e-05', '0.0000100001', '2.01')
    """
    return _format(value, spec, decimal.ROUND_CEILING)


def rounded_down(value: float | Decimal, spec: str = ".6g") -> str:
    """Returns ``value`` formatted by ``spec``, rounded down; its arguments are those of :func:`rounded_up`.

    >>> rounded_down(1 / 3), rounded_down(2.99999, ".2f"), rounded_down(0.0)
    ('0.333333', '2.99', '0')
    """
    return _format(value, spec, decimal.ROUND_FLOOR)


def _format(value: float | Decimal, spec: str, rounding: str) -> str:
    if not math.isfinite(value) or value == 0:
        return format(float(value) + 0.0, spec)  # without the sign of a zero
    digits, kind = re.fullmatch(r".*?(\.\d+)?([eEfFgGn%]?)", spec, re.DOTALL).groups()  # type: ignore[union-attr]
    if not digits and not kind:
        return format(float(value), spec)  # the shortest text that is read as this number
    if not digits:  # six, the default of any float
        spec = f"{spec[:-1]}.6{kind}"
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    with decimal.localcontext(rounding=rounding, prec=1000):
        # The format of decimals has neither underscores between thousands nor the alternate form.
        safe = format(exact, spec.replace("_", ",").replace("#", ""))
        if kind != "n" and not isinstance(value, Decimal):
            # Floats are written shorter, without zeros at the end: that form is used where it is on the safe side, too.
            is_outward = operator.ge if rounding == decimal.ROUND_CEILING else operator.le
            for close in (exact, _number(safe)):
                text = format(float(close), spec)
                if "inf" not in text and is_outward(_number(text), exact):
                    return text
    return safe.replace(",", "_") if "_" in spec else safe


def _number(text: str) -> Decimal:
    """Returns the number that a formatted text shows."""
    digits = re.search(r"-?[\d.,_]+([eE][-+]?\d+)?", text)[0].replace(",", "").replace("_", "")  # type: ignore[index]
    return Decimal(digits) / (100 if "%" in text else 1)


def spell_count(count: float | Decimal, one: str, many: str = "") -> str:
    """Returns a number of things with the word for them: ``one``, or ``many``, by default with an s.

    >>> spell_count(1, "step"), spell_count(10_000, "step"), spell_count(0, "entry", "entries")
    ('1 step', '10,000 steps', '0 entries')
    """
    return f"{count:,.12g} {one if count == 1 else many or f'{one}s'}"


# ----------------------------------------------------------------------------------------------------
# Rates and steps: what the numbers that people think in, batches and epochs, are as a rate and as steps
# ----------------------------------------------------------------------------------------------------


def round_up(value: Fraction) -> float:
    """Returns a float64 that is not below the exact value.

    >>> round_up(Fraction(1, 3)) > Fraction(1, 3)
    True
    """
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def float_of(text: str) -> float:
    """Returns the float that a decimal stands for; raises ValueError where it is none, or is read as 0 and is not.

    Every reader of text takes its floats from here: a delta of 1e-400 must not become the delta 0, which asks for the
    pure epsilon. A subnormal number is read: it is not 0.

    >>> float_of("0e5"), float_of("-inf")
    (0.0, -inf)
    >>> float_of("1e-400")
    Traceback (most recent call last):
        ...
    ValueError: 1e-400 is below what float64 holds, and would be read as 0.
    """
    value = float(text)
    # A decimal is 0 where all digits before its exponent are.
    if value == 0 and any(digit in "123456789" for digit in text.lower().partition("e")[0]):
        raise ValueError(f"{text.strip()[:20]} is below what float64 holds, and would be read as 0.")
    return value


def parse_number(text: str) -> float:
    """Returns the number that a text gives, a fraction rounded up; raises ValueError where it is no number.

    >>> parse_number("1e-5"), parse_number("64/1000")
    (1e-05, 0.064)
    """
    over, slash, under = (word.strip() for word in text.partition("/"))
    if slash and Fraction(under) == 0:
        raise ValueError(f"{text!r} divides by 0")
    return round_up(Fraction(over) / Fraction(under)) if slash else float_of(text)


def rate_of(batch_size: float, examples: float, name: str = "batch_size") -> float:
    """Returns the sampling rate of batches of an expected size, rounded up; ``name`` is that of the size in an error.

    >>> rate_of(64, 1000)
    0.064
    """
    if not 0 < batch_size <= examples < math.inf:
        arguments = f"{name} = {batch_size:g} of examples = {examples:g}"
        raise ValueError(f"{arguments}: give numbers above 0, the first not the larger.")
    return round_up(Fraction(batch_size) / Fraction(examples))


def steps_of(epochs: float, sampling_rate: float) -> int:
    """Returns the least number of steps that is at least so many expected passes over the data.

    The arguments count as the decimal numbers that they print as. A rate that is a quotient was rounded itself, so a
    number of steps that is whole but for that rounding is not raised to the next one.

    >>> steps_of(10, 0.07), steps_of(10, 1 / 3)
    (143, 30)
    """
    if not (0 < epochs < math.inf and 0 < sampling_rate <= 1):
        arguments = f"epochs = {epochs:g} at a sampling rate of {sampling_rate:g}"
        raise ValueError(f"{arguments}: give epochs above 0, and a rate in (0, 1].")
    quotient = Fraction(repr(float(epochs))) / Fraction(repr(float(sampling_rate)))
    steps = math.ceil(quotient * (1 - Fraction(1, 2**51)))
    if steps > 2**53:
        raise ValueError(f"epochs = {epochs:g} at a sampling rate of {sampling_rate:g} are too many steps: give fewer.")
    return steps
