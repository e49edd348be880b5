"""Additive noise: what a pair of shifted noises needs of it, and sums over mixtures of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.dominating_pairs.law import Law

if TYPE_CHECKING:
    from jaxacct.dominating_pairs.shifted_noise import ShiftedNoisePair


class Noise(ABC):
    """Noise with a log-concave density, symmetric about 0. Arguments are scalars, but for x.

    One class, in one file: what a pair asks of the density, and what the pair's own methods come to for this noise.
    """

    has_atoms: bool
    """Whether the loss is constant beyond the outermost locations."""

    @abstractmethod
    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        """Returns the log density at x of the noise around ``location``."""

    @abstractmethod
    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the log of the density around ``location`` over that around ``reference``, right to a few ulps."""

    @abstractmethod
    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the derivative of :meth:`log_ratio` in x."""

    @abstractmethod
    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the largest slope of :meth:`log_ratio` in x, in absolute value."""

    @abstractmethod
    def reach(self, scale: Array) -> Array:
        """Returns how far beyond the outermost locations a finite loss may be attained, masses of e^-800 apart."""

    @abstractmethod
    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        """Returns the masses between monotone points x, with error bounds."""

    @abstractmethod
    def log_upper_tail(self, z: Array) -> Array:
        """Returns an upper bound on the log of the mass above z, of noise with scale 1."""

    @abstractmethod
    def log_integral(
        self, pair: ShiftedNoisePair, height: Callable[[Array], Array], order: Array, start: Array | None
    ) -> Array:
        """Returns what :meth:`.ShiftedNoisePair.log_integral` does."""

    @abstractmethod
    def divergence_of_shift(self, t: Array, orders: Array) -> Array:
        """Returns the Rényi divergence of the noise from itself moved by t scales."""

    @abstractmethod
    def law(self, pair: ShiftedNoisePair) -> Law:
        """Returns the law of the pair's loss."""

    def edge(self, pair: ShiftedNoisePair, loss: Array, x: Array) -> Array:
        """Returns a point whose loss is at most ``loss``; x is the one that the inversion came to."""
        return x

    def log_tilted_tail(self, pair: ShiftedNoisePair, order: Array, loss: Array, x: Array) -> Array:
        """Returns an upper bound on ``log E_P[exp(order Y)]`` above x, whose loss is at most ``loss``; inf for none."""
        return jnp.full_like(x, jnp.inf)


def weighted(weights: Array, values: Array) -> Array:
    """Returns each row of ``values`` times its weight; 0 where the weight is."""
    return jax.vmap(lambda w, v: jnp.where(w == 0, 0.0, w * v))(weights, values)


def log_mixture(weights: Array, exponents: Array) -> Array:
    """Returns ``log sum_k weights[k] exp(exponents[k])`` over the first axis; rows without weight do not count."""
    return jax.nn.logsumexp(
        jax.vmap(lambda w, e: jnp.where(w == 0, -jnp.inf, jnp.log(w) + e))(weights, exponents), axis=0
    )


def mean(weights: Array, exponents: Array, log_total: Array, values: Array) -> Array:
    """Returns the mean of ``values`` over a mixture, whose logarithm is given."""
    shares = weighted(weights, jnp.exp(jax.vmap(lambda e: e - log_total)(exponents)))
    return jnp.sum(shares * values, axis=0)
