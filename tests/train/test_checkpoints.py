"""A run that is interrupted and taken up again: the same bits with a seed, no key twice without one, nothing unpaid."""

import dataclasses
import functools
import json
import pathlib
import shutil
import stat
import subprocess
import sys

import numpy as np
import optax
import pytest
from helpers.interrupted import (
    ADAPTIVE,
    EPOCHS,
    QUANTILE,
    Killed,
    assert_same,
    killed_at,
    make,
    resumed,
    run_until_killed,
    spends,
    squared_error,
)
from helpers.thorough import draws

import jaxacct as ja
from jaxacct.train import Checkpoints, build_report, certified_epsilon, checkpoints, config
from jaxacct.train.checkpoints import SETTINGS, SPENDS, STATES
from jaxacct.train.ownership import arrays_of, as_text
from jaxacct.train.planned import Plan

KINDS = {"constant": {}, "adaptive noise": ADAPTIVE, "quantile, odometer": QUANTILE}


@functools.cache
def uninterrupted(kind="constant", steps=12):
    """Returns a trainer after so many steps, which nobody trains on, and its history."""
    trainer = make(**KINDS[kind])
    return trainer, trainer.fit(steps, every=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_the_middle", [False, True])
def test_with_a_seed_a_resumed_run_is_the_uninterrupted_one(kind, in_the_middle, tmp_path):
    options = KINDS[kind]
    whole, whole_history = uninterrupted(kind)
    lost = make(**options)
    run_until_killed(lost, tmp_path / "run", 6, in_the_middle=in_the_middle)
    again = make(**options)
    history = resumed(again, tmp_path / "run")
    assert_same(again, whole)
    assert history == whole_history[-len(history) :]
    assert again.progress == whole.progress
    assert again.stopping_was_planned == whole.stopping_was_planned == (options is not ADAPTIVE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, ADAPTIVE, QUANTILE], ids=["filter", "query", "odometer"])
def test_what_was_foreseen_is_what_was_spent(options, tmp_path):
    trainer = make(**options)
    lines = []
    keeper = Checkpoints(tmp_path / "run", every=1000)
    write = keeper.spends.write
    keeper.spends.write = lambda record: (lines.append(record), write(record))
    trainer.fit(None if options is ADAPTIVE else 60, every=7, keeper=keeper)
    assert len(lines) >= 8
    first, *lines, last = lines  # with the first checkpoint, and with the last
    assert (first.stop, last.stop) == (0, trainer.steps)
    for foreseen, done in zip(lines[::2], lines[1::2], strict=True):
        assert [*foreseen.digests, (done.stop, done.digests[-1][1])] == [*done.digests]
        assert (foreseen.stop, foreseen.ledger, foreseen.epsilon) == (done.stop, done.ledger, done.epsilon)
    assert lines[-1].epsilon == trainer.spent_epsilon <= trainer.epsilon
    assert lines[-1].stop == trainer.steps


