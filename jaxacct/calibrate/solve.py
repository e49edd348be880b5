"""The compiled part: from a target to a certified setting of the subsampled Gaussian, or of a scaled schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import saddlepoint
from jaxacct.batching import one_by_one
from jaxacct.bounds import Bounds
from jaxacct.calibrate.guess import Guess, gaussian_mu, gaussian_order, guess
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.search import MOST_STEPS, Found, search
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.precision import TINY, UNIT_ROUNDOFF, as_float64, in_float64
from jaxacct.prv.composition import directed_parts
from jaxacct.saddlepoint.contour import total
from jaxacct.saddlepoint.laws import has_law
from jaxacct.saddlepoint.solve import scanned

NOISES = (1e-2, 1e15)
"""Noise multipliers searched: the least costs an epsilon of 5,000 a full step, the largest suits delta = 1e-15."""

LEAST_RATE = 1e-12
"""Least sampling rate searched."""

SCALES = 33
"""Scales at which a schedule's variance is looked at for a start."""


class Config(NamedTuple):
    """What is static about a search: which argument is looked for, what is compared, and how closely."""

    unknown: str
    quantity: str
    relation: str
    tolerance: float


class Given(NamedTuple):
    """The numbers of a target, float64 (); the one that is looked for holds anything."""

    epsilon: Any
    delta: Any
    noise_multiplier: Any
    sampling_rate: Any
    steps: Any


ENDS: dict[str, tuple[float, float]] = {
    "noise_multiplier": (float(np.log(NOISES[0])), float(np.log(NOISES[1]))),
    "sampling_rate": (0.0, float(-np.log(LEAST_RATE))),
    "steps": (float(-np.log(MOST_STEPS)), 0.0),
}
"""Smallest and largest u, as of :mod:`.search`, for each argument that may be looked for."""


def value_of(unknown: str, setting: Any) -> Any:
    """Returns the value of a setting u."""
    if unknown in ("noise_multiplier", "scale"):
        return jnp.exp(setting)
    return jnp.round(jnp.exp(-setting)) if unknown == "steps" else jnp.exp(-setting)


def composition(unknown: str, given: Given, value: Any) -> tuple[PoissonSubsampledGaussian, Any]:
    """Returns mechanism and steps with ``value`` put in for what is looked for."""
    whole = given._replace(**{unknown: value})
    return PoissonSubsampledGaussian(whole.noise_multiplier, whole.sampling_rate), whole.steps


@in_float64
def calibrated(config: Config, given: Given) -> tuple[Calibrated, Array]:
    """Returns the result of one target, and the setting u that was guessed."""
    solve = one_by_one(in_float64(functools.partial(_calibrated, config)))
    return solve(Given(*(jnp.asarray(number, jnp.float64) for number in given)))


@functools.partial(jax.jit, static_argnums=0)
def _calibrated(config: Config, given: Given) -> tuple[Calibrated, Array]:
    unknown, relation = config.unknown, config.relation
    ends = ENDS[unknown]
    start = gaussian_start(unknown, given)

    def parts_at(setting: Array) -> Any:
        value = jnp.exp(setting) if unknown == "noise_multiplier" else jnp.exp(-setting)
        mechanism, steps = composition(unknown, given, value)
        return directed_parts(mechanism, steps, relation)[0]

    def evaluate(value: Array) -> Bounds:
        return bounds_of(config.quantity, *composition(unknown, given, value), given, relation)

    if all(has_law(pair) for pair, _ in parts_at(start.setting)):
        start = guess(parts_at, start, given.epsilon, jnp.log(given.delta), ends)
        result = graded(config, searched(config, evaluate, start, given, ends), ends)
    else:
        result = unanswered(config, start.setting)
    if unknown == "noise_multiplier":
        result = _without_noise(config, given, result)
    return result, start.setting


def bounds_of(quantity: str, mechanism: Any, steps: Any, given: Given, relation: str) -> Bounds:
    """Returns the exact accountant's bounds on what is budgeted."""
    if quantity == "epsilon":
        return saddlepoint.epsilon(mechanism, steps, given.delta, relation=relation)
    return saddlepoint.delta(mechanism, steps, given.epsilon, relation=relation)


def searched(
    config: Config, evaluate: Callable[[Array], Bounds], near: Guess, given: Given, ends: tuple[Any, Any]
) -> Found:
    """Returns what the search from a guess found."""
    is_epsilon = config.quantity == "epsilon"
    # Half the tolerance on the safe side: where the guess is that good, one evaluation will do.
    return search(
        evaluate,
        functools.partial(value_of, config.unknown),
        near.setting + 0.5 * config.tolerance,
        near.slope / (near.order * given.epsilon) if is_epsilon else near.slope,
        near.settled,
        given.epsilon if is_epsilon else given.delta,
        ends=(as_float64(ends[0]), as_float64(ends[1])),
        tolerance=config.tolerance,
        largest=jnp.inf if is_epsilon else 1.0,
        whole=config.unknown == "steps",
    )


