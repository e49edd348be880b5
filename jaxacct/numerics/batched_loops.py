"""Batches for ``jax.vmap``: stacked pytrees, entries run one by one, and loops that cost the sum of the lanes' work.

In reading order:

- :func:`stack` and :func:`padded_rows`,
- :func:`one_by_one`, which runs a batch's entries one after the other on a CPU,
- queues for loops whose lanes take different numbers of steps (:func:`while_loop`, :func:`map_rows`,
  :func:`where_needed`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from jaxacct.numerics.arithmetic import FLOAT32, arithmetic, platform
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import is_concrete
from jaxacct.numerics.programs import by_platform, compiled

Tree = TypeVar("Tree")
Result = TypeVar("Result")


def stack(*trees: Tree) -> Tree:
    """Returns pytrees of equal structure and shapes as one, with a new leading axis.

    >>> stack({"a": 1.0}, {"a": 2.0})["a"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def padded_rows(values: Any, size: int) -> list[Any]:
    """Returns numbers (n,) in rows of one size, the last number repeated; traced ones, of a known number, in one row.

    >>> [row.tolist() for row in padded_rows([1.0, 2.0, 3.0], 2)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    if isinstance(values, jax.core.Tracer):
        return [values]
    values = np.asarray(values, np.float64)
    return list(np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size))


def one_by_one(
    function: Callable[..., Result], *static: Any, settled: Callable[..., Any] | None = None, result: Any = None
) -> Callable[..., Result]:
    """Returns ``function`` of ``static`` and more, whose batches a CPU works off one entry after the other.

    Other devices work them off side by side. On a CPU the arrays of an entry so stay in the cache, its loops end when
    it is done and not when the slowest is, and only the branch that it takes is run. Batches may be traced after a
    scope is left: a function that needs one enters it.

    Args:
        function: defined in a module, not in a function: a batch outside of any trace is a program of its own.
        static: hashable.
        settled: function of the further arguments that tells whether the first of them is the result already. It is
            called for batches outside of any trace; where it holds for all entries, nothing is run or compiled.
        result: the result's shapes and types, if they are known. Then no entry has to be traced to find them out.
    """
    # JAX may trace a batch after the scope is left, so this remembers the type of numbers.
    call = functools.partial(function, *static)
    wide = jax.dtypes.canonicalize_dtype(float) == jnp.float64  # here, and where a batch is traced later

    def alone(*args: Any) -> Any:
        with jax.enable_x64(wide):
            return by_platform(call, *args, result=result)

    single: Any = jax.custom_batching.custom_vmap(alone)

    @single.def_vmap
    def batch(size: int, is_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        which, concrete = tuple(jax.tree.leaves(is_batched)), is_concrete(args)
        if settled is not None and concrete and np.all(np.asarray(settled(*args))):
            return args[0], is_batched[0]
        with jax.enable_x64(wide):
            if concrete and platform() == "cpu":
                # From 4,096 entries on a program is compiled as JAX does by default: cheap code generation takes a
                # third of the time, and makes entries up to three times slower. Speed only.
                results = (_run_many if size >= 4096 else _run_few)(function, static, which, args)
            else:
                results = (_by_platform if concrete else _side_by_side)(function, static, which, args)
        return results, jax.tree.map(lambda _: True, results)

    # A program that is traced for float32 is part of one of these programs already.
    return lambda *args: call(*args) if arithmetic() == FLOAT32 else single(*args)


def _side_by_side(function: Callable[..., Any], static: tuple[Any, ...], which: tuple[bool, ...], args: Any) -> Any:
    """Returns a batch's results: entry by entry on a CPU, and in blocks on other devices."""
    leaves, structure = jax.tree.flatten(args)
    size = next(leaf.shape[0] for leaf, is_batched in zip(leaves, which, strict=True) if is_batched)
    is_batched = jax.tree.unflatten(structure, which)
    at_once = functools.partial(in_blocks, functools.partial(function, *static), size, is_batched)
    return by_platform(lambda *args: _map(function, static, which, args), *args, at_once=at_once)


_by_platform = jax.jit(_side_by_side, static_argnames=("function", "static", "which"))
"""Compiled :func:`_side_by_side`, for batches outside of any trace on devices other than CPUs."""


def _map(function: Callable[..., Any], static: tuple[Any, ...], which: tuple[bool, ...], args: Any) -> Any:
    leaves, structure = jax.tree.flatten(args)

    def entry(batched: list[Any]) -> Any:
        own = iter(batched)
        every = [next(own) if is_batched else leaf for leaf, is_batched in zip(leaves, which, strict=True)]
        return nested(*jax.tree.unflatten(structure, every))

    nested: Any = jax.custom_batching.custom_vmap(functools.partial(function, *static))

    @nested.def_vmap
    def batch(size: int, is_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        results = _map(function, static, tuple(jax.tree.leaves(is_batched)), args)
        return results, jax.tree.map(lambda _: True, results)

    # One entry at a time: each ends with its own loops.
    return jax.lax.map(entry, [leaf for leaf, is_batched in zip(leaves, which, strict=True) if is_batched])


_run_few = compiled(static=("function", "static", "which"))(_map)
"""Program of a small batch, compiled fast."""

_run_many = compiled(static=("function", "static", "which"), by=By.XLA)(_map)
"""Program of a large batch, compiled as JAX does by default."""


# ----------------------------------------------------------------------------------------------------
# Loops whose batches cost the sum of their lanes' work, not their number times the longest
#
# Under ``jax.vmap`` a loop of ``jax.lax`` goes on for every lane until the last one is done, and ``jax.lax.cond`` takes
# both branches. Here a batch is a queue. A loop has a fixed number of slots; a lane that is done leaves its slot to the
# next in the queue. A branch that only some lanes need is run for these, gathered into dense blocks. Without a batch,
# each function is that of ``jax.lax``; nested batches are one queue.
#
# Functions given to these loops must take all that differs between lanes as arguments: values that they close over are
# not batched.
# ----------------------------------------------------------------------------------------------------

LANES = 32768
"""Most lanes of a block. It bounds the memory; a 64th of it still fills a GPU. Speed and memory only."""

FEWEST, SHARE = 16, 8
"""Fewest slots of a queue, and lanes for each slot. More slots fill a device better, but the last lanes to be done keep
all of them busy, at most for the longest lane's steps. Chosen by measuring; speed only."""

OF_QUEUES = 4
"""Lanes for each slot of a queue whose steps are queues themselves. Speed only."""


def while_loop(
    condition: Callable[[Tree, Any], Array],
    step: Callable[[Tree, Any], Tree],
    state: Tree,
    arguments: Any,
    longest_first: Array | int = 0,
    share: int | None = None,
) -> Tree:
    """Returns ``state`` after ``step(state, arguments)`` for as long as ``condition(state, arguments)`` holds.

    Args:
        condition: function of one lane. For a condition on a single number that is a constant at first, XLA would look
            for a count of steps in all of a step, and often.
        step: function of one lane, too.
        state: pytree of arrays.
        arguments: pytree of arrays, the same at every step.
        longest_first (): a larger number puts a lane earlier in the queue: the steps that it may take, if known.
        share: lanes for each slot, SHARE by default. OF_QUEUES where a step is made of loops that are queues.
    """

    def alone(state: Tree, arguments: Any, _: Any) -> Tree:
        return jax.lax.while_loop(
            lambda state: condition(state, arguments), lambda state: step(state, arguments), state
        )

    together = functools.partial(_queue_lanes, condition, step, share or SHARE)
    return _in_lanes(alone, together)(state, arguments, jnp.asarray(longest_first))


def map_rows(count: Array, entry: Callable[[Array, Any, Any], Tree], rows: Any, arguments: Any) -> Tree:
    """Returns ``entry(i, row i of rows, arguments)`` for rows i below ``count``, stacked; for the others it is zero."""

    def alone(count: Array, rows: Any, arguments: Any) -> Tree:
        def put(i: Array, results: Tree) -> Tree:
            row = jax.tree.map(lambda leaf: _take_row(leaf, i), rows)
            return jax.tree.map(lambda old, new: _with_row(old, i, new), results, entry(i, row, arguments))

        row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
        # The state is the stack of results; rows from ``count`` on stay zero.
        return jax.lax.fori_loop(0, count, put, _nothing(entry, (len(jax.tree.leaves(rows)[0]),), row, arguments))

    return _in_lanes(alone, functools.partial(_map_blocks, entry))(jnp.asarray(count, jnp.int32), rows, arguments)


def _take_row(leaf: Array, i: Array) -> Array:
    """Returns row ``i``, which is at least 0: so the index needs no correction for negative ones."""
    row: Array = jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False, allow_negative_indices=False)
    return row


def _with_row(leaf: Array, i: Array, row: Array) -> Array:
    """Returns an array with another row ``i``."""
    at = (i, *(jnp.int32(0) for _ in row.shape))
    return jax.lax.dynamic_update_slice(leaf, row[None], at, allow_negative_indices=False)


def _nothing(entry: Callable[..., Tree], shape: tuple[int, ...], row: Any, arguments: Any) -> Tree:
    """Returns zeros in the shapes of so many entries."""
    shapes = jax.eval_shape(entry, jnp.int32(0), row, arguments)
    return jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), shapes)


