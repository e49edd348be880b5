"""Choices for one mesh for all steps (:mod:`.frequencies`), off sketches: tilt, window, how far apart points are."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.precision import first_index
from jaxacct.prv.plan import (
    LEAST_EXPONENT,
    LOOSENESS,
    LOWER_ORDERS,
    ORDERS,
    POWERS_OF_TWO,
    cumulant_of,
    tilted,
    window_of,
)
from jaxacct.prv.sketch import Sketch, joined


class Outline(NamedTuple):
    """What is chosen for losses (m,) on one mesh for all steps (:mod:`.frequencies`)."""

    order: Float[Array, ""]
    log_weight: Float[Array, ""]
    log_tail: Float[Array, ""]
    """Log of the tilted mass of the sum that may be let go on each side."""
    low: Float[Array, " m"]
    high: Float[Array, " m"]
    saddle: Float[Array, ""]
    """How fast log delta falls with epsilon."""
    epsilon: Float[Array, ""]
    """About where delta is asked for, or about the epsilon at it."""
    center: Float[Array, " m"]
    """The edge that is next to the median."""
    edges: Float[Array, "m edges"]
    """Of cells of the losses."""
    spacing: Float[Array, "m cells"]
    """How far apart points are to be there, in units of the mesh: powers of two, the least of a row about its bulk."""
    mesh: Float[Array, ""]
    """How far apart the points may be where they are densest, for the goal."""
    longest: Float[Array, ""]
    """Longest block of points of a step, for a series about its middle."""
    points: Float[Array, " m"]
    """How many of that mesh there are in each window."""


COARSELY, FINELY = ORDERS[::4], np.exp2(np.linspace(-1.2, 1.2, 7))
"""Orders that are looked at first, and those about the best of them, over it."""

WIDEST = 24
"""Most doublings of the distance between points."""

PARTS = 64
"""Least number of blocks that the sum's window would take."""

AWAY = 12
"""Least distance from the bulk over that between points there."""

NEAR = 1.25
"""How far from the median points are densest, over the width of half of the losses."""

FURTHER = 3
"""Most doublings of it beyond the window."""

ALIKE = 1.25
"""By how much the cost of all may rise so that the finest of the meshes is not much finer than the others."""

FINEST = 128
"""Least number of steps on the finest mesh: nothing else makes a spectrum fall at its highest frequencies."""

SPARED = 3e-3
"""Share of the error aimed at that truncation may make."""


