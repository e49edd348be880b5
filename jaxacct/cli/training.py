"""``jaxacct train``: DP-SGD on a data set until its budget is spent; it writes a model, a report and a picture."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxacct.cli import tables
from jaxacct.cli.arguments import (
    Elsewhere,
    History,
    add_json,
    add_noise,
    add_overwrite,
    new_command,
    number,
    print_facts,
    show,
)
from jaxacct.json_files import write_whole
from jaxacct.outward import rounded_down, rounded_up

DATASETS = ("digits", "mnist", "fashion-mnist", "adult", "adult-uci")
"""Data sets that can be named."""
CHECKPOINTS, HISTORY = "checkpoints", "history.jsonl"
"""Names in a run's folder: the folder of checkpoints, and in that the file of evaluations."""
MODEL, INFERENCE, REPORT, PICTURE = "model", "inference.jax_export", "report.json", "training.png"
"""Names of the results in a run's folder."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "train", run, "train a model by DP-SGD within a privacy budget",
        "Trains a Flax model with differential privacy until the next step would exceed the budget, and "
        "writes the model (by Orbax), inference.jax_export (a function of a batch, for jax.export.deserialize), "
        "report.json and training.png.",
        "jaxacct train --dataset digits --epsilon 3 --delta 1e-5",
        "jaxacct train --dataset mnist --data-dir data/mnist --checkpoint-every 100 --out runs/kept",
        "jaxacct train --data table.csv --label y --classes no,yes --bounds age=0:120 --categories sex=F,M",
    )  # fmt: skip
    command.add_argument("--dataset", choices=DATASETS, help="default: digits, which needs no files")
    command.add_argument("--data-dir", metavar="DIR", help="folder of the data set's files")
    command.add_argument(
        "--recipe", action=Elsewhere, const="published settings are trained by python -m bench.papers.train"
    )
    command.add_argument(
        "--epsilon", type=number, metavar="E",
        help="budget (default 3; with constant --noise-multiplier and --epochs what these cost)",
    )  # fmt: skip
    command.add_argument("--delta", type=number, default=1e-5, metavar="D", help="budget (default 1e-5)")
    least = "the least for the epochs, or about the recipe's"
    add_noise(command, f"; more noise pays for more steps (default: {least})")
    command.add_argument("--batch-size", type=number, metavar="B", help="expected size of the Poisson sampled batches")
    command.add_argument(
        "--most-examples", type=int, metavar="N",
        help="a public number, chosen without looking, that the data has at most: how many examples there are is then "
        "protected, too (default: it is public)",
    )  # fmt: skip
    command.add_argument("--clip-norm", type=number, metavar="C", help="bound on each example's gradient norm")
    command.add_argument("--learning-rate", type=number, metavar="R", help="of the optimizer")
    command.add_argument(
        "--epochs", type=number, metavar="N",
        help="expected passes over the data (default: what the budget pays for)",
    )  # fmt: skip
    command.add_argument(
        "--trainable", action="append", metavar="PATH",
        help="parameters that train, such as output or layers/1; may be given again (default: all)",
    )  # fmt: skip
    command.add_argument("--microbatch-size", type=int, metavar="N", help="examples whose gradients are in memory")
    command.add_argument(
        "--ghost", action=argparse.BooleanOptionalAction, default=None,
        help="leave out the gradients of single examples where their norms follow without them",
    )  # fmt: skip
    command.add_argument(
        "--seed", type=int, metavar="N",
        help="makes the run repeatable, and its noise known to whoever knows the seed (default: system entropy)",
    )  # fmt: skip
    command.add_argument("--sampling-rate", action=Elsewhere, const="give --batch-size, the rate times the examples")
    command.add_argument(
        "--steps", action=Elsewhere, const="give --epochs, the steps times the batch size over the examples"
    )
    command.add_argument(
        "--examples", action=Elsewhere, const="they are those of the data set: give --dataset or --data"
    )
    command.add_argument("--out", metavar="DIR", help="where to write (default runs/DATASET)")
    stays = "what it released of the same data stays spent, and both budgets add up"
    add_overwrite(command, f"delete the run that DIR holds; {stays}")
    add_json(command, "print the report as one JSON object instead of a table")
    tables.add_arguments(command)
    _add_policies(command.add_argument_group("what the steps spend"))
    kept = command.add_argument_group("checkpoints", "in DIR/checkpoints, which holds the run's key: keep it private")
    kept.add_argument("--checkpoint-every", type=int, metavar="N", help="most updates between two (default: none)")
    kept.add_argument("--resume", action="store_true", help="go on with the run in DIR, with the arguments it had")


def _add_policies(group: Any) -> None:
    """Adds the arguments of policies and ledgers."""
    group.add_argument(
        "--policy", choices=("constant", "adaptive-noise", "adaptive-batch", "spend-remaining"), default="constant",
        help="noise as given throughout; noise or batch size by how a noisy count of correct training examples goes; "
        "or the least noise that the rest of the budget pays for",
    )  # fmt: skip
    group.add_argument(
        "--policy-epochs", type=number, default=1.0, metavar="N", help="passes between two looks of the policy (1)"
    )
    group.add_argument("--query-noise", type=number, default=100.0, metavar="S", help="noise on the count (100)")
    group.add_argument(
        "--target-accuracy", type=number, metavar="A", help="stop when the noisy count is that share of the examples"
    )
    group.add_argument(
        "--ledger", choices=("planned", "menu", "filter", "odometer"),
        help="a plan, which spends all of the budget on settings that stay as they are (default for these); a menu, "
        "for settings chosen among finitely many (default for policies); a Rényi filter, for whatever is chosen; or an "
        "odometer, whose reading holds whenever the run stops",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Trains, writes the report and the picture, prints the result, and returns the exit code."""
    from jaxacct import plot
    from jaxacct.train import Checkpoints, build_report, write_report

    if arguments.resume and arguments.checkpoint_every is None:
        raise ValueError("--resume goes on with a run that keeps checkpoints: give its --checkpoint-every.")
    if arguments.resume and arguments.overwrite:
        raise ValueError("--resume goes on with a run and --overwrite deletes it: give one of them.")
    name = arguments.dataset or "digits" if arguments.data is None else pathlib.Path(arguments.data).stem
    folder = pathlib.Path(arguments.out or pathlib.Path("runs") / name)
    keeper = None
    if arguments.checkpoint_every is not None:
        keeper = Checkpoints(folder / CHECKPOINTS, every=arguments.checkpoint_every)
    if not arguments.overwrite:
        if keeper is not None:
            keeper.check(resume=arguments.resume)
        _check_free(folder, arguments.resume)
    with _made(folder):
        dataset, of_table = tables.load(arguments)
        trainer, steps, config = _trainer(arguments, dataset)
        config |= of_table
        if arguments.overwrite:
            _delete(folder)
        try:
            record = None if keeper is None else History(keeper.folder / HISTORY, config)
            history = _fit(trainer, steps, dataset, keeper, record, arguments.resume)
        except KeyboardInterrupt:
            if keeper is not None and keeper.holds_run:
                raise KeyboardInterrupt(f"checkpoints are kept in {folder}: give --resume to go on") from None
            raise
        finally:
            if keeper is not None:
                keeper.close()
    report = build_report(trainer, history, config)
    write_report(report, folder / REPORT)
    trainer.save(folder / MODEL, overwrite=True)
    _export(trainer, dataset, folder / INFERENCE)
    try:
        plot.training(report, folder / PICTURE)
    except ModuleNotFoundError as error:  # the run is done and its budget spent: a missing picture must not fail it
        print(f"jaxacct train: no picture: {error}", file=sys.stderr)
    show(report, arguments.json, lambda: _print(report, folder))
    return 0


