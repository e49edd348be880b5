"""What is called: sweeps for epsilon, for delta, and for the least noise."""

from __future__ import annotations

from typing import Any

from jaxacct.arithmetic import Chosen
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.sweep.quantities import quantity_of
from jaxacct.sweep.result import Sweep
from jaxacct.sweep.run import Options, sweep
from jaxacct.sweep.settings import Settings


def epsilon(
    settings: Settings,
    *,
    mode: str = "certified",
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    arithmetic: Chosen = "auto",
    **options: Any,
) -> Sweep:
    """Returns bounds on epsilon for every entry of a grid or table.

    Args:
        settings: of :func:`grid` or :func:`rows`, with the mechanism's fields, ``steps`` and ``delta``.
        mode: "certified": the exact accountant, then :func:`jaxacct.prv.epsilon` for the entries that this leaves open,
            one after the other, about twenty milliseconds each; or "saddlepoint": without the second.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: relative gap that the mesh aims at.
        arithmetic: as of :func:`jaxacct.epsilon`. On a CPU "pair" is worked off operation by operation, slowly.
        **options: how it is run; none changes a result.

            * ``out``: folder of this sweep alone, a Zarr store, which gets every chunk once it is finished; without
              it results are in memory. With it memory does not grow with the settings, and a run that is interrupted
              goes on where it stopped, on any number of devices.
            * ``resume`` (False): whether to go on from what ``out`` holds; otherwise a folder in use is refused.
            * ``overwrite`` (False): whether to delete the sweep that ``out`` holds.
            * ``shard``: (i, n), to compute the i-th of n parts alone, from 0; ``out`` is the part's own folder, and
              :func:`merge` puts the parts together. In a process group ``(jax.process_index(), jax.process_count())``.
            * ``chunk``: entries of a chunk, at most (32,768, more where that were more than some 4,000 chunks, fewer
              where shards would get fewer than eight): fewer lose less where a run is interrupted.
            * ``memory`` (2**30): bytes that a device's program may take: more entries side by side on a GPU.
            * ``devices`` (all of this process): which to use. A CPU is one device, and uses one core, unless
              ``jax.config.update("jax_num_cpu_devices", n)`` was called before anything was computed.
            * ``show_progress`` (True): whether to show a bar on standard error, where that is a terminal.

    Returns:
        :class:`Sweep`: arrays of the shape of the grid, or (n,) of the rows. No entry is dropped: those that have not
        converged are flagged.

    Formal guarantee: that of :func:`jaxacct.epsilon`, entry by entry: ``lower <= epsilon <= upper``, rounding included;
    inf where nothing is known. Chunks, devices, shards and interruptions change no bit of a result (on one kind of
    device and one version).

    Raises:
        ValueError: settings out of range or not those of the mechanism, an option out of range, an ``out`` that is
            something else or another sweep's.
        OSError: ``out`` cannot be written; what is finished is kept.

    Source: :func:`jaxacct.saddlepoint.epsilon` and :func:`jaxacct.prv.epsilon`.

    >>> from jaxacct.sweep import grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=[0.01, 0.02], steps=10_000, delta=1e-5)
    >>> found = epsilon(settings, relation="remove")
    >>> found.upper.round(4).tolist(), bool(found.converged.all())
    ([[6.1877, 14.2367], [2.1627, 4.7572]], True)
    """
    return sweep(quantity_of("epsilon", mode, relation, tolerance, arithmetic), settings, Options(**options))


def delta(
    settings: Settings,
    *,
    mode: str = "certified",
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    arithmetic: Chosen = "auto",
    **options: Any,
) -> Sweep:
    """Returns bounds on delta for every entry of a grid or table.

    Args, guarantee, errors and source are those of :func:`epsilon`, with ``epsilon`` among the settings in delta's
    place; ``**options`` likewise.

    Formal guarantee: that of :func:`jaxacct.delta`, entry by entry: ``lower <= delta <= upper``, rounding included; 1
    where nothing is known.

    >>> from jaxacct.sweep import grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=[0.01, 0.02], steps=10_000, epsilon=4.0)
    >>> found = delta(settings, relation="remove")
    >>> bool(found.upper[1, 0] < 1e-8 < found.lower[0, 0]), bool(found.converged.all())
    (True, True)
    """
    return sweep(quantity_of("delta", mode, relation, tolerance, arithmetic), settings, Options(**options))


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
    >>> found = noise_multiplier(settings, relation="remove", tolerance=1e-6)
    >>> found["noise_multiplier"].round(4).tolist(), bool(found.upper[0] <= 1.0)
    ([3.8128], True)
    """
    return sweep(quantity_of("noise_multiplier", mode, relation, tolerance), settings, Options(**options))
