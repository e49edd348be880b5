"""Pictures of one run, of many runs, and of a training, as functions that draw onto axes of matplotlib.

In reading order:

- :func:`profile`, :func:`tradeoff`, :func:`epsilon_over_steps`: one run's privacy profile, trade-off, and epsilon over
  the steps.
- :func:`least_noise`, :func:`what_if`, :func:`sweep`: noise over epochs and batch sizes, changes of a plan, sweeps.
- :func:`training`: a training's metric and epsilon over its steps, from its report.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax  # noqa: F401  (whole, before jaxtyping asks for a part of it)
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import calibrate, certified, gdp, rdp, validation
from jaxacct import tradeoff as trade_offs
from jaxacct.bounds import Bounds
from jaxacct.display import rounded_down, rounded_up, spell_count, steps_of
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps
from jaxacct.plot.chart import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    axes_or_new,
    count_lines,
    curve,
    describe,
    dress,
    own_figure,
    words,
)
from jaxacct.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_DELTA = 1e-12
"""Delta at which a profile ends by default, here and on the command line. Sound for any value."""

Accountant = Callable[..., Bounds | ArrayLike]
"""A function ``accountant(mechanism, steps, delta, relation=relation)`` that returns a bracket, or one number."""

ACCOUNTANTS: Mapping[str, Accountant] = {
    "certified bracket": certified.epsilon,
    "Rényi: an upper bound": rdp.epsilon,
    "central limit: an estimate, no bound": gdp.epsilon,
}
"""Default accountants of :func:`epsilon_over_steps`, by their text in the legend."""


def profile(
    mechanism: Mechanisms,
    steps: Steps,
    *,
    epsilons: ArrayLike | None = None,
    relation: Relation = "add_or_remove",
    label: str | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draws the privacy profile of a composition, delta over epsilon, and returns the axes.

    Args:
        mechanism: as for :func:`jaxacct.epsilon`.
        steps: likewise.
        epsilons (n,): at least 0, ascending; by default up to where delta is 1e-12.
        relation: neighbouring relation.
        label: its text in the legend; by default the mechanism's numbers.
        axes: axes to draw on, which may hold another run's picture; by default a new figure.

    Guarantee: the line is :func:`jaxacct.curve`'s certified upper bound, the band below it reaches to the lower one.

    Raises:
        ValueError: as :func:`jaxacct.epsilon` does; no epsilons are given and none are known to be enough.
        ModuleNotFoundError: matplotlib is missing.

    >>> import jaxacct as ja
    >>> axes = profile(ja.Gaussian(noise_multiplier=10.0), steps=100, epsilons=[0.0, 2.0, 4.0])
    >>> axes.get_xlabel(), len(axes.get_lines())
    ('epsilon', 1)
    """
    if epsilons is None:
        last = float(certified.epsilon(mechanism, steps, LEAST_DELTA, relation=relation).upper)
        if not np.isfinite(last):
            raise ValueError("epsilons = None: no range is known for this run; give the epsilons that you want.")
        epsilons = np.linspace(0.0, max(last, 1e-3), 65)
    bounds = certified.curve(mechanism, steps, epsilons=epsilons, relation=relation)
    return draw_profile(axes_or_new(axes), epsilons, bounds.lower, bounds.upper, label or describe(mechanism, steps))


def draw_profile(axes: Axes, epsilons: ArrayLike, lower: ArrayLike, upper: ArrayLike, label: str) -> Axes:
    """Draws bounds on delta over epsilon, on a logarithmic scale where any is above 0."""
    positive = np.asarray(upper) > 0
    if np.any(positive):
        axes.set_yscale("log")
        upper = np.where(positive, upper, np.nan)
        lower = np.where(positive, np.maximum(lower, 1e-3 * np.nanmin(upper)), np.nan)
    curve(axes, epsilons, upper, label, lower)
    dress(axes, "Privacy profile", "epsilon", "delta")
    return axes


