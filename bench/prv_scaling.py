"""Time and peak memory against the number of steps: each number of steps in a process of its own.

Run: python -m bench.prv_scaling
"""

import json
import resource
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from bench import report
from bench.timing import measure


def one(steps: int, points: int) -> None:
    import jaxacct as ja

    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    timing = measure(lambda: ja.prv.epsilon(mechanism, steps, 1e-5, points=points), repeats=21)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    bounds = timing.result
    record = {"steps": steps, "warm_ms": timing.warm * 1e3, "first_s": timing.first, "peak_mib": peak}
    print(json.dumps(record | {"lower": float(bounds.lower), "upper": float(bounds.upper)}))


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--points", type=int, default=2**13)
    parser.add_argument("--one", action="store_true", help="measure the first number of steps in this process")
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.steps[0], arguments.points)
        return
    table = Table("steps", "lower", "upper", "time", "to the first", "peak", "to the first", "first call")
    table.title = f"{arguments.points} points"
    records = []
    for steps in arguments.steps:
        command = [sys.executable, "-m", "bench.prv_scaling", "--one", "--steps", str(steps)]
        command += ["--points", str(arguments.points)]
        output = subprocess.run(command, capture_output=True, text=True, check=True)
        record = json.loads(output.stdout)
        records.append(record)
        base = records[0]
        table.add_row(
            f"{steps:,}", f"{record['lower']:.6g}", f"{record['upper']:.6g}",
            f"{record['warm_ms']:.1f} ms", f"{record['warm_ms'] / base['warm_ms']:.2f} x",
            f"{record['peak_mib']:.0f} MiB", f"{record['peak_mib'] / base['peak_mib']:.2f} x",
            report.seconds(record["first_s"]),
        )  # fmt: skip
    Console(width=120).print(table)
    report.write(arguments.json, {"points": arguments.points, "rows": records})


if __name__ == "__main__":
    main()
