"""The Rényi divergence of an epoch of random allocation.

P/Q is the mean M of t independent X = e^(z/s - 1/(2 s^2)), z standard normal under Q; E[X^k] = e^(k (k-1)/(2 s^2)).

Removing an example. E[M^a] at a whole order a is a! t^-a times the coefficient of x^a in (f(x))^t, f(x) = sum of
E[X^k] x^k / k!. With f = e^x + g the excess H_t = f^t - e^(tx) obeys

    H_2k = (2 e^(kx) + H_k) H_k,        H_k+1 = (e^x + g) H_k + e^(kx) g,

sums of positive terms only, and E[M^a] - 1 is a! t^-a times its coefficient. The logarithm of E[M^a] is convex in a:
between whole orders it is below its chord.

Adding an example. E[M^-b], b = a - 1, is the expectation of a convex function: at most that over the spread law of
:mod:`jaxacct.dominating_pairs.random_allocation`, but for the event that all t copies lie in the tails, which are
spread to 0. As a mean of t terms M has M^-b <= mean of X_j^-b, so that this event adds at most e^(b (b+1)/(2 s^2))
times its probability for t - 1 of them.

Both are at most that of the Gaussian mechanism, a/(2 s^2), by quasi-convexity.

Source: moments, Feldman and Shenfeld (2025), "Privacy amplification by random allocation", section 4.2.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.dominating_pairs.random_allocation import Allocated, allocation_pair
from jaxacct.mechanisms import RandomAllocation
from jaxacct.mechanisms.mechanism import Relation, directions
from jaxacct.precision import UNIT_ROUNDOFF, as_float64

LARGEST_ORDER = 256
"""Orders above cost that of the Gaussian mechanism."""

LOG_FACTORIALS = np.array([math.lgamma(k + 1) for k in range(LARGEST_ORDER + 1)])


def random_allocation(mechanism: RandomAllocation, orders: Array, relation: Relation) -> Array:
    """Returns an upper bound on the divergence of an epoch; NaN for invalid parameters."""
    asked = directions(mechanism, relation)
    valid, law = mechanism.allocated()
    s = jnp.where(valid, as_float64(mechanism.noise_multiplier), 1.0)
    t = jnp.where(valid, as_float64(mechanism.batches), 1.0)
    gaussian = orders * (orders - 1) / (2 * s**2)
    moment = jnp.full_like(orders, -jnp.inf)
    if "remove" in asked:
        moment = jnp.maximum(moment, _removed(s, t, orders))
    if "add" in asked:
        moment = jnp.maximum(moment, _added(law, s, t, orders))
    moment = jnp.where(t == 1, gaussian, jnp.fmin(moment, gaussian))
    return jnp.where(valid, moment, jnp.nan) / (orders - 1)


def _removed(s: Array, t: Array, orders: Array) -> Array:
    """Returns a bound on log E[M^a], NaN for orders above LARGEST_ORDER."""
    k = jnp.arange(LARGEST_ORDER + 1.0, dtype=jnp.float64)
    factorials = jnp.asarray(LOG_FACTORIALS)
    growth = k * (k - 1) / (2 * s**2)
    g = jnp.where(k < 2, -jnp.inf, growth + jnp.log(-jnp.expm1(-jnp.maximum(growth, 1e-300))) - factorials)
    whole = jnp.logaddexp(g, -factorials)
    steps = t.astype(jnp.int32)

    def exponential(count: Array) -> Array:
        return k * jnp.log(count.astype(jnp.float64)) - factorials

    def roundings(*logs: Array) -> Array:
        # Of logs, sums of two of them and one exponential; a sum of n terms rounds n times.
        sizes = [jnp.where(jnp.isfinite(log), jnp.abs(log), 0.0) for log in logs]
        return UNIT_ROUNDOFF * (k + 16 + 8 * jax.lax.cummax(sum(sizes, jnp.zeros_like(factorials))))

    def advance(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        h, error, count, bit = carry
        both = jnp.logaddexp(np.log(2.0) + exponential(count), h)
        h, error, count = _product(h, both), 2 * error + roundings(h, both), 2 * count
        odd = (steps >> (bit - 1)) & 1
        more = jnp.logaddexp(_product(h, whole), _product(exponential(count), g))
        more_error = error + roundings(h, whole) + roundings(exponential(count), g)
        return jnp.where(odd, more, h), jnp.where(odd, more_error, error), count + odd, bit - 1

    bits = jnp.sum(steps >= 2 ** jnp.arange(1, 31, dtype=jnp.int32)).astype(jnp.int32)
    start = g, roundings(g), jnp.int32(1), bits
    h, error, _, _ = jax.lax.while_loop(lambda carry: carry[3] > 0, advance, start)
    scale = factorials - k * jnp.log(t)
    excess = h + scale + error + roundings(h, factorials, k * jnp.log(t))
    # log(1 + e^x): also where e^x overflows.
    moments = jnp.where(k < 2, 0.0, jnp.logaddexp(excess, 0.0))
    below = jnp.clip(jnp.floor(orders), 1, LARGEST_ORDER - 1).astype(jnp.int32)
    share = orders - below
    between = moments[below] * (1 - share) + moments[below + 1] * share
    return jnp.where(orders <= LARGEST_ORDER, between, jnp.nan)


def _product(one: Array, other: Array) -> Array:
    """Returns the logs of the coefficients of a product of polynomials, from the logs of theirs."""
    n, k = np.indices((LARGEST_ORDER + 1, LARGEST_ORDER + 1))
    terms = jnp.where(k <= n, one[k] + other[np.maximum(n - k, 0)], -jnp.inf)
    top = jnp.max(terms, axis=1)
    level = jnp.where(top > -jnp.inf, top, 0.0)
    return level + jnp.log(jnp.sum(jnp.exp(terms - level[:, None]), axis=1))


def _added(law: Allocated, s: Array, t: Array, orders: Array) -> Array:
    """Returns a bound on log E[M^-b]."""
    b = orders - 1
    pair = allocation_pair(law, jnp.asarray(True), removes=False)
    moment = pair.cumulant(b)
    # Masses are right to eta, which is one of the moment's distance from 1, a sum of positive terms. Values are right
    # to theta: m^-b - 1 + b (m - 1), whose mean that is, changes by at most theta b |m - m^-b|.
    y, q = jnp.log(law.law.values[1:]), law.law.masses[1:]
    distance = b[:, None] * jnp.abs(y)[None] + jnp.abs(y)[None]
    largest = jnp.maximum(y[None], -b[:, None] * y[None])
    logs = jnp.log(q)[None] + largest + jnp.log(-jnp.expm1(-jnp.maximum(distance, 1e-300)))
    change = law.theta * b * jnp.exp(jax.nn.logsumexp(logs, axis=1) - moment)
    moment = moment * (1 + 2 * law.law.eta) + 2 * change
    log_tails = (t - 1) * jnp.log(law.in_tails * 1.000001) + b * (b + 1) / (2 * s**2)
    return jnp.logaddexp(moment, log_tails)