@contextlib.contextmanager
def _made(folder: pathlib.Path) -> Iterator[None]:
    """Makes a folder, so that a bad path fails before the training; after a failure inside, empty ones are removed."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()
        raise


def _check_free(folder: pathlib.Path, resume: bool) -> None:
    """Raises ValueError where the folder holds a run's results, unless that run is resumed."""
    there = [name for name in (REPORT, MODEL, INFERENCE, CHECKPOINTS) if (folder / name).exists()]
    if there and not resume:
        raise ValueError(
            f"--out {folder} holds a run ({', '.join(there)}): go on with it by --resume if it keeps checkpoints, "
            "delete it by --overwrite, or name another folder."
        )


def _delete(folder: pathlib.Path) -> None:
    """Deletes a run's results and checkpoints."""
    from jaxacct.train import Checkpoints

    Checkpoints(folder / CHECKPOINTS, every=1).delete()
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    for name in (REPORT, INFERENCE, PICTURE):
        (folder / name).unlink(missing_ok=True)


def _export(trainer: Any, dataset: Any, path: pathlib.Path) -> None:
    """Writes the model's function of a batch; where a platform cannot lower it, a line on standard error says so."""
    import jax

    from jaxacct.train import export_inference

    example = jax.ShapeDtypeStruct(dataset.train_inputs.shape[1:], trainer.source.example[0].dtype)
    try:
        write_whole(path, export_inference(trainer.model, example))
    except Exception as error:  # a module of the user's may have no lowering for a platform; as for the picture
        print(f"jaxacct train: no {path.name}: {error}", file=sys.stderr)


