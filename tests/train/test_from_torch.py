"""The page for models with PyTorch's weights, without PyTorch: its layers written in NumPy, its state_dict laid out."""

import pathlib
import re

import numpy as np
import pytest
from flax import nnx
from helpers.pages import run

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "from-torch.md").read_text()
(WRITE, READ) = re.findall(r"^```python(?: title=\"write.py\")?\n(.*?)^```", PAGE, re.M | re.S)
RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# What PyTorch's documentation says of its layers, for one example with channels first.


def linear(x, weight, bias):
    return np.einsum("oi,...i->...o", weight, x) + bias


def conv2d(x, weight, bias, stride, padding):
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    places = [range(0, size - taps + 1, stride) for size, taps in zip(x.shape[1:], weight.shape[2:], strict=True)]
    cut = lambda i, j: x[:, i : i + weight.shape[2], j : j + weight.shape[3]]  # noqa: E731
    found = [[np.einsum("oihw,ihw->o", weight, cut(i, j)) + bias for j in places[1]] for i in places[0]]
    return np.array(found).transpose(2, 0, 1)


def normalized(x, axes, weight, bias, like):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return ((x - mean) / np.sqrt(variance + 1e-5)).reshape(like.shape) * weight + bias


def group_norm(x, groups, weight, bias):
    return normalized(x.reshape(groups, -1), 1, weight[:, None, None], bias[:, None, None], x)


STATE = {
    "0.weight": normal(4, 1, 3, 3), "0.bias": normal(4), "1.weight": normal(4), "1.bias": normal(4),
    "4.weight": normal(3, 64), "4.bias": normal(3),
}  # fmt: skip


def scores(state, image):
    features = conv2d(image, state["0.weight"], state["0.bias"], stride=2, padding=1)
    features = np.maximum(group_norm(features, 2, state["1.weight"], state["1.bias"]), 0)
    return linear(features.reshape(-1), state["4.weight"], state["4.bias"])


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names of the page's program, which was run on what the layers above made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        image = normal(1, 1, 8, 8)
        np.savez("weights.npz", **STATE)
        np.savez("check.npz", image=image, scores=scores(STATE, image[0])[None])
        names = {}
        assert run(READ, names) == 1
        return names


@pytest.mark.exhaustive
def test_the_page_reads_what_pytorch_writes(page):
    assert page["scores"].shape == (3,)


def test_pytorch_itself_writes_that(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run(WRITE, {})
    assert {name: array.shape for name, array in np.load("weights.npz").items()} == {
        name: array.shape for name, array in STATE.items()
    }
    assert run(READ, {}) == 1


class Mixed(nnx.Module):
    """The other kinds of layers, one of them in a list and one without a bias."""

    def __init__(self, rngs):
        self.table = nnx.Embed(5, 6, rngs=rngs)
        self.blocks = nnx.List([nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs), nnx.Linear(6, 4, use_bias=False, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)

    def __call__(self, index):
        return self.norm(self.blocks[1](self.blocks[0](self.table(index))))


@pytest.mark.exhaustive
def test_other_layers_are_pytorchs(page):
    state = {
        "emb.weight": normal(5, 6), "blocks.0.weight": normal(6), "blocks.0.bias": normal(6),
        "blocks.1.weight": normal(4, 6), "bn.weight": normal(4), "bn.bias": normal(4), "bn.running_mean": normal(4),
        "bn.running_var": np.square(normal(4)), "bn.num_batches_tracked": np.array(3),
    }  # fmt: skip
    names = {"table": "emb", "blocks/0": "blocks.0", "blocks/1": "blocks.1", "norm": "bn"}
    model = Mixed(nnx.Rngs(0))
    page["load_torch"](model, state, names)
    row = state["emb.weight"][[3]]
    hidden = linear(
        normalized(row, 1, state["blocks.0.weight"], state["blocks.0.bias"], row), state["blocks.1.weight"], 0
    )
    centred = (hidden - state["bn.running_mean"]) / np.sqrt(state["bn.running_var"] + 1e-5)
    np.testing.assert_allclose(
        model(np.array([3])), centred * state["bn.weight"] + state["bn.bias"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"4.weight": normal(3, 32)}, "head"), ({"5.weight": normal(3)}, "nothing here takes"),
        ({"0.weight": normal(1, 4, 3, 3)}, "conv"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(page, change, words):
    with pytest.raises(AssertionError, match=words):
        page["load_torch"](page["Net"](nnx.Rngs(0)), STATE | change, {"conv": "0", "norm": "1", "head": "4"})
