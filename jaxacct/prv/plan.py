"""Choices made before anything is discretized: the tilt, the windows and the meshes. No bound depends on them.

All are read off a sketch of each loss: a few hundred cells, narrow about the bulk and wide far out, with the mean loss
of each. Sums, tilts and truncations of the sketch cost next to nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.dominating_pairs import DominatingPair
from jaxacct.precision import TINY, first_index
from jaxacct.prv.compose import MARGIN, truncation
from jaxacct.prv.composition import Part
from jaxacct.prv.windows import reach

ORDERS = np.exp2(np.linspace(-8.0, 24.0, 81))
"""Candidate orders of the tilt."""

LOWER_ORDERS = np.exp2(-0.8 * np.arange(6))
"""What the order of the least loss is multiplied by, to look for smaller windows."""

ROUNDING_PER_STEP = 2e-13
"""Bound of the error of one convolution for a bulk of an eighth of the window; hardly depends on the points."""

LOOSENESS = 2.0
"""Nats by which a Chernoff bound of delta typically lies above delta: small probabilities far out count for so much."""

OCTAVE = 6
"""Cells of the sketch for each halving of the distance from the bulk."""

DISTANCES = np.concatenate([[0.0], np.exp2(-np.arange(150)[::-1] / OCTAVE)])
"""Edges of the sketch's cells on one side of the bulk, over the distance of its end: 25 octaves."""

GROWTH = np.arange(27)
"""Fours of which the powers are considered as sums to foresee; 4^26 is the greatest number of steps."""

RATES = np.exp2(11.0 - 0.75 * np.arange(32))
"""Rates of the moments by which the windows of sums are foreseen, over the length of one loss's window."""


class Plan(NamedTuple):
    """What is chosen for one composition; the entries of each part have its leading axis (m,)."""

    order: Array
    """The tilt, common to all."""
    log_weight: Array
    """Log of what a unit of the composition's tilted mass can count in delta."""
    log_tail: Array
    """Log of the tilted mass of one step that each stage may let go on each side."""
    windows: tuple[tuple[Array, Array], ...]
    """Losses (low, high) that the lattice of one step should cover."""
    lengths: tuple[Array, ...]
    """Length of the lattice's first window, with room for the sums of the first stage."""


SPIKES, ATOMS = 16.0, 1024.0
"""By how much the lower bound loses more when few copies are coarsened, whose sum is a spike and rare jumps, or atoms
with jumps of the density; it wears off with the copies."""


class _Sketch(NamedTuple):
    edges: Float[Array, " edges"]
    p: Float[Array, " cells"]
    losses: Float[Array, " cells"]
    early: Array
    """SPIKES or ATOMS."""