def _trainer(arguments: argparse.Namespace, dataset: Any) -> tuple[Any, int, dict[str, Any]]:
    """Returns the trainer, the number of steps to fit it for, and the report's entries on both."""
    from jaxacct_recipes import make_trainer

    recipe, epochs = tables.recipe(arguments, dataset)
    given = vars(arguments) | {"epochs": epochs}
    rate = recipe.learning_rate if arguments.learning_rate is None else arguments.learning_rate
    asked = ("epsilon", "delta", "noise_multiplier", "batch_size", "clip_norm", "epochs", "seed", "ledger")
    costs_follow = arguments.policy == "constant" and None not in (arguments.noise_multiplier, arguments.epochs)
    if given["epsilon"] is None and not costs_follow:
        given["epsilon"] = tables.EPSILON
    settings = {name: given[name] for name in asked} | {"learning_rate": rate, "correct": _correct}
    optional = {
        name: given[name]
        for name in ("trainable", "microbatch_size", "ghost", "most_examples")
        if given[name] is not None
    }
    policy = _policy(arguments, arguments.most_examples or len(dataset.train_labels))
    trainer, steps = make_trainer(dataset, recipe=recipe, policy=policy, **settings, **optional)
    config = {
        "dataset": dataset.name,
        "recipe": dataset.name if arguments.data is None else "table",
        "source": recipe.source,
        "metric": "accuracy",
        "optimizer": recipe.optimizer_name,
        "learning_rate": rate,
        "epochs": epochs,
        "trainable": arguments.trainable or "all",
        "model": arguments.model or "the recipe's",
    }
    return trainer, steps, config


def _correct(model: Any, example: Any, label: Any) -> Any:
    """Returns whether the model's most likely class is the label."""
    return model(example).argmax(axis=-1) == label


def _policy(arguments: argparse.Namespace, size: int) -> Callable[[float, float, int], Any] | None:
    """Returns a function that makes the policy named; None for constant noise, which a trainer has by itself."""
    from jaxacct import validation
    from jaxacct.outward import steps_of
    from jaxacct.policies import AdaptiveBatchSize, AdaptiveNoise, Constant, EarlyStopping, SpendRemaining

    if arguments.policy == "constant" and arguments.target_accuracy is None:
        return None
    validation.check_positive(arguments.policy_epochs, "policy_epochs")
    if arguments.target_accuracy is not None:
        validation.check_probability(arguments.target_accuracy, "target_accuracy")

    def make(noise: float, rate: float, steps: int) -> Any:
        """Returns the policy that begins with a noise multiplier and sampling rate."""
        batch, period = rate * size, steps_of(arguments.policy_epochs, rate)
        asks: dict[str, Any] = {"period": period, "query_noise": arguments.query_noise}
        policy: Any = Constant(noise, rate)
        if arguments.policy == "adaptive-noise":
            # Levels are shares of the initial noise. Sound for any value, as the ledger pays for what is chosen.
            asks |= {"increment": 0.05 * noise, "least": 0.8 * noise, "most": 2.0 * noise}
            policy = AdaptiveNoise(sampling_rate=rate, initial=noise, **asks)
        elif arguments.policy == "adaptive-batch":
            # Levels are those of 512 by 128 down to 256 in Lécuyer (2021), section 5.1, as shares of the initial size.
            asks |= {"increment": batch / 4, "least": batch / 2, "most": batch}
            policy = AdaptiveBatchSize(noise_multiplier=noise, num_examples=size, initial=batch, **asks)
        elif arguments.policy == "spend-remaining":
            policy = SpendRemaining(sampling_rate=rate, steps=steps, period=period)
        if arguments.target_accuracy is None:
            return policy
        target = arguments.target_accuracy * size
        return EarlyStopping(policy, target=target, period=period, query_noise=arguments.query_noise)

    return make


