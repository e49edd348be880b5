"""Composition of privacy losses: from dominating pairs to the spectrum of their sum, to bounds on delta and epsilon.

Each loss is put on a lattice twice, as a measure above it and as one below it in the order of :mod:`jaxacct.prv`. The
characteristic function of their sum is the product of theirs, and delta is read off it by Parseval's theorem. In
reading order:

- :func:`discretize_above` and :func:`discretize_below`, the masses of one loss on its lattice, above and below;
- :func:`masses_of`, the masses of all losses, and :func:`compose`, the spectrum of their sum;
- :func:`bounds_on_delta`, :func:`bounds_on_epsilon` and :func:`bracket_of`, read off the spectrum.

Sources: Doroshenko et al. (2022), "Connect the dots: tighter discrete approximations of privacy loss distributions";
Ghazi, Kamath, Kumar and Manurangsi (2022), "Faster privacy accounting via evolving discretization"; Higham, "Accuracy
and Stability of Numerical Algorithms", for the error of the Fourier transform.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, ForEpsilon, Parts, Question
from jaxacct.mechanisms.normal import cosm1_and_sin, sine_and_cosine
from jaxacct.mechanisms.pair import CellMasses, DominatingPair, hockey_stick
from jaxacct.numerics import vmapped_loops
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, log_complement, log_peak
from jaxacct.numerics.pytrees import of_each
from jaxacct.prv import plan
from jaxacct.prv.plan import CIRCLE, RATES, Asked, Known, Plan, frequencies_for


def discretize_above(cells: CellMasses, losses: Array, h: Array, shift: Array) -> Float[Array, " points"]:
    """Splits each cell's mass between its two ends so that P- and Q-mass stay ("connect the dots").

    Doroshenko et al. (2022), "Connect the dots: tighter discrete approximations of privacy loss distributions". Mass
    below the first point moves up to it.

    Let y be the double that stands for a cell's lower end, b the true end and z the point that the lattice claims
    there: z >= b, z - b <= 2 shift, and z >= y. Losses between b and z are raised to z, which leaves
    Q' >= e^(-2 shift) Q. Then at least the mass (P - e^z Q')/(1 - e^-h) must go up. Since e^y Q <= e^shift P this is at
    most (P - e^y Q + (e^(2 shift) - 1) P)/(1 - e^-h). That mass is rounded up by the errors of P and Q and by its own
    rounding, and the cell's mass by its own error; both raise.
    """
    p, q = cells.p[1:-1], cells.q[1:-1]
    p_error, q_error = cells.p_error[1:-1], cells.q_error[1:-1]
    mass = (p + p_error) * (1 + 2 * roundoff())
    value, rounding = hockey_stick(p, q, losses[:-1])
    error = p_error + jnp.exp(losses[:-1]) * q_error * (1 + 8 * roundoff()) + jnp.expm1(2 * shift) * mass + rounding
    # The sum of the errors rounds, too, and the quotient rounds by 12u.
    upward = (value + error * (1 + 16 * roundoff())) / -jnp.expm1(-h) * (1 + 16 * roundoff())
    # Where e^y Q is 0 times infinity nothing is known of the split: all of the mass moves up, which is sound.
    upward = jnp.clip(jnp.where(jnp.isnan(upward), mass, upward), 0.0, mass)
    # A compiler may fuse the product of ``mass`` into this difference alone, unrounded, and so make it negative.
    stays = jnp.concatenate([jnp.maximum(mass - upward, 0.0), jnp.zeros(1)])
    return stays + jnp.concatenate([(cells.p[0] + cells.p_error[0])[None], upward])


def discretize_below(bins: CellMasses, losses: Array, relaxed: Array) -> Float[Array, " points"]:
    """Returns masses on the points, below the pair's loss: one bin for each point, and small flows that balance it.

    Telling only the bin is post-processing, so the bins' (P_i, Q_i) are a pair below the given one, with the losses
    log P_i/Q_i. The bins' edges lie where these losses agree with the mesh points up to third order. The surplus
    P_i - e^(y_i) Q_i that a bin then has is balanced by merging. A bin in deficit is joined by as much of the next bin,
    moved down, as pays for it; a bin with a surplus is joined by as much of the bin below, moved up, as it pays for.
    Whatever is gathered at a point has log P/Q >= y_i, so putting it there only lowers. A deficit that cannot be paid
    falls to the point below. Everything is rounded to the safe side; the points may lie above their losses by up to
    ``relaxed``.
    """
    p = jnp.maximum(_move(bins.p, bins.p_error, -1.0), 0.0)
    q = _move(bins.q, bins.q_error, 1.0)
    points = losses - relaxed

    zero = jnp.zeros(1)
    next_p, next_q = jnp.concatenate([p[1:], zero]), jnp.concatenate([q[1:], zero])
    below_p, below_q = jnp.concatenate([zero, p[:-1]]), jnp.concatenate([zero, q[:-1]])
    # P - e^y Q rounded down, y the bin's point less ``relaxed``: for each bin, for the whole next bin if it were moved
    # here, and for the whole bin below if it were.
    each = jnp.stack([p, next_p, below_p]), jnp.stack([q, next_q, below_q])
    value, rounding = jax.vmap(hockey_stick, in_axes=(0, 0, None))(*each, points)
    excess, payment, below = value - rounding
    # Flows down: the mass of the next bin that this one needs, at most half of it, and the share of the need that this
    # covers. At most half goes down and at most half up, so that no bin is spent twice.
    need = jnp.maximum(-excess, 0.0)
    half_paid = 0.5 * jnp.maximum(payment, 0.0)
    share = jnp.clip(_finite(half_paid / need), 0.0, 1.0) * (1 - 4 * roundoff())
    covered = jnp.where(need > 0, share, 1.0)
    asked = jnp.minimum(1.0, _finite(need / half_paid) * (1 + 8 * roundoff()))
    taken_down = jnp.where((need > 0) & (share > 0), 0.5 * next_p * asked, 0.0)
    leaves_down = jnp.concatenate([zero, taken_down[:-1]])

    # Flows up: the mass of the bin below that this one's surplus can lift. Mass that leaves this bin takes its part of
    # the surplus along, so the lift is computed with the part that stays for certain.
    spare = jnp.maximum(excess, 0.0)
    cost = jnp.maximum(-below, 0.0)

    def lift(spare: Array) -> Array:
        return below_p * jnp.clip(_finite(spare / cost) * (1 - 8 * roundoff()), 0.0, 0.5)

    most = jnp.concatenate([lift(spare)[1:], zero])
    stays = jnp.clip(_finite((p - leaves_down - most) / p), 0.0, 1.0) * (1 - 8 * roundoff())
    taken_up = lift(spare * stays)
    leaves_up = jnp.concatenate([taken_up[1:], zero])
    kept = jnp.maximum(p - leaves_down - leaves_up, 0.0)
    # The part of a bin whose deficit is not paid falls by one point.
    falls = jnp.concatenate([((1 - covered) * kept)[1:], zero])
    # Each sum of four rounds once or twice more.
    return (covered * kept + taken_down + taken_up + falls) * (1 - 8 * roundoff())


def relaxation(bins: CellMasses, largest: Array) -> Array:
    """Returns how far the points below may lie above their losses, so that rounding makes no deficit at an atom.

    The losses of atoms and the masses computed from them are right to a few units of roundoff. Masses that are sums
    bring in their own errors, up to some 40 units each of P's mass and of Q's. Errors that are more than rounding count
    here as 256 units.
    """
    errors = _outward(bins.p, bins.p_error) / bins.p + _outward(bins.q, bins.q_error) / bins.q
    known = (bins.p > 0) & (bins.q > 0) & (errors > roundoff() / 4)
    relative = jnp.max(jnp.where(known, errors, 0.0))
    return 64 * roundoff() * largest + jnp.minimum(2 * relative, 256 * roundoff())


def _outward(mass: Array, error: Array) -> Array:
    """Returns the distance by which a mass is moved to count its error, with the rounding of the move if any."""
    return error + jnp.where(error > roundoff() / 4 * mass, 2 * roundoff() * mass, 0.0)


def _move(mass: Array, error: Array, side: float) -> Array:
    """Returns a mass moved to ``side`` by its error and by what may have been flushed to zero, where these count.

    Where they are less than a quarter of a unit of the mass it stays as it is: adding next to nothing rounds, and to
    nearest only in float64. Where the flushed part counts, the rounding of the sum, at most four times as much, is
    added to it, with some to spare.
    """
    moved = jnp.where(error > roundoff() / 4 * mass, mass + side * _outward(mass, error), mass)
    flushed = 4 * TINY
    return jnp.where(flushed > roundoff() / 4 * moved, moved + side * (8 * flushed), moved)


def balanced_edges(p: Array, losses: Array, h: Array) -> Array:
    """Returns edges between the mesh points such that bins of an exponential density balance.

    Let the density be e^(-x u/h) at u from the point, and the weight 1 - e^-u, which is u e^(-u/2) up to third order.
    Then a bin of width h balances if it begins a = 1/x - 1/(e^x - 1) below the point, in units of h, where x includes
    h/2. Where the width h of the cells changes this is only approximately so.
    """
    log_p = jnp.log(p) - (jnp.log(h) if jnp.ndim(h) else 0.0)

    def across(values: Array) -> tuple[Array, Array]:
        """Returns the entry after each and the entry before each; the ends stand for their own neighbours."""
        return jnp.concatenate([values[1:], values[-1:]]), jnp.concatenate([values[:1], values[:-1]])

    after, before = across(log_p)
    # The growth of the log-density from the middle of the cell before to that of the cell after, per h.
    growth = (after - before) / (1 + sum(across(h)) / (2 * h) if jnp.ndim(h) else 2.0)
    x = jnp.clip(jnp.where(jnp.isnan(growth), 0.0, h / 2 - growth), -50.0, 50.0)
    # Near x = 0 the two terms of the balance cancel: there its series is taken.
    apart = jnp.where(jnp.abs(x) < 0.05, 1.0, x)
    below = jnp.where(jnp.abs(x) < 0.05, 0.5 - x / 12 + x**3 / 720, 1 / apart - 1 / jnp.expm1(apart))
    # Where cells become narrower, a bin takes no more of the wider cell than of its own. With more it would be in
    # deficit, and mass of the next bin would have to come down; with less the bin before has a surplus, which lifts
    # mass from below.
    return losses[:-1] + h - (jnp.minimum(h, across(h)[0]) if jnp.ndim(h) else h) * below


def _finite(values: Array) -> Array:
    return jnp.where(jnp.isfinite(values), values, 0.0)


# ----------------------------------------------------------------------------------------------------
# The spectrum of a sum: from dominating pairs to the characteristic function of all losses, from above and from below.
#
# The losses of one step lie on a lattice of the multiples of one mesh h, dense where most of the mass is; as many
# points do for any number of steps. It is the circle on which the sum lives that grows with the steps. Only the
# spectrum on that circle is formed, at a number of frequencies that does not grow: the mesh of the sum is as wide as
# the sum asks for, which is the evolving mesh of Ghazi, Kamath, Kumar and Manurangsi (2022) without its stages. The
# steps:
#
# 1. *Masses* of cells, asked of the pair four times by one loop: on a grid that shows how far the loss reaches, on a
#    sketch from which everything is chosen (:mod:`.plan`), between the points of the lattice, and in bins about them.
#    The masses are moved to the points such that the measure is above the pair (:func:`discretize_above`), or below it
#    (:func:`discretize_below`).
# 2. *The tilt*: weights w proportional to m e^(t y), so that truncated and rounded mass is small relative to delta.
# 3. *The spectrum* phi of the weights to the power of the steps. Where few steps leave it wide, or losses have atoms,
#    it is taken whole, on a circle of some multiple of the points. Where it falls it is known at the J lowest
#    frequencies of a circle as long as the sum's window, and bounded beyond them. With weights w and any m, phi(w) is
#    half the sum over l of w_l e^(iwl) + w_(l+m) e^(iw(l+m)), and for a, b >= 0 with phases x apart
#
#        |a + b e^(ix)| = sqrt((a + b)^2 - 2ab (1 - cos x)) <= a + b - (1 - cos x) ab / (a + b),
#
#    so |phi(w)| <= 1 - (1 - cos mw) H_m with 2 H_m = sum of w_l w_(l+m) / (w_l + w_(l+m)): the best of m = 1, 2,
#    3, 4, 6, 8, ... is at most 1 - 3/2 H_m anywhere from pi down to where the J frequencies end.
# 4. *The window*: the mass outside of it, bounded by Chernoff's bounds from the weights' own moments, is slack.
# ----------------------------------------------------------------------------------------------------

Tree = TypeVar("Tree")
"""A pytree of arrays."""

RUNGS = np.unique(np.concatenate([2.0 ** np.arange(24), 3 * 2.0 ** np.arange(22)]))
"""Distances m, in mesh points, whose overlaps H_m are known. Sound for any whole numbers; tightness and speed only."""

ENDS = np.sort(math.pi / np.append(RUNGS, 1.5))[::-1]
"""Ends of the intervals of frequencies on which one bound holds, in radians per mesh point, from pi down.

