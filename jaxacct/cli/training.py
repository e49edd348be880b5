"""``jaxacct train``: DP-SGD on a data set until its budget is spent; it writes a model, a report and a picture."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxacct import json_files
from jaxacct.cli.arguments import (
    Elsewhere,
    Report,
    add_noise,
    add_overwrite,
    new_command,
    number,
)
from jaxacct.display import rounded_down, rounded_up, steps_of
from jaxacct.json_files import PRIVATE, write_whole

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
        json="print the report as one JSON object instead of a table",
    )  # fmt: skip
    command.add_argument("--dataset", choices=DATASETS, help="default: digits, which needs no files")
    command.add_argument("--data-dir", metavar="DIR", help="folder of the data set's files")
    for name, instead in (
        ("recipe", "published settings are trained by python -m bench.papers.train"),
        ("sampling-rate", "give --batch-size, the rate times the examples"),
        ("steps", "give --epochs, the steps times the batch size over the examples"),
        ("examples", "they are those of the data set: give --dataset or --data"),
    ):
        command.add_argument(f"--{name}", action=Elsewhere, const=instead)
    budget = "budget (default 3; with constant --noise-multiplier and --epochs what these cost)"
    command.add_argument("--epsilon", type=number, metavar="E", help=budget)
    command.add_argument("--delta", type=number, default=1e-5, metavar="D", help="budget (default 1e-5)")
    add_noise(command, "; more noise pays for more steps (default: the least for the epochs, or about the recipe's)")
    most = (
        "a public number, chosen without looking, that the data has at most: how many examples there are is then "
        "protected, too (default: it is public)"
    )
    seed = "makes the run repeatable, and its noise known to whoever knows the seed (default: system entropy)"
    for name, kind, letter, meaning in (
        ("batch-size", number, "B", "expected size of the Poisson sampled batches"),
        ("most-examples", int, "N", most),
        ("clip-norm", number, "C", "bound on each example's gradient norm"),
        ("learning-rate", number, "R", "of the optimizer"),
        ("epochs", number, "N", "expected passes over the data (default: what the budget pays for)"),
        ("microbatch-size", int, "N", "examples whose gradients are in memory"),
        ("seed", int, "N", seed),
    ):
        command.add_argument(f"--{name}", type=kind, metavar=letter, help=meaning)
    command.add_argument(
        "--trainable", action="append", metavar="PATH",
        help="parameters that train, such as output or layers/1; may be given again (default: all)",
    )  # fmt: skip
    command.add_argument(
        "--ghost", action=argparse.BooleanOptionalAction, default=None,
        help="leave out the gradients of single examples where their norms follow without them",
    )  # fmt: skip
    command.add_argument(
        "--noise-arithmetic", choices=("integer", "float64"),
        help="integers of a proved law, or normal numbers of float64 (default: integers without a seed)",
    )  # fmt: skip
    command.add_argument("--out", metavar="DIR", help="where to write (default runs/DATASET)")
    stays = "what it released of the same data stays spent, and both budgets add up"
    add_overwrite(command, f"delete the run that DIR holds; {stays}")
    _add_tables(command)
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


def run(arguments: argparse.Namespace) -> Report:
    """Trains, writes the run's report and picture, and returns the command's report."""
    from jaxacct.train import build_report

    folder, keeper = _folder_of(arguments)
    with _make_folder(folder):
        dataset, of_table = load_data(arguments)
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
    _write(trainer, dataset, report, folder)
    return _report(report, folder)


def _folder_of(arguments: argparse.Namespace) -> tuple[pathlib.Path, Any]:
    """Returns the run's folder, and the keeper of its checkpoints, if it has them; raises where the folder is taken."""
    from jaxacct.train import Checkpoints

    if arguments.resume and arguments.checkpoint_every is None:
        raise ValueError("--resume goes on with a run that keeps checkpoints: give its --checkpoint-every.")
    if arguments.resume and arguments.overwrite:
        raise ValueError("--resume goes on with a run and --overwrite deletes it: give one of them.")
    name = arguments.dataset or "digits" if arguments.data is None else pathlib.Path(arguments.data).stem
    folder = pathlib.Path(arguments.out or pathlib.Path("runs") / name)
    keeper = None
    if arguments.checkpoint_every is not None:
        keeper = Checkpoints(folder / CHECKPOINTS, every=arguments.checkpoint_every)
    if arguments.overwrite:
        return folder, keeper
    if keeper is not None:
        keeper.check(resume=arguments.resume)
    there = [name for name in (REPORT, MODEL, INFERENCE, CHECKPOINTS) if (folder / name).exists()]
    if there and not arguments.resume:
        raise ValueError(
            f"--out {folder} holds a run ({', '.join(there)}): go on with it by --resume if it keeps checkpoints, "
            "delete it by --overwrite, or name another folder."
        )
    return folder, keeper


