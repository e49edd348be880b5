"""The compiled part: from dominating pairs to a bracket of epsilon or delta.

One program for a kind of pairs and of question, called with numbers or inside a trace: a loop over lines, of which each
direction has one or a few. A line is opened: rare losses are left out, a saddle point of the rest is found, and the
integral's nodes are laid through it or near it. Then it is read: what it says of its direction, and which is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, ForDelta, ForEpsilon, Parts, Question, facts_of
from jaxacct.numerics import by_work
from jaxacct.numerics.arithmetic import arithmetic, scaled
from jaxacct.numerics.by_work import stack
from jaxacct.numerics.precision import log_complement
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import without_axes
from jaxacct.saddlepoint.contour import Line, Read, Wanted, aimed, kept, line_at, log_above, read_at

CONVERGED = 1e-9
"""Relative error, by its bound, up to which a result counts as converged, scaled to the arithmetic's unit.

Of delta; or of epsilon, where that is what was asked for and steep in delta.
"""

FEWEST_DIGITS = 1e-3
"""The largest error up to which one does, in any arithmetic."""

ESTIMATED = 1 / 24
"""Share of the bounds on rounding that estimates are judged by: they are worst cases, and the errors of hundreds of
nodes do not conspire. Chosen by tests/saddlepoint/test_precision.py. No bracket is made of it."""

NEWTON = 8
"""Most of Newton's steps for eps on a line. Three are usual, for near it each doubles the digits; from far
above, where log delta falls like an exponential, each takes a nat. Speed only."""

LINES = 6
"""Most lines for eps. One is usual; where large losses are rare Laplace's eps is too far off to choose a line by."""

MOVED = 0.005
"""Nats of log delta by which eps must have moved for another line to be another line."""


class Opened(NamedTuple):
    """A line, the eps it was chosen for, whether a saddle point was found, and what does not depend on either."""

    line: Line
    epsilon: Array
    known: Array
    facts: Facts


class State(NamedTuple):
    """What is known after so many lines, and the next one."""

    direction: Any
    """The one that is worked on; their number at the end."""
    lines: Any
    """Of this direction, rough ones aside."""
    wanted: Wanted
    bounds: Bounds
    """The largest of the directions that are done."""
    decides: Any
    """Which of them that is."""
    read: Any = None
    """Log delta, infinite losses included, and its derivative in eps, on the line of a :class:`Point`."""


class Point(NamedTuple):
    """An eps and a direction whose delta may be asked for in place of a question's answer: one line says it."""

    is_asked: Any
    epsilon: Any
    direction: Any


class _Told(NamedTuple):
    """What a line says of a direction."""

    bounds: Bounds
    is_below: Array
    """Whether the direction is proven not to exceed what is known, which is all that a rough line says."""
    again: Array
    """Whether another line, for ``epsilon``, may do better."""
    epsilon: Array
    read: Read
    """What the line says where it was read first, or last where eps was sought."""


def _limit() -> float:
    """Returns the error, by its bound, up to which a result counts as converged."""
    return min(scaled(CONVERGED), FEWEST_DIGITS)


def _share() -> float:
    return 1.0 if arithmetic().is_certified else ESTIMATED


def opened(parts: Parts, wanted: Wanted, is_wanted: Any) -> Opened:
    """Returns a line. Lanes of a batch where none is wanted have one that says nothing, and take no time."""
    facts, is_rough = facts_of(parts), wanted.order > 0
    parts, target = without_axes(parts), _target(*facts.infinite, wanted.delta)
    aim = aimed(parts, wanted, target, jnp.logical_and(is_wanted, ~is_rough))
    epsilon = jnp.where(wanted.by_delta, aim.epsilon, wanted.epsilon)
    log_delta = jnp.where(is_rough, target, aim.log_delta)
    line = line_at(kept(parts, aim.marks), aim, epsilon, log_delta, is_rough, is_wanted)
    return Opened(line, epsilon, aim.is_known | is_rough, facts)


