"""``jaxacct sweep merge | best | export | plot``: what is done with folders that ``jaxacct sweep --out`` wrote."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from jaxacct.cli.arguments import PICTURES, add_json, add_overwrite, check_free, examples, number
from jaxacct.cli.shown import GUARANTEES, print_columns, print_facts, rounded, scope_of, show

FILTERS = ("noise-multiplier", "scale", "sampling-rate", "steps", "delta", "epsilon")
"""Settings whose ranges may be asked for."""


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="FOLDER", help="folder of the results")


def add_parsers(commands: Any) -> None:
    """Adds the subcommands of ``jaxacct sweep``."""
    command = commands.add_parser(
        "merge",
        help="the whole sweep, of its shards",
        description="Puts the folders of all shards together, having compared every checksum. On one disk nothing is "
        "copied. What is missing, given twice or of another sweep is refused.",
        epilog=examples("jaxacct sweep merge grid grid-*-of-8"),
    )
    command.add_argument(
        "folder", metavar="FOLDER", help="the whole sweep: new, or left by a merge that was interrupted"
    )
    command.add_argument("shards", metavar="SHARD", nargs="+", help="the folders of all shards")
    add_json(command)
    command.set_defaults(run=merge)

    command = commands.add_parser(
        "best",
        help="the best settings for a budget",
        description="The settings of least noise, or as --least or --most say, whose upper bound is within a budget.",
        epilog=examples("jaxacct sweep best grid --epsilon 2 --steps-min 1000"),
    )
    _add_folder(command)
    command.add_argument("--epsilon", type=number, metavar="E", help="budget, of a sweep for epsilon or for noise")
    command.add_argument("--delta", type=number, metavar="D", help="budget, of a sweep for delta")
    by = command.add_mutually_exclusive_group()
    by.add_argument("--least", metavar="NAME", help="setting or result of which less is better (default: the noise)")
    by.add_argument("--most", metavar="NAME", help="setting or result of which more is better")
    command.add_argument("--count", type=int, default=10, metavar="N", help="how many are wanted (10)")
    for name in FILTERS:
        shown = (
            "the least steps; likewise --steps-max, and both of every setting" if name == "steps" else argparse.SUPPRESS
        )
        command.add_argument(f"--{name}-min", type=number, metavar="X", help=shown)
        command.add_argument(f"--{name}-max", type=number, metavar="X", help=argparse.SUPPRESS)
    add_json(command)
    command.set_defaults(run=best)

    command = commands.add_parser(
        "export",
        help="a file for others: .csv, .parquet or .json",
        description="A line for each entry (.csv, .parquet), made chunk by chunk, or one JSON object. Readers of Zarr "
        "need no export: the folder is a Zarr store.",
        epilog=examples("jaxacct sweep export grid grid.parquet"),
    )
    _add_folder(command)
    command.add_argument("file", metavar="FILE", help="file to write; the suffix says the format")
    add_overwrite(command)
    command.set_defaults(run=export)

    command = commands.add_parser(
        "plot",
        help="a picture over one or two axes",
        description="A map of the upper bound over two axes, or a curve over one, of at most 256 values each: "
        "every number drawn is one of the sweep's.",
        epilog=examples("jaxacct sweep plot grid grid.png --at steps=1000"),
    )
    _add_folder(command)
    command.add_argument("file", metavar="FILE", help=f"picture to write: {', '.join(PICTURES)}")
    command.add_argument("--at", metavar="AXIS=VALUE", action="append", default=[], help="fixes a further axis")
    add_overwrite(command)
    command.set_defaults(run=plot)


def merge(arguments: argparse.Namespace) -> int:
    """Merges, prints what came out, and returns the exit code."""
    from jaxacct.sweep import merge

    found = merge(arguments.folder, arguments.shards)
    record = described(found, arguments.folder)
    show(record, arguments.json, lambda: print_about(record))
    return 0


def best(arguments: argparse.Namespace) -> int:
    """Looks for the best settings, prints them, and returns the exit code."""
    from jaxacct.sweep import load

    found = load(arguments.folder)
    budget, other = ("delta", "epsilon") if found.quantity == "delta" else ("epsilon", "delta")
    given = vars(arguments)
    if given[budget] is None or given[other] is not None:
        raise ValueError(
            f"{arguments.folder} is a sweep for {found.quantity}: give --{budget}, the budget, and not --{other}."
        )
    limits = {name.replace("-", "_"): tuple(given[f"{name.replace('-', '_')}_{end}"] for end in ("min", "max"))
              for name in FILTERS}  # fmt: skip
    ranges = {name: limit for name, limit in limits.items() if limit != (None, None)}
    entries = found.best(given[budget], least=arguments.least, most=arguments.most, count=arguments.count, **ranges)
    columns = {name: values.tolist() for name, values in entries.items()}
    about = {
        name: value for name, value in described(found, arguments.folder).items() if name not in ("counts", "axes")
    }

    def table() -> None:
        if columns:
            print_entries(found, columns)
        else:
            print("none: no entry within the budget and the ranges.")

    show(about | {"results": columns}, arguments.json, table)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Writes a file, and returns the exit code."""
    from jaxacct.sweep import load
    from jaxacct.sweep.export import check_suffix

    path = pathlib.Path(arguments.file)
    check_suffix(path)
    check_free(path, arguments)
    load(arguments.folder).save(path)
    return 0


