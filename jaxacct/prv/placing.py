"""Where the points of a pair's lattice lie, and what is asked of the pair at single losses.

All of it costs a few hundred evaluations of the pair, whatever the number of mesh points, which may be traced.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.programs import compiled

CUTS = np.concatenate([[0.0], np.geomspace(0.05, 4.0, 12)])
"""Where losses may begin to count as infinite, beyond the last point kept, over the length of what is kept."""

THIN = np.arange(1, 97) / 96
"""Where the mass of the cells beyond may be too small for float64, over the length of what is kept."""


BALANCE = 52
"""Halvings of a cell for the point that balances the bulk."""


class Placed(NamedTuple):
    """The mesh of a pair's lattice."""

    start: Float[Array, ""]
    """The first point."""
    mesh: Float[Array, ""]
    last: Array
    """Index of the last point that is kept: the loss is cut there."""
    top: Float[Array, ""]
    """The loss there."""
    shift: Float[Array, ""]
    """Bound on how far a cell's true edge, or the double that stands for a mesh point, is from the point."""
    log_beyond: Float[Array, ""]
    """Log of the tilted mass beyond ``top``, at most."""
    ends: Float[Array, " cuts"]
    """The losses of :data:`CUTS`, of which ``top`` is the first."""
    log_above: Float[Array, " cuts"]
    """Log of the mass beyond each, at most."""
    thin: Float[Array, " places"]
    """The losses of :data:`THIN`, ending with ``top``."""
    log_thin: Float[Array, " places"]
    """Log of the tilted mass beyond each, at most."""
    outermost: Float[Array, " 2"]
    """Index of the bin next above the infimum of the loss, and of the one next below its supremum."""
    edges: Float[Array, " 2"]
    """Edges at which these balance; see :func:`_settled`."""
    inside: Bool[Array, " 2"]
    """Whether there are such bins within the mesh."""


@compiled
def place(pair: DominatingPair, low: Array, high: Array, h: Array, order: Array, points: Array) -> Placed:
    """Returns the mesh of ``points`` points, h apart, for the losses between ``low`` and ``high``.

    The loss is cut at the mesh point next above ``high``, though the mesh may have room for more: sums of what little
    lies beyond would need much wider windows.
    """
    start = _started(pair, low, h)
    # One point more: an atom at the end may have been rounded to the other side of it.
    last = jnp.clip(jnp.ceil((high - start) / h) + 1, 1, points - 1)
    top = start + h * last
    largest = jnp.maximum(jnp.abs(start), jnp.abs(start + h * (points - 1)))
    shift = pair.boundary_error(largest) + 4 * roundoff() * largest
    ends = top + (top - start) * jnp.asarray(CUTS)
    thin = start + (top - start) * jnp.asarray(THIN)
    orders = jnp.concatenate([jnp.broadcast_to(order, thin.shape), jnp.zeros(len(CUTS))])
    tails = jax.vmap(pair.log_tail)(orders, jnp.concatenate([thin, ends]) - shift)
    log_thin, log_above = tails[: len(THIN)] + order * shift, tails[len(THIN) :]
    outermost, edges, inside = _settled(pair, start, h, points)
    return Placed(
        start=start, mesh=h, last=last.astype(jnp.int32), top=top, shift=shift,
        log_beyond=log_thin[-1], ends=ends, log_above=log_above, thin=thin, log_thin=log_thin,
        outermost=outermost, edges=edges, inside=inside,
    )  # fmt: skip


def _started(pair: DominatingPair, low: Array, h: Array) -> Array:
    """Returns the start, near ``low``, of a lattice of mesh h that has a point where the bulk balances.

    With a small sampling rate nearly all mass lies within a few cells of a loss that is never passed. The bin next to
    that end has no neighbour beyond to balance it, so the lattice is laid such that it balances by itself: its point is
    at log P/Q of the bin, and the mass is represented without first-order loss, from above as from below. Where there
    is no such end the bin about the bulk is balanced, and losses with atoms get a point at an atom.
    """
    center = pair.central_loss()
    infimum, supremum = pair.loss_range()
    far = jnp.full_like(h, jnp.inf)

    def excess(point: Array, below: Array, above: Array) -> Array:
        bin_ = pair.cell_masses(jnp.stack([below, above]))
        return jnp.log(bin_.p[0]) - jnp.log(bin_.q[0]) - point

    def balanced(low: Array, high: Array, below: Array, above: Array) -> Array:
        """Bisects for the point that balances its bin, whose ends are the point plus ``below`` and ``above``."""

        def halve(_, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            middle = (ends[0] + ends[1]) / 2
            is_low = excess(middle, middle + below, middle + above) > 0
            return jnp.where(is_low, middle, ends[0]), jnp.where(is_low, ends[1], middle)

        # To the last digit, and to the side of a surplus: what the bulk of a rare loss lacks no neighbour could pay.
        return jax.lax.fori_loop(0, BALANCE, halve, (low, high))[0]

    from_below, from_above = jnp.isfinite(infimum), jnp.isfinite(supremum)
    is_lower = from_below & (~from_above | (center - infimum <= supremum - center))
    is_upper = from_above & ~is_lower
    point = balanced(
        jnp.where(is_lower, infimum, jnp.where(is_upper, supremum - h, center - h / 2)),
        jnp.where(is_lower, infimum + h, jnp.where(is_upper, supremum, center + h / 2)),
        jnp.where(is_lower, -far, -h / 2),
        jnp.where(is_upper, far, h / 2),
    )
    anchor = pair.anchors()[0]
    point = jnp.where(jnp.isfinite(anchor), anchor, point)
    # An even number of points above the start, so that it stays when the mesh doubles.
    return point - 2 * jnp.ceil((point - low) / (2 * h)) * h


def _settled(pair: DominatingPair, start: Array, h: Array, points: Array) -> tuple[Array, Array, Array]:
    """Returns the indices of the outermost bins, the edges at which these balance, and whether there are such.

    Next to a loss that is never passed there is no further bin to share a surplus with, and with a small sampling rate
    nearly all mass is there. Every other bin is balanced by flows, wherever its edges are.
    """
    infimum, supremum = pair.loss_range()
    lowest = jnp.ceil((infimum - start) / h - scaled(1e-9))
    highest = jnp.floor((supremum - start) / h + scaled(1e-9))

    def found(index: Array, side: Array) -> Array:
        """Bisects for the edge ``side`` (1 above, -1 below) of bin ``index``, whose other edge is beyond all losses."""
        point = start + index * h

        def surplus(edge: Array) -> Array:
            below, above = jnp.where(side > 0, -jnp.inf, edge), jnp.where(side > 0, edge, jnp.inf)
            bin_ = pair.cell_masses(jnp.stack([below, above]))
            return bin_.p[0] - jnp.exp(point) * bin_.q[0]

        def halve(_, interval: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = interval
            middle = (low + high) / 2
            # A higher edge, of either kind, makes the bin's loss higher.
            enough = surplus(middle) >= 0
            return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

        # Right up to the points: an atom may sit on the outermost one.
        reach = h / 2 * (1 - 1e-8)
        low, high = jax.lax.fori_loop(0, 32, halve, (point + side * h / 2 - reach, point + side * h / 2 + reach))
        return (low + high) / 2

    # The bin above the infimum, and the one below the supremum, where there are such within the mesh.
    bins, sides = jnp.stack([lowest, highest]), jnp.array([1.0, -1.0])
    inside = (bins >= 0) & (bins < points)
    bins = jnp.where(inside, bins, 0.0)
    return bins, jax.vmap(found)(bins, sides), inside