Sound for any values that fall from at least pi; tightness only.
"""

LARGEST = 2.0**38
"""Largest number of points of a circle. Raising it can break a bound.

Whole numbers up to it times the 512 frequencies of a plan have to stay below 2^47, where :func:`exact_remainder` is
exact.
"""


class Losses(NamedTuple):
    """Additive quantities of all steps, for the measure above and the one below (2, ...).

    Each is a sum over losses of the number of runs times the quantity of one run, but for those that are said to be
    bounds on all. Positions of one loss count from its own ``place``, in points of the mesh.
    """

    log_modulus: Float[Array, "2 frequencies"]
    phase: Float[Array, "2 frequencies"]
    turns: Float[Array, "2 frequencies"]
    """Sizes of the phases."""
    off: Float[Array, "2 frequencies"]
    """Log of the factor by which the modulus may grow if every value is off by its error."""
    kappa: Float[Array, "2 rates"]
    """Upper bounds on the logs of the means of e^(sY), at :data:`.plan.RATES` of either sign."""
    kappas: Float[Array, "2 rates"]
    """Sizes of ``kappa``."""
    overlaps: Float[Array, "2 rungs"]
    """H_m for m in :data:`RUNGS`, rounded down."""
    excess: Float[Array, " 2"]
    """Bound on the distance of the weights' sum from 1."""
    mean: Float[Array, ""]
    """Mean of the tilted losses above, from ``place``, in points of the mesh."""
    place: Float[Array, ""]
    """The loss from which positions count."""
    largest: Float[Array, ""]
    """Bound on the losses' sizes."""
    log_mass: Float[Array, " 2"]
    """Log of the tilted mass, by which the weights are divided."""
    log_masses: Float[Array, " 2"]
    """Size of ``log_mass``."""
    slack: Float[Array, " 2"]
    """Truncated and rounded mass, over exp(log_mass)."""
    apart: Float[Array, " 2"]
    """Bound on the log of the true tilted mass over exp(log_mass)."""
    shift: Float[Array, " 2"]
    """Bound on the distance of losses from those they stand for."""
    lost: Float[Array, ""]
    """Probability that counts as an infinite loss, above."""


