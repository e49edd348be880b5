"""The menu game: a dynamic program over the privacy loss for the worst adaptive use of a finite menu of mechanisms.

An adversary chooses the next mechanism in view of all results so far. Its choices matter only through the privacy loss
so far and the budget left, so the worst of them is found by dynamic programming on a lattice of losses, with every
error rounded to one side. The statement and the proof follow; the parts of the file are:

* :func:`solve_game`: the program itself, from :class:`Losses` on a :class:`Window` to the value of every budget;
* :func:`whole_costs` and :func:`sizes_and_costs`: the whole costs of items;
* :func:`blocks_of`, :func:`window_for` and :func:`losses_on`: the losses of items on the lattice, above and below;
* :func:`dominates`: the mechanisms that an item pays for.

The game. An adversary has a budget of R units and a menu of mechanisms, the j-th at a whole cost c_j. Round by round
it chooses an item that it can pay for, in view of all results so far, or stops. With L the privacy loss so far, drawn
under P, and Y that of an item's dominating pair (P_j, Q_j), let

    V_r(L) = max( (1 - e^(eps - L))+ ,  max over c_j <= r of E[V_(r - c_j)(L + Y_j)] ).

*Then delta(eps) <= V_R(0) on every path, whatever is chosen from earlier results, stopping included.* Write x = e^L and
F_r(x) = x V_r(log x). F_0 = (x - e^eps)+ is convex, and F_r is the maximum of F_0 and of the expectations of F(x e^Y)
under the Q_j (and of x P_j(Y = inf)): convex again, by induction. The likelihood ratio of a mechanism that (P_j, Q_j)
dominates is below e^Y in the convex order under Q (Blackwell), so that playing the pair in its place only raises the
expectation, after every history. The rest of the game depends on the history through L and r alone. For a menu of one
item the maximum is that of composition.

*Blocks.* An item may be a block of n runs of one mechanism. All draws of a block's pairs may be thought of as revealed
when it is paid for: later decisions then know more, and each run, whenever it is made and in whatever order with runs
of other blocks, is a function of its draw and of independent randomness (Blackwell, given all that was released
before). So the runs of a block that has been paid for can be made at any later time, and the bound stands.

On a lattice. Each item is a measure above its loss (or below it, for a lower bound on the game) on the multiples of h,
in the order of :mod:`jaxacct.prv`, so the program above is exact there, and bounds the game on its side. These errors
remain:

* Infinite losses, and mass counted as such, have a sum of their own: at most I_R over all paths (union bound). From
  here on V is that of the finite losses. From below the infinite ones lie at the last point of the lattice.
* Window. F is convex, F(0) = 0 and F(x) <= x, so its slope is at most 1: above the window V(L) <= 1 - e^(b - L) (1 -
  V(b)), b its end; and F(x)/x rises: below it V(L) <= V(a). From below: the value of stopping, and 0.
* Tilt. The program runs on W = V e^(-t L), with weights p e^(t y), which makes a delta of 1e-12 as precise as any. With
  (1 - e^(eps - L))+ <= e^(t (L - eps)) t^t/(1 + t)^(1 + t), the true W is nowhere above G_r = max(that constant at L =
  0, max over j of T_j G_(r - c_j)), T_j the tilted mass of the true loss: the Rényi bound of order 1 + t.
* Errors. What a :class:`~jaxacct.prv.evolving.Sum` lacks, of tilted mass s_j, changes an expectation of the true V,
  whose F is convex, by at most s_j G. A convolution by transforms of N points, each wrong by f =
  transform_error(N) in L2 (and entry by entry relative to M_j, the sum of the weights), errs in each entry by at most
  M_j |X|_2 (3 f + 16 u) to first order. Both are added at every level, and so go through all that follows.
  So is what float64 flushes to zero: a tilt that is too high for it makes the values infinite, not 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Complex, Float, Int

from jaxacct import validation
from jaxacct.composition import ForDelta, Parts, directed_parts, facts_of, laws_for, length_class
from jaxacct.mechanisms import Gaussian, Laplace, PoissonSubsampledGaussian, PoissonSubsampledLaplace, bounded_range
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.numerics.precision import (
    FUNCTION,
    TINY,
    UNIT_ROUNDOFF,
    exact_float64,
    is_concrete,
    kernel,
    leave_scope,
    log_peak,
)
from jaxacct.numerics.programs import compiled
from jaxacct.prv.accountant import LEAST, PER_ATOM, sum_each
from jaxacct.prv.evolving import Sum, infinite_mass, pool, transform_error


class Losses(NamedTuple):
    """Losses of a menu's items on the lattice, for each direction (rows), above or below."""

    weights: Float[Array, "rows items n"]
    """Tilted masses; the loss k h is at index k, and at n + k for k < 0."""
    total: Float[Array, "rows items"]
    """Upper bound on the tilted mass of the true finite loss."""
    slack: Float[Array, "rows items"]
    """Tilted mass that the weights may be wrong by."""
    infinite: Float[Array, "rows items"]
    """Mass of infinite losses, and of finite ones that count as such."""


