"""Is what a policy chooses what a training step uses, and what the ledger is charged for?"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx
from helpers.shared import WHOLE, sharing
from helpers.thorough import cases

from jaxacct.filters import RenyiFilter
from jaxacct.mechanisms import Gaussian, PoissonSubsampledGaussian
from jaxacct.odometers import VilleOdometer
from jaxacct.policies import (
    AdaptiveBatchSize,
    AdaptiveNoise,
    Constant,
    EarlyStopping,
    Schedule,
    Setting,
    SpendRemaining,
)
from jaxacct.train import DPTrainer
from jaxacct.train.clipping import AdaptiveQuantile
from jaxacct.train.sources import IndexedSource

# A schedule of rising costs ends before the steps asked for.
pytestmark = pytest.mark.filterwarnings("ignore:fit made")

EXAMPLES, PARAMETERS, CLIP_NORM, PERIOD, STEPS = 400, 4000, 0.5, 4, 14
EPSILON, DELTA, QUERY_NOISE = 2.0, 1e-3, 20.0

DATA = (np.ones((EXAMPLES, 1), np.float32),)

ADAPTS = {"period": PERIOD, "query_noise": QUERY_NOISE}
NOISE = AdaptiveNoise(sampling_rate=0.1, initial=3.0, increment=0.5, least=2.5, most=5.0, **ADAPTS)
BATCH = AdaptiveBatchSize(
    noise_multiplier=4.0, num_examples=EXAMPLES, initial=80, increment=20, least=40, most=80, **ADAPTS
)
POLICIES = {
    "adaptive noise": NOISE,
    "adaptive batch size": BATCH,
    "schedule": Schedule(lambda step: jnp.where(step < STEPS, 4.0 - step / 8, 0.0), 0.1),
    "spend remaining": SpendRemaining(sampling_rate=0.1, steps=STEPS, period=PERIOD),
    "early stopping": EarlyStopping(NOISE, patience=10, **ADAPTS),
}


def nothing(model, x):
    """A loss without a gradient: a step moves the parameters by its noise alone."""
    return 0.0 * jnp.sum(model(x))


def always(model, x):
    return jnp.ones(())


def drawn(rate, most):
    """The rate that 32 random bits meet: one chosen on the way is rounded up to it, as far as the sampler's own."""
    return min(np.ceil(rate * 2**32), round(most * 2**32)) / 2**32


def trainer_with(policy, **options):
    kernel = nnx.initializers.zeros
    model = nnx.Linear(1, PARAMETERS, use_bias=False, kernel_init=kernel, rngs=nnx.Rngs(0))
    settings = {"epsilon": EPSILON, "delta": DELTA, "clip_norm": CLIP_NORM, "seed": 3, "correct": always} | options
    data = settings.pop("data", DATA)
    return sharing(DPTrainer(model, nothing, WHOLE, data, policy=policy, **settings))


def setting_of(trainer):
    noise, rate = trainer.policy.setting(trainer.state.policy, trainer.state.step)
    return float(noise), float(rate)


class Run(NamedTuple):
    trainer: DPTrainer
    settings: list  # (noise multiplier, sampling rate) of each step, as the policy chose them before it
    noises: list  # standard deviation of what each step added to the parameters
    spent: list  # the ledger's epsilon after each step, and the count after it, if there was one


@functools.cache
def run_of(name):
    trainer = trainer_with(POLICIES[name], ledger="filter")
    settings, noises, spent = [setting_of(trainer)], [], []
    before = np.zeros((1, PARAMETERS), np.float32)

    def look(entry):
        nonlocal before
        (after,) = jax.tree.leaves(trainer.state.params)
        noises.append(float(np.std(np.asarray(after) - before)))
        before = np.asarray(after)
        settings.append(setting_of(trainer))
        spent.append(entry.epsilon)

    trainer.fit(STEPS + (name == "schedule"), every=1, on_evaluation=look)
    return Run(trainer, settings[:-1], noises, spent)


each_policy = pytest.mark.parametrize("name", cases([*POLICIES][:-1], [*POLICIES][-1:]))  # one that wraps another


@pytest.mark.exhaustive
@each_policy
def test_the_settings_chosen_are_the_ones_accounted(name):
    """And the counts: one after every period, none elsewhere."""
    run = run_of(name)
    assert run.trainer.steps == len(run.settings) == STEPS
    by_hand = RenyiFilter(EPSILON, run.trainer.delta_for_accounting)
    for step, ((noise, rate), epsilon) in enumerate(zip(run.settings, run.spent, strict=True), 1):
        mechanism = PoissonSubsampledGaussian(noise, drawn(rate, run.trainer.policy.sampling_rates[1]))
        granted, by_hand = by_hand.spend(mechanism)
        assert granted
        if step % PERIOD == 0 and run.trainer.policy.query is not None:
            granted, by_hand = by_hand.spend(Gaussian(QUERY_NOISE))
            assert granted
        assert epsilon == pytest.approx(float(by_hand.epsilon()), rel=1e-9)
    assert run.trainer.spent_epsilon <= EPSILON


