"""The search along one coordinate u for the least one that is certified to satisfy a budget.

u grows with privacy: the logarithm of the noise, of the rate's inverse, or of the steps'. A setting is accepted only
by the certified upper bound at that very setting, so nothing about the search needs to be right for the answer to be
safe: the guess, the slopes and the stopping rule decide how near it comes to the least.

Secants lead to a setting just below the least, which the lower bound of its delta refutes. Then the one a little less
than the tolerance above is asked for what is reported, and closes the search: from a good guess, two evaluations.
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
"""Number of steps up to which the next one is tried and seen to fail; beyond, one that many times larger is."""

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


class Aim(NamedTuple):
    """What is searched for, as numbers, so that one program serves every search.

    Attributes:
        target (): the budget, a delta.
        least (): smallest setting.
        most (): largest setting.
        tolerance (): distance from the least, in u, at which to stop.
        rises (): whether the value of a setting u is ``exp(u)``, not ``exp(-u)``.
        whole (): whether values are whole numbers, ``exp(-u)`` rounded down; then the search ends at neighbours.
        reports (): whether what is found is to be asked for something else than delta at the end.
    """

    target: Any
    least: Any
    most: Any
    tolerance: Any
    rises: Any
    whole: Any
    reports: Any

    def value(self, setting: Array) -> Array:
        """Returns the value of a setting, which is what is evaluated and returned."""
        falling = jnp.exp(-setting)
        value = jnp.where(self.rises, jnp.exp(setting), jnp.where(self.whole, jnp.round(falling), falling))
        # Evaluated as it will be read. Whole numbers are exact in any case, where they are not too large.
        return jnp.where(self.whole & (value < 2.0**46), value, representable(value))

    def steepness(self) -> Array:
        """Returns the derivative of :func:`measured` in the logarithm of delta, at the target."""
        return 0.25 * jnp.maximum(-jnp.log(self.target), 1e-6) ** -0.75


class Seen(NamedTuple):
    """What one evaluation says of a value: bounds on delta; and what is to be reported, if that was asked for."""

    delta: Bounds
    reached: Bounds


def by_delta(delta_at: Callable[[Any], Bounds]) -> Callable[[Any, Any, Any], Seen]:
    """Returns what :func:`search` evaluates, where delta is what is reported."""

    def evaluate(_: Any, value: Any, __: Any) -> Seen:
        bounds = delta_at(value)
        return Seen(bounds, bounds)

    return evaluate


class State(NamedTuple):
    """Of a search after so many evaluations: what is asked next, what is known of the curve, and the best setting.

    ``closes`` () is whether the next evaluation is also for what is reported, and the last if it passes. ``bad`` () is
    the most private setting that does not pass, ``refuted`` () the most private one that was refuted.
    """

    round: Array
    setting: Array
    value: Array
    closes: Array
    slope: Array
    is_slope: Array
    last: Array
    height: Array
    retreats: Array
    bad: Array
    refuted: Array
    found: Found
    is_done: Array


def search(
    evaluate: Callable[[Any, Array, Array], Seen], given: Any, aim: Aim, start: Any, slope: Any, is_slope: Any
) -> State:
    """Returns the last state of a search for the least setting at which ``evaluate`` certifies at most the target.

    Args:
        evaluate: what is certified for what is given, at a value; with what is reported where its last argument says
            so. Bounds on delta decrease in the setting.
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
            return advanced(aim, state, evaluate(given, state.value, state.closes))

        return by_work.while_loop(lambda state, _: _goes_on(state), step, state, (aim, given), share=by_work.OF_QUEUES)
    # By the programs that answer single questions, which mostly are there already.
    while not bool(state.is_done) and int(state.round) < ROUNDS:
        state = advanced(aim, state, evaluate(given, outside(state.value), state.closes))
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
    asked = zero, first, aim.value(first), never, slope * aim.steepness(), is_slope
    return State(*asked, unseen, unseen, zero, -nothing, -nothing, found, never)


