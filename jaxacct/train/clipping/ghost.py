"""Per-example gradients without forming most of them: "ghost" clipping, for a loss written in any way.

The loss of one example is traced. A parameter that is used by linear maps alone
(:mod:`jaxacct.train.clipping.uses`) needs no gradient of its own: a zero is added to each map's output for each
example, and the loss's derivative by that zero is the cotangent b there. With the activation a that went in, both norm
and sum follow, from one forward and one backward pass, which leave the map's own gradient out. Several uses of one
parameter, and those of the steps of a loop, add up: the gradient is the sum over all their positions of a_t b_t^T, and
one such sum has the norm and the bounds of any other. Steps that have copies of their own, as layers that a scan takes
off stacked parameters, have such a sum each. All other parameters (biases, scales) get gradients for each
example, as ``vmap`` forms them: right whatever the use is, and cheap where they are small.

Source: Li et al. (2022), "Large language models can be strong differentially private learners", section 4, for the
method; Bu et al. (2023), "Differentially private optimization on large model at small cost", for the sum without a
second backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, PyTree

from jaxacct.train.clipping.contributions import (
    Contributions,
    Looked,
    Outer,
    Stacked,
    Stored,
    Summed,
    Tied,
    Together,
)
from jaxacct.train.clipping.layers import (
    Dense,
    Table,
    looked_up,
    matrix_contributions,
    matrix_form,
    matrix_shape,
)
from jaxacct.train.clipping.rows import apart, refuse
from jaxacct.train.clipping.shards import WHOLE, side
from jaxacct.train.clipping.uses import Path, Use, Uses

WHY: dict[type[Contributions], str] = {
    Outer: "an outer product",
    Stored: "cheaper than inner products of positions",
    Summed: "inner products of positions are cheaper",
}


MANY, AFFORDED = 16, 4
"""From so many positions on, the float64 sum over them takes longer than to form a dense layer's gradients, in float32:
k n (T + 28) multiplications against 2.5 k n T, where to hold a number takes 28 and float64 is 2.5 times as slow (both
measured on a CPU). So they are formed, where they are at most so many times what goes in and out."""


@dataclass(frozen=True)
class Tap:
    """All uses of a parameter, by linear maps of one matrix or of its transpose; lookups first.

    Attributes:
        uses: by path.
        form: what holds the gradients.
    """

    uses: tuple[tuple[Path, Use], ...]
    form: type[Contributions]

    def contributions(
        self, activations: dict[Path, Array], cotangents: dict[Path, Array], spec: PartitionSpec
    ) -> Contributions:
        """Returns the batch's gradients of the first use's matrix, of a parameter that lies as ``spec`` says."""
        found = self._of_each_copy(activations, cotangents, spec)
        return Stacked(found) if self.uses[0][1].own else found

    def _of_each_copy(
        self, activations: dict[Path, Array], cotangents: dict[Path, Array], spec: PartitionSpec
    ) -> Contributions:
        """Returns the same of a parameter of which there are copies: an axis of them is in front of all arrays."""
        parts, matrix = [], self._lying(spec)
        for path, use in self.uses:
            left, right = use.factors(activations[path], cotangents[path])
            parts.append((left, right) if use.sides == self.uses[0][1].sides else (right, left))
        lookups = sum(isinstance(use.layer, Table) for _, use in self.uses)
        axis = 1 + bool(self.uses[0][1].own)
        left, right = _joined(parts[lookups:], axis)
        if not lookups:
            return matrix_contributions(left, right, matrix)
        indices, gradients = _joined(parts[:lookups], axis)
        if left is None:
            return looked_up(indices, gradients, self.uses[0][1].layer.weight_shape[0])
        return Tied(indices, *(part.astype(jnp.float32) for part in (gradients, left, right)))

    def _lying(self, spec: PartitionSpec) -> PartitionSpec:
        """Returns how the first use's matrix lies: by rows and columns."""
        use = self.uses[0][1]
        plain = all(isinstance(axis, int) for axes in use.sides for axis in axes)  # not reshaped
        return PartitionSpec(*(side(spec, axes, use.shape) for axes in use.sides)) if plain else WHOLE

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sum of contributions; of stored ones transposed."""
        use = self.uses[0][1]
        copies = (math.prod(use.copies),) if use.own else ()
        rows, columns = matrix_shape(use.layer)
        return (*copies, columns, rows) if self.form is Stored else (*copies, rows, columns)

    def restored(self, total: Array) -> Array:
        """Returns a sum of contributions in the parameter's own shape."""
        return self.uses[0][1].restored(total.swapaxes(-1, -2) if self.form is Stored else total)


