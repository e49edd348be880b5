"""From a quantity and settings to results, chunk by chunk."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass
from typing import Any

import jax

from jaxacct import validation
from jaxacct.processes import check_not_forked
from jaxacct.progress import progress
from jaxacct.sweep.boxes import Boxes
from jaxacct.sweep.compute import computed, empty
from jaxacct.sweep.description import Description
from jaxacct.sweep.folder import Folder, Shard
from jaxacct.sweep.quantities import Quantity
from jaxacct.sweep.result import Sweep
from jaxacct.sweep.settings import Settings
from jaxacct.sweep.store import Memory, Store

MANY = 1000
"""Settings from which on a sweep says that it compiles: fewer are done before one has read it. Words only."""


@dataclass(frozen=True)
class Options:
    """How a sweep is run; nothing here changes a result. As of :func:`jaxacct.sweep.epsilon`."""

    out: str | os.PathLike[str] | None = None
    shard: Shard | None = None
    resume: bool = False
    overwrite: bool = False
    chunk: int | None = None
    memory: int = 2**30
    devices: Any = None
    show_progress: bool = True

    def check(self) -> None:
        """Raises where options are out of range, or do not go together."""
        validation.check_positive(self.memory, "memory")
        if self.out is None and (self.shard is not None or self.resume or self.overwrite):
            raise ValueError("shard, resume and overwrite are about a folder of results: give out (--out).")
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite are both given: go on with what is in the folder, or start afresh.")


def sweep(quantity: Quantity, settings: Settings, options: Options) -> Sweep:
    """Returns the results."""
    check_not_forked()
    quantity.check(settings)
    options.check()
    devices = tuple(jax.local_devices() if options.devices is None else options.devices)
    boxes = Boxes.of(settings.shape, options.chunk, 1 if options.shard is None else options.shard[1])
    description = _described(quantity, settings, boxes, devices)
    grid = {name: settings.values[name] for name in description.columns if settings.layout == "grid"}
    rows = {name: settings.values[name] for name in description.columns if settings.layout == "rows"}
    store: Store
    if options.out is None:
        whole = {name: values.reshape(settings.shape) for name, values in empty(quantity, settings.size).items()}
        store = Memory(boxes, whole | rows)
    else:
        how = {"resume": options.resume, "overwrite": options.overwrite}
        store = Folder.begun(pathlib.Path(options.out), description, grid, options.shard, **how)
        boxes = store.boxes
    sizes = {i: (boxes.part(i).stop - boxes.part(i).start) for i in store.held}
    with progress(quantity.name, sum(sizes.values()), wanted=options.show_progress) as show:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            show(done)

        if settings.size >= MANY:
            show(0, "compiling")
        for i, size in sizes.items():
            if store.holds(i):  # and what is damaged is done again
                advance(size)
                continue
            part = boxes.part(i)
            results = computed(quantity, settings, devices, options.memory, part, advance)
            store.write(i, results if options.out is None else results | {n: v[part] for n, v in rows.items()})
    return Sweep(**vars(description) | {"boxes": boxes}, grid=grid, store=store)


def _described(quantity: Quantity, settings: Settings, boxes: Boxes, devices: tuple[Any, ...]) -> Description:
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
