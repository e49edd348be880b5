"""The optimal relation between one Rényi divergence and (epsilon, delta), approached from the safe side.

What a divergence of order a = b + 1 says about delta(epsilon) is decided by two outcomes (Asoodeh, Liao, Calmon, Kosut
and Sankar 2021, "Three variants of differential privacy", Theorem 1, from the joint range of two f-divergences):

    e^(b rdp) >= M e^(b epsilon),   M = min over p in (delta, 1) of
                                        p^a (p - delta)^-b + (1 - p)^a (e^epsilon - p + delta)^-b,

p and q = (p - delta) e^-epsilon the probabilities of the first outcome. Here a p that is not the least gives an M that
is too large: an epsilon or a delta concluded from it would be *too small*. So the minimum is not what is searched.

**The dual.** x^a y^-b is convex and homogeneous of degree one. Its tangent plane at the ratio t lies below it,

    x^a y^-b >= a t^b x - b t^a y   for every t >= 0,

and with t = t1 for the first outcome and t = t2 for the second, with delta = p - e^epsilon q,

    e^(b rdp) >= a t1^b p - b t1^a q + a t2^b (1 - p) - b t2^a (1 - q)
              =  a (t1^b - t2^b) delta + B(t2) + q (h(t1) - h(t2)),

B(t) = a t^b - b t^a <= 1 and h(t) = a e^epsilon t^b - b t^a. *Every* pair t1 > t2 with h(t1) = h(t2) thus proves

    delta <= (e^(b rdp) - B(t2)) / (a (t1^b - t2^b)),                                                       (*)

and solved for e^epsilon = (b/a) (t1^a - t2^a) / (t1^b - t2^b) a bound on epsilon, solved for rdp a lower bound on it.
(P and Q reach these two outcomes by post-processing, {log P/Q > epsilon} and the rest, which raises no divergence and
keeps delta.) A (t1, t2) that is not the best one gives a looser bound, never a wrong one. The problem being convex, the
best pair attains the optimum: t1 = p/q, t2 = (1-p)/(1-q) of the least p, which is where

    (t1 - e^epsilon) (1 - t2) = delta (t1 - t2).                                                             (**)

t2 = 0 is the rule of Canonne, Kamath and Steinke; t2 = 1 with t1 = e^epsilon, where h is largest, is the other branch
of the paper's closed bound. Where a delta >= 1 the least p is 1, and rdp >= epsilon - log(1 - delta) is all there is:
p^a (p - delta)^-b alone is at least its value there.

Everything is formed in logarithms and without cancellation: 1 - B(e^-y) = e^(-b y) (phi(b y) + b phi(-y)) with
phi(x) = e^x - 1 - x, and so on. Each term is moved to its bound's safe side by its own rounding, which :mod:`.logs`
derives; so that the bound is one for every pair that the search may come upon, a bad one too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.convert.logs import LARGEST, log_below, log_deficit_above, log_excess_above, softplus
from jaxacct.convert.roots import root
from jaxacct.precision import log_complement

EPSILON_ROUNDS = 22
"""Evaluations for epsilon. In 100,000 settings (orders 1.01 to 1000, divergences 1e-10 to 50, delta 1e-30 to 0.3) 20
came within 2e-9 of the optimum relative to max(epsilon, 1e-6), and the errors there were all below 1e-14."""

RATIO_ROUNDS = 28
"""Evaluations for delta and for the divergence; more changed nothing in the same settings."""


def margin() -> float:
    """Returns what a bound is rounded by, of the sizes that are added up beside it.

    Each term is within 3 F of its size, and there are a few; what is raised already (:mod:`.logs`) is not in it.
    """
    return 4 * arithmetic().function


def epsilon_at(rdp: Array, order: Array, delta: Array, rounds: int = EPSILON_ROUNDS) -> Array:
    """Returns the least epsilon >= 0 that ``rdp`` at one order implies at ``delta``, rounded up; elementwise.

    By (*) solved for epsilon, t2 = e^-y with the y where (**) holds, looked for by its logarithm: next to order 1 it
    may have any size up to 1/b. As 1 - t2 >= delta there, y starts from -log(1 - delta). Both ends, t2 = 1 and t2 = 0,
    are tried as well. Without any ``rounds`` 1 - t2 is what (**) gives for it with t2 = 1 in all else: that is the
    least epsilon to rounding where delta is small, a few per cent above it where epsilon is not far above delta.

    *Rounding.* t2 is e^-y with the float64 y, exactly. In the step s = log(t1^b - t2^b), epsilon - log of a chord's
    slope of w -> w^(a/b) from w = t2^b - rises, by at most 1/b of it: so s, rounded up, is enough. What remains is the
    evaluation at that s: with z = b y + s, off by 2 u (b y + |s|), epsilon is the sum of log(t2^b + e^s)/b, log(b/a),
    log(1 + e^-z) and log(1 - e^(-a w)), w = log(1 + e^z)/b, each right to a margin of its size and of 1. z's error
    counts by the slopes of log(1 + e^-z) and of log w, at most 1/(1 + z) and 2/(1 + z) for z > 0.
    """
    power = order - 1
    log_excess = log_excess_above(power * rdp)
    log_share = jnp.log(order) + jnp.log(delta)
    logs = jnp.log(order) - jnp.log(delta)

    def parts(y: Array) -> tuple[Array, Array, Array, Array]:
        # (t1^b - t2^b) of equality in (*), then b log t1, log(t1/t2), and log(e^epsilon/t1) <= 0.
        log_numerator = jnp.logaddexp(log_excess, log_deficit_above(y, power))
        log_step = log_numerator - log_share + margin() * (1 + jnp.abs(log_numerator) + logs)
        log_t1_power = jnp.logaddexp(-power * y, log_step)
        z = log_step + power * y
        apart, near = softplus(z) / power, softplus(-z)
        far = jnp.log(-jnp.expm1(-order * apart))
        below = log_below(power) + near + far
        rounding = (1 + jnp.abs(log_t1_power)) / power + 2 + near - far
        rounding = rounding + (power * y + jnp.abs(log_step)) / (1 + jnp.maximum(z, 0.0))
        return log_t1_power, apart, jnp.minimum(below, 0.0), rounding

    def imbalance(log_y: Array) -> Array:
        y = jnp.exp(log_y)
        _, apart, below, _ = parts(y)
        return jnp.log(-jnp.expm1(below)) + jnp.log(-jnp.expm1(-y)) - jnp.log(delta) - jnp.log(-jnp.expm1(-apart))

    def bound(log_y: Array) -> Array:
        log_t1_power, _, below, rounding = parts(jnp.exp(log_y))
        return log_t1_power / power + below + margin() * rounding

    least_y = -log_complement(delta)
    end = jnp.full_like(least_y, -LARGEST)
    if rounds:
        best = root(imbalance, jnp.log(least_y), jnp.log(60 + 60 / power), rounds)
    else:
        log_odds = jnp.maximum(end - imbalance(end), jnp.log(delta) + least_y)
        best = jnp.log(softplus(log_odds))
    one, none = jax.vmap(bound)(jnp.stack([best, end]))
    canonne = rdp + log_below(power) - log_share / power
    canonne = canonne + margin() * (rdp + (1 + logs) / power)
    # NaN where t1 leaves float64: the other candidates are bounds as well.
    interior = jnp.fmin(jnp.fmin(one, none), canonne)
    certain = rdp + log_complement(delta) + margin() * (1 + rdp - log_complement(delta))
    least = jnp.where(order * delta * (1 - 4 * roundoff()) >= 1, jnp.fmin(certain, canonne), interior)
    return jnp.where(rdp == 0, 0.0, jnp.maximum(least, 0.0))


def log_delta_at(rdp: Array, order: Array, epsilon: Array, rounds: int = RATIO_ROUNDS) -> Array:
    """Returns the log of the least delta that ``rdp`` at one order implies at ``epsilon``, rounded up; elementwise.

    By (*), with t2 = t1 e^-x and the x where (**) holds, after so many rounds of a search for it.
    """
    power = order - 1
    log_excess = log_excess_above(power * rdp)

    def bound(x: Array) -> Array:
        pair = _pair(x, order, epsilon)
        log_numerator = jnp.logaddexp(log_excess, pair.log_deficit)
        sizes = 1 + jnp.abs(log_numerator) + jnp.abs(pair.log_denominator)
        return log_numerator - pair.log_denominator + margin() * sizes

    def imbalance(log_x: Array) -> Array:
        x = jnp.exp(log_x)
        return _imbalance(x, order, epsilon, bound(x))

    interior = bound(_ratio(imbalance, power, rounds))
    canonne = power * (rdp - epsilon + log_below(power)) - jnp.log(order)
    canonne = canonne + margin() * (1 + power * (rdp + epsilon) + jnp.log(order))
    interior = jnp.fmin(interior, canonne)
    # If 1/order or more of delta is true, so is rdp >= epsilon - log(1 - delta): delta <= max(1 - e^-gap, 1/order).
    gap = rdp - epsilon + margin() * (rdp + epsilon)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(gap, 0.0)))
    allowance = margin() * (1 + jnp.abs(certain) + jnp.log(order))
    alone = certain + jnp.log(order) > allowance
    return jnp.where(rdp == 0, -jnp.inf, jnp.minimum(jnp.where(alone, certain + allowance, interior), 0.0))


def least_rdp_at(epsilon: Array, delta: Array, order: Array) -> Array:
    """Returns the least divergence of one order that delta(epsilon) = ``delta`` allows, rounded down; elementwise.

    e^(b rdp) - 1 >= delta a (t1^b - t2^b) - (1 - B(t2)), the first rounded down, the second up.
    """
    power = order - 1

    def bound(x: Array) -> Array:
        pair = _pair(x, order, epsilon)
        log_linear = jnp.log(delta) + pair.log_denominator
        log_linear = log_linear - margin() * (1 - jnp.log(delta) + jnp.abs(pair.log_denominator))
        log_missing = pair.log_deficit
        excess = jnp.exp(jnp.minimum(log_linear, LARGEST)) * (1 - margin())
        excess = excess - jnp.exp(jnp.minimum(log_missing, LARGEST)) * (1 + margin())
        # Where 1 is nothing beside them, without it.
        share = jnp.exp(jnp.minimum(log_missing - log_linear, 0.0)) * (1 + margin())
        vast = log_linear + log_complement(jnp.minimum(share, 1.0))
        log_moment = jnp.where(log_linear > LARGEST / 2, vast, jnp.log1p(jnp.maximum(excess, 0.0)))
        return jnp.maximum(log_moment, 0.0) / power * (1 - 2 * margin())

    def imbalance(log_x: Array) -> Array:
        return _imbalance(jnp.exp(log_x), order, epsilon, jnp.log(delta))

    interior = bound(_ratio(imbalance, power, RATIO_ROUNDS))
    canonne = epsilon + (jnp.log(delta) + jnp.log(order)) / power - log_below(power)
    canonne = canonne - margin() * (epsilon + (1 - jnp.log(delta) + jnp.log(order)) / power)
    interior = jnp.fmax(interior, canonne)
    certain = (epsilon - log_complement(delta)) * (1 - margin())
    alone = order * delta * (1 - 4 * roundoff()) >= 1
    return jnp.where(delta == 0, 0.0, jnp.maximum(jnp.where(alone, certain, interior), 0.0))


class _Pair(NamedTuple):
    """A pair with t2 = t1 e^-x and h(t1) = h(t2): log t1, log t2, log(1 - B(t2)) rounded up and log(a (t1^b - t2^b))
    rounded down.
    """

    log_t1: Array
    log_t2: Array
    log_deficit: Array
    log_denominator: Array


def _pair(x: Array, order: Array, epsilon: Array) -> _Pair:
    """Returns the pair of a float64 x, which is exact; t1 and t2 are known to some error.

    log t1 = epsilon + log(1 + e^l), l = log(1 - B(e^-x)) - log b - log(1 - e^(-a x)), is right to d = log(1 + e^l) 32 F
    (2 + |its terms|) + u log t1, as the slope of log(1 + e^l) is at most itself. That moves log(t1^b - t2^b) by b d,
    and 1 - B(t2), whose derivative in log t2 is a b t2^b (t2 - 1), by at most a b t2^b (|1 - t2| + d) d, doubled for
    the second order. Both are put in.
    """
    power = order - 1
    # t1 e^-epsilon = a (1 - e^(-b x)) / (b (1 - e^(-a x))) = 1 + (1 - B(e^-x)) / (b (1 - e^(-a x))).
    terms = log_deficit_above(x, power), jnp.log(power), jnp.log(-jnp.expm1(-order * x))
    above = softplus(terms[0] - terms[1] - terms[2])
    log_t1 = epsilon + above
    error = 32 * arithmetic().function * above * (2 + sum(map(jnp.abs, terms), jnp.zeros_like(x))) + roundoff() * log_t1
    log_t2 = log_t1 - x
    log_apart = jnp.log(-jnp.expm1(-power * x))
    log_denominator = jnp.log(order) + power * log_t1 + log_apart
    sizes = 2 + jnp.log(order) + power * log_t1 - log_apart
    shift = error + roundoff() * jnp.abs(log_t2)
    distance = -jnp.expm1(-jnp.abs(log_t2)) + shift
    log_moved = jnp.log(2 * order * power) + power * log_t2 + jnp.maximum(log_t2, 0.0) + jnp.log(distance * shift)
    deficit = jnp.logaddexp(log_deficit_above(-log_t2, power), log_moved)
    return _Pair(
        log_t1, log_t2, deficit + margin(), log_denominator - power * error - 2 * arithmetic().function * sizes
    )


def _imbalance(x: Array, order: Array, epsilon: Array, log_delta: Array) -> Array:
    """Returns the two sides' difference in (**), over t1."""
    pair = _pair(x, order, epsilon)
    above = -jnp.expm1(epsilon - pair.log_t1) * -jnp.expm1(jnp.minimum(pair.log_t2, LARGEST))
    return above + jnp.exp(jnp.minimum(log_delta, LARGEST)) * jnp.expm1(-x)


def _ratio(imbalance: Callable[[Array], Array], power: Array, rounds: int) -> Array:
    """Returns the x at which ``imbalance(log x)`` vanishes."""
    low = jnp.full_like(power, -40.0)
    return jnp.exp(root(imbalance, low, jnp.log(60 + 60 / power), rounds))
