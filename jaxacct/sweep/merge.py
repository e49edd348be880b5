"""The shards of a sweep put together."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from jaxacct.sweep.folder import Folder
from jaxacct.sweep.result import Sweep, load


def merge(out: str | os.PathLike[str], shards: Sequence[str | os.PathLike[str]]) -> Sweep:
    """Returns the sweep that shards make together, in a folder: to the last bit what one process would have written.

    Args:
        out: folder of the whole sweep; one that a merge which was interrupted left is completed.
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
    folders = [Folder.opened(pathlib.Path(path)) for path in shards]
    if not folders:
        raise ValueError("shards are none: give the folders of all of them.")
    first, there = folders[0], dict[int, Folder]()
    for folder in folders:
        if folder.shard is None:
            raise ValueError(f"shards: {folder.path} is a whole sweep, and no shard of one: leave it out.")
        index, count = folder.shard
        if first.shard is None or count != first.shard[1]:
            raise ValueError(
                f"shards: {folder.path} is one of {count}, and {first.path} is not: give those of one cut."
            )
        if differing := folder.description.difference(first.description):
            raise ValueError(
                f"shards: {folder.path} is of another sweep than {first.path} ({differing}): give the shards of one."
            )
        if index in there:
            raise ValueError(f"shards: {folder.path} and {there[index].path} are both shard {index}/{count}: give one.")
        there[index] = folder
    if missing := sorted(set(range(count)) - set(there)):
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
    whole = Folder.begun(pathlib.Path(out), first.description, first.axes(), resume=True)
    for folder in folders:
        whole.adopt(folder)
    return load(out)
