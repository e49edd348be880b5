"""Per-example gradients without forming most of them: "ghost" clipping, for a loss written in any way.

The loss of one example is traced. A parameter that is used once, by a linear map
(:mod:`jaxacct.train.clipping.layers`), perhaps reshaped or transposed before, needs no gradient of its own: a zero is
added to the map's output for each example, and the loss's derivative by that zero is the cotangent b there. With the
activation a that went in, both norm and sum follow, from one forward and one backward pass, which leave the map's own
gradient out. All other parameters (biases, scales, kernels that are shared or inside a loop) get gradients for each
example, as ``vmap`` forms them: right whatever the use is, and cheap where they are small.

Source: Li et al. (2022), "Large language models can be strong differentially private learners", section 4, for the
method; Bu et al. (2023), "Differentially private optimization on large model at small cost", for the sum without a
second backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, PyTree

from jaxacct.train.clipping.contributions import Contributions, Stored
from jaxacct.train.clipping.layers import Layer, Shape, find_layer

INLINED = ("jit", "pjit")
"""Operations that only group others."""

MOVED = ("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "convert_element_type", "copy")
"""Operations that keep an array's entries, where its size stays."""


@dataclass(frozen=True)
class Weight:
    """A parameter on its way to the map that uses it.

    Attributes:
        leaf: which one.
        value: its entries.
        moves: shape before each move, and the order of axes where the move is a transposition.
    """

    leaf: int
    value: Array
    moves: tuple[tuple[Shape, Shape | None], ...] = ()

    def moved(self, step: core.JaxprEqn, value: Array) -> Weight:
        """Returns the weight after an operation that keeps its entries, and gives ``value``."""
        order = tuple(step.params["permutation"]) if step.primitive.name == "transpose" else None
        return Weight(self.leaf, value, (*self.moves, (self.value.shape, order)))


def keeps_entries(step: core.JaxprEqn) -> bool:
    """Returns whether an operation on one array only moves its entries about, or changes their precision."""
    before: Any = step.invars[0].aval
    after: Any = step.outvars[0].aval
    return step.primitive.name in MOVED and before.size == after.size and jnp.issubdtype(after.dtype, jnp.floating)


class Tap(NamedTuple):
    """The one use of a parameter by a linear map: which map, after which moves, and the shape of its output."""

    layer: Layer
    moves: tuple[tuple[Shape, Shape | None], ...]
    output: jax.ShapeDtypeStruct

    def restored(self, gradient: Array) -> Array:
        """Returns a sum of contributions in the parameter's own shape."""
        gradient = self.layer.weight_shaped(gradient)
        for shape, order in reversed(self.moves):
            if order is not None:
                gradient = gradient.transpose(tuple(int(axis) for axis in np.argsort(order)))
            gradient = gradient.reshape(shape)
        return gradient


OnMap = Callable[[Weight, Layer, Array, Array], Array]


