"""Arrays and what is said of them as files: .npz, which is read back with suspicion, and .csv."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxacct import strict_json
from jaxacct.sweep.archive import Archive
from jaxacct.whole_file import write_whole

ABOUT = "about"
"""Name of the entry of a .npz file that holds, as JSON, what is not an array."""

TEXTS = ("quantity", "mode", "relation", "layout")
HEAD = {*TEXTS, "tolerance", "mechanisms", "constants", "seconds", "axes", "arrays"}
"""What that entry holds."""

KINDS = dict.fromkeys(("lower", "estimate", "upper", "noise_multiplier"), np.dtype(np.float64)) | {
    "converged": np.dtype(bool), "accountant": np.dtype(np.int8),
}  # fmt: skip
"""The results."""

LINES = 2**16
"""Lines of CSV made at a time."""


def write_npz(path: pathlib.Path, about: dict[str, Any], axes: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Writes results and axes under their names."""
    head = np.array(strict_json.dumps(about | {"axes": list(axes), "arrays": list(arrays)}))
    entries: dict[str, Any] = {**axes, **arrays, ABOUT: head}
    write_whole(path, lambda file: np.savez_compressed(file, **entries))


def read_npz(path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of a sweep; raises ValueError where the file is no sweep's."""
    try:
        with Archive(path) as stored:
            head = dict(strict_json.loads(str(stored.read(ABOUT, shape=()))))
            if set(head) != HEAD or not all(isinstance(head[name], str) for name in TEXTS):
                raise ValueError("what it says of itself is not what a sweep says.")
            axes = {name: stored.read(name) for name in _names(head["axes"])}
            shape = _shape(head["layout"], axes)
            arrays: dict[str, np.ndarray] = {}
            for name in _names(head["arrays"]):  # without axes, the first one tells the shape of all
                arrays[name] = stored.read(name, KINDS[name], shape)
                shape = arrays[name].shape
            if not {"lower", "estimate", "upper", "converged"} <= set(arrays):
                raise ValueError("results are missing.")
            if not np.all(arrays["lower"] <= arrays["upper"]):  # NaN included
                raise ValueError("a lower bound is not below its upper one.")
            values = {
                "constants": {name: float(value) for name, value in dict(head["constants"]).items()},
                "mechanisms": tuple(_names(head["mechanisms"])),
                **{name: float(head[name]) for name in ("tolerance", "seconds")},
            }
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(
            f"path = {path} is not a sweep's file: give one that Sweep.save or jaxacct sweep wrote ({error})"
        ) from None
    return head | values | {"axes": axes, "arrays": arrays}


def _names(listed: Any) -> list[str]:
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError("it gives something else where names should be.")
    return listed


def _shape(layout: str, axes: dict[str, np.ndarray]) -> tuple[int, ...] | None:
    lengths = tuple(values.size for values in axes.values())
    if any(values.ndim != 1 for values in axes.values()) or (layout == "rows" and len(set(lengths)) > 1):
        raise ValueError("its axes do not fit each other.")
    return (lengths if layout == "grid" else lengths[:1]) or None


def write_csv(path: pathlib.Path, table: Callable[[np.ndarray], dict[str, np.ndarray]], size: int) -> None:
    """Writes a line for each of ``size`` entries, whose columns ``table`` returns by their numbers."""

    def write(file: Any) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(table(np.arange(0)))
        for start in range(0, size, LINES):
            columns = table(np.arange(start, min(start + LINES, size)))
            lines.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
        text.detach()

    write_whole(path, write)
