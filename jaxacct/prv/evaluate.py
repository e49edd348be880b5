"""Delta and epsilon of a sum, read off its spectrum (:mod:`.compose`) by Parseval, every allowance on the safe side.

With weights v on a circle, delta is the sum over points y above epsilon of v(y) e^(-ty) (1 - e^(epsilon - y)): the sum
over frequencies of v's spectrum times that of the rest, which is a geometric series and the difference of two. Epsilon
by Newton's iteration on the bound; what it ends at is asked of the bound once more, on its safe side.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts
from jaxacct.dominating_pairs.turns import sine_and_cosine
from jaxacct.precision import TINY, log_peak
from jaxacct.prv.compose import Sum, exact_remainder
from jaxacct.question import ForEpsilon, Question

MARGINS = np.exp2([-43.0, -36.0, -26.0])
"""How far from where Newton's iteration ends epsilon is asked for, relative to it. Any are sound."""

NEWTON, PATIENCE = 120, 12
"""Steps after which it ends wherever it is, and after which every second one is a bisection. Any are sound."""


class _Reader(NamedTuple):
    """What delta is read off: of one side, or of both with a leading axis."""

    series: Array
    """As of :class:`.Sum`, (parts, rates, J) of one side."""
    allowance: Array
    """What is added to the sum, above, or taken off it."""
    log_mass: Array
    sign: Array


def reader_of(found: Sum) -> _Reader:
    """Returns it, of both sides."""
    sign = jnp.array([1.0, -1.0])
    # The most of e^(-tx) (1 - e^-x): of slack as of what is on the circle.
    allowance = sign * (found.error + found.slack * jnp.exp(log_peak(found.order))) * (1 + 16 * roundoff())
    return _Reader(found.series, allowance, found.log_mass, sign)


def log_delta(reader: _Reader, found: Sum, epsilon: Array, counted: Array | float = 1.0) -> tuple[Array, Array]:
    """Returns the log of the bound of one side on delta(epsilon), and minus its slope; -inf where there is none.

    It is a bound where the allowances are ``counted`` once; -1 turns that of a lower one into an upper one. Losses may
    be off by ``found.shift``, which is not counted here.
    """
    mesh, order, length = found.mesh, found.order, found.length
    index = jnp.clip(jnp.floor((epsilon - found.start) / mesh) + 1, 0.0, length)
    # Losses of the first point above, and of the window's end, over epsilon.
    over = jnp.maximum(found.start + index * mesh - epsilon, 0.0)
    beyond = jnp.maximum(found.start + length * mesh - epsilon, over)
    turns = exact_remainder(np.arange(reader.series.shape[-1]) * index, length) / length
    sine, cosine = sine_and_cosine(2 * math.pi * turns)
    # Sums from that point on, and from the end, which is where the window begins: round and round the circle.
    real, imaginary = reader.series
    here = real * cosine[None] + imaginary * sine[None]
    sums = jnp.sum(jnp.stack([here, real]), axis=2)
    # With losses x over epsilon from a point on, x0 the first: e^(-tx) (1 - e^-x) as e^(-t x0) times what is
    # e^(-t (x - x0)) (1 - e^-(x - x0)), and e^-(1 + t)(x - x0) times 1 - e^-x0.
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
    """Returns one side's bound on epsilon at ``delta``, but for ``found.shift``; inf or 0 where it says nothing.

    By one loop: bounds from above fall all the way, and are inverted by Newton's iteration. One from below is hidden
    far below by what is allowed for, so it is looked for from what inverts one from above on. Where that ends the bound
    is asked once more, at each of :data:`MARGINS`, until it holds.
    """
    wanted = jnp.log(jnp.maximum(delta, TINY))
    is_upper, order = reader.sign > 0, found.order
    # Losses may be off by the shift: so much below 0 delta is that at 0, or more.
    least, top = -2 * jnp.max(found.shift), jnp.maximum(found.start + found.length * found.mesh, 0.0)
    # The logarithm of what is wanted rounds, too.
    room = 8 * roundoff() * (1 + jnp.abs(wanted))

    def step(state: _Search) -> _Search:
        epsilon, root, low, high, reach, counted, margin, _, steps = state
        value, slope = log_delta(reader, found, epsilon, counted)
        excess = value - wanted
        holds = (margin >= 0) & jnp.where(is_upper, excess + room <= 0, excess - room >= 0)
        low, high = jnp.where(excess > 0, epsilon, low), jnp.where(excess > 0, high, epsilon)
        following = epsilon + excess / slope
        inside = (following >= low) & (following <= high)
        # Between atoms the slope says little of what is beyond them: after a while every second step halves.
        halves = (steps >= PATIENCE) & (steps % 2 == 1) & (reader.sign * counted > 0)
        following = jnp.where(inside & ~halves, following, low + (high - low) / 2)
        # From below nothing is seen of it yet: farther down, twice as far each time.
        is_hidden = (reader.sign * counted < 0) & (value == -jnp.inf) & (low <= least)
        following = jnp.where(is_hidden, jnp.maximum(epsilon - reach, least), following)
        reach = jnp.where(is_hidden, 2 * reach, MARGINS[0] * jnp.maximum(epsilon, found.mesh))
        is_found = ~(jnp.abs(following - epsilon) > MARGINS[0] / 4 * epsilon) | (steps >= NEWTON)
        begins = is_found & (counted < 0)
        low, high = jnp.where(begins, least, low), jnp.where(begins, top, high)
        root = jnp.where(margin < 0, following, root)
        margin = jnp.where(margin >= 0, margin + 1, jnp.where(is_found & ~begins, 0, margin))
        away = jnp.asarray(MARGINS)[jnp.clip(margin, 0, len(MARGINS) - 1)] * jnp.maximum(root, found.mesh)
        tried = jnp.clip(root + reader.sign * away, least, top)
        following = jnp.where(holds, epsilon, jnp.where(margin >= 0, tried, following))
        return _Search(following, root, low, high, reach, jnp.where(begins, 1.0, counted), margin, holds, steps + 1)

    def goes_on(state: _Search) -> Array:
        return ~state.holds & (state.margin < len(MARGINS))

    # Chernoff's bound lies above, and log delta is mostly concave: from there Newton's iteration falls.
    begin = jnp.clip((reader.log_mass + log_peak(order) - wanted) / order, 0.0, top)
    begin = jnp.where(jnp.isnan(begin), top, begin)
    state = _Search(begin, begin, least, top, 0 * begin, reader.sign, jnp.int32(-1), top < 0, jnp.int32(0))
    end = jax.lax.while_loop(goes_on, step, state)
    return jnp.where(end.holds & (delta >= TINY), end.epsilon, jnp.where(is_upper, jnp.inf, 0.0))


