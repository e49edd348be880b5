"""Draws the pictures of the README, of the gallery and of the page on correlated noise: ``python docs/pictures.py``.

Every number in them is computed here.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import jaxacct as ja
from jaxacct import factorize, strategies
from jaxacct.plot.chart import BLUE as ACCURACY
from jaxacct.plot.chart import FAINT, GREEN, INK, own_figure
from jaxacct.plot.chart import VERMILION as SPENT

FOLDER = pathlib.Path(__file__).parent / "images"

NOISE, RATE, DELTA = 1.0, 0.01, 1e-5

STEPS = np.unique(np.geomspace(1, 1e6, 49).round())

SIDE = 64
"""Budgets and numbers of steps of the map, each."""

LEVELS, BRIGHT = (1, 2, 5, 10, 20, 50), 20
"""Noise multipliers of the map's lines, and up to which of them they are drawn light on dark."""


def accountants(axes: Any) -> None:
    """Draws epsilon against steps: certified, by Rényi divergences, and by the central limit."""
    mechanism = ja.PoissonSubsampledGaussian(NOISE, RATE)
    bounds = [ja.epsilon(mechanism, int(steps), DELTA) for steps in STEPS]
    lower, upper = (np.array([float(getattr(each, end)) for each in bounds]) for end in ("lower", "upper"))
    estimate = np.array([float(ja.gdp.epsilon(mechanism, int(steps), DELTA)) for steps in STEPS])
    renyi = np.asarray(jax.jit(jax.vmap(functools.partial(ja.rdp.epsilon, mechanism, delta=DELTA)))(STEPS))
    below = estimate < lower
    width = 10.0 ** np.ceil(np.log10(np.max((upper - lower) / upper)))
    axes.fill_between(STEPS, lower, upper, color=ACCURACY, linewidth=0)
    axes.plot(STEPS, renyi, "--", color=GREEN, linewidth=1.6, label="Rényi: an upper bound, not tight")
    axes.plot(STEPS, upper, color=ACCURACY, linewidth=2.2, label=f"certified bracket, relative gap below {width:.0e}")
    axes.plot(
        STEPS, estimate, ":", color=SPENT, linewidth=2.0,
        label=f"central limit: an estimate, too low at {np.mean(below):.0%} of these",
    )  # fmt: skip
    axes.fill_between(STEPS, estimate, lower, where=below, color=SPENT, alpha=0.12, linewidth=0)
    inset = axes.inset_axes((0.63, 0.1, 0.35, 0.26))
    inset.axhline(1, color=ACCURACY, linewidth=2.2)
    inset.plot(STEPS, renyi / upper, "--", color=GREEN, linewidth=1.4)
    inset.plot(STEPS, estimate / upper, ":", color=SPENT, linewidth=1.8)
    inset.set(xscale="log", ylim=(0, 3.6), xticks=[1, 1e3, 1e6], yticks=[0, 1, 2])
    inset.tick_params(labelsize=7, colors=INK)
    inset.text(0.96, 0.93, "over the certified one", transform=inset.transAxes, fontsize=7, ha="right", va="top")
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel=f"epsilon at delta = {DELTA:g}")
    axes.set_ylim(0.5 * float(np.min(lower)), 20 * float(np.max(renyi)))
    axes.set_title(f"What a run costs: noise {NOISE:g}, sampling rate {RATE:g}", loc="left", fontsize=9, color=INK)
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def least_noise(figure: Figure, axes: Any) -> None:
    """Draws the least noise for budgets and numbers of steps, all by one call."""
    settings = ja.sweep.grid(
        epsilon=np.geomspace(0.3, 10.0, SIDE), steps=np.geomspace(1e3, 1e6, SIDE).round(), sampling_rate=RATE,
        delta=DELTA,
    )  # fmt: skip
    results = ja.sweep.noise_multiplier(settings, mode="saddlepoint", show_progress=False)
    steps, budgets = results.axes["steps"], results.axes["epsilon"]
    noise = np.where(results.converged, results["noise_multiplier"], np.nan)
    mapped = axes.pcolormesh(steps, budgets, noise, norm="log", cmap="viridis", shading="nearest", rasterized=True)
    colors = ["white" if level <= BRIGHT else INK for level in LEVELS]
    lines = axes.contour(steps, budgets, noise, levels=LEVELS, colors=colors, linewidths=0.9)
    # Labels on the diagonal from little noise to much.
    across = np.diagonal(noise[::-1])
    at = [int(np.nanargmin(np.abs(np.log(across / level)))) for level in LEVELS]
    axes.clabel(lines, fontsize=7.5, fmt="%g", manual=[(steps[i], budgets[::-1][i]) for i in at])
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel=f"epsilon at delta = {DELTA:g}")
    axes.set_yticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
    axes.tick_params(axis="y", which="minor", left=False, labelleft=False)
    flagged = int(np.sum(~results.converged))
    left_out = f", {flagged} of them not settled" if flagged else ""
    axes.set_title(
        f"The least noise for a budget: {noise.size:,} in one call{left_out}", loc="left", fontsize=9, color=INK
    )
    bar = figure.colorbar(mapped, ax=axes)
    bar.set_label("noise multiplier, certified", color=INK, fontsize=8)
    bar.ax.tick_params(labelsize=7.5)