def _target(least: Array, most: Array, delta: Array) -> Array:
    """Returns log delta less the share of infinite losses, which comes first."""
    room = delta - (least + most) / 2
    return jnp.log(jnp.maximum(room, jnp.finfo(room.dtype).tiny))


def bounds_of(directions: Sequence[Parts], question: Question) -> tuple[Bounds, Array]:
    """Returns the largest of the directions' brackets for a question of one number, and which of them decides.

    Most often that is the first. A later one is asked by a rough line whether it can be above the bracket at all: at
    the bracket's lower end of epsilon its delta is below the one asked for, or below the bracket's of delta.
    """
    return _found(tuple(directions), question)


@compiled
def _found(directions: tuple[Parts, ...], question: Question) -> tuple[Bounds, Array]:
    state = answered(directions, question)
    return state.bounds, state.decides


def answered(directions: Sequence[Parts], question: Question, point: Point | None = None) -> State:
    """Returns the state at the end: the answer, or what is read at a point; within a program."""
    state: State = jax.tree.map(jnp.asarray, _start(question, point))
    alike = len({jax.tree.structure(parts) for parts in directions}) == 1
    done = 0
    for group in [tuple(directions)] if alike else [(parts,) for parts in directions]:
        state, done = _worked_off(group, done, state, question, point), done + len(group)
    return state


def _worked_off(
    directions: tuple[Parts, ...], first: int, state: State, question: Question, point: Point | None
) -> State:
    """Returns the state after at most two directions of one structure, of which ``first`` is the first."""
    end = first + len(directions)

    def a_line(state: State, given: Any) -> State:
        directions, question, point = given
        is_second = state.direction > first
        parts = jax.tree.map(lambda *each: jnp.where(is_second, each[-1], each[0]), *directions)
        return _read(opened(parts, state.wanted, state.direction < end), question, state, point)

    given = directions, question, point
    goes_on = lambda state, _: (state.direction < end) & (state.lines < LINES)  # noqa: E731
    return by_work.while_loop(goes_on, a_line, state, given, share=by_work.OF_QUEUES)


def _start(question: Question, point: Point | None = None) -> State:
    nothing = np.zeros((), question.value.dtype)
    bounds = Bounds(nothing, nothing, nothing, np.True_)
    first = State(np.int32(0), np.int32(0), _first(question), bounds, np.int32(0))
    if point is None:
        return first
    at = first._replace(direction=point.direction, wanted=_first(ForDelta(point.epsilon)))
    state: State = jax.tree.map(lambda *each: jnp.where(point.is_asked, *each), at, first)
    return state._replace(read=jnp.zeros(2, nothing.dtype))


def _first(question: Question) -> Wanted:
    """Returns a direction's first line."""
    nothing = np.zeros((), question.value.dtype)
    if isinstance(question, ForEpsilon):
        return Wanted(nothing, question.delta, np.True_, nothing)
    return Wanted(question.epsilon, nothing + 1, np.False_, nothing)


def _read(on: Opened, question: Question, state: State, point: Point | None = None) -> State:
    """Returns the state after a line: what it says of its direction, and which line comes next."""
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
    # Where a line leads: to another for the same direction, to a rough one for the next, or to a first one.
    first, no = _first(question), jnp.asarray(False)
    at = (bounds.lower, question.delta) if isinstance(question, ForEpsilon) else (question.epsilon, bounds.lower)
    another, rough = first._replace(epsilon=found.epsilon, by_delta=no), Wanted(*at, no, on.line.order)
    can_be_below = is_done & bounds.converged & (on.line.order > 0) & arithmetic().is_certified

    def ahead(another: Any, rough: Any, first: Any) -> Array:
        return jnp.where(again, another, jnp.where(can_be_below, rough, first))

    direction = state.direction + (is_done | (was_rough & found.is_below))
    lines = jnp.where(again, state.lines + 1, 0)
    read = None
    if point is not None:
        ratio = on.facts.infinite[1] * jnp.exp(-found.read.value)
        read = jnp.stack([found.read.value + jnp.log1p(ratio), found.read.slope / (1 + ratio)])
        direction = jnp.where(point.is_asked, np.iinfo(np.int32).max, direction)
    return State(direction, lines, jax.tree.map(ahead, another, rough, first), bounds, decides, read)