@dataclass(frozen=True)
class Route:
    """How the gradients of one parameter are held.

    Attributes:
        parameter: its name.
        form: one of :mod:`jaxacct.train.clipping.contributions`.
        reason: why.
    """

    parameter: str
    form: type[Contributions]
    reason: str


class Routes(tuple[Route, ...]):
    """A :class:`Route` for each parameter, in their order; prints as a table."""

    @classmethod
    def of(cls, params: PyTree, forms: Iterable[type[Contributions]], reasons: Iterable[str]) -> Self:
        """Returns the routes of the parameters of a pytree, whose names it gives."""
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
        return cls(map(Route, names, forms, reasons))

    def __str__(self) -> str:
        rows = [(route.parameter, route.form.__name__, route.reason) for route in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


class GhostLoss:
    """The loss of one example, traced, and how each of its parameters is used.

    Args:
        loss: ``loss(params, example)``, a scalar.
        params: pytree of arrays, or of their shapes.
        example: one example, or its shapes.
        specs: how each parameter lies over a mesh's axes of tensors; None: whole.

    Attributes:
        taps: by the number of a parameter, its uses by linear maps; parameters without an entry get gradients of
            their own for each example.
        reasons: by the number of a parameter, why that is so.
        together: how sums are held.
    """

    def __init__(
        self,
        loss: Callable[[PyTree, Any], Array],
        params: PyTree,
        example: PyTree,
        specs: Sequence[PartitionSpec] | None = None,
    ) -> None:
        leaves, self._params = jax.tree.flatten(params)
        parts, self._example = jax.tree.flatten(example)
        self._count = len(leaves)
        self._specs = specs or (WHOLE,) * self._count

        def flat(*inputs: Array) -> Array:
            given = jax.tree.unflatten(self._params, inputs[: self._count])
            return loss(given, jax.tree.unflatten(self._example, inputs[self._count :]))

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (*leaves, *parts)]
        traced = jax.make_jaxpr(flat)(*shapes)
        refuse(traced.jaxpr)
        self._uses = Uses(traced, self._count)
        self.taps: dict[int, Tap] = {}
        self.reasons: list[str] = []
        for leaf in range(self._count):
            form, reason, uses = self._chosen(leaf, shapes[leaf])
            self.reasons.append(reason)
            if uses:
                self.taps[leaf] = Tap(uses, form)
        self.together = Together.of(
            [self.taps[leaf].shape if leaf in self.taps else shapes[leaf].shape for leaf in range(self._count)],
            [self._is_stored(leaf, shapes[leaf]) for leaf in range(self._count)],
        )

    def _is_stored(self, leaf: int, shape: jax.ShapeDtypeStruct) -> bool:
        tap = self.taps.get(leaf)
        of_copies = tap is not None and bool(tap.uses[0][1].own)
        return (tap is None or tap.form is Stored) and not of_copies and shape.dtype.itemsize <= 4

    def _chosen(
        self, leaf: int, shape: jax.ShapeDtypeStruct
    ) -> tuple[type[Contributions], str, tuple[tuple[Path, Use], ...]]:
        """Returns in which form a parameter's gradients are held, why, and its uses if it is by those."""
        uses = [(path, use) for path, use in self._uses.found.items() if use.leaf == leaf]
        uses.sort(key=lambda found: not isinstance(found[1].layer, Table))
        if leaf in self._uses.lost:
            return Stored, f"used by {self._uses.lost[leaf]}", ()
        if not uses:
            return Stored, "not used", ()
        # Half precision is held exactly by float32; float64 is not.
        if jnp.finfo(shape.dtype).bits > 32:
            return Stored, f"of dtype {shape.dtype}", ()
        sides = {use.sides for _, use in uses}
        tables, dense = ([use for _, use in uses if isinstance(use.layer, Table) is kind] for kind in (True, False))
        same = sides <= {uses[0][1].sides, uses[0][1].sides[::-1]} and len({use.sides for use in tables}) < 2
        if not same or len({use.stack for _, use in uses}) > 1:
            return Stored, "used by maps of different matrices", ()
        positions, copies = sum(use.positions for _, use in uses), math.prod(uses[0][1].copies)
        entries = shape.size // copies
        size = f"{copies} copies of " * (copies > 1) + f"{entries:,} entries"
        size += f", used at {positions:,} position{'s' * (positions > 1)}"
        if not dense:
            return Looked, f"{size}: rows that are looked up", tuple(uses)
        if tables:
            written = sum(use.positions for use in dense)
            cost = written * sum(matrix_shape(dense[0].layer)) * (AFFORDED if written >= MANY else 1)
            form: type[Contributions] = Tied if entries > cost else Stored
            return form, f"{size}, some of which look up rows", tuple(uses) if form is Tied else ()
        rows, columns = matrix_shape(dense[0].layer)
        form = matrix_form(positions, rows, columns)
        # A loop would add up gradients of its own step by step, which pays where they are small. Where steps have
        # copies, it would hold what goes in and out beside what it holds for the derivative: twice the memory.
        if form is Stored and (len(uses) > 1 or dense[0].steps) and entries <= positions * (rows + columns):
            return Stored, f"{size}: fewer than go in and out of its maps there", ()
        plain = all(isinstance(use.layer, Dense) and len(use.own) == len(use.steps) for use in dense)
        if form is Summed and plain and positions >= MANY and entries <= AFFORDED * positions * (rows + columns):
            return Stored, f"{size}: cheaper than their sum in float64", ()
        return form, f"{size}: {WHY[form]}", tuple(uses)

    def routes(self) -> Routes:
        """Returns how the gradients of each parameter are held, and why."""
        forms = [self.taps[leaf].form if leaf in self.taps else Stored for leaf in range(self._count)]
        return Routes.of(jax.tree.unflatten(self._params, range(self._count)), forms, self.reasons)

    def contributions(self, params: PyTree, examples: PyTree) -> list[Contributions]:
        """Returns, for each parameter, the gradients of all examples in some form."""
        leaves = jax.tree.leaves(params)
        own = {leaf: value for leaf, value in enumerate(leaves) if leaf not in self.taps}
        tapped = {leaf: value for leaf, value in enumerate(leaves) if leaf in self.taps}
        shifts = {path: use.shift for tap in self.taps.values() for path, use in tap.uses}

        def run(shifts: dict[Path, Array], own: dict[int, Array], example: PyTree) -> tuple[Array, dict[Path, Array]]:
            inputs = [own[leaf] if leaf in own else leaves[leaf] for leaf in range(self._count)]
            return self._uses.evaluate(tapped, [*inputs, *jax.tree.leaves(example)], shifts)

        slope = apart(jax.grad(run, argnums=(0, 1), has_aux=True))
        (cotangents, gradients), activations = jax.vmap(slope, in_axes=(None, None, 0))(shifts, own, examples)
        return [
            Stored.of(gradients[leaf], spec)
            if leaf in own
            else self.taps[leaf].contributions(activations, cotangents, spec)
            for leaf, spec in enumerate(self._specs)
        ]

    def restored(self, sums: list[Array]) -> list[Array]:
        """Returns the sums of :meth:`contributions` in the shapes of their parameters."""
        return [self.taps[leaf].restored(value) if leaf in self.taps else value for leaf, value in enumerate(sums)]


def _joined(parts: list[tuple[Array, Array]], axis: int) -> Any:
    """Returns the factors of several uses with their positions, along ``axis``, one after another; None of none."""
    if len(parts) < 2:
        return parts[0] if parts else (None, None)
    return tuple(jnp.concatenate(column, axis=axis) for column in zip(*parts, strict=True))
