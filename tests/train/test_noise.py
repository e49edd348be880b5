"""Has the noise the stated scale, and no structure?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxacct.train.noise import _box_muller, privatize, standard_normal

ACCEPT, REJECT = 1e-3, 1e-9


def normal_fit(values, deviation):
    return stats.kstest(np.ravel(values), "norm", args=(0.0, deviation)).pvalue


def noise(key, shape=(5000,), noise_multiplier=1.7, clip_norm=0.3, expected_batch_size=8.0):
    return np.asarray(
        privatize(
            key,
            jnp.zeros(shape),
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
            expected_batch_size=expected_batch_size,
        )
    )


def test_the_noise_has_the_stated_scale_and_no_other():
    values, deviation = noise(jax.random.key(0)), 1.7 * 0.3 / 8
    assert normal_fit(values, deviation) > ACCEPT
    assert normal_fit(values, deviation * 2 / 3) < REJECT
    assert normal_fit(values, deviation * 3 / 2) < REJECT


def test_leaves_and_keys_have_noise_of_their_own():
    total = {"a": jnp.zeros(5000), "b": jnp.zeros(5000)}
    first = privatize(jax.random.key(0), total, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0)
    second = privatize(jax.random.key(1), total, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0)
    rows = np.stack([np.asarray(leaf) for tree in (first, second) for leaf in (tree["a"], tree["b"])])
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 5 / np.sqrt(5000)


def test_the_sum_is_divided_by_the_expected_batch_size():
    mean = privatize(jax.random.key(0), jnp.arange(3.0), noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=0.5)
    assert mean.tolist() == [0.0, 2.0, 4.0]
    assert mean.dtype == jnp.float64


def test_normal_values_reach_far_and_are_always_finite():
    ends = np.array([[0, 0, 0, 0], [2**32 - 1, 2**32 - 1, 0, 0], [0, 0, 2**31, 0]], np.uint32).T
    far, none, negative = np.asarray(_box_muller(jnp.asarray(ends)))[0]
    assert 9.4 < far < 9.6
    assert none == 0.0
    assert negative == pytest.approx(-far)
    values = np.asarray(jax.jit(lambda key: standard_normal(key, (200_000,)))(jax.random.key(5)))
    assert values.dtype == np.float64
    assert normal_fit(values, 1.0) > ACCEPT
    assert len(np.unique(values)) == len(values)


@pytest.mark.parametrize(
    ("name", "value"), [("noise_multiplier", -1.0), ("clip_norm", float("inf")), ("expected_batch_size", 0.0)]
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        noise(jax.random.key(0), **{name: value})
