"""Mechanisms with an (epsilon, delta) guarantee: nothing else is known of them, or their guarantee decides their pair.

The dominating pair of each is that of its worst case, a law on few losses. In reading order:

- guarantees of one direction, and pure and approximate guarantees,
- randomized response,
- the exponential mechanism, and the pair of every mechanism whose losses span no more than a range,
- a guarantee amplified by sampling.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.mechanisms.finite import FinitePair, LossDistributionPair, mirrored_laws
from jaxacct.mechanisms.mechanism import (
    DIRECTIONS,
    REVERSE,
    Mechanism,
    Relation,
    directions,
    is_exact_zero,
    more_of_a_group,
)
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    exact_float64,
    kept_positive,
    leave_scope,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass

ROUNDING_UNITS = 16
"""Bound on the relative error of a binary probability, in units of roundoff: exp twice, two products, a sum and a
quotient. The accountants' bounds rest on it: it must not be lowered."""


# ----------------------------------------------------------------------------------------------------
# Pure and approximate guarantees: of both directions, or of one.
#
# "Add_or_remove", "replace" and "zero_out" hold in both orders of two neighbours, so a guarantee that is stated for one
# of them bounds P(S) <= e^eps Q(S) + delta and Q(S) <= e^eps P(S) + delta for all events S: randomized response is the
# worst such pair (Kairouz, Oh and Viswanath 2015). "Remove" and "add" hold in one order, and a guarantee that is stated
# for one of these is P(S) <= e^eps Q(S) + delta alone.
#
# *The worst pair of one direction.* With p = P(S), for any real y,
#
#     P(S) - e^y Q(S) <= p - e^(y - eps) (p - delta)_+,
#
# which for y >= eps is at most delta, and for y < eps is largest at p = 1, where it is 1 - (1 - delta) e^(y - eps).
# Both are attained, at every y, by the pair in which P tells everything with probability delta and else gives an
# outcome that Q gives with probability (1 - delta) e^-eps: the loss is infinite, or eps surely. That pair has the
# guarantee itself, so it dominates all that have it, and no smaller one does. Randomized response does not dominate it:
# its loss is -eps at times, and k runs cost about sqrt(k) eps in place of k eps.
#
# *Its reverse* has an infinite loss of mass 1 - (1 - delta) e^-eps: a guarantee of one direction says nothing more of
# the other than what follows from P's masses summing to one. (At eps = 0 both are the total variation, which has no
# direction.) So no trade-off function of both directions, no Gaussian one and no sub-Gaussian loss follows from it.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByEpsilon(Mechanism):
    """The base of mechanisms whose one number is an epsilon, under whichever relation it is stated for."""

    epsilon: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_exact_zero(self.epsilon)