class Sum(NamedTuple):
    """The spectrum of the sum on its circle, above and below (2, ...), with its errors and its window."""

    series: Float[Array, "sides parts 2 frequencies"]
    """The spectrum, positions counted from the window's first point, times both of :func:`kernels_of`.

    It has real and imaginary parts, is over the circle's length, and counts twice the frequencies that stand for two.
    It is 0 at the frequencies whose values count as slack.
    """
    error: Float[Array, " 2"]
    """Bound on the change that the spectrum's errors make in the sum that :func:`log_delta` forms."""
    spectrum: Float[Array, "parts sides frequencies"]
    """The spectrum itself, positions counted from the window's first point."""
    off: Float[Array, "sides frequencies"]
    """Bounds on the errors of the spectrum's values."""
    slack: Float[Array, " 2"]
    """Truncated and rounded mass, over exp(log_mass)."""
    log_mass: Float[Array, " 2"]
    """Log of the tilted mass, by which the weights are divided."""
    log_total: Float[Array, " 2"]
    """Bound on the log of the true tilted mass."""
    rounding: Float[Array, ""]
    """Bound on the errors of ``log_mass`` and ``log_total``."""
    shift: Float[Array, " 2"]
    """Bound on the distance of losses from those they stand for."""
    start: Float[Array, ""]
    """The loss of the window's first point."""
    length: Array
    """Points of the circle, and of the window."""
    mesh: Float[Array, ""]
    """Distance between points of the circle."""
    order: Float[Array, ""]
    """The tilt."""
    lost: Float[Array, ""]
    """Probability that counts as an infinite loss, above."""


def transform_error(points: int) -> float:
    """Returns a bound on the error of each value of a Fourier transform of ``points``, over the sum of magnitudes.

    Each of the log2(N) levels multiplies by exact factors of modulus 1 up to (1 + 4 sqrt 2) u < 7u for correctly
    rounded twiddle factors (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2, whose bound
    holds entry by entry: every output reaches every input by one path). 12u in place of 7u covers the packing of a real
    transform and twiddle factors wrong by one unit. A level of three, of 3 2^k points, multiplies likewise and then
    errs by five more roundings of parts that sum to 1.37 times the input: 13u, and it counts as log2(3) levels.
    Pairs of floats have a transform of their own (:mod:`jaxacct.numerics.float_pairs.sums`): both the units of roundoff
    and their number for a level are those of the arithmetic in use.
    """
    return math.log2(points) * (arithmetic().of_level * roundoff())


def side_by_side(function: Callable[..., Tree], steps: Array, rows: Any) -> Tree:
    """Returns ``function(row)`` of rows (m,), some at once; groups beyond the last row with steps are 0."""
    # Largest number of losses that are worked on at once, so that their arrays fit into a cache. Speed only.
    most = 16
    # The largest power of two that divides the number of rows, but no more than `most`.
    together = min(len(steps) & -len(steps), most)
    if len(steps) == together:
        return of_each(function)(rows)
    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, together, *leaf.shape[1:]), rows)
    used = jnp.max(jnp.where(steps > 0, np.arange(len(steps)) // together + 1, 1))
    found = vmapped_loops.map_rows(used, lambda _, rows, __: of_each(function)(rows), groups, ())
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)


class _Masses(NamedTuple):
    """The masses of losses (m,) on the points (m, points) of their lattices."""

    upper: Array
    """Masses of the measure above."""
    lower: Array
    """Masses of the measure below."""
    lost: Array
    """Probability beyond the last point kept, (m,)."""
    wrong: Array
    """Bound on the distance of an edge from where it was asked for, (m,)."""
    relaxed: Array
    """Bound on how far points lie above their losses in the measure below, (m,)."""


def masses_of(parts: Parts, asked: Asked, points: int) -> tuple[Plan, Array, _Masses]:
    """Returns the plan, the numbers of runs (m,), and the masses on the points of each loss's lattice."""
    counts = [steps for _, steps in parts]

    def describe(pair: DominatingPair) -> tuple[Array, ...]:
        infimum, supremum = pair.loss_range()
        wrong = [pair.boundary_error(jnp.asarray(largest)) for largest in (0.0, 1.0)]
        of_pair = pair.central_loss(), infimum, supremum, jnp.stack(pair.anchors()), jnp.stack(wrong)
        return tuple(map(jnp.asarray, of_pair))

    of_pairs: Any = _join([of_each(describe)(pairs) for pairs, _ in parts])
    center, infimum, supremum, anchors, wrong = of_pairs
    known = Known(center, infimum, supremum, anchors, wrong, _join(counts))
    total, m = jnp.sum(known.steps), len(known.steps)
    size = max(points, plan.CELLS + 1, 2 * len(plan.FAR) + 1) + 2
    ends = np.cumsum([0, *map(len, counts)])

    def cells_of(boundaries: Array) -> tuple[CellMasses, Array]:
        """Returns masses of the cells between boundaries (m, size), and bounds on the distance an edge may be off."""

        def of(row: tuple[DominatingPair, Array]) -> tuple[CellMasses, Array]:
            pair, own = row
            largest = jnp.max(jnp.where(jnp.isfinite(own), jnp.abs(own), 0.0))
            return pair.cell_masses(own), jnp.asarray(pair.boundary_error(largest) + 4 * roundoff() * largest)

        rows = zip(parts, ends[:-1], ends[1:], strict=True)
        return _join([side_by_side(of, k, (pairs, boundaries[a:b])) for (pairs, k), a, b in rows])

    bounded = jax.vmap(functools.partial(plan.boundaries_for, size=size))

    def reach(cells: CellMasses, _: Array, state: Any) -> Any:
        """Returns the state after the first grid, with the sketches' boundaries."""
        edges = jax.vmap(lambda p, row: plan.second_edges(p, row, total, asked))(cells.p, known)
        return bounded(edges), *state[1:]

    def place(cells: CellMasses, _: Array, state: Any) -> Any:
        """Returns the state after the sketches, with the plan and the points as boundaries."""
        edges = state[0][:, 1 : plan.CELLS + 2]
        chosen = plan.choose(edges, cells, known, asked, points)
        # Boundaries beyond the points kept are infinite, so that all mass beyond falls into the two outer cells.
        here, first, last = np.arange(points)[None], chosen.kept[:, :1], chosen.kept[:, 1:]
        kept = jnp.where(here < first, -jnp.inf, jnp.where(here > last, jnp.inf, losses_of(chosen)))
        return bounded(kept), chosen, state[2]

    def raise_(cells: CellMasses, wrong: Array, state: Any) -> Any:
        """Returns the state after the cells between points, with the masses above and the bins' edges."""
        _, chosen, found = state
        rows = cells, wrong, known, losses_of(chosen), chosen.positions, chosen.kept, chosen.bulk, chosen.center
        upper, lost, edges = jax.vmap(functools.partial(_masses_above, chosen.mesh))(*rows)
        return bounded(edges), chosen, found._replace(upper=upper, lost=lost, wrong=wrong)

    def lower(cells: CellMasses, _: Array, state: Any) -> Any:
        """Returns the state after the bins, with the masses below."""
        boundaries, chosen, found = state
        masses, relaxed = jax.vmap(_masses_below)(cells, losses_of(chosen), chosen.kept)
        return boundaries, chosen, found._replace(lower=masses, relaxed=relaxed)

    def look(i: Array, state: Any) -> Any:
        cells, wrong = cells_of(state[0])
        return jax.lax.switch(i, [reach, place, raise_, lower], cells, wrong, state)

    nothing = _Masses(jnp.zeros((m, points)), jnp.zeros((m, points)), *jnp.zeros((3, m)))
    begin = bounded(jax.vmap(plan.first_edges)(known.center))
    shapes = jax.eval_shape(lambda b: place(*cells_of(b), (b, None, nothing)), begin)[1]
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    # The state is the boundaries to ask next, the plan and the masses. Four rounds ask a pair for the masses of as many
    # cells by one piece of code: the pairs' formulas are most of the program, and a loop compiles them once.
    _, chosen, found = jax.lax.fori_loop(0, 4, look, (begin, blank, nothing))
    return chosen, known.steps, found


def _join(rows: list[Tree]) -> Tree:
    return rows[0] if len(rows) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)


