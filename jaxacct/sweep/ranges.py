"""Values of an axis: as text, ``low:high:count``, ``low:high:count:log``, ``1,2,5`` or a number; and in files."""

from __future__ import annotations

import math
import os
import pathlib
from typing import Any

import numpy as np

FORM = "a number, numbers with commas (100,1000), LOW:HIGH:COUNT[:log] (0.5:8:64:log), or @FILE"


def parsed(text: str, name: str, *, whole: bool = False) -> Any:
    """Returns the number, or the values (n,), that ``text`` says; ``name`` is for the message of the ValueError.

    Where ``whole``, the values of a range are rounded to whole numbers, each kept once.

    >>> parsed("1:100:3:log", "noise_multiplier").tolist()
    [1.0, 10.0, 100.0]
    >>> parsed("1e-5", "delta"), parsed("100,1000", "steps").tolist()
    (1e-05, [100.0, 1000.0])
    """
    if text.startswith("@"):
        return read_values(text[1:])
    try:
        if ":" not in text:
            numbers = [float(part) for part in text.split(",")]
            return numbers[0] if "," not in text else np.array(numbers)
        low, high, count, *scale = text.split(":")
        first, last, points = float(low), float(high), int(count)
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not understood: give {FORM}.") from None
    is_log = scale == ["log"]
    if scale and not is_log:
        raise ValueError(f"{name} = {text!r}: {':'.join(scale)!r} is no scale: give {FORM}.")
    if points < 2 or not (math.isfinite(first) and math.isfinite(last) and first < last):
        raise ValueError(f"{name} = {text!r}: a range rises, over at least 2 values: give {FORM}.")
    if is_log and first <= 0:
        raise ValueError(f"{name} = {text!r}: a logarithmic range begins above 0: raise its low end or leave out :log.")
    values = np.geomspace(first, last, points) if is_log else np.linspace(first, last, points)
    return np.unique(np.round(values)) if whole else values


def read_values(path: str | os.PathLike[str]) -> np.ndarray:
    r"""Returns the values of an axis (n,) in a file.

    Args:
        path: text with a number on each line; .npy; or a column of a .csv, as ``runs.csv:steps``.

    A .npy file of float64 is mapped into memory, and not read. Raises ValueError where the file has something else,
    OSError where it cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "noise.txt").write_text("0.5\n1\n")
    ...     read_values(f"{folder}/noise.txt").tolist()
    [0.5, 1.0]
    """
    name, colon, column = os.fspath(path).rpartition(":")
    if colon and pathlib.Path(name).suffix == ".csv":
        columns = read_columns(name)
        if column not in columns:
            raise ValueError(f"path = {path}: {name} has no column {column!r}: give one of {', '.join(columns)}.")
        return columns[column]
    try:
        is_array = pathlib.Path(path).suffix == ".npy"
        # Older versions of NumPy warn of an empty file; it is refused here.
        values = np.load(path, mmap_mode="r") if is_array else np.array(pathlib.Path(path).read_text().split(), float)
    except (ValueError, EOFError) as error:
        raise ValueError(f"path = {path} cannot be read ({error}): give a file with a number on each line.") from None
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "fiu":
        raise ValueError(f"path = {path} holds {values.dtype} of shape {values.shape}: give numbers along one axis.")
    return values


def read_columns(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    r"""Returns the columns (n,) of a .csv file whose first line has their names: ``rows(**read_columns(path), ...)``.

    Raises ValueError where it is no such file, OSError where it cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "runs.csv").write_text("steps,sampling_rate\n100,0.1\n200,0.01\n")
    ...     read_columns(f"{folder}/runs.csv")["steps"].tolist()
    [100.0, 200.0]
    """
    with pathlib.Path(path).open(encoding="utf-8") as file:
        names = [name.strip() for name in file.readline().split(",")]
        try:
            table = np.loadtxt(file, delimiter=",", ndmin=2)
        except ValueError as error:
            raise ValueError(f"path = {path} cannot be read ({error}): give numbers, below a line of names.") from None
    if not len(table) or table.shape[1] != len(names) or len(set(names)) < len(names):
        raise ValueError(
            f"path = {path} has the names {names} over {table.shape[1]} columns: give each a name of its own."
        )
    return dict(zip(names, table.T, strict=True))
