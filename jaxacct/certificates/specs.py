"""Specs: compositions and the question asked of them, as JSON, TOML or YAML, with one reader for all commands.

A spec is an object with these keys: ``parts``; ``delta`` or ``epsilon``, at which the other is asked; ``relation``;
``unit``, whose data one record is, and ``group``, the number of records that change together; ``fixed``, who fixed the
settings and when, false where they followed from results; ``claimed``, an epsilon at ``delta`` that somebody claims.
Each part is a mechanism (``type``, fields, ``count`` or ``epochs``, ``sampling``), or a record of a run in another
format: ``report``, of this library's trainer; ``opacus``, a history or checkpoint; ``dp_event``, with the names of
dp_accounting's classes and fields. A file with one such record is a spec of one part.

Batches that were shuffled say ``sampling = "shuffled"`` and the fields of :class:`.ShuffledBatches`, with Gaussian
noise or beside a record of Poisson samples: what is composed then is what ran.

A reading refuses what it does not understand, key by key: a certificate rests on every word of its spec.

In reading order:

- :func:`part_of` to :func:`number_of`: the parts of a spec, each as releases of mechanisms.
- :func:`read`: specs in files, and files that stand for a spec by themselves.
- :class:`Spec`, :func:`parsed`, :func:`combined`: a whole spec, as a composition.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import pathlib
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, cast

import numpy as np

from jaxacct import display, json_files, validation
from jaxacct.adapters import from_dp_event
from jaxacct.adapters.events import checkpoint_history, from_history, parts_of, parts_of_history, shuffled_run
from jaxacct.adapters.loaders import ShuffledBatches, check_shuffled
from jaxacct.mechanisms import DIRECTIONS, DiscreteGaussianVector, Mechanism, Relation, group
from jaxacct.mechanisms.by_curve import OfOthers
from jaxacct.mechanisms.records import kind_of, mechanism_of, record_of

__all__ = ["Release", "Spec", "combined", "parsed", "part_of", "read"]

READERS = ("report", "opacus", "dp_event")
"""Keys of the parts that are records of a run in another format."""

SAMPLINGS = {"Poisson": "poisson", "WithoutReplacement": "without_replacement", "WithReplacement": "with_replacement",
         "RandomAllocation": "random_allocation", "ShuffledGaussian": "shuffled", "": "none"}  # fmt: skip
"""Ways of sampling, by a part of the mechanism's class name; the first that occurs in the name counts."""


class Release(NamedTuple):
    """A part of a composition.

    Attributes:
        mechanism: the mechanism that runs, for single records.
        count: the number of runs; an array for a sequence of mechanisms.
        sampling: the way its samples are drawn: "none", "poisson", "without_replacement", ...; "known_order" of batches
            that are cut from an order that somebody may know.
        said_by: the source of the statement on sampling, in words.
    """

    mechanism: Mechanism
    count: Any
    sampling: str
    said_by: str


class IntegerNoise(NamedTuple):
    """Noise that a trainer drew in integers.

    Attributes:
        record: what the report calls ``noise_drawn``.
        distance: bound on the total variation of all of it from the noise that is composed.
        runs: the number of runs of the training's mechanism.
        steps: the number of steps that there are at least, whatever a run covers.
    """

    record: dict[str, Any]
    distance: float
    runs: int
    steps: int


class Part(NamedTuple):
    """The content of a part of a spec.

    Attributes:
        releases: the releases that it adds to the composition.
        relation: neighbouring relation, where the part names one.
        delta: the delta that a report was written for.
        cut_probability: bound on the probability that a batch was cut at capacity.
        noise: noise that was drawn in integers; None where nothing is known of how it was drawn.
    """

    releases: list[Release]
    relation: str | None = None
    delta: float | None = None
    cut_probability: float = 0.0
    noise: IntegerNoise | None = None


