"""Ghost clipping: per-example gradients by linear maps, recognized in a traced loss, without forming most of them.

Whatever library a model is written in, a dense layer is a ``dot_general`` of an activation and the kernel, a
convolution a ``conv_general_dilated``, an embedding a ``gather`` of rows. Each gradient of one example is a sum over
positions t of a_t b_t^T, where a_t is the kernel's input there, and b_t the cotangent of its output.

* :class:`Layer`, :class:`DenseLayer`, :class:`Convolution`, :class:`Table`: linear maps as products of matrices;
* :class:`Uses`: the places where a traced loss uses its parameters by them;
* :class:`Tap`, :class:`GhostLoss`: the form in which each parameter's gradients are held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float32, PyTree

from jaxacct.numerics.pytrees import register_dataclass, scan_counts
from jaxacct.train.clipping.contributions import (
    HIGHEST,
    Contributions,
    Looked,
    Outer,
    Stacked,
    Stored,
    Summed,
    Tied,
    Together,
)
from jaxacct.train.clipping.rows import WHOLE, interpret, lay_out, refuse, run_alone, separate_rows, side
from jaxacct.train.ownership import path_of

Shape = tuple[int, ...]
"""Shape of an array, or some of its axes."""


@dataclass(frozen=True)
class Layer:
    """A linear map by one parameter, the weight, as a matrix: some of its axes are the rows, the others the columns.

    Attributes:
        weight_shape: shape of the weight.
        rows: the weight's axes that make up the rows of the matrix, in that order.
    """

    weight_shape: Shape
    rows: Shape

    @property
    def columns(self) -> Shape:
        """The weight's other axes, which make up the columns."""
        return tuple(axis for axis in range(len(self.weight_shape)) if axis not in self.rows)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        rows, columns = (math.prod(self.weight_shape[axis] for axis in axes) for axes in (self.rows, self.columns))
        return rows, columns

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        """Returns a (batch, positions, rows) and b (batch, positions, columns), whose products add up to the gradient.

        Arguments are the map's input and the cotangent of its output. A table has the numbers of rows in place of a.
        """
        raise NotImplementedError

    def restore(self, gradient: Array) -> Array:
        """Returns a gradient by the matrix in the weight's shape."""
        order = (*self.rows, *self.columns)
        spread = gradient.reshape(tuple(self.weight_shape[axis] for axis in order))
        return spread.transpose(tuple(int(axis) for axis in np.argsort(order)))


@dataclass(frozen=True)
class DenseLayer(Layer):
    """A dense layer: ``dot_general`` without batch axes, the weight on either side.

    Attributes:
        rows: axes of the weight that are summed over.
        summed: axes of the activation that are summed over, in the same order.
        weight_first: whether the weight is the left operand.
    """

    summed: Shape
    weight_first: bool

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        # Axes that are not summed over are positions. Where the weight comes first, so do its columns in the output.
        free = tuple(axis for axis in range(activation.ndim - 1) if axis not in self.summed)
        order = (0, *(axis + 1 for axis in (*free, *self.summed)))
        batch, (inside, outside) = len(activation), self.matrix_shape
        activation = activation.transpose(order).reshape(batch, -1, inside)
        if self.weight_first:
            cotangent = cotangent.reshape(batch, outside, -1).transpose(0, 2, 1)
        return activation, cotangent.reshape(batch, -1, outside)


