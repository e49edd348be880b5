"""A calibration's result, and the search for the least private setting that certified bounds allow.

A coordinate u grows with privacy, and the privacy profile is evaluated along it. Bounds alone decide what is accepted:
a setting is returned only where the certified upper bound at that very setting is within the budget, and is called the
best only where a lower bound refutes one that is nearer than the tolerance. Guesses, slopes and stopping rules decide
the time and the tightness, never the guarantee.

In reading order:

* :class:`Status` and :class:`Calibrated`, the result;
* :data:`SETTINGS`, :class:`Config` and :class:`Numbers`, the target;
* :func:`search`, the search: one step, :func:`advance`, which concrete calls run one by one and a trace in a loop;
* :func:`begin`, where a search starts, and :func:`result_of`, what it says where it has ended;
* :func:`solve` and :func:`solve_traced`, from a target to a setting; the latter has derivatives.
"""

from __future__ import annotations

import enum
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from jaxacct import certified, rdp
from jaxacct.bounds import Bounds, zero
from jaxacct.composition import ForDelta, ForEpsilon, Kind, Question, query_of
from jaxacct.composition import unknown as unknown_of
from jaxacct.convert import dp_to_gdp
from jaxacct.mechanisms import Gaussian, Mechanism, PoissonSubsampledGaussian, group
from jaxacct.mechanisms.discrete_gaussian import nearby
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.mechanisms.normal import mu_bounds
from jaxacct.numerics import batched_loops
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.batched_loops import one_by_one
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    is_concrete,
    kernel,
    leave_scope,
    log_complement,
    within_scope,
)
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect, bisect_traced
from jaxacct.refinement import ToleranceWarning
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
            confirms it only at as small a ``tolerance``. ``reached.lower`` is that of the dominating pairs.
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
# Targets: which setting a search looks for, and the numbers that are known.
# ----------------------------------------------------------------------------------------------------


class SearchedSetting(NamedTuple):
    """A setting that may be looked for, along the coordinate u, which grows with privacy."""

    most_private: str
    """The last setting of the search in words, for messages."""
    ends: tuple[float, float] | None = None
    """Smallest and largest u of the search; None where the caller says."""
    rises: bool = False
    """Whether the setting at u is e^u, as that of noise is, and not e^-u."""
    is_whole: bool = False
    """Whether the setting is a whole number."""


SETTINGS = {
    # The least noise costs an epsilon of 5e11 a full step, the largest suits delta = 1e-15.
    "noise_multiplier": SearchedSetting("a noise multiplier of {:.3g}", (math.log(1e-6), math.log(1e15)), rises=True),
    "sampling_rate": SearchedSetting("a rate of {:.3g}", (0.0, -math.log(1e-12))),
    "steps": SearchedSetting("a single step", (-math.log(MOST_STEPS), 0.0), is_whole=True),
    "scale": SearchedSetting("a scale of {:.3g}", rises=True),
}
"""The settings that may be looked for."""


class Config(NamedTuple):
    """Static part of a target: which setting is looked for, what is budgeted, and how closely."""

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


class Numbers(NamedTuple):
    """Numbers of a target, float64 (); the one that is looked for holds anything."""

    epsilon: Any
    delta: Any
    noise_multiplier: Any = 1.0
    sampling_rate: Any = 1.0
    steps: Any = 1.0

    def question_of(self, budget: Kind) -> Question:
        """Returns the question whose answer is budgeted."""
        return budget(self.delta if budget is ForEpsilon else self.epsilon)

    def value_of(self, budget: Kind) -> Any:
        """Returns the budget."""
        return self.epsilon if budget is ForEpsilon else self.delta


def composition_at(
    config: Config, numbers: Numbers, value: Any, make: Callable[[Any], Any] | None = None, steps: Any = None
) -> tuple[Any, Any]:
    """Returns mechanism and steps with ``value`` put in for what is looked for, for a group where there is one.

    Those of a scale are what ``make`` gives, and ``steps``.
    """
    if make is not None:
        return make(value), steps
    run = numbers._replace(**{config.unknown: value})
    mechanism: Mechanism = PoissonSubsampledGaussian(run.noise_multiplier, run.sampling_rate)
    if config.is_plain:
        mechanism = Gaussian(run.noise_multiplier)
    return mechanism if config.group == 1 else group(mechanism, config.group), 1 if config.is_single else run.steps


# ----------------------------------------------------------------------------------------------------
# The search along one coordinate u for the least setting that is certified to satisfy a budget: one for all
# calibrations.
#
# u grows with privacy: it is the logarithm of the noise, of the rate's inverse, or of the steps' inverse. The search
# accepts a setting only by the certified upper bound at that very setting, so nothing about the search needs to be
# right for the answer to be safe: the guess, the slopes and the stopping rule decide how near it comes to the least.
#
# Secants lead to a setting just below the least, which the lower bound there refutes. Then the search asks of the
# setting a little less than the tolerance above, and closes: from a good guess, two evaluations. Where bounds say
# nothing the search retreats to more privacy; once one setting has failed and one has passed it never leaves the two.
#
# A narrow bracket costs far more than a usual one where an accountant composes laws of atoms. So a search by such
# accountants asks for brackets of usual width first. Where these end it far from the least, it goes on from there by
# brackets that blur the setting by a share of the tolerance (:func:`_narrow_brackets`).
# ----------------------------------------------------------------------------------------------------