def part_of(text: str) -> dict[str, Any]:
    """Returns the part that a command's argument stands for: a mechanism's name, and its fields.

    >>> part_of("laplace:scale=2,count=10")
    {'type': 'laplace', 'scale': 2.0, 'count': 10.0}
    """
    name, _, fields = text.partition(":")
    record: dict[str, Any] = {"type": name}
    # Fields are KEY=VALUE between commas; a dash in a key counts as an underscore, and no key may come twice.
    for field in filter(None, fields.split(",")):
        key, equals, value = (word.strip() for word in field.partition("="))
        if not equals:
            raise ValueError(f"mechanism {text!r}: {field!r} is no field: give NAME:FIELD=VALUE,..., laplace:scale=2.")
        if key.replace("-", "_") in record:
            raise ValueError(f"mechanism {text!r} says {key} twice: leave one out.")
        is_word = key in ("sampling", "noise", "remainder") or value in ("true", "false")
        record[key.replace("-", "_")] = value if is_word else number_of(value, key)
    return record


def part(record: Any, where: str) -> Part:
    """Returns the content of a part; raises ValueError, whose text begins with ``where``, for anything invalid."""
    try:
        if not isinstance(record, dict):
            raise ValueError(f"{record!r} is no part: give an object with a type, or a {', '.join(READERS)}.")
        reader, sampling = next((name for name in READERS if name in record), None), record.get("sampling")
        if sampling == "shuffled" and reader != "report":
            return Part(_shuffled_releases(record, reader))
        if reader is None:
            return Part([_release(record)])
        known = {reader, "sampling"} if (reader, sampling) == ("opacus", "poisson") else {reader}
        if unknown := record.keys() - known:
            raise ValueError(f"a part with {reader} has a key {min(unknown)!r}: give it {reader} alone.")
        if reader == "report":
            return _part_of_report(record[reader])
        if reader == "dp_event":
            runs, said_by = _of_event(record[reader]), "the event"
        else:
            runs, said_by = from_history(_history(record[reader])), "the spec, sampling = 'poisson'"
            if sampling is None:
                said_by = "nobody: the history does not tell; Opacus's default"
        return Part([Release(m, count, sampling_of(m), said_by) for m, count in zip(*runs, strict=True)])
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        missing = f"no {error} in it" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {missing}") from None


def sampling_of(mechanism: Mechanism) -> str:
    """Returns the way in which a mechanism's samples are drawn, one of the values of :data:`SAMPLINGS`."""
    if isinstance(mechanism, DiscreteGaussianVector):
        return "none" if mechanism.takes_all else "poisson"
    return next(sampling for word, sampling in SAMPLINGS.items() if word in type(mechanism).__name__)


def all_of(mechanism: Mechanism) -> list[Mechanism]:
    """Returns a mechanism and, at any depth, those within it."""
    inner = mechanism.mechanism if isinstance(mechanism, OfOthers) else ()
    return [mechanism, *(one for part in (inner if isinstance(inner, tuple) else (inner,)) for one in all_of(part))]


def _release(record: dict[str, Any]) -> Release:
    """Returns the release of a part that is a mechanism.

    ``batch_size`` and ``examples`` stand in for ``sampling_rate``, and ``epochs`` for ``count``. The plain names
    Gaussian and Laplace become their sampled forms by ``sampling``, without which a rate is refused.
    """
    fields = dict(record)
    name, sampling = kind_of(fields.pop("type", None)).__name__, fields.pop("sampling", None)
    rate, epochs = _rate_of(fields), number_of(fields.pop("epochs", None), "epochs")
    if rate is not None:
        fields["sampling_rate"] = rate
        if sampling is None and name in ("Gaussian", "Laplace"):
            raise ValueError(f"{name} with a sampling rate: say how it samples, sampling = 'poisson'.")
    said_by = f"the spec, sampling = {sampling!r}" if sampling else f"the spec, by the type {name}"
    if name in ("Gaussian", "Laplace"):
        sampled = {"poisson": f"PoissonSubsampled{name}", "without_replacement": f"{name}WithoutReplacement"}
        name = sampled.get(sampling, name)
    count = fields.pop("count", None)
    if count is None and "steps" not in {field.name for field in dataclasses.fields(cast(Any, kind_of(name)))}:
        count = fields.pop("steps", None)
    if epochs is not None:
        if count is not None or rate is None:
            raise ValueError("epochs stand in for count, of a mechanism with a sampling rate: give one of the two.")
        count = display.steps_of(epochs, rate)
    mechanism = mechanism_of({"type": name} | fields)
    if sampling not in (None, sampling_of(mechanism)):
        validation.check_one_of(sampling, "sampling", tuple(SAMPLINGS.values()))
        raise ValueError(f"sampling = {sampling!r}, but {name} is of {sampling_of(mechanism)}: give what was done.")
    runs = _run_count(1.0 if count is None else number_of(count, "count"))
    return Release(mechanism, runs, sampling_of(mechanism), said_by)


