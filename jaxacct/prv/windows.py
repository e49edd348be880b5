"""Where the mass of a composition lies, before it is computed: Chernoff bounds from a lattice's own moments.

A cyclic convolution wraps what lies outside its window to wrong places. With kappa(s) = log sum w_i e^(s (y_i - y_0)),
r copies have at most e^(r kappa(s) - s b) of their tilted mass above r y_0 + b for every s > 0, and likewise below it
for s < 0. So the window that loses at most a given tail is known from the moments of what is convolved.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.arithmetic import roundoff
from jaxacct.precision import TINY
from jaxacct.prv.lattice import LossLattice

RATES = 12.0 * 256.0 ** (np.arange(44) / 43)
"""Rates s of the moments, in units of one over the lattice's length.

What fills the window with tails of e^-a each has its best rate at 4 a if it is Gaussian, and above a if it is a few
rare jumps; a is 18 to 70 here. A side with next to no tail needs large ones: a over the rate is left free there. A grid
of ratio 1.14 costs about 1 % of the window.
"""

CELLS = 1024
"""Cells of which the moments are taken, where the lattice has more points.

About a cell's centre e^x <= 1 + x + e^d x^2/2 for |x| <= d (Taylor), so the cell's first three moments bound its part.
A law far narrower than a cell, as one step is on the mesh of all of them, keeps its variance so, to the factor e^d.
"""

BLOCK = 64
"""e^(s y) on a mesh is a product of two short vectors: blocks of this many points, and points within a block."""


def log_moments(lattice: LossLattice) -> Float[Array, " rates"]:
    """Returns upper bounds on kappa at plus and at minus the rates, relative to the lattice's first point."""
    n = lattice.points
    size = max(n // CELLS, 1)
    cells = n // size
    gathered = lattice.weights.reshape(cells, size)
    apart = (np.arange(size) - (size - 1) / 2) / size
    moments = jnp.matmul(gathered, jnp.asarray(np.stack([np.ones(size), apart, apart**2], axis=1)))
    signed = np.concatenate([RATES, -RATES])
    # Growth is measured from the end where it is greatest, so that no factor exceeds 1.
    within = np.where(signed[:, None] > 0, np.arange(BLOCK) - (BLOCK - 1), np.arange(BLOCK))
    blocks = cells // BLOCK
    between = np.where(signed[:, None] > 0, np.arange(blocks) - (blocks - 1), np.arange(blocks)) * BLOCK
    inner, outer = (np.exp(signed[:, None] * places / cells).T for places in (within, between))
    tops = np.maximum(signed, 0.0) * (cells - 1) / cells
    parts = jnp.matmul(moments.T.reshape(3, blocks, BLOCK), jnp.asarray(inner))
    sums = jnp.sum(parts * jnp.asarray(outer)[None], axis=1)
    of_cell = signed / cells
    total = sums[0] + of_cell * sums[1] + of_cell**2 / 2 * np.exp(np.abs(of_cell) / 2) * sums[2]
    # Sums of n terms; of two signs, but the total is more than a quarter of what it is with one. The rates times
    # positions and the logarithm add a few ulps of their magnitude. What float64 flushed to zero is below n times the
    # smallest normal number in each sum, whose factors, of rates up to 3 a cell, sum to 25.
    rounding = roundoff() * (8 * n + 16 * np.abs(signed) + 64)
    centers = tops + signed * (size - 1) / (2 * n)
    return jnp.log(total + 64 * n * TINY) + centers + rounding


def reach(kappa: Float[Array, "... rates"], log_tail: Array, rates: np.ndarray = RATES) -> tuple[Array, Array]:
    """Returns (low, high), in units of the lattice's length, beyond each of which at most e^log_tail lies.

    ``kappa`` (..., rates) is that of the whole sum, at plus and at minus the ``rates``, relative to the sum of the
    first points, below which no sum lies.
    """
    signed = jnp.broadcast_to(jnp.asarray(np.concatenate([rates, -rates])), kappa.shape)
    bounds = (kappa - jnp.expand_dims(jnp.broadcast_to(log_tail, kappa.shape[:-1]), -1)) / signed
    low = jnp.maximum(jnp.max(bounds[..., len(rates) :], axis=-1), 0.0)
    return low, jnp.min(bounds[..., : len(rates)], axis=-1)
