"""Edges of a Rényi curve: mechanisms that release nothing, and the orders 1 and infinity.

The divergence rises with its order, continuously where it is finite. So that of an order just above 1 bounds the
Kullback-Leibler divergence, order 1, from above, at a relative cost of about the distance; and that of order infinity
is the supremum of the privacy loss, infinite where P has mass that Q lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms import (
    ApproximateDP,
    DiscretePair,
    Gaussian,
    GaussianWithoutReplacement,
    Laplace,
    LaplaceWithoutReplacement,
    Mechanism,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    TruncatedPoissonGaussian,
)
from jaxacct.precision import UNIT_ROUNDOFF, as_float64

ABOVE_ONE = 1 + 2.0**-33
"""The order that stands for order 1."""

SUPREMUM_ERROR = 64 * UNIT_ROUNDOFF
"""Absolute error of a supremum of losses, beside the relative one of every divergence: where it is a difference of two
logarithms of sums, each a few units off."""


def tried_orders(orders: Any) -> Any:
    """Returns the orders that are computed in the place of ``orders``: one above 1 for 1, any for infinity."""
    if isinstance(orders, np.ndarray):
        return np.where(np.isinf(orders), 2.0, np.where(orders == 1, ABOVE_ONE, orders))
    return orders


def supremum(pair: DominatingPair) -> Array:
    """Returns an upper bound on the privacy loss, which is the divergence of order infinity: at least 0, or NaN."""
    # A supremum below 0 is one of rounding: P and Q both sum to one.
    largest = jnp.maximum(pair.loss_range()[1], 0.0) + SUPREMUM_ERROR
    return jnp.where(pair.infinite_mass() > 0, jnp.inf, largest)


def releases_nothing(mechanism: Mechanism) -> Array:
    """Returns whether a mechanism's output is the same for all data, by its parameters: then it costs exactly 0."""
    known = _NOTHING.get(type(mechanism))
    return jnp.asarray(False) if known is None else known(mechanism)


def _is_infinite(noise: Array) -> Array:
    return as_float64(noise) == jnp.inf


def _unsampled(noise: Array, rate: Array) -> Array:
    noise, rate = as_float64(noise), as_float64(rate)
    return ((noise == jnp.inf) & (rate >= 0) & (rate <= 1)) | ((rate == 0) & (noise >= 0))


def _is_equal(mechanism: DiscretePair) -> Array:
    pair = mechanism.dominating_pairs("remove")[0]
    return pair.is_valid() & jnp.all(as_float64(mechanism.p) == as_float64(mechanism.q))


_NOTHING: dict[type[Mechanism], Callable[..., Array]] = {
    PureDP: lambda m: as_float64(m.epsilon) == 0,
    RandomizedResponse: lambda m: as_float64(m.epsilon) == 0,
    ApproximateDP: lambda m: (as_float64(m.epsilon) == 0) & (as_float64(m.delta) == 0),
    DiscretePair: _is_equal,
    Gaussian: lambda m: _is_infinite(m.noise_multiplier),
    Laplace: lambda m: _is_infinite(m.scale),
    RandomAllocation: lambda m: _is_infinite(m.noise_multiplier) & (as_float64(m.batches) >= 1),
    PoissonSubsampledGaussian: lambda m: _unsampled(m.noise_multiplier, m.sampling_rate),
    PoissonSubsampledLaplace: lambda m: _unsampled(m.scale, m.sampling_rate),
    GaussianWithoutReplacement: lambda m: _unsampled(m.noise_multiplier, m.sampling_rate),
    LaplaceWithoutReplacement: lambda m: _unsampled(m.scale, m.sampling_rate),
    TruncatedPoissonGaussian: lambda m: _unsampled(m.noise_multiplier, m.sampling_rate),
}
