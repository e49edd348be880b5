"""The peer libraries, each run in a process of its own, with a limit on its time and memory.

As a script, by an interpreter that has the peer (and needs no jaxacct), this reads one job from standard input and
prints a JSON line for each setting as it is done.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import selectors
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

PACKAGES = {"dp-accounting": "dp_accounting", "prv-accountant": "prv_accountant"}


def run(
    python: str,
    library: str,
    settings: list[dict[str, Any]],
    *,
    seconds: float = 60.0,
    repeats: int = 1,
    gib: float = 8.0,
) -> list[dict[str, Any]]:
    """Returns a record of each of ``settings``, in order, by ``library`` under the interpreter ``python``.

    A setting that takes longer than ``seconds`` or more than ``gib`` GiB of addresses fails, and with it the ones after
    it: list them from the cheapest to the dearest. A failed record holds ``error`` in place of results.
    """
    job = {"library": library, "settings": settings, "repeats": repeats, "gib": gib, "seconds": seconds}
    process = subprocess.Popen(
        [python, os.path.abspath(__file__)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(job).encode())
    process.stdin.close()
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
    deadline = time.monotonic() + seconds + 30  # the import
    while len(records) < count:
        events = selector.select(max(deadline - time.monotonic(), 0))
        if not events:
            return records, f"more than {seconds:g} s, or after a setting that took more"
        for key, _ in events:
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                selector.unregister(key.fileobj)
            text[key.data] += piece
        if not selector.get_map():
            last = text["err"].decode(errors="replace").strip().splitlines()[-1:]
            return records, f"ended with status {process.wait()}: {''.join(last)}"
        *lines, text["out"] = text["out"].split(b"\n")
        for line in lines:
            record = json.loads(line)
            if record.get("fatal"):
                return records, record["fatal"]
            records.append(record)
            deadline = time.monotonic() + seconds + 5
    return records, ""


def dp_accounting(setting: dict[str, Any]) -> dict[str, float]:
    """The composition of ``setting["mechanisms"]``, rows (s, q, k), by privacy-loss distributions."""
    from dp_accounting.pld import privacy_loss_distribution

    total = None
    for noise, rate, steps in setting["mechanisms"]:
        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=setting["interval"],
            pessimistic_estimate=setting.get("pessimistic", True),
            use_connect_dots=setting.get("pessimistic", True),
        ).self_compose(steps)
        total = distribution if total is None else total.compose(distribution)
    return {"upper" if setting.get("pessimistic", True) else "lower": total.get_epsilon_for_delta(setting["delta"])}


def prv_accountant(setting: dict[str, Any]) -> dict[str, float]:
    """The same by privacy random variables; of the relation, the removal of an example only."""
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanisms = [
        GaussianMechanism(noise)
        if rate == 1
        else PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)
        for noise, rate, _ in setting["mechanisms"]
    ]
    steps = [k for _, _, k in setting["mechanisms"]]
    accountant = PRVAccountant(
        prvs=mechanisms,
        max_self_compositions=steps,
        eps_error=setting["eps_error"],
        delta_error=setting.get("delta_error", setting["delta"] / 1000),
    )
    lower, estimate, upper = accountant.compute_epsilon(setting["delta"], steps)
    return {"lower": lower, "estimate": estimate, "upper": upper}


CALLS: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
    "dp-accounting": dp_accounting,
    "prv-accountant": prv_accountant,
}


def main() -> None:
    import resource

    job = json.loads(sys.stdin.read())
    library = job["library"]
    warnings.simplefilter("ignore")
    try:
        importlib.import_module(PACKAGES[library])
    except Exception as error:
        print(json.dumps({"fatal": f"skipped, {library} does not import: {type(error).__name__}: {error}"}), flush=True)
        return
    limit = int(job["gib"] * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    call, version = CALLS[library], importlib.metadata.version(library)
    for setting in job["settings"]:
        times: list[float] = []
        try:
            for _ in range(1 + job["repeats"]):
                start = time.perf_counter()
                result = call(setting)
                times.append(time.perf_counter() - start)
                if times[-1] > 2:  # long enough to be its own warm-up
                    break
            timed = times[1:] or times
            record = result | {"seconds": statistics.median(timed), "first": times[0], "version": version}
        except Exception as error:
            message = " ".join(str(error).split())
            record = {"error": f"{type(error).__name__}: {message}", "version": version}
        record["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
