"""Operations of traced programs in pairs: each beside float64's, specials and shapes included, alone and in loops."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxacct.numerics.arithmetic import FLOAT64, PAIR
from jaxacct.numerics.float_pairs import wide
from jaxacct.numerics.float_pairs.interpret import as_pairs
from jaxacct.numerics.float_pairs.operations import COMPLEX, MOVING, REAL

N = 48
to_float64 = jax.jit(wide.to_float64)
SPECIAL = np.array([0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, -1e-300, 1.0, -1.0, 0.5, -0.5, 2.5, 2.0**30])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def kept(values):
    """What pairs hold of float64 numbers, so that both begin with the same."""
    with jax.enable_x64(True):
        return np.array(to_float64(wide.constant(np.asarray(values, np.float64))))


def numbers(seed=0, n=N, low=-30, high=30, specials=True):
    random = np.random.default_rng(seed)
    values = random.choice([-1, 1], n) * np.exp2(random.uniform(low, high, n))
    if specials:
        values[: len(SPECIAL)] = np.roll(SPECIAL, 5 * seed)
    return kept(values)


def ordinary(seed=0, shape=(N,), low=-1.0, high=1.0):
    return kept(np.random.default_rng(seed).uniform(low, high, shape))


def assert_near(found, truth, size=None, units=1.0):
    """Specials where float64 has them; else off by so many units of pairs' roundoff, of ``size`` or the truth."""
    found, truth = np.asarray(found), np.asarray(truth)
    assert found.shape == truth.shape
    assert found.dtype == truth.dtype
    if not np.issubdtype(truth.dtype, np.inexact):
        np.testing.assert_array_equal(found, truth)
        return
    finite = np.isfinite(truth) & (np.abs(truth) > 2.0**-1022) | (truth == 0)
    if truth.dtype == np.float64:
        np.testing.assert_array_equal(found[~finite & (truth != 0)], truth[~finite & (truth != 0)])
    size = np.abs(truth) if size is None else size
    slack = units * PAIR.roundoff * np.broadcast_to(size, truth.shape)[finite]
    # Float64's own functions are not exact either.
    assert np.all(np.abs(found[finite] - truth[finite]) <= slack * (1 + 2.0**-8))


def of_both(function, *args):
    """What a function is in pairs, operation by operation, and in float64."""
    return as_pairs(function, stepwise=True)(*args), jax.jit(function)(*args)


X, Y = numbers(0), numbers(1)
EVERY = {
    "add": (lax.add, 1), "sub": (lax.sub, 1), "mul": (lax.mul, 1), "div": (lax.div, 1), "neg": (lambda x, y: -x, 0),
    "abs": (lambda x, y: lax.abs(x), 0),
    "max": (lax.max, 0), "min": (lax.min, 0), "sign": (lambda x, y: lax.sign(x), 0),
    "sqrt": (lambda x, y: lax.sqrt(lax.abs(x)), 1), "rsqrt": (lambda x, y: lax.rsqrt(lax.abs(x)), 2),
    "square": (lambda x, y: lax.square(x), 1), "cube": (lambda x, y: lax.integer_pow(x, 3), 2),
    "inverse square": (lambda x, y: lax.integer_pow(x, -2), 3), "clamp": (lambda x, y: lax.clamp(-1.0, x, 2.0), 0),
    "floor": (lambda x, y: lax.floor(x), 0), "ceil": (lambda x, y: lax.ceil(x), 0),
    "round": (lambda x, y: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), 0),
    "is_finite": (lambda x, y: lax.is_finite(x), 0), "eq": (lax.eq, 0), "ne": (lax.ne, 0), "lt": (lax.lt, 0),
    "le": (lax.le, 0), "gt": (lax.gt, 0), "ge": (lax.ge, 0), "to bool": (lambda x, y: x.astype(bool), 0),
    "exp": (lambda x, y: lax.exp(x), 4), "expm1": (lambda x, y: lax.expm1(x), 8), "log": (lambda x, y: lax.log(x), 4),
    "log1p": (lambda x, y: lax.log1p(lax.max(x, -0.25)), 5), "tanh": (lambda x, y: lax.tanh(x), 8),
    "logistic": (lambda x, y: lax.logistic(x), 8), "atan2": (lax.atan2, 8), "erf": (lambda x, y: lax.erf(x), 6),
    "asinh": (lambda x, y: lax.asinh(x), 16), "sinh": (lambda x, y: lax.sinh(x), 16),
    "cbrt": (lambda x, y: lax.cbrt(x), 4),
    "cumsum": (lambda x, y: lax.cumsum(x[18:]), None), "cummax": (lambda x, y: lax.cummax(x), 0),
    "cummin": (lambda x, y: lax.cummin(x, reverse=True), 0), "sort": (lambda x, y: lax.sort(x), 0),
    "select": (lambda x, y: lax.select(x < y, x, y), 0), "reduce_max": (lambda x, y: jnp.max(x), 0),
    "finite max": (lambda x, y: jnp.max(x[18:]), 0), "finite min": (lambda x, y: jnp.min(x[18:]), 0),
}  # fmt: skip
"""Operations of two arrays with specials in them, and the units of roundoff that each may be off by."""


