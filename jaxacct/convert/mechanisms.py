"""Privacy parameters of single mechanisms: (epsilon, delta), zCDP and GDP. Mechanisms without them are refused.

Filters and odometers that track a single number add these up. A subsampled Gaussian has no useful number of this kind:
its zCDP and GDP parameters are those of the Gaussian without sampling. Rényi filters are for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.convert.concentrated import pure_to_zcdp
from jaxacct.convert.renyi import kernel
from jaxacct.dominating_pairs.gaussian_profile import quantile
from jaxacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    PoissonSubsampledLaplace,
    PureDP,
    RandomizedResponse,
    ZeroConcentratedDP,
)
from jaxacct.mechanisms.approximate_dp import log_of_sampled
from jaxacct.mechanisms.mechanism import Relation, check_mechanism, directions
from jaxacct.numerics.arithmetic import arithmetic
from jaxacct.numerics.precision import TINY, as_float64, in_float64, is_zero, kept_positive
from jaxacct.rounded_sum import LEAST_COST


def margin_of_costs() -> float:
    """Returns the relative rounding of a handful of operations, two elementary functions among them."""
    return 8 * arithmetic().function


@in_float64
def mechanism_to_dp(
    mechanism: Mechanism, *, relation: Relation = "add_or_remove"
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    """Returns an (epsilon, delta) of one run, for mechanisms that have a natural one: float64, of its batch shape.

    Pure ones (:class:`.PureDP`, :class:`.RandomizedResponse`, Laplace noise, sampled or discrete) have delta 0;
    :class:`.ApproximateDP` its own.

    Formal guarantee: upper bounds, rounding included, for ``relation``; each run is (epsilon, delta)-DP. For delta = 0
    the privacy loss is at most epsilon surely. ``inf`` for invalid traced parameters.

    Raises ValueError for a mechanism without such a pair (Gaussian noise has a curve of them: give the one to be used
    as :class:`.ApproximateDP`), and where a concrete field or the relation is not valid.

    >>> from jaxacct import Laplace
    >>> tuple(float(value) for value in mechanism_to_dp(Laplace(scale=4.0), relation="replace"))
    (0.5000000000000036, 0.0)
    """
    _check(mechanism, relation)
    if type(mechanism) not in _PURE:
        raise ValueError(
            f"{type(mechanism).__name__} has no epsilon of its own: give ja.ApproximateDP(epsilon, delta) with a pair "
            "that it satisfies (ja.epsilon finds one), or use a Rényi filter or odometer."
        )
    delta = mechanism.delta if isinstance(mechanism, ApproximateDP) else 0.0
    return _dp(_PURE[type(mechanism)](mechanism, _shift(relation)), delta)


@in_float64
def mechanism_to_zcdp(
    mechanism: Mechanism, *, relation: Relation = "add_or_remove"
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    """Returns (rho, delta): one run is delta-approximately rho-zCDP; float64, of the mechanism's batch shape.

    It is 1/(2 s^2) for Gaussian noise, continuous or discrete, and epsilon tanh(epsilon/2) for an epsilon of
    :func:`mechanism_to_dp`, which is less than epsilon^2/2 (:func:`.pure_to_zcdp`). For :class:`.ZeroConcentratedDP` it
    is rho + xi: at orders a above 1, xi + rho a is at most (xi + rho) a.

    Formal guarantee: upper bounds, rounding included, for ``relation``. ``inf`` for invalid traced parameters.

    Raises ValueError for a mechanism without such a number, and where a concrete field or the relation is not valid.

    Source: Bun and Steinke (2016), "Concentrated differential privacy", Proposition 1.6 and Definition 8.1; discrete
    Gaussian, Canonne, Kamath and Steinke (2020), Theorem 4.

    >>> from jaxacct import Gaussian
    >>> tuple(round(float(value), 9) for value in mechanism_to_zcdp(Gaussian(noise_multiplier=2.0)))
    (0.125, 0.0)
    """
    gaussian = _of_gaussian(mechanism, relation)
    if gaussian is not None:
        return gaussian.rho, gaussian.delta
    if isinstance(mechanism, ZeroConcentratedDP):
        return _concentrated(mechanism.rho, mechanism.xi)
    epsilon, delta = mechanism_to_dp(mechanism, relation=relation)
    return pure_to_zcdp(epsilon), delta


@in_float64
def mechanism_to_gdp(mechanism: Mechanism, *, relation: Relation = "add_or_remove") -> Float[Array, " ..."]:
    """Returns mu: one run is mu-GDP; float64, of the mechanism's batch shape.

    It is 1/s for Gaussian noise. For a pure epsilon it is twice the normal quantile of e^epsilon/(1 + e^epsilon): the
    trade-off function of randomized response, which bounds that of every epsilon-DP mechanism from below, has its only
    vertex on the Gaussian one's curve; lying on the convex curve's chords it is above it.

    Formal guarantee: an upper bound, rounding included, for ``relation``. ``inf`` for invalid traced parameters.

    Raises ValueError for a mechanism that is not GDP or whose mu is not known, among them an (epsilon, delta) with
    delta above 0, and where a concrete field or the relation is not valid.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Theorem 1; the vertex as above.

    >>> from jaxacct import Gaussian, PureDP
    >>> [round(float(mechanism_to_gdp(each)), 6) for each in (Gaussian(2.0), PureDP(1.0))]
    [0.5, 1.232035]
    """
    gaussian = _of_gaussian(mechanism, relation)
    if gaussian is not None:
        return gaussian.mu
    if isinstance(mechanism, (ApproximateDP, DiscreteGaussian)):
        raise ValueError(f"{type(mechanism).__name__} is not known to be GDP: use a zCDP or a Rényi filter.")
    return _gdp_of_pure(mechanism_to_dp(mechanism, relation=relation)[0])


def _check(mechanism: Mechanism, relation: Relation) -> None:
    check_mechanism(mechanism)
    directions(mechanism, relation)


def _shift(relation: Relation) -> float:
    """Returns the distance that a query of sensitivity 1 moves between neighbours."""
    return 2.0 if relation == "replace" else 1.0


class _GaussianCost(NamedTuple):
    """The cost of one run with Gaussian noise: rho-zCDP surely (a delta of 0), and mu-GDP."""

    rho: Array
    delta: Array
    mu: Array


def _of_gaussian(mechanism: Mechanism, relation: Relation) -> _GaussianCost | None:
    """Returns the cost of Gaussian noise; None for other mechanisms."""
    _check(mechanism, relation)
    if isinstance(mechanism, Gaussian):
        return _gaussian_cost(_shift(relation), mechanism.noise_multiplier)
    if isinstance(mechanism, DiscreteGaussian):
        return _gaussian_cost(float(mechanism.sensitivity), mechanism.scale)
    return None


@kernel
def _gaussian_cost(shift: Array, scale: Array) -> _GaussianCost:
    ratio = jnp.maximum((shift / scale) ** 2 * (1 + margin_of_costs()), LEAST_COST)
    mu_squared = jnp.where(scale > 0, jnp.where(scale < jnp.inf, ratio, 0.0), jnp.inf)
    return _GaussianCost(mu_squared / 2, jnp.zeros(scale.shape), jnp.sqrt(mu_squared) * (1 + margin_of_costs()))


@kernel
def _concentrated(rho: Array, xi: Array) -> tuple[Array, Array]:
    rho, xi = jnp.broadcast_arrays(as_float64(rho), as_float64(xi))
    total = jnp.maximum((rho + xi) * (1 + margin_of_costs()), LEAST_COST)
    free, valid = is_zero(rho) & is_zero(xi), (rho >= 0) & (xi >= 0)
    return jnp.where(valid, jnp.where(free, 0.0, total), jnp.inf), jnp.zeros(rho.shape)


@kernel
def _noise_ratio(shift: Array, scale: Array) -> Array:
    ratio = jnp.maximum(as_float64(shift) / scale * (1 + margin_of_costs()), TINY)
    return jnp.where(scale > 0, jnp.where(scale < jnp.inf, ratio, 0.0), jnp.inf)


@kernel
def _amplified(epsilon: Array, rate: Array) -> Array:
    """Returns :func:`.log_of_sampled`, rounded up."""
    bound = log_of_sampled(epsilon, rate)
    raised = jnp.maximum(bound * (1 + 8 * margin_of_costs()) + jnp.where(epsilon < 1, 0.0, margin_of_costs()), TINY)
    free = is_zero(epsilon) | is_zero(rate)
    valid = (epsilon >= 0) & ((epsilon < jnp.inf) | free) & (rate >= 0) & (rate <= 1)
    return jnp.where(valid, jnp.where(free, 0.0, jnp.minimum(raised, epsilon)), jnp.inf)


@kernel
def _dp(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    epsilon, delta = jnp.broadcast_arrays(as_float64(epsilon), as_float64(delta))
    valid = (epsilon >= 0) & (delta >= 0) & (delta <= 1)
    return jnp.where(valid, kept_positive(epsilon), jnp.inf), jnp.where(valid, kept_positive(delta), 1.0)


@kernel
def _gdp_of_pure(epsilon: Array) -> Array:
    epsilon = as_float64(epsilon)
    probability = (1 - margin_of_costs()) / (1 + jnp.exp(jnp.minimum(epsilon, 700.0)))
    place, error = jnp.vectorize(quantile)(probability)
    bound = jnp.where(epsilon < 700, 2 * (error - place) * (1 + margin_of_costs()), jnp.inf)
    # Near 0 the rounding above exceeds the value. There tanh(epsilon/2) = 2 Phi(mu/2) - 1, where the left side is at
    # most epsilon/2 and the right side at least mu (1 - mu^2/24)/sqrt(2 pi).
    near = jnp.sqrt(jnp.pi / 2) * epsilon * (1 + 0.07 * epsilon**2) * (1 + margin_of_costs())
    bound = jnp.maximum(jnp.where(epsilon < 0.5, jnp.minimum(bound, near), bound), TINY)
    return jnp.where(is_zero(epsilon), 0.0, jnp.where(epsilon >= 0, bound, jnp.inf))


def _subsampled_laplace(mechanism: PoissonSubsampledLaplace, shift: float) -> Any:
    if shift != 1.0:
        raise ValueError('relation = "replace" has no pure epsilon here for a sampled Laplace: use "add_or_remove".')
    return _amplified(_noise_ratio(1.0, mechanism.scale), mechanism.sampling_rate)


_PURE: dict[type, Any] = {
    PureDP: lambda mechanism, shift: mechanism.epsilon,
    ApproximateDP: lambda mechanism, shift: mechanism.epsilon,
    RandomizedResponse: lambda mechanism, shift: mechanism.epsilon,
    Laplace: lambda mechanism, shift: _noise_ratio(shift, mechanism.scale),
    DiscreteLaplace: lambda mechanism, shift: _noise_ratio(float(mechanism.sensitivity), mechanism.scale),
    PoissonSubsampledLaplace: _subsampled_laplace,
}
"""The pure epsilon of each class, a function of the mechanism and the shift. RandomizedResponse's is the log ratio of
its probabilities, for any number of outcomes."""