SHUFFLED = tuple(field.name for field in dataclasses.fields(ShuffledBatches))
"""Keys that say how a loader shuffled."""


def _shuffled_releases(record: dict[str, Any], reader: str | None) -> list[Release]:
    """Returns the releases of a part whose batches were shuffled: Gaussian noise, or a record of Poisson samples."""
    keys = {reader} if reader else {"type", "noise_multiplier", "epochs", "count"}
    unknown = record.keys() - keys - {"sampling", *SHUFFLED}
    is_gaussian = reader or kind_of(record.get("type")).__name__ == "Gaussian"
    if unknown or not is_gaussian or not {"examples", "batch_size"} <= record.keys():
        raise ValueError(
            "sampling = 'shuffled': no certificate: shuffled batches are no Poisson samples, whose epsilon can be far "
            "below that of such a run. Give what ran: examples and batch_size, where it applies drop_last, "
            "reshuffles, is_padded, and seed if anybody knows it, beside "
            + (f"{reader} (of Opacus, poisson_sampling=False)" if reader else "type = 'Gaussian', noise_multiplier, ")
            + ("" if reader else "epochs or count")
            + f"; relation = 'zero_out'. {'No key ' + min(unknown) + '.' if unknown else ''}"
        )
    batches = ShuffledBatches(**{key: _flag_or_whole(record[key], key) for key in SHUFFLED if key in record})
    if reader:
        runs = parts_of_history(_history(record[reader])) if reader == "opacus" else _of_event(record[reader], parts_of)
        noise, steps = shuffled_run(runs, batches)
    else:
        noise, steps = _noise_and_steps(record, batches.steps_per_epoch)
    sampling = "shuffled" if batches.seed is None else "known_order"
    return [
        Release(mechanism, count, sampling, "the spec, sampling = 'shuffled'")
        for mechanism, count in zip(*batches.compose(noise, steps), strict=True)
    ]


def _noise_and_steps(record: dict[str, Any], steps_per_epoch: int) -> tuple[float, int]:
    """Returns the noise multiplier of a part, and the steps that it says, or that its epochs are."""
    noise, count, epochs = (number_of(record.get(key), key) for key in ("noise_multiplier", "count", "epochs"))
    if noise is None or (count is None) == (epochs is None):
        raise ValueError("noise_multiplier, and one of epochs and count (the steps of all epochs): give these.")
    return noise, _run_count(count if epochs is None else display.steps_of(epochs, 1 / steps_per_epoch))


def _flag_or_whole(value: Any, key: str) -> Any:
    """Returns a value of :class:`.ShuffledBatches`: a truth value, or a whole number."""
    if isinstance(value, bool) or str(value).casefold() in ("true", "false"):
        return str(value).casefold() == "true"
    number = number_of(value, key)
    return int(number) if number is not None and number.is_integer() else number


def _rate_of(fields: dict[str, Any]) -> float | None:
    """Returns the sampling rate, or a batch's size over the number of examples, and takes them out of the fields."""
    examples, batch, rate = (
        number_of(fields.pop(key, None), key) for key in ("examples", "batch_size", "sampling_rate")
    )
    if (examples is None) != (batch is None) or None not in (batch, rate):
        raise ValueError("batch_size and examples go together, in place of sampling_rate: give both.")
    return rate if batch is None or examples is None else display.rate_of(batch, examples)


