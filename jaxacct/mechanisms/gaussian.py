"""Gaussian noise, alone and on Poisson samples: pair, moments of its likelihood ratio, law of its loss, mechanisms.

An example takes part with probability q, and the noise has deviation s. So an attack distinguishes the mixture
(1-q) N(0, s^2) + q N(1, s^2) from N(0, s^2), and r is their likelihood ratio; q = 1 is the Gaussian mechanism. In
reading order:

1. moments of r, one by one or together (:func:`log_moment_of_ratio`, :func:`log_moments`), for the Rényi curve;
2. the pair (:class:`SubsampledGaussianPair`), with the masses that the mesh asks, and the law of its loss
   (:class:`LawOfSubsampledGaussian`), for the contour;
3. the mechanisms :class:`Gaussian` and :class:`PoissonSubsampledGaussian`, one step of DP-SGD;
4. Poisson samples that are cut at a largest batch size (:class:`TruncatedPoissonGaussian`).

*Moments, without cancellation or overflow.* With r = e^L the moment ``E[r^a]`` of x ~ N(0, s^2) lies near 1 where the
privacy is good, and its distance from 1 is what counts. Since E[r - 1] = 0 that distance is ``E[r^a - 1 - a (r - 1)]``,
whose integrand has one sign. With phi(x) = e^x - 1 - x it is a sum of two terms of the same sign for every a outside
[0, 1]:

    r^a - 1 - a (r - 1) = r (phi(m L) + m phi(-L)),   m = a - 1,   and also   = phi(-m L) + m phi(L),   m = -a,

the first for a > 1, the second for a < 0. So nothing cancels, however close to 1 the moment or the order is.
The integral is a trapezoid rule on all of R, which converges geometrically in the number of nodes; the nodes cover the
places where the integrand exceeds e^-CUT of its maximum, which are found first, for each order.

For many orders above 1 together (:func:`log_moments`) the places are known in closed form, and all orders are summed
at once, node by node. The finite sum of Mironov, Talwar and Zhang (2019), "Rényi differential privacy of the sampled
Gaussian mechanism", section 3.3, is no faster for whole orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.mechanisms.atoms import Atoms, atoms_of_cells, places_about
from jaxacct.mechanisms.finite import PublicCoinPair, log_absence, noiseless_pairs, seen_where_sampled, surely_seen
from jaxacct.mechanisms.groups import PoissonSubsampledGroup
from jaxacct.mechanisms.mechanism import NoisyMechanism, Relation, SampledNoise, directions, less_noise
from jaxacct.mechanisms.normal import normal_cells, normal_masses, sampled_delta
from jaxacct.mechanisms.pair import (
    ANGLES,
    COARSEST,
    CUT,
    FINEST,
    RULE,
    STEEPEST,
    CellMasses,
    DominatingPair,
    Lines,
    Marked,
    Nodes,
    Roundings,
    TrapezoidLaw,
    begin,
    excess,
    exp_remainder,
    least_bound,
    log_left_out,
    places_of,
    step_across,
    tilted_shares,
    weighted_remainder,
)
from jaxacct.mechanisms.shifted_noise import subsampled_pair
from jaxacct.numerics.arithmetic import arithmetic, roundoff, with_own_form
from jaxacct.numerics.batched_loops import one_by_one
from jaxacct.numerics.precision import (
    TINY,
    UNIT_ROUNDOFF,
    as_float64,
    as_real,
    is_concrete,
    leave_scope,
    log_complement,
    scope,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass, takes_python_values
from jaxacct.rounded_sum import binomial_tail

# ----------------------------------------------------------------------------------------------------
# Moments of the likelihood ratio, one by one and together.
#
# The errors of these rules are measured, and not proved: the Rényi accountant rounds up by an allowance for them.
#
# The logarithm of r has four forms in this file, for four needs. :func:`log_ratio` keeps the relative accuracy of log
# r and of r - 1 for any q and z, as moments one by one ask. ``_log_ratio_and_excess`` is the cheaper one of the loop
# over many orders, which never meets q near 1. ``_log_ratio`` of the law is right to 16 units of itself and two of
# 1/(2 s^2), in float32 and pairs as well. ``_log_ratio_and_error`` of cells has a bound that is relative near 0.
# ----------------------------------------------------------------------------------------------------

FINEST_SAMPLED, COARSEST_SAMPLED = 0.3, 0.5
"""Spacing of the nodes, in standard deviations: ``min(FINEST_SAMPLED s, COARSEST_SAMPLED)``.

r vanishes at imaginary part pi s, so the rule errs by e^(-2 pi pi s / h), 3e-29 of the integrand there for 0.3 s; the
Gaussian alone would leave e^(-2 pi^2 / h^2). Both values are chosen by measuring: the error stays below 2e-13 of the
cumulant (tests/rdp/test_cumulants.py).
"""


def log_moment_of_ratio(noise_multiplier: Array, sampling_rate: Array, exponent: Array, nodes: int = 512) -> Array:
    """Returns ``log E[r(x)^a]`` for x ~ N(0, s^2) and r(x) = 1 + q (e^((2x-1)/(2 s^2)) - 1), for any real a.

    The arguments broadcast; ``nodes``, static, is the largest number of nodes used: 512 are enough for s >= 0.1, and
    below that for all but vanishing terms. It is called inside the float64 scope. The relative error is measured in
    tests/rdp/test_cumulants.py. Parameters out of range give garbage: the callers check them first.
    """
    # Longest range, in standard deviations, that one trapezoid rule covers; of a longer one each end gets half of it.
    longest = 100.0
    # Fewest nodes of the trapezoid rule, for integrands narrower than the Gaussian's.
    fewest = 64
    s, q, a = jnp.broadcast_arrays(*(as_float64(v) for v in (noise_multiplier, sampling_rate, exponent)))
    left, right, top = _integrand_window(s, q, a)
    span = jnp.minimum(right - left, longest)
    wide = right - left > longest
    # One count for all: the widest span and the finest spacing decide, and a loop over a batch ends with its longest.
    needed = jnp.ceil(jnp.max(span / jnp.minimum(FINEST_SAMPLED * s, COARSEST_SAMPLED)))
    count = jnp.fmin(jnp.fmax(needed, fewest), nodes)
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
    # The exponents are differences of terms as large as 1/s^2, whose rounding tells for s below 0.01: round up.
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

    log r keeps its relative accuracy. Near 1, r is formed as 1 + (r - 1), whose parts are right to units of themselves,
    and the rounding of that sum is put back after the logarithm. Below 1/2, where that sum has lost digits when q is
    near 1, it is formed as (1 - q) + q e^u.
    """
    limit = arithmetic().largest_exponent
    u = (z - 0.5 / s) / s
    # Where e^u alone would overflow, the exponent of q e^u has log q in it.
    beyond = u > limit
    growth = jnp.minimum(u + jnp.log(q), 1.1 * limit)
    scaled = jnp.where(beyond, 1.0, q) * jnp.exp(jnp.where(beyond, growth, u))
    beyond_one = jnp.where(jnp.abs(u) < 0.5, q * (u + exp_remainder(u, 0.0)), scaled - q)
    is_small = beyond_one < -0.5
    r = jnp.where(is_small, (1 - q) + scaled, 1 + beyond_one)
    inverse = 1 / r
    log_r = jnp.log(r) + jnp.where(is_small, 0.0, (beyond_one - (r - 1)) * inverse)
    return jnp.where(growth > limit, u + jnp.log(q), log_r), beyond_one, inverse - 1


