"""``jaxacct calibrate``: the noise multiplier, sampling rate or number of steps that a privacy budget pays for.

The target is an (epsilon, delta), or the success of a membership test. Noise may also be correlated over steps
(``--bands``), or calibrated for groups of examples; or be that of one mechanism beside others (``--spec``,
``--mechanism``).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any

import jaxacct as ja
from jaxacct import __version__
from jaxacct.choices import Relation
from jaxacct.cli.accounting import facts_of_run, times_of
from jaxacct.cli.arguments import (
    GUARANTEES,
    Report,
    add_group,
    add_noise,
    add_rate,
    add_relation,
    add_steps,
    new_command,
    number,
    rate_given,
    round_to,
    scope_of,
    steps_given,
)

UNKNOWNS = ("noise-multiplier", "sampling-rate", "steps")
"""Settings that can be looked for; the others have to be given."""

NOISES = ("noise_multiplier", "scale", "epsilon")
"""Fields that say how much noise a mechanism has; of ``epsilon`` less is more noise."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "calibrate", run, "noise, sampling rate or steps for a privacy budget",
        "The least noise (or the largest sampling rate, or the most steps) of a Gaussian mechanism on "
        "Poisson samples that is certified to keep within a budget, or to keep an attack from succeeding; or the least "
        "noise of any mechanism, beside what a spec and further mechanisms compose.",
        "jaxacct calibrate --epsilon 1 --delta 1e-5 --sampling-rate 0.01 --steps 10000",
        "jaxacct calibrate --tpr 0.1 --fpr 0.01 --sampling-rate 0.01 --steps 10000",
        "jaxacct calibrate --spec year.toml --epsilon 3 --mechanism gaussian --count 4",
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
    command.add_argument(
        "--mechanism", action="append", metavar="NAME:FIELD=VALUE,...",
        help="the one without its noise is looked for, gaussian say; those with it are composed beside it; may be "
        "given again",
    )  # fmt: skip
    command.add_argument("--count", type=number, metavar="K", help="runs of the mechanism that is looked for (1)")
    command.add_argument("--spec", metavar="FILE", help="composed beside it: what jaxacct certify takes")
    add_relation(command)
    add_group(command)


def run(arguments: argparse.Namespace) -> Report:
    """Finds the setting that was asked for, and returns the report on it."""
    from jaxacct.calibrate import Status

    find = _of_composition if arguments.mechanism or arguments.spec else _of_training
    name, result, target, describe = find(arguments)
    bounds = result.reached
    value = int(result.value) if name == "steps" else float(result.value)
    if name == "epsilon":  # the search is for its inverse, which grows with privacy
        value = 1 / value
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
        **describe(value),
        "guarantee": GUARANTEES["prv"],
        "version": __version__,
    }
    return _report(record)


def _of_training(arguments: argparse.Namespace) -> tuple[str, Any, dict[str, float], Any]:
    """Returns what is looked for in a run of DP-SGD, the library's answer, the target, and the record of a value."""
    from jaxacct import calibrate

    target, group = _target(arguments), arguments.group or 1
    unknown = arguments.solve_for.replace("-", "_")
    relation: Relation = arguments.relation or "add_or_remove"
    known = _known_of(arguments)
    correlated: dict[str, Any] = {}
    if group > 1 and (arguments.bands or "tpr" in target):
        option, otherwise = ("bands", "") if arguments.bands else ("tpr", ", or give --epsilon and --delta")
        raise ValueError(f"--{option} is of single examples: leave --group out{otherwise}.")
    if arguments.bands:
        result, correlated = _of_bands(arguments.bands, unknown, target, known, relation)
    elif "tpr" in target:
        result = calibrate.noise_multiplier_for_tpr(**target, **known, relation=relation)
    else:
        name = "noise_multiplier_for_advantage" if "advantage" in target else unknown
        result = getattr(calibrate, name)(**target, **known, relation=relation, group=group)

    def describe(value: float) -> dict[str, Any]:
        """Returns the part of the record that describes the run with the value."""
        run = {name: known.get(name, value) for name in (option.replace("-", "_") for option in UNKNOWNS)}
        scope = scope_of(relation, group).replace("Poisson", "cyclic Poisson" if correlated else "Poisson")
        return run | {
            "steps": int(run["steps"]),
            **correlated,
            "relation": relation,
            "group": group,
            "scope": scope,
        }

    return unknown, result, target, describe


