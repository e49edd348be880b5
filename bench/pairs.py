"""The accountants in pairs of float32, on a CPU: brackets beside float64's, and beside values known to 160 bits.

Run: python -m bench.pairs --settings 2000 --minutes 60 --json bench/results/pairs.json

A question is traced for pairs and compiled once, in minutes, and a setting then takes a third of a second; closed forms
and questions with known answers are worked off operation by operation, side by side, as concrete numbers are on a
device that has no float64. Float64 runs the same settings. Two brackets of one number must overlap, the known value be
within both, and the referee (:mod:`jaxacct.verify`) is asked of some: how many fail is counted, and none may. Widths
are relative, of the settings on which float64 has converged; wanted are 1e-9 for 95 % of those. Deltas go down to
1e-40. Settings are float32 numbers, which pairs hold as they are.

``--counted`` asks about widths alone, of as many settings as are wanted: certificates that count a pair's roundings, of
programs that float64 runs, in milliseconds each.

What is written is complete after each batch, beside what an earlier run left there; ``--minutes`` stops before the
next.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report
from jaxacct.numerics.arithmetic import in_pairs
from jaxacct.numerics.elementary import FAST
from jaxacct.numerics.float_pairs.interpret import as_pairs

TRUTHS = Path(__file__).parents[1] / "tests" / "data" / "delta_truth.json"

RANGES = np.log([[0.5, 8.0], [1e-3, 0.2], [100, 1e5]])
"""Noise, rate, steps: logs of the least and the most."""

DELTAS = np.log([1e-40, 1e-2])

USUAL, USUAL_DELTAS = np.log([[0.5, 8.0], [1e-3, 0.1], [1e3, 1e5]]), np.log([1e-12, 1e-5])
"""What widths are asked about."""

NARROW, GAP = 1e-9, 1e-3

KINDS: dict[str, Callable[..., Any]] = {
    "poisson gaussian": lambda noise, rate: ja.PoissonSubsampledGaussian(noise, rate),
    "gaussian": lambda noise, rate: ja.Gaussian(noise / rate),
    "laplace": lambda noise, rate: ja.Laplace(noise / rate),
    "poisson laplace": lambda noise, rate: ja.PoissonSubsampledLaplace(noise, rate),
    "fixed-size gaussian": lambda noise, rate: ja.GaussianWithoutReplacement(2 * noise, rate),
    "randomized response": lambda noise, rate: ja.RandomizedResponse(rate / noise),
    "discrete laplace": lambda noise, rate: ja.DiscreteLaplace(noise / rate),
}
"""Mechanisms of a noise and a rate."""

FORMS = (
    ("poisson gaussian", "delta", "add_or_remove", 0.25),
    ("poisson gaussian", "epsilon", "add_or_remove", 0.25),
    ("gaussian", "delta", "remove", 0.125),
    ("gaussian", "epsilon", "remove", 0.125),
    ("fixed-size gaussian", "epsilon", "replace", 0.075),
    ("poisson laplace", "delta", "add_or_remove", 0.05),
    ("laplace", "epsilon", "remove", 0.05),
    ("randomized response", "delta", "remove", 0.025),
    ("discrete laplace", "epsilon", "remove", 0.05),
)
"""Random questions: of which mechanism, what, under which relation, and which share of all."""

Rows = tuple[np.ndarray, ...]


def settings(count: int, seed: int, ranges: np.ndarray = RANGES, deltas: np.ndarray = DELTAS) -> Rows:
    """Returns noise, rate, whole steps and delta of random settings."""
    random = np.random.default_rng(seed)
    noise, rate, steps = np.exp(random.uniform(ranges[:, 0], ranges[:, 1], (count, 3))).T
    return _float32(noise, rate, np.round(steps), np.exp(random.uniform(*deltas, count)))


def _float32(*columns: np.ndarray) -> Rows:
    """Returns columns of float32 numbers, as float64."""
    return tuple(column.astype(np.float32).astype(np.float64) for column in columns)


def side_by_side(function: Callable[..., Any], rows: Rows) -> tuple[Any, Any]:
    """Returns what a function of numbers makes of rows in float64, and in pairs."""
    with jax.enable_x64(True):
        exact = jax.jit(jax.vmap(function))(*rows)

        def batch(*columns: Any) -> Any:
            # Traced as for any device but a CPU, where a batch would be worked off one setting after the other.
            with mock.patch.object(jax, "default_backend", return_value="other"):
                return jax.vmap(function)(*columns)

        found = as_pairs(batch, stepwise=True)(*rows)
        return jax.tree.map(np.asarray, exact), jax.tree.map(np.asarray, found)


@functools.cache
def program_of(ask: Callable[..., Any], size: int, arithmetic: str) -> Callable[..., Any]:
    """Returns one program that answers so many rows, one after the other: compiled once, as fast as may be."""
    inner = as_pairs(ask) if arithmetic == "pair" else ask

    def every(*columns: Any) -> Any:
        return jax.lax.map(lambda row: inner(*row), columns)

    with jax.enable_x64(True):
        return jax.jit(every).lower(*[jax.ShapeDtypeStruct((size,), np.float64)] * 4).compile(FAST)


def compiled(ask: Callable[..., Any], rows: Rows) -> tuple[Any, Any]:
    """Returns what a function of numbers makes of rows in float64, and in pairs: each as one program."""
    with jax.enable_x64(True):
        found = [program_of(ask, len(rows[0]), name)(*rows) for name in ("float64", "pair")]
    return jax.tree.map(np.asarray, found[0]), jax.tree.map(np.asarray, found[1])


def as_counted(ask: Callable[..., Any], rows: Rows) -> tuple[Any, Any]:
    """Returns what a function of numbers makes of rows in float64, counting its own roundings, and a pair's."""
    found = []
    for counted in (contextlib.nullcontext(), in_pairs()):
        with jax.enable_x64(True), counted:
            found.append(jax.jit(lambda *columns: jax.lax.map(lambda row: ask(*row), columns))(*rows))
    return jax.tree.map(np.asarray, found[0]), jax.tree.map(np.asarray, found[1])


