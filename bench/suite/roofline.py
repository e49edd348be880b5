"""Our kernels beside what the machine can do: the compiler's own counts of operations and bytes, over measured time.

XLA counts the body of a loop once, whatever the number of turns, and elementary functions apart ("transcendentals"), at
one operation each. So the counts are at least, and so is the share of the roofline; where a kernel is mostly loops (the
mesh) it says little. Peaks are measured here, the best of some runs: a product of 512 x 512 matrices, and 1 MiB read
and written again and again, since what our kernels work on fits a cache.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from bench.timing import measure

DELTA = 1e-5
REPEATS = 5
TRACED = 3
"""Runs under the profiler."""

FFT_EVENT = re.compile(r"(^|[^a-z])i?r?fft([^a-z]|$)", re.IGNORECASE)


def _epsilon(precision: str) -> Callable[..., Any]:
    def one(noise: Any, rate: Any, steps: Any) -> Any:
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        return ja.saddlepoint.epsilon(mechanism, steps, DELTA, arithmetic=precision)

    return jax.vmap(one)


def _settings(size: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    low, high = np.log([0.5, 1e-3, 100]), np.log([8.0, 0.2, 1e5])
    return list(np.exp(generator.uniform(low, high, (size, 3))).T)


def _kernel(name: str, size: int) -> tuple[Callable[..., Any], list[Any], str]:
    """Returns a function to compile, its arguments, and its precision."""
    noise, rate, steps = _settings(size)
    if name.startswith("saddlepoint"):
        precision = "float32" if name.endswith("float32") else "float64"
        return _epsilon(precision), [noise, rate, np.round(steps)], precision
    if name == "renyi":
        orders = ja.rdp.DEFAULT_ORDERS

        def curve(noise: Any, rate: Any) -> Any:
            return ja.rdp.curve(ja.PoissonSubsampledGaussian(noise, rate), orders)

        return jax.vmap(curve), [noise, rate], "float64"
    if name == "mesh":

        def epsilon(noise: Any, rate: Any, steps: Any) -> Any:
            return ja.prv.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, DELTA, points=size)

        return epsilon, [1.0, 0.01, 10_000.0], "float64"
    raise ValueError(f"kernel {name!r} is not one of saddlepoint, saddlepoint float32, renyi, mesh")


def peaks(dtype: Any) -> dict[str, float]:
    """Returns operations and bytes a second that a matrix product and repeated passes over an array reach."""
    side, turns = 512, 100
    matrix, vector = jnp.ones((side, side), dtype), jnp.ones(2**20 // np.dtype(dtype).itemsize, dtype)
    product = jax.jit(lambda a: a @ a)
    # Reversed, so that one turn cannot be merged with the next.
    passes = jax.jit(lambda a: jax.lax.fori_loop(0, turns, lambda _, b: b[::-1] + 1, a))
    return {
        "operations": 2 * side**3 / _best(lambda: product(matrix)),
        "bytes": 2 * vector.nbytes * turns / _best(lambda: passes(vector)),
    }


def _best(call: Callable[[], Any]) -> float:
    return min(measure(call, 1).warm for _ in range(2 * REPEATS))


def fft_share(run: Callable[[], Any]) -> float | None:
    """Returns the share of a run's time in Fourier transforms, by the profiler; None where it names no operations."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            start = time.perf_counter()
            for _ in range(TRACED):
                jax.block_until_ready(run())
            wall = time.perf_counter() - start
        traces = list(Path(folder).rglob("*.trace.json.gz"))
        if not traces:
            return None
        events = json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]
    operations = [e for e in events if e.get("ph") == "X" and "hlo_op" in e.get("args", {})]
    if not operations:
        return None
    transforms = sum(e.get("dur", 0) for e in operations if FFT_EVENT.search(e["args"]["hlo_op"]))
    return transforms * 1e-6 / wall


def measured(name: str, size: int) -> dict[str, Any]:
    function, arguments, precision = _kernel(name, size)
    wide = precision == "float64"
    with jax.enable_x64(wide):
        placed = [jnp.asarray(argument, jnp.float64 if wide else jnp.float32) for argument in arguments]
        start = time.perf_counter()
        compiled = jax.jit(function).lower(*placed).compile()
        compilation = time.perf_counter() - start
        seconds = measure(lambda: compiled(*placed), REPEATS).warm
        counts = compiled.cost_analysis() or {}
        limits = peaks(jnp.float64 if wide else jnp.float32)
        text = compiled.as_text()
        # Without a transform there is nothing to trace, and loops of small operations make gigabytes of events.
        share = fft_share(lambda: compiled(*placed)) if " fft(" in text else 0.0
    flops = float(counts.get("flops", 0)) + float(counts.get("transcendentals", 0))
    moved = float(counts.get("bytes accessed", 0))
    bound = max(flops / limits["operations"], moved / limits["bytes"])
    return {
        "kernel": name,
        "size": size,
        "precision": precision,
        "run_seconds": seconds,
        "compile_seconds": compilation,
        "counted_operations": flops,
        "counted_bytes": moved,
        "operations_a_second": flops / seconds,
        "bytes_a_second": moved / seconds,
        "peak_operations_a_second": limits["operations"],
        "peak_bytes_a_second": limits["bytes"],
        "roofline_share_at_least": bound / seconds,
        "loops": len(re.findall(r"= .* while\(", text)),
        "fft_share": share,
        "temporary_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20,
    }
