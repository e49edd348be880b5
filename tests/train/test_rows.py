"""Tests that an example adds the same bits in any company, and losses that look at a batch are refused or seen."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.thorough import cases

from jaxacct.train import DPTrainer, PrivateGradients
from jaxacct.train.clipping import Flat, clip_and_sum, clipped_sum, query, rows

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def as_users_write():
    with jax.numpy_rank_promotion("allow"):
        yield


def normal(*shape):
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


def distance(one, other):
    parts = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return np.sqrt(sum(np.sum((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2) for a, b in parts))


def grouped(params, x):
    y = jax.lax.conv_general_dilated(
        x[None], params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )
    return jnp.sum(jnp.tanh(y) * params["scale"])


@pytest.mark.parametrize("ghost", [True, False])
@pytest.mark.parametrize(("count", "microbatch_size"), cases([(24, None)], [(8, None), (60, 20)]))
def test_one_nan_reaches_nobody_else_through_grouped_convolutions(count, microbatch_size, ghost):
    params = {"kernel": normal(3, 3, 2, 6), "scale": jnp.ones(6)}
    x, mask = normal(count, 8, 8, 4), jnp.ones(count, bool)

    @jax.jit
    def total(x, mask):
        return clipped_sum(grouped, params, x, mask, clip_norm=1.0, ghost=ghost, microbatch_size=microbatch_size)

    for bad in (np.nan, np.inf, 3e38):
        without = total(x.at[3].set(0.0), mask.at[3].set(False))
        assert distance(total(x.at[3].set(bad), mask), without) <= 1.0


def test_grouped_convolutions_inside_of_other_operations_are_found():
    """Within a scan, a remat and a branch, as models have them."""
    params = {"kernel": normal(3, 3, 2, 4) / 3, "scale": jnp.ones(4)}

    @jax.checkpoint
    def block(x, kernel):
        return jnp.tanh(jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
        ))  # fmt: skip

    def loss(params, x):
        y, _ = jax.lax.scan(lambda y, _: (block(y, params["kernel"]), None), x[None], None, length=2)
        y = jax.lax.cond(jnp.sum(x) > 0, lambda y: block(y, params["kernel"]), lambda y: y, y)
        return jnp.sum(y * params["scale"])

    x, mask, slope = normal(16, 6, 6, 4), jnp.ones(16, bool), jax.jit(jax.grad(loss))
    for ghost in (True, False):
        total = jax.jit(lambda x, mask, ghost=ghost: clipped_sum(loss, params, x, mask, clip_norm=1.0, ghost=ghost))
        without = total(x.at[5].set(0.0), mask.at[5].set(False))
        assert distance(total(x.at[5].set(np.nan), mask), without) == 0.0
        exact = sum(clipped(slope(params, row)) for row in x)
        assert distance(exact, total(x, mask)["kernel"]) < 1e-2


def clipped(gradient):
    norm = np.sqrt(sum(np.sum(np.square(part)) for part in jax.tree.leaves(gradient)))
    return np.asarray(gradient["kernel"], np.float64) / max(1.0, norm)


@pytest.mark.parametrize("microbatch_size", cases([20], [None, 37]))
def test_a_zero_row_less_moves_a_loss_with_a_kink_by_no_more_than_its_norm(microbatch_size):
    """Rows left over of a tile are added in another order: at the kink that is another gradient."""
    d, count, zeros = 17, 500, 451
    w = normal(d)
    x = np.concatenate([np.zeros((zeros, d), np.float32), RANDOM.normal(size=(count - zeros, d)).astype(np.float32)])
    y = np.asarray(jax.vmap(lambda row: row @ w)(jnp.asarray(x[:496])))  # at the kink, as whole tiles have it
    y = np.concatenate([y, np.asarray(jax.vmap(lambda row: row @ w)(jnp.asarray(x[-8:])))[-4:]])

    @jax.jit
    def total(x, y, mask):
        loss = lambda w, row: jnp.abs(row[0] @ w - row[1])  # noqa: E731
        return clipped_sum(loss, w, (x, y), mask, clip_norm=1.0, microbatch_size=microbatch_size)

    whole = total(x, y, np.ones(count, bool))
    # One of the zeros less, as a sampler gives it: the rows behind it move up, and the last place is empty.
    fewer = [np.concatenate([part[1:], part[:1]]) for part in (x, y)]
    assert distance(whole, total(*fewer, np.arange(count) < count - 1)) <= 1.0


def with_rule(x):
    double = jax.custom_batching.custom_vmap(lambda x: 2 * x)
    double.def_vmap(lambda size, batched, x: (2 * x - jnp.mean(x), True))
    return double(x)


def with_callback(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: np.asarray(x) * 2, shape, x, vmap_method="broadcast_all")


def with_rbg(x):
    key = jax.random.fold_in(jax.random.key(0, impl="rbg"), jnp.int32(x[0]))
    return x * jax.random.normal(key, x.shape)


@pytest.mark.parametrize(
    ("looks", "words"), [(with_rule, "custom_vmap"), (with_callback, "broadcast_all"), (with_rbg, "rbg")]
)
@pytest.mark.parametrize("ghost", [True, False])
def test_what_looks_at_the_batch_is_refused_by_name(looks, words, ghost):
    def loss(w, x):
        return jnp.sum(w * jax.lax.stop_gradient(looks(x)))

    with pytest.raises(ValueError, match=words):
        clip_and_sum(loss, jnp.ones(3), jnp.ones((4, 3)), jnp.ones(4, bool), rule=Flat(1.0), ghost=ghost)


def hidden_backward(looks):
    """The same, where only the derivative shows it: a rule of the user's."""
    same = jax.custom_vjp(lambda x: x)
    same.defvjp(lambda x: (x, None), lambda _, slope: (looks(slope),))
    return same


