"""The compiled part: one program of one shape for all entries, a share of the entries on each device.

Each device runs the same program on a block of entries, and no entry sees another: which devices, processes and chunks
there are changes nothing in any result, not in the last bit. The last block of a chunk is filled up with copies.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxacct.float_pairs.interpret import as_pairs
from jaxacct.precision import scope
from jaxacct.sweep.quantities import Quantity

BLOCKS = (4096, 1024, 256, 64, 16, 4, 1)
"""Entries of a block to choose from where a device runs them side by side: the most that its memory takes."""

ONE_BY_ONE = 128
"""Entries of a block on a CPU, which works them off one after the other, in the memory of one: a tenth of a second."""

AHEAD = 4
"""Blocks handed to each device before the first is read back, so that none waits for the others."""


class Program(NamedTuple):
    """A compiled program for ``block`` entries on each device, and how its arguments are laid out."""

    run: Callable[[dict[str, Any]], dict[str, Any]]
    sharding: NamedSharding
    block: int
    width: int


@functools.lru_cache(maxsize=32)
def program_of(
    quantity: Quantity, mechanism: type, names: tuple[str, ...], devices: tuple[Any, ...], memory: int
) -> Program:
    """Returns the program whose temporary arrays take at most ``memory`` bytes on a device."""
    one_by_one = devices[0].platform == "cpu"
    if one_by_one and quantity.arithmetic == "pair":
        devices = devices[:1]
    mesh = Mesh(np.array(devices), ("entries",))
    sharding = NamedSharding(mesh, PartitionSpec("entries"))
    if one_by_one and quantity.arithmetic == "pair":
        # XLA's CPU backend takes many minutes to compile the whole: operation by operation, the entries side by side.
        each = functools.partial(replace(quantity, arithmetic="auto").compiled, mechanism)
        return Program(functools.partial(_in_pairs, each), sharding, ONE_BY_ONE, ONE_BY_ONE)
    # A CPU's threads are better spent on whole entries: there are as many devices as one cares to make.
    options: dict[str, str | bool] | None = {"xla_cpu_multi_thread_eigen": False} if one_by_one else None
    each = jax.shard_map(
        jax.vmap(functools.partial(quantity.compiled, mechanism)),
        mesh=mesh, in_specs=PartitionSpec("entries"), out_specs=PartitionSpec("entries"),
        check_vma=False,  # nothing is exchanged between devices
    )  # fmt: skip
    needed = 0
    for block in (ONE_BY_ONE,) if one_by_one else BLOCKS:
        width = block * len(devices)
        with scope():
            entry = jax.ShapeDtypeStruct((width,), np.float64, sharding=sharding)
            compiled = jax.jit(each).lower(dict.fromkeys(names, entry)).compile(options)
        needed = _temporary(compiled)
        if needed <= memory:
            return Program(compiled, sharding, block, width)
    raise ValueError(
        f"memory = {memory} bytes: the smallest program takes {needed} bytes of a device's memory: allow that much."
    )


def _in_pairs(each: Callable[[dict[str, Any]], dict[str, Any]], columns: dict[str, Any]) -> dict[str, Any]:
    def together(*values: Any) -> dict[str, Any]:
        return jax.vmap(each)(dict(zip(columns, values, strict=True)))

    found: dict[str, Any] = as_pairs(together, stepwise=True)(*columns.values())
    return found


def _temporary(compiled: Any) -> int:
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)


def run(program: Program, columns: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the results of consecutive entries, block by block."""
    size = len(next(iter(columns.values())))
    pending: deque[tuple[int, dict[str, Any]]] = deque()
    for start in range(0, size, program.width):
        count = min(program.width, size - start)
        filled = {
            name: np.pad(column[start : start + count], (0, program.width - count), mode="edge")
            for name, column in columns.items()
        }
        with scope():
            pending.append((count, program.run(jax.device_put(filled, program.sharding))))
        if len(pending) > AHEAD:
            yield _read(*pending.popleft())
    while pending:
        yield _read(*pending.popleft())


def _read(count: int, results: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(result)[:count] for name, result in results.items()}
