"""MNIST by DP-SGD at (3, 1e-5): the accuracy reached, the wall time, the epsilon certified. Exits 1 below 0.95.

    python -m bench.studies.train_mnist --data-dir DIR [--seed N]

Not a test: it takes minutes. One warm-up is not needed, since the time of a run includes its compilation.
"""

from __future__ import annotations

import argparse
import sys
import time

from jaxacct.train import accuracy, certified_epsilon
from jaxacct_recipes import load, make_trainer

EPSILON, DELTA, WANTED = 3.0, 1e-5, 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    dataset = load("mnist", arguments.data_dir)
    started = time.perf_counter()
    trainer, steps = make_trainer(dataset, epsilon=EPSILON, delta=DELTA, seed=arguments.seed)
    trainer.fit(
        steps,
        every=50,
        evaluate=lambda model: accuracy(model, dataset.test_inputs, dataset.test_labels),
        on_evaluation=lambda entry: print(
            f"{time.perf_counter() - started:6.1f} s  step {entry.step:4d}  accuracy {entry.accuracy:.4f}  "
            f"epsilon {entry.epsilon:.3f} (Rényi)",
            flush=True,
        ),
    )
    reached = accuracy(trainer.model, dataset.test_inputs, dataset.test_labels)
    seconds = time.perf_counter() - started
    bounds = certified_epsilon(trainer)
    print(f"{trainer.steps} steps in {seconds:.0f} s: {1000 * seconds / trainer.steps:.0f} ms a step, with compilation")
    print(f"test accuracy {reached:.4f}; epsilon {bounds.lower:.4f} to {bounds.upper:.4f} certified at delta {DELTA:g}")
    return 0 if reached >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
