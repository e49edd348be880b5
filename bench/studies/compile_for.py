"""The TPU compiler's results for the public functions, without a TPU: seconds, memory, and estimated cycles.

Run: python -m bench.studies.compile_for --chip v5e --minutes 10 --json bench/results/compile_for.json [NAME ...]

The compiler is a wheel, ``libtpu``, of the version that JAX's extra ``tpu`` names; nothing is run. Each function is
lowered with x64 off and compiled in a process of its own, which is stopped when its time is over. Told are

- seconds of tracing and lowering and of compiling, by the clock and of the processor;
- operations of the program before and after it was optimized, a function's at each place that calls it: the compiler
  has no functions;
- operations after it that have float64: the chip has none, and XLA's own is of no use to a bound. Results are float32
  numbers that are converted, exactly; nothing else may be in float64;
- memory of temporaries, and the compiler's own estimates of cycles, of one trip of each loop.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report

CHIPS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "v5p": "v5p:2x2x1", "v4": "v4:2x2x1"}
"""Names of chips, and the smallest of their topologies."""

LIMIT = 15.0
"""Seconds of one processor wanted of the accountants."""


def _sampled(noise: Any, rate: Any) -> ja.Mechanism:
    return ja.PoissonSubsampledGaussian(noise, rate)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "saddlepoint.epsilon": lambda s, q, k, x: ja.saddlepoint.epsilon(_sampled(s, q), k, x),
    "saddlepoint.delta": lambda s, q, k, x: ja.saddlepoint.delta(_sampled(s, q), k, x),
    "prv.epsilon": lambda s, q, k, x: ja.prv.epsilon(_sampled(s, q), k, x, points=1024),
    "prv.delta": lambda s, q, k, x: ja.prv.delta(_sampled(s, q), k, x, points=1024),
    "epsilon": lambda s, q, k, x: ja.epsilon(_sampled(s, q), k, x),
    "delta": lambda s, q, k, x: ja.delta(_sampled(s, q), k, x),
    "rdp.epsilon": lambda s, q, k, x: ja.rdp.epsilon(_sampled(s, q), k, x),
    "rdp.delta": lambda s, q, k, x: ja.rdp.delta(_sampled(s, q), k, x),
    "calibrate.noise_multiplier": lambda s, q, k, x: ja.calibrate.noise_multiplier(s, x, q, k),
    "tradeoff.curve": lambda s, q, k, x: ja.tradeoff.curve(_sampled(s, q), k, x[None]),
    "gdp.certified_mu": lambda s, q, k, x: ja.gdp.certified_mu(_sampled(s, q), k),
    "saddlepoint.epsilon, 1024 at once": jax.vmap(lambda s, q, k, x: ja.saddlepoint.epsilon(_sampled(s, q), k, x)),
}
"""Functions of noise (of calibration: epsilon), rate, steps and delta or epsilon."""

INSTRUCTION = re.compile(r"= (\(.*?\)|\S+) ([\w\-]+)\(")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
WITHIN = re.compile(r"(?:to_apply|body|condition)=%?([\w.\-]+)|branch_computations=\{(.*?)\}")
IDLE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "broadcast"}
"""Operations that compute nothing."""


def operations_before(text: str) -> int:
    """Returns the operations of a program in HLO that compute something, with each call as what it calls."""
    total, times = 0, Counter[str]()
    # What calls stands behind what it calls: so from the end it is known how often each has been called.
    for program in reversed(re.split(r"\n(?=\S.*\{\n)", text)[1:]):
        own = times[program.split()[0].lstrip("%")] or 1
        for alone, several in WITHIN.findall(program):
            for name in (alone or several).split(","):
                times[name.strip().lstrip("%")] += own
        total += own * sum(what not in {*IDLE, "call"} for _, what in INSTRUCTION.findall(program))
    return total


def told_of(name: str, topology: str) -> dict[str, Any]:
    """Returns what is to be said of one function; in the process that compiles it."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    place = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(devices[:1]), ("x",)), jax.sharding.PartitionSpec())
    shape = (1024,) if name.endswith("at once") else ()
    given = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)] * 4
    times = [time.monotonic(), time.process_time()]
    lowered = jax.jit(FUNCTIONS[name]).lower(*given)
    times += [time.monotonic(), time.process_time()]
    compiled = lowered.compile()
    times += [time.monotonic(), time.process_time()]
    lowering, lowering_cpu, compiling, compiling_cpu = np.subtract(times[2:], times[:-2]).tolist()
    text = compiled.as_text()
    found = [(kind, what) for kind, what in INSTRUCTION.findall(text) if what not in IDLE]
    in_float64 = Counter(what for kind, what in found if "f64" in kind)
    cycles = sorted((int(value) for value in CYCLES.findall(text)), reverse=True)
    return {
        "lowering": lowering,
        "lowering, of the processor": lowering_cpu,
        "compiling": compiling,
        "compiling, of the processor": compiling_cpu,
        "operations before": operations_before(lowered.as_text(dialect="hlo")),
        "operations": len(found),
        "in float64": dict(in_float64),
        "complex128": "c128" in text,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "cycles": sum(cycles),
        "longest": cycles[:5],
    }


def _work(name: str, topology: str, pipe: Any) -> None:
    # No chip is looked for, nor kept from others.
    for variable in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        os.environ.setdefault(variable, "1")
    try:
        pipe.send(told_of(name, topology))
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"[:400]})


def in_time(name: str, topology: str, seconds: float) -> dict[str, Any]:
    """Returns the same from a process of its own, which is stopped after so many seconds."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, topology, its))
    process.start()
    its.close()
    try:
        return mine.recv() if mine.poll(seconds) else {"error": f"not compiled after {seconds:.0f} s"}
    except EOFError:
        return {"error": f"the compiler ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(FUNCTIONS), help=", ".join(FUNCTIONS))
    parser.add_argument("--chip", choices=CHIPS, default="v5e")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each function")
    arguments = parser.parse_args()
    console, path = Console(width=140), arguments.json
    earlier = json.loads(path.read_text()) if path and path.exists() else {}
    records = earlier.get("functions", {}) if earlier.get("chip") == arguments.chip else {}
    for name in arguments.names:
        records[name] = in_time(name, CHIPS[arguments.chip], 60 * arguments.minutes)
        console.print(name, records[name])
        report.write(path, {"chip": arguments.chip, "wanted seconds": LIMIT, "functions": records})


if __name__ == "__main__":
    main()
