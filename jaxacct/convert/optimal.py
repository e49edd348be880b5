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

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.convert.logs import (
    LARGEST,
    log_below,
    log_deficit_above,
    log_excess_above,
    log_falling_deficit,
    softplus,
)
from jaxacct.convert.roots import least_near_root
from jaxacct.precision import log_complement

EPSILON_ROUNDS, RATIO_ROUNDS = 22, 28
"""Evaluations for epsilon; for delta and for the divergence. Tightness only. In 100,000 settings (orders 1.01 to 1000,
divergences 1e-10 to 50, delta 1e-30 to 0.3) 20 came within 2e-9 of the least epsilon relative to max(epsilon, 1e-6),
and the errors there were all below 1e-14; more than 28 changed nothing in delta."""

EPSILON_ROUNDS_OF_MANY, RATIO_ROUNDS_OF_MANY, MANY = 10, 15, 6
"""The same where the best of MANY orders or more counts, to be found in half the time. In 1,500 compositions of
subsampled Gaussians, with the accountant's orders, no more than 5e-12 of epsilon was missed, and 1e-12 of delta."""


def margin() -> float:
    """Returns what a bound is rounded by, of the sizes that are added up beside it.

    Each term is within 3 F of its size, and there are a few; what is raised already (:mod:`.logs`) is not in it.
    """
    return 4 * arithmetic().function


def epsilon_at(rdp: Array, order: Array, delta: Array, rounds: int = EPSILON_ROUNDS) -> Array:
    """Returns the least epsilon >= 0 that ``rdp`` at one order implies at ``delta``, rounded up; elementwise.

    By (*) solved for epsilon, t2 = e^-y with the y where (**) holds, looked for by its logarithm: next to order 1 it
    may have any size up to 1/b. As 1 - t2 >= delta there, y starts from -log(1 - delta). The end t2 = 0 is tried too.
    ``delta`` may be a scalar.
    """
    tangents = _Tangents.of(rdp, order, delta)
    low = jnp.broadcast_to(jnp.log(-log_complement(delta)), rdp.shape)
    high = jnp.log(60 + 60 / tangents.power)
    least = least_near_root(lambda log_y: tangents.at(log_y, delta), low, high, rounds)
    raised = rdp * (1 + margin())
    canonne = raised + tangents.base + tangents.lift / tangents.power
    # Where order delta >= 1, what is left of the divergence.
    certain = raised + (margin() + log_complement(delta) * (1 - margin()))
    is_certain = order * (delta * (1 - 8 * roundoff())) >= 1
    least = jnp.minimum(jnp.where(is_certain, certain, least), canonne)
    return jnp.where(rdp == 0, 0.0, jnp.maximum(least, 0.0))


class _Tangents(NamedTuple):
    """What the tangents of each order have in common, whatever y is.

    Attributes:
        order (...): a.
        power (...): b.
        log_excess (...): log(e^(b rdp) - 1), rounded up.
        base (...): log(b/a).
        lift (...): -log(a delta), and the margin of what is added to it.
    """

    order: Array
    power: Array
    log_excess: Array
    base: Array
    lift: Array

    @classmethod
    def of(cls, rdp: Array, order: Array, delta: Array) -> _Tangents:
        power, log_order, log_delta = order - 1, jnp.log(order), jnp.log(delta)
        lift = log_order * (margin() - 1) + (margin() - (1 + margin()) * log_delta)
        return cls(order, power, log_excess_above(power * rdp), log_below(power), lift)

    def at(self, log_y: Array, delta: Array) -> tuple[Array, Array]:
        """Returns the logarithm of the two sides' ratio in (**), and the bound that (*) gives, at t2 = e^-y.

        *Rounding.* t2 is e^-y with the float64 y, exactly. In the step s = log(t1^b - t2^b), epsilon - log of a chord's
        slope of w -> w^(a/b) from w = t2^b - rises, by at most 1/b of it: so s, rounded up, is enough. What remains is
        the evaluation at that s: with z = b y + s, off by 2 u (b y + |s|), epsilon is the sum of log(t2^b + e^s)/b,
        log(b/a), log(1 + e^-z) and log(1 - e^(-a w)), w = log(1 + e^z)/b, each right to a margin of its size and of 1.
        z's error counts by the slopes of log(1 + e^-z) and of log w, at most 1/(1 + z) and 2/(1 + z) for z > 0.
        """
        y = jnp.exp(log_y)
        # (t1^b - t2^b) of equality in (*), then b log t1, log(t1/t2), and log(e^epsilon/t1) <= 0.
        log_numerator = _log_sum(self.log_excess, log_falling_deficit(y, self.power))
        log_step = log_numerator + margin() * jnp.abs(log_numerator) + self.lift
        fall = self.power * y
        z = log_step + fall
        above, beyond = jnp.maximum(z, 0.0), jnp.log1p(jnp.exp(-jnp.abs(z)))  # log(1 + e^z) is their sum
        log_t1_power = jnp.maximum(-fall, log_step) + beyond
        apart, near = (above + beyond) / self.power, beyond + (above - z)
        far = jnp.log(-jnp.expm1(-self.order * apart))
        below = jnp.minimum(self.base + near + far, 0.0)
        rounding = (1 + jnp.abs(log_t1_power)) / self.power + 2 + near - far
        rounding = rounding + (fall + jnp.abs(log_step)) / (1 + above)
        sides = jnp.expm1(below) * jnp.expm1(-y) / -jnp.expm1(-apart)
        return jnp.log(sides) - jnp.log(delta), log_t1_power / self.power + below + margin() * rounding


