"""The results of a sweep: stores in memory and on disk, merging of shards, searches, export files, and the class Sweep.

A store is a set of named arrays, cut into boxes. A sweep computes, writes and reads one box at a time. So a sweep on
disk needs the memory of one box, survives an interruption, and can be the work of many jobs.

In reading order:

- :class:`Memory`: results in memory.
- :class:`Folder`: results in a folder, a Zarr store.
- :func:`key`, :func:`pack`, :func:`unpack`: the chunks of a Zarr store.
- :func:`merge`: one sweep of all its shards.
- :class:`Sweep`, :func:`load`: the object that users hold.
- :data:`WRITERS`: files for other programs.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import math
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, BinaryIO

import numpy as np

from jaxacct import json_files, validation
from jaxacct.json_files import synchronize, write_whole
from jaxacct.sweep.description import (
    MECHANISM,
    AccountantCode,
    Boxes,
    Description,
    description_of,
    kind_of_setting,
    question_of,
    record_of,
)

Arrays = dict[str, np.ndarray]
"""Arrays by name."""


class Memory:
    """A store in memory: arrays of one shape by their names, cut into boxes.

    ``held`` are the numbers of the boxes that the store is for: all, or in a folder those of a shard.
    """

    def __init__(self, boxes: Boxes, arrays: Arrays) -> None:
        self.boxes, self.arrays, self.held = boxes, arrays, range(len(boxes))

    def read(self, name: str, i: int) -> np.ndarray:
        """Returns the array of this name for the entries of box ``i``."""
        return self.arrays[name].reshape(-1)[self.boxes.part(i)]

    def read_all(self, name: str) -> np.ndarray:
        """Returns the array of this name for all entries."""
        return self.arrays[name]

    def write(self, i: int, arrays: Arrays) -> None:
        """Stores the results of box ``i``."""
        for name, values in arrays.items():
            self.arrays[name].reshape(-1)[self.boxes.part(i)] = values

    def holds(self, i: int) -> bool:
        """Returns whether box ``i`` was computed by an earlier process: in memory none was."""
        return False


# ----------------------------------------------------------------------------------------------------
# Folders: a sweep on disk, which fills up chunk by chunk, and is checkpoint, shard and result at once.
#
# The folder is a Zarr store, which Zarr's readers in many languages, and xarray, open as it is: an array for each
# result and each axis. A chunk is a file, complete or not there. So the files say which chunks are done: a killed
# process loses only its unfinished chunk; shards are disjoint sets of files, and a merge puts them into one folder.
# Missing chunks read as the trivial bounds, from 0 to infinity (for a delta: to 1). Should two processes work in one
# folder, they write the same files with the same content.
# ----------------------------------------------------------------------------------------------------

FORMAT = 1
"""Version of the attributes that describe a sweep in a folder, in addition to those of Zarr."""

Shard = tuple[int, int]
"""A shard's number, from 0, and the number of shards."""