def _integrand_window(s: Array, q: Array, a: Array) -> tuple[Array, Array, Array]:
    """Returns the ends, in standard deviations, of the range for the nodes, and about the integrand's largest log.

    The integrand is made of r^a, 1 and a (r - 1): it peaks near the stationary points of r^a, near 0 and near 1. Those
    that count are within e^-CUT of the highest; from the outermost of them the flanks fall, and bisection finds where
    they have fallen enough.
    """
    # Standard deviations from a peak within which the integrand falls by CUT nats, for every order up to 4096. Where
    # the peak of r^a and its valley merge, the log integrand is quartic, -z^4/(24 s^2), which takes (24 CUT s^2)^(1/4)
    # < 40 for s <= 32; they merge for a >= 4 s^2 only, and elsewhere the curvature is at least 1/2.
    farthest = 50.0

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
        shorter = reach - farthest * 0.5**i
        fallen = jax.vmap(lambda z: height(z) < top - CUT)(jnp.stack([left - shorter[0], right + shorter[1]]))
        return jnp.where(fallen, shorter, reach)

    # The state is how far the window reaches beyond the outermost peaks. Step i shortens it by farthest/2^i where the
    # integrand has fallen enough by then: eight halvings leave 0.2 standard deviations too much.
    reach = jax.lax.fori_loop(1, 9, narrow, jnp.full((2, *left.shape), farthest, jnp.float64))
    return left - reach[0], right + reach[1], top


def _stationary_points(s: Array, q: Array, a: Array) -> tuple[Array, Array]:
    """Returns the lowest and the highest x where ``a log r(x) - x^2/(2 s^2)`` is stationary.

    These are the roots of x = a sigmoid((x - 1/2)/s^2 + logit q). The sigmoid is convex below its inflection and
    concave above, so Newton's iterates from 0 (or below) and from a run monotonically into the outermost roots and
    never past them. An iterate that leaves its side of the inflection has no root there, and takes the other's. For
    a < 0 there is one root, and Newton's iterates from the inflection, or from 0 if that is nearer, run monotonically
    into it.
    """
    inflection = 0.5 - s**2 * (jnp.log(q) - log_complement(q))

    def newton(x: Array) -> Array:
        share = jax.nn.sigmoid((x - inflection) / s**2)
        slope = a * share * (1 - share) / s**2 - 1
        return x - (a * share - x) / jnp.where(slope < 0, slope, -jnp.inf)

    def advance(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = (newton(end) for end in ends)
        return jnp.where(a > 0, jnp.minimum(low, inflection), low), jnp.where(a > 0, jnp.maximum(high, inflection), low)

    # The state is the two iterates. Thirty steps are enough for peaks that need only be found roughly.
    start = jnp.where(a > 0, jnp.minimum(inflection, 0.0), jnp.clip(inflection, a, 0.0))
    low, high = jax.lax.fori_loop(0, 30, advance, (start, jnp.where(a > 0, jnp.maximum(a, inflection), start)))
    return low, high


def log_moments(noise_multiplier: Array, sampling_rate: Array, orders: Array) -> Array:
    """Returns ``log E[r^a]`` for each of the orders a (n,), above 1; scalars s and q, inside the float64 scope.

    The relative error is measured in tests/rdp/test_cumulants.py. For noise below 0.01 it is an upper bound,
    equal to the moment to rounding but for orders next to 1. In few digits rounding is counted, and added: it is an
    upper bound but for the error of the rule. Invalid parameters give garbage.
    """
    return one_by_one(_log_moments)(noise_multiplier, sampling_rate, orders)


@within_scope
def _log_moments(s: Array, q: Array, a: Array) -> Array:
    """Returns :func:`log_moments`: one trapezoid rule for all orders, over the windows that count.

    The integrand r (phi(m L) + m phi(-L)) e^(-z^2/2) rises and falls like a normal density around each of its peaks, so
    reach on either side of them is enough. Where they may be follows from z = (a/s) p(z), the equation of a peak of r^a
    e^(-z^2/2), p = q e^u/r rising from 0 to 1 around the bend of log r, q e^u = 1 - q:

    * near 0, where 1 and a (r - 1) are subtracted, and, where r - 1 is small, near 2/s, the peak of (r - 1)^2, or at
      the bend, if that comes first;
    * in [0, 2 s], or in [a/s - 2 s, a/s]: at the valley between two peaks p (1 - p) = s^2/a, so that the lower peak has
      p <= 2 s^2/a, and the higher one 1 - p <= 2 s^2/a; where there is no valley a/s is at most 4 s. Peaks that lie
      farthest from the ends are the narrowest, so that flat s and reach are enough.

    By Minkowski's inequality E[r^a]^(1/a) <= 1 - q + q E[e^(a u)]^(1/a), which is the moment where q = 1, and to
    rounding where s is tiny.
    """
    # Distance of the nodes for many orders, in standard deviations: finest s, and at most widest. r vanishes at
    # imaginary part pi s and |r| is largest on the real line, so the rule errs by e^(-2 pi y/h + y^2/2) for spacing h
    # and every y up to pi s: 7e-13 for s = 1, 5e-12 at most, where s = 1.17.
    finest, widest = 0.6, 0.7
    # Standard deviations beyond a peak, where e^-28 of it is left, and width of the place of a peak, in units of s.
    # Chosen by measuring: less than 5e-12 of the whole was left out in 12,000 settings, half of them with merging
    # peaks, that were integrated without windows. ALLOWANCE of the Rényi accountant is 1e-10.
    reach, flat = 7.5, 1.7
    # Noise multiplier below which a closed form bounds the moments, for the rule would take 80/s nodes. The closed form
    # is a bound for any noise.
    least_noise = 0.01
    # Number of nodes that one step of the loop takes. Speed only.
    chunk = 16
    # Middles of the nodes of a chunk, in units of the chunk's width.
    middles = (np.arange(chunk)[None] + 0.5) / chunk
    m, exact = a - 1.0, (q == 1.0) | (s < least_noise)
    bound = a * _log_ratio_and_excess(q, m * (0.5 / (s * s)))[0]
    few, u, limit = arithmetic().has_few_digits, roundoff(), arithmetic().largest_exponent
    # Of the exponent 4 units count, where it is not relative to the bound, and of functions and products 32.
    bound_above = bound * (1 + 32 * u) + 4 * u * a * (m * (0.5 / (s * s)))
    s, rate = jnp.maximum(s, least_noise), jnp.minimum(q, 1 - u)
    tilt, log_q = 1.0 / s, jnp.log(rate)
    center = 0.5 * tilt
    half = center * tilt
    bend = center + s * (jnp.log1p(-rate) - log_q)
    farthest = jnp.max(a) * tilt
    middle, plateau = jnp.minimum(jnp.maximum(bend, 0.0), 2.0 * tilt), jnp.minimum(flat * s, farthest)
    # There are three windows: around 0, around the middle, and, for each order, around its upper peak. A window goes on
    # where the one before it ends, or begins at some distance, which is jumped over: ``shift``, and ``gap`` of each
    # order.
    shift, end = jnp.maximum(middle - 2.0 * reach, 0.0), jnp.maximum(middle, plateau) + reach
    gap = jnp.maximum(a * tilt - (plateau + reach) - end, 0.0)[:, None]
    second = end - shift + reach
    length = second + jnp.minimum(jnp.maximum(farthest + reach - end, 0.0), plateau + 2.0 * reach)
    spacing = jnp.minimum(finest * s, widest) * chunk
    top = jnp.maximum(a * (m * half + log_q), 0.0)
    if few:
        # In the range of float32 the largest terms have to be near e^top: the search for it goes where peaks are. Near
        # 1 a moment counts by its distance from 1, and top is 0.
        looks = jnp.linspace(0.0, 1.0, 16)[None] * jnp.minimum(2 * s, a * tilt)[:, None]
        looks = jnp.concatenate([looks, (a * tilt)[:, None] - looks], axis=1)
        top = jnp.max(a[:, None] * _log_ratio_and_excess(rate, looks * tilt - half)[0] - 0.5 * looks**2, axis=1)
        top = jnp.where(top > 20.0, top, 0.0)
    power, scale = m[:, None], top[:, None]

    # The integrand is r (phi(m L) + m phi(-L)) e^(-z^2/2 - top). Each step takes chunk nodes of every order, in a place
    # x along the windows without their gaps; z is where that lies. The loop ends with the longest order's windows.
    def add(i: Array, total: Array) -> Array:
        along = x = (jnp.asarray(middles) + i) * spacing
        z = jnp.where(x > 2.0 * reach, x + shift, x) - reach
        z = jnp.where(x > second, z + gap, z)
        log_r, beyond_one = _log_ratio_and_excess(rate, z * tilt - half)
        log_weight = log_r - (0.5 * z * z + scale)
        weight, x = jnp.exp(log_weight), power * log_r
        grown, back = jnp.exp(x + log_weight), weight / (1.0 + beyond_one)
        ahead, behind = weighted_remainder(x, weight, grown), weighted_remainder(-log_r, weight, back)
        if not few:
            return total + ahead + power * behind
        # Places err by 4 units of their parts, and u, the exponent in r, by some of its own: log r by its share of
        # that, by 6 units of r - 1 and 3 of itself; x by power times as much and a unit.
        of_place = 4 * (along + shift + gap + 2 * reach)
        of_exponent = tilt * (of_place + 2.1 * jnp.abs(z)) + 3.1 * half + jnp.abs(z * tilt - half)
        share = jnp.where(beyond_one < math.exp(limit - 10), (beyond_one + rate) / (1 + beyond_one), 1.0)
        of_ratio = share * of_exponent + 6 * jnp.abs(jnp.where(share < 1, beyond_one / (1 + beyond_one), 1.0))
        of_ratio = of_ratio + 3 * jnp.abs(log_r) + jnp.abs(log_r - limit) * (share == 1)
        of_x = power * of_ratio + jnp.abs(x)
        of_weight = of_ratio + jnp.abs(z) * (of_place + jnp.abs(z)) + scale + jnp.abs(log_weight) + 4
        # The two remainders: their parts by what moves them and 4 units each, near 0 themselves by 25; and flushes.
        size = jnp.abs(x)
        far = grown * (of_x + jnp.abs(x + log_weight) + 4) + weight * (of_x + (1 + size) * 4)
        of_ahead = jnp.where(size <= 0.5, weight * 1.3 * size * of_x + 25 * ahead, far)
        size = jnp.abs(log_r)
        far = back * (2 * of_ratio + 7) + weight * (of_ratio + (1 + size) * 4)
        of_behind = jnp.where(size <= 0.5, weight * 1.3 * size * of_ratio + 25 * behind, far)
        term = ahead + power * behind
        off = of_ahead + power * of_behind + term * (of_weight + 2) + (4 * TINY / u) * (1 + power)
        return total + jnp.stack([term, off])

    chunks = jnp.ceil(length / spacing).astype(jnp.int32)
    if few:
        nothing = jnp.zeros((2, len(a), chunk))
        term, off = jnp.sum(jax.lax.fori_loop(jnp.int32(0), chunks, add, nothing), axis=2)
        # Each column of a chunk is a sum of so many terms.
        most = term + 1.01 * u * (off + (chunks + 16) * term)
        most = most * (spacing / (chunk * math.sqrt(2 * math.pi))) * (1 + 8 * u)
        log = jnp.log(most + jnp.exp(-top))
        moment = jnp.where(top > 0, top + log + 8 * u * (top + jnp.abs(log)), jnp.log1p(most))
        least_rate = math.exp(18 - limit)  # below it e^limit is not all that counts
        return jnp.where(rate < least_rate, jnp.inf, jnp.where(exact, bound_above, moment * (1 + 16 * u)))
    total = jax.lax.fori_loop(jnp.int32(0), chunks, add, jnp.zeros((len(a), chunk)))
    log_excess = top + jnp.log(jnp.sum(total, axis=1) * (spacing / (chunk * math.sqrt(2 * math.pi))))
    moment = jnp.maximum(log_excess, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(log_excess)))
    return jnp.where(exact, bound, moment)


