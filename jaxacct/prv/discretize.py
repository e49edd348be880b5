"""First discretization of a privacy loss: a measure above it and one below it, on one mesh."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.dominating_pairs import CellMasses, DominatingPair
from jaxacct.precision import TINY, UNIT_ROUNDOFF
from jaxacct.prv.lattice import LossLattice

LEAST_MASS = TINY * 2.0**60
"""Masses above it have all their digits, and so have their parts."""


def window(pair: DominatingPair, order: Array, cumulant: Array, tail: Array) -> tuple[Array, Array]:
    """Returns losses (low, high) outside which the tilted loss has a mass of about ``tail`` on either side.

    Only the placing of the mesh depends on it, no bound: what lies outside is bounded anew by :func:`discretize`.
    """
    center = pair.central_loss()
    log_tail = jnp.log(tail) + cumulant
    infimum, supremum = pair.loss_range()

    def width(is_beyond) -> Array:
        """Bisects the binary logarithm of the distance from the centre."""

        def halve(_, interval):
            low, high = interval
            middle = (low + high) / 2
            beyond = is_beyond(jnp.exp2(middle))
            return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

        return jnp.exp2(
            jax.lax.fori_loop(0, 24, halve, (-80.0 * jnp.ones_like(center), 60.0 * jnp.ones_like(center)))[1]
        )

    up = width(lambda d: pair.log_tail(order, center + d) <= log_tail)
    down = width(lambda d: order * (center - d) + pair.log_head(center - d) <= log_tail)
    return jnp.maximum(center - down, infimum), jnp.minimum(center + up, supremum)


def mesh(pair: DominatingPair, low: Array, high: Array, points: int) -> tuple[Array, Array]:
    """Returns (start, mesh) of a lattice that covers [low, high] and has a point where the bulk balances.

    With a small sampling rate nearly all mass lies within a cell. A lattice point at log P/Q of the cell around it
    represents that mass without first-order loss, from above as from below.
    """
    h = (high - low) / (points - 2)
    center = pair.central_loss()
    bulk = pair.cell_masses(jnp.stack([center - h / 2, center + h / 2]))
    balance = jnp.log(bulk.p[0]) - jnp.log(bulk.q[0])
    balance = jnp.clip(jnp.where(jnp.isfinite(balance), balance, center), center - h / 2, center + h / 2)
    return balance - jnp.ceil((balance - low) / h) * h, h


def discretize(
    pair: DominatingPair, order: Array, start: Array, h: Array, points: int
) -> tuple[LossLattice, LossLattice]:
    """Returns a lattice above the pair's loss and one below it, in the order of :mod:`jaxacct.prv`.

    The losses of both are right to ``shift``: a cell's true edges, and the doubles that stand for the mesh points, are
    off by at most that.
    """
    losses = start + h * jnp.arange(points)
    infinity = jnp.full((1,), jnp.inf)
    cells = pair.cell_masses(jnp.concatenate([-infinity, losses, infinity]))
    largest = jnp.maximum(jnp.abs(losses[0]), jnp.abs(losses[-1]))
    shift = pair.boundary_error(largest) + 4 * UNIT_ROUNDOFF * largest
    raised = _raised(cells, losses, h, shift)
    lowered = _lowered(pair, cells, losses, h)
    # Beyond the last point: above, slack; below, the mass sits on the last point already.
    log_beyond = pair.log_tail(order, losses[-1] - shift) + order * shift
    upper = _tilted(raised, losses, order, h, shift, log_beyond, is_upper=True)
    lower = _tilted(lowered, losses, order, h, shift, upper.log_total, is_upper=False)
    return upper, lower


def _raised(cells: CellMasses, losses: Array, h: Array, shift: Array) -> Float[Array, " points"]:
    """Splits each cell's mass between its two ends so that P- and Q-mass stay ("connect the dots").

    Doroshenko et al. (2022), "Connect the dots: tighter discrete approximations of privacy loss distributions". The
    upper end's part (P - e^y Q) / (1 - e^-h) is rounded up by its own error, the cell's mass by its own; both raise.
    Mass below the first point moves up to it.
    """
    p, q = cells.p[1:-1], cells.q[1:-1]
    p_error, q_error = cells.p_error[1:-1], cells.q_error[1:-1]
    scale = jnp.exp(losses[:-1])
    mass = p + p_error
    error = p_error + scale * q_error + 2 * shift * p
    upward = (p - scale * q + error) / -jnp.expm1(-h)
    # Where e^y Q is 0 times infinity nothing is known of the split: all of it moves up.
    upward = jnp.clip(jnp.where(jnp.isnan(upward), mass, upward), 0.0, mass)
    stays = jnp.concatenate([mass - upward, jnp.zeros(1)])
    return stays + jnp.concatenate([(cells.p[0] + cells.p_error[0])[None], upward])


def _lowered(pair: DominatingPair, cells: CellMasses, losses: Array, h: Array) -> Float[Array, " points"]:
    """Merges the mass just above each point with as much of the mass just below it as balances.

    Cells are split near their middles. The part above a point has P - e^y Q > 0, the part below has less than 0: as
    much of the latter is merged at the point as the former pays for, so that log P/Q of the whole is at least y. The
    rest of the part below goes down to the next point. The split at the middle minus (2g - 1) h^2/24, g the slope of
    log p, makes the balance even up to third order. Everything is rounded down.
    """
    p = cells.p[1:-1]
    log_p = jnp.log(p)
    slope = 0.5 * (jnp.concatenate([log_p[1:], log_p[-1:]]) - jnp.concatenate([log_p[:1], log_p[:-1]])) / h
    offset = jnp.where(jnp.isfinite(slope), -(2 * slope - 1) * h**2 / 24, 0.0)
    middles = losses[:-1] + h / 2 + jnp.clip(offset, -0.4 * h, 0.4 * h)
    scale = jnp.exp(losses)
    # Where the density changes much within a cell the balance is off by its curvature. Moving a split by d changes the
    # balance of both points beside it by d h/2 times the density: each of the two splits takes out half of it.
    below, above = _halves(pair, losses, middles)
    excess = (above.p - scale * above.q) - (scale * below.q - below.p)
    correction = -(excess[1:] + excess[:-1]) / (2 * (above.p[:-1] + below.p[1:]))
    middles = middles + jnp.where(jnp.isfinite(correction), correction, 0.0)
    middles = jnp.clip(middles, losses[:-1] + 0.02 * h, losses[:-1] + 0.98 * h)
    below, above = _halves(pair, losses, middles)
    arithmetic = 8 * UNIT_ROUNDOFF * (1 + jnp.abs(losses))
    surplus = above.p - scale * above.q - (above.p_error + scale * above.q_error + arithmetic * above.p)
    deficit = scale * below.q - below.p + (below.p_error + scale * below.q_error + arithmetic * scale * below.q)
    merged = jnp.where(deficit > 0, jnp.clip(surplus / deficit, 0.0, 1.0), 0.0) * (1 - 4 * UNIT_ROUNDOFF)
    # Near the underflow threshold a surplus may be an artefact of a Q-mass flushed to zero.
    known = (jnp.minimum(above.q, below.q) > LEAST_MASS) & ~jnp.isnan(merged)
    merged = jnp.where(known, merged, 0.0)
    mass_above = jnp.maximum(above.p - above.p_error, 0.0)
    mass_below = jnp.maximum(below.p - below.p_error, 0.0)
    falls = jnp.concatenate([((1 - merged) * mass_below)[1:], jnp.zeros(1)])
    return mass_above + merged * mass_below + falls


def _halves(pair: DominatingPair, losses: Array, middles: Array) -> tuple[CellMasses, CellMasses]:
    """Returns the masses just below and just above each point, cells being split at ``middles``."""
    infinity = jnp.full((1,), jnp.inf)
    boundaries = jnp.stack([losses, jnp.concatenate([middles, infinity])], axis=-1).reshape(-1)
    parts = pair.cell_masses(jnp.concatenate([-infinity, boundaries]))
    below, above = (CellMasses(*(field[side::2] for field in parts)) for side in (0, 1))
    return below, above


def _tilted(
    masses: Array, losses: Array, order: Array, h: Array, shift: Array, log_extra: Array, *, is_upper: bool
) -> LossLattice:
    """Returns the lattice of given masses. ``log_extra``: upper, what lies beyond it; lower, the total's bound."""
    log_weights = jnp.log(masses) + order * losses
    top = jnp.max(log_weights)
    weights = jnp.exp(log_weights - top)
    total = jnp.sum(weights)
    log_mass = top + jnp.log(total)
    weights = weights / total
    # exp and log err by an ulp each of what they are given: of w, relatively, that many times its magnitude.
    magnitude = 4 + jnp.abs(order * losses) + jnp.where(masses > 0, jnp.abs(jnp.log(masses)), 0.0) + jnp.abs(log_mass)
    slack = 4 * UNIT_ROUNDOFF * jnp.sum(weights * magnitude)
    if is_upper:
        # What lies beyond the last point, and masses that float64 flushed to zero, as if all of them sat there.
        flushed = math.log(4 * masses.shape[0] * TINY) + order * losses[-1]
        slack = slack + jnp.exp(log_extra - log_mass) + jnp.exp(flushed - log_mass)
        log_total = log_mass + jnp.log1p(slack) + order * shift
    else:
        log_total = log_extra
    return LossLattice(
        weights=weights, log_mass=log_mass, start=losses[0], mesh=h, order=order, slack=slack, shift=shift,
        log_total=log_total, is_upper=jnp.asarray(is_upper),
    )  # fmt: skip