@pytest.mark.first_tier("neg", "sign", "lt", "select")
@pytest.mark.parametrize("name", EVERY)
def test_operations_are_those_of_float64_within_their_bounds(name):
    function, units = EVERY[name]
    found, truth = of_both(lambda x, y: function(x, y), X, Y)
    size = None if units is not None else np.cumsum(np.abs(X[18:]))
    assert_near(found, truth, size, 6 if units is None else units)


@pytest.mark.exhaustive
def test_functions_of_moderate_arguments_are_within_their_bounds():
    x = kept(np.concatenate([np.linspace(-7, 7, N - 2), [1e-12, 30.0]]))
    given = {lax.sin: 4, lax.cos: 4, lax.erfc: 8 * (1 + x**2), lax.exp2: 8}
    for function, units in given.items():
        found, truth = of_both(function, x)
        # Next to a zero the sine of float64 is no reference for itself.
        assert_near(found, truth, np.maximum(np.abs(truth), 1e-6) if function in (lax.sin, lax.cos) else None, units)
    for exponent in (kept(1 / 3), 2.5, np.int64(3)):
        found, truth = of_both(lambda x, y: lax.pow(x, y), np.abs(x) + 0.5, np.broadcast_to(exponent, x.shape))
        assert_near(found, truth, units=17 * (1 + 2 * np.max(np.abs(np.log(truth)))))


def test_remainders_have_the_sign_of_what_is_divided():
    whole = np.array([7.0, -7.0, 2.0**45 + 1, 6.0, 0.0, -1.0]), np.array([3.0, 3.0, 7.0, 3.0, 5.0, 2.0**40])
    np.testing.assert_array_equal(*of_both(lax.rem, *whole))
    assert_near(*of_both(lax.rem, np.array([5.25, -5.25] * 3), np.array([0.5, 2.0] * 3)), size=8.0)


@pytest.mark.parametrize(("axes", "shape"), [((0,), (64,)), ((0, 2), (2, 3, 5)), ((0,), (0, 2))])
def test_sums_are_right_to_the_sum_of_sizes(axes, shape):
    x = kept(np.random.default_rng(3).standard_normal(shape) * np.exp2(np.random.default_rng(4).uniform(-40, 0, shape)))
    found, truth = of_both(lambda x: lax.reduce_sum_p.bind(x, axes=axes, out_sharding=None), x)
    assert_near(found, truth, np.sum(np.abs(x), axes))


def test_sums_with_infinite_terms_are_infinite_or_nan():
    rows = np.ones((4, 8))
    rows[0, 1], rows[1, 2], rows[2, :2] = np.inf, np.nan, [np.inf, -np.inf]
    np.testing.assert_array_equal(*of_both(lambda x: jnp.sum(x, -1), rows))
    np.testing.assert_array_equal(*of_both(lambda x: jnp.max(x, 1), rows))


def test_running_sums_are_right_to_their_own_terms_both_ways():
    x = kept(np.geomspace(1e-290, 1e290, 24).reshape(4, 6))
    for axis, reverse in ((0, False), (1, True)):
        found, truth = of_both(lambda x, axis=axis, reverse=reverse: lax.cumsum(x, axis=axis, reverse=reverse), x)
        assert_near(found, truth, units=5)


@pytest.mark.parametrize(
    "dimensions",
    [
        (((1,), (0,)), ((), ())),
        (((2,), (2,)), ((0, 1), (0, 1))),
        (((1,), (1,)), ((0,), (0,))),
        (((0,), (1,)), ((), ())),
    ],
)
def test_products_of_matrices_with_and_without_batches(dimensions):
    rank = 3 if dimensions[1][0] else 2
    x, y = ordinary(0, (4, 4, 4)[:rank]), ordinary(1, (4, 4, 4)[:rank])
    product = functools.partial(lax.dot_general, dimension_numbers=dimensions)
    found, truth = of_both(product, x, y)
    assert_near(found, truth, product(np.abs(x), np.abs(y)), 3)


