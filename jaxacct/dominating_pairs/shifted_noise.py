"""Pairs of mixtures of shifted noise: Laplace, subsampled Laplace, replacement, mixtures of Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.cumulants import QUADRATURE_NODES
from jaxacct.dominating_pairs.inversion import invert
from jaxacct.dominating_pairs.moments import log_excess, log_integral, log_moment, reflected
from jaxacct.dominating_pairs.noises import NOISES, Noise
from jaxacct.dominating_pairs.normal import log_upper_tail
from jaxacct.dominating_pairs.one_run import one_run_by_masses
from jaxacct.dominating_pairs.pair import CellMasses
from jaxacct.precision import UNIT_ROUNDOFF, as_float64, first_index


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShiftedNoisePair:
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
        proper = [jnp.all(w >= 0) & (jnp.abs(jnp.sum(w) - 1) < 1e-12) for w in (p, q)]
        located = jnp.all(jnp.isfinite(locations)) & (self._spread() > 0)
        return (s > 0) & (s < jnp.inf) & located & proper[0] & proper[1]

    def _ends(self) -> tuple[Array, Array]:
        """Returns the outermost locations that have weight."""
        _, locations, p, q = self._fields()
        counts = (p > 0) | (q > 0)
        return jnp.min(jnp.where(counts, locations, jnp.inf)), jnp.max(jnp.where(counts, locations, -jnp.inf))

    def _spread(self) -> Array:
        low, high = self._ends()
        return high - low

    def loss_range(self) -> tuple[Array, Array]:
        # At an end of the line the outermost location decides, whatever its weight.
        _, locations, p, q = self._fields()
        low, high = self._ends()
        if self._noise.has_atoms:
            return self._log_ratio(low), self._log_ratio(high)
        at = [[jnp.sum(jnp.where(locations == end, w, 0.0)) for w in (p, q)] for end in (low, high)]
        return jnp.log(at[0][0]) - jnp.log(at[0][1]), jnp.log(at[1][0]) - jnp.log(at[1][1])

    def supremum(self) -> tuple[Array, Array]:
        _, highest = self.loss_range()
        error = UNIT_ROUNDOFF * self._rounding()[0]
        return jnp.where(highest < jnp.inf, highest - error, highest), highest + error

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        return one_run_by_masses(self, epsilon)

    def central_loss(self) -> Array:
        _, locations, p, _ = self._fields()
        heaviest = first_index(p == jnp.max(p))
        return self._log_ratio(jnp.sum(jnp.where(jnp.arange(len(p)) == heaviest, locations, 0.0)))

    def infinite_mass(self) -> Array:
        return jnp.zeros_like(self._fields()[0])

    def infinite_mass_error(self) -> Array:
        return self.infinite_mass()

    def anchors(self) -> tuple[Array, Array]:
        free = jnp.full_like(self._fields()[0], jnp.nan)
        return self.loss_range() if self._noise.has_atoms else (free, free)

    def _exponents(self, x: Array) -> Array:
        """Returns the log ratio of each location's density to the first one's, (m, *x.shape)."""
        s, locations, _, _ = self._fields()
        return jax.vmap(lambda location: self._noise.log_ratio(x, location, locations[0], s))(locations)

    def _log_ratio(self, x: Array) -> Array:
        """Returns the loss at x, elementwise: where it is small from P - Q, whose first term is not formed."""
        _, _, p, q = self._fields()
        exponents = self._exponents(x)
        log_q = _log_mixture(q, exponents)
        direct = _log_mixture(p, exponents) - log_q
        rises = jnp.sum(_weighted(p - q, jnp.expm1(jnp.minimum(exponents, 700.0)))[1:], axis=0)
        excess = rises * jnp.exp(-log_q)
        near = (jnp.abs(excess) < 0.5) & (jnp.max(exponents, axis=0) < 700.0)
        return jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), direct)

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
            log_p, log_q = _log_mixture(p, exponents), _log_mixture(q, exponents)
            slope = _mean(p, exponents, log_p, slopes) - _mean(q, exponents, log_q, slopes)
            return self._log_ratio(x), slope

        infimum, supremum = self._log_ratio(first), self._log_ratio(last)
        # Losses that are not attained get one that is, lest they keep the others waiting.
        attained = (loss >= infimum) & (loss < supremum)
        some_loss = jnp.where(attained, loss, self._log_ratio(first + (last - first) / 2))
        x = invert(loss_and_slope, some_loss, first, last, UNIT_ROUNDOFF * self._rounding()[1])
        return jnp.where(loss < infimum, -jnp.inf, jnp.where(loss >= supremum, jnp.inf, x))

    def masses_between(self, x: Float[Array, " n"]) -> CellMasses:
        """Returns the masses between monotone points x."""
        s, locations, p, q = self._fields()
        masses, errors = jax.vmap(lambda location: self._noise.cells(x, location, s))(locations)
        # Each weight errs by a rounding, each product by one, the sum by one a term.
        rounding = (len(p) + 3) * UNIT_ROUNDOFF
        totals = [jnp.sum(_weighted(w, masses), axis=0) for w in (p, q)]
        bounds = [
            jnp.sum(_weighted(w, errors), axis=0) + rounding * total for w, total in zip((p, q), totals, strict=True)
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
        return UNIT_ROUNDOFF * (error + jnp.maximum(gap, width) + jnp.zeros_like(largest))

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
        x = self._threshold(lowered)
        if not self._noise.has_atoms:
            # Beyond the reach of the inversion the loss grows no faster than along its last tangent, made steepest.
            last = self._ends()[1] + self._noise.reach(s)
            highest = jnp.max(jnp.where(p > 0, locations, -jnp.inf))
            farther = (lowered - self._log_ratio(last)) * s**2 / (highest - self._least_center(last))
            x = jnp.where(farther > 0, last + farther * (1 - 1e-12), x)
        _, supremum = self.loss_range()
        upper = jax.vmap(lambda w, location: jnp.log(w) + self._noise.log_upper_tail((x - location) / s))(p, locations)
        log_above = jnp.minimum(_log_sum(upper), 0.0)
        # With a finite supremum: everything above as if it were there.
        bound = jnp.where(order == 0, 0.0, order * jnp.maximum(supremum, -1e300)) + log_above + 1e-14
        if not self._noise.has_atoms:
            bound = jnp.fmin(
                bound, jnp.fmin(self._tail_by_posterior(order, loss, x), self._tail_by_slope(order, loss, x))
            )
        return jnp.where(loss >= supremum, -jnp.inf, jnp.where(jnp.isnan(bound), jnp.inf, bound))

    def _tail_by_posterior(self, order: Array, loss: Array, x: Array) -> Array:
        """Bounds the tilted mass above x as E_Q[r^a], a = order + 1, given that the loss at x is at most ``loss``.

        Gaussian noise. Let b be the mean location under Q's posterior at x, and v_k(y) = e^((m_k - b)(y - x)/s^2). The
        log of Q(y) over any one component is convex, so it lies above its tangent at x; hence r(y) <= r(x) sum_k w_k
        v_k(y), w_k the posterior weights of P at x, and by Jensen r^a <= r(x)^a sum_k w_k v_k^a. Each term has a closed
        Gaussian integral over y > x.
        """
        s, locations, p, q = self._fields()
        a = order + 1
        exponents = self._exponents(x)
        log_p = _log_mixture(p, exponents)
        base = self._least_center(x)

        def term(weight: Array, location: Array, exponent: Array) -> Array:
            posterior = jnp.log(weight) + exponent - log_p
            rate = a * (location - base) / s**2
            return posterior + _log_sum(jax.vmap(lambda w, m: jnp.log(w) + _tilted_tail(rate, x, m, s))(q, locations))

        return a * loss + _log_sum(jax.vmap(term)(p, locations, exponents)) + _margin(a * loss)

    def _tail_by_slope(self, order: Array, loss: Array, x: Array) -> Array:
        """Bounds the tilted mass above x as E_P[e^(order Y)], Y growing at its largest slope there. Gaussian noise."""
        s, locations, p, _ = self._fields()
        highest = jnp.max(jnp.where(p > 0, locations, -jnp.inf))
        rate = order * (highest - self._least_center(x)) / s**2
        parts = jax.vmap(lambda w, m: jnp.log(w) + _tilted_tail(rate, x, m, s))(p, locations)
        return order * loss + _log_sum(parts) + _margin(order * loss)

    def _least_center(self, x: Array) -> Array:
        """Returns the mean location under Q's posterior at x, which grows with x, less what covers its rounding."""
        _, locations, _, q = self._fields()
        exponents = self._exponents(x)
        values = jax.vmap(lambda location: jnp.full_like(x, location))(locations)
        return _mean(q, exponents, _log_mixture(q, exponents), values) - 1e-12 * self._spread()

    def log_head(self, loss: Array) -> Array:
        s, locations, p, _ = self._fields()
        x = self._threshold(loss)
        below = jax.vmap(lambda w, location: jnp.log(w) + self._noise.log_upper_tail((location - x) / s))(p, locations)
        return jnp.minimum(_log_sum(below), 0.0)

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        """Returns ``log E_P[exp(order Y)]``; ``nodes`` is not used, their number follows from the integrand."""
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

        return log_moment(mirrored.integrate(height, order_used), order)

    def log_densities(self, x: Array) -> tuple[Array, Array, Array]:
        """Returns the loss at x and the log densities of P and Q, elementwise."""
        s, locations, p, q = self._fields()
        exponents = self._exponents(x)
        base = self._noise.log_density(x, locations[0], s)
        return self._log_ratio(x), base + _log_mixture(p, exponents), base + _log_mixture(q, exponents)

    def integrate(self, height: Callable[[Array], Array], order: Array, start: Array | None = None) -> Array:
        """Returns the log of the integral of ``e^height`` over x, or over x above ``start``.

        ``height`` is the log of a density times a function of the loss, which grows no faster than E_P[exp(order Y)].
        """
        s, locations, _, _ = self._fields()
        low, high = self._ends()
        if not self._noise.has_atoms:
            # The peaks of r^(order + 1) lie below ``high + order (high - low)``.
            reach = 50 * s
            first = low - reach if start is None else start
            last = jnp.maximum(high, first) + jnp.maximum(order, 0.0) * (high - low) + reach
            return log_integral(height, first, last, jnp.minimum(2 * s, 2 * s**2 / (high - low)), s)
        # Beyond the ends the loss is constant, and a mass is the density there times the scale. Between two
        # neighbouring knots the densities are smooth.
        knots = locations if start is None else jnp.concatenate([locations, start[None]])
        first = low if start is None else start
        following = jax.vmap(lambda knot: jnp.min(jnp.where(knots > knot, knots, jnp.inf)))(knots)
        index = jnp.arange(len(knots))
        repeats = jax.vmap(lambda i, knot: jnp.any((index < i) & (knots == knot)))(index, knots)
        empty = repeats | (knots < first) | (following > high)
        ends = jnp.where(empty, knots, following)
        pieces = jax.vmap(lambda a, b: log_integral(height, a, b, s, s))(knots, ends)
        parts = [_log_sum(pieces), height(high) + jnp.log(s)]
        if start is None:
            parts.append(height(low) + jnp.log(s))
        return _log_sum(jnp.stack(parts))


