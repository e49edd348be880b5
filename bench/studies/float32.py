"""The accountants in float32, on a CPU, beside float64; and with functions as wrong as those of a device.

Run: python -m bench.studies.float32 --settings 10000 --seed 0 --json bench/results/float32.json [KIND ...]

Settings are random numbers of float32, log-uniform, so that both arithmetics are asked about the same. A violation is a
bracket that does not meet float64's, a Rényi curve or an epsilon by curves that is below float64's before that was
raised: none may be. Widths are relative to float64's upper end, of settings where that is known to 1e-5 of itself.

With ``--wrong NAME`` a function is off by what JAX publishes of a TPU v5e, which has to be seen, by violations. Bounds
in a unit that is 32 times too small are seen by tests/saddlepoint/test_centred_sums.py: searches need not end there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import jaxacct as ja
from bench import report
from jaxacct.numerics import float32
from jaxacct.numerics.programs import by_float32

NOISE, RATE, STEPS, DELTA, EPSILON = (0.5, 8.0), (1e-4, 1.0), (1.0, 1e6), (1e-12, 1e-3), (0.05, 10.0)
"""Ends between which settings are drawn."""

Setting = tuple[Any, Any, Any, Any]


def _sampled(noise: Any, rate: Any) -> ja.Mechanism:
    return ja.PoissonSubsampledGaussian(noise, rate)


KINDS: dict[str, tuple[tuple[float, float], Callable[..., Any]]] = {
    "sampled Gaussian": (DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon(_sampled(s, q), k, d)),
    "sampled Gaussian, delta": (EPSILON, lambda s, q, k, e: ja.saddlepoint.delta(_sampled(s, q), k, e)),
    "sampled Gaussian, added": (
        DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon(_sampled(s, q), k, d, relation="add")
    ),
    "two sampled Gaussians": (
        DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon((_sampled(s, q), _sampled(2 * s, q)), (k, k), d)
    ),
    "Gaussian and a sampled one": (
        DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon((ja.Gaussian(4 * s), _sampled(s, q)), (4, k), d)
    ),
    "Gaussian": (DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon(ja.Gaussian(10 * s), k, d)),
    "Gaussian, delta": (EPSILON, lambda s, q, k, e: ja.saddlepoint.delta(ja.Gaussian(10 * s), k, e)),
    "one sampled Gaussian": (DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon(_sampled(s, q), 1, d)),
    "one sampled Gaussian, added": (
        EPSILON, lambda s, q, k, e: ja.saddlepoint.delta(_sampled(s, q), 1, e, relation="add")
    ),
    "one Laplace": (EPSILON, lambda s, q, k, e: ja.saddlepoint.delta(ja.Laplace(s), 1, e / 4)),
    "one sampled Laplace": (DELTA, lambda s, q, k, d: ja.saddlepoint.epsilon(ja.PoissonSubsampledLaplace(s, q), 1, d)),
    "one randomized response": (
        EPSILON, lambda s, q, k, e: ja.saddlepoint.delta(ja.RandomizedResponse(s, outcomes=3), 1, e / 2)
    ),
    "one approximate DP": (EPSILON, lambda s, q, k, e: ja.saddlepoint.delta(ja.ApproximateDP(s, q / 2), 1, e / 2)),
    "top level": (DELTA, lambda s, q, k, d: ja.epsilon(_sampled(s, q), k, d)),
    "top level, delta": (EPSILON, lambda s, q, k, e: ja.delta(_sampled(s, q), k, e)),
    "Rényi curves": (DELTA, lambda s, q, k, d: ja.rdp.epsilon(_sampled(s, q), k, d)),
    "Rényi curves, added": (DELTA, lambda s, q, k, d: ja.rdp.epsilon(_sampled(s, q), k, d, relation="add")),
    "Rényi curves of Laplace": (DELTA, lambda s, q, k, d: ja.rdp.epsilon(ja.PoissonSubsampledLaplace(s, q), k, d)),
}  # fmt: skip
"""Kinds of settings: ends of the number asked, and the question, of noise, rate, steps and that number."""


def settings_of(kind: str, count: int, seed: int) -> np.ndarray:
    """Returns settings (count, 4), float32 numbers."""
    random = np.random.default_rng([seed, *map(ord, kind)])
    low, high = np.log(np.array([NOISE, RATE, STEPS, KINDS[kind][0]]).T)
    rows = np.exp(random.uniform(low, high, (count, 4)))
    rows[:, 2] = np.floor(rows[:, 2])
    return rows.astype(np.float32)


def ends_of(found: Any) -> Any:
    """Returns the two ends of a bracket; an upper bound alone is one with the end 0."""
    if isinstance(found, ja.Bounds):
        return jnp.stack([jnp.asarray(found.lower), jnp.asarray(found.upper)])
    return jnp.stack([jnp.zeros_like(found), found])


def brackets(kind: str, rows: np.ndarray, narrow: bool) -> np.ndarray:
    """Returns brackets (n, 2), in float32 or in float64, one setting after the other, by one program."""

    def ask(row: Any) -> Any:
        return ends_of(KINDS[kind][1](*row))

    def one(row: Any) -> Any:
        return by_float32(ask, row, result=jax.ShapeDtypeStruct((2,), np.float64)) if narrow else ask(row)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda rows: jax.lax.map(one, rows))(rows.astype(np.float64)))


def compared(kind: str, found: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Returns what is to be said of brackets beside float64's."""
    (low, high), (least, most) = found.T, truth.T
    if kind.startswith("Rényi"):
        # Float64's own bounds are raised by 1e-10 for the rule, float32's by as much: below that none may be.
        least, known = most * (1 - 1e-9), most < np.inf
    else:
        known = (least > 0) & (most - least < 1e-5 * most)
    wrong = (low > most * (1 + 1e-12)) | (high < least * (1 - 1e-12)) | np.isnan(low) | np.isnan(high)
    width = np.sort(((high - (least if kind.startswith("Rényi") else low)) / most)[known])
    place = {name: float(width[int(share * (len(width) - 1))]) for name, share in (("median", 0.5), ("90 %", 0.9))}
    return {
        "settings": len(low),
        "violations": int(np.sum(wrong)),
        "known": int(np.sum(known)),
        **place,
        "within 1e-3": float(np.mean(width <= 1e-3)),
        "within 1e-2": float(np.mean(width <= 1e-2)),
        "upper end inf or 1": int(np.sum((high >= 1) if "delta" in kind else np.isinf(high))),
    }


