"""The cost of a spend inside a jitted step, by kind of filter and odometer.

    python -m bench.studies.ledgers

A step of a training loop spends a mechanism that never changes (its Rényi curve is computed once) or a new one. The
difference to the same loop without a ledger is reported, per step; one core, medians of five after a warm-up.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja

STEPS, REPEATS = 2000, 5


def seconds(function, *arguments):
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def update(weights):
    """A stand-in for a training step: a matrix product."""
    return weights + 1e-3 * (weights @ weights) / 64.0


def loop(body, ledger):
    def run(ledger, weights):
        def step(carry, index):
            return body(*carry, index), None

        return jax.lax.scan(step, (ledger, weights), jnp.arange(STEPS))[0]

    return seconds(jax.jit(run), ledger, jnp.eye(64))


def sampled(index):
    return ja.PoissonSubsampledGaussian(1.0 + 1e-4 * index, 0.01)


def rows():
    renyi = ja.filters.RenyiFilter(1e6, 1e-5)
    curve = renyi.cost(ja.PoissonSubsampledGaussian(1.0, 0.01))
    alone = loop(lambda ledger, w, index: (ledger, update(w)), renyi)
    cases = {
        "RenyiFilter, unchanged mechanism": (renyi, lambda led, w, i: (led.spend_cost(curve)[1], update(w))),
        "RenyiFilter, new mechanism": (renyi, lambda led, w, i: (led.spend(sampled(i))[1], update(w))),
        "ZCDPFilter, new mechanism": (
            ja.filters.ZCDPFilter(1e6, 1e-5),
            lambda led, w, i: (led.spend(ja.Gaussian(50.0 + i))[1], update(w)),
        ),
        "GDPFilter, new mechanism": (
            ja.filters.GDPFilter(1e6, 1e-5),
            lambda led, w, i: (led.spend(ja.Gaussian(50.0 + i))[1], update(w)),
        ),
        "MixtureOdometer, new mechanism": (
            ja.odometers.MixtureOdometer(1e-5),
            lambda led, w, i: (led.spend(ja.Gaussian(50.0 + i))[1], update(w)),
        ),
    }
    ville = ja.odometers.VilleOdometer(1e-5)
    ville_curve = ville.cost(ja.PoissonSubsampledGaussian(1.0, 0.01))

    def read(led, w, i):
        led = led.spend_cost(ville_curve)[1]
        return led, update(w) + 0 * led.epsilon().astype(jnp.float32)

    cases["VilleOdometer, unchanged mechanism"] = ville, lambda led, w, i: (led.spend_cost(ville_curve)[1], update(w))
    cases["VilleOdometer, read at every step"] = ville, read
    for name, (ledger, body) in cases.items():
        yield {"case": name, "microseconds": 1e6 * (loop(body, ledger) - alone) / STEPS}


def main():
    for row in rows():
        print(json.dumps(row))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
