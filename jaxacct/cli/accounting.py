"""``jaxacct epsilon`` and ``jaxacct delta``: what a run of DP-SGD costs."""

from __future__ import annotations

import argparse
import functools
import gc
from collections.abc import Callable
from typing import Any

from jaxacct.cli.arguments import Elsewhere, add_json, add_run, examples, number
from jaxacct.cli.shown import GUARANTEES, print_facts, rounded, scope_of, show

RUN = "--noise-multiplier 1 --sampling-rate 0.01 --steps 10000"

VERBS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "best": lambda ja: (ja.epsilon, ja.delta),
    "prv": lambda ja: (ja.prv.epsilon, ja.prv.delta),
    "rdp": lambda ja: (ja.rdp.epsilon, ja.rdp.delta),
    "saddlepoint": lambda ja: (ja.saddlepoint.epsilon, ja.saddlepoint.delta),
}
"""What answers, of the library, which is imported when it is called: each of its rooms takes time."""


def add_parser(commands: Any) -> None:
    """Adds the commands to the parser's subcommands."""
    for quantity, given, value in (("epsilon", "delta", "1e-5"), ("delta", "epsilon", "4")):
        article = "an" if given == "epsilon" else "a"
        command = commands.add_parser(
            quantity,
            help=f"{quantity} of a run of DP-SGD, at {article} {given}",
            description=f"Certified bounds on the {quantity} of a run: a Gaussian mechanism, some steps on Poisson "
            "samples. Report the upper bound.",
            epilog=examples(
                f"jaxacct {quantity} {RUN} --{given} {value}",
                f"jaxacct {quantity} --noise-multiplier 20 --steps 100 --{given} {value} --json",
            ),
        )
        add_run(command)
        meaning = "failure probability, in (0, 1)" if given == "delta" else "privacy loss, at least 0"
        command.add_argument(f"--{given}", type=number, required=True, metavar=given[0].upper(), help=meaning)
        command.add_argument(f"--{quantity}", action=Elsewhere, const=f"it is what is looked for: give --{given}")
        command.add_argument(
            "--accountant", choices=sorted(VERBS), default="best",
            help="best (default): saddlepoint, and prv where that has not converged",
        )  # fmt: skip
        command.add_argument(
            "--tolerance", type=number, metavar="T",
            help="relative gap between the bounds that prv aims at, where it is asked (default 1e-3)",
        )  # fmt: skip
        add_json(command)
        command.set_defaults(run=functools.partial(run, quantity, given))


def run(quantity: str, given: str, arguments: argparse.Namespace) -> int:
    """Computes what was asked for, prints it, and returns the exit code."""
    import jaxacct as ja

    value = arguments.delta if quantity == "epsilon" else arguments.epsilon
    mechanism = ja.PoissonSubsampledGaussian(arguments.noise_multiplier, arguments.sampling_rate)
    epsilon, delta = VERBS[arguments.accountant](ja)
    solve = epsilon if quantity == "epsilon" else delta
    options = {"relation": arguments.relation}
    if arguments.tolerance is not None:
        if arguments.accountant not in ("best", "prv"):
            raise ValueError("tolerance: only the prv accountant refines to a tolerance; leave it out.")
        options["tolerance"] = arguments.tolerance
    # Tracing makes objects that stay: looking for garbage among them takes 0.1 s of 1.6.
    gc.disable()
    try:
        result = solve(mechanism, arguments.steps, value, **options)
    finally:
        gc.enable()
    bounds: dict[str, float | None] = {"lower": None, "estimate": None, "upper": None}
    if isinstance(result, ja.Bounds):
        bounds = {name: float(getattr(result, name)) for name in bounds}
    else:
        bounds["upper"] = float(result)
    record = {
        "quantity": quantity,
        **bounds,
        given: value,
        **described(arguments),
        "accountant": arguments.accountant,
        "guarantee": GUARANTEES[arguments.accountant],
    }
    show(record, arguments.json, lambda: _print(record, bounds, given))
    return 0


def described(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what a result says of the run that it is about."""
    from jaxacct import __version__

    return {
        "mechanism": {
            "type": "PoissonSubsampledGaussian",
            "noise_multiplier": arguments.noise_multiplier,
            "sampling_rate": arguments.sampling_rate,
        },
        "steps": int(arguments.steps),
        "relation": arguments.relation,
        "scope": scope_of(arguments.relation),
        "version": __version__,
    }


def facts_of_run(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what a table says of it."""
    mechanism = record["mechanism"]
    return [
        ("noise multiplier", f"{mechanism['noise_multiplier']:.12g}"),
        ("sampling rate", f"{mechanism['sampling_rate']:.12g}"),
    ]


def _print(record: dict[str, Any], bounds: dict[str, float | None], given: str) -> None:
    quantity = record["quantity"]
    shown = [(f"{quantity}, {name}", rounded(name, bound)) for name, bound in bounds.items() if bound is not None]
    facts = [
        *facts_of_run(record),
        (given, f"{record[given]:.12g}"),
        *shown,
        ("accountant", f"{record['accountant']} ({record['guarantee']})"),
        ("holds for", record["scope"]),
    ]
    print_facts(f"{quantity} of {record['steps']:,} steps", facts)
