"""Time of Rényi curves, beside dp-accounting on the same orders.

Run: python -m bench.peers.rdp_curves --peer-python PYTHON --json FILE

1,000 settings of the subsampled Gaussian at once, noise 0.5 to 8, sampling rate 1e-4 to 0.2, one step, on three sets of
orders: dp-accounting's own, TensorFlow Privacy's, and ours; the relation is the default, adding or removing. The peer
computes a sample of the settings and its time is scaled up. Processor time of both on one core, after a warm-up; the
curves are compared as well: at whole orders they agree; at fractional ones the peer's alternating series cancels, and
is up to ten times too large where the divergence is small. Wanted: at least two hundred times faster.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import report
from jaxacct import rdp

SETTINGS, SAMPLE, REPEATS = 1000, 20, 9
WANTED = 200.0
ORDERS: dict[str, tuple[float, ...]] = {
    "dp-accounting's": (
        *(1 + x / 10 for x in range(1, 100)),
        *(float(x) for x in range(11, 64)),
        *(128.0, 256.0, 512.0, 1024.0),
    ),
    "TensorFlow Privacy's": (
        *(1 + x / 10 for x in range(1, 100)),
        *(float(x) for x in range(11, 64)),
        *(128.0, 256.0, 512.0),
    ),
    "jaxacct's": rdp.DEFAULT_ORDERS,
}
PEER = """
import json, logging, sys, time
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
logging.disable(logging.CRITICAL)
job = json.loads(sys.stdin.read())
def curve(noise, rate):
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return RdpAccountant(job["orders"]).compose(event)._rdp
curve(1.0, 0.01)
start = time.process_time()
curves = [[float(v) for v in curve(*setting)] for setting in job["settings"]]
print(json.dumps({"seconds": time.process_time() - start, "curves": curves}))
"""
"""Asks for the peer's accumulated curve, which it offers under a private name only."""


def peer(python: str, settings: np.ndarray, orders: tuple[float, ...]) -> dict[str, Any]:
    job = json.dumps({"settings": settings.tolist(), "orders": list(orders)})
    done = subprocess.run([python, "-c", PEER], input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout)


def ours(settings: np.ndarray, orders: tuple[float, ...]) -> tuple[float, float, np.ndarray]:
    """Returns processor seconds and seconds of a warm run, medians, and the curves."""
    curves = jax.jit(jax.vmap(lambda s, q: rdp.curve(ja.PoissonSubsampledGaussian(s, q), orders)))
    # The same numbers for both: a float32 argument would be rounded first.
    with jax.enable_x64(True):
        arguments = jax.numpy.asarray(settings[:, 0]), jax.numpy.asarray(settings[:, 1])
        result = curves(*arguments).block_until_ready()
        processor, wall = [], []
        for _ in range(REPEATS):
            start = time.process_time(), time.perf_counter()
            curves(*arguments).block_until_ready()
            processor.append(time.process_time() - start[0])
            wall.append(time.perf_counter() - start[1])
    return statistics.median(processor), statistics.median(wall), np.asarray(result)


def main() -> None:
    arguments = report.arguments_of(__doc__, peers=True).parse_args()
    rng = np.random.default_rng(0)
    low, high = np.log([0.5, 1e-4]), np.log([8.0, 0.2])
    settings = np.exp(rng.uniform(low, high, (SETTINGS, 2)))
    table = Table(title=f"{SETTINGS} Rényi curves, processor time")
    for column in ("orders", "number", "jaxacct", "dp-accounting", "ratio", "apart, whole orders", "fractional"):
        table.add_column(column, justify="right")
    records, slow = [], False
    for name, orders in ORDERS.items():
        processor, wall, curves = ours(settings, orders)
        answer = peer(arguments.peer_python, settings[:SAMPLE], orders)
        record: dict[str, Any] = {"orders": name, "number": len(orders), "seconds": processor, "wall": wall}
        if "error" in answer:
            record["error"] = answer["error"]
            table.add_row(name, str(len(orders)), report.seconds(processor), answer["error"], "-", "-", "-")
        else:
            scaled = answer["seconds"] * SETTINGS / SAMPLE
            # It drops an order where its series does not converge: infinite there.
            theirs = np.array(answer["curves"])
            finite = np.isfinite(theirs)
            whole = np.array(orders) == np.floor(orders)
            apart = np.where(finite, np.abs(theirs / curves[:SAMPLE] - 1), 0.0)
            differences = float(np.max(apart[:, whole])), float(np.max(apart[:, ~whole]))
            ratio = scaled / processor
            slow |= ratio < WANTED
            record |= {"peer_seconds": scaled, "ratio": ratio, "dropped": int(np.sum(~finite))}
            record |= {"apart_at_whole_orders": differences[0], "apart_at_fractional_orders": differences[1]}
            shown = (
                report.seconds(processor),
                report.seconds(scaled),
                f"{ratio:.0f}",
                *(f"{d:.0e}" for d in differences),
            )
            table.add_row(name, str(len(orders)), *shown)
        records.append(record)
    Console().print(table)
    report.write(arguments.json, {"settings": SETTINGS, "sample": SAMPLE, "records": records})
    if slow:
        sys.exit(f"less than {WANTED:.0f} times faster than dp-accounting")


if __name__ == "__main__":
    main()
