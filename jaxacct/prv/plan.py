"""The plan of a composition: its tilt, its windows and where the points of each privacy loss lie.

No bound depends on these choices; they decide how tight a bracket is and what it costs.

A loss is looked at twice. A grid of half octaves about its centre shows how far it reaches. A second grid, narrow about
the bulk and wide far out, gives its masses and mean losses: a sketch of it, from which sums, tilts and truncations cost
next to nothing. Whatever is computed from a sketch is independent of the kind of pair.

In reading order: the constants; :class:`Known`, :class:`Asked` and :class:`Plan`, the input and the output; the grids,
:func:`first_edges` and :func:`second_edges`; :func:`choose`, which calls ``_guess`` for the numbers of which six
digits will do, and ``_lay_out``, which lays out each loss's points. Of the guess, ``_look_for_orders`` and
``_choose_order`` choose the tilt, ``_apart`` and ``_scales`` the spacing of points, ``_window_of_sum`` the circle, and
``_decay`` tells whether few frequencies will do.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxacct.mechanisms.pair import CellMasses
from jaxacct.numerics.arithmetic import roughly
from jaxacct.numerics.precision import TINY, first_index, log_peak

FAR = np.exp2(np.arange(-70.0, 57.5, 0.5))
"""Distances of the first grid's edges from the centre, in nats. Sound for any values that increase."""

OCTAVE = 6
"""Number of a sketch's cells for each halving of the distance from the bulk. Speed and tightness only."""

DISTANCES = np.concatenate([[0.0], np.exp2(-np.arange(150)[::-1] / OCTAVE)])
"""Distances of a sketch's edges below the bulk, over that of its lowest edge: 25 octaves.

Sound for any values that increase from 0 to 1.
"""

EVEN = 160
"""Number of even cells of the distance upwards, used where the octaves' cells are wider. Tightness only.

A delta of 1e-300 is made of losses far out. They lie within one over the order of the tilt of one another, which is
some 1/40 of a distance about as large as theirs; in wider cells no order would see that any loss exceeds epsilon.
"""

CLOSE = DISTANCES[DISTANCES * (2 ** (1 / OCTAVE) - 1) < 1 / EVEN]
"""Distances from which on the octaves' cells are narrower than the even ones."""

UPWARD = np.concatenate([CLOSE, np.arange(np.floor(CLOSE[-1] * EVEN) + 1, EVEN + 1) / EVEN])
"""Distances of a sketch's edges above the bulk, over that of its highest edge. Sound as :data:`DISTANCES` is."""

CELLS = len(DISTANCES) + len(UPWARD) - 2
"""Number of cells of a sketch."""

BLOCKS = 128
"""Number of blocks of the points of one loss; within a block the points are equally far apart.

The number of points has to be a multiple of it. Tightness and speed only.
"""

CIRCLE = 4
"""Number of points of a circle that is transformed whole, for each point of a loss. Tightness and speed only."""

RATES = 2.0 ** np.arange(10)
"""Rates s of Chernoff's bounds on where the sum lies, in units of the least rate.

Each has to be twice the one before, as :func:`jaxacct.prv.compose.log_moments` squares from one to the next. Any number
of them is sound.
"""

WIDEST = 24
"""Largest number of doublings of the distance between points. Tightness only."""

FURTHER = 3
"""Largest number of doublings of the distance between points beyond the window. Tightness only."""

AWAY = 12
"""Least ratio of the distance from the bulk to the distance between points there. Tightness only."""


