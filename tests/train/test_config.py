"""Configurations of a run: each kind has its own settings, and gives the budget that the trainer's keywords give."""

import dataclasses
import inspect

import numpy as np
import optax
import pytest
from flax import nnx

import jaxacct as ja
from jaxacct.filters import MenuFilter, RenyiFilter
from jaxacct.odometers import MenuOdometer, VilleOdometer
from jaxacct.policies import AdaptiveNoise, Constant, Schedule
from jaxacct.train import (
    DPTrainer,
    FilteredRun,
    MenuRun,
    OpenRun,
    PlannedRun,
    PoissonSampler,
    PrivateGradients,
    RandomAllocationSampler,
)
from jaxacct.train.config import KEYWORDS, TrainerRun, run_of
from jaxacct.train.gradients import MOST_ENTRIES
from jaxacct.train.planned import PlannedLedger

SIZE = 100
BUDGET = {"epsilon": 2.0, "delta": 1e-3}
NOISE = {**BUDGET, "noise_multiplier": 3.0, "expected_batch_size": 20}
CHOICES = AdaptiveNoise(sampling_rate=0.2, initial=4.0, increment=1.0, least=3.0, most=5.0, period=5, query_noise=50.0)
ITEMS = ((ja.PoissonSubsampledGaussian(3.0, 0.25), 1),)

KINDS = {
    "planned": (PlannedRun(**BUDGET, epochs=2, expected_batch_size=20), PlannedLedger),
    "filtered": (FilteredRun(**NOISE), RenyiFilter),
    "schedule": (FilteredRun(**BUDGET, policy=Schedule(lambda step: 3.0 + step, 0.2)), RenyiFilter),
    "odometer": (FilteredRun(**NOISE, odometer=True), VilleOdometer),
    "menu": (MenuRun(**BUDGET, policy=CHOICES), MenuFilter),
    "menu of one": (MenuRun(**NOISE), MenuFilter),
    "odometer of a menu": (MenuRun(**NOISE, menu=ITEMS, odometer=True), MenuOdometer),
}


def make(**settings):
    x, y = np.ones((SIZE, 2), np.float32), np.ones(SIZE, np.float32)
    return DPTrainer(
        nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda model, x, y: ((model(x) - y) ** 2).sum(), optax.sgd(0.1), (x, y),
        clip_norm=1.0, seed=0, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_its_ledger_and_keywords_mean_it(name):
    run, ledger = KINDS[name]
    budget = run.resolve(SIZE)
    assert isinstance(budget.ledger, ledger)
    assert (budget.plan is not None) == (name == "planned")
    assert 0 < budget.delta_for_accounting < budget.delta == 1e-3
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name != "odometer"}
    assert run_of(ledger=budget.kind, **fields) == run
    assert run_of(run) is run


def test_keywords_of_the_trainer_are_the_fields_of_the_kinds():
    """They stand in the signature for its users, and nowhere else but in the kinds."""
    signature = inspect.signature(DPTrainer.__init__).parameters
    assert signature.keys() >= KEYWORDS
    for kind in TrainerRun.__args__:
        for field in dataclasses.fields(kind):
            if field.name != "odometer":
                assert signature[field.name].default == field.default
    everything = {name: parameter.default for name, parameter in signature.items() if name in KEYWORDS}
    with pytest.raises(TypeError, match="delta missing"):
        run_of(**everything)


def test_a_trainer_takes_a_configuration_in_place_of_keywords():
    run, _ = KINDS["planned"]
    by_run, by_keywords = make(run=run), make(**BUDGET, epochs=2, expected_batch_size=20)
    assert by_run.plan is by_keywords.plan
    for trainer in (by_run, by_keywords):
        trainer.fit(2)
    np.testing.assert_array_equal(by_run.model.kernel[...], by_keywords.model.kernel[...])
    with pytest.raises(ValueError, match="run and epsilon are both given: a PlannedRun has"):
        make(run=run, epsilon=1.0)
    with pytest.raises(TypeError, match="run is a OpenRun: give a PlannedRun, a FilteredRun or a MenuRun"):
        make(run=OpenRun(RenyiFilter(1.0, 1e-5), PoissonSampler(SIZE, 0.2, SIZE + 1)))


def test_a_loop_of_ones_own_takes_the_same_configurations():
    run, _ = KINDS["planned"]
    private = PrivateGradients.from_run(run, None, SIZE, clip_norm=1.0)
    assert private.plan is run.resolve(SIZE, MOST_ENTRIES + 2).plan
    ledger, sampler = RenyiFilter(1.0, 1e-5), PoissonSampler(SIZE, 0.2, SIZE + 1)
    private = PrivateGradients.from_run(OpenRun(ledger, sampler), None, SIZE, clip_norm=1.0)
    assert private.ledger is ledger
    assert private.sampler is sampler
    with pytest.raises(TypeError, match="run is a FilteredRun: give a PlannedRun, or an OpenRun"):
        PrivateGradients.from_run(KINDS["filtered"][0], None, SIZE, clip_norm=1.0)


WRONG = {
    "length of no plan": ({**NOISE, "ledger": "filter", "epochs": 2}, ValueError, "epochs = 2 is of a planned run"),
    "three of three": ({**NOISE, "steps": 9}, ValueError, "epsilon = 2.0, noise_multiplier = 3 and steps = 9 are all"),
    "one of three": ({**BUDGET, "expected_batch_size": 20}, ValueError, "give exactly one of noise_multiplier and"),
    "no budget": ({"delta": 1e-3, "noise_multiplier": 3.0, "sampling_rate": 0.2}, TypeError, "epsilon missing"),
    "menu and filter": ({**NOISE, "menu": ITEMS, "ledger": "filter"}, ValueError, "menu is given, and the ledger is"),
    "two sizes": ({**BUDGET, "policy": CHOICES, "sampling_rate": 0.2}, ValueError, "policy has its own sampling rate"),
    "planned policy": ({**BUDGET, "policy": CHOICES, "ledger": "planned"}, ValueError, "policy = AdaptiveNoise: what"),
    "no choices": (
        {**BUDGET, "policy": Schedule(lambda step: 3.0, 0.2), "ledger": "menu"}, ValueError, "does not say among",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_configuration_is_refused_before_any_data(name):
    keywords, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        run_of(**keywords)


def test_a_constant_policy_is_planned_by_its_numbers():
    run = run_of(**BUDGET, policy=Constant(3.0, 0.2))
    assert run == PlannedRun(**BUDGET, noise_multiplier=3.0, sampling_rate=0.2)


def test_an_open_run_is_paid_for_step_by_step():
    with pytest.raises(ValueError, match="sampler draws runs of 5 steps"):
        OpenRun(RenyiFilter(1.0, 1e-5), RandomAllocationSampler(200, 5, 110))
    with pytest.raises(TypeError, match="ledger is a PlannedLedger, which does not pay for noise that is chosen"):
        OpenRun(PlannedLedger.of(3, certified=1.0), PoissonSampler(SIZE, 0.2, SIZE + 1))
