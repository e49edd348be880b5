"""The evolving mesh beside today's bounds: contradictions, widths, sizes, growth with the runs, and choices of meshes.

Run: python -m bench.studies.evolving [random] [oracle] [hostile] [laplace] [many] [sizes] [growth] [program]

Widths are (upper - lower) / upper of epsilon over both directions. The settings are drawn once for all: noise 0.4 to 8,
rate 1e-4 to 0.9, 1 to 10^6 steps, delta 1e-12 to 0.1.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from bench import report
from jaxacct.numerics.precision import scope
from jaxacct.prv import evolving

POINTS, CELLS = 8192, 1024

TRUTH = pathlib.Path(__file__).parents[2] / "tests" / "data" / "delta_truth.json"


def _directions(mechanism: Any) -> Any:
    pairs = mechanism.dominating_pairs()
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *pairs)


def epsilon_of(
    mechanism: Any,
    counts: Any,
    delta: Any,
    points: int = POINTS,
    cells: int = CELLS,
    method: evolving.Method = evolving.Method.RECURSIVE,
) -> Any:
    """Returns the lower and the upper bound (2,) on epsilon: of one mechanism, or of fields and counts (m,)."""
    counts = jnp.asarray(counts)
    is_sequence = counts.ndim > 0
    nats = jnp.log(jnp.maximum(jnp.sum(counts), 1.0)) - jnp.log(delta) + 12

    def of_direction(pair: Any) -> Any:
        atoms = lambda pair: pair.discretize(cells, nats)  # noqa: E731
        laws = jax.vmap(atoms)(pair) if is_sequence else jax.tree.map(lambda leaf: leaf[None], atoms(pair))
        found = evolving.compose(laws, jnp.atleast_1d(counts), points, log_delta=jnp.log(delta), method=method)
        return jnp.stack(evolving.bound_epsilon(found, delta))

    if is_sequence:
        rows = jax.vmap(lambda *fields: _directions(type(mechanism)(*fields)))(*vars(mechanism).values())
        stacked = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), rows)
    else:
        stacked = _directions(mechanism)
    return jnp.max(jax.vmap(of_direction)(stacked), 0)


def sampled(s: Any, q: Any, k: Any, delta: Any, **options: Any) -> Any:
    return epsilon_of(ja.PoissonSubsampledGaussian(s, q), k, delta, **options)


def settings(seed: int, *ends: tuple[float, float], whole: int) -> Iterator[list[float]]:
    """Yields numbers spread evenly by their logarithms, that at ``whole`` a whole number."""
    rng = np.random.default_rng(seed)
    while True:
        row = [math.exp(rng.uniform(math.log(low), math.log(high))) for low, high in ends]
        row[whole] = float(round(row[whole]))
        yield row


def compare(
    name: str, run: Callable[..., Any], truth: Callable[..., Any], rows: Iterator[Any], number: int
) -> dict[str, Any]:
    """Returns contradictions, and quantiles of the widths, over settings with an epsilon from 1e-3 to 10^3."""
    program = jax.jit(run)
    gaps, wrong, spent = [], 0, 0.0
    for row in rows:
        known = truth(*row)
        low, high = float(known.lower), float(known.upper)
        if not 1e-3 < high < 1e3:
            continue
        start = time.process_time()
        lower, upper = map(float, program(*map(jnp.asarray, row)))
        spent += time.process_time() - start
        if lower > high * (1 + 1e-12) or upper < low * (1 - 1e-12):
            wrong += 1
            print(f"{name}: {row} within {lower!r}, {upper!r}, not {low!r}, {high!r}")
        gaps.append((upper - lower) / upper if math.isfinite(upper) else 1.0)
        if len(gaps) == number:
            break
    quantiles = [float(v) for v in np.quantile(gaps, [0.5, 0.9, 0.95, 1.0])]
    shares = [float(np.mean(np.asarray(gaps) < most)) for most in (1e-3, 1e-2)]
    print(f"{name}: {number} settings, {wrong} wrong; widths at .5 .9 .95 1: {quantiles}; within 1e-3, 1e-2: {shares}")
    return {"settings": number, "wrong": wrong, "quantiles": quantiles, "within": shares, "seconds": spent}


def random() -> Any:
    rows = settings(0, (0.4, 8.0), (1e-4, 0.9), (1.0, 1e6), (1e-12, 0.1), whole=2)
    return compare(
        "random", sampled, lambda s, q, k, d: ja.epsilon(ja.PoissonSubsampledGaussian(s, q), k, d), rows, 300
    )


def hostile() -> Any:
    rows = settings(7, (0.3, 50.0), (1e-6, 1.0), (1.0, 1e8), (1e-40, 0.9), whole=2)
    return compare(
        "hostile", sampled, lambda s, q, k, d: ja.epsilon(ja.PoissonSubsampledGaussian(s, q), k, d), rows, 100
    )


def laplace() -> Any:
    rows = settings(5, (0.5, 100.0), (1.0, 1e4), (1e-10, 0.1), whole=1)
    run = lambda b, k, d: epsilon_of(ja.Laplace(b), k, d)  # noqa: E731
    return compare("laplace", run, lambda b, k, d: ja.epsilon(ja.Laplace(b), k, d), rows, 60)


def many(number: int = 40, size: int = 4) -> Any:
    rng = np.random.default_rng(3)

    def rows() -> Iterator[Any]:
        while True:
            s, q = (np.exp(rng.uniform(math.log(a), math.log(b), size)) for a, b in ((0.6, 6.0), (3e-4, 0.3)))
            yield (
                s,
                q,
                np.round(np.exp(rng.uniform(0, np.log(1e4), size))),
                math.exp(rng.uniform(math.log(1e-10), math.log(0.01))),
            )

    return compare(
        "many", sampled, lambda s, q, k, d: ja.epsilon(ja.PoissonSubsampledGaussian(s, q), k, d), rows(), number
    )


def oracle() -> Any:
    """Values of delta known to 160 bits."""

    def delta(s: Any, q: Any, k: Any, epsilon: Any, removes: Any) -> Any:
        pair = jax.tree.map(
            lambda *row: jnp.where(removes, *row), *ja.PoissonSubsampledGaussian(s, q).dominating_pairs()
        )
        laws = jax.tree.map(lambda leaf: leaf[None], pair.discretize(CELLS, jnp.log(k) + 100.0))
        found = evolving.compose(laws, k[None], POINTS, epsilon=epsilon)
        return jnp.stack(evolving.bound_delta(found, epsilon))

    program, wrong, gaps = jax.jit(delta), 0, []
    for row in json.loads(TRUTH.read_text()):
        given = row["sigma"], row["q"], float(row["k"]), row["eps"], row["direction"] == "remove"
        lower, upper = map(float, program(*map(jnp.asarray, given)))
        wrong += not lower <= row["delta"] * (1 + 1e-14) or not upper >= row["delta"] * (1 - 1e-14)
        gaps.append(math.log(upper / lower) if lower > 0 else math.inf)
    print(f"oracle: {len(gaps)} values, {wrong} outside; log of upper/lower delta at most {max(gaps):.2g}")
    return {"values": len(gaps), "wrong": wrong, "widest": max(gaps)}


def _timed(program: Callable[..., Any], *given: Any, repeats: int = 10) -> tuple[float, float, float]:
    """Returns both bounds and the CPU seconds of a warm call."""
    lower, upper = map(float, program(*given))
    start = time.process_time()
    for _ in range(repeats):
        jax.block_until_ready(program(*given))
    return lower, upper, (time.process_time() - start) / repeats


SIZES = ((1.0, 0.01, 1e4, 1e-5), (0.8, 0.005, 1e3, 1e-6), (2.0, 0.1, 1e3, 1e-8), (1.8, 1.5e-4, 94_275.0, 3.6e-5))


def sizes() -> Any:
    """Widths and warm seconds by points and cells."""
    rows = []
    for points, cells in (
        (1024, 512),
        (2048, 512),
        (4096, 1024),
        (8192, 1024),
        (8192, 4096),
        (32768, 4096),
        (131072, 4096),
    ):
        program = jax.jit(functools.partial(sampled, points=points, cells=cells))
        for setting in SIZES:
            lower, upper, seconds = _timed(program, *map(jnp.asarray, setting))
            gap = (upper - lower) / upper
            rows.append({"points": points, "cells": cells, "setting": setting, "gap": gap, "seconds": seconds})
            print(f"{points} points, {cells} cells, {setting}: gap {gap:.2e}, {seconds * 1e3:.1f} ms", flush=True)
    return rows


def growth() -> Any:
    """Widths and seconds against the steps at constant privacy, by choice of meshes."""
    rows = []
    for method in evolving.Method:
        program = jax.jit(functools.partial(sampled, method=method))
        for power in range(9):
            k = 10.0**power
            given = (1.0 * max(math.sqrt(k) / 100, 1.0), 0.01, k, 1e-5)
            lower, upper, seconds = _timed(program, *map(jnp.asarray, given), repeats=5)
            gap = (upper - lower) / upper if math.isfinite(upper) else math.inf
            rows.append({"method": method.value, "steps": k, "gap": gap, "seconds": seconds})
            print(
                f"{method.value}, {k:.0e} steps: {lower:.6g} to {upper:.6g}, gap {gap:.2e}, {seconds * 1e3:.1f} ms",
                flush=True,
            )
    return rows


def program() -> Any:
    """Lines of StableHLO, and CPU seconds to lower and to compile without a cache."""
    rows = {}
    numbers = [jnp.asarray(v) for v in (1.0, 0.01, 1e4, 1e-5)]
    fields = [jnp.full(100, float(v)) for v in numbers[:3]]
    law = jax.jit(lambda s, q: _directions(ja.PoissonSubsampledGaussian(s, q)))(*numbers[:2])
    atoms = jax.jit(jax.vmap(lambda pair: pair.discretize(CELLS, jnp.asarray(33.0))))
    laws = jax.tree.map(lambda leaf: leaf[:1], atoms(law))

    def composer(laws: Any, counts: Any, delta: Any) -> Any:
        found = evolving.compose(laws, counts, POINTS, log_delta=jnp.log(delta))
        return evolving.bound_epsilon(found, delta)

    cases: dict[str, tuple[Any, ...]] = {
        "law": (atoms, law),
        "composer": (jax.jit(composer), laws, numbers[2][None], numbers[3]),
        "both directions": (jax.jit(sampled), *numbers),
        "100 rows": (jax.jit(sampled), *fields, numbers[3]),
    }
    for name, (function, *given) in cases.items():
        start = time.process_time()
        lowered = function.lower(*given)
        middle = time.process_time()
        compiled = lowered.compile()
        end = time.process_time()
        jax.block_until_ready(compiled(*given))
        last = time.process_time()
        jax.block_until_ready([compiled(*given) for _ in range(10)])
        warm = (time.process_time() - last) / 10
        lines = lowered.as_text().count(" = ")
        rows[name] = {"lines": lines, "lower": middle - start, "compile": end - middle, "warm": warm}
        print(
            f"{name}: {lines} lines, lower {middle - start:.2f}, compile {end - middle:.2f} CPU s, {warm * 1e3:.1f} ms",
            flush=True,
        )
    return rows


STUDIES: dict[str, Callable[[], Any]] = {
    study.__name__: study for study in (program, oracle, sizes, growth, laplace, random, hostile, many)
}


def main() -> None:
    parser: argparse.ArgumentParser = report.arguments_of(__doc__)
    parser.add_argument("studies", nargs="*", choices=[[], *STUDIES])
    arguments = parser.parse_args()
    with scope():
        numbers = {name: STUDIES[name]() for name in arguments.studies or STUDIES}
    report.write(arguments.json, numbers)


if __name__ == "__main__":
    main()
