"""Random settings against brute force: enumerated compositions in 18 digits, closed forms and single steps in 30.

Every bracket has to hold its truth, for delta and for epsilon, with no allowance but the truth's own error.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import mpmath
import numpy as np
import pytest
from helpers.thorough import program

import jaxacct as ja

LONG = np.longdouble
UNIT = LONG(2) ** -62
POINTS = 512
MOST_RUNS = 10


def exact_sum(p: Any, q: Any, runs: Any, epsilon: Any) -> tuple[Any, Any]:
    """delta at epsilon (n,) of so many runs (n,) of pairs of few outcomes (n, k), and its error, by all multisets."""
    p, q, epsilon = LONG(p), LONG(q), LONG(epsilon)
    found, error = np.zeros(len(p), LONG), np.zeros(len(p), LONG)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        losses = np.where(q > 0, np.log(p) - np.log(q), np.inf)
        for count in np.unique(runs):
            at = runs == count
            for taken in itertools.product(range(count + 1), repeat=p.shape[1] - 1):
                if sum(taken) > count:
                    continue
                n = [*taken, count - sum(taken)]
                ways = math.factorial(count) // math.prod(map(math.factorial, n))
                mass = ways * np.prod([p[at, i] ** n[i] for i in range(len(n))], axis=0)
                loss = np.sum([n[i] * losses[at, i] for i in range(len(n)) if n[i]], axis=0)
                mass, loss = np.where(mass > 0, mass, 0), np.where(mass > 0, loss, -np.inf)
                found[at] += np.where(loss > epsilon[at], mass * -np.expm1(epsilon[at] - loss), 0)
                size = np.where(np.isfinite(loss), np.abs(loss), 0) + np.abs(epsilon[at])
                error[at] += np.where(loss > epsilon[at] - 1e-9, mass * (count + size + 8) * 8 * UNIT, 0)
    return found, error


def each(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A truth in 30 digits, (n,), from one of numbers; what rounds is the result."""

    def every(*columns: Any) -> tuple[Any, Any]:
        with mpmath.workdps(30):
            found = np.array([float(function(*map(mpmath.mpf, row))) for row in zip(*columns, strict=True)])
        return found, np.abs(found) * 2.0**-52 + 2.0**-1070

    return every


def of_gaussians(noise: Any, runs: Any, epsilon: Any) -> Any:
    mu = mpmath.sqrt(runs) / noise
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def of_removal(noise: Any, rate: Any, runs: Any, epsilon: Any) -> Any:
    """One step of a Poisson sample: (1 - q) N(0) + q N(1) against N(0), which gain above a threshold."""
    x = noise**2 * mpmath.log((mpmath.exp(epsilon) - 1 + rate) / rate) + mpmath.mpf(1) / 2
    gained = rate * mpmath.ncdf((1 - x) / noise)
    return gained + (1 - rate - mpmath.exp(epsilon)) * mpmath.ncdf(-x / noise)


def of_addition(noise: Any, rate: Any, runs: Any, epsilon: Any) -> Any:
    """N(0) against (1 - q) N(0) + q N(1), which gain below a threshold, where there is one."""
    share = (mpmath.exp(-epsilon) - 1 + rate) / rate
    if share <= 0:
        return mpmath.mpf(0)
    x = noise**2 * mpmath.log(share) + mpmath.mpf(1) / 2
    factor = mpmath.exp(epsilon)
    return (1 - factor * (1 - rate)) * mpmath.ncdf(x / noise) - factor * rate * mpmath.ncdf((x - 1) / noise)


def of_laplace(scale: Any, runs: Any, epsilon: Any) -> Any:
    return max(-mpmath.expm1((epsilon - 1 / scale) / 2), mpmath.mpf(0))


class Family(NamedTuple):
    """Random settings of one mechanism under one relation."""

    make: Callable[..., Any]
    """Fields to the mechanism."""
    relation: Any
    draw: Callable[[Any, int], tuple[Any, ...]]
    """A generator and a number of settings to columns of fields."""
    truth: Callable[..., tuple[Any, Any]]
    """Columns, runs and epsilons to deltas and their errors."""
    farthest: Callable[..., Any]
    """Columns and runs to an epsilon beyond which hardly anything is lost."""
    most_runs: int = MOST_RUNS


