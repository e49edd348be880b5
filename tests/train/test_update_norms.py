"""Tests of post-processing that costs no privacy: norms of updates, and the stop of a run that no longer learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import DPTrainer, adam_bc, averaged, averaging, last_norms, observing
from jaxacct.train.metrics import all_finite, check_gradients, check_parameters
from jaxacct.train.optimizers import Norms

EXAMPLE = (jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((), jnp.uint8))


def test_norms_are_those_of_the_last_update_and_the_signal_is_what_noise_leaves():
    rng = np.random.default_rng(0)
    mean, deviation, entries = 0.02, 0.05, 40_000
    optimizer = observing(optax.chain(optax.clip(1.0), averaging(optax.sgd(0.5))))
    params = jnp.zeros(entries)
    state, signals = optimizer.init(params), []
    for _ in range(3):
        gradient = jnp.asarray(rng.normal(mean, deviation, entries), jnp.float32)
        made, state = optimizer.update(gradient, state, params, noise_deviation=deviation)
        signals.append(state.norms.signal)
    assert float(state.norms.gradient) == pytest.approx(float(jnp.linalg.norm(gradient)), rel=1e-5)
    assert float(state.norms.update) == pytest.approx(float(jnp.linalg.norm(made)), rel=1e-5)
    assert float(state.norms.noise) == pytest.approx(deviation * 200)
    assert np.mean(signals) == pytest.approx(mean * 200, rel=0.05)
    assert Norms(jnp.float32(1.0), jnp.float32(2.0), jnp.float32(0.0)).signal == 0.0
    assert averaged(state).shape == (entries,)


def test_the_norms_of_a_trainers_last_update_are_read_where_they_are_kept():
    def trained(optimizer):
        made = DPTrainer(
            nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda model, x: jnp.sum(model(x) ** 2), optimizer,
            (np.ones((50, 3), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0, expected_batch_size=10,
            clip_norm=1.0, ledger="filter", seed=0,
        )  # fmt: skip
        made.fit(1)
        return made

    norms = last_norms(trained(observing(optax.sgd(0.5))))
    assert float(norms.update) == pytest.approx(0.5 * float(norms.gradient), rel=1e-5)
    assert float(norms.gradient) > 0
    with pytest.raises(ValueError, match=r"the norms of 0 updates: give observing\(optimizer\)"):
        last_norms(trained(optax.sgd(0.5)))


def test_what_is_told_goes_on_and_what_is_not_told_is_unknown():
    inside, alone = observing(adam_bc(0.1)), adam_bc(0.1)
    ones = jnp.ones(2)
    told, state = inside.update(ones, inside.init(ones), noise_deviation=0.5)
    np.testing.assert_array_equal(told, alone.update(ones, alone.init(ones), noise_deviation=0.5)[0])
    _, state = observing(optax.sgd(0.1)).update(ones, observing(optax.sgd(0.1)).init(ones))
    assert np.isnan(state.norms.noise)
    with pytest.raises(ValueError, match="noise_deviation = None"):
        inside.update(ones, inside.init(ones))


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, example: jnp.sum(jnp.log(w)),
        lambda w, example: jnp.sqrt(jnp.sum(w * example[0]) * 0.0),  # finite, and its gradient is not
        lambda w, example: w[example[1]] / (w[0] * 0),
    ],
)
def test_a_loss_without_a_finite_gradient_anywhere_is_refused(loss):
    with pytest.raises(FloatingPointError, match="examples of zeros, of ones"):
        check_gradients(loss, jnp.zeros(3), EXAMPLE)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, example: w @ example[0],
        lambda w, example: jnp.linalg.norm(w + example[0]),  # not at zeros
        lambda w, example: jnp.log(example[0]) @ w + w[example[1]],  # of positive numbers alone
    ],
)
def test_a_loss_of_some_domain_is_not_refused(loss):
    check_gradients(loss, jnp.zeros(3), EXAMPLE)


def test_parameters_that_are_not_finite_or_out_of_proportion():
    check_parameters(jnp.full(4, 3.0), 0.01, 5)
    check_parameters(jnp.full(4, 9e4, jnp.bfloat16), 10.0, 5)
    for value in (np.inf, -np.inf, np.nan):
        assert not all_finite({"a": jnp.ones(2), "b": jnp.array([0.0, value])})
        with pytest.raises(FloatingPointError, match=r"ends after 5 updates.*not all of its parameters are finite"):
            check_parameters([jnp.ones(2), jnp.array([0.0, value])], 1.0, 5)
    with pytest.raises(FloatingPointError, match=r"from 2 to 3e\+04.*learning rate is too large"):
        check_parameters(jnp.full(4, 3e4), 2.0, 5)
    assert all_finite(())


def trainer_of(optimizer, loss=lambda model, x: jnp.sum((model(x) - 1.0) ** 2)):
    return DPTrainer(
        nnx.Linear(2, 1, rngs=nnx.Rngs(0)), loss, optimizer, (np.ones((50, 2), np.float32),), epsilon=2.0, delta=1e-3,
        noise_multiplier=3.0, expected_batch_size=10, clip_norm=1.0, seed=0,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.usefixtures("unsolved")
def test_a_run_that_no_longer_learns_pays_for_no_further_step():
    """An absurd rate ends it, fit called again goes on, and what is not finite ends it for good."""
    rates = lambda step: jnp.array([0.1, 0.1, 1e8, 0.1, jnp.inf, 0.1, 0.1])[step]  # noqa: E731
    trainer = trainer_of(optax.sgd(rates))
    paid = trainer.remaining_steps
    with pytest.raises(FloatingPointError, match=r"ends after 4 updates.*rate is too large"):
        trainer.fit(6, every=2)
    assert not trainer.stopping_was_planned
    for _ in range(2):
        with pytest.raises(FloatingPointError, match=r"ends after 5 updates.*not all of its parameters are finite"):
            trainer.fit(6, every=6)
        assert trainer.steps == paid - trainer.remaining_steps == 5


@pytest.mark.usefixtures("unsolved")
def test_a_loss_that_teaches_nothing_costs_nothing():
    trainer = trainer_of(optax.sgd(0.1), loss=lambda model, x: jnp.sqrt(0.0 * jnp.sum(model(x))))
    with pytest.raises(FloatingPointError, match="nothing would be learned"):
        trainer.fit(3)
    assert trainer.steps == 0
    assert trainer.spent_epsilon == 0.0
