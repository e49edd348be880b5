"""A small file that says what has been spent before the updates that it pays for are made.

One JSON object a line, appended and synchronized with the disk before :meth:`WriteAhead.append` returns. A line that
a dying process left unfinished was never relied on; any other line that cannot be read is damage, and an error: the
file is the only witness of what was spent after the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxacct.whole_file import write_whole

Leaf = tuple[str, tuple[int, ...], str]
"""An array as text: dtype, shape, and its bytes in hexadecimal digits."""


@dataclass(frozen=True)
class Record:
    """What has been spent, or is about to be.

    Attributes:
        after: number of the checkpoint that it follows.
        start, stop: steps before and after.
        paid: updates paid for until then, lost ones included.
        epsilon: the ledger's at ``stop``.
        ledger: the leaves of the ledger at ``stop``.
        digest: of the state at ``stop``, once that has been computed; None before.
    """

    after: int
    start: int
    stop: int
    paid: int
    epsilon: float
    ledger: tuple[Leaf, ...]
    digest: str | None = None

    def line(self) -> bytes:
        """Returns the record as a line, with a checksum."""
        entries = dataclasses.asdict(self)
        return json.dumps({"crc32": _checksum(entries), **entries}).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Record:
        """Returns the record of a line; raises ValueError, KeyError or TypeError where it is none."""
        entries = json.loads(line)
        if entries.pop("crc32") != _checksum(entries):
            raise ValueError("the checksum is another.")
        ledger = tuple((dtype, tuple(shape), digits) for dtype, shape, digits in entries.pop("ledger"))
        return cls(ledger=ledger, **entries)


def _checksum(entries: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def leaves_as_text(tree: Any) -> tuple[Leaf, ...]:
    """Returns the leaves of a pytree, bit for bit.

    >>> leaves_as_text(np.float32(1.0))
    (('float32', (), '0000803f'),)
    """
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return tuple((str(array.dtype), array.shape, array.tobytes().hex()) for array in arrays)


def leaves_of_text(leaves: Sequence[Leaf], tree: Any) -> Any:
    """Returns a pytree like ``tree`` with these leaves; raises ValueError where they are not of its shapes.

    >>> leaves_of_text((("float32", (), "0000803f"),), np.float32(0.0))
    array(1., dtype=float32)
    """
    old, structure = jax.tree.flatten(tree)
    if [(str(leaf.dtype), tuple(leaf.shape)) for leaf in old] != [leaf[:2] for leaf in leaves]:
        raise ValueError("the leaves are of another tree.")
    arrays = [np.frombuffer(bytes.fromhex(text), dtype).reshape(shape) for dtype, shape, text in leaves]
    return jax.tree.unflatten(structure, arrays)


class WriteAhead:
    """The file; when a method that writes returns, what it wrote is on the disk."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def append(self, record: Record) -> None:
        """Adds a record to the file, which is there."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            try:
                line = memoryview(record.line())
                while line:
                    line = line[file.write(line) :]
                os.fsync(descriptor)
            except BaseException:  # a full disk, or Ctrl-C: the next line must not follow half a one
                os.ftruncate(descriptor, size)
                raise

    def replace(self, record: Record) -> None:
        """Puts one record in place of all that are there."""
        write_private(self.path, record.line())

    def read(self) -> list[Record]:
        """Returns all records; raises ValueError or FileNotFoundError where some may be missing."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path} is missing: without it nobody knows what the run has spent. Restore the file, or begin a "
                "run in another folder and count this one's whole budget as spent."
            ) from None
        records = []
        for number, line in enumerate(lines[:-1], 1):  # what follows the last line end was never finished
            try:
                records.append(Record.of_line(line))
            except (ValueError, KeyError, TypeError):
                raise ValueError(self._damaged(f"line {number} is damaged")) from None
        if not records:
            raise ValueError(self._damaged("it has no record"))
        return records

    def _damaged(self, why: str) -> str:
        return (
            f"{self.path}: {why}: what the run has spent is not known. Restore the file, or begin a run in another "
            "folder and count this one's whole budget as spent."
        )


def write_private(path: pathlib.Path, content: bytes) -> None:
    """Writes a file whole or not at all, for its owner's eyes; when this returns it is on the disk."""
    write_whole(path, lambda file: file.write(content), mode=0o600)
    synchronize(path.parent)


def synchronize(path: pathlib.Path) -> None:
    """Returns when a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