def choose(parts: tuple[Part, ...], value: Array, quantity: str, points: int, method: str) -> Plan:
    """Returns the tilt, and for each part the window and the length of its first lattice.

    Any t > 0 is valid. What truncation and rounding cost is, relative to delta, their share of the tilted mass times
    the exponential of sum k K(t) - t eps + t log t - (1 + t) log(1 + t) - log delta, so the t that makes this least
    loses least by them. A smaller t has smaller windows where large losses are rare, hence finer meshes: the t for
    which the sum of both errors is least is taken. K is that of the losses below a cut, beyond which there is so
    little mass that it may count as infinite.
    """
    steps = sum((jnp.sum(k) for _, k in parts), jnp.zeros(()))
    log_copies = jnp.log(jnp.maximum(steps, 1.0))
    log_tail = jnp.log(truncation(points)) - log_copies

    def sketch_of(pair: DominatingPair) -> _Sketch:
        known = jnp.log(value) - log_copies if quantity == "epsilon" else pair.log_tail(jnp.zeros(()), value) - 3.0
        return _sketch(pair, jnp.clip(known, -2000.0, 0.0) - jnp.log(16.0 * points))

    sketches = [jax.vmap(sketch_of)(pair) for pair, _ in parts]

    def exponents(orders: Array) -> Array:
        total = jnp.zeros(orders.shape)
        for (_, k), sketch in zip(parts, sketches, strict=True):
            cumulants = jax.lax.map(lambda row: jax.vmap(lambda t: _cumulant(row, t))(orders), sketch)
            total = total + jnp.sum(jnp.where(k[:, None] > 0, k[:, None] * cumulants, 0.0), axis=0)
        exponent = total + orders * jnp.log(orders) - (1 + orders) * jnp.log1p(orders)
        return jnp.where(jnp.isfinite(exponent), exponent, jnp.inf)

    orders = jnp.asarray(ORDERS)
    exponent = exponents(orders)
    epsilon = jnp.min((exponent - jnp.log(value)) / orders) if quantity == "epsilon" else value
    loss = exponent - orders * epsilon
    # Where delta is below what float64 can tell from 0 no more is to be won, and the extreme orders see nothing.
    least = jnp.maximum(jnp.min(loss), -500.0)
    best = orders[jnp.minimum(first_index(loss <= least), len(ORDERS) - 1)]

    candidates = best * jnp.asarray(LOWER_ORDERS)
    loss = exponents(candidates) - candidates * epsilon

    def windows_at(order: Array) -> list[tuple[Array, Array]]:
        return [jax.vmap(lambda row: _window(row, order, log_tail))(sketch) for sketch in sketches]

    windows = jax.vmap(windows_at)(candidates)

    def lengths_at(of_part: tuple[_Sketch, Array, Array, Array]) -> tuple[Array, Array]:
        row, k, low, high = of_part

        def at(order: Array, low: Array, high: Array) -> tuple[Array, Array]:
            return _length(row, order, k, low, high, log_tail, method)

        return jax.vmap(at)(candidates, low, high)

    # (m, candidates) each; one after the other, for together they would be far larger than a cache.
    found = [
        jax.lax.map(lengths_at, (sketch, k, low.T, high.T))
        for sketch, (_, k), (low, high) in zip(sketches, parts, windows, strict=True)
    ]
    cost = sum((jnp.sum(k[:, None] * costs, axis=0) for (_, k), (_, costs) in zip(parts, found, strict=True)))
    # Both errors relative to delta, which falls by the factor e^-t for each unit of epsilon, t the best order.
    of_mesh = cost * best**2 / (12.0 * points**2)
    of_slack = jnp.exp(jnp.minimum(loss - least + LOOSENESS, 500.0)) * (
        8 * truncation(points) + ROUNDING_PER_STEP * jnp.maximum(steps, 1.0)
    )
    error = of_mesh + of_slack
    chosen = jnp.minimum(first_index(error <= jnp.nanmin(error)), len(LOWER_ORDERS) - 1)
    return Plan(
        order=candidates[chosen],
        log_weight=loss[chosen],
        log_tail=log_tail,
        windows=tuple((low[chosen], high[chosen]) for low, high in windows),
        lengths=tuple(lengths[:, chosen] for lengths, _ in found),
    )


def _sketch(pair: DominatingPair, log_cut: Array) -> _Sketch:
    """Returns the sketch of a loss, up to where at most e^log_cut of the probability lies beyond."""
    center = pair.central_loss()
    infimum, supremum = pair.loss_range()

    def reach_of(is_beyond) -> Array:
        """Bisects the binary logarithm of the distance from the centre, to 1 %."""

        def halve(_, interval):
            low, high = interval
            middle = (low + high) / 2
            beyond = is_beyond(jnp.exp2(middle))
            return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

        ends = -70.0 * jnp.ones_like(center), 58.0 * jnp.ones_like(center)
        return jnp.exp2(jax.lax.fori_loop(0, 13, halve, ends)[1])

    up = reach_of(lambda d: pair.log_tail(jnp.zeros_like(center), center + d) <= log_cut)
    # Tilting upwards only makes the lower tail smaller.
    down = reach_of(lambda d: pair.log_head(center - d) <= jnp.minimum(log_cut, -80.0))
    # A loss of a single value still needs a window.
    up = jnp.maximum(jnp.minimum(up, supremum - center), 1e-30)
    down = jnp.maximum(jnp.minimum(down, center - infimum), 1e-30)
    distances = jnp.asarray(DISTANCES)
    edges = jnp.concatenate([center - down * distances[::-1], center + up * distances[1:]])
    # The ends themselves belong to the outer cells, with whatever rounding left beyond them.
    outer = edges.at[0].add(-1e-9 * down).at[-1].add(1e-9 * up)
    cells = pair.cell_masses(outer)
    ratio = jnp.log(cells.p) - jnp.log(cells.q)
    middles = (edges[1:] + edges[:-1]) / 2
    losses = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, middles), edges[:-1], edges[1:])
    return _Sketch(edges, cells.p, losses, jnp.where(jnp.isfinite(pair.anchors()[0]), ATOMS, SPIKES))


def _tilted(sketch: _Sketch, order: Array) -> Array:
    """Returns the log weights p e^(t y), of any sum."""
    return jnp.where(sketch.p > 0, jnp.log(sketch.p) + order * sketch.losses, -jnp.inf)


