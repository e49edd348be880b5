"""Shuffled batches beside Poisson samples and balls in bins, at equal certified budgets: noise, time, and accuracy.

    python -m bench.studies.shuffled_training [FOLDER_OF_MNIST] [--passes N ...] [--json FILE]

Logistic regression on MNIST; the learning rate of each way of sampling is the best of four in a run of another seed.
Budgets are of an example that is added or removed for the first two, whose pairs are also those of one that is
replaced by nothing, which shuffled batches are accounted for. ``bracket`` has the bounds on the run's epsilon: that of
shuffled batches is not tight.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax

from bench import report
from bench.studies.correlated_training import measure
from jaxacct.train import PlannedRun, RandomAllocationSampler, ShuffledSampler
from jaxacct_recipes import load

DELTA, SETTINGS = 1e-5, ((1.0, 600), (3.0, 600), (8.0, 600))
"""Delta, and for each setting the epsilon and the size of batches."""


def samplings(size: int, batch: int, steps: int, epsilon: float) -> dict[str, dict[str, Any]]:
    """Returns the ways of drawing batches, by name: what a trainer is given."""
    bins = RandomAllocationSampler.for_budget(size, size // batch, epsilon=epsilon, delta=DELTA, steps=steps)
    return {
        "Poisson": {"expected_batch_size": batch},
        "balls in bins": {"sampler": bins},
        "shuffled": {"sampler": ShuffledSampler(size, batch)},
    }


def planned(options: dict[str, Any], size: int, steps: int, epsilon: float) -> dict[str, Any]:
    """Returns how long planning took, the bracket of the plan, and how long a batch takes to be drawn."""
    began = time.perf_counter()
    plan = PlannedRun(epsilon=epsilon, delta=DELTA, steps=steps, **options).resolve(size).plan
    seconds = time.perf_counter() - began
    assert plan is not None
    sample, key, times = jax.jit(plan.sampler.sample), jax.random.key(0), []
    for step in range(steps):
        began = time.perf_counter()
        jax.block_until_ready(sample(key, step))
        times.append(time.perf_counter() - began)
    bracket = [float(plan.certified.lower), float(plan.certified.upper)]
    return {"planned in": seconds, "bracket": bracket, "drawn in": sorted(times)[len(times) // 2]}


def main() -> None:
    """Prints each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data/mnist"))
    parser.add_argument("--passes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    digits, found = load("mnist", arguments.folder), []
    size = len(digits.train_inputs)
    for passes in arguments.passes:
        for epsilon, batch in SETTINGS:
            steps = passes * (size // batch)
            for name, options in samplings(size, batch, steps, epsilon).items():
                found.append(
                    {"epsilon": epsilon, "passes": passes, "batch": batch, "run": name}
                    | planned(options, size, steps, epsilon)
                    | measure(digits, options, epsilon, DELTA, steps)
                )
                print(found[-1], flush=True)
    report.write(arguments.json, {"accuracy": found})


if __name__ == "__main__":
    main()
