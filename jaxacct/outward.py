"""Bounds as text: an upper bound is rounded up, a lower bound down, to however few digits. Needs no JAX."""

from __future__ import annotations

import decimal
import math
import re
from decimal import Decimal


def rounded_up(value: float | Decimal, spec: str = ".6g") -> str:
    """Returns ``value`` formatted by ``spec``, rounded up.

    Args:
        value: a float counts as it is written, as the shortest text that is read as it: 1e-5 is shown as that. The
            text is then read as no smaller float. ``Decimal(value)`` counts to its last binary digit, and is shown with
            zeros at the end, as many digits as are asked for.
        spec: of a float, with ``e``, ``f``, ``g``, ``n`` or ``%``, or a width alone.

    >>> rounded_up(1 / 3), rounded_up(1e-5), rounded_up(Decimal(1e-5)), rounded_up(2.00001, ".2f")
    ('0.333334', '1e-05', '0.0000100001', '2.01')
    """
    return _formatted(value, spec, decimal.ROUND_CEILING)


def rounded_down(value: float | Decimal, spec: str = ".6g") -> str:
    """Returns ``value`` formatted by ``spec``, rounded down; its arguments are those of :func:`rounded_up`.

    >>> rounded_down(1 / 3), rounded_down(2.99999, ".2f"), rounded_down(0.0)
    ('0.333333', '2.99', '0')
    """
    return _formatted(value, spec, decimal.ROUND_FLOOR)


def _formatted(value: float | Decimal, spec: str, rounding: str) -> str:
    if not math.isfinite(value) or value == 0:
        return format(float(value) + 0.0, spec)  # without the sign of a zero
    digits, kind = re.fullmatch(r".*?(\.\d+)?([eEfFgGn%]?)", spec, re.DOTALL).groups()  # type: ignore[union-attr]
    if not digits and not kind:
        return format(float(value), spec)  # the shortest text that is read as this number
    if not digits:  # six, as of any float
        spec = f"{spec[:-1]}.6{kind}"
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    with decimal.localcontext(rounding=rounding, prec=1000):
        # Decimals know neither underscores between thousands nor the alternate form.
        safe = format(exact, spec.replace("_", ",").replace("#", ""))
        if kind != "n" and not isinstance(value, Decimal):
            # Floats are written shorter, without zeros at the end: so, where that is on the safe side as well.
            for close in (exact, _number(safe)):
                text = format(float(close), spec)
                if "inf" not in text and _is_outward(_number(text), exact, rounding):
                    return text
    return safe.replace(",", "_") if "_" in spec else safe


def _is_outward(shown: Decimal, exact: Decimal, rounding: str) -> bool:
    return shown >= exact if rounding == decimal.ROUND_CEILING else shown <= exact


def _number(text: str) -> Decimal:
    """Returns the number that a formatted one says."""
    digits = re.search(r"-?[\d.,_]+([eE][-+]?\d+)?", text)[0].replace(",", "").replace("_", "")  # type: ignore[index]
    return Decimal(digits) / (100 if "%" in text else 1)
