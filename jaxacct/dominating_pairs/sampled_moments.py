"""Moments of the subsampled Gaussian's likelihood ratio: without cancellation or overflow, one by one or together.

With r = e^L the moment ``E[r^a]`` of x ~ N(0, s^2) lies near 1 where the privacy is good, and its distance from 1 is
what counts. Since E[r - 1] = 0 that distance is ``E[r^a - 1 - a (r - 1)]``, whose integrand has one sign. With
phi(x) = e^x - 1 - x it is a sum of two terms of the same sign for every a outside [0, 1]:

    r^a - 1 - a (r - 1) = r (phi(m L) + m phi(-L)),   m = a - 1,   and also   = phi(-m L) + m phi(L),   m = -a,

the first for a > 1, the second for a < 0. So nothing cancels, however close to 1 the moment or the order is.
The integral is a trapezoid rule on all of R, which converges geometrically in the number of nodes; the nodes cover the
places where the integrand exceeds e^-CUT of its maximum, which are found first, for each order.

Of many orders together what they share is computed once (:func:`log_moments`):

* a whole order is the finite sum of Mironov, Talwar and Zhang (2019), "Rényi differential privacy of the sampled
  Gaussian mechanism", section 3.3, without its first two terms: since the binomial terms sum to one,

      E[r^a] - 1 = sum over k >= 2 of C(a, k) (1 - q)^(a - k) q^k (e^(k (k-1)/(2 s^2)) - 1),

  all positive, however small; the last factor's logarithm is the same for all orders;
* fractional orders up to some largest one share the nodes of one rule, and log r there; what is left for each order
  and node is one exponential;
* of others the integrand lies near 0 and near a nearly always: two windows of few nodes, in places known beforehand.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import PAIR, arithmetic, roundoff
from jaxacct.batching import one_by_one
from jaxacct.dominating_pairs.moments import LARGEST_EXPONENT, excess, exp_remainder
from jaxacct.dominating_pairs.pair import OrderKinds
from jaxacct.precision import TINY, as_float64, log_complement, within_scope

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

REACH = 50.0
"""Standard deviations from a peak within which the integrand falls by CUT, for every order up to 4096.

Where the peak of r^a and its valley merge, the log integrand is quartic, -z^4/(24 s^2), which takes
(24 CUT s^2)^(1/4) < 40 for s <= 32; they merge for a >= 4 s^2 only, and elsewhere the curvature is at least 1/2.
"""

MAXIMUM_SPAN = 100.0
"""Longest range, in standard deviations, that one trapezoid rule covers; beyond, each end gets half of it."""

LARGEST_EXPONENT_OF_SINGLE = 75.0
"""LARGEST_EXPONENT in float32, which overflows at e^88."""

SPACING = 0.6
"""Distance of shared nodes in standard deviations, and in units of s for s < 1.

