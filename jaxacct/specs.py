"""What is composed and what is said of it, as JSON, TOML or YAML: one reader of specs for all commands.

A spec is an object with the keys of :data:`KEYS`. Each of its ``parts`` is a mechanism (``type``, its fields, ``count``
or ``epochs``, and where it takes samples how, ``sampling``), or what somebody else wrote: ``report``, of this library's
trainer; ``opacus``, a history or a checkpoint; ``dp_event``, with the names of dp_accounting's classes and fields. A
file that is one of these by itself is read as a spec of that one part. What :func:`read` returns names no other file.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import math
import pathlib
import sys
import tomllib
import types
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from jaxacct import strict_json, validation
from jaxacct.adapters import from_dp_event
from jaxacct.adapters.opacus import checkpoint_history, from_history
from jaxacct.mechanisms import DIRECTIONS, Mechanism, Relation, group
from jaxacct.mechanisms.records import kind_of, mechanism_of, record_of
from jaxacct.rates import number, rate_of, steps_of

KEYS = {
    "parts": "what is composed",
    "delta": "at which epsilon is asked",
    "epsilon": "at which delta is asked, in place of delta",
    "relation": "which data sets are neighbours",
    "unit": "whose data one record is, in words",
    "group": "records that change together",
    "fixed": "who fixed the settings, and when; false where they followed from results",
}
"""Keys of a spec, and what they say."""

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


@dataclass(frozen=True)
class Spec:
    """A composition and what is asked of it.

    Attributes:
        given: the spec, JSON that names no other file.
        releases: what is composed; equal ones are counted together.
        relation: neighbouring relation.
        group: records that change together.
        delta: at which epsilon is asked, or None.
        epsilon: at which delta is asked, or None; one of the two at most.
        cut_probability: bound on the probability that what ran was not what is composed: batches cut at capacity.

    >>> spec = parsed({"parts": [{"type": "laplace", "scale": 2.0, "count": 10}], "delta": 1e-5})
    >>> spec.mechanisms, spec.steps
    ((Laplace(scale=2.0),), (10,))
    """

    given: dict[str, Any]
    releases: tuple[Release, ...]
    relation: Relation
    group: int
    delta: float | None
    epsilon: float | None
    cut_probability: float

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """For the accountants, of groups."""
        return tuple(group(release.mechanism, self.group) for release in self.releases)

    @property
    def steps(self) -> tuple[Any, ...]:
        """How often each is run."""
        return tuple(release.count for release in self.releases)


def read(name: str) -> dict[str, Any]:
    """Returns the spec in a file, ``-`` for standard input, with the files that it names read into it."""
    path = pathlib.Path(name)
    value = strict_json.loads(sys.stdin.buffer.read()) if name == "-" else _loaded(path)
    return _whole(_as_spec(value, name), path.parent, name)


def parsed(given: dict[str, Any]) -> Spec:
    """Returns the spec that an object is; raises ValueError, saying where, for anything else."""
    for key in given:
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, 1)
            raise ValueError(f"key {key!r}: {f'did you mean {close[0]}?' if close else 'give ' + ', '.join(KEYS)}")
    parts = given.get("parts")
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"parts = {parts!r}: give a list of at least one mechanism, report, opacus or dp_event.")
    if given.get("fixed", "") is False:
        raise ValueError(
            "fixed = false: no certificate: settings that followed from results are bounded by no composition of what "
            "they happened to be. Spend a budget by jaxacct.filters or jaxacct.menus; their guarantee holds then."
        )
    if not isinstance(given.get("fixed", ""), str) or not isinstance(given.get("unit", ""), str):
        raise ValueError("fixed and unit are words: give text, such as fixed = 'by the privacy team, before training'.")
    found = [_part(part, f"parts[{i}]") for i, part in enumerate(parts)]
    relation = _one("relation", given.get("relation"), [one.relation for one in found]) or "add_or_remove"
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    size = given.get("group", 1)
    validation.check_whole(size, "group", 1, 2**31 - 1, "the number of records of one unit")
    delta, epsilon = (_number(given.get(key), key) for key in ("delta", "epsilon"))
    if delta is None and epsilon is None:
        delta = max((one.delta for one in found if one.delta is not None), default=None)
    if delta is not None and epsilon is not None:
        raise ValueError(f"delta = {delta} and epsilon = {epsilon}: give the one at which the other is asked.")
    releases = tuple(_merged([release for one in found for release in one.releases]))
    for release in releases:
        validation.check_one_of(
            relation, "relation", release.mechanism.relations, f" by {type(release.mechanism).__name__}"
        )
    cut = math.fsum(one.cut_probability for one in found)
    return Spec(given, releases, cast(Relation, relation), size, delta, epsilon, cut)


def combined(specs: Iterable[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Returns one spec of several; ``settings`` that are not None stand in for theirs, which have to agree."""
    made: dict[str, Any] = {"parts": []}
    own = {key: value for key, value in settings.items() if value is not None}
    for spec in specs:
        made["parts"] += spec["parts"] if isinstance(spec.get("parts"), list) else [spec.get("parts")]
        for key, value in spec.items():
            if key != "parts" and key not in own and made.setdefault(key, value) != value:
                raise ValueError(f"{key} = {made[key]!r} in one spec and {value!r} in another: give one for all.")
    for one, other in (("delta", "epsilon"), ("epsilon", "delta")):
        if one in own and other not in own:
            made.pop(other, None)
    return made | own


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
        part[key] = value.strip() if key in ("sampling", "noise") else _number(value.strip(), key)
    return part


