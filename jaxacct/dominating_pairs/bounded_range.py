"""The pair of everything whose privacy losses span no more than a range."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxacct.arithmetic import arithmetic
from jaxacct.dominating_pairs.loss_distribution import LossDistributionPair
from jaxacct.precision import as_float64
from jaxacct.pytrees import register_dataclass

VALUE_ERROR = 2.0**-50
"""Bound on the CDFs' errors: quotients of two expm1, of an argument that is rounded once; 8 ulps of at most one."""


def cdf_p(loss: Array, epsilon: Array) -> Array:
    """Returns P(Y <= y) = (e^((y+e)/2) - 1) / (e^e - 1); like the survival functions, without cancellation at its 0."""
    return _share(loss + epsilon, epsilon)


def survival_p(loss: Array, epsilon: Array) -> Array:
    """Returns P(Y > y) = (1 - e^((y-e)/2)) / (1 - e^-e)."""
    return _rest(loss - epsilon, epsilon)


def cdf_q(loss: Array, epsilon: Array) -> Array:
    """Returns Q(Y <= y), by reflection P(Y >= -y)."""
    return _rest(-loss - epsilon, epsilon)


def survival_q(loss: Array, epsilon: Array) -> Array:
    """Returns Q(Y > y), by reflection P(Y < -y)."""
    return _share(epsilon - loss, epsilon)


def _share(above: Array, epsilon: Array) -> Array:
    # For a large range both are divided by e^epsilon.
    x = jnp.clip(above, 0.0, 2 * epsilon)
    return jnp.exp((x - 2 * epsilon) / 2) * jnp.expm1(-x / 2) / jnp.expm1(-epsilon)


def _rest(below: Array, epsilon: Array) -> Array:
    return jnp.expm1(jnp.clip(below, -2 * epsilon, 0.0) / 2) / jnp.expm1(-epsilon)


@register_dataclass
@dataclass(frozen=True)
class BoundedRangePair(LossDistributionPair):
    """The law of the loss whose hockey-stick divergence is the supremum of those of all losses with values in a range.

    Let the losses of a mechanism, for two given neighbours, lie in [t - e, t]. Of these laws the one with two values is
    the largest in convex order, t with the P-mass (1 - e^(t-e))/(1 - e^-e), so that both sum to one; t is in [0, e].
    The divergence at a threshold y, (P - e^y Q)(t) for t - e <= y <= t, is largest at t = (e + y)/2:

        delta(y) = (1 - e^((y-e)/2))^2 / (1 - e^-e) for |y| <= e.

    A supremum of profiles is one (it is convex in e^y), and this one's loss has in [-e, e] the P-density
    e^(y/2) / (4 sinh(e/2)), and e^(-y/2) / (4 sinh(e/2)) under Q: it is its own mirror image.

    Rényi divergences are bounded apart from it, as the worst t may be chosen for each order: with b = a - 1,
    A = 1 - e^(-a e) and B = e^-e (1 - e^(-b e)) the moment is (A e^(b t) - B e^(a t)) / (1 - e^-e), largest at
    e^t = b A / (a B), where it is A e^(b t) / (a (1 - e^-e)). It is also at most that of Hoeffding's lemma, a e^2/8.
    """

    def divergence(self, orders: Array) -> Array:
        e, b = as_float64(self.highest), orders - 1
        log_a = jnp.log(-jnp.expm1(-orders * e))
        t = jnp.log(b) - jnp.log(orders) + log_a + e - jnp.log(-jnp.expm1(-b * e))
        terms = t, (log_a - jnp.log(orders) - jnp.log(-jnp.expm1(-e))) / b
        sizes = 4 + e + (jnp.abs(log_a) + jnp.log(orders) + jnp.abs(jnp.log(-jnp.expm1(-e)))) * (1 + 1 / b)
        sizes = sizes + jnp.abs(jnp.log(b)) + jnp.abs(jnp.log(-jnp.expm1(-b * e)))
        exact = sum(terms, 16 * arithmetic().function * sizes)
        bound = jnp.minimum(jnp.fmin(exact, orders * e**2 / 8), e)
        return jnp.where((e > 0) & (e < jnp.inf), bound, jnp.nan)


def bounded_range_pair(epsilon: ArrayLike) -> BoundedRangePair:
    """Returns the pair of a range; batch axes stay in front."""
    e = as_float64(epsilon)
    free = jnp.full_like(e, jnp.nan)
    zero = jnp.zeros_like(e)
    laws = cdf_p, cdf_q, survival_p, survival_q
    return BoundedRangePair(-e, e, e, zero, zero + VALUE_ERROR, (free, free), *laws)
