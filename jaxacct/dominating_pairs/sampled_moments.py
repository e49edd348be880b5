"""Moments of the subsampled Gaussian's likelihood ratio: without cancellation or overflow, one by one or together.

With r = e^L the moment ``E[r^a]`` of x ~ N(0, s^2) lies near 1 where the privacy is good, and its distance from 1 is
what counts. Since E[r - 1] = 0 that distance is ``E[r^a - 1 - a (r - 1)]``, whose integrand has one sign. With
phi(x) = e^x - 1 - x it is a sum of two terms of the same sign for every a outside [0, 1]:

    r^a - 1 - a (r - 1) = r (phi(m L) + m phi(-L)),   m = a - 1,   and also   = phi(-m L) + m phi(L),   m = -a,

the first for a > 1, the second for a < 0. So nothing cancels, however close to 1 the moment or the order is.
The integral is a trapezoid rule on all of R, which converges geometrically in the number of nodes; the nodes cover the
places where the integrand exceeds e^-CUT of its maximum, which are found first, for each order.

Of many orders above 1 together (:func:`log_moments`) the places are known in closed form, and all orders are summed at
once, node by node. The finite sum of Mironov, Talwar and Zhang (2019), "Rényi differential privacy of the sampled
Gaussian mechanism", section 3.3, is no faster for whole orders.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.batching import one_by_one
from jaxacct.dominating_pairs.moments import LARGEST_EXPONENT, excess, exp_remainder, weighted_remainder
from jaxacct.precision import as_float64, in_float64_by_programs, log_complement

QUADRATURE_NODES = 512
"""Most nodes of the trapezoid rule; enough for s >= 0.1, and below that for all but vanishing terms."""

FEWEST_NODES = 64
"""Fewest nodes, for integrands narrower than the Gaussian's."""

FINEST, COARSEST = 0.3, 0.5
"""Spacing of the nodes, in standard deviations, is ``min(FINEST s, COARSEST)``.

r vanishes at imaginary part pi s, so the rule errs by e^(-2 pi pi s / h), 3e-29 of the integrand there for 0.3 s; the
Gaussian alone would leave e^(-2 pi^2 / h^2). Both chosen by measuring: the error stays below 2e-13 of the cumulant.
"""

CUT = 60.0
"""Log of the ratio of the integrand's maximum to what the nodes may leave out: e^-60 is 1e-26."""

FARTHEST = 50.0
"""Standard deviations from a peak within which the integrand falls by CUT, for every order up to 4096.

Where the peak of r^a and its valley merge, the log integrand is quartic, -z^4/(24 s^2), which takes
(24 CUT s^2)^(1/4) < 40 for s <= 32; they merge for a >= 4 s^2 only, and elsewhere the curvature is at least 1/2.
"""

MAXIMUM_SPAN = 100.0
"""Longest range, in standard deviations, that one trapezoid rule covers; beyond, each end gets half of it."""

LARGEST_EXPONENT_OF_SINGLE = 75.0
"""LARGEST_EXPONENT in float32, which overflows at e^88."""

SPACING, WIDEST = 0.6, 0.7
"""Distance of the nodes of many orders, in standard deviations: SPACING s, and at most WIDEST.

r vanishes at imaginary part pi s and |r| is largest on the real line, so the rule errs by e^(-2 pi y/h + y^2/2) for
spacing h and every y up to pi s: 7e-13 for s = 1, 5e-12 at most, where s = 1.17.
"""

REACH, PLATEAU = 7.5, 1.7
"""Standard deviations beyond a peak, where e^-28 of it is left, and width of the place of a peak, in units of s.

What is left out was below 5e-12 of the whole in 12,000 settings, half of them with merging peaks, that were integrated
without windows: ALLOWANCE of the Rényi accountant is 1e-10.
"""

LEAST_NOISE = 0.01
"""Noise below which moments are bounded in closed form, for the nodes are as many as 80/s."""

CHUNK = 16
"""Nodes taken at once. Speed only."""

STEPS = (np.arange(CHUNK)[None] + 0.5) / CHUNK