def _part_of_report(report: Any) -> Part:
    """Returns the content of a trainer's report: the composition that it was accounted by."""
    config, final = report["config"], report["final"]
    if "composition" not in config:
        raise ValueError("report: config.composition is missing: it is of an older version, or none of this trainer's.")
    composition = config["composition"]
    if composition is None:
        raise ValueError(
            "report: no certificate: no composition that was fixed before bounds the run, or not one that JSON holds. "
            f"The report's own guarantee: {final['guarantee']}"
        )
    if isinstance(config.get("seed"), (int, float)):
        raise ValueError("report: no certificate: it tells the seed, and who knows that can subtract the noise.")
    cut = number_of(composition["cut_probability"], "cut_probability")
    if cut is None or composition["relation"] is None:
        raise ValueError("report: cut_probability or relation is null: give it as the trainer wrote it.")
    validation.check_probability(cut, "cut_probability")
    mechanisms = [mechanism_of(record) for record in composition["mechanisms"]]
    counts = [np.array(count) if isinstance(count, list) else _run_count(count) for count in composition["steps"]]
    said_by = f"the trainer's report, by its {config['sampler']}"
    releases = [Release(m, count, sampling_of(m), said_by) for m, count in zip(mechanisms, counts, strict=True)]
    if not releases:
        raise ValueError("report: composition.mechanisms is empty: give it as the trainer wrote it.")
    noise = _noise_of_report(config, [int(np.sum(count)) for count in counts], final)
    return Part(releases, composition["relation"], number_of(final["delta"], "delta"), cut, noise)


def _noise_of_report(config: dict[str, Any], runs: list[int], final: dict[str, Any]) -> IntegerNoise | None:
    """Returns noise of a report that was drawn in integers; ``runs`` are the numbers of runs of its mechanisms."""
    drawn = config.get("noise_drawn", {})
    distance = number_of(config["composition"].get("noise_distance", 0.0), "noise_distance")
    validation.check_probability(distance, "noise_distance")
    if (drawn.get("arithmetic") == "integer") != bool(distance):
        raise ValueError(
            f"report: noise_distance = {distance} of noise_drawn = {str(drawn)[:200]}: give both as the trainer wrote "
            "them; noise of integers has a distance above 0 from what is composed, and no other has one that is known."
        )
    # The first mechanism is the steps', and others are queries, whose noise the trainer does not draw, and of which
    # there are no more than steps: so there are at least as many of these as of anything, in whatever order.
    return IntegerNoise(drawn, distance, runs[0], max(*runs, _run_count(final["steps"]))) if distance else None


def _history(value: Any) -> list[tuple[float, float, int]]:
    """Returns an Opacus history as runs (noise_multiplier, sample_rate, steps)."""
    if not isinstance(value, list) or not value or not all(isinstance(run, list) and len(run) == 3 for run in value):
        raise ValueError("opacus: give a list of (noise_multiplier, sample_rate, steps), or a checkpoint's file.")
    return [tuple(run) for run in value]


class _Event:
    """A JSON object with attributes for keys, which knows the keys that nobody has read.

    Such a key is a field that the event does not have, a misspelling perhaps, and :func:`_of_event` refuses it.
    """

    def __init__(self, fields: dict[str, Any], events: list[_Event]) -> None:
        self._fields = {key: _name_objects(value, events) for key, value in fields.items()}
        self._unread = self._fields.keys() - {"class_name", "module_name"}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(name)
        self._unread -= {name}
        return self._fields[name]

    def __repr__(self) -> str:
        return repr(self._fields)


def _name_objects(value: Any, events: list[_Event]) -> Any:
    """Returns a JSON value with events for objects, at any depth, and adds all of these to ``events``."""
    if isinstance(value, list):
        return [_name_objects(entry, events) for entry in value]
    if isinstance(value, dict):
        events.append(value := _Event(value, events))
    return value


def _of_event(value: Any, convert: Callable[[object], Any] = from_dp_event) -> Any:
    """Returns the mechanisms and counts of an event in JSON; raises ValueError where a field was not read."""
    events: list[_Event] = []
    runs = convert(_name_objects(value, events))
    for event in events:
        if event._unread:
            raise ValueError(f"dp_event: {event} has no field {min(event._unread)!r}: give those of dp_accounting.")
    return runs


