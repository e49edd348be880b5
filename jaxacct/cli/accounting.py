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
from jaxacct import json_files
from jaxacct.cli.arguments import (
    GUARANTEES,
    PICTURES,
    Elsewhere,
    Report,
    Run,
    add_overwrite,
    add_run,
    file_to_write,
    new_command,
    number,
    round_to,
    run_of,
    why,
)
from jaxacct.display import spell_count

RUN = "--noise-multiplier 1 --sampling-rate 0.01 --steps 10000"
"""The run of DP-SGD in the help's examples."""


def add_parser(commands: Any) -> None:
    """Adds the commands to the parser's subcommands."""
    # The two commands differ in which of the two numbers is known.
    for quantity, known, value in (("epsilon", "delta", "1e-5"), ("delta", "epsilon", "4")):
        command = new_command(
            commands, quantity, functools.partial(run, quantity, known),
            f"{quantity} of a run of DP-SGD, at {'an' if known == 'epsilon' else 'a'} {known}",
            f"Certified bounds on the {quantity} of a run: a Gaussian mechanism, some steps on Poisson "
            "samples; or of any mechanisms composed. Report the upper bound.",
            f"jaxacct {quantity} {RUN} --{known} {value}",
            f"jaxacct {quantity} --noise-multiplier 20 --steps 100 --{known} {value} --json",
            f"jaxacct {quantity} --mechanism gaussian:noise_multiplier=4,count=10 --mechanism laplace:scale=9 "
            f"--{known} {value}",
        )  # fmt: skip
        add_run(command)
        meaning = "failure probability, in (0, 1)" if known == "delta" else "privacy loss, at least 0"
        command.add_argument(f"--{known}", type=number, metavar=known[0].upper(), help=meaning)
        command.add_argument(f"--{quantity}", action=Elsewhere, const=f"it is what is looked for: give --{known}")
        command.add_argument(
            "--accountant", choices=sorted(GUARANTEES), default="best",
            help="best (default): saddlepoint, and prv where that has not converged",
        )  # fmt: skip
        command.add_argument(
            "--tolerance", type=number, metavar="T",
            help="relative gap between the bounds that prv aims at, where it is asked (default 1e-3)",
        )  # fmt: skip


def run(quantity: str, known: str, arguments: argparse.Namespace) -> Report:
    """Returns the report on an epsilon or delta of a run, where the other is ``known``."""
    composition = run_of(arguments)
    value = vars(arguments)[known]
    if value is None and arguments.spec:
        value = arguments.spec_asks[known]
    if value is None:
        raise ValueError(f"--{known} is missing: give that at which {quantity} is wanted.")
    bounds = _bounds(quantity, composition, value, arguments)
    guarantee = GUARANTEES[arguments.accountant]
    record: dict[str, Any] = {
        "quantity": quantity,
        **bounds,
        known: value,
        **composition.describe(),
        "accountant": arguments.accountant,
        "guarantee": guarantee,
    }
    if bounds["upper"] == (math.inf if quantity == "epsilon" else 1.0):
        record["why"] = why(composition, value if quantity == "epsilon" else 1.0)
    facts = [
        *facts_of_run(record),
        (known, f"{value:.12g}"),
        *((f"{quantity}, {name}", round_to(name, bound)) for name, bound in bounds.items() if bound is not None),
        *([("why", record["why"])] if "why" in record else []),
        ("accountant", f"{arguments.accountant} ({guarantee})"),
        ("holds for", record["scope"]),
    ]
    return Report(record, facts, f"{quantity} of {composition.title}")


def _bounds(quantity: str, composition: Run, value: float, arguments: argparse.Namespace) -> dict[str, float | None]:
    """Returns the bounds of the accountant that the arguments name; Rényi divergences give an upper one alone."""
    # An accountant takes time to import: the command imports this one alone.
    room: Any = ja if arguments.accountant == "best" else importlib.import_module(f"jaxacct.{arguments.accountant}")
    solve = room.epsilon if quantity == "epsilon" else room.delta
    options = {"relation": composition.relation}
    if arguments.tolerance is not None:
        if arguments.accountant not in ("best", "prv"):
            raise ValueError("tolerance: only the prv accountant refines to a tolerance; leave it out.")
        options["tolerance"] = arguments.tolerance
    # Tracing makes many objects that stay alive; the search for garbage among them takes 0.1 of 1.6 seconds.
    gc.disable()
    try:
        result = solve(composition.mechanism, composition.steps, value, **options)
    finally:
        gc.enable()
    if not isinstance(result, ja.Bounds):
        return {"lower": None, "estimate": None, "upper": float(result)}
    return {name: float(getattr(result, name)) for name in ("lower", "estimate", "upper")}


