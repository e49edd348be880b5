"""Dominating pairs: everything an accountant may ask of a pair (P, Q).

A pair dominates a mechanism if its hockey-stick divergence is at least the mechanism's for every epsilon and every two
neighbouring data sets; adaptive composition of mechanisms is then dominated by the product of their pairs (Zhu, Dong
and Wang 2022, Theorem 10). The privacy loss is ``Y = log P/Q``, drawn under P.

All methods are to be called inside the float64 scope; they take and return arrays and never raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Float

from jaxacct.cumulants import QUADRATURE_NODES, log_moment_of_ratio
from jaxacct.precision import UNIT_ROUNDOFF, as_float64


class CellMasses(NamedTuple):
    """P- and Q-masses of the cells between consecutive boundaries, with bounds on their absolute rounding errors."""

    p: Float[Array, " cells"]
    q: Float[Array, " cells"]
    p_error: Float[Array, " cells"]
    q_error: Float[Array, " cells"]


class DominatingPair(Protocol):
    """A pair (P, Q) seen through its privacy loss."""

    def is_valid(self) -> Array:
        """Returns whether the parameters describe a pair with finite losses; where not, epsilon is inf."""
        ...

    def loss_range(self) -> tuple[Array, Array]:
        """Returns the infimum and the supremum of the privacy loss."""
        ...

    def central_loss(self) -> Array:
        """Returns a loss amid the bulk of P, where a mesh should have a point."""
        ...

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        """Returns the masses of the ``n - 1`` cells of the loss between increasing ``boundaries`` (may be infinite)."""
        ...

    def boundary_error(self, largest: Array) -> Array:
        """Returns a bound on the distance of a cell's true edge from the boundary asked for, for |loss| <= largest."""
        ...

    def log_tail(self, order: Array, loss: Array) -> Array:
        """Returns an upper bound on ``log E_P[exp(order Y); Y > loss]``, and on the same with order 0."""
        ...

    def log_head(self, loss: Array) -> Array:
        """Returns an approximation of ``log P(Y <= loss)``; used to place windows, never in a bound."""
        ...

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        """Returns ``log E_P[exp(order Y)]``, relative error about 1e-11 at the default number of nodes."""
        ...


