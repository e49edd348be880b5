"""Losses that draw at random: what their keys depend on, views of an example, and what modules write on the way."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.shared import WHOLE, sharing

from jaxacct.train import DPTrainer, IndexedSource, PoissonSampler, accuracy, run_key
from jaxacct.train import unprotected_intermediates as intermediates
from jaxacct.train.models import takes_key

pytestmark = pytest.mark.usefixtures("unsolved")

EXAMPLES, WIDTH = 6, 8
INPUTS = np.random.default_rng(0).normal(size=(EXAMPLES, WIDTH)).astype(np.float32)
SETTINGS = {"epsilon": 50.0, "delta": 1e-3, "noise_multiplier": 3.0, "sampler": PoissonSampler(EXAMPLES, 0.5, 7)}


class Weights(nnx.Module):
    """A product with the weights: the gradient is what they are multiplied by."""

    def __init__(self, rate=0.0):
        self.weights = nnx.Param(jnp.ones(WIDTH))
        self.dropouts = nnx.List([nnx.Dropout(rate, rngs=nnx.Rngs(0)) for _ in range(2)]) if rate else None

    def __call__(self, x):
        for dropout in self.dropouts or ():
            x = dropout(x)
        return x @ self.weights[...]


def draws(model, x, *, key):
    return model(x + jax.random.normal(key, (WIDTH,)))


def plain(model, x):
    return model(x)


def make(loss=draws, rate=0.0, data=None, **options):
    options = {"clip_norm": 1e6, "seed": 1} | options
    return sharing(DPTrainer(Weights(rate), loss, WHOLE, data or (INPUTS,), **SETTINGS | options))


def gradients(trainer, indices, step=0, mask=None):
    """The clipped sum of a batch without noise, times whatever the expected batch size is."""
    state = dataclasses.replace(trainer.state, step=jnp.int32(step))
    indices = jnp.asarray(indices)
    mask = jnp.ones(len(indices), bool) if mask is None else jnp.asarray(mask)
    after = _update(trainer)(state, trainer.constants, (jnp.asarray(INPUTS)[indices],), mask, indices)
    (old,), (new,) = jax.tree.leaves(state.params), jax.tree.leaves(after.params)
    return np.asarray(old - new) * trainer.sampler.expected_batch_size


@functools.cache
def _update(trainer):
    return jax.jit(dataclasses.replace(trainer.program, gradient_noise=0.0).update)


def drawn(index, step, view=0, views=1, purpose=1, seed=1):
    """A key of an example, by hand."""
    key = jax.random.fold_in(jax.random.fold_in(run_key(seed), 4), step)
    return jax.random.split(jax.random.fold_in(key, index), (views, 3))[view, purpose]


@pytest.fixture(scope="module")
def noisy():
    return make()


def test_a_key_is_that_of_step_and_example_wherever_it_stands_in_the_batch(noisy):
    def expected(index, step):
        return INPUTS[index] + np.asarray(jax.random.normal(drawn(index, step), (WIDTH,)))

    three = gradients(noisy, [1, 4, 5])
    np.testing.assert_allclose(three, sum(expected(index, 0) for index in (1, 4, 5)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients(noisy, [5, 1, 4]), three, rtol=1e-5, atol=1e-5)
    # One example less: the keys of the others stay, so that the sum moves by no more than its gradient.
    less = gradients(noisy, [5, 1, 4], mask=[True, False, True])
    np.testing.assert_allclose(three - less, expected(1, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients(noisy, [1, 4, 5], step=3), sum(expected(i, 3) for i in (1, 4, 5)), rtol=1e-4)


@pytest.mark.exhaustive
def test_a_run_is_the_same_in_pieces_and_from_data_read_by_index():
    whole, parts = (make(clip_norm=1.0, microbatch_size=size) for size in (64, 2))
    by_index = make(data=IndexedSource((INPUTS,)), clip_norm=1.0)
    whole.fit(4)
    parts.fit(1)
    parts.fit(3)
    by_index.fit(4)
    for other in (parts, by_index):
        np.testing.assert_allclose(
            jax.tree.leaves(other.state.params)[0], jax.tree.leaves(whole.state.params)[0], rtol=1e-5
        )


def test_each_stream_of_each_example_drops_for_itself():
    """With 2 in 3 kept by each of two layers, the masks of all are told from gradients."""
    trainer = make(plain, rate=1 / 3)
    total = np.zeros(WIDTH)
    for index in (1, 4):
        keys = [jax.random.fold_in(drawn(index, 0, purpose=2), number) for number in range(2)]
        # Flax draws by the stream's key with its count folded in.
        kept = [jax.random.bernoulli(jax.random.fold_in(key, 0), 2 / 3, (WIDTH,)) for key in keys]
        assert np.any(kept[0] != kept[1])
        total += INPUTS[index] * np.asarray(kept[0] & kept[1]) * 1.5**2
    np.testing.assert_allclose(gradients(trainer, [1, 4]), total, rtol=1e-5, atol=1e-6)


def test_keys_of_another_generator_do_not_tie_examples_to_each_other():
    """Drawn in a batch, values of ``rbg`` all follow from the first key: one row less would change all others."""
    trainer = make(seed=jax.random.key(1, impl="rbg"))
    # The same shape each time: with a row beside it that counts for nothing, and comes after it.
    alone, other = (gradients(trainer, [index, 0], mask=[True, False]) for index in (1, 4))
    np.testing.assert_allclose(gradients(trainer, [4, 1]) - other, alone, rtol=1e-4, atol=1e-5)


def flipped(key, example):
    (x,) = example
    return (jnp.where(jax.random.bernoulli(key), x[::-1], x),)


def test_views_are_averaged_before_clipping():
    trainer = make(augment=flipped, views=4, clip_norm=1.0)
    total = np.zeros(WIDTH)
    for index in (0, 3):
        views = [
            np.asarray(flipped(drawn(index, 2, view, 4, 0), (jnp.asarray(INPUTS[index]),))[0])
            + np.asarray(jax.random.normal(drawn(index, 2, view, 4, 1), (WIDTH,)))
            for view in range(4)
        ]
        mean = np.mean(views, axis=0)
        total += mean / max(1.0, np.linalg.norm(mean))
    np.testing.assert_allclose(gradients(trainer, [0, 3], step=2), total, rtol=1e-4, atol=1e-5)


def image_loss(model, image, *, key):
    return jnp.sum(model(image + 0.1 * jax.random.normal(key, image.shape)) ** 2)


@pytest.mark.exhaustive
def test_views_of_convolutions_and_embeddings_by_both_routes():
    class Both(nnx.Module):
        def __init__(self):
            self.convolution = nnx.Conv(2, 3, (2, 2), rngs=nnx.Rngs(0))
            self.embedding = nnx.Embed(5, 3, rngs=nnx.Rngs(1))

        def __call__(self, image):
            return nnx.tanh(self.convolution(image)) + self.embedding(jnp.int32(4 * (jnp.tanh(image[..., 0]) > 0)))

    images = np.random.default_rng(1).normal(size=(EXAMPLES, 3, 3, 2)).astype(np.float32)

    def sums(ghost):
        options = SETTINGS | {"clip_norm": 0.5, "views": 3, "ghost": ghost, "seed": 0}
        trainer = DPTrainer(Both(), image_loss, optax.sgd(1.0), (images,), **options)
        indices = jnp.arange(3)
        program = dataclasses.replace(trainer.program, gradient_noise=0.0)
        after = jax.jit(program.update)(trainer.state, trainer.constants, (images[:3],), indices < 2, indices)
        pairs = zip(jax.tree.leaves(trainer.state.params), jax.tree.leaves(after.params), strict=True)
        return [np.asarray(old - new) for old, new in pairs]

    for one, other in zip(sums(True), sums(False), strict=True):
        assert np.abs(other).max() > 1e-3
        np.testing.assert_allclose(one, other, atol=3e-3 * np.abs(other).max())


def wants_any(model, x, **options):
    return model(x)


@pytest.mark.parametrize(
    ("loss", "options", "error", "words"),
    [
        (lambda model, key: model(key), {}, TypeError, "takes a part of the example as key"),
        (wants_any, {}, TypeError, "takes any keyword.*name key"),
        (functools.partial(draws, key=jax.random.key(0)), {}, TypeError, "has a key already"),
        (plain, {"views": 8}, ValueError, "views = 8 of each example are all the same"),
        (draws, {"views": 0}, ValueError, "views = 0 is not a number of views"),
        (plain, {"augment": lambda key, example: example[0]}, TypeError, "augment returned a .*a tuple"),
        (lambda model, x: jax.checkpoint(model)(x), {"rate": 0.5}, ValueError, r"writes into a module.*nnx\.remat"),
    ],
)
def test_losses_that_are_refused(loss, options, error, words):
    with pytest.raises(error, match=words):
        make(loss, **options)


def test_signatures_that_want_a_key_and_those_that_do_not():
    wants = [draws, lambda model, x, key: 0.0, lambda model, *x, key=None: 0.0, jax.jit(draws), nnx.remat(draws)]
    assert all(takes_key(loss, 1) for loss in wants)
    assert not any(takes_key(loss, 1) for loss in (plain, lambda model, x, other=None: 0.0, jnp.add, max))


class Counts(nnx.Module):
    """Writes a count, drops, and sows."""

    def __init__(self):
        self.weights = nnx.Param(jnp.ones(WIDTH))
        self.count = nnx.Variable(jnp.zeros(()))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        self.count[...] += 1
        kept = self.dropout(x)
        self.sow(nnx.Intermediate, "kept", kept)
        return kept @ self.weights[...]


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
def test_writes_are_dropped_and_what_is_handed_out_works():
    trainer = DPTrainer(Counts(), plain, optax.sgd(1.0), (INPUTS,), clip_norm=1.0, seed=0, **SETTINGS)
    trainer.fit(2)
    model = trainer.model
    assert float(model.count[...]) == 0
    assert int(model.dropout.rngs.count[...]) == 0
    assert not hasattr(model, "kept")
    model(jnp.ones(WIDTH))  # in training mode: its stream goes on
    assert int(model.dropout.rngs.count[...]) == 1
    assert float(trainer.model.count[...]) == 0
    classify = nnx.Sequential(model, lambda value: jnp.stack([value, -value]))
    labels = np.int32(INPUTS @ np.asarray(model.weights[...]) < 0)
    assert accuracy(classify, INPUTS, labels) == 1.0  # nothing is dropped in evaluation


def test_intermediates_of_each_example():
    found = intermediates(Counts(), plain, (INPUTS,), key=jax.random.key(0))
    (kept,) = found["kept"]
    assert kept.shape == (EXAMPLES, WIDTH)
    dropped = np.asarray(kept) == 0
    np.testing.assert_allclose(np.where(dropped, 0, 2 * INPUTS), kept, rtol=1e-6)
    assert len({tuple(row) for row in dropped}) > 3
    alike = np.asarray(intermediates(Counts(), plain, (INPUTS,))["kept"][0]) == 0
    assert np.all(alike == alike[0])
    with pytest.raises(ValueError, match="key = None, and loss takes a key"):
        intermediates(Counts(), draws, (INPUTS,))
