"""The results of a sweep as files and as other libraries' tables."""

from __future__ import annotations

import io
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxacct import strict_json
from jaxacct.sweep.archive import Archive
from jaxacct.sweep.quantities import Accountant
from jaxacct.whole_file import write_whole

if TYPE_CHECKING:
    from jaxacct.sweep.result import Sweep

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


def about(sweep: Sweep) -> dict[str, Any]:
    """Returns what is not an array."""
    return {
        "quantity": sweep.quantity,
        "mode": sweep.mode,
        "relation": sweep.relation,
        "tolerance": sweep.tolerance,
        "mechanisms": list(sweep.mechanisms),
        "layout": sweep.layout,
        "constants": sweep.constants,
        "seconds": sweep.seconds,
    }


def write_npz(sweep: Sweep, path: pathlib.Path) -> None:
    """Writes results and axes under their names."""
    head = about(sweep) | {"axes": list(sweep.axes), "arrays": list(sweep.arrays)}
    arrays: dict[str, Any] = {**sweep.axes, **sweep.arrays, ABOUT: np.array(strict_json.dumps(head))}
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


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


def write_json(sweep: Sweep, path: pathlib.Path) -> None:
    """Writes one JSON object."""
    write_whole(path, lambda file: file.write((strict_json.dumps(as_json(sweep)) + "\n").encode()) and None)


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Returns what :func:`write_json` writes, as plain Python values."""
    arrays = {name: values.ravel() for name, values in sweep.arrays.items()}
    return about(sweep) | {
        "axes": {name: values.tolist() for name, values in sweep.axes.items()},
        "shape": list(sweep.shape),
        "counts": sweep.counts(),
        "results": {name: values.tolist() for name, values in _named(arrays).items()},
    }


def write_csv(sweep: Sweep, path: pathlib.Path) -> None:
    """Writes a line for each entry: its setting, then its results; numbers as short as they read back the same."""

    def lines(file: Any) -> None:
        header = True
        for start in range(0, sweep.upper.size, LINES):
            columns = table(sweep, np.arange(start, min(start + LINES, sweep.upper.size)))
            if header:
                file.write((",".join(columns) + "\n").encode())
                header = False
            text = io.StringIO()
            for entry in zip(*(values.tolist() for values in columns.values()), strict=True):
                text.write(",".join(map(str, entry)) + "\n")
            file.write(text.getvalue().encode())

    write_whole(path, lines)


def table(sweep: Sweep, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Returns settings and results of the entries with these numbers, by column."""
    in_grid = sweep.layout == "grid" and sweep.axes
    places = np.unravel_index(numbers, sweep.shape) if in_grid else [numbers] * len(sweep.axes)
    settings = {name: values[at] for (name, values), at in zip(sweep.axes.items(), places, strict=True)}
    constants = {name: np.full(len(numbers), value) for name, value in sweep.constants.items()}
    if len(sweep.mechanisms) == 1 and "mechanism" not in sweep.axes:
        settings = {"mechanism": np.full(len(numbers), sweep.mechanisms[0])} | settings
    return settings | constants | _named({name: values.ravel()[numbers] for name, values in sweep.arrays.items()})


def _named(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays with the accountants by their names."""
    names = {int(entry): entry.name.lower() for entry in Accountant}
    listed = np.array([names[code] for code in sorted(names)])
    return {
        name: listed[np.searchsorted(sorted(names), values)] if name == "accountant" else values
        for name, values in arrays.items()
    }


def to_pandas(sweep: Sweep) -> Any:
    """Returns a data frame with a row for each entry."""
    try:
        import pandas  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ModuleNotFoundError("to_pandas needs pandas, which is missing: pip install pandas.") from None
    return pandas.DataFrame(table(sweep, np.arange(sweep.upper.size)))


def to_xarray(sweep: Sweep) -> Any:
    """Returns a dataset over the axes."""
    try:
        import xarray  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise ModuleNotFoundError("to_xarray needs xarray, which is missing: pip install xarray.") from None
    names = list(sweep.axes) if sweep.layout == "grid" else ["row"]
    coordinates = {name: (name if sweep.layout == "grid" else "row", values) for name, values in sweep.axes.items()}
    data = {name: (names, values) for name, values in sweep.arrays.items()}
    head = {name: value for name, value in about(sweep).items() if name != "constants"}
    return xarray.Dataset(data, coords=coordinates, attrs=head | sweep.constants)
