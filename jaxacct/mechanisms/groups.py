"""Groups of examples: mechanisms for neighbours that differ in several examples, as in all that one person owns.

:func:`group` turns a mechanism for one example into one for g. In reading order:

1. the pair :class:`CountedShiftsPair` of a group on a Poisson sample, and the law of its loss;
2. :func:`group`, and sums over Poisson samples (:class:`PoissonSubsampledGroup`);
3. batches of fixed size (:class:`WithoutReplacementGroup`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.mechanisms.finite import LossDistributionPair, log_absence, noiseless_pairs
from jaxacct.mechanisms.mechanism import (
    Mechanism,
    NoisyMechanism,
    Relation,
    SampledNoise,
    by_numpy_if_concrete,
    directions,
)
from jaxacct.mechanisms.pair import (
    ANGLES,
    COARSEST,
    FINEST,
    RULE,
    STEEPEST,
    CellMasses,
    DominatingPair,
    Law,
    Lines,
    Nodes,
    in_float64_only,
    least_bound,
    log_left_out,
    tilted_shares,
)
from jaxacct.mechanisms.shifted_noise import LawOfShiftedGaussians, ShiftedNoisePair, log_mixture
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import (
    TINY,
    UNIT_ROUNDOFF,
    as_float64,
    is_concrete,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect_traced

# ----------------------------------------------------------------------------------------------------
# The pair of a group of examples, whose noise shifts by a sum of independent choices, and the law of its loss.
#
# Each of g examples takes part or not, and the noise's centre moves by K units, K their number. The generating function
# of K is a product, f(z) = p_0 + p_1 z + ... = prod_j (1 - r_j + r_j z), of real roots alone; nothing else is asked of
# K.
#
# *The density has real roots.* With normal noise of deviation s and z = e^(x d/s^2), d the unit, the density over that
# of the noise around the lowest location is the sum of p_k e^(-c k^2) z^k, c = d^2/(2 s^2). Its roots are real as well
# (Laguerre): e^(-c k^2) is the limit of ((1 - b k) (1 + b k))^n, b^2 = c/n, and to multiply the coefficients by 1 +- b
# k is to pass from f to f +- b z f', the derivative of z^(+-1/b) f but for a power of z. By Rolle's theorem that has a
# root between any two negative ones of f; for b < 1/g its coefficients are positive, so the last root, which must be
# real, is negative, too. So the density is
#
#     c N(x) prod_j (1 + z/rho_j),  rho_j > 0,
#
# and vanishes only where Im x is an odd multiple of pi s^2/d: the strip is that of a single example, however large the
# group is.
#
# *Bounds on lines.* The bounds of :mod:`.shifted_noise`, which has to take all locations' terms for independent, hold
# there factor by factor. At Im x = b, with theta = b d/s^2 and a_j = z/(z + rho_j) at Re x, a factor is (1 + z/rho_j)
# (1 - a_j + a_j e^(i theta)): its modulus is between cos(theta/2) and 1 times the one at Re x, to the square 1 - 4 a_j
# (1 - a_j) sin(theta/2)^2; its argument rises with theta below pi, and is at least a_j sin(theta) up to STEEPEST. The
# roots need not be known: the sum of the a_j is the mean of K under the posterior at Re x, that of the a_j (1 - a_j)
# its variance.
# ----------------------------------------------------------------------------------------------------


def binomial_masses(trials: int, probability: Any) -> tuple[Any, Any]:
    """Returns the probabilities (..., trials + 1) of a binomial law, and by how many units of roundoff each may err.

    A positive probability is raised to TINY at least, which no delta can show: the law is never stochastically smaller.
    Probabilities of a concrete law are rounded once. Those of a traced law are products of ``3 trials + 4`` roundings.
    """
    k = np.arange(trials + 1)
    if is_concrete(probability):
        exact = np.vectorize(lambda p: _rounded_masses(trials, float(p)), signature="()->(k)")
        p = np.asarray(probability, np.float64)[..., None]
        masses = exact(p[..., 0])
        return np.maximum(masses, np.where((k > 0) & (p > 0) & (p < 1), TINY, 0.0)), np.ones(p.shape[:-1])
    p = probability[..., None]
    k = k.reshape((1,) * probability.ndim + (-1,))
    # C(n, k) p^k rises from one side, (1 - p)^(n - k) from the other: products of positive numbers, and no difference.
    rising = _running_products(((trials - k[..., 1:] + 1) / k[..., 1:]) * p)
    falling = _running_products(jnp.broadcast_to(1 - p, rising.shape))[..., ::-1]
    one = jnp.ones_like(p)
    masses = jnp.concatenate([one, rising], axis=-1) * jnp.concatenate([falling, one], axis=-1)
    least = jnp.where((k > 0) & (p > 0) & (p < 1), TINY, 0.0)
    return jnp.maximum(masses, least), jnp.full_like(probability, 3.0 * trials + 4)


def _rounded_masses(trials: int, probability: float) -> np.ndarray:
    """Returns a binomial law's probabilities, in whole numbers rounded once each."""
    success, denominator = probability.as_integer_ratio()
    masses = (math.comb(trials, k) * success**k * (denominator - success) ** (trials - k) for k in range(trials + 1))
    return np.array([mass / denominator**trials for mass in masses])


