"""``jaxacct sweep``: epsilon, delta or the least noise of a whole grid of runs, on all devices or in many jobs.

Its subcommands merge, best, export and plot work on the folders that a sweep wrote.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

from jaxacct import __version__
from jaxacct.choices import Certified, Mode
from jaxacct.cli.arguments import (
    GUARANTEES,
    PICTURES,
    Elsewhere,
    Report,
    add_json,
    add_overwrite,
    add_rate,
    add_relation,
    add_steps,
    file_to_write,
    new_command,
    number,
    round_to,
    scope_of,
)
from jaxacct.display import rate_of, steps_of

AXES = {
    "noise_multiplier": "standard deviation of the noise over the clipping norm",
    "scale": "scale of Laplace noise, for the mechanisms that have it",
    "delta": "asks for epsilon; with --epsilon, and without noise, for the least noise multiplier",
    "epsilon": "asks for delta",
}
"""Axes of a sweep beside sampling rate and steps: the help's text."""

SETTINGS = (*AXES, "sampling_rate", "steps")
"""All axes of a sweep; ``best`` can be limited to ranges of them."""

MECHANISMS = (
    "PoissonSubsampledGaussian", "Gaussian", "GaussianWithoutReplacement", "DiscreteGaussian", "Laplace",
    "PoissonSubsampledLaplace", "LaplaceWithoutReplacement", "DiscreteLaplace",
)  # fmt: skip
"""Classes of mechanisms that a command's axes can describe; the first is the default."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "sweep", run, "epsilon, delta or the least noise of a whole grid of runs",
        "Certified bounds for every combination of the values given. Each axis is a number, numbers with "
        "commas, LOW:HIGH:COUNT[:log], or @FILE: a number on each line, .npy, or @FILE.csv:COLUMN. With --out a part "
        "is on disk as soon as it is finished, and memory does not grow with the settings. No data is looked at, so "
        "this costs nothing; settings that are tried on private data do: jaxacct.train.tune pays for them.",
        "jaxacct sweep --noise-multiplier 0.8:8:5:log --sampling-rate 0.01 --steps 1000 --delta 1e-5",
        "jaxacct sweep --epsilon 1,3,8 --delta 1e-5 --sampling-rate 0.01 --steps 1000",
        "jaxacct sweep --noise-multiplier 0.5:8:64:log --sampling-rate 1e-4:0.1:64:log "
        "--steps 100,1000,10000 --delta 1e-5 --out grid --shard 3/8",
    )  # fmt: skip
    for name, meaning in AXES.items():
        command.add_argument(f"--{name.replace('_', '-')}", metavar="VALUES", help=meaning)
    add_rate(command, str, "VALUES", "none")
    add_steps(command, str, "VALUES")
    command.add_argument(
        "--group", action=Elsewhere, const="a sweep is of single examples; epsilon and calibrate take it"
    )
    command.add_argument(
        "--rows", nargs="?", const="", metavar="FILE.csv",
        help="values go together, the i-th of each, in place of all combinations; columns of FILE.csv are settings",
    )  # fmt: skip
    command.add_argument(
        "--mechanism", metavar="NAMES", default=MECHANISMS[0],
        help=f"one, or several with commas (default: {MECHANISMS[0]}): {', '.join(MECHANISMS)}",
    )  # fmt: skip
    command.add_argument(
        "--mode", choices=get_args(Mode), default="certified",
        help="saddlepoint: fast, entries that do not converge are flagged; certified (default): those by laws of atoms",
    )  # fmt: skip
    command.add_argument(
        "--arithmetic", choices=get_args(Certified), default="auto",
        help="float64, pair (of float32 numbers), or auto (default): pairs where a device has no float64",
    )  # fmt: skip
    add_relation(command)
    command.add_argument("--tolerance", type=number, metavar="T", help="relative gap that these aim at")
    add_json(command, "print one JSON object; with the results, without --out")
    command.add_argument("--devices", type=int, metavar="N", help="CPU devices to compute on (default: all cores)")
    group = command.add_argument_group("results on disk")
    group.add_argument("--out", metavar="FOLDER", help="folder of the results, a Zarr store")
    have = group.add_mutually_exclusive_group()
    have.add_argument("--resume", action="store_true", help="go on from what an interrupted sweep to --out left")
    have.add_argument("--overwrite", action="store_true", help="delete the sweep in --out, and start afresh")
    group.add_argument("--chunk", type=int, metavar="N", help="entries between two savings, at most (32,768 or more)")
    group.add_argument(
        "--shard", metavar="I/N",
        help="part I of N, from 0, which may be anywhere and needs no other: --out NAME becomes NAME-I-of-N",
    )  # fmt: skip
    add_parsers(
        command.add_subparsers(metavar="merge | best | export | plot", title="what is done with folders of results")
    )


def run(arguments: argparse.Namespace) -> int:
    """Sweeps, writes and prints the results, and returns the exit code."""
    from jaxacct.sweep.compute import sweep
    from jaxacct.sweep.description import quantity_of

    start = time.monotonic()
    settings = _settings(arguments)
    how = {name: vars(arguments)[name] for name in ("mode", "tolerance", "arithmetic")}
    quantity = quantity_of(_quantity(settings.values), relation=arguments.relation or "add_or_remove", **how)
    quantity.check(settings)
    out = None if arguments.out is None else pathlib.Path(arguments.out)
    if out is not None and out.suffix in (".npz", ".csv", ".json", ".parquet"):
        raise ValueError(
            f"--out {out}: results go to a folder: give --out {out.with_suffix('')}, then jaxacct sweep export "
            f"{out.with_suffix('')} FILE."
        )
    shard = None if arguments.shard is None else _shard(arguments.shard)
    if out is not None and shard is not None:
        out = out.with_name(f"{out.name}-{shard[0]}-of-{shard[1]}")
    _use_all_cores(arguments.devices)
    kept = {name: vars(arguments)[name] for name in ("resume", "overwrite", "chunk")}
    try:
        found = sweep(quantity, settings, out=out, shard=shard, **kept)
    except KeyboardInterrupt:
        if out is not None:
            raise KeyboardInterrupt(f"finished parts are kept in {out}: give --resume to go on") from None
        raise
    record = describe_sweep(found, out) | {"seconds": time.monotonic() - start}
    results = {"results": found.as_dict()["results"]} if arguments.json and out is None else {}
    _report(record | results, found).show(arguments.json)
    return 0


def _shard(text: str) -> tuple[int, int]:
    """Returns the part's number and the number of parts that I/N gives."""
    index, slash, count = text.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise ValueError(f"shard = {text!r} is not understood: give the part's number and how many there are, 0/8.")
    return int(index), int(count)


