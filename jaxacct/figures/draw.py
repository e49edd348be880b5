"""Draws a chart, on a figure object of its own: nothing global of matplotlib changes."""

from __future__ import annotations

import itertools
import pathlib
import textwrap
from typing import Any

import numpy as np

from jaxacct.figures.exhibits import Chart
from jaxacct.plot import FAINT, INK

COLORS = ("#2a6f97", "#c8553d", "#5b8e4a", "#8a5fa8", "#c29a2b", "#4d5a66")
LINES = {"bound": "-", "estimate": ":", "reference": "--"}


def require_matplotlib() -> tuple[Any, Any]:
    """Returns matplotlib's figure and canvas classes; raises ModuleNotFoundError, with the remedy, where missing.

    >>> new_figure, new_canvas = require_matplotlib()
    >>> new_canvas(new_figure(figsize=(2, 1), dpi=100)).get_width_height()
    (200, 100)
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError('figures need matplotlib, which is missing: pip install "jaxacct[train]".') from None
    return Figure, FigureCanvasAgg


def draw(chart: Chart, path: pathlib.Path) -> None:
    """Writes the chart to ``path``; its suffix says the format."""
    new_figure, new_canvas = require_matplotlib()
    figure = new_figure(figsize=(6.4, 4.8), dpi=150, layout="constrained")
    new_canvas(figure)
    axes = figure.subplots()
    curves, index = list(chart.curves), 0
    for color in itertools.cycle(COLORS):
        if index >= len(curves):
            break
        curve = curves[index]
        if curve.style == "band":
            axes.fill_between(
                chart.x, _drawn(curve.values), _drawn(curves[index + 1].values), color=color, alpha=0.35, linewidth=0.8,
                label=curve.label,
            )  # fmt: skip
            index += 2
            continue
        axes.plot(
            chart.x, _drawn(curve.values), LINES[curve.style], color=color, linewidth=1.6, label=curve.label,
            marker="o" if len(chart.x) < 20 else None, markersize=3, zorder=3 if curve.style == "reference" else 2,
        )  # fmt: skip
        index += 1
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(chart.title, loc="left", color=INK, fontsize=10)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.legend(frameon=False, fontsize=8)
    if chart.notes:
        figure.supxlabel(textwrap.fill(" ".join(chart.notes), 110), fontsize=6.5, color=INK, x=0.02, ha="left")
    figure.savefig(path)


def _drawn(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)
