"""A calibration's result, and the search for the least private setting that certified bounds allow.

A coordinate u grows with privacy, and the privacy profile is evaluated along it. Bounds alone decide what is accepted:
a setting is returned only where the certified upper bound at that very setting is within the budget, and is called the
best only where a lower bound refutes one that is nearer than the tolerance. Guesses, slopes and stopping rules decide
the time and the tightness, never the guarantee.

In reading order:

* :class:`Status` and :class:`Calibrated`, the result;
* :func:`search`, the search by certified bounds, and :func:`search_by_calls`, the same one step at a time;
* :func:`improve`, the search with the mesh's bounds;
* :func:`calibrate` and :func:`least_scale`, from a target to a setting in one traced function;
* :func:`solve`, the same with derivatives.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from jaxacct import certified, prv
from jaxacct.bounds import Bounds
from jaxacct.composition import ForEpsilon, Kind, Question, directed_parts
from jaxacct.composition import unknown as unknown_of
from jaxacct.mechanisms import Gaussian, Mechanism, PoissonSubsampledGaussian, group
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.mechanisms.normal import mu_bounds
from jaxacct.numerics import vmapped_loops
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    in_float64,
    is_concrete,
    leave_scope,
    log_complement,
    representable,
    representable_below,
    within_scope,
)
from jaxacct.numerics.programs import OUTWARD, compiled, outward
from jaxacct.numerics.pytrees import of_each, register_dataclass
from jaxacct.numerics.root_search import bisect_traced
from jaxacct.numerics.vmapped_loops import one_by_one
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
    UNKNOWN         nothing was certified; use concrete arguments, which the certified mesh accountant takes over
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
            advantage. ``reached.upper`` is at most the budget. Where the mesh was needed, :func:`jaxacct.epsilon`
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


# The setting was made representable when it was evaluated (:func:`.precision.representable`); only the bounds round.
OUTWARD[Calibrated] = lambda found: replace(found, reached=outward(found.reached))


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
class Aim:
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
        # The value is evaluated exactly as it will be read. Whole numbers below 2^46 are exact in any case.
        if self.whole:
            value = jnp.round(value)
            return jnp.where(value < 2.0**46, value, representable(value))
        return representable(value)

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


class State(NamedTuple):
    """State of a search after some evaluations: what is asked next, what is known of the curve, and the best setting.

    ``bad`` () is the most private setting that does not pass, ``refuted`` () the most private one that was refuted.
    ``last`` () and ``height`` () are the last setting with a known bound and its height.
    """

    round: Array
    setting: Array
    slope: Array
    """Derivative of the height in u."""
    is_slope: Array
    """Whether the slope is known, not only guessed."""
    last: Array
    height: Array
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
    aim: Aim,
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
    def step(state: State, of_lane: tuple[Aim, Any, Given]) -> State:
        aim, made, given = of_lane
        run = run_at(made, aim.value(state.setting))
        return _advance(aim, state, answer(*run, given.question_of(config.budget), config.relation))

    state = _start_state(aim, start, slope, jnp.zeros(start.shape, bool))
    return vmapped_loops.while_loop(
        lambda state, _: _goes_on(state), step, state, (aim, made, given), share=vmapped_loops.OF_QUEUES
    ).found


def search_by_calls(evaluate: Callable[[Any], Bounds], aim: Aim, start: Any, slope: Any, is_slope: Any) -> State:
    """Returns the last state of :func:`search` by bounds that a function gives for numbers, one after the other.

    ``is_slope`` is whether the slope is known; if not, nothing is called near the least before there is a secant.
    """
    state = leave_scope(_start_state(aim, start, slope, is_slope))
    # The same steps as the traced loop's, so that both accept the same settings; as many at most.
    while bool(_goes_on(state)):
        state = leave_scope(_advance(aim, state, evaluate(leave_scope(_value(aim, state.setting)))))
    return state


def _goes_on(state: State) -> Any:
    # Most evaluations of a search. Four to six are usual, ten where the guess was far off. Sound for any value.
    rounds = 24
    return ~state.is_done & (state.round < rounds)


@compiled
def _start_state(aim: Aim, start: Array, slope: Array, is_slope: Array) -> State:
    """Returns the state before anything is evaluated."""
    nothing = jnp.full_like(start, jnp.inf)
    never = jnp.zeros(start.shape, bool)
    unknown = Bounds(lower=0.0 * start, estimate=jnp.nan * start, upper=nothing, converged=never)
    found = Found(nothing, aim.value(nothing), unknown, nothing, never)
    first = jnp.clip(aim.below(start, jnp.where(is_slope, BELOW * aim.closeness, 0.0)), aim.least, aim.most)
    unseen = jnp.nan * start
    slope = jnp.where(slope < 0, slope, -1.0)
    return State(
        jnp.zeros(start.shape, int), first, slope, is_slope, unseen, unseen, jnp.zeros(start.shape, int), -nothing,
        -nothing, found, never,
    )  # fmt: skip


@compiled
def _advance(aim: Aim, state: State, bounds: Bounds) -> State:
    """Returns the state after one more evaluation, at the value of its setting.

    Its numbers are sound for any value: they decide how many evaluations there are and how near the least they end.
    """
    whole, u, found = aim.whole, state.setting, state.found
    high, low, goal = (aim.height(level) for level in (bounds.upper, bounds.lower, aim.target))
    # At an epsilon of 0 the curve is flat, and does not tell how far the least setting is.
    is_flat = (bounds.upper <= 0) if aim.scale is not None else jnp.zeros_like(state.is_done)
    known = (bounds.upper < (jnp.inf if aim.scale is not None else 1.0)) & ~is_flat
    passes, is_refuted = (known | is_flat) & (bounds.upper <= aim.target), bounds.lower > aim.target
    # The curve's slope. A secant counts only where it rose by far more than the bounds are apart.
    risen = high - state.height
    secant = risen / (u - state.last)
    usable = known & (secant < 0) & (jnp.abs(risen) > 10 * (high - low))
    slope, is_slope = jnp.where(usable, secant, state.slope), state.is_slope | usable
    step = jnp.where(known, (goal - high) / slope, 0.0)
    # The bracket of settings: refuted by a lower bound, not passed, and the best that passed.
    refuted = jnp.where(is_refuted, jnp.maximum(state.refuted, u), state.refuted)
    bad = jnp.where(passes, state.bad, jnp.maximum(state.bad, u))
    better = passes & (u < found.setting)
    new = Found(u, aim.value(u), bounds, found.distance, found.infeasible)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
    best = best._replace(distance=best.setting - refuted, infeasible=found.infeasible | (is_refuted & (u >= aim.most)))
    # The least setting by the secant, and its uncertainty: blur is the bounds' distance, in units of u.
    tolerance, blur = aim.closeness, jnp.where(known, (high - low) / -slope, 0.0)
    # A step may be off by 2 %, as the slope is only near, and is at most 0.5 long. The setting to be accepted lies 0.8
    # of the tolerance above the one refuted: with BELOW that leaves a third of the tolerance for the foresight's error.
    padding = 0.02 * jnp.abs(step)
    root = u + jnp.clip(step, -0.5, 0.5)
    accepted = refuted + jnp.maximum(0.8 * tolerance, 3 * blur)
    if whole:
        accepted = aim.next_below(refuted, accepted - refuted)
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
    if whole:
        retreat = aim.below(retreat, 0.0)
    ahead = jnp.where(known, jnp.where(is_near, accepted, refutable), retreat)
    # A setting at or below one that failed cannot pass. The distance from it grows with each round.
    beyond = jnp.maximum(bad + LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12), root + padding)
    ahead = jnp.where(ahead > bad, ahead, beyond)
    ahead = aim.between(jnp.clip(ahead, aim.least, aim.most), bad, best.setting)
    at_end = (passes & (u <= aim.least)) | (~passes & (u >= aim.most))
    is_close = best.distance <= jnp.maximum(tolerance, 3.1 * blur)
    # Where bounds say nothing just below a setting that passes, what is certified is loose, and each such evaluation is
    # a slow one: 5e-3 is near enough.
    enough = has_passed & (best.setting - bad <= jnp.where(known | is_flat, tolerance / 2, 5e-3))
    if whole:
        # Whole numbers end at neighbours, up to 10^8: the refutation of one step more certifies the best.
        is_adjacent = jnp.exp(-bad) - jnp.exp(-best.setting) < 1.5
        is_close = is_adjacent | ((is_close | enough) & (aim.value(u) > 1e8))
    else:
        # After 14 evaluations any setting that passes will do: where so many are needed the bounds are rough.
        is_close = is_close | enough | (has_passed & (state.round + 1 >= 14))
    is_done = is_close | at_end | (retreats > 4) | (ahead == u)
    height, last = jnp.where(known, high, state.height), jnp.where(known, u, state.last)
    return State(state.round + 1, ahead, slope, is_slope, last, height, retreats, bad, refuted, best, is_done)


_value = compiled(Aim.value)
"""Compiled :meth:`Aim.value`, for the search by calls."""


# ----------------------------------------------------------------------------------------------------
# The search with the mesh's bounds, by calls: for concrete targets that the exact accountant cannot certify.
#
# A mesh takes tens of milliseconds, and longer the narrower its bracket is wanted. So the search is made twice: first
# to about the setting, by rough bounds, then from there, by bounds that blur the setting by a share of the tolerance.
# ----------------------------------------------------------------------------------------------------


@in_float64(by_programs=True)
def improve(
    config: Config,
    compose: Callable[[Any], tuple[Any, Any]],
    before: Calibrated,
    start: float,
    given: Given,
    ends: tuple[float, float],
) -> Calibrated:
    """Returns what is certified with the mesh's help, or ``before`` where that satisfies the budget and is no worse.

    ``compose`` gives the mechanism and the steps for a value of what is looked for.
    """
    aim = goal_of(config, Given(*map(np.float64, given)), ends)

    def run_search(bracket: Callable[..., Bounds], start: Any, slope: Any, is_slope: bool) -> State:
        def bounds_at(value: Any) -> Bounds:
            return bracket(*compose(value), given.question_of(config.budget), config.relation)

        return search_by_calls(bounds_at, aim, np.float64(start), np.float64(slope), np.bool_(is_slope))

    def better_than(before: Calibrated, found: Found) -> Calibrated:
        result = leave_scope(_grade(aim, found))
        worse = not result.satisfied or (result.value > before.value if aim.rises else result.value < before.value)
        return before if result.status == Status.UNKNOWN or (before.satisfied and worse) else result

    # Before two settings tell, log delta has a slope of about -20 in u. One mesh, of which one program is compiled, is
    # mostly all that is needed. If not, bounds blur the setting by a fifth of the tolerance, as they need room to
    # refute within it, but have a gap of no less than 1e-9. Sound for any numbers.
    # Losses with atoms, which a scale's mechanisms may have, do with fewer points. Sound for any size.
    mesh = 2**15 if aim.scale is None else 2**13
    steepness = float(aim.steepness())
    slope = -20.0 * steepness if aim.scale is None else -0.5
    rough = run_search(functools.partial(prv.accountant.answer, points=mesh), start, slope, False)
    result = better_than(before, rough.found)
    # Distance from the best, in u, at which finer meshes, each of them a program to compile, are not worth their while.
    near = max(10 * config.tolerance, 1e-5)
    is_near = rough.found.setting < np.inf and not aim.whole and rough.found.distance <= near
    if result.status in (Status.LOOSE, Status.UNKNOWN) and not is_near:
        gap = float(np.clip(-0.2 * config.tolerance * rough.slope / max(steepness, 1e-3), 1e-9, 2e-4))
        is_found = bool(np.isfinite(rough.found.setting))
        begin = rough.found.setting if is_found else start
        finer = run_search(functools.partial(certified.answer, tolerance=gap), begin, rough.slope, is_found).found
        result = better_than(result, finer) if np.isfinite(finer.setting) else result
    return result


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


def goal_of(config: Config, given: Given, ends: tuple[Any, Any]) -> Aim:
    """Returns the goal of the search."""
    target = given.value_of(config.budget)
    # Epsilons far below the budget count by differences, not by ratios; at a budget of 0, so do those far below delta.
    scale = jnp.maximum(given.epsilon, given.delta) if config.budget is ForEpsilon else None
    rises = config.unknown in ("noise_multiplier", "scale")
    return Aim(target, *ends, config.tolerance, scale, rises=rises, whole=config.unknown == "steps")


@in_float64
def calibrate(config: Config, given: Given) -> tuple[Calibrated, Array]:
    """Returns the result of one target, and the setting u that was guessed."""
    return _calibrate(config, Given(*map(as_float64, given)))


@compiled(static=("config",))
def _calibrate(config: Config, given: Given) -> tuple[Calibrated, Array]:
    aim, found, start = _calibrate_in_program(config, given)
    return _with_covered(config, given, _grade(aim, found)), start


def _calibrate_in_program(config: Config, given: Given) -> tuple[Aim, Found, Array]:
    least, most = ENDS[config.unknown]
    aim = goal_of(config, given, (as_float64(least), as_float64(most)))
    setting, power, mu = _gaussian_start(config, given)
    run_at = functools.partial(composition, config)
    return aim, search(config, run_at, given, given, aim, setting, _slope(aim, given, mu) * power), setting


def least_setting(config: Config, given: Given) -> Array:
    """Returns the least setting u that the exact accountant certifies, or inf. Inside a program."""
    return _calibrate_in_program(config, given)[1].setting


@compiled
def _grade(aim: Aim, found: Found) -> Calibrated:
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

    It solves mu = q sqrt(k (e^(1/s^2) - 1)) (Bu et al. 2020, Theorem 5). To a group of g the noise is about s/g.
    """
    unknown, size = config.unknown, float(config.group)
    s, q, k = given.noise_multiplier / size, given.sampling_rate, given.steps
    mu = mu_bounds(given.epsilon, given.delta)[0]
    if unknown == "noise_multiplier":
        alone = -0.5 * jnp.log(jnp.log1p((mu / q) ** 2 / k))
        setting = jnp.clip(alone + np.log(size), *ENDS[unknown])
        # With little noise the power is capped: there rare large losses rule, and the central limit does not hold.
        inverse = jnp.exp(-2 * (setting - np.log(size)))
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
        least = representable_below(least)
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


