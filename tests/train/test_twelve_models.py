"""Twelve kinds of models through the trainer: one step of each against gradients, clipping and noise by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from helpers.shared import WHOLE
from helpers.thorough import cases

from jaxacct.numerics.chacha20 import as_chacha20
from jaxacct.numerics.precision import scope
from jaxacct.train import (
    DPTrainer,
    Flat,
    PoissonSampler,
    cross_entropy,
    run_key,
    split_params,
    to_group_norm,
)  # fmt: skip
from jaxacct.train.clipping import clip_and_sum
from jaxacct.train.integer_noise import noise_of_leaves
from jaxacct.train.models import merge_params
from jaxacct.train.noise import privatize

pytestmark = pytest.mark.usefixtures("unsolved")

EXAMPLES, CAPACITY, EXPECTED, CLIP_NORM, NOISE, SEED = 8, 9, 4.0, 0.5, 2.0, 0
SAMPLER = PoissonSampler(EXAMPLES, EXPECTED / EXAMPLES, CAPACITY)
SETTINGS = {"epsilon": 50.0, "delta": 1e-3, "noise_multiplier": NOISE, "sampler": SAMPLER, "clip_norm": CLIP_NORM}

rng = np.random.default_rng(0)
VECTORS = rng.normal(size=(EXAMPLES, 4)).astype(np.float32)
IMAGES = rng.normal(size=(EXAMPLES, 4, 4, 2)).astype(np.float32)
TOKENS = rng.integers(0, 5, (EXAMPLES, 3)).astype(np.int32)
LABELS = rng.integers(0, 3, EXAMPLES).astype(np.int32)


class Dense(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(4, width, rngs=nnx.Rngs(width)) for width in (4, 3)])

    def __call__(self, vector):
        return self.layers[1](nnx.tanh(self.layers[0](vector)))


class CNN(nnx.Module):
    def __init__(self):
        self.convolution = nnx.Conv(2, 4, (3, 3), rngs=nnx.Rngs(0))
        self.output = nnx.Linear(16, 3, rngs=nnx.Rngs(1))

    def __call__(self, image):
        return self.output(nnx.avg_pool(nnx.relu(self.convolution(image)), (2, 2), (2, 2)).reshape(-1))


class ResNet(nnx.Module):
    def __init__(self):
        self.stem = nnx.Conv(2, 4, (3, 3), rngs=nnx.Rngs(0))
        self.inner = nnx.Conv(4, 4, (3, 3), use_bias=False, rngs=nnx.Rngs(1))
        self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
        self.output = nnx.Linear(4, 3, rngs=nnx.Rngs(2))

    def __call__(self, image):
        features = nnx.relu(self.stem(image))
        features = nnx.relu(features + self.norm(self.inner(features)))
        return self.output(features.mean(axis=(0, 1)))


class Block(nnx.Module):
    def __init__(self, rngs):
        options = {"use_bias": False, "rngs": rngs}
        self.attention = nnx.MultiHeadAttention(2, 4, dropout_rate=0.3, deterministic=False, decode=False, **options)
        self.norm = nnx.LayerNorm(4, **options)
        self.dense = nnx.Linear(4, 4, **options)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.dropout(nnx.gelu(self.dense(x)))


class Transformer(nnx.Module):
    def __init__(self, remat=False):
        rngs = nnx.Rngs(0)
        self.embedding = nnx.Embed(5, 4, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(1)])
        self.remat = remat

    def __call__(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = nnx.remat(Block.__call__)(block, x) if self.remat else block(x)
        return self.embedding.attend(x)


class LSTM(nnx.Module):
    def __init__(self):
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(2, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
        self.output = nnx.Linear(4, 3, rngs=nnx.Rngs(1))

    def __call__(self, vector):
        return self.output(self.rnn(vector.reshape(2, 2))[-1])


class LowRank(nnx.Module):
    def __init__(self):
        self.hidden = nnx.LoRALinear(4, 6, lora_rank=2, rngs=nnx.Rngs(0))
        self.output = nnx.Linear(6, 3, rngs=nnx.Rngs(1))

    def __call__(self, vector):
        return self.output(nnx.tanh(self.hidden(vector)))


class Half(nnx.Module):
    def __init__(self):
        options = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
        self.layers = nnx.List([nnx.Linear(4, width, rngs=nnx.Rngs(width), **options) for width in (4, 3)])

    def __call__(self, vector):
        return self.layers[1](nnx.tanh(self.layers[0](vector))).astype(jnp.float32)


class Towers(nnx.Module):
    def __init__(self):
        def tower(seed):
            return nnx.List([nnx.Linear(4, 4, rngs=nnx.Rngs(seed)), nnx.Linear(4, 3, rngs=nnx.Rngs(seed + 1))])

        self.towers = nnx.Dict(left=tower(0), right=tower(2))

    def __call__(self, vector):
        halves = {"left": vector, "right": vector[::-1]}
        return sum(second(nnx.tanh(first(halves[name]))) for name, (first, second) in self.towers.items())


class Linen(linen.Module):
    @linen.compact
    def __call__(self, vector):
        hidden = linen.Dropout(0.3, deterministic=False)(nnx.tanh(linen.Dense(6)(vector)))
        return linen.Dense(3)(hidden)


def next_token(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens)[:-1], tokens[1:]).mean()


def frozen(model):
    model.eval()
    return model


MODELS = {
    "MLP": (Dense, VECTORS),
    "CNN": (CNN, IMAGES),
    "ResNet with GroupNorm": (lambda: to_group_norm(ResNet(), 2), IMAGES),
    "ResNet with frozen BatchNorm": (lambda: frozen(ResNet()), IMAGES),
    "transformer": (Transformer, TOKENS),
    "transformer under remat": (lambda: Transformer(remat=True), TOKENS),
    "LSTM": (LSTM, VECTORS),
    "LoRA": (LowRank, VECTORS),
    "bfloat16": (Half, VECTORS),
    "towers": (Towers, VECTORS),
    "linen": (
        lambda: nnx.bridge.lazy_init(nnx.bridge.ToNNX(Linen(), rngs=nnx.Rngs(0, dropout=1)), VECTORS[0]),
        VECTORS,
    ),
}


def filled(make):
    """A module with values from NumPy: to draw those of twelve models by JAX would take half of this file's time."""
    graph, state = nnx.split(nnx.eval_shape(make))
    values = np.random.default_rng(0)

    def fill(path, leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(7)
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return np.zeros(leaf.shape, leaf.dtype)
        entries = values.normal(scale=0.5, size=leaf.shape)
        return jnp.asarray((abs(entries) + 0.5 if "var" in str(path) else entries).astype(leaf.dtype))

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(fill, state))


