"""The network of Bu et al. (2020) for MNIST, and a convolution as a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxacct_recipes.networks import patches


def convolve_by_patches(
    images: Float[Array, "batch height width channels"],
    kernel: Float[Array, "kernel_height kernel_width channels features"],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
    **unused: Any,
) -> Float[Array, "batch rows columns features"]:
    """Returns a convolution of channels-last images, computed as one matrix product on their patches.

    For ``nnx.Conv(..., conv_general_dilated=convolve_by_patches)``: same parameters, same result up to rounding. One
    kernel for each example, which per-example gradients ask for, makes a convolution a grouped one, slow on most
    hardware; the matrix product becomes a batched matrix product. On one CPU core a DP-SGD step of
    :class:`TwoConvolutions` takes a third of the time.

    Raises ValueError for dilations and feature groups, which it does not do.

    >>> import numpy as np
    >>> images, kernel = jnp.ones((1, 4, 4, 1)), jnp.ones((2, 2, 1, 1))
    >>> convolve_by_patches(images, kernel, (2, 2), "VALID")[0, :, :, 0].tolist()
    [[4.0, 4.0], [4.0, 4.0]]
    """
    if feature_group_count != 1 or any(d != 1 for d in (*(lhs_dilation or ()), *(rhs_dilation or ()))):
        raise ValueError(
            f"convolve_by_patches has no dilation and no feature groups (feature_group_count = {feature_group_count}, "
            f"dilations {lhs_dilation} and {rhs_dilation}): leave conv_general_dilated at its default."
        )
    height, width = kernel.shape[:2]
    stride = (window_strides[0], window_strides[1])
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(images.shape[1:3], (height, width), stride, padding)
    padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    cut = jax.vmap(lambda image: patches(image, size=(height, width), stride=stride))(padded)
    # The kernel enters as it is, so that what looks for linear maps by a parameter finds one.
    return jnp.tensordot(cut.reshape(*cut.shape[:3], *kernel.shape[:3]), kernel, axes=3, precision=precision)


class TwoConvolutions(nnx.Module):
    """The network of Bu et al. (2020) for MNIST: 26,010 parameters for 28 x 28 images and ten classes.

    Two convolutions (16 filters of 8 x 8, stride 2, padded; 32 of 4 x 4, stride 2, not padded), each followed by ReLU
    and the maximum over 2 x 2 windows at stride 1; 32 ReLU units; the output. The paper names the architecture by
    reference to the tutorial of TensorFlow Privacy, which has these sizes.

    >>> nnx.eval_shape(lambda: TwoConvolutions((28, 28, 1), 10, rngs=nnx.Rngs(0))(jnp.zeros((28, 28, 1)))).shape
    (10,)
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        rows, columns = (-(-side // 2) - 1 for side in (height, width))
        rows, columns = ((side - 4) // 2 for side in (rows, columns))
        self.first = nnx.Conv(
            channels, 16, (8, 8), strides=2, padding="SAME", conv_general_dilated=convolve_by_patches, rngs=rngs
        )
        self.second = nnx.Conv(
            16, 32, (4, 4), strides=2, padding="VALID", conv_general_dilated=convolve_by_patches, rngs=rngs
        )
        self.hidden = nnx.Linear(rows * columns * 32, 32, rngs=rngs)
        self.output = nnx.Linear(32, num_classes, rngs=rngs)

    def __call__(self, example: Float[Array, "height width channels"]) -> Float[Array, " classes"]:
        features = neighbours_maximum(nnx.relu(self.first(example)))
        features = neighbours_maximum(nnx.relu(self.second(features)))
        return self.output(nnx.relu(self.hidden(features.reshape(-1))))


def neighbours_maximum(image: Float[Array, "height width channels"]) -> Float[Array, "rows columns channels"]:
    """Returns the maximum over each 2 x 2 window, at stride 1 and without padding; max pooling, with a fast gradient.

    >>> neighbours_maximum(jnp.arange(9.0).reshape(3, 3, 1))[:, :, 0].tolist()
    [[4.0, 5.0], [7.0, 8.0]]
    """
    taller = jnp.maximum(image[:-1], image[1:])
    return jnp.maximum(taller[:, :-1], taller[:, 1:])