def _log_ratio_and_excess(q: Array, u: Array) -> tuple[Array, Array]:
    """Returns ``log r`` and, where it does not overflow, ``r - 1`` for r = 1 + q (e^u - 1)."""
    most = jnp.minimum(u, arithmetic().largest_exponent)
    beyond_one = q * jnp.expm1(most)
    return jnp.log1p(beyond_one) + (u - most), beyond_one


# ----------------------------------------------------------------------------------------------------
# A Gaussian mechanism on a Poisson sample, an example added or removed: the pair, and its law for the contour.
#
# *The law* is a trapezoid rule in the noise. With z = x/s standard normal, r = 1 - q + q e^u and u = (z - 1/(2s))/s,
# the loss is log r ("remove") or -log r ("add"), and a moment of order t + iw is the integral of the normal density
# times r^a, a = t + 1 + iw or -(t + iw). In the strip |Im z| < pi s this is analytic, for r vanishes on its edge only.
# On the line Im z = b the argument of r lies between 0 and theta = b/s, and |r| between r(Re z) cos(theta/2) and r(Re
# z). Two bounds follow.
#
# *Quadrature.* The integral of the modulus over the lines Im z = +-b bounds the error of a trapezoid rule
# (:class:`.Lines`). It is at most e^(b^2/2 + w theta) times the moment of order t. For "add" a factor of
# cos(theta/2)^-t comes in, or of (1 - 4 a (1 - a) sin(theta/2)^2)^(-t/2) where the share of q e^u in r is at most a,
# below 1/2.
#
# *Decay.* Moved to Im z = b the integral of order t + iw is at most the sum of |r(z + ib)|^a-weights with e^(-w arg r)
# and e^(b^2/2): a bound that falls with w, so it holds from w on. b = w times the deviation of the loss is about best;
# a linear loss then gives the Gaussian's own e^(-w^2 sigma^2/2). Sines lie between x - x^3/6 and x.
#
# *Without rare large losses* the integral ends at a place z*. In x, with z = z* + c (log s + a + a^2/2 + a^3/3), where
# s and a = 1 - s are the logistic functions of +-y, y = (x - z*)/c - 11/6, it is one over the whole line again:
# dz/dx = a^4 falls from 1, where z = x, to 0 like e^(-4y); and where no losses are left out z is x. So there is one
# rule, and one bound of its error. On Im x = b = beta c, beta < pi, |1 + e^(y + i beta)| >= (1 + e^y) cos(beta/2), so
# |dz/dx| is at most cos(beta/2)^-4 times its value at Re x. There z has a height of at most c h above the real line,
# and a real part ahead of z(Re x) by at most c f or behind it by c g; h, f and g depend on beta alone, and are found on
# a fine grid (``_ending``): between points 1/512 apart nothing changes by more than the 1024th part of the slope, which
# is at most cos(beta/2)^-4 + 1, and beyond the last points all of it falls. Hence the density is at most e^((c
# h)^2/2 + z* c g + c^2 d) times its own there, d the largest (z* - z) (Re z - z)/c^2 where z < 0. A step ahead
# multiplies r by at most e^(share c f/s), with the share at z* + c f. And arg r is at most theta times the share where
# that is below 1/2, for then it is convex in the share, and at most theta everywhere.
#
# The envelope takes another path, from z at each node straight up to the height b (1 - e^((z - z*)/b)): its length is
# at most the root of 1 + e^(2 (z - z*)/b) times that of the real line's.
# ----------------------------------------------------------------------------------------------------

WIDEST_END, FLAT_BY = 0.8, 11 / 6
"""Largest scale c of the end of the losses, in standard deviations, and the shift of its place, in scales.

The scale is s where that is less. Any scale is sound up to which ENDING holds; this one takes few nodes. The shift is
1 + 1/2 + 1/3.
"""