def tradeoff(
    mechanism: Mechanisms,
    steps: Steps,
    *,
    fpr: ArrayLike | None = None,
    relation: Relation = "add_or_remove",
    label: str | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draws the least false-negative rate of any attack over its false-positive rate, and returns the axes.

    A diagonal shows guessing. Small axes in a corner show true-positive over false-positive rates, both logarithmic:
    the reach of attacks that hardly ever err.

    Args:
        mechanism: as for :func:`jaxacct.epsilon`.
        steps: likewise.
        fpr (n,): false-positive rates in [0, 1], ascending; by default from 1e-5 on.
        relation: as for :func:`jaxacct.tradeoff.curve`.
        label: its text in the legend; by default the mechanism's numbers.
        axes: axes to draw on, which may hold another run's picture; by default a new figure.

    Guarantee: the line is :func:`jaxacct.tradeoff.curve`'s certified lower bound, which protects; the band above it
    reaches to the upper one. Errors are that function's; ModuleNotFoundError where matplotlib is missing.

    >>> import jaxacct as ja
    >>> axes = tradeoff(ja.Gaussian(noise_multiplier=10.0), steps=100, fpr=[0.0, 0.01, 0.1, 0.5, 1.0])
    >>> axes.get_ylabel(), [inner.get_yscale() for inner in axes.child_axes]
    ('least false-negative rate', ['log'])
    """
    # The default has enough rates for both scales.
    default = np.concatenate([np.zeros(1), np.geomspace(1e-5, 0.05, 20), np.linspace(0.0, 1.0, 33)[2:]])
    rates = default if fpr is None else np.asarray(fpr, np.float64)
    bounds = trade_offs.curve(mechanism, steps, rates, relation=relation)
    return draw_tradeoff(axes_or_new(axes), rates, bounds.lower, bounds.upper, label or describe(mechanism, steps))


def draw_tradeoff(axes: Axes, rates: np.ndarray, lower: ArrayLike, upper: ArrayLike, label: str) -> Axes:
    """Draws bounds on the least false-negative rate over the false-positive rate, with small rates in a corner."""
    lower, upper = np.asarray(lower), np.asarray(upper)
    inner_label = "small rates"  # by it a second run's picture finds the small axes of the first
    inner = next((other for other in axes.child_axes if other.get_label() == inner_label), None)
    small = (rates > 0) & (rates <= 0.1) & (lower < 1)
    style = count_lines(axes)
    if not style:
        axes.plot([0, 1], [1, 0], color=GREY, linewidth=1)
        axes.annotate(
            "guessing", (0.28, 0.72), (3, 3), textcoords="offset points", color=INK, fontsize=8, rotation=-35,
        )  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1))
    if inner is None and np.count_nonzero(small) > 1:
        inner = axes.inset_axes((0.62, 0.56, 0.38, 0.4), label=inner_label)
        inner.plot(rates[small], rates[small], color=GREY, linewidth=1)
        inner.set(xscale="log", yscale="log")
        inner.set_title("true- over false-positive rate", fontsize=7.5, color=INK)
        inner.tick_params(labelsize=7)
    curve(axes, rates, lower, label, upper, style=style)
    dress(axes, "Trade-off: what attacks can reach", "false-positive rate", "least false-negative rate", legend=False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.14))
    if inner is not None:
        small_axes = cast("Axes", inner)
        curve(small_axes, rates[small], 1 - lower[small], label, 1 - upper[small], style=style)
        dress(small_axes, legend=False)
    return axes


def epsilon_over_steps(
    mechanism: Mechanism,
    steps: ArrayLike,
    delta: float,
    *,
    accountants: Mapping[str, Accountant] = ACCOUNTANTS,
    relation: Relation = "add_or_remove",
    axes: Axes | None = None,
) -> Axes:
    """Draws epsilon over the number of steps by several accountants, and returns the axes.

    Args:
        mechanism: one mechanism.
        steps (n,): numbers of steps, whole, at least 1, ascending.
        delta: in (0, 1).
        accountants: functions that are called as :func:`jaxacct.epsilon` is and return a bracket or one number, by
            their text in the legend; by default the certified bracket, the upper bound of Rényi divergences and the
            estimate of the central limit. Say in the legend whether yours is a bound.
        relation: neighbouring relation.
        axes: axes to draw on; by default a new figure.

    Guarantee: each line has its accountant's; for a bracket the line is the upper end, and the band reaches to the
    lower one. Errors are the accountants'; ModuleNotFoundError where matplotlib is missing.

    >>> import jaxacct as ja
    >>> run = ja.Gaussian(noise_multiplier=10.0)
    >>> axes = epsilon_over_steps(run, [1, 10, 100], 1e-5, accountants={"certified": ja.epsilon})
    >>> [line.get_label() for line in axes.get_lines()]
    ['certified']
    """
    places = np.atleast_1d(np.asarray(steps, float))
    if not ((places >= 1) & (places == np.floor(places))).all():
        raise ValueError(f"steps = {steps} are not all whole and at least 1: round them, as np.geomspace(...).round().")
    axes = axes_or_new(axes)
    axes.set(xscale="log", yscale="log")
    # A line for each accountant; a bracket shows its lower end, too.
    for label, accountant in accountants.items():
        answers = [accountant(mechanism, int(count), delta, relation=relation) for count in places]
        bounds = [(each.lower, each.upper) if isinstance(each, Bounds) else (each, each) for each in answers]
        lower, upper = np.array([[float(np.asarray(end)) for end in pair] for pair in bounds]).T
        curve(axes, places, upper, label, lower)
    dress(axes, f"What steps cost: {describe(mechanism)}", "steps", f"epsilon at delta = {rounded_up(delta)}")
    return axes


# ----------------------------------------------------------------------------------------------------
# Pictures of many runs: the least noise over epochs and batches, the noise for changed plans, and maps of sweeps.
# ----------------------------------------------------------------------------------------------------


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
        num_examples: number of examples; a batch is a Poisson sample of rate batch size / examples.
        epochs (n,): positive, ascending; the steps are epochs / rate, rounded up.
        batch_sizes (m,): expected batch sizes, at most ``num_examples``, ascending.
        relation: neighbouring relation.
        axes: axes to draw on; by default a new figure.

    Guarantee: every noise satisfies its budget, by :func:`jaxacct.calibrate.noise_multiplier`; the contours between
    are interpolated, so ask for the noise of the plan that you choose. Where nothing is certified the map is empty.

    Raises ValueError where a setting is out of range, ModuleNotFoundError where matplotlib is missing.

    >>> axes = least_noise(3.0, 1e-5, 50_000, epochs=[1, 10], batch_sizes=[256, 1024])
    >>> axes.get_title(loc="left")
    'Least noise multiplier for epsilon = 3, delta = 1e-05, 50,000 examples'
    """
    many, sizes = (np.sort(np.atleast_1d(np.asarray(each, np.float64))) for each in (epochs, batch_sizes))
    num_examples = validation.check_count(num_examples, "num_examples", "how many examples there are")
    validation.check_positive(many, "epochs")
    rates = np.broadcast_to(sizes / num_examples, (len(many), len(sizes)))
    validation.check_sampling_rate(rates, "batch_sizes / num_examples")
    steps = np.vectorize(steps_of, otypes=[float])(many[:, None], rates)
    plans = zip(rates.ravel(), steps.ravel(), strict=True)
    noise = [_least_noise(epsilon, delta, rate, count, relation) for rate, count in plans]
    axes = axes_or_new(axes)
    _fill(axes, sizes, many, np.reshape(noise, rates.shape), "noise multiplier")
    budget = f"epsilon = {rounded_up(epsilon)}, delta = {rounded_up(delta)}"
    title = f"Least noise multiplier for {budget}, {spell_count(num_examples, 'example')}"
    dress(axes, title, "expected batch size", "epochs", legend=False)
    return axes


def what_if(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    factors: ArrayLike | Sequence[float] = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
    relation: Relation = "add_or_remove",
    axes: Axes | None = None,
) -> Axes:
    """Draws the least noise multiplier of a plan of DP-SGD when one setting is multiplied, and returns the axes.

    There is a line for each of epsilon, delta, the sampling rate and the steps. They answer what noise a smaller
    budget, a longer run or a larger batch would need.

    Args:
        epsilon: the plan's budget, above 0.
        delta: in (0, 1).
        sampling_rate: of Poisson sampling, in (0, 1].
        steps: number of noisy updates.
        factors (n,): positive, ascending; factors that take a setting out of its range are left out, and steps are
            rounded up.
        relation: neighbouring relation.
        axes: axes to draw on; by default a new figure.

    Guarantee and errors are those of :func:`least_noise`: the markers are certified, the lines between them are not.

    >>> axes = what_if(3.0, 1e-5, 0.01, 1000, factors=[0.5, 1.0])
    >>> [line.get_label() for line in axes.get_lines() if line.get_label()[0] != "_"]
    ['epsilon', 'delta', 'sampling rate', 'steps']
    """
    times = np.sort(np.atleast_1d(np.asarray(factors, np.float64)))
    validation.check_positive(times, "factors")
    plan = {"epsilon": epsilon, "delta": delta, "sampling_rate": sampling_rate, "steps": float(steps)}
    noise = {name: [_change_setting(plan, name, factor, relation) for factor in times] for name in plan}
    axes = axes_or_new(axes)
    axes.set(xscale="log", yscale="log")
    for name, line in noise.items():
        curve(axes, times, line, words(name))
    axes.axvline(1.0, color=GREY, linewidth=1)
    _plain_ticks(axes)
    budget = f"epsilon {rounded_up(epsilon)}, delta {rounded_up(delta)}"
    title = f"What if: {budget}, sampling rate {sampling_rate:g}, {spell_count(int(steps), 'step')}"
    dress(axes, title, "one of them, multiplied by", "least noise multiplier")
    return axes


def _change_setting(plan: dict[str, float], name: str, factor: float, relation: Relation) -> float:
    """Returns the noise of a plan with one setting multiplied; NaN where that is out of its range."""
    changed = plan | {name: plan[name] * factor}
    changed["steps"] = float(steps_of(changed["steps"], 1.0))
    if changed["delta"] >= 1 or changed["sampling_rate"] > 1:
        return np.nan
    epsilon, delta, rate, steps = changed.values()
    return _least_noise(epsilon, delta, rate, steps, relation)


def _least_noise(epsilon: float, delta: float, rate: float, steps: float, relation: Relation) -> float:
    """Returns the least noise multiplier for a budget and a run."""
    return float(calibrate.noise_multiplier(epsilon, delta, rate, int(steps), relation=relation).value)


def sweep(results: Sweep, *, axes: Axes | None = None, **at: float | str) -> Axes:
    """Draws a sweep of one or two axes: a curve with its bracket as a band, or a map; returns the axes.

    Args:
        results: a grid, in memory or in a folder, of which at most 256 values of each axis are drawn.
        axes: axes to draw on; by default a new figure.
        at: values that axes are fixed at, by the axis's name, where there are more than two.

    Guarantee: at the sweep's settings the picture shows its ``upper`` or its noise multiplier; between them it shows
    nothing certified.

    Raises:
        ValueError: rows; other than one or two axes of numbers; an unknown axis, or a value that it lacks; entries
            that are all alike or not finite.
        ModuleNotFoundError: matplotlib is missing.

    >>> import jaxacct as ja
    >>> settings = ja.sweep.grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=100, delta=1e-5)
    >>> results = ja.sweep.epsilon(settings)
    >>> sweep(results).get_ylabel()
    'epsilon, upper bound'
    """
    part = results.downsampled(256, **at)
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
            f"there is nothing to draw: of {spell_count(values.size, 'entry', 'entries')} no two are finite and differ."
        )
    axes = axes_or_new(axes)
    label = words(part.quantity) + (", upper bound" if name == "upper" else "")
    constants = ", ".join(f"{words(name)} {value:g}" for name, value in part.constants.items())
    title = f"{', '.join(part.mechanisms)}: {constants}"
    *y, x = over
    axes.set_xscale(_axis_scale(over[x]))
    if y:
        _fill(axes, over[x], over[y[0]], values, label)
        dress(axes, title, words(x), words(y[0]), legend=False)
    else:
        axes.set_yscale("log" if 0 < 30 * finite.min() < finite.max() else "linear")
        curve(axes, over[x], values, label, np.squeeze(part.lower) if name == "upper" else None)
        dress(axes, title, words(x), label, legend=False)
    return axes


