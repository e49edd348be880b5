"""Where the results of a sweep are: in memory, or in a folder (:mod:`.folder`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from jaxacct.sweep.boxes import Boxes

Arrays = dict[str, np.ndarray]


class Store(Protocol):
    """Arrays of one shape by their names, cut into boxes."""

    @property
    def held(self) -> Sequence[int]:
        """Numbers of the boxes that are here: all, or a shard's."""

    def read(self, name: str, i: int) -> np.ndarray:
        """Returns what is stored under this name for the entries of box ``i``."""

    def whole(self, name: str) -> np.ndarray:
        """Returns that of all entries."""

    def write(self, i: int, arrays: Arrays) -> None:
        """Keeps what was computed for box ``i``."""

    def holds(self, i: int) -> bool:
        """Returns whether box ``i`` has been computed, and is sound."""


class Memory:
    """Arrays in memory, to be filled unless they are ``full``."""

    def __init__(self, boxes: Boxes, arrays: Arrays, *, full: bool = False) -> None:
        self.boxes, self.arrays, self.full, self.held = boxes, arrays, full, range(len(boxes))

    def read(self, name: str, i: int) -> np.ndarray:
        """As of :class:`Store`."""
        return self.arrays[name].reshape(-1)[self.boxes.part(i)]

    def whole(self, name: str) -> np.ndarray:
        """As of :class:`Store`."""
        return self.arrays[name]

    def write(self, i: int, arrays: Arrays) -> None:
        """As of :class:`Store`."""
        for name, values in arrays.items():
            self.arrays[name].reshape(-1)[self.boxes.part(i)] = values

    def holds(self, i: int) -> bool:
        """As of :class:`Store`."""
        return self.full


class Columns(Mapping[str, np.ndarray]):
    """A store's arrays of these names, each read whenever it is asked for."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._store, self._names = store, names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._store.whole(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
