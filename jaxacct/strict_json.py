"""JSON that every reader accepts: the floats it lacks become the strings "inf", "-inf" and "nan"."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Returns ``value`` as strict JSON text.

    >>> dumps({"upper": float("inf"), "steps": 3})
    '{"upper": "inf", "steps": 3}'
    """
    return json.dumps(_strict(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
