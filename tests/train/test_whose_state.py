"""A state belongs to what made it: nothing of another object's budget is spent, and nothing is paid before checks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.shared import SGD, sharing

import jaxacct as ja
from jaxacct.train import (
    AdaptiveQuantile,
    CyclicPoissonSampler,
    DPTrainer,
    Flat,
    Metrics,
    PerLayer,
    Plan,
    PoissonSampler,
    PrivateGradients,
    tune,
)
from jaxacct.train.clipping import ClippedSum
from jaxacct.train.planned import PlannedLedger
from jaxacct.train.sampling import Correlated

pytestmark = pytest.mark.usefixtures("unsolved")

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
SAMPLER = PoissonSampler(len(X), 0.1, 12)
EPOCHS = CyclicPoissonSampler(len(X), 5, 0.5, 12)


def squares(w, x):
    return jnp.sum((w - x) ** 2)


def planned(loss=squares, *, steps=10, noise=2.0, epsilon=1.0, rule=None, sampler=SAMPLER):
    """Gradients of a plan that nobody solved for: tests here ask nothing of its epsilon."""
    made = Plan(
        sampler=sampler, noise_multiplier=noise, steps=steps, epsilon=epsilon, delta=1e-3,
        certified=ja.Bounds(0.0, 0.0, epsilon),
    )  # fmt: skip
    return PrivateGradients(loss, made, Flat(1.0) if rule is None else rule)


def paid_by(ledger):
    return PrivateGradients.paid_by(ledger, squares, SAMPLER, clip_norm=1.0)


def batch_of(private, state):
    indices, mask = private.batch(state)
    return (X[indices],), mask


OURS = planned()
OTHERS = {
    "steps": planned(steps=400), "noise": planned(noise=4.0), "epsilon": planned(epsilon=9.0),
    "norm": planned(rule=Flat(3.0)), "rule": planned(rule=AdaptiveQuantile(1.0)),
    "sampler": planned(sampler=PoissonSampler(len(X), 0.2, 12)), "epochs": planned(sampler=EPOCHS),
    "filter": paid_by(ja.filters.ZCDPFilter(100.0, 1e-3)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_other_settings_is_refused_whatever_it_is_for(name):
    state, w = OTHERS[name].start(1), jnp.zeros(3)
    rows, mask = batch_of(OURS, OURS.start(1))
    total = ClippedSum(jnp.zeros(3), jnp.zeros(()))
    for call in (
        lambda: OURS.gradient(w, state, rows, mask), lambda: OURS.noise(w, state, total),
        lambda: OURS.clip(w, state, rows, mask), lambda: OURS.batch(state), lambda: OURS.noise_deviation(state),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="begun by PrivateGradients of other settings"):
            call()


def restored_into(private, state):
    """What a reader of checkpoints makes that is given the leaves that were saved, and the state that it expects."""
    return jax.tree.unflatten(jax.tree.structure(private.start()), jax.tree.leaves(state))


def test_what_is_not_known_before_is_refused_without_a_look_at_the_data():
    """Under jit, and from a checkpoint, of which static fields are the reader's."""
    step = jax.jit(OURS.gradient)
    for private, granted in ((OURS, True), (planned(), True), (OTHERS["steps"], False), (OTHERS["noise"], False)):
        state = restored_into(OURS, private.start(1))
        rows, mask = batch_of(OURS, OURS.start(1))
        gradient, after = step(jnp.zeros(3), state, rows, mask)
        assert np.all(gradient != 0) == granted
        assert np.all(gradient == 0) != granted
        assert int(after.step) == int(after.ledger.made) == granted
        np.testing.assert_array_equal(after.owner, private.start(1).owner)


def test_the_budget_is_the_objects_and_of_a_ledger_counts_what_is_spent():
    state, w = OURS.start(1), jnp.zeros(3)
    rows, mask = batch_of(OURS, state)
    generous = dataclasses.replace(state, ledger=PlannedLedger.of(400, certified=0.1))
    with pytest.raises(ValueError, match="400 runs is not that of a plan of 10"):
        OURS.gradient(w, generous, rows, mask)
    ours, other = (paid_by(ja.filters.RenyiFilter(epsilon, 1e-3)) for epsilon in (0.5, 500.0))
    swapped = dataclasses.replace(ours.start(1), ledger=other.ledger)
    assert other.ledger.would_grant(SAMPLER.mechanism(0.5))
    with pytest.raises(ValueError, match="ledger refuses"):
        ours.gradient(w, swapped, rows, mask, noise_multiplier=0.5)
    with pytest.raises(ValueError, match="other settings than this"):
        ours.gradient(w, dataclasses.replace(swapped, ledger=OURS.ledger), rows, mask, noise_multiplier=9.0)