class Folder:
    """A store on disk, of all of a sweep or of one shard; its methods mean what those of :class:`Memory` do."""

    def __init__(self, path: pathlib.Path, description: Description, shard: Shard | None = None) -> None:
        self.path, self.description, self.shard = path, description, shard
        self.boxes, self.kinds = description.boxes, description.stored
        self.held: Sequence[int] = range(len(self.boxes)) if shard is None else self.boxes.share(*shard)

    @classmethod
    def open(cls, path: pathlib.Path) -> Folder:
        """Returns an existing folder; raises ValueError where it is no sweep's, FileNotFoundError for a missing one."""
        if path.is_file():
            raise ValueError(
                f"path = {path} is no folder of a sweep; if an earlier version wrote it, sweep again: what that wrote "
                "is not read any more."
            )
        try:
            record = json_files.loads((path / METADATA).read_bytes())["attributes"]
            if record["jaxacct_sweep"] != FORMAT:
                raise ValueError(f"its format is {record['jaxacct_sweep']!r}, and {FORMAT} is known.")
            shard = None if record["shard"] is None else (record["shard"][0], record["shard"][1])
            return cls(path, description_of(record), shard)
        except FileNotFoundError:
            raise FileNotFoundError(f"path = {path} is no folder of a sweep: {METADATA} is missing.") from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError) as error:
            raise ValueError(
                f"path = {path}: its {METADATA} is damaged, or not that of a sweep ({str(error)[:200]}): "
                "name another folder, or delete this one."
            ) from None

    @classmethod
    def begin(
        cls,
        path: pathlib.Path,
        description: Description,
        axes: Mapping[str, np.ndarray],
        shard: Shard | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> Folder:
        """Returns a new folder, or an existing one to go on with, whose cut into boxes then counts.

        ``axes``: a grid's, with classes by their numbers. Raises ValueError where the folder holds something else, or
        holds this sweep and neither ``resume`` nor ``overwrite`` is set.
        """
        folder = cls(path, description, shard)
        if (path / METADATA).exists():
            existing = cls.open(path)
            if overwrite:
                existing._clear()
            else:
                existing._check_same(folder)
                if not resume:
                    done = len(existing.held) - len(existing.missing())
                    raise ValueError(
                        f"out = {path} holds {done} of {len(existing.held)} chunks of this sweep: give resume "
                        "(--resume) to go on from there, or overwrite (--overwrite) to start afresh."
                    )
                folder = existing
        elif path.exists() and (path.is_file() or any(not entry.name.startswith(".") for entry in path.iterdir())):
            raise ValueError(f"out = {path} is something else, and no folder of a sweep: name one of its own.")
        folder._describe(axes)
        return folder

    def _check_same(self, wanted: Folder) -> None:
        """Raises ValueError where this folder is another sweep's, or another shard's; their cuts may differ."""
        here, description = self.description, wanted.description
        if here.boxes.shape == description.boxes.shape:
            description = replace(description, boxes=here.boxes)
        difference = here.difference(description)
        if not difference and self.shard != wanted.shard:
            difference = f"shard {_name_shard(self.shard)} there, {_name_shard(wanted.shard)} here"
        if difference:
            raise ValueError(
                f"out = {self.path} is of another sweep ({difference}): give the arguments that it was begun with, "
                "name another folder, or give overwrite (--overwrite)."
            )

    def missing(self) -> list[int]:
        """Returns the boxes that have a file missing."""
        folders = [self.path / name for name in self.kinds]
        files = [{entry.name for entry in os.scandir(folder)} if folder.is_dir() else set() for folder in folders]
        return [i for i in self.held if not all(key(self.boxes.place(i)) in names for names in files)]

    def read(self, name: str, i: int) -> np.ndarray:
        """Returns the array of this name for box ``i``; raises ValueError where its file is missing or damaged."""
        file = self._file(name, i)
        try:
            box = unpack(file, self.kinds[name], math.prod(self.boxes.box))
        except (OSError, ValueError) as error:
            damage = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
            raise ValueError(
                f"{file} {damage}: give resume (--resume) to the sweep that made it: it is computed again."
            ) from None
        return box[: math.prod(self.boxes.extent(i))]

    def read_all(self, name: str) -> np.ndarray:
        """Returns the array of this name for all entries; raises ValueError for a shard."""
        if len(self.held) < len(self.boxes):
            raise ValueError(f"{self.path} holds shard {_name_shard(self.shard)} of a sweep: merge all shards first.")
        values = np.empty(math.prod(self.boxes.shape), self.kinds[name])
        for i in self.held:
            values[self.boxes.part(i)] = self.read(name, i)
        return values.reshape(self.boxes.shape)

    def write(self, i: int, arrays: Arrays) -> None:
        """Stores the results of box ``i``: they are on the disk when this returns."""
        try:
            # Zarr wants files of one size: zeros fill up a box at the end of an axis.
            for name, kind in self.kinds.items():
                box = np.zeros(math.prod(self.boxes.box), kind)
                box[: len(arrays[name])] = arrays[name]
                write_whole(self._file(name, i), pack(box))
        except OSError as error:
            raise OSError(
                f"out = {self.path}: chunk {i} cannot be written ({error.strerror or error}): finished ones are kept: "
                "mend that, then give resume (--resume) to go on."
            ) from error

    def holds(self, i: int) -> bool:
        """Returns whether all files of box ``i`` are there and intact."""
        try:
            box = {name: self.read(name, i) for name in self.kinds}
        except ValueError:
            return False
        return bool(np.all(box["lower"] <= box["upper"]))  # false for NaN, too

    def adopt(self, other: Folder) -> None:
        """Takes over all chunks of another folder: by hard links on the same disk, else by copies."""
        for i in other.held:
            for name in self.kinds:
                source, target = other._file(name, i), self._file(name, i)
                target.unlink(missing_ok=True)
                try:
                    os.link(source, target)
                except OSError:
                    write_whole(target, source.read_bytes())
        for name in self.kinds:
            synchronize(self.path / name)

    def axes(self) -> Arrays:
        """Returns the values of a grid's axes, with classes by their numbers."""
        axes = {}
        if self.description.layout == "grid":
            for name, length in zip(self.description.columns, self.boxes.shape, strict=True):
                file = self.path / name / key((0,))
                try:
                    axes[name] = unpack(file, kind_of_setting(name), length)
                except (OSError, ValueError) as error:
                    raise ValueError(f"{file} is missing or damaged ({error}): sweep again with overwrite.") from None
        return axes

    def _describe(self, axes: Mapping[str, np.ndarray]) -> None:
        """Writes the store's metadata and axes where they are missing, first the file that marks a sweep's folder."""
        largest = 1.0 if self.description.quantity == "delta" else math.inf
        worst = {"upper": largest, "noise_multiplier": math.inf, "estimate": math.nan}
        arrays = {
            name: self._array(name, self.boxes, self.description.dimensions, worst.get(name, 0)) for name in self.kinds
        } | {name: self._array(name, Boxes(values.shape, values.shape), (name,), 0) for name, values in axes.items()}
        group = {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": {"jaxacct_sweep": FORMAT, **record_of(self.description), "shard": self.shard},
            # A copy of the arrays' own metadata: readers need one file.
            "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": arrays},
        }
        metadata = {self.path: group} | {self.path / name: array for name, array in arrays.items()}
        files = {
            folder / METADATA: (json_files.dumps(content, indent=1) + "\n").encode()
            for folder, content in metadata.items()
        }
        for name, values in axes.items():
            files[self.path / name / key((0,))] = pack(values.astype(kind_of_setting(name)))
        for file, content in files.items():
            if not file.exists():
                write_whole(file, content)

    def _array(self, name: str, boxes: Boxes, dimensions: tuple[str, ...], empty: float) -> dict[str, Any]:
        """Returns an array's metadata, a JSON object; ``empty`` is the value of missing chunks."""
        # The names of the codes of accountants and mechanisms, by the CF conventions.
        codes = {
            "accountant": {entry.name.lower(): int(entry) for entry in AccountantCode},
            MECHANISM: {kind: i for i, kind in enumerate(self.description.mechanisms)},
        }.get(name, {})
        kind = self.kinds.get(name, kind_of_setting(name))
        order = {"configuration": {"endian": "little"}} if kind.itemsize > 1 else {}
        words = {"inf": "Infinity", "nan": "NaN"}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": boxes.shape,
            "data_type": kind.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": boxes.box}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [{"name": "bytes", **order}, {"name": "gzip", "configuration": {"level": LEVEL}}],
            "fill_value": words.get(str(empty), bool(empty) if kind == np.dtype(bool) else empty),
            "dimension_names": dimensions,
            "attributes": {"flag_values": list(codes.values()), "flag_meanings": " ".join(codes)} if codes else {},
            "storage_transformers": [],
        }

    def _file(self, name: str, i: int) -> pathlib.Path:
        """Returns the file of an array's box."""
        return self.path / name / key(self.boxes.place(i))

    def _clear(self) -> None:
        """Deletes the sweep, its mark last, so that an interrupted deletion leaves a folder that is still a sweep's."""
        for name in (*self.kinds, *self.description.columns):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / METADATA).unlink()


