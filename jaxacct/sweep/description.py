"""The description of a sweep: values of its axes, settings, cut into boxes, quantity, and the record of all of it.

In reading order:

- :func:`parsed`, :func:`read_values`, :func:`read_columns`: values of an axis, as text (``low:high:count``,
  ``low:high:count:log``, ``1,2,5`` or a number) and in files.
- :class:`Boxes`: the cut of a grid into boxes of consecutive entries, and the boxes of a shard.
- :class:`Settings`, :func:`grid`, :func:`rows`: the configurations of a sweep.
- :class:`Quantity`: the computation for one entry.
- :class:`Description`: the record that identifies a sweep's results.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import math
import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from jaxacct import calibrate, certified, saddlepoint, validation
from jaxacct.bounds import Bounds
from jaxacct.choices import Certified, Mode
from jaxacct.composition import ForDelta, ForEpsilon, Kind, Question
from jaxacct.display import float_of
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.arithmetic import CHOICES
from jaxacct.refinement import ToleranceWarning


def parsed(text: str, name: str, *, whole: bool = False) -> Any:
    """Returns the number, or the values (n,), that ``text`` gives; ``name`` is for the message of the ValueError.

    Where ``whole``, the values of a range are rounded to whole numbers, each kept once.

    >>> parsed("1:100:3:log", "noise_multiplier").tolist()
    [1.0, 10.0, 100.0]
    >>> parsed("1e-5", "delta"), parsed("100,1000", "steps").tolist()
    (1e-05, [100.0, 1000.0])
    """
    if text.startswith("@"):
        return read_values(text[1:])
    forms = "a number, numbers with commas (100,1000), LOW:HIGH:COUNT[:log] (0.5:8:64:log), or @FILE"
    try:
        if ":" not in text:
            numbers = [float_of(part) for part in text.split(",")]
            return numbers[0] if "," not in text else np.array(numbers)
        low, high, count, *scale = text.split(":")
        first, last, points = float_of(low), float_of(high), int(count)
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not understood: give {forms}.") from None
    is_log = scale == ["log"]
    if scale and not is_log:
        raise ValueError(f"{name} = {text!r}: {':'.join(scale)!r} is no scale: give {forms}.")
    if points < 2 or not (math.isfinite(first) and math.isfinite(last) and first < last):
        raise ValueError(f"{name} = {text!r}: a range rises, over at least 2 values: give {forms}.")
    if is_log and first <= 0:
        raise ValueError(f"{name} = {text!r}: a logarithmic range begins above 0: raise its low end or leave out :log.")
    values = np.geomspace(first, last, points) if is_log else np.linspace(first, last, points)
    return np.unique(np.round(values)) if whole else values


def read_values(path: str | os.PathLike[str]) -> np.ndarray:
    r"""Returns the values of an axis (n,) in a file.

    Args:
        path: text with a number on each line; .npy; or a column of a .csv, as ``runs.csv:steps``.

    A .npy file of float64 is mapped into memory, and not read. Raises ValueError where the file holds no such values,
    OSError where it cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "noise.txt").write_text("0.5\n1\n")
    ...     read_values(f"{folder}/noise.txt").tolist()
    [0.5, 1.0]
    """
    name, colon, column = os.fspath(path).rpartition(":")
    if colon and pathlib.Path(name).suffix == ".csv":
        columns = read_columns(name)
        if column not in columns:
            raise ValueError(f"path = {path}: {name} has no column {column!r}: give one of {', '.join(columns)}.")
        return columns[column]
    try:
        is_array = pathlib.Path(path).suffix == ".npy"
        # Older versions of NumPy warn of an empty file; it is refused here.
        values = (
            np.load(path, mmap_mode="r")
            if is_array
            else np.array([float_of(word) for word in pathlib.Path(path).read_text().split()])
        )
    except (ValueError, EOFError) as error:
        raise ValueError(f"path = {path} cannot be read ({error}): give a file with a number on each line.") from None
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "fiu":
        raise ValueError(f"path = {path} holds {values.dtype} of shape {values.shape}: give numbers along one axis.")
    return values


def read_columns(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    r"""Returns the columns (n,) of a .csv file whose first line has their names: ``rows(**read_columns(path), ...)``.

    Raises ValueError where it is no such file, OSError where it cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "runs.csv").write_text("steps,sampling_rate\n100,0.1\n200,0.01\n")
    ...     read_columns(f"{folder}/runs.csv")["steps"].tolist()
    [100.0, 200.0]
    """
    with pathlib.Path(path).open(encoding="utf-8") as file:
        names = [name.strip() for name in file.readline().split(",")]
        try:
            table = np.loadtxt(file, delimiter=",", ndmin=2, converters=float_of)
        except ValueError as error:
            raise ValueError(f"path = {path} cannot be read ({error}): give numbers, below a line of names.") from None
    if not len(table) or table.shape[1] != len(names) or len(set(names)) < len(names):
        raise ValueError(
            f"path = {path} has the names {names} over {table.shape[1]} columns: give each a name of its own."
        )
    return dict(zip(names, table.T, strict=True))


# ----------------------------------------------------------------------------------------------------
# Boxes: the cut of a sweep's grid into boxes of consecutive entries, which are computed and stored one at a time.
# ----------------------------------------------------------------------------------------------------

LARGEST = 2**27
"""Largest number of entries of a box: one of them is in memory."""


@dataclass(frozen=True)
class Boxes:
    """A grid of ``shape``, cut into boxes of shape ``box``; those at the end of an axis may be smaller.

    A box spans the last axes whole, a stretch of one axis, and one place of those before: its entries are consecutive
    in C order, and boxes in C order are the entries in C order.

    >>> boxes = Boxes.of((4, 3, 2), most=4)
    >>> boxes.box, len(boxes), boxes.part(1)
    ((1, 2, 2), 8, slice(4, 6, None))
    """

    shape: tuple[int, ...]
    box: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], most: int | None = None, shards: int = 1) -> Boxes:
        """Returns boxes of at most ``most`` entries, at least one for each shard; by default shards are about alike."""
        size = math.prod(shape)
        shards = validation.check_whole(
            shards, "shard's count", 1, size, "a number of shards, no more than there are entries"
        )
        if most is None:
            # 32,768 entries take ten seconds on two cores, and few of a program's blocks are not full; beyond 4,096
            # boxes they become larger. A shard has at least 8, so that all are of about one size, unless these had less
            # than 1,024 entries. All of that is speed only.
            most = max(2**15, -(-size // 4096))
            if shards > 1:
                most = min(most, max(1024, -(-size // (8 * shards))))
        most = validation.check_whole(most, "chunk", 1, LARGEST, "a number of entries")
        room, box = min(most, -(-size // shards)), [1] * len(shape)
        # From the last axis on: an axis that fits is taken whole, and divides the room for those before; the first that
        # does not fit is cut, and all axes before it have boxes of one place.
        for axis in reversed(range(len(shape))):
            box[axis] = -(-shape[axis] // -(-shape[axis] // room))  # stretches of about one length
            if box[axis] < shape[axis]:
                break
            room //= box[axis]
        return cls(shape, tuple(box))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of boxes along each axis."""
        return tuple(-(-length // width) for length, width in zip(self.shape, self.box, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def place(self, i: int) -> tuple[int, ...]:
        """Returns the position of box ``i`` among the boxes of each axis."""
        return tuple(map(int, np.unravel_index(i, self.counts))) if self.shape else ()

    def extent(self, i: int) -> tuple[int, ...]:
        """Returns the shape of box ``i``."""
        sides = zip(self.shape, self.box, self.place(i), strict=True)
        return tuple(min(width, length - width * at) for length, width, at in sides)

    def part(self, i: int) -> slice:
        """Returns the numbers of the entries of box ``i``."""
        corner = [width * at for width, at in zip(self.box, self.place(i), strict=True)]
        start = int(np.ravel_multi_index(corner, self.shape)) if self.shape else 0
        return slice(start, start + math.prod(self.extent(i)))

    def share(self, index: int, count: int) -> range | list[int]:
        """Returns the boxes of one of ``count`` shards: one of each ``count`` consecutive boxes.

        The position within the ``count`` moves on by one each time, so that no shard has only one end of an axis.
        Neighbours, which take about the same time, are in different shards.
        """
        meaning = "a number of shards, no more than there are chunks"
        count = validation.check_whole(count, "shard's count", 1, len(self), meaning)
        index = validation.check_whole(index, "shard's number", 0, count - 1, f"which of {count} shards, from 0")
        return range(len(self)) if count == 1 else [i for i in range(len(self)) if (i + i // count) % count == index]

    def holding(
        self, picks: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]]:
        """Yields the boxes that hold a selection of places along each axis.

        With each box come, by axis, the positions in the selection that it fills, and the positions within the box.
        """
        along = [(pick // width, pick % width) for pick, width in zip(picks, self.box, strict=True)]
        # A box holds the product of what it holds along each axis, which may be nothing.
        for i in range(len(self)):
            where = tuple(np.flatnonzero(boxes == at) for (boxes, _), at in zip(along, self.place(i), strict=True))
            if all(map(len, where)):
                yield i, where, tuple(places[inside] for (_, places), inside in zip(along, where, strict=True))


# ----------------------------------------------------------------------------------------------------
# Settings: a grid of named axes or a table of rows, whose entries are made when they are needed.
# ----------------------------------------------------------------------------------------------------

MECHANISM = "mechanism"
"""Name of the axis of mechanism classes, where there are several."""

STRETCH = 2**20
"""Number of a column's values that are checked or hashed together. Memory only."""

Classes = type | Sequence[type]
"""One mechanism class, or several with the same fields."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Configurations by number, from 0 to ``size - 1``: a grid's in C order (the last axis moves fastest).

    Attributes:
        mechanisms: the mechanism classes that occur.
        values: by name, float64: a number () that all entries share, or an axis of a grid or a column of rows (n,). The
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
        """The numbers that all entries share, by name."""
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
    """Returns settings of named values; with a sequence of classes, their indices are the first axis or column."""
    classes = (mechanism,) if isinstance(mechanism, type) else tuple(mechanism)
    if not classes or not all(isinstance(entry, type) and dataclasses.is_dataclass(entry) for entry in classes):
        raise ValueError(f"mechanism = {mechanism!r}: give a mechanism class, such as jaxacct.Gaussian, or several.")
    distinct = tuple(dict.fromkeys(classes))
    values: dict[str, Any] = {}
    if not isinstance(mechanism, type):
        values[MECHANISM] = np.array([distinct.index(entry) for entry in classes], np.float64)
    # Axes and constants become float64 arrays that nobody changes later.
    for name, value in given.items():
        # Values that are mapped from a file are not copied into memory.
        on_disk = isinstance(value, np.memmap) and value.dtype == np.float64
        array = value if on_disk else np.array(value, dtype=np.float64)
        if array.ndim > 1 or array.size == 0:
            raise ValueError(f"{name} of shape {array.shape}: give a number, or values along one axis, at least one.")
        array.flags.writeable = False
        values[name] = array
    return Settings(distinct, values, layout)


def fields_of(mechanism: type) -> tuple[str, ...]:
    """Returns the names of a mechanism's numbers; static fields keep their defaults."""
    fields = dataclasses.fields(mechanism)
    return tuple(field.name for field in fields if not field.metadata.get("static"))


def check(settings: Settings, known: tuple[str, ...], unknown: str | None = None) -> None:
    """Raises ValueError where names are missing or too many, or a value is out of range.

    ``known``: the quantities given beside the mechanism's fields and steps: "delta", "epsilon", or both. ``unknown``:
    the field that is looked for, and therefore not given.
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
    # A mechanism's own checks are asked column by column, with the first value of the others: axes of a grid do not
    # broadcast against each other.
    for mechanism in settings.mechanisms:
        columns = {name: settings.values[name] for name in fields_of(mechanism) if name != unknown}
        first = {name: value.ravel()[0] for name, value in columns.items()} | ({unknown: 1.0} if unknown else {})
        for name, value in columns.items():
            for stretch in _stretches(value):
                mechanism(**first | {name: stretch})


def _stretches(value: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the numbers of a column in pieces, as it may be longer than there is memory."""
    for start in range(0, value.size, STRETCH):
        yield value.reshape(-1)[start : start + STRETCH]


# ----------------------------------------------------------------------------------------------------
# Quantities: the computation for one entry of a sweep, compiled for all, and by the mesh for those that it leaves open.
# ----------------------------------------------------------------------------------------------------

Entry = dict[str, Any]
"""Values of one entry by name: settings, or results."""


class AccountantCode(enum.IntEnum):
    """The accountant that an entry's bracket comes from.

    ===========  ===============================================================================================
    FAILED       a call raised an error; the exact accountant's bracket is kept
    NONE         none has an answer: the bracket is trivial
    SADDLEPOINT  the exact one
    ATOMS        laws of atoms, together with the exact one
    ===========  ===============================================================================================
    """

    FAILED = -1
    NONE = 0
    SADDLEPOINT = 1
    ATOMS = 2


def kinds_of(quantity: str) -> dict[str, np.dtype]:
    """Returns names and types of the results of an entry, in a sweep for this quantity."""
    names = ("noise_multiplier",) * (quantity == "noise_multiplier") + ("lower", "estimate", "upper")
    kinds = {name: np.dtype(np.float64) for name in names}
    return kinds | {"converged": np.dtype(bool), "accountant": np.dtype(np.int8)}


@dataclass(frozen=True)
class Quantity:
    """The quantity that is looked for, and the way it is computed.

    Attributes:
        name: "epsilon", "delta" or "noise_multiplier".
        mode: "saddlepoint", or "certified": laws of atoms answer where the saddle point does not.
        relation: neighbouring relation.
        tolerance: that of :func:`jaxacct.epsilon` or ``delta``, or of :func:`jaxacct.calibrate.noise_multiplier`.
        arithmetic: that of both accountants, as for :func:`jaxacct.epsilon`; a calibration chooses for itself.
    """

    name: str
    mode: str
    relation: Relation
    tolerance: float
    arithmetic: Certified = "auto"

    def check(self, settings: Settings) -> None:
        """Raises ValueError where the settings are not those that the quantity needs."""
        validation.check_one_of(self.mode, "mode", get_args(Mode))
        validation.check_positive(self.tolerance, "tolerance")
        choices: tuple[Certified, ...] = ("auto",) if self.calibrates else CHOICES
        validation.check_one_of(self.arithmetic, "arithmetic", choices, f" by a sweep for {self.name}")
        for mechanism in settings.mechanisms:
            known: tuple[str, ...] = mechanism.relations  # type: ignore[attr-defined]
            validation.check_one_of(self.relation, "relation", known, f" by {mechanism.__name__}")
        if self.calibrates:
            if settings.mechanisms != (PoissonSubsampledGaussian,):
                raise ValueError(
                    "mechanism: the least noise is looked for of PoissonSubsampledGaussian alone: leave mechanism out "
                    "(a sampling_rate of 1 is the plain Gaussian mechanism)."
                )
            check(settings, ("epsilon", "delta"), unknown="noise_multiplier")
        else:
            check(settings, (self.question.given,))

    @property
    def calibrates(self) -> bool:
        """Whether the least noise is looked for, and not the cost of a run."""
        return self.name == "noise_multiplier"

    @property
    def question(self) -> Kind:
        """The question that accountants are asked; for the least noise, the one that its bracket answers."""
        return ForDelta if self.name == ForDelta.name else ForEpsilon

    @property
    def exact(self) -> Quantity:
        """The quantity with fixed values for all that its program does not depend on: one program serves all modes."""
        return replace(self, mode="saddlepoint", tolerance=self.tolerance if self.calibrates else 1.0)

    def compiled(self, mechanism: type, entry: Entry) -> Entry:
        """Returns the exact accountant's answer; ``entry`` is traced."""
        if self.calibrates:
            return self._least_noise(entry, AccountantCode.SADDLEPOINT)
        bounds = saddlepoint.accountant.answer(*self._arguments(mechanism, entry), self.relation, self.arithmetic)
        says = bounds.converged | (bounds.upper < self.question.worst) | (bounds.lower > 0)
        return _entry_of_bounds(bounds, bounds.converged, says, AccountantCode.SADDLEPOINT)

    def by_calls(self, mechanism: type, entry: Entry, before: Entry) -> Entry:
        """Returns the result ``before`` refined by the top level's accountants; ``entry`` has concrete values."""
        exact = Bounds(before["lower"], before["estimate"], before["upper"], before["converged"])
        if not self.calibrates and certified.is_settled(exact, self.tolerance):
            return _entry_of_bounds(exact, True, True, before["accountant"])
        with warnings.catch_warnings():
            # Each entry's "converged" says what the warning would.
            warnings.simplefilter("ignore", ToleranceWarning)
            if self.calibrates:
                try:
                    return self._least_noise(entry, AccountantCode.ATOMS)
                except ValueError:  # no noise is enough, as the settings themselves have been checked
                    return before
            tolerance = None if self.arithmetic == "float32" else self.tolerance
            ask = functools.partial(certified.answer, tolerance=tolerance, arithmetic=self.arithmetic)
            found = ask(*self._arguments(mechanism, entry), self.relation)
        bounds = exact.intersection(found)
        says = (bounds.upper < self.question.worst) | (bounds.lower > 0)
        return _entry_of_bounds(bounds, certified.is_settled(bounds, self.tolerance), says, AccountantCode.ATOMS)

    def _least_noise(self, entry: Entry, accountant: AccountantCode) -> Entry:
        """Returns the least noise multiplier for an entry's budget and run, and the epsilon that it reaches."""
        budget_and_run = (entry[name] for name in ("epsilon", "delta", "sampling_rate", "steps"))
        found = calibrate.noise_multiplier(*budget_and_run, relation=self.relation, tolerance=self.tolerance)
        settled = (found.status == calibrate.Status.CONVERGED) | (found.status == calibrate.Status.NOT_BINDING)
        return {"noise_multiplier": found.value} | _entry_of_bounds(found.reached, settled, found.satisfied, accountant)

    def _arguments(self, mechanism: type, entry: Entry) -> tuple[Any, Any, Question]:
        """Returns an accountant's arguments for an entry: mechanism, steps and question."""
        made = mechanism(**{name: entry[name] for name in fields_of(mechanism)})
        asked = self.question
        return made, entry["steps"], asked(entry[asked.given])


def _entry_of_bounds(bounds: Bounds, converged: Any, says: Any, accountant: int) -> Entry:
    """Returns an entry's results by name; ``says`` is whether the accountant has an answer: if not, none has."""
    return vars(bounds) | {"converged": converged, "accountant": says * np.int8(accountant)}


def quantity_of(
    name: str, mode: str, relation: Relation, tolerance: float | None, arithmetic: Certified = "auto"
) -> Quantity:
    """Returns the quantity, with the accountants' own tolerance where none is given."""
    quantity = Quantity(name, mode, relation, 0.0, arithmetic)
    default = calibrate.targets.TOLERANCE if quantity.calibrates else quantity.question.tolerance
    return replace(quantity, tolerance=default if tolerance is None else tolerance)


# ----------------------------------------------------------------------------------------------------
# Descriptions: the record that identifies a sweep. Where two are equal, so are the results, to the last bit.
# ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Description:
    """The identity of a sweep: question, settings and versions; attributes as in :class:`~jaxacct.sweep.Sweep`."""

    quantity: str
    mode: str
    relation: str
    tolerance: float
    arithmetic: str
    mechanisms: tuple[str, ...]
    layout: str
    constants: dict[str, float]
    columns: tuple[str, ...]
    boxes: Boxes
    digest: str
    versions: dict[str, str]

    @property
    def results(self) -> dict[str, np.dtype]:
        """Names and types of an entry's results."""
        return kinds_of(self.quantity)

    @property
    def stored(self) -> dict[str, np.dtype]:
        """Names and types of the numbers stored for each entry: results, and for rows their settings."""
        rows = self.columns if self.layout == "rows" else ()
        return {name: kind_of_setting(name) for name in rows} | self.results

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the axes of the results."""
        return self.columns if self.layout == "grid" else ("row",)

    def difference(self, other: Description) -> str:
        """Returns in words how this one, "there", differs from another, "here"; an empty text where they are equal."""
        there, here = record_of(self), record_of(other)
        names = [name for name in there if there[name] != here[name]]
        told = [f"{name} {there[name]!r} there, {here[name]!r} here" for name in names if name != "digest"]
        return "; ".join(told or ["other values on an axis"] * len(names))


def record_of(description: Description) -> dict[str, Any]:
    """Returns a description as JSON has it."""
    record = vars(description) | {"shape": description.boxes.shape, "chunk": description.boxes.box}
    return {name: value for name, value in record.items() if name != "boxes"}


def question_of(description: Description) -> dict[str, Any]:
    """Returns what a sweep asks, and what all entries share, as its JSON for readers has it."""
    names = ("quantity", "mode", "relation", "tolerance", "arithmetic", "mechanisms", "layout", "constants")
    return {name: vars(description)[name] for name in names}


def description_of(record: dict[str, Any]) -> Description:
    """Returns the description in a record; raises ValueError, TypeError or KeyError where it holds none."""
    boxes = Boxes(_positive_integers(record["shape"]), _positive_integers(record["chunk"]))
    texts = ("quantity", "mode", "relation", "arithmetic", "layout", "digest")
    found = Description(
        **{name: _text(record[name]) for name in texts},
        tolerance=float(record["tolerance"]),
        constants={_text(name): float(value) for name, value in dict(record["constants"]).items()},
        versions={_text(name): _text(value) for name, value in dict(record["versions"]).items()},
        mechanisms=tuple(map(_text, record["mechanisms"])),
        columns=tuple(map(_text, record["columns"])),
        boxes=boxes,
    )
    validation.check_one_of(found.quantity, "quantity", ("epsilon", "delta", "noise_multiplier"))
    validation.check_one_of(found.layout, "layout", ("grid", "rows"))
    # Names become file names: none may lead out of the folder, and no two may be equal.
    settings, names = (*found.columns, *found.constants), (*found.columns, *found.constants, *found.results)
    if not all(map(str.isidentifier, settings)) or len(set(names)) < len(names):
        raise ValueError(f"its settings have the names {settings}.")
    if len(boxes) > 2**24 or math.prod(boxes.box) > LARGEST:  # a damaged record must not exhaust the memory
        raise ValueError(f"it has {len(boxes)} chunks of {math.prod(boxes.box)} entries.")
    if len(boxes.shape) != len(boxes.box) or len(boxes.shape) != len(found.dimensions):
        raise ValueError(f"its shape {boxes.shape} is not that of its axes {found.columns}, in chunks {boxes.box}.")
    return found


def kind_of_setting(name: str) -> np.dtype:
    """Returns the type by which an axis, or a column of rows, is stored."""
    return np.dtype(np.int8 if name == MECHANISM else np.float64)


def _text(value: Any) -> str:
    """Returns a text; raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a name should be.")
    return value


def _positive_integers(values: Any) -> tuple[int, ...]:
    """Returns positive whole numbers as a tuple; raises for anything else."""
    return tuple(validation.check_count(value, "shape", "a number of entries") for value in values)
