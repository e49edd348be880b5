"""The subsampled Gaussian's log moments at many orders together: what the orders share is computed once.

``log E[r(x)^a]`` for x ~ N(0, s^2) and r(x) = 1 + q (e^((2x-1)/(2 s^2)) - 1), as in :mod:`jaxacct.cumulants`, whose
quadrature seeks out a window for each order and so serves any of them. Here

* a whole order is the finite sum of Mironov, Talwar and Zhang (2019), "Rényi differential privacy of the sampled
  Gaussian mechanism", section 3.3, without its first two terms: since the binomial terms sum to one,

      E[r^a] - 1 = sum over k >= 2 of C(a, k) (1 - q)^(a - k) q^k (e^(k (k-1)/(2 s^2)) - 1),

  all positive, however small; the last factor's logarithm is the same for all orders;
* fractional orders up to some largest one share the nodes of one trapezoid rule, and log r there; what is left for
  each order and node is one exponential.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.batching import one_by_one
from jaxacct.cumulants import QUADRATURE_NODES, exp_remainder, log_moment_of_ratio, log_ratio
from jaxacct.precision import UNIT_ROUNDOFF, in_float64, log_complement
from jaxacct.rdp.orders import LARGEST_WHOLE, Kinds

SPACING = 0.6
"""Distance of nodes in standard deviations, and in units of s for s < 1.

r vanishes at imaginary part pi s and |r| is largest on the real line, so the rule errs by e^(-2 pi y/SPACING + y^2/2),
y = pi s: 7e-13 for s = 1, less elsewhere. Measured against the rule of :mod:`jaxacct.cumulants`: 3e-14 of the moment's
distance from 1 in 3,000 settings, s from 0.2 to 1000.
"""

REACH = 8.0
"""Standard deviations beyond 0 and beyond a, the outermost peaks of r^a and of what is subtracted: e^-32 is left."""

CHUNK = 48
"""Nodes taken at once: enough for s > 1 and orders to 11. Of 16 to 64 the fastest on a CPU."""

LENGTHS = (64, 128, 256, 512, LARGEST_WHOLE)
"""Orders up to each of them are summed together, as many terms for one as for the largest of its group."""

LEAST_NOISE = 0.2
"""Below it the range, a/s, takes so many nodes that a window for each order is faster."""

SERIES = 0.1
"""|x| below which e^x - 1 - x is summed as a series; at the border the difference has lost 8 bits, to 4e-14."""


def log_moments(noise_multiplier: Array, sampling_rate: Array, orders: Array, kinds: Kinds) -> Array:
    """Returns ``log E[r^a]`` for each of the orders a; scalars s and q, inside the float64 scope.

    Invalid parameters give garbage.
    """
    return one_by_one(_together, kinds)(noise_multiplier, sampling_rate, orders)


@in_float64
def _together(kinds: Kinds, s: Array, q: Array, orders: Array) -> Array:
    return _log_moments(s, q, orders, kinds)


def _log_moments(s: Array, q: Array, orders: Array, kinds: Kinds) -> Array:
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
        parts.append(jax.lax.cond(s < LEAST_NOISE, _apart, _shared, s, q, near))
    if kinds.far:
        places += kinds.far
        parts.append(_apart(s, q, orders[np.array(kinds.far)]))
    moments = jnp.concatenate(parts)[np.argsort(np.array(places))]
    return jnp.where(q == 1, orders * (orders - 1) / (2 * s**2), moments)


def _apart(s: Array, q: Array, orders: Array) -> Array:
    return log_moment_of_ratio(s, q, orders, QUADRATURE_NODES)


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
    log_q, log_rest = jnp.log(q), log_complement(jnp.minimum(q, 1 - UNIT_ROUNDOFF))
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
    rounding = 8 * UNIT_ROUNDOFF * (1 + magnitude)
    moment = jnp.maximum(log_excess, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(log_excess)))
    return jnp.where(log_excess > 0, moment + rounding, moment * (1 + rounding))


@functools.cache
def _log_binomials(order: int) -> np.ndarray:
    """Returns ``log C(order, k)`` for k from 2 to order."""
    return np.array([math.log(math.comb(order, k)) for k in range(2, order + 1)])


def _shared(s: Array, q: Array, orders: Array) -> Array:
    """Returns the quadratures: of r (phi(m L) + m phi(-L)), m = a - 1, L = log r and phi(x) = e^x - 1 - x."""
    s, q = jnp.maximum(s, LEAST_NOISE), jnp.minimum(q, 1 - UNIT_ROUNDOFF)
    power = orders - 1
    left, right = -REACH, jnp.max(orders) / s + REACH
    chunks = jnp.ceil((right - left) / (jnp.minimum(s, 1.0) * (SPACING * CHUNK)))
    spacing = (right - left) / (chunks * CHUNK)
    # r is at most twice the larger of 1 - q and q e^u, so the integrand is at most 2^a e^top.
    top = jnp.maximum(orders * jnp.log(q) + orders * power / (2 * s**2), 0.0)
    scale = jnp.exp(-top)

    def add(i: Array, total: Array) -> Array:
        z = left + spacing * (i * CHUNK + jnp.arange(CHUNK) + 0.5)
        log_r, _, inverse = log_ratio(s, q, z)
        log_weight = log_r - 0.5 * z**2
        weight = jnp.exp(log_weight)
        x = power[None] * log_r[:, None]
        scaled = weight[:, None] * scale[None]
        direct = jnp.exp(x + (log_weight[:, None] - top[None])) - (1 + x) * scaled
        remainder = jnp.where(jnp.abs(x) < SERIES, _series(x) * scaled, direct)
        linear = power * scale * jnp.sum(weight * exp_remainder(-log_r, inverse))
        return total + jnp.sum(remainder, axis=0) + linear

    total = jax.lax.fori_loop(0, chunks.astype(jnp.int32), add, jnp.zeros_like(orders))
    log_excess = top + jnp.log(total * spacing) - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.maximum(log_excess, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(log_excess)))


def _series(x: Array) -> Array:
    """Returns ``e^x - 1 - x`` for |x| < SERIES; the first term left out is 0.1^9 2/11! = 5e-17 of the first."""
    x = jnp.clip(x, -SERIES, SERIES)
    total = jnp.zeros_like(x)
    for n in range(10, 2, -1):
        total = (1.0 + total) * (x * (1.0 / n))
    return (1.0 + total) * (x * x * 0.5)
