"""The search for a line: a saddle point, and the losses that are rare there, by looks at a ladder of orders.

Each look is one product of matrices: the moments of the sum at nine orders around the one that is looked at, and what
Laplace's method makes of them. The saddle point lies between two of them, or beyond one end: the next look is there,
by Newton's step from the lower of the two, until the step is shorter than the ladder's own. Where large losses are rare
it begins again without them, twice: without what may come to a quarter of delta, which bounds eps roughly; and without
those that are known exactly up to this eps. All of this is guessed: brackets hold wherever a line is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.arithmetic import roughly, with_pair_form
from jaxacct.composition import Parts
from jaxacct.dominating_pairs.law import Marked, Nodes, law_of, log_left_out, tilted
from jaxacct.float_pairs import few_digits
from jaxacct.pytrees import each
from jaxacct.saddlepoint.rare import (
    Ends,
    Marks,
    Rare,
    ends_of,
    kept,
    marks_for,
    may_be_rare,
    nowhere,
    rare_beyond,
    with_rare,
)
from jaxacct.saddlepoint.sums import largest_order, rungs_of, scanned

LADDER = np.array([0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.3])
"""Orders that are looked at, over the saddle point: those of the lines to choose from, and of Chernoff's bounds on what
the rule adds."""

HERE, HIGHER = -4, 3
"""Where in them the saddle point's own order stands. The last so many of them, beyond the saddle point, are for bounds
alone; all others may be lines.

Where large losses are rare they count for half of the law tilted by the saddle point, though hardly for delta; a lower
line leaves them out and needs far fewer nodes.
"""

LEAST = 4.0**-16
"""Smallest order looked at, over the largest. Speed only: saddle points below are not found."""

LOOKS = 24
"""Most looks for a saddle point. Three are usual. Speed only: what is not found by then has not converged."""

CLOSE = 0.15
"""Share of the order that a step may come to for its look to be the last; log delta may move by one nat. Speed only:
any line is sound, and Newton's method for eps corrects what Laplace's is off by."""

STAGES = 3
"""Searches where large losses are rare: with them all; without what may come to a quarter of delta; and without those
that are known exactly up to this eps. Speed only."""

BEYOND_NEED = 0.01
"""Share of the law tilted by 1.5 times the order that may lie beyond what a second search would leave out: above, large
losses are rare. Speed only."""

NEXT_TO_NOTHING = 32.0
"""Nats below delta of what is left out though it is not known. It is counted; speed only."""

LOOSE = 6.0
"""Nats by which the bound on a moment's quadrature may be above its floor. Speed only."""

FARTHER = 1.05
"""Factor over a guess of eps up to which what is left out is known. Speed only."""


class Wanted(NamedTuple):
    """The line that is wanted: through the saddle point for ``epsilon``; where ``by_delta``, for the eps of ``delta``.

    An order above 0 asks for a rough line at this order: an upper bound of delta at ``epsilon``, if below ``delta``.
    """

    epsilon: Any
    delta: Any
    by_delta: Any
    order: Any


class Aim(NamedTuple):
    """What a line is chosen for: where losses are left out as rare, and a saddle point of the rest."""

    stage: Array
    """Of STAGES searches; the last is over at STAGES."""
    looks: Array
    """Done in this stage."""
    order: Array
    """To be looked at next."""
    epsilon: Array
    log_delta: Array
    """Eps and log delta as Laplace's method has them, with what is rare."""
    is_known: Array
    """Whether a saddle point was found."""
    orders: Array
    above: list[Array]
    """Orders of the ladder that was looked at, and upper bounds on what the nodes of each row say of moments there."""
    marks: Marks
    """What is left out; of the rest are the nodes."""
    scans: list[Nodes]
    largest: Array
    """The largest order of the rest."""
    rare: Rare | None
    inner: Array
    """Log of what is asked for of the rest."""


@with_pair_form(traced=few_digits.ladder)
def ladder() -> np.ndarray:
    """Returns the orders that are looked at, over the one that is sought."""
    return LADDER


def aimed(parts: Parts, wanted: Wanted, target: Array, searches: Array) -> Aim:
    """Returns what a line is chosen for; where it is not searched for, what one look at its order says."""
    marks, zero = nowhere(parts), jnp.zeros_like(target)
    if may_be_rare(parts):
        shapes = jax.eval_shape(lambda parts, at: _left(parts, marks, ends_of(parts), at, at), parts, zero)
        scans, largest, rare, inner = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    else:
        scans, largest, rare, inner = scanned(parts), largest_order(parts), None, target
    row = jnp.zeros(len(ladder()), target.dtype)
    rows = [jnp.zeros((*np.shape(counts), row.size), row.dtype) for _, counts in parts]
    stage = jnp.where(searches, 0, STAGES - 1).astype(jnp.int32)
    aim = Aim(stage, jnp.int32(0), wanted.order, zero, target, zero > 0, row, rows, marks, scans, largest, rare, inner)
    if rare is not None:
        return _found(parts, aim, wanted, target, searches)
    # What is guessed is found roughly; what bounds rest on, nodes and what they say at the orders found, is not.
    found = roughly(_found)(parts, aim, wanted, target, searches)
    orders = jnp.minimum(found.orders, largest)
    _, each_row = rungs_of(parts, scans, orders)
    return found._replace(scans=scans, largest=largest, orders=orders, above=[row.above for row in each_row])


