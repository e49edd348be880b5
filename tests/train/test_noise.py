"""Has the noise the stated scale, and no structure?"""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import jaxacct as ja
from jaxacct.train.keys import _box_muller, _words, standard_normal
from jaxacct.train.noise import privatize

ACCEPT, REJECT = 1e-3, 1e-9


def normal_fit(values, deviation):
    return stats.kstest(np.ravel(values), "norm", args=(0.0, deviation)).pvalue


def noise(key, **settings):
    settings = {"noise_multiplier": 1.7, "clip_norm": 0.3, "expected_batch_size": 8.0} | settings
    return np.asarray(jax.jit(functools.partial(privatize, **settings))(key, np.zeros(5000, np.float32)))


def test_the_noise_has_the_stated_scale_and_no_other():
    values, deviation = noise(jax.random.key(0)), 1.7 * 0.3 / 8
    assert normal_fit(values, deviation) > ACCEPT
    assert normal_fit(values, deviation * 2 / 3) < REJECT
    assert normal_fit(values, deviation * 3 / 2) < REJECT


def test_leaves_and_keys_have_noise_of_their_own():
    total = dict.fromkeys("ab", np.zeros(5000, np.float32))
    release = jax.jit(functools.partial(privatize, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0))
    first, second = (release(jax.random.key(seed), total) for seed in (0, 1))
    rows = np.stack([np.asarray(leaf) for tree in (first, second) for leaf in (tree["a"], tree["b"])])
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 5 / np.sqrt(5000)


def test_small_leaves_have_the_noise_that_each_would_have_alone():
    total = [np.zeros(shape, np.float32) for shape in ((7,), (), (3, 4))]
    release = functools.partial(privatize, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0)

    @jax.jit
    def both(key):
        alone = zip(jax.random.split(key, 3), total, strict=True)
        return release(key, total), [standard_normal(one, leaf.shape) for one, leaf in alone]

    for leaf, alone in zip(*both(jax.random.key(3)), strict=True):
        np.testing.assert_allclose(leaf, alone, rtol=1e-14)


def test_the_sum_is_divided_by_the_expected_batch_size():
    mean = privatize(jax.random.key(0), jnp.arange(3.0), noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=0.5)
    assert mean.tolist() == [0.0, 2.0, 4.0]
    assert mean.dtype == jnp.float64


def test_normal_values_reach_far_and_are_always_finite():
    ends = np.array([[0, 0, 0, 0], [2**32 - 1, 2**32 - 1, 0, 0], [0, 0, 2**31, 0]], np.uint32).T
    far, none, negative = np.asarray(jax.jit(_box_muller)(jnp.asarray(ends)))[0]
    assert 9.4 < far < 9.6
    assert none == 0.0
    assert negative == pytest.approx(-far)
    values = np.asarray(jax.jit(lambda key: standard_normal(key, (200_000,)))(jax.random.key(5)))
    assert values.dtype == np.float64
    assert normal_fit(values, 1.0) > ACCEPT
    assert len(np.unique(values)) == len(values)


def test_both_halves_are_the_transform_of_their_words_on_every_axis():
    words = np.random.default_rng(0).integers(0, 2**32, (4, 64), dtype=np.uint32)
    words[2, :8] = np.arange(8) * 2**29  # the axes, and the borders between them
    words[3, :8] = 0
    computed = np.asarray(_box_muller(jnp.asarray(words)))
    with mpmath.workdps(40):
        for column, (high, low, turn_high, turn_low) in enumerate(words.T.tolist()):
            uniform = (mpmath.mpf(high * 2**32 + low) + mpmath.mpf(0.5)) / 2**64
            turn = 2 * mpmath.pi * mpmath.mpf(turn_high * 2**32 + turn_low) / 2**64
            radius = mpmath.sqrt(-2 * mpmath.log(uniform))
            # The uniform number's rounding, 2^-54 near 1, moves a radius by that over the radius: no more probability.
            most = 2.0**-50 * radius + 2.0**-53 / radius
            for value, exact in zip(computed[:, column], (mpmath.cos(turn), mpmath.sin(turn)), strict=True):
                assert abs(value - radius * exact) <= most


def test_every_word_is_used_once_and_none_is_used_for_two_values():
    words = np.asarray(_words(jax.random.key(4), 5000))
    assert len(np.unique(words)) > 20_000 - 10  # 0.05 repetitions are expected
    pairs = np.asarray(standard_normal(jax.random.key(4), (10_000,))).reshape(2, 5000)
    assert abs(np.corrcoef(pairs)[0, 1]) < 5 / np.sqrt(5000)
    assert abs(np.corrcoef(pairs**2)[0, 1]) < 5 / np.sqrt(5000)
    np.testing.assert_array_equal(pairs, np.asarray(_box_muller(jnp.asarray(words))))


def test_words_are_those_of_the_library_that_is_trusted():
    for seed, pairs in ((3, 1), (2**31 + 5, 7)):
        key = jax.random.key(seed)
        expected = jax.extend.random.threefry_2x32(jax.random.key_data(key), jnp.arange(4 * pairs, dtype=jnp.uint32))
        np.testing.assert_array_equal(np.ravel(_words(key, pairs)), expected)


def test_other_generators_odd_sizes_and_scalars():
    draw = jax.jit(standard_normal, static_argnums=1)
    assert normal_fit(draw(jax.random.key(2, impl="rbg"), (10_000,)), 1.0) > ACCEPT
    for shape in ((), (3, 1)):
        assert jax.eval_shape(lambda: draw(jax.random.key(0), shape)).shape == shape  # noqa: B023
    with pytest.raises(ValueError, match="at most 1073741824"):
        standard_normal(jax.random.key(0), (2**16, 2**15))


@pytest.mark.parametrize(
    ("name", "value"), [("noise_multiplier", -1.0), ("clip_norm", float("inf")), ("expected_batch_size", 0.0)]
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        noise(jax.random.key(0), **{name: value})


@pytest.mark.parametrize("clip_norm", [2.0**61, np.inf, 2.0**-70])
def test_norms_whose_noise_overflows_or_vanishes_are_refused(clip_norm):
    with pytest.raises(ValueError, match="clip_norm"):
        privatize(jax.random.key(0), jnp.ones(3), noise_multiplier=1.0, clip_norm=clip_norm, expected_batch_size=4.0)


def test_infinite_noise_costs_nothing_and_releases_nothing():
    assert float(ja.epsilon(ja.Gaussian(np.inf), 100, 1e-5).upper) == 0.0
    noisy = privatize(
        jax.random.key(0), jnp.ones(3), noise_multiplier=np.inf, clip_norm=1.0, expected_batch_size=4.0
    )  # fmt: skip
    assert noisy.tolist() == [0.0, 0.0, 0.0]


def test_noise_of_arrays_drawn_together_is_that_of_each_by_itself():
    shapes = [(3,), (64, 5), (1,), (200,), (0,), (2**16,), ()]
    key = jax.random.key(3)
    zeros = [np.zeros(shape, np.float32) for shape in shapes]
    together = functools.partial(privatize, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0)
    alone = jax.jit(lambda keys: [standard_normal(key, shape) for key, shape in zip(keys, shapes, strict=True)])
    for one, own in zip(jax.jit(together)(key, zeros), alone(jax.random.split(key, len(shapes))), strict=True):
        np.testing.assert_allclose(one, own, rtol=1e-13)  # contracted otherwise