class Window(NamedTuple):
    """Window of the losses L that the program holds, on a circle of n points."""

    mesh: Float[Array, ""]
    """h, of so few digits that its multiples are exact."""
    start: Int[Array, ""]
    """The loss at index 0, in units of h."""
    first: Int[Array, ""]
    """Index where the window begins; before it lies what the items' least losses reach down to."""
    last: Int[Array, ""]
    """Index where the window ends; after it lies what the items' largest losses reach up to."""
    order: Float[Array, " rows"]
    """The tilt t of each direction."""


class Solved(NamedTuple):
    """Values of a game for every budget, as far as it was asked for."""

    budget: Int[Array, ""]
    """The largest budget whose value is at most delta, or the largest asked about."""
    values: Float[Array, " levels"]
    """Bounds on V_r(0), the larger of the directions; infinite beyond the budget after that one."""


class _GameState(NamedTuple):
    """State of the loop over levels: the next level, whether it is to be solved, and all that was found before."""

    level: Array
    goes_on: Array
    stopped: Float[Array, "rows n"]
    """Value of stopping, tilted, at the epsilon of the level before."""
    values: Float[Array, " levels"]
    spectra: Complex[Array, "rows ring half"]
    """Transforms of the last ``ring`` levels, at the level modulo ``ring``."""
    norms: Float[Array, "rows levels"]
    """Upper bounds on the levels' L2 norms."""
    bounds: Float[Array, "rows levels"]
    """G of each level: an upper bound on the true W."""
    infinite: Float[Array, "rows levels"]
    """I of each level: the infinite mass over all paths, at most."""


