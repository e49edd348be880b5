"""Laplace noise for mixtures of shifts: masses, and the law of the loss for the contour.

The law has two atoms, and a density between the outermost locations. Between two neighbouring locations, with u =
2x/scale, both densities are e^(-u/2) (A e^u + B), A from the locations to the right and B from those to the left. So
the loss is log (A e^u + B)/(C e^u + D), analytic for |Im u| < pi, and the density tilted by t + iw is e^(-u/2) (A e^u +
B)^(1+t+iw) (C e^u + D)^-(t+iw) there. With a = A e^u/(A e^u + B) and c likewise the shares of what lies to the right,
at Im u = theta:

* |A e^u + B| is at most its value at Re u, and |C e^u + D|^2 is 1 - 4 c (1-c) sin(theta/2)^2 times that;
* the arguments are those of 1 - a + a e^(i theta) and 1 - c + c e^(i theta), which grow with a and c;
* on the real line the tilted density's logarithm has slopes (1+t) (a - 1/2) - t (c - 1/2), at most k = 1/2 + t |a - c|,
  the largest difference.

Beyond the ends lie atoms, each twice the density in u there. So the whole moment is at least the largest density times
min(2, 1/k): going from there to the nearest end it loses no more than e^-k a unit. With the rule of :mod:`.panels` that
bounds the error of quadrature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs.law import Nodes, tilted
from jaxacct.dominating_pairs.moments import LARGEST_EXPONENT, exp_remainder, log_integral
from jaxacct.dominating_pairs.noise import Noise
from jaxacct.dominating_pairs.panels import (
    CELLS,
    LARGEST_POWER,
    THETAS,
    Ellipses,
    PanelLaw,
    argument,
    log_decay,
    log_shrinkage,
    panels,
    stretches,
)
from jaxacct.precision import log_complement

if TYPE_CHECKING:
    from jaxacct.dominating_pairs.shifted_noise import ShiftedNoisePair

PANELS = 8
"""Panels of a piece, and of the scan, shared by the intervals between locations."""


class LaplaceNoise(Noise):
    """Laplace noise of density e^(-|x|/scale) / (2 scale)."""

    has_atoms = True

    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        return -jnp.abs(x - location) / scale - jnp.log(2 * scale)

    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return (jnp.abs(x - reference) - jnp.abs(x - location)) / scale

    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return (jnp.sign(x - reference) - jnp.sign(x - location)) / scale

    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.where(location == reference, 0.0, 2 / scale)

    def reach(self, scale: Array) -> Array:
        return jnp.zeros_like(scale)

    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        """Returns the masses between monotone points x, with error bounds; infinite ends are allowed.

        No difference of tails is ever taken. A cell on one side of the centre is ``e^-|z| (1 - e^-w) / 2``, z its end
        near the centre and w its width, which is formed from x[i+1] - x[i] and rounds relative to itself; a cell around
        the centre is the sum of its two sides. So each mass is right to a few ulps of itself.
        """
        z = (x - center) / scale
        start, end = z[:-1], z[1:]
        apart = x[1:] - x[:-1]
        # Between two infinite ends of one sign there is nothing.
        width = jnp.abs(jnp.where(jnp.isnan(apart), 0.0, apart)) / scale
        straddles = (start < 0) != (end < 0)
        near = jnp.minimum(jnp.abs(start), jnp.abs(end))
        one_side = -0.5 * jnp.exp(-near) * jnp.expm1(-width)
        around = -0.5 * (jnp.expm1(-jnp.abs(start)) + jnp.expm1(-jnp.abs(end)))
        mass = jnp.where(straddles, around, one_side)
        # z errs by 2u of itself, which exp turns into 2u |z| of the mass; beyond e^-745 there is no mass to err.
        exponent = jnp.where(straddles, 0.0, jnp.minimum(near, 800.0))
        return mass, roundoff() * (24 + 4 * exponent) * mass

    def log_upper_tail(self, z: Array) -> Array:
        """Returns an upper bound on the log of the mass above z, above it by 90 units of 1 + |z| at most."""
        above = -z - jnp.log(2.0)
        below = log_complement(0.5 * jnp.exp(jnp.minimum(z, 0.0)))
        finite = jnp.where(jnp.isfinite(z), jnp.abs(z), 0.0)
        return jnp.minimum(jnp.where(z > 0, above, below) + scaled(1e-15) * (4 + finite), 0.0)

    def log_integral(
        self, pair: ShiftedNoisePair, height: Callable[[Array], Array], order: Array, start: Array | None
    ) -> Array:
        # Beyond the ends the loss is constant, and a mass is the density there times the scale. Between two
        # neighbouring knots the densities are smooth.
        s, (low, high) = pair._fields()[0], pair._ends()
        left, right = _intervals(pair, start)
        pieces = jax.vmap(lambda a, b: log_integral(height, a, b, s, s))(left, right)
        parts = [jax.nn.logsumexp(pieces), height(high) + jnp.log(s)]
        if start is None:
            parts.append(height(low) + jnp.log(s))
        return jax.nn.logsumexp(jnp.stack(parts))

    def divergence_of_shift(self, t: Array, orders: Array) -> Array:
        """Mironov (2017), Table II.

        With b = order - 1 the moment is

            (order e^(b t) + b e^(-order t)) / (2 order - 1) = 1 + (order phi(b t) + b phi(-order t)) / (2 order - 1),

        phi(x) = e^x - 1 - x, a sum that does not cancel.
        """
        power = orders - 1
        up, down = power * t, -orders * t
        remainders = [exp_remainder(x, jnp.exp(jnp.minimum(x, LARGEST_EXPONENT)) - 1) for x in (up, down)]
        excess = (orders * remainders[0] + power * remainders[1]) / (orders + power)
        # Beyond the largest exponent the second term is nothing beside the first.
        vast = up + jnp.log(orders / (orders + power))
        return jnp.where(up > LARGEST_EXPONENT / 2, vast, jnp.log1p(excess)) / power

    def law(self, pair: ShiftedNoisePair) -> LawOfShiftedLaplace:
        return LawOfShiftedLaplace(pair)


def _intervals(pair: ShiftedNoisePair, start: Array | None = None) -> tuple[Array, Array]:
    """Returns the ends of the intervals between neighbouring locations, or from ``start`` on, some of them empty."""
    low, high = pair._ends()
    knots = jnp.sort(jnp.clip(pair._fields()[1], low if start is None else start, high))
    return knots[:-1], knots[1:]


@dataclass(frozen=True)
class LawOfShiftedLaplace(PanelLaw):
    """See the module."""

    # Half of the noise about an end lies beyond it, where the loss no longer changes.
    recurring: ClassVar[float] = 0.5

    pair: ShiftedNoisePair

    def largest_order(self) -> Array:
        low, high = self.pair.loss_range()
        largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        return jnp.where(largest < LARGEST_POWER, LARGEST_POWER / largest, 0.0)

    def scan(self) -> Nodes:
        return self.piece(self.window(self.largest_order(), None), 0, 1)

    def window(self, order: Array, scan: Nodes | None) -> tuple[Array, Array]:
        """Returns the ends of the locations: the nodes always cover all."""
        return self.pair._ends()

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        """Returns the panels of each interval, and with the first ones the atoms."""
        s, as_real = self.pair._fields()[0], lambda value: jnp.asarray(value, window[0].dtype)
        x, log_weight = _nodes(*self.pair._fields(), as_real(index), as_real(pieces))
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(s)
        places = self.step(window, pieces) * np.arange(x.shape[0])
        return Nodes(losses, log_p + log_weight, log_q + log_weight, nothing, nothing, places)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        """Returns the half-width of the widest panels."""
        return (
            jnp.max(self._sides().length) / (4 * _panels_of(self.pair._fields()[1]) * pieces) * self.pair._fields()[0]
        )

    def _sides(self) -> _Sides:
        return _sides(*self.pair._fields())

    def ellipses(self, order: Array) -> Ellipses:
        s = self.pair._fields()[0]
        costs, turns, rises, length = _ellipses(*self.pair._fields())
        fall = 0.5 + order * rises
        log_size = jnp.log(length / 2 * fall[0])
        return Ellipses(2 / s, jnp.asarray(THETAS), order * costs, turns, fall, log_size)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        length, above, below = self._sides()
        log_total, error = self.log_total(order, nodes)
        u = length[:, None] * np.linspace(0.0, 1.0, CELLS + 1)[None]
        # Log densities in u, and shares of what lies to the right; near one their complements know a difference better.
        log_p, log_q = (
            jnp.logaddexp(up + u / 2, down - u / 2)
            for up, down in zip(*(v[..., None] for v in (above, below)), strict=True)
        )
        a, c = (jax.nn.sigmoid(logit[:, None] + u) for logit in above - below)
        over_a, over_c = (jax.nn.sigmoid(-logit[:, None] - u) for logit in above - below)
        share = jnp.maximum(jnp.where(c > 0.5, over_c - over_a, a - c), 0.0)
        losses = log_p - log_q
        at = log_p - jnp.log(4.0) + order * losses - log_total - jnp.log(share)
        # The slope of the tilted density, less that of the share, 1 - a - c.
        (a, next_a), (c, next_c) = ((v[:, :-1], v[:, 1:]) for v in (a, c))
        steepest = (2 + order) * next_a - order * c + next_c - 1.5
        flattest = (2 + order) * a - order * next_c + c - 1.5
        parts = stretches(losses, at, steepest, flattest, length[:, None] / CELLS)
        # The last two nodes are the atoms.
        return log_decay(w, (nodes.losses[-2:], tilted(nodes, order)[-2:]), parts, error)


class _Sides(NamedTuple):
    """Of the intervals between neighbouring locations, some of them empty.

    Attributes:
        length (I,): in u.
        above (2, I), below (2, I): at its left end, the logs of P's and of Q's density times twice the scale, those of
            locations to the right and to the left.
    """

    length: Array
    above: Array
    below: Array


@jax.jit
def _sides(s: Array, locations: Array, p: Array, q: Array) -> _Sides:
    left, right = _between(locations, p, q)
    heights = jax.vmap(lambda left: jnp.exp(-jnp.abs(left - locations) / s))(left)
    is_above = jax.vmap(lambda left, right: jnp.stack([locations >= right, locations <= left]))(left, right)
    of_sides = jnp.where(is_above, heights[:, None], 0.0)
    above, below = jnp.log(jnp.einsum("wm,ism->swi", jnp.stack([p, q]), of_sides, precision="highest"))
    return _Sides((right - left) * (2 / s), above, below)


@jax.jit
def _ellipses(s: Array, locations: Array, p: Array, q: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the length of all in u, after what for each of THETAS a unit of the order costs, and one of frequency.

    Third, by how much a unit of the order raises the steepest slope of the tilted density, 1/2 without it.
    """
    length, above, below = _sides(s, locations, p, q)
    theta = jnp.asarray(THETAS)[:, None]
    # Shares of what lies to the right, at an interval's ends and as far beyond as an ellipse may reach: the most of
    # P's, the least and the most of Q's.
    (a, c), ends = (above - below)[:, None], length[None] + theta
    least, most, low, high = (jax.nn.sigmoid(logit) for logit in (a - theta, a + ends, c - theta, c + ends))
    turns = jnp.max(argument(most, theta) - argument(low, theta), axis=1)
    rises = jnp.max(jnp.maximum(jnp.maximum(most - low, high - least), 0.0), axis=1)
    return jnp.max(-log_shrinkage(low, high, theta), axis=1), turns, rises, jnp.sum(length)


def _between(locations: Array, p: Array, q: Array) -> tuple[Array, Array]:
    """Returns the ends of the intervals between neighbouring locations that have weight, some of them empty."""
    counts = (p > 0) | (q > 0)
    knots = jnp.sort(jnp.where(counts, locations, jnp.max(jnp.where(counts, locations, -jnp.inf))))
    return knots[:-1], knots[1:]


def _panels_of(locations: Array) -> int:
    """Returns how many panels of a piece an interval has."""
    return max(PANELS // (np.shape(locations)[-1] - 1), 1)


@jax.jit
def _nodes(s: Array, locations: Array, p: Array, q: Array, index: Array, pieces: Array) -> tuple[Array, Array]:
    """Returns nodes and the logs of their weights, the atoms last."""
    (left, right), count = _between(locations, p, q), _panels_of(locations)
    of_interval = jax.vmap(lambda left, width: panels(left, width, index, count))
    x, log_weight = (v.reshape(-1) for v in of_interval(left, (right - left) / (count * pieces)))
    atom = jnp.where(index == 0, jnp.log(s), -jnp.inf)
    return jnp.concatenate([x, left[:1], right[-1:]]), jnp.concatenate([log_weight, atom[None], atom[None]])
