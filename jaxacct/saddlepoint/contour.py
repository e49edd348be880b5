"""The contour integral of the exact accountant: delta as an inverse transform along a line through a saddle point.

Delta of a composition is an integral of the exponential of its cumulant function along a line of complex orders. On the
line through the saddle point the integrand falls fastest, and an equidistant rule gives about ten digits with a few
dozen nodes, whatever the number of steps. Everything that the rule leaves out is bounded. In reading order:

- the moments of the sum of all losses at real orders, and their errors (:func:`rungs_of`, :func:`total_and_error`);
- rare losses, taken out of the integral (:class:`Rare`, :class:`Kept`);
- the search for a line by looks at a ladder of orders (:func:`find_saddle_point`);
- the characteristic function at the nodes of a line (:func:`transforms`, :func:`log_characteristic`);
- the integral along the line and its error bounds (:func:`line_at`, :func:`read_at`).

A composition is a list of parts: pairs of one class with their numbers of runs. Most parts here are a single pair, and
such a pair is taken without its axis (:func:`jaxacct.numerics.pytrees.without_axes`), because an operation on an axis
of length 1 compiles to several.

Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function", for the
inversion; the contour and its errors are derived here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.composition import Part, Parts
from jaxacct.mechanisms.normal import cosm1_and_sin, turn
from jaxacct.mechanisms.pair import (
    RULE,
    Careful,
    DominatingPair,
    Law,
    Marked,
    Moments,
    Nodes,
    Rungs,
    careful_moments,
    law_of,
    log_left_out,
    moments,
    rungs,
    tilted_shares,
    units_of_shares,
)
from jaxacct.numerics import batched_loops
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import few_bits, first_index, log_complement, log_peak
from jaxacct.numerics.pytrees import each, register_dataclass

Tree = TypeVar("Tree")
"""A pytree of arrays."""


def scan_nodes(parts: Parts) -> list[Nodes]:
    """Returns the nodes of all parts for real orders."""
    return [each(part, lambda pair: law_of(pair).scan()) for part in parts]


def is_alone(parts: Parts) -> bool:
    """Returns whether a composition is a single pair, without an axis. If that has no runs nothing is run at all."""
    return len(parts) == 1 and jnp.ndim(parts[0][1]) == 0


def sum_rows(parts: Parts, found: list[Tree]) -> Tree:
    """Returns the sum, over all runs of all rows, of the quantity ``found`` of each row."""
    if is_alone(parts):
        return jax.tree.map(lambda row: parts[0][1] * row, found[0])

    def of_part(steps: Array, rows: Array) -> Array:
        runs = jnp.reshape(steps, jnp.shape(steps) + (1,) * (jnp.ndim(rows) - jnp.ndim(steps)))
        terms = jnp.where(runs > 0, runs * rows, 0.0)
        return jnp.sum(terms, axis=0) if jnp.ndim(steps) else terms

    def of_all(*found: Array) -> Array:
        terms = [of_part(steps, rows) for (_, steps), rows in zip(parts, found, strict=True)]
        return sum(terms[1:], terms[0])

    return jax.tree.map(of_all, *found)


def rungs_of(parts: Parts, nodes: list[Nodes], orders: Array) -> tuple[Moments, list[Rungs]]:
    """Returns approximate moments of the sum at orders (n,), and those of each row."""
    rows = [
        each(part, lambda pair, rows: rungs(rows, orders, law_of(pair)), rows)
        for part, rows in zip(parts, nodes, strict=True)
    ]
    return sum_rows(parts, [Moments(row.value, row.slope, row.curvature) for row in rows]), rows


def above_at(parts: Parts, nodes: list[Nodes], orders: Array, rows: list[Array]) -> tuple[Array, list[Array]]:
    """Returns upper bounds on the sum's cumulants at orders (n,), and bounds on each row's quadrature error, (n,).

    ``rows`` are upper bounds on the cumulants that the nodes give each row.
    """

    def scan_error(pair: Any, nodes: Nodes) -> Array:
        step = nodes.places[1] - nodes.places[0]
        return jnp.exp(law_of(pair).log_scan_errors(orders, step))

    found = [each(part, scan_error, row) for part, row in zip(parts, nodes, strict=True)]
    return sum_rows(parts, [above + more for above, more in zip(rows, found, strict=True)]), found


def total_and_error(
    parts: Parts, nodes: list[Nodes], missed: list[Array], order: Array
) -> tuple[Moments, Array, list[Any]]:
    """Returns the moments of the sum, a bound on the error of its cumulant, and the moments of each row.

    Those are :class:`Moments`, or in few digits :class:`Careful` ones.

    The error is that of rounding and that of quadrature, which is given as ``missed``.
    """

    def of_row(pair: Any, nodes: Nodes, missed: Array) -> tuple[Moments, Array, Any]:
        if arithmetic().has_few_digits:
            found = careful_moments(nodes, order, law_of(pair).roundings(nodes))
            return found.moments, found.value_error + missed, found
        # Bound on a cumulant's relative error, in units of roundoff. Lowering it can break a bound. Weights are
        # exponentials of logs as large as cut + 14, off by that many units and a few for the loss in them; moments are
        # sums of positive terms, taken directly only where they are above 1/4.
        value_rounding = 700.0
        u, found = roundoff(), moments(nodes, order)
        error = value_rounding * u * jnp.abs(found.value)
        if isinstance(pair, Kept):
            # Near 1 a moment is formed from sums of one sign and from the marked masses, by which the sums may exceed
            # it: the errors of these count.
            marked = pair.marked
            missed = missed + 1.3 * (order + 1) * (marked.p + marked.q) * (marked.error + 2 * value_rounding * u)
        return found, error + missed, found

    found = [each(part, of_row, *row) for part, *row in zip(parts, nodes, missed, strict=True)]
    return *sum_rows(parts, [(row[0], row[1]) for row in found]), [row[2] for row in found]


def largest_order(parts: Parts) -> Array:
    """Returns the largest order at which the moments of all losses that are run are known."""
    largest = [each(part, lambda pair: law_of(pair).largest_order()) for part in parts]
    if is_alone(parts):
        return largest[0]
    run = [jnp.min(jnp.where(k > 0, most, jnp.inf)) for (_, k), most in zip(parts, largest, strict=True)]
    return jnp.min(jnp.stack(run))


# ----------------------------------------------------------------------------------------------------
# Rare losses, taken out of the integral because they would cost it most of its nodes.
#
# A run is marked where its noise lies beyond a place, where losses are large and rare, or small. With A the event that
# a run is marked where losses are large, and B that none is so but one where they are small,
#
#     delta(eps) = E[(1 - e^(eps - S))+; no mark] + E[(1 - e^(eps - S))+; A] + E[(1 - e^(eps - S))+; B].
#
# The first term is the integral of a law without the marked losses: it has moments of all orders, and does not reach
# beyond the losses that are kept. The second lies between P(A) - e^eps Q(A), as (x)+ >= x, and P(A); Q(A) counts only
# the part of A on which P has mass, as other runs may lose -inf. If marked losses are so large that S >= eps whatever
# the other runs lose, which is at least their infimum, the lower of the two is exact. The third lies between 0 and
# P(B), and is 0 if marked losses are so small that S <= eps even where the other runs lose their suprema. So marks
# begin where these conditions hold, or, if that comes first, where the marked mass is negligible beside delta.
# ----------------------------------------------------------------------------------------------------


class Rare(NamedTuple):
    """The probabilities of the marked losses of a composition, and the eps for which their share of delta is exact.

    Attributes:
        p (), q (): probabilities that any run is marked where losses are large and all losses are finite; losses of
            -inf, which P does not have, are excluded from q.
        small (): P's probability that any run is marked where losses are small.
        error (): bound on the relative errors of these probabilities.
        above (): eps up to which the sum is at least eps wherever a run is marked where losses are large.
        below (): eps from which on the sum is at most eps wherever a run is marked where losses are small.
    """

    p: Array
    q: Array
    small: Array
    error: Array
    above: Array
    below: Array

    def shares(self, epsilon: Array) -> tuple[Array, Array, Array, Array]:
        """Returns the share of delta(epsilon) of the marked losses.

        These are a lower bound, its rate of fall with epsilon, the amount by which an upper bound exceeds it, and the
        rounding of these.
        """
        of_q = jnp.where(self.q > 0, jnp.exp(epsilon) * self.q, 0.0)
        least = jnp.maximum(self.p - of_q, 0.0)
        more = jnp.where(epsilon <= self.above, 0.0, jnp.minimum(of_q, self.p))
        more = more + jnp.where(epsilon >= self.below, 0.0, self.small * (1 + self.error))
        return least, jnp.where(least > 0, of_q, 0.0), more, (self.error + 8 * roundoff()) * (self.p + of_q)

    def between(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """Returns the share of delta(epsilon) of the marked losses: a lower bound, the excess of an upper, rounding."""
        least, _, more, off = self.shares(epsilon)
        return least, more, off


def with_rare(log_delta: Array, rare: Rare | None, epsilon: Array) -> Array:
    """Returns an upper bound on log delta(eps) with the marked losses, given one without them.

    Both exponentials and the sum are right to 24 units, and the logarithm to eight units of itself.
    """
    if rare is None:
        return log_delta
    whole = jnp.exp(log_delta) + sum(rare.between(epsilon)) + jnp.finfo(log_delta.dtype).tiny
    found = jnp.log(whole)
    return found + 24 * roundoff() * (1 + jnp.abs(found))


@register_dataclass
@dataclass(frozen=True)
class Kept:
    """A pair without the losses that are marked."""

    pair: DominatingPair
    marked: Marked

    def law(self) -> Law:
        """Returns the law of the pair, for the losses that are kept."""
        return law_of(self.pair).without_marked(self.marked)


def may_be_rare(parts: Parts) -> bool:
    """Returns whether any losses can be marked, in an arithmetic whose programs may be as long as that takes."""
    return any(map(_has_marks, parts))


def _has_marks(part: Part) -> bool:
    return arithmetic().leaves_out_rare and law_of(part[0]).has_marks


Marks = tuple[Marked | None, ...]
"""The marked losses of the rows of each part; None for a part whose losses are never rare."""


def nowhere(parts: Parts) -> Marks:
    """Returns marks that leave nothing out."""
    no = tuple(jnp.full_like(counts, 0.0) for _, counts in parts)
    return tuple(
        Marked(zero + jnp.inf, zero, zero, zero, zero, zero) if _has_marks(part) else None
        for zero, part in zip(no, parts, strict=True)
    )


def leave_out_marked(parts: Parts, marks: Marks) -> Parts:
    """Returns the composition without the losses that are marked."""
    return tuple(
        (pairs if marked is None else Kept(pairs, marked), counts)  # type: ignore[misc]
        for (pairs, counts), marked in zip(parts, marks, strict=True)
    )


class Ends(NamedTuple):
    """The infima and suprema of losses, of each row and of all the other runs beside one run of the row."""

    rows: list[tuple[Array, Array]]
    """Infimum and supremum of one run of each row, by part."""
    others: list[tuple[Array, Array]]
    """Infimum and supremum of the sum of all the other runs, by part."""


def ends_of(parts: Parts) -> Ends:
    """Returns the ends of losses; an end of the other runs that is not known is NaN."""
    rows = [each(part, lambda pair: pair.loss_range()) for part in parts]
    # Rows without runs are left out, as zero times infinity would be NaN.
    each_part = [
        jnp.stack([jnp.sum(jnp.where(counts > 0, counts * end, 0.0)) for end in ends])
        for (_, counts), ends in zip(parts, rows, strict=True)
    ]
    least, most = sum(each_part[1:], each_part[0])
    return Ends(rows, [(least - low, most - high) for low, high in rows])


def marks_for(parts: Parts, ends: Ends, high: Array, low: Array, log_mass: Array) -> Marks:
    """Returns marks beyond which the share of delta is known exactly, or P's mass is about exp(log_mass).

    The condition that is met first counts. The share of large losses has to be known for eps up to ``high`` (if not
    inf), that of small ones for eps from ``low`` on (if not -inf).
    """
    runs = jnp.log(sum(jnp.sum(counts) for _, counts in parts))

    def marks(part: Part, least: Array, most: Array) -> Marked | None:
        if not _has_marks(part):
            return None

        def of_row(pair: DominatingPair, counts: Array, least: Array, most: Array) -> Marked:
            large, small = high - least, low - most
            large = jnp.where(jnp.isnan(large), jnp.inf, large)
            small = jnp.where(jnp.isnan(small), -jnp.inf, small)
            law = law_of(pair)
            place = law.mark_from(large, small, log_mass - runs)
            return law.mark(jnp.where(counts > 0, place, jnp.inf))

        found: Marked = each(part, of_row, part[1], least, most)
        return found

    return tuple(marks(part, *others) for part, others in zip(parts, ends.others, strict=True))


def rare_beyond(parts: Parts, marks: Marks, scans: list[Nodes], ends: Ends) -> Rare:
    """Returns the probabilities of the marked losses, which are left out; ``scans`` are the nodes of the rest."""
    # Bound on the relative error, in units of roundoff, of Q's mass where P has none. Lowering it can break a bound.
    # That mass is a sum of so many atoms.
    units = 1024
    u, worst, off = roundoff(), jnp.zeros(()), jnp.zeros(())
    # Logs of probabilities. ``none``: that no run is marked where losses are large, under P and under Q, and that none
    # is marked where they are small. ``finite``: that no loss is infinite. ``present``: Q's, that all runs of parts
    # without marks have outcomes on which P has mass.
    none, finite, present = jnp.zeros(3), jnp.zeros(()), jnp.zeros(())
    above, below = jnp.full((), jnp.inf), jnp.full((), -jnp.inf)

    def log_none(counts: Array, mass: Array) -> Array:
        counts = jnp.reshape(counts, (-1, 1))
        logs = log_complement(jnp.reshape(mass, (counts.shape[0], -1)))
        return jnp.sum(jnp.where(counts > 0, counts * logs, 0.0), axis=0)

    # Part by part: each adds its logs of probabilities, and bounds the eps for which its marked losses are known.
    for part, marked, scan, (lowest, highest), (least, most) in zip(parts, marks, scans, *ends, strict=True):
        counts, infinite = part[1], None
        if type(part[0]).infinite_mass is not DominatingPair.infinite_mass:
            infinite = each(part, lambda pair: pair.infinite_mass())
            finite = finite + log_none(counts, infinite)[0]
        if marked is None:
            # Outcomes of a run on which P has no mass are excluded from Q's probability of large losses beside it.
            missing = jnp.clip(scan.missing, 0.0, 1 - u)
            present = present + log_none(counts, missing)[0]
            off = off + units * u * jnp.sum(jnp.where(counts > 0, counts * missing / (1 - missing), 0.0))
            continue
        # Conditional on a finite loss: the probability that all losses are finite is a factor of its own.
        p, q, large = marked.p if infinite is None else marked.p / (1 - infinite), marked.q, marked.are_large
        none = none + log_none(counts, jnp.stack([large * p, large * q, (1 - large) * p], axis=-1))
        there = (counts > 0) & jnp.isfinite(marked.place)
        worst = jnp.maximum(worst, jnp.max(jnp.where(counts > 0, marked.error, 0.0)))
        # The sum of all ends is right to units of itself, and so is the difference to the row's own.
        size = jnp.abs(marked.loss)
        up = marked.loss + least - 64 * u * (size + jnp.abs(least) + jnp.abs(lowest))
        down = marked.loss + most + 64 * u * (size + jnp.abs(most) + jnp.abs(highest))
        is_large = large > 0
        above = jnp.minimum(above, jnp.min(jnp.where(there & is_large, up, jnp.inf)))
        below = jnp.maximum(below, jnp.max(jnp.where(there & ~is_large, down, -jnp.inf)))
    # NaN comes from infinite ends: then no eps is known.
    above, below = jnp.where(jnp.isnan(above), -jnp.inf, above), jnp.where(jnp.isnan(below), jnp.inf, below)
    # Each probability is one less the exponential of a sum of logarithms near 0, right to a few units of itself.
    p, q, small = -jnp.expm1(none)
    return Rare(p * jnp.exp(finite), q * jnp.exp(present), small, 2 * worst + 64 * u + off, above, below)


# ----------------------------------------------------------------------------------------------------
# The search for a line: a saddle point, and the losses that are rare there, by looks at a ladder of orders.
#
# Each look is one product of matrices: it gives the moments of the sum at nine orders around the current one, and
# Laplace's method gives eps and log delta at each. The saddle point lies between two of the orders, or beyond one end.
# The next look is there, by Newton's step from the lower of the two, until the step is shorter than the ladder's own.
# Where large losses are rare the search is repeated twice: without losses that may make up a quarter of delta, which
# bounds eps roughly; and without those whose share is known exactly up to this eps. All of this is a guess: brackets
# hold wherever a line is.
# ----------------------------------------------------------------------------------------------------


HERE, HIGHER = -4, 3
"""Index in the ladder of the sought order itself, and the number of orders beyond it, which are for bounds alone.