LEAST_PADDING = 2e-10
"""Smallest distance in u from a setting that failed. It grows eightfold with each evaluation, so that roundings cannot
keep the search awake. Sound for any value."""

BELOW = 0.35
"""Share of the tolerance by which the setting to be refuted is less private than the foreseen least. Sound for any
value."""

PROBE = 0.95
"""Share of the tolerance by which the search undercuts a setting, to prove that it is near the best. Sound for any
value."""


@register_dataclass
@dataclass(frozen=True)
class SearchAim:
    """Goal of a search: the budget, the range, the tolerance, and where to start.

    Attributes:
        target (): the budget, of an epsilon or of a delta.
        least (): smallest setting.
        most (): largest setting.
        tolerance (): distance from the least, in u, at which to stop.
        start (): about the least setting.
        slope (): about the derivative in u of the height. The search closes in on the least only by a secant.
        scale (): of a budgeted epsilon: below it differences count, above it ratios. None where delta is budgeted.
        rises: whether the value of a setting u is ``exp(u)``, not ``exp(-u)``.
        is_whole: whether values are whole numbers, ``exp(-u)`` rounded; then the search ends at neighbours.
        narrows: whether brackets can be asked for that are narrower than usual.
    """

    target: Any
    least: Any
    most: Any
    tolerance: Any
    start: Any
    slope: Any
    scale: Any = None
    rises: bool = field(default=False, metadata={"static": True})
    is_whole: bool = field(default=False, metadata={"static": True})
    narrows: bool = field(default=False, metadata={"static": True})

    def value(self, setting: Array) -> Array:
        """Returns the value of a setting, which is what is evaluated and returned."""
        value = jnp.exp(setting if self.rises else -setting)
        return jnp.round(value) if self.is_whole else value

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
        return 1e-9 if self.is_whole else self.tolerance

    def below(self, setting: Array, distance: Array | float) -> Array:
        """Returns a setting so much less private; of whole values the next larger one, by as much at least."""
        lower = setting - distance
        if not self.is_whole:
            return lower
        larger = jnp.floor(jnp.exp(-setting) * (1 + scale_error(1e-12))) + 1
        return -jnp.log(jnp.maximum(larger, jnp.ceil(jnp.exp(-lower))))

    def above(self, setting: Array, distance: Array) -> Array:
        """Returns a setting so much more private; of whole values the next smaller one, by as much at least."""
        if not self.is_whole:
            return setting + distance
        return -jnp.log(jnp.minimum(jnp.round(jnp.exp(-setting)) - 1, jnp.floor(jnp.exp(-setting - distance))))

    def between(self, ahead: Array, failed: Array, best: Array) -> Array:
        """Returns ``ahead`` where it lies between the settings known to fail and to pass, else one that does."""
        if self.is_whole:
            # Values run the other way: from one above those known to pass to one below those known to fail.
            low, high = jnp.round(jnp.exp(-best)), jnp.round(jnp.minimum(jnp.exp(-failed), float(MOST_STEPS + 1)))
            return -jnp.log(jnp.clip(jnp.round(jnp.exp(-ahead)), low + 1, jnp.maximum(high - 1, 1.0)))
        middle = jnp.where((failed > -jnp.inf) & (best < jnp.inf), (failed + best) / 2, jnp.minimum(ahead, best))
        return jnp.where((ahead > failed) & (ahead < best), ahead, middle)


class SearchState(NamedTuple):
    """State of a search after some evaluations: what to ask next, what is known of the curve, and the best setting."""

    round: Array
    setting: Array
    """The setting to be evaluated next, and its value."""
    value: Array
    gap: Any
    """Relative gap of the bracket to be asked for, inf for one of usual width; None where all have one width."""
    best: Array
    """The least setting that passed, +inf where none has; its value, as it was evaluated, and the bracket there."""
    best_value: Array
    reached: Bounds
    failed: Array
    """The most private setting that did not pass, and the most private one that a lower bound refuted."""
    refuted: Array
    slope: Array
    """Derivative of the height in u."""
    is_slope: Array
    """Whether the slope is known, not only guessed."""
    last: Array
    """The last setting with a known bound, and the heights of both ends of its bracket."""
    height: Array
    low: Array
    retreats: Array
    is_done: Array


