"""From a target to a certified setting of the subsampled Gaussian, or of a scaled schedule: one traced function.

It starts where the central limit has the setting, and searches (:mod:`.search`) with the exact accountant's bounds on
what is budgeted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.bounds import Bounds
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.search import MOST_STEPS, Aim, Found, search
from jaxacct.composition import directed_parts
from jaxacct.dominating_pairs.gaussian_profile import mu_bounds
from jaxacct.mechanisms import Gaussian, Mechanism, PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.precision import TINY, as_float64, in_float64, log_complement, representable_below
from jaxacct.programs import compiled
from jaxacct.pytrees import of_each
from jaxacct.question import ForEpsilon, Kind, Question
from jaxacct.question import unknown as unknown_of
from jaxacct.saddlepoint.accountant import answer, has_laws

NOISES = (1e-2, 1e15)
"""Noise multipliers searched: the least costs an epsilon of 5,000 a full step, the largest suits delta = 1e-15."""

LEAST_RATE = 1e-12
"""Least sampling rate searched."""


class Config(NamedTuple):
    """What is static about a search: which argument is looked for, what is budgeted, and how closely."""

    unknown: str
    budget: Kind
    relation: Relation
    tolerance: float
    is_plain: bool = False
    """Whether it can be seen that every example is in every batch: then brackets are closed forms."""
    is_single: bool = False
    """Whether it can be seen that there is one step: likewise."""


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


def composition(config: Config, given: Given, value: Any) -> tuple[Mechanism, Any]:
    """Returns mechanism and steps with ``value`` put in for what is looked for."""
    whole = given._replace(**{config.unknown: value})
    steps = 1 if config.is_single else whole.steps
    if config.is_plain:
        return Gaussian(whole.noise_multiplier), steps
    return PoissonSubsampledGaussian(whole.noise_multiplier, whole.sampling_rate), steps


def aimed(config: Config, given: Given, ends: tuple[Any, Any]) -> Aim:
    """Returns what the search is for."""
    target = given.allowed(config.budget)
    # Epsilons that are small beside the budget differ by ratios no more; nor do those about a budget of 0.
    scale = jnp.maximum(given.epsilon, given.delta) if config.budget is ForEpsilon else None
    rises = config.unknown in ("noise_multiplier", "scale")
    return Aim(target, *ends, config.tolerance, scale, rises=rises, whole=config.unknown == "steps")


@in_float64
def calibrated(config: Config, given: Given) -> tuple[Calibrated, Array]:
    """Returns the result of one target, and the setting u that was guessed."""
    return _calibrated(config, Given(*map(as_float64, given)))


@compiled(static=("config",))
def _calibrated(config: Config, given: Given) -> tuple[Calibrated, Array]:
    aim, found, start = _found(config, given)
    return _with_covered(config, given, _graded(aim, found)), start


def _found(config: Config, given: Given) -> tuple[Aim, Found, Array]:
    least, most = ENDS[config.unknown]
    aim = aimed(config, given, (as_float64(least), as_float64(most)))

    def run_at(given: Given, value: Array) -> tuple[Mechanism, Any]:
        return composition(config, given, value)

    setting, power, mu = _gaussian_start(config.unknown, given)
    return aim, _searched(config, run_at, given, given, aim, setting, _slope(aim, given, mu) * power), setting


def least_setting(config: Config, given: Given) -> Array:
    """Returns the least setting u that the exact accountant certifies, or inf. Inside a program."""
    return _found(config, given)[1].setting


def _searched(
    config: Config, run_at: Callable[[Any, Array], tuple[Any, Any]], made: Any, given: Given, aim: Aim, start: Array,
    slope: Array,
) -> Found:  # fmt: skip
    """Returns what the search from a start found; ``run_at(made, value)`` gives mechanism and steps."""

    def evaluate(of_lane: tuple[Any, Given], value: Array) -> Bounds:
        made, given = of_lane
        return answer(*run_at(made, value), given.asked(config.budget), config.relation)

    return search(evaluate, (made, given), aim, start, slope, jnp.zeros(start.shape, bool)).found


def _graded(aim: Aim, found: Found) -> Calibrated:
    """Returns the result with its status."""
    # Of whole steps the next ones were refuted.
    close = found.distance <= aim.tolerance + (1 / found.value if aim.whole else 0.0)
    status = jnp.where(close, Status.CONVERGED, Status.LOOSE)
    status = jnp.where(found.setting <= aim.least, Status.NOT_BINDING, status)
    nothing = jnp.where(found.infeasible, Status.INFEASIBLE, Status.UNKNOWN)
    status = jnp.where(found.setting < jnp.inf, status, nothing)
    return Calibrated(value=found.value, reached=found.reached, status=status.astype(jnp.int32))


graded = compiled(_graded)


def _gaussian_start(unknown: str, given: Given) -> tuple[Array, Array, Array]:
    """Returns the setting by the central limit, by what power of e^-u mu goes there, and mu.

    That is mu = q sqrt(k (e^(1/s^2) - 1)) (Bu et al. 2020, Theorem 5).
    """
    s, q, k = given.noise_multiplier, given.sampling_rate, given.steps
    mu = mu_bounds(given.epsilon, given.delta)[0]
    if unknown == "noise_multiplier":
        setting = jnp.clip(-0.5 * jnp.log(jnp.log1p((mu / q) ** 2 / k)), *ENDS[unknown])
        # Of little noise it is less that counts, for rare losses are no central limit.
        inverse = jnp.exp(-2 * setting)
        return setting, jnp.minimum(inverse / -jnp.expm1(-inverse), 2.0), mu
    growth = jnp.log(jnp.expm1(jnp.minimum(1 / s**2, 700.0)))
    if unknown == "sampling_rate":
        return jnp.clip(0.5 * (jnp.log(k) + growth) - jnp.log(mu), *ENDS[unknown]), jnp.ones(()), mu
    return jnp.clip(2 * (jnp.log(q) - jnp.log(mu)) + growth, *ENDS[unknown]), jnp.full((), 0.5), mu


def _slope(aim: Aim, given: Given, mu: Array) -> Array:
    """Returns about the derivative of the height in u where mu-GDP meets the target, and mu goes like e^-u."""
    if aim.scale is not None:
        return -jnp.maximum(given.epsilon + mu**2 / 2, 2 * given.delta) / (given.epsilon + aim.scale)
    t = given.epsilon / mu - mu / 2
    return -jnp.maximum(t * (t + mu), 1.0) * aim.steepness()


def _with_covered(config: Config, given: Given, result: Calibrated) -> Calibrated:
    """Returns a result that delta covers by itself, where there is none better: by what is sampled, whatever the noise.

    A run in which the example is never sampled releases nothing of it, so the total variation distance, which is delta
    at epsilon 0, is at most 1 - (1 - q)^k. Where that is within the budget no noise is needed; and it gives a rate, or
    a number of steps, that is within the budget at any noise: the largest one if there is none.
    """
    s, q, k = given.noise_multiplier, given.sampling_rate, given.steps
    uncovered, off = log_complement(given.delta), arithmetic().function

    def sampled_at_most(q: Array, k: Array) -> Array:
        share = -jnp.expm1(k * log_complement(jnp.minimum(q, 1 - roundoff()))) * (1 + 8 * off)
        return jnp.where(k == 0, 0.0, jnp.where(q < 1, share, 1.0))

    in_range = (q > 0) & (q <= 1) & (given.epsilon >= 0) & (given.delta > 0) & (given.delta < 1)
    refused = False
    if config.unknown == "noise_multiplier":
        value, valid, at_best = jnp.zeros(()), in_range & (k >= 0), Status.NOT_BINDING
    elif config.unknown == "sampling_rate":
        least = -jnp.expm1(uncovered * (1 - 32 * off) / k)
        least = representable_below(least)
        value, valid, at_best = jnp.where(k > 0, least, 1.0), in_range & (k >= 0) & (s >= 0), Status.CONVERGED
        q = value
    else:
        count = uncovered * (1 + 64 * off) / log_complement(jnp.minimum(q, 1 - roundoff()))
        count = jnp.floor(jnp.minimum(count, MOST_STEPS))
        value = count - (sampled_at_most(q, count) > given.delta)
        valid, at_best = in_range & (s >= 0) & (value >= 1), Status.CONVERGED
        # Without noise a single step costs more than delta wherever it is sampled more often.
        refused = (s == 0) & (value < 1) & (q * (1 - off) > given.delta)
        k = value
    sampled = sampled_at_most(q, k)
    covered, status = valid & (sampled <= given.delta), jnp.asarray(at_best)
    if config.unknown != "noise_multiplier":
        # Of rates and steps the larger, where the search ended far from the largest.
        covered &= ~result.satisfied | ((result.status != Status.CONVERGED) & (value > result.value))
        status = jnp.where(s == 0, status, Status.LOOSE)
    level = jnp.where(config.budget is ForEpsilon, 0.0, jnp.maximum(sampled, TINY * (k > 0)))
    better = Calibrated(value, Bounds(0.0 * level, level, level, covered), status.astype(jnp.int32))
    # What is given where nothing was found releases nothing: infinite noise, no sampling, no steps.
    idle = in_range & (s >= 0) & (given.steps >= 0) & ~result.satisfied
    nothing = Bounds(0.0 * level, 0.0 * level, 0.0 * level, converged=idle)
    reached = jax.tree.map(lambda new, old: jnp.where(idle, new, old), nothing, result.reached)
    result = Calibrated(result.value, reached, jnp.where(refused, Status.INFEASIBLE, result.status))
    return jax.tree.map(lambda new, old: jnp.where(covered, new, old), better, result)


HALVINGS = 24
"""Halvings of a schedule's range of scales in search of the start: to a ten millionth of it. Speed only."""


