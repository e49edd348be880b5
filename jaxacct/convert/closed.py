"""Closed bounds between one Rényi divergence and (epsilon, delta), elementwise and in float64, without their rounding.

Asoodeh, Liao, Calmon, Kosut and Sankar (2021), "Three variants of differential privacy: lossless conversion and
applications", is called "the paper" here.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.convert.logs import LARGEST, log_below, log_excess_above, softplus
from jaxacct.precision import TINY, log_complement


def epsilon_mironov(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies, elementwise; may be negative, of which 0 is to be taken.

    Args:
        rdp (...): Rényi divergences of these orders.
        orders (...): above 1; the three broadcast.
        delta (...): in (0, 1).

    Formal guarantee: an upper bound where ``rdp`` is one, but for its own rounding, which it does not count, and for
    arguments out of range, which it does not check: :func:`jaxacct.convert.rdp_to_epsilon` does both.

    Source: Mironov (2017), "Rényi differential privacy", Proposition 3.

    >>> round(float(epsilon_mironov(0.5, 2.0, 1e-3)), 4)
    7.4078
    """
    return rdp - jnp.log(delta) / (orders - 1)


def log_delta_mironov(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_mironov` solved for delta, for ``epsilon`` (...).

    Formal guarantee, other arguments and source are those of :func:`epsilon_mironov`. May be above 0, of which 0 is to
    be taken.

    >>> log_delta_mironov(0.5, 2.0, 3.5)
    -3.0
    """
    return (orders - 1) * (rdp - epsilon)


def epsilon_improved(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies, never above :func:`epsilon_mironov`, elementwise.

    Formal guarantee and arguments are those of :func:`epsilon_mironov`.

    Source: Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", Proposition 12. The
    same as Balle, Barthe, Gaboardi, Hsu and Sato (2020), "Hypothesis testing interpretations and Rényi differential
    privacy", Theorem 21, and the branch ``g`` of the paper.

    >>> round(float(epsilon_improved(0.5, 2.0, 1e-3)), 4)
    6.0215
    """
    return rdp + log_below(orders - 1) - (jnp.log(delta) + jnp.log(orders)) / (orders - 1)


def log_delta_improved(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_improved` solved for delta, for ``epsilon`` (...).

    Formal guarantee, other arguments and source are those of :func:`epsilon_improved`. May be above 0, of which 0 is to
    be taken.

    >>> round(float(log_delta_improved(0.5, 2.0, 3.5)), 4)
    -4.3863
    """
    return (orders - 1) * (rdp - epsilon + log_below(orders - 1)) - jnp.log(orders)


def epsilon_closed(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies by the paper's bound in two branches, from its ``g`` and ``f``.

    rdp + log(1 - delta) where order delta >= 1, and elsewhere the lesser of :func:`epsilon_improved` and
    log(1 + (e^((order - 1) rdp) - 1)/(order delta))/(order - 1), which is ahead where the divergence is small.
    """
    log_odds = log_excess_above((orders - 1) * rdp) - jnp.log(orders) - jnp.log(delta)
    branches = jnp.minimum(epsilon_improved(rdp, orders, delta), softplus(log_odds) / (orders - 1))
    return jnp.where(orders * delta >= 1, rdp + log_complement(delta), branches)


def log_delta_closed(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_closed` solved for delta."""
    power = orders - 1
    # log of (e^(b rdp) - 1)/(e^(b epsilon) - 1): one logarithm, lest two large ones cancel.
    shares = jnp.expm1(-jnp.maximum(power * rdp, TINY)) / jnp.expm1(-power * epsilon)
    linear = power * (rdp - epsilon) + jnp.log(shares) - jnp.log(orders)
    branches = jnp.fmin(log_delta_improved(rdp, orders, epsilon), linear)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(rdp - epsilon, 0.0)))
    return jnp.where(certain + jnp.log(orders) >= 0, certain, branches)


def least_rdp_g(epsilon: Array, delta: Array, orders: Array) -> Array:
    """Returns the paper's lower bound ``g`` on the divergence: :func:`epsilon_improved` solved for it. May be < 0."""
    return epsilon - log_below(orders - 1) + (jnp.log(orders) + jnp.log(delta)) / (orders - 1)


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
