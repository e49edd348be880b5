"""``jaxacct epsilon`` and ``jaxacct delta``: certified bounds on the privacy cost of a run or a composition."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import math
from typing import Any

from jaxacct.cli.arguments import (
    GUARANTEES,
    Elsewhere,
    Run,
    add_json,
    add_run,
    new_command,
    number,
    print_facts,
    rounded,
    run_of,
    scope_of,
    show,
    why,
)

RUN = "--noise-multiplier 1 --sampling-rate 0.01 --steps 10000"
"""The run of DP-SGD in the help's examples."""


def add_parser(commands: Any) -> None:
    """Adds the commands to the parser's subcommands."""
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
    import jaxacct as ja

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
        **described(asked),
        "accountant": arguments.accountant,
        "guarantee": GUARANTEES[arguments.accountant],
    }
    if record["upper"] == (math.inf if quantity == "epsilon" else 1.0):
        record["why"] = why(asked, value if quantity == "epsilon" else 1.0)
    show(record, arguments.json, lambda: _print(record, asked, given))
    return 0


def described(run: Run) -> dict[str, Any]:
    """Returns the part of a result that describes its run."""
    from jaxacct import __version__

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
        return [(one["type"], f"{fact}; {count} times") for one, fact, count in times]
    return [(name.replace("_", " "), f"{value:.12g}" if isinstance(value, float) else str(value))
            for name, value in mechanism.items() if name not in ("type", "noise")]  # fmt: skip


def _print(record: dict[str, Any], run: Run, given: str) -> None:
    """Prints a result as a table, its bounds rounded outward."""
    quantity = record["quantity"]
    bounds = [(name, record[name]) for name in ("lower", "estimate", "upper") if record[name] is not None]
    facts = [
        *facts_of_run(record),
        (given, f"{record[given]:.12g}"),
        *((f"{quantity}, {name}", rounded(name, bound)) for name, bound in bounds),
        *([("why", record["why"])] if "why" in record else []),
        ("accountant", f"{record['accountant']} ({record['guarantee']})"),
        ("holds for", record["scope"]),
    ]
    print_facts(f"{quantity} of {run.title}", facts)