def _ending() -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of ENDING, and HEIGHTS and FRONTS: bounds on lines at heights b = beta c where the losses end.

    The comments at the head of this part derive them.
    """
    spacing = 1 / 512
    y, beta = np.arange(-8.0, 3.0, spacing), 0.87 * ANGLES[:, None]

    def curve(e: np.ndarray) -> np.ndarray:
        a = 1 / (1 + e)
        return np.log(e * a) + a + a**2 / 2 + a**3 / 3

    z, on_line = curve(np.exp(y)), curve(np.exp(y + 1j * beta))
    moved, slack = on_line.real - z, spacing / np.cos(beta / 2) ** 4
    ahead, back = np.max(moved, axis=1) + slack[:, 0], np.max(-moved, axis=1) + slack[:, 0]
    below = np.max(np.maximum(-z, 0.0) * np.maximum(moved, 0.0), axis=1) + 2 * slack[:, 0]
    grown = -4 * np.log(np.cos(beta[:, 0] / 2)) + below * WIDEST_END**2
    cells = np.searchsorted(y, CELL_BEGINS)
    heights, fronts = (
        np.maximum.reduceat(part, cells, axis=1) + slack for part in (np.abs(on_line.imag), on_line.real)
    )
    return np.stack([beta[:, 0], np.max(heights, axis=1), ahead, back, grown]), np.stack([heights, fronts])


CELL_BEGINS = np.array([-8.0, -5.0, -4.0, -3.25, -2.75, -2.25, -1.75, -1.25, -0.75, -0.25, 0.5, 2.0])
"""Beginnings of the cells that have bounds on a line's height and real part, in scales about the end."""

ENDING, (HEIGHTS, FRONTS) = _ending()
"""Bounds on the lines where the losses end, in units of c.

ENDING has five numbers for each line: its height in x, that of its highest point in z, how far it lies at most ahead of
the real z of the same x, and behind it, and the log of the factor by which the integrand grows. HEIGHTS and FRONTS
have, for each cell of each line, its highest point and how far it reaches beyond the place, both in z.
"""


@register_dataclass
@dataclass(frozen=True)
class SubsampledGaussianPair(DominatingPair):
    """The mixture ``(1-q) N(0,s^2) + q N(1,s^2)`` against ``N(0,s^2)`` (removes), or the reverse (adds).

    With r(x) = 1 + q (e^((2x-1)/(2 s^2)) - 1) the loss is log r(x) for x from the mixture, or -log r(x) for x from the
    base. q = 1 is the Gaussian mechanism.

    Attributes:
        noise_multiplier (): s, the standard deviation of the noise over the clipping norm.
        sampling_rate (): q, in (0, 1].
        removes (): whether P is the mixture; data, not structure, so that both directions run as one batch.

    >>> pair = SubsampledGaussianPair(noise_multiplier=1.0, sampling_rate=0.5, removes=True)
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])
    [-0.6931, inf]
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike
    removes: ArrayLike

    def _fields(self) -> tuple[Array, Array, Array]:
        return as_real(self.noise_multiplier), as_real(self.sampling_rate), jnp.asarray(self.removes)

    def is_valid(self) -> Array:
        s, q, _ = self._fields()
        has_noise = (s > 0) & (s < jnp.inf)
        seen = np.asarray(self.sampling_rate) if is_concrete(self.sampling_rate) else np.zeros(())
        if np.all((seen > 0) & (seen <= 1)):
            return has_noise
        return has_noise & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, q, removes = self._fields()
        edge = log_complement(q)
        return jnp.where(removes, edge, -jnp.inf), jnp.where(removes, jnp.inf, -edge)

    def supremum(self) -> tuple[Array, Array]:
        _, highest = self.loss_range()
        return highest * (1 - 8 * roundoff()), highest * (1 + 8 * roundoff())

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        s, q, removes = self._fields()
        return sampled_delta(1 / s, q, epsilon, removes)

    def central_loss(self) -> Array:
        s, q, removes = self._fields()
        # The loss at the median of the base, where half of P's bulk lies on either side; for q = 1, the Gaussian's mean
        # loss.
        center = jnp.log1p(q * jnp.expm1(-0.5 / s**2))
        return jnp.where(q == 1, 0.5 / s**2, jnp.where(removes, center, -center))

    def _threshold(self, log_ratio: Array) -> Array:
        """Returns x with log r(x) = log_ratio; -inf where log_ratio is at most log(1 - q)."""
        s, q, _ = self._fields()
        y = log_ratio
        # r - (1-q), in the form that loses no digits; above 0 e^y is pulled out, which leaves two terms of one sign.
        decay = -jnp.abs(y)
        power, less = jnp.exp(decay), jnp.expm1(decay)
        excess = jnp.where(y > 0, q * power - less, jnp.where(y < -0.5, power - (1 - q), less + q))
        log_excess = jnp.maximum(y, 0.0) + jnp.log(jnp.maximum(excess, 0.0))
        return s**2 * (jnp.where(q == 1, y, log_excess) - jnp.log(q)) + 0.5

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        s, q, removes = self._fields()
        x = self._threshold(jnp.where(removes, boundaries, -boundaries))
        # Masses and errors of both components, and of their mixture.
        parts = jnp.stack(normal_cells(x[None], jnp.array([[0.0], [1.0]]), s))
        base = parts[:, 0]
        mixture = (1 - q) * base + q * parts[:, 1]
        mixture = mixture + (4 * roundoff()) * jnp.stack([jnp.zeros_like(base[0]), mixture[0]])
        (p, p_error), (q, q_error) = jnp.where(removes, mixture, base), jnp.where(removes, base, mixture)
        return CellMasses(p=p, q=q, p_error=p_error, q_error=q_error)

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the laws from cells that are equal in the noise, as many atoms as ``cells``.

        The places between them reach sqrt(2 nats) deviations beyond both centres, x = 0 and 1, and a cell at either end
        holds the rest. For "add" the places fall, so that the loss rises.
        """
        s, q, removes = self._fields()
        reach, side = s * jnp.sqrt(2 * nats), jnp.where(removes, jnp.ones_like(s), -1.0)
        x, following = places_about(jnp.zeros(()), jnp.ones(()), reach, reach, cells, removes)
        log_r, doubt = _log_ratio_and_error(s, q, x)
        mass, error = jax.vmap(lambda center: normal_masses(x[:-1], following[:-1], center, s))(jnp.array([0.0, 1.0]))
        # Weights of both centres in P and in Q, which are exchanged for "add".
        share = q * (0.5 + jnp.stack([0.5 * side, -0.5 * side]))
        weights = jnp.stack([1 - share, share], 1)
        masses, errors = (jnp.matmul(weights, part, precision="highest") for part in (mass, error))
        # Weights and products round by u of themselves, and so do sums.
        errors = errors * (1 + 8 * roundoff()) + 4 * roundoff() * masses
        return atoms_of_cells(side * log_r, masses[0], errors[0], masses[1], errors[1], doubt, valid=self.is_valid())

    def boundary_error(self, largest: Array) -> Array:
        # _threshold errs by at most 9u + 5u |L| + 8u |log q| + u/s^2 in L = log_excess - log q (each of its three forms
        # has an excess right to 9u of the larger term), and a loss moves by at most r'/r s^2 <= 1 times that; where |L|
        # is large and negative the factor r'/r falls like e^L. Doubled, and with the rounding of the boundary itself.
        s, q, _ = self._fields()
        return 16 * roundoff() * (2 + largest - jnp.log(q) + 1 / s**2)

    def cumulant(self, order: ArrayLike) -> Array:
        s, q, removes = self._fields()
        return log_moment_of_ratio(s, q, jnp.where(removes, as_real(order) + 1, -as_real(order)))

    def divergence(self, orders: Array) -> Array:
        s, q, _ = self._fields()
        if self._takes_everyone():
            # Mironov (2017), Corollary 3.
            return orders * (1 / jnp.where(self.is_valid(), s, jnp.nan)) ** 2 / 2 * self._factor()
        if not (is_concrete(self.removes) and self.removes):
            return super().divergence(orders)
        valid = self.is_valid()
        moments = log_moments(jnp.where(valid, s, 1.0), jnp.where(valid, q, 1.0), orders)
        return jnp.where(valid, moments, jnp.nan) / (orders - 1) * self._factor()

    @property
    def counts_rounding(self) -> bool:
        return self._takes_everyone() or (is_concrete(self.removes) and bool(self.removes))

    def _factor(self) -> float:
        """Returns a factor for the roundings of a closed form, and of a quotient, where digits are few."""
        return 1 + 8 * roundoff() if arithmetic().has_few_digits else 1.0

    def _takes_everyone(self) -> bool:
        """Returns whether the sampling rate is known to be 1: the Gaussian mechanism."""
        return is_concrete(self.sampling_rate) and bool(np.all(np.asarray(self.sampling_rate) == 1))

    def has_larger_divergences_than(self, other: DominatingPair) -> bool:
        """Returns True for removing against adding the same example: Mironov, Talwar and Zhang (2019), Theorem 5."""
        if not isinstance(other, SubsampledGaussianPair) or not is_concrete(self.removes, other.removes):
            return False
        same = self.noise_multiplier is other.noise_multiplier and self.sampling_rate is other.sampling_rate
        return same and bool(self.removes) and not bool(other.removes)

    def law(self) -> LawOfSubsampledGaussian:
        return LawOfSubsampledGaussian(self)