def losses_of(chosen: Plan) -> Float[Array, "m points"]:
    """Returns the losses at the points of each lattice."""
    return chosen.start[..., None] + chosen.mesh * chosen.positions


def _masses_above(
    mesh: Array, cells: CellMasses, wrong: Array, known: Known, losses: Array, positions: Array, kept: Array,
    bulk: Array, center: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Returns one loss's masses above, its probability beyond the last point kept, and the edges of the bins.

    Mass below the first point kept is moved up to it. The bin of an atom at an end of the losses has nothing else in
    it, as there is no bin beyond that could pay for a deficit.
    """
    points, widths = len(losses), mesh * (positions[1:] - positions[:-1])
    here = np.arange(points)
    between = CellMasses(*(leaf[: points + 1] for leaf in cells))
    masses, beyond = discretize_above(between, losses, widths, wrong), (between.p + between.p_error)[1:]
    ends = jnp.stack([jnp.where(here <= kept[0], masses, 0.0), jnp.where(here >= kept[1], beyond, 0.0)])
    below, lost = jnp.sum(ends, axis=1) * (1 + 2 * points * roundoff())
    masses = jnp.where(here == kept[0], below, jnp.where((here > kept[0]) & (here <= kept[1]), masses, 0.0))
    edges = balanced_edges(between.p[1:-1], losses, widths)
    # Atoms at the ends: edges next to them are moved to just beyond the atom. If both ends are at one point, they share
    # one bin, whatever lies between them.
    is_told = jnp.isfinite(known.anchors[1]) & (known.supremum - known.infimum > mesh / 2)
    least, most = (jnp.where(is_told, end, jnp.nan) for end in (known.infimum, known.supremum))
    edges = jnp.where(jnp.abs(losses[:-1] - least) < mesh / 4, least + 4 * wrong, edges)
    edges = jnp.where(jnp.abs(losses[1:] - most) < mesh / 4, most - 4 * wrong, edges)
    # The bin about the bulk, if there is one, has its edges as planned; all other edges are moved out of it.
    before = (positions[1:] <= center) & (center >= 0)
    after = (positions[:-1] >= center) & (center >= 0)
    edges = jnp.where(before, jnp.where(positions[1:] == center, bulk[0], jnp.minimum(edges, bulk[0])), edges)
    edges = jnp.where(after, jnp.where(positions[:-1] == center, bulk[1], jnp.maximum(edges, bulk[1])), edges)
    edges = jnp.where(here[:-1] < kept[0], -jnp.inf, jnp.where(here[:-1] >= kept[1], jnp.inf, edges))
    # Bins that overlapped would count masses twice. If any did, all mass goes to one bin: wide, but sound.
    return masses, lost, jnp.where(jnp.all(edges[1:] >= edges[:-1]), edges, jnp.inf)


def _masses_below(cells: CellMasses, losses: Array, kept: Array) -> tuple[Array, Array]:
    """Returns one loss's masses below, which lie on points that are kept only, and the bound ``relaxed``."""
    points, here = len(losses), np.arange(len(losses))
    around = CellMasses(*(leaf[:points] for leaf in cells))
    relaxed = relaxation(around, jnp.max(jnp.abs(losses[kept])))
    return jnp.where((here >= kept[0]) & (here <= kept[1]), discretize_below(around, losses, relaxed), 0.0), relaxed


def compose(parts: Parts, asked: Asked, points: int) -> Sum:
    """Returns the sum of all losses, of ``points`` points each; the tilt is chosen for what is asked."""
    chosen, steps, masses = masses_of(parts, asked, points)

    rows = masses, losses_of(chosen), chosen.positions, chosen.kept

    def runs(i: Array | int) -> Losses:
        """Returns the quantities of one loss times its number of runs."""
        # A loss that never runs counts as 0 even where its quantities are infinite.
        own, count = _one(points, chosen, *jax.tree.map(lambda leaf: leaf[i], rows)), steps[i]
        return jax.tree.map(lambda leaf: jnp.where(count > 0, count * leaf, 0.0), own)

    if len(steps) == 1:
        return _sum_spectra(points, chosen, runs(0), 1)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: runs(0)))
    used = vmapped_loops.of_all_lanes(jnp.max(jnp.where(steps > 0, np.arange(1, len(steps) + 1), 1)))
    # The state is the sum over the losses so far; losses beyond the last that runs are left out.
    every = jax.lax.fori_loop(0, used, lambda i, total: jax.tree.map(jnp.add, total, runs(i)), nothing)
    return _sum_spectra(points, chosen, every, len(steps))


