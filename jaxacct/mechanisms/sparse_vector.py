"""The sparse vector technique: which of many queries is the first above a threshold; pairs by a bound on the profile.

Such a release tells far less than all that it looks at, and the pair counts that. Each part bounds the hockey-stick
divergence of a mechanism by a convex function of e^epsilon, and returns the privacy loss that has this function for its
profile, by the loss's distribution functions:

1. :func:`first_above_pair`: the sparse vector technique with Laplace noise;
2. :func:`worst_tails_pair`: n disjoint events, none of which tells more than a Gaussian mechanism does;
3. the mechanisms :class:`AboveThreshold` and :class:`GaussianAboveThreshold`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.mechanisms.approximate_dp import ROUNDING_UNITS
from jaxacct.mechanisms.finite import FinitePair, LossDistributionPair, mirrored_laws
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_infinite, less_noise
from jaxacct.mechanisms.normal import lower_tail
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import (
    as_float64,
    exact_float64,
    kept_positive,
    leave_scope,
    log_complement,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect_traced

# ----------------------------------------------------------------------------------------------------
# The sparse vector technique with Laplace noise: bulk losses by hazards, the largest by the shift of the threshold.
#
# Give the noisy threshold away. Then query after query ends the run, or not. Let query j do so with probability 1 -
# e^(-H_j) on P and 1 - e^(-H'_j) on Q: with F the distribution function of its noise H = -log F(x) and H' = -log F(x +-
# 1), or a value between these. So H'/H lies in [1/R, R] for R = sup over x of log F(x - 1)/log F(x). Let time pass by
# H_j in query j: P ends the run at rate 1, Q at a rate r in [1/R, R], which was chosen by then. With v_t the ratio of
# what Q and P have left, times u, the divergence at u = e^y is at most the largest value, over all choices of rates, of
#
#     int e^(-t) (1 - v_t r_t)_+ dt + e^(-T) (1 - v_T)_+,  v' = v (1 - r),  v_0 = u.
#
# That is at most g(u) = (R - 1)/(R + 1) u^(-m), m = 1/(R - 1), for u >= 1, and its mirror image 1 - u + u g(1/u) below:
# g(v) >= (1 - v)_+, and e^(-t) g(v_t) falls at least as fast as the integral grows, for
#
#     (1 - v r)_+ - g(v) + v g'(v) (1 - r) <= 0.
#
# The left side is convex in r, so that the ends of [1/R, R] are enough. For v >= 1 it is 0 at r = R, and at r = 1/R it
# is (1 - v/R)_+ - (1 - 1/R) v^(-m), which is 0 at v = 1 and falls up to v = R. For v <= 1 it is 0 at r = 1/R, and at r
# = R it is negative or v R - 1 - (R - 1) v^(m + 1), which rises to 0 at v = 1.
#
# No loss is above y0 = 1/s + 2/b, with s the scale of the threshold's noise and b that of the queries'. So the
# divergence is below the largest convex function that is at most g, is 0 at e^y0, and is its own mirror image: g up to
# u = e^y0/R, and there its tangent, which meets 0 at e^y0. (Let R be e^y0 at most: then it is randomized response.)
# This is the profile of a loss with
#
#     P(Y > y) = R/(R + 1) e^(-m y),  Q(Y > y) = 1/(R + 1) e^(-(m + 1) y),  0 <= y <= y0 - log R,
#
# whose mass beyond lies at y0.
# ----------------------------------------------------------------------------------------------------


def survival_p(loss: Array, parameters: Any) -> Array:
    """Returns P(y < Y)."""
    return _masses_above(loss, parameters, 1.0)


def survival_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(y < Y)."""
    return _masses_above(loss, parameters, -1.0)


def cdf_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y <= y)."""
    return _masses_up_to(loss, parameters, 1.0)


def cdf_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y <= y)."""
    return _masses_up_to(loss, parameters, -1.0)


def _tail_beyond(size: Array, parameters: Any, side: float) -> Array:
    """Returns P(Y > size), or P(Y < -size) for the other side, for sizes in [0, y0)."""
    most, log_ratio = parameters
    # The rates are m and m + 1 of the profile above; beyond y0 - log R the rest of the mass lies at y0.
    rate = 1 / jnp.expm1(log_ratio) + (0.0 if side > 0 else 1.0)
    return jnp.exp(-rate * jnp.clip(size, 0.0, most - log_ratio)) / (1 + jnp.exp(-side * log_ratio))


def _masses_above(loss: Array, parameters: Any, side: float) -> Array:
    most = parameters[0]
    # Below 0 the law is the mirror image of the other one's.
    inside = jnp.where(loss >= 0, _tail_beyond(loss, parameters, side), 1 - _tail_beyond(-loss, parameters, -side))
    return jnp.where(loss >= most, 0.0, jnp.where(loss < -most, 1.0, inside))