class _Read(NamedTuple):
    """What a part says."""

    releases: list[Release]
    relation: str | None = None
    delta: float | None = None
    cut_probability: float = 0.0


def _part(part: Any, where: str) -> _Read:
    try:
        if not isinstance(part, dict):
            raise ValueError(f"{part!r} is no part: give an object with a type, or a {', '.join(READERS)}.")
        reader = next((name for name in READERS if name in part), None)
        if reader is None:
            return _Read([_release(part)])
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
    examples, batch, epochs = (_number(fields.pop(key, None), key) for key in ("examples", "batch_size", "epochs"))
    if (examples is None) != (batch is None):
        raise ValueError("batch_size and examples go together: give both, or the sampling_rate.")
    if batch is not None and examples is not None:
        fields["sampling_rate"] = rate_of(batch, examples)
    elif "sampling_rate" in fields:
        fields["sampling_rate"] = _number(fields["sampling_rate"], "sampling_rate")
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
    count = _number(count, "count")
    made = mechanism_of({"type": kind.__name__} | fields)
    said = f"the spec, sampling = {sampling!r}" if sampling else f"the spec, by the type {kind.__name__}"
    return Release(made, _whole_number(1 if count is None else count), sampling_of(made), said)


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


def _report(report: Any, sampling: Any) -> _Read:
    config, final = report["config"], report["final"]
    if "composition" not in config:
        raise ValueError("report: config.composition is missing: it is of an older version, or none of this trainer's.")
    made = config["composition"]
    if made is None:
        raise ValueError(f"report: no certificate: no composition that was fixed before bounds the run, or not one that JSON holds. "
            f"The report's own guarantee: {final['guarantee']}"
        )
    if sampling is not None:
        raise ValueError("report: the trainer says how it samples: leave out sampling.")
    releases = [
        Release(mechanism_of(record), np.array(count) if isinstance(count, list) else _whole_number(count),
                sampling_of(mechanism_of(record)), f"the trainer's report, by its {config['sampler']}")
        for record, count in zip(made["mechanisms"], made["steps"], strict=True)
    ]  # fmt: skip
    cut = _number(made["cut_probability"], "cut_probability")
    if cut is None or not 0 <= cut <= 1:
        raise ValueError(f"report: cut_probability = {cut}: give a report as the trainer wrote it.")
    return _Read(releases, made["relation"], _number(final["delta"], "delta"), cut)


def _opacus(history: Any, sampling: Any) -> _Read:
    if sampling == "shuffled":
        raise ValueError(f"sampling = 'shuffled' (poisson_sampling=False): {SHUFFLED}")
    validation.check_one_of(sampling, "sampling", (None, "poisson"), " of an Opacus history")
    if not isinstance(history, list) or not history or not all(isinstance(run, list) and len(run) == 3 for run in history):
        raise ValueError("opacus: give a list of (noise_multiplier, sample_rate, steps), or a checkpoint's file.")
    said = "the spec, sampling = 'poisson'" if sampling else "nobody: the history does not tell; Opacus's default"
    return _Read([Release(m, count, "poisson", said) for m, count in zip(*from_history(history), strict=True)])


