"""The placement of a run on a mesh of devices: which part of each array is on which device.

* :class:`Layout`: which axes deal the rows of a batch, and where parameters, optimizer state and rows lie;
* :func:`layout_of`: the layout that ``devices``, or ``mesh``, ``rules`` and ``row_axes``, say.

Parameters lie as rules say, else as the model's own metadata (``out_sharding`` of an ``nnx`` variable) says, else each
is divided as evenly as its shape allows. An optimizer's arrays for a parameter (momenta, averages) lie as the parameter
does, and so do gradients, their sums and the noise. Everything else, the ledger above all, is on every device.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxacct.train.clipping.rows import WHOLE, axes_of, filled_places, names_in
from jaxacct.train.ownership import path_of
from jaxacct.train.state import TrainState

Rules = Mapping[str, PartitionSpec]
"""Partition specs by regular expressions, which are searched in a parameter's path such as ``blocks/0/up/kernel``: the
first that fits counts."""


@dataclass(frozen=True)
class Layout:
    """A mesh and what lies where on it.

    Attributes:
        mesh: its axes are named.
        row_axes: the axes over which a batch's rows are dealt; over the others the compiler divides tensors.
        rules: where parameters lie. None: as the model's metadata says, else evenly.
        replicated: whether parameters are on every device.
    """

    mesh: Mesh
    row_axes: tuple[str, ...]
    rules: Rules | None = None
    replicated: bool = False

    @property
    def rows(self) -> NamedSharding:
        """Sharding of rows."""
        return NamedSharding(self.mesh, PartitionSpec(self.row_axes))

    @property
    def everywhere(self) -> NamedSharding:
        """Sharding of what is whole on every device."""
        return NamedSharding(self.mesh, WHOLE)

    @property
    def row_parts(self) -> int:
        """Number of parts over which rows are dealt."""
        return self._size(self.row_axes)

    def as_drawn(self, examples: PyTree, count: int) -> PyTree:
        """Returns ``count`` rows that :meth:`fetch` read, in the order in which they were drawn; traceable."""

        def turn(rows: Any) -> Any:
            return rows.reshape(self.row_parts, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)[:count]

        return jax.tree.map(turn, examples)

    def fetch(self, source: Any, indices: Any) -> tuple[PyTree, ...]:
        """Returns the examples at ``indices``, spread over the devices; padding repeats the last one.

        Each process reads the rows that its own devices work on.
        """
        # Row i of the draw goes to device i mod ``devices``: real rows come first in a draw, padding last, so that each
        # device has about as many real rows as any other.
        devices, rows = self.row_parts, self.rows
        numbers = np.asarray(indices)[filled_places(len(indices), devices).reshape(-1, devices).T.reshape(-1)]
        size, ours = len(numbers) // devices, rows.addressable_devices_indices_map(numbers.shape)
        firsts = sorted({index[0].start or 0 for index in ours.values() if index is not None})
        parts = {first: source.fetch(numbers[first : first + size]) for first in firsts}

        def spread(*own: Any) -> jax.Array:
            by_first = dict(zip(parts, own, strict=True))
            shape = (len(numbers), *own[0].shape[1:])
            return jax.make_array_from_callback(shape, rows, lambda index: by_first[index[0].start or 0])  # type: ignore[index]

        return jax.tree.map(spread, *parts.values())

    def of_variables(self, variables: nnx.State) -> PyTree:
        """Returns a pytree like ``variables`` of shardings.

        Raises ValueError where a rule or a variable's metadata does not fit its shape or the mesh.
        """
        declared = jax.tree.leaves(nnx.get_partition_spec(variables), is_leaf=lambda leaf: leaf is None)
        named, structure = jax.tree_util.tree_flatten_with_path(variables)
        if len(declared) != len(named):
            declared = [None] * len(named)
        specs = [self._of_one(name_of(path), leaf, own) for (path, leaf), own in zip(named, declared, strict=True)]
        return jax.tree.unflatten(structure, [NamedSharding(self.mesh, spec) for spec in specs])

    def check_rules(self, *trees: PyTree) -> None:
        """Raises ValueError where a rule fits no parameter of any tree."""
        names = [name_of(path) for tree in trees for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        for pattern in self.rules or {}:
            if not any(re.search(pattern, name) for name in names):
                raise ValueError(f"rules[{pattern!r}] fits no parameter: there are {', '.join(names)}.")

    def of_state(self, state: TrainState) -> TrainState:
        """Returns a pytree like ``state`` of shardings: what has a parameter's path and shape lies as that does.

        So do several copies of a parameter along a first axis, such as correlated noise remembers; that axis is whole.
        """
        params = self.of_variables(state.params)
        known = {
            (name_of(path), leaf.shape): sharding
            for (path, leaf), sharding in zip(
                jax.tree_util.tree_leaves_with_path(state.params), jax.tree.leaves(params), strict=True
            )
        }

        # The optimizer's own names come before the parameter's path: the longest end of a path that is a parameter's,
        # of that shape, says whose array it is.
        def like_parameter(path: Any, leaf: Any) -> NamedSharding:
            parts = name_of(path).split("/")
            for end in ("/".join(parts[first:]) for first in range(len(parts))):  # the longest first
                if (end, leaf.shape) in known:
                    return known[end, leaf.shape]
                if (end, leaf.shape[1:]) in known:
                    return NamedSharding(self.mesh, PartitionSpec(None, *known[end, leaf.shape[1:]].spec))
            return self.everywhere

        rest = jax.tree.map(lambda _: self.everywhere, state)
        opt_state, noise = jax.tree_util.tree_map_with_path(like_parameter, (state.opt_state, state.noise))
        return dataclasses.replace(rest, params=params, opt_state=opt_state, noise=noise)

    def _of_one(self, name: str, leaf: Any, declared: Any) -> PartitionSpec:
        if self.replicated or not hasattr(leaf, "shape") or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            return WHOLE
        for pattern, spec in (self.rules or {}).items():
            if re.search(pattern, name):
                return self._check(name, leaf.shape, spec, f"rules[{pattern!r}]")
        if declared is not None and names_in(declared):
            return self._check(name, leaf.shape, declared, "its metadata")
        return self._even(leaf.shape)

    def _even(self, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns a spec in which each of the mesh's axes, row axes first, divides the longest axis that it can divide.

        An array's axis that no mesh axis of the other kind divides is preferred to a longer one.
        """
        spec: list[tuple[str, ...]] = [()] * len(shape)
        tensors = [axis for axis in self.mesh.axis_names if axis not in self.row_axes]
        # Greedy: ``spec`` has the mesh axes given to each axis of the array so far, ``left`` the lengths that remain. A
        # mesh axis that fits nowhere divides nothing: the array is then whole along it.
        for kind in (self.row_axes, tensors):
            for axis in kind:
                left = [size // self._size(taken) for size, taken in zip(shape, spec, strict=True)]
                fits = [place for place, size in enumerate(left) if size % self.mesh.shape[axis] == 0]
                if fits and self.mesh.shape[axis] > 1:
                    best = max(fits, key=lambda place: (set(spec[place]) <= set(kind), left[place]))
                    spec[best] += (axis,)
        return PartitionSpec(*(taken[0] if len(taken) == 1 else taken or None for taken in spec))

    def _check(self, name: str, shape: tuple[int, ...], spec: PartitionSpec, source: str) -> PartitionSpec:
        unknown = [axis for axis in names_in(spec) if axis not in self.mesh.axis_names]
        if unknown or len(set(names_in(spec))) < len(names_in(spec)):
            raise ValueError(
                f"{source} = {spec} names {unknown or 'an axis twice'}, for parameter {name!r}: give axes of the mesh, "
                f"{', '.join(self.mesh.axis_names)}, each at most once."
            )
        if len(spec) > len(shape):
            raise ValueError(f"{source} = {spec} has more entries than parameter {name!r} of shape {shape} has axes.")
        for size, entry in zip(shape, spec, strict=False):  # axes that the spec does not mention are whole
            if size % (parts := self._size(axes_of(entry))):
                raise ValueError(
                    f"{source} = {spec} divides {size} by {parts}, for parameter {name!r} of shape "
                    f"{shape}: leave that axis whole (None), or choose sizes that are multiples."
                )
        return spec

    def _size(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)


def layout_of(
    devices: Sequence[jax.Device] | None, mesh: Mesh | None, rules: Rules | None, row_axes: str | Sequence[str] | None
) -> Layout | None:
    """Returns how a run lies on ``mesh``, or replicated over ``devices``; None for one device.

    Raises ValueError where they contradict one another.
    """
    if mesh is None:
        if rules is not None or row_axes is not None:
            raise ValueError("rules and row_axes say how parameters and rows lie on a mesh: give mesh.")
        if devices is None or len(devices) == 1:
            return None
        return Layout(Mesh(np.array(list(devices)), ("rows",)), ("rows",), replicated=True)
    if devices is not None:
        raise ValueError("devices and mesh are both given: a mesh has its devices.")
    axes = (mesh.axis_names[0],) if row_axes is None else (row_axes,) if isinstance(row_axes, str) else tuple(row_axes)
    if not axes or not set(axes) <= set(mesh.axis_names):
        raise ValueError(f"row_axes = {axes}: give some of the mesh's axes, {', '.join(mesh.axis_names)}.")
    # A new mesh, whose axes are of the usual kind whatever kind the given mesh has for other programs.
    return Layout(Mesh(np.asarray(mesh.devices), mesh.axis_names), axes, rules)


def name_of(path: Any) -> str:
    """Returns the path of a leaf with ``/`` between names, as :func:`~jaxacct.train.split_params` takes it."""
    return path_of(path).removesuffix("/value")
