"""The named modules: their sizes, what they compute, and which parameters of a module train."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bench.papers.convolution import TwoConvolutions, convolve_by_patches
from bench.papers.networks import CollaborativeFilter, PooledEmbedding, root_mean_squared_error
from bench.papers.residual import ConvolutionBlock, ResNet9
from jaxacct.train.models import accuracy, check_module, cross_entropy, split_params, to_group_norm
from jaxacct_recipes import MLP, Linear, PatchCNN


def size(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: TwoConvolutions((28, 28, 1), 10, rngs=nnx.Rngs(0)), 26_010),  # of the tutorial's network
        (lambda: PatchCNN((28, 28, 1), 10, rngs=nnx.Rngs(0)), 37 * 16 + 257 * 32 + 801 * 32 + 33 * 10),
        (lambda: MLP((123,), 2, width=16, rngs=nnx.Rngs(0)), 124 * 16 + 17 * 2),
        (lambda: Linear((8, 8, 1), 10, rngs=nnx.Rngs(0)), 65 * 10),
        (lambda: PooledEmbedding(10_000, 2, rngs=nnx.Rngs(0)), 160_000 + 17 * 16 + 17 * 2),
        (lambda: CollaborativeFilter(6040, 3952, 5, rngs=nnx.Rngs(0)), (6040 + 3952) * 15 + 26 * 5),
        # Convolutions of 3 x 3 without biases, two numbers a channel of each norm, the output.
        (
            lambda: ResNet9((32, 32, 3), 10, rngs=nnx.Rngs(0)),
            9 * (3 * 64 + 64 * 128 + 2 * 128**2 + 128 * 256 + 256 * 512 + 2 * 512**2)
            + 2 * (64 + 3 * 128 + 256 + 3 * 512)
            + 513 * 10,
        ),
    ],
)
def test_numbers_of_parameters(make, expected):
    model = nnx.eval_shape(make)
    assert size(model) == expected


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (2, 1)])
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 2), (0, 3))])
def test_a_convolution_by_patches_is_a_convolution(strides, padding):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 9, 7, 3)).astype(np.float32)
    kernel = rng.normal(size=(4, 3, 3, 5)).astype(np.float32)

    @jax.jit
    def both(images, kernel):
        expected = jax.lax.conv_general_dilated(
            images, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
        )
        return convolve_by_patches(images, kernel, strides, padding, precision="highest"), expected

    np.testing.assert_allclose(*both(images, kernel), rtol=2e-5, atol=2e-5)


def test_a_convolution_by_patches_refuses_what_it_does_not_do():
    images, kernel = jnp.zeros((1, 4, 4, 2)), jnp.zeros((2, 2, 2, 2))
    for options in ({"rhs_dilation": (2, 1)}, {"lhs_dilation": (1, 2)}, {"feature_group_count": 2}):
        with pytest.raises(ValueError, match="no dilation and no feature groups"):
            convolve_by_patches(images, kernel, (1, 1), "SAME", **options)


def test_two_convolutions_against_flax():
    """The same layers, with Flax's convolution and pooling."""
    model = TwoConvolutions((28, 28, 1), 10, rngs=nnx.Rngs(0))
    image = jnp.asarray(np.random.default_rng(0).random((1, 28, 28, 1)), jnp.float32)

    @jax.jit
    def both(features):
        found = model(features[0])
        for layer in (model.first, model.second):
            plain = nnx.clone(layer)
            plain.conv_general_dilated = jax.lax.conv_general_dilated
            features = nnx.max_pool(nnx.relu(plain(features)), (2, 2), (1, 1))
        assert features.shape == (1, 4, 4, 32)
        return found, model.output(nnx.relu(model.hidden(features.reshape(-1))))

    found, expected = both(image)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_resnet_normalizes_over_the_whole_example(norm):
    """Against the definition in NumPy: Flax's GroupNorm alone would take an image's rows for a batch."""
    block = ConvolutionBlock(3, 8, norm, rngs=nnx.Rngs(0))
    image = np.random.default_rng(0).normal(2, 3, size=(32, 32, 3)).astype(np.float32)
    before, found = jax.jit(lambda image: (block.convolution(image), block(image)))(jnp.asarray(image))
    before = np.asarray(before, np.float64)
    grouped = before.reshape(32, 32, 4 if norm == "group" else 1, -1)
    mean, variance = (statistic(grouped, axis=(0, 1, 3), keepdims=True) for statistic in (np.mean, np.var))
    expected = np.maximum((grouped - mean) / np.sqrt(variance + 1e-6), 0).reshape(before.shape)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "batch"}, "norm = 'batch'.*BatchNorm mixes"),
        ({"width": 6}, "width = 6"),
        ({"shape": (28, 28, 1)}, "at least 32 x 32"),
    ],
)
def test_resnet_bad_input(options, words):
    with pytest.raises(ValueError, match=words):
        ResNet9(**({"shape": (32, 32, 3), "num_classes": 10, "rngs": nnx.Rngs(0)} | options))


