"""The exact accountant: many settings in one call beside dp-accounting, brackets beside the mesh, derivatives.

Run: taskset -c 1 python -m bench.peers.saddlepoint --peer-python PYTHON --json FILE

Random settings: noise in [0.5, 8], rate in [1e-3, 0.2], steps in [100, 1e5], all log-uniform, delta 1e-5, both
directions; one vmapped call on one core. The peer takes a sample of them one by one, at its default interval of 1e-4.
Each of its errors is that of its upper bound, beside the exact value where that has converged, else the mesh's.

Wanted: 500 times faster than the peer warm, 100 times with compilation, at a smaller error; brackets that overlap with
the mesh's on 2,000 settings from the widest ranges; derivatives right to 1e-5 on 500.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report
from bench.suite import peers
from bench.timing import measure

DELTA = 1e-5
USUAL = np.log([[0.5, 8.0], [1e-3, 0.2], [100, 1e5]])
WIDEST = np.log([[0.4, 10.0], [1e-5, 1.0], [1, 1e7]])
"""Noise, rate, steps: logs of the least and the most."""


def settings(count: int, seed: int, ranges: np.ndarray = USUAL) -> np.ndarray:
    """Returns (count, 3): noise multiplier, rate, whole steps."""
    rows = np.exp(np.random.default_rng(seed).uniform(ranges[:, 0], ranges[:, 1], (count, 3)))
    rows[:, 2] = np.round(rows[:, 2])
    return rows


def epsilon(noise, rate, steps, delta=DELTA, **options):
    return ja.saddlepoint.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, delta, **options)


def sweep(count: int, sampled: int, python: str, console: Console) -> dict[str, Any]:
    """Returns times and errors of one call for all, and of the peer on a sample."""
    rows = settings(count, 0)
    with jax.enable_x64(True):
        columns = [jnp.asarray(column) for column in rows.T]
        call = jax.jit(jax.vmap(epsilon))
        timing = measure(lambda: call(*columns), repeats=3)
    found = jax.tree.map(np.asarray, timing.result)
    converged = found.converged
    gaps = (found.upper - found.lower)[converged] / np.maximum(found.upper[converged], 1e-300)
    gaps = gaps[found.upper[converged] > 0]
    ours = {
        "seconds": timing.warm / count,
        "with_compilation": timing.first / count,
        "converged": float(np.mean(converged)),
        "largest_gap": float(np.max(gaps)),
    }
    jobs = [{"mechanisms": [[row[0], row[1], int(row[2])]], "delta": DELTA, "interval": 1e-4} for row in rows[:sampled]]
    theirs = peers.run(python, "dp-accounting", jobs)
    done = [(record, i) for i, record in enumerate(theirs) if "seconds" in record]
    if done:
        seconds = float(np.mean([record["seconds"] for record, _ in done]))
        truth = [found.estimate[i] if converged[i] else ja.prv.epsilon(
            ja.PoissonSubsampledGaussian(*rows[i, :2]), rows[i, 2], DELTA, tolerance=1e-5
        ).estimate for _, i in done]  # fmt: skip
        errors = [abs(record["upper"] / t - 1) for (record, _), t in zip(done, truth, strict=True) if t > 0]
        ours |= {
            "peer_seconds": seconds,
            "peer_errors": [float(np.median(errors)), float(np.max(errors))],
            "faster": seconds / ours["seconds"],
            "faster_with_compilation": seconds / ours["with_compilation"],
        }
        console.print(
            f"dp-accounting: {report.seconds(seconds)} each (mean of {len(done)}), errors {np.median(errors):.1e} to "
            f"{np.max(errors):.1e}; ours {ours['faster']:.0f} times faster, "
            f"{ours['faster_with_compilation']:.0f} times with compilation"
        )
    console.print(
        f"{count} settings: {report.seconds(ours['seconds'])} each ({report.seconds(ours['with_compilation'])} with "
        f"compilation); {ours['converged']:.1%} converged, their brackets at most {ours['largest_gap']:.1e} wide"
    )
    return ours


def overlaps(count: int, console: Console) -> dict[str, Any]:
    """Returns how many brackets of random settings contradict the mesh's: none may."""
    rows = settings(count, 1, WIDEST)
    deltas = np.exp(np.random.default_rng(2).uniform(np.log(1e-12), np.log(1e-2), count))
    apart, converged = [], 0
    for row, delta in zip(rows, deltas, strict=True):
        exact = epsilon(*row, delta)
        mesh = ja.prv.epsilon(ja.PoissonSubsampledGaussian(*row[:2]), row[2], delta, points=1024)
        converged += bool(exact.converged)
        if not (exact.lower <= mesh.upper and mesh.lower <= exact.upper):
            apart.append([*row, delta, exact.lower, exact.upper, mesh.lower, mesh.upper])
    console.print(
        f"brackets of {count} settings: {len(apart)} contradict the mesh's; {converged} converged {apart[:3]}"
    )
    return {"count": count, "apart": apart, "converged": converged}


def derivatives(count: int, console: Console) -> dict[str, Any]:
    """Returns the largest relative differences from central differences of the exact value, by argument."""
    rows = np.column_stack([settings(2 * count, 3), np.full(2 * count, DELTA)])
    gradient = jax.jit(jax.grad(lambda *a: epsilon(*a).estimate, argnums=(0, 1, 2, 3)))
    worst, used = np.zeros(4), 0
    for row in rows:
        if used == count:
            break
        with jax.enable_x64(True):
            found = np.array(gradient(*map(jnp.asarray, row)))
        sides = []
        for i in range(4):
            # Steps are whole.
            step = 1e-3 * row[i] if i != 2 else max(1.0, np.round(1e-3 * row[i]))
            # Five points: the error of three would be seen.
            values = [float(epsilon(*(row + np.eye(4)[i] * j * step)).estimate) for j in (-2, -1, 1, 2)]
            sides.append((8 * (values[2] - values[1]) - (values[3] - values[0])) / (12 * step))
        if not np.all(np.isfinite(sides)) or not np.all(np.isfinite(found)) or np.any(np.array(sides) == 0):
            continue
        used += 1
        worst = np.maximum(worst, np.abs(found / sides - 1))
    names = ("noise multiplier", "sampling rate", "steps", "delta")
    worst_of = {name: float(value) for name, value in zip(names, worst, strict=True)}
    console.print(f"derivatives of {used} settings: largest relative differences {worst_of}")
    return {"count": used, "worst": worst_of}


def main() -> None:
    parser = report.arguments_of(__doc__, peers=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--sampled", type=int, default=20)
    parser.add_argument("--overlaps", type=int, default=2_000)
    parser.add_argument("--derivatives", type=int, default=500)
    arguments = parser.parse_args()
    console = Console(width=120)
    numbers: dict[str, Any] = {}
    if arguments.count:
        numbers["sweep"] = sweep(arguments.count, arguments.sampled, arguments.peer_python, console)
    if arguments.overlaps:
        numbers["overlaps"] = overlaps(arguments.overlaps, console)
    if arguments.derivatives:
        numbers["derivatives"] = derivatives(arguments.derivatives, console)
    report.write(arguments.json, numbers)


if __name__ == "__main__":
    main()