def masses(generator: Any, count: int) -> tuple[Any, ...]:
    """Pairs of three outcomes, in 1024ths, which floats hold exactly; some of them next to impossible."""
    cuts = generator.integers(1, 1024, size=(2, count, 2))
    shares = np.diff(np.sort(cuts, axis=-1), axis=-1, prepend=0, append=1024)
    return tuple(np.where(shares.min(axis=-1, keepdims=True) > 0, shares, [256, 256, 512]) / 1024)


def levels(generator: Any, count: int) -> tuple[Any, ...]:
    return (10 ** generator.uniform(-2, 0.5, count),)


def with_deltas(generator: Any, count: int) -> tuple[Any, ...]:
    return (*levels(generator, count), 10 ** generator.uniform(-9, -1, count))


def noises(generator: Any, count: int) -> tuple[Any, ...]:
    return (10 ** generator.uniform(-0.5, 1, count),)


def sampled(generator: Any, count: int) -> tuple[Any, ...]:
    return (*noises(generator, count), 10 ** generator.uniform(-3, -0.05, count))


def responses(epsilon: Any, outcomes: int) -> tuple[Any, Any]:
    ratio, one = np.exp(LONG(epsilon)), np.ones(len(epsilon), LONG)
    others = [one] * (outcomes - 2)
    p, q = np.stack([ratio, *others, one], -1), np.stack([one, *others, ratio], -1)
    return p / (ratio + outcomes - 1)[:, None], q / (ratio + outcomes - 1)[:, None]


def one_way(epsilon: Any, delta: Any) -> tuple[Any, Any]:
    """The worst pair of a guarantee of one direction: an infinite loss with probability delta, else epsilon surely."""
    kept, none = 1 - LONG(delta), np.zeros(len(epsilon), LONG)
    least = kept * np.exp(-LONG(epsilon))
    return np.stack([LONG(delta), kept, none], -1), np.stack([none, least, 1 - least], -1)


def both_ways(epsilon: Any, delta: Any) -> tuple[Any, Any]:
    """Kairouz, Oh and Viswanath (2015): an infinite loss with probability delta, else randomized response."""
    p, q = responses(epsilon, 2)
    kept, none = (1 - LONG(delta))[:, None], np.zeros((len(epsilon), 1), LONG)
    return np.hstack([LONG(delta)[:, None], kept * p, none]), np.hstack([none, kept * q, LONG(delta)[:, None]])


