"""The pair of a group of examples, whose noise shifts by a sum of independent choices, and the law of its loss.

Each of g examples takes part or not, and the noise's centre moves by K units, K their number. The generating function
of K is a product, f(z) = p_0 + p_1 z + ... = prod_j (1 - r_j + r_j z), of real roots alone; nothing else is asked of K.

*The density has real roots.* With normal noise of deviation s and z = e^(x d/s^2), d the unit, the density over that of
the noise around the lowest location is the sum of p_k e^(-c k^2) z^k, c = d^2/(2 s^2). Its roots are real as well
(Laguerre): e^(-c k^2) is the limit of ((1 - b k) (1 + b k))^n, b^2 = c/n, and to multiply the coefficients by 1 +- b k
is to pass from f to f +- b z f', the derivative of z^(+-1/b) f but for a power of z. By Rolle's theorem that has a root
between any two negative ones of f; for b < 1/g its coefficients are positive, so the last root, which must be real, is
negative, too. So the density is

    c N(x) prod_j (1 + z/rho_j),  rho_j > 0,

and vanishes only where Im x is an odd multiple of pi s^2/d: the strip is that of a single example, however large the
group is.

*Bounds on lines.* The bounds of :mod:`.shifted_noise`, which has to take all locations' terms for independent, hold
there factor by factor. At Im x = b, with theta = b d/s^2 and a_j = z/(z + rho_j) at Re x, a factor is (1 + z/rho_j) (1
- a_j + a_j e^(i theta)): its modulus is between cos(theta/2) and 1 times the one at Re x, to the square 1 - 4 a_j (1 -
a_j) sin(theta/2)^2; its argument rises with theta below pi, and is at least a_j sin(theta) up to STEEPEST. The roots
need not be known: the sum of the a_j is the mean of K under the posterior at Re x, that of the a_j (1 - a_j) its
variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.dominating_pairs.pair import (
    COARSEST,
    FINEST,
    RULE,
    CellMasses,
    Law,
    Lines,
    Nodes,
    in_float64_only,
    log_left_out,
    modulus_rounding,
    tilted,
)
from jaxacct.dominating_pairs.shifted_noise import LawOfShiftedGaussians, ShiftedNoisePair, log_mixture
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, as_float64, is_concrete
from jaxacct.numerics.pytrees import register_dataclass

SCAN = 4 * RULE
"""Nodes of the scan: a group's law is wide, and the strip of little noise is narrow. Sound for any value."""

STEEPEST = 1.5
"""Largest theta, in radians, of the decay's bound, which needs arg(1 - p + p e^(i theta)) >= p sin(theta).

:data:`jaxacct.dominating_pairs.subsampled_gaussian.STEEPEST` has the proof for this value; a larger one needs another.
"""

ANGLES = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0])
"""Values of theta, in radians, of the lines that the quadrature's bounds may use. Sound for any values below pi."""


def binomial_masses(trials: int, probability: Any) -> tuple[Any, Any]:
    """Returns the probabilities (..., trials + 1) of a binomial law, and by how many units of roundoff each may err.

    A positive probability is raised to TINY at least, which no delta can show: the law is never stochastically smaller.
    Probabilities of a concrete law are rounded once. Those of a traced law are products of ``3 trials + 4`` roundings.
    """
    k = np.arange(trials + 1)
    if is_concrete(probability):
        exact = np.vectorize(lambda p: _rounded_masses(trials, float(p)), signature="()->(k)")
        p = np.asarray(probability, np.float64)[..., None]
        masses = exact(p[..., 0])
        return np.maximum(masses, np.where((k > 0) & (p > 0) & (p < 1), TINY, 0.0)), np.ones(p.shape[:-1])
    p = probability[..., None]
    k = k.reshape((1,) * probability.ndim + (-1,))
    # C(n, k) p^k rises from one side, (1 - p)^(n - k) from the other: products of positive numbers, and no difference.
    rising = _running_products(((trials - k[..., 1:] + 1) / k[..., 1:]) * p)
    falling = _running_products(jnp.broadcast_to(1 - p, rising.shape))[..., ::-1]
    one = jnp.ones_like(p)
    masses = jnp.concatenate([one, rising], axis=-1) * jnp.concatenate([falling, one], axis=-1)
    least = jnp.where((k > 0) & (p > 0) & (p < 1), TINY, 0.0)
    return jnp.maximum(masses, least), jnp.full_like(probability, 3.0 * trials + 4)