def _running_products(factors: Array) -> Array:
    """Returns the products (..., n) of the first factors, each of as many roundings as multiplications, by doubling."""
    # After a step each entry is the product of the last ``2 distance`` factors up to it, so log2(n) steps are enough.
    distance = 1
    while distance < factors.shape[-1]:
        before = jnp.concatenate([jnp.ones_like(factors[..., :distance]), factors[..., :-distance]], axis=-1)
        factors, distance = factors * before, 2 * distance
    return factors


@register_dataclass
@dataclass(frozen=True)
class CountedShiftsPair(ShiftedNoisePair):
    """A :class:`ShiftedNoisePair` of whole numbers of units, whose weights are those of sums of independent choices.

    Attributes:
        scale, locations, p_weights, q_weights, noise: those of :class:`ShiftedNoisePair`.
        weight_units (): units of roundoff by which each weight may err relative to itself. Every bound of the pair
            holds for the pair of the true weights.

    >>> pair = CountedShiftsPair(2.0, [0.0, 1.0, 2.0], p_weights=[0.25, 0.5, 0.25], q_weights=[1.0, 0.0, 0.0])
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])  # log(1/4), where nobody takes part
    [-1.3863, inf]
    """

    weight_units: ArrayLike = 0.0

    def _weight_units(self) -> ArrayLike:
        return as_float64(self.weight_units)

    def masses_between(self, x: Float[Array, " n"]) -> CellMasses:
        cells, off = super().masses_between(x), self._weight_units() * roundoff()
        return cells._replace(p_error=cells.p_error + off * cells.p, q_error=cells.q_error + off * cells.q)

    def _rounding(self) -> tuple[Array, Array]:
        error, gap = super()._rounding()
        return error + 2 * self._weight_units(), gap

    def law(self) -> Law | None:
        return in_float64_only(LawOfCountedShifts(self)) if self.noise == "gaussian" else None

    def has_real_roots(self) -> Array:
        """Returns whether the weights are those of a polynomial of real roots: those raised to TINY need not be."""
        _, _, p, q = self._fields()
        return jnp.all(((p == 0) | (p > 2 * TINY)) & ((q == 0) | (q > 2 * TINY)))

    def _count_unit(self) -> Array | None:
        return jnp.where(self.has_real_roots(), _unit(self._fields()[1]), self._spread())


