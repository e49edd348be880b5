"""Calibration of many targets at once, beside dp-accounting's calibration with its PLD accountant.

Run: taskset -c 1 python -m bench.peers.calibration --peer-python PYTHON --json FILE

Random targets: epsilon in [0.3, 8], rate in [1e-3, 0.1], steps in [300, 1e5], all log-uniform, delta 1e-5. One vmapped
call answers them; how far each answer is above the least noise is bounded by the certified lower bound of epsilon at
slightly less noise. Targets that the exact accountant does not certify are answered one by one by the mesh accountant.

Then targets of attack risk, beside riskcal: the same noise is wanted, sooner.

Wanted: every result within budget and within 1e-4 of the least noise, and 1000 times faster than the peer.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import json
import subprocess
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report
from bench.timing import measure
from jaxacct import calibrate, saddlepoint
from jaxacct.calibrate import Status

DELTA = 1e-5
KNOWN = (1.0, 0.01, 10_000)
"""The target that peers publish: dp-accounting answers 3.8132."""

DISTANCES = np.geomspace(1e-8, 1e-2, 25)
"""By how much less noise it is tried whether the budget is certainly exceeded."""

PEER = """
import json, sys, time
import dp_accounting
from dp_accounting import pld
def calibrate(epsilon, rate, steps):
    def event(noise):
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(step, steps)
    return dp_accounting.calibrate_dp_mechanism(pld.PLDAccountant, event, epsilon, 1e-5, tol=1e-4)
for row in json.loads(sys.stdin.read()):
    start = time.perf_counter()
    noise = calibrate(row[0], row[1], int(row[2]))
    print(json.dumps({"noise": noise, "seconds": time.perf_counter() - start}), flush=True)
"""

RISKCAL = """
import json, sys, time
from riskcal.calibration import dpsgd
for row in json.loads(sys.stdin.read()):
    start = time.perf_counter()
    run = dict(sample_rate=row["rate"], num_steps=row["steps"])
    if "advantage" in row:
        noise = dpsgd.find_noise_multiplier_for_advantage(row["advantage"], advantage_tol=1e-6, **run)
    else:
        noise = dpsgd.find_noise_multiplier_for_err_rates(row["fpr"], 1 - row["tpr"], beta_tol=1e-6, **run)
    print(json.dumps({"noise": noise, "seconds": time.perf_counter() - start}), flush=True)
"""

ATTACKS: list[dict[str, Any]] = [
    {"advantage": 0.1, "rate": 0.01, "steps": 10_000},
    {"advantage": 0.02, "rate": 0.002, "steps": 10_000},
    {"tpr": 0.05, "fpr": 0.01, "rate": 0.01, "steps": 10_000},
    {"tpr": 0.3, "fpr": 0.1, "rate": 0.05, "steps": 1_000},
]


def targets(count: int, seed: int) -> np.ndarray:
    """Returns (count, 3): epsilon, rate, steps."""
    rng = np.random.default_rng(seed)
    low, high = np.log([0.3, 1e-3, 300]), np.log([8, 0.1, 1e5])
    rows = np.exp(rng.uniform(low, high, (count, 3)))
    rows[:, 2] = np.floor(rows[:, 2])
    return rows


def answers(rows: np.ndarray, tolerance: float) -> Any:
    """Returns the timing of one call for all targets."""

    @jax.jit
    @jax.vmap
    def call(row):
        return calibrate.noise_multiplier(row[0], DELTA, row[1], row[2], tolerance=tolerance)

    return measure(lambda: call(jnp.asarray(rows)), repeats=3)


def farthest(rows: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Returns, for each target, a relative distance within which the least noise certainly lies; inf if unknown."""

    def one(row):
        def lower(distance):
            mechanism = ja.PoissonSubsampledGaussian(row[3] * (1 - distance), row[1])
            return saddlepoint.epsilon(mechanism, row[2], DELTA).lower

        return jax.lax.map(lower, jnp.asarray(DISTANCES)) > row[0]

    exceeds = np.asarray(jax.jit(lambda rows: jax.lax.map(one, rows))(np.column_stack([rows, noise])))
    return np.min(np.where(exceeds, DISTANCES, np.inf), axis=1)