def _settings(arguments: argparse.Namespace) -> Any:
    """Returns the settings of the arguments: a grid, or rows; batches and epochs become rates and steps."""
    import numpy as np

    from jaxacct import validation
    from jaxacct.mechanisms.records import KINDS
    from jaxacct.sweep import grid, read_columns, rows
    from jaxacct.sweep.description import parsed

    names = arguments.mechanism.split(",")
    for name in names:
        validation.check_one_of(name, "mechanism", MECHANISMS)
    classes = [KINDS[name] for name in names]
    given = {name: vars(arguments)[name] for name in SETTINGS}
    axes = {name: parsed(text, name, whole=name == "steps") for name, text in given.items() if text is not None}
    if arguments.batch_size is not None or arguments.examples is not None:
        if arguments.batch_size is None or arguments.examples is None or "sampling_rate" in axes:
            raise ValueError("--batch-size and --examples go together, in place of --sampling-rate: give both.")
        batches = parsed(arguments.batch_size, "batch_size")
        axes["sampling_rate"] = _each(lambda batch: rate_of(batch, arguments.examples), batches)
    if arguments.rows:
        columns = read_columns(arguments.rows)
        if twice := sorted(columns.keys() & axes.keys()):
            raise ValueError(f"--rows {arguments.rows} has a column {twice[0]}, which is given as well: leave one out.")
        axes = columns | axes
    if arguments.epochs is not None:
        rate = axes.get("sampling_rate")
        if "steps" in axes or rate is None or np.ndim(rate):
            raise ValueError("--epochs stands in for --steps at one sampling rate: give a single one, or --steps.")
        axes["steps"] = _each(lambda epochs: steps_of(epochs, float(rate)), parsed(arguments.epochs, "epochs"))
    layout = grid if arguments.rows is None else rows
    return layout(classes[0] if len(classes) == 1 else classes, **axes)


def _each(function: Callable[[float], float], values: Any) -> Any:
    """Returns a function's value at a number, or its values at each of a list."""
    import numpy as np

    return np.array([function(float(value)) for value in values]) if np.ndim(values) else function(float(values))


def _quantity(given: dict[str, Any]) -> str:
    """Returns the quantity that is looked for, the one that is not given."""
    if "delta" not in given and "epsilon" not in given:
        raise ValueError("--delta is missing: give it for epsilon, --epsilon for delta, or both for the least noise.")
    if "delta" not in given:
        return "delta"
    if "epsilon" not in given:
        return "epsilon"
    if "noise_multiplier" in given:
        raise ValueError("--noise-multiplier, --delta and --epsilon are all given: leave out what is looked for.")
    return "noise_multiplier"