@dataclass(frozen=True)
class LawOfCountedShifts(LawOfShiftedGaussians):
    """The law of a group's loss, by a trapezoid rule in the noise; the unit is the distance of the locations.

    The module's docstring derives its bounds; all others are those of :class:`LawOfShiftedGaussians`.
    """

    scan_nodes = 4 * RULE
    """Nodes of the scan: a group's law is wide, and the strip of little noise is narrow. Any value is sound."""

    pair: CountedShiftsPair

    most_pieces = 16

    def _unit(self) -> Array:
        return _unit(self.pair._fields()[1])

    def _spacing(self) -> Array:
        # Half as much where Q is a mixture: the line that bounds the error costs each of its factors a secant.
        s, finest = self.pair._fields()[0], jnp.where(self._extents()[1] > 0, FINEST / 2, FINEST)
        return jnp.minimum(finest * s**2 / self._unit(), COARSEST * s)

    def _room(self) -> Array:
        """Returns the length of the scan beyond the locations and the reach of the noise."""
        s = self.pair._fields()[0]
        return self.scan_nodes * self._spacing() - 2 * arithmetic().reach * s - self.pair._spread()

    def largest_order(self) -> Array:
        # An order moves the tilted law by the extent of the locations at most: the scan has room for so many. Without
        # real roots the mesh answers.
        return jnp.where(self.pair.has_real_roots(), jnp.maximum(self._room() / self._extents()[3], 0.0), 0.0)

    def scan(self) -> Nodes:
        s, (low, high) = self.pair._fields()[0], self.pair._ends()
        reach = arithmetic().reach * s
        first, last = low - reach, high + reach + jnp.maximum(self._room(), 0.0)
        return self.nodes(first, (last - first) / self.scan_nodes, self.scan_nodes)

    def _secants(self, order: Array, theta: Array) -> Array:
        """Returns an upper bound, in nats, on what a line at ``theta`` costs a negative power of Q."""
        factors = self._extents()[1] / self._unit()
        return jnp.maximum(order, 0.0) * factors * -jnp.log(jnp.cos(theta / 2))

    def lines(self) -> Lines:
        s, extent, theta = self.pair._fields()[0], self._extents()[3], jnp.asarray(ANGLES)
        b = theta * s**2 / self._unit()
        return Lines(b, 0.5 * (b / s) ** 2, self._secants(jnp.ones_like(s), theta), b * extent / s**2)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, locations, p, q = self.pair._fields()
        unit, weights = self._unit(), tilted_shares(nodes, order)
        exponents, gap = self.pair._exponents(nodes.places), self._extents()[2]
        # In units: P's mean beyond its lowest location and Q's below its highest; their variances.
        means, variances = zip(
            *(_posterior_moments(mixture, exponents, locations / unit) for mixture in (p, q)), strict=True
        )
        turned = means[0] - means[1] - gap / unit
        step, positive = nodes.places[1] - nodes.places[0], jnp.maximum(order, 0.0)

        # At a height up to STEEPEST; slopes are in units.
        def bound(slope: Array) -> Array:
            theta = jnp.minimum(w * slope * (unit / s) ** 2, STEEPEST)
            square, b = jnp.sin(theta / 2) ** 2, theta * s**2 / unit
            # Logs of moduli: log(1 - x)/2 <= -x/2, and >= -x/2/(1 - x); each 4 a (1 - a) is at most 1.
            moduli = -2 * square * ((order + 1) * variances[0] - positive * variances[1] / (1 - square))
            least = w * theta * gap / unit
            exponents = moduli - w * turned * jnp.sin(theta)
            # A rule sums the modulus on the line as well; a line at b + c bounds its error.
            beyond = jnp.asarray(ANGLES)
            c = (beyond - theta) * s**2 / unit
            gain = 2 * jnp.pi * c / step - 0.5 * (c / s) ** 2 - self._secants(order, beyond)
            gain = jnp.max(jnp.where(c > 0, gain, -jnp.inf))
            missed = jnp.logaddexp(jnp.log(4.0) - gain, log_left_out() + self._secants(order, theta))
            return 0.5 * (b / s) ** 2 - least + jnp.logaddexp(jnp.log(jnp.sum(weights * jnp.exp(exponents))), missed)

        slope = means[0] - means[1]
        return least_bound(bound, weights, slope, jnp.max(jnp.where(weights == jnp.max(weights), slope, 0.0)))

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        # Weights off by e, relatively, turn P^(1 + t + iw) Q^-(t + iw) by at most e^((1 + 2 |t| + 2 w) e).
        off = jnp.expm1((1 + 2 * jnp.abs(order) + 2 * w) * (self.pair._weight_units() * roundoff()))
        return jnp.logaddexp(super().log_quadrature_error(order, w, step), jnp.log(off))


@jax.jit
def _unit(locations: Array) -> Array:
    return jnp.abs(locations[1] - locations[0])


