"""Gaussian noise on Poisson samples that are cut at a largest batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.arithmetic import with_pair_form
from jaxacct.binomial import binomial_tail
from jaxacct.dominating_pairs import DominatingPair, SubsampledGaussianPair
from jaxacct.dominating_pairs.public_coin import PublicCoinPair
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, nothing_sampled
from jaxacct.precision import TINY, UNIT_ROUNDOFF, as_float64, outside, within_scope
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class TruncatedPoissonGaussian(Mechanism):
    """Gaussian mechanism on a Poisson sample, of which, if it exceeds B examples, B at random are used.

    Attributes:
        noise_multiplier (...): s, standard deviation of the noise over the clipping norm.
        sampling_rate (...): q, probability of each example to be sampled, before the cut, in (0, 1].
        overflow_probability (...): w, upper bound on the probability that B or more *others* are sampled, for a given
            example of any of the data sets; shapes broadcast. :class:`.TruncatedPoissonSampler` knows it.
        least_overflow_probability (...): v, lower bound on the same, at most w.
        overflow_rate (...): r, in (0, 1], and
        overflow_slack (...): e, in [0, 1]: with p the probability that B or more others are sampled, and t the one that
            moreover the example is in the batch, t <= v r + q min(e, p - v) for all data sets at issue.

    With the defaults the last three say nothing: a full batch counts at the rate q. :meth:`for_batches` makes one from
    the number of examples and B.

    Relations: "add_or_remove" (default), "remove", "add".

    Formal guarantee: let D(s, q) be the pair of :class:`.PoissonSubsampledGaussian`, (1 - q) N(0, s^2) + q N(1, s^2)
    and N(0, s^2), and e' = min(e, w - v). The pair of this mechanism is D(s/2, r) with probability v,
    D(s/2, q) with probability e' and D(s, q) with the rest; which of the three is known, and costs nothing by itself.

    Proof. Let S be the sampled others. Its law does not depend on the example at issue; give away whether its size K
    is at least B. If not, also S: the batch is S, or with probability q S and the example, so the sum moves by a vector
    of norm at most 1: D(s, q). If K >= B, let T be a uniform B-subset of S, the batch without the example, and z
    uniform in T. With the example at hand, given K, the batch is T with z exchanged for it with probability
    q B / (K + 1), else T: a uniform B-subset of S and the example holds it with probability B / (K + 1), and then a
    uniform (B - 1)-subset of S. Given K >= B, the law of T and z is that of a uniform B-subset of the others and one of
    its members, whatever K is; so it is independent of K and of the exchange. Give T and z away, but not K: the sum
    moves by a vector of norm at most 2 with probability t/p = E[q B / (K + 1) | K >= B] < q: D(s/2, t/p).

    Write D also for the hockey-stick divergence at any one epsilon. It is convex in the rate, and falls neither as the
    rate nor as the norm rises, so p D(s/2, t/p) <= v D(s/2, r) + x D(s/2, q) + (p - v - x) D(s/2, 0) for x =
    min(e, p - v), as t <= v r + x q. With (1 - p) D(s, q) added and D(s, q) in place of D(s/2, 0), and as
    D(s/2, q) >= D(s, q) and x <= e', this is at most the divergence of the pair.

    Source: Ganesh (2025), "Tighter privacy analysis for truncated Poisson sampling", with the pair of a replaced
    example in place of D(s/2, t/p); an overflow as a failure, Chua et al. (2024), "Scalable DP-SGD".

    >>> TruncatedPoissonGaussian(1.0, 0.01, overflow_probability=1e-3).relations
    ('add_or_remove', 'remove', 'add')
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike
    overflow_probability: ArrayLike
    least_overflow_probability: ArrayLike = 0.0
    overflow_rate: ArrayLike = 1.0
    overflow_slack: ArrayLike = 1.0

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add")

    @classmethod
    def for_batches(
        cls, noise_multiplier: ArrayLike, sampling_rate: float, num_examples: int | Sequence[int], capacity: int
    ) -> TruncatedPoissonGaussian:
        """Returns the mechanism of data sets of a known size and batches of at most ``capacity``.

        Args:
            noise_multiplier (...): as of the class; may be traced.
            sampling_rate: a number in (0, 1], before the cut.
            num_examples: n, of the larger of two neighbouring data sets; taken as public. Several numbers where it may
                be any of them: (n, n + 1) for all neighbours of a data set of n.
            capacity: B, the largest batch, at least 1.

        Formal guarantee: that of the class. With m = n - 1 others K is binomial, and p_m and t_m are sums over its law
        (:func:`jaxacct.binomial.binomial_tail`), rounded to their safe sides. For one n, v and w bound p_m, r is t_m
        over v and e is 0. For several, v and r are those of the least, m; and e is what the largest t has more, over
        q. Then t <= v r + q e for each; and t_k <= v r + q (p_k - v) for a k above m, as one more example that is
        sampled adds to t at most where it fills the batch, so at most q (p_(m + 1) - p_m). Where t_m / v is above q,
        r is q, and v r + q (p_m - v) is p_m q, which is not below t_m either.

        Raises ValueError or TypeError where an argument is out of range.

        >>> mechanism = TruncatedPoissonGaussian.for_batches(1.0, 0.01, num_examples=1000, capacity=10)
        >>> [round(float(value), 4) for value in jax.tree.leaves(mechanism)]
        [1.0, 0.01, 0.5414, 0.5414, 0.0077, 0.0]
        """
        validation.check_scalar(sampling_rate, "sampling_rate")
        validation.check_sampling_rate(sampling_rate)
        sizes = tuple(num_examples) if isinstance(num_examples, Sequence) else (num_examples,)
        for size in sizes:
            validation.check_whole(size, "num_examples", 1, 2**53, "the number of examples")
        validation.check_whole(capacity, "capacity", 1, 2**53, "the largest batch")
        rate, up = float(sampling_rate), 1 + 4 * UNIT_ROUNDOFF
        tails = [binomial_tail(size - 1, rate, capacity) for size in sorted(sizes)]
        entered = [max(rate * capacity * tail.inverse * up, TINY) for tail in tails]
        least, covered = tails[0].least, entered[0]
        overflow_rate = covered / least * up if least > 0 else math.inf
        if overflow_rate > rate:
            overflow_rate, covered = rate, least * rate / up
        slack = min(max(max(entered) - covered, 0.0) / rate * up, 1.0)
        return cls(noise_multiplier, rate, max(tail.most for tail in tails), least, overflow_rate, slack)

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)
        validation.check_probability(self.overflow_probability, "overflow_probability")
        validation.check_probability(self.least_overflow_probability, "least_overflow_probability")
        validation.check_sampling_rate(self.overflow_rate, "overflow_rate")
        validation.check_probability(self.overflow_slack, "overflow_slack")
        least, most = (
            validation.concrete_value(v) for v in (self.least_overflow_probability, self.overflow_probability)
        )
        if least is not None and most is not None and np.any(least > most):
            raise ValueError(
                f"least_overflow_probability = {self.least_overflow_probability} is above overflow_probability = "
                f"{self.overflow_probability}: give a lower and an upper bound on one probability."
            )

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the mixed pairs of (mixture, base) for "remove" and of (base, mixture) for "add"."""
        s, q, most, least, r, slack = (as_float64(v) for v in jax.tree.leaves(self))
        slack = jnp.minimum(slack, most - least)
        rest = jnp.where(most <= 1, jnp.maximum(remaining_weight(least, slack), 0.0), jnp.nan)
        noises, rates = jnp.stack([s, s / 2, s / 2]), jnp.stack([q, r, q])
        weights = jnp.stack([rest, least, slack])

        def pair(removes: bool) -> DominatingPair:
            return outside(PublicCoinPair(SubsampledGaussianPair(noises, rates, np.full(3, removes)), weights))

        return tuple(pair(direction == "remove") for direction in directions(self, relation))


@with_pair_form
def remaining_weight(least: Array, slack: Array) -> Array:
    """Returns 1 - least - slack: in float64 right to a few roundings however near to 0 it is.

    Elsewhere to fourteen, or not above the truth by any, and below it by ten of slack at most: the pair in which slack
    takes what is missing is the larger one.
    """
    rest = 1 - least
    return (rest - slack) + ((1 - rest) - least)
