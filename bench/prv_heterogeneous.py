"""A sequence of distinct mechanisms, beside dp-accounting at equal error.

Run: taskset -c 1 python -m bench.prv_heterogeneous --peer-python PYTHON --json FILE

A hundred Poisson-subsampled Gaussians, noise in [0.8, 3] and rate in [1e-3, 3e-2], a hundred steps each, delta 1e-5.
The truth is the middle of our own bracket at the most points that stay below --truth-seconds; its gap is printed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import peers, report
from bench.timing import measure

DELTA, STEPS = 1e-5, 100


def main() -> None:
    parser = report.arguments_of(__doc__, peers=True)
    parser.add_argument("--count", type=int, default=100, help="number of mechanisms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, nargs="+", default=[2**i for i in range(9, 17)])
    parser.add_argument("--intervals", type=float, nargs="+", default=[1e-2, 3e-3, 1e-3, 3e-4, 1e-4])
    parser.add_argument("--truth-seconds", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=90.0, help="time limit of one setting of the peer")
    arguments = parser.parse_args()
    console = Console(width=140)

    generator = np.random.default_rng(arguments.seed)
    noises = generator.uniform(0.8, 3.0, arguments.count)
    rates = generator.uniform(1e-3, 3e-2, arguments.count)
    steps = np.full(arguments.count, float(STEPS))
    mechanism = ja.PoissonSubsampledGaussian(noises, rates)

    our: list[dict[str, Any]] = []
    for points in sorted(arguments.points):
        timing = measure(lambda n=points: ja.prv.epsilon(mechanism, steps, DELTA, points=n), repeats=3)
        lower, upper = float(timing.result.lower), float(timing.result.upper)
        times = {"seconds": timing.warm, "first": timing.first}
        our.append({"points": points, "lower": lower, "upper": upper} | times)
        if 4 * timing.warm > arguments.truth_seconds:
            break
    finest = our[-1]
    truth, gap = (finest["lower"] + finest["upper"]) / 2, 1 - finest["lower"] / finest["upper"]
    console.print(f"{arguments.count} mechanisms, {STEPS} steps each: epsilon = {truth:.8g}, gap {gap:.1e}")

    rows = [[float(s), float(q), STEPS] for s, q in zip(noises, rates, strict=True)]
    settings = [{"mechanisms": rows, "delta": DELTA, "interval": h} for h in sorted(arguments.intervals, reverse=True)]
    theirs = peers.run(arguments.peer_python, "dp-accounting", settings, seconds=arguments.seconds, repeats=1)

    table = Table("points", "lower", "upper", "error above", "time", "first call", title="ours")
    for record in our:
        record["error_above"] = record["upper"] / truth - 1
        table.add_row(
            f"{record['points']}", f"{record['lower']:.6g}", f"{record['upper']:.6g}", f"{record['error_above']:.1e}",
            report.seconds(record["seconds"]), report.seconds(record["first"]),
        )  # fmt: skip
    console.print(table)

    table = Table("interval", "upper", "error above", "time", "our points", "our error", "our time", "ratio")
    table.title = "dp-accounting, and our fastest setting within its error"
    for setting, record in zip(settings, theirs, strict=True):
        record["interval"] = setting["interval"]
        if "error" in record:
            table.add_row(f"{setting['interval']:g}", record["error"])
            continue
        record["error_above"] = record["upper"] / truth - 1
        fit = [r for r in our if r["error_above"] <= record["error_above"]]
        best = min(fit, key=lambda r: r["seconds"], default=None)
        record |= {"ours": best, "ratio": record["seconds"] / best["seconds"] if best else None}
        mine = ("-",) * 4
        if best:
            error, time = f"{best['error_above']:.1e}", report.seconds(best["seconds"])
            mine = f"{best['points']}", error, time, f"{record['ratio']:.1f} x"
        errors = f"{record['upper']:.6g}", f"{record['error_above']:.1e}"
        table.add_row(f"{setting['interval']:g}", *errors, report.seconds(record["seconds"]), *mine)
    console.print(table)
    numbers = {"truth": {"epsilon": truth, "gap": gap}, "ours": our, "dp-accounting": theirs}
    report.write(arguments.json, numbers, report.versions_of(*theirs, name="dp-accounting"))


if __name__ == "__main__":
    main()
