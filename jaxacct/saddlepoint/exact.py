"""The exact composer: brackets of delta and epsilon of ten digits, from laws that are nodes.

One program serves every mechanism, for its input is the law of one run's privacy loss as nodes of the trapezoidal rule,
with the numbers that bound what the rule leaves out (:class:`~jaxacct.mechanisms.nodes.Nodes`), one row for each
mechanism of a sequence, and the numbers of runs. Let S be the sum of all losses under P, K(z) the sum of k log E[e^(z
Y)] over the rows, and f(v) = (1 - e^-v)+. Then, infinite losses aside, delta(eps) is

    E f(S - eps) = (1/2 pi) integral of e^(K(z) - z eps) / (z (z + 1)) dw,    z = t + iw, for any t > 0.

It is the skeleton of :mod:`.composer`, without its smoothing: the transform of a density falls by itself. What differs:

*One line for both bounds.* The rule with spacing dw gives delta(eps) and, for every j but 0, delta(eps + j L) e^(t j
L), L = 2 pi/dw. These are positive: the upper bound needs nothing, the lower one subtracts Chernoff's bounds. All other
errors count on both sides.

*Errors of the nodes.* A moment errs by a share e of itself, the rule's error at the line's end and what lies beyond the
nodes (:func:`.log_missed`, :func:`.log_left_out`); a tilted law's characteristic function phi by 2 e, besides rounding.

*End.* Frequencies end where a bound on |phi| for all that are beyond (:func:`.log_fading`), to the power of the runs,
is e^-CUT of delta.

*Rounds.* Nodes are of a fixed shape. A mechanism lays them for what a composer asks (:class:`~.nodes.Wishes`); what a
round finds decides what the next one asks: where few runs have rare large losses no line ends soon, and they are
marked. A round is one call of the mechanism's law and one of :func:`improve_epsilon`. So eagerly there is one program
of each law and one composer for all of them, and within a trace a loop around both (:func:`epsilon`).

*Rare losses.* Outcomes are marked with a probability that depends on the outcome alone, the same under P and Q. With A
the event that any run is marked, E[f(S - eps); A] is between P(A) - e^eps Q(A) and P(A), and the former if S >= eps on
A (:class:`.composer.Rare`).

In reading order: :class:`Rows`; :func:`search_rows`; :func:`choose_line`, :func:`transform`, :func:`lay_line`; the
questions. Everything is a bracket with rounding included, in units of roundoff u; "may not be lowered" says that a
bound rests on a number. NaN anywhere is an infinite epsilon, a delta of 1, or 0 from below.

Sources: those of :mod:`.composer` and :mod:`jaxacct.mechanisms.nodes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.mechanisms.nodes import (
    CELL,
    SCAN,
    Nodes,
    Wishes,
    log_fading,
    log_left_out,
    log_missed,
    log_scan_missed,
    over_sum,
)
from jaxacct.mechanisms.normal import cosm1_and_sin
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import log_complement
from jaxacct.saddlepoint import composer
from jaxacct.saddlepoint.composer import SLACK, Line, LineNumbers, Orders, Rare, Runs, Sums

NODES = 4096
"""Usual number of nodes of a law. Tightness only."""

SIDE = 32
"""Number of powers in a table of frequencies, and largest number of tables: there are its square of frequencies."""

CHUNKS = 64
"""Number of parts in which nodes are summed, and then these sums. Tightness of rounding only."""

ROW = 8
"""Number of parts in which every SCAN-th node is summed, and then these sums. Tightness of rounding only."""

CUT = 36.0
"""Nats below delta at which aliases and the line's end lie. Tightness only."""

NATS = 6.0
"""Nats by which the integrand on a line may exceed the one at the saddle point, where few runs leave digits for it.
Tightness only."""

FARTHER = 1.3
"""Factor by which the end of a line is moved out until the bound on the rest is small. Tightness only."""

ROUNDS, CLOSE = 4, 1e-10
"""Largest number of rounds, and relative width of a bracket that ends them. Tightness only."""


class Rows(NamedTuple):
    """A composition: rows of nodes (m, ...) with their numbers of runs (m,), and what follows of them at once.

    Attributes:
        nodes: the rows.
        counts (m,): numbers of runs.
        scan: every SCAN-th node as the composer's atoms, for real orders.
        marked (2, 3): the event that any run is marked, above and below, as :class:`.composer.Rare` has it.
        infinite (2,): bounds on what infinite sums add to delta, from above and from below.
        is_known (): whether all numbers are in range.
        is_idle (): whether nothing is run.
    """

    nodes: Nodes
    counts: Array
    scan: Runs
    marked: Array
    infinite: Array
    is_known: Array
    is_idle: Array

    def total(self, values: Array) -> Array:
        """Returns the sum over all runs of a quantity of each row, the first axis."""
        return self.scan.total(values)

    def rare(self, sign: Array | float) -> Rare:
        """Returns the event that any run is marked, for a bound from above or from below."""
        return Rare(jnp.where(sign > 0, self.marked[0], self.marked[1]))


