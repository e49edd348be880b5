"""Choices made before anything is composed: the tilt, windows, where each loss's points lie. No bound depends on them.

A loss is looked at twice. On a grid of half octaves about its centre it is seen how far it reaches; on a second one,
narrow about the bulk and wide far out, its masses and mean losses are a sketch of it, of which sums, tilts and
truncations cost next to nothing. What is made of a sketch no longer depends on the kind of pair.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxacct.dominating_pairs import CellMasses
from jaxacct.numerics.arithmetic import roughly
from jaxacct.numerics.precision import TINY, first_index, log_peak

FAR = np.exp2(np.arange(-70.0, 57.5, 0.5))
"""Distances from the centre of the edges of the first grid. Any are sound."""

OCTAVE = 6
"""Cells of a sketch for each halving of the distance from the bulk. Speed and tightness only."""

DISTANCES = np.concatenate([[0.0], np.exp2(-np.arange(150)[::-1] / OCTAVE)])
"""Edges of the sketch's cells on one side of the bulk, over the distance of its end: 25 octaves. Any are sound."""

EVEN = 160
"""Most cells by which the distance upwards may be divided evenly, where the octaves' are wider. Tightness only.

A delta of 1e-300 is made of losses far out, within one over the order of the tilt, some 1/40 of a distance of about as
much; in wider cells no order would see that any loss exceeds epsilon.
"""

CLOSE = DISTANCES[DISTANCES * (2 ** (1 / OCTAVE) - 1) < 1 / EVEN]
UPWARD = np.concatenate([CLOSE, np.arange(np.floor(CLOSE[-1] * EVEN) + 1, EVEN + 1) / EVEN])
"""Edges above the bulk, likewise."""

CELLS = len(DISTANCES) + len(UPWARD) - 2
"""Cells of a sketch."""

BLOCKS = 128
"""Blocks of the points of one loss; in each they are equally far apart."""

FREQUENCIES = 512
"""Most frequencies at which the spectrum of a sum is known on a long circle, that at 0 included. Any number is sound.

A hundred hold all that there is of the spectrum; but what is bounded beyond them falls slowly, and is nothing only
where mesh points a step's deviation apart are far apart in phase.
"""

CIRCLE = 4
"""Points of a circle that is transformed whole, for each point of a loss. Tightness and speed only."""

BEYOND = 1e-10
"""Probability that a sketch leaves out on either side, over delta and over the steps. Tightness only."""

LOOKS = np.exp2([np.linspace(-8.0, 24.0, 21), *4 * [np.linspace(-3.0, 3.0, 21)], np.linspace(0.0, -6.0, 21)])
"""The orders that are looked at first; those about the best of them, over it, while epsilon settles; and those below
that, likewise, for smaller windows."""

SETTLED = 1e-3
"""Share of epsilon by which it falls from one look to the next where another one is not worth it. Tightness only."""

ENOUGH = 0.5
"""Nats by which an estimate of delta may be above the least of all orders' for its order to do. Tightness only."""

STEEPEST = 10.0
"""Largest order over one over the error aimed at. Tightness only."""

LOOSENESS = 2.0
"""Nats by which a Chernoff bound of delta typically lies above delta: small probabilities far out count for so much."""

SPARED = 0.01
"""Share of the error aimed at that truncation may make. Tightness only."""

ROUNDING = 2e-14
"""About what a step's spectrum errs by, relative to its tilted mass, in float64. Tightness only."""

NOISE = 2.0
"""Nats by which rounding may be larger than at the order where it is least, where it tells at all. Tightness only."""

RATES = 2.0 ** np.arange(10)
"""Rates s of Chernoff's bounds on where the sum lies, over the least. Any are sound."""

GENTLE = 0.2
"""The least rate over one over the sum's standard deviation, or over the longest window of a loss, if that is less."""

WIDEST = 24
"""Most doublings of the distance between points."""

FURTHER = 3
"""Most doublings of it beyond the window."""

