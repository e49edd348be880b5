"""Gap and time of the certified bounds by the number of mesh points.

Run: python -m bench.prv_accuracy
"""

import argparse

from rich.console import Console
from rich.table import Table

import jaxacct as ja
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[2**12, 2**14, 2**16])
    points = parser.parse_args().points
    table = Table("mechanism", "steps", "delta", "points", "lower", "upper", "gap", "first call", "warm")
    for mechanism, steps, delta in CASES:
        for size in points:
            timing = measure(lambda m=mechanism, k=steps, d=delta, n=size: ja.epsilon(m, k, d, points=n), repeats=3)
            bounds = timing.result
            fields = ", ".join(f"{value:g}" for value in vars(mechanism).values())
            table.add_row(
                f"{type(mechanism).__name__}({fields})", f"{steps:,}", f"{delta:g}", f"{size}",
                f"{bounds.lower:.6g}", f"{bounds.upper:.6g}", f"{float(bounds.gap):.1e}",
                f"{timing.first:.2f} s", f"{timing.warm * 1e3:.1f} ms",
            )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
