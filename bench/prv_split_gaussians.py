"""The Gaussian mechanism cut into many equal compositions, where the answer has a closed form.

Run: taskset -c 1 python -m bench.prv_split_gaussians --peer-python PYTHON --json FILE

k Gaussians of noise sqrt(k) / mu compose to the one of total mu, so epsilon does not depend on k; an accountant's
answer may. Ours runs at default settings; the peers at --interval and --eps-error, below limits of time and memory.
"""

from __future__ import annotations

import math
import warnings

from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import peers, report
from bench.suite.truths import gaussian_epsilon
from bench.timing import measure
from jaxacct.prv import ToleranceWarning

ROWS = ((1.0, 10**4, 1e-12), (0.05, 10**6, 1e-9), (0.01, 10**4, 1e-9), (3.0, 10**8, 1e-6), (10.0, 1, 1e-9))


def main() -> None:
    parser = report.arguments_of(__doc__, peers=True)
    parser.add_argument("--interval", type=float, default=1e-4, help="dp-accounting's; 1e-4 is its default")
    parser.add_argument("--eps-error", type=float, default=0.01, help="prv-accountant's")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of one run of a peer")
    parser.add_argument("--gib", type=float, default=8.0, help="memory limit of a peer")
    arguments = parser.parse_args()
    console = Console(width=150)
    warnings.simplefilter("ignore", ToleranceWarning)
    names = {"dp-accounting": {"interval": arguments.interval}, "prv-accountant": {"eps_error": arguments.eps_error}}

    rows, versions = [], {}
    table = Table("mu", "steps", "delta", "exact", "accountant", "lower", "upper", "rel. error above", "gap", "time")
    for mu, steps, delta in ROWS:
        truth, noise = gaussian_epsilon(mu, delta), math.sqrt(steps) / mu
        timing = measure(lambda s=noise, k=steps, d=delta: ja.prv.epsilon(ja.Gaussian(s), k, d), repeats=5)
        bounds = timing.result
        records = {
            "jaxacct": {"lower": float(bounds.lower), "upper": float(bounds.upper), "seconds": timing.warm}
            | {"first": timing.first, "converged": bool(bounds.converged)}
        }
        for name, setting in names.items():
            job = {"mechanisms": [[noise, 1.0, steps]], "delta": delta} | setting
            limits = {"seconds": arguments.seconds, "gib": arguments.gib}
            (records[name],) = peers.run(arguments.peer_python, name, [job], repeats=1, **limits)
            versions |= report.versions_of(records[name], name=name)
        head = f"{mu:g}", f"{steps:.0e}", f"{delta:g}", f"{truth:.9g}"
        for name, record in records.items():
            rows.append({"mu": mu, "steps": steps, "delta": delta, "exact": truth, "accountant": name} | record)
            if "error" in record:
                table.add_row(*head, name, record["error"][:60])
            else:
                upper, lower = record["upper"], record.get("lower")
                below = lower is not None and lower > truth
                wrong = "  WRONG" if below or upper < truth else ""
                table.add_row(
                    *head, name, "-" if lower is None else f"{lower:.8g}", f"{upper:.8g}{wrong}",
                    f"{upper / truth - 1:+.1e}", "-" if lower is None else f"{1 - lower / upper:.1e}",
                    report.seconds(record["seconds"]),
                )  # fmt: skip
            head = "", "", "", ""
        table.add_section()
    console.print(table)
    report.write(arguments.json, {"rows": rows}, versions)


if __name__ == "__main__":
    main()
