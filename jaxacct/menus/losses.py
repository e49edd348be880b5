"""The losses of a menu's items as measures on the multiples of one h, above and below the true ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import validation
from jaxacct.composition import directed_parts, length_class
from jaxacct.dominating_pairs import CellMasses
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.menus.game import Losses, Window
from jaxacct.precision import FUNCTION, TINY, UNIT_ROUNDOFF, outside
from jaxacct.programs import compiled
from jaxacct.prv.discretize import balanced_edges, lowered
from jaxacct.prv.lattice import LossLattice, lattices_apart, masses_above
from jaxacct.question import ForDelta

POINTS = 2**12
"""Points of each loss that blocks are composed of; their sums have some times as many. Tightness and speed only."""

ORDERS = np.exp2(np.linspace(-8.0, 24.0, 81))
"""Orders of the tilt that choices are made among."""

ROUNDING = 1e-14
"""Share of the largest weight below which a transform's rounding is what there is. For choices alone."""

FEW_POINTS = 2**9
"""Points of a loss by which runs are guessed."""

RESOLUTION = 12.0
"""Points of the lattice to a standard deviation of the narrowest item: splitting a loss between two points adds h^2/6
to its variance, a thousandth of it here, and so takes about a thousandth of the runs."""

MANY, COARSE = 1000, 6.0
"""Plays from which on the lattice is coarser, and its points to a standard deviation: each takes a level's time."""

MOST_POINTS = 2**17
"""Of the circle; beyond that the lattice is made coarser."""

FITTED = 1.04
"""By how much the lattice may be coarser for a cheaper number of points."""

NEGLIGIBLE = 1e-6
"""Share of delta that may be lost by cutting all blocks' losses, and by the window."""

SPREAD = 30.0
"""By how much a Rényi bound of delta typically lies above it."""

BEYOND, DEVIATIONS = 0.9, 6.0
"""Losses above epsilon that the window holds, at most, and in standard deviations of all that the budget pays for."""

MOST_TILT = 500.0
"""Of order times loss in the window: e^700 is about where float64 ends."""

DIGITS = 35
"""Binary digits of h."""

ATOM, FEW = 0.01, 20
"""Mass of a single loss from which it is taken for an atom, where hardly any is left beside so few of them."""


class Guarantee(NamedTuple):
    """What a menu promises."""

    epsilon: float
    delta: float
    relation: Relation


def masses_of(block: LossLattice) -> tuple[np.ndarray, np.ndarray]:
    """Returns a block's losses and the masses above, (points,), for choices that no bound depends on."""
    found: Any = block
    losses = found.start + found.mesh * np.arange(found.weights.shape[1])
    weights = found.weights[0]
    with np.errstate(all="ignore"):
        masses = weights * np.exp(found.log_mass[0] - found.order * losses)
    return losses, np.where(weights > ROUNDING * np.max(weights), np.minimum(masses, 1.0), 0.0)


def blocks_of(
    items: Sequence[tuple[Mechanism, int]], shares: Sequence[float], relation: Relation, epsilon: float
) -> list[list[LossLattice]]:
    """Returns the losses of items (a mechanism and how often it is run) for each direction of ``relation``.

    Tilted alike in a direction, as suits a run in which each occurs as often as ``shares`` say. In the scope of
    programs.
    """
    every = [directed_parts(mechanism, count, relation) for mechanism, count in items]
    rows = []
    for direction in range(max(map(len, every))):
        # One pair stands for both directions where they mirror one another.
        of_items = [parts[direction % len(parts)] for parts in every]
        rows.append([outside(found) for found in lattices_apart(of_items, shares, epsilon, POINTS)])
    return rows


def guessed_runs(mechanism: Mechanism, guarantee: Guarantee) -> float:
    """Returns about how many runs a budget pays for: by Chernoff bounds of the masses of a mesh.

    In the scope of programs. Cumulants are those of q phi, phi = e^((1 + t) y) - 1 - (1 + t)(e^y - 1) >= 0: what the
    small losses of most mechanisms sum to is of the order of their squares, and would drown in 1.
    """
    fewest = float(validation.MOST_COUNT)
    spread = math.log(SPREAD * guarantee.delta)
    for parts in directed_parts(mechanism, 1, guarantee.relation):
        losses, masses, facts = outside(masses_above(FEW_POINTS, parts, ForDelta(np.float64(guarantee.epsilon))))
        cumulants, infinite = np.zeros(ORDERS.size), 0.0 if facts.masses is None else float(facts.masses[0])
        counts = np.concatenate([steps for _, steps in parts])
        with np.errstate(all="ignore"):
            for run, p, y in zip(counts, masses, losses, strict=True):
                phi = np.expm1((1 + ORDERS[:, None]) * y) - (1 + ORDERS[:, None]) * np.expm1(y)
                cumulants += run * np.log1p(np.sum(np.where(p > 0, p * np.exp(-y) * phi, 0.0), axis=1))
        with np.errstate(all="ignore"):
            of_orders = (spread + ORDERS * guarantee.epsilon - _PEAKS) / cumulants
            fewest = min(fewest, np.nanmax(of_orders, initial=0.0), guarantee.delta / np.float64(infinite))
    return max(float(fewest), 0.5)


