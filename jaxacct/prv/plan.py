"""Choices made before anything is discretized: the tilt, the windows and the meshes. No bound depends on them.

All are read off a sketch of each loss.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.arithmetic import roughly
from jaxacct.precision import TINY, first_index
from jaxacct.prv.compose import MARGIN, METHODS, truncation
from jaxacct.prv.sketch import Sketch, joined
from jaxacct.prv.spectrum import TRANSFORM_ERROR, transform_error
from jaxacct.prv.windows import reach

ORDERS = np.exp2(np.linspace(-8.0, 24.0, 81))
"""Candidate orders of the tilt."""

LOWER_ORDERS = np.exp2(-0.8 * np.arange(6))
"""What the order of the least loss is multiplied by, to look for smaller windows."""

ROUNDING_PER_STEP = 2e-13
"""Bound of the error of one convolution in float64, for a bulk of an eighth of the window and any number of points."""

LOOSENESS = 2.0
"""Nats by which a Chernoff bound of delta typically lies above delta: small probabilities far out count for so much."""

GROWTH = np.arange(27)
"""Fours of which the powers are considered as sums to foresee; 4^26 is the greatest number of steps."""

LEAST_EXPONENT = -1022

POWERS_OF_TWO = np.ldexp(1.0, np.arange(LEAST_EXPONENT, 1024))
"""Those of :data:`LEAST_EXPONENT` and what follows, up to the largest."""

RATES = np.exp2(11.0 - 0.75 * np.arange(32))
"""Rates of the moments by which the windows of sums are foreseen, over the length of one loss's window."""


class Plan(NamedTuple):
    """What is chosen for one composition of losses (m,)."""

    order: Float[Array, ""]
    """The tilt, common to all."""
    saddle: Float[Array, ""]
    """The order whose bound on delta is the least."""
    log_weight: Float[Array, ""]
    """Log of what a unit of the composition's tilted mass can count in delta."""
    log_tail: Float[Array, ""]
    """Log of the tilted mass of one step that each stage may let go on each side."""
    low: Float[Array, " m"]
    """Lowest loss that the lattice of one step should cover."""
    high: Float[Array, " m"]
    """Highest one."""
    mesh: Float[Array, " m"]
    """Distance of the lattice's points, with room for the sums of the first stage."""


SPIKES, ATOMS = 16.0, 1024.0
"""By how much the lower bound loses more when few copies are coarsened, whose sum is a spike and rare jumps, or atoms
with jumps of the density; it wears off with the copies."""


def choose(
    sketches: tuple[Sketch, ...],
    steps: tuple[Array, ...],
    value: Array,
    is_epsilon: Array,
    points: Array,
    method: Array,
) -> Plan:
    """Returns the tilt, and for each loss the window and the mesh of its first lattice.

    Any t > 0 is valid. What truncation and rounding cost is, relative to delta, their share of the tilted mass times
    the exponential of sum k K(t) - t eps + t log t - (1 + t) log(1 + t) - log delta, so the t that makes this least
    loses least by them. A smaller t has smaller windows where large losses are rare, hence finer meshes: the t for
    which the sum of both errors is least is taken. K is that of the losses below a cut, beyond which there is so
    little mass that it may count as infinite.

    Args:
        sketches: of each part, (m_i, ...); the plan is that of all their losses, (m,).
        steps: number of runs of each, (m_i,).
        value (): the delta asked about, or the epsilon where ``is_epsilon`` is false.
        is_epsilon (): whether it is epsilon that is wanted.
        points (): mesh points of the lattices.
        method (): index in :data:`~jaxacct.prv.compose.METHODS`.
    """
    firsts = np.cumsum([0, *(len(k) for k in steps)])[:-1]
    sketch = joined(sketches)
    k, rounding = jnp.concatenate(steps), ROUNDING_PER_STEP * (transform_error() / TRANSFORM_ERROR)
    guess = roughly(functools.partial(_guessed, rounding))
    of_sum, of_each, lengths = guess(sketch, k, value, is_epsilon, points, method)
    # To the last digit: atoms lie on the mesh, and a mesh is another's double.
    meshes = jax.vmap(_mesh, in_axes=(0, 0, None))(sketch.anchors, lengths, points)
    if len(meshes) > 1:
        meshes = _doubles_of_one(meshes, sketch.anchors, firsts)
    order, saddle, log_weight, log_tail = of_sum
    return Plan(order, saddle, log_weight, log_tail, *of_each, meshes)


