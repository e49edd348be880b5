"""``jaxacct release``: statistics of a table, with noise, paid for from a budget in a file."""

from __future__ import annotations

import argparse
import csv
import math
import pathlib
from typing import Any

from jaxacct import __version__
from jaxacct.cli.arguments import Report, count, nearest, new_command, number, round_to
from jaxacct.display import rounded_up, spell_count

VERBS = {
    "count": "how many rows there are, or how many have a text in a column",
    "histogram": "how many rows have each of some texts in a column",
    "sum": "the sum of a column's numbers, each clipped to bounds",
    "mean": "that sum over a public size",
    "quantile": "a median or another quantile of a column's numbers, one of public candidates",
}
"""Kinds of statistics, with the help's text."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "release", run, "statistics of a table, with noise, paid for from a budget in a file",
        "Draws the noise of counts, histograms, sums, means and quantiles, after the budget's file has paid for it. "
        "What does not fit into the budget is refused, and then nothing is drawn.",
        "jaxacct release count people.csv --budget year.jsonl --scale 20", json="",
    )  # fmt: skip
    verbs = command.add_subparsers(metavar="begin | show | " + " | ".join(VERBS), required=True)
    budget = new_command(
        verbs, "begin", run_begin, "a new budget, in a file",
        "Writes the file of a budget, which every release is paid from. It is for its owner alone.",
        'jaxacct release begin year.jsonl --epsilon 3 --delta 1e-6 --unit "one patient"',
    )  # fmt: skip
    budget.add_argument("file", metavar="FILE", help="the file, which must not be there")
    budget.add_argument("--epsilon", type=number, metavar="E", required=True, help="budget of all releases, above 0")
    delta = "its failure probability, in (0, 1), or 0, which pays for Laplace noise and quantiles alone"
    budget.add_argument("--delta", type=number, metavar="D", required=True, help=delta)
    budget.add_argument("--unit", metavar="TEXT", required=True, help="whose data one row of a table is")
    budget.add_argument(
        "--relation", choices=("add_or_remove", "replace"), default="add_or_remove",
        help="neighbours: a row is there or not (default), or another one is in its place",
    )  # fmt: skip
    account = new_command(
        verbs, "show", run_show, "what was released, and what is left",
        "Lists the releases that a file has paid for, and how many more like each it would pay for. No data is looked "
        "at, so this costs nothing.",
        "jaxacct release show year.jsonl",
    )  # fmt: skip
    account.add_argument("file", metavar="FILE", help="the budget's file")
    for verb, summary in VERBS.items():
        _add_verb(verbs, verb, summary)


def _add_verb(verbs: Any, verb: str, summary: str) -> None:
    """Adds the command of one kind of statistic."""
    examples = {
        "count": "--scale 20",
        "histogram": "--column ward --categories A B C --scale 20",
        "sum": "--column days --bounds 0 60 --scale 480 --noise gaussian",
        "mean": "--column days --bounds 0 60 --size 1000 --scale 0.48 --noise gaussian",
        "quantile": "--column days --level 0.5 --candidates 0:60:61 --epsilon 0.1",
    }
    command = new_command(
        verbs, verb, run, summary,
        f"Releases {summary}, with noise of exact law from the system's entropy. The budget's file pays first. What is "
        "missing, and in a number's place no number, counts as 0 in sums and nowhere else.",
        f"jaxacct release {verb} people.csv --budget year.jsonl {examples[verb]}",
    )  # fmt: skip
    command.set_defaults(verb=verb)
    command.add_argument("table", metavar="TABLE", help="file with one row for each person: .csv or .parquet")
    command.add_argument("--budget", metavar="FILE", required=True, help="what jaxacct release begin wrote")
    column = "the column's name, in the first line of .csv"
    command.add_argument("--column", metavar="NAME", required=verb != "count", help=column)
    command.add_argument("--name", metavar="TEXT", help="what it is, for the file (default: what, and which column)")
    if verb == "quantile":
        command.add_argument("--level", type=number, metavar="Q", required=True, help="in (0, 1): 0.5 is the median")
        places = "numbers that may come out: 0,7,14 or 0:60:61 or @FILE"
        command.add_argument("--candidates", metavar="VALUES", required=True, help=places)
        command.add_argument("--epsilon", type=number, metavar="E", required=True, help="what it may cost")
        return
    command.add_argument(
        "--scale", type=number, metavar="B", required=True, help="that of the noise, in the unit of what is released"
    )
    command.add_argument(
        "--noise", choices=("laplace", "gaussian"), default="laplace",
        help="its law on whole steps (default: laplace, of deviation 1.41 B; that of gaussian is B)",
    )  # fmt: skip
    if verb == "count":
        command.add_argument("--equals", metavar="TEXT", help="counts the rows that have this in the column")
    elif verb == "histogram":
        command.add_argument("--categories", nargs="+", metavar="TEXT", required=True, help="each gets a number")
    else:
        command.add_argument(
            "--bounds", nargs=2, type=number, metavar=("L", "U"), required=True, help="values are clipped to them"
        )
        command.add_argument(
            "--granularity", type=number, metavar="G",
            help="values are rounded to multiples of it (default: a thousandth of the larger bound)",
        )  # fmt: skip
        if verb == "mean":
            size = "what the sum is divided by, a public number"
            command.add_argument("--size", type=count, metavar="N", required=True, help=size)


def run_begin(arguments: argparse.Namespace) -> Report:
    """Begins a budget, and returns the report."""
    from jaxacct.release import Budget

    terms = {name: vars(arguments)[name] for name in ("epsilon", "delta", "unit", "relation")}
    account = Budget.begin(arguments.file, **terms).read()
    return Report(_describe(account, arguments.file), _facts(account), "a new budget")


def run_show(arguments: argparse.Namespace) -> Report:
    """Returns the report on what a budget's file says."""
    from jaxacct.mechanisms.records import record_of
    from jaxacct.release import Budget

    account = Budget(arguments.file).read()
    releases = [paid._asdict() | {"mechanism": record_of(paid.mechanism)} for paid in account.releases]
    rows = [
        [str(paid.number), paid.date, paid.name, _in_words(paid.mechanism, paid.runs), f"{paid.remaining:,}"]
        for paid in account.releases
    ]
    columns = (["number", "date", "release", "mechanism", "more like it"], rows)
    record = _describe(account, arguments.file) | {"releases": releases}
    return Report(record, _facts(account), "the budget", columns=columns if rows else None)