def _one(points: int, chosen: Plan, masses: _Masses, losses: Array, positions: Array, kept: Array) -> Losses:
    """Returns the additive quantities of one run of a loss."""
    u, order, both = roundoff(), chosen.order, jnp.stack([masses.upper, masses.lower])
    of_loss, logs = (order * losses)[None], jnp.log(both)
    log_weights = logs + of_loss
    top = jnp.max(log_weights, axis=1, keepdims=True)
    weights = jnp.exp(log_weights - top)
    total = jnp.sum(weights, axis=1, keepdims=True)
    log_mass, weights = top + jnp.log(total), weights / total
    # The errors of w e^(log_mass - t y), in units of roundoff: log m 4 of itself, t y 1, their sum 1, its distance from
    # the top 1, exp 4 and the quotient 1, log of the total 4 of itself, log_mass 1; the masses and the sums before 8.
    # One more each covers the rounding of this computation.
    has_mass = both > 0
    of_mass, of_weight = (jnp.where(has_mass, jnp.abs(part), 0.0) for part in (logs, log_weights))
    from_top = jnp.where(has_mass, top - log_weights, 0.0)
    magnitude = 5 * of_mass + 2 * jnp.abs(of_loss) + 2 * of_weight + 2 * from_top
    rounded = weights * (magnitude + 16 + 5 * jnp.log(total) + 2 * jnp.abs(log_mass))
    # Mass that was flushed to zero is below a few of the smallest normal numbers at each point that is kept.
    flushed = jnp.where(np.arange(points) <= kept[1], jnp.exp(math.log(8 * TINY) + of_loss[0] - log_mass[0]), 0.0)
    sums = jnp.sum(jnp.stack([weights[0], weights[1], rounded[0], rounded[1], flushed]), axis=1)
    slack = sums[2:4] * u + jnp.array([1.0, 0.0]) * sums[4] * (1 + 64 * u * (1 + order * jnp.max(jnp.abs(losses))))
    log_mass = log_mass[:, 0]
    excess = jnp.abs(sums[:2] - 1) + (points + 8) * u
    # The measure below stands for the loss with the mass beyond the last point kept moved to that point. Its tilted
    # mass is at most that of the measure above plus the tilted mass moved, the ``cut``.
    cut = jnp.exp(jnp.log(masses.lost) + order * losses[kept[1]] - log_mass[0])
    log_total = jnp.max(log_mass) + jnp.log1p(slack[0] + cut + sums[4]) + order * masses.wrong
    apart = log_total - log_mass + 512 * u * (jnp.abs(log_total) + jnp.abs(log_mass))

    # Positions are counted from the point next to the mean of the measure above, so that products with rates and with
    # frequencies stay small.
    origin = positions[jnp.minimum(jnp.sum(positions < jnp.sum(weights[0] * positions)), points - 1)]
    about = positions - origin
    kappa = log_moments(weights, about, chosen.rate, excess)
    values, error, overlaps = spectrum_of(points, weights, about, chosen)
    modulus = jnp.maximum(jnp.hypot(*values), u**2)
    phase = jnp.arctan2(values[1], values[0])
    off = jnp.log1p((error + excess[:, None]) / modulus)
    largest = jnp.maximum(jnp.max(jnp.abs(losses[kept])), jnp.abs(losses[0] + chosen.mesh * origin))
    return Losses(
        log_modulus=jnp.log(modulus), phase=phase, turns=jnp.abs(phase), off=off, kappa=kappa, kappas=jnp.abs(kappa),
        overlaps=overlaps * (1 - 8 * points * u), excess=excess, mean=jnp.sum(weights[0] * about),
        place=losses[0] + chosen.mesh * origin, largest=largest, log_mass=log_mass, log_masses=jnp.abs(log_mass),
        slack=slack, apart=jnp.maximum(apart, 0.0),
        shift=masses.wrong + jnp.array([0.0, 1.0]) * masses.relaxed + 4 * u * largest,
        lost=masses.lost,
    )  # fmt: skip


def log_moments(weights: Array, about: Array, rate: Array, excess: Array) -> Array:
    """Returns upper bounds on the logs of the means of e^(sY), (2, rates), Y in mesh points.

    The rates s are ``rate`` times :data:`.plan.RATES`, of either sign; each is twice the one before. If exponents are
    at most X in size, e = e^x - 1 has a relative error of at most 8 units
    (:data:`jaxacct.numerics.elementary.ASSUMED`), and of 2 (1 + X) for that of the exponent. The next one, e (e + 2),
    has twice the relative error of e and three units more.
    """
    exponents = jnp.array([[1.0], [-1.0]]) * (RATES[0] * rate * about)[None]
    largest = jnp.max(jnp.where(weights > 0, jnp.abs(exponents), 0.0))
    every = [jnp.expm1(exponents)]
    # e^(2x) - 1 from e = e^x - 1, as e (e + 2): one function call serves all rates of a sign.
    for _ in RATES[1:]:
        every.append(every[-1] * (every[-1] + 2))
    grown = jnp.stack(every, axis=1).reshape(2 * len(RATES), -1)
    # 0 times infinity is 0 where there is no weight.
    grown = jnp.where(jnp.max(weights, axis=0)[None] > 0, grown, 0.0)
    sums = jnp.matmul(weights, jnp.concatenate([grown, jnp.abs(grown)]).T, precision="highest")
    sums = jnp.moveaxis(sums.reshape(2, 2, -1), 1, 0)
    units = weights.shape[1] + 64 + np.tile(RATES, 2) * (16 + 4 * largest)
    above = sums[0] + units[None] * roundoff() * (sums[1] + roundoff()) + excess[:, None]
    above = jnp.where(jnp.isnan(above), jnp.inf, above)
    return log_complement(-above) + 16 * roundoff()