def larger(first: Bounds, second: Bounds) -> tuple[Bounds, Array]:
    """Returns the larger of two brackets, and which one decides."""
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


def _delta_on_line(on: Opened, question: ForDelta, state: State) -> _Told:
    line, (least, most), epsilon = on.line, on.facts.infinite, question.epsilon
    u, limit = arithmetic().roundoff, _limit()
    read = read_at(line, epsilon)
    log_finite, _, below, above = read
    finite = jnp.exp(log_finite)
    # Not below what the precision can hold.
    shown = log_finite > jnp.log(jnp.finfo(finite.dtype).tiny)
    good = on.known & (_share() * below < limit) & shown
    estimate, is_below = jnp.where(good, jnp.minimum(finite + most, 1.0), jnp.nan), jnp.asarray(False)
    if arithmetic().is_certified:
        sound = on.known & (below < 1) & jnp.isfinite(log_finite)
        upper = jnp.where(sound, jnp.minimum((finite * (1 + above) + most) * (1 + 16 * u), 1.0), 1.0)
        lower = jnp.where(sound, jnp.clip(finite * (1 - below) + least, 0.0, 1.0) * (1 - 16 * u), 0.0)
        estimate = jnp.clip(estimate, lower, upper)
        at_most = jnp.exp(log_above(line, epsilon, read)) + most
        is_below = at_most * (1 + 16 * u) <= state.bounds.lower
        bounds = question.close(Bounds(lower=lower, estimate=estimate, upper=upper, converged=good), on.facts)
    else:
        bounds = _unproved(estimate, good, on.facts, on.facts.is_valid & (epsilon >= 0), ForDelta.worst)
    return _Told(bounds, is_below & on.facts.is_valid, jnp.asarray(False), epsilon, read)


def _unproved(estimate: Array, good: Array, facts: Facts, valid: Array, worst: float) -> Bounds:
    """Returns what is said without proof: an estimate, 0 where nothing is run, the worst where arguments are wrong."""
    lower, upper = jnp.zeros_like(estimate), jnp.where(facts.is_idle & valid, jnp.zeros_like(estimate), worst)
    estimate = jnp.where(valid, jnp.where(facts.is_idle, 0.0, estimate), worst)
    return Bounds(lower=lower, estimate=estimate, upper=upper, converged=valid & (facts.is_idle | good))


class _Looks(NamedTuple):
    """At log delta on a line: the last of Newton's for eps, and one to either side of it.

    A compiler may compute a comparison twice, rounded in two ways, and the two may differ: so each look does one thing
    with what it finds, whether it was met, and ``rows`` alone says to the next one what that was.
    """

    steps: Array
    rows: Array
    """How many of the three are done."""
    at: Array
    """Eps of the next."""
    margin: Array
    seen: Array
    """(3, 5): for each where it was, log delta, its slope, and by how much it may be too high and too low."""


