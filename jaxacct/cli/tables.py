"""The arguments of ``jaxacct train`` for a user's own table, and for a model in a module of the user's own.

Bounds, categories and classes of a table are public knowledge that the user gives: nothing is computed from the data
but by the private training.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from jaxacct import json_files
from jaxacct.cli.arguments import number

EPSILON, EPOCHS, LEAST_STEPS, BATCH, WIDTH = 3.0, 40, 100, 1024, 64
"""Defaults for a table: budget epsilon, passes over the data, least number of steps, batch size, width of the MLP."""

ONLY_FOR_TABLES = ("label", "classes", "bounds", "categories", "columns", "drop", "test", "test_size")
"""Arguments that need --data."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
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


def load(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Returns the data set of the arguments, a table or a named one, and a report's entries on a table."""
    from jaxacct.train import datasets
    from jaxacct.train.datasets import table

    if arguments.data is None:
        given = [name for name in ONLY_FOR_TABLES if getattr(arguments, name) is not None]
        if given:
            raise ValueError(f"--{given[0].replace('_', '-')} is of a table of your own: give --data.")
        return datasets.load(arguments.dataset or "digits", arguments.data_dir), {}
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
    loaded, columns = table.load(
        pathlib.Path(arguments.data), arguments.label, rules, classes,
        bounds=everywhere, drop=drop, test=test, test_size=arguments.test_size or 0,
    )  # fmt: skip
    settings = {"columns": columns, "label": arguments.label, "classes": classes, "dropped": drop}
    settings |= {"test": arguments.test, "test_size": arguments.test_size}
    return loaded, {"table": settings | {"public": "the columns' rules, the classes, the test rows: as given"}}


def recipe(arguments: argparse.Namespace, dataset: Any) -> tuple[Any, float | None]:
    """Returns the recipe of a run, made of public numbers for a table, and its epochs."""
    import dataclasses

    from jaxacct.train import RECIPES

    own = {} if arguments.model is None else {"module": _factory(arguments.model)}
    named = arguments.data is None
    found, epochs = (RECIPES[dataset.name], arguments.epochs) if named else _for_table(arguments, dataset)
    return dataclasses.replace(found, **own), epochs


def _for_table(arguments: argparse.Namespace, dataset: Any) -> tuple[Any, float]:
    """Returns an MLP's settings and its epochs; only the table's size is used, or the public bound on it."""
    from jaxacct import calibrate
    from jaxacct.outward import steps_of
    from jaxacct.train.models import MLP
    from jaxacct.train.recipes import UNTUNED, Recipe
    from jaxacct.train.settings import public_size

    size = public_size(len(dataset.train_labels), arguments.most_examples)
    batch = min(BATCH, size) if arguments.batch_size is None else arguments.batch_size
    epochs = max(EPOCHS, LEAST_STEPS * batch / size) if arguments.epochs is None else arguments.epochs
    if not (0 < batch <= size and 0 < epochs < float("inf")):
        raise ValueError(
            f"--batch-size {batch:g}, --epochs {epochs:g}: give numbers above 0, the first at most {size}."
        )
    noise = arguments.noise_multiplier
    # A policy needs noise to begin with; constant noise follows from the epochs.
    if noise is None and arguments.policy != "constant":
        epsilon = EPSILON if arguments.epsilon is None else arguments.epsilon
        steps = steps_of(epochs, batch / size)
        noise = float(calibrate.noise_multiplier(epsilon, arguments.delta, batch / size, steps).value)
    made = Recipe(
        dataset=dataset.name, module=lambda shape, classes, rngs: MLP(shape, classes, width=WIDTH, rngs=rngs),
        noise_multiplier=1.0 if noise is None else noise, batch_size=batch, clip_norm=1.0, learning_rate=0.01,
        microbatch_size=128, source=UNTUNED,
    )  # fmt: skip
    return made, epochs


def _rules(arguments: argparse.Namespace) -> tuple[dict[str, Any], tuple[float, float] | None, list[str]]:
    """Returns the rules of columns, the bounds of columns without a rule, and the columns that are left out."""
    rules, drop = _rules_in_file(arguments.columns)
    drop += arguments.drop or []
    everywhere: tuple[float, float] | None = None
    for text in arguments.bounds or []:
        name, _, interval = text.rpartition("=")
        low, colon, high = interval.partition(":")
        if not colon:
            raise ValueError(f"--bounds {text}: give NAME=LOW:HIGH, or LOW:HIGH for all columns of numbers.")
        if name:
            _add(rules, name, _bounds(low, high, text))
        elif everywhere is not None:
            raise ValueError(f"--bounds {text}: all columns without a rule have bounds already.")
        else:
            everywhere = _bounds(low, high, text)
    for text in arguments.categories or []:
        name, equals, names = text.partition("=")
        if not equals:
            raise ValueError(f"--categories {text}: give NAME=A,B,C.")
        _add(rules, name, tuple(part.strip() for part in names.split(",")))
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


def _add(rules: dict[str, Any], name: str, rule: Any) -> None:
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
        found = vars(importlib.import_module(module))
    except (ImportError, SyntaxError) as error:
        raise ValueError(
            f"--model {name}: importing {module} fails ({error}): give a module that lies in {os.getcwd()} or is "
            "installed, with all that it imports."
        ) from error
    if not callable(found.get(attribute)):
        own = [key for key, value in found.items() if getattr(value, "__module__", None) == module and callable(value)]
        raise ValueError(
            f"--model {name}: {module} has no function or class {attribute}: give one of its own, which are "
            f"{', '.join(own) or 'none'}."
        )
    factory: Callable[..., Any] = found[attribute]
    return factory
