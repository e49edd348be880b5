"""Integer noise: samples a second on one core, and the law of very many draws beside the Gaussian's.

Run: python -m bench.studies.integer_noise --samples 1000000000 --json bench/results/integer_noise.json

Not a test: tests/train/test_integer_noise.py asks the same of fewer draws. Figures are in standard errors, or
probabilities that a right law gives as much: small ones have to be looked at, of a few dozen one is below 0.02.
"""

from __future__ import annotations

import functools
import math
import os
import secrets
import time
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("NPROC", "1")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bench import report
from jaxacct.train.integer_noise import COARSE, VARIANCES, noise_of_leaves

CHUNK = 2**22
"""Entries that are drawn in one call: a step's, of a model of four million parameters."""

CELLS, REACH = 2**13, 8
"""Cells of the histogram, and deviations that they reach out to on either side; the last ones take what is beyond."""

TARGETS = {2: 20.0, 3: 12.0}
"""Million samples a second of one core that a step should have."""


def key_of(words: np.ndarray, step: int) -> jax.Array:
    """Returns a key for a step, from words of entropy: another one for each."""
    return jnp.asarray(np.append(words[:7], step), jnp.uint32)


def speed(draws: int) -> float:
    """Returns the best million samples a second of several calls, in CPU time of the process."""
    times = []
    for step in range(6):
        key = key_of(np.zeros(8, np.uint32), step)
        start = time.process_time()
        jax.block_until_ready(noise_of_leaves(key, ((CHUNK,),), draws))
        times.append(time.process_time() - start)
    return CHUNK / min(times[1:]) / 1e6


@functools.partial(jax.jit, static_argnums=(1, 2))
def statistics(z: jax.Array, deviation: float, modulus: int) -> dict[str, jax.Array]:
    """Returns counts and sums of one call's draws."""
    u = z / deviation
    cell = jnp.clip(jnp.floor((u / REACH + 1) * (CELLS / 2)), 0, CELLS - 1).astype(jnp.int32)
    lanes = u.reshape(-1, 8, 8)
    found = {
        "cells": jnp.zeros(CELLS, jnp.int32).at[cell].add(1),
        "digits": jnp.zeros(modulus, jnp.int32).at[jnp.mod(z, modulus)].add(1),
        "moments": jnp.stack([jnp.mean(u**power) for power in (1, 2, 3, 4)]),
        "lags": jnp.stack([jnp.mean(u[lag:] * u[:-lag]) for lag in (1, 2, 4, 8, 64, 512)]),
    }
    for name, of in (("values", lanes), ("squares", lanes**2 - 1), ("parities", 1.0 - 2 * (z.reshape(-1, 8, 8) & 1))):
        for axis, slot in ((1, "groups"), (2, "entries")):
            rows = jnp.moveaxis(of, axis, 0).reshape(8, -1)
            found[f"{name} of {slot}"] = rows @ rows.T / rows.shape[1]
    return found


def law(draws: int, samples: int, words: np.ndarray) -> dict[str, Any]:
    """Returns how so many samples differ from the law that is claimed."""
    deviation, calls = math.sqrt(VARIANCES[draws]), -(-samples // CHUNK)
    total: dict[str, Any] = {}
    with jax.enable_x64(True):
        for step in range(calls):
            (z,) = noise_of_leaves(key_of(words, step), ((CHUNK,),), draws)
            for name, value in statistics(z, deviation, COARSE).items():
                total[name] = total.get(name, 0) + np.asarray(
                    value, np.float64 if value.dtype != jnp.int32 else np.int64
                )
    n = calls * CHUNK
    # z falls below an edge where z <= ceil(edge) - 1: the sum up to a half integer is the integral's, to 1e-13.
    edges = np.ceil(np.linspace(-REACH, REACH, CELLS + 1)[1:-1] * deviation) - 0.5
    below = stats.norm.cdf(edges / deviation)
    counts = total["cells"]
    # Neighbouring cells are put together until 50 draws are expected in each.
    groups = np.searchsorted(below * n // 50, np.unique(below * n // 50))
    ends = np.r_[0, groups[1:-1], len(counts)]
    expected = np.diff(np.r_[0.0, below[ends[1:-1] - 1], 1.0]) * n
    seen = np.add.reduceat(counts, ends[:-1])
    found: dict[str, Any] = {
        "draws": draws, "samples": n,
        "cells, p": float(stats.chisquare(seen, expected).pvalue),
        "Kolmogorov-Smirnov, p": float(stats.kstwobign.sf(np.abs(np.cumsum(counts)[:-1] / n - below).max() * n**0.5)),
        "last digit, p": float(stats.chisquare(total["digits"]).pvalue),
    }  # fmt: skip
    means, variances = np.array([0.0, 1.0, 0.0, 3.0]), np.array([1.0, 2.0, 15.0, 96.0])
    found["moments, s.e."] = ((total["moments"] / calls - means) / np.sqrt(variances / n)).round(2).tolist()
    found["lags 1, 2, 4, 8, 64, 512, s.e."] = (total["lags"] / calls * n**0.5).round(2).tolist()
    for name, value in total.items():
        if " of " in name:
            scale = 2.0 if name.startswith("squares") else 1.0
            off = (value / calls)[~np.eye(8, dtype=bool)] / scale * (n / 8) ** 0.5
            found[f"largest of 28, {name}, s.e."] = round(float(np.abs(off).max()), 2)
    return found


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--samples", type=int, default=10**7, help="draws of either kind")
    options = parser.parse_args()
    words = np.frombuffer(secrets.token_bytes(32), np.uint32)
    numbers: dict[str, Any] = {"speed": {}, "law": []}
    for draws, target in TARGETS.items():
        numbers["speed"][str(draws)] = round(speed(draws), 2)
        print(f"{draws} draws: {numbers['speed'][str(draws)]} million samples a second on one core (target {target})")
    for draws in TARGETS:
        numbers["law"].append(law(draws, options.samples, words))
        for name, value in numbers["law"][-1].items():
            print(f"  {name}: {value}", flush=True)
    report.write(options.json, numbers)


if __name__ == "__main__":
    main()