@dataclass(frozen=True)
class LawOfSubsampledGaussian(TrapezoidLaw):
    """The law of a subsampled Gaussian's loss, by a trapezoid rule in the noise, with or without its rare large losses.

    The comments at the head of this part derive its bounds.

    Attributes:
        pair: the pair.
        left_out: the losses beyond a place, if they are left out.
    """

    pair: SubsampledGaussianPair
    left_out: Marked | None = None

    most_pieces = 12
    has_marks = True

    def without_marked(self, marked: Marked) -> LawOfSubsampledGaussian:
        return replace(self, left_out=marked)

    def mark_from(self, large: Array, small: Array, log_mass: Array) -> Array:
        # Losses of the Gaussian mechanism itself are never rare.
        # Farthest place z*, in scales c and less the reach of the noise, at which losses are left out. Speed only. For
        # places beyond it the scan's nodes are too far apart.
        longest = 46.0
        s, q, removes = self.pair._fields()
        known = jnp.where(removes, large, -small)
        z = s * jnp.log(jnp.maximum(jnp.expm1(known) / q + 1, 0.0)) + 0.5 / s
        # The places beyond which about ``log_mass`` of P lies: of the base, and for "remove" of q times the law around
        # 1/s.
        logs = jnp.stack([log_mass, jnp.where(removes, log_mass - jnp.log(q), 0.0)])
        a = jnp.maximum(-2 * logs - 1.84, 1.0)
        roots = jnp.sqrt(a - jnp.log(a)) + jnp.stack([0.0, jnp.where(removes, 1 / s, 0.0)])
        place = jnp.minimum(jnp.where(z > 0, z, jnp.inf), jnp.max(roots))
        fits = (q < 1) & (place < longest * _scale_of_end(s) - arithmetic().reach)
        return jnp.where(fits, place, jnp.inf)

    def mark(self, place: Array) -> Marked:
        s, q, removes = self.pair._fields()
        there = jnp.isfinite(place)
        z = jnp.where(there, place, 1.0)
        u, sign = (z - 0.5 / s) / s, jnp.where(removes, 1.0, -1.0)
        base, shifted = jnp.where(there, ndtr(jnp.stack([-z, 1 / s - z])), 0.0)
        mixture = (1 - q) * base + q * shifted
        # A tail at v errs by 8 (1 + v^2) units, and by |v| + 1 times what v does, two of |v| and of m = z + 1/s >= |v|.
        units = jnp.where(there, 32 + 12 * (z + 1 / s) ** 2, 0.0)
        log_r = jnp.log((1 - q) + q * jnp.exp(u))
        # log r is right to some units of 1, of itself and of u: the loss is rounded towards the safe side.
        loss = sign * log_r - 16 * roundoff() * (1 + jnp.abs(log_r) + jnp.abs(u)) * sign
        p, of_q = jnp.where(removes, mixture, base), jnp.where(removes, base, mixture)
        return Marked(place, p, of_q, units * roundoff(), loss, jnp.where(removes, 1.0, 0.0))

    def _span(self) -> tuple[Array, Array, Array]:
        return _scan_span(*self.pair._fields(), self._place())

    def _place(self) -> Array | None:
        return None if self.left_out is None else self.left_out.place

    def largest_order(self) -> Array:
        (_, step, largest), place = self._span(), self._place()
        if place is None:
            return largest
        # Where the losses end, the largest order is the one up to which the bound on the scan's error is small enough
        # for very many steps.
        lines = self.lines()
        most = jnp.max((lines.heights * (2 * jnp.pi / step) - lines.constant - (arithmetic().cut + 4)) / lines.of_order)
        return jnp.where(place < jnp.inf, jnp.minimum(largest, most), largest)

    def lines(self) -> Lines:
        return _lines(*self.pair._fields(), self._place())

    def scan(self) -> Nodes:
        low, step, _ = self._span()
        return self.nodes(begin(low, step), step)

    def nodes(self, low: Array, step: Array) -> Nodes:
        x, losses, log_p = _nodes_at(*self.pair._fields(), self._place(), places_of(low, step), step)
        infinite = missing = jnp.zeros_like(step)
        if self.left_out is not None:
            infinite, missing = self.left_out.p, self.left_out.q
        return Nodes(losses, log_p, log_p - losses, infinite, missing, x)

    def roundings(self, nodes: Nodes) -> Roundings:
        """Returns the roundings of nodes whose places z are exact; without marks.

        Of v = (z - c)/s, c = 1/(2s), two operations round by a unit of v each, and c by 1.01 of itself, which moves
        every v by as much over s. With a = q e^v/r, log r moves by a times what v does.

        *While r >= 3/4* log r is log(1 + x), x = q (e^v - 1) to 6 units (:data:`.elementary_float32.UNITS`): by these,
        times x/((1 + x) log(1 + x)) <= 4/3, by 3 of the logarithm, and by 2 |v| a: for v > 0 this is at most 2 (1 + v)
        |log r|, as a v/log r is v/(1 - e^-v) times x/((1 + x) log(1 + x)) <= 1; for v < 0 it is at most 8/3 |log r|.
        *Below* r is right to 5 units, which are 18 of log r, the logarithm to 2.5, and 2 |v| a is at most 4.6 |log r|
        (:func:`_log_ratio_and_error`). *Far out* log r is log(q e^v) and a remainder: v counts 2 |v|, and log q, which
        is at most |v|, less than 4 |v|, of a number that is 11 at least if q is above 1e-30.
        """
        s, q, removes = self.pair._fields()
        z, y, log_p = nodes.places, nodes.losses, nodes.log_p
        v, log_r = (z - 0.5 / s) / s, jnp.where(removes, y, -y)
        of_loss = jnp.maximum(14 + 2 * jnp.abs(v), jnp.where(log_r < -0.25, 28.0, 0.0))
        share = jnp.minimum(q * jnp.exp(jnp.minimum(v - log_r, arithmetic().largest_exponent)), 1.0)
        shift = jnp.where(q >= 1e-30, 1.01 / (2 * s * s) * share, jnp.inf)
        step = jnp.log((z[1] - z[0]) / math.sqrt(2 * math.pi))
        # Half of the square, the constant, the two sums, and log r for "remove".
        of_ratio = jnp.where(removes, of_loss * jnp.abs(y) + shift, 0.0)
        return Roundings(1.5 * z**2 + 11 * jnp.abs(step) + 4 + jnp.abs(log_p) + of_ratio, of_loss, shift)

    def log_scan_errors(self, orders: Array, step: Array) -> Array:
        lines = self.lines()
        return jax.vmap(lambda order: lines.log_error(order, 0.0, step))(orders)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        # Most pieces where the losses end: there oscillations are fast, and rare. Any value is sound.
        most_at_end = 32
        place = self._place()
        most = self.most_pieces if place is None else jnp.where(place < jnp.inf, most_at_end, self.most_pieces)
        return jnp.minimum(self.pieces_needed(order, w, window), most)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, q, removes = self.pair._fields()
        weights = tilted_shares(nodes, order)
        # a = q e^v/r = 1 - (1 - q)/r, without a difference from 1.
        inverse = jnp.where(removes, -nodes.losses, nodes.losses)
        share = q * jnp.exp(inverse) - jnp.expm1(inverse)
        is_mixed = jnp.where(q < 1, 1.0, 0.0)
        place = self._place()
        z = nodes.places if place is None else _places(s, place, nodes.places)[0]

        of_share, units = jnp.zeros_like(share), jnp.zeros_like(share)
        if arithmetic().has_few_digits:
            # Errors of shares, absolute, and of weights, relative to themselves, in units of roundoff: the modulus of a
            # step is so near to 1 that its distance counts, which is summed by itself.
            of_mass, of_loss, shift = self.roundings(nodes)
            of_share = 10 * (jnp.abs(jnp.expm1(inverse)) + q * jnp.exp(inverse))
            of_share = of_share + (1 - share) * (of_loss * jnp.abs(inverse) + shift)
            logs = nodes.log_p + order * nodes.losses
            units = of_mass + jnp.abs(logs) + (of_loss + 1) * jnp.abs(order * inverse) + order * shift
            units = units + (jnp.max(logs) - logs) + (28 + 2 * arithmetic().of_sum(RULE))

        # The loss rises by share/s in z.
        def bound(slope: Array) -> Array:
            # The height over s, up to STEEPEST unless r is an exponential.
            highest = jnp.minimum(w * slope / s**2, STEEPEST / is_mixed)
            theta: Array = highest
            longer: Array | float = 0.0
            if place is not None:
                # The path comes down to the real line where the losses end, and is longer by the root of 1 + fade^2.
                fade = jnp.exp((z - place) / (s * theta))
                theta, longer = theta - theta * fade, 0.5 * fade**2
            square = theta**2
            # Bounds on the argument of r/|r(Re z)| = 1 - share + share e^(i theta), and on the log of its modulus.
            turn = share * theta * (1 - is_mixed / 6 * square)
            shrink = share * (1 - share) * square
            less = jnp.where(removes, (order + 1) * shrink * (1 - square / 12), order * shrink / (shrink - 1))
            exponents = 0.5 * (s**2 * square - less) + longer - w * turn
            terms = weights * jnp.exp(exponents)
            # The path begins and ends on the real line, at the first and the last node; the integral beyond is left
            # out. On the ways up and down the integrand is at most the larger of its values at their feet and at their
            # tops: its logarithm is a - b x + c x^2 + d x^3 + e x^4 in the height x, with b, d and e not negative,
            # which first falls.
            height = s * highest
            step = nodes.places[1] - nodes.places[0]
            more = height / step * (terms[0] + terms[-1]) + (1 + height) * math.exp(log_left_out())
            if not arithmetic().has_few_digits:
                return jnp.log(jnp.sum(terms) + more)
            # What the exponents err by: their parts by 8 units each, and by what the shares do.
            sizes = 4 * (s**2 * square + jnp.abs(less)) + 8 * w * jnp.abs(turn)
            sizes = sizes + of_share * (w * theta + jnp.where(removes, order + 1, 6 * order) * square)
            fallen = weights * jnp.expm1(exponents)
            below, off_below, total, off = jnp.sum(
                jnp.stack([fallen, jnp.abs(fallen) * units + terms * sizes, terms, terms * (units + sizes)]), axis=1
            )
            more = more + jnp.exp(self.log_quadrature_error(order, jnp.zeros_like(order), step))
            below, total = below + more + 1.01 * roundoff() * off_below, total + more + 1.01 * roundoff() * off
            return jnp.where(below > -0.25, jnp.log1p(jnp.maximum(below, -0.25)), jnp.log(total)) * (
                1 - 16 * roundoff()
            )

        return least_bound(bound, weights, share, jnp.sum(jnp.where(weights == jnp.max(weights), share, 0.0)))


