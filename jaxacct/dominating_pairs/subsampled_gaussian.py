"""A Gaussian mechanism on a Poisson sample, an example added or removed: the pair, and its law for the contour.

*The law* is a trapezoid rule in the noise. With z = x/s standard normal, r = 1 - q + q e^u and u = (z - 1/(2s))/s, the
loss is log r ("remove") or -log r ("add"), and a moment of order t + iw is the integral of the normal density times
r^a, a = t + 1 + iw or -(t + iw). In the strip |Im z| < pi s this is analytic, for r vanishes on its edge only. On the
line Im z = b the argument of r lies between 0 and theta = b/s, and |r| between r(Re z) cos(theta/2) and r(Re z). Two
bounds follow.

*Quadrature.* A trapezoid rule of spacing h errs by at most 2/(e^(2 pi b/h) - 1) times the integral of the modulus over
the lines Im z = +-b (Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1), which
is at most e^(b^2/2 + w theta) times the moment of order t, and for "add" times cos(theta/2)^-t more.

*Decay.* Moved to Im z = b the integral of order t + iw is at most the sum of |r(z + ib)|^a-weights with e^(-w arg r)
and e^(b^2/2): a bound that falls with w, so it holds from w on. b = w times the deviation of the loss is about best; a
linear loss then gives the Gaussian's own e^(-w^2 sigma^2/2).

*Without rare large losses* the integral ends at a place z*, and the law has panels of Gauss-Legendre nodes instead
(:mod:`.panels`, for their error; here the modulus on an ellipse is at most the density at its point nearest to 0 times
e^(y^2/2), y the half-height, and r^(t + 1) at its highest point, where arg r is largest, too). Moved to Im z = b it
has the way back to the real line besides, from z* + ib to z*: on it the density is at most e^(b^2/2) times that at z*,
|r| at most r(z*), and arg r at least share sin(y/s), which is at least y/s times share sinc(b/s): so the integral of
e^(-w arg r) over it is at most s/(w share sinc(b/s)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import arithmetic, roundoff, scaled
from jaxacct.dominating_pairs.gaussian_profile import sampled_delta
from jaxacct.dominating_pairs.law import (
    BEYOND,
    COARSEST,
    FINEST,
    RULE,
    Marked,
    Nodes,
    TrapezoidLaw,
    log_left_out,
    modulus_rounding,
)
from jaxacct.dominating_pairs.normal import log_upper_tail, lower_tail, normal_cells
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.dominating_pairs.panels import DEGREE, HIGHEST, POINTS, WEIGHTS, argument
from jaxacct.dominating_pairs.sampled_moments import log_moment_of_ratio, log_moments
from jaxacct.precision import as_real, is_concrete, log_complement
from jaxacct.pytrees import register_dataclass

PIECES = 24
"""Chords below which the tilted density beyond a loss is put; they leave the bound within a factor of e."""

LEAST_ADD = 0.09
"""For "add" the spacing of the scan is half as much, as high orders cost more there, but not below this, which leaves
room for some of them."""

STEEPEST = 1.5
"""Largest theta of the decay's bound: beyond a right angle the argument of r gains nothing where r is near 1.

Up to there arg(1 - p + p e^(i theta)) >= p sin(theta): with x = p (1 - cos(theta)) and y = p sin(theta) it is the arc
tangent of y/(1-x). At p = 1 that is theta >= sin(theta); tests/saddlepoint/test_laws.py asks for it on a grid.
"""

ANGLES = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0])
"""Values of theta that the quadrature's bound may use."""

SECANTS = -np.log(np.cos(ANGLES / 2))
"""What the line at each costs a negative power of r: log sec(theta/2)."""

WIDE_ANGLES = np.geomspace(0.02, 40.0, 9)
"""For q = 1, where r is an exponential and vanishes nowhere, and a line costs nothing."""

PANELS = RULE // DEGREE
"""Panels of a piece, where the losses that are kept end."""

MOST_PIECES = 32
"""Most pieces of panels: phases to 32 times PANELS times TURN."""

