"""The machine that a command runs on: ``jaxacct doctor``, and the folder in which JAX keeps compiled programs.

The doctor checks devices, arithmetic and installed packages.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import stat
import sys
import warnings
from importlib import metadata
from typing import Any

from jaxacct import __version__
from jaxacct.cli.arguments import Report, new_command

PACKAGES = {
    "numpy": "", "jax": "", "jaxlib": "", "flax": "train", "optax": "train", "orbax-checkpoint": "train",
    "matplotlib": "plot", "zarr": "sweep", "pyarrow": "sweep", "python-flint": "verify", "shtab": "completion",
    "pyyaml": "", "dp-accounting": "", "opacus": "",
}  # fmt: skip
"""Packages that the library can use, with the extra that installs each; "" where no extra does or none is needed."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    new_command(
        commands, "doctor", run, "versions, devices, arithmetic, cache: what a report of a defect needs",
        "Says what computes here, asks it for a table of functions whose values are known, and lists what "
        "is installed. Ends with code 1 where the arithmetic is not what certificates assume.",
        "jaxacct doctor", "jaxacct doctor --json",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> Report:
    """Returns the report on the machine: versions, devices, arithmetic, packages, and the folder of programs."""
    devices, arithmetic = _examine()
    installed = {
        name: next((package.version for package in metadata.distributions(name=name)), None) for name in PACKAGES
    }
    cache = folder()
    files = [] if cache is None else [path for path in cache.rglob("*") if path.is_file()]
    cache_bytes = sum(path.stat().st_size for path in files)
    record: dict[str, Any] = {
        "version": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "devices": devices,
        "arithmetic": arithmetic,
        "cache": None if cache is None else str(cache),
        "cache_bytes": cache_bytes,
        "installed": installed,
    }
    missing = [f"{name} ([{extra}])" if extra else name for name, extra in PACKAGES.items() if installed[name] is None]
    facts = [
        ("jaxacct", f"{__version__}, Python {record['python']}, {record['system']}"),
        ("devices", ", ".join(devices) or "none"),
        *((f"float64 by {by}", verdict) for by, verdict in arithmetic.items()),
        ("programs kept in", "off" if cache is None else f"{cache}, {cache_bytes / 2**20:.1f} MB"),
        ("installed", ", ".join(f"{name} {version}" for name, version in installed.items() if version)),
        ("not installed", ", ".join(missing) or "nothing"),
    ]
    is_sound = all(verdict == "sound" for verdict in arithmetic.values())
    return Report(record, facts, code=0 if is_sound else 1)


def _examine() -> tuple[list[str], dict[str, str]]:
    """Returns the devices, and the verdict on each way of computing float64."""
    import jax

    from jaxacct.numerics import elementary

    try:
        devices = [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    except RuntimeError as error:  # a platform that the environment names, and that is not there
        return [], {"none": str(error).splitlines()[0]}
    # Each compiler is checked by itself: one may be sound where another is not.
    results = elementary.compute(*elementary.ways())
    return devices, {by.value: "; ".join(elementary.failures(*result)) or "sound" for by, result in results.items()}


# ----------------------------------------------------------------------------------------------------
# The cache: the folder in which the command lets JAX keep compiled programs between runs.
#
# A library leaves the process's JAX settings alone; an application may choose them, and the command is one. The folder
# is ``jaxacct`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``, ``~/Library/Caches``,
# ``%LOCALAPPDATA%``), or the one that the variable ``JAXACCT_CACHE`` names; ``JAXACCT_CACHE=off`` keeps nothing, and
# ``JAX_COMPILATION_CACHE_DIR`` goes before both. A compiled program is code: whoever can write to the folder can run
# any program as the user who reads it. So the folder must belong to the user and be writable by no one else, or the
# command does not use it (on Windows the user's own folder is private by itself).
# ----------------------------------------------------------------------------------------------------

MOST_BYTES = 2**28
"""Largest size of the folder (bytes) when a command starts: a few hundred programs. Disk space only."""


def keep_compilations() -> None:
    """Lets JAX keep its compiled programs in :func:`folder`, unless the environment names another place for them."""
    import jax

    place = folder()
    if place is None or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    _trim(place)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def folder() -> pathlib.Path | None:
    """Returns the folder, which it makes; None where the user wants none, or where others could write to it."""
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


def _trim(place: pathlib.Path) -> None:
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