def _fit(trainer: Any, steps: int, dataset: Any, keeper: Any, record: History | None, resume: bool) -> list[Any]:
    """Trains with a progress line, and returns the evaluations; the test set is public, so measuring costs nothing."""
    from jaxacct.processes import progress
    from jaxacct.train import Evaluation, accuracy
    from jaxacct.train.report import epsilon_so_far

    def measured(model: Any) -> float:
        """Returns the accuracy on the test set."""
        return accuracy(model, dataset.test_inputs, dataset.test_labels)

    reached = measured if len(dataset.test_labels) else None
    planned = min(steps, trainer.remaining_steps)
    # An evaluation each epoch, and at least 20 in a run.
    every = max(1, min(round(trainer.sampler.num_examples / trainer.sampler.expected_batch_size), planned // 20))
    history: list[Evaluation] = []
    left = steps
    if record is not None and resume:
        record.check()
        left = keeper.resume(trainer)
        print(f"jaxacct train: {keeper.resumed}", file=sys.stderr)
        history = record.until(trainer.steps)
    with progress(dataset.name, planned, done=trainer.steps) as advance:

        def show(entry: Evaluation) -> None:
            """Shows an evaluation on the progress line."""
            reached = "" if entry.accuracy is None else f"accuracy {entry.accuracy:.3f}, "
            so_far = epsilon_so_far(trainer, entry.step)
            cost = entry.epsilon if so_far is None else so_far
            whole = f" of {rounded_up(trainer.epsilon)}"
            advance(entry.step, f"{reached}epsilon {rounded_up(cost, '.2f')}{whole}")

        def keep(entry: Evaluation) -> None:
            """Adds an evaluation to the history, in memory and on disk, and shows it."""
            history.append(entry)
            if record is not None:
                record.add(entry)
            show(entry)

        for entry in history[-1:]:
            show(entry)

        unseen = trainer.steps > (history[-1].step if history else 0)
        # A run that was interrupted between a checkpoint and its evaluation lacks that one.
        if unseen and (trainer.steps % every == 0 or left == 0):
            keep(Evaluation(trainer.steps, reached and reached(trainer.model), trainer.spent_epsilon))
        say = lambda step, words: advance(step, words)  # noqa: E731
        trainer.fit(left, every=every, evaluate=reached, on_evaluation=keep, keeper=keeper, progress=say)
    return history


def _print(report: dict[str, Any], folder: pathlib.Path) -> None:
    """Prints the main results as a table."""
    config, final = report["config"], report["final"]
    certified, budget = final["epsilon_certified"], rounded_up(config["budget"]["epsilon"])
    proved = "does not apply: see the guarantee"
    if certified is not None:
        low, high = rounded_down(certified["lower"], ".4f"), rounded_up(certified["upper"], ".4f")
        proved = f"{low} to {high} of {budget}; report the upper"
    reached = "not measured: there is no test set"
    if final["test_accuracy"] is not None:
        held_out = config.get("table", {}).get("test_size")
        reached = f"{final['test_accuracy']:.4f} ({'rows held out as public' if held_out else 'public test set'})"
    facts = [
        (
            "steps",
            f"{final['steps']}, each on about {config['expected_batch_size']:.6g} of {config['num_examples']} examples",
        ),
        ("noise, clipping", f"noise multiplier {config['noise_multiplier']:.12g}, clip norm {config['clip_norm']:g}"),
        ("test accuracy", reached),
        ("epsilon, certified", proved),
        (
            "epsilon, Rényi" if config["ledger"] == "planned" else f"epsilon, Rényi {config['ledger']}",
            rounded_up(final["epsilon_renyi"], ".4f")
            + (f" of {budget}" if config["ledger"] != "planned" else " for the same"),
        ),
        ("delta", rounded_up(final["delta"])),
        ("guarantee", final["guarantee"]),
        ("written to", str(folder)),
    ]
    print_facts(f"DP-SGD on {config['dataset']}", facts)