@compiled(static=("ring",))
def solve_game(
    ring: int,
    losses: Losses,
    costs: Int[Array, " items"],
    epsilons: Float[Array, " levels"],
    window: Window,
    delta: Float[Array, ""],
    most: Int[Array, ""],
    is_upper: Array,
) -> Solved:
    """Returns the values of budgets 0, 1, ... up to the first whose value exceeds ``delta``.

    Args:
        ring: more than any cost; static.
        losses: of the items; all above, or all below.
        costs (items,): whole, at least 1.
        epsilons (levels,): the epsilon at which a path is judged that has this much of its budget left. The same for
            all is the filter's game.
        window: the losses that are held.
        delta: where to end.
        most: the largest budget asked about, below ``levels``.
        is_upper: whether the values are upper bounds, of losses above, or lower bounds.
    """
    n, levels = losses.weights.shape[-1], epsilons.shape[0]
    rows, items = losses.infinite.shape
    u, t = UNIT_ROUNDOFF, window.order[:, None]
    places = jnp.arange(n)[None, :]
    at = (window.start + places) * window.mesh
    before, after = places < window.first, places > window.last
    low, high = (window.start + window.first) * window.mesh, (window.start + window.last) * window.mesh
    beyond = jnp.maximum(at - high, 0.0)
    flushed = 8 * n * TINY
    # The relative error of exp of an exponent that rounds, and of a few products.
    relative = 4 * FUNCTION + 4 * u * t * jnp.max(jnp.abs(at))
    rounding_factor = 1 + relative
    safe, sign = jnp.where(is_upper, rounding_factor, 1 - relative), jnp.where(is_upper, 1.0, -1.0)
    masses = jnp.sum(losses.weights, axis=-1) * (1 + 2 * n * u)
    wrong = masses * (3 * transform_error(n) + 16 * u) * (1 + 1e-9)
    # The terms that every level needs stand here: inside the loop the compiler might compute them again at each level.
    # From below there is no ceiling, and nothing beyond the window but stopping.
    transforms = jnp.conj(jnp.fft.rfft(losses.weights)) * safe[..., None]
    decay = jnp.exp(-t * at)
    ceiling, raised = jnp.where(is_upper, decay * rounding_factor, jnp.inf), jnp.where(is_upper, flushed, 0.0)
    higher = jnp.where(is_upper, decay * -jnp.expm1(-beyond) * rounding_factor + flushed, 0.0)
    higher_by = jnp.where(is_upper, decay * jnp.exp(-beyond) * rounding_factor, 0.0)
    steeper = jnp.where(is_upper, jnp.exp(t * (low - at)) * rounding_factor, 0.0)
    peak = log_peak(t)

    def stopped_at(epsilon: Array) -> Array:
        return jnp.maximum(-jnp.expm1(epsilon - at), 0.0) * decay * safe

    # One step solves one level r, a budget of r units, from the levels r - c_j, whose transforms the ring still holds.
    # The invariant: at every point of the window ``tilted`` bounds W_r on the side asked for, all errors included. It
    # ends at the first level whose value exceeds delta, or at ``most``.
    def advance(state: _GameState) -> _GameState:
        r = state.level
        epsilon, index, can = epsilons[r], jnp.maximum(r - costs, 0), (costs <= r)[None, :]
        is_same = (r > 0) & (epsilon == epsilons[jnp.maximum(r - 1, 0)])
        stopped = jax.lax.cond(is_same, lambda: state.stopped, lambda: stopped_at(epsilon))
        bound = jnp.exp(peak - t * epsilon) * (1 + FUNCTION * (8 + t * jnp.abs(epsilon))) + flushed
        bounds = losses.total * state.bounds[:, index] * (1 + 4 * u)
        bound = jnp.maximum(bound, jnp.max(jnp.where(can, bounds, 0.0), axis=1, keepdims=True))
        infinite = jnp.max(jnp.where(can, state.infinite[:, index] + losses.infinite, 0.0), axis=1) * (1 + 4 * u)
        error = (wrong * state.norms[:, index] + losses.slack * state.bounds[:, index] + flushed) * rounding_factor
        error = jnp.where(can, sign * error * (1 + 4 * u), -jnp.inf)
        spectra = [state.spectra[:, index[j] % ring] * transforms[:, j] for j in range(items)]
        played = jnp.fft.irfft(jnp.stack(spectra), n)
        # Stopping and every item compete; where an item costs more than r its error is -inf, and it never wins.
        best = stopped
        for j in range(items):  # one after the other, for loops over short axes are slow
            best = jnp.maximum(best, played[j] + error[:, j : j + 1])
        highest = jnp.where(is_upper, bound, jnp.inf)
        best = jnp.minimum(best, jnp.minimum(ceiling, highest)) + raised
        # Outside the window, tilted: above it V(L) <= 1 - e^(b - L) (1 - V(b)), below it V(L) <= V(a).
        edge = jnp.minimum(best[:, window.last] / decay[:, window.last] * rounding_factor[:, 0], 1.0)[:, None]
        above = jnp.maximum(stopped, higher + higher_by * edge)
        below = jnp.minimum(best[:, window.first][:, None] * steeper, highest)
        tilted = jnp.where(before, below, jnp.where(after, above, best))
        value = jnp.max(tilted[:, -window.start] + infinite) * (1 + sign * 4 * u)
        value = jnp.where(jnp.isnan(value), jnp.where(is_upper, jnp.inf, 0.0), value)
        # The norm is taken in units of about the largest entry, plus what may be flushed of the squares.
        unit = jnp.maximum(bound, TINY)
        squares = jnp.sum((tilted * (1 / unit)) ** 2, axis=1, keepdims=True) + n * TINY
        norms = unit * jnp.sqrt(squares) * (1 + 4 * n * u) + TINY
        return _GameState(
            r + 1,
            (value <= delta) & (r < most),
            stopped,
            state.values.at[r].set(value),
            state.spectra.at[:, r % ring].set(jnp.fft.rfft(tilted)),
            state.norms.at[:, r].set(norms[:, 0]),
            state.bounds.at[:, r].set(bound[:, 0]),
            state.infinite.at[:, r].set(infinite),
        )

    zeros = jnp.zeros((rows, levels))
    spectra = jnp.zeros((rows, ring, n // 2 + 1), jnp.complex128)
    start, unsolved = jnp.zeros((rows, n)), jnp.full(levels, jnp.inf)
    first = _GameState(jnp.int32(0), jnp.asarray(True), start, unsolved, spectra, zeros, zeros, zeros)
    final = jax.lax.while_loop(lambda state: state.goes_on, advance, first)
    last = final.level - 1
    return Solved(jnp.where(final.values[last] <= delta, last, last - 1), final.values)


# ----------------------------------------------------------------------------------------------------
# Whole costs: units that a block of each item costs, so that the game's budget is a whole number.
#
# Every choice here is sound: costs decide how much of a budget is wasted, and how long the game takes.
# ----------------------------------------------------------------------------------------------------


def whole_costs(plays: Sequence[float], units: int = 4096) -> tuple[int, ...]:
    """Returns costs that are nearly in inverse proportion to ``plays``, how often a budget pays for each item alone.

    In proportion they are best for whatever item fares worst. Let S_j = c_j N_j, N_j the plays. The game's budget R(S)
    rises with every S_j, for what costs more only narrows the adversary's choice, and R(s S) = s R(S), up to a unit.
    Item j is granted R/S_j of what it would be alone. Scale S so that its largest entry is 1: then the least of these
    shares is R(S) <= R(1, ..., 1), which equal entries attain.

    >>> whole_costs([26.7, 48.7, 89.8, 179.7], units=800)
    (20, 11, 6, 3)
    """
    numbers = np.asarray(plays, np.float64)
    # The largest budget considered has ``units``, as the game has a level for each, or three for each block where there
    # are more blocks: one each would waste most. Four scales are tried for each unit.
    units = max(units, int(3 * numbers.max()))
    scales = np.arange(4, 4 * units + 1) / 4
    costs = np.maximum(np.rint(scales[:, None] / numbers), 1.0)
    products = costs * numbers
    budgets = products.min(axis=1)
    # How unequal the S_j are after rounding: the budget is the least of them, and the excess of the others is wasted.
    wasted = products.max(axis=1) / budgets - 1
    wasted = np.where(budgets <= units, wasted, np.inf)
    # A share of 5e-4 more may be wasted, for the sake of fewer units.
    chosen = int(np.argmax(wasted <= wasted.min() + 5e-4))
    return tuple(int(cost) for cost in costs[chosen])


def sizes_and_costs(runs: Sequence[float], sizes: Sequence[int | None]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the runs of a block and its cost for each item, in the proportion of :func:`whole_costs`.

    Args:
        runs: how many a budget pays for of each item alone.
        sizes: runs of a block where they are given; where not, those that leave the least to rounding are chosen.

    >>> sizes_and_costs([2670.0, 4870.0], [None, None])
    ((8, 56), (6, 23))
    """
    fixed = [number / size for number, size in zip(runs, sizes, strict=True) if size]
    if fixed:
        costs = iter(whole_costs(fixed))
        known: list[int | None] = [next(costs) if size else None for size in sizes]
        units = min(c * n / size for c, n, size in zip(known, runs, sizes, strict=True) if c and size)
    else:
        # Sizes of blocks are chosen for a budget of about 2,000 units, or 512 for each run where it pays for few.
        known, units = [None] * len(sizes), min(2000, 512 * min(runs))
    blocks = []
    # Sizes and costs that the caller fixed stay; for the others the least wasteful ones are sought.
    for number, size, cost in zip(runs, sizes, known, strict=True):
        if size is None or cost is None:
            # For each cost as many runs as it pays for are tried; and a single run at its own cost, where few are paid.
            tried = [(int(c * number / units), c) for c in range(4, 41) if c * number >= units]
            tried += [(1, max(round(units / number), 1))]
            # The sum of what rounding wastes, and about what is left of the last block at the end.
            size, cost = min(
                tried, key=lambda pair: abs(pair[1] * number / (pair[0] * units) - 1) + pair[1] / units / 4
            )
        blocks.append((size, cost))
    return tuple(size for size, _ in blocks), tuple(cost for _, cost in blocks)


# ----------------------------------------------------------------------------------------------------
# Losses on the lattice: those of a menu's items as measures on the multiples of one h, above and below the true ones.
#
# :func:`window_for` chooses the lattice, and nothing about its choice can break a bound, but for the exactness of the
# multiples of h (:func:`_round_mesh`); :func:`put_on_grid` moves masses to the lattice, up for an upper bound and down
# for a lower one.
# ----------------------------------------------------------------------------------------------------

ORDERS = np.exp2(np.linspace(-8.0, 24.0, 81))
"""Orders among which the tilt is chosen. Any values are sound."""

PEAKS = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)
"""Logarithms of the greatest ratio of (1 - e^(eps - L))+ to e^(t (L - eps)), for each order t."""

SPREAD = 30.0
"""Factor by which a Rényi bound of delta typically lies above it. It serves choices alone."""


class Guarantee(NamedTuple):
    """Guarantee that a menu gives: (epsilon, delta)-DP for a relation."""

    epsilon: float
    delta: float
    relation: Relation


def masses_of(block: Sum) -> tuple[np.ndarray, np.ndarray]:
    """Returns a block's losses and the masses above, (points,), for choices that no bound depends on."""
    rows: Any = block
    losses = rows.first + rows.mesh * np.arange(rows.rows.shape[1])
    weights = rows.rows[0]
    with np.errstate(all="ignore"):
        masses = weights * np.exp(rows.log_mass[0] - rows.order * losses)
    # Below 1e-14 of the largest weight a transform's rounding is all there is.
    return losses, np.where(weights > 1e-14 * np.max(weights), np.minimum(masses, 1.0), 0.0)


def blocks_of(
    items: Sequence[tuple[Mechanism, int]],
    shares: Sequence[float],
    relation: Relation,
    epsilon: float,
    *,
    from_below: bool = False,
) -> list[list[Sum]]:
    """Returns the losses of items (a mechanism and how often it is run) for each direction of ``relation``.

    The losses of a direction are tilted alike, as suits a run in which each item occurs as often as ``shares`` say.
    With ``from_below`` the lower ones are the losses of mechanisms in every game. In the scope of programs.
    """
    every = [directed_parts(mechanism, count, relation) for mechanism, count in items]
    if from_below:
        every = _repeatable(every, shares)
    rows = []
    # A row for each direction, with the block of every item.
    for direction in range(max(map(len, every))):
        # One pair stands for both directions where they mirror one another.
        of_items = [parts[direction % len(parts)] for parts in every]
        rows.append([leave_scope(block) for block in sum_each(of_items, shares, epsilon, LEAST)])
    return rows


def _repeatable(compositions: Sequence[list[Parts]], shares: Sequence[float]) -> list[list[Parts]]:
    """Returns items' parts such that from below their losses are those of mechanisms, however often each is run.

    The pair of exponential mechanisms is the worst of many. From below the widest run or block of a composition may
    have its losses, as that of an adversary who sees all others' first (:mod:`jaxacct.mechanisms.bounded_range`). In a
    game there is always one more to come. So none has them here, but the two losses that suit the runs of all items.
    """
    spread = 0.0
    for directions, share in zip(compositions, shares, strict=True):
        spreads = [float(np.max(pairs.spread)) for pairs, _ in directions[0] if isinstance(pairs, bounded_range.RANGES)]
        spread += share * max(spreads, default=0.0)
    return [
        [tuple((bounded_range.without_choice(pairs, spread), count) for pairs, count in parts) for parts in directions]
        for directions in compositions
    ]


def guessed_runs(mechanism: Mechanism, guarantee: Guarantee) -> float:
    """Returns about how many runs a budget pays for: by Chernoff bounds of the laws above.

    In the scope of programs. The cumulants are those of q phi, phi = e^((1 + t) y) - 1 - (1 + t)(e^y - 1) >= 0: the sum
    over the small losses of most mechanisms is of the order of their squares, and would drown in 1.
    """
    fewest = float(validation.MOST_COUNT)
    spread = math.log(SPREAD * guarantee.delta)
    # The direction in which the budget pays for fewest runs decides; so does the mass of infinite losses.
    for parts in directed_parts(mechanism, 1, guarantee.relation):
        # The first mesh's laws, so that no others are compiled.
        laws, counts = leave_scope(laws_for(LEAST // PER_ATOM, parts, ForDelta(np.float64(guarantee.epsilon))))
        cumulants, infinite = np.zeros(ORDERS.size), float(leave_scope(facts_of(parts)).infinite[0])
        with np.errstate(all="ignore"):
            for run, p, y in zip(counts, laws.masses[:, 0], laws.losses[:, 0], strict=True):
                phi = np.expm1((1 + ORDERS[:, None]) * y) - (1 + ORDERS[:, None]) * np.expm1(y)
                cumulants += run * np.log1p(np.sum(np.where(p > 0, p * np.exp(-y) * phi, 0.0), axis=1))
        with np.errstate(all="ignore"):
            of_orders = (spread + ORDERS * guarantee.epsilon - PEAKS) / cumulants
            fewest = min(fewest, np.nanmax(of_orders, initial=0.0), guarantee.delta / np.float64(infinite))
    return max(float(fewest), 0.5)


def window_for(
    rows: Sequence[Sequence[Sum]], plays: Sequence[float], epsilon: float, delta: float
) -> tuple[Window, int]:
    """Returns the window for items' losses, in each direction, and the number of points of its circle.

    Paths come below -a with a probability of at most e^-a, and are then worth about delta e^(-t a), t the order that
    bounds delta best. Every choice of these numbers is sound, but for the most points (:func:`_round_mesh`).
    """
    number = max(plays)
    # The share of delta that may be lost by cutting all blocks' losses, and by the window: mass that is cut counts as
    # infinite, or is raised.
    negligible = 1e-6
    deviations, lows, highs, orders, atoms = [], [], [], [], []
    # For each item in each direction: the deviation that h has to resolve, the losses between which hardly any mass
    # is cut, the order that bounds delta best, and the atoms that a multiple of h should meet.
    for row in rows:
        for block, times in zip(row, plays, strict=True):
            losses, masses = masses_of(block)
            mean = np.sum(losses * masses)
            deviations.append(math.sqrt(np.sum((losses - mean) ** 2 * masses)))
            lows.append(losses[min(int(np.searchsorted(np.cumsum(masses), negligible / number)), losses.size - 1)])
            enough = np.cumsum(masses[::-1]) <= negligible * delta / number
            highs.append(losses[::-1][min(int(np.sum(enough)), losses.size - 1)])
            orders.append(_best_order(losses, masses, times, epsilon))
            # A mass above 0.01 is taken for an atom, where no more than 20 are, and hardly any is left beside them.
            heavy = masses > 0.01
            if np.sum(masses[~heavy]) < 0.01 and np.sum(heavy) <= 20:
                atoms.extend(np.abs(losses[heavy]))
    low, high = min(*lows, 0.0), max(*highs, 0.0)
    below = math.log(SPREAD / negligible) / (1 + min(orders))
    total = max(
        math.sqrt(times) * deviation for times, deviation in zip(list(plays) * len(rows), deviations, strict=True)
    )
    # The window holds losses up to 0.9 nats above epsilon, or six standard deviations of all that is paid for.
    top = epsilon + min(0.9, 6.0 * total)
    length = below + top + (high - low)
    # Twelve points of the lattice to a standard deviation of the narrowest item: splitting a loss between two points
    # adds h^2/6 to its variance, a thousandth of it, and so takes about a thousandth of the runs. Six for more than a
    # thousand plays, as each takes a level's time; and as few as fit into 2^17 points of the circle.
    mesh = max(min(filter(None, deviations), default=length) / (6.0 if number > 1000 else 12.0), length / (2**17 - 8))
    # Where a number of points that is hardly smaller is cheaper, the lattice is a little coarser for it, by 4 %.
    points = length_class(max(int(length / mesh / 1.04), 1))
    mesh = _through(np.asarray(atoms), max(mesh, length / max(points - 8, 1)))
    least, most = math.floor(low / mesh) - 1, math.ceil(high / mesh) + 1
    start = math.floor(-below / mesh) + least
    points = length_class(math.ceil(top / mesh) + most - start + 1)
    tilts: Any = np.asarray([row[0].order for row in rows])
    numbers: list[Any] = [np.float64(mesh), np.int32(start), np.int32(-least), np.int32(points - 1 - most), tilts]
    return Window(*numbers), points


def _best_order(losses: np.ndarray, masses: np.ndarray, times: float, epsilon: float) -> float:
    """Returns the order whose Rényi bound on delta is least, for so many blocks."""
    known = masses > 0
    orders, peaks = ORDERS[::3], PEAKS[::3]  # few enough are tried; any are sound
    exponents = orders[:, None] * losses[known]  # some tens of megabytes, so kept once
    exponents += np.log(masses[known])
    top = exponents.max(axis=1)
    exponents -= top[:, None]
    cumulants = top + np.log(np.sum(np.exp(exponents, out=exponents), axis=1))
    return float(orders[np.argmin(times * cumulants - orders * epsilon + peaks)])


def losses_on(rows: Sequence[Sequence[Sum]], window: Window, points: int, side: int) -> Losses:
    """Returns the blocks' losses on the lattice, above (``side`` 0) or below (1)."""
    least, most = -window.first, np.int32(points - 1 - window.last)
    placed = [
        # Each block in each direction is put on the lattice by itself: one compiled program for all.
        [put_on_grid(points, not side, block, window.mesh, least, most, order) for block in row]
        for row, order in zip(rows, window.order, strict=True)
    ]
    arrays: list[Any] = [np.asarray([[leave_scope(item[i]) for item in row] for row in placed]) for i in range(4)]
    return Losses(*arrays)


@compiled(static=("points", "is_upper"))
def put_on_grid(
    points: int,
    is_upper: bool,
    block: Sum,
    mesh: Array,
    least: Array,
    most: Array,
    order: Array,
) -> tuple[Array, Array, Array, Array]:
    """Returns one item's weights (points,) on the multiples of ``mesh``, total, slack and infinite mass: ``Losses``.

    Above, each atom is first raised by the error that its place may have, then split between its two neighbours so that
    P- and Q-mass stay; mass above the last point is infinite, mass below the first is raised to it. Below, atoms are
    lowered by that error, and pooled on the points (:func:`jaxacct.prv.evolving.pool`); pools beyond the last point are
    lowered to it, and those below the first left out.

    *Rounding.* A mass is a product of a row's entry and of two halves of an exponential, whose exponent errs by 8u of
    its terms: FUNCTION and u of the exponent, twice, and some products: 32u and 8u of the terms. A pool's balance errs
    by (n + 16) u (e^h - 1), which is part of how far its losses are lowered.
    """
    u, h, side = UNIT_ROUNDOFF, mesh, int(not is_upper)
    own, log_mass, log_bound = block.rows[side], block.log_mass[side], block.log_bound[side]
    infinite, error = infinite_mass(block)[side], block.error[side]
    n = len(own)
    # Where points hold no more than they may be wrong by, that may be all there is far out. They are left out, and are
    # as much of an error again.
    own, error = jnp.where(own > error / n, own, 0.0), 2 * error
    at = block.first + block.mesh * jnp.arange(n)
    largest = jnp.maximum(jnp.abs(at[0]), jnp.abs(at[-1]))
    off = block.shift + 16 * u * (largest + h)
    exponents = log_mass - block.order * at
    rounding = u * (32 + 8 * jnp.abs(log_mass) + 8 * jnp.abs(block.order * at))
    # The tilt is taken off in two halves: the whole factor may overflow where its product with a weight does not.
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
        # The share s of the upper neighbour keeps both masses: 1 - s (1 - e^-h) = e^-(y - cell h).
        share = -jnp.expm1(-(y - cell * h)) / -jnp.expm1(-h) * (1 + 4 * FUNCTION)
        share = jnp.where(cell < least, 1.0, jnp.clip(share, 0.0, 1.0))
        share = jnp.where(cell < most, share, 1.0)
        index = (cell - least).astype(jnp.int32)
        raised = jnp.zeros(points + 1).at[jnp.maximum(index, 0)].add(p * (1 - share) * (1 + 2 * u))
        raised = raised.at[index + 1].add(p * share)
        raised = raised * summed
        return jnp.where(is_point, raised[:-1], 0.0), jnp.sum(jnp.where(is_point, 0.0, raised[:-1])) + raised[-1]

    def below() -> tuple[Array, Array]:
        p = jnp.maximum(masses * (1 - rounding), 0.0)
        y = at - off - 2 * (n + 16) * u * jnp.expm1(h)
        index, pooled = pool(y / h, p, h, order)
        index = jnp.minimum(index, most) - least
        index = jnp.where(index >= 0, index, points).astype(jnp.int32)
        lowered = jnp.zeros(points).at[index].add(pooled * (1 - 2 * (n + 8) * u), mode="drop")
        # An infinite loss is lowered to the last point.
        return jnp.where(is_point, lowered.at[most - least].add(infinite), 0.0), jnp.zeros(())

    kept, cut = above() if is_upper else below()
    sign = 1.0 if is_upper else -1.0
    tilt = jnp.exp(order * grid) * (1 + sign * (2 * FUNCTION + 4 * u * jnp.abs(order * grid)))
    weights = jnp.roll(jnp.where(kept > 0, kept * tilt, 0.0), least)
    rounding = 1 + u * (64 + 8 * (jnp.abs(log_mass) + jnp.abs(log_bound)))
    slack = error * jnp.exp(log_bound) * rounding
    # The sum's losses may be off by its shift.
    total = (1 + error) * jnp.exp(log_bound + order * off) * rounding
    # The mass that float64 may flush to zero, at each atom and point.
    flushed = 4 * (n + points) * TINY * jnp.exp(jnp.maximum(order * most * h, 0.0))
    counted = (infinite + cut) * (1 + 4 * u) if is_upper else jnp.zeros(())
    return weights, total, slack + flushed, counted


def _through(atoms: np.ndarray, mesh: float) -> float:
    """Returns a number of few digits, about a mesh or less, with a multiple just below the least of the ``atoms``.

    Sums of an atom that lies between two points would spread over as many points as there are summands, and some would
    lie above epsilon where none does. Where there is room, odd halves of the atom are met as well.
    """
    far = atoms[atoms >= 4 * mesh]
    if not far.size:
        return _round_mesh(mesh)
    parts = math.ceil(np.min(far) / mesh)
    return _round_mesh(float(np.min(far)) / (2 * math.ceil(parts / 2) if parts > 8 else parts))


def _round_mesh(mesh: float) -> float:
    """Returns a number of 35 binary digits that is at most a mesh, and hardly less.

    Its multiples are exact while its digits and those of the multiple, at most 18 on a circle of at most 2^18 points,
    are 53 or fewer in sum: more digits, or points, break bounds.
    """
    mantissa, exponent = math.frexp(mesh)
    return math.ldexp(math.floor(math.ldexp(mantissa, 35)), exponent - 35)


# ----------------------------------------------------------------------------------------------------
# Dominance: the runs that cost no more than an item's, as its pair dominates theirs at every epsilon, both directions.
#
# * Gaussian noise of a Poisson sample: more noise is the same and further noise. A smaller rate: with q' = a q the
#   mixture (1 - q') N_0 + q' N_1 is (1 - a) N_0 + a ((1 - q) N_0 + q N_1), and hockey-stick divergences are jointly
#   convex, so that of the pair (and of the two mixtures, for replacement) is at most that at q. No sampling is rate 1.
# * Laplace noise: that of scale b' > b is Laplace noise of scale b plus independent noise, for the quotient of the
#   characteristic functions, (1 + b^2 t^2)/(1 + b'^2 t^2) = b^2/b'^2 + (1 - b^2/b'^2)/(1 + b'^2 t^2), is that of a
#   mixture of 0 and of Laplace noise of scale b'. Rates as above.
# * Any other mechanism: itself.
# ----------------------------------------------------------------------------------------------------


Noise = tuple[type[Mechanism], ArrayLike, ArrayLike]
"""Type of additive noise on a Poisson sample: the plain mechanism, its scale, and the sampling rate."""


def dominates(item: Mechanism, other: Mechanism) -> Bool[ArrayLike, ""]:
    """Returns whether a run of ``other`` is known to be dominated by one of ``item``, which is concrete.

    ``other`` may be traced; nothing dominates a mechanism with NaN or a parameter out of range. It is decided in
    float64, by ``item`` as :func:`costlier` gives it.

    >>> dominates(Gaussian(1.3), PoissonSubsampledGaussian(np.float32(1.3), 0.5))
    True
    """
    item = costlier(item)
    mine, theirs = _noise_of(item), _noise_of(other)
    if mine is None or theirs is None:
        # The == of a registered dataclass's tree overlooks its class, but the hash does not: a set asks for both.
        if type(item) is not type(other) or len({jax.tree.structure(item), jax.tree.structure(other)}) > 1:
            return False
        pairs = list(zip(jax.tree.leaves(item), jax.tree.leaves(other), strict=True))
        if any(np.shape(mine) != np.shape(theirs) for mine, theirs in pairs):
            return False
        return _check_all_cells(pairs, pairs)  # at least and at most
    (kind, scale, rate), (other_kind, other_scale, other_rate) = mine, theirs
    if kind is not other_kind:
        return False
    return _check_all_cells([(other_scale, scale), (rate, other_rate), (other_rate, 0.0)], [])


def costlier(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism with float32 parameters that dominates a concrete one and is nearest to it.

    A mechanism that a loop computes in float32 is then dominated by the item that it was meant to be.
    """
    noise = _noise_of(mechanism)
    if noise is None:
        return mechanism
    kind, scale, rate = noise[0], _float32(noise[1], round_up=False), _float32(noise[2], round_up=True)
    name = "scale" if kind is Laplace else "noise_multiplier"
    changed = {name: scale} if isinstance(mechanism, kind) else {name: scale, "sampling_rate": rate}
    same: Any = mechanism
    return dataclasses.replace(same, **changed)


def _noise_of(mechanism: Mechanism) -> Noise | None:
    match mechanism:
        case Gaussian():
            return Gaussian, mechanism.noise_multiplier, 1.0
        case PoissonSubsampledGaussian():
            return Gaussian, mechanism.noise_multiplier, mechanism.sampling_rate
        case Laplace():
            return Laplace, mechanism.scale, 1.0
        case PoissonSubsampledLaplace():
            return Laplace, mechanism.scale, mechanism.sampling_rate
    return None


def _float32(value: ArrayLike, *, round_up: bool) -> float:
    exact = float(np.asarray(value))
    with np.errstate(over="ignore"):
        near = np.float32(exact)
    if float(near) < exact if round_up else float(near) > exact:  # a finite number that float32 takes for infinite, too
        near = np.nextafter(near, np.float32(np.inf if round_up else -np.inf))
    return float(near)


def _check_all_cells(at_least: list[tuple[Any, Any]], at_most: list[tuple[Any, Any]]) -> Bool[ArrayLike, ""]:
    if is_concrete(at_least):
        rises = [np.asarray(a, np.float64) >= np.asarray(b, np.float64) for a, b in at_least]
        falls = [np.asarray(a, np.float64) <= np.asarray(b, np.float64) for a, b in at_most]
        return bool(all(map(np.all, rises + falls)))
    return _all_traced(at_least, at_most)


@kernel
def _all_traced(at_least: list[tuple[Any, Any]], at_most: list[tuple[Any, Any]]) -> Bool[ArrayLike, ""]:
    rises = [jnp.all(exact_float64(a) >= exact_float64(b)) for a, b in at_least]
    return jnp.all(jnp.stack(rises + [jnp.all(exact_float64(a) <= exact_float64(b)) for a, b in at_most]))
