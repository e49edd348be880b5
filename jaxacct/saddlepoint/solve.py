"""The compiled part: from dominating pairs to a bracket of epsilon or delta, for one direction."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.prv.composition import Part
from jaxacct.prv.kernel import infinite_mass, is_idle, valid_parts
from jaxacct.saddlepoint.contour import (
    LADDER,
    Line,
    errors,
    line_at,
    log_delta,
    log_normal_delta,
    rungs_at,
    saddle_point,
)
from jaxacct.saddlepoint.laws import Nodes, law_of, precision

CONVERGED = {2.0**-53: 1e-9, 2.0**-24: 1e-3}
"""Relative error, by its bound, up to which a result counts as converged, for each unit of roundoff.

Of delta; or of epsilon, where that is what was asked for and steep in delta.
"""

SINGLE_SHARE = 1 / 24
"""Share of the bounds on rounding that float32 results are judged by: they are worst cases, and the errors of hundreds
of nodes do not conspire. Chosen by tests/saddlepoint/test_precision.py. No bracket is made of it."""

NEWTON = 5
"""Newton's steps for eps on a line; from Laplace's method each doubles the digits."""

LINES = 3
"""Most lines for eps. One is usual; where large losses are rare Laplace's eps is too far off to choose a line by."""


def scanned(parts: tuple[Part, ...]) -> list[Nodes]:
    """Returns the nodes of all parts for real orders."""
    return [jax.vmap(lambda pair: law_of(pair).scan())(pairs) for pairs, _ in parts]


def line_for(
    parts: tuple[Part, ...], epsilon: Array, log_delta: Array, by_delta: Array | bool
) -> tuple[Line, Array, Array]:
    """Returns the line for an eps, that eps, and whether a saddle point was found.

    Where ``by_delta``, for the eps of a log delta, by Laplace's method, instead.
    """
    scans = scanned(parts)
    saddle, known = saddle_point(parts, scans, epsilon, log_delta, by_delta=by_delta)
    rungs = rungs_at(parts, scans, saddle)
    order, here, _ = rungs.at(int(np.flatnonzero(LADDER == 1)[0]))
    at_saddle, reached, _ = log_normal_delta(here, order)
    # The saddle point is met roughly, which matters in the second order only.
    reached = reached + order * (at_saddle - epsilon)
    epsilon, log_delta = jnp.where(by_delta, at_saddle, epsilon), jnp.where(by_delta, log_delta, reached)
    return line_at(parts, scans, rungs, epsilon, log_delta), epsilon, known


class _OnLine(NamedTuple):
    """The eps found on the last of so many lines, log delta and its slope there, and the bounds of :func:`errors`."""

    lines: Array
    line: Line
    epsilon: Array
    value: Array
    slope: Array
    below: Array
    above: Array
    known: Array


def _is_certified() -> bool:
    return precision().roundoff == 2.0**-53


def _share() -> float:
    return 1.0 if _is_certified() else SINGLE_SHARE


@jax.jit
def delta_bounds(parts: tuple[Part, ...], epsilon: Array) -> Bounds:
    """Returns the bracket of delta at ``epsilon``, of one direction."""
    line, _, known = line_for(parts, epsilon, jnp.zeros_like(epsilon), by_delta=False)
    u, limit = precision().roundoff, CONVERGED[precision().roundoff]
    least, most = infinite_mass(parts)
    log_finite, _ = log_delta(line, epsilon)
    below, above = errors(line, epsilon, log_finite)
    finite = jnp.exp(log_finite)
    idle, valid = is_idle(parts), valid_parts(parts) & (epsilon >= 0)
    # Not below what the precision can hold.
    shown = log_finite > jnp.log(jnp.finfo(finite.dtype).tiny)
    good = known & (_share() * below < limit) & shown
    estimate = jnp.where(good, jnp.minimum(finite + most, 1.0), jnp.nan)
    if _is_certified():
        sound = known & (below < 1) & jnp.isfinite(log_finite) & valid & ~idle
        upper = jnp.where(sound, jnp.minimum((finite * (1 + above) + most) * (1 + 16 * u), 1.0), 1.0)
        lower = jnp.where(sound, jnp.clip(finite * (1 - below) + least, 0.0, 1.0) * (1 - 16 * u), 0.0)
        estimate = jnp.clip(estimate, lower, upper)
    else:
        lower, upper = jnp.zeros_like(estimate), jnp.ones_like(estimate)
    estimate = jnp.where(valid, jnp.where(idle, 0.0, estimate), 1.0)
    upper = jnp.where(idle & valid, 0.0, upper)
    return Bounds(lower=lower, estimate=estimate, upper=upper, converged=valid & (idle | good))


