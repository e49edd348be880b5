"""The compiled part: from dominating pairs to a bracket of epsilon or delta, for one direction.

Concrete arguments go through two programs: the line, for the kind of pairs, and what is read off it, which is one for
all kinds. So another kind, or another question, compiles only what is new. Inside a trace all is one program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.arithmetic import FLOAT32, FLOAT64, PAIR, arithmetic
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts, facts_of
from jaxacct.dominating_pairs.law import Nodes, law_of
from jaxacct.precision import is_concrete, log_complement
from jaxacct.programs import compiled
from jaxacct.question import ForDelta, ForEpsilon, Question
from jaxacct.saddlepoint.contour import Line, errors, line_at, log_delta, saddle_for

CONVERGED = {FLOAT64: 1e-9, PAIR: 5.12e-7, FLOAT32: 1e-3}
"""Relative error, by its bound, up to which a result counts as converged, for each arithmetic.

Of delta; or of epsilon, where that is what was asked for and steep in delta.
"""

SINGLE_SHARE = 1 / 24
"""Share of the bounds on rounding that float32 results are judged by: they are worst cases, and the errors of hundreds
of nodes do not conspire. Chosen by tests/saddlepoint/test_precision.py. No bracket is made of it."""

NEWTON = 5
"""Newton's steps for eps on a line; from Laplace's method each doubles the digits."""

LINES = 3
"""Most lines for eps. One is usual; where large losses are rare Laplace's eps is too far off to choose a line by."""


LANES_A_SLOT = 4
"""Of the loop over lines: one is usual, and a step is made of queues."""

MOVED = 0.005
"""Nats of log delta by which eps must have moved for another line to be another line."""


def scanned(parts: Parts) -> list[Nodes]:
    """Returns the nodes of all parts for real orders."""
    return [jax.vmap(lambda pair: law_of(pair).scan())(pairs) for pairs, _ in parts]


def line_for(
    parts: Parts, epsilon: Array, log_delta: Array, by_delta: Array | bool, wanted: Array | bool
) -> tuple[Line, Array, Array]:
    """Returns the line for an eps, that eps, and whether a saddle point was found.

    Where ``by_delta``, for the eps of a log delta, by Laplace's method, instead. None where it is not ``wanted``.
    """
    scans = scanned(parts)
    saddle = saddle_for(parts, scans, epsilon, log_delta, by_delta, wanted)
    # The saddle point is met roughly, which matters in the second order only.
    reached = saddle.log_delta + saddle.order * (saddle.epsilon - epsilon)
    epsilon, log_delta = jnp.where(by_delta, saddle.epsilon, epsilon), jnp.where(by_delta, log_delta, reached)
    return line_at(parts, scans, saddle.order, epsilon, log_delta, wanted), epsilon, saddle.is_known


class Opened(NamedTuple):
    """A line, the eps it was chosen for, whether a saddle point was found, and what does not depend on either."""

    line: Line
    epsilon: Array
    known: Array
    facts: Facts


class _Found(NamedTuple):
    """After so many lines: the eps found, whether another line may do better, and the bracket of epsilon."""

    lines: Array
    epsilon: Array
    is_rough: Array
    bounds: Bounds


def _is_certified() -> bool:
    return arithmetic() != FLOAT32


def _share() -> float:
    return 1.0 if _is_certified() else SINGLE_SHARE


@compiled
def opened(parts: Parts, epsilon: Any, delta: Any, by_delta: Any, wanted: Any) -> Opened:
    """Returns the line for ``epsilon``; where ``by_delta``, for about the eps of ``delta`` instead.

    Lanes of a batch where it is not ``wanted`` have a line that says nothing, and take no time.
    """
    facts = facts_of(parts)
    return Opened(*line_for(parts, epsilon, _target(*facts.infinite, delta), by_delta, wanted), facts)


def _target(least: Array, most: Array, delta: Array) -> Array:
    """Returns log delta less the share of infinite losses, which comes first."""
    room = delta - (least + most) / 2
    return jnp.log(jnp.maximum(room, jnp.finfo(room.dtype).tiny))


