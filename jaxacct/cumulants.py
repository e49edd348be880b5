"""Cumulants of the subsampled Gaussian's privacy loss: moments of a likelihood ratio, without cancellation or overflow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.precision import as_float64

QUADRATURE_NODES = 1024
"""Nodes of the trapezoid rule; the error this leaves is measured in tests/test_cumulants.py."""

MAXIMUM_SPAN = 90.0
"""Longest range, in standard deviations, that one trapezoid rule covers; beyond, each of two peaks gets half."""

MARGIN = 13.0
"""Standard deviations covered on either side of a peak: exp(-13^2/2) is 2e-37."""


def log_moment_of_ratio(noise_multiplier: Array, sampling_rate: Array, exponent: Array, nodes: int) -> Array:
    """Returns ``log E[r(x)^a]`` for x ~ N(0, s^2), any real a, by the trapezoid rule on all of R.

    Since E[r - 1] = 0, the moment minus one is E[r^a - 1 - a (r - 1)], whose integrand has one sign (r^a is convex for
    a outside [0, 1], concave inside): nothing cancels however close to 1 the moment is. Everything is scaled by the
    largest exponent, so nothing overflows. The rule converges like exp(-2 pi w / h), w the distance of the integrand's
    singularities from the real axis, here pi s in units of the standard deviation.
    """
    s, q, a = (as_float64(v) for v in (noise_multiplier, sampling_rate, exponent))
    z, log_weight = _quadrature(s, q, a, nodes)
    u = (z - 0.5 / s) / s
    log_r = jnp.where(u > 0, u + jnp.log(q + (1 - q) * jnp.exp(-jnp.abs(u))), jnp.log1p(q * jnp.expm1(-jnp.abs(u))))
    exponents = _log_second_order(a, log_r) + log_weight
    top = jnp.max(exponents, axis=0)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    log_excess = top + jnp.log(jnp.sum(jnp.exp(exponents - top), axis=0))
    falls = (a > 0) & (a < 1)
    subsampled = jnp.where(
        falls, jnp.log1p(-jnp.exp(jnp.minimum(log_excess, 0.0))), jnp.logaddexp(0.0, log_excess)
    )
    closed = a * (a - 1) / (2 * s**2)
    return jnp.where(q == 1, closed, jnp.where((a == 0) | (a == 1), 0.0, subsampled))


def _log_second_order(a: Array, log_r: Array) -> Array:
    """Returns the log of the absolute value of ``r^a - 1 - a (r - 1)``; it is negative for a inside (0, 1) alone.

    Written as phi(aL) - a phi(L) with phi(x) = e^x - 1 - x and L = log r: the terms of first order are gone before
    anything is subtracted. Where an exponential is large, the difference of r^a and 1 + a (r - 1) is taken of logs.
    """
    power = a * log_r
    small = jnp.abs(_phi(jnp.minimum(power, 30.0)) - a * _phi(jnp.minimum(log_r, 30.0)))
    # log |r - 1| from whichever form keeps its digits
    log_distance = jnp.maximum(log_r, 0.0) + jnp.log(-jnp.expm1(-jnp.abs(log_r)))
    # For a > 0: |e^A - e^B| with A = aL, B = log(1 + a (r - 1)); also for a < 0 while r < 1.
    chord = jnp.logaddexp(0.0, jnp.log(jnp.abs(a)) + log_distance)
    apart = jnp.maximum(power, chord) + jnp.log(-jnp.expm1(-jnp.abs(power - chord)))
    # For a < 0 and r > 1: |a| (r - 1) - (1 - r^a), its second term below |a| L.
    rising = jnp.log(jnp.abs(a)) + log_distance
    large = jnp.where((a < 0) & (log_r > 0), rising, apart)
    return jnp.where(jnp.maximum(power, log_r) > 30.0, large, jnp.log(small))


def _phi(x: Array) -> Array:
    """Returns ``e^x - 1 - x``; by its Taylor series below 0.3, where expm1(x) - x would cancel."""
    small = jnp.clip(x, -0.3, 0.3)
    series = jnp.zeros_like(small)
    for n in range(14, 1, -1):  # 0.3^13 / 15! is below 1e-18 of the first term
        series = (1.0 + series) * small / n
    return jnp.where(jnp.abs(x) < 0.3, series * small, jnp.expm1(x) - x)


def _quadrature(s: Array, q: Array, a: Array, nodes: int) -> tuple[Array, Array]:
    """Returns nodes z (nodes, ...) in standard deviations and the logs of their weights, the normal density included.

    One trapezoid rule over all the peaks, or, where they are far apart, one around the lowest and one around the highest.
    """
    left, right = _peaks(s, q, a)
    unit = (jnp.arange(nodes, dtype=jnp.float64) + 0.5) / nodes
    unit = unit.reshape((nodes,) + (1,) * left.ndim)
    span = right - left + 2 * MARGIN
    wide = span > MAXIMUM_SPAN
    around_two = jnp.where(unit < 0.5, left, right) + MAXIMUM_SPAN / 2 * (jnp.mod(2 * unit, 1.0) - 0.5)
    z = jnp.where(wide, around_two, left - MARGIN + span * unit)
    spacing = jnp.where(wide, MAXIMUM_SPAN, span) / nodes
    return z, jnp.log(spacing) - 0.5 * z**2 - 0.5 * jnp.log(2 * jnp.pi)


def _peaks(s: Array, q: Array, a: Array) -> tuple[Array, Array]:
    """Returns the lowest and the highest place, in standard deviations, where the integrand may peak.

    ``a log r(x) - x^2/(2 s^2)`` is stationary where x = a sigmoid((x - 1/2)/s^2 + logit q). For a > 0 the map rises, and
    its iterates from 0 and from a close in on the outermost fixed points; for a < 0 it falls and has one fixed point,
    found by bisection. The terms of first order, 1 and a (r - 1), peak at 0 and 1.
    """
    s, q, a = jnp.broadcast_arrays(s, q, a)
    logit = jnp.log(q) - jnp.log1p(-q)

    def image(x: Array) -> Array:
        return a * jax.nn.sigmoid((x - 0.5) / s**2 + logit)

    def narrow(_, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        beyond = image(middle) < middle
        bisected = jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)
        return jnp.where(a > 0, image(low), bisected[0]), jnp.where(a > 0, image(high), bisected[1])

    low, high = jax.lax.fori_loop(0, 40, narrow, (jnp.minimum(a, 0.0), jnp.maximum(a, 0.0)))
    return jnp.minimum(low, 0.0) / s, jnp.maximum(high, 1.0) / s
