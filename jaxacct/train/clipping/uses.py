"""Where a traced loss uses its parameters by linear maps: found once, and then evaluated with a zero added at each.

A use is told by its path: the places of the operations on the way to it, from the outermost in. Those inside of ``jit``
and ``remat`` are uses like others. A use inside of a ``scan`` is one use a step: what is added, and what went into the
map, get an axis of steps in front. A scan hands a parameter to all of its steps, which then share it, or slices it
along its first axis, so that each step has a copy of its own: row i of what the scan takes belongs to row i of all that
it stacks, whichever end it starts from. All other uses lose a parameter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from jaxtyping import Array

from jaxacct.jaxprs import scan_counts
from jaxacct.train.clipping.layers import Convolution, Layer, Shape, find_layer, weight_shaped
from jaxacct.train.clipping.rows import run_alone

INLINED = ("jit", "pjit")
"""Operations that only group others."""

REMATERIALIZED = ("remat2", "checkpoint")

MOVED = ("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "convert_element_type", "copy")
"""Operations that keep an array's entries, where its size stays."""

Path = tuple[int, ...]
Move = tuple[Shape, Shape | None]
"""The shape before, and the order of axes where it is a transposition."""


@dataclass(frozen=True)
class Weight:
    """A parameter on its way to the map that uses it.

    Attributes:
        leaf: which one.
        value: its entries; inside of scans that slice it, those of one copy.
        moves: how they were moved about. To move each copy is to move all of them, with the axes of copies in front.
        own, copies: which scans around, the outermost 0, slice it, and their lengths.
    """

    leaf: int
    value: Array
    moves: tuple[Move, ...] = ()
    own: tuple[int, ...] = ()
    copies: Shape = ()

    def moved(self, step: core.JaxprEqn, value: Array) -> Weight:
        """Returns the weight after an operation that keeps its entries, and gives ``value``."""
        order, first = None, len(self.copies)
        if step.primitive.name == "transpose":
            order = (*range(first), *(first + axis for axis in step.params["permutation"]))
        return replace(self, value=value, moves=(*self.moves, ((*self.copies, *self.value.shape), order)))

    def sliced(self, value: Array, scan: int, length: int) -> Weight:
        """Returns the weight in a step of that scan, whose copy is ``value``."""
        return replace(self, value=value, own=(*self.own, scan), copies=(*self.copies, length))


@dataclass(frozen=True)
class Use:
    """One use of a parameter by a linear map.

    Attributes:
        leaf: which parameter.
        layer: the map.
        moves: what moved the parameter's entries before.
        activation, output: shapes and dtypes of what goes into the map besides, and of what comes out, once.
        steps: how often, for each ``scan`` around it, the outermost first.
        own: which of ``steps`` have copies of their own; the others share them.
    """

    leaf: int
    layer: Layer
    moves: tuple[Move, ...]
    activation: jax.ShapeDtypeStruct
    output: jax.ShapeDtypeStruct
    steps: Shape = ()
    own: tuple[int, ...] = ()

    @property
    def copies(self) -> Shape:
        """The parameter's axes of copies, once it was moved."""
        return tuple(self.steps[scan] for scan in self.own)

    @property
    def shape(self) -> Shape:
        """The parameter's."""
        return self.moves[0][0] if self.moves else (*self.copies, *self.layer.weight_shape)

    @property
    def shift(self) -> Array:
        """Zeros to add to what comes out."""
        return jnp.zeros((*self.steps, *self.output.shape), self.output.dtype)

    @property
    def positions(self) -> int:
        """How often the map is applied to one example, by each copy of the parameter."""
        return math.prod(self.steps) // math.prod(self.copies) * self.layer.positions(self.output.shape)

    @property
    def sides(self) -> tuple[Any, Any]:
        """What of the parameter are the rows and the columns of the map's matrix: the same for the same matrix."""
        first = len(self.own)
        rows, columns = ([first + axis for axis in axes] for axes in (self.layer.rows, self.layer.columns))
        return self._origin(rows), self._origin(columns)

    @property
    def stack(self) -> Any:
        """What of the parameter are the copies."""
        return self._origin(range(len(self.own)))

    def _origin(self, axes: Sequence[int]) -> Any:
        """Returns which of the parameter's axes those of what was moved are; in other words where it was reshaped."""
        found = list(range(len(self.shape)))
        shapes = [*(shape for shape, _ in self.moves), (*self.copies, *self.layer.weight_shape)]
        for (shape, order), result in zip(self.moves, shapes[1:], strict=True):
            if order is not None:
                found = [found[axis] for axis in order]
            elif shape != result:  # the same only where all moves are
                return self.moves, tuple(axes)
        return tuple(found[axis] for axis in axes)

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        """Returns :meth:`Layer.factors` of all examples, whose positions are those of all steps together.

        Where steps have copies of their own, an axis of all copies comes first.
        """
        folded = [
            jnp.moveaxis(value, [1 + scan for scan in self.own], range(len(self.own))).reshape(-1, *shape.shape)
            for value, shape in ((activation, self.activation), (cotangent, self.output))
        ]
        first = (*((math.prod(self.copies),) if self.own else ()), len(activation), self.positions)
        return tuple(  # type: ignore[return-value]
            part.reshape(*first, *part.shape[2:]) for part in self.layer.factors(*folded)
        )

    def restored(self, gradient: Array) -> Array:
        """Returns a gradient by the map's matrix, or by that of each copy, in the parameter's own shape."""
        shaped = functools.partial(weight_shaped, self.layer)
        if self.own:
            shaped = jax.vmap(shaped)
        gradient = shaped(gradient).reshape(*self.copies, *self.layer.weight_shape)
        for shape, order in reversed(self.moves):
            if order is not None:
                gradient = gradient.transpose(tuple(int(axis) for axis in np.argsort(order)))
            gradient = gradient.reshape(shape)
        return gradient