def _scale_of_end(s: Array) -> Array:
    return jnp.minimum(s, WIDEST_END)


def _places(s: Array, place: Array, x: Array) -> tuple[Array, Array]:
    """Returns z at x, and the log of dz/dx, where the losses end at z = ``place``; x and 0 where they do not."""
    c = _scale_of_end(s)
    v = jnp.log1p(jnp.exp((x - place) / c - FLAT_BY))
    a = jnp.exp(-v)
    return x - c * (v - a * (1 + a * (0.5 + a / 3)) + FLAT_BY), -4 * v


@jax.jit
def _scan_span(s: Array, q: Array, removes: Array, place: Array | None) -> tuple[Array, Array, Array]:
    """Returns where the scan begins, the distance of its nodes, and the largest order whose tilted law it covers.

    For "remove" a tilted law lies between normal ones around 0 and (order + 1)/s.

    For "add" its density is log-concave, and the order adds to the slope of its logarithm at most order/s times the
    share of q e^u in r, which is at most q where z < 0. So the order moves the law by at most that, and the scan is
    longer than the reach of the noise by as much. At its other end it is longer by 1/s, about which Q has its mass:
    moments take the sum of Q's masses for whole.
    """
    # Standard deviations by which an order may move a law that ends, away from its end. Any value is sound.
    far_at_end = 2.0
    # Scales c beyond the place at which the nodes end: there dz/dx is e^-50.
    length_of_end = 12.5 + FLAT_BY
    # Least spacing of the scan for "add", in standard deviations, which leaves room for some orders. Sound for any
    # value. For "add" the spacing is half as wide as for "remove", as high orders cost more there.
    least_add = 0.09
    reach = arithmetic().reach
    spacing = jnp.minimum(FINEST * s, jnp.where(removes, COARSEST, jnp.clip(FINEST / 2 * s, least_add, COARSEST / 2)))
    far = jnp.maximum(RULE * jnp.where(q == 1, COARSEST, spacing) - 2 * reach, 0.0)
    high = reach + jnp.where(removes, far, 1 / s)
    if place is not None:
        is_end = place < jnp.inf
        far = jnp.where(is_end, jnp.where(removes, jnp.inf, far_at_end), far)
        high = jnp.where(is_end, place + length_of_end * _scale_of_end(s), high)
    low = -reach - jnp.where(removes, 0.0, far)
    return low, step_across(low, high, RULE), jnp.maximum(far * s / jnp.where(removes, 1.0, q) - 1, 0.0)


@jax.jit
def _nodes_at(
    s: Array, q: Array, removes: Array, place: Array | None, x: Array, step: Array
) -> tuple[Array, Array, Array]:
    """Returns the nodes at places x (RULE,): these, losses and logs of P's masses."""
    z, log_weight = (x, 0.0) if place is None else _places(s, place, x)
    log_r = _log_ratio(s, q, z)
    log_p = log_weight - 0.5 * z**2 + jnp.log(step / math.sqrt(2 * math.pi)) + jnp.where(removes, log_r, 0.0)
    return x, jnp.where(removes, log_r, -log_r), log_p


def _log_ratio(s: Array, q: Array, z: Array) -> Array:
    """Returns log r, right to 16 units of roundoff of itself and two of 1/(2 s^2).

    The latter are those of 0.5/s, and of its difference from z, over s: beside the zero at z = 1/(2 s) nothing else
    is left. They move log r by as much at most, for it rises in u at a rate between 0 and 1. Moments count the 16
    units alone; what the two move them by was measured to be less than a thousandth of their bounds.

    Down to r = 3/4 it is the logarithm of 1 + (r - 1); below, that of (1 - q) + q e^u, for r - 1 has lost digits there
    when q is near 1; and where e^u would overflow, that of q e^u, with what 1 - q adds to it.
    """
    u = (z - 0.5 / s) / s
    capped = jnp.minimum(u, arithmetic().largest_exponent)
    more = q * jnp.expm1(capped)
    log_r = jnp.where(more > -0.25, jnp.log1p(jnp.maximum(more, -0.25)), jnp.log((1 - q) + q * jnp.exp(capped)))
    above = u + jnp.log(q)
    far = jnp.maximum(above, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(above)) * jnp.where(above > 0, 1 - q, 1.0))
    return jnp.where(u > capped, far, log_r)


