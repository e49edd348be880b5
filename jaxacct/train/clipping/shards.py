"""How a batch's rows and the parameters lie on a mesh while gradients are clipped and summed.

A mesh has axes of two kinds. Over *row axes* the rows are dealt: each device clips its own (:func:`jax.shard_map`),
and their sums are scattered to where the parameter's shard lies, so that no device holds a whole one of all. Over the
other axes, of *tensors*, the compiler divides each layer's products as the parameters are divided. A gradient of one
example is then held in shards, of which each adds its own squares: what crosses devices is a number for each row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

WHOLE = PartitionSpec()


def _scattered(part: Array, names: Any, axis: int) -> Array:
    """Returns on each device its shard of the sum over the devices along ``names``, cut along ``axis``."""

    def exchanged(part: Array) -> Array:
        before, after = part.shape[:axis], part.shape[axis + 1 :]
        pieces = part.reshape(*before, jax.lax.axis_size(names), -1, *after)
        return jax.lax.all_to_all(pieces, names, axis, axis).sum(axis)

    def reduced(part: Array) -> Array:
        return jax.lax.psum_scatter(part, names, scatter_dimension=axis, tiled=True)

    # A TPU's compiler adds up no float64 between devices, and moves it. What is sent is as much.
    return jax.lax.platform_dependent(part, tpu=exchanged, default=reduced)


@dataclass(frozen=True)
class Shards:
    """The mesh, its row axes, and how each parameter lies on it.

    Attributes:
        rows: whose first entry names the row axes.
        specs: of each parameter; none: all are whole on every device.
    """

    rows: NamedSharding
    specs: tuple[PartitionSpec, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The row axes."""
        return axes_of(self.rows.spec[0])

    @property
    def devices(self) -> int:
        """Over how many parts the rows are dealt."""
        return math.prod(self.rows.mesh.shape[axis] for axis in self.axes)

    @property
    def meet(self) -> bool:
        """Whether devices meet while they sum, and have to go through as many blocks."""
        return any(map(names_in, self.specs))

    def by_rows(self, leaf: int) -> PartitionSpec:
        """Returns how a parameter lies over the row axes."""
        return _restricted(self.specs[leaf], self.axes)

    def by_tensors(self, leaf: int) -> PartitionSpec:
        """Returns how it lies over the others."""
        return _restricted(self.specs[leaf], [axis for axis in self.rows.mesh.axis_names if axis not in self.axes])

    def scattered(self, leaf: int, total: Array) -> Array:
        """On each device: returns its shard of the sum of all ``total``, over those row axes that divide the parameter.

        What is added up are float64 sums in another order, which their margins allow for.
        """
        rows, tensors = self.by_rows(leaf), self.by_tensors(leaf)
        total = _laid(total, tensors)
        divided = [axis for axis, entry in enumerate(rows) if entry is not None]

        def scatter(part: Array) -> Array:
            for axis in divided:
                part = _scattered(part, rows[axis], axis)
            return part

        # In an axis of both kinds, what rows divide is divided again by tensors, and not the other way round.
        if not names_in(tensors) or any(axis < len(tensors) and tensors[axis] is not None for axis in divided):
            return _laid(scatter(total), tensors)
        # Left to itself, XLA would first gather the shards of the tensor.
        names = set(names_in(tensors))
        return jax.shard_map(scatter, in_specs=tensors, out_specs=tensors, axis_names=names, check_vma=False)(total)

    def shard_shape(self, leaf: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of what :meth:`scattered` returns."""
        return NamedSharding(self.rows.mesh, self.by_rows(leaf)).shard_shape(shape)

    def added_up(self, totals: Sequence[Array], count: Array) -> tuple[list[Array], Array]:
        """On each device: returns the sums, and the count, added up over those row axes that do not divide them."""
        missing = [tuple(axis for axis in self.axes if axis not in names_in(spec)) for spec in self.specs]
        found, (rest,) = list(totals), [count]
        for axes in dict.fromkeys((*missing, self.axes)):
            places = [leaf for leaf, other in enumerate(missing) if other == axes]
            here = [found[leaf] for leaf in places] + ([rest] if axes == self.axes else [])
            if not axes:
                continue
            here = self._summed(here, axes, [self.by_tensors(leaf) for leaf in places])
            rest = here.pop() if axes == self.axes else rest
            for leaf, total in zip(places, here, strict=True):
                found[leaf] = total
        return found, rest

    def _summed(self, values: list[Array], axes: tuple[str, ...], tensors: list[PartitionSpec]) -> list[Array]:
        """Returns sums over row axes of arrays that lie over the other axes as told, those without a word whole."""
        specs = [*tensors, *[WHOLE] * (len(values) - len(tensors))]
        summed = functools.partial(jax.lax.psum, axis_name=axes)
        others = set(self.rows.mesh.axis_names) - set(self.axes)
        if not others:
            return list(summed(values))
        # A TPU's compiler adds up float64 between devices only where no axis is left to it.
        shards = jax.shard_map(summed, in_specs=(specs,), out_specs=specs, axis_names=others, check_vma=False)
        return list(shards(values))


def axes_of(entry: Any) -> tuple[str, ...]:
    """Returns the names in an entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def names_in(spec: PartitionSpec) -> tuple[str, ...]:
    """Returns all names in a PartitionSpec."""
    return tuple(axis for entry in spec for axis in axes_of(entry))


def side(spec: PartitionSpec, axes: Sequence[int], shape: tuple[int, ...]) -> Any:
    """Returns the entry of an axis that ``axes`` of a parameter are merged into: None where shards would not be whole.

    >>> side(PartitionSpec(None, "model"), (1, 2), (8, 4, 16)), side(PartitionSpec(None, "model"), (0, 1), (8, 4, 16))
    ('model', None)
    """
    wide = [axis for axis in axes if shape[axis] > 1]
    divided = [axis for axis in wide if axis < len(spec) and spec[axis] is not None]
    return spec[divided[0]] if divided and divided == wide[:1] else None


def laid(values: Array, spec: PartitionSpec) -> Array:
    """Returns ``values`` (batch, ...), each of which is to lie as ``spec`` says."""
    return _laid(values, PartitionSpec(None, *spec))


def by_shards(norms: Callable[[Array], Array], values: Array, spec: PartitionSpec) -> Array:
    """Returns ``norms(values)`` (batch,), sums over the other axes, which lie as ``spec`` says: shard by shard.

    What each shard gives is added up in float64, of which NORM_MARGIN has room for the roundings.
    """
    axes = names_in(spec)
    if not axes:
        return norms(values)
    spread = jax.shard_map(
        lambda part: jax.lax.psum(norms(part), axes),
        in_specs=PartitionSpec(None, *spec), out_specs=WHOLE, axis_names=set(axes), check_vma=False,
    )  # fmt: skip
    return spread(values)


def dealt(rows: Array, devices: int) -> Array:
    """Returns rows (turns, devices, ...) dealt in turns, so that padding, which is last, is shared by all."""
    places = np.arange(-(-len(rows) // devices) * devices)
    filled = rows if len(places) == len(rows) else rows[np.minimum(places, len(rows) - 1)]
    return filled.reshape(-1, devices, *rows.shape[1:])


def _laid(values: Array, spec: PartitionSpec) -> Array:
    return jax.lax.with_sharding_constraint(values, spec) if names_in(spec) else values


def _restricted(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
    """Returns what a spec says of some axes of the mesh."""
    entries = [tuple(axis for axis in axes_of(entry) if axis in axes) for entry in spec]
    return PartitionSpec(*(entry[0] if len(entry) == 1 else entry or None for entry in entries))
