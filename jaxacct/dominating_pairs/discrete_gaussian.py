"""The dominating pair of discrete Gaussian noise.

P is the discrete Gaussian on the integers moved by D, Q the one at 0: masses proportional to e^(-(n-D)^2/(2 s^2)) and
e^(-n^2/(2 s^2)), loss D (2n - D)/(2 s^2). Cell masses are sums over the integers within a static reach, beyond which
neither has a mass that float64 could hold. Tails and cumulants are closed forms over all integers: there the weight
e^(order Y) makes those far away count.

Sums over the integers, theta functions, are taken as they stand for s below 1/sqrt(2 pi) and by Poisson's formula
above: then the k-th term is at most e^(-pi k^2) of the first, and the fifth is below the rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs.finite import LOSS_UNITS, FinitePair
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.precision import TINY, as_float64, log_complement
from jaxacct.pytrees import register_dataclass

SELF_DUAL = 1 / math.sqrt(2 * math.pi)
"""The scale at which Poisson's formula leaves the sum as it is."""

TERMS = 4
"""Terms of a theta function on either side of the first; of the one off the integers, one more."""

SMALLEST_SCALE = 1e-140
"""Below it the square of a loss's denominator leaves float64; the pair is taken to have no noise."""


@register_dataclass
@dataclass(frozen=True)
class DiscreteGaussianPair(DominatingPair):
    """The discrete Gaussian moved by ``sensitivity`` against the one at 0; the reverse is its mirror image.

    Valid where what lies more than ``reach`` from the centre has a mass below the smallest normal float64, as it has
    for a reach of 38 scales: the accountants allow for masses that float64 flushes to zero.

    Attributes:
        scale (): sigma of the law proportional to e^(-n^2/(2 sigma^2)) on the integers.
        sensitivity: how far one example moves the result, a whole number; static.
        reach: integers on either side of a centre that are looked at one by one; static.

    >>> import jax
    >>> with jax.enable_x64(True):
    ...     float(DiscreteGaussianPair(scale=1.0).infinite_mass())
    0.0
    """

    scale: ArrayLike
    sensitivity: int = field(default=1, metadata={"static": True})
    reach: int = field(default=64, metadata={"static": True})

    def _losses(self, n: Array) -> Array:
        return self.sensitivity * (2 * n - self.sensitivity) / (2 * as_float64(self.scale) ** 2)

    def _finite(self) -> FinitePair:
        s = as_float64(self.scale)
        n = jnp.arange(-self.reach, self.sensitivity + self.reach + 1, dtype=jnp.float64)
        x_p, x_q = (n - self.sensitivity) ** 2 / (2 * s**2), n**2 / (2 * s**2)
        total = jnp.exp(_log_total(s))
        # The exponent rounds twice, exp and the quotient a few times more; log(total) is at most 40.
        rounding = roundoff() * (64 + 4 * jnp.maximum(x_p, x_q))
        return FinitePair(jnp.exp(-x_p) / total, jnp.exp(-x_q) / total, self._losses(n), rounding)

    def is_valid(self) -> Array:
        s = as_float64(self.scale)
        cut = _log_upper_tail(s, jnp.asarray(self.reach + 1.0, jnp.float64))
        return (s > SMALLEST_SCALE) & (s < jnp.inf) & (cut < math.log(TINY / 2))

    def loss_range(self) -> tuple[Array, Array]:
        s = as_float64(self.scale)
        return jnp.full_like(s, -jnp.inf), jnp.full_like(s, jnp.inf)

    def central_loss(self) -> Array:
        return self._losses(as_float64(self.sensitivity))

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        return self._finite().cell_masses(boundaries)

    def boundary_error(self, largest: Array) -> Array:
        return LOSS_UNITS * roundoff() * jnp.abs(largest)

    def anchors(self) -> tuple[Array, Array]:
        center = as_float64(self.sensitivity)
        return self._losses(center - 1), self._losses(center)

    def log_tail(self, order: Array, loss: Array) -> Array:
        # e^(order Y) P(n) is e^(order (order+1) D^2/(2 s^2)) times the mass at n of the discrete Gaussian about
        # (order+1) D, off the integers. Its tail beyond the first integer above the loss is one of log_upper_tail.
        s, shift = as_float64(self.scale), self.sensitivity
        edge = loss * s**2 / shift + shift / 2
        edge = edge - LOSS_UNITS * roundoff() * (jnp.abs(loss) * s**2 / shift + shift)
        center = (order + 1) * shift
        first = jnp.floor(edge) + 1
        distance = first - center - 4 * roundoff() * (jnp.abs(first) + center)
        distance = jnp.where(jnp.isnan(distance), jnp.inf, distance)  # inf - inf
        moment = order * (order + 1) * shift**2 / (2 * s**2)
        return moment * (1 + 16 * roundoff()) + _log_upper_tail(s, distance)

    def log_head(self, loss: Array) -> Array:
        s, shift = as_float64(self.scale), self.sensitivity
        return _log_upper_tail(s, shift - jnp.floor(loss * s**2 / shift + shift / 2))

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y)]`` in closed form.

        The Gaussian's, ``order (order + 1) D^2/(2 s^2)``, and the logarithm of the sum of the bell over the integers
        moved by (order + 1) D, relative to the sum over the integers themselves: at most 0, and 0 for whole orders.
        """
        t, s = as_float64(order), as_float64(self.scale)
        return t * (t + 1) * (self.sensitivity**2 / (2 * s**2)) + _log_off_center(s, t * self.sensitivity)


def _log_total(s: Array) -> Array:
    """Returns ``log sum of e^(-n^2/(2 s^2))`` over the integers n."""
    wide = s > SELF_DUAL
    # By Poisson's formula it is s sqrt(2 pi) sum of e^(-2 pi^2 s^2 k^2).
    rate = jnp.where(wide, 2 * math.pi**2 * s**2, 1 / (2 * s**2))
    terms = sum((jnp.exp(-(k**2) * rate) for k in range(1, TERMS + 1)), jnp.zeros_like(rate))
    return jnp.where(wide, jnp.log(s / SELF_DUAL), 0.0) + jnp.log1p(2 * terms)


def _log_off_center(s: Array, center: Array) -> Array:
    """Returns ``log sum of e^(-(n - center)^2/(2 s^2))`` less that of center 0, to a few ulps of 1; it is never > 0."""
    s, center = jnp.broadcast_arrays(s, center)
    offset = center - jnp.round(center)
    # Wide: the difference of the sums as sines, of one sign.
    rate = 2 * math.pi**2 * jnp.maximum(s, SELF_DUAL) ** 2
    spread, total = jnp.zeros_like(rate), jnp.ones_like(rate)
    for k in range(1, TERMS + 1):
        term = jnp.exp(-(k**2) * rate)
        spread, total = spread + 4 * term * jnp.sin(math.pi * k * offset) ** 2, total + 2 * term
    wide = log_complement(spread / total)
    # Narrow: each sum with its largest term taken out.
    narrow_s = jnp.minimum(s, SELF_DUAL)
    terms = jnp.zeros_like(rate)
    for n in range(1, TERMS + 2):
        for side in (n, -n):
            terms = terms + jnp.exp(-(side**2 - 2 * side * offset) / (2 * narrow_s**2))
    narrow = -(offset**2) / (2 * narrow_s**2) + jnp.log1p(terms) - _log_total(narrow_s)
    return jnp.minimum(jnp.where(s > SELF_DUAL, wide, narrow), 0.0)


def _log_upper_tail(s: Array, distance: Array) -> Array:
    """Returns an upper bound on the log of the bell's sum over distance, distance + 1, ..., relative to the integers'.

    Where the first is above the centre the ratios of neighbours fall, so that a geometric series bounds the sum. No
    sum, on or off the integers, exceeds the one over the integers.
    """
    d = jnp.maximum(distance, 0.0)
    bounded = jnp.minimum(d, 1e150)
    exponent = -(bounded**2) / (2 * s**2) * (1 - 16 * roundoff())
    ratio = -jnp.expm1(-(2 * bounded + 1) / (2 * s**2))
    log_sum = exponent - jnp.log(ratio) - _log_total(s) + 64 * roundoff()
    return jnp.where(distance == jnp.inf, -jnp.inf, jnp.where(distance > 0, jnp.minimum(log_sum, 0.0), 0.0))
