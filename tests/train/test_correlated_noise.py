"""Correlated noise in the trainer: the strategy's rows of one stream of keys, the account of what is drawn, attacks."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.interrupted import assert_same, make, resumed, run_until_killed
from helpers.shared import WHOLE

import jaxacct as ja
from jaxacct.filters import RenyiFilter
from jaxacct.strategies import (
    BandedToeplitz,
    CyclicPoisson,
    Dense,
    FixedEpochs,
    HonakerTree,
    SinglePass,
    Streamed,
    square_root,
)
from jaxacct.train import (
    AdaptiveQuantile,
    Checkpoints,
    Flat,
    Metrics,
    PrivateGradients,
    build_report,
    certified_epsilon,
    config,
)
from jaxacct.train.checkpoints import SPENDS
from jaxacct.train.noise import privatize_step, start
from jaxacct.train.ownership import arrays_of, as_text
from jaxacct.train.sampling import Correlated, CyclicPoissonSampler, PoissonSampler, RandomAllocationSampler
from jaxacct.train.trainer import fingerprint

EXAMPLES, GROUPS, STEPS = 200, 4, 12
ROOT = square_root(GROUPS)
CYCLIC = CyclicPoissonSampler(EXAMPLES, GROUPS, 0.8, 110)
ORDER = RandomAllocationSampler(EXAMPLES, 5, 110)


@pytest.fixture(autouse=True, scope="module")
def plans():
    """Solved once for each of this file."""
    solve, solved = config._plan, {}

    def once(sampler, strategy, *numbers):
        if not isinstance(strategy, BandedToeplitz):
            return solve(sampler, strategy, *numbers)
        key = sampler, tuple(np.asarray(strategy.first_column).tolist()), numbers
        if key not in solved:
            solved[key] = solve(sampler, strategy, *numbers)
        return solved[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "_plan", once)
        yield


def nothing(model, x, y):
    return 0.0 * model(x).sum()


def trainer(**options):
    """Without ``sampler`` and ``noise`` by groups and 4 bands; steps and epsilon are planned."""
    settings = {"noise_multiplier": None, "expected_batch_size": None, "steps": STEPS, "sampler": CYCLIC, "noise": ROOT}
    return make(**settings | options)


def run(examples=EXAMPLES, **options):
    """The rows that a run without gradients releases, times C; and the noise of the steps by themselves."""
    one = trainer(loss=nothing, optimizer=WHOLE, examples=examples, **options)
    rows, before = [], one.model.kernel[...]
    for _ in range(STEPS):
        one.fit(1)
        rows.append((before - one.model.kernel[...]).ravel())
        before = one.model.kernel[...]
    return one, np.stack(rows) * one.sampler.expected_batch_size / one.noise_multiplier


@functools.cache
def independent():
    return run(noise=None)[1]


def matrix_of(strategy, steps=STEPS):
    column = strategy.coefficients(steps)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


# What the noise is.


@pytest.mark.exhaustive
def test_rows_of_the_trainer_times_the_matrix_are_the_noise_of_its_keys():
    """By matrix multiplication, of two runs that share nothing but the seed."""
    correlated, rows = run()
    # A row is a difference of parameters, each rounded to float32; a product adds the rows of its column.
    scale = correlated.sampler.expected_batch_size / correlated.noise_multiplier
    rounding = 2.0**-24 * scale * (1 + np.max(np.abs(np.cumsum(independent(), 0))) / scale)
    rounded = rounding * (1 + np.sum(np.abs(ROOT.coefficients(STEPS))))
    np.testing.assert_allclose(matrix_of(ROOT) @ rows, independent(), rtol=0, atol=rounded)
    kept = correlated.state.noise
    assert int(kept.step) == STEPS
    (kernel,) = (leaf for leaf in jax.tree.leaves(kept.buffers) if leaf.ndim == 3)
    assert (kernel.shape, kernel.dtype) == ((GROUPS - 1, 3, 1), np.float64)
    np.testing.assert_allclose(kernel[(STEPS - 1) % 3].ravel(), rows[-1], atol=2e-6)


@pytest.mark.exhaustive
def test_microbatches_do_not_change_the_noise():
    states = []
    for size in (None, 7):
        one = trainer(microbatch_size=size)
        one.fit(STEPS)
        states.append(one.state)
    first, second = (jax.tree.leaves(state.noise) for state in states)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not jax.tree.all(jax.tree.map(np.array_equal, states[0].params, states[1].params))  # sums were others


# What survives an interruption.


def interrupted_at(folder, at, **options):
    """The trainer that died after the look at a step, which is not a checkpoint's."""
    lost = trainer(**options)
    run_until_killed(lost, folder, at, steps=STEPS)
    return lost


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, None])
def test_a_resumed_run_has_the_same_bits_also_without_a_seed(seed, tmp_path):
    lost = interrupted_at(tmp_path / "run", 6, seed=seed)
    again = trainer(seed=seed)
    resumed(again, tmp_path / "run")
    lost.fit()
    assert_same(again, lost)
    assert again.steps == STEPS
    assert again.stopping_was_planned
    assert again.progress.lost_steps == 0