All orders up to the sought one may be lines. Where large losses are rare they make up half of the law tilted by the
saddle point, though hardly any of delta; a lower line leaves them out and needs far fewer nodes.
"""


LOOKS = 24
"""Largest number of looks for a saddle point. Speed and convergence only.

Three are usual. A search that has not ended by then has not converged.
"""

STAGES = 3
"""Number of searches where large losses are rare. Speed only.

The first is with all losses, the second without those that may make up a quarter of delta, and the third without those
whose share is known exactly up to the eps of the second.
"""


class Wanted(NamedTuple):
    """The line that is wanted: through the saddle point for ``epsilon``; where ``by_delta``, for the eps of ``delta``.

    An order above 0 asks for a rough line at this order: an upper bound of delta at ``epsilon``, if below ``delta``.
    """

    epsilon: Any
    """The eps that the line is for, unless ``by_delta``."""
    delta: Any
    """The delta whose eps is sought; for a rough line, the delta to stay below."""
    by_delta: Any
    """Whether the eps is sought."""
    order: Any
    """The order of a rough line, or 0."""


class Aim(NamedTuple):
    """The state of a search for a line: the losses left out as rare, and a saddle point of the rest."""

    stage: Array
    """Number of the search, below :data:`STAGES`; equal to it when the last is over."""
    looks: Array
    """Number of looks done in this search."""
    order: Array
    """Order to look at next."""
    epsilon: Array
    """The eps by Laplace's method."""
    log_delta: Array
    """Log delta by Laplace's method, with the rare losses."""
    is_known: Array
    """Whether a saddle point was found."""
    orders: Array
    """Orders of the ladder of the last look."""
    above: list[Array]
    """Upper bounds on the cumulants that the nodes of each row give at these orders."""
    marks: Marks
    """The losses left out."""
    scans: list[Nodes]
    """The nodes of the losses kept."""
    largest: Array
    """The largest order of the losses kept."""
    rare: Rare | None
    """The probabilities of the losses left out; None where none can be."""
    inner: Array
    """Log of the part of delta that is asked of the losses kept."""