def run(arguments: argparse.Namespace) -> Report:
    """Releases a statistic, and returns the report."""
    import jaxacct as ja
    from jaxacct.mechanisms.records import record_of

    verb, column = arguments.verb, arguments.column
    if verb == "count" and (column is None) != (arguments.equals is None):
        raise ValueError("--column and --equals go together: give both, or neither to count all rows.")
    budget = ja.release.Budget(arguments.budget)
    options: dict[str, Any] = {"name": arguments.name or _name_of(arguments)}
    if verb == "quantile":
        from jaxacct.sweep.description import parsed

        candidates = parsed(arguments.candidates, "candidates")
        options |= {"level": arguments.level, "epsilon": arguments.epsilon, "candidates": candidates}
    else:
        laws = {"laplace": ja.DiscreteLaplace, "gaussian": ja.DiscreteGaussian}
        options |= {"scale": arguments.scale, "noise": laws[arguments.noise]}
    if verb in ("sum", "mean"):
        lower, upper = arguments.bounds
        options |= {"lower": lower, "upper": upper, "granularity": arguments.granularity}
    if verb == "mean":
        options["size"] = arguments.size
    if verb == "histogram":
        options["categories"] = arguments.categories
    values: list[Any] = _read_column(pathlib.Path(arguments.table), column)
    if verb == "count":
        values = [column is None or text == arguments.equals for text in values]
    elif verb != "histogram":
        values = [_number_of(text) for text in values]
    released = getattr(ja.release, verb)(values, budget, **options)
    account = budget.read()
    record = {
        "name": released.name,
        "value": released.value,
        **({"categories": arguments.categories} if verb == "histogram" else {}),
        "deviation": released.deviation,
        "mechanism": record_of(released.mechanism),
        "runs": released.runs,
        "number": released.number,
        "date": released.date.isoformat(),
        **_describe(account, arguments.budget),
    }
    named = zip(arguments.categories, released.value, strict=True) if verb == "histogram" else [("", released.value)]
    facts = [
        *((f"{released.name} {category}".strip(), f"{value:,.10g}") for category, value in named),
        *([] if released.deviation is None else [("deviation of the noise", f"{released.deviation:.4g}")]),
        ("accounted as", _in_words(released.mechanism, released.runs)),
        ("release", f"{released.number}, {released.date}"),
        *_facts(account),
    ]
    return Report(record, facts, "released", done=f"{released.name} is paid for as release {released.number}")


