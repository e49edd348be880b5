"""The dominating pair of a Gaussian mechanism on a Poisson sample, for adding and for removing an example."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.cumulants import QUADRATURE_NODES, log_moment_of_ratio
from jaxacct.dominating_pairs.gaussian_profile import reversed_delta, sampled_delta
from jaxacct.dominating_pairs.normal import log_upper_tail, normal_cells
from jaxacct.dominating_pairs.pair import CellMasses
from jaxacct.precision import UNIT_ROUNDOFF, as_real, log_complement

PIECES = 24
"""Chords below which the tilted density beyond a loss is put; they leave the bound within a factor of e."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SubsampledGaussianPair:
    """The mixture ``(1-q) N(0,s^2) + q N(1,s^2)`` against ``N(0,s^2)`` (removes), or the reverse (adds).

    With r(x) = 1 + q (e^((2x-1)/(2 s^2)) - 1) the loss is log r(x) for x from the mixture, or -log r(x) for x from the
    base. q = 1 is the Gaussian mechanism.

    Attributes:
        noise_multiplier (): s, the standard deviation of the noise over the clipping norm.
        sampling_rate (): q, in (0, 1].
        removes (): whether P is the mixture; data, not structure, so that both directions run as one batch.

    >>> pair = SubsampledGaussianPair(noise_multiplier=1.0, sampling_rate=0.5, removes=True)
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])
    [-0.6931, inf]
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike
    removes: ArrayLike

    def _fields(self) -> tuple[Array, Array, Array]:
        return as_real(self.noise_multiplier), as_real(self.sampling_rate), jnp.asarray(self.removes)

    def is_valid(self) -> Array:
        s, q, _ = self._fields()
        return (s > 0) & (s < jnp.inf) & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, q, removes = self._fields()
        edge = log_complement(q)
        return jnp.where(removes, edge, -jnp.inf), jnp.where(removes, jnp.inf, -edge)

    def supremum(self) -> tuple[Array, Array]:
        _, highest = self.loss_range()
        return highest * (1 - 8 * UNIT_ROUNDOFF), highest * (1 + 8 * UNIT_ROUNDOFF)

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        s, q, removes = self._fields()
        ahead, back = sampled_delta(1 / s, q, epsilon), reversed_delta(1 / s, q, epsilon)
        return jnp.where(removes, ahead[0], back[0]), jnp.where(removes, ahead[1], back[1])

    def central_loss(self) -> Array:
        s, q, removes = self._fields()
        # The loss at the median of the base, where half of P's bulk lies on either side; of a Gaussian, its own mean.
        center = jnp.log1p(q * jnp.expm1(-0.5 / s**2))
        return jnp.where(q == 1, 0.5 / s**2, jnp.where(removes, center, -center))

    def infinite_mass(self) -> Array:
        return jnp.zeros_like(self._fields()[0])

    def infinite_mass_error(self) -> Array:
        return self.infinite_mass()

    def anchors(self) -> tuple[Array, Array]:
        free = jnp.full_like(self._fields()[0], jnp.nan)
        return free, free

    def _threshold(self, log_ratio: Array) -> Array:
        """Returns x with log r(x) = log_ratio; -inf where log_ratio is at most log(1 - q)."""
        s, q, _ = self._fields()
        y = log_ratio
        # r - (1-q) in the form that loses nothing: for y near 0 from expm1, below from exp, above with y pulled out.
        near = jnp.expm1(jnp.clip(y, -1.0, 1.0)) + q
        low = jnp.exp(jnp.minimum(y, 0.0)) - (1 - q)
        excess = jnp.where(y < -0.5, low, near)
        log_excess = jnp.where(
            y > 1.0, y + jnp.log(1 - (1 - q) * jnp.exp(-jnp.maximum(y, 1.0))), jnp.log(jnp.maximum(excess, 0.0))
        )
        log_excess = jnp.where(q == 1, y, log_excess)
        return s**2 * (log_excess - jnp.log(q)) + 0.5

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        s, q, removes = self._fields()
        x = self._threshold(jnp.where(removes, boundaries, -boundaries))
        # Both components in a loop: half the code to compile.
        masses, errors = jax.lax.map(lambda center: normal_cells(x, center, s), jnp.array([0.0, 1.0]))
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
        # log r is convex in u = (2x-1)/(2 s^2) with slope in [0, 1]. Remove: beyond x0, whose loss is at most ``loss``,
        # r^a is at most r(x0)^a e^(a (u - u0)) with a = order + 1, whose Gaussian integral is closed. Add: likewise
        # r^-t for x below x0, and also r^-t <= (1-q)^-t. Below the infimum of the loss the tail is everything: no bound
        # is given. x0 is that of a loss lowered by the error of an edge, so that its own is at most ``loss``, and none
        # of the tail's lies on its other side.
        s, q, removes = self._fields()
        infimum, supremum = self.loss_range()
        lowered = loss - self.boundary_error(jnp.abs(loss))
        x = self._threshold(jnp.where(removes, lowered, -lowered))
        a = order + 1
        # A part errs by 4u of itself; (x - a)/s by 3u of (|x| + a)/s, which a tail multiplies by that again.
        margin = 16 * UNIT_ROUNDOFF * (1 + a * jnp.abs(loss) + a * jnp.abs(x) / s**2 + (a / s) ** 2 + (x / s) ** 2)
        steepest = a * loss - a * x / s**2 + a**2 / (2 * s**2) + log_upper_tail((x - a) / s) + margin
        removed = jnp.fmin(steepest, self._tail_by_chords(a, x))
        linear = order * loss + order * x / s**2 + order**2 / (2 * s**2) + log_upper_tail(-(x + order) / s) + margin
        level = -order * log_complement(q) * (1 + 16 * UNIT_ROUNDOFF) + 16 * UNIT_ROUNDOFF * (1 + (x / s) ** 2)
        flat = jnp.where(q == 1, jnp.inf, level + log_upper_tail(-x / s))
        bound = jnp.where(removes, removed, jnp.fmin(flat, linear))
        return jnp.where(loss < infimum, jnp.inf, jnp.where(loss >= supremum, -jnp.inf, bound))

    def _tail_by_chords(self, a: Array, x: Array) -> Array:
        """Returns an upper bound on the log of the integral of r^a over the base beyond ``x``; nan for x = -inf.

        Where the loss is small its slope is far below the steepest, by which the bound may be e^28 too large. Between
        two points the convex log r lies below its chord, whose exponential has a closed integral; beyond the last
        point, which lies where even e^(a u) falls off, the steepest slope does.
        """
        s, q, _ = self._fields()
        near, far = jnp.minimum(s, s**2) / 8, jnp.maximum(a - x, 0.0) + 8 * s
        distances = near * (far / near) ** jnp.linspace(0.0, 1.0, PIECES)
        points = x + jnp.concatenate([jnp.zeros(1), distances])
        log_r = jnp.logaddexp(log_complement(q), jnp.log(q) + (points - 0.5) / s**2)
        slopes = jnp.concatenate([jnp.diff(log_r) / jnp.diff(points), (1 / s**2)[None]])
        # The tilted normal's mass between the two ends: below that on either side, and width times greatest density.
        left = points / s - a * s * slopes
        right = jnp.concatenate([points[1:] / s, jnp.full(1, jnp.inf)]) - a * s * slopes
        nearest = jnp.maximum(jnp.maximum(left, -right), 0.0)
        widths = jnp.concatenate([jnp.diff(points) / s, jnp.full(1, jnp.inf)])  # right - left would cancel
        filled = jnp.log(widths) - 0.5 * nearest**2 - 0.5 * jnp.log(2 * jnp.pi)
        mass = jnp.minimum(jnp.minimum(log_upper_tail(left), log_upper_tail(-right)), filled)
        terms = a * (log_r - slopes * points) + (a * s * slopes) ** 2 / 2 + mass
        # Each part errs by a few units of its own magnitude. A slope as computed is that of some line through the left
        # end: it passes the right one at a distance of some units of log r at both, and integrates exactly. log r errs
        # by units of itself, of log q and, x - 1/2 being rounded, of the slope.
        ends = jnp.abs(log_r) + jnp.concatenate([jnp.abs(log_r[1:]), jnp.zeros(1)]) + slopes * (jnp.abs(points) + 1)
        magnitude = a * (ends + jnp.abs(jnp.log(q)) + 1) + (a * s * slopes) ** 2 + (points / s) ** 2
        return jax.nn.logsumexp(terms + 16 * UNIT_ROUNDOFF * magnitude) + 1e-14

    def log_head(self, loss: Array) -> Array:
        s, q, removes = self._fields()
        x = self._threshold(jnp.where(removes, loss, -loss))
        removed = jnp.maximum(log_complement(q) + log_upper_tail(-x / s), jnp.log(q) + log_upper_tail((1 - x) / s))
        return jnp.where(removes, removed, log_upper_tail(x / s))

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        s, q, removes = self._fields()
        exponent = jnp.where(removes, as_real(order) + 1, -as_real(order))
        return log_moment_of_ratio(s, q, exponent, nodes)
