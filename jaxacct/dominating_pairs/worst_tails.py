"""The pair of what tells by one of n events, each of which tells no more than a Gaussian mechanism does.

Let delta(x) be that of a Gaussian mechanism with shift m over noise, its loss being N(m^2/2, m^2) under P, and let no
event E of n disjoint ones have P(E) - e^x Q(E) above delta(x), nor Q(E) - e^x P(E). Then H(u) = sup (P - u Q) is at
most n delta(x) for u = e^x >= 1. It is convex, H(0) = 1, and below u = 1 that of the other way, 1 - u + u H'(1/u):
so it is below the largest convex function that keeps to all of this. That is n delta(x) from some x on, its mirror
image below -x, and between them a line which touches both. With S(x) and T(x) the probabilities of a Gaussian loss
above x under P and under Q, delta = S - u T, whose slope in u is -T; so the line from (u, n delta) to its mirror image
touches where

    (1 - n delta)/(1 + u) = n T,  that is  n (S(x) + T(x)) = 1.

This is the profile of a loss with n times the density of the Gaussian one beyond -x and x, and none between.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs.loss_distribution import LossDistributionPair
from jaxacct.dominating_pairs.normal import lower_tail

FARTHEST = 36.0
"""Deviations beyond which the Gaussian loss, of a probability below 1e-283, is taken for infinite."""

HALVINGS = 80


def survival_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y > y), where n T is left of it below -x."""
    return _beyond(loss, parameters, 1.0)


def survival_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y > y)."""
    return _beyond(loss, parameters, -1.0)


def cdf_p(loss: Array, parameters: Any) -> Array:
    """Returns P(Y <= y), by reflection Q(Y > -y)."""
    return _beyond(-loss, parameters, -1.0)


def cdf_q(loss: Array, parameters: Any) -> Array:
    """Returns Q(Y <= y), by reflection P(Y > -y)."""
    return _beyond(-loss, parameters, 1.0)


def _beyond(loss: Array, parameters: Any, side: float) -> Array:
    reach, count, least = parameters
    above = count * _tail(jnp.maximum(loss, least) / reach - side * reach / 2)
    # Below -x what is above is 1 less the other direction's mirror image.
    below = 1 - count * _tail(jnp.maximum(-loss, least) / reach + side * reach / 2)
    return jnp.clip(jnp.where(loss <= -least, below, above), 0.0, 1.0)


def _tail(z: Array) -> Array:
    """Returns the normal law's mass above z."""
    tail = lower_tail(-jnp.abs(z))
    return jnp.where(z >= 0, tail, 1 - tail)


@functools.partial(jax.jit, inline=True)
def worst_tails_pair(reach: Array, count: Array) -> LossDistributionPair:
    """Returns the pair of ``count`` events for the shift over noise ``reach``; both (). Its own mirror image."""
    highest = reach * (reach / 2 + FARTHEST)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) / 2
        enough = count * (_tail(middle / reach - reach / 2) + _tail(middle / reach + reach / 2)) >= 1
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    least = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(highest), highest))[0]
    # With z = x/m - m/2 the tails' arguments err by 3u (z + m), and the tails by z + 1 times that; n S is at most 1, so
    # that (1 + z)^2 and 1 + |log S| grow together.
    z = jnp.maximum(least / reach - reach / 2, 0.0)
    return LossDistributionPair(
        lowest=-highest,
        highest=highest,
        parameters=(reach, count, least),
        infinite_mass_p=survival_p(highest, (reach, count, least)),
        value_error=32 * roundoff() * (1 + z) * (1 + z + reach),
        atoms=(jnp.nan, jnp.nan),
        cdf_p=cdf_p,
        cdf_q=cdf_q,
        survival_p=survival_p,
        survival_q=survival_q,
    )
