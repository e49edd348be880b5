"""From a quantity and settings to results, with or without a checkpoint."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxacct import validation
from jaxacct.processes import check_not_forked
from jaxacct.sweep import hosts, progress, shared
from jaxacct.sweep.checkpoint import Checkpoint
from jaxacct.sweep.compute import Arrays, computed, empty, parts
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
    patience: float = 60.0
    show_progress: bool = True


def sweep(
    quantity: Quantity, settings: Settings, options: Options, when_agreed: Callable[[], None] = lambda: None
) -> Sweep:
    """Returns the results; ``when_agreed`` is called when the processes have agreed on who does what."""
    check_not_forked()
    quantity.check(settings)
    validation.check_whole(options.chunk, "chunk", 1, 2**31 - 1, "a number of entries")
    validation.check_positive(options.memory, "memory")
    validation.check_positive(options.patience, "patience")
    _, count = hosts.index_and_count()
    if count > 1 and options.checkpoint is None:
        raise ValueError(
            f"checkpoint = None with {count} processes: name a folder that all of them see; results meet there."
        )
    devices = tuple(jax.local_devices() if options.devices is None else options.devices)
    compute = functools.partial(computed, quantity, settings, devices, options.memory)
    start = time.monotonic()
    if options.checkpoint is None:
        with progress.shown(quantity.name, settings.size, wanted=options.show_progress) as tell:
            whole = _alone(quantity, settings.size, options.chunk, compute, tell)
    else:
        store = Checkpoint(options.checkpoint, _description(quantity, settings, devices))
        plan = shared.plan(quantity, settings.size, store, options.chunk, resume=options.resume)
        when_agreed()
        with progress.shown(quantity.name, shared.share(settings.size, plan), wanted=options.show_progress) as tell:
            whole = shared.shared(quantity, settings.size, store, plan, options.patience, compute, tell)
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


def _alone(quantity: Quantity, size: int, chunk: int, compute: shared.Compute, tell: Callable[[int], None]) -> Arrays:
    whole = empty(quantity, size)
    for part in parts(size, chunk):
        for name, values in compute(part, tell).items():
            whole[name][part] = values
    return whole


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