def test_pooled_embedding_in_numpy():
    model = PooledEmbedding(12, 2, width=4, rngs=nnx.Rngs(0))
    words = np.array([3, 3, 7, 0, 0])
    mean = np.asarray(model.embedding.embedding[...])[words].mean(axis=0)
    hidden = np.maximum(mean @ np.asarray(model.hidden.kernel[...]), 0)
    expected = hidden @ np.asarray(model.output.kernel[...])
    np.testing.assert_allclose(model(jnp.asarray(words)), expected, rtol=1e-5, atol=1e-6)


def test_collaborative_filter_in_numpy():
    model = CollaborativeFilter(6, 7, 5, rngs=nnx.Rngs(0))
    user, movie = 5, 2

    def rows(layer, at):
        return np.asarray(layer.embedding[...])[at]

    joined = np.concatenate(
        [
            rows(model.user_factors, user) * rows(model.movie_factors, movie),
            rows(model.user_branch, user),
            rows(model.movie_branch, movie),
        ]
    )
    found = model(jnp.array([user, movie]))
    np.testing.assert_allclose(found, joined @ np.asarray(model.output.kernel[...]), rtol=1e-5, atol=1e-6)


def test_measures():
    class Fixed(nnx.Module):
        def __call__(self, example):
            return jnp.log(example)

    inputs = jnp.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75], [0.1, 0.1, 0.8]]) + 1e-30
    labels = jnp.array([1, 1, 2])
    assert accuracy(Fixed(), inputs, labels) == pytest.approx(1 / 3)
    errors = np.array([0.5 - 1, 1.75 - 1, 1.7 - 2])
    assert root_mean_squared_error(Fixed(), inputs, labels) == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
    assert float(cross_entropy(Fixed(), inputs[1], 2)) == pytest.approx(-np.log(0.75), rel=1e-5)


def test_batch_norm_is_refused_wherever_it_stands():
    class Deep(nnx.Module):
        def __init__(self):
            self.block = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))

    with pytest.raises(ValueError, match=r"BatchNorm at block/layers/1: it mixes the examples.*GroupNorm"):
        check_module(Deep())
    with pytest.raises(TypeError, match=r"give a flax\.nnx module"):
        check_module(lambda x: x)


class Normalized(nnx.Module):
    """A norm that is shared, one of its own, and an embedding that is tied."""

    def __init__(self, **options):
        self.first = nnx.BatchNorm(6, epsilon=1e-3, rngs=nnx.Rngs(0), **options)
        self.blocks = nnx.List([self.first, nnx.Sequential(nnx.BatchNorm(6, use_bias=False, rngs=nnx.Rngs(0)))])
        self.embedding = nnx.Embed(4, 6, rngs=nnx.Rngs(0))
        self.tied = self.embedding


@pytest.mark.exhaustive
def test_group_norm_takes_the_place_of_batch_norm_and_nothing_else():
    model = Normalized()
    model.first.scale[...] = 1 + jnp.arange(6.0)
    model.first.bias[...] = jnp.arange(6.0)
    found = to_group_norm(model, 4)  # 4 does not divide 6: 2 groups
    check_module(found)
    assert isinstance(model.first, nnx.BatchNorm)
    assert found.blocks[0] is found.first
    assert found.tied is found.embedding is not model.embedding
    assert found.blocks[1].layers[0].bias is None
    np.testing.assert_array_equal(found.embedding.embedding[...], model.embedding.embedding[...])
    images = np.random.default_rng(0).normal(2, 3, size=(3, 4, 5, 6)).astype(np.float32)
    grouped = images.reshape(3, 4, 5, 2, 3).astype(np.float64)
    mean, variance = (statistic(grouped, axis=(1, 2, 4), keepdims=True) for statistic in (np.mean, np.var))
    expected = ((grouped - mean) / np.sqrt(variance + 1e-3)).reshape(images.shape) * (1 + np.arange(6)) + np.arange(6)
    np.testing.assert_allclose(found.first(jnp.asarray(images)), expected, atol=1e-4)
    np.testing.assert_allclose(found.first(jnp.asarray(images[1])), expected[1], atol=1e-4)  # without a batch axis
    with pytest.raises(ValueError, match="examples have 3 axes"):
        found.first(jnp.ones(6))
    with pytest.raises(ValueError, match="axis = 1"):
        to_group_norm(nnx.BatchNorm(6, axis=1, rngs=nnx.Rngs(0)))