class Job(NamedTuple):
    """Questions of one form: ``ask`` of rows."""

    name: str
    ask: Callable[..., ja.Bounds]
    rows: Rows
    truth: np.ndarray | None = None
    wanted: float = NARROW
    run: Callable[..., tuple[Any, Any]] = side_by_side
    form: tuple[str, str, str] | None = None
    """Of which the referee is asked: mechanism, quantity, relation."""


def known(batch: int) -> Iterator[Job]:
    """Yields the questions with known answers: delta at epsilon, each direction."""
    every = json.loads(TRUTHS.read_text())
    for direction in ("add", "remove"):
        mine = [row for row in every if row["direction"] == direction]
        columns = tuple(np.array([float(row[key]) for row in mine]) for key in ("sigma", "q", "k", "eps"))
        truth, make = np.array([row["delta"] for row in mine]), KINDS["poisson gaussian"]
        for i in range(0, len(mine), batch):
            rows = tuple(column[i : i + batch] for column in columns)
            ask = _asking(ja.saddlepoint.delta, make, direction)
            yield Job(f"known deltas, {direction}", ask, rows, truth[i : i + batch])


def _asking(verb: Callable[..., ja.Bounds], make: Callable[..., Any], relation: Any, **options: Any) -> Any:
    def ask(noise: Any, rate: Any, steps: Any, given: Any) -> ja.Bounds:
        return verb(make(noise, rate), steps, given, relation=relation, **options)

    return ask


def _at_their_epsilons(make: Callable[..., Any], relation: Any, rows: Rows) -> Rows:
    """Returns the rows with the epsilons of their deltas, for questions of delta."""
    with jax.enable_x64(True):
        there = jax.jit(jax.vmap(_asking(ja.saddlepoint.epsilon, make, relation)))(*rows)
    return (*rows[:3], *_float32(np.where(there.converged, np.asarray(there.estimate), 1.0)))


def exact_ones(count: int, batch: int, only: str) -> Iterator[Job]:
    """Yields random questions of the exact accountant, epsilons, and deltas at epsilons of random deltas.

    Those that have ``only`` in their names.
    """
    for seed, (name, quantity, relation, share) in enumerate(FORMS, 1):
        title = f"{name}, {quantity}, {relation}"
        if only not in title:
            continue
        make, verb = KINDS[name], getattr(ja.saddlepoint, quantity)
        ask, rows = _asking(verb, make, relation), settings(round(share * count), seed)
        if quantity == "delta":
            rows = _at_their_epsilons(make, relation, rows)
        run = side_by_side if name == "gaussian" else compiled
        for i in range(0, len(rows[0]), batch):
            some = tuple(column[i : i + batch] for column in rows)
            yield Job(title, ask, some, run=run, form=(name, quantity, relation))