def _fill(axes: Axes, x: np.ndarray, y: np.ndarray, values: np.ndarray, label: str) -> None:
    """Draws a map, a colour bar, and contour lines with their numbers, in colours that keep their order in grey."""
    from matplotlib.patheffects import AbstractPathEffect, withStroke
    from matplotlib.ticker import LogLocator, MaxNLocator

    shown = np.ma.masked_invalid(values)
    axes.set(xscale=_axis_scale(x), yscale=_axis_scale(y))
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 0.0)
    is_log = 0 < 4 * low < high
    filled = axes.pcolormesh(
        x, y, shown, norm="log" if is_log else None, cmap="cividis", shading="gouraud", rasterized=True
    )  # fmt: skip
    bar = axes.figure.colorbar(filled, ax=axes)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK)
    if low < high:
        # About ten lines at most leave each one room for its number.
        spans = ((30.0, (1, 1.5, 2, 3, 4, 6)), (1e3, (1, 2, 5)), (1e6, (1, 3)), (np.inf, (1,)))
        digits = next(digits for most, digits in spans if not is_log or high <= most * low)
        ticks = (LogLocator(subs=digits) if is_log else MaxNLocator(7)).tick_values(low, high)
        levels = [level for level in ticks if low < level < high]
        # Light lines with a dark rim are visible on both ends of the colours.
        rim: list[AbstractPathEffect] = [withStroke(linewidth=2.5, foreground=INK)]
        lines = axes.contour(x, y, shown, levels=levels, colors="white", linewidths=1.0)
        places = {level: _label_position(axes, parts) for level, parts in zip(levels, lines.allsegs, strict=True)}
        numbered = [level for level in levels if places[level] is not None]
        if numbered != levels:  # a line in a corner has no room for its number, and says nothing without it
            lines.remove()
        if numbered and numbered != levels:
            lines = axes.contour(x, y, shown, levels=numbered, colors="white", linewidths=1.0)
        if numbered:
            lines.set_path_effects(rim)
            manual: Any = [places[level] for level in numbered]
            for text in axes.clabel(lines, fontsize=8, fmt="%g", manual=manual):
                text.set_path_effects(rim)
        bar.set_ticks(levels, labels=[f"{level:g}" for level in levels])
        bar.ax.minorticks_off()
    _plain_ticks(axes)


