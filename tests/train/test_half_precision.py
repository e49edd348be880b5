"""Tests of clipping in half precision: one example moves the sum by the clipping norm at most."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.train.clipping import Flat, clip_and_sum, routes

ROWS, WIDTH, WORDS = 7, 24, 1200
RNG = np.random.default_rng(3)
PARAMS = {
    "tied": RNG.normal(size=(WORDS, WIDTH)) / 5,  # read and written
    "table": RNG.normal(size=(WORDS, WIDTH)),  # read
    "mix": RNG.normal(size=(WIDTH, WIDTH)),  # at positions
    "once": RNG.normal(size=(3 * WIDTH, 5)),
    "wide": RNG.normal(size=(WIDTH, 40 * WIDTH)) / 5,  # at positions, larger than their inner products
    "scale": RNG.normal(size=WIDTH),
}
EXAMPLES = RNG.integers(0, WORDS, size=(ROWS, 3)).astype(np.int32)


def loss(dtype, params, words):
    params = {name: leaf.astype(dtype) for name, leaf in params.items()}
    held = params["tied"][words] + params["table"][words]
    held = jnp.tanh(held @ params["mix"]) * params["scale"][None]
    held = held + (jnp.tanh(held @ params["wide"]) @ jnp.ones((40 * WIDTH, WIDTH), dtype)) / 40
    written = jax.nn.logsumexp((held @ params["tied"].T).astype(jnp.float32), axis=-1)
    return jnp.sum(written) + jnp.sum((held.reshape(-1) @ params["once"]).astype(jnp.float32) ** 2)


@pytest.fixture(scope="module")
def sums():
    """The sum of the first n rows, compiled once for each dtype: a pytree of float64."""

    def compiled(dtype):
        def run(params, examples, kept, clip_norm):
            of_one = lambda params, words: loss(dtype, params, words)  # noqa: E731
            return clip_and_sum(of_one, params, examples, kept, rule=Flat(clip_norm), ghost=True)[0]

        return jax.jit(run)

    return {dtype: compiled(dtype) for dtype in (jnp.bfloat16, jnp.float16)}


def test_every_form_of_gradients_is_met():
    params = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in PARAMS.items()}
    found = routes(lambda params, words: loss(jnp.bfloat16, params, words), params, jnp.asarray(EXAMPLES[0]))
    assert {route.form.__name__ for route in found} == {"Outer", "Stored", "Summed", "Looked", "Tied"}


@pytest.mark.first_tier("float16-float32")
@pytest.mark.parametrize("held", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_one_example_moves_the_sum_by_the_clipping_norm_at_most(sums, dtype, held):
    params = {name: jnp.asarray(leaf, held) for name, leaf in PARAMS.items()}
    moved = []
    for clip_norm in (1e-6, 0.3, 20.0):
        whole = sums[dtype](params, EXAMPLES, np.ones(ROWS, bool), clip_norm)
        for row in range(ROWS):
            rest = sums[dtype](params, EXAMPLES, np.arange(ROWS) != row, clip_norm)
            parts = jax.tree.map(lambda a, b: np.sum(np.square(np.asarray(a) - np.asarray(b))), whole, rest)
            moved.append(np.sqrt(sum(jax.tree.leaves(parts))) / clip_norm)
    assert max(moved) <= 1.0
    assert max(moved) > 0.9  # it is clipped, and not lost
