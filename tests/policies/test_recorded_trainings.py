"""Replays of recorded adaptive trainings: the policies, asked with the recorded counts, do what the trainings did.

CIFAR-10, 50,000 examples, delta 1e-6, batches of 512; tests/policies/recorded.json has the counts, noise multipliers
and batch sizes by epoch of one run of each kind.
"""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest

from jaxacct import Gaussian, PoissonSubsampledGaussian, rdp
from jaxacct.filters import RenyiFilter
from jaxacct.odometers import RenyiOdometer
from jaxacct.policies import AdaptiveBatchSize, AdaptiveNoise

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "oracles"
PAPER_ORDERS = (*(round(0.1 * i, 1) for i in range(11, 110)), *range(12, 64))
EXAMPLES, EPSILON, DELTA = 50_000, 8.2184, 1e-6
LOOKAHEAD = 50 * 390 * 128 / EXAMPLES
"""50 epochs; the trainings read 390 whole batches of 128 in each, and dropped the other 80 examples."""


def recorded():
    runs = json.loads((pathlib.Path(__file__).parent / "recorded.json").read_text())
    for name in ("adaptive_training_runs.json", "adaptive_fine_tuning_runs.json"):
        if (SHARED / name).exists():
            runs |= json.loads((SHARED / name).read_text())
    return {name: run for name, run in runs.items() if not name.startswith("baseline")}


RUNS = recorded()


@functools.partial(jax.jit, static_argnums=0)
def epoch(policy, steps, state, budget, count, adapts):
    """One epoch of so many steps: spend them; after every period ask, pay and adapt. A step a batch of one kind."""
    setting = policy.setting(state, 0)
    granted, budget = budget.spend(PoissonSubsampledGaussian(*setting), steps)
    asked, after = budget.spend(policy.query)

    def adapt(_):
        return policy.adapt(state, after, 0, count), after

    state, budget = jax.lax.cond(adapts & asked, adapt, lambda _: (state, budget), None)
    return granted, setting, state, budget


def replay(policy, run, every, steps_of):
    """Yields for each recorded epoch what the policy has chosen after it, and whether the filter granted it."""
    budget = RenyiFilter(EPSILON, DELTA, orders=PAPER_ORDERS)
    state = policy.start(budget)
    for index, count in enumerate(run["train_acc"]):
        steps = steps_of(round(float(policy.setting(state, 0).sampling_rate) * EXAMPLES))
        granted, _, state, budget = epoch(policy, steps, state, budget, count, (index + 1) % every == 0)
        chosen = policy.setting(state, 0)
        yield bool(granted), float(chosen.noise_multiplier), float(chosen.sampling_rate) * EXAMPLES


def steps_of(batch_size):
    return -(-390 // (int(batch_size) // 128))  # 390 batches of 128 an epoch; what remains is a step, too


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("adapt_noise")])
def test_adaptive_noise_schedule_is_the_recorded_one(name):
    run = RUNS[name]
    policy = AdaptiveNoise(sampling_rate=512 / EXAMPLES, increment=0.1, period=970, lookahead=LOOKAHEAD)
    chosen = list(replay(policy, run, 10, steps_of))
    np.testing.assert_allclose([noise for _, noise, _ in chosen], run["sigma"], rtol=1e-6)
    refused = [index for index, (granted, _, _) in enumerate(chosen) if not granted]
    assert not refused or refused[0] >= len(chosen) - 2


@pytest.mark.first_tier("adapt_batch_1")
@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("adapt_batch")])
def test_adaptive_batch_sizes_are_the_recorded_ones(name):
    run = RUNS[name]
    policy = AdaptiveBatchSize(
        noise_multiplier=1.0, num_examples=EXAMPLES, increment=128, period=970, lookahead=LOOKAHEAD
    )
    chosen = list(replay(policy, run, 10, steps_of))
    np.testing.assert_allclose([size for _, _, size in chosen], run["batch_size"], rtol=1e-6)
    refused = [index for index, (granted, _, _) in enumerate(chosen) if not granted]
    assert not refused or refused[0] >= len(chosen) - 2


FINE_TUNING_ORDERS = (*(2 + i / 4 for i in range(1, 33)), 16.0, 32.0)


def odometer_readings(sigmas, **base):
    """The paper's odometer after each epoch of 98 steps, the noise of an epoch being the one recorded before it."""
    odometer = RenyiOdometer(DELTA, FINE_TUNING_ORDERS, **base)
    readings = []
    for noise in sigmas:
        _, odometer = odometer.spend(PoissonSubsampledGaussian(noise, 512 / EXAMPLES), 98)
        _, odometer = odometer.spend(Gaussian(100.0))
        readings.append(float(odometer.epsilon()))
    return np.array(readings)


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("fine_tune")])
def test_fine_tuning_noise_is_the_recorded_one(name):
    run = RUNS[name]
    policy = AdaptiveNoise(sampling_rate=512 / EXAMPLES, initial=2.0, increment=0.1, period=97, may_rise=False)
    state, chosen = policy.start(None), []
    for count in run["train_acc"]:
        state = policy.adapt(state, None, 0, count)
        chosen.append(float(policy.setting(state, 0).noise_multiplier))
    np.testing.assert_allclose(chosen, run["sigma"], rtol=1e-6)


def test_the_papers_fine_tuning_numbers():
    # sigma = 1, 98 steps an epoch: 50 epochs cost 5.76 planned in advance, by Mironov's rule at these orders.
    step = PoissonSubsampledGaussian(1.0, 512 / EXAMPLES)
    planned = rdp.epsilon(step, 50 * 98, DELTA, orders=list(FINE_TUNING_ORDERS), conversion="mironov")
    assert planned == pytest.approx(5.76, abs=0.005)