def log_moment_of_ratio(
    noise_multiplier: Array, sampling_rate: Array, exponent: Array, nodes: int = QUADRATURE_NODES
) -> Array:
    """Returns ``log E[r(x)^a]`` for x ~ N(0, s^2) and r(x) = 1 + q (e^((2x-1)/(2 s^2)) - 1), for any real a.

    The arguments broadcast; ``nodes``, static, is the most that are used. To be called inside the float64 scope. The
    relative error is measured in tests/test_cumulants.py. Parameters out of range give garbage: the callers look at
    them first.
    """
    s, q, a = jnp.broadcast_arrays(*(as_float64(v) for v in (noise_multiplier, sampling_rate, exponent)))
    left, right, top = _window(s, q, a)
    span = jnp.minimum(right - left, MAXIMUM_SPAN)
    wide = right - left > MAXIMUM_SPAN
    # One count for all: the widest span and the finest spacing decide, and a loop over a batch ends with its longest.
    needed = jnp.ceil(jnp.max(span / jnp.minimum(FINEST * s, COARSEST)))
    count = jnp.fmin(jnp.fmax(needed, FEWEST_NODES), nodes)
    spacing = span / count

    def add(i: Array, total: Array) -> Array:
        from_left = i + 0.5
        z = jnp.where(wide & (from_left > count / 2), right + (from_left - count) * spacing, left + from_left * spacing)
        coefficient, log_scale = _integrand(s, q, a, z)
        return total + coefficient * jnp.exp(log_scale - top)

    # A loop over nodes and not a sum over an axis of them: twice as fast on a CPU, and memory is that of the result.
    total = jax.lax.fori_loop(0, count.astype(jnp.int32), add, jnp.zeros_like(s))
    log_excess = top + jnp.log(total * spacing) - 0.5 * jnp.log(2 * jnp.pi)
    falls = (a > 0) & (a < 1)
    subsampled = jnp.where(falls, log_complement(jnp.exp(jnp.minimum(log_excess, 0.0))), jnp.logaddexp(0.0, log_excess))
    # The exponents are differences of terms as large as 1/s^2, whose rounding tells for s below 0.01: upwards.
    subsampled = subsampled + 4 * roundoff() / s**2 * jnp.abs(subsampled)
    closed = a * (a - 1) / (2 * s**2)
    return jnp.where(q == 1, closed, jnp.where((a == 0) | (a == 1), 0.0, subsampled))


def _integrand(s: Array, q: Array, a: Array, z: Array) -> tuple[Array, Array]:
    """Returns c and e with ``|r^a - 1 - a (r - 1)| e^(-z^2/2) = c e^e`` at x = s z.

    Near a = 1 and near a = 0 each of the module's two forms is free of cancellation on its own side; inside (0, 1) the
    terms differ in sign and each form is used on its half.
    """
    log_r, grown, shrunk = log_ratio(s, q, z)
    upper = a > 0.5
    coefficient, scale = excess(
        jnp.where(upper, log_r, -log_r), jnp.where(upper, a - 1, -a), jnp.where(upper, shrunk, grown)
    )
    return coefficient, scale + jnp.where(upper, log_r, 0.0) - 0.5 * z**2


def log_ratio(s: Array, q: Array, z: Array) -> tuple[Array, Array, Array]:
    """Returns ``log r``, ``r - 1`` and ``1/r - 1`` at x = s z, or inf where r overflows.

    log r keeps its relative accuracy: r is formed as 1 + (r - 1) where it is near 1, with the rounding of that sum put
    back after the logarithm (what it is made of is right to units of itself), and as (1 - q) + q e^u below 1/2, where
    that sum has lost digits when q is near 1.
    """
    limit = LARGEST_EXPONENT if z.dtype == jnp.float64 else LARGEST_EXPONENT_OF_SINGLE
    u = (z - 0.5 / s) / s
    # q e^u, by its exponent where e^u alone would overflow.
    beyond = u > limit
    growth = jnp.minimum(u + jnp.log(q), 1.1 * limit)
    scaled = jnp.where(beyond, 1.0, q) * jnp.exp(jnp.where(beyond, growth, u))
    beyond_one = jnp.where(jnp.abs(u) < 0.5, q * (u + exp_remainder(u, 0.0)), scaled - q)
    is_small = beyond_one < -0.5
    r = jnp.where(is_small, (1 - q) + scaled, 1 + beyond_one)
    inverse = 1 / r
    log_r = jnp.log(r) + jnp.where(is_small, 0.0, (beyond_one - (r - 1)) * inverse)
    return jnp.where(growth > limit, u + jnp.log(q), log_r), beyond_one, inverse - 1


