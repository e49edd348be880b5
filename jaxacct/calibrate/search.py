"""The search along one coordinate u for the least one that is certified to satisfy a budget: one for all calibrations.

u grows with privacy: the logarithm of the noise, of the rate's inverse, or of the steps'. A setting is accepted only
by the certified upper bound at that very setting, so nothing about the search needs to be right for the answer to be
safe: the guess, the slopes and the stopping rule decide how near it comes to the least.

Secants lead to a setting just below the least, which the lower bound there refutes. Then the one a little less than the
tolerance above is asked, and closes the search: from a good guess, two evaluations. Where bounds say nothing the search
retreats to more privacy; between a setting that fails and one that passes it never leaves the two.

Traced, the search is one loop around one accountant; with a function of Python's it is the same steps, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxacct import by_work
from jaxacct.arithmetic import scaled
from jaxacct.bounds import Bounds
from jaxacct.precision import outside, representable
from jaxacct.programs import compiled
from jaxacct.pytrees import register_dataclass

ROUNDS = 24
"""Most evaluations. Four to six are usual, ten where the guess was far off."""

ENOUGH = 14
"""Evaluations after which any setting that passes will do: where so many are needed the bounds are rough."""

ROUGH = 5e-3
"""Distance at which a setting of which nothing is known, below one that passes, ends the search: what is certified is
loose then, and each such evaluation is a slow one."""

PADDING = 0.02
"""Share of a step that it may be off by, as the slope is."""

LEAST_PADDING = 2e-10
"""Smallest distance from what failed. It grows eightfold with each evaluation: roundings cannot keep the search awake.
"""

LONGEST = 0.5
"""Longest step in u, and the first where nothing is known is ``FIRST_RETREAT``, each further one four times longer."""

SMALLEST = 1e-300
"""What counts as this much at least, so that there is a logarithm."""

FIRST_RETREAT, RETREATS = 0.02, 4

PROVEN, FORESEEN = 1e8, 1e-9
"""Up to PROVEN steps optimality is certified by refuting one step more; beyond, by refuting a share FORESEEN more."""

BELOW, APART = 0.35, 0.8
"""Shares of the tolerance: by how much less private than the foreseen least the setting to be refuted is, and how far
above that one the setting to be accepted. Either leaves room for the foresight to be off by a third of the tolerance.
"""

PROBE = 0.95
"""Share of the tolerance by which a setting is undercut, to prove that it is near the best."""

MOST_STEPS = 2.0**53
"""Largest whole number of steps considered: beyond, float64 skips some."""


class Found(NamedTuple):
    """What a search found; +inf for ``setting`` where nothing was certified.

    ``distance`` () is how far above the least the setting may be: how far below it another one was refuted, its lower
    bound above the budget. ``infeasible`` is whether that is so at the end of the range.
    """

    setting: Array
    value: Array
    reached: Bounds
    distance: Array
    infeasible: Array


@register_dataclass
@dataclass(frozen=True)
class Aim:
    """What is searched for.

    Attributes:
        target (): the budget, of an epsilon or of a delta.
        least (): smallest setting.
        most (): largest setting.
        tolerance (): distance from the least, in u, at which to stop.
        scale (): of a budgeted epsilon: below it differences count, above it ratios. None where a delta is budgeted.
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
        # Evaluated as it will be read. Whole numbers are exact in any case, where they are not too large.
        if self.whole:
            value = jnp.round(value)
            return jnp.where(value < 2.0**46, value, representable(value))
        return representable(value)

    def height(self, level: ArrayLike) -> Array:
        """Returns what rises with a level, and is nearly linear in u.

        An epsilon goes like a power of e^-u. The logarithm of a normal distribution's delta goes like the square of
        e^u, and that of rare large losses bends the other way; a fourth root lies between the two.
        """
        if self.scale is not None:
            return jnp.log(level + self.scale)
        return -(jnp.maximum(-jnp.log(jnp.maximum(level, SMALLEST)), 0.0) ** 0.25)

    def steepness(self) -> Array:
        """Returns the derivative of :meth:`height` in the logarithm of the level, at the target."""
        if self.scale is not None:
            return self.target / (self.target + self.scale)
        return 0.25 * jnp.maximum(-jnp.log(self.target), 1e-6) ** -0.75


