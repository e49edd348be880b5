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

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import arithmetic, roundoff, scaled
from jaxacct.dominating_pairs.gaussian_profile import reversed_delta, sampled_delta
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
    tilted,
)
from jaxacct.dominating_pairs.normal import log_upper_tail, lower_tail, normal_cells
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair, OrderKinds
from jaxacct.dominating_pairs.panels import DEGREE, HIGHEST, LOG_WEIGHTS, POINTS, argument
from jaxacct.dominating_pairs.sampled_moments import log_moment_of_ratio, log_moments, log_ratio
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

WIDE_ANGLES = np.concatenate([ANGLES, [4.5, 7.0, 11.0, 17.0, 26.0, 40.0]])
"""For q = 1, where r is an exponential and vanishes nowhere."""


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
        return (s > 0) & (s < jnp.inf) & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, q, removes = self._fields()
        edge = log_complement(q)
        return jnp.where(removes, edge, -jnp.inf), jnp.where(removes, jnp.inf, -edge)

    def supremum(self) -> tuple[Array, Array]:
        _, highest = self.loss_range()
        return highest * (1 - 8 * roundoff()), highest * (1 + 8 * roundoff())

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        s, q, removes = self._fields()
        ahead, back = sampled_delta(1 / s, q, epsilon), reversed_delta(1 / s, q, epsilon)
        return jnp.where(removes, ahead[0], back[0]), jnp.where(removes, ahead[1], back[1])

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
        mixture_error = (1 - q) * base_error + q * shifted_error + 4 * roundoff() * mixture
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

    def divergence(self, orders: Array, kinds: OrderKinds) -> Array:
        s, q, _ = self._fields()
        if self._takes_everyone():
            # Mironov (2017), Corollary 3.
            return orders * (1 / jnp.where(self.is_valid(), s, jnp.nan)) ** 2 / 2
        if kinds == OrderKinds() or not (is_concrete(self.removes) and self.removes):
            return super().divergence(orders, kinds)
        valid = self.is_valid() & (orders > 1)
        s, q = (jnp.where(self.is_valid(), value, 1.0) for value in jnp.broadcast_arrays(s, q))
        moments = log_moments(s, q, jnp.where(orders > 1, orders, 2.0), kinds)
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
        of_shifted = jnp.where(removes, log_mass - jnp.log(q), 0.0)
        far = _beyond(jnp.stack([log_mass, of_shifted]), jnp.stack([jnp.zeros_like(s), jnp.where(removes, 1 / s, 0.0)]))
        place = jnp.minimum(z, far)
        half = (place + arithmetic().reach) / (2 * PANELS)
        fits = half < WIDEST * jnp.minimum(2 * s, 1.0)
        return jnp.where((q < 1) & fits, place, jnp.inf)

    def marked(self, place: Array) -> Marked:
        s, q, removes = self.pair._fields()
        there = jnp.isfinite(place)
        z = jnp.where(there, place, 1.0)
        v = jnp.stack([-z, 1 / s - z])
        tails = lower_tail(-jnp.abs(v))
        base, shifted = jnp.where(v < 0, tails, 1 - tails)
        mixture = (1 - q) * base + q * shifted
        # A tail errs by 8 (1 + v^2) units, and by |v| + 1 times what v does, which is two of 1/s and the place.
        units = 16 + 8 * (1 + jnp.max(v**2)) + 2 * (jnp.max(jnp.abs(v)) + 1) * (1 / s + z)
        mixture, base, units = (jnp.where(there, mass, 0.0) for mass in (mixture, base, units))
        log_r = self._log_ratio(z)
        # By the logarithm of a sum it is right to some units of 1, of itself and of u.
        sign = jnp.where(removes, 1.0, -1.0)
        loss = sign * log_r - 16 * sign * roundoff() * (1 + jnp.abs(log_r) + (z + 0.5 / s) / s)
        p, of_q = jnp.where(removes, mixture, base), jnp.where(removes, base, mixture)
        return Marked(place, p, of_q, units * roundoff(), loss, removes)

    def _end(self) -> tuple[Array, Array]:
        """Returns where the losses end that are kept, and whether they end."""
        assert self.left_out is not None
        there = jnp.isfinite(self.left_out.place)
        return jnp.where(there, self.left_out.place, 1.0), there

    def _log_ratio(self, z: Array) -> Array:
        """Returns log r, right to some units of 1 and of u: for bounds, and where panels end; q < 1."""
        base, logit = self._logs()
        x = logit + (z - 0.5 / self.pair._fields()[0]) / self.pair._fields()[0]
        return base + jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))

    def _share(self, z: Array) -> Array:
        """Returns the share of q e^u in r: the loss rises by share/s in z."""
        s = self.pair._fields()[0]
        return jax.nn.sigmoid(self._logs()[1] + (z - 0.5 / s) / s)

    def _at_ratio(self, log_r: Array) -> Array:
        """Returns about where r is so large."""
        s, q, _ = self.pair._fields()
        return s * (jnp.log(jnp.maximum(jnp.expm1(log_r) + q, 0.0)) - jnp.log(q)) + 0.5 / s

    def _logs(self) -> tuple[Array, Array]:
        """Returns log(1 - q) and log(q/(1 - q))."""
        q = self.pair._fields()[1]
        base = jnp.log1p(-jnp.minimum(q, 1 - roundoff()))
        return base, jnp.log(q) - base

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
        height = self._log_ratio(place) - self._log_ratio(place - (place + arithmetic().reach) / PANELS)
        return jnp.where(there & removes, HEIGHT / height, whole)

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
        turns = w * (self._log_ratio(place) - self._logs()[0]) / TURN
        others = jnp.ceil(jnp.maximum(turns - 1, 0.0) / PANELS)
        return jnp.where(there, jnp.clip(1 + others, 1, MOST_PIECES).astype(jnp.int32), found)

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        step = self.step(window, pieces)
        edges = None if self.left_out is None else self._edges(index, pieces)
        return self._nodes(window[0] + step * RULE * index, step, edges)

    def piece_and_error(
        self, order: Array, w: Array, window: tuple[Array, Array], index: Array, pieces: Array
    ) -> tuple[Nodes, Array]:
        if self.left_out is None:
            return super().piece_and_error(order, w, window, index, pieces)
        step, edges = self.step(window, pieces), self._edges(index, pieces)
        nodes = self._nodes(window[0] + step * RULE * index, step, edges)
        return nodes, jnp.where(self._end()[1], self._log_panel_error(order, w, edges), -jnp.inf)

    def nodes(self, low: Array, step: Array) -> Nodes:
        return replace(self, left_out=None)._nodes(low, step, None)

    def _nodes(self, low: Array, step: Array, edges: Array | None) -> Nodes:
        """Returns nodes of the trapezoid rule; where the losses end, those of panels."""
        s, q, removes = self.pair._fields()
        infinite = missing = jnp.zeros_like(s)
        z, log_weight = low + step * (jnp.arange(RULE) + 0.5).astype(s.dtype), jnp.log(step)
        if self.left_out is not None and edges is not None:
            infinite, missing = self.left_out.p, self.left_out.q
            _, there = self._end()
            width = jnp.diff(edges)
            panels = (edges[:-1, None] + width[:, None] * jnp.asarray(POINTS)[None]).reshape(-1)
            log_weights = (jnp.log(width)[:, None] + jnp.asarray(LOG_WEIGHTS)[None]).reshape(-1)
            z, log_weight = jnp.where(there, panels, z), jnp.where(there, log_weights, log_weight)
        log_r = log_ratio(s, q, z)[0]
        base = -0.5 * z**2 + log_weight - 0.5 * jnp.log(2 * jnp.pi).astype(s.dtype)
        mixture = base + log_r
        return Nodes(
            losses=jnp.where(removes, log_r, -log_r),
            log_p=jnp.where(removes, mixture, base),
            log_q=jnp.where(removes, base, mixture),
            infinite=infinite,
            missing=missing,
            places=z,
        )

    def _even(self, place: Array) -> Array:
        """Returns the ends (PANELS + 1,) of panels that are evenly spaced up to a place."""
        low, j = -arithmetic().reach, jnp.arange(PANELS + 1) / PANELS
        return jnp.where(j == 1, place, low + (place - low) * j)

    def _edges(self, index: Array | int, pieces: Array | int) -> Array:
        """Returns the ends (PANELS + 1,) of one piece's panels.

        The first piece's are evenly spaced in z, up to where the others begin; theirs are in the loss.
        """
        s, place, low = self.pair._fields()[0], self._end()[0], -arithmetic().reach
        others = jnp.asarray(PANELS * (pieces - 1), s.dtype)
        width = (place - low) / PANELS
        (base, logit), top = self._logs(), self._log_ratio(place)
        # Where the loss begins to rise more in a panel of that width than in one of the others.
        share = jnp.minimum((top - base) * s / (others * width), 0.999)
        rises = s * (jnp.log(share) - jnp.log1p(-share) - logit) + 0.5 / s
        first = jnp.where(others > 0, jnp.clip(rises, low + width, place), place)
        bottom = self._log_ratio(first)
        at = (PANELS * (index - 1) + jnp.arange(PANELS + 1)) / jnp.maximum(others, 1.0)
        graded = jnp.clip(self._at_ratio(bottom + (top - bottom) * at), first, place)
        graded = jnp.where(at <= 0, first, jnp.where(at >= 1, place, graded))
        return jnp.where(index == 0, self._even(first), graded)

    def log_pieces_error(self, order: Array, w: Array, window: tuple[Array, Array], pieces: Array) -> Array:
        whole = self._log_missed(order, w, self.step(window, pieces))
        return whole if self.left_out is None else jnp.where(self._end()[1], log_left_out(), whole)

    def _log_panel_error(self, order: Array, w: Array, edges: Array) -> Array:
        """Returns a bound on the log of what panels miss of a moment of order t + iw', |w'| <= w; see the module."""
        s, _, removes = self.pair._fields()
        half, rho = jnp.diff(edges)[:, None] / 2, jnp.asarray(RATIOS_OF_PANELS)[None]
        beyond, height = half * ((rho + 1 / rho) / 2 - 1), half * (rho - 1 / rho) / 2
        low, high = edges[:-1, None] - beyond, edges[1:, None] + beyond
        theta = height / s
        nearest = jnp.maximum(jnp.maximum(low, -high), 0.0)
        turn = argument(self._share(high), jnp.minimum(theta, HIGHEST))
        # Up to an argument of pi/2 |r| is least where Re z is. Logarithms of r are absolutely right.
        at = self._log_ratio(jnp.where(removes, high, low))
        shrunk = jnp.where(removes, 0.0, _log_shrunk(self._share(low), theta))
        power = jnp.where(removes, order + 1, -order) * (at + shrunk) + scaled(1e-9)
        modulus = 0.5 * (height**2 - nearest**2) + power + w * turn
        gain = (2 * DEGREE - 2) * jnp.log(rho) + jnp.log1p(-(rho**-2))
        # 64/15 over the root of 2 pi.
        fits = theta < jnp.where(removes, HIGHEST, jnp.pi / 2)
        errors = jnp.where(fits, jnp.log(1.71 * half) + modulus - gain, jnp.inf)
        # An empty panel misses nothing.
        return jax.nn.logsumexp(jnp.where(half[:, 0] > 0, jnp.min(errors, axis=1), -jnp.inf))

    def _log_least_moment(self, order: Array, edges: Array) -> Array:
        """Returns a lower bound on the log of a moment: by stretches of length 1/2 below the panels' ends.

        The log density there lies above its chord less 1/32, for its second derivative is at least -1. For "add" r is
        at most 1 where z <= 0, where half of the noise is.
        """
        removes = self.pair._fields()[2]
        z = jnp.stack([edges[1:] - 0.5, edges[1:]])
        logs = jnp.min(-0.5 * z**2 + (order + 1) * self._log_ratio(z), axis=0)
        return jnp.where(removes, jnp.max(logs) - 1.7, -0.7)

    def widest_step(self, order: Array, w: Array) -> Array:
        s, _, _ = self.pair._fields()
        theta, cost = self._angles(order)
        gain = arithmetic().cut + BEYOND + 0.5 * (theta * s) ** 2 + w * theta + cost
        return jnp.max(2 * jnp.pi * theta * s / gain)

    def _angles(self, order: Array) -> tuple[Array, Array]:
        """Returns WIDE_ANGLES, and what the line at each costs a power of r; inf for those that are not used.

        That is log sec(theta/2) for each negative power.
        """
        s, q, removes = self.pair._fields()
        used, secants = np.arange(len(WIDE_ANGLES)) < len(ANGLES), np.zeros(len(WIDE_ANGLES))
        secants[: len(ANGLES)] = -np.log(np.cos(ANGLES / 2))
        cost = jnp.where(used, jnp.where(removes, 0.0, order * jnp.asarray(secants, s.dtype)), jnp.inf)
        return jnp.asarray(WIDE_ANGLES, s.dtype), jnp.where(q == 1, 0.0, cost)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, q, removes = self.pair._fields()
        weights = tilted(nodes, order)
        log_r = jnp.where(removes, nodes.losses, -nodes.losses)
        share = jnp.exp(jnp.minimum((nodes.places - 0.5 / s) / s + jnp.log(q) - log_r, 0.0))
        rest = jnp.where(q == 1, 0.0, 1 - share)
        # The loss rises by share/s in z; its mean square counts the bulk, and not the rare jumps, as a deviation would.
        slopes = jnp.sqrt(jnp.sum(weights * share**2)), jnp.sum(jnp.where(weights == jnp.max(weights), share, 0.0))

        if self.left_out is not None:
            place, there = self._end()
            total = jax.nn.logsumexp(nodes.log_p + order * nodes.losses)
            log_last, last = self._log_ratio(place), self._share(place)

        def bound(slope: Array) -> Array:
            b = jnp.where(q == 1, w * slope / s, jnp.minimum(w * slope / s, STEEPEST * s))
            theta = b / s
            # The argument of r/|r(Re z)| = 1 - share + share e^(i theta), and the logarithm of its modulus, by bounds.
            angle = jnp.where(q == 1, theta, share * jnp.sin(theta))
            shrink = 4 * share * rest * jnp.sin(theta / 2) ** 2
            modulus = 0.5 * jnp.where(removes, -(order + 1) * shrink, order * shrink / (1 - shrink))
            exponents = modulus - w * angle
            back: Array | float = 0.0
            if self.left_out is not None:
                # The tilted density at the end, and for "add" the most that r^-order may be larger beside it.
                shrunk = jnp.where(removes, 0.0, _log_shrunk(last, theta))
                power = jnp.where(removes, order + 1, -order) * (log_last + shrunk) + scaled(1e-9)
                end = jnp.exp(power - 0.5 * place**2 - total) / jnp.sqrt(2 * jnp.pi)
                back = jnp.where(there, end * s / (w * last * jnp.sinc(theta / jnp.pi)), 0.0)
            return 0.5 * b**2 + jnp.log(jnp.sum(weights * jnp.exp(exponents)) + back)

        found = jnp.fmin(*jax.lax.map(bound, jnp.stack(slopes))) + modulus_rounding()
        return jnp.where(jnp.isnan(found), 0.0, jnp.minimum(found, 0.0))

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        whole = self._log_missed(order, w, step)
        if self.left_out is None:
            return whole
        edges = self._even(self._end()[0])
        found = self._log_panel_error(order, w, edges) - self._log_least_moment(order, edges)
        return jnp.where(self._end()[1], jnp.logaddexp(found, log_left_out()), whole)

    def _log_missed(self, order: Array, w: Array, step: Array) -> Array:
        """Returns the same of a trapezoid rule."""
        s, _, _ = self.pair._fields()
        theta, cost = self._angles(order)
        gain = jnp.max(2 * jnp.pi * theta * s / step - 0.5 * (theta * s) ** 2 - w * theta - cost)
        return jnp.logaddexp(jnp.log(2.0) - gain, log_left_out())


def _log_shrunk(share: Array, theta: Array) -> Array:
    """Returns log |1 - share + share e^(i theta)|."""
    return 0.5 * jnp.log1p(-4 * share * (1 - share) * jnp.sin(theta / 2) ** 2)


def _beyond(log_mass: Array, center: Array) -> Array:
    """Returns about where no more than e^log_mass of normal laws of deviation 1 lies beyond: for the farthest."""
    a = jnp.maximum(-log_mass - 0.92, 0.5)
    return jnp.max(center + jnp.sqrt(2 * a - jnp.log(jnp.maximum(2 * a, 1.0))))
