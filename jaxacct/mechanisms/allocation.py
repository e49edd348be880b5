"""Random allocation: each example takes part in few steps of many, drawn at random. Its pairs, by convex order.

The first part, down to :func:`_log_product`, is the pair of one step out of t (:func:`allocation_pairs`); the second is
that of two steps out of n (:func:`paired_allocation_pairs`); the last is the mechanism :class:`RandomAllocation`, with
more than two participations as a composition of blocks. In both pairs the likelihood ratio is spread onto finitely many
points, which makes it larger in convex order, so that the spread pair dominates.

*One step out of t.* Each example takes part in exactly one of t steps, drawn uniformly. Q is N(0, s^2 I_t), P the
mixture of its t shifts by a unit vector, and the likelihood ratio P/Q is the mean M_t of t independent copies of
X = e^(z/s - 1/(2 s^2)), z standard normal under Q. The privacy profiles of (P, Q) and of (Q, P),

    E_Q[(M_t - c)+] + P(M_t = inf)   and   E_Q[(1 - c M_t)+],

are expectations of convex functions of the ratio. So any mean-preserving spread of the ratio, that is any larger law in
convex order, gives a pair that dominates in both directions; and since sums of independent variables keep the order, X
and every partial sum may be spread, too. Here laws live on finitely many points, and a value between two of them moves
to both of them, in the shares that keep its mean ("connect the dots", Doroshenko et al. 2022). The far tails of X are
spread to 0 and to infinity. M_t is built by doubling, M_2k = (M_k + M_k')/2, and by single steps where t has a bit.

An error of a spread is averaged by later doublings: it stays a fixed share of the variance, whatever t is.

Rounding. All terms are positive. A computed mass is right to a relative error eta, which adds up in products:
eta_2k = 2 eta_k + that of one merge. A computed value is right to theta, which is averaged. If values and masses are
off by such factors, then P's masses are off by their product, and losses by theta, by which they are moved: both are
handed on as the pair's ``rounding`` (:func:`outcomes_of`). Products
of masses that underflow lose at most e^430 2^-1022 of P's mass each, for values up to e^430 (LEAST_NOISE): far inside
the relative 1e-12, in float64, by which the mass at infinity is raised.

*Rényi divergences* are those of M itself, not of its spread, with E[X^k] = e^(k (k-1)/(2 s^2)). Removing an example,
E[M^a] at a whole order a is a! t^-a times the coefficient of x^a in (f(x))^t, f(x) = sum of E[X^k] x^k / k!. With
f = e^x + g the excess H_t = f^t - e^(tx) obeys

    H_2k = (2 e^(kx) + H_k) H_k,        H_k+1 = (e^x + g) H_k + e^(kx) g,

sums of positive terms only, and E[M^a] - 1 is a! t^-a times its coefficient. The logarithm of E[M^a] is convex in a:
between whole orders it is below its chord. Adding an example, E[M^-b], b = a - 1, is the expectation of a convex
function: at most that over the spread law, but for the event that all t copies lie in the tails, which are spread to 0.
As a mean of t terms M has M^-b <= mean of X_j^-b, so that this event adds at most e^(b (b+1)/(2 s^2)) times its
probability for t - 1 of them. Both divergences are at most that of the Gaussian mechanism, a/(2 s^2), by
quasi-convexity.

Sources. The moments: Feldman and Shenfeld (2025), "Privacy amplification by random allocation", section 4.2. The pair:
Chua et al. (2024), "Balls-and-bins sampling for DP-SGD"; Choquette-Choo et al. (2024), "Near-exact privacy
amplification for matrix mechanisms". Sums of exponentiated losses on a grid: Feldman and Shenfeld (2026), "Efficient
privacy loss accounting for subsampling and random allocation".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.mechanisms.finite import DiscretePair, FinitePair, surely_seen
from jaxacct.mechanisms.gaussian import Gaussian
from jaxacct.mechanisms.mechanism import Mechanism, NoisyMechanism, Relation, choose, counts_of, directions
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff, scale_error
from jaxacct.numerics.precision import as_float64, is_concrete, leave_scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass

FINE = 2**13
"""Points of the fine grid on which sums fall before some of them are chosen.

The quadrature of X's law (:func:`law_of_one_term`) counts on it: fewer would break the error that it states.
"""

LEAST_NOISE = 0.05
"""Smallest valid noise multiplier: below it values beyond e^-650, or masses beyond e^-685, would be needed."""

MOST_BATCHES = 2**30
"""Largest valid number of batches, so that counts and powers of 2 fit int32."""

VALUE_ERROR = 2e-14
"""Error of a value by one merge in float64, relative and over 2 + the largest logarithm of a value.

It covers the functions that find the value's cell, and the shares in it; a value beyond its cell counts as its end. A
smaller one would break the bound theta.
"""

LARGEST_ORDER = 256
"""Largest Rényi order computed for the removal of an example; above it the Gaussian mechanism's bound stands."""


class RatioLaw(NamedTuple):
    """The law of a likelihood ratio under Q, or one that is larger or smaller in convex order.

    Attributes:
        values (n,): increasing, the first of them 0; of a smaller law the means of cells, all above 0.
        masses (n,): Q's masses at the values.
        eta (): bound on the relative error of the masses.
    """

    values: Float[Array, " n"]
    masses: Float[Array, " n"]
    eta: Array


