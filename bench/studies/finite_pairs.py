"""Compositions of random finite pairs, judged exactly: how many brackets miss the truth. None may.

Run: taskset -c 1 python -m bench.studies.finite_pairs --pairs 20000 --json FILE

Pairs of two and of three outcomes, whose probabilities are multiples of 2^-53 that sum to one: float64 has them,
so nothing is left to interpretation. Losses from 1e-14 to 25, log-uniform, of either sign; the number of runs is
log-uniform, to 1,000; either direction. Each pair is asked for delta at an epsilon
and for epsilon at a delta, by the mesh and by the exact accountant.

The truth is the sum over all multisets of outcomes in balls of 200 bits (python-flint): a bracket is wrong only if a
ball proves it. In a row, where only how the last two outcomes share their runs is open, the loss is monotone in it, and
the positive terms are one end of the row: its sums are kept, so that a thousand runs cost no more than half a million
products. Of epsilon: delta there must be on the other side of the one that was given.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import operator
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import flint
import jax
import numpy as np

import jaxacct as ja

UNIT = 2**53
BITS = 200
MOST_RUNS = 1000
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
    runs = round(math.exp(random.uniform(0, math.log(MOST_RUNS))))
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
    """All multisets of outcomes of a composition: sums of their masses under P and under Q, in balls."""

    def __init__(self, case: Case) -> None:
        # The last two outcomes by increasing loss, exactly: p_a / q_a <= p_b / q_b.
        *others, a, b = sorted(zip(case.p, case.q, strict=True), key=lambda masses: Fraction(*masses))
        k = case.runs
        with flint.ctx.workprec(BITS):
            factorials = _running(range(1, k + 1), flint.arb(1), operator.mul)
            # x^n / n! for each outcome and side.
            low, high, *rest = ([_scaled(mass, factorials) for mass in outcome] for outcome in (a, b, *others))
            self.rows = [
                _Row(
                    low,
                    high,
                    k - taken,
                    [factorials[k] * row[taken] for row in rest[0]] if rest else [factorials[k]] * 2,
                )
                for taken in (range(k + 1) if rest else [0])
            ]

    def delta(self, epsilon: float) -> flint.arb:
        """Returns a ball that holds delta at an epsilon."""
        with flint.ctx.workprec(BITS):
            factor = flint.arb(epsilon).exp()
            return sum((row.gain(factor) for row in self.rows), flint.arb(0))


class _Row:
    """The multisets in which two outcomes share some runs, by increasing loss: how often the higher one came."""

    def __init__(self, low: list, high: list, runs: int, weights: list) -> None:
        masses = [
            [weight * x[runs - n] * y[n] for n in range(runs + 1)]
            for weight, x, y in zip(weights, low, high, strict=True)
        ]
        self.masses = masses
        # From the end on: what the n highest losses hold.
        self.tails = [_running(reversed(side), flint.arb(0), operator.add) for side in masses]

    def gain(self, factor: flint.arb) -> flint.arb:
        """Returns the sum of (p - factor q)+."""
        p, q = self.masses
        gains = lambda n: p[n] - factor * q[n]  # noqa: E731
        first = bisect.bisect_left(range(len(p)), True, key=lambda n: bool(gains(n) > 0))
        held = len(p) - first
        total = self.tails[0][held] - factor * self.tails[1][held]
        # Terms that a ball cannot tell from 0.
        while first and not (term := gains(first - 1)) < 0:
            total, first = total + term.union(flint.arb(0)).max(flint.arb(0)), first - 1
        return total


def _running(terms: Iterable[Any], start: flint.arb, step: Callable[[Any, Any], Any]) -> list[flint.arb]:
    return list(itertools.accumulate(terms, step, initial=start))


def _scaled(mass: int, factorials: list[flint.arb]) -> list[flint.arb]:
    powers = _running([flint.arb(mass) / UNIT] * (len(factorials) - 1), flint.arb(1), operator.mul)
    return [power / factorial for power, factorial in zip(powers, factorials, strict=True)]


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
    """Returns the exact accountant's brackets of cases with equally many outcomes, in batches of one compiled call.

    Fewer than a batch are asked one by one: they are done before that call is compiled.
    """

    def ask(p: jax.Array, q: jax.Array, runs: jax.Array, epsilon: jax.Array, delta: jax.Array) -> Any:
        pair = ja.DiscretePair(p, q)
        return (
            ja.saddlepoint.delta(pair, runs, epsilon, relation="remove"),
            ja.saddlepoint.epsilon(pair, runs, delta, relation="remove"),
        )

    def one_by_one(*columns: Any) -> Any:
        return jax.tree.map(lambda *ends: np.stack(ends), *(ask(*row) for row in zip(*columns, strict=True)))

    call = jax.jit(jax.vmap(ask)) if len(rows) >= BATCH else one_by_one
    found: list[list[np.ndarray]] = [[], []]
    with jax.enable_x64(True):
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            part = part + [part[-1]] * (min(BATCH, len(rows)) - len(part))
            columns = [np.asarray([getattr(case, name) for case in part], np.float64) for name in Case._fields]
            columns[0], columns[1] = columns[0] / UNIT, columns[1] / UNIT
            for kept, bounds in zip(found, call(*columns), strict=True):
                kept.append(np.stack([np.asarray(bounds.lower), np.asarray(bounds.upper)], axis=1))
    return np.concatenate(found[0])[: len(rows)], np.concatenate(found[1])[: len(rows)]


def judge(rows: list[Case]) -> dict[str, Any]:
    """Returns, for each accountant, the violations, and how tight it was."""
    accountants = {"prv": by_mesh, "saddlepoint": by_contour}
    violations: dict[str, list] = {name: [] for name in accountants}
    gaps: dict[str, list[float]] = {name: [] for name in accountants}
    seconds = dict.fromkeys(accountants, 0.0)
    for outcomes in sorted({len(case.p) for case in rows}):
        of_size = [case for case in rows if len(case.p) == outcomes]
        found = {}
        for name, accountant in accountants.items():
            start = time.perf_counter()
            found[name] = accountant(of_size)
            seconds[name] += time.perf_counter() - start
        for i, case in enumerate(of_size):
            truth = Composition(case)
            for name, brackets in found.items():
                d, e = (bounds[i].tolist() for bounds in brackets)
                ends = wrong(case, tuple(d), tuple(e), truth)
                violations[name] += [[end, list(case.p), list(case.q), *case[2:], d, e] for end in ends]
                gaps[name].append(1 - d[0] / d[1] if d[1] > 0 else 0.0)
    return {"pairs": len(rows)} | {
        name: {
            "violations": len(violations[name]),
            "first": violations[name][:5],
            "gap_of_delta": {str(share): float(np.quantile(gaps[name], share)) for share in (0.1, 0.5, 0.9)},
            "seconds": seconds[name],
        }
        for name in accountants
    }


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    record = judge(cases(arguments.pairs, arguments.seed))
    for name in ("prv", "saddlepoint"):
        print(f"{name}: {record[name]['violations']} violations on {record['pairs']} pairs; {record[name]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