def hidden_tangent(looks):
    same = jax.custom_jvp(lambda x: x)
    same.defjvp(lambda points, slopes: (points[0], slopes[0] * jax.lax.stop_gradient(looks(points[0]))))
    return same


@pytest.mark.parametrize(
    ("looks", "words"), [(with_rule, "custom_vmap"), (with_callback, "broadcast_all"), (with_rbg, "rbg")]
)
@pytest.mark.parametrize("hidden", [hidden_backward, hidden_tangent])
@pytest.mark.parametrize("ghost", [True, False])
def test_what_only_a_derivative_does_is_refused_as_well(hidden, looks, words, ghost):
    def loss(w, x):
        return jnp.sum(hidden(looks)(w * x) ** 2)

    with pytest.raises(ValueError, match=words):
        clip_and_sum(loss, jnp.ones(3), jnp.ones((4, 3)), jnp.ones(4, bool), rule=Flat(1.0), ghost=ghost)


def test_a_rule_that_is_only_called_like_one_by_rows_is_refused():
    def sequential_vmap():
        return with_rule

    double = sequential_vmap()
    with pytest.raises(ValueError, match="custom_vmap"):
        clipped_sum(lambda w, x: jnp.sum(w * jax.lax.stop_gradient(double(x))), jnp.ones(3), jnp.ones((4, 3)),
                    jnp.ones(4, bool), clip_norm=1.0)  # fmt: skip


@pytest.mark.parametrize("ghost", [True, False])
@pytest.mark.parametrize(
    "meets", [lambda x: jax.lax.pmean(x, "rows"), lambda x: x * jax.lax.axis_index("rows")], ids=["pmean", "index"]
)
def test_examples_of_other_devices_are_not_met(meets, ghost):
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))

    def total(x):
        loss = lambda w, x: jnp.sum(w * meets(x))  # noqa: E731
        return clip_and_sum(loss, jnp.ones(3), x, jnp.ones(8, bool), rule=Flat(1.0), ghost=ghost, sharding=rows)

    with pytest.raises(ValueError, match="axis of devices"):
        jax.jit(total)(jnp.ones((8, 3)))


@pytest.mark.parametrize(
    ("looks", "words"), [(with_rule, "custom_vmap"), (with_callback, "broadcast_all"), (with_rbg, "rbg")]
)
def test_what_is_counted_of_an_example_looks_at_no_other(looks, words):
    with pytest.raises(ValueError, match=f"what is counted uses .*{words}"):
        rows.map_rows(lambda x: jnp.sum(looks(x)), jnp.ones((20, 3)), 8)