def _guessed(
    rounding: float, sketch: Sketch, k: Array, value: Array, is_epsilon: Array, points: Array, method: Array
) -> tuple[tuple[Array, ...], tuple[Array, Array], Array]:
    """Returns what a plan has of the sum, the ends of each window, and the length that each mesh is to have.

    ``rounding`` is what a convolution of one step errs by.
    """
    copies = jnp.maximum(jnp.sum(k), 1.0)
    log_tail = jnp.log(truncation(points)) - jnp.log(copies)

    def exponents(orders: Array, cumulants: Array) -> Array:
        total = jnp.sum(jnp.where(k[:, None] > 0, k[:, None] * cumulants, 0.0), axis=0)
        exponent = total + orders * jnp.log(orders) - (1 + orders) * jnp.log1p(orders)
        return jnp.where(jnp.isfinite(exponent), exponent, jnp.inf)

    orders = jnp.asarray(ORDERS)
    cumulants = jax.lax.map(lambda row: jax.vmap(lambda t: cumulant_of(row, t))(orders), sketch)
    exponent = exponents(orders, cumulants)
    epsilon = jnp.where(is_epsilon, jnp.min((exponent - jnp.log(value)) / orders), value)
    loss = exponent - orders * epsilon
    # Where delta is below what float64 can tell from 0 no more is to be won, and the extreme orders see nothing.
    least = jnp.maximum(jnp.min(loss), -710.0)
    best = orders[jnp.minimum(first_index(loss <= least), len(ORDERS) - 1)]

    candidates = best * jnp.asarray(LOWER_ORDERS)

    def foreseen(row: tuple[Sketch, Array]) -> tuple[Array, ...]:
        def at(order: Array) -> tuple[Array, ...]:
            cumulant, low, high = window_of(row[0], order, log_tail)
            return cumulant, low, high, *_length(row[0], order, row[1], low, high, log_tail, method)

        return jax.vmap(at)(candidates)

    # (m, candidates) each; one after the other, for together they would be far larger than a cache.
    cumulants, low, high, lengths, costs = jax.lax.map(foreseen, (sketch, k))
    loss = exponents(candidates, cumulants) - candidates * epsilon
    # Both errors relative to delta, which falls by the factor e^-t for each unit of epsilon, t the best order.
    of_mesh = jnp.sum(k[:, None] * costs, axis=0) * best**2 / (12.0 * points**2)
    of_slack = jnp.exp(jnp.minimum(loss - least + LOOSENESS, 500.0)) * (8 * truncation(points) + rounding * copies)
    error = of_mesh + of_slack
    chosen = jnp.minimum(first_index(error <= jnp.nanmin(error)), len(LOWER_ORDERS) - 1)
    of_sum = candidates[chosen], best, loss[chosen], log_tail
    return of_sum, (low[:, chosen], high[:, chosen]), lengths[:, chosen]


def _doubles_of_one(meshes: Array, anchors: Array, firsts: np.ndarray) -> Array:
    """Returns meshes at least as wide, of which each is another's double, so that they can be brought together.

    The unit is a mesh on which atoms lie, if the first loss of a part (at ``firsts``) has some.
    """
    with_atoms = jnp.isfinite(anchors[firsts, 1])
    chosen = first_index(with_atoms)
    unit = meshes[firsts][jnp.where(chosen < len(firsts), chosen, 0)]
    # From a table: XLA's exp2 of a whole number need not be a power of two.
    exponents = jnp.ceil(jnp.log2(meshes / unit) - 1e-6).astype(jnp.int32)
    return unit * jnp.asarray(POWERS_OF_TWO)[jnp.clip(exponents, LEAST_EXPONENT, 1023) - LEAST_EXPONENT]


def tilted(sketch: Sketch, order: Array) -> Array:
    """Returns the log weights p e^(t y), of any sum."""
    return jnp.where(sketch.p > 0, jnp.log(sketch.p) + order * sketch.losses, -jnp.inf)


def cumulant_of(sketch: Sketch, order: Array) -> Array:
    """Returns log sum p e^(t y)."""
    return jax.nn.logsumexp(tilted(sketch, order))


