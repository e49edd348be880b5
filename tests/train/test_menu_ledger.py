"""A run that is paid for by a menu: what it chooses is charged, and goes farther than by Rényi divergences."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers.interrupted import ADAPTIVE, assert_same, make, resumed, run_until_killed

import jaxacct as ja
from jaxacct.filters import MenuFilter, RenyiFilter
from jaxacct.odometers import MenuOdometer
from jaxacct.policies import EarlyStopping, Schedule
from jaxacct.train import Checkpoints, build_report, guarantee

POLICY = dataclasses.replace(ADAPTIVE["policy"], least=2.5, most=3.5)
QUERY = ja.Gaussian(20.0)
SETTINGS = ADAPTIVE | {"policy": POLICY, "ledger": None}


@pytest.fixture(scope="module")
def trainer():
    return make(**SETTINGS)


def items_of(trainer):
    """What its menu has; of equal items a menu is certified once."""
    return tuple(item.mechanism for item in trainer.menu.items)


@pytest.mark.exhaustive
def test_a_policy_that_knows_its_choices_is_paid_for_by_a_menu(trainer):
    assert trainer.ledger_kind == "menu"
    choices = POLICY.choices
    assert [noise for noise, _ in choices] == [2.5, 3.0, 3.5]
    assert len(trainer.menu.items) == len(choices) + 1
    assert trainer.menu.items[-1].mechanism == QUERY
    assert f"{trainer.menu.items[0].count} for" in str(trainer.menu)


@pytest.mark.exhaustive
def test_what_is_chosen_is_what_is_charged(trainer):
    chosen = []
    trainer = make(**SETTINGS)
    before = MenuFilter.of(trainer.menu)
    trainer.fit(7, every=1, on_evaluation=lambda entry: chosen.append(trainer.noise_multiplier))
    noises = [3.0, *chosen[:-1]]
    by_hand = before
    for step, noise in enumerate(noises, 1):
        granted, by_hand = by_hand.spend(trainer.sampler.mechanism(np.float32(noise)))
        assert granted
        if step % POLICY.period == 0:
            granted, by_hand = by_hand.spend(QUERY)
            assert granted
    jax.tree.map(np.testing.assert_array_equal, trainer.state.ledger.state, by_hand.state)
    assert trainer.spent_epsilon == trainer.epsilon == 4.0
    left = RenyiFilter(4.0, trainer.delta_for_accounting).remaining(trainer.sampler.mechanism(3.0))
    assert int(before.remaining(trainer.sampler.mechanism(3.0))) > 1.2 * int(left)


@pytest.mark.exhaustive
def test_it_is_taken_up_with_the_same_bits(tmp_path):
    whole, again = make(**SETTINGS), make(**SETTINGS)
    whole.fit(12, every=2)
    run_until_killed(make(**SETTINGS), tmp_path / "run", 4, every=2)
    resumed(again, tmp_path / "run", every=2)
    assert_same(whole, again)
    other = make(**SETTINGS | {"policy": dataclasses.replace(POLICY, period=4)})  # of the same choices
    with pytest.raises(ValueError, match="policy"):
        Checkpoints(tmp_path / "run", every=2).resume(other)


@pytest.mark.exhaustive
def test_the_report_tells_the_menu(trainer):
    report = build_report(trainer, [])
    menu = report["config"]["menu"]
    assert menu["budget"] == trainer.menu.budget
    assert menu["sha256"] == trainer.menu.fingerprint()
    assert json.loads(json.dumps(menu))["items"][0]["cost"] == trainer.menu.items[0].cost
    assert "menu filter's budget" in guarantee(trainer)


@pytest.mark.exhaustive
def test_an_odometer_of_a_menu_ends_before_it_reads_more_than_epsilon(trainer):
    policy = EarlyStopping(POLICY, period=3, query_noise=20.0, patience=1000)
    trainer = make(**SETTINGS | {"policy": policy, "menu": items_of(trainer), "ledger": "odometer"})
    assert isinstance(trainer.state.ledger, MenuOdometer)
    history = trainer.fit(6, every=3)
    assert 0 < history[0].epsilon < history[1].epsilon < trainer.epsilon
    assert "odometer" in guarantee(trainer)


@pytest.mark.exhaustive
def test_what_does_not_say_what_it_chooses_asks_for_a_menu(trainer):
    policy = Schedule(lambda step: 3.0 - 0.01 * step, 0.2)
    options = {"noise_multiplier": None, "expected_batch_size": None, "policy": policy}
    assert make(**options).ledger_kind == "filter"
    with pytest.raises(ValueError, match=r"ledger = 'menu'.*Schedule.*menu="):
        make(**options, ledger="menu")
    items = items_of(trainer)
    trainer = make(**options, menu=items)
    assert trainer.ledger_kind == "menu"
    trainer.fit(3)
    # The first as 3, and what is just below that as 2.5.
    ledger = MenuFilter.of(trainer.menu)
    _, ledger = ledger.spend(items[1])
    _, ledger = ledger.spend(items[0], 2)
    jax.tree.map(np.testing.assert_array_equal, trainer.state.ledger.state, ledger.state)
    with pytest.raises(ValueError, match="menu is given"):
        make(menu=items, ledger="filter")


def test_levels_without_end_are_paid_for_as_the_last_choice():
    choices = dataclasses.replace(POLICY, most=float("inf")).choices
    assert len(choices) <= 12
    assert [noise for noise, _ in choices[:5]] == [2.5, 3.0, 3.5, 4.0, 4.5]
    assert choices[-1][0] > 8


@pytest.mark.exhaustive
def test_the_place_of_an_item_may_be_traced(trainer):
    before = MenuFilter.of(trainer.menu)
    number = len(trainer.menu.items)
    spend = jax.jit(lambda place: before.spend(place))
    for place in range(number):
        granted, after = spend(place)
        assert granted
        jax.tree.map(np.testing.assert_array_equal, after.state, before.spend(np.int64(place))[1].state)
    assert not any(spend(place)[0] for place in (-1, number, 2**31 - 1, np.uint8(255)))
    for wrong in (0.0, True):
        with pytest.raises(TypeError, match="one whole number"):
            spend(wrong)
    with pytest.raises(ValueError, match=f"item = {number}"):
        before.spend(jax.numpy.int32(number))