class State(NamedTuple):
    """Of a search after so many evaluations: what is asked next, what is known of the curve, and the best setting.

    ``bad`` () is the most private setting that does not pass, ``refuted`` () the most private one that was refuted.
    """

    round: Array
    setting: Array
    slope: Array
    """Derivative of the height in u."""
    is_slope: Array
    last: Array
    height: Array
    retreats: Array
    bad: Array
    refuted: Array
    found: Found
    is_done: Array


def search(
    evaluate: Callable[[Any, Array], Bounds], given: Any, aim: Aim, start: Any, slope: Any, is_slope: Any
) -> State:
    """Returns the last state of a search for the least setting at which ``evaluate`` certifies at most the target.

    Traced, with everything in one loop. Args:
        evaluate: bounds on what is budgeted, for what is given, at a value. They decrease in the setting.
        given: pytree of arrays.
        aim: see there.
        start (): about the least setting.
        slope (): derivative in u of the height, roughly.
        is_slope (): whether that is known; if not, nothing is called near the least before there is a secant.
    """

    def step(state: State, of_lane: tuple[Aim, Any]) -> State:
        aim, given = of_lane
        return _advanced(aim, state, evaluate(given, aim.value(state.setting)))

    state = _begun(aim, start, slope, is_slope)
    return by_work.while_loop(lambda state, _: _goes_on(state), step, state, (aim, given), share=by_work.OF_QUEUES)


def search_by_calls(evaluate: Callable[[Any], Bounds], aim: Aim, start: Any, slope: Any, is_slope: Any) -> State:
    """Returns what :func:`search` does of a function that is called with numbers, one after the other."""
    state = outside(_first(aim, start, slope, is_slope))
    while bool(_goes_on(state)):
        state = outside(_following(aim, state, evaluate(outside(_value(aim, state.setting)))))
    return state


def _goes_on(state: State) -> Any:
    return ~state.is_done & (state.round < ROUNDS)


def _begun(aim: Aim, start: Array, slope: Array, is_slope: Array) -> State:
    """Returns the state before anything is evaluated."""
    nothing = jnp.full_like(start, jnp.inf)
    never = jnp.zeros(start.shape, bool)
    unknown = Bounds(lower=0.0 * start, estimate=jnp.nan * start, upper=nothing, converged=never)
    found = Found(nothing, aim.value(nothing), unknown, nothing, never)
    tolerance = FORESEEN if aim.whole else aim.tolerance
    first = jnp.clip(_below(start, jnp.where(is_slope, BELOW * tolerance, 0.0), aim.whole), aim.least, aim.most)
    unseen = jnp.nan * start
    slope = jnp.where(slope < 0, slope, -1.0)
    return State(
        jnp.zeros(start.shape, int), first, slope, is_slope, unseen, unseen, jnp.zeros(start.shape, int), -nothing,
        -nothing, found, never,
    )  # fmt: skip


