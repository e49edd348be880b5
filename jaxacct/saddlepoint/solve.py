"""The compiled part: from dominating pairs to a bracket of epsilon or delta, for one direction."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.prv.composition import Part
from jaxacct.prv.kernel import infinite_mass, is_idle, valid_parts
from jaxacct.saddlepoint.contour import Line, errors, line_at, log_delta, log_normal_delta, saddle_point, total
from jaxacct.saddlepoint.laws import Nodes, law_of, precision

CONVERGED = {2.0**-53: 1e-9, 2.0**-24: 1e-3}
"""Relative error of delta, by its bound, up to which a result counts as converged, for each unit of roundoff."""

SINGLE_SHARE = 1 / 24
"""Share of the bounds on rounding that float32 results are judged by: they are worst cases, and the errors of hundreds
of nodes do not conspire. Chosen by tests/saddlepoint/test_precision.py. No bracket is made of it."""

NEWTON = 4
"""Newton's steps for eps on a line; from Laplace's method each doubles the digits."""


def scanned(parts: tuple[Part, ...]) -> list[Nodes]:
    """Returns the nodes of all parts for real orders."""
    return [jax.vmap(lambda pair: law_of(pair).scan())(pairs) for pairs, _ in parts]


def line_for(parts: tuple[Part, ...], target: Array, quantity: str) -> tuple[Line, Array, Array]:
    """Returns the line for a log delta or an eps, the eps to begin with, and whether a saddle point was found."""
    scans = scanned(parts)
    order, epsilon, known = saddle_point(parts, scans, target, quantity)
    _, at_saddle, _ = log_normal_delta(total(parts, scans, order), order)
    return line_at(parts, scans, order, epsilon, target if quantity == "epsilon" else at_saddle), epsilon, known


def _is_certified() -> bool:
    return precision().roundoff == 2.0**-53


def _share() -> float:
    return 1.0 if _is_certified() else SINGLE_SHARE


@jax.jit
def delta_bounds(parts: tuple[Part, ...], epsilon: Array) -> Bounds:
    """Returns the bracket of delta at ``epsilon``, of one direction."""
    line, _, known = line_for(parts, epsilon, "delta")
    u, limit = precision().roundoff, CONVERGED[precision().roundoff]
    least, most = infinite_mass(parts)
    log_finite, _ = log_delta(line, epsilon)
    below, above = errors(line, epsilon)
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
    line, epsilon, known = line_for(parts, target, "epsilon")

    def newton(_, epsilon: Array) -> Array:
        value, slope = log_delta(line, epsilon)
        return epsilon - jnp.clip((value - target) / slope, -2.0 / line.order, 2.0 / line.order)

    epsilon = jax.lax.fori_loop(0, NEWTON, newton, epsilon)
    value, slope = log_delta(line, epsilon)
    below, above = errors(line, epsilon)
    met = jnp.abs(value - target) <= limit
    good = known & met & (_share() * below < limit) & (room > 0)
    idle, valid = is_idle(parts), valid_parts(parts) & (delta > 0) & (delta < 1)
    estimate = jnp.where(good, jnp.maximum(epsilon, 0.0), jnp.nan)
    if _is_certified():
        margin = 2 * (jnp.maximum(below, above) + jnp.abs(value - target)) / -slope + 8 * u * (1 + jnp.abs(epsilon))

        def holds(side: float, target: Array) -> tuple[Array, Array]:
            """Returns eps moved by the margin, and whether delta there is proven to be on its side of the target."""
            at = epsilon + side * margin
            value, _ = log_delta(line, at)
            off = errors(line, at)
            log_off = jnp.log1p(off[1]) if side > 0 else jnp.log1p(-jnp.minimum(off[0], 1.0))
            proven = side * (jnp.log(target) * (1 + 4 * u) - value - log_off) > 4 * u * jnp.abs(value)
            return at, proven & known & valid & (target > 0)

        (high, is_above), (low, is_below) = holds(1.0, strict), holds(-1.0, loose)
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
    line, _, _ = line_for(parts, epsilon, "delta")
    log_finite, slope = log_delta(line, epsilon)
    ratio = infinite_mass(parts)[1] * jnp.exp(-log_finite)
    return log_finite + jnp.log1p(ratio), slope / (1 + ratio)