def _weighted(weights: Array, values: Array) -> Array:
    """Returns each row of ``values`` times its weight; 0 where the weight is."""
    return jax.vmap(lambda w, v: jnp.where(w == 0, 0.0, w * v))(weights, values)


def _log_sum(logs: Array) -> Array:
    """Returns the log of the sum of exponentials over the first axis."""
    top = jnp.max(logs, axis=0)
    shift = jnp.where(jnp.isfinite(top), top, 0.0)
    return shift + jnp.log(jnp.sum(jnp.exp(jax.vmap(lambda row: row - shift)(logs)), axis=0))


def _log_mixture(weights: Array, exponents: Array) -> Array:
    """Returns ``log sum_k weights[k] exp(exponents[k])`` over the first axis; rows without weight do not count."""
    return _log_sum(jax.vmap(lambda w, e: jnp.where(w == 0, -jnp.inf, jnp.log(w) + e))(weights, exponents))


def _mean(weights: Array, exponents: Array, log_total: Array, values: Array) -> Array:
    """Returns the mean of ``values`` over a mixture, whose logarithm is given."""
    shares = _weighted(weights, jnp.exp(jax.vmap(lambda e: e - log_total)(exponents)))
    return jnp.sum(shares * values, axis=0)


def _tilted_tail(rate: Array, x: Array, center: Array, scale: Array) -> Array:
    """Returns an upper bound on the log of the integral of e^(rate (y - x)) N(y; center, scale^2) over y > x."""
    z, tilt = (x - center) / scale, rate * scale
    bound = tilt * (tilt / 2 - z) + log_upper_tail(z - tilt)
    return bound + 16 * UNIT_ROUNDOFF * (tilt**2 + z**2)


def _margin(value: Array) -> Array:
    """Returns what covers the rounding of sums of logarithms of about this size."""
    return 1e-13 + 64 * UNIT_ROUNDOFF * jnp.abs(value)