def test_without_a_seed_no_key_is_used_twice_and_lost_updates_stay_paid_for(tmp_path):
    used = []

    class Recording(Checkpoints):
        def begin(self, trainer, steps):
            count = super().begin(trainer, steps)
            key = tuple(np.asarray(trainer.state.key).tolist())
            used.extend((key, trainer.steps + i) for i in range(count))
            return count

    def interrupted(trainer, keeper, steps, at):
        with pytest.raises(Killed):
            trainer.fit(steps, every=2, on_evaluation=killed_at(at), keeper=keeper)
        keeper.close()

    first = make(seed=None, ledger="filter")
    interrupted(first, Recording(tmp_path / "run", every=4), 12, 6)  # a checkpoint at 4, two updates lost
    released = first.spent_epsilon
    second = make(seed=None, ledger="filter")
    keeper = Recording(tmp_path / "run", every=4)
    assert keeper.resume(second) == 8
    assert (second.steps, second.progress.lost_steps) == (4, 2)
    assert second.spent_epsilon == released
    interrupted(second, keeper, 8, 10)  # again: checkpoints at 4 and 8, two more lost
    third = make(seed=None, ledger="filter")
    keeper = Recording(tmp_path / "run", every=4)
    assert keeper.resume(third) == 4
    assert (third.steps, third.progress.lost_steps) == (8, 4)
    third.fit(4, every=2, keeper=keeper)
    assert len(used) == len(set(used)) == 16
    assert len({key for key, _ in used}) == 3
    planned = make(seed=None, ledger="filter")
    _, ledger = planned.state.ledger.spend_cost(planned.program.curve(planned.state), 16)
    assert third.spent_epsilon == pytest.approx(float(ledger.epsilon()), rel=1e-12)
    assert third.spent_epsilon >= float(ledger.epsilon()) * (1 - 1e-15)
    assert not third.stopping_was_planned
    with pytest.raises(ValueError, match="an interruption lost 4 updates"):
        certified_epsilon(third)
    report = build_report(third, [])
    assert report["final"]["epsilon_certified"] is None
    assert not any(str(word) in json.dumps(report) for key, _ in used for word in key)


@pytest.mark.exhaustive
def test_a_last_epoch_that_cannot_be_drawn_anew_ends_the_run_and_gives_the_model_back(tmp_path, monkeypatch):
    options = {**EPOCHS, "epsilon": None, "steps": 10, "seed": None}
    certified = ja.Bounds(0.4, 0.5, 0.6)  # as if: the accountant takes longer than the runs
    plan = Plan(sampler=EPOCHS["sampler"], noise_multiplier=3.0, steps=10, epsilon=0.6, delta=1e-3, certified=certified)
    monkeypatch.setattr(config, "_plan", lambda *given: plan)
    first = make(**options)
    run_until_killed(first, tmp_path / "run", 8, every=4, steps=10)
    again, keeper = make(**options), Checkpoints(tmp_path / "run", every=4)
    assert keeper.resume(again) == 0
    assert (again.steps, again.remaining_steps, again.stopping_was_planned) == (10, 0, False)
    np.testing.assert_array_equal(again.model.kernel, first.model.kernel)
    assert not again.step(again.state)[0]
    assert again.fit(keeper=keeper) == []
    assert certified_epsilon(again).upper == certified.upper


def test_an_epoch_that_was_lost_in_its_middle_is_paid_for_anew(tmp_path):
    first = make(seed=None, **EPOCHS, ledger="filter")
    run_until_killed(first, tmp_path / "run", 8, every=8)
    again = make(seed=None, **EPOCHS, ledger="filter")
    Checkpoints(tmp_path / "run", every=8).resume(again)
    assert again.steps == 8
    assert again.progress.lost_steps == 3  # of five: the epoch's first three, drawn by the old key
    _, ledger = first.state.ledger.spend_cost(first.program.curve(first.state))
    assert again.spent_epsilon == float(ledger.epsilon()) > first.spent_epsilon


@pytest.mark.exhaustive
def test_updates_that_cannot_be_repeated_bit_for_bit_stay_paid_for(tmp_path):
    first = make()
    run_until_killed(first, tmp_path / "run", 6)
    other = make(loss=lambda model, x, y: 0.5 * squared_error(model, x, y))  # as other hardware would round otherwise
    Checkpoints(tmp_path / "run", every=4).resume(other)
    assert (other.steps, other.progress.lost_steps) == (4, 2)
    assert other.spent_epsilon == first.spent_epsilon
    assert as_text(arrays_of(other.state.key)) != as_text(arrays_of(first.state.key))


def test_a_run_that_goes_on_to_another_end_was_not_planned(tmp_path):
    run_until_killed(make(), tmp_path / "run", 6)
    trainer = make()
    keeper = Checkpoints(tmp_path / "run", every=4)
    assert keeper.resume(trainer) == 6
    assert not trainer.stopping_was_planned  # it has not come to its end
    trainer.fit(2, keeper=keeper)
    assert not trainer.stopping_was_planned
    keeper.close()
    later = make()
    assert Checkpoints(tmp_path / "run", every=4).resume(later) == 0
    assert not later.stopping_was_planned


