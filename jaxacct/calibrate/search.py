"""The search along one coordinate u for the least one that is certified to satisfy a budget.

u grows with privacy: the logarithm of the noise, of the rate's inverse, or of the steps'. A setting is accepted only
by the certified upper bound, of every direction, at that very setting; so nothing about the search needs to be right
for the answer to be safe: the guess, the slopes and the stopping rule decide how near it comes to the least.

The logarithm of delta is nearly linear in u. Secants of one direction's lead to where it meets the budget, and on to a
setting just below it, which that direction's lower bound refutes. Then all directions are asked, once, of the setting
a little less than the tolerance above. From a good guess these are two evaluations, one of them of one direction only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxacct import by_work
from jaxacct.arithmetic import scaled
from jaxacct.bounds import Bounds
from jaxacct.precision import is_concrete, outside, representable
from jaxacct.programs import compiled

ROUNDS = 24
"""Most evaluations; two or three are usual, ten where the guess was far off."""

ENOUGH = 12
"""Evaluations after which any setting that passes will do: where so many are needed the bounds are rough."""

PADDING = 0.02
"""Share of a step by which it goes farther, to the safe side: what the slope may be off by."""

LEAST_PADDING = 2e-10
"""Smallest addition to u. It grows eightfold with each evaluation, so that roundings cannot keep the search awake."""

LONGEST = 0.5
"""Longest step in u, and the first where nothing is known is ``FIRST_RETREAT``, each further one four times longer."""

SMALLEST = 1e-300
"""What counts as this much at least, so that there is a logarithm."""

FIRST_RETREAT, RETREATS = 0.02, 4

PROVEN, FORESEEN = 1e8, 1e-9
"""Number of steps up to which the next one is tried and seen to fail; beyond, one that many times larger is."""

BELOW, APART = 0.35, 0.8
"""Shares of the tolerance: by how much less private than the foreseen least the setting to be refuted is, and how far
above that one the setting to be accepted. Either leaves room for the foresight to be off by a third of the tolerance.
"""

LANES_A_SLOT = 4
"""Of a batch of searches: a step is made of queues itself."""

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
        target (): the budget, a delta.
        least (): smallest setting.
        most (): largest setting.
        tolerance (): distance from the least, in u, at which to stop.
        rises (): whether the value of a setting u is ``exp(u)``, not ``exp(-u)``.
        whole (): whether values are whole numbers, ``exp(-u)`` rounded down; then the search ends at neighbours.
        thorough (): whether every evaluation is of all directions.
    """

    target: Any
    least: Any
    most: Any
    tolerance: Any
    rises: Any
    whole: Any
    thorough: Any

    def value(self, setting: Array) -> Array:
        """Returns the value of a setting, which is what is evaluated and returned."""
        falling = jnp.exp(-setting)
        value = jnp.where(self.rises, jnp.exp(setting), jnp.where(self.whole, jnp.round(falling), falling))
        # Evaluated as it will be read. Whole numbers are exact in any case, where they are not too large.
        return jnp.where(self.whole & (value < 2.0**46), value, representable(value))


class State(NamedTuple):
    """Of a search after so many evaluations: what is asked next, what is known of the curve, and the best setting.

    ``fully`` () is whether the next evaluation is to be of all directions, ``strict`` () whether all further ones are:
    where another direction turned out to cost more. ``bad`` () is the most private setting that does not pass, ``good``
    () the least private one that does, by what was evaluated of it, ``refuted`` () the most private one refuted.
    """

    round: Array
    setting: Array
    value: Array
    fully: Array
    strict: Array
    slope: Array
    is_slope: Array
    last: Array
    height: Array
    retreats: Array
    bad: Array
    good: Array
    refuted: Array
    found: Found
    is_done: Array


