"""JSON that every reader accepts: the floats it lacks become the strings "inf", "-inf" and "nan"; no other is read."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Returns ``value`` as strict JSON text.

    >>> dumps({"upper": float("inf"), "steps": 3})
    '{"upper": "inf", "steps": 3}'
    """
    try:
        return json.dumps(_strict(value), indent=indent, allow_nan=False, ensure_ascii=False)
    except RecursionError:
        raise ValueError("the value is nested too deeply.") from None


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


MOST_DIGITS = 300
"""Of a whole number: float64 holds every one of that many."""


def loads(text: str | bytes) -> Any:
    """Returns the value of strict JSON text.

    Raises ValueError for anything else: no JSON, numbers that float64 lacks, nesting too deep to be read.

    >>> loads('{"steps": 3}')
    {'steps': 3}
    >>> loads('{"upper": NaN}')
    Traceback (most recent call last):
        ...
    ValueError: NaN is no JSON.
    """
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("the text is nested too deeply.") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON.")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text[:20])


def _whole(text: str) -> int:
    return int(text) if len(text) <= MOST_DIGITS else _no_number(f"{text[:20]}...")
