"""Linear maps by a parameter, told by the operation that applies them, and written as products of matrices.

Whatever library a model is written in, a dense layer is a ``dot_general`` of an activation and the kernel, a
convolution a ``conv_general_dilated``, an embedding a ``gather`` of rows. Each gradient of one example is a sum over
positions t of a_t b_t^T, where a_t is what the kernel is applied to there, and b_t the cotangent of what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float32

from jaxacct.train.clipping.contributions import HIGHEST, Contributions, Looked, Outer, Stored, Summed
from jaxacct.train.clipping.shards import WHOLE, laid

Shape = tuple[int, ...]


class Layer(Protocol):
    """A linear map by one parameter, the weight, as a matrix: some of its axes are the rows, the others the columns."""

    @property
    def weight_shape(self) -> Shape:
        """The weight's shape."""

    @property
    def rows(self) -> Shape:
        """The weight's axes that make up the rows of the matrix, in that order."""

    @property
    def columns(self) -> Shape:
        """The others."""

    def positions(self, output: Shape) -> int:
        """Returns how often the matrix is applied to one example that makes an output of this shape."""

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        """Returns a (batch, positions, rows) and b (batch, positions, columns), whose products add up to the gradient.

        Of what went into the map, and the cotangent of what came out. A table has the numbers of rows in place of a.
        """


def matrix_shape(layer: Layer) -> tuple[int, int]:
    """Returns the rows and columns of a layer's matrix."""
    rows, columns = (math.prod(layer.weight_shape[axis] for axis in axes) for axes in (layer.rows, layer.columns))
    return rows, columns


def weight_shaped(layer: Layer, gradient: Array) -> Array:
    """Returns a gradient by the layer's matrix in the weight's shape."""
    order = (*layer.rows, *layer.columns)
    spread = gradient.reshape(tuple(layer.weight_shape[axis] for axis in order))
    return spread.transpose(tuple(int(axis) for axis in np.argsort(order)))


@dataclass(frozen=True)
class Dense:
    """``dot_general`` without batch axes, the weight on either side.

    Attributes:
        weight_first: whether the weight is the left operand.
        summed, weight_summed: axes that are summed over, of the activation and of the weight, in the same order.
        weight_shape: the weight's.
    """

    weight_first: bool
    summed: Shape
    weight_summed: Shape
    weight_shape: Shape

    @property
    def rows(self) -> Shape:
        return self.weight_summed

    @property
    def columns(self) -> Shape:
        return tuple(axis for axis in range(len(self.weight_shape)) if axis not in self.weight_summed)

    def positions(self, output: Shape) -> int:
        return math.prod(output) // matrix_shape(self)[1]

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        free = tuple(axis for axis in range(activation.ndim - 1) if axis not in self.summed)
        order = (0, *(axis + 1 for axis in (*free, *self.summed)))
        batch, (inside, outside) = len(activation), matrix_shape(self)
        activation = activation.transpose(order).reshape(batch, -1, inside)
        if self.weight_first:
            cotangent = cotangent.reshape(batch, outside, -1).transpose(0, 2, 1)
        return activation, cotangent.reshape(batch, -1, outside)


