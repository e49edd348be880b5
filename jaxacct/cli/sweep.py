"""``jaxacct sweep``: epsilon, delta or the least noise of a whole grid of runs, on all devices or in many jobs.

Its subcommands merge, best, export and plot work on the folders that a sweep wrote.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Container
from typing import Any, get_args

from jaxacct import __version__
from jaxacct.choices import Certified, Mode
from jaxacct.cli.arguments import (
    GUARANTEES,
    PICTURES,
    Elsewhere,
    Report,
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
"""Axes of a sweep other than sampling rate and steps: the help's text."""

SETTINGS = (*AXES, "sampling_rate", "steps")
"""All axes of a sweep; ``best`` takes ranges of them."""

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
        json="print one JSON object; with the results, without --out",
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


def run(arguments: argparse.Namespace) -> Report:
    """Sweeps, and returns the report, with the first entries; it reads only the parts that hold these."""
    from jaxacct.sweep.compute import sweep
    from jaxacct.sweep.description import quantity_of

    start = time.monotonic()
    settings = _settings(arguments)
    how = {name: vars(arguments)[name] for name in ("mode", "tolerance", "arithmetic")}
    quantity = quantity_of(_quantity(settings.values), relation=arguments.relation or "add_or_remove", **how)
    quantity.check(settings)
    out, shard = _out_and_shard(arguments)
    _use_all_cores(arguments.devices)
    storage = {name: vars(arguments)[name] for name in ("resume", "overwrite", "chunk")}
    try:
        results = sweep(quantity, settings, out=out, shard=shard, **storage)
    except KeyboardInterrupt:
        if out is not None:
            raise KeyboardInterrupt(f"finished parts are kept in {out}: give --resume to go on") from None
        raise
    seconds = time.monotonic() - start
    record = describe_sweep(results, out) | {"seconds": seconds}
    first: dict[str, list[Any]] = {}
    shown = 20
    for piece in results.pieces():
        first = {name: (first.get(name, []) + values[:shown].tolist())[:shown] for name, values in piece.items()}
        if len(first["upper"]) == shown:
            break
    entries = record["counts"]["entries"]
    columns, remarks = list_entries(results, first)
    if entries > shown:
        remarks += [f"... {entries - shown:,} more" + ("" if out else ": give --out for all")]
    facts = facts_of_sweep(record, f" in {seconds:.1f} s, {entries / seconds:,.0f} a second")
    if arguments.json and out is None:
        record["results"] = results.as_dict()["results"]
    return Report(record, facts, columns=columns, remarks=remarks)


def _out_and_shard(arguments: argparse.Namespace) -> tuple[pathlib.Path | None, tuple[int, int] | None]:
    """Returns the folder of results, a shard's own one, with the shard's number and the number of shards."""
    out, shard = None, None
    if arguments.out is not None:
        out = pathlib.Path(arguments.out)
        if out.suffix in (".npz", ".csv", ".json", ".parquet"):
            folder = out.with_suffix("")
            raise ValueError(
                f"--out {out}: results go to a folder: give --out {folder}, then jaxacct sweep export {folder} FILE."
            )
    if arguments.shard is not None:
        index, slash, count = arguments.shard.partition("/")
        if not slash or not index.isdecimal() or not count.isdecimal():
            raise ValueError(
                f"shard = {arguments.shard!r} is not understood: give the part's number and how many there are, 0/8."
            )
        shard = int(index), int(count)
        if out is not None:
            out = out.with_name(f"{out.name}-{shard[0]}-of-{shard[1]}")
    return out, shard


