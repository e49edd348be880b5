"""``jaxacct train``: DP-SGD on a small data set until its budget is spent, and a report of what that bought."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

DATASETS = ("digits", "mnist", "adult")


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "train",
        help="train a model by DP-SGD within a privacy budget",
        description="Trains a small Flax model with differential privacy until the next step would exceed the budget, "
        "and writes report.json and training.png.",
        epilog="example: jaxacct train --dataset digits --epsilon 3 --delta 1e-5",
    )
    command.add_argument("--dataset", choices=DATASETS, default="digits", help="default: digits, which needs no files")
    command.add_argument("--data-dir", metavar="DIR", help="folder of the files of mnist or adult")
    command.add_argument("--epsilon", type=float, default=3.0, metavar="E", help="budget (default 3)")
    command.add_argument("--delta", type=float, default=1e-5, metavar="D", help="budget (default 1e-5)")
    command.add_argument(
        "--noise-multiplier", type=float, metavar="S",
        help="standard deviation of the noise over the clipping norm; more noise pays for more steps",
    )  # fmt: skip
    command.add_argument("--batch-size", type=float, metavar="B", help="expected size of the Poisson sampled batches")
    command.add_argument("--clip-norm", type=float, metavar="C", help="bound on each example's gradient norm")
    command.add_argument("--learning-rate", type=float, metavar="R", help="of Adam; falls to zero over the second half")
    command.add_argument(
        "--epochs",
        type=float,
        metavar="N",
        help="most expected passes over the data (default: what the budget pays for)",
    )
    command.add_argument(
        "--seed", type=int, metavar="N",
        help="makes the run repeatable, and its noise known to whoever knows the seed (default: system entropy)",
    )  # fmt: skip
    command.add_argument("--out", metavar="DIR", help="where to write (default runs/DATASET)")
    command.add_argument("--json", action="store_true", help="print the report as one JSON object instead of a table")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains, writes the report and the picture, prints the result, and returns the exit code."""
    from jaxacct import plot, strict_json
    from jaxacct.train import RECIPES, data, make_trainer
    from jaxacct.train.report import build_report, write_report

    folder = pathlib.Path(arguments.out or pathlib.Path("runs") / arguments.dataset)
    folder.mkdir(parents=True, exist_ok=True)  # a bad path should fail before the training, not after it
    dataset = data.load(arguments.dataset, arguments.data_dir)
    learning_rate = RECIPES[dataset.name].learning_rate if arguments.learning_rate is None else arguments.learning_rate
    trainer, steps = make_trainer(
        dataset,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        noise_multiplier=arguments.noise_multiplier,
        batch_size=arguments.batch_size,
        clip_norm=arguments.clip_norm,
        learning_rate=learning_rate,
        epochs=arguments.epochs,
        seed=arguments.seed,
    )
    history = _fit(trainer, steps, dataset)
    config = {
        "dataset": dataset.name,
        "optimizer": "adam, rate falling over the second half",
        "learning_rate": learning_rate,
        "epochs": arguments.epochs,
    }
    report = build_report(trainer, history, config)
    write_report(report, folder / "report.json")
    try:
        plot.training(report, folder / "training.png")
    except ModuleNotFoundError as error:  # the run is done and its budget spent: a missing picture must not fail it
        print(f"jaxacct train: no picture: {error}", file=sys.stderr)
    if arguments.json:
        print(strict_json.dumps(report))
    else:
        _print_table(report, folder)
    return 0


def _fit(trainer: Any, steps: int, dataset: Any) -> list[Any]:
    """Trains under a progress bar on standard error; the test set is public, its accuracy costs no budget."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from jaxacct.train.models import accuracy

    planned = min(steps, trainer.remaining_steps)
    every = max(1, min(round(1 / trainer.sampler.sampling_rate), planned // 20))
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  epsilon {task.fields[epsilon]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(dataset.name, total=planned, accuracy="-", epsilon="0.00")

        def show(entry: Any) -> None:
            progress.update(
                task, completed=entry.step, accuracy=f"{entry.accuracy:.3f}", epsilon=f"{entry.epsilon:.2f}"
            )

        return trainer.fit(
            steps,
            every=every,
            evaluate=lambda model: accuracy(model, dataset.test_inputs, dataset.test_labels),
            on_evaluation=show,
        )


def _print_table(report: dict[str, Any], folder: pathlib.Path) -> None:
    from rich.console import Console
    from rich.table import Table

    config, final = report["config"], report["final"]
    table = Table(title=f"DP-SGD on {config['dataset']}", width=80, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    certified = final["epsilon_certified"]
    table.add_row(
        "steps",
        f"{final['steps']}, each on about {config['expected_batch_size']:.6g} of {config['num_examples']} examples",
    )
    table.add_row(
        "noise, clipping", f"noise multiplier {config['noise_multiplier']:g}, clip norm {config['clip_norm']:g}"
    )
    table.add_row("test accuracy", f"{final['test_accuracy']:.4f} (public test set)")
    table.add_row("epsilon, certified", f"{certified['lower']:.4f} to {certified['upper']:.4f}; report the upper bound")
    table.add_row("epsilon, Rényi filter", f"{final['epsilon_renyi']:.4f} of {config['budget']['epsilon']:g}")
    table.add_row("delta", f"{final['delta']:g}")
    table.add_row("guarantee", final["guarantee"])
    table.add_row("written to", str(folder))
    Console(width=80).print(table)
