"""Compositions of random finite pairs, judged exactly: how many brackets miss the truth. None may.

Run: taskset -c 1 python -m bench.finite_pairs --pairs 20000 --json FILE

Pairs of two and of three outcomes, whose probabilities are multiples of 2^-53 that sum to one: float64 has them,
so nothing is left to interpretation. Losses from 1e-14 to 25, log-uniform, of either sign; the number of runs is
log-uniform, to 1,000 for two outcomes and to 60 for three; either direction. Each pair is asked for delta at an epsilon
and for epsilon at a delta, by the mesh and by the exact accountant.

The truth is the sum over all multisets of outcomes in balls of 200 bits (python-flint): a bracket is wrong only if a
ball proves it. Of epsilon: delta there must be on the other side of the one that was given.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import flint
import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja

UNIT = 2**53
BITS = 200
MOST_RUNS = {2: 1000, 3: 60}
POINTS = 2**10
BATCH = 250


class Case(NamedTuple):
    """Whole numerators over 2^53, how many runs, and what is asked."""

    p: tuple[int, ...]
    q: tuple[int, ...]
    runs: int
    epsilon: float
    delta: float


def _whole(masses: np.ndarray) -> tuple[int, ...]:
    """Returns positive whole numbers that sum to 2^53, near the masses given; the largest takes the rest."""
    counts = [max(int(m * UNIT), 1) for m in masses]
    counts[int(np.argmax(counts))] += UNIT - sum(counts)
    return tuple(counts)


def random_case(random: np.random.Generator, outcomes: int) -> Case:
    """Returns a pair with losses of some size from 1e-14 to 25, and questions where delta is neither 0 nor 1."""
    while True:
        size = math.exp(random.uniform(math.log(1e-14), math.log(25.0)))
        q = _whole(random.dirichlet(np.full(outcomes, 0.5 if random.random() < 0.5 else 2.0)))
        # Losses of both signs, of that size at most, and then masses of P that sum to one.
        shape = random.uniform(0.05, 1.0, outcomes) * np.where(np.arange(outcomes) % 2, -1.0, 1.0) * size
        if size < 1e-3:
            shape = shape - np.dot(shape, q) / UNIT
            moved = [round(a * math.expm1(y)) for a, y in zip(q, shape, strict=True)]
            moved[int(np.argmax(q))] -= sum(moved)
            p = tuple(a + b for a, b in zip(q, moved, strict=True))
        else:
            weights = np.asarray(q) / UNIT * np.exp(shape)
            p = _whole(weights / weights.sum())
        losses = [math.log(a / b) if a > 0 else math.nan for a, b in zip(p, q, strict=True)]
        if min(p) > 0 and sum(p) == UNIT and p != q and 1e-14 <= max(map(abs, losses)) <= 25:
            break
    if random.random() < 0.5:
        p, q = q, p
    runs = round(math.exp(random.uniform(0, math.log(MOST_RUNS[outcomes]))))
    # Within some deviations of the mean loss, and a delta on that scale.
    mean = sum(a / UNIT * math.log1p((a - b) / b) for a, b in zip(p, q, strict=True))
    spread = math.sqrt(sum(a / UNIT * math.log1p((a - b) / b) ** 2 for a, b in zip(p, q, strict=True)))
    epsilon = max(runs * mean + random.uniform(-1, 6) * math.sqrt(runs) * spread, 0.0)
    if random.random() < 0.1:
        epsilon = 0.0
    about = min(max(-math.expm1(-min(math.sqrt(runs) * spread, 40.0)), 1e-16), 0.9)
    return Case(p, q, runs, epsilon, about * math.exp(-random.uniform(0.0, 25.0)))


def cases(count: int, seed: int = 0) -> list[Case]:
    """Returns as many random cases, those with two outcomes first."""
    random = np.random.default_rng(seed)
    return [random_case(random, 2) for _ in range(count - count // 2)] + [
        random_case(random, 3) for _ in range(count // 2)
    ]


class Composition:
    """All multisets of outcomes of a composition, as balls: the probability under P and under Q."""

    def __init__(self, case: Case) -> None:
        with flint.ctx.workprec(BITS):
            k = case.runs
            powers = [[[flint.arb(a) / UNIT] for a in side] for side in (case.p, case.q)]
            powers = [[_powers(entry[0], k) for entry in side] for side in powers]
            factorials = [flint.arb(1)]
            for n in range(1, k + 1):
                factorials.append(factorials[-1] * n)
            inverse = [1 / f for f in factorials]
            # a^n / n! of each outcome, under either.
            scaled = [[[a * b for a, b in zip(row, inverse, strict=True)] for row in side] for side in powers]
            self.atoms: list[tuple[flint.arb, flint.arb]] = []
            for counts in _multisets(k, len(case.p)):
                p, q = (math.prod((row[n] for row, n in zip(side, counts, strict=True)), start=factorials[k])
                        for side in scaled)  # fmt: skip
                self.atoms.append((p, q))

    def delta(self, epsilon: float) -> flint.arb:
        """Returns a ball that holds delta at an epsilon."""
        with flint.ctx.workprec(BITS):
            factor = flint.arb(epsilon).exp()
            total = flint.arb(0)
            for p, q in self.atoms:
                gain = p - factor * q
                if gain > 0:
                    total += gain
                elif not gain < 0:
                    total += gain.union(flint.arb(0)).max(flint.arb(0))
            return total


def _powers(base: flint.arb, most: int) -> list[flint.arb]:
    found = [flint.arb(1)]
    for _ in range(most):
        found.append(found[-1] * base)
    return found


def _multisets(runs: int, outcomes: int):
    if outcomes == 1:
        yield (runs,)
        return
    for first in range(runs + 1):
        for rest in _multisets(runs - first, outcomes - 1):
            yield (first, *rest)


def wrong(case: Case, delta: tuple[float, float], epsilon: tuple[float, float], truth: Composition) -> list[str]:
    """Returns which ends of the brackets (lower, upper) a ball proves to be on the wrong side."""
    at = truth.delta(case.epsilon)
    found = []
    if at < flint.arb(delta[0]):
        found.append("delta.lower")
    if at > flint.arb(delta[1]):
        found.append("delta.upper")
    if epsilon[0] > 0 and truth.delta(epsilon[0]) < flint.arb(case.delta):
        found.append("epsilon.lower")
    if math.isfinite(epsilon[1]) and truth.delta(epsilon[1]) > flint.arb(case.delta):
        found.append("epsilon.upper")
    return found


Brackets = tuple[np.ndarray, np.ndarray]
"""Of delta and of epsilon, (n, 2) each: lower and upper ends."""


def by_mesh(rows: list[Case]) -> Brackets:
    """Returns the mesh's brackets, case by case: so each loop ends when its own case does."""
    found: list[list[tuple[float, float]]] = [[], []]
    for case in rows:
        pair = ja.DiscretePair(np.asarray(case.p) / UNIT, np.asarray(case.q) / UNIT)
        asked = {"relation": "remove", "points": POINTS}
        delta = ja.prv.delta(pair, case.runs, case.epsilon, **asked)
        epsilon = ja.prv.epsilon(pair, case.runs, case.delta, **asked)
        for kept, bounds in zip(found, (delta, epsilon), strict=True):
            kept.append((float(bounds.lower), float(bounds.upper)))
    return np.asarray(found[0]), np.asarray(found[1])