def forged(folder):
    """Has the record say that the steps lost gave other bits: as on another machine."""
    for path in folder.glob("spends*.json"):
        record = ja.train.checkpoints.WriteAhead(folder / SPENDS).read()
        digests = tuple((step, "0" * 64) for step, _ in record.digests)
        path.write_bytes(dataclasses.replace(record, digests=digests).content())


@pytest.mark.exhaustive
def test_what_cannot_be_repeated_begins_another_stream_and_is_paid_for_as_one(tmp_path):
    """Cyclic: steps 4 to 6 are lost, and the rest is a training of its own, of whole cycles from the checkpoint on."""
    lost = interrupted_at(tmp_path / "run", 6, ledger="filter", steps=None, noise_multiplier=4.0)
    forged(tmp_path / "run")
    again = trainer(ledger="filter", steps=None, noise_multiplier=4.0)
    Checkpoints(tmp_path / "run", every=4).resume(again)
    assert (again.steps, again.progress.lost_steps) == (4, 2)
    assert as_text(arrays_of(again.state.key)) != as_text(arrays_of(lost.state.key))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(again.state.noise))
    again.fit(STEPS - 4)
    fresh = RenyiFilter(4.0, again.delta_for_accounting)
    paid = fresh.spend(again.mechanism, 2 + 2)[1]  # two cycles begun before, two after
    assert again.spent_epsilon == pytest.approx(float(paid.epsilon()), rel=1e-9)


@pytest.mark.exhaustive
def test_what_is_paid_for_as_a_whole_ends_there(tmp_path):
    options = {"sampler": ORDER, "noise": square_root(STEPS)}
    interrupted_at(tmp_path / "run", 6, **options)
    forged(tmp_path / "run")
    again = trainer(**options)
    keeper = Checkpoints(tmp_path / "run", every=4)
    keeper.resume(again)
    keeper.close()
    assert again.remaining_steps == 0
    assert "lost" in keeper.resumed


@pytest.mark.exhaustive
@pytest.mark.parametrize("broken", ["forgotten", "drawn anew"])
def test_noise_that_is_not_kept_is_caught(broken):
    """The check of the first test, of a restart that loses the buffers, or draws steps again by another key."""
    one, rows = run()
    two = trainer(loss=nothing, optimizer=WHOLE)
    two.fit(5)
    state = two.state
    if broken == "forgotten":
        state = dataclasses.replace(state, noise=trainer().state.noise)
    else:
        state = dataclasses.replace(state, key=jax.random.key(9))
    two._restore(state, two.progress)
    before, late = two.model.kernel[...], []
    for _ in range(5, STEPS):
        two.fit(1)
        late.append((before - two.model.kernel[...]).ravel())
        before = two.model.kernel[...]
    scale = one.sampler.expected_batch_size / one.noise_multiplier
    rows = np.concatenate([rows[:5], np.stack(late) * scale])
    assert np.abs(matrix_of(ROOT) @ rows - independent()).max() > 0.1


# What is drawn, and what it is accounted as.


def draws(sampler, steps, seed=0):
    sample = jax.jit(jax.vmap(sampler.sample, (None, 0)))
    indices, masks = map(np.asarray, sample(jax.random.key(seed), np.arange(steps)))
    taken = np.zeros((steps, sampler.num_examples), bool)
    for step in range(steps):
        taken[step, indices[step, masks[step]]] = True
        assert masks[step].sum() == taken[step].sum()
    return taken


def least_separation(taken):
    """Of all examples' participations; the steps' number where each has one at most."""
    gaps = [np.diff(np.flatnonzero(column)) for column in taken.T]
    return min(min(gap, default=len(taken)) for gap in gaps)


