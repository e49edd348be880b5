"""Sweeps of many configurations on this machine, killed twice on the way and resumed; and four shards of one, merged.

Run: python -m bench.studies.sweep [--sizes 32 46 100] [--mode saddlepoint] --json bench/results/sweep.json

Each sweep is a grid of noise, rate and steps, so many values each, by the command ``jaxacct sweep`` as a user runs it:
a process with a device for each core. It is killed without warning (SIGKILL) when a third is done, resumed, killed when
two thirds are done, and resumed. Processor seconds and the largest peak of memory are of all three processes together.
Of the smallest, four shards are computed by processes of their own and merged, and compared bit for bit with the sweep
that was killed; of each, a sample is compared with the accountants called directly.

What 10^7 and 10^8 settings take is extrapolated from the slope between the smallest and the largest, and called so.

Wanted: 10^7 within 25 minutes of two cores and 2 GB, peak memory that does not grow with the settings, nothing lost but
the chunks in hand, and equal bits.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report
from jaxacct import saddlepoint, sweep

KILLED_AT = (1 / 3, 2 / 3)
CHUNK, SHARDS, SAMPLE = 4300, 4, 100
WANTED = {"core_hours_of_10^7": 25 / 60 * 2, "peak_bytes": 2e9}


def words_of(side: int, mode: str) -> list[str]:
    axes = {
        "noise-multiplier": f"0.5:8:{side}:log",
        "sampling-rate": f"1e-3:0.1:{side}:log",
        "steps": f"1000:100000:{side}:log",
        "delta": "1e-5",
        "mode": mode,
        "chunk": f"{CHUNK}",
    }
    return [word for name, text in axes.items() for word in (f"--{name}", text)]


def chunks_in(folder: Path) -> int:
    return len(list(folder.glob("accountant/c.*")))


def process(words: list[str], folder: Path, kill_at: int | None = None) -> dict[str, Any]:
    """Runs the command to its end, or kills it when ``kill_at`` chunks are there; returns what it took."""
    start, peak = time.monotonic(), 0
    child = subprocess.Popen([sys.executable, "-m", "jaxacct", "sweep", *words], stdout=subprocess.DEVNULL)
    # Its own peak: what the system says at its end counts this process too, which it was a copy of.
    while line := re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{child.pid}/status").read_text()):
        peak = max(peak, int(line[1]) * 1024)
        if kill_at is not None and chunks_in(folder) >= kill_at:
            child.send_signal(signal.SIGKILL)
            break
        time.sleep(0.1)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != (0 if kill_at is None else -signal.SIGKILL):
        raise RuntimeError(f"the sweep ended with {child.returncode}: {' '.join(words)}")
    return {
        "seconds": time.monotonic() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": peak,
        "chunks_there": chunks_in(folder),
    }


def killed_twice(side: int, mode: str, folder: Path) -> dict[str, Any]:
    """Returns the record of one sweep."""
    words = [*words_of(side, mode), "--out", str(folder)]
    total = len(ja.sweep.description.Boxes.of((side,) * 3, CHUNK))
    runs = [process([*words, "--resume"], folder, round(share * total)) for share in KILLED_AT]
    runs.append(process([*words, "--resume"], folder))
    found = sweep.load(folder)
    return {
        "entries": side**3, "chunks": total, "processes": runs, "counts": found.counts(), "load": os.getloadavg()[0],
        "seconds": sum(run["seconds"] for run in runs), "cpu_seconds": sum(run["cpu_seconds"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs), "compared": compared(found, np.random.default_rng(0)),
        "bytes_on_disk": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }  # fmt: skip


def compared(found: sweep.Sweep, rng: np.random.Generator) -> int:
    """Compares a sample with direct calls: brackets of one number must meet; returns how many were compared."""
    upper, lower = found.upper, found.lower
    for number in rng.choice(upper.size, SAMPLE, replace=False):
        place = np.unravel_index(number, found.shape)
        noise, rate, steps = (float(found.axes[name][i]) for name, i in zip(found.axes, place, strict=True))
        direct = saddlepoint.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, found.constants["delta"])
        assert direct.lower <= upper[place], (noise, rate, steps)
        assert lower[place] <= direct.upper, (noise, rate, steps)
    return SAMPLE


def in_shards(side: int, mode: str, folder: Path) -> bool:
    """Computes the sweep in shards beside ``folder``, where it is, and returns whether it merges to the same bits."""
    words = [*words_of(side, mode), "--out", str(folder.with_name("part"))]
    for i in range(SHARDS):
        process([*words, "--shard", f"{i}/{SHARDS}"], folder)
    merged = folder.with_name("merged")
    parts = [str(folder.with_name(f"part-{i}-of-{SHARDS}")) for i in range(SHARDS)]
    process(["merge", str(merged), *parts], folder)
    # Hidden ones are what a death left of a file that was being written.
    files = sorted(path.relative_to(folder) for path in folder.rglob("[!.]*") if path.is_file())
    there = sorted(path.relative_to(merged) for path in merged.rglob("[!.]*") if path.is_file())
    return files == there and all((folder / name).read_bytes() == (merged / name).read_bytes() for name in files)


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[32, 46], help="values of each axis, cubed the settings"
    )
    parser.add_argument("--mode", choices=("saddlepoint", "certified"), default="saddlepoint")
    arguments = parser.parse_args()
    console = Console(width=160)
    scratch, sizes = Path(tempfile.mkdtemp(prefix="sweep-")), sorted(arguments.sizes)
    records: list[dict[str, Any]] = []
    try:
        process([*words_of(2, arguments.mode)], scratch)  # its program is compiled, and kept
        for side in sizes:
            record = killed_twice(side, arguments.mode, scratch / f"{side}")
            records.append(record)
            console.print(
                f"{record['entries']:,} settings: {record['seconds']:.0f} s, {record['cpu_seconds']:.0f} CPU s, peak "
                f"{record['peak_bytes'] / 1e6:.0f} MB, {record['bytes_on_disk'] / record['entries']:.1f} bytes each on "
                f"disk, chunks at each end {[run['chunks_there'] for run in record['processes']]} of {record['chunks']}"
            )
        is_same = in_shards(sizes[0], arguments.mode, scratch / f"{sizes[0]}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    numbers: dict[str, Any] = {"mode": arguments.mode, "runs": records, "shards_merged_are_the_same_bits": is_same}
    first, last = records[0], records[-1]
    if len(records) > 1:
        slope = (last["cpu_seconds"] - first["cpu_seconds"]) / (last["entries"] - first["entries"])
        bytes_each = (last["peak_bytes"] - first["peak_bytes"]) / (last["entries"] - first["entries"])
        numbers |= {"cpu_seconds_each": slope, "bytes_of_memory_each": bytes_each, "wanted": WANTED} | {
            f"extrapolated_core_hours_of_10^{power}": slope * 10**power / 3600 for power in (7, 8)
        }
        console.print(
            f"{slope * 1e6:.0f} CPU microseconds and {bytes_each:.1f} bytes of memory more each; extrapolated: "
            f"{slope * 1e7 / 3600:.2f} core-hours for 10^7, {slope * 1e8 / 3600:.1f} for 10^8 settings"
        )
    console.print(f"{SHARDS} shards merged are the same bits: {is_same}")
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
    report.write(arguments.json, numbers)


if __name__ == "__main__":
    main()