def by_hand(loss, params, examples, keys_of):
    """The noisy mean of the clipped gradients of the first step, in NumPy but for gradients and noise themselves."""
    key = run_key(SEED)
    sample, noise, of_loss = (jax.random.fold_in(key, purpose) for purpose in (0, 1, 4))
    indices, mask = (np.asarray(part) for part in SAMPLER.sample(sample, 0))
    rows = indices[mask]
    assert 2 < len(rows) < EXAMPLES

    def parts(params, examples, rows):
        keys = jax.vmap(lambda row: keys_of(jax.random.fold_in(jax.random.fold_in(of_loss, 0), row)))(rows)
        gradients = jax.tree.leaves(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, examples, keys))
        return gradients

    quickly = jax.jit(parts, compiler_options={"xla_backend_optimization_level": 0})
    gradients = quickly(params, tuple(part[rows] for part in examples), rows)
    with scope():
        words = jax.random.key_data(as_chacha20(jax.random.fold_in(noise, 0)))
        added = noise_of_leaves(words, tuple(leaf.shape[1:] for leaf in gradients), 0)
    leaves = [np.asarray(leaf, np.float64) for leaf in gradients]
    norms = np.sqrt(sum((leaf.reshape(len(rows), -1) ** 2).sum(axis=1) for leaf in leaves))
    assert norms.max() > CLIP_NORM
    clipped = [np.tensordot(np.minimum(1, CLIP_NORM / norms), leaf, axes=1) for leaf in leaves]
    return [(leaf + NOISE * CLIP_NORM * np.asarray(draw)) / EXPECTED for leaf, draw in zip(clipped, added, strict=True)]


