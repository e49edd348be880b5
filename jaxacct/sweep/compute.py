"""The computation of sweeps: epsilon, delta or the least noise of every entry, over devices and chunk by chunk.

The exact accountant answers all entries by one compiled program. The mesh then answers, one after the other, those that
the program leaves open. Each finished chunk goes to the store before the next is begun.

In reading order:

- :func:`epsilon`, :func:`delta`, :func:`noise_multiplier`: the sweeps that users call.
- :func:`program_of`, :func:`run`: the compiled program, and entries through it block by block.
- :func:`compute`: the results of one chunk.
- :func:`sweep`: all chunks of a sweep.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxacct import validation
from jaxacct.choices import Certified
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.precision import scope
from jaxacct.processes import check_not_forked, progress
from jaxacct.sweep.description import (
    MECHANISM,
    AccountantCode,
    Boxes,
    Description,
    Entry,
    Quantity,
    Settings,
    kinds_of,
    quantity_of,
)
from jaxacct.sweep.result import Arrays, Folder, Memory, Shard, Store, Sweep


def epsilon(
    settings: Settings,
    *,
    mode: str = "certified",
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    arithmetic: Certified = "auto",
    **options: Any,
) -> Sweep:
    """Returns bounds on epsilon for every entry of a grid or table.

    Args:
        settings: made by :func:`.grid` or :func:`.rows`, with the mechanism's fields, ``steps`` and ``delta``.
        mode: "certified": the exact accountant, then :func:`jaxacct.epsilon` for the entries that this leaves open,
            one after the other, about twenty milliseconds each; or "saddlepoint": without the second.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: relative gap wanted of these.
        arithmetic: as for :func:`jaxacct.epsilon`.
        **options: settings of the run; none changes a result.

            * ``out``: folder of this sweep alone, a Zarr store, which gets every chunk once it is finished; without
              it results are in memory. With it memory does not grow with the settings, and a run that is interrupted
              goes on where it stopped, on any number of devices.
            * ``resume`` (False): whether to go on from what ``out`` holds; otherwise a folder in use is refused.
            * ``overwrite`` (False): whether to delete the sweep that ``out`` holds.
            * ``shard``: (i, n), to compute the i-th of n parts alone, from 0; ``out`` is the part's own folder, and
              :func:`.merge` puts the parts together. In a process group ``(jax.process_index(), jax.process_count())``.
            * ``chunk``: entries of a chunk, at most (32,768, more where that were more than some 4,000 chunks, fewer
              where shards would get fewer than eight): fewer lose less where a run is interrupted.
            * ``memory`` (2**30): bytes that a device's program may take: more entries side by side on a GPU.
            * ``devices`` (all of this process): the devices to use. A CPU is one device, and uses one core, unless
              ``jax.config.update("jax_num_cpu_devices", n)`` was called before anything was computed.
            * ``show_progress`` (True): whether to show a bar on standard error, where that is a terminal.

    Returns:
        :class:`Sweep`: arrays of the shape of the grid, or (n,) of the rows. No entry is dropped: those that have not
        converged are flagged.

    Formal guarantee: that of :func:`jaxacct.epsilon`, entry by entry: ``lower <= epsilon <= upper``, rounding included;
    inf where nothing is known. Chunks, shards and interruptions change no bit of a result (on one kind of device and
    one version). A sweep on one device may differ in the last digits from a sweep on several.

    Raises:
        ValueError: settings out of range or not those of the mechanism, an option out of range, an ``out`` that is no
            sweep's folder or another sweep's.
        OSError: ``out`` cannot be written; finished chunks are kept.

    Source: :func:`jaxacct.saddlepoint.epsilon` and :func:`jaxacct.epsilon`.

    >>> from jaxacct.sweep import grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=[0.01, 0.02], steps=10_000, delta=1e-5)
    >>> results = epsilon(settings, relation="remove")
    >>> results.upper.round(4).tolist(), bool(results.converged.all())
    ([[6.1877, 14.2367], [2.1627, 4.7572]], True)
    """
    return sweep(quantity_of("epsilon", mode, relation, tolerance, arithmetic), settings, **options)


def delta(
    settings: Settings,
    *,
    mode: str = "certified",
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    arithmetic: Certified = "auto",
    **options: Any,
) -> Sweep:
    """Returns bounds on delta for every entry of a grid or table.

    Args, guarantee, errors and source are those of :func:`epsilon`, with ``epsilon`` among the settings in delta's
    place; ``**options`` likewise.

    Formal guarantee: that of :func:`jaxacct.delta`, entry by entry: ``lower <= delta <= upper``, rounding included; 1
    where nothing is known.

    >>> from jaxacct.sweep import grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=[0.01, 0.02], steps=10_000, epsilon=4.0)
    >>> results = delta(settings, relation="remove")
    >>> bool(results.upper[1, 0] < 1e-8 < results.lower[0, 0]), bool(results.converged.all())
    (True, True)
    """
    return sweep(quantity_of("delta", mode, relation, tolerance, arithmetic), settings, **options)


def noise_multiplier(
    settings: Settings,
    *,
    mode: str = "certified",
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    **options: Any,
) -> Sweep:
    """Returns the least noise multiplier of a Poisson-subsampled Gaussian for every budget of a grid or table.

    Args, errors and ``**options`` are those of :func:`epsilon`; the settings are ``sampling_rate``, ``steps``,
    ``epsilon`` and ``delta``, and ``tolerance`` is that of :func:`jaxacct.calibrate.noise_multiplier`.

    Returns:
        :class:`Sweep` with the further array "noise_multiplier"; its bounds are those of the epsilon reached.

    Formal guarantee: a finite noise multiplier satisfies its budget, ``upper <= epsilon``; "converged" says whether it
    is within the tolerance of the least. It is inf, with ``upper`` inf, where nothing is certified.

    Source: :func:`jaxacct.calibrate.noise_multiplier`.

    >>> from jaxacct.sweep import grid
    >>> settings = grid(epsilon=[1.0], delta=1e-5, sampling_rate=0.01, steps=10_000)
    >>> results = noise_multiplier(settings, relation="remove", tolerance=1e-6)
    >>> results["noise_multiplier"].round(4).tolist(), bool(results.upper[0] <= 1.0)
    ([3.8128], True)
    """
    return sweep(quantity_of("noise_multiplier", mode, relation, tolerance), settings, **options)


# ----------------------------------------------------------------------------------------------------
# The compiled program: one of one shape for all entries, with a share of the entries on each device.
#
# Each device runs the same program on a block of entries, and no entry sees another: the choice of processes and chunks
# changes no result, not in the last bit. XLA compiles one program for several devices and another for a single one:
# their last digits may differ. Copies of the last entry fill up a chunk's last block.
# ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def program_of(
    quantity: Quantity, mechanism: type, names: tuple[str, ...], devices: tuple[Any, ...], memory: int
) -> Callable[[Arrays], Iterator[Arrays]]:
    """Returns :func:`run` of the program whose temporary arrays take at most ``memory`` bytes on a device."""
    # All sizes of blocks are sound, and change speed alone. A CPU works 128 entries off one after the other, in a tenth
    # of a second; other devices run a block's entries side by side.
    one_by_one = devices[0].platform == "cpu"
    blocks = (128,) if one_by_one else (4096, 1024, 256, 64, 16, 4, 1)
    mesh = Mesh(np.array(devices), ("entries",))
    sharding = NamedSharding(mesh, PartitionSpec("entries"))
    # One thread for each device: JAX makes a CPU into as many devices as the user asks for, each with its own entries.
    options: dict[str, str | bool] | None = {"xla_cpu_multi_thread_eigen": False} if one_by_one else None
    each = jax.shard_map(
        jax.vmap(functools.partial(quantity.compiled, mechanism)),
        mesh=mesh, in_specs=PartitionSpec("entries"), out_specs=PartitionSpec("entries"),
        check_vma=False,  # devices exchange nothing
    )  # fmt: skip
    needed = 0
    # From the largest block down: the compiler says how much memory each takes, and the first that fits serves.
    for block in blocks:
        width = block * len(devices)
        with scope():
            entry = jax.ShapeDtypeStruct((width,), np.float64, sharding=sharding)
            compiled = jax.jit(each).lower(dict.fromkeys(names, entry)).compile(options)
        analysis = compiled.memory_analysis()
        needed = 0 if analysis is None else int(analysis.temp_size_in_bytes)  # some backends do not say
        if needed <= memory:
            return functools.partial(run, compiled, sharding, width)
    raise ValueError(
        f"memory = {memory} bytes: the smallest program takes {needed} bytes of a device's memory: allow that much."
    )


def run(
    program: Callable[[dict[str, Any]], dict[str, Any]], sharding: NamedSharding, width: int, columns: Arrays
) -> Iterator[Arrays]:
    """Yields the results of consecutive entries, ``width`` at a time: a block for each device."""
    size = len(next(iter(columns.values())))
    pending: deque[tuple[int, dict[str, Any]]] = deque()
    # The host waits for a block only when it has dispatched 4 more, so that no device waits for the host. Speed only.
    for start in range(0, size, width):
        count = min(width, size - start)
        filled = {
            name: np.pad(column[start : start + count], (0, width - count), mode="edge")
            for name, column in columns.items()
        }
        with scope():
            pending.append((count, program(jax.device_put(filled, sharding))))
        if len(pending) > 4:
            yield _fetch_block(*pending.popleft())
    while pending:
        yield _fetch_block(*pending.popleft())


def _fetch_block(count: int, results: dict[str, Any]) -> Arrays:
    """Returns a block's results in memory, without those of the copies that fill it up."""
    return {name: np.asarray(result)[:count] for name, result in results.items()}


