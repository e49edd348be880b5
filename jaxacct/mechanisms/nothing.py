"""Which mechanisms release nothing: their output has the same law for all neighbours, and so every cost of them is 0.

That is a property of the parameters and not of a computed cost, which may be 0 by underflow: fields are compared bit
for bit (:func:`.precision.is_zero`). Nothing of a mechanism whose other fields are invalid is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from jaxacct.mechanisms.approximate_dp import ApproximateDP, PureDP
from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian
from jaxacct.mechanisms.laplace import Laplace, PoissonSubsampledLaplace
from jaxacct.mechanisms.mixture import GaussianMixture
from jaxacct.mechanisms.protocol import Mechanism
from jaxacct.mechanisms.random_allocation import RandomAllocation
from jaxacct.mechanisms.randomized_response import RandomizedResponse
from jaxacct.mechanisms.truncated import TruncatedPoissonGaussian
from jaxacct.mechanisms.without_replacement import GaussianWithoutReplacement, LaplaceWithoutReplacement
from jaxacct.precision import exact_float64, is_zero


def releases_nothing(mechanism: Mechanism) -> Bool[Array, " ..."]:
    """Returns whether a mechanism's output has nothing to do with the data; False where that is not known.

    Inside the float64 scope; of the mechanism's batch shape.
    """
    known = _NOTHING.get(type(mechanism))
    return jnp.asarray(False) if known is None else known(mechanism)


def _none(cost: ArrayLike) -> Array:
    return is_zero(exact_float64(cost))


def _drowned(noise: ArrayLike) -> Array:
    return exact_float64(noise) == jnp.inf


def _sampled(noise: ArrayLike, rate: ArrayLike) -> Array:
    noise, rate = exact_float64(noise), exact_float64(rate)
    return ((noise == jnp.inf) | is_zero(rate)) & (noise >= 0) & (rate >= 0) & (rate <= 1)


_NOTHING: dict[type, Callable[[Any], Array]] = {
    PureDP: lambda m: _none(m.epsilon),
    ApproximateDP: lambda m: _none(m.epsilon) & _none(m.delta),
    RandomizedResponse: lambda m: _none(m.epsilon),
    Gaussian: lambda m: _drowned(m.noise_multiplier),
    GaussianMixture: lambda m: _drowned(m.noise_multiplier),
    Laplace: lambda m: _drowned(m.scale),
    PoissonSubsampledGaussian: lambda m: _sampled(m.noise_multiplier, m.sampling_rate),
    PoissonSubsampledLaplace: lambda m: _sampled(m.scale, m.sampling_rate),
    TruncatedPoissonGaussian: lambda m: _sampled(m.noise_multiplier, m.sampling_rate) & _none(m.overflow_probability),
    GaussianWithoutReplacement: lambda m: _sampled(m.noise_multiplier, m.sampling_rate),
    LaplaceWithoutReplacement: lambda m: _sampled(m.scale, m.sampling_rate),
    RandomAllocation: lambda m: _drowned(m.noise_multiplier),
}
