"""Tests of a run's record of its spending after any cut, crash or damage: never below what was released, or refused."""

import json
import os
import shutil
import stat

import numpy as np
import pytest
from helpers.interrupted import Killed, killed_at, make, run_until_killed

from jaxacct import json_files
from jaxacct.train import Checkpoints, checkpoints
from jaxacct.train.checkpoints import LOCK, SETTINGS, SPENDS, STATES, Record, WriteAhead

REFUSED = r"what the run has spent is not known. Restore one of the files, or begin a run in another folder"


@pytest.fixture(scope="module")
def moments(tmp_path_factory):
    """(file, copy, updates released) at every moment of a run at which its process could end."""
    path = tmp_path_factory.mktemp("moments") / "run" / SPENDS
    paths, found, released = WriteAhead(path).paths, [], [0]

    def look(*_):
        found.append((*(path.read_bytes() if path.exists() else None for path in paths), released[0]))

    def around(function):
        def looked(*arguments, **options):
            look()
            result = function(*arguments, **options)
            look()
            return result

        return looked

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((checkpoints, "write_whole"), (os, "fsync"), (os, "replace")):
            patch.setattr(module, name, around(getattr(module, name)))
        keeper = Checkpoints(path.parent, every=4)
        make(seed=None).fit(
            6, every=1, on_evaluation=lambda entry: (released.__setitem__(0, entry.step), look()), keeper=keeper
        )
        keeper.close()
    return list(dict.fromkeys(found))


def last_paid(path, *contents):
    """Updates that the files show as paid for; None where reading is refused, with words that help."""
    spends = WriteAhead(path)
    for place, content in zip(spends.paths, contents, strict=True):
        place.unlink(missing_ok=True)
        if content is not None:
            place.write_bytes(content)
    try:
        return spends.read().paid
    except (ValueError, FileNotFoundError):
        return None


def test_whatever_ends_the_process_no_release_is_unpaid(moments, tmp_path):
    assert len(moments) > 20
    assert max(released for *_, released in moments) == 6
    for file, copy, released in moments:
        paid = last_paid(tmp_path / SPENDS, file, copy)
        assert released == 0 if paid is None else paid >= released


def test_no_cut_of_either_file_or_of_both_hides_a_release(moments, tmp_path):
    """Each byte of the longest file, some of the others: what one shows is enough, and both cut are refused."""
    rng, path = np.random.default_rng(0), tmp_path / SPENDS
    whole = [moment for moment in moments if None not in moment[:2]]
    longest = max(whole, key=lambda moment: len(moment[0]))
    for moment in whole:
        file, copy, released = moment
        for cut in range(len(file)) if moment is longest else [0, len(file) - 2, *rng.integers(0, len(file) - 1, 4)]:
            if moment is longest and cut % 16 and cut < len(file) - 8:
                with pytest.raises((ValueError, KeyError, TypeError)):
                    Record.of_content(file[:cut])
                continue
            assert last_paid(path, file[:cut], copy) >= released
            assert last_paid(path, file, copy[:cut]) >= released
            assert last_paid(path, file[:cut], copy[: rng.integers(0, len(copy) - 1)]) is None


def test_one_file_of_any_earlier_moment_hides_no_release(moments, tmp_path):
    for old_file, old_copy, _ in moments[::3]:
        for file, copy, released in moments[-1:]:
            assert last_paid(tmp_path / SPENDS, old_file, copy) >= released
            assert last_paid(tmp_path / SPENDS, file, old_copy) >= released


@pytest.mark.parametrize("seed", [1, None])
def test_a_run_whose_record_was_cut_goes_on_with_all_that_was_released_paid_for(seed, tmp_path):
    lost = make(seed=seed)
    run_until_killed(lost, tmp_path / "run", 8, every=20)
    paths = WriteAhead(tmp_path / "run" / SPENDS).paths
    contents = [path.read_bytes() for path in paths]
    assert contents[0] == contents[1]
    for which in range(2):
        folder = tmp_path / str(which)
        shutil.copytree(tmp_path / "run", folder)
        (folder / paths[which].name).write_bytes(contents[which][:-50])
        again = make(seed=seed)
        keeper = Checkpoints(folder, every=20)
        keeper.resume(again)
        keeper.close()
        assert again.spent_epsilon >= lost.spent_epsilon
        assert (again.steps, again.progress.lost_steps) == ((0, 8) if seed is None else (8, 0))
        assert again.stopping_was_planned is False
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content[:-50])
    fresh = make(seed=seed)
    with pytest.raises(ValueError, match=REFUSED):
        Checkpoints(tmp_path / "run", every=20).resume(fresh)
    assert (fresh.steps, fresh.spent_epsilon) == (0, make(seed=seed).spent_epsilon)


LEDGER = (("float32", (), "0000803f"),)
LINE = Record(0, 1, 1, 0.5, LEDGER, ((1, "ab"),)).content()


