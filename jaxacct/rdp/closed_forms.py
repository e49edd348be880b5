"""Divergences of mechanisms that have them in closed form, at every real order."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.cumulants import LARGEST_EXPONENT, exp_remainder
from jaxacct.mechanisms import Gaussian, Laplace, Mechanism, RandomAllocation
from jaxacct.mechanisms.mechanism import Relation, directions
from jaxacct.precision import as_float64
from jaxacct.rdp.random_allocation import random_allocation


def gaussian(mechanism: Gaussian, orders: Array, relation: Relation) -> Array:
    """Returns ``order shift^2 / (2 s^2)``: Mironov (2017), Corollary 3. NaN for no or invalid noise."""
    s = as_float64(mechanism.noise_multiplier)
    shift = 2.0 if "replace" in directions(mechanism, relation) else 1.0
    return orders * (shift / jnp.where((s > 0) & (s < jnp.inf), s, jnp.nan)) ** 2 / 2


def laplace(mechanism: Laplace, orders: Array, relation: Relation) -> Array:
    """Returns the divergence of Laplace noise: Mironov (2017), Table II. NaN for no or invalid noise.

    With t the shift over the scale and b = order - 1 the moment is

        (order e^(b t) + b e^(-order t)) / (2 order - 1) = 1 + (order phi(b t) + b phi(-order t)) / (2 order - 1),

    phi(x) = e^x - 1 - x, a sum that does not cancel.
    """
    scale = as_float64(mechanism.scale)
    shift = 2.0 if "replace" in directions(mechanism, relation) else 1.0
    t = shift / jnp.where((scale > 0) & (scale < jnp.inf), scale, jnp.nan)
    power = orders - 1
    up, down = power * t, -orders * t
    remainders = [exp_remainder(x, jnp.exp(jnp.minimum(x, LARGEST_EXPONENT)) - 1) for x in (up, down)]
    excess = (orders * remainders[0] + power * remainders[1]) / (orders + power)
    # Beyond the largest exponent the second term is nothing beside the first.
    vast = up + jnp.log(orders / (orders + power))
    return jnp.where(up > LARGEST_EXPONENT / 2, vast, jnp.log1p(excess)) / power


CLOSED_FORMS: dict[type[Mechanism], Callable[..., Array]] = {
    Gaussian: gaussian,
    Laplace: laplace,
    RandomAllocation: random_allocation,
}
