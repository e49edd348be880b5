"""``jaxacct audit``: an empirical lower bound on a trainer's epsilon, by canaries that are put in to be found.

A bound above the accountant's claim refutes the trainer or the accountant; a bound below it proves nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from jaxacct import __version__
from jaxacct.cli.arguments import (
    Report,
    add_json,
    add_rate,
    add_steps,
    new_command,
    number,
    rate_given,
    round_to,
    steps_given,
)
from jaxacct.display import spell_count

DEFAULTS = {
    "noise_multiplier": (2.0, "S", "standard deviation of the noise over the clipping norm"),
    "sampling_rate": (0.1, "Q", "probability of each example to be in a batch, a fraction"),
    "steps": (400, "K", "noisy updates of a run"),
    "canaries": (500, "M", "examples of each run that a coin puts in or leaves out"),
    "guesses": (125, "R", "guesses of each run, about the canaries that look most and least like members"),
    "runs": (4, "N", "independent trainings"),
    "delta": (1e-5, "D", "failure probability at which epsilon is claimed"),
    "confidence": (0.95, "P", "confidence of the bounds, a probability"),
}
"""Settings of an audit: default, the help's letter, and meaning."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "audit", run, "an empirical lower bound on the trainer's epsilon",
        "Trains with gradient canaries, guesses which of them took part, and compares the lower bound on "
        "epsilon that the right guesses prove with what the accountant claims. Exit code 1 where the bound is above "
        "the claim: then the trainer, or the accountant, is broken. A bound below it is no proof of privacy.",
        "jaxacct audit", "jaxacct audit --break noise --seed 1",
    )  # fmt: skip
    add_rate(command, default="0.1")
    add_steps(command, default=" (default 400)")
    # Rate and steps have arguments of their own, above; the other settings follow from their defaults.
    for name, (value, letter, meaning) in DEFAULTS.items():
        if name not in ("sampling_rate", "steps"):
            command.add_argument(
                f"--{name.replace('_', '-')}", type=int if isinstance(value, int) else number, default=value,
                metavar=letter, help=f"{meaning} (default {value:g})",
            )  # fmt: skip
    command.add_argument(
        "--dataset", choices=("synthetic", "digits"), default="synthetic",
        help="the other examples (default: synthetic, which needs nothing; digits comes with scikit-learn)",
    )  # fmt: skip
    command.add_argument(
        "--break", dest="fault", choices=("noise", "clipping", "shuffling"),
        help="break the trainer, to see the audit notice: half of the noise, no clipping, or one fixed order of the "
        "data accounted as Poisson samples",
    )  # fmt: skip
    command.add_argument("--seed", type=int, metavar="N", help="makes the audit repeatable (default: system entropy)")
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    """Audits, prints the result, and returns the exit code: 1 where the bound is above the claim."""
    from jaxacct import audit  # first, as it says what to install
    from jaxacct.train import cross_entropy
    from jaxacct_recipes import Linear

    given = {name: vars(arguments)[name] for name in DEFAULTS}
    rate = rate_given(arguments)
    given["sampling_rate"] = DEFAULTS["sampling_rate"][0] if rate is None else rate
    steps = steps_given(arguments, rate)
    given["steps"] = DEFAULTS["steps"][0] if steps is None else int(steps) if steps % 1 == 0 else steps
    settings = audit.AuditSettings(**given)
    if arguments.seed is not None and arguments.seed < 0:
        raise ValueError(f"seed = {arguments.seed} is out of range: give a whole number of at least 0.")
    from flax import nnx

    inputs, labels, classes = _examples(arguments.dataset)
    model = Linear(inputs.shape[1:], classes, rngs=nnx.Rngs(0))
    found = audit.run(model, cross_entropy, (inputs, labels), settings, fault=arguments.fault, seed=arguments.seed)
    record = _record(arguments, found, len(labels))
    _report(record).show(arguments.json)
    return 1 if found.exceeded else 0


def _examples(name: str) -> tuple[Any, Any, int]:
    """Returns inputs, labels and the number of classes of a data set."""
    if name == "digits":
        from jaxacct_recipes import load

        digits = load("digits")
        return digits.train_inputs, digits.train_labels, digits.num_classes
    import numpy as np

    random = np.random.default_rng(0)  # public examples: their seed is no secret
    inputs = random.normal(size=(1000, 8)).astype(np.float32)  # examples and features: any do
    return inputs, np.argmax(inputs[:, :4], axis=1).astype(np.int32), 4


def _record(arguments: argparse.Namespace, found: Any, examples: int) -> dict[str, Any]:
    """Returns the result as JSON has it."""
    settings = found.settings
    return {
        "claim": found.claim,
        "lower_bound": found.epsilon,
        "exceeded": found.exceeded,
        "p_value": found.p_value,
        "refuted_noise_multiplier": found.noise_multiplier,
        "lower_bound_any_mechanism": found.epsilon_of_any_mechanism,
        "mu_lower_bound": found.mu,
        "correct": list(found.correct),
        **{name: vars(settings)[name] for name in DEFAULTS},
        "dataset": arguments.dataset,
        "examples": examples,
        "break": arguments.fault,
        "guarantee": f"with probability {settings.confidence:g}, a trainer whose claim is true has a bound of at most "
        "its claim; the bound is on epsilon of the claimed mechanism at whatever noise, the one for any mechanism "
        "assumes nothing",
        "version": __version__,
    }


def _report(record: dict[str, Any]) -> Report:
    """Returns the result with its table."""
    broken = f"; broken: {record['break']}" if record["break"] else ""
    right = ", ".join(map(str, record["correct"]))
    facts = [
        (
            "trainer",
            f"{spell_count(record['steps'], 'step')}, sampling rate {record['sampling_rate']:g}, noise multiplier "
            f"{record['noise_multiplier']:g}{broken}",
        ),
        (
            "canaries",
            f"{record['canaries']} beside {spell_count(record['examples'], 'example')}, "
            f"{spell_count(record['runs'], 'run')}",
        ),
        ("right guesses", f"{right} of {record['guesses']}"),
        ("epsilon, claimed", f"{round_to('upper', record['claim'])} at delta {round_to('upper', record['delta'])}"),
        ("epsilon, lower bound", round_to("lower", record["lower_bound"])),
        ("the same, any mechanism", round_to("lower", record["lower_bound_any_mechanism"])),
        ("mu of GDP, lower bound", round_to("lower", record["mu_lower_bound"], 3)),
        ("p-value of the claim", round_to("upper", record["p_value"], 3)),
        (
            "verdict",
            "the claim is refuted: trainer or accountant is broken"
            if record["exceeded"]
            else "no contradiction: the bound is below the claim, which is no proof of it",
        ),
        ("guarantee", record["guarantee"]),
    ]
    return Report(record, facts, "audit by gradient canaries")