def bounds_of(parts: Parts, question: Question) -> Bounds:
    """Returns the bracket that answers a question of one number, of one direction."""
    if isinstance(question, ForEpsilon):
        return _epsilon_bounds(parts, question.delta)
    epsilon = question.epsilon
    return _delta_bounds(parts, epsilon) if is_concrete(parts, epsilon) else _delta_bounds_traced(parts, epsilon)


def _delta_bounds(parts: Parts, epsilon: Any) -> Bounds:
    return _delta_on_line(opened(parts, epsilon, np.ones((), epsilon.dtype), np.False_, np.True_), epsilon)


_delta_bounds_traced = jax.jit(_delta_bounds)


@compiled
def _delta_on_line(on: Opened, epsilon: Array) -> Bounds:
    line, (least, most) = on.line, on.facts.infinite
    u, limit = arithmetic().roundoff, CONVERGED[arithmetic()]
    log_finite, _ = log_delta(line, epsilon)
    below, above = errors(line, epsilon, log_finite)
    finite = jnp.exp(log_finite)
    # Not below what the precision can hold.
    shown = log_finite > jnp.log(jnp.finfo(finite.dtype).tiny)
    good = on.known & (_share() * below < limit) & shown
    estimate = jnp.where(good, jnp.minimum(finite + most, 1.0), jnp.nan)
    if _is_certified():
        sound = on.known & (below < 1) & jnp.isfinite(log_finite)
        upper = jnp.where(sound, jnp.minimum((finite * (1 + above) + most) * (1 + 16 * u), 1.0), 1.0)
        lower = jnp.where(sound, jnp.clip(finite * (1 - below) + least, 0.0, 1.0) * (1 - 16 * u), 0.0)
        estimate = jnp.clip(estimate, lower, upper)
    else:
        lower, upper = jnp.zeros_like(estimate), jnp.ones_like(estimate)
    bounds = Bounds(lower=lower, estimate=estimate, upper=upper, converged=good)
    if _is_certified():
        return ForDelta(epsilon).close(bounds, on.facts)
    return _unproved(bounds, on.facts, on.facts.is_valid & (epsilon >= 0), ForDelta.worst)


def _unproved(bounds: Bounds, facts: Facts, valid: Array, worst: float) -> Bounds:
    """Returns what float32 says: an estimate, 0 where nothing is run, the worst where arguments are wrong."""
    estimate = jnp.where(valid, jnp.where(facts.is_idle, 0.0, bounds.estimate), worst)
    upper = jnp.where(facts.is_idle & valid, 0.0, worst)
    return replace(bounds, estimate=estimate, upper=upper, converged=valid & (facts.is_idle | bounds.converged))


def _epsilon_bounds(parts: Parts, delta: Any) -> Bounds:
    if is_concrete(parts, delta):
        found = _tried(parts, delta, np.zeros((), delta.dtype), np.int32(0), np.True_)
        # Not so where somebody else's trace is under way.
        if is_concrete(found):
            while found.is_rough:
                found = _tried(parts, delta, found.epsilon, found.lines, np.True_)
            return found.bounds
    return _epsilon_bounds_traced(parts, delta)


@compiled
def _epsilon_bounds_traced(parts: Parts, delta: Array) -> Bounds:
    zero, first = jnp.zeros_like(delta), jnp.asarray(0, jnp.int32)
    shapes = jax.eval_shape(_tried, parts, delta, zero, first, jnp.asarray(True))
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)._replace(is_rough=jnp.asarray(True))
    found = by_work.while_loop(
        lambda found, _: found.is_rough,
        lambda found, given: _tried(given[0], given[1], found.epsilon, found.lines, found.is_rough),
        start,
        (parts, delta),
        share=LANES_A_SLOT,
    )
    return found.bounds