@compiled
def advanced(aim: Aim, state: State, seen: Seen) -> State:
    """Returns the state after one more evaluation, at the value of its setting."""
    whole, u, value, found, bounds = aim.whole, state.setting, state.value, state.found, seen.delta
    high, low = measured(bounds.upper), measured(bounds.lower)
    known = bounds.upper < 1
    passes, is_refuted = known & (bounds.upper <= aim.target), bounds.lower > aim.target
    # What the curve is like.
    secant = (high - state.height) / (u - state.last)
    usable = known & jnp.isfinite(secant) & (secant < 0)
    usable = usable & (jnp.abs(high - state.height) > 10 * (high - low))
    slope, is_slope = jnp.where(usable, secant, state.slope), state.is_slope | usable
    step = jnp.where(known, (measured(aim.target) - high) / slope, jnp.inf)
    # What is known of settings.
    refuted = jnp.where(is_refuted, jnp.maximum(state.refuted, u), state.refuted)
    bad = jnp.where(passes, state.bad, jnp.maximum(state.bad, u))
    new = Found(u, value, seen.reached, found.distance, found.infeasible)
    better = passes & ((u < found.setting) | state.closes)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
    best = best._replace(distance=best.setting - refuted, infeasible=found.infeasible | (is_refuted & (u >= aim.most)))
    # Where the least one is, and how well that is known.
    tolerance, blur = jnp.where(whole, FORESEEN, aim.tolerance), (high - low) / -slope
    padding = PADDING * jnp.abs(step)
    root = u + jnp.clip(step, -LONGEST, LONGEST)
    accepted = refuted + jnp.maximum(APART * tolerance, 3 * blur)
    accepted = jnp.where(whole, _next_below(refuted, accepted - refuted), accepted)
    is_near = known & is_slope & (root + jnp.where(whole, 0.0, padding) <= accepted)
    refutable = _below(root, jnp.maximum(BELOW * tolerance, 1.2 * blur), whole)
    # Not farther below what passes than it takes to prove that this is near the least.
    closest = _below(best.setting, PROBE * jnp.maximum(tolerance, 3 * blur), whole)
    refutable = jnp.where(root > closest, jnp.maximum(refutable, closest), refutable)
    # Where nothing is known: to what passed, or away from what costs more.
    retreats = state.retreats + (~known & jnp.isinf(best.setting))
    retreat = jnp.where(jnp.isfinite(best.setting), (u + best.setting) / 2, u + FIRST_RETREAT * 4.0**state.retreats)
    retreat = jnp.where(whole, _below(retreat, 0.0, whole), retreat)
    ahead = jnp.where(known, jnp.where(is_near, accepted, refutable), retreat)
    beyond = jnp.maximum(bad + LEAST_PADDING * 8.0 ** jnp.minimum(state.round, 12), root + padding)
    ahead = jnp.where(ahead > bad, ahead, beyond)
    ahead = _between(jnp.clip(ahead, aim.least, aim.most), bad, best.setting, whole)
    # Whole numbers end at neighbours, unless they are too large to be told apart.
    counts = whole & (value <= PROVEN)
    is_adjacent = whole & (jnp.exp(-bad) - jnp.exp(-best.setting) < 1.5)
    is_close = ~counts & (best.distance <= jnp.maximum(tolerance, 3.1 * blur))
    enough = ~counts & (best.setting - bad <= tolerance / 2) | ~whole & (state.round + 1 >= ENOUGH)
    at_end = passes & (u <= aim.least) | ~passes & (u >= aim.most)
    ends = is_close | is_adjacent | jnp.isfinite(best.setting) & enough | at_end | (retreats > RETREATS) | (ahead == u)
    # What has not been asked for what is reported yet is so at the end.
    closed = state.closes & passes
    again = ends & jnp.isfinite(best.setting) & aim.reports & ~closed
    ahead, closes = jnp.where(again, best.setting, ahead), again | is_near
    is_done = closed | ends & ~again
    height, last = jnp.where(known, high, state.height), jnp.where(known, u, state.last)
    asked = state.round + 1, ahead, aim.value(ahead), closes, slope, is_slope
    return State(*asked, last, height, retreats, bad, refuted, best, is_done)


def _below(setting: Array, distance: Array | float, whole: Array) -> Array:
    """Returns a setting so much less private; of whole values the next larger one, by as much at least."""
    lower = setting - distance
    above = jnp.maximum(jnp.floor(jnp.exp(-setting) * (1 + scaled(1e-12))) + 1, jnp.ceil(jnp.exp(-lower)))
    return jnp.where(whole, -jnp.log(above), lower)


def _next_below(setting: Array, distance: Array) -> Array:
    """Returns the setting of the next smaller whole value, by a distance at least."""
    return -jnp.log(jnp.minimum(jnp.round(jnp.exp(-setting)) - 1, jnp.floor(jnp.exp(-setting - distance))))


def measured(level: ArrayLike) -> Array:
    """Returns a height that rises with a delta and is nearly linear in u.

    The logarithm of a normal distribution's delta goes like the square of e^u, and that of rare large losses bends the
    other way; a fourth root lies between the two.
    """
    return -(jnp.maximum(-jnp.log(jnp.maximum(level, SMALLEST)), 0.0) ** 0.25)


def _between(ahead: Array, bad: Array, best: Array, whole: Array) -> Array:
    """Returns ``ahead`` where it lies between the settings known to fail and to pass, else one that does."""
    # In the values: from one above those known to pass to one below those known to fail.
    low, high = jnp.exp(-best), jnp.minimum(jnp.exp(-bad), MOST_STEPS + 1)
    low, high = jnp.round(low), jnp.round(high)
    neighbour = -jnp.log(jnp.clip(jnp.round(jnp.exp(-ahead)), low + 1, jnp.maximum(high - 1, 1.0)))
    middle = jnp.where(jnp.isfinite(bad) & jnp.isfinite(best), (bad + best) / 2, jnp.where(ahead < best, ahead, best))
    return jnp.where(whole, neighbour, jnp.where((ahead > bad) & (ahead < best), ahead, middle))