def _advanced(aim: Aim, state: State, bounds: Bounds) -> State:
    """Returns the state after one more evaluation, at the value of its setting."""
    whole, u, found = aim.whole, state.setting, state.found
    high, low, goal = (aim.height(level) for level in (bounds.upper, bounds.lower, aim.target))
    # Of an epsilon of 0 it is not known how far the least setting is.
    is_flat = (bounds.upper <= 0) if aim.scale is not None else jnp.zeros_like(state.is_done)
    known = (bounds.upper < (jnp.inf if aim.scale is not None else 1.0)) & ~is_flat
    passes, is_refuted = (known | is_flat) & (bounds.upper <= aim.target), bounds.lower > aim.target
    # What the curve is like.
    risen = high - state.height
    secant = risen / (u - state.last)
    usable = known & (secant < 0) & (jnp.abs(risen) > 10 * (high - low))
    slope, is_slope = jnp.where(usable, secant, state.slope), state.is_slope | usable
    step = jnp.where(known, (goal - high) / slope, 0.0)
    # What is known of settings.
    refuted = jnp.where(is_refuted, jnp.maximum(state.refuted, u), state.refuted)
    bad = jnp.where(passes, state.bad, jnp.maximum(state.bad, u))
    better = passes & (u < found.setting)
    new = Found(u, aim.value(u), bounds, found.distance, found.infeasible)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
    best = best._replace(distance=best.setting - refuted, infeasible=found.infeasible | (is_refuted & (u >= aim.most)))
    # Where the least one is, and how well that is known.
    tolerance, blur = FORESEEN if whole else aim.tolerance, jnp.where(known, (high - low) / -slope, 0.0)
    padding = PADDING * jnp.abs(step)
    root = u + jnp.clip(step, -LONGEST, LONGEST)
    accepted = refuted + jnp.maximum(APART * tolerance, 3 * blur)
    if whole:
        accepted = _next_below(refuted, accepted - refuted)
    is_near = known & is_slope & ((root if whole else root + padding) <= accepted)
    refutable = _below(root, jnp.maximum(BELOW * tolerance, 1.2 * blur), whole)
    # Not farther below what passes than it takes to prove that this is near the least.
    closest = _below(best.setting, PROBE * jnp.maximum(tolerance, 3 * blur), whole)
    refutable = jnp.where(root > closest, jnp.maximum(refutable, closest), refutable)
    # Where nothing is known: between what passed and what did not, or away from what costs more, or nothing.
    has_passed, has_failed = best.setting < jnp.inf, bad > -jnp.inf
    is_lost = ~(known | (has_passed & has_failed))
    away = jnp.where(is_flat, -FIRST_RETREAT, FIRST_RETREAT) * 4.0**state.retreats
    retreat = jnp.where(is_lost, u + away, (bad + best.setting) / 2)
    retreats = state.retreats + is_lost
    if whole:
        retreat = _below(retreat, 0.0, whole)
    ahead = jnp.where(known, jnp.where(is_near, accepted, refutable), retreat)
    beyond = jnp.maximum(bad + LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12), root + padding)
    ahead = jnp.where(ahead > bad, ahead, beyond)
    ahead = _between(jnp.clip(ahead, aim.least, aim.most), bad, best.setting, whole)
    at_end = (passes & (u <= aim.least)) | (~passes & (u >= aim.most))
    is_close = best.distance <= jnp.maximum(tolerance, 3.1 * blur)
    enough = has_passed & (best.setting - bad <= jnp.where(known | is_flat, tolerance / 2, ROUGH))
    if whole:
        # Whole numbers end at neighbours, unless they are too large to be told apart.
        is_adjacent = jnp.exp(-bad) - jnp.exp(-best.setting) < 1.5
        is_close = is_adjacent | ((is_close | enough) & (aim.value(u) > PROVEN))
    else:
        is_close = is_close | enough | (has_passed & (state.round + 1 >= ENOUGH))
    is_done = is_close | at_end | (retreats > RETREATS) | (ahead == u)
    height, last = jnp.where(known, high, state.height), jnp.where(known, u, state.last)
    return State(state.round + 1, ahead, slope, is_slope, last, height, retreats, bad, refuted, best, is_done)


_first, _following, _value = compiled(_begun), compiled(_advanced), compiled(Aim.value)


def _below(setting: Array, distance: Array | float, whole: bool) -> Array:
    """Returns a setting so much less private; of whole values the next larger one, by as much at least."""
    lower = setting - distance
    if not whole:
        return lower
    return -jnp.log(jnp.maximum(jnp.floor(jnp.exp(-setting) * (1 + scaled(1e-12))) + 1, jnp.ceil(jnp.exp(-lower))))


def _next_below(setting: Array, distance: Array) -> Array:
    """Returns the setting of the next smaller whole value, by a distance at least."""
    return -jnp.log(jnp.minimum(jnp.round(jnp.exp(-setting)) - 1, jnp.floor(jnp.exp(-setting - distance))))


def _between(ahead: Array, bad: Array, best: Array, whole: bool) -> Array:
    """Returns ``ahead`` where it lies between the settings known to fail and to pass, else one that does."""
    if whole:
        # In the values: from one above those known to pass to one below those known to fail.
        low, high = jnp.round(jnp.exp(-best)), jnp.round(jnp.minimum(jnp.exp(-bad), MOST_STEPS + 1))
        return -jnp.log(jnp.clip(jnp.round(jnp.exp(-ahead)), low + 1, jnp.maximum(high - 1, 1.0)))
    middle = jnp.where((bad > -jnp.inf) & (best < jnp.inf), (bad + best) / 2, jnp.minimum(ahead, best))
    return jnp.where((ahead > bad) & (ahead < best), ahead, middle)
