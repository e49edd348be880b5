"""The parts for a loop of one's own: what they make is what the trainer makes, and no more than is planned."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import AdaptiveQuantile, DPTrainer, PrivateGradients, split_params
from jaxacct.train.models import merged

SETTINGS = {"epsilon": 1.0, "delta": 1e-3, "epochs": 2, "expected_batch_size": 40}
X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def squared_error(model, x, y):
    return jnp.sum((model(x) - y) ** 2)


def made(**options):
    graph, params, rest = split_params(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    private = PrivateGradients.planned(
        lambda params, x, y: squared_error(merged(graph, params, rest), x, y), len(X), **SETTINGS | options
    )
    return private, params


def scanned(private, params, steps, seed=1):
    """Gradient descent for so many steps, in one compiled program."""
    data = jnp.asarray(X), jnp.asarray(X[:, :1])

    def step(carry, _):
        params, state = carry
        indices, mask = private.batch(state)
        gradient, state = private.gradient(params, state, tuple(part[indices] for part in data), mask)
        return (jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient), state), gradient

    return jax.jit(lambda *carry: jax.lax.scan(step, carry, length=steps))(params, private.start(seed))


def test_a_loop_of_the_parts_is_the_trainer_until_the_plan_is_spent():
    rule = AdaptiveQuantile(1.0, count_noise=10.0)
    private, params = made(clipping=rule)
    assert private.steps == 10
    assert 0.999 <= private.plan.certified.upper <= 1.0
    trainer = DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), squared_error, optax.sgd(0.1), (X, X[:, :1]), clip_norm=rule, seed=1,
        **SETTINGS,
    )  # fmt: skip
    assert trainer.plan == private.plan
    trainer.fit(10, every=10)
    (params, state), gradients = scanned(private, params, 12)
    assert state.step == trainer.steps == 10
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(trainer.state.params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert float(np.asarray(state.rule.sensitivity)) == pytest.approx(trainer.clip_norm, rel=1e-5)
    expected = private.gradient_noise * trainer.clip_norm / 40
    assert float(private.noise_deviation(state)) == pytest.approx(expected, rel=1e-5)
    for slopes in jax.tree.leaves(gradients):
        assert np.all(slopes[:10] != 0)
        assert np.all(slopes[10:] == 0)
    assert state.ledger.remaining() == 0
    assert float(state.ledger.epsilon()) == private.plan.certified.upper
    with pytest.raises(ValueError, match="all 10 steps of its plan"):
        private.gradient(params, state, (X, X[:, :1]), np.ones(len(X), bool))


def test_without_a_seed_each_start_has_noise_of_its_own_and_shows_no_key():
    private, _ = made(clip_norm=1.0)
    first, second = private.start(), private.start()
    assert jax.random.key_data(first.key).tolist() != jax.random.key_data(second.key).tolist()
    assert repr(first) == "<PrivateState: step 0>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "clip_norm missing"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0"),
        ({"clip_norm": 1.0, "epochs": 0}, "epochs = 0"),
        ({"clip_norm": 1.0, "expected_batch_size": 300}, "expected_batch_size = 300"),
        ({"clip_norm": 1.0, "epsilon": -1.0}, "epsilon = -1.0"),
    ],
)
def test_wrong_plans_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        made(**options)
