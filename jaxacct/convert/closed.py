"""Closed bounds between one Rényi divergence and (epsilon, delta), elementwise and in float64, without their rounding.

Asoodeh, Liao, Calmon, Kosut and Sankar (2021), "Three variants of differential privacy: lossless conversion and
applications", is called "the paper" here.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.convert.optimal import LARGEST, log_below, log_excess_of_power, softplus
from jaxacct.precision import log_complement


def epsilon_mironov(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies: Mironov (2017), Proposition 3."""
    return rdp - jnp.log(delta) / (orders - 1)


def log_delta_mironov(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_mironov` solved for delta."""
    return (orders - 1) * (rdp - epsilon)


def epsilon_improved(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies: Canonne, Kamath and Steinke (2020), Proposition 12.

    The same as Balle, Barthe, Gaboardi, Hsu and Sato (2020), "Hypothesis testing interpretations and Rényi differential
    privacy", Theorem 21, and the branch ``g`` of the paper.
    """
    return rdp + log_below(orders) - (jnp.log(delta) + jnp.log(orders)) / (orders - 1)


def log_delta_improved(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_improved` solved for delta."""
    return (orders - 1) * (rdp - epsilon + log_below(orders)) - jnp.log(orders)


def epsilon_closed(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies by the paper's bound in two branches, from its ``g`` and ``f``.

    rdp + log(1 - delta) where order delta >= 1, and elsewhere the lesser of :func:`epsilon_improved` and
    log(1 + (e^((order - 1) rdp) - 1)/(order delta))/(order - 1), which is ahead where the divergence is small.
    """
    log_odds = log_excess_of_power((orders - 1) * rdp) - jnp.log(orders) - jnp.log(delta)
    branches = jnp.minimum(epsilon_improved(rdp, orders, delta), softplus(log_odds) / (orders - 1))
    return jnp.where(orders * delta >= 1, rdp + log_complement(delta), branches)


def log_delta_closed(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_closed` solved for delta."""
    power = orders - 1
    linear = log_excess_of_power(power * rdp) - log_excess_of_power(power * epsilon) - jnp.log(orders)
    branches = jnp.fmin(log_delta_improved(rdp, orders, epsilon), linear)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(rdp - epsilon, 0.0)))
    return jnp.where(certain + jnp.log(orders) >= 0, certain, branches)


def least_rdp_g(epsilon: Array, delta: Array, orders: Array) -> Array:
    """Returns the paper's lower bound ``g`` on the divergence: :func:`epsilon_improved` solved for it. May be < 0."""
    return epsilon - log_below(orders) + (jnp.log(orders) + jnp.log(delta)) / (orders - 1)


def least_rdp_f(epsilon: Array, delta: Array, orders: Array) -> Array:
    """Returns the paper's lower bound ``f`` on the divergence, for order delta < 1.

    It is epsilon + log((e^epsilon - order delta) ((1 - delta)/(e^epsilon - delta))^order + order delta)/(order - 1).
    """
    power = orders - 1
    scaled = jnp.exp(-epsilon)
    # (e^eps - a d) ((1-d)/(e^eps - d))^a = (1 - a d e^-eps) (1-d)^a (1 - d e^-eps)^-a e^(-b eps)
    log_rest = (
        log_complement(orders * delta * scaled)
        + orders * (log_complement(delta) - log_complement(delta * scaled))
        - power * epsilon
    )
    log_linear = jnp.log(orders) + jnp.log(delta)
    total = jnp.logaddexp(log_rest, log_linear)
    # Both terms sum to nearly one where epsilon is small.
    near = jnp.log1p(jnp.expm1(jnp.minimum(log_rest, 0.0)) + jnp.exp(jnp.minimum(log_linear, LARGEST)))
    return epsilon + jnp.where(jnp.abs(total) < 0.25, near, total) / power
