"""Policies against one another at an equal certified budget: what adapting gains, and what its ledger costs.

    python -m bench.studies.adaptive digits adult mnist [--data-dir DIR] [--runs N] [--epsilon E] [--choose]

Constant noise, paid for by a plan, against three policies, each paid for by a Rényi filter and by a menu: noise that
falls by a schedule, Lécuyer's adaptive noise, and his adaptive batch size. All runs of a data set share model, expected
batch size (the largest of the adaptive one's), optimizer, clipping norm and learning rate; a seed gives each policy the
same first parameters. The plan's noise s is the middle of the others' range, .8 s to 1.2 s. Adaptive runs pay for noisy
counts of correct training examples, and each run ends where its ledger refuses the next step. A schedule is as long
as its ledger pays for at noise s.

Learning rate and epochs were chosen for constant noise, the rate for each budget, with ``--choose``, which holds a part
of the training examples out and looks at no test example; that choice is not paid for. Not a test: it takes minutes,
writes bench/results/adaptive.json after each seed, and exits 0 whichever wins.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxacct as ja
from jaxacct.policies import AdaptiveBatchSize, AdaptiveNoise, Policy, Schedule
from jaxacct.train import DPTrainer, accuracy, cross_entropy
from jaxacct.train.report import write_report
from jaxacct_recipes import MLP, Dataset, Linear, load

RESULT = pathlib.Path(__file__).parents[1] / "results" / "adaptive.json"
DELTA, CLIP_NORM = 1e-5, 1.0
LEVELS = (1.2, 1.1, 1.0, 0.9, 0.8)
"""Noise of the schedule and of the adaptive policy, in units of the plan's."""

HELD_OUT = 5
"""One example in so many, for ``--choose``."""


class Task(NamedTuple):
    """A data set with what was chosen for it."""

    model: Callable[..., nnx.Module]
    batch: int
    epochs: float
    learning_rates: dict[float, float]
    """By epsilon."""
    period: int
    """Steps between counts."""
    query_noise: float


TASKS = {
    "digits": Task(lambda *shape, rngs: Linear(*shape, center=0.3, rngs=rngs), 512, 40, {3.0: 4.0, 1.0: 2.0}, 10, 40.0),
    "adult": Task(Linear, 512, 10, {3.0: 4.0, 1.0: 4.0}, 64, 100.0),
    "mnist": Task(lambda *shape, rngs: MLP(*shape, width=32, rngs=rngs), 512, 20, {3.0: 2.0}, 117, 100.0),
}


class Contender(NamedTuple):
    """A policy and what pays for it."""

    policy: str
    ledger: str


CONTENDERS = (
    Contender("constant", "planned"),
    *(Contender(policy, ledger) for policy in ("schedule", "noise", "batch") for ledger in ("filter", "menu")),
)