def test_sorts_carry_others_along():
    keys, passengers = X[: len(SPECIAL)], np.arange(len(SPECIAL))
    found, truth = of_both(lambda x, i: lax.sort((x, i), num_keys=1), keys, passengers)
    for one, other in zip(found, truth, strict=True):
        np.testing.assert_array_equal(one, other)


MODES = ["drop", "clip", "promise_in_bounds"]


@pytest.mark.first_tier("clip")
@pytest.mark.parametrize("mode", MODES)
def test_scattered_sums_are_right_to_what_is_added_there(mode):
    """Targets of sizes from 2^-300 to 2^300 side by side: one exponent for all would lose the small ones."""
    random, targets = np.random.default_rng(5), 7
    index = random.integers(0, targets, 40)
    size = np.exp2(100.0 * (index - 3))
    updates = kept(random.standard_normal((40, 2)) * size[:, None])
    if mode != "promise_in_bounds":
        index, updates = np.append(index, targets + 3), np.append(updates, [[1e-200, 2e-200]], 0)
    into = np.zeros((targets, 2))
    found, truth = of_both(lambda into, i, u: jnp.asarray(into).at[i].add(u, mode=mode), into, index, updates)
    assert_near(found, truth, jnp.asarray(into).at[index].add(np.abs(updates), mode=mode))


@pytest.mark.exhaustive
def test_scattered_sums_of_batches_windows_and_specials():
    index = np.array([[0, 2, 2, 1], [3, 3, 3, 0]])
    into, updates = ordinary(6, (2, 4)), ordinary(7, (2, 4))
    updates[1, 1] = np.inf
    add = jax.vmap(lambda into, i, u: jnp.asarray(into).at[i].add(u))
    found, truth = of_both(add, into, index, updates)
    assert_near(found, truth, np.asarray(add(np.abs(into), index, np.abs(updates))), 2)
    np.testing.assert_array_equal(*of_both(jax.vmap(lambda x, i: x[i]), into, index))
    np.testing.assert_array_equal(*of_both(lambda x, u: jnp.asarray(x).at[1:3].set(u[:2]), into[0], updates[1]))


def test_means_of_seventeen_neighbours():
    x = np.abs(ordinary(8, (40,)))
    mean = functools.partial(jnp.convolve, v=jnp.asarray(kept(np.full(17, 1 / 17))), mode="same")
    assert_near(*of_both(jax.vmap(mean), np.stack([x, x[::-1]])), units=3)


def test_complex_numbers():
    a, b, c, d = (ordinary(i, (8,)) for i in range(4))

    def parts(a, b, c, d):
        x, y = lax.complex(a, b), lax.complex(c, d)
        z = jnp.conj(x) * y + x - (-y)
        return lax.real(z), lax.imag(z), lax.real(x[::-1] * (1 + 0j))

    found, truth = of_both(parts, a, b, c, d)
    for one, other in zip(found, truth, strict=True):
        assert_near(one, other, 8.0, 3)


def test_what_moves_numbers_moves_all_their_parts():
    x = kept(np.random.default_rng(9).standard_normal((4, 6)) * np.exp2(np.arange(-12.0, 12.0).reshape(4, 6) * 60))

    def moved(x):
        y = jnp.concatenate([x[::-1], jnp.pad(x, ((0, 1), (0, 0)))]).T.reshape(9, 6)
        y = lax.dynamic_update_slice(y, x[:2], (3, 0))
        first, second = jnp.split(y, [4])
        return jnp.tile(first, (2, 1)), lax.dynamic_slice(second, (1, 2), (2, 3)), jnp.stack([x[0], x[-1]])[:, None]

    found, truth = of_both(moved, x)
    for one, other in zip(found, truth, strict=True):
        np.testing.assert_array_equal(one, other)


def whole_edges():
    near = np.array([0.0, 1.0, 2.0, 2.0**22, 2.0**23, 2.0**24, 2.0**31, 2.0**45])[:, None]
    edges = (near + np.array([-1.0, -0.5, -(2.0**-20), 0.0, 2.0**-20, 0.5, 1.0])).ravel()
    return np.concatenate([edges, -edges])


def test_whole_parts_and_order_at_edges():
    """Where the high part is whole and the low part is not, and the other way round."""
    x = kept(whole_edges())
    np.testing.assert_array_equal(x[np.abs(x) < 2.0**26], whole_edges()[np.abs(x) < 2.0**26])

    def at_edges(x):
        below, y = x - 2.0**-22, x[::-1]
        nearest = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
        return lax.floor(x), lax.ceil(x), nearest, x < y, x <= y, x.astype(jnp.int64), below < x

    found, truth = of_both(at_edges, x)
    for one, other in zip(found[:-1], truth[:-1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint32, np.int8, bool, jnp.bfloat16, np.float16, np.float32])