class GhostLoss:
    """The loss of one example, traced, and how each of its parameters is used.

    Args:
        loss: ``loss(params, example)``, a scalar.
        params: pytree of arrays, or of their shapes.
        example: one example, or its shapes.

    Attributes:
        taps: by the number of a parameter, its one use by a linear map; parameters without an entry get gradients of
            their own for each example.
    """

    def __init__(self, loss: Callable[[PyTree, Any], Array], params: PyTree, example: PyTree) -> None:
        leaves, self._params = jax.tree.flatten(params)
        parts, self._example = jax.tree.flatten(example)
        self._count = len(leaves)

        def flat(*inputs: Array) -> Array:
            given = jax.tree.unflatten(self._params, inputs[: self._count])
            return loss(given, jax.tree.unflatten(self._example, inputs[self._count :]))

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (*leaves, *parts)]
        self._traced = jax.make_jaxpr(flat)(*shapes)
        self.taps = self._find_taps(shapes)

    def _find_taps(self, shapes: list[jax.ShapeDtypeStruct]) -> dict[int, Tap]:
        found: list[tuple[int, Tap]] = []
        lost: set[int] = set()

        def note(weight: Weight, layer: Layer, activation: Array, output: Array) -> Array:
            found.append((weight.leaf, Tap(layer, weight.moves, jax.ShapeDtypeStruct(output.shape, output.dtype))))
            return output

        def walk(*inputs: Array) -> Any:
            weights = [Weight(leaf, value) for leaf, value in enumerate(inputs[: self._count])]
            values = [*weights, *inputs[self._count :]]
            (value,) = _evaluate(self._traced.jaxpr, self._traced.consts, values, note, lost)
            if isinstance(value, Weight):
                lost.add(value.leaf)
                return value.value
            return value

        jax.eval_shape(walk, *shapes)
        used = [leaf for leaf, _ in found]
        # Half precision is held exactly by float32; float64 is not.
        narrow = {leaf for leaf in range(self._count) if jnp.finfo(shapes[leaf].dtype).bits <= 32}
        return {leaf: tap for leaf, tap in found if used.count(leaf) == 1 and leaf not in lost and leaf in narrow}

    def contributions(self, params: PyTree, examples: PyTree) -> list[Contributions]:
        """Returns, for each parameter, the gradients of all examples in some form."""
        leaves = jax.tree.leaves(params)
        own = {leaf: value for leaf, value in enumerate(leaves) if leaf not in self.taps}
        shifts = {leaf: jnp.zeros(tap.output.shape, tap.output.dtype) for leaf, tap in self.taps.items()}

        def run(shifts: dict[int, Array], own: dict[int, Array], example: PyTree) -> tuple[Array, dict[int, Array]]:
            activations: dict[int, Array] = {}

            def shift(weight: Weight, layer: Layer, activation: Array, output: Array) -> Array:
                activations[weight.leaf] = activation
                return output + shifts[weight.leaf]

            inputs = [own[leaf] if leaf in own else Weight(leaf, leaves[leaf]) for leaf in range(self._count)]
            inputs += jax.tree.leaves(example)
            (value,) = _evaluate(self._traced.jaxpr, self._traced.consts, inputs, shift, set())
            return value, activations

        slope = jax.grad(run, argnums=(0, 1), has_aux=True)
        (cotangents, gradients), activations = jax.vmap(slope, in_axes=(None, None, 0))(shifts, own, examples)
        return [
            Stored(gradients[leaf])
            if leaf in own
            else self.taps[leaf].layer.contributions(activations[leaf], cotangents[leaf])
            for leaf in range(self._count)
        ]

    def restored(self, sums: list[Array]) -> list[Array]:
        """Returns the sums of :meth:`contributions` in the shapes of their parameters."""
        return [self.taps[leaf].restored(value) if leaf in self.taps else value for leaf, value in enumerate(sums)]


def _evaluate(jaxpr: core.Jaxpr, consts: Any, inputs: list[Any], on_map: OnMap, lost: set[int]) -> list[Any]:
    """Returns the outputs of a traced function, some of whose inputs are weights.

    Where a map by a weight is met, ``on_map`` gives its output. A weight used in any other way is put into ``lost``.
    """
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for step in jaxpr.eqns:
        given = [read(atom) for atom in step.invars]
        values.update(zip(step.outvars, _apply(jaxpr, step, given, on_map, lost), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(jaxpr: core.Jaxpr, step: core.JaxprEqn, given: list[Any], on_map: OnMap, lost: set[int]) -> list[Any]:
    """Returns the results of one operation; what only moves a weight gives a weight."""
    places = [place for place, value in enumerate(given) if isinstance(value, Weight)]
    if places and step.primitive.name in INLINED:
        inner = step.params["jaxpr"]
        return _evaluate(inner.jaxpr, inner.consts, given, on_map, lost)
    plain = [value.value if isinstance(value, Weight) else value for value in given]
    results = _run(jaxpr, step, plain)
    if len(places) == len(given) == 1 and keeps_entries(step):
        return [given[0].moved(step, results[0])]
    if len(places) == 1:
        (place,) = places
        layer = find_layer(step.primitive.name, step.params, [np.shape(value) for value in plain], place)
        if layer is not None:
            return [on_map(given[place], layer, plain[1 - place], results[0])]
    lost.update(given[place].leaf for place in places)
    return results


def _run(jaxpr: core.Jaxpr, step: core.JaxprEqn, given: list[Any]) -> list[Array]:
    """Returns the results of one operation of ``jaxpr``, run as a function of its own."""
    places = [place for place, atom in enumerate(step.invars) if not isinstance(atom, core.Literal)]
    inputs = dict(zip((step.invars[place] for place in places), (given[place] for place in places), strict=True))
    alone = jaxpr.replace(constvars=[], invars=list(inputs), outvars=list(step.outvars), eqns=[step])
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*inputs.values())
