"""The compiled part: from a target to a certified setting of the subsampled Gaussian, or of a scaled schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import FLOAT64, arithmetic, roundoff
from jaxacct.bounds import Bounds
from jaxacct.by_work import where_needed
from jaxacct.calibrate.guess import Guess, gaussian_mu, guess
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.search import MOST_STEPS, Aim, Found, Seen, search
from jaxacct.composition import Parts, directed_parts
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.precision import (
    TINY,
    as_float64,
    in_float64,
    in_float64_by_programs,
    is_concrete,
    log_complement,
    outside,
    representable,
)
from jaxacct.programs import compiled
from jaxacct.question import ForDelta, ForEpsilon, Kind, Question
from jaxacct.question import unknown as unknown_of
from jaxacct.saddlepoint.accountant import answer
from jaxacct.saddlepoint.search import gaussian_order
from jaxacct.saddlepoint.sums import scanned, total

NOISES = (1e-2, 1e15)
"""Noise multipliers searched: the least costs an epsilon of 5,000 a full step, the largest suits delta = 1e-15."""

LEAST_RATE = 1e-12
"""Least sampling rate searched."""

WIDTH = 64
"""Lanes of a batch that are asked a question side by side, where not all of them are."""

SCALES = 33
"""Scales at which a schedule's variance is looked at for a start."""


class Config(NamedTuple):
    """What is static about a search: which argument is looked for, what is budgeted, and how closely."""

    unknown: str
    budget: Kind
    relation: Relation
    tolerance: float


class Given(NamedTuple):
    """The numbers of a target, float64 (); the one that is looked for holds anything."""

    epsilon: Any
    delta: Any
    noise_multiplier: Any
    sampling_rate: Any
    steps: Any

    def asked(self, budget: Kind) -> Question:
        """Returns the question whose answer is budgeted."""
        return budget(self.delta if budget is ForEpsilon else self.epsilon)

    def allowed(self, budget: Kind) -> Any:
        """Returns the budget."""
        return self.epsilon if budget is ForEpsilon else self.delta


ENDS: dict[str, tuple[float, float]] = {
    "noise_multiplier": (float(np.log(NOISES[0])), float(np.log(NOISES[1]))),
    "sampling_rate": (0.0, float(-np.log(LEAST_RATE))),
    "steps": (float(-np.log(MOST_STEPS)), 0.0),
}
"""Smallest and largest u, as of :mod:`.search`, for each argument that may be looked for."""


def composition(unknown: str, given: Given, value: Any) -> tuple[PoissonSubsampledGaussian, Any]:
    """Returns mechanism and steps with ``value`` put in for what is looked for."""
    whole = given._replace(**{unknown: value})
    return PoissonSubsampledGaussian(whole.noise_multiplier, whole.sampling_rate), whole.steps


def aimed(config: Config, given: Given, ends: tuple[Any, Any]) -> Aim:
    """Returns what the search is for: delta at the epsilon of the budget, whichever of them is reported.

    It falls smoothly in u for every epsilon. Epsilon at a delta does not: it is 0 from some setting on, and what is at
    0 does not tell how far that setting is.
    """
    return Aim(
        target=given.delta,
        least=np.asarray(ends[0], np.float64) if is_concrete(ends) else as_float64(ends[0]),
        most=np.asarray(ends[1], np.float64) if is_concrete(ends) else as_float64(ends[1]),
        tolerance=np.float64(config.tolerance),
        rises=np.bool_(config.unknown in ("noise_multiplier", "scale")),
        whole=np.bool_(config.unknown == "steps"),
        reports=np.bool_(config.budget is ForEpsilon),
    )


@in_float64(by_programs=True)
def calibrated(config: Config, given: Given) -> tuple[Calibrated, Array]:
    """Returns the result of one target, and the setting u that was guessed.

    Two programs serve all concrete targets, whatever is looked for and budgeted: one guesses and one searches. Inside a
    trace all is one program.
    """
    if is_concrete(given):
        return _calibrated(config, Given(*(np.asarray(number, np.float64) for number in given)))
    return _calibrated_traced(config, Given(*map(as_float64, given)))