def _write(trainer: Any, dataset: Any, report: dict[str, Any], folder: pathlib.Path) -> None:
    """Writes the report, the model, its function of a batch, and the picture.

    The run is done and its budget spent: what cannot be made of the last two is a line on standard error.
    """
    import jax

    from jaxacct import plot
    from jaxacct.train import export_inference, write_report

    write_report(report, folder / REPORT)
    trainer.save(folder / MODEL, overwrite=True)
    example = jax.ShapeDtypeStruct(dataset.train_inputs.shape[1:], trainer.source.example[0].dtype)
    try:
        write_whole(folder / INFERENCE, export_inference(trainer.model, example))
    except Exception as error:  # a module of the user's may have no lowering for a platform
        print(f"jaxacct train: no {INFERENCE}: {error}", file=sys.stderr)
    try:
        plot.training(report, folder / PICTURE)
    except ModuleNotFoundError as error:
        print(f"jaxacct train: no picture: {error}", file=sys.stderr)


@contextlib.contextmanager
def _make_folder(folder: pathlib.Path) -> Iterator[None]:
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


def _delete(folder: pathlib.Path) -> None:
    """Deletes a run's results and checkpoints."""
    from jaxacct.train import Checkpoints

    Checkpoints(folder / CHECKPOINTS, every=1).delete()
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    for name in (REPORT, INFERENCE, PICTURE):
        (folder / name).unlink(missing_ok=True)


