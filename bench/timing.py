"""The measurement of times: after a warm-up, medians, results waited for, compilation apart."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


def clock() -> float:
    """Returns processor time, which other processes do not lengthen; or the time of day where another device works."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


class Timing(NamedTuple):
    first: float
    """Seconds of the first call, compilation included."""
    warm: float
    """Median seconds of the calls after it."""
    result: Any


def measure(call: Callable[[], Any], repeats: int = 7) -> Timing:
    def once() -> tuple[float, Any]:
        start = time.perf_counter()
        result = jax.block_until_ready(call())
        return time.perf_counter() - start, result

    first, result = once()
    return Timing(first, statistics.median(once()[0] for _ in range(repeats)), result)
