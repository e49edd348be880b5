"""``jaxacct epsilon``, ``delta`` and ``curve``: certified bounds on the privacy cost of a run, at a point or at many.

Curves are privacy profiles, trade-off curves and Rényi divergences, as numbers and as a picture. All numbers are
certified bounds; the Rényi divergences are upper bounds alone.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import math
import pathlib
from typing import Any

import jaxacct as ja
from jaxacct import __version__, json_files
from jaxacct.cli.arguments import (
    GUARANTEES,
    PICTURES,
    Elsewhere,
    Report,
    Run,
    add_json,
    add_overwrite,
    add_run,
    file_to_write,
    new_command,
    number,
    round_to,
    run_of,
    scope_of,
    why,
)
from jaxacct.display import spell_count

RUN = "--noise-multiplier 1 --sampling-rate 0.01 --steps 10000"
"""The run of DP-SGD in the help's examples."""


def add_parser(commands: Any) -> None:
    """Adds the commands to the parser's subcommands."""
    # The two commands differ in which of the two numbers is given.
    for quantity, given, value in (("epsilon", "delta", "1e-5"), ("delta", "epsilon", "4")):
        command = new_command(
            commands, quantity, functools.partial(run, quantity, given),
            f"{quantity} of a run of DP-SGD, at {'an' if given == 'epsilon' else 'a'} {given}",
            f"Certified bounds on the {quantity} of a run: a Gaussian mechanism, some steps on Poisson "
            "samples; or of any mechanisms composed. Report the upper bound.",
            f"jaxacct {quantity} {RUN} --{given} {value}",
            f"jaxacct {quantity} --noise-multiplier 20 --steps 100 --{given} {value} --json",
            f"jaxacct {quantity} --mechanism gaussian:noise_multiplier=4,count=10 --mechanism laplace:scale=9 "
            f"--{given} {value}",
        )  # fmt: skip
        add_run(command)
        meaning = "failure probability, in (0, 1)" if given == "delta" else "privacy loss, at least 0"
        command.add_argument(f"--{given}", type=number, metavar=given[0].upper(), help=meaning)
        command.add_argument(f"--{quantity}", action=Elsewhere, const=f"it is what is looked for: give --{given}")
        command.add_argument(
            "--accountant", choices=sorted(GUARANTEES), default="best",
            help="best (default): saddlepoint, and prv where that has not converged",
        )  # fmt: skip
        command.add_argument(
            "--tolerance", type=number, metavar="T",
            help="relative gap between the bounds that prv aims at, where it is asked (default 1e-3)",
        )  # fmt: skip
        add_json(command)


def run(quantity: str, given: str, arguments: argparse.Namespace) -> int:
    """Computes the quantity, prints it, and returns the exit code."""
    asked = run_of(arguments)
    value = vars(arguments)[given]
    if value is None and arguments.spec:
        value = arguments.spec_asks[given]
    if value is None:
        raise ValueError(f"--{given} is missing: give that at which {quantity} is wanted.")
    # Only the accountant that is asked is imported: that takes time.
    room: Any = ja if arguments.accountant == "best" else importlib.import_module(f"jaxacct.{arguments.accountant}")
    solve = room.epsilon if quantity == "epsilon" else room.delta
    options = {"relation": asked.relation}
    if arguments.tolerance is not None:
        if arguments.accountant not in ("best", "prv"):
            raise ValueError("tolerance: only the prv accountant refines to a tolerance; leave it out.")
        options["tolerance"] = arguments.tolerance
    # Tracing makes many objects that stay alive; the search for garbage among them takes 0.1 of 1.6 seconds.
    gc.disable()
    try:
        result = solve(asked.mechanism, asked.steps, value, **options)
    finally:
        gc.enable()
    # Rényi divergences give an upper bound alone.
    lower, estimate, upper = None, None, result
    if isinstance(result, ja.Bounds):
        lower, estimate, upper = float(result.lower), float(result.estimate), result.upper
    record = {
        "quantity": quantity,
        "lower": lower,
        "estimate": estimate,
        "upper": float(upper),
        given: value,
        **describe_run(asked),
        "accountant": arguments.accountant,
        "guarantee": GUARANTEES[arguments.accountant],
    }
    if record["upper"] == (math.inf if quantity == "epsilon" else 1.0):
        record["why"] = why(asked, value if quantity == "epsilon" else 1.0)
    _report(record, asked, given).show(arguments.json)
    return 0


def describe_run(run: Run) -> dict[str, Any]:
    """Returns the part of a result that describes its run."""
    composed = isinstance(run.steps, tuple)
    return {
        "mechanism": run.record,
        "steps": [count if isinstance(count, int) else count.tolist() for count in run.steps]
        if composed
        else int(run.steps),
        "relation": run.relation,
        "group": run.group,
        "scope": scope_of(run.relation, run.group, *(["samples as listed"] if composed else [])),
        "version": __version__,
    }


