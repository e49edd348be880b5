"""How the entries of a sweep are cut: into boxes of the grid, each of them consecutive entries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxacct import validation

LEAST, MOST_BOXES = 2**15, 4096
"""Entries of a box unless it is said otherwise: so many, and more where there would be more boxes than that.

Ten seconds of two cores; and of the blocks that a program takes (:mod:`.program`) few are not full."""

LARGEST = 2**27
"""Entries of a box, at most: one of them is in memory."""

SHARED, FULL = 8, 1024
"""Boxes of a shard, where there are enough entries: it has at most one more than another; and the least for them."""


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
        """Returns boxes of at most so many entries, at least one for each shard; by default shards are about alike."""
        size = math.prod(shape)
        validation.check_whole(shards, "shard's count", 1, size, "a number of shards, no more than there are entries")
        if most is None:
            most = max(LEAST, -(-size // MOST_BOXES))
            if shards > 1:
                most = min(most, max(FULL, -(-size // (SHARED * shards))))
        validation.check_whole(most, "chunk", 1, LARGEST, "a number of entries")
        room, box = min(most, -(-size // shards)), [1] * len(shape)
        for axis in reversed(range(len(shape))):
            box[axis] = -(-shape[axis] // -(-shape[axis] // room))  # stretches of about one length
            if box[axis] < shape[axis]:
                break
            room //= box[axis]
        return cls(shape, tuple(box))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many boxes there are along each axis."""
        return tuple(-(-length // width) for length, width in zip(self.shape, self.box, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def place(self, i: int) -> tuple[int, ...]:
        """Returns which box number ``i`` is along each axis."""
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
        """Returns the boxes of one of ``count`` shards: one of each ``count`` that follow each other.

        Which one moves on by one each time, so that no shard has only one end of an axis. Neighbours, which take alike
        long, are in different shards.
        """
        validation.check_whole(
            count, "shard's count", 1, len(self), "a number of shards, no more than there are chunks"
        )
        validation.check_whole(index, "shard's number", 0, count - 1, f"which of {count} shards, from 0")
        return range(len(self)) if count == 1 else [i for i in range(len(self)) if (i + i // count) % count == index]

    def holding(
        self, picks: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]]:
        """Yields the boxes that hold a selection of places along each axis.

        With each box: where in the selection what it holds belongs, and where in the box that is; both by axis.
        """
        along = []
        for width, pick in zip(self.box, picks, strict=True):
            boxes = pick // width
            along.append([(int(at), np.flatnonzero(boxes == at), width) for at in np.unique(boxes)])
        for sides in itertools.product(*along):
            i = int(np.ravel_multi_index([at for at, _, _ in sides], self.counts)) if sides else 0
            where = tuple(inside for _, inside, _ in sides)
            within = tuple(pick[inside] - at * width for pick, (at, inside, width) in zip(picks, sides, strict=True))
            yield i, where, within
