"""The law of a sampled Gaussian mechanism as nodes of the trapezoidal rule, with strips and marked outcomes.

With share = q e^u/r, which rises with z, r(z + ib)/r(z) = 1 - share + share e^(i theta), theta = b/s: its argument
rises with the share, and its squared modulus, 1 - 4 share (1 - share) sin(theta/2)^2, is convex in it. So the extreme
values in a cell are those at its ends, or at a share of 1/2 for the least modulus. The normal density grows by b^2/2.

*Marks* ("remove" only). An outcome z is marked with probability Phi((z - place)/soft), an entire function, so that the
rule need not know of an end: unmarked outcomes have the density times Psi(x), x = (z - place)/soft, Psi = 1 - Phi. With
y = b/soft, |Psi(x + iy)| is at most the integral of |phi(v + iy)| over v > x, e^(y^2/2) Psi(x), and at most 1 +
e^(y^2/2) Phi(x); Phi(x) is at most e^(-x^2/2)/2 below 0. log Psi is concave, its slope is at most -x, and its second
derivative at least -1. Marks more than ``DEEP`` scales below the place are taken for none: that changes the density
there by Phi(-DEEP) = 7.6e-24 of itself. At a depth v > DEEP soft the marked density Phi(-v/soft) phi(place - v) is at
most e^(-v^2/(2 soft^2)) phi(place - v)/2, which falls in v at a rate of at least DEEP/soft - place > 1: so marks taken
for none have a mass of at most e^(-50) phi(place - DEEP soft)/2, and likewise about 1/s. All marked masses are normal
tails of deviation sqrt(1 + soft^2).

*Falling path.* Without marks it is the line at height b. With them it comes down towards the place, at half of the
distance from it, to ``soft``: there Psi grows by e^(1/2) at most. The slope makes it longer by sqrt(1 + 1/4).

Let s be the noise over the sensitivity, q the sampling rate, z the noise over s, u = (z - 1/(2s))/s and r = 1 - q + q
e^u, the likelihood ratio of the mixture over the base.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.mechanisms.nodes import (
    CELL,
    FAINT,
    HEIGHTS,
    NARROWER,
    PIECES,
    SCAN,
    Nodes,
    Strips,
    Tails,
    Wishes,
    exact_steps,
)
from jaxacct.mechanisms.normal import lower_tail
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import TINY, log_complement

FAR = 1e9
"""A place beyond all outcomes, in standard deviations: nothing is marked there, and shares are 0 or 1 to all digits.
May not be lowered."""

SOFT, DEEP = 0.06, 10.0
"""Scale of the marks' end, in standard deviations of the noise or, if that is less, in s; and the depth below which
marks count as none, in scales. The first is for tightness only; FAINT of :mod:`.nodes` rests on the second."""


def nodes_and_strips(
    s: jax.Array,
    q: jax.Array,
    removes: jax.Array,
    loss: jax.Array,
    ask: Wishes,
    size: int,
    log_ratio: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
) -> Nodes:
    """Returns the law as nodes.

    Args:
        s (): field of :class:`.SubsampledGaussianPair`.
        q (): likewise.
        removes (): likewise.
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
    u, zero = roundoff(), jnp.zeros_like(s)
    centers = jnp.stack([zero, 1 / s])
    reach = jnp.sqrt(2 * jnp.maximum(ask.nats + 34.0, 40.0))
    # The last outcomes that count are those at e^-nats; an order makes them the middle of a law.
    far = jnp.where(removes, jnp.sqrt(2 * ask.nats) + 8.7 + 1 / s, reach) - reach
    # Where outcomes are marked: from a loss on, or the last ones of some mass; all of it only steers.
    soft = jnp.maximum(SOFT * jnp.minimum(s, 1.0), 6 * (2 * reach + far) / size)
    squares = jnp.maximum(-2 * (ask.log_mass - jnp.stack([zero, jnp.log(q)])) - 1.84, 1.0)
    ends = jnp.max(jnp.sqrt(squares - jnp.log(squares)) + centers)
    place = jnp.fmin(jnp.where(loss > 0, loss, jnp.inf), ends) + DEEP * soft
    has_marks = removes & (q < 1) & (place < reach + far) & (place + 1 < DEEP / soft)
    # Without marks the place is so far away that nothing else need know.
    place = jnp.where(has_marks, place, 1e3 * FAR)
    # Where r is an exponential, P is a normal law about 1/s, which orders move on.
    tilt = jnp.where(removes & (q == 1), 1 / s, 0.0)
    z, step = exact_steps(tilt - reach, jnp.minimum(reach + far, place + 12 * soft), size)
    afar = jnp.stack([z[-1] + piece for piece in PIECES])
    deepest = place - DEEP * soft
    every_log_r, every_doubt = log_ratio(jnp.concatenate([z, afar, deepest[None]]))
    log_r, doubt = every_log_r[:size], every_doubt[:size]
    # Cells' ends: every SCAN-th node, from the middle of SCAN on, has its neighbour within.
    low = jnp.concatenate([z[::CELL] - SCAN // 2 * step, z[:1] - FAR, afar])
    high = jnp.concatenate([z[CELL - 1 :: CELL] + (SCAN // 2 + 1) * step, z[:1], afar[1:], z[-1:] + FAR])
    cells = len(PIECES) + 1 + size // CELL
    places = jnp.concatenate([low, high, z])
    exponent = (places - 0.5 / s) / s + (jnp.log(q) - jnp.log(1 - q))
    shares, rests = 1 / (1 + jnp.exp(-exponent)), 1 / (1 + jnp.exp(exponent))
    x = (jnp.concatenate([high, z]) - place) / soft
    tail = lower_tail(-jnp.abs(x))
    log_psi = jnp.where(x > 0, jnp.log(jnp.maximum(tail, TINY)), log_complement(tail))
    kept, beside = log_psi[cells:], x[cells:]
    square, of_r = 0.5 * z * z, jnp.where(removes, log_r, 0.0)
    log_p = kept + of_r + (jnp.log(step / math.sqrt(2 * math.pi)) - square)
    sizes = 64 + 4 * (jnp.abs(kept) + jnp.abs(of_r) + square) + 16 * (1 + jnp.maximum(beside, 0.0) ** 2)
    doubt = doubt + u * (2 * jnp.abs(log_r) + 2 * shares[2 * cells :] * jnp.abs(z) / s)
    x, steep = x[:cells], jnp.where(has_marks, 1 / (soft * soft), 0.0)
    # Heights of lines, and of paths above the cells' ends; the path is lower where a cell ends.
    lowest = jnp.minimum(jnp.sqrt(72 / jnp.maximum(ask.runs, 1.0)) / (2 * s), 0.1)
    highest = jnp.where(q < 1, 3.0, jnp.maximum(3.0, 12 / s))
    line = s * lowest * (highest / lowest) ** (np.arange(HEIGHTS) / (HEIGHTS - 1))[:, None]
    path = jnp.minimum(line[None], 0.5 * jnp.maximum(place - jnp.stack([low, high])[:, None], 0.0) + soft)
    heights = jnp.concatenate([jnp.broadcast_to(line, path[:1].shape), path])  # the line, the path's top and its foot
    theta = heights / s
    least, most, rest = shares[:cells], shares[cells : 2 * cells], rests[cells : 2 * cells]
    middle = jnp.clip(0.5, least, most)
    # Turns: the largest on the line; on the path the smallest, as it rises with the height and then may fall.
    share, other = jnp.stack([most, least, least])[:, None], jnp.stack([rest, rests[:cells], rests[:cells]])[:, None]
    turns = jnp.arctan2(share * jnp.sin(theta), other + share * jnp.cos(theta))
    turns = jnp.where(q < 1, turns, theta)
    # Logs of moduli: the largest, at the cells' ends, on the line and at the path's foot; and the smallest on the line.
    evens = jnp.stack([least * rests[:cells], most * rest, middle * jnp.maximum(1 - middle, rest)])[:, None, None]
    sines = jnp.sin(jnp.minimum(theta[::2], 3.1) / 2) ** 2
    moduli = jnp.where(q < 1, 0.5 * log_complement(4 * evens * sines[None]), 0.0)
    largest = jnp.maximum(moduli[0], moduli[1]) * (1 - NARROWER)
    of_order = jnp.where(removes, largest, -moduli[2, :1] * (1 + NARROWER))
    # The normal density's growth, that of Psi, and the path's length.
    y = 0.5 * (heights[:2] / soft) ** 2
    above = y - jnp.where(x < 0, 0.5 * x * x, 0.0)[None, None]
    above = jnp.maximum(above, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(above))) - log_psi[None, None, :cells]
    longer = jnp.where(path[:1] < line[None], np.array([0.0, 0.5 * math.log(1.25)])[:, None, None], 0.0)
    constant = (0.5 * heights[:2] ** 2 + jnp.minimum(y, above) + longer) * (1 + NARROWER)
    constant = constant + jnp.where(removes, largest, 0.0)
    # Far below the place log Psi is straight: its second derivative is 1e-17 in the scale of the marks.
    curved = jnp.where(removes, 0.0, jnp.max(evens[2]) / (s * s) * (1 + NARROWER))
    bend = jnp.stack([1 + jnp.where(x < -9, 1e-12, steep), jnp.broadcast_to(curved, x.shape)])
    # Beyond the last node log f falls as -z v - v^2/2 and log Psi do, and moves with log r, which rises.
    risen = every_log_r[size:-1] - log_r[-1]
    rise = jnp.where(removes, jnp.append(risen[1:], risen[-1]) * (1 + NARROWER), -risen * (1 - NARROWER))
    begin = z[-1] + jnp.maximum(beside[-1], 0.0) * steep * soft
    slope = jnp.where(removes & (np.arange(len(PIECES)) == len(PIECES) - 1), 1 / s, 0.0)
    fade = -PIECES * (begin + (1 + steep) * PIECES / 2) + jnp.where(removes, rise, 0.0)
    tails = Tails(
        jnp.append(-kept[0], fade),
        jnp.append(zero, rise),
        jnp.append(tilt - z[0], begin + (1 + steep) * PIECES - slope) * (1 - NARROWER),
        jnp.append(jnp.where(removes, tilt, -shares[2 * cells] / s), -slope),
    )
    # Marked outcomes: normal tails, and those that count as none.
    apart = (place - centers) / jnp.sqrt(1 + soft * soft)
    below = lower_tail(-jnp.abs(apart))
    below = jnp.stack(
        [jnp.where(apart > 0, below, 1 - below), FAINT * jnp.exp(-0.5 * jnp.maximum(deepest - centers, 0) ** 2)]
    )
    of_p, of_q = (1 - q) * below[:, 0] + q * below[:, 1], below[:, 0]
    units = 48 + 16 * (place + 1 / s) ** 2
    marked_error = u * units + jnp.maximum(of_p[1] / jnp.maximum(of_p[0], TINY), of_q[1] / jnp.maximum(of_q[0], TINY))
    marked_loss = every_log_r[-1] - every_doubt[-1] - 8 * u * (1 + jnp.abs(every_log_r[-1]) + place / s)
    return Nodes(
        losses=jnp.where(removes, log_r, -log_r),
        log_p=log_p,
        loss_error=doubt,
        mass_error=u * sizes + jnp.where(removes, doubt, 0.0),
        step=step,
        heights=line[:, 0] * (1 - NARROWER),
        rising=Strips(constant[0], of_order[0], turns[0] * (1 + NARROWER)),
        falling=Strips(constant[1], of_order[-1], jnp.minimum(turns[1], turns[2]) * (1 - NARROWER)),
        bend=bend,
        tails=tails,
        marked=jnp.where(has_marks, jnp.stack([of_p[0], of_q[0]]), 0.0),
        marked_error=jnp.where(has_marks, marked_error, 0.0),
        marked_loss=jnp.where(has_marks, marked_loss, jnp.inf),
        lowest=jnp.where(removes, log_complement(q) * (1 + 16 * u), -jnp.inf),
        infinite=jnp.zeros(2),
        is_valid=jnp.ones((), bool),
    )
