"""Truncated Poisson batches beside dp_accounting: is ours ever above its bound, and by how much below?

    python -m bench.peers.truncated_poisson [--settings 50] [--seed 0]

Random data sets of 4 to 10^6 examples, batches cut from far below to far above their mean, one to a thousand steps. Of
dp_accounting it is the bound on the event at its interval of 1e-4; both count the larger of two neighbours as the data
set. The last column is the sampler's own mechanism, which holds for a data set of one more as well.
"""

from __future__ import annotations

import argparse
import math
import time

import dp_accounting
import numpy as np
from dp_accounting import pld

import jaxacct
from jaxacct.adapters import from_dp_event
from jaxacct.train import TruncatedPoissonSampler

ALLOWED = 1e-3
"""By how much ours may be above; of the size of our own brackets, and of its interval over some steps."""


def settings(count: int, seed: int):
    """Yields (examples, rate, capacity, noise, steps, delta); epsilons beyond 60 are nobody's business."""
    generator = np.random.default_rng(seed)
    while count:
        n = round(10 ** generator.uniform(math.log10(4), 6))
        q = 10 ** generator.uniform(max(-3.0, -math.log10(n)), -0.2)
        mean, deviation = n * q, math.sqrt(n * q * (1 - q))
        capacity = int(np.clip(round(mean + generator.uniform(-2, 5) * deviation), 1, n))
        steps = round(10 ** generator.uniform(0, 3))
        noise = 10 ** generator.uniform(-0.2, 0.7) * max(1.0, q * math.sqrt(steps))
        yield n, q, capacity, noise, steps, 10 ** generator.uniform(-8, -4)
        count -= 1


def theirs(event, steps: int, delta: float) -> float:
    """Returns the bound of dp_accounting."""
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(event, steps).get_epsilon(delta)


def main() -> None:
    """Prints a line for each setting, and the largest excess of ours over theirs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    excess, own, ratios, seconds = [], [], [], [0.0, 0.0]
    print("     n        q      B   noise  steps    delta |     ours   theirs | sampler")
    for n, q, capacity, noise, steps, delta in settings(arguments.settings, arguments.seed):
        event = dp_accounting.TruncatedSubsampledGaussianDpEvent(n, q, capacity, noise)
        start = time.perf_counter()
        (mechanism,), _ = from_dp_event(event)
        ours = float(jaxacct.epsilon(mechanism, steps, delta).upper)
        middle = time.perf_counter()
        peer = theirs(event, steps, delta)
        seconds = [seconds[0] + middle - start, seconds[1] + time.perf_counter() - middle]
        sampled = TruncatedPoissonSampler(n, q, capacity).mechanism(noise)
        sampler = float(jaxacct.epsilon(sampled, steps, delta).upper)
        excess.append(ours - peer)
        own.append(sampler - peer)
        ratios.append(ours / peer)
        row = f"{n:7d} {q:.2e} {capacity:6d} {noise:7.3f} {steps:6d} {delta:.2e}"
        mark = "  above" if excess[-1] > ALLOWED else ""
        print(f"{row} | {ours:8.4f} {peer:8.4f} | {sampler:8.4f}{mark}", flush=True)
    print(f"above by more than {ALLOWED}: {sum(e > ALLOWED for e in excess)} of {len(excess)}; most {max(excess):.2e}")
    print(f"sampler's: {sum(e > ALLOWED for e in own)}, most {max(own):.2e}")
    print(f"ours over theirs, median {np.median(ratios):.4f}")
    print(f"seconds: ours {seconds[0]:.1f}, with compilation; theirs {seconds[1]:.1f}")


if __name__ == "__main__":
    main()
