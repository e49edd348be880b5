"""The parts of a spec: what each of them says is composed."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, NamedTuple, cast

import numpy as np

from jaxacct import validation
from jaxacct.adapters import from_dp_event
from jaxacct.adapters.opacus import from_history
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.records import kind_of, mechanism_of
from jaxacct.rates import number, rate_of, steps_of

READERS = ("report", "opacus", "dp_event")

SHUFFLED = (
    "no certificate: shuffled batches are no Poisson samples. In every epoch each record is in exactly one batch, and "
    "the epsilon of Poisson samples can be far below that of such a run (Chua et al. 2024). Draw Poisson samples; or "
    "give what holds without sampling, type = 'Gaussian' with count = the epochs and relation = 'zero_out'."
)

SAMPLED = {
    ("Gaussian", "poisson"): "PoissonSubsampledGaussian",
    ("Laplace", "poisson"): "PoissonSubsampledLaplace",
    ("Gaussian", "without_replacement"): "GaussianWithoutReplacement",
    ("Laplace", "without_replacement"): "LaplaceWithoutReplacement",
}
"""The class of a mechanism on samples, by how these are drawn."""

SAMPLINGS = ("none", "poisson", "without_replacement", "with_replacement", "random_allocation", "shuffled")


class Release(NamedTuple):
    """A part of a composition: a mechanism run some times, on samples drawn as one of SAMPLINGS, as somebody said."""

    mechanism: Mechanism
    count: Any
    sampling: str
    said_by: str


def part_of(text: str) -> dict[str, Any]:
    """Returns the part that a command's argument is: a mechanism's name, and its fields.

    >>> part_of("laplace:scale=2,count=10")
    {'type': 'laplace', 'scale': 2.0, 'count': 10.0}
    """
    name, _, rest = text.partition(":")
    part: dict[str, Any] = {"type": name}
    for field in filter(None, rest.split(",")):
        key, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"mechanism {text!r}: {field!r} is no field: give NAME:FIELD=VALUE,..., laplace:scale=2.")
        key = key.strip().replace("-", "_")
        part[key] = value.strip() if key in ("sampling", "noise") else number_of(value.strip(), key)
    return part


class Part(NamedTuple):
    """What a part says."""

    releases: list[Release]
    relation: str | None = None
    delta: float | None = None
    cut_probability: float = 0.0


def part(part: Any, where: str) -> Part:
    """Returns what a part says; raises ValueError, which begins with ``where``, where it says nothing."""
    try:
        if not isinstance(part, dict):
            raise ValueError(f"{part!r} is no part: give an object with a type, or a {', '.join(READERS)}.")
        reader = next((name for name in READERS if name in part), None)
        if reader is None:
            return Part([_release(part)])
        if rest := sorted(part.keys() - {reader, "sampling"}):
            raise ValueError(f"a part with {reader} has a key {rest[0]!r}: give it {reader} alone.")
        return {"report": _report, "opacus": _opacus, "dp_event": _event}[reader](part[reader], part.get("sampling"))
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        missing = f"no {error} in it" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {missing}") from None


def _release(part: dict[str, Any]) -> Release:
    fields = dict(part)
    kind = kind_of(fields.pop("type", None))
    sampling = fields.pop("sampling", None)
    examples, batch, epochs = (number_of(fields.pop(key, None), key) for key in ("examples", "batch_size", "epochs"))
    if (examples is None) != (batch is None):
        raise ValueError("batch_size and examples go together: give both, or the sampling_rate.")
    if batch is not None and examples is not None:
        fields["sampling_rate"] = rate_of(batch, examples)
    elif "sampling_rate" in fields:
        fields["sampling_rate"] = number_of(fields["sampling_rate"], "sampling_rate")
    if sampling is not None:
        kind = _sampled(kind, sampling)
    elif "sampling_rate" in fields and kind.__name__ in ("Gaussian", "Laplace"):
        raise ValueError(f"{kind.__name__} with a sampling rate: say how it samples, sampling = 'poisson'.")
    own = {field.name for field in dataclasses.fields(cast(Any, kind))}
    count = fields.pop("count", None)
    if count is None and "steps" not in own:
        count = fields.pop("steps", None)
    if epochs is not None:
        if count is not None or "sampling_rate" not in fields:
            raise ValueError("epochs stand in for count, of a mechanism with a sampling rate: give one of the two.")
        count = steps_of(epochs, fields["sampling_rate"])
    count = number_of(count, "count")
    made = mechanism_of({"type": kind.__name__} | fields)
    said = f"the spec, sampling = {sampling!r}" if sampling else f"the spec, by the type {kind.__name__}"
    return Release(made, whole_number(1 if count is None else count), sampling_of(made), said)


def _sampled(kind: type[Mechanism], sampling: Any) -> type[Mechanism]:
    """Returns the class that takes such samples."""
    validation.check_one_of(sampling, "sampling", SAMPLINGS)
    if sampling == "shuffled":
        raise ValueError(f"sampling = 'shuffled': {SHUFFLED}")
    if sampling == _drawn(kind):
        return kind
    if (kind.__name__, sampling) not in SAMPLED:
        raise ValueError(f"sampling = {sampling!r}, but {kind.__name__} is of {_drawn(kind)}: give what was done.")
    return kind_of(SAMPLED[kind.__name__, sampling])


def _drawn(kind: type[Mechanism]) -> str:
    words = {"Poisson": "poisson", "WithoutReplacement": "without_replacement", "WithReplacement": "with_replacement"}
    words |= {"RandomAllocation": "random_allocation"}
    return next((sampling for word, sampling in words.items() if word in kind.__name__), "none")


def sampling_of(mechanism: Mechanism) -> str:
    """Returns how a mechanism's samples are drawn, one of SAMPLINGS."""
    return _drawn(type(mechanism))