def correct(model: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    return jnp.argmax(model(image)) == label


def chosen(name: str, policy: str, noise: float, size: int, steps: int) -> Policy:
    """Returns a policy around the plan's noise; ``steps`` is the length of a schedule."""
    task = TASKS[name]
    rate, asking = task.batch / size, {"period": task.period, "query_noise": task.query_noise}
    if policy == "noise":
        levels = {"increment": 0.1 * noise, "least": LEVELS[-1] * noise, "most": LEVELS[0] * noise}
        return AdaptiveNoise(sampling_rate=rate, initial=noise, **levels, **asking)
    if policy == "batch":
        sizes = {"initial": task.batch, "increment": task.batch / 4, "least": task.batch / 2, "most": task.batch}
        return AdaptiveBatchSize(noise_multiplier=noise, num_examples=size, **sizes, **asking)
    table = jnp.asarray([level * noise for level in LEVELS], jnp.float32)
    return Schedule(lambda step: table[jnp.clip(step * len(LEVELS) // steps, 0, len(LEVELS) - 1)], rate)


def trainer_of(name: str, data: Dataset, seed: int, epsilon: float, **options: Any) -> DPTrainer:
    shape = data.train_inputs.shape[1:], data.num_classes
    return DPTrainer(
        TASKS[name].model(*shape, rngs=nnx.Rngs(seed)),
        cross_entropy,
        optax.sgd(options.pop("learning_rate", None) or TASKS[name].learning_rates[epsilon]),
        (data.train_inputs, data.train_labels),
        epsilon=epsilon,
        delta=DELTA,
        clip_norm=CLIP_NORM,
        seed=seed,
        **options,
    )


def planned(name: str, data: Dataset, epsilon: float, seed: int = 0, epochs: float = 0, **options: Any) -> DPTrainer:
    epochs = epochs or TASKS[name].epochs
    return trainer_of(name, data, seed, epsilon, epochs=epochs, expected_batch_size=TASKS[name].batch, **options)


def lengths(name: str, size: int, noise: float, epsilon: float) -> dict[str, int]:
    """Returns how many steps of the plan's noise each ledger pays for, beside the other levels."""
    steps = [ja.PoissonSubsampledGaussian(level * noise, TASKS[name].batch / size) for level in LEVELS]
    middle = steps[LEVELS.index(1.0)]
    menu = ja.filters.MenuFilter(epsilon, DELTA, steps)
    return {
        "filter": int(ja.filters.RenyiFilter(epsilon, DELTA).remaining(middle)),
        "menu": int(menu.remaining(middle)),
    }


def run_once(
    name: str, data: Dataset, contender: Contender, seed: int, plan: DPTrainer, length: dict[str, int]
) -> dict[str, Any]:
    size, noise, epsilon = len(data.train_labels), plan.noise_multiplier, plan.epsilon
    if contender.ledger == "planned":
        trainer = planned(name, data, epsilon, seed)
    else:
        policy = chosen(name, contender.policy, noise, size, length[contender.ledger])
        menu: Any = ()
        if contender == ("schedule", "menu"):  # a function of the step does not say what it chooses among
            menu = [ja.PoissonSubsampledGaussian(level * noise, TASKS[name].batch / size) for level in LEVELS]
        trainer = trainer_of(
            name, data, seed, epsilon, ledger=contender.ledger, menu=menu, policy=policy,
            correct=correct if policy.query is not None else None,
        )  # fmt: skip
    started = time.process_time()
    trainer.fit(every=10**6)
    return {
        "dataset": name,
        "epsilon": epsilon,
        **contender._asdict(),
        "seed": seed,
        "steps": trainer.steps,
        "last_noise_multiplier": trainer.noise_multiplier,
        "test_accuracy": accuracy(trainer.model, data.test_inputs, data.test_labels),
        "process_seconds": round(time.process_time() - started, 1),
    }


def rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns mean and standard error for each contender, and of its difference from constant noise, seed by seed."""
    found = []
    for key in dict.fromkeys((run["dataset"], run["epsilon"], run["policy"], run["ledger"]) for run in runs):
        mine = [run for run in runs if (run["dataset"], run["epsilon"], run["policy"], run["ledger"]) == key]
        base = {run["seed"]: run["test_accuracy"] for run in runs
                if (run["dataset"], run["epsilon"], run["policy"]) == (*key[:2], "constant")}  # fmt: skip
        gains = [run["test_accuracy"] - base[run["seed"]] for run in mine]
        reached = [run["test_accuracy"] for run in mine]
        found.append({
            **dict(zip(("dataset", "epsilon", "policy", "ledger"), key, strict=True)),
            "runs": len(mine),
            "mean_steps": statistics.fmean(run["steps"] for run in mine),
            "mean_test_accuracy": statistics.fmean(reached),
            "standard_error": error(reached),
            "gain": statistics.fmean(gains),
            "gain_standard_error": error(gains),
        })  # fmt: skip
    return found


def error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def choose(name: str, data: Dataset, epsilon: float, runs: int) -> None:
    """Prints accuracies of constant noise on examples held out of the training part."""
    cut = len(data.train_labels) // HELD_OUT
    part = dataclasses.replace(
        data,
        train_inputs=data.train_inputs[cut:], train_labels=data.train_labels[cut:],
        test_inputs=data.train_inputs[:cut], test_labels=data.train_labels[:cut],
    )  # fmt: skip
    task = TASKS[name]
    for epochs in (task.epochs / 2, task.epochs):
        usual = task.learning_rates.get(epsilon, 2.0)
        for rate in (usual / 2, usual, 2 * usual):
            reached = []
            for seed in range(1000, 1000 + runs):
                trainer = planned(name, part, epsilon, seed, epochs, learning_rate=rate)
                trainer.fit(every=10**6)
                reached.append(accuracy(trainer.model, part.test_inputs, part.test_labels))
            print(f"{name}: {epochs:g} epochs, rate {rate:g}: {statistics.fmean(reached):.4f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+", choices=TASKS)
    parser.add_argument("--data-dir", type=pathlib.Path, help="with a folder for each data set that has files")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--choose", action="store_true")
    arguments = parser.parse_args()
    untried = [name for name in arguments.datasets if arguments.epsilon not in TASKS[name].learning_rates]
    if untried and not arguments.choose:
        parser.error(
            f"no learning rate was chosen for {untried} at epsilon = {arguments.epsilon:g}: --choose shows some"
        )
    written = json.loads(RESULT.read_text()) if RESULT.exists() else {"settings": {}, "runs": []}
    kept: dict[str, Any] = {part: written[part] for part in ("settings", "runs")}
    for name in arguments.datasets:
        data = load(name, arguments.data_dir / name if arguments.data_dir else None)
        if arguments.choose:
            choose(name, data, arguments.epsilon, arguments.runs)
            continue
        plan = planned(name, data, arguments.epsilon)
        length = lengths(name, len(data.train_labels), plan.noise_multiplier, arguments.epsilon)
        kept["runs"] = [run for run in kept["runs"] if (run["dataset"], run["epsilon"]) != (name, arguments.epsilon)]
        kept["settings"][f"{name} at {arguments.epsilon:g}"] = {
            **{key: value for key, value in TASKS[name]._asdict().items() if key not in ("model", "learning_rates")},
            "learning_rate": TASKS[name].learning_rates[arguments.epsilon],
            "model": type(plan.model).__name__,
            "noise_multiplier": plan.noise_multiplier,
            "planned_steps": plan.plan.steps if plan.plan is not None else None,
            "steps_at_that_noise": length,
        }
        for seed in range(arguments.runs):
            for contender in CONTENDERS:
                kept["runs"].append(run_once(name, data, contender, seed, plan, length))
                print(kept["runs"][-1], flush=True)
            whole = {"delta": DELTA, "clip_norm": CLIP_NORM, "levels": LEVELS, "rows": rows(kept["runs"]), **kept}
            write_report({**whole, "device": jax.devices()[0].device_kind}, RESULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