@dataclass(frozen=True)
class Convolution(Layer):
    """A convolution: ``conv_general_dilated`` of one group whose right operand is the weight.

    Attributes:
        rows: the kernel's axes of space, and that of its inputs.
        input_axes, weight_axes, output_axes: places of batch, features and space in the operands: as JAX's
            ``lhs_spec``, ``rhs_spec`` and ``out_spec``.
        strides, padding, dilation: one for each spatial axis; the dilation is the kernel's.
        precision: precision of the products.
    """

    input_axes: Shape
    weight_axes: Shape
    output_axes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    precision: Any

    def apply(self, forward: Callable[[Array, Array], Array], image: Array, weight: Array) -> Array:
        """Returns ``forward(image, weight)``, the convolution, whose derivative by the image is written out.

        XLA's CPU compiler brings convolutions into the form that it has fast code for, but not those inside of a loop,
        such as those of microbatches and of many steps. The derivative as JAX makes it exchanges the kernel's two
        feature axes by its dimension numbers, and is several times slower there; here the kernel itself is turned.
        """
        # The weight is a residual: a scan step's own slice is gone when the derivative is taken.
        convolve = jax.custom_vjp(forward)
        convolve.defvjp(
            lambda image, weight: (forward(image, weight), weight),
            lambda weight, cotangent: (self._backward(cotangent, image, weight), None),
        )
        return convolve(image, weight)

    def _backward(self, cotangent: Array, image: Array, weight: Array) -> Array:
        """Returns the cotangent of the image.

        It is a convolution of the output's cotangent, spread by the strides, with the flipped kernel, padded so that
        the image's size comes out.
        """
        outputs, inputs, *space = self.weight_axes
        reaches = [(weight.shape[axis] - 1) * by + 1 for axis, by in zip(space, self.dilation, strict=True)]
        padding = [
            (reach - 1 - first, image.shape[before] + first - (cotangent.shape[after] - 1) * stride - 1)
            for reach, (first, _), before, after, stride in zip(
                reaches, self.padding, self.input_axes[2:], self.output_axes[2:], self.strides, strict=True
            )
        ]
        return jax.lax.conv_general_dilated(
            cotangent, jnp.flip(weight.swapaxes(outputs, inputs), space), (1,) * len(space), padding,
            lhs_dilation=self.strides, rhs_dilation=self.dilation, precision=self.precision,
            preferred_element_type=image.dtype,
            dimension_numbers=jax.lax.ConvDimensionNumbers(self.output_axes, self.weight_axes, self.input_axes),
        )  # fmt: skip

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        images = activation.transpose(_channels_last(self.input_axes))
        outputs = cotangent.transpose(_channels_last(self.output_axes))
        return self._patches(images), outputs.reshape(len(outputs), -1, self.matrix_shape[1])

    def _patches(self, rows: Array) -> Array:
        """Returns the kernel's inputs (batch, positions, area), from rows (batch, images, *space, channels)."""
        spatial = len(self.strides)
        rows = jax.lax.pad(
            rows, jnp.zeros((), rows.dtype), [(0, 0, 0)] * 2 + [(*ends, 0) for ends in self.padding] + [(0, 0, 0)]
        )
        # Each pass replaces one spatial axis by two: the positions along it, and the taps of the kernel.
        for axis in range(spatial):
            size, place = self.weight_shape[self.weight_axes[2 + axis]], 2 + 2 * axis
            reach = (size - 1) * self.dilation[axis] + 1
            count = (rows.shape[place] - reach) // self.strides[axis] + 1
            # Slices, for a gather is slow on a CPU.
            ends = [(self.dilation[axis] * tap, self.strides[axis] * (count - 1) + 1) for tap in range(size)]
            cut = [
                jax.lax.slice_in_dim(rows, first, first + length, self.strides[axis], place) for first, length in ends
            ]
            rows = jnp.stack(cut, axis=place + 1)
        order = (0, 1, *range(2, 2 + 2 * spatial, 2), *range(3, 3 + 2 * spatial, 2), 2 + 2 * spatial)
        return rows.transpose(order).reshape(len(rows), -1, self.matrix_shape[0])


@dataclass(frozen=True)
class Table(Layer):
    """A table of which rows are looked up: ``gather`` of whole rows of a matrix.

    Attributes:
        weight_shape: number of rows, and width.
        clipped: whether an index out of range means the nearest row, instead of none.
    """

    clipped: bool

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        size, width = self.weight_shape
        indices, gradients = (
            part.reshape(len(part), -1, *last) for part, last in ((activation, ()), (cotangent, (width,)))
        )
        if indices.dtype.itemsize < 4:  # the number of rows may not fit into such a dtype
            indices = indices.astype(jnp.int32)
        inside = jnp.clip(indices, 0, size - 1).astype(jnp.int32)
        if not self.clipped:
            gradients = jnp.where((indices == inside)[..., None], gradients, 0)
        return inside, gradients


def looked_up(indices: Array, gradients: Array, size: int) -> Looked:
    """Returns the gradients of a table of ``size`` rows of which some were looked up, each example's rows merged.

    Shapes are (batch, positions) and (batch, positions, width), or both with an axis of copies in front.
    """
    merge = _merge_rows
    for _ in indices.shape[:-1]:
        merge = jax.vmap(merge)
    return Looked(*merge(indices, gradients.astype(jnp.float32)), size)


def matrix_form(positions: int, inside: int, outside: int) -> type[Outer] | type[Stored] | type[Summed]:
    """Returns the form in which gradients of (inside, outside) are fastest, in no more memory than is in use already.

    A gradient is k n numbers and T k n multiplications; the inner products of its T positions are 2 T^2 numbers and
    T^2 (k + n) multiplications, in float64. The gradient is the better choice where it is smaller than the inner
    products, and the faster one where it is not much larger than the activations and cotangents, T (k + n) numbers.

    Source: Bu et al. (2022), "Scalable and efficient training of large convolutional neural networks with differential
    privacy", section 4.1, for the first of the two conditions.
    """
    if positions == 1:
        return Outer
    return Stored if inside * outside <= 2 * positions * max(positions, inside + outside) else Summed