def _cumulant(sketch: _Sketch, order: Array) -> Array:
    """Returns log sum p e^(t y)."""
    return jax.nn.logsumexp(_tilted(sketch, order))


def _window(sketch: _Sketch, order: Array, log_tail: Array) -> tuple[Array, Array]:
    """Returns the losses beyond which e^log_tail of the tilted mass lies, to the cell.

    Mass below the lower one will be moved up to it, so it counts as if it were there.
    """
    logs, total = _tilted(sketch, order), _cumulant(sketch, order)
    count = logs.shape[0]
    above = jnp.cumsum(jnp.exp(logs - total)[::-1])
    last = count - jnp.sum(above <= jnp.exp(log_tail))
    below = jnp.log(jnp.cumsum(sketch.p)) + order * sketch.edges[1:] - total
    first = jnp.minimum(jnp.sum(below <= log_tail), count - 1)
    return sketch.edges[first], sketch.edges[jnp.maximum(last, first + 1)]


def _length(
    sketch: _Sketch, order: Array, steps: Array, low: Array, high: Array, log_tail: Array, method: str
) -> tuple[Array, Array]:
    """Returns the length of the lattice for losses whose one-step window is [low, high], and its cost by the below.

    With W_j the window of 4^j copies, k steps on the mesh W_j/n cost k W_j^2/(6 n^2) in variance; each further doubling
    that makes room for W_i, i > j, is met by k/4^(i-1) summands and costs half of (W_i/2n)^2 for each: the cost, but
    for the factor k/(6 n^2). The recursive algorithm takes the j for which the sum is least: one step, where the window
    grows from the start, and many where it is as wide as a rare jump. The fixed mesh has room for all steps, the
    two-stage algorithm's for about sqrt(steps).
    """
    span = high - low
    inside = (sketch.losses >= low) & (sketch.losses <= high)
    logs = jnp.where(inside, _tilted(sketch, order), -jnp.inf)
    log_weights = logs - jax.nn.logsumexp(logs)
    places = jnp.clip((sketch.losses - low) / span, 0.0, 1.0)

    # From the end where each is greatest, so that no term exceeds 1.
    weights = jnp.exp(log_weights)

    def moments(distances: Array) -> Array:
        return jax.vmap(lambda rate: jnp.sum(jnp.exp(-rate * distances) * weights))(jnp.asarray(RATES))

    upper, lower = moments(1 - places), moments(places)
    kappa = jnp.log(jnp.concatenate([upper, lower]) + TINY) + np.concatenate([RATES, np.zeros_like(RATES)])
    copies = jnp.clip(4.0**GROWTH, 1.0, jnp.maximum(steps, 1.0))
    if method == "two_stage":
        copies = jnp.minimum(copies, 2 ** jnp.ceil(jnp.log2(jnp.maximum(steps, 1.0)) / 2))

    def window_of(count: Array) -> Array:
        bottom, top = reach(count * kappa, log_tail + jnp.log(count), RATES)
        return top - bottom

    # Few copies of rare jumps may need more room than many. The margin is for the sketch's coarseness.
    lengths = span * jax.lax.cummax(jax.vmap(window_of)(copies)) * 1.04
    if method != "recursive":
        chosen = jnp.maximum(lengths[-1], span)
        return chosen, chosen**2
    doublings = 3 * lengths**2 / 4.0**GROWTH * (1 + sketch.early / 4.0**GROWTH)
    cost = lengths**2 + jnp.cumsum(doublings[::-1])[::-1] - doublings
    chosen = lengths[jnp.minimum(first_index(cost <= jnp.min(cost)), len(GROWTH) - 1)]
    return jnp.maximum(chosen, span), jnp.min(cost)


def placed(pair: DominatingPair, low: Array, h: Array) -> Array:
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

        low, high = jax.lax.fori_loop(0, 16, halve, (low, high))
        return (low + high) / 2

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


def mesh(pair: DominatingPair, length: Array, points: int) -> Array:
    """Returns the mesh of ``points`` points for a window of that length.

    It is wider where anchors ask for it: it divides their distance into a power of two, so the atoms stay on the mesh
    when it doubles.
    """
    h = length / (points - MARGIN)
    lower, upper = pair.anchors()
    distance = upper - lower
    halvings = jnp.floor(jnp.log2(distance / h))
    return jnp.where(jnp.isfinite(distance) & (halvings >= 0), distance / jnp.exp2(jnp.maximum(halvings, 0.0)), h)
