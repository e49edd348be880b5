"""Pairs of mixtures of shifted noise: Laplace, subsampled Laplace, replacement, mixtures of Gaussians."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs.gaussian_noise import GaussianNoise
from jaxacct.dominating_pairs.inversion import invert
from jaxacct.dominating_pairs.laplace_noise import LaplaceNoise
from jaxacct.dominating_pairs.law import Law, in_float64_only
from jaxacct.dominating_pairs.moments import log_excess, log_moment, reflected
from jaxacct.dominating_pairs.noise import Noise, log_mixture, mean, weighted
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.precision import as_float64, first_index, is_concrete
from jaxacct.pytrees import register_dataclass

NOISES: dict[str, Noise] = {"gaussian": GaussianNoise(), "laplace": LaplaceNoise()}


@register_dataclass
@dataclass(frozen=True)
class ShiftedNoisePair(DominatingPair):
    """P = sum_k p_k noise around ``locations[k]`` against Q = sum_k q_k noise around the same locations.

    The loss log P/Q must be nondecreasing in x. It is where locations with weight in Q alone lie left of the one with
    weight in both, and that lies left of those with weight in P alone. (A decreasing one is the mirror image.)

    Attributes:
        scale (): width of the noise: standard deviation, or Laplace scale.
        locations (m,): where the noise may be centred. The first is the reference: cancellation is avoided for it.
        p_weights (m,): weights in P, sum 1. Those of P and Q that differ by little must belong to the first location,
            whose difference is never formed.
        q_weights (m,): weights in Q, sum 1.
        noise: "gaussian" or "laplace"; static.

    >>> pair = ShiftedNoisePair(1.0, [0.0, 1.0], p_weights=[0.0, 1.0], q_weights=[1.0, 0.0], noise="laplace")
    >>> with jax.enable_x64(True):
    ...     print([float(loss) for loss in pair.loss_range()])
    [-1.0, 1.0]
    """

    scale: ArrayLike
    locations: Float[ArrayLike, " m"]
    p_weights: Float[ArrayLike, " m"]
    q_weights: Float[ArrayLike, " m"]
    noise: str = field(default="gaussian", metadata=dict(static=True))

    @property
    def _noise(self) -> Noise:
        return NOISES[self.noise]

    def _fields(self) -> tuple[Array, Array, Array, Array]:
        fields = (self.scale, self.locations, self.p_weights, self.q_weights)
        s, locations, p, q = (as_float64(value) for value in fields)
        return s, locations, p, q

    def is_valid(self) -> Array:
        s, locations, p, q = self._fields()
        proper = [jnp.all(w >= 0) & (jnp.abs(jnp.sum(w) - 1) < scaled(1e-12)) for w in (p, q)]
        located = jnp.all(jnp.isfinite(locations)) & (self._spread() > 0)
        return (s > 0) & (s < jnp.inf) & located & proper[0] & proper[1]

    def _ends(self) -> tuple[Array, Array]:
        """Returns the outermost locations that have weight."""
        (p_low, p_high), (q_low, q_high) = self._ends_of_each()
        return jnp.minimum(p_low, q_low), jnp.maximum(p_high, q_high)

    def _ends_of_each(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Returns the outermost locations that have weight in P, and those that have in Q."""
        _, locations, p, q = self._fields()
        return _ends_of_each(locations, p, q)

    def _spread(self) -> Array:
        low, high = self._ends()
        return high - low

    def loss_range(self) -> tuple[Array, Array]:
        # At an end of the line the outermost location decides, whatever its weight.
        _, locations, p, q = self._fields()
        low, high = self._ends()
        if self._noise.has_atoms:
            infimum, supremum = self._log_ratio(jnp.stack([low, high]))
            return infimum, supremum
        at = [[jnp.sum(jnp.where(locations == end, w, 0.0)) for w in (p, q)] for end in (low, high)]
        return jnp.log(at[0][0]) - jnp.log(at[0][1]), jnp.log(at[1][0]) - jnp.log(at[1][1])

    def supremum(self) -> tuple[Array, Array]:
        _, highest = self.loss_range()
        error = roundoff() * self._rounding()[0]
        return jnp.where(highest < jnp.inf, highest - error, highest), highest + error

    def central_loss(self) -> Array:
        _, locations, p, _ = self._fields()
        heaviest = first_index(p == jnp.max(p))
        return self._log_ratio(jnp.sum(jnp.where(jnp.arange(len(p)) == heaviest, locations, 0.0)))

    def anchors(self) -> tuple[Array, Array]:
        free = jnp.full_like(self._fields()[0], jnp.nan)
        return self.loss_range() if self._noise.has_atoms else (free, free)

    def _exponents(self, x: Array) -> Array:
        """Returns the log ratio of each location's density to the first one's, (m, *x.shape)."""
        s, locations, _, _ = self._fields()
        return jax.vmap(lambda location: self._noise.log_ratio(x, location, locations[0], s))(locations)

    def _log_ratio(self, x: Array) -> Array:
        """Returns the loss at finite x, elementwise."""
        return self.log_densities(x)[0]

    def _threshold(self, loss: Array) -> Array:
        """Returns, elementwise, the greatest x whose loss is at most ``loss``; infinite where none or all are.

        The loss as computed is at most ``loss`` at the result, and above it a few doubles, or units of roundoff of the
        loss, further up.
        """
        s, locations, p, q = self._fields()
        low, high = self._ends()
        reach = self._noise.reach(s)
        first, last = low - reach, high + reach

        def loss_and_slope(x: Array) -> tuple[Array, Array]:
            exponents = self._exponents(x)
            slopes = jax.vmap(lambda location: self._noise.derivative(x, location, locations[0], s))(locations)
            log_p, log_q = log_mixture(p, exponents), log_mixture(q, exponents)
            slope = mean(p, exponents, log_p, slopes) - mean(q, exponents, log_q, slopes)
            return self._log_ratio(x), slope

        infimum, amid, supremum = self._log_ratio(jnp.stack([first, first + (last - first) / 2, last]))
        # Losses that are not attained get one that is, lest they keep the others waiting.
        attained = (loss >= infimum) & (loss < supremum)
        some_loss = jnp.where(attained, loss, amid)
        x = invert(loss_and_slope, some_loss, first, last, roundoff() * self._rounding()[1])
        return jnp.where(loss < infimum, -jnp.inf, jnp.where(loss >= supremum, jnp.inf, x))

    def masses_between(self, x: Float[Array, " n"]) -> CellMasses:
        """Returns the masses between monotone points x."""
        s, locations, p, q = self._fields()
        masses, errors = jax.vmap(lambda location: self._noise.cells(x, location, s))(locations)
        # Each weight errs by a rounding, each product by one, the sum by one a term.
        rounding = (len(p) + 3) * roundoff()
        totals = [jnp.sum(weighted(w, masses), axis=0) for w in (p, q)]
        bounds = [
            jnp.sum(weighted(w, errors), axis=0) + rounding * total for w, total in zip((p, q), totals, strict=True)
        ]
        return CellMasses(p=totals[0], q=totals[1], p_error=bounds[0], q_error=bounds[1])

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        return self.masses_between(self._threshold(boundaries))

    def boundary_error(self, largest: Array) -> Array:
        # The loss as computed errs by e. An edge has a computed loss of at most the one asked for, and either above it
        # less the gap, or with a point above it within 4u |x| (:mod:`.inversion`), over which it rises by slope times
        # that: off by e plus the larger of both. A flat loss has no slope: there an error in x costs nothing.
        s, _, _, _ = self._fields()
        low, high = self._ends()
        error, gap = self._rounding()
        largest_x = self._noise.reach(s) + jnp.maximum(jnp.abs(low), jnp.abs(high))
        width = 5 * self._noise.slope(high, low, s) * largest_x
        return roundoff() * (error + jnp.maximum(gap, width) + jnp.zeros_like(largest))

    def _rounding(self) -> tuple[Array, Array]:
        """Returns a bound on the error of :meth:`_log_ratio`, and the gap for its inversion, in units of roundoff."""
        # An exponent is a product of rounded factors, at most slope times the distance from the locations, and right to
        # 5u of that; it counts in P and in Q. The mean of two locations errs by u of itself. Logarithms and sums: 8u
        # and 2u a term, and the logarithm's own size, at most that of the least weight.
        s, locations, p, q = self._fields()
        low, high = self._ends()
        slope = self._noise.slope(high, low, s)
        extent = slope * (self._noise.reach(s) + (high - low))
        least = jnp.min(jnp.minimum(jnp.where(p > 0, p, 1.0), jnp.where(q > 0, q, 1.0)))
        centers = 2 * slope * jnp.maximum(jnp.abs(low), jnp.abs(high))
        return 16 + 4 * len(locations) - 2 * jnp.log(least) + 10 * extent + centers, 16 + extent

    def log_tail(self, order: Array, loss: Array) -> Array:
        s, locations, p, _ = self._fields()
        # An edge whose own loss is at most ``loss``, by the bound on its error.
        lowered = loss - self.boundary_error(jnp.abs(loss))
        x = self._noise.edge(self, lowered, self._threshold(lowered))
        _, supremum = self.loss_range()
        upper = jax.vmap(lambda w, location: jnp.log(w) + self._noise.log_upper_tail((x - location) / s))(p, locations)
        log_above = jnp.minimum(jax.nn.logsumexp(upper, axis=0), 0.0)
        # With a finite supremum: everything above as if it were there.
        bound = jnp.where(order == 0, 0.0, order * jnp.maximum(supremum, -1e300)) + log_above + scaled(1e-14)
        bound = jnp.fmin(bound, self._noise.log_tilted_tail(self, order, loss, x))
        return jnp.where(loss >= supremum, -jnp.inf, jnp.where(jnp.isnan(bound), jnp.inf, bound))

    def cumulant(self, order: ArrayLike) -> Array:
        orders = as_float64(order)
        values = jax.vmap(self._cumulant)(orders.reshape(-1))
        return values.reshape(orders.shape)

    def _cumulant(self, order: Array) -> Array:
        exchange, order_used = reflected(order)
        s, locations, p, q = self._fields()
        mirrored = ShiftedNoisePair(
            s,
            jnp.where(exchange, -locations, locations),
            jnp.where(exchange, q, p),
            jnp.where(exchange, p, q),
            self.noise,
        )

        def height(x: Array) -> Array:
            loss, log_p, _ = mirrored.log_densities(x)
            return log_p + log_excess(loss, order_used)

        return log_moment(mirrored.log_integral(height, order_used), order)

    def log_densities(self, x: Array) -> tuple[Array, Array, Array]:
        """Returns the loss at finite x and the log densities of P and Q, elementwise."""
        return _log_densities(self._noise, *self._fields(), x)

    def log_integral(self, height: Callable[[Array], Array], order: Array, start: Array | None = None) -> Array:
        """Returns the log of the integral of ``e^height`` over x, or over x above ``start``.

        ``height`` is the log of a density times a function of the loss, which grows no faster than E_P[exp(order Y)].
        """
        return self._noise.log_integral(self, height, order, start)

    def divergence(self, orders: Array) -> Array:
        if self._is_plain_shift():
            s, locations, _, _ = self._fields()
            shift = jnp.where(self.is_valid(), (locations[1] - locations[0]) / s, jnp.nan)
            return self._noise.divergence_of_shift(shift, orders)
        return super().divergence(orders)

    def _is_plain_shift(self) -> bool:
        """Returns whether it can be seen that P is the noise around the second location, and Q around the first."""
        if not is_concrete(self.p_weights, self.q_weights):
            return False
        return np.asarray(self.p_weights).tolist() == [0.0, 1.0] and np.asarray(self.q_weights).tolist() == [1.0, 0.0]

    def law(self) -> Law | None:
        return in_float64_only(self._noise.law(self))