def _name_of(arguments: argparse.Namespace) -> str:
    """Returns what a release is, in words."""
    of_column = f" of {arguments.column}" if arguments.column else ""
    return arguments.verb + of_column + (f" = {arguments.equals}" if vars(arguments).get("equals") else "")


def _describe(account: Any, path: str) -> dict[str, Any]:
    """Returns the part of a record that describes the budget."""
    names = ("epsilon", "delta", "unit", "relation", "begun", "spent")
    terms = {name: getattr(account, name) for name in names}
    return {"budget": path, **terms, "guarantee": _guarantee(account), "version": __version__}


def _guarantee(account: Any) -> str:
    return (
        f"all releases from this file, however chosen from earlier ones, are together ({rounded_up(account.epsilon)}, "
        f"{rounded_up(account.delta)})-differentially private; neighbours: {account.relation.replace('_', ' ')}"
    )


def _facts(account: Any) -> list[tuple[str, str]]:
    """Returns the budget as names and texts."""
    budget = f"epsilon {rounded_up(account.epsilon)} at delta {rounded_up(account.delta)}, since {account.begun}"
    return [
        ("budget", budget),
        ("spent", f"{round_to('upper', account.spent)} by {spell_count(len(account.releases), 'release')}"),
        ("unit", account.unit),
        ("guarantee", _guarantee(account)),
    ]


def _in_words(mechanism: Any, runs: int) -> str:
    """Returns a mechanism with its numbers, and how many times it ran if more than once."""
    from jaxacct.mechanisms.records import record_of

    fields = {name: value for name, value in record_of(mechanism).items() if name not in ("type", "reach")}
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items())
    return f"{type(mechanism).__name__}: {shown}" + (f"; {spell_count(runs, 'time')}" if runs > 1 else "")


def _read_column(path: pathlib.Path, column: str | None) -> list[str | None]:
    """Returns the texts of a column, one for each row, None where a row has nothing there."""
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                '.parquet needs pyarrow, which is missing: pip install "jaxacct[sweep]"'
            ) from None
        file = pyarrow.parquet.ParquetFile(path)
        if column is None:
            return [None] * file.metadata.num_rows
        _check_column(path, column, file.schema_arrow.names)
        entries = file.read([column]).column(0).to_pylist()
        return [None if entry is None else str(entry) for entry in entries]
    if path.suffix != ".csv":
        raise ValueError(f"{path}: give a file that ends in .csv or .parquet.")
    # Each row is one line, and is read by itself: a quote that does not end takes no rows of others into its own.
    rows = []
    with path.open(newline="\n", encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(next(csv.reader([line], strict=True)))
            except csv.Error as error:
                why = "each row is one line, and a quote ends in its line"
                raise ValueError(f"{path} is no CSV in line {number} ({error}; {why}): export it anew.") from None
    names, *rows = rows or [[]]
    rows = [row for row in rows if row or len(names) == 1]  # of one column, a blank line is a row with nothing there
    if column is None:
        return [None] * len(rows)
    _check_column(path, column, names)
    place = names.index(column)
    return [row[place] or None if place < len(row) else None for row in rows]


def _check_column(path: pathlib.Path, column: str, names: list[str]) -> None:
    if names.count(column) != 1:
        # Only a near name is shown: without a line of names, all of them are a person's row.
        near = nearest(column, names)
        near = near if "did you mean" in near else ": the first line of .csv has the names of columns."
        raise ValueError(f"{path} has {names.count(column) or 'no'} columns {column!r}{near}")


def _number_of(text: str | None) -> float:
    """Returns the number that a text is, 1 and 0 for truth values, and NaN where it is none."""
    try:
        return float({"True": 1, "False": 0}.get(text or "", text or math.nan))
    except ValueError:
        return math.nan