def _rounded_masses(trials: int, probability: float) -> np.ndarray:
    """Returns a binomial law's probabilities, computed in whole numbers and rounded once each."""
    success, whole = probability.as_integer_ratio()
    masses = (math.comb(trials, k) * success**k * (whole - success) ** (trials - k) for k in range(trials + 1))
    return np.array([mass / whole**trials for mass in masses])


def _running_products(factors: Array) -> Array:
    """Returns the products (..., n) of the first factors, each of as many roundings as multiplications, by doubling."""
    # After a step each entry is the product of the last ``2 apart`` factors up to it, so log2(n) steps are enough.
    apart = 1
    while apart < factors.shape[-1]:
        before = jnp.concatenate([jnp.ones_like(factors[..., :apart]), factors[..., :-apart]], axis=-1)
        factors, apart = factors * before, 2 * apart
    return factors


@register_dataclass
@dataclass(frozen=True)
class CountedShiftsPair(ShiftedNoisePair):
    """A :class:`ShiftedNoisePair` of whole numbers of units, whose weights are those of sums of independent choices.

    Attributes:
        scale, locations, p_weights, q_weights, noise: those of :class:`ShiftedNoisePair`.
        weight_units (): units of roundoff by which each weight may err relative to itself. Every bound of the pair
            holds for the pair of the true weights.

    >>> pair = CountedShiftsPair(2.0, [0.0, 1.0, 2.0], p_weights=[0.25, 0.5, 0.25], q_weights=[1.0, 0.0, 0.0])
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])  # log(1/4), where nobody takes part
    [-1.3863, inf]
    """

    weight_units: ArrayLike = 0.0

    def _off(self) -> Array:
        return as_float64(self.weight_units) * roundoff()

    def masses_between(self, x: Float[Array, " n"]) -> CellMasses:
        found, off = super().masses_between(x), self._off()
        return found._replace(p_error=found.p_error + off * found.p, q_error=found.q_error + off * found.q)

    def _rounding(self) -> tuple[Array, Array]:
        error, gap = super()._rounding()
        return error + 2 * as_float64(self.weight_units), gap

    def law(self) -> Law | None:
        return in_float64_only(LawOfCountedShifts(self)) if self.noise == "gaussian" else None