def number_of(value: Any, key: str) -> float | None:
    """Returns a number, or the number that a text stands for ('64/1000'); None stays None."""
    if value is None:
        return None
    try:
        if not isinstance(value, bool) and isinstance(value, (str, int, float)):
            return display.parse_number(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        why = f" ({str(error)[:200]})"
    else:
        why = ""
    raise ValueError(f"{key} = {validation.shorten(value)} is no number{why}: give one such as 0.01 or '64/1000'.")


def _run_count(count: Any) -> int:
    """Returns a number of runs as an integer."""
    validation.check_steps(count, "count")
    return int(count)


# ----------------------------------------------------------------------------------------------------
# Files: specs, and records of runs that stand for a spec by themselves.
# ----------------------------------------------------------------------------------------------------


def read(name: str) -> dict[str, Any]:
    """Returns the spec in a file, ``-`` for standard input, with the files that it names read into it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "spec.toml").write_text('delta = 1e-5')
    ...     _ = pathlib.Path(folder, "history.json").write_text("[[1.0, 0.01, 600]]")
    ...     read(f"{folder}/history.json")
    {'parts': [{'opacus': [[1.0, 0.01, 600]]}]}
    """
    path = pathlib.Path(name)
    spec = _as_spec(json_files.loads(sys.stdin.buffer.read()) if name == "-" else _load(path), name)
    parts = spec["parts"]
    return spec | {"parts": [_embed(part, path.parent) for part in parts] if isinstance(parts, list) else parts}


def _as_spec(value: Any, name: str) -> dict[str, Any]:
    """Returns a file's value as a spec; a list is an Opacus history, other records become the spec's only part."""
    if isinstance(value, list):
        return {"parts": [{"opacus": value}]}
    # Kinds of objects, by a key that such an object has: "" is a spec, "type" a mechanism, else a reader's key.
    by_key = {"parts": "", "final": "report", "history": "opacus", "class_name": "dp_event", "type": "type"}
    kind = next((kind for key, kind in by_key.items() if isinstance(value, dict) and key in value), None)
    if kind is None:
        raise ValueError(
            f"{name} is no spec: give an object with parts, a report.json of jaxacct train, a history of Opacus "
            "[[noise, rate, steps], ...], or a dp_event with its class_name."
        )
    if kind == "":
        return dict(value)
    return {"parts": [value if kind == "type" else {kind: value["history"] if kind == "opacus" else value}]}


def _embed(part: Any, folder: pathlib.Path) -> Any:
    """Returns a part with the file that it names read into it, and a report without its training history."""
    # A part names its file under the word of its reader; the file stands for a spec of one part.
    for reader in READERS if isinstance(part, dict) else ():
        if isinstance(part.get(reader), str):
            file = folder / part[reader]
            (embedded,) = _as_spec(_load(file), str(file))["parts"]
            if reader not in embedded:
                raise ValueError(f"{file} is no {reader}: give one.")
            part = part | embedded
    if isinstance(part, dict) and isinstance(part.get("report"), dict):
        part = part | {"report": {key: value for key, value in part["report"].items() if key != "history"}}
    return part


def _load(path: pathlib.Path) -> Any:
    """Returns a file's content, a checkpoint's as its history; raises ValueError with its name if it is unreadable."""
    if zipfile.is_zipfile(path):
        return [list(run) for run in checkpoint_history(path)]
    # TOML's own rules refuse a key that stands twice.
    toml = functools.partial(tomllib.loads, parse_float=display.float_of)
    loaders: dict[str, Callable[[str], Any]] = {".toml": toml, ".yaml": _yaml, ".yml": _yaml}
    load = loaders.get(path.suffix.lower(), json_files.loads)
    try:
        return json_files.loads(json_files.dumps(load(path.read_text(encoding="utf-8"))))
    except (ValueError, TypeError) as error:
        kind = path.suffix or "JSON"
        raise ValueError(f"{path} is not read as {kind} ({error}): mend that; dates in quotes.") from None


def _yaml(text: str) -> Any:
    """Returns the value of a YAML text; PyYAML is imported when first asked for."""
    if importlib.util.find_spec("yaml") is None:
        raise ModuleNotFoundError("YAML needs PyYAML, which is missing: pip install pyyaml, or give JSON or TOML.")
    yaml = importlib.import_module("yaml")

    class Strict(yaml.SafeLoader):  # type: ignore[name-defined]
        """The safe loader, which would take the last of two values, and 0 for a number that underflows."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys: set[Any] = set()
            for key, _ in node.value:
                if key.value in keys and key.tag != "tag:yaml.org,2002:merge":
                    raise ValueError(f"key {str(key.value)[:40]!r} stands twice: leave one of the two.")
                keys.add(key.value if isinstance(key.value, str) else id(key))
            return super().construct_mapping(node, deep)

        def construct_yaml_float(self, node: Any) -> float:
            value: float = super().construct_yaml_float(node)
            return value if value != 0 else display.float_of(node.value)

    Strict.add_constructor("tag:yaml.org,2002:float", Strict.construct_yaml_float)
    try:
        return yaml.load(text, Strict)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


# ----------------------------------------------------------------------------------------------------
# Compositions: a whole spec as mechanisms and counts, and the question asked of it.
# ----------------------------------------------------------------------------------------------------

ANY = "one record"
"""The unit of privacy where none is named."""


@dataclass(frozen=True)
class Spec:
    """A composition and the question asked of it.

    Attributes:
        source: the spec, JSON that names no other file.
        releases: the releases that are composed; equal ones are counted together.
        relation: neighbouring relation.
        group: number of records that change together.
        delta: the delta at which epsilon is asked, or None.
        epsilon: the epsilon at which delta is asked, or None; one of the two at most.
        cut_probability: bound on the probability that the run was not the composition, as batches were cut at capacity.
        noises: what was drawn in integers.
        claimed: an epsilon at ``delta`` that somebody claims, or None.

    >>> spec = parsed({"parts": [{"type": "laplace", "scale": 2.0, "count": 10}], "delta": 1e-5})
    >>> spec.mechanisms, spec.steps
    ((Laplace(scale=2.0),), (10,))
    """

    source: dict[str, Any]
    releases: tuple[Release, ...]
    relation: Relation
    group: int
    delta: float | None
    epsilon: float | None
    cut_probability: float
    noises: tuple[IntegerNoise, ...] = ()
    claimed: float | None = None

    @property
    def distance(self) -> Fraction:
        """Bound on the total variation of what ran from what is composed: t costs (1 + e^epsilon) t of delta."""
        return sum((Fraction(one.distance) for one in self.noises), Fraction(self.cut_probability))

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms as the accountants take them, for groups of ``group`` records."""
        return tuple(group(release.mechanism, self.group) for release in self.releases)

    @property
    def steps(self) -> tuple[Any, ...]:
        """The number of runs of each mechanism."""
        return tuple(release.count for release in self.releases)


def parsed(source: dict[str, Any]) -> Spec:
    """Returns the spec that an object stands for; raises ValueError, which names the place, for anything else.

    >>> parsed({"parts": [{"type": "gaussian", "noise_multiplier": 4.0}], "group": 2}).mechanisms
    (Gaussian(noise_multiplier=np.float64(2.0)),)
    """
    try:
        return _parse(source)
    except TypeError as error:  # a value of a wrong type
        raise ValueError(str(error)) from None


def _parse(source: dict[str, Any]) -> Spec:
    """Returns :func:`parsed`, with TypeError for values of a wrong type."""
    # No word of a spec is passed over: the first unknown key is refused.
    keys = ("parts", "delta", "epsilon", "relation", "unit", "group", "fixed", "claimed")
    for key in (key for key in source if key not in keys):
        close = difflib.get_close_matches(key, keys, 1)
        raise ValueError(f"key {key!r}: {f'did you mean {close[0]}?' if close else 'give ' + ', '.join(keys)}")
    records = source.get("parts")
    if not isinstance(records, list) or not records:
        raise ValueError(f"parts = {records!r}: give a list of at least one mechanism, report, opacus or dp_event.")
    fixed = source.get("fixed", "")
    if str(fixed).casefold() in ("false", "no"):
        raise ValueError(
            "fixed = false: no certificate: settings that followed from results are bounded by no composition of what "
            "they happened to be. Spend a budget by jaxacct.filters or jaxacct.menus; their guarantee holds then."
        )
    parts = [part(record, f"parts[{i}]") for i, record in enumerate(records)]
    _check_line("none" if fixed == "" else fixed, "fixed")
    _check_line(unit_of(source), "unit")
    relation = _relation_of(source, parts)
    size = validation.check_whole(source.get("group", 1), "group", 1, 2**31 - 1, "the number of records of one unit")
    if size > 1 and any("report" in record for record in records):
        raise ValueError(
            f"group = {size}: no certificate of a trainer's report: its bound on cut batches is for neighbours that "
            "differ in one record. Leave group out, or give what ran as mechanisms, if no batch can be cut."
        )
    delta, epsilon = _question_of(source, parts)
    cut = display.round_up(sum((Fraction(one.cut_probability) for one in parts), Fraction(0)))
    noises = tuple(one.noise for one in parts if one.noise is not None)
    claimed = number_of(source.get("claimed"), "claimed")
    if claimed is not None:
        validation.check_epsilon(claimed, "claimed")
        if delta is None:
            raise ValueError(f"claimed = {claimed} is an epsilon: give the delta that it was claimed at.")
    return Spec(source, _combine_releases(parts, relation), relation, size, delta, epsilon, cut, noises, claimed)


def _check_line(words: Any, key: str) -> None:
    """Raises ValueError where words are no line of text."""
    if not isinstance(words, str) or not words.isprintable() or not words.strip():
        raise ValueError(f"{key} = {words!r} is no line of text: give words, such as 'one person, all visits'.")


def _question_of(source: dict[str, Any], parts: list[Part]) -> tuple[float | None, float | None]:
    """Returns the delta or the epsilon at which a spec asks the other; without either, the reports' largest delta."""
    delta, epsilon = (number_of(source.get(key), key) for key in ("delta", "epsilon"))
    if delta is not None and epsilon is not None:
        raise ValueError(f"delta = {delta} and epsilon = {epsilon}: give the one at which the other is asked.")
    if delta is None and epsilon is None:
        delta = max((one.delta for one in parts if one.delta is not None), default=None)
    return delta, epsilon


def _relation_of(source: dict[str, Any], parts: list[Part]) -> Relation:
    """Returns the relation that a spec and its reports name: all that name one name the same."""
    relations = {name for name in (source.get("relation"), *(one.relation for one in parts)) if name is not None}
    if len(relations) > 1:
        raise ValueError(f"relation: {' and '.join(sorted(relations))} in one composition: one has to hold for all.")
    relation: Relation = cast(Any, min(relations, default="add_or_remove"))
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    return relation


def _combine_releases(parts: list[Part], relation: Relation) -> tuple[Release, ...]:
    """Returns the releases of all parts, with equal mechanisms from equal sources counted together; sequences stay."""
    composed: dict[str, Release] = {}
    for release in (release for one in parts for release in one.releases):
        mechanism, is_sequence = release.mechanism, bool(np.ndim(release.count))
        if release.sampling in ("shuffled", "known_order"):
            check_shuffled(relation)
        validation.check_one_of(relation, "relation", mechanism.relations, f" by {type(mechanism).__name__}")
        record = json_files.dumps(record_of(mechanism))
        key = f"{len(composed) if is_sequence else ''} {record} {release.sampling} {release.said_by}"
        before = composed[key].count if key in composed else 0
        composed[key] = release._replace(count=release.count + before)
    return tuple(composed.values())


def unit_of(source: dict[str, Any]) -> str:
    """Returns in words the unit of privacy: the spec's own, else the one that all parts share, else :data:`ANY`."""
    units = [one["report"]["config"].get("unit", ANY) if "report" in one else ANY for one in source["parts"]]
    return cast(str, source.get("unit", units[0] if all(unit == units[0] for unit in units) else ANY))


def combined(specs: Iterable[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Returns one spec of several, whose settings have to agree; ``settings`` that are not None replace theirs.

    >>> combined([{"parts": [{"type": "laplace", "scale": 1.0}]}], delta=1e-5)
    {'parts': [{'type': 'laplace', 'scale': 1.0}], 'delta': 1e-05}
    """
    merged: dict[str, Any] = {"parts": []}
    own = {key: value for key, value in settings.items() if value is not None}
    questions = {"delta", "epsilon"} if own.keys() & {"delta", "epsilon"} else set()
    # Parts are joined; every other setting is the first spec's, and a different one is refused.
    for spec in specs:
        merged["parts"] += spec["parts"] if isinstance(spec["parts"], list) else [spec["parts"]]
        for key in (key for key in spec if key not in own.keys() | questions | {"parts"}):
            if merged.setdefault(key, spec[key]) != spec[key]:
                raise ValueError(f"{key} = {merged[key]!r} in one spec and {spec[key]!r} in another: give one for all.")
        if spec.get("fixed") is False:  # one spec that was not fixed makes all not fixed, whatever another says
            own["fixed"] = False
    return merged | own
