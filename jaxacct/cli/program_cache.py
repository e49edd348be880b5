"""The cache: the folder in which the command ``jaxacct`` lets JAX keep compiled programs between runs.

A library leaves the process's JAX settings alone; an application may choose them, and the command is one. The folder is
``jaxacct`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``, ``~/Library/Caches``, ``%LOCALAPPDATA%``), or
the one that the variable ``JAXACCT_CACHE`` names; ``JAXACCT_CACHE=off`` keeps nothing, and
``JAX_COMPILATION_CACHE_DIR`` goes before both. A compiled program is code: whoever can write to the folder can run any
program as the user who reads it. So the folder must belong to the user and be writable by no one else, or it is not
used (on Windows the user's own folder is private by itself).
"""

from __future__ import annotations

import os
import pathlib
import stat
import sys
import warnings

MOST_BYTES = 2**28
"""Largest size of the folder (bytes) when a command starts: a few hundred programs. Disk space only."""


def keep_compilations() -> None:
    """Lets JAX keep its compiled programs in :func:`folder`, unless the environment names another place for them."""
    import jax

    place = folder()
    if place is None or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    _keep_within(place)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def folder() -> pathlib.Path | None:
    """Returns the folder, created if need be; None where programs are not kept, or where others could write."""
    named = os.environ.get("JAXACCT_CACHE", "")
    if named.lower() in ("off", "0", "false", "no", "none"):
        return None
    if named.lower() in ("on", "1", "true", "yes"):
        named = ""
    try:
        path = pathlib.Path(named).expanduser().absolute() if named else _cache_home() / "jaxacct"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(os.stat(path) if named else os.lstat(path)):
            return path
    except (OSError, RuntimeError):  # no home, or nothing can be made in it
        pass
    if named:
        warnings.warn(
            f"JAXACCT_CACHE = {named!r} is not a folder that belongs to this user and that no one else can write to: "
            "compiled programs are code, so none is read from there, and none is kept. Give another, or chmod 700 it.",
            stacklevel=2,
        )
    return None


def _cache_home() -> pathlib.Path:
    """Returns the user's cache folder."""
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local")
    if sys.platform == "darwin" and not os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path.home() / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard has relative paths ignored.
    return pathlib.Path(xdg) if os.path.isabs(xdg) else pathlib.Path.home() / ".cache"


def _is_private(status: os.stat_result) -> bool:
    """Returns whether a folder belongs to the user, and no one else can write to it."""
    if not stat.S_ISDIR(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _keep_within(place: pathlib.Path) -> None:
    """Deletes the oldest files beyond :data:`MOST_BYTES`; another process may delete them at the same time."""
    try:
        files = sorted(
            ((status.st_mtime, status.st_size, path) for path in place.iterdir() if (status := path.lstat())),
            reverse=True,
        )
    except OSError:
        return
    total = 0
    for _, size, path in files:
        total += size
        if total > MOST_BYTES and path.is_file():
            path.unlink(missing_ok=True)
