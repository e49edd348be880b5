"""One job of one library: reads it from standard input, prints a JSON line for each setting as it is done.

Run by the interpreter that has the library, from the repository's root: python -m bench.suite.worker

Standard library only, so that any environment can run it. What a library prints goes to standard error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import sys
import time
import warnings
from typing import Any, TextIO

from bench.suite.libraries import LIBRARIES

LONG = 2.0
"""Seconds of a call that is its own warm-up: it is not repeated."""


def peak_mib() -> float:
    """Returns the peak memory of this program: getrusage would tell the parent's, which a fork hands on, if larger."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def message(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def device() -> str | None:
    """Returns what JAX runs on, if this process uses JAX."""
    if "jax" not in sys.modules:
        return None
    return sys.modules["jax"].devices()[0].device_kind


def measured(call: Any, setting: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Returns what ``call`` answers, with the seconds of the first call, and the median of those after it."""
    times: list[float] = []
    result: dict[str, Any] = {}
    for _ in range(1 + repeats):
        start = time.perf_counter()
        result = call(setting)
        times.append(time.perf_counter() - start)
        if len(times) > 1 and times[-1] > LONG:
            break
        if len(times) == 1 and times[0] > LONG and not result.get("compiles"):
            break
    warm = times[1:]
    return {"seconds": statistics.median(warm or times), "first": times[0], "warm_calls": len(warm)} | result


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(record: dict[str, Any], to: TextIO = answers) -> None:
        print(json.dumps(record, default=float), file=to, flush=True)

    job = json.loads(sys.stdin.read())
    library = LIBRARIES[job["library"]]
    warnings.simplefilter("ignore")
    limit = int(job["gib"] * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        importlib.import_module(library.package)
        module = importlib.import_module(f"bench.suite.libraries.{library.module}")
        call = getattr(module, job["task"])
    except Exception as error:
        say({"fatal": f"{job['library']} is not there: {message(error)}"})
        return
    try:
        version = importlib.metadata.version(job["library"])
    except importlib.metadata.PackageNotFoundError:
        version = getattr(sys.modules[library.package], "__version__", "unknown")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    about = {"version": version, "python": platform.python_version(), "cores": cores, "imported_mib": peak_mib()}
    say({"ready": True})
    for setting in job["settings"]:
        try:
            record = measured(call, setting, job["repeats"])
        except Exception as error:
            record = {"error": message(error)}
        say(record | about | {"device": device(), "peak_mib": peak_mib()})


if __name__ == "__main__":
    main()