def search(
    evaluate: Callable[[SearchState, Any], Bounds], aim: SearchAim, state: SearchState, lane: Any = None
) -> SearchState:
    """Returns the last state of a search; inside a trace as one loop, and of concrete numbers step by step.

    Args:
        evaluate: function of a state and ``lane``, to the bounds at the state's value, which fall in u.
        aim: the goal.
        state: the first state, of :func:`start_at`.
        lane: pytree of numbers that evaluations take.
    """

    def step(state: SearchState, of_lane: tuple[SearchAim, Any]) -> SearchState:
        aim, lane = of_lane
        return advance(aim, state, evaluate(state, lane))

    # A step evaluates the setting that the last one chose. Every lane ends, as each round counts (:func:`_goes_on`).
    if not is_concrete(aim, state, lane):
        return batched_loops.while_loop(
            lambda state, _: _goes_on(state), step, state, (aim, lane), share=batched_loops.OF_QUEUES
        )
    # Wide brackets of settings that are only tried are the search's own concern.
    with warnings.catch_warnings(action="ignore", category=ToleranceWarning):
        while bool(_goes_on(state)):
            state = leave_scope(step(leave_scope(state), (aim, lane)))
    return state


def _goes_on(state: SearchState) -> Any:
    # Most evaluations by brackets of one width. Four to six are usual, ten where the guess was far off. Sound for any
    # value.
    rounds = 24
    return ~state.is_done & (state.round < rounds)


@compiled
def start_at(aim: SearchAim) -> SearchState:
    """Returns the state before anything is evaluated."""
    start = aim.start
    unbounded, never, unseen = jnp.full_like(start, jnp.inf), jnp.zeros(start.shape, bool), jnp.nan * start
    setting, none = jnp.clip(aim.below(start, 0.0), aim.least, aim.most), jnp.zeros(start.shape, int)
    return SearchState(
        round=none, setting=setting, value=aim.value(setting), gap=unbounded if aim.narrows else None,
        best=unbounded, best_value=aim.value(unbounded), reached=Bounds(0.0 * start, unseen, unbounded, never),
        failed=-unbounded, refuted=-unbounded, slope=jnp.where(aim.slope < 0, aim.slope, -1.0), is_slope=never,
        last=unseen, height=unseen, low=unseen, retreats=none, is_done=never,
    )  # fmt: skip


@compiled
def advance(aim: SearchAim, state: SearchState, bounds: Bounds) -> SearchState:
    """Returns the state after one more evaluation, at the value of its setting: the step of every search.

    Its numbers are sound for any value: they decide how many evaluations there are and how near the least they end.
    """
    u = state.setting
    high, low, goal = (aim.height(level) for level in (bounds.upper, bounds.lower, aim.target))
    # At an epsilon of 0 the curve is flat, and does not tell how far the least setting is.
    is_flat = (bounds.upper <= 0) if aim.scale is not None else jnp.zeros_like(state.is_done)
    known = (bounds.upper < (jnp.inf if aim.scale is not None else 1.0)) & ~is_flat
    passes = (known | is_flat) & (bounds.upper <= aim.target)
    # An upper bound alone, such as that of curves, is followed as if the bracket had no width.
    is_alone = bounds.lower <= 0
    low = jnp.where(is_alone, high, low)
    # The curve's slope. A secant counts only where it rose by far more than the bounds are apart, or both ends alike.
    risen = high - state.height
    secant = risen / (u - state.last)
    is_steady = jnp.abs(risen) > 10 * jnp.abs(risen - (low - state.low))
    usable = known & (secant < 0) & ((jnp.abs(risen) > 10 * (high - low)) | is_steady)
    slope, is_slope = jnp.where(usable, secant, state.slope), state.is_slope | usable
    step = jnp.where(known, (goal - high) / slope, 0.0)
    # Blur is the bounds' distance, in units of u. Where both ends of a wide bracket move alike the lower one tells
    # nothing of where the upper one passes, and the search follows the upper one.
    tolerance, blur = aim.closeness, jnp.where(known, (high - low) / -slope, 0.0)
    is_alone |= known & is_steady & (blur >= 1e-2)
    blur = jnp.where(is_alone, 0.0, blur)
    refuted = jnp.where(bounds.lower > aim.target, jnp.maximum(state.refuted, u), state.refuted)
    failed = jnp.where(passes, state.failed, jnp.maximum(state.failed, u))
    better = passes & (u <= state.best)
    best, best_value, reached = jax.tree.map(
        lambda new, old: jnp.where(better, new, old),
        (u, state.value, bounds),
        (state.best, state.best_value, state.reached),
    )
    # The least setting by the secant, and its uncertainty. A step may be off by 2 %, as the slope is only near, and is
    # at most 0.5 long. The setting to be accepted lies 0.8 of the tolerance above the one refuted: with BELOW that
    # leaves a third of the tolerance for the foresight's error.
    padding = 0.02 * jnp.abs(step)
    root = u + jnp.clip(step, -0.5, 0.5)
    lowest = jnp.where(is_alone, failed, refuted)
    accepted = aim.above(lowest, jnp.maximum(0.8 * tolerance, 3 * blur))
    is_near = known & is_slope & ((root if aim.is_whole else root + padding) <= accepted)
    refutable = aim.below(root, jnp.maximum(BELOW * tolerance, 1.2 * blur))
    # A setting to be refuted lies no farther below one that passed than it takes to prove that one near the least.
    closest = aim.below(best, PROBE * jnp.maximum(tolerance, 3 * blur))
    refutable = jnp.where(root > closest, jnp.maximum(refutable, closest), refutable)
    # Where bounds say nothing: between what passed and what did not; else away from what costs more, or costs nothing,
    # by a first step of 0.02 and further ones four times longer each; after four of them the search gives up.
    has_passed, has_failed = best < jnp.inf, failed > -jnp.inf
    is_lost = ~(known | (has_passed & has_failed))
    away = jnp.where(is_flat, -0.02, 0.02) * 4.0**state.retreats
    retreat = jnp.where(is_lost, u + away, (failed + best) / 2)
    retreats = state.retreats + is_lost
    # Secants of wide brackets lead nowhere where their ends move as they like.
    says = is_flat | (known & (blur < 1e-2))
    follows = known & (says | ~(has_passed & has_failed))
    if aim.is_whole:
        retreat = aim.below(retreat, 0.0)
    ahead = jnp.where(follows, jnp.where(is_near, accepted, refutable), retreat)
    # A setting at or below one that failed cannot pass. The distance from it grows with each round.
    beyond = jnp.maximum(failed + LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12), root + padding)
    ahead = aim.between(jnp.clip(jnp.where(ahead > failed, ahead, beyond), aim.least, aim.most), failed, best)
    at_end = (passes & (u <= aim.least)) | (~passes & (u >= aim.most))
    is_close = best - lowest <= jnp.maximum(tolerance, 3.1 * blur)
    # Where bounds say nothing just below a setting that passes, or hardly anything, what is certified is loose, and
    # each such evaluation is a slow one: 5e-3 is near enough, or a third of the blur.
    enough = has_passed & (best - failed <= jnp.where(says, tolerance / 2, jnp.maximum(5e-3, blur / 3)))
    if aim.is_whole:
        # Whole numbers end at neighbours, up to 10^8: the refutation of one step more certifies the best.
        is_adjacent = jnp.exp(-failed) - jnp.exp(-best) < 1.5
        is_close = is_adjacent | ((is_close | enough) & (state.value > 1e8))
    else:
        # By narrow bounds the least is refuted just below, where rounding alone kept a setting from passing.
        probes = enough & says & (3 * blur <= tolerance) & (u != closest)
        ahead, enough = jnp.where(probes & (closest > aim.least), closest, ahead), enough & ~probes
        # After 14 evaluations any setting that passes will do: where so many are needed the bounds are rough.
        is_close = is_close | enough | (has_passed & (state.round + 1 >= 14))
    last, height, low = (
        jnp.where(known, new, old) for new, old in ((u, state.last), (high, state.height), (low, state.low))
    )
    after = SearchState(
        state.round + 1, ahead, aim.value(ahead), state.gap, best, best_value, reached, failed, refuted, slope,
        is_slope, last, height, low, retreats, is_close | at_end | (retreats > 4) | (ahead == u),
    )  # fmt: skip
    return _narrow_brackets(aim, state, after, bounds) if aim.narrows else after


