"""``jaxacct curve``: a run's privacy profile, trade-off curve or Rényi divergences, as numbers and as a picture.

All numbers are certified bounds; the Rényi divergences are upper bounds alone.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxacct import json_files
from jaxacct.cli.accounting import RUN, described, facts_of_run
from jaxacct.cli.arguments import (
    GUARANTEES,
    PICTURES,
    Run,
    add_json,
    add_overwrite,
    add_run,
    check_free,
    examples,
    print_columns,
    print_facts,
    rounded,
    run_of,
    show,
)

if TYPE_CHECKING:
    from jaxacct.mechanisms.mechanism import Relation

KINDS = {"epsilon": "profile", "delta": "profile", "fpr": "tradeoff", "orders": "renyi"}
"""Kinds of curves, by the argument that gives their places."""

NUMBERS = (".npz", ".csv", ".json")
"""Suffixes of files of numbers."""

LEAST_DELTA = 1e-12
"""Delta at about which a profile ends unless its epsilons are given."""

LEAST_STEP = 1e-3
"""Least distance (nats) between a profile's epsilons that are not given."""

POINTS = 101
"""Number of a curve's places where they are not given."""

SHOWN = 21
"""Largest number of lines printed."""


class Found(NamedTuple):
    """A curve: the places ``at`` of the variable ``over``, and bounds on ``quantity`` there, by name, each (n,)."""

    quantity: str
    over: str
    at: Any
    bounds: dict[str, Any]


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "curve",
        help="the privacy profile, the trade-off curve or the Rényi divergences of a run",
        description="Bounds at many places: delta over epsilon, or epsilon over delta (profile); the least "
        "false-negative rate of any attack over its false-positive rate (tradeoff); the Rényi divergence over its "
        "order (renyi). VALUES are a number, numbers with commas, or LOW:HIGH:COUNT[:log].",
        epilog=examples(
            f"jaxacct curve {RUN}",
            f"jaxacct curve {RUN} --delta 1e-10:1e-2:9:log",
            f"jaxacct curve {RUN} --kind tradeoff --out curve.csv",
        ),
    )
    command.add_argument(
        "--kind", choices=tuple(dict.fromkeys(KINDS.values())), default="profile", help="which curve (default: profile)"
    )
    add_run(command)
    at = command.add_mutually_exclusive_group()
    at.add_argument("--epsilon", metavar="VALUES", help="profile: epsilons, at least 0, of which delta is wanted")
    at.add_argument("--delta", metavar="VALUES", help="profile: deltas, in (0, 1), of which epsilon is wanted")
    at.add_argument("--fpr", metavar="VALUES", help="tradeoff: false-positive rates, in [0, 1]")
    at.add_argument("--orders", metavar="VALUES", help="renyi: orders, above 1")
    command.add_argument("--out", metavar="FILE", help="the numbers in full: .npz, .csv or .json")
    command.add_argument("--plot", metavar="FILE", help="a picture: .png, .svg or .pdf")
    add_overwrite(command)
    add_json(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Computes the curve, writes and prints it, and returns the exit code."""
    out, plot = (None if name is None else pathlib.Path(name) for name in (arguments.out, arguments.plot))
    _check_files(out, plot, arguments)
    name, at = _places(arguments)
    asked = run_of(arguments)
    compute = {"profile": _epsilons if name == "delta" else _deltas, "tradeoff": _tradeoff, "renyi": _divergences}
    found = compute[arguments.kind](asked.mechanism, asked.steps, at, asked.relation)
    record = {
        "kind": arguments.kind,
        "quantity": found.quantity,
        "over": found.over,
        "results": {name: values.tolist() for name, values in ({found.over: found.at} | found.bounds).items()},
        **described(asked),
        "guarantee": GUARANTEES["rdp" if arguments.kind == "renyi" else "best"],
        "out": None if out is None else str(out),
        "plot": None if plot is None else str(plot),
    }
    if found.quantity == "epsilon" and (known := found.bounds["upper"] == float("inf")).any():
        from jaxacct.cli.arguments import why

        record["why"] = why(asked, float(found.at[known].max()))
    if out is not None:
        _write(record, found, out)
    if plot is not None:
        _draw(record, found, plot)
    show(record, arguments.json, lambda: _print(record, asked, found))
    return 0


def _check_files(out: pathlib.Path | None, plot: pathlib.Path | None, arguments: argparse.Namespace) -> None:
    """Makes the folders, and raises ValueError where a file cannot be written: before the computation, not after it."""
    files = [(path, known) for path, known in ((out, NUMBERS), (plot, PICTURES)) if path is not None]
    if files:
        from jaxacct.sweep.result import check_suffix

        for path, known in files:
            check_suffix(path, known)
            check_free(path, arguments)
    if plot is not None:
        from jaxacct.plot import require_matplotlib

        require_matplotlib()
    for path, _ in files:
        path.parent.mkdir(parents=True, exist_ok=True)


def _places(arguments: argparse.Namespace) -> tuple[str | None, Any]:
    """Returns the argument by which places are given, and the places (n,); None and None for the kind's own."""
    import numpy as np

    from jaxacct.sweep.description import parsed

    for name, kind in KINDS.items():
        text = getattr(arguments, name)
        if text is None:
            continue
        if kind != arguments.kind:
            own = " or ".join(f"--{other}" for other, its in KINDS.items() if its == arguments.kind)
            raise ValueError(
                f"--{name} is for --kind {kind}: give {own} with --kind {arguments.kind}, or leave it out."
            )
        return name, np.atleast_1d(parsed(text, name))
    return None, None


def _deltas(mechanism: Any, steps: float, at: Any, relation: Relation) -> Found:
    """Returns delta over epsilon; without epsilons given, from 0 to about where delta is :data:`LEAST_DELTA`."""
    import numpy as np

    import jaxacct as ja

    if at is None:
        # The end of the range need not be tight: a cheap upper bound is enough.
        last = float(ja.rdp.epsilon(mechanism, steps, LEAST_DELTA, relation=relation))
        if not np.isfinite(last):
            raise ValueError("--epsilon is missing: no range is known for this run; give the epsilons that you want.")
        at = np.arange(POINTS) * _round_up(last / (POINTS - 1))
    found = ja.curve(mechanism, steps, epsilons=at, relation=relation)
    return Found("delta", "epsilon", at, _columns(found))


def _round_up(step: float) -> float:
    """Returns a number of two digits at or above a step: multiples of it can be printed in full."""
    return float(f"{1.05 * max(step, LEAST_STEP):.1e}")


def _epsilons(mechanism: Any, steps: float, at: Any, relation: Relation) -> Found:
    """Returns epsilon over delta."""
    import jaxacct as ja

    found = ja.curve(mechanism, steps, deltas=at, relation=relation)
    return Found("epsilon", "delta", at, _columns(found))


def _tradeoff(mechanism: Any, steps: float, at: Any, relation: Relation) -> Found:
    """Returns the least false-negative rate over the false-positive rate."""
    import numpy as np

    from jaxacct import tradeoff

    at = np.linspace(0.0, 1.0, POINTS) if at is None else at
    found = tradeoff.curve(mechanism, steps, at, relation=relation)
    return Found("false_negative_rate", "false_positive_rate", at, _columns(found))


def _divergences(mechanism: Any, steps: float, at: Any, relation: Relation) -> Found:
    """Returns upper bounds on the composed Rényi divergence over its order."""
    import numpy as np

    from jaxacct import rdp
    from jaxacct.rdp import DEFAULT_ORDERS

    at = np.array(DEFAULT_ORDERS) if at is None else at
    upper = np.asarray(rdp.composed_curve(mechanism, steps, at, relation=relation), np.float64)
    return Found("renyi_divergence", "order", at, {"upper": upper})


def _columns(found: Any) -> dict[str, Any]:
    """Returns bounds as columns by name."""
    return {"lower": found.lower, "estimate": found.estimate, "upper": found.upper}


def _write(record: dict[str, Any], found: Found, path: pathlib.Path) -> None:
    """Writes the numbers in full: as columns (.csv, .npz), or as ``--json`` prints them."""
    import numpy as np

    from jaxacct.json_files import write_whole
    from jaxacct.plot import write_csv

    if path.suffix == ".csv":
        lines = np.stack([found.at, *found.bounds.values()], -1).tolist()
        write_csv([found.over, *found.bounds], lines, path)
    elif path.suffix == ".json":
        write_whole(path, lambda file: file.write((json_files.dumps(record) + "\n").encode()))
    else:
        about = {name: value for name, value in record.items() if name != "results"}
        columns = {found.over: found.at, **found.bounds, "about": np.array(json_files.dumps(about))}
        write_whole(path, lambda file: np.savez_compressed(file, **columns))


def _draw(record: dict[str, Any], found: Found, path: pathlib.Path) -> None:
    """Draws the run's curve, each kind by the library's own function for it."""
    from jaxacct.plot import chart, curves

    figure = chart.own_figure()
    axes = figure.subplots()
    run = _title(record)
    order = found.at.argsort()
    at, bounds = found.at[order], {name: values[order] for name, values in found.bounds.items()}
    if found.quantity == "delta":
        curves.draw_profile(axes, at, bounds["lower"], bounds["upper"], run)
    elif record["kind"] == "tradeoff":
        curves.draw_tradeoff(axes, at, bounds["lower"], bounds["upper"], run)
    else:
        axes.set_xscale("log")
        axes.set_yscale("log" if found.over == "order" else "linear")
        chart.curve(axes, at, bounds["upper"], run, bounds.get("lower"))
        title = "Rényi divergences, upper bounds" if found.over == "order" else "Privacy profile"
        chart.dress(axes, title, chart.words(found.over), chart.words(found.quantity))
    figure.savefig(path)


def _title(record: dict[str, Any]) -> str:
    """Returns the run in words, for the legend."""
    steps = record["steps"]
    if isinstance(steps, list):
        return f"{len(steps)} mechanisms"
    return ", ".join([f"{steps:,} steps", *(f"{name} {fact}" for name, fact in facts_of_run(record))])


def _print(record: dict[str, Any], run: Run, found: Found) -> None:
    """Prints up to :data:`SHOWN` places, evenly spread, and the facts of the run."""
    import numpy as np

    every = len(found.at)
    shown = np.unique(np.linspace(0, every - 1, min(every, SHOWN)).round().astype(int))
    bounds = {name: values for name, values in found.bounds.items() if name != "estimate"}
    rows = [
        [f"{found.at[i]:.10g}", *(rounded(name, float(values[i])) for name, values in bounds.items())] for i in shown
    ]
    print_columns([found.over, *(f"{found.quantity}, {name}" for name in bounds)], rows)
    if every > len(shown):
        print(f"{len(shown)} of {every}" + ("" if record["out"] else ": give --out for all"))
    protects = "lower bound" if record["kind"] == "tradeoff" else "upper bound"
    facts = [
        ("what ran", run.title),
        *facts_of_run(record),
        *([("why inf", record["why"])] if "why" in record else []),
        ("report", f"the {protects} ({record['guarantee']})"),
        ("holds for", record["scope"]),
        *(("written to", record[name]) for name in ("out", "plot") if record[name]),
    ]
    print_facts("", facts)