def test_a_second_fit_that_is_interrupted_is_not_forgotten(tmp_path):
    trainer = make()
    keeper = Checkpoints(tmp_path / "run", every=20)
    trainer.fit(4, keeper=keeper)
    assert trainer.stopping_was_planned
    with pytest.raises(Killed):
        trainer.fit(8, every=2, on_evaluation=killed_at(6), keeper=keeper)
    keeper.close()
    again = make()
    assert Checkpoints(tmp_path / "run", every=20).resume(again) == 6
    assert again.steps == 6
    again.fit(6)
    assert_same(again, uninterrupted()[0])
    assert not again.stopping_was_planned


def test_a_full_disk_leaves_the_record_as_it_was(tmp_path, monkeypatch):
    keeper = Checkpoints(tmp_path / "run", every=2)
    trainer = make()
    trainer.fit(2, keeper=keeper)
    before = (tmp_path / "run" / SPENDS).read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            keeper.spends.write(dataclasses.replace(keeper.spends.read(), paid=9))
    assert (tmp_path / "run" / SPENDS).read_bytes() == before
    trainer.fit(2, keeper=keeper)
    assert keeper.spends.read().stop == 4


def test_a_record_stays_small_however_rare_checkpoints_are(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MOST_DIGESTS", 3)
    trainer, keeper, counts = make(), Checkpoints(tmp_path / "run", every=1000), []
    trainer.fit(8, every=1, keeper=keeper, on_evaluation=lambda _: counts.append(len(keeper.spends.read().digests)))
    assert counts == [1, 2, 0, 1, 2, 0, 1, 2]
    assert keeper.spends.read().stop == 8


@pytest.mark.parametrize("which", [0, 1])
def test_one_file_that_is_lost_or_damaged_changes_nothing_and_is_written_again(which, tmp_path):
    run_until_killed(make(), tmp_path / "run", 6)
    paths = Checkpoints(tmp_path / "run", every=4).spends.paths
    paths[which].write_bytes(paths[which].read_bytes()[:-9])
    again = make()
    resumed(again, tmp_path / "run")
    assert_same(again, uninterrupted()[0])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert spends(tmp_path / "run")["stop"] == 12


def test_the_folder_is_its_owners_and_the_last_checkpoints_stay(tmp_path):
    folder = tmp_path / "run"
    trainer = make(seed=None)
    keeper = Checkpoints(folder, every=2, keep=2)
    trainer.fit(8, keeper=keeper)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len([entry for entry in (folder / STATES).iterdir() if entry.name.isdigit()]) == 2
    with pytest.raises(ValueError, match="in use by another process"):
        Checkpoints(folder, every=2).resume(make(seed=None))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    keeper = Checkpoints(folder, every=2)
    make().fit(4, keeper=keeper)
    keeper.close()
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"examples": 199, "expected_batch_size": 199 / 5}, "examples: 200 there, 199 here"),
        ({"width": 4}, r"parameters kernel: float32 \(3, 1\) there, float32 \(4, 1\) here"),
        ({"epsilon": 3.0}, "epsilon: 4.0 there, 3.0 here"),
        ({"delta": 1e-4}, "delta: 0.001 there, 0.0001 here"),
        ({"noise_multiplier": 2.0}, "noise_multiplier=3.0.* there, .*noise_multiplier=2.0.* here"),
        ({"expected_batch_size": 50}, "sampling_rate=0.2.* there, .*sampling_rate=0.25.* here"),
        ({"clip_norm": 2.0}, r"clipping: Flat\(clip_norm=1.0\) there, Flat\(clip_norm=2.0\) here"),
        ({"ledger": "odometer"}, "ledger: planned there, odometer here"),
        ({"seed": 2}, "seed: 1 there, 2 here"),
        ({"seed": None}, "seed: 1 there, operating system here"),
        ({"optimizer": optax.sgd(0.1)}, "optimizer .* there, none here"),
        (ADAPTIVE, "policy: Constant.* there, AdaptiveNoise.* here"),
    ],
)
def test_another_runs_folder_is_refused_by_what_differs(options, words, finished):
    with pytest.raises(ValueError, match=words):
        Checkpoints(finished, every=2).resume(make(**options))


