"""Checkpoints of a training run, and a record of its spending that is never behind what was released.

Files on the disk, and the order in which they get there
--------------------------------------------------------
* ``states/``: the last few checkpoints, numbered; each holds the whole state but frozen parameters, which the settings
  know by a digest; written by Orbax and complete or absent.
* ``spends.json``, ``spends.copy.json``: the write-ahead record. Before updates are computed it says what the ledger
  will be after them. For updates that can be made again, it also has a digest of the state that they led to, written
  after them and before anybody sees it. Both files have the same content, so that one may be cut, lost or set back
  (:class:`WriteAhead`, with the proof).
* ``run.json``: the settings, by which a run is known again. Written last: without it no run has begun.

So at each moment the record shows at least what has been released, whatever ends the process.

Updates that were made after the last checkpoint and lost
---------------------------------------------------------
With a seed given, or correlated noise, they are made again from the same keys, and the digests tell whether they gave
the same bits. If they did, the second release is the first one, and nothing was spent twice. Otherwise, or where a bit
differs (other hardware, another compiler), they stay paid for, and the run goes on from the checkpoint with a new key
and a new stream of noise: no key makes noise for two different sums. A stream that is paid for as a whole ends there.

A checkpoint holds the key of the run, and whoever has the key can redo the noise and subtract it. The folder is
therefore for its owner only (mode 0700, its files 0600). Publish the report and the parameters, never this folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxacct import json_files, validation
from jaxacct.json_files import PRIVATE, synchronize, write_whole
from jaxacct.numerics.chacha20 import as_stored, is_chacha20
from jaxacct.strategies import Restarted
from jaxacct.train.keys import as_threefry, run_key
from jaxacct.train.models import without_params
from jaxacct.train.ownership import Arrays, Leaf, arrays_of, as_text, differences, digest, of_text, place, tree_of
from jaxacct.train.progress import Progress
from jaxacct.train.saving import agreed_key, meet, writes
from jaxacct.train.state import TrainState
from jaxacct.train.trainer import DPTrainer, fingerprint

SETTINGS, SPENDS, STATES, LOCK = "run.json", "spends.json", "states", "lock"
"""Names within a run's folder: settings, write-ahead record, checkpoints, and the file that is locked."""

MOST_DIGESTS = 1000
"""Number of digests in the record after which there is a checkpoint, due or not. The record has to stay far below
:data:`.MOST_BYTES`, beyond which it is not read; a digest has some 80 bytes."""


# ----------------------------------------------------------------------------------------------------
# Write-ahead record of what a run has spent: two small files, on disk before the updates that they pay for are made.
#
# Each of the files has all of the record, and is replaced whole: first the one, then the other. Both are synchronized
# with the disk before the method returns. A reader takes the newer of the undamaged ones.
#
# Why a record that is read back is never below what was released
# ---------------------------------------------------------------
# A record is made from a ledger that has paid for all that was released before, and nothing more is released until the
# method that writes it has returned. So let n be the last record whose writing has returned: what was released is paid
# for by n, and by n + 1, if that was begun. Whatever ends the process, *each* file has n or n + 1. If one of them was
# cut, damaged, removed or set back to an earlier time, the newer one still has n or n + 1. Where both are cut or
# damaged, their checksums say so, and reading is refused. No file can show that both of them, and the checkpoints, were
# set back together.
#
# Why no database: a database that was cut is repaired by giving up its last writes, which are those that must be kept.
# Nine in ten of all cuts of SQLite's log open without an error and with fewer rows.
# ----------------------------------------------------------------------------------------------------

MOST_BYTES = 2**24
"""Most bytes read of a file. A record has some thousands; a longer file is none, and is not read to its end. A value
below a record's length would make it count as damaged. Sound for any value: what is damaged is refused."""