# ----------------------------------------------------------------------------------------------------
# Results of a part of the entries: the compiled program for all of them, then calls for those that this leaves open.
# ----------------------------------------------------------------------------------------------------


def compute(
    quantity: Quantity,
    settings: Settings,
    devices: tuple[Any, ...],
    memory: int,
    part: slice,
    advance: Callable[[int], None],
) -> Arrays:
    """Returns the results of a part of the entries, and calls ``advance`` with the number of further finished ones."""
    numbers = np.arange(part.start, part.stop)
    columns = settings.columns(numbers)
    classes = columns.pop(MECHANISM, np.zeros(len(numbers)))
    results = {name: np.zeros(len(numbers), kind) for name, kind in kinds_of(quantity.name).items()}
    # Class by class, since each has a program of its own; ``at`` are the places of a block's entries in the part.
    for code in np.unique(classes):
        mechanism, places = settings.mechanisms[int(code)], np.flatnonzero(classes == code)
        program = program_of(quantity.exact, mechanism, tuple(columns), devices, memory)
        start = 0
        # Results come block by block, in the order of the places of this mechanism.
        for block in program({name: column[places] for name, column in columns.items()}):
            at = places[start : start + len(block["upper"])]
            for name, values in block.items():
                results[name][at] = values
            unsettled = at[~block["converged"]] if quantity.mode == "certified" else at[:0]
            advance(len(at) - len(unsettled))
            for i in unsettled:
                _by_calls(quantity, mechanism, columns, results, int(i))
                advance(1)
            start += len(at)
    return _on_the_safe_side(quantity, results)


