"""What is swept over: a grid of named axes or a table of rows, whose entries are made when they are needed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxacct import validation
from jaxacct.mechanisms import PoissonSubsampledGaussian

MECHANISM = "mechanism"
"""Name of the axis of mechanism classes, where there are several."""

STRETCH = 2**20
"""Numbers of a column that are looked at together."""

Classes = type | Sequence[type]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Configurations by number, from 0 to ``size - 1``: a grid's in C order (the last axis moves fastest).

    Attributes:
        mechanisms: the mechanism classes that occur.
        values: for each name, float64, () what all entries share, or (n,) an axis of a grid or a column of rows. The
            entry "mechanism", where there is one, holds indices into ``mechanisms``.
        layout: "grid" or "rows".

    Made by :func:`grid` and :func:`rows`.

    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=1000, delta=1e-5)
    >>> settings.size, settings.axes["noise_multiplier"].tolist(), settings.constants["steps"]
    (2, [1.0, 2.0], 1000.0)
    """

    mechanisms: tuple[type, ...]
    values: dict[str, np.ndarray]
    layout: str

    @property
    def axes(self) -> dict[str, np.ndarray]:
        """The axes of a grid, or the columns of rows, as they are shown: classes by their names."""
        names = np.array([mechanism.__name__ for mechanism in self.mechanisms])
        shown = {name: names[value.astype(int)] if name == MECHANISM else value for name, value in self.values.items()}
        return {name: value for name, value in shown.items() if value.ndim}

    @property
    def constants(self) -> dict[str, float]:
        """What all entries share."""
        return {name: float(value) for name, value in self.values.items() if value.ndim == 0}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the results: the axes' lengths, or the number of rows."""
        lengths = tuple(len(value) for value in self.values.values() if value.ndim)
        return lengths if self.layout == "grid" else lengths[:1]

    @property
    def size(self) -> int:
        """Number of configurations."""
        return int(np.prod(self.shape, dtype=np.int64))

    def columns(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the values of the entries with these numbers, for each name an array as long as ``numbers``."""
        if self.layout == "grid":
            places = iter(np.unravel_index(numbers, self.shape) if self.shape else ())
            at = {name: next(places) for name, value in self.values.items() if value.ndim}
        else:
            at = dict.fromkeys(self.values, numbers)
        return {
            name: value[at[name]] if value.ndim else np.full(len(numbers), float(value))
            for name, value in self.values.items()
        }

    def digest(self) -> str:
        """Returns a short text that differs where any value differs."""
        state = hashlib.sha256()
        for name, value in self.values.items():
            state.update(f"{name}{value.shape}".encode())
            for stretch in _stretches(value):
                state.update(stretch.astype("<f8").tobytes())
        return state.hexdigest()[:16]


def grid(mechanism: Classes = PoissonSubsampledGaussian, **axes: Any) -> Settings:
    """Returns the product of named axes as the settings of a sweep.

    Args:
        mechanism: a mechanism class, or a sequence of classes with the same fields, which is the first axis then.
        axes: the mechanism's fields, ``steps``, and ``delta`` (for epsilon), ``epsilon`` (for delta) or both (for the
            least noise): each a number, or values (n,), which make an axis. Results have the axes in the order given.

    Raises:
        ValueError: an axis that is empty or has more than one dimension. Values are checked when the sweep starts.

    >>> settings = grid(noise_multiplier=[0.5, 1.0, 2.0], sampling_rate=[0.01, 0.02], steps=1000, delta=1e-5)
    >>> settings.shape, settings.columns(np.array([0, 5]))["noise_multiplier"].tolist()
    ((3, 2), [0.5, 2.0])
    """
    return _settings(mechanism, axes, "grid")


def rows(mechanism: Classes = PoissonSubsampledGaussian, **columns: Any) -> Settings:
    """Returns a list of configurations as the settings of a sweep: entry i has the i-th value of every column.

    Args:
        mechanism: a mechanism class, or one class for each row; classes must have the same fields.
        columns: as the axes of :func:`grid`: numbers, which all rows share, and arrays of one length (n,).

    Raises:
        ValueError: no columns, or columns of several lengths.

    >>> rows(noise_multiplier=[1.0, 2.0], sampling_rate=[0.01, 0.02], steps=1000, delta=1e-5).shape
    (2,)
    """
    settings = _settings(mechanism, columns, "rows")
    lengths = {name: len(value) for name, value in settings.values.items() if value.ndim}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"columns of the lengths {lengths}: give columns of one length, and single numbers beside.")
    return settings


def _settings(mechanism: Classes, given: dict[str, Any], layout: str) -> Settings:
    classes = (mechanism,) if isinstance(mechanism, type) else tuple(mechanism)
    if not classes or not all(isinstance(entry, type) and dataclasses.is_dataclass(entry) for entry in classes):
        raise ValueError(f"mechanism = {mechanism!r}: give a mechanism class, such as jaxacct.Gaussian, or several.")
    distinct = tuple(dict.fromkeys(classes))
    values: dict[str, Any] = {}
    if not isinstance(mechanism, type):
        values[MECHANISM] = np.array([distinct.index(entry) for entry in classes], np.float64)
    for name, value in given.items():
        # What lies in a file stays there.
        on_disk = isinstance(value, np.memmap) and value.dtype == np.float64
        array = value if on_disk else np.array(value, dtype=np.float64)
        if array.ndim > 1 or array.size == 0:
            raise ValueError(f"{name} of shape {array.shape}: give a number, or values along one axis, at least one.")
        array.flags.writeable = False
        values[name] = array
    return Settings(distinct, values, layout)


def fields_of(mechanism: type) -> tuple[str, ...]:
    """Returns the names of a mechanism's numbers; what is static keeps its default."""
    fields = dataclasses.fields(mechanism)
    return tuple(field.name for field in fields if not field.metadata.get("static"))