def _calibrated(config: Config, given: Given) -> tuple[Calibrated, Array]:
    unknown = np.asarray([config.unknown == name for name in ENDS])
    aim = aimed(config, given, ENDS[config.unknown])
    near = _guessed(config.relation, unknown, given, aim)
    found = outside(_answered(config.relation, unknown, given, aim, near))
    if config.budget is ForEpsilon:
        found = with_epsilon(found, found.reached, given.epsilon)
    return _with_covered(config.budget, unknown, given, found), near.setting


_calibrated_traced = jax.jit(_calibrated, static_argnums=0)


@compiled(static=("relation",))
def _guessed(relation: Relation, unknown: Any, given: Given, aim: Aim) -> Guess:
    """Returns the guess; ``unknown`` (3,) tells which argument is looked for, in the order of ENDS."""
    start, ends = gaussian_start(unknown, given), (jnp.asarray(aim.least), jnp.asarray(aim.most))

    def parts_at(of_lane: Any, setting: Array) -> Parts:
        unknown, given, rises = of_lane
        # Not with ``aim.value``: a whole number of steps has no derivative.
        value = jnp.where(rises, jnp.exp(setting), jnp.exp(-setting))
        return directed_parts(*_composition(unknown, given, value), relation)[0]

    return guess(parts_at, (unknown, given, aim.rises), start, given.epsilon, jnp.log(given.delta), ends)


@compiled(static=("relation",))
def _answered(relation: Relation, unknown: Array, given: Given, aim: Aim, near: Guess) -> Calibrated:
    def run_at(of_lane: tuple[Array, Given], value: Array) -> tuple[PoissonSubsampledGaussian, Any]:
        unknown, given = of_lane
        return _composition(unknown, given, value)

    return graded(aim, searched(run_at, (unknown, given), given, relation, near, aim))


@in_float64_by_programs
@compiled
def with_epsilon(result: Calibrated, bounds: Bounds, epsilon: Array) -> Calibrated:
    """Returns the result with bounds on epsilon reached: at most the budget's, where its delta has been certified."""
    upper = jnp.where(result.satisfied, jnp.minimum(bounds.upper, epsilon), jnp.inf)
    lower = jnp.minimum(bounds.lower, upper)
    estimate = jnp.clip(bounds.estimate, lower, upper)
    return Calibrated(result.value, Bounds(lower, estimate, upper, bounds.converged), result.status)


def _composition(unknown: Any, given: Given, value: Any) -> tuple[PoissonSubsampledGaussian, Any]:
    """Returns mechanism and steps as :func:`composition` does, for an unknown that is traced."""
    where = np.where if is_concrete(unknown, given, value) else jnp.where
    numbers = (where(is_it, value, getattr(given, name)) for is_it, name in zip(unknown, ENDS, strict=True))
    noise_multiplier, rate, steps = numbers
    return PoissonSubsampledGaussian(noise_multiplier, rate), steps


def searched(
    run_at: Callable[[Any, Array], tuple[Any, Any]], made: Any, given: Given, relation: Relation, near: Guess, aim: Aim
) -> Found:
    """Returns what the search from a guess found; ``run_at(made, value)`` gives mechanism and steps."""

    def ask(question: Kind, of_lane: Any, value: Array) -> Bounds:
        made, given, _ = of_lane
        return answer(*run_at(made, value), given.asked(question), relation)

    epsilon_of, delta_of = functools.partial(ask, ForEpsilon), functools.partial(ask, ForDelta)

    def evaluate(of_lane: Any, value: Array, closes: Array) -> Seen:
        """Returns delta; or epsilon, where that is to be reported, and delta only if its bound is not enough."""
        given, aim = of_lane[1:]
        nothing = outside(unknown_of(ForEpsilon(given.delta)))
        passed = Bounds(nothing.lower, given.delta, given.delta, nothing.converged)
        reports = closes & aim.reports
        if is_concrete(of_lane, value, closes):
            at_epsilon = epsilon_of(of_lane, value) if reports else nothing
            at_delta = passed if at_epsilon.upper <= given.epsilon else delta_of(of_lane, value)
            return Seen(at_delta, at_epsilon if aim.reports else at_delta)
        at_epsilon = where_needed(reports, epsilon_of, nothing, of_lane, value, width=WIDTH)
        lacks = ~(reports & (at_epsilon.upper <= given.epsilon))
        at_delta = where_needed(lacks, delta_of, passed, of_lane, value, width=WIDTH)
        return Seen(at_delta, jax.tree.map(lambda a, b: jnp.where(aim.reports, a, b), at_epsilon, at_delta))

    near = outside(near)
    return search(evaluate, (made, given, aim), aim, near.setting, near.slope, near.settled).found


