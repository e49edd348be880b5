"""What the commands print for programs: strict JSON, on one line."""

from __future__ import annotations

import json
import math
from typing import Any


def strict(value: Any) -> Any:
    """Returns ``value`` with the floats that JSON lacks as strings: "inf", "-inf", "nan".

    >>> strict({"upper": float("inf")})
    {'upper': 'inf'}
    """
    if isinstance(value, dict):
        return {key: strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def print_json(record: dict[str, Any]) -> None:
    """Prints one JSON object on one line of standard output."""
    print(json.dumps(strict(record), allow_nan=False))