def check(settings: Settings, known: tuple[str, ...], unknown: str | None = None) -> None:
    """Raises where names are missing or too many, or a value is out of range.

    ``known``: what is given beside the mechanism's fields and steps: "delta", "epsilon", or both. ``unknown``: the
    field that is looked for, and therefore not given.
    """
    given = set(settings.values) - {MECHANISM}
    for mechanism in settings.mechanisms:
        for name in {*known, "steps"} & set(fields_of(mechanism)):
            raise ValueError(
                f"mechanism = {mechanism.__name__} has a field {name}, as the budget has: one axis cannot be both."
            )
        wanted = {*fields_of(mechanism), "steps", *known} - {unknown}
        if given != wanted:
            missing, extra = sorted(wanted - given), sorted(given - wanted)
            what = [f"{', '.join(missing)} missing"] * bool(missing) + [f"{', '.join(extra)} not used"] * bool(extra)
            raise ValueError(
                f"axes of a sweep over {mechanism.__name__}: {'; '.join(what)}: give {', '.join(sorted(wanted))}."
            )
    checks = {"delta": validation.check_delta, "epsilon": validation.check_epsilon, "steps": validation.check_steps}
    for name in (*known, "steps"):
        for stretch in _stretches(settings.values[name]):
            checks[name](stretch)
    for mechanism in settings.mechanisms:
        columns = {name: settings.values[name] for name in fields_of(mechanism) if name != unknown}
        first = {name: value.ravel()[0] for name, value in columns.items()} | ({unknown: 1.0} if unknown else {})
        for name, value in columns.items():  # one at a time: the axes of a grid do not broadcast
            for stretch in _stretches(value):
                mechanism(**first | {name: stretch})


def _stretches(value: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the numbers of a column, which may be longer than there is memory."""
    for start in range(0, value.size, STRETCH):
        yield value.reshape(-1)[start : start + STRETCH]
