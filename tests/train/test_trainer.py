"""A whole run: repeatable, stopped by its budget, honest about what it cost."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.shared import SGD, sharing

from jaxacct.filters import RenyiFilter
from jaxacct.train import DPTrainer, Flat, certified_epsilon
from jaxacct.train.models import accuracy
from jaxacct_recipes import load, make_trainer

BUDGET = {"epsilon": 1.0, "delta": 1e-3}


def squared_error(model, x, y):
    return jnp.sum((model(x) - y) ** 2)


def small_trainer(model=None, data=None, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0)) if model is None else model
    settings = BUDGET | {"noise_multiplier": 3.0, "expected_batch_size": 40, "clip_norm": 1.0, "seed": 1} | options
    return sharing(DPTrainer(model, squared_error, SGD, (x, x[:, :1]) if data is None else data, **settings))


def leaves(trainer):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.params)]


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(leaves(first), leaves(second), strict=True))


def test_same_seed_same_run_bit_for_bit():
    runs = [small_trainer(seed=5), small_trainer(seed=5), small_trainer(seed=6)]
    for run in runs:
        run.fit(steps=5)
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_no_seed_takes_entropy_and_does_not_tell():
    runs = [small_trainer(seed=None) for _ in range(2)]
    for run in runs:
        run.fit(steps=2)
    assert not same(*runs)
    assert runs[0].seed == "operating system"


def test_an_evaluation_that_returns_no_number_is_named_and_loses_nothing():
    trainer, whole = small_trainer(), small_trainer()
    with pytest.raises(TypeError, match="evaluate returned None: return one number"):
        trainer.fit(steps=4, every=2, evaluate=lambda model: None)
    assert trainer.steps == 2
    trainer.fit(steps=2)
    whole.fit(steps=4, every=2)
    assert same(trainer, whole)


def test_a_second_fit_goes_on_where_the_first_stopped():
    whole, parts = small_trainer(), small_trainer()
    whole.fit(steps=6, every=6)
    parts.fit(steps=2)
    parts.fit(steps=4)
    assert parts.steps == 6
    assert same(whole, parts)


def test_the_budget_stops_the_run_at_the_step_it_no_longer_pays_for():
    trainer = small_trainer()
    promised = trainer.remaining_steps
    assert promised > 3
    history = trainer.fit()
    assert trainer.steps == promised == history[-1].step
    assert trainer.spent_epsilon <= BUDGET["epsilon"]
    assert trainer.remaining_steps == 0
    before = leaves(trainer)
    assert trainer.fit() == []
    assert all(np.array_equal(a, b) for a, b in zip(before, leaves(trainer), strict=True))


def test_a_refused_step_leaves_the_state_bit_for_bit():
    trainer = small_trainer()
    trainer.fit()
    granted, after = jax.jit(trainer.step)(trainer.state)
    assert not granted
    for old, new in zip(jax.tree.leaves(trainer.state), jax.tree.leaves(after), strict=True):
        if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
            old, new = jax.random.key_data(old), jax.random.key_data(new)
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))


def test_the_certified_epsilon_is_below_the_filters_and_the_budget():
    trainer = small_trainer()
    trainer.fit(steps=4)
    bounds = certified_epsilon(trainer)
    assert 0 < bounds.lower <= bounds.upper <= trainer.spent_epsilon <= BUDGET["epsilon"]
    bare = RenyiFilter(**BUDGET)
    _, bare = bare.spend(trainer.mechanism, steps=4)
    assert trainer.spent_epsilon >= float(bare.epsilon())


def test_a_step_is_the_noisy_mean_of_the_clipped_gradients():
    """With the sampling rate 1, all is determined but the noise, whose scale over many parameters is known."""
    x = np.zeros((50, 1), np.float32)
    model = nnx.Linear(1, 20_000, use_bias=False, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    trainer = DPTrainer(
        model, squared_error, optax.sgd(1.0), (x, x), epsilon=50.0, delta=1e-3, noise_multiplier=2.0,
        sampling_rate=1.0, clip_norm=0.5, seed=3,
    )  # fmt: skip
    trainer.fit(steps=1)
    (kernel,) = leaves(trainer)
    assert kernel.std() * 50 == pytest.approx(2.0 * 0.5, rel=0.03)
    assert abs(kernel.mean() * 50) < 5 / np.sqrt(20_000)


def test_an_empty_batch_is_a_step_like_any_other():
    trainer = small_trainer(expected_batch_size=0.05)
    trainer.fit(steps=3)
    assert trainer.steps == 3
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(trainer))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": nnx.BatchNorm(3, rngs=nnx.Rngs(0))}, "BatchNorm.*GroupNorm"),
        ({"noise_multiplier": 0.0}, "pays for no step"),
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"expected_batch_size": 500}, "expected_batch_size = 500"),
        ({"expected_batch_size": None, "sampling_rate": 0.0}, "sampling_rate = 0.0"),
        ({"sampling_rate": 0.1}, "exactly one"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0"),
        ({"delta": 2.0}, "delta = 2.0"),
        ({"seed": -1}, "seed = -1"),
        ({"data": (np.zeros((3, 3), np.float32), np.zeros((2, 1), np.float32))}, "common leading axis"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(ValueError, match=words):
        small_trainer(**options)


def test_none_is_said_where_it_is_not_the_default():
    assert small_trainer(microbatch_size=None, ghost=False).microbatch_size is None
    assert small_trainer(devices=None).microbatch_size == 32


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"epsilon": None}, TypeError, "epsilon missing: give it; or else"),
        ({"delta": None}, TypeError, "delta missing: give the probability"),
        ({"clipping": Flat(1.0)}, TypeError, "unexpected keyword argument 'clipping': clip_norm is meant"),
        ({"batch_size": 4}, TypeError, "unexpected keyword argument 'batch_size': expected_batch_size is meant"),
        ({"budget": (1.0, 1e-3)}, TypeError, "argument 'budget': epsilon and delta is meant"),
        ({"epsilom": 1.0}, TypeError, "unexpected keyword argument 'epsilom'"),
        ({"ledger": "book"}, ValueError, "ledger = 'book'"),
        ({"microbatch_size": -3}, ValueError, "microbatch_size = -3"),
        ({"microbatch_size": 2.5}, TypeError, "microbatch_size = 2.5"),
        ({"devices": 2}, ValueError, "devices = 2"),
        ({"expected_batch_size": "50"}, TypeError, "expected_batch_size = '50'|expected_batch_size: .*'50'"),
        ({"epochs": 1e12, "noise_multiplier": None}, ValueError, "epochs = 1000000000000.0 are .* steps"),
        ({"metrics": {"loss": (abs, 1.0)}}, TypeError, "metrics = .*Metrics"),
    ],
)
def test_wrong_settings(options, kind, words):
    with pytest.raises(kind, match=words):
        small_trainer(**{name: group() if callable(group) else group for name, group in options.items()})


@pytest.mark.parametrize(
    "name",
    ["epsilon", "delta", "epochs", "expected_batch_size", "sampling_rate", "noise_multiplier", "clip_norm", "ghost",
     "menu", "ledger", "augment", "correct", "sampler", "seed", "devices", "mesh", "steps", "views",
     "microbatch_size"],
)  # fmt: skip
def test_arrays_in_the_place_of_one_setting_are_named(name):
    with pytest.raises((ValueError, TypeError), match=f"^{name} .*give|^give exactly one of"):
        small_trainer(**{name: np.array([1.0, 2.0])})


def test_a_rate_is_no_optimizer():
    data = (np.ones((200, 3), np.float32), np.ones((200, 1), np.float32))
    with pytest.raises(TypeError, match=r"optimizer = 0\.1: give an Optax transformation"):
        DPTrainer(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), squared_error, 0.1, data, **BUDGET, clip_norm=1.0)


def test_a_name_is_no_loss():
    data = (np.ones((200, 3), np.float32), np.ones((200, 1), np.float32))
    with pytest.raises(TypeError, match="loss is a str: give a function"):
        DPTrainer(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), "squared_error", optax.sgd(0.1), data, **BUDGET, clip_norm=1.0)


def test_what_is_printed_is_short_and_has_neither_key_nor_parameters():
    trainer = small_trainer(seed=123456789)
    trainer.fit(1)
    assert len(repr(trainer)) < 300
    assert "step 1, epsilon 0." in repr(trainer)
    assert repr(trainer.state) == "<TrainState: step 1>"
    assert "123456789" not in repr(trainer) + repr(trainer.state)


def test_digits_end_to_end():
    pytest.importorskip("sklearn")
    dataset = load("digits")
    trainer, steps = make_trainer(dataset, epsilon=3.0, delta=1e-5, seed=0)
    trainer.fit(steps)
    score = accuracy(trainer.model, dataset.test_inputs, dataset.test_labels)
    assert score >= 0.90
    assert certified_epsilon(trainer).upper <= trainer.spent_epsilon <= 3.0