@compiled
def graded(aim: Aim, found: Found) -> Calibrated:
    """Returns the result with its status."""
    passed = jnp.isfinite(found.setting)
    # Of whole steps the next ones were refuted.
    close = found.distance <= aim.tolerance + jnp.where(aim.whole, 1 / found.value, 0.0)
    status = jnp.where(close, Status.CONVERGED, Status.LOOSE)
    status = jnp.where(found.setting <= aim.least, Status.NOT_BINDING, status)
    status = jnp.where(passed, status, jnp.where(found.infeasible, Status.INFEASIBLE, Status.UNKNOWN))
    return Calibrated(value=found.value, reached=found.reached, status=status.astype(jnp.int32))


def gaussian_start(unknown: Any, given: Given) -> Guess:
    """Returns the setting by the central limit: mu = q sqrt(k (e^(1/s^2) - 1)) (Bu et al. 2020, Theorem 5).

    ``unknown`` (3,) tells which argument is looked for, in the order of ENDS.
    """
    s, q, k = given.noise_multiplier, given.sampling_rate, given.steps
    mu, growth = gaussian_mu(given.epsilon, given.delta), jnp.expm1(jnp.minimum(1 / s**2, 700.0))
    settings = (
        -0.5 * jnp.log(jnp.log1p((mu / q) ** 2 / k)),
        0.5 * jnp.log(k * growth) - jnp.log(mu),
        jnp.log(q**2 * growth) - 2 * jnp.log(mu),
    )
    clipped = [jnp.clip(setting, *ends) for setting, ends in zip(settings, ENDS.values(), strict=True)]
    noise, rate, count = clipped
    # Not jnp.select: its argmax is of the scope's width, and a batch may be lowered when the scope is left.
    chosen = jnp.where(unknown[0], noise, jnp.where(unknown[1], rate, count))
    # By what power of e^-u mu goes; of little noise it is less that counts, for rare losses are no central limit.
    inverse = jnp.exp(-2 * noise)
    power = jnp.where(unknown[0], jnp.minimum(inverse / -jnp.expm1(-inverse), 2.0), jnp.where(unknown[1], 1.0, 0.5))
    return started(chosen, mu, given.epsilon, power)


def started(setting: Array, mu: Array, epsilon: Array, power: Array | float = 1.0) -> Guess:
    """Returns the guess that a setting with mu-GDP makes, where mu goes like a power of e^-u."""
    order = gaussian_order(epsilon, mu)
    return Guess(setting, order, -power * order**2 * mu**2, jnp.zeros(setting.shape, bool))