def _trainer(arguments: argparse.Namespace, dataset: Any) -> tuple[Any, int, dict[str, Any]]:
    """Returns the trainer, the number of steps to fit it for, and the report's entries on both."""
    from jaxacct_recipes import make_trainer

    # The budget has an epsilon of 3 where none is given, and none follows from noise and epochs that are.
    costs_follow = arguments.policy == "constant" and None not in (arguments.noise_multiplier, arguments.epochs)
    if arguments.epsilon is None and not costs_follow:
        arguments.epsilon = 3.0
    recipe, epochs = choose_recipe(arguments, dataset)
    values = vars(arguments) | {"epochs": epochs}
    rate = recipe.learning_rate if arguments.learning_rate is None else arguments.learning_rate
    names = ("epsilon", "delta", "noise_multiplier", "batch_size", "clip_norm", "epochs", "seed", "ledger")
    settings = {name: values[name] for name in names} | {"learning_rate": rate, "correct": _correct}
    optional = {
        name: values[name]
        for name in ("trainable", "microbatch_size", "ghost", "most_examples", "noise_arithmetic")
        if values[name] is not None
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

    def measure(model: Any) -> float:
        """Returns the accuracy on the test set."""
        return accuracy(model, dataset.test_inputs, dataset.test_labels)

    reached = measure if len(dataset.test_labels) else None
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
            budget = f" of {rounded_up(trainer.epsilon)}"
            advance(entry.step, f"{reached}epsilon {rounded_up(cost, '.2f')}{budget}")

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
        trainer.fit(left, every=every, evaluate=reached, on_evaluation=keep, keeper=keeper, progress=advance)
    return history


def _report(report: dict[str, Any], folder: pathlib.Path) -> Report:
    """Returns a run's report with its main results as a table."""
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
    return Report(report, facts, f"DP-SGD on {config['dataset']}")


# ----------------------------------------------------------------------------------------------------
# A user's own table, and a model in a module of the user's own.
#
# Bounds, categories and classes of a table are public knowledge that the user gives: nothing is computed from the data
# but by the private training.
# ----------------------------------------------------------------------------------------------------


def _add_tables(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a user's own model and table."""
    command.add_argument(
        "--model", metavar="MODULE:FACTORY",
        help="your own: FACTORY(shape, num_classes, rngs) in MODULE.py here returns a flax.nnx module of one example",
    )  # fmt: skip
    group = command.add_argument_group(
        "your own table",
        "Bounds, categories and classes are public knowledge that you give: nothing is computed from the data but by "
        "the private training.",
    )
    group.add_argument(
        "--data", metavar="FILE", help="table to train on: .csv with names in its first line, .npz, .parquet"
    )
    group.add_argument("--label", metavar="NAME", help="column of the classes")
    group.add_argument("--classes", metavar="A,B|K", help="their names, or how many there are, numbered from 0")
    group.add_argument(
        "--bounds", action="append", metavar="[NAME=]LOW:HIGH",
        help="of a column of numbers, or of all without a rule; they become -1 and 1; may be given again",
    )  # fmt: skip
    group.add_argument("--categories", action="append", metavar="NAME=A,B", help="of a column; may be given again")
    group.add_argument(
        "--columns", metavar="FILE",
        help='these rules in a JSON file: {"age": [0, 120], "sex": ["Female", "Male"], "name": null}; null leaves out',
    )  # fmt: skip
    group.add_argument("--drop", action="append", metavar="NAME", help="column to leave out; may be given again")
    group.add_argument("--test", metavar="FILE", help="table of public rows, to measure the accuracy on")
    group.add_argument(
        "--test-size", type=int, metavar="N",
        help="rows to hold out for that by their numbers alone; what is measured says something of them",
    )  # fmt: skip


def load_data(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Returns the data set of the arguments, a table or a named one, and a report's entries on a table."""
    import jaxacct_recipes

    if arguments.data is not None:
        return _load_table(arguments)
    of_tables = ("label", "classes", "bounds", "categories", "columns", "drop", "test", "test_size")
    if of_table := [name for name in of_tables if vars(arguments)[name] is not None]:
        raise ValueError(f"--{of_table[0].replace('_', '-')} is of a table of your own: give --data.")
    return jaxacct_recipes.load(arguments.dataset or "digits", arguments.data_dir), {}


def _load_table(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Returns the data set that the user's own table is, and the report's entries on it."""
    from jaxacct_recipes import tables

    if arguments.dataset is not None or arguments.data_dir is not None:
        raise ValueError("--data is a table of your own: leave out --dataset and --data-dir.")
    if arguments.label is None or arguments.classes is None:
        raise ValueError("--data needs --label, the column of the classes, and --classes, all that there can be.")
    if arguments.test is not None and arguments.test_size is not None:
        raise ValueError("give one of --test and --test-size.")
    if arguments.test_size is not None and arguments.most_examples is not None:
        raise ValueError(
            "--test-size holds out rows that are chosen by how many there are, which --most-examples protects: give "
            "public rows as --test."
        )
    rules, everywhere, drop = _rules(arguments)
    classes = (
        int(arguments.classes)
        if arguments.classes.isdecimal()
        else [name.strip() for name in arguments.classes.split(",")]
    )
    test = None if arguments.test is None else pathlib.Path(arguments.test)
    loaded, columns = tables.load(
        pathlib.Path(arguments.data), arguments.label, rules, classes,
        bounds=everywhere, drop=drop, test=test, test_size=arguments.test_size or 0,
    )  # fmt: skip
    settings = {"columns": columns, "label": arguments.label, "classes": classes, "dropped": drop}
    settings |= {"test": arguments.test, "test_size": arguments.test_size}
    return loaded, {"table": settings | {"public": "the columns' rules, the classes, the test rows: as given"}}


def choose_recipe(arguments: argparse.Namespace, dataset: Any) -> tuple[Any, float | None]:
    """Returns the recipe of a run, made of public numbers for a table, and its epochs."""
    import dataclasses

    from jaxacct_recipes import RECIPES

    own = {} if arguments.model is None else {"module": _factory(arguments.model)}
    named = arguments.data is None
    recipe, epochs = (RECIPES[dataset.name], arguments.epochs) if named else _for_table(arguments, dataset)
    return dataclasses.replace(recipe, **own), epochs


def _for_table(arguments: argparse.Namespace, dataset: Any) -> tuple[Any, float]:
    """Returns an MLP's settings and its epochs; only the table's size is used, or the public bound on it."""
    from jaxacct import calibrate
    from jaxacct.train.settings import public_size
    from jaxacct_recipes import MLP
    from jaxacct_recipes.recipes import UNTUNED, Recipe

    size = public_size(len(dataset.train_labels), arguments.most_examples)
    # By default 1024 rows at a time, 40 passes, and at least 100 steps.
    batch = min(1024, size) if arguments.batch_size is None else arguments.batch_size
    epochs = max(40, 100 * batch / size) if arguments.epochs is None else arguments.epochs
    if not (0 < batch <= size and 0 < epochs < float("inf")):
        raise ValueError(
            f"--batch-size {batch:g}, --epochs {epochs:g}: give numbers above 0, the first at most {size}."
        )
    noise = arguments.noise_multiplier
    # A policy needs noise to begin with; constant noise follows from the epochs.
    if noise is None and arguments.policy != "constant":
        steps = steps_of(epochs, batch / size)
        noise = float(calibrate.noise_multiplier(arguments.epsilon, arguments.delta, batch / size, steps).value)
    made = Recipe(
        dataset=dataset.name, module=lambda shape, classes, rngs: MLP(shape, classes, width=64, rngs=rngs),
        noise_multiplier=1.0 if noise is None else noise, batch_size=batch, clip_norm=1.0, learning_rate=0.01,
        microbatch_size=128, source=UNTUNED,
    )  # fmt: skip
    return made, epochs


def _rules(arguments: argparse.Namespace) -> tuple[dict[str, Any], tuple[float, float] | None, list[str]]:
    """Returns the rules of columns, the bounds of columns without a rule, and the columns that are left out."""
    rules, drop = _rules_in_file(arguments.columns)
    drop += arguments.drop or []
    everywhere: tuple[float, float] | None = None
    # Bounds with a name are of that column; one pair without a name is of all columns that have no rule.
    for text in arguments.bounds or []:
        name, _, interval = text.rpartition("=")
        low, colon, high = interval.partition(":")
        if not colon:
            raise ValueError(f"--bounds {text}: give NAME=LOW:HIGH, or LOW:HIGH for all columns of numbers.")
        if name:
            _add_rule(rules, name, _bounds(low, high, text))
        elif everywhere is not None:
            raise ValueError(f"--bounds {text}: all columns without a rule have bounds already.")
        else:
            everywhere = _bounds(low, high, text)
    for text in arguments.categories or []:
        name, equals, names = text.partition("=")
        if not equals:
            raise ValueError(f"--categories {text}: give NAME=A,B,C.")
        _add_rule(rules, name, tuple(part.strip() for part in names.split(",")))
    return rules, everywhere, drop


def _rules_in_file(path: str | None) -> tuple[dict[str, Any], list[str]]:
    """Returns the rules in a JSON file, and the columns that it leaves out."""
    rules: dict[str, Any] = {}
    drop: list[str] = []
    if path is None:
        return rules, drop
    wrong = ValueError(
        f'--columns {path}: give a JSON object such as {{"age": [0, 120], "sex": ["F", "M"], "id": null}}.'
    )
    try:
        there = json_files.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except ValueError:
        raise wrong from None
    if not isinstance(there, dict):
        raise wrong
    # Two numbers are bounds, two or more names are categories, and null leaves a column out.
    for name, rule in there.items():
        numbers = isinstance(rule, list) and len(rule) == 2 and all(type(end) in (int, float) for end in rule)
        names = isinstance(rule, list) and len(rule) > 1 and all(isinstance(entry, str) for entry in rule)
        if rule is None:
            drop.append(name)
        elif numbers or names:
            rules[name] = tuple(rule)
        else:
            raise wrong
    return rules, drop


def _bounds(low: str, high: str, text: str) -> tuple[float, float]:
    """Returns the two bounds of an argument ``text``."""
    try:
        return number(low), number(high)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--bounds {text}: {error}.") from None


def _add_rule(rules: dict[str, Any], name: str, rule: Any) -> None:
    """Adds a column's rule; raises ValueError where it has one already."""
    if name in rules:
        raise ValueError(f"column {name!r} has two rules: give one.")
    rules[name] = rule


def _factory(name: str) -> Callable[..., Any]:
    """Returns the function or class that MODULE:FACTORY names, of a module in the present folder or installed."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"--model {name}: give MODULE:FACTORY, such as my_model:make for make in my_model.py.")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a file in this folder cannot shadow an installed package
    try:
        attributes = vars(importlib.import_module(module))
    except (ImportError, SyntaxError) as error:
        raise ValueError(
            f"--model {name}: importing {module} fails ({error}): give a module that lies in {os.getcwd()} or is "
            "installed, with all that it imports."
        ) from error
    if not callable(attributes.get(attribute)):
        here = (key for key, value in attributes.items() if getattr(value, "__module__", None) == module)
        own = [key for key in here if callable(attributes[key])]
        raise ValueError(
            f"--model {name}: {module} has no function or class {attribute}: give one of its own, which are "
            f"{', '.join(own) or 'none'}."
        )
    factory: Callable[..., Any] = attributes[attribute]
    return factory


# ----------------------------------------------------------------------------------------------------
# Evaluations of a training run, on disk.
# ----------------------------------------------------------------------------------------------------


class History:
    """A run's evaluations on disk, one a line, after a line with its settings: a resumed run's report has them all.

    A line is appended after each evaluation, so an interrupted run loses at most a line that was cut.
    """

    def __init__(self, path: pathlib.Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, json_files.loads(json_files.dumps(config))

    def add(self, entry: Any) -> None:
        """Appends an evaluation; a new file, which no other user can read, begins with the settings."""
        with os.fdopen(
            os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "a", encoding="utf-8"
        ) as file:
            if file.tell() == 0:
                file.write(json_files.dumps(self.config) + "\n")
            file.write(_line(entry))

    def check(self) -> None:
        """Raises ValueError where the file's settings differ from this run's."""
        from jaxacct.train.ownership import differences

        there, _ = self._read()
        if differing := differences(there, {name: self.config.get(name) for name in there}):
            raise ValueError(
                f"{self.path.parent} is of a run with other settings ({differing}): give those, or another --out."
            )

    def until(self, steps: int) -> list[Any]:
        """Returns the evaluations of the first ``steps`` steps, and removes all others from the file."""
        kept = [entry for entry in self._read()[1] if entry.step <= steps]
        lines = [json_files.dumps(self.config) + "\n", *map(_line, kept)]
        write_whole(self.path, lambda file: file.write("".join(lines).encode()), mode=PRIVATE)
        return kept

    def _read(self) -> tuple[dict[str, Any], list[Any]]:
        """Returns the settings and evaluations in the file, without a last line that was cut."""
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1] if self.path.exists() else []
        try:
            there, *entries = [json_files.loads(line) for line in lines] or [{}]
            return dict(there), [_evaluation(*entry) for entry in entries]
        except (ValueError, TypeError):
            raise ValueError(f"{self.path} is damaged: delete it to go on without the evaluations so far.") from None


def _line(entry: Any) -> str:
    """Returns an evaluation as a line of JSON."""
    return json_files.dumps([*entry[:-1], dict(entry.metrics)]) + "\n"


def _evaluation(step: Any, reached: Any, epsilon: Any, metrics: Any = ()) -> Any:
    """Returns the evaluation that a line holds."""
    from jaxacct.train import Evaluation

    return Evaluation(int(step), None if reached is None else float(reached), float(epsilon), dict(metrics))