def _known_of(arguments: argparse.Namespace) -> dict[str, float]:
    """Returns what is known of a run of DP-SGD, by name; raises ValueError where it is too little or too much."""
    rate = rate_given(arguments)
    if arguments.count is not None:
        raise ValueError(
            "--count is of the runs of a --mechanism: give one, gaussian say; a run of DP-SGD has --steps."
        )
    if arguments.solve_for == "sampling-rate" and arguments.epochs is not None:
        raise ValueError("--epochs is of no use where the rate is looked for: give --steps.")
    numbers = {"noise_multiplier": arguments.noise_multiplier, "sampling_rate": rate,
               "steps": steps_given(arguments, rate)}  # fmt: skip
    for option in UNKNOWNS:
        is_missing = numbers[option.replace("-", "_")] is None
        if option == arguments.solve_for and not is_missing:
            raise ValueError(f"--{option} is given and looked for: leave it out, or choose another --solve-for.")
        if option != arguments.solve_for and is_missing:
            raise ValueError(f"--{option} is missing: give it, or look for it with --solve-for {option}.")
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _of_composition(arguments: argparse.Namespace) -> tuple[str, Any, dict[str, float], Any]:
    """Returns the noise that is looked for of one mechanism beside others, as :func:`_of_training` does of a run."""
    from jaxacct import calibrate, specs
    from jaxacct.mechanisms.records import record_of

    part, field, others = _split_parts(arguments)
    settings = {"relation": arguments.relation, "group": arguments.group}
    composed = ([{"parts": others}] if others else []) + ([specs.read(arguments.spec)] if arguments.spec else [])
    rest = specs.parsed(specs.combined(composed, **settings)) if composed else None
    if rest is not None:
        if rest.distance:
            raise ValueError(
                "--spec has a report whose delta pays for more, cut batches or integer noise: use jaxacct certify."
            )
        settings = {"relation": rest.relation, "group": rest.group}
    new = specs.parsed(specs.combined([{"parts": [part]}], **settings))
    (release,) = new.releases
    plain: Any = release.mechanism
    target = {name: vars(arguments)[name] for name in ("epsilon", "delta")}
    for name, value in target.items():
        if value is None:
            target[name] = None if rest is None else vars(rest)[name]
        if target[name] is None:
            raise ValueError(f"--{name} is missing: give that of the budget, of all releases together.")
    mechanisms, steps = ((), ()) if rest is None else (rest.mechanisms, rest.steps)

    def make(scale: Any) -> tuple[Any, ...]:
        """Returns the mechanisms, the last with the noise that is looked for."""
        changed: dict[str, Any] = {field: 1 / scale if field == "epsilon" else scale}
        return (*mechanisms, ja.group(dataclasses.replace(plain, **changed), new.group))

    steps = (*steps, release.count)
    try:
        # To within 1e-3 of the least noise, at most 1e6: by laws of atoms each digit more takes a second.
        result = calibrate.scale(
            make, target["epsilon"], target["delta"], steps, relation=new.relation, tolerance=1e-3, most=1e6
        )
    except ValueError:
        alone = ja.epsilon(mechanisms, steps[:-1], target["delta"], relation=new.relation) if mechanisms else None
        if alone is None or alone.lower <= target["epsilon"]:
            raise
        cost = round_to("lower", float(alone.lower))
        raise ValueError(
            f"epsilon = {target['epsilon']:g} is spent: what is composed already costs {cost} or more at delta = "
            f"{target['delta']:g}, whatever is added: give a larger budget."
        ) from None

    def describe(value: float) -> dict[str, Any]:
        """Returns the part of the record that describes the composition with the value."""
        one = dataclasses.replace(plain, **{field: value})
        return {
            "looked_for": record_of(one),
            "count": release.count,
            "mechanism": [record_of(each) for each in (*mechanisms, ja.group(one, new.group))],
            "steps": [count if isinstance(count, int) else count.tolist() for count in steps],
            "relation": new.relation,
            "group": new.group,
            "scope": scope_of(new.relation, new.group, "samples as listed"),
        }

    return field, result, target, describe