@dataclass(frozen=True)
class Convolution:
    """``conv_general_dilated`` of one group whose right operand is the weight.

    Attributes:
        input_axes, weight_axes, output_axes: where the operands have batch, features and space: as JAX's
            ``lhs_spec``, ``rhs_spec`` and ``out_spec``.
        strides, padding, dilation: of each spatial axis; the dilation is the kernel's.
        weight_shape: the weight's.
        precision: of the products.
    """

    input_axes: Shape
    weight_axes: Shape
    output_axes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    weight_shape: Shape
    precision: Any

    def applied(self, forward: Callable[[Array, Array], Array], image: Array, weight: Array) -> Array:
        """Returns ``forward(image, weight)``, the convolution, whose derivative by the image is written out.

        XLA's CPU compiler brings convolutions into the form that it has fast code for, but not those inside of a loop,
        as those of microbatches and of many steps are. The derivative as JAX makes it has the kernel's two feature axes
        exchanged, and is several times slower there; here the kernel itself is turned.
        """
        # The weight is kept: that of a scan's step is gone when the derivative is taken.
        convolve = jax.custom_vjp(forward)
        convolve.defvjp(
            lambda image, weight: (forward(image, weight), weight),
            lambda weight, cotangent: (self._backward(cotangent, image, weight), None),
        )
        return convolve(image, weight)

    def _backward(self, cotangent: Array, image: Array, weight: Array) -> Array:
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

    @property
    def rows(self) -> Shape:
        _, inputs, *space = self.weight_axes
        return (*space, inputs)

    @property
    def columns(self) -> Shape:
        return self.weight_axes[:1]

    def positions(self, output: Shape) -> int:
        return math.prod(output) // matrix_shape(self)[1]

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        images = activation.transpose(_channels_last(self.input_axes))
        outputs = cotangent.transpose(_channels_last(self.output_axes))
        return self._patches(images), outputs.reshape(len(outputs), -1, matrix_shape(self)[1])

    def _patches(self, rows: Array) -> Array:
        """Returns what the kernel sees (batch, positions, area), of rows (batch, images, *space, channels)."""
        spatial = len(self.strides)
        rows = jax.lax.pad(
            rows, jnp.zeros((), rows.dtype), [(0, 0, 0)] * 2 + [(*ends, 0) for ends in self.padding] + [(0, 0, 0)]
        )
        for axis in range(spatial):
            size, place = self.weight_shape[self.weight_axes[2 + axis]], 2 + 2 * axis
            reach = (size - 1) * self.dilation[axis] + 1
            count = (rows.shape[place] - reach) // self.strides[axis] + 1
            # Slices, not a gather, which is slow on a CPU.
            ends = [(self.dilation[axis] * tap, self.strides[axis] * (count - 1) + 1) for tap in range(size)]
            cut = [
                jax.lax.slice_in_dim(rows, first, first + length, self.strides[axis], place) for first, length in ends
            ]
            rows = jnp.stack(cut, axis=place + 1)
        order = (0, 1, *range(2, 2 + 2 * spatial, 2), *range(3, 3 + 2 * spatial, 2), 2 + 2 * spatial)
        area = math.prod(self.weight_shape) // self.weight_shape[self.weight_axes[0]]
        return rows.transpose(order).reshape(len(rows), -1, area)


@dataclass(frozen=True)
class Table:
    """``gather`` of whole rows of a matrix.

    Attributes:
        weight_shape: rows and width.
        clipped: whether an index out of range means the nearest row, instead of none.
    """

    weight_shape: Shape
    clipped: bool

    @property
    def rows(self) -> Shape:
        return (0,)

    @property
    def columns(self) -> Shape:
        return (1,)

    def positions(self, output: Shape) -> int:
        return math.prod(output) // self.weight_shape[1]

    def factors(self, activation: Array, cotangent: Array) -> tuple[Array, Array]:
        size, width = self.weight_shape
        indices, gradients = (
            part.reshape(len(part), -1, *last) for part, last in ((activation, ()), (cotangent, (width,)))
        )
        if indices.dtype.itemsize < 4:  # which may not hold the number of rows
            indices = indices.astype(jnp.int32)
        inside = jnp.clip(indices, 0, size - 1).astype(jnp.int32)
        if not self.clipped:
            gradients = jnp.where((indices == inside)[..., None], gradients, 0)
        return inside, gradients


def looked_up(indices: Array, gradients: Array, size: int) -> Looked:
    """Returns the gradients of a table of ``size`` rows of which some were looked up, each example's rows merged.

    (batch, positions) and (batch, positions, width), or with an axis of copies in front of both.
    """
    merge = _merge_rows
    for _ in indices.shape[:-1]:
        merge = jax.vmap(merge)
    return Looked(*merge(indices, gradients.astype(jnp.float32)), size)