def test_what_works_row_by_row_is_not_refused():
    def loss(w, x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        once = jax.pure_callback(lambda x: np.asarray(x) * 2, shape, x, vmap_method="sequential")
        alone = jax.custom_batching.sequential_vmap(lambda x: x + 1)(x)
        return jnp.sum(w * jax.lax.stop_gradient(once + alone))

    total = clipped_sum(loss, jnp.ones(3), jnp.ones((4, 3)), jnp.ones(4, bool), clip_norm=100.0)
    assert np.asarray(total).tolist() == [16.0, 16.0, 16.0]


def ulp(x, where):
    return jnp.where(where, jnp.nextafter(x, jnp.float32(np.inf)), x)


MUTANTS = {
    "the batch's mean": lambda x: x - 1e-6 * jnp.mean(x, axis=0),
    "a mask of zeros": lambda x: x + jnp.sum(0 * x, axis=0),
    "the largest": lambda x: x / (1 + 1e-7 * jnp.max(jnp.abs(jnp.nan_to_num(x)))),
    "finite or not": lambda x: ulp(x, ~jnp.isfinite(x).all()),
    "the row before": lambda x: x + 0 * jnp.roll(x, 1, axis=0),
    "the row behind": lambda x: ulp(x, jnp.roll(x, -1, axis=0) > 1e30),
    "a sum so far": lambda x: x + 0 * jnp.cumsum(x, axis=0),
    "the last row": lambda x: ulp(x, (jnp.arange(len(x)) == len(x) - 1)[:, None]),
    "the first row": lambda x: ulp(x, (jnp.arange(len(x)) == 0)[:, None]),
    "the last tile": lambda x: ulp(x, (jnp.arange(len(x)) >= len(x) - 3)[:, None]),
    "even rows": lambda x: ulp(x, (jnp.arange(len(x)) % 2 == 0)[:, None]),
    "one entry of one row": lambda x: x.at[5, 1].set(ulp(x[5, 1], True)),
    "sorted": lambda x: jnp.where(jnp.isnan(x[:, :1]), x, jnp.sort(x, axis=0)),
    "a common scale": lambda x: x * (1 + jnp.where(jnp.max(jnp.nan_to_num(x)) > 1e30, 1e-6, 0.0)),
    "its rank": lambda x: x + 1e-6 * jnp.argsort(x[:, 0])[:, None],
    "zeros counted": lambda x: ulp(x, (jnp.sum(x == 0) > 1)),
    "how many are alike": lambda x: ulp(x, (jnp.sum(x[:, 0] == x[0, 0]) > 3)),
    "overflow": lambda x: x + 0 * jnp.sum(x * x, axis=0),
    "its place": lambda x: x + 1e-6 * jnp.arange(len(x))[:, None],
    "a blend of all": lambda x: 0.999999 * x + 1e-6 * jnp.ones((len(x), len(x))) @ jnp.nan_to_num(x, posinf=0) / len(x),
    "normalized": lambda x: (x - jnp.nanmean(x)) / jnp.nanstd(x),
}  # fmt: skip


def looked_at(mixed):
    rows.check_rows(
        lambda w, x: [jnp.sum(mixed(x) * w, axis=1), mixed(x) * w],
        jnp.ones(3), jax.ShapeDtypeStruct((3,), jnp.float32), 16,
    )  # fmt: skip


def test_a_batch_that_is_a_map_over_rows_is_none_that_is_seen():
    looked_at(lambda x: x)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_batch_that_is_no_map_over_rows_is_seen(name):
    with pytest.raises(ValueError, match="depends on what stands beside it"):
        looked_at(MUTANTS[name])


BESIDE = {
    "NaN anywhere": lambda x: ulp(x, jnp.any(jnp.isnan(x))),
    "a large number anywhere": lambda x: ulp(x, jnp.any(x > 1e30)),
    "a large negative number anywhere": lambda x: ulp(x, jnp.any(x < -1e30)),
    "a row of zeros": lambda x: ulp(x, jnp.any(jnp.all(x == 0, axis=1))),
    "a mask of zeros": lambda x: x + jnp.sum(0 * x, axis=0),
}


@pytest.mark.first_tier("3-a mask of zeros", "4-a large number anywhere", "4-a mask of zeros", "7-a mask of zeros")
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
def test_small_blocks_are_seen_beside_all_kinds_of_rows(name, size):
    with pytest.raises(ValueError, match="depends on what stands beside it"):
        rows.check_rows(lambda w, x: [BESIDE[name](x) * w], jnp.ones(3), jax.ShapeDtypeStruct((3,), jnp.float32), size)


@pytest.mark.parametrize("far", [2, 3, 4, 6, 8, 16, 17])
@pytest.mark.parametrize("is_bad", [jnp.isnan, lambda x: x > 1e30, lambda x: x == 0], ids=["NaN", "large", "zero"])
def test_rows_are_seen_to_meet_at_all_distances(far, is_bad):
    def look(w, x):
        return [ulp(x, is_bad(jnp.roll(x, far, axis=0))) * w]

    with pytest.raises(ValueError, match="depends on what stands beside it"):
        rows.check_rows(look, jnp.ones(3), jax.ShapeDtypeStruct((3,), jnp.float32), 32)


def test_last_digits_of_float64_are_looked_at():
    def look(w, x):
        last = (jnp.arange(len(x)) == len(x) - 1)[:, None]
        return [jnp.where(last, jnp.nextafter(x, jnp.full_like(x, jnp.inf)), x) * w]

    with jax.enable_x64(True):
        shape = jax.ShapeDtypeStruct((3,), jnp.float64)
        rows.check_rows(lambda w, x: [x * w], jnp.ones(3), shape, 16)
        with pytest.raises(ValueError, match="depends on what stands beside it"):
            rows.check_rows(look, jnp.ones(3), shape, 16)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ghost", [True, False])
def test_narrow_indices_are_found_where_functions_are_in_a_named_tuple(ghost):
    """``custom_linear_solve`` keeps its functions so, and a tuple with names is not made from an iterator."""

    def loss(w, x):
        scale = lambda b: b * (1 + jax.lax.dynamic_slice(w, (x,), (1,)) ** 2)  # noqa: E731
        inverse = lambda _, b: b / (1 + jax.lax.dynamic_slice(w, (x,), (1,)) ** 2)  # noqa: E731
        return jnp.sum(jax.lax.custom_linear_solve(scale, 2 * w, inverse, inverse))

    w, x = jnp.arange(1.0, 4.0), jnp.array([0, 2], jnp.int8)
    total = clipped_sum(loss, w, x, jnp.ones(2, bool), clip_norm=1e3, ghost=ghost)
    expected = sum(2 / (1 + w[k] ** 2) - jnp.zeros(3).at[k].set(4 * w[k] * w.sum() / (1 + w[k] ** 2) ** 2) for k in x)
    np.testing.assert_allclose(total, expected, rtol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.uint4, jnp.int4, jnp.bfloat16, jnp.float8_e4m3fn, jnp.bool_])
