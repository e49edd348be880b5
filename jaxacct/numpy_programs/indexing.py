"""Operations that move values and compute nothing: shapes, parts, and what is gathered and scattered."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Value = Any
Operation = Callable[..., Value]


def _broadcast(x: Value, shape: tuple[int, ...], new: tuple[int, ...], dtype: Any) -> Value:
    """To ``shape``, of which the operand, as ``new``, has some axes."""
    if not shape:
        return x
    found = np.empty(shape, dtype)
    found[...] = x if not new else x.reshape(new)
    return found


def _make_broadcast(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    shape, axes = tuple(map(int, params["shape"])), params["broadcast_dimensions"]
    new = [1] * len(shape)
    for axis, size in zip(axes, operands[0].shape, strict=True):
        new[axis] = size
    if tuple(new) == shape and operands[0].shape == shape:
        return partial(_reshaped, shape=shape)
    return partial(_broadcast, shape=shape, new=tuple(new) if operands[0].shape else (), dtype=operands[0].dtype)


def _reshaped(x: Value, shape: tuple[int, ...]) -> Value:
    return x.reshape(shape) if shape else x.reshape(())[()]


def _make_shape(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    return partial(_reshaped, shape=results[0].shape)


def _make_reshape(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    if params["dimensions"] is not None:
        raise NotImplementedError("a reshape that moves axes")
    return _make_shape(params, operands, results)


def _transposed(x: Value, axes: tuple[int, ...]) -> Value:
    return np.transpose(x, axes)


def _part(x: Value, where: Any) -> Value:
    return x[where]


def _make_slice(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    steps = params["strides"] or [1] * len(params["start_indices"])
    bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return partial(_part, where=tuple(slice(int(a), int(b), int(step)) for a, b, step in bounds))


def _turned(x: Value, axes: tuple[int, ...]) -> Value:
    return np.flip(x, axes)


def _joined(*values: Value, axis: int) -> Value:
    return np.concatenate(values, axis)


def _stacked(*values: Value, axis: int) -> Value:
    return np.stack(values, axis)


def _tiled(x: Value, repeats: tuple[int, ...]) -> Value:
    return np.tile(x, repeats)


def _split(x: Value, places: tuple[int, ...], axis: int) -> Value:
    return np.split(x, places, axis)


def _unstacked(x: Value, axis: int) -> Value:
    return list(np.moveaxis(x, axis, 0))


def _make_unstack(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    return partial(_unstacked, axis=int(params["axis"]))


def _make_split(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    places = tuple(itertools.accumulate(int(size) for size in params["sizes"][:-1]))
    return partial(_split, places=places, axis=int(params["axis"]))


def _counted(values: Value) -> Value:
    return values


def _make_iota(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    shape, axis = tuple(params["shape"]), params["dimension"]
    sizes = [size if i == axis else 1 for i, size in enumerate(shape)]
    counted = np.arange(shape[axis]).astype(params["dtype"]).reshape(sizes)
    return partial(_counted, np.broadcast_to(counted, shape))


def _padded(x: Value, filling: Value, ends: Any, shape: tuple[int, ...], where: Any) -> Value:
    found = np.full(shape, filling, x.dtype)
    found[where] = x
    return found[ends]


def _make_pad(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    shape, where, ends = [], [], []
    for size, (low, high, within) in zip(operands[0].shape, params["padding_config"], strict=True):
        low, high, within = int(low), int(high), int(within)
        length = size + max(size - 1, 0) * within
        shape.append(length + max(low, 0) + max(high, 0))
        where.append(slice(max(low, 0), max(low, 0) + length, within + 1))
        ends.append(slice(max(-low, 0), shape[-1] - max(-high, 0)))
    return partial(_padded, ends=tuple(ends), shape=tuple(shape), where=tuple(where))


def _starts(operand: Value, sizes: tuple[int, ...], starts: tuple[Value, ...]) -> tuple[slice, ...]:
    """Where a part lies; one that would stick out is moved inward."""
    places = (
        min(max(int(start), 0), whole - size) for start, whole, size in zip(starts, operand.shape, sizes, strict=True)
    )
    return tuple(slice(place, place + size) for place, size in zip(places, sizes, strict=True))


def _taken(operand: Value, *starts: Value, sizes: tuple[int, ...]) -> Value:
    return operand[_starts(operand, sizes, starts)]


def _put(operand: Value, update: Value, *starts: Value) -> Value:
    found = np.array(operand)
    found[_starts(operand, np.shape(update), starts)] = update
    return found[()]


class _Windows:
    """Where the windows of a gather or scatter lie: a whole number for each axis, of all windows' elements.

    ``axes`` are those of the operand that run within a window; ``batch`` those that follow an axis of the indices.
    """

    def __init__(self, start_axes: Any, batch: Any, batch_of_indices: Any, sizes: tuple[int, ...], axes: Any) -> None:
        self.start_axes, self.sizes = tuple(map(int, start_axes)), tuple(map(int, sizes))
        self.batch = tuple(zip(map(int, batch), map(int, batch_of_indices), strict=True))
        self.axes = tuple(map(int, axes))

    def places(self, operand: Value, indices: Value, *, clip: bool) -> tuple[list[Any], Value]:
        """Returns the places by axis, in the shape of (indices, window), and whether a window lies within."""
        outer = indices.shape[:-1]
        inner = len(self.axes)
        inside = np.ones(outer, bool)
        found: list[Any] = [np.zeros((1,) * (len(outer) + inner), np.int64)] * operand.ndim
        for axis, which in zip(self.start_axes, range(indices.shape[-1]), strict=True):
            start, last = indices[..., which].astype(np.int64), operand.shape[axis] - self.sizes[axis]
            inside &= (start >= 0) & (start <= last)
            start = np.clip(start, 0, last) if clip else start
            found[axis] = start.reshape(outer + (1,) * inner)
        for axis, along in self.batch:
            shape = [1] * (len(outer) + inner)
            shape[along] = outer[along]
            found[axis] = np.arange(outer[along]).reshape(shape)
        for position, axis in enumerate(self.axes):
            shape = [1] * (len(outer) + inner)
            shape[len(outer) + position] = self.sizes[axis]
            found[axis] = found[axis] + np.arange(self.sizes[axis]).reshape(shape)
        return found, inside


def _gathered(operand: Value, indices: Value, windows: _Windows, order: tuple[int, ...], mode: str, fill: Any) -> Value:
    places, inside = windows.places(operand, indices, clip=True)
    found = operand[tuple(places)]
    outer = indices.ndim - 1
    found = np.broadcast_to(found, indices.shape[:-1] + found.shape[outer:])
    if mode == "FILL_OR_DROP" and not inside.all():
        found = np.where(inside.reshape(inside.shape + (1,) * (found.ndim - outer)), found, fill)
    return np.transpose(found, order)[()]


def _make_gather(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    numbers, operand, mode = params["dimension_numbers"], operands[0], params["mode"].name
    gone = {*map(int, numbers.collapsed_slice_dims), *map(int, numbers.operand_batching_dims)}
    axes = [axis for axis in range(len(operand.shape)) if axis not in gone]
    windows = _Windows(
        numbers.start_index_map, numbers.operand_batching_dims, numbers.start_indices_batching_dims,
        params["slice_sizes"], axes,
    )  # fmt: skip
    offsets = tuple(map(int, numbers.offset_dims))
    outer = iter(range(len(results[0].shape) - len(offsets)))
    inner = iter(range(len(results[0].shape) - len(offsets), len(results[0].shape)))
    order = tuple(next(inner) if axis in offsets else next(outer) for axis in range(len(results[0].shape)))
    fill = params["fill_value"]
    if fill is None:
        kind = np.dtype(operand.dtype).kind
        if kind not in "fcb":
            fill = np.iinfo(operand.dtype).min if kind == "i" else np.iinfo(operand.dtype).max
        else:
            fill = True if kind == "b" else np.nan
    return partial(_gathered, windows=windows, order=order, mode=mode, fill=np.dtype(operand.dtype).type(fill))


def _scattered(
    operand: Value, indices: Value, updates: Value, windows: _Windows, order: Any, mode: str, add: bool
) -> Value:
    places, inside = windows.places(operand, indices, clip=mode == "CLIP")
    if not operand.size:
        return operand
    found, outer = np.array(operand), indices.ndim - 1
    moved = np.transpose(updates, order)
    full = np.broadcast_arrays(*places, np.empty(moved.shape, bool))[:-1]
    kept = np.broadcast_to(inside.reshape(inside.shape + (1,) * (moved.ndim - outer)), moved.shape)
    where, given = (..., moved) if mode == "CLIP" or inside.all() else (kept, moved[kept])
    chosen = tuple(place[where] for place in full)
    if add:
        np.add.at(found, chosen, given)
    else:
        found[chosen] = given
    return found[()]


def _make_scatter(params: dict[str, Any], operands: list[Any], results: list[Any], *, add: bool) -> Operation:
    numbers, (operand, _, updates) = params["dimension_numbers"], operands
    gone = {*map(int, numbers.inserted_window_dims), *map(int, numbers.operand_batching_dims)}
    axes = [axis for axis in range(len(operand.shape)) if axis not in gone]
    within = tuple(map(int, numbers.update_window_dims))
    sizes = [1] * len(operand.shape)
    for axis, along in zip(axes, within, strict=True):
        sizes[axis] = updates.shape[along]
    windows = _Windows(
        numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims,
        tuple(sizes), axes,
    )  # fmt: skip
    order = (*(axis for axis in range(len(updates.shape)) if axis not in within), *within)
    return partial(_scattered, windows=windows, order=order, mode=params["mode"].name, add=add)


MAKERS: dict[str, Callable[[dict[str, Any], list[Any], list[Any]], Operation]] = {
    "broadcast_in_dim": _make_broadcast,
    "reshape": _make_reshape,
    "squeeze": _make_shape,
    "expand_dims": _make_shape,
    "transpose": lambda params, operands, results: partial(_transposed, axes=tuple(map(int, params["permutation"]))),
    "slice": _make_slice,
    "rev": lambda params, operands, results: partial(_turned, axes=tuple(map(int, params["dimensions"]))),
    "concatenate": lambda params, operands, results: partial(_joined, axis=int(params["dimension"])),
    "stack": lambda params, operands, results: partial(_stacked, axis=int(params["axis"])),
    "tile": lambda params, operands, results: partial(_tiled, repeats=tuple(map(int, params["reps"]))),
    "split": _make_split,
    "unstack": _make_unstack,
    "iota": _make_iota,
    "pad": _make_pad,
    "dynamic_slice": lambda params, operands, results: partial(_taken, sizes=tuple(map(int, params["slice_sizes"]))),
    "dynamic_update_slice": lambda params, operands, results: _put,
    "gather": _make_gather,
    "scatter": partial(_make_scatter, add=False),
    "scatter-add": partial(_make_scatter, add=True),
}
