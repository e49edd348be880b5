"""The networks of the recipes: logistic regression, a multilayer perceptron, and a small convolutional network.

They take one example, without a batch axis, and are made of ``nnx.Linear`` alone, whose per-example gradients need not
be formed to be clipped. None of them mixes examples or keeps statistics of them.

>>> MLP((123,), 2, width=16, rngs=nnx.Rngs(0)).hidden.kernel.shape
(123, 16)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flax import nnx
from jax import numpy as jnp
from jaxtyping import Array, Float


class Linear(nnx.Module):
    """Multinomial logistic regression on inputs less ``center``, a public constant.

    Inputs around zero have smaller norms, so that clipping cuts less off the gradients.

    >>> Linear((8, 8, 1), 10, rngs=nnx.Rngs(0))(jnp.zeros((8, 8, 1))).shape
    (10,)
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, *, center: float = 0.0, rngs: nnx.Rngs) -> None:
        # Zero is the best start for a convex loss: a random one would have to be unlearned through the noise.
        self.output = nnx.Linear(math.prod(shape), num_classes, kernel_init=nnx.initializers.zeros, rngs=rngs)
        self.center = center

    def __call__(self, example: Float[Array, ...]) -> Float[Array, " classes"]:
        return self.output(example.reshape(-1) - self.center)


class MLP(nnx.Module):
    """A multilayer perceptron of one hidden layer.

    The default activation is tanh, whose gradients stay bounded under clipping (Papernot et al., 2021, "Tempered
    sigmoid activations for deep learning with differential privacy"). Its output starts at zero: all classes alike.

    >>> MLP((123,), 2, width=16, rngs=nnx.Rngs(0))(jnp.zeros(123)).shape
    (2,)
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        num_classes: int,
        *,
        width: int,
        activation: Callable[[Array], Array] = nnx.tanh,
        rngs: nnx.Rngs,
    ) -> None:
        self.hidden = nnx.Linear(math.prod(shape), width, rngs=rngs)
        self.output = nnx.Linear(width, num_classes, kernel_init=nnx.initializers.zeros, rngs=rngs)
        self.activation = activation

    def __call__(self, example: Float[Array, ...]) -> Float[Array, " classes"]:
        return self.output(self.activation(self.hidden(example.reshape(-1))))


def patches(
    image: Float[Array, "height width channels"], *, size: int | tuple[int, int], stride: int | tuple[int, int]
) -> Float[Array, "rows columns area"]:
    """Returns the patches of an image, flattened: the inputs of a convolution without padding.

    >>> patches(jnp.arange(9.0).reshape(3, 3, 1), size=2, stride=1)[0, 1].tolist()
    [1.0, 2.0, 4.0, 5.0]
    """
    (height, width), (down, across) = (pair if isinstance(pair, tuple) else (pair, pair) for pair in (size, stride))
    rows, columns = (image.shape[0] - height) // down + 1, (image.shape[1] - width) // across + 1
    # Slices, not a gather: the gradient of a gather is a scatter, which is slow.
    shifted = [
        image[i : i + down * (rows - 1) + 1 : down, j : j + across * (columns - 1) + 1 : across]
        for i in range(height)
        for j in range(width)
    ]
    return jnp.stack(shifted, axis=2).reshape(rows, columns, -1)


class PatchCNN(nnx.Module):
    """Two strided convolutions with tanh, then a hidden layer: 34,778 parameters for 28 x 28 images.

    A convolution is written as a linear layer on patches.

    >>> nnx.eval_shape(lambda: PatchCNN((28, 28, 1), 10, rngs=nnx.Rngs(0))(jnp.zeros((28, 28, 1)))).shape
    (10,)
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs) -> None:
        height, width, channels = shape
        rows, columns = ((side - 6) // 2 + 1 for side in (height, width))
        rows, columns = ((side - 4) // 2 + 1 for side in (rows, columns))
        self.first = nnx.Linear(6 * 6 * channels, 16, rngs=rngs)
        self.second = nnx.Linear(4 * 4 * 16, 32, rngs=rngs)
        self.hidden = nnx.Linear(rows * columns * 32, 32, rngs=rngs)
        self.output = nnx.Linear(32, num_classes, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def __call__(self, example: Float[Array, "height width channels"]) -> Float[Array, " classes"]:
        features = nnx.tanh(self.first(patches(example, size=6, stride=2)))
        features = nnx.tanh(self.second(patches(features, size=4, stride=2)))
        return self.output(nnx.tanh(self.hidden(features.reshape(-1))))
