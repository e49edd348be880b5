"""Discrete Gaussian noise: on one integer, with its exact law, and on integer vectors, sampled or not.

In reading order:

1. how far the discrete Gaussian is from what can be made of the continuous one, in functions of numbers: :func:`theta`,
   :func:`chi_square_of_dither`, :func:`chi_square_of_rounding`, :func:`total_variation`, :func:`cost`;
2. the pair of one integer, :class:`DiscreteGaussianPair`, and its mechanism :class:`DiscreteGaussian`;
3. noise on vectors, :class:`DiscreteGaussianVector`, by the continuous mechanisms that are near to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.mechanisms.atoms import Atoms, atoms_of_masses
from jaxacct.mechanisms.finite import LOSS_UNITS, MANY, FinitePair, NoiseOnIntegers, atoms_of_separate_cells
from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Mechanism, Relation, SampledNoise, counts_of, directions, is_count
from jaxacct.mechanisms.pair import CellMasses, DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, as_float64, as_real, is_concrete, log_complement
from jaxacct.numerics.pytrees import register_dataclass

# ----------------------------------------------------------------------------------------------------
# The discrete Gaussian is nearly a post-processing of the continuous one.
#
# Write rho_t(x) = e^(-x^2/(2 t^2)), Theta_t(c) for the sum of rho_t(k - c) over the integers k, D(s) for the discrete
# Gaussian of scale s, which has the mass rho_s(k)/Theta_s(0) at k, and chi2(P || Q) = sum (P - Q)^2/Q.
#
# Sums. By Poisson's formula Theta_t(c) = t sqrt(2 pi) (1 + 2 sum_(m >= 1) e^(-2 pi^2 m^2 t^2) cos(2 pi m c)). So
# Theta_t(c)/(t sqrt(2 pi)) is in [1 - theta, 1 + theta] for every c, theta = theta(t^2), and is 1 + theta at c = 0.
#
# Post-processing. Let a random map K from reals to integers be such that K(y + a) has the law of K(y) + a for every
# integer a. Then an integer x plus noise of the law of K(N(0, s'^2)) has the law of K(x + N(0, s'^2)): it is made of
# Gaussian noise of deviation s' on the same integers, coordinate by coordinate. Two such maps are close to D(s):
#
# (A) Dither: s^2 = s'^2 + t^2, and K(y) = k with probability rho_t(k - y)/Theta_t(y). Then K(N(0, s'^2)) is k with
# probability E[rho_t(k - y)/Theta_t(y)], and E rho_t(k - y) = t/s rho_s(k). By the sums above its ratio to the mass of
# D(s) at k lies in an interval of length (1 + theta(s^2)) 2 theta/(1 - theta^2) <= 2 theta/(1 - theta). The ratio has
# the mean 1 under D(s), and a variable in an interval of length l has a variance of at most l^2/4, hence
# chi2 <= (theta/(1 - theta))^2. Likewise the sum of two independent discrete Gaussians X_1 + b X_2, b whole, has the
# ratio Theta_tau(c)/E Theta_tau(c) to D(s), s^2 = s_1^2 + b^2 s_2^2 and tau = s_1 s_2/s, by completing squares; and the
# sum of D(s) and N(0, t^2) the same ratio to N(0, s^2 + t^2), with tau = s t/sqrt(s^2 + t^2). A ratio A/E A with A in
# [1 - theta, 1 + theta] has a variance of at most (theta/(1 - theta))^2, too, at theta = theta(tau^2).
#
# (B) Rounding: s >= 2, s'^2 = s^2 - 1/12, K(y) the nearest integer. K(N(0, s'^2)) is k with the density f(k) at k of
# N(0, s'^2) plus a uniform number of [-1/2, 1/2], and 1 + chi2 = (1 + theta(s^2)) sum_k h(k), h = f^2/phi_s, phi_s the
# density of N(0, s^2). As a mixture of Gaussian bumps of one variance v >= s^2 - 1/6, h sums to at most 1 + theta(v)
# times its integral. By Parseval with Hermite polynomials that is sum_n n! g_n^2 (2s)^(-2n), where g_n are the
# coefficients of E e^(wX/s - w^2/2) = g(w/2s), g(y) = e^(-y^2/6) sinh(y)/y = 1 - y^4/180 + y^6/2835 - ...; n! g_n^2 is
# at most (4/9)^(n/2), as sinh(y)/y is below e^(y^2/6) coefficient by coefficient. So s^8 chi2 falls in s, and is
# 2.8949e-6 at s = 2.
#
# Many samples. If N independent pairs have chi2 <= c each, the product of ratios L has E L^2 <= (1 + c)^N, and total
# variation E|L - 1|/2 <= sqrt(E L^2 - 1)/2.
#
# A run. Its output is F(data, w, Z), Z the noise and w all other randomness, independent of Z; F may be adaptive. If
# F(data, w, Z') is (epsilon, delta)-DP and Z within total variation tau of Z', then for every event P <= P' + tau <=
# e^epsilon Q' + delta + tau <= e^epsilon (Q + tau) + delta + tau: the run is (epsilon, delta + (1 + e^epsilon) tau)-DP.
# So guarantees of the continuous noise are converted to epsilon and delta first, and tau is added last.
#
# Sources: Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy"; Micciancio and Walter
# (2017), "Gaussian sampling over the integers", for sums.
# ----------------------------------------------------------------------------------------------------

__all__ = [
    "DiscreteGaussian",
    "DiscreteGaussianPair",
    "DiscreteGaussianVector",
    "chi_square_of_dither",
    "chi_square_of_rounding",
    "cost",
    "theta",
    "total_variation",
]

Number = TypeVar("Number", float, jax.Array)
"""A number of Python's, or one of JAX's, which may be traced."""


def _library(*numbers: Any) -> Any:
    return np if is_concrete(*numbers) else jnp


def theta(v: Number) -> Number:
    """Returns an upper bound on ``2 sum_(m >= 1) e^(-2 pi^2 m^2 v)``; ``inf`` below v = 1, where none is claimed.

    From v = 1 on all terms after the first add less than 1e-25 of it.
    """
    xp = _library(v)
    # At 30 the bound is 1e-257; above, it stays there and holds. The factor covers the exponent's rounding, in float32
    # as well.
    bound: Number = xp.where(v >= 1, 2.0002 * xp.exp(-2 * math.pi**2 * xp.clip(v, 1.0, 30.0)), math.inf)[()]
    return bound


def chi_square_of_dither(t_squared: Number) -> Number:
    """Returns a bound on chi2 of the dithered Gaussian (A) against the discrete one, and of sums with tau^2 = t^2."""
    xp, off = _library(t_squared), theta(t_squared)
    bounded = xp.minimum(off, 0.5)
    bound: Number = xp.where(off < 0.5, xp.maximum((bounded / (1 - bounded)) ** 2 * 1.000001, TINY), math.inf)[()]
    return bound


def chi_square_of_rounding(scale: Number) -> Number:
    """Returns a bound on chi2 of the rounded Gaussian (B) against the discrete one; ``inf`` below a scale of 2."""
    xp = _library(scale)
    bounded = xp.clip(scale, 2.0, 2.0**100)
    bound: Number = xp.where(scale >= 2, xp.maximum(2.895e-6 * bounded**-8.0, TINY), math.inf)[()]
    return bound


def total_variation(samples: Number, chi_square: Number) -> Number:
    """Returns a bound on the total variation of so many samples, of at most this chi2 each: 1 where unknown."""
    xp = _library(samples, chi_square)
    # From an exponent of 2 on the bound is above 1.
    exponent = xp.minimum(samples * xp.clip(chi_square, TINY, 4.0), 2.0)
    bound: Number = xp.where(exponent >= 0, xp.minimum(0.5000001 * xp.sqrt(xp.expm1(exponent)), 1.0), 1.0)[()]
    return bound


def cost(epsilon: Number, tau: Number) -> Number:
    """Returns ``(1 + e^epsilon) tau``, rounded up: what a total variation adds to delta at epsilon; 1 at most."""
    xp = _library(epsilon, tau)
    added = (1 + xp.exp(xp.minimum(epsilon, 709.0))) * tau * 1.000001
    bound: Number = xp.where(added <= 1, added, xp.where(tau == 0, 0.0, 1.0))[()]
    return bound


# ----------------------------------------------------------------------------------------------------
# The pair of discrete Gaussian noise.
#
# P is the discrete Gaussian on the integers moved by D, Q the one at 0: their masses are proportional to e^(-(n-D)^2/(2
# s^2)) and e^(-n^2/(2 s^2)), and the loss is D (2n - D)/(2 s^2). Cell masses are sums over the integers within a static
# reach, beyond which neither has a mass that float64 could hold. Cumulants are closed forms over all integers: there
# the weight e^(order Y) makes those far away count.
#
# Sums over the integers, theta functions, are taken as they stand for s below 1/sqrt(2 pi) and by Poisson's formula
# above: then the k-th term is at most e^(-pi k^2) of the first, and the fifth is below the rounding.
# ----------------------------------------------------------------------------------------------------

SELF_DUAL = 1 / math.sqrt(2 * math.pi)
"""Scale s at which Poisson's formula leaves the sum as it is."""

