"""Mixtures of shifted noise: the pair, the laws of its loss, and Gaussian noise on a random sensitivity.

Noise of one scale lies around finitely many locations, with weights that differ between P and Q. So it is for Laplace
mechanisms (:mod:`.laplace`), for replacement of an example in a Gaussian sample, and for a random sensitivity. Where
the loss log P/Q is nondecreasing in the noise x, cells of the loss are cells of x, whose ends a monotone inversion
finds. The characteristic function is an integral over x of P^(1+t+iw) Q^-(t+iw), analytic beside the real line. In
reading order:

1. :func:`invert`: the inverse of a nondecreasing function, with a bracket;
2. :class:`Noise`: all that a pair needs of its noise, and sums over mixtures;
3. :class:`GaussianNoise`, and its law by a trapezoid rule;
4. :class:`LaplaceNoise`, and its law by panels;
5. :class:`ShiftedNoisePair`: the pair itself;
6. pairs of samples, and the mechanism :class:`GaussianMixture`.

Sources: Trefethen and Weideman (2014), Theorem 5.1, for quadrature; Mironov (2017), Corollary 3 and Table II, for Rényi
divergences of plain shifts.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.mechanisms.atoms import Atoms, atoms_of_cells, places_about
from jaxacct.mechanisms.finite import log_absence, noiseless_pairs
from jaxacct.mechanisms.mechanism import NoisyMechanism, Relation, by_numpy_if_concrete, directions
from jaxacct.mechanisms.normal import normal_cells, normal_masses
from jaxacct.mechanisms.pair import (
    CELLS,
    COARSEST,
    FINEST,
    LARGEST_POWER,
    RULE,
    THETAS,
    CellMasses,
    DominatingPair,
    Ellipses,
    Law,
    Lines,
    Nodes,
    PanelLaw,
    TrapezoidLaw,
    argument,
    exp_remainder,
    in_float64_only,
    least_bound,
    log_decay,
    log_excess,
    log_integral,
    log_left_out,
    log_moment,
    log_shrinkage,
    panel_nodes,
    reflect,
    tilted_shares,
)
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    first_index,
    is_concrete,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass

# ----------------------------------------------------------------------------------------------------
# The inverse of a nondecreasing function, by Newton's steps that keep a bracket.
# ----------------------------------------------------------------------------------------------------


def invert(
    function: Callable[[Array], tuple[Array, Array]], values: Array, low: Array, high: Array, gap: Array
) -> Array:
    """Returns x where a nondecreasing function takes the given values, elementwise.

    Args:
        function: x -> (value, derivative), as computed; the derivative only steers.
        values (...): to be attained within (low, high).
        low (): where the function is at most every value.
        high (): where it is above every value.
        gap (): how far the function may be off.

    At the result the function as computed is at most the value. Either it is above ``value - gap`` there, or a point
    where it is above the value lies within ``4u |x| + 2^-64 (high - low)``. For this a bracket is kept. Newton's steps
    start from the end whose value is nearest, and are lengthened a little, lest all of them land on the same side.
    """
    # Most steps of an inversion: every ninth halves the bracket, so that they narrow it by 2^-66. Newton's steps need
    # about ten. Fewer than 64 halvings would break the bound on the distance that :func:`invert` states.
    most_steps = 600
    span = high - low

    def resolution(below: Array, above: Array) -> Array:
        return 2 * roundoff() * (jnp.abs(below) + jnp.abs(above)) + 2.0**-64 * span

    def is_open(state: Any) -> Array:
        _, _, (below, below_off, _), (above, above_off, _) = state
        return (above - below > resolution(below, above)) & ~(above_off - below_off <= gap)

    def advance(state: Any) -> Any:
        step, x, below, above = state
        value, slope = function(x)
        off = value - values
        here = (x, off, slope)
        at_most = off <= 0
        below = tuple(jnp.where(at_most, new, old) for new, old in zip(here, below, strict=True))
        above = tuple(jnp.where(at_most, old, new) for new, old in zip(here, above, strict=True))
        from_below = -below[1] <= above[1]
        start, miss, steep = (jnp.where(from_below, b, a) for b, a in zip(below, above, strict=True))
        beyond = jnp.maximum(resolution(below[0], above[0]) / 2, gap / 4 / steep)
        newton = start - miss / steep + jnp.where(from_below, beyond, -beyond)
        halves = (step % 9 == 8) | ~((newton > below[0]) & (newton < above[0]))
        following = jnp.where(halves, below[0] + (above[0] - below[0]) / 2, newton)
        # Both ends come first: Newton's steps to values next to an end's start there.
        following = jnp.where(step == 0, high, following)
        # A lane that is done stays as it is while others go on.
        following = jnp.where(is_open((step, x, below, above)), following, below[0])
        return step + 1, following, below, above

    # The state is the step's number, the next x, and the two ends of the bracket, each with its miss and its slope. A
    # step moves one end to x. It ends where all brackets are as narrow as doubles allow, or all values are within the
    # gap.
    like = jnp.zeros_like(values)
    start = (
        jnp.int32(0),
        low + like,
        (low + like, like - jnp.inf, like),
        (high + like, like + jnp.inf, like),
    )
    final = jax.lax.while_loop(lambda state: (state[0] < most_steps) & jnp.any(is_open(state)), advance, start)
    return final[2][0]


# ----------------------------------------------------------------------------------------------------
# The interface of additive noise, as a pair of shifted noises needs it, and sums over mixtures.
# ----------------------------------------------------------------------------------------------------


class Noise(ABC):
    """Noise with a log-concave density, symmetric about 0; arguments are scalars, but for x.

    A class holds all that depends on the noise: its density and masses, and those methods of the pair that differ.
    """

    has_atoms: bool
    """Whether the loss is constant beyond the outermost locations."""

    @abstractmethod
    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        """Returns the log density at x of the noise around ``location``."""

    @abstractmethod
    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the log of the density around ``location`` over that around ``reference``, right to a few ulps."""

    @abstractmethod
    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the derivative of :meth:`log_ratio` in x."""

    @abstractmethod
    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        """Returns the largest slope of :meth:`log_ratio` in x, in absolute value."""

    @abstractmethod
    def reach(self, scale: Array) -> Array:
        """Returns how far beyond the outermost locations a finite loss may be attained, but for masses of e^-800."""

    @abstractmethod
    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        """Returns the masses between monotone points x, with error bounds."""

    @abstractmethod
    def reaches(self, scale: Array, nats: Array) -> tuple[Array, Array]:
        """Returns how far outwards and inwards of the outermost locations losses vary where e^-nats of the noise is."""

    @abstractmethod
    def masses(self, x: Array, following: Array, centers: Array, scale: Array) -> tuple[Array, Array]:
        """Returns the masses (m, n) of cells between increasing points and those that follow, with error bounds.

        An infinite point is an end of a cell that has none of the centres (m,) inside.
        """

    @abstractmethod
    def log_integral(
        self, pair: ShiftedNoisePair, height: Callable[[Array], Array], order: Array, start: Array | None
    ) -> Array:
        """Returns :meth:`.ShiftedNoisePair.log_integral` of the pair."""

    @abstractmethod
    def divergence_of_shift(self, t: Array, orders: Array) -> Array:
        """Returns the Rényi divergence of the noise from itself moved by t scales."""

    @abstractmethod
    def law(self, pair: ShiftedNoisePair) -> Law:
        """Returns the law of the pair's loss."""