@pytest.mark.exhaustive
def test_turns_are_a_cycle_apart_and_a_sampler_that_deals_anew_is_caught():
    equal = dataclasses.replace(CYCLIC, equal_groups=True)
    for sampler in (CYCLIC, equal, CyclicPoissonSampler(EXAMPLES, GROUPS, 1.0, 110)):
        taken = draws(sampler, 20)
        assert least_separation(taken) == GROUPS
        assert np.all(np.diff(np.flatnonzero(taken[:, 7])) % GROUPS == 0)
        expected = sampler.expected_batch_size * 20
        assert abs(taken.sum() - expected) < 5 * math.sqrt(expected)

    class DealsAnew(CyclicPoissonSampler):
        def sample(self, key, step):
            return super().sample(jax.random.fold_in(key, step // self.groups), step)

    for broken in (DealsAnew(EXAMPLES, GROUPS, 0.8, 110), PoissonSampler(EXAMPLES, 0.2, 110)):
        assert least_separation(draws(broken, 20)) < GROUPS
    assert least_separation(draws(ORDER, 5)) == 5  # one pass
    assert draws(ORDER, 10).sum(0).max() == 2


def test_groups_are_even_and_each_is_as_likely():
    sizes = [np.bincount(CYCLIC.group_of_each(jax.random.key(seed)), minlength=GROUPS) for seed in range(20)]
    assert np.abs(np.sum(sizes, 0) - 20 * EXAMPLES / GROUPS).max() < 5 * math.sqrt(20 * EXAMPLES / GROUPS)
    assert len({tuple(size) for size in sizes}) > 1
    equal = dataclasses.replace(CYCLIC, equal_groups=True)
    assert set(np.bincount(equal.group_of_each(jax.random.key(0)))) == {EXAMPLES // GROUPS}
    assert (equal.relation, equal.mechanism(1.0).relations) == ("replace", ("replace",))
    assert ja.MatrixMechanism(ROOT, 1.0, equal.participation(STEPS, GROUPS)).relations == ("replace",)
    assert equal.overflow_delta(10, 1.0) < CYCLIC.overflow_delta(10, 1.0) < 1e-9


def test_the_plan_is_the_matrix_mechanisms():
    for options, participation in (
        ({}, CyclicPoisson(STEPS, GROUPS, CYCLIC.sampling_rate)),
        ({"sampler": ORDER, "steps": 5, "noise": HonakerTree(5)}, SinglePass(5)),
        ({"sampler": CyclicPoissonSampler(EXAMPLES, 3, 1.0, 110)}, FixedEpochs(3, 4)),
    ):
        one = trainer(**options)
        account = ja.MatrixMechanism(one.noise, one.noise_multiplier, participation)
        found = ja.epsilon(account, 1, one.delta_for_accounting)
        assert one.plan.certified.upper == pytest.approx(float(found.upper), rel=1e-9)
        assert 0.9999 * one.epsilon < found.upper <= one.epsilon
        least = ja.factorize.noise_multiplier(one.noise, participation, one.epsilon, one.delta_for_accounting)
        assert least.value <= one.noise_multiplier <= least.value * (1 + 2e-5)
        assert type(one.noise).__name__ in str(one.plan)
    by_default = trainer(sampler=None, expected_batch_size=40)
    assert by_default.sampler.batches.groups == GROUPS
    assert by_default.sampler.batches.sampling_rate == CYCLIC.sampling_rate
    assert "Noise: correlated over steps by BandedToeplitz" in build_report(by_default, [])["final"]["guarantee"]
    json.dumps(build_report(by_default, [])["config"])


def test_the_certified_epsilon_of_a_run_that_was_planned_to_end_early_is_that_of_its_rows():
    one = trainer(sampler=ORDER, noise=square_root(STEPS))
    one.fit(5)
    early = ja.epsilon(ja.MatrixMechanism(one.noise, one.noise_multiplier, SinglePass(5)), 1, one.delta_for_accounting)
    assert certified_epsilon(one).upper == pytest.approx(float(early.upper), rel=1e-9)
    assert one.spent_epsilon == one.plan.certified.upper > early.upper


def test_an_attack_on_the_released_rows_comes_up_to_the_account_and_not_above():
    """A canary in steps 0 and 4 of 6: the likelihood ratio's test, 20,000 runs with it and as many without."""
    noise, column, runs = 1.5, np.array([1.0, 0.75, 0.5]), 20_000
    strategy, steps = BandedToeplitz(column), np.array([1.0, 0, 0, 0, 1.0, 0])

    def released(key, steps):
        def one(state, step):
            kept, (value, own) = state, step
            row, kept = privatize_step(
                own, value, strategy, kept, noise_multiplier=noise, clip_norm=1.0, expected_batch_size=1.0
            )
            return kept, row.astype(jnp.float32)

        return jax.lax.scan(one, start(strategy, jnp.zeros(())), (steps, jax.random.split(key, len(steps))))[1]

    told = jax.jit(jax.vmap(released, (0, None)))
    keys = jax.random.split(jax.random.key(4), (2, runs))
    matrix = matrix_of(strategy, 6)
    moved = matrix @ steps
    with_it, without = (np.asarray(told(keys[i], steps * i)) @ matrix.T @ moved for i in (1, 0))
    threshold = moved @ moved / 2
    advantage = np.mean(with_it > threshold) - np.mean(without > threshold)
    account = ja.MatrixMechanism(strategy, noise, FixedEpochs(4, 2))
    proved = float(ja.delta(account, 1, 0.0).upper)  # at epsilon 0: what any attack gains
    error = 4 / math.sqrt(runs)
    assert proved - error < advantage < proved + error
    forgotten = float(ja.delta(ja.MatrixMechanism(strategy, noise, SinglePass(6)), 1, 0.0).upper)
    unscaled = float(ja.delta(ja.Gaussian(noise / math.sqrt(2)), 1, 0.0).upper)  # as if columns had norm 1
    assert advantage > max(forgotten, unscaled) + error


# What is refused.

WRONG = {
    "no strategy": ({"noise": 4}, TypeError, "noise = 4 is no strategy"),
    "any steps": ({"sampler": PoissonSampler(EXAMPLES, 0.2, 110)}, ValueError, "PoissonSampler may take an example"),
    "an account": ({"sampler": Correlated(CYCLIC, ROOT, STEPS), "noise": None}, ValueError, "draws no noise"),
    "two accounts": ({"sampler": Correlated(CYCLIC, ROOT, STEPS)}, ValueError, "its strategy as noise"),
    "too many bands": ({"noise": square_root(5)}, ValueError, "fewer than the strategy's 5 bands"),
    "small groups": ({"noise": square_root(6), "sampler": None, "expected_batch_size": 40}, ValueError, "has 6 bands"),
    "a policy": (
        {"policy": ja.policies.Schedule(lambda step: 2.0, 0.2), "sampler": None, "steps": None}, ValueError, "are both",
    ),
    "an open length": (
        {"sampler": ORDER, "steps": None, "noise_multiplier": 4.0}, ValueError, "whose number it has to know",
    ),
    "a filter of a whole": (
        {"sampler": ORDER, "steps": None, "noise_multiplier": 4.0, "ledger": "filter"}, ValueError, "no other ledger",
    ),
    "too few rows": ({"noise": Dense(np.eye(8))}, ValueError, "more than the matrix has, 8"),
    "metrics": ({"metrics": Metrics()}, ValueError, "metrics takes a share"),
    "a count": ({"clip_norm": AdaptiveQuantile(1.0)}, ValueError, "AdaptiveQuantile takes a share"),
}  # fmt: skip


@pytest.mark.exhaustive
def test_noise_never_stands_for_other_noise_than_was_accounted():
    """Independent noise in the place of a plan's, and a state that a restart without x64 has cut to float32."""
    plan = trainer().plan
    with pytest.raises(ValueError, match="independent noise"):
        PrivateGradients(nothing, plan, Flat(1.0)).start()
    scale = {"noise_multiplier": 1.0, "clip_norm": 1.0, "expected_batch_size": 1.0}
    state = start(ROOT, jnp.zeros(2))
    privatize_step(jax.random.key(0), jnp.zeros(2), ROOT, state, **scale)
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state.buffers)
    with pytest.raises(TypeError, match="bit for bit"):
        privatize_step(jax.random.key(0), jnp.zeros(2), ROOT, dataclasses.replace(state, buffers=rounded), **scale)


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_account_is_refused(name):
    options, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        trainer(**options)


class OfTwo:
    """Another library's stream, which tells no numbers: each row is the noise less a share of the row before."""

    def __init__(self, share):
        self.share = share

    def init_multiply(self, like):
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    def multiply_next(self, noise, before):
        row = jax.tree.map(lambda z, old: z - self.share * old, noise, before)
        return row, row


def test_a_stream_that_tells_no_numbers_is_known_again():
    sampler = CyclicPoissonSampler(EXAMPLES, STEPS, 1.0, EXAMPLES)
    first, again, other = (
        fingerprint(trainer(noise=Streamed(OfTwo(share)), sampler=sampler))["noise"] for share in (0.5, 0.5, -0.5)
    )
    assert first == again != other
