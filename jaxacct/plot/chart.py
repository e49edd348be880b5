"""The common style of pictures, and charts of several columns that are written as pictures and as numbers.

Colours can be told apart by all eyes: they are Okabe and Ito's (2008, "Color Universal Design"), each with a dash of
its own for prints in grey. Brackets are bands.

In reading order:

- :func:`require_matplotlib` to :func:`describe`: figures, lines with bands, labels.
- :class:`Chart`, :func:`draw`: charts as CSV and as pictures.
"""

from __future__ import annotations

import csv
import itertools
import pathlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import jax  # noqa: F401  (whole, before jaxtyping asks for a part of it)
import numpy as np
from jaxtyping import ArrayLike

from jaxacct.display import spell_count
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, GREY = "#26323f", "#d9dee3", "#7a8794"
"""Colours of text, of grids, and of reference lines."""
BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"
"""Colours of curves."""
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, INK)
"""Colours of curves in the order of their use."""

Values = ArrayLike | Sequence[float]
"""Numbers along one axis."""

CURVE = "jaxacct"
"""Mark of the lines that are counted when the next one's colour is chosen."""


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


def own_figure(width: float = 6.4, height: float = 4.8) -> Any:
    """Returns a figure for files that pyplot does not know of, so that no global state of matplotlib changes."""
    new_figure, new_canvas = require_matplotlib()
    figure = new_figure(figsize=(width, height), dpi=150, layout="constrained")
    new_canvas(figure)
    return figure


def axes_or_new(axes: Axes | None) -> Axes:
    """Returns the axes, or those of a new figure of pyplot, which a notebook and ``pyplot.show()`` display."""
    if axes is not None:
        return axes
    require_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")[1]


def count_lines(axes: Axes) -> int:
    """Returns the number of lines that :func:`curve` has drawn on some axes."""
    return sum(line.get_gid() == CURVE for line in axes.get_lines())


def curve(
    axes: Axes, x: Values, y: Values, label: str, lower: Values | None = None, *, style: int | None = None
) -> None:
    """Draws a line in the next style, or the one of number ``style``, and a band to ``lower``, where they are finite.

    Certified brackets are mostly narrower than the line, which then hides the band.
    """
    # Dashes of curves, one for each colour.
    dashes = ("-", "--", ":", "-.", (0, (7, 1.5)), (0, (1, 1)))
    index = (count_lines(axes) if style is None else style) % len(COLORS)
    x, y = np.asarray(x), drawable(y)
    if lower is not None:
        axes.fill_between(x, drawable(lower), y, color=COLORS[index], alpha=0.3, linewidth=0)
    axes.plot(
        x, y, linestyle=dashes[index], color=COLORS[index], linewidth=1.8, label=label, gid=CURVE,
        marker="o" if len(x) < 20 else None, markersize=3.5,
    )  # fmt: skip


def drawable(values: Values) -> np.ndarray:
    """Returns the values with NaN, which draws nothing, in place of those that are not finite."""
    return np.where(np.isfinite(values), values, np.nan)


def dress(axes: Axes, title: str = "", x_label: str = "", y_label: str = "", *, legend: bool = True) -> None:
    """Gives axes their title, labels, grid and legend; an existing title or label stays."""
    if title and not axes.get_title(loc="left"):
        axes.set_title(textwrap.fill(title, 72), loc="left", color=INK, fontsize=10)
    axes.set_xlabel(axes.get_xlabel() or x_label, color=INK)
    axes.set_ylabel(axes.get_ylabel() or y_label, color=INK)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    if legend:
        axes.legend(frameon=False, fontsize=8)


def words(name: str) -> str:
    """Returns a name of the library in words, for a label."""
    return name.replace("_", " ")


def describe(mechanism: Mechanisms, steps: Steps | None = None) -> str:
    """Returns a composition in the words of a legend.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> describe(PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01), 10_000)
    'noise multiplier 1, sampling rate 0.01, 10,000 steps'
    """
    if not isinstance(mechanism, Mechanism):
        return f"{spell_count(len(mechanism), 'mechanism')} composed"
    told = [
        f"{words(name)} {float(np.asarray(value)):g}"
        for name, value in vars(mechanism).items()
        if isinstance(value, (int, float, np.generic)) or (hasattr(value, "ndim") and value.ndim == 0)
    ]
    if isinstance(steps, (int, float, np.number)):
        told.append(spell_count(int(steps), "step"))
    return ", ".join(told) or type(mechanism).__name__


# ----------------------------------------------------------------------------------------------------
# Charts of several columns, written as pictures and as numbers, for commands and exhibits of papers.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A column of numbers that is drawn.

    Attributes:
        name: the column's name in the CSV.
        label: its text in the legend, which has to say whether it is a bound or an estimate.
        values (points,): float64, NumPy's or JAX's; values that are not finite are written, but not drawn.
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
        title: the subject, with its setting.
        x_name: the abscissa's column; ``x_label`` and ``y_label`` stand at the axes.
        x (points,): its values.
        curves: the columns that are drawn and written.
        notes: sentences below the picture, on choices made and on limits of the curves.
        log_x: whether the abscissa is logarithmic; ``log_y`` likewise.
    """

    title: str
    x_name: str
    x_label: str
    y_label: str
    x: np.ndarray
    curves: Sequence[Series]
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
    """Writes numbers under their names as CSV; floats read back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(["" if cell is None else repr(cell) if isinstance(cell, float) else cell for cell in row])


def draw(chart: Chart, path: pathlib.Path | BinaryIO) -> None:
    """Writes the chart to ``path``, in the format of its suffix, or to an open file, as PNG."""
    figure = own_figure()
    draw_on(chart, figure.subplots())
    if chart.notes:
        figure.supxlabel(textwrap.fill(" ".join(chart.notes), 110), fontsize=6.5, color=INK, x=0.02, ha="left")
    figure.savefig(path)


def draw_on(chart: Chart, axes: Any) -> None:
    """Draws a chart on axes, each curve or band in the next colour."""
    dashes = {"bound": "-", "estimate": ":", "reference": "--"}
    curves = iter(chart.curves)
    # A band takes the next curve as well, its upper edge.
    for color, curve in zip(itertools.cycle(COLORS), curves, strict=False):
        if curve.style == "band":
            axes.fill_between(
                chart.x, drawable(curve.values), drawable(next(curves).values), color=color, alpha=0.3,
                linewidth=0.8, label=curve.label,
            )  # fmt: skip
            continue
        axes.plot(
            chart.x, drawable(curve.values), dashes[curve.style], color=color, linewidth=1.8, label=curve.label,
            marker="o" if len(chart.x) < 20 else None, markersize=3, zorder=3 if curve.style == "reference" else 2,
        )  # fmt: skip
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    dress(axes, chart.title, chart.x_label, chart.y_label)