def gather(nodes: Nodes, counts: Array) -> Rows:
    """Returns the composition of rows of nodes.

    P(A) is 1 - prod (1 - p)^k, p the rows' marked masses, and likewise Q(A), and the mass of an infinite sum. Some of
    P(A) may be sums that are infinite: so where anything is marked, an infinite sum counts for nothing from below. A
    function errs by 8 units and sums over m rows by m + 2: 24 + 2 m units, besides the masses' own, which are normal
    numbers or 0. Logs of P(A) and of Q(A) err by 8 units of themselves, and their sum with the error by one. S is at
    least eps on A where a marked loss and the infima of all other losses add up to it; sums err by m + 2 units of their
    terms' sizes.

    Of the scan, :func:`.composer.search` looks at losses, logs of masses, the number of runs, and the sizes of the
    extreme losses, which need not be the first and the last here.
    """
    u, rows = roundoff(), counts.shape[0]
    log_masses = nodes.log_p[:, SCAN // 2 :: SCAN] + math.log(SCAN)
    losses, none = nodes.losses[:, SCAN // 2 :: SCAN], jnp.zeros(rows, counts.dtype)
    sums = dict.fromkeys(Sums._fields, none)
    sums |= {"number": none + 1, "lowest": jnp.min(losses, -1), "most": jnp.max(losses, -1)}
    each = jnp.stack(list(sums.values()), 1)
    scan = Runs(
        sign=jnp.ones_like(none[0]),
        losses=losses,
        log_masses=log_masses,
        both=jnp.zeros((rows, 2, 1), counts.dtype),
        excess=none,
        excess_error=none,
        counts=counts,
        wholes=jnp.ones((rows, 2), counts.dtype),
        packed=none,
    )
    scan = scan._replace(packed=scan.total(jnp.stack([each, jnp.abs(each)], 1)))
    marked = jnp.where(counts[:, None] > 0, nodes.marked, 0.0)
    parts = jnp.concatenate([log_complement(jnp.concatenate([marked, nodes.infinite], 1)), nodes.lowest[:, None]], 1)
    totals = scan.total(parts)
    lowest = totals[-1]
    p, q, most, least_infinite = -jnp.expm1(totals[:-1])
    error = SLACK * (jnp.max(jnp.where(counts > 0, nodes.marked_error, 0.0)) + (24 + 2 * rows) * u)
    least = jnp.where((counts > 0) & (marked[:, 0] > 0), nodes.marked_loss - nodes.lowest, jnp.inf)
    reach = jnp.min(least) + lowest - (rows + 2) * u * (jnp.abs(jnp.min(least)) + 2 * jnp.abs(lowest))
    # Without marks every eps will do; an infimum that is not known is known for none.
    reach = jnp.where(jnp.max(marked) > 0, jnp.where(jnp.isnan(reach), -jnp.inf, reach), jnp.inf)
    # Errors of logs outwards: P's up and Q's down above, and the other way below.
    up, down = jnp.log1p(error), jnp.log1p(-jnp.minimum(error, 1.0))
    outwards = jnp.stack([jnp.stack([up, down]), jnp.stack([down, up])])
    logs = jnp.log(jnp.stack([p, q]))
    sizes = jnp.where(logs > -jnp.inf, 10 * u * jnp.abs(logs), 0.0)
    events = logs[None] + outwards + sizes[None] * np.array([[1.0, -1.0], [-1.0, 1.0]])
    marked_both = jnp.concatenate([events, jnp.stack([reach, reach])[:, None]], 1)
    rounding = (24 + 2 * rows) * u
    most, least_infinite = most * (1 + rounding), least_infinite * (1 - rounding)
    infinite = jnp.stack([most, jnp.where(p > 0, -most, least_infinite)])
    is_known = jnp.all((counts >= 0) & (counts < jnp.inf) & (counts == jnp.round(counts)))
    is_known = is_known & jnp.all(nodes.is_valid | (counts == 0))
    return Rows(nodes, counts, scan, marked_both, infinite, is_known, jnp.all(counts == 0))


def search_rows(rows: Rows, start: Array, log_target: Array, is_given: Array | bool) -> Orders:
    """Returns :func:`.composer.search` on every SCAN-th node, whose Chernoff bounds count what such a rule misses.

    A cumulant errs by k log(1 + e), e the relative error of a moment, and by k times the errors of masses and t times
    those of losses.
    """
    nodes = rows.nodes
    found = composer.search(rows.scan, start, log_target, is_given)

    def miss(nodes: Nodes, orders: Array, cumulants: Array) -> Array:
        outside = jax.vmap(log_left_out, (None, 0, 0))(nodes, orders, cumulants)
        error = jax.vmap(log_scan_missed, (None, 0, 0, None))(nodes, orders, outside, SCAN * nodes.step)
        lost = jnp.log1p(over_sum(jnp.exp(error) + jnp.sum(jnp.exp(outside), -1)))
        return lost + jnp.max(nodes.mass_error) + orders * jnp.max(nodes.loss_error) * 2

    error = rows.total(jax.vmap(miss, (0, None, 1))(nodes, found.orders, found.rows))
    return found._replace(log_chernoff=found.log_chernoff + error * SLACK)


def choose_line(found: Orders, start: Array, log_target: Array, nats: Array) -> tuple[Array, Array, Array]:
    """Returns the order of a line for eps = ``start`` with log delta ``log_target``, its spacing, and rows' cumulants.

    On the line t the alias at eps + L, times e^(tL), is bounded by e^(-(a - t) L) of Chernoff's bound at a > t, and
    that at eps - L by e^(-(t - a) L) of that at a < t, or of 1 at a = 0. Each L will do for which both are e^-CUT of
    delta. The shortest L takes the fewest frequencies; the height above the saddle point's, up to ``nats``, takes
    digits. Tightness only.
    """
    lines, zero = found.orders, jnp.zeros(1, found.orders.dtype)
    orders, logs = jnp.concatenate([lines, zero]), jnp.concatenate([found.log_chernoff, zero])
    apart = orders[:, None] - lines[None]
    room = jnp.maximum(logs - orders * start - log_target + CUT, CUT / 2)
    needed = jnp.where(apart != 0, room[:, None] / jnp.abs(apart), jnp.inf)
    lengths = jnp.max(jnp.min(jnp.where(jnp.stack([apart > 0, apart < 0]), needed[None], jnp.inf), 1), 0)
    heights = found.cumulants - jnp.log(lines) - jnp.log1p(lines) - lines * start
    excess = heights - jnp.min(jnp.where(heights > -jnp.inf, heights, jnp.inf))
    cost = jnp.where(excess < nats, lengths * (1 + excess / nats), jnp.inf)
    is_best = cost == jnp.min(jnp.where(cost < jnp.inf, cost, jnp.inf))
    columns = jnp.concatenate([jnp.stack([lines, lengths], 1), found.rows], 1)
    order, length, *cumulants = jnp.max(jnp.where(is_best[:, None], columns, -jnp.inf), 0)
    info = jnp.finfo(lines.dtype)
    spacing = jax.lax.reduce_precision(2 * math.pi / length, info.nexp, info.nmant - 2 * SIDE.bit_length())
    return order, spacing, jnp.stack(cumulants)


class Tilted(NamedTuple):
    """A row's law at an order, with sums over its nodes.

    Attributes:
        weights (n,): p e^(t y - g), with the cumulant g, roughly.
        cells (n/CELL,): their sums over cells.
        log_cells (3, c): bounds on the logs of these, by all nodes and by every SCAN-th, and of those of P itself; with
            bounds on the shares of cells beyond the nodes.
        x (n,): losses' distances from the mean.
        mean, variance (): of the loss, roughly.
        surplus, surplus_error (): E[e^(t Y - g)] - 1, and a bound on its error.
        error (): bound on the error of phi, over w, but for that of tables and sums.
        outside (3,): bounds on the shares of all that is beyond the nodes.
    """

    weights: Array
    cells: Array
    log_cells: Array
    x: Array
    mean: Array
    variance: Array
    surplus: Array
    surplus_error: Array
    error: Array
    outside: Array


def _add(values: Array) -> Array:
    """Returns sums over the last axis in parts: n/CHUNKS + CHUNKS units of the sizes' sum, and not n."""
    parts = values.reshape(*values.shape[:-1], CHUNKS, -1).sum(-1)
    return jax.lax.optimization_barrier(parts).sum(-1)


def tilt(nodes: Nodes, order: Array, cumulant: Array) -> Tilted:
    """Returns a row's law at an order t, given its cumulant g, roughly.

    Write a = t y - g. The moment over e^g, less 1, is the sum of p (e^a - 1) less the masses of marked outcomes and of
    infinite losses, as P's masses add up to 1 with these; weights are w = p e^a, and the mean c may be any number near
    the mean.

    *Surplus.* Let a node's mass err by a share m and its loss by d. The exponent a errs by d' = t d + (|t y| + |a|) u,
    and weights, exponentials of log p + a, by m + d' + c u, c = |log p + a| + 9. Where |a| < 1, p (e^a - 1) errs by m +
    18u of itself and by w d'; elsewhere it is w - p, and w + p at most 2.2 |w - p|, so it errs by three times m + (c +
    9) u of itself and w d'. The sum adds N = n/CHUNKS + CHUNKS units. What the rule misses of P's own mass is left
    to :func:`lay_line`.

    *Phi* is a sum of w (e^(i om X) - 1) at frequencies om. It errs by om times the sum of w |x| (m + d' + c u + u) + w
    d, and for the surplus, by which it is not divided.
    """
    u, n = roundoff(), nodes.losses.shape[-1]
    y, logs = nodes.losses, nodes.log_p
    lever = order * y
    exponent = lever - cumulant
    p, weights = jnp.exp(logs), jnp.exp(logs + exponent)
    is_near = jnp.abs(exponent) < 1
    grown = jnp.where(is_near, p * jnp.expm1(jnp.where(is_near, exponent, 0.0)), weights - p)
    moves = u * (jnp.abs(lever) + jnp.abs(exponent)) + order * nodes.loss_error
    units = nodes.mass_error + u * (jnp.abs(logs + exponent) + 9)
    sizes = jnp.abs(grown)
    gained, moved, off, own, mean = _add(
        jnp.stack([grown, sizes, weights * moves, 3 * sizes * (units + 9 * u), weights * y])
    )
    x = y - mean
    absent = nodes.marked[0] + nodes.infinite[0]
    surplus = gained - absent
    doubt = off + own + u * ((n // CHUNKS + CHUNKS) * moved + 2 * jnp.abs(surplus))
    doubt = doubt + absent * (nodes.marked_error + 4 * u) + (nodes.infinite[0] - nodes.infinite[1])
    doubt = SLACK * (doubt + n * jnp.finfo(y.dtype).tiny)
    spread = weights * jnp.abs(x)
    wrong = spread * (moves + units + u) + weights * nodes.loss_error
    first, second, variance = _add(jnp.stack([spread, wrong, spread * jnp.abs(x)]))
    table = 3 * (n // (SCAN * ROW)) + 2 * (ROW + SCAN) + 68 + SIDE
    error = SLACK * (second + (table * u + jnp.abs(surplus) + doubt) * first)
    # Cells of the tilted law and of P itself.
    zero = jnp.zeros_like(order)
    outside = jax.vmap(log_left_out, (None, 0, 0))(nodes, jnp.stack([order, zero]), jnp.stack([cumulant, zero]))
    outside = outside[np.array([0, 0, 1])]
    each = jnp.stack([logs + exponent, logs]).reshape(2, -1, CELL)
    full, own = jnp.max(each, -1) + math.log(CELL)
    few = jnp.max(each[0, :, SCAN // 2 :: SCAN], -1) + math.log(CELL)
    log_cells = jnp.concatenate([jnp.stack([full, few, own]), outside], 1)
    outside = jnp.sum(jnp.exp(outside), -1)
    cells = weights.reshape(-1, CELL).sum(-1)
    return Tilted(weights, cells, log_cells, x, mean, variance, surplus, doubt, error, outside)


def transform(row: Tilted, spacing: Array, tables: Array, is_coarse: Array) -> Array:
    """Returns real and imaginary parts of phi - 1 (2, SIDE, SIDE) at frequencies spacing (SIDE a + b), a < ``tables``.

    It is the sum over all nodes, or over every SCAN-th where ``is_coarse``.

    *Rounding.* Powers b of e^(i spacing x) are products as in :func:`.composer.transform`, right to 24 + SIDE units of
    the power's angle. The first of each table, of the angle spacing SIDE a x, errs by 3 units of the angle and by 5 for
    each part: 12. Nodes come in SCAN rows of n/SCAN; a row is summed in parts. Sums of w A, and of w B (1 + A) in both
    parts at once, with A and B powers less 1, err by 1.5 (2 n/(SCAN ROW) + ROW + SCAN + 3) units of w |A|, or of w |B|,
    and |A| + |B| <= |om x| up to the powers' errors. With 1 + A and the sum of both parts that is 3 n/(SCAN ROW) + 2
    (ROW + SCAN) + 5 + 5 + 36 + SIDE units of the sum of w |om x|, and some to spare.
    """
    x, weights = (values.reshape(-1, SCAN).T.reshape(SCAN, ROW, -1) for values in (row.x, row.weights))
    weights = weights * jnp.where(is_coarse, SCAN, 1.0)

    def add(values: Array) -> Array:
        return jax.lax.optimization_barrier(values).sum(-1)

    def of_row(j: Array, found: Array) -> Array:
        angle, w = spacing * x[j], weights[j]
        start = jnp.stack(cosm1_and_sin(angle))  # (parts, ROW, n)

        def power(table: Array, _: None) -> tuple[Array, Array]:
            (re, im), (one_re, one_im) = table, start
            return (table + start) + jnp.stack([re * one_re - im * one_im, re * one_im + im * one_re]), table

        # Each step multiplies by the first power.
        _, inner = jax.lax.scan(power, jnp.zeros_like(start), None, SIDE)  # (SIDE, parts, ROW, n)
        own = add(jnp.einsum("bpcx,cx->pbc", inner, w, precision="highest"))
        # 1 + A as a matrix of its parts, for real and imaginary parts of a product.
        re, im = 1 + inner[:, 0], inner[:, 1]
        both = jnp.stack([jnp.stack([re, -im]), jnp.stack([im, re])])

        def table(i: Array, found: Array) -> Array:
            first = jnp.stack(cosm1_and_sin((SIDE * i).astype(angle.dtype) * angle)) * w[None]
            added = add(jnp.einsum("pqbcx,qcx->pbc", both, first, precision="highest")) + own
            at = jnp.int32(0), i.astype(jnp.int32), jnp.int32(0)
            old = jax.lax.dynamic_slice(found, at, (2, 1, SIDE), allow_negative_indices=False)
            return jax.lax.dynamic_update_slice(found, old + added[:, None], at, allow_negative_indices=False)

        # One table of frequencies a step, until those wanted are done; the others stay 0.
        return jax.lax.fori_loop(jnp.int32(0), tables, table, found)

    # One row of nodes a step: the middle one alone is the coarser rule.
    begin = jnp.where(is_coarse, SCAN // 2, 0).astype(jnp.int32)
    end = jnp.where(is_coarse, SCAN // 2 + 1, SCAN).astype(jnp.int32)
    return jax.lax.fori_loop(begin, end, of_row, jnp.zeros((2, SIDE, SIDE), row.x.dtype))


def lay_line(rows: Rows, found: Orders, start: Array, log_target: Array, nats: Array) -> Line:
    """Returns a line for eps = ``start``, with log delta about ``log_target``; its sign is open.

    The mathematics, and units of rounding, are those of :func:`.composer.lay_line` without a smoothing: units of the
    phase and of the kernel are the same, as are those of moduli and angles but for one, since no exponent is added to
    theirs. So a node of size s is off by s e^d min(d, 1), d the sum of the logs of all its factors' errors. What nodes
    miss, e, adds e and that of the rule for phi to the error of phi, and e to that of a surplus, as does what the rule
    misses of P's own mass.

    *Common factor.* With r the surplus of a row that is found, log (1 + r) errs by 8 units of r and by the surplus's
    error over 1 - |r|; a cumulant is added, products and sums over m rows add m + 3 units of the log. The distance of
    start from the sum of means errs by a unit of both, besides m + 2 of means (``drift``).

    *End.* Frequencies from W on are left out: their terms sum to at most the bound on phi's power times spacing/W^2 +
    1/W, over pi, in units of the common factor.
    """
    u, tiny, count = roundoff(), jnp.finfo(start.dtype).tiny, SIDE * SIDE
    nodes = rows.nodes
    order, spacing, cumulants = choose_line(found, start, log_target, nats)
    row = jax.vmap(tilt, (0, None, 0))(nodes, order, cumulants)
    m, n = row.weights.shape
    logs = cumulants + jnp.log1p(row.surplus)
    unit, center, drift, variance = rows.total(jnp.stack([logs, row.mean, jnp.abs(row.mean), row.variance], 1))
    # The end of the line: farther and farther, until what is beyond is small beside delta.
    goal = log_target - unit + order * start + math.log(math.pi) - CUT
    most = spacing * count

    def fading(w: Array) -> Array:
        return rows.total(jax.vmap(log_fading, (0, None, None, 0, 0))(nodes, order, w, row.cells, row.log_cells[:, 0]))

    def farther(state: tuple[Array, Array]) -> tuple[Array, Array]:
        w = jnp.minimum(state[0] * FARTHER, most)
        return w, fading(w)

    begin = jnp.minimum(jnp.sqrt(2 * CUT / variance) / FARTHER, most / FARTHER)
    begin = jnp.where(begin > 0, begin, most)
    w, rest = jax.lax.while_loop(
        lambda state: (state[1] > goal + jnp.log(state[0])) & (state[0] < most),
        farther,
        (begin, jnp.inf * jnp.ones_like(begin)),
    )
    # A line that ends nowhere near is not worth its frequencies.
    is_short = rest < goal + jnp.log(w) + CUT / 2
    number = jnp.where(is_short, jnp.clip(jnp.ceil(w / spacing), 1, count), 1)
    tables = jnp.ceil(number / SIDE).astype(jnp.int32)
    end = spacing * number
    # What both rules miss at the end, and the finer one of P's own mass.
    given = (
        jnp.stack([order, order, 0 * order]),
        jnp.stack([end, end, 0 * end]),
        row.log_cells,
        jnp.asarray([1.0, SCAN, 1.0]),
    )
    of_row = jax.vmap(log_missed, (None, 0, 0, 0, 0))
    log_missing = jax.vmap(of_row, (0, None, None, 0, None))(nodes, *given)
    missing, few, of_mass = (SLACK * over_sum(jnp.exp(log_missing) + row.outside)).T
    # The coarser rule serves where what it misses is nothing beside rounding, or beside what is missed anyway.
    is_coarse = rows.total(few) < jnp.maximum(u, 2 * rows.total(missing))
    missed = missing + jnp.where(is_coarse, few, missing)
    one = jax.lax.map(lambda row: transform(row, spacing, tables, is_coarse), row)
    # The characteristic function to the power of the runs.
    index = np.arange(count, dtype=np.float64).reshape(SIDE, SIDE)
    w = spacing * jnp.asarray(index, order.dtype)
    x, y = one[:, 0], one[:, 1]
    real, square = 1 + x, y * y
    excess, whole = x * (2 + x) + square, jnp.maximum(real * real + square, u * u)
    log_size = 0.5 * jnp.where(excess > -0.25, jnp.log1p(jnp.maximum(excess, -0.25)), jnp.log(whole))
    argument = jnp.arctan2(y, real)
    each = lambda values: values[:, None, None]  # noqa: E731
    doubt = each(row.error) * w[None] + each(missed) + 16 * n * tiny
    units = 12 * jnp.abs(x) + 4 * square + (11 + m) * (jnp.abs(log_size) + jnp.abs(argument))
    doubt = jnp.log1p(doubt * jnp.exp(-log_size)) + u * units
    log_modulus, phase, doubt = rows.total(jnp.stack([log_size, argument, doubt], 1))
    # A surplus that is not small says that the cumulants were none.
    wrong = row.surplus_error + of_mass + missing
    surplus = jnp.abs(row.surplus) + wrong
    unit_error = jnp.where(surplus < 0.25, wrong / jnp.maximum(1 - surplus, 0.5), jnp.inf)
    unit_error = rows.total(unit_error + u * ((m + 3) * jnp.abs(logs) + jnp.abs(cumulants) + 8 * surplus))
    drift = SLACK * u * ((m + 3) * drift + 3 * jnp.abs(start))
    far = start - center
    turn = phase - far * w
    less, sine = cosm1_and_sin(turn)
    plus = order * (order + 1)
    d_re, d_im = plus - w * w, (2 * order + 1) * w
    inverse = 1 / (d_re * d_re + d_im * d_im)
    is_summed = index < number
    weight = jnp.where(is_summed, np.where(index == 0, 0.5, 1.0), 0.0) * (spacing / math.pi)
    sizes = jnp.exp(log_modulus) * weight * inverse
    spectrum = jnp.stack([(1 + less) * d_re + sine * d_im, sine * d_re - (1 + less) * d_im]) * sizes[None]
    doubt = jnp.where(is_summed, doubt + u * (9 * jnp.abs(turn) + jnp.abs(far) * w + 60), 0.0)
    sizes = weight * jnp.exp(log_modulus + doubt) * jnp.sqrt(inverse)
    size, off = jnp.stack([sizes, sizes * jnp.minimum(doubt, 1.0)]).sum((-1, -2))
    rest = jnp.where(is_short, rest, 0.0) + rows.total(2 * missing)
    after = jnp.exp(rest) * (spacing / (end * end) + 1 / end) / math.pi
    none = jnp.zeros(1, order.dtype)
    orders, beside = jnp.concatenate([found.orders, none]), jnp.concatenate([found.log_chernoff, none])
    fall = -jnp.abs(orders - order) * (2 * math.pi / spacing) * (1 - 8 * u)
    aliases = beside + fall - jnp.log(-jnp.expm1(fall)) + 16 * u * (1 + jnp.abs(beside) + jnp.abs(fall))
    numbers = LineNumbers(
        order=order,
        start=start,
        spacing=spacing,
        unit=unit,
        unit_error=SLACK * unit_error + drift * order,
        allowance=SLACK * (off + after + 16 * count * tiny),
        size=SLACK * size,
        drift=drift,
        smoothing=jnp.zeros_like(order),
    )
    return Line(jnp.ones_like(order), spectrum, jnp.stack([orders, aliases]), jnp.stack(numbers))


# ----------------------------------------------------------------------------------------------------
# Questions
# ----------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The bracket after some rounds, and what the next one asks of laws.

    Attributes:
        round (): number of rounds done.
        guess (): about the answer.
        lower, upper (): the bracket of epsilon or of delta.
        ask: what the next round asks of a law.
    """

    round: Array
    guess: Array
    lower: Array
    upper: Array
    ask: Wishes


LawOf = Callable[[Wishes], Nodes]
"""The rows of nodes (m, ...) of a composition, as asked for."""


def first_state(counts: Array, worst: Array, nats: Array) -> State:
    """Returns the state before the first round: all that is known is that the answer is between 0 and ``worst``.

    Args:
        counts (m,): numbers of runs.
        worst (): the largest answer there is.
        nats (): nats below 1 at which delta lies, roughly.
    """
    runs = jnp.maximum(jnp.sum(counts), 1.0)
    nats = jnp.maximum(jnp.log(runs) + nats, 0.0)
    ask = Wishes(nats, runs, jnp.inf * runs, -jnp.inf * runs)
    return State(jnp.zeros((), jnp.int32), jnp.zeros_like(worst), jnp.zeros_like(worst), worst, ask)


def goes_on(state: State) -> Array:
    """Returns whether another round may do better."""
    is_close = (state.upper < jnp.inf) & (state.upper - state.lower <= CLOSE * state.upper)
    return (state.round < ROUNDS) & ~is_close


def _next(rows: Rows, state: State, epsilon: Array, log_delta: Array) -> State:
    """Returns the state with what the next round asks, given about eps and log delta; the round is done.

    The first round marks nothing, the second the last outcomes, which make up a quarter of delta and so leave a guess
    of eps; later ones mark losses that are above eps whatever the others lose. All of it only steers.
    """
    lowest = jnp.where(jnp.isfinite(rows.nodes.lowest), rows.nodes.lowest, 0.0)
    is_first = state.round == 0
    loss = jnp.where(is_first, jnp.inf, 1.02 * epsilon - rows.total(lowest))
    log_mass = log_delta - jnp.log(state.ask.runs) - jnp.where(is_first, math.log(4.0), 30.0)
    return state._replace(round=state.round + 1, ask=state.ask._replace(loss=loss, log_mass=log_mass))


def _nats(state: State) -> Array:
    """Returns by how much a line may be higher than the saddle point's: what many runs leave of the digits.

    It is less where a round has come close already. Tightness only.
    """
    runs, is_near = state.ask.runs, state.upper - state.lower < 1e-6 * state.upper
    left = math.log(CLOSE / 2**8 / roundoff()) - 0.5 * jnp.log(runs) - jnp.where(is_near, 3.0, 0.0)
    return jnp.clip(left, 0.5, NATS)


def _lines_both(line: Line, of_line: Callable[[Line], Array]) -> Array:
    """Returns a function of a line for its upper bound and for its lower one, an axis first."""
    signs = jnp.asarray([1.0, -1.0], line.spectrum.dtype)
    return jax.vmap(lambda sign: of_line(line._replace(sign=sign)))(signs)


def improve_epsilon(nodes: Nodes, counts: Array, delta: Array, state: State) -> State:
    """Returns the state after a round for epsilon.

    Args:
        nodes: rows, as the state asks.
        counts (m,): numbers of runs.
        delta (): from 0 to 1.
        state: the state before.
    """
    u, tiny = roundoff(), jnp.finfo(delta.dtype).tiny
    rows = gather(nodes, counts)
    room = delta - rows.infinite
    # A target below the normal numbers is met by no upper bound. The log errs by eight units of itself, the sum by one.
    log_room = jnp.log(jnp.maximum(room, tiny))
    log_room = log_room + np.array([-1.0, 1.0]) * (u * (4 + 10 * jnp.abs(log_room)))
    is_given = state.round > 1
    start = state.guess
    of_marked = rows.rare(1.0)
    share, _ = of_marked.bound(start, jnp.ones_like(delta), log_room[0])
    target = log_room[0] + jnp.where(is_given, jnp.log1p(-jnp.minimum(share, 0.9)), 0.0)
    found = search_rows(rows, start, target, is_given)
    start = jnp.where(is_given, start, found.guess)
    line = lay_line(rows, found, start, target, _nats(state))

    def solve(line: Line) -> Array:
        log_target = jnp.where(line.sign > 0, log_room[0], log_room[1])
        shift = line.numbers.drift * (1 + 2 * u)
        return jnp.stack(composer.solve(line, rows.rare(line.sign), log_target, shift))

    (root, above), (_, below) = _lines_both(line, solve)
    # By Chernoff's bound on the unmarked, and P(A).
    left = jnp.log(jnp.maximum(room[0] * (1 - 4 * u) - jnp.exp(of_marked.packed[0]) * (1 + 10 * u), 0.0))
    by_chernoff = composer.chernoff_epsilon(found, left - 16 * u * (1 + jnp.abs(left)))
    above = jnp.fmin(above, jnp.maximum(by_chernoff, 0.0) * (1 + 4 * u))
    upper = jnp.fmin(state.upper, jnp.where(room[0] > 2 * tiny, above, jnp.inf))
    lower = jnp.fmax(state.lower, jnp.where(room[1] > 0, below, jnp.inf))
    # A root that is none, or is known to be wrong, leaves the middle of the bracket.
    guess = jnp.where((root > lower) & (root <= upper), root, 0.5 * (lower + upper))
    guess = jnp.where(upper < jnp.inf, guess, root)
    upper = jnp.where(rows.is_known & (delta >= 0), jnp.where(rows.is_idle | (delta >= 1), 0.0, upper), jnp.inf)
    lower = jnp.where(rows.is_known & ~rows.is_idle & (delta >= 0) & (delta < 1), lower, 0.0)
    return _next(rows, state._replace(guess=guess, lower=lower, upper=upper), guess, log_room[0])


def improve_delta(nodes: Nodes, counts: Array, epsilon: Array, state: State) -> State:
    """Returns the state after a round for delta at an ``epsilon`` of at least 0; arguments as :func:`improve_epsilon`.

    The guess is log delta.
    """
    u, tiny = roundoff(), jnp.finfo(epsilon.dtype).tiny
    rows = gather(nodes, counts)
    found = search_rows(rows, epsilon, jnp.zeros_like(epsilon), True)
    by_chernoff = composer.chernoff_delta(found, epsilon * (1 - 2 * u))
    # Chernoff's bound is some nats above delta.
    target = jnp.where(state.round > 0, jnp.minimum(state.guess, by_chernoff), by_chernoff - 2.0)
    line = lay_line(rows, found, epsilon, target, _nats(state))

    def read(line: Line) -> Array:
        sign = line.sign
        at = epsilon - sign * (line.numbers.drift * (1 + 2 * u) + 2 * u * epsilon)
        bound, value, _ = composer.read(line, at, by_chernoff)
        bound = jnp.where(sign > 0, jnp.fmin(bound, 1.0), bound)
        # The exponential errs by eight units and those of its argument.
        bound = bound * jnp.exp(by_chernoff + sign * u * (12 + jnp.abs(by_chernoff)))
        marked, _ = rows.rare(sign).bound(epsilon, sign)
        whole = (
            bound + jnp.where(sign > 0, tiny, 0.0) + marked + jnp.where(sign > 0, rows.infinite[0], rows.infinite[1])
        )
        return jnp.stack([whole * (1 + sign * 8 * u), jnp.log(value) + by_chernoff])

    (above, guess), (below, _) = _lines_both(line, read)
    upper, lower = jnp.fmin(state.upper, above), jnp.fmax(state.lower, below)
    is_known = rows.is_known & (epsilon >= 0)
    upper = jnp.where(is_known, jnp.where(rows.is_idle, 0.0, upper), 1.0)
    lower = jnp.where(is_known & ~rows.is_idle, lower, 0.0)
    guess = jnp.where(jnp.isfinite(guess) & (guess <= 0), guess, by_chernoff)
    log_delta = jnp.log(jnp.maximum(upper, tiny))
    state = _next(rows, state._replace(guess=guess, lower=lower, upper=upper), epsilon, log_delta)
    return state._replace(ask=state.ask._replace(nats=jnp.maximum(state.ask.nats, jnp.log(state.ask.runs) - guess)))


def epsilon(law: LawOf, counts: ArrayLike, delta: ArrayLike) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns lower and upper bounds on the epsilon of a composition at a delta, in one program.

    Args:
        law: what makes the rows of nodes.
        counts (m,): numbers of runs of each row.
        delta: from 0 to 1.
    """
    delta, counts = (jnp.asarray(value, jnp.float64) for value in (delta, counts))
    return _rounds(improve_epsilon, law, counts, delta, epsilon_state(counts, delta))


def delta(law: LawOf, counts: ArrayLike, epsilon: ArrayLike) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns lower and upper bounds on the delta of a composition at an epsilon; arguments as :func:`epsilon`."""
    epsilon, counts = (jnp.asarray(value, jnp.float64) for value in (epsilon, counts))
    return _rounds(improve_delta, law, counts, epsilon, delta_state(counts, epsilon))


def epsilon_state(counts: Array, delta: Array) -> State:
    """Returns the state before the first round for epsilon at a delta."""
    least = jnp.maximum(delta, jnp.finfo(delta.dtype).tiny)
    return first_state(counts, jnp.full_like(delta, jnp.inf), -jnp.log(least))


def delta_state(counts: Array, epsilon: Array) -> State:
    """Returns the state before the first round for delta at an epsilon."""
    return first_state(counts, jnp.ones_like(epsilon), 30 * jnp.ones_like(epsilon))


def _rounds(
    improve: Callable[..., State], law: LawOf, counts: Array, value: Array, first: State
) -> tuple[Array, Array]:
    # Each round asks the law for nodes and improves the bracket, until that is close.
    last = jax.lax.while_loop(goes_on, lambda state: improve(law(state.ask), counts, value, state), first)
    return last.lower, last.upper