def _tried(parts: Parts, delta: Any, epsilon: Any, lines: Any, wanted: Any) -> _Found:
    """Returns what one line more has to say; the first is that of Laplace's eps."""
    return _epsilon_on_line(opened(parts, epsilon, delta, lines == 0, wanted), delta, lines)


@compiled
def _epsilon_on_line(on: Opened, delta: Array, lines: Array) -> _Found:
    line, (least, most), known = on.line, on.facts.infinite, on.known
    u, limit = arithmetic().roundoff, CONVERGED[arithmetic()]
    # Infinite losses take their share of delta first; the difference rounds by one unit of delta.
    rounding = jnp.where(most > 0, 2 * u * delta, 0.0)
    room, strict, loose = delta - (least + most) / 2, delta - most - rounding, delta - least + rounding
    target = _target(least, most, delta)

    def look(state: tuple[Array, Array, Array], i: Array) -> tuple[Any, Any]:
        """Newton's steps to eps, a look at what was found, and one on either side: the same, and compiled once."""
        at, epsilon, margin = state
        value, slope = log_delta(line, at)
        below, above = errors(line, at, value)
        # As a function of eps log delta is concave: from above the steps fall short, from below they go too far.
        newton = at - jnp.clip((value - target) / slope, -2.0 / line.order, 20.0 / line.order)
        off = 2 * (jnp.maximum(below, above) + jnp.abs(value - target)) / -slope + 8 * u * (1 + jnp.abs(at))
        epsilon, margin = jnp.where(i == NEWTON, at, epsilon), jnp.where(i == NEWTON, off, margin)
        ahead = jnp.where(i < NEWTON, newton, epsilon + jnp.where(i == NEWTON, margin, -margin))
        return (ahead, epsilon, margin), (at, value, slope, below, above)

    looks = jnp.arange(NEWTON + (3 if _is_certified() else 1))
    zero = jnp.zeros_like(delta)
    (_, epsilon, _), seen = jax.lax.scan(look, (on.epsilon, zero, zero), looks)
    _, value, slope, below, _ = (rows[NEWTON] for rows in seen)
    # The bracket of eps is that of delta over the slope of its logarithm.
    allowed = limit * jnp.maximum(1.0, -slope * epsilon)
    is_good = known & (jnp.abs(value - target) <= limit) & (_share() * below < allowed)
    has_moved = line.order * jnp.abs(epsilon - on.epsilon) > MOVED
    is_rough = ~is_good & known & jnp.isfinite(epsilon) & has_moved & (lines + 1 < LINES)
    good = is_good & (room > 0)
    estimate = jnp.where(good, jnp.maximum(epsilon, 0.0), jnp.nan)
    if _is_certified():
        # Eps moved to either side, and whether delta there is proven to be on its side of the target.
        moved, values, _, too_high, too_low = (rows[NEWTON + 1 :] for rows in seen)
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
    else:
        lower, upper = jnp.zeros_like(estimate), jnp.full_like(estimate, jnp.inf)
    bounds = Bounds(lower=lower, estimate=estimate, upper=upper, converged=good)
    if _is_certified():
        bounds = ForEpsilon(delta).close(bounds, on.facts)
    else:
        valid = on.facts.is_valid & (delta > 0) & (delta < 1)
        bounds = _unproved(bounds, on.facts, valid & ~((strict <= 0) & (loose <= 0)), ForEpsilon.worst)
    return _Found(lines + 1, epsilon, is_rough, bounds)


def log_delta_at(parts: Parts, epsilon: Array) -> tuple[Array, Array]:
    """Returns log delta(epsilon), infinite losses included, and its derivative in epsilon."""
    return _log_delta_on_line(opened(parts, epsilon, np.ones((), epsilon.dtype), np.False_, np.True_), epsilon)


@compiled
def _log_delta_on_line(on: Opened, epsilon: Array) -> tuple[Array, Array]:
    log_finite, slope = log_delta(on.line, epsilon)
    ratio = on.facts.infinite[1] * jnp.exp(-log_finite)
    return log_finite + jnp.log1p(ratio), slope / (1 + ratio)