class Uses:
    """A loss without its dead code, and the uses that it makes of its first inputs.

    Attributes:
        found: by path, all uses by linear maps.
        lost: by parameter, the first operation that uses it in another way.
    """

    def __init__(self, traced: core.ClosedJaxpr, parameters: int) -> None:
        jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
        self._traced, self._parameters = core.ClosedJaxpr(jaxpr, traced.consts), parameters
        self.found: dict[Path, Use] = {}
        self.lost: dict[int, str] = {}
        avals: list[Any] = [atom.aval for atom in jaxpr.invars]
        inputs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        jax.eval_shape(lambda *values: self.evaluate(dict(enumerate(values[:parameters])), values, {}), *inputs)

    def evaluate(
        self, weights: dict[int, Array], inputs: Any, shifts: dict[Path, Array]
    ) -> tuple[Array, dict[Path, Array]]:
        """Returns the loss, with ``shifts`` added to what comes out of those uses, and what went into them.

        ``weights`` are the parameters whose uses are looked for; all others are taken from ``inputs``.
        """
        given = [Weight(leaf, weights[leaf]) if leaf in weights else value for leaf, value in enumerate(inputs)]
        (value,), seen = self._evaluate(self._traced.jaxpr, self._traced.consts, given, shifts, (), ())
        (value,) = self._opened([value], "the loss itself")
        return value, seen

    def _evaluate(
        self, jaxpr: core.Jaxpr, consts: Any, inputs: Any, shifts: dict[Path, Array], path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))
        seen: dict[Path, Array] = {}
        for place, step in enumerate(jaxpr.eqns):
            given = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in step.invars]
            results, new = self._apply(jaxpr, step, given, shifts, (*path, place), steps)
            values.update(zip(step.outvars, results, strict=True))
            seen |= new
        return [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in jaxpr.outvars], seen

    def _apply(
        self, jaxpr: core.Jaxpr, step: core.JaxprEqn, given: list[Any], shifts: Any, path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        """Returns the results of one operation; what only moves a weight gives a weight."""
        name = step.primitive.name
        places = [place for place, value in enumerate(given) if isinstance(value, Weight)]
        if places and name in INLINED:
            inner = step.params["jaxpr"]
            return self._evaluate(inner.jaxpr, inner.consts, given, shifts, path, steps)
        if places and name in REMATERIALIZED:
            return self._rematerialized(step, given, shifts, path, steps)
        if places and name == "scan":
            return self._scanned(step, given, shifts, path, steps)
        plain = [value.value if isinstance(value, Weight) else value for value in given]
        results = run_alone(jaxpr, step, plain)
        if len(places) == len(given) == 1 and keeps_entries(step):
            return [given[0].moved(step, results[0])], {}
        if len(places) == 1:
            (place,) = places
            layer = find_layer(name, step.params, [np.shape(value) for value in plain], place)
            if layer is not None and results[0].size * math.prod(steps):  # what never runs has no positions
                weight, activation, output = given[place], plain[1 - place], results[0]
                inside, outside = (jax.ShapeDtypeStruct(value.shape, value.dtype) for value in (activation, output))
                self.found[path] = Use(weight.leaf, layer, weight.moves, inside, outside, steps, weight.own)
                if path not in shifts:
                    return [output], {}
                if isinstance(layer, Convolution):
                    output = layer.applied(functools.partial(_convolved, jaxpr, step), activation, weight.value)
                return [output + shifts[path]], {path: activation}
        self._opened(given, name)
        return results, {}

    def _rematerialized(
        self, step: core.JaxprEqn, given: list[Any], shifts: Any, path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        inner = step.params["jaxpr"]

        def body(plain: list[Any], own: dict[Path, Array]) -> tuple[list[Any], dict[Path, Array]]:
            results, seen = self._evaluate(inner, (), _closed(given, plain), own, path, steps)
            return self._opened(results, step.primitive.name), seen

        options = {"prevent_cse": step.params["prevent_cse"], "policy": step.params["policy"]}
        return jax.checkpoint(body, **options)(_plain(given), _below(shifts, path))

    def _scanned(
        self, step: core.JaxprEqn, given: list[Any], shifts: Any, path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        inner, length = step.params["jaxpr"], step.params["length"]
        first, carried = scan_counts(step.params)
        last = first + carried
        fixed, start, stacks = given[:first], self._opened(given[first:last], "scan, as it is carried"), given[last:]

        def body(carry: list[Any], rows: Any) -> tuple[list[Any], Any]:
            own, slices = rows
            parts = [
                stack.sliced(part, len(steps), length) if isinstance(stack, Weight) else part
                for stack, part in zip(stacks, slices, strict=True)
            ]
            inputs = [*fixed, *carry, *parts]
            results, seen = self._evaluate(inner.jaxpr, inner.consts, inputs, own, path, (*steps, length))
            results = self._opened(results, "scan")
            return results[: last - first], (results[last - first :], seen)

        rows = _below(shifts, path), [stack.value if isinstance(stack, Weight) else stack for stack in stacks]
        options = {"length": length, "reverse": step.params["reverse"], "unroll": step.params["unroll"]}
        carry, (stacked, seen) = jax.lax.scan(body, start, rows, **options)
        return [*carry, *stacked], seen

    def _opened(self, values: list[Any], name: str) -> list[Any]:
        """Returns the values of what is used by an operation of that name, which loses weights among them."""
        for value in values:
            if isinstance(value, Weight):
                self.lost.setdefault(value.leaf, name)
        return [value.value if isinstance(value, Weight) else value for value in values]


def keeps_entries(step: core.JaxprEqn) -> bool:
    """Returns whether an operation on one array only moves its entries about, or changes their precision."""
    before: Any = step.invars[0].aval
    after: Any = step.outvars[0].aval
    if step.primitive.name == "reshape" and step.params["dimensions"] is not None:  # it transposes as well
        return False
    return step.primitive.name in MOVED and before.size == after.size and jnp.issubdtype(after.dtype, jnp.floating)


def _plain(given: list[Any]) -> list[Any]:
    return [None if isinstance(value, Weight) else value for value in given]


def _closed(given: list[Any], plain: list[Any]) -> list[Any]:
    """Returns the weights among ``given``, and ``plain`` for all else."""
    return [value if isinstance(value, Weight) else other for value, other in zip(given, plain, strict=True)]


def _below(shifts: dict[Path, Array], path: Path) -> dict[Path, Array]:
    return {place: shift for place, shift in shifts.items() if place[: len(path)] == path}


def _convolved(jaxpr: core.Jaxpr, step: core.JaxprEqn, image: Array, kernel: Array) -> Array:
    return run_alone(jaxpr, step, [image, kernel])[0]
