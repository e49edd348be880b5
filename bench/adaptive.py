"""Lécuyer's adaptive noise against constant noise at an equal budget: MNIST at (3, 1e-5), the same seeds for both.

    python bench/adaptive.py --data-dir DIR [--runs N] [--seed S]

Not a test: a run takes minutes. Both start from the same noise, rate, first parameters and optimizer, whose rate is
constant as the adaptive run's length is not known beforehand. Each stops where its Rényi filter refuses the next
step. The adaptive one pays for a noisy count of correct training examples after every expected pass over the data.
Writes bench/results/adaptive_noise.json after each pair of runs. Whichever wins, it exits 0: this is a measurement.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxacct.policies import AdaptiveNoise, Constant, Policy
from jaxacct.train import DPTrainer, accuracy, certified_epsilon, load
from jaxacct.train.models import MLP, cross_entropy
from jaxacct.train.report import write_report

RESULT = pathlib.Path(__file__).parent / "results" / "adaptive_noise.json"
EPSILON, DELTA, BATCH, WIDTH, CLIP_NORM, LEARNING_RATE = 3.0, 1e-5, 512, 128, 1.0, 0.5
INITIAL, INCREMENT, LEAST, MOST, QUERY_NOISE = 1.0, 0.05, 0.8, 2.0, 100.0
"""The noise starts where the constant one stays; steps between levels as fine as the source's relative to its noise."""


def correct(model: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    return jnp.argmax(model(image)) == label


def policies(rate: float) -> dict[str, Policy]:
    adaptive = AdaptiveNoise(
        sampling_rate=rate, initial=INITIAL, increment=INCREMENT, least=LEAST, most=MOST, period=round(1 / rate),
        query_noise=QUERY_NOISE,
    )  # fmt: skip
    return {"constant": Constant(INITIAL, rate), "adaptive": adaptive}


def run_once(name: str, dataset: Any, seed: int) -> dict[str, Any]:
    rate = BATCH / len(dataset.train_labels)
    policy = policies(rate)[name]
    trainer = DPTrainer(
        MLP(dataset.train_inputs.shape[1:], dataset.num_classes, width=WIDTH, rngs=nnx.Rngs(seed)),
        cross_entropy,
        optax.sgd(LEARNING_RATE),
        (dataset.train_inputs, dataset.train_labels),
        epsilon=EPSILON,
        delta=DELTA,
        policy=policy,
        clip_norm=CLIP_NORM,
        correct=correct if policy.query is not None else None,
        ghost=True,
        seed=seed,
    )
    history: list[dict[str, Any]] = []

    def show(entry: Any) -> None:
        history.append({**entry._asdict(), "next_noise_multiplier": trainer.noise_multiplier})
        print(name, seed, history[-1], flush=True)

    started = time.process_time()
    trainer.fit(
        every=round(1 / rate),
        evaluate=lambda model: accuracy(model, dataset.test_inputs, dataset.test_labels),
        on_evaluation=show,
    )
    planned = trainer.stopping_was_planned
    return {
        "policy": name,
        "seed": seed,
        "steps": trainer.steps,
        "test_accuracy": history[-1]["accuracy"],
        "epsilon_ledger": trainer.spent_epsilon,
        "epsilon_certified": float(certified_epsilon(trainer).upper) if planned else None,
        "process_seconds": round(time.process_time() - started, 1),
        "history": history,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    reached = {
        name: [run["test_accuracy"] for run in runs if run["policy"] == name] for name in ("constant", "adaptive")
    }
    means = {name: statistics.fmean(values) for name, values in reached.items()}
    return {
        "dataset": "mnist",
        "model": f"MLP 784-{WIDTH}-10, tanh",
        "budget": {"epsilon": EPSILON, "delta": DELTA},
        "settings": {
            "expected_batch_size": BATCH,
            "clip_norm": CLIP_NORM,
            "optimizer": f"sgd, constant rate {LEARNING_RATE}",
            "initial": INITIAL,
            "increment": INCREMENT,
            "least": LEAST,
            "most": MOST,
            "query_noise": QUERY_NOISE,
        },
        "source": 'Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy", 5.1',
        "mean_test_accuracy": means,
        "adaptive_minus_constant": means["adaptive"] - means["constant"],
        "device": jax.devices()[0].device_kind,
        "runs": runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first pair; the others count on from it")
    arguments = parser.parse_args()
    dataset = load("mnist", arguments.data_dir)
    runs: list[dict[str, Any]] = []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        runs += [run_once(name, dataset, seed) for name in ("constant", "adaptive")]
        write_report(summary(runs), RESULT)
    for name, mean in summary(runs)["mean_test_accuracy"].items():
        print(f"{name}: test accuracy {mean:.4f}, mean of {arguments.runs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
