"""A sweep on disk: a folder that fills up chunk by chunk, and is checkpoint, shard and result at once.

The folder is a Zarr store, which Zarr's readers in many languages, and xarray, open as it is: an array for each result
and each axis. A chunk is a file, whole or not there. So what has been computed is what files there are: a killed
process loses what it had not finished; shards are disjoint sets of files; to merge them is to put the files together.
Chunks that are not there read as what is true of everything: bounds from 0 to infinity (of a delta: to 1). Should two
processes work in one folder, they write the same files with the same content.
"""

from __future__ import annotations

import math
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxacct import strict_json
from jaxacct.sweep import zarr_files
from jaxacct.sweep.boxes import Boxes
from jaxacct.sweep.description import Description, description_of, kind_of_setting, record_of
from jaxacct.sweep.quantities import Accountant
from jaxacct.sweep.settings import MECHANISM
from jaxacct.sweep.store import Arrays
from jaxacct.whole_file import synchronize, write_whole

FORMAT = 1
"""Version of what the folder says of a sweep beside what Zarr asks for."""

Shard = tuple[int, int]
"""Which of how many."""


class Folder:
    """Results on disk, of all of a sweep or of a shard of it: a :class:`~jaxacct.sweep.store.Store`."""

    def __init__(self, path: pathlib.Path, description: Description, shard: Shard | None = None) -> None:
        self.path, self.description, self.shard = path, description, shard
        self.boxes, self.kinds = description.boxes, description.stored
        self.held: Sequence[int] = range(len(self.boxes)) if shard is None else self.boxes.share(*shard)

    @classmethod
    def opened(cls, path: pathlib.Path) -> Folder:
        """Returns the folder that is there; raises ValueError where it is no sweep's, FileNotFoundError for none."""
        if path.is_file() or (path / "sweep.json").exists():
            raise ValueError(
                f"path = {path} is no folder of a sweep; if an earlier version wrote it, sweep again: what that wrote "
                "is not read any more."
            )
        try:
            record = strict_json.loads((path / zarr_files.METADATA).read_bytes())["attributes"]
            if record["jaxacct_sweep"] != FORMAT:
                raise ValueError(f"its format is {record['jaxacct_sweep']!r}, and {FORMAT} is known.")
            shard = None if record["shard"] is None else (record["shard"][0], record["shard"][1])
            return cls(path, description_of(record), shard)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"path = {path} is no folder of a sweep: {zarr_files.METADATA} is missing."
            ) from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError) as error:
            raise ValueError(
                f"path = {path}: its {zarr_files.METADATA} is damaged, or not that of a sweep ({str(error)[:200]}): "
                "name another folder, or delete this one."
            ) from None

    @classmethod
    def begun(
        cls,
        path: pathlib.Path,
        description: Description,
        axes: Mapping[str, np.ndarray],
        shard: Shard | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> Folder:
        """Returns the folder, made or taken up where it was left; what is there decides how the entries are cut.

        ``axes``: a grid's, with classes by their numbers. Raises ValueError where the folder holds something else, or
        this sweep and neither going on nor overwriting is asked for.
        """
        found = cls(path, description, shard)
        if (path / zarr_files.METADATA).exists() or (path / "sweep.json").exists():
            there = cls.opened(path)
            if overwrite:
                there._clear()
            else:
                found = there._checked(found)
                if not resume:
                    done = len(there.held) - len(there.missing())
                    raise ValueError(
                        f"out = {path} holds {done} of {len(there.held)} chunks of this sweep: give resume (--resume) "
                        "to go on from there, or overwrite (--overwrite) to start afresh."
                    )
        elif path.exists() and (path.is_file() or any(not entry.name.startswith(".") for entry in path.iterdir())):
            raise ValueError(f"out = {path} is something else, and no folder of a sweep: name one of its own.")
        found._describe(axes)
        return found

    def _checked(self, wanted: Folder) -> Folder:
        """Returns this folder; raises ValueError where it is another sweep's, or another shard's."""
        one, two = self.description, wanted.description
        differing = one.difference(two if one.boxes.shape != two.boxes.shape else replace(two, boxes=one.boxes))
        if not differing and self.shard != wanted.shard:
            differing = f"shard {_named(self.shard)} there, {_named(wanted.shard)} here"
        if differing:
            raise ValueError(
                f"out = {self.path} is of another sweep ({differing}): give the arguments that it was begun with, name "
                "another folder, or give overwrite (--overwrite)."
            )
        return self

    def missing(self) -> list[int]:
        """Returns the boxes of which files are missing."""
        folders = [self.path / name for name in self.kinds]
        there = [{entry.name for entry in os.scandir(folder)} if folder.is_dir() else set() for folder in folders]
        return [i for i in self.held if not all(zarr_files.key(self.boxes.place(i)) in names for names in there)]

    def read(self, name: str, i: int) -> np.ndarray:
        """As of :class:`Store`; raises ValueError where the file is missing or damaged."""
        file = self._file(name, i)
        try:
            box = zarr_files.unpacked(file, self.kinds[name], math.prod(self.boxes.box))
        except (OSError, ValueError) as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
            raise ValueError(
                f"{file} {what}: give resume (--resume) to the sweep that made it: it is computed again."
            ) from None
        return box[: math.prod(self.boxes.extent(i))]

    def whole(self, name: str) -> np.ndarray:
        """As of :class:`Store`."""
        if len(self.held) < len(self.boxes):
            raise ValueError(f"{self.path} holds shard {_named(self.shard)} of a sweep: merge all shards first.")
        found = np.empty(math.prod(self.boxes.shape), self.kinds[name])
        for i in self.held:
            found[self.boxes.part(i)] = self.read(name, i)
        return found.reshape(self.boxes.shape)

    def write(self, i: int, arrays: Arrays) -> None:
        """As of :class:`Store`; when this returns they are on the disk."""
        try:
            for name, kind in self.kinds.items():
                box = np.zeros(math.prod(self.boxes.box), kind)
                box[: len(arrays[name])] = arrays[name]
                write_whole(self._file(name, i), zarr_files.packed(box))
        except OSError as error:
            raise OSError(
                f"out = {self.path}: chunk {i} cannot be written ({error.strerror or error}): finished ones are kept: "
                "mend that, then give resume (--resume) to go on."
            ) from error

    def holds(self, i: int) -> bool:
        """As of :class:`Store`."""
        try:
            found = {name: self.read(name, i) for name in self.kinds}
        except ValueError:
            return False
        return bool(np.all(found["lower"] <= found["upper"]))  # NaN included

    def adopt(self, other: Folder) -> None:
        """Takes all that another folder holds: under second names on the same disk, else copies."""
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
        found = {}
        if self.description.layout == "grid":
            for name, length in zip(self.description.columns, self.boxes.shape, strict=True):
                file = self.path / name / zarr_files.key((0,))
                try:
                    found[name] = zarr_files.unpacked(file, kind_of_setting(name), length)
                except (OSError, ValueError) as error:
                    raise ValueError(f"{file} is missing or damaged ({error}): sweep again with overwrite.") from None
        return found

    def _describe(self, axes: Mapping[str, np.ndarray]) -> None:
        """Writes what the store says of itself, but for what is there; first what marks the folder as a sweep's."""
        largest = 1.0 if self.description.quantity == "delta" else math.inf
        worst = {"upper": largest, "noise_multiplier": math.inf, "estimate": math.nan}
        arrays = {
            name: self._array(name, self.boxes, self.description.dimensions, worst.get(name, 0)) for name in self.kinds
        } | {name: self._array(name, Boxes(values.shape, values.shape), (name,), 0) for name, values in axes.items()}
        record = {"jaxacct_sweep": FORMAT, **record_of(self.description), "shard": self.shard}
        files = {self.path / zarr_files.METADATA: zarr_files.said(zarr_files.group(record, arrays))}
        files |= {self.path / name / zarr_files.METADATA: zarr_files.said(array) for name, array in arrays.items()}
        for name, values in axes.items():
            files[self.path / name / zarr_files.key((0,))] = zarr_files.packed(values.astype(kind_of_setting(name)))
        for file, content in files.items():
            if not file.exists():
                write_whole(file, content)

    def _array(self, name: str, boxes: Boxes, dimensions: tuple[str, ...], empty: float) -> zarr_files.Metadata:
        codes = {
            "accountant": {entry.name.lower(): int(entry) for entry in Accountant},
            MECHANISM: {kind: i for i, kind in enumerate(self.description.mechanisms)},
        }.get(name, {})
        kind = self.kinds.get(name, kind_of_setting(name))
        return zarr_files.array(kind, boxes.shape, boxes.box, empty, dimensions, codes)

    def _file(self, name: str, i: int) -> pathlib.Path:
        return self.path / name / zarr_files.key(self.boxes.place(i))

    def _clear(self) -> None:
        for name in (*self.kinds, *self.description.columns):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / zarr_files.METADATA).unlink()


def _named(shard: Shard | None) -> str:
    return "none" if shard is None else f"{shard[0]}/{shard[1]}"
