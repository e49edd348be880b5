"""What is accounted for: a run of DP-SGD by its noise, rate and steps or batches and epochs, and compositions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxacct import rates
from jaxacct.cli.arguments import add_relation, count, number

if TYPE_CHECKING:
    from jaxacct.mechanisms.mechanism import Relation


class Run(NamedTuple):
    """What is composed: as the accountants take it, and as JSON says it."""

    mechanism: Any
    steps: Any
    relation: Relation
    group: int
    record: Any

    @property
    def title(self) -> str:
        """What a table is of."""
        return f"{self.steps:,.12g} steps" if not isinstance(self.steps, tuple) else f"{len(self.steps)} mechanisms"


def add_rate(
    command: argparse.ArgumentParser,
    kind: Callable[[str], Any] = number,
    metavar: str = "",
    default: str = "1: no sampling",
) -> None:
    """Adds the sampling rate, and what it follows from."""
    command.add_argument(
        "--sampling-rate", type=kind, metavar=metavar or "Q",
        help=f"probability of each example to be in a batch, a fraction in (0, 1], 64/1000 say (default {default})",
    )  # fmt: skip
    command.add_argument(
        "--batch-size",
        type=kind,
        metavar=metavar or "B",
        help="in place of the rate: expected batches, with --examples",
    )
    command.add_argument("--examples", type=number, metavar="N", help="number of examples that batches are drawn from")


def add_steps(
    command: argparse.ArgumentParser, kind: Callable[[str], Any] = number, metavar: str = "", default: str = ""
) -> None:
    """Adds the number of steps, and what it follows from."""
    command.add_argument("--steps", type=kind, metavar=metavar or "K", help=f"number of noisy updates{default}")
    command.add_argument(
        "--epochs", type=kind, metavar=metavar or "E",
        help="in place of steps: expected passes over the data, as ceil(E / sampling rate) steps",
    )  # fmt: skip


def add_group(command: argparse.ArgumentParser) -> None:
    """Adds the number of examples that change together."""
    command.add_argument(
        "--group", type=count, metavar="G", help="examples of one person, which change together (default 1)"
    )


def add_run(command: argparse.ArgumentParser) -> None:
    """Adds what describes a run of DP-SGD, and other mechanisms."""
    command.add_argument(
        "--noise-multiplier", type=number, metavar="S", help="standard deviation of the noise over the clipping norm"
    )
    add_rate(command)
    add_steps(command)
    command.add_argument(
        "--mechanism", action="append", metavar="NAME:FIELD=VALUE,...",
        help="composed as well, or alone: laplace:scale=2,count=10; may be given again",
    )  # fmt: skip
    command.add_argument("--spec", metavar="FILE", help="composed as well, or alone: what jaxacct certify takes")
    add_relation(command)
    add_group(command)


def rate_given(arguments: argparse.Namespace) -> float | None:
    """Returns the sampling rate that the arguments say, or None; raises ValueError where they say it twice."""
    rate, batch, examples = arguments.sampling_rate, arguments.batch_size, arguments.examples
    if batch is None:
        if examples is not None:
            raise ValueError("--examples goes with --batch-size: give both, or --sampling-rate.")
        return rate
    if rate is not None:
        raise ValueError("--batch-size and --sampling-rate are both given: leave one out.")
    if examples is None:
        raise ValueError("--batch-size needs --examples, the number that batches are drawn from; or --sampling-rate.")
    return rates.rate_of(batch, examples)


def steps_given(arguments: argparse.Namespace, rate: float | None) -> float | None:
    """Returns the number of steps that the arguments say, or None; raises ValueError where they say it twice."""
    if arguments.epochs is None:
        return arguments.steps
    if arguments.steps is not None:
        raise ValueError("--epochs and --steps are both given: leave one out.")
    if rate is None:
        raise ValueError("--epochs needs a rate: give --batch-size and --examples, or --sampling-rate.")
    return float(rates.steps_of(arguments.epochs, rate))


def run_of(arguments: argparse.Namespace) -> Run:
    """Returns what the arguments describe."""
    import jaxacct as ja
    from jaxacct.mechanisms.records import record_of

    rate, noise, others = rate_given(arguments), arguments.noise_multiplier, arguments.mechanism or arguments.spec
    steps = steps_given(arguments, rate)
    if others and noise is None and (rate, steps) != (None, None):
        raise ValueError("--noise-multiplier is missing: a rate and steps are of a run of DP-SGD; give it, or neither.")
    for name, value in (("--noise-multiplier", noise), ("--steps, or --epochs with a rate,", steps)):
        if value is None and not (others and noise is None):
            raise ValueError(f"{name} is missing: give it, or compose by --mechanism or --spec.")
    rate, size = 1.0 if rate is None else rate, arguments.group or 1
    if not others:
        mechanism = ja.group(ja.PoissonSubsampledGaussian(noise, rate), size)
        return Run(mechanism, steps, arguments.relation or "add_or_remove", size, record_of(mechanism))
    from jaxacct import specs

    parts = [specs.part_of(text) for text in arguments.mechanism or ()]
    if noise is not None:
        parts.append({"type": "dp-sgd", "noise_multiplier": noise, "sampling_rate": rate, "count": steps})
    given = [{"parts": parts}] + ([specs.read(arguments.spec)] if arguments.spec else [])
    spec = specs.parsed(specs.combined(given, relation=arguments.relation, group=arguments.group))
    if spec.cut_probability:
        raise ValueError("--spec has a report whose batches may have been cut, which delta pays for: jaxacct certify.")
    arguments.spec_asks = {"epsilon": spec.epsilon, "delta": spec.delta}
    return Run(spec.mechanisms, spec.steps, spec.relation, spec.group, [record_of(one) for one in spec.mechanisms])