Store = Memory | Folder
"""Store of a sweep's arrays, which a sweep computes, writes and reads box by box."""


def _name_shard(shard: Shard | None) -> str:
    """Returns a shard in words."""
    return "none" if shard is None else f"{shard[0]}/{shard[1]}"


# ----------------------------------------------------------------------------------------------------
# Chunks of a Zarr store, version 3 of the format, which are gzipped.
#
# Source: the specification, https://zarr-specs.readthedocs.io/en/latest/v3/core/v3.0.html.
# ----------------------------------------------------------------------------------------------------

METADATA = "zarr.json"
"""Name of a file of metadata, by the Zarr specification."""

LEVEL = 1
"""Level of gzip's compression: a bound's last bits do not compress, and all else does at once. Speed and space only."""


def key(place: tuple[int, ...]) -> str:
    """Returns the name of a chunk's file, by the chunk's position along each axis."""
    return ".".join(["c", *map(str, place)])


def pack(values: np.ndarray) -> bytes:
    """Returns the content of a chunk's file."""
    return gzip.compress(values.astype(values.dtype.newbyteorder("<")).tobytes(), LEVEL, mtime=0)


def unpack(file: pathlib.Path, kind: np.dtype, count: int) -> np.ndarray:
    """Returns the ``count`` values in a chunk's file; a malicious file takes no more memory than these.

    Raises ValueError where the file is damaged, OSError where it cannot be read.
    """
    size = count * kind.itemsize
    try:
        with file.open("rb") as opened:
            most = size + size // 64 + 1024  # incompressible data grows by less
            packed = opened.read(min(most, os.fstat(opened.fileno()).st_size))
        unpacker = zlib.decompressobj(wbits=31)  # gzip's format, with a comparison of checksum and length
        content = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(content) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"it does not hold the {size} bytes that it should")
    if kind == np.dtype(bool):
        return np.frombuffer(content, np.uint8) != 0
    return np.frombuffer(content, kind.newbyteorder("<")).astype(kind)