def weigh(weights: Array, values: Array) -> Array:
    """Returns each row of ``values`` times its weight; 0 where the weight is 0, whatever the value."""
    return jax.vmap(lambda w, v: jnp.where(w == 0, 0.0, w * v))(weights, values)


def log_mixture(weights: Array, exponents: Array) -> Array:
    """Returns ``log sum_k weights[k] exp(exponents[k])`` over the first axis; rows without weight do not count."""
    return jax.nn.logsumexp(
        jax.vmap(lambda w, e: jnp.where(w == 0, -jnp.inf, jnp.log(w) + e))(weights, exponents), axis=0
    )


def mixture_mean(weights: Array, exponents: Array, log_total: Array, values: Array) -> Array:
    """Returns the mean of ``values`` over a mixture, whose logarithm is given."""
    shares = weigh(weights, jnp.exp(jax.vmap(lambda e: e - log_total)(exponents)))
    return jnp.sum(shares * values, axis=0)


# ----------------------------------------------------------------------------------------------------
# Gaussian noise for mixtures of shifts: densities, masses, and the law of the loss for the contour.
#
# The law is a trapezoid rule in x, which generalizes that of :mod:`.gaussian`. P and Q are sums of Gaussians
# around locations, Q's at or left of P's (:class:`ShiftedNoisePair`), and a moment of order t + iw is the integral of
# P^(1+t+iw) Q^-(t+iw). On the line Im x = b the term of P around m is turned by m b/s^2 and all are scaled by the same
# e^(b^2/(2 s^2)). While the turns of P's terms spread over less than pi, and Q's as well, neither vanishes: the
# integrand is analytic for |Im x| < pi s^2/spread, spread the larger extent of the two. There |P| is at most P(Re x)
# scaled so, |Q| at least Q(Re x) cos(b spread_Q/(2 s^2)) scaled so, and arg P - arg Q lies between 0 and b extent/s^2,
# extent that of all locations. Two bounds follow.
#
# *Quadrature.* A trapezoid rule of spacing h errs by at most 2/(e^(2 pi b/h) - 1) times the integral of the modulus
# over the lines Im x = +-b (Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1),
# which is at most e^(b^2/(2 s^2) + w b extent/s^2) cos(b spread_Q/(2 s^2))^-t times the moment of order t.
#
# *Decay.* Moved to Im x = b > 0 the integral of order t + iw is at most that of the modulus, in which only e^(-w (arg
# P - arg Q)) depends on w, and falls. The integral of the modulus is a trapezoid rule as well. Its integrand is
# analytic too: in x + ic each log |P(x + ib)| becomes half of log P(x + i(c+b)) + log P(x + i(c-b)), and arg P likewise
# a difference. So by the theorem it errs by 2/(e^(2 pi c/h) - 1) e^((b^2+c^2)/(2 s^2) - w least) 2^(t/2) of the moment,
# where b + c is at most (pi/2) s^2/spread. Up to there all angles between terms are at most a right one: the mean
# location Re(sum of m_k c_k)/(sum of c_k) over the turned terms c_k is at least the lowest, hence arg P - arg Q rises
# with the height, to ``least`` = b (lowest of P - highest of Q)/s^2 at least, and |Q| loses no more than cos(pi/4).
# ----------------------------------------------------------------------------------------------------


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

    def reaches(self, scale: Array, nats: Array) -> tuple[Array, Array]:
        reach = scale * jnp.sqrt(2 * nats)
        return reach, reach

    def masses(self, x: Array, following: Array, centers: Array, scale: Array) -> tuple[Array, Array]:
        return jax.vmap(lambda center: normal_masses(x, following, center, scale))(centers)

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


