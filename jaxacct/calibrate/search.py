"""A calibration's result, and the search for the least private setting that certified bounds allow.

A coordinate u grows with privacy, and the privacy profile is evaluated along it. Bounds alone decide what is accepted:
a setting is returned only where the certified upper bound at that very setting is within the budget, and is called the
best only where a lower bound refutes one that is nearer than the tolerance. Guesses, slopes and stopping rules decide
the time and the tightness, never the guarantee.

In reading order:

* :class:`Status` and :class:`Calibrated`, the result;
* :func:`search_by_calls`, the search by certified bounds, and :func:`search`, the same as one loop of a trace;
* :func:`solve` and :func:`solve_scale`, from a concrete target to a setting, by calls of the accountants;
* :func:`solve_traced` and :func:`least_scale`, the same in a trace, by the exact accountant; the former has
  derivatives.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from jaxacct import certified, rdp
from jaxacct.bounds import Bounds, zero
from jaxacct.composition import ForDelta, ForEpsilon, Kind, Question, directed_parts, query_of
from jaxacct.composition import unknown as unknown_of
from jaxacct.mechanisms import Gaussian, Mechanism, PoissonSubsampledGaussian, group
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.mechanisms.normal import mu_bounds
from jaxacct.numerics import batched_loops
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.batched_loops import one_by_one
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    kernel,
    leave_scope,
    log_complement,
    within_scope,
)
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import of_each, register_dataclass
from jaxacct.numerics.root_search import bisect, bisect_traced
from jaxacct.saddlepoint.accountant import answer, has_laws
from jaxacct.validation import MOST_STEPS


class Status(enum.IntEnum):
    """Outcome of a search. Every status but the last two comes with a setting that satisfies the budget.

    ==============  =====================================================================================
    CONVERGED       satisfies the budget, and is within the tolerance of the best setting: one that is nearer than
                    that on its other side was refuted, by a certified lower bound above the budget
    NOT_BINDING     satisfies the budget at the end of the range: no noise is needed, or every example may
                    be sampled, or any number of steps run
    LOOSE           satisfies the budget; that it is within the tolerance of the best setting was not proved
    INFEASIBLE      no setting in the range satisfies the budget: a lower bound exceeds it at the end
    UNKNOWN         nothing was certified; use concrete arguments, for which all accountants are asked
    ==============  =====================================================================================
    """

    CONVERGED = 0
    NOT_BINDING = 1
    LOOSE = 2
    INFEASIBLE = 3
    UNKNOWN = 4


@register_dataclass
@dataclass(frozen=True)
class Calibrated:
    """A setting that satisfies a privacy budget.

    Attributes:
        value: the setting, float64, the shape of the batch. Where ``status`` is INFEASIBLE or UNKNOWN it is on the safe
            side: infinite noise, no sampling, no steps.
        reached: certified bounds on the budgeted quantity at ``value``: on epsilon, or on delta where the target is an
            advantage. ``reached.upper`` is at most the budget. Where laws of atoms were needed, :func:`jaxacct.epsilon`
            confirms it only at as small a ``tolerance``.
        status: a :class:`Status`, int32.

    >>> bool(Calibrated(2.0, Bounds(0.9, 0.95, 1.0), 0).satisfied)
    True
    """

    value: Float[Array, ...] | np.ndarray | float
    reached: Bounds
    status: Int[Array, ...] | np.ndarray | int

    @property
    def satisfied(self) -> Array | np.ndarray | bool:
        """Whether ``value`` was certified to satisfy the budget."""
        return self.status < Status.INFEASIBLE


# ----------------------------------------------------------------------------------------------------
# The search along one coordinate u for the least setting that is certified to satisfy a budget: one for all
# calibrations.
#
# u grows with privacy: it is the logarithm of the noise, of the rate's inverse, or of the steps' inverse. A setting is
# accepted only by the certified upper bound at that very setting, so nothing about the search needs to be right for the
# answer to be safe: the guess, the slopes and the stopping rule decide how near it comes to the least.
#
# Secants lead to a setting just below the least, which the lower bound there refutes. Then the setting a little less
# than the tolerance above is asked, and closes the search: from a good guess, two evaluations. Where bounds say nothing
# the search retreats to more privacy; once one setting has failed and one has passed it never leaves the two.
#
# Traced, the search is one loop around one accountant; with a function of Python's it is the same steps, one by one.
# ----------------------------------------------------------------------------------------------------


LEAST_PADDING = 2e-10
"""Smallest distance in u from a setting that failed. It grows eightfold with each evaluation, so that roundings cannot
keep the search awake. Sound for any value."""

BELOW = 0.35
"""Share of the tolerance by which the setting to be refuted is less private than the foreseen least. Sound for any
value."""

PROBE = 0.95
"""Share of the tolerance by which a setting is undercut, to prove that it is near the best. Sound for any value."""


class Found(NamedTuple):
    """Best setting of a search so far; +inf for ``setting`` where nothing was certified.

    ``distance`` () bounds how far above the least the setting lies: it is the distance down to a setting that was
    refuted, its lower bound above the budget. ``infeasible`` is whether the end of the range was refuted.
    """

    setting: Array
    value: Array
    reached: Bounds
    distance: Array
    infeasible: Array


@register_dataclass
@dataclass(frozen=True)
class SearchAim:
    """Goal of a search: the budget, the range and the tolerance.

    Attributes:
        target (): the budget, of an epsilon or of a delta.
        least (): smallest setting.
        most (): largest setting.
        tolerance (): distance from the least, in u, at which to stop.
        scale (): of a budgeted epsilon: below it differences count, above it ratios. None where delta is budgeted.
        rises: whether the value of a setting u is ``exp(u)``, not ``exp(-u)``.
        whole: whether values are whole numbers, ``exp(-u)`` rounded; then the search ends at neighbours.
    """

    target: Any
    least: Any
    most: Any
    tolerance: Any
    scale: Any
    rises: bool = field(metadata={"static": True})
    whole: bool = field(metadata={"static": True})

    def value(self, setting: Array) -> Array:
        """Returns the value of a setting, which is what is evaluated and returned."""
        value = jnp.exp(setting if self.rises else -setting)
        if self.whole:
            return jnp.round(value)
        return value

    def height(self, level: ArrayLike) -> Array:
        """Returns a function of a level that rises with it, and is nearly linear in u.

        An epsilon goes like a power of e^-u. The logarithm of a normal distribution's delta goes like the square of
        e^u, and that of rare large losses bends the other way; a fourth root lies between the two.
        """
        if self.scale is not None:
            return jnp.log(level + self.scale)
        # Floored, so that a logarithm exists: it bends the height only.
        return -(jnp.maximum(-jnp.log(jnp.maximum(level, 1e-300)), 0.0) ** 0.25)

    def steepness(self) -> Array:
        """Returns the derivative of :meth:`height` in the logarithm of the level, at the target."""
        if self.scale is not None:
            return self.target / (self.target + self.scale)
        return 0.25 * jnp.maximum(-jnp.log(self.target), 1e-6) ** -0.75

    @property
    def closeness(self) -> Any:
        """The distance in u that is near enough."""
        # Whole numbers end at neighbours, but where they are too large for the refutation of one more: there this
        # decides the status alone.
        return 1e-9 if self.whole else self.tolerance

    def below(self, setting: Array, distance: Array | float) -> Array:
        """Returns a setting so much less private; of whole values the next larger one, by as much at least."""
        lower = setting - distance
        if not self.whole:
            return lower
        larger = jnp.floor(jnp.exp(-setting) * (1 + scale_error(1e-12))) + 1
        return -jnp.log(jnp.maximum(larger, jnp.ceil(jnp.exp(-lower))))

    def next_below(self, setting: Array, distance: Array) -> Array:
        """Returns the setting of the next smaller whole value, by a distance at least."""
        return -jnp.log(jnp.minimum(jnp.round(jnp.exp(-setting)) - 1, jnp.floor(jnp.exp(-setting - distance))))

    def between(self, ahead: Array, bad: Array, best: Array) -> Array:
        """Returns ``ahead`` where it lies between the settings known to fail and to pass, else one that does."""
        if self.whole:
            # Values run the other way: from one above those known to pass to one below those known to fail.
            low, high = jnp.round(jnp.exp(-best)), jnp.round(jnp.minimum(jnp.exp(-bad), float(MOST_STEPS + 1)))
            return -jnp.log(jnp.clip(jnp.round(jnp.exp(-ahead)), low + 1, jnp.maximum(high - 1, 1.0)))
        middle = jnp.where((bad > -jnp.inf) & (best < jnp.inf), (bad + best) / 2, jnp.minimum(ahead, best))
        return jnp.where((ahead > bad) & (ahead < best), ahead, middle)


class SearchState(NamedTuple):
    """State of a search after some evaluations: what is asked next, what is known of the curve, and the best setting.

    ``bad`` () is the most private setting that does not pass, ``refuted`` () the most private one that was refuted.
    ``last`` () and ``height`` () are the last setting with a known bound and its height; ``low`` () is its lower end's.
    """

    round: Array
    setting: Array
    slope: Array
    """Derivative of the height in u."""
    is_slope: Array
    """Whether the slope is known, not only guessed."""
    last: Array
    height: Array
    low: Array
    retreats: Array
    bad: Array
    refuted: Array
    found: Found
    is_done: Array


def search(
    config: Config,
    run_at: Callable[[Any, Array], tuple[Any, Any]],
    made: Any,
    given: Given,
    aim: SearchAim,
    start: Array,
    slope: Array,
) -> Found:
    """Returns what a search found for the least setting at which the exact accountant certifies at most the target.

    Traced, with everything in one loop. Args:
        config: relation, and what is budgeted.
        run_at: mechanism and steps, for what is made and a value. Their cost decreases in the setting.
        made: pytree of arrays.
        given: numbers of the target.
        aim: the budget, the range and the tolerance.
        start (): about the least setting.
        slope (): derivative in u of the height, roughly. Nothing is called near the least before there is a secant.
    """

    # One step evaluates the setting that the last one chose. Every lane ends, as each round counts (:func:`_goes_on`).
    def step(state: SearchState, of_lane: tuple[SearchAim, Any, Given]) -> SearchState:
        aim, made, given = of_lane
        run = run_at(made, aim.value(state.setting))
        return _advance(aim, state, answer(*run, given.question_of(config.budget), config.relation))

    state = _start_state(aim, start, slope, jnp.zeros(start.shape, bool))
    return batched_loops.while_loop(
        lambda state, _: _goes_on(state), step, state, (aim, made, given), share=batched_loops.OF_QUEUES
    ).found


def search_by_calls(
    evaluate: Callable[[Any], Bounds], aim: SearchAim, start: Any, slope: Any, is_slope: Any
) -> SearchState:
    """Returns the last state of :func:`search` by bounds that a function gives for numbers, one after the other.

    ``is_slope`` is whether the slope is known; if not, nothing is called near the least before there is a secant.
    """
    state = leave_scope(_start_state(aim, start, slope, is_slope))
    # The same steps as the traced loop's, so that both accept the same settings; as many at most.
    while bool(_goes_on(state)):
        state = leave_scope(_advance(aim, state, evaluate(leave_scope(_value(aim, state.setting)))))
    return state


def _goes_on(state: SearchState) -> Any:
    # Most evaluations of a search. Four to six are usual, ten where the guess was far off. Sound for any value.
    rounds = 24
    return ~state.is_done & (state.round < rounds)


@compiled
def _start_state(aim: SearchAim, start: Array, slope: Array, is_slope: Array) -> SearchState:
    """Returns the state before anything is evaluated."""
    nothing = jnp.full_like(start, jnp.inf)
    never = jnp.zeros(start.shape, bool)
    unknown = Bounds(lower=0.0 * start, estimate=jnp.nan * start, upper=nothing, converged=never)
    found = Found(nothing, aim.value(nothing), unknown, nothing, never)
    first = jnp.clip(aim.below(start, jnp.where(is_slope, BELOW * aim.closeness, 0.0)), aim.least, aim.most)
    unseen = jnp.nan * start
    slope = jnp.where(slope < 0, slope, -1.0)
    return SearchState(
        jnp.zeros(start.shape, int), first, slope, is_slope, unseen, unseen, unseen, jnp.zeros(start.shape, int),
        -nothing, -nothing, found, never,
    )  # fmt: skip


@compiled
def _advance(aim: SearchAim, state: SearchState, bounds: Bounds) -> SearchState:
    """Returns the state after one more evaluation, at the value of its setting.

    Its numbers are sound for any value: they decide how many evaluations there are and how near the least they end.
    """
    whole, u, found = aim.whole, state.setting, state.found
    high, low, goal = (aim.height(level) for level in (bounds.upper, bounds.lower, aim.target))
    # At an epsilon of 0 the curve is flat, and does not tell how far the least setting is.
    is_flat = (bounds.upper <= 0) if aim.scale is not None else jnp.zeros_like(state.is_done)
    known = (bounds.upper < (jnp.inf if aim.scale is not None else 1.0)) & ~is_flat
    passes, is_refuted = (known | is_flat) & (bounds.upper <= aim.target), bounds.lower > aim.target
    infeasible = found.infeasible | (is_refuted & (u >= aim.most))
    # The curve's slope. A secant counts only where it rose by far more than the bounds are apart, or both ends alike.
    risen = high - state.height
    secant = risen / (u - state.last)
    is_steady = jnp.abs(risen) > 10 * jnp.abs(risen - (low - state.low))
    usable = known & (secant < 0) & ((jnp.abs(risen) > 10 * (high - low)) | is_steady)
    slope, is_slope = jnp.where(usable, secant, state.slope), state.is_slope | usable
    step = jnp.where(known, (goal - high) / slope, 0.0)
    # Blur is the bounds' distance, in units of u. Where both ends of a wide bracket move alike the lower one tells
    # nothing of where the upper one passes.
    tolerance, blur = aim.closeness, jnp.where(known, (high - low) / -slope, 0.0)
    is_upper_alone = known & is_steady & (blur >= 1e-2)
    is_refuted, blur = is_refuted & ~is_upper_alone, jnp.where(is_upper_alone, 0.0, blur)
    # The bracket of settings: refuted by a lower bound, not passed, and the best that passed.
    refuted = jnp.where(is_refuted, jnp.maximum(state.refuted, u), state.refuted)
    bad = jnp.where(passes, state.bad, jnp.maximum(state.bad, u))
    better = passes & (u < found.setting)
    new = Found(u, aim.value(u), bounds, found.distance, found.infeasible)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
    best = best._replace(distance=best.setting - refuted, infeasible=infeasible)
    # The least setting by the secant, and its uncertainty. A step may be off by 2 %, as the slope is only near, and is
    # at most 0.5 long. The setting to be accepted lies 0.8 of the tolerance above the one refuted: with BELOW that
    # leaves a third of the tolerance for the foresight's error.
    padding = 0.02 * jnp.abs(step)
    root = u + jnp.clip(step, -0.5, 0.5)
    lowest = jnp.where(is_upper_alone, bad, refuted)
    accepted = lowest + jnp.maximum(0.8 * tolerance, 3 * blur)
    if whole:
        accepted = aim.next_below(lowest, accepted - lowest)
    is_near = known & is_slope & ((root if whole else root + padding) <= accepted)
    refutable = aim.below(root, jnp.maximum(BELOW * tolerance, 1.2 * blur))
    # A setting to be refuted lies no farther below one that passed than it takes to prove that one near the least.
    closest = aim.below(best.setting, PROBE * jnp.maximum(tolerance, 3 * blur))
    refutable = jnp.where(root > closest, jnp.maximum(refutable, closest), refutable)
    # Where bounds say nothing: between what passed and what did not; else away from what costs more, or costs nothing,
    # by a first step of 0.02 and further ones four times longer each; after four of them the search gives up.
    has_passed, has_failed = best.setting < jnp.inf, bad > -jnp.inf
    is_lost = ~(known | (has_passed & has_failed))
    away = jnp.where(is_flat, -0.02, 0.02) * 4.0**state.retreats
    retreat = jnp.where(is_lost, u + away, (bad + best.setting) / 2)
    retreats = state.retreats + is_lost
    # Secants of wide brackets lead nowhere where their ends move as they like. Where both ends move alike, and of an
    # upper bound alone, such as that of suprema or curves, they are as good as any.
    says = is_flat | (known & ((blur < 1e-2) | (bounds.lower <= 0)))
    follows = known & (says | ~(has_passed & has_failed))
    if whole:
        retreat = aim.below(retreat, 0.0)
    ahead = jnp.where(follows, jnp.where(is_near, accepted, refutable), retreat)
    # A setting at or below one that failed cannot pass. The distance from it grows with each round.
    beyond = jnp.maximum(bad + LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12), root + padding)
    ahead = jnp.where(ahead > bad, ahead, beyond)
    ahead = aim.between(jnp.clip(ahead, aim.least, aim.most), bad, best.setting)
    at_end = (passes & (u <= aim.least)) | (~passes & (u >= aim.most))
    is_close = best.distance <= jnp.maximum(tolerance, 3.1 * blur)
    # Where bounds say nothing just below a setting that passes, or hardly anything, what is certified is loose, and
    # each such evaluation is a slow one: 5e-3 is near enough, or a third of the blur.
    enough = has_passed & (best.setting - bad <= jnp.where(says, tolerance / 2, jnp.maximum(5e-3, blur / 3)))
    if whole:
        # Whole numbers end at neighbours, up to 10^8: the refutation of one step more certifies the best.
        is_adjacent = jnp.exp(-bad) - jnp.exp(-best.setting) < 1.5
        is_close = is_adjacent | ((is_close | enough) & (aim.value(u) > 1e8))
    else:
        # By narrow bounds the least is refuted just below, where rounding alone kept a setting from passing.
        probes = enough & says & (3 * blur <= tolerance) & (u != closest)
        ahead, enough = jnp.where(probes & (closest > aim.least), closest, ahead), enough & ~probes
        # After 14 evaluations any setting that passes will do: where so many are needed the bounds are rough.
        is_close = is_close | enough | (has_passed & (state.round + 1 >= 14))
    is_done = is_close | at_end | (retreats > 4) | (ahead == u)
    last, height, low = (
        jnp.where(known, new, old) for new, old in ((u, state.last), (high, state.height), (low, state.low))
    )
    return SearchState(
        state.round + 1, ahead, slope, is_slope, last, height, low, retreats, bad, refuted, best, is_done
    )


_value = compiled(SearchAim.value)
"""Compiled :meth:`SearchAim.value`, for the search by calls."""


# ----------------------------------------------------------------------------------------------------
# From a target to a certified setting of the subsampled Gaussian, or of a scaled schedule: one traced function.
#
# It starts where the central limit theorem puts the setting, and searches (:func:`search`) with the exact accountant's
# bounds on what is budgeted.
# ----------------------------------------------------------------------------------------------------


class Config(NamedTuple):
    """Static part of a target: which argument is looked for, what is budgeted, and how closely."""

    unknown: str
    budget: Kind
    relation: Relation
    tolerance: float
    is_plain: bool = False
    """Whether it can be seen that every example is in every batch: then brackets are closed forms."""
    is_single: bool = False
    """Whether it can be seen that there is one step: then, too, brackets are closed forms."""
    group: int = 1
    """Number of examples that change together."""


class Given(NamedTuple):
    """Numbers of a target, float64 (); the one that is looked for holds anything."""

    epsilon: Any
    delta: Any
    noise_multiplier: Any
    sampling_rate: Any
    steps: Any

    def question_of(self, budget: Kind) -> Question:
        """Returns the question whose answer is budgeted."""
        return budget(self.delta if budget is ForEpsilon else self.epsilon)

    def value_of(self, budget: Kind) -> Any:
        """Returns the budget."""
        return self.epsilon if budget is ForEpsilon else self.delta


ENDS: dict[str, tuple[float, float]] = {
    # The least noise costs an epsilon of 5e11 a full step, the largest suits delta = 1e-15.
    "noise_multiplier": (float(np.log(1e-6)), float(np.log(1e15))),
    "sampling_rate": (0.0, float(-np.log(1e-12))),
    "steps": (float(-np.log(MOST_STEPS)), 0.0),
}
"""Smallest and largest setting u (:func:`search`) for each argument that may be looked for."""


def composition(config: Config, given: Given, value: Any) -> tuple[Mechanism, Any]:
    """Returns mechanism and steps with ``value`` put in for what is looked for, for a group where there is one."""
    whole = given._replace(**{config.unknown: value})
    steps = 1 if config.is_single else whole.steps
    if config.is_plain:
        return group(Gaussian(whole.noise_multiplier), config.group), steps
    return group(PoissonSubsampledGaussian(whole.noise_multiplier, whole.sampling_rate), config.group), steps


def goal_of(config: Config, given: Given, ends: tuple[Any, Any]) -> SearchAim:
    """Returns the goal of the search."""
    target = given.value_of(config.budget)
    # Epsilons far below the budget count by differences, not by ratios; at a budget of 0, so do those far below delta.
    scale = jnp.maximum(given.epsilon, given.delta) if config.budget is ForEpsilon else None
    rises = config.unknown in ("noise_multiplier", "scale")
    return SearchAim(target, *ends, config.tolerance, scale, rises=rises, whole=config.unknown == "steps")


@kernel
def calibrate(config: Config, given: Given) -> Calibrated:
    """Returns the result of one target, by the exact accountant, in one loop of a trace."""
    found: Calibrated = _calibrate(config, Given(*map(as_float64, given)))
    return found


@compiled(static=("config",))
def _calibrate(config: Config, given: Given) -> Calibrated:
    return _with_covered(config, given, _grade(*_calibrate_in_program(config, given)))


def _calibrate_in_program(config: Config, given: Given) -> tuple[SearchAim, Found]:
    least, most = ENDS[config.unknown]
    aim = goal_of(config, given, (as_float64(least), as_float64(most)))
    start, slope = _guess(config, given, aim)
    return aim, search(config, functools.partial(composition, config), given, given, aim, start, slope)


def _guess(config: Config, given: Given, aim: SearchAim) -> tuple[Array, Array]:
    """Returns about the least setting, and about the slope of the height there."""
    setting, power, mu = _gaussian_start(config, given)
    return setting, _slope(aim, given, mu) * power


def least_setting(config: Config, given: Given) -> Array:
    """Returns the least setting u that the exact accountant certifies, or inf. Inside a program."""
    return _calibrate_in_program(config, given)[1].setting


def _grade(aim: SearchAim, found: Found) -> Calibrated:
    """Returns the result with its status."""
    # For a whole number of steps the next one is refuted, which is 1 / value away in u.
    close = found.distance <= aim.tolerance + (1 / found.value if aim.whole else 0.0)
    status = jnp.where(close, Status.CONVERGED, Status.LOOSE)
    status = jnp.where(found.setting <= aim.least, Status.NOT_BINDING, status)
    nothing = jnp.where(found.infeasible, Status.INFEASIBLE, Status.UNKNOWN)
    status = jnp.where(found.setting < jnp.inf, status, nothing)
    return Calibrated(value=found.value, reached=found.reached, status=status.astype(jnp.int32))


def _gaussian_start(config: Config, given: Given) -> tuple[Array, Array, Array]:
    """Returns the setting by the central limit theorem, the power of e^-u that mu goes like there, and mu.

    It solves mu = q sqrt(k (e^(1/s^2) - 1)) (Bu et al. 2020, Theorem 5). To a group of g the noise is about s/g. Far
    from that limit, of little noise, an example costs no more than the runs that it is hardly ever sampled beyond, on
    all of which it is sampled: for these the noise is their root over mu.
    """
    unknown, size = config.unknown, float(config.group)
    s, q, k = given.noise_multiplier / size, given.sampling_rate, given.steps
    mu = _mu_of(given)
    if unknown == "noise_multiplier":
        alone = -0.5 * jnp.log(jnp.log1p((mu / q) ** 2 / k))
        rare = -jnp.log(given.delta)
        sampled = jnp.minimum(k, k * q + jnp.sqrt(2 * k * q * rare) + rare)
        alone = jnp.minimum(alone, 0.5 * jnp.log(sampled) - jnp.log(mu))
        setting = jnp.clip(alone + np.log(size), *ENDS[unknown])
        # With little noise the power is capped: there rare large losses rule, and the central limit does not hold.
        inverse = jnp.exp(-2 * (setting - np.log(size)))
        return setting, jnp.minimum(inverse / -jnp.expm1(-inverse), 2.0), mu
    growth = jnp.log(jnp.expm1(jnp.minimum(1 / s**2, 700.0)))
    # With little noise the budget is for so many runs with the example, and (kq)^n/n! is about the probability of one
    # more; log n! by Stirling. With the noise for none, delta covers that there is one (:func:`_with_covered`).
    n = jnp.floor(jnp.minimum(0.99 * mu**2 * s**2, 1e6)) + 1
    log_kq = jnp.log(n) - 1 + (jnp.log(given.delta) + 0.5 * jnp.log(2 * np.pi * n)) / n
    if unknown == "sampling_rate":
        setting = jnp.minimum(0.5 * (jnp.log(k) + growth) - jnp.log(mu), jnp.log(k) - log_kq)
        return jnp.clip(setting, *ENDS[unknown]), jnp.ones(()), mu
    setting = jnp.minimum(2 * (jnp.log(q) - jnp.log(mu)) + growth, jnp.log(q) - log_kq)
    return jnp.clip(setting, *ENDS[unknown]), jnp.full((), 0.5), mu


def _mu_of(given: Given) -> Array:
    """Returns about the mu whose budget is the given one; of a budget beyond all bounds the root of 2 epsilon."""
    mu = mu_bounds(given.epsilon, given.delta)[0]
    return jnp.where(mu > 0, mu, jnp.sqrt(2 * given.epsilon))


def _slope(aim: SearchAim, given: Given, mu: Array) -> Array:
    """Returns about the derivative of the height in u where mu-GDP meets the target, and mu goes like e^-u."""
    if aim.scale is not None:
        return -jnp.maximum(given.epsilon + mu**2 / 2, 2 * given.delta) / (given.epsilon + aim.scale)
    t = given.epsilon / mu - mu / 2
    return -jnp.maximum(t * (t + mu), 1.0) * aim.steepness()


def _with_covered(config: Config, given: Given, result: Calibrated) -> Calibrated:
    """Returns a result that delta covers by the sampling alone, whatever the noise, where no better one was found.

    A run in which the example is never sampled releases nothing of it, so the total variation distance, which is delta
    at epsilon 0, is at most 1 - (1 - q)^k; of g examples none is ever sampled with the probability (1 - q)^(g k). Where
    that is within the budget no noise is needed; and it gives a rate, or a number of steps, that is within the budget
    at any noise: the largest one if there is none.
    """
    size = float(config.group)
    s, q, k = given.noise_multiplier, given.sampling_rate, given.steps
    uncovered, off = log_complement(given.delta), arithmetic().function

    def sampled_at_most(q: Array, k: Array) -> Array:
        share = -jnp.expm1(size * k * log_complement(jnp.minimum(q, 1 - roundoff()))) * (1 + 8 * off)
        return jnp.where(k == 0, 0.0, jnp.where(q < 1, share, 1.0))

    in_range = (q > 0) & (q <= 1) & (given.epsilon >= 0) & (given.delta > 0) & (given.delta < 1)
    refused = False
    if config.unknown == "noise_multiplier":
        value, valid, at_best = jnp.zeros(()), in_range & (k >= 0), Status.NOT_BINDING
    elif config.unknown == "sampling_rate":
        least = -jnp.expm1(uncovered * (1 - 32 * off) / (size * k))
        value, valid, at_best = jnp.where(k > 0, least, 1.0), in_range & (k >= 0) & (s >= 0), Status.CONVERGED
        q = value
    else:
        count = uncovered * (1 + 64 * off) / (size * log_complement(jnp.minimum(q, 1 - roundoff())))
        count = jnp.floor(jnp.minimum(count, float(MOST_STEPS)))
        value = count - (sampled_at_most(q, count) > given.delta)
        valid, at_best = in_range & (s >= 0) & (value >= 1), Status.CONVERGED
        # Without noise a single step in which the example is sampled reveals it: it costs q, which exceeds delta. That
        # is so of the data with the example; told from those without, under "add", the loss is -log(1 - q) at most.
        refused = (s == 0) & (value < 1) & (q * (1 - off) > given.delta) & (config.relation != "add")
        k = value
    sampled = sampled_at_most(q, k)
    covered, status = valid & (sampled <= given.delta), jnp.asarray(at_best)
    if config.unknown != "noise_multiplier":
        # A rate or a number of steps that is larger is better, where the search ended far from the largest.
        covered &= ~result.satisfied | ((result.status != Status.CONVERGED) & (value > result.value))
        status = jnp.where(s == 0, status, Status.LOOSE)
    level = jnp.where(config.budget is ForEpsilon, 0.0, jnp.maximum(sampled, TINY * (k > 0)))
    better = Calibrated(value, Bounds(0.0 * level, level, level, covered), status.astype(jnp.int32))
    # The setting that is given where nothing was found releases nothing: infinite noise, no sampling, no steps.
    idle = in_range & (s >= 0) & (given.steps >= 0) & ~result.satisfied
    nothing = Bounds(0.0 * level, 0.0 * level, 0.0 * level, converged=idle)
    reached = jax.tree.map(lambda new, old: jnp.where(idle, new, old), nothing, result.reached)
    result = Calibrated(result.value, reached, jnp.where(refused, Status.INFEASIBLE, result.status))
    return jax.tree.map(lambda new, old: jnp.where(covered, new, old), better, result)


def _start_of_scale(
    config: Config, make: Callable[[Array], Any], steps: Any, mu: Array, ends: tuple[Array, Array]
) -> Array:
    """Returns the setting at which the central limit theorem gives ``mu``.

    There the losses' chi-square divergences add up to mu^2. One divergence is E_P[e^Y] - 1; that of a subsampled
    Gaussian is q^2 (e^(1/s^2) - 1).
    """

    def spread(setting: Array) -> Array:
        parts = directed_parts(make(jnp.exp(setting)), steps, config.relation)[0]
        each = [counts * jnp.expm1(of_each(lambda pair: pair.cumulant(1.0))(pairs)) for pairs, counts in parts]
        return sum((jnp.sum(row) for row in each), jnp.zeros(()))

    # The spread falls in the setting. 24 halvings find the start to a ten millionth of the range: speed only.
    low, high = ends
    return bisect_traced(lambda setting: spread(setting) <= mu**2, high, low, steps=24)


def _guess_of_scale(
    config: Config, make: Callable[[Array], Any], given: Given, steps: Any, aim: SearchAim
) -> tuple[Array, Array]:
    """Returns about the least setting of a scale, and about the slope of the height there."""
    mu = _mu_of(given)
    start = _start_of_scale(config, make, steps, mu, (aim.least, aim.most))
    return jnp.where(jnp.isnan(start), (aim.least + aim.most) / 2, start), _slope(aim, given, mu)


@kernel
@compiled(static=("config", "make"))
def least_scale(
    config: Config, make: Callable[[Array], Any], given: Given, steps: Any, ends: tuple[Array, Array]
) -> Calibrated:
    """Returns the result for the least scale of ``make``, by the exact accountant, in one loop of a trace."""
    if not has_laws(query_of(make(jnp.exp(ends[0])), steps, ForEpsilon(ends[0]), config.relation)):
        nothing = unknown_of(ForEpsilon(ends[0]))
        return Calibrated(nothing.upper, nothing, jnp.asarray(Status.UNKNOWN, jnp.int32))
    aim = goal_of(config, given, ends)
    start, slope = _guess_of_scale(config, make, given, steps, aim)
    return _grade(aim, search(config, lambda steps, scale: (make(scale), steps), steps, given, aim, start, slope))


# ----------------------------------------------------------------------------------------------------
# From a concrete target to a setting: by calls of the top level's accountants.
#
# Those have a program each for all that they are asked, so a calibration compiles next to nothing of its own, and it
# takes whatever a mechanism has: an exact bracket, one by laws of atoms, Rényi curves. Where the exact accountant
# leaves it open a narrow bracket costs far more than a usual one. So the search is made twice there: first to about the
# setting, by brackets of usual width, then from there, by brackets that blur the setting by a share of the tolerance.
# ----------------------------------------------------------------------------------------------------


@compiled(static=("config",))
def _first_look(config: Config, given: Given, ends: tuple[Any, Any]) -> tuple[SearchAim, tuple[Array, Array]]:
    aim = goal_of(config, given, ends)
    return aim, _guess(config, given, aim)


@compiled(static=("config",))
def _first_look_at_scale(config: Config, given: Given, ends: tuple[Any, Any]) -> tuple[SearchAim, tuple[Array, Array]]:
    aim = goal_of(config, given, ends)
    mu = _mu_of(given)
    return aim, (mu, _slope(aim, given, mu))


@compiled(static=("config",))
def _result(config: Config, given: Given, aim: SearchAim, found: Found) -> Calibrated:
    result = _grade(aim, found)
    return result if config.unknown == "scale" else _with_covered(config, given, result)


@kernel
def solve(config: Config, given: Given, compose: Callable[[Any], tuple[Any, Any]]) -> Calibrated:
    """Returns the result of one concrete target; ``compose`` gives mechanism and steps for a value."""
    given = Given(*map(np.float64, given))
    least, most = ENDS[config.unknown]
    look = leave_scope(_first_look(_to_search(config, given), given, (np.float64(least), np.float64(most))))
    return _solve(config, given, compose, *look)


@kernel
def solve_scale(
    config: Config,
    given: Given,
    make: Callable[[Any], Any],
    steps: Any,
    ends: tuple[float, float],
) -> Calibrated:
    """Returns the result of one concrete target for the least scale of ``make``."""
    given, (low, high) = Given(*map(np.float64, given)), map(np.float64, ends)
    aim, (mu, slope) = leave_scope(_first_look_at_scale(_to_search(config, given), given, (low, high)))

    def is_small(setting: float) -> bool:
        """Whether the divergence of order 2 is at most that of mu, as the central limit theorem has it for small mu."""
        made = make(np.float64(math.exp(setting)))
        return bool(rdp.composed_curve(made, steps, [2.0], relation=config.relation)[0] <= mu**2)

    # To a thousandth of the range, or two: speed only.
    start = bisect(is_small, float(high), float(low), steps=10)
    return _solve(config, given, lambda value: (make(value), steps), aim, (np.float64(start), slope))


def _to_search(config: Config, given: Given) -> Config:
    """Returns what a search budgets for a concrete target: delta in the place of an epsilon that is no larger.

    Delta at the given epsilon is at most the given one where epsilon at that is at most the given one. Epsilons near 0
    do not tell how far a setting is from the best, and brackets of as small a share of them take seconds.
    """
    is_small = config.budget is ForEpsilon and given.epsilon <= given.delta
    return config._replace(budget=ForDelta) if is_small else config


def _solve(
    config: Config, given: Given, compose: Callable[[Any], tuple[Any, Any]], aim: SearchAim, guess: tuple[Any, Any]
) -> Calibrated:
    searched = _to_search(config, given)
    question = given.question_of(searched.budget)

    def result_of(found: Found) -> Calibrated:
        result: Calibrated = leave_scope(_result(config, given, aim, found))
        if searched.budget is config.budget or not result.satisfied or result.reached.upper == 0:
            return result
        if given.epsilon == 0:
            return replace(result, reached=zero())
        # The delta that was certified says that epsilon is at most the given one, and its own bracket may say more.
        most = Bounds(np.float64(0), given.epsilon, given.epsilon, np.bool_(False))
        asked = given.question_of(config.budget)
        return replace(
            result, reached=most.intersection(certified.answer(*compose(result.value), asked, config.relation))
        )

    def bounds_at(tolerance: float | None, value: Any) -> Bounds:
        return certified.answer(*compose(value), question, config.relation, tolerance)

    def run_search(tolerance: float | None, start: Any, slope: Any, is_slope: bool) -> SearchState:
        return search_by_calls(functools.partial(bounds_at, tolerance), aim, start, slope, np.bool_(is_slope))

    if config.unknown == "noise_multiplier":
        # Where no noise is needed there is nothing to search.
        unasked = result_of(leave_scope(_start_state(aim, *guess, np.bool_(False))).found)
        if unasked.status == Status.NOT_BINDING:
            return unasked
    rough = run_search(None, *guess, False)
    result = result_of(rough.found)
    # Distance from the best, in u, at which narrower brackets are not worth their while.
    near = max(10 * config.tolerance, 1e-5)
    is_found = bool(np.isfinite(rough.found.setting))
    is_near = is_found and not aim.whole and rough.found.distance <= near
    # A bracket that has not converged is of the largest size already.
    is_rough = is_found and not rough.found.reached.converged
    if is_near or is_rough or result.status not in (Status.LOOSE, Status.UNKNOWN):
        return result
    # Brackets blur the setting by a fifth of the tolerance, as they need room to refute within it, but have a gap of no
    # less than 1e-9. Sound for any numbers.
    steepness = float(aim.steepness())
    gap = float(np.clip(-0.2 * config.tolerance * rough.slope / max(steepness, 1e-3), 1e-9, 2e-4))
    if is_found and bounds_at(gap, rough.found.value).gap > max(gap, 0.5 * float(rough.found.reached.gap)):
        # Brackets are as narrow as they get: a search by slower ones would end where this one did.
        return result
    finer = run_search(gap, rough.found.setting if is_found else guess[0], rough.slope, is_found).found
    if not np.isfinite(finer.setting):
        return result
    better = result_of(finer)
    is_worse = better.value > result.value if aim.rises else better.value < result.value
    return result if not better.satisfied or (result.satisfied and is_worse) else better


# ----------------------------------------------------------------------------------------------------
# Derivatives of a calibrated setting, by the implicit function theorem.
#
# The setting x satisfies F(x, g) = T for the budgeted quantity F, the target T and the given numbers g. Where all of
# them move, dx = (dT - (dF/dg) dg) / (dF/dx), with the accountant's own derivatives. These are derivatives of the exact
# setting; the one that is returned is within the tolerance of it, on the safe side.
# ----------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def solve_traced(config: Config, given: Given) -> Calibrated:
    """Returns the result of one target inside a trace, where it has derivatives.

    Those of ``value`` are NaN where the search has not converged, and 0 at the end of a range and for whole steps.
    """
    found: Calibrated = one_by_one(calibrate, config)(given)
    return found


@solve_traced.defjvp
@within_scope
def _traced_jvp(config: Config, primals: Any, tangents: Any) -> tuple[Calibrated, Calibrated]:
    # Run whose derivatives exist, put in where a derivative is multiplied by 0. Any such run will do.
    plain = Given(epsilon=1.0, delta=1e-5, noise_multiplier=10.0, sampling_rate=0.5, steps=100.0)
    (given,), (moves,) = primals, tangents
    given = Given(*map(as_float64, given))
    # The tangent of a whole number has dtype float0, with which there is no arithmetic.
    moved = [getattr(move, "dtype", None) != jax.dtypes.float0 for move in moves]
    moves = Given(*(as_float64(move) if is_move else jnp.zeros(()) for move, is_move in zip(moves, moved, strict=True)))
    found = solve_traced(config, given)
    # The argument that is looked for does not move as a given number, and the budgeted quantity is the answer itself.
    still = moves._replace(**{config.unknown: jnp.zeros(()), config.budget.name: jnp.zeros(())})

    def answer_at(given: Given, value: Array) -> Array:
        mechanism, steps = composition(config, given, value)
        return jnp.asarray(answer(mechanism, steps, given.question_of(config.budget), config.relation).estimate)

    is_fixed = found.status == Status.NOT_BINDING if config.unknown != "steps" else jnp.asarray(True)
    # Slopes at a fixed setting are multiplied by 0, which must not meet a NaN: they are taken at a run that has them.
    at = jax.tree.map(lambda known, number: jnp.where(is_fixed, known, number), plain, given)
    _, change = jax.linearize(answer_at, at, jnp.where(is_fixed, plain._asdict()[config.unknown], found.value))
    by_value, by_given = change(jax.tree.map(jnp.zeros_like, at), jnp.ones(())), change(still, jnp.zeros(()))
    sought = moves.value_of(config.budget)
    slope = jnp.where(found.status == Status.CONVERGED, 1 / by_value, jnp.nan)
    move = jnp.where(is_fixed, 0.0, slope) * (sought - by_given)
    flat = np.zeros(np.shape(found.status), jax.dtypes.float0)
    tangent = Calibrated(move, Bounds(sought, sought, sought, flat), flat)
    return found, tangent
