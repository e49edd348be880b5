"""The parts for a loop of one's own: what they make is what the trainer makes, and no more than is planned."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxacct as ja
from jaxacct.strategies import BandedToeplitz, square_root
from jaxacct.train import (
    AdaptiveQuantile,
    CyclicPoissonSampler,
    DPTrainer,
    PoissonSampler,
    PrivateGradients,
    RandomAllocationSampler,
    split_params,
)
from jaxacct.train.models import merge_params

SETTINGS = {"epsilon": 1.0, "delta": 1e-3, "epochs": 2, "expected_batch_size": 40}
X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def squared_error(model, x, y):
    return jnp.sum((model(x) - y) ** 2)


def made(**options):
    graph, params, rest = split_params(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    private = PrivateGradients.planned(
        lambda params, x, y: squared_error(merge_params(graph, params, rest), x, y), len(X), **SETTINGS | options
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
    private, params = made(clip_norm=rule)
    assert private.steps == 10
    assert 0.999 <= private.plan.certified.upper <= 1.0
    trainer = DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), squared_error, optax.sgd(0.1), (X, X[:, :1]), clip_norm=rule, seed=1,
        **SETTINGS,
    )  # fmt: skip
    assert dataclasses.replace(trainer.plan, samples=private.plan.samples) == private.plan
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
    assert first.key.tolist() != second.key.tolist()
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


ROWS = (jnp.asarray(X),)
SUM = functools.partial(PrivateGradients.planned, num_examples=len(X), clip_norm=1.0, **SETTINGS)


def squares(w, x):
    return jnp.sum((w - x) ** 2)


@pytest.mark.exhaustive
def test_a_batch_in_pieces_and_gradients_of_ones_own_are_the_gradient():
    whole, own = SUM(squares), SUM(None)
    w, state = jnp.ones(3), whole.start(2)
    indices, mask = whole.batch(state)
    expected, after = whole.gradient(w, state, (X[indices],), mask)
    halves = np.array_split(np.arange(len(mask)), 2)
    parts = [whole.clip(w, state, (X[indices[half]],), mask[half]) for half in halves]
    for found, last in (
        whole.noise(w, state, whole.sum(parts)),
        own.gradient(w, state, (2 * (np.ones(3, np.float32) - X[indices]),), mask),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert last.step == after.step == 1
        assert last.ledger.made == 1
    with pytest.raises(ValueError, match="outweigh"):
        whole.clip(w, state, (X,), np.ones(len(X), bool))


@pytest.mark.exhaustive
def test_a_key_in_a_part_of_a_batch_needs_the_indices():
    private = SUM(lambda w, x, key: squares(w, x * jax.random.bernoulli(key, 0.5, (3,))))
    w, state = jnp.ones(3), private.start(2)
    indices, mask = private.batch(state)
    halves = np.array_split(np.arange(len(mask)), 2)
    parts = [private.clip(w, state, (X[indices[half]],), mask[half], indices[half]) for half in halves]
    total = private.clip(w, state, (X[indices],), mask).total
    np.testing.assert_allclose(private.sum(parts).total, total, rtol=1e-6)
    with pytest.raises(ValueError, match="indices"):
        private.clip(w, state, (X[:3],), mask[:3])


@pytest.mark.exhaustive
def test_correlated_noise_is_the_trainers():
    sampler, noise = CyclicPoissonSampler(len(X), 2, 0.4, 120), square_root(2)
    settings = {"epsilon": 5.0, "delta": 1e-3, "epochs": 2, "sampler": sampler, "noise": noise, "clip_norm": 1.0}
    graph, params, rest = split_params(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    private = PrivateGradients.planned(
        lambda params, x, y: squared_error(merge_params(graph, params, rest), x, y), len(X), **settings
    )
    trainer = DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), squared_error, optax.sgd(0.1), (X, X[:, :1]), seed=1, **settings
    )
    assert trainer.plan.noise_multiplier == private.plan.noise_multiplier
    trainer.fit(3)
    state, step = private.start(1, params), jax.jit(private.gradient)
    for _ in range(3):
        indices, mask = private.batch(state)
        gradient, state = step(params, state, (X[indices], X[indices, :1]), mask)
        params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(trainer.state.params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(ValueError, match="differs from step to step"):
        private.noise_deviation(state)
    with pytest.raises(ValueError, match="independent noise"):
        private.start()


@pytest.mark.exhaustive
def test_a_filter_pays_for_noise_chosen_on_the_way_until_it_refuses():
    sampler = PoissonSampler(len(X), 0.2, 100)
    private = PrivateGradients.paid_by(ja.filters.RenyiFilter(2.0, 1e-3), squares, sampler, clip_norm=1.0)
    update = jax.jit(lambda w, state, rows, mask, z: private.gradient(w, state, rows, mask, noise_multiplier=z))
    w, state, direct = jnp.ones(3), private.start(3), private.ledger
    for z in (3.0, 2.0, 3.0):
        indices, mask = private.batch(state)
        gradient, state = update(w, state, (X[indices],), mask, z)
        assert np.all(gradient != 0)
        _, direct = direct.spend(sampler.mechanism(z))
    np.testing.assert_allclose(state.ledger.spent, direct.spent, rtol=1e-12)
    refused, same = update(w, state, (X[indices],), mask, 1e-3)
    assert np.all(refused == 0)
    assert same.step == state.step == 3
    with pytest.raises(ValueError, match="refuses"):
        private.gradient(w, state, (X[indices],), mask, noise_multiplier=1e-3)


@pytest.mark.parametrize("sampler", [CyclicPoissonSampler(100, 5, 0.5, 60), RandomAllocationSampler(100, 5, 100)])
def test_a_run_of_several_steps_has_one_noise_so_none_may_be_chosen_within_it(sampler):
    """The first step pays for all: later ones with less noise would give the gradients away, unpaid."""
    for ledger in (ja.filters.RenyiFilter(1.0, 1e-5), ja.odometers.VilleOdometer(1e-5)):
        with pytest.raises(ValueError, match="runs of 5 steps"):
            PrivateGradients.paid_by(ledger, squares, sampler, clip_norm=1.0)


def test_a_plans_ledger_pays_for_the_plans_noise_alone():
    planned = SUM(squares)
    for ledger in (planned.ledger, ja.filters.IndividualRenyiFilter.create(3, 1.0, 1e-5), None, "filter"):
        with pytest.raises((TypeError, ValueError), match="ledger"):
            PrivateGradients.paid_by(ledger, squares, planned.sampler, clip_norm=1.0)
    with pytest.raises(TypeError, match="PlannedLedger"):
        dataclasses.replace(planned, plan=None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PrivateGradients(squares, None, AdaptiveQuantile(1.0)), "plan is None"),
        (lambda: SUM(squares).gradient(0.0, SUM(squares).start(), ROWS, None), "give the mask of batch"),
    ],
)
def test_wrong_uses_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_rule_that_counts_takes_no_share_of_correlated_noise():
    """The count is independent over steps, and is not paid for by what correlated noise costs."""
    sampler = RandomAllocationSampler.for_budget(60, 4, epsilon=2.0, delta=1e-3, steps=12)
    with pytest.raises(ValueError, match="AdaptiveQuantile takes a share of independent noise"):
        PrivateGradients.planned(
            lambda w, x: jnp.sum((w - x) ** 2), 60, epsilon=2.0, delta=1e-3, epochs=3, sampler=sampler,
            clip_norm=AdaptiveQuantile(1.0, count_noise=0.5), noise=BandedToeplitz([0.01, 0.005]),
        )  # fmt: skip
