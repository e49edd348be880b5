"""Loops of batches: what each lane would find alone, at the sum of the lanes' work."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.numerics import batched_loops

RANDOM = np.random.default_rng(0)


def collatz(number, most):
    """A loop whose length nobody foresees: steps to 1, at most ``most``, and the largest number met."""
    return batched_loops.while_loop(
        lambda state, most: (state["number"] != 1) & (state["steps"] < most["most"]),
        lambda state, most: {
            "number": jnp.where(state["number"] % 2 == 0, state["number"] // 2, 3 * state["number"] + 1),
            "steps": state["steps"] + 1,
            "peak": jnp.maximum(state["peak"], state["number"]),
        },
        {"number": number, "steps": jnp.int32(0), "peak": jnp.int32(0)},
        {"most": most},
    )


def squares(count, scale):
    """Rows below a count."""
    rows = jnp.arange(7, dtype=jnp.float32)
    return batched_loops.map_rows(count, lambda i, row, scale: {"at": i, "value": scale * row**2}, rows, scale)


def root(number, power):
    """What is needed for some lanes alone."""
    return batched_loops.where_needed(number > 0, lambda x, p: x**p, -number, number, power, width=3)


CASES = {
    "while": (collatz, np.asarray(RANDOM.integers(1, 1000, 60), np.int32), np.asarray(RANDOM.integers(0, 99, 60))),
    "rows": (squares, np.asarray(RANDOM.integers(0, 8, 60), np.int32), np.float32(RANDOM.normal(size=60))),
    "needed": (root, np.float32(RANDOM.normal(size=60)), np.float32(RANDOM.uniform(0, 2, 60))),
}


@pytest.mark.first_tier("both-needed", "second-rows", "nested, one each-rows")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["both", "first", "second", "nested", "nested, one each", "jit"])
def test_batches_are_what_lanes_are_alone(case, how, monkeypatch):
    monkeypatch.setattr(batched_loops, "FEWEST", 4)
    function, first, second = CASES[case]
    first, second = (first, second) if case != "while" else (first, second.astype(np.int32))
    alone = jax.jit(function)
    pairs = {
        "both": (first, second), "jit": (first, second), "first": (first, second[:1].repeat(60)),
        "second": (first[:1].repeat(60), second), "nested": (first, second),
        "nested, one each": (np.tile(first[:10], 6), np.repeat(second[:6], 10)),
    }[how]  # fmt: skip
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *(alone(a, b) for a, b in zip(*pairs, strict=True)))
    found = {
        "both": lambda: jax.vmap(function)(first, second),
        "jit": lambda: jax.vmap(jax.jit(function))(first, second),
        "first": lambda: jax.vmap(function, in_axes=(0, None))(first, second[0]),
        "second": lambda: jax.vmap(function, in_axes=(None, 0))(first[0], second),
        "nested": lambda: jax.vmap(jax.vmap(function))(first.reshape(6, 10), second.reshape(6, 10)),
        "nested, one each": lambda: jax.vmap(jax.vmap(function, in_axes=(0, None)), in_axes=(None, 0))(
            first[:10], second[:6]
        ),
    }[how]()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a).reshape(np.shape(b)), b, rtol=1e-6), found, expected
    )


def test_work_is_the_sum_of_the_lanes_own():
    worked = collections.defaultdict(lambda: np.zeros(2))
    numbers, most = np.arange(1, 2001, dtype=np.int32), np.full(2000, 500, np.int32)
    with batched_loops.count_work(
        lambda name, done, own: worked.__setitem__(name, worked[name] + np.array([done, own]))
    ):
        steps = np.asarray(jax.vmap(collatz)(numbers, most)["steps"])
        jax.effects_barrier()
    (found,) = worked.values()
    assert found[1] == np.sum(steps)
    assert (
        found[0]
        <= np.sum(steps) + steps.max() * batched_loops.slots_for(2000, batched_loops.SHARE)
        <= 1.4 * np.sum(steps)
    )
    assert steps.max() * len(steps) > 2 * np.sum(steps), "side by side it would be this"


def test_what_lanes_are_not_in_need_of_is_not_done():
    calls = []

    def watched(x):
        jax.debug.callback(lambda: calls.append(1))
        return 2 * x

    def one(x):
        return batched_loops.where_needed(x > 95, watched, x, x, width=2)

    found = jax.vmap(one)(np.arange(100.0, dtype=np.float32))
    jax.effects_barrier()
    assert np.array_equal(found, np.where(np.arange(100) > 95, 2 * np.arange(100), np.arange(100)))
    assert len(calls) == 2, "blocks of two"
    calls.clear()
    jax.block_until_ready(jax.vmap(one)(np.zeros(100, np.float32)))
    jax.effects_barrier()
    assert not calls


def test_lanes_are_a_bounded_number(monkeypatch):
    monkeypatch.setattr(batched_loops, "LANES", 8)

    def cube(x, power):
        assert jnp.shape(x) == ()
        return x**power

    found = jax.jit(lambda x, p: batched_loops.in_blocks(cube, 21, (True, False), x, p))
    x = np.float32(RANDOM.uniform(size=21))
    np.testing.assert_allclose(found(x, 3.0), x**3, rtol=1e-6)
    assert "8,8" not in str(jax.make_jaxpr(found)(x, 3.0))
    assert "f32[7]" in str(jax.make_jaxpr(found)(x, 3.0))
    nested = jax.vmap(found)(np.float32(RANDOM.uniform(size=(2, 21))), np.float32([1.0, 2.0]))
    assert nested.shape == (2, 21)