OFF = {"exp": 116, "expm1": 1772, "log": 4030, "log1p": 4034}
"""Functions of a TPU v5e, and the units in the last place by which JAX says that they are off."""


@contextmanager
def wrong(name: str) -> Iterator[None]:
    """While it lasts, a function is wrong."""
    rule, factor = float32.RULES[name], np.float32(1 + OFF[name] * 2.0**-23)
    float32.RULES[name] = lambda params, *args: rule(params, *args) * factor
    try:
        yield
    finally:
        float32.RULES[name] = rule


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=[], help="; ".join(KINDS))
    parser.add_argument("--settings", type=int, default=10_000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", choices=OFF, help="what is to be seen as wrong")
    arguments = parser.parse_args()
    console, records = Console(width=140), {}
    kinds = arguments.kinds or [*KINDS]
    for kind in kinds:
        rows = settings_of(kind, arguments.settings // len(kinds), arguments.seed)
        start = time.process_time()
        truth = brackets(kind, rows, narrow=False)
        if arguments.wrong:
            with wrong(arguments.wrong):
                found = brackets(kind, rows, narrow=True)
        else:
            found = brackets(kind, rows, narrow=True)
        records[kind] = compared(kind, found, truth)
        console.print(kind, records[kind], f"{time.process_time() - start:.0f} CPU s")
        report.write(arguments.json, {"seed": arguments.seed, "wrong": arguments.wrong, "kinds": records})
    console.print("violations:", sum(record["violations"] for record in records.values()))


if __name__ == "__main__":
    main()
