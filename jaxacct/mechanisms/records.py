"""Mechanisms as JSON objects, and back: an object holds the class's name as ``type``, and its fields."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

import numpy as np

from jaxacct import mechanisms, selection, validation
from jaxacct.mechanisms.mechanism import Mechanism
from jaxacct.selection import Trials

__all__ = ["kind_of", "mechanism_of", "record_of"]

KINDS: dict[str, type[Mechanism]] = {
    name: vars(mechanisms)[name]
    for name in mechanisms.__all__
    # A user's functions, and a strategy's arrays, are no JSON.
    if isinstance(vars(mechanisms)[name], type)
    and issubclass(vars(mechanisms)[name], Mechanism)
    and name not in ("Mechanism", "RenyiOnly", "PrivacyLoss", "MatrixMechanism", "BallsInBins")
}
"""Mechanism classes that JSON can hold, by their names."""

LAWS: dict[str, type[Trials]] = {name: vars(selection)[name] for name in selection.__all__ if name != "Trials"}
"""Laws of the number of runs of a search, by their names: the ``trials`` of mechanisms."""


def kind_of(name: object, kinds: dict[str, Any] = KINDS) -> Any:
    """Returns the class of a name, in any case and with any signs between its words; raises ValueError for others.

    >>> kind_of("poisson-subsampled-gaussian").__name__, kind_of("dp-sgd").__name__
    ('PoissonSubsampledGaussian', 'PoissonSubsampledGaussian')
    """
    # Further names of mechanisms, in lower case and without anything between their words.
    aliases = {"dpsgd": "PoissonSubsampledGaussian", "subsampledgaussian": "PoissonSubsampledGaussian"}
    plain = "".join(letter for letter in str(name).casefold() if letter.isalnum())
    known = {kind.casefold(): kind for kind in kinds}
    known |= {alias: kind for alias, kind in aliases.items() if kind in kinds}
    if plain in known:
        return kinds[known[plain]]
    close = difflib.get_close_matches(plain, known, 1)
    meant = f"did you mean {known[close[0]]}?" if close else "give the name of a class of jaxacct.mechanisms."
    raise ValueError(f"mechanism type = {validation.shorten(name)} is unknown: {meant}")


def record_of(mechanism: Mechanism) -> dict[str, Any]:
    """Returns the object of a mechanism; raises ValueError where its class has none.

    >>> record_of(mechanisms.Gaussian(2.0))
    {'type': 'Gaussian', 'noise_multiplier': 2.0}
    """
    name = type(mechanism).__name__
    if KINDS.get(name) is not type(mechanism):
        raise ValueError(f"{name} has functions or arrays that no JSON holds: give one of {', '.join(KINDS)}.")
    return _fields_of(mechanism)


def _fields_of(value: Any) -> dict[str, Any]:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    # None is the default of a field that says nothing.
    return {"type": type(value).__name__} | {name: _plain(each) for name, each in fields.items() if each is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return record_of(value)
    if isinstance(value, Trials):
        return _fields_of(value)
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, (str, bool, int)) else np.asarray(value).tolist()


def mechanism_of(record: Any) -> Any:
    """Returns the mechanism that an object describes, or for a list of objects a tuple of mechanisms.

    Raises ValueError where it describes none, and what the class raises where a field is out of range.

    >>> mechanism_of({"type": "gaussian", "noise_multiplier": 2.0})
    Gaussian(noise_multiplier=2.0)
    """
    if isinstance(record, list):
        if not record:
            raise ValueError("mechanism = [] holds nothing to compose: give at least one mechanism.")
        return tuple(mechanism_of(entry) for entry in record)
    if not isinstance(record, dict) or "type" not in record:
        raise ValueError(
            f"mechanism = {validation.shorten(record)}: give an object with a type and fields, or a list of such."
        )
    return _mechanism_from(record, KINDS)


def _mechanism_from(record: dict[str, Any], kinds: dict[str, Any]) -> Any:
    kind = kind_of(record.get("type"), kinds)
    fields = {name: value for name, value in record.items() if name != "type"}
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    # Unknown names are refused before missing ones: a misspelt field is both.
    for name in fields:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field {name!r}: give {', '.join(known)}.")
    missing = [n for n, f in known.items() if n not in fields and f.default is f.default_factory is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{kind.__name__} needs {', '.join(missing)}: give {', '.join(known)}.")
    return kind(**{name: _field(known[name], value) for name, value in fields.items()})


def _field(field: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and field.metadata.get("static", False):
        return int(value)  # shapes and counts, from readers that know no integers
    if value is None or value == []:
        raise ValueError(f"{field.name} = {value!r} is nothing: give a value.")
    if isinstance(value, dict):
        return _mechanism_from(value, LAWS) if field.name == "trials" else mechanism_of(value)
    if isinstance(value, list):
        if isinstance(value[0], dict):
            return mechanism_of(value)
        return tuple(value) if field.name == "steps" else np.array(value, np.float64)
    return float(value) if value in ("inf", "-inf", "nan") else value
