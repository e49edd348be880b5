"""Pictures of many runs: the least noise over epochs and batches, what a changed plan asks for, and maps of sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike

from jaxacct import calibrate, validation
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.outward import rounded_up
from jaxacct.plot.style import GREY, INK, axes_or_new, curve, dress, words
from jaxacct.rates import steps_of
from jaxacct.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS = 256
"""Values of each axis of a sweep that a picture shows."""

FACTORS = np.array([0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0])
"""By what the settings of a plan are multiplied, unless told."""


def least_noise(
    epsilon: float,
    delta: float,
    num_examples: int,
    *,
    epochs: ArrayLike,
    batch_sizes: ArrayLike,
    relation: Relation = "add_or_remove",
    axes: Axes | None = None,
) -> Axes:
    """Draws the least noise multiplier that keeps a budget, over epochs and expected batch sizes; returns the axes.

    Args:
        epsilon: budget, above 0.
        delta: in (0, 1).
        num_examples: how many there are; a batch is a Poisson sample of rate batch size / examples.
        epochs (n,): positive, ascending; the steps are epochs / rate, rounded up.
        batch_sizes (m,): expected ones, at most ``num_examples``, ascending.
        relation: neighbouring relation.
        axes: where to draw; by default a new figure.

    Guarantee: every noise satisfies its budget, as of :func:`jaxacct.calibrate.noise_multiplier`; the contours between
    are interpolated, so ask for the noise of the plan that you choose. Where nothing is certified the map is empty.

    Raises ValueError where a setting is out of range, ModuleNotFoundError where matplotlib is missing.

    >>> axes = least_noise(3.0, 1e-5, 50_000, epochs=[1, 10], batch_sizes=[256, 1024])
    >>> axes.get_title(loc="left")
    'Least noise multiplier for epsilon = 3, delta = 1e-05, 50,000 examples'
    """
    many, sizes = (np.sort(np.atleast_1d(np.asarray(each, np.float64))) for each in (epochs, batch_sizes))
    validation.check_count(num_examples, "num_examples", "how many examples there are")
    validation.check_positive(many, "epochs")
    rates = np.broadcast_to(sizes / num_examples, (len(many), len(sizes)))
    validation.check_sampling_rate(rates, "batch_sizes / num_examples")
    steps = np.vectorize(steps_of, otypes=[float])(many[:, None], rates)
    plans = zip(rates.ravel(), steps.ravel(), strict=True)
    noise = [_least_noise(epsilon, delta, rate, count, relation) for rate, count in plans]
    axes = axes_or_new(axes)
    _fill(axes, sizes, many, np.reshape(noise, rates.shape), "noise multiplier")
    budget = f"epsilon = {rounded_up(epsilon)}, delta = {rounded_up(delta)}"
    title = f"Least noise multiplier for {budget}, {num_examples:,} examples"
    dress(axes, title, "expected batch size", "epochs", legend=False)
    return axes


def what_if(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    factors: ArrayLike = FACTORS,
    relation: Relation = "add_or_remove",
    axes: Axes | None = None,
) -> Axes:
    """Draws the least noise multiplier of a plan of DP-SGD when one thing of it is multiplied, and returns the axes.

    A line each for epsilon, delta, the sampling rate and the steps: what would a smaller budget, a longer run or a
    larger batch ask for?

    Args:
        epsilon: the plan's budget, above 0.
        delta: in (0, 1).
        sampling_rate: of Poisson sampling, in (0, 1].
        steps: number of noisy updates.
        factors (n,): positive, ascending; what takes a setting out of its range is left out, steps are rounded up.
        relation: neighbouring relation.
        axes: where to draw; by default a new figure.

    Guarantee, errors: as of :func:`least_noise`; the markers are what is certified, the lines between them are not.

    >>> axes = what_if(3.0, 1e-5, 0.01, 1000, factors=[0.5, 1.0])
    >>> [line.get_label() for line in axes.get_lines() if line.get_label()[0] != "_"]
    ['epsilon', 'delta', 'sampling rate', 'steps']
    """
    times = np.sort(np.atleast_1d(np.asarray(factors, np.float64)))
    validation.check_positive(times, "factors")
    plan = {"epsilon": epsilon, "delta": delta, "sampling_rate": sampling_rate, "steps": float(steps)}
    noise = {name: [_changed(plan, name, factor, relation) for factor in times] for name in plan}
    axes = axes_or_new(axes)
    axes.set(xscale="log", yscale="log")
    for name, line in noise.items():
        curve(axes, times, line, words(name))
    axes.axvline(1.0, color=GREY, linewidth=1)
    _plain_ticks(axes)
    budget = f"epsilon {rounded_up(epsilon)}, delta {rounded_up(delta)}"
    title = f"What if: {budget}, sampling rate {sampling_rate:g}, {int(steps):,} steps"
    dress(axes, title, "one of them, multiplied by", "least noise multiplier")
    return axes


def _changed(plan: dict[str, float], name: str, factor: float, relation: Relation) -> float:
    """Returns the noise of a plan with one thing multiplied, NaN where that is out of its range."""
    changed = plan | {name: plan[name] * factor}
    changed["steps"] = float(steps_of(changed["steps"], 1.0))
    if changed["delta"] >= 1 or changed["sampling_rate"] > 1:
        return np.nan
    epsilon, delta, rate, steps = changed.values()
    return _least_noise(epsilon, delta, rate, steps, relation)


def _least_noise(epsilon: float, delta: float, rate: float, steps: float, relation: Relation) -> float:
    return float(calibrate.noise_multiplier(epsilon, delta, rate, int(steps), relation=relation).value)


def sweep(found: Sweep, *, axes: Axes | None = None, **at: float | str) -> Axes:
    """Draws a sweep of one or two axes: a curve with its bracket as a band, or a map; returns the axes.

    Args:
        found: a grid, in memory or in a folder, of which at most 256 values of each axis are drawn.
        axes: where to draw; by default a new figure.
        at: name of an axis to the value that it is fixed at, where there are more than two.

    Guarantee: what is drawn is the sweep's ``upper``, or its noise multiplier; between its settings, the eye's guess.

    Raises:
        ValueError: rows; other than one or two axes of numbers; an axis or a value that there is not; entries that
            are all alike or not finite.
        ModuleNotFoundError: matplotlib is missing.

    >>> import jaxacct as ja
    >>> found = ja.sweep.epsilon(ja.sweep.grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=100, delta=1e-5))
    >>> sweep(found).get_ylabel()
    'epsilon, upper bound'
    """
    part = found.downsampled(PIXELS, **at)
    over = {name: values for name, values in part.axes.items() if len(values) > 1}
    if not 1 <= len(over) <= 2 or any(values.dtype.kind == "U" for values in over.values()):
        raise ValueError(
            f"a picture has one or two axes of numbers, and here are {', '.join(over)}: fix one, at steps=1000 say."
        )
    name = "noise_multiplier" if part.quantity == "noise_multiplier" else "upper"
    values = np.squeeze(np.where(np.isfinite(part.upper), part[name], np.nan))
    finite = values[np.isfinite(values)]
    if not finite.size or not finite.min() < finite.max():
        raise ValueError(
            f"there is nothing to draw: of {values.size} entries {finite.size} are finite, and these alike."
        )
    axes = axes_or_new(axes)
    label = words(part.quantity) + (", upper bound" if name == "upper" else "")
    constants = ", ".join(f"{words(name)} {value:g}" for name, value in part.constants.items())
    title = f"{', '.join(part.mechanisms)}: {constants}"
    *y, x = over
    axes.set_xscale(_scale(over[x]))
    if y:
        _fill(axes, over[x], over[y[0]], values, label)
        dress(axes, title, words(x), words(y[0]), legend=False)
    else:
        axes.set_yscale("log" if 0 < 30 * finite.min() < finite.max() else "linear")
        curve(axes, over[x], values, label, np.squeeze(part.lower) if name == "upper" else None)
        dress(axes, title, words(x), label, legend=False)
    return axes


def _fill(axes: Axes, x: np.ndarray, y: np.ndarray, values: np.ndarray, label: str) -> None:
    """Draws a map, a bar beside it, and lines with their numbers; its colours are in order in grey, too."""
    from matplotlib.patheffects import AbstractPathEffect, withStroke
    from matplotlib.ticker import LogLocator, MaxNLocator

    shown = np.ma.masked_invalid(values)
    axes.set(xscale=_scale(x), yscale=_scale(y))
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 0.0)
    is_log = 0 < 4 * low < high
    filled = axes.pcolormesh(
        x, y, shown, norm="log" if is_log else None, cmap="cividis", shading="gouraud", rasterized=True
    )  # fmt: skip
    bar = axes.figure.colorbar(filled, ax=axes)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK)
    if low < high:
        digits = (1, 2, 5) if high > 40 * low else (1, 1.5, 2, 3, 4, 6)
        found = (LogLocator(subs=digits) if is_log else MaxNLocator(7)).tick_values(low, high)
        levels = [level for level in found if low < level < high]
        # Light lines with a dark rim are seen on either end of the colours.
        rim: list[AbstractPathEffect] = [withStroke(linewidth=2.5, foreground=INK)]
        lines = axes.contour(x, y, shown, levels=levels, colors="white", linewidths=1.0)
        lines.set_path_effects(rim)
        for text in axes.clabel(lines, fontsize=8, fmt="%g"):
            text.set_path_effects(rim)
            place = axes.transAxes.inverted().transform(axes.transData.transform(text.get_position()))
            text.set_visible(bool(np.all(np.abs(place - 0.5) < 0.46)))  # else it would be cut
        bar.set_ticks(levels, labels=[f"{level:g}" for level in levels])
        bar.ax.minorticks_off()
    _plain_ticks(axes)


def _plain_ticks(axes: Axes) -> None:
    """Writes 0.5, 1, 2 at a logarithmic axis of few decades, in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log" and high < 1e4 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1, 3)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_formatter(NullFormatter())


def _scale(values: np.ndarray) -> str:
    return "log" if values.min() > 0 and values.max() > 20 * values.min() else "linear"