TRAINING, BATCH, BANDS = 2000, 0.005, (1, 2, 4, 8, 16, 32, 64)
"""Steps, expected batch over the data, and numbers of bands of the picture of correlated noise."""


def coefficients(axes: Any) -> None:
    """Draws first columns of strategies of one pass."""
    single, most = strategies.SinglePass(TRAINING), 64
    for name, strategy, color in (
        ("square root", strategies.square_root(TRAINING), INK),
        ("16 bands", factorize.banded_toeplitz(16, single), SPENT),
        ("3 buffers", factorize.buffered_toeplitz(3, single), GREEN),
    ):
        column = strategy.coefficients(most)
        axes.plot(np.arange(1, most), column[1:] / column[0], color=color, linewidth=1.4, label=name)
    axes.set(xscale="log", xlabel="steps ago", ylabel="coefficient over the first")
    axes.set_title("Strategies of least error in a single pass", loc="left", fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=8)


def of_bands(axes: Any) -> None:
    """Draws the error at equal budgets over that of DP-SGD, by the number of bands under cyclic Poisson sampling."""
    runs = [strategies.CyclicPoisson(TRAINING, bands, bands * BATCH) for bands in BANDS]
    banded = [factorize.banded_toeplitz(bands, run) for bands, run in zip(BANDS, runs, strict=True)]
    errors = np.array([factorize.error(*pair)[0] for pair in zip(banded, runs, strict=True)])
    for epsilon, color in ((1, INK), (4, SPENT), (8, GREEN)):
        noise = [
            factorize.noise_multiplier(strategy, run, epsilon, 1e-6).value / strategy.sensitivity(run.pattern)
            for strategy, run in zip(banded, runs, strict=True)
        ]
        error = np.sqrt(errors) * np.array(noise)
        axes.plot(BANDS, error / error[0], marker=".", color=color, linewidth=1.4, label=f"epsilon = {epsilon}")
    axes.set(xscale="log", ylim=(0, None), xlabel="bands, and groups", ylabel="error of sums over DP-SGD's")
    axes.set_xticks(BANDS, [str(bands) for bands in BANDS])
    axes.minorticks_off()
    axes.set_title(f"{TRAINING:,} steps of {BATCH:.1%} of the data, delta = 1e-6", loc="left", fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=8)


def main() -> None:
    """Writes ``docs/images/accountants.png`` and ``docs/images/correlated-noise.png``."""
    gallery()
    figure = Figure(figsize=(9.2, 3.7), dpi=94, layout="constrained")
    left, right = figure.subplots(1, 2)
    accountants(left)
    least_noise(figure, right)
    save(figure, (left, right), "accountants.png")
    figure = Figure(figsize=(9.2, 3.2), dpi=94, layout="constrained")
    left, right = figure.subplots(1, 2)
    coefficients(left)
    of_bands(right)
    for axes in (left, right):
        axes.grid(color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, (left, right), "correlated-noise.png")


def gallery() -> None:
    """Writes the pictures of ``docs/gallery.md``, as its own lines of Python have them."""
    run = ja.PoissonSubsampledGaussian(NOISE, RATE)
    some = np.geomspace(100, 1e5, 15).round()
    settings = ja.sweep.grid(noise_multiplier=np.geomspace(0.7, 8, 15), sampling_rate=RATE, steps=some, delta=DELTA)
    results = ja.sweep.epsilon(settings, show_progress=False)
    steps, sizes = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000], [128, 256, 512, 1024, 2048, 4096]
    epochs = [1, 2, 5, 10, 20, 50, 100]
    for name, calls in {
        "profile": [functools.partial(ja.plot.profile, run, count) for count in (1000, 10_000)],
        "tradeoff": [functools.partial(ja.plot.tradeoff, run, count) for count in (1000, 10_000)],
        "epsilon-over-steps": [functools.partial(ja.plot.epsilon_over_steps, run, steps, DELTA)],
        "least-noise": [functools.partial(ja.plot.least_noise, 3.0, DELTA, 50_000, epochs=epochs, batch_sizes=sizes)],
        "what-if": [functools.partial(ja.plot.what_if, 3.0, DELTA, 0.01, 1000)],
        "sweep": [functools.partial(ja.plot.sweep, results)],
    }.items():
        figure = own_figure(6.4, 4.4)
        axes = figure.subplots()
        for call in calls:
            call(axes=axes)
        figure.savefig(FOLDER / f"{name}.png", dpi=94, pil_kwargs={"optimize": True})


def save(figure: Figure, both: tuple[Any, Any], name: str) -> None:
    """Writes a picture of two axes."""
    FigureCanvasAgg(figure)
    for axes in both:
        axes.tick_params(colors=INK, labelsize=8)
        axes.xaxis.label.set(size=8.5, color=INK)
        axes.yaxis.label.set(size=8.5, color=INK)
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / name, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