def test_group_norm_is_called_as_batch_norm_and_leaves_something_behind_dense_layers():
    dense = nnx.BatchNorm(32, rngs=nnx.Rngs(0))
    row = jnp.asarray(np.random.default_rng(0).normal(size=32), jnp.float32)
    found = to_group_norm(dense, 4, example_axes=1)
    np.testing.assert_array_equal(found(row, use_running_average=False), found(row))
    assert float(jnp.abs(found(row)).max()) > 0.5
    with pytest.raises(ValueError, match=r"groups = 32 puts each of 32 features into a group of its own.*groups = 4"):
        to_group_norm(dense, example_axes=1)


def test_frozen_averages_are_constants_and_others_are_refused():
    model = Normalized(use_running_average=True)
    with pytest.raises(ValueError, match=r"BatchNorm at blocks/1/layers/0.*to_group_norm\(model\).*model\.eval\(\)"):
        check_module(model)
    model.eval()
    check_module(model)
    _, _, rest = split_params(model)
    assert sum(isinstance(leaf, nnx.BatchStat) for _, leaf in nnx.to_flat_state(rest)) == 4
    model.average = nnx.BatchStat(jnp.zeros(2))
    with pytest.raises(ValueError, match="running statistics at average"):
        check_module(model)


def paths(state):
    return sorted("/".join(map(str, path)) for path, _ in nnx.to_flat_state(state))


def test_what_trains_and_what_is_frozen():
    model = MLP((3,), 2, width=4, rngs=nnx.Rngs(0))
    everything = ["hidden/bias", "hidden/kernel", "output/bias", "output/kernel"]
    for trainable, expected in [
        (None, everything),
        ("output", everything[2:]),
        ("hidden/bias", everything[:1]),
        (("hidden/bias", "output"), [everything[0], *everything[2:]]),
        (lambda path, variable: path[-1] == "kernel", [everything[1], everything[3]]),
    ]:
        graph, trained, rest = split_params(model, trainable)
        assert paths(trained) == expected
        assert paths(rest) == sorted(set(everything) - set(expected))
        whole = nnx.merge(graph, trained, rest)
        np.testing.assert_array_equal(whole(jnp.ones(3)), model(jnp.ones(3)))


def test_gradients_are_of_the_trained_ones_only():
    model = MLP((3,), 2, width=4, rngs=nnx.Rngs(0))
    graph, trained, rest = split_params(model, "output")
    gradient = jax.grad(lambda params: cross_entropy(nnx.merge(graph, params, rest), jnp.ones(3), 0))(trained)
    assert paths(gradient) == ["output/bias", "output/kernel"]


def test_a_layer_in_a_list_and_a_name_that_begins_like_another():
    model = nnx.eval_shape(lambda: ResNet9((32, 32, 3), 10, width=4, rngs=nnx.Rngs(0)))
    _, trained, _ = split_params(model, ["second", "fourth_residual/1/norm"])
    found = paths(trained)
    assert found == [
        "fourth_residual/1/norm/bias",
        "fourth_residual/1/norm/scale",
        "second/convolution/kernel",
        "second/norm/bias",
        "second/norm/scale",
    ]


@pytest.mark.parametrize(
    ("trainable", "words"),
    [
        ("outptu", r"trainable = 'outptu' leads to no parameter: the model has hidden/bias"),
        (("output", "hidden/kernels"), r"'hidden/kernels' leads to no parameter"),
        ((), r"leaves no parameter to train"),
        (lambda path, variable: False, r"leaves no parameter to train"),
    ],
)
def test_nothing_to_train(trainable, words):
    with pytest.raises(ValueError, match=words):
        split_params(MLP((3,), 2, width=4, rngs=nnx.Rngs(0)), trainable)
