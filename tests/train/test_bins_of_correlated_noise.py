"""Correlated noise on bins in the trainer: places and noise that begin anew together, and the account of both."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.interrupted import make, run_until_killed

import jaxacct as ja
from jaxacct.strategies import Dense, MinSeparation, Pattern, Restarted, square_root
from jaxacct.train import Checkpoints, build_report, certified_epsilon
from jaxacct.train.checkpoints import SPENDS
from jaxacct.train.sampling import BallsInBinsSampler, Correlated, RandomAllocationSampler

EXAMPLES, BINS = 200, 4
ROOT = square_root(2)
FIXED, AFRESH = BallsInBinsSampler(EXAMPLES, BINS, 201, epochs=3), RandomAllocationSampler(EXAMPLES, BINS, 201)


def trainer(**options):
    settings = {"noise_multiplier": None, "expected_batch_size": None, "steps": 12, "noise": ROOT}
    return make(**settings | options)


def places(sampler, steps):
    """The step's batches as masks over examples, (steps, examples)."""
    indices, masks = jax.jit(jax.vmap(sampler.sample, (None, 0)))(jax.random.key(3), np.arange(steps))
    taken = np.zeros((steps, EXAMPLES), bool)
    for step, (row, mask) in enumerate(zip(np.asarray(indices), np.asarray(masks), strict=True)):
        taken[step, row[mask]] = True
    return taken


def test_places_are_kept_for_the_epochs_of_a_run_and_drawn_anew_after():
    taken = places(FIXED, 6 * BINS).reshape(6, BINS, EXAMPLES)
    assert np.all(taken.sum(axis=1) == 1)
    for epoch in (1, 2):
        np.testing.assert_array_equal(taken[0], taken[epoch])
    np.testing.assert_array_equal(taken[3], taken[5])
    assert np.any(taken[0] != taken[3])


@pytest.mark.exhaustive
def test_a_strategy_that_begins_anew_is_block_diagonal():
    for strategy in (square_root(3), Dense(np.tril(np.ones((4, 4))))):
        again, steps = Restarted(strategy, 4), 10
        with jax.enable_x64(True):
            block = np.asarray(strategy.multiply(jnp.eye(4)))
            whole = np.asarray(again.multiply(jnp.eye(steps)))
            undone = np.asarray(again.solve(jnp.asarray(whole)))
        wanted = np.kron(np.eye(3), block)[:steps, :steps]
        np.testing.assert_allclose(whole, wanted, atol=1e-6)
        np.testing.assert_allclose(undone, np.eye(steps), atol=1e-6)
        assert again.sensitivity(Pattern(8, 4, 2, is_fixed=True)) >= np.sqrt(2) * np.linalg.norm(block[:, 0])
        assert again.bands(100) == strategy.bands(4)


def test_what_is_accounted_is_what_is_drawn():
    fixed, afresh = Correlated(FIXED, ROOT, 12), Correlated(AFRESH, Restarted(ROOT, BINS), 12)
    of_three, of_one = fixed.mechanism(2.0), afresh.mechanism(2.0)
    assert (of_three.batches, of_three.epochs, fixed.steps_per_run) == (BINS, 3, 12)
    assert (of_one.batches, of_one.epochs, afresh.steps_per_run) == (BINS, 1, BINS)
    assert fixed.is_sampled
    assert afresh.is_sampled
    assert "places are kept for 3 epochs" in fixed.noise
    assert "places are drawn anew for every epoch" in afresh.noise
    # Noise that goes on from one epoch to the next, while places do not, is not amplified.
    plain = Correlated(AFRESH, ROOT, 12)
    assert not plain.is_sampled
    assert plain.participation == MinSeparation(12, 1, 3)
    assert not Correlated(AFRESH, Restarted(ROOT, BINS + 1), 12).is_sampled
    assert not Correlated(dataclasses.replace(AFRESH, participations=2), Restarted(ROOT, BINS), 12).is_sampled
    with pytest.raises(ValueError, match="steps = 13 are more than one run of 12"):
        Correlated(FIXED, ROOT, 13)
    assert Correlated(FIXED, Restarted(ROOT, 12), 24).mechanism(1.0).epochs == 3
    with pytest.raises(ValueError, match="participations = 2"):
        BallsInBinsSampler(EXAMPLES, BINS, 201, participations=2)
    assert FIXED.mechanism(2.0).epochs == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sampler", "noise", "runs"), [(FIXED, ROOT, 1), (AFRESH, Restarted(ROOT, BINS), 3)], ids=["fixed", "afresh"]
)
def test_a_plan_spends_its_budget_by_bins(sampler, noise, runs):
    one = trainer(sampler=sampler, noise=noise)
    bins = ja.BallsInBins(ROOT, one.noise_multiplier, BINS, 3 // runs)
    found = ja.epsilon(bins, runs, one.delta_for_accounting)
    assert one.plan.certified.upper == pytest.approx(float(found.upper), rel=1e-9)
    assert 0.998 * one.epsilon < found.upper <= one.epsilon
    assert one.plan.certified.lower == pytest.approx(float(found.lower), rel=1e-6)
    assert one.plan.certified.lower < one.plan.certified.upper
    report = build_report(one, [])
    assert "accounted by balls in bins" in report["config"]["noise"]
    assert ("the same in all epochs of a run" in report["final"]["guarantee"]) == (sampler is FIXED)
    json.dumps(report["config"])
    one.fit(12)
    assert certified_epsilon(one).upper <= one.epsilon
    plain = trainer(sampler=AFRESH, noise=ROOT, steps=12)
    assert runs == 1 or one.noise_multiplier < plain.noise_multiplier


@pytest.mark.exhaustive
def test_noise_begins_anew_with_the_epochs_also_after_another_stream_began(tmp_path):
    """A run that cannot repeat bits goes on within its epoch by a fresh stream: the next epoch begins one, too."""
    options = {"sampler": AFRESH, "noise": Restarted(ROOT, BINS), "steps": 16}
    run_until_killed(trainer(**options), tmp_path / "run", 4, steps=16, every=3)
    for path in (tmp_path / "run").glob("spends*.json"):
        record = ja.train.checkpoints.WriteAhead(tmp_path / "run" / SPENDS).read()
        digests = tuple((step, "0" * 64) for step, _ in record.digests)
        path.write_bytes(dataclasses.replace(record, digests=digests).content())
    again = trainer(**options)
    Checkpoints(tmp_path / "run", every=3).resume(again)
    assert again.steps % BINS
    assert int(again.state.noise.step) % BINS == again.steps % BINS
    left = BINS - again.steps % BINS
    again.fit(left)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(again.state.noise.buffers))


@pytest.mark.exhaustive
def test_amplified_bins_draw_no_integers():
    for sampler, noise in ((FIXED, ROOT), (AFRESH, Restarted(ROOT, BINS))):
        with pytest.raises(ValueError, match="amplified by sampling"):
            trainer(sampler=sampler, noise=noise, noise_arithmetic="integer")