def outline(
    sketches: tuple[Sketch, ...], steps: tuple[Array, ...], value: Array, is_epsilon: Array, goal: tuple[Array, Array]
) -> Outline:
    """Returns tilt, windows and mesh for one mesh for all steps; ``goal`` is a relative and an absolute error.

    Of orders the one is taken for which the sum is narrowest: few frequencies are left of it. A mesh h costs delta
    about k h^2 t (1 + t) / 12 of itself from above and half as much from below, for any. Points are apart like the cube
    root of one over the tilted density: of all meshes of as many points that costs least.
    """
    sketch = joined(sketches)
    k = jnp.concatenate(steps)
    copies = jnp.maximum(jnp.sum(k), 1.0)
    logs = jnp.where(sketch.p > 0, jnp.log(sketch.p), -jnp.inf)

    def exponents(orders: Array) -> Array:
        def of_row(row: tuple[Array, Array, Array]) -> Array:
            logs, losses, k = row
            cumulant = jax.nn.logsumexp(logs[None, :] + orders[:, None] * losses[None, :], axis=1)
            return jnp.where(k > 0, k * cumulant, 0.0)

        total = jnp.sum(jax.lax.map(of_row, (logs, sketch.losses, k)), axis=0)
        exponent = total + orders * jnp.log(orders) - (1 + orders) * jnp.log1p(orders)
        return jnp.where(jnp.isfinite(exponent), exponent, jnp.inf)

    def best_of(orders: Array) -> tuple[Array, Array]:
        """Returns the order whose bound on delta is the least, and the epsilon at which it is looked at."""
        exponent = exponents(orders)
        epsilon = jnp.where(is_epsilon, jnp.maximum(jnp.min((exponent - jnp.log(value)) / orders), 0.0), value)
        loss = exponent - orders * epsilon
        least = jnp.maximum(jnp.min(loss), -710.0)
        return orders[jnp.minimum(first_index(loss <= least), len(orders) - 1)], epsilon

    best, _ = best_of(jnp.asarray(COARSELY))
    best, epsilon = best_of(best * jnp.asarray(FINELY))
    relative, absolute = goal
    aim = jnp.where(is_epsilon, (relative * epsilon + absolute) * best, relative + absolute / value)
    aim = jnp.minimum(aim, 1.0)

    candidates = best * jnp.asarray(LOWER_ORDERS[:5])
    exponent = exponents(candidates)
    loss = exponent - candidates * epsilon
    excess = loss - jnp.maximum(jnp.min(exponent - candidates * epsilon), -710.0) + LOOSENESS
    tails = jnp.log(SPARED * aim) - excess

    def windows(row: Sketch) -> tuple[Array, ...]:
        _, low, high = jax.vmap(lambda t, tail: window_of(row, t, tail))(candidates, tails - jnp.log(copies))
        shares = jnp.exp(jax.vmap(lambda t: tilted(row, t) - cumulant_of(row, t))(candidates))
        mean = jnp.matmul(shares, row.losses)
        return low, high, jnp.sum(shares * (row.losses[None, :] - mean[:, None]) ** 2, axis=1)

    low, high, variances = jax.lax.map(windows, sketch._replace(known=None))
    width = -tails * jnp.sum(jnp.where(k[:, None] > 0, k[:, None] * variances, 0.0), axis=0)
    chosen = jnp.minimum(first_index(width <= 1.02 * jnp.min(width)), len(width) - 1)
    low, high = low[:, chosen], high[:, chosen]

    def apart(row: tuple[Sketch, Array, Array]) -> tuple[Array, ...]:
        """Returns the median, how far apart points should be in meshes, what that costs, and how many they are."""
        sketch, low, high = row
        edges = jnp.clip(sketch.edges, low, high)
        lengths = edges[1:] - edges[:-1]
        shares = jnp.exp(tilted(sketch, best) - cumulant_of(sketch, best))
        below = jnp.cumsum(shares)
        # About that of the bulk: of half of the losses.
        first, last = (jnp.sum(below < part) for part in (0.25, 0.75))
        widths = sketch.edges[1:] - sketch.edges[:-1]
        half = sketch.edges[jnp.minimum(last, len(shares) - 1) + 1] - sketch.edges[first]
        wanted = jnp.floor(jnp.log2(0.5 / half * widths / shares) / 3)
        spacing = jnp.asarray(POWERS_OF_TWO)[jnp.clip(wanted, 0, WIDEST).astype(jnp.int32) - LEAST_EXPONENT]
        center = sketch.edges[jnp.sum(below < 0.5)]
        # Where a rare loss's bulk ends there is little, but it balances there (:mod:`.placing`). Beyond as within.
        is_near = jnp.minimum(jnp.abs(edges[1:] - center), jnp.abs(edges[:-1] - center)) <= NEAR * half
        spacing = jnp.where(is_near, 1.0, spacing)
        spacing = jnp.where(lengths > 0, spacing, jnp.max(jnp.where(lengths > 0, spacing, 1.0)))
        return center, spacing, jnp.sum(shares * spacing**2), jnp.sum(lengths / spacing)

    center, spacing, costs, lengths = jax.lax.map(apart, (sketch._replace(known=None), low, high))
    costs, lengths = jnp.where(k > 0, k * costs, 0.0), jnp.where(k > 0, lengths, 0.0)
    if len(k) > 1:
        scale = _scales(costs, lengths, k)
        costs, lengths, spacing = costs * scale**2, lengths / scale, spacing * scale[:, None]
    cost = jnp.sum(costs) * best * (1 + best)
    mesh = jnp.sqrt(aim / cost * (12 / 1.7))
    points = lengths / mesh + 5 * AWAY
    # About a window's length, of which a few dozen blocks are left at the least.
    longest = jnp.sqrt(8 * width[chosen]) / PARTS
    return Outline(
        candidates[chosen], loss[chosen], tails[chosen], low, high, best, epsilon, center, sketch.edges, spacing, mesh,
        longest, points,
    )  # fmt: skip


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
    return jnp.asarray(POWERS_OF_TWO)[wider.astype(jnp.int32) - LEAST_EXPONENT]


def spacing_of(chosen: Outline, mesh: Array, blocks: int, size: int) -> tuple[Array, Array]:
    """Returns how far apart the points of each block are to be, and the loss where they begin: of one loss.

    They are counted from the bulk, to either side; of the distances where a block begins and where it ends it has the
    smaller one. So the outermost may fall short of the window, and some more follow, each twice as wide as the last.
    """
    edges = jnp.clip(chosen.edges, chosen.low, chosen.high)
    # Nor farther apart than a part of their distance from the bulk: about an infimum little mass would fall far.
    away = jnp.minimum(jnp.abs(chosen.edges[1:] - chosen.center), jnp.abs(chosen.edges[:-1] - chosen.center)) / AWAY
    away = jnp.maximum(away, mesh * jnp.min(chosen.spacing))
    most = jnp.log2(jnp.minimum(chosen.longest / size, away) / mesh)
    most = jnp.clip(jnp.floor(most), 0, WIDEST).astype(jnp.int32)
    apart = jnp.minimum(chosen.spacing, jnp.asarray(POWERS_OF_TWO)[most - LEAST_EXPONENT])
    cells = jnp.concatenate([jnp.zeros(1), jnp.cumsum((edges[1:] - edges[:-1]) / (mesh * size * apart))])
    middle = jnp.sum(jnp.where(chosen.edges == chosen.center, cells, 0.0))
    before = jnp.minimum(jnp.ceil(middle) + 2, blocks - 2)
    ends = np.arange(blocks + 1) - before + middle
    at = apart[jnp.sum(cells[None, 1:-1] <= ends[:, None], axis=1)]
    beyond = jnp.maximum(jnp.maximum(-ends[1:], ends[:-1] - cells[-1]), 0.0)
    further = jnp.asarray(POWERS_OF_TWO)[jnp.clip(jnp.floor(beyond), 0, FURTHER).astype(jnp.int32) - LEAST_EXPONENT]
    spacing = jnp.minimum(at[:-1], at[1:]) * further
    return spacing, chosen.center - mesh * size * jnp.sum(jnp.where(np.arange(blocks) < before, spacing, 0.0))
