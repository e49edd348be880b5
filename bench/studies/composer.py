"""Brackets of the contour composer on laws of atoms beside those of the library's verbs, at random settings.

Run: python -m bench.studies.composer [--settings N] [--cells N --side N] [--kinds KIND ...]

A contradiction is a bracket that shares no number with the verb's: one of the two is wrong. The gap is relative to the
upper bound; it is 1 where nothing is known from above. Times are CPU time of this process, the laws' making included.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import report
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair
from jaxacct.numerics.precision import scope
from jaxacct.saddlepoint import composer

TRUTHS = Path(__file__).parents[2] / "tests" / "data" / "delta_truth.json"
"""Values of delta that are known to 160 bits."""


class Kind(NamedTuple):
    """Settings of one kind: ranges of their numbers, from which logs are uniform, and what is asked of each.

    The numbers of steps are those whose ranges begin at a whole number in ``counts``; the last number is delta.
    """

    ranges: tuple[tuple[float, float], ...]
    counts: tuple[int, ...]
    mechanisms: Callable[..., tuple[Any, ...]]
    """From the numbers that are no counts to the mechanisms, as many as counts."""


def _sampled(*numbers: Any) -> tuple[Any, ...]:
    return tuple(ja.PoissonSubsampledGaussian(s, q) for s, q in zip(numbers[::2], numbers[1::2], strict=True))


NOISE, RATE, STEPS = (0.4, 8.0), (1e-4, 0.9), (1.0, 1e6)
KINDS = {
    "sampled": Kind((NOISE, RATE, STEPS, (1e-12, 0.1)), (2,), _sampled),
    "hostile": Kind(((0.06, 100.0), (1e-5, 1.0), (1.0, 1e8), (1e-40, 0.5)), (2,), _sampled),
    "laplace": Kind(((1.0, 100.0), (1.0, 1e4), (1e-10, 0.1)), (1,), lambda b: (ja.Laplace(b),)),
    "two rows": Kind((NOISE, RATE, NOISE, RATE, STEPS, (1.0, 1e4), (1e-12, 0.1)), (4, 5), _sampled),
}


def laws_of(mechanisms: tuple[Any, ...], counts: Any, delta: Any, cells: int) -> Atoms:
    """Returns the laws of a composition, by direction, rows as leaves (directions, m, ...)."""
    nats = jnp.maximum(jnp.log(jnp.sum(jnp.stack(counts))) - jnp.log(delta), 0.0) + 12
    rows = [[pair.discretize(cells, nats) for pair in mechanism.dominating_pairs()] for mechanism in mechanisms]
    directions = [jax.tree.map(lambda *each: jnp.stack(each), *row) for row in zip(*rows, strict=True)]
    return jax.tree.map(lambda *each: jnp.stack(each), *directions)


def compiled_for(kind: Kind, cells: int, side: int) -> Callable[..., tuple[Any, Any]]:
    """Returns the program from a kind's numbers to bounds on epsilon, the larger ones of all directions."""

    def bounds(*numbers: Any) -> tuple[Any, Any]:
        counts = [numbers[i] for i in kind.counts]
        fields = [x for i, x in enumerate(numbers[:-1]) if i not in kind.counts]
        laws = laws_of(kind.mechanisms(*fields), counts, numbers[-1], cells)
        lower, upper = jax.vmap(lambda law: composer.epsilon(law, jnp.stack(counts), numbers[-1], side=side))(laws)
        return lower.max(), upper.max()

    return jax.jit(bounds)


def settings_of(kind: Kind, number: int, seed: int = 0) -> list[list[float]]:
    """Returns random numbers, those of steps whole."""
    random = np.random.default_rng(seed)
    rows = [[float(np.exp(random.uniform(*np.log(ends)))) for ends in kind.ranges] for _ in range(number)]
    return [[float(round(x)) if i in kind.counts else x for i, x in enumerate(row)] for row in rows]


def known(kind: Kind, numbers: list[float]) -> ja.Bounds:
    """Returns the verb's bracket for the same numbers."""
    counts = tuple(int(numbers[i]) for i in kind.counts)
    mechanisms = kind.mechanisms(*(x for i, x in enumerate(numbers[:-1]) if i not in kind.counts))
    return ja.epsilon(mechanisms, counts, numbers[-1])


