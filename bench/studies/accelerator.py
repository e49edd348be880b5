"""Measurements of one device: settings a second by kernel and batch size, memory, compilation, energy, and errors.

Run: python -m bench accelerator [--most 1000000] [--seconds 60] [--out DIR] [--peer-python PYTHON]

On whatever device JAX has, in the arithmetic that is sound there: float64 on CPUs and GPUs, float32 on a TPU.
Random settings (noise, rate, steps as of bench.peers.saddlepoint) at delta 1e-5, by every verb that runs in a batch.
Each is run over batches of 1, 10 ... settings, one call of jax.vmap each, until the next would take longer than
--seconds. Widths and agreement are those of the first settings beside float64 on the host's CPU, whose speed,
entry by entry on one core, is a row of its own; and dp-accounting's, one setting after the other at its interval 1e-4.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import pathlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import report
from bench.peers.saddlepoint import DELTA, settings
from bench.suite import peers

ORDERS = np.concatenate([np.arange(1.25, 10, 0.25), np.arange(10, 64)])
CHECKED = 200
"""Settings whose results are compared with the host's."""


def sampled(noise: Any, rate: Any) -> ja.Mechanism:
    return ja.PoissonSubsampledGaussian(noise, rate)


class Kernel(NamedTuple):
    """A function of noise, rate and steps of one setting, and whether it gives brackets."""

    call: Callable[..., Any]
    has_brackets: bool


def spent(noise: Any, rate: Any, steps: Any) -> Any:
    """Returns what a Rényi filter has spent after a grant of all steps."""
    _, ledger = ja.filters.RenyiFilter(1e6, DELTA).spend(sampled(noise, rate), steps)
    return ledger.epsilon()


KERNELS = {
    "exact": Kernel(lambda *a: ja.saddlepoint.epsilon(sampled(*a[:2]), a[2], DELTA), True),
    "mesh of 8,192 points": Kernel(lambda *a: ja.prv.epsilon(sampled(*a[:2]), a[2], DELTA, points=8192), True),
    "epsilon": Kernel(lambda *a: ja.epsilon(sampled(*a[:2]), a[2], DELTA), True),
    "delta": Kernel(lambda *a: ja.delta(sampled(*a[:2]), a[2], 1.0), True),
    "profile of 8 epsilons": Kernel(lambda *a: ja.curve(sampled(*a[:2]), a[2], epsilons=np.linspace(0.5, 4, 8)), True),
    "Laplace": Kernel(lambda *a: ja.epsilon(ja.Laplace(10 * a[0]), a[2], DELTA), True),
    "trade-off": Kernel(lambda *a: ja.tradeoff.curve(sampled(*a[:2]), a[2], np.array([0.01, 0.1, 0.5])), True),
    "certified mu": Kernel(lambda *a: ja.gdp.certified_mu(sampled(*a[:2]), a[2], fpr=1e-5).mu, True),
    "least noise": Kernel(lambda *a: ja.calibrate.noise_multiplier(1.0, DELTA, *a[1:]).reached, True),
    "Rényi": Kernel(lambda *a: ja.rdp.epsilon(sampled(*a[:2]), a[2], DELTA, orders=ORDERS), False),
    "Rényi filter": Kernel(spent, False),
    "central limit": Kernel(lambda *a: ja.gdp.epsilon(sampled(*a[:2]), a[2], DELTA), False),
}


class Energy:
    """Joules that NVIDIA's tool tells of while it is open; None where there is none."""

    def __init__(self) -> None:
        self.joules: float | None = None
        self._open = jax.default_backend() == "gpu" and shutil.which("nvidia-smi") is not None

    def _watts(self) -> float:
        asked = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
        return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])

    def _watch(self) -> None:
        begun, watts = time.perf_counter(), []
        while self._open:
            watts.append(self._watts())
            time.sleep(0.05)
        self.joules = float(np.mean(watts)) * (time.perf_counter() - begun)

    def __enter__(self) -> Energy:
        self._thread = threading.Thread(target=self._watch) if self._open else None
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        if self._thread is not None:
            self._thread.join()


def columns(rows: np.ndarray, device: Any) -> list[Any]:
    return [jax.device_put(column.astype(np.float32), device) for column in rows.T]


def run(call: Callable[..., Any], rows: np.ndarray, device: Any) -> tuple[dict[str, Any], Any]:
    """Returns what a batch takes, and its results."""
    given = columns(rows, device)
    begun = time.perf_counter()
    compiled = jax.jit(jax.vmap(call)).lower(*given).compile()
    record: dict[str, Any] = {"settings": len(rows), "compilation": time.perf_counter() - begun}
    analysis = compiled.memory_analysis()
    if analysis is not None:
        record["bytes_of_program"] = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    jax.block_until_ready(compiled(*given))
    with Energy() as energy:
        begun, repeats = time.perf_counter(), 0
        while repeats < 3 and time.perf_counter() - begun < 10:
            found = jax.block_until_ready(compiled(*given))
            repeats += 1
        record["seconds"] = (time.perf_counter() - begun) / repeats
    if energy.joules is not None:
        record["joules_each"] = energy.joules / repeats / len(rows)
    record["settings_a_second"] = len(rows) / record["seconds"]
    used = device.memory_stats() or {}
    record["peak_bytes"] = used.get("peak_bytes_in_use")
    return record, jax.tree.map(np.asarray, found)