def with_checksum(**changes):
    entries = {name: value for name, value in json.loads(LINE).items() if name != "crc32"} | changes
    return json.dumps({"crc32": checkpoints._checksum(entries), **entries}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[" * 100_000 + b"\n", b"7\n", b'"text"\n', b"[]\n", b"null\n", b"\xff\xfe\n", b"NaN\n", b"1" * 5000,
        b"\0" * (checkpoints.MOST_BYTES + 5), LINE.replace(b"0.5", b"NaN"), LINE.replace(b"0.5", b"1e999"),
        with_checksum(paid=-1), with_checksum(paid="many"), with_checksum(paid=2.5), with_checksum(number=True),
        with_checksum(ledger=3), with_checksum(ledger=[["float32", 3]]), with_checksum(more=1), with_checksum(after=[]),
        with_checksum(digests=[["a", "b"]]), with_checksum(digests=7), LINE.replace(b"0.5", b"1e-400"),
        LINE.replace(b'"paid"', b'"paid": 1, "paid"'),
    ],
)  # fmt: skip
def test_a_damaged_record_is_one_clear_error_and_its_copy_is_enough(content, tmp_path):
    spends = WriteAhead(tmp_path / SPENDS)
    for path in spends.paths:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=REFUSED):
        spends.read()
    for path in spends.paths:
        path.write_bytes(LINE)
        assert spends.read() == Record.of_content(LINE)
        path.write_bytes(content)


def test_records_of_infinite_epsilon_are_read_back():
    record = Record(0, 1, 1, float("inf"), LEDGER, number=7)
    assert Record.of_content(record.content()) == record


@pytest.mark.parametrize(
    "text",
    [
        "NaN", "-Infinity", "1e999", "[" * 100_000, "1" * 5000, "{", b"\xff", '{"a": 1, "a": 1}',
        '[{"b": {"delta": 1e-5, "steps": 3, "delta": 1e-6}}]', "1e-400", "[-0.001E-330]", '{"delta": 2.4703e-324}',
    ],
)  # fmt: skip
def test_what_is_no_strict_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        json_files.loads(text)


@pytest.mark.parametrize("text", ["0.0", "-0e0", "0.000e-999", "0E9", "5e-324", "2.2250738585072014e-308"])
def test_a_zero_and_a_subnormal_number_are_read_as_they_are(text):
    assert json_files.loads(text) == float(text)


def test_a_run_that_began_between_the_look_and_the_lock_is_not_overwritten(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    late = Checkpoints(folder, every=4)
    opened = late._open

    def other_first():
        other = Checkpoints(folder, every=4)
        make().fit(2, keeper=other)
        other.close()
        opened()

    monkeypatch.setattr(late, "_open", other_first)
    trainer = make()
    with pytest.raises(ValueError, match="hold a run: resume it"):
        trainer.fit(4, keeper=late)
    assert trainer.steps == 0
    assert WriteAhead(folder / SPENDS).read().stop == 2
    assert Checkpoints(folder, every=4).resume(make()) == 0  # and the lock is free


def test_a_folder_that_lost_its_settings_and_its_record_is_still_a_runs(tmp_path):
    keeper = Checkpoints(tmp_path / "run", every=4)
    make().fit(2, keeper=keeper)
    keeper.close()
    for name in (SETTINGS, SPENDS):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(ValueError, match=r"run\.json is missing"):
        make().fit(2, keeper=Checkpoints(tmp_path / "run", every=4))


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_are_their_owners_whatever_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        keeper = Checkpoints(tmp_path / "run", every=2)
        make(seed=None).fit(4, keeper=keeper)
        keeper.close()
    finally:
        os.umask(before)
    paths = list((tmp_path / "run").rglob("*"))
    assert {SETTINGS, SPENDS, STATES, LOCK, "spends.copy.json"} <= {path.name for path in paths}
    wrong = [path for path in paths if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)]
    assert not wrong


def test_a_resume_that_fails_leaves_the_trainer_as_it_was(tmp_path):
    run_until_killed(make(), tmp_path / "run", 6)
    trainer = make()

    class Failing(Checkpoints):
        def _save(self, trainer):
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        Failing(tmp_path / "run", every=4).resume(trainer)
    assert (trainer.steps, trainer.progress) == (0, make().progress)
    assert Checkpoints(tmp_path / "run", every=4).resume(make()) == 6


def test_a_plan_that_was_changed_on_the_disk_is_damage(tmp_path):
    """What a report claims of the run's length is in the checkpoint, too."""
    trainer, keeper = make(), Checkpoints(tmp_path / "run", every=2)
    with pytest.raises(Killed):
        trainer.fit(8, every=2, on_evaluation=killed_at(4), keeper=keeper)
    keeper.close()
    changed = 0
    for path in (tmp_path / "run" / STATES).rglob("*"):
        if path.is_file() and b'"lost_steps"' in path.read_bytes():
            path.write_text(path.read_text().replace('"ended": false', '"ended": true'))
            changed += '"ended": true' in path.read_text()
    assert changed
    with pytest.raises(ValueError, match="is damaged"):
        Checkpoints(tmp_path / "run", every=2).resume(make())
