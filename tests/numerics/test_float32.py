"""Programs in float32: the operations that replace those of float64, against numbers of more digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.single import in_single
from helpers.thorough import draws

from jaxacct.numerics.arithmetic import FLOAT32, in_float32
from jaxacct.numerics.float32 import divide, of_constant, square_root
from jaxacct.numerics.precision import exact_float64
from jaxacct.numerics.programs import as_held, by_float32

U, TINY, LARGEST = FLOAT32.roundoff, FLOAT32.tiny, float(np.finfo(np.float32).max)


def hard(count):
    """Numbers of all sizes; mantissas of all bits, of few, and next to powers of two."""
    random = np.random.default_rng(0)
    mantissas = np.concatenate([random.uniform(1, 2, count), 1 + np.arange(64) / 64, 1 + U * 2 * np.arange(9)])
    mantissas = np.concatenate([mantissas, 2 - U * 2 * np.arange(1, 9)])
    return (mantissas * 2.0 ** random.integers(-126, 127, len(mantissas))).astype(np.float32)


def test_quotients_and_roots_are_within_their_units():
    x = hard(draws(20_000, 2_000_000))
    y = np.random.default_rng(1).permutation(x)
    with np.errstate(over="ignore"):
        quotient = x.astype(np.float64) / y
    found = np.asarray(divide(x, y), np.float64)
    normal = (np.abs(quotient) >= TINY) & (np.abs(quotient) < LARGEST)
    assert np.all(np.abs(found / quotient - 1)[normal] <= 1.01 * U)
    assert np.all(found[np.abs(quotient) < TINY * (1 - 2 * U)] == 0)
    assert np.all(np.isinf(found[quotient > LARGEST * (1 + U)]))
    root = np.sqrt(x.astype(np.float64))
    assert np.max(np.abs(np.asarray(square_root(x), np.float64) / root - 1)) <= 1.01 * U


def test_ends_of_the_range():
    x = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, TINY, LARGEST])
    a, b = (np.ravel(part) for part in np.meshgrid(x, x))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.asarray(divide(a, b)), np.where(np.abs(a / b) < TINY, a / b * 0, a / b))
        np.testing.assert_array_equal(np.asarray(square_root(x)), np.sqrt(x))


def every_operation(x, y, k):
    """A result of each kind of operation, of positive numbers (6,) and of a whole number."""

    def halve(state):
        return state[0] + 1, jnp.where(state[1] > 1, state[1] / 2, state[1])

    def advance(carry, row):
        return carry * 0.5 + row, jnp.log1p(carry)

    swept, logs = jax.lax.scan(advance, jnp.zeros(()), x)
    matrix = x[:, None] * y[None]
    return jnp.stack(
        [
            jnp.exp(-x).sum(), jnp.expm1(x).max(), jnp.log(y).min(), jnp.log1p(x / (1 + y)).sum(), jnp.sqrt(x @ y),
            (matrix @ matrix)[2, 3], jnp.tanh(x)[1], jax.nn.sigmoid(x - y)[2], jax.nn.softmax(x)[3], x[0] ** y[0],
            x[1] ** -3, jnp.cumsum(x)[-2], jnp.arctan2(x, -y)[4], jnp.sin(7 * x)[0], jnp.cos(7 * y)[1],
            jax.scipy.special.ndtr(x - y)[2], jax.scipy.special.erf(x)[3], jnp.sinh(x)[1], jnp.arcsinh(y)[2],
            jax.lax.while_loop(lambda s: jnp.any(s[1] > 1), halve, (0, 8 * x))[1].sum(), swept, logs[-1],
            jax.lax.cond(k > 3, lambda: x[0] * k, lambda: x[1]), jnp.zeros(4).at[jnp.array([0, 2, 2])].add(x[:3])[2],
            jnp.sort(x - y)[4], jax.lax.switch(jnp.int32(1), [lambda: x[0], lambda: y[0]]), jnp.cbrt(y)[0],
            jax.lax.rsqrt(y)[1],
        ]
    )  # fmt: skip


def test_each_operation_is_that_of_float64_in_fewer_digits():
    random = np.random.default_rng(2)
    x, y = random.uniform(0.1, 3, (2, 6)).astype(np.float32)
    found = in_single(every_operation)(x, y, 5)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(every_operation)(*map(np.float64, (x, y)), 5))
    np.testing.assert_allclose(found, exact, rtol=64 * U)


def test_batches_derivatives_and_loops_within_batches():
    x = np.float32([0.3, 2.0, 40.0])

    def least(y):
        return jax.lax.while_loop(lambda z: z > 1, lambda z: z / 3, y)

    found = in_single(jax.vmap(lambda y: (least(y), jax.grad(lambda y: jnp.exp(-y * y))(y))))(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found[0], [x[0], wide[1] / 3, wide[2] / 81], rtol=4 * U)
    np.testing.assert_allclose(found[1], np.where(x > 9, 0, -2 * wide * np.exp(-wide * wide)), rtol=100 * U)


def test_constants_of_range_are_those_of_float32():
    tiny, largest = np.float64(2.0**-1022), np.float64(1e300)
    assert of_constant(4 * tiny) == 4 * np.float32(TINY)
    assert of_constant(-largest) == -np.float32(LARGEST)
    assert of_constant(1e-200) == np.float32(TINY)
    assert np.isinf(of_constant(np.inf))
    assert in_single(lambda x: jnp.maximum(x * 1e-30, tiny))(1e-20) == TINY


def test_whole_numbers_that_float32_lacks_are_not_known():
    found = in_single(lambda k: jnp.stack([k, k + 1]).astype(jnp.int64).astype(jnp.float64) * 1.0)(2.0**24)
    assert found[0] == 2.0**24
    with jax.enable_x64(True):
        run = jax.jit(lambda k: in_single_of_counts(k))
        found = np.asarray(run(jnp.array([2**24, 2**24 + 1])))
    assert found[0] == 2.0**24
    assert np.isnan(found[1])


def in_single_of_counts(k):
    from jaxacct.numerics.programs import by_float32

    return by_float32(lambda k: k.astype(jnp.float64), k, result=jax.ShapeDtypeStruct((2,), np.float64))


def test_an_operation_without_a_form_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="lgamma"):
        in_single(jax.lax.lgamma)(1.5)
    with pytest.raises(NotImplementedError, match="convert_element_type"):
        in_single(lambda x: jnp.abs(jnp.fft.fft(x)))(np.ones(4))


@pytest.mark.parametrize("count", [1, 5, 300, 5000])
def test_sums_are_nested_as_their_bound_says(count):
    units = FLOAT32.of_sum(count)
    assert units <= count
    terms = np.random.default_rng(3).uniform(0.5, 1, count).astype(np.float32)
    found = float(in_single(jnp.sum)(terms))
    assert abs(found / np.sum(terms.astype(np.float64)) - 1) <= units * U


def test_the_arithmetic_is_float32_while_it_is_traced():
    from jaxacct.numerics.arithmetic import arithmetic

    with in_float32():
        assert arithmetic() == FLOAT32


def test_functions_of_users_keep_their_names():
    @jax.jit
    def lower_tail(x):
        return jnp.exp(-x)

    assert float(in_single(lower_tail)(np.float32(1.0))) == pytest.approx(np.exp(-1.0), rel=1e-6)


@pytest.mark.parametrize("value", [1e-40, -1e-40, 4e-320, 1e39])
def test_numbers_beyond_the_range_are_not_known(value):
    assert np.isnan(as_held(np.float64(value)))
    assert as_held(np.float64(0.5)) == 0.5
    if abs(value) < TINY and np.float32(value):
        widened = jax.jit(lambda x: by_float32(exact_float64, x, result=jax.ShapeDtypeStruct((), np.float64)))
        with jax.enable_x64(True):
            assert np.isnan(widened(np.float32(value)))