WIDEST = 1.4
"""Largest half-width of the scan's panels, in deviations, for which losses are marked. Speed only."""

HEIGHT = 30.0
"""Nats that a moment's integrand may rise by across one panel of the scan. The bound on its error has it."""

TURN = 13.0
"""Phase at the last frequency across a panel of the second piece and beyond. The bound on its error has it."""

RATIOS_OF_PANELS = np.array([1.7, 2.0, 2.4, 3.0, 4.0, 6.0])
"""Values of rho that the bound may use."""


@register_dataclass
@dataclass(frozen=True)
class SubsampledGaussianPair(DominatingPair):
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
        has_noise = (s > 0) & (s < jnp.inf)
        seen = np.asarray(self.sampling_rate) if is_concrete(self.sampling_rate) else np.zeros(())
        if np.all((seen > 0) & (seen <= 1)):
            return has_noise
        return has_noise & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, q, removes = self._fields()
        edge = log_complement(q)
        return jnp.where(removes, edge, -jnp.inf), jnp.where(removes, jnp.inf, -edge)

    def supremum(self) -> tuple[Array, Array]:
        _, highest = self.loss_range()
        return highest * (1 - 8 * roundoff()), highest * (1 + 8 * roundoff())

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        s, q, removes = self._fields()
        return sampled_delta(1 / s, q, epsilon, removes)

    def central_loss(self) -> Array:
        s, q, removes = self._fields()
        # The loss at the median of the base, where half of P's bulk lies on either side; of a Gaussian, its own mean.
        center = jnp.log1p(q * jnp.expm1(-0.5 / s**2))
        return jnp.where(q == 1, 0.5 / s**2, jnp.where(removes, center, -center))

    def _threshold(self, log_ratio: Array) -> Array:
        """Returns x with log r(x) = log_ratio; -inf where log_ratio is at most log(1 - q)."""
        s, q, _ = self._fields()
        y = log_ratio
        # r - (1-q) in the form that loses nothing, above 0 with e^y pulled out: two terms of one sign.
        decay = -jnp.abs(y)
        power, less = jnp.exp(decay), jnp.expm1(decay)
        excess = jnp.where(y > 0, q * power - less, jnp.where(y < -0.5, power - (1 - q), less + q))
        log_excess = jnp.maximum(y, 0.0) + jnp.log(jnp.maximum(excess, 0.0))
        return s**2 * (jnp.where(q == 1, y, log_excess) - jnp.log(q)) + 0.5

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        s, q, removes = self._fields()
        x = self._threshold(jnp.where(removes, boundaries, -boundaries))
        # Masses and errors of both components, and of their mixture.
        parts = jnp.stack(normal_cells(x[None], jnp.array([[0.0], [1.0]]), s))
        base = parts[:, 0]
        mixture = (1 - q) * base + q * parts[:, 1]
        mixture = mixture + (4 * roundoff()) * jnp.stack([jnp.zeros_like(base[0]), mixture[0]])
        (p, p_error), (q, q_error) = jnp.where(removes, mixture, base), jnp.where(removes, base, mixture)
        return CellMasses(p=p, q=q, p_error=p_error, q_error=q_error)

    def boundary_error(self, largest: Array) -> Array:
        # _threshold errs by at most 9u + 5u |L| + 8u |log q| + u/s^2 in L = log_excess - log q (each of its three forms
        # has an excess right to 9u of the larger term), and a loss moves by at most r'/r s^2 <= 1 times that; where |L|
        # is large and negative the factor r'/r falls like e^L. Doubled, and with the rounding of the boundary itself.
        s, q, _ = self._fields()
        return 16 * roundoff() * (2 + largest - jnp.log(q) + 1 / s**2)

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
        margin = 16 * roundoff() * (1 + a * jnp.abs(loss) + a * jnp.abs(x) / s**2 + (a / s) ** 2 + (x / s) ** 2)
        of_steepest, of_linear, of_flat = log_upper_tail(jnp.stack([x - a, -(x + order), -x]) / s)
        steepest = a * loss - a * x / s**2 + a**2 / (2 * s**2) + of_steepest + margin
        removed = jnp.fmin(steepest, self._tail_by_chords(a, x))
        linear = order * loss + order * x / s**2 + order**2 / (2 * s**2) + of_linear + margin
        level = -order * log_complement(q) * (1 + 16 * roundoff()) + 16 * roundoff() * (1 + (x / s) ** 2)
        flat = jnp.where(q == 1, jnp.inf, level + of_flat)
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
        mass = jnp.minimum(jnp.min(log_upper_tail(jnp.stack([left, -right])), axis=0), filled)
        terms = a * (log_r - slopes * points) + (a * s * slopes) ** 2 / 2 + mass
        # Each part errs by a few units of its own magnitude. A slope as computed is that of some line through the left
        # end: it passes the right one at a distance of some units of log r at both, and integrates exactly. log r errs
        # by units of itself, of log q and, x - 1/2 being rounded, of the slope.
        ends = jnp.abs(log_r) + jnp.concatenate([jnp.abs(log_r[1:]), jnp.zeros(1)]) + slopes * (jnp.abs(points) + 1)
        magnitude = a * (ends + jnp.abs(jnp.log(q)) + 1) + (a * s * slopes) ** 2 + (points / s) ** 2
        return jax.nn.logsumexp(terms + 16 * roundoff() * magnitude) + scaled(1e-14)

    def cumulant(self, order: ArrayLike) -> Array:
        s, q, removes = self._fields()
        return log_moment_of_ratio(s, q, jnp.where(removes, as_real(order) + 1, -as_real(order)))

    def divergence(self, orders: Array) -> Array:
        s, q, _ = self._fields()
        if self._takes_everyone():
            # Mironov (2017), Corollary 3.
            return orders * (1 / jnp.where(self.is_valid(), s, jnp.nan)) ** 2 / 2
        if not (is_concrete(self.removes) and self.removes):
            return super().divergence(orders)
        valid = self.is_valid()
        moments = log_moments(jnp.where(valid, s, 1.0), jnp.where(valid, q, 1.0), orders)
        return jnp.where(valid, moments, jnp.nan) / (orders - 1)

    def _takes_everyone(self) -> bool:
        """Returns whether it can be seen that this is the Gaussian mechanism."""
        return is_concrete(self.sampling_rate) and bool(np.all(np.asarray(self.sampling_rate) == 1))

    def outcosts(self, other: DominatingPair) -> bool:
        """Of removing and adding the same example the former: Mironov, Talwar and Zhang (2019), Theorem 5."""
        if not isinstance(other, SubsampledGaussianPair) or not is_concrete(self.removes, other.removes):
            return False
        same = self.noise_multiplier is other.noise_multiplier and self.sampling_rate is other.sampling_rate
        return same and bool(self.removes) and not bool(other.removes)

    def law(self) -> LawOfSubsampledGaussian:
        return LawOfSubsampledGaussian(self)


