"""Shuffled batches: the order of an epoch is uniform, secret and new, is what is accounted, and survives kills."""

import contextlib
import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.eight_devices import answers_of
from helpers.interrupted import Killed, assert_same
from helpers.shared import sharing
from scipy import stats

import jaxacct as ja
from jaxacct.filters import RenyiFilter
from jaxacct.policies import Schedule
from jaxacct.strategies import square_root
from jaxacct.train import (
    Checkpoints,
    FilteredRun,
    OpenRun,
    Plan,
    PlannedRun,
    ShuffledSampler,
    config,
    guarantee,
    planned,
    report,
)
from jaxacct.train.planned import share_of_pass, whole_steps_of
from jaxacct.train.progress import Progress
from jaxacct.train.sampling import Correlated, runs_of
from jaxacct.train.sampling.sampler import of_ranks, random_order

SMALL, DROPPED, EVEN = ShuffledSampler(11, 4), ShuffledSampler(11, 4, "dropped"), ShuffledSampler(12, 4)


def test_places_are_those_of_the_sorted_order_whatever_ties_there_are(monkeypatch):
    """With six bits of the first word and one of the second many agree in both, and some word is the largest."""
    n, bits = 60, jax.random.bits
    known = {(n,): np.uint32(2**32 - 64), (2, n): np.array([[2**32 - 2], [0]], np.uint32)}
    for is_tied in (False, True):
        if is_tied:
            monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: bits(key, shape, dtype) | known[shape])
        both = jax.jit(lambda key, first, last: (random_order(key, n, n)[0], of_ranks(key, n, first, last)))
        places = [(0, 60), (0, 1), (1, 2), (59, 60), (52, 60), (7, 20), (30, 30), (44, 90)]
        for seed, (first, last) in enumerate(5 * places):
            order, chosen = map(np.asarray, both(jax.random.key(seed), first, last))
            assert np.flatnonzero(chosen).tolist() == sorted(order[first:last].tolist())


def epochs_of(sampler, count, seed=0):
    """The batches of so many epochs, as sets of indices."""
    key = jax.random.key(seed)
    steps = np.arange(count * sampler.steps_per_run)
    indices, masks = map(np.asarray, jax.jit(jax.vmap(lambda step: sampler.sample(key, step)))(steps))
    assert indices.dtype == np.int32
    assert np.all(indices[~masks] == 0)
    assert np.all(masks[:, :-1] >= masks[:, 1:])
    batches = [frozenset(row[mask].tolist()) for row, mask in zip(indices, masks, strict=True)]
    assert [len(batch) for batch in batches] == masks.sum(axis=1).tolist()
    return [tuple(batches[i : i + sampler.steps_per_run]) for i in range(0, len(batches), sampler.steps_per_run)]


@pytest.mark.parametrize(
    ("sampler", "sizes"), [(SMALL, [4, 4, 3]), (DROPPED, [4, 4]), (EVEN, [4, 4, 4])], ids=["small", "dropped", "even"]
)
def test_an_epoch_has_each_example_once_in_batches_of_one_size(sampler, sizes):
    epochs = epochs_of(sampler, 20)
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == sizes
        assert len(frozenset().union(*epoch)) == sum(sizes)
    assert len(set(epochs) | set(epochs_of(sampler, 20, seed=1))) == 40  # a new order each epoch, and for each key
    assert (sampler.capacity, sampler.expected_batch_size, sampler.steps_per_run) == (4, 4.0, len(sizes))


@pytest.mark.exhaustive
def test_orders_are_uniform_and_independent_of_the_epoch_and_of_the_key():
    """All 30 ways of putting five examples into batches of two, two and one; and which example is left out."""
    sampler = ShuffledSampler(5, 2)
    epochs, others = epochs_of(sampler, 6000), epochs_of(sampler, 6000, seed=1)
    kinds = {kind: i for i, kind in enumerate(sorted(set(epochs), key=lambda epoch: [sorted(b) for b in epoch]))}
    assert len(kinds) == 30
    places, elsewhere = (np.array([kinds[epoch] for epoch in one]) for one in (epochs, others))
    for counts in (
        np.bincount(places, minlength=30),
        np.bincount(30 * places[:-1:2] + places[1::2], minlength=900),
        np.bincount(30 * places + elsewhere, minlength=900),
    ):
        assert stats.chisquare(counts).pvalue > 1e-3
    left = [
        min(frozenset(range(5)) - first - last) for first, last in epochs_of(ShuffledSampler(5, 2, "dropped"), 6000)
    ]
    assert stats.chisquare(np.bincount(left, minlength=5)).pvalue > 1e-3


