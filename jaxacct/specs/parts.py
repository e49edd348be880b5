"""The parts of a spec: what each of them says is composed."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import numpy as np

from jaxacct import rates, validation
from jaxacct.adapters import from_dp_event
from jaxacct.adapters.opacus_runs import from_history
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.records import kind_of, mechanism_of
from jaxacct.mechanisms.renyi_only import OfOthers

READERS = ("report", "opacus", "dp_event")

SHUFFLED = (
    "sampling = 'shuffled': no certificate: shuffled batches are no Poisson samples. In every epoch each record is in "
    "exactly one batch, and the epsilon of Poisson samples can be far below that of such a run (Chua et al. 2024). "
    "Draw Poisson samples; or give what holds without, type = 'Gaussian', count = the epochs, relation = 'zero_out'."
)

DRAWN = {"Poisson": "poisson", "WithoutReplacement": "without_replacement", "WithReplacement": "with_replacement",
         "RandomAllocation": "random_allocation", "": "none"}  # fmt: skip
"""How samples are drawn, by a part of the class's name."""


class Release(NamedTuple):
    """A part of a composition.

    Attributes:
        mechanism: what runs, of single records.
        count: how often; an array for a sequence of mechanisms.
        sampling: how its samples are drawn: "none", "poisson", "without_replacement", ...
        said_by: who says so.
    """

    mechanism: Mechanism
    count: Any
    sampling: str
    said_by: str


class Part(NamedTuple):
    """What a part says."""

    releases: list[Release]
    relation: str | None = None
    delta: float | None = None
    cut_probability: float = 0.0


def part_of(text: str) -> dict[str, Any]:
    """Returns the part that a command's argument is: a mechanism's name, and its fields.

    >>> part_of("laplace:scale=2,count=10")
    {'type': 'laplace', 'scale': 2.0, 'count': 10.0}
    """
    name, _, rest = text.partition(":")
    made: dict[str, Any] = {"type": name}
    for field in filter(None, rest.split(",")):
        key, equals, value = (word.strip() for word in field.partition("="))
        if not equals:
            raise ValueError(f"mechanism {text!r}: {field!r} is no field: give NAME:FIELD=VALUE,..., laplace:scale=2.")
        if key.replace("-", "_") in made:
            raise ValueError(f"mechanism {text!r} says {key} twice: leave one out.")
        made[key.replace("-", "_")] = value if key in ("sampling", "noise") else number_of(value, key)
    return made


def part(given: Any, where: str) -> Part:
    """Returns what a part says; raises ValueError, which begins with ``where``, where it says nothing."""
    try:
        if not isinstance(given, dict):
            raise ValueError(f"{given!r} is no part: give an object with a type, or a {', '.join(READERS)}.")
        reader, sampling = next((name for name in READERS if name in given), None), given.get("sampling")
        if sampling == "shuffled":
            raise ValueError(SHUFFLED + (" (poisson_sampling=False)" if reader == "opacus" else ""))
        if reader is None:
            return Part([_release(given)])
        if rest := given.keys() - {reader} - ({"sampling"} if (reader, sampling) == ("opacus", "poisson") else set()):
            raise ValueError(f"a part with {reader} has a key {min(rest)!r}: give it {reader} alone.")
        if reader == "report":
            return _report(given[reader])
        said = "the event" if reader == "dp_event" else "the spec, sampling = 'poisson'"
        if reader == "opacus" and sampling is None:
            said = "nobody: the history does not tell; Opacus's default"
        found = _of_event(given[reader]) if reader == "dp_event" else from_history(_history(given[reader]))
        return Part([Release(m, count, sampling_of(m), said) for m, count in zip(*found, strict=True)])
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        missing = f"no {error} in it" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {missing}") from None


def sampling_of(mechanism: Mechanism) -> str:
    """Returns how a mechanism's samples are drawn."""
    return next(sampling for word, sampling in DRAWN.items() if word in type(mechanism).__name__)


def all_of(mechanism: Mechanism) -> list[Mechanism]:
    """Returns a mechanism, and those within it."""
    inner = mechanism.mechanism if isinstance(mechanism, OfOthers) else ()
    return [mechanism, *(one for part in (inner if isinstance(inner, tuple) else (inner,)) for one in all_of(part))]