def where_needed(is_needed: Array, function: Callable[..., Tree], otherwise: Tree, *arguments: Any, width: int) -> Tree:
    """Returns ``function(*arguments)`` where it is needed, and ``otherwise`` elsewhere.

    ``width`` lanes that need it are worked on at a time.
    """

    def alone(is_needed: Array, otherwise: Tree, arguments: tuple[Any, ...]) -> Tree:
        return jax.lax.cond(is_needed, lambda: function(*arguments), lambda: otherwise)

    return _in_lanes(alone, functools.partial(_gather_needed, function, width))(is_needed, otherwise, arguments)


def of_all_lanes(count: Array) -> Array:
    """Returns the largest of the lanes' counts, the same for all: a loop up to it is one loop of all lanes."""
    largest = custom_vmap(lambda count: count)
    largest.def_vmap(lambda size, is_batched, count: (jnp.max(count), False))
    return largest(count)


def _in_lanes(alone: Callable[..., Any], together: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``alone(*args)``, for which a batch is ``together(size, is_batched, *args)``."""
    single: Any = custom_vmap(alone)
    wide = jax.dtypes.canonicalize_dtype(float) == jnp.float64

    @single.def_vmap
    def batch(size: int, is_batched: Any, *args: Any) -> tuple[Any, Any]:
        with jax.enable_x64(wide):  # the scope may have been left since
            results = _merging(together, size, tuple(is_batched))(*args)
        return results, jax.tree.map(lambda _: True, results)

    return single


def in_lanes(function: Callable[..., Tree], most: int | None = None) -> Callable[..., Tree]:
    """Returns a function of arrays whose batches are :func:`in_blocks`, traced in the scope that it was made in."""
    return _in_lanes(function, functools.partial(in_blocks, function, most=most))


def in_blocks(function: Callable[..., Tree], size: int, is_batched: Any, *args: Any, most: int | None = None) -> Tree:
    """Returns ``function(*args)`` for each of so many lanes: at most ``most`` side by side, so memory is bounded.

    LANES are the most by default.

    ``is_batched`` says for each leaf of each argument whether its leading axis is that of the lanes.
    """
    results: Tree = _merging(functools.partial(_block_by_block, function, most or LANES), size, is_batched)(*args)
    return results


def _block_by_block(function: Callable[..., Tree], most: int, size: int, is_batched: Any, *args: Any) -> Tree:
    lanes = _Lanes(args, tuple(is_batched))
    side_by_side = jax.vmap(function, in_axes=lanes.axes)
    if size <= most:
        results: Tree = side_by_side(*args)
        return results
    blocks = -(-size // most)
    block = -(-size // blocks)
    # The last lane is repeated where the last block is not full.
    every = jnp.minimum(jnp.arange(blocks * block), size - 1).reshape(blocks, block)
    results = jax.lax.map(lambda some: side_by_side(*lanes.at(some)), every)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:size], results)


def _merging(together: Callable[..., Any], size: int, is_batched: Any) -> Callable[..., Any]:
    """Returns a batch of lanes as a function whose batches are one larger batch."""
    lanes: Any = custom_vmap(lambda *args: together(size, is_batched, *args))

    @lanes.def_vmap
    def batch(outer: int, moves: Any, *args: Any) -> tuple[Any, Any]:
        def merge(leaf: Array, of_outer: bool, of_lanes: bool) -> Array:
            if not (of_outer or of_lanes):
                return leaf
            inner = leaf.shape[of_outer + of_lanes :]
            leaf = leaf if of_outer else leaf[None]
            leaf = leaf if of_lanes else leaf[:, None]
            return jnp.broadcast_to(leaf, (outer, size, *inner)).reshape(outer * size, *inner)

        moves = tuple(moves)
        both = jax.tree.map(lambda a, b: a or b, moves, is_batched)
        results = _merging(together, outer * size, both)(*jax.tree.map(merge, args, moves, is_batched))
        results = jax.tree.map(lambda leaf: leaf.reshape(outer, size, *leaf.shape[1:]), results)
        return results, jax.tree.map(lambda _: True, results)

    return lanes


def slots_for(size: int, share: int) -> int:
    """Returns the number of lanes, out of so many, that are worked on side by side."""
    return min(size, max(FEWEST, size // share))


def _every(size: int, tree: Tree, is_batched: Any) -> Tree:
    """Returns a pytree with an axis for the lanes at every leaf."""
    return jax.tree.map(
        lambda leaf, batched: leaf if batched else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), tree, is_batched
    )


_reporters: list[Callable[[str, int, int], None]] = []
"""Functions that :func:`count_work` batches report to."""


@contextlib.contextmanager
def count_work(tell: Callable[[str, int, int], None]) -> Iterator[None]:
    """While it lasts, batches are traced so that each run reports the amount of its work.

    The report is ``tell(name of the step, steps done for all slots, steps that lanes needed)``.
    """
    _reporters.append(tell)
    try:
        yield
    finally:
        _reporters.remove(tell)


def _tell_reporters(function: Callable[..., Any], done: Array, own: Array) -> None:
    for tell in _reporters:
        jax.debug.callback(lambda done, own, tell=tell: tell(function.__name__, int(done), int(own)), done, own)


class _Lanes:
    """Arguments of the lanes; those that all lanes share are kept once."""

    def __init__(self, arguments: Any, is_batched: Any) -> None:
        self.arguments, self.is_batched = arguments, is_batched
        self.axes = jax.tree.map(lambda batched: 0 if batched else None, is_batched)

    def at(self, lanes: Array | int) -> Any:
        """Returns the arguments of some lanes."""
        return jax.tree.map(lambda leaf, batched: leaf[lanes] if batched else leaf, self.arguments, self.is_batched)

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of (state, arguments) for several lanes."""
        return jax.vmap(function, in_axes=(0, self.axes))


def _queue_lanes(
    condition: Callable[..., Array],
    step: Callable[..., Tree],
    share: int,
    size: int,
    is_batched: Any,
    state: Tree,
    arguments: Any,
    work: Array,
) -> Tree:
    """Returns the states of all lanes after their loops."""
    # A queue of lanes and a fixed number of slots. The carry is, for each slot, its lane, whether that is still going,
    # its state and its arguments; the number of lanes that were begun; the final states so far; and a count of the
    # work. Each step advances every slot, stores the lanes that are done, and gives their slots to the next lanes.
    lanes, state = _Lanes(arguments, is_batched[1]), _every(size, state, is_batched[0])
    goes_on, advanced = lanes.each(condition), lanes.each(step)
    begins, slots = goes_on(state, arguments), slots_for(size, share)
    # Lanes that take no step come last, and are never begun.
    hint = jnp.broadcast_to(work, (size,)).astype(jnp.float32)
    queue = jnp.argsort(jnp.where(begins, -hint, jnp.inf)).astype(jnp.int32)
    last = jnp.sum(begins, dtype=jnp.int32)

    def enter(places: Array) -> tuple[Array, Array]:
        """Returns the lanes at places of the queue, and which of the places have one."""
        return queue[jnp.minimum(places, size - 1)], places < last

    def go(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        lane, busy, begun, current, own, final, worked = carry
        current, worked = advanced(current, own), (worked[0] + slots, worked[1] + jnp.sum(busy, dtype=jnp.int32))
        done = busy & ~goes_on(current, own)
        at = jnp.where(done, lane, size)
        final = jax.tree.map(lambda all_, new: all_.at[at].set(new, mode="drop"), final, current)
        following, there = enter(begun + jnp.cumsum(done, dtype=jnp.int32) - 1)
        enters = done & there
        lane, busy = jnp.where(enters, following, lane), busy & (enters | ~done)

        def take(new: Array, old: Array) -> Array:
            return jnp.where(enters.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        current = jax.tree.map(lambda all_, old: take(all_[following], old), state, current)
        own = jax.tree.map(
            lambda new, old, batched: take(new, old) if batched else old, lanes.at(following), own, lanes.is_batched
        )
        return lane, busy, begun + jnp.sum(done, dtype=jnp.int32), current, own, final, worked

    lane, busy = enter(jnp.arange(slots, dtype=jnp.int32))
    first = jax.tree.map(lambda leaf: leaf[lane], state)
    carry = lane, busy, jnp.int32(slots), first, lanes.at(lane), state, (jnp.int32(0), jnp.int32(0))
    final: Tree
    # ``begun`` counts a place for each slot and one more for each lane that is done, so the loop ends when as many are
    # done as there are. The condition does not look at the busy slots alone (:func:`while_loop` says why).
    *_, final, worked = jax.lax.while_loop(lambda carry: carry[2] < slots + last, go, carry)
    _tell_reporters(step, *worked)
    return final


def _map_blocks(
    entry: Callable[..., Tree], size: int, is_batched: Any, count: Array, rows: Any, arguments: Any
) -> Tree:
    """Returns the rows of all lanes, which form one list that is worked off a block at a time."""
    lanes, width = _Lanes(arguments, is_batched[2]), slots_for(size, SHARE)
    count, rows = _every(size, count, is_batched[0]), _every(size, rows, is_batched[1])
    most = jax.tree.leaves(rows)[0].shape[1]
    ends = jnp.cumsum(count, dtype=jnp.int32)
    entries = jax.vmap(entry, in_axes=(0, 0, lanes.axes))

    # The state is the number of entries begun, and the results; each step does a block of entries, of whichever lanes.
    def go(state: tuple[Array, Tree]) -> tuple[Array, Tree]:
        begun, results = state
        item = begun + jnp.arange(width, dtype=jnp.int32)
        lane = jnp.minimum(jnp.searchsorted(ends, item, side="right"), size - 1).astype(jnp.int32)
        index = jnp.clip(item - (ends[lane] - count[lane]), 0, most - 1)
        new = entries(index, jax.tree.map(lambda leaf: leaf[lane, index], rows), lanes.at(lane))
        at = jnp.where(item < ends[-1], lane, size)
        return begun + width, jax.tree.map(lambda old, leaf: old.at[at, index].set(leaf, mode="drop"), results, new)

    nothing = _nothing(entry, (size, most), jax.tree.map(lambda leaf: leaf[0, 0], rows), lanes.at(0))
    results: Tree
    begun, results = jax.lax.while_loop(lambda state: state[0] < ends[-1], go, (jnp.int32(0), nothing))
    _tell_reporters(entry, begun, ends[-1])
    return results


def _gather_needed(
    function: Callable[..., Tree],
    width: int,
    size: int,
    is_batched: Any,
    is_needed: Array,
    otherwise: Tree,
    arguments: Any,
) -> Tree:
    """Returns the function's results for the lanes that need them, and ``otherwise`` for the others."""
    lanes, width = _Lanes(arguments, is_batched[2]), min(width, size)
    is_needed = _every(size, is_needed, is_batched[0])
    queue = jnp.argsort(~is_needed).astype(jnp.int32)
    last = jnp.sum(is_needed, dtype=jnp.int32)
    compute = jax.vmap(function, in_axes=lanes.axes, axis_size=width)

    # The state is the number of lanes begun, and the results; each step does a block of those that need the function.
    def go(state: tuple[Array, Tree]) -> tuple[Array, Tree]:
        begun, results = state
        places = begun + jnp.arange(width, dtype=jnp.int32)
        # A block that is not full does the last lane again.
        lane = queue[jnp.minimum(places, last - 1)]
        new = compute(*lanes.at(lane))
        return begun + width, jax.tree.map(lambda old, row: old.at[lane].set(row), results, new)

    start = jnp.int32(0), _every(size, otherwise, is_batched[1])
    results: Tree = jax.lax.while_loop(lambda state: state[0] < last, go, start)[1]
    return results
