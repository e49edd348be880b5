"""The state of a training run as one pytree, its records and its keeper, and how it lies on a mesh of devices.

* :class:`TrainState`, :class:`PrivateState`: what changes, in the trainer and in a loop of one's own;
* :class:`Evaluation`, :class:`Progress`, :class:`Keeper`: what is told of it, and the interface by which it is written
  down;
* :class:`Layout`, :func:`layout_of`: where parameters, optimizer state and rows lie.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32, PyTree, UInt32

from jaxacct.ledger import Ledger
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.strategies import NoiseState
from jaxacct.train.clipping import ClippingRule
from jaxacct.train.clipping.rows import WHOLE, axes_of, filled_places, names_in
from jaxacct.train.copies import path_of
from jaxacct.train.planned import Plan, PlannedLedger


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class TrainState:
    """All that changes during training.

    Attributes:
        params: the module's trained ``nnx.Param`` leaves.
        opt_state: Optax's state.
        ledger: what has been spent: a planned ledger, a filter, or an odometer.
        rule: the clipping rule; an adaptive one carries its norm.
        policy: the policy's state.
        step (): noisy updates so far; also the counter that keys are folded with.
        key (): typed key of the run; never changes, never used itself.
        metrics: sums of the steps' noisy means, by name (:class:`~jaxacct.train.metrics.Metrics`).
        noise: the memory of correlated noise, float64; secret like the key. None: noise is independent.
    """

    params: PyTree
    opt_state: PyTree
    ledger: Any
    rule: ClippingRule
    policy: Any
    step: Int32[Array, ""]
    key: jax.Array
    metrics: dict[str, Float32[Array, ""]] = field(default_factory=dict)
    noise: NoiseState | None = None

    def __repr__(self) -> str:
        return f"<TrainState: step {self.step}>"  # neither parameters nor, above all, the key


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class PrivateState:
    """The state of a loop of one's own (:class:`.PrivateGradients`), which changes from one gradient to the next.

    Attributes:
        ledger: what has been spent: the count of a plan's steps, a filter or an odometer.
        rule: the clipping rule; an adaptive one carries its norm.
        step (): noisy gradients so far, which the key is folded with.
        key (): typed key of the run. Secret, as the noise can be redone from it.
        owner (8,): digest of the settings of the :class:`.PrivateGradients` that began it, and that alone take it.
        noise: the memory of correlated noise, float64; secret like the key. None: noise is independent.
    """

    ledger: PlannedLedger | Ledger
    rule: ClippingRule
    step: Int32[Array, ""]
    key: jax.Array
    owner: UInt32[Array, 8]
    noise: NoiseState | None = None

    def __repr__(self) -> str:
        return f"<PrivateState: step {self.step}>"


class _Look(NamedTuple):
    """The values of an :class:`Evaluation`."""

    step: int
    accuracy: float | None
    epsilon: float
    metrics: Mapping[str, float] = MappingProxyType({})


class Evaluation(_Look):
    """One look at a run, a named tuple.

    Attributes:
        step: noisy updates so far.
        accuracy: what ``evaluate`` returned; None without it.
        epsilon: the ledger's so far, an upper bound.
        metrics: private means over the updates since the record before, by name; none without
            :class:`~jaxacct.train.metrics.Metrics`.
        plan: the run's plan, None without one; beside the tuple's entries, as is
        paid: the number of updates that were paid for until then, lost ones as well.
    """

    plan: Plan | None = None
    paid: int = 0

    @functools.cached_property
    def epsilon_so_far(self) -> float:
        """Upper bound on the epsilon of the updates until this look, as if the run had been planned to end here.

        It grows with the steps where the plan's :attr:`epsilon` is one number, and is a curve to look at: if results
        decide on the run's end, :attr:`epsilon` is what holds. Lost updates count. The ledger's :attr:`epsilon` where
        there is no plan, and with correlated noise, whose steps are one release. Computed when it is first asked for:
        milliseconds for Poisson samples, and up to a minute where an accountant does not converge.
        """
        so_far = None if self.plan is None else self.plan.epsilon_so_far(self.paid)
        return self.epsilon if so_far is None else so_far


class Progress(NamedTuple):
    """A run's goal, and whether it kept to that.

    Attributes:
        goal: the number of updates at which its call of ``fit`` is to end; None before the first one.
        kept: whether no other call of ``fit`` set another goal.
        ended: whether the last call came to its end.
        lost_steps: number of updates that the ledger has paid for and whose results an interruption lost.
    """

    goal: int | None = None
    kept: bool = True
    ended: bool = True
    lost_steps: int = 0

    def describe_resume(self, steps: int, checkpoint: int, before: Progress, *, repeats: bool) -> str:
        """Returns, in a line, what became of a run taken up at a checkpoint, where it had come to ``before``."""
        where = f"resumed at step {steps}" + ("" if self.goal is None else f" of {self.goal}")
        lost, again = self.lost_steps - before.lost_steps, steps - checkpoint
        if lost:
            why = "they did not give the same bits again" if repeats else "no seed was given to make them again"
            return f"{where}: {lost} steps begun after step {checkpoint} are lost and stay paid for, as {why}."
        return f"{where}: nothing is lost" + (f"; {again} steps gave the same bits again." if again else ".")


@runtime_checkable
class Keeper(Protocol):
    """The writer that :meth:`.DPTrainer.fit` calls, so that nothing is released before it is written down."""

    def begin(self, trainer: Any, steps: int) -> int:
        """Called before up to ``steps`` steps are computed. Returns for how many of them it wrote the spend down."""
        ...

    def finish(self, trainer: Any) -> None:
        """Called when they are computed, before anybody sees the result: writes down the state."""
        ...

    def end(self, trainer: Any) -> None:
        """Called when a call of ``fit`` has come to its end."""
        ...


# ----------------------------------------------------------------------------------------------------
# Layout of a run on a mesh: which axes deal the rows of a batch, and which part of each array is on which device.
#
# Parameters lie as rules say, else as the model's own metadata (``out_sharding`` of an ``nnx`` variable) says, else
# each is divided as evenly as its shape allows. An optimizer's arrays for a parameter (momenta, averages) lie as the
# parameter does, and so do gradients, their sums and the noise. Everything else, the ledger above all, is on every
# device.
# ----------------------------------------------------------------------------------------------------

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
        asked = np.asarray(indices)[filled_places(len(indices), devices).reshape(-1, devices).T.reshape(-1)]
        size, ours = len(asked) // devices, rows.addressable_devices_indices_map(asked.shape)
        firsts = sorted({index[0].start or 0 for index in ours.values() if index is not None})
        found = {first: source.fetch(asked[first : first + size]) for first in firsts}

        def spread(*own: Any) -> jax.Array:
            by_first = dict(zip(found, own, strict=True))
            shape = (len(asked), *own[0].shape[1:])
            return jax.make_array_from_callback(shape, rows, lambda index: by_first[index[0].start or 0])  # type: ignore[index]

        return jax.tree.map(spread, *found.values())

    def of_variables(self, variables: nnx.State) -> PyTree:
        """Returns a pytree like ``variables`` of shardings.

        Raises ValueError where a rule or a variable's metadata does not fit its shape or the mesh.
        """
        declared = jax.tree.leaves(nnx.get_partition_spec(variables), is_leaf=lambda leaf: leaf is None)
        named, structure = jax.tree_util.tree_flatten_with_path(variables)
        if len(declared) != len(named):
            declared = [None] * len(named)
        found = [self._of_one(name_of(path), leaf, own) for (path, leaf), own in zip(named, declared, strict=True)]
        return jax.tree.unflatten(structure, [NamedSharding(self.mesh, spec) for spec in found])

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
        # of that shape, tells whose array it is.
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
        for size, entry in zip(shape, spec, strict=False):
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
