"""The compiled part of the exact accountant: from dominating pairs to a bracket of epsilon or delta.

There is one program for each kind of pairs and of question, called with numbers or inside a trace. It is a loop over
lines, of which each direction has one or a few. First a line is opened (:func:`open_line`): rare losses are left out, a
saddle point of the rest is found, and the integral's nodes are laid on a line through it or near it. Then the line is
read: it gives a bracket for its direction, and decides which line is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, ForDelta, ForEpsilon, Parts, Question, facts_of
from jaxacct.numerics import batched_loops
from jaxacct.numerics.arithmetic import arithmetic, scale_error
from jaxacct.numerics.batched_loops import stack
from jaxacct.numerics.precision import log_complement
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import without_axes
from jaxacct.saddlepoint.contour import (
    Line,
    Read,
    Wanted,
    find_saddle_point,
    leave_out_marked,
    line_at,
    log_above,
    read_at,
)

CONVERGED = 1e-9
"""Largest bound on the relative error up to which a result counts as converged, scaled to the arithmetic's unit.

The error is that of delta; or that of epsilon, where epsilon was asked for and is steep in delta. Brackets hold for any
value.
"""


LINES = 6
"""Largest number of lines for eps. Speed and convergence only.

One is usual; where large losses are rare Laplace's eps is too far off to choose a line by.
"""


class Opened(NamedTuple):
    """A line, with the eps it was chosen for and the facts of its direction."""

    line: Line
    epsilon: Array
    """The eps that the line was chosen for."""
    known: Array
    """Whether a saddle point was found, or none is needed."""
    facts: Facts
    """The facts of the direction's composition, which need no line."""


class SolverState(NamedTuple):
    """The knowledge after so many lines, and the next line."""

    direction: Any
    """Index of the direction that is worked on; the number of directions at the end."""
    lines: Any
    """Number of lines of this direction so far, rough ones aside."""
    wanted: Wanted
    """The next line."""
    bounds: Bounds
    """The largest bracket of the directions that are done."""
    decides: Any
    """Index of the direction that has this bracket."""
    read: Any = None
    """Log delta, infinite losses included, and its derivative in eps, on the line of a :class:`Point`."""


class Point(NamedTuple):
    """An eps and a direction whose delta may be asked for in place of a question's answer: one line gives it."""

    is_asked: Any
    """Whether delta at the point is asked for, and not the answer."""
    epsilon: Any
    direction: Any


class _Told(NamedTuple):
    """The result of reading a line."""

    bounds: Bounds
    """The bracket of the line's direction."""
    is_below: Array
    """Whether the direction is proven not to exceed the known bracket, the only result of a rough line."""
    again: Array
    """Whether another line, for ``epsilon``, may do better."""
    epsilon: Array
    """The eps at which the line was read, or the one that was sought."""
    read: Read
    """Log delta and its slope where the line was read first, or last where eps was sought."""


def _limit() -> float:
    """Returns the error, by its bound, up to which a result counts as converged."""
    # Largest relative error up to which a result counts as converged in any arithmetic. Brackets hold for any value.
    fewest_digits = 1e-3
    return min(scale_error(CONVERGED), fewest_digits)


def open_line(parts: Parts, wanted: Wanted, is_wanted: Any) -> Opened:
    """Returns a line. Lanes of a batch in which none is wanted have an empty one, and take no time."""
    # A rough line needs no search: its order and its eps are given.
    facts, is_rough = facts_of(parts), wanted.order > 0
    parts, target = without_axes(parts), _target(*facts.infinite, wanted.delta)
    aim = find_saddle_point(parts, wanted, target, jnp.logical_and(is_wanted, ~is_rough))
    epsilon = jnp.where(wanted.by_delta, aim.epsilon, wanted.epsilon)
    log_delta = jnp.where(is_rough, target, aim.log_delta)
    line = line_at(leave_out_marked(parts, aim.marks), aim, epsilon, log_delta, is_rough, is_wanted)
    return Opened(line, epsilon, aim.is_known | is_rough, facts)


def _target(least: Array, most: Array, delta: Array) -> Array:
    """Returns the log of delta less the probability of infinite losses, which take their share first."""
    room = delta - (least + most) / 2
    return jnp.log(jnp.maximum(room, jnp.finfo(room.dtype).tiny))


@compiled
def bounds_of(directions: tuple[Parts, ...], question: Question) -> tuple[Bounds, Array]:
    """Returns the largest of the directions' brackets for a question of one number, and the direction that decides.

    Most often the first one decides. A rough line tests whether a later direction can be above the bracket at all. It
    cannot if, at the bracket's lower end of epsilon, its delta is below the one asked for, or if its delta is below the
    bracket's lower end of delta.
    """
    state = answer_directions(directions, question)
    return state.bounds, state.decides