@register_dataclass
@dataclass(frozen=True)
class RandomAllocationPair(FinitePair):
    """The spread pair of one step out of t: finitely many outcomes, whose losses lie on no lattice.

    Its Rényi divergences are bounds on those of the mechanism itself.

    Attributes:
        noise_multiplier (), batches (): s and t, 1 for both where they are not valid.
        eta (), theta (): bounds on the relative errors of masses and values.
        in_tails (): Q's mass in X's tails.
        removes (): whether P is the mixture of shifts; data, so that both directions are one program.
    """

    noise_multiplier: ArrayLike = 1.0
    batches: ArrayLike = 1.0
    eta: ArrayLike = 0.0
    theta: ArrayLike = 0.0
    in_tails: ArrayLike = 0.0
    removes: ArrayLike = True

    def largest_loss(self) -> Array:
        # The pair's finite losses end where the tails are cut off; the mechanism's do not end.
        return jnp.full((), jnp.inf)

    def surplus(self) -> tuple[Array, Array]:
        # The numbers round. To say so without them spares a program the law where it asks for divergences alone.
        return jnp.zeros(()), jnp.zeros(())

    def divergence(self, orders: Array) -> Array:
        """Returns an upper bound on the mechanism's own divergence; that of the pair, as spread, is infinite."""
        s, t = as_float64(self.noise_multiplier), as_float64(self.batches)
        gaussian = orders * (orders - 1) / (2 * s**2)
        ways = (lambda: _log_moments_removed(s, t, orders)), (lambda: self._log_moments_added(orders))
        # A concrete direction compiles its own program alone.
        seen = is_concrete(self.removes)
        log_moments = (ways[0] if self.removes else ways[1])() if seen else jax.lax.cond(self.removes, *ways)
        moment = jnp.where(t == 1, gaussian, jnp.fmin(log_moments, gaussian))
        return jnp.where(self.is_valid(), moment, jnp.nan) / (orders - 1)

    def _log_moments_added(self, orders: Array) -> Array:
        """Returns a bound on log E[M^-b]."""
        s, t, b = as_float64(self.noise_multiplier), as_float64(self.batches), orders - 1
        moment = self.cumulant(b)
        # Masses are right to eta, and so is the moment's distance from 1, a sum of positive terms. Values are right to
        # theta: m^-b - 1 + b (m - 1), whose mean the distance is, changes by at most theta b |m - m^-b|. Losses were
        # moved by theta, of which the negative ones have half of that sum at most.
        y, q = -as_float64(self.losses)[1:-1], as_float64(self.p)[1:-1]
        distance = b[:, None] * jnp.abs(y)[None] + jnp.abs(y)[None]
        largest = jnp.maximum(y[None], -b[:, None] * y[None])
        logs = jnp.log(q)[None] + largest + jnp.log(-jnp.expm1(-jnp.maximum(distance, 1e-300)))
        change = self.theta * b * jnp.exp(jax.nn.logsumexp(logs, axis=1) - moment)
        moment = moment * (1 + 2 * self.eta) + 2 * change
        log_tails = (t - 1) * jnp.log(self.in_tails * 1.000001) + b * (b + 1) / (2 * s**2)
        return jnp.logaddexp(moment, log_tails)


def allocation_pairs(
    noise_multiplier: ArrayLike, batches: ArrayLike, points: int, removes: Sequence[bool]
) -> list[RandomAllocationPair]:
    """Returns the spread pair (P, Q) for each True of ``removes``, and (Q, P) for each False; invalid ones hold NaN.

    The parameters are scalars, inside the float64 scope.
    """
    s, t = as_float64(noise_multiplier), as_float64(batches)
    valid = (s >= LEAST_NOISE) & (s < jnp.inf) & (t >= 1) & (t <= MOST_BATCHES) & (t == jnp.floor(t))
    s, t = jnp.where(valid, s, 1.0), jnp.where(valid, t, 1.0)
    law, infinite, in_tails, theta = allocate(s, t, points)
    infinite = jnp.where(valid, infinite, jnp.nan)
    return [
        RandomAllocationPair(*outcomes_of(law, theta, infinite, way), s, t, law.eta, theta, in_tails, way)
        for way in removes
    ]


class MovedPair(FinitePair):
    """A pair whose losses were moved by what they may err by (:func:`outcomes_of`)."""

    def surplus(self) -> tuple[Array, Array]:
        # P e^-loss, which is Q here, misses one.
        return jnp.zeros(()), jnp.max(as_float64(self.rounding))


