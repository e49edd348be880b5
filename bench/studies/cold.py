"""First answers, each in a process of its own: processor seconds beyond the import.

    python -m bench.studies.cold [CASE ...]

A row for each case: the first answer with nothing on the disk, that of a second process, and the median of later ones
in it, beside what is aimed at. On a machine that does other work as well the same program takes up to twice as many
processor seconds; the last row, which has nothing to do with this library, tells from run to run.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

GAUSSIAN = "ja.PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01)"
AT = "lambda s: ja.epsilon(ja.PoissonSubsampledGaussian(noise_multiplier=s, sampling_rate=0.01), 1000, 1e-5)"
CASES = {
    "epsilon": (f"ja.epsilon({GAUSSIAN}, 1000, 1e-5)", 1.5),
    "mesh": (f"ja.prv.epsilon({GAUSSIAN}, 1000, 1e-5)", 3.5),
    "laplace": ("ja.epsilon(ja.PoissonSubsampledLaplace(scale=1.0, sampling_rate=0.01), 1000, 1e-5)", 3.0),
    "calibrate": (
        "ja.calibrate.noise_multiplier(sampling_rate=0.01, steps=1000, epsilon=1.0, delta=1e-5)",
        2.5,
    ),
    "grad": (f"jax.grad(lambda s: ({AT})(s).estimate)(1.0)", 4.0),
    "vmap": (f"jax.vmap({AT})(np.linspace(0.8, 2.0, 1000))", 4.0),
}
"""What is asked, and how many seconds its first answer may take."""

AGAIN = 0.5
"""Seconds that the first answer of a second process may take."""

YARDSTICK = "jax.jit(lambda x: sum(jnp.sum(jnp.sin(x * k)) for k in range(12)))(np.ones(64))"
REPEATS = 9


def measured(expression: str) -> dict[str, float]:
    """Returns the seconds of the first call and the median of later ones, in this process."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxacct as ja

    names = {"jax": jax, "jnp": jnp, "np": np, "ja": ja}

    def once() -> float:
        start = _seconds()
        jax.block_until_ready(eval(expression, names))
        return _seconds() - start

    first = once()
    for _ in range(REPEATS):
        once()
    return {"first": first, "later": statistics.median(once() for _ in range(REPEATS))}


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def in_a_process(expression: str, cache: str) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu"}
    if cache != "off":
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    run = subprocess.run(
        [sys.executable, "-m", "bench.studies.cold", "--one", expression],
        env=environment,
        capture_output=True,
        check=True,
    )
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2])))
        return
    print(f"{'':10} {'first':>7} {'aim':>5} {'second process':>15} {'aim':>5} {'later, ms':>10}")
    for name in sys.argv[1:] or CASES:
        expression, aim = CASES[name]
        with tempfile.TemporaryDirectory() as cache:
            cold, again = (in_a_process(expression, cache) for _ in range(2))
        row = f"{name:10} {cold['first']:7.2f} {aim:5.1f} {again['first']:15.2f} {AGAIN:5.1f}"
        print(f"{row} {1e3 * again['later']:10.2f}", flush=True)
    print(f"{'yardstick':10} {in_a_process(YARDSTICK, 'off')['first']:7.2f}")


if __name__ == "__main__":
    main()