def _settings(arguments: argparse.Namespace) -> Any:
    """Returns the settings of the arguments: a grid, or rows."""
    from jaxacct import validation
    from jaxacct.mechanisms.records import KINDS
    from jaxacct.sweep import grid, read_columns, rows
    from jaxacct.sweep.description import parsed

    names = arguments.mechanism.split(",")
    for name in names:
        validation.check_one_of(name, "mechanism", MECHANISMS)
    classes = [KINDS[name] for name in names]
    texts = {name: vars(arguments)[name] for name in SETTINGS}
    axes = {name: parsed(text, name, integers=name == "steps") for name, text in texts.items() if text is not None}
    _add_rates(axes, arguments)
    if arguments.rows:
        columns = read_columns(arguments.rows)
        if twice := sorted(columns.keys() & axes.keys()):
            raise ValueError(f"--rows {arguments.rows} has a column {twice[0]}, which is given as well: leave one out.")
        axes = columns | axes
    if arguments.epochs is not None:
        _add_steps(axes, arguments)
    layout = grid if arguments.rows is None else rows
    return layout(classes[0] if len(classes) == 1 else classes, **axes)


def _add_rates(axes: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Adds the sampling rates of batch sizes to the axes, where the arguments have them."""
    from jaxacct.sweep.description import parsed

    if arguments.batch_size is None and arguments.examples is None:
        return
    if arguments.batch_size is None or arguments.examples is None or "sampling_rate" in axes:
        raise ValueError("--batch-size and --examples go together, in place of --sampling-rate: give both.")
    batches = parsed(arguments.batch_size, "batch_size")
    axes["sampling_rate"] = _map_numbers(lambda batch: rate_of(batch, arguments.examples), batches)


def _add_steps(axes: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Adds the steps of epochs to the axes."""
    import numpy as np

    from jaxacct.sweep.description import parsed

    rate = axes.get("sampling_rate")
    if "steps" in axes or rate is None or np.ndim(rate):
        raise ValueError("--epochs stands in for --steps at one sampling rate: give a single one, or --steps.")
    axes["steps"] = _map_numbers(lambda epochs: steps_of(epochs, float(rate)), parsed(arguments.epochs, "epochs"))


def _map_numbers(function: Callable[[float], float], values: Any) -> Any:
    """Returns a function's value at a number, or its values at each of a list."""
    import numpy as np

    return np.array([function(float(value)) for value in values]) if np.ndim(values) else function(float(values))


def _quantity(names: Container[str]) -> str:
    """Returns the quantity that the sweep looks for, the one that no setting has."""
    missing = [name for name in ("delta", "epsilon", "noise_multiplier") if name not in names]
    if missing[:2] == ["delta", "epsilon"]:
        raise ValueError("--delta is missing: give it for epsilon, --epsilon for delta, or both for the least noise.")
    if not missing:
        raise ValueError("--noise-multiplier, --delta and --epsilon are all given: leave out what is looked for.")
    return missing[0]


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

    command = new_command(
        commands, "export", export, "a file for others: .csv, .parquet or .json",
        "A line for each entry (.csv, .parquet), made chunk by chunk, or one JSON object. Readers of Zarr "
        "need no export: the folder is a Zarr store.",
        "jaxacct sweep export grid grid.parquet", json="",
    )  # fmt: skip
    command.add_argument("folder", metavar="FOLDER", help="folder of the results")
    command.add_argument("file", metavar="FILE", help="file to write; the suffix says the format")
    add_overwrite(command)

    command = new_command(
        commands, "plot", plot, "a picture over one or two axes",
        "A map of the upper bound over two axes, or a curve over one, of at most 256 values each: "
        "every number drawn is one of the sweep's.",
        "jaxacct sweep plot grid grid.png --at steps=1000", json="",
    )  # fmt: skip
    command.add_argument("folder", metavar="FOLDER", help="folder of the results")
    command.add_argument("file", metavar="FILE", help=f"picture to write: {', '.join(PICTURES)}")
    command.add_argument("--at", metavar="AXIS=VALUE", action="append", default=[], help="fixes a further axis")
    add_overwrite(command)


def merge(arguments: argparse.Namespace) -> Report:
    """Merges shards, and returns the report on the sweep."""
    from jaxacct.sweep import merge

    record = describe_sweep(merge(arguments.folder, arguments.shards), arguments.folder)
    return Report(record, facts_of_sweep(record))


def best(arguments: argparse.Namespace) -> Report:
    """Returns the report on the best settings."""
    from jaxacct.sweep import load

    results = load(arguments.folder)
    budget, other = ("delta", "epsilon") if results.quantity == "delta" else ("epsilon", "delta")
    options = vars(arguments)
    if options[budget] is None or options[other] is not None:
        raise ValueError(
            f"{arguments.folder} is a sweep for {results.quantity}: give --{budget}, the budget, and not --{other}."
        )
    limits = {name: (options[f"{name}_min"], options[f"{name}_max"]) for name in SETTINGS}
    ranges = {name: limit for name, limit in limits.items() if limit != (None, None)}
    entries = results.best(options[budget], least=arguments.least, most=arguments.most, count=arguments.count, **ranges)
    columns = {name: values.tolist() for name, values in entries.items()}
    record = describe_sweep(results, arguments.folder) | {"results": columns}
    del record["counts"], record["axes"]
    if not columns:
        return Report(record, remarks=["none: no entry within the budget and the ranges."])
    table, remarks = list_entries(results, columns)
    return Report(record, columns=table, remarks=remarks)


def export(arguments: argparse.Namespace) -> Report:
    """Writes the results to a file."""
    from jaxacct.sweep import load
    from jaxacct.sweep.result import WRITERS

    path = file_to_write(arguments.file, tuple(WRITERS), arguments)
    load(arguments.folder).save(path)
    return Report()


def plot(arguments: argparse.Namespace) -> Report:
    """Draws the results."""
    from jaxacct import plot as plots
    from jaxacct.plot.chart import own_figure
    from jaxacct.sweep import load

    figure = own_figure()
    path = file_to_write(arguments.file, PICTURES, arguments)
    results, fixed = load(arguments.folder), dict(_parse_fixed(text) for text in arguments.at)
    free = [name for name, values in results.axes.items() if len(values) > 1 and name not in fixed]
    if len(free) > 2:
        raise ValueError(f"a picture has one or two axes, and here are {', '.join(free)}: fix others by --at.")
    plots.sweep(results, axes=figure.subplots(), **fixed)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return Report()


def _parse_fixed(text: str) -> tuple[str, float | str]:
    """Returns the axis and value that AXIS=VALUE gives."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--at {text} is not understood: give an axis and its value, steps=1000.")
    return name.replace("-", "_"), value if name == "mechanism" else float(value)


def describe_sweep(results: Any, out: Any) -> dict[str, Any]:
    """Returns the description of a sweep as JSON has it, without its results and the time it took."""
    from jaxacct.sweep.description import question_of

    shows_axes = out is None or results.layout == "grid"
    return {
        **question_of(results),
        "axes": {name: values.tolist() for name, values in results.axes.items()} if shows_axes else {},
        "shape": list(results.shape),
        "counts": results.counts(),
        "out": None if out is None else str(out),
        "guarantee": GUARANTEES["saddlepoint" if results.mode == "saddlepoint" else "best"],
        "scope": scope_of(results.relation),
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


def list_entries(
    results: Any, columns: dict[str, list[Any]]
) -> tuple[tuple[list[str], list[tuple[str, ...]]], list[str]]:
    """Returns names and rows of entries, the settings that vary and the bounds, and a line on infinite ones."""
    names = [*results.columns, *(name for name in results.results if name not in ("estimate", "converged"))]

    def cell(name: str, value: Any) -> str:
        """Returns a value as text: a setting as it is, a bound or a least noise rounded to its safe side."""
        if isinstance(value, str):
            return value
        if name in results.columns:
            return f"{value:.10g}"
        return round_to("upper" if name in ("upper", "noise_multiplier") else name, value)

    rows = [*zip(*([cell(name, value) for value in columns[name]] for name in names), strict=True)]
    remark = "inf: no noise, failures more likely than delta, or no bound is known: jaxacct epsilon says which"
    return (names, rows), [] if all(value < float("inf") for value in columns["upper"]) else [remark]
