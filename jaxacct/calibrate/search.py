"""The search along one coordinate u for the least one that is certified to satisfy a budget.

u grows with privacy: the logarithm of the noise, of the rate's inverse, or of the steps'. A setting is accepted only
by the certified upper bound at that very setting, so nothing about the search needs to be right for the answer to be
safe: the guess, the slopes and the stopping rule decide how near it comes to the least.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxacct.arithmetic import scaled
from jaxacct.bounds import Bounds
from jaxacct.precision import is_concrete, outside, representable
from jaxacct.programs import compiled

ROUNDS = 20
"""Most evaluations; one to three are usual, ten where the guess was far off."""

ENOUGH = 12
"""Evaluations after which any setting that passed will do: where so many are needed the bounds are rough."""

PADDING = 0.02
"""Share of a step by which it goes farther, to the safe side: what the slope may be off by."""

LEAST_PADDING = 2e-10
"""Smallest addition to u. It grows eightfold with each evaluation, so that roundings cannot keep the search awake."""

LONGEST = 0.5
"""Longest step in u, and the first where nothing is known is ``FIRST_RETREAT``, each further one four times longer."""

SMALLEST = 1e-300
"""What counts as this much at least, so that there is a logarithm: an epsilon of 0 passes any budget."""

FIRST_RETREAT, RETREATS = 0.02, 4

PROVEN, FORESEEN = 1e8, 1e-9
"""Number of steps up to which the next one is tried and seen to fail; beyond, one that many times larger is."""

PROBE = 0.95
"""Share of the tolerance by which a setting near the least is undercut, to prove that it is."""

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


class Aim(NamedTuple):
    """What is searched for, as numbers, so that one program serves every search.

    Attributes:
        target (): the budget.
        largest (): what an upper bound is that says nothing: 1 for delta, inf for epsilon.
        least (): smallest setting.
        most (): largest setting.
        tolerance (): distance from the least, in u, at which to stop.
        rises (): whether the value of a setting u is ``exp(u)``, not ``exp(-u)``.
        whole (): whether values are whole numbers, ``exp(-u)`` rounded down; then the search ends at neighbours.
    """

    target: Any
    largest: Any
    least: Any
    most: Any
    tolerance: Any
    rises: Any
    whole: Any

    def value(self, setting: Array) -> Array:
        """Returns the value of a setting, which is what is evaluated and returned."""
        falling = jnp.exp(-setting)
        value = jnp.where(self.rises, jnp.exp(setting), jnp.where(self.whole, jnp.round(falling), falling))
        # Evaluated as it will be read. Whole numbers are exact in any case, where they are not too large.
        return jnp.where(self.whole & (value < 2.0**46), value, representable(value))


class State(NamedTuple):
    """Of a search after so many evaluations: the next setting, what is known of the curve, and the best setting."""

    round: Array
    setting: Array
    value: Array
    slope: Array
    is_slope: Array
    last: Array
    height: Array
    retreats: Array
    bad: Array
    refuted: Array
    probes: Array
    found: Found
    is_done: Array


def search(evaluate: Callable[[Array], Bounds], aim: Aim, start: Any, slope: Any, is_slope: Any) -> State:
    """Returns the last state of a search for the least setting at which ``evaluate`` certifies at most the target.

    Args:
        evaluate: the certified bounds at a value, decreasing in the setting.
        aim: see there.
        start (): the first setting.
        slope (): derivative in u of the logarithm of what is compared, roughly.
        is_slope (): whether that is known; if not, nothing is called near the least before there is a secant.
    """
    state = begun(aim, start, slope, is_slope)
    if not is_concrete(aim, state):
        return jax.lax.while_loop(_goes_on, lambda state: advanced(aim, state, evaluate(state.value)), state)
    # By the programs that answer single questions, which mostly are there already.
    while not bool(state.is_done) and int(state.round) < ROUNDS:
        state = advanced(aim, state, evaluate(outside(state.value)))
    return outside(state)


def _goes_on(state: State) -> Array:
    return ~state.is_done & (state.round < ROUNDS)


@compiled
def begun(aim: Aim, start: Array, slope: Array, is_slope: Array) -> State:
    """Returns the state before anything is evaluated."""
    nothing = jnp.full_like(start, jnp.inf)
    unknown = Bounds(lower=0.0 * start, estimate=jnp.nan * start, upper=nothing, converged=jnp.zeros(start.shape, bool))
    never = jnp.zeros(start.shape, bool)
    found = Found(nothing, aim.value(nothing), unknown, nothing, never)
    first = _snapped(jnp.clip(start, aim.least, aim.most), aim.whole)
    zero = jnp.zeros(start.shape, int)
    height = jnp.nan * start
    return State(
        zero, first, aim.value(first), slope, is_slope, height, height, zero, -nothing, -nothing, never, found, never
    )


@compiled
def advanced(aim: Aim, state: State, bounds: Bounds) -> State:
    """Returns the state after one more evaluation, at the value of its setting."""
    target, least, most, whole = aim.target, aim.least, aim.most, aim.whole
    wanted, u, value, found = measured(target), state.setting, state.value, state.found
    high, low = measured(bounds.upper), measured(bounds.lower)
    known = bounds.upper < aim.largest
    passes = known & (bounds.upper <= target)
    secant = (high - state.height) / (u - state.last)
    # An epsilon of 0 hides how far below 0 the curve is.
    usable = known & (bounds.upper > SMALLEST) & jnp.isfinite(secant) & (secant < 0)
    usable = usable & (jnp.abs(high - state.height) > 10 * (high - low))
    slope = jnp.where(usable, secant, state.slope)
    is_slope = state.is_slope | usable
    step = jnp.where(known, (wanted - high) / slope, jnp.inf)
    better = passes & (u < found.setting)
    is_refuted = bounds.lower > target
    refuted = jnp.where(is_refuted, jnp.maximum(state.refuted, u), state.refuted)
    new = Found(u, value, bounds, found.distance, found.infeasible)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
    best = best._replace(distance=best.setting - refuted, infeasible=found.infeasible | (is_refuted & (u >= most)))
    bad = jnp.where(passes, state.bad, jnp.maximum(state.bad, u))
    padding = jnp.maximum(PADDING * jnp.abs(step), LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12))
    ahead = u + jnp.clip(step + padding, -LONGEST, LONGEST)
    retreats = state.retreats + (~known & jnp.isinf(state.found.setting))
    # Where nothing is known: to what passed, or away from what costs more.
    retreat = jnp.where(jnp.isfinite(best.setting), (u + best.setting) / 2, u + FIRST_RETREAT * 4.0**state.retreats)
    ahead = jnp.where(known, ahead, retreat)
    ahead = _between(_snapped(jnp.clip(ahead, least, most), whole), bad, best.setting, whole)
    at_end = passes & (u <= least) | ~passes & (u >= most)
    # Whole numbers end at neighbours, unless they are too large to be told apart.
    is_adjacent = whole & (jnp.exp(-bad) - jnp.exp(-best.setting) < 1.5)
    counts = whole & (value <= PROVEN)
    tolerance = jnp.where(whole, FORESEEN, aim.tolerance)
    blurred = (high - low) / -slope
    near = passes & is_slope & ~counts & (-step <= jnp.maximum(tolerance, blurred))
    # A setting is near the least by foresight; that it is, the next one is to prove, by its lower bound.
    ahead = jnp.where(near, jnp.maximum(_snapped(u - PROBE * tolerance, whole), least), ahead)
    is_done = ~counts & (best.distance <= tolerance) | state.probes & ~passes
    is_done = is_done | jnp.isfinite(best.setting) & (state.round + 1 >= ENOUGH) & ~whole
    is_done = is_done | at_end | (retreats > RETREATS) | is_adjacent | (ahead == u)
    height, last = jnp.where(known, high, state.height), jnp.where(known, u, state.last)
    rows = state.round + 1, ahead, aim.value(ahead), slope, is_slope, last, height, retreats, bad, refuted, near
    return State(*rows, best, is_done)


def _snapped(setting: Array, whole: Array) -> Array:
    """Returns the setting of the next smaller whole value."""
    return jnp.where(whole, -jnp.log(jnp.floor(jnp.exp(-setting) * (1 + scaled(1e-12)))), setting)


def measured(level: ArrayLike) -> Array:
    """Returns the logarithm of an epsilon or delta: it is nearly linear in u."""
    return jnp.log(jnp.maximum(level, SMALLEST))


def _between(ahead: Array, bad: Array, best: Array, whole: Array) -> Array:
    """Returns ``ahead`` where it lies between the settings known to fail and to pass, else one that does."""
    # In the values: from one above those known to pass to one below those known to fail.
    low, high = jnp.exp(-best), jnp.minimum(jnp.exp(-bad), MOST_STEPS + 1)
    low, high = jnp.round(low), jnp.round(high)
    neighbour = -jnp.log(jnp.clip(jnp.round(jnp.exp(-ahead)), low + 1, jnp.maximum(high - 1, 1.0)))
    middle = jnp.where(jnp.isfinite(bad) & jnp.isfinite(best), (bad + best) / 2, jnp.where(ahead < best, ahead, best))
    return jnp.where(whole, neighbour, jnp.where((ahead > bad) & (ahead < best), ahead, middle))
