"""The loss of one example, and what a trained module reaches on data that is not private."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

EVALUATION_BATCH = 1000
"""Examples evaluated at a time: bounds the memory, changes no result."""


def cross_entropy(model: Any, example: Array, label: Array) -> Float[Array, ""]:
    """Returns the negative log-likelihood of one labelled example, in nats.

    >>> round(float(cross_entropy(lambda x: x, jnp.zeros(2), 1)), 4)
    0.6931
    """
    return -jax.nn.log_softmax(model(example))[label]


def accuracy(model: nnx.Module, inputs: ArrayLike, labels: ArrayLike) -> float:
    """Returns the share of examples whose largest output is their label.

    For data that is not private, such as a public test set: no noise is added.

    >>> from jaxacct.train.models import Linear
    >>> model = Linear((2,), 2, rngs=nnx.Rngs(0))
    >>> accuracy(model, jnp.zeros((4, 2)), jnp.array([0, 0, 0, 1]))
    0.75
    """
    right = _outputs(model, inputs).argmax(axis=-1) == jnp.asarray(labels)
    return float(jnp.mean(right.astype(jnp.float32)))


def root_mean_squared_error(model: nnx.Module, inputs: ArrayLike, labels: ArrayLike) -> float:
    """Returns the root mean squared error of the expected class, for classes that are steps of a scale (stars).

    The module's outputs are taken as log-probabilities up to a constant; the mean of that distribution is the
    prediction that has the least squared error under it. Labels count from 0, which shifts both and changes nothing.

    For data that is not private, such as a public test set: no noise is added.

    >>> from jaxacct.train.models import Linear
    >>> model = Linear((2,), 5, rngs=nnx.Rngs(0))
    >>> round(root_mean_squared_error(model, jnp.zeros((2, 2)), jnp.array([2, 4])), 4)
    1.4142
    """
    probabilities = jax.nn.softmax(_outputs(model, inputs))
    expected = probabilities @ jnp.arange(probabilities.shape[-1], dtype=probabilities.dtype)
    return float(jnp.sqrt(jnp.mean(jnp.square(expected - jnp.asarray(labels).astype(expected.dtype)))))


def _outputs(model: nnx.Module, inputs: ArrayLike) -> Float[Array, "examples classes"]:
    graph, state = nnx.split(model)
    return _run(graph, state, jnp.asarray(inputs))


@functools.partial(jax.jit, static_argnames="graph")
def _run(graph: Any, state: Any, inputs: Array) -> Array:
    return jax.lax.map(nnx.merge(graph, state), inputs, batch_size=EVALUATION_BATCH)
