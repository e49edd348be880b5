"""Strict JSON, files that are written whole or not at all, and files that one process has at a time.

Strict JSON (:func:`dumps`, :func:`loads`) is accepted by every reader: the floats that JSON lacks become the strings
"inf", "-inf" and "nan", and no other JSON is read. :func:`write_whole` writes a file that an interruption cannot leave
half written, and :func:`lock` keeps other processes out.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import secrets
import sys
from collections.abc import Callable
from typing import IO, Any, BinaryIO

from jaxacct.display import float_of


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Returns ``value`` as strict JSON text.

    >>> dumps({"upper": float("inf"), "steps": 3})
    '{"upper": "inf", "steps": 3}'
    """
    try:
        return json.dumps(_strict(value), indent=indent, allow_nan=False, ensure_ascii=False)
    except RecursionError:
        raise ValueError("the value is nested too deeply.") from None


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def loads(text: str | bytes) -> Any:
    """Returns the value of strict JSON text.

    Raises ValueError for any other text: not JSON, a key that stands twice in one object (which of its values holds?),
    numbers outside of float64's range (too large, or so small that they would be read as 0), nesting too deep to be
    read.

    >>> loads('{"steps": 3}')
    {'steps': 3}
    >>> loads('{"upper": NaN}')
    Traceback (most recent call last):
        ...
    ValueError: NaN is no JSON.
    """
    try:
        return json.loads(
            text,
            parse_constant=_no_number,
            parse_float=_parse_finite,
            parse_int=_parse_integer,
            object_pairs_hook=_once,
        )
    except RecursionError:
        raise ValueError("the text is nested too deeply.") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON.")


def _parse_finite(text: str) -> float:
    value = float_of(text)
    return value if math.isfinite(value) else _no_number(text[:20])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object's entries; raises ValueError where a key stands twice."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice[:40]!r} stands twice: leave one of the two.")
    return entries


def _parse_integer(text: str) -> int:
    # All numbers of 300 digits are in float64's range.
    return int(text) if len(text) <= 300 else _no_number(f"{text[:20]}...")


# ----------------------------------------------------------------------------------------------------
# Whole files: a file is there whole or not at all, whatever ends the process while it is written.
# ----------------------------------------------------------------------------------------------------

PUBLIC, PRIVATE = 0o666, 0o600
"""Modes of new files, before the process's umask: for everyone that the umask lets, and for the owner alone."""


def write_whole(path: pathlib.Path, content: bytes | Callable[[BinaryIO], Any], *, mode: int = PUBLIC) -> None:
    """Writes a file with ``content``, or with all that it writes, first under another name; makes the file's folder.

    When this returns the file is on the disk.
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
    if path.is_dir() and os.name != "posix":  # only POSIX lets a folder be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: pathlib.Path, *, wait: bool = False, flags: int = os.O_RDWR | os.O_CREAT) -> IO[bytes]:
    """Returns an open file that no other process has, nor another thread, until it is closed or the process ends.

    Several that only read may have it at once.

    Args:
        path: the file.
        wait: whether to wait for it; otherwise OSError is raised where another process has it.
        flags: how it is opened; by default it is made where it is not there.
    """
    file = os.fdopen(os.open(path, flags, PRIVATE), "r+b" if flags & os.O_RDWR else "rb")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # Network file systems lock only those who may write against all others.
            kind = fcntl.LOCK_EX if flags & os.O_RDWR else fcntl.LOCK_SH
            fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file
