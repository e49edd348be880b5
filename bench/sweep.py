"""Sweeps of many configurations on this machine, killed on the way and resumed.

Run: python -m bench.sweep [saddlepoint] [certified] --json bench/results/sweep.json

A million settings by the exact accountant, and a hundred thousand certified ones, each by the command ``jaxacct
sweep`` as a user runs it: one process with a device for each core, or a shard for each core, since the mesh is
planned in Python. Each run is killed without warning when a third is done, and resumed. Time is what both runs took
together, memory the largest process's peak. A sample is compared with the accountants called directly.

Wanted: within 4 GB a process, progress shown, nothing lost but the chunk in hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report
from jaxacct import saddlepoint, sweep

RUNS: dict[str, dict[str, Any]] = {
    "saddlepoint": {
        "noise-multiplier": "0.5:8:100:log",
        "sampling-rate": "1e-3:0.1:100:log",
        "steps": "1000:100000:100:log",
        "delta": "1e-5",
        "shards": 1,
    },
    "certified": {
        "noise-multiplier": "0.5:8:50:log",
        "sampling-rate": "1e-3:0.1:50:log",
        "steps": "100:100000:40:log",
        "delta": "1e-5",
        "shards": 2,
    },
}
KILLED_AT = 1 / 3
SAMPLE = 200
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Child:
    """One process of the command, whose standard error is a terminal; keeps the last line that was shown there."""

    def __init__(self, words: list[str]) -> None:
        ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jaxacct.cli", "sweep", *words],
            stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""
        self.peak, self.cpu_seconds = 0, 0.0
        self._thread = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._thread.start()

    def _read(self, terminal: int) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed with the process
            while data := os.read(terminal, 4096):
                lines = [line.strip() for line in CONTROL.sub("", data.decode(errors="replace")).splitlines()]
                self.shown = next((line for line in reversed(lines) if line), self.shown)

    def is_running(self) -> bool:
        with contextlib.suppress(OSError, StopIteration, IndexError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            self.peak = max(self.peak, int(line.split()[1]) * 1024)
            ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            self.cpu_seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return self.process.poll() is None


def attempt(words: list[str], count: int, folder: Path, kill_at: int | None, console: Console) -> dict[str, Any]:
    """Runs ``count`` shards to their end, or kills them when ``kill_at`` chunks are there."""
    start, shown = time.monotonic(), 0.0
    shards = [["--shard", f"{i}/{count}", "--devices", "1"] for i in range(count)] if count > 1 else [[]]
    children = [Child(words + shard) for shard in shards]
    killed = False
    while any([child.is_running() for child in children]):
        time.sleep(0.5)
        done = len(list(folder.glob("*.parts/chunk-*.npz")))
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            console.print(f"{shown - start:6.0f} s, {done} chunks: {' | '.join(child.shown for child in children)}")
        if kill_at is not None and done >= kill_at and not killed:
            killed = True
            for child in children:
                child.process.send_signal(signal.SIGKILL)
    seconds = time.monotonic() - start
    codes = [child.process.returncode for child in children]
    if not killed and any(codes):
        raise RuntimeError(f"the sweep failed: {codes}: {[child.shown for child in children]}")
    return {
        "seconds": seconds,
        "chunks_at_its_end": len(list(folder.glob("*.parts/chunk-*.npz"))) if killed else None,
        "exit_codes": codes,
        "peak_bytes": [child.peak for child in children],
        "cpu_seconds": [child.cpu_seconds for child in children],
        "progress_shown": [child.shown for child in children],
    }


def checked(found: sweep.Sweep, mode: str, rng: np.random.Generator) -> dict[str, float]:
    """Compares a sample with direct calls: brackets of one number must meet; returns the largest difference."""
    names = list(found.axes)
    worst, compared = 0.0, 0
    for number in rng.choice(found.upper.size, SAMPLE, replace=False):
        place = np.unravel_index(number, found.shape)
        setting = {name: float(found.axes[name][i]) for name, i in zip(names, place, strict=True)}
        if mode == "saddlepoint" and not found.converged[place]:
            continue
        mechanism = ja.PoissonSubsampledGaussian(setting["noise_multiplier"], setting["sampling_rate"])
        direct = saddlepoint.epsilon(mechanism, setting["steps"], found.constants["delta"])
        assert direct.lower <= found.upper[place], setting
        assert found.lower[place] <= direct.upper, setting
        if direct.converged:
            worst = max(worst, abs(float(direct.estimate) / float(found.estimate[place]) - 1))
            compared += 1
    return {"compared": compared, "largest_relative_difference_of_estimates": worst}


def measured(mode: str, console: Console, folder: Path) -> dict[str, Any]:
    """Returns the record of one run, killed and resumed."""
    run = RUNS[mode]
    out = folder / f"{mode}.npz"
    axes = [word for name, text in run.items() if name != "shards" for word in (f"--{name}", text)]
    words = [*axes, "--mode", mode, "--out", str(out)]
    size = int(np.prod([int(text.split(":")[2]) for text in run.values() if ":" in str(text)]))
    chunks = -(-size // 8192)
    console.print(f"{mode}: {size:,} settings, {chunks} chunks, {run['shards']} shards")
    first = attempt(words, run["shards"], folder, round(KILLED_AT * chunks), console)
    second = attempt([*words, "--resume"], run["shards"], folder, None, console)
    if run["shards"] > 1:
        files = [str(folder / f"{mode}-{i}-of-{run['shards']}.npz") for i in range(run["shards"])]
        subprocess.run([sys.executable, "-m", "jaxacct.cli", "sweep", *words, "--merge", *files], check=True)
    found = sweep.load(out)
    counts = found.counts()
    assert found.upper.size == size
    assert not np.any(np.isnan(found.upper))
    seconds = first["seconds"] + second["seconds"]
    record = {
        "settings": run, "entries": size, "seconds": seconds, "entries_a_second": size / seconds,
        "peak_bytes_of_a_process": max(first["peak_bytes"] + second["peak_bytes"]), "counts": counts,
        "cpu_seconds": sum(first["cpu_seconds"] + second["cpu_seconds"]), "load": os.getloadavg()[0],
        "flagged_share": counts["flagged"] / size, "killed": first, "resumed": second,
        "check": checked(found, mode, np.random.default_rng(0)),
    }  # fmt: skip
    console.print(
        f"{mode}: {seconds:.0f} s, {size / seconds:,.0f} a second, peak "
        f"{record['peak_bytes_of_a_process'] / 2**30:.2f} GiB a process, {counts}, {record['check']}"
    )
    return record


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("modes", nargs="*", default=list(RUNS), metavar="MODE", help="saddlepoint, certified, or both")
    arguments = parser.parse_args()
    console = Console(width=160)
    before = {}
    if arguments.json is not None and arguments.json.exists():
        before = {mode: record for mode, record in json.loads(arguments.json.read_text()).items() if mode in RUNS}
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    try:
        for mode in arguments.modes:
            before[mode] = measured(mode, console, folder)
            if arguments.json is not None:
                arguments.json.parent.mkdir(parents=True, exist_ok=True)
            report.write(arguments.json, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
