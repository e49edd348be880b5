"""Gradient canaries: examples that push one parameter of their own, as hard as clipping lets them.

A canary's gradient has one entry, in a coordinate that nothing else touches. So canaries do not interfere, and what the
noisy sum holds in that coordinate is noise of the claimed deviation, plus the clipping norm in the steps that drew the
canary: the worst case that the accounting is for. The trainer is run as it is, on the private examples and all
canaries. One that is left out has the gradient zero: it adds nothing to any sum, so that what is released has the law
of a training without it (a cut batch apart, which the sampler's ``overflow_delta`` pays for).
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxacct import validation

STRENGTH = 1e3
"""Norm of a canary's gradient over the clipping norm: a trainer that does not clip shows it."""


class WithCanaries(nnx.Module):
    """A model and, beside it, one parameter for each canary, all zero at the start.

    >>> WithCanaries(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), 3).canaries.shape
    (3,)
    """

    def __init__(self, inner: nnx.Module, canaries: int) -> None:
        validation.check_whole(canaries, "canaries", 1, 10**6, "a number of canaries")
        self.inner = inner
        self.canaries = nnx.Param(jnp.zeros(canaries))


def with_canaries(loss: Callable[..., Array], size: float) -> Callable[..., Array]:
    """Returns the loss on rows of :func:`rows`: ``loss`` of the model inside, or a canary's, of gradient norm ``size``.

    The returned function takes a :class:`WithCanaries`, the canary's number (-1: an example), whether it is in, and
    what ``loss`` takes after the model.
    """

    def extended(model: WithCanaries, number: Array, included: Array, *example: Array) -> Array:
        ordinary = loss(model.inner, *example)
        pushed = jnp.where(included, size * model.canaries[...][number], 0.0)
        return jnp.where(number < 0, ordinary, pushed)

    return extended


def rows(data: tuple[Array | np.ndarray, ...], included: Bool[np.ndarray, " canaries"]) -> tuple[np.ndarray, ...]:
    """Returns ``data`` (n, ...) and the canaries as n + m rows of ``(number, included, *example)``.

    A canary's row repeats the first example, which its loss does not look at.

    >>> number, there, x = rows((np.array([7.0, 8.0]),), np.array([True]))
    >>> number.tolist(), there.tolist(), x.tolist()
    ([-1, -1, 0], [True, True, True], [7.0, 8.0, 7.0])
    """
    examples = [np.asarray(part) for part in data]
    size, canaries = len(examples[0]), len(included)
    number = np.concatenate([np.full(size, -1, np.int32), np.arange(canaries, dtype=np.int32)])
    there = np.concatenate([np.ones(size, bool), np.asarray(included, bool)])
    return (number, there, *(np.concatenate([part, np.repeat(part[:1], canaries, axis=0)]) for part in examples))


def sums(
    positions: Float[np.ndarray, "moments canaries"], learning_rate: float, expected_batch_size: float, clip_norm: float
) -> Float[np.ndarray, "steps canaries"]:
    """Returns the noisy sums over the clipping norm, read off the canaries' parameters at all moments, start included.

    Plain SGD moves a parameter by -learning_rate times the noisy sum over the expected batch size.

    >>> sums(np.array([[0.0], [-0.5]]), 0.1, 10.0, 2.0).round(6).tolist()
    [[25.0]]
    """
    moved = -np.diff(np.asarray(positions, np.float64), axis=0)
    return moved * (expected_batch_size / (learning_rate * clip_norm))