def _posterior_moments(weights: Array, exponents: Array, counts: Array) -> tuple[Array, Array]:
    """Returns the mean and the variance of the counts (m,) under the posterior weights at each node."""
    log_total = log_mixture(weights, exponents)
    shares = jax.vmap(lambda w, e: jnp.where(w > 0, jnp.exp(jnp.log(w) + e - log_total), 0.0))(weights, exponents)
    mean = jnp.matmul(counts, shares)
    return mean, jnp.sum(shares * (counts[:, None] - mean[None]) ** 2, axis=0)


MOST_EXAMPLES = 512
"""Largest group. On Poisson samples its number of sampled examples is taken by its exact law, each with a place on the
noise's axis; a limit of work alone."""


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """Returns the mechanism that dominates another one where up to ``size`` examples change at once.

    Its epsilon is the guarantee of a group: of a user who owns that many examples of the data, or fewer.

    Args:
        mechanism: accounted for one example.
        size: g, the largest group, whole and at least 1; static.

    Returns:
        A mechanism for every accountant, of the same relations, which then speak of g examples: added, removed, zeroed
        out, or replaced by g others. For g = 1 it is ``mechanism`` itself. Sums with Gaussian and Laplace noise move by
        g, which is the same as 1/g of the noise. On Poisson samples it is a :class:`PoissonSubsampledGroup`. An epsilon
        becomes g epsilon, with its delta times 1 + e^epsilon + ... + e^((g - 1) epsilon).

    Formal guarantee: the pairs dominate all neighbours that differ in at most g examples; for sums they are tight, as g
    examples whose gradients are one vector attain them. A mechanism known by its epsilon and delta alone becomes every
    mechanism with the guarantee of g examples: a ``lower`` is that of the worst of these, and not that of such a group.
    Divisions and products are rounded to the safe side.

    Raises ValueError for mechanisms without a proof: for batches of fixed size there is
    :class:`WithoutReplacementGroup`, which asks for the number of examples. TypeError or ValueError where an argument
    is wrong.

    Source: Dwork and Roth (2014), "The algorithmic foundations of differential privacy", Theorem 2.2, for mechanisms
    known by epsilon and delta alone; :class:`PoissonSubsampledGroup`.

    >>> from jaxacct import Gaussian, PoissonSubsampledGaussian
    >>> group(PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01), 8).size
    8
    >>> group(Gaussian(4.0), 2)
    Gaussian(noise_multiplier=np.float64(2.0))
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism = {mechanism!r} is no mechanism: give one, and make a tuple of the groups of several."
        )
    size = validation.check_whole(size, "size", 1, 2**31 - 1, "the number of examples of a group")
    return mechanism if size == 1 else mechanism.of_group(size)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledGroup(SampledNoise):
    """A noisy sum over a Poisson sample, for groups of examples: the result of :func:`group` for such a sum.

    Attributes:
        scale (...): s, the noise multiplier of Gaussian noise, or the scale of Laplace noise over an example's L1 norm.
        sampling_rate (...): q, probability of each example to be in the batch, independently; shapes broadcast.
        size: g, the most examples of a group, from 1 to 512; static.
        noise: "gaussian" (default) or "laplace"; static.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", "replace", each of up to g examples.

    Formal guarantee: with K binomial, of g trials at the rate q, and B the noise, the pair is (B + K, B) for "remove",
    its reverse for "add", and (B + K, B - K) for "replace". They dominate, and g equal gradients of norm 1 attain them.

    Proof. Fix which of all others are sampled, and let a set S of the group be. The sum then moves by v_S, of norm at
    most |S|, or in the other data set by w_S. With mu_v the noise moved by v and f_k(a) the greatest mu_v-probability
    of an event of mu_0-probability a, |v| <= k, which by Neyman and Pearson is that of a half-line moved by k,

        P(A) - c Q(A) = sum_S P(S) (mu_(v_S)(A) - c mu_(w_S)(A)) <= sum_k P(K = k) (f_k(a) - c (1 - f_k(1 - a))),

    or with a in the place of the one that does not move. One half-line attains all k at once, so the right side is the
    pair's at it. Fewer than g examples give a smaller K, and f_k rises with k. In several dimensions f_k is that of
    one: for normal noise by its symmetry, for Laplace noise in the L1 norm as for :class:`.Laplace`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead. The exact
    accountant takes Gaussian noise only; Laplace noise has to go to the mesh.

    Source: Ganesh (2024), "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians
    mechanisms"; Charles et al. (2024), "Fine-tuning large language models with user-level differential privacy".

    >>> import jaxacct as ja
    >>> print(ja.delta(PoissonSubsampledGroup(1.0, 0.01, size=8), steps=1, epsilon=1.0))
    [0.0002410248, 0.0002410249]
    """

    scale: ArrayLike
    sampling_rate: ArrayLike
    size: int = field(metadata={"static": True})
    noise: Literal["gaussian", "laplace"] = field(default="gaussian", metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out", "replace")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        if self.noise == "laplace":
            validation.check_noise_scale(self.scale)
        else:
            validation.check_noise_multiplier(self.scale, "scale")
        validation.check_sampling_rate(self.sampling_rate, zero=True)
        validation.check_whole(self.size, "size", 1, MOST_EXAMPLES, "the number of examples of a group")
        validation.check_one_of(self.noise, "noise", ("gaussian", "laplace"))

    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        """Returns the pairs of a group of which every sampled member is seen (:func:`.finite.noiseless_pairs`)."""
        rate = np.asarray(self.sampling_rate, np.float64)
        return noiseless_pairs(directions(self, relation), self.size * log_absence(rate, 1 - rate))

    def of_group(self, size: int) -> Mechanism:
        return PoissonSubsampledGroup(self.scale, self.sampling_rate, self.size * size, self.noise)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (B + K, B) for "remove" and (B, B - K) for "add"; for "replace" (B + K, B - K)."""
        make = functools.partial(self._pairs, directions(self, relation))
        return by_numpy_if_concrete(make, self.scale, self.sampling_rate)

    def _pairs(self, direction_names: tuple[str, ...], xp: Any, scale: Any, rate: Any) -> tuple[DominatingPair, ...]:
        # Places beyond the group's size have no weight: they make shapes equal, and so programs few.
        # Fewest places on the noise's axis. Smaller groups have as many places, all but theirs without weight, and
        # larger ones twice, four times as many and so on: one program serves all groups of so many places. Speed only.
        least_places = 16
        s, q = xp.broadcast_arrays(scale, rate)
        most = least_places << max(0, math.ceil(math.log2(self.size / least_places)))
        drawn, units = binomial_masses(self.size, q)
        drawn = xp.where(((q >= 0) & (q <= 1))[..., None], drawn, np.nan)  # masses below 0 are cut off above
        drawn = xp.concatenate([drawn, xp.zeros((*q.shape, most - self.size))], axis=-1)
        counts = xp.arange(most + 1.0)

        def pair(places: Any, p: Any, q: Any) -> CountedShiftsPair:
            return CountedShiftsPair(s, xp.broadcast_to(places, p.shape), p, q, self.noise, units)

        if "replace" in direction_names:
            some, none = drawn[..., 1:], xp.zeros_like(drawn[..., 1:])
            p, q = (xp.concatenate([drawn[..., :1], *rest], axis=-1) for rest in ((some, none), (none, some)))
            return (pair(xp.concatenate([counts, -counts[1:]]), p, q),)
        nobody = xp.broadcast_to(np.where(np.arange(most + 1) == 0, 1.0, 0.0), drawn.shape)
        pairs = {"remove": (counts, drawn, nobody), "add": (-counts, nobody, drawn)}
        return tuple(pair(*pairs[direction]) for direction in direction_names)


