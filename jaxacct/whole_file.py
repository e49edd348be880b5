"""Files that are there whole or not at all, whatever ends the process while they are written."""

from __future__ import annotations

import os
import pathlib
import secrets
from collections.abc import Callable
from typing import Any, BinaryIO

PUBLIC, PRIVATE = 0o666, 0o600
"""Modes of new files, of which the process's umask takes its share: for whom it lets, and for the owner alone."""


def write_whole(path: pathlib.Path, content: bytes | Callable[[BinaryIO], Any], *, mode: int = PUBLIC) -> None:
    """Writes ``content``, or what it writes, under another name first; when this returns it is on the disk.

    Makes the file's folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        synchronize(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def synchronize(path: pathlib.Path) -> None:
    """Returns when a file, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
