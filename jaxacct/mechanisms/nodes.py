"""A privacy loss as nodes: what the exact accountant needs of a mechanism, as arrays of a fixed shape.

A loss with a smooth density has moments of complex order t + iw that are integrals of an analytic function, and the
trapezoidal rule gives them to all digits. So a mechanism gives the rule's nodes (losses and logs of P's masses), and
the numbers that bound what the rule leaves out; a composer that knows only these serves every mechanism. Which arrays
suffice is derived here. In reading order: :class:`Wishes`, what a composer tells a mechanism; :class:`Strips` and
:class:`Nodes`, what a mechanism gives; :func:`log_missed`, :func:`log_fading` and :func:`log_left_out`, the bounds that
follow.

Let x be a real coordinate of a run's outcome, in which P has the density p, and the loss is y(x). With f(x) = p(x) e^(t
y(x)) and M(t) its integral, the moments of order t + iw are integrals of f e^(iwy), t >= 0, w >= 0.

*Cells.* Nodes lie in the middles of n steps of length h. Every SCAN-th of them is a coarser rule. A cell is
:data:`CELL` steps with as many more on either side that every interval between neighbours, of the finer rule and of the
coarser, lies in the cells of both. Beyond the first node there is one more cell, and beyond the last there are as many
as :data:`PIECES` has numbers, which begin at these distances from it; the last has no end. For each of J heights and
each cell a mechanism bounds the integrand above the cell by three numbers (:class:`Strips`): for x in the cell,

    log |f e^(iwy)| (x + i b) - log f(x)  <=  constant + t of_order + w turn,

once on the line of height b *below* the real one, where turn >= 0 (*rising*), and once on a path above it, of height at
most b, where the last term is -w turn, turn >= 0 (*falling*).

*Masses of cells.* In a cell (log f)'' >= -C with C = bend[0] + t bend[1]. So between neighbours log f + C x^2/2 is
convex, f is at most the larger of both ends times e^(C h^2/8), and the integral of f over an interval is at most that
times h. And about a node f(x_j + v) + f(x_j - v) >= 2 f(x_j) e^(-C v^2/2), so that a step's integral is at least h
f(x_j) e^(-C h^2/8). Let W_j be the node's weight h f(x_j)/M(t). Then for any c >= 0, c_j its supremum in cell j and d_j
its infimum,

    sum of e^(-C h^2/8) W d over cells  <=  integral of c f/M between first and last node's steps;
    integral of c f/M between first and last node  <=  2 times the sum of e^(C h^2/8) W c over cells.

*Left out.* For the end of the nodes that a cell beyond them is next to, let W be the weight. The mechanism bounds what
the cell has, by the rule's nodes or as an integral (:class:`Tails`): it is at most W e^(constant + t of_order) (1/(g h)
+ 1), g = rate + t rate_of_order, where that is positive, and infinite elsewhere: for f falls at this rate at least
where the cell begins, and nodes at distances 0, h, ... from there add up to 1/(1 - e^(-g h)) at most.

*Quadrature.* The rule of spacing h errs by at most 2 A/(e^(2 pi b/h) - 1), A the largest integral of the integrand's
modulus over lines of heights up to b on either side (Trefethen and Weideman 2014, "The exponentially convergent
trapezoidal rule", Theorem 5.1). The logarithm of that integral is convex in the height (Hadamard's three lines), so the
line at b or at -b has the largest; the one at -b, where the phase's factor rises, is bounded by the rising strips:

    A/M  <=  2 sum of e^(C h^2/8) W e^(constant + t of_order + w turn),

with W of the cells beyond as above. It rises with w, so one bound at the end of a line serves all its frequencies
(:func:`log_missed`).

*Shares of what is summed.* Weights are over the sum M_h of the nodes in place of M. Let e be the bounds on the rule's
error and on what is left out together, as shares of a moment that are formed with these weights. Then |M - M_h| <= e' M
with e' <= e M_h/M <= e (1 + e'), so that the error over M_h is at most e/(1 - 2 e) (:func:`over_sum`), if e < 1/4.

*Decay.* Moved to the path above, the integral of order t + iw', w' >= w, is at most, over M,

    D = sum of (mass of cell) e^(e_j),    e_j = constant + t of_order - w turn.

Let E = max(0, largest constant + t of_order). As masses of cells add up to at most 1, D <= e^E (1 - sum of e^(-C h^2/8)
W (1 - e^(e_j - E))) and what the cells beyond have, all of whose terms are positive: nothing cancels where D is near 1,
as it is for many runs. Where D is small 2 sum of e^(C h^2/8) W e^(e_j) is less (:func:`log_fading`). A path may have
kinks, and come down to the real line; a ``constant`` counts its length.

*Rare losses* can be taken out of a run by a mark: an outcome x is marked with a probability that rises with x, with the
same one under P and under Q. Nodes are those of outcomes without a mark, and marked outcomes are told by their masses
under P and Q and the least loss among them.

Source: Trefethen and Weideman (2014), Theorem 5.1, for the rule; all else is derived here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.numerics.arithmetic import roundoff

SCAN = 8
"""Every SCAN-th node is a rule of its own, the first in the middle of its SCAN steps. Even; tightness only."""

CELL = 16
"""Number of nodes of a cell, a multiple of SCAN. Tightness only."""

HEIGHTS = 12
"""Number of heights of strips. Tightness only."""

PIECES = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 40.0])
"""Distances from the last node at which cells beyond it begin. Tightness only."""

NARROWER = 2.0**-36
"""Relative error that bounds on strips are moved outwards by. May not be lowered: whoever gives strips shows that their
rounding is less."""

FAINT = 1e-22
"""Bound on the share of a density by which nodes may differ from the law that they stand for. May not be lowered."""


class Wishes(NamedTuple):
    """A composer's wishes for a mechanism's nodes. Any values are sound: they steer.

    Attributes:
        nats (): how far tails are resolved: what is below e^-nats of P need not be.
        runs (): number of runs of all mechanisms, for the heights of strips.
        loss (): losses from which on outcomes may be marked; inf for none.
        log_mass (): log of the mass of outcomes, of one run, that may be marked whatever their loss; -inf for none.
    """

    nats: Array
    runs: Array
    loss: Array
    log_mass: Array


class Strips(NamedTuple):
    """Bounds on the integrand beside the real line, for each height and cell (:mod:`jaxacct.mechanisms.nodes`).

    Attributes:
        constant, of_order, turn (J, c): the terms of the bound, in nats; turn is not negative. Cells of nodes come
            first, then the one before them, then those after them.
    """

    constant: Float[Array, "J c"]
    of_order: Float[Array, "J c"]
    turn: Float[Array, "J c"]


class Tails(NamedTuple):
    """Bounds on what the cells beyond the nodes have (:mod:`jaxacct.mechanisms.nodes`), the one before them first.

    Attributes:
        constant, of_order, rate, rate_of_order (1 + PIECES,): the bounds' terms.
    """

    constant: Float[Array, " e"]
    of_order: Float[Array, " e"]
    rate: Float[Array, " e"]
    rate_of_order: Float[Array, " e"]


class Nodes(NamedTuple):
    """The law of one run's privacy loss in one direction, as nodes of the trapezoidal rule, and bounds on its error.

    Attributes:
        losses, log_p (n,): losses, all finite, and logs of P's masses.
        loss_error, mass_error (n,): bounds on the errors of losses, absolute, and of masses, relative.
        step (): h, the nodes' distance in their own coordinate.
        heights (J,): heights of strips, increasing.
        rising, falling (J, n/CELL + 1 + PIECES): bounds on the lines below, and on the paths above.
        bend (2, c): C = bend[0] + t bend[1], for each cell.
        tails: bounds on what is beyond the nodes.
        marked (2,): P's mass of marked outcomes, and Q's.
        marked_error (): bound on the relative error of these.
        marked_loss (): lower bound on the losses of marked outcomes.
        lowest (): lower bound on all losses, at most 0.
        infinite (2,): P's mass of infinite losses, at most and at least.
        is_valid (): whether the pair's parameters are in range.
    """

    losses: Float[Array, " n"]
    log_p: Float[Array, " n"]
    loss_error: Float[Array, " n"]
    mass_error: Float[Array, " n"]
    step: Array
    heights: Float[Array, " J"]
    rising: Strips
    falling: Strips
    bend: Float[Array, "2 c"]
    tails: Tails
    marked: Float[Array, 2]
    marked_error: Array
    marked_loss: Array
    lowest: Array
    infinite: Float[Array, 2]
    is_valid: Array


def exact_steps(low: Array, high: Array, size: int) -> tuple[Array, Array]:
    """Returns ``size`` points in the middles of steps that cover [low, high], and the steps' length.

    All are exact: the length has so few digits that its multiples by the points' half-integers round nowhere. A point's
    index counts from 0, of which low is a multiple at most one step away.
    """
    # An index is a half-integer of at most ``size`` steps from low, and 0 lies within as many of it or in [low, high].
    info = jnp.finfo(low.dtype)
    wide = (high - low) / (size - 2) * (1 + 2.0 ** -(info.nmant - 4 - size.bit_length() - 2))
    step = jax.lax.reduce_precision(wide, info.nexp, info.nmant - 4 - size.bit_length())
    first = jnp.round(low / step)
    return step * (first + (np.arange(size) + 0.5)), step


def log_left_out(nodes: Nodes, order: Array, cumulant: Array) -> Array:
    """Returns logs of bounds on the shares of a moment, given its log, that the cells beyond the nodes have.

    They have room for half of SCAN steps at either end, which no interval between nodes of the coarser rule covers: f
    is at most the larger value of these steps' ends. They are logs, as beside the real line what is next to nothing may
    be all that counts.
    """
    tails = nodes.tails
    logs, losses = (jnp.stack([row[0], *[row[-1]] * len(PIECES)]) for row in (nodes.log_p, nodes.losses))
    rate = tails.rate + order * tails.rate_of_order
    powers = logs + tails.constant + order * (losses + tails.of_order) - cumulant
    return jnp.where(rate > 0, powers + jnp.log(1 / (rate * nodes.step) + SCAN) + 1e-6, jnp.inf)


def log_missed(nodes: Nodes, order: Array, w: Array | float, log_weights: Array, stride: Array | int = 1) -> Array:
    """Returns the log of a bound on a rule's relative error in moments of frequencies up to w.

    Args:
        nodes: of one row.
        order (): the order t.
        w (): frequency.
        log_weights (c,): logs of the sums of the weights W of each cell's nodes, those of the rule, or of what is more;
            and :func:`log_left_out`.
        stride (): 1, or SCAN for the coarser rule.
    """
    rise, step = nodes.rising, stride * nodes.step
    bend = (nodes.bend[0] + order * nodes.bend[1]) * step * step / 8
    terms = rise.constant + order * rise.of_order + w * rise.turn + (log_weights + bend)[None]
    top = jnp.max(terms, -1)
    size = math.log(2) + top + jnp.log(jnp.sum(jnp.exp(terms - top[:, None]), -1))
    return _least(size, 2 * math.pi / step * nodes.heights)


def log_scan_missed(nodes: Nodes, order: Array, log_outside: Array, step: Array) -> Array:
    """Returns the log of a bound on the relative error of a real moment by a rule of spacing ``step``."""
    rise = nodes.rising
    terms = rise.constant + order * rise.of_order
    within = terms.shape[-1] - log_outside.shape[-1]
    # No more than the largest in all that is within, and for each cell beyond.
    beyond = terms[:, within:] + log_outside[None] + math.log(log_outside.shape[-1])
    size = jnp.maximum(jnp.max(terms[:, :within], -1), jnp.max(beyond, -1)) + math.log(2)
    return _least(size, 2 * math.pi / step * nodes.heights)


def _least(log_size: Array, x: Array) -> Array:
    """Returns the least log of 2 e^log_size/(e^x - 1), with :data:`FAINT` added."""
    found = math.log(2) + log_size - x - jnp.log(-jnp.expm1(-x))
    return jnp.logaddexp(jnp.min(jnp.where(jnp.isnan(found), jnp.inf, found)) + 1e-9, math.log(FAINT))


def over_sum(error: Array) -> Array:
    """Returns a bound on a relative error over what is summed, given the bound that is formed with its weights."""
    return jnp.where(error < 0.25, error / (1 - 2 * error), jnp.inf)


def log_fading(nodes: Nodes, order: Array, w: Array, weights: Array, log_weights: Array) -> Array:
    """Returns a bound on log |phi(w')|, phi the tilted law's characteristic function, for all w' >= w.

    ``weights`` (n/CELL,) are the sums of the weights of each cell's nodes, or less; other arguments are those of
    :func:`log_missed`. It holds over the sum of the nodes: over M it is more by twice :func:`over_sum` of the order's
    errors at most.

    *Rounding.* Weights are right to NARROWER of themselves, as whoever makes them shows. A sum of n/CELL < 1,024
    terms, each right to 32 units besides its weight and exponent, and a logarithm: less than NARROWER of E and of the
    sum.
    """
    fall, step = nodes.falling, nodes.step
    bend = (nodes.bend[0] + order * nodes.bend[1]) * step * step / 8
    still = fall.constant + order * fall.of_order
    within = weights.shape[-1]
    top = jnp.maximum(jnp.max(still[:, :within], -1), 0.0)
    powers = still - w * fall.turn
    logs = powers + (log_weights + bend)[None]
    heavy = (weights * jnp.exp(-bend[:within]))[None]
    gone = jnp.sum(heavy * -jnp.expm1(powers[:, :within] - top[:, None]), -1)
    near = jnp.log1p(-jnp.clip(gone * (1 - NARROWER), 0.0, 1 - roundoff())) + NARROWER * (top + gone)
    # Sums about the largest term, as most may underflow.
    most, beyond = jnp.max(logs, -1), jnp.max(logs[:, within:], -1)
    near = jnp.logaddexp(top + near, beyond + math.log(logs.shape[-1] - within))
    far = most + jnp.log(2 * jnp.sum(jnp.exp(logs - most[:, None]), -1)) + NARROWER * (1 + top)
    found = jnp.minimum(near, far)
    return jnp.minimum(jnp.min(jnp.where(jnp.isnan(found), 0.0, found)), 0.0)