@jax.jit
def _ends_of_each(locations: Array, p: Array, q: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    counts = [w > 0 for w in (p, q)]
    lows, highs = ([jnp.where(has, locations, end) for has in counts] for end in (jnp.inf, -jnp.inf))
    (p_low, q_low), (p_high, q_high) = map(jnp.min, lows), map(jnp.max, highs)
    return (p_low, p_high), (q_low, q_high)


@functools.partial(jax.jit, static_argnames="noise")
def _log_densities(
    noise: Noise, s: Array, locations: Array, p: Array, q: Array, x: Array
) -> tuple[Array, Array, Array]:
    """Returns the loss at x, and the log densities of P and Q.

    Where the loss is small it is made of P - Q, whose first term is not formed.
    """
    exponents = jax.vmap(lambda location: noise.log_ratio(x, location, locations[0], s))(locations)
    logs = jax.vmap(lambda log_w, e: jax.vmap(lambda log_w: log_w + e)(log_w))(jnp.log(jnp.stack([p, q], 1)), exponents)
    top = jnp.max(logs, axis=0)
    log_p, log_q = top + jnp.log(jnp.sum(jnp.exp(logs - top[None]), axis=0))
    rises = jnp.sum(jax.vmap(jnp.multiply)(p - q, jnp.expm1(jnp.minimum(exponents, 700.0))), axis=0)
    excess = rises * jnp.exp(-log_q)
    # No lower: log1p is only known to be right from -1/4 up.
    near = (excess > -0.25) & (excess < 0.5) & (jnp.max(exponents, axis=0) < 700.0)
    loss = jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), log_p - log_q)
    base = noise.log_density(x, locations[0], s)
    return loss, base + log_p, base + log_q