def largest(*pairs: tuple[Any, Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The larger of the pairs' deltas."""

    def truth(runs: Any, epsilon: Any) -> tuple[Any, Any]:
        every = [exact_sum(*pair, runs, epsilon) for pair in pairs]
        return tuple(np.maximum.reduce(part) for part in zip(*every, strict=True))

    return truth


def no_delta(epsilon: Any) -> Any:
    return np.zeros(len(epsilon))


def log_ratio(p: Any, q: Any, runs: Any) -> Any:
    return runs * np.max(np.abs(np.log(p / q)), axis=-1)


def times(epsilon: Any, *rest: Any) -> Any:
    return 1.1 * epsilon * rest[-1]


FAMILIES = {
    "pairs, both ways": Family(
        ja.DiscretePair, "add_or_remove", masses, lambda p, q, *at: largest((p, q), (q, p))(*at), log_ratio
    ),
    "pairs, removed": Family(ja.DiscretePair, "remove", masses, exact_sum, log_ratio),
    "pairs, added": Family(ja.DiscretePair, "add", masses, lambda p, q, *at: exact_sum(q, p, *at), log_ratio),
    "randomized response": Family(
        lambda e: ja.RandomizedResponse(e, outcomes=3), "replace", levels,
        lambda e, *at: exact_sum(*responses(e, 3), *at), times,
    ),
    "pure": Family(ja.PureDP, "add_or_remove", levels, lambda e, *at: exact_sum(*responses(e, 2), *at), times),
    "pure, one way": Family(
        ja.PureDP, "remove", levels, lambda e, *at: exact_sum(*one_way(e, no_delta(e)), *at), times
    ),
    "approximate": Family(
        ja.ApproximateDP, "replace", with_deltas, lambda e, d, *at: exact_sum(*both_ways(e, d), *at), times
    ),
    "approximate, one way": Family(
        ja.ApproximateDP, "add", with_deltas, lambda e, d, *at: exact_sum(*one_way(e, d), *at), times
    ),
    "gaussians": Family(
        ja.Gaussian, "add_or_remove", noises, each(of_gaussians), lambda s, k: k / (2 * s**2) + 5 * np.sqrt(k) / s, 1000
    ),
    "sampled, removed": Family(
        ja.PoissonSubsampledGaussian, "remove", sampled, each(of_removal),
        lambda s, q, k: np.log1p(q * np.expm1(np.minimum(0.5 / s**2 + 5 / s, 700))), 1,
    ),
    "sampled, added": Family(
        ja.PoissonSubsampledGaussian, "add", sampled, each(of_addition), lambda s, q, k: -np.log1p(-q), 1
    ),
    "laplace": Family(ja.Laplace, "add_or_remove", noises, each(of_laplace), lambda b, k: 1 / b, 1),
}  # fmt: skip


def violations(family: Family, settings: int, seed: int, eager: bool = False) -> list[Any]:
    """The settings whose truth lies outside of a bracket, by the question."""
    generator = np.random.default_rng(seed)
    columns = family.draw(generator, settings)
    runs = generator.integers(1, family.most_runs, settings, endpoint=True)
    epsilon = generator.uniform(0, 1, settings) * family.farthest(*columns, runs)
    truth, error = family.truth(*columns, runs, epsilon)
    # Deltas that are nobody's question, and that a float next to the truth is not the truth for, are left out.
    deltas = np.where(truth > 1e-14, truth, 1e-6).astype(np.float64)

    def asked(fields: Any, runs: Any, epsilon: Any, delta: Any) -> Any:
        # One run has closed forms, which a traced number of runs does not tell.
        mechanism, runs = family.make(*fields), 1 if family.most_runs == 1 else runs
        at_epsilon = ja.delta(mechanism, runs, epsilon, relation=family.relation, points=POINTS)
        at_delta = ja.epsilon(mechanism, runs, delta, relation=family.relation, points=POINTS)
        return at_epsilon.lower, at_epsilon.upper, at_delta.lower, at_delta.upper

    given = columns, runs.astype(np.float64), epsilon, deltas
    if eager:
        rows = [asked(*jax.tree.map(lambda column, i=i: column[i], given)) for i in range(settings)]
        low, high, least, most = map(np.array, zip(*rows, strict=True))
    else:
        with jax.enable_x64(True):
            low, high, least, most = map(np.asarray, program(jax.vmap(asked))(*given))
    wrong = (low > truth + error) | (high < truth - error) | ~(low <= high)
    # Epsilon at delta is the least one at which delta is no more: so delta is no more at the upper end, and no less at
    # a lower end above 0.
    at_most, error_most = family.truth(*columns, runs, np.where(np.isfinite(most), most, 0.0))
    at_least, error_least = family.truth(*columns, runs, least)
    wrong_epsilon = np.isfinite(most) & (at_most - error_most > deltas)
    wrong_epsilon |= ((least > 0) & (at_least + error_least < deltas)) | ~(least <= most)
    shown = [columns, runs, epsilon, truth, low, high, deltas, least, most]
    return [
        (kind, *jax.tree.map(lambda column, i=i: np.asarray(column[i], np.float64).tolist(), shown))
        for kind, found in (("delta", wrong), ("epsilon", wrong_epsilon))
        for i in np.flatnonzero(found)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["pure, one way", "pairs, removed"])
def test_a_few_settings_against_brute_force(name):
    assert not violations(FAMILIES[name], 12, 0, eager=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_random_settings_against_brute_force(name, record_property):
    settings, start = 840, time.process_time()
    wrong = violations(FAMILIES[name], settings, 1)
    record_property("settings, violations, CPU seconds", (settings, len(wrong), time.process_time() - start))
    print(f"{name}: {settings} settings, {len(wrong)} violations, {time.process_time() - start:.1f} CPU s")
    assert not wrong


def test_settings_are_ten_thousand():
    assert len(FAMILIES) * 840 >= 10_000
