"""The results as pictures: error against time for each case, and time against the number of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LEAST_ERROR = 1e-13
"""Smaller ones are drawn there: truths are no better known."""


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes a picture of each case that has errors, and of growth; none where matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        return []
    written = []
    for name, case in results["cases"].items():
        by_steps = name == "growth"
        rows = [row for row in case["rows"] if "error" not in row and (by_steps or "error_above" in row)]
        if not rows or case["task"] in ("step", "in_loop", "roofline"):
            continue
        figure, axes = pyplot.subplots(figsize=(7, 4.5))
        for contender in dict.fromkeys(row["contender"] for row in rows):
            own = [row for row in rows if row["contender"] == contender]
            across = [row["steps"] if by_steps else max(abs(row["error_above"]), LEAST_ERROR) for row in own]
            is_wrong = any(row.get("wrong") for row in own)
            style = ("x" if is_wrong else "o") + ("-" if by_steps else "")
            label = contender + (" (below the truth)" if is_wrong else "")
            axes.loglog(across, [row["seconds_each"] for row in own], style, label=label)
        axes.set_xlabel("steps" if by_steps else "largest relative error of the upper bound")
        axes.set_ylabel("seconds each, warm")
        axes.set_title(case["title"], fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        path = folder / f"suite-{name}.png"
        figure.savefig(path, dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        written.append(path)
    return written
