"""What a run has spent, in two small files that are there before the updates that it pays for are made.

Each of the files has all of the record, and is replaced whole: first the one, then the other; both are synchronized
with the disk before the method returns. What is read is the newer one of those that are undamaged.

Why what is read back is never below what was released
------------------------------------------------------
A record is made from a ledger that has paid for all that was released before, and nothing more is released until the
method that writes it has returned. So let n be the last record whose writing has returned: what was released is paid
for by n, and by n + 1, if that was begun. Whatever ends the process, *each* file has n or n + 1. So has the newer one
of them, where one was cut, damaged, removed or set back to an earlier time; where both are cut or damaged, their
checksums say so, and reading is refused. What no file can show is both of them, and the checkpoints, set back together.

Why no database: one that is cut is repaired by giving up what was written last, which is what must not be given up. Of
all cuts of SQLite's log, nine in ten open without an error and with fewer rows.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zlib
from dataclasses import dataclass
from typing import Any

from jaxacct import strict_json
from jaxacct.train.leaves import Leaf
from jaxacct.whole_file import PRIVATE, write_whole

MOST_BYTES = 2**24
"""Of a file. A record has some thousands; what is longer is none, and is not read to its end."""


@dataclass(frozen=True)
class Record:
    """What has been spent, or is about to be.

    Attributes:
        after: number of the checkpoint that it follows.
        stop: steps that it covers.
        paid: updates paid for until then, lost ones included.
        epsilon: the ledger's at ``stop``.
        ledger: the leaves of the ledger at ``stop``.
        digests: steps since that checkpoint whose states were computed, with the digests of those.
        number: larger than that of any record of the run before.
    """

    after: int
    stop: int
    paid: int
    epsilon: float
    ledger: tuple[Leaf, ...]
    digests: tuple[tuple[int, str], ...] = ()
    number: int = 0

    def content(self) -> bytes:
        """Returns the record as JSON with a checksum; no part of it is JSON, too."""
        entries = strict_json.loads(strict_json.dumps(dataclasses.asdict(self)))
        return json.dumps({"crc32": _checksum(entries), **entries}).encode()

    @classmethod
    def of_content(cls, content: bytes) -> Record:
        """Returns the record of a whole file; raises ValueError, KeyError or TypeError where it is none."""
        entries = dict(strict_json.loads(content))
        if entries.pop("crc32") != _checksum(entries):
            raise ValueError("the checksum is another.")
        if any(type(entries[name]) is not int or entries[name] < 0 for name in ("after", "stop", "paid", "number")):
            raise ValueError("a count is no whole number.")
        ledger = tuple((dtype, tuple(shape), digits) for dtype, shape, digits in entries.pop("ledger"))
        digests = tuple((int(step), str(digest)) for step, digest in entries.pop("digests"))
        return cls(ledger=ledger, digests=digests, **entries | {"epsilon": float(entries["epsilon"])})


def _checksum(entries: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


class WriteAhead:
    """The two files, ``path`` and one beside it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.paths = path, path.with_suffix(f".copy{path.suffix}")

    def write(self, record: Record) -> None:
        """Replaces the record by one with a larger number; when this returns it is on the disk."""
        for path in self.paths:
            write_private(path, record.content())

    def read(self) -> Record:
        """Returns the record; raises ValueError or FileNotFoundError where what was spent is not known."""
        found, reasons = [], []
        for path in self.paths:
            try:
                with path.open("rb") as file:
                    found.append(Record.of_content(file.read(MOST_BYTES)))
            except FileNotFoundError:
                reasons.append(f"{path.name} is missing")
            except (ValueError, KeyError, TypeError):
                reasons.append(f"{path.name} is damaged")
        if not found:
            kind = ValueError if self.exists() else FileNotFoundError
            raise kind(
                f"{self.paths[0].parent}: {', '.join(reasons)}: what the run has spent is not known. Restore one of "
                "the files, or begin a run in another folder and count this one's whole budget as spent."
            )
        return max(found, key=lambda record: record.number)

    def exists(self) -> bool:
        """Returns whether there is one of the files."""
        return any(path.exists() for path in self.paths)


def write_private(path: pathlib.Path, content: bytes) -> None:
    """Writes a file whole or not at all, for its owner's eyes; when this returns it is on the disk."""
    write_whole(path, content, mode=PRIVATE)
