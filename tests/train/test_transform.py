"""The noise as an Optax transformation: its scale, its keys, its place in a chain."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxacct.train.own_loop import add_noise

SHAPE = (5000,)


def updates_of(transformation, state, total=None, **extra):
    total = jnp.zeros(SHAPE) if total is None else total
    return transformation.update(total, state, jnp.zeros(SHAPE), **extra)


def test_the_noise_has_its_scale_and_is_new_at_every_update():
    transformation = add_noise(2.0, 0.5, expected_batch_size=4.0, seed=3)
    state = transformation.init(jnp.zeros(SHAPE))
    keys, draws = [], []
    for _ in range(3):
        keys.append(jax.random.key_data(state.key).tolist())
        noise, state = updates_of(transformation, state)
        assert noise.dtype == jnp.float32
        draws.append(np.asarray(noise))
    assert len({tuple(key) for key in keys}) == 3
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 5 / np.sqrt(SHAPE[0])
    assert np.std(draws) == pytest.approx(2.0 * 0.5 / 4.0, rel=0.03)
    again, _ = updates_of(transformation, transformation.init(jnp.zeros(SHAPE)))
    np.testing.assert_array_equal(np.asarray(again), draws[0])


def test_without_a_seed_every_init_has_noise_of_its_own():
    transformation = add_noise(1.0, 1.0, expected_batch_size=1.0)
    first, second = (transformation.init(jnp.zeros(SHAPE)) for _ in range(2))
    assert not (jax.random.key_data(first.key) == jax.random.key_data(second.key)).all()
    with pytest.raises(ValueError, match="seed = None"):
        jax.jit(transformation.init)(jnp.zeros(SHAPE))


def test_a_chain_works_in_a_compiled_scan_with_float64_sums_and_the_rules_own_sensitivity():
    optimizer = optax.chain(add_noise(1.0, expected_batch_size=2.0, seed=1), optax.sgd(1.0))
    params = jnp.ones(SHAPE)
    with jax.enable_x64(True):
        total = jnp.full(SHAPE, 6.0, jnp.float64)

    @jax.jit
    def train(params, sensitivity):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(total, state, params, sensitivity=sensitivity)
            return (optax.apply_updates(params, updates), state), updates

        return jax.lax.scan(step, (params, optimizer.init(params)), None, length=2)

    (params, _), updates = train(params, jnp.float32(0.5))
    assert updates.dtype == params.dtype == jnp.float32
    first, second = np.asarray(updates)
    assert first.mean() == pytest.approx(-3.0, abs=0.02)
    assert first.std() == pytest.approx(0.25, rel=0.05)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(SHAPE[0])
    np.testing.assert_allclose(np.asarray(params), 1 + first + second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"clip_norm": float("inf")}, "clip_norm = inf"),
        ({"expected_batch_size": 0}, "expected_batch_size = 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_settings_are_named(arguments, words):
    settings = {"noise_multiplier": 1.0, "clip_norm": 1.0, "expected_batch_size": 8.0} | arguments
    with pytest.raises(ValueError, match=words):
        add_noise(**settings)


@pytest.mark.parametrize(("clip_norm", "extra"), [(None, {}), (1.0, {"sensitivity": 1.0})])
def test_exactly_one_sensitivity(clip_norm, extra):
    transformation = add_noise(1.0, clip_norm, expected_batch_size=8.0, seed=0)
    with pytest.raises(ValueError, match="sensitivity"):
        updates_of(transformation, transformation.init(jnp.zeros(SHAPE)), **extra)


def test_settings_are_those_that_were_checked():
    noise = np.array(2.0)
    first = add_noise(noise, 1.0, expected_batch_size=4.0, seed=1)
    noise[...] = 0.0
    second = add_noise(2.0, 1.0, expected_batch_size=4.0, seed=1)
    updates = [optimizer.update(jnp.zeros(3), optimizer.init(jnp.zeros(3)))[0] for optimizer in (first, second)]
    np.testing.assert_array_equal(*updates)