def frequencies_for(points: int) -> int:
    """Returns the number of frequencies on a long circle, for lattices of so many points."""
    # Largest number of frequencies at which the spectrum of a sum is known on a long circle, frequency 0 included.
    # Sound for any number whose product with `jaxacct.prv.compose.LARGEST` is at most 2^47. A hundred hold practically
    # all of the spectrum; but the bound on the frequencies beyond falls slowly, and is negligible only where mesh
    # points that are one standard deviation of a step apart differ much in phase.
    frequencies = 512
    return min(frequencies, CIRCLE * points // 2)


POWERS = np.ldexp(1.0, np.arange(-1022, 1024))
"""The normal powers of two in float64. A table, because XLA's exp2 of a whole number need not be a power of two."""


def power_of_two(exponent: Array) -> Array:
    """Returns two to the power of whole numbers, exactly."""
    return jnp.asarray(POWERS)[jnp.clip(exponent, -1022, 1023).astype(jnp.int32) + 1022]


def running(values: Array) -> Array:
    """Returns cumulative sums along the last axis, each including its own entry.

    A loop makes one kernel on a CPU, where XLA's own cumulative sum makes seven.
    """

    def add(total: Array, entry: Array) -> tuple[Array, Array]:
        return total + entry, total + entry

    # The state is the sum so far; entries are added in order.
    _, found = jax.lax.scan(add, jnp.zeros_like(values[..., 0]), jnp.moveaxis(values, -1, 0))
    return jnp.moveaxis(found, 0, -1)


class Known(NamedTuple):
    """The facts that pairs state of themselves, for each loss (m,)."""

    center: Float[Array, " m"]
    infimum: Float[Array, " m"]
    supremum: Float[Array, " m"]
    anchors: Float[Array, "m 2"]
    """Losses at which a mesh should have points, NaN where any will do. Two of them stand for an even progression."""
    wrong: Float[Array, "m 2"]
    """Bounds on the distance of an edge from where it was asked for, if losses are up to 0, and up to 1, in size."""
    steps: Float[Array, " m"]


class Asked(NamedTuple):
    """The aim of a plan: the question and the gap."""

    value: Float[Array, ""]
    """The delta asked about, less the probability of infinite losses; or the epsilon asked about."""
    is_epsilon: Bool[Array, ""]
    """Whether epsilon is wanted, so that ``value`` is a delta."""
    relative: Float[Array, ""]
    """The part of the gap aimed at that is relative to the answer."""
    absolute: Float[Array, ""]
    """The absolute part of the gap aimed at."""
    order: Float[Array, ""] | None = None
    """The tilt, where it is given."""
    is_whole: bool = False
    """Whether the spectrum has to be taken whole."""


class Plan(NamedTuple):
    """The choices made for one composition of losses (m,)."""

    order: Float[Array, ""]
    """The tilt, common to all."""
    mesh: Float[Array, ""]
    """The distance between points where they are densest, in nats."""
    is_whole: Bool[Array, ""]
    """Whether the spectrum of the sum is taken whole, on a circle of :data:`CIRCLE` times the points."""
    length: Float[Array, ""]
    """Mesh points of the circle."""
    below: Float[Array, ""]
    """Mesh points of the window below the mean of the sum."""
    rate: Float[Array, ""]
    """The least rate of Chernoff's bounds, per mesh point."""
    start: Float[Array, " m"]
    """The loss of the first point."""
    positions: Float[Array, "m points"]
    """Distances of the points from the first, in units of ``mesh``: whole numbers, a power of two apart in a block."""
    kept: Array
    """Indices of the first and of the last point that is kept, (m, 2): the loss is cut there."""
    bulk: Float[Array, "m 2"]
    """Ends of the bin about the bulk, or at an end of the losses if it has enough of it: it balances at ``center``."""
    center: Float[Array, " m"]
    """The point at which that bin balances, in mesh points from the first; below 0 where there is no such bin."""


def boundaries_for(edges: Array, size: int) -> Array:
    """Returns boundaries (size,) of cells: edges (n,), all that is below them and all that is above."""
    return jnp.concatenate([jnp.full(1, -jnp.inf), edges, jnp.full(size - 1 - len(edges), jnp.inf)])


def first_edges(center: Array) -> Array:
    """Returns the edges of the first grid, which reaches from the loss at the centre for :data:`FAR` to either side."""
    return center + jnp.asarray(np.concatenate([-FAR[::-1], [0.0], FAR]))


def second_edges(p: Array, known: Known, copies: Array, asked: Asked) -> Array:
    """Returns the edges of one loss's sketch, from its masses ``p`` on the first grid.

    The sketch reaches to where the mass beyond it is so small that it may count as infinite.
    """
    # Probability that a sketch leaves out on either side, over delta and over the steps. Tightness only.
    beyond = 1e-10
    half, center = len(FAR), known.center
    below, above = running(jnp.stack([p, p[::-1]]))
    # A single loss's probability of exceeding epsilon, with three nats to spare, stands for the sum's delta.
    reached = jnp.sum(jnp.where(first_edges(center) >= asked.value, p[1 : 2 * half + 2], 0.0)) * np.exp(-3.0)
    cut = beyond * jnp.where(asked.is_epsilon, asked.value / jnp.maximum(copies, 1.0), reached)
    far = jnp.asarray(FAR)
    up = far[jnp.minimum(first_index(above[::-1][half + 2 : 2 * half + 2] <= cut), half - 1)]
    # The tilt favours large losses, so the lower tail's share only shrinks: next to nothing need be cut from it.
    down = far[jnp.minimum(first_index(below[half - 1 :: -1] <= jnp.minimum(cut, np.exp(-80.0))), half - 1)]
    # A loss of a single value still needs a window.
    up = jnp.maximum(jnp.minimum(up, known.supremum - center), 1e-30)
    down = jnp.maximum(jnp.minimum(down, center - known.infimum), 1e-30)
    # The outermost edges move outwards by the error of an edge, so that the ends of the losses lie in the outer cells
    # of the sketch: where there is a largest or a least loss the bulk may lie next to it.
    largest = jnp.abs(center) + jnp.maximum(down, up)
    wrong = 2 * (known.wrong[0] + (known.wrong[1] - known.wrong[0]) * largest)
    edges = jnp.concatenate([center - down * DISTANCES[::-1], center + up * UPWARD[1:]])
    return edges.at[0].add(-1e-9 * down - wrong).at[-1].add(1e-9 * up + wrong)


class _Guess(NamedTuple):
    """The numbers of a plan of which six digits will do."""

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
    """Distances between points in the cells of the sketch, in units of the mesh: powers of two, (m, cells)."""


def choose(edges: Array, cells: CellMasses, known: Known, asked: Asked, points: int) -> Plan:
    """Returns the plan for losses whose sketches (m, ...) are known: ``cells`` below, between and above the edges.

    Any order t > 0 is valid. The cost of truncation and rounding, relative to delta, is their share of the tilted mass
    times the exponential of sum k K(t) - t eps + t log t - (1 + t) log(1 + t) - log delta. So the t that makes this
    exponent least loses least by them; a smaller t has smaller windows where large losses are rare. A mesh h costs
    delta about k h^2 t (1 + t) / 12 of itself. The distance between points is proportional to the cube root of one over
    the tilted density: of all meshes of as many points that costs least. Where large losses are rare, delta is made of
    single losses beyond epsilon. A tilted density overrates these, the more the larger they are, so its weights are
    capped where they meet the quantity that they bound.

    The circle is as long as the sum's window where the spectrum is found to have few frequencies. The spectrum is taken
    whole where the window fits :data:`CIRCLE` times the points, or where it has to be.
    """
    guess = roughly(lambda *args: _guess(points, *args))(edges, cells.p, cells.q, known, asked)
    # From here on to the last digit: atoms have to lie on the mesh, and the bulk of a rare loss at a point. So the mesh
    # is the distance between two atoms, if there is one, halved as often as is needed to be no coarser than guessed.
    distance = known.anchors[:, 1] - known.anchors[:, 0]
    first = first_index(jnp.isfinite(distance))
    distance = distance[jnp.minimum(first, len(distance) - 1)]
    halvings = jnp.floor(jnp.log2(distance / guess.mesh))
    mesh = jnp.where(
        jnp.isfinite(distance) & (halvings >= 0), distance * power_of_two(-jnp.maximum(halvings, 0.0)), guess.mesh
    )
    needed, below = guess.width / mesh, guess.below / mesh
    length = jnp.where(guess.is_whole, 1.0 * CIRCLE * points, jnp.ceil(needed) + 8)
    laid = jax.vmap(lambda *args: _lay_out(points, mesh, *args))
    of_rows = guess.low, guess.high, guess.middle, guess.apart
    return Plan(
        guess.order, mesh, guess.is_whole, length, below + (length - needed) / 2, guess.rate * mesh,
        *laid(edges, cells.p, cells.q, known, *of_rows),
    )  # fmt: skip


class _Sketch(NamedTuple):
    """The sketches of losses (m,), as sums take them."""

    losses: Array
    """Mean losses of the cells, (m, cells)."""
    logs: Array
    """Logs of the cells' masses, (m, cells)."""
    steps: Array
    """Numbers of runs, (m,)."""
    runs: Array
    """Whether there are any, (m,)."""
    copies: Array
    """Number of all runs, at least 1."""

    def of_sum(self, rows: Array, times: Array | None = None) -> Array:
        """Returns the sum over all runs of values (m, n)."""
        times = self.steps if times is None else times
        return jnp.sum(jnp.where(self.runs[:, None], times[:, None] * rows, 0.0), axis=0)

    def weigh(self, orders: Array, epsilon: Array) -> Array:
        """Returns logs of the weights by which a single loss counts for delta, (m, n, cells), tilted by the orders.

        A weight is e^(ty), as in Chernoff's bound, up to the loss at which the bound is met, and above it the bounded
        quantity itself. Where large losses are rare the best order of the plain bound would see nothing but losses far
        above epsilon.
        """
        t, y = orders[None, :, None], self.losses[:, None, :]
        met = jnp.log(-jnp.expm1(epsilon - y)) + t * epsilon - log_peak(t)
        return self.logs[:, None, :] + jnp.where(y > epsilon + jnp.log1p(1 / t), met, t * y)


def _sums_of(weights: Array) -> tuple[Array, Array, Array]:
    """Returns, of logs of weights (m, n, cells), the weights over the largest, their sums and the sums' logs."""
    top = jnp.max(weights, axis=2, keepdims=True)
    scaled = jnp.exp(weights - top)
    total = jnp.sum(scaled, axis=2, keepdims=True)
    return scaled, total, (top + jnp.log(total))[:, :, 0]


def _guess(points: int, edges: Array, p: Array, q: Array, known: Known, asked: Asked) -> _Guess:
    # Least mesh over the largest loss. Tightness only.
    fine = 1e-12
    # Number of points that blocks may waste, as a block may have to end inside of a window. Tightness only.
    margin = 5 * AWAY + 4
    # Ratio of the points set aside for a window to those that its length takes. Tightness only.
    spare = 1.2
    # The mean loss of a cell is log P/Q of it, and lies in the cell; rounding may move it out.
    k, beyond = known.steps, jnp.sum(p[:, CELLS + 1 :], axis=1, keepdims=True)
    p, q = p[:, 1 : CELLS + 1], q[:, 1 : CELLS + 1]
    runs, copies = k > 0, jnp.maximum(jnp.sum(k), 1.0)
    below, above = running(jnp.stack([p, p[:, ::-1]]))
    logs = jnp.where(p > 0, jnp.log(p), -jnp.inf)
    ratio, middles = logs - jnp.log(q), (edges[:, 1:] + edges[:, :-1]) / 2
    losses = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, middles), edges[:, :-1], edges[:, 1:])
    sketch = _Sketch(losses, logs, k, runs, copies)
    epsilon, orders, estimates = _look_for_orders(sketch, asked)
    order, tail, deviation, cumulant, spent = _choose_order(sketch, asked, epsilon, orders, estimates)
    # Each loss's window: mass below it is moved up to it, and mass above it counts as infinite. The first costs tilted
    # mass, the second delta itself; each may take its share of the error.
    raised = jnp.log(below) + order * edges[:, 1:] - cumulant
    first = jnp.sum(raised <= tail - jnp.log(copies), axis=1)
    last = jnp.maximum(CELLS - jnp.sum(beyond + above <= spent / copies, axis=1), 1)
    low, high = (jnp.take_along_axis(edges, i[:, None], axis=1) for i in (jnp.minimum(first, last - 1), last))
    # The spacing of points follows the smooth part of the density: an atom on a point is exact on any mesh.
    atom = known.anchors[:, :1]
    holds_atom = (edges[:, :-1] <= atom) & (edges[:, 1:] >= atom)
    smooth = sketch.weigh(orders[:1], epsilon)[:, 0]
    smooth = jnp.where(holds_atom, 0.0, jnp.exp(smooth - jnp.max(smooth, axis=1, keepdims=True)))
    smooth = smooth / jnp.maximum(jnp.sum(smooth, axis=1, keepdims=True), TINY)
    middle, half, spacing, costs, lengths = _apart(edges, smooth, low, high)
    is_even = jnp.isfinite(known.anchors[:, 1] - known.anchors[:, 0])
    spacing = jnp.where(is_even[:, None], 1.0, spacing)
    lengths = jnp.where(runs, jnp.where(is_even, (high - low)[:, 0], lengths), 0.0)
    # With several losses, each has a mesh that is a power of two times the common one.
    if len(k) > 1:
        scale = _scales(jnp.where(runs, k * jnp.where(is_even, 1.0, costs), 0.0), lengths, k)
        lengths, spacing = lengths / scale, spacing * scale[:, None]
    # A loss of a single value needs a positive mesh, too.
    finest = fine * jnp.max(jnp.where(runs[:, None], jnp.abs(jnp.concatenate([low, high], axis=1)), 0.0))
    mesh = jnp.maximum(spare * jnp.max(lengths) / (points - margin), jnp.maximum(finest, 1e-30))
    # Losses are taken from their means, as the exponentials would lose the differences.
    shares = jnp.exp(logs + order * losses - cumulant)
    mean = jnp.sum(shares * losses, axis=1, keepdims=True)
    apart = jnp.clip(losses, low, high) - mean
    span = jnp.max(jnp.where(runs, (high - low)[:, 0], 0.0))
    above_mean, below_mean, rate = _window_of_sum(sketch, shares, apart, span, deviation, tail)
    width = above_mean + below_mean + 8 * mesh
    room = 1.0 * CIRCLE * points - 16
    falls = _decay(sketch, shares, apart, spacing, half, mesh, width, frequencies_for(points)) <= tail - jnp.log(room)
    has_atoms = jnp.any(runs & jnp.isfinite(known.anchors[:, 0]))
    is_whole = (width <= room * mesh) | ~(falls & ~has_atoms) | asked.is_whole
    # On a circle that would be too short the mesh is coarser; the distances between points far out stay about the same.
    coarser = jnp.where(is_whole, jnp.maximum(width / room / mesh, 1.0), 1.0)
    mesh, spacing = mesh * coarser, jnp.maximum(spacing / power_of_two(jnp.floor(jnp.log2(coarser))), 1.0)
    return _Guess(order, mesh, is_whole, width, below_mean, rate, low[:, 0], high[:, 0], middle, spacing)


