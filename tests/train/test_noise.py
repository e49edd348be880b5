"""Has the noise the stated scale, and no structure?"""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.integer_draws import block
from scipy import stats

import jaxacct as ja
from jaxacct.numerics.chacha20 import as_chacha20
from jaxacct.numerics.precision import scope
from jaxacct.train import integer_noise
from jaxacct.train.integer_noise import noise_of_leaves, normals_of_units
from jaxacct.train.noise import privatize

ACCEPT, REJECT = 1e-3, 1e-9


def normal_fit(values, deviation):
    return stats.kstest(np.ravel(values), "norm", args=(0.0, deviation)).pvalue


def normals(key, *shapes):
    """What :func:`privatize` adds with a key that is none of ChaCha20, at multiplier and norm 1."""
    with scope():
        words = jax.random.key_data(as_chacha20(key))
        return [np.asarray(leaf) for leaf in noise_of_leaves(words, shapes, 0)]


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


def test_the_sum_is_divided_by_the_expected_batch_size():
    mean = privatize(jax.random.key(0), jnp.arange(3.0), noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=0.5)
    assert mean.tolist() == [0.0, 2.0, 4.0]
    assert mean.dtype == jnp.float64


def test_normal_values_reach_far_and_are_always_finite(monkeypatch):
    """At the ends of what words can be: the least quantile, none, and its mirror image."""
    ends = np.array([[0, 0], [2**31 - 1, 2**32 - 1], [2**31, 0], [2**32 - 1, 2**32 - 1]], np.uint32)
    rows = [np.resize(ends[:, k], (8, 8, 1)) for k in range(2)]
    given = [jnp.asarray(rows[k % 2][k // 2]) for k in range(16)]
    monkeypatch.setattr(integer_noise, "blocks", lambda *_: given)
    with scope():
        leaf = jnp.zeros(1, jnp.uint32)
        found = np.asarray(jax.jit(lambda: normals_of_units(jnp.zeros(8, jnp.uint32), leaf, leaf))())
    least, none, far, negative = (float(found[0, k * 8]) for k in range(4))
    assert -9.2 < least < -9.0
    assert far == -least
    assert none == negative == 0.0


def test_normal_values_are_the_quantiles_of_their_words():
    """Two words of a block for each entry, none of which is used for another."""
    key = jax.random.key(4)
    words = tuple(jax.random.key_data(as_chacha20(key)).tolist())
    leaves = normals(key, (3,), (2, 70))
    used = set()
    with mpmath.workdps(40):
        for number, leaf in enumerate(leaves):
            for place, value in enumerate(leaf.ravel().tolist()):
                group, lane = divmod(place, 8)
                high, low = block(words, group, (2, number, 0))[2 * lane : 2 * lane + 2]
                used.add((number, group, lane))
                quantile = (mpmath.mpf((high & 2**31 - 1) * 2**32 + low) + mpmath.mpf(0.5)) / 2**64
                size = mpmath.sqrt(2) * mpmath.erfinv(2 * quantile - 1)
                exact = -size if high >> 31 else size
                # Near 1/2 the quantile's rounding, 2^-54, moves a value by 2.51 times that.
                assert abs(value - exact) <= 2.0**-50 * max(abs(exact), 0.125)
    assert len(used) == sum(leaf.size for leaf in leaves)


def test_other_generators_odd_sizes_and_scalars():
    (values,) = normals(jax.random.key(2, impl="rbg"), (10_000,))
    assert normal_fit(values, 1.0) > ACCEPT
    assert len(np.unique(values)) == values.size
    assert [leaf.shape for leaf in normals(jax.random.key(0), (), (3, 1), (0,))] == [(), (3, 1), (0,)]


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


def test_what_is_added_are_the_normal_values_of_the_key():
    shapes = ((3,), (64, 5), (1,), (0,), ())
    key = jax.random.key(3)
    zeros = [np.zeros(shape, np.float32) for shape in shapes]
    together = functools.partial(privatize, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0)
    for one, own in zip(jax.jit(together)(key, zeros), normals(key, *shapes), strict=True):
        np.testing.assert_allclose(one, own, rtol=1e-13)  # contracted otherwise