def _log_sum(first: Array, second: Array) -> Array:
    """Returns ``log(e^first + e^second)`` of numbers of which one at least is finite."""
    return jnp.maximum(first, second) + jnp.log1p(jnp.exp(-jnp.abs(first - second)))


def log_delta_at(rdp: Array, order: Array, epsilon: Array, rounds: int = RATIO_ROUNDS) -> Array:
    """Returns the log of the least delta that ``rdp`` at one order implies at ``epsilon``, rounded up; elementwise.

    By (*), with t2 = t1 e^-x and the x where (**) holds. ``epsilon`` may be a scalar.
    """
    power = order - 1
    log_excess = log_excess_above(power * rdp)

    def tangent(log_x: Array) -> tuple[Array, Array]:
        x = jnp.exp(log_x)
        pair = _pair(x, order, epsilon)
        log_numerator = _log_sum(log_excess, pair.log_deficit)
        sizes = 1 + jnp.abs(log_numerator) + jnp.abs(pair.log_denominator)
        bound = log_numerator - pair.log_denominator + margin() * sizes
        return _imbalance(x, pair, epsilon, bound), bound

    least = least_near_root(tangent, jnp.full_like(power, LEAST_RATIO), jnp.log(60 + 60 / power), rounds)
    canonne = power * (rdp - epsilon + log_below(power)) - jnp.log(order)
    canonne = canonne + margin() * (1 + power * (rdp + epsilon) + jnp.log(order))
    least = jnp.minimum(least, canonne)
    # If 1/order or more of delta is true, so is rdp >= epsilon - log(1 - delta): delta <= max(1 - e^-gap, 1/order).
    gap = rdp - epsilon + margin() * (rdp + epsilon)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(gap, 0.0)))
    allowance = margin() * (1 + jnp.abs(certain) + jnp.log(order))
    alone = certain + jnp.log(order) > allowance
    return jnp.where(rdp == 0, -jnp.inf, jnp.minimum(jnp.where(alone, certain + allowance, least), 0.0))


def least_rdp_at(epsilon: Array, delta: Array, order: Array) -> Array:
    """Returns the least divergence of one order that delta(epsilon) = ``delta`` allows, rounded down; elementwise.

    e^(b rdp) - 1 >= delta a (t1^b - t2^b) - (1 - B(t2)), the first rounded down, the second up.
    """
    power = order - 1

    def tangent(log_x: Array) -> tuple[Array, Array]:
        x = jnp.exp(log_x)
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
        bound = jnp.maximum(log_moment, 0.0) / power * (1 - 2 * margin())
        return _imbalance(x, pair, epsilon, jnp.log(delta)), -bound

    low = jnp.full_like(power, LEAST_RATIO)
    interior = -least_near_root(tangent, low, jnp.log(60 + 60 / power), RATIO_ROUNDS)
    canonne = epsilon + (jnp.log(delta) + jnp.log(order)) / power - log_below(power)
    canonne = canonne - margin() * (epsilon + (1 - jnp.log(delta) + jnp.log(order)) / power)
    interior = jnp.maximum(interior, canonne)
    certain = (epsilon - log_complement(delta)) * (1 - margin())
    alone = order * delta * (1 - 4 * roundoff()) >= 1
    return jnp.where(delta == 0, 0.0, jnp.maximum(jnp.where(alone, certain, interior), 0.0))


LEAST_RATIO = -40.0
"""Least log of log(t1/t2) that is tried. Tightness only."""


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
    deficit = _log_sum(log_deficit_above(-log_t2, power), log_moved)
    return _Pair(
        log_t1, log_t2, deficit + margin(), log_denominator - power * error - 2 * arithmetic().function * sizes
    )


def _imbalance(x: Array, pair: _Pair, epsilon: Array, log_delta: Array) -> Array:
    """Returns the two sides' difference in (**), over t1."""
    above = -jnp.expm1(epsilon - pair.log_t1) * -jnp.expm1(jnp.minimum(pair.log_t2, LARGEST))
    return above + jnp.exp(jnp.minimum(log_delta, LARGEST)) * jnp.expm1(-x)