def window_for(
    rows: Sequence[Sequence[LossLattice]], plays: Sequence[float], epsilon: float, delta: float
) -> tuple[Window, int]:
    """Returns the window for items' losses, in each direction, and the number of points of its circle.

    Paths come below -a with a probability of at most e^-a, and are then worth about delta e^(-t a), t the order that
    bounds delta best.
    """
    number = max(plays)
    deviations, lows, highs, orders, atoms = [], [], [], [], []
    for row in rows:
        for block, times in zip(row, plays, strict=True):
            losses, masses = masses_of(block)
            mean = np.sum(losses * masses)
            deviations.append(math.sqrt(np.sum((losses - mean) ** 2 * masses)))
            lows.append(losses[min(int(np.searchsorted(np.cumsum(masses), NEGLIGIBLE / number)), losses.size - 1)])
            enough = np.cumsum(masses[::-1]) <= NEGLIGIBLE * delta / number
            highs.append(losses[::-1][min(int(np.sum(enough)), losses.size - 1)])
            orders.append(_best_order(losses, masses, times, epsilon))
            heavy = masses > ATOM
            if np.sum(masses[~heavy]) < ATOM and np.sum(heavy) <= FEW:
                atoms.extend(np.abs(losses[heavy]))
    low, high = min(*lows, 0.0), max(*highs, 0.0)
    below = math.log(SPREAD / NEGLIGIBLE) / (1 + min(orders))
    total = max(
        math.sqrt(times) * deviation for times, deviation in zip(list(plays) * len(rows), deviations, strict=True)
    )
    top = epsilon + min(BEYOND, DEVIATIONS * total)
    length = below + top + (high - low)
    mesh = max(
        min(filter(None, deviations), default=length) / (COARSE if number > MANY else RESOLUTION),
        length / (MOST_POINTS - 8),
    )
    # Where a size that is hardly less is a cheaper one, the lattice is a little coarser for it.
    points = length_class(max(int(length / mesh / FITTED), 1))
    mesh = _through(np.asarray(atoms), max(mesh, length / max(points - 8, 1)))
    least, most = math.floor(low / mesh) - 1, math.ceil(high / mesh) + 1
    start = math.floor(-below / mesh) + least
    points = length_class(math.ceil(top / mesh) + most - start + 1)
    tilts: Any = np.asarray([row[0].order for row in rows])
    numbers: list[Any] = [np.float64(mesh), np.int32(start), np.int32(-least), np.int32(points - 1 - most), tilts]
    return Window(*numbers), points


SKIPPED = 3
"""One order in so many is tried for a window."""

_PEAKS = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)
"""Log of the most that (1 - e^(eps - L))+ is of e^(t (L - eps)), for each order."""


def _best_order(losses: np.ndarray, masses: np.ndarray, times: float, epsilon: float) -> float:
    """Returns the order whose Rényi bound on delta is least, for so many blocks."""
    known = masses > 0
    orders, peaks = ORDERS[::SKIPPED], _PEAKS[::SKIPPED]
    exponents = orders[:, None] * losses[known]  # some tens of megabytes, so kept once
    exponents += np.log(masses[known])
    top = exponents.max(axis=1)
    exponents -= top[:, None]
    cumulants = top + np.log(np.sum(np.exp(exponents, out=exponents), axis=1))
    return float(orders[np.argmin(times * cumulants - orders * epsilon + peaks)])


def losses_on(rows: Sequence[Sequence[LossLattice]], window: Window, points: int, side: int) -> Losses:
    """Returns the blocks' losses on the lattice, above (``side`` 0) or below (1)."""
    least, most = -window.first, np.int32(points - 1 - window.last)
    found = [
        [gridded(points, not side, block, window.mesh, least, most, order) for block in row]
        for row, order in zip(rows, window.order, strict=True)
    ]
    arrays: list[Any] = [np.asarray([[outside(item[i]) for item in row] for row in found]) for i in range(4)]
    return Losses(*arrays)