def test_a_step_within_a_run_that_was_not_paid_for_is_refused():
    """A ledger of one time and a count of another: the first step of an epoch pays for all of them."""
    private = planned(sampler=EPOCHS)
    state, w = private.start(1), jnp.zeros(3)
    within = dataclasses.replace(state, step=jnp.int32(1))
    rows, mask = batch_of(private, within)
    with pytest.raises(ValueError, match="at step 1, and its ledger has paid for 0 runs"):
        private.gradient(w, within, rows, mask)
    step = jax.jit(private.gradient)
    assert np.all(step(w, within, rows, mask)[0] == 0)
    paid = dataclasses.replace(within, ledger=dataclasses.replace(state.ledger, made=jnp.int32(1)))
    assert np.all(step(w, paid, rows, mask)[0] != 0)


@dataclasses.dataclass
class Unhashable:
    """A loss that has an equality, and hence no hash."""

    factor: float

    def __call__(self, w, x):
        return self.factor * squares(w, x)


@pytest.mark.parametrize(
    "private",
    [planned(Unhashable(1.0)), planned(rule=Flat(np.ones(()))), planned(rule=PerLayer((jnp.ones(()),), ((),)))],
)
def test_a_loss_or_a_rule_needs_no_hash(private):
    state = private.start(1)
    gradient, _ = private.gradient(jnp.zeros(3), state, *batch_of(private, state))
    expected, _ = OURS.gradient(jnp.zeros(3), OURS.start(1), *batch_of(OURS, OURS.start(1)))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


STATE, TOTAL = OURS.start(1), ClippedSum(jnp.zeros(3), jnp.zeros(()))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: OURS.noise(0.0, STATE, TOTAL), ValueError, r"clipped is a sum of shapes \[\(3,\)\], and not \[\(\)"),
        (lambda: OURS.noise({"w": jnp.zeros(3)}, STATE, TOTAL), ValueError, "clipped is a sum of another structure"),
        (lambda: OURS.noise(jnp.zeros(3), STATE, jnp.zeros(3)), TypeError, "clipped is a ArrayImpl"),
        (lambda: OURS.sum([]), ValueError, "parts is empty"),
        (lambda: OURS.sum([TOTAL, TOTAL._replace(total=jnp.zeros(1))]), ValueError, r"parts has a sum of shapes"),
        (lambda: OURS.batch(3), TypeError, "state is a int"),
        (lambda: planned(3), TypeError, "loss = 3"),
        (lambda: planned(rule=Flat(np.inf)), ValueError, "clip_norm = Flat.* = inf"),
        (lambda: planned(rule=2.0j), TypeError, "clip_norm"),
        (lambda: dataclasses.replace(OURS, microbatch_size=0), ValueError, "microbatch_size = 0"),
        (lambda: dataclasses.replace(OURS, ghost="no"), TypeError, "ghost = 'no'"),
        (lambda: dataclasses.replace(OURS, sharding=3), TypeError, "sharding is a int"),
        (lambda: dataclasses.replace(OURS, plan=3), TypeError, "plan is a int"),
        (
            lambda: PrivateGradients.paid_by(ja.filters.ZCDPFilter(1.0, 1e-3), squares, 3, clip_norm=1.0),
            TypeError, "sampler is a int",
        ),
        (
            lambda: PrivateGradients.planned(
                squares, 40, epsilon=0, delta=1e-3, epochs=1, expected_batch_size=4, clip_norm=1.0
            ),
            ValueError, "epsilon = 0",
        ),
        (lambda: Metrics({"loss": (3, 1.0)}), TypeError, "measures has 3 for 'loss'"),
        (lambda: Metrics([squares]), TypeError, "measures = "),
        (lambda: tune(3, [1], squares, trials=None, epsilon=1.0, delta=1e-3), TypeError, "make = 3"),
        (lambda: tune(squares, [1], 3, trials=None, epsilon=1.0, delta=1e-3), TypeError, "score = 3"),
    ],
)  # fmt: skip
def test_wrong_uses_are_named(call, kind, words):
    with pytest.raises(kind, match=words) as raised:
        call()
    assert len(str(raised.value)) <= 600


