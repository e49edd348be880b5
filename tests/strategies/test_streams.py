"""Streams of correlated noise: the inverse matrix row by row, from a state that is kept or recomputed, and not lost."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.monte_carlo import BallsInBins
from jaxacct.strategies import (
    BandedToeplitz,
    BufferedToeplitz,
    Dense,
    HonakerTree,
    MinSeparation,
    SinglePass,
    Streamed,
    identity,
    square_root,
)

STEPS = 24
RNG = np.random.default_rng(0)
MATRIX = np.eye(STEPS) + np.tril(RNG.random((STEPS, STEPS)), -1) / 8
STRATEGIES = {
    "identity": identity(),
    "banded": square_root(5),
    "scaled": BandedToeplitz([2.0, 1.0, -0.5]),
    "buffered": BufferedToeplitz([0.25, 0.125], [0.5, 0.875]),
    "tree": HonakerTree(STEPS),
    "dense": Dense(MATRIX),
}


def matrix_of(strategy) -> np.ndarray:
    """The matrix from its entries, not from the stream."""
    if isinstance(strategy, HonakerTree):
        return strategy.matrix(STEPS)
    if isinstance(strategy, Dense):
        return np.asarray(strategy.matrix, np.float64)
    column = strategy.coefficients(STEPS)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(STEPS)] for i in range(STEPS)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_stream_is_the_inverse(name):
    strategy = STRATEGIES[name]
    noise = {"w": RNG.normal(size=(STEPS, 2)).astype(np.float32), "b": RNG.normal(size=STEPS).astype(np.float32)}
    rows = jax.jit(strategy.solve)(noise)
    matrix = matrix_of(strategy)
    for leaf in noise:
        truth = np.linalg.solve(matrix, noise[leaf].astype(np.float64))
        assert rows[leaf].dtype == jnp.float32
        np.testing.assert_allclose(rows[leaf], truth, atol=1e-6 * np.abs(truth).max())
        np.testing.assert_allclose(jax.jit(strategy.multiply)(rows)[leaf], noise[leaf], atol=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_restart_goes_on_with_the_same_noise(name):
    """Recomputed or kept, the state is the same; forgotten or drawn anew, the noise is another."""
    strategy, key = STRATEGIES[name], jax.random.key(7)
    like = jax.ShapeDtypeStruct((3,), jnp.float32)

    def draw(step, key=key):
        return jax.random.normal(jax.random.fold_in(key, step), like.shape)

    @jax.jit
    def one(state, step):
        return strategy.correlate(draw(step), state)

    def stream(state, first, last):
        rows = []
        for step in range(first, last):
            row, state = one(state, step)
            rows.append(np.asarray(row))
        return np.stack(rows), state

    after = jax.jit(lambda key: strategy.after(5, lambda step: draw(step, key), like))
    whole, _ = stream(strategy.start(like), 0, 9)
    _, kept = stream(strategy.start(like), 0, 5)
    leaves, structure = jax.tree.flatten(kept)  # as a checkpoint does
    restored = jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves])
    again = after(key)
    assert int(again.step) == 5
    for state in (restored, again):
        np.testing.assert_allclose(stream(state, 5, 9)[0], whole[5:], atol=1e-6)
    if strategy.buffers:
        for state in (strategy.start(like), after(jax.random.key(8))):
            assert np.abs(stream(state, 5, 9)[0] - whole[5:]).max() > 1e-3


def test_memory_is_the_buffers_and_not_the_steps():
    sizes = {name: strategy.start(jnp.zeros(2)).buffers.shape for name, strategy in STRATEGIES.items()}
    assert sizes == {
        "identity": (0, 2), "banded": (4, 2), "scaled": (2, 2), "buffered": (2, 2), "tree": (5, 2), "dense": (STEPS, 2),
    }  # fmt: skip
    half = square_root(3).start(jax.ShapeDtypeStruct((2,), jnp.bfloat16))
    assert half.buffers.dtype == jnp.float32


def test_beyond_their_steps_there_is_no_noise_but_nan():
    for strategy in (HonakerTree(3), Dense(np.eye(3))):
        assert np.isnan(strategy.solve(jnp.ones(4))).tolist() == [False, False, False, True]


def test_numbers_are_those_of_float32():
    """What is accounted for is what is streamed, to the bit."""
    strategy = BandedToeplitz([1.0, 0.1])
    assert strategy.coefficients(2)[1] == np.float64(np.float32(0.1))
    assert BufferedToeplitz([0.1], [0.3]).coefficients(3)[1] == np.float64(np.float32(0.1))
    traced = jax.jit(lambda column: jnp.asarray(BandedToeplitz(column).buffers))(np.ones(3))
    assert traced == 2
    with pytest.raises(TypeError, match="first_column is traced"):
        jax.jit(lambda column: BandedToeplitz(column).sensitivity(SinglePass(4).pattern))(np.ones(3))


def test_the_stream_uses_the_numbers_accounted_for():
    """Not quotients of them, which round: rows of C x of small whole numbers are exact."""
    strategy = square_root(5).normalized()
    rows = strategy.multiply(np.eye(6, dtype=np.float32))
    np.testing.assert_array_equal(rows[:, 0], strategy.coefficients(6))
    tree = HonakerTree(6)
    np.testing.assert_array_equal(tree.multiply(np.eye(6, dtype=np.float32)), tree.matrix(6))


def honaker(steps: int) -> np.ndarray:
    """Weights of each block's noise in each prefix sum's estimate, by the estimate as it is told: blocks from below."""
    levels = steps.bit_length()
    names = [(level, end) for level in range(levels) for end in range(2**level, steps + 1, 2**level)]
    place = {name: i for i, name in enumerate(names)}
    estimates, variances = {}, {}
    for level, end in names:
        own = np.eye(len(names))[place[level, end]]
        if not level:
            estimates[level, end], variances[level, end] = own, 1.0
            continue
        halves = [(level - 1, end - 2 ** (level - 1)), (level - 1, end)]
        below = sum(estimates[half] for half in halves)
        precision = 1 / sum(variances[half] for half in halves)
        estimates[level, end] = (own + precision * below) / (1 + precision)
        variances[level, end] = 1 / (1 + precision)
    rows = []
    for step in range(1, steps + 1):
        row, end = np.zeros(len(names)), step
        while end:
            level = (end & -end).bit_length() - 1
            row, end = row + estimates[level, end], end - 2**level
        rows.append(row)
    return np.array(rows)


def test_the_tree_has_the_law_of_the_online_estimate():
    sums = np.tril(np.ones((STEPS, STEPS))) @ np.linalg.inv(HonakerTree(STEPS).matrix(STEPS))
    weights = honaker(STEPS)
    np.testing.assert_allclose(sums @ sums.T, weights @ weights.T, atol=1e-6)


def stream_of(matrix: np.ndarray):
    """A stream as jax_privacy's: from init_multiply and multiply_next."""
    noising = jnp.asarray(np.linalg.inv(matrix))

    def following(row, state):
        past, step = state
        past = past.at[step].set(row)
        return jnp.tensordot(noising[step].astype(row.dtype), past, axes=1), (past, step + 1)

    return SimpleNamespace(
        init_multiply=lambda like: (jnp.zeros((len(matrix), *like.shape), like.dtype), 0), multiply_next=following
    )


def test_streams_of_another_library_are_taken_as_they_are():
    strategy, dense = Streamed(stream_of(MATRIX)), Dense(MATRIX)
    for pattern in (SinglePass(STEPS).pattern, MinSeparation(STEPS, 6).pattern):
        bound = dense.sensitivity(pattern)
        assert bound * (1 - 1e-5) <= strategy.sensitivity(pattern) <= bound * (1 + 1e-5)
    noise = RNG.normal(size=(STEPS, 2)).astype(np.float32)
    np.testing.assert_allclose(strategy.solve(noise), dense.solve(noise), atol=1e-5)
    with pytest.raises(ValueError, match="no strategy's inverse"):
        Streamed(stream_of(-MATRIX)).sensitivity(SinglePass(STEPS).pattern)


def test_of_a_stream_of_another_library_no_rows_are_known():
    strategy = Streamed(stream_of(MATRIX))
    assert strategy.bands(STEPS) == STEPS
    assert not any(hasattr(strategy, name) for name in ("buffers", "entries", "keep", "multiply"))
    with pytest.raises(TypeError, match=r"has no rows: give one of jaxacct\.strategies but Streamed"):
        BallsInBins(strategy, 2.0, STEPS)