def refereed(job: Job, found: Any, count: int) -> dict[str, int]:
    """Returns how many of a batch's first brackets the referee says what of."""
    if job.form is None:
        return {}
    name, quantity, relation = job.form
    verdicts: Counter[str] = Counter()
    for i in range(min(count, len(job.rows[0]))):
        noise, rate, steps, given = (float(column[i]) for column in job.rows)
        claim = float(found.lower[i]), float(found.upper[i])
        verify_it: Any = ja.verify.delta if quantity == "delta" else ja.verify.epsilon
        verdicts[verify_it(KINDS[name](noise, rate), int(steps), given, claim, relation=relation).status.value] += 1
    return dict(verdicts)


def counted_ones(count: int, seed: int) -> Iterator[Job]:
    """Yields usual questions of which the widths are asked."""
    make, rows = KINDS["poisson gaussian"], settings(count, seed, USUAL, USUAL_DELTAS)
    epsilon, delta = ja.saddlepoint.epsilon, ja.saddlepoint.delta
    yield Job("epsilon as counted", _asking(epsilon, make, "remove"), rows, run=as_counted)
    yield Job(
        "delta as counted", _asking(delta, make, "remove"), _at_their_epsilons(make, "remove", rows), run=as_counted
    )


def judge(job: Job, exact: Any, found: Any) -> dict[str, Any]:
    """Returns what is to be said of a batch."""
    apart = ~((found.lower <= exact.upper) & (exact.lower <= found.upper))
    if job.truth is not None:
        apart |= ~((found.lower <= job.truth) & (job.truth <= found.upper))
    known = exact.converged & (exact.upper > 0) & np.isfinite(exact.upper)
    scale = np.where(known, exact.upper, 1.0)
    widths, plain = ((b.upper - b.lower) / scale for b in (found, exact))
    return {
        "name": job.name,
        "settings": len(apart),
        "violations": [[float(column[i]) for column in job.rows] for i in np.flatnonzero(apart)],
        "float64 converged": int(np.sum(known)),
        "both converged": int(np.sum(known & found.converged)),
        "wanted": job.wanted,
        "as narrow as wanted": int(np.sum(known & (widths <= job.wanted))),
        "widths": dict(
            zip(("median", "95 %", "most"), np.quantile(widths[known], (0.5, 0.95, 1.0), method="higher"), strict=True)
        )
        if np.any(known)
        else {},
        "most of float64": float(np.max(plain[known], initial=0.0)),
    }


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--settings", type=int, default=2000)
    parser.add_argument("--counted", type=int, default=0, help="usual settings whose widths are asked about")
    parser.add_argument("--seed", type=int, default=0, help="of those")
    parser.add_argument("--batch", type=int, default=50, help="settings at once")
    parser.add_argument("--refereed", type=int, default=2, help="settings of each batch that the referee is asked of")
    parser.add_argument("--only", default="", help="a part of the names of the questions that are asked")
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    console, start, path = Console(width=140), time.monotonic(), arguments.json
    records = json.loads(path.read_text())["batches"] if path and path.exists() else []
    count, batch, only = arguments.settings, arguments.batch, arguments.only
    exact = (known(batch), exact_ones(count, batch, only)) if count else ()
    counted = counted_ones(arguments.counted, arguments.seed) if arguments.counted else ()
    for job in itertools.chain(counted, *exact):
        if time.monotonic() - start > 60 * arguments.minutes:
            break
        if only not in job.name:
            continue
        begun = time.process_time()
        native, found = job.run(job.ask, job.rows)
        record = judge(job, native, found) | {"seconds": time.process_time() - begun}
        record["referee"] = refereed(job, found, arguments.refereed)
        records.append(record)
        console.print(record)
        report.write(path, {"summary": summary(records), "batches": records})
    console.print(summary(records))


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the counts over batches."""
    counted = ("settings", "float64 converged", "both converged", "as narrow as wanted")
    found: dict[str, Any] = {key: sum(record[key] for record in records) for key in counted}
    found["violations"] = sum(len(record["violations"]) for record in records)
    found["referee"] = dict(sum((Counter(record["referee"]) for record in records), Counter()))
    return found


if __name__ == "__main__":
    main()
