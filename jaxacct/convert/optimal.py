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
phi(x) = e^x - 1 - x, and so on. Each bound is then moved by its own rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.convert.roots import root
from jaxacct.cumulants import exp_remainder
from jaxacct.precision import UNIT_ROUNDOFF, log_complement

EPSILON_ROUNDS = 22
"""Evaluations for epsilon. In 100,000 settings (orders 1.01 to 1000, divergences 1e-10 to 50, delta 1e-30 to 0.3) 20
came within 2e-9 of the optimum relative to max(epsilon, 1e-6), and the errors there were all below 1e-14."""

RATIO_ROUNDS = 28
"""Evaluations for delta and for the divergence; more changed nothing in the same settings."""

MARGIN = 32 * UNIT_ROUNDOFF
"""Relative rounding of a term: the functions of XLA are right to five units (exp, expm1, log, log1p above -1/4), a term
is made of at most five of them."""

LARGEST = 600.0
"""Exponent at which e^x is cut off, below float64's 709; what stands beside it is then below e^-500 of it."""


def log_excess_of_power(log_power: Array) -> Array:
    """Returns ``log(e^x - 1)`` for x >= 0."""
    return log_power + jnp.log(-jnp.expm1(-log_power))


def softplus(x: Array) -> Array:
    """Returns ``log(1 + e^x)``, with its relative accuracy at both ends."""
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def log_deficit(y: Array, power: Array) -> Array:
    """Returns ``log(1 - B(t))`` at t = e^-y, y of either sign; ``power`` is b = order - 1."""
    x = power * y
    remainders = [exp_remainder(z, jnp.exp(z) - 1) for z in (jnp.minimum(x, LARGEST), jnp.clip(-y, -LARGEST, LARGEST))]
    near = -x + jnp.log(remainders[0] + power * remainders[1])
    # B itself, where it is small: t^b (1 + b (1 - t)).
    far = log_complement(jnp.exp(-jnp.maximum(x, 1.0)) * (1 - power * jnp.expm1(-jnp.maximum(y, 0.0))))
    # Beyond the cut-off phi(-y) is e^-y, t above 1, and outweighs the rest.
    vast = jnp.log(power) - y - x
    return jnp.where(-y > LARGEST, vast, jnp.where(x > 1, far, near))


def epsilon_at(rdp: Array, order: Array, delta: Array, rounds: int = EPSILON_ROUNDS) -> Array:
    """Returns the least epsilon >= 0 that ``rdp`` at one order implies at ``delta``, rounded up; elementwise.

    By (*) solved for epsilon, t2 = 1/(1 + e^v) with the v where (**) holds. As 1 - t2 >= delta there, v starts from
    log(delta/(1 - delta)). Both ends, t2 = 1 and t2 = 0, are tried as well. Without any ``rounds`` v is what (**) gives
    for 1 - t2 with t2 = 1 in all else: that is the least epsilon to rounding where delta is small, a few per cent above
    it where epsilon is not far above delta.
    """
    power = order - 1
    log_excess = log_excess_of_power(power * rdp)
    log_share = jnp.log(order) + jnp.log(delta)

    def parts(v: Array) -> tuple[Array, Array, Array, Array]:
        y = softplus(v)
        # (t1^b - t2^b) of equality in (*), then b log t1, log(t1/t2), and log(e^epsilon/t1) <= 0.
        log_step = jnp.logaddexp(log_excess, log_deficit(y, power)) - log_share
        log_t1_power = jnp.logaddexp(-power * y, log_step)
        apart = softplus(log_step + power * y) / power
        below = log_below(order) + softplus(-power * y - log_step) + jnp.log(-jnp.expm1(-order * apart))
        return log_step, log_t1_power, apart, jnp.minimum(below, 0.0)

    def imbalance(v: Array) -> Array:
        _, _, apart, below = parts(v)
        return jnp.log(-jnp.expm1(below)) - softplus(-v) - jnp.log(delta) - jnp.log(-jnp.expm1(-apart))

    def bound(v: Array) -> Array:
        log_step, log_t1_power, _, below = parts(v)
        magnitude = 1 + power * rdp + jnp.abs(log_share) + jnp.abs(log_step) + jnp.abs(log_t1_power)
        rounding = magnitude / power + jnp.abs(below) + jnp.abs(log_below(order))
        return log_t1_power / power + below + MARGIN * rounding

    low = jnp.log(delta) - log_complement(delta)
    end = jnp.full_like(low, -LARGEST)
    best = root(imbalance, low, 60 + 60 / power, rounds) if rounds else jnp.maximum(end - imbalance(end), low)
    one, none = jax.vmap(bound)(jnp.stack([best, end]))
    canonne = rdp + log_below(order) - log_share / power
    canonne = canonne + MARGIN * (rdp + jnp.abs(log_below(order)) + (1 + jnp.abs(log_share)) / power)
    # NaN where t1 leaves float64: the other candidates are bounds as well.
    interior = jnp.fmin(jnp.fmin(one, none), canonne)
    certain = rdp + log_complement(delta) + MARGIN * (1 + rdp)
    least = jnp.where(order * delta * (1 - 4 * UNIT_ROUNDOFF) >= 1, jnp.fmin(certain, canonne), interior)
    return jnp.where(rdp == 0, 0.0, jnp.maximum(least, 0.0))


