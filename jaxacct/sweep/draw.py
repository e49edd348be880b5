"""Pictures of a sweep, on figure objects of their own: curves over one axis, heat maps with contours over two."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from jaxacct.plot import ACCURACY, BUDGET, FAINT, INK, require_matplotlib
from jaxacct.sweep.result import Sweep

MOST_PANELS = 12
"""Panels for the values of further axes; more would be too small to read."""

FEW = 4
"""Values below which an axis is shown by panels."""

FORMATS = (".png", ".svg", ".pdf")

LOG_RATIO = 20.0
"""Largest over smallest value above which an axis, or the colours, are logarithmic."""

LABELS = {
    "epsilon": "epsilon, upper bound",
    "delta": "delta, upper bound",
    "noise_multiplier": "least noise multiplier",
}


def check(layout: str, shape: tuple[int, ...], path: str | os.PathLike[str]) -> None:
    """Raises where results of this layout and shape, or a file of this name, cannot be drawn."""
    if pathlib.Path(path).suffix not in FORMATS:
        raise ValueError(f"a picture = {path}: the suffix says the format: give one of {', '.join(FORMATS)}.")
    drawn = _drawn(shape)
    panels = int(np.prod([length for i, length in enumerate(shape) if i not in drawn], dtype=np.int64))
    if layout != "grid" or not drawn or panels > MOST_PANELS:
        raise ValueError(
            f"a picture of a sweep by {layout} of shape {shape}: give a grid with one or two axes, and at most "
            f"{MOST_PANELS} values on the others together; results are complete in the file."
        )


def picture(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Writes a picture of the upper bounds (of the noise, where that was looked for); the suffix says the format.

    Over two axes a heat map with contours, entries that have not converged crossed; over one a curve, with the lower
    bound. Further axes give panels.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
        ValueError: the sweep is no grid, of one number, or has too many further values.
    """
    new_figure, new_canvas = require_matplotlib()
    check(sweep.layout, sweep.shape, path)
    names = list(sweep.axes)
    drawn = _drawn(sweep.shape)
    others = [i for i in range(len(names)) if i not in drawn]
    places = list(np.ndindex(*(sweep.shape[i] for i in others)))
    columns = min(len(places), 3)
    lines = -(-len(places) // columns)
    figure = new_figure(figsize=(1.2 + 4.2 * columns, 0.6 + 3.4 * lines), dpi=150, layout="constrained")
    new_canvas(figure)
    panels = figure.subplots(lines, columns, squeeze=False)
    values = sweep["noise_multiplier"] if sweep.quantity == "noise_multiplier" else sweep.upper
    norm = _norm(_settled(sweep, values))
    for axes in panels.ravel()[len(places) :]:
        axes.set_visible(False)
    for axes, place in zip(panels.ravel(), places, strict=False):
        at: list[Any] = [slice(None)] * len(names)
        for i, j in zip(others, place, strict=True):
            at[i] = j
        index = tuple(at)
        fixed = ", ".join(f"{names[i].replace('_', ' ')} {_shown(sweep.axes[names[i]][at[i]])}" for i in others)
        axes.set_title(fixed, loc="left", fontsize=9, color=INK)
        axes.tick_params(which="both", colors=INK, labelsize=8)
        if len(drawn) == 1:
            _curve(axes, sweep, names[drawn[0]], values[index], sweep.lower[index])
        else:
            mapped = _heat_map(axes, sweep, names[drawn[1]], names[drawn[0]], values[index], index, norm)
    if len(drawn) == 2:
        bar = figure.colorbar(mapped, ax=panels.ravel().tolist(), shrink=0.9)
        bar.set_label(LABELS[sweep.quantity], color=INK)
    constants = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in sweep.constants.items())
    figure.suptitle(f"{', '.join(sweep.mechanisms)}; {constants}" if constants else ", ".join(sweep.mechanisms),
                    fontsize=9, color=INK, x=0.01, ha="left")  # fmt: skip
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _drawn(shape: tuple[int, ...]) -> list[int]:
    """Returns the axes of a panel: the two longest, or the longest where the other has hardly any values."""
    longest = sorted((i for i, length in enumerate(shape) if length > 1), key=lambda i: -shape[i])
    return sorted(longest[: 2 if len(longest) > 1 and shape[longest[1]] >= FEW else 1])


