"""Is the sensitivity of the clipped sum the clipping norm, for the numbers that are computed?"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.numerics.precision import kernel
from jaxacct.train.clipping import clipped_sum
from jaxacct.train.clipping.contributions import NORM_MARGIN, Stored, Together


def dot(params, example):
    """A loss whose gradient is the example itself."""
    return sum(jnp.sum(p * x) for p, x in zip(jax.tree.leaves(params), jax.tree.leaves(example), strict=True))


@functools.partial(jax.jit, static_argnames="microbatch_size")
def compiled(rows, mask, clip_norm, microbatch_size=None):
    """One program for all values of a shape: outside of one, each operation is."""
    return clipped_sum(dot, jnp.zeros(rows.shape[1:]), rows, mask, clip_norm=clip_norm, microbatch_size=microbatch_size)


def total(rows, clip_norm, mask=None, **options):
    rows = np.asarray(rows, np.float32)
    mask = np.ones(len(rows), bool) if mask is None else np.asarray(mask)
    with jax.enable_x64(True):
        clip_norm = jax.device_put(np.float64(clip_norm))  # to the last digit
    return np.asarray(compiled(rows, mask, clip_norm, **options))


@pytest.mark.parametrize("size", [1, 5, 255, 256, 257, 40_000])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-18, 1.0, 1e15])
def test_the_computed_norm_is_at_most_the_clipping_norm(size, magnitude):
    rows = magnitude * np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
    for row in rows:
        norm = np.linalg.norm(row.astype(float))
        for clip_norm in (0.5 * norm, norm * (1 - 1e-7), norm * (1 + 1e-7)):
            clipped = np.linalg.norm(total(row[None], clip_norm))
            assert clipped <= clip_norm
            if magnitude >= 1e-15:  # tinier squares vanish in float32, and the norm counts more than there is
                assert clipped >= clip_norm * (1 - 1e-4)


def test_the_norm_is_over_all_leaves():
    rows = {"a": jnp.full((1, 2, 2), 3.0), "b": jnp.full((1,), 8.0)}
    params = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}
    result = jax.jit(functools.partial(clipped_sum, dot, clip_norm=1.0))(params, rows, jnp.array([True]))
    np.testing.assert_allclose(np.asarray(result["a"]), np.full((2, 2), 0.3), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(result["b"]), 0.8, rtol=1e-4)


def test_small_gradients_are_left_alone():
    rows = np.array([[0.25, -0.5], [0.125, 0.0]], np.float32)
    np.testing.assert_array_equal(total(rows, 1.0), rows.sum(axis=0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20])
@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_gradients_that_are_not_finite_contribute_nothing(bad, microbatch_size):
    rows = np.array([[0.5, 0.0], [bad, 0.25], [0.0, 0.5]], np.float32)
    np.testing.assert_array_equal(total(rows, 1.0, microbatch_size=microbatch_size), [0.5, 0.5])


@pytest.mark.parametrize("microbatch_size", [None, 1, 2, 7])
def test_masked_rows_contribute_nothing(microbatch_size):
    rows = np.array([[0.5, 0.0], [np.nan, 1e6], [0.0, 0.5], [3.0, 3.0]], np.float32)
    masked = total(rows, 1.0, [True, False, True, False], microbatch_size=microbatch_size)
    np.testing.assert_array_equal(masked, [0.5, 0.5])
    np.testing.assert_array_equal(total(rows, 1.0, [False] * 4, microbatch_size=microbatch_size), [0.0, 0.0])


@pytest.mark.parametrize("microbatch_size", [1, 3, 10, 64])
def test_microbatches_change_nothing_but_memory(microbatch_size):
    rows = np.random.default_rng(0).standard_normal((10, 30)).astype(np.float32)
    mask = np.arange(10) < 8
    whole = total(rows, 2.0, mask)
    np.testing.assert_allclose(
        total(rows, 2.0, mask, microbatch_size=microbatch_size), whole, rtol=2e-6
    )  # float32 norms
    assert np.abs(whole).max() > 0.1


@pytest.mark.parametrize("counting", [0, 1, 4, 5, 9])
def test_blocks_of_padding_are_not_computed(counting):
    seen = []

    def loss(weights, row):
        jax.debug.callback(lambda: seen.append(1))
        return weights @ row

    rows = np.random.default_rng(2).standard_normal((10, 3)).astype(np.float32)
    rows[counting:] = np.nan
    mask = np.arange(10) < counting
    run = jax.jit(lambda *given: clipped_sum(loss, *given, clip_norm=9.0, microbatch_size=4))
    result = run(np.zeros(3, np.float32), rows, mask)
    jax.effects_barrier()
    assert len(seen) == -(-counting // 4)  # once for each block
    np.testing.assert_allclose(np.asarray(result), rows[:counting].sum(axis=0), rtol=1e-5, atol=1e-6)


def test_without_clipping_it_is_the_plain_gradient_of_the_sum():
    rng = np.random.default_rng(1)
    inputs, targets, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 4), (20,), (4,)))

    def loss(weights, example):
        return (jnp.tanh(example[0] @ weights) - example[1]) ** 2

    result = jax.jit(lambda *given: clipped_sum(loss, *given, clip_norm=float("inf")))(
        weights, (inputs, targets), np.ones(20, bool)
    )
    plain = jax.jit(jax.grad(lambda w: jnp.sum(jax.vmap(loss, in_axes=(None, 0))(w, (inputs, targets)))))(weights)
    np.testing.assert_allclose(np.asarray(result), np.asarray(plain), rtol=1e-4, atol=1e-5)


def test_one_row_moves_the_computed_sum_by_at_most_the_clipping_norm():
    clip_norm = 0.1
    rows = np.full((20_001, 1), 1.0, np.float32)
    moved = total(rows, clip_norm)[0] - total(rows[:-1], clip_norm)[0]
    assert clip_norm * (1 - 1e-4) <= moved <= clip_norm
    in_float32 = np.cumsum(np.full(20_001, 0.1, np.float32), dtype=np.float32)
    assert np.diff(in_float32).max() > clip_norm * (1 + 1e-4)  # what the float64 sum is for


@pytest.mark.parametrize("wide", [False, True])
def test_the_sum_is_float64_under_either_precision_and_in_a_compiled_scan(wide):
    rows, mask = jnp.ones((4, 3)), jnp.ones(4, bool)

    @jax.jit
    def twice(params):
        def add(carry, _):
            return carry, clipped_sum(dot, params, rows, mask, clip_norm=1.0, microbatch_size=2)

        return jax.lax.scan(add, 0, None, length=2)[1]

    with jax.enable_x64(wide):
        result = twice(jnp.zeros(3, jnp.float32))
    assert result.dtype == jnp.float64
    np.testing.assert_allclose(np.asarray(result), 4 / np.sqrt(3), rtol=1e-4)


@pytest.mark.parametrize(
    "option", [{"clip_norm": 0.0}, {"clip_norm": float("nan")}, {"clip_norm": 1.0, "microbatch_size": 0}]
)
def test_bad_settings_are_named(option):
    name = "microbatch_size" if "microbatch_size" in option else "clip_norm"
    with pytest.raises(ValueError, match=name):
        clipped_sum(dot, jnp.zeros(2), jnp.ones((2, 2)), jnp.ones(2, bool), **option)


@pytest.mark.parametrize("mask", [np.ones(1, bool), np.ones(3, bool), np.ones((4, 1), bool), np.ones((), bool)])
def test_a_mask_that_is_not_the_rows_is_refused(mask):
    """A mask of one entry would be spread over all rows, and padding, which is example 0 again and again, count."""
    with pytest.raises(ValueError, match=r"mask has shape .*one entry of mask for each row"):
        clipped_sum(lambda w, x: w @ x, jnp.zeros(2), jnp.ones((4, 2)), jnp.asarray(mask), clip_norm=1.0)


@kernel
@jax.jit
def side_by_side(gradients, kept, factors):
    parts = [Stored.of(jnp.asarray(part), jax.sharding.PartitionSpec()) for part in gradients]
    together = Together.of([part.shape[1:] for part in gradients], [True] * len(parts))
    packed = together.side_by_side(parts)
    sums = together.sums(parts, packed, jnp.asarray(kept), [jnp.asarray(f) for f in factors], 16, together.zeros())
    return together.squares(parts, packed), together.split(sums)


@pytest.mark.parametrize("magnitude", [1e-22, 1.0, 1e15])
def test_small_gradients_side_by_side_have_norms_from_above_and_sums_of_their_own(magnitude):
    random = np.random.default_rng(0)
    shapes = [(3,), (64,), (4, 16), (0,), (2048,), (7, 5), (33,), (50, 50), ()]
    parts = [(magnitude * random.standard_normal((16, *shape))).astype(np.float32) for shape in shapes]
    kept, factors = random.random(16) < 0.8, random.random((len(parts), 16))
    squares, sums = side_by_side(parts, kept, factors)
    for part, square, total, factor in zip(parts, squares, sums, factors, strict=True):
        flat = part.astype(np.float64).reshape(16, -1)
        exact = np.square(flat).sum(axis=1)
        assert np.all(np.asarray(square) * (1 + NORM_MARGIN) ** 2 >= exact)
        np.testing.assert_allclose(square, exact, rtol=1e-6, atol=1e-33)
        expected = ((kept * factor) @ flat).reshape(part.shape[1:])
        np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-13 * magnitude)