@compiled(static=("budget",))
def _with_covered(budget: Kind, unknown: Array, given: Given, result: Calibrated) -> Calibrated:
    """Returns a result that delta covers by itself, where there is none better: by what is sampled, whatever the noise.

    A run in which the example is never sampled releases nothing of it, so the total variation distance, which is delta
    at epsilon 0, is at most 1 - (1 - q)^k. Where that is within the budget no noise is needed; and it gives a rate, or
    a number of steps, that is within the budget at any noise: the largest one if there is none.
    """
    s, q, k = given.noise_multiplier, given.sampling_rate, given.steps
    uncovered = log_complement(given.delta)

    def sampled_at_most(q: Array, k: Array) -> Array:
        share = -jnp.expm1(k * log_complement(jnp.minimum(q, 1 - roundoff()))) * (1 + 8 * arithmetic().function)
        return jnp.where(k == 0, 0.0, jnp.where(q < 1, share, 1.0))

    least = -jnp.expm1(uncovered * (1 - 32 * arithmetic().function) / k)
    rate = jnp.where(k > 0, representable(least * (1 - (0.0 if arithmetic() == FLOAT64 else 2.0**-23))), 1.0)
    count = uncovered * (1 + 64 * arithmetic().function) / log_complement(jnp.minimum(q, 1 - roundoff()))
    count = jnp.floor(jnp.minimum(count, MOST_STEPS))
    count = count - (sampled_at_most(q, count) > given.delta)
    is_noise, is_rate, is_steps = unknown
    q, k = jnp.where(is_rate, rate, q), jnp.where(is_steps, count, k)
    sampled = sampled_at_most(q, k)
    in_range = (q > 0) & (q <= 1) & (given.epsilon >= 0) & (given.delta > 0) & (given.delta < 1)
    valid = in_range & (k >= 0) & (is_noise | (s >= 0)) & (~is_steps | (k >= 1))
    value = jnp.where(is_noise, 0.0, jnp.where(is_rate, q, k))
    # Of rates and steps the larger, where the search ended far from the largest.
    surpasses = (result.status != Status.CONVERGED) & (value > result.value)
    covered = valid & (sampled <= given.delta) & (is_noise | ~result.satisfied | surpasses)
    level = jnp.where(budget is ForEpsilon, 0.0, jnp.maximum(sampled, TINY * (k > 0)))
    bounds = Bounds(lower=0.0 * level, estimate=level, upper=level, converged=covered)
    status = jnp.where(is_noise, Status.NOT_BINDING, jnp.where(s == 0, Status.CONVERGED, Status.LOOSE))
    better = Calibrated(value, bounds, status.astype(jnp.int32))
    # Without noise a single step costs more than delta wherever it is sampled more often.
    refused = is_steps & (s == 0) & (count < 1) & (q * (1 - arithmetic().function) > given.delta)
    # What is given where nothing was found releases nothing: infinite noise, no sampling, no steps.
    idle = in_range & (given.noise_multiplier >= 0) & (given.steps >= 0) & ~result.satisfied
    nothing = Bounds(0.0 * level, 0.0 * level, 0.0 * level, converged=idle)
    reached = jax.tree.map(lambda new, old: jnp.where(idle, new, old), nothing, result.reached)
    result = Calibrated(result.value, reached, jnp.where(refused, Status.INFEASIBLE, result.status))
    return jax.tree.map(lambda new, old: jnp.where(covered, new, old), better, result)


@in_float64(by_programs=True)
@compiled(static=("config", "make"))
def scaled(
    config: Config, make: Callable[[Array], Any], given: Given, steps: Any, ends: tuple[Array, Array]
) -> tuple[Calibrated, Array]:
    """Returns the result for the least scale of ``make``, and the setting that was guessed."""

    def parts_at(steps: Any, setting: Array) -> Parts:
        return directed_parts(make(jnp.exp(setting)), steps, config.relation)[0]

    low, high = ends
    if not all(pair.law() is not None for pair, _ in parts_at(steps, low)):
        nothing = unknown_of(ForEpsilon(low))
        return Calibrated(nothing.upper, nothing, jnp.asarray(Status.UNKNOWN, jnp.int32)), (low + high) / 2
    mu = gaussian_mu(given.epsilon, given.delta)

    def spread(setting: Array) -> Array:
        """Returns the standard deviation of the losses' sum, tilted hardly at all: the mu of the central limit."""
        parts = parts_at(steps, setting)
        return jnp.sqrt(total(parts, scanned(parts), jnp.asarray(1e-3)).curvature)

    settings = jnp.linspace(low, high, SCALES)
    distances = jnp.abs(jnp.log(jax.lax.map(spread, settings)) - jnp.log(mu))
    distances = jnp.where(jnp.isnan(distances), jnp.inf, distances)
    setting = jnp.min(jnp.where(distances == jnp.min(distances), settings, jnp.inf))
    near = guess(parts_at, steps, started(setting, mu, given.epsilon), given.epsilon, jnp.log(given.delta), ends)

    aim = aimed(config, given, ends)
    found = searched(lambda steps, scale: (make(scale), steps), steps, given, config.relation, near, aim)
    return with_epsilon(graded(aim, found), found.reached, given.epsilon), near.setting