def _masses_up_to(loss: Array, parameters: Any, side: float) -> Array:
    most = parameters[0]
    inside = jnp.where(loss >= 0, 1 - _tail_beyond(loss, parameters, side), _tail_beyond(-loss, parameters, -side))
    return jnp.where(loss >= most, 1.0, jnp.where(loss < -most, 0.0, inside))


@functools.partial(jax.jit, inline=True)
def first_above_pair(most: Array, scale: Array) -> LossDistributionPair:
    """Returns the pair for the largest loss and the scale of the queries' noise, both (); it is symmetric."""
    # Cells of x from 0 to 1, one of which has the largest ratio of hazards. Numerator and denominator fall on
    # each cell, so the one at the left end over the other at the right end is a bound: sound for any value, and tighter
    # for more cells.
    cells = 1024
    # H(x - 1) over H(x): it rises up to x = 0, 1 + 1/(b log 2), and falls from x = 1 on, where both are log(1 - w).
    x = jnp.linspace(0.0, 1.0, cells + 1)
    above = jnp.log(2.0) + (1 - x[:-1]) / scale
    below = -log_complement(jnp.exp(-x[1:] / scale) / 2)
    log_ratio = jnp.log(jnp.max(above / below) * (1 + 64 * roundoff()))
    # R is at most e^y0: where the bound on the hazards is larger, the pair is that of randomized response.
    parameters, laws = (most, jnp.minimum(log_ratio, most)), (cdf_p, cdf_q, survival_p, survival_q)
    infinite, error = jnp.zeros_like(most), 32 * roundoff()
    return LossDistributionPair(-most, most, parameters, infinite, error, (-most, most), *laws)


# ----------------------------------------------------------------------------------------------------
# The pair of n disjoint events, each of which tells no more than a Gaussian mechanism does.
#
# Let delta(x) be the delta at epsilon x of a Gaussian mechanism with shift m over noise, its loss being N(m^2/2, m^2)
# under P, and let no event E of n disjoint ones have P(E) - e^x Q(E) above delta(x), nor Q(E) - e^x P(E). Then H(u) =
# sup (P - u Q) is at most n delta(x) for u = e^x >= 1. It is convex with H(0) = 1, and below u = 1 it is 1 - u + u
# H'(1/u), H' being that of the other direction. So it is below the largest convex function with these properties. That
# function is n delta(x) from some x on, its mirror image below -x, and between them a line which touches both. With
# S(x) and T(x) the probabilities of a Gaussian loss above x under P and under Q, delta = S - u T, whose slope in u is
# -T; so the line from (u, n delta) to its mirror image touches where
#
#     (1 - n delta)/(1 + u) = n T,  that is  n (S(x) + T(x)) = 1.
#
# This is the profile of a loss with n times the density of the Gaussian one beyond -x and x, and none between.
# ----------------------------------------------------------------------------------------------------


def worst_survival_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y > y)."""
    return _worst_tail_beyond(loss, parameters, 1.0)


def worst_survival_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y > y)."""
    return _worst_tail_beyond(loss, parameters, -1.0)


def _worst_tail_beyond(loss: Array, parameters: Any, side: float) -> Array:
    reach, count, least = parameters
    above = count * _normal_mass_above(jnp.maximum(loss, least) / reach - side * reach / 2)
    # Below -x the profile is the mirror image of the other direction's: the mass above y is 1 less what lies below y.
    below = 1 - count * _normal_mass_above(jnp.maximum(-loss, least) / reach + side * reach / 2)
    return jnp.clip(jnp.where(loss <= -least, below, above), 0.0, 1.0)


def _normal_mass_above(z: Array) -> Array:
    """Returns the normal law's mass above z."""
    tail = lower_tail(-jnp.abs(z))
    return jnp.where(z >= 0, tail, 1 - tail)