STEEP = np.exp2(np.minimum(3.0 * np.abs(np.subtract.outer(np.arange(BLOCKS), np.arange(BLOCKS))), 60))
"""How many times as far apart points may be in a block as in another: 8 from one to the next, for what a narrow bin
leaves to a wide one beside it falls far."""

BULK = 0.05
"""Least mass of a bin for the mesh to be laid such that it balances. Tightness only."""

AWAY = 12
"""Least distance from the bulk over that between points there."""

NEAR = 1.25
"""How far from the median points are densest, over the width of half of the losses."""

STEADY = 0.22
"""Nats, with each step, by which what bounds frequencies beyond those that are known falls at the least. A guess."""

_DISTANCES = np.exp2(np.arange(WIDEST + 1.0))
GAINS = np.tril(2 * np.sin(np.pi / 3 * _DISTANCES[None, :] / _DISTANCES[:, None]) ** 2)
"""1 - cos(m w) at w = 2 pi / 3 n, n and m powers of two, m at most n: about the least there is near by."""

ALIKE, FINEST = 1.25, 128
"""By how much the cost of all may rise so that the finest of the meshes is not much finer than the others; and the
least number of steps on the finest one: nothing else makes a spectrum fall at its highest frequencies."""

MARGIN = 5 * AWAY + 4
"""Points that blocks may waste, for they end where they must."""

FINE = 1e-12
"""Least mesh over the largest loss. Tightness only."""

SPARE = 1.2
"""More points than a window takes, likewise."""

WIDER = 1.04
"""By how much a window is wider than its sketch's."""