def peer(python: str, script: str, rows: list[Any], seconds: float) -> list[dict[str, float]]:
    """Returns what the peer's script prints for each row; nothing where it fails or takes too long."""
    try:
        done = subprocess.run(
            [python, "-c", script], input=json.dumps(rows), capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def attacks(python: str, console: Console) -> list[dict[str, Any]]:
    """Returns noises and times for ATTACKS, ours and riskcal's."""
    records = []
    theirs = peer(python, RISKCAL, ATTACKS, 300.0)
    for i, attack in enumerate(ATTACKS):
        make = calibrate.noise_multiplier_for_advantage if "advantage" in attack else calibrate.noise_multiplier_for_tpr
        levels = [attack[name] for name in ("advantage", "tpr", "fpr") if name in attack]
        timing = measure(lambda call=make, a=attack, r=levels: call(*r, a["rate"], a["steps"]), repeats=5)
        record = attack | {"noise": float(timing.result.value), "seconds": timing.warm}
        text = f"{attack}: {record['noise']:.6f} in {report.seconds(timing.warm)}"
        if i < len(theirs):
            record["riskcal"] = theirs[i]
            text += f"; riskcal {theirs[i]['noise']:.6f} in {report.seconds(theirs[i]['seconds'])}"
        console.print(text)
        records.append(record)
    return records


def main() -> None:
    parser = report.arguments_of(__doc__, peers=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--tolerance", type=float, nargs="+", default=[1e-4, 1e-6])
    parser.add_argument("--checked", type=int, default=100, help="targets whose distance from the least is looked at")
    parser.add_argument("--by-mesh", type=int, default=10, help="uncertified targets to answer by the mesh accountant")
    arguments = parser.parse_args()
    console, rows, records = Console(width=120), targets(arguments.count, 0), []
    with jax.enable_x64(True):
        for tolerance in arguments.tolerance:
            timing = answers(rows, tolerance)
            result = jax.tree.map(np.asarray, timing.result)
            satisfied = np.asarray(result.satisfied)
            assert np.all(result.reached.upper[satisfied] <= rows[satisfied, 0])
            shares = {status.name.lower(): float(np.mean(result.status == status)) for status in Status}
            sample = np.flatnonzero(result.status == Status.CONVERGED)[: arguments.checked]
            worst = float(np.max(farthest(rows[sample], result.value[sample])))
            record = {
                "tolerance": tolerance,
                "seconds": timing.warm / len(rows),
                "with_compilation": timing.first / len(rows),
                "shares": shares,
                "worst_distance": worst,
            }
            records.append(record)
            console.print(
                f"tolerance {tolerance:.0e}: {report.seconds(record['seconds'])} a target "
                f"({report.seconds(record['with_compilation'])} with compilation); worst distance from the least "
                f"{worst:.1e} of {len(sample)} converged; {shares}"
            )
    rest = np.flatnonzero(result.status >= Status.LOOSE)[: arguments.by_mesh]
    start = time.perf_counter()
    mesh = [calibrate.noise_multiplier(rows[i, 0], DELTA, rows[i, 1], rows[i, 2]) for i in rest]
    mesh_seconds = (time.perf_counter() - start) / max(len(rest), 1)
    console.print(
        f"the others alone: {sum(bool(m.satisfied) for m in mesh)} of {len(mesh)} certified, "
        f"{sum(m.status == Status.CONVERGED for m in mesh)} converged, {report.seconds(mesh_seconds)} each"
    )
    known = np.array([KNOWN, *rows[np.flatnonzero(result.status == Status.CONVERGED)[:2]]])
    theirs = peer(arguments.peer_python, PEER, known.tolist(), 120.0)
    for row, their in zip(known, theirs, strict=False):
        own = float(calibrate.noise_multiplier(row[0], DELTA, row[1], row[2]).value)
        their["ours"] = own
        console.print(
            f"epsilon {row[0]:.3g}, rate {row[1]:.3g}, {row[2]:.0f} steps: ours {own:.6f}, dp-accounting "
            f"{their['noise']:.6f} in {report.seconds(their['seconds'])}, "
            f"{their['seconds'] / records[0]['seconds']:.0f} times ours"
        )
    risks = attacks(arguments.peer_python, console)
    numbers = {
        "attacks": risks,
        "ours": records,
        "by_mesh_seconds": mesh_seconds,
        "dp-accounting": theirs,
        "known": known.tolist(),
    }
    report.write(arguments.json, numbers)


if __name__ == "__main__":
    main()
