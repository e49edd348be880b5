"""Tests that holders of a key or a budget cannot be copied, and that settings which are one number are scalars."""

import copy
import functools
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxacct as ja
from jaxacct.train import DPTrainer, PrivateGradients, SparseVector, run_key
from jaxacct.train.clipping import Automatic, Flat, PerLayer, clip_and_sum, clipped_sum
from jaxacct.train.keys import DerivedKey
from jaxacct.train.noise import privatize
from jaxacct.train.planned import plan

X = np.ones((40, 3), np.float32)


def sparse(**more):
    return SparseVector(ja.AboveThreshold(2.0, 4.0), threshold=0.0, sensitivity=1.0, **more)


def trainer(**more):
    settings = {"epsilon": 5.0, "delta": 1e-3, "epochs": 1, "expected_batch_size": 10, "clip_norm": 1.0, "seed": 0}
    return DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda model, x: model(x)[0] ** 2, optax.sgd(0.1), (X,), **settings | more
    )


def test_one_run_is_answered_once_however_many_ask():
    for seed in range(20):
        stop = sparse(runs=1, seed=seed)
        answers, start = [], threading.Barrier(4)

        def ask(stop=stop, answers=answers, start=start):
            start.wait()
            try:
                answers.append(stop.above(1e6))
            except RuntimeError:
                answers.append(None)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers, key=str) == [None, None, None, True]


@pytest.mark.first_tier("deepcopy-sparse", "dumps-sparse", "dumps-trainer")
@pytest.mark.parametrize("make", [sparse, trainer])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_spends_cannot_be_copied(make, how):
    with pytest.raises(TypeError, match="cannot be copied"):
        how(make())


def test_what_was_planned_stays_as_it_was():
    stop = sparse(runs=2)
    for name in ("mechanism", "runs"):
        with pytest.raises(AttributeError, match=name):
            setattr(stop, name, 100)


def test_no_key_is_printed():
    key = jax.random.key(123456789)
    words = [str(word) for word in np.asarray(jax.random.key_data(key)) if word]
    private = PrivateGradients.planned(
        lambda w, x: jnp.sum(w * x), 40, epsilon=5.0, delta=1e-3, epochs=1, expected_batch_size=10, clip_norm=1.0
    )
    for shown in (DerivedKey(key, "of a test"), private.start(key), sparse(seed=key), trainer(seed=key)):
        assert not any(word in repr(shown) or word in str(shown) for word in words)


@pytest.mark.parametrize("name", ["noise_multiplier", "clip_norm", "expected_batch_size"])
def test_scalars_are_scalars(name):
    several = jnp.array([1e-9, 1.0, 1.0])
    settings = {"noise_multiplier": 1.0, "clip_norm": 1.0, "expected_batch_size": 4.0}
    with pytest.raises(ValueError, match=name):
        privatize(jax.random.key(0), jnp.zeros(3), **settings | {name: several})
    with pytest.raises(ValueError, match="sensitivity"):
        clip_and_sum(lambda w, x: w @ x, jnp.zeros(3), jnp.ones((2, 3)), jnp.ones(2, bool), rule=Flat(several))


def test_parameters_are_real():
    with pytest.raises(TypeError, match="complex64"):
        clipped_sum(lambda w, x: jnp.abs(w @ x), jnp.zeros(3, jnp.complex64), X, np.ones(40, bool), clip_norm=1.0)
    with pytest.raises(TypeError, match="complex64"):
        privatize(jax.random.key(0), jnp.zeros(3, jnp.complex64), noise_multiplier=1.0, clip_norm=1.0,
                  expected_batch_size=4.0)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_small_integers_look_up_large_tables(dtype):
    table, tokens = np.ones((200, 2), np.float32), np.asarray([[3, 100], [7, 127]], dtype)

    @functools.partial(jax.jit, static_argnames="ghost")
    def total(tokens, ghost):
        mask = jnp.ones(len(tokens), bool)
        return clipped_sum(
            lambda t, x: jnp.sum(jnp.take(t, x, axis=0) ** 2), table, tokens, mask, clip_norm=100.0, ghost=ghost
        )

    totals = [total(tokens, ghost=ghost) for ghost in (True, False)]
    assert np.asarray(totals[0]).tolist() == np.asarray(totals[1]).tolist()
    assert np.flatnonzero(np.asarray(totals[0]).sum(axis=1)).tolist() == [3, 7, 100, 127]
    # And in a batch of more rows than their type counts: every one adds what it looked up.
    many = np.asarray(np.arange(150)[:, None] % 50, dtype)
    assert np.asarray(total(many, ghost=False))[:, 0].tolist() == [6.0] * 50 + [0.0] * 150


def test_masks_are_booleans_of_the_rows_that_were_drawn():
    with pytest.raises(TypeError, match="int32"):
        clipped_sum(lambda w, x: w @ x, jnp.zeros(3), X, jnp.full(40, 2), clip_norm=1.0)
    private = PrivateGradients.planned(
        lambda w, x: jnp.sum(w * x), 40, epsilon=5.0, delta=1e-3, epochs=1, expected_batch_size=10, clip_norm=1.0
    )
    with pytest.raises(ValueError, match="mask has shape"):
        private.gradient(jnp.zeros(3), private.start(0), (X,), np.ones(40, bool))


@pytest.mark.parametrize("rule", [Flat, Automatic, lambda norm: PerLayer.of({"kernel": norm, "bias": 1.0})])
def test_a_norm_below_float32_is_refused_before_it_costs_anything(rule):
    with pytest.raises(ValueError, match="below 2"):
        rule(1e-40)
    with pytest.raises(ValueError, match="below 2"):
        trainer(clip_norm=1e-40)


@pytest.mark.parametrize("norm", [1e19, 1e39])
def test_a_norm_whose_noise_overflows_is_refused_before_it_costs_anything(norm):
    with pytest.raises(ValueError, match="above 2"):
        trainer(clip_norm=norm)


def test_what_is_missing_is_named():
    with pytest.raises(TypeError, match="epsilon missing"):
        trainer(epsilon=None)
    with pytest.raises(TypeError, match="epsilon missing"):
        PrivateGradients.planned(
            lambda w, x: jnp.sum(w * x), 40, epsilon=None, delta=1e-3, epochs=1, expected_batch_size=10, clip_norm=1.0
        )
    with pytest.raises(ValueError, match="give two of them"):
        plan(lambda epsilon, steps: None, 1e-5, steps=100)
    for seed in (None, 3):
        assert run_key(seed).shape == ()


@pytest.mark.exhaustive
def test_a_loss_with_a_key_draws_anew_for_each_example_and_step():
    private = PrivateGradients.planned(
        lambda w, x, key: jnp.sum(w * jax.random.normal(key, (3,))), 40, epsilon=40.0, delta=1e-3, epochs=1,
        expected_batch_size=10, clip_norm=1e3, entries=3,
    )  # fmt: skip
    state = private.start(0)
    found = []
    for _ in range(2):
        indices, mask = private.batch(state)
        gradient, state = jax.jit(private.gradient)(jnp.zeros(3), state, (X[indices],), mask)
        found.append(np.asarray(gradient))
    assert not np.any(found[0] == found[1])
    first = private.start(0)
    indices, mask = private.batch(first)
    again, _ = private.gradient(jnp.zeros(3), first, (X[indices],), mask)
    np.testing.assert_allclose(np.asarray(again), found[0], rtol=1e-5)
