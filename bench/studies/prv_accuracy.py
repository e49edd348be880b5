"""Gap and time of the certified bounds by the number of mesh points, and what the gap is made of.

Run: python -m bench.studies.prv_accuracy

A stage squares several times on one mesh and window; slack is what truncation and rounding add to delta in
the upper bound, as a share of delta; shift what rounding of the losses' positions adds to epsilon.
"""

from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import report
from bench.timing import measure

CASES = (
    (ja.PoissonSubsampledGaussian(1.0, 0.01), 10**4, 1e-5),
    (ja.PoissonSubsampledGaussian(0.8, 0.005), 1000, 1e-6),
    (ja.PoissonSubsampledGaussian(1.8, 1.5e-4), 94_275, 3.6e-5),
    (ja.PoissonSubsampledGaussian(0.95, 0.0035), 1990, 2.5e-6),
    (ja.PoissonSubsampledGaussian(0.6, 1e-4), 100, 1e-8),
    (ja.PoissonSubsampledGaussian(1.0, 0.01), 10**7, 1e-5),
    (ja.Gaussian(100.0), 10**4, 1e-12),
    (ja.Gaussian(1e4 / 3), 10**8, 1e-6),
)


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[2**9, 2**11, 2**13])
    arguments = parser.parse_args()
    columns = ("mechanism", "steps", "delta", "points", "lower", "upper", "gap", "first call", "warm")
    table = Table(*columns, "circle", "slack", "shift")
    rows = []
    for mechanism, steps, delta in CASES:
        for size in arguments.points:
            options = {"points": size, "return_diagnostics": True}
            timing = measure(lambda m=mechanism, k=steps, d=delta, o=options: ja.prv.epsilon(m, k, d, **o), repeats=3)
            bounds, record = timing.result
            circle = int(record.length)
            slack, shift = float(record.slack_delta[0]) / delta, float(record.shift[0])
            fields = ", ".join(f"{value:g}" for value in vars(mechanism).values())
            name = f"{type(mechanism).__name__}({fields})"
            table.add_row(
                name, f"{steps:,}", f"{delta:g}", f"{size}",
                f"{bounds.lower:.6g}", f"{bounds.upper:.6g}", f"{float(bounds.gap):.1e}",
                report.seconds(timing.first), report.seconds(timing.warm),
                f"{circle:,}", f"{slack:.0e}", f"{shift:.0e}",
            )  # fmt: skip
            setting = {"mechanism": name, "steps": steps, "delta": delta, "points": size}
            times = {"first": timing.first, "seconds": timing.warm}
            numbers = {"lower": bounds.lower, "upper": bounds.upper, "circle": circle, "slack": slack, "shift": shift}
            rows.append(setting | numbers | times)
    Console(width=170).print(table)
    report.write(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