def test_the_mechanism_is_that_of_what_is_drawn():
    for sampler, remainder, batches in ((SMALL, "small", 2), (DROPPED, "dropped", 2), (EVEN, "even", 3)):
        assert sampler.mechanism(2.0) == ja.ShuffledGaussian(2.0, batches, remainder=remainder)
        assert sampler.relation == "zero_out"
    assert [runs_of(SMALL, steps) for steps in (0, 1, 3, 4, 6, 7)] == [0, 1, 1, 2, 2, 3]
    assert [whole_steps_of(SMALL, steps) for steps in (0, 1, 3, 4, 7)] == [0, 0, 3, 3, 6]
    large = ShuffledSampler(60_000, 256)
    assert (large.batches, large.steps_per_run, large.mechanism(1.0).batches) == (234, 235, 234)
    # Two examples agree in 96 bits, in one of the 10 orders.
    pairs = 60_000 * 59_999 / 2 / 2**96
    assert 10 * pairs * (1 + np.exp(3)) <= large.overflow_delta(2350, 3.0) <= 10.01 * pairs * (1 + np.exp(3))


def test_epochs_are_those_of_the_shuffles_and_one_that_has_begun_counts_whole(monkeypatch):
    made = functools.partial(Plan, noise_multiplier=2.0, epsilon=1.0, delta=1e-3, certified=ja.Bounds(0.0, 0.0, 1.0))
    monkeypatch.setattr(config, "_plan", lambda sampler, *given: made(sampler=sampler, steps=given[-2]))
    for sampler in (SMALL, DROPPED):
        whole = sampler.steps_per_run
        for given, steps, runs in (
            ({"epochs": 2}, 2 * whole, 2), ({"epochs": 1 / 3}, 1, 1), ({"steps": 2 * whole + 1}, 2 * whole + 1, 3),
        ):  # fmt: skip
            plan = PlannedRun(epsilon=1.0, delta=1e-3, sampler=sampler, **given).resolve(11).plan
            assert (plan.steps, plan.runs, plan.ledger().runs) == (steps, runs, runs)
            assert plan.composition() == (sampler.mechanism(2.0), runs)


def test_a_pass_has_the_steps_of_an_epoch_whatever_the_noise():
    sampler = ShuffledSampler(100, 30)  # three full batches and a small one
    assert share_of_pass(sampler) == 1 / 4
    assert share_of_pass(Correlated(sampler, square_root(2), 8)) == 1 / 4


def test_an_epoch_that_a_plan_does_not_pay_again_is_said_to_be_left_out():
    before = Progress(goal=8)
    assert "4 steps that its epoch had left are not made" in before.describe_resume(12, 8, before, repeats=False)
    assert "4 steps gave the same bits again" in before.describe_resume(12, 8, before, repeats=True)


def test_lower_bounds_count_no_run_that_was_not_made_to_its_end(monkeypatch):
    """As if each run cost one, from below, and one and a half from above."""
    monkeypatch.setattr(ja, "epsilon", lambda mechanism, runs, *rest, **named: ja.Bounds(runs, 1.2 * runs, 1.5 * runs))
    trainer = SimpleNamespace(
        sampler=SMALL, delta_for_accounting=1e-4, epsilon=9.0, delta=1e-3, horizon=9, budget=SimpleNamespace(samples=0)
    )
    for steps, whole, begun in ((2, 0, 1), (3, 1, 1), (7, 2, 3)):
        of_plan = planned._certify(SMALL, 2.0, steps, 9.0, 1e-4, ())
        trainer.plan = Plan(
            sampler=SMALL, noise_multiplier=2.0, steps=9, epsilon=9.0, delta=1e-3, certified=ja.Bounds(3.0, 3.6, 4.5)
        )
        for found in of_plan, report.epsilon_after(trainer, steps):
            assert (found.lower, found.upper) == (whole, 1.5 * begun)


