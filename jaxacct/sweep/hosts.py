"""Several processes: who does what is agreed on once; then each works alone and shows that it is alive.

The only exchange is at the start, when process 0 tells the others which chunks are missing. After that nothing waits
for another process inside a program. Each writes finished chunks, and every few seconds a sign of life, to the shared
folder; who sees no new sign of another for too long stops with an error instead of waiting for ever.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Iterator

import jax
import numpy as np

SIGNS_PER_PATIENCE = 10
"""Signs of life in the time after which a process without any is given up."""

DONE, FAILED = "done", "failed: "


class HostLostError(OSError):
    """Another process of the sweep has failed, or shows no sign of life."""


def index_and_count() -> tuple[int, int]:
    """Returns the number of this process, and how many there are."""
    return jax.process_index(), jax.process_count()


def agreed(values: np.ndarray) -> np.ndarray:
    """Returns the ``values`` (whole numbers) of process 0; all processes must ask, with the same shape."""
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(values.astype(np.int32)))


def forget_signs(folder: pathlib.Path) -> None:
    """Removes the signs of life of an earlier run."""
    for path in folder.glob("process-*"):
        path.unlink(missing_ok=True)


class Presence:
    """The signs of life of this process, and what is known of the others."""

    def __init__(self, folder: pathlib.Path, index: int, count: int, patience: float) -> None:
        self.folder, self.index, self.patience = folder, index, patience
        self.others = [i for i in range(count) if i != index]
        self._seen = dict.fromkeys(self.others, ("", time.monotonic()))
        self._checked = time.monotonic()
        self._stop = threading.Event()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows signs of life within the context; how it was left is the last one."""
        if not self.others:
            yield
            return
        thread = threading.Thread(target=self._show, name="signs of life", daemon=True)
        thread.start()
        last = f"{FAILED}interrupted"
        try:
            yield
            last = DONE
        except BaseException as error:
            last = f"{FAILED}{type(error).__name__}: {error}"
            raise
        finally:
            self._stop.set()
            thread.join()
            self._write(last)

    def check(self) -> None:
        """Raises :class:`HostLostError` where another process has failed or been silent for too long."""
        now = time.monotonic()
        if now - self._checked < self.patience / SIGNS_PER_PATIENCE:
            return
        self._checked = now
        for i in self.others:
            sign = self._sign_of(i)
            if sign.startswith(FAILED):
                raise HostLostError(f"process {i} has failed ({sign.removeprefix(FAILED)})")
            if sign == DONE or sign != self._seen[i][0]:
                self._seen[i] = sign, now
            elif now - self._seen[i][1] > self.patience:
                raise HostLostError(f"process {i} has shown no sign of life for {self.patience:g} s")

    def all_done(self) -> bool:
        """Whether all other processes have left their contexts, and without an error."""
        return all(self._sign_of(i) == DONE for i in self.others)

    def _show(self) -> None:
        for beat in range(2**31):
            self._write(f"alive {beat}")
            if self._stop.wait(self.patience / SIGNS_PER_PATIENCE):
                return

    def _write(self, sign: str) -> None:
        # Whole or not at all matters little here: half a sign is a new one. A folder that is gone was all done.
        with contextlib.suppress(OSError):
            self._path(self.index).write_text(sign)

    def _sign_of(self, i: int) -> str:
        try:
            return self._path(i).read_text()
        except OSError:
            return ""

    def _path(self, i: int) -> pathlib.Path:
        return self.folder / f"process-{i}"