def plot(arguments: argparse.Namespace) -> int:
    """Draws, and returns the exit code."""
    from jaxacct import plot as plots
    from jaxacct.plot.style import own_figure
    from jaxacct.sweep import load
    from jaxacct.sweep.export import check_suffix

    figure = own_figure()
    path = pathlib.Path(arguments.file)
    check_suffix(path, PICTURES)
    check_free(path, arguments)
    found, at = load(arguments.folder), dict(_fixed(text) for text in arguments.at)
    free = [name for name, values in found.axes.items() if len(values) > 1 and name not in at]
    if len(free) > 2:
        raise ValueError(f"a picture has one or two axes, and here are {', '.join(free)}: fix others by --at.")
    plots.sweep(found, axes=figure.subplots(), **at)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return 0


def _fixed(text: str) -> tuple[str, float | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--at {text} is not understood: give an axis and its value, steps=1000.")
    return name.replace("-", "_"), value if name == "mechanism" else float(value)


def described(found: Any, out: Any) -> dict[str, Any]:
    """Returns what is said of a sweep, but for its results and how long it took, as JSON has it."""
    from jaxacct import __version__

    guarantee = GUARANTEES["saddlepoint" if found.mode == "saddlepoint" else "best"]
    return {
        "quantity": found.quantity,
        "mode": found.mode,
        "relation": found.relation,
        "tolerance": found.tolerance,
        "arithmetic": found.arithmetic,
        "mechanisms": found.mechanisms,
        "layout": found.layout,
        "constants": found.constants,
        "axes": {name: values.tolist() for name, values in found.axes.items()}
        if out is None or found.layout == "grid"
        else {},
        "shape": list(found.shape),
        "counts": found.counts(),
        "out": None if out is None else str(out),
        "guarantee": guarantee,
        "scope": scope_of(found.relation),
        "version": __version__,
    }


def print_about(record: dict[str, Any], pace: str = "") -> None:
    """Prints what a record says of a sweep."""
    counts = record["counts"]
    facts = [
        ("entries", f"{counts['entries']:,}{pace}"),
        ("flagged", f"{counts['flagged']:,} not converged; {counts['prv']:,} answered by the mesh"),
        ("guarantee", record["guarantee"]),
        ("holds for", record["scope"]),
        *([("written to", record["out"])] if record["out"] else []),
    ]
    print_facts("", facts)


def print_entries(found: Any, columns: dict[str, list[Any]]) -> None:
    """Prints entries, by column: what varies, and the bounds rounded outward."""
    names = [*found.columns, *(name for name in found.results if name not in ("estimate", "converged"))]
    cells = [[_cell(name, value, found.columns) for value in columns[name]] for name in names]
    print_columns(names, list(zip(*cells, strict=True)))
    if any(value == float("inf") for value in columns["upper"]):
        print("inf: no noise, failures more likely than delta, or no bound is known: jaxacct epsilon says which")


def _cell(name: str, value: Any, settings: Any) -> str:
    if isinstance(value, str):
        return value
    if name in settings:
        return f"{value:.10g}"
    return rounded("upper" if name in ("upper", "noise_multiplier") else name, value)