def _narrow_brackets(aim: SearchAim, before: SearchState, after: SearchState, bounds: Bounds) -> SearchState:
    """Returns the state after an evaluation, to go on by narrower brackets where usual ones end far from the least.

    It starts at the best setting, where its first bracket tells whether narrower ones are to be had at all. Its numbers
    are sound for any value.
    """
    is_usual, has_passed = before.gap == jnp.inf, after.best < jnp.inf
    # Distance from the best at which narrower brackets are not worth their while; of whole numbers that of neighbours.
    near = aim.tolerance + 1 / after.best_value if aim.is_whole else jnp.maximum(10 * aim.tolerance, 1e-5)
    is_proved = (after.best - after.refuted <= near) | (after.best <= aim.least) | (after.refuted >= aim.most)
    # A bracket that has not converged is of the largest size already.
    narrows = after.is_done & is_usual & ~is_proved & (~has_passed | after.reached.converged)
    # Brackets blur the setting by a fifth of the tolerance, as they need room to refute within it, but have a gap of no
    # less than 1e-9.
    gap = jnp.clip(-0.2 * aim.tolerance * after.slope / jnp.maximum(aim.steepness(), 1e-3), 1e-9, 2e-4)
    first = start_at(aim)
    start = first._replace(
        setting=jnp.where(has_passed, after.best, first.setting),
        value=jnp.where(has_passed, after.best_value, first.value),
        gap=gap, best=after.best, best_value=after.best_value, reached=after.reached,
        failed=after.refuted, refuted=after.refuted, slope=after.slope, is_slope=has_passed,
    )  # fmt: skip
    # Where the first narrow bracket is hardly narrower, all would be: the search ends where it was.
    usual, narrow = ((ends.upper - ends.lower) / ends.upper for ends in (before.reached, bounds))
    is_first = ~is_usual & (before.round == 0) & (before.setting == before.best)
    after = after._replace(is_done=after.is_done | (is_first & (narrow > jnp.maximum(before.gap, 0.5 * usual))))
    return jax.tree.map(lambda new, old: jnp.where(narrows, new, old), start, after)


