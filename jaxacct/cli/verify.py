"""``jaxacct verify``: the referee's verdicts on the brackets that a command wrote, in ball arithmetic."""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxacct import json_files
from jaxacct.cli.arguments import add_json, examples, print_columns, print_facts, rounded, show

if TYPE_CHECKING:
    from jaxacct.mechanisms.mechanism import Relation

CODES = {"PROVED": 0, "REFUTED": 3, "UNDECIDED": 4}
"""Exit codes, by verdict."""

JUDGED = {"epsilon": "delta", "delta": "epsilon"}
"""Quantities that can be judged, with the quantity that each is given at."""


class Claim(NamedTuple):
    """A claimed bracket, with the quantity and the composition that it is claimed for."""

    quantity: str
    given: float
    lower: float
    upper: float
    mechanism: Any
    steps: Any
    relation: Relation


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "verify",
        help="whether a bracket of an epsilon or a delta is true, in ball arithmetic",
        description="Proves or refutes the brackets in a JSON file that epsilon, delta, calibrate, curve or sweep "
        "wrote, without the accountants' code. Ends with code 0 if all are PROVED, 3 if one is REFUTED, else 4. "
        'Needs python-flint: pip install "jaxacct[verify]".',
        epilog=examples("jaxacct verify claim.json", "jaxacct verify claim.json --json"),
    )
    command.add_argument("file", metavar="FILE", help="what a command wrote with --json; - for standard input")
    add_json(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Judges the claims of a file, prints the verdicts, and returns the exit code."""
    from jaxacct import __version__, verify

    found = list(claims(read(arguments.file)))
    if not found:
        raise ValueError(f"{arguments.file} claims nothing: give a record with at least one bracket.")
    judges = {"epsilon": verify.epsilon, "delta": verify.delta}
    from jaxacct.verify.border import states_less

    verdicts = []
    for claim in found:
        bracket = 0.0 if states_less(claim.mechanism) else claim.lower, claim.upper
        try:
            verdict = judges[claim.quantity](
                claim.mechanism, claim.steps, claim.given, bracket, relation=claim.relation
            )
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{arguments.file} has a value of a wrong type: {error}") from None
        verdicts.append({
            "quantity": claim.quantity, "given": claim.given, "lower": claim.lower, "upper": claim.upper,
            "status": verdict.status.value, "truth": list(verdict.truth), "reason": verdict.reason,
        })  # fmt: skip
    statuses = [str(verdict["status"]) for verdict in verdicts]
    status = next(name for name in ("REFUTED", "UNDECIDED", "PROVED") if name in statuses)
    counts = {name.lower(): statuses.count(name) for name in CODES}
    show(
        {"status": status, "counts": counts, "claims": verdicts, "version": __version__},
        arguments.json,
        lambda: _print(status, found, verdicts),
    )
    return CODES[status]


def _print(status: str, found: list[Claim], verdicts: list[dict[str, Any]]) -> None:
    """Prints one verdict as a table of facts, or several as rows."""
    if len(found) > 1:
        names = ["quantity", "given", "lower", "upper", "status"]
        print_columns(names, [[_shown(name, verdict[name]) for name in names] for verdict in verdicts])
        for verdict in verdicts:
            if verdict["status"] != "PROVED":
                print(f"{verdict['quantity']} at {verdict['given']:.12g}: {verdict['reason']}")
        print(status)
        return
    (claim,), (verdict,) = found, verdicts
    facts = [
        (JUDGED[claim.quantity], f"{claim.given:.12g}"),
        ("claimed", f"{claim.lower!r} to {claim.upper!r}"),
        ("truth", f"{verdict['truth'][0]!r} to {verdict['truth'][1]!r}"),
        ("verdict", f"{status}: {verdict['reason']}"),
    ]
    print_facts(f"{claim.quantity} of {claim.steps} steps", facts)


def _shown(name: str, value: Any) -> str:
    """Returns a value as text, a bound to 12 digits rounded outward."""
    if not isinstance(value, float):
        return str(value)
    return rounded(name, value, 12) if name in ("lower", "upper") else f"{value:.12g}"


def read(name: str) -> Any:
    """Returns the JSON object of a file; raises ValueError where there is none."""
    try:
        record = json_files.loads(sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bytes that are no text, too
        raise ValueError(f"{name} is not JSON ({error}): give what a command printed with --json.") from None
    if not isinstance(record, dict):
        raise ValueError(f"{name} holds no JSON object: give what a command printed with --json.")
    return record


def claims(record: dict[str, Any]) -> Iterator[Claim]:
    """Yields the brackets in a command's output; raises ValueError where there are none that can be judged."""
    try:
        if "axes" in record:
            yield from _of_sweep(record)
        elif "reached" in record:
            bounds = record["reached"]
            yield from _of(bounds["quantity"], [bounds | record["target"]], _of_training(record), record)
        elif "kind" in record:
            if record["kind"] != "profile":
                raise ValueError(f"a curve of kind {record['kind']!r} is no epsilon and no delta: give a profile.")
            columns = record["results"]
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            yield from _of(record["quantity"], rows, record["mechanism"], record)
        else:
            yield from _of(record["quantity"], [record], record["mechanism"], record)
    except (KeyError, TypeError) as missing:
        what = f"no key {missing}" if isinstance(missing, KeyError) else f"a value of a wrong type: {missing}"
        raise ValueError(
            f"the record has {what}: give what jaxacct epsilon, delta, calibrate, curve or sweep printed with --json."
        ) from None


def _of(quantity: str, rows: list[dict[str, Any]], mechanism: Any, record: dict[str, Any]) -> Iterator[Claim]:
    """Yields the claims of rows with bounds and the value that they are given at, all for one composition."""
    if quantity not in JUDGED:
        raise ValueError(f"quantity = {quantity!r} cannot be judged: give the bracket of an epsilon or a delta.")
    from jaxacct.mechanisms.records import mechanism_of

    for row in rows:
        lower = 0.0 if row.get("lower") is None else float(row["lower"])
        steps = record["steps"]
        yield Claim(
            quantity, float(row[JUDGED[quantity]]), lower, float(row["upper"]), mechanism_of(mechanism),
            tuple(steps) if isinstance(steps, list) else steps, record["relation"],
        )  # fmt: skip


def _of_training(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the mechanism of a calibration's record: a Poisson-subsampled Gaussian, or that for groups."""
    if (size := record.get("group", 1)) > 1:
        noise, rate = record["noise_multiplier"], record["sampling_rate"]
        return {"type": "PoissonSubsampledGroup", "scale": noise, "sampling_rate": rate, "size": size}
    names = ("noise_multiplier", "sampling_rate")
    return {"type": "PoissonSubsampledGaussian"} | {name: record[name] for name in names}


def _of_sweep(record: dict[str, Any]) -> Iterator[Claim]:
    """Yields the claims of a sweep of one mechanism class; a sweep for noise claims the epsilon that it reached."""
    if "results" not in record or len(record["mechanisms"]) != 1:
        raise ValueError("a sweep with its results, of one mechanism, can be judged: leave out --out.")
    kind = record["mechanisms"][0]
    columns = record["results"]
    axes = record["axes"].values()
    for i, place in enumerate(zip(*axes, strict=True) if record.get("layout") == "rows" else itertools.product(*axes)):
        entry = record["constants"] | dict(zip(record["axes"], place, strict=True))
        bounds = {name: columns[name][i] for name in ("lower", "upper")}
        fields = {name: value for name, value in entry.items() if name not in ("steps", "delta", "epsilon")}
        steps = {"steps": int(entry["steps"]), "relation": record["relation"]}
        yield from _of(record["quantity"], [entry | bounds], {"type": kind} | fields, steps)