def _on_the_safe_side(quantity: Quantity, results: Arrays) -> Arrays:
    """Returns the results with NaN bounds, should there be any, replaced by the worst: 0 and inf (1 for a delta)."""
    undefined = np.isnan(results["lower"]) | np.isnan(results["upper"])
    results["lower"][undefined] = 0.0
    results["upper"][undefined] = quantity.question.worst
    results["converged"][undefined] = False
    results["accountant"][undefined] = AccountantCode.NONE
    if "noise_multiplier" in results:
        results["noise_multiplier"][undefined | np.isnan(results["noise_multiplier"])] = np.inf
    return results


def _by_calls(quantity: Quantity, mechanism: type, columns: Arrays, results: Arrays, i: int) -> None:
    """Replaces the result of entry ``i`` by the one that the top level's accountants refine."""
    entry: Entry = {name: float(column[i]) for name, column in columns.items()}
    before: Entry = {name: values[i] for name, values in results.items()}
    try:
        answer = quantity.by_calls(mechanism, entry, before)
    except (ValueError, ArithmeticError, RuntimeError):
        # One entry's failure must not end a sweep of millions: its earlier bracket holds, and it is flagged.
        answer = before | {"accountant": AccountantCode.FAILED}
    for name, value in answer.items():
        results[name][i] = value