def _log_ratio_and_error(s: Array, q: Array, x: Array) -> tuple[Array, Array]:
    """Returns log r(x), x finite or not, and a bound on its error that is relative to it near 0.

    v = (x - 1/2)/s^2 is right to 3 units of roundoff of itself: they move log r by the share of q e^v in r times 3 |v|.
    The share is at most min(1, q max(1, e^v)). The other errors are in proportion to log r, or to share |v|:

    * While r >= 3/4, r - 1 is right to 9 units of itself, which are 12 of log r, and the logarithm errs by 8.
    * Below, r is the sum of 1 - q = e^a and q e^v = e^w, with shares e^(a - L) and e^(w - L) for L = log r < -0.28. For
      y <= L the product e^(y - L) |y| is at most |L| + 1/e, below 2.3 |L|. The errors of a, 8 |a| + 1 units, and of w,
      |w| + 8 |log q| with |log q| <= |w|, move L by 19 |L| + 4 |L| and 21 |L|; the last two steps by 30 |L|.
    * The same formula serves where e^v would overflow. There L moves by its share times the errors of w, for |log q| <=
      745 at most 8 (|v| + 45) + |w|, hence 20 |v|, and by 17 |L|. 1 - q only counts where it is 1 to all digits.
    """
    most = 700.0
    v = (x - 0.5) / s / s  # a square might overflow
    more = q * jnp.expm1(jnp.minimum(v, most))
    a, w = jnp.log(1 - q), v + jnp.log(q)
    far = jnp.maximum(a, w) + jnp.where(jnp.isinf(x), 0.0, jnp.log1p(jnp.exp(-jnp.abs(a - w))))
    is_near, is_huge = more > -0.25, v > most
    log_r = jnp.where(is_near & ~is_huge, jnp.log1p(jnp.maximum(more, -0.25)), far)
    share = jnp.where(is_huge, 1.0, jnp.minimum(q + jnp.maximum(more, 0.0), 1.0))
    return log_r, roundoff() * (96 * jnp.abs(log_r) + 32 * jnp.where(jnp.isinf(x), 0.0, share * jnp.abs(v)))


@jax.jit
def _lines(s: Array, q: Array, removes: Array, place: Array | None) -> Lines:
    # The five rows of ENDING where no losses are left out, in units of s: there z is x.
    plain_rows = np.stack([ANGLES, ANGLES, *np.zeros((3, len(ANGLES)))])
    # The factor by which lines are higher where q = 1, sound for any value: r is an exponential, and vanishes nowhere.
    wider = 4.0
    # The largest theta, in radians, of a line that is used. Sound below pi, where r may vanish.
    highest = 3.1
    is_end = jnp.zeros((), bool) if place is None else jnp.isfinite(place)
    is_mixed = jnp.where(q < 1, 1.0, 0.0)
    rows: list[Array] = [jnp.asarray(row, s.dtype) for row in plain_rows]
    if place is not None:
        rows = [jnp.where(is_end, row.astype(s.dtype), plain) for row, plain in zip(ENDING, rows, strict=True)]
    line, height, ahead, back, growth = rows
    c = jnp.where(is_end, _scale_of_end(s), jnp.where(q == 1, wider, s))
    theta = c / s * height
    share, turn = jnp.ones_like(theta), theta
    constant = 0.5 * (c * height) ** 2 + growth
    if place is not None:
        shares = jax.nn.sigmoid((place + c * FRONTS - 0.5 / s) / s + jnp.log(q) - jnp.log1p(-q))
        share, turns = jnp.max(shares, axis=1), c / s * HEIGHTS * jnp.where(shares < 0.5, shares, 1.0)
        turn = jnp.where(is_end, jnp.max(turns, axis=1), theta)
        constant = constant + jnp.where(is_end, place, 0.0) * c * back
    power = share * (c / s) * jnp.where(removes, ahead, back)
    even = jnp.minimum(share, 0.5)
    shrink = 4 * even * (1 - even) * jnp.sin(jnp.minimum(theta, highest) / 2) ** 2
    power = power - jnp.where(removes, 0.0, is_mixed / 2) * jnp.log(1 - shrink)
    constant = jnp.where(theta * is_mixed < highest, constant, jnp.inf)
    return Lines(c * line, constant + jnp.where(removes, power, 0.0), power, turn)


# ----------------------------------------------------------------------------------------------------
# The Gaussian mechanism, and one step of DP-SGD
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Gaussian(NoisyMechanism):
    """Gaussian mechanism: a query of sensitivity 1 plus noise of the given standard deviation.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the query's L2 sensitivity. 0 means no noise, and
            every accountant answers with an infinite epsilon.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", one pair for all of them by symmetry; "replace",
    under which the query moves by up to 2, so that the pair is that of half the noise multiplier.

    >>> Gaussian(noise_multiplier=2.0).relations
    ('add_or_remove', 'remove', 'add', 'replace', 'zero_out')
    """

    noise_multiplier: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)

    noiseless_pairs = surely_seen

    def of_group(self, size: int) -> Gaussian:
        return Gaussian(less_noise(self.noise_multiplier, size))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair ``N(1, s^2)`` against ``N(0, s^2)``; the opposite direction is its mirror image."""
        noise = self.noise_multiplier
        if "replace" in directions(self, relation):
            with scope():  # halving is exact in float64, but not in the type that it may have come in
                noise = as_float64(noise) / 2
        return (SubsampledGaussianPair(noise, 1.0, removes=True),)


@dataclass(frozen=True)
class SampledGaussian(SampledNoise):
    """The base of Gaussian mechanisms on a sample of the examples: their two fields."""

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike

    noise: ClassVar[str] = "gaussian"

    noiseless_pairs = seen_where_sampled

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledGaussian(SampledGaussian):
    """Gaussian mechanism on a Poisson sample: one step of DP-SGD.

    Each example takes part independently with probability ``sampling_rate``; the sum of the sampled examples' clipped
    contributions gets Gaussian noise.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm.
        sampling_rate (...): probability of each example to be in the batch, in (0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", and "zero_out", whose pairs are those of adding
    and removing: an example that contributes nothing is as good as none, and the others are sampled independently of
    it. Batches of fixed size, and shuffled ones, are *not* this mechanism.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Theorem 11. Replacement: the pair (1-q) N(0, s^2) + q N(1, s^2) against
    (1-q) N(0, s^2) + q N(-1, s^2). Let mu_v be the law of the output if the example at issue takes part and contributes
    v, given what else is sampled, and mu_0 if it does not. For c >= 1 and an event of mu_0-probability a,

        P - c Q = (1-q) (1-c) a + q (mu_v - c mu_w).

    By Neyman and Pearson mu_v is at most Phi(Phi^-1(a) + |v|/s) and mu_w at least Phi(Phi^-1(a) - |w|/s), with norms of
    at most 1; for v = -w of norm 1 one half-space attains both for every a, and so the pair's supremum is an upper
    bound. For c < 1 exchange the two. Other examples sampled shift all three laws alike; the divergence is convex.

    >>> PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01).sampling_rate
    0.01
    """

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def of_group(self, size: int) -> PoissonSubsampledGroup:
        return PoissonSubsampledGroup(self.noise_multiplier, self.sampling_rate, size)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"; for "replace" two mixtures."""
        direction_names = directions(self, relation)
        if "replace" in direction_names:
            return (subsampled_pair(self.noise_multiplier, self.sampling_rate, "replace", "gaussian"),)
        return tuple(
            SubsampledGaussianPair(self.noise_multiplier, self.sampling_rate, removes=direction == "remove")
            for direction in direction_names
        )