def answer_directions(directions: Sequence[Parts], question: Question, point: Point | None = None) -> SolverState:
    """Returns the state at the end: the answer, or log delta read at a point; within a program."""
    # Directions of one structure, at most two, share one loop and so its code; others have a loop each.
    state: SolverState = jax.tree.map(jnp.asarray, _start(question, point))
    alike = len({jax.tree.structure(parts) for parts in directions}) == 1
    done = 0
    for group in [tuple(directions)] if alike else [(parts,) for parts in directions]:
        state, done = _solve_directions(group, done, state, question, point), done + len(group)
    # The estimate of a narrow bracket is its middle, where nothing better has converged.
    is_alone = jnp.isnan(state.bounds.estimate) & _is_narrow(state.bounds, question)
    middle = state.bounds.lower + (state.bounds.upper - state.bounds.lower) / 2
    estimate = jnp.where(is_alone, middle, state.bounds.estimate)
    return state._replace(bounds=replace(state.bounds, estimate=estimate))


def _solve_directions(
    directions: tuple[Parts, ...], first: int, state: SolverState, question: Question, point: Point | None
) -> SolverState:
    """Returns the state after at most two directions of one structure, whose indices begin at ``first``."""
    end = first + len(directions)

    def a_line(state: SolverState, given: Any) -> SolverState:
        directions, question, point = given
        is_second = state.direction > first
        parts = jax.tree.map(lambda *each: jnp.where(is_second, each[-1], each[0]), *directions)
        return _read_line(open_line(parts, state.wanted, state.direction < end), question, state, point)

    # Each step opens and reads one line. A direction ends after LINES lines at the latest, and a rough line is followed
    # by lines of its own direction or by the next direction, so the loop ends.
    given = directions, question, point
    goes_on = lambda state, _: (state.direction < end) & (state.lines < LINES)  # noqa: E731
    return batched_loops.while_loop(goes_on, a_line, state, given, share=batched_loops.OF_QUEUES)


def _start(question: Question, point: Point | None = None) -> SolverState:
    nothing = np.zeros((), question.value.dtype)
    bounds = Bounds(nothing, nothing, nothing, np.True_)
    first = SolverState(np.int32(0), np.int32(0), _first_line(question), bounds, np.int32(0))
    if point is None:
        return first
    # At a point the first line is for delta there, in the direction given.
    at = first._replace(direction=point.direction, wanted=_first_line(ForDelta(point.epsilon)))
    state: SolverState = jax.tree.map(lambda *each: jnp.where(point.is_asked, *each), at, first)
    return state._replace(read=jnp.zeros(2, nothing.dtype))


def _first_line(question: Question) -> Wanted:
    """Returns the first line wanted of a direction."""
    nothing = np.zeros((), question.value.dtype)
    if isinstance(question, ForEpsilon):
        return Wanted(nothing, question.delta, np.True_, nothing)
    return Wanted(question.epsilon, nothing + 1, np.False_, nothing)


def _read_line(on: Opened, question: Question, state: SolverState, point: Point | None = None) -> SolverState:
    """Returns the state after a line: the bracket it gives its direction, and the next line."""
    if isinstance(question, ForEpsilon):
        found = _epsilon_on_line(on, question, state, point)
    else:
        found = _delta_on_line(on, question, state)
    was_rough, was = state.wanted.order > 0, state.bounds
    again = ~was_rough & found.again & (state.lines + 1 < LINES)
    is_done = ~was_rough & ~again
    both, which = larger(was, found.bounds)
    bounds = jax.tree.map(lambda new, old: jnp.where(is_done, new, old), both, was)
    decides = jnp.where(is_done & (which == 1), state.direction, state.decides)
    # The next line: another one of the same direction, a rough one of the next direction, or a first one (of the next
    # direction, or of the same after a rough line that did not rule it out).
    first, no = _first_line(question), jnp.asarray(False)
    at = (bounds.lower, question.delta) if isinstance(question, ForEpsilon) else (question.epsilon, bounds.lower)
    another, rough = first._replace(epsilon=found.epsilon, by_delta=no), Wanted(*at, no, on.line.order)
    # A rough line can rule a direction out only beside a bracket that has converged.
    can_be_below = is_done & bounds.converged & (on.line.order > 0)

    def ahead(another: Any, rough: Any, first: Any) -> Array:
        return jnp.where(again, another, jnp.where(can_be_below, rough, first))

    direction = state.direction + (is_done | (was_rough & found.is_below))
    lines = jnp.where(again, state.lines + 1, 0)
    # At a point one line is all: infinite losses are added to log delta and its slope, and the loop ends.
    read = None
    if point is not None:
        ratio = on.facts.infinite[1] * jnp.exp(-found.read.value)
        read = jnp.stack([found.read.value + jnp.log1p(ratio), found.read.slope / (1 + ratio)])
        direction = jnp.where(point.is_asked, np.iinfo(np.int32).max, direction)
    return SolverState(direction, lines, jax.tree.map(ahead, another, rough, first), bounds, decides, read)


