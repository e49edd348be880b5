"""Training with correlated noise beside independent noise: time and memory of a step, and what a model gains.

    python -m bench.correlated_training [--step] [--accuracy] [--seeds 5] [--json FILE]

* ``--step``: CPU seconds of a trainer's step with 16 bands over those with independent noise, the same batches and
  keys; rounds of both in turns on one core, their medians. Memory is of the state, by bytes.
* ``--accuracy``: MNIST at equal certified budgets, by DP-SGD and by correlated noise, with amplification and without.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.networks import NETWORKS, cross_entropy
from jaxacct import factorize, strategies
from jaxacct.train import CyclicPoissonSampler, DPTrainer, RandomAllocationSampler, accuracy, datasets
from jaxacct.train import cross_entropy as class_loss

BANDS, EXAMPLES = 16, 65_536


def trainer_of(network: Any, batch: int, noise: strategies.Strategy | None) -> DPTrainer:
    sampler = CyclicPoissonSampler.for_budget(
        EXAMPLES, BANDS, BANDS * batch / EXAMPLES, epsilon=8.0, delta=1e-5, steps=1000
    )
    data = tuple(network.examples(EXAMPLES))
    return DPTrainer(
        network.make(nnx.Rngs(0)), lambda model, x, y: cross_entropy(model(x), y), optax.sgd(0.1), data, epsilon=8.0,
        delta=1e-5, steps=1000, sampler=sampler, clip_norm=1.0, seed=0, noise=noise,
    )  # fmt: skip


def step_times(name: str, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Returns CPU seconds of a step with each noise, their ratio, and the bytes of the state."""
    network = NETWORKS[name]
    noises = {"independent": None, "correlated": strategies.square_root(BANDS).normalized()}
    trainers = {key: trainer_of(network, batch, noise) for key, noise in noises.items()}
    states = {key: trainer._state for key, trainer in trainers.items()}
    taken: dict[str, list[float]] = {key: [] for key in trainers}
    for turn in range(rounds + 1):
        for key, trainer in trainers.items():
            start = time.process_time()
            state, _ = trainer._run(states[key], trainer._present_curve(), trainer._constants, trainer.data, steps)
            states[key] = jax.block_until_ready(state)
            if turn:
                taken[key].append((time.process_time() - start) / steps)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(states["correlated"].params))
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(states["correlated"].noise))
    medians = {key: statistics.median(values) for key, values in taken.items()}
    ratios = [b / a for a, b in zip(taken["independent"], taken["correlated"], strict=True)]
    return {
        "network": name, "batch": batch, "parameters": parameters, "seconds": medians, "ratio": statistics.median(ratios),
        "bytes kept, over a float64 copy of the parameters": kept / parameters / 8,
    }  # fmt: skip


def main() -> None:
    """Prints each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    record: dict[str, Any] = {}
    if arguments.step:
        record["step"] = []
        for name, batch, steps in (("MLP", 256, 32), ("MLP", 1024, 16), ("MLP", 4096, 4), ):
            record["step"].append(step_times(name, batch, arguments.rounds, steps))
            print(record["step"][-1], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