def compare(kind: Kind, number: int, cells: int, side: int) -> dict[str, Any]:
    """Returns contradictions, quantiles of gaps and times."""
    with scope():
        program, gaps, wrong = compiled_for(kind, cells, side), [], []
        settings = settings_of(kind, number)
        begin = time.process_time()
        jax.block_until_ready(program(*settings[0]))
        middle = time.process_time()
        brackets = [tuple(map(float, program(*numbers))) for numbers in settings]
        end = time.process_time()
    for numbers, (lower, upper) in zip(settings, brackets, strict=True):
        bounds = known(kind, numbers)
        # Which of two brackets is wrong is not told; both have rounding inside.
        if lower > float(bounds.upper) or upper < float(bounds.lower):
            wrong.append([numbers, lower, upper, float(bounds.lower), float(bounds.upper)])
        gaps.append(1.0 if upper == np.inf and lower < np.inf else 0.0 if upper == lower else (upper - lower) / upper)
    return {
        "settings": number,
        "wrong": wrong,
        "quantiles": np.quantile(gaps, [0.5, 0.9, 0.95, 1.0]).tolist(),
        "within": [float(np.mean(np.array(gaps) <= width)) for width in (1e-3, 1e-2)],
        "compile": middle - begin,
        "ms": (end - middle) / number * 1e3,
    }


def oracle(cells: int, side: int) -> dict[str, Any]:
    """Returns the values of delta outside of their brackets, and quantiles of the gaps of delta."""
    begin = time.process_time()
    with scope():

        @jax.jit
        def bounds(s: Any, q: Any, removes: Any, steps: Any, epsilon: Any, delta: Any) -> tuple[Any, Any]:
            nats = jnp.maximum(jnp.log(steps) - jnp.log(delta), 0.0) + 12
            law = SubsampledGaussianPair(s, q, removes).discretize(cells, nats)
            rows = jax.tree.map(lambda leaf: leaf[None], law)
            return composer.delta(rows, jnp.reshape(steps, 1), epsilon, side=side)

        wrong, gaps = [], []
        for row in json.loads(TRUTHS.read_text()):
            removes = row["direction"] == "remove"
            numbers = row["sigma"], row["q"], removes, float(row["k"]), row["eps"], row["delta"]
            lower, upper = map(float, bounds(*numbers))
            # The file has the nearest float64.
            if not lower * (1 - 1e-15) <= row["delta"] <= upper * (1 + 1e-15):
                wrong.append([*numbers, lower, upper])
            gaps.append((upper - lower) / upper)
    quantiles = np.quantile(gaps, [0.5, 0.9, 0.95, 1.0]).tolist()
    within = [float(np.mean(np.array(gaps) <= width)) for width in (1e-3, 1e-2)]
    taken = time.process_time() - begin
    return {
        "settings": len(gaps),
        "wrong": wrong,
        "quantiles": quantiles,
        "within": within,
        "compile": taken,
        "ms": 0.0,
    }


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--settings", type=int, default=100)
    parser.add_argument("--cells", type=int, default=512)
    parser.add_argument("--side", type=int, default=composer.SIDE)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "oracle"], default=[*KINDS, "oracle"])
    arguments = parser.parse_args()
    table = Table(
        "kind", "settings", "wrong", "gap: median", ".9", ".95", "largest", "to 1e-3", "to 1e-2", "first", "each"
    )
    found = {}
    for name in arguments.kinds:
        sizes = arguments.cells, arguments.side
        result = oracle(*sizes) if name == "oracle" else compare(KINDS[name], arguments.settings, *sizes)
        found[name] = result
        table.add_row(
            name, str(result["settings"]), str(len(result["wrong"])), *(f"{gap:.1e}" for gap in result["quantiles"]),
            *(f"{share:.0%}" for share in result["within"]), f"{result['compile']:.1f} s", f"{result['ms']:.1f} ms",
        )  # fmt: skip
        for wrong in result["wrong"]:
            print(name, wrong)
    Console(width=150).print(table)
    report.write(arguments.json, {"cells": arguments.cells, "side": arguments.side, "kinds": found})


if __name__ == "__main__":
    main()