def search(
    evaluate: Callable[[Any, Array, Array], Bounds], given: Any, aim: Aim, start: Any, slope: Any, is_slope: Any
) -> State:
    """Returns the last state of a search for the least setting at which ``evaluate`` certifies at most the target.

    Args:
        evaluate: the certified bounds on delta for what is given, at a value; of all directions where its last argument
            says so, else of one, or more. They decrease in the setting.
        given: pytree of arrays.
        aim: see there.
        start (): about the least setting.
        slope (): derivative in u of the logarithm of delta, roughly.
        is_slope (): whether that is known; if not, nothing is called near the least before there is a secant.
    """
    state = begun(aim, start, slope, is_slope)
    if not is_concrete(aim, state, given):

        def step(state: State, of_lane: tuple[Aim, Any]) -> State:
            aim, given = of_lane
            return advanced(aim, state, evaluate(given, state.value, state.fully | aim.thorough))

        return by_work.while_loop(lambda state, _: _goes_on(state), step, state, (aim, given), share=LANES_A_SLOT)
    # By the programs that answer single questions, which mostly are there already.
    while not bool(state.is_done) and int(state.round) < ROUNDS:
        state = advanced(aim, state, evaluate(given, outside(state.value), state.fully | aim.thorough))
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
    tolerance = jnp.where(aim.whole, FORESEEN, aim.tolerance)
    first = jnp.clip(_below(start, jnp.where(is_slope, BELOW * tolerance, 0.0), aim.whole), aim.least, aim.most)
    zero, unseen = jnp.zeros(start.shape, int), jnp.nan * start
    asked = zero, first, aim.value(first), never, never, slope, is_slope
    return State(*asked, unseen, unseen, zero, -nothing, nothing, -nothing, found, never)


@compiled
def advanced(aim: Aim, state: State, bounds: Bounds) -> State:
    """Returns the state after one more evaluation, at the value of its setting."""
    whole, u, value, found, fully = aim.whole, state.setting, state.value, state.found, state.fully | aim.thorough
    high, low = measured(bounds.upper), measured(bounds.lower)
    known = bounds.upper < 1
    below, is_refuted = known & (bounds.upper <= aim.target), bounds.lower > aim.target
    # What the curve is like.
    secant = (high - state.height) / (u - state.last)
    usable = known & jnp.isfinite(secant) & (secant < 0)
    usable = usable & (jnp.abs(high - state.height) > 10 * (high - low))
    slope, is_slope = jnp.where(usable, secant, state.slope), state.is_slope | usable
    step = jnp.where(known, (measured(aim.target) - high) / slope, jnp.inf)
    # What is known of settings. One that passes in all directions is the best so far; of one, it may pass.
    refuted = jnp.where(is_refuted, jnp.maximum(state.refuted, u), state.refuted)
    bad = jnp.where(below, state.bad, jnp.maximum(state.bad, u))
    new = Found(u, value, bounds, found.distance, found.infeasible)
    better = below & fully & (u < found.setting)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
    best = best._replace(distance=best.setting - refuted, infeasible=found.infeasible | (is_refuted & (u >= aim.most)))
    # Of another direction than the first nothing may be known where that one leads to.
    is_blind = state.fully & ~known
    strict = state.strict | is_blind | fully & ~below & (state.good <= u)
    good = jnp.where(below, jnp.minimum(state.good, u), state.good)
    good = jnp.where((good <= bad) | is_blind, best.setting, good)
    # Where the least one is, and how well that is known.
    tolerance, blur = jnp.where(whole, FORESEEN, aim.tolerance), (high - low) / -slope
    padding = jnp.maximum(PADDING * jnp.abs(step), LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12))
    root = u + jnp.clip(step, -LONGEST, LONGEST)
    reach = jnp.maximum(APART * tolerance, 3 * blur)
    accepted = jnp.where(whole, _next_below(refuted, reach), refuted + reach)
    is_near = known & is_slope & (root + jnp.where(whole, 0.0, padding) <= accepted)
    refutable = _below(root, jnp.maximum(BELOW * tolerance, 1.2 * blur), whole)
    # Not farther below what passes than it takes to prove that this is near the least.
    closest = _below(best.setting, 0.95 * jnp.maximum(tolerance, 3 * blur), whole)
    refutable = jnp.where(jnp.isfinite(closest), jnp.maximum(refutable, closest), refutable)
    # Where nothing is known: to what passed, or away from what costs more.
    retreats = state.retreats + jnp.where(~known & jnp.isinf(good), 1 + is_blind, 0)
    retreat = jnp.where(jnp.isfinite(good), (u + good) / 2, u + FIRST_RETREAT * 4.0**state.retreats)
    enough = (state.round + 1 >= ENOUGH) & ~whole
    is_last = (good < best.setting) & ((good - bad <= tolerance) | enough | (good <= aim.least))
    ahead = jnp.where(known, jnp.where(is_near, accepted, refutable), jnp.where(whole, _below(retreat, 0.0, whole), retreat))
    ahead = jnp.clip(ahead, aim.least, aim.most)
    is_near = (is_near | strict) & ~is_last
    ahead = _between(ahead, bad, jnp.where(is_near, best.setting, good), whole)
    ahead = jnp.where(is_last, good, ahead)
    fully_next = is_near | is_last
    counts = whole & (value <= PROVEN)
    # Whole numbers end at neighbours, unless they are too large to be told apart.
    is_adjacent = whole & (jnp.exp(-bad) - jnp.exp(-best.setting) < 1.5)
    is_done = ~counts & (best.distance <= jnp.maximum(tolerance, 3.1 * blur))
    is_done = is_done | is_adjacent | jnp.isfinite(best.setting) & (enough | (~counts & (best.setting - bad <= tolerance / 2)))
    at_end = below & fully & (u <= aim.least) | ~below & (u >= aim.most)
    is_done = is_done | at_end | (retreats > RETREATS) | (ahead == u) & (fully | ~fully_next)
    height, last = jnp.where(known, high, state.height), jnp.where(known, u, state.last)
    asked = state.round + 1, ahead, aim.value(ahead), fully_next, strict, slope, is_slope
    return State(*asked, last, height, retreats, bad, good, refuted, best, is_done)


