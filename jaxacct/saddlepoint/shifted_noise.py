"""The law of the loss of mixtures of shifted Gaussians: the trapezoid rule of :mod:`.subsampled_gaussian`, generalized.

P and Q are sums of Gaussians around locations, Q's at or left of P's (:class:`ShiftedNoisePair`), and a moment of order
t + iw is the integral of P^(1+t+iw) Q^-(t+iw). On the line Im x = b the term of P around m is turned by m b/s^2 and all
are scaled by the same e^(b^2/(2 s^2)). While the turns of P's terms spread over less than pi, and Q's as well, neither
vanishes: the integrand is analytic for |Im x| < pi s^2/spread, spread the larger extent of the two. There |P| is at
most P(Re x) scaled so, |Q| at least Q(Re x) cos(b spread_Q/(2 s^2)) scaled so, and arg P - arg Q lies between 0 and
b extent/s^2, extent that of all locations. Two bounds follow.

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

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.dominating_pairs import ShiftedNoisePair
from jaxacct.saddlepoint.laplace import LawOfShiftedLaplace
from jaxacct.saddlepoint.laws import Law, Nodes, law_of, only_in_float64, precision

NODES = 256
"""Nodes of the scan, and of each piece of the rule for complex orders, which must resolve their oscillation."""

PIECES = 8
"""Most pieces."""

FINEST, COARSEST = 0.3, 0.5
"""Largest spacing of the scan: ``min(FINEST s^2/spread, COARSEST s)``; it errs by e^(-2 pi pi / 0.3) = 3e-29."""

BEYOND = 14.0
"""Nats below the cut at which nodes end: what k steps leave out is k times as much as what one does."""

HEIGHTS = np.geomspace(0.02, 40.0, 24)
"""Heights b of the lines that the quadrature's bound may use, in standard deviations, below HIGHEST of the strip."""

HIGHEST = 0.95 * np.pi
"""Largest spread of the turns of P's, or of Q's, terms that is used."""

STEEPEST = 1.0
"""Largest spread of the turns for the decay's bound; what is left of pi/2 is for the rule that it is summed by."""