def matrix_form(positions: int, inside: int, outside: int) -> type[Outer] | type[Stored] | type[Summed]:
    """Returns in which form gradients of (inside, outside) are fastest, and take no more memory than is taken already.

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

    Those that are stored are transposed.
    """
    activations, cotangents = activations.astype(jnp.float32), cotangents.astype(jnp.float32)
    *first, positions, inside = activations.shape
    form = matrix_form(positions, inside, cotangents.shape[-1])
    if form is Outer:
        return Outer(activations[..., 0, :], cotangents[..., 0, :])
    if form is Stored:
        axis, batches = len(first), tuple(range(len(first)))
        # The cotangents first: that order is twice as fast on a CPU.
        numbers = (((axis,), (axis,)), (batches, batches))
        product = jax.lax.dot_general(cotangents, activations, numbers, precision=HIGHEST)
        turned = PartitionSpec(*reversed(spec))
        return Stored(laid(product, PartitionSpec(*[None] * (axis - 1), *turned)), turned)
    return Summed(activations, cotangents)


def find_layer(primitive: str, params: dict[str, Any], shapes: list[Shape], place: int) -> Layer | None:
    """Returns the map by the operand at ``place`` of an operation on ``shapes``, None where it is of no known kind."""
    if primitive == "dot_general" and len(shapes) == 2:
        summed, batched = params["dimension_numbers"]
        if any(map(len, batched)):
            return None
        return Dense(place == 0, tuple(summed[1 - place]), tuple(summed[place]), shapes[place])
    if primitive == "conv_general_dilated" and place == 1:
        if params["feature_group_count"] != 1 or params["batch_group_count"] != 1 or set(params["lhs_dilation"]) != {1}:
            return None
        numbers = params["dimension_numbers"]
        return Convolution(
            input_axes=tuple(numbers.lhs_spec),
            weight_axes=tuple(numbers.rhs_spec),
            output_axes=tuple(numbers.out_spec),
            strides=tuple(params["window_strides"]),
            padding=tuple(tuple(ends) for ends in params["padding"]),
            dilation=tuple(params["rhs_dilation"]),
            weight_shape=shapes[1],
            precision=params["precision"],
        )
    if primitive == "gather" and place == 0 and len(shapes[0]) == 2:
        numbers, indices = params["dimension_numbers"], shapes[1]
        whole_rows = (
            tuple(numbers.collapsed_slice_dims) == (0,)
            and tuple(numbers.start_index_map) == (0,)
            and tuple(numbers.offset_dims) == (len(indices) - 1,)
            and tuple(params["slice_sizes"]) == (1, shapes[0][1])
            and not numbers.operand_batching_dims
        )
        return Table(shapes[0], params["mode"] == jax.lax.GatherScatterMode.CLIP) if whole_rows else None
    return None


def _channels_last(axes: Shape) -> Shape:
    """Returns the order (batch, images, *space, channels) of an operand whose batch axis was put in front."""
    images, channels, *space = (axis + 1 for axis in axes)
    return (0, images, *space, channels)


def _merge_rows(indices: Array, gradients: Array) -> tuple[Array, Array]:
    """Returns each index once, with the sum of its gradients; places that are left over point at row 0 with zeros."""
    positions = len(indices)
    order = jnp.argsort(indices)
    indices, gradients = indices[order], gradients[order]
    group = jnp.cumsum(jnp.concatenate([jnp.zeros(1, jnp.int32), (jnp.diff(indices) != 0).astype(jnp.int32)]))
    merged = jax.ops.segment_sum(gradients, group, num_segments=positions)
    rows = jax.ops.segment_max(indices, group, num_segments=positions)
    return jnp.maximum(rows, 0), merged
