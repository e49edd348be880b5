"""The integral along a line through the saddle point, and a bound for everything it leaves out.

For any t > 0 and the sum S of the losses, K its cumulant function, z = t + iw,

    delta(eps) = (1/2 pi) integral of exp(K(z) - z eps) / (z (z + 1)) dw.

The rule with nodes m dw gives the sum of e^(t m L) delta(eps + m L) over all integers m, L = 2 pi/dw: the truth and
*positive* terms beside it. With the Chernoff bound delta(eps') <= e^(K(a) - a eps') c(a), c(a) = a^a/(1+a)^(1+a), at an
order a > t the terms m > 0 fall geometrically, and at one below t (or with delta <= 1) those with m < 0. So L is chosen
to make them small. Nodes end where a bound of the characteristic function that holds from there on is small. With the
quadrature's and the roundings' errors, each bounded where it arises, that makes the bracket.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.arithmetic import arithmetic, roughly, with_pair_form
from jaxacct.composition import Parts
from jaxacct.dominating_pairs.law import law_of
from jaxacct.dominating_pairs.turns import turned
from jaxacct.float_pairs import few_digits
from jaxacct.precision import first_index, log_peak
from jaxacct.pytrees import each
from jaxacct.saddlepoint.characteristic import (
    BLOCK,
    FREQUENCIES,
    TILE,
    Transforms,
    blocks_of,
    frequencies,
    log_characteristic,
    transforms,
)
from jaxacct.saddlepoint.rare import Rare, with_rare
from jaxacct.saddlepoint.search import HERE, HIGHER, Aim
from jaxacct.saddlepoint.sums import above_at, summed, total_and_error

PENALTY = 6.0
"""Nats by which the integrand on a line may exceed the one at the saddle point: digits lost to rounding."""

FARTHER = 1.35
"""Factor by which the end of the line is moved out until a bound says that it is far enough."""

TURN_ROUNDING = 9.0
"""Units of roundoff by which a node's angle errs relative to its phase, and to w times slope and eps: four of its own,
and five that its sine and cosine may add (:func:`jaxacct.dominating_pairs.turns.turned`)."""

ROUGH_CUT, DEVIATIONS = 8.0, 5.0
"""Nats of delta, and deviations of the tilted sum, that a rough line is made for.

All that the rule adds to delta is positive: as an upper bound it needs few nodes, most often eight.
"""


class Integrand(NamedTuple):
    """At node m, for all eps, amplitude[m] e^(i (phase[m] + w[m] (slope - eps))); in blocks, with their sums."""

    nodes: Array
    """(blocks, 3, BLOCK): amplitudes, phases, and w."""
    sums: Array
    """(blocks, 3): of the amplitudes; of them times the error of each node, as a complex number, and of its phase's
    rounding; and of them times w."""


class Line(NamedTuple):
    """The integrand on the line, and what it leaves out."""

    order: Array
    spacing: Array
    integrand: Integrand
    blocks: Array
    """Blocks of BLOCK nodes that are not empty."""
    value: Array
    """K(t) of the sum."""
    slope: Array
    common_error: Array
    """Error of the log of all nodes alike."""
    log_tail: Array
    """Log of the nodes left out, in units of the sum over the nodes."""
    orders: Array
    log_beside: Array
    """Orders a, and the logs of bounds on the terms beside the truth that lie on a's side, but for e^(-a eps)."""
    rare: Rare | None
    """What is not in the integral."""


class Read(NamedTuple):
    """What a line says of delta at an eps."""

    value: Array
    """Log delta as the rule has it, with what is rare."""
    slope: Array
    """Its derivative in eps."""
    below: Array
    above: Array
    """Bounds on the relative errors of delta: how far it may be above, and how far below."""


@roughly
def chosen_line(orders: Array, log_moments: Array, epsilon: Array, log_delta: Array) -> tuple[Array, Array]:
    """Returns which order makes the line that takes the fewest nodes, and the length L = 2 pi / spacing that it needs.

    Chernoff's bound at a_i is d_i e^(-a_i L) for delta(eps + L) and d_i e^(a_i L) for delta(eps - L); on the line t_j
    it is multiplied by e^(t_j L), or by e^(-t_j L), and so falls with L for a_i above t_j, or below. Every L for which
    one of the bounds on either side is e^-cut of delta will do; delta <= 1 is one more, from below.
    """
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
    cost = _costs(lengths, penalty, PENALTY)
    best = jnp.minimum(first_index(cost <= jnp.min(cost)), lines.size - 1)
    return best, jax.lax.dynamic_index_in_dim(lengths, best, keepdims=False, allow_negative_indices=False)


