"""Are weights of loops, of remat and of several maps found and held as sums over all uses, and dead uses left out?"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import DPTrainer
from jaxacct.train.clipping import PerLayer, clip_and_sum, clipped_sum, routes
from jaxacct.train.clipping.contributions import Looked, Outer, Stored, Summed, Tied

pytestmark = pytest.mark.usefixtures("unsolved")

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
    hidden = jnp.tanh(rows[0] @ params["weight"])
    dead = jnp.sin(params["weight"]).sum()
    return jnp.sum((hidden @ params["weight"].T - rows[0]) ** 2) + 0 * len(dead.shape)


def turned(params, rows):
    """A reshape that transposes as well, which keeps a square's shape and all of its entries."""
    return jnp.sum((rows[0] @ jax.lax.reshape(params["weight"], (8, 8), (1, 0)) + rows[1] @ params["weight"]) ** 2)


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

    hidden = layer(params["weight"], params["bias"], rows[:2])
    return jnp.sum(jax.checkpoint(lambda values: jnp.tanh(values @ params["output"]))(hidden[0]) ** 2)


CASES = {
    "tied": (tied, {"table": matrix(0, 300, 24), "mix": matrix(1, 24, 24)}, WORDS, {"table": Tied, "mix": Summed}),
    "read twice": (
        read_twice, {"table": matrix(0, 7, 24), "mix": matrix(1, 24, 2)}, WORDS, {"table": Looked, "mix": Stored}
    ),
    "both ways": (both_ways, {"weight": matrix(2, 8, 300)}, ROWS, {"weight": Summed}),
    "turned": (turned, {"weight": matrix(2, 8, 8)}, ROWS, {"weight": Stored}),
    "loop": (
        loop, {"carry": matrix(3, 24, 24), "input": matrix(4, 8, 24), "bias": jnp.zeros(24)}, ROWS,
        {"carry": Summed, "input": Stored, "bias": Stored},
    ),
    "loops in loops": (loops_in_loops, {"weight": matrix(5, 24, 24)}, ROWS, {"weight": Stored}),
    "remat": (
        remat, {"weight": matrix(6, 8, 120), "bias": jnp.zeros(120), "output": matrix(7, 120, 3)}, ROWS,
        {"weight": Summed, "bias": Stored, "output": Outer},
    ),
}  # fmt: skip


@pytest.mark.first_tier("both ways", "turned", "remat")
@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_are_those_of_vmap(name):
    loss, params, examples, forms = CASES[name]
    found = routes(loss, params, examples[0])
    assert {route.parameter: route.form for route in found} == forms
    rule = PerLayer.equally(params, 0.7)  # a norm of its own for each parameter

    @jax.jit
    def both(params, examples, mask):
        return [clip_and_sum(loss, params, examples, mask, rule=rule, ghost=ghost) for ghost in (True, False)]

    (ours, count), (theirs, their_count) = both(params, examples, jnp.arange(BATCH) != 2)
    for leaf, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=1e-4, atol=1e-6)
        assert np.abs(np.asarray(other)).max() > 0.01 * rule.clip_norms[0] / np.sqrt(other.size)
    assert float(count) == float(their_count)


def test_dead_uses_are_not_counted():
    loss, params, examples, _ = CASES["tied"]
    assert "used at 8 positions" in routes(loss, params, examples[0])[1].reason  # four lookups, and four words written


def test_a_sum_over_uses_that_cancel_is_not_taken_for_small():
    """Reading and writing cancel but for a rounding: the computed norm must not be one of rounding alone."""
    table, direction = matrix(0, 300, 24), matrix(9, 24, 1)[:, 0]

    def loss(table, index):
        read = table[index] @ direction
        written = (direction * (1 + 1e-6))[None] @ table.T
        return jnp.sum(read) - jnp.sum(jnp.take(written[0], index))

    assert routes(loss, table, WORDS[0])[0].form is Tied
    left = np.asarray(direction) - np.asarray(direction * (1 + 1e-6))
    clip_norm = 0.3 * np.linalg.norm(left)
    clipped = jax.jit(lambda *given: clipped_sum(loss, *given, clip_norm=clip_norm, ghost=True))
    total = np.asarray(clipped(table, WORDS[:1, :1], np.ones(1, bool)))
    assert 0 < np.linalg.norm(total) <= clip_norm
    assert np.vdot(total[1], left) > 0.99 * np.linalg.norm(total) * np.linalg.norm(left)


def test_the_trainer_says_which_parameter_takes_which_route():
    model = nnx.Linear(8, 3, rngs=nnx.Rngs(0))
    data = (np.ones((40, 8), np.float32), np.zeros((40, 3), np.float32))
    options = {"epsilon": 2.0, "delta": 1e-3, "noise_multiplier": 2.0, "expected_batch_size": 8, "clip_norm": 1.0}
    error = lambda model, x, y: jnp.sum((model(x) - y) ** 2)  # noqa: E731
    found = DPTrainer(model, error, optax.sgd(0.1), data, **options).routes
    assert [(route.parameter.split("/")[0], route.form) for route in found] == [("bias", Stored), ("kernel", Outer)]
    assert [line.split()[1:3] for line in str(found).splitlines()] == [["Stored", "used"], ["Outer", "24"]]
    stored = DPTrainer(model, error, optax.sgd(0.1), data, ghost=False, **options).routes
    assert {(route.form, route.reason) for route in stored} == {(Stored, "ghost = False")}