def test_numbers_of_other_types_come_and_go(dtype):
    dtype = np.dtype(dtype)
    if np.issubdtype(dtype, np.integer):
        most = min(np.iinfo(dtype).max, 2**46)
        least = max(np.iinfo(dtype).min, -(2**46))
        values = np.array([0, 1, 2, most, most - 1, most // 3, least, least // 7, most // 2 + 1], dtype)
    else:
        values = np.array(
            [0, 1, 1, 0, 1, 0, 0, 1, 1] if dtype == np.bool_ else [0, 1, -2.5, 1 / 3, 1e3, 3, 7, 1e-3, 9], dtype
        )
    there = as_pairs(lambda x: x.astype(jnp.float64), stepwise=True)(values)
    np.testing.assert_array_equal(there, values.astype(np.float64))
    back = as_pairs(lambda x: x.astype(dtype), stepwise=True)(np.asarray(there))
    np.testing.assert_array_equal(back, values)


@pytest.mark.exhaustive
def test_loops_and_branches_also_of_batches():
    def rowed(x):
        total, each = lax.scan(lambda s, row: (s * 0.5 + row, s), 0.0, x, reverse=True)
        halved = lax.while_loop(lambda c: c > 0.3, lambda c: c * 0.5, x[0])
        branch = lax.cond(x[1] > 0.5, lambda y: y + 3, lambda y: y * y, x[1])
        return total, each, halved, branch

    x = ordinary(10, (3, 4), 0.1, 4.0)
    for function, rows, stepwise in ((rowed, x[0], True), (jax.vmap(rowed), x, True), (jax.vmap(rowed), x, False)):
        for one, other in zip(as_pairs(function, stepwise=stepwise)(rows), jax.jit(function)(rows), strict=True):
            assert_near(one, other, 4.0, 8)


def test_what_nobody_has_written_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="lgamma of float64"):
        as_pairs(lax.lgamma, stepwise=True)(np.ones(3))
    assert not set(REAL) & MOVING
    assert not set(COMPLEX) & MOVING - {"scatter"}


def measured(unit):
    """The largest error of sums, products and quotients, in so many units."""
    x, y = (ordinary(seed, (4000,), 1.0, 2.0) for seed in (11, 12))
    worst = 0.0
    for function in (lax.mul, lax.div):
        found = np.asarray(as_pairs(function, stepwise=True)(x, y))
        exact = x.astype(np.longdouble) * y if function is lax.mul else x.astype(np.longdouble) / y
        worst = max(worst, float(np.max(np.abs(found - exact) / exact)))
    return worst / unit


def test_the_unit_of_float64_would_be_wrong_for_pairs():
    assert measured(PAIR.roundoff) <= 1
    assert measured(FLOAT64.roundoff) > 16
    assert math.log2(PAIR.roundoff) == -44


@pytest.mark.exhaustive
def test_float64_made_of_two_float32_is_read_and_written_in_their_range():
    rng = np.random.default_rng(3)
    high = np.float32(np.exp2(rng.uniform(-100, 127, 2000)) * rng.choice([-1, 1], 2000))
    high = np.concatenate([high, np.float32([0, 1, -1, np.inf, -np.inf, np.nan, 2.0**-126, 2.0**127, 3.4e38, -3.4e38])])
    usual = np.isfinite(high) & (np.abs(high) > 2.0**-101) & (high != 0)
    with np.errstate(invalid="ignore"):
        low = np.where(usual, np.float64(high) * rng.uniform(-1, 1, high.shape) * 2.0**-25, 0.0).astype(np.float32)
    values = np.float64(high) + np.float64(low)
    numbers = wide.normal(*wide.taken_apart(jnp.asarray(values)))
    np.testing.assert_array_equal(np.abs(numbers.high) < 2, np.isfinite(values))
    # Low parts are whole multiples of 2^-70 of the number; float32 has none below 2^-126.
    for found in (wide.to_float64(numbers), wide.to_two_singles(numbers)):
        np.testing.assert_allclose(found, values, rtol=2.0**-70, atol=2.0**-126)
    far = wide.Wide(
        *(
            jnp.asarray(part)
            for part in (np.float32([1.5, -1.5, 1.5]), np.float32([0, 0, 0]), np.int32([-127, 128, 9999]))
        )
    )
    np.testing.assert_array_equal(wide.to_two_singles(far), [0.0, -np.inf, np.inf])
