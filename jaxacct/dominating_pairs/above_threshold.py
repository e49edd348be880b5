"""Dominating pairs of mechanisms that release one event among many, by bounds on their whole privacy profile.

Each part bounds the hockey-stick divergence of a mechanism by a convex function of e^epsilon, and returns the privacy
loss that has this function for its profile, by the loss's distribution functions:

1. :func:`first_above_pair`: the sparse vector technique with Laplace noise;
2. :func:`worst_tails_pair`: n disjoint events, none of which tells more than a Gaussian mechanism does.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.dominating_pairs.finite import LossDistributionPair
from jaxacct.dominating_pairs.normal import lower_tail
from jaxacct.numerics.arithmetic import roundoff

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

CELLS = 1024
"""Cells of x from 0 to 1 among which the largest ratio of hazards is looked for.

Numerator and denominator fall on each cell, so the one at the left end over the other at the right end is a bound:
sound for any value, and tighter for more cells.
"""


def survival_p(loss: Array, parameters: Any) -> Array:
    """Returns P(y < Y)."""
    return _above(loss, parameters, 1.0)


def survival_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(y < Y)."""
    return _above(loss, parameters, -1.0)


def cdf_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y <= y)."""
    return _up_to(loss, parameters, 1.0)


def cdf_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y <= y)."""
    return _up_to(loss, parameters, -1.0)


def _beyond(size: Array, parameters: Any, side: float) -> Array:
    """Returns P(Y > size), or P(Y < -size) for the other side, for sizes in [0, y0)."""
    most, log_ratio = parameters
    # The rates are m and m + 1 of the profile above; beyond y0 - log R the rest of the mass lies at y0.
    rate = 1 / jnp.expm1(log_ratio) + (0.0 if side > 0 else 1.0)
    return jnp.exp(-rate * jnp.clip(size, 0.0, most - log_ratio)) / (1 + jnp.exp(-side * log_ratio))


def _above(loss: Array, parameters: Any, side: float) -> Array:
    most = parameters[0]
    # Below 0 the law is the mirror image of the other one's.
    inside = jnp.where(loss >= 0, _beyond(loss, parameters, side), 1 - _beyond(-loss, parameters, -side))
    return jnp.where(loss >= most, 0.0, jnp.where(loss < -most, 1.0, inside))


def _up_to(loss: Array, parameters: Any, side: float) -> Array:
    most = parameters[0]
    inside = jnp.where(loss >= 0, 1 - _beyond(loss, parameters, side), _beyond(-loss, parameters, -side))
    return jnp.where(loss >= most, 1.0, jnp.where(loss < -most, 0.0, inside))


@functools.partial(jax.jit, inline=True)
def first_above_pair(most: Array, scale: Array) -> LossDistributionPair:
    """Returns the pair for the largest loss and the scale of the queries' noise, both (); it is symmetric."""
    # H(x - 1) over H(x): it rises up to x = 0, 1 + 1/(b log 2), and falls from x = 1 on, where both are log(1 - w).
    x = jnp.linspace(0.0, 1.0, CELLS + 1)
    above = jnp.log(2.0) + (1 - x[:-1]) / scale
    below = -jnp.log1p(-jnp.exp(-x[1:] / scale) / 2)
    log_ratio = jnp.log(jnp.max(above / below) * (1 + 64 * roundoff()))
    # R is at most e^y0: where the bound on the hazards is larger, the pair is that of randomized response.
    return LossDistributionPair(
        lowest=-most,
        highest=most,
        parameters=(most, jnp.minimum(log_ratio, most)),
        infinite_mass_p=jnp.zeros_like(most),
        value_error=32 * roundoff(),
        atoms=(-most, most),
        cdf_p=cdf_p,
        cdf_q=cdf_q,
        survival_p=survival_p,
        survival_q=survival_q,
    )


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

FARTHEST = 36.0
"""Standard deviations beyond which the Gaussian loss is taken for infinite, which only raises delta.

Its probability there is below 1e-283.
"""

HALVINGS = 80
"""Halvings of the bracket of x, the loss at which the line touches: they leave 2^-80 of its first width."""


def worst_survival_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y > y)."""
    return _worst_beyond(loss, parameters, 1.0)


def worst_survival_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y > y)."""
    return _worst_beyond(loss, parameters, -1.0)


def worst_cdf_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y <= y), by reflection Q(Y > -y)."""
    return _worst_beyond(-loss, parameters, -1.0)


def worst_cdf_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y <= y), by reflection P(Y > -y)."""
    return _worst_beyond(-loss, parameters, 1.0)


def _worst_beyond(loss: Array, parameters: Any, side: float) -> Array:
    reach, count, least = parameters
    above = count * _tail(jnp.maximum(loss, least) / reach - side * reach / 2)
    # Below -x the profile is the mirror image of the other direction's: the mass above y is 1 less what lies below y.
    below = 1 - count * _tail(jnp.maximum(-loss, least) / reach + side * reach / 2)
    return jnp.clip(jnp.where(loss <= -least, below, above), 0.0, 1.0)


def _tail(z: Array) -> Array:
    """Returns the normal law's mass above z."""
    tail = lower_tail(-jnp.abs(z))
    return jnp.where(z >= 0, tail, 1 - tail)


@functools.partial(jax.jit, inline=True)
def worst_tails_pair(reach: Array, count: Array) -> LossDistributionPair:
    """Returns the pair of ``count`` events for the shift over noise ``reach``, both (); it is its own mirror image."""
    highest = reach * (reach / 2 + FARTHEST)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) / 2
        enough = count * (_tail(middle / reach - reach / 2) + _tail(middle / reach + reach / 2)) >= 1
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    # The state is a bracket of x, at whose lower end n (S + T) is at least 1; each step halves it. The lower end is
    # used.
    least = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(highest), highest))[0]
    # With z = x/m - m/2 the tails' arguments err by 3u (z + m), and the tails by z + 1 times that; n S is at most 1, so
    # that (1 + z)^2 and 1 + |log S| grow together.
    z = jnp.maximum(least / reach - reach / 2, 0.0)
    return LossDistributionPair(
        lowest=-highest,
        highest=highest,
        parameters=(reach, count, least),
        infinite_mass_p=worst_survival_p(highest, (reach, count, least)),
        value_error=32 * roundoff() * (1 + z) * (1 + z + reach),
        atoms=(jnp.nan, jnp.nan),
        cdf_p=worst_cdf_p,
        cdf_q=worst_cdf_q,
        survival_p=worst_survival_p,
        survival_q=worst_survival_q,
    )
