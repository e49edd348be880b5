"""A residual network of nine layers whose normalization sees one example at a time."""

from __future__ import annotations

from typing import Literal

from flax import nnx
from jaxtyping import Array, Float

from bench.papers.convolution import convolve_by_patches
from jaxacct import validation

NORMS = ("group", "layer")
GROUPS = 4
"""Groups of channels of a group norm; any divisor of the narrowest layer would do."""


class ResNet9(nnx.Module):
    """Eight convolutions of 3 x 3 in two residual blocks, and a linear output, for images of at least 32 x 32.

    Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy and applications to
    differentially private deep learning", trains a ResNet9 on CIFAR-10 with LayerNorm in place of BatchNorm: that is
    ``norm="layer"``, ``width=64``, 6.6 million parameters. Batch statistics have no bounded sensitivity; those of one
    example do no harm.

    Args:
        shape: of an image, channels last.
        num_classes: number of outputs.
        width: channels of the first layer, a multiple of 4; the last has eight times as many.
        norm: "group", four groups of channels; "layer": all of them in one.
        rngs: of the first parameters.

    >>> import jax.numpy as jnp
    >>> nnx.eval_shape(lambda: ResNet9((32, 32, 3), 10, rngs=nnx.Rngs(0))(jnp.zeros((32, 32, 3)))).shape
    (10,)
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        num_classes: int,
        *,
        width: int = 64,
        norm: Literal["group", "layer"] = "group",
        rngs: nnx.Rngs,
    ) -> None:
        validation.check_one_of(norm, "norm", NORMS, "BatchNorm mixes the examples of a batch.")
        if width < GROUPS or width % GROUPS:
            raise ValueError(f"width = {width} has no {GROUPS} equal groups of channels: give a multiple of {GROUPS}.")
        if len(shape) != 3 or min(shape[:2]) < 32:
            raise ValueError(f"shape = {shape} is no image of at least 32 x 32 with channels last.")

        def block(inputs: int, outputs: int) -> ConvolutionBlock:
            return ConvolutionBlock(inputs, outputs, norm, rngs=rngs)

        self.first = block(shape[2], width)
        self.second = block(width, 2 * width)
        self.second_residual = nnx.List([block(2 * width, 2 * width), block(2 * width, 2 * width)])
        self.third = block(2 * width, 4 * width)
        self.fourth = block(4 * width, 8 * width)
        self.fourth_residual = nnx.List([block(8 * width, 8 * width), block(8 * width, 8 * width)])
        self.output = nnx.Linear(8 * width, num_classes, rngs=rngs)

    def __call__(self, example: Float[Array, "height width channels"]) -> Float[Array, " classes"]:
        features = halved(self.second(self.first(example)))
        features = features + self.second_residual[1](self.second_residual[0](features))
        features = halved(self.fourth(halved(self.third(features))))
        features = features + self.fourth_residual[1](self.fourth_residual[0](features))
        return self.output(features.max(axis=(0, 1)))


class ConvolutionBlock(nnx.Module):
    """A 3 x 3 convolution, a normalization over the one example, ReLU.

    >>> import jax.numpy as jnp
    >>> ConvolutionBlock(3, 8, "layer", rngs=nnx.Rngs(0))(jnp.zeros((5, 5, 3))).shape
    (5, 5, 8)
    """

    def __init__(self, inputs: int, outputs: int, norm: Literal["group", "layer"], *, rngs: nnx.Rngs) -> None:
        self.convolution = nnx.Conv(
            inputs, outputs, (3, 3), use_bias=False, conv_general_dilated=convolve_by_patches, rngs=rngs
        )
        self.norm: nnx.GroupNorm | nnx.LayerNorm = (
            nnx.GroupNorm(outputs, num_groups=GROUPS, rngs=rngs)
            if norm == "group"
            else nnx.LayerNorm(outputs, reduction_axes=(1, 2, 3), rngs=rngs)
        )

    def __call__(self, example: Float[Array, "height width inputs"]) -> Float[Array, "height width outputs"]:
        # GroupNorm takes the first axis for a batch, whatever it is given: an image alone would be normalized row by
        # row. One example is a batch of one.
        return nnx.relu(self.norm(self.convolution(example)[None])[0])


def halved(image: Float[Array, "height width channels"]) -> Float[Array, "rows columns channels"]:
    """Returns the maximum over 2 x 2 windows that do not overlap; an odd last row or column is left out.

    >>> import jax.numpy as jnp
    >>> halved(jnp.arange(16.0).reshape(4, 4, 1))[:, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    rows, columns = image.shape[0] // 2, image.shape[1] // 2
    return image[: 2 * rows, : 2 * columns].reshape(rows, 2, columns, 2, -1).max(axis=(1, 3))