# ----------------------------------------------------------------------------------------------------
# Groups of examples in batches of fixed size, drawn without replacement
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class WithoutReplacementGroup(NoisyMechanism):
    """Gaussian mechanism on a batch of fixed size, for groups of g examples that are replaced by others.

    Attributes:
        noise_multiplier (...): s, standard deviation of the noise over the clipping norm.
        num_examples: n, public; static, as the next two.
        batch_size: B, at most n - g.
        size: g, the most examples of a group, from 1 to 512.

    Relations: "replace" (default), and "zero_out" as a case of it.

    Formal guarantee: with K hypergeometric, how many of the group are in a batch, and h_k its probabilities, the pair
    has for c >= 1 the divergence

        U(c) = sup over z of (1-c) h_0 Phi(z) + sum_k h_k max over u in [z - 2k/s, z] of Phi(u + 2k/s) - c Phi(u),

    and is its own mirror image. For g = 1 it is that of :class:`.GaussianWithoutReplacement`. The pair of the mixture
    of N(2k, s^2) against N(0, s^2) is not enough: for c near 1 its optimal event lies left of most places, where it
    costs less to let the other data set move, too; and for c < 1 neighbours in the reverse order exceed it. U may be
    above the attained divergence, where the best places for several k do not go together: by a third for few examples.

    Proof. Draw a batch R of others, in random order, and put the first K of the group, in random order, in the place of
    the first K of R. Given R and the orders, the sum moves by v_k if K = k, and in the other data set by w_k; v_k, w_k
    and v_k - w_k are sums of k differences of two gradients, of norm 2k at most. Let an event have the probability
    Phi(z) where nothing moves, and Phi(u) where w_k does. By Neyman and Pearson u >= z - 2k/s, and the event has at
    most Phi(min(z, u) + 2k/s) where v_k does; u above z only costs. So the divergence is at most U for c >= 1, and by
    symmetry its mirror image for c < 1. U is convex, as a supremum of linear functions of c, and the slopes meet at 1
    as those of a profile must, for the events there have at most 1 - h_0 (1 - 2 Phi(-1/s)) under both together.

    At the optimum u = min(z, max(z - 2k/s, -k/s - s log(c)/(2k))), and z = -t/s solves an equation that rises in t:

        sum_k h_k ((e^(2k(t-k)/s^2)/c - 1)+ - (e^(-2k(t+k)/s^2) - 1/c)+) = (1 - 1/c) h_0.

    The events' probabilities are those of losses above log(c). The mesh (:mod:`jaxacct.prv`) answers. Losses of less
    than 1e-44 of the mass count as infinite.

    Raises ValueError where a field is out of range; traced noise cannot raise and costs inf instead.

    Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function",
    Theorem 11, for g = 1; the proof above.

    >>> WithoutReplacementGroup(2.0, num_examples=1000, batch_size=10, size=2).relations
    ('replace', 'zero_out')
    """

    noise_multiplier: ArrayLike
    num_examples: int = field(metadata={"static": True})
    batch_size: int = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("replace", "zero_out")

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_whole(self.size, "size", 1, MOST_EXAMPLES, "the number of examples of a group")
        validation.check_whole(self.num_examples, "num_examples", 2, 2**53, "the number of examples")
        others = self.num_examples - self.size
        validation.check_whole(
            self.batch_size, "batch_size", 1, max(others, 1), "the size of a batch, no larger than all others are"
        )
        if others < 1:
            raise ValueError(
                f"size = {self.size} leaves no others of {self.num_examples} examples: give a smaller group."
            )

    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        """Returns the one pair of a group of which every member in the batch is seen."""
        directions(self, relation)
        absent, *present = self.masses()
        return noiseless_pairs(("replace",), log_absence(math.fsum(present), absent))

    def of_group(self, size: int) -> Mechanism:
        return WithoutReplacementGroup(self.noise_multiplier, self.num_examples, self.batch_size, self.size * size)

    def masses(self) -> np.ndarray:
        """Returns the probabilities (size + 1,) of the numbers of the group in a batch, rounded once each."""
        n, b, g = self.num_examples, self.batch_size, self.size
        mass = Fraction(1)
        # In exact fractions: the mass of none in the batch, one factor for each member of the group; then each mass
        # from the one before.
        for i in range(g):
            mass *= Fraction(n - b - i, n - i)
        exact = [mass]
        for k in range(g):
            mass *= Fraction((g - k) * max(b - k, 0), (k + 1) * (n - g - b + k + 1))
            exact.append(mass)
        return np.array([float(each) for each in exact])

    @within_scope
    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        # Error of sums of normal tails, relative to their parts times their logarithms, in units of roundoff. The
        # accountants' bounds rest on it: a lower value is wrong.
        value_units = 256
        # Standard deviations beyond which a loss counts as infinite: 1e-44 of its mass. Any value is sound.
        farthest = 14.0
        directions(self, relation)
        s, masses = as_float64(self.noise_multiplier), self.masses()
        s = jnp.where(s >= 0, s, jnp.nan)  # squares would hide a sign
        # The loss of the largest shift, 2 g, at farthest deviations. The atom at 0 is the jump of the slopes of U at c
        # = 1.
        highest = 2 * self.size * (self.size + farthest * s) / s**2
        parameters = s, jnp.broadcast_to(masses, (*s.shape, len(masses)))
        beyond = jnp.vectorize(lambda loss, s, h: _masses_above(loss, (s, h))[0], signature="(),(),(k)->()")
        infinite, error = beyond(highest, *parameters), jnp.full_like(s, value_units * UNIT_ROUNDOFF)
        atoms, laws = (jnp.zeros_like(s), jnp.full_like(s, jnp.nan)), (_cdf_p, _cdf_q, _survival_p, _survival_q)
        return (LossDistributionPair(-highest, highest, parameters, infinite, error, atoms, *laws),)