def _window(s: Array, q: Array, a: Array) -> tuple[Array, Array, Array]:
    """Returns the ends, in standard deviations, of what the nodes must cover, and the integrand's maximal log, roughly.

    The integrand is made of r^a, 1 and a (r - 1): it peaks near the stationary points of r^a, near 0 and near 1. Those
    that count are within e^-CUT of the highest; from the outermost of them the flanks fall, and bisection finds where
    they have fallen enough.
    """

    def height(z: Array) -> Array:
        coefficient, log_scale = _integrand(s, q, a, z)
        return jnp.log(coefficient) + log_scale

    low, high = _stationary_points(s, q, a)
    places = jnp.stack([low / s, high / s, jnp.zeros_like(low), 1 / s])
    heights = jax.vmap(height)(places)
    top = jnp.max(heights, axis=0)
    counts = jax.vmap(lambda h: h > top - CUT)(heights)
    left = jnp.min(jnp.where(counts, places, jnp.inf), axis=0)
    right = jnp.max(jnp.where(counts, places, -jnp.inf), axis=0)

    def narrow(i: int, reach: Array) -> Array:
        shorter = reach - FARTHEST * 0.5**i
        fallen = jax.vmap(lambda z: height(z) < top - CUT)(jnp.stack([left - shorter[0], right + shorter[1]]))
        return jnp.where(fallen, shorter, reach)

    # Eight halvings leave 0.2 standard deviations too much.
    reach = jax.lax.fori_loop(1, 9, narrow, jnp.full((2, *left.shape), FARTHEST, jnp.float64))
    return left - reach[0], right + reach[1], top