def by_contour(rows: list[Case]) -> Brackets:
    """Returns the exact accountant's brackets of cases with equally many outcomes, in batches of one compiled call."""

    def ask(p: jax.Array, q: jax.Array, runs: jax.Array, epsilon: jax.Array, delta: jax.Array) -> Any:
        pair = ja.DiscretePair(p, q)
        return (
            ja.saddlepoint.delta(pair, runs, epsilon, relation="remove"),
            ja.saddlepoint.epsilon(pair, runs, delta, relation="remove"),
        )

    call = jax.jit(jax.vmap(ask))
    found: list[list[np.ndarray]] = [[], []]
    with jax.enable_x64(True):
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            part = part + [part[-1]] * (min(BATCH, len(rows)) - len(part))
            columns = [np.asarray([getattr(case, name) for case in part], np.float64) for name in Case._fields]
            columns[0], columns[1] = columns[0] / UNIT, columns[1] / UNIT
            for kept, bounds in zip(found, call(*map(jnp.asarray, columns)), strict=True):
                kept.append(np.stack([np.asarray(bounds.lower), np.asarray(bounds.upper)], axis=1))
    return np.concatenate(found[0])[: len(rows)], np.concatenate(found[1])[: len(rows)]


def judged(rows: list[Case]) -> dict[str, Any]:
    """Returns, for each accountant, the violations, and how tight it was."""
    record: dict[str, Any] = {"pairs": len(rows)}
    for name, accountant in {"prv": by_mesh, "saddlepoint": by_contour}.items():
        start, violations, gaps = time.perf_counter(), [], []
        for outcomes in (2, 3):
            of_size = [case for case in rows if len(case.p) == outcomes]
            delta, epsilon = accountant(of_size)
            for case, d, e in zip(of_size, delta.tolist(), epsilon.tolist(), strict=True):
                ends = wrong(case, tuple(d), tuple(e), Composition(case))
                violations += [[end, list(case.p), list(case.q), *case[2:], d, e] for end in ends]
                gaps.append(1 - d[0] / d[1] if d[1] > 0 else 0.0)
        record[name] = {
            "violations": len(violations),
            "first": violations[:5],
            "gap_of_delta": {str(share): float(np.quantile(gaps, share)) for share in (0.1, 0.5, 0.9)},
            "seconds": time.perf_counter() - start,
        }
    return record


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    record = judged(cases(arguments.pairs, arguments.seed))
    for name in ("prv", "saddlepoint"):
        print(f"{name}: {record[name]['violations']} violations on {record['pairs']} pairs; {record[name]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