TERMS = 4
"""Terms of a theta function on either side of the first; off the integers the sum takes one more.

Fewer would leave out more than the rounding that is allowed for.
"""


@register_dataclass
@dataclass(frozen=True)
class DiscreteGaussianPair(DominatingPair):
    """The discrete Gaussian moved by ``sensitivity`` against the one at 0; the reverse is its mirror image.

    It is valid where the mass farther than ``reach`` from the centre is below the smallest normal float64, as it is for
    a reach of 38 scales: the accountants allow for masses that float64 flushes to zero.

    Attributes:
        scale (): sigma of the law proportional to e^(-n^2/(2 sigma^2)) on the integers.
        sensitivity: distance by which one example moves the result, a whole number; static.
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

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the integers as atoms, or as cells of equally many, sqrt(2 nats) deviations about both centres.

        The few larger losses count as infinite: far away, they would be all that counts in a moment. What lies beyond
        ``reach`` has less than TINY.
        """
        pair = self._finite()
        p, q, losses = as_real(pair.p), as_real(pair.q), pair._losses()
        n, off = 2 * self.reach + self.sensitivity + 1, as_real(pair.rounding)
        infinite = jnp.asarray(2 * TINY), jnp.zeros(())
        far = jnp.ceil(jnp.sqrt(2 * nats) * as_float64(self.scale)) + 1
        if n <= MANY * cells:
            is_large = jnp.arange(n + 0.0) > self.reach + self.sensitivity + far
            doubt = LOSS_UNITS * roundoff() * jnp.abs(losses)
            places, masses = jnp.where(is_large, jnp.inf, losses), jnp.where(p > 0, p, TINY)
            return atoms_of_masses(places, masses, doubt, off * p + TINY, infinite, self.is_valid())
        # Cells of so many integers; the first and the last take all that lies beyond.
        some = cells // 2
        first = jnp.maximum(self.reach - far, 0.0)
        size = jnp.ceil((jnp.minimum(self.reach + self.sensitivity + far, n - 1.0) - first + 1) / (some - 2))
        index = np.arange(n)
        slot = jnp.clip(jnp.floor((index - first) / size) + 1, 0, some - 1).astype(jnp.int32)
        rows = jnp.stack([p, off * p + TINY, q, off * q + TINY])
        sums = jnp.zeros((4, some), p.dtype).at[:, slot].add(rows)
        rounds = 2 * n * roundoff()
        begins = jnp.minimum(jnp.maximum(first + size * (jnp.arange(some) - 1.0), 0.0), n - 1.0).at[0].set(0.0)
        ends = jnp.append(jnp.maximum(begins[1:] - 1, begins[:-1]), n - 1.0)
        edges = self._losses(jnp.stack([begins, ends], -1).reshape(-1) - self.reach).at[-1].set(jnp.inf)
        off = rounds * (sums[::2] + sums[1::2])
        return atoms_of_separate_cells(edges, sums, off, infinite, self.is_valid())

    def is_valid(self) -> Array:
        # Scale s below which the square of a loss's denominator leaves float64; the pair counts as one without noise.
        smallest = 1e-140
        s = as_float64(self.scale)
        cut = _log_upper_tail(s, jnp.asarray(self.reach + 1.0, jnp.float64))
        return (s > smallest) & (s < jnp.inf) & (cut < math.log(TINY / 2))

    def loss_range(self) -> tuple[Array, Array]:
        s = as_float64(self.scale)
        return jnp.full_like(s, -jnp.inf), jnp.full_like(s, jnp.inf)

    def central_loss(self) -> Array:
        return self._losses(as_float64(self.sensitivity))

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        return self._finite().cell_masses(boundaries)

    def boundary_error(self, largest: Array) -> Array:
        return LOSS_UNITS * roundoff() * jnp.abs(largest)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y)]`` in closed form.

        It is the Gaussian's, ``order (order + 1) D^2/(2 s^2)``, plus the logarithm of the sum of the bell over the
        integers moved by (order + 1) D, relative to the sum over the integers themselves. That logarithm is at most 0,
        and it is 0 where (order + 1) D is whole.
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
    # A wide bell: by Poisson's formula the difference of the sums is one of sines squared, of one sign.
    rate = 2 * math.pi**2 * jnp.maximum(s, SELF_DUAL) ** 2
    spread, total = jnp.zeros_like(rate), jnp.ones_like(rate)
    for k in range(1, TERMS + 1):
        term = jnp.exp(-(k**2) * rate)
        spread, total = spread + 4 * term * jnp.sin(math.pi * k * offset) ** 2, total + 2 * term
    wide = log_complement(spread / total)
    # A narrow bell: each sum with its largest term taken out.
    narrow_s = jnp.minimum(s, SELF_DUAL)
    terms = jnp.zeros_like(rate)
    for n in range(1, TERMS + 2):
        for side in (n, -n):
            terms = terms + jnp.exp(-(side**2 - 2 * side * offset) / (2 * narrow_s**2))
    narrow = -(offset**2) / (2 * narrow_s**2) + jnp.log1p(terms) - _log_total(narrow_s)
    return jnp.minimum(jnp.where(s > SELF_DUAL, wide, narrow), 0.0)