# ----------------------------------------------------------------------------------------------------
# Merging: one sweep of all its shards.
# ----------------------------------------------------------------------------------------------------


def merge(out: str | os.PathLike[str], shards: Sequence[str | os.PathLike[str]]) -> Sweep:
    """Returns the sweep that shards make together, in a folder: to the last bit the one of a single process.

    Args:
        out: folder of the merged sweep; a further call completes what an interrupted one left there.
        shards: the folders of all shards, in any order.

    Every chunk's checksum is compared. On one disk nothing is copied: files get a second name, and the shards' folders
    may be deleted afterwards, or not.

    Raises:
        ValueError: a shard that is missing, given twice, unfinished, or of another sweep; a chunk that is damaged.

    >>> import tempfile
    >>> from jaxacct.sweep import epsilon, grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(2):
    ...         _ = epsilon(settings, relation="remove", out=f"{folder}/{i}", shard=(i, 2))
    ...     merge(f"{folder}/sweep", [f"{folder}/0", f"{folder}/1"]).upper.round(4).tolist()
    [6.1877, 2.1627]
    """
    folders = [Folder.open(pathlib.Path(path)) for path in shards]
    if not folders:
        raise ValueError("shards are none: give the folders of all of them.")
    first, by_index = folders[0], dict[int, Folder]()
    # Every folder has to be a shard of the first one's sweep and cut; each number may occur once.
    for folder in folders:
        if folder.shard is None:
            raise ValueError(f"shards: {folder.path} is a whole sweep, and no shard of one: leave it out.")
        index, count = folder.shard
        if first.shard is None or count != first.shard[1]:
            raise ValueError(
                f"shards: {folder.path} is one of {count}, and {first.path} is not: give those of one cut."
            )
        if difference := folder.description.difference(first.description):
            raise ValueError(
                f"shards: {folder.path} is of another sweep than {first.path} ({difference}): give the shards of one."
            )
        if twin := by_index.get(index):
            raise ValueError(f"shards: {folder.path} and {twin.path} are both shard {index}/{count}: give one.")
        by_index[index] = folder
    if missing := sorted(set(range(count)) - set(by_index)):
        raise ValueError(
            f"shards: {', '.join(f'{index}/{count}' for index in missing)} missing: give all {count}; what has "
            "not been run is run by --shard."
        )
    for folder in folders:
        damaged = [i for i in folder.held if not folder.holds(i)]
        if damaged:
            raise ValueError(
                f"shards: {folder.path}: {len(damaged)} of its {len(folder.held)} chunks are missing or damaged: run "
                "it again with --resume: they are computed again."
            )
    merged = Folder.begin(pathlib.Path(out), first.description, first.axes(), resume=True)
    for folder in folders:
        merged.adopt(folder)
    return load(out)