def larger(first: Bounds, second: Bounds) -> tuple[Bounds, Array]:
    """Returns the larger of two brackets, and the index of the one that decides."""
    every: Any = stack(first, second)
    # A direction that has not converged matters only where its bracket reaches beyond the other's.
    estimates = jnp.where(every.converged, every.estimate, -jnp.inf)
    decides = jnp.where(estimates[1] > estimates[0], 1, 0)
    upper, known = jnp.max(every.upper), jnp.where(decides == 1, every.converged[1], every.converged[0])
    settled = known & jnp.all(every.converged | (every.upper < upper))
    bounds = Bounds(
        lower=jnp.max(every.lower),
        estimate=jnp.where(settled, jnp.max(estimates), jnp.nan),
        upper=upper,
        converged=settled,
    )
    return bounds, decides


def _delta_on_line(on: Opened, question: ForDelta, state: SolverState) -> _Told:
    line, (least, most), epsilon = on.line, on.facts.infinite, question.epsilon
    u, limit = arithmetic().roundoff, _limit()
    read = read_at(line, epsilon)
    log_finite, _, below, above = read
    finite = jnp.exp(log_finite)
    # A delta below the normal numbers has too few digits.
    shown = log_finite > jnp.log(jnp.finfo(finite.dtype).tiny)
    good = on.known & (below < limit) & shown
    estimate = jnp.where(good, jnp.minimum(finite + most, 1.0), jnp.nan)
    sound = on.known & (below < 1) & jnp.isfinite(log_finite)
    upper = jnp.where(sound, jnp.minimum((finite * (1 + above) + most) * (1 + 16 * u), 1.0), 1.0)
    lower = jnp.where(sound, jnp.clip(finite * (1 - below) + least, 0.0, 1.0) * (1 - 16 * u), 0.0)
    # Near 0 what the rule adds may be known far worse than the sum: then the bracket is as wide as that.
    good = good & (above < ForDelta.tolerance)
    estimate = jnp.where(good, jnp.clip(estimate, lower, upper), jnp.nan)
    # A direction whose delta is at most this is ruled out if the bracket already has more.
    at_most = jnp.exp(log_above(line, epsilon, read)) + most
    is_below = at_most * (1 + 16 * u) <= state.bounds.lower
    bounds = question.close(Bounds(lower=lower, estimate=estimate, upper=upper, converged=good), on.facts)
    return _Told(bounds, is_below & on.facts.is_valid, jnp.asarray(False), epsilon, read)


def _is_narrow(bounds: Bounds, question: Question) -> Any:
    """Returns whether a bracket is finite, and within the tolerance of its question."""
    return (bounds.upper - bounds.lower <= question.tolerance * bounds.upper) & (bounds.upper < jnp.inf)


class _Looks(NamedTuple):
    """The looks at log delta on a line: the last of Newton's for eps, and one to either side of it.

    A compiler may compute a comparison twice, rounded in two ways, and the two may differ. So each look does the same
    with its result whether the root was met or not, and ``rows`` alone tells the next look which of the two it was.
    """

    steps: Array
    """Number of looks so far."""
    rows: Array
    """Number of the three that are done."""
    at: Array
    """The eps of the next look."""
    margin: Array
    """Distance of the two side looks from the root."""
    seen: Array
    """The results (3, 5): eps, log delta, its slope, and bounds on how far it is too high and too low."""


