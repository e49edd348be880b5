"""A sweep with a checkpoint: every finished chunk on disk, and as many processes as there are."""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Callable

import numpy as np

from jaxacct.sweep import hosts
from jaxacct.sweep.checkpoint import Checkpoint
from jaxacct.sweep.compute import Arrays, empty, parts
from jaxacct.sweep.quantities import Quantity

Compute = Callable[[slice, Callable[[int], None]], Arrays]


def shared(
    quantity: Quantity,
    size: int,
    store: Checkpoint,
    plan: tuple[int, list[int]],
    patience: float,
    compute: Compute,
    tell: Callable[[int], None],
) -> Arrays:
    """Returns the results of all entries.

    Args:
        quantity: what is computed.
        size: number of entries.
        store: where finished chunks are kept.
        plan: as :func:`plan` returns it.
        patience: seconds without a sign of life after which another process is given up.
        compute: gives the results of a part of the entries, telling the function it is given how many are done.
        tell: hears how many entries are done.
    """
    chunk, missing = plan
    every, whole = parts(size, chunk), empty(quantity, size)
    index, count = hosts.index_and_count()
    presence = hosts.Presence(store.folder, index, count, patience)

    def told(entries: int) -> None:
        tell(entries)
        presence.check()

    def take(i: int, results: Arrays) -> None:
        for name, values in results.items():
            whole[name][every[i]] = values

    try:
        with presence.shown():
            mine = missing[index::count]
            for i in mine:
                results = compute(every[i], told)
                store.write(i, results)
                take(i, results)
            waiting = sorted(set(range(len(every))) - set(mine))
            end = float("inf")
            while waiting:
                for i in list(waiting):
                    found = store.read(i, quantity.arrays, every[i].stop - every[i].start)
                    if found is not None:
                        take(i, found)
                        waiting.remove(i)
                if not waiting:
                    break
                presence.check()
                # Nobody is left to write what is missing; a shared disk may still be slow to show it.
                end = min(end, time.monotonic() + patience) if presence.all_done() else float("inf")
                if time.monotonic() > end:
                    raise OSError(f"checkpoint = {store.folder}: chunks {waiting} are gone: give resume (--resume).")
                time.sleep(min(0.2, patience / 20))
    except hosts.HostLostError as error:
        done = int(np.sum(store.finished(size, chunk)))
        raise hosts.HostLostError(
            f"{error}: {done} of {len(every)} chunks are kept in {store.folder}; start all processes again with "
            "resume (--resume) to go on from there."
        ) from None
    return whole


def plan(quantity: Quantity, size: int, store: Checkpoint, chunk: int, *, resume: bool) -> tuple[int, list[int]]:
    """Returns the entries of a chunk and which chunks are missing, as process 0 finds them.

    Raises ValueError, in all processes, where the checkpoint is of another sweep or was not to be resumed.
    """
    index, _ = hosts.index_and_count()
    refusal: Exception | None = None
    if index == 0:
        try:
            chunk = store.begin(size, chunk, resume=resume)
            hosts.forget_signs(store.folder)
        except (ValueError, OSError) as error:  # the others must be told before this process gives up
            chunk, refusal = 0, error
    chunk = int(hosts.agreed(np.array([chunk]))[0])
    if refusal is not None:
        raise refusal
    if chunk == 0:
        raise ValueError("process 0 refuses to begin: its message says why.")
    every = parts(size, chunk)
    missing = np.zeros(len(every), np.int64)
    if index == 0:
        # Read, not looked for: what is damaged is done again.
        missing[:] = [store.read(i, quantity.arrays, part.stop - part.start) is None for i, part in enumerate(every)]
    missing = hosts.agreed(missing)
    store.verified()
    return chunk, np.flatnonzero(missing).tolist()


def share(size: int, plan: tuple[int, list[int]]) -> int:
    """Returns how many entries this process is to compute."""
    chunk, missing = plan
    index, count = hosts.index_and_count()
    every = parts(size, chunk)
    return sum(every[i].stop - every[i].start for i in missing[index::count])


def discard(folder: pathlib.Path, patience: float) -> None:
    """Removes a checkpoint when all other processes have read it; leaves it where one stays silent."""
    presence = hosts.Presence(folder, *hosts.index_and_count(), patience)
    end = time.monotonic() + patience
    while not presence.all_done():
        if time.monotonic() > end:
            return
        time.sleep(min(0.1, patience / 20))
    shutil.rmtree(folder, ignore_errors=True)