# ----------------------------------------------------------------------------------------------------
# The class Sweep: named arrays over named axes, in memory or in a folder.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sweep(Description):
    """The results of a sweep. Those of a sweep with ``out`` stay in its folder; each look-up reads them there.

    Attributes:
        quantity: "epsilon", "delta" or "noise_multiplier".
        mode: "saddlepoint" or "certified".
        relation: neighbouring relation.
        tolerance: the relative gap wanted, or that of the calibration.
        arithmetic: as given.
        mechanisms: names of the mechanism classes.
        layout: "grid" or "rows".
        constants: the numbers that all entries share, by name.
        columns: names of a grid's axes in order, or of the columns of rows.
        boxes: shape of the results, and of the chunks that they are cut into.
        digest: a text that differs where any setting does.
        versions: platform, and the versions of jaxacct and JAX.
        grid: values (n,) of a grid's axes, by name; classes by their numbers.
        store: the store of the results, in memory or on disk.

    Formal guarantee: ``lower <= truth <= upper`` in every entry, converged or not, rounding included; ``upper`` is inf
    (1 for a delta) where nothing is known. ``estimate`` proves nothing, and is NaN where there is none.

    >>> from jaxacct.sweep import epsilon, grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
    >>> results = epsilon(settings, relation="remove")
    >>> results.shape, results["upper"].round(4).tolist(), results.counts()["saddlepoint"]
    ((2,), [6.1877, 2.1627], 2)
    """

    grid: Mapping[str, np.ndarray]
    store: Store

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the results of this name."""
        validation.check_one_of(name, "name", tuple(self.results))
        return self.store.read_all(name)

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The results by name.

        They are arrays of :attr:`shape`: "lower", "estimate", "upper" float64, as in :class:`~jaxacct.Bounds`;
        "converged" bool; "accountant" int8, an :class:`~jaxacct.sweep.AccountantCode`. A sweep for the least noise has
        "noise_multiplier" as well, and bounds on the epsilon reached with it. Those of a folder are all read, 26 bytes
        an entry; ``sweep["upper"]`` reads one, and :meth:`pieces` and its users take the memory of a chunk.
        """
        return {name: self[name] for name in self.results}

    @property
    def axes(self) -> Mapping[str, np.ndarray]:
        """Values (n,) by name: a grid's axes in order, or the columns of rows; classes by their names."""
        return self.name_columns(
            self.grid if self.layout == "grid" else {name: self.store.read_all(name) for name in self.columns}
        )

    @property
    def lower(self) -> np.ndarray:
        """Certified lower bounds."""
        return self["lower"]

    @property
    def estimate(self) -> np.ndarray:
        """Best guesses; they prove nothing."""
        return self["estimate"]

    @property
    def upper(self) -> np.ndarray:
        """Certified upper bounds, the numbers to report."""
        return self["upper"]

    @property
    def converged(self) -> np.ndarray:
        """Whether each entry is as tight as was asked for."""
        return self["converged"]

    @property
    def accountant(self) -> np.ndarray:
        """The accountant of each entry's bracket, an :class:`~jaxacct.sweep.AccountantCode`."""
        return self["accountant"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes, or the number of rows."""
        return self.boxes.shape

    def counts(self) -> dict[str, int]:
        """Returns the number of entries, of those flagged as not converged, and of those of each accountant."""
        names = [entry.name.lower() for entry in AccountantCode]
        counts = dict.fromkeys(["entries", "flagged", *names], 0)
        for i in self.store.held:
            converged, accountant = self.store.read("converged", i), self.store.read("accountant", i)
            counts["entries"] += len(converged)
            counts["flagged"] += int(np.sum(~converged))
            for name, entry in zip(names, AccountantCode, strict=True):
                counts[name] += int(np.sum(accountant == entry))
        return counts

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an entry's numbers: settings, those that all share, and results."""
        return tuple(dict.fromkeys((MECHANISM, *self.columns, *self.constants, *self.results)))

    def column(self, name: str, i: int) -> np.ndarray:
        """Returns a setting or result of the entries of chunk ``i``: classes and accountants by their numbers."""
        validation.check_one_of(name, "name", self.names)
        if name in self.stored:
            return self.store.read(name, i)
        part = self.boxes.part(i)
        if name not in self.columns:
            return np.full(part.stop - part.start, self.constants.get(name, 0))
        places = np.unravel_index(np.arange(part.start, part.stop), self.shape)
        return self.grid[name][places[self.columns.index(name)]]

    def name_columns(self, columns: Mapping[str, np.ndarray]) -> Arrays:
        """Returns columns with classes and accountants by their names."""
        accountants = {int(entry): entry.name.lower() for entry in AccountantCode}
        texts = {MECHANISM: dict(enumerate(self.mechanisms)), "accountant": accountants}
        named = dict(columns)
        for name in texts.keys() & columns.keys():
            codes = columns[name].astype(int)
            named[name] = np.array([*texts[name].values()])[np.searchsorted([*texts[name]], codes)]
        return named

    def pieces(self) -> Iterator[Arrays]:
        """Yields the entries in C order, a chunk at a time: settings and results by column.

        ``map(pandas.DataFrame, results.pieces())`` gives consecutive frames.
        """
        for i in self.store.held:
            yield self.name_columns({name: self.column(name, i) for name in self.names})

    def best(
        self,
        at_most: float,
        *,
        least: str | None = None,
        most: str | None = None,
        count: int = 10,
        **ranges: tuple[float | None, float | None],
    ) -> Arrays:
        """Returns the best entries whose ``upper`` is at most a budget, by column, the best first.

        Args:
            at_most: the budget, the largest ``upper`` allowed.
            least: the setting or result whose smaller values are better; by default the noise, where it varies, else
                "upper". Among equals, entries that use more of the budget come first.
            most: the setting or result whose larger values are better, in place of ``least``.
            count: the largest number of entries.
            ranges: least and largest value allowed, by the name of a setting or result; None for no limit.

        One chunk at a time is in memory, with the entries that are returned. Raises ValueError for an unknown name.

        >>> from jaxacct.sweep import epsilon, grid
        >>> settings = grid(noise_multiplier=[1.0, 2.0, 3.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
        >>> results = epsilon(settings, relation="remove")
        >>> results.best(3.5, steps=(10_000, None), count=2)["noise_multiplier"].tolist()
        [2.0, 3.0]
        """
        if least is not None and most is not None:
            raise ValueError(f"least = {least!r} and most = {most!r}: give one of them, by which entries are compared.")
        validation.check_number(at_most, "at_most")
        count = validation.check_count(count, "count", "how many entries are wanted")
        by = (
            most
            or least
            or next(name for name in ("noise_multiplier", "scale", "upper") if name in (*self.columns, *self.results))
        )
        # Classes and accountants are codes for texts, and have no order.
        numbers = tuple(name for name in self.names if name not in (MECHANISM, "accountant"))
        for name in (by, *ranges):
            validation.check_one_of(name, "name", numbers)
        low, high = ranges.get("upper", (None, None))
        ranges["upper"] = low, at_most if high is None else min(high, at_most)
        best: Arrays = {}
        # The entries of each chunk that are in range join the best so far, of which ``count`` stay.
        for i in self.store.held:
            places = np.flatnonzero(self._in_range(i, ranges))
            if len(places):
                entries = {name: self.column(name, i)[places] for name in self.names}
                best = {name: np.concatenate([best[name], entries[name]]) for name in entries} if best else entries
                order = np.lexsort((-best["upper"], -best[by] if most else best[by]))[:count]
                best = {name: values[order] for name, values in best.items()}
        return self.name_columns(best)

    def _in_range(self, i: int, ranges: Mapping[str, tuple[float | None, float | None]]) -> np.ndarray:
        """Returns whether each entry of chunk ``i`` is in all ranges.

        It compares settings before results, and does not read a chunk without a setting in range.
        """
        inside = np.ones(math.prod(self.boxes.extent(i)), bool)
        for name in sorted(ranges, key=lambda name: name in self.results):
            if np.any(inside):
                values, (low, high) = self.column(name, i), ranges[name]
                inside &= (low is None or values >= low) & (high is None or values <= high)
        return inside

    def downsampled(self, most: int = 256, **at: float | str) -> Sweep:
        """Returns a part of a grid in memory: at most ``most`` values of each axis, both ends among them.

        Args:
            most: largest number of values of an axis.
            at: values that axes are fixed at, by the axis's name, for pictures of fewer dimensions; they become
                constants.

        Every number is one of the sweep's, at its own settings: nothing is averaged, so bounds remain bounds. Only the
        chunks that hold some of the part are read.

        Raises:
            ValueError: rows, which have no axes; an unknown axis, or a value that the axis lacks.

        >>> from jaxacct.sweep import epsilon, grid
        >>> settings = grid(noise_multiplier=[1.0, 2.0, 3.0], sampling_rate=0.01, steps=[10_000], delta=1e-5)
        >>> results = epsilon(settings, relation="remove")
        >>> results.downsampled(2, steps=10_000).axes["noise_multiplier"].tolist()
        [1.0, 3.0]
        """
        if self.layout != "grid":
            raise ValueError("layout = 'rows': rows have no axes to take values of: sweep over a grid.")
        most = validation.check_whole(most, "most", 2, 2**20, "how many values an axis may have")
        for name in at:
            validation.check_one_of(name, "axis", self.columns, " by this sweep")
        axes = self.axes
        picks = {
            name: np.array([_position(name, axes[name], at[name])])
            if name in at
            else np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(int))
            for name, length in zip(self.columns, self.shape, strict=True)
        }
        numbers = np.zeros(1, np.int64)  # of the entries in the part, ascending
        for pick, length in zip(picks.values(), self.shape, strict=True):
            numbers = (numbers[:, None] * length + pick).ravel()
        grid = {name: self.grid[name][pick] for name, pick in picks.items() if name not in at}
        shape = tuple(map(len, grid.values()))
        arrays = {name: np.empty(shape, kind) for name, kind in self.results.items()}
        for i in range(len(self.boxes)):
            chunk = self.boxes.part(i)
            first, end = np.searchsorted(numbers, (chunk.start, chunk.stop))
            for name in arrays if first < end else ():
                arrays[name].reshape(-1)[first:end] = self.store.read(name, i)[numbers[first:end] - chunk.start]
        fixed = {name: float(axes[name][picks[name][0]]) for name in picks if name in at and name != MECHANISM}
        places = [pick.tolist() for pick in picks.values()]
        description = replace(
            self.describe(), columns=tuple(grid), constants=self.constants | fixed, boxes=Boxes.of(shape),
            mechanisms=(str(at[MECHANISM]),) if MECHANISM in at else self.mechanisms,
            digest=hashlib.sha256(f"{self.digest}{places}".encode()).hexdigest()[:16],
        )  # fmt: skip
        return Sweep(**vars(description), grid=grid, store=Memory(description.boxes, arrays))

    def as_dict(self) -> dict[str, Any]:
        """Returns the sweep with all results as plain Python values, as a JSON file has it."""
        results = self.name_columns({name: values.ravel() for name, values in self.arrays.items()})
        return question_of(self) | {
            "axes": {name: values.tolist() for name, values in self.axes.items()},
            "shape": list(self.shape),
            "counts": self.counts(),
            "results": {name: values.tolist() for name, values in results.items()},
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the results: a folder as ``out`` does, or by the suffix .csv, .parquet (a line an entry) or .json.

        Arrays in JSON are flat, the last axis moving fastest; infinite and NaN become the strings "inf" and "nan".
        Files are complete or not there. All but JSON take the memory of a chunk. ``overwrite`` applies to folders
        alone.
        """
        path = pathlib.Path(path)
        if path.suffix:
            check_suffix(path, tuple(WRITERS))
            write_whole(path, lambda file: WRITERS[path.suffix](self, file))
            return
        if isinstance(self.store, Folder) and path.resolve() == self.store.path.resolve():
            raise ValueError(f"path = {path} is where these results are read from: name another folder.")
        folder = Folder.begin(path, self.describe(), self.grid, overwrite=overwrite)
        for i in self.store.held:
            folder.write(i, {name: self.store.read(name, i) for name in folder.kinds})

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame`` with a row for each entry, from :meth:`pieces`; pandas must be installed."""
        pandas = _import("pandas", "to_pandas")
        return pandas.concat(map(pandas.DataFrame, self.pieces()), ignore_index=True)

    def to_xarray(self, **options: Any) -> Any:
        """Returns an ``xarray.Dataset`` over the axes; xarray, and zarr for a folder, must be installed.

        A folder is opened, and read where it is indexed; ``options`` are those of ``xarray.open_zarr``, as
        ``chunks={}`` for arrays of dask. Arrays draw themselves: ``sweep.to_xarray()["upper"].plot()`` is a heat map,
        or a curve over a single axis.
        """
        xarray = _import("xarray", "to_xarray")
        if isinstance(self.store, Folder):
            _import("zarr", "to_xarray")
            data = xarray.open_zarr(self.store.path, **{"chunks": None} | options)
            data = data.set_coords(self.columns)
        else:
            results = {name: (self.dimensions, values) for name, values in self.arrays.items()}
            over = {name: (name if self.layout == "grid" else "row", values) for name, values in self.axes.items()}
            data = xarray.Dataset(results, over, record_of(self.describe()))
        if MECHANISM in self.grid:
            data = data.assign_coords({MECHANISM: self.axes[MECHANISM]})
        return data

    def describe(self) -> Description:
        """Returns the sweep's description, without its results."""
        return Description(**{field.name: getattr(self, field.name) for field in fields(Description)})


def _position(name: str, values: np.ndarray, wanted: float | str) -> int:
    """Returns the position of a value on an axis, up to rounding; raises ValueError where the axis lacks it."""
    if values.dtype.kind == "U":
        validation.check_one_of(wanted, name, tuple(values))
        return int(np.flatnonzero(values == wanted)[0])
    nearest = int(np.argmin(np.abs(values - float(wanted))))
    if not math.isclose(values[nearest], float(wanted), rel_tol=1e-6):
        raise ValueError(f"{name} = {wanted} is no value of this axis: the nearest is {values[nearest]!r}.")
    return nearest


def load(path: str | os.PathLike[str]) -> Sweep:
    """Returns the sweep in a folder that ``out``, :meth:`Sweep.save` or ``jaxacct sweep --out`` wrote.

    Args:
        path: the folder; a shard's folder gives the results of that shard.

    The results stay there, and each look-up reads them.

    Raises:
        ValueError: the folder is no sweep's, is damaged, or the sweep is not finished.
        FileNotFoundError: there is no such folder.

    >>> import tempfile
    >>> from jaxacct.sweep import epsilon, grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
    >>> results = epsilon(settings, relation="remove")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results.save(f"{folder}/sweep")
    ...     load(f"{folder}/sweep").upper.round(4).tolist()
    [6.1877, 2.1627]
    """
    folder = Folder.open(pathlib.Path(path))
    if missing := folder.missing():
        raise ValueError(
            f"path = {path}: {len(missing)} of {len(folder.held)} chunks are missing: give resume (--resume) to the "
            "sweep that made it, to have them computed."
        )
    return Sweep(**vars(folder.description), grid=folder.axes(), store=folder)


# ----------------------------------------------------------------------------------------------------
# Files for other programs: a line for each entry (.csv, .parquet), or one JSON object.
# ----------------------------------------------------------------------------------------------------


def _import(name: str, use: str) -> Any:
    """Returns a module of the extra [sweep]; raises ModuleNotFoundError, with the remedy, where it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{use} needs {error.name}, which is missing: pip install "jaxacct[sweep]".'
        ) from None


def check_suffix(path: pathlib.Path, known: tuple[str, ...]) -> None:
    """Raises ValueError where the suffix names no known format."""
    if path.suffix not in known:
        raise ValueError(f"path = {path}: the suffix says the format: give one of {', '.join(known)}.")


def _write_csv(sweep: Sweep, file: BinaryIO) -> None:
    """Writes the entries as CSV, chunk by chunk."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(sweep.names)
    for piece in sweep.pieces():
        lines.writerows(zip(*(values.tolist() for values in piece.values()), strict=True))
    text.detach()


def _write_parquet(sweep: Sweep, file: BinaryIO) -> None:
    """Writes the entries as Parquet, chunk by chunk."""
    pyarrow, parquet = _import("pyarrow", ".parquet"), _import("pyarrow.parquet", ".parquet")
    writer = None
    for piece in sweep.pieces():
        arrays = {name: pyarrow.array(values) for name, values in piece.items()}
        for name in {MECHANISM, "accountant"} & arrays.keys():
            arrays[name] = arrays[name].dictionary_encode()  # a text is an index into the few different ones
        table = pyarrow.table(arrays)
        writer = writer or parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


WRITERS: dict[str, Callable[[Sweep, BinaryIO], Any]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": lambda sweep, file: file.write((json_files.dumps(sweep.as_dict()) + "\n").encode()),
}
"""Writers of the files that results can be written to, by suffix."""