def compared(kernel: Kernel, found: Any, host: Any) -> dict[str, Any]:
    """Returns widths of brackets and how they lie beside the host's, or how far estimates are from its."""
    first = jax.tree.map(lambda leaf: leaf[: len(jax.tree.leaves(host)[0])], found)
    if not kernel.has_brackets:
        return {"farthest": float(np.nanmax(np.abs(first / host - 1)))}
    both = first.converged & host.converged
    widths = (first.upper - first.lower)[both] / host.upper[both]
    return {
        "converged": float(np.mean(first.converged)),
        "median_width": float(np.median(widths)) if both.any() else None,
        "contradictions": int(np.sum((first.lower > host.upper) | (first.upper < host.lower))),
    }


def over_sizes(kernel: Kernel, rows: np.ndarray, limit: float, device: Any, host: Any) -> list[dict[str, Any]]:
    """Returns a record for each size of batches."""
    found: list[dict[str, Any]] = []
    size = 1
    while size <= len(rows):
        try:
            record, results = run(kernel.call, rows[:size], device)
        except Exception as error:  # a device that has no room, or a program that it does not take
            found.append({"settings": size, "error": str(error).splitlines()[0][:200]})
            break
        few = min(size, CHECKED)
        found.append(record | compared(kernel, results, jax.tree.map(lambda leaf, few=few: leaf[:few], host)))
        if record["seconds"] > limit / 10:
            break
        size *= 10
    return found


def picture(kernels: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for (name, of_kernel), mark in zip(kernels.items(), "osDv^<>pPXhd", strict=False):
        done = [record for record in of_kernel["device"] if "error" not in record]
        axes.loglog(
            [record["settings"] for record in done],
            [record["settings_a_second"] for record in done],
            marker=mark,
            label=name,
        )
    axes.set(xlabel="settings in a batch", ylabel="settings a second", title=jax.devices()[0].device_kind)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def shown(kernels: dict[str, Any]) -> Table:
    table = Table(title=f"{jax.devices()[0].device_kind}, settings a second")
    for name in ("kernel", "batch", "a second", "each", "compilation", "program's memory", "widths or errors"):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for name, of_kernel in kernels.items():
        for record in [*of_kernel["device"], *of_kernel["host"]]:
            error = record.get("median_width", record.get("farthest"))
            table.add_row(
                name + (" (one core)" if record in of_kernel["host"] else ""),
                f"{record['settings']:,}",
                *(
                    [record["error"]]
                    if "error" in record
                    else [
                        f"{record['settings_a_second']:,.0f}",
                        report.seconds(record["seconds"] / record["settings"]),
                        f"{record['compilation']:.0f} s",
                        f"{record.get('bytes_of_program', 0) / 1e6:,.0f} MB",
                        "" if error is None else f"{error:.1e}",
                    ]
                ),
            )
    return table


def main() -> None:
    parser = report.arguments_of(__doc__, peers=True)
    parser.add_argument("--most", type=int, default=1_000_000, help="settings of the largest batch")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one batch; larger ones are not tried then")
    parser.add_argument("--kernels", nargs="*", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--peers", type=int, default=5, help="settings put to dp-accounting")
    parser.add_argument("--out", type=pathlib.Path, help="folder for accelerator.json and a picture")
    arguments = parser.parse_args()
    console, rows = Console(width=120), settings(arguments.most, 0)
    device, cpu = jax.devices()[0], jax.devices("cpu")[0]
    kernels: dict[str, Any] = {}
    for name in arguments.kernels:
        with jax.default_device(cpu):
            record, host = run(KERNELS[name].call, rows[: min(CHECKED, len(rows))], cpu)
        kernels[name] = {
            "host": [record],
            "device": over_sizes(KERNELS[name], rows, arguments.seconds, device, host),
        }
    console.print(shown(kernels))
    jobs = [{"mechanisms": [[row[0], row[1], int(row[2])]], "delta": DELTA, "interval": 1e-4} for row in rows]
    theirs = [
        one for one in peers.run(arguments.peer_python, "dp-accounting", jobs[: arguments.peers]) if "seconds" in one
    ]
    numbers = {"device": device.device_kind, "kernels": kernels}
    if theirs:
        each = float(np.mean([one["seconds"] for one in theirs]))
        numbers["dp_accounting_seconds"] = each
        console.print(f"dp-accounting: {report.seconds(each)} a setting (mean of {len(theirs)})")
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        picture(kernels, arguments.out / "accelerator.png")
    path = arguments.json or (arguments.out / "accelerator.json" if arguments.out else None)
    report.write(path, numbers, report.versions_of(*theirs, name="dp-accounting"))


if __name__ == "__main__":
    main()