@compiled(static=("points", "is_upper"))
def gridded(
    points: int,
    is_upper: bool,
    lattice: LossLattice,
    mesh: Array,
    least: Array,
    most: Array,
    order: Array,
) -> tuple[Array, Array, Array, Array]:
    """Returns one item's weights (points,) on the multiples of ``mesh``, total, slack and infinite mass: ``Losses``.

    Above, each atom is first raised by what it may be off, then split between its two neighbours so that P- and Q-mass
    stay; what lies above the last point is infinite, what lies below the first is raised to it. Below, bins of atoms
    are balanced on the points as those of a pair are (:func:`jaxacct.prv.discretize.lowered`).
    """
    u, h, side = UNIT_ROUNDOFF, mesh, int(not is_upper)
    own, log_mass, log_total = lattice.weights[side], lattice.log_mass[side], lattice.log_total[side]
    infinite = lattice.infinite[side]
    n = len(own)
    at = lattice.start + lattice.mesh * jnp.arange(n)
    largest = jnp.maximum(jnp.abs(at[0]), jnp.abs(at[-1]))
    off = lattice.shift[side] + 16 * u * (largest + h)
    exponents = log_mass - lattice.order * at
    rounding = 2 * lattice.rounding + u * (32 + 8 * jnp.abs(log_mass) + 8 * jnp.abs(lattice.order * at))
    half = jnp.exp(jnp.minimum(exponents / 2, 350.0))
    masses = jnp.where(own > 0, own * half * half, 0.0)
    places = least + jnp.arange(points)
    grid = places * h
    is_point = places <= most
    summed = 1 + 2 * (n + 8) * u

    def above() -> tuple[Array, Array]:
        p = jnp.where(own > 0, masses * (1 + rounding) + TINY, 0.0)
        y = at + off
        cell = jnp.clip(jnp.floor(y / h), least - 1, most)
        share = -jnp.expm1(-(y - cell * h)) / -jnp.expm1(-h) * (1 + 4 * FUNCTION)
        share = jnp.where(cell < least, 1.0, jnp.clip(share, 0.0, 1.0))
        share = jnp.where(cell < most, share, 1.0)
        index = (cell - least).astype(jnp.int32)
        raised = jnp.zeros(points + 1).at[jnp.maximum(index, 0)].add(p * (1 - share) * (1 + 2 * u))
        raised = raised.at[index + 1].add(p * share)
        raised = raised * summed
        return jnp.where(is_point, raised[:-1], 0.0), jnp.sum(jnp.where(is_point, 0.0, raised[:-1])) + raised[-1]

    def below() -> tuple[Array, Array]:
        p = masses * (1 - rounding)
        y = at - off
        cell = jnp.clip(jnp.floor(y / h) - least, 0, points - 1).astype(jnp.int32)
        edges = balanced_edges(jnp.zeros(points).at[cell].add(p)[:-1], grid, h)
        edges = jnp.where(jnp.arange(points - 1) < most - least, edges, jnp.inf)
        index = jnp.searchsorted(edges, y)
        # Q of an atom as it stands: exp errs by its exponent, too.
        q = p * jnp.exp(-y) * (1 + FUNCTION + 4 * u * jnp.abs(y))
        of_p, of_q = jnp.zeros(points).at[index].add(p), jnp.zeros(points).at[index].add(q)
        of_p = of_p.at[most - least].add(infinite)
        errors = n * u * of_p, n * u * of_q
        return jnp.where(is_point, lowered(CellMasses(of_p, of_q, *errors), grid, jnp.zeros(())), 0.0), jnp.zeros(())

    kept, cut = above() if is_upper else below()
    sign = 1.0 if is_upper else -1.0
    tilt = jnp.exp(order * grid) * (1 + sign * (2 * FUNCTION + 4 * u * jnp.abs(order * grid)))
    weights = jnp.roll(jnp.where(kept > 0, kept * tilt, 0.0), least)
    rounding = 1 + 2 * lattice.rounding + u * (64 + 8 * (jnp.abs(log_mass) + jnp.abs(log_total)))
    slack = lattice.slack[side] * jnp.exp(log_mass) * rounding
    # The lattice's losses may be off by its shift.
    total = jnp.exp(log_total + order * off) * rounding
    # What float64 flushes to zero, of each atom and point.
    flushed = 4 * (n + points) * TINY * jnp.exp(jnp.maximum(order * most * h, 0.0))
    counted = (infinite + cut) * (1 + 4 * u) if is_upper else jnp.zeros(())
    return weights, total, slack + flushed, counted


def _through(atoms: np.ndarray, mesh: float) -> float:
    """Returns a number of few digits, about a mesh or less, with a multiple just below the least of the ``atoms``.

    Sums of an atom that lies between two points would spread over as many points as there are summands, and some come
    to lie above epsilon where none does. Where there is room, its odd halves are met as well.
    """
    far = atoms[atoms >= 4 * mesh]
    if not far.size:
        return _rounded(mesh)
    parts = math.ceil(np.min(far) / mesh)
    return _rounded(float(np.min(far)) / (2 * math.ceil(parts / 2) if parts > 8 else parts))


def _rounded(mesh: float) -> float:
    """Returns a number of few digits that is at most a mesh, and hardly less."""
    mantissa, exponent = math.frexp(mesh)
    return math.ldexp(math.floor(math.ldexp(mantissa, DIGITS)), exponent - DIGITS)
