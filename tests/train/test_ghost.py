"""Are gradients that are never formed those that vmap forms, in norm and in sum, and no less bounded?"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxacct.numerics import precision
from jaxacct.train.clipping import Flat, PerLayer, clip_and_sum, clipped_sum
from jaxacct.train.clipping.contributions import Looked, Outer, Stored, Summed
from jaxacct.train.clipping.ghost import GhostLoss
from jaxacct.train.clipping.query import StoredLoss

BATCH = 5


class Image(nnx.Module):
    """Two convolutions, one with more positions than entries, a norm, and dense layers on rows and on all."""

    def __init__(self, rngs):
        self.wide = nnx.Conv(1, 2, (3, 3), strides=2, padding="SAME", rngs=rngs)
        self.norm = nnx.GroupNorm(2, num_groups=1, rngs=rngs)
        self.deep = nnx.Conv(2, 24, (2, 3), strides=2, padding=((1, 0), (0, 0)), kernel_dilation=(2, 1), rngs=rngs)
        self.rows = nnx.Linear(24, 4, rngs=rngs)
        self.output = nnx.Linear(8, 3, use_bias=False, rngs=rngs)

    def __call__(self, image):
        features = nnx.tanh(self.norm(self.wide(image)))
        return self.output(nnx.relu(self.rows(self.deep(features))).reshape(-1))


class Tokens(nnx.Module):
    """An embedding whose rows repeat, a layer used twice, a normalization, and attention's dense layers."""

    def __init__(self, rngs):
        self.table = nnx.Embed(7, 16, rngs=rngs)
        self.twice = nnx.Linear(16, 16, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.attend = nnx.LinearGeneral(16, (2, 20), rngs=rngs)
        self.output = nnx.LinearGeneral((2, 20), 3, axis=(-2, -1), rngs=rngs)

    def __call__(self, tokens):
        features = self.twice(nnx.tanh(self.twice(self.table(tokens))))
        heads = self.attend(self.norm(features))
        return self.output(heads).mean(axis=0)


@functools.cache
def problem(name):
    rng = np.random.default_rng(0)
    model = {"image": Image, "tokens": Tokens}[name](nnx.Rngs(1))
    graph, params = nnx.split(model)
    inputs = (
        jnp.asarray(rng.standard_normal((BATCH, 7, 8, 1)), jnp.float32)
        if name == "image"
        else jnp.asarray([[1, 2, 1, 6], [0, 0, 0, 0], [3, 4, 5, 6], [6, 1, 6, 1], [2, 2, 5, 0]], jnp.int32)
    )
    labels = jnp.asarray(rng.integers(0, 3, BATCH), jnp.int32)

    def loss(params, example):
        return -jax.nn.log_softmax(nnx.merge(graph, params)(example[0]))[example[1]]

    return loss, params, (inputs, labels)


def names(params):
    paths = jax.tree_util.tree_leaves_with_path(params)
    return [jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value") for path, _ in paths]


@precision.kernel
def squares_of(parts):
    return [part.squares() for part in parts]


@functools.cache
def compiled(name, ghost, microbatch_size=None):
    loss = problem(name)[0]

    def run(params, examples, mask, clip_norm):
        one = jax.tree.map(lambda rows: rows[0], examples)
        gradients = GhostLoss(loss, params, one) if ghost else StoredLoss(loss, params, one)
        squares = squares_of(gradients.contributions(params, examples))
        total, count = clip_and_sum(
            loss, params, examples, mask, rule=Flat(clip_norm), ghost=ghost, microbatch_size=microbatch_size
        )
        return squares, jax.tree.leaves(total), count

    return jax.jit(run)


KINDS = {
    "image": {
        "wide/kernel": Stored, "deep/kernel": Summed, "rows/kernel": Stored, "output/kernel": Outer,
    },
    "tokens": {"table/embedding": Looked, "attend/kernel": Summed, "output/kernel": Stored},
}  # fmt: skip


@pytest.mark.first_tier("image")
@pytest.mark.parametrize("name", KINDS)
def test_each_layer_is_held_in_the_form_meant_for_it(name):
    loss, params, examples = problem(name)
    gradients = GhostLoss(loss, params, jax.tree.map(lambda rows: rows[0], examples))
    found = {names(params)[leaf] for leaf in gradients.taps}
    assert found == set(KINDS[name])
    kinds = {}

    def look(params, examples):
        for path, part in zip(names(params), gradients.contributions(params, examples), strict=True):
            kinds[path] = type(part)

    jax.eval_shape(look, params, examples)
    assert kinds == dict.fromkeys(names(params), Stored) | KINDS[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("clip_norm", [0.05, 0.9, 1e3])
def test_norms_and_sums_are_those_of_vmap(name, clip_norm):
    _, params, examples = problem(name)
    mask = jnp.arange(BATCH) != 3
    norms, sums, count = compiled(name, True)(params, examples, mask, clip_norm)
    their_norms, their_sums, their_count = compiled(name, False)(params, examples, mask, clip_norm)
    scale = np.sqrt(np.sum([np.asarray(squares) for squares in their_norms], axis=0))
    for ours, theirs in zip(norms, their_norms, strict=True):
        # What CANCELLING adds to a squared norm is beyond float32's rounding, and above.
        np.testing.assert_allclose(np.sqrt(np.asarray(ours)), np.sqrt(np.asarray(theirs)), rtol=3e-5, atol=1e-6)
    for ours, theirs, leaf in zip(sums, their_sums, jax.tree.leaves(params), strict=True):
        assert ours.shape == leaf.shape
        np.testing.assert_allclose(
            np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-6 * min(clip_norm, scale.max())
        )
    assert float(count) == float(their_count)
    assert max(np.abs(np.asarray(leaf)).max() for leaf in sums) > 1e-3 * clip_norm * (clip_norm < 10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_without_clipping_it_is_the_plain_gradient_of_the_sum(name):
    loss, params, examples = problem(name)
    _, sums, _ = compiled(name, True)(params, examples, jnp.ones(BATCH, bool), float("inf"))
    plain = jax.jit(jax.grad(lambda params: jax.vmap(loss, in_axes=(None, 0))(params, examples).sum()))(params)
    for ours, theirs in zip(sums, jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_microbatches_change_nothing_but_memory():
    _, params, examples = problem("image")
    mask = jnp.arange(BATCH) != 1
    _, whole, count = compiled("image", True)(params, examples, mask, 0.9)
    _, parts, their_count = compiled("image", True, 2)(params, examples, mask, 0.9)
    for ours, theirs in zip(parts, whole, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-6)
    assert float(count) == float(their_count)


def test_convolutions_of_a_loop_are_of_the_form_that_has_fast_code():
    """XLA's CPU compiler turns kernels by itself in a program's entry alone."""
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(kernels, image):
        for kernel in kernels:
            image = jnp.tanh(jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers))
        return image.sum()

    kernels, images = [jnp.ones((3, 3, 2, 3)), jnp.ones((3, 3, 3, 4))], jnp.ones((4, 1, 8, 8, 2))

    def run(kernels, images):
        options = {"clip_norm": 1.0, "microbatch_size": 2, "ghost": True}
        return clipped_sum(loss, kernels, images, jnp.ones(4, bool), **options)

    text = jax.jit(run).lower(kernels, images).compile().as_text()
    found = re.findall(r" convolution\(.*dim_labels=(\S+?),", text)
    assert found == ["b01f_01io->b01f"] * 3  # two forward, one back


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_masked_or_not_finite_contribute_nothing(bad):
    _, params, (images, labels) = problem("image")
    mask = jnp.arange(BATCH) < 2
    _, expected, count = compiled("image", True)(params, (images, labels), mask, 0.9)
    images = images.at[2, 3, 3, 0].set(bad)
    _, sums, _ = compiled("image", True)(params, (images, labels), mask, 0.9)
    _, with_bad, bad_count = compiled("image", True)(params, (images, labels), jnp.arange(BATCH) < 3, 0.9)
    for first, second, third in zip(expected, sums, with_bad, strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
        np.testing.assert_array_equal(np.asarray(first), np.asarray(third))
    assert float(bad_count) == float(count) - 0.5


@pytest.mark.parametrize("name", KINDS)
def test_a_row_gives_the_same_bits_wherever_it_stands(name):
    """What the guarantee takes for granted of compiled code."""
    _, params, examples = problem(name)
    order = np.array([3, 0, 4, 2, 1])
    norms, _, _ = compiled(name, True)(params, examples, jnp.ones(BATCH, bool), 0.9)
    moved = jax.tree.map(lambda rows: rows[order], examples)
    theirs, _, _ = compiled(name, True)(params, moved, jnp.ones(BATCH, bool), 0.9)
    for first, second in zip(norms, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(first)[order], np.asarray(second))


def linear(params, example):
    """A dense layer whose per-example gradient is the outer product of the two parts of the example."""
    inputs, cotangents = example
    return (inputs @ params) @ cotangents


def test_one_row_moves_sums_of_float32_blocks_by_at_most_the_sensitivity():
    rows, clip_norm = 700, 0.1  # of blocks of 24 rows
    inputs, cotangents = jnp.full((rows, 1), 1.0), jnp.full((rows, 1), 3.0)
    run = jax.jit(
        lambda mask: clip_and_sum(
            linear, jnp.zeros((1, 1)), (inputs, cotangents), mask, rule=Flat(clip_norm), ghost=True
        )[0]
    )
    sums = [float(run(jnp.arange(rows) < count)[0, 0]) for count in range(rows - 60, rows + 1)]
    moved = np.diff(sums)
    assert moved.max() <= clip_norm
    assert moved.min() >= clip_norm * (1 - 0.006)


@pytest.mark.parametrize("positions", [1, 3])
def test_the_computed_norm_is_at_most_the_clipping_norm_where_positions_cancel(positions):
    """The gradients of positions cancel up to a rounding: the computed norm must not be one of rounding alone."""
    rng = np.random.default_rng(positions)
    inputs, cotangents = (rng.standard_normal((4, positions, size)).astype(np.float32) for size in (16, 12))
    if positions == 3:
        inputs[:, 2] = np.float32(1 / 3) * (inputs[:, 0] + inputs[:, 1])
        inputs[:, 1], cotangents[:, 1] = inputs[:, 0], cotangents[:, 0] * np.float32(1 + 1e-6)
        inputs[:, 2], cotangents[:, 2] = inputs[:, 0], -2 * cotangents[:, 0]

    def loss(params, example):
        return jnp.sum((example[0] @ params) * example[1])

    true = np.einsum("itk,itn->ikn", inputs.astype(float), cotangents.astype(float))
    clip_norm = 0.3 * np.linalg.norm(true[0])
    run = jax.jit(
        lambda mask, clip: clipped_sum(
            loss, jnp.zeros((16, 12)), (inputs, cotangents), mask, clip_norm=clip, ghost=True
        )
    )
    for row in range(4):
        total = np.asarray(run(jnp.arange(4) == row, clip_norm))
        assert np.linalg.norm(total) <= clip_norm
        direction = np.vdot(total, true[row]) / np.linalg.norm(total) / np.linalg.norm(true[row])
        assert direction > 1 - 1e-6


@pytest.mark.exhaustive
def test_parameters_used_twice_in_a_loop_or_not_at_all_are_right_as_well():
    params = {
        "tied": jnp.ones((3, 2)) / 3,
        "loop": jnp.eye(2) * 0.9,
        "idle": jnp.zeros((4, 4)),
        "moved": jnp.ones((6,)),
    }

    def loss(params, x):
        hidden = jnp.tanh(x @ params["tied"])
        hidden = jax.lax.scan(lambda h, _: (jnp.tanh(h @ params["loop"]), None), hidden, None, length=2)[0]
        hidden = hidden + params["moved"].reshape(3, 2).T @ x
        return jnp.sum((hidden @ params["tied"].T - x) ** 2)

    x = jnp.asarray(np.random.default_rng(2).standard_normal((BATCH, 3)), jnp.float32)
    gradients = GhostLoss(loss, params, x[0])
    assert [sorted(params)[leaf] for leaf in gradients.taps] == ["moved"]
    rule = PerLayer.of({"tied": 0.5, "loop": 0.2, "idle": 1.0, "moved": 0.3})

    def run(params, ghost):
        return clip_and_sum(loss, params, x, jnp.ones(BATCH, bool), rule=rule, ghost=ghost)[0]

    ours, theirs = (jax.jit(run, static_argnums=1)(params, ghost) for ghost in (True, False))
    for name in params:
        np.testing.assert_allclose(np.asarray(ours[name]), np.asarray(theirs[name]), rtol=1e-4, atol=1e-6)


def test_what_is_frozen_costs_no_gradient():
    """With only the last layer trained there is one product more than forward: its own sum."""
    frozen = jnp.ones((8, 8))

    def loss(params, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ frozen) @ frozen) @ params)

    x, params = jnp.ones((4, 8)), jnp.ones((8, 2))
    text = str(jax.make_jaxpr(lambda p: clipped_sum(loss, p, x, jnp.ones(4, bool), clip_norm=1.0, ghost=True))(params))
    assert text.count("dot_general") == 3 + 1


def test_memory_grows_by_activations_not_by_gradients():
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params) ** 2)

    def bytes_of(batch, ghost):
        def run(params, x):
            return clipped_sum(loss, params, x, jnp.ones(batch, bool), clip_norm=1.0, ghost=ghost)

        shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((256, 256), (batch, 256))]
        return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    gradient = 256 * 256 * 4
    assert bytes_of(96, True) - bytes_of(32, True) < 64 * gradient / 20
    assert bytes_of(96, False) - bytes_of(32, False) >= 64 * gradient


@pytest.mark.parametrize("ghost", [True, False])
def test_the_sum_is_carried_through_microbatches_in_one_copy(ghost):
    """Beside it there are the float32 gradients of a block of two rows, as large together: a second copy were three."""
    x, wide = jnp.ones((4, 64, 256)), jnp.ones((256, 256))

    def run(params):
        def loss(params, x):
            return jnp.sum(jnp.tanh(x @ params.T) ** 2)

        total = clipped_sum(loss, params, x, jnp.ones(4, bool), clip_norm=1.0, microbatch_size=2, ghost=ghost)
        return total.astype(jnp.float32)

    assert jax.jit(run).lower(wide).compile().memory_analysis().temp_size_in_bytes < 2.6 * 8 * wide.size


def test_a_clipping_norm_at_which_float32_products_vanish_is_refused():
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match="2\\^-60"):
        clipped_sum(lambda w, x: w @ x, jnp.zeros(3), x, jnp.ones(2, bool), clip_norm=1e-30, ghost=True)