def facts_of_run(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the description of a run in a record as names and texts, for a table."""
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


def run_curve(arguments: argparse.Namespace) -> Report:
    """Computes the curve, writes its files, and returns the report."""
    out, plot = _files(arguments)
    name, at = _places(arguments)
    composition = run_of(arguments)
    quantity, columns = _compute("epsilon" if name == "delta" else arguments.kind, composition, at)
    over = next(iter(columns))
    record: dict[str, Any] = {
        "kind": arguments.kind,
        "quantity": quantity,
        "over": over,
        "results": {name: values.tolist() for name, values in columns.items()},
        **composition.describe(),
        "guarantee": GUARANTEES["rdp" if arguments.kind == "renyi" else "best"],
        "out": None if out is None else str(out),
        "plot": None if plot is None else str(plot),
    }
    if quantity == "epsilon" and (infinite := columns["upper"] == float("inf")).any():
        record["why"] = why(composition, float(columns[over][infinite].max()))
    if out is not None:
        _write(record, columns, out)
    if plot is not None:
        _draw(record, columns, plot)
    names, rows = _tabulate(quantity, over, columns)
    count = len(columns[over])
    rest = [f"{len(rows)} of {count}" + ("" if out else ": give --out for all")] if count > len(rows) else []
    facts = [
        ("what ran", composition.title),
        *facts_of_run(record),
        *([("why inf", record["why"])] if "why" in record else []),
        ("report", f"the {'lower' if arguments.kind == 'tradeoff' else 'upper'} bound ({record['guarantee']})"),
        ("holds for", record["scope"]),
        *(("written to", str(path)) for path in filter(None, (out, plot))),
    ]
    return Report(record, facts, columns=(names, rows), remarks=rest)


def _files(arguments: argparse.Namespace) -> tuple[pathlib.Path | None, pathlib.Path | None]:
    """Returns the files of numbers and of the picture; bad names fail here, before the computation."""
    from jaxacct.plot import require_matplotlib

    out = None if arguments.out is None else file_to_write(arguments.out, (".npz", ".csv", ".json"), arguments)
    plot = None if arguments.plot is None else file_to_write(arguments.plot, PICTURES, arguments)
    if plot is not None:
        require_matplotlib()
    for path in filter(None, (out, plot)):
        path.parent.mkdir(parents=True, exist_ok=True)
    return out, plot


def _tabulate(quantity: str, over: str, columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Returns the names of a curve's table, and its rows at up to 21 places, evenly spread."""
    import numpy as np

    count = len(columns[over])
    bounds = {name: values for name, values in columns.items() if name not in (over, "estimate")}
    rows = [
        [f"{columns[over][i]:.10g}", *(round_to(name, float(values[i])) for name, values in bounds.items())]
        for i in np.unique(np.linspace(0, count - 1, min(count, 21)).round().astype(int))
    ]
    return [over, *(f"{quantity}, {name}" for name in bounds)], rows


def _places(arguments: argparse.Namespace) -> tuple[str | None, Any]:
    """Returns the argument that has places, and the places (n,); None and None for the kind's own."""
    import numpy as np

    from jaxacct.sweep.description import parsed

    # At most one kind of place may occur, and it has to be that of the kind of curve.
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
    """Returns the quantity and the columns of a kind of curve, at the places ``at`` or the kind's own."""
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
        bounds = tradeoff.curve(mechanism, steps, at, relation=relation)
    elif kind == "epsilon":
        quantity, over = "epsilon", "delta"
        bounds = ja.curve(mechanism, steps, deltas=at, relation=relation)
    else:
        quantity, over = "delta", "epsilon"
        if at is None:
            # The end of the range need not be tight: a cheap upper bound on where pictures of a profile end is enough.
            last = float(rdp.epsilon(mechanism, steps, LEAST_DELTA, relation=relation))
            if not np.isfinite(last):
                raise ValueError(
                    "--epsilon is missing: no range is known for this run; give the epsilons that you want."
                )
            # The step has two digits, rounded up: the table shows its multiples in full. It is at least 0.001 nats.
            at = np.arange(101) * float(f"{1.05 * max(last / 100, 1e-3):.1e}")
        bounds = ja.curve(mechanism, steps, epsilons=at, relation=relation)
    return quantity, {over: at, "lower": bounds.lower, "estimate": bounds.estimate, "upper": bounds.upper}


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
    steps, over, quantity = record["steps"], record["over"], record["quantity"]
    if isinstance(steps, list):
        label = spell_count(len(steps), "mechanism")
    else:
        label = ", ".join([spell_count(steps, "step"), *(f"{name} {fact}" for name, fact in facts_of_run(record))])
    bounds = {name: values[columns[over].argsort()] for name, values in columns.items()}
    at = bounds[over]
    if quantity == "delta":
        curves.draw_profile(axes, at, bounds["lower"], bounds["upper"], label)
    elif record["kind"] == "tradeoff":
        curves.draw_tradeoff(axes, at, bounds["lower"], bounds["upper"], label)
    else:
        axes.set_xscale("log")
        axes.set_yscale("log" if over == "order" else "linear")
        chart.curve(axes, at, bounds["upper"], label, bounds.get("lower"))
        title = "Rényi divergences, upper bounds" if over == "order" else "Privacy profile"
        chart.dress(axes, title, chart.words(over), chart.words(quantity))
    figure.savefig(path)