def ladder() -> np.ndarray:
    """Returns the orders of a look, over the one that is sought."""
    # Orders of a look, over the one that is sought. Sound for any values that increase. They are the orders of the
    # lines to choose from, and of Chernoff's bounds on the terms that the rule adds. Where large losses are rare a
    # lower line loses more digits, which may be few: the highest for which the nodes suffice is wanted.
    if arithmetic().has_few_digits:
        return np.array([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.3, 1.7, 2.3])
    return np.array([0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.3])


def find_saddle_point(parts: Parts, wanted: Wanted, target: Array, searches: Array) -> Aim:
    """Returns the end of the search for a line; if not ``searches``, the result of one look at the wanted order."""
    marks, zero = nowhere(parts), jnp.zeros_like(target)
    if may_be_rare(parts):
        shapes = jax.eval_shape(lambda parts, at: _left(parts, marks, ends_of(parts), at, at), parts, zero)
        scans, largest, rare, inner = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    else:
        scans, largest, rare, inner = scan_nodes(parts), largest_order(parts), None, target
    row = jnp.zeros(len(ladder()), target.dtype)
    rows = [jnp.zeros((*np.shape(counts), row.size), row.dtype) for _, counts in parts]
    stage = jnp.where(searches, 0, STAGES - 1).astype(jnp.int32)
    aim = Aim(stage, jnp.int32(0), wanted.order, zero, target, zero > 0, row, rows, marks, scans, largest, rare, inner)
    return _aim_found(parts, aim, wanted, target, searches)


def _left(
    parts: Parts, marks: Marks, ends: Ends, epsilon: Array, target: Array
) -> tuple[list[Nodes], Array, Rare, Array]:
    """Returns the nodes and the largest order of the losses kept, the marked losses' ``Rare``, and a log of delta.

    Rare losses take their share of delta first: ``target`` is the log of all of it, and the result that of the rest.
    """
    rest = leave_out_marked(parts, marks)
    scans = scan_nodes(rest)
    rare = rare_beyond(parts, marks, scans, ends)
    share = rare.between(epsilon)[0] * jnp.exp(-target)
    return scans, largest_order(rest), rare, target + log_complement(jnp.minimum(share, 0.9))


def _aim_found(parts: Parts, aim: Aim, wanted: Wanted, target: Array, searches: Array) -> Aim:
    # One look for each step. A search is over after LOOKS looks at the latest, and there are at most STAGES of them.
    given = parts, wanted, target, searches
    return batched_loops.while_loop(lambda aim, _: (aim.stage < STAGES) & (aim.looks <= LOOKS), _look, aim, given)


