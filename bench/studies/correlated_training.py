"""Training with correlated noise beside independent noise: time and memory of a step, and what a model gains.

    python -m bench.studies.correlated_training [--step] [--accuracy FOLDER_OF_MNIST] [--json FILE]

* ``--step``: CPU seconds of a trainer's step with 16 bands over those with independent noise, the same batches and
  keys; rounds of both in turns on one core, their medians. Memory is of the state, by bytes.
* ``--accuracy``: logistic regression on MNIST at equal certified budgets, by independent and by correlated noise, with
  amplification and without; the learning rate of each is the best of four in a run of another seed.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import argparse
import dataclasses
import math
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bench import report
from bench.studies.networks import NETWORKS, cross_entropy
from jaxacct import factorize, strategies
from jaxacct.train import CyclicPoissonSampler, DPTrainer, accuracy, run_key
from jaxacct.train import cross_entropy as class_loss
from jaxacct_recipes import Linear, load

BANDS, EXAMPLES = 16, 65_536

DELTA, SEEDS, RATES = 1e-6, 5, (1.0, 2.0, 4.0, 8.0)
STUDENT = 2.776
"""Quantile of Student's law at 97.5 % with 4 degrees of freedom."""


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
            run = trainer._compile(trainer.program.run)
            state, _ = run(states[key], trainer._present_curve(), trainer._constants, trainer.data, steps)
            states[key] = jax.block_until_ready(state)
            if turn:
                taken[key].append((time.process_time() - start) / steps)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(states["correlated"].params))
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(states["correlated"].noise))
    medians = {key: statistics.median(values) for key, values in taken.items()}
    ratios = [b / a for a, b in zip(taken["independent"], taken["correlated"], strict=True)]
    return {
        "network": name, "batch": batch, "parameters": parameters, "seconds": medians,
        "ratio": statistics.median(ratios),
        "bytes kept, over a float64 copy of the parameters": kept / parameters / 8,
    }  # fmt: skip


def runs_of(size: int, batch: int, passes: int, epsilon: float) -> dict[str, dict[str, Any]]:
    """Returns how a budget may be spent on so many passes, by name: noise and sampler of a trainer."""
    groups, steps, rate = size // batch, passes * (size // batch), batch / size
    single = strategies.FixedEpochs(groups, passes) if passes > 1 else strategies.SinglePass(steps)
    amplified = factorize.best_bands(steps, rate, epsilon, DELTA, bands=(2, 4, 8, 16, 32))[0]
    order = CyclicPoissonSampler.for_budget(size, groups, 1.0, epsilon=epsilon, delta=DELTA, steps=steps)
    buffered = factorize.buffered_toeplitz(3, single)
    return {
        "amplified, independent (DP-SGD)": {"expected_batch_size": batch},
        f"amplified, {amplified.participation.groups} bands": {
            "noise": amplified.strategy, "expected_batch_size": batch,
        },
        "in order, independent": {"sampler": order},
        "in order, 3 buffers": {"sampler": order, "noise": buffered},
        "in order, tree": {"sampler": order, "noise": strategies.HonakerTree(steps)},
    }  # fmt: skip


def measure(digits: Any, options: dict[str, Any], epsilon: float, delta: float, steps: int) -> dict[str, Any]:
    """Returns the accuracy, with a 95 % interval over seeds, of a logistic regression whose trainer has the options.

    The learning rate is the best of ``RATES`` in a run of another seed; only it and the key differ between runs.
    """
    trainer = DPTrainer(
        Linear(digits.train_inputs.shape[1:], digits.num_classes, rngs=nnx.Rngs(0)), class_loss,
        optax.inject_hyperparams(optax.sgd)(learning_rate=1.0), (digits.train_inputs, digits.train_labels),
        epsilon=epsilon, delta=delta, steps=steps, clip_norm=1.0, microbatch_size=256, seed=0, **options,
    )  # fmt: skip
    start, curve = trainer.state, trainer._present_curve()

    def reached(rate: float, seed: int) -> float:
        rates = start.opt_state.hyperparams | {"learning_rate": jnp.float32(rate)}
        begun = dataclasses.replace(start, key=run_key(seed), opt_state=start.opt_state._replace(hyperparams=rates))
        run = trainer._compile(trainer.program.run)
        state, refused = run(begun, curve, trainer._constants, trainer.data, steps)
        assert int(state.step) == steps
        assert not refused
        model = nnx.merge(trainer._graph, state.params, trainer._constants)
        return accuracy(model, digits.test_inputs, digits.test_labels)

    best = max(RATES, key=lambda rate: reached(rate, 100))
    values = [reached(best, seed) for seed in range(SEEDS)]
    assert trainer.plan is not None
    return {
        "rate": best, "certified": float(trainer.plan.certified.upper), "noise": trainer.noise_multiplier,
        "accuracy": statistics.mean(values), "within": STUDENT * statistics.stdev(values) / math.sqrt(SEEDS),
    }  # fmt: skip


def accuracies(folder: Path) -> list[dict[str, Any]]:
    """Returns test accuracies with 95 % intervals over seeds."""
    digits = load("mnist", folder)
    size, found = len(digits.train_inputs), []
    for epsilon, passes, batch in ((1.0, 1, 500), (8.0, 1, 500), (1.0, 8, 1000), (8.0, 8, 1000)):
        for name, options in runs_of(size, batch, passes, epsilon).items():
            measured = measure(digits, options, epsilon, DELTA, passes * (size // batch))
            found.append({"epsilon": epsilon, "passes": passes, "batch": batch, "run": name} | measured)
            print(found[-1], flush=True)
    return found


def main() -> None:
    """Prints each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--accuracy", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    record: dict[str, Any] = {}
    if arguments.step:
        record["step"] = []
        for name, batch, steps in (("MLP", 256, 32), ("MLP", 1024, 16), ("MLP", 4096, 4), ("transformer", 256, 2)):
            record["step"].append(step_times(name, batch, arguments.rounds, steps))
            print(record["step"][-1], flush=True)
    if arguments.accuracy:
        record["accuracy"] = accuracies(arguments.accuracy)
    report.write(arguments.json, record)


if __name__ == "__main__":
    main()
