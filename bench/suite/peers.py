"""Libraries run in processes of their own, each by the interpreter that has it, with limits on time and memory.

A job and its records are JSON. :mod:`bench.suite.worker` is the other end; it needs neither jaxacct nor JAX, unless
they are what is measured. The same goes for our own runs, so that all have equal cores, threads and warm-up.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMPORT_SECONDS = 60.0
"""What a library may take to be imported, on top of the time of its first setting."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


def environment(cores: int = 1, cache: str | None = None) -> dict[str, str]:
    """Returns the environment of a worker: threads for ``cores`` cores, and no compilations but those in ``cache``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    threads = {name: str(cores) for name in ONE_THREAD if name != "XLA_FLAGS"}
    saved = (
        {} if cache is None else {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    )
    return kept | (ONE_THREAD if cores == 1 else threads) | saved


def run(
    python: str,
    library: str,
    settings: list[dict[str, Any]],
    *,
    task: str = "epsilon",
    seconds: float = 60.0,
    repeats: int = 1,
    gib: float = 8.0,
    cores: int = 1,
    cache: str | None = None,
) -> list[dict[str, Any]]:
    """Returns a record of each of ``settings``, in order, by ``library`` under the interpreter ``python``.

    A setting that takes longer than ``seconds`` or more than ``gib`` GiB of addresses fails, and with it the ones after
    it: list them from the cheapest to the dearest. A failed record holds ``error`` in place of results.
    """
    # The worker starts in another folder. A link is not followed: it is how an environment's interpreter knows its own.
    python = os.path.abspath(python) if os.sep in python else python
    job = {"library": library, "task": task, "settings": settings, "repeats": repeats, "gib": gib}
    try:
        process = subprocess.Popen(
            [python, "-m", "bench.suite.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
            env=environment(cores, cache),
        )  # fmt: skip
    except OSError as error:
        return [{"error": f"{python} does not start: {error}"} for _ in settings]
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended, and says why
    records, failure = _collect(process, len(settings), seconds)
    process.kill()
    process.wait()
    return records + [{"error": failure} for _ in settings[len(records) :]]


def _collect(process: subprocess.Popen, count: int, seconds: float) -> tuple[list[dict[str, Any]], str]:
    records: list[dict[str, Any]] = []
    assert process.stdout is not None
    assert process.stderr is not None
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ, "out")
    selector.register(process.stderr, selectors.EVENT_READ, "err")
    text = {"out": b"", "err": b""}
    deadline = time.monotonic() + seconds + IMPORT_SECONDS
    while len(records) < count:
        events = selector.select(max(deadline - time.monotonic(), 0))
        if not events:
            return records, f"more than {seconds:g} s, or after a setting that took more"
        for key, _ in events:
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                selector.unregister(key.fileobj)
            text[key.data] += piece
        *lines, text["out"] = text["out"].split(b"\n")
        for line in lines:
            record = json.loads(line)
            if record.get("fatal"):
                return records, record["fatal"]
            if record.get("ready"):
                deadline = time.monotonic() + seconds
                continue
            records.append(record)
            deadline = time.monotonic() + seconds + 5
        if not selector.get_map() and len(records) < count:
            last = text["err"].decode(errors="replace").strip().splitlines()[-1:]
            return records, f"ended with status {process.wait()}: {''.join(last)}"
    return records, ""