def _split_parts(arguments: argparse.Namespace) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
    """Returns the part of a spec whose noise is looked for, with any noise, the noise's field, and the other parts.

    Raises ValueError where there is not one such part, or an option is of a run of DP-SGD by itself.
    """
    from jaxacct import specs
    from jaxacct.mechanisms.records import kind_of

    run_alone = ("noise_multiplier", "sampling_rate", "batch_size", "examples", "steps", "epochs", "bands")
    for name in (*run_alone, "advantage", "tpr", "fpr"):
        if vars(arguments)[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} is of a run of DP-SGD by itself: beside --spec or --mechanism leave it out; rates and runs "
                "are fields, --mechanism dp-sgd:sampling_rate=0.01,count=1000."
            )
    if arguments.solve_for != UNKNOWNS[0]:
        raise ValueError(
            f"--solve-for {arguments.solve_for} is of a run of DP-SGD by itself: leave it, or --spec, out."
        )
    sought: list[Any] = []
    others: list[Any] = []
    for text in arguments.mechanism or ():
        part = specs.part_of(text)
        fields = {field.name for field in dataclasses.fields(kind_of(part["type"]))}
        noise = next((name for name in NOISES if name in fields), None)
        (others if noise is None or noise in part else sought).append((text, part, noise))
    if len(sought) != 1:
        names = " and ".join(text for text, _, _ in sought) or "none"
        raise ValueError(
            f"--mechanism without its noise = {names}: give one, whose noise is looked for (gaussian), and the noise "
            "of all others (laplace:scale=2)."
        )
    ((_, part, noise),) = sought
    if arguments.count is not None:
        if "count" in part:
            raise ValueError("--count and the mechanism's own count are both given: leave one out.")
        part["count"] = arguments.count
    return part | {noise: 1.0}, str(noise), [part for _, part, _ in others]


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

    if unknown != "noise_multiplier" or "epsilon" not in target:
        raise ValueError("--bands looks for the noise of a budget: give --epsilon, --delta, --sampling-rate, --steps.")
    rate, steps = known["sampling_rate"], known["steps"]
    validation.check_steps(steps)
    if not any(count * rate <= 1 and count <= steps for count in bands):
        raise ValueError(
            f"--bands {bands} times --sampling-rate {rate:g} are all above 1, or above --steps: give fewer."
        )
    epsilon, delta = target["epsilon"], target["delta"]
    strategies = factorize.best_bands(int(steps), rate, epsilon, delta, bands=(1, *bands), relation=relation)
    best = next(entry for entry in strategies if entry.participation.groups in bands)
    (plain,) = {entry.error for entry in strategies if entry.participation.groups == 1}
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
    target = {name: vars(arguments)[name] for name in names if vars(arguments)[name] is not None}
    if set(target) not in ({"epsilon", "delta"}, {"advantage"}, {"tpr", "fpr"}):
        seen = ", ".join(f"--{name}" for name in target) or "none"
        raise ValueError(f"target = {seen}: give --epsilon and --delta, or --advantage, or --tpr and --fpr.")
    if "epsilon" not in target and arguments.solve_for != "noise-multiplier":
        raise ValueError(
            f"--solve-for {arguments.solve_for} takes --epsilon and --delta: an attack's success is a target for "
            "noise-multiplier only."
        )
    return target


def _report(record: dict[str, Any]) -> Report:
    """Returns the result with its table."""
    name = record["solve_for"]
    # The number shown must keep the budget, too: noise is rounded up, a rate down.
    safe = "upper" if name in ("noise_multiplier", "scale") else "lower"
    value = f"{record['value']:,}" if name == "steps" else round_to(safe, record["value"], 8)
    known = [] if "looked_for" in record else [key.replace("-", "_") for key in UNKNOWNS]
    correlated = ("bands", "rate_in_group", "error_over_independent")
    reached = record["reached"]
    facts = [
        (name.replace("_", " "), f"{value} ({record['status'].replace('_', ' ')})"),
        *(_list_composition(record) if "looked_for" in record else []),
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
    return Report(record, facts, f"{name.replace('_', ' ')} for a budget")


def _list_composition(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what was looked for, and what is composed beside it, as names and texts."""
    *rest, new = facts_of_run(record)
    return [
        ("of", f"{new[0]}; {times_of(record['count'])}"),
        *((f"beside {kind}", text) for kind, text in rest),
    ]
