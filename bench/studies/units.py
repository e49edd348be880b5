"""Guarantees for users: ``python -m bench.studies.units`` prints the tables of docs/units.md, and checks "zero_out".

Groups of examples by their exact law, beside what the group privacy of an (epsilon, delta) gives; the noise of sampling
by example and by user; dp_accounting's REPLACE_SPECIAL beside "zero_out", if it is installed, on 30 settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jaxacct as ja
from jaxacct import calibrate

STEPS, RATE, DELTA = 2000, 0.01, 1e-5
SIZES = (1, 2, 4, 8, 16)
INTERVAL = 1e-4
"""By how much dp_accounting may round a single loss up."""


def by_lemma(noise: float, size: int) -> float:
    """The epsilon that an example's guarantee gives a group, g e at delta(e) (e^(g e) - 1)/(e^e - 1), to half a nat."""
    example = ja.PoissonSubsampledGaussian(noise, RATE)
    for halves in range(1360):
        log_delta = math.log(DELTA) - halves / 2
        epsilon = float(ja.saddlepoint.epsilon(example, STEPS, math.exp(log_delta)).upper)
        ratio = (size - 1) * epsilon - math.log1p(-math.exp(-epsilon))
        if log_delta + ratio <= math.log(DELTA):
            return size * epsilon
    return math.inf


def groups() -> Iterator[str]:
    """The table of groups: rows are noise multipliers."""
    yield "| noise | " + " | ".join(f"g = {size}" for size in SIZES) + " |"
    yield "|---" * (len(SIZES) + 1) + "|"
    for noise in (0.6, 1.0, 2.0, 4.0):
        cells = []
        for size in SIZES:
            found = ja.epsilon(ja.group(ja.PoissonSubsampledGaussian(noise, RATE), size), STEPS, DELTA)
            assert found.upper - found.lower < 1e-6
            lemma = "" if size == 1 else f" ({by_lemma(noise, size):.4g})".replace("inf", "none")
            cells.append(f"{found.upper:.5g}{lemma}")
        yield f"| {noise} | " + " | ".join(cells) + " |"


def crossovers() -> Iterator[str]:
    """The table of users: how much larger a user's clipping norm may be, by examples in a sampled user's mean."""
    taken = (1, 2, 4, 8, 16)
    yield "| epsilon | m | " + " | ".join(f"h = {h}" for h in taken) + " |"
    yield "|---" * (len(taken) + 2) + "|"
    for epsilon in (0.5, 1.0, 4.0, 10.0):
        for most in (4, 16):
            sizes = dict(users=10_000, examples_per_user=most, batch_size=100 * most, steps=1000)
            found = (calibrate.user_level(epsilon, 1e-6, **sizes, sampled_per_user=h) for h in taken if h <= most)
            cells = [f"{ways.crossover:.3f}" for ways in found]
            yield f"| {epsilon} | {most} | " + " | ".join(cells + [""] * (len(taken) - len(cells))) + " |"


def settings() -> Iterator[tuple[Any, Any, int, float]]:
    """Pairs of an event and a mechanism, with steps and delta."""
    from dp_accounting import dp_event as event

    for i in range(5):
        steps, delta, x = (1, 3, 10, 30, 100)[i], (1e-3, 1e-5, 1e-6, 1e-8, 1e-4)[i], 1 + i
        yield event.GaussianDpEvent(float(x)), ja.Gaussian(float(x)), steps, delta
        yield event.LaplaceDpEvent(2.0 * x), ja.Laplace(2.0 * x), steps, delta
        yield event.DiscreteLaplaceDpEvent(0.5 / x, x), ja.DiscreteLaplace(2.0 * x, x), steps, delta
        q = 0.3 / x
        sampled = event.PoissonSampledDpEvent(q, event.GaussianDpEvent(0.5 + 0.2 * x))
        yield sampled, ja.PoissonSubsampledGaussian(0.5 + 0.2 * x, q), steps, delta
        shifts, weights = [0.0, 1.0, 2.0], [1 - 1.5 * q, q, 0.5 * q]
        mixed = event.MixtureOfGaussiansDpEvent(1.0 * x, shifts, weights)
        yield mixed, ja.GaussianMixture(1.0 * x, shifts, weights), steps, delta
        k, p = 2 + 3 * i, 0.9 - 0.1 * i
        true = 1 - p + p / k
        response = event.RandomizedResponseDpEvent(p, k)
        yield response, ja.RandomizedResponse(math.log(true * k / p), k), steps, delta


def zero_out() -> Iterator[str]:
    """dp_accounting's values: not below the bracket, and above it by no more than they may be rounded up."""
    from dp_accounting import NeighboringRelation, pld

    held = 0
    for event, mechanism, steps, delta in settings():
        peer = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=INTERVAL)
        # Of several at once its 0.6.0 counts one, for randomized response.
        alone = isinstance(mechanism, ja.RandomizedResponse)
        for _ in range(steps if alone else 1):
            peer.compose(event, 1 if alone else steps)
        theirs = float(peer.get_epsilon(delta))
        ours = ja.epsilon(mechanism, steps, delta, relation="zero_out", tolerance=1e-5)
        holds = ours.lower <= theirs + 1e-12 and theirs <= ours.upper + steps * INTERVAL
        held += holds
        name = type(mechanism).__name__
        yield f"{name:28} {steps:4} {delta:.0e} {theirs:.6f} {ours!r} {theirs - ours.upper:+.1e} {holds}"
    yield f"{held} of 30 held"


if __name__ == "__main__":
    for table in (groups, crossovers, zero_out):
        print(table.__doc__)
        for line in table():
            print(line, flush=True)