def _below(setting: Array, distance: Array | float, whole: Array) -> Array:
    """Returns a setting so much less private; of whole values the next larger one, by as much at least."""
    lower = setting - distance
    above = jnp.maximum(jnp.floor(jnp.exp(-setting) * (1 + scaled(1e-12))) + 1, jnp.ceil(jnp.exp(-lower)))
    return jnp.where(whole, -jnp.log(above), lower)


def _next_below(setting: Array, distance: Array) -> Array:
    """Returns the setting of the next smaller whole value, by a distance at least."""
    return -jnp.log(jnp.minimum(jnp.round(jnp.exp(-setting)) - 1, jnp.floor(jnp.exp(-setting - distance))))


def measured(level: ArrayLike) -> Array:
    """Returns the logarithm of a delta: it is nearly linear in u."""
    return jnp.log(jnp.maximum(level, SMALLEST))


def _between(ahead: Array, bad: Array, best: Array, whole: Array) -> Array:
    """Returns ``ahead`` where it lies between the settings known to fail and to pass, else one that does."""
    # In the values: from one above those known to pass to one below those known to fail.
    low, high = jnp.exp(-best), jnp.minimum(jnp.exp(-bad), MOST_STEPS + 1)
    low, high = jnp.round(low), jnp.round(high)
    neighbour = -jnp.log(jnp.clip(jnp.round(jnp.exp(-ahead)), low + 1, jnp.maximum(high - 1, 1.0)))
    middle = jnp.where(jnp.isfinite(bad) & jnp.isfinite(best), (bad + best) / 2, jnp.where(ahead < best, ahead, best))
    return jnp.where(whole, neighbour, jnp.where((ahead > bad) & (ahead < best), ahead, middle))