def _label_position(axes: Axes, parts: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Returns a place for the number of a contour line, in its middle and away from the rim; None where it has none."""
    to_axes = axes.transData + axes.transAxes.inverted()
    best = np.zeros((0, 2))
    for part in parts:
        if len(part) < 2:
            continue
        # Points of equal distances on the picture; its rim would cut a number.
        ends = to_axes.transform(part)
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(ends, axis=0).T))])
        at = np.arange(0.0, along[-1], 0.005)
        points = np.stack([np.interp(at, along, ends[:, i]) for i in (0, 1)], -1)
        inside = points[np.all(np.abs(points - 0.5) < 0.45, axis=1)]
        best = inside if len(inside) > len(best) else best
    if not len(best):
        return None
    x, y = to_axes.inverted().transform(best[len(best) // 2])
    return float(x), float(y)


def _plain_ticks(axes: Axes) -> None:
    """Writes plain numbers such as 0.5, 1, 2 at logarithmic axes of few decades, in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # Either axis may be logarithmic; four decades or more keep powers of ten.
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log" and high < 1e4 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1, 3)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_formatter(NullFormatter())


def _axis_scale(values: np.ndarray) -> str:
    """Returns the scale of an axis: the one on which its values lie more evenly, logarithmic for equal factors.

    Of two values, which lie evenly on both, it is logarithmic where they are more than a factor of 20 apart.

    >>> [_axis_scale(np.array(values)) for values in ([0.5, 1, 2, 4], [1, 2, 3], [1, 100], [0, 10, 100], [1, 3, 8])]
    ['log', 'linear', 'log', 'linear', 'log']
    """
    ordered = np.unique(values)
    if ordered[0] <= 0:
        return "linear"
    if len(ordered) < 3:
        return "log" if ordered[-1] > 20 * ordered[0] else "linear"

    def unevenness(places: np.ndarray) -> float:
        """Returns the deviation of the distances between neighbours, over their mean."""
        distances = np.diff(places)
        return float(np.std(distances) / np.mean(distances))

    return "log" if unevenness(np.log(ordered)) < unevenness(ordered) else "linear"


# ----------------------------------------------------------------------------------------------------
# The picture of a training run, from its report.
# ----------------------------------------------------------------------------------------------------


def training(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a picture of a training run: its test metric and epsilon spent over the steps.

    Args:
        report: as :func:`jaxacct.train.report.build_report` returns it; ``config["metric"]``, by default "accuracy",
            names the metric that ``accuracy`` in its history holds.
        path: the file to write; its suffix decides the format (.png, .svg, .pdf). Missing folders are made.

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
    history = report["history"]
    if not history:
        raise ValueError("the report has no history: nothing was trained, so there is nothing to draw.")
    final, config = report["final"], report["config"]
    budget, metric = config["budget"]["epsilon"], config.get("metric", "accuracy")
    steps = [entry["step"] for entry in history]
    marker = "o" if len(steps) < 40 else None
    figure = own_figure(6.4, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True)

    if history[-1]["accuracy"] is not None:
        accuracies = [entry["accuracy"] for entry in history]
        top.plot(steps, accuracies, color=BLUE, marker=marker, markersize=3)
        last = f"{accuracies[-1]:.1%}" if metric == "accuracy" else f"{accuracies[-1]:.3f}"
        at = steps[-1], accuracies[-1]
        top.annotate(last, at, xytext=(0, -14), textcoords="offset points", ha="right", color=BLUE)
    planned = config.get("ledger") == "planned"
    cost = [entry.get("epsilon_so_far", entry["epsilon"]) for entry in history]
    if "epsilon_so_far" in history[-1]:
        label = "the steps made so far"
    else:
        label = "the plan, from its first step on" if planned else f"spent, by the {config.get('ledger', 'filter')}"
    bottom.plot([0, *steps], [0.0, *cost], color=VERMILION, marker=marker, markersize=3, label=label)
    limit = "plan, wherever the run ends" if planned else "budget"
    bottom.axhline(budget, color=GREY, linestyle="--", linewidth=1, label=f"{limit}: epsilon = {rounded_up(budget)}")
    if final["epsilon_certified"] is not None:
        lower, upper = final["epsilon_certified"]["lower"], final["epsilon_certified"]["upper"]
        middle = (lower + upper) / 2
        bottom.errorbar(
            [final["steps"]], [middle], yerr=[[middle - lower], [upper - middle]], fmt="D", markersize=5, capsize=4,
            color=INK, label=f"certified: {rounded_down(lower, '.3f')} to {rounded_up(upper, '.3f')}",
        )  # fmt: skip
    bottom.set(xlim=(0, None), ylim=(0, 1.12 * max(budget, history[-1]["epsilon"])))
    bottom.legend(loc="lower right", frameon=False, fontsize=8)
    name = config.get("dataset")
    top.set_title("DP-SGD" if name is None else f"DP-SGD on {name}", loc="left", color=INK)
    dress(top, y_label="test accuracy" if metric == "accuracy" else f"test {metric.upper()}", legend=False)
    dress(bottom, x_label="noisy updates", y_label=f"epsilon at delta = {rounded_up(final['delta'])}", legend=False)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