def _look_for_orders(sketch: _Sketch, asked: Asked) -> tuple[Array, Array, Array]:
    """Returns the epsilon where the search for an order ends, the orders (n,) looked at last, and logs of estimates.

    The estimates are of delta at that epsilon, by each of the orders.
    """
    # Orders of the successive looks, each row over the best order of the look before (the first row over 1). The first
    # row covers the whole range, the next ones refine while epsilon settles, and the last one looks at lower orders,
    # which have smaller windows. Tightness and speed only.
    looks = np.exp2([np.linspace(-8.0, 24.0, 21), *4 * [np.linspace(-3.0, 3.0, 21)], np.linspace(0.0, -6.0, 21)])
    # Largest order, in units of one over the error of epsilon aimed at. Tightness only.
    steepest = 10.0

    def look(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        """Returns the state after one more look at a row of ``looks``.

        The state is the number of the next look, the order whose estimate of delta is the least, the epsilon at which
        that is, all orders (n,) looked at, and the logs of their estimates.
        """
        # Nats by which an order's estimate of delta may exceed the least of all for the order to do. Tightness only.
        enough = 0.5
        # Share of epsilon by which it falls from one look to the next where another one is not worth it. Tightness
        # only.
        settled = 1e-3
        i, center, before, _, _ = state
        orders = center * jnp.asarray(looks)[i]
        _, _, cumulants = _sums_of(sketch.weigh(orders, before))
        # A share of a run, as a menu may have, counts as a whole one: the root of a moment would estimate nothing.
        exponents = sketch.of_sum(cumulants, jnp.maximum(sketch.steps, 1.0)) + log_peak(orders)
        exponents = jnp.where(jnp.isfinite(exponents), exponents, jnp.inf)
        least = jnp.min((exponents - jnp.log(asked.value)) / orders)
        epsilon = jnp.where(asked.is_epsilon, jnp.maximum(least, 0.0), asked.value)
        estimates = exponents - orders * epsilon
        # The lowest order that will do is taken, as a single run's estimates may fall with the order up to infinity.
        # Where delta is below what float64 can tell from 0 a better estimate wins nothing, and extreme orders see
        # nothing.
        is_good = estimates <= jnp.maximum(jnp.min(estimates) + enough, -710.0)
        best = orders[jnp.minimum(first_index(is_good), len(orders) - 1)]
        # Next to the largest loss of all the best order grows without end. One over the error aimed at is enough.
        most = steepest / (asked.relative * jnp.maximum(epsilon, TINY) + asked.absolute)
        best = jnp.where(asked.is_epsilon, jnp.minimum(best, most), best) if asked.order is None else asked.order
        # Once neither the epsilon nor the order moves, the last of the looks follows at once.
        is_settled = (i > 0) & (epsilon >= (1 - settled) * before) & (best >= 0.8 * center) & (best <= 1.25 * center)
        i = jnp.where(is_settled, jnp.maximum(i + 1, len(looks) - 1), i + 1)
        return i, best, epsilon, orders, estimates

    nothing = jnp.zeros(looks.shape[1], sketch.logs.dtype)
    before = jnp.where(asked.is_epsilon, jnp.inf, asked.value)
    begin = jnp.zeros((), jnp.int32), jnp.ones_like(asked.value), before, nothing, nothing
    # Each look raises its number by at least one, so there are at most as many as there are rows.
    _, _, epsilon, orders, estimates = jax.lax.while_loop(lambda state: state[0] < len(looks), look, begin)
    return epsilon, orders, estimates


def _choose_order(
    sketch: _Sketch, asked: Asked, epsilon: Array, orders: Array, estimates: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Returns the tilt: of the orders looked at, the one with the narrowest sum at which rounding does not tell.

    With it come the log of the tilted mass that truncation may cost, the standard deviation of the tilted sum, the
    cumulants (m, 1) of the losses at the order, and the part of delta that truncation may cost.
    """
    # Approximate error of a step's spectrum, relative to its tilted mass, in float64. Tightness only.
    rounding = 2e-14
    # Nats by which rounding may be larger than at the order where it is least, where it tells at all. Tightness only.
    noise = 2.0
    # Share of the error aimed at that truncation may make. Tightness only.
    spared = 0.01
    # Nats by which a Chernoff bound on delta typically lies above delta. Tightness only. Small probabilities far out
    # count for so much.
    looseness = 2.0
    # Chernoff's bounds at the orders of the last look, and the variances of the tilted sum.
    losses = sketch.losses[:, None, :]
    shares, total, cumulants = _sums_of(sketch.logs[:, None, :] + orders[None, :, None] * losses)
    shares = shares / total
    mean = jnp.sum(shares * losses, axis=2, keepdims=True)
    variances = sketch.of_sum(jnp.sum(shares * (losses - mean) ** 2, axis=2))
    loss = sketch.of_sum(cumulants) + log_peak(orders) - orders * epsilon
    loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
    least = jnp.maximum(jnp.min(estimates), -710.0)
    delta = jnp.where(asked.is_epsilon, asked.value, jnp.exp(least - looseness))
    of_epsilon = (asked.relative * epsilon + asked.absolute) * orders[0]
    aim = jnp.clip(
        jnp.where(asked.is_epsilon, of_epsilon, asked.relative + asked.absolute / jnp.maximum(delta, TINY)), 1e-12, 1.0
    )
    # A tilt that is given was chosen for a larger sum, of which this one is a part: its excess here means nothing.
    excess = (loss - least if asked.order is None else jnp.zeros_like(loss)) + looseness
    tails = jnp.log(spared * aim) - excess
    is_noisy = excess > jnp.maximum(jnp.log(0.1 * aim) - jnp.log(rounding * sketch.copies), jnp.min(excess) + noise)
    width = jnp.where(is_noisy, jnp.inf, -tails * variances)
    chosen = jnp.minimum(first_index(width <= 1.02 * jnp.min(width)), len(orders) - 1)
    chosen = chosen if asked.order is None else jnp.zeros_like(chosen)
    cumulant = cumulants[:, chosen][:, None]
    return orders[chosen], tails[chosen], jnp.sqrt(variances[chosen]), cumulant, spared * aim * delta


def _window_of_sum(
    sketch: _Sketch, shares: Array, apart: Array, span: Array, deviation: Array, tail: Array
) -> tuple[Array, Array, Array]:
    """Returns how far the tilted sum reaches above and below its mean, and the least rate of Chernoff's bounds on it.

    ``shares`` (m, cells) are the tilted masses and ``apart`` the losses from their means; the best of all rates counts
    on either side.
    """
    # Factor by which a window is wider than its sketch's. Tightness only.
    wider = 1.04
    # Least rate, in units of one over the sum's standard deviation. Tightness only. It is capped at one over the
    # longest window of a loss.
    gentle = 0.2
    rate = 1 / jnp.maximum(deviation / gentle, span)
    signed = jnp.asarray(np.concatenate([RATES, -RATES])) * rate
    grown = jnp.where(shares[:, None, :] > 0, jnp.expm1(signed[None, :, None] * apart[:, None, :]), 0.0)
    ends = (sketch.of_sum(jnp.log1p(jnp.sum(shares[:, None, :] * grown, axis=2))) - tail) / signed
    ends = jnp.where(jnp.isfinite(ends), jnp.abs(ends), jnp.inf).reshape(2, -1)
    above_mean, below_mean = jnp.min(ends, axis=1) * wider
    return above_mean, below_mean, rate


def _decay(
    sketch: _Sketch, shares: Array, apart: Array, spacing: Array, half: Array, mesh: Array, width: Array, known: int
) -> Array:
    """Returns about the log to which the spectrum of the sum falls beyond the ``known`` frequencies of a long circle.

    ``spacing`` (m, cells) is in units of the mesh, and ``half`` (m, 1) the width of half of the losses.
    """
    # Nats by which each step lowers the bound on frequencies beyond the known ones, at the least. A guess; speed only.
    # The bound itself is computed from the masses. This estimate only decides whether the spectrum is taken whole.
    least_steady = 0.22
    powers = np.exp2(np.arange(WIDEST + 1.0))
    # Values of 1 - cos(m w) at w = 2 pi / 3 n, n (rows) and m powers of two, m at most n: about the least near by. An
    # estimate, used with `least_steady`.
    gains = np.tril(2 * np.sin(np.pi / 3 * powers[None, :] / powers[:, None]) ** 2)
    # First at the highest of the frequencies that would be known, from the characteristic functions of the sketches.
    turns = np.array([0.7, 0.85, 1.0])[None, :, None] * (2 * np.pi * known / 4 / width) * apart[:, None, :]
    cosine, sine = (jnp.sum(shares[:, None, :] * part, axis=2) for part in (jnp.cos(turns), jnp.sin(turns)))
    decay = jnp.max(sketch.of_sum(jnp.log(cosine**2 + sine**2 + TINY) / 2))
    # Then beyond them. The bound on frequencies up to pi over a distance falls with each step whose points are at most
    # that far apart, by the overlap of its law with its own shift by the distance, here that of a normal law.
    distances = mesh * powers
    nearest = mesh * jnp.min(spacing, axis=1, keepdims=True)
    overlap = jnp.exp(-0.23 * (distances[None] / half) ** 2)
    steady = sketch.of_sum(jnp.where(nearest <= distances[None], least_steady * overlap, 0.0))
    # At pi over a distance the best of the bounds by shorter distances counts.
    steady = jnp.max(gains * steady[None], axis=1)
    is_beyond = (distances < width / (2 * known)) | (powers == 1)
    return jnp.maximum(decay, -jnp.min(jnp.where(is_beyond, steady, jnp.inf)))


def _apart(edges: Array, shares: Array, low: Array, high: Array) -> tuple[Array, ...]:
    """Returns the spacing of each loss's points, for ``shares`` (m, cells) of the tilted mass in the sketch's cells.

    These are the index of the edge next to the median (m,), the width of half of the losses (m, 1), the distances
    between points (m, cells) in units of the least, powers of two, their cost (m,) and the length (m,) of the window
    in units of the spacing, which is the number of points times the mesh.
    """
    # Distance from the median within which points are densest, over the width of half of the losses. Tightness only.
    near = 1.25
    inside = jnp.clip(edges, low, high)
    lengths, widths = inside[:, 1:] - inside[:, :-1], edges[:, 1:] - edges[:, :-1]
    # The unit of spacing suits the bulk, the half of the losses between the quartiles.
    quarters = jnp.sum(running(shares)[:, None, :] < np.array([0.25, 0.5, 0.75])[None, :, None], axis=2)
    quarters = jnp.minimum(quarters, CELLS - 1) + np.array([[0, 0, 1]])
    begin, center, end = jnp.split(jnp.take_along_axis(edges, quarters, axis=1), 3, axis=1)
    half = end - begin
    wanted = jnp.floor(jnp.log2(0.5 / half * widths / shares) / 3)
    spacing = power_of_two(jnp.clip(jnp.nan_to_num(wanted), 0, WIDEST))
    # Points stay dense about the median: where the bulk of a rare loss ends there is little mass, but the bulk balances
    # there. Beyond the window the spacing is that at the window's ends.
    is_near = jnp.minimum(jnp.abs(inside[:, 1:] - center), jnp.abs(inside[:, :-1] - center)) <= near * half
    spacing = jnp.where(is_near, 1.0, spacing)
    first, last = jnp.sum(edges[:, 1:] <= low, axis=1), jnp.sum(edges[:, :-1] < high, axis=1) - 1
    nearest = jnp.clip(np.arange(CELLS)[None], first[:, None], last[:, None])
    spacing = jnp.take_along_axis(spacing, nearest, axis=1)
    return quarters[:, 1], half, spacing, jnp.sum(shares * spacing**2, axis=1), jnp.sum(lengths / spacing, axis=1)


def _scales(costs: Array, lengths: Array, k: Array) -> Array:
    """Returns the powers of two by which the meshes of losses (m,) are wider, so that all take about as many points.

    With u the length of the window that has the finest mesh, each loss costs as the square of its own length or of u,
    whichever is larger.
    """
    # Factor by which the cost of all losses may rise for the finest mesh to be less fine. Tightness only.
    alike = 1.25
    # Least number of steps on the finest mesh. Tightness only. Nothing else makes a spectrum fall at its highest
    # frequencies.
    finest = 128
    # Each loss's length is tried for u: the total cost, and the number of runs that would be on the finest mesh.
    of_unit = jnp.sum(costs[None, :] * jnp.maximum(lengths[None, :], lengths[:, None]) ** 2, axis=1)
    copies = jnp.sum(jnp.where(lengths[None, :] <= lengths[:, None], k[None, :], 0.0), axis=1)
    fits = of_unit <= alike * jnp.sum(costs * lengths**2)
    unit = jnp.max(jnp.where(fits, lengths, 0.0))
    unit = jnp.maximum(unit, jnp.min(jnp.where(copies >= jnp.minimum(finest, jnp.sum(k)), lengths, jnp.inf)))
    wider = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(lengths, unit) / unit)), 0, WIDEST)
    return power_of_two(wider)


def _lay_out(
    points: int, mesh: Array, edges: Array, p: Array, q: Array, known: Known, low: Array, high: Array, middle: Array,
    apart: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """Returns the layout of one loss: ``start``, ``positions``, ``kept``, ``bulk`` and ``center`` of :class:`Plan`.

    Blocks of points are counted from the median to either side. The spacing wanted where a block begins and that where
    it ends may differ: the block has the smaller one. So the outermost block may fall short of the window, and some
    more follow, each twice as wide as the last. Losses in arithmetic progression have points equally far apart.

    With a small sampling rate much of the mass may lie within a cell, or next to an end. The lattice is laid such that
    the bin about that mass balances by itself: a point is at log P/Q of the bin, and the mass is represented without
    first-order loss, from above as from below. Every other bin is balanced by flows.
    """
    # Least probability of a bin for the mesh to be laid such that the bin balances. Tightness only.
    of_bulk = 0.05
    # Largest ratios of the distances between points of two blocks: 8 from one block to the next. Tightness only. The
    # mass that a narrow bin leaves to a wide one beside it falls far.
    steep = np.exp2(np.minimum(3.0 * np.abs(np.subtract.outer(np.arange(BLOCKS), np.arange(BLOCKS))), 60))
    size, center = points // BLOCKS, edges[middle]
    inside = jnp.clip(edges, low, high)
    # Points are no farther apart than a part of their distance from the bulk: next to an infimum, where a wide cell
    # would have little mass of its own, some of it would fall far.
    away = jnp.minimum(jnp.abs(edges[1:] - center), jnp.abs(edges[:-1] - center)) / AWAY
    most = power_of_two(jnp.minimum(jnp.floor(jnp.log2(jnp.maximum(away / mesh, jnp.min(apart)))), WIDEST))
    apart = jnp.minimum(apart, most)
    # The number of blocks from the first edge up to each. The median is at a whole number of blocks from the start.
    cells = jnp.concatenate([jnp.zeros(1), running((inside[1:] - inside[:-1]) / (mesh * size * apart))])
    at_middle = cells[middle]
    before = jnp.minimum(jnp.ceil(at_middle) + 2, BLOCKS - 2)
    ends = np.arange(BLOCKS + 1) - before + at_middle
    at = apart[jnp.searchsorted(cells[1:-1], ends, side="right")]
    beyond = jnp.maximum(jnp.maximum(-ends[1:], ends[:-1] - cells[-1]), 0.0)
    spacing = jnp.minimum(at[:-1], at[1:]) * power_of_two(jnp.clip(jnp.floor(beyond), 0, FURTHER))
    spacing = jnp.min(spacing[None] * steep, axis=1)
    # Losses in arithmetic progression: one spacing for all, a power of two wide enough for the window.
    is_even, anchor = jnp.isfinite(known.anchors[1] - known.anchors[0]), known.anchors[0]
    even = power_of_two(jnp.maximum(jnp.ceil(jnp.log2((high - low) / (mesh * (points - 4)))), 0.0))
    spacing = jnp.where(is_even, even, spacing)
    ahead = jnp.where(np.arange(BLOCKS) < before, spacing, 0.0)
    start = jnp.where(is_even, low, center - mesh * size * jnp.sum(ahead))

    # The bin about the bulk, or the one at an end of the losses, whichever has the most mass. It reaches from one edge
    # of the sketch to another, as the masses between those are known.
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
    is_bulk = (mass > of_bulk) & jnp.isfinite(balance) & jnp.isnan(anchor)
    point = jnp.where(is_bulk, balance, jnp.where(jnp.isfinite(anchor), anchor, center))
    unit = mesh * jnp.where(is_even, spacing[0], 1.0)
    count = (point - start) / unit
    count = jnp.where(is_even, jnp.ceil(count) + 1, jnp.round(count))
    start = point - unit * count
    around = jnp.concatenate([jnp.full(1, -jnp.inf), edges, jnp.full(1, jnp.inf)])
    bulk = jnp.stack([around[lowest + 1], around[highest + 1]])
    begins = size * (running(spacing) - spacing)
    positions = (begins[:, None] + spacing[:, None] * np.arange(size)[None, :]).reshape(points)
    # One point more at the upper end: an atom there may have been rounded to the other side of it.
    window = jnp.stack([jnp.floor((low - start) / mesh), jnp.ceil((high - start) / mesh) + 1])
    kept = jnp.sum(positions[None] < window[:, None], axis=1) - np.array([1, 0])
    kept = jnp.clip(kept, 0, points - 1).astype(jnp.int32)
    return start, positions, kept, bulk, jnp.where(is_bulk, count, -1.0)
