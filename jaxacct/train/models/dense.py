"""Modules without structure in their input: logistic regression and one hidden layer."""

from __future__ import annotations

import math
from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float


class Linear(nnx.Module):
    """Multinomial logistic regression on inputs less ``center``, a public constant.

    Inputs around zero have smaller norms, so that clipping takes less of the gradients.

    >>> import jax.numpy as jnp
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
    """One hidden layer.

    The default activation is tanh, whose gradients stay bounded under clipping (Papernot et al., 2021, "Tempered
    sigmoid activations for deep learning with differential privacy"). With ``width=16`` and ``activation=nnx.relu`` it
    is the network of Bu et al. (2020), section 4.1, for the Adult data. Its output starts at zero: all classes alike.

    >>> import jax.numpy as jnp
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
