"""Tests that all that a trainer's guarantee depends on is its own: nothing that anybody else holds changes it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.interrupted import assert_same, make, squared_error, state_bits
from helpers.shared import ADAM, sharing

from jaxacct.policies import Constant, Schedule
from jaxacct.train import Checkpoints, DPTrainer, Flat, IndexedSource, build_report, certified_epsilon, split_params
from jaxacct.train.report import epsilon_after

WIDTH, SETTINGS = 3, {"epsilon": 4.0, "delta": 1e-3, "noise_multiplier": 3.0, "expected_batch_size": 40}


class Fixed(nnx.Module):
    """A frozen base, a head, an array that is no parameter, and one of NumPy's."""

    def __init__(self):
        self.base = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(1))
        self.scale = nnx.Variable(jnp.ones(WIDTH))
        self.shift = np.zeros(WIDTH, np.float32)

    def __call__(self, x):
        return self.head(self.base(x) * self.scale[...] + self.shift)


def examples():
    return np.random.default_rng(0).normal(size=(200, WIDTH)).astype(np.float32)


def tracing(model=None, data=None, **options):
    """A trainer that traces its own programs: what they would hold of what was given is seen."""
    x = examples()
    return DPTrainer(
        model or Fixed(), squared_error, ADAM, data or (x, x[:, :1]), clip_norm=1.0, seed=1, trainable="head",
        **SETTINGS | options,
    )  # fmt: skip


def fine_tuning(**options):
    return sharing(tracing(**options))


def bits(trainer):
    """State and constants."""
    return [*state_bits(trainer), *(np.asarray(leaf) for leaf in jax.tree.leaves(trainer.constants))]