def _look(aim: Aim, given: Any) -> Aim:
    """Returns the state after a look at the next order."""
    # Smallest order of a look, over the largest. Speed and convergence only: saddle points below are not found.
    least = 4.0**-16
    # Largest step, as a share of the order, after which a look is the last; log delta may move by one nat. Speed only.
    # Any line is sound, and Newton's method for eps corrects the error of Laplace's.
    close = 0.15
    parts, wanted, target, searches = given
    scans, largest, rare, inner, ends = aim.scans, aim.largest, aim.rare, aim.inner, None
    # The first look of a search makes the nodes of the losses that this search keeps.
    if rare is not None:
        ends = ends_of(parts)
        scans, largest, rare, inner = jax.lax.cond(
            aim.looks == 0,
            lambda: _left(parts, aim.marks, ends, aim.epsilon, target),
            lambda: (scans, largest, rare, inner),
        )
    order = jnp.maximum(aim.order, least * largest)
    orders = jnp.minimum(order * jnp.asarray(ladder(), order.dtype), largest)
    found, rows = rungs_of(parts, scans, orders)
    # Laplace's method at each order: the eps whose saddle point it is, and log delta there.
    near = orders / (1 + orders)
    epsilons = found.slope - (1 + near) / orders
    bend = orders**2 * found.curvature + 1 + near**2
    reached = found.value - orders * epsilons - jnp.log1p(orders) - 0.5 * jnp.log(2 * jnp.pi * bend)
    is_sought, epsilon = wanted.by_delta, wanted.epsilon
    if rare is not None:
        # The last search takes the eps of the one before, which leaves out more losses and errs upwards.
        epsilon = jnp.where(is_sought, jnp.maximum(aim.epsilon, 0.0), epsilon)
        is_sought &= aim.stage < STAGES - 1
    # A function of the order, in nats, that falls through 0 at the saddle point; for a Gaussian loss it is linear in
    # the square of the order, so Newton's step is taken in that.
    value = jnp.where(is_sought, reached - inner, orders * (epsilon - epsilons))
    count = jnp.sum(value > 0, dtype=jnp.int32)
    rung = jnp.clip(count - 1, 0, len(ladder()) - 1)
    columns = jnp.stack([orders, jnp.append(orders[1:], largest), value, found.curvature, epsilons, reached])
    at, top, short, curvature, level, height = jax.lax.dynamic_slice(
        columns, (jnp.int32(0), rung), (6, 1), allow_negative_indices=False
    )[:, 0]
    ahead = jnp.sqrt(jnp.clip(at * at + 2 * short / curvature, (at / 8) ** 2, top * top))
    is_known = (count > 0) & (count < len(ladder())) & (largest < jnp.inf)
    epsilon = jnp.where(is_sought, level + (height - inner) / at, epsilon)
    is_met = ~(jnp.abs(ahead - order) > close * order) & ~(is_sought & (order * jnp.abs(epsilon - aim.epsilon) > 1))
    log_delta = jnp.where(wanted.by_delta, target, with_rare(height + at * (level - epsilon), rare, epsilon))
    aim = aim._replace(
        order=ahead,
        epsilon=epsilon,
        log_delta=log_delta,
        is_known=is_known,
        orders=orders,
        above=[row.above for row in rows],
    )
    is_over = is_met | (aim.looks >= LOOKS) | ~searches
    stage, looks = jnp.where(is_over, STAGES, 0), aim.looks + 1
    if rare is None or ends is None:
        return aim._replace(stage=stage.astype(jnp.int32), looks=looks)
    aim = aim._replace(scans=scans, largest=largest, rare=rare, inner=inner)
    marks, is_rare = _ahead(parts, ends, aim, wanted)
    # Once rare losses are left out any order will do for a line.
    is_known |= aim.stage > 0
    stage = jnp.where(is_over, jnp.where((aim.stage > 0) | is_rare, aim.stage + 1, STAGES), aim.stage)
    goes_on = is_over & (stage < STAGES)
    marks = jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), marks, aim.marks)
    return aim._replace(stage=stage, looks=jnp.where(goes_on, 0, looks), is_known=is_known, marks=marks)


def _ahead(parts: Parts, ends: Ends, aim: Aim, wanted: Wanted) -> tuple[Marks, Array]:
    """Returns the marks of the next search, and whether large losses are so rare that it pays."""
    # Factor over a guess of eps up to which the share of the losses left out is to be known. Speed only.
    farther_orders = 1.05
    # Nats below delta at which losses are left out though their share is not known. Speed only: bounds count them.
    next_to_nothing = 32.0
    is_first = wanted.by_delta & (aim.stage == 0)
    guess, factor = jnp.maximum(aim.epsilon, 0.0), jnp.where(wanted.by_delta, farther_orders, 1 + 1e-6)
    high, low = jnp.where(is_first, jnp.inf, guess * factor), jnp.where(is_first, -jnp.inf, guess / factor)
    log_mass = aim.log_delta - jnp.where(is_first, np.log(4.0), next_to_nothing)
    ahead, is_rare = marks_for(parts, ends, high, low, log_mass), ~aim.is_known
    # A further search pays if, for any row, the losses that it would leave out weigh on the present one: by their share
    # of the tilted law, or by the quadrature error that they cause.
    for part, nodes, marked in zip(parts, aim.scans, ahead, strict=True):
        if marked is not None:

            def is_lost(pair: Any, nodes: Nodes, marked: Marked) -> Array:
                # Nats by which the bound on a moment's quadrature error may be above its floor. Speed only.
                loose = 6.0
                # Share of the law tilted by 1.5 times the order above which large losses count as rare. Speed only. The
                # share is that of the losses that a second search would leave out.
                beyond_need = 0.01
                beyond = jnp.sum(jnp.where(nodes.places > marked.place, tilted_shares(nodes, 1.5 * aim.order), 0.0))
                step = nodes.places[1] - nodes.places[0]
                missed = law_of(pair).log_quadrature_error(aim.order, jnp.zeros_like(aim.order), step)
                return (beyond > beyond_need) | (missed > log_left_out() + loose)

            is_rare |= jnp.any(each(part, is_lost, nodes, marked))
    return ahead, is_rare


# ----------------------------------------------------------------------------------------------------
# The characteristic function of the tilted sum at the nodes of a line, without its mean's phase.
#
# With X = Y - E_t Y it is summed as E_t[e^(iwX) - 1], which is small where w is, and so keeps its digits when it is
# raised to the power of the steps. The quadrature nodes of a loss come in pieces, as many as the highest frequency
# needs. Frequencies come in tiles: e^(i(a+b)) - 1 is made of e^(ia) - 1 and e^(ib) - 1, with a the tile's first
# frequency and b one of few offsets, in one product of matrices.
# ----------------------------------------------------------------------------------------------------

FREQUENCIES = 2048
"""Largest number of nodes on one half of the line; a multiple of the numbers below. Speed and convergence only."""

TILE = 8
"""Number of frequencies that share one turn of all quadrature nodes. Speed only."""

BLOCK = 64
"""Number of frequencies that are worked on at a time. Speed only."""

