"""``jaxacct calibrate``: the noise multiplier, sampling rate or number of steps that a privacy budget pays for.

The target is an (epsilon, delta), or the success of a membership test. Noise may also be correlated over steps
(``--bands``), or calibrated for groups of examples.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import jaxacct as ja
from jaxacct import __version__
from jaxacct.choices import Relation
from jaxacct.cli.arguments import (
    GUARANTEES,
    add_group,
    add_json,
    add_noise,
    add_rate,
    add_relation,
    add_steps,
    new_command,
    number,
    print_facts,
    rate_given,
    round_to,
    scope_of,
    show,
    steps_given,
)

UNKNOWNS = ("noise-multiplier", "sampling-rate", "steps")
"""Settings that can be looked for; the others have to be given."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "calibrate", run, "noise, sampling rate or steps for a privacy budget",
        "The least noise (or the largest sampling rate, or the most steps) of a Gaussian mechanism on "
        "Poisson samples that is certified to keep within a budget, or to keep an attack from succeeding.",
        "jaxacct calibrate --epsilon 1 --delta 1e-5 --sampling-rate 0.01 --steps 10000",
        "jaxacct calibrate --tpr 0.1 --fpr 0.01 --sampling-rate 0.01 --steps 10000",
        "jaxacct calibrate --epsilon 8 --delta 1e-6 --sampling-rate 0.005 --steps 2000 --bands 4,8,16",
    )  # fmt: skip
    attack = "in place of epsilon and delta: greatest"
    for name, letter, meaning in (
        ("epsilon", "E", "budget, at least 0; with --delta"),
        ("delta", "D", "budget, in (0, 1); with --epsilon"),
        ("advantage", "A", f"{attack} true- less false-positive rate of a membership test, in (0, 1)"),
        ("tpr", "R", f"{attack} true-positive rate of a membership test, in (0, 1); with --fpr"),
        ("fpr", "R", "false-positive rate at which --tpr holds, in (0, 1)"),
    ):
        command.add_argument(f"--{name}", type=number, metavar=letter, help=meaning)
    add_noise(command)
    add_rate(command, default="none")
    add_steps(command)
    command.add_argument(
        "--solve-for", choices=UNKNOWNS, default=UNKNOWNS[0], help="what to look for (default: noise-multiplier)"
    )
    command.add_argument(
        "--bands", type=_counts, metavar="B,...", help="noise correlated over steps: the best of these numbers of "
        "bands, with as many groups of examples that take turns; needs the extra [train]",
    )  # fmt: skip
    add_relation(command)
    add_group(command)
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    """Finds the setting that was asked for, prints it, and returns the exit code."""
    from jaxacct.calibrate import Status

    unknown = arguments.solve_for
    target = _target(arguments)
    relation: Relation = arguments.relation or "add_or_remove"
    rate = rate_given(arguments)
    if unknown == "sampling-rate" and arguments.epochs is not None:
        raise ValueError("--epochs is of no use where the rate is looked for: give --steps.")
    given = {"noise-multiplier": arguments.noise_multiplier, "sampling-rate": rate,
             "steps": steps_given(arguments, rate)}  # fmt: skip
    if given[unknown] is not None:
        raise ValueError(f"--{unknown} is given and looked for: leave it out, or choose another --solve-for.")
    for name in UNKNOWNS:
        if given[name] is None and name != unknown:
            raise ValueError(f"--{name} is missing: give it, or look for it with --solve-for {name}.")
    known = {name: float(value) for name, value in given.items() if value is not None}
    correlated: dict[str, Any] = {}
    group = arguments.group or 1
    if arguments.bands:
        if group > 1:
            raise ValueError("--bands is of single examples: leave --group out.")
        result, correlated = _of_bands(arguments.bands, unknown, target, known, relation)
    elif group == 1:
        result = _solve(unknown, target, known, relation)
    else:
        result = _of_group(unknown, target, known, relation, group)
    bounds = result.reached
    name, value = unknown.replace("-", "_"), int(result.value) if unknown == "steps" else float(result.value)
    run_found = {key.replace("-", "_"): known.get(key, value) for key in UNKNOWNS}
    record = {
        "solve_for": name,
        "value": value,
        "status": Status(int(result.status)).name.lower(),
        "target": target,
        "reached": {
            "quantity": next((name for name in ("epsilon", "advantage") if name in target), "delta"),
            "lower": float(bounds.lower),
            "estimate": float(bounds.estimate),
            "upper": float(bounds.upper),
        },
        **run_found,
        "steps": int(run_found["steps"]),
        **correlated,
        "relation": relation,
        "group": group,
        "guarantee": GUARANTEES["prv"],
        "scope": scope_of(relation, group).replace("Poisson", "cyclic Poisson" if correlated else "Poisson"),
        "version": __version__,
    }
    show(record, arguments.json, lambda: _print(record))
    return 0