def frequencies_for(points: int) -> int:
    """Returns the number of frequencies on a long circle, for lattices of so many points."""
    return min(FREQUENCIES, CIRCLE * points // 2)


POWERS = np.ldexp(1.0, np.arange(-1022, 1024))
"""The powers of two: XLA's exp2 of a whole number need not be one."""


def power_of_two(exponent: Array) -> Array:
    """Returns two to the power of whole numbers, exactly."""
    return jnp.asarray(POWERS)[jnp.clip(exponent, -1022, 1023).astype(jnp.int32) + 1022]


def running(values: Array) -> Array:
    """Returns sums of the entries up to each, along the last axis. By a loop: XLA's own is seven kernels on a CPU."""

    def add(total: Array, entry: Array) -> tuple[Array, Array]:
        return total + entry, total + entry

    _, found = jax.lax.scan(add, jnp.zeros_like(values[..., 0]), jnp.moveaxis(values, -1, 0))
    return jnp.moveaxis(found, 0, -1)


class Known(NamedTuple):
    """What a pair says of itself, for each loss (m,)."""

    center: Float[Array, " m"]
    infimum: Float[Array, " m"]
    supremum: Float[Array, " m"]
    anchors: Float[Array, "m 2"]
    """Losses at which a mesh should have points, NaN where any will do."""
    wrong: Float[Array, "m 2"]
    """How far an edge may be from where it was asked for, of losses up to 0 and up to 1."""
    steps: Float[Array, " m"]


class Asked(NamedTuple):
    """What a composition is wanted for."""

    value: Float[Array, ""]
    """The delta asked about, without what infinite losses take of it, or the epsilon."""
    is_epsilon: Bool[Array, ""]
    """Whether it is epsilon that is wanted."""
    relative: Float[Array, ""]
    """The gap aimed at, relative to the answer."""
    absolute: Float[Array, ""]
    """And beside it."""
    order: Float[Array, ""] | None = None
    """The tilt, where it is given."""
    is_whole: bool = False
    """Whether the spectrum has to be taken whole."""


class Plan(NamedTuple):
    """What is chosen for one composition of losses (m,)."""

    order: Float[Array, ""]
    """The tilt, common to all."""
    mesh: Float[Array, ""]
    """How far apart points are where they are densest."""
    is_whole: Bool[Array, ""]
    """Whether the spectrum of the sum is taken whole, on a circle of so many points as are transformed."""
    length: Float[Array, ""]
    """Mesh points of the circle."""
    below: Float[Array, ""]
    """Mesh points of the window below the mean of the sum."""
    rate: Float[Array, ""]
    """The least rate of Chernoff's bounds, for each mesh point."""
    start: Float[Array, " m"]
    """The first point."""
    positions: Float[Array, "m points"]
    """How far the points are from the first, in units of ``mesh``: whole numbers, apart by powers of two in blocks."""
    kept: Array
    """Indices of the first and of the last point that is kept, (m, 2): the loss is cut there."""
    bulk: Float[Array, "m 2"]
    """Ends of the bin about the bulk, or at an end of the losses, if it has :data:`BULK`: it balances at ``center``."""
    center: Float[Array, " m"]
    """That point, in mesh points from the first; below 0 where there is no such bin."""


def boundaries_for(edges: Array, size: int) -> Array:
    """Returns boundaries (size,) of cells: edges (n,), all that is below them and all that is above."""
    return jnp.concatenate([jnp.full(1, -jnp.inf), edges, jnp.full(size - 1 - len(edges), jnp.inf)])


def first_edges(center: Array) -> Array:
    """Returns the edges of the first grid."""
    return center + jnp.asarray(np.concatenate([-FAR[::-1], [0.0], FAR]))


def second_edges(p: Array, known: Known, copies: Array, asked: Asked) -> Array:
    """Returns the edges of a sketch, up to where what lies beyond may count as infinite, by masses of the first grid.

    All of one loss.
    """
    half, center = len(FAR), known.center
    below, above = running(jnp.stack([p, p[::-1]]))
    # For the sum's delta that of a single loss will do, and some more.
    reached = jnp.sum(jnp.where(first_edges(center) >= asked.value, p[1 : 2 * half + 2], 0.0)) * np.exp(-3.0)
    cut = BEYOND * jnp.where(asked.is_epsilon, asked.value / jnp.maximum(copies, 1.0), reached)
    far = jnp.asarray(FAR)
    up = far[jnp.minimum(first_index(above[::-1][half + 2 : 2 * half + 2] <= cut), half - 1)]
    # Tilting upwards only makes the lower tail smaller.
    down = far[jnp.minimum(first_index(below[half - 1 :: -1] <= jnp.minimum(cut, np.exp(-80.0))), half - 1)]
    # A loss of a single value still needs a window.
    up = jnp.maximum(jnp.minimum(up, known.supremum - center), 1e-30)
    down = jnp.maximum(jnp.minimum(down, center - known.infimum), 1e-30)
    # The ends themselves belong to the outer cells, with whatever rounding left beyond them: next to a loss that is
    # never passed that may be the bulk.
    largest = jnp.abs(center) + jnp.maximum(down, up)
    wrong = 2 * (known.wrong[0] + (known.wrong[1] - known.wrong[0]) * largest)
    edges = jnp.concatenate([center - down * DISTANCES[::-1], center + up * UPWARD[1:]])
    return edges.at[0].add(-1e-9 * down - wrong).at[-1].add(1e-9 * up + wrong)


class _Guess(NamedTuple):
    """Numbers of which six digits will do."""

    order: Array
    mesh: Array
    is_whole: Array
    width: Array
    below: Array
    rate: Array
    low: Array
    high: Array
    middle: Array
    """Index of the edge next to the median, (m,)."""
    apart: Array
    """How far apart points are to be in the cells of the sketch, in units of the mesh: powers of two, (m, cells)."""


def choose(edges: Array, cells: CellMasses, known: Known, asked: Asked, points: int) -> Plan:
    """Returns the plan for losses of which sketches (m, ...) are known: ``cells`` below, between and above the edges.

    Any t > 0 is valid. What truncation and rounding cost is, relative to delta, their share of the tilted mass times
    the exponential of sum k K(t) - t eps + t log t - (1 + t) log(1 + t) - log delta, so the t that makes this least
    loses least by them; a smaller t has smaller windows where large losses are rare. A mesh h costs delta about k h^2
    t (1 + t) / 12 of itself. Points are apart like the cube root of one over the tilted density: of all meshes of as
    many points that costs least. Where large losses are rare delta is made of single ones beyond epsilon, which a
    tilted density overrates, the more the larger they are: its weights end where they meet what they are a bound of.

    The circle is as long as the sum's window where that is found to have few frequencies, and the spectrum is taken
    whole where it fits :data:`CIRCLE` times the points, or has to.
    """
    guess = roughly(lambda *args: _guessed(points, *args))(edges, cells.p, cells.q, known, asked)
    # To the last digit: atoms lie on the mesh, and the bulk of a rare loss at a point.
    distance = known.anchors[:, 1] - known.anchors[:, 0]
    first = first_index(jnp.isfinite(distance))
    distance = distance[jnp.minimum(first, len(distance) - 1)]
    halvings = jnp.floor(jnp.log2(distance / guess.mesh))
    mesh = jnp.where(
        jnp.isfinite(distance) & (halvings >= 0), distance * power_of_two(-jnp.maximum(halvings, 0.0)), guess.mesh
    )
    needed, below = guess.width / mesh, guess.below / mesh
    length = jnp.where(guess.is_whole, 1.0 * CIRCLE * points, jnp.ceil(needed) + 8)
    laid = jax.vmap(lambda *args: _laid(points, mesh, *args))
    of_rows = guess.low, guess.high, guess.middle, guess.apart
    return Plan(
        guess.order, mesh, guess.is_whole, length, below + (length - needed) / 2, guess.rate * mesh,
        *laid(edges, cells.p, cells.q, known, *of_rows),
    )  # fmt: skip


def _guessed(points: int, edges: Array, p: Array, q: Array, known: Known, asked: Asked) -> _Guess:
    k, beyond = known.steps, jnp.sum(p[:, CELLS + 1 :], axis=1, keepdims=True)
    p, q = p[:, 1 : CELLS + 1], q[:, 1 : CELLS + 1]
    runs, copies = k > 0, jnp.maximum(jnp.sum(k), 1.0)
    below, above = running(jnp.stack([p, p[:, ::-1]]))
    logs = jnp.where(p > 0, jnp.log(p), -jnp.inf)
    ratio, middles = logs - jnp.log(q), (edges[:, 1:] + edges[:, :-1]) / 2
    losses = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, middles), edges[:, :-1], edges[:, 1:])

    def of_sum(rows: Array, times: Array = k) -> Array:
        """Returns the sum over all runs of values (m, n)."""
        return jnp.sum(jnp.where(runs[:, None], times[:, None] * rows, 0.0), axis=0)

    def weighed(orders: Array, epsilon: Array) -> Array:
        """Returns logs of the weights by which a single loss counts for delta, (m, n, cells), tilted by the orders.

        They are e^(ty), as in Chernoff's bound, up to where that meets what it is a bound of, and from there on that.
        Where large losses are rare the bound's best order would see nothing but losses far above epsilon.
        """
        t, y = orders[None, :, None], losses[:, None, :]
        met = jnp.log(-jnp.expm1(epsilon - y)) + t * epsilon - log_peak(t)
        return logs[:, None, :] + jnp.where(y > epsilon + jnp.log1p(1 / t), met, t * y)

    def sums_of(weights: Array) -> tuple[Array, Array, Array]:
        """Returns, of logs of weights (m, n, cells), the weights over the largest, their sums and the sums' logs."""
        top = jnp.max(weights, axis=2, keepdims=True)
        scaled = jnp.exp(weights - top)
        total = jnp.sum(scaled, axis=2, keepdims=True)
        return scaled, total, (top + jnp.log(total))[:, :, 0]

    def look(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        """Returns the order whose estimate of delta is the least, the epsilon at which it is looked at, and more.

        Namely of all orders (n,), and the logs of the estimates.
        """
        i, center, before, _, _ = state
        orders = center * jnp.asarray(LOOKS)[i]
        _, _, cumulants = sums_of(weighed(orders, before))
        # Of a share of a run, as a menu may have, no root is taken.
        exponents = of_sum(cumulants, jnp.maximum(k, 1.0)) + log_peak(orders)
        exponents = jnp.where(jnp.isfinite(exponents), exponents, jnp.inf)
        least = jnp.min((exponents - jnp.log(asked.value)) / orders)
        epsilon = jnp.where(asked.is_epsilon, jnp.maximum(least, 0.0), asked.value)
        estimates = exponents - orders * epsilon
        # The lowest order that will do: a single run's estimates fall with the order up to infinity. Where delta is
        # below what float64 can tell from 0 no more is to be won, and extreme orders see nothing.
        is_good = estimates <= jnp.maximum(jnp.min(estimates) + ENOUGH, -710.0)
        best = orders[jnp.minimum(first_index(is_good), len(orders) - 1)]
        # Next to the largest loss of all, more than what the goal can tell apart is not to be seen.
        most = STEEPEST / (asked.relative * jnp.maximum(epsilon, TINY) + asked.absolute)
        best = jnp.where(asked.is_epsilon, jnp.minimum(best, most), best) if asked.order is None else asked.order
        # Once neither moves any more the last of the looks follows, after which there is none.
        is_settled = (i > 0) & (epsilon >= (1 - SETTLED) * before) & (best >= 0.8 * center) & (best <= 1.25 * center)
        i = jnp.where(is_settled, jnp.maximum(i + 1, len(LOOKS) - 1), i + 1)
        return i, best, epsilon, orders, estimates

    nothing = jnp.zeros(LOOKS.shape[1], p.dtype)
    before = jnp.where(asked.is_epsilon, jnp.inf, asked.value)
    begin = jnp.zeros((), jnp.int32), jnp.ones_like(asked.value), before, nothing, nothing
    _, _, epsilon, orders, estimates = jax.lax.while_loop(lambda state: state[0] < len(LOOKS), look, begin)
    # Chernoff's bounds at the orders of the last look, and the variances of the tilted sum.
    shares, total, cumulants = sums_of(logs[:, None, :] + orders[None, :, None] * losses[:, None, :])
    shares = shares / total
    mean = jnp.sum(shares * losses[:, None, :], axis=2, keepdims=True)
    variances = of_sum(jnp.sum(shares * (losses[:, None, :] - mean) ** 2, axis=2))
    loss = of_sum(cumulants) + log_peak(orders) - orders * epsilon
    loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
    best = orders[0]
    least = jnp.maximum(jnp.min(estimates), -710.0)
    delta = jnp.where(asked.is_epsilon, asked.value, jnp.exp(least - LOOSENESS))
    of_epsilon = (asked.relative * epsilon + asked.absolute) * best
    aim = jnp.clip(
        jnp.where(asked.is_epsilon, of_epsilon, asked.relative + asked.absolute / jnp.maximum(delta, TINY)), 1e-12, 1.0
    )

    # The narrowest sum is chosen of those where rounding does not tell, if there are some. A tilt that is given suits a
    # sum that this is a part of.
    excess = (loss - least if asked.order is None else jnp.zeros_like(loss)) + LOOSENESS
    tails = jnp.log(SPARED * aim) - excess
    is_noisy = excess > jnp.maximum(jnp.log(0.1 * aim) - jnp.log(ROUNDING * copies), jnp.min(excess) + NOISE)
    width = jnp.where(is_noisy, jnp.inf, -tails * variances)
    chosen = jnp.minimum(first_index(width <= 1.02 * jnp.min(width)), len(orders) - 1)
    chosen = chosen if asked.order is None else jnp.zeros_like(chosen)
    order, tail, deviation = orders[chosen], tails[chosen], jnp.sqrt(variances[chosen])
    cumulant = cumulants[:, chosen][:, None]
    # What lies below the window is moved up to it; what lies above counts as infinite.
    raised = jnp.log(below) + order * edges[:, 1:] - cumulant
    first = jnp.sum(raised <= tail - jnp.log(copies), axis=1)
    last = jnp.maximum(CELLS - jnp.sum(beyond + above <= SPARED * aim * delta / copies, axis=1), 1)
    low, high = (jnp.take_along_axis(edges, i[:, None], axis=1) for i in (jnp.minimum(first, last - 1), last))
    # An atom on a point is as narrow as can be.
    atom = known.anchors[:, :1]
    holds_atom = (edges[:, :-1] <= atom) & (edges[:, 1:] >= atom)
    smooth = weighed(orders[:1], epsilon)[:, 0]
    smooth = jnp.where(holds_atom, 0.0, jnp.exp(smooth - jnp.max(smooth, axis=1, keepdims=True)))
    smooth = smooth / jnp.maximum(jnp.sum(smooth, axis=1, keepdims=True), TINY)
    middle, half, spacing, costs, lengths = _apart(edges, smooth, low, high)
    is_even = jnp.isfinite(known.anchors[:, 1] - known.anchors[:, 0])
    spacing = jnp.where(is_even[:, None], 1.0, spacing)
    lengths = jnp.where(runs, jnp.where(is_even, (high - low)[:, 0], lengths), 0.0)
    if len(k) > 1:
        scale = _scales(jnp.where(runs, k * jnp.where(is_even, 1.0, costs), 0.0), lengths, k)
        lengths, spacing = lengths / scale, spacing * scale[:, None]
    # A loss of a single value has a mesh, too.
    finest = FINE * jnp.max(jnp.where(runs[:, None], jnp.abs(jnp.concatenate([low, high], axis=1)), 0.0))
    mesh = jnp.maximum(SPARE * jnp.max(lengths) / (points - MARGIN), jnp.maximum(finest, 1e-30))

    # Chernoff's bounds on where the sum lies.
    shares = jnp.exp(logs + order * losses - cumulant)
    mean = jnp.sum(shares * losses, axis=1, keepdims=True)
    apart = jnp.clip(losses, low, high) - mean
    span = jnp.max(jnp.where(runs, (high - low)[:, 0], 0.0))
    rate = 1 / jnp.maximum(deviation / GENTLE, span)
    signed = jnp.asarray(np.concatenate([RATES, -RATES])) * rate
    grown = jnp.where(shares[:, None, :] > 0, jnp.expm1(signed[None, :, None] * apart[:, None, :]), 0.0)
    ends = (of_sum(jnp.log1p(jnp.sum(shares[:, None, :] * grown, axis=2))) - tail) / signed
    ends = jnp.where(jnp.isfinite(ends), jnp.abs(ends), jnp.inf).reshape(2, -1)
    above_mean, below_mean = jnp.min(ends, axis=1) * WIDER
    width = above_mean + below_mean + 8 * mesh
    room = 1.0 * CIRCLE * points - 16
    turns = (
        np.array([0.7, 0.85, 1.0])[None, :, None]
        * (2 * np.pi * frequencies_for(points) / 4 / width)
        * apart[:, None, :]
    )
    cosine, sine = (jnp.sum(shares[:, None, :] * part, axis=2) for part in (jnp.cos(turns), jnp.sin(turns)))
    decay = jnp.max(of_sum(jnp.log(cosine**2 + sine**2 + TINY) / 2))
    # What bounds frequencies beyond those that are known, up to pi over a distance, gains with each step whose points
    # are as near to one another as that by what its law, if normal, has in common with itself so far off.
    distances = mesh * _DISTANCES
    nearest = mesh * jnp.min(spacing, axis=1, keepdims=True)
    overlap = jnp.exp(-0.23 * (distances[None] / half) ** 2)
    steady = of_sum(jnp.where(nearest <= distances[None], STEADY * overlap, 0.0))
    # At pi over a distance the best of what nearer ones say.
    steady = jnp.max(GAINS * steady[None], axis=1)
    is_beyond = (distances < width / (2 * frequencies_for(points))) | (_DISTANCES == 1)
    steady = jnp.min(jnp.where(is_beyond, steady, jnp.inf))
    has_atoms = jnp.any(runs & jnp.isfinite(known.anchors[:, 0]))
    falls = (jnp.maximum(decay, -steady) <= tail - jnp.log(room)) & ~has_atoms
    is_whole = (width <= room * mesh) | ~falls | asked.is_whole
    # On a coarser mesh the same distances are fewer of its points.
    coarser = jnp.where(is_whole, jnp.maximum(width / room / mesh, 1.0), 1.0)
    mesh, spacing = mesh * coarser, jnp.maximum(spacing / power_of_two(jnp.floor(jnp.log2(coarser))), 1.0)
    return _Guess(order, mesh, is_whole, width, below_mean, rate, low[:, 0], high[:, 0], middle, spacing)


def _apart(edges: Array, shares: Array, low: Array, high: Array) -> tuple[Array, ...]:
    """Returns the edge of the median, the width of half of the losses (m, 1), how far apart points are to be (m,
    cells), what it costs and how many they are.

    ``shares`` (m, cells): of the tilted mass. In units of the least distance between points: powers of two.
    """
    inside = jnp.clip(edges, low, high)
    lengths, widths = inside[:, 1:] - inside[:, :-1], edges[:, 1:] - edges[:, :-1]
    # About that of the bulk: of half of the losses.
    quarters = jnp.sum(running(shares)[:, None, :] < np.array([0.25, 0.5, 0.75])[None, :, None], axis=2)
    quarters = jnp.minimum(quarters, CELLS - 1) + np.array([[0, 0, 1]])
    begin, center, end = jnp.split(jnp.take_along_axis(edges, quarters, axis=1), 3, axis=1)
    half = end - begin
    wanted = jnp.floor(jnp.log2(0.5 / half * widths / shares) / 3)
    spacing = power_of_two(jnp.clip(jnp.nan_to_num(wanted), 0, WIDEST))
    # Where a rare loss's bulk ends there is little, but it balances there. Beyond the window as at its ends.
    is_near = jnp.minimum(jnp.abs(inside[:, 1:] - center), jnp.abs(inside[:, :-1] - center)) <= NEAR * half
    spacing = jnp.where(is_near, 1.0, spacing)
    first, last = jnp.sum(edges[:, 1:] <= low, axis=1), jnp.sum(edges[:, :-1] < high, axis=1) - 1
    nearest = jnp.clip(np.arange(CELLS)[None], first[:, None], last[:, None])
    spacing = jnp.take_along_axis(spacing, nearest, axis=1)
    return quarters[:, 1], half, spacing, jnp.sum(shares * spacing**2, axis=1), jnp.sum(lengths / spacing, axis=1)


def _scales(costs: Array, lengths: Array, k: Array) -> Array:
    """Returns by which powers of two the meshes of losses (m,) are wider, so that all take about as many points.

    With the length of the finest one's window u the others cost as the squares of their own or of u.
    """
    of_unit = jnp.sum(costs[None, :] * jnp.maximum(lengths[None, :], lengths[:, None]) ** 2, axis=1)
    copies = jnp.sum(jnp.where(lengths[None, :] <= lengths[:, None], k[None, :], 0.0), axis=1)
    fits = of_unit <= ALIKE * jnp.sum(costs * lengths**2)
    unit = jnp.max(jnp.where(fits, lengths, 0.0))
    unit = jnp.maximum(unit, jnp.min(jnp.where(copies >= jnp.minimum(FINEST, jnp.sum(k)), lengths, jnp.inf)))
    wider = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(lengths, unit) / unit)), 0, WIDEST)
    return power_of_two(wider)


