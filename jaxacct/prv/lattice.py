"""A measure of the privacy loss on an equidistant mesh, exponentially tilted, with what is known of its error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxacct.arithmetic import roundoff
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class LossLattice:
    """Masses ``p_i = weights[i] exp(log_mass - order y_i)`` at the losses ``y_i = start + i mesh``.

    The weights sum to about 1. Tilting by ``exp(order y)`` makes the part of the distribution that decides delta the
    bulk of the weights, so that what is truncated or rounded away is small relative to delta, however small delta is.

    The error is one number. With T the measure that the weights stand for and E some positive measure of tilted mass at
    most ``slack exp(log_mass)``:

    * upper: T <= weights + E in the order of :mod:`jaxacct.prv`; E holds what was cut off and the rounding.
    * lower: weights <= T + E; E holds rounding alone, for cutting mass off only lowers.

    Attributes:
        weights (n,): tilted masses, nonnegative.
        log_mass, start, mesh: scalars, see above.
        order: the tilt, > 0.
        slack: tilted mass of E over exp(log_mass).
        shift: bound on how far the losses y_i are from those they stand for.
        log_total: upper bound on the log of T's tilted mass.
        is_upper: which of the two readings holds.
    """

    weights: Float[Array, " n"]
    log_mass: Float[Array, ""]
    start: Float[Array, ""]
    mesh: Float[Array, ""]
    order: Float[Array, ""]
    slack: Float[Array, ""]
    shift: Float[Array, ""]
    log_total: Float[Array, ""]
    is_upper: Bool[Array, ""]

    @property
    def points(self) -> int:
        """Number of mesh points, static."""
        return self.weights.shape[-1]

    @property
    def losses(self) -> Float[Array, " n"]:
        """The losses of the mesh points."""
        return self.start + self.mesh * jnp.arange(self.points)


def identity_like(lattice: LossLattice) -> LossLattice:
    """Returns the neutral element of convolution, loss 0 for sure, on the mesh of ``lattice``."""
    zero = jnp.zeros_like(lattice.log_mass)
    return replace(
        lattice,
        weights=jnp.zeros_like(lattice.weights).at[0].set(1.0),
        log_mass=zero, start=zero, slack=zero, shift=zero, log_total=zero,
    )  # fmt: skip


def normalize(lattice: LossLattice) -> LossLattice:
    """Returns the lattice with weights that sum to 1.

    The sum need not be exact: what is divided out of the weights is multiplied into ``log_mass``. The division rounds
    each weight twice, and the logarithm of a sum near 1 by less than 4u; the rounding of ``log_mass`` itself is counted
    where that is used, :data:`jaxacct.prv.evaluate.LOG_MASS_ROUNDINGS`.
    """
    total = jnp.sum(lattice.weights)
    return replace(
        lattice,
        weights=lattice.weights * (1 / total),
        log_mass=lattice.log_mass + jnp.log(total),
        slack=lattice.slack / total * (1 + 4 * roundoff()) + roundoff() * (8 + 4 * jnp.abs(jnp.log(total))),
    )


def coarsen(lattice: LossLattice, odd_stay: Array | bool = False) -> LossLattice:
    """Returns the lattice on every second point, mesh 2h; the upper half of its points is empty then.

    An odd point sends its mass to its two neighbours; an even one, where ``odd_stay``. Which of them stay is free:
    where one point has nearly all of the mass, nothing is lost of it if it is one of those. Let h be the mesh before,
    and odd whatever goes.

    * upper: the share 1/(1+e^-h) goes up, the rest down, which keeps the mean of e^-Y: a spread, so it only rises.
    * lower: odd point i sends u_i up, the rest down, with ``e^h u_i`` at most what the next odd point sends down. Mass
      u_i at y - h and e^h u_i at y + h have the mean e^-y of e^-Y: merged at y they only fall, and whatever else goes
      down falls anyway. Where log p has slope g/(2h) from one odd point to the next, the share a_i = 1/(1+e^(h-g_i))
      makes both sides of the condition equal up to third order, so the loss is O(h^2), as above.
    """
    h, t, n = lattice.mesh, lattice.order, lattice.points
    zero, halves = jnp.zeros(1), (lattice.weights[0::2], lattice.weights[1::2])
    # Points that stay, and those between them.
    stay = jnp.where(odd_stay, jnp.concatenate([zero, halves[1]]), jnp.concatenate([halves[0], zero]))
    odd = jnp.where(odd_stay, halves[0], halves[1])
    start = jnp.where(odd_stay, lattice.start - h, lattice.start)
    following = jnp.concatenate([odd[1:], jnp.zeros(1)])
    preceding = jnp.concatenate([jnp.zeros(1), odd[:-1]])
    # e^-g. Next to nothing at all it is 0 or infinite: a first point's mass may all go up, for none waits for it below.
    fall = jnp.sqrt(preceding / following) * jnp.exp(2 * t * h)
    share = 1 / (1 + jnp.exp(h) * jnp.where(jnp.isnan(fall), 1.0, fall))
    next_share = jnp.concatenate([share[1:], jnp.ones(1)])
    paired = jnp.minimum(share * odd, jnp.exp(-h - 2 * t * h) * (1 - next_share) * following)
    # The factor keeps the condition true after rounding, that of the exponent too: what the next point sends down is
    # its mass less what goes up, and 1 - share of a share as it stands rounds once. The upper share's is slack.
    safe = 1 - roundoff() * (32 + 4 * (h + 2 * t * h))
    # No share is above 1, nor below 0, though its quotient may be rounded beyond.
    upward = jnp.clip(jnp.where(lattice.is_upper, odd / (1 + jnp.exp(-h)), paired * safe), 0.0, odd)
    down, up = jnp.exp(-t * h) * (odd - upward), jnp.exp(t * h) * upward
    weights = stay + jnp.concatenate([down, zero]) + jnp.concatenate([zero, up])
    # exp errs by 4u and by its exponent's rounding, the upper share by 8u, products and sums by 4u.
    slack = lattice.slack + roundoff() * (16 + 2 * t * h) * jnp.exp(t * h)
    shift = lattice.shift + 2 * roundoff() * jnp.where(odd_stay, jnp.abs(lattice.start) + h, 0.0)
    coarse = normalize(replace(lattice, weights=weights, start=start, mesh=2 * h, slack=slack, shift=shift))
    return replace(coarse, weights=jnp.concatenate([coarse.weights, jnp.zeros(n - n // 2 - 1)]))
