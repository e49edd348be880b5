"""Masses and tails of Laplace distributions, with bounds on their rounding."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.precision import UNIT_ROUNDOFF, log_complement


def laplace_cells(x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
    """Returns the masses that Laplace(center, scale) gives the cells between the monotone points x, with error bounds.

    No difference of tails is ever taken. A cell on one side of the centre is ``e^-|z| (1 - e^-w) / 2``, z its end near
    the centre and w its width, which is formed from x[i+1] - x[i] and exact for nearby doubles; a cell around the
    centre is the sum of its two sides. So each mass is right to a few ulps of itself. Infinite ends are allowed.
    """
    z = (x - center) / scale
    start, end = z[:-1], z[1:]
    apart = x[1:] - x[:-1]
    width = jnp.abs(jnp.where(jnp.isnan(apart), 0.0, apart)) / scale  # two infinite ends of one sign: nothing between
    straddles = (start < 0) != (end < 0)
    near = jnp.minimum(jnp.abs(start), jnp.abs(end))
    one_side = -0.5 * jnp.exp(-near) * jnp.expm1(-width)
    around = -0.5 * (jnp.expm1(-jnp.abs(start)) + jnp.expm1(-jnp.abs(end)))
    mass = jnp.where(straddles, around, one_side)
    # z errs by 2u of itself, which exp turns into 2u |z| of the mass; beyond e^-745 there is no mass to err.
    exponent = jnp.where(straddles, 0.0, jnp.minimum(near, 800.0))
    return mass, UNIT_ROUNDOFF * (24 + 4 * exponent) * mass


def laplace_log_upper_tail(z: Array) -> Array:
    """Returns an upper bound on the log of the mass of Laplace(0, 1) above z, above it by 1e-14 (1 + |z|) at most."""
    above = -z - jnp.log(2.0)
    below = log_complement(0.5 * jnp.exp(jnp.minimum(z, 0.0)))
    finite = jnp.where(jnp.isfinite(z), jnp.abs(z), 0.0)
    return jnp.minimum(jnp.where(z > 0, above, below) + 1e-15 * (4 + finite), 0.0)