@dataclass(frozen=True)
class LawOfShiftedGaussians:
    """See the module."""

    pair: ShiftedNoisePair

    def _extents(self) -> tuple[Array, Array, Array, Array]:
        """Returns the spread of P's locations, of Q's, the distance between them, and the extent of all."""
        _, locations, p, q = self.pair._fields()
        (p_low, p_high), (q_low, q_high) = (
            (jnp.min(jnp.where(w > 0, locations, jnp.inf)), jnp.max(jnp.where(w > 0, locations, -jnp.inf)))
            for w in (p, q)
        )
        return p_high - p_low, q_high - q_low, p_low - q_high, p_high - q_low

    def _spacing(self) -> Array:
        s = self.pair._fields()[0]
        p_spread, q_spread, _, _ = self._extents()
        return jnp.minimum(FINEST * s**2 / jnp.maximum(p_spread, q_spread), COARSEST * s)

    def largest_order(self) -> Array:
        s = self.pair._fields()[0]
        extent = self._extents()[3]
        room = NODES * self._spacing() - 2 * precision().reach * s - self.pair._spread()
        return jnp.maximum(room / extent, 0.0)

    def scan(self) -> Nodes:
        # The tilted law P^(1+t) Q^-t has its peaks between P's lowest location and P's highest plus t times the extent.
        s = self.pair._fields()[0]
        low, high = self.pair._ends()
        reach = precision().reach * s
        span = high - low + 2 * reach + self.largest_order() * self._extents()[3]
        return self._nodes(low - reach, span / NODES)

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns the x between which the law tilted by ``order`` has more than e^-(cut + BEYOND) of its maximum."""
        logs = scan.log_p + order * scan.losses
        counts = logs > jnp.max(logs) - precision().cut - BEYOND
        x = scan.places
        apart = x[1] - x[0]
        return jnp.min(jnp.where(counts, x, jnp.inf)) - apart, jnp.max(jnp.where(counts, x, -jnp.inf)) + apart

    def _heights(self) -> tuple[Array, Array]:
        """Returns the heights of lines, and what each costs a negative power of Q."""
        s = self.pair._fields()[0]
        p_spread, q_spread, _, _ = self._extents()
        b = jnp.minimum(jnp.asarray(HEIGHTS) * s, HIGHEST * s**2 / jnp.maximum(p_spread, q_spread))
        return b, -jnp.log(jnp.cos(b * q_spread / (2 * s**2)))

    def _cost(self, order: Array, w: Array) -> tuple[Array, Array]:
        """Returns the heights, and the log of the integral of the modulus there over the moment."""
        s, extent = self.pair._fields()[0], self._extents()[3]
        b, secants = self._heights()
        return b, 0.5 * (b / s) ** 2 + w * b * extent / s**2 + order * secants

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        b, cost = self._cost(order, w)
        step = jnp.max(2 * jnp.pi * b / (cost + precision().cut + BEYOND))
        return jnp.clip(jnp.ceil((window[1] - window[0]) / (step * NODES)), 1, PIECES).astype(jnp.int32)

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        step = self.step(window, pieces)
        return self._nodes(window[0] + step * NODES * index, step)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        return (window[1] - window[0]) / (NODES * pieces)

    def _nodes(self, low: Array, step: Array) -> Nodes:
        x = low + step * (jnp.arange(NODES) + 0.5)
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(step)
        return Nodes(losses, log_p + jnp.log(step), log_q + jnp.log(step), nothing, nothing, x)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, locations, p, q = self.pair._fields()
        p_spread, q_spread, apart, _ = self._extents()
        spread = jnp.maximum(p_spread, q_spread)
        logs = nodes.log_p + order * nodes.losses
        weights = jnp.exp(logs - jnp.max(logs))
        weights = weights / jnp.sum(weights)
        exponents = self.pair._exponents(nodes.places)
        shares = [_shares(mixture, exponents) for mixture in (p, q)]
        means = [jnp.matmul(locations, share) for share in shares]
        slope = (means[0] - means[1]) / s**2
        # The mean square counts the bulk, and not the rare jumps, as a deviation would; the mode only the bulk.
        slopes = jnp.sqrt(jnp.sum(weights * slope**2)), jnp.max(jnp.where(weights == jnp.max(weights), slope, 0.0))
        step = nodes.places[1] - nodes.places[0]
        references = [
            jnp.min(jnp.where(p > 0, locations, jnp.inf)),
            jnp.max(jnp.where(q > 0, locations, -jnp.inf)),
        ]

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
            missed = jnp.logaddexp(jnp.log(4.0) - gain, -(precision().cut + BEYOND - 4.0)) + secant
            return 0.5 * (b / s) ** 2 - least + jnp.logaddexp(jnp.log(jnp.sum(weights * jnp.exp(exponents))), missed)

        found = jnp.fmin(bound(slopes[0]), bound(slopes[1])) + ROUNDING
        return jnp.where(jnp.isnan(found), 0.0, jnp.minimum(found, 0.0))

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        b, cost = self._cost(order, w)
        gain = jnp.max(2 * jnp.pi * b / step - cost)
        return jnp.logaddexp(jnp.log(4.0) - gain, -(precision().cut + BEYOND - 4.0))


ROUNDING = 1e-13
"""What the rounding of a bound on a modulus may come to: 256 terms of one sign, each right to some 200 units."""


def _shares(weights: Array, exponents: Array) -> Array:
    """Returns the posterior weights (m, n) of the terms of a mixture."""
    logs = jax.vmap(lambda w, e: jnp.where(w > 0, jnp.log(w) + e, -jnp.inf))(weights, exponents)
    return jax.nn.softmax(logs, axis=0)


@law_of.register
def _(pair: ShiftedNoisePair) -> Law:
    only_in_float64(pair)
    return LawOfShiftedGaussians(pair) if pair.noise == "gaussian" else LawOfShiftedLaplace(pair)