def _laid(
    points: int, mesh: Array, edges: Array, p: Array, q: Array, known: Known, low: Array, high: Array, middle: Array,
    apart: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """Returns the first point of one loss, the points' positions, the last that is kept, and the bin about the bulk.

    Blocks of points are counted from the median to either side; of the distances where a block begins and where it ends
    it has the smaller one. So the outermost may fall short of the window, and some more follow, each twice as wide as
    the last. Losses in arithmetic progression have points that are equally far apart.

    With a small sampling rate much of the mass may lie within a cell, or next to an end. The lattice is laid such that
    the bin about it balances by itself: a point is at log P/Q of that bin, and the mass is represented without
    first-order loss, from above as from below. Every other bin is balanced by flows.
    """
    size, center = points // BLOCKS, edges[middle]
    inside = jnp.clip(edges, low, high)
    # Nor farther apart than a part of their distance from the bulk: about an infimum little mass would fall far.
    away = jnp.minimum(jnp.abs(edges[1:] - center), jnp.abs(edges[:-1] - center)) / AWAY
    most = power_of_two(jnp.minimum(jnp.floor(jnp.log2(jnp.maximum(away / mesh, jnp.min(apart)))), WIDEST))
    apart = jnp.minimum(apart, most)
    cells = jnp.concatenate([jnp.zeros(1), running((inside[1:] - inside[:-1]) / (mesh * size * apart))])
    at_middle = cells[middle]
    before = jnp.minimum(jnp.ceil(at_middle) + 2, BLOCKS - 2)
    ends = np.arange(BLOCKS + 1) - before + at_middle
    at = apart[jnp.searchsorted(cells[1:-1], ends, side="right")]
    beyond = jnp.maximum(jnp.maximum(-ends[1:], ends[:-1] - cells[-1]), 0.0)
    spacing = jnp.minimum(at[:-1], at[1:]) * power_of_two(jnp.clip(jnp.floor(beyond), 0, FURTHER))
    spacing = jnp.min(spacing[None] * STEEP, axis=1)
    # Losses in arithmetic progression.
    is_even, anchor = jnp.isfinite(known.anchors[1] - known.anchors[0]), known.anchors[0]
    even = power_of_two(jnp.maximum(jnp.ceil(jnp.log2((high - low) / (mesh * (points - 4)))), 0.0))
    spacing = jnp.where(is_even, even, spacing)
    ahead = jnp.where(np.arange(BLOCKS) < before, spacing, 0.0)
    start = jnp.where(is_even, low, center - mesh * size * jnp.sum(ahead))

    # The bin about the bulk, or that at one end of the losses, if it has more: from one edge of the sketch to another.
    places = jnp.stack([center, known.infimum + mesh / 2, known.supremum - mesh / 2])
    lows = jnp.where(places - known.infimum < mesh, -1, jnp.sum(edges[None] <= places[:, None] - mesh / 2, axis=1) - 1)
    highs = jnp.sum(edges[None] < places[:, None] + mesh / 2, axis=1)
    highs = jnp.where(known.supremum - places < mesh, CELLS + 1, highs)
    index = np.arange(p.shape[0])[None]
    within = (index > lows[:, None]) & ((index <= highs[:, None]) | (highs > CELLS)[:, None])
    masses = jnp.sum(jnp.where((within & jnp.isfinite(places)[:, None])[None], jnp.stack([p, q])[:, None], 0.0), axis=2)
    most = jnp.minimum(first_index(masses[0] >= jnp.max(masses[0])), 2)
    (mass, of_q), lowest, highest = masses[:, most], lows[most], highs[most]
    balance = jnp.log(mass) - jnp.log(of_q)
    is_bulk = (mass > BULK) & jnp.isfinite(balance) & jnp.isnan(anchor)
    point = jnp.where(is_bulk, balance, jnp.where(jnp.isfinite(anchor), anchor, center))
    unit = mesh * jnp.where(is_even, spacing[0], 1.0)
    count = (point - start) / unit
    count = jnp.where(is_even, jnp.ceil(count) + 1, jnp.round(count))
    start = point - unit * count
    around = jnp.concatenate([jnp.full(1, -jnp.inf), edges, jnp.full(1, jnp.inf)])
    bulk = jnp.stack([around[lowest + 1], around[highest + 1]])
    begins = size * (running(spacing) - spacing)
    positions = (begins[:, None] + spacing[:, None] * np.arange(size)[None, :]).reshape(points)
    # One point more: an atom at the end may have been rounded to the other side of it.
    window = jnp.stack([jnp.floor((low - start) / mesh), jnp.ceil((high - start) / mesh) + 1])
    kept = jnp.sum(positions[None] < window[:, None], axis=1) - np.array([1, 0])
    kept = jnp.clip(kept, 0, points - 1).astype(jnp.int32)
    return start, positions, kept, bulk, jnp.where(is_bulk, count, -1.0)
