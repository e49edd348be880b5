"""Augmentation multiplicity on MNIST at (3, 1e-5): accuracy with views of an example and without, at an equal budget.

    python -m bench views --data-dir DIR [--views 8] [--runs 3] [--json FILE]

Three arms that differ in the views only: the example as it is, one shifted view of it, and the mean gradient over so
many of them (De et al. 2022, section 3.2). Noise, rate, steps, clipping, learning rate and seeds are the same, so all
have the same guarantee. The network is the library's recipe for MNIST.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bench import report
from bench.timing import clock
from jaxacct.train import DPTrainer, accuracy, cross_entropy
from jaxacct_recipes import RECIPES, load

EPSILON, DELTA = 3.0, 1e-5
BATCH, STEPS, MICROBATCH = 512, 120, 64
SHIFT = 2
"""Pixels that a view is moved by at most, in either direction, with zeros at the border."""


def shifted(key: jax.Array, example: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns a randomly shifted view of an image, and its label."""
    image, label = example
    padded = jnp.pad(image, [(SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)])
    down, across = jax.random.randint(key, (2,), 0, 2 * SHIFT + 1)
    return jax.lax.dynamic_slice(padded, (down, across, 0), image.shape), label


def run(dataset: Any, augment: Any, views: int, seed: int) -> tuple[float, float, DPTrainer]:
    """Returns the test accuracy, the processor seconds and the trainer."""
    recipe = RECIPES["mnist"]
    started = clock()
    trainer = DPTrainer(
        recipe.module(dataset.train_inputs.shape[1:], dataset.num_classes, nnx.Rngs(seed)),
        cross_entropy,
        recipe.optimizer(recipe.learning_rate, STEPS),
        (dataset.train_inputs, dataset.train_labels),
        epsilon=EPSILON,
        delta=DELTA,
        steps=STEPS,
        expected_batch_size=BATCH,
        clip_norm=recipe.clip_norm,
        microbatch_size=MICROBATCH,
        augment=augment,
        views=views,
        seed=seed,
    )
    trainer.fit(every=STEPS)
    reached = accuracy(trainer.model, dataset.test_inputs, dataset.test_labels)
    return reached, clock() - started, trainer


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3, help="seeds, from 0 on")
    arguments = parser.parse_args()
    dataset = load("mnist", arguments.data_dir / "mnist")
    arms = {
        "as it is": (None, 1),
        "one view": (shifted, 1),
        f"{arguments.views} views": (shifted, arguments.views),
    }
    found: dict[str, Any] = {}
    trainer = None
    for name, (augment, views) in arms.items():
        accuracies, seconds = [], []
        for seed in range(arguments.runs):
            reached, used, trainer = run(dataset, augment, views, seed)
            accuracies.append(reached)
            seconds.append(used)
            print(f"{name}, seed {seed}: {reached:.4f}, {used:.0f} s of processor", flush=True)
        found[name] = {
            "mean": statistics.fmean(accuracies),
            "accuracies": accuracies,
            "cpu_seconds_of_a_run": statistics.median(seconds),
        }
        print(f"{name}: {found[name]['mean']:.4f}", flush=True)
    assert trainer is not None
    plan = trainer.plan
    numbers = {
        "arms": found,
        "epsilon": {"lower": plan.certified.lower, "upper": plan.certified.upper},
        "delta": DELTA,
        "noise_multiplier": plan.noise_multiplier,
        "steps": STEPS,
        "batch_size": BATCH,
        "shift": SHIFT,
    }
    report.write(arguments.json, numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
