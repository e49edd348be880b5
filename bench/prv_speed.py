"""Time at equal accuracy, on one core, beside dp-accounting and prv-accountant.

Run: taskset -c 1 python -m bench.prv_speed --peer-python PYTHON --json FILE

For each relative error of epsilon's upper bound, every library's cheapest setting that keeps within it; noise 1, rate
0.01, delta 1e-5, both directions of the relation (prv-accountant: removal alone, which decides here). Times are medians
after a warm-up, compilation apart. The truth is the middle of our own bracket at 2^19 points; its gap is printed.

Wanted at 10^4 steps: ten times faster than either peer at errors of 1e-4 and 1e-5, five times at 1e-2 and 1e-3; a
hundred times faster than prv-accountant at 10^5 steps, and than dp-accounting at 10^7.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

from typing import Any

from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import peers, report
from bench.timing import measure

NOISE, RATE, DELTA = 1.0, 0.01, 1e-5
LEVELS = (1e-2, 1e-3, 1e-4, 1e-5)
POINTS = tuple(sorted({2**i for i in range(7, 18)} | {3 * 2**i for i in range(8, 16)}))
INTERVALS = tuple(3e-2 / 1.5**i for i in range(18))
FINE_INTERVALS = tuple(h for h in INTERVALS if h < 5e-3)
"""For 10^7 steps: wider ones are slower there, up to a minute, and their errors several per cent and more."""
EPS_ERRORS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 0.0005)
TARGETS = {
    10**4: {1e-2: 5, 1e-3: 5, 1e-4: 10, 1e-5: 10},
    10**5: {},  # at the error that prv-accountant reaches in one run
    10**7: dict.fromkeys(LEVELS, 100),
}
Record = dict[str, Any]


def ours(steps: int, truth: float) -> list[Record]:
    mechanism, records = ja.PoissonSubsampledGaussian(NOISE, RATE), []
    for points in POINTS:
        timing = measure(lambda n=points: ja.prv.epsilon(mechanism, steps, DELTA, points=n), repeats=15)
        upper, lower = float(timing.result.upper), float(timing.result.lower)
        error = {"error_above": upper / truth - 1, "error_below": 1 - lower / truth}
        times = {"seconds": timing.warm, "first": timing.first}
        records.append({"points": points, "upper": upper, "lower": lower} | error | times)
    return records


def peer(python: str, name: str, settings: list[Record], steps: int, truth: float, seconds: float) -> list[Record]:
    common = {"mechanisms": [[NOISE, RATE, steps]], "delta": DELTA}
    answers = peers.run(python, name, [common | s for s in settings], repeats=3, seconds=seconds)
    for setting, answer in zip(settings, answers, strict=True):
        answer.update(setting)
        if "upper" in answer:
            answer["error_above"] = answer["upper"] / truth - 1
        if "lower" in answer:
            answer["error_below"] = 1 - answer["lower"] / truth
    return answers


def cheapest(records: list[Record], level: float) -> Record | None:
    """Returns the fastest of the records within a relative error of ``level`` above the truth, which it must cover."""
    fit = [r for r in records if -1e-7 <= r.get("error_above", float("inf")) <= level]
    return min(fit, key=lambda r: r["seconds"], default=None)


def shown(record: Record | None, setting: str) -> tuple[str, str, str]:
    if record is None:
        return "-", "-", "-"
    return f"{record[setting]:.3g}", f"{record['error_above']:.1e}", report.seconds(record["seconds"])


def compare(table: Table, steps: int, levels: dict[float, float], our: list[Record], others: dict) -> list[Record]:
    """Adds a row for each level and peer, and returns them; ``levels`` names the wanted ratio of each."""
    rows = []
    for level, target in levels.items():
        mine = cheapest(our, level)
        for name, (setting, records) in others.items():
            theirs = cheapest(records, level)
            ratio = theirs["seconds"] / mine["seconds"] if mine and theirs else None
            verdict = "-" if ratio is None else f"{ratio:.1f} x ({'met' if ratio >= target else 'missed'}: {target:g})"
            table.add_row(
                f"{steps:.0e}", f"{level:.0e}", *shown(mine, "points"), name, *shown(theirs, setting), verdict
            )
            rows.append(
                {"steps": steps, "level": level, "ours": mine, "peer": name, "theirs": theirs, "ratio": ratio}
                | {"target": target}
            )
    return rows


def main() -> None:
    parser = report.arguments_of(__doc__, peers=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of one setting of a peer")
    parser.add_argument("--steps", type=int, nargs="+", default=list(TARGETS), choices=list(TARGETS))
    arguments = parser.parse_args()
    python, console = arguments.peer_python, Console(width=150)
    mechanism = ja.PoissonSubsampledGaussian(NOISE, RATE)

    columns = ("steps", "error", "points", "ours", "time", "peer", "setting", "theirs", "time", "ratio (wanted)")
    table = Table(*columns, title="upper bounds: fastest setting within the error")
    truths, raw, rows, versions = {}, {}, [], {}
    for steps in arguments.steps:
        best = ja.prv.epsilon(mechanism, steps, DELTA, points=2**19)
        truth = float(best.estimate)
        truths[steps] = {"epsilon": truth, "gap": float(best.gap)}
        console.print(f"{steps:.0e} steps: epsilon = {truth:.9g}, gap {float(best.gap):.1e}")
        our = ours(steps, truth)
        others = {}
        if steps != 10**5:
            settings = [{"interval": h} for h in (INTERVALS if steps == 10**4 else FINE_INTERVALS)]
            records = peer(python, "dp-accounting", settings, steps, truth, arguments.seconds)
            others["dp-accounting"] = ("interval", records)
        if steps != 10**7:
            settings = [{"eps_error": e, "delta_error": 1e-8} for e in (EPS_ERRORS if steps == 10**4 else (0.01,))]
            records = peer(python, "prv-accountant", settings, steps, truth, arguments.seconds)
            others["prv-accountant"] = ("eps_error", records)
        levels = TARGETS[steps]
        if not levels:
            ((_, records),) = others.values()
            levels = {r["error_above"]: 100 for r in records if r.get("error_above", -1.0) >= 0}
        rows += compare(table, steps, levels, our, others)
        raw[steps] = {"ours": our} | {name: records for name, (_, records) in others.items()}
        for name, (_, records) in others.items():
            versions |= report.versions_of(*records, name=name)
            for message in sorted({r["error"] for r in records if "error" in r}):
                finest = [r[others[name][0]] for r in records if r.get("error") == message]
                console.print(f"  {name} at {others[name][0]} from {max(finest):.3g}: {message}")
    console.print(table)

    settings = Table("steps", "points", "error above", "error below", "time", "first call", title="our settings")
    for steps, records in raw.items():
        for r in records["ours"]:
            errors = f"{r['error_above']:.1e}", f"{r['error_below']:.1e}"
            times = report.seconds(r["seconds"]), report.seconds(r["first"])
            settings.add_row(f"{steps:.0e}", f"{r['points']}", *errors, *times)
    console.print(settings)

    steps = 10**4
    sides = {}
    if steps in truths:
        truth = truths[steps]["epsilon"]
        default = measure(lambda: ja.prv.epsilon(mechanism, steps, DELTA), repeats=5)
        optimistic = peer(
            python, "dp-accounting", [{"interval": 1e-4, "pessimistic": False}], steps, truth, arguments.seconds
        )[0]
        sides = {"ours": 1 - float(default.result.lower) / truth, "seconds": default.warm, "optimistic": optimistic}
        theirs = f"{optimistic['error_below']:.1e}" if "error_below" in optimistic else optimistic.get("error")
        console.print(
            f"error of the lower bound at default settings, {steps:.0e} steps: ours {sides['ours']:.1e} "
            f"({report.seconds(default.warm)}), dp-accounting's optimistic estimate {theirs} "
            f"({report.seconds(optimistic.get('seconds'))})"
        )
    numbers = {"truth": truths, "rows": rows, "settings": raw, "lower_at_default": sides}
    report.write(arguments.json, numbers, versions)


if __name__ == "__main__":
    main()
