"""Charts of several columns, written as pictures and as numbers: what commands and exhibits of papers are made of."""

from __future__ import annotations

import csv
import itertools
import pathlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from jaxacct.plot.style import COLORS, INK, drawable, dress, own_figure, require_matplotlib

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


def write_csv(header: Sequence[str], rows: Iterable[Sequence[str | float | None]], path: pathlib.Path) -> None:
    """Writes numbers under their names, floats so that they read back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(["" if cell is None else repr(cell) if isinstance(cell, float) else cell for cell in row])


def draw(chart: Chart, path: pathlib.Path | BinaryIO) -> None:
    """Writes the chart to ``path``, whose suffix says the format, or to a file, as PNG."""
    figure = own_figure()
    _draw(chart, figure.subplots())
    if chart.notes:
        figure.supxlabel(textwrap.fill(" ".join(chart.notes), 110), fontsize=6.5, color=INK, x=0.02, ha="left")
    figure.savefig(path)


LINE = 0.0135
"""A line of small print, of a page's height."""


def document(
    title: str, text: str, chart: Chart, sections: Sequence[tuple[str, Sequence[str]]], file: BinaryIO
) -> None:
    """Writes pages of A4 as PDF: the text, the chart, and sections in small print, on as many pages as they need."""
    new_figure, new_canvas = require_matplotlib()
    from matplotlib.backends.backend_pdf import PdfPages

    def new_page() -> Any:
        figure = new_figure(figsize=(8.27, 11.69))
        new_canvas(figure)
        return figure

    figure, place = new_page(), 0.365
    figure.text(0.09, 0.95, title, fontsize=16, color=INK, va="top")
    figure.text(0.09, 0.915, textwrap.fill(text, 96), fontsize=10, color=INK, va="top", linespacing=1.4)
    _draw(chart, figure.add_axes((0.15, 0.42, 0.7, 0.23)))
    with PdfPages(file, metadata={"CreationDate": None, "Title": title}) as pages:
        # Line by line, headings with the first line below them.
        for heading, texts in sections:
            lines = [line for each in texts for line in textwrap.wrap(each, 122, subsequent_indent="   ")]
            for weight, line in [("bold", heading), *(("normal", line) for line in lines)]:
                if place < 0.05 + (2 * LINE if weight == "bold" else 0.0):
                    pages.savefig(figure)
                    figure, place = new_page(), 0.95
                place -= LINE if weight == "bold" else 0.0
                figure.text(0.09, place, line, fontsize=7.5, color=INK, va="top", weight=weight)
                place -= LINE
        pages.savefig(figure)


def _draw(chart: Chart, axes: Any) -> None:
    curves, index = list(chart.curves), 0
    for color in itertools.cycle(COLORS):
        if index >= len(curves):
            break
        curve = curves[index]
        if curve.style == "band":
            axes.fill_between(
                chart.x, drawable(curve.values), drawable(curves[index + 1].values), color=color, alpha=0.3,
                linewidth=0.8, label=curve.label,
            )  # fmt: skip
            index += 2
            continue
        axes.plot(
            chart.x, drawable(curve.values), LINES[curve.style], color=color, linewidth=1.8, label=curve.label,
            marker="o" if len(chart.x) < 20 else None, markersize=3, zorder=3 if curve.style == "reference" else 2,
        )  # fmt: skip
        index += 1
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    dress(axes, chart.title, chart.x_label, chart.y_label)