@pytest.mark.exhaustive
@each_policy
def test_the_settings_chosen_are_the_ones_used(name):
    """The noise of a step, over many parameters, has the deviation that its setting asks for."""
    run = run_of(name)
    wanted = [noise * CLIP_NORM / (rate * EXAMPLES) for noise, rate in run.settings]
    # Five standard errors of a standard deviation of so many values, 5.6 %; settings differ by far more.
    np.testing.assert_allclose(run.noises, wanted, rtol=5 / np.sqrt(2 * PARAMETERS))


@pytest.mark.exhaustive
def test_adaptive_noise_goes_up_a_level_on_a_rise_and_down_without():
    """All are right from the start: one rise above 0, and none after."""
    noises = [noise for noise, _ in run_of("adaptive noise").settings]
    assert noises == [3.0] * 4 + [3.5] * 4 + [3.0] * 4 + [2.5] * 2


@pytest.mark.exhaustive
def test_adaptive_batch_size_goes_down_a_level_on_a_rise_and_up_without():
    rates = [rate for _, rate in run_of("adaptive batch size").settings]
    np.testing.assert_allclose(np.array(rates) * EXAMPLES, [80] * 4 + [60] * 4 + [80] * 6, rtol=1e-6)


@pytest.mark.parametrize(
    "policy",
    [
        AdaptiveNoise(sampling_rate=0.1, initial=1.0, increment=0.1, least=0.1, most=9.0, period=1),
        AdaptiveBatchSize(
            noise_multiplier=1.0, num_examples=50_000, initial=512, increment=12.7, least=50, most=900, period=1
        ),
    ],
    ids=["noise", "batch size"],
)
def test_a_compiled_step_uses_the_setting_that_was_charged_outside_bit_for_bit(policy):
    start = policy.start(None)
    compiled = jax.jit(lambda level: policy.setting(dataclasses.replace(start, level=level), 0))
    for level in map(jnp.int32, range(-30, 31)):
        assert compiled(level) == policy.setting(dataclasses.replace(start, level=level), 0)


@pytest.mark.exhaustive
def test_spend_remaining_leaves_next_to_nothing():
    trainer = run_of("spend remaining").trainer
    assert 0.99 * EPSILON <= trainer.spent_epsilon <= EPSILON


@pytest.mark.first_tier("adaptive noise")
@each_policy
def test_only_runs_without_choices_were_planned(name):
    assert run_of(name).trainer.stopping_was_planned == (name == "schedule")


@jax.jit
def numbers_drawn(state, steps):
    program = run_of("adaptive batch size").trainer.program

    def number_drawn(step):
        _, mask = program.draw(dataclasses.replace(state, step=step))
        return mask.sum()

    return jax.lax.map(number_drawn, steps)


