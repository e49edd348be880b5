"""First discretization of a privacy loss: a measure above it and one below it, on one mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs import CellMasses
from jaxacct.dominating_pairs.surplus import surplus
from jaxacct.precision import TINY


def raised(cells: CellMasses, losses: Array, h: Array, shift: Array) -> Float[Array, " points"]:
    """Splits each cell's mass between its two ends so that P- and Q-mass stay ("connect the dots").

    Doroshenko et al. (2022), "Connect the dots: tighter discrete approximations of privacy loss distributions". Mass
    below the first point moves up to it.

    Let y be the double that stands for a cell's lower end, and z the point that the lattice claims there: above the
    true end b, z - b <= 2 shift, and z >= y. Losses between b and z are raised to z, which leaves Q' >= e^(-2 shift) Q;
    then the share (P - e^z Q')/(1 - e^-h) of the mass must go up, or more. Since e^y Q <= e^shift P it is at most
    (P - e^y Q + (e^(2 shift) - 1) P)/(1 - e^-h). It is rounded up by the errors of P and Q and by its own, the cell's
    mass by its own; both raise.
    """
    p, q = cells.p[1:-1], cells.q[1:-1]
    p_error, q_error = cells.p_error[1:-1], cells.q_error[1:-1]
    mass = (p + p_error) * (1 + 2 * roundoff())
    value, rounding = surplus(p, q, losses[:-1])
    error = p_error + jnp.exp(losses[:-1]) * q_error * (1 + 8 * roundoff()) + jnp.expm1(2 * shift) * mass + rounding
    # The sum of the errors rounds, too, and the quotient by 12u.
    upward = (value + error * (1 + 16 * roundoff())) / -jnp.expm1(-h) * (1 + 16 * roundoff())
    # Where e^y Q is 0 times infinity nothing is known of the split: all of it moves up.
    upward = jnp.clip(jnp.where(jnp.isnan(upward), mass, upward), 0.0, mass)
    # A compiler may leave the product's rounding out of this difference alone: it is not to be below 0.
    stays = jnp.concatenate([jnp.maximum(mass - upward, 0.0), jnp.zeros(1)])
    return stays + jnp.concatenate([(cells.p[0] + cells.p_error[0])[None], upward])


def lowered(bins: CellMasses, losses: Array, relaxed: Array) -> Float[Array, " points"]:
    """Returns masses on the points below the pair's loss: one bin a point, and small flows that balance it.

    Telling only the bin is post-processing, so (P_i, Q_i) of the bins is a pair below the given one, with the losses
    log P_i/Q_i. The bins' edges lie where these come out at the mesh points up to third order. What is left of a bin's
    surplus P_i - e^(y_i) Q_i is balanced by merging: a bin in deficit is joined by as much of the next bin, moved down,
    as pays for it; a bin with a surplus is joined by as much of the bin below, moved up, as it pays for. Whatever is
    gathered at a point has log P/Q >= y_i, so putting it there only lowers. A deficit that cannot be paid falls to the
    point below. Everything is rounded to the safe side; ``relaxed`` is how far the points may lie above their losses.
    """
    p = jnp.maximum(_moved(bins.p, bins.p_error, -1.0), 0.0)
    q = _moved(bins.q, bins.q_error, 1.0)
    points = losses - relaxed

    zero = jnp.zeros(1)
    next_p, next_q = jnp.concatenate([p[1:], zero]), jnp.concatenate([q[1:], zero])
    below_p, below_q = jnp.concatenate([zero, p[:-1]]), jnp.concatenate([zero, q[:-1]])
    # P - e^y Q rounded down, y the point lowered by what it may be off: of each bin, and of the whole next one, and of
    # the whole one below, were they here.
    each = jnp.stack([p, next_p, below_p]), jnp.stack([q, next_q, below_q])
    value, rounding = jax.vmap(surplus, in_axes=(0, 0, None))(*each, points)
    excess, payment, below = value - rounding
    # Down: mass of the next bin needed by this one, at most half of it, and the share of the need that it covers.
    need = jnp.maximum(-excess, 0.0)
    half_paid = 0.5 * jnp.maximum(payment, 0.0)
    share = jnp.clip(_finite(half_paid / need), 0.0, 1.0) * (1 - 4 * roundoff())
    covered = jnp.where(need > 0, share, 1.0)
    asked = jnp.minimum(1.0, _finite(need / half_paid) * (1 + 8 * roundoff()))
    taken_down = jnp.where((need > 0) & (share > 0), 0.5 * next_p * asked, 0.0)
    leaves_down = jnp.concatenate([zero, taken_down[:-1]])

    # Up: mass of the bin below that this one's surplus can lift; what leaves this bin takes its surplus along.
    spare = jnp.maximum(excess, 0.0)
    cost = jnp.maximum(-below, 0.0)

    def lifted(spare: Array) -> Array:
        return below_p * jnp.clip(_finite(spare / cost) * (1 - 8 * roundoff()), 0.0, 0.5)

    most = jnp.concatenate([lifted(spare)[1:], zero])
    stays = jnp.clip(_finite((p - leaves_down - most) / p), 0.0, 1.0) * (1 - 8 * roundoff())
    taken_up = lifted(spare * stays)
    leaves_up = jnp.concatenate([taken_up[1:], zero])
    kept = jnp.maximum(p - leaves_down - leaves_up, 0.0)
    falls = jnp.concatenate([((1 - covered) * kept)[1:], zero])
    # Each sum of four rounds once or twice more.
    return (covered * kept + taken_down + taken_up + falls) * (1 - 8 * roundoff())


def relaxation(bins: CellMasses, largest: Array) -> Array:
    """Returns how far the points below are lowered, so that the rounding of a bin's masses is no deficit at an atom.

    The losses of atoms and what is made of them are right to a few units; masses that are sums bring in their own
    errors, where those are a rounding and not all that there is: up to some 40 units each of P's mass and of Q's.
    """
    errors = _outward(bins.p, bins.p_error) / bins.p + _outward(bins.q, bins.q_error) / bins.q
    known = (bins.p > 0) & (bins.q > 0) & (errors > roundoff() / 4)
    relative = jnp.max(jnp.where(known, errors, 0.0))
    return 64 * roundoff() * largest + jnp.minimum(2 * relative, 256 * roundoff())


def _outward(mass: Array, error: Array) -> Array:
    """Returns what a mass is moved by to count its error: that, and the rounding of the move where there is one."""
    return error + jnp.where(error > roundoff() / 4 * mass, 2 * roundoff() * mass, 0.0)


def _moved(mass: Array, error: Array, side: float) -> Array:
    """Returns a mass moved to ``side`` by its error and by what was flushed to zero, where they are any part of it.

    Elsewhere it stays as it is: a sum with next to nothing is rounded, and to nearest only in float64. Where what is
    flushed counts the rounding, at most four times as much, is added to it, with some to spare.
    """
    moved = jnp.where(error > roundoff() / 4 * mass, mass + side * _outward(mass, error), mass)
    flushed = 4 * TINY
    return jnp.where(flushed > roundoff() / 4 * moved, moved + side * (8 * flushed), moved)


def balanced_edges(p: Array, losses: Array, h: Array) -> Array:
    """Returns edges between the mesh points such that bins of an exponential density balance.

    With density e^(-x u/h) times the weight 1 - e^-u, that is u e^(-u/2) up to third order, the bin from a to a + h has
    its balance at a = 1/x - 1/(e^x - 1) below the point, in units of h, where x includes h/2. So it is about where the
    width h of cells changes, too, and nearly elsewhere.
    """
    log_p = jnp.log(p) - (jnp.log(h) if jnp.ndim(h) else 0.0)

    def across(values: Array) -> tuple[Array, Array]:
        """Returns the entries after each, and before."""
        return jnp.concatenate([values[1:], values[-1:]]), jnp.concatenate([values[:1], values[:-1]])

    after, before = across(log_p)
    # From the middle of the cell before to that of the cell after, over h.
    growth = (after - before) / (1 + sum(across(h)) / (2 * h) if jnp.ndim(h) else 2.0)
    x = jnp.clip(jnp.where(jnp.isnan(growth), 0.0, h / 2 - growth), -50.0, 50.0)
    apart = jnp.where(jnp.abs(x) < 0.05, 1.0, x)
    below = jnp.where(jnp.abs(x) < 0.05, 0.5 - x / 12 + x**3 / 720, 1 / apart - 1 / jnp.expm1(apart))
    # Where cells become narrower a bin takes no more of the wider one than of its own: for what it would lack mass of
    # the next bin would have to come down, while a surplus, as the bin before then has, lifts what is below it.
    return losses[:-1] + h - (jnp.minimum(h, across(h)[0]) if jnp.ndim(h) else h) * below


def _finite(values: Array) -> Array:
    return jnp.where(jnp.isfinite(values), values, 0.0)