def matrix_contributions(
    activations: Float32[Array, "*copies batch positions k"],
    cotangents: Float32[Array, "*copies batch positions n"],
    spec: PartitionSpec = WHOLE,
) -> Contributions:
    """Returns the gradients ``sum_t a_t b_t^T`` in the form that :func:`matrix_form` says, laid as ``spec`` says.

    Stored ones are transposed.
    """
    activations, cotangents = activations.astype(jnp.float32), cotangents.astype(jnp.float32)
    *first, positions, inside = activations.shape
    form = matrix_form(positions, inside, cotangents.shape[-1])
    if form is Outer:
        return Outer(activations[..., 0, :], cotangents[..., 0, :])
    if form is Stored:
        axis, batches = len(first), tuple(range(len(first)))
        # Cotangents come first: that order is twice as fast on a CPU.
        numbers = (((axis,), (axis,)), (batches, batches))
        product = jax.lax.dot_general(cotangents, activations, numbers, precision=HIGHEST)
        turned = PartitionSpec(*reversed(spec))
        return Stored(lay_out(product, PartitionSpec(*[None] * (axis - 1), *turned)), turned)
    return Summed(activations, cotangents)


def _find_dense(params: dict[str, Any], shapes: list[Shape], place: int) -> DenseLayer | None:
    """Returns the map of a ``dot_general`` without batched axes."""
    summed, batched = params["dimension_numbers"]
    if len(shapes) != 2 or any(map(len, batched)):
        return None
    return DenseLayer(shapes[place], tuple(summed[place]), tuple(summed[1 - place]), weight_first=place == 0)


def _find_convolution(params: dict[str, Any], shapes: list[Shape], place: int) -> Convolution | None:
    """Returns the map of a ``conv_general_dilated`` by its kernel, in one group and with inputs as they are."""
    groups = params["feature_group_count"], params["batch_group_count"]
    if place != 1 or groups != (1, 1) or set(params["lhs_dilation"]) != {1}:
        return None
    numbers = params["dimension_numbers"]
    _, inputs, *space = numbers.rhs_spec
    return Convolution(
        weight_shape=shapes[1],
        rows=(*space, inputs),
        input_axes=tuple(numbers.lhs_spec),
        weight_axes=tuple(numbers.rhs_spec),
        output_axes=tuple(numbers.out_spec),
        strides=tuple(params["window_strides"]),
        padding=tuple(tuple(ends) for ends in params["padding"]),
        dilation=tuple(params["rhs_dilation"]),
        precision=params["precision"],
    )


def _find_table(params: dict[str, Any], shapes: list[Shape], place: int) -> Table | None:
    """Returns the map of a ``gather`` of whole rows of a matrix."""
    if place != 0 or len(shapes[0]) != 2:
        return None
    numbers, indices = params["dimension_numbers"], shapes[1]
    whole_rows = (
        tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
        and tuple(numbers.offset_dims) == (len(indices) - 1,)
        and tuple(params["slice_sizes"]) == (1, shapes[0][1])
        and not numbers.operand_batching_dims
    )
    return Table(shapes[0], (0,), params["mode"] == jax.lax.GatherScatterMode.CLIP) if whole_rows else None


LAYERS: dict[str, Callable[[dict[str, Any], list[Shape], int], Layer | None]] = {
    "dot_general": _find_dense,
    "conv_general_dilated": _find_convolution,
    "gather": _find_table,
}
"""Rules by which an operation is a linear map by its operand at some place, by the operation's primitive: from its
parameters, its operands' shapes and the place. None: of no known kind, so that the operand's gradients are stored."""


def find_layer(step: core.JaxprEqn, operands: list[Any], place: int, output: Any) -> Layer | str:
    """Returns the linear map that an operation is by its operand at a place, or words for one that is none."""
    name = step.primitive.name
    find = LAYERS.get(name)
    layer = None if find is None else find(step.params, [np.shape(value) for value in operands], place)
    if layer is None:
        return name
    # Factors are real: of complex numbers only a part would be left.
    if any(map(jnp.iscomplexobj, (operands[1 - place], output))):
        return f"{name} of complex numbers"
    return layer


def _channels_last(axes: Shape) -> Shape:
    """Returns the order (batch, images, *space, channels) of an operand whose batch axis was put in front."""
    images, channels, *space = (axis + 1 for axis in axes)
    return (0, images, *space, channels)


def _merge_rows(indices: Array, gradients: Array) -> tuple[Array, Array]:
    """Returns each index once, with the sum of its gradients; places that are left over point at row 0 with zeros."""
    # Sorted, equal indices are neighbours: ``group`` numbers the distinct ones. A segment that is empty has the least
    # integer as its largest index, which becomes row 0, and a gradient of zero.
    positions = len(indices)
    order = jnp.argsort(indices)
    indices, gradients = indices[order], gradients[order]
    group = jnp.cumsum(jnp.concatenate([jnp.zeros(1, jnp.int32), (jnp.diff(indices) != 0).astype(jnp.int32)]))
    merged = jax.ops.segment_sum(gradients, group, num_segments=positions)
    rows = jax.ops.segment_max(indices, group, num_segments=positions)
    return jnp.maximum(rows, 0), merged