@pytest.mark.parametrize("size", [80, 60, 40])
def test_batches_are_drawn_at_the_chosen_rate(size):
    trainer = run_of("adaptive batch size").trainer
    level = jnp.int32((80 - size) // 20)
    state = dataclasses.replace(trainer.state, policy=dataclasses.replace(trainer.state.policy, level=level))

    steps = 500
    number = int(numbers_drawn(state, jnp.arange(steps)).sum())
    assert scipy.stats.binomtest(number, steps * EXAMPLES, size / EXAMPLES).pvalue > 1e-4


def test_a_refused_count_leaves_the_policy_as_it_is_and_costs_nothing():
    """A count with noise 1 costs more than the whole budget."""
    trainer = trainer_with(dataclasses.replace(NOISE, query_noise=1.0), ledger="filter")
    before = trainer.state.policy
    trainer.fit(2 * PERIOD)
    assert trainer.steps == 2 * PERIOD
    assert same_bits(before, trainer.state.policy)
    by_hand = RenyiFilter(EPSILON, trainer.delta_for_accounting)
    assert not by_hand.spend(Gaussian(1.0))[0]
    _, by_hand = by_hand.spend(PoissonSubsampledGaussian(3.0, drawn(0.1, 0.1)), steps=2 * PERIOD)
    assert trainer.spent_epsilon == pytest.approx(float(by_hand.epsilon()), rel=1e-9)


@pytest.mark.exhaustive
def test_an_odometer_refuses_what_would_take_its_reading_past_epsilon():
    program, odometer = run_of("schedule").trainer.program, VilleOdometer(DELTA)
    granted, after = program.door.spend(odometer, odometer.cost(Gaussian(1.0)))
    assert not granted
    assert same_bits(odometer, after)
    granted, after = program.door.spend(odometer, odometer.cost(Gaussian(QUERY_NOISE)))
    assert granted
    assert 0 < after.epsilon() <= EPSILON


def test_an_odometer_ends_the_run_before_it_reads_more_than_epsilon():
    trainer = trainer_with(Constant(3.0, 0.1), ledger="odometer")
    promised = trainer.remaining_steps
    trainer.fit()
    by_hand = VilleOdometer(trainer.delta_for_accounting)
    curve = by_hand.cost(PoissonSubsampledGaussian(3.0, drawn(0.1, 0.1)))
    readings = [float(by_hand.spend_cost(curve, steps)[1].epsilon()) for steps in (trainer.steps, trainer.steps + 1)]
    assert readings[0] <= EPSILON < readings[1]
    assert trainer.spent_epsilon == pytest.approx(readings[0], rel=1e-9)
    assert trainer.spent_epsilon <= EPSILON
    assert trainer.steps == promised > PERIOD
    before = trainer.state
    assert trainer.fit() == []
    assert same_bits(before, trainer.state)


@pytest.mark.exhaustive
def test_early_stopping_ends_the_run_and_the_odometer_reads_less_than_epsilon():
    policy = EarlyStopping(Constant(3.0, 0.1), target=EXAMPLES / 2, **ADAPTS)
    trainer = trainer_with(policy, ledger="odometer")
    history = trainer.fit()
    assert trainer.steps == PERIOD == history[-1].step
    by_hand = VilleOdometer(trainer.delta_for_accounting)
    _, by_hand = by_hand.spend(PoissonSubsampledGaussian(3.0, drawn(0.1, 0.1)), steps=PERIOD)
    _, by_hand = by_hand.spend(Gaussian(QUERY_NOISE))
    assert trainer.spent_epsilon == pytest.approx(float(by_hand.epsilon()), rel=1e-9)
    assert trainer.spent_epsilon < EPSILON
    assert not trainer.stopping_was_planned
    before = trainer.state
    assert trainer.fit() == []
    assert same_bits(before, trainer.state)


def test_a_schedule_is_refused_where_it_leaves_no_noise():
    trainer = run_of("schedule").trainer
    assert trainer.steps == STEPS
    granted, after = trainer.program.pay(trainer.state, trainer.program.curve(trainer.state))
    assert not granted
    assert same_bits(trainer.state, after)


def same_bits(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(bits(a), bits(b)) for a, b in pairs)


def bits(leaf):
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


@dataclasses.dataclass(frozen=True)
class Rising:
    """A user's policy whose rate depends on the step."""

    adaptive, every_step, period, query = False, True, 0, None
    sampling_rates = (0.05, 0.1)

    def start(self, ledger):
        return ()

    def setting(self, state, step):
        return Setting(jnp.float32(4.0), jnp.where(step < 3, jnp.float32(0.05), jnp.float32(0.1)))

    def adapt(self, state, ledger, step, answer):
        return state

    def stopped(self, state):
        return jnp.zeros((), bool)


FILTER = {"ledger": "filter"}  # a menu takes longer to certify than the rest


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        (NOISE, {"correct": None}, "correct = None"),
        (NOISE, FILTER | {"correct": lambda model, x: None}, r"correct returned None for one example.*a scalar"),
        (
            NOISE,
            FILTER | {"correct": lambda model, x: jnp.ones(3)},
            r"correct returned an array of shape \(3,\).*a scalar",
        ),
        (NOISE, {"data": IndexedSource(DATA)}, "read by index"),
        (Rising(), {"data": IndexedSource(DATA)}, "policy changes the sampling rate.*data in arrays"),
        (NOISE, {"noise_multiplier": 3.0}, "exactly one of noise_multiplier and policy"),
        (None, {"sampling_rate": 0.1}, "exactly one of noise_multiplier and policy"),
        (NOISE, {"sampling_rate": 0.1}, "policy has its own sampling rate.*sampling_rate"),
        (NOISE, {"expected_batch_size": 40}, "policy has its own sampling rate.*expected_batch_size"),
        (NOISE, {"clip_norm": None}, "clip_norm missing"),
        (NOISE, FILTER | {"clip_norm": AdaptiveQuantile(1.0)}, "clip_norm = AdaptiveQuantile.*policy"),
        (NOISE, {"ledger": "purse"}, "ledger = 'purse'"),
        (POLICIES["spend remaining"], {"ledger": "odometer"}, "odometer.*filter"),
        (EarlyStopping(POLICIES["spend remaining"], patience=1, **ADAPTS), {"ledger": "odometer"}, "odometer.*filter"),
        (dataclasses.replace(BATCH, num_examples=EXAMPLES - 1), {}, "num_examples = 399"),
    ],
)
def test_contradictory_settings(policy, options, words):
    with pytest.raises(ValueError, match=words):
        trainer_with(policy, **options)