def test_a_report_lists_an_epoch_that_ended_early_as_such():
    """Whole ones alone would let a lower bound speak of steps that were not made."""
    epoch = SMALL.mechanism(2.0)
    cut, counts = report._cut_epoch((epoch, ja.Gaussian(9.0)), (3, 5), 2)
    assert cut == (epoch, ja.ShuffledGaussian(2.0, 2, remainder="small", stop_after=2), ja.Gaussian(9.0))
    assert counts == (2, 1, 5)
    assert report._cut_epoch((epoch,), (3,), 0) == ((epoch,), (3,))
    assert report._cut_epoch((ja.RandomAllocation(2.0, 4),), (3,), 2) == ((ja.RandomAllocation(2.0, 4),), (3,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShuffledSampler(10, 11), "batch_size = 11"),
        (lambda: ShuffledSampler(0, 1), "num_examples = 0"),
        (lambda: ShuffledSampler(10, 4, "padded"), "remainder = 'padded'.*'small', 'dropped'"),
        (lambda: OpenRun(None, SMALL), "runs of 3 steps, each of which is one mechanism of one noise"),
        (
            lambda: FilteredRun(epsilon=1.0, delta=1e-3, sampler=SMALL, policy=Schedule(lambda step: 2.0 + step, 0.2)),
            "policy has its own sampling rate: leave out.*sampler",
        ),
    ],
)  # fmt: skip
def test_what_has_no_account_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_correlated_noise_counts_each_example_once_an_epoch_and_nothing_is_amplified():
    made = Correlated(SMALL, ja.strategies.identity(), steps=6)
    assert made.participation == ja.strategies.MinSeparation(6, 1, 2)
    assert (made.is_sampled, made.relation) == (False, "zero_out")
    assert made.sensitivity == pytest.approx(2**0.5)


@pytest.mark.exhaustive
def test_plans_spend_a_budget_on_whole_shuffles():
    """The least noise for an epsilon, and the bracket of an epoch that has begun."""
    sampler = ShuffledSampler(2000, 240)
    plan = PlannedRun(epsilon=3.0, delta=1e-5, epochs=4, sampler=sampler).resolve(2000).plan
    assert (plan.steps, plan.runs) == (36, 4)
    cost = functools.partial(ja.epsilon, delta=plan.delta_for_accounting, relation="zero_out")
    whole = cost(ja.ShuffledGaussian(plan.noise_multiplier, 8, remainder="small"), 4)
    assert 2.99 < plan.certified.upper <= 3.0
    assert (plan.certified.lower, plan.certified.upper) == (whole.lower, whole.upper)
    assert whole.lower < 0.9 * whole.upper  # of the mechanism, and not of its pair
    assert cost(sampler.mechanism(0.99 * plan.noise_multiplier), 4).upper > 3.0
    # Renyi orders are the Gaussian's, of a whole epoch: each of the filter's runs is one.
    filtered = FilteredRun(epsilon=3.0, delta=1e-5, noise_multiplier=4.0, sampler=ShuffledSampler(2000, 250)).resolve(
        2000
    )
    assert filtered.horizon == 8 * int(RenyiFilter(3.0, 1e-5).remaining(ja.Gaussian(4.0), relation="zero_out")) > 0
    begun = planned._certify(sampler, plan.noise_multiplier, 28, 3.0, plan.delta_for_accounting, ())
    ended = cost(sampler.mechanism(plan.noise_multiplier), 3)
    assert (begun.lower, begun.upper) == (ended.lower, whole.upper)


# ----------------------------------------------------------------------------------------------------
# What a trainer draws, seen in what it releases: each example moves a parameter of its own, and noise is small.
# ----------------------------------------------------------------------------------------------------