def _use_all_cores(devices: int | None) -> None:
    """Makes a CPU as many devices as it has cores, a setting of JAX that the command may choose and no library."""
    import jax

    from jaxacct import validation

    if devices is None:
        if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
            return
        devices = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    devices = validation.check_whole(devices, "devices", 1, 4096, "a number of devices")
    with contextlib.suppress(RuntimeError):  # a process that has computed already keeps its devices
        jax.config.update("jax_num_cpu_devices", devices)


def _report(record: dict[str, Any], found: Any) -> Report:
    """Returns the first entries and a summary; only the parts that hold these entries are read."""
    first: dict[str, list[Any]] = {}
    shown = 20
    for piece in found.pieces():
        first = {name: (first.get(name, []) + values[:shown].tolist())[:shown] for name, values in piece.items()}
        if len(first["upper"]) == shown:
            break
    counts, seconds, remarks = record["counts"], record["seconds"], _explain_inf(first)
    if counts["entries"] > shown:
        remarks += [f"... {counts['entries'] - shown:,} more" + ("" if record["out"] else ": give --out for all")]
    facts = facts_of_sweep(record, f" in {seconds:.1f} s, {counts['entries'] / seconds:,.0f} a second")
    return Report(record, facts, columns=list_entries(found, first), remarks=remarks)


# ----------------------------------------------------------------------------------------------------
# The subcommands ``jaxacct sweep merge | best | export | plot``, on folders that ``jaxacct sweep --out`` wrote.
# ----------------------------------------------------------------------------------------------------


def add_parsers(commands: Any) -> None:
    """Adds the subcommands of ``jaxacct sweep``."""
    command = new_command(
        commands, "merge", merge, "the whole sweep, of its shards",
        "Puts the folders of all shards together, having compared every checksum. On one disk nothing is "
        "copied. What is missing, given twice or of another sweep is refused.",
        "jaxacct sweep merge grid grid-*-of-8",
    )  # fmt: skip
    command.add_argument(
        "folder", metavar="FOLDER", help="the whole sweep: new, or left by a merge that was interrupted"
    )
    command.add_argument("shards", metavar="SHARD", nargs="+", help="the folders of all shards")
    add_json(command)

    command = new_command(
        commands, "best", best, "the best settings for a budget",
        "The settings of least noise, or as --least or --most say, whose upper bound is within a budget.",
        "jaxacct sweep best grid --epsilon 2 --steps-min 1000",
    )  # fmt: skip
    command.add_argument("folder", metavar="FOLDER", help="folder of the results")
    command.add_argument("--epsilon", type=number, metavar="E", help="budget, of a sweep for epsilon or for noise")
    command.add_argument("--delta", type=number, metavar="D", help="budget, of a sweep for delta")
    by = command.add_mutually_exclusive_group()
    by.add_argument("--least", metavar="NAME", help="setting or result of which less is better (default: the noise)")
    by.add_argument("--most", metavar="NAME", help="setting or result of which more is better")
    command.add_argument("--count", type=int, default=10, metavar="N", help="how many are wanted (10)")
    limits = "the least steps; likewise --steps-max, and both of every setting"
    for name in SETTINGS:
        shown = limits if name == "steps" else argparse.SUPPRESS
        command.add_argument(f"--{name.replace('_', '-')}-min", type=number, metavar="X", help=shown)
        command.add_argument(f"--{name.replace('_', '-')}-max", type=number, metavar="X", help=argparse.SUPPRESS)
    add_json(command)

    command = new_command(
        commands, "export", export, "a file for others: .csv, .parquet or .json",
        "A line for each entry (.csv, .parquet), made chunk by chunk, or one JSON object. Readers of Zarr "
        "need no export: the folder is a Zarr store.",
        "jaxacct sweep export grid grid.parquet",
    )  # fmt: skip
    command.add_argument("folder", metavar="FOLDER", help="folder of the results")
    command.add_argument("file", metavar="FILE", help="file to write; the suffix says the format")
    add_overwrite(command)

    command = new_command(
        commands, "plot", plot, "a picture over one or two axes",
        "A map of the upper bound over two axes, or a curve over one, of at most 256 values each: "
        "every number drawn is one of the sweep's.",
        "jaxacct sweep plot grid grid.png --at steps=1000",
    )  # fmt: skip
    command.add_argument("folder", metavar="FOLDER", help="folder of the results")
    command.add_argument("file", metavar="FILE", help=f"picture to write: {', '.join(PICTURES)}")
    command.add_argument("--at", metavar="AXIS=VALUE", action="append", default=[], help="fixes a further axis")
    add_overwrite(command)


def merge(arguments: argparse.Namespace) -> int:
    """Merges shards, prints a summary, and returns the exit code."""
    from jaxacct.sweep import merge

    found = merge(arguments.folder, arguments.shards)
    record = describe_sweep(found, arguments.folder)
    Report(record, facts_of_sweep(record)).show(arguments.json)
    return 0