r vanishes at imaginary part pi s and |r| is largest on the real line, so the rule errs by e^(-2 pi y/SPACING + y^2/2),
y = pi s: 7e-13 for s = 1, less elsewhere. Measured against a window for each order: 3e-14 of the moment's
distance from 1 in 3,000 settings, s from 0.2 to 1000.
"""

SHARED_REACH = 8.0
"""Standard deviations beyond 0 and beyond a, the outermost peaks of r^a and of what is subtracted: e^-32 is left."""

LARGEST_WHOLE = 1024
"""Whole orders up to here are summed term by term."""

WINDOW = 32
"""Nodes of each of two windows: 19 standard deviations, enough for s > 0.85. Half as many more take twice as long."""

MISSED = 30.0
"""Log of the ratio of an integral to what two windows may miss of it, or count without need: e^-30 is 1e-13."""

CHUNK = 48
"""Nodes taken at once: enough for s > 1 and orders to 11. Of 16 to 64 the fastest on a CPU."""

LENGTHS = (64, 128, 256, 512, LARGEST_WHOLE)
"""Orders up to each of them are summed together, as many terms for one as for the largest of its group."""

LEAST_NOISE = 0.2
"""Below it the range, a/s, takes so many nodes that a window for each order is faster."""

SERIES = 0.1
"""|x| below which e^x - 1 - x is summed as a series; at the border the difference has lost 8 bits, to 4e-14."""


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
        shorter = reach - REACH * 0.5**i
        fallen = jax.vmap(lambda z: height(z) < top - CUT)(jnp.stack([left - shorter[0], right + shorter[1]]))
        return jnp.where(fallen, shorter, reach)

    # Eight halvings leave 0.2 standard deviations too much.
    reach = jax.lax.fori_loop(1, 9, narrow, jnp.full((2, *left.shape), REACH, jnp.float64))
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


def log_moments(noise_multiplier: Array, sampling_rate: Array, orders: Array, kinds: OrderKinds) -> Array:
    """Returns ``log E[r^a]`` for each of the orders a; scalars s and q, inside the float64 scope.

    Invalid parameters give garbage.
    """
    return one_by_one(_together, kinds)(noise_multiplier, sampling_rate, orders)


@within_scope
def _together(kinds: OrderKinds, s: Array, q: Array, orders: Array) -> Array:
    return _log_moments(s, q, orders, kinds)


def _log_moments(s: Array, q: Array, orders: Array, kinds: OrderKinds) -> Array:
    parts: list[Array] = []
    places: list[int] = []
    if kinds.whole:
        positions, whole = zip(*kinds.whole, strict=True)
        places += positions
        parts.append(_whole(s, q, whole))
    if kinds.near:
        places += kinds.near
        # As many windows as orders, where that is faster; the other branch is not to loop for ever then.
        near = orders[np.array(kinds.near)]
        parts.append(jax.lax.cond(s < LEAST_NOISE, log_moment_of_ratio, _shared, s, q, near))
    if kinds.far:
        places += kinds.far
        parts.append(_apart(s, q, orders[np.array(kinds.far)]))
    moments = jnp.concatenate(parts)[np.argsort(np.array(places))]
    return jnp.where(q == 1, orders * (orders - 1) / (2 * s**2), moments)


def _whole(s: Array, q: Array, orders: tuple[int, ...]) -> Array:
    """Returns the finite sums, orders of similar length together."""
    groups: dict[int, list[int]] = {}
    for position, order in enumerate(orders):
        groups.setdefault(next(most for most in LENGTHS if order <= most), []).append(position)
    sums = [_sums(s, q, [orders[i] for i in positions]) for positions in groups.values()]
    places = np.concatenate([np.array(positions) for positions in groups.values()])
    return jnp.concatenate(sums)[np.argsort(places)]


def _sums(s: Array, q: Array, orders: list[int]) -> Array:
    k, a = np.arange(2.0, max(orders) + 1), np.array(orders, np.float64)
    # The logarithm of C(a, k), for k > a that of 0.
    binomials = np.stack([np.pad(_log_binomials(n), (0, max(orders) - n), constant_values=-np.inf) for n in orders])
    left_out = np.maximum(a[:, None] - k[None], 0.0)
    log_q, log_rest = jnp.log(q), log_complement(jnp.minimum(q, 1 - roundoff()))
    growth = k * (k - 1) / (2 * s**2)
    common = k * log_q + growth + jnp.log(-jnp.expm1(-growth))
    # A term but for its binomial, which is between 1 and 2^a, is largest at an end, or no more than a^2/2 times larger:
    # q^k (1-q)^(a-k) e^growth is convex in k, 1 - e^-growth rises and is concave in the growth. So the largest term is
    # within e^370 of this.
    ends = common[0] + (a - 2) * log_rest, common[np.array(orders) - 2]
    top = jnp.maximum(*ends) + a * (math.log(2) / 2)
    weights = jnp.exp(binomials - top[:, None] + common[None] + left_out * log_rest)
    # Besides their sum, the mean growth and k of the terms that count.
    columns = jnp.stack([jnp.ones_like(growth), growth, k + 0 * growth], axis=1)
    mass, mean_growth, mean_k = jnp.matmul(weights, columns, precision=jax.lax.Precision.HIGHEST).T
    log_excess = top + jnp.log(mass)
    # A term's parts are rounded before they cancel: by a few units of their magnitude, on the average over the terms.
    magnitude = (mean_growth - mean_k * log_q) / mass - (a - mean_k / mass) * log_rest
    rounding = 8 * roundoff() * (1 + magnitude)
    moment = jnp.maximum(log_excess, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(log_excess)))
    return jnp.where(log_excess > 0, moment + rounding, moment * (1 + rounding))


@functools.cache
def _log_binomials(order: int) -> np.ndarray:
    """Returns ``log C(order, k)`` for k from 2 to order."""
    return np.array([math.log(math.comb(order, k)) for k in range(2, order + 1)])


def _shared(s: Array, q: Array, orders: Array) -> Array:
    """Returns the quadratures: of r (phi(m L) + m phi(-L)), m = a - 1, L = log r and phi(x) = e^x - 1 - x."""
    s, q = jnp.maximum(s, LEAST_NOISE), jnp.minimum(q, 1 - roundoff())
    power = orders - 1
    left, right = -SHARED_REACH, jnp.max(orders) / s + SHARED_REACH
    chunks = jnp.ceil((right - left) / (jnp.minimum(s, 1.0) * (SPACING * CHUNK)))
    spacing = (right - left) / (chunks * CHUNK)
    top = _highest(s, q, orders)

    def add(i: Array, total: Array) -> Array:
        z = left + spacing * (i * CHUNK + jnp.arange(CHUNK) + 0.5)
        return total + jnp.sum(_excesses(s, q, power[None], top[None], z[:, None]), axis=0)

    total = jax.lax.fori_loop(0, chunks.astype(jnp.int32), add, jnp.zeros_like(orders))
    return _log_moment(top, total * spacing)


def _highest(s: Array, q: Array, orders: Array) -> Array:
    """Returns what the log of the integrand exceeds by a log 2 at most: r <= 2 max(1 - q, q e^u)."""
    return jnp.maximum(orders * jnp.log(q) + orders * (orders - 1) / (2 * s**2), 0.0)


def _excesses(s: Array, q: Array, power: Array, top: Array, z: Array) -> Array:
    """Returns ``r (phi(m L) + m phi(-L)) e^(-z^2/2 - top)``; all but s and q broadcast."""
    log_r, _, inverse = log_ratio(s, q, z)
    log_weight, scale = log_r - 0.5 * z**2, jnp.exp(-top)
    weight, x = jnp.exp(log_weight), power * log_r
    scaled = weight * scale
    direct = jnp.exp(x + (log_weight - top)) - (1 + x) * scaled
    remainder = jnp.where(jnp.abs(x) < SERIES, _series(x) * scaled, direct)
    return remainder + power * scale * (weight * exp_remainder(-log_r, inverse))


def _log_moment(top: Array, integral: Array) -> Array:
    """Returns the log of a moment whose distance from 1 is ``integral e^top / sqrt(2 pi)``."""
    log_excess = top + jnp.log(integral) - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.maximum(log_excess, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(log_excess)))


def _apart(s: Array, q: Array, orders: Array) -> Array:
    """Returns the quadratures over two windows for each order, or one that is looked for where these do not do.

    In pairs, where both would be computed, the latter.
    """
    if arithmetic() == PAIR:
        return log_moment_of_ratio(s, q, orders)
    found, will_do = _at_the_ends(s, q, orders)
    return jax.lax.cond(will_do, lambda *_: found, log_moment_of_ratio, s, q, orders)


def _at_the_ends(s: Array, q: Array, orders: Array) -> tuple[Array, Array]:
    """Returns the quadratures over WINDOW nodes from the left end of what counts and as many up to its right end.

    And whether these do for all orders. Where the ends are near, the second window goes on with the nodes of the first;
    else there is a gap. From it on r > 1, and r^a e^(-z^2/2) is the whole integrand but for (1 + a (r - 1)) e^(-z^2/2),
    which falls. In the gap log r, which is convex, lies below its chord; with that in its place r^a e^(-z^2/2) is a
    normal density, whose maximum is known.
    """
    spacing = SPACING * jnp.minimum(s, 1.0)
    length = WINDOW * spacing
    top, steps = _highest(s, q, orders), spacing * (jnp.arange(WINDOW) + 0.5)
    left = length - SHARED_REACH
    right = jnp.maximum(left, orders / s + SHARED_REACH - length)

    def log_r(z: Array) -> Array:
        u = (z - 0.5 / s) / s
        return u + jnp.log(q + (1 - q) * jnp.exp(-u))

    # Orders first: a CPU's compiler vectorizes the last axis.
    near = _excesses(s, q, orders[:, None] - 1, top[:, None], steps[None] - SHARED_REACH)
    places = right[:, None] + steps[None]
    far = jnp.exp(orders[:, None] * log_r(places) - places**2 / 2 - top[:, None])
    total = jnp.sum(near, axis=1) + jnp.sum(far, axis=1)
    # Two chords, which meet where log r bends: at q e^u = 1 - q.
    bend = jnp.clip(0.5 / s + s * (log_complement(q) - jnp.log(q)), left, right)
    ends = jnp.stack([jnp.full_like(right, left), bend, right])
    heights = log_r(ends)
    slopes = jnp.diff(heights, axis=0) / jnp.maximum(jnp.diff(ends, axis=0), TINY)
    z = jnp.clip(orders[None] * slopes, ends[:-1], ends[1:])
    highest = jnp.max(orders[None] * (heights[:-1] + slopes * (z - ends[:-1])) - z**2 / 2, axis=0)
    # And what the rule errs by where it ends and begins anew: a node at either side.
    skipped = jnp.where(right > left, right - left + 2, 0.0) * jnp.exp(highest - top)
    counted = (1 + orders * q * jnp.exp(left / s)) * jnp.exp(-(left**2) / 2 - top)
    will_do = (left > 1 + 1 / s) & (skipped + counted <= math.exp(-MISSED) * spacing * total) & jnp.isfinite(total)
    return _log_moment(top, total * spacing), jnp.all(will_do)


def _series(x: Array) -> Array:
    """Returns ``e^x - 1 - x`` for |x| < SERIES; the first term left out is 0.1^9 2/11! = 5e-17 of the first."""
    x = jnp.clip(x, -SERIES, SERIES)
    total = jnp.zeros_like(x)
    for n in range(10, 2, -1):
        total = (1.0 + total) * (x * (1.0 / n))
    return (1.0 + total) * (x * x * 0.5)