@in_float64
@compiled(static=("config", "make"))
def least_scale(
    config: Config, make: Callable[[Array], Any], given: Given, steps: Any, ends: tuple[Array, Array]
) -> tuple[Calibrated, Array]:
    """Returns the result for the least scale of ``make``, and the setting that the search began at."""
    low, high = ends
    if not has_laws(make(jnp.exp(low)), steps, config.relation):
        nothing = unknown_of(ForEpsilon(low))
        return Calibrated(nothing.upper, nothing, jnp.asarray(Status.UNKNOWN, jnp.int32)), (low + high) / 2
    aim = goal_of(config, given, ends)
    mu = mu_bounds(given.epsilon, given.delta)[0]
    start = _start_of_scale(config, make, steps, mu, ends)
    slope = _slope(aim, given, mu)
    found = search(config, lambda steps, scale: (make(scale), steps), steps, given, aim, start, slope)
    return _grade(aim, found), start


# ----------------------------------------------------------------------------------------------------
# Derivatives of a calibrated setting, by the implicit function theorem.
#
# The setting x satisfies F(x, g) = T for the budgeted quantity F, the target T and the given numbers g. Where all of
# them move, dx = (dT - (dF/dg) dg) / (dF/dx), with the accountant's own derivatives. These are derivatives of the exact
# setting; the one that is returned is within the tolerance of it, on the safe side.
# ----------------------------------------------------------------------------------------------------