def spectrum_of(points: int, weights: Array, about: Array, chosen: Plan) -> tuple[tuple[Array, Array], Array, Array]:
    """Returns the spectrum's parts (2, J), their error and the overlaps (2, rungs).

    The spectrum is either whole, on a circle of ``CIRCLE`` times the points, or has the lowest frequencies of a longer
    circle; then the others are 0 here, and bounded by the overlaps.
    """
    size = CIRCLE * points

    def whole() -> tuple[Array, Array, Array, Array]:
        index = exact_remainder(about, jnp.asarray(1.0 * size))
        index = jnp.where(index < 0, index + size, index).astype(jnp.int32)
        circle = jnp.zeros((2, size)).at[:, index].add(weights)
        values = jnp.fft.rfft(circle)
        error = jnp.asarray(transform_error(size) + 8 * roundoff())
        return values.real, -values.imag, error, jnp.zeros((2, len(RUNGS)))

    def low() -> tuple[Array, Array, Array, Array]:
        # A frequency is a multiple of 2 half, plus or minus up to half. The angle-addition theorem makes all of them
        # from the sines and cosines of the multiples and of the differences, by one matrix product.
        count, half = frequencies_for(points), 16
        steps, beside = np.arange(0, count + half, 2 * half), np.arange(half + 1)
        numbers = np.concatenate([steps, beside])
        turns = exact_remainder(numbers[:, None] * about[None, :], chosen.length) / chosen.length
        sine, cosine = sine_and_cosine(2 * math.pi * turns)
        outer = jnp.concatenate([cosine[: len(steps)], sine[: len(steps)]])
        inner = jnp.concatenate([cosine[len(steps) :], sine[len(steps) :]])
        both = jnp.matmul((weights[:, None, :] * outer[None]).reshape(-1, points), inner.T, precision="highest")
        cc, cs, sc, ss = (both.reshape(2, 2, -1, 2, half + 1)[:, i, :, j] for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)))
        less, more = jnp.stack([cc + ss, sc - cs])[..., :0:-1], jnp.stack([cc - ss, sc + cs])[..., :-1]
        every = jnp.concatenate([less, more], axis=3).reshape(2, 2, -1)[..., half : half + count]
        real, imaginary = jnp.pad(every, ((0, 0), (0, 0), (0, size // 2 + 1 - count)))
        # Each part is a sum of ``points`` products, whose sizes sum to at most 1 (Cauchy and Schwarz).
        error = jnp.asarray((1.5 * points + 64) * roundoff())
        is_exact = jnp.max(jnp.where(weights > 0, jnp.abs(about)[None], 0.0)) < LARGEST
        return real, imaginary, jnp.where(is_exact, error, jnp.inf), overlaps_of(weights, about)

    real, imaginary, error, overlaps = jax.lax.cond(chosen.is_whole, whole, low)
    return (real, imaginary), error, overlaps


def exact_remainder(numbers: ArrayLike, length: Array) -> Array:
    """Returns the remainders of whole numbers below 2^47 modulo ``length``, at most about half of it in size.

    They are exact: the quotient's nearest whole number may be one off, but products and differences do not round.
    """
    return jnp.asarray(numbers - length * jnp.round(numbers / length))


def overlaps_of(weights: Array, positions: Array) -> Array:
    """Returns lower bounds on H_m for m in :data:`RUNGS`, (2, rungs), from some of the pairs of points m apart.

    These pairs are as many points apart as give the distance m at the spacing of the first one's block. All terms of
    H_m are nonnegative, so leaving pairs out lowers it. The last block has no pairs.
    """
    points = positions.shape[0]
    size = points // plan.BLOCKS
    padded = jnp.concatenate([weights, jnp.zeros_like(weights)], axis=1)
    places = jnp.concatenate([positions, jnp.full(points, jnp.inf)])
    begins = positions[::size]
    spacing = jnp.append((begins[1:] - begins[:-1]) / size, 0.0)
    lags = RUNGS[points / 4 >= RUNGS].astype(np.int32)

    def pairs(lag: Array) -> Array:
        """Returns the sums of the terms over the points of each block, (2, blocks), for points ``lag`` apart."""
        # The distance is compared exactly: a point in a block of another spacing does not count.
        other = jax.lax.dynamic_slice(padded, (jnp.int32(0), lag), (2, points))
        distance = jax.lax.dynamic_slice(places, (lag,), (points,)) - positions
        is_so = distance.reshape(-1, size) == (lag * spacing)[:, None]
        found = (weights * other / (weights + other + TINY) / 2).reshape(2, -1, size)
        return jnp.sum(jnp.where(is_so[None], found, 0.0), axis=2)

    # The distance is a lag, a power of two or three times one, times the power of two by which a block is spaced. One
    # lag after the other; the sums by lag and block are then added up by lag and spacing, and those by distance.
    widths = 2.0 ** np.arange(plan.WIDEST + plan.FURTHER + 1)
    of_lags = jax.lax.map(pairs, jnp.asarray(lags)).reshape(-1, plan.BLOCKS)
    by_width = jnp.where(spacing[:, None] == widths[None], 1.0, 0.0)
    every = jnp.matmul(of_lags, by_width, precision="highest").reshape(len(lags), 2, -1)
    rungs = np.where(np.multiply.outer(lags, widths)[..., None] == RUNGS, 1.0, 0.0)
    return jnp.einsum("lsw,lwr->sr", every, rungs, precision="highest")


def _sum_spectra(points: int, chosen: Plan, all_: Losses, count: int) -> Sum:
    """Returns the spectrum and the window of the sum of ``count`` losses, whose quantities sum to ``all_``."""
    u, size, mesh, order = roundoff(), CIRCLE * points, chosen.mesh, chosen.order
    many, number = 1 + (count + 8) * u, frequencies_for(points)
    length, is_whole = chosen.length, chosen.is_whole
    first = jnp.floor(all_.mean - chosen.below)
    # Outside of these limits positions would not be exact: then the slack and the error are infinite.
    known = (length < LARGEST) & (length >= 2 * number) & (jnp.abs(first) < LARGEST**1.2)
    length, first = jnp.where(known, length, 1.0 * size), jnp.where(known, first, 0.0)

    # The mass outside of the window, which wraps around the circle: Chernoff's bound at the best rate on either side.
    signed = jnp.asarray(np.concatenate([RATES, -RATES])) * chosen.rate
    kappa = all_.kappa + (count + 8) * u * all_.kappas
    edges = (signed * jnp.where(signed > 0, first + length, first - 1))[None]
    outside = (kappa - edges + 8 * u * jnp.abs(edges)).reshape(2, 2, -1)
    outside = jnp.min(jnp.where(jnp.isnan(outside), jnp.inf, outside), axis=2)
    outside = jnp.sum(jnp.exp(jnp.minimum(outside + 8 * u, 700.0)), axis=1)

    # The spectrum at the frequencies beyond those that are known: on each interval between two of ENDS, the best of the
    # bounds by RUNGS. Within one turn 1 - cos mw = 2 sin(mw/2)^2 is least at an end of the interval; a sine errs by 4
    # units (:data:`jaxacct.numerics.elementary.ASSUMED`).
    beyond = 2 * math.pi * number / length
    starts = jnp.maximum(np.append(ENDS[1:], 0.0), beyond) * (1 - 8 * u)
    falls = jnp.sin(jnp.stack([starts, jnp.asarray(ENDS)])[:, :, None] * (RUNGS / 2)[None, None]) ** 2
    falls = jnp.where(ENDS[:, None] * RUNGS[None] < 1.99 * np.pi, 2 * jnp.min(falls, axis=0) * (1 - 64 * u), 0.0)
    above = all_.excess[:, None] - jnp.max(falls[None] * all_.overlaps[:, None, :], axis=2)
    log_beyond = jnp.max(jnp.where((beyond < ENDS)[None], above, -jnp.inf), axis=1)

    frequencies = np.arange(size // 2 + 1)
    is_known = is_whole | (frequencies < number)
    modulus = jnp.where(is_known[None], jnp.exp(jnp.minimum(all_.log_modulus, 0.0)), 0.0)
    off = all_.off * many + (64 + count) * u * (1 + jnp.abs(all_.log_modulus) + all_.turns)
    off = modulus * jnp.expm1(off)
    off = jnp.where(is_known[None], jnp.minimum(jnp.where(jnp.isnan(off), jnp.inf, off), 2.0), 0.0)
    # The phases turned so that positions count from the window's first point; turns are reduced exactly beforehand.
    turns = exact_remainder(frequencies * exact_remainder(first, length), length) / length
    sine, cosine = sine_and_cosine(all_.phase - (2 * math.pi * turns)[None])
    twice = jnp.where((frequencies == 0) | (is_whole & (frequencies == size // 2)), 1.0, 2.0) / length
    # Slack of the product of all steps. Above, (1 + slack)^k - 1 of the weights; below, every step that errs stands
    # beside others of the true tilted mass.
    mean_slack = all_.slack + all_.excess
    lower_slack = all_.slack * jnp.exp(all_.apart + all_.excess)
    of_steps = jnp.where(jnp.array([True, False]), jnp.expm1(mean_slack), lower_slack) * many * (1 + 64 * u)
    slack = of_steps + outside * (1 + 64 * u) + jnp.where(is_whole, 0.0, length * jnp.exp(log_beyond))
    # :func:`log_delta` sums, from a point less than a mesh above epsilon and from the window's end, e^(-tx) times the
    # first kernel and e^(-tx) (1 - e^-x) times the second. So a value of the spectrum enters by at most this factor.
    kernel = kernels_of(2 * math.pi / length * frequencies, mesh, order)
    sizes = jnp.hypot(*kernel)
    most = 2 * sizes[0] + (-jnp.expm1(-mesh) + jnp.exp(log_peak(order))) * sizes[1]
    twice = twice[None]
    error = jnp.sum(twice * (off + (512 + size // 2) * u * modulus) * most[None], axis=1) * (1 + 1e-9)
    a, b = ((twice * modulus * part)[:, None] for part in (cosine, sine))
    real, imaginary = kernel[:, None]
    series = jnp.stack([a * real - b * imaginary, a * imaginary + b * real], axis=1)
    shift = all_.shift + 16 * u * (count + 1) * (all_.largest + mesh * jnp.abs(first) + mesh * length)
    return Sum(
        series=series, spectrum=modulus[None] * jnp.stack([cosine, sine]), off=off + 64 * u * modulus,
        error=jnp.where(known, error, jnp.inf), slack=jnp.where(known, slack, jnp.inf),
        log_mass=all_.log_mass, log_total=all_.log_mass + all_.apart,
        rounding=16 * (count + 4) * u * jnp.max(all_.log_masses), shift=shift, start=all_.place + mesh * first,
        length=length, mesh=mesh, order=order,
        lost=all_.lost * many,
    )  # fmt: skip


def kernels_of(angles: Array, mesh: Array, order: Array) -> Array:
    """Returns G(t) - G(1 + t) and G(1 + t), where G(r) is 1 / (1 - e^(-r mesh - i angle)), in parts (parts, 2, angles).

    G is the sum of e^(-(r mesh + i angle) n) over n >= 0. The difference is computed as
    e^(-t mesh - i angle) (1 - e^(-mesh)) G(t) G(1 + t), in which nothing cancels.
    """
    cosine, sine = cosm1_and_sin(angles)
    rates = mesh * jnp.stack([order, 1 + order])[:, None]
    decay = jnp.exp(-rates)
    real, imaginary = -jnp.expm1(-rates) - decay * cosine[None], decay * sine[None]
    square = real**2 + imaginary**2
    (a, c), (b, d) = real / square, -imaginary / square
    factor = decay[0] * -jnp.expm1(-mesh)
    x, y = a * c - b * d, a * d + b * c
    x, y = (x + x * cosine + y * sine) * factor, (y + y * cosine - x * sine) * factor
    return jnp.stack([jnp.stack([x, c]), jnp.stack([y, d])])


# ----------------------------------------------------------------------------------------------------
# Delta and epsilon of a sum, read off its spectrum by Parseval's theorem, with every allowance on the safe side.
#
# With weights v on a circle, delta is the sum over points y above epsilon of v(y) e^(-ty) (1 - e^(epsilon - y)). By
# Parseval's theorem this is the sum over frequencies of v's spectrum times that of the other factor, which consists of
# geometric series (:func:`kernels_of`). Epsilon is found by Newton's iteration on the bound; the bound is then
# evaluated once more on the safe side of where the iteration ends.
# ----------------------------------------------------------------------------------------------------


NEWTON, PATIENCE = 120, 12
"""Numbers of steps: after ``NEWTON`` the iteration ends, and after ``PATIENCE`` every second step is a bisection.

Sound for any values: tightness and speed only.
"""


class _Reader(NamedTuple):
    """The data that delta is read off: for one side, or for both with a leading axis."""

    series: Array
    """The array of that name of :class:`Sum`, (parts, rates, J) for one side."""
    allowance: Array
    """The amount that is added to the sum for errors and slack: positive above, negative below."""
    log_mass: Array
    """Log of the tilted mass."""
    sign: Array
    """1 for the bound from above, -1 for that from below."""


def reader_of(found: Sum) -> _Reader:
    """Returns the reader of both sides."""
    sign = jnp.array([1.0, -1.0])
    # Slack of tilted mass m changes the sum by at most m times the largest value of e^(-tx) (1 - e^-x).
    allowance = sign * (found.error + found.slack * jnp.exp(log_peak(found.order))) * (1 + 16 * roundoff())
    return _Reader(found.series, allowance, found.log_mass, sign)


def log_delta(reader: _Reader, found: Sum, epsilon: Array, counted: Array | float = 1.0) -> tuple[Array, Array]:
    """Returns the log of one side's bound on delta(epsilon), -inf where there is none, and minus the log's slope.

    It is a bound where the allowances are ``counted`` once; -1 turns a lower bound into an upper one. Losses may be off
    by ``found.shift``, which is not counted here.
    """
    mesh, order, length = found.mesh, found.order, found.length
    index = jnp.clip(jnp.floor((epsilon - found.start) / mesh) + 1, 0.0, length)
    # The losses, less epsilon, of the first point above epsilon and of the window's end.
    over = jnp.maximum(found.start + index * mesh - epsilon, 0.0)
    beyond = jnp.maximum(found.start + length * mesh - epsilon, over)
    turns = exact_remainder(np.arange(reader.series.shape[-1]) * index, length) / length
    sine, cosine = sine_and_cosine(2 * math.pi * turns)
    # The geometric series from that point on and from the window's end on, which on the circle is its beginning: both
    # run round and round, and their difference is the sum over the points between them.
    real, imaginary = reader.series
    here = real * cosine[None] + imaginary * sine[None]
    sums = jnp.sum(jnp.stack([here, real]), axis=2)
    # With losses x over epsilon from a point x0 on, e^(-tx) (1 - e^-x) is e^(-t x0) times the sum of
    # e^(-t (x - x0)) (1 - e^-(x - x0)) and of e^(-(1 + t) (x - x0)) times 1 - e^-x0: the two kernels.
    from_first = jnp.stack([over, beyond])
    parts = jnp.exp(-order * from_first) * (sums[:, 0] - jnp.expm1(-from_first) * sums[:, 1])
    of_ends = jnp.exp(-(1 + order) * from_first) * sums[:, 1]
    both, discounted = parts[0] - parts[1], of_ends[0] - of_ends[1]
    value = both + counted * reader.allowance
    log_sum = jnp.log(jnp.maximum(value, 0.0))
    exponent = reader.log_mass - order * epsilon
    rounded = found.rounding + roundoff() * (
        64 + 8 * jnp.abs(order * epsilon) + 8 * jnp.abs(log_sum) + 8 * jnp.abs(exponent)
    )
    bound = log_sum + exponent + reader.sign * counted * rounded
    nothing = jnp.where(reader.sign > 0, jnp.inf, -jnp.inf)
    return jnp.where(jnp.isnan(bound), nothing, jnp.where(value > 0, bound, -jnp.inf)), discounted / value


def epsilon_at(reader: _Reader, found: Sum, delta: Array) -> Array:
    """Returns one side's bound on epsilon at ``delta``, without ``found.shift``; inf or 0 where it says nothing.

    One loop does all. A bound on delta from above falls with epsilon all the way, and is inverted by Newton's
    iteration. One from below is 0 at small deltas, hidden by the allowances, so the iteration first inverts the same
    bound with the allowances added, and goes on from there. Where it ends the bound is evaluated once more, at each of
    three margins in turn, until it holds.
    """
    # Relative distances from the end of Newton's iteration at which epsilon is tried, in turn. Sound for any values. A
    # distance is relative to epsilon, or to the mesh if that is larger. Tightness only, as each is checked.
    margins = np.exp2([-43.0, -36.0, -26.0])
    wanted = jnp.log(jnp.maximum(delta, TINY))
    is_upper, order = reader.sign > 0, found.order
    # Losses may be off by the shift, so epsilon is looked for from just as far below 0 on: there delta is at least as
    # large as the true one at 0.
    least, top = -2 * jnp.max(found.shift), jnp.maximum(found.start + found.length * found.mesh, 0.0)
    # The logarithm of the wanted delta rounds, too.
    room = 8 * roundoff() * (1 + jnp.abs(wanted))

    def step(state: _Search) -> _Search:
        epsilon, root, low, high, reach, counted, margin, _, steps = state
        value, slope = log_delta(reader, found, epsilon, counted)
        excess = value - wanted
        holds = (margin >= 0) & jnp.where(is_upper, excess + room <= 0, excess - room >= 0)
        low, high = jnp.where(excess > 0, epsilon, low), jnp.where(excess > 0, high, epsilon)
        following = epsilon + excess / slope
        inside = (following >= low) & (following <= high)
        # Between atoms the slope is no guide to what is beyond them: after a while every second step halves.
        halves = (steps >= PATIENCE) & (steps % 2 == 1) & (reader.sign * counted > 0)
        following = jnp.where(inside & ~halves, following, low + (high - low) / 2)
        # As long as a bound from below is hidden the search goes down, twice as far each time.
        is_hidden = (reader.sign * counted < 0) & (value == -jnp.inf) & (low <= least)
        following = jnp.where(is_hidden, jnp.maximum(epsilon - reach, least), following)
        reach = jnp.where(is_hidden, 2 * reach, margins[0] * jnp.maximum(epsilon, found.mesh))
        is_found = ~(jnp.abs(following - epsilon) > margins[0] / 4 * epsilon) | (steps >= NEWTON)
        # The root of the bound with the allowances added is where the search for the bound from below begins.
        begins = is_found & (counted < 0)
        low, high = jnp.where(begins, least, low), jnp.where(begins, top, high)
        root = jnp.where(margin < 0, following, root)
        margin = jnp.where(margin >= 0, margin + 1, jnp.where(is_found & ~begins, 0, margin))
        away = jnp.asarray(margins)[jnp.clip(margin, 0, len(margins) - 1)] * jnp.maximum(root, found.mesh)
        tried = jnp.clip(root + reader.sign * away, least, top)
        following = jnp.where(holds, epsilon, jnp.where(margin >= 0, tried, following))
        return _Search(following, root, low, high, reach, jnp.where(begins, 1.0, counted), margin, holds, steps + 1)

    def goes_on(state: _Search) -> Array:
        return ~state.holds & (state.margin < len(margins))

    # Chernoff's bound on epsilon lies above the root, and log delta is mostly concave: from there the iteration falls.
    begin = jnp.clip((reader.log_mass + log_peak(order) - wanted) / order, 0.0, top)
    begin = jnp.where(jnp.isnan(begin), top, begin)
    state = _Search(begin, begin, least, top, 0 * begin, reader.sign, jnp.int32(-1), top < 0, jnp.int32(0))
    # Steps are Newton's or halve the bracket (low, high) of the root, until they no longer move or there were NEWTON;
    # then the margins are tried in turn. The result is sound only by ``holds``, wherever the iteration ends.
    end = jax.lax.while_loop(goes_on, step, state)
    return jnp.where(end.holds & (delta >= TINY), end.epsilon, jnp.where(is_upper, jnp.inf, 0.0))


class _Search(NamedTuple):
    """The state of a search for epsilon."""

    epsilon: Array
    """The epsilon to evaluate next."""
    root: Array
    """The end of Newton's iteration, once it is over."""
    low: Array
    """Lower end of the bracket of the root."""
    high: Array
    """Upper end of the bracket of the root."""
    reach: Array
    """Length of the next step down where the bound is hidden."""
    counted: Array
    """The number of times allowances are counted: see :func:`log_delta`."""
    margin: Array
    """Index of the one of the margins that is tried; below 0 while the root is looked for."""
    holds: Array
    """Whether the bound holds at ``epsilon``."""
    steps: Array
    """Number of steps so far."""


def infinite_share(facts: Facts, lost: Array) -> Array:
    """Returns bounds (2,), upper and lower, on the share of delta of infinite losses and those that count as such."""
    least, most = facts.infinite
    # The union bound on infinite losses and on those cut off, rounded up.
    return jnp.stack([jnp.minimum(most + lost * (1 + 8 * roundoff()), 1.0), least])


def bounds_on_epsilon(found: Sum, infinite: Array, delta: Array) -> Array:
    """Returns bounds from above and from below (2,) on epsilon at ``delta``, of which infinite losses take a share."""
    # The difference rounds by one unit of delta.
    room = delta - infinite - jnp.array([1.0, -1.0]) * roundoff() * delta * (infinite > 0)
    reader = reader_of(found)
    values = jax.vmap(lambda reader, delta: epsilon_at(reader, found, delta))(reader, room)
    moved = jnp.maximum((values + reader.sign * found.shift) * (1 + 4 * roundoff() * reader.sign), 0.0)
    return jnp.where(room > 0, moved, jnp.array([jnp.inf, 0.0]))


def bounds_on_delta(found: Sum, infinite: Array, epsilon: Array) -> Array:
    """Returns bounds from above and from below (2,) on delta at ``epsilon``, infinite losses included."""
    reader = reader_of(found)
    at = epsilon - reader.sign * (found.shift + 4 * roundoff() * jnp.abs(epsilon))
    logs, _ = jax.vmap(lambda reader, e: log_delta(reader, found, e))(reader, at)
    values = jnp.exp(logs) * (1 + reader.sign * 16 * roundoff()) + reader.sign * 4 * TINY
    return jnp.clip(jnp.clip(values, 0.0, 1.0) + infinite * (1 + reader.sign * 4 * roundoff()), 0.0, 1.0)


def bracket_of(found: Sum, question: Question, facts: Facts) -> Bounds:
    """Returns the bracket that answers a question."""
    infinite = infinite_share(facts, found.lost)
    if isinstance(question, ForEpsilon):
        results = bounds_on_epsilon(found, infinite, question.delta)
    else:
        results = bounds_on_delta(found, infinite, question.epsilon)
    # Bounds that contradict each other say nothing: the trivial bracket is returned.
    is_known = ~jnp.isnan(results) & (results[0] >= results[1])
    upper, lower = jnp.where(is_known, results, jnp.array([question.worst, 0.0]))
    bounds = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=jnp.asarray(False))
    bounds = question.close(bounds, facts)
    return replace(bounds, converged=bounds.converged | (bounds.gap <= question.tolerance))


def slack_effect(found: Sum, epsilon: Array) -> Array:
    """Returns the largest change (2,), at most 1, that the slack can make in delta at ``epsilon`` ().

    A measure of tilted mass m at order t changes it by at most m sup over y > epsilon of e^(-ty) (1 - e^(epsilon-y)),
    which is m e^(-t epsilon) t^t / (1+t)^(1+t), met at y = epsilon + log(1 + 1/t).
    """
    exponent = jnp.log(found.slack) + found.log_mass - found.order * epsilon + log_peak(found.order)
    return jnp.where(found.slack > 0, jnp.exp(jnp.minimum(exponent, 0.0)), 0.0)