# ----------------------------------------------------------------------------------------------------
# Uses of parameters by linear maps in a traced loss: found once, and then evaluated with a zero added at each.
#
# A use is identified by its path: the places of the operations on the way to it, from the outermost in. Those inside of
# ``jit`` and ``remat`` are uses like others. A use inside of a ``scan`` is one use a step: the added zeros, and the
# map's inputs, get an axis of steps in front. A scan hands a parameter to all of its steps, which then share it, or
# slices it along its first axis, so that each step has a copy of its own: row i of what the scan takes belongs to row i
# of all that it stacks, whichever end it starts from. A parameter with any other use is lost.
# ----------------------------------------------------------------------------------------------------

Path = tuple[int, ...]
"""Places of the operations on the way to a use."""

Move = tuple[Shape, Shape | None]
"""Shape before a move, and the order of axes where it is a transposition."""


@register_dataclass
@dataclass(frozen=True)
class Weight:
    """A parameter on its way to the map that uses it.

    Attributes:
        leaf: number of the parameter.
        value: its entries; inside of scans that slice it, those of one copy.
        moves: moves of its entries so far. Moving each copy is moving all of them, with the axes of copies in front.
        own, copies: numbers of the scans around that slice it, the outermost 0, and their lengths.
    """

    leaf: int = field(metadata={"static": True})
    value: Array
    moves: tuple[Move, ...] = field(default=(), metadata={"static": True})
    own: tuple[int, ...] = field(default=(), metadata={"static": True})
    copies: Shape = field(default=(), metadata={"static": True})

    def follow(self, step: core.JaxprEqn, value: Array) -> Weight:
        """Returns the weight after an operation that keeps its entries and has the result ``value``."""
        order, first = None, len(self.copies)
        if step.primitive.name == "transpose":
            order = (*range(first), *(first + axis for axis in step.params["permutation"]))
        return replace(self, value=value, moves=(*self.moves, ((*self.copies, *self.value.shape), order)))

    def slice_scan(self, scan: int, length: int) -> Weight:
        """Returns the weight in a step of that scan, which has taken the step's copy off it."""
        return replace(self, own=(*self.own, scan), copies=(*self.copies, length))


@dataclass(frozen=True)
class Use:
    """One use of a parameter by a linear map.

    Attributes:
        leaf: number of the parameter.
        layer: the map.
        moves: moves of the parameter's entries before the map.
        activation, output: shapes and dtypes of the map's other operand and of its output, in one application.
        steps: length of each ``scan`` around it, the outermost first.
        own: places in ``steps`` of the scans whose steps have copies of their own; steps of the others share them.
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
        """Sizes of the parameter's axes of copies, once it was moved."""
        return tuple(self.steps[scan] for scan in self.own)

    @property
    def shape(self) -> Shape:
        """Shape of the parameter."""
        return self.moves[0][0] if self.moves else (*self.copies, *self.layer.weight_shape)

    @property
    def shift(self) -> Array:
        """Zeros to add to the outputs of all steps."""
        return jnp.zeros((*self.steps, *self.output.shape), self.output.dtype)

    @property
    def positions(self) -> int:
        """Number of times that each copy of the parameter is applied to one example."""
        of_one_step = math.prod(self.output.shape) // self.layer.matrix_shape[1]
        return math.prod(self.steps) // math.prod(self.copies) * of_one_step

    @property
    def sides(self) -> tuple[Any, Any]:
        """Axes of the parameter that make up the rows and the columns of the map's matrix: equal for equal matrices."""
        first = len(self.own)
        rows, columns = ([first + axis for axis in axes] for axes in (self.layer.rows, self.layer.columns))
        return self._origin(rows), self._origin(columns)

    @property
    def stack(self) -> Any:
        """Axes of the parameter that make up the copies."""
        return self._origin(range(len(self.own)))

    def _origin(self, axes: Sequence[int]) -> Any:
        """Returns the parameter's axes that ``axes`` of the moved one come from; after a reshape, the moves themselves.

        Then only uses after the same moves are equal.
        """
        # ``found`` has, for each axis after the moves so far, the parameter's axis that it comes from.
        origins = list(range(len(self.shape)))
        shapes = [*(shape for shape, _ in self.moves), (*self.copies, *self.layer.weight_shape)]
        # Transpositions are followed back; a reshape cannot be, and ends the search.
        for (shape, order), result in zip(self.moves, shapes[1:], strict=True):
            if order is not None:
                origins = [origins[axis] for axis in order]
            elif shape != result:  # reshaped: equal only where all moves are
                return self.moves, tuple(axes)
        return tuple(origins[axis] for axis in axes)

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        """Returns :meth:`Layer.factors` of all examples, whose positions are those of all steps together.

        Where steps have copies of their own, an axis of all copies comes first.
        """
        # Axes of copies go to the front, and all axes before a single application's are folded into one for the layer.
        folded = [
            jnp.moveaxis(value, [1 + scan for scan in self.own], range(len(self.own))).reshape(-1, *shape.shape)
            for value, shape in ((activation, self.activation), (cotangent, self.output))
        ]
        first = (*((math.prod(self.copies),) if self.own else ()), len(activation), self.positions)
        return tuple(  # type: ignore[return-value]
            part.reshape(*first, *part.shape[2:]) for part in self.layer.factors(*folded)
        )

    def restore(self, gradient: Array) -> Array:
        """Returns a gradient by the map's matrix, or by that of each copy, in the parameter's own shape."""
        shaped = jax.vmap(self.layer.restore) if self.own else self.layer.restore
        gradient = shaped(gradient).reshape(*self.copies, *self.layer.weight_shape)
        # The moves are undone, the last one first.
        for shape, order in reversed(self.moves):
            if order is not None:
                gradient = gradient.transpose(tuple(int(axis) for axis in np.argsort(order)))
            gradient = gradient.reshape(shape)
        return gradient