# ----------------------------------------------------------------------------------------------------
# Where a search starts, about where the central limit theorem puts the setting, and what it says in the end.
# ----------------------------------------------------------------------------------------------------


@compiled(static=("config", "narrows"))
def begin(
    config: Config, numbers: Numbers, ends: tuple[Any, Any] | None, start: Any, narrows: bool
) -> tuple[SearchAim, SearchState]:
    """Returns the goal of the search for a target, and its first state, which is the last where no noise is needed.

    ``ends`` and ``start`` are those of a scale, in u; None for the settings of a run.
    """
    setting, mu = SETTINGS[config.unknown], _mu_of(numbers)
    least, most = map(as_float64, ends or setting.ends or ())
    power: Any = 1.0
    if start is None:
        start, power = _gaussian_start(config, numbers, mu)
    # Epsilons far below the budget count by differences, not by ratios; at a budget of 0, so do those far below delta.
    scale = jnp.maximum(numbers.epsilon, numbers.delta) if config.budget is ForEpsilon else None
    aim = SearchAim(
        numbers.value_of(config.budget), least, most, as_float64(config.tolerance), as_float64(start), 0.0, scale,
        setting.rises, setting.is_whole, narrows,
    )  # fmt: skip
    # About the slope where mu-GDP meets the target, and mu goes like e^-u.
    if scale is not None:
        slope = -jnp.maximum(numbers.epsilon + mu**2 / 2, 2 * numbers.delta) / (numbers.epsilon + scale)
    else:
        t = numbers.epsilon / mu - mu / 2
        slope = -jnp.maximum(t * (t + mu), 1.0) * aim.steepness()
    aim = replace(aim, slope=slope * power)
    state = start_at(aim)
    if config.unknown == "noise_multiplier":
        state = state._replace(is_done=_find_covered(config, numbers)[2])
    return aim, state


def _gaussian_start(config: Config, numbers: Numbers, mu: Array) -> tuple[Array, Array]:
    """Returns the setting by the central limit theorem, and the power of e^-u that mu goes like there.

    It solves mu = q sqrt(k (e^(1/s^2) - 1)) (Bu et al. 2020, Theorem 5). To a group of g the noise is about s/g. Far
    from that limit, of little noise, an example costs no more than the runs that it is hardly ever sampled beyond, on
    all of which it is sampled: for these the noise is their root over mu.
    """
    unknown, size = config.unknown, float(config.group)
    s, q, k = numbers.noise_multiplier / size, numbers.sampling_rate, numbers.steps
    ends = SETTINGS[unknown].ends
    assert ends is not None
    if unknown == "noise_multiplier":
        alone = -0.5 * jnp.log(jnp.log1p((mu / q) ** 2 / k))
        rare = -jnp.log(numbers.delta)
        sampled = jnp.minimum(k, k * q + jnp.sqrt(2 * k * q * rare) + rare)
        alone = jnp.minimum(alone, 0.5 * jnp.log(sampled) - jnp.log(mu))
        setting = jnp.clip(alone + np.log(size), *ends)
        # With little noise the power is capped: there rare large losses rule, and the central limit does not hold.
        inverse = jnp.exp(-2 * (setting - np.log(size)))
        return setting, jnp.minimum(inverse / -jnp.expm1(-inverse), 2.0)
    growth = jnp.log(jnp.expm1(jnp.minimum(1 / s**2, 700.0)))
    # With little noise the budget is for so many runs with the example, and (kq)^n/n! is about the probability of one
    # more; log n! by Stirling. With the noise for none, delta covers that there is one (:func:`_find_covered`).
    n = jnp.floor(jnp.minimum(0.99 * mu**2 * s**2, 1e6)) + 1
    log_kq = jnp.log(n) - 1 + (jnp.log(numbers.delta) + 0.5 * jnp.log(2 * np.pi * n)) / n
    if unknown == "sampling_rate":
        setting = jnp.minimum(0.5 * (jnp.log(k) + growth) - jnp.log(mu), jnp.log(k) - log_kq)
        return jnp.clip(setting, *ends), jnp.ones(())
    setting = jnp.minimum(2 * (jnp.log(q) - jnp.log(mu)) + growth, jnp.log(q) - log_kq)
    return jnp.clip(setting, *ends), jnp.full((), 0.5)


@compiled
def _mu_of(numbers: Numbers) -> Array:
    """Returns about the mu whose budget is the given one; of a budget beyond all bounds the root of 2 epsilon."""
    mu = mu_bounds(numbers.epsilon, numbers.delta)[0]
    return jnp.where(mu > 0, mu, jnp.sqrt(2 * numbers.epsilon))