def window_of(sketch: Sketch, order: Array, log_tail: Array) -> tuple[Array, Array, Array]:
    """Returns the cumulant, and the losses beyond which e^log_tail of the tilted mass lies, to the cell.

    Mass below the lower one will be moved up to it, so it counts as if it were there.
    """
    logs, total = tilted(sketch, order), cumulant_of(sketch, order)
    count = logs.shape[0]
    above, below = jnp.cumsum(jnp.stack([jnp.exp(logs - total)[::-1], sketch.p]), axis=1)
    last = count - jnp.sum(above <= jnp.exp(log_tail))
    first = jnp.minimum(jnp.sum(jnp.log(below) + order * sketch.edges[1:] - total <= log_tail), count - 1)
    return total, sketch.edges[first], sketch.edges[jnp.maximum(last, first + 1)]


def _length(
    sketch: Sketch, order: Array, steps: Array, low: Array, high: Array, log_tail: Array, method: Array
) -> tuple[Array, Array]:
    """Returns the length of the lattice for losses whose one-step window is [low, high], and its cost by the below.

    With W_j the window of 4^j copies, k steps on the mesh W_j/n cost k W_j^2/(6 n^2) in variance; each further doubling
    that makes room for W_i, i > j, is met by k/4^(i-1) summands and costs half of (W_i/2n)^2 for each: the cost, but
    for the factor k/(6 n^2). The recursive algorithm takes the j for which the sum is least: one step, where the window
    grows from the start, and many where it is as wide as a rare jump. The fixed mesh has room for all steps, the
    two-stage algorithm's for about sqrt(steps).
    """
    span = high - low
    early = jnp.where(jnp.isfinite(sketch.anchors[0]), ATOMS, SPIKES)
    inside = (sketch.losses >= low) & (sketch.losses <= high)
    logs = jnp.where(inside, tilted(sketch, order), -jnp.inf)
    log_weights = logs - jax.nn.logsumexp(logs)
    places = jnp.clip((sketch.losses - low) / span, 0.0, 1.0)

    # From the end where each is greatest, so that no term exceeds 1.
    weights = jnp.exp(log_weights)

    def moments(distances: Array) -> Array:
        return jax.vmap(lambda rate: jnp.sum(jnp.exp(-rate * distances) * weights))(jnp.asarray(RATES))

    both = jax.vmap(moments)(jnp.stack([1 - places, places])).reshape(-1)
    kappa = jnp.log(both + TINY) + np.concatenate([RATES, np.zeros_like(RATES)])
    copies = jnp.clip(4.0**GROWTH, 1.0, jnp.maximum(steps, 1.0))
    halfway = 2 ** jnp.ceil(jnp.log2(jnp.maximum(steps, 1.0)) / 2)
    copies = jnp.where(method == METHODS.index("two_stage"), jnp.minimum(copies, halfway), copies)

    def length_of(count: Array) -> Array:
        bottom, top = reach(count * kappa, log_tail + jnp.log(count), RATES)
        return top - bottom

    # Few copies of rare jumps may need more room than many. The margin is for the sketch's coarseness.
    windows = jnp.where(np.tri(len(GROWTH), dtype=bool), jax.vmap(length_of)(copies)[None, :], -jnp.inf)
    lengths = span * jnp.max(windows, axis=1) * 1.04
    # The sum of the later doublings, for each as the first.
    later = np.triu(np.ones((len(GROWTH), len(GROWTH))), 1)
    doublings = 3 * lengths**2 / 4.0**GROWTH * (1 + early / 4.0**GROWTH)
    cost = lengths**2 + jnp.sum(later * doublings[None, :], axis=1)
    chosen = lengths[jnp.minimum(first_index(cost <= jnp.min(cost)), len(GROWTH) - 1)]
    last = jnp.maximum(lengths[-1], span)
    is_recursive = method == METHODS.index("recursive")
    return (
        jnp.where(is_recursive, jnp.maximum(chosen, span), last),
        jnp.where(is_recursive, jnp.min(cost), last**2),
    )


def _mesh(anchors: Array, length: Array, points: Array) -> Array:
    """Returns the mesh of ``points`` points for a window of that length.

    It is wider where anchors ask for it: it divides their distance into a power of two, so the atoms stay on the mesh
    when it doubles.
    """
    h = length / (points - MARGIN)
    distance = anchors[1] - anchors[0]
    halvings = jnp.floor(jnp.log2(distance / h))
    return jnp.where(jnp.isfinite(distance) & (halvings >= 0), distance / jnp.exp2(jnp.maximum(halvings, 0.0)), h)
