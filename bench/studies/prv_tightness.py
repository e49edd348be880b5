"""The share of random settings whose brackets reach the tolerance, and the time that they take.

Run: python -m bench.studies.prv_tightness --count 1000 --seed 0 --json FILE

Noise log-uniform in [0.5, 8], rate in [1e-4, 0.2], steps in [1, 1e6], delta in [1e-12, 1e-3]; settings of an epsilon
below 0.01 are left out. Brackets of different tolerances hold the same truth: two that do not overlap are a violation,
and so is a ``converged`` that contradicts the gap. Times are of single calls, compilation apart.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import jaxacct as ja
from bench import report
from jaxacct.prv import ToleranceWarning
from jaxacct.prv.accountant import LEAST, SIZES

QUANTILES = (0.5, 0.9, 0.99, 1.0)
SMALLEST = 0.01

Setting = tuple[float, float, int, float]


def draw(generator: np.random.Generator) -> Setting:
    """Returns noise, rate, steps and delta."""

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(generator.uniform(np.log(low), np.log(high))))

    return log_uniform(0.5, 8), log_uniform(1e-4, 0.2), round(log_uniform(1, 1e6)), log_uniform(1e-12, 1e-3)


def ask(setting: Setting, tolerance: float) -> dict[str, Any]:
    noise, rate, steps, delta = setting
    mechanism = ja.PoissonSubsampledGaussian(noise, rate)
    start = time.perf_counter()
    bounds, record = ja.prv.epsilon(mechanism, steps, delta, tolerance=tolerance, return_diagnostics=True)
    return {
        "seconds": time.perf_counter() - start,
        "lower": float(bounds.lower),
        "upper": float(bounds.upper),
        "gap": float(bounds.gap),
        "converged": bool(bounds.converged),
        "points": record.points,
        "slack_delta": [float(value) for value in record.slack_delta],
    }


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, nargs="+", default=[1e-3, 1e-4])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ToleranceWarning)
    console = Console(width=140)
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    generator, rows, skipped = np.random.default_rng(arguments.seed), [], 0
    with Progress(*columns, console=console, transient=True) as progress:
        compiling = progress.add_task("compiling", total=len(SIZES))
        first = {}
        for points in SIZES:
            start = time.perf_counter()
            ja.prv.epsilon(ja.PoissonSubsampledGaussian(1.0, 0.01), 10**4, 1e-5, points=points)
            first[points] = time.perf_counter() - start
            progress.advance(compiling)
        running = progress.add_task("settings", total=arguments.count)
        while len(rows) < arguments.count:
            setting = draw(generator)
            noise, rate, steps, delta = setting
            rough = ja.prv.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, delta, points=4 * LEAST)
            if rough.upper < SMALLEST:
                skipped += 1
                continue
            answers = {tolerance: ask(setting, tolerance) for tolerance in arguments.tolerance}
            if min(a["upper"] for a in answers.values()) < SMALLEST:
                skipped += 1
                continue
            rows.append({"noise": noise, "rate": rate, "steps": steps, "delta": delta, "answers": answers})
            progress.advance(running)

    apart = disagreements = 0
    for row in rows:
        for a, b in itertools.combinations(row["answers"].values(), 2):
            apart += a["lower"] > b["upper"] or b["lower"] > a["upper"]
        for tolerance, answer in row["answers"].items():
            disagreements += answer["converged"] != (answer["gap"] <= tolerance) or answer["lower"] > answer["upper"]
    console.print(
        f"{len(rows)} settings ({skipped} of a smaller epsilon left out), seed {arguments.seed}: "
        f"{apart} pairs of brackets apart, {disagreements} wrong flags; compilation "
        + ", ".join(f"{value:.0f} s at {points}" for points, value in first.items())
    )

    quantiles = [f"{q:.0%}" if q < 1 else "worst" for q in QUANTILES]
    table = Table("tolerance", "within", *(f"gap {q}" for q in quantiles), *(f"time {q}" for q in quantiles), "points")
    summary = {}
    for tolerance in arguments.tolerance:
        answers = [row["answers"][tolerance] for row in rows]
        gaps = np.quantile([a["gap"] for a in answers], QUANTILES, method="higher")
        times = np.quantile([a["seconds"] for a in answers], QUANTILES, method="higher")
        share = float(np.mean([a["gap"] <= tolerance for a in answers]))
        used = {points: sum(a["points"] == points for a in answers) for points in SIZES}
        summary[tolerance] = {"within": share, "gaps": list(gaps), "seconds": list(times), "points": used}
        table.add_row(
            f"{tolerance:g}", f"{share:.1%}", *(f"{gap:.1e}" for gap in gaps), *map(report.seconds, times),
            " ".join(f"{points}: {number}" for points, number in used.items() if number),
        )  # fmt: skip
    table.columns[-1].header = "settings on so many points"
    console.print(table)

    for tolerance in arguments.tolerance:
        table = Table("noise", "rate", "steps", "delta", "lower", "upper", "gap", "time", "points", "slack / delta")
        table.title = f"the ten widest at tolerance {tolerance:g}"
        for row in sorted(rows, key=lambda row: -row["answers"][tolerance]["gap"])[:10]:
            a = row["answers"][tolerance]
            table.add_row(
                f"{row['noise']:.6g}", f"{row['rate']:.6g}", f"{row['steps']:,}", f"{row['delta']:.4g}",
                f"{a['lower']:.6g}", f"{a['upper']:.6g}", f"{a['gap']:.1e}", report.seconds(a["seconds"]),
                f"{a['points']}", " ".join(f"{s / row['delta']:.0e}" for s in a["slack_delta"]),
            )  # fmt: skip
        console.print(table)
    violations = {"brackets_apart": apart, "wrong_flags": disagreements}
    numbers = {"seed": arguments.seed, "skipped": skipped, "compilation": first}
    report.write(arguments.json, numbers | violations | {"summary": summary, "settings": rows})
    sys.exit(1 if apart or disagreements else 0)


if __name__ == "__main__":
    main()