def _start_of_scale(
    config: Config, numbers: Numbers, make: Callable[[Any], Any], steps: Any, ends: tuple[Any, Any]
) -> Any:
    """Returns the setting at which the divergence of order 2 is mu^2, as the central limit has it for small mu."""
    is_seen, most = is_concrete(numbers, steps), leave_scope(_mu_of(numbers)) ** 2

    def is_small(setting: Any) -> Any:
        scale = np.float64(math.exp(setting)) if is_seen else jnp.exp(setting)
        # Of integer noise on vectors that of Gaussian noise: it is a start alone.
        mechanism, _ = nearby(make(scale), steps, 0.0, below=False)
        return rdp.composed_curve(mechanism, steps, [2.0], relation=config.relation)[0] <= most

    # To a thousandth of the range, or in a trace to less: speed only.
    low, high = ends
    return bisect(is_small, high, low, steps=10) if is_seen else bisect_traced(is_small, high, low, steps=24)


@compiled(static=("config",))
def result_of(config: Config, numbers: Numbers, aim: SearchAim, state: SearchState) -> Calibrated:
    """Returns the result of a search, with its status."""
    # For a whole number of steps the next one is refuted, which is 1 / value away in u.
    close = state.best - state.refuted <= aim.tolerance + (1 / state.best_value if aim.is_whole else 0.0)
    status = jnp.where(close, Status.CONVERGED, Status.LOOSE)
    status = jnp.where(state.best <= aim.least, Status.NOT_BINDING, status)
    nothing = jnp.where(state.refuted >= aim.most, Status.INFEASIBLE, Status.UNKNOWN)
    status = jnp.where(state.best < jnp.inf, status, nothing)
    result = Calibrated(state.best_value, state.reached, status.astype(jnp.int32))
    return result if config.unknown == "scale" else _with_covered(config, numbers, result)


def _find_covered(config: Config, numbers: Numbers) -> tuple[Array, Array, Array]:
    """Returns a setting that delta covers by the sampling alone, whatever the noise; delta there, and whether it does.

    A run in which the example is never sampled releases nothing of it, so the total variation distance, which is delta
    at epsilon 0, is at most 1 - (1 - q)^k; of g examples none is ever sampled with the probability (1 - q)^(g k). Where
    that is within the budget no noise is needed; and it gives a rate, or a number of steps, that is within the budget
    at any noise: the largest one if there is none.
    """
    size = float(config.group)
    s, q, k = numbers.noise_multiplier, numbers.sampling_rate, numbers.steps
    uncovered, off = log_complement(numbers.delta), arithmetic().function

    def sampled_at_most(q: Array, k: Array) -> Array:
        share = -jnp.expm1(size * k * log_complement(jnp.minimum(q, 1 - roundoff()))) * (1 + 8 * off)
        return jnp.where(k == 0, 0.0, jnp.where(q < 1, share, 1.0))

    valid = (q > 0) & (q <= 1) & (numbers.epsilon >= 0) & (numbers.delta > 0) & (numbers.delta < 1)
    if config.unknown == "noise_multiplier":
        value, valid = jnp.zeros(()), valid & (k >= 0)
    elif config.unknown == "sampling_rate":
        least = -jnp.expm1(uncovered * (1 - 32 * off) / (size * k))
        value, valid = jnp.where(k > 0, least, 1.0), valid & (k >= 0) & (s >= 0)
        q = value
    else:
        count = uncovered * (1 + 64 * off) / (size * log_complement(jnp.minimum(q, 1 - roundoff())))
        count = jnp.floor(jnp.minimum(count, float(MOST_STEPS)))
        value = count - (sampled_at_most(q, count) > numbers.delta)
        valid &= (s >= 0) & (value >= 1)
        k = value
    sampled = sampled_at_most(q, k)
    return value, jnp.maximum(sampled, TINY * (k > 0)), valid & (sampled <= numbers.delta)


def _with_covered(config: Config, numbers: Numbers, result: Calibrated) -> Calibrated:
    """Returns a result, or the setting that delta covers by the sampling alone where no better one was found."""
    s, q = numbers.noise_multiplier, numbers.sampling_rate
    value, level, covers = _find_covered(config, numbers)
    status: Any = jnp.asarray(Status.NOT_BINDING)
    refused: Any = False
    if config.unknown != "noise_multiplier":
        # A rate or a number of steps that is larger is better, where the search ended far from the largest.
        covers &= ~result.satisfied | ((result.status != Status.CONVERGED) & (value > result.value))
        status = jnp.where(s == 0, Status.CONVERGED, Status.LOOSE)
    if config.unknown == "steps":
        # Without noise a single step that samples the example reveals it: it costs q, which exceeds delta. That
        # holds for the data with the example; for the data without it, under "add", the loss is -log(1 - q) at most.
        off = arithmetic().function
        refused = (s == 0) & (value < 1) & (q * (1 - off) > numbers.delta) & (config.relation != "add")
    level = jnp.where(config.budget is ForEpsilon, 0.0, level)
    better = Calibrated(value, Bounds(0.0 * level, level, level, covers), status.astype(jnp.int32))
    # Where the search found nothing the value releases nothing: infinite noise, no sampling, no steps.
    in_range = (q > 0) & (q <= 1) & (numbers.epsilon >= 0) & (numbers.delta > 0) & (numbers.delta < 1)
    idle = in_range & (s >= 0) & (numbers.steps >= 0) & ~result.satisfied
    nothing = Bounds(0.0 * level, 0.0 * level, 0.0 * level, converged=idle)
    reached = jax.tree.map(lambda new, old: jnp.where(idle, new, old), nothing, result.reached)
    result = Calibrated(result.value, reached, jnp.where(refused, Status.INFEASIBLE, result.status))
    return jax.tree.map(lambda new, old: jnp.where(covers, new, old), better, result)


