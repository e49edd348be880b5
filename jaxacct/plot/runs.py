"""The picture of a training run, of its report."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from jaxacct.outward import rounded_down, rounded_up
from jaxacct.plot.style import BLUE, GREY, INK, VERMILION, dress, own_figure


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
    top.set_ylabel("test accuracy" if metric == "accuracy" else f"test {metric.upper()}")

    planned = config.get("ledger") == "planned"
    cost = [entry.get("epsilon_so_far", entry["epsilon"]) for entry in history]
    if "epsilon_so_far" in history[-1]:
        label = "the steps made so far"
    else:
        label = "the plan, from its first step on" if planned else f"spent, by the {config.get('ledger', 'filter')}"
    bottom.plot([0, *steps], [0.0, *cost], color=VERMILION, marker=marker, markersize=3, label=label)
    whole = "plan, wherever the run ends" if planned else "budget"
    bottom.axhline(budget, color=GREY, linestyle="--", linewidth=1, label=f"{whole}: epsilon = {rounded_up(budget)}")
    if final["epsilon_certified"] is not None:
        lower, upper = final["epsilon_certified"]["lower"], final["epsilon_certified"]["upper"]
        middle = (lower + upper) / 2
        bottom.errorbar(
            [final["steps"]], [middle], yerr=[[middle - lower], [upper - middle]], fmt="D", markersize=5, capsize=4,
            color=INK, label=f"certified: {rounded_down(lower, '.3f')} to {rounded_up(upper, '.3f')}",
        )  # fmt: skip
    bottom.set_ylim(bottom=0, top=1.12 * max(budget, history[-1]["epsilon"]))
    bottom.set_ylabel(f"epsilon at delta = {rounded_up(final['delta'])}")
    bottom.set_xlabel("noisy updates")
    bottom.set_xlim(left=0)
    bottom.legend(loc="lower right", frameon=False, fontsize=8)
    name = config.get("dataset")
    top.set_title("DP-SGD" if name is None else f"DP-SGD on {name}", loc="left", color=INK)
    for axes in (top, bottom):
        dress(axes, legend=False)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