@dataclass(frozen=True)
class LawOfSubsampledGaussian(TrapezoidLaw):
    """See the module."""

    pair: SubsampledGaussianPair
    left_out: Marked | None = None

    most_pieces = 12
    is_close = True
    has_marks = True

    def kept(self, marked: Marked) -> LawOfSubsampledGaussian:
        return replace(self, left_out=marked)

    def mark_from(self, large: Array, small: Array, log_mass: Array) -> Array:
        # Losses of the Gaussian mechanism itself are never rare.
        s, q, removes = self.pair._fields()
        z = self._at_ratio(jnp.where(removes, large, -small))
        z = jnp.where(z > 0, z, jnp.inf)
        # About where no more of P lies beyond: of the base, and for "remove" of q times the law around 1/s.
        logs = jnp.stack([log_mass, jnp.where(removes, log_mass - jnp.log(q), 0.0)])
        a = 2 * jnp.maximum(-logs - 0.92, 0.5)
        roots = jnp.sqrt(a - jnp.log(jnp.maximum(a, 1.0)))
        place = jnp.minimum(z, jnp.maximum(roots[0], roots[1] + jnp.where(removes, 1 / s, 0.0)))
        half = (place + arithmetic().reach) / (2 * PANELS)
        fits = half < WIDEST * jnp.minimum(2 * s, 1.0)
        return jnp.where((q < 1) & fits, place, jnp.inf)

    def marked(self, place: Array) -> Marked:
        s, q, removes = self.pair._fields()
        there = jnp.isfinite(place)
        z = jnp.where(there, place, 1.0)
        v = jnp.stack([-z, 1 / s - z])
        tails = lower_tail(-jnp.abs(v))
        base, shifted = jnp.where(there, jnp.where(v < 0, tails, 1 - tails), 0.0)
        mixture = (1 - q) * base + q * shifted
        # A tail errs by 8 (1 + v^2) units, and by |v| + 1 times what v does, which is two of 1/s and the place.
        most = jnp.max(jnp.abs(v))
        units = 24 + 8 * most**2 + 2 * (most + 1) * (1 / s + z)
        log_r, _ = self._curve(z)
        # By the logarithm of a sum it is right to some units of 1, of itself and of u.
        rounding = 16 * roundoff() * (1 + jnp.abs(log_r) + (z + 0.5 / s) / s)
        p, of_q = jnp.where(removes, mixture, base), jnp.where(removes, base, mixture)
        loss = jnp.where(removes, log_r, -log_r) - jnp.where(removes, rounding, -rounding)
        return Marked(place, p, of_q, jnp.where(there, units, 0.0) * roundoff(), loss, jnp.where(removes, 1.0, 0.0))

    def _end(self) -> tuple[Array, Array]:
        """Returns where the losses end that are kept, and whether they end."""
        assert self.left_out is not None
        there = jnp.isfinite(self.left_out.place)
        return jnp.where(there, self.left_out.place, 1.0), there

    def _logs(self) -> tuple[Array, Array]:
        """Returns log(1 - q) and log(q/(1 - q))."""
        q = self.pair._fields()[1]
        base = jnp.log1p(-jnp.minimum(q, 1 - roundoff()))
        return base, jnp.log(q) - base

    def _log_odds(self, z: Array) -> Array:
        """Returns the log of q e^u over 1 - q."""
        s = self.pair._fields()[0]
        return self._logs()[1] + (z - 0.5 / s) / s

    def _curve(self, z: Array) -> tuple[Array, Array]:
        """Returns log r, right to some units of 1 and of u, and the share of q e^u in r; q < 1.

        For bounds, and where panels end: there e^u is far from where it overflows. The loss rises by share/s in z.
        """
        odds = jnp.exp(self._log_odds(z))
        return self._logs()[0] + jnp.log1p(odds), odds / (1 + odds)

    def _at_ratio(self, log_r: Array) -> Array:
        """Returns about where r is so large."""
        s, q, _ = self.pair._fields()
        return s * jnp.log(jnp.maximum(jnp.expm1(log_r) / q + 1, 0.0)) + 0.5 / s

    def _room(self) -> tuple[Array, Array]:
        """Returns the length of the scan beyond the reach of two normal laws, and how far each order moves the law.

        "remove": a tilted law lies between normal ones around 0 and (order + 1)/s. "add": its density, log-concave, is
        steepest by order/s times the share of q e^u in r, which is at most q where z < 0.
        """
        s, q, removes = self.pair._fields()
        spacing = jnp.minimum(FINEST * s, COARSEST)
        finer = jnp.minimum(jnp.maximum(spacing / 2, LEAST_ADD), spacing)
        spacing = jnp.where(q == 1, COARSEST, jnp.where(removes, spacing, finer))
        return jnp.maximum(RULE * spacing - 2 * arithmetic().reach, 0.0), jnp.where(removes, 1.0, q) / s

    def largest_order(self) -> Array:
        room, each = self._room()
        whole = jnp.maximum(room / each - 1, 0.0)
        if self.left_out is None:
            return whole
        removes = self.pair._fields()[2]
        place, there = self._end()
        # So large that the panels at the end have e^HEIGHT times as much at one end as at the other; with the order of
        # the other direction moments fall towards the end.
        width = (place + arithmetic().reach) / PANELS
        last, before = self._curve(jnp.stack([place, place - width]))[0]
        return jnp.where(there & removes, HEIGHT / (last - before), whole)

    def scan(self) -> Nodes:
        _, _, removes = self.pair._fields()
        reach, (far, _) = arithmetic().reach, self._room()
        low, step = jnp.where(removes, -reach, -reach - far), (2 * reach + far) / RULE
        return self._nodes(low, step, self._even(self._end()[0]) if self.left_out is not None else None)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        found = super().pieces(order, w, window)
        if self.left_out is None:
            return found
        place, there = self._end()
        turns = w * jnp.log1p(jnp.exp(self._log_odds(place))) / TURN
        others = jnp.ceil(jnp.maximum(turns - 1, 0.0) / PANELS)
        return jnp.where(there, jnp.clip(1 + others, 1, MOST_PIECES).astype(jnp.int32), found)

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        edges = None if self.left_out is None else self._edges(index, pieces)
        return self._piece(window, index, pieces, edges)

    def piece_and_error(
        self, order: Array, w: Array, window: tuple[Array, Array], index: Array, pieces: Array
    ) -> tuple[Nodes, Array]:
        if self.left_out is None:
            return super().piece_and_error(order, w, window, index, pieces)
        edges = self._edges(index, pieces)
        missed = jnp.where(self._end()[1], self._log_panel_error(order, w, edges), -jnp.inf)
        return self._piece(window, index, pieces, edges), missed

    def _piece(
        self, window: tuple[Array, Array], index: Array | int, pieces: Array | int, edges: Array | None
    ) -> Nodes:
        step = self.step(window, pieces)
        return self._nodes(window[0] + step * RULE * index, step, edges)

    def nodes(self, low: Array, step: Array) -> Nodes:
        return replace(self, left_out=None)._nodes(low, step, None)

    def _nodes(self, low: Array, step: Array, edges: Array | None) -> Nodes:
        """Returns nodes of the trapezoid rule; where the losses end, those of panels."""
        s, _, removes = self.pair._fields()
        infinite = missing = jnp.zeros_like(s)
        z, weight = low + step * jnp.asarray(np.arange(RULE) + 0.5, s.dtype), step
        if self.left_out is not None and edges is not None:
            infinite, missing = self.left_out.p, self.left_out.q
            _, there = self._end()
            starts, widths = (jnp.repeat(part, DEGREE) for part in (edges[:-1], jnp.diff(edges)))
            points, weights = (jnp.asarray(np.tile(each, PANELS), s.dtype) for each in (POINTS, WEIGHTS))
            z, weight = jnp.where(there, starts + widths * points, z), jnp.where(there, widths * weights, weight)
        log_r = self._log_ratio(z)
        base = jnp.log(weight) - 0.5 * z**2 - 0.5 * math.log(2 * math.pi)
        mixture = base + log_r
        return Nodes(
            losses=jnp.where(removes, log_r, -log_r),
            log_p=jnp.where(removes, mixture, base),
            log_q=jnp.where(removes, base, mixture),
            infinite=infinite,
            missing=missing,
            places=z,
        )

    def _log_ratio(self, z: Array) -> Array:
        """Returns log r, right to LOG_UNITS of itself; inf where it overflows.

        r is formed as 1 + (r - 1) where it is near 1, with the rounding of that sum put back after the logarithm (what
        it is made of is right to units of itself), and as (1 - q) + q e^u below 1/2, where that sum has lost digits
        when q is near 1.
        """
        (s, q, _), limit = self.pair._fields(), arithmetic().largest_exponent
        u = (z - 0.5 / s) / s
        # q e^u, by its exponent where e^u alone would overflow.
        growth = u + jnp.log(q)
        is_vast = u > limit
        grown = jnp.where(is_vast, 1.0, q) * jnp.exp(jnp.where(is_vast, jnp.minimum(growth, 1.1 * limit), u))
        more = jnp.where(jnp.abs(u) < 0.5, q * jnp.expm1(jnp.clip(u, -0.5, 0.5)), grown - q)
        is_small = more < -0.5
        r = jnp.where(is_small, (1 - q) + grown, 1 + more)
        log_r = jnp.log(r) + jnp.where(is_small, 0.0, (more - (r - 1)) / r)
        return jnp.where(growth > limit, growth, log_r)

    def _even(self, place: Array) -> Array:
        """Returns the ends (PANELS + 1,) of panels that are evenly spaced up to a place."""
        share = jnp.asarray(np.arange(PANELS + 1) / PANELS, place.dtype)
        return place * share - arithmetic().reach * (1 - share)

    def _edges(self, index: Array | int, pieces: Array | int) -> Array:
        """Returns the ends (PANELS + 1,) of one piece's panels.

        The first piece's are evenly spaced in z, up to where the others begin; theirs are in the loss.
        """
        s, place, low = self.pair._fields()[0], self._end()[0], -arithmetic().reach
        if isinstance(pieces, int) and pieces == 1:
            return self._even(place)
        others = jnp.asarray(PANELS * (pieces - 1), s.dtype)
        width = (place - low) / PANELS
        # By log(r/(1 - q)) = log(1 + e^x), x the log of q e^u over 1 - q, linear in z.
        logit, last = self._logs()[1], self._log_odds(place)
        top = jnp.log1p(jnp.exp(last))
        # Where the loss begins to rise more in a panel of that width than in one of the others.
        share = jnp.minimum(top * s / (others * width), 0.999)
        first = jnp.clip(jnp.log(share / (1 - share)), self._log_odds(low + width), last)
        bottom = jnp.log1p(jnp.exp(first))
        at = (PANELS * (index - 1) + jnp.arange(PANELS + 1, dtype=s.dtype)) / others
        odds = jnp.log(jnp.expm1(bottom + (top - bottom) * at))
        start, graded = (s * (x - logit) + 0.5 / s for x in (first, odds))
        start = jnp.where(others > 0, jnp.minimum(start, place), place)
        graded = jnp.where(at < 1, jnp.clip(graded, start, place), place)
        return jnp.where(index == 0, self._even(start), jnp.where(at > 0, graded, start))

    def log_pieces_error(self, order: Array, w: Array, window: tuple[Array, Array], pieces: Array) -> Array:
        whole = self.log_quadrature_error(order, w, self.step(window, pieces))
        return whole if self.left_out is None else jnp.where(self._end()[1], log_left_out(), whole)

    def _log_panel_error(self, order: Array, w: Array, edges: Array) -> Array:
        """Returns a bound on the log of what panels miss of a moment of order t + iw', |w'| <= w; see the module."""
        s, _, removes = self.pair._fields()
        half, rho = jnp.diff(edges)[:, None] / 2, RATIOS_OF_PANELS[None]
        # 64/15 over the root of 2 pi, and what the ratio gains.
        gain = np.log(1.71) - (2 * DEGREE - 2) * np.log(rho) - np.log1p(-(rho**-2))
        wider, higher, gain = (jnp.asarray(v, s.dtype) for v in ((rho + 1 / rho) / 2 - 1, (rho - 1 / rho) / 2, gain))
        beyond, height = half * wider, half * higher
        ends = jnp.stack([edges[:-1, None] - beyond, edges[1:, None] + beyond])
        (low, high), (logs, shares) = ends, self._curve(ends)
        theta = height / s
        nearest = jnp.maximum(jnp.maximum(low, -high), 0.0)
        turn = argument(shares[1], jnp.minimum(theta, HIGHEST))
        # Up to an argument of pi/2 |r| is least where Re z is. Logarithms of r are absolutely right.
        power = jnp.where(removes, (order + 1) * logs[1], -order * (logs[0] + _log_shrunk(shares[0], theta))) + scaled(
            1e-9
        )
        modulus = 0.5 * (height**2 - nearest**2) + power + w * turn
        fits = theta < jnp.where(removes, HIGHEST, jnp.pi / 2)
        errors = jnp.where(fits, jnp.log(half) + modulus + gain, jnp.inf)
        # An empty panel misses nothing.
        return jnp.log(jnp.sum(jnp.where(half[:, 0] > 0, jnp.exp(jnp.min(errors, axis=1)), 0.0)))

    def log_moment_error(self, order: Array, step: Array, value: Array) -> Array:
        whole = super().log_moment_error(order, step, value)
        if self.left_out is None:
            return whole
        place, there = self._end()
        # Over what the nodes come to, which is off by that much: by less than half of itself, or it says nothing.
        missed = self._log_panel_error(order, jnp.zeros_like(order), self._even(place)) - value
        missed = jnp.where(missed < -1.0, missed + 0.7, jnp.inf)
        return jnp.where(there, jnp.log(jnp.exp(missed) + math.exp(log_left_out())), whole)

    def widest_step(self, order: Array, w: Array) -> Array:
        b, cost = self._costs(order, w)
        return jnp.max(b / (cost + (arithmetic().cut + BEYOND))) * (2 * jnp.pi)

    def _costs(self, order: Array, w: Array) -> tuple[Array, Array]:
        """Returns heights of lines in z, and the log of what the integral of the modulus on each is to a moment."""
        s, q, removes = self.pair._fields()
        wide, angles, secants = (jnp.asarray(each, s.dtype) for each in (WIDE_ANGLES, ANGLES, SECANTS))
        theta = jnp.where(q == 1, wide, angles)
        b, of_powers = theta * s, jnp.where(removes | (q == 1), 0.0, order)
        return b, 0.5 * b**2 + w * theta + of_powers * secants

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        b, cost = self._costs(order, w)
        return jnp.log(2 * jnp.exp(jnp.min(cost - b * (2 * jnp.pi / step))) + math.exp(log_left_out()))

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, q, removes = self.pair._fields()
        logs = nodes.log_p + order * nodes.losses
        log_total = jax.nn.logsumexp(logs)
        weights = jnp.exp(logs - log_total)
        log_r = jnp.where(removes, nodes.losses, -nodes.losses)
        share = jnp.exp(jnp.minimum((nodes.places - 0.5 / s) / s + jnp.log(q) - log_r, 0.0))
        # The loss rises by share/s in z; its mean square counts the bulk, and not the rare jumps, as a deviation would.
        mode = jnp.sum(jnp.where(weights == jnp.max(weights), share, 0.0))
        slopes = jnp.stack([jnp.sqrt(jnp.sum(weights * share**2)), mode])
        b = w * slopes / s
        b = jnp.where(q == 1, b, jnp.minimum(b, STEEPEST * s))
        theta = (b / s)[:, None]
        # The argument of r/|r(Re z)| = 1 - share + share e^(i theta), and the logarithm of its modulus, by bounds.
        angle = jnp.where(q == 1, theta, share[None] * jnp.sin(theta))
        shrink = jnp.where(q == 1, 0.0, 4 * (share * (1 - share))[None] * jnp.sin(theta / 2) ** 2)
        modulus = 0.5 * jnp.where(removes, -(order + 1) * shrink, order * shrink / (1 - shrink))
        sums = jnp.sum(weights[None] * jnp.exp(modulus - w * angle), axis=1)
        if self.left_out is not None:
            # The tilted density at the end, and for "add" the most that r^-order may be larger beside it.
            place, there = self._end()
            log_last, last = self._curve(place)
            theta = theta[:, 0]
            power = jnp.where(removes, (order + 1) * log_last, -order * (log_last + _log_shrunk(last, theta)))
            log_end = power + scaled(1e-9) - 0.5 * (place**2 + math.log(2 * math.pi)) - log_total
            back = jnp.exp(log_end) * s / (w * last * jnp.sinc(theta / jnp.pi))
            sums = sums + jnp.where(there, back, 0.0)
        found = 0.5 * b**2 + jnp.log(sums) + modulus_rounding()
        return jnp.min(jnp.where(found < 0, found, 0.0))


def _log_shrunk(share: Array, theta: Array) -> Array:
    """Returns log |1 - share + share e^(i theta)|."""
    return 0.5 * jnp.log1p(-4 * share * (1 - share) * jnp.sin(theta / 2) ** 2)