@functools.partial(jax.jit, inline=True)
def worst_tails_pair(reach: Array, count: Array) -> LossDistributionPair:
    """Returns the pair of ``count`` events for the shift over noise ``reach``, both (); it is its own mirror image."""
    # Standard deviations beyond which the Gaussian loss counts as infinite, which only raises delta. Its probability
    # there is below 1e-283.
    farthest = 36.0
    highest = reach * (reach / 2 + farthest)

    def is_likely(x: Array) -> Array:
        return count * (_normal_mass_above(x / reach - reach / 2) + _normal_mass_above(x / reach + reach / 2)) >= 1

    # The lower end of the bracket of x, the loss at which the line touches: n (S + T) is at least 1 there. Eighty
    # halvings leave 2^-80 of its first width; sound for any number.
    least = bisect_traced(is_likely, jnp.zeros_like(highest), highest, steps=80)
    # With z = x/m - m/2 the tails' arguments err by 3u (z + m), and the tails by z + 1 times that; n S is at most 1, so
    # that (1 + z)^2 and 1 + |log S| grow together.
    z = jnp.maximum(least / reach - reach / 2, 0.0)
    error, parameters = 32 * roundoff() * (1 + z) * (1 + z + reach), (reach, count, least)
    infinite, free = worst_survival_p(highest, parameters), (jnp.nan, jnp.nan)
    laws = mirrored_laws(worst_survival_p, worst_survival_q)
    return LossDistributionPair(-highest, highest, parameters, infinite, error, free, *laws)


# ----------------------------------------------------------------------------------------------------
# The mechanisms.
# ----------------------------------------------------------------------------------------------------


MOST_QUERIES = 2**30
"""Largest number of queries of a run with Gaussian noise. A limit of validation, far below 2^53, up to which float64
holds every whole number."""


