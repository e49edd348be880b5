"""A privacy loss as arrays: a discrete law that dominates it, and one that it dominates.

A composer needs no more of a mechanism than the law of one run's privacy loss as finitely many atoms: losses and P's
masses. A bracket needs two such laws, one on either side of the true one. This module makes them of what a mechanism
knows, with every rounding counted:

1. :class:`Atoms`, the two laws;
2. :func:`atoms_of_cells`, from the masses that P and Q give to cells of the loss;
3. :func:`atoms_of_masses`, from the atoms of a loss that is discrete itself.

Write ``D(eps) = E_P[(1 - e^(eps - Y))+]``, an infinite Y counting 1. It is the hockey-stick divergence of the pair at
eps, and the whole privacy profile. A law *dominates* another where its D is nowhere below the other's; composition
keeps that (Zhu, Dong and Wang 2022, "Optimal accounting of differential privacy via characteristic function", Theorem
10). Two facts are used throughout: D does not fall where mass of P is added, or moves to a larger loss; and it does not
rise where mass is left out, or moves to a smaller one. So losses and masses of the upper law are rounded up, and
those of the lower law down: the numbers that come out are the losses themselves, to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import TINY


class Atoms(NamedTuple):
    """Two discrete laws of one run's privacy loss in one direction: one that dominates it, one that it dominates.

    With D of a pair as in the module, for every eps

        D of the lower law (eps + shift)  <=  D of the pair (eps)  <=  D of the upper law (eps - shift).

    In the lower law whatever the masses leave out of P has the loss -inf, which counts for nothing.

    Attributes:
        losses (2, n): losses, in nats, finite, and non-decreasing within a row; row 0 above, row 1 below.
        masses (2, n): P's masses. Above their sum may exceed 1 by rounding; below it is at most 1. An atom of mass 0
            may have any loss.
        infinite (2,): P's mass of infinite losses: at least and at most. 1 above where nothing is known.
        shift (): bound, in nats, on the absolute error of every loss.
    """

    losses: Float[Array, "2 n"]
    masses: Float[Array, "2 n"]
    infinite: Float[Array, 2]
    shift: Array


def atoms_of_cells(
    edges: Float[Array, " m"],
    p: Float[Array, " m-1"],
    p_error: Float[Array, " m-1"],
    q: Float[Array, " m-1"],
    q_error: Float[Array, " m-1"],
    edge_error: ArrayLike = 0.0,
    infinite: tuple[ArrayLike, ArrayLike] = (0.0, 0.0),
    valid: ArrayLike = True,
) -> Atoms:
    """Returns the laws of a loss of which the masses of cells are known; as many atoms as edges.

    The outcomes are split into cells such that the loss of an outcome in cell i is between the i-th and the next edge.
    Nothing is asked of the edges' spacing: a cell may be an atom, between two edges that are equal.

    Args:
        edges (m,): non-decreasing losses, to ``edge_error``. The first may be -inf and the last inf; if not, they bound
            all finite losses.
        p (m-1,): P's masses of the cells, of finite losses alone.
        p_error (m-1,): bounds on their absolute errors.
        q: Q's masses.
        q_error: bounds on their absolute errors.
        edge_error: bound on the absolute errors of the edges, () or (m,).
        infinite: bounds on P's mass of infinite losses, from above and from below.
        valid: whether all this describes a pair; if not, the upper law is an infinite loss, and the lower one nothing.

    *Above* ("connect the dots": Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, "Connect the dots: tighter
    discrete approximations of privacy loss distributions", section 4). Let a cell have masses P and Q, and all of its
    losses in [a, b]. With x = e^(-Y), in which the integrand (1 - e^eps x)+ is convex, moving all of P's mass to a and
    b such that E_P[x; cell] = Q is kept does not lower D: it replaces a convex function by its chord. The share that
    moves to b is

        (1 - e^(a - y)) / (1 - e^(a - b)),   y = log P/Q.

    Known are A <= a from below, places a' >= a and b' >= b, P' >= P and y' >= y. Raise each loss below a' to a': this
    does not lower D, all losses are in [a', b'], and the cell's Q-mass, E_P[x], falls by a factor of at least e^(A -
    a'). So the share that moves to b' is at most that of the formula with e^(A - y') above the line and e^(a' - b')
    below. A share, or P', that is larger yet moves or adds mass upwards. Where a' >= b', or the formula is not a
    number, all mass moves to b'.

    *Below.* Telling the cell alone is post-processing: so the pair of all (P, Q) is dominated, and so it is with any
    P' <= P and losses that are at most log(P/Q), or at most a, as y is not below a.

    *Rounding.* With u the unit of roundoff, and 8u the error of log, log1p and expm1 (:attr:`.Arithmetic.function`):

    * places: 2u of the edge covers the rounding of its sum with an error, which is raised by 4u of itself for its own;
    * masses and their errors: a sum or a difference of p and its error rounds by u of itself. Numbers flushed to zero
      are below TINY, which is added to each error;
    * y: where P/Q - 1 = x is within 1/4 of 0, P - Q is exact (Sterbenz; a unit where :attr:`.Arithmetic.of_close` says
      so), and x right to 2u; log(1 + x) moves by at most 1.2 times that, relative to itself, and errs by 8u: 11u of
      itself. Elsewhere P/Q is right to u, and its logarithm, at least 0.22 in size, to 8u and 4.6u of itself. 16u are
      taken. P and Q are at least TINY and hardly above 1, so P/Q is a number; if it is flushed, no number is taken for
      y above, and -inf below;
    * shares: y - A and b' - a' round by u of themselves, and so do -expm1 of them, which errs by 8u besides: 12u for
      both, above and below the line. 32u are taken for the ratio and the product with P'. What stays is a difference
      that rounds by u of itself, and an edge's sum does.
    """
    u = roundoff()
    doubt = jnp.where(jnp.isfinite(edges), (edge_error + 2 * u * jnp.abs(edges) + TINY) * (1 + 4 * u), 0.0)
    least_edge, place = edges - doubt, edges + doubt
    # P from above and from below, and Q from below and from above.
    side = jnp.asarray([[1.0], [-1.0]], p.dtype)
    mass = jnp.maximum((p + side * (p_error + TINY)) * (1 + 2 * u * side), 0.0)
    other = (q - side * (q_error + TINY)) * (1 - 2 * u * side)
    other = jnp.maximum(other, jnp.asarray([[0.0], [TINY]], p.dtype))
    y = _log_ratio(mass, other)
    y = y + side * (16 * u * jnp.abs(y))
    low, high, bottom = place[:-1], place[1:], least_edge[:-1]
    risen, width = (jnp.abs(jnp.expm1(jnp.minimum(less, 0.0))) for less in (bottom - y[0], low - high))
    share = risen / width * (1 + 32 * u)
    up = mass[0] * jnp.where(share <= 1, share, 1.0)
    stays = (mass[0] - up) * (1 + 4 * u)
    whole = (jnp.pad(stays, (0, 1)) + jnp.pad(up, (1, 0))) * (1 + 2 * u)
    is_endless = place == jnp.inf
    beyond = jnp.sum(jnp.where(is_endless, whole, 0.0)) * (1 + 4 * u)
    loss = jnp.maximum(y[1], bottom)
    counts = jnp.isfinite(loss) & (mass[1] > TINY)
    below = jnp.pad(jnp.where(counts, jnp.stack([loss, mass[1]]), 0.0), ((0, 0), (0, 1)))
    losses = jnp.stack([place, below[0]])
    masses = jnp.stack([jnp.where(jnp.abs(place) == jnp.inf, 0.0, whole), below[1]])
    return atoms_in_order(losses, masses, (infinite[0] + beyond, infinite[1]), valid)


def places_about(low: Array, high: Array, outwards: ArrayLike, inwards: ArrayLike, count: int) -> Array:
    """Returns increasing places of a noise around two centres, at equal distances but for the middle two.

    Those two may be farther from one another, where there is little mass between the centres.

    Args:
        low (): the lower centre.
        high: the higher one.
        outwards (): distance beyond the centres up to which there are places.
        inwards: the same between them, or inf.
        count: number of places, even; static.
    """
    ends = low - outwards, high + outwards
    length = ends[1] - ends[0]
    some = jnp.minimum(length, 2 * (inwards + outwards))
    rising = jnp.asarray(np.linspace(0.0, 1.0, count), length.dtype)
    return jnp.where(rising < 0.5, ends[0] + some * rising, ends[1] - some * (1 - rising))


def _log_ratio(p: Array, q: Array) -> Array:
    """Returns log(p/q) for p, q >= 0, right to 16 units of itself (:func:`atoms_of_cells`)."""
    x = (p - q) / q
    is_near = jnp.abs(x) < 0.25
    return jnp.where(is_near, jnp.log1p(jnp.where(is_near, x, 0.0)), jnp.log(p / q))


def atoms_of_masses(
    losses: Float[Array, " n"],
    masses: Float[Array, " n"],
    loss_error: ArrayLike = 0.0,
    mass_error: ArrayLike = 0.0,
    infinite: tuple[ArrayLike, ArrayLike] = (0.0, 0.0),
    valid: ArrayLike = True,
) -> Atoms:
    """Returns the laws of a loss that is discrete itself, as many atoms as it has, in any order.

    Args:
        losses (n,): losses, in nats. Atoms of mass 0 may have any; so an infinite loss belongs to ``infinite``.
        masses (n,): P's masses.
        loss_error: bound on the absolute errors of the losses, () or (n,).
        mass_error: bound on the absolute errors of the masses, () or (n,).
        infinite: as for :func:`atoms_of_cells`, where the rounding is derived, too.
        valid: as there.
    """
    u = roundoff()
    side = jnp.asarray([[1.0], [-1.0]], masses.dtype)
    is_finite, may_be = jnp.abs(losses) < jnp.inf, masses + mass_error > 0
    places = losses + side * ((loss_error + 2 * u * jnp.abs(losses) + TINY) * (1 + 4 * u))
    mass = jnp.maximum((masses + side * jnp.where(may_be, mass_error + TINY, 0.0)) * (1 + 2 * u * side), 0.0)
    beyond = jnp.sum(jnp.where(losses == jnp.inf, mass[0], 0.0))
    counts = is_finite | jnp.isnan(losses)
    places, mass = jnp.where(counts, places, 0.0), jnp.where(counts, mass, 0.0)
    return atoms_in_order(places, mass, (infinite[0] + beyond, infinite[1]), valid)


def atoms_in_order(losses: Array, masses: Array, infinite: tuple[ArrayLike, ArrayLike], valid: ArrayLike) -> Atoms:
    """Returns the laws (2, n) sorted by loss; an infinite loss above and nothing below where a number is none."""
    counts = masses > 0
    losses = jnp.where(counts, losses, 0.0)
    ends = jnp.stack([jnp.asarray(end, masses.dtype) for end in infinite])
    known = valid & (jnp.isfinite(jnp.sum(masses[0]) + jnp.sum(jnp.abs(losses[0])) + ends[0]))
    known = known & ~jnp.isnan(jnp.sum(losses[1]))
    losses, masses = jax.lax.sort((jnp.where(known, losses, 0.0), jnp.where(known, masses, 0.0)), num_keys=1)
    ends = jnp.where(known, jnp.clip(ends * jnp.asarray([1 + 2 * roundoff(), 1.0]), 0.0, 1.0), jnp.asarray([1.0, 0.0]))
    return Atoms(losses, masses, ends, jnp.zeros_like(ends[0]))
