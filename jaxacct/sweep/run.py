"""From a quantity and settings to results, chunk by chunk, with or without a folder that keeps the finished ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from jaxacct import validation
from jaxacct.processes import check_not_forked
from jaxacct.sweep.checkpoint import Checkpoint
from jaxacct.sweep.compute import computed, empty
from jaxacct.sweep.quantities import Quantity
from jaxacct.sweep.result import Sweep
from jaxacct.sweep.settings import Settings


@dataclass(frozen=True)
class Options:
    """How a sweep is run; nothing here changes a result. As of :func:`jaxacct.sweep.epsilon`."""

    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    chunk: int = 8192
    memory: int = 2**30
    devices: Any = None
    show_progress: bool = True


def sweep(quantity: Quantity, settings: Settings, options: Options) -> Sweep:
    """Returns the results."""
    check_not_forked()
    quantity.check(settings)
    validation.check_count(options.chunk, "chunk", "a number of entries")
    validation.check_positive(options.memory, "memory")
    devices = tuple(jax.local_devices() if options.devices is None else options.devices)
    start = time.monotonic()
    size, chunk, store = settings.size, options.chunk, None
    if options.checkpoint is not None:
        store = Checkpoint(options.checkpoint, _description(quantity, settings, devices))
        chunk = store.begin(size, chunk, resume=options.resume)
    whole = empty(quantity, size)
    with _progress(quantity.name, size, wanted=options.show_progress) as advance:
        for i, first in enumerate(range(0, size, chunk)):
            part = slice(first, min(first + chunk, size))
            results = None if store is None else store.read(i, quantity.arrays, part.stop - part.start)
            if results is None:  # what is damaged is done again
                results = computed(quantity, settings, devices, options.memory, part, advance)
                if store is not None:
                    store.write(i, results)
            else:
                advance(part.stop - part.start)
            for name, values in results.items():
                whole[name][part] = values
    return Sweep(
        arrays={name: values.reshape(settings.shape) for name, values in whole.items()},
        quantity=quantity.name,
        mode=quantity.mode,
        relation=quantity.relation,
        tolerance=quantity.tolerance,
        mechanisms=tuple(mechanism.__name__ for mechanism in settings.mechanisms),
        layout=settings.layout,
        axes=settings.axes,
        constants=settings.constants,
        seconds=time.monotonic() - start,
    )


@contextlib.contextmanager
def _progress(name: str, total: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many more entries are done; shows them where standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as progress:
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)


def _description(quantity: Quantity, settings: Settings, devices: tuple[Any, ...]) -> dict[str, Any]:
    """Returns what must be equal for results to be the same to the last bit."""
    from jaxacct import __version__

    return {
        "quantity": quantity.name,
        "mode": quantity.mode,
        "relation": quantity.relation,
        "tolerance": quantity.tolerance,
        "mechanisms": [mechanism.__name__ for mechanism in settings.mechanisms],
        "layout": settings.layout,
        "axes": {name: list(value.shape) for name, value in settings.values.items()},
        "values": settings.digest(),
        "platform": devices[0].platform,
        "jaxacct": __version__,
        "jax": jax.__version__,
    }
