"""What the central limit theorem asks of a trade-off function: moments of the privacy loss under both distributions.

For f = T(P, Q) the slope at a uniform point is distributed like dQ/dP under P, so with Y = log P/Q the functionals of
Theorem 7 in Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", are

    kl = E_P[Y],  kl~ = E_Q[-Y],  kappa_n = E_P|Y|^n,  kappa~_n = E_Q|Y|^n.

As E_P[e^-Y] = 1 the first is E_P[Y - 1 + e^-Y], of one sign, so it does not cancel where P and Q are close; likewise
the second. The quadrature is over cells of the loss, whose P- and Q-masses every pair knows. Put a cell's mass at the
loss log p/q, or at the cell's two ends such that both masses stay: for a convex function of e^-Y the first gives less
than the truth and the second more (Jensen). Two parts of the one and one of the other, Simpson's weights, leave an
error of fourth order in the width where the density is smooth. Atoms are summed as they are.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import scaled
from jaxacct.dominating_pairs import DiscreteGaussianPair, DominatingPair, FinitePair
from jaxacct.dominating_pairs.moments import LARGEST_EXPONENT, exp_remainder

CELLS = 24
"""Cells for each halving of the distance from the bulk, on either side."""

DISTANCES = np.exp2(np.arange(-60 * CELLS, 20 * CELLS + 1) / CELLS)
"""Distances of the cells' edges from the bulk: from below any loss that counts to above it."""


class Functionals(NamedTuple):
    """Moments of one loss, scalars; the second of each pair under Q. ``inf`` where they are not finite."""

    kl: Array
    reverse_kl: Array
    kappa2: Array
    reverse_kappa2: Array
    kappa3: Array
    reverse_kappa3: Array


@functools.singledispatch
def functionals_of(pair: Any) -> Functionals:
    """Returns the functionals of a dominating pair. To be called inside the float64 scope.

    Their relative error is below 1e-6 for the mechanisms of this package (tests/gdp/test_clt.py); nothing is proved.
    """
    edges = _edges(pair)
    cells = pair.cell_masses(edges)
    low, high = edges[:-1], edges[1:]
    ratio = jnp.log(cells.p) - jnp.log(cells.q)
    # A cell that one of the two does not fill, or the rounding of whose masses tells, stays within its ends.
    middle = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, (low + high) / 2), low, high)
    width = high - low
    upward = jnp.clip(-jnp.expm1(low - middle) / -jnp.expm1(-jnp.where(width > 0, width, 1.0)), 0.0, 1.0)
    share = jnp.where(width > 0, upward, 0.0)
    losses = jnp.concatenate([middle, low, high])
    p, q = cells.p / 3, cells.q / 3
    # At the upper end P has the share ``upward`` of p, and Q as much over e^(high - middle) of q.
    share_q = jnp.clip(share * jnp.exp(middle - high), 0.0, 1.0)
    p_masses = jnp.concatenate([2 * p, p * (1 - share), p * share])
    q_masses = jnp.concatenate([2 * q, q * (1 - share_q), q * share_q])
    return _of_points(pair, p_masses, q_masses, losses)


@functionals_of.register
def _(pair: FinitePair) -> Functionals:
    p, q, losses, _ = pair._atoms()
    missing = (pair.missing_mass() > 0) | (pair.infinite_mass() > 0)
    found = _of_points(pair, p, q, losses)
    return Functionals(*(jnp.where(missing, jnp.inf, value) for value in found))


@functionals_of.register
def _(pair: DiscreteGaussianPair) -> Functionals:
    return functionals_of(pair._finite())


def _of_points(pair: DominatingPair, p: Array, q: Array, losses: Array) -> Functionals:
    magnitude = jnp.abs(losses)

    def mean(masses: Array, values: Array) -> Array:
        return jnp.sum(jnp.where(masses > 0, masses * values, 0.0))

    def divergence(masses: Array, loss: Array, opposite: Array) -> Array:
        # masses e^-loss is the other's mass: where e^-loss overflows it is all there is.
        back = jnp.minimum(-loss, LARGEST_EXPONENT)
        values = jnp.where(-loss > 30.0, opposite - masses * (1 - loss), masses * exp_remainder(back, jnp.expm1(back)))
        return jnp.sum(jnp.where((masses > 0) | (opposite > 0), values, 0.0))

    found = Functionals(
        divergence(p, losses, q),
        divergence(q, -losses, p),
        *(mean(masses, magnitude**n) for n in (2, 3) for masses in (p, q)),
    )
    known = pair.is_valid() & (pair.infinite_mass() == 0)
    return Functionals(*(jnp.where(known & ~jnp.isnan(value), value, jnp.inf) for value in found))


def _edges(pair: DominatingPair) -> Array:
    """Returns the cells' edges: narrow about the bulk, wide far out, and close about both ends of a bounded loss."""
    center = pair.central_loss()
    distances = jnp.asarray(DISTANCES)
    ends = jnp.clip(jnp.stack(pair.loss_range()), -DISTANCES[-1], DISTANCES[-1])
    # An atom at an end of the range gets a cell without width.
    margin = scaled(1e-12) * (1 + jnp.abs(ends))
    return jnp.sort(
        jnp.concatenate([center - distances, center[None], center + distances, ends - margin, ends + margin])
    )
