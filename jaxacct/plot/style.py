"""How pictures look: colours that are told apart by all eyes and in grey, brackets as bands, labels and rules.

Colours are Okabe and Ito's (2008, "Color Universal Design"), each with a dash of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, GREY = "#26323f", "#d9dee3", "#7a8794"
BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, INK)
DASHES = ("-", "--", ":", "-.", (0, (7, 1.5)), (0, (1, 1)))

Values = ArrayLike | Sequence[float]

CURVE = "jaxacct"
"""Marks the lines that are counted when the next one's colour is chosen."""


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
    """Returns a figure that pyplot does not know of: for files, where nothing global of matplotlib may change."""
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


def drawn(axes: Axes) -> int:
    """Returns how many lines :func:`curve` has drawn there."""
    return sum(line.get_gid() == CURVE for line in axes.get_lines())


def curve(
    axes: Axes, x: Values, y: Values, label: str, lower: Values | None = None, *, style: int | None = None
) -> None:
    """Draws a line in the next style, or that of this number, and a band from it to ``lower``; not what is infinite.

    Certified brackets are mostly narrower than the line: then the line is what is seen of them.
    """
    index = (drawn(axes) if style is None else style) % len(COLORS)
    x, y = np.asarray(x), drawable(y)
    if lower is not None:
        axes.fill_between(x, drawable(lower), y, color=COLORS[index], alpha=0.3, linewidth=0)
    axes.plot(
        x, y, linestyle=DASHES[index], color=COLORS[index], linewidth=1.8, label=label, gid=CURVE,
        marker="o" if len(x) < 20 else None, markersize=3.5,
    )  # fmt: skip


def drawable(values: Values) -> np.ndarray:
    """Returns the values with NaN, which draws nothing, for what is not finite."""
    return np.where(np.isfinite(values), values, np.nan)


def dress(axes: Axes, title: str = "", x_label: str = "", y_label: str = "", *, legend: bool = True) -> None:
    """Gives axes their title, labels, grid and legend; a title or label that is there stays."""
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
    """Returns a name of the library as a label says it."""
    return name.replace("_", " ")


def described(mechanism: Mechanisms, steps: Steps | None = None) -> str:
    """Returns a composition in the words of a legend.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> described(PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01), 10_000)
    'noise multiplier 1, sampling rate 0.01, 10,000 steps'
    """
    if not isinstance(mechanism, Mechanism):
        return f"{len(mechanism)} mechanisms composed"
    told = [
        f"{words(name)} {float(np.asarray(value)):g}"
        for name, value in vars(mechanism).items()
        if isinstance(value, (int, float, np.generic)) or (hasattr(value, "ndim") and value.ndim == 0)
    ]
    if isinstance(steps, (int, float, np.number)):
        told.append(f"{int(steps):,} steps")
    return ", ".join(told) or type(mechanism).__name__
