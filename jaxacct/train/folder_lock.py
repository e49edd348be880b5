"""One process at a time writes to a run's folder."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import IO

from jaxacct.whole_file import PRIVATE


def locked(path: pathlib.Path) -> IO[bytes]:
    """Returns an open file that no other process has, until it is closed or the process ends.

    Raises ValueError where another one has it.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE), "r+b")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ValueError(
            f"checkpoints = {path.parent} are in use by another process ({error}): end it, or name another folder."
        ) from None
    return file
