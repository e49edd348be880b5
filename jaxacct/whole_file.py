"""Files that are there whole or not at all, whatever ends the process while they are written."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO


def write_whole(path: pathlib.Path, write: Callable[[BinaryIO], Any], *, mode: int = 0o644) -> None:
    """Writes a file by ``write``, under another name first; when this returns it is on the disk. Makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # a temporary file is private to its owner
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise
