"""Gaussian noise for mixtures of shifts: densities, tails, and the law of the loss for the contour.

The law is the trapezoid rule of :mod:`.subsampled_gaussian`, generalized. P and Q are sums of Gaussians around
locations, Q's at or left of P's (:class:`ShiftedNoisePair`), and a moment of order t + iw is the integral of P^(1+t+iw)
Q^-(t+iw). On the line Im x = b the term of P around m is turned by m b/s^2 and all are scaled by the same e^(b^2/(2
s^2)). While the turns of P's terms spread over less than pi, and Q's as well, neither vanishes: the integrand is
analytic for |Im x| < pi s^2/spread, spread the larger extent of the two. There |P| is at most P(Re x) scaled so, |Q| at
least Q(Re x) cos(b spread_Q/(2 s^2)) scaled so, and arg P - arg Q lies between 0 and b extent/s^2, extent that of all
locations. Two bounds follow.

*Quadrature.* A trapezoid rule of spacing h errs by at most 2/(e^(2 pi b/h) - 1) times the integral of the modulus over
the lines Im x = +-b (Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1), which
is at most e^(b^2/(2 s^2) + w b extent/s^2) cos(b spread_Q/(2 s^2))^-t times the moment of order t.

*Decay.* Moved to Im x = b > 0 the integral of order t + iw is at most that of the modulus, in which only
e^(-w (arg P - arg Q)) depends on w, and falls. The integral of the modulus is a trapezoid rule as well. Its integrand
is analytic too: in x + ic each log |P(x + ib)| becomes half of log P(x + i(c+b)) + log P(x + i(c-b)), and arg P
likewise a difference. So by the theorem it errs by 2/(e^(2 pi c/h) - 1) e^((b^2+c^2)/(2 s^2) - w least) 2^(t/2) of the
moment, where b + c is at most (pi/2) s^2/spread. Up to there all angles between terms are at most a right one: the mean
location Re(sum of m_k c_k)/(sum of c_k) over the turned terms c_k is at least the lowest, hence arg P - arg Q rises
with the height, to ``least`` = b (lowest of P - highest of Q)/s^2 at least, and |Q| loses no more than cos(pi/4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff, scaled
from jaxacct.dominating_pairs.law import (
    COARSEST,
    FINEST,
    RULE,
    Lines,
    Nodes,
    TrapezoidLaw,
    log_left_out,
    modulus_rounding,
    tilted,
)
from jaxacct.dominating_pairs.moments import log_integral
from jaxacct.dominating_pairs.noise import Noise, log_mixture, mean
from jaxacct.dominating_pairs.normal import log_upper_tail, normal_cells

if TYPE_CHECKING:
    from jaxacct.dominating_pairs.shifted_noise import ShiftedNoisePair

HEIGHTS = np.geomspace(0.02, 40.0, 24)
"""Heights b of the lines that the quadrature's bound may use, in standard deviations, below HIGHEST of the strip."""

HIGHEST = 0.95 * np.pi
"""Largest spread of the turns of P's, or of Q's, terms that is used."""

STEEPEST = 1.0
"""Largest spread of the turns for the decay's bound; what is left of pi/2 is for the rule that it is summed by."""