def _heat_map(axes: Any, sweep: Sweep, x: str, y: str, values: np.ndarray, index: Any, norm: Any) -> Any:
    across, up = _positions(axes.xaxis, axes.set_xscale, sweep, x), _positions(axes.yaxis, axes.set_yscale, sweep, y)
    shown = np.where(np.isfinite(values), values, np.nan)
    mapped = axes.pcolormesh(across, up, shown, norm=norm, cmap="viridis", shading="nearest", rasterized=True)
    # A flagged upper bound holds, but may be 10^200: it is the top colour, and has no contours.
    settled = np.where(sweep.converged[index], shown, np.nan)
    if min(values.shape) > 2 and len(np.unique(settled[np.isfinite(settled)])) > 1:
        from matplotlib.ticker import LogLocator, MaxNLocator

        locator = LogLocator(subs=(1.0, 2.0, 5.0)) if _is_log(settled) else MaxNLocator(8)
        lines = axes.contour(across, up, settled, locator=locator, norm=norm, colors="white", linewidths=0.7)
        axes.clabel(lines, fontsize=6, fmt="%g")
    flagged = ~sweep.converged[index]
    if np.any(flagged):
        rows, columns = np.nonzero(flagged)
        axes.plot(across[columns], up[rows], "x", markersize=2.5, markeredgewidth=0.5, color=BUDGET)
    return mapped


def _curve(axes: Any, sweep: Sweep, x: str, values: np.ndarray, lower: np.ndarray) -> None:
    across = _positions(axes.xaxis, axes.set_xscale, sweep, x)
    shown = np.where(np.isfinite(values), values, np.nan)
    axes.plot(across, shown, color=ACCURACY, marker="o" if len(across) < 40 else None, markersize=3, label="upper")
    if sweep.quantity != "noise_multiplier":
        axes.fill_between(across, lower, shown, color=ACCURACY, alpha=0.25, linewidth=0)
    if _is_log(values):
        axes.set_yscale("log")
    axes.set_ylabel(LABELS[sweep.quantity], color=INK)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _positions(axis: Any, set_scale: Any, sweep: Sweep, name: str) -> np.ndarray:
    """Returns where the values of an axis lie, and labels it."""
    values = sweep.axes[name]
    axis.set_label_text(name.replace("_", " "), color=INK)
    if values.dtype.kind == "U":
        axis.set_ticks(np.arange(len(values)), values.tolist(), fontsize=7)
        return np.arange(len(values))
    if _is_log(values) or _is_geometric(values):
        from matplotlib.ticker import FuncFormatter

        set_scale("log")
        if np.max(values) < 100 * np.min(values):  # plain numbers in place of powers of ten
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
    return values


def _is_geometric(values: np.ndarray) -> bool:
    """Whether the values rise by a factor rather than by a sum."""
    if len(values) < 3 or np.min(values) <= 0:
        return False
    return bool(np.ptp(np.diff(np.log(values))) * np.ptp(values) < np.ptp(np.diff(values)) * np.ptp(np.log(values)))


def _is_log(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return finite.size > 0 and np.min(finite) > 0 and bool(np.max(finite) > LOG_RATIO * np.min(finite))


def _settled(sweep: Sweep, values: np.ndarray) -> np.ndarray:
    """Returns the values that have converged, which say what colours range over; all of them where none has."""
    return values[sweep.converged] if np.any(sweep.converged) else values


def _norm(values: np.ndarray) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return Normalize(0.0, 1.0)
    return (LogNorm if _is_log(values) else Normalize)(np.min(finite), np.max(finite))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"
