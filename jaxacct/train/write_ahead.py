"""Two small files that say what has been spent before the updates that it pays for are made.

``spends.jsonl`` has one record a line, numbered from 0 on; ``spends.mark`` has the last one alone, replaced whole. Each
record is written to the mark first, then to the file; both are synchronized with the disk before the method returns.

Why what is read back is never below what was released
------------------------------------------------------
A record is made from a ledger that has paid for all that was released before, and nothing more is released until the
method that writes it has returned. So let n be the last record whose writing has returned. What was released is paid
for by n, and by n + 1, if that was begun. Then

* whatever ends the process: the mark is n or n + 1, the last whole line n or n + 1, and not above the mark;
* the file cut at any byte, also: the lines that stay whole are the first ones, and the mark is n or n + 1. It is the
  last record wherever the lines end before it: half a line, or none, is never the end of what is known. With no whole
  line there is no start to go on from, and reading is refused;
* the mark cut at any byte: its one line has lost its end, and reading is refused, as is a mark that is behind the file.

In each case reading ends with n or n + 1, or is refused. What no file can show is both of them, and the checkpoints,
set back together to what they were at an earlier time.

Lines between the file's end and the mark may be lost. They had digests of released states: without them lost updates
cannot be made again and compared, and :func:`is_whole` says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxacct import strict_json
from jaxacct.whole_file import PRIVATE, write_whole

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
        number: how many records of the run were written before.
    """

    after: int
    start: int
    stop: int
    paid: int
    epsilon: float
    ledger: tuple[Leaf, ...]
    digest: str | None = None
    number: int = 0

    def line(self) -> bytes:
        """Returns the record as a line, with a checksum."""
        entries = strict_json.loads(strict_json.dumps(dataclasses.asdict(self)))
        return json.dumps({"crc32": _checksum(entries), **entries}).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Record:
        """Returns the record of a line with its end; raises ValueError, KeyError or TypeError where it is none."""
        entries = dict(strict_json.loads(line))
        if not line.endswith(b"\n") or entries.pop("crc32") != _checksum(entries):
            raise ValueError("the line has no end, or another checksum.")
        if any(type(entries[name]) is not int or entries[name] < 0 for name in ("start", "stop", "paid", "number")):
            raise ValueError("a count is no whole number.")
        ledger = tuple((dtype, tuple(shape), digits) for dtype, shape, digits in entries.pop("ledger"))
        return cls(ledger=ledger, **entries | {"after": int(entries["after"]), "epsilon": float(entries["epsilon"])})


def _checksum(entries: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def is_whole(records: Sequence[Record]) -> bool:
    """Returns whether no record is missing between the first and the last."""
    return all(after.number == before.number + 1 for before, after in itertools.pairwise(records))


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


MOST_LINE = 2**24
"""Bytes of a line. A record has some thousand; what is longer is none, and is not read to its end."""


class WriteAhead:
    """The files; when a method that writes returns, what it wrote is on the disk.

    Args:
        path: of the file of all records; the mark lies beside it.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.mark = path, path.with_suffix(".mark")
        self._next = 0

    def append(self, record: Record) -> None:
        """Adds a record, which gets the next number, to the file, which is there."""
        record = dataclasses.replace(record, number=self._next)
        write_private(self.mark, record.line())
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
        self._next += 1

    def replace(self, record: Record) -> None:
        """Puts one record, which gets the next number, in place of all that are there."""
        record = dataclasses.replace(record, number=self._next)
        for path in (self.mark, self.path):
            write_private(path, record.line())
        self._next += 1

    def read(self) -> list[Record]:
        """Returns all records; raises ValueError or FileNotFoundError where what was spent is not known."""
        records = self._lines()
        last = self._last()
        if not records:
            raise ValueError(self._damaged(self.path, "it has no record"))
        if records[-1].number > last.number:
            raise ValueError(self._damaged(self.mark, f"it is older than {self.path.name}"))
        if records[-1].number < last.number:
            records.append(last)
        self._next = last.number + 1
        return records

    def begun(self) -> bool:
        """Returns whether the files, if there are any, show that something was computed; raises as :meth:`read`."""
        records = self.read() if self.path.exists() else [self._last()] if self.mark.exists() else []
        return any(record.after > 0 or record.stop > record.start for record in records)

    def _lines(self) -> list[Record]:
        records = []
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(MOST_LINE), b""), 1):
                    if not line.endswith(b"\n") and len(line) < MOST_LINE:
                        break  # the end of the file: the mark says whether there was more
                    try:
                        records.append(Record.of_line(line))
                    except (ValueError, KeyError, TypeError):
                        raise ValueError(self._damaged(self.path, f"line {number} is damaged")) from None
        except FileNotFoundError:
            raise FileNotFoundError(self._missing(self.path)) from None
        return records

    def _last(self) -> Record:
        try:
            with self.mark.open("rb") as file:
                return Record.of_line(file.read(MOST_LINE))
        except FileNotFoundError:
            raise FileNotFoundError(self._missing(self.mark)) from None
        except (ValueError, KeyError, TypeError):
            raise ValueError(self._damaged(self.mark, "it is cut or damaged")) from None

    def _missing(self, path: pathlib.Path) -> str:
        return f"{path} is missing: without it nobody knows what the run has spent. {REMEDY}"

    def _damaged(self, path: pathlib.Path, why: str) -> str:
        return f"{path}: {why}: what the run has spent is not known. {REMEDY}"


REMEDY = "Restore the file, or begin a run in another folder and count this one's whole budget as spent."


def write_private(path: pathlib.Path, content: bytes) -> None:
    """Writes a file whole or not at all, for its owner's eyes; when this returns it is on the disk."""
    write_whole(path, lambda file: file.write(content), mode=PRIVATE)