class GaussianNoise(Noise):
    """Normal noise; the scale is its standard deviation."""

    has_atoms = False

    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        return -0.5 * ((x - location) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return ((location - reference) / scale) * ((x - (location + reference) / 2) / scale)

    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.full_like(x, (location - reference) / scale**2)

    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.abs(location - reference) / scale**2

    def reach(self, scale: Array) -> Array:
        return 40 * scale

    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        return normal_cells(x, center, scale)

    def log_upper_tail(self, z: Array) -> Array:
        return log_upper_tail(z)

    def edge(self, pair: ShiftedNoisePair, loss: Array, x: Array) -> Array:
        # Beyond the reach of the inversion the loss grows no faster than along its last tangent, made steepest.
        s, _, _, _ = pair._fields()
        last = pair._ends()[1] + self.reach(s)
        farther = (loss - pair._log_ratio(last)) * s**2 / (_highest(pair) - _least_center(pair, last))
        return jnp.where(farther > 0, last + farther * (1 - scaled(1e-12)), x)

    def log_tilted_tail(self, pair: ShiftedNoisePair, order: Array, loss: Array, x: Array) -> Array:
        return jnp.fmin(_tail_by_posterior(pair, order, loss, x), _tail_by_slope(pair, order, loss, x))

    def log_integral(
        self, pair: ShiftedNoisePair, height: Callable[[Array], Array], order: Array, start: Array | None
    ) -> Array:
        s, (low, high) = pair._fields()[0], pair._ends()
        # The peaks of r^(order + 1) lie below ``high + order (high - low)``.
        reach = 50 * s
        first = low - reach if start is None else start
        last = jnp.maximum(high, first) + jnp.maximum(order, 0.0) * (high - low) + reach
        return log_integral(height, first, last, jnp.minimum(2 * s, 2 * s**2 / (high - low)), s)

    def divergence_of_shift(self, t: Array, orders: Array) -> Array:
        return orders * t**2 / 2  # Mironov (2017), Corollary 3

    def law(self, pair: ShiftedNoisePair) -> LawOfShiftedGaussians:
        return LawOfShiftedGaussians(pair)


def _tail_by_posterior(pair: ShiftedNoisePair, order: Array, loss: Array, x: Array) -> Array:
    """Bounds the tilted mass above x as E_Q[r^a], a = order + 1, given that the loss at x is at most ``loss``.

    Let b be the mean location under Q's posterior at x, and v_k(y) = e^((m_k - b)(y - x)/s^2). The log of Q(y) over any
    one component is convex, so it lies above its tangent at x; hence r(y) <= r(x) sum_k w_k v_k(y), w_k the posterior
    weights of P at x, and by Jensen r^a <= r(x)^a sum_k w_k v_k^a. Each term has a closed Gaussian integral over y > x.
    """
    s, locations, p, q = pair._fields()
    a = order + 1
    exponents = pair._exponents(x)
    log_p = log_mixture(p, exponents)
    base = _least_center(pair, x)

    def term(weight: Array, location: Array, exponent: Array) -> Array:
        posterior = jnp.log(weight) + exponent - log_p
        rate = a * (location - base) / s**2
        return posterior + jax.nn.logsumexp(
            jax.vmap(lambda w, m: jnp.log(w) + _tilted_tail(rate, x, m, s))(q, locations), axis=0
        )

    return a * loss + jax.nn.logsumexp(jax.vmap(term)(p, locations, exponents), axis=0) + _margin(a * loss)


def _tail_by_slope(pair: ShiftedNoisePair, order: Array, loss: Array, x: Array) -> Array:
    """Bounds the tilted mass above x as E_P[e^(order Y)], Y growing at its largest slope there."""
    s, locations, p, _ = pair._fields()
    rate = order * (_highest(pair) - _least_center(pair, x)) / s**2
    parts = jax.vmap(lambda w, m: jnp.log(w) + _tilted_tail(rate, x, m, s))(p, locations)
    return order * loss + jax.nn.logsumexp(parts, axis=0) + _margin(order * loss)


def _least_center(pair: ShiftedNoisePair, x: Array) -> Array:
    """Returns the mean location under Q's posterior at x, which grows with x, less what covers its rounding."""
    _, locations, _, q = pair._fields()
    exponents = pair._exponents(x)
    values = jax.vmap(lambda location: jnp.full_like(x, location))(locations)
    return mean(q, exponents, log_mixture(q, exponents), values) - scaled(1e-12) * pair._spread()


def _highest(pair: ShiftedNoisePair) -> Array:
    """Returns the highest location that has weight in P."""
    _, locations, p, _ = pair._fields()
    return jnp.max(jnp.where(p > 0, locations, -jnp.inf))


def _tilted_tail(rate: Array, x: Array, center: Array, scale: Array) -> Array:
    """Returns an upper bound on the log of the integral of e^(rate (y - x)) N(y; center, scale^2) over y > x."""
    z, tilt = (x - center) / scale, rate * scale
    bound = tilt * (tilt / 2 - z) + log_upper_tail(z - tilt)
    return bound + 16 * roundoff() * (tilt**2 + z**2)


def _margin(value: Array) -> Array:
    """Returns what covers the rounding of sums of logarithms of about this size."""
    return scaled(1e-13) + 64 * roundoff() * jnp.abs(value)


@dataclass(frozen=True)
class LawOfShiftedGaussians(TrapezoidLaw):
    """See the module."""

    pair: ShiftedNoisePair

    most_pieces = 8

    def _extents(self) -> tuple[Array, Array, Array, Array]:
        """Returns the spread of P's locations, of Q's, the distance between them, and the extent of all."""
        (p_low, p_high), (q_low, q_high) = self.pair._ends_of_each()
        return p_high - p_low, q_high - q_low, p_low - q_high, p_high - q_low

    def _spacing(self) -> Array:
        s = self.pair._fields()[0]
        p_spread, q_spread, _, _ = self._extents()
        return jnp.minimum(FINEST * s**2 / jnp.maximum(p_spread, q_spread), COARSEST * s)

    def largest_order(self) -> Array:
        s = self.pair._fields()[0]
        extent = self._extents()[3]
        room = RULE * self._spacing() - 2 * arithmetic().reach * s - self.pair._spread()
        return jnp.maximum(room / extent, 0.0)

    def scan(self) -> Nodes:
        # The tilted law P^(1+t) Q^-t has its peaks between P's lowest location and P's highest plus t times the extent.
        s = self.pair._fields()[0]
        low, high = self.pair._ends()
        reach = arithmetic().reach * s
        span = high - low + 2 * reach + self.largest_order() * self._extents()[3]
        return self.nodes(low - reach, span / RULE)

    def lines(self) -> Lines:
        s, (p_spread, q_spread, _, extent) = self.pair._fields()[0], self._extents()
        b = jnp.minimum(jnp.asarray(HEIGHTS) * s, HIGHEST * s**2 / jnp.maximum(p_spread, q_spread))
        return Lines(b, 0.5 * (b / s) ** 2, -jnp.log(jnp.cos(b * q_spread / (2 * s**2))), b * extent / s**2)

    def nodes(self, low: Array, step: Array) -> Nodes:
        x = low + step * (jnp.arange(RULE) + 0.5)
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(step)
        return Nodes(losses, log_p + jnp.log(step), log_q + jnp.log(step), nothing, nothing, x)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, locations, p, q = self.pair._fields()
        p_spread, q_spread, apart, _ = self._extents()
        spread = jnp.maximum(p_spread, q_spread)
        weights = tilted(nodes, order)
        exponents = self.pair._exponents(nodes.places)
        shares = [_shares(mixture, exponents) for mixture in (p, q)]
        means = [jnp.matmul(locations, share) for share in shares]
        slope = (means[0] - means[1]) / s**2
        # The mean square counts the bulk, and not the rare jumps, as a deviation would; the mode only the bulk.
        slopes = jnp.sqrt(jnp.sum(weights * slope**2)), jnp.max(jnp.where(weights == jnp.max(weights), slope, 0.0))
        step = nodes.places[1] - nodes.places[0]
        (lowest, _), (_, highest) = self.pair._ends_of_each()
        references = lowest, highest

        def bound(slope: Array) -> Array:
            b = jnp.minimum(w * slope * s**2, STEEPEST * s**2 / spread)
            moduli, turns = [], []
            for share, reference in zip(shares, references, strict=True):
                angles = (locations - reference) * b / s**2
                cosine, sine = jnp.matmul(jnp.cos(angles), share), jnp.matmul(jnp.sin(angles), share)
                moduli.append(0.5 * jnp.log(cosine**2 + sine**2))
                turns.append(jnp.arctan2(sine, cosine))
            least = w * b * apart / s**2
            exponents = (order + 1) * moduli[0] - order * moduli[1] - w * (turns[0] - turns[1])
            height = jnp.minimum(jnp.minimum((jnp.pi / 2) * s**2 / spread - b, 2 * jnp.pi * s**2 / step), 12 * s)
            gain = 2 * jnp.pi * height / step - 0.5 * (height / s) ** 2
            secant = jnp.where(q_spread > 0, 0.5 * jnp.log(2.0) * order, 0.0)
            # What the nodes leave out beyond the window is as small as e^-(cut + BEYOND), turned or not.
            missed = jnp.logaddexp(jnp.log(4.0) - gain, log_left_out()) + secant
            return 0.5 * (b / s) ** 2 - least + jnp.logaddexp(jnp.log(jnp.sum(weights * jnp.exp(exponents))), missed)

        found = jax.vmap(bound)(jnp.stack(slopes)) + modulus_rounding()
        return jnp.min(jnp.where(found < 0, found, 0.0))


def _shares(weights: Array, exponents: Array) -> Array:
    """Returns the posterior weights (m, n) of the terms of a mixture."""
    logs = jax.vmap(lambda w, e: jnp.where(w > 0, jnp.log(w) + e, -jnp.inf))(weights, exponents)
    return jax.nn.softmax(logs, axis=0)