class Uses:
    """A traced loss without its dead code, and the uses that it makes of its first inputs, the parameters.

    Attributes:
        linear: all uses by linear maps, by path.
        lost: the first operation that uses a parameter in another way, by the parameter's number.
    """

    def __init__(self, traced: core.ClosedJaxpr, parameters: int) -> None:
        jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
        self._traced, self._parameters = core.ClosedJaxpr(jaxpr, traced.consts), parameters
        self.linear: dict[Path, Use] = {}
        self.lost: dict[int, str] = {}
        avals: list[Any] = [atom.aval for atom in jaxpr.invars]
        inputs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        jax.eval_shape(lambda *values: self.evaluate(dict(enumerate(values[:parameters])), values, {}), *inputs)

    def evaluate(
        self, weights: dict[int, Array], inputs: Any, shifts: dict[Path, Array]
    ) -> tuple[Array, dict[Path, Array]]:
        """Returns the loss with ``shifts`` added to the outputs of those uses, and the inputs of the uses.

        ``weights`` are the parameters whose uses are followed; all others are taken from ``inputs``.
        """
        operands = [Weight(leaf, weights[leaf]) if leaf in weights else value for leaf, value in enumerate(inputs)]
        (value,), seen = self._evaluate(self._traced.jaxpr, self._traced.consts, operands, shifts, (), ())
        (value,) = self._open([value], "the loss itself")
        return value, seen

    def _evaluate(
        self, jaxpr: core.Jaxpr, consts: Any, inputs: Any, shifts: dict[Path, Array], path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        """Returns the results of a traced function, and the inputs of the uses in it.

        ``path`` and ``steps`` are the operations and the lengths of the scans around it.
        """
        seen: dict[Path, Array] = {}

        # Among the values are parameters on their way to a map, as Weights.
        def run(place: int, step: core.JaxprEqn, operands: list[Any]) -> list[Any]:
            results, new = self._apply(jaxpr, step, operands, shifts, (*path, place), steps)
            seen.update(new)
            return results

        return interpret(jaxpr, consts, inputs, run), seen

    def _apply(
        self, jaxpr: core.Jaxpr, step: core.JaxprEqn, operands: list[Any], shifts: Any, path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        """Returns the results of one operation, and the inputs of uses in it; a moved weight stays a weight."""
        name = step.primitive.name
        places = [place for place, value in enumerate(operands) if isinstance(value, Weight)]
        plain = [value.value if isinstance(value, Weight) else value for value in operands]
        if not places:
            return run_alone(jaxpr, step, plain), {}
        if name in ("jit", "pjit"):
            inner = step.params["jaxpr"]
            return self._evaluate(inner.jaxpr, inner.consts, operands, shifts, path, steps)
        if name in ("remat2", "checkpoint"):
            return self._rematerialize(step, operands, shifts, path, steps)
        if name == "scan":
            return self._scan(step, operands, shifts, path, steps)
        results = run_alone(jaxpr, step, plain)
        # One of three: the operation moves a weight, applies one as a linear map, or loses every weight it is given.
        if len(operands) == 1 and keeps_entries(step):
            return [operands[0].follow(step, results[0])], {}
        if len(places) == 1:
            (place,) = places
            layer, output = find_layer(step, plain, place, results[0]), results[0]
            if isinstance(layer, str):
                name = layer
            elif output.size * math.prod(steps):  # a map that never runs has no positions
                weight, activation = operands[place], plain[1 - place]
                inside, outside = (jax.ShapeDtypeStruct(value.shape, value.dtype) for value in (activation, output))
                self.linear[path] = Use(weight.leaf, layer, weight.moves, inside, outside, steps, weight.own)
                if path not in shifts:
                    return [output], {}
                if isinstance(layer, Convolution):
                    convolve = lambda image, kernel: run_alone(jaxpr, step, [image, kernel])[0]  # noqa: E731
                    output = layer.apply(convolve, activation, weight.value)
                return [output + shifts[path]], {path: activation}
        self._open(operands, name)
        return results, {}

    def _rematerialize(
        self, step: core.JaxprEqn, operands: list[Any], shifts: Any, path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        """Returns the results of a rematerialized function, evaluated within a new ``jax.checkpoint``."""

        def body(operands: list[Any], own: dict[Path, Array]) -> tuple[list[Any], dict[Path, Array]]:
            results, seen = self._evaluate(step.params["jaxpr"], (), operands, own, path, steps)
            return self._open(results, step.primitive.name), seen

        options = {"prevent_cse": step.params["prevent_cse"], "policy": step.params["policy"]}
        return jax.checkpoint(body, **options)(operands, _below(shifts, path))

    def _scan(
        self, step: core.JaxprEqn, operands: list[Any], shifts: Any, path: Path, steps: Shape
    ) -> tuple[list[Any], dict[Path, Array]]:
        """Returns the results of a scan, evaluated as a new scan over the same rows and the shifts.

        Weights that are handed to all steps stay weights, those that are sliced become each step's own, and a weight
        that is carried is lost: a step may change it.
        """
        inner, length = step.params["jaxpr"], step.params["length"]
        first, carried = scan_counts(step.params)
        last = first + carried
        fixed, stacks = operands[:first], operands[last:]
        start = self._open(operands[first:last], "scan, as it is carried")

        # The state is that of the given scan; each step also takes its part of the shifts, and stacks the maps' inputs.
        def body(carry: list[Any], rows: Any) -> tuple[list[Any], Any]:
            own, slices = rows
            parts = [part.slice_scan(len(steps), length) if isinstance(part, Weight) else part for part in slices]
            inputs = [*fixed, *carry, *parts]
            results, seen = self._evaluate(inner.jaxpr, inner.consts, inputs, own, path, (*steps, length))
            results = self._open(results, "scan")
            return results[: last - first], (results[last - first :], seen)

        options = {"length": length, "reverse": step.params["reverse"], "unroll": step.params["unroll"]}
        carry, (stacked, seen) = jax.lax.scan(body, start, (_below(shifts, path), stacks), **options)
        return [*carry, *stacked], seen

    def _open(self, values: list[Any], name: str) -> list[Any]:
        """Returns plain values for an operation of that name, to which the weights among them are lost."""
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
    moved = ("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "convert_element_type", "copy")
    return step.primitive.name in moved and before.size == after.size and jnp.issubdtype(after.dtype, jnp.floating)


def _below(shifts: dict[Path, Array], path: Path) -> dict[Path, Array]:
    """Returns the shifts of the uses inside of an operation."""
    return {place: shift for place, shift in shifts.items() if place[: len(path)] == path}


# ----------------------------------------------------------------------------------------------------
# Ghost clipping: per-example gradients without forming most of them, for a loss written in any way.
#
# The loss of one example is traced. A parameter that is used by linear maps alone needs no gradient of its own: a zero
# is added to each map's output for each example, and the loss's derivative by that zero is the cotangent b there. With
# the activation a that went in, both norm and sum follow, from one forward and one backward pass, which leave the map's
# own gradient out. Several uses of one parameter, and those of the steps of a loop, add up: the gradient is the sum
# over all their positions of a_t b_t^T, and one such sum has the norm and the bounds of any other. Steps that have
# copies of their own, such as layers that a scan takes off stacked parameters, have such a sum each. All other
# parameters (biases, scales) get gradients for each example, as ``vmap`` forms them: right whatever the use is, and
# cheap where they are small.
#
# Source: Li et al. (2022), "Large language models can be strong differentially private learners", section 4, for the
# method; Bu et al. (2023), "Differentially private optimization on large model at small cost", for the sum without a
# second backward pass.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tap:
    """All uses of a parameter, by linear maps of one matrix or of its transpose; lookups first.

    Attributes:
        uses: the uses, with their paths.
        form: form in which the gradients are held.
    """

    uses: tuple[tuple[Path, Use], ...]
    form: type[Contributions]

    def contributions(
        self, activations: dict[Path, Array], cotangents: dict[Path, Array], spec: PartitionSpec
    ) -> Contributions:
        """Returns the batch's gradients of the first use's matrix, of a parameter that lies as ``spec`` says.

        If the parameter has copies, an axis of them is in front of all arrays.
        """
        parts, first = [], self.uses[0][1]
        # Factors of all uses of the first use's matrix; those of its transpose exchange a and b.
        for path, use in self.uses:
            left, right = use.factors(activations[path], cotangents[path])
            parts.append((left, right) if use.sides == first.sides else (right, left))
        lookups = sum(isinstance(use.layer, Table) for _, use in self.uses)
        axis = 1 + bool(first.own)
        (indices, gradients), (left, right) = _join(parts[:lookups], axis), _join(parts[lookups:], axis)
        merged: Contributions
        if indices is None:
            plain = all(isinstance(axis, int) for axes in first.sides for axis in axes)  # not reshaped
            lying = PartitionSpec(*(side(spec, axes, first.shape) for axes in first.sides)) if plain else WHOLE
            merged = matrix_contributions(left, right, lying)
        elif left is None:
            merged = looked_up(indices, gradients, first.layer.weight_shape[0])
        else:
            merged = Tied(indices, *(part.astype(jnp.float32) for part in (gradients, left, right)))
        return Stacked(merged) if first.own else merged

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sum of contributions; stored ones are transposed."""
        use = self.uses[0][1]
        copies = (math.prod(use.copies),) if use.own else ()
        rows, columns = use.layer.matrix_shape
        return (*copies, columns, rows) if self.form is Stored else (*copies, rows, columns)

    def restore(self, total: Array) -> Array:
        """Returns a sum of contributions in the parameter's own shape."""
        return self.uses[0][1].restore(total.swapaxes(-1, -2) if self.form is Stored else total)


@dataclass(frozen=True)
class Route:
    """The form in which the gradients of one parameter are held.

    Attributes:
        parameter: its name.
        form: one of :mod:`jaxacct.train.clipping.contributions`.
        reason: reason for the form, in words.
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
        return cls(map(Route, map(path_of, paths), forms, reasons))

    def __str__(self) -> str:
        rows = [(route.parameter, route.form.__name__, route.reason) for route in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


# ----------------------------------------------------------------------------------------------------
# Form of a parameter's gradients, by the maps that use it.
#
# Any use of another kind, or of another matrix, falls back to stored gradients, which are right whatever the use is.
# The rules weigh time and memory only.
# ----------------------------------------------------------------------------------------------------

MANY, AFFORDED = 16, 4
"""From ``MANY`` positions on, the float64 sum over them takes longer than to form a dense layer's gradients in float32:
k n (T + 28) multiplications against 2.5 k n T, where holding a number costs 28 and float64 is 2.5 times as slow (both
measured on a CPU). Gradients are then formed, if they are at most ``AFFORDED`` times as large as the map's inputs and
outputs. Speed and memory only."""


@dataclass(frozen=True)
class Usage:
    """All uses of one parameter, from which the form of its gradients follows.

    Attributes:
        parameter: its shape and dtype.
        uses: by linear maps, lookups first.
        lost: what else uses it, in words; None where nothing does.
    """

    parameter: jax.ShapeDtypeStruct
    uses: tuple[Use, ...]
    lost: str | None

    @property
    def tables(self) -> list[Use]:
        """Uses that look up rows."""
        return [use for use in self.uses if isinstance(use.layer, Table)]

    @property
    def dense(self) -> list[Use]:
        """Uses that multiply by it."""
        return [use for use in self.uses if not isinstance(use.layer, Table)]

    @property
    def positions(self) -> int:
        """Number of positions at which it is used."""
        return sum(use.positions for use in self.uses)

    @property
    def entries(self) -> int:
        """Number of entries of one copy."""
        return self.parameter.size // math.prod(self.uses[0].copies)

    @property
    def size(self) -> str:
        """Copies, entries and positions, in words."""
        copies = math.prod(self.uses[0].copies)
        size = f"{copies} copies of " * (copies > 1) + f"{self.entries:,} entries"
        return size + f", used at {self.positions:,} position{'s' * (self.positions > 1)}"

    def obstacle(self) -> str | None:
        """Returns why its gradients have to be stored; None where another form may hold them."""
        if self.lost is not None:
            return f"used by {self.lost}"
        if not self.uses:
            return "not used"
        # Half precision is held exactly by float32; float64 is not.
        if jnp.finfo(self.parameter.dtype).bits > 32:
            return f"of dtype {self.parameter.dtype}"
        first, sides = self.uses[0].sides, {use.sides for use in self.uses}
        same = sides <= {first, first[::-1]} and len({use.sides for use in self.tables}) < 2
        if not same or len({use.stack for use in self.uses}) > 1:
            return "used by maps of different matrices"
        return None


Choice = tuple[type[Contributions], str, bool]
"""Form, the reason for it, and whether the uses hold the gradients: else they are those of the parameter itself."""


def choose_form(usage: Usage) -> Choice:
    """Returns the form in which the gradients of a parameter that linear maps alone use are held."""
    dense, positions, entries = usage.dense, usage.positions, usage.entries
    if not dense:
        return Looked, f"{usage.size}: rows that are looked up", True
    rows, columns = dense[0].layer.matrix_shape
    if usage.tables:  # as tied embeddings are
        written = sum(use.positions for use in dense)
        is_tied = entries > written * (rows + columns) * (AFFORDED if written >= MANY else 1)
        return Tied if is_tied else Stored, f"{usage.size}, some of which look up rows", is_tied
    form = matrix_form(positions, rows, columns)
    # Gradients of their own are added up use by use, or step by step in a loop, which pays where they are small. Held
    # by uses, a loop whose steps have copies would also keep the maps' inputs and outputs, as well as what it keeps
    # for the derivative: twice the memory.
    if form is Stored and (len(usage.uses) > 1 or dense[0].steps) and entries <= positions * (rows + columns):
        return Stored, f"{usage.size}: fewer than go in and out of its maps there", False
    plain = all(isinstance(use.layer, DenseLayer) and len(use.own) == len(use.steps) for use in dense)
    if form is Summed and plain and positions >= MANY and entries <= AFFORDED * positions * (rows + columns):
        return Stored, f"{usage.size}: cheaper than their sum in float64", False
    reasons: dict[type[Contributions], str] = {
        Outer: "an outer product",
        Stored: "cheaper than inner products of positions",
        Summed: "inner products of positions are cheaper",
    }
    return form, f"{usage.size}: {reasons[form]}", True


class GhostLoss:
    """The loss of one example, traced, and how each of its parameters is used.

    Args:
        loss: ``loss(params, example)``, a scalar.
        params: pytree of arrays, or of their shapes.
        example: one example, or its shapes.
        specs: how each parameter lies over a mesh's axes of tensors; None: whole.

    Attributes:
        taps: uses by linear maps, by the number of a parameter; parameters without an entry get gradients of their own
            for each example.
        reasons: reasons for the form, by the number of a parameter.
        together: layout of the sums.
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
            parameters = jax.tree.unflatten(self._params, inputs[: self._count])
            return loss(parameters, jax.tree.unflatten(self._example, inputs[self._count :]))

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (*leaves, *parts)]
        traced = jax.make_jaxpr(flat)(*shapes)
        refuse(traced.jaxpr)
        self._uses = Uses(traced, self._count)
        self.taps: dict[int, Tap] = {}
        self._forms: list[type[Contributions]] = []
        self._reasons: list[str] = []
        held: list[tuple[Shape, bool]] = []
        # Each parameter gets a form that leaves out its gradients, or the reason why it has none. ``held`` is the shape
        # of its sum, and whether its gradients are held by entry in float32, and not by copies.
        for leaf, shape in enumerate(shapes[: self._count]):
            form, reason, uses = self._choose(leaf, shape)
            self._forms.append(form)
            self._reasons.append(reason)
            if uses:
                self.taps[leaf] = Tap(uses, form)
            of_copies = bool(uses) and bool(uses[0][1].own)
            is_stored = form is Stored and not of_copies and shape.dtype.itemsize <= 4
            held.append((self.taps[leaf].shape if uses else shape.shape, is_stored))
        self.together = Together.of(*zip(*held, strict=True))

    def _choose(
        self, leaf: int, shape: jax.ShapeDtypeStruct
    ) -> tuple[type[Contributions], str, tuple[tuple[Path, Use], ...]]:
        """Returns the form of a parameter's gradients, the reason, and the uses that they are held by; () if none."""
        uses = [(path, use) for path, use in self._uses.linear.items() if use.leaf == leaf]
        uses.sort(key=lambda pair: not isinstance(pair[1].layer, Table))
        usage = Usage(shape, tuple(use for _, use in uses), self._uses.lost.get(leaf))
        if (obstacle := usage.obstacle()) is not None:
            return Stored, obstacle, ()
        form, reason, is_tapped = choose_form(usage)
        return form, reason, tuple(uses) if is_tapped else ()

    def routes(self) -> Routes:
        """Returns how the gradients of each parameter are held, and why."""
        return Routes.of(jax.tree.unflatten(self._params, range(self._count)), self._forms, self._reasons)

    def contributions(self, params: PyTree, examples: PyTree) -> list[Contributions]:
        """Returns, for each parameter, the gradients of all examples in some form."""
        # Derivatives by the zeros give the cotangents, those by the remaining parameters their gradients, in one pass
        # over each example; tapped parameters are constants of it.
        leaves = jax.tree.leaves(params)
        own = {leaf: value for leaf, value in enumerate(leaves) if leaf not in self.taps}
        tapped = {leaf: value for leaf, value in enumerate(leaves) if leaf in self.taps}
        shifts = {path: use.shift for tap in self.taps.values() for path, use in tap.uses}

        def run(shifts: dict[Path, Array], own: dict[int, Array], example: PyTree) -> tuple[Array, dict[Path, Array]]:
            inputs = [own[leaf] if leaf in own else leaves[leaf] for leaf in range(self._count)]
            return self._uses.evaluate(tapped, [*inputs, *jax.tree.leaves(example)], shifts)

        slope = separate_rows(jax.grad(run, argnums=(0, 1), has_aux=True))
        (cotangents, gradients), activations = jax.vmap(slope, in_axes=(None, None, 0))(shifts, own, examples)
        return [
            Stored.of(gradients[leaf], spec)
            if leaf in own
            else self.taps[leaf].contributions(activations, cotangents, spec)
            for leaf, spec in enumerate(self._specs)
        ]

    def restore(self, sums: list[Array]) -> list[Array]:
        """Returns the sums of :meth:`contributions` in the shapes of their parameters."""
        return [self.taps[leaf].restore(value) if leaf in self.taps else value for leaf, value in enumerate(sums)]


def _join(parts: list[tuple[Array, Array]], axis: int) -> Any:
    """Returns the factors of several uses with their positions, along ``axis``, one after another; None for no use."""
    if len(parts) < 2:
        return parts[0] if parts else (None, None)
    return tuple(jnp.concatenate(column, axis=axis) for column in zip(*parts, strict=True))