def _start_of_scale(
    config: Config, make: Callable[[Array], Any], steps: Any, mu: Array, ends: tuple[Array, Array]
) -> Array:
    """Returns the setting at which the central limit has ``mu``: the sum of the losses' chi-square divergences is mu^2.

    That is E_P[e^Y] - 1, of a subsampled Gaussian q^2 (e^(1/s^2) - 1).
    """

    def spread(setting: Array) -> Array:
        parts = directed_parts(make(jnp.exp(setting)), steps, config.relation)[0]
        each = [counts * jnp.expm1(of_each(lambda pair: pair.cumulant(1.0))(pairs)) for pairs, counts in parts]
        return sum((jnp.sum(row) for row in each), jnp.zeros(()))

    def halved(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        too_small = ~(spread(middle) <= mu**2)
        return jnp.where(too_small, middle, low), jnp.where(too_small, high, middle)

    return jax.lax.fori_loop(0, HALVINGS, halved, ends)[1]


@in_float64
@compiled(static=("config", "make"))
def scaled(
    config: Config, make: Callable[[Array], Any], given: Given, steps: Any, ends: tuple[Array, Array]
) -> tuple[Calibrated, Array]:
    """Returns the result for the least scale of ``make``, and the setting that the search began at."""
    low, high = ends
    if not has_laws(make(jnp.exp(low)), steps, config.relation):
        nothing = unknown_of(ForEpsilon(low))
        return Calibrated(nothing.upper, nothing, jnp.asarray(Status.UNKNOWN, jnp.int32)), (low + high) / 2
    aim = aimed(config, given, ends)
    mu = mu_bounds(given.epsilon, given.delta)[0]
    start = _start_of_scale(config, make, steps, mu, ends)
    found = _searched(
        config, lambda steps, scale: (make(scale), steps), steps, given, aim, start, _slope(aim, given, mu)
    )
    return _graded(aim, found), start
