"""The networks that :mod:`bench.studies.train_step` trains, one example at a time, and random examples for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

VOCABULARY, WORDS, WIDTH = 1000, 32, 128
"""Of the transformer, which predicts the next word; the LSTM reads as many vectors."""


class MLP(nnx.Module):
    """Dense layers on 784 inputs, rectified."""

    def __init__(self, *widths: int, rngs: nnx.Rngs) -> None:
        sizes = (784, *widths, 10)
        self.layers = nnx.List(nnx.Linear(*pair, rngs=rngs) for pair in itertools.pairwise(sizes))

    def __call__(self, image: jax.Array) -> jax.Array:
        values = image.reshape(-1)
        for layer in self.layers[:-1]:
            values = nnx.relu(layer(values))
        return self.layers[-1](values)


class CNN(nnx.Module):
    """The convolutional net that tutorials of DP-SGD train on MNIST: 26,010 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, (8, 8), strides=2, padding="SAME", rngs=rngs)
        self.second = nnx.Conv(16, 32, (4, 4), strides=2, padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(512, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        for layer in (self.first, self.second):
            image = nnx.max_pool(nnx.relu(layer(image)), (2, 2), (1, 1))
        return self.output(nnx.relu(self.hidden(image.reshape(-1))))


class Block(nnx.Module):
    """Two 3 x 3 convolutions with GroupNorm beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, rngs: nnx.Rngs) -> None:
        options = {"padding": "SAME", "use_bias": False, "rngs": rngs}
        self.first = nnx.Conv(inside, outside, (3, 3), strides=stride, **options)
        self.second = nnx.Conv(outside, outside, (3, 3), **options)
        self.norms = nnx.List(nnx.GroupNorm(outside, num_groups=4, rngs=rngs) for _ in range(2))
        self.shortcut = nnx.Conv(inside, outside, (1, 1), strides=stride, **options) if stride > 1 else None

    def __call__(self, image: jax.Array) -> jax.Array:
        values = nnx.relu(self.norms[0](self.first(image)))
        values = self.norms[1](self.second(values))
        return nnx.relu(values + (image if self.shortcut is None else self.shortcut(image)))


class ResNet(nnx.Module):
    """Three stages of one block on 28 x 28 images: 76,000 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(1, 16, (3, 3), strides=2, padding="SAME", use_bias=False, rngs=rngs)
        self.norm = nnx.GroupNorm(16, num_groups=4, rngs=rngs)
        stages = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        self.blocks = nnx.List(Block(*stage, rngs=rngs) for stage in stages)
        self.output = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        values = nnx.relu(self.norm(self.stem(image)))
        for block in self.blocks:
            values = block(values)
        return self.output(values.mean(axis=(0, 1)))


class Attention(nnx.Module):
    """A block of a transformer: causal attention of four heads and a dense layer, each after a LayerNorm."""

    def __init__(self, rngs: nnx.Rngs, width: int = WIDTH) -> None:
        self.norms = nnx.List(nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, values: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(jnp.zeros(len(values)))
        values = values + self.attention(self.norms[0](values), mask=mask)
        return values + self.down(nnx.gelu(self.up(self.norms[1](values))))


class Transformer(nnx.Module):
    """Two blocks between a table of words and its transpose, which is tied to it."""

    def __init__(self, rngs: nnx.Rngs, *, vocabulary: int = VOCABULARY, words: int = WORDS, width: int = WIDTH) -> None:
        self.table = nnx.Embed(vocabulary, width, rngs=rngs)
        self.places = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (words, width)))
        self.blocks = nnx.List(Attention(rngs, width) for _ in range(2))
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        values = self.table(words) + self.places
        for block in self.blocks:
            values = block(values)
        return self.table.attend(self.norm(values))


class LSTM(nnx.Module):
    """A recurrent layer over 32 vectors, and a dense one on its last output."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layer = nnx.RNN(nnx.OptimizedLSTMCell(64, WIDTH, rngs=rngs))
        self.output = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, rows: jax.Array) -> jax.Array:
        return self.output(self.layer(rows)[-1])


class Network(NamedTuple):
    make: Callable[[nnx.Rngs], nnx.Module]
    shape: tuple[int, ...]
    """Of one example."""
    words: bool = False
    """Whether examples are words of a vocabulary, and so are the labels, one for each."""

    def examples(self, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        if self.words:
            text = rng.integers(0, VOCABULARY, (size, self.shape[0] + 1)).astype(np.int32)
            return text[:, :-1], text[:, 1:]
        return rng.random((size, *self.shape)).astype(np.float32), rng.integers(0, 10, size).astype(np.int32)


NETWORKS = {
    "MLP": Network(lambda rngs: MLP(128, rngs=rngs), (28, 28, 1)),
    "MLP 670k": Network(lambda rngs: MLP(512, 512, rngs=rngs), (28, 28, 1)),
    "CNN": Network(CNN, (28, 28, 1)),
    "ResNet": Network(ResNet, (28, 28, 1)),
    "transformer": Network(Transformer, (WORDS,), words=True),
    "LSTM": Network(LSTM, (WORDS, 64)),
}


def cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the loss of one example, a mean over its words where it has several labels."""
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[..., None], axis=-1).mean()
