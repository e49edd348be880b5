"""Tests of the conversion of each event: the table of docs/coming-from.md, which this file makes.

python tests/adapters/test_events.py  # writes it
"""

import inspect
import pathlib
import re

import pytest

import jaxacct as ja
from jaxacct.adapters.events import CONVERSIONS, UnknownEvent, join_parts, lacking, parts_of
from jaxacct.mechanisms import DIRECTIONS
from jaxacct.mechanisms.by_curve import has_renyi_only

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "coming-from.md"
MARKS = "<!-- events: tests/adapters/test_events.py says what belongs here -->\n", "<!-- end of events -->\n"


def event(kind, **fields):
    return type(f"{kind}DpEvent", (), fields)()


GAUSSIAN, LAPLACE = event("Gaussian", noise_multiplier=1.5), event("Laplace", noise_multiplier=3.0)
CONCENTRATED = event("ZC", rho=0.01, xi=0.0)
PURE = event("EpsilonDelta", epsilon=0.5, delta=1e-9)


def poisson(inner):
    return event("PoissonSampled", sampling_probability=0.1, event=inner)


def fixed(inner, kind="SampledWithoutReplacement"):
    return event(kind, source_dataset_size=100, sample_size=10, event=inner)


def allocated(selected):
    return event("RandomAllocation", event=GAUSSIAN, num_selected=selected, num_steps=100)


EVENTS = {
    "NoOp": event("NoOp"),
    "NonPrivate": event("NonPrivate"),
    "EpsilonDelta": PURE,
    "Gaussian": GAUSSIAN,
    "Laplace": LAPLACE,
    "DiscreteLaplace": event("DiscreteLaplace", noise_parameter=0.5, sensitivity=2),
    "DiscreteGaussian, of one dimension": event("DiscreteGaussian", sigma=5.0, sensitivity=1.0, dimension=1),
    "DiscreteGaussian, of several dimensions": event("DiscreteGaussian", sigma=5.0, sensitivity=1.5, dimension=3),
    "DiscreteGaussian, of an unknown number, or scale below 4": event(
        "DiscreteGaussian", sigma=5.0, sensitivity=1.0, dimension=None
    ),
    "RandomizedResponse": event("RandomizedResponse", noise_parameter=0.5, num_buckets=4),
    "ExponentialMechanism": event("ExponentialMechanism", epsilon=0.5),
    "PermuteAndFlip": event("PermuteAndFlip", epsilon=0.5),
    "MixtureOfGaussians": event(
        "MixtureOfGaussians", standard_deviation=2.0, sensitivities=[0.0, 1.0], sampling_probs=[0.9, 0.1]
    ),
    "ZC": CONCENTRATED,
    "Composed": event("Composed", events=[GAUSSIAN, LAPLACE]),
    "SelfComposed": event("SelfComposed", event=GAUSSIAN, count=3),
    "Composed, with ZC": event("Composed", events=[GAUSSIAN, CONCENTRATED, PURE]),
    "PoissonSampled of Gaussian": poisson(GAUSSIAN),
    "PoissonSampled of Laplace": poisson(LAPLACE),
    "PoissonSampled of MixtureOfGaussians": poisson(
        event("MixtureOfGaussians", standard_deviation=2.0, sensitivities=[0.5, 1.0], sampling_probs=[0.9, 0.1])
    ),
    "PoissonSampled of DiscreteGaussian": poisson(event("DiscreteGaussian", sigma=5.0, sensitivity=1.5, dimension=3)),
    "PoissonSampled of EpsilonDelta": poisson(PURE),
    "PoissonSampled of anything else": poisson(event("Composed", events=[CONCENTRATED, LAPLACE])),
    "SampledWithoutReplacement of Gaussian": fixed(GAUSSIAN),
    "SampledWithoutReplacement of Laplace": fixed(LAPLACE),
    "SampledWithoutReplacement of EpsilonDelta": fixed(PURE),
    "SampledWithoutReplacement of anything else": fixed(CONCENTRATED),
    "SampledWithReplacement of Gaussian": fixed(GAUSSIAN, "SampledWithReplacement"),
    "SampledWithReplacement of anything else": fixed(LAPLACE, "SampledWithReplacement"),
    "TruncatedSubsampledGaussian": event(
        "TruncatedSubsampledGaussian",
        dataset_size=1000,
        sampling_probability=0.01,
        truncated_batch_size=30,
        noise_multiplier=1.0,
    ),
    "RandomAllocation of Gaussian": allocated(1),
    "SingleEpochTreeAggregation": event("SingleEpochTreeAggregation", noise_multiplier=3.0, step_counts=[7, 8]),
    "RepeatAndSelect": event("RepeatAndSelect", event=GAUSSIAN, mean=5.0, shape=1.0),
    "Unsupported": event("Unsupported"),
}

HERE, THERE = tuple(DIRECTIONS), {"add_or_remove": "add or remove", "replace": "replace", "zero_out": "replace special"}


def row(name):
    """One line of the table: the event, what it is here, under which relations, and by which accountant."""
    kind, _, rest = name.partition(" of ")
    kind, comma, more = kind.partition(",")
    shown = f"`{kind}DpEvent`{comma}{more}" + (f" of {rest}" if rest else "")
    try:
        parts = parts_of(EVENTS[name])
    except UnknownEvent as unknown:
        reason = str(unknown).rsplit(": ", 1)[1].partition(".")[0]
        return f"| {shown} | | | refused: {reason} | refused |"
    mechanisms, _ = join_parts(parts)
    kinds = ", ".join(dict.fromkeys(f"`{type(mechanism).__name__}`" for mechanism in mechanisms))
    relations = ", ".join(THERE[r] for r in HERE if r in THERE and not lacking(parts, r))
    assert relations, name
    known = "Rényi only" if has_renyi_only(mechanisms) else "certified"
    if isinstance(mechanisms[0], ja.RepeatAndSelect):
        known = "certified from above"
    return f"| {shown} | {kinds} | {relations} | {known} | yes |"


def table():
    head = "| event | here | relations | `ExactAccountant` | `RenyiAccountant` |\n|---|---|---|---|---|\n"
    return head + "".join(row(name) + "\n" for name in EVENTS)


def test_the_page_has_the_table():
    assert table() == PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0].strip("\n") + "\n"


def test_the_table_has_every_event():
    shown = set(re.findall(r"`(\w+DpEvent)`", table()))
    assert shown == set(CONVERSIONS) | {"UnsupportedDpEvent"}


def test_theirs_are_all_there():
    dp_event = pytest.importorskip("dp_accounting.dp_event")
    theirs = {name for name, value in vars(dp_event).items() if inspect.isclass(value) and name.endswith("DpEvent")}
    assert theirs - {"DpEvent"} <= set(CONVERSIONS) | {"UnsupportedDpEvent"}


def test_no_more_than_two_are_refused():
    assert table().count("| refused |") <= 2


@pytest.mark.parametrize("selected", [1, 3, 100])
def test_several_steps_of_each_are_participations(selected):
    """Below k runs of floor(100/k) batches, which the steps that are left over do not enter."""
    (mechanism,), (steps,) = join_parts(parts_of(allocated(selected)))
    assert (mechanism, steps) == (ja.RandomAllocation(1.5, 100, participations=selected), 1)


if __name__ == "__main__":
    start, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(start + MARKS[0] + "\n" + table() + "\n" + MARKS[1] + rest.split(MARKS[1])[1])