def test_the_memory_of_correlated_noise_is_of_the_same_parameters():
    batches = CyclicPoissonSampler(len(X), 2, 0.5, 12)
    private = planned(sampler=Correlated(batches, ja.strategies.square_root(2), 10))
    state = private.start(1, jnp.zeros(4))
    same = dataclasses.replace(private)  # as after a restart: its first use is in a trace, of a state that was restored
    step = jax.eval_shape(same.noise, jnp.zeros(4), state, ClippedSum(jnp.zeros(4), jnp.zeros(())))
    assert step[0].shape == (4,)
    for wrong in (state, dataclasses.replace(state, noise=None)):
        with pytest.raises(ValueError, match="start it with the parameters"):
            private.noise(jnp.zeros(3), wrong, TOTAL)


def squared_error(model, x):
    return jnp.sum((model(x) - x[:1]) ** 2)


def trainer(**options):
    settings = {"epsilon": 1.0, "delta": 1e-3, "noise_multiplier": 2.0, "expected_batch_size": 4}
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    return sharing(DPTrainer(model, squared_error, SGD, (X,), clip_norm=1.0, seed=1, **settings | options))


def test_a_trainer_spends_its_own_budget_from_whatever_state():
    ours = trainer()
    with pytest.raises(ValueError, match="400 runs is not that of a plan of 100"):
        ours.step(dataclasses.replace(ours.state, ledger=PlannedLedger.of(400, certified=0.1)))
    with pytest.raises(TypeError, match="state is a PrivateState"):
        ours.step(STATE)
    other = dataclasses.replace(ours.state, opt_state=optax.adam(0.1).init(ours.state.params))
    with pytest.raises(ValueError, match="another model, optimizer, rule or policy"):
        ours.step(other)
    ahead = dataclasses.replace(ours.state, step=ours.state.step + 3)  # of steps that its ledger has not paid for
    granted, after = ours.step(ahead)
    assert not granted
    assert (int(after.step), int(after.ledger.made)) == (3, 0)
    few, many = (trainer(epsilon=epsilon, ledger="filter") for epsilon in (2.0, 200.0))
    spent = few.state.ledger
    while bool((granted := spent.spend(few.mechanism))[0]):
        _, spent = granted
    state = dataclasses.replace(few.state, ledger=many.state.ledger.resume(spent))
    assert many.state.ledger.resume(spent).would_grant(few.mechanism)
    granted, after = few.step(state)
    assert not granted
    assert after.step == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evaluate": 3}, "evaluate = 3"), ({"on_evaluation": "print"}, "on_evaluation = 'print'"),
        ({"keeper": "folder"}, "keeper is a str"), ({"progress": "yes"}, "progress = 'yes'"),
    ],
)  # fmt: skip
def test_what_fit_will_call_is_looked_at_before_anything_is_paid_for(options, words):
    ours = trainer()
    with pytest.raises(TypeError, match=words):
        ours.fit(2, **options)
    assert ours.steps == 0


def test_metrics_are_measured_in_microbatches():
    wide = Metrics({"wide": (lambda model, x: jnp.sum(jnp.outer(x, jnp.arange(1000.0))), 4.0)}, clipped=False)
    rows, most = np.ones((64, 3), np.float32), {}
    for size in (8, None):
        traced = jax.make_jaxpr(
            lambda rows, size=size: wide.after(
                wide.start(), jax.random.key(0), lambda: None, (rows,), jnp.ones(64, bool), 0.0, noise_multiplier=1.0,
                expected_batch_size=8.0, microbatch_size=size,
            )
        )(rows)  # fmt: skip
        shapes = [step.outvars[0].aval.shape for step in ja.train.clipping.rows.operations(traced.jaxpr)]
        most[size] = max(int(np.prod(shape)) for shape in shapes)
    assert most[None] == 8 * most[8] == 64 * 3000