MARKED = """
import jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jaxacct.train import DPTrainer, ShuffledSampler, config
from jaxacct.train.planned import Plan
import jaxacct as ja

def move_own(model, index):
    return -model.kernel[index, 0]

STEP = optax.sgd(1.0)

def marked(sampler, steps=12, seed=3, **options):
    n = sampler.num_examples
    plan = Plan(sampler=sampler, noise_multiplier=0.02, steps=steps, epsilon=9.0, delta=1e-3,
                certified=ja.Bounds(0.0, 0.0, 9.0))
    solve, config._plan = config._plan, lambda *given: plan
    try:
        model = nnx.Linear(n, 1, use_bias=False, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
        return DPTrainer(model, move_own, STEP, (np.arange(n),), noise_multiplier=0.02, steps=steps, delta=1e-3,
                         clip_norm=1.0, sampler=sampler, seed=seed, **options)
    finally:
        config._plan = solve

def drawn(trainer, steps, keeper=None, seen=None):
    seen, last = [] if seen is None else seen, [np.asarray(trainer.model.kernel[:, 0])]
    def look(entry):
        now = np.asarray(trainer.model.kernel[:, 0])
        moved = (now - last[0]) * trainer.sampler.expected_batch_size
        assert np.all(np.minimum(abs(moved), abs(moved - 1)) < 0.2)
        seen.append(np.flatnonzero(moved > 0.5).tolist())
        last[0] = now
    trainer.fit(steps, every=1, on_evaluation=look, keeper=keeper)
    return seen
"""
names: dict = {}
exec(MARKED, names)
marked, drawn = names["marked"], names["drawn"]


@pytest.mark.exhaustive
def test_a_trainer_draws_each_example_once_an_epoch_and_pays_for_epochs():
    trainer = marked(SMALL, steps=7, seed=None)
    batches = drawn(trainer, 4)
    assert sorted(index for batch in batches[:3] for index in batch) == list(range(11))
    assert [len(batch) for batch in batches] == [4, 4, 3, 4]
    assert int(trainer.state.ledger.made) == 2
    assert (trainer.remaining_steps, trainer.horizon) == (3, 7)
    words = guarantee(trainer)
    assert "one example replaced by one that contributes nothing" in words
    assert "by an order that is drawn for each epoch and kept secret" in words
    assert "seed was given" not in words


def interrupted(sampler, folder, steps, kills, every):
    """The batches that a run released, which is killed at each of the steps and taken up again; and its last life."""
    seen: dict[int, list] = {}
    for kill in [*kills, None]:
        trainer, keeper = sharing(marked(sampler, steps)), Checkpoints(folder, every=every)
        left = keeper.resume(trainer) if keeper.holds_run else steps
        batches, first = [], trainer.steps
        if kill is not None:
            release = keeper.finish

            def finish(trainer, kill=kill, release=release):
                release(trainer) if trainer.steps <= kill else _die()

            keeper.finish = finish
        with contextlib.suppress(Killed):
            drawn(trainer, left, keeper, batches)
        keeper.close()
        for step, batch in enumerate(batches, first):
            assert seen.setdefault(step, batch) == batch  # whoever saw it before saw the same
    return [seen[step] for step in range(steps)], trainer


def _die():
    raise Killed


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [SMALL, DROPPED], ids=["small", "dropped"])
def test_ten_kills_change_no_order_and_no_bit(sampler, tmp_path):
    steps = 5 * sampler.steps_per_run
    alone = marked(sampler, steps)
    order = drawn(alone, steps)
    kills = np.sort(np.random.default_rng(1).integers(0, steps - 1, 10)).tolist()
    released, last = interrupted(sampler, tmp_path / "run", steps, kills, every=4)
    assert released == order
    assert_same(alone, last)
    assert (last.steps, int(last.state.ledger.made), last.progress.lost_steps) == (steps, 5, 0)


ON_DEVICES = """
import jax
from jaxacct.train.sampling import ShuffledSampler
answer = []
for count in (None, 1, 2, 8):
    trainer = marked(ShuffledSampler(19, 8), 6, devices=None if count is None else jax.devices()[:count])
    answer.append(drawn(trainer, 6))
"""


@pytest.mark.exhaustive
def test_the_order_is_the_same_on_any_number_of_devices():
    (orders,) = answers_of(MARKED + ON_DEVICES)
    assert [len(batch) for batch in orders[0]] == [8, 8, 3, 8, 8, 3]
    assert all(order == orders[0] for order in orders)
    assert drawn(marked(ShuffledSampler(19, 8), 6), 6) == orders[0]