def _left(
    parts: Parts, marks: Marks, ends: Ends, epsilon: Array, target: Array
) -> tuple[list[Nodes], Array, Rare, Array]:
    """Returns the nodes of what is not marked, the largest order, what is known of the marked, and a share of delta.

    Rare losses take their share first: ``target`` is the log of all, and what is returned that of the rest.
    """
    rest = kept(parts, marks)
    scans = scanned(rest)
    rare = rare_beyond(parts, marks, scans, ends)
    share = rare.between(epsilon)[0] * jnp.exp(-target)
    return scans, largest_order(rest), rare, target + jnp.log1p(-jnp.minimum(share, 0.9))


def _found(parts: Parts, aim: Aim, wanted: Wanted, target: Array, searches: Array) -> Aim:
    given = parts, wanted, target, searches
    return by_work.while_loop(lambda aim, _: (aim.stage < STAGES) & (aim.looks <= LOOKS), _looked, aim, given)


def _looked(aim: Aim, given: Any) -> Aim:
    """Returns what is known after a look at the order that is next."""
    parts, wanted, target, searches = given
    scans, largest, rare, inner, ends = aim.scans, aim.largest, aim.rare, aim.inner, None
    if rare is not None:
        ends = ends_of(parts)
        scans, largest, rare, inner = jax.lax.cond(
            aim.looks == 0,
            lambda: _left(parts, aim.marks, ends, aim.epsilon, target),
            lambda: (scans, largest, rare, inner),
        )
    order = jnp.maximum(aim.order, LEAST * largest)
    orders = jnp.minimum(order * jnp.asarray(ladder(), order.dtype), largest)
    found, rows = rungs_of(parts, scans, orders)
    # Laplace's method at each: the eps whose saddle point it is, and log delta there.
    near = orders / (1 + orders)
    epsilons = found.slope - (1 + near) / orders
    bend = orders**2 * found.curvature + 1 + near**2
    reached = found.value - orders * epsilons - jnp.log1p(orders) - 0.5 * jnp.log(2 * jnp.pi * bend)
    is_sought, epsilon = wanted.by_delta, wanted.epsilon
    if rare is not None:
        # The last search is for the eps of the one before, which leaves out more and errs upwards.
        epsilon = jnp.where(is_sought, jnp.maximum(aim.epsilon, 0.0), epsilon)
        is_sought &= aim.stage < STAGES - 1
    # Nats, falling in the order, through 0 at the saddle point; of a Gaussian loss linear in the square of the order.
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
    is_met = ~(jnp.abs(ahead - order) > CLOSE * order) & ~(is_sought & (order * jnp.abs(epsilon - aim.epsilon) > 1))
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
    # Without what is rare any order will do for a line.
    is_known |= aim.stage > 0
    stage = jnp.where(is_over, jnp.where((aim.stage > 0) | is_rare, aim.stage + 1, STAGES), aim.stage)
    goes_on = is_over & (stage < STAGES)
    marks = jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), marks, aim.marks)
    return aim._replace(stage=stage, looks=jnp.where(goes_on, 0, looks), is_known=is_known, marks=marks)


def _ahead(parts: Parts, ends: Ends, aim: Aim, wanted: Wanted) -> tuple[Marks, Array]:
    """Returns what the next search leaves out, and whether that is rare enough for one."""
    is_first = wanted.by_delta & (aim.stage == 0)
    guess, factor = jnp.maximum(aim.epsilon, 0.0), jnp.where(wanted.by_delta, FARTHER, 1 + 1e-6)
    high, low = jnp.where(is_first, jnp.inf, guess * factor), jnp.where(is_first, -jnp.inf, guess / factor)
    log_mass = aim.log_delta - jnp.where(is_first, np.log(4.0), NEXT_TO_NOTHING)
    ahead, is_rare = marks_for(parts, ends, high, low, log_mass), ~aim.is_known
    for part, nodes, marked in zip(parts, aim.scans, ahead, strict=True):
        if marked is not None:

            def is_lost(pair: Any, nodes: Nodes, marked: Marked) -> Array:
                beyond = jnp.sum(jnp.where(nodes.places > marked.place, tilted(nodes, 1.5 * aim.order), 0.0))
                step = nodes.places[1] - nodes.places[0]
                missed = law_of(pair).log_quadrature_error(aim.order, jnp.zeros_like(aim.order), step)
                return (beyond > BEYOND_NEED) | (missed > log_left_out() + LOOSE)

            is_rare |= jnp.any(each(part, is_lost, nodes, marked))
    return ahead, is_rare
