"""Pictures and their numbers. They are drawn on figure objects of their own: nothing global of matplotlib changes."""

from __future__ import annotations

import csv
import itertools
import os
import pathlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

INK, FAINT = "#26323f", "#d9dee3"
ACCURACY, SPENT, BUDGET = "#2a6f97", "#c8553d", "#7a8794"
COLORS = (ACCURACY, SPENT, "#5b8e4a", "#8a5fa8", "#c29a2b", "#4d5a66")
LINES = {"bound": "-", "estimate": ":", "reference": "--"}


@dataclass(frozen=True)
class Curve:
    """A column of numbers that is drawn.

    Attributes:
        name: the column's name in the CSV.
        label: what the legend calls it; it says whether it is a bound or an estimate.
        values (points,): float64, NumPy's or JAX's; what is not finite is written, and left out of the picture.
        style: "bound" (solid), "estimate" (dotted), "reference" (dashed; a formula as printed elsewhere) or "band" (the
            lower edge of a band whose upper edge is the next curve).
    """

    name: str
    label: str
    values: Any
    style: str = "bound"


@dataclass(frozen=True)
class Chart:
    """A figure: curves over one abscissa.

    Attributes:
        title: what it shows, with its setting.
        x_name: the abscissa's column; ``x_label`` and ``y_label`` stand at the axes.
        x (points,): its values.
        curves: what is drawn and written.
        notes: sentences below the picture: what was chosen, what a curve is not.
        log_x: whether the abscissa is logarithmic; ``log_y`` likewise.
    """

    title: str
    x_name: str
    x_label: str
    y_label: str
    x: np.ndarray
    curves: Sequence[Curve]
    notes: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False

    @property
    def header(self) -> list[str]:
        """The names of the CSV's columns."""
        return [self.x_name, *(curve.name for curve in self.curves)]

    @property
    def rows(self) -> list[list[float]]:
        """The CSV's lines."""
        columns = [np.asarray(self.x, np.float64), *(np.asarray(curve.values, np.float64) for curve in self.curves)]
        return [[float(value) for value in line] for line in zip(*columns, strict=True)]


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
        raise ModuleNotFoundError('pictures need matplotlib, which is missing: pip install "jaxacct[plot]".') from None
    return Figure, FigureCanvasAgg


def write_csv(header: Sequence[str], rows: Iterable[Sequence[str | float | None]], path: pathlib.Path) -> None:
    """Writes numbers under their names, floats so that they read back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(["" if cell is None else repr(cell) if isinstance(cell, float) else cell for cell in row])


def draw(chart: Chart, path: pathlib.Path | BinaryIO) -> None:
    """Writes the chart to ``path``, whose suffix says the format, or to a file, as PNG."""
    new_figure, new_canvas = require_matplotlib()
    figure = new_figure(figsize=(6.4, 4.8), dpi=150, layout="constrained")
    new_canvas(figure)
    _draw(chart, figure.subplots())
    if chart.notes:
        figure.supxlabel(textwrap.fill(" ".join(chart.notes), 110), fontsize=6.5, color=INK, x=0.02, ha="left")
    figure.savefig(path)


def document(title: str, texts: Sequence[str], chart: Chart, file: BinaryIO) -> None:
    """Writes one page of A4 as PDF: the first text, the chart, and the other texts in small print."""
    new_figure, new_canvas = require_matplotlib()
    figure = new_figure(figsize=(8.27, 11.69))
    new_canvas(figure)
    figure.text(0.09, 0.95, title, fontsize=16, color=INK, va="top")
    figure.text(0.09, 0.915, textwrap.fill(texts[0], 96), fontsize=10, color=INK, va="top", linespacing=1.4)
    _draw(chart, figure.add_axes((0.15, 0.42, 0.7, 0.23)))
    rest = "\n".join(textwrap.fill(text, 128, subsequent_indent="   ") for text in texts[1:])
    figure.text(
        0.09, 0.365, rest, fontsize=min(7.5, 330 / (rest.count("\n") + 1)), color=INK, va="top", linespacing=1.5
    )
    figure.savefig(file, format="pdf", metadata={"CreationDate": None, "Title": title})


def _draw(chart: Chart, axes: Any) -> None:
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


def _drawn(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def training(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a picture of a training run: its test metric and epsilon spent over the steps.

    Args:
        report: as :func:`jaxacct.train.report.build_report` returns it; ``config["metric"]``, "accuracy" where it is
            not there, says what ``accuracy`` in its history is.
        path: the file to write; its suffix says the format (.png, .svg, .pdf). Missing folders are made.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
        ValueError: the report has no history.

    >>> import tempfile
    >>> report = {"history": [{"step": 1, "accuracy": 0.5, "epsilon": 1.0}], "config": {"budget": {"epsilon": 2.0}},
    ...           "final": {"steps": 1, "delta": 1e-5, "epsilon_certified": None}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     training(report, f"{folder}/training.png")
    ...     pathlib.Path(f"{folder}/training.png").read_bytes()[1:4]
    b'PNG'
    """
    new_figure, new_canvas = require_matplotlib()
    history = report["history"]
    if not history:
        raise ValueError("the report has no history: nothing was trained, so there is nothing to draw.")
    final, config = report["final"], report["config"]
    budget, metric = config["budget"]["epsilon"], config.get("metric", "accuracy")
    steps = [entry["step"] for entry in history]
    marker = "o" if len(steps) < 40 else None
    figure = new_figure(figsize=(6.4, 5.2), dpi=150, layout="constrained")
    new_canvas(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)

    if history[-1]["accuracy"] is not None:
        accuracies = [entry["accuracy"] for entry in history]
        top.plot(steps, accuracies, color=ACCURACY, marker=marker, markersize=3)
        last = f"{accuracies[-1]:.1%}" if metric == "accuracy" else f"{accuracies[-1]:.3f}"
        at = steps[-1], accuracies[-1]
        top.annotate(last, at, xytext=(0, -14), textcoords="offset points", ha="right", color=ACCURACY)
    top.set_ylabel("test accuracy" if metric == "accuracy" else f"test {metric.upper()}")

    bottom.plot(
        [0, *steps], [0.0, *(entry["epsilon"] for entry in history)], color=SPENT, marker=marker, markersize=3,
        label=f"spent, by the run's {config.get('ledger', 'filter')}",
    )  # fmt: skip
    bottom.axhline(budget, color=BUDGET, linestyle="--", linewidth=1, label=f"budget, epsilon = {budget:g}")
    if final["epsilon_certified"] is not None:
        lower, upper = final["epsilon_certified"]["lower"], final["epsilon_certified"]["upper"]
        middle = (lower + upper) / 2
        bottom.errorbar(
            [final["steps"]], [middle], yerr=[[middle - lower], [upper - middle]], fmt="D", markersize=5, capsize=4,
            color=INK, label=f"certified: {lower:.3f} to {upper:.3f}",
        )  # fmt: skip
    bottom.set_ylim(bottom=0, top=1.12 * max(budget, history[-1]["epsilon"]))
    bottom.set_ylabel(f"epsilon at delta = {final['delta']:g}")
    bottom.set_xlabel("noisy updates")
    bottom.set_xlim(left=0)
    bottom.legend(loc="lower right", frameon=False, fontsize=8)
    name = config.get("dataset")
    top.set_title("DP-SGD" if name is None else f"DP-SGD on {name}", loc="left", color=INK)
    for axes in (top, bottom):
        axes.grid(color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
