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

    def fill(self, length: int) -> Atoms:
        """Returns the same laws (..., 2, n) with as many atoms, the last of no mass."""
        widths = [(0, 0)] * (self.losses.ndim - 1) + [(0, length - self.losses.shape[-1])]
        return self._replace(losses=jnp.pad(self.losses, widths, "edge"), masses=jnp.pad(self.masses, widths))


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
    The edges may have any spacing: a cell may be an atom, between two edges that are equal.

    Args:
        edges (m,): non-decreasing losses, to ``edge_error``. The first may be -inf and the last inf, no others; if they
            are not, they bound all finite losses.
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
    * masses and their errors: errors are raised by 4u of themselves; a sum or a difference of p and its error rounds by
      u of itself. Numbers flushed to zero are below TINY, which is added to each error;
    * y is the logarithm of 1 + |P - Q|/min(P, Q), or minus that. The argument is right to 2u, which move the result by
      no more of itself, and log1p errs by 8u: 10u of itself, and 16u are taken for two more sums. P and Q, off by dP
      and dQ, move y by at most dP/(P - dP) + dQ/(Q - dQ). Where these denominators are not positive, or a number
      overflows, nothing is known of y but that it is at least A;
    * b' - a': a compiler may compute an edge more than once, and not to the same bits each time; so each of the two may
      be larger or smaller by twice its edge's error, by which the difference is lowered;
    * shares: y - A and b' - a' round by u of themselves, and so do -expm1 of them, which errs by 8u besides: 12u for
      both, above and below the line. 32u are taken for the ratio and the product with P';
    * what moves and what stays may come of two values of a share, by the same freedom of compilers, which differ by 56u
      at most; with a difference and a sum, 64u of each atom make up for what is lost between them.
    """
    u = roundoff()
    doubt = jnp.where(jnp.isfinite(edges), (edge_error + 2 * u * jnp.abs(edges) + TINY) * (1 + 4 * u), 0.0)
    place, bottom = edges + doubt, edges[:-1] - doubt[:-1]
    width = place[1:] - place[:-1] - 2 * (doubt[1:] + doubt[:-1])
    p_off, q_off = (p_error + TINY) * (1 + 4 * u), (q_error + TINY) * (1 + 4 * u)
    most, least, q_least = (p + p_off) * (1 + 2 * u), (p - p_off) * (1 - 2 * u), (q - q_off) * (1 - 2 * u)
    x = jnp.log1p(jnp.abs(p - q) / jnp.minimum(p, q))
    is_known = (least > 0) & (q_least > 0)
    off = jnp.where(is_known, (16 * u * x + p_off / least + q_off / q_least) * (1 + 8 * u), jnp.inf)
    y = jnp.where(p < q, -x, x)
    share = jnp.abs(jnp.expm1(jnp.minimum(bottom - y - off, 0.0)) / jnp.expm1(jnp.minimum(-width, 0.0))) * (1 + 32 * u)
    moving = most * jnp.where(share <= 1, share, 1.0)
    upper_masses = (jnp.append(most - moving, 0.0) + jnp.append(jnp.zeros(1), moving)) * (1 + 64 * u)
    loss = jnp.where(y - off > bottom, y - off, bottom)
    losses = jnp.stack([place, jnp.append(loss, -jnp.inf)])
    masses = jnp.where(
        jnp.abs(losses) == jnp.inf, 0.0, jnp.stack([upper_masses, jnp.append(jnp.maximum(least, 0.0), 0.0)])
    )
    beyond = jnp.where(place[-1] == jnp.inf, upper_masses[-1], 0.0)
    return atoms_in_order(losses, masses, (infinite[0] + beyond, infinite[1]), valid)


def places_about(
    low: Array, high: Array, outwards: ArrayLike, inwards: ArrayLike, count: int, rises: ArrayLike = True
) -> tuple[Array, Array]:
    """Returns places (count,) of a noise around two centres, from -inf to inf, and the place that follows on each.

    The finite ones are at equal distances, but for the middle two: those may be farther from one another, where there
    is little mass between the centres.

    Args:
        low (): the lower centre.
        high: the higher one.
        outwards (): distance beyond the centres up to which there are places.
        inwards: the same between them, or inf.
        count: number of places, even; static.
        rises (): whether the places rise; else they fall, from inf to -inf.
    """
    outwards = short(jnp.asarray(outwards))
    ends = low - outwards, high + outwards
    step = short(jnp.minimum(ends[1] - ends[0], 2 * (inwards + outwards)) / (count - 3))
    half, last = count // 2 - 1, count - 3.0

    def place(index: np.ndarray) -> Array:
        i = jnp.where(rises, jnp.asarray(index, step.dtype), jnp.asarray(last - index, step.dtype))
        finite = jnp.where(i < half, ends[0] + step * i, ends[1] - step * (last - i))
        return jnp.where(i < 0, -jnp.inf, jnp.where(i > last, jnp.inf, finite))

    index = np.arange(-1.0, count - 1)
    return place(index), place(np.append(index[1:], index[-1]))


def short(value: Array) -> Array:
    """Returns about the value, in as few digits that its products with whole numbers below 2^28 are exact.

    A compiler may compute a sum of products twice, and once without the rounding between. Places that are made of such
    values are the same numbers wherever they are used.
    """
    return jax.lax.reduce_precision(
        value, exponent_bits=jnp.finfo(value.dtype).nexp, mantissa_bits=jnp.finfo(value.dtype).nmant // 2 - 2
    )


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

    >>> with jax.enable_x64(True):  # randomized response with epsilon = 1
    ...     atoms = atoms_of_masses(jnp.array([1.0, -1.0]), jax.nn.softmax(jnp.array([1.0, 0.0])))
    ...     atoms.losses.round(6).tolist(), atoms.masses.round(6).tolist()
    ([[-1.0, 1.0], [-1.0, 1.0]], [[0.268941, 0.731059], [0.268941, 0.731059]])
    """
    u = roundoff()
    off = (loss_error + 2 * u * jnp.abs(losses) + TINY) * (1 + 4 * u)
    mass_off = jnp.where(masses + mass_error > 0, (mass_error + TINY) * (1 + 4 * u), 0.0)
    most, least = (masses + mass_off) * (1 + 2 * u), jnp.maximum((masses - mass_off) * (1 - 2 * u), 0.0)
    is_infinite = jnp.abs(losses) == jnp.inf
    beyond = jnp.sum(jnp.where(losses == jnp.inf, most, 0.0)) * (1 + 2 * u * losses.shape[-1])
    most, least = (jnp.where(is_infinite, 0.0, mass) for mass in (most, least))
    places, masses = jnp.stack([losses + off, losses - off]), jnp.stack([most, least])
    return atoms_in_order(places, masses, (infinite[0] + beyond, infinite[1]), valid)


def atoms_in_order(losses: Array, masses: Array, infinite: tuple[ArrayLike, ArrayLike], valid: ArrayLike) -> Atoms:
    """Returns the laws (2, n) sorted by loss; an infinite loss above and nothing below where a number is none."""
    known = valid & jnp.isfinite(jnp.sum(jnp.where(masses > 0, losses + masses, masses)) + (infinite[0] + infinite[1]))
    counts = known & (masses > 0)
    losses, masses = jax.lax.sort((jnp.where(counts, losses, 0.0), jnp.where(counts, masses, 0.0)), num_keys=1)
    above = jnp.where(known, jnp.clip(infinite[0] * (1 + 2 * roundoff()), 0.0, 1.0), 1.0)
    below = jnp.where(known, jnp.clip(infinite[1], 0.0, 1.0), 0.0)
    return Atoms(losses, masses, jnp.stack([above, below]), jnp.zeros_like(above))