def spoil(*trees):
    """Writes into everything that modules and states have, and says how much that was."""
    written = 0
    for leaf in jax.tree.leaves(trees, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        if isinstance(leaf, (nnx.Variable, np.ndarray)):
            leaf[...] = 5.0 * np.ones(leaf.shape, np.float32)
            written += 1
    return written


def delete(tree):
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.delete()


@pytest.fixture(scope="module")
def untouched():
    trainer = fine_tuning()
    trainer.fit(4, every=2)
    return trainer


def assert_untouched(trainer, untouched):
    for old, new in zip(bits(untouched), bits(trainer), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.exhaustive
def test_the_given_model_trained_elsewhere_moves_nothing(untouched):
    model = Fixed()
    trainer = tracing(model)
    assert spoil(nnx.state(model)) == 6
    assert np.all(np.asarray(model.base.kernel[...]) == 5.0)
    assert np.all(model.shift == 5.0)
    trainer.fit(2)
    delete(nnx.state(model))
    trainer.fit(2)
    assert_untouched(trainer, untouched)


@pytest.mark.exhaustive
def test_an_evaluation_that_trains_its_model_changes_a_copy(untouched):
    x = examples()

    def tunes(model):
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        optimizer.update(model, nnx.grad(lambda model: jnp.mean((jax.vmap(model)(x) - x[:, :1]) ** 2))(model))
        delete(nnx.state(model))
        return 1.0

    trainer = fine_tuning()
    trainer.fit(4, every=2, evaluate=tunes)
    assert_untouched(trainer, untouched)


@pytest.mark.first_tier("deleted")
@pytest.mark.parametrize(
    "ruin",
    [
        lambda trainer: delete(nnx.state(trainer.model)),
        lambda trainer: delete((trainer.state, trainer.constants)),
        lambda trainer: spoil(trainer.state.params, trainer.constants, nnx.state(trainer.model)),
        lambda trainer: jax.jit(lambda state: state.step + 1, donate_argnums=0)(trainer.state),
    ],
    ids=["model", "deleted", "written", "donated"],
)  # fmt: skip
def test_what_is_handed_out_is_a_copy(ruin, untouched):
    trainer = fine_tuning()
    trainer.fit(2)
    ruin(trainer)
    trainer.fit(2)
    assert_untouched(trainer, untouched)


@pytest.mark.parametrize("kind", ["NumPy", "JAX"])
def test_the_examples_are_copied(kind, untouched):
    x = examples()
    data = (x, x[:, :1].copy()) if kind == "NumPy" else (jnp.array(x), jnp.array(x[:, :1]))
    trainer = tracing(data=data)
    for part in data:
        if kind == "NumPy":
            part[...] = 7.0  # at once: JAX may not have read it yet
        else:
            part.delete()
    trainer.fit(4)
    assert_untouched(trainer, untouched)


def test_many_arrays_are_copied_before_the_call_returns():
    """``jnp.asarray`` shares memory with every other array, and ``jnp.array`` reads it later than it returns."""
    from jaxacct.train.ownership import owned_array

    for size in range(100_000, 100_050):
        given = np.zeros(size, np.float32)
        mine = owned_array(given)
        given[:] = 1.0
        assert not np.asarray(mine).any()


def test_rows_of_a_batch_are_copied_when_they_are_read():
    class Reused:
        """An array that hands out the same memory each time."""

        shape, dtype = (50, 2), np.dtype(np.float32)

        def __init__(self):
            self.memory = np.zeros((50, 2), np.float32)

        def __getitem__(self, rows):
            self.memory[: np.size(rows)] = np.reshape(rows, (-1, 1))
            return self.memory[: np.size(rows)] if np.ndim(rows) else self.memory[0]

    source = IndexedSource((Reused(),))
    batches = [source.fetch(np.full(16, i))[0] for i in range(20)]
    assert [float(batch[3, 1]) for batch in batches] == list(range(20))


def test_optimizer_and_rule_keep_nothing_of_the_callers():
    norm = np.array(1.0, np.float32)
    start = jnp.ones(3)

    def init(params):
        for leaf in jax.tree.leaves(params):
            leaf.delete()  # it was given a copy
        return {"table": start}

    def update(gradient, state, params=None):
        del params
        return jax.tree.map(lambda entry: -0.1 * state["table"][0] * entry, gradient), state

    x = examples()
    trainer = DPTrainer(
        nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(0)), squared_error, optax.GradientTransformation(init, update),
        (x, x[:, :1]), clip_norm=Flat(norm), seed=1, **SETTINGS,
    )  # fmt: skip
    norm[...] = 100.0
    start.delete()
    trainer.fit(1)
    assert trainer.clip_norm == 1.0
    assert trainer.clipping.clip_norm == 1.0


@pytest.mark.exhaustive
def test_a_schedule_is_what_it_was_when_the_trainer_was_made():
    table = np.full(1000, 3.0, np.float32)
    options = {"noise_multiplier": None, "expected_batch_size": None}
    before = make(**options, policy=Schedule(lambda step: jnp.asarray(table)[step] * np.float32(1.0), 0.2))
    before.fit(4)
    after = make(**options, policy=Schedule(lambda step: jnp.asarray(table)[step] * np.float32(1.0), 0.2))
    table[:] = 100.0
    certified = certified_epsilon(before).upper
    after.fit(2)
    table[:] = 0.01
    after.fit(2)
    assert_same(before, after)
    assert certified == epsilon_after(after, 4).upper
    constant = make(ledger="filter")
    constant.fit(4)
    assert certified == pytest.approx(
        float(certified_epsilon(constant).upper), rel=1e-4
    )  # cut batches cost a little less


def test_numbers_of_a_policy_are_copied():
    noise = np.array(3.0)
    trainer = make(noise_multiplier=None, expected_batch_size=None, policy=Constant(noise, 0.2))
    trainer.fit(2)
    before = certified_epsilon(trainer).upper
    noise[...] = 1000.0
    assert certified_epsilon(trainer).upper == before
    with pytest.raises(TypeError, match=r"noise_multiplier = .*generator.*: give a function of the step"):
        make(noise_multiplier=None, expected_batch_size=None, policy=Schedule((i for i in ()), 0.2))


SEALED = (
    "epsilon", "delta", "seed", "policy", "sampler", "source", "data", "program", "ledger_kind", "clipping",
    "state", "plan", "progress", "constants", "steps", "spent_epsilon", "stopping_was_planned", "delta_for_accounting",
)  # fmt: skip


@pytest.mark.parametrize("name", SEALED)
def test_what_the_guarantee_speaks_of_cannot_be_set(name, untouched):
    with pytest.raises(AttributeError):
        setattr(untouched, name, getattr(untouched, name))
    with pytest.raises(AttributeError):
        delattr(untouched, name)


def test_a_state_from_elsewhere_does_not_get_in():
    """Neither by assignment, nor through the class of what is handed out: reports speak of what was trained here."""
    trainer = fine_tuning()
    trainer.fit(2)
    state = trainer.state
    rewound = dataclasses.replace(state, step=jnp.zeros((), jnp.int32))
    with pytest.raises(AttributeError):
        trainer.state = rewound
    trainer.progress._replace(lost_steps=0, kept=True)
    state.params["head"]["kernel"][...] = jnp.zeros((WIDTH, 1))
    report = build_report(trainer, [])
    assert report["final"]["steps"] == 2
    assert np.any(np.asarray(trainer.model.head.kernel[...]))


def test_a_run_whose_length_a_callback_chooses_was_not_planned():
    trainer = fine_tuning(ledger="filter")
    with pytest.raises(RuntimeError, match="while it runs"):
        trainer.fit(4, every=2, evaluate=lambda model: len(trainer.fit(2)))
    assert not trainer.stopping_was_planned
    assert build_report(trainer, [])["final"]["epsilon_certified"] is None
    trainer.fit(2)  # and goes on where it was
    assert trainer.steps == 4


def test_a_trainer_that_has_trained_does_not_resume_another_run(tmp_path):
    keeper = Checkpoints(tmp_path / "run", every=4)
    make().fit(2, keeper=keeper)
    keeper.close()
    trainer = make(seed=1)
    trainer.fit(8)
    spent = trainer.spent_epsilon
    with pytest.raises(ValueError, match="trainer has trained"):
        Checkpoints(tmp_path / "run", every=4).resume(trainer)
    assert trainer.spent_epsilon == spent


def test_parts_of_a_model_are_copies():
    model = Fixed()
    _, trained, rest = split_params(model, "head")
    spoil(nnx.state(model))
    assert not any(np.any(np.asarray(leaf) == 5.0) for leaf in jax.tree.leaves((trained, rest)))


def test_a_loss_that_writes_into_its_model_leaves_the_rest_as_it_is():
    """What it writes is dropped, into frozen parts as well as into trained ones."""

    def writes(model, x, y):
        model.base.kernel[...] = model.base.kernel[...] * 2
        model.head.bias[...] = model.head.bias[...] + 1
        return squared_error(model, x, y)

    x = examples()
    trainer = DPTrainer(
        Fixed(), writes, optax.adam(0.1), (x, x[:, :1]), clip_norm=1.0, seed=1, trainable="head", **SETTINGS
    )
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.constants)]
    trainer.fit(2)
    for old, new in zip(before, jax.tree.leaves(trainer.constants), strict=True):
        np.testing.assert_array_equal(old, new)
