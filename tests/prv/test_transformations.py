"""The verbs under jit, vmap and scan with x64 off, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracle import gaussian_epsilon

import jaxacct as ja

POINTS = 2**8


TRACES = []
ROWS = 9


def epsilon(noise, rate, steps, delta):
    """Of one row: two mechanisms in a sequence."""
    return ja.prv.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, delta, relation="remove", points=POINTS)


@jax.jit
def traced(noise, rate, steps, delta):
    """Of ROWS settings, each a sequence of two: the only program of this file for epsilon."""
    TRACES.append(noise)
    return jax.vmap(epsilon)(noise, rate, steps, delta)


def filled(values, dtype=np.float32):
    """Returns ROWS values, the last one repeated."""
    return np.asarray([*values, *[values[-1]] * (ROWS - len(values))], dtype)


def doubled(values):
    """Returns a sequence of two equal values for each one."""
    return np.stack([np.asarray(values)] * 2, axis=1)


@pytest.mark.exhaustive
def test_traced_results_equal_eager_ones_to_float64():
    noise, rate = filled([[1.0, 1.0], [0.8, 2.0], [0.6, 50.0]]), filled([[0.01, 0.01], [0.005, 0.1], [1.0, 1.0]])
    steps, delta = filled([[9_000, 1000], [1000, 1], [1, 4000]]), filled([1e-5, 1e-6, 1e-6])
    eager = [
        epsilon(s.astype(np.float64), q.astype(np.float64), k.astype(np.int64), float(d)).upper
        for s, q, k, d in zip(noise[:3], rate[:3], steps[:3], delta[:3], strict=True)
    ]
    bounds = traced(noise, rate, steps, delta)
    assert bounds.upper.dtype == jnp.float64
    # Rounding differs with how XLA fuses, and moves the choice of the mesh: 1.3e-9 was seen here. A float32 left
    # anywhere would show at 1e-7.
    np.testing.assert_allclose(np.asarray(bounds.upper)[:3], eager, rtol=1e-8)
    # Everyone in every batch, of very different noise.
    lower, upper = (float(np.asarray(end)[2]) for end in (bounds.lower, bounds.upper))
    mu = np.sqrt(np.sum(steps[2] / np.float64(noise[2]) ** 2))
    assert lower <= gaussian_epsilon(mu, float(delta[2])) <= upper
    assert (upper - lower) / upper < 0.11


@jax.jit
def scanned(noise, rate, steps):
    """Of ROWS settings, the only program of this file for delta."""

    def body(total, row):
        mechanism = ja.PoissonSubsampledGaussian(*row[:2])
        bounds = ja.prv.delta(mechanism, row[2], 1.0, points=POINTS).to_float32()
        return total + bounds.upper, bounds

    return jax.lax.scan(body, jnp.float32(0), (noise, rate, steps))


@pytest.mark.exhaustive
def test_scan_over_noise_multipliers():
    noise = filled([1.0, 2.0, 4.0])
    total, bounds = scanned(noise, filled([0.1]), filled([10]))
    assert total.dtype == jnp.float32
    assert np.all(np.diff(bounds.upper[:3]) < 0)
    for i in range(3):
        mechanism = ja.PoissonSubsampledGaussian(float(noise[i]), float(np.float32(0.1)))
        exact = ja.prv.delta(mechanism, 10, 1.0, points=POINTS)
        assert float(bounds.lower[i]) <= exact.lower
        assert exact.upper <= float(bounds.upper[i])


@pytest.mark.exhaustive
def test_invalid_traced_parameters_are_on_the_safe_side():
    noise = jnp.array([-1.0, jnp.nan, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    rate = jnp.array([0.1, 0.1, 0.1, -0.1, 1.5, jnp.nan, 0.1, 0.1, 0.1])
    steps = jnp.array([10.0, 10.0, 10.0, 10.0, 10.0, 10.0, -1.0, 2.5, jnp.nan])
    runs = doubled(noise), doubled(rate), doubled(steps)
    assert np.all(np.isinf(np.asarray(traced(*runs, filled([1e-5])).upper)))
    assert np.all(np.asarray(scanned(noise, rate, steps)[1].upper) == 1)
    # What is not run releases nothing, invalid or not.
    assert np.all(np.asarray(traced(*runs[:2], filled([[0.0, 0.0]]), filled([1e-5])).upper) == 0)
    valid = (doubled(filled([value])) for value in (1.0, 0.1, 10))
    assert np.all(np.isinf(np.asarray(traced(*valid, filled([0.0, 1.0, -1.0, jnp.nan])).upper)))


@pytest.mark.exhaustive
def test_mechanisms_are_pytrees_of_tracers():
    noise, rate, steps = (doubled(filled(values)) for values in ([1.0, 2.0], [0.1], [10]))
    upper = traced(noise, rate, steps, filled([1e-5])).upper
    assert upper.shape == (ROWS,)
    assert upper[0] > upper[1]


@pytest.mark.exhaustive
def test_global_settings_stay():
    before = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_matmul_precision")}
    ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, points=POINTS)
    assert before == {name: getattr(jax.config, name) for name in before}
    assert jnp.ones(1).dtype == jnp.float32


def test_x64_on_gives_the_same():
    off = ja.prv.epsilon(ja.Gaussian(1.0), 4, 1e-5, points=POINTS)
    with jax.enable_x64(True):
        on = ja.prv.epsilon(ja.Gaussian(1.0), 4, 1e-5, points=POINTS)
    assert jax.tree.leaves(on) == jax.tree.leaves(off)


@pytest.mark.exhaustive
def test_one_compilation_serves_all_values():
    for *row, delta in [(1.0, 0.1, 10, 1e-5), (2.0, 0.2, 10**6, 1e-9), (0.5, 1.0, 1, 0.1)]:
        traced(*(doubled(filled([value])) for value in row), filled([delta]))
    assert len(TRACES) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ja.PoissonSubsampledGaussian(-1.0, 0.1), ["noise_multiplier = -1.0", "at least 0"]),
        (lambda: ja.Gaussian(float("nan")), ["noise_multiplier = nan"]),
        (lambda: ja.PoissonSubsampledGaussian(1.0, -0.1), ["sampling_rate = -0.1", "[0, 1]"]),
        (lambda: ja.PoissonSubsampledGaussian(1.0, 5), ["sampling_rate = 5", "percentage"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), -1, 1e-5), ["steps = -1", "whole number"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 2.5, 1e-5), ["steps = 2.5", "whole number"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, -1e-5), ["delta = -1e-05", "(0, 1)", "nor 0"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 3), ["delta = 3", "epsilon in delta's place"]),
        (lambda: ja.prv.delta(ja.Gaussian(1.0), 1, -0.5), ["epsilon = -0.5"]),
        (
            lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, relation="swap"),
            ["relation = 'swap'", "Gaussian", "'add'"],
        ),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, points=1000), ["points = 1000", "power of two"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, points=96), ["points = 96", "at least 128"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, points=192), ["points = 192", "a multiple of it"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, points=9 * 2**7), ["points = 1152", "three times"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, points=64, tolerance=0.1), ["tolerance", "points"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, tolerance=0.0), ["tolerance = 0.0"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(jnp.ones((2, 3))), 1, 1e-5), ["(2, 3)", "vmap"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, np.full(2, 1e-5)), ["(2,)", "scalar", "vmap"]),
        (lambda: ja.prv.epsilon(ja.Gaussian(1.0), 1, 1e-5, method="exact"), ["method = 'exact'", "'recursive'"]),
        (
            lambda: jax.jit(lambda s: ja.prv.epsilon(ja.Gaussian(s), 1, 1e-5, tolerance=0.1))(1.0),
            ["tolerance", "points"],
        ),
    ],
)
def test_bad_input_is_named_with_a_remedy(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_text_is_no_number():
    with pytest.raises(TypeError, match=r"noise_multiplier.*'1.0'"):
        ja.Gaussian("1.0")


@pytest.mark.exhaustive
def test_a_batch_of_a_jitted_function_is_traced_in_the_scope():
    """The batch is made when the function's own scope has been left."""
    jitted = jax.jit(lambda noise: ja.prv.epsilon(ja.Gaussian(noise), 4, 1e-5, points=128))
    bounds = jax.vmap(jitted)(np.array([1.0, 2.0], np.float32))
    assert bounds.upper.dtype == jnp.float64
    for noise, upper in zip([1.0, 2.0], np.asarray(bounds.upper), strict=True):
        assert upper >= gaussian_epsilon(2 / noise, 1e-5)