def facts_of_run(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the same description as names and texts, for a table."""
    mechanism = record["mechanism"]
    if isinstance(mechanism, list):
        fields = [
            ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.items() if name != "type")
            for one in mechanism
        ]
        times = zip(mechanism, fields, record["steps"], strict=True)
        return [(one["type"], f"{fact}; {times_of(count)}") for one, fact, count in times]
    return [(name.replace("_", " "), f"{value:.12g}" if isinstance(value, float) else str(value))
            for name, value in mechanism.items() if name not in ("type", "noise")]  # fmt: skip


def times_of(count: Any) -> str:
    """Returns a number of runs, or a list of numbers, in words."""
    return spell_count(count, "time") if isinstance(count, int) else f"{count} times"


def _report(record: dict[str, Any], run: Run, given: str) -> Report:
    """Returns a result with its table, bounds rounded outward."""
    quantity = record["quantity"]
    bounds = [(name, record[name]) for name in ("lower", "estimate", "upper") if record[name] is not None]
    facts = [
        *facts_of_run(record),
        (given, f"{record[given]:.12g}"),
        *((f"{quantity}, {name}", round_to(name, bound)) for name, bound in bounds),
        *([("why", record["why"])] if "why" in record else []),
        ("accountant", f"{record['accountant']} ({record['guarantee']})"),
        ("holds for", record["scope"]),
    ]
    return Report(record, facts, f"{quantity} of {run.title}")


# ----------------------------------------------------------------------------------------------------
# Curves: a run's privacy profile, its trade-off curve, or its Rényi divergences.
# ----------------------------------------------------------------------------------------------------

KINDS = {"epsilon": "profile", "delta": "profile", "fpr": "tradeoff", "orders": "renyi"}
"""Kinds of curves, by the argument that gives their places."""

Columns = dict[str, Any]
"""A curve: the places of a variable under its name, and then the bounds there, by name, each (n,)."""


def add_curve(commands: Any) -> None:
    """Adds ``jaxacct curve``."""
    command = new_command(
        commands, "curve", run_curve, "the privacy profile, the trade-off curve or the Rényi divergences of a run",
        "Bounds at many places: delta over epsilon, or epsilon over delta (profile); the least "
        "false-negative rate of any attack over its false-positive rate (tradeoff); the Rényi divergence over its "
        "order (renyi). VALUES are a number, numbers with commas, or LOW:HIGH:COUNT[:log].",
        f"jaxacct curve {RUN}",
        f"jaxacct curve {RUN} --delta 1e-10:1e-2:9:log",
        f"jaxacct curve {RUN} --kind tradeoff --out curve.csv",
    )  # fmt: skip
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


def run_curve(arguments: argparse.Namespace) -> int:
    """Computes the curve, writes and prints it, and returns the exit code."""
    from jaxacct.plot import require_matplotlib

    # Files are looked at, and their folders made, before the computation and not after it.
    out = None if arguments.out is None else file_to_write(arguments.out, (".npz", ".csv", ".json"), arguments)
    plot = None if arguments.plot is None else file_to_write(arguments.plot, PICTURES, arguments)
    if plot is not None:
        require_matplotlib()
    for path in (out, plot):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    name, at = _places(arguments)
    asked = run_of(arguments)
    quantity, columns = _compute("epsilon" if name == "delta" else arguments.kind, asked, at)
    over = next(iter(columns))
    record = {
        "kind": arguments.kind,
        "quantity": quantity,
        "over": over,
        "results": {name: values.tolist() for name, values in columns.items()},
        **describe_run(asked),
        "guarantee": GUARANTEES["rdp" if arguments.kind == "renyi" else "best"],
        "out": None if out is None else str(out),
        "plot": None if plot is None else str(plot),
    }
    if quantity == "epsilon" and (infinite := columns["upper"] == float("inf")).any():
        record["why"] = why(asked, float(columns[over][infinite].max()))
    if out is not None:
        _write(record, columns, out)
    if plot is not None:
        _draw(record, columns, plot)
    _report_curve(record, asked, columns).show(arguments.json)
    return 0


def _places(arguments: argparse.Namespace) -> tuple[str | None, Any]:
    """Returns the argument by which places are given, and the places (n,); None and None for the kind's own."""
    import numpy as np

    from jaxacct.sweep.description import parsed

    # At most one kind of place may be given, and it has to be that of the curve asked for.
    for name, kind in KINDS.items():
        text = vars(arguments)[name]
        if text is None:
            continue
        if kind != arguments.kind:
            own = " or ".join(f"--{other}" for other, its in KINDS.items() if its == arguments.kind)
            raise ValueError(
                f"--{name} is for --kind {kind}: give {own} with --kind {arguments.kind}, or leave it out."
            )
        return name, np.atleast_1d(parsed(text, name))
    return None, None


def _compute(kind: str, run: Run, at: Any) -> tuple[str, Columns]:
    """Returns the quantity and the columns of a kind of curve; where no places ``at`` are given, at the kind's own."""
    import numpy as np

    from jaxacct import rdp, tradeoff
    from jaxacct.plot.curves import LEAST_DELTA

    mechanism, steps, relation = run.mechanism, run.steps, run.relation
    if kind == "renyi":
        at = np.array(rdp.DEFAULT_ORDERS) if at is None else at
        upper = np.asarray(rdp.composed_curve(mechanism, steps, at, relation=relation), np.float64)
        return "renyi_divergence", {"order": at, "upper": upper}
    if kind == "tradeoff":
        quantity, over = "false_negative_rate", "false_positive_rate"
        at = np.linspace(0.0, 1.0, 101) if at is None else at
        found = tradeoff.curve(mechanism, steps, at, relation=relation)
    elif kind == "epsilon":
        quantity, over = "epsilon", "delta"
        found = ja.curve(mechanism, steps, deltas=at, relation=relation)
    else:
        quantity, over = "delta", "epsilon"
        if at is None:
            # The end of the range need not be tight: a cheap upper bound on where pictures of a profile end is enough.
            last = float(rdp.epsilon(mechanism, steps, LEAST_DELTA, relation=relation))
            if not np.isfinite(last):
                raise ValueError(
                    "--epsilon is missing: no range is known for this run; give the epsilons that you want."
                )
            # The step has two digits, rounded up: multiples of it are printed in full. It is at least 0.001 nats.
            at = np.arange(101) * float(f"{1.05 * max(last / 100, 1e-3):.1e}")
        found = ja.curve(mechanism, steps, epsilons=at, relation=relation)
    return quantity, {over: at, "lower": found.lower, "estimate": found.estimate, "upper": found.upper}


def _write(record: dict[str, Any], columns: Columns, path: pathlib.Path) -> None:
    """Writes the numbers in full: as columns (.csv, .npz), or as ``--json`` prints them."""
    import numpy as np

    from jaxacct.json_files import write_whole
    from jaxacct.plot import write_csv

    if path.suffix == ".csv":
        write_csv(list(columns), np.stack(list(columns.values()), -1).tolist(), path)
    elif path.suffix == ".json":
        write_whole(path, lambda file: file.write((json_files.dumps(record) + "\n").encode()))
    else:
        about = {name: value for name, value in record.items() if name != "results"}
        arrays = columns | {"about": np.array(json_files.dumps(about))}
        write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def _draw(record: dict[str, Any], columns: Columns, path: pathlib.Path) -> None:
    """Draws the run's curve, each kind by the library's own function for it."""
    from jaxacct.plot import chart, curves

    figure = chart.own_figure()
    axes = figure.subplots()
    run, over, quantity = _title(record), record["over"], record["quantity"]
    bounds = {name: values[columns[over].argsort()] for name, values in columns.items()}
    at = bounds[over]
    if quantity == "delta":
        curves.draw_profile(axes, at, bounds["lower"], bounds["upper"], run)
    elif record["kind"] == "tradeoff":
        curves.draw_tradeoff(axes, at, bounds["lower"], bounds["upper"], run)
    else:
        axes.set_xscale("log")
        axes.set_yscale("log" if over == "order" else "linear")
        chart.curve(axes, at, bounds["upper"], run, bounds.get("lower"))
        title = "Rényi divergences, upper bounds" if over == "order" else "Privacy profile"
        chart.dress(axes, title, chart.words(over), chart.words(quantity))
    figure.savefig(path)


def _title(record: dict[str, Any]) -> str:
    """Returns the run in words, for the legend."""
    steps = record["steps"]
    if isinstance(steps, list):
        return spell_count(len(steps), "mechanism")
    return ", ".join([spell_count(steps, "step"), *(f"{name} {fact}" for name, fact in facts_of_run(record))])


def _report_curve(record: dict[str, Any], run: Run, columns: Columns) -> Report:
    """Returns a curve with up to 21 places, evenly spread, and the facts of the run."""
    import numpy as np

    over = record["over"]
    every = len(columns[over])
    shown = np.unique(np.linspace(0, every - 1, min(every, 21)).round().astype(int))
    bounds = {name: values for name, values in columns.items() if name not in (over, "estimate")}
    rows = [
        [f"{columns[over][i]:.10g}", *(round_to(name, float(values[i])) for name, values in bounds.items())]
        for i in shown
    ]
    names = [over, *(f"{record['quantity']}, {name}" for name in bounds)]
    rest = [f"{len(shown)} of {every}" + ("" if record["out"] else ": give --out for all")]
    protects = "lower bound" if record["kind"] == "tradeoff" else "upper bound"
    facts = [
        ("what ran", run.title),
        *facts_of_run(record),
        *([("why inf", record["why"])] if "why" in record else []),
        ("report", f"the {protects} ({record['guarantee']})"),
        ("holds for", record["scope"]),
        *(("written to", record[name]) for name in ("out", "plot") if record[name]),
    ]
    return Report(record, facts, columns=(names, rows), remarks=rest if every > len(shown) else ())