@dataclass(frozen=True)
class LawOfShiftedGaussians(TrapezoidLaw):
    """The law of a loss between mixtures of Gaussians, by a trapezoid rule in x.

    The comments at the head of this part derive its bounds.
    """

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
        # An order moves the peaks of the tilted law by the extent at most: the scan has room for so many.
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
        # Heights b of the lines, in standard deviations. Those that leave the strip are lowered to the largest spread
        # of the turns of P's, or of Q's, terms, in radians, which is sound below pi: so any heights are sound.
        heights, widest_turns = np.geomspace(0.02, 40.0, 24), 0.95 * np.pi
        s, (p_spread, q_spread, _, extent) = self.pair._fields()[0], self._extents()
        b = jnp.minimum(jnp.asarray(heights) * s, widest_turns * s**2 / jnp.maximum(p_spread, q_spread))
        return Lines(b, 0.5 * (b / s) ** 2, -jnp.log(jnp.cos(b * q_spread / (2 * s**2))), b * extent / s**2)

    def nodes(self, low: Array, step: Array, count: int = RULE) -> Nodes:
        """Returns ``count`` nodes in the middles of steps that start at ``low``."""
        x = low + step * (jnp.arange(count) + 0.5)
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(step)
        return Nodes(losses, log_p + jnp.log(step), log_q + jnp.log(step), nothing, nothing, x)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        # Largest spread, in radians, of the turns for the decay's bound. Sound below pi/2. The remainder up to pi/2 is
        # for the rule that sums the bound.
        steepest = 1.0
        s, locations, p, q = self.pair._fields()
        p_spread, q_spread, gap, _ = self._extents()
        spread = jnp.maximum(p_spread, q_spread)
        weights = tilted_shares(nodes, order)
        exponents = self.pair._exponents(nodes.places)
        shares = [_posterior_shares(mixture, exponents) for mixture in (p, q)]
        means = [jnp.matmul(locations, share) for share in shares]
        step = nodes.places[1] - nodes.places[0]
        (lowest, _), (_, highest) = self.pair._ends_of_each()
        references = lowest, highest

        # At a height b up to steepest the nodes at hand sum the integral of the modulus on the line; ``missed`` is the
        # error of that rule.
        def bound(slope: Array) -> Array:
            b = jnp.minimum(w * slope * s**2, steepest * s**2 / spread)
            moduli, turns = [], []
            # Modulus and argument of both mixtures on the line, each relative to its own reference.
            for share, reference in zip(shares, references, strict=True):
                angles = (locations - reference) * b / s**2
                cosine, sine = jnp.matmul(jnp.cos(angles), share), jnp.matmul(jnp.sin(angles), share)
                moduli.append(0.5 * jnp.log(cosine**2 + sine**2))
                turns.append(jnp.arctan2(sine, cosine))
            least = w * b * gap / s**2
            exponents = (order + 1) * moduli[0] - order * moduli[1] - w * (turns[0] - turns[1])
            height = jnp.minimum(jnp.minimum((jnp.pi / 2) * s**2 / spread - b, 2 * jnp.pi * s**2 / step), 12 * s)
            gain = 2 * jnp.pi * height / step - 0.5 * (height / s) ** 2
            secant = jnp.where(q_spread > 0, 0.5 * jnp.log(2.0) * order, 0.0)
            # The part of the integral beyond the window is as small as e^-(cut + BEYOND), turned or not.
            missed = jnp.logaddexp(jnp.log(4.0) - gain, log_left_out()) + secant
            return 0.5 * (b / s) ** 2 - least + jnp.logaddexp(jnp.log(jnp.sum(weights * jnp.exp(exponents))), missed)

        slope = (means[0] - means[1]) / s**2
        return least_bound(bound, weights, slope, jnp.max(jnp.where(weights == jnp.max(weights), slope, 0.0)))


def _posterior_shares(weights: Array, exponents: Array) -> Array:
    """Returns the posterior weights (m, n) of the terms of a mixture."""
    logs = jax.vmap(lambda w, e: jnp.where(w > 0, jnp.log(w) + e, -jnp.inf))(weights, exponents)
    return jax.nn.softmax(logs, axis=0)


# ----------------------------------------------------------------------------------------------------
# Laplace noise for mixtures of shifts: masses, and the law of the loss for the contour.
#
# The law has two atoms, and a density between the outermost locations. Between two neighbouring locations, with
# u = 2x/scale, both densities are e^(-u/2) (A e^u + B), A from the locations to the right and B from those to the left.
# So the loss is log (A e^u + B)/(C e^u + D), analytic for |Im u| < pi, and the density tilted by t + iw is e^(-u/2) (A
# e^u + B)^(1+t+iw) (C e^u + D)^-(t+iw) there. With a = A e^u/(A e^u + B) and c likewise the shares of the locations to
# the right, at Im u = theta:
#
# * |A e^u + B| is at most its value at Re u, and |C e^u + D|^2 is 1 - 4 c (1-c) sin(theta/2)^2 times that;
# * the arguments are those of 1 - a + a e^(i theta) and 1 - c + c e^(i theta), which grow with a and c;
# * on the real line the tilted density's logarithm has slopes (1+t) (a - 1/2) - t (c - 1/2), at most k = 1/2 + t
#   |a - c| in size, with the largest difference |a - c|.
#
# Beyond the ends lie atoms, each twice the density in u there. So the whole moment is at least the largest density
# times min(2, 1/k): from there to the nearest end the density falls no faster than e^-k a unit. By the rule of panels
# above (:class:`Ellipses`) that bounds the error of quadrature.
# ----------------------------------------------------------------------------------------------------


