"""What is asked of the results of a sweep: the best settings for a budget, and a part that fits a picture."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jaxacct import validation
from jaxacct.sweep.boxes import Boxes
from jaxacct.sweep.description import Description
from jaxacct.sweep.settings import MECHANISM
from jaxacct.sweep.store import Arrays

if TYPE_CHECKING:
    from jaxacct.sweep.result import Sweep

NOISE = ("noise_multiplier", "scale")
TEXTS = (MECHANISM, "accountant")


def best(
    sweep: Sweep,
    at_most: float,
    least: str | None,
    most: str | None,
    count: int,
    ranges: Mapping[str, tuple[float | None, float | None]],
) -> Arrays:
    """Returns what :meth:`Sweep.best` does: the best of each chunk, and of these and the best so far."""
    if least is not None and most is not None:
        raise ValueError(f"least = {least!r} and most = {most!r}: give one of them, by which entries are compared.")
    validation.check_number(at_most, "at_most")
    validation.check_count(count, "count", "how many entries are wanted")
    by = most or least or next(name for name in (*NOISE, "upper") if name in (*sweep.columns, *sweep.results))
    for name in (by, *ranges):
        validation.check_one_of(name, "name", tuple(name for name in sweep.names if name not in TEXTS))
    limits = {
        name: (-math.inf if low is None else low, math.inf if high is None else high)
        for name, (low, high) in ranges.items()
    }
    low, high = limits.get("upper", (-math.inf, math.inf))
    limits["upper"] = low, min(high, at_most)
    order = sorted(limits, key=lambda name: name in sweep.results)
    kept: Arrays = {}
    for i in sweep.store.held:
        inside = np.ones(math.prod(sweep.boxes.extent(i)), bool)
        for name in order:  # settings first: where none is in range no result is read
            if np.any(inside):
                values = sweep.column(name, i)
                inside &= (values >= limits[name][0]) & (values <= limits[name][1])
        places = np.flatnonzero(inside)
        if len(places):
            found = {name: sweep.column(name, i)[places] for name in sweep.names}
            kept = {name: np.concatenate([kept[name], found[name]]) for name in found} if kept else found
            first = np.lexsort((-kept["upper"], -kept[by] if most else kept[by]))[:count]
            kept = {name: values[first] for name, values in kept.items()}
    return sweep.shown(kept)


def downsampled(sweep: Sweep, most: int, at: Mapping[str, float | str]) -> tuple[Description, Arrays, Arrays]:
    """Returns what :meth:`Sweep.downsampled` makes a sweep of: its description, axes and results."""
    if sweep.layout != "grid":
        raise ValueError("layout = 'rows': rows have no axes to take values of: sweep over a grid.")
    validation.check_whole(most, "most", 2, 2**20, "how many values an axis may have")
    for name in at:
        validation.check_one_of(name, "axis", sweep.columns, " by this sweep")
    axes = sweep.axes
    picks = [
        np.array([_place(name, axes[name], at[name])])
        if name in at
        else np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(int))
        for name, length in zip(sweep.columns, sweep.shape, strict=True)
    ]
    arrays = {name: np.empty([len(pick) for pick in picks], kind) for name, kind in sweep.results.items()}
    for i, where, within in sweep.boxes.holding(picks):
        for name, values in arrays.items():
            box = sweep.store.read(name, i).reshape(sweep.boxes.extent(i))
            values[np.ix_(*where)] = box[np.ix_(*within)]
    rest = tuple(name for name in sweep.columns if name not in at)
    grid = {name: sweep.grid[name][pick] for name, pick in zip(sweep.columns, picks, strict=True) if name in rest}
    shape = tuple(len(values) for values in grid.values())
    fixed = {
        name: float(axes[name][pick[0]])
        for name, pick in zip(sweep.columns, picks, strict=True)
        if name in at and name != MECHANISM
    }
    kinds = (str(at[MECHANISM]),) if MECHANISM in at else sweep.mechanisms
    digest = hashlib.sha256(f"{sweep.digest}{[pick.tolist() for pick in picks]}".encode()).hexdigest()[:16]
    description = replace(
        sweep.described(), columns=rest, constants=sweep.constants | fixed, mechanisms=kinds, boxes=Boxes.of(shape),
        digest=digest,
    )  # fmt: skip
    return description, grid, {name: values.reshape(shape) for name, values in arrays.items()}


def _place(name: str, values: np.ndarray, wanted: float | str) -> int:
    """Returns where an axis has a value, to rounding; raises ValueError where it does not."""
    if values.dtype.kind == "U":
        validation.check_one_of(wanted, name, tuple(values))
        return int(np.flatnonzero(values == wanted)[0])
    nearest = int(np.argmin(np.abs(values - float(wanted))))
    if not math.isclose(values[nearest], float(wanted), rel_tol=1e-6):
        raise ValueError(f"{name} = {wanted} is no value of this axis: the nearest is {values[nearest]!r}.")
    return nearest