@pytest.mark.parametrize("ghost", [True, False])
def test_examples_of_any_dtype_are_made_up(dtype, ghost):
    shape = jax.ShapeDtypeStruct((3,), dtype)
    real = (lambda x: x.real) if dtype == jnp.complex64 else (lambda x: x.astype(jnp.float32))
    assert query.check_loss(
        lambda w, x: jnp.sum(w * real(x)), jnp.ones(3), shape, 16, microbatch_size=None, ghost=ghost
    )


def test_keys_as_examples_are_made_up():
    shape = jax.eval_shape(lambda: jax.random.key(0))
    loss = lambda w, x: jnp.sum(w * jax.random.normal(x, (3,)))  # noqa: E731
    assert query.check_loss(loss, jnp.ones(3), shape, 16, microbatch_size=None, ghost=True)


def test_blocks_are_whole_tiles_within_the_memory_that_is_given():
    for count in (1, 5, 8, 9, 20, 500):
        for most in (1, 3, 8, 9, 20, 37, 1000, None):
            size = rows.rows_at_once(count, most)
            assert size <= (most or count + rows.TILE - 1)
            assert size % rows.TILE == 0 or size < rows.TILE
            assert size >= min(count, most or count) - rows.TILE + 1


class Mixing(nnx.Module):
    """Its rows meet by a name that no check of names can know, as some library's primitive might."""

    def __init__(self):
        self.w = nnx.Param(jnp.ones(3))

    def __call__(self, x):
        return jnp.sum(self.w[...] * x)


def mixing(monkeypatch):
    """Has the gradients of all rows depend on whether any of them is infinite."""
    honest = query.GhostLoss.contributions

    def contributions(self, params, examples):
        leak = 0 * jnp.sum(examples[0][0] if isinstance(examples[0], tuple) else examples[0])
        return [
            part._replace(cotangents=part.cotangents + leak)
            if hasattr(part, "cotangents")
            else dataclasses.replace(part, gradients=part.gradients + leak)
            for part in honest(self, params, examples)
        ]

    monkeypatch.setattr(query.GhostLoss, "contributions", contributions)


@pytest.mark.exhaustive
def test_both_doors_look_before_anything_is_paid(monkeypatch):
    mixing(monkeypatch)
    x = np.ones((64, 3), np.float32)
    trainer = DPTrainer(
        Mixing(), lambda model, x: model(x) ** 2, optax.sgd(0.1), (x,), epsilon=5.0, delta=1e-3, epochs=1,
        expected_batch_size=16, clip_norm=1.0, seed=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="microbatch_size=1"):
        trainer.fit()
    assert trainer.spent_epsilon == 0.0
    private = PrivateGradients.planned(
        lambda w, x: jnp.sum(w * x) ** 2, 64, epsilon=5.0, delta=1e-3, epochs=1, expected_batch_size=16, clip_norm=1.0
    )
    state = private.start(0)
    indices, mask = private.batch(state)
    for gradient in (private.gradient, jax.jit(private.gradient)):
        with pytest.raises(ValueError, match="microbatch_size=1"):
            gradient(jnp.ones(3), state, (x[indices],), mask)