@dataclass(frozen=True)
class Record:
    """A statement of what has been spent, or is about to be.

    Attributes:
        after: number of the checkpoint that it follows.
        stop: number of steps that it covers, from the run's first.
        paid: number of updates paid for until then, lost ones included.
        epsilon: the ledger's at ``stop``.
        ledger: the leaves of the ledger at ``stop``.
        digests: steps since that checkpoint whose states were computed, with the digests of those.
        number: larger than that of any record of the run before.
    """

    after: int
    stop: int
    paid: int
    epsilon: float
    ledger: tuple[Leaf, ...]
    digests: tuple[tuple[int, str], ...] = ()
    number: int = 0

    def content(self) -> bytes:
        """Returns the record as JSON with a checksum; no proper part of it is JSON, so that a cut file is found out."""
        entries = json_files.loads(json_files.dumps(dataclasses.asdict(self)))
        return json.dumps({"crc32": _checksum(entries), **entries}).encode()

    @classmethod
    def of_content(cls, content: bytes) -> Record:
        """Returns the record of a whole file; raises ValueError, KeyError or TypeError where it is none."""
        entries = dict(json_files.loads(content))
        if entries.pop("crc32") != _checksum(entries):
            raise ValueError("the checksum is another.")
        if any(type(entries[name]) is not int or entries[name] < 0 for name in ("after", "stop", "paid", "number")):
            raise ValueError("a count is no whole number.")
        ledger = tuple((dtype, tuple(shape), digits) for dtype, shape, digits in entries.pop("ledger"))
        digests = tuple((int(step), str(digest)) for step, digest in entries.pop("digests"))
        return cls(ledger=ledger, digests=digests, **entries | {"epsilon": float(entries["epsilon"])})