class LaplaceNoise(Noise):
    """Laplace noise of density e^(-|x|/scale) / (2 scale)."""

    has_atoms = True

    def log_density(self, x: Array, location: Array, scale: Array) -> Array:
        return -jnp.abs(x - location) / scale - jnp.log(2 * scale)

    def log_ratio(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return (jnp.abs(x - reference) - jnp.abs(x - location)) / scale

    def derivative(self, x: Array, location: Array, reference: Array, scale: Array) -> Array:
        return (jnp.sign(x - reference) - jnp.sign(x - location)) / scale

    def slope(self, location: Array, reference: Array, scale: Array) -> Array:
        return jnp.where(location == reference, 0.0, 2 / scale)

    def reach(self, scale: Array) -> Array:
        return jnp.zeros_like(scale)

    def cells(self, x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
        """Returns the masses between monotone points x, with error bounds; infinite ends are allowed.

        Points may fall as well as rise: a fixed-size sample asks for both.

        No difference of tails is ever taken. A cell on one side of the centre is ``e^-|z| (1 - e^-w) / 2``, z its end
        near the centre and w its width, which is formed from x[i+1] - x[i] and rounds relative to itself; a cell around
        the centre is the sum of its two sides. So each mass is right to a few ulps of itself.
        """
        z = (x - center) / scale
        start, end = z[:-1], z[1:]
        lengths = x[1:] - x[:-1]
        # Between two infinite ends of one sign there is nothing.
        width = jnp.abs(jnp.where(jnp.isnan(lengths), 0.0, lengths)) / scale
        straddles = (start < 0) != (end < 0)
        near = jnp.minimum(jnp.abs(start), jnp.abs(end))
        one_side = -0.5 * jnp.exp(-near) * jnp.expm1(-width)
        around = -0.5 * (jnp.expm1(-jnp.abs(start)) + jnp.expm1(-jnp.abs(end)))
        mass = jnp.where(straddles, around, one_side)
        # z errs by 2u of itself, which exp turns into 2u |z| of the mass; beyond e^-745 there is no mass to err.
        exponent = jnp.where(straddles, 0.0, jnp.minimum(near, 800.0))
        return mass, roundoff() * (24 + 4 * exponent) * mass

    def reaches(self, scale: Array, nats: Array) -> tuple[Array, Array]:
        return jnp.zeros_like(scale), scale * nats

    def masses(self, x: Array, following: Array, centers: Array, scale: Array) -> tuple[Array, Array]:
        ends = jnp.append(x, following[-1])
        mass, error = jax.vmap(lambda center: self.cells(ends, center, scale))(centers)
        return mass, error + TINY

    def log_integral(
        self, pair: ShiftedNoisePair, height: Callable[[Array], Array], order: Array, start: Array | None
    ) -> Array:
        # Beyond the ends the loss is constant, and a mass is the density there times the scale. Between two
        # neighbouring knots the densities are smooth.
        s, (low, high) = pair._fields()[0], pair._ends()
        knots = jnp.sort(jnp.clip(pair._fields()[1], low if start is None else start, high))
        pieces = jax.vmap(lambda a, b: log_integral(height, a, b, s, s))(knots[:-1], knots[1:])
        parts = [jax.nn.logsumexp(pieces), height(high) + jnp.log(s)]
        if start is None:
            parts.append(height(low) + jnp.log(s))
        return jax.nn.logsumexp(jnp.stack(parts))

    def divergence_of_shift(self, t: Array, orders: Array) -> Array:
        """Returns the Rényi divergence of the noise from itself moved by t scales: Mironov (2017), Table II.

        With b = order - 1 the moment is

            (order e^(b t) + b e^(-order t)) / (2 order - 1) = 1 + (order phi(b t) + b phi(-order t)) / (2 order - 1),

        phi(x) = e^x - 1 - x, a sum that does not cancel.
        """
        power = orders - 1
        rising, limit = power * t, arithmetic().largest_exponent
        remainders = [exp_remainder(x, jnp.exp(jnp.minimum(x, limit)) - 1) for x in (rising, -orders * t)]
        excess = (orders * remainders[0] + power * remainders[1]) / (orders + power)
        # Beyond the largest exponent the second term is negligible against the first.
        vast = rising + jnp.log(orders / (orders + power))
        return jnp.where(rising > limit / 2, vast, jnp.log1p(excess)) / power

    def law(self, pair: ShiftedNoisePair) -> LawOfShiftedLaplace:
        return LawOfShiftedLaplace(pair)


@dataclass(frozen=True)
class LawOfShiftedLaplace(PanelLaw):
    """The law of a loss between mixtures of Laplace noise: two atoms, and panels between neighbouring locations.

    The comments at the head of this part derive its bounds.
    """

    # Half of the noise about an end lies beyond it, where the loss no longer changes.
    recurring: ClassVar[float] = 0.5

    pair: ShiftedNoisePair

    def largest_order(self) -> Array:
        low, high = self.pair.loss_range()
        largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        return jnp.where(largest < LARGEST_POWER, LARGEST_POWER / largest, 0.0)

    def scan(self) -> Nodes:
        return self.piece(self.window(self.largest_order(), None), 0, 1)

    def window(self, order: Array, scan: Nodes | None) -> tuple[Array, Array]:
        """Returns the ends of the locations: the nodes always cover all."""
        return self.pair._ends()

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        """Returns the panels of each interval, and with the first ones the atoms."""
        s, as_real = self.pair._fields()[0], lambda value: jnp.asarray(value, window[0].dtype)
        x, log_weight = _nodes_of_intervals(*self.pair._fields(), as_real(index), as_real(pieces))
        losses, log_p, log_q = self.pair.log_densities(x)
        nothing = jnp.zeros_like(s)
        places = self.step(window, pieces) * np.arange(x.shape[0])
        return Nodes(losses, log_p + log_weight, log_q + log_weight, nothing, nothing, places)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        """Returns the half-width of the widest panels."""
        return (
            jnp.max(_densities_of_sides(*self.pair._fields())[0])
            / (4 * _panels_of(self.pair._fields()[1]) * pieces)
            * self.pair._fields()[0]
        )

    def ellipses(self, order: Array) -> Ellipses:
        s = self.pair._fields()[0]
        costs, turns, rises, length = _ellipses(*self.pair._fields())
        fall = 0.5 + order * rises
        log_size = jnp.log(length / 2 * fall[0])
        return Ellipses(2 / s, jnp.asarray(THETAS), order * costs, turns, fall, log_size)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        length, above, below = _densities_of_sides(*self.pair._fields())
        log_total, error = self.log_total(order, nodes)
        u = length[:, None] * np.linspace(0.0, 1.0, CELLS + 1)[None]
        # Log densities in u, and the shares of locations to the right; near one, their complements are subtracted
        # instead, which loses no digits.
        log_p, log_q = (
            jnp.logaddexp(right + u / 2, left - u / 2)
            for right, left in zip(*(v[..., None] for v in (above, below)), strict=True)
        )
        a, c = (jax.nn.sigmoid(logit[:, None] + u) for logit in above - below)
        over_a, over_c = (jax.nn.sigmoid(-logit[:, None] - u) for logit in above - below)
        share = jnp.maximum(jnp.where(c > 0.5, over_c - over_a, a - c), 0.0)
        losses = log_p - log_q
        at = log_p - jnp.log(4.0) + order * losses - log_total - jnp.log(share)
        # The slope of the tilted density's logarithm, less that of the log of the share, 1 - a - c.
        (a, next_a), (c, next_c) = ((v[:, :-1], v[:, 1:]) for v in (a, c))
        steepest = (2 + order) * next_a - order * c + next_c - 1.5
        flattest = (2 + order) * a - order * next_c + c - 1.5
        # The last two nodes are the atoms.
        atoms = nodes.losses[-2:], tilted_shares(nodes, order)[-2:]
        return log_decay(w, atoms, losses, at, steepest, flattest, length[:, None] / CELLS, error)


@jax.jit
def _densities_of_sides(s: Array, locations: Array, p: Array, q: Array) -> tuple[Array, Array, Array]:
    """Returns intervals between neighbouring locations, some of them empty, and the densities from either side of them.

    They are the length (I,) of each interval, in u, and logs (2, I) of P's and of Q's density at its left end, times
    twice the scale: the parts of the locations to the right, and of those to the left.
    """
    left, right = _intervals(locations, p, q)
    heights = jax.vmap(lambda left: jnp.exp(-jnp.abs(left - locations) / s))(left)
    is_above = jax.vmap(lambda left, right: jnp.stack([locations >= right, locations <= left]))(left, right)
    of_sides = jnp.where(is_above, heights[:, None], 0.0)
    above, below = jnp.log(jnp.einsum("wm,ism->swi", jnp.stack([p, q]), of_sides, precision="highest"))
    return (right - left) * (2 / s), above, below


@jax.jit
def _ellipses(s: Array, locations: Array, p: Array, q: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the numbers of :class:`Ellipses`: for each of THETAS three, and the length of all intervals in u.

    The three are the nats that a unit of the order costs, those that a unit of frequency costs, and the rise of the
    steepest slope of the tilted density, 1/2 at order 0, with a unit of the order.
    """
    length, above, below = _densities_of_sides(s, locations, p, q)
    theta = jnp.asarray(THETAS)[:, None]
    # Shares of the locations to the right, at an interval's ends and as far beyond as an ellipse may reach: the least
    # and the most of P's, the least and the most of Q's.
    (a, c), ends = (above - below)[:, None], length[None] + theta
    least, most, low, high = (jax.nn.sigmoid(logit) for logit in (a - theta, a + ends, c - theta, c + ends))
    turns = jnp.max(argument(most, theta) - argument(low, theta), axis=1)
    rises = jnp.max(jnp.maximum(jnp.maximum(most - low, high - least), 0.0), axis=1)
    return jnp.max(-log_shrinkage(low, high, theta), axis=1), turns, rises, jnp.sum(length)


def _intervals(locations: Array, p: Array, q: Array) -> tuple[Array, Array]:
    """Returns the ends of the intervals between neighbouring locations that have weight, some of them empty."""
    counts = (p > 0) | (q > 0)
    knots = jnp.sort(jnp.where(counts, locations, jnp.max(jnp.where(counts, locations, -jnp.inf))))
    return knots[:-1], knots[1:]


def _panels_of(locations: Array) -> int:
    """Returns how many panels of a piece an interval has."""
    # Panels of a piece, and of the scan, shared by the intervals between locations. Any value is sound.
    most = 8
    return max(most // (np.shape(locations)[-1] - 1), 1)


@jax.jit
def _nodes_of_intervals(
    s: Array, locations: Array, p: Array, q: Array, index: Array, pieces: Array
) -> tuple[Array, Array]:
    """Returns nodes and the logs of their weights, the atoms last."""
    (left, right), count = _intervals(locations, p, q), _panels_of(locations)
    of_interval = jax.vmap(lambda left, width: panel_nodes(left, width, index, count))
    x, log_weight = (v.reshape(-1) for v in of_interval(left, (right - left) / (count * pieces)))
    atom = jnp.where(index == 0, jnp.log(s), -jnp.inf)
    return jnp.concatenate([x, left[:1], right[-1:]]), jnp.concatenate([log_weight, atom[None], atom[None]])


# ----------------------------------------------------------------------------------------------------
# The pair of two mixtures of shifted noise.
# ----------------------------------------------------------------------------------------------------

NOISES: dict[str, Noise] = {"gaussian": GaussianNoise(), "laplace": LaplaceNoise()}
"""The kinds of noise, by the name that a pair has in its field ``noise``."""


@register_dataclass
@dataclass(frozen=True)
class ShiftedNoisePair(DominatingPair):
    """The mixture P = sum_k p_k noise around ``locations[k]`` against Q = sum_k q_k noise around the same locations.

    The loss log P/Q must be nondecreasing in x. It is where locations with weight in Q alone lie left of the one with
    weight in both, and that lies left of those with weight in P alone. (A decreasing one is the mirror image.)

    Attributes:
        scale (): width of the noise: standard deviation, or Laplace scale.
        locations (m,): centres of the noise. The first is the reference: cancellation is avoided for it.
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
        proper = [jnp.all(w >= 0) & (jnp.abs(jnp.sum(w) - 1) < scale_error(1e-12)) for w in (p, q)]
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
            infimum, supremum = self.log_densities(jnp.stack([low, high]))[0]
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
        return self.log_densities(jnp.sum(jnp.where(jnp.arange(len(p)) == heaviest, locations, 0.0)))[0]

    def _exponents(self, x: Array) -> Array:
        """Returns the log ratio of each location's density to the first one's, (m, *x.shape)."""
        s, locations, _, _ = self._fields()
        return jax.vmap(lambda location: self._noise.log_ratio(x, location, locations[0], s))(locations)

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
            slope = mixture_mean(p, exponents, log_p, slopes) - mixture_mean(q, exponents, log_q, slopes)
            return self.log_densities(x)[0], slope

        infimum, amid, supremum = self.log_densities(jnp.stack([first, first + (last - first) / 2, last]))[0]
        # An attained loss stands in for one that is not attained, lest it keep the others waiting.
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
        totals = [jnp.sum(weigh(w, masses), axis=0) for w in (p, q)]
        bounds = [jnp.sum(weigh(w, errors), axis=0) + rounding * total for w, total in zip((p, q), totals, strict=True)]
        return CellMasses(p=totals[0], q=totals[1], p_error=bounds[0], q_error=bounds[1])

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        return self.masses_between(self._threshold(boundaries))

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the laws from cells that are equal in the noise, as many atoms as ``cells``."""
        s, locations, _, _ = self._fields()
        (low, high), (outwards, inwards) = self._ends(), self._noise.reaches(s, nats)
        between = inwards if locations.shape[-1] == 2 else jnp.inf
        x, following = places_about(low, high, outwards, between, cells)
        p, p_error, q, q_error = self.masses_of(x[:-1], following[:-1])
        losses, errors = self.losses_at(x, low - outwards, high + outwards)
        return atoms_of_cells(losses, p, p_error, q, q_error, errors, valid=self.is_valid())

    def masses_of(self, x: Array, following: Array) -> tuple[Array, Array, Array, Array]:
        """Returns P's masses of cells from x to the following place, bounds on their errors, and the same for Q.

        A weighted sum of n terms rounds once for each weight, product and addition, and each product may be flushed. An
        infinite place ends a cell that has no location of any weight inside.
        """
        s, locations, p, q = self._fields()
        low, _ = self._ends()
        weights, terms = jnp.stack([p, q]), locations.shape[-1]
        masses, errors = self._noise.masses(x, following, jnp.where((p > 0) | (q > 0), locations, low), s)
        mixed, off = (jnp.matmul(weights, part, precision="highest") for part in (masses, errors))
        share = (terms + 3 + self._weight_units()) * roundoff()
        off = (off + share * mixed) * (1 + 4 * share) + terms * TINY
        return mixed[0], off[0], mixed[1], off[1]

    def losses_at(self, x: Array, least: ArrayLike, most: ArrayLike) -> tuple[Array, Array]:
        """Returns the losses at places x, finite ones in [least, most] or infinite, and bounds on their errors.

        The errors are those of :meth:`_rounding`, for places no farther than x.
        """
        s, locations, p, q = self._fields()
        low, high = self._ends()
        inner = jnp.clip(x, least, most)
        losses = self.log_densities(inner)[0]
        if not self._noise.has_atoms:
            losses = jnp.where(jnp.isinf(x), x, losses)
        slope, far = self._noise.slope(high, low, s), jnp.maximum(jnp.abs(inner - low), jnp.abs(inner - high))
        least_weight = jnp.min(jnp.minimum(jnp.where(p > 0, p, 1.0), jnp.where(q > 0, q, 1.0)))
        units = 16 + 4 * locations.shape[-1] - 2 * jnp.log(least_weight) + 2 * self._weight_units()
        return losses, roundoff() * (units + slope * (10 * far + 2 * jnp.maximum(jnp.abs(low), jnp.abs(high))))

    def _weight_units(self) -> ArrayLike:
        """Returns the units of roundoff by which each weight errs relative to itself."""
        return 0.0

    def boundary_error(self, largest: Array) -> Array:
        # The loss as computed errs by e. At an edge the computed loss is at most the boundary. Either it is above
        # that less the gap, or a point with a larger loss lies within 4u |x| (:func:`invert`), over which the loss
        # rises by the slope times that: so it is off by e plus the larger of both. A flat loss has no slope: there an
        # error in x costs nothing.
        s, _, _, _ = self._fields()
        low, high = self._ends()
        error, gap = self._rounding()
        largest_x = self._noise.reach(s) + jnp.maximum(jnp.abs(low), jnp.abs(high))
        width = 5 * self._noise.slope(high, low, s) * largest_x
        return roundoff() * (error + jnp.maximum(gap, width) + jnp.zeros_like(largest))

    def _rounding(self) -> tuple[Array, Array]:
        """Returns a bound on the error of the computed loss, and the gap for its inversion, in units of roundoff."""
        # Each term of the sum below has one cause. An exponent is a product of rounded factors, at most slope times the
        # distance from the locations, and right to 5u of that; it counts in P and in Q. The mean of two locations errs
        # by u of itself. Logarithms and sums: 8u and 2u a term, and the logarithm's own size, at most that of the least
        # weight.
        s, locations, p, q = self._fields()
        low, high = self._ends()
        slope = self._noise.slope(high, low, s)
        extent = slope * (self._noise.reach(s) + (high - low))
        least = jnp.min(jnp.minimum(jnp.where(p > 0, p, 1.0), jnp.where(q > 0, q, 1.0)))
        centers = 2 * slope * jnp.maximum(jnp.abs(low), jnp.abs(high))
        return 16 + 4 * len(locations) - 2 * jnp.log(least) + 10 * extent + centers, 16 + extent

    def cumulant(self, order: ArrayLike) -> Array:
        orders = as_float64(order)
        values = jax.vmap(self._cumulant)(orders.reshape(-1))
        return values.reshape(orders.shape)

    def _cumulant(self, order: Array) -> Array:
        exchange, order_used = reflect(order)
        s, locations, p, q = self._fields()
        # Where P and Q are exchanged x is reflected, so that the loss still rises in it.
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
        """Returns whether P is known to be the noise around the second location, and Q that around the first."""
        if not is_concrete(self.p_weights, self.q_weights):
            return False
        return np.asarray(self.p_weights).tolist() == [0.0, 1.0] and np.asarray(self.q_weights).tolist() == [1.0, 0.0]

    def law(self) -> Law | None:
        return in_float64_only(self._noise.law(self))

    def _count_unit(self) -> Array | None:
        """Returns the distance of the locations, where both weights are those of sums of independent trials."""
        return None


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

    A small loss is formed from P - Q, in which the first location's terms cancel and are not formed. The other terms
    are weights times e^exponent - 1, right to 10 u besides what is due to the exponents, and the sum of m of them to
    (10 + m) u of their sizes' sum. That may exceed Q, where two far locations' terms cancel as well: with little noise
    and nearly everybody in a sample Q is all but 0 amid them. So this form is left where the sizes exceed Q, and the
    difference of the logarithms taken, for which nothing cancels: either way :meth:`ShiftedNoisePair._rounding` is a
    bound.
    """
    exponents = jax.vmap(lambda location: noise.log_ratio(x, location, locations[0], s))(locations)
    logs = jax.vmap(lambda log_w, e: jax.vmap(lambda log_w: log_w + e)(log_w))(jnp.log(jnp.stack([p, q], 1)), exponents)
    top = jnp.max(logs, axis=0)
    log_p, log_q = top + jnp.log(jnp.sum(jnp.exp(logs - top[None]), axis=0))
    rises = jax.vmap(jnp.multiply)(p - q, jnp.expm1(jnp.minimum(exponents, 700.0)))
    inverse = jnp.exp(-log_q)
    excess = jnp.sum(rises, axis=0) * inverse
    # The lower limit is -1/4: log1p is only known to be right from there up.
    near = (excess > -0.25) & (excess < 0.5) & (jnp.max(exponents, axis=0) < 700.0)
    near = near & (jnp.sum(jnp.abs(rises), axis=0) * inverse <= 1)
    loss = jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), log_p - log_q)
    base = noise.log_density(x, locations[0], s)
    return loss, base + log_p, base + log_q


# ----------------------------------------------------------------------------------------------------
# Pairs of shifted noise, plain and on samples, and Gaussian noise on a random sensitivity.
#
# Batch axes stand in front of the axis of shifts.
# ----------------------------------------------------------------------------------------------------


def subsampled_pair(scale: ArrayLike, rate: ArrayLike, direction: str, noise: str) -> ShiftedNoisePair:
    """Returns the pair of a Poisson sample: an example of norm 1 is removed, added, or replaced by its opposite."""

    def make(xp: Any, scale: Any, rate: Any) -> ShiftedNoisePair:
        s, q = xp.broadcast_arrays(scale, rate)
        none, one = xp.zeros_like(q), xp.ones_like(q)
        rows = {
            "remove": ((none, one), (1 - q, q), (one, none)),
            "add": ((none, -one), (one, none), (1 - q, q)),
            "replace": ((none, one, -one), (1 - q, q, none), (1 - q, none, q)),
        }[direction]
        locations, p_weights, q_weights = (xp.stack(row, axis=-1) for row in rows)
        return ShiftedNoisePair(s, locations, p_weights, q_weights, noise)

    return by_numpy_if_concrete(make, scale, rate)


@within_scope
def mixture_pair(
    scale: ArrayLike,
    sensitivities: ArrayLike | Sequence[float],
    probabilities: ArrayLike | Sequence[float],
    direction: str,
) -> ShiftedNoisePair:
    """Returns the Gaussian pair of a random sensitivity against none ("remove"), or mirrored ("add").

    The base stands first, even where a sensitivity is 0, so that P - Q is formed from the probabilities of the others.
    """
    s, shifts, weights = as_float64(scale), as_float64(sensitivities), as_float64(probabilities)
    batch = jnp.broadcast_shapes(s.shape, shifts.shape[:-1], weights.shape[:-1])
    shifts, weights = (jnp.broadcast_to(v, (*batch, v.shape[-1])) for v in (shifts, weights))
    # Probabilities given in float32, say, sum to one only nearly.
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    first = jnp.zeros((*batch, 1))
    locations = jnp.concatenate([first, shifts], axis=-1)
    mixture = jnp.concatenate([first, weights], axis=-1)
    base = jnp.concatenate([first + 1, jnp.zeros_like(weights)], axis=-1)
    s = jnp.broadcast_to(s, batch)
    if direction == "remove":
        return ShiftedNoisePair(s, locations, mixture, base)
    return ShiftedNoisePair(s, -locations, base, mixture)


@register_dataclass
@dataclass(frozen=True)
class GaussianMixture(NoisyMechanism):
    """Mixture-of-Gaussians mechanism: an example moves the query by a random amount, to which Gaussian noise is added.

    It covers a Poisson sample, an example that takes part a random number of times, and one row of a matrix mechanism
    with sampling.

    Attributes:
        noise_multiplier (...): standard deviation of the noise, in the units of the sensitivities.
        sensitivities (..., m): what the example may add to the query, at least 0 each, not all 0.
        probabilities (..., m): their probabilities, fixed beforehand; sum 1 (to 1e-6; they are normalized).

    A sequence of n mechanisms has sensitivities and probabilities of shape (n, m); the noise may stay a scalar.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out".

    Raises ValueError where a concrete field is out of range or shapes do not match; traced ones cannot raise and cost
    inf instead.

    Source: Choquette-Choo, Ganesh, Steinke and Thakurta (2024), "Privacy amplification for matrix mechanisms", whose
    mixture-of-Gaussians mechanisms these are. Sensitivities that are vectors are dominated by their norms there.

    >>> GaussianMixture(1.0, sensitivities=[0.0, 1.0, 2.0], probabilities=[0.9, 0.09, 0.01]).batch_shape
    ()
    """

    noise_multiplier: ArrayLike
    sensitivities: Float[ArrayLike, "*batch m"] | Sequence[float]
    probabilities: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")
    tight: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = ("sensitivities", "probabilities")

    def validate(self) -> None:
        # Largest distance from 1 of the sum of concrete probabilities: as much as float32 may cause. They are
        # normalized, so it is sound for any value.
        tolerance = 1e-6
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sensitivities(self.sensitivities)
        validation.check_probabilities(self.probabilities, "probabilities", tolerance)
        if not all(hasattr(value, "shape") for value in (self.sensitivities, self.probabilities)):
            return  # JAX has put other things into the fields
        shape, other, noise = (
            np.shape(value) for value in (self.sensitivities, self.probabilities, self.noise_multiplier)
        )
        if shape != other:
            raise ValueError(
                f"sensitivities of shape {shape} do not match probabilities of shape {other}: give one probability for "
                "each sensitivity."
            )
        if noise not in ((), shape[:-1]):
            raise ValueError(
                f"noise_multiplier of shape {noise} does not match sensitivities of shape {shape}: give a scalar, or "
                "one noise multiplier for each row."
            )

    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        """Returns the pairs of an example that is seen unless its sensitivity is 0 (:mod:`.finite`)."""
        shifts, weights = (np.asarray(each, np.float64) for each in (self.sensitivities, self.probabilities))
        present, absent = (math.fsum(weights[rows]) / math.fsum(weights) for rows in (shifts > 0, shifts == 0))
        return noiseless_pairs(directions(self, relation), log_absence(present, absent))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"."""
        return tuple(
            mixture_pair(self.noise_multiplier, self.sensitivities, self.probabilities, direction)
            for direction in directions(self, relation)
        )