def _counts(text: str) -> list[int]:
    """Returns the whole numbers that an argument lists."""
    if not all(word.isdecimal() and int(word) for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers of bands: give whole ones, such as 4,8,16")
    return [int(word) for word in text.split(",")]


def _of_bands(
    bands: list[int], unknown: str, target: dict[str, float], known: dict[str, float], relation: Relation
) -> tuple[Any, dict[str, Any]]:
    """Returns the noise for the banded strategy of least error, and that strategy's part of the record."""
    from jaxacct import factorize, validation

    if unknown != "noise-multiplier" or "epsilon" not in target:
        raise ValueError("--bands looks for the noise of a budget: give --epsilon, --delta, --sampling-rate, --steps.")
    rate, steps = known["sampling-rate"], known["steps"]
    validation.check_steps(steps)
    if not any(count * rate <= 1 and count <= steps for count in bands):
        raise ValueError(
            f"--bands {bands} times --sampling-rate {rate:g} are all above 1, or above --steps: give fewer."
        )
    epsilon, delta = target["epsilon"], target["delta"]
    found = factorize.best_bands(int(steps), rate, epsilon, delta, bands=(1, *bands), relation=relation)
    best = next(entry for entry in found if entry.participation.groups in bands)
    (plain,) = {entry.error for entry in found if entry.participation.groups == 1}
    result = factorize.noise_multiplier(best.strategy, best.participation, epsilon, delta, relation=relation)
    return result, {
        "bands": (groups := best.participation.groups),
        "rate_in_group": groups * rate,
        "first_column": best.strategy.coefficients(groups).tolist(),
        "error_over_independent": math.sqrt(best.error / plain),
    }


def _target(arguments: argparse.Namespace) -> dict[str, float]:
    """Returns the target that is given in full; raises ValueError where there is none, or parts of two."""
    names = ("epsilon", "delta", "advantage", "tpr", "fpr")
    given = {name: vars(arguments)[name] for name in names if vars(arguments)[name] is not None}
    if set(given) not in ({"epsilon", "delta"}, {"advantage"}, {"tpr", "fpr"}):
        seen = ", ".join(f"--{name}" for name in given) or "none"
        raise ValueError(f"target = {seen}: give --epsilon and --delta, or --advantage, or --tpr and --fpr.")
    if "epsilon" not in given and arguments.solve_for != "noise-multiplier":
        raise ValueError(
            f"--solve-for {arguments.solve_for} takes --epsilon and --delta: an attack's success is a target for "
            "noise-multiplier only."
        )
    return given


def _solve(unknown: str, target: dict[str, float], known: dict[str, float], relation: Relation) -> Any:
    """Returns the library's answer for single examples."""
    from jaxacct import calibrate

    if "advantage" in target:
        return calibrate.noise_multiplier_for_advantage(target["advantage"], *known.values(), relation=relation)
    if "tpr" in target:
        return calibrate.noise_multiplier_for_tpr(target["tpr"], target["fpr"], *known.values(), relation=relation)
    solve = {
        "noise-multiplier": calibrate.noise_multiplier,
        "sampling-rate": calibrate.sampling_rate,
        "steps": calibrate.steps,
    }[unknown]
    return solve(target["epsilon"], target["delta"], *known.values(), relation=relation)


def _of_group(unknown: str, target: dict[str, float], known: dict[str, float], relation: Relation, size: int) -> Any:
    """Returns the least noise for groups, certified; no other setting can be calibrated for them."""
    from jaxacct.calibrate import Calibrated, Status
    from jaxacct.numerics.root_search import least_by_secants

    if unknown != "noise-multiplier" or not target.get("epsilon", 0.0) > 0:
        raise ValueError(f"--group {size}: with --epsilon above 0 and --delta, for the noise multiplier alone.")
    rate, steps = known.values()

    def epsilon_at(setting: float) -> Any:
        """Returns the bounds on epsilon at the noise multiplier e^setting."""
        one = ja.group(ja.PoissonSubsampledGaussian(math.exp(setting), rate), size)
        return ja.epsilon(one, steps, target["delta"], relation=relation)

    found = least_by_secants(
        lambda s: float(epsilon_at(s).upper) / target["epsilon"], math.log(size), close=1e-6, rounds=40
    )
    if found == math.inf:
        raise ValueError(f"--group {size}: no noise that was tried keeps the budget: give a larger one.")
    return Calibrated(math.exp(found), epsilon_at(found), Status.LOOSE)


def _print(record: dict[str, Any]) -> None:
    """Prints the result as a table."""
    name = record["solve_for"]
    # The number shown must keep the budget, too: noise is rounded up, a rate down.
    safe = "upper" if name == "noise_multiplier" else "lower"
    value = f"{record['value']:,}" if name == "steps" else round_to(safe, record["value"], 8)
    known = [key.replace("-", "_") for key in UNKNOWNS]
    correlated = ("bands", "rate_in_group", "error_over_independent")
    reached = record["reached"]
    facts = [
        (name.replace("_", " "), f"{value} ({record['status'].replace('_', ' ')})"),
        *((key.replace("_", " "), f"{record[key]:.12g}") for key in known if key != name),
        *((key.replace("_", " "), f"{record[key]:.6g}") for key in correlated if key in record),
        *((f"{target}, target", f"{number:.12g}") for target, number in record["target"].items()),
        (f"{reached['quantity']}, upper", round_to("upper", reached["upper"], 8)),
        ("guarantee", record["guarantee"]),
        ("holds for", record["scope"]),
    ]
    if reached["upper"] == math.inf:
        why = (
            "nothing in the range that is searched keeps the budget: give a larger one, more noise, fewer steps"
            if record["status"] == "infeasible"
            else "no accountant knows a bound where it looked: give more noise, fewer steps or a larger delta"
        )
        facts.insert(-2, ("why inf", why))
    print_facts(f"{name.replace('_', ' ')} for a budget", facts)
