"""Planned budgets: all of epsilon is spent and no more, wherever a run stops, is killed, or is interrupted."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers.interrupted import Killed, assert_same, killed_at, make, resumed, spends
from scipy.stats import norm

import jaxacct as ja
from jaxacct.policies import Constant, Schedule
from jaxacct.train import (
    Checkpoints,
    Plan,
    PoissonSampler,
    RandomAllocationSampler,
    ShortRunWarning,
    SideQuery,
    build_report,
    certified_epsilon,
    guarantee,
)
from jaxacct.train.config import PlannedRun
from jaxacct.train.planned import PlannedLedger, least_delta_of_a_step, plan

DELTA = 1e-5


def poisson(size, rate, delta=DELTA):
    return lambda epsilon, steps: PoissonSampler.for_budget(size, rate, epsilon=epsilon, delta=delta, steps=steps)


def certified_by_hand(made):
    """Delta of what is run, at the epsilon that is claimed, and what cut batches add to it at that epsilon."""
    mechanism = made.sampler.mechanism(made.noise_multiplier)
    steps = -(-made.steps // made.sampler.steps_per_run)
    queries = [(query.mechanism, -(-made.steps // query.every)) for query in made.queries]
    mechanisms, counts = zip((mechanism, steps), *queries, strict=True)
    of_runs = ja.delta(mechanisms, counts, made.epsilon, relation=made.sampler.relation).upper
    cut = made.sampler.overflow_delta(steps * made.sampler.steps_per_run, made.epsilon)
    return float(of_runs) + cut


@pytest.mark.first_tier("3.0")
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_a_plan_spends_its_budget_and_no_more(epsilon):
    made = plan(poisson(60_000, 0.01), DELTA, epsilon=epsilon, steps=3000)
    assert 0.999 * epsilon <= made.certified.upper <= epsilon
    assert made.certified.lower >= 0.999 * epsilon
    assert certified_by_hand(made) <= DELTA
    assert 0 < made.overflow_delta < 1e-3 * DELTA
    # The noise before rounding is within 1e-5 of the least: a little less is refuted.
    less = ja.PoissonSubsampledGaussian(made.noise_multiplier * (1 - 1e-4), made.sampler.sampling_rate)
    assert ja.delta(less, 3000, epsilon).lower > made.delta_for_accounting


def test_what_one_step_shows_is_below_its_delta():
    """What refuses a noise before any accountant is asked: below delta, and near it where noise is small."""
    rng = np.random.default_rng(5)
    for rate, epsilon in zip(10 ** rng.uniform(-4, 0, 8), rng.uniform(0, 4, 8), strict=True):
        for noise, tight in ((0.05, True), (0.2, False), (0.6, False)):
            shown = least_delta_of_a_step(rate, noise, epsilon)
            # An event for each threshold on the noisy sum; no delta is below any of them.
            places = np.linspace(-2, 3, 2001)
            without = norm.sf(places / noise)
            with_it = (1 - rate) * without + rate * norm.sf((places - 1) / noise)
            best = np.max(with_it - np.exp(epsilon) * without, initial=0.0)
            assert shown <= best * (1 + 1e-9)
            assert not tight or shown >= 0.999 * best
    assert least_delta_of_a_step(0.5, 1e-9, 1e25) == 0.0  # the loss is at most 5e17
    assert least_delta_of_a_step(0.25, 0.0, 800.0) == pytest.approx(0.25, rel=1e-9)
    with pytest.raises(ValueError, match="pays for no step"):
        plan(poisson(60_000, 0.01), DELTA, epsilon=3.0, noise_multiplier=0.05)


def test_two_of_three_agree():
    first = plan(poisson(60_000, 0.01), DELTA, epsilon=3.0, steps=3000)
    steps = plan(poisson(60_000, 0.01), DELTA, epsilon=3.0, noise_multiplier=first.noise_multiplier)
    epsilon = plan(poisson(60_000, 0.01), DELTA, noise_multiplier=first.noise_multiplier, steps=3000)
    assert steps.steps in (3000, 2999)
    assert 2.999 <= epsilon.certified.upper <= epsilon.epsilon <= 3.0
    for made in (steps, epsilon):
        assert certified_by_hand(made) <= DELTA
    table = str(first)
    for words in ("noise multiplier", "0.01", "3000", "2.9999", "at delta 1e-05", "Rényi", "overflow"):
        assert words in table
    assert first.renyi_epsilon > first.certified.upper


@pytest.mark.exhaustive
def test_side_queries_are_part_of_the_plan():
    query = SideQuery(ja.Gaussian(100.0), every=100)
    bare = plan(poisson(60_000, 0.01), DELTA, epsilon=3.0, steps=3000)
    made = plan(poisson(60_000, 0.01), DELTA, epsilon=3.0, steps=3000, queries=(query,))
    assert made.noise_multiplier > bare.noise_multiplier
    assert 0.999 * 3.0 <= made.certified.upper <= 3.0
    assert certified_by_hand(made) <= DELTA
    assert "30 times" in str(made)
    # Whenever they were released: of ten steps alone all of them are counted.
    assert made.composition(10)[1] == (10, 30)
    with pytest.raises(ValueError, match=r"pays for no|above|not certified"):
        plan(poisson(60_000, 0.01), DELTA, epsilon=3.0, noise_multiplier=1.0, queries=(SideQuery(ja.Gaussian(0.1)),))


@pytest.mark.exhaustive
def test_a_plan_is_solved_once_and_no_other_is_taken_for_it():
    run = PlannedRun(epsilon=2.0, delta=1e-3, epochs=2, expected_batch_size=40)
    made = run.resolve(200).plan
    assert dataclasses.replace(run).resolve(200).plan is made
    assert made.certified == plan(poisson(200, 0.2, 1e-3), 1e-3, epsilon=2.0, steps=10).certified
    others = [
        dataclasses.replace(run, epochs=None, steps=11).resolve(200),
        dataclasses.replace(run, delta=2e-3).resolve(200),
        dataclasses.replace(run, expected_batch_size=80).resolve(400),
        dataclasses.replace(run, expected_batch_size=None, sampler=made.sampler).resolve(200),
        dataclasses.replace(run, queries=(SideQuery(ja.Gaussian(9.0)),)).resolve(200),
    ]
    assert all(other.plan is not made for other in others)
    assert all(other.plan != made for other in others[:2])


def test_epochs_that_are_begun_are_planned_as_whole_ones():
    sampler, nothing = RandomAllocationSampler(200, 5, 110), ja.Bounds(0.0, 0.0, 0.0)
    made = Plan(sampler=sampler, noise_multiplier=3.0, steps=12, epsilon=1.0, delta=1e-3, certified=nothing)
    assert made.runs == 3
    assert made.composition() == (sampler.mechanism(3.0), 3)
    assert made.overflow_delta == sampler.overflow_delta(15, 1.0)


def test_a_ledger_grants_the_plan_and_not_one_run_more():
    ledger = PlannedLedger.of(3, certified=0.7)
    assert float(ledger.epsilon()) == 0.0
    spend = jax.jit(lambda ledger, runs: ledger.spend(runs))
    for runs, granted, made in ((0, True, 0), (2, True, 2), (2, False, 2), (-1, False, 2), (1, True, 3), (1, False, 3)):
        answer, ledger = spend(ledger, runs)
        assert (bool(answer), int(ledger.made)) == (granted, made)
    assert float(ledger.epsilon()) == 0.7
    assert int(ledger.remaining()) == 0
    for count in (-5, 9, 2**31 - 1):  # a count that no run of the plan leads to
        assert not PlannedLedger(np.int32(count), 3, 0.7).spend(1)[0]


def trainer_of(**options):
    return make(**{"noise_multiplier": None, "epochs": 2} | options)


def test_a_run_makes_its_plan_and_may_stop_before():
    trainer = trainer_of()
    assert (trainer.plan.steps, trainer.remaining_steps, trainer.spent_epsilon) == (10, 10, 0.0)
    with pytest.warns(ShortRunWarning, match="10 of the 12 steps .* its plan is of 10"):
        trainer.fit(12)
    assert trainer.steps == 10
    assert 0.999 * 4.0 <= trainer.spent_epsilon == certified_epsilon(trainer).upper <= 4.0
    assert trainer.foreseen(1) == (trainer.state.ledger, 0)
    early = trainer_of()
    early.fit(4)
    assert certified_epsilon(early).upper < trainer.spent_epsilon  # of the four: their number was fixed
    assert "realized number of steps" in guarantee(early)
    early.fit(2)
    bounds = certified_epsilon(early)
    assert bounds.upper == trainer.spent_epsilon  # of the plan: who knows why it went on
    assert bounds.lower < 0.9 * bounds.upper
    assert "what was seen of the model decided when to stop" in guarantee(early)
    assert build_report(early, [])["final"]["epsilon_certified"]["upper"] == bounds.upper


@pytest.mark.exhaustive
def test_a_trainer_pays_for_what_its_user_releases_beside_the_steps():
    trainer = trainer_of(queries=(SideQuery(ja.Gaussian(20.0), every=10),))
    assert trainer.noise_multiplier > trainer_of().noise_multiplier
    assert 0.999 * 4.0 <= trainer.spent_epsilon == trainer.plan.certified.upper <= 4.0  # released already, perhaps
    bounds = certified_epsilon(trainer)
    assert bounds.lower == 0.0
    assert bounds.upper >= ja.epsilon(ja.Gaussian(20.0), 1, trainer.delta).lower
    assert "Gaussian(noise_multiplier=20.0), 1 times" in guarantee(trainer)
    with pytest.raises(ValueError, match="of a planned run, and the ledger is 'filter'"):
        make(ledger="filter", epsilon=1.0, queries=trainer.plan.queries)


@pytest.mark.first_tier("filter")
@pytest.mark.parametrize("ledger", ["filter", "odometer"])
def test_an_end_that_was_not_planned_is_certified_by_the_ledger_alone(ledger):
    trainer = make(ledger=ledger, epsilon=4.0)
    trainer.fit(2)
    of_steps = certified_epsilon(trainer)
    trainer.fit(1)  # who knows why
    bounds = certified_epsilon(trainer)
    assert bounds.upper == (4.0 if ledger == "filter" else trainer.spent_epsilon)
    assert of_steps.upper < bounds.lower < bounds.upper


def test_a_filter_that_stops_short_says_so():
    trainer = make(ledger="filter", epsilon=1.0)
    with pytest.warns(ShortRunWarning, match="of the 1000 steps .*noise_multiplier"):
        trainer.fit(1000)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"epsilon": 4.0}, ValueError, "epsilon = 4.0, noise_multiplier = 3 and epochs = 2 are all given"),
        ({"epsilon": None, "epochs": None}, TypeError, "epsilon missing.*epochs or steps"),
        ({"noise_multiplier": None, "epochs": None}, ValueError, "exactly one of noise_multiplier and policy.*epochs"),
        ({"noise_multiplier": None, "steps": 5}, ValueError, "steps = 5 and epochs = 2 are both given"),
        ({"noise_multiplier": None, "ledger": "filter"}, ValueError, "exactly one of noise_multiplier"),
        ({"ledger": "odometer"}, ValueError, "epochs = 2 is of a planned run, and the ledger is 'odometer'"),
        ({"noise_multiplier": None, "epochs": 0}, ValueError, "epochs = 0"),
        ({"noise_multiplier": None, "epochs": None, "steps": 2.5}, TypeError, "steps = 2.5"),
        ({"epsilon": None, "noise_multiplier": 0.0}, ValueError, "no finite epsilon"),
        (
            {"noise_multiplier": None, "expected_batch_size": None, "epochs": None, "ledger": "planned",
             "policy": Schedule(lambda step: 3.0, 0.2)},
            ValueError, "policy = Schedule",
        ),
    ],
)  # fmt: skip
def test_too_little_and_too_much_are_named(options, kind, words):
    with pytest.raises(kind, match=words):
        make(**{"epochs": 2} | options)


def test_a_constant_policy_is_planned():
    options = {"noise_multiplier": None, "expected_batch_size": None, "policy": Constant(3.0, 0.2)}
    assert make(**options).plan == make().plan
    solved = make(**options, epsilon=None, steps=10)
    assert solved.epsilon == solved.plan.epsilon < 4.0


@functools.cache
def undisturbed():
    """Returns a trainer after four epochs, which nobody trains on."""
    trainer = trainer_of(epochs=4)
    trainer.fit(every=2)
    return trainer


@pytest.mark.exhaustive
def test_a_planned_run_that_is_killed_again_and_again_is_the_one_that_nobody_killed(tmp_path):
    """After an evaluation, whose steps have no checkpoint; bench/studies/crash.py kills processes, anywhere."""
    whole, folder, kills = undisturbed(), tmp_path / "run", 0
    for step in (2, 6, 6, 18):
        trainer, keeper = trainer_of(epochs=4), Checkpoints(folder, every=4)
        left = keeper.resume(trainer) if keeper.holds_run else None
        with pytest.raises(Killed):
            trainer.fit(
                left, every=2, on_evaluation=killed_at(step if trainer.steps < step else step + 2), keeper=keeper
            )
        keeper.close()
        kills += 1
        assert spends(folder)["epsilon"] == whole.plan.certified.upper
    again = trainer_of(epochs=4)
    resumed(again, folder)
    assert kills == 4
    assert_same(again, whole)
    assert again.stopping_was_planned
    assert certified_epsilon(again) == certified_epsilon(whole)
    assert again.steps == again.plan.steps == 20


def test_lost_steps_are_steps_of_the_plan(tmp_path):
    folder = tmp_path / "run"
    first, keeper = trainer_of(seed=None), Checkpoints(folder, every=4)
    with pytest.raises(Killed):
        first.fit(every=2, on_evaluation=killed_at(6), keeper=keeper)
    keeper.close()
    again, keeper = trainer_of(seed=None), Checkpoints(folder, every=4)
    left = keeper.resume(again)
    assert keeper.resumed == (
        "resumed at step 4 of 10: 2 steps begun after step 4 are lost and stay paid for, as no seed was given to make "
        "them again."
    )
    with pytest.warns(ShortRunWarning, match="of which an interruption lost 2"):
        again.fit(left, keeper=keeper)
    assert (again.steps, again.remaining_steps) == (8, 0)
    assert int(again.state.ledger.made) == 10
    assert certified_epsilon(again).upper == again.plan.certified.upper


@pytest.mark.parametrize("options", [{"noise_multiplier": 3.1}, {"noise_multiplier": 3.0, "steps": 11}])
def test_another_plans_folder_is_refused(options, tmp_path):
    keeper = Checkpoints(tmp_path / "run", every=4)
    make(epsilon=None, noise_multiplier=3.0, steps=10).fit(2, keeper=keeper)
    keeper.close()
    with pytest.raises(ValueError, match=r"policy: Constant.*3\.1|planned steps: 10 there, 11 here"):
        Checkpoints(tmp_path / "run", every=4).resume(make(**{"epsilon": None, "steps": 10} | options))


def test_ctrl_c_ends_at_the_next_step_with_everything_saved(tmp_path):
    keeper, trainer = Checkpoints(tmp_path / "run", every=100), trainer_of(epochs=4)
    trainer._pieces.steps = 1

    def interrupt(entry):
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(every=3, on_evaluation=interrupt, keeper=keeper)
    assert signal.getsignal(signal.SIGINT) is handler
    assert trainer.steps == 3
    keeper.close()
    again = trainer_of(epochs=4)
    keeper = Checkpoints(tmp_path / "run", every=100)
    assert keeper.resume(again) == 17
    assert keeper.resumed == "resumed at step 3 of 20: nothing is lost."
    again.fit(17)
    assert_same(again, undisturbed())


SWALLOWS = """
import gc, os, signal, sys
from jaxacct.cli import main, training
from jaxacct.processes import Interrupts

def run(arguments):
    def press(phase, info):
        if phase == "stop":
            os.write(2, b"pressed\\n")
            os.kill(os.getpid(), signal.SIGINT)

    gc.callbacks.append(press)
    gc.collect()
    gc.callbacks.clear()
    if arguments.seed == 1:
        with Interrupts(deferred=True):
            print("went on")
    return 0

training.run = run
print(main(["train", "--seed", "0"]), main(["train", "--seed", "1"]))
"""


@pytest.mark.exhaustive
def test_ctrl_c_is_not_lost_where_an_exception_is():
    """As in JAX's callback of the garbage collector, whose KeyboardInterrupt is forgotten, and not printed, either."""
    done = subprocess.run([sys.executable, "-c", SWALLOWS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.splitlines() == ["pressed", "jaxacct train: interrupted."] * 2
    assert done.stdout.split() == ["130", "130"], done.stderr
