"""Laplace noise for mixtures of shifts: masses, and the law of the loss for the contour.

The law has two atoms, and a density between the outermost locations. Between two neighbouring locations, with u =
2x/scale, both densities are e^(-u/2) (A e^u + B), A from the locations to the right and B from those to the left. So
the loss is log (A e^u + B)/(C e^u + D), analytic for |Im u| < pi, and the density tilted by t + iw is e^(-u/2) (A e^u +
B)^(1+t+iw) (C e^u + D)^-(t+iw) there. With a = A e^u/(A e^u + B) and c likewise the shares of what lies to the right,
at Im u = theta:

* |A e^u + B| is at most its value at Re u, and |C e^u + D|^2 is 1 - 4 c (1-c) sin(theta/2)^2 times that;
* the arguments are those of 1 - a + a e^(i theta) and 1 - c + c e^(i theta), which grow with a and c;
* on the real line the tilted density's logarithm has slopes (1+t) (a - 1/2) - t (c - 1/2), at most t + 1/2.

Beyond the ends lie atoms, each twice the density in u there. So the whole moment is at least the largest density times
min(2, 1/(t + 1/2)): going from there to the nearest end it loses no more than e^-(t + 1/2) a unit. With the rule of
:mod:`.panels` that bounds the error of quadrature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs.law import Nodes, log_left_out, tilted
from jaxacct.dominating_pairs.moments import LARGEST_EXPONENT, exp_remainder, log_integral
from jaxacct.dominating_pairs.noise import Noise
from jaxacct.dominating_pairs.panels import (
    CELLS,
    HIGHEST,
    LARGEST_POWER,
    PanelLaw,
    Stretches,
    argument,
    joined,
    log_decay,
    log_rule_error,
    log_shrinkage,
    panels,
    stretches,
)
from jaxacct.precision import log_complement

if TYPE_CHECKING:
    from jaxacct.dominating_pairs.shifted_noise import ShiftedNoisePair

PANELS = 8
"""Panels of a piece, shared by the intervals between locations; the scan has SCAN times as many."""

SCAN = 2


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

    pair: ShiftedNoisePair

    def _count(self) -> int:
        return max(PANELS // (np.shape(self.pair.locations)[-1] - 1), 1)

    def largest_order(self) -> Array:
        low, high = self.pair.loss_range()
        largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        return jnp.where(largest < LARGEST_POWER, LARGEST_POWER / largest, 0.0)

    def scan(self) -> Nodes:
        return self._nodes(0, 1, SCAN * self._count())

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns the ends of the locations: the nodes always cover all."""
        return self.pair._ends()

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        return self._nodes(index, pieces, self._count())

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        """Returns the half-width of the widest panels."""
        left, right = _intervals(self.pair)
        return jnp.max(right - left) / (2 * self._count() * pieces)

    def _nodes(self, index: Array | int, pieces: Array | int, count: int) -> Nodes:
        """Returns ``count`` panels of each interval, and with the first ones the atoms."""
        left, right = _intervals(self.pair)
        width = (right - left) / (count * pieces)
        x, log_weight = (
            v.reshape(-1) for v in jax.vmap(panels, (0, 0, None))(left + width * count * index, width, count)
        )
        s = self.pair._fields()[0]
        x = jnp.concatenate([x, jnp.stack(self.pair._ends())])
        outside = jnp.where(jnp.asarray(index) == 0, jnp.log(s), -jnp.inf)
        log_weight = jnp.concatenate([log_weight, jnp.stack([outside, outside])])
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(s)
        places = jnp.max(width) / 2 * jnp.arange(x.shape[0])  # half a panel apart, as step says
        return Nodes(losses, log_p + log_weight, log_q + log_weight, nothing, nothing, places)

    def _logits(self, x: Array) -> tuple[Array, Array]:
        """Returns log a/(1-a) and log c/(1-c) at x, with the leading axis of the intervals."""
        s, locations, p, q = self.pair._fields()
        left, right = _intervals(self.pair)

        def row(x: Array, left: Array, right: Array) -> tuple[Array, Array]:
            heights = jax.vmap(lambda location: jnp.exp(-jnp.abs(x - location) / s))(locations)

            def side(counts: Array, weights: Array) -> Array:
                return jnp.log(jnp.matmul(jnp.where(counts, weights, 0.0), heights))

            above, below = locations >= right, locations <= left
            return side(above, p) - side(below, p), side(above, q) - side(below, q)

        return jax.vmap(row)(x, left, right)

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        s = self.pair._fields()[0]
        left, right = _intervals(self.pair)
        steepest = order + 0.5
        a, c = self._logits(jnp.stack([left, right], axis=1))

        def growth(height: Array, beyond: Array) -> Array:
            """Returns the most of all intervals; ellipses reach beyond their ends."""
            theta, allowed = jnp.minimum(height, HIGHEST), height <= HIGHEST

            def one(a: Array, c: Array) -> Array:
                most = jax.nn.sigmoid(a[1] + beyond)
                low, high = jax.nn.sigmoid(c[0] - beyond), jax.nn.sigmoid(c[1] + beyond)
                turn = argument(most, theta) - argument(low, theta)
                return w * turn - order * log_shrinkage(low, high, theta)

            cost = jnp.max(jax.vmap(one)(a, c), axis=0) + steepest * beyond
            return jnp.where(allowed, cost, jnp.inf)

        # Half-widths add up to half of the length.
        length, peak = jnp.sum(right - left) / s, jnp.maximum(0.5, steepest)
        found = log_rule_error(2 * step / s, growth) + jnp.log(length * peak)
        return jnp.logaddexp(found, log_left_out())

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s = self.pair._fields()[0]
        left, right = _intervals(self.pair)
        log_total, error = self.log_total(order, nodes)
        width = (right - left) / CELLS
        x = jax.vmap(lambda start, width: start + width * jnp.arange(CELLS + 1))(left, width)
        logits = self._logits(x)
        a, c = (jax.nn.sigmoid(logit) for logit in logits)
        # The loss rises by 2/scale times a - c. Near one the complements know the difference better.
        over_a, over_c = (jax.nn.sigmoid(-logit) for logit in logits)
        shares = jnp.maximum(jnp.where(c > 0.5, over_c - over_a, a - c), 0.0)

        def row(x: Array, a: Array, c: Array, share: Array, width: Array) -> Stretches:
            losses, log_p, _ = self.pair.log_densities(x)
            log_weight = log_p + order * losses - log_total
            log_rate = jnp.log(share * (2 / s))
            # The slope of the tilted density, less that of the rate, 1 - a - c.
            steepest = (1 + order) * (a[1:] - 0.5) - order * (c[:-1] - 0.5) - (1 - a[1:] - c[1:])
            flattest = (1 + order) * (a[:-1] - 0.5) - order * (c[1:] - 0.5) - (1 - a[:-1] - c[:-1])
            return stretches(losses, log_weight, log_rate, steepest * (2 / s), flattest * (2 / s), width)

        parts = jax.vmap(row)(x, a, c, shares, width)
        parts = joined(*(jax.tree.map(lambda leaf, i=i: leaf[i], parts) for i in range(x.shape[0])))
        # The last two nodes are the atoms.
        return log_decay(w, (nodes.losses[-2:], tilted(nodes, order)[-2:]), parts, error)