def assert_equal(found, expected, tolerance):
    for one, other in zip(jax.tree.leaves(found), expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, atol=tolerance, rtol=0)


def lora(path, variable):
    return isinstance(variable, nnx.LoRAParam)


def setting(name):
    make, inputs = MODELS[name]
    loss, data = (next_token, (inputs,)) if inputs is TOKENS else (cross_entropy, (inputs, LABELS))
    return filled(make), loss, data, lora if name == "LoRA" else None


@functools.cache
def reference(name):
    """The trained parameters of a model, and what its first step takes off them; streams of dropout are redone."""
    model, loss, data, trainable = setting(name)
    graph, params, rest = split_params(model, trainable)
    flat = nnx.to_flat_state(rest)
    streams = [place for place, (_, variable) in enumerate(flat) if isinstance(variable, nnx.RngKey)]

    def keys_of(key):
        own = jax.random.split(key, (1, 3))[0, 2]
        return [jax.random.fold_in(own, number) for number in range(len(streams))]

    def of_one(params, example, keys):
        new = dict(zip(streams, keys, strict=True))
        seeded = [(path, old.replace(new.get(place, old[...]))) for place, (path, old) in enumerate(flat)]
        return loss(merge_params(graph, params, nnx.from_flat_state(seeded)), *example)

    return params, by_hand(of_one, params, data, keys_of)


# Convolutions and norms; an embedding that is used twice, attention, dropout and remat; a loop. Any other has a test of
# its own elsewhere of what is particular to it, or is made of what these are made of.
IN_KIND = ["ResNet with GroupNorm", "transformer under remat", "LSTM"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", cases(IN_KIND, [name for name in MODELS if name not in IN_KIND]))
def test_a_step_is_the_one_by_hand(name):
    model, loss, data, trainable = setting(name)
    trainer = DPTrainer(model, loss, WHOLE, data, trainable=trainable, seed=SEED, **SETTINGS)
    trainer.fit(1)
    params, expected = reference(name.removesuffix(" under remat"))
    taken = jax.tree.map(lambda old, new: np.float64(old) - np.float64(new), params, trainer.state.params)
    assert_equal(taken, expected, 0.01 if name == "bfloat16" else 1e-5)


@pytest.mark.exhaustive
def test_equinox_through_the_parts():
    equinox = pytest.importorskip("equinox")
    params, static = equinox.partition(equinox.nn.MLP(4, 3, 4, 1, key=jax.random.key(0)), equinox.is_inexact_array)
    dropout = equinox.nn.Dropout(0.3)

    def loss(params, example, key):
        vector, label = example
        return cross_entropy(equinox.combine(params, static), dropout(vector, key=key), label)

    key = run_key(SEED)
    sample, noise, of_loss = (jax.random.fold_in(jax.random.fold_in(key, purpose), 0) for purpose in (0, 1, 4))
    indices, mask = SAMPLER.sample(sample)
    keys = jax.vmap(functools.partial(jax.random.fold_in, of_loss))(indices)
    rows = ((VECTORS[indices], LABELS[indices]), keys)
    query = functools.partial(clip_and_sum, lambda params, row: loss(params, *row), rule=Flat(CLIP_NORM), ghost=True)
    total, _ = jax.jit(query)(params, rows, mask)
    settings = {"noise_multiplier": NOISE, "clip_norm": CLIP_NORM, "expected_batch_size": EXPECTED}
    taken = jax.jit(functools.partial(privatize, **settings))(noise, total)
    assert_equal(taken, by_hand(loss, params, (VECTORS, LABELS), lambda key: key), 1e-5)
