"""Programs on the disk, compiled or as lists of NumPy's operations, private to their user.

A file holds one program, under a name that is a hash of all that it depends on: its function and the shapes and static
values of its arguments; the text of this package; the versions of Python, jax and jaxlib; the processor, its features
and its number among the devices; XLA's flags. Nothing need be traced to find it. Where anything of that cannot be told
for sure, such as the code of somebody else's class or function, nothing is kept.

**A program is code.** JAX reads it by ``pickle``, so whoever can write to the folder can run what they like as whoever
reads it. So the folder and its files must belong to the user and be writable by no one else, or they are not looked at
(on Windows the user's own folder is private by itself). The hash in front of the contents finds files that are damaged
or cut short; it does not protect from anyone who may write there.

The folder is ``jaxacct`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``, ``~/Library/Caches``,
``%LOCALAPPDATA%``), or what the variable ``JAXACCT_CACHE`` names; ``JAXACCT_CACHE=off`` keeps nothing. It can be
deleted at any time. Files are written beside their place and renamed, so that readers see all of one or none; those
not used for longest are deleted beyond :data:`MOST_BYTES`. Whatever goes wrong with a file is as if it were not there.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import os
import pathlib
import pickle
import platform
import stat
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import jax
import jaxlib
import numpy as np
from jax.experimental import serialize_executable
from jax.tree_util import PyTreeDef

PACKAGE = pathlib.Path(__file__).parent

Result = TypeVar("Result")

MAGIC = b"jaxacct program 1\n"

MOST_BYTES = 2**28
"""Bytes that the folder may hold: a few hundred programs."""

KNOWN = ("builtins", "jaxacct", "jax", "numpy")
"""Packages whose versions are part of the hash."""

_flags = os.environ.get("XLA_FLAGS", "")
"""XLA reads them once, when it starts."""


class _UnknownError(TypeError):
    """What a program depends on cannot be told from one process to the next."""


def folder() -> pathlib.Path | None:
    """Returns where programs are kept, made if need be; None where they are not, or where others could write."""
    return _folder_of(os.environ.get("JAXACCT_CACHE", ""), os.environ.get("XDG_CACHE_HOME", ""))


@functools.cache
def _folder_of(named: str, xdg: str) -> pathlib.Path | None:
    if named.lower() in ("off", "0", "false", "no", "none"):
        return None
    if named.lower() in ("on", "1", "true", "yes"):
        named = ""
    try:
        path = pathlib.Path(named).expanduser().absolute() if named else _cache_home(xdg) / "jaxacct"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(os.lstat(path) if not named else os.stat(path), stat.S_ISDIR):
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


def _cache_home(xdg: str) -> pathlib.Path:
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local")
    if sys.platform == "darwin" and not xdg:
        return pathlib.Path.home() / "Library" / "Caches"
    # The standard ignores relative ones.
    return pathlib.Path(xdg) if os.path.isabs(xdg) else pathlib.Path.home() / ".cache"


def _is_private(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    if not is_kind(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cpu() -> Any:
    """Returns the CPU that is computed on by default, None where that is another device."""
    config: Any = jax.config
    chosen = config.jax_default_device
    if chosen is None:
        return _first_cpu()
    if isinstance(chosen, str):
        return jax.local_devices(backend="cpu")[0] if chosen == "cpu" else None
    return chosen if chosen.platform == "cpu" else None


@functools.cache
def _first_cpu() -> Any:
    first = jax.local_devices()[0]
    return first if first.platform == "cpu" else None


def _are_told(flags: str) -> bool:
    """Returns whether the flags that XLA was started with are known, and leave the arithmetic alone."""
    in_a_file = bool(flags) and not flags.lstrip().startswith("--")
    return flags == os.environ.get("XLA_FLAGS", "") and not in_a_file and "fast_math" not in flags


def place_of(function: Any, *parts: Any) -> pathlib.Path | None:
    """Returns the file of a program, which need not be there; None where none can be told.

    ``parts`` are all that it depends on beside the ``function``: static values, and arrays for their shapes.
    """
    where = folder()
    if where is None or not _are_told(_flags):
        return None
    try:
        text = "\n".join(map(described, (function, *parts)))
        key = hashlib.sha256(f"{_surroundings(_flags)}\n{text}".encode())
    except (_UnknownError, OSError):
        return None
    return where / key.hexdigest()[:40]


def read(place: pathlib.Path | None, understand: Callable[[bytes], Result]) -> Result | None:
    """Returns what a file holds, None where there is none that may be used."""
    if place is None:
        return None
    try:
        with open(place, "rb") as file:
            if not _is_private(os.fstat(file.fileno()), stat.S_ISREG):
                return None
            content = file.read()
        head = len(MAGIC) + 32
        if content[:head] != MAGIC + hashlib.sha256(content[head:]).digest():
            return None
        found = understand(content[head:])
    except Exception:  # whatever the file is, it is as if it were not there
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return found


def write(place: pathlib.Path | None, make: Callable[[], bytes]) -> None:
    """Keeps a program, if that can be done."""
    if place is None or not _is_as_imported():
        return
    try:
        content = make()
    except Exception:  # not every program can be
        return
    try:
        # Nobody else may read or write what mkstemp makes.
        number, beside = tempfile.mkstemp(prefix=".new-", dir=place.parent)
        try:
            with open(number, "wb") as file:
                file.write(MAGIC + hashlib.sha256(content).digest() + content)
            os.replace(beside, place)
        except BaseException:
            os.unlink(beside)
            raise
        _keep_within(place.parent)
    except OSError:
        return


def load(place: pathlib.Path | None, structure: PyTreeDef, device: Any) -> Callable[..., Any] | None:
    """Returns the compiled program in a file, None where there is none that may be used."""
    return read(place, lambda content: _loaded(content, structure, device))


def _loaded(content: bytes, structure: PyTreeDef, device: Any) -> Callable[..., Any]:
    code, results = pickle.loads(content)
    return serialize_executable.deserialize_and_load(code, structure, results, execution_devices=[device])


def save(place: pathlib.Path | None, program: Any, device: Any, numbers: tuple[Any, ...]) -> None:
    """Keeps a compiled program of ``numbers``, if that can be done."""
    config: Any = jax.config

    def make() -> bytes:
        code, _, results = serialize_executable.serialize(program)
        content = pickle.dumps((code, results))
        if config.jax_compilation_cache_dir is not None:
            # What JAX itself has from a disk, it cannot write again: the machine code is missing, as running it tells.
            jax.block_until_ready(_loaded(content, jax.tree.structure((numbers, {})), device)(*numbers))
        return content

    write(place, make)


def _keep_within(where: pathlib.Path) -> None:
    """Deletes files that were not used for longest, and what writers left that ended before they were done."""
    found = []
    with os.scandir(where) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if entry.name.startswith(".new-") and status.st_mtime < time.time() - 3600:
                os.unlink(entry.path)
            elif len(entry.name) == 40:
                found.append((status.st_mtime, status.st_size, entry.path))
    excess = sum(size for _, size, _ in found) - MOST_BYTES
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        os.unlink(path)
        excess -= size


def described(value: Any) -> str:
    """Returns a text that is the same in every process, and tells apart what makes different programs.

    Raises :class:`TypeError` for what no text tells: objects and functions that this package did not define.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return repr(value)
    if kind in (tuple, list):
        return f"{kind.__name__}({','.join(map(described, value))})"
    if kind is dict:
        return f"dict({','.join(f'{described(key)}:{described(part)}' for key, part in value.items())})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}"
    if isinstance(value, PyTreeDef):
        node = value.node_data()
        if node is None:
            return f"leaves({value.num_leaves})"
        return f"{described(node)}[{','.join(map(described, value.children()))}]"
    if isinstance(value, np.dtype):
        return value.str
    if callable(value) and _is_named(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, jax.Device):
        return f"{value.platform} {value.device_kind} {value.id}"
    if isinstance(value, enum.Enum):
        return f"{described(kind)}.{value.name}"
    if isinstance(value, tuple):  # a named one
        return f"{described(kind)}({','.join(map(described, value))})"
    if is_dataclass(value):
        return f"{described(kind)}({','.join(described(getattr(value, field.name)) for field in fields(value))})"
    raise _UnknownError(f"{kind} may be anything in another process")