def _normal_cells(x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
    """Returns the masses that N(center, scale^2) gives the cells between the monotone points x, with error bounds.

    A narrow cell's mass comes from the density at its middle, right to a few ulps: x[i+1] - x[i] is exact for nearby
    doubles, and the series in the width stops below 1e-16 relative. A wide one's is the difference of the tails on its
    own side, right to a few ulps of the tail. With differences alone the error of a mesh of n points would be n times
    larger, and tell after 10^6 compositions.
    """
    width = jnp.abs(x[1:] - x[:-1]) / scale
    middle = ((x[1:] + x[:-1]) / 2 - center) / scale
    narrow, narrow_error = _narrow_cell(middle, width)
    z = jnp.clip((x - center) / scale, -40.0, 40.0)
    tail = ndtr(-jnp.abs(z))
    # The rounding of z moves the tail by a relative (1 + z^2) u; XLA's erfc was measured within 4.2 (1 + z^2) u for z
    # up to 37. The bound doubles the sum of both.
    error = 12 * UNIT_ROUNDOFF * (1 + z**2) * tail
    negative = z < 0
    same_side = negative[:-1] == negative[1:]
    wide = jnp.where(same_side, jnp.abs(tail[1:] - tail[:-1]), 1.0 - tail[:-1] - tail[1:])
    wide_error = error[1:] + error[:-1] + 2 * UNIT_ROUNDOFF * wide
    is_narrow = width * (1 + jnp.abs(middle)) < 0.1
    return jnp.where(is_narrow, narrow, wide), jnp.where(is_narrow, narrow_error, wide_error)


def _narrow_cell(middle: Array, width: Array) -> tuple[Array, Array]:
    """Returns the normal mass of [middle - width/2, middle + width/2] where width (1 + |middle|) < 0.1.

    phi(m) w (1 + He2(m) w^2/24 + He4(m) w^4/1920 + He6(m) w^6/322560), He the Hermite polynomials; the next term is
    below (w (1 + |m|))^8 / 9 10^7 < 2e-16. The density errs by m^2 u for each rounding of m.
    """
    m = jnp.where(jnp.isfinite(middle), middle, 0.0)
    w = jnp.where(jnp.isfinite(width), width, 0.0)
    m2, w2 = m**2, w**2
    he2, he4, he6 = m2 - 1, (m2 - 6) * m2 + 3, ((m2 - 15) * m2 + 45) * m2 - 15
    series = 1 + w2 * (he2 / 24 + w2 * (he4 / 1920 + w2 * he6 / 322560))
    mass = jnp.exp(-m2 / 2) * (w * series / jnp.sqrt(2 * jnp.pi))
    return mass, UNIT_ROUNDOFF * (24 + 8 * m2) * mass


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SubsampledGaussianPair:
    """The mixture ``(1-q) N(0,s^2) + q N(1,s^2)`` against ``N(0,s^2)`` (removes), or the reverse (adds).

    With r(x) = 1 + q (e^((2x-1)/(2 s^2)) - 1) the loss is log r(x) for x from the mixture, or -log r(x) for x from the
    base. q = 1 is the Gaussian mechanism. ``removes`` is data, not structure, so that both directions run as one batch.
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike
    removes: ArrayLike

    def _fields(self) -> tuple[Array, Array, Array]:
        return as_float64(self.noise_multiplier), as_float64(self.sampling_rate), jnp.asarray(self.removes)

    def is_valid(self) -> Array:
        s, q, _ = self._fields()
        return (s > 0) & (s < jnp.inf) & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, q, removes = self._fields()
        edge = jnp.log1p(-q)
        return jnp.where(removes, edge, -jnp.inf), jnp.where(removes, jnp.inf, -edge)

    def central_loss(self) -> Array:
        s, q, removes = self._fields()
        # The loss at the median of the base, where half of P's bulk lies on either side; of a Gaussian, its own mean.
        center = jnp.log1p(q * jnp.expm1(-0.5 / s**2))
        return jnp.where(q == 1, 0.5 / s**2, jnp.where(removes, center, -center))

    def _threshold(self, log_ratio: Array) -> Array:
        """Returns x with log r(x) = log_ratio; -inf where log_ratio is at most log(1 - q)."""
        s, q, _ = self._fields()
        y = log_ratio
        # r - (1-q) in the form that loses nothing: for y near 0 from expm1, below from exp, above with y pulled out.
        near = jnp.expm1(jnp.clip(y, -1.0, 1.0)) + q
        low = jnp.exp(jnp.minimum(y, 0.0)) - (1 - q)
        excess = jnp.where(y < -0.5, low, near)
        log_excess = jnp.where(
            y > 1.0, y + jnp.log1p(-(1 - q) * jnp.exp(-jnp.maximum(y, 1.0))), jnp.log(jnp.maximum(excess, 0.0))
        )
        log_excess = jnp.where(q == 1, y, log_excess)
        return s**2 * (log_excess - jnp.log(q)) + 0.5

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        s, q, removes = self._fields()
        x = self._threshold(jnp.where(removes, boundaries, -boundaries))
        # Both components as one batch: half the code to compile.
        masses, errors = jax.vmap(_normal_cells, in_axes=(None, 0, None))(x, jnp.array([0.0, 1.0]), s)
        (base, shifted), (base_error, shifted_error) = masses, errors
        mixture = (1 - q) * base + q * shifted
        mixture_error = (1 - q) * base_error + q * shifted_error + 4 * UNIT_ROUNDOFF * mixture
        return CellMasses(
            p=jnp.where(removes, mixture, base),
            q=jnp.where(removes, base, mixture),
            p_error=jnp.where(removes, mixture_error, base_error),
            q_error=jnp.where(removes, base_error, mixture_error),
        )

    def boundary_error(self, largest: Array) -> Array:
        # _threshold errs by at most 6u (|L| + 1) + u/s^2 in L = log_excess - log q (each of its three forms has an
        # excess right to 3u of the larger term), and a loss moves by at most r'/r s^2 <= 1 times that; where |L| is
        # large and negative the factor r'/r falls like e^L. Doubled, and with the rounding of the boundary itself.
        s, q, _ = self._fields()
        return 16 * UNIT_ROUNDOFF * (2 + largest - jnp.log(q) + 1 / s**2)

    def log_tail(self, order: Array, loss: Array) -> Array:
        # log r is convex in u = (2x-1)/(2 s^2) with slope in [0, 1]. Remove: beyond x0 = x(loss), r^a is at most
        # r(x0)^a e^(a (u - u0)) with a = order + 1, whose Gaussian integral is closed. Add: likewise r^-t for x
        # below x0, and also r^-t <= (1-q)^-t. Below the infimum of the loss the tail is everything: no bound is given.
        s, q, removes = self._fields()
        infimum, supremum = self.loss_range()
        x = self._threshold(jnp.where(removes, loss, -loss))
        a = order + 1
        removed = a * loss - a * x / s**2 + a**2 / (2 * s**2) + _log_upper_tail((x - a) / s)
        linear = order * loss + order * x / s**2 + order**2 / (2 * s**2) + _log_upper_tail(-(x + order) / s)
        flat = jnp.where(q == 1, jnp.inf, -order * jnp.log1p(-q) + _log_upper_tail(-x / s))
        bound = jnp.where(removes, removed, jnp.fmin(flat, linear))
        return jnp.where(loss < infimum, jnp.inf, jnp.where(loss >= supremum, -jnp.inf, bound))

    def log_head(self, loss: Array) -> Array:
        s, q, removes = self._fields()
        x = self._threshold(jnp.where(removes, loss, -loss))
        removed = jnp.maximum(jnp.log1p(-q) + _log_upper_tail(-x / s), jnp.log(q) + _log_upper_tail((1 - x) / s))
        return jnp.where(removes, removed, _log_upper_tail(x / s))

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        s, q, removes = self._fields()
        exponent = jnp.where(removes, as_float64(order) + 1, -as_float64(order))
        return log_moment_of_ratio(s, q, exponent, nodes)


def _log_upper_tail(z: Array) -> Array:
    """Returns an upper bound on ``log Phi(-z)``, within 0.13 of it for z >= 0 and within log 2 below.

    Sampford (1953): Phi(-z) < phi(z) 4 / (3 z + sqrt(z^2 + 8)) for z > -1. The margin covers the rounding of the rest.
    """
    above = jnp.maximum(z, 0.0)
    log_mills = jnp.log(4 / (3 * above + jnp.sqrt(above**2 + 8)))
    return jnp.where(z > 0, -0.5 * above**2 * (1 - 1e-15) - 0.5 * jnp.log(2 * jnp.pi) + log_mills + 1e-14, 0.0)
