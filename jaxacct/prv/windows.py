"""Where the mass of a composition lies, before it is computed: Chernoff bounds from a lattice's own moments.

A cyclic convolution wraps what lies outside its window to wrong places. With kappa(s) = log sum w_i e^(s (y_i - y_0)),
r copies have at most e^(r kappa(s) - s b) of their tilted mass above r y_0 + b for every s > 0, and likewise below it
for s < 0. So the window that loses at most a given tail is known from the moments of what is convolved.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.precision import TINY, UNIT_ROUNDOFF
from jaxacct.prv.lattice import LossLattice

RATES = 12.0 * 256.0 ** (np.arange(44) / 43)
"""Rates s of the moments, in units of one over the lattice's length.

What fills the window with tails of e^-a each has its best rate at 4 a if it is Gaussian, and above a if it is a few
rare jumps; a is 18 to 70 here. A side with next to no tail needs large ones: a over the rate is left free there. A grid
of ratio 1.14 costs about 1 % of the window.
"""

BLOCK = 64
"""e^(s y) on a mesh is a product of two short vectors: blocks of this many points, and points within a block."""


def log_moments(lattice: LossLattice) -> Float[Array, " rates"]:
    """Returns upper bounds on kappa at plus and at minus the rates, relative to the lattice's first point."""
    n = lattice.points
    signed = np.concatenate([RATES, -RATES])
    # Growth is measured from the end where it is greatest, so that no factor exceeds 1.
    within = np.where(signed[:, None] > 0, np.arange(BLOCK) - (BLOCK - 1), np.arange(BLOCK))
    between = np.where(signed[:, None] > 0, np.arange(n // BLOCK) - (n // BLOCK - 1), np.arange(n // BLOCK)) * BLOCK
    inner, outer = (np.exp(signed[:, None] * places / n).T for places in (within, between))
    parts = jnp.matmul(lattice.weights.reshape(-1, BLOCK), jnp.asarray(inner))
    total = jnp.sum(parts * jnp.asarray(outer), axis=0)
    tops = np.maximum(signed, 0.0) * (n - 1) / n
    # Sums of n nonnegative terms; the rates times positions and the logarithm add a few ulps of their magnitude.
    # A sum that float64 flushed to zero is below n times the smallest normal number.
    rounding = UNIT_ROUNDOFF * (2 * n + 4 * np.abs(signed) + 64)
    return jnp.log(jnp.maximum(total, 2 * n * TINY)) + tops + rounding


def reach(kappa: Float[Array, "... rates"], log_tail: Array, rates: np.ndarray = RATES) -> tuple[Array, Array]:
    """Returns (low, high), in units of the lattice's length, beyond each of which at most e^log_tail lies.

    ``kappa`` (..., rates) is that of the whole sum, at plus and at minus the ``rates``, relative to the sum of the
    first points, below which no sum lies.
    """
    signed = jnp.broadcast_to(jnp.asarray(np.concatenate([rates, -rates])), kappa.shape)
    bounds = (kappa - jnp.expand_dims(jnp.broadcast_to(log_tail, kappa.shape[:-1]), -1)) / signed
    low = jnp.maximum(jnp.max(bounds[..., len(rates) :], axis=-1), 0.0)
    return low, jnp.min(bounds[..., : len(rates)], axis=-1)