def _is_named(value: Any) -> bool:
    """Returns whether a function or class is the one that goes by its name in a package whose version is in the hash.

    What ``functools.wraps`` makes of one bears its name too: so it must be what is found there, and its code of there.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.split(".")[0] not in KNOWN:
        return False
    home = sys.modules.get(module)
    found = functools.reduce(lambda part, step: getattr(part, step, None), name.split("."), home)
    if not isinstance(value, types.FunctionType):
        return found is value or value is types.NoneType
    code, file = value.__code__, getattr(home, "__file__", None)
    if value.__closure__ is None and code.co_filename == file and code.co_qualname == name:
        return True  # whatever decorates it there
    package = pathlib.Path(getattr(sys.modules.get(module.split(".")[0]), "__file__", None) or ".").parent
    return found is value and package in pathlib.Path(code.co_filename).parents


@functools.cache
def _surroundings(flags: str) -> str:
    """Returns what all programs of this process depend on."""
    versions = sys.version_info[:3], jax.__version__, jaxlib.__version__, np.__version__
    return repr((versions, flags, sys.platform, platform.machine(), _processor(), _imported.hex()))


def _processor() -> list[str]:
    """Returns the processor's model and features, as far as the system tells: machine code is made for them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            first = file.read(2**14).split("\n\n")[0].splitlines()
        known = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
        return [line for line in first if line.split(":")[0].strip() in known]
    except OSError:
        names = ("PROCESSOR_IDENTIFIER", "PROCESSOR_ARCHITECTURE")
        return [platform.processor(), platform.version(), *(os.environ.get(name, "") for name in names)]


def _sources() -> bytes:
    """Returns a hash of the package's text: what a program computes is written there. Some milliseconds."""
    total = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return total.digest()


_imported = _sources()
"""The text as this process imports it. Times of files tell nothing: a newer release may bring older ones."""


def _is_as_imported() -> bool:
    """Returns whether what was imported is what is on the disk: another release may be there by now."""
    try:
        return _sources() == _imported
    except OSError:
        return False
