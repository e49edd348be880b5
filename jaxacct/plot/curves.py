"""Pictures of one run: its privacy profile, its trade-off, its epsilon over the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from jaxtyping import ArrayLike

from jaxacct import certified, gdp, rdp
from jaxacct import tradeoff as trade_offs
from jaxacct.bounds import Bounds
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps
from jaxacct.outward import rounded_up
from jaxacct.plot.style import GREY, INK, axes_or_new, curve, described, drawn, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_DELTA = 1e-10
"""Delta at which a profile ends, unless its epsilons are given."""

RATES = np.concatenate([[0.0], np.geomspace(1e-5, 0.05, 20), np.linspace(0.0, 1.0, 33)[2:]])
"""False-positive rates of a trade-off, unless they are given: enough for both scales."""

SMALL = "small rates"
"""Label of the axes within the axes of a trade-off."""

Accountant = Callable[..., Bounds | ArrayLike]
"""Called as ``accountant(mechanism, steps, delta, relation=relation)``; returns a bracket, or one number."""

ACCOUNTANTS: Mapping[str, Accountant] = {
    "certified bracket": certified.epsilon,
    "Rényi: an upper bound": rdp.epsilon,
    "central limit: an estimate, no bound": gdp.epsilon,
}
"""What :func:`epsilon_over_steps` draws unless told: legend to accountant."""


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
        mechanism: as of :func:`jaxacct.epsilon`.
        steps: likewise.
        epsilons (n,): at least 0, ascending; by default up to where delta is 1e-10.
        relation: neighbouring relation.
        label: what the legend calls it; by default the mechanism's numbers.
        axes: where to draw, also onto another run's picture; by default a new figure.

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
    found = certified.curve(mechanism, steps, epsilons=epsilons, relation=relation)
    return draw_profile(axes_or_new(axes), epsilons, found.lower, found.upper, label or described(mechanism, steps))


def draw_profile(axes: Axes, epsilons: ArrayLike, lower: ArrayLike, upper: ArrayLike, label: str) -> Axes:
    """Draws bounds on delta over epsilon."""
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

    Beside the diagonal of guessing; in a corner true-positive over false-positive rates, both logarithmic, which shows
    what attacks that hardly ever err can reach.

    Args:
        mechanism: as of :func:`jaxacct.epsilon`.
        steps: likewise.
        fpr (n,): false-positive rates in [0, 1], ascending; by default from 1e-5 on.
        relation: as of :func:`jaxacct.tradeoff.curve`.
        label: what the legend calls it; by default the mechanism's numbers.
        axes: where to draw, also onto another run's picture; by default a new figure.

    Guarantee: the line is :func:`jaxacct.tradeoff.curve`'s certified lower bound, which protects; the band above it
    reaches to the upper one. Errors are that function's; ModuleNotFoundError where matplotlib is missing.

    >>> import jaxacct as ja
    >>> axes = tradeoff(ja.Gaussian(noise_multiplier=10.0), steps=100, fpr=[0.0, 0.01, 0.1, 0.5, 1.0])
    >>> axes.get_ylabel(), [inner.get_yscale() for inner in axes.child_axes]
    ('least false-negative rate', ['log'])
    """
    rates = RATES if fpr is None else np.asarray(fpr, np.float64)
    found = trade_offs.curve(mechanism, steps, rates, relation=relation)
    return draw_tradeoff(axes_or_new(axes), rates, found.lower, found.upper, label or described(mechanism, steps))


def draw_tradeoff(axes: Axes, rates: np.ndarray, lower: ArrayLike, upper: ArrayLike, label: str) -> Axes:
    """Draws bounds on false-negative rates over false-positive ones."""
    lower, upper = np.asarray(lower), np.asarray(upper)
    inner = next((other for other in axes.child_axes if other.get_label() == SMALL), None)
    small = (rates > 0) & (rates <= 0.1) & (lower < 1)
    style = drawn(axes)
    if not style:
        axes.plot([0, 1], [1, 0], color=GREY, linewidth=1)
        axes.annotate(
            "guessing", (0.28, 0.72), (3, 3), textcoords="offset points", color=INK, fontsize=8, rotation=-35,
        )  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1))
    if inner is None and np.count_nonzero(small) > 1:
        inner = axes.inset_axes((0.62, 0.56, 0.38, 0.4), label=SMALL)
        inner.plot(rates[small], rates[small], color=GREY, linewidth=1)
        inner.set(xscale="log", yscale="log")
        inner.set_title("true- over false-positive rate", fontsize=7.5, color=INK)
        inner.tick_params(labelsize=7)
    curve(axes, rates, lower, label, upper, style=style)
    dress(axes, "Trade-off: what attacks can reach", "false-positive rate", "least false-negative rate", legend=False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.14))
    if inner is not None:
        curve(cast("Axes", inner), rates[small], 1 - lower[small], label, 1 - upper[small], style=style)
        dress(cast("Axes", inner), legend=False)
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
    """Draws epsilon over the number of steps as several accountants have it, and returns the axes.

    Args:
        mechanism: one mechanism.
        steps (n,): numbers of steps, whole, at least 1, ascending.
        delta: in (0, 1).
        accountants: legend to what is called as :func:`jaxacct.epsilon` is, and returns a bracket or one number; by
            default the certified bracket, Rényi divergences' upper bound and the central limit's estimate. Say in the
            legend whether yours is a bound.
        relation: neighbouring relation.
        axes: where to draw; by default a new figure.

    Guarantee: each line has its accountant's; of a bracket the line is the upper end, and the band reaches to the
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
    for label, accountant in accountants.items():
        found = [accountant(mechanism, int(count), delta, relation=relation) for count in places]
        upper = [float(each.upper if isinstance(each, Bounds) else np.asarray(each)) for each in found]
        lower = [
            float(each.lower) if isinstance(each, Bounds) else high for each, high in zip(found, upper, strict=True)
        ]
        curve(axes, places, upper, label, lower)
    dress(axes, f"What steps cost: {described(mechanism)}", "steps", f"epsilon at delta = {rounded_up(delta)}")
    return axes