def best(arguments: argparse.Namespace) -> int:
    """Finds the best settings, prints them, and returns the exit code."""
    from jaxacct.sweep import load

    found = load(arguments.folder)
    budget, other = ("delta", "epsilon") if found.quantity == "delta" else ("epsilon", "delta")
    given = vars(arguments)
    if given[budget] is None or given[other] is not None:
        raise ValueError(
            f"{arguments.folder} is a sweep for {found.quantity}: give --{budget}, the budget, and not --{other}."
        )
    limits = {name: (given[f"{name}_min"], given[f"{name}_max"]) for name in SETTINGS}
    ranges = {name: limit for name, limit in limits.items() if limit != (None, None)}
    entries = found.best(given[budget], least=arguments.least, most=arguments.most, count=arguments.count, **ranges)
    columns = {name: values.tolist() for name, values in entries.items()}
    about = {
        name: value for name, value in describe_sweep(found, arguments.folder).items() if name not in ("counts", "axes")
    }

    record = about | {"results": columns}
    if columns:
        report = Report(record, columns=list_entries(found, columns), remarks=_explain_inf(columns))
    else:
        report = Report(record, remarks=["none: no entry within the budget and the ranges."])
    report.show(arguments.json)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Writes the results to a file, and returns the exit code."""
    from jaxacct.sweep import load
    from jaxacct.sweep.result import SUFFIXES

    path = file_to_write(arguments.file, SUFFIXES, arguments)
    load(arguments.folder).save(path)
    return 0


def plot(arguments: argparse.Namespace) -> int:
    """Draws the results, and returns the exit code."""
    from jaxacct import plot as plots
    from jaxacct.plot.chart import own_figure
    from jaxacct.sweep import load

    figure = own_figure()
    path = file_to_write(arguments.file, PICTURES, arguments)
    found, at = load(arguments.folder), dict(_parse_fixed(text) for text in arguments.at)
    free = [name for name, values in found.axes.items() if len(values) > 1 and name not in at]
    if len(free) > 2:
        raise ValueError(f"a picture has one or two axes, and here are {', '.join(free)}: fix others by --at.")
    plots.sweep(found, axes=figure.subplots(), **at)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return 0


def _parse_fixed(text: str) -> tuple[str, float | str]:
    """Returns the axis and value that AXIS=VALUE gives."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--at {text} is not understood: give an axis and its value, steps=1000.")
    return name.replace("-", "_"), value if name == "mechanism" else float(value)


def describe_sweep(found: Any, out: Any) -> dict[str, Any]:
    """Returns the description of a sweep as JSON has it, without its results and the time it took."""
    from jaxacct.sweep.description import question_of

    shows_axes = out is None or found.layout == "grid"
    return {
        **question_of(found),
        "axes": {name: values.tolist() for name, values in found.axes.items()} if shows_axes else {},
        "shape": list(found.shape),
        "counts": found.counts(),
        "out": None if out is None else str(out),
        "guarantee": GUARANTEES["saddlepoint" if found.mode == "saddlepoint" else "best"],
        "scope": scope_of(found.relation),
        "version": __version__,
    }


def facts_of_sweep(record: dict[str, Any], pace: str = "") -> list[tuple[str, str]]:
    """Returns the summary of a sweep from its record, as names and texts."""
    counts = record["counts"]
    return [
        ("entries", f"{counts['entries']:,}{pace}"),
        ("flagged", f"{counts['flagged']:,} not converged; {counts['atoms']:,} answered by laws of atoms"),
        ("guarantee", record["guarantee"]),
        ("holds for", record["scope"]),
        *([("written to", record["out"])] if record["out"] else []),
    ]


def list_entries(found: Any, columns: dict[str, list[Any]]) -> tuple[list[str], list[Sequence[str]]]:
    """Returns names and rows of entries, given by column: the settings that vary, and the bounds rounded outward."""
    names = [*found.columns, *(name for name in found.results if name not in ("estimate", "converged"))]
    cells = [[_cell(name, value, found.columns) for value in columns[name]] for name in names]
    return names, list(zip(*cells, strict=True))


def _explain_inf(columns: dict[str, list[Any]]) -> list[str]:
    """Returns a line on infinite bounds, where there are some."""
    if all(value < float("inf") for value in columns["upper"]):
        return []
    return ["inf: no noise, failures more likely than delta, or no bound is known: jaxacct epsilon says which"]


def _cell(name: str, value: Any, settings: Any) -> str:
    """Returns a value as text: a setting as it is, a bound or a least noise rounded to its safe side."""
    if isinstance(value, str):
        return value
    if name in settings:
        return f"{value:.10g}"
    return round_to("upper" if name in ("upper", "noise_multiplier") else name, value)