@register_dataclass
@dataclass(frozen=True)
class PureDP(ByEpsilon):
    """Any mechanism that is epsilon-DP: at worst it is as private as binary randomized response.

    Attributes:
        epsilon (...): the guarantee, at least 0. 0 means that nothing is released; inf, that nothing is guaranteed.

    Relations: "add_or_remove" (default), "replace", "zero_out", "remove", "add". The guarantee is stated for the
    relation in use: an epsilon for adding and removing is *not* one for replacing. Under the first three it holds in
    both orders of two neighbours, and the pair, randomized response, is its own mirror image. Under "remove" or "add"
    it is a guarantee of that direction alone, whose worst loss is epsilon surely: k runs cost k epsilon. For one
    direction of a mechanism that is epsilon-DP in both give :class:`RandomizedResponse`, whose pairs are those of the
    mechanism in either.

    Formal guarantee: the pair dominates, at every real epsilon, and is attained; the proof for one direction is in the
    comment above :class:`ByEpsilon`.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", where this is the
    dominating mechanism in the proof of the composition theorem; delta = 0.

    >>> pair, = PureDP(epsilon=0.5).dominating_pairs()
    >>> [float(loss) for loss in pair.losses]
    [0.5, -0.5]
    >>> pair, = PureDP(epsilon=0.5).dominating_pairs("remove")
    >>> [float(loss) for loss in pair.losses], [float(mass) for mass in pair.p]
    ([0.5, -inf], [1.0, 0.0])
    """

    tight: ClassVar[bool] = True
    one_way: ClassVar[bool] = True

    def of_group(self, size: int) -> PureDP:
        return PureDP(more_of_a_group(self.epsilon, 0.0, size)[0])

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: of binary randomized response, or of a loss of epsilon surely for one direction."""
        directions(self, relation)
        epsilon = kept_positive(exact_float64(self.epsilon))
        if relation in REVERSE:
            p, q = (masses[..., 1:] for masses in _one_way_masses(epsilon, jnp.zeros_like(epsilon)))
            losses = jnp.stack([epsilon, jnp.full_like(epsilon, -jnp.inf)], axis=-1)
            return (leave_scope(FinitePair(p, q, losses, jnp.full_like(p, ROUNDING_UNITS * roundoff()))),)
        return (leave_scope(mirrored_pair(binary_probabilities(epsilon), (epsilon, -epsilon))),)


@register_dataclass
@dataclass(frozen=True)
class ApproximateDP(Mechanism):
    """Any mechanism that is (epsilon, delta)-DP.

    At worst, it tells everything with probability delta and is binary randomized response otherwise.

    Attributes:
        epsilon (...): at least 0.
        delta (...): in [0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "replace", "zero_out", "remove", "add". The guarantee is stated for the
    relation in use, as that of :class:`PureDP` is: under "remove" or "add" it is one of that direction alone, and
    the loss is infinite with probability delta, else epsilon.

    Formal guarantee: the pair dominates, at every real epsilon, and is attained; the proof for one direction is in the
    comment above :class:`ByEpsilon`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead. The Rényi
    accountant counts delta beside the divergences, since any delta above 0 makes all of them infinite.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", where this is the
    dominating mechanism in the proof of the composition theorem; Murtagh and Vadhan (2016), "The complexity of
    computing the optimal composition of differential privacy", for parameters that differ.

    >>> pair, = ApproximateDP(epsilon=0.5, delta=0.25).dominating_pairs("replace")
    >>> [float(loss) for loss in pair.losses], float(pair.p[0])
    ([inf, 0.5, -0.5, -inf], 0.25)
    """

    epsilon: ArrayLike
    delta: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    may_fail: ClassVar[bool] = True
    tight: ClassVar[bool] = True
    one_way: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)
        validation.check_probability(self.delta, "delta")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_exact_zero(self.epsilon) & is_exact_zero(self.delta)

    def of_group(self, size: int) -> ApproximateDP:
        return ApproximateDP(*more_of_a_group(self.epsilon, self.delta, size))

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: infinite losses of mass delta, beside which it is that of :class:`PureDP`."""
        directions(self, relation)
        # Were delta flushed to zero, the infinite losses would be lost with it.
        epsilon, delta = jnp.broadcast_arrays(
            *(kept_positive(exact_float64(value)) for value in (self.epsilon, self.delta))
        )
        infinite = jnp.full_like(epsilon, jnp.inf)
        if relation in REVERSE:
            p, q = _one_way_masses(epsilon, delta)
            losses = [infinite, epsilon, -infinite]
        else:
            high, low = binary_probabilities(epsilon)
            p = jnp.stack([delta, (1 - delta) * high, (1 - delta) * low, jnp.zeros_like(delta)], axis=-1)
            q, losses = p[..., ::-1], [infinite, epsilon, -epsilon, -infinite]
        # The user's delta is exact, and so is a mass of 0.
        units = np.array([0.0, ROUNDING_UNITS, ROUNDING_UNITS, 0.0])[: len(losses)]
        rounding = jnp.broadcast_to(units * roundoff(), p.shape)
        return (leave_scope(FinitePair(p, q, jnp.stack(losses, axis=-1), rounding)),)


@functools.partial(jax.jit, inline=True)
def _one_way_masses(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    """Returns P's and Q's masses of a loss of inf, epsilon and -inf; below an epsilon of 0 NaN, which is no pair."""
    epsilon = jnp.where(epsilon >= 0, epsilon, jnp.nan)
    nothing, rest = jnp.zeros_like(delta), 1 - delta
    p = jnp.stack([delta, rest, nothing], axis=-1)
    return p, jnp.stack([nothing, rest * jnp.exp(-epsilon), delta - rest * jnp.expm1(-epsilon)], axis=-1)


def mirrored_pair(masses: Sequence[Array], losses: Sequence[Array]) -> FinitePair:
    """Returns the pair of a few outcomes that is its own mirror image, from P's masses (...,) and the losses (...,)."""
    p = jnp.stack(masses, axis=-1)
    return FinitePair(p, p[..., ::-1], jnp.stack(losses, axis=-1), jnp.full_like(p, ROUNDING_UNITS * roundoff()))


@functools.partial(jax.jit, inline=True)
def binary_probabilities(epsilon: Array) -> tuple[Array, Array]:
    """Returns the probabilities of the true and of the false answer; below 0 NaN, with which no pair is valid."""
    ratio = jnp.exp(jnp.where(epsilon >= 0, -epsilon, jnp.nan))
    return 1 / (1 + ratio), ratio / (1 + ratio)


# ----------------------------------------------------------------------------------------------------
# Randomized response: the reports of local privacy
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class RandomizedResponse(ByEpsilon):
    """Randomized response: one person's value, or with some probability another one of the possible values.

    The true one of k values is released with probability e^epsilon / (e^epsilon + k - 1), each other one with
    1 / (e^epsilon + k - 1). The loss is epsilon, -epsilon or, for k > 2, 0.

    Attributes:
        epsilon (...): at least 0; log of the ratio of those two probabilities.
        outcomes: k, the number of possible values, at least 2; static.

    Relations: "replace", and with the same pair "add_or_remove" (default), "remove" and "add". What is released is one
    person's report, and neighbours differ in the value behind it. Adding and removing are taken in that sense too: a
    person who is absent still sends a report, of some fixed value. Where absence means that *no report is sent*, the
    number of reports gives it away, and no epsilon holds. The pair is its own mirror image. Under "zero_out" one of the
    two neighbours sends a value drawn uniformly, whatever happens; the losses are those of the report against that, and
    back, log(k p) and log(k p') with p and p' the probabilities above.

    Source: Kairouz, Bonawitz and Ramage (2016), "Discrete distribution estimation under local privacy", equation (2).

    >>> pair, = RandomizedResponse(epsilon=1.0, outcomes=4).dominating_pairs("replace")
    >>> [float(loss) for loss in pair.losses]
    [1.0, 0.0, -1.0]
    """

    outcomes: int = field(default=2, metadata={"static": True})

    tight: ClassVar[bool] = True

    def validate(self) -> None:
        super().validate()
        validation.check_whole(self.outcomes, "outcomes", 2, 2**53, "the number of possible values")

    def of_group(self, size: int) -> PureDP:
        """Returns the mechanism with the pure guarantee size epsilon, which the reports of a group have."""
        return PureDP(more_of_a_group(self.epsilon, 0.0, size)[0])

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: the report's laws for two true values; for "zero_out" the pairs of both directions."""
        direction_names = directions(self, relation)
        epsilon = kept_positive(exact_float64(self.epsilon))
        ratio = jnp.exp(jnp.where(epsilon >= 0, -epsilon, jnp.nan))
        # All probabilities over that of the true value, 1: nothing overflows for a large epsilon.
        total = 1 + (self.outcomes - 1) * ratio
        if relation == "zero_out":
            return tuple(self._against_uniform(epsilon, ratio, total, direction) for direction in direction_names)
        true, other, rest = 1 / total, ratio / total, (self.outcomes - 2) * ratio / total
        masses, losses = [true, rest, other], [epsilon, jnp.zeros_like(epsilon), -epsilon]
        if self.outcomes == 2:
            del masses[1], losses[1]
        return (leave_scope(mirrored_pair(masses, losses)),)

    def _against_uniform(self, epsilon: Array, ratio: Array, total: Array, direction: str) -> DominatingPair:
        """Returns the pair of the true value and all others, under the report and a uniform one, or the reverse."""
        k = self.outcomes
        report = jnp.stack([1 / total, (k - 1) * ratio / total], axis=-1)
        uniform = jnp.broadcast_to(jnp.array([1 / k, (k - 1) / k]), report.shape)
        # log(k/total) and -log(total/(k ratio)), each as a log1p of a positive number, so that nothing cancels.
        high = jnp.log1p((k - 1) * -jnp.expm1(-epsilon) / total)
        low = jnp.where(epsilon < 700, -jnp.log1p(jnp.expm1(jnp.minimum(epsilon, 700.0)) / k), math.log(k) - epsilon)
        losses, rounding = jnp.stack([high, low], axis=-1), jnp.full_like(report, ROUNDING_UNITS * roundoff())
        if direction == "remove":
            return leave_scope(FinitePair(report, uniform, losses, rounding))
        return leave_scope(FinitePair(uniform, report, -losses, rounding))


# ----------------------------------------------------------------------------------------------------
# The pair of every mechanism whose privacy losses span no more than a range e.
#
# Its profile and its Rényi divergences are derived in :class:`BoundedRangePair`.
# ----------------------------------------------------------------------------------------------------


def survival_p(loss: Array, epsilon: Array) -> Array:
    """Returns P(Y > y) = (1 - e^((y-e)/2)) / (1 - e^-e), without cancellation where it is 0."""
    return jnp.expm1(jnp.clip(loss - epsilon, -2 * epsilon, 0.0) / 2) / jnp.expm1(-epsilon)


def survival_q(loss: Array, epsilon: Array) -> Array:
    """Returns Q(Y > y) = (e^((e-y)/2) - 1) / (e^e - 1), likewise."""
    # Numerator and denominator are divided by e^epsilon, which may overflow.
    x = jnp.clip(epsilon - loss, 0.0, 2 * epsilon)
    return jnp.exp((x - 2 * epsilon) / 2) * jnp.expm1(-x / 2) / jnp.expm1(-epsilon)


@register_dataclass
@dataclass(frozen=True)
class BoundedRangePair(LossDistributionPair):
    """The law of the loss whose hockey-stick divergence is the supremum of those of all losses with values in a range.

    Let the losses of a mechanism, for two given neighbours, lie in [t - e, t]. The largest of these laws in convex
    order has two values, t with the P-mass (1 - e^(t-e))/(1 - e^-e), so that both laws sum to one; t is in [0, e]. The
    divergence at a threshold y, (P - e^y Q)(t) for t - e <= y <= t, is largest at t = (e + y)/2:

        delta(y) = (1 - e^((y-e)/2))^2 / (1 - e^-e) for |y| <= e.

    A supremum of profiles is a profile (it is convex in e^y). The loss that has this one has in [-e, e] the density
    e^(y/2) / (4 sinh(e/2)) under P, and e^(-y/2) / (4 sinh(e/2)) under Q: the pair is its own mirror image.

    Rényi divergences have a sharper bound than this law's, as each order has its own worst t: with b = a - 1,
    A = 1 - e^(-a e) and B = e^-e (1 - e^(-b e)) the moment is (A e^(b t) - B e^(a t)) / (1 - e^-e), largest at
    e^t = b A / (a B), where it is A e^(b t) / (a (1 - e^-e)). The divergence is also at most a e^2/8, by Hoeffding's
    lemma.
    """

    has_attained_product: ClassVar[bool] = False

    def divergence(self, orders: Array) -> Array:
        e, b = as_float64(self.highest), orders - 1
        log_a = jnp.log(-jnp.expm1(-orders * e))
        t = jnp.log(b) - jnp.log(orders) + log_a + e - jnp.log(-jnp.expm1(-b * e))
        terms = t, (log_a - jnp.log(orders) - jnp.log(-jnp.expm1(-e))) / b
        sizes = 4 + e + (jnp.abs(log_a) + jnp.log(orders) + jnp.abs(jnp.log(-jnp.expm1(-e)))) * (1 + 1 / b)
        sizes = sizes + jnp.abs(jnp.log(b)) + jnp.abs(jnp.log(-jnp.expm1(-b * e)))
        exact = sum(terms, 16 * arithmetic().function * sizes)
        # NaN of the exact form, at extreme e, leaves the bounds by Hoeffding's lemma and by e.
        bound = jnp.minimum(jnp.fmin(exact, orders * e**2 / 8), e)
        return jnp.where((e > 0) & (e < jnp.inf), bound, jnp.nan)


def bounded_range_pair(epsilon: ArrayLike) -> BoundedRangePair:
    """Returns the pair of a range of ``epsilon`` (...); batch axes stay in front."""
    e = as_float64(epsilon)
    # Bound on the errors of the distribution functions. They are at most one, and products of an exp and a quotient of
    # two expm1, for 23 units. The loss's distance from an end, up to 2 e, rounds once: by up to 2 e units, by half of
    # which the exponential moves. What more it does is in proportion to its own exponent, and so a share of |log S|.
    error = (24 + e) * 2.0**-53
    free = jnp.full_like(e, jnp.nan)
    return BoundedRangePair(-e, e, e, jnp.zeros_like(e), error, (free, free), *mirrored_laws(survival_p, survival_q))


@register_dataclass
@dataclass(frozen=True)
class ExponentialMechanism(ByEpsilon):
    """Exponential mechanism: outcome y with probability proportional to ``e^(epsilon q(y) / (2 S))``.

    q(y) is the score of an outcome, S the most that a neighbour may change a score by. Where all scores change in one
    direction, ``e^(epsilon q(y) / S)`` is this mechanism as well. So is every mechanism that is epsilon-bounded range:
    for any two neighbours all its privacy losses lie within some interval of length epsilon.

    Attributes:
        epsilon (...): the range; above 0 if anything is released. The mechanism is also epsilon-DP; as one of bounded
            range it costs about half of that when composed: a :class:`.PureDP` may have losses from -epsilon to
            epsilon.

    Relations: "add_or_remove" (default), "remove", "add", "replace", "zero_out". The range is taken to be that of the
    relation in use. It has no direction: losses in [t - epsilon, t] are, the other way round, in [-t, epsilon - t].

    Formal guarantee: the pair dominates one run, tightly, and so dominates adaptive compositions. Of many runs it is
    not tight (:class:`.BoundedRangePair`), by a factor of up to (4/3)^(1/2) in epsilon. So every accountant of pairs
    takes runs of equal epsilon together, wherever they stand, in blocks of up to 128
    (:mod:`jaxacct.mechanisms.bounded_range`): the pair of a block is that of its worst adaptive composition, within
    less than a per cent of epsilon (:func:`jaxacct.convert.bounded_range_to_epsilon`). Runs of different epsilons, and
    of epsilons above 16, have their own pairs. Lower bounds are those of scores chosen by what former runs gave: exact
    for one run or block beside other mechanisms, and of several for one of them. :mod:`jaxacct.rdp` uses the
    mechanism's own divergences; :func:`jaxacct.epsilon` and :func:`jaxacct.delta` take its bound where it is less.

    Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for exponential mechanisms",
    Definition 4.1 and Lemma 4.2; Rényi divergences, Cesar and Rogers (2021), "Bounding, concentrating, and truncating".

    >>> from jaxacct import PureDP, delta
    >>> ranged, pure = (delta(kind(0.5), 1, epsilon=0.1).upper for kind in (ExponentialMechanism, PureDP))
    >>> f"{ranged:.4f} {pure:.4f}"
    '0.0835 0.2052'
    """

    def of_group(self, size: int) -> ExponentialMechanism:
        """Returns that of size epsilon: the losses of one change after another lie in intervals whose lengths add."""
        return ExponentialMechanism(more_of_a_group(self.epsilon, 0.0, size)[0])

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        return (leave_scope(bounded_range_pair(kept_positive(exact_float64(self.epsilon)))),)


# ----------------------------------------------------------------------------------------------------
# Sampling of any (epsilon, delta)-DP mechanism
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SampledDP(Mechanism):
    """The base of both kinds of sampling: a mechanism on a sample is (log(1 + q (e^epsilon - 1)), q delta)-DP."""

    epsilon: ArrayLike
    delta: ArrayLike
    sampling_rate: ArrayLike

    may_fail: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)
        validation.check_probability(self.delta, "delta")
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return (is_exact_zero(self.epsilon) & is_exact_zero(self.delta)) | is_exact_zero(self.sampling_rate)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair of the guarantee that the mechanism has on the sample."""
        directions(self, relation)
        fields = self.epsilon, self.delta, self.sampling_rate
        epsilon, delta, q = (kept_positive(exact_float64(value)) for value in fields)
        # A margin for the rounding of a few functions raises both; delta never exceeds that without sampling. Neither
        # vanishes where a product underflows.
        raised = 1 + 16 * arithmetic().function
        delta = jnp.minimum(kept_above(q * jnp.where(delta <= 1, delta, jnp.nan) * raised, delta), delta)
        loss = kept_above(log_of_sampled(epsilon, q) * raised, epsilon)
        return leave_scope(ApproximateDP(loss, delta).dominating_pairs(relation))


def kept_above(value: Array, cost: Array) -> Array:
    """Returns ``value`` raised to the smallest normal number; where ``cost`` is 0, or no cost at all, that as it is."""
    return jnp.where(cost > 0, jnp.maximum(value, TINY), cost)


def log_of_sampled(epsilon: Array, q: Array) -> Array:
    """Returns log(1 + q (e^epsilon - 1)), right to 4 F of itself (F as in :attr:`.Arithmetic.function`).

    It is the largest log-ratio of (1 - q) Q + q P to Q, or of its inverse, where the ratio of P to Q is at most
    e^epsilon. It is NaN where q is not in (0, 1], and may be 0 below the smallest normal number.

    Up to epsilon = 700 it is log(1 + w), w = q expm1(epsilon), in which w is right to F + u and nothing is subtracted;
    log1p carries that over at most whole, and adds F. Beyond, with w at 700 and d = epsilon - 700, where e^700 - 1 is
    e^700 to all digits, it is log(1 + w e^d) if w < 1 (to 3 F + 3 u; past d = 700, where w e^d is 1e300 at least, d
    adds up), and d + log(w + e^-d) if w >= 1: the logarithm's argument is right to F + 2 u and above 1, and where d is
    0 its value is log 2 at least, so that this is 2.5 F + 4 u. The form epsilon + log(q + (1 - q) e^-epsilon), which
    does not overflow either, loses u epsilon, that is everything where q (e^epsilon - 1) is below u.
    """
    epsilon, q = as_float64(epsilon), as_float64(q)
    # Largest exponent, in nats, whose exponential is a number; any other one below 709 would do.
    most = 700.0
    w = q * jnp.expm1(jnp.minimum(epsilon, most))
    beyond = jnp.maximum(epsilon - most, 0.0)
    further = jnp.minimum(beyond, most)
    low = jnp.log1p(jnp.minimum(w, 1.0) * jnp.exp(further)) + (beyond - further)
    high = beyond + jnp.log(w + jnp.exp(-beyond))
    # An infinite epsilon less an infinite one is no number.
    value = jnp.where(epsilon < jnp.inf, jnp.where(w < 1, low, high), epsilon)
    return jnp.where((q > 0) & (q <= 1), jnp.where(q == 1, epsilon, value), jnp.nan)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledDP(_SampledDP):
    """Any (epsilon, delta)-DP mechanism, run on a Poisson sample.

    Attributes:
        epsilon (...): at least 0.
        delta (...): in [0, 1].
        sampling_rate (...): probability of each example to be in the sample; shapes broadcast.

    Relations: "add_or_remove". The guarantee is taken to be stated for it.

    Source: Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling", Theorem 8.

    >>> from jaxacct import epsilon
    >>> f"{epsilon(PoissonSubsampledDP(1.0, 1e-6, sampling_rate=0.01), 1, delta=2e-8).upper:.5f}"
    '0.01704'
    """

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove",)


@register_dataclass
@dataclass(frozen=True)
class DPWithoutReplacement(_SampledDP):
    """Any (epsilon, delta)-DP mechanism, run on a sample of fixed size that is drawn without replacement.

    Attributes:
        epsilon (...): at least 0.
        delta (...): in [0, 1].
        sampling_rate (...): size of the sample over that of the data; shapes broadcast.

    Relations: "replace". The guarantee is taken to be stated for it.

    Source: Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling", Theorem 9.

    >>> from jaxacct import epsilon
    >>> f"{epsilon(DPWithoutReplacement(1.0, 0.0, sampling_rate=0.01), 1, delta=0.0, relation='replace').upper:.5f}"
    '0.01704'
    """

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)