def graded(config: Config, found: Found, ends: tuple[Any, Any]) -> Calibrated:
    """Returns the result with its status."""
    passed = jnp.isfinite(found.setting)
    # Whole steps are the best there are up to one; half of one more is what the bounds may blur.
    close = found.distance <= config.tolerance + (1 / found.value if config.unknown == "steps" else 0.0)
    status = jnp.where(close, Status.CONVERGED, Status.LOOSE)
    status = jnp.where(found.setting <= ends[0], Status.NOT_BINDING, status)
    status = jnp.where(passed, status, jnp.where(found.refuted, Status.INFEASIBLE, Status.UNKNOWN))
    return Calibrated(value=found.value, reached=found.reached, status=status.astype(jnp.int32))


def unanswered(config: Config, like: Array) -> Calibrated:
    """Returns the result for mechanisms that the exact accountant does not know."""
    nothing = jnp.full_like(like, jnp.inf)
    bounds = Bounds(jnp.zeros_like(like), jnp.full_like(like, jnp.nan), nothing, jnp.zeros(like.shape, bool))
    return Calibrated(value_of(config.unknown, nothing), bounds, jnp.asarray(Status.UNKNOWN, jnp.int32))


def gaussian_start(unknown: str, given: Given) -> Guess:
    """Returns the setting by the central limit: mu = q sqrt(k (e^(1/s^2) - 1)) (Bu et al. 2020, Theorem 5)."""
    s, q, k = given.noise_multiplier, given.sampling_rate, given.steps
    mu = gaussian_mu(given.epsilon, given.delta)
    if unknown == "noise_multiplier":
        setting = -0.5 * jnp.log(jnp.log1p((mu / q) ** 2 / k))
    elif unknown == "sampling_rate":
        setting = 0.5 * jnp.log(k * jnp.expm1(jnp.minimum(1 / s**2, 700.0))) - jnp.log(mu)
    else:
        setting = jnp.log(q**2 * jnp.expm1(jnp.minimum(1 / s**2, 700.0))) - 2 * jnp.log(mu)
    return started(jnp.clip(setting, *ENDS[unknown]), mu, given.epsilon)


def started(setting: Array, mu: Array, epsilon: Array) -> Guess:
    """Returns the guess that a setting with mu-GDP makes."""
    order = gaussian_order(epsilon, mu)
    return Guess(setting, order, -(order**2) * mu**2, jnp.zeros(setting.shape, bool))


def _without_noise(config: Config, given: Given, result: Calibrated) -> Calibrated:
    """Returns no noise at all where delta pays for every run that the example is in.

    Otherwise nothing of it is released: the total variation distance is at most 1 - (1 - q)^k, at any epsilon.
    """
    q, k = given.sampling_rate, given.steps
    sampled = -jnp.expm1(k * jnp.log1p(-jnp.minimum(q, 1 - UNIT_ROUNDOFF))) * (1 + 64 * UNIT_ROUNDOFF)
    sampled = jnp.where(k == 0, 0.0, jnp.where(q < 1, sampled, 1.0))
    valid = (k >= 0) & (q > 0) & (q <= 1) & (given.epsilon >= 0) & (given.delta > 0) & (given.delta < 1)
    free = valid & (sampled <= given.delta)
    level = jnp.zeros_like(sampled) if config.quantity == "epsilon" else jnp.maximum(sampled, TINY * (k > 0))
    bounds = Bounds(lower=0.0 * level, estimate=level, upper=level, converged=free)
    better = Calibrated(jnp.zeros_like(level), bounds, jnp.asarray(Status.NOT_BINDING, jnp.int32))
    return jax.tree.map(lambda new, old: jnp.where(free, new, old), better, result)


@in_float64
@functools.partial(jax.jit, static_argnums=(0, 1))
def scaled(
    config: Config, make: Callable[[Array], Any], given: Given, steps: Any, ends: tuple[Array, Array]
) -> tuple[Calibrated, Array]:
    """Returns the result for the least scale of ``make``, and the setting that was guessed."""

    def parts_at(setting: Array) -> Any:
        return directed_parts(make(jnp.exp(setting)), steps, config.relation)[0]

    low, high = ends
    if not all(has_law(pair) for pair, _ in parts_at(low)):
        return unanswered(config, low), (low + high) / 2
    mu = gaussian_mu(given.epsilon, given.delta)

    def spread(setting: Array) -> Array:
        """Returns the standard deviation of the losses' sum, tilted hardly at all: the mu of the central limit."""
        parts = parts_at(setting)
        return jnp.sqrt(total(parts, scanned(parts), jnp.asarray(1e-3)).curvature)

    settings = jnp.linspace(low, high, SCALES)
    distances = jnp.abs(jnp.log(jax.lax.map(spread, settings)) - jnp.log(mu))
    distances = jnp.where(jnp.isnan(distances), jnp.inf, distances)
    setting = jnp.min(jnp.where(distances == jnp.min(distances), settings, jnp.inf))
    near = guess(parts_at, started(setting, mu, given.epsilon), given.epsilon, jnp.log(given.delta), ends)

    def evaluate(scale: Array) -> Bounds:
        return bounds_of(config.quantity, make(scale), steps, given, config.relation)

    return graded(config, searched(config, evaluate, near, given, ends), ends), near.setting
