"""``jaxacct calibrate``: the noise, the sampling rate or the number of steps that a privacy budget pays for."""

from __future__ import annotations

import argparse
from typing import Any

from jaxacct import strict_json
from jaxacct.cli.accounting import GUARANTEES, SCOPE, rounded

UNKNOWNS = ("noise-multiplier", "sampling-rate", "steps")
TARGETS = {
    "epsilon": "budget, with --delta",
    "delta": "budget, with --epsilon",
    "advantage": "in place of epsilon and delta: greatest true- less false-positive rate of a membership test",
    "tpr": "in place of epsilon and delta: greatest true-positive rate of a membership test, with --fpr",
    "fpr": "false-positive rate at which --tpr holds",
}
KNOWN = {
    "noise-multiplier": "standard deviation of the noise over the clipping norm",
    "sampling-rate": "probability of each example to be in a batch, a fraction (1: no sampling)",
    "steps": "number of noisy updates",
}


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "calibrate",
        help="noise, sampling rate or steps for a privacy budget",
        description="The least noise (or the largest sampling rate, or the most steps) of a Gaussian mechanism on "
        "Poisson samples that is certified to keep within a budget, or to keep an attack from succeeding.",
        epilog="example: jaxacct calibrate --epsilon 1 --delta 1e-5 --sampling-rate 0.01 --steps 10000",
    )
    for name, meaning in TARGETS.items():
        command.add_argument(f"--{name}", type=float, metavar=name[0].upper(), help=meaning)
    for name, meaning in KNOWN.items():
        command.add_argument(f"--{name}", type=float, metavar=name[0].upper(), help=meaning)
    command.add_argument(
        "--solve-for", choices=UNKNOWNS, default=UNKNOWNS[0], help="what to look for (default: noise-multiplier)"
    )
    command.add_argument(
        "--relation", choices=("add_or_remove", "add", "remove"), default="add_or_remove",
        help="neighbouring relation (default: add_or_remove)",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Finds what was asked for, prints it, and returns the exit code."""
    from jaxacct import __version__
    from jaxacct.calibrate import Status

    unknown = arguments.solve_for
    target = _target(arguments)
    known = {name: _given(arguments, name) for name in UNKNOWNS if name != unknown}
    if getattr(arguments, unknown.replace("-", "_")) is not None:
        raise ValueError(f"--{unknown} is given and looked for: leave it out, or choose another --solve-for.")
    result = _solve(unknown, target, known, arguments.relation)
    quantity = "epsilon" if "epsilon" in target else "advantage" if "advantage" in target else "delta"
    reached = {name: float(getattr(result.reached, name)) for name in ("lower", "estimate", "upper")}
    record = {
        "solve_for": unknown.replace("-", "_"),
        "value": int(result.value) if unknown == "steps" else float(result.value),
        "status": Status(int(result.status)).name.lower(),
        "target": target,
        "reached": {"quantity": quantity, **reached},
        **{name.replace("-", "_"): int(value) if name == "steps" else value for name, value in known.items()},
        "relation": arguments.relation,
        "guarantee": GUARANTEES["prv"],
        "scope": SCOPE.format(relation=arguments.relation.replace("_", " ")),
        "version": __version__,
    }
    if arguments.json:
        print(strict_json.dumps(record))
    else:
        _print_table(record)
    return 0


def _given(arguments: argparse.Namespace, name: str) -> float:
    value = getattr(arguments, name.replace("-", "_"))
    if value is None:
        raise ValueError(f"--{name} is missing: give it, or look for it with --solve-for {name}.")
    return value


def _target(arguments: argparse.Namespace) -> dict[str, float]:
    """Returns the one target that is given whole; raises ValueError where there is none, or parts of two."""
    given = {name: getattr(arguments, name) for name in TARGETS if getattr(arguments, name) is not None}
    if set(given) not in ({"epsilon", "delta"}, {"advantage"}, {"tpr", "fpr"}):
        seen = ", ".join(f"--{name}" for name in given) or "none"
        raise ValueError(f"target = {seen}: give --epsilon and --delta, or --advantage, or --tpr and --fpr.")
    if "epsilon" not in given and arguments.solve_for != "noise-multiplier":
        raise ValueError(
            f"--solve-for {arguments.solve_for} takes --epsilon and --delta: an attack's success is a target for "
            "noise-multiplier only."
        )
    return given


def _solve(unknown: str, target: dict[str, float], known: dict[str, float], relation: str) -> Any:
    from jaxacct import calibrate

    if "advantage" in target:
        return calibrate.noise_multiplier_for_advantage(target["advantage"], *known.values(), relation=relation)
    if "tpr" in target:
        return calibrate.noise_multiplier_for_tpr(target["tpr"], target["fpr"], *known.values(), relation=relation)
    solve = getattr(calibrate, unknown.replace("-", "_"))
    return solve(target["epsilon"], target["delta"], *known.values(), relation=relation)


def _print_table(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    name = record["solve_for"]
    # Cut, not rounded to nearest: what is shown must satisfy the budget, too.
    value = f"{record['value']:,}" if name == "steps" else _cut(record["value"], up=name == "noise_multiplier")
    table = Table(show_header=False, title=f"{name.replace('_', ' ')} for a budget", title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold", max_width=60)
    table.add_row(name.replace("_", " "), f"{value} ({record['status'].replace('_', ' ')})")
    for known in ("noise_multiplier", "sampling_rate", "steps"):
        if known != name:
            table.add_row(known.replace("_", " "), f"{record[known]:g}")
    for target, number in record["target"].items():
        table.add_row(f"{target}, target", f"{number:g}")
    table.add_row(f"{record['reached']['quantity']}, upper", _cut(record["reached"]["upper"], up=True))
    table.add_row("guarantee", record["guarantee"])
    table.add_row("holds for", record["scope"])
    Console().print(table)


def _cut(value: float, *, up: bool) -> str:
    return rounded("upper" if up else "lower", value, 8)
