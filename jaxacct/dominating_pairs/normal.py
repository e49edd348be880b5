"""Masses and tails of normal distributions, with bounds on their rounding."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array

from jaxacct.arithmetic import roundoff, scaled, with_pair_form


def normal_cells(x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
    """Returns the masses that N(center, scale^2) gives the cells between the monotone points x, with error bounds.

    A narrow cell's mass comes from the density at its middle, right to a few ulps: x[i+1] - x[i] rounds relative to
    itself, and the series in the width stops below 2e-16 relative. The middle is that of the two ends' distances from
    the centre, each of which rounds relative to itself: formed from the ends' sum it would be off by units of
    |center| / scale, however near the centre it lies. A wide one's is the difference of the tails on its own side,
    right to a few ulps of the tail. With differences alone the error of a mesh of n points would be n times
    larger, and tell after 10^6 compositions.
    """
    z = (x - center) / scale
    width = jnp.abs(x[..., 1:] - x[..., :-1]) / scale
    mass, error = _narrow_cell((z[..., 1:] + z[..., :-1]) / 2, width)
    wide, wide_error = _wide_cells(jnp.clip(z, -40.0, 40.0))
    is_narrow = width * (1 + jnp.abs(z[..., 1:] + z[..., :-1]) / 2) < 0.1
    return jnp.where(is_narrow, mass, wide), jnp.where(is_narrow, error, wide_error)


def _wide_cells(z: Array) -> tuple[Array, Array]:
    """Returns the masses between the points, in standard deviations, by differences of tails."""
    tail = lower_tail(-jnp.abs(z))
    # The rounding of z, 2u of itself, moves the tail by a relative 2u |z| (|z| + 1) <= 3 (1 + z^2) u, for the density
    # is at most |z| + 1 times it; ndtr errs by 8 (1 + z^2) u (:data:`jaxacct.elementary.ASSUMED`).
    error = 12 * roundoff() * (1 + z**2) * tail
    # Of a cell about the centre the two tails are what is missing.
    is_right = z > 0
    step = jnp.where(is_right, -tail, tail)
    step = jnp.abs(step[..., 1:] - step[..., :-1])
    mass = jnp.where(is_right[..., 1:] != is_right[..., :-1], 1.0 - step, step)
    return mass, error[..., 1:] + error[..., :-1] + 2 * roundoff() * mass


@with_pair_form
def lower_tail(z: Array) -> Array:
    """Returns Phi(z) for z <= 0, right to 8 (1 + z^2) units of roundoff (:data:`jaxacct.elementary.ASSUMED`)."""
    return ndtr(z)


def _narrow_cell(middle: Array, width: Array) -> tuple[Array, Array]:
    """Returns the normal mass of [middle - width/2, middle + width/2] where width (1 + |middle|) < 0.1.

    phi(m) w (1 + He2(m) w^2/24 + He4(m) w^4/1920 + He6(m) w^6/322560), He the Hermite polynomials; the next term is
    below (w (1 + |m|))^8 / 9 10^7 < 2e-16, 2u. The ends round by 2u of themselves and m by u: by 3u (|m| + 0.05), and
    the density by |m| times that and by u m^2 / 2 more. exp errs by 4u, the width by 2u, the products by 4u.
    """
    m = jnp.where(jnp.isfinite(middle), middle, 0.0)
    w = jnp.where(jnp.isfinite(width), width, 0.0)
    m2, w2 = m**2, w**2
    he2, he4, he6 = m2 - 1, (m2 - 6) * m2 + 3, ((m2 - 15) * m2 + 45) * m2 - 15
    series = 1 + w2 * (he2 / 24 + w2 * (he4 / 1920 + w2 * he6 / 322560))
    mass = jnp.exp(-0.5 * m2) * (w * series * (1 / math.sqrt(2 * math.pi)))
    return mass, roundoff() * (24 + 8 * m2) * mass


def log_upper_tail(z: Array) -> Array:
    """Returns an upper bound on ``log Phi(-z)``, within 0.13 of it for z >= 0 and within log 2 below.

    Sampford (1953): Phi(-z) < phi(z) 4 / (3 z + sqrt(z^2 + 8)) for z > -1. The margin covers the rounding of the rest.
    """
    above, margin = jnp.maximum(z, 0.0), 4 / math.sqrt(2 * math.pi) * (1 + scaled(1e-14))
    square = above**2
    found = jnp.log(margin / (3 * above + jnp.sqrt(square + 8))) - (0.5 - scaled(5e-16)) * square
    return jnp.where(z > 0, found + scaled(1e-14), 0.0)