def _release(given: dict[str, Any]) -> Release:
    fields = dict(given)
    name, sampling = kind_of(fields.pop("type", None)).__name__, fields.pop("sampling", None)
    examples, batch, epochs, rate = (
        number_of(fields.pop(key, None), key) for key in ("examples", "batch_size", "epochs", "sampling_rate")
    )
    if (examples is None) != (batch is None) or None not in (batch, rate):
        raise ValueError("batch_size and examples go together, in place of sampling_rate: give both.")
    if batch is not None and examples is not None:
        rate = rates.rate_of(batch, examples)
    if rate is not None:
        fields["sampling_rate"] = rate
        if sampling is None and name in ("Gaussian", "Laplace"):
            raise ValueError(f"{name} with a sampling rate: say how it samples, sampling = 'poisson'.")
    said = f"the spec, sampling = {sampling!r}" if sampling else f"the spec, by the type {name}"
    if name in ("Gaussian", "Laplace"):
        sampled = {"poisson": f"PoissonSubsampled{name}", "without_replacement": f"{name}WithoutReplacement"}
        name = sampled.get(sampling, name)
    count = fields.pop("count", None)
    if count is None and "steps" not in {field.name for field in dataclasses.fields(cast(Any, kind_of(name)))}:
        count = fields.pop("steps", None)
    if epochs is not None:
        if count is not None or rate is None:
            raise ValueError("epochs stand in for count, of a mechanism with a sampling rate: give one of the two.")
        count = rates.steps_of(epochs, rate)
    made = mechanism_of({"type": name} | fields)
    if sampling not in (None, sampling_of(made)):
        validation.check_one_of(sampling, "sampling", tuple(DRAWN.values()))
        raise ValueError(f"sampling = {sampling!r}, but {name} is of {sampling_of(made)}: give what was done.")
    return Release(made, _whole(1.0 if count is None else number_of(count, "count")), sampling_of(made), said)


def _report(report: Any) -> Part:
    config, final = report["config"], report["final"]
    if "composition" not in config:
        raise ValueError("report: config.composition is missing: it is of an older version, or none of this trainer's.")
    made = config["composition"]
    if made is None:
        raise ValueError(
            "report: no certificate: no composition that was fixed before bounds the run, or not one that JSON holds. "
            f"The report's own guarantee: {final['guarantee']}"
        )
    if isinstance(config.get("seed"), (int, float)):
        raise ValueError("report: no certificate: it tells the seed, and who knows that can subtract the noise.")
    cut = number_of(made["cut_probability"], "cut_probability")
    if cut is None or made["relation"] is None:
        raise ValueError("report: cut_probability or relation is null: give it as the trainer wrote it.")
    validation.check_probability(cut, "cut_probability")
    mechanisms = [mechanism_of(record) for record in made["mechanisms"]]
    counts = [np.array(count) if isinstance(count, list) else _whole(count) for count in made["steps"]]
    said = f"the trainer's report, by its {config['sampler']}"
    releases = [Release(m, count, sampling_of(m), said) for m, count in zip(mechanisms, counts, strict=True)]
    return Part(releases, made["relation"], number_of(final["delta"], "delta"), cut)


def _history(value: Any) -> list[tuple[float, float, int]]:
    if not isinstance(value, list) or not value or not all(isinstance(run, list) and len(run) == 3 for run in value):
        raise ValueError("opacus: give a list of (noise_multiplier, sample_rate, steps), or a checkpoint's file.")
    return [tuple(run) for run in value]


class _Event:
    """An object with attributes in the place of keys, which knows those that nobody has read."""

    def __init__(self, fields: dict[str, Any], found: list[_Event]) -> None:
        self._fields = {key: _named(value, found) for key, value in fields.items()}
        self._unread = self._fields.keys() - {"class_name", "module_name"}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(name)
        self._unread -= {name}
        return self._fields[name]

    def __repr__(self) -> str:
        return repr(self._fields)


def _named(value: Any, found: list[_Event]) -> Any:
    if isinstance(value, list):
        return [_named(entry, found) for entry in value]
    if isinstance(value, dict):
        found.append(value := _Event(value, found))
    return value


def _of_event(value: Any) -> tuple[Any, Any]:
    events: list[_Event] = []
    made = from_dp_event(_named(value, events))
    for event in events:
        if event._unread:
            raise ValueError(f"dp_event: {event} has no field {min(event._unread)!r}: give those of dp_accounting.")
    return made


def number_of(value: Any, key: str) -> float | None:
    """Returns a number, of a text the one that it says; None stays None."""
    if value is None:
        return None
    try:
        if not isinstance(value, bool) and isinstance(value, (str, int, float)):
            return rates.number(value) if isinstance(value, str) else float(value)
    except ValueError:
        pass
    raise ValueError(f"{key} = {value!r} is no number: give one such as 0.01 or '64/1000'.")


def _whole(count: Any) -> int:
    validation.check_steps(count, "count")
    return int(count)
