"""The law of a sampled Gaussian mechanism as nodes of the trapezoidal rule, with strips and marked outcomes.

With share = q e^u/r, which rises with z, r(z + ib)/r(z) = 1 - share + share e^(i theta), theta = b/s: its argument
rises with the share, and its squared modulus, 1 - 4 share (1 - share) sin(theta/2)^2, is convex in it. So the extreme
values in a cell are those at its ends, or at a share of 1/2 for the least modulus. The normal density grows by b^2/2.

*Marks* ("remove" only). An outcome z is marked with probability Phi((z - place)/soft), an entire function, so that
the rule need not know of an end: unmarked outcomes have the density times Psi(x), x = (z - place)/soft, Psi = 1 -
Phi. With y = b/soft, |Psi(x + iy)| is at most the integral of |phi(v + iy)| over v > x, e^(y^2/2) Psi(x), and at most
1 + e^(y^2/2) Phi(x); Phi(x) is at most e^(-x^2/2)/2 below 0. log Psi is concave, its slope is at most -x, and its
second derivative at least -1. Marks more than ``DEEP`` scales below the place are taken for none: that changes the
density there by Phi(-DEEP) = 7.6e-24 of itself. At a depth v > DEEP soft the marked density Phi(-v/soft) phi(place - v) is at most
e^(-v^2/(2 soft^2)) phi(place - v)/2, which falls in v at a rate of at least DEEP/soft - place > 1: so marks taken for
none have a mass of at most e^(-50) phi(place - DEEP soft)/2, and likewise about 1/s. All marked masses are normal tails
of deviation sqrt(1 + soft^2).

*Falling path.* Without marks it is the line at height b. With them it comes down towards the place, at half of the
distance from it, to ``soft``: there Psi grows by e^(1/2) at most. The slope makes it longer by sqrt(1 + 1/4).

Let s be the noise over the sensitivity, q the sampling rate, z the noise over s, u = (z - 1/(2s))/s and r = 1 - q + q
e^u, the likelihood ratio of the mixture over the base.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.mechanisms.nodes import CELL, FAINT, HEIGHTS, NARROWER, PIECES, Ask, Nodes, Strips, Tails, exact_steps
from jaxacct.mechanisms.normal import lower_tail
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import TINY, log_complement

SOFT, DEEP = 0.06, 10.0
"""Scale of the marks' end, in standard deviations of the noise or, if that is less, in s; and the depth below which
marks count as none, in scales. The first is for tightness only; FAINT of :mod:`.nodes` rests on the second."""


def nodes_and_strips(
    s: Array,
    q: Array,
    removes: Array,
    loss: Array,
    ask: Ask,
    size: int,
    log_ratio: Callable[[Array], tuple[Array, Array]],
) -> Nodes:
    """Returns the law as nodes.

    Args:
        s (), q (), removes (): fields of :class:`.SubsampledGaussianPair`.
        loss (): the z from which on outcomes may be marked for their loss.
        ask: what the composer wants.
        size: number of nodes, a multiple of CELL.
        log_ratio: log r at s times z, and a bound on its error.

    *Rounding.* z is exact. Its square, the logarithm of a constant between e^-40 and 1, three sums and Psi's tail
    (:func:`.normal.lower_tail`; x is right to 3 units of itself) make 64 + 4 of each logarithm + 16 (1 + x^2) units of
    a mass, besides what log r errs by. The point x = s z of ``log_ratio`` is off by a unit: that moves
    log r by the share of |x|/s^2 units. The exponent of a share errs by fewer than 8 (|u| + 1/s^2 + |log q| + 1) units,
    and turns and shrinkages by as many and 64 of themselves: NARROWER, 131,072 units, is above that where these four
    sizes are below 10,000.
    """
    u, mixed = roundoff(), jnp.where(q < 1, 1.0, 0.0)
    reach, far = jnp.sqrt(2 * jnp.maximum(ask.nats, 40.0)), jnp.where(removes, 1 / s, 0.0)
    # Where outcomes are marked: from a loss on, or the last ones of some mass; all of it only steers.
    soft = jnp.maximum(SOFT * jnp.minimum(s, 1.0), 6 * (2 * reach + far) / size)
    logs = jnp.stack([ask.log_mass, ask.log_mass - jnp.log(q)])
    tails = jnp.maximum(-2 * logs - 1.84, 1.0)
    ends = jnp.sqrt(tails - jnp.log(tails)) + jnp.stack([jnp.zeros_like(s), 1 / s])
    place = jnp.minimum(jnp.where(loss > 0, loss, jnp.inf), jnp.max(ends)) + DEEP * soft
    has_marks = removes & (q < 1) & (place < reach + far) & (place + 1 < DEEP / soft)
    place = jnp.where(has_marks, place, jnp.inf)
    z, step = exact_steps(-reach, jnp.minimum(reach + far, place + 12 * soft), size)
    log_r, doubt = log_ratio(z)
    logit = jnp.log(q) - jnp.log(1 - q)

    def share(z: Array) -> tuple[Array, Array]:
        exponent = (z - 0.5 / s) / s + logit
        return 1 / (1 + jnp.exp(-exponent)), 1 / (1 + jnp.exp(exponent))

    def log_psi(z: Array) -> tuple[Array, Array]:
        x = jnp.where(has_marks, (z - place) / soft, -jnp.inf)
        tail = lower_tail(-jnp.abs(x))
        return jnp.where(x > 0, jnp.log(tail), log_complement(tail)), x

    kept, x = log_psi(z)
    square = 0.5 * z * z
    of_r = jnp.where(removes, log_r, 0.0)
    log_p = kept + of_r + (jnp.log(step / math.sqrt(2 * math.pi)) - square)
    sizes = 64 + 4 * (jnp.abs(kept) + jnp.abs(of_r) + square) + 16 * (1 + jnp.maximum(x, 0.0) ** 2)
    doubt = doubt + u * (2 * jnp.abs(log_r) + 2 * share(z)[0] * jnp.abs(z) / s)
    # Cells' ends, half a step beyond their own nodes' steps; shares there, and heights.
    afar = jnp.stack([z[-1] + piece for piece in PIECES])
    low = jnp.concatenate([z[::CELL] - step, z[:1] - 1e9, afar])
    high = jnp.concatenate([z[CELL - 1 :: CELL] + step, z[:1], afar[1:], z[-1:] + 1e9])
    (least, _), (most, rest) = share(low), share(high)
    (_, most_rest), middle = share(low), jnp.clip(0.5, least, most)
    lowest_height = jnp.minimum(jnp.sqrt(72 / jnp.maximum(ask.runs, 1.0)) / (2 * s), 0.1)
    highest = jnp.where(q < 1, 3.0, jnp.maximum(3.0, 12 / s))
    theta = lowest_height * (highest / lowest_height) ** (np.arange(HEIGHTS) / (HEIGHTS - 1))[:, None]
    height, steep = s * theta, jnp.where(has_marks, 1 / soft, 0.0)

    def turn(share: Array, rest: Array, theta: Array) -> Array:
        turned = jnp.arctan2(share * jnp.sin(theta), rest + share * jnp.cos(theta))
        return jnp.where(q < 1, turned, theta)

    def shrink(share: Array, rest: Array, theta: Array) -> Array:
        return mixed * 0.5 * log_complement(4 * share * rest * jnp.sin(jnp.minimum(theta, 3.1) / 2) ** 2)

    def growth(x: Array, height: Array) -> Array:
        y = 0.5 * (height / soft) ** 2
        above = jnp.logaddexp(0.0, y - jnp.where(x < 0, 0.5 * x * x, 0.0)) - log_psi(high)[0]
        return jnp.where(has_marks, jnp.minimum(y, above), 0.0)

    x = log_psi(high)[1]
    # Lines below: the largest turn and modulus.
    largest = jnp.maximum(shrink(least, most_rest, theta), shrink(most, rest, theta)) * (1 - NARROWER)
    smallest = shrink(middle, jnp.maximum(1 - middle, rest), theta) * (1 + NARROWER)
    of_order = jnp.where(removes, largest, -smallest)
    size_of = jnp.where(removes, largest, 0.0)
    constant = (0.5 * height * height + growth(x, height)) * (1 + NARROWER) + size_of
    rising = Strips(constant, of_order, turn(most, rest, theta) * (1 + NARROWER))
    # Paths above: the smallest turn, which rises with the height and then may fall, and the largest modulus.
    top, foot = (
        jnp.where(has_marks, jnp.minimum(height, 0.5 * jnp.maximum(place - z, 0.0) + soft), height)
        for z in (low, high)
    )
    longer = jnp.where(has_marks & (top < height), 0.5 * math.log(1.25), 0.0)
    largest = jnp.maximum(shrink(least, most_rest, foot / s), shrink(most, rest, foot / s)) * (1 - NARROWER)
    constant = 0.5 * top * top + growth(x, top) + longer
    turned = jnp.minimum(turn(least, most_rest, foot / s), turn(least, most_rest, top / s)) * (1 - NARROWER)
    constant = constant * (1 + NARROWER) + jnp.where(removes, largest, 0.0)
    falling = Strips(constant, jnp.where(removes, largest, -smallest), turned)
    zero, one = jnp.zeros_like(s), jnp.ones_like(s)
    # Slopes of log f outwards, and its curvature.
    curved = jnp.max(middle * jnp.maximum(1 - middle, rest)) / (s * s) * (1 + NARROWER)
    # Far below the place log Psi is straight: its second derivative is the hazard times less than 1 + |x|.
    straight = jnp.where(x < -9, 1e-16, 1.0)[0] * steep**2
    bend = jnp.stack([1 + straight, jnp.where(removes, 0.0, curved) + 0 * straight])
    past = jnp.where(has_marks, (z[-1] - place) / soft**2, zero)
    # Beyond the last node log f falls as -z v - v^2/2 and log Psi do, and moves with log r, which rises.
    risen = log_ratio(jnp.concatenate([afar, z[-1:] + PIECES[-1]]))[0] - log_r[-1]
    most_risen, least_risen = risen[1:] * (1 + NARROWER), risen[:-1] * (1 - NARROWER)
    rise = jnp.where(removes, most_risen, -jnp.maximum(least_risen, 0.0))
    fade = -(z[-1] + past) * PIECES - (1 + steep**2) * PIECES**2 / 2
    is_last = np.arange(len(PIECES)) == len(PIECES) - 1
    slope = jnp.where(removes & is_last, 1 / s, 0.0)
    tails = Tails(
        jnp.append(zero, fade + jnp.where(removes, rise, 0.0)),
        jnp.append(zero, rise),
        jnp.append(-z[0], z[-1] + past + (1 + steep**2) * PIECES - slope) * (1 - NARROWER),
        jnp.append(jnp.where(removes, zero, -share(z[0])[0] / s), -slope) * (1 + NARROWER),
    )
    # Marked outcomes.
    apart = jnp.where(has_marks, place - jnp.stack([zero, 1 / s]), 40.0) / jnp.sqrt(1 + soft * soft)
    base, shifted = jnp.where(apart > 0, lower_tail(-jnp.abs(apart)), 1 - lower_tail(-jnp.abs(apart)))
    marked = jnp.where(has_marks, jnp.stack([(1 - q) * base + q * shifted, base]), 0.0)
    # Marks that count as none: below the deepest one the product of Phi and the density falls faster than 1/soft.
    deep = place - DEEP * soft - jnp.stack([zero, 1 / s])
    faint = FAINT * jnp.exp(-0.5 * jnp.maximum(deep, 0.0) ** 2)
    faint = jnp.stack([(1 - q) * faint[0] + q * faint[1], faint[0]]) / jnp.maximum(marked, TINY)
    marked_error = u * (48 + 16 * (jnp.abs(place) + 1 / s) ** 2) + jnp.max(faint)
    first = log_ratio(place - DEEP * soft)
    edge = log_complement(q) * (1 + 16 * u)
    return Nodes(
        losses=jnp.where(removes, log_r, -log_r),
        log_p=log_p,
        loss_error=doubt,
        mass_error=u * sizes + jnp.where(removes, doubt, 0.0),
        step=step,
        heights=height[:, 0] * (1 - NARROWER),
        rising=rising,
        falling=falling,
        bend=bend,
        tails=tails,
        marked=marked,
        marked_error=jnp.where(has_marks, marked_error, 0.0),
        marked_loss=jnp.where(has_marks, first[0] - first[1] - 8 * u * (1 + jnp.abs(first[0])), jnp.inf),
        lowest=jnp.where(removes, edge, -jnp.inf),
        infinite=jnp.zeros(2),
        is_valid=one > 0,
    )