def _checksum(entries: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


class WriteAhead:
    """The two files of a record: ``path`` and its copy."""

    def __init__(self, path: pathlib.Path) -> None:
        self.paths = path, path.with_suffix(f".copy{path.suffix}")

    def write(self, record: Record) -> None:
        """Replaces the record by one with a larger number; when this returns it is on the disk."""
        for path in self.paths:
            write_whole(path, record.content(), mode=PRIVATE)

    def read(self) -> Record:
        """Returns the record; raises ValueError or FileNotFoundError where what was spent is not known."""
        records, reasons = [], []
        # Every file is tried: one that is damaged or missing only counts where there is no other.
        for path in self.paths:
            try:
                with path.open("rb") as file:
                    records.append(Record.of_content(file.read(MOST_BYTES)))
            except FileNotFoundError:
                reasons.append(f"{path.name} is missing")
            except (ValueError, KeyError, TypeError):
                reasons.append(f"{path.name} is damaged")
        if not records:
            kind = ValueError if self.exists() else FileNotFoundError
            raise kind(
                f"{self.paths[0].parent}: {', '.join(reasons)}: what the run has spent is not known. Restore one of "
                "the files, or begin a run in another folder and count this one's whole budget as spent."
            )
        return max(records, key=lambda record: record.number)

    def exists(self) -> bool:
        """Returns whether at least one of the files exists."""
        return any(path.exists() for path in self.paths)


# ----------------------------------------------------------------------------------------------------
# The keeper, and how it takes a run up.
# ----------------------------------------------------------------------------------------------------


class Checkpoints:
    """A keeper that has a run on disk while :meth:`.DPTrainer.fit` makes it, and takes it up again.

    Args:
        folder: of this run alone; made if it is not there. It holds the run's key: see the module.
        every: most updates between checkpoints; there is one more at the end of each ``fit``. Lower it where updates
            are dear to lose; each checkpoint writes the whole state.
        keep: how many of the last checkpoints stay. Raise it where the disk may damage files.

    Attributes:
        resumed: in a line, where :meth:`resume` took the run up and what was lost; None before.

    Hand it to ``fit`` as ``keeper``. One process writes to a folder at a time: where several make a run together, the
    first of them writes, and all have to see the folder.

    Formal guarantee: at every moment the epsilon in ``spends.json`` is an upper bound, in the ledger's sense, for all
    that calls of ``fit`` with this keeper have released, before an interruption and after it.
    A copy of the folder is another run, which releases things of its own.

    Raises ValueError where ``every`` or ``keep`` is no whole number of at least 1; at the first update of a ``fit``,
    where the folder already holds a run that was not resumed, or something else.

    >>> import optax, tempfile
    >>> from flax import nnx
    >>> def trainer():
    ...     return DPTrainer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda m, x: m(x)[0], optax.sgd(0.1),
    ...                      (np.ones((50, 2), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
    ...                      expected_batch_size=10, clip_norm=1.0, seed=0)
    >>> folder = tempfile.TemporaryDirectory()
    >>> keeper = Checkpoints(f"{folder.name}/run", every=2)
    >>> _ = trainer().fit(steps=3, keeper=keeper)
    >>> keeper.close()
    >>> again = trainer()
    >>> Checkpoints(f"{folder.name}/run", every=2).resume(again), again.steps
    (0, 3)
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int, keep: int = 3) -> None:
        every = validation.check_count(every, "every", "the updates between checkpoints")
        keep = validation.check_count(keep, "keep", "how many checkpoints stay")
        self.folder, self.every, self.keep = pathlib.Path(folder).absolute(), int(every), int(keep)
        self.spends = WriteAhead(self.folder / SPENDS)
        self._trainer: DPTrainer | None = None
        self._saved_progress = Progress()
        self._serial = self._saved_at = self._number = 0
        self._digests: tuple[tuple[int, str], ...] = ()
        self._lock: Any = None
        self._manager: Any = None
        self.resumed: str | None = None

    @property
    def holds_run(self) -> bool:
        """Whether there is a run to resume."""
        return (self.folder / SETTINGS).exists()

    def check(self, *, resume: bool) -> None:
        """Raises where the folder has no run to resume, or has one where a new run is to begin: before any work."""
        if resume and not self.holds_run:
            raise FileNotFoundError(f"checkpoints = {self.folder} hold no run: there is nothing to resume.")
        if not resume and self.holds_run:
            raise ValueError(
                f"checkpoints = {self.folder} hold a run: resume it, by resume(trainer) or on the command line by "
                "--resume, or name another folder for a new one."
            )

    def begin(self, trainer: DPTrainer, steps: int) -> int:
        """Writes down what up to ``steps`` updates will have spent, and returns for how many it did."""
        if self._trainer is None:
            self._start(trainer)
        if trainer is not self._trainer:
            raise ValueError(f"checkpoints = {self.folder} are of another trainer: give this one a folder of its own.")
        if trainer.progress != self._saved_progress:  # another call of fit, which an interruption must not hide
            self._save(trainer)
        steps = max(1, min(steps, self._saved_at + self.every - trainer.steps))
        ledger, count = trainer.foreseen(steps)
        self._write_ahead(trainer, trainer.steps + count, ledger)
        return steps

    def finish(self, trainer: DPTrainer) -> None:
        """Writes down what the updates led to, and makes a checkpoint where one is due."""
        if trainer.repeats:  # without repeats, the record that begin wrote says all: paid for
            state = trainer.state
            self._digests += ((trainer.steps, _digest_of_state(state)),)
            self._write_ahead(trainer, trainer.steps, state.ledger)
        if trainer.steps >= self._saved_at + self.every or len(self._digests) >= MOST_DIGESTS:
            self._save(trainer)

    def end(self, trainer: DPTrainer) -> None:
        """Makes the last checkpoint of a call of ``fit``."""
        if self._trainer is not None:
            self._save(trainer)

    def close(self) -> None:
        """Releases the folder, for another process or object to take the run up."""
        if self._manager is not None:
            self._manager.close()
        if self._lock is not None:
            self._lock.close()
        self._manager = self._lock = self._trainer = None

    def delete(self) -> None:
        """Deletes the run in the folder, if there is one, with the record of what it spent: that stays spent.

        Raises ValueError where another process has it.
        """
        if self.holds_run:
            self._open()
            try:
                shutil.rmtree(self.folder)
            finally:
                self.close()

    def resume(self, trainer: DPTrainer) -> int | None:
        """Puts ``trainer`` where the run in the folder was, and returns how many updates its ``fit`` had left.

        Args:
            trainer: made as the run's was, and not trained.

        Returns:
            The number of steps to give to :meth:`.DPTrainer.fit` for the run to end where it was planned to end; None
            if no ``fit`` had been called.

        Formal guarantee: the trainer's ledger afterwards covers all that the run has released. Without a seed it also
        covers the updates that were begun after the last checkpoint; they are in
        ``trainer.progress.lost_steps``, and the length of the run no longer counts as planned.

        Raises:
            FileNotFoundError: no run in the folder, or a file of it is missing.
            ValueError: another run's folder, a damaged file, a folder in use, a trainer that has trained; the message
                says which and what to do. The trainer is then as it was before.
        """
        self.check(resume=True)
        if trainer.steps or trainer.progress != Progress():
            raise ValueError("trainer has trained: what it released would be forgotten. Give one that was just made.")
        before, constants = trainer.state, trainer.constants
        try:
            self._open()
            self.check(resume=True)  # again: until the folder was taken, another process could do as it liked
            self._resume(trainer)
        except BaseException:
            trainer._restore(before, Progress(), constants)
            self.close()
            raise
        self._trainer = trainer
        return None if trainer.progress.goal is None else max(trainer.progress.goal - trainer.steps, 0)

    def _resume(self, trainer: DPTrainer) -> None:
        self._check_settings(trainer)
        record = self.spends.read()
        self._number = record.number + 1
        unfinished = record.after + 1  # it counts once the record follows it
        if any(entry.name.isdigit() and int(entry.name) > unfinished for entry in (self.folder / STATES).iterdir()):
            raise ValueError(f"{self.folder / SPENDS} is older than the checkpoints beside it: restore the right one.")
        meet("record")
        if writes():
            shutil.rmtree(self.folder / STATES / str(unfinished), ignore_errors=True)
        meet("states")
        # The checkpoint first; then the lost updates again, if they can be; else the checkpoint once more, charged with
        # all that the record says is spent. Whichever it was, a new checkpoint follows before anything is released.
        state, constants, progress = self._read(trainer)
        trainer._restore(state, progress, constants)
        repeated, begun = self._repeat(trainer, record), int(state.step)
        if not repeated:
            trainer._restore(state, progress, constants)
            trainer._restore(*_charge(trainer, record))
        self._save(trainer)
        self.resumed = trainer.progress.describe_resume(trainer.steps, begun, progress, repeats=trainer.repeats)

    def _repeat(self, trainer: DPTrainer, record: Record) -> bool:
        """Makes lost updates again that were completed, and returns whether all gave the same bits as before."""
        if not trainer.repeats or record.after != self._serial:
            return False
        progress = trainer.progress
        # One pass per digest: a call of fit up to the step at which the digest was taken. The first difference ends it,
        # and the caller restores the checkpoint.
        for step, expected in record.digests:
            trainer.fit(step - trainer.steps, progress=False)
            if trainer.steps != step or _digest_of_state(trainer.state) != expected:
                return False
        trainer._restore(trainer.state, progress)
        return True

    def _start(self, trainer: DPTrainer) -> None:
        """Makes the folder of a new run, whose first checkpoint is the state before anything was spent here."""
        if writes():
            self._check_empty()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._open()
        try:
            if writes():
                self._check_empty()  # again: until the folder was taken, another process could begin a run in it
                shutil.rmtree(self.folder / STATES, ignore_errors=True)  # of a run that was killed before it began
                (self.folder / STATES).mkdir(mode=0o700)
            meet("folder")
            self._serial, self._number = -1, 0
            self._save(trainer)
            settings = json.dumps(fingerprint(trainer), indent=1).encode()
            if writes():
                write_whole(self.folder / SETTINGS, settings, mode=PRIVATE)
        except BaseException:
            self.close()
            raise
        self._trainer = trainer

    def _check_empty(self) -> None:
        """Raises where the folder holds a run, or anything but what a run leaves that was killed at its start."""
        self.check(resume=False)
        if self.folder.exists():
            ours = {STATES, LOCK, *(path.name for path in self.spends.paths)}
            strange = [name for name in os.listdir(self.folder) if name not in ours and not name.startswith(".")]
            if strange or (self.spends.exists() and self.spends.read().number > 0):
                raise ValueError(
                    f"checkpoints = {self.folder} is a folder of something else, or of a run whose "
                    f"{SETTINGS} is missing: name a folder of its own."
                )

    def _open(self) -> None:
        """Takes the folder for this process, and from everybody else."""
        if not writes():
            return
        self.folder.chmod(0o700)
        if self._lock is None:
            try:
                self._lock = json_files.lock(self.folder / LOCK)
            except OSError as error:
                raise ValueError(
                    f"checkpoints = {self.folder} are in use by another process ({error}): end it, or name another "
                    "folder."
                ) from None

    def _check_settings(self, trainer: DPTrainer) -> None:
        path = self.folder / SETTINGS
        try:
            there = dict(json_files.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise ValueError(f"{path} is damaged: restore it, or begin a run in another folder.") from None
        if differing := differences(there, fingerprint(trainer)):
            raise ValueError(
                f"checkpoints = {self.folder} are of another run ({differing}): give the settings that it was begun "
                "with, or name another folder. (A run without 'noise arithmetic' is of noise_arithmetic='float64'.)"
            )

    def _write_ahead(self, trainer: DPTrainer, stop: int, ledger: Any) -> None:
        """Writes down what the run has spent at step ``stop``; when this returns it is on the disk."""
        paid, leaves, number = stop + trainer.progress.lost_steps, as_text(arrays_of(ledger)), self._number
        self._number += 1  # before writing: if that fails halfway, one of the files may have this number
        if writes():
            self.spends.write(Record(self._serial, stop, paid, float(ledger.epsilon()), leaves, self._digests, number))
        meet("spends")

    def _orbax(self) -> Any:
        if self._manager is None:
            import orbax.checkpoint

            processes: dict[str, Any] = {}
            if jax.process_count() > 1:  # each by itself: what it stores is whole, and lies on no device
                this = jax.process_index()
                processes = {"primary_host": this, "active_processes": {this}}
                processes["barrier_sync_key_prefix"] = f"jaxacct{this}"
            alone = orbax.checkpoint.options.MultiprocessingOptions(**processes)
            options = orbax.checkpoint.CheckpointManagerOptions(
                max_to_keep=self.keep, create=False, enable_async_checkpointing=False,
                cleanup_tmp_directories=writes(), multiprocessing_options=alone,
            )  # fmt: skip
            self._manager = orbax.checkpoint.CheckpointManager(self.folder / STATES, options=options)
        return self._manager

    def _save(self, trainer: DPTrainer) -> None:
        """Makes a checkpoint; only then the record of spending follows it."""
        from orbax.checkpoint import args

        state = trainer.state
        arrays = arrays_of((state, without_params(trainer.constants)))
        meta = {"plan": trainer.progress._asdict(), "digest": _digest_of(arrays, trainer.progress)}
        serial = self._serial + 1
        if writes():
            items = args.Composite(state=args.StandardSave(_stored_arrays(arrays)), meta=args.JsonSave(meta))
            self._orbax().save(serial, args=items, force=True)
            there = self.folder / STATES / str(serial)
            for path in [*there.rglob("*"), there, self.folder / STATES]:
                path.chmod(0o700 if path.is_dir() else PRIVATE)
                synchronize(path)
        self._serial, self._saved_at, self._saved_progress, self._digests = serial, trainer.steps, trainer.progress, ()
        self._write_ahead(trainer, trainer.steps, state.ledger)

    def _read(self, trainer: DPTrainer) -> tuple[TrainState, Any, Progress]:
        """Returns the last complete checkpoint."""
        from orbax.checkpoint import args

        serial = self._orbax().latest_step()
        if serial is None:
            raise FileNotFoundError(
                f"{self.folder / STATES} has no complete checkpoint: restore it, or begin a new run."
            )
        like = (trainer.state, without_params(trainer.constants))
        expected = arrays_of(like)
        where = self.folder / STATES / str(serial)
        damaged = (
            f"checkpoint {where} is damaged: restore it, or delete it to go on from the one before; what was spent "
            "since stays spent."
        )
        try:
            wanted = args.Composite(state=args.StandardRestore(_stored_arrays(expected)), meta=args.JsonRestore())
            restored = self._orbax().restore(serial, args=wanted)
            recorded, progress = restored.meta["digest"], Progress(**restored.meta["plan"])
            arrays = {
                name: np.asarray(restored.state[name]) if array.size else array for name, array in expected.items()
            }
            computed = _digest_of(arrays, progress)
        except Exception as error:  # Orbax and its storage raise errors of many kinds for a damaged file
            raise ValueError(f"{damaged} ({type(error).__name__}: {str(error).splitlines()[0][:200]})") from None
        if computed != recorded:
            raise ValueError(damaged)
        state, constants = tree_of(arrays, like)
        self._serial = serial
        return state, nnx.merge_state(trainer.constants, constants), progress


def _charge(trainer: DPTrainer, record: Record) -> tuple[TrainState, Progress]:
    """Returns the trainer's state with a new key, and with all paid for that the record says is spent."""
    state, progress = trainer.state, trainer.progress
    if record.paid > trainer.steps + progress.lost_steps:
        lost = record.paid - trainer.steps
        state = dataclasses.replace(state, ledger=tree_of(of_text(record.ledger), state.ledger))
        progress = progress._replace(lost_steps=lost, kept=False)
    begun = trainer.steps % trainer.sampler.steps_per_run
    if begun:  # a new key draws another epoch, of which only the rest is made: post-processing of a whole epoch, paid
        granted, ledger = trainer.program.door.spend(state.ledger, trainer.program.curve(state))
        if granted:
            state = dataclasses.replace(state, ledger=ledger)
            progress = progress._replace(lost_steps=progress.lost_steps + begun, kept=False)
        else:  # the run ends here, as if the epoch had been made
            rest = np.int32(trainer.sampler.steps_per_run - begun)
            state, progress = dataclasses.replace(state, step=state.step + rest), progress._replace(kept=False)
    if trainer.noise is not None:  # another key begins another stream
        first = trainer._first_noise(state.params)
        if isinstance(trainer.noise, Restarted) and first is not None:  # which goes on to begin anew where epochs do
            first = dataclasses.replace(first, step=state.step)
        state = dataclasses.replace(state, noise=tree_of(arrays_of(first), state.noise))
    key = run_key()
    key = as_stored(agreed_key(key if is_chacha20(state.key) else as_threefry(key)))
    return dataclasses.replace(state, key=place(key, state.key.sharding)), progress


def _stored_arrays(arrays: Arrays) -> Arrays:
    """Returns the arrays that have entries: Orbax stores no others."""
    return {name: array for name, array in arrays.items() if array.size}


def _digest_of_state(state: TrainState) -> str:
    """Returns a digest of all that a step changes."""
    return digest(arrays_of({name: value for name, value in vars(state).items() if name != "key"}))


def _digest_of(arrays: Arrays, progress: Progress) -> str:
    """Returns a digest of all that a checkpoint holds, progress included: on that depends what a report may claim."""
    return digest(arrays | {"plan": np.frombuffer(json.dumps(progress).encode(), np.uint8)})