def outcomes_of(
    law: RatioLaw, theta: Array, infinite: Array, removes: bool, contracts: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Returns the outcomes of a pair (P, Q) with this law of its ratio, or of (Q, P): the fields of a FinitePair.

    Losses are moved by theta, what the values may err by relatively: up, or down where the law ``contracts``. So the
    pair is P and, in place of Q, P e^-loss, which is off from Q's masses by what P's are, theta, and theta again.
    ``infinite`` is P's mass at infinity, NaN where the law is not valid.
    """
    values, masses, eta = law
    p, q = jnp.append(values * masses, infinite), jnp.append(masses, 0.0)
    p = jnp.where(jnp.isnan(infinite), jnp.nan, p)
    losses, theta = jnp.append(jnp.log(values), jnp.inf), theta + 8 * roundoff()
    p, q, losses = (p, q, losses) if removes else (q, p, -losses)
    return p, q, losses + jnp.where(contracts, -theta, theta), 2 * (eta + theta)


@functools.partial(jax.jit, static_argnames="points")
def allocate(noise_multiplier: Array, batches: Array, points: int) -> tuple[RatioLaw, Array, Array, Array]:
    """Returns the law of M_t on so many points, and what its spread moved; inside the float64 scope.

    ``noise_multiplier`` and ``batches`` are valid scalars. Beside the law stand P's mass at infinity, Q's mass in X's
    tails, and theta, a bound on the relative error of the law's values.
    """
    s, t = noise_multiplier, batches.astype(jnp.int32)
    first, grid_ends, infinite, in_tails = law_of_one_term(s, t, points)
    deviation = jnp.sqrt(jnp.expm1(jnp.minimum(1 / s**2, 40.0)))
    law = average(first, t, grid_ends, deviation, points)
    largest = 2 + jnp.max(jnp.abs(jnp.log(law.values[jnp.array([1, -1])])))
    return law, infinite, in_tails, 2 * (count_bits(t) + 2) * largest * scale_error(VALUE_ERROR)


def average(
    first: RatioLaw, t: Array, grid_ends: tuple[Array, Array], deviation: Array, points: int, contracts: bool = False
) -> RatioLaw:
    """Returns the law of the mean of t independent values, on so many points; of one value, the law itself.

    Args:
        first: the law of a value.
        t (): from 1 to MOST_BATCHES, int32.
        grid_ends: logs of the least positive and of the largest value.
        deviation (): about the standard deviation of a value. Any is sound.
        points: those of ``first``, and of the result.
        contracts: whether the result is smaller in convex order than the mean, and not larger.
    """

    def step(carry: tuple[RatioLaw, Array, Array, Array]) -> tuple[RatioLaw, Array, Array, Array]:
        """Doubles the number of terms or, where the bit just passed asks for it, adds a single one."""
        law, count, bit, adds = carry
        weight = jnp.where(adds, 1, count)
        other = jax.tree.map(lambda a, b: jnp.where(adds, a, b), first, law)
        total = (count + weight).astype(jnp.float64)
        low, high = grid_ends
        # The dense part of the grid narrows as the mean does, with the root of the number of terms.
        width = jnp.clip(deviation / jnp.sqrt(total) / 2, 1e-9, 1.0)
        grid = Grid(low - jnp.log(total), high, width)  # the least positive sum, so that none is spread to 0
        law = add_laws(law, count / total, other, weight / total, grid, contracts)
        law = coarsen(grid.logs(), law, total / t, points, contracts)
        bit = jnp.where(adds, bit, bit - 1)
        return law, count + weight, bit, ~adds & ((t >> bit) & 1 == 1)

    start = first, jnp.int32(1), count_bits(t), jnp.asarray(False)
    # The state is the law of M_count, the bit of t that comes next, and whether a single term is due. Steps read the
    # bits of t from the highest down: a doubling for each, and a single step after a bit that is set.
    return jax.lax.while_loop(lambda carry: (carry[2] > 0) | carry[3], step, start)[0]


def count_bits(count: Array) -> Array:
    """Returns the number of bits after the highest of a whole number from 1 to MOST_BATCHES."""
    return jnp.sum(count >= 2 ** np.arange(1, 31, dtype=np.int32)).astype(jnp.int32)


class Grid(NamedTuple):
    """A fine grid of values 0 and e^(width sinh(v)), v evenly spaced: dense near 1, evenly spaced in log far away.

    Attributes:
        low (), high (): logs of the least positive and of the largest value.
        width (): width of the dense part, in the log of the value.
        points: number of values, a Python number.
    """

    low: Array
    high: Array
    width: Array
    points: int = FINE

    def _ends(self) -> tuple[Array, Array]:
        first, last = jnp.arcsinh(self.low / self.width), jnp.arcsinh(self.high / self.width)
        return first, (last - first) / (self.points - 2)

    def logs(self) -> Array:
        """Returns the logs of all values but the first, 0."""
        first, step = self._ends()
        logs = self.width * jnp.sinh(first + step * jnp.arange(self.points - 1))
        return logs.at[0].set(self.low).at[-1].set(self.high)

    def cell(self, logs: Array) -> Array:
        """Returns the cell between values into which each log falls; at a border it may be the neighbouring cell.

        What is below the least positive value by no more than values err counts as that, so that none of it goes to 0.
        """
        first, step = self._ends()
        x = logs / self.width
        v = jnp.sign(x) * jnp.log(jnp.abs(x) + jnp.sqrt(x**2 + 1))
        place = 1 + jnp.floor((v - first) / step)
        is_least = logs < self.low - scale_error(VALUE_ERROR) * (2 + jnp.abs(self.low))
        return jnp.where(is_least, 0.0, jnp.clip(place, 1, self.points - 2)).astype(jnp.int32)


def law_of_one_term(
    s: Array, t: Array, points: int, contracts: bool = False, far: float = 11.5
) -> tuple[RatioLaw, tuple[Array, Array], Array, Array]:
    """Returns the law of X, the logs of its least and largest value, P's mass at infinity and Q's mass at 0.

    Beyond ``far`` standard deviations of z, under Q and under P, values are moved to 0 and infinity: 7e-31 of mass by
    default. Any value is sound: a smaller one spreads more.

    A law that is smaller in convex order, where it ``contracts``, has neither mass: tails are cells like the others.

    Four nodes of Gauss's rule integrate density and share over a cell: for a cell width of (37 + 1/s)/FINE the rule
    errs by less than 3e-14 of the integral.
    """
    # Nodes and weights of the Gauss-Legendre rule on [-1, 1] that integrates over a cell of z.
    gauss = np.polynomial.legendre.leggauss(4)
    # Largest number of standard deviations under Q at which float64 holds the masses: e^(-37^2/2) = e^-685.
    farthest = 37.0
    start = jnp.maximum(-far, s * -650.0 + 0.5 / s)
    stop = jnp.minimum(1 / s + far, farthest)
    h = (stop - start) / (FINE - 2)
    z = start + h * jnp.arange(FINE - 1)
    nodes, weights = (gauss[0] + 1) / 2, gauss[1] / 2
    at = (z[:-1, None] + h * nodes[None]).astype(jnp.float64)
    density = jnp.exp(-(at**2) / 2) * (h * weights[None] / jnp.sqrt(2 * jnp.pi))
    logs = z / s - 0.5 / s**2
    if contracts:
        # Masses of P and of Q in all cells; the error of the former is that of the density and of the ratio.
        q, p = (
            jnp.concatenate([ndtr(start - d)[None], jnp.sum(density * tilt, axis=1), ndtr(d - stop)[None]])
            for d, tilt in ((0.0, 1.0), (1 / s, jnp.exp(at / s - 0.5 / s**2)))
        )
        cells = RatioLaw(p / q, q, jnp.asarray(scale_error(2e-12)))
        return coarsen(logs, cells, 1 / t, points, contracts), (logs[0], logs[-1]), jnp.zeros(()), jnp.zeros(())
    upper_share = jnp.expm1(nodes * h / s) / jnp.expm1(h / s)
    lower_share = jnp.exp(nodes * h / s) * jnp.expm1((1 - nodes) * h / s) / jnp.expm1(h / s)
    zero = jnp.zeros(1)
    upward, downward = jnp.sum(density * upper_share[None], axis=1), jnp.sum(density * lower_share[None], axis=1)
    # The spread moves the tails of X to 0 and to infinity: their Q-mass to 0, their P-mass to infinity.
    in_tails = ndtr(start) + ndtr(-stop)
    infinite = (ndtr(start - 1 / s) + ndtr(1 / s - stop)) * (1 + scale_error(1e-12))
    masses = jnp.concatenate([in_tails[None], jnp.concatenate([downward, zero]) + jnp.concatenate([zero, upward])])
    # The relative error of the masses, 4e-13 in float64, is that of the density, (37^2/2 + 37/s) roundings, and of the
    # quadrature. A smaller one would break the bound eta.
    fine = RatioLaw(jnp.concatenate([zero, jnp.exp(logs)]), masses, jnp.asarray(scale_error(4e-13)))
    return coarsen(logs, fine, 1 / t, points), (logs[0], logs[-1]), infinite, in_tails


def add_laws(
    one: RatioLaw,
    weight: Array | float,
    other: RatioLaw,
    other_weight: Array | float,
    grid: Grid,
    contracts: bool = False,
) -> RatioLaw:
    """Returns the law of a weighted sum of independent values, on a grid's points: see :func:`merge_laws`."""
    return merge_laws(grid, one, other, lambda value: weight * value + other_weight * other.values, 8, contracts)


def multiply_laws(one: RatioLaw, other: RatioLaw, grid: Grid, contracts: bool = False) -> RatioLaw:
    """Returns the law of the product of independent values, on a grid's points: see :func:`merge_laws`."""
    return merge_laws(grid, one, other, lambda value: value * other.values, 8, contracts)


def merge_laws(
    grid: Grid,
    one: RatioLaw,
    other: RatioLaw | _Spread,
    merge: Callable[[Array], Array],
    roundings: int,
    contracts: bool = False,
) -> RatioLaw:
    """Returns the law of what values of two independent laws come to, spread onto a grid.

    Where it ``contracts``, the values of a cell come to their mean instead, which is smaller in convex order. Of masses
    and values that are right to a relative eta and theta, means are right to 2 eta + theta.

    Args:
        grid: the points.
        one: the law of which one value is taken at a time.
        other: the law whose points are all taken with it.
        merge: a value of ``one`` -> what it comes to with each point of the other.
        roundings: those of a product of masses.
        contracts: static.
    """
    values = jnp.concatenate([jnp.zeros(1), jnp.exp(grid.logs())])

    def spread(into: Array, entry: tuple[Array, Array]) -> tuple[Array, None]:
        value, mass = entry
        merged = merge(value)
        low = grid.cell(jnp.log(merged))
        if contracts:
            both = mass * other.masses
            return into.at[low].add(jnp.stack([both, both * merged, jnp.ones_like(both)], axis=-1)), None
        left, right = values[low], values[low + 1]
        share = jnp.clip((merged - left) / (right - left), 0.0, 1.0)
        both = mass * other.masses
        # The second column counts the terms of the sums, for the rounding.
        lower, upper = (jnp.stack([both * side, jnp.ones_like(both)], axis=-1) for side in (1 - share, share))
        return into.at[low].add(lower).at[low + 1].add(upper), None

    # One value of the first law a step, with all points of the other: memory is that of a row, not of all products.
    sums, _ = jax.lax.scan(spread, jnp.zeros((grid.points, 3 if contracts else 2)), (one.values, one.masses))
    masses, *firsts, counts = sums.T
    eta = one.eta + other.eta + roundoff() * (jnp.max(counts) + roundings)
    if contracts:
        return _with_means(masses, firsts[0], values, eta)
    return RatioLaw(values, masses, eta)


def _with_means(masses: Array, firsts: Array, values: Array, eta: Array) -> RatioLaw:
    """Returns the law of cells' means, from their masses, first moments and, where they are empty, any values."""
    seen = masses > 0
    return RatioLaw(jnp.where(seen, firsts / jnp.where(seen, masses, 1.0), values), masses, eta)


def coarsen(
    logs: Array, fine: RatioLaw, share_of_terms: Array | float, points: int, contracts: bool = False
) -> RatioLaw:
    """Returns a law spread from the values 0 and e^logs to so many of them, most where most is lost by wide gaps.

    A gap costs its width squared times the mass there: so widths go like the inverse cube root of the density of all
    the tilted laws together. Any choice of points is a spread, and sound. Where it ``contracts``, the values between
    two neighbouring points come to their mean.
    """
    # Share of the points that are spaced evenly on the fine grid. Any value is sound. They are for the far tails, on
    # which high moments of 1/M rest.
    even = 0.1
    # Share of the points spaced evenly in log(1 + k/t M_k). Any value is sound. That is about the loss of the epoch if
    # all but these k terms are as expected: a far tail of the loss comes from a single large term, whose shape has to
    # be kept to the end.
    share_of_jumps = 0.25
    # Mass, of P and of Q, below which no points are sought: a hundredth of a unit of roundoff. Any value is sound.
    relevant = 1e-18
    # More such powers, over the standard deviation of the ratio's logarithm, around 0 and 1: the tails of Q and P.
    # Any value is sound.
    spreads = np.array([-6.0, -4.5, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.5, 6.0])
    # Powers of the ratio whose expectations the law has to keep: it gets points where the tilted laws lie. Negative
    # ones serve the Rényi divergence of adding an example. Any value is sound: any choice of points is a spread.
    powers = np.array([-16.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 9.0, 17.0])
    values = jnp.concatenate([jnp.zeros(1), jnp.exp(logs)])
    masses, eta = fine.masses / jnp.sum(fine.masses), fine.eta
    positive = masses[1:]
    deviation = jnp.sqrt(jnp.sum(positive * logs**2))
    tilts = jnp.concatenate([jnp.asarray(powers), spreads / deviation, 1 + spreads / deviation])
    exponents = jnp.log(positive)[None] + tilts[:, None] * logs[None]
    tilted = jnp.exp(exponents - jnp.max(exponents, axis=1, keepdims=True))
    tilted = jnp.sum(tilted / jnp.sum(tilted, axis=1, keepdims=True), axis=0)
    relevance = jnp.minimum(1.0, positive * jnp.maximum(1.0, values[1:]) / relevant)
    tilted = tilted * relevance
    # Sums of a few values fall on a few points of the grid only: a moving mean looks at neighbours together.
    tilted = jnp.convolve(tilted, jnp.full(17, 1 / 17.0), mode="same")
    gaps = jnp.diff(logs, append=2 * logs[-1:] - logs[-2:-1])
    losses = jnp.log1p(share_of_terms * values[1:])
    jumps = jnp.diff(losses, append=losses[-1:]) * relevance
    needed, jumps = jnp.cumsum(tilted ** (1 / 3) * gaps ** (2 / 3)), jnp.cumsum(jumps)
    needed = (
        needed / needed[-1] * (1 - share_of_jumps - even)
        + jumps / jumps[-1] * share_of_jumps
        + jnp.linspace(0.0, even, len(logs))
    )
    # Points are quantiles of ``needed``, the mixture of the three shares; 0, the least positive and the largest value
    # are always among them.
    index = 1 + jnp.searchsorted(needed, jnp.linspace(0.0, 1.0, points - 2)[:-1])
    ends = jnp.array([0, 1], index.dtype), jnp.array([len(logs)], index.dtype)
    index = jnp.concatenate([ends[0], jnp.clip(index, 1, len(logs) - 1), ends[1]])
    # Each mass moves to the two chosen points around its value, in the shares that keep the mean.
    segment = jnp.clip(jnp.searchsorted(index, jnp.arange(len(logs) + 1), side="right") - 1, 0, points - 2)
    longest = 2 * jnp.max(index[1:] - index[:-1])
    eta = eta + roundoff() * (longest + len(logs) + 16)
    if contracts:
        chosen, firsts = jnp.zeros((2, points)).at[:, segment].add(jnp.stack([masses, masses * fine.values]))
        return _with_means(chosen, firsts, values[index], eta)
    left, right = values[index[segment]], values[index[segment + 1]]
    share = jnp.clip((values - left) / (right - left), 0.0, 1.0)
    chosen = jnp.zeros(points).at[segment].add(masses * (1 - share)).at[segment + 1].add(masses * share)
    return RatioLaw(values[index], chosen, eta)


def _log_moments_removed(s: Array, t: Array, orders: Array) -> Array:
    """Returns a bound on log E[M^a], NaN for orders above LARGEST_ORDER."""
    # Logs of k!, for k from 0 to LARGEST_ORDER.
    log_factorials = np.array([math.lgamma(k + 1) for k in range(LARGEST_ORDER + 1)])
    k = jnp.arange(LARGEST_ORDER + 1.0, dtype=jnp.float64)
    factorials = jnp.asarray(log_factorials)
    growth = k * (k - 1) / (2 * s**2)
    g = jnp.where(k < 2, -jnp.inf, growth + jnp.log(-jnp.expm1(-jnp.maximum(growth, 1e-300))) - factorials)
    log_f = jnp.logaddexp(g, -factorials)
    steps = t.astype(jnp.int32)

    def exponential(count: Array) -> Array:
        return k * jnp.log(count.astype(jnp.float64)) - factorials

    def roundings(*logs: Array) -> Array:
        # Roundings of the logs, of sums of two of them and of one exponential; a sum of n terms rounds n times.
        sizes = [jnp.where(jnp.isfinite(log), jnp.abs(log), 0.0) for log in logs]
        return roundoff() * (k + 16 + 8 * jax.lax.cummax(sum(sizes, jnp.zeros_like(factorials))))

    def advance(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        h, error, count, bit = carry
        both = jnp.logaddexp(np.log(2.0) + exponential(count), h)
        h, error, count = _log_product(h, both), 2 * error + roundings(h, both), 2 * count
        odd = (steps >> (bit - 1)) & 1
        more = jnp.logaddexp(_log_product(h, log_f), _log_product(exponential(count), g))
        more_error = error + roundings(h, log_f) + roundings(exponential(count), g)
        return jnp.where(odd, more, h), jnp.where(odd, more_error, error), count + odd, bit - 1

    # The state is the log coefficients of H_count, their rounding, count, and the bits of t that are left. A step
    # doubles count, and adds one where the bit is set, by the recursion that the module's docstring states.
    start = g, roundings(g), jnp.int32(1), count_bits(steps)
    h, error, _, _ = jax.lax.while_loop(lambda carry: carry[3] > 0, advance, start)
    scale = factorials - k * jnp.log(t)
    excess = h + scale + error + roundings(h, factorials, k * jnp.log(t))
    # log(1 + e^x), in the form that does not overflow.
    moments = jnp.where(k < 2, 0.0, jnp.logaddexp(excess, 0.0))
    below = jnp.clip(jnp.floor(orders), 1, LARGEST_ORDER - 1).astype(jnp.int32)
    share = orders - below
    between = moments[below] * (1 - share) + moments[below + 1] * share
    return jnp.where(orders <= LARGEST_ORDER, between, jnp.nan)


def _log_product(one: Array, other: Array) -> Array:
    """Returns the logs of the coefficients of a product of polynomials, from the logs of theirs."""
    n, k = np.indices((LARGEST_ORDER + 1, LARGEST_ORDER + 1))
    return jax.nn.logsumexp(jnp.where(k <= n, one[k] + other[np.maximum(n - k, 0)], -jnp.inf), axis=1)


# ----------------------------------------------------------------------------------------------------
# The dominating pair of two steps out of n, drawn at random, by convex order in two dimensions.
#
# Q is N(0, s^2 I_n), P the mixture of its shifts by e_i + e_j over all pairs of steps. With X_i = e^(z_i/s - 1/(2 s^2))
# as above, the likelihood ratio is the mean of X_i X_j. It is affine in every X_i, and these are independent under Q.
# So the mean of a convex function of the ratio grows where an X_i is spread and the others stay; and it grows where any
# statistic of some of them is spread, in which the ratio is affine.
#
# *Parts.* Let the steps be divided, at random, into PARTS parts of equal sizes or sizes that differ by one, and let the
# two steps be any two of different parts, all such pairs equally likely. The two steps so drawn are any two. To
# withhold the division is to average over divisions, P over their P's and Q over the same Q: divergences are jointly
# convex, and by symmetry the same for all divisions, so the divergence of the pair given the division is larger. With
# M_a the sum of part a, whose law :func:`allocate` spreads, the ratio is the sum of M_a M_b over a < b, over the
# number of pairs.
#
# *The law.* S = M_1 + ... + M_a and T, the sum of products of two of these, are built up part by part: with M the next,
# S + M and T + S M. The ratio is affine in (S, T), given all other parts: a spread of (S, T) that keeps its mean makes
# the ratio larger in convex order. Points are those with S on chosen columns and 2 T/S^2 on rows, between 0 and
# 1 - 1/a, which is its maximum, attained with equal M. A point (x, y) goes to both columns beside x, in the shares that
# keep its mean, at the one value of 2 T/S^2 that keeps y, not above the ratio 2 y/x^2; and from there, along each
# column, to both rows beside it, which keeps T. The last part is put on values of the ratio. 2 T/S^2 lies below its
# maximum by about the squared deviation of M: so rows get closer towards the maximum, the more so the smaller the
# deviation is, and the spread between rows remains far smaller than it.
#
# Rounding counts as above: eta for masses, theta for values.
#
# Sources: convex order as above; division at random, Feldman and Shenfeld (2025), "Privacy amplification by random
# allocation", where every part has one of the steps.
# ----------------------------------------------------------------------------------------------------

PARTS = 4
"""Number of parts. Any value from 2 on is sound; more parts cost time and tighten the bound.

Two would give the epsilon of two epochs of half the steps; each further one takes a step of two dimensions. With 4, 5
and 8 the epsilon of a (100, 5) allocation with s = 0.6 was 7.86, 7.83 and 7.80; 8.09 with 2.
"""

ROWS = 64
"""Number of rows, values of 2 T/S^2 over its maximum. Any value is sound."""


class _Spread(NamedTuple):
    """The law of (S, T), on columns of S and rows of 2 T/S^2.

    Attributes:
        columns (columns,): values of S.
        rows (ROWS,): values of 2 T/S^2.
        masses (columns, ROWS): Q's masses.
        eta (): bound on the relative error of the masses.
    """

    columns: Float[Array, " columns"]
    rows: Float[Array, " ROWS"]
    masses: Float[Array, "columns ROWS"]
    eta: Array

    def sums(self) -> RatioLaw:
        """Returns the law of S."""
        return RatioLaw(self.columns, jnp.sum(self.masses, axis=1), self.eta + ROWS * roundoff())

    def products(self) -> Array:
        """Returns the values (columns, ROWS) of T."""
        return self.rows[None] * self.columns[:, None] ** 2 / 2


@register_dataclass
@dataclass(frozen=True)
class PairedAllocationPair(RandomAllocationPair):
    """The spread pair of two steps out of ``batches``, with the attributes of :class:`.RandomAllocationPair`.

    ``in_tails`` is 0, or NaN where the parameters are not valid. Divergences ask nothing else of the spread pair, so a
    program that asks for them alone need not compute it.
    """

    def divergence(self, orders: Array) -> Array:
        """Returns an upper bound on the mechanism's own divergence: that of one step out of each half of the steps."""
        n = as_float64(self.batches)
        halves = (jnp.floor(n / 2), jnp.ceil(n / 2))
        alone = [allocation_pairs(self.noise_multiplier, half, 512, [False])[0] for half in halves]
        total = sum(replace(pair, removes=self.removes).divergence(orders) for pair in alone)
        return jnp.where(as_float64(self.in_tails) == 0, total, jnp.nan)


def paired_allocation_pairs(
    noise_multiplier: ArrayLike, batches: ArrayLike, points: int, removes: Sequence[bool]
) -> list[PairedAllocationPair]:
    """Returns the spread pairs of two steps out of so many batches, 2 at least, as :func:`allocation_pairs` does."""
    # Smallest valid noise multiplier for two steps: products of two values are then below e^430, too.
    least_noise = 0.085
    s, n = as_float64(noise_multiplier), as_float64(batches)
    valid = (s >= least_noise) & (s < jnp.inf) & (n >= 2) & (n <= MOST_BATCHES) & (n == jnp.floor(n))
    s, n = jnp.where(valid, s, 1.0), jnp.where(valid, n, 2.0)
    less = jnp.floor(n / PARTS)
    (few, infinite, _, theta_few), (many, _, _, theta_many) = (
        allocate(s, jnp.maximum(size, 1), points // 2) for size in (less, less + 1)
    )
    square = jnp.expm1(jnp.minimum(1 / s**2, 40.0)) / n  # about what a part deviates by, squared
    law, theta = _pair_laws(few, many, n, square, points)
    theta = theta + 2 * jnp.maximum(theta_few, theta_many)
    valid_as_zero = jnp.where(valid, 0.0, jnp.nan)
    infinite = infinite * (2 - infinite) + valid_as_zero
    return [
        PairedAllocationPair(*outcomes_of(law, theta, infinite, way), s, n, in_tails=valid_as_zero, removes=way)
        for way in removes
    ]


@functools.partial(jax.jit, static_argnames="points")
def _pair_laws(few: RatioLaw, many: RatioLaw, n: Array, square: Array, points: int) -> tuple[RatioLaw, Array]:
    """Returns the law of the ratio from those of the parts' means, of sizes floor(n/PARTS) and one more; and theta."""
    width = jnp.clip(jnp.sqrt(square) / 2, 1e-9, 0.5)
    less, longer = jnp.floor(n / PARTS), jnp.mod(n, PARTS)
    # Sums over the size n/PARTS of an even part: near 1.
    few = few._replace(values=few.values * (less * PARTS / n))
    many = many._replace(values=many.values * ((less + 1) * PARTS / n))
    # With fewer steps than parts, a part of no steps has the sum 0 for sure.
    nobody = many._replace(masses=jnp.zeros_like(many.masses).at[0].set(1.0))
    few = jax.tree.map(lambda some, none: jnp.where(n < PARTS, none, some), few, nobody)
    parts = jax.tree.map(lambda a, b: jnp.stack([jnp.where(i < longer, b, a) for i in range(PARTS)]), few, many)
    first, middle, last = (RatioLaw(*(leaf[at] for leaf in parts)) for at in (0, slice(1, -1), -1))
    start = jnp.zeros((len(first.values), ROWS)).at[:, 0].set(first.masses)
    law = _Spread(first.values, jnp.zeros(ROWS), start, first.eta)
    numbers = jnp.arange(2.0, PARTS)
    # The state is the law of (S, T); each step adds one part. The last part goes straight to the ratio.
    law, _ = jax.lax.scan(lambda law, part: (_with_part(law, *part, width, square), None), law, (middle, numbers))
    # The number of pairs, in units of an even part's size squared, without the pairs within parts.
    within_parts = (PARTS - longer) * less**2 + longer * (less + 1) ** 2
    return _law_of_ratio(law, last, (n**2 - within_parts) / 2 * (PARTS / n) ** 2, width, points)


def _with_part(law: _Spread, part: RatioLaw, number: Array, width: Array, square: Array) -> _Spread:
    """Returns the law of (S + M, T + S M), of so many parts."""
    # Largest width of rows; the width is the squared deviation of the parts where that is less. Any value is sound.
    flattest = 2.0
    # Least positive row, of 2 T/S^2 over its maximum: below it T hardly tells beside S times the sum of the parts to
    # come. Any value is sound. The rows are 0, and e^-u, u evenly in log(1 + u/width).
    least_row = 1e-4
    # The grid takes the sum as a mean: near 1, where it is dense.
    least = jnp.log(jnp.minimum(law.columns[1], part.values[1]) / number)
    grid = Grid(least, jnp.log((law.columns[-1] + part.values[-1]) / number), width)
    fine = add_laws(law.sums(), 1 / number, part, 1 / number, grid)
    columns = number * coarsen(grid.logs(), fine, number / PARTS, len(part.values)).values
    bend, most = jnp.clip(square, 1e-9, flattest), 1 - 1 / number
    largest = jnp.log1p(-np.log(least_row) / bend)
    falls = bend * jnp.expm1(largest * jnp.linspace(1.0, 0.0, ROWS - 1))
    rows = jnp.concatenate([jnp.zeros(1), most * jnp.exp(-falls)])
    squares, products = columns**2 / 2, law.products()
    cells = len(columns) - 2

    def point(into: Array, entry: tuple[Array, Array]) -> tuple[Array, None]:
        value, mass = entry
        x, y = law.columns + value, products + (law.columns * value)[:, None]
        i = jnp.clip(jnp.searchsorted(columns, x, side="right") - 1, 0, cells)
        right = jnp.clip((x - columns[i]) / (columns[i + 1] - columns[i]), 0.0, 1.0)
        square = ((1 - right) * squares[i] + right * squares[i + 1])[:, None]
        row = jnp.where(square > 0, y / jnp.where(square > 0, square, 1.0), 0.0)
        fall = jnp.maximum(-jnp.log(jnp.maximum(row, 1e-300) / most), 0.0)
        # The row just below, by the inverse of the formula for rows.
        place = ROWS - 1 - jnp.log1p(fall / bend) / largest * (ROWS - 2)
        j = jnp.clip(jnp.floor(place), 0, ROWS - 2).astype(jnp.int32)
        upper_share = jnp.clip((row - rows[j]) / (rows[j + 1] - rows[j]), 0.0, 1.0)
        both, i, right = mass * law.masses, i[:, None], right[:, None]
        for column, share in ((i, 1 - right), (i + 1, right)):
            lower, upper = (
                jnp.stack([both * share * side, jnp.ones_like(both)], -1) for side in (1 - upper_share, upper_share)
            )
            into = into.at[column, j].add(lower).at[column, j + 1].add(upper)
        return into, None

    # One value of the part a step, with all points of (S, T), each of which goes to four points.
    sums, _ = jax.lax.scan(point, jnp.zeros((len(columns), ROWS, 2)), (part.values, part.masses))
    masses, counts = sums[..., 0], sums[..., 1]
    eta = law.eta + part.eta + roundoff() * (jnp.max(counts) + 16 + len(columns) * ROWS)
    return _Spread(columns, rows, masses / jnp.sum(masses), eta)


def _law_of_ratio(law: _Spread, last: RatioLaw, pairs: Array, width: Array, points: int) -> tuple[RatioLaw, Array]:
    """Returns the law of the ratio (T + S M)/pairs, and theta."""
    products = law.products()
    least = jnp.minimum(law.rows[1] * law.columns[1] ** 2 / 2, law.columns[1] * last.values[1])
    most = products[-1, -1] + law.columns[-1] * last.values[-1]
    grid = Grid(jnp.log(least / pairs), jnp.log(most / pairs), width)
    fine = merge_laws(grid, last, law, lambda value: (products + law.columns[:, None] * value) / pairs, 16)
    ratio_law = coarsen(grid.logs(), fine, 1.0, points)
    largest = 2 + jnp.maximum(jnp.abs(grid.low), jnp.abs(grid.high))
    return ratio_law, 4 * PARTS * largest * scale_error(VALUE_ERROR)


# ----------------------------------------------------------------------------------------------------
# The mechanism: an epoch, or a composition of blocks.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class RandomAllocation(NoisyMechanism):
    """One epoch of noisy sums over batches by random allocation, also called balls-in-bins sampling.

    Each example goes to exactly one of ``batches`` batches, or to ``participations`` of them, all different, drawn
    uniformly and independently of all others; one after the other their sums of clipped contributions get Gaussian
    noise, each step free to depend on all results before. E epochs, each allocated afresh, are ``steps=E`` of this
    mechanism.

    Attributes:
        noise_multiplier (...): standard deviation of the noise of one step over the clipping norm.
        batches (...): t, the number of batches, and steps, of the epoch; whole, from 1 to 2**30. Shapes broadcast.
        points: number of points of the law that the pair is made of, static; from 64 to 4096. Take more where an epoch
            has very many batches. With 512, the default, delta of an epoch was 0.02 % to 1.5 % too large for t = 2 and
            delta above 1e-8, and up to 8 % for t = 1000, which is 0.6 % of epsilon; twice as many divide the excess by
            about four, and take about three times as long: 0.43 s for t = 1000.
        participations: k, the batches that an example is in, static; from 1 to t. Epsilons at a delta of 1e-4, for
            removing an example, with the exact ones by sampling, and those of Poisson samples of the same size:

            ===== === ===== ===== ========= ======= =======
            t     k   noise upper k epochs  sampled Poisson
            ===== === ===== ===== ========= ======= =======
            100   5   0.6   7.860 8.085     7.36    9.546
            100   5   1.0   2.466 2.490     2.41    2.87
            400   8   0.7   4.449 4.516     4.28    4.99
            ===== === ===== ===== ========= ======= =======

    Relations: "add_or_remove" (default), "remove", "add", "zero_out". Batches of equal size, from one shuffle of the
    data, are *not* this mechanism: there the others' places tell of an example's own, and no tight bound is known.

    Formal guarantee: the pair dominates, so the upper bounds of accountants hold. A single batch is accounted for as
    the :class:`.Gaussian` that it is, exactly. For several the pair is larger in convex order than the tight one
    (it is not :attr:`~.Mechanism.tight`): a lower bound on the epsilon of an epoch itself is that of :meth:`summed`.
    The bounds on Rényi orders do not come from the pair: :mod:`jaxacct.mechanisms.allocation`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead, as does
    noise below 0.05, or 0.085 with several participations.

    *Several participations.* Let the steps be divided at random into blocks, and the example be in two steps of each
    block, any two, or in one of a last block where k is odd: these are any k steps. A mixture over divisions diverges
    no more than its worst part, for divergences are jointly convex and Q is the same for all; and given the division
    the epoch is a composition of the blocks. So it is accounted for as that composition, of blocks of one length or
    longer by one step, each by the pair :class:`~.allocation.PairedAllocationPair`. Blocks with one step each are the
    reduction of Feldman and Shenfeld (2026), "k epochs" above, which also gives the Rényi orders.

    Source: Chua et al. (2024), "Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld (2025), "Privacy
    amplification by random allocation". That the pair P = sum over j of N(e_j, s^2 I)/t, Q = N(0, s^2 I) dominates all
    adaptive steps is a matter of post-processing: let y be drawn from P or Q. At step i the results so far fix the
    example's contribution v and the sum m of the others; with a unit vector u along v, independent noise Z = N(0, s^2)
    and noise N' in the other directions, the released value is distributed as

        m + (|v| y_i + (1 - |v|^2)^(1/2) Z) u + N',

    for y_i is N(0, s^2), or N(1, s^2) where i is the example's own step, and |v| <= 1. The places of the other examples
    are independent of it and may be given away. :mod:`jaxacct.mechanisms.allocation` computes the pair.

    >>> from jaxacct import PoissonSubsampledGaussian, prv
    >>> epochs = RandomAllocation(noise_multiplier=1.0, batches=100)
    >>> allocated = prv.epsilon(epochs, steps=10, delta=1e-5, tolerance=1e-2)
    >>> sampled = prv.epsilon(PoissonSubsampledGaussian(1.0, 0.01), steps=1000, delta=1e-5)
    >>> bool(allocated.upper < sampled.lower)
    True
    """

    noise_multiplier: ArrayLike
    batches: ArrayLike
    points: int = field(default=512, metadata={"static": True})
    participations: int = field(default=1, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")

    def validate(self) -> None:
        if isinstance(self.noise_multiplier, Mechanism):
            raise TypeError(
                f"noise_multiplier = {validation.shorten(self.noise_multiplier)} is a mechanism: allocation of any "
                "mechanism is AllocatedMechanism(mechanism, batches)."
            )
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_batches(self.batches, MOST_BATCHES)
        validation.check_whole(self.points, "points", 64, 4096, "the number of points of the law")
        batches = validation.concrete_value(self.batches)
        least = MOST_BATCHES if batches is None else int(np.min(batches, initial=MOST_BATCHES))
        validation.check_whole(
            self.participations, "participations", 1, least, "how many of the batches hold an example"
        )

    noiseless_pairs = surely_seen

    def with_unit_parameters(self, nothing: Bool[ArrayLike, "*batch"]) -> Self:
        noise, batches = choose(nothing, 1.0, self.noise_multiplier), choose(nothing, self.participations, self.batches)
        return replace(self, noise_multiplier=noise, batches=batches)

    @property
    def composed(self) -> bool:
        return self.participations > 2

    @within_scope
    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns mechanisms and numbers of runs that together are ``steps`` runs of this one, or dominate them.

        For a single batch, or an example in all batches, they are runs of the Gaussian mechanism, whose own pair is
        tight; for more than two participations they are blocks with two, or one. Traced numbers, and several with a
        leading axis, may be of either kind: then all mechanisms are listed, with 0 runs of those that do not apply.
        """
        # Numbers of batches and of runs are multiplied and divided here, which narrow types would not survive.
        k, steps, batches = self.participations, counts_of(steps), counts_of(self.batches)
        full = batches == k
        runs: list[tuple[Mechanism, ArrayLike]] = [
            (Gaussian(choose(full, self.noise_multiplier, 1.0)), choose(full, k * steps, 0))
        ]
        if k <= 2:
            runs.append((replace(self, batches=choose(full, k + 1, batches)), choose(full, 0, steps)))
        else:
            pairs, t = k // 2, choose(full, k + 1, batches)
            if not is_concrete(t) and jnp.issubdtype(t.dtype, jnp.inexact):
                t = jnp.where(t == jnp.floor(t), t, jnp.nan)  # the parts of a fraction could be whole
            alone = t // k if k % 2 else 0
            block, longer = (t - alone) // pairs, (t - alone) % pairs
            sizes = (block, 2, pairs - longer), (block + 1, 2, longer), (alone, 1, 1)
            # One part for each size of block; a size that occurs nowhere gets 0 runs.
            for size, number, count in sizes[: 2 + k % 2]:
                part = replace(self, batches=size, participations=number)
                runs += part.decompose(choose(full | (count == 0), 0, count * steps))
        if not is_concrete(full, steps):
            return runs
        return [(part, count) for part, count in runs if np.any(count)] or runs[:1]

    def summed(self, levels: int = 64) -> DiscretePair:
        """Returns a mechanism that releases no more than one epoch: its ``lower`` is a lower bound for the epoch, too.

        It releases a sum over steps of the rounded loss that a Poisson sample's result y would have, log(1 - k/t + k/t
        e^((2y - 1)/(2 s^2))): a function of the results of two data sets for which the pair of the epoch is tight.

        Args:
            levels: values of a rounded loss besides the least; more lose less. At most 2^15 for all steps together.

        Formal guarantee: a lower bound, up to a relative 1e-10 of probabilities, which are products of normal masses.
        At a delta of 1e-4 those of the table above were 7.14, 2.37 and 4.22 with 64 levels. Concrete scalars only.

        Raises ValueError where the fields are no numbers, or ``levels`` is out of range.

        >>> discrete = RandomAllocation(noise_multiplier=1.0, batches=10, participations=2).summed()
        >>> round(float(np.maximum(discrete.p - np.exp(2) * discrete.q, 0).sum()), 4)  # delta(2), 0.0032 by sampling
        0.0027
        """
        if not is_concrete(self.noise_multiplier, self.batches) or self.batch_shape:
            raise ValueError(f"{self} is traced or a sequence: give numbers, for what is summed is found on the host.")
        s, t = (np.asarray(value).item() for value in (self.noise_multiplier, self.batches))
        s, t, k = float(s), int(t), self.participations
        levels = validation.check_whole(
            levels, "levels", 1, max(2**15 // t, 1), "the levels of a loss, of all steps 2^15"
        )
        if not LEAST_NOISE <= s < np.inf:
            raise ValueError(
                f"noise_multiplier = {s}: a lower bound is made from {LEAST_NOISE} on, and of finite noise."
            )
        # The loss of a Poisson sample with the example's rate, rounded to one of ``levels`` values or the least: any
        # function of an epoch's results gives a lower bound.
        rate = min(k / t, 0.5)
        most = np.logaddexp(np.log1p(-rate), 4 / s + 0.5 / s**2 + np.log(rate))
        losses = np.linspace(np.log1p(-rate), most, levels + 1)[1:]
        # The loss's inverse is the logarithm of (e^loss - 1 + rate)/rate.
        ends = s**2 * (losses + np.log1p(-(1 - rate) * np.exp(-losses)) - np.log(rate)) + 0.5
        absent, present = normal_masses(ends / s), normal_masses((ends - 1) / s)
        q = law_of_sum(absent, t)
        p = np.convolve(law_of_sum(present, k), law_of_sum(absent, t - k))
        return DiscretePair(*join_rare(p, q, 1e-290))

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (P, Q) for "remove" and (Q, P) for "add", both spread over finitely many losses.

        Raises ValueError for more than two participations, which accountants decompose.
        """
        direction_names = directions(self, relation)
        if self.composed:
            raise ValueError(
                f"participations = {self.participations} are accounted for as a composition of blocks with two, not by "
                "one pair: give this to what composes (jaxacct.epsilon), or take mechanism.decompose(steps)."
            )
        removes = [direction == "remove" for direction in direction_names]
        pairs = allocation_pairs if self.participations == 1 else paired_allocation_pairs
        return tuple(map(leave_scope, pairs(self.noise_multiplier, self.batches, self.points, removes)))


def normal_masses(ends: np.ndarray) -> np.ndarray:
    """Returns the standard normal law's masses between -inf, the increasing ends, and inf."""
    below = np.array([math.erfc(-end / math.sqrt(2)) / 2 for end in (-np.inf, *ends, np.inf)])
    above = np.array([math.erfc(end / math.sqrt(2)) / 2 for end in (-np.inf, *ends, np.inf)])
    return np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))


def law_of_sum(masses: np.ndarray, count: int, least: float = 0.0) -> np.ndarray:
    """Returns the law of a sum of independent values, by direct products: small masses are as right as large ones.

    Ends with a mass of at most ``least`` are cut off, of every partial sum: then places count from another start, and
    at most 4 ``least`` of the mass is missing for each value.
    """
    result = np.ones(1)
    # Binary powers: ``masses`` is the law of 2^i values at bit i of the count, and ``result`` that of the bits so far.
    while count:
        if count & 1:
            result = _without_ends(np.convolve(result, masses), least)
        count >>= 1
        masses = _without_ends(np.convolve(masses, masses), least) if count else masses
    return result


def _without_ends(masses: np.ndarray, least: float) -> np.ndarray:
    low, high = (np.searchsorted(np.cumsum(side), least, side="right") for side in (masses, masses[::-1]))
    return masses[low : len(masses) - high] if least else masses


def join_rare(p: np.ndarray, q: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns two laws, outcomes below ``least`` under either joined to the likeliest one, and sums made one.

    This is post-processing and reveals nothing more.
    """
    rare, likeliest = (p < least) | (q < least), np.argmax(q)
    rare[likeliest] = False  # it may be rare under p
    for masses in (p, q):
        masses[likeliest] += np.sum(masses[rare])
        masses[rare] = 0.0
    return p / np.sum(p), q / np.sum(q)
