"""Are weights of loops, of remat and of several maps found and held as sums over all uses, and dead uses left out?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxacct.train.clipping import PerLayer, clip_and_sum
from jaxacct.train.clipping.contributions import Looked, Outer, Stored, Summed, Tied
from jaxacct.train.clipping.ghost import GhostLoss
from jaxacct.train.modules import merged

BATCH = 4
WORDS = jnp.asarray([[1, 2, 1, 6], [0, 0, 0, 0], [3, 4, 5, 6], [6, 1, 6, 1]], jnp.int32)
ROWS = jnp.asarray(np.random.default_rng(0).standard_normal((BATCH, 4, 8)), jnp.float32)


def matrix(seed, rows, columns):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((rows, columns)) / np.sqrt(rows), jnp.float32)


def tied(params, words):
    """Words read and written by one table; its second lookup is for a dtype alone."""
    dtype = params["table"][words].dtype
    hidden = jnp.tanh(params["table"][words] @ params["mix"]).astype(dtype)
    return jnp.sum(jnp.tanh(hidden @ params["table"].T) ** 2)


def read_twice(params, words):
    return jnp.sum(jnp.tanh(params["table"][words] + params["table"][(words + 3) % 7]) @ params["mix"])


def both_ways(params, rows):
    """A matrix and its transpose, and a dead product that nothing is made of."""
    hidden = jnp.tanh(rows @ params["weight"])
    dead = jnp.sin(params["weight"]).sum()
    return jnp.sum((hidden @ params["weight"].T - rows) ** 2) + 0 * len(dead.shape)


def loop(params, rows):
    def step(carry, row):
        return jnp.tanh(carry @ params["carry"] + row @ params["input"] + params["bias"]), carry.sum()

    last, sums = jax.lax.scan(step, jnp.zeros(24), rows, reverse=True)
    return jnp.sum(last**2) + sums.sum()


def loops_in_loops(params, rows):
    def outer(carry, row):
        inner = jax.lax.fori_loop(0, 2, lambda _, value: jnp.tanh(value @ params["weight"]), carry + row[0])
        return inner, None

    return jnp.sum(jax.lax.scan(outer, jnp.ones(24), rows)[0] ** 2)


def remat(params, rows):
    @jax.checkpoint
    def layer(weight, bias, values):
        return jnp.tanh(values @ weight + bias[None])

    hidden = layer(params["weight"], params["bias"], rows)
    return jnp.sum(jax.checkpoint(lambda values: jnp.tanh(values @ params["output"]))(hidden[0]) ** 2)


CASES = {
    "tied": (tied, {"table": matrix(0, 300, 24), "mix": matrix(1, 24, 24)}, WORDS, {"table": Tied, "mix": Summed}),
    "read twice": (read_twice, {"table": matrix(0, 7, 24), "mix": matrix(1, 24, 2)}, WORDS, {"table": Looked, "mix": Stored}),
    "both ways": (both_ways, {"weight": matrix(2, 8, 300)}, ROWS, {"weight": Stored}),
    "loop": (
        loop, {"carry": matrix(3, 24, 24), "input": matrix(4, 8, 24), "bias": jnp.zeros(24)}, ROWS,
        {"carry": Summed, "input": Summed, "bias": Stored},
    ),
    "loops in loops": (loops_in_loops, {"weight": matrix(5, 24, 24)}, ROWS, {"weight": Stored}),
    "remat": (
        remat, {"weight": matrix(6, 8, 80), "bias": jnp.zeros(80), "output": matrix(7, 80, 3)}, ROWS,
        {"weight": Summed, "bias": Stored, "output": Outer},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_are_those_of_vmap(name):
    loss, params, examples, forms = CASES[name]
    routes = GhostLoss(loss, params, examples[0]).routes()
    print(routes)
    rule = PerLayer.equally(params, 0.7)  # a norm of its own for each parameter

    @jax.jit
    def both(params, examples, mask):
        return [clip_and_sum(loss, params, examples, mask, rule=rule, ghost=ghost) for ghost in (True, False)]

    (ours, count), (theirs, their_count) = both(params, examples, jnp.arange(BATCH) != 2)
    for leaf, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=1e-4, atol=1e-6)
    assert float(count) == float(their_count)
    assert {route.parameter: route.form for route in routes} == forms


def test_recurrent():
    model = nnx.RNN(nnx.OptimizedLSTMCell(8, 24, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    loss = lambda params, rows: jnp.sum(merged(graph, params, rest)(rows) ** 2)  # noqa: E731
    print(GhostLoss(loss, params, ROWS[0]).routes())