@pytest.mark.exhaustive
def test_a_folder_with_a_run_or_something_else_is_not_written_to(finished, tmp_path):
    with pytest.raises(ValueError, match="hold a run: resume it"):
        make().fit(1, keeper=Checkpoints(finished, every=2))
    nameless = tmp_path / "nameless"
    shutil.copytree(finished, nameless)
    (nameless / SETTINGS).unlink()
    with pytest.raises(ValueError, match=r"run\.json is missing"):
        make().fit(1, keeper=Checkpoints(nameless, every=2))
    shutil.rmtree(nameless)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else"):
        make().fit(1, keeper=Checkpoints(tmp_path, every=2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        Checkpoints(tmp_path / "none", every=2).resume(make())
    with pytest.raises(ValueError, match="every = 0"):
        Checkpoints(tmp_path / "none", every=0)


def _both(folder, damage):
    for path in Checkpoints(folder, every=2).spends.paths:
        damage(path)


def _damage_spends(path):
    text = path.read_text()
    at = text.index('"epsilon": ') + len('"epsilon": ')
    path.write_text(text[:at] + ("8" if text[at] == "0" else "0") + text[at + 1 :])


def _last_state(folder):
    return folder / STATES / max((e.name for e in (folder / STATES).iterdir()), key=int)


def _damage_state(folder):
    largest = max((p for p in _last_state(folder).rglob("*") if p.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 255
    largest.write_bytes(bytes(content))


def _remove_state(folder):
    for path in _last_state(folder).rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: _both(folder, _damage_spends),
            "spends.copy.json is damaged: what the run has spent",
        ),
        (
            lambda folder: _both(folder, pathlib.Path.unlink),
            "spends.copy.json is missing: what the run has spent",
        ),
        (lambda folder: _both(folder, lambda path: path.write_text("")), "is damaged: what the run has spent is not"),
        (lambda folder: (folder / SETTINGS).write_text("{"), "run.json is damaged"),
        (lambda folder: (folder / SETTINGS).unlink(), "no run"),
        (_damage_state, "is damaged: restore it"),
        (_remove_state, "is damaged: restore it"),
    ],
)
def test_damage_is_named(damage, words, finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        Checkpoints(folder, every=2).resume(make())


def test_a_damaged_checkpoint_may_be_deleted_and_what_followed_stays_paid_for(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    whole, _ = uninterrupted(steps=4)
    while True:  # the checkpoint at the end of fit, and the one at the same step before it
        shutil.rmtree(_last_state(folder))
        again = make()
        keeper = Checkpoints(folder, every=2)
        keeper.resume(again)
        keeper.close()
        if again.steps < 4:
            break
        shutil.rmtree(_last_state(folder))
    assert again.steps == 2
    assert again.spent_epsilon == whole.spent_epsilon
    assert as_text(arrays_of(again.state.key)) != as_text(arrays_of(whole.state.key))


@pytest.mark.exhaustive
def test_a_run_that_is_killed_again_and_again_is_the_one_that_nobody_killed():
    """The short form of bench/studies/crash.py: at each kill the ledger is not behind, and the end's bits are equal."""
    kills, steps = draws(1, 3), draws(12, 24)
    settings = ["--kills", str(kills), "--steps", str(steps), "--seed", "3", "--json"]
    command = [sys.executable, "-m", "bench.studies.crash", *settings]
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["kills"] == kills
    assert figures["final"]["steps"] == steps * kills
    assert figures["releases"] > 0
