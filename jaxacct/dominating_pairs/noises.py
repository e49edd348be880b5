"""Kinds of additive noise: what a pair of shifted noises needs of the noise itself."""

from __future__ import annotations

from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.dominating_pairs.laplace import laplace_cells, laplace_log_upper_tail
from jaxacct.dominating_pairs.normal import log_upper_tail, normal_cells


class Noise(Protocol):
    """Noise with a log-concave density, symmetric about 0. Arguments are scalars, but for x."""

    has_atoms: bool
    """Whether the loss is constant beyond the outermost locations."""

    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        """Returns the log density at x of the noise around ``location``."""
        ...

    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the log of the density around ``location`` over that around ``reference``, right to a few ulps."""
        ...

    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the derivative of :meth:`log_ratio` in x."""
        ...

    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the largest slope of :meth:`log_ratio` in x, in absolute value."""
        ...

    def reach(self, scale: Array) -> Array:
        """Returns how far beyond the outermost locations a finite loss may be attained, masses of e^-800 apart."""
        ...

    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        """Returns the masses between monotone points x, with error bounds."""
        ...

    def log_upper_tail(self, z: Array) -> Array:
        """Returns an upper bound on the log of the mass above z, of noise with scale 1."""
        ...


class GaussianNoise:
    """Normal noise; the scale is its standard deviation."""

    has_atoms = False

    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        return -0.5 * ((x - location) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return ((location - reference) / scale) * ((x - (location + reference) / 2) / scale)

    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.full_like(x, (location - reference) / scale**2)

    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.abs(location - reference) / scale**2

    def reach(self, scale: Array) -> Array:
        return 40 * scale

    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        return normal_cells(x, center, scale)

    def log_upper_tail(self, z: Array) -> Array:
        return log_upper_tail(z)


class LaplaceNoise:
    """Laplace noise of density e^(-|x|/scale) / (2 scale)."""

    has_atoms = True

    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        return -jnp.abs(x - location) / scale - jnp.log(2 * scale)

    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return (jnp.abs(x - reference) - jnp.abs(x - location)) / scale

    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return (jnp.sign(x - reference) - jnp.sign(x - location)) / scale

    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.where(location == reference, 0.0, 2 / scale)

    def reach(self, scale: Array) -> Array:
        return jnp.zeros_like(scale)

    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        return laplace_cells(x, center, scale)

    def log_upper_tail(self, z: Array) -> Array:
        return laplace_log_upper_tail(z)


NOISES: dict[str, Noise] = {"gaussian": GaussianNoise(), "laplace": LaplaceNoise()}