@with_pair_form(traced=few_digits.costs)
def _costs(lengths: Array, penalty: Array, most: float) -> Array:
    """Returns what lines cost: mostly nodes, for digits are many."""
    return jnp.where(penalty < most, lengths * (1 + penalty / most), jnp.inf)


def line_at(
    parts: Parts, aim: Aim, epsilon: Array, log_delta: Array, is_rough: Array | bool, wanted: Array | bool
) -> Line:
    """Returns the integrand on a line near the saddle point; eps and log delta, roughly known, say what is needed.

    Choose a line, and with it the spacing of its nodes; go out on it until the nodes beyond count for nothing; evaluate
    the integrand at the nodes up to there. Where it is not ``wanted`` there are none.

    Where it ``is_rough``, it is for an upper bound alone, at the order that was looked at, and delta need not be close
    to this one. Then there is no bound on what the rule adds; and there are no nodes where Chernoff's bound is below it
    already.
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
    # Under a law this wide, or far enough below eps for delta <= 1 to do.
    wide = jnp.maximum(DEVIATIONS * jnp.sqrt(here.curvature), (ROUGH_CUT - log_delta) / order)
    length, cut = jnp.where(is_rough, wide, length), jnp.where(is_rough, ROUGH_CUT, exact)
    at_most = with_rare(chernoff(order, here.value, common_error, epsilon), aim.rare, epsilon)
    wanted = jnp.logical_and(wanted, ~(is_rough & (at_most < log_delta)))
    spacing = 2 * jnp.pi / length
    # The nodes left out are at most 2/(spacing w) times the bound; their sum is what makes delta.
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
    """Returns how many tiles of nodes leave out nothing that counts, and the log of a bound on what they leave out.

    It starts beyond ``start``, inf where none are wanted, and goes on by factors, until a bound on the modulus over all
    that is beyond, the envelope, is below w e^least. Where all nodes there are would not do, none are spent, and
    nothing is known of the rest.
    """
    nodes = [
        each(part, lambda pair, *window: law_of(pair).piece(window, 0, 1), *window)
        for part, window in zip(parts, windows, strict=True)
    ]

    def farther(state: tuple[Array, Array], given: Any) -> tuple[Array, Array]:
        """Returns the next frequency, and a bound on the log of the modulus of all beyond."""
        w, (parts, nodes, order, *_) = state[0] * FARTHER, given
        logs = [
            each(part, lambda pair, nodes: law_of(pair).log_envelope(order, w, nodes), rows)
            for part, rows in zip(parts, nodes, strict=True)
        ]
        return w, summed(parts, logs)

    def is_short(state: tuple[Array, Array], given: Any) -> Array:
        """Returns whether what lies beyond a frequency, by the bound on its modulus, may count."""
        (w, log_modulus), (*_, least, most) = state, given
        return (log_modulus > least + jnp.log(w)) & (w < most)

    most = spacing * FREQUENCIES
    given = parts, nodes, order, least, most
    w, log_modulus = by_work.while_loop(is_short, farther, (start, jnp.full_like(order, jnp.inf)), given)
    # Of a last step beyond all nodes, or of one that was not done, nothing is known.
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
    """Returns the integrand at the nodes of so many tiles; beyond it is zero.

    It is the characteristic function of the sum over z (z + 1), z = order + i w; block by block, as later sums are.
    """
    found = transforms(parts, aim.scans, windows, rows, order, spacing, tiles)

    def block(_: Array, of_block: tuple[Array, Array], given: Any) -> Integrand:
        (sums, w), (*of_rows, order, spacing, end), u = of_block, given, arithmetic().roundoff
        logs, turn, off = log_characteristic(Transforms(sums, *of_rows), w, spacing)
        # z (z + 1), of modulus w^2 + order^2 + order and more: so its real part errs by units of it.
        real, imaginary = order * (1 + order) - w * w, (1 + 2 * order) * w
        amplitude = jnp.where(w < end, jnp.exp(logs) / jnp.sqrt(real * real + imaginary * imaginary), 0.0)
        phase = turn - jnp.arctan2(imaginary, real)
        rounding = amplitude * (jnp.expm1(off) + u * (18 + TURN_ROUNDING * jnp.abs(phase)))
        # Each once, and not for each of its sums.
        amplitude, phase, rounding = jax.lax.optimization_barrier((amplitude, phase, rounding))
        return Integrand(jnp.stack([amplitude, phase, w]), jnp.stack([amplitude, rounding, amplitude * w]).sum(1))

    of_rows = found.spread, found.missed, found.steps
    end = spacing * (TILE * tiles + 0.5)
    given = (*of_rows, order, spacing, end)
    return by_work.map_rows(blocks_of(tiles), block, (found.sums, frequencies(spacing)), given)


def read_at(line: Line, epsilon: Array) -> Read:
    """Returns what a line says of delta(eps). What the rule adds counts as above the truth only."""
    at_zero, u, size = 1 / (line.order * (1 + line.order)), arithmetic().roundoff, jnp.abs(epsilon)

    def block(_: Array, of_line: Array, beyond: Array) -> Array:
        amplitude, phase, w = of_line
        angle = phase + w * beyond
        # Farther out the bound on the rounding is above all that a cosine can be off.
        less, sine = jax.lax.optimization_barrier(turned(jnp.where(jnp.abs(angle) * u < 1, angle, 0.0)))
        return jnp.stack([amplitude + amplitude * less, amplitude * w * sine]).sum(1)

    beyond = line.slope - epsilon
    cosines, rise = 2 * by_work.map_rows(line.blocks, block, line.integrand.nodes, beyond).sum(0)
    height = at_zero + cosines
    log_unit = line.value - line.order * epsilon + jnp.log(line.spacing / (2 * jnp.pi))
    rare = None
    if line.rare is not None:
        # In the units of the sum over nodes, which may be lost beside what is rare. Of that the least is counted.
        least, fall, *rare = (jnp.exp(jnp.log(part) - log_unit) for part in line.rare.shares(epsilon))
        rise, height = rise - fall + line.order * least, height + least
    value, slope = log_unit + jnp.log(height), rise / height - line.order
    mass, of_nodes, lever = line.integrand.sums.sum(0)
    # A term errs by four units, besides what its angle does. Blocks are summed, then what they come to, and one half of
    # the line is added to 0.
    rounding = u * (8 * at_zero + 4 * (1 + arithmetic().of_sum(BLOCK * line.blocks)) * (at_zero + 2 * mass))
    rounding = rounding + 2 * (of_nodes + TURN_ROUNDING * u * (jnp.abs(line.slope) + size) * lever)
    both = rounding + jnp.exp(line.log_tail)
    relative = both / height + 8 * u * (jnp.abs(line.value) + line.order * size + 8)
    # What all nodes have in common is an error of a logarithm.
    relative = relative + (1 + relative) * jnp.expm1(line.common_error)
    bounds = line.log_beside - value - line.orders * epsilon
    sides = jnp.stack([line.orders > line.order * 1.01, line.orders < line.order * 0.99])
    added = jnp.sum(jnp.exp(jnp.min(jnp.where(sides, bounds, jnp.inf), axis=1)))
    if rare is None:
        return Read(value, slope, relative + added, relative)
    more, off = (part / height * (1 + 16 * u * (1 + jnp.abs(log_unit) + jnp.abs(value))) for part in rare)
    return Read(value, slope, relative + off + added, relative + off + more)


def log_above(line: Line, epsilon: Array, read: Read) -> Array:
    """Returns an upper bound on log delta(eps), of finite losses: the rule's, or Chernoff's; or NaN."""
    by_moment = with_rare(chernoff(line.order, line.value, line.common_error, epsilon), line.rare, epsilon)
    at_most = jnp.fmin(read.value + jnp.log1p(read.above), by_moment)
    return at_most + 4 * arithmetic().roundoff * jnp.abs(at_most)