@register_dataclass
@dataclass(frozen=True)
class AboveThreshold(Mechanism):
    """Sparse vector with Laplace noise: queries, one after the other, until the first above a noisy threshold.

    Noise is drawn for the threshold once, and for each query; the answer tells whether query plus noise reaches
    threshold plus noise. Queries may be chosen by the answers so far. The first "above" ends the run, which costs the
    same however many queries came before: c of them are ``steps=c`` runs, each with a threshold drawn anew.

    Attributes:
        threshold_scale (...): scale of the threshold's noise over the queries' sensitivity, the most that any of them
            moves between the neighbours of the relation in use.
        query_scale (...): scale of each query's noise over the same. At a given cost about twice the threshold's is
            best, or as much for monotone queries. Shapes broadcast.
        monotone: static; whether no query ever falls when an example is added, as counts do. Not used under "replace".

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", "replace".

    Formal guarantee: pure, for any number of queries: with s and b the scales, losses are at most 1/s + 2/b, which is
    approached as queries become many. Most losses are far smaller, also without noise on the threshold, and the pair
    counts that: ten runs with s = 10 and b = 20 cost 1.33 at a delta of 1e-6, where the worst 0.2-DP mechanism costs
    2.00 (:mod:`jaxacct.mechanisms.sparse_vector`). For monotone queries losses are at most 1/s + 1/b when an
    example is added and 1/b when it is removed, which bounds either from below as well; the pair has these two. It is
    not :attr:`~.Mechanism.tight`: of one run delta(0) is 0.0357, and the worst queries that were found had 0.0228.

    Proof. Let the queries' values be a on P and a' on Q, and F the distribution function of a query's noise. With z the
    noisy threshold, P(first above is j) = int p(z) prod_(i<j) F(z - a_i) (1 - F(z - a_j)) dz. Put z - 1 for z: p rises
    by at most e^(1/s); F(z - 1 - a_i) <= F(z - a'_i), for a'_i <= a_i + 1; and a_j exceeds a'_j - 1 by at most 2, so
    that the last factor rises by at most e^(2/b), or e^(1/b) where a <= a'. Where a >= a' no shift is needed: the first
    factors are at most those of Q, and the last one rises by at most e^(1/b). "None above" lacks the last factor.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: Dwork and Roth (2014), "The algorithmic foundations of differential privacy", Theorem 3.23; monotone
    queries, Lyu, Su and Li (2017), "Understanding the sparse vector technique for differential privacy".

    >>> from jaxacct import epsilon
    >>> round(float(epsilon(AboveThreshold(10.0, 20.0), 1, 0.0).upper), 9)
    0.2
    """

    threshold_scale: ArrayLike
    query_scale: ArrayLike
    monotone: bool = field(default=False, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out", "replace")

    def validate(self) -> None:
        validation.check_noise_scale(self.threshold_scale, "threshold_scale")
        validation.check_noise_scale(self.query_scale, "query_scale")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_infinite(self.threshold_scale) & is_infinite(self.query_scale)

    def of_group(self, size: int) -> AboveThreshold:
        return AboveThreshold(less_noise(self.threshold_scale, size), less_noise(self.query_scale, size), self.monotone)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair; for monotone queries one of two losses for each direction."""
        direction_names = directions(self, relation)
        s, b = _noise_scales(self.threshold_scale, self.query_scale)
        if not self.monotone or relation == "replace":
            return (leave_scope(first_above_pair((1 / s + 2 / b) * (1 + 8 * roundoff()), b)),)
        ends = {"remove": (1 / b, 1 / s + 1 / b), "add": (1 / s + 1 / b, 1 / b)}
        return tuple(leave_scope(_two_losses(*ends[direction])) for direction in direction_names)


def _noise_scales(*scales: ArrayLike) -> tuple[Array, ...]:
    """Returns scales of noise in float64, all NaN where one is below 0: sums and squares of inverses would hide it."""
    noises = [kept_positive(exact_float64(scale)) for scale in scales]
    known = functools.reduce(jnp.logical_and, [scale >= 0 for scale in noises])
    return tuple(jnp.where(known, scale, jnp.nan) for scale in noises)


@jax.jit
def _two_losses(most: Array, least: Array) -> FinitePair:
    """Returns the pair with the losses ``most`` and -``least`` alone, both at least 0.

    No law with losses between them has a larger divergence: that is the mean of a convex function of e^loss under Q,
    under which the mean of e^loss is 1.
    """
    most, least = most * (1 + 8 * roundoff()), least * (1 + 8 * roundoff())
    total = jnp.expm1(-most - least)
    high, low = jnp.expm1(-least) / total, jnp.expm1(-most) / total
    p = jnp.stack([high, low * jnp.exp(-least)], axis=-1)
    q = jnp.stack([high * jnp.exp(-most), low], axis=-1)
    losses = jnp.stack([most, -least], axis=-1)
    return FinitePair(p, q, losses, jnp.full_like(p, ROUNDING_UNITS * roundoff()))


@register_dataclass
@dataclass(frozen=True)
class GaussianAboveThreshold(Mechanism):
    """Sparse vector with Gaussian noise: as :class:`AboveThreshold`, for a limited number of queries.

    Attributes:
        threshold_noise (...): standard deviation of the threshold's noise over the queries' sensitivity.
        query_noise (...): standard deviation of each query's noise over the same.
        queries (...): most queries of a run, which ends after them without one above; whole, from 1 to 2**30. Ten times
            as many cost little more. Shapes broadcast.
        monotone: static; as that of :class:`AboveThreshold`.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", "replace".

    Formal guarantee: the pair dominates. With s and b the deviations and k the queries, a run is (epsilon, delta)-DP
    for delta = (k + 1) times that of a Gaussian mechanism with noise (1/s^2 + 4/b^2)^(-1/2), or (1/s^2 + 1/b^2)^(-1/2)
    for monotone queries; and the pair is the least that says no more than this. Not :attr:`~.Mechanism.tight`.

    Proof. Let the first above be j, and fix the noise of the queries before. On P this is the event that the
    threshold's noise is above some m, and that the noise of query j is at least the threshold's plus some c; on Q these
    are at most m + 1, the values being larger by at most 1, and at most c + 1. So the event on P, moved by (1, 2), lies
    within that on Q: the divergence is at most that of two independent normals moved as far, on one event. For monotone
    queries (1, 1) is enough, or (0, 1) the other way. "None above" moves by (1). There are k + 1 events, and the
    divergence of the answers is the sum of theirs. The pair is derived in
    :mod:`jaxacct.mechanisms.sparse_vector`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: the sum is proved above; by Rényi divergences, Zhu and Wang (2020), "Improving sparse vector technique with
    Rényi differential privacy".

    >>> from jaxacct import epsilon
    >>> f"{epsilon(GaussianAboveThreshold(10.0, 20.0, queries=100), 1, 1e-6):.3f}"
    '0.710'
    """

    threshold_noise: ArrayLike
    query_noise: ArrayLike
    queries: ArrayLike
    monotone: bool = field(default=False, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = AboveThreshold.relations
    may_fail: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.threshold_noise, "threshold_noise")
        validation.check_noise_multiplier(self.query_noise, "query_noise")
        validation.check_queries(self.queries, MOST_QUERIES)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_infinite(self.threshold_noise) & is_infinite(self.query_noise)

    def of_group(self, size: int) -> GaussianAboveThreshold:
        noises = less_noise(self.threshold_noise, size), less_noise(self.query_noise, size)
        return GaussianAboveThreshold(*noises, self.queries, self.monotone)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        s, b = _noise_scales(self.threshold_noise, self.query_noise)
        moved = 1.0 if self.monotone and relation != "replace" else 2.0
        reach = jnp.sqrt(1 / s**2 + (moved / b) ** 2) * (1 + 8 * roundoff())
        queries = as_float64(self.queries)
        proper = (queries >= 1) & (queries == jnp.floor(queries)) & (queries <= MOST_QUERIES)
        return (leave_scope(worst_tails_pair(reach, jnp.where(proper, queries + 1, jnp.nan))),)
