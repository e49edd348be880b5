"""The library's brackets beside brute force, on 10,000 random settings: ``python -m bench.studies.brute [--each N]``.

Brute force is one page of NumPy that shares nothing with the library: the law of a loss is put on a fine grid twice,
every loss moved up to the next point and down to the last one, composed by one Fourier transform, and read off. What
that says from above and from below holds the truth, but for the rounding of the transform, for which 1e-11 of delta is
allowed. For each kind of mechanism N settings are asked in one call, traced with all their fields as numbers, and some
of them eagerly besides. Printed: how many brackets touch that of brute force, and how many do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy.special import ndtr

import jaxacct as ja

POINTS, ROUNDING, EAGER = 2**17, 1e-11, 25
Law = tuple[Callable[[np.ndarray], np.ndarray], float, float]
"""P(Y <= y) of the finite losses Y under P, and between which two numbers all but 1e-15 of them lie."""


def gaussian(s: float) -> Law:
    """Plain Gaussian noise."""
    return (lambda y: ndtr(y * s - 1 / (2 * s))), 1 / (2 * s * s) - 9 / s, 1 / (2 * s * s) + 9 / s


def poisson(s: float, q: float, removes: bool) -> Law:
    """Gaussian noise on a Poisson sample, one direction."""
    least = np.log1p(-q)

    def place(y: np.ndarray) -> np.ndarray:  # at which outcome log of the likelihood ratio is y
        ratio = (np.exp(np.minimum(y, 700.0)) - (1 - q)) / q
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(ratio > 0, s * s * np.log(np.maximum(ratio, 1e-300)) + 0.5, -np.inf)

    def ratio_at(x: float) -> float:
        return float(np.logaddexp(least, np.log(q) + (2 * x - 1) / (2 * s * s)))

    if removes:
        law = lambda y: (1 - q) * ndtr(place(y) / s) + q * ndtr((place(y) - 1) / s)  # noqa: E731
        return law, ratio_at(-9 * s), ratio_at(1 + 9 * s)
    return (lambda y: ndtr(-place(-y) / s)), -ratio_at(9 * s), -ratio_at(-9 * s)


def laplace(b: float, q: float, removes: bool) -> Law:
    """Laplace noise on a Poisson sample; plain for q = 1."""

    def below(x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2)

    top, bottom = np.log1p(q * np.expm1(1 / b)), np.log1p(q * np.expm1(-1 / b))

    def place(y: np.ndarray) -> np.ndarray:
        plain = np.log((np.exp(np.clip(y, bottom, top)) - (1 - q)) / q)
        return np.clip((plain * b + 1) / 2, 0, 1)

    if removes:

        def law(y: np.ndarray) -> np.ndarray:
            x = place(y)
            found = (1 - q) * below(x / b) + q * below((x - 1) / b)
            return np.where(y < bottom, 0.0, np.where(y >= top, 1.0, found))

        return law, bottom, top
    return (lambda y: np.where(y < -top, 0.0, np.where(y >= -bottom, 1.0, 1 - below(place(-y) / b)))), -top, -bottom


def atoms(losses: np.ndarray, masses: np.ndarray) -> Law:
    """Finitely many losses."""
    order = np.argsort(losses)
    total = np.concatenate([[0.0], np.cumsum(masses[order])])
    return (lambda y: total[np.searchsorted(losses[order], y, side="right")]), float(min(losses)), float(max(losses))


def deltas(law: Law, runs: int, epsilon: float, infinite: float = 0.0) -> tuple[float, float]:
    """Returns delta from below and from above."""
    cdf, low, high = law
    width = max(high - low, 1e-9)
    # The sum's bulk, many deviations of it to both sides: what wraps around is below the rounding allowed.
    sample = np.linspace(low, high, 4097)
    masses = np.diff(cdf(sample), prepend=0.0)
    mean = runs * np.sum(sample * masses)
    deviation = np.sqrt(runs * max(np.sum(sample**2 * masses) - (mean / runs) ** 2, 1e-12))
    reach = min(runs * width, 16 * deviation + 6 * width) + width
    step = 2 * reach / POINTS
    first = np.floor((low - step) / step)
    grid = step * (first + np.arange(int(np.ceil((high - low) / step)) + 4))
    mass = np.diff(cdf(grid))  # between each point and the next
    found = []
    for up in (0, 1):
        placed = np.zeros(POINTS)
        indices = (first + up + np.arange(len(mass))).astype(int)
        np.add.at(placed, indices % POINTS, mass)
        total = np.fft.irfft(np.fft.rfft(placed) ** runs, POINTS)
        # Index j stands for all losses step * (j + POINTS m): of those the one nearest to the mean.
        centre = np.round((mean / step - np.arange(POINTS)) / POINTS)
        losses = step * (np.arange(POINTS) + POINTS * centre)
        over = losses > epsilon
        finite = np.sum(np.maximum(total[over], 0) * -np.expm1(epsilon - losses[over]))
        missing = max(1 - cdf(np.array([grid[-1]]))[0], 0) * runs * up
        none = (1 - infinite) ** runs
        found.append(min((1 - none) + none * finite + missing, 1.0))
    return found[0], found[1]


Setting = dict[str, float]


def kinds() -> dict[str, tuple[Any, Callable[[np.random.Generator], Setting], Callable[..., list[Law]], Any]]:
    """Returns for each kind how it is made, drawn, and stated by brute force, and its mass of infinite losses."""

    def log(low: float, high: float) -> Callable[[np.random.Generator], float]:
        return lambda r: float(np.exp(r.uniform(np.log(low), np.log(high))))

    def drawn(**fields: Callable[[np.random.Generator], float]) -> Callable[[np.random.Generator], Setting]:
        return lambda r: {name: draw(r) for name, draw in fields.items()}

    def both(make: Callable[..., Law]) -> Callable[..., list[Law]]:
        return lambda *fields: [make(*fields, True), make(*fields, False)]

    def response(e: float) -> list[Law]:
        return [atoms(np.array([e, -e]), np.array([1, np.exp(-e)]) / (1 + np.exp(-e)))]

    def geometric(b: float) -> list[Law]:
        places = np.arange(-4000, 4001)
        p = np.exp(-np.abs(places - 1) / b) * np.tanh(1 / (2 * b))
        return [atoms((np.abs(places) - np.abs(places - 1)) / b, p)]

    def three(e: float) -> list[Law]:
        total = np.exp(e) + 2
        return [atoms(np.array([e, 0, -e]), np.array([np.exp(e), 1, 1]) / total)]

    def normal(s: float) -> list[Law]:
        return [gaussian(s)]

    return {
        "Gaussian": (ja.Gaussian, drawn(s=log(0.6, 30)), normal, None),
        "Poisson Gaussian": (ja.PoissonSubsampledGaussian, drawn(s=log(0.6, 8), q=log(1e-3, 0.5)), both(poisson), None),
        "Laplace": (ja.Laplace, drawn(b=log(0.5, 30)), lambda b: [laplace(b, 1 - 1e-16, True)], None),
        "Poisson Laplace": (ja.PoissonSubsampledLaplace, drawn(b=log(0.5, 10), q=log(1e-2, 0.5)), both(laplace), None),
        "PureDP": (ja.PureDP, drawn(e=log(0.01, 2)), response, None),
        "ApproximateDP": (
            ja.ApproximateDP, drawn(e=log(0.01, 2), d=log(1e-8, 1e-4)), lambda e, _: response(e), lambda _, d: d
        ),
        "RandomizedResponse": (lambda e: ja.RandomizedResponse(e, 3), drawn(e=log(0.01, 2)), three, None),
        "DiscreteLaplace": (ja.DiscreteLaplace, drawn(b=log(0.6, 20)), geometric, None),
        "one epoch in one batch": (
            lambda s: ja.RandomAllocation(s, 1.0, points=64), drawn(s=log(0.6, 30)), normal, None
        ),
        "one epoch in both batches": (
            lambda s: ja.RandomAllocation(s, 2.0, points=64, participations=2), drawn(s=log(0.8, 30)),
            lambda s: [gaussian(s / np.sqrt(2))], None,
        ),
    }  # fmt: skip


def main() -> int:
    """Compares, and returns 1 where a bracket and brute force exclude each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=1000, help="settings of each of the ten kinds")
    each, random, violations, compared = parser.parse_args().each, np.random.default_rng(11), 0, 0
    for name, (make, draw, laws, infinite) in kinds().items():
        fields = [draw(random) for _ in range(each)]
        runs = np.round(np.exp(random.uniform(0, np.log(300), each)))
        if name.startswith("one epoch"):
            runs = np.where(random.uniform(size=each) < 0.5, 1.0, np.minimum(runs, 20))
        given = np.exp(random.uniform(np.log(0.1), np.log(6), each))
        columns = [np.array([field[key] for field in fields]) for key in fields[0]]

        def asked(columns: Any, count: Any, epsilon: Any, make: Any = make) -> Any:
            return ja.saddlepoint.delta(make(*columns), count, epsilon)

        with jax.enable_x64(True):
            found = jax.jit(jax.vmap(asked))(columns, runs, given)
        lower, upper = np.asarray(found.lower), np.asarray(found.upper)
        wrong, told = [], 0
        for i, field in enumerate(fields):
            mass = 0.0 if infinite is None else infinite(*field.values())
            pairs = [deltas(law, int(runs[i]), given[i], mass) for law in laws(*field.values())]
            least, most = (max(pair[side] for pair in pairs) for side in (0, 1))
            brackets = [(lower[i], upper[i])]
            if i < EAGER:
                eager = ja.delta(make(*field.values()), int(runs[i]), given[i])
                brackets.append((float(eager.lower), float(eager.upper)))
            for low, high in brackets:
                told += 1
                if not (low <= most + ROUNDING and least - ROUNDING <= high):
                    wrong.append((field, runs[i], given[i], (low, high), (least, most)))
        compared, violations = compared + told, violations + len(wrong)
        print(f"{name:28s} {told} brackets, {np.sum(upper < 1)} traced ones below 1, {len(wrong)} wrong", flush=True)
        for case in wrong[:3]:
            print("   ", *case)
    print(f"{compared} brackets of {10 * each} settings beside brute force: {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