def _log_upper_tail(s: Array, distance: Array) -> Array:
    """Returns an upper bound on the log of the bell's sum over distance, distance + 1, ..., relative to the integers'.

    Where the first term is above the centre the ratios of neighbours fall, so that a geometric series bounds the sum.
    No sum, on or off the integers, exceeds the one over the integers.
    """
    d = jnp.maximum(distance, 0.0)
    bounded = jnp.minimum(d, 1e150)
    exponent = -(bounded**2) / (2 * s**2) * (1 - 16 * roundoff())
    ratio = -jnp.expm1(-(2 * bounded + 1) / (2 * s**2))
    log_sum = exponent - jnp.log(ratio) - _log_total(s) + 64 * roundoff()
    return jnp.where(distance == jnp.inf, -jnp.inf, jnp.where(distance > 0, jnp.minimum(log_sum, 0.0), 0.0))


@register_dataclass
@dataclass(frozen=True)
class DiscreteGaussian(NoiseOnIntegers):
    """Discrete Gaussian mechanism: an integer query plus noise n of mass proportional to e^(-n^2 / (2 scale^2)).

    Attributes:
        scale (...): above 0; close to the standard deviation of the noise where it exceeds 1.
        sensitivity: largest change of the query's value, a whole number of at least 1; static.
        reach: integers on either side of the centre that masses are kept for, static. By default it is enough for a
            concrete scale up to 1700, rounded up to a power of two, and 2048, enough for a scale of 54, for a traced
            one. Beyond it neither noise may have a mass that float64 can hold; epsilon is inf where that fails. Give it
            where a large scale is traced.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out". All are the same pair by symmetry, and the pair
    of the largest shift dominates those of smaller ones, since the likelihood ratio is monotone. For replace-one
    neighbours give the sensitivity to a replacement. The query is one number: on vectors discrete noise is not
    spherical, and this pair is not theirs.

    Raises ValueError where a concrete field is out of range or needs more than the largest reach; a traced scale cannot
    raise and costs inf instead.

    Source: Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", Definition 1 and
    Theorem 7.

    >>> from jaxacct import rdp
    >>> mechanism = DiscreteGaussian(scale=2.0)
    >>> mechanism.reach, round(float(rdp.curve(mechanism, [3.0])[0]), 9)
    (128, 0.375)
    """

    reach: int | None = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reach is None:
            object.__setattr__(self, "reach", _reach_for(validation.concrete_value(self.scale)))

    def validate(self) -> None:
        super().validate()
        if self.reach is not None:
            validation.check_whole(self.reach, "reach", 1, 2**30, "the integers summed over on either side")

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: the noise moved by the sensitivity against the noise itself."""
        directions(self, relation)
        return (DiscreteGaussianPair(self.scale, self.sensitivity, self.reach or _reach_for(None)),)


def _reach_for(scale: np.ndarray | None) -> int:
    """Returns a power of two that reaches far enough for each of the scales, None for traced ones."""
    # Number of scales beyond which the discrete Gaussian's mass, e^(-38^2/2) = e^-722, is below the smallest float64,
    # e^-708.
    scales = 38
    # Most integers on either side of discrete Gaussian noise that are summed over by default; enough for a scale of
    # 1700. A limit of memory and time alone.
    largest_reach = 2**16
    # Integers on either side for a traced scale, which Python cannot look at; enough for a scale of 54. Beyond it
    # epsilon is inf.
    default_reach = 2**11
    if scale is None or not np.any(np.isfinite(scale)):
        return default_reach
    # At least 64 integers, and a power of two: few programs serve all scales.
    largest = float(np.max(scale, where=np.isfinite(scale), initial=0.0))
    needed = 2 ** math.ceil(math.log2(max(scales * largest + 1, 64)))
    if needed > largest_reach:
        raise ValueError(
            f"scale = {largest} needs sums over more than {largest_reach} integers on either side: give "
            f"reach = {needed}, if that much memory and time can be spent."
        )
    return needed


# ----------------------------------------------------------------------------------------------------
# Noise on vectors.
#
# Sampling. An integer query r of batches moves by at most the sensitivity D in norm where an example comes in; it need
# not be a sum. Let each example be in the batch with probability q, independently of the others. Whether the example at
# issue exists or not, the batch B of the others has one law. Given B and what was shown before, its presence moves r(B)
# by an integer vector w, |w| <= D. From a number y of N(0, s'^2), or of the mixture (1-q) N(0, s'^2) + q N(D, s'^2),
# form y |w|/D + sqrt(1 - |w|^2/D^2) N(0, s'^2), put it along w, independent N(0, s'^2) across it, and add r(B): that is
# r plus Gaussian noise of deviation s' without the example, or with it. So runs with noise K(N(0, s'^2)) are dominated
# by those of the sampled Gaussian mechanism of multiplier s'/D; replacement by its two mixtures, likewise.
#
# From below. Let an example move one coordinate by D, a whole number, and nothing else. What is released plus N(0, t^2)
# tells no more, and is by (A) within a total variation of the sampled Gaussian mechanism of multiplier
# sqrt(s^2 + t^2)/D. Where an integer vector of norm D moves several coordinates, the same holds along it.
# ----------------------------------------------------------------------------------------------------

VARIANCES: Any = np.array([1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0, 9.0])
"""Variances t^2 of the dither that are considered. Tightness only: more of it is less exact, and nearer."""


@register_dataclass
@dataclass(frozen=True)
class DiscreteGaussianVector(SampledNoise):
    """Discrete Gaussian noise on integer vectors, on a Poisson sample or on all data: integer DP-SGD, histograms.

    Each of the query's integer coordinates gets independent noise n of mass proportional to e^(-n^2 / (2 scale^2)).

    Attributes:
        scale (...): above 0; close to the standard deviation of the noise where it exceeds 1. Nothing is known below a
            scale of 1, and little below 3: epsilon is inf, or loose.
        sensitivity (...): largest L2 norm, above 0, by which an example moves the integer vector, as it was rounded.
            Any map from batches to integer vectors that keeps to it will do; it need not be a sum.
        dimensions (...): number of coordinates, whole, from 1 to 2^53.
        sampling_rate (...): probability of each example to be in the batch, in [0, 1], independently of the others; 1
            unless given. Shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", under which the vector moves by up to twice the
    sensitivity, and "zero_out".

    Formal guarantee: the noise of all ``dimensions * steps`` coordinates is within a total variation tau of what can be
    made of Gaussian noise of scale s', scale^2 - s'^2 at least 1/12. Where the same composition with Gaussian noise of
    multiplier s'/sensitivity is (epsilon, delta)-DP, this one is (epsilon, delta + (1 + e^epsilon) tau)-DP: delta is
    converted first, and tau added last. Of the s' that are known, each with its tau, the one is taken that gives away
    the least share of the variance and of delta. An ``upper`` on epsilon is inf where the cost is more than half of
    delta. ``lower`` is that of a query that attains the sensitivity, which takes an integer vector of that norm.

    :func:`jaxacct.epsilon`, :func:`jaxacct.delta` and :func:`jaxacct.curve` know it, alone or composed with others, and
    so does :func:`jaxacct.calibrate.scale` of concrete numbers. All else raises ValueError: there is no dominating
    pair, and noise drawn from a table is bounded, so that its Rényi divergences are infinite however small tau is.

    Source: the proofs above in this file; for one number without sampling :class:`DiscreteGaussian` has the exact law.

    >>> from jaxacct import epsilon
    >>> print(epsilon(DiscreteGaussianVector(scale=2.0**20, sensitivity=2.0**18, dimensions=10_000), 10, 1e-5))
    [3.341409, 3.341410]
    """

    scale: ArrayLike
    sensitivity: ArrayLike
    dimensions: ArrayLike
    sampling_rate: ArrayLike = 1.0

    relations: ClassVar[tuple[Relation, ...]] = Gaussian.relations

    def validate(self) -> None:
        validation.check_discrete_scale(self.scale)
        validation.check_positive(self.sensitivity, "sensitivity")
        meaning = "the number of coordinates that get noise, a whole number"
        validation.check_whole_numbers(self.dimensions, "dimensions", 2**53, "coordinates", meaning)
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        width, entries = cast(Any, self.sensitivity), cast(Any, self.dimensions)
        nothing: Any = super().releases_nothing()
        return nothing & (width > 0) & is_count(entries) & (entries >= 1)

    @property
    def takes_all(self) -> bool:
        """Whether it is seen that every example takes part: the sampling rate is 1."""
        return is_concrete(self.sampling_rate) and bool(np.all(np.asarray(self.sampling_rate) == 1))

    def of_group(self, size: int) -> Mechanism:
        """Returns the same with ``size`` times the sensitivity; raises ValueError on samples: nothing is known."""
        if not self.takes_all:
            return super().of_group(size)
        return replace(self, sensitivity=self.sensitivity * size * (1 + 4 * roundoff()))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> NoReturn:
        """Raises ValueError: there is no pair."""
        directions(self, relation)
        raise ValueError(
            f"{type(self).__name__} has no dominating pair, and no Rényi, zCDP or GDP guarantee: its noise is close to "
            "a Gaussian's in total variation alone, and a table's tails are cut off. Use jaxacct.epsilon, "
            "jaxacct.delta or jaxacct.curve, which convert the Gaussian's guarantee first and then add the distance."
        )


def nearby(mechanism: Any, steps: Any, weight: Any, *, below: bool) -> tuple[Any, Any]:
    """Returns a composition with Gaussian noise in place of discrete noise on vectors, and the chi2 of all samples, ().

    ``below``: the discrete noise is nearly made of the Gaussian, which so tells at least as much. Else the Gaussian is
    nearly made of the discrete noise. ``weight`` times a total variation is the share of delta that it costs. Of the
    mechanisms that are known it is the one that gives away the least, half of its shares of variance and of delta,
    among those that leave half of delta. Where none is known chi2 is NaN, or so large that it says nothing. It is
    called inside the float64 scope.
    """
    if isinstance(mechanism, (tuple, list)):
        each = [nearby(part, count, weight, below=below) for part, count in zip(mechanism, steps, strict=True)]
        return tuple(part for part, _ in each), sum(total for _, total in each)
    if not isinstance(mechanism, DiscreteGaussianVector):
        return mechanism, 0.0
    steps = counts_of(steps)
    numbers = mechanism.scale, mechanism.sensitivity, mechanism.dimensions, mechanism.sampling_rate, steps
    xp = _library(*numbers, weight)
    fields: Any = [np.asarray(number, np.float64) if xp is np else as_float64(number) for number in numbers]
    s, width, entries, _, steps = fields
    with np.errstate(all="ignore"):
        s, width, entries = xp.broadcast_arrays(s, width, entries)
        is_known = (entries >= 1) & is_count(entries)
        samples = xp.where(mechanism.releases_nothing(), 0.0, xp.where(is_known, entries * steps, xp.nan))
        each = s[..., None]
        if below:
            moved = np.array([1 / 12, *VARIANCES]) / each / each
            chi = xp.broadcast_to(chi_square_of_dither(VARIANCES), (*s.shape, len(VARIANCES)))
            chi = xp.concatenate([chi_square_of_rounding(each), chi], -1)
            left = 1 - moved * (1 + 8 * roundoff())
            chi, factor = xp.where(left > 0, chi, xp.inf), xp.sqrt(xp.where(left > 0, left, 1.0))
            rounding = 1 - 8 * roundoff()
        else:
            moved = VARIANCES / each / each
            chi = chi_square_of_dither(VARIANCES / (1 + moved) * (1 - 8 * roundoff()))
            factor, rounding = xp.sqrt(1 + moved), 1 + 8 * roundoff()
        # A chi2 of 4 is a total variation of 1.
        totals = samples[..., None] * xp.minimum(chi, 4.0)
        share = xp.sqrt(totals) / 2 * xp.minimum(weight, 1e30)
        score = xp.where(share <= 0.5, (moved + share) / 2, 1e9 + share)
        # The first of the least score; the last where all are NaN. No argmin: see :func:`.precision.first_index`.
        order = np.arange(totals.shape[-1])
        place = xp.min(xp.where(score == xp.min(score, -1, keepdims=True), order, order[-1]), -1, keepdims=True)
        total, factor = (xp.sum(xp.where(order == place, row, 0.0), -1) for row in (totals, factor))
        noise = s * factor / xp.where(width > 0, width, xp.nan) * rounding
        # Where the quotient overflows there is some noise still.
        noise = xp.where(s < xp.inf, xp.minimum(noise, 1 / (4 * arithmetic().tiny)), noise)
    if mechanism.takes_all:
        return Gaussian(noise), xp.sum(total)
    return PoissonSubsampledGaussian(noise, mechanism.sampling_rate), xp.sum(total)