# ----------------------------------------------------------------------------------------------------
# From a target to a certified setting.
#
# Concrete targets take the accountants of the top level. Those have a program each for all that they are asked, so a
# calibration compiles next to nothing of its own, and it takes whatever a mechanism has: an exact bracket, one by laws
# of atoms, Rényi curves. In a trace the exact accountant alone answers, in one loop.
# ----------------------------------------------------------------------------------------------------


def run_search(
    config: Config,
    numbers: Numbers,
    make: Callable[[Any], Any] | None = None,
    steps: Any = None,
    ends: tuple[Any, Any] | None = None,
) -> tuple[SearchAim, SearchState]:
    """Returns the goal and the last state of the search for a target. Inside the scope.

    The last three arguments are those of a scale: the mechanisms that ``make`` gives, their runs, and the ends of the
    search in u.
    """
    is_seen = is_concrete(numbers, steps)

    def evaluate(state: SearchState, lane: tuple[Numbers, Any]) -> Bounds:
        numbers, steps = lane
        mechanism, counts = composition_at(config, numbers, state.value, make, steps)
        question = numbers.question_of(config.budget)
        if not is_seen:
            return answer(mechanism, counts, question, config.relation)
        tolerance = float(state.gap) if state.gap < np.inf else None
        return certified.answer(mechanism, counts, question, config.relation, tolerance, by_pairs=True)

    start = None
    if make is not None and ends is not None:
        start = _start_of_scale(config, numbers, make, steps, ends)
    aim, state = leave_scope(begin(config, numbers, ends, start, is_seen))
    return aim, search(evaluate, aim, state, (numbers, steps))


@kernel
def solve(
    config: Config,
    numbers: Numbers,
    make: Callable[[Any], Any] | None = None,
    steps: Any = None,
    ends: tuple[float, float] | None = None,
) -> Calibrated:
    """Returns the result of one concrete target, by all accountants; arguments as of :func:`run_search`.

    Raises ValueError where a lower bound refutes every setting.
    """
    numbers = Numbers(*map(np.float64, numbers))
    if ends is not None:
        ends = np.float64(ends[0]), np.float64(ends[1])
    # Epsilons near 0 do not tell how far a setting is from the best, and brackets of as small a share of them take
    # seconds: there the search budgets delta, which is within its budget where epsilon is, and the other way round.
    is_small = config.budget is ForEpsilon and numbers.epsilon <= numbers.delta
    searched = config._replace(budget=ForDelta) if is_small else config
    run_at = functools.partial(composition_at, config, numbers, make=make, steps=steps)
    aim, state = run_search(searched, numbers, make, steps, ends)
    result: Calibrated = leave_scope(result_of(config, numbers, aim, state))
    with warnings.catch_warnings(action="ignore", category=ToleranceWarning):
        if is_small and result.satisfied and result.reached.upper > 0:
            result = replace(result, reached=_epsilon_of(config, numbers, run_at(result.value)))
        result = _ask_delta(config, numbers, run_at, result)
    if result.status == Status.INFEASIBLE:
        budgeted, end = config.budget.name, SETTINGS[config.unknown].most_private
        raise ValueError(
            f"{budgeted} = {float(numbers.value_of(config.budget)):g} cannot be met by any {config.unknown}: even "
            f"{end.format(math.exp(aim.most if aim.rises else -aim.most))} costs more; allow a larger {budgeted}"
            + (", or add noise." if config.unknown in ("steps", "sampling_rate") else ".")
        )
    return result


def _epsilon_of(config: Config, numbers: Numbers, run: tuple[Any, Any]) -> Bounds:
    """Returns bounds on epsilon of a run whose delta at the budget's epsilon was certified: that is an upper bound."""
    if numbers.epsilon == 0:
        return zero()
    most = Bounds(np.float64(0), numbers.epsilon, numbers.epsilon, np.bool_(False))
    return most.intersection(certified.answer(*run, ForEpsilon(numbers.delta), config.relation, by_pairs=True))