@dataclass(frozen=True)
class LawOfCountedShifts(LawOfShiftedGaussians):
    """The law of a group's loss, by a trapezoid rule in the noise; the unit is the distance of the locations.

    The module's docstring derives its bounds; all others are those of :class:`LawOfShiftedGaussians`.
    """

    pair: CountedShiftsPair

    most_pieces = 16

    def _unit(self) -> Array:
        return _unit(self.pair._fields()[1])

    def _spacing(self) -> Array:
        # Half as much where Q is a mixture: the line that bounds the error costs each of its factors a secant.
        s, finest = self.pair._fields()[0], jnp.where(self._extents()[1] > 0, FINEST / 2, FINEST)
        return jnp.minimum(finest * s**2 / self._unit(), COARSEST * s)

    def _room(self) -> Array:
        """Returns the length of the scan beyond the locations and the reach of the noise."""
        s = self.pair._fields()[0]
        return SCAN * self._spacing() - 2 * arithmetic().reach * s - self.pair._spread()

    def largest_order(self) -> Array:
        _, _, p, q = self.pair._fields()
        # Weights that were raised to TINY need not belong to a polynomial of real roots: the mesh answers then.
        held = jnp.all(((p == 0) | (p > 2 * TINY)) & ((q == 0) | (q > 2 * TINY)))
        # An order moves the tilted law by the extent of the locations at most: the scan has room for so many.
        return jnp.where(held, jnp.maximum(self._room() / self._extents()[3], 0.0), 0.0)

    def scan(self) -> Nodes:
        s, (low, high) = self.pair._fields()[0], self.pair._ends()
        reach = arithmetic().reach * s
        first, last = low - reach, high + reach + jnp.maximum(self._room(), 0.0)
        return self._rule(first, (last - first) / SCAN, SCAN)

    def nodes(self, low: Array, step: Array) -> Nodes:
        return self._rule(low, step, RULE)

    def _rule(self, low: Array, step: Array, count: int) -> Nodes:
        x = low + step * (jnp.arange(count) + 0.5)
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(step)
        return Nodes(losses, log_p + jnp.log(step), log_q + jnp.log(step), nothing, nothing, x)

    def _secants(self, order: Array, theta: Array) -> Array:
        """Returns an upper bound, in nats, on what a line at ``theta`` costs a negative power of Q."""
        factors = self._extents()[1] / self._unit()
        return jnp.maximum(order, 0.0) * factors * -jnp.log(jnp.cos(theta / 2))

    def lines(self) -> Lines:
        s, extent, theta = self.pair._fields()[0], self._extents()[3], jnp.asarray(ANGLES)
        b = theta * s**2 / self._unit()
        return Lines(b, 0.5 * (b / s) ** 2, self._secants(jnp.ones_like(s), theta), b * extent / s**2)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, locations, p, q = self.pair._fields()
        unit, weights = self._unit(), tilted(nodes, order)
        exponents, apart = self.pair._exponents(nodes.places), self._extents()[2]
        # In units: P's mean beyond its lowest location and Q's below its highest; their variances.
        means, variances = zip(*(_posterior(mixture, exponents, locations / unit) for mixture in (p, q)), strict=True)
        turned = means[0] - means[1] - apart / unit
        slope = means[0] - means[1]
        # The mean square counts the bulk, and not the rare jumps, as a deviation would; the mode only the bulk.
        slopes = jnp.sqrt(jnp.sum(weights * slope**2)), jnp.max(jnp.where(weights == jnp.max(weights), slope, 0.0))
        step, positive = nodes.places[1] - nodes.places[0], jnp.maximum(order, 0.0)

        # Every height up to STEEPEST gives a bound. The best one is near w times the deviation of the loss.
        def bound(slope: Array) -> Array:
            theta = jnp.minimum(w * slope * (unit / s) ** 2, STEEPEST)
            square, b = jnp.sin(theta / 2) ** 2, theta * s**2 / unit
            # Logs of moduli: log(1 - x)/2 <= -x/2, and >= -x/2/(1 - x); each 4 a (1 - a) is at most 1.
            moduli = -2 * square * ((order + 1) * variances[0] - positive * variances[1] / (1 - square))
            least = w * theta * apart / unit
            exponents = moduli - w * turned * jnp.sin(theta)
            # The modulus on the line is summed by a rule as well, whose error is a line at b + c.
            beyond = jnp.asarray(ANGLES)
            c = (beyond - theta) * s**2 / unit
            gain = 2 * jnp.pi * c / step - 0.5 * (c / s) ** 2 - self._secants(order, beyond)
            gain = jnp.max(jnp.where(c > 0, gain, -jnp.inf))
            missed = jnp.logaddexp(jnp.log(4.0) - gain, log_left_out() + self._secants(order, theta))
            return 0.5 * (b / s) ** 2 - least + jnp.logaddexp(jnp.log(jnp.sum(weights * jnp.exp(exponents))), missed)

        found = jax.vmap(bound)(jnp.stack(slopes)) + modulus_rounding()
        return jnp.min(jnp.where(found < 0, found, 0.0))

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        # Weights off by e, relatively, turn P^(1 + t + iw) Q^-(t + iw) by at most e^((1 + 2 |t| + 2 w) e).
        off = jnp.expm1((1 + 2 * jnp.abs(order) + 2 * w) * self.pair._off())
        return jnp.logaddexp(super().log_quadrature_error(order, w, step), jnp.log(off))


@jax.jit
def _unit(locations: Array) -> Array:
    return jnp.abs(locations[1] - locations[0])


def _posterior(weights: Array, exponents: Array, counts: Array) -> tuple[Array, Array]:
    """Returns the mean and the variance of the counts (m,) under the posterior weights at each node."""
    log_total = log_mixture(weights, exponents)
    shares = jax.vmap(lambda w, e: jnp.where(w > 0, jnp.exp(jnp.log(w) + e - log_total), 0.0))(weights, exponents)
    mean = jnp.matmul(counts, shares)
    return mean, jnp.sum(shares * (counts[:, None] - mean[None]) ** 2, axis=0)
