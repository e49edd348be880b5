"""``jaxacct epsilon`` and ``jaxacct delta``: what a run of DP-SGD costs."""

from __future__ import annotations

import argparse
import math
from typing import Any

from jaxacct import strict_json

GUARANTEES = {
    "best": "certified: lower <= truth <= upper, rounding included",
    "prv": "certified: lower <= truth <= upper, rounding included",
    "rdp": "upper bound, by Rényi divergences",
    "saddlepoint": "certified: lower <= truth <= upper, rounding included; inf (delta: 1) where not converged",
}
SCOPE = "noise, rate and steps fixed in advance; Poisson sampling; neighbours: {relation}"


def add_parser(commands: Any) -> None:
    """Adds the commands to the parser's subcommands."""
    for quantity, given in (("epsilon", "delta"), ("delta", "epsilon")):
        command = commands.add_parser(
            quantity,
            help=f"{quantity} of a run of DP-SGD, at a {given}",
            description=f"Bounds on the {quantity} of a Gaussian mechanism, run for some steps on Poisson samples.",
            epilog=f"example: jaxacct {quantity} --noise-multiplier 1.0 --sampling-rate 0.01 --steps 10000 "
            f"--{given} {'1e-5' if given == 'delta' else '4'}",
        )
        command.add_argument(
            "--noise-multiplier", type=float, required=True, metavar="S",
            help="standard deviation of the noise over the clipping norm",
        )  # fmt: skip
        command.add_argument(
            "--sampling-rate", type=float, default=1.0, metavar="Q",
            help="probability of each example to be in a batch, a fraction (default 1: no sampling)",
        )  # fmt: skip
        command.add_argument("--steps", type=float, required=True, metavar="K", help="number of noisy updates")
        command.add_argument(f"--{given}", type=float, required=True, metavar=given[0].upper())
        command.add_argument(
            "--accountant", choices=sorted(GUARANTEES), default="best",
            help="best (default): saddlepoint, and prv where that has not converged",
        )  # fmt: skip
        command.add_argument(
            "--relation", choices=("add_or_remove", "add", "remove"), default="add_or_remove",
            help="neighbouring relation (default: add_or_remove)",
        )  # fmt: skip
        command.add_argument(
            "--tolerance", type=float, default=None, metavar="T",
            help="relative gap between the bounds that prv aims at, where it is asked (default 1e-3)",
        )  # fmt: skip
        command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Computes what was asked for, prints it, and returns the exit code."""
    import jaxacct as ja
    from jaxacct import saddlepoint

    quantity = arguments.command
    given = "delta" if quantity == "epsilon" else "epsilon"
    value = getattr(arguments, given)
    mechanism = ja.PoissonSubsampledGaussian(arguments.noise_multiplier, arguments.sampling_rate)
    accountants = {"best": ja, "prv": ja.prv, "rdp": ja.rdp, "saddlepoint": saddlepoint}
    call = getattr(accountants[arguments.accountant], quantity)
    options = {"relation": arguments.relation}
    if arguments.tolerance is not None:
        if arguments.accountant not in ("best", "prv"):
            raise ValueError("tolerance: only the prv accountant refines to a tolerance; leave it out.")
        options["tolerance"] = arguments.tolerance
    result = call(mechanism, arguments.steps, value, **options)
    bounds = (
        {"lower": float(result.lower), "estimate": float(result.estimate), "upper": float(result.upper)}
        if isinstance(result, ja.Bounds)
        else {"upper": float(result)}
    )
    record = {
        "quantity": quantity,
        **bounds,
        given: value,
        "mechanism": {
            "type": "PoissonSubsampledGaussian",
            "noise_multiplier": arguments.noise_multiplier,
            "sampling_rate": arguments.sampling_rate,
        },
        "steps": int(arguments.steps),
        "relation": arguments.relation,
        "accountant": arguments.accountant,
        "guarantee": GUARANTEES[arguments.accountant],
        "scope": SCOPE.format(relation=arguments.relation.replace("_", " ")),
        "version": ja.__version__,
    }
    if arguments.json:
        print(strict_json.dumps(record))
    else:
        _print_table(record, bounds, given)
    return 0


def _print_table(record: dict[str, Any], bounds: dict[str, float], given: str) -> None:
    from rich.console import Console
    from rich.table import Table

    quantity = record["quantity"]
    mechanism = record["mechanism"]
    table = Table(show_header=False, title=f"{quantity} of {record['steps']:,} steps", title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold", max_width=60)
    table.add_row("noise multiplier", f"{mechanism['noise_multiplier']:g}")
    table.add_row("sampling rate", f"{mechanism['sampling_rate']:g}")
    table.add_row(given, f"{record[given]:g}")
    for name, value in bounds.items():
        table.add_row(f"{quantity}, {name}", rounded(name, value))
    table.add_row("accountant", f"{record['accountant']} ({record['guarantee']})")
    table.add_row("holds for", record["scope"])
    Console().print(table)


def rounded(name: str, value: float, digits: int = 6) -> str:
    """Returns ``value`` to some significant digits, a bound rounded outward."""
    if value == 0 or not math.isfinite(value) or name == "estimate":
        return f"{value:.{digits}g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    steps = math.ceil(value / unit) if name == "upper" else math.floor(value / unit)
    text = f"{steps * unit:.{digits}g}"
    # The product may have rounded to the wrong side of value: one unit further is always outward.
    if (name == "upper" and float(text) < value) or (name == "lower" and float(text) > value):
        text = f"{(steps + (1 if name == 'upper' else -1)) * unit:.{digits}g}"
    return text