def _ask_delta(
    config: Config, numbers: Numbers, run_at: Callable[[Any], tuple[Any, Any]], result: Calibrated
) -> Calibrated:
    """Returns a concrete result, improved where the delta of one or two settings, at the given epsilon, may do so."""
    is_searched = result.satisfied

    def delta_at(value: float) -> Bounds:
        return certified.answer(*run_at(np.float64(value)), ForDelta(numbers.epsilon), config.relation, by_pairs=True)

    if not is_searched and config.unknown == "noise_multiplier":
        # The noise that suffices where every example is in every batch, in closed form and at any delta.
        mu = float(dp_to_gdp(numbers.epsilon, numbers.delta)) * (1 - LEAST_PADDING) / config.group
        noise = math.sqrt(numbers.steps) / mu if mu > 0 else math.inf
        bounds = delta_at(noise)
        if bounds.upper <= numbers.delta:
            if config.budget is ForEpsilon:
                bounds = _epsilon_of(config, numbers, run_at(noise))
            result = Calibrated(np.float64(noise), bounds, int(Status.LOOSE))
    if result.status != Status.LOOSE:
        return result
    # The search has tried to refute the next one already, and another try would cost as much again; but numbers of
    # steps have neighbours, and single runs closed forms. Of a scale a wide bracket would refute nothing.
    is_cheap = result.reached.gap < 1e-2 if config.unknown == "scale" else numbers.steps == 1
    if is_searched and not is_cheap and config.unknown != "steps":
        return result
    value, share = float(np.asarray(result.value)), PROBE * config.tolerance
    nearer = {"steps": value + 1, "sampling_rate": min(value * (1 + share), 1.0)}
    is_refuted = delta_at(nearer.get(config.unknown, value * (1 - share))).lower > numbers.delta
    return replace(result, status=int(Status.CONVERGED)) if is_refuted else result


@kernel
@compiled(static=("config", "make"))
def solve_in_trace(
    config: Config,
    numbers: Numbers,
    make: Callable[[Any], Any] | None = None,
    steps: Any = None,
    ends: tuple[Any, Any] | None = None,
) -> Calibrated:
    """Returns the result of one target by the exact accountant; arguments as of :func:`run_search`."""
    numbers = Numbers(*map(as_float64, numbers))
    if make is not None and ends is not None:
        question = config.budget(numbers.delta)
        if not has_laws(query_of(make(jnp.exp(ends[0])), steps, question, config.relation)):
            unknown = unknown_of(question)
            return Calibrated(unknown.upper, unknown, jnp.asarray(Status.UNKNOWN, jnp.int32))
    return result_of(config, numbers, *run_search(config, numbers, make, steps, ends))


# ----------------------------------------------------------------------------------------------------
# Derivatives of a calibrated setting, by the implicit function theorem.
#
# The setting x satisfies F(x, g) = T for the budgeted quantity F, the target T and the given numbers g. Where all of
# them move, dx = (dT - (dF/dg) dg) / (dF/dx), with the accountant's own derivatives. These are derivatives of the exact
# setting; the one that is returned is within the tolerance of it, on the safe side.
# ----------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def solve_traced(config: Config, numbers: Numbers) -> Calibrated:
    """Returns the result of one target inside a trace, where it has derivatives.

    Those of ``value`` are NaN where the search has not converged, and 0 at the end of a range and for whole steps.
    """
    result: Calibrated = one_by_one(solve_in_trace, config)(numbers)
    return result


@solve_traced.defjvp
@within_scope
def _traced_jvp(config: Config, primals: Any, tangents: Any) -> tuple[Calibrated, Calibrated]:
    # Run whose derivatives exist, put in where a derivative is multiplied by 0. Any such run will do.
    plain = Numbers(epsilon=1.0, delta=1e-5, noise_multiplier=10.0, sampling_rate=0.5, steps=100.0)
    (numbers,), (moves,) = primals, tangents
    numbers = Numbers(*map(as_float64, numbers))
    # The tangent of a whole number has dtype float0, with which there is no arithmetic.
    is_real = [getattr(move, "dtype", None) != jax.dtypes.float0 for move in moves]
    moves = Numbers(*(as_float64(move) if real else jnp.zeros(()) for move, real in zip(moves, is_real, strict=True)))
    result = solve_traced(config, numbers)
    # The argument that is looked for does not move as a given number, and the budgeted quantity is the answer itself.
    still = moves._replace(**{config.unknown: jnp.zeros(()), config.budget.name: jnp.zeros(())})

    def answer_at(numbers: Numbers, value: Array) -> Array:
        mechanism, steps = composition_at(config, numbers, value)
        return jnp.asarray(answer(mechanism, steps, numbers.question_of(config.budget), config.relation).estimate)

    is_fixed = result.status == Status.NOT_BINDING if config.unknown != "steps" else jnp.asarray(True)
    # Slopes at a fixed setting are multiplied by 0, which must not meet a NaN: they are taken at a run that has them.
    run = jax.tree.map(lambda known, number: jnp.where(is_fixed, known, number), plain, numbers)
    _, change = jax.linearize(answer_at, run, jnp.where(is_fixed, plain._asdict()[config.unknown], result.value))
    by_value, by_numbers = change(jax.tree.map(jnp.zeros_like, run), jnp.ones(())), change(still, jnp.zeros(()))
    target = moves.value_of(config.budget)
    slope = jnp.where(result.status == Status.CONVERGED, 1 / by_value, jnp.nan)
    move = jnp.where(is_fixed, 0.0, slope) * (target - by_numbers)
    flat = np.zeros(np.shape(result.status), jax.dtypes.float0)
    return result, Calibrated(move, Bounds(target, target, target, flat), flat)