# ----------------------------------------------------------------------------------------------------
# Poisson samples that are cut at a largest batch size
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class TruncatedPoissonGaussian(SampledGaussian):
    """Gaussian mechanism on a Poisson sample that is cut: if it exceeds B examples, B of them at random are used.

    Attributes:
        noise_multiplier (...): s, standard deviation of the noise over the clipping norm.
        sampling_rate (...): q, probability of each example to be sampled, before the cut, in (0, 1].
        overflow_probability (...): w, upper bound on the probability that B or more *others* are sampled, for a given
            example of any of the data sets; shapes broadcast. :class:`.TruncatedPoissonSampler` knows it.
        least_overflow_probability (...): v, lower bound on the same, at most w.
        overflow_rate (...): r, in (0, 1], and
        overflow_slack (...): e, in [0, 1]: with p the probability that B or more others are sampled, and t the
            probability that moreover the example is in the batch, t <= v r + q min(e, p - v) for all data sets at
            issue.

    With the defaults of the last three a full batch counts at the rate q. :meth:`for_batches` makes one from the number
    of examples and B.

    Relations: "add_or_remove" (default), "remove", "add".

    Formal guarantee: let D(s, q) be the pair of :class:`.PoissonSubsampledGaussian`, (1 - q) N(0, s^2) + q N(1, s^2)
    and N(0, s^2), and e' = min(e, w - v). The pair of this mechanism is D(s/2, r) with probability v,
    D(s/2, q) with probability e' and D(s, q) with the rest; which of the three is known, and costs nothing by itself.

    Proof. Let S be the sampled others. Its law does not depend on the example at issue; give away whether its size K
    is at least B. If not, give away S, too: the batch is S, or with probability q S and the example, so the sum moves
    by a vector of norm at most 1: D(s, q). If K >= B, let T be a uniform B-subset of S, the batch without the example,
    and z uniform in T. With the example at hand, given K, the batch is T with z exchanged for it with probability
    q B / (K + 1), else T: a uniform B-subset of S and the example holds it with probability B / (K + 1), and then a
    uniform (B - 1)-subset of S. Given K >= B, the law of T and z is that of a uniform B-subset of the others and one of
    its members, whatever K is; so it is independent of K and of the exchange. Give T and z away, but not K: the sum
    moves by a vector of norm at most 2 with probability t/p = E[q B / (K + 1) | K >= B] < q: D(s/2, t/p).

    Write D also for the hockey-stick divergence at any one epsilon. It is convex in the rate, and falls neither as the
    rate nor as the norm rises, so p D(s/2, t/p) <= v D(s/2, r) + x D(s/2, q) + (p - v - x) D(s/2, 0) for x =
    min(e, p - v), as t <= v r + x q. With (1 - p) D(s, q) added and D(s, q) in place of D(s/2, 0), and as
    D(s/2, q) >= D(s, q) and x <= e', this is at most the divergence of the pair.

    Source: Ganesh (2025), "Tighter privacy analysis for truncated Poisson sampling", with the pair of a replaced
    example in place of D(s/2, t/p); an overflow as a failure, Chua et al. (2024), "Scalable DP-SGD".

    >>> TruncatedPoissonGaussian(1.0, 0.01, overflow_probability=1e-3).relations
    ('add_or_remove', 'remove', 'add')
    """

    overflow_probability: ArrayLike
    least_overflow_probability: ArrayLike = 0.0
    overflow_rate: ArrayLike = 1.0
    overflow_slack: ArrayLike = 1.0

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add")

    @classmethod
    @takes_python_values
    def for_batches(
        cls, noise_multiplier: ArrayLike, sampling_rate: float, num_examples: int | Sequence[int], capacity: int
    ) -> TruncatedPoissonGaussian:
        """Returns the mechanism of data sets of a known size and batches of at most ``capacity``.

        Args:
            noise_multiplier (...): as that of the class; may be traced.
            sampling_rate: a number in (0, 1], before the cut.
            num_examples: n, of the larger of two neighbouring data sets; taken as public. Several numbers where it may
                be any of them: (n, n + 1) for all neighbours of a data set of n.
            capacity: B, the largest batch, at least 1.

        Formal guarantee: that of the class. With m = n - 1 others K is binomial, and p_m and t_m are sums over its law
        (:func:`jaxacct.rounded_sum.binomial_tail`), rounded to their safe sides. For one n, v and w bound p_m,
        r is t_m over v and e is 0. For several, v and r are those of the least m, and e is the amount by which the
        largest t exceeds t_m, over q. Then t <= v r + q e for each; and t_k <= v r + q (p_k - v) for a k above m, since
        one more sampled example adds to t at most where it fills the batch, so at most q (p_(m + 1) - p_m). Where
        t_m / v is above q, r is q, and v r + q (p_m - v) is p_m q, which is not below t_m either.

        Raises ValueError or TypeError where an argument is out of range.

        >>> mechanism = TruncatedPoissonGaussian.for_batches(1.0, 0.01, num_examples=1000, capacity=10)
        >>> [round(float(value), 4) for value in jax.tree.leaves(mechanism)]
        [1.0, 0.01, 0.5414, 0.5414, 0.0077, 0.0]
        """
        validation.check_scalar(sampling_rate, "sampling_rate")
        validation.check_sampling_rate(sampling_rate)
        sizes = [
            validation.check_whole(size, "num_examples", 1, 2**53, "the number of examples")
            for size in (num_examples if isinstance(num_examples, Sequence) else (num_examples,))
        ]
        capacity = validation.check_whole(capacity, "capacity", 1, 2**53, "the largest batch")
        rate, outward = float(sampling_rate), 1 + 4 * UNIT_ROUNDOFF
        tails = [binomial_tail(size - 1, rate, capacity) for size in sorted(sizes)]
        entered = [max(rate * capacity * tail.inverse * outward, TINY) for tail in tails]
        least, covered = tails[0].least, entered[0]
        overflow_rate = covered / least * outward if least > 0 else math.inf
        if overflow_rate > rate:
            overflow_rate, covered = rate, least * rate / outward
        slack = min(max(max(entered) - covered, 0.0) / rate * outward, 1.0)
        return cls(noise_multiplier, rate, max(tail.most for tail in tails), least, overflow_rate, slack)

    def validate(self) -> None:
        super().validate()
        validation.check_probability(self.overflow_probability, "overflow_probability")
        validation.check_probability(self.least_overflow_probability, "least_overflow_probability")
        validation.check_sampling_rate(self.overflow_rate, "overflow_rate")
        validation.check_probability(self.overflow_slack, "overflow_slack")
        least, most = (
            validation.concrete_value(v) for v in (self.least_overflow_probability, self.overflow_probability)
        )
        if least is not None and most is not None and np.any(least > most):
            raise ValueError(
                f"least_overflow_probability = {self.least_overflow_probability} is above overflow_probability = "
                f"{self.overflow_probability}: give a lower and an upper bound on one probability."
            )

    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        """Returns the mixed pairs of an example that is seen where it is sampled."""
        _, q, most, least, r, slack = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(self))
        slack = np.minimum(slack, most - least)
        weights = np.stack([np.maximum(1 - least - slack, 0.0), least, slack])
        rates = np.stack([q, r, q])
        return noiseless_pairs(directions(self, relation), log_absence(rates, 1 - rates), weights)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the mixed pairs of (mixture, base) for "remove" and of (base, mixture) for "add"."""
        s, q, most, least, r, slack = (as_float64(v) for v in jax.tree.leaves(self))
        slack = jnp.minimum(slack, most - least)
        rest = jnp.where(most <= 1, jnp.maximum(remaining_weight(least, slack), 0.0), jnp.nan)
        noises, rates = jnp.stack([s, s / 2, s / 2]), jnp.stack([q, r, q])
        weights = jnp.stack([rest, least, slack])

        def pair(removes: bool) -> DominatingPair:
            return leave_scope(PublicCoinPair(SubsampledGaussianPair(noises, rates, np.full(3, removes)), weights))

        return tuple(pair(direction == "remove") for direction in directions(self, relation))


@with_own_form
def remaining_weight(least: Array, slack: Array) -> Array:
    """Returns 1 - least - slack: in float64 right to a few roundings however near to 0 it is.

    In float32 it is not above the truth, and below it by five of 1 - least: the pair in which slack takes what is
    missing is the larger one.
    """
    rest = 1 - least
    return (rest - slack) + ((1 - rest) - least)
