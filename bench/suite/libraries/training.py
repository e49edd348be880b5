"""Steps of :mod:`bench.studies.train_step`, one beside the plain one, of one of its networks on random examples."""

from __future__ import annotations

import time
from typing import Any


def step(name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Returns seconds of the step ``name``, of the plain one, and of the compilation of both."""
    import jax

    from bench.studies import train_step

    network = train_step.NETWORKS[setting["model"]]
    params, steps = train_step.steps_of(network)
    if name not in steps:
        raise ValueError(f"bench.studies.train_step has no step {name!r}: of {sorted(steps)}")
    chosen = {which: steps[which] for which in ("plain", name)}
    calls = train_step.calls_of(network, params, chosen)
    start = time.perf_counter()
    for call in calls.values():
        jax.block_until_ready(call())
    first = time.perf_counter() - start
    taken = train_step.interleaved(calls, setting["seconds"])
    return {
        "seconds": taken[name],
        "plain_seconds": taken["plain"],
        "ratio": taken[name] / taken["plain"],
        "first": first,
        "temporary_mib": train_step.temporary_bytes(chosen[name], network, params, train_step.BATCH) / 2**20,
    }