def _report(report: Any, sampling: Any) -> Part:
    config, final = report["config"], report["final"]
    if "composition" not in config:
        raise ValueError("report: config.composition is missing: it is of an older version, or none of this trainer's.")
    made = config["composition"]
    if made is None:
        raise ValueError(
            f"report: no certificate: no composition that was fixed before bounds the run, or not one that JSON holds. "
            f"The report's own guarantee: {final['guarantee']}"
        )
    if sampling is not None:
        raise ValueError("report: the trainer says how it samples: leave out sampling.")
    releases = [
        Release(mechanism_of(record), np.array(count) if isinstance(count, list) else whole_number(count),
                sampling_of(mechanism_of(record)), f"the trainer's report, by its {config['sampler']}")
        for record, count in zip(made["mechanisms"], made["steps"], strict=True)
    ]  # fmt: skip
    cut = number_of(made["cut_probability"], "cut_probability")
    if cut is None or not 0 <= cut <= 1:
        raise ValueError(f"report: cut_probability = {cut}: give a report as the trainer wrote it.")
    return Part(releases, made["relation"], number_of(final["delta"], "delta"), cut)


def _opacus(history: Any, sampling: Any) -> Part:
    if sampling == "shuffled":
        raise ValueError(f"sampling = 'shuffled' (poisson_sampling=False): {SHUFFLED}")
    validation.check_one_of(sampling or "poisson", "sampling", ("poisson",), " of an Opacus history")
    if (
        not isinstance(history, list)
        or not history
        or not all(isinstance(run, list) and len(run) == 3 for run in history)
    ):
        raise ValueError("opacus: give a list of (noise_multiplier, sample_rate, steps), or a checkpoint's file.")
    said = "the spec, sampling = 'poisson'" if sampling else "nobody: the history does not tell; Opacus's default"
    return Part([Release(m, count, "poisson", said) for m, count in zip(*from_history(history), strict=True)])


def _event(event: Any, sampling: Any) -> Part:
    if sampling == "shuffled":
        raise ValueError(f"sampling = 'shuffled': {SHUFFLED}")
    if sampling is not None:
        raise ValueError("dp_event: the event says how it samples: leave out sampling.")

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(entry) for entry in value]
        return types.SimpleNamespace(**{k: named(v) for k, v in value.items()}) if isinstance(value, dict) else value

    found = from_dp_event(named(event))
    return Part([Release(m, count, sampling_of(m), "the event") for m, count in zip(*found, strict=True)])


def number_of(value: Any, key: str) -> float | None:
    """Returns a number, of a text the one that it says; None stays None."""
    if isinstance(value, str):
        try:
            return number(value)
        except ValueError as error:
            raise ValueError(f"{key} = {value!r} is no number ({error}): give one such as 0.01 or 64/1000.") from None
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ValueError(f"{key} = {value!r} is no number: give one such as 0.01 or '64/1000'.")
    return None if value is None else float(value)


def whole_number(count: float) -> int:
    """Returns a number of runs as an integer; raises ValueError where it is none."""
    validation.check_steps(count, "count")
    return int(count)
