"""Steps of :mod:`bench.train_step`, one beside the plain one, of its MLP or its CNN on a batch of random images."""

from __future__ import annotations

import time
from typing import Any


def step(name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Returns seconds of the step ``name``, of the plain one, and of the compilation of both."""
    import jax
    from flax import nnx

    from bench import train_step

    params, steps = train_step.steps_of(train_step.MODELS[setting["model"]](nnx.Rngs(0)))
    if name not in steps:
        raise ValueError(f"bench.train_step has no step {name!r}: of {sorted(steps)}")
    arguments = (params, jax.random.key(1), *train_step.batch_of(setting["batch"]))
    chosen = {which: steps[which] for which in ("plain", name)}
    start = time.perf_counter()
    for one in chosen.values():
        jax.block_until_ready(one(*arguments))
    first = time.perf_counter() - start
    taken = train_step.interleaved(chosen, arguments, setting["seconds"])
    return {
        "seconds": taken[name],
        "plain_seconds": taken["plain"],
        "ratio": taken[name] / taken["plain"],
        "first": first,
        "temporary_mib": train_step.temporary_bytes(chosen[name], params, setting["batch"]) / 2**20,
    }
