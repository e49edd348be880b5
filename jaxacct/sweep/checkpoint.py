"""What a sweep has done so far, on disk: a folder with a description and one file for each finished chunk.

Chunks are files of their own, written whole: what a killed process leaves is what it finished. A file that cannot be
read counts as not finished. Should two processes work in one folder, they write the same files with the same content.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from jaxacct import strict_json, validation
from jaxacct.sweep.archive import Archive
from jaxacct.whole_file import write_whole

DESCRIPTION = "sweep.json"


class Checkpoint:
    """The folder of one sweep; ``description`` is what must be equal for results to be of the same sweep."""

    def __init__(self, folder: str | os.PathLike[str], description: dict[str, Any]) -> None:
        self.folder = pathlib.Path(folder)
        self.description = description

    def begin(self, size: int, chunk: int, *, resume: bool) -> int:
        """Makes the folder, or takes up the one that is there; returns the entries of a chunk, which that one decides.

        Raises ValueError where the folder holds another sweep, or this one and ``resume`` is false.
        """
        path = self.folder / DESCRIPTION
        if not path.exists():
            if self.folder.exists() and any(not entry.name.startswith(".") for entry in self.folder.iterdir()):
                raise ValueError(f"checkpoint = {self.folder} is a folder of something else: name one of its own.")
            record = {**self.description, "entries": size, "chunk": chunk}
            write_whole(path, strict_json.dumps(record, indent=1).encode())
            return chunk
        chunk = self.verified()
        if not resume:
            done = [self._file(i).exists() for i in range(-(-size // chunk))]
            raise ValueError(
                f"checkpoint = {self.folder} holds {sum(done)} of {len(done)} chunks of this sweep: give resume "
                "(--resume) to go on from there, or delete it to start afresh."
            )
        return chunk

    def verified(self) -> int:
        """Returns the entries of a chunk; raises ValueError where the folder is another sweep's."""
        path = self.folder / DESCRIPTION
        try:
            record = dict(strict_json.loads(path.read_bytes()))
            chunk = record.pop("chunk")
            validation.check_count(chunk, "chunk", "a number of entries")
        except (OSError, ValueError, TypeError, KeyError, MemoryError):
            raise ValueError(
                f"checkpoint = {self.folder}: its {DESCRIPTION} is missing or damaged: name another folder, or delete "
                "this one."
            ) from None
        record.pop("entries", None)
        differing = [name for name in self.description if record.get(name) != self.description[name]]
        if differing:
            pairs = {name: f"{name} {record.get(name)!r} there, {self.description[name]!r} here" for name in differing}
            listed = "; ".join("other values on an axis" if name == "values" else pair for name, pair in pairs.items())
            raise ValueError(
                f"checkpoint = {self.folder} is of another sweep ({listed}): give the arguments that it was begun "
                "with, or name another folder."
            )
        return chunk

    def write(self, i: int, results: dict[str, np.ndarray]) -> None:
        """Keeps the results of chunk ``i``; when this returns they are on the disk."""
        write_whole(self._file(i), lambda file: np.savez(file, allow_pickle=False, **results))

    def read(self, i: int, names: dict[str, np.dtype], count: int) -> dict[str, np.ndarray] | None:
        """Returns the results of chunk ``i``, or None where there are none that can be read."""
        try:
            with Archive(self._file(i)) as stored:
                return {name: stored.read(name, np.dtype(kind), (count,)) for name, kind in names.items()}
        except (OSError, ValueError):
            return None

    def _file(self, i: int) -> pathlib.Path:
        return self.folder / f"chunk-{i:06d}.npz"