def _event(event: Any, sampling: Any) -> _Read:
    if sampling == "shuffled":
        raise ValueError(f"sampling = 'shuffled': {SHUFFLED}")
    validation.check_one_of(sampling, "sampling", (None,), " of a dp_event, which says it itself")

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(entry) for entry in value]
        return types.SimpleNamespace(**{k: named(v) for k, v in value.items()}) if isinstance(value, dict) else value

    found = from_dp_event(named(event))
    return _Read([Release(m, count, sampling_of(m), "the event") for m, count in zip(*found, strict=True)])


def _merged(releases: list[Release]) -> list[Release]:
    """Returns the releases, equal ones of one number of runs each counted together."""
    found: dict[str, Release] = {}
    for release in releases:
        key = strict_json.dumps([record_of(release.mechanism), release.said_by])
        if np.ndim(release.count) or key not in found:
            found[key if not np.ndim(release.count) else f"{len(found)} {key}"] = release
        else:
            found[key] = release._replace(count=release.count + found[key].count)
    return list(found.values())


def _one(key: str, given: Any, others: list[str | None]) -> Any:
    """Returns the one value that all say who say any."""
    said = {value for value in (given, *others) if value is not None}
    if len(said) > 1:
        raise ValueError(f"{key}: {' and '.join(sorted(map(repr, said)))} in one composition: one has to hold for all.")
    return next(iter(said), None)


def _number(value: Any, key: str) -> float | None:
    if isinstance(value, str):
        try:
            return number(value)
        except ValueError as error:
            raise ValueError(f"{key} = {value!r} is no number ({error}): give one such as 0.01 or 64/1000.") from None
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ValueError(f"{key} = {value!r} is no number: give one such as 0.01 or '64/1000'.")
    return None if value is None else float(value)


def _whole_number(count: float) -> int:
    validation.check_steps(count, "count")
    return int(count)


def _loaded(path: pathlib.Path) -> Any:
    """Returns what a file holds; raises ValueError, with the file's name, where nothing can be read of it."""
    if zipfile.is_zipfile(path):
        return [list(run) for run in checkpoint_history(path)]
    load = {".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml}.get(path.suffix.lower(), strict_json.loads)
    try:
        return strict_json.loads(strict_json.dumps(load(path.read_text(encoding="utf-8"))))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not read as {path.suffix or 'JSON'} ({error}): mend that; dates in quotes.") from None


def _yaml(text: str) -> Any:
    if importlib.util.find_spec("yaml") is None:
        raise ModuleNotFoundError("YAML needs PyYAML, which is missing: pip install pyyaml, or give JSON or TOML.")
    yaml = importlib.import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _as_spec(value: Any, name: str) -> dict[str, Any]:
    """Returns a spec, or what stands for one by itself."""
    if isinstance(value, list):
        return {"parts": [{"opacus": value}]}
    if isinstance(value, dict):
        kinds = {"parts": None, "final": "report", "history": "opacus", "class_name": "dp_event", "type": "mechanism"}
        kind = next((kind for key, kind in kinds.items() if key in value), "")
        if kind is None or kind == "mechanism":
            return value if kind is None else {"parts": [value]}
        if kind:
            return {"parts": [{kind: value["history"] if kind == "opacus" else value}]}
    raise ValueError(
        f"{name} is no spec: give an object with parts, a report.json of jaxacct train, a history of Opacus "
        "[[noise, rate, steps], ...], or a dp_event with its class_name."
    )


def _whole(spec: dict[str, Any], folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Returns a spec with what its parts name as files in their places, and without the course of a training."""

    def embedded(part: Any) -> Any:
        for reader in READERS if isinstance(part, dict) else ():
            if isinstance(part.get(reader), str):
                (inner,) = _as_spec(_loaded(folder / part[reader]), str(folder / part[reader]))["parts"]
                if reader not in inner:
                    raise ValueError(f"{folder / part[reader]} is no {reader}, as {name} says: give one.")
                part = part | inner
        if isinstance(part, dict) and isinstance(part.get("report"), dict):
            part = part | {"report": {key: value for key, value in part["report"].items() if key != "history"}}
        return part

    parts = spec["parts"]
    return spec | {"parts": [embedded(part) for part in parts] if isinstance(parts, list) else parts}