# ----------------------------------------------------------------------------------------------------
# The sweep: from a quantity and settings to results, chunk by chunk.
# ----------------------------------------------------------------------------------------------------


def sweep(
    quantity: Quantity,
    settings: Settings,
    *,
    out: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
    resume: bool = False,
    overwrite: bool = False,
    chunk: int | None = None,
    memory: int = 2**30,
    devices: Any = None,
    show_progress: bool = True,
) -> Sweep:
    """Returns the results of a sweep, chunk by chunk from the store where it holds them, else computed.

    The options are those of :func:`epsilon`; none changes a result.
    """
    check_not_forked()
    quantity.check(settings)
    validation.check_positive(memory, "memory")
    if out is None and (shard is not None or resume or overwrite):
        raise ValueError("shard, resume and overwrite are about a folder of results: give out (--out).")
    if resume and overwrite:
        raise ValueError("resume and overwrite are both given: go on with what is in the folder, or start afresh.")
    devices = tuple(jax.local_devices() if devices is None else devices)
    boxes = Boxes.of(settings.shape, chunk, 1 if shard is None else shard[1])
    description = _describe(quantity, settings, boxes, devices)
    columns = {name: settings.values[name] for name in description.columns}
    grid, rows = (columns, {}) if settings.layout == "grid" else ({}, columns)
    store: Store
    if out is None:
        store = Memory(boxes, {name: np.zeros(settings.shape, kind) for name, kind in description.stored.items()})
    else:
        store = Folder.begin(pathlib.Path(out), description, grid, shard, resume=resume, overwrite=overwrite)
        boxes = store.boxes  # those of the folder, where the sweep goes on
    parts = {i: boxes.part(i) for i in store.held}
    with progress(quantity.name, sum(part.stop - part.start for part in parts.values()), wanted=show_progress) as show:
        done = 0

        def advance(count: int) -> None:
            """Adds finished entries to the progress bar."""
            nonlocal done
            done += count
            show(done)

        if settings.size >= 1000:  # fewer take too little time for a message
            show(0, "compiling")
        # An interrupted sweep goes on: it skips chunks that the store holds intact, and computes damaged ones again.
        # Each chunk is on disk before the next one begins.
        for i, part in parts.items():
            if store.holds(i):
                advance(part.stop - part.start)
                continue
            results = compute(quantity, settings, devices, memory, part, advance)
            store.write(i, results | {name: values[part] for name, values in rows.items()})
    return Sweep(**vars(description) | {"boxes": boxes}, grid=grid, store=store)


def _describe(quantity: Quantity, settings: Settings, boxes: Boxes, devices: tuple[Any, ...]) -> Description:
    """Returns the description that the store keeps with the results."""
    from jaxacct import __version__

    return Description(
        quantity=quantity.name,
        mode=quantity.mode,
        relation=quantity.relation,
        tolerance=quantity.tolerance,
        arithmetic=quantity.arithmetic,
        mechanisms=tuple(mechanism.__name__ for mechanism in settings.mechanisms),
        layout=settings.layout,
        constants=settings.constants,
        columns=tuple(settings.axes),
        boxes=boxes,
        digest=settings.digest(),
        versions={"platform": devices[0].platform, "jaxacct": __version__, "jax": jax.__version__},
    )