@jax.jit
def epsilon_bounds(parts: tuple[Part, ...], delta: Array) -> Bounds:
    """Returns the bracket of epsilon at ``delta``, of one direction."""
    u, limit = precision().roundoff, CONVERGED[precision().roundoff]
    least, most = infinite_mass(parts)
    # Infinite losses take their share of delta first; the difference rounds by one unit of delta.
    rounding = jnp.where(most > 0, 2 * u * delta, 0.0)
    room, strict, loose = delta - (least + most) / 2, delta - most - rounding, delta - least + rounding
    target = jnp.log(jnp.maximum(room, jnp.finfo(room.dtype).tiny))

    def on_line(i: Array, epsilon: Array) -> _OnLine:
        line, epsilon, known = line_for(parts, epsilon, target, by_delta=i == 0)

        def newton(_, epsilon: Array) -> Array:
            value, slope = log_delta(line, epsilon)
            # As a function of eps log delta is concave: from above the steps fall short, from below they go too far.
            return epsilon - jnp.clip((value - target) / slope, -2.0 / line.order, 20.0 / line.order)

        epsilon = jax.lax.fori_loop(0, NEWTON, newton, epsilon)
        value, slope = log_delta(line, epsilon)
        return _OnLine(i + 1, line, epsilon, value, slope, *errors(line, epsilon, value), known)

    def is_good(state: _OnLine) -> Array:
        # The bracket of eps is that of delta over the slope of its logarithm.
        allowed = limit * jnp.maximum(1.0, -state.slope * state.epsilon)
        return state.known & (jnp.abs(state.value - target) <= limit) & (_share() * state.below < allowed)

    def is_rough(state: _OnLine) -> Array:
        return ~is_good(state) & state.known & jnp.isfinite(state.epsilon) & (state.lines < LINES)

    zero = jnp.zeros_like(target)
    shapes = jax.eval_shape(on_line, jnp.asarray(0), zero)
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = empty._replace(below=zero + jnp.inf, known=empty.known | True)
    found = jax.lax.while_loop(is_rough, lambda state: on_line(state.lines, state.epsilon), start)
    _, line, epsilon, value, slope, below, above, known = found
    good = is_good(found) & (room > 0)
    idle, valid = is_idle(parts), valid_parts(parts) & (delta > 0) & (delta < 1)
    estimate = jnp.where(good, jnp.maximum(epsilon, 0.0), jnp.nan)
    if _is_certified():
        margin = 2 * (jnp.maximum(below, above) + jnp.abs(value - target)) / -slope + 8 * u * (1 + jnp.abs(epsilon))

        def holds(side: Array, target: Array) -> tuple[Array, Array]:
            """Returns eps moved by the margin, and whether delta there is proven to be on its side of the target."""
            at = epsilon + side * margin
            value, _ = log_delta(line, at)
            too_high, too_low = errors(line, at, value)
            log_off = jnp.log1p(jnp.where(side > 0, too_low, -jnp.minimum(too_high, 1.0)))
            proven = side * (jnp.log(target) * (1 + 4 * u) - value - log_off) > 4 * u * jnp.abs(value)
            return at, proven & known & valid & (target > 0)

        sides = jnp.asarray([1.0, -1.0])
        (high, low), (is_above, is_below) = jax.vmap(holds)(sides, jnp.stack([strict, loose]))
        # No more than 0 is needed where delta at 0 suffices.
        upper = jnp.where(is_above, jnp.maximum(high, 0.0), jnp.inf)
        lower = jnp.where(is_below, jnp.maximum(low, 0.0), 0.0)
        estimate = jnp.clip(estimate, lower, upper)
    else:
        lower, upper = jnp.zeros_like(estimate), jnp.full_like(estimate, jnp.inf)
    endless = ~valid | (strict <= 0) & (loose <= 0)
    estimate = jnp.where(endless, jnp.inf, jnp.where(idle, 0.0, estimate))
    upper = jnp.where(idle & valid, 0.0, jnp.where(endless, jnp.inf, upper))
    lower = jnp.where(idle, 0.0, lower)
    return Bounds(lower=lower, estimate=estimate, upper=upper, converged=~endless & (idle | good))


@jax.jit
def log_delta_at(parts: tuple[Part, ...], epsilon: Array) -> tuple[Array, Array]:
    """Returns log delta(epsilon), infinite losses included, and its derivative in epsilon."""
    line, _, _ = line_for(parts, epsilon, jnp.zeros_like(epsilon), by_delta=False)
    log_finite, slope = log_delta(line, epsilon)
    ratio = infinite_mass(parts)[1] * jnp.exp(-log_finite)
    return log_finite + jnp.log1p(ratio), slope / (1 + ratio)
