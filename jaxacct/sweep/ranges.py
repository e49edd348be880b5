"""Values of an axis as text: ``low:high:count``, ``low:high:count:log``, ``1,2,5`` or a single number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FORM = "a number, numbers with commas (100,1000), or LOW:HIGH:COUNT[:log] (0.5:8:64:log)"


def parsed(text: str, name: str, *, whole: bool = False) -> Any:
    """Returns the number, or the values (n,), that ``text`` says; ``name`` is for the message of the ValueError.

    Where ``whole``, the values of a range are rounded to whole numbers, each kept once.

    >>> parsed("1:100:3:log", "noise_multiplier").tolist()
    [1.0, 10.0, 100.0]
    >>> parsed("1e-5", "delta"), parsed("100,1000", "steps").tolist()
    (1e-05, [100.0, 1000.0])
    """
    try:
        if ":" not in text:
            numbers = [float(part) for part in text.split(",")]
            return numbers[0] if "," not in text else np.array(numbers)
        low, high, count, *scale = text.split(":")
        first, last, points = float(low), float(high), int(count)
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not understood: give {FORM}.") from None
    is_log = scale == ["log"]
    if scale and not is_log:
        raise ValueError(f"{name} = {text!r}: {':'.join(scale)!r} is no scale: give {FORM}.")
    if points < 2 or not (math.isfinite(first) and math.isfinite(last) and first < last):
        raise ValueError(f"{name} = {text!r}: a range rises, over at least 2 values: give {FORM}.")
    if is_log and first <= 0:
        raise ValueError(f"{name} = {text!r}: a logarithmic range begins above 0: raise its low end or leave out :log.")
    values = np.geomspace(first, last, points) if is_log else np.linspace(first, last, points)
    return np.unique(np.round(values)) if whole else values
