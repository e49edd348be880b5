"""Where the points of a pair's lattice lie, and what is asked of the pair at single losses.

All of it costs a few hundred evaluations of the pair, whatever the number of mesh points, which may be traced.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxacct import by_work
from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.programs import compiled

CUTS = np.concatenate([[0.0], np.geomspace(0.05, 4.0, 12)])
"""Where losses may begin to count as infinite, beyond the last point kept, over the length of what is kept."""

THIN = np.arange(1, 100) / 99
"""Where the mass of the cells beyond may be too small for float64, over the length of what is kept."""

AT_ONCE = 14
"""Losses whose tails are asked for at once: those of CUTS, which begin with the last of THIN, and that tilted."""

FLUSHED = 600.0
"""Exponent up to which what float64 flushed to zero, tilted, is nothing beside the rest."""


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
    """Edges at which these balance; see :func:`_laid`."""
    inside: Bool[Array, " 2"]
    """Whether there are such bins within the mesh."""
    spacing: Float[Array, " blocks"] | None = None
    """How far apart the points of each block are, in units of ``mesh``: powers of two; None if they are alike."""


def losses_of(placed: Placed, points: int) -> Float[Array, " points"]:
    """Returns the losses of the mesh points."""
    return placed.start + placed.mesh * positions_of(placed.spacing, points)


def widths_of(placed: Placed, points: int) -> Array:
    """Returns how far it is from each point to the next, (points - 1,), or one number for all."""
    if placed.spacing is None:
        return placed.mesh
    return placed.mesh * jnp.repeat(placed.spacing, points // placed.spacing.shape[0])[:-1]


def positions_of(spacing: Array | None, points: int) -> Array:
    """Returns how far the points are from the first, in units of the mesh: exact."""
    if spacing is None:
        return jnp.arange(points)
    size = points // spacing.shape[0]
    begins = size * (jnp.cumsum(spacing) - spacing)
    return (begins[:, None] + spacing[:, None] * np.arange(size)[None, :]).reshape(points)


@compiled
def place(pair: DominatingPair, low: Array, high: Array, h: Array, order: Array, points: Array) -> Placed:
    """Returns the mesh of ``points`` points, h apart, for the losses between ``low`` and ``high``.

    The loss is cut at the mesh point next above ``high``, though the mesh may have room for more: sums of what little
    lies beyond would need much wider windows.
    """
    start, outermost, edges, inside = _laid(pair, low, h, points)
    # One point more: an atom at the end may have been rounded to the other side of it.
    last = jnp.clip(jnp.ceil((high - start) / h) + 1, 1, points - 1)
    return with_tails(pair, start, h, last, order, points)._replace(outermost=outermost, edges=edges, inside=inside)


@compiled(static=("points",))
def place_apart(
    points: int, pair: DominatingPair, low: Array, high: Array, h: Array, order: Array, spacing: Array
) -> Placed:
    """Returns the same of points that are ``spacing`` times ``h`` apart in their blocks.

    What is known of the outermost bins is of use where points are as near to each other there as anywhere.
    """
    size, least = points // spacing.shape[0], jnp.min(spacing)
    start, outermost, edges, inside = _laid(pair, low, h * least, size * jnp.sum(spacing / least))
    outermost = outermost * least
    positions = positions_of(spacing, points)
    last = jnp.minimum(jnp.sum(positions < jnp.ceil((high - start) / h) + 1), points - 1).astype(jnp.int32)
    top = jnp.sum(jnp.where(jnp.arange(points) == last, positions, 0.0))
    tails = with_tails(pair, start, h, top, order, positions[-1] + 1)
    index = jnp.sum(positions[None, :] < outermost[:, None], axis=1)
    sides = np.array([-1, 0, 1])
    near = index[:, None] + sides[None, :]
    is_there = positions[jnp.clip(near, 0, points - 1)] == outermost[:, None] + sides[None, :] * least
    is_fine = jnp.all(is_there | (near < 0) | (near >= points), axis=1)
    return tails._replace(
        last=last, outermost=index.astype(h.dtype), edges=edges, inside=inside & is_fine, spacing=spacing
    )


def with_tails(pair: DominatingPair, start: Array, h: Array, last: Array, order: Array, points: Array) -> Placed:
    """Returns a mesh that begins at ``start``, with bounds on what lies beyond its point ``last``."""
    top = start + h * last
    largest = jnp.maximum(jnp.abs(start), jnp.abs(start + h * (points - 1)))
    shift = pair.boundary_error(largest) + 4 * roundoff() * largest
    ends = top + (top - start) * jnp.asarray(CUTS)
    thin = start + (top - start) * jnp.asarray(THIN)
    # Those within are hardly ever of use; then they are not asked for.
    losses = jnp.concatenate([ends, top[None], thin[:-1]]).reshape(-1, AT_ONCE) - shift
    is_tilted = np.arange(losses.size).reshape(losses.shape) >= len(CUTS)
    groups = jnp.where(order * (top - start) < FLUSHED, 1, losses.shape[0])

    def ask(group: Array, found: Array) -> Array:
        orders = jnp.where(jnp.asarray(is_tilted)[group], order, 0.0)
        return found.at[group].set(jax.vmap(pair.log_tail)(orders, losses[group]))

    asked = jnp.full_like(losses, jnp.inf)
    tails = jax.lax.fori_loop(0, by_work.of_all_lanes(groups), ask, asked).reshape(-1)
    log_above, log_thin = tails[: len(CUTS)], jnp.roll(tails[len(CUTS) :], -1) + order * shift
    return Placed(
        start=start, mesh=h, last=last.astype(jnp.int32), top=top, shift=shift,
        log_beyond=log_thin[-1], ends=ends, log_above=log_above, thin=thin, log_thin=log_thin,
        outermost=jnp.zeros(2), edges=jnp.zeros(2), inside=jnp.zeros(2, bool),
    )  # fmt: skip


def _laid(pair: DominatingPair, low: Array, h: Array, points: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the start, near ``low``, of a lattice of mesh h that has a point where the bulk balances, and further
    the indices of the outermost bins, the edges at which these balance, and whether there are such.

    With a small sampling rate nearly all mass lies within a few cells of a loss that is never passed. The bin next to
    that end has no neighbour beyond to balance it, so the lattice is laid such that it balances by itself: its point is
    at log P/Q of the bin, and the mass is represented without first-order loss, from above as from below. Where there
    is no such end the bin about the bulk is balanced, and losses with atoms get a point at an atom. Every other bin is
    balanced by flows, wherever its edges are, but for the outermost ones, of which the inner edge is moved.

    Of the two bins next to an end the outermost may have next to no mass, to pay with or to be lifted by the other:
    both are one then, if that can be balanced.

    The point, and then the edges, by the same bisection: masses are most of what there is to compile.
    """
    center = pair.central_loss()
    infimum, supremum = pair.loss_range()
    far = jnp.full_like(h, jnp.inf)

    from_below, from_above = jnp.isfinite(infimum), jnp.isfinite(supremum)
    is_lower = from_below & (~from_above | (center - infimum <= supremum - center))
    is_upper = from_above & ~is_lower
    anchor = pair.anchors()[0]
    # Ends between which to look, and those of the bin beside them.
    around = (
        jnp.where(is_lower, infimum, jnp.where(is_upper, supremum - h, center - h / 2)),
        jnp.where(is_lower, infimum + h, jnp.where(is_upper, supremum, center + h / 2)),
        jnp.where(is_lower, -far, -h / 2),
        jnp.where(is_upper, far, h / 2),
    )

    def found(own_point: Array, ends: tuple[Array, ...], point: Array) -> Array:
        first, last, below, above = ends

        def halve(_, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            middle = (ends[0] + ends[1]) / 2
            bin_ = pair.cell_masses(jnp.stack([middle + below, middle + above]))
            (p,), (q,) = bin_.p, bin_.q
            # The surplus falls with the point, and rises with an edge of either kind.
            is_low = jnp.where(own_point, jnp.log(p) - jnp.log(q) > middle, ~(p - jnp.exp(point) * q >= 0))
            return jnp.where(is_low, middle, ends[0]), jnp.where(is_low, ends[1], middle)

        # To the last digit, and to the side of a surplus: what the bulk of a rare loss lacks no neighbour could pay.
        return jnp.stack(jax.lax.fori_loop(0, BALANCE, halve, (first, last)))

    # The bins next to the infimum and to the supremum, and those one further in.
    side, further = jnp.array([1.0, -1.0, 1.0, -1.0]), jnp.array([0.0, 0.0, 1.0, -1.0])

    def one(start: Array, own_point: Array) -> tuple[Array, tuple[Array, ...]]:
        lowest = jnp.ceil((infimum - start) / h - scaled(1e-9))
        highest = jnp.floor((supremum - start) / h + scaled(1e-9))
        index = jnp.where(side > 0, lowest, highest) + further
        inside = (index >= 0) & (index < points)
        index = jnp.where(inside, index, 0.0)
        point = start + index * h
        # Right up to the points: an atom may sit on the outermost one.
        reach, middle = h / 2 * (1 - 1e-8), point + side * h / 2
        about = middle - reach, middle + reach, jnp.where(side > 0, -far, 0.0), jnp.where(side > 0, 0.0, far)
        ends = tuple(jnp.where(own_point, a, b) for a, b in zip(around, about, strict=True))
        least, most = jax.vmap(found, in_axes=(None, 0, 0))(own_point, ends, point).T
        is_balanced = (least > about[0]) & (most < about[1])
        point = jnp.where(jnp.isfinite(anchor), anchor, least[0])
        # An even number of points above the start, so that it stays when the mesh doubles.
        laid = point - 2 * jnp.ceil((point - low) / (2 * h)) * h
        return jnp.where(own_point, laid, start), (index, (least + most) / 2, inside, is_balanced)

    start, found_bins = jax.lax.scan(one, jnp.zeros_like(h), jnp.array([True, False]))
    index, edges, inside, is_balanced = (leaf[1] for leaf in found_bins)
    use = jnp.where((inside & is_balanced)[2:], jnp.array([2, 3]), jnp.array([0, 1]))
    return start, index[use], edges[use], inside[use]
