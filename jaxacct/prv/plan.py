"""Choices made before anything is discretized: the tilt, the windows and the meshes. No bound depends on them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.dominating_pairs import DominatingPair
from jaxacct.precision import first_index
from jaxacct.prv.compose import MARGIN, truncation
from jaxacct.prv.discretize import discretize
from jaxacct.prv.windows import FAR_RATES, log_moments, reach

ORDERS = 48
"""Candidate orders of the tilt, from 2^-8 to 2^20."""

TILT_NODES = 96
"""Quadrature nodes of the cumulants by which the tilt is chosen."""

TILT_EXCESS = 8.0
"""How far, in nats, the Chernoff exponent may lie above its least for the sake of a smaller window, at most."""

TILT_LOSS = 1e-4
"""Relative error of delta that this may cost by the rounding of all compositions, about ROUNDING_PER_STEP each."""

ROUNDING_PER_STEP = 2e-13
"""Bound of the error of one convolution for a bulk of an eighth of the window; hardly depends on the points."""


def tilt(
    parts: tuple[tuple[DominatingPair, Array], ...], value: Array, quantity: str, points: int
) -> tuple[Array, tuple[tuple[Array, Array], ...]]:
    """Returns the order by which the losses are tilted, and the window (low, high) of one tilted step of each.

    ``parts`` are pairs with a leading axis and how often each is run. Any t > 0 is valid. What truncation and rounding
    cost is, relative to delta, their share of the tilted mass times the exponential of sum k K(t) - t eps + t log t -
    (1 + t) log(1 + t) - log delta, so the t that makes this least loses least. A smaller t has a smaller window where
    large losses are rare, hence a finer mesh. Of the orders that lose only so much more than the best, the one with the
    smallest windows is taken.
    """
    orders = jnp.exp2(jnp.linspace(-8.0, 20.0, ORDERS))

    def cumulants_of(pair: DominatingPair) -> Array:
        return jax.vmap(lambda t: pair.cumulant(t, nodes=TILT_NODES))(orders)

    cumulants = [jax.vmap(cumulants_of)(pair) for pair, _ in parts]
    total = jnp.zeros(ORDERS)
    for (_, k), c in zip(parts, cumulants, strict=True):
        total = total + jnp.sum(jnp.where(k[:, None] > 0, k[:, None] * c, 0.0), axis=0)
    exponent = total + orders * jnp.log(orders) - (1 + orders) * jnp.log1p(orders)
    exponent = jnp.where(jnp.isfinite(exponent), exponent, jnp.inf)
    epsilon = jnp.min((exponent - jnp.log(value)) / orders) if quantity == "epsilon" else value
    loss = exponent - orders * epsilon
    steps = sum((jnp.sum(k) for _, k in parts), jnp.zeros(()))
    tail = truncation(points) / jnp.maximum(steps, 1.0)

    def windows_of(pair: DominatingPair, c: Array) -> tuple[Array, Array]:
        return jax.vmap(lambda t, log_mass: window(pair, t, log_mass, tail))(orders, c)

    windows = [jax.vmap(windows_of)(pair, c) for (pair, _), c in zip(parts, cumulants, strict=True)]
    width = sum((jnp.sum(high - low, axis=0) for low, high in windows), jnp.zeros(ORDERS))
    excess = jnp.clip(jnp.log(TILT_LOSS / ROUNDING_PER_STEP) - jnp.log(jnp.maximum(steps, 1.0)), 0.1, TILT_EXCESS)
    width = jnp.where(loss <= jnp.min(loss) + excess, width, jnp.inf)
    best = jnp.minimum(first_index(width <= jnp.nanmin(width)), ORDERS - 1)
    return orders[best], tuple((low[:, best], high[:, best]) for low, high in windows)


def window(pair: DominatingPair, order: Array, cumulant: Array, tail: Array) -> tuple[Array, Array]:
    """Returns losses (low, high) outside which the tilted loss has a mass of about ``tail`` on either side."""
    center = pair.central_loss()
    log_tail = jnp.log(tail) + cumulant
    infimum, supremum = pair.loss_range()

    def width(is_beyond) -> Array:
        """Bisects the binary logarithm of the distance from the centre, to 3 %."""

        def halve(_, interval):
            low, high = interval
            middle = (low + high) / 2
            beyond = is_beyond(jnp.exp2(middle))
            return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

        ends = -80.0 * jnp.ones_like(center), 60.0 * jnp.ones_like(center)
        return jnp.exp2(jax.lax.fori_loop(0, 12, halve, ends)[1])

    up = width(lambda d: pair.log_tail(order, center + d) <= log_tail)
    down = width(lambda d: order * (center - d) + pair.log_head(center - d) <= log_tail)
    return jnp.maximum(center - down, infimum), jnp.minimum(center + up, supremum)


SKETCH = 512
"""Points of the lattice by which the windows of sums are foreseen."""

GROWTH = np.arange(27)
"""Fours of which the powers are considered as sums to foresee; 4^26 is the greatest number of steps."""


def mesh(
    pair: DominatingPair, order: Array, steps: Array, low: Array, high: Array, points: int, method: str
) -> Array:
    """Returns the mesh of a lattice of ``points`` points for losses whose one-step window is [low, high].

    With W_j the window of 4^j copies, k steps on the mesh W_j/n cost k W_j^2/(6 n^2) in variance; each further doubling
    that makes room for W_i, i > j, is met by k/4^(i-1) summands and costs half of (W_i/2n)^2 for each. The recursive
    algorithm takes the j for which the sum is least: one step, where the window grows from the start, and many where it
    is as wide as a rare jump. The fixed mesh has room for all steps, the two-stage algorithm's for about sqrt(steps).
    """
    h = (high - low) / (SKETCH - 2)
    sketch, _ = discretize(pair, order, placed(pair, low, h), h, SKETCH)
    kappa = log_moments(sketch, FAR_RATES)
    copies = jnp.clip(4.0**GROWTH, 1.0, jnp.maximum(steps, 1.0))
    if method == "two_stage":
        copies = jnp.minimum(copies, 2 ** jnp.ceil(jnp.log2(jnp.maximum(steps, 1.0)) / 2))
    log_tail = jnp.log(truncation(points)) + jnp.log(copies / jnp.maximum(steps, 1.0))
    bottom, top = jax.vmap(lambda k, tail: reach(k * kappa, tail, FAR_RATES))(copies, log_tail)
    # Somewhat wider than foreseen: the sketch is coarser than the lattice. Few copies of rare jumps may need more room
    # than many.
    lengths = jax.lax.cummax(SKETCH * h * (top - bottom)) * 1.04
    if method == "recursive":
        doublings = 3 * lengths**2 / 4.0**GROWTH
        later = jnp.cumsum(doublings[::-1])[::-1] - doublings
        cost = lengths**2 + later
        chosen = lengths[jnp.minimum(first_index(cost <= jnp.min(cost)), len(GROWTH) - 1)]
    else:
        chosen = lengths[-1]
    return jnp.maximum(chosen, high - low) / (points - MARGIN)


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


def anchored(pair: DominatingPair, h: Array) -> Array:
    """Returns a mesh of at least h of which the distance of the pair's anchors is a multiple, or h."""
    lower, upper = pair.anchors()
    distance = upper - lower
    count = jnp.floor(distance / h)
    return jnp.where(jnp.isfinite(distance) & (count >= 1), distance / jnp.maximum(count, 1.0), h)
