"""Tests of spending with each sampler, source and clipping rule, against a ledger by hand; fine-tuning; refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.shared import SGD, WHOLE, sharing
from helpers.thorough import cases

from jaxacct.filters import RenyiFilter
from jaxacct.mechanisms import (
    GaussianWithoutReplacement,
    PoissonSubsampledGaussian,
    RandomAllocation,
    TruncatedPoissonGaussian,
)
from jaxacct.odometers import VilleOdometer
from jaxacct.train import DPTrainer
from jaxacct.train.clipping import AdaptiveQuantile, PerLayer
from jaxacct.train.sampling import (
    PoissonSampler,
    RandomAllocationSampler,
    TruncatedPoissonSampler,
    WithoutReplacementSampler,
    runs_of,
)
from jaxacct.train.sources import IndexedSource

EXAMPLES, EPOCH, NOISE, EPSILON, DELTA = 100, 5, 4.0, 3.0, 1e-3

rng = np.random.default_rng(0)
INPUTS = rng.normal(size=(EXAMPLES, 3)).astype(np.float32)
DATA = (INPUTS, INPUTS[:, :1])

SAMPLERS = {
    "poisson": PoissonSampler(EXAMPLES, 0.25, 80),
    "truncated": TruncatedPoissonSampler(EXAMPLES, 0.25, 30),
    "without replacement": WithoutReplacementSampler(EXAMPLES, 25),
    "random allocation": RandomAllocationSampler(EXAMPLES, EPOCH, 80),
}
MECHANISMS = {
    "poisson": PoissonSubsampledGaussian(NOISE, 0.25),
    "truncated": TruncatedPoissonGaussian.for_batches(NOISE, 0.25, (EXAMPLES, EXAMPLES + 1), 30),
    "without replacement": GaussianWithoutReplacement(NOISE, 0.25),
    "random allocation": RandomAllocation(NOISE, EPOCH),
}


def squared_error(model, x, y):
    return jnp.sum((model(x) - y) ** 2)


def linear():
    return nnx.Linear(3, 1, rngs=nnx.Rngs(0))


def trainer_with(model=None, data=DATA, loss=squared_error, optimizer=None, **options):
    settings = {"epsilon": EPSILON, "delta": DELTA, "noise_multiplier": NOISE, "seed": 1, "ledger": "filter"} | options
    settings.setdefault("clip_norm", 1.0)
    if "sampler" not in settings:
        settings.setdefault("sampling_rate", 0.25)
    return sharing(DPTrainer(model or linear(), loss, optimizer or SGD, data, **settings))


@functools.cache
def run_of(name):
    trainer, spent = trainer_with(sampler=SAMPLERS[name]), []
    trainer.fit(EPOCH + 2, every=1, on_evaluation=lambda entry: spent.append(entry.epsilon))
    return trainer, spent


def same_bits(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(bits(a), bits(b)) for a, b in pairs)


def bits(leaf):
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


@pytest.mark.first_tier("poisson")
@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_spent_is_that_of_the_mechanism_by_hand(name):
    trainer, spent = run_of(name)
    relation = "replace" if name == "without replacement" else "add_or_remove"
    fresh = RenyiFilter(EPSILON, trainer.delta_for_accounting)
    curve = fresh.cost(MECHANISMS[name], relation=relation)
    for step, epsilon in enumerate(spent, 1):
        runs = -(-step // EPOCH) if name == "random allocation" else step
        assert runs == runs_of(SAMPLERS[name], step)
        assert epsilon == pytest.approx(float(fresh.spend_cost(curve, runs)[1].epsilon()), rel=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SAMPLERS)
def test_cut_batches_are_paid_for_in_delta(name):
    trainer, _ = run_of(name)
    cost = SAMPLERS[name].overflow_delta(trainer.horizon, EPSILON)
    assert trainer.delta_for_accounting <= DELTA - cost
    assert trainer.delta_for_accounting == pytest.approx(DELTA - cost, rel=1e-12)
    assert trainer.horizon >= trainer.steps + trainer.remaining_steps


@pytest.mark.exhaustive
def test_random_allocation_pays_at_the_first_step_of_an_epoch():
    _, spent = run_of("random allocation")
    assert spent[:EPOCH] == [spent[0]] * EPOCH
    assert spent[EPOCH:] == [spent[EPOCH]] * 2
    assert spent[EPOCH] > spent[0] > 0


@pytest.mark.exhaustive
def test_random_allocation_ends_with_whole_epochs_all_of_them_paid():
    trainer = trainer_with(sampler=SAMPLERS["random allocation"], epsilon=1.5)
    trainer.fit(2)
    promised = trainer.remaining_steps
    trainer.fit()
    assert trainer.steps == promised + 2
    assert trainer.steps % EPOCH == 0 < trainer.steps
    fresh = RenyiFilter(1.5, trainer.delta_for_accounting)
    assert fresh.spend(MECHANISMS["random allocation"], trainer.steps // EPOCH)[0]
    assert not fresh.spend(MECHANISMS["random allocation"], trainer.steps // EPOCH + 1)[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", cases(["random allocation"], ["poisson"]))
def test_data_read_by_index_gives_the_same_run_bit_for_bit(name):
    trainer = trainer_with(sampler=SAMPLERS[name], data=IndexedSource(DATA))
    trainer.fit(3)
    trainer.fit(EPOCH - 1)
    assert same_bits(trainer.state, run_of(name)[0].state)


@pytest.mark.exhaustive
def test_a_refused_step_on_data_read_by_index_leaves_the_state_bit_for_bit():
    trainer = trainer_with(data=IndexedSource(DATA), ledger="odometer", epsilon=1.0)
    trainer.fit()
    before = trainer.state
    assert trainer.steps > 3
    assert trainer.fit() == []
    assert same_bits(before, trainer.state)
    odometer = VilleOdometer(trainer.delta_for_accounting)
    curve = odometer.cost(MECHANISMS["poisson"])
    first, second = (odometer.spend_cost(curve, trainer.steps + more)[1].epsilon() for more in (0, 1))
    assert first <= 1.0 < second


PARAMETERS = 20_000


def noise_only(**options):
    """A trainer whose steps move the parameters by their noise alone."""
    model = nnx.Linear(3, PARAMETERS, use_bias=False, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    return trainer_with(model, loss=lambda model, x, y: 0.0 * jnp.sum(model(x)), optimizer=WHOLE, **options)


def test_adaptive_quantile_accounts_for_the_sum_and_the_count_together():
    """The sum has more noise than the step costs: 1/z^2 = 1/z_g^2 + 1/(2 s)^2, with z accounted and z_g seen."""
    rule = AdaptiveQuantile(0.5, count_noise=2.5)
    trainer = noise_only(clip_norm=rule)
    seen, before = [], np.zeros((3, PARAMETERS), np.float32)
    for _ in range(3):
        clip_norm = trainer.clip_norm
        trainer.fit(1)
        after = np.asarray(jax.tree.leaves(trainer.state.params)[0])
        seen.append(np.std(after - before) * 25 / clip_norm)
        before = after
    assert trainer.clip_norm != rule.clip_norm
    on_the_sum = (1 / NOISE**2 - 1 / (2 * 2.5) ** 2) ** -0.5
    assert on_the_sum > 1.5 * NOISE
    np.testing.assert_allclose(seen, on_the_sum, rtol=5 / np.sqrt(6 * PARAMETERS))
    by_hand = RenyiFilter(EPSILON, trainer.delta_for_accounting)
    _, by_hand = by_hand.spend(MECHANISMS["poisson"], steps=3)
    assert trainer.spent_epsilon == pytest.approx(float(by_hand.epsilon()), rel=1e-9)


def test_noise_is_in_units_of_the_rules_sensitivity():
    """One example may use the norms of both layers: 0.3 and 0.4 make 0.5."""
    model = nnx.Linear(1, PARAMETERS, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    trainer = trainer_with(
        model,
        loss=lambda model, x, y: 0.0 * jnp.sum(model(x[:1])),
        optimizer=WHOLE,
        clip_norm=PerLayer.of({"kernel": 0.3, "bias": 0.4}),
    )
    trainer.fit(1)
    moved = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trainer.state.params)])
    assert np.std(moved) * 25 == pytest.approx(NOISE * 0.5, rel=5 / np.sqrt(4 * PARAMETERS))


def test_frozen_parameters_stay_bit_for_bit():
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 1, rngs=nnx.Rngs(1)))
    whole = [bits(leaf) for leaf in jax.tree.leaves(nnx.state(model))]
    trainer = trainer_with(model, trainable="layers/1")
    trainer.fit(4)
    frozen, trained = (nnx.state(trainer.model.layers[i]) for i in (0, 1))
    assert same_bits(nnx.state(model.layers[0]), frozen)
    assert all(
        np.all(bits(a) != bits(b))
        for a, b in zip(jax.tree.leaves(nnx.state(model.layers[1])), jax.tree.leaves(trained), strict=True)
    )
    assert same_bits(whole, nnx.state(model))
    assert sum(leaf.size for leaf in jax.tree.leaves(trainer.state.params)) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": SAMPLERS["poisson"], "sampling_rate": 0.1}, "sampler has its own.*sampling_rate"),
        ({"sampler": SAMPLERS["poisson"], "expected_batch_size": 10}, "sampler has its own.*expected_batch_size"),
        ({"sampling_rate": None}, "exactly one of sampling_rate and expected_batch_size"),
        ({"sampler": WithoutReplacementSampler(99, 25)}, "sampler is for 99 examples"),
        ({"sampler": PoissonSampler(EXAMPLES, 0.25, 30)}, "sampler cuts batches.*larger capacity"),
        ({"clip_norm": None}, "clip_norm missing"),
        ({"clip_norm": AdaptiveQuantile(1.0, count_noise=1.0)}, "noise_multiplier = 4.0.*count_noise = 1.0"),
        ({"trainable": "output"}, "trainable = 'output'"),
        ({"trainable": lambda path, value: False}, "trainable = .*leaves no parameter"),
        ({"ledger": "both"}, "ledger = 'both'"),
    ],
)
def test_contradictory_settings(options, words):
    with pytest.raises(ValueError, match=words):
        trainer_with(**options)


@pytest.mark.exhaustive
def test_every_sampler_is_refused_where_its_first_run_costs_too_much():
    for sampler in SAMPLERS.values():
        with pytest.raises(ValueError, match=r"noise_multiplier = 0\.5.*no step"):
            trainer_with(sampler=sampler, noise_multiplier=0.5, epsilon=0.01)