class _Search(NamedTuple):
    """Where a search for epsilon is."""

    epsilon: Array
    """What is asked next."""
    root: Array
    low: Array
    high: Array
    reach: Array
    """How far down the next step goes where nothing is seen."""
    counted: Array
    """How often allowances are counted: see :func:`log_delta`."""
    margin: Array
    """Which of :data:`MARGINS` is tried; below 0 while the root is looked for."""
    holds: Array
    """Whether the bound holds at ``epsilon``."""
    steps: Array


def infinite_share(facts: Facts, lost: Array) -> Array:
    """Returns what infinite losses, and those that count as such, add to delta: (2,), at most and at least."""
    least, most = facts.infinite
    # The union bound on either, rounded up.
    return jnp.stack([jnp.minimum(most + lost * (1 + 8 * roundoff()), 1.0), least])


def bounds_on_epsilon(found: Sum, infinite: Array, delta: Array) -> Array:
    """Returns bounds from above and from below (2,) on epsilon at ``delta``, of which infinite losses take a share.

    The difference rounds by one unit of delta.
    """
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
    # Of a contradiction nothing would be known.
    is_known = ~jnp.isnan(results) & (results[0] >= results[1])
    upper, lower = jnp.where(is_known, results, jnp.array([question.worst, 0.0]))
    bounds = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=jnp.asarray(False))
    bounds = question.close(bounds, facts)
    return replace(bounds, converged=bounds.converged | (bounds.gap <= question.tolerance))


def slack_effect(found: Sum, epsilon: Array) -> Array:
    """Returns the most that the slack can change delta at ``epsilon`` (), at most 1, (2,).

    A measure of tilted mass m at order t changes it by at most m sup over y > epsilon of e^(-ty) (1 - e^(epsilon-y)),
    which is m e^(-t epsilon) t^t / (1+t)^(1+t), met at y = epsilon + log(1 + 1/t).
    """
    exponent = jnp.log(found.slack) + found.log_mass - found.order * epsilon + log_peak(found.order)
    return jnp.where(found.slack > 0, jnp.exp(jnp.minimum(exponent, 0.0)), 0.0)