def _epsilon_on_line(on: Opened, question: ForEpsilon, state: State, point: Point | None) -> _Told:
    line, (least, most), known, delta = on.line, on.facts.infinite, on.known, question.delta
    u, limit = arithmetic().roundoff, _limit()
    # Infinite losses take their share of delta first; the difference rounds by one unit of delta.
    rounding = jnp.where(most > 0, 2 * u * delta, 0.0)
    room, strict, loose = delta - (least + most) / 2, delta - most - rounding, delta - least + rounding
    target = _target(least, most, delta)
    enough = 3 if arithmetic().is_certified else 1

    def look(looks: _Looks) -> _Looks:
        """The same for all of them, and compiled once."""
        steps, rows, at, margin, seen = looks
        value, slope, below, above = read_at(line, at)
        off, gap = jnp.maximum(below, above), jnp.abs(value - target)
        # As a function of eps log delta is concave: from above the steps fall short, from below they go too far.
        newton = at - jnp.clip((value - target) / slope, -2.0 / line.order, 20.0 / line.order)
        # So near log delta is as good as linear; from afar it, and what it is off by, may not be.
        spare = jnp.minimum(1.05 + 1000 * (off + gap), 2.0)
        width = (spare * (off + gap) + 16 * u * jnp.abs(value)) / -slope + 8 * u * (1 + jnp.abs(at))
        row = jnp.stack([at, value, slope, below, above])[None]
        seen = jax.lax.dynamic_update_slice(seen, row, (rows, jnp.int32(0)), allow_negative_indices=False)
        # To either side once eps is met.
        rows = jnp.where((rows > 0) | (steps >= NEWTON) | (gap <= 0.01 * jnp.minimum(below, above)), rows + 1, 0)
        margin = jnp.where(rows <= 1, width, margin)
        at = jnp.where(rows == 0, newton, seen[0, 0] + jnp.where(rows == 1, margin, -margin))
        return _Looks(steps + 1, rows, at, margin, seen)

    # Of a rough line, and at a point, one alone.
    is_single = state.wanted.order > 0 if point is None else point.is_asked | (state.wanted.order > 0)
    last = jnp.where(is_single, 0, NEWTON + 3)
    zero, none = jnp.zeros_like(delta), jnp.int32(0)
    looks = jax.lax.while_loop(
        lambda looks: (looks.rows < enough) & (looks.steps <= last),
        look,
        _Looks(none, none, on.epsilon, zero, jnp.zeros((3, 5), zero.dtype)),
    )
    epsilon, value, slope, below, above = looks.seen[0]
    # The bracket of eps is that of delta over the slope of its logarithm.
    allowed = limit * jnp.maximum(1.0, -slope * epsilon)
    # Where what is left out as rare is not known at this eps, another line leaves out what is.
    is_good = known & (jnp.abs(value - target) <= limit) & (_share() * below < allowed) & (above < 0.5)
    has_moved = line.order * jnp.abs(epsilon - on.epsilon) > jnp.where(above < 0.5, MOVED, 0.0)
    again = ~is_good & known & jnp.isfinite(epsilon) & has_moved
    good = is_good & (room > 0)
    estimate, is_ruled_out = jnp.where(good, jnp.maximum(epsilon, 0.0), jnp.nan), jnp.asarray(False)
    if arithmetic().is_certified:
        # Eps moved to either side, and whether delta there is proven to be on its side of the target.
        moved, values, _, too_high, too_low = looks.seen[1:].T
        sides, targets = jnp.asarray([1.0, -1.0]), jnp.stack([strict, loose])
        log_off = log_complement(jnp.where(sides > 0, -too_low, jnp.minimum(too_high, 1.0)))
        # The logarithm, of a number below 1, moved by its error to the side that is harder to prove.
        log_targets = jnp.log(targets) * (1 + sides * 4 * u)
        proven = sides * (log_targets - values - log_off) > 4 * u * jnp.abs(values)
        is_above, is_below = proven & known & (targets > 0)
        high, low = moved
        # No more than 0 is needed where delta at 0 suffices.
        upper = jnp.where(is_above, jnp.maximum(high, 0.0), jnp.inf)
        lower = jnp.where(is_below, jnp.maximum(low, 0.0), 0.0)
        estimate = jnp.clip(estimate, lower, upper)
        is_ruled_out = (strict > 0) & (log_above(line, epsilon, Read(value, slope, below, above)) < log_targets[0])
        bounds = question.close(Bounds(lower=lower, estimate=estimate, upper=upper, converged=good), on.facts)
    else:
        valid = on.facts.is_valid & (delta > 0) & (delta < 1)
        bounds = _unproved(estimate, good, on.facts, valid & ~((strict <= 0) & (loose <= 0)), ForEpsilon.worst)
    return _Told(bounds, is_ruled_out & on.facts.is_valid, again, epsilon, Read(value, slope, below, above))
