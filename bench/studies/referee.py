"""The referee on random settings over every law: what it proves of the library's brackets, and what of wrong ones.

    python -m bench.studies.referee --count 1000 --out referee.jsonl  # one JSON object a setting; goes on later
    python -m bench.studies.referee --summary referee.jsonl

Each setting is judged three times: the library's bracket as it is, its upper bound moved below the truth by one part in
10^8, and its lower bound above. The truth for this is the library's estimate where its bracket is narrower than 1e-9,
and the referee's own ball elsewhere, unless a bracket takes it longer than LONG. Times are of the processor, for one
bracket. Random allocation has one batch here, and its upper bound alone is claimed: the accountants' pair is above the
tight one. Users' own distribution functions are left out: there the referee says UNDECIDED always.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
import warnings
from typing import Any

import numpy as np

import jaxacct as ja
from jaxacct import json_files, verify

MOVED = 1e-8

LONG = 3.0
"""Seconds of a bracket from which on a truth that none gives is not looked for: that takes some dozens of them."""

LAWS = (
    "gaussian", "poisson", "poisson replace", "mixture", "truncated", "gaussian without", "laplace without", "laplace",
    "poisson laplace", "discrete gaussian", "discrete laplace", "pair", "response", "pure", "approximate", "allocation",
)  # fmt: skip

TOGETHER = (
    ("poisson", "gaussian"), ("poisson", "poisson"), ("poisson", "response"), ("poisson", "laplace"),
    ("gaussian", "pure", "approximate"), ("mixture", "poisson"), ("truncated", "gaussian"), ("laplace", "laplace"),
    ("discrete gaussian", "gaussian"), ("discrete laplace", "pure"), ("poisson laplace", "gaussian"),
    ("pair", "approximate"), ("gaussian without", "laplace without"), ("poisson", "sequence"),
)  # fmt: skip


def log_uniform(draw: np.random.Generator, low: float, high: float, digits: int = 4) -> float:
    """Returns a number of a few digits."""
    return float(f"{np.exp(draw.uniform(np.log(low), np.log(high))):.{digits}g}")


def mechanism(draw: np.random.Generator, law: str) -> Any:
    """Returns a mechanism of a law, with random parameters."""
    noise, rate = log_uniform(draw, 0.5, 10), log_uniform(draw, 1e-3, 0.5)
    if law == "gaussian":
        return ja.Gaussian(log_uniform(draw, 0.5, 300))
    if law in ("poisson", "poisson replace"):
        return ja.PoissonSubsampledGaussian(noise, rate)
    if law == "mixture":
        weights = np.round(draw.dirichlet([3.0, 0.5, 0.3]), 6) + np.array([0, 1e-6, 1e-6])
        return ja.GaussianMixture(2 * noise, np.array([0.0, 1.0, 2.0]), weights / np.sum(weights))
    if law == "truncated":
        examples = int(log_uniform(draw, 10, 1e6))
        mean, deviation = examples * rate, np.sqrt(examples * rate * (1 - rate))
        capacity = int(np.clip(np.round(mean + draw.uniform(-1, 6) * deviation), 1, examples))
        sizes = (examples, examples + 1) if draw.uniform() < 0.5 else examples
        return ja.TruncatedPoissonGaussian.for_batches(noise, rate, sizes, capacity)
    if law == "gaussian without":
        return ja.GaussianWithoutReplacement(2 * noise, rate)
    if law == "laplace without":
        return ja.LaplaceWithoutReplacement(2 * noise, rate)
    if law == "laplace":
        return ja.Laplace(log_uniform(draw, 0.5, 100))
    if law == "poisson laplace":
        return ja.PoissonSubsampledLaplace(noise, rate)
    if law == "discrete gaussian":
        return ja.DiscreteGaussian(log_uniform(draw, 0.5, 50))
    if law == "discrete laplace":
        return ja.DiscreteLaplace(log_uniform(draw, 0.5, 50), int(draw.integers(1, 5)))
    if law == "pair":
        size = int(draw.integers(2, 4))
        p = draw.dirichlet(np.full(size, 2.0))
        q = p * np.exp(draw.normal(0, log_uniform(draw, 1e-3, 2), size))
        return ja.DiscretePair(p, q / np.sum(q))
    epsilon = log_uniform(draw, 1e-3, 2)
    if law == "response":
        return ja.RandomizedResponse(epsilon, int(draw.choice([2, 3, 10])))
    if law == "pure":
        return ja.PureDP(epsilon)
    if law == "approximate":
        return ja.ApproximateDP(epsilon, log_uniform(draw, 1e-12, 1e-6))
    if law == "sequence":
        return ja.PoissonSubsampledGaussian(
            np.array([log_uniform(draw, 0.5, 10) for _ in range(3)]), np.array([log_uniform(draw, 1e-3, 0.5)] * 3)
        )
    return ja.RandomAllocation(noise, 1)


def runs(draw: np.random.Generator, law: str) -> Any:
    """Returns a number of runs: half of them at most ten."""
    most = {"pair": 1e3, "allocation": 10, "laplace": 1e4}.get(law, 1e6)
    if law == "sequence":
        return np.array([int(log_uniform(draw, 1, 1e4)) for _ in range(3)])
    return int(log_uniform(draw, 1, 10)) if draw.uniform() < 0.25 else int(log_uniform(draw, 1, most))


def setting(index: int) -> tuple[str, Any, Any, str, str, float]:
    """Returns the name, mechanism, steps, relation, quantity and given value of a setting."""
    draw = np.random.default_rng([17, index])
    if index % 4 == 3:
        laws = TOGETHER[draw.integers(len(TOGETHER))]
        mechanisms = tuple(mechanism(draw, law) for law in laws)
        steps: Any = tuple(runs(draw, law) for law in laws)
    else:
        law = LAWS[draw.integers(len(LAWS))]
        laws, mechanisms, steps = (law,), mechanism(draw, law), runs(draw, law)
    relation = "replace" if any("without" in law or law == "poisson replace" for law in laws) else "add_or_remove"
    quantity = "epsilon" if draw.uniform() < 0.5 else "delta"
    given = log_uniform(draw, 1e-12, 0.3)
    if quantity == "delta":
        given = float(f"{float(ja.epsilon(mechanisms, steps, given, relation=relation).upper):.4g}")
        given = given if 0 < given < 1e6 else 1.0
    return " + ".join(laws), mechanisms, steps, relation, quantity, given


def judge(index: int) -> dict[str, Any]:
    """Returns the record of one setting."""
    name, mechanisms, steps, relation, quantity, given = setting(index)
    library = (ja.epsilon if quantity == "epsilon" else ja.delta)(mechanisms, steps, given, relation=relation)
    allocated = name == "allocation"
    lower, upper = 0.0 if allocated else float(library.lower), float(library.upper)
    verify_it = verify.epsilon if quantity == "epsilon" else verify.delta

    def ask(low: float, high: float) -> tuple[Any, float]:
        start = time.process_time()
        verdict = verify_it(mechanisms, steps, given, (low, high), relation=relation)
        return verdict, time.process_time() - start

    verdict, seconds = ask(lower, upper)
    record = {
        "index": index, "law": name, "mechanism": repr(mechanisms), "steps": repr(steps), "relation": relation,
        "quantity": quantity, "given": given, "lower": lower, "upper": upper, "status": verdict.status.value,
        "reason": verdict.reason, "seconds": seconds,
    }  # fmt: skip
    narrow = float(library.gap) < 1e-9 and bool(library.converged) and not allocated
    truth = float(library.estimate) if narrow else None
    most = float("inf") if quantity == "epsilon" else 1.0
    if truth is None and seconds < LONG:
        # Refuted from near the truth, which the referee then looks for from there.
        ball, _ = ask(1.001 * upper, most) if upper < most / 1.001 else ask(-1.0, -1.0)
        low, high = ball.truth
        truth = low if high - low <= 1e-9 * high else None
    if truth is not None and 1e-300 < truth < most:
        record["truth"] = truth
        for end, claim in (("upper", (0.0, truth * (1 - MOVED))), ("lower", (truth * (1 + MOVED), most))):
            moved, record[f"{end} seconds"] = ask(*claim)
            record[f"{end} moved"] = moved.status.value
    return record


def summary(path: pathlib.Path) -> dict[str, Any]:
    """Returns the shares and times of the records in a file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    statuses = [record["status"] for record in records]
    moved = [record[f"{end} moved"] for record in records for end in ("upper", "lower") if f"{end} moved" in record]
    seconds = sorted(record["seconds"] for record in records)
    undecided: dict[str, int] = {}
    for record in records:
        if record["status"] != "PROVED":
            undecided[record["law"]] = undecided.get(record["law"], 0) + 1
    return {
        "settings": len(records),
        "status": {status: statuses.count(status) for status in sorted(set(statuses))},
        "not proved, by law": undecided,
        "moved brackets": len(moved),
        "moved": {status: moved.count(status) for status in sorted(set(moved))},
        "seconds": {
            "median": seconds[len(seconds) // 2],
            "99 %": seconds[int(0.99 * len(seconds))],
            "most": seconds[-1],
        },
    }


def main() -> int:
    """Judges settings, or says what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--summary", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.summary:
        print(json.dumps(summary(arguments.summary), indent=1))
        return 0
    warnings.simplefilter("ignore")
    done = len(arguments.out.read_text().splitlines()) if arguments.out and arguments.out.exists() else 0
    for index in range(done, arguments.count):
        line = json_files.dumps(judge(index))
        if arguments.out is None:
            print(line, flush=True)
        else:
            with arguments.out.open("a") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