NODE_ROUNDING = 150.0
"""Bound on the error of the log of a characteristic function, in units of roundoff of the mean of |w X|.

Lowering it can break a bound. Weights are exponentials of logs as large as cut + 14, off by that many units and a few
for the loss in them, 130 in all. Angles are put together from two, one of them of a few products, and err by up to
eight units of themselves (tests/saddlepoint/test_tiles.py).
"""

Sums = tuple[Array, ...]
"""Arrays of sums over quadrature nodes."""


def frequencies(spacing: Array) -> Array:
    """Returns the frequencies (blocks, BLOCK) of all blocks."""
    return spacing * jnp.asarray(np.arange(1.0, FREQUENCIES + 1).reshape(-1, BLOCK), spacing.dtype)


def blocks_of(tiles: Array) -> Array:
    """Returns the number of blocks of frequencies that so many tiles fill, the last perhaps in part."""
    return -(-tiles * TILE // BLOCK)


class Transforms(NamedTuple):
    """The characteristic functions of the rows, with an axis for the rows if there are several.

    Attributes:
        sums (blocks, [m,] 2, BLOCK): real and imaginary parts of E_t[e^(iwX) - 1] at the frequencies.
        spread ([m,] n), missed ([m]): the quantities that bound their errors, by rounding and by quadrature.
        steps ([m]): numbers of runs.
    """

    sums: Array
    spread: Array
    missed: Array
    steps: Array


def transforms(
    parts: Parts,
    scans: list[Nodes],
    windows: list[tuple[Array, Array]],
    known: list[Any],
    order: Array,
    spacing: Array,
    tiles: Array,
) -> Transforms:
    """Returns the sums of all rows at (1 ... FREQUENCIES) spacing, of which only the first ``tiles`` tiles are filled.

    ``known`` has the moments of each row at that order, as :func:`total_and_error` gives them.
    """
    found: list[Transforms] = []
    # Part by part, and row by row in a part, because each row takes as many pieces as it needs.
    for (pairs, steps), *more in zip(parts, scans, windows, known, strict=True):
        run = (pairs, *more, steps)
        if is_alone(parts):
            return _sums_of_loss(run, order, spacing, tiles)
        if jnp.ndim(steps) == 0:
            found.append(jax.tree.map(lambda leaf: leaf[None], _sums_of_loss(run, order, spacing, tiles)))
        else:
            found.append(jax.lax.map(lambda row: _sums_of_loss(row, order, spacing, tiles), run))
    rows: Transforms = jax.tree.map(lambda *each: jnp.concatenate(each), *found)
    return rows._replace(sums=jnp.swapaxes(rows.sums, 0, 1))


def _sums_of_loss(run: Any, order: Array, spacing: Array, tiles: Array) -> Transforms:
    """Returns the sums of one loss."""
    pair, scan, window, known, steps = run
    law = law_of(pair)
    end = spacing * TILE * tiles
    pieces = law.pieces(order, end, window)
    # A row without runs takes no time.
    taken = jnp.where(steps > 0, pieces, 0)
    few = arithmetic().has_few_digits
    spreads = 2 if few else 1

    def piece(state: Sums, given: Any) -> Sums:
        (i, sums, spread), (pair, window, pieces, *rest, tiles, _) = state, given
        nodes = law_of(pair).piece(window, i, pieces)
        of_piece: Any = _careful_piece if few else _piece
        found, more = of_piece(law_of(pair), nodes, *rest, tiles, sums)
        return i + 1, found, spread + more

    # The state is the number of pieces done, the sums and the spreads; each step adds a piece, until all are taken.
    start: Sums = jnp.zeros_like(taken), jnp.zeros((2, FREQUENCIES), order.dtype), jnp.zeros(spreads, order.dtype)
    given = pair, window, pieces, known, order, spacing, tiles, taken
    _, sums, spread = batched_loops.while_loop(
        lambda state, given: state[0] < given[-1], piece, start, given, longest_first=tiles
    )
    # A row without runs has no errors either.
    missed = jnp.where(steps > 0, 2 * jnp.exp(law.log_quadrature_error(order, end, law.step(window, pieces))), 0.0)
    if few:
        # The mean's error is that of the slope, and of its quadrature.
        apart = jnp.maximum(law.step(window, pieces), scan.places[1] - scan.places[0])
        doubt = known.slope_error + 2 * law.slope_error(order, scan, known.moments.value, apart)
        # Each piece after the first is added to the sums.
        spread = jnp.append(spread * (1 + 0.02 * (pieces - 1)), doubt)
    return Transforms(jnp.swapaxes(sums.reshape(2, -1, BLOCK), 0, 1), spread, missed, steps)


def _piece(
    law: Law, nodes: Nodes, known: Moments, order: Array, spacing: Array, tiles: Array, sums: Array
) -> tuple[Array, Array]:
    """Returns the sums with those of a piece added, and its spread."""
    weights = jnp.exp(nodes.log_p + order * nodes.losses - known.value)
    deviations = nodes.losses - known.slope
    sizes = jnp.abs(deviations) + 0.1 * jnp.abs(nodes.losses)
    return _sums(weights, spacing * deviations, tiles, sums), jnp.stack([jnp.sum(weights * sizes)])


def _careful_piece(
    law: Law, nodes: Nodes, known: Careful, order: Array, spacing: Array, tiles: Array, sums: Array
) -> tuple[Array, Array]:
    """Returns the sums E_t[cos wX - 1] and E_t[sin wX - wX] with those of a piece added, and what bounds their errors.

    X is the loss less the slope c as it was computed, so that E_t[e^(iwX) - 1] is the sum of g(wX), g(a) = e^(ia) - 1 -
    ia, and iw times what c misses of the mean: its linear part is no sum. Let s(a) = min(a^2/2, 2 |a|); |g| <= s, and
    |g'| <= min(|a|, 2). In units of roundoff a term errs

    - by its weight's units (:func:`.pair.units_of_shares`), and by 1 of its product, of s(wX);
    - by 10 s(wX) of the functions (:func:`.normal.turn`, the two together), by 2 for the product wX and by 2 for the
      difference X, for min(|a|, 2) |a| <= 2 s(a);
    - by min(w |X|, 2) w times the loss's own error;
    - by the units of a sum, once for either part: 1.5 times, together.

    48 units of s are added for the logarithm and the square that are made of the sums. The two numbers returned are the
    sums with s(wX) <= w^2 X^2/2, over w^2, and with s(wX) <= 2 w |X|, over w.
    """
    roundings = law.roundings(nodes)
    weights = jnp.exp(nodes.log_p + order * nodes.losses - known.moments.value)
    x = nodes.losses - known.moments.slope
    units = units_of_shares(nodes, order, roundings, known) + (64 + 1.5 * arithmetic().of_sum(RULE))
    of_loss, size = roundings.loss * jnp.abs(nodes.losses) + roundings.shift, jnp.abs(x)
    sizes = jnp.stack([size * (0.5 * units * size + of_loss), 2 * (units * size + of_loss)])
    spread = jnp.sum(weights[None] * sizes, axis=1)
    offsets = jnp.asarray(np.arange(1.0, TILE + 1), x.dtype)

    def tile(i: Array, sums: Array) -> Array:
        w = spacing * (TILE * i + offsets)
        added = jnp.sum(weights[None, None] * jnp.stack(turn(w[:, None] * x[None])), axis=2)
        at = jnp.int32(0), TILE * i
        old = jax.lax.dynamic_slice(sums, at, (2, TILE), allow_negative_indices=False)
        return jax.lax.dynamic_update_slice(sums, old + added, at, allow_negative_indices=False)

    return jax.lax.fori_loop(0, batched_loops.of_all_lanes(tiles), tile, sums), spread


def log_characteristic(rows: Transforms, w: Array) -> Sums:
    """Returns log modulus, phase and error of E_t[e^(iw(S - E_t S))] at the frequencies of a block, for all runs.

    The error bounds that of modulus and phase together: phi is off by at most |phi| (e^bound - 1). If each factor b is
    off by at most e |b|, e >= 0, a product of k of them is off by at most ((1 + e)^k - 1) |b|^k.
    """
    if jnp.ndim(rows.steps) == 0:
        return _to_the_steps(rows, w)
    found = jax.vmap(lambda *row: _to_the_steps(Transforms(*row), w))(*rows)
    return tuple(jnp.sum(part, axis=0) for part in found)


def _to_the_steps(row: Transforms, w: Array) -> Sums:
    """Returns log modulus, phase and error of a block, of all the steps, from E_t[e^(iwX) - 1]."""
    ((x, y), spread, missed, steps), u = row, roundoff()
    off = _error_of_sums(w, spread)
    # The log of the modulus comes from the square less 1, formed without cancellation, where that is near 0, and from
    # the square itself elsewhere.
    real = 1 + x
    excess, square = x * (1 + real) + y * y, jnp.maximum(real * real + y * y, u**2)
    log_modulus = 0.5 * jnp.where(excess > -0.25, jnp.log1p(jnp.maximum(excess, -0.25)), jnp.log(square))
    # Where the square was raised to u^2 ``off`` is at least 75 u, which covers that: 1 - |phi| <= w times the spread.
    error = jnp.log1p((off + missed) * jnp.exp(-log_modulus))
    return steps * log_modulus, steps * jnp.arctan2(y, real), steps * error


def _error_of_sums(w: Array, spread: Array) -> Array:
    """Returns bounds on the errors of E_t[e^(iwX) - 1], as complex numbers, by the spreads of a row."""
    if not arithmetic().has_few_digits:
        return w * (NODE_ROUNDING * roundoff() * spread[0])
    second, first, doubt = spread
    return 1.01 * roundoff() * jnp.minimum(w * w * second, w * first) + w * doubt


_turned = jax.jit(cosm1_and_sin)


def _sums(weights: Array, angles: Array, tiles: Array, sums: Array) -> Array:
    """Returns ``sums`` (2, n), real and imaginary parts, with those of the sum of weights (e^(iwX) - 1) added.

    It goes tile by tile, each by one product of matrices. ``angles`` are w X at the first frequency.
    """
    # A CPU's compiler vectorizes functions of one axis but makes scalar code of two, so sines are taken row by row.
    # Barriers keep it from computing a result again for each of its uses.
    weights, angles = jax.lax.optimization_barrier((weights, angles))
    # In e^(i(a+b)) - 1 = (e^(ia) - 1) e^(ib) + (e^(ib) - 1) the last term is the same for all tiles, as b is one of
    # TILE offsets. Full precision, because some devices multiply matrices in fewer bits by default.
    c, s = jax.lax.optimization_barrier(jax.lax.map(lambda b: _turned(b * angles), np.arange(TILE, dtype=angles.dtype)))
    own = jnp.matmul(jnp.concatenate([c, s]), weights, precision="highest")
    table = jnp.stack([jnp.concatenate([1 + c, -s], axis=1), jnp.concatenate([s, 1 + c], axis=1)]).reshape(2 * TILE, -1)
    table, both = jax.lax.optimization_barrier((table, jnp.concatenate([weights, weights])))

    def tile(i: Array, sums: Array) -> Array:
        first = _turned((TILE * i + 1).astype(angles.dtype) * angles)
        first = jnp.concatenate(jax.lax.optimization_barrier(first))
        added = own + jnp.matmul(table, both * first, precision="highest")
        at = jnp.int32(0), TILE * i
        old = jax.lax.dynamic_slice(sums, at, (2, TILE), allow_negative_indices=False)
        return jax.lax.dynamic_update_slice(sums, old + added.reshape(2, TILE), at, allow_negative_indices=False)

    # One tile for each step; all lanes of a batch go as far as the longest, so that the loop has one bound.
    return jax.lax.fori_loop(0, batched_loops.of_all_lanes(tiles), tile, sums)


# ----------------------------------------------------------------------------------------------------
# The integral along a line through the saddle point, and a bound for everything it leaves out.
#
# For any t > 0 and the sum S of the losses, K its cumulant function, z = t + iw,
#
#     delta(eps) = (1/2 pi) integral of exp(K(z) - z eps) / (z (z + 1)) dw.
#
# The rule with nodes m dw gives the sum of e^(t m L) delta(eps + m L) over all integers m, L = 2 pi/dw: the truth and
# *positive* terms beside it. By the Chernoff bound delta(eps') <= e^(K(a) - a eps') c(a), c(a) = a^a/(1+a)^(1+a), at an
# order a > t the terms m > 0 fall geometrically, and at an order below t (or with delta <= 1) so do those with m < 0.
# L is chosen to make them small. Nodes end where a bound on the characteristic function that holds from there on is
# small. With the errors of quadrature and rounding, each bounded where it arises, that makes the bracket.
# ----------------------------------------------------------------------------------------------------


FARTHER = 1.35
"""Factor by which the end of the line is moved out until a bound shows that it is far enough. Speed only."""


def turn_rounding() -> float:
    """Returns a bound on a node's angle's error, in units of roundoff of its phase and of w times slope and eps.

    In float64 four units are the angle's own, and its sine and cosine may add five
    (:func:`jaxacct.mechanisms.normal.cosm1_and_sin`). In float32 an angle errs by 8 units, its product with the steps
    by one more, and sine and cosine by 7.
    """
    return 17.0 if arithmetic().has_few_digits else 9.0


ROUGH_CUT, DEVIATIONS = 8.0, 5.0
"""Nats below delta, and standard deviations of the tilted sum, that a rough line is made for. Speed only.

The terms that the rule adds to delta are positive: as an upper bound it needs few nodes, most often eight.
"""


class Integrand(NamedTuple):
    """The integrand for all eps: at node m, amplitude[m] e^(i (phase[m] + w[m] (slope - eps))).

    It comes in blocks, with their sums.
    """

    nodes: Array
    """Amplitudes, phases and w, (blocks, 3, BLOCK)."""
    sums: Array
    """Sums over each block, (blocks, 3), of amplitudes, amplitudes times errors, and amplitudes times w.

    The error of a node is that of a complex number, and includes the rounding of its phase.
    """


class Line(NamedTuple):
    """The integrand on a line, and bounds on all that the rule leaves out."""

    order: Array
    """The order t, the real part of the line."""
    spacing: Array
    """The distance dw between nodes."""
    integrand: Integrand
    blocks: Array
    """Number of blocks of BLOCK nodes that are not empty."""
    value: Array
    """K(t) of the sum."""
    slope: Array
    """K'(t) of the sum."""
    common_error: Array
    """Bound on the error of the log that all nodes have in common."""
    log_tail: Array
    """Log of a bound on the nodes left out, in units of the sum over the nodes."""
    orders: Array
    """Orders a of the Chernoff bounds."""
    log_beside: Array
    """Logs of bounds on the terms beside the truth that lie on a's side, without the factor e^(-a eps)."""
    rare: Rare | None
    """The probabilities of the losses that are not in the integral."""


class Read(NamedTuple):
    """The delta that a line gives at an eps, with its error bounds."""

    value: Array
    """Log delta by the rule, with the rare losses."""
    slope: Array
    """Derivative of ``value`` in eps."""
    below: Array
    """Bound, relative to ``value``'s delta, on how far the true delta may be below it."""
    above: Array
    """Bound, relative to ``value``'s delta, on how far the true delta may be above it."""


def chosen_line(orders: Array, log_moments: Array, epsilon: Array, log_delta: Array) -> tuple[Array, Array]:
    """Returns the index of the order whose line takes the fewest nodes, and the length L = 2 pi / spacing it needs.

    Chernoff's bound at a_i is d_i e^(-a_i L) for delta(eps + L) and d_i e^(a_i L) for delta(eps - L). On the line t_j
    the first is multiplied by e^(t_j L) and the second by e^(-t_j L), so the first falls with L for a_i above t_j, and
    the second for a_i below. Every L will do for which one of the bounds on either side is e^-cut of delta; delta <= 1
    is one more bound for a_i below.
    """
    # Nats by which the integrand on a line may exceed the one at the saddle point. Tightness only. They are digits lost
    # to rounding, which the bounds count.
    nats = 6.0
    cut = arithmetic().cut
    ratios = log_moments - orders * epsilon + log_peak(orders) - log_delta + cut
    lines = orders[:-HIGHER]
    apart = orders[None, :] - lines[:, None]
    needed = jnp.maximum(ratios[None, :], cut / 2) / jnp.abs(apart)
    up = jnp.min(jnp.where(apart > 0.01 * lines[:, None], needed, jnp.inf), axis=1)
    down = jnp.min(jnp.where(apart < -0.01 * lines[:, None], needed, jnp.inf), axis=1)
    lengths = jnp.maximum(up, jnp.minimum(down, (cut - log_delta) / lines))
    heights = (log_moments - orders * epsilon - jnp.log(orders) - jnp.log1p(orders))[:-HIGHER]
    penalty = heights - jnp.min(heights)
    cost = _costs(lengths, penalty, nats)
    best = jnp.minimum(first_index(cost <= jnp.min(cost)), lines.size - 1)
    return best, jax.lax.dynamic_index_in_dim(lengths, best, keepdims=False, allow_negative_indices=False)


def _costs(lengths: Array, penalty: Array, most: float) -> Array:
    """Returns the costs of lines: mostly their nodes, or the digits that they lose where these are few."""
    if arithmetic().has_few_digits:
        # Factor by which a line that loses fewer digits may be longer than the shortest. Speed and tightness only.
        longer = 4.0
        shortest = jnp.min(jnp.where(penalty < most, lengths, jnp.inf))
        return jnp.where(lengths <= longer * shortest, penalty, jnp.inf)
    return jnp.where(penalty < most, lengths * (1 + penalty / most), jnp.inf)


def line_at(
    parts: Parts, aim: Aim, epsilon: Array, log_delta: Array, is_rough: Array | bool, wanted: Array | bool
) -> Line:
    """Returns the integrand on a line near the saddle point; eps and log delta, roughly known, tell how fine it is.

    A line is chosen, and with it the spacing of its nodes; it goes out until the nodes beyond are negligible; and the
    integrand is evaluated at the nodes up to there. Where a line is not ``wanted`` it has no nodes.

    A line that ``is_rough`` is for an upper bound alone, at the order that was looked at, and delta need not be close
    to ``log_delta``. It has no bound on the terms that the rule adds; and it has no nodes where Chernoff's bound is
    already below ``log_delta``.
    """
    u, exact, scans, orders = arithmetic().roundoff, arithmetic().cut, aim.scans, aim.orders
    above, missed = above_at(parts, scans, orders, aim.above)
    chosen, length = chosen_line(orders, above, epsilon, log_delta)
    chosen = jnp.where(is_rough, orders.size + HERE, chosen)

    def at_chosen(values: Array) -> Array:
        return jax.lax.dynamic_index_in_dim(values, chosen, -1, keepdims=False, allow_negative_indices=False)

    order = at_chosen(orders)
    here, error_here, rows = total_and_error(parts, scans, list(map(at_chosen, missed)), order)
    windows = [
        each(part, lambda pair, rows: law_of(pair).window(order, rows), rows)
        for part, rows in zip(parts, scans, strict=True)
    ]
    common_error = error_here + 4 * u
    # The circle of a rough line holds the tilted law, or reaches so far below eps that delta <= 1 will do.
    wide = jnp.maximum(DEVIATIONS * jnp.sqrt(here.curvature), (ROUGH_CUT - log_delta) / order)
    length, cut = jnp.where(is_rough, wide, length), jnp.where(is_rough, ROUGH_CUT, exact)
    at_most = with_rare(chernoff(order, here.value, common_error, epsilon), aim.rare, epsilon)
    wanted = jnp.logical_and(wanted, ~(is_rough & (at_most < log_delta)))
    # In few digits all frequencies are exact numbers. A finer spacing only moves the terms that the rule adds farther
    # out.
    spacing = 2 * jnp.pi / length
    spacing = few_bits(spacing) if arithmetic().has_few_digits else spacing
    # The nodes left out are at most 2/(spacing w) times the bound on the modulus; ``log_sum`` is the log of the sum
    # over the nodes that makes delta.
    log_sum = log_delta - here.value + order * epsilon + jnp.log(jnp.pi)
    start = jnp.where(wanted, jnp.sqrt(2 * cut / here.curvature) / FARTHER, jnp.inf)
    tiles, log_tail = far_enough(parts, windows, order, spacing, start, log_sum - cut)
    # At order 0 the bound is that of delta <= 1.
    none = jnp.zeros_like(orders[:1])
    beside, heights = jnp.concatenate([orders, none]), jnp.concatenate([above + log_peak(orders), none])
    fall = -jnp.abs(order - beside) * length
    return Line(
        order=order,
        spacing=spacing,
        integrand=integrand(parts, aim, windows, rows, order, spacing, tiles),
        blocks=blocks_of(tiles),
        value=here.value,
        slope=here.slope,
        common_error=common_error,
        log_tail=log_tail,
        orders=beside,
        log_beside=jnp.where(is_rough, jnp.inf, heights + fall - jnp.log(-jnp.expm1(fall))),
        rare=aim.rare,
    )


def chernoff(order: Array, value: Array, error: Array, epsilon: Array) -> Array:
    """Returns Chernoff's bound on log delta(eps), K(order) - order eps + log c(order), with its rounding."""
    rounding = 8 * arithmetic().roundoff * (jnp.abs(value) + order * jnp.abs(epsilon) + 8)
    return value + error - order * epsilon + log_peak(order) + rounding


def far_enough(
    parts: Parts,
    windows: list[tuple[Array, Array]],
    order: Array,
    spacing: Array,
    start: Array,
    least: Array,
) -> tuple[Array, Array]:
    """Returns a number of tiles beyond which nodes are negligible, and the log of a bound on the nodes left out.

    The search starts beyond ``start``, which is inf where no nodes are wanted, and goes on by factors. It ends where
    the envelope, a bound on the modulus at all frequencies beyond, is below w e^least. If all the nodes there are would
    not do, a single tile is spent, and the bound on the rest is trivial.
    """
    nodes = [
        each(part, lambda pair, *window: law_of(pair).piece(window, 0, 1), *window)
        for part, window in zip(parts, windows, strict=True)
    ]

    def farther(state: tuple[Array, Array], given: Any) -> tuple[Array, Array]:
        """Returns the next frequency, and a bound on the log of the modulus at all frequencies beyond it."""
        w, (parts, nodes, order, *_) = state[0] * FARTHER, given
        logs = [
            each(part, lambda pair, nodes: law_of(pair).log_envelope(order, w, nodes), rows)
            for part, rows in zip(parts, nodes, strict=True)
        ]
        return w, sum_rows(parts, logs)

    def is_short(state: tuple[Array, Array], given: Any) -> Array:
        """Returns whether the nodes beyond a frequency may count, by the bound on the modulus."""
        (w, log_modulus), (*_, least, most) = state, given
        return (log_modulus > least + jnp.log(w)) & (w < most)

    most = spacing * FREQUENCIES
    # The frequency grows by a factor with each step, so the loop ends at ``most`` if not before.
    given = parts, nodes, order, least, most
    w, log_modulus = batched_loops.while_loop(is_short, farther, (start, jnp.full_like(order, jnp.inf)), given)
    # If the last step went beyond all nodes, or none was made, only the modulus's bound of 1 is known.
    is_enough = (log_modulus <= least + jnp.log(w)) & (w <= most)
    tiles = jnp.where(start < jnp.inf, jnp.where(is_enough, jnp.ceil(w / (spacing * TILE)), 1.0), 0.0)
    tiles = tiles.astype(jnp.int32)
    end = spacing * TILE * tiles
    return tiles, jnp.log(2 / (spacing * end)) + jnp.where(is_enough, log_modulus, 0.0)


def integrand(
    parts: Parts,
    aim: Aim,
    windows: list[tuple[Array, Array]],
    rows: list[Any],
    order: Array,
    spacing: Array,
    tiles: Array,
) -> Integrand:
    """Returns the integrand at the nodes of so many tiles; beyond them it is zero.

    It is the characteristic function of the sum over z (z + 1), z = order + i w, computed block by block, as are the
    sums in :func:`read_at`.
    """
    found = transforms(parts, aim.scans, windows, rows, order, spacing, tiles)

    def block(_: Array, of_block: tuple[Array, Array], given: Any) -> Integrand:
        (sums, w), (*of_rows, order, end), u = of_block, given, roundoff()
        logs, turn, off = log_characteristic(Transforms(sums, *of_rows), w)
        # z (z + 1) has a modulus of at least w^2 + order^2 + order, so its real part errs by units of the modulus.
        real, imaginary = order * (1 + order) - w * w, (1 + 2 * order) * w
        amplitude = jnp.where(w < end, jnp.exp(logs) / jnp.sqrt(real * real + imaginary * imaginary), 0.0)
        phase = turn - jnp.arctan2(imaginary, real)
        # The phase may be less than the two angles that make it, each by pi, whose errors are in proportion to these.
        own = 18 + 54 * arithmetic().has_few_digits
        rounding = amplitude * (jnp.expm1(off) + u * (own + turn_rounding() * jnp.abs(phase)))
        # The barrier makes the compiler compute each of these once, and not for each sum.
        amplitude, phase, rounding = jax.lax.optimization_barrier((amplitude, phase, rounding))
        return Integrand(jnp.stack([amplitude, phase, w]), jnp.stack([amplitude, rounding, amplitude * w]).sum(1))

    of_rows = found.spread, found.missed, found.steps
    end = spacing * (TILE * tiles + 0.5)
    given = (*of_rows, order, end)
    return batched_loops.map_rows(blocks_of(tiles), block, (found.sums, frequencies(spacing)), given)


def read_at(line: Line, epsilon: Array) -> Read:
    """Returns the delta that a line gives at eps. The terms that the rule adds can only put it above the truth."""
    at_zero, u, size = 1 / (line.order * (1 + line.order)), arithmetic().roundoff, jnp.abs(epsilon)

    def block(_: Array, of_line: Array, beyond: Array) -> Array:
        amplitude, phase, w = of_line
        angle = phase + w * beyond
        # At larger angles the bound on the rounding exceeds any error of a cosine, so any value will do.
        less, sine = jax.lax.optimization_barrier(cosm1_and_sin(jnp.where(jnp.abs(angle) * u < 1, angle, 0.0)))
        return jnp.stack([amplitude + amplitude * less, amplitude * w * sine]).sum(1)

    beyond = line.slope - epsilon
    cosines, rise = 2 * batched_loops.map_rows(line.blocks, block, line.integrand.nodes, beyond).sum(0)
    height = at_zero + cosines
    log_unit = line.value - line.order * epsilon + jnp.log(line.spacing / (2 * jnp.pi))
    rare = None
    if line.rare is not None:
        # The rare losses' share in units of the sum over nodes, which may be small beside it. The lower bound is added
        # to the value.
        least, fall, *rare = (jnp.exp(jnp.log(part) - log_unit) for part in line.rare.shares(epsilon))
        rise, height = rise - fall + line.order * least, height + least
    value, slope = log_unit + jnp.log(height), rise / height - line.order
    mass, of_nodes, lever = line.integrand.sums.sum(0)
    # A term errs by four units, besides the error of its angle. Nodes are summed by blocks, then the blocks, and twice
    # the half of the line is added to the node at 0.
    terms = arithmetic().of_sum(FREQUENCIES) if arithmetic().has_few_digits else BLOCK * line.blocks
    rounding = u * (8 * at_zero + 4 * (1 + terms) * (at_zero + 2 * mass))
    rounding = rounding + 2 * (of_nodes + turn_rounding() * u * (jnp.abs(line.slope) + size) * lever)
    both = rounding + jnp.exp(line.log_tail)
    relative = both / height + 8 * u * (jnp.abs(line.value) + line.order * size + 8)
    # The error that all nodes have in common is one of a logarithm.
    relative = relative + (1 + relative) * jnp.expm1(line.common_error)
    bounds = line.log_beside - value - line.orders * epsilon
    sides = jnp.stack([line.orders > line.order * 1.01, line.orders < line.order * 0.99])
    added = jnp.sum(jnp.exp(jnp.min(jnp.where(sides, bounds, jnp.inf), axis=1)))
    if rare is None:
        return Read(value, slope, relative + added, relative)
    more, off = (part / height * (1 + 16 * u * (1 + jnp.abs(log_unit) + jnp.abs(value))) for part in rare)
    return Read(value, slope, relative + off + added, relative + off + more)


def log_above(line: Line, epsilon: Array, read: Read) -> Array:
    """Returns an upper bound on log delta(eps) of finite losses, the rule's or Chernoff's; or NaN."""
    by_moment = with_rare(chernoff(line.order, line.value, line.common_error, epsilon), line.rare, epsilon)
    at_most = jnp.fmin(read.value + jnp.log1p(read.above), by_moment)
    return at_most + 4 * arithmetic().roundoff * jnp.abs(at_most)