def log_delta_at(rdp: Array, order: Array, epsilon: Array, rounds: int = RATIO_ROUNDS) -> Array:
    """Returns the log of the least delta that ``rdp`` at one order implies at ``epsilon``, rounded up; elementwise.

    By (*), with t2 = t1 e^-x and the x where (**) holds, after so many rounds of a search for it.
    """
    power = order - 1
    log_excess = log_excess_of_power(power * rdp)

    def bound(x: Array) -> tuple[Array, Array]:
        log_t1, log_t2, log_denominator = _pair(x, order, epsilon)
        value = jnp.logaddexp(log_excess, log_deficit(-log_t2, power)) - log_denominator
        magnitude = 1 + power * (rdp + jnp.abs(log_t1) + jnp.abs(log_t2) + epsilon) + jnp.abs(value)
        return value, value + MARGIN * (magnitude + jnp.log(order))

    def imbalance(log_x: Array) -> Array:
        x = jnp.exp(log_x)
        return _imbalance(x, order, epsilon, bound(x)[0])

    interior = bound(_ratio(imbalance, power, rounds))[1]
    canonne = power * (rdp - epsilon + log_below(order)) - jnp.log(order)
    canonne = canonne + MARGIN * (1 + power * (rdp + epsilon + jnp.abs(log_below(order))) + jnp.log(order))
    interior = jnp.fmin(interior, canonne)
    gap = rdp - epsilon + MARGIN * (rdp + epsilon)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(gap, 0.0)))
    alone = certain + jnp.log(order) > MARGIN * (1 + jnp.abs(certain) + jnp.log(order))
    return jnp.where(rdp == 0, -jnp.inf, jnp.minimum(jnp.where(alone, certain + MARGIN, interior), 0.0))


def least_rdp_at(epsilon: Array, delta: Array, order: Array) -> Array:
    """Returns the least divergence of one order that delta(epsilon) = ``delta`` allows, rounded down; elementwise."""
    power = order - 1

    def bound(x: Array) -> Array:
        log_t1, log_t2, log_denominator = _pair(x, order, epsilon)
        log_linear, log_missing = jnp.log(delta) + log_denominator, log_deficit(-log_t2, power)
        # e^(b rdp) - 1 = e^linear - (1 - B), two terms that stand two to one at worst where epsilon is 0.
        excess = jnp.exp(jnp.minimum(log_linear, LARGEST)) - jnp.exp(jnp.minimum(log_missing, LARGEST))
        # Where 1 is nothing beside them, without it.
        vast = log_linear + log_complement(jnp.exp(jnp.minimum(log_missing - log_linear, 0.0)))
        log_moment = jnp.where(log_linear > LARGEST / 2, vast, jnp.log1p(jnp.maximum(excess, 0.0)))
        magnitude = 1 + jnp.abs(log_linear) + power * (jnp.abs(log_t1) + jnp.abs(log_t2) + epsilon)
        relative = jnp.where(log_linear > LARGEST / 2, MARGIN * magnitude, 4 * MARGIN * magnitude * log_moment)
        return jnp.maximum(log_moment - relative, 0.0) / power

    def imbalance(log_x: Array) -> Array:
        return _imbalance(jnp.exp(log_x), order, epsilon, jnp.log(delta))

    interior = bound(_ratio(imbalance, power, RATIO_ROUNDS))
    canonne = epsilon + (jnp.log(delta) + jnp.log(order)) / power - log_below(order)
    canonne = canonne - MARGIN * (epsilon + (1 + jnp.abs(jnp.log(delta)) + jnp.log(order)) / power)
    interior = jnp.fmax(interior, canonne)
    certain = (epsilon - log_complement(delta)) * (1 - MARGIN)
    alone = order * delta * (1 - 4 * UNIT_ROUNDOFF) >= 1
    return jnp.where(delta == 0, 0.0, jnp.maximum(jnp.where(alone, certain, interior), 0.0))


def log_below(order: Array) -> Array:
    """Returns ``log(1 - 1/order)``."""
    return log_complement(1 / order)


def _pair(x: Array, order: Array, epsilon: Array) -> tuple[Array, Array, Array]:
    """Returns log t1, log t2 and ``log(a (t1^b - t2^b))`` of the pair with t2 = t1 e^-x and h(t1) = h(t2)."""
    power = order - 1
    # t1 e^-epsilon = a (1 - e^(-b x)) / (b (1 - e^(-a x))) = 1 + (1 - B(e^-x)) / (b (1 - e^(-a x))).
    log_ratio = log_deficit(x, power) - jnp.log(power) - jnp.log(-jnp.expm1(-order * x))
    log_t1 = epsilon + softplus(log_ratio)
    log_denominator = jnp.log(order) + power * log_t1 + jnp.log(-jnp.expm1(-power * x))
    return log_t1, log_t1 - x, log_denominator


def _imbalance(x: Array, order: Array, epsilon: Array, log_delta: Array) -> Array:
    """Returns the two sides' difference in (**), over t1."""
    log_t1, log_t2, _ = _pair(x, order, epsilon)
    above = -jnp.expm1(epsilon - log_t1) * -jnp.expm1(jnp.minimum(log_t2, LARGEST))
    return above + jnp.exp(jnp.minimum(log_delta, LARGEST)) * jnp.expm1(-x)


def _ratio(imbalance: Callable[[Array], Array], power: Array, rounds: int) -> Array:
    """Returns the x at which ``imbalance(log x)`` vanishes."""
    low = jnp.full_like(power, -40.0)
    return jnp.exp(root(imbalance, low, jnp.log(60 + 60 / power), rounds))
