"""The record that a benchmark leaves behind: where it ran, with which versions, and its numbers as JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from jaxacct import json_files


def arguments_of(description: str | None, *, peers: bool = False) -> argparse.ArgumentParser:
    """Returns a parser with the options that the benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    if peers:
        parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peer libraries")
    return parser


def machine() -> dict[str, Any]:
    """Returns processor, cores given to this process, and systems."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((line.split(":")[1].strip() for line in cpuinfo.open() if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": model, "cores": cores, "system": platform.platform(), "load": os.getloadavg()[0]}


def commit() -> str:
    """Returns the commit of the sources, marked where they differ from it."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write(path: Path | None, numbers: dict[str, Any], peers: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns ``numbers`` with machine, versions and commit, written to ``path`` if one is given."""
    versions = {name: importlib.metadata.version(name) for name in ("jaxacct", "jax", "jaxlib", "numpy")}
    head = {
        "machine": machine(),
        "python": platform.python_version(),
        "versions": versions | (peers or {}),
        "commit": commit(),
    }
    if path is not None:
        plain = json.loads(json.dumps(head | numbers, default=float))
        path.write_text(json_files.dumps(plain, indent=1) + "\n")
    return head | numbers


def versions_of(*records: dict[str, Any], name: str) -> dict[str, str]:
    """Returns the version of the peer ``name`` that its records tell, if any ran."""
    return next(({name: record["version"]} for record in records if "version" in record), {})


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if 0 < value < 1e-4:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