def _epsilon_on_line(on: Opened, question: ForEpsilon, state: SolverState, point: Point | None) -> _Told:
    # Largest number of Newton's steps for eps on a line. Speed only. Three are usual, as near the root each doubles the
    # digits; from far above, where log delta falls like an exponential, each gains a nat.
    most_steps = 8
    # Nats of log delta by which eps must have moved for another line to be worth its time. Speed and convergence only.
    least_move = 0.005
    line, (least, most), known, delta = on.line, on.facts.infinite, on.known, question.delta
    u, limit = arithmetic().roundoff, _limit()
    # Infinite losses take their share of delta first; the difference rounds by one unit of delta. The bounds on their
    # probability leave ``strict`` for finite losses at least, and ``loose`` at most.
    rounding = jnp.where(most > 0, 2 * u * delta, 0.0)
    room, strict, loose = delta - (least + most) / 2, delta - most - rounding, delta - least + rounding
    target = _target(least, most, delta)

    def look(looks: _Looks) -> _Looks:
        """Returns the state after a look: one piece of code for all three kinds, compiled once."""
        steps, rows, at, margin, seen = looks
        value, slope, below, above = read_at(line, at)
        off, gap = jnp.maximum(below, above), jnp.abs(value - target)
        # Log delta is concave in eps: from above Newton's steps fall short, from below they overshoot. So they are
        # bounded, to 2 over the order upwards and to 20 over it downwards.
        newton = at - jnp.clip((value - target) / slope, -2.0 / line.order, 20.0 / line.order)
        # The margin for the side looks: the error of log delta, with a factor to spare, over its slope. Near the root
        # log delta is as good as linear, and a factor of 1.05 does; from afar neither it nor its error need be.
        spare = jnp.minimum(1.05 + 1000 * (off + gap), 2.0)
        width = (spare * (off + gap) + 16 * u * jnp.abs(value)) / -slope + 8 * u * (1 + jnp.abs(at))
        row = jnp.stack([at, value, slope, below, above])[None]
        seen = jax.lax.dynamic_update_slice(seen, row, (rows, jnp.int32(0)), allow_negative_indices=False)
        # Once the root is met, or after ``most_steps`` steps, the side looks follow.
        rows = jnp.where((rows > 0) | (steps >= most_steps) | (gap <= 0.01 * jnp.minimum(below, above)), rows + 1, 0)
        margin = jnp.where(rows <= 1, width, margin)
        at = jnp.where(rows == 0, newton, seen[0, 0] + jnp.where(rows == 1, margin, -margin))
        return _Looks(steps + 1, rows, at, margin, seen)

    # A rough line, and a point, takes a single look.
    is_single = state.wanted.order > 0 if point is None else point.is_asked | (state.wanted.order > 0)
    last = jnp.where(is_single, 0, most_steps + 3)
    zero, none = jnp.zeros_like(delta), jnp.int32(0)
    # One look for each round: Newton's until the root is met, then the side looks. ``last`` bounds the number.
    looks = jax.lax.while_loop(
        lambda looks: (looks.rows < 3) & (looks.steps <= last),
        look,
        _Looks(none, none, on.epsilon, zero, jnp.zeros((3, 5), zero.dtype)),
    )
    epsilon, value, slope, below, above = looks.seen[0]
    # The relative error of eps is that of delta over the slope of log delta in log eps, if that is above 1.
    allowed = limit * jnp.maximum(1.0, -slope * epsilon)
    # Where the share of the rare losses left out is not known at this eps (``above`` is large), another line leaves out
    # losses whose share is known.
    is_good = known & (jnp.abs(value - target) <= limit) & (below < allowed) & (above < 0.5)
    has_moved = line.order * jnp.abs(epsilon - on.epsilon) > jnp.where(above < 0.5, least_move, 0.0)
    again = ~is_good & known & jnp.isfinite(epsilon) & has_moved
    good = is_good & (room > 0)
    estimate = jnp.where(good, jnp.maximum(epsilon, 0.0), jnp.nan)
    # The side looks: a bound on eps holds only where delta there is proven to be on its side of the target.
    moved, values, _, too_high, too_low = looks.seen[1:].T
    sides, targets = jnp.asarray([1.0, -1.0]), jnp.stack([strict, loose])
    log_off = log_complement(jnp.where(sides > 0, -too_low, jnp.minimum(too_high, 1.0)))
    # The logarithm of a number below 1, moved by its error to the side that is harder to prove.
    log_targets = jnp.log(targets) * (1 + sides * 4 * u)
    proven = sides * (log_targets - values - log_off) > 4 * u * jnp.abs(values)
    is_above, is_below = proven & known & (targets > 0)
    high, low = moved
    # A negative upper end means that delta at 0 is small enough.
    upper = jnp.where(is_above, jnp.maximum(high, 0.0), jnp.inf)
    lower = jnp.where(is_below, jnp.maximum(low, 0.0), 0.0)
    # Near 0 what the rule adds may be known far worse than the sum: then the bracket is as wide as that, and the
    # estimate no better than it. An epsilon of less than ``negligible`` nats is as good as 0. Convergence only.
    negligible = 1e-6
    good = good & (upper - lower <= ForEpsilon.tolerance * upper + negligible)
    estimate = jnp.where(good, jnp.clip(estimate, lower, upper), jnp.nan)
    is_ruled_out = (strict > 0) & (log_above(line, epsilon, Read(value, slope, below, above)) < log_targets[0])
    bounds = question.close(Bounds(lower=lower, estimate=estimate, upper=upper, converged=good), on.facts)
    return _Told(bounds, is_ruled_out & on.facts.is_valid, again, epsilon, Read(value, slope, below, above))