Answer = tuple[Calibrated, Array]
"""Type of an answer: the result, and the setting u that was guessed."""


def solve(config: Config, given: Given) -> Answer:
    """Returns the result of one target, and the setting that was guessed; inside a trace it has derivatives.

    Those of ``value`` are NaN where the search has not converged, and 0 at the end of a range and for whole steps.
    """
    return calibrate(config, given) if is_concrete(given) else _solve_traced(config, given)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve_traced(config: Config, given: Given) -> Answer:
    return one_by_one(calibrate, config)(given)


@_solve_traced.defjvp
@within_scope
def _traced_jvp(config: Config, primals: Any, tangents: Any) -> tuple[Answer, Answer]:
    # Run whose derivatives exist, put in where a derivative is multiplied by 0. Any such run will do.
    plain = Given(epsilon=1.0, delta=1e-5, noise_multiplier=10.0, sampling_rate=0.5, steps=100.0)
    (given,), (moves,) = primals, tangents
    given = Given(*map(as_float64, given))
    # The tangent of a whole number has dtype float0, with which there is no arithmetic.
    moved = [getattr(move, "dtype", None) != jax.dtypes.float0 for move in moves]
    moves = Given(*(as_float64(move) if is_move else jnp.zeros(()) for move, is_move in zip(moves, moved, strict=True)))
    found, start = solve(config, given)
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
    return (found, start), (tangent, jnp.zeros(()))
