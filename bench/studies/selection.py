"""The costs of private searches, and the settings that they find.

    python -m bench selection costs [--json FILE]
    python -m bench selection mnist --data-dir DIR [--searches N] [--json FILE]

``costs``: five laws of the number of runs, ten on average, of DP-SGD (rate 0.01, 1000 steps) at six budgets of a single
run, beside dp-accounting's RepeatAndSelect; exits 1 where it is less. ``mnist``: a linear model at (3, 1e-5), twelve
settings of the learning rate and the clipping norm: with the one in their middle, by ``train.tune``, and by training
with all of them at the full budget each, which is not paid for. Scores are accuracies on the first half of the test
images, taken as public; what is shown is that on the other half.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from typing import Any

import optax
from flax import nnx

import jaxacct as ja
from bench import report
from jaxacct.selection import Geometric, Logarithmic, Poisson, Trials, TruncatedNegativeBinomial
from jaxacct.train import DPTrainer, accuracy, cross_entropy, tune
from jaxacct_recipes import Linear, load

DELTA = 1e-5

RATE, STEPS, MEAN = 0.01, 1000, 10.0

BUDGETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

LAWS: tuple[Trials, ...] = (
    Logarithmic(MEAN),
    TruncatedNegativeBinomial(MEAN, 0.5),
    Geometric(MEAN),
    TruncatedNegativeBinomial(MEAN, 4.0),
    Poisson(MEAN),
)

SPACE = tuple(itertools.product((0.01, 0.1, 1.0, 10.0), (0.1, 1.0, 10.0)))
"""Learning rates and clipping norms."""

USUAL = (0.1, 1.0)


def costs() -> dict[str, Any]:
    """Returns the epsilon of each search, theirs beside ours."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    cells = []
    for budget in BUDGETS:
        noise = float(ja.calibrate.noise_multiplier(budget, DELTA, RATE, STEPS).value)
        sampled = dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(noise))
        run = dp_event.SelfComposedDpEvent(sampled, STEPS)
        for law in LAWS:
            shape = law.shape if isinstance(law, TruncatedNegativeBinomial) else math.inf
            search = ja.RepeatAndSelect(ja.PoissonSubsampledGaussian(noise, RATE), STEPS, law)
            started = time.process_time()
            ours = ja.epsilon(search, 1, DELTA)
            seconds = time.process_time() - started
            event = dp_event.RepeatAndSelectDpEvent(run, MEAN, shape)
            theirs = RdpAccountant().compose(event).get_epsilon(DELTA)
            gain = 1 - float(ours.upper) / theirs
            print(f"{budget:5g}  {law!s:52} {ours.lower:.3f} to {ours.upper:.3f}, theirs {theirs:.3f}: {gain:.0%}")
            cells.append(
                {"run": budget, "law": str(law), "lower": float(ours.lower), "upper": float(ours.upper)}
                | {"theirs": theirs, "gain": gain, "seconds": seconds}
            )
    gains = [cell["gain"] for cell in cells]
    print(f"{sum(gain >= 0.1 for gain in gains)} of {len(gains)} lower by 10 %; the least gain is {min(gains):.1%}")
    return {"cells": cells, "above": sum(gain < 0 for gain in gains)}


def mnist(folder: str, searches: int) -> dict[str, Any]:
    """Returns the accuracies of the three ways."""
    dataset = load("mnist", folder)
    half = len(dataset.test_labels) // 2
    shape = dataset.train_inputs.shape[1:]

    def made(setting: tuple[float, float], **run: Any) -> DPTrainer:
        rate, norm = setting
        return DPTrainer(
            Linear(shape, dataset.num_classes, rngs=nnx.Rngs(0)), cross_entropy, optax.sgd(rate),
            (dataset.train_inputs, dataset.train_labels), steps=200, expected_batch_size=1024, clip_norm=norm,
            microbatch_size=256, **run,
        )  # fmt: skip

    def public(model: nnx.Module) -> float:
        return accuracy(model, dataset.test_inputs[:half], dataset.test_labels[:half])

    def shown(model: nnx.Module) -> float:
        return accuracy(model, dataset.test_inputs[half:], dataset.test_labels[half:])

    found: dict[str, Any] = {"all": {}, "tuned": []}
    for setting in SPACE:
        trainer = made(setting, epsilon=3.0, delta=DELTA)
        trainer.fit()
        found["all"][str(setting)] = (public(trainer.model), shown(trainer.model))
        print(f"{setting}: {found['all'][str(setting)][1]:.4f}", flush=True)
    for _ in range(searches):
        tuned = tune(made, SPACE, public, trials=TruncatedNegativeBinomial(MEAN, 4.0), epsilon=3.0, delta=DELTA)
        reached = 0.1 if tuned.model is None else shown(tuned.model)
        found["tuned"].append((str(tuned.setting), reached, tuned.noise_multiplier, float(tuned.certified.upper)))
        print(f"tuned within (3, 1e-5): {tuned.setting}, {reached:.4f}; epsilon {tuned.certified}", flush=True)
    found["untuned"] = found["all"][str(USUAL)][1]
    found["unpaid"] = max(found["all"].values())[1]
    middle = statistics.median(reached for _, reached, *_ in found["tuned"])
    print(f"untuned {found['untuned']:.4f}, tuned {middle:.4f} in the median, unpaid {found['unpaid']:.4f}")
    return found


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("what", choices=("costs", "mnist"))
    parser.add_argument("--data-dir", default="data", help="folder of the four files of MNIST")
    parser.add_argument("--searches", type=int, default=3)
    arguments = parser.parse_args()
    found = costs() if arguments.what == "costs" else mnist(arguments.data_dir, arguments.searches)
    report.write(arguments.json, found)
    return int(bool(found.get("above", 0)))


if __name__ == "__main__":
    sys.exit(main())
