"""``jaxacct sweep``: epsilon, delta or the least noise of a whole grid of runs, on all devices or in many jobs."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import sys
from typing import Any

from jaxacct import strict_json
from jaxacct.cli.arguments import RELATIONS, add_json, add_relation, examples, number
from jaxacct.cli.shown import GUARANTEES, SCOPE, print_columns, print_facts, rounded

AXES = {
    "noise-multiplier": "standard deviation of the noise over the clipping norm",
    "scale": "scale of Laplace noise, for the mechanisms that have it",
    "sampling-rate": "probability of each example to be in a batch, a fraction",
    "steps": "number of noisy updates; a range is rounded to whole numbers",
    "delta": "asks for epsilon; with --epsilon, and without noise, for the least noise multiplier",
    "epsilon": "asks for delta",
}
MECHANISMS = (
    "PoissonSubsampledGaussian", "Gaussian", "GaussianWithoutReplacement", "DiscreteGaussian", "Laplace",
    "PoissonSubsampledLaplace", "LaplaceWithoutReplacement", "DiscreteLaplace",
)  # fmt: skip
MODES = {"saddlepoint": "saddlepoint", "certified": "best"}
"""The modes by the accountant whose guarantee they have."""

SHOWN = 20
"""Entries printed."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "sweep",
        help="epsilon, delta or the least noise of a whole grid of runs",
        description="Certified bounds for every combination of the values given. Each axis is a number, numbers with "
        "commas, or LOW:HIGH:COUNT[:log]. Finished parts are kept beside the result until that is whole.",
        epilog=examples(
            "jaxacct sweep --noise-multiplier 0.8:8:5:log --sampling-rate 0.01 --steps 1000 --delta 1e-5",
            "jaxacct sweep --epsilon 1,3,8 --delta 1e-5 --sampling-rate 0.01 --steps 1000",
            "jaxacct sweep --noise-multiplier 0.5:8:64:log --sampling-rate 1e-4:0.1:64:log "
            "--steps 100,1000,10000 --delta 1e-5 --out sweep.npz --shard 3/8",
        ),
    )
    for name, meaning in AXES.items():
        command.add_argument(f"--{name}", metavar="VALUES", help=meaning)
    command.add_argument(
        "--mechanism", metavar="NAMES", default=MECHANISMS[0],
        help=f"one, or several with commas (default: {MECHANISMS[0]}): {', '.join(MECHANISMS)}",
    )  # fmt: skip
    command.add_argument(
        "--mode", choices=tuple(MODES), default="certified",
        help="saddlepoint: fast, entries that do not converge are flagged; certified (default): those by the mesh",
    )  # fmt: skip
    add_relation(command, (*RELATIONS, "replace"))
    command.add_argument("--tolerance", type=number, metavar="T", help="relative gap that the mesh aims at")
    command.add_argument("--out", metavar="FILE", help="the results: .npz, .csv or .json")
    command.add_argument("--resume", action="store_true", help="go on from what an interrupted sweep to --out left")
    add_json(command, "print one JSON object; with the results, without --out")
    command.add_argument("--devices", type=int, metavar="N", help="CPU devices to compute on (default: all cores)")
    command.add_argument("--chunk", type=int, default=8192, metavar="N", help="entries between two savings (8192)")
    group = command.add_argument_group("many jobs", "each by itself, anywhere; with equal arguments but for these")
    jobs = group.add_mutually_exclusive_group()
    jobs.add_argument("--shard", metavar="I/N", help="share I of N, from 0: --out NAME.npz becomes NAME-I-of-N.npz")
    jobs.add_argument("--merge", nargs="+", metavar="FILE", help="the files of all shares: --out is the whole sweep")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sweeps, writes and prints the results, and returns the exit code."""
    from jaxacct.sweep.quantities import quantity_of
    from jaxacct.sweep.result import check_suffix, load, merge

    settings = _settings(arguments)
    quantity = quantity_of(_quantity(arguments), arguments.mode, arguments.relation, arguments.tolerance)
    quantity.check(settings)
    out = None if arguments.out is None else pathlib.Path(arguments.out)
    if arguments.shard is not None:
        settings, out = _shard(arguments.shard, settings, out)
    # What cannot be written should fail before hours of computing, not after them.
    if out is not None:
        check_suffix(out)
        out.parent.mkdir(parents=True, exist_ok=True)
    elif arguments.resume:
        raise ValueError("--resume goes on from what a sweep to --out left: give --out.")
    if arguments.merge is None:
        found = _computed(arguments, quantity, settings, out)
    else:
        found = merge(settings, map(load, arguments.merge))
        if (found.quantity, found.mode, found.relation) != (quantity.name, quantity.mode, quantity.relation):
            raise ValueError(f"--merge: the shares are of {found.quantity}, {found.mode}, {found.relation}: say so.")
        if out is not None:
            found.save(out)
    record = _record(arguments, found, out)
    if arguments.json:
        print(strict_json.dumps(record))
    else:
        _print(record, found)
    return 0


def _shard(text: str, settings: Any, out: pathlib.Path | None) -> tuple[Any, pathlib.Path]:
    """Returns the settings of a share, and the file of its results: no two shares write to the same."""
    index, slash, count = text.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise ValueError(f"shard = {text!r} is not understood: give the share's number and how many there are, 0/8.")
    if out is None or out.suffix != ".npz":
        raise ValueError(f"--shard {text} needs a file to be merged from: give --out NAME.npz.")
    return settings.shard(int(index), int(count)), out.with_name(f"{out.stem}-{int(index)}-of-{int(count)}.npz")


def _computed(arguments: argparse.Namespace, quantity: Any, settings: Any, out: pathlib.Path | None) -> Any:
    """Returns the results, which are in ``out``; finished chunks are kept beside it until then."""
    from jaxacct.sweep.run import Options, sweep

    _use_all_cores(arguments.devices)
    folder = None if out is None else out.with_name(out.name + ".parts")
    try:
        found = sweep(quantity, settings, Options(checkpoint=folder, resume=arguments.resume, chunk=arguments.chunk))
    except KeyboardInterrupt:
        if out is not None:
            print("jaxacct sweep: finished parts are kept: give --resume to go on.", file=sys.stderr)
        raise
    if out is not None and folder is not None:
        found.save(out)
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _settings(arguments: argparse.Namespace) -> Any:
    import jaxacct
    from jaxacct import validation
    from jaxacct.sweep import grid
    from jaxacct.sweep.ranges import parsed

    names = arguments.mechanism.split(",")
    for name in names:
        validation.check_one_of(name, "mechanism", MECHANISMS)
    classes = [getattr(jaxacct, name) for name in names]
    given = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in AXES}
    axes = {name: parsed(text, name, whole=name == "steps") for name, text in given.items() if text is not None}
    return grid(classes[0] if len(classes) == 1 else classes, **axes)


def _quantity(arguments: argparse.Namespace) -> str:
    """Returns what is looked for: what is not given."""
    if arguments.delta is None and arguments.epsilon is None:
        raise ValueError("--delta is missing: give it for epsilon, --epsilon for delta, or both for the least noise.")
    if arguments.delta is None:
        return "delta"
    if arguments.epsilon is None:
        return "epsilon"
    if arguments.noise_multiplier is not None:
        raise ValueError("--noise-multiplier, --delta and --epsilon are all given: leave out what is looked for.")
    return "noise_multiplier"


def _use_all_cores(devices: int | None) -> None:
    """Makes a CPU as many devices as it has cores; an application may choose what a library must leave alone."""
    import jax

    from jaxacct import validation

    if devices is None:
        if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
            return
        devices = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    validation.check_whole(devices, "devices", 1, 4096, "a number of devices")
    with contextlib.suppress(RuntimeError):  # something was computed before in this process: it keeps its devices
        jax.config.update("jax_num_cpu_devices", devices)


def _record(arguments: argparse.Namespace, found: Any, out: pathlib.Path | None) -> dict[str, Any]:
    from jaxacct import __version__

    record = found.as_dict()
    results = {} if out is not None else {"results": record["results"]}
    head = {name: value for name, value in record.items() if name != "results"}
    return head | results | {
        "out": None if out is None else str(out),
        "guarantee": GUARANTEES[MODES[arguments.mode]],
        "scope": SCOPE.format(relation=arguments.relation.replace("_", " ")),
        "version": __version__,
    }  # fmt: skip


def _print(record: dict[str, Any], found: Any) -> None:
    import numpy as np

    columns = found.table(np.arange(min(found.upper.size, SHOWN)))
    names = [*found.axes, *(name for name in found.arrays if name not in ("estimate", "converged"))]
    values = {name: columns[name].tolist() for name in names}
    print_columns(
        names, [[_cell(name, values[name][i], found.axes) for name in names] for i in range(len(columns["upper"]))]
    )
    if found.upper.size > SHOWN:
        print(f"... {found.upper.size - SHOWN:,} more" + ("" if record["out"] else ": give --out for all"))
    counts, rate = record["counts"], found.upper.size / found.seconds
    facts = [
        ("entries", f"{counts['entries']:,} in {found.seconds:.1f} s, {rate:,.0f} a second"),
        ("flagged", f"{counts['flagged']:,} not converged; {counts['prv']:,} answered by the mesh"),
        ("guarantee", record["guarantee"]),
        ("holds for", record["scope"]),
        *([("written to", record["out"])] if record["out"] else []),
    ]
    print_facts("", facts)


def _cell(name: str, value: Any, axes: Any) -> str:
    if isinstance(value, str):
        return value
    if name in axes:
        return f"{value:.10g}"
    return rounded("upper" if name in ("upper", "noise_multiplier") else name, value)