def _stationary_points(s: Array, q: Array, a: Array) -> tuple[Array, Array]:
    """Returns the lowest and the highest x where ``a log r(x) - x^2/(2 s^2)`` is stationary.

    That is x = a sigmoid((x - 1/2)/s^2 + logit q). The sigmoid is convex below its inflection and concave above, so
    Newton's iterates from 0 (or below) and from a run monotonically into the outermost roots and never past
    them; one that leaves its side of the inflection has no root there, and takes the other's. For a < 0 there is one
    root, and Newton from the inflection, or from 0 if that is nearer, runs monotonically into it.
    """
    inflection = 0.5 - s**2 * (jnp.log(q) - log_complement(q))

    def newton(x: Array) -> Array:
        share = jax.nn.sigmoid((x - inflection) / s**2)
        slope = a * share * (1 - share) / s**2 - 1
        return x - (a * share - x) / jnp.where(slope < 0, slope, -jnp.inf)

    def advance(_, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = (newton(end) for end in ends)
        return jnp.where(a > 0, jnp.minimum(low, inflection), low), jnp.where(a > 0, jnp.maximum(high, inflection), low)

    start = jnp.where(a > 0, jnp.minimum(inflection, 0.0), jnp.clip(inflection, a, 0.0))
    low, high = jax.lax.fori_loop(0, 30, advance, (start, jnp.where(a > 0, jnp.maximum(a, inflection), start)))
    return low, high


def log_moments(noise_multiplier: Array, sampling_rate: Array, orders: Array) -> Array:
    """Returns ``log E[r^a]`` for each of the orders a (n,), above 1; scalars s and q, inside the float64 scope.

    The relative error is measured in tests/test_cumulants.py. For noise below LEAST_NOISE it is an upper bound, equal
    to the moment to rounding but for orders next to 1. Invalid parameters give garbage.
    """
    return one_by_one(_log_moments)(noise_multiplier, sampling_rate, orders)


@in_float64_by_programs
def _log_moments(s: Array, q: Array, a: Array) -> Array:
    """Returns :func:`log_moments`: one trapezoid rule for all orders, over the windows that count.

    The integrand r (phi(m L) + m phi(-L)) e^(-z^2/2) rises and falls like a normal density around each of its peaks, so
    REACH on either side of them is enough. Where they may be follows from z = (a/s) p(z), the equation of a peak of r^a
    e^(-z^2/2), p = q e^u/r rising from 0 to 1 around the bend of log r, q e^u = 1 - q:

    * near 0, where 1 and a (r - 1) are subtracted, and, where r - 1 is small, near 2/s, the peak of (r - 1)^2, or at
      the bend, if that comes first;
    * in [0, 2 s], or in [a/s - 2 s, a/s]: at the valley between two peaks p (1 - p) = s^2/a, so that the lower one has
      p <= 2 s^2/a, and the higher one as much left of 1; where there is no valley a/s is at most 4 s. Those that lie
      farthest from the ends are the narrowest, so that PLATEAU s and REACH do.

    By Minkowski's inequality E[r^a]^(1/a) <= 1 - q + q E[e^(a u)]^(1/a), which is the moment where q = 1, and to
    rounding where s is tiny.
    """
    m, exact = a - 1.0, (q == 1.0) | (s < LEAST_NOISE)
    bound = a * _log_ratio(q, m * (0.5 / (s * s)))[0]
    s, rate = jnp.maximum(s, LEAST_NOISE), jnp.minimum(q, 1 - roundoff())
    tilt, log_q = 1.0 / s, jnp.log(rate)
    center = 0.5 * tilt
    half = center * tilt
    bend = center + s * (jnp.log1p(-rate) - log_q)
    farthest = jnp.max(a) * tilt
    middle, plateau = jnp.minimum(jnp.maximum(bend, 0.0), 2.0 * tilt), jnp.minimum(PLATEAU * s, farthest)
    # The second window goes on where the first one ends, or begins at some distance; and so does each order's third.
    shift, end = jnp.maximum(middle - 2.0 * REACH, 0.0), jnp.maximum(middle, plateau) + REACH
    gap = jnp.maximum(a * tilt - (plateau + REACH) - end, 0.0)[:, None]
    second = end - shift + REACH
    length = second + jnp.minimum(jnp.maximum(farthest + REACH - end, 0.0), plateau + 2.0 * REACH)
    spacing = jnp.minimum(SPACING * s, WIDEST) * CHUNK
    top = jnp.maximum(a * (m * half + log_q), 0.0)
    power, scale = m[:, None], top[:, None]

    # The integrand is r (phi(m L) + m phi(-L)) e^(-z^2/2 - top).
    def add(i: Array, total: Array) -> Array:
        x = (jnp.asarray(STEPS) + i) * spacing
        z = jnp.where(x > 2.0 * REACH, x + shift, x) - REACH
        z = jnp.where(x > second, z + gap, z)
        log_r, beyond_one = _log_ratio(rate, z * tilt - half)
        log_weight = log_r - (0.5 * z * z + scale)
        weight, x = jnp.exp(log_weight), power * log_r
        ahead = weighted_remainder(x, weight, jnp.exp(x + log_weight))
        return total + ahead + power * weighted_remainder(-log_r, weight, weight / (1.0 + beyond_one))

    chunks = jnp.ceil(length / spacing).astype(jnp.int32)
    total = jax.lax.fori_loop(jnp.int32(0), chunks, add, jnp.zeros((len(a), CHUNK)))
    log_excess = top + jnp.log(jnp.sum(total, axis=1) * (spacing / (CHUNK * math.sqrt(2 * math.pi))))
    moment = jnp.maximum(log_excess, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(log_excess)))
    return jnp.where(exact, bound, moment)


def _log_ratio(q: Array, u: Array) -> tuple[Array, Array]:
    """Returns ``log r`` and, where it does not overflow, ``r - 1`` for r = 1 + q (e^u - 1)."""
    most = jnp.minimum(u, LARGEST_EXPONENT)
    beyond_one = q * jnp.expm1(most)
    return jnp.log1p(beyond_one) + (u - most), beyond_one