def _optimal_edge(loss: Array, s: Array, masses: Array) -> Array:
    """Returns t for losses log(c) (n,) >= 0, by bisection of the equation that rises in t."""
    k, h = jnp.arange(1.0, masses.shape[0])[:, None], masses[1:, None]

    def is_high(t: Array) -> Array:
        # The two sums of the equation in the docstring, each term cut at 0; the first is cut above as well, before it
        # overflows.
        rising = jnp.expm1(jnp.clip(2 * k * (t[None] - k) / s**2 - loss[None], 0.0, 700.0))
        falling = jnp.maximum(jnp.exp(-2 * k * (t[None] + k) / s**2) - jnp.exp(-loss)[None], 0.0)
        return jnp.sum(h * (rising - falling), axis=0) >= -jnp.expm1(-loss) * masses[0]

    # The upper end: where the term of one k alone is 1, the sum is high enough. So many halvings
    # give all digits of float64; with fewer the edge, and so the loss's law, would be inexact.
    alone = k + s**2 * (loss[None] + jnp.log1p(1 / jnp.maximum(h, 1e-290))) / (2 * k)
    return bisect_traced(is_high, jnp.min(alone, axis=0), jnp.zeros_like(loss), steps=64)


def _masses_above(loss: Array, parameters: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns the probabilities under P and under Q of losses above ``loss``, at least 0, elementwise."""
    s, masses = parameters
    # The optimal events at each loss: z = -t/s where nothing moves, and u for k of the group, as in the proof.
    flat = loss.reshape(-1)
    z = -_optimal_edge(flat, s, masses)[None] / s
    k, h = jnp.arange(1.0, masses.shape[0])[:, None], masses[1:, None]
    u = jnp.clip(-k / s - s * flat[None] / (2 * k), z - 2 * k / s, z)
    base = masses[0] * _normal_cdf(z[0])
    p, q = (base + jnp.sum(h * _normal_cdf(edge), axis=0) for edge in (u + 2 * k / s, u))
    return p.reshape(loss.shape), q.reshape(loss.shape)


def _normal_cdf(z: Array) -> Array:
    return 0.5 * jax.scipy.special.erfc(-z * np.sqrt(0.5))


# Below 0 the law is the mirror image: the mass that P has up to -y is that of Q from y on.
def _cdf_p(loss: Array, parameters: Any) -> Array:
    p, q = _masses_above(jnp.abs(loss), parameters)
    return jnp.where(loss < 0, q, 1 - p)


def _cdf_q(loss: Array, parameters: Any) -> Array:
    p, q = _masses_above(jnp.abs(loss), parameters)
    return jnp.where(loss < 0, p, 1 - q)


def _survival_p(loss: Array, parameters: Any) -> Array:
    p, q = _masses_above(jnp.abs(loss), parameters)
    return jnp.where(loss < 0, 1 - q, p)


def _survival_q(loss: Array, parameters: Any) -> Array:
    p, q = _masses_above(jnp.abs(loss), parameters)
    return jnp.where(loss < 0, 1 - p, q)
