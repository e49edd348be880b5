"""Gaussian noise on Poisson samples that are cut at a largest batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, SubsampledGaussianPair
from jaxacct.dominating_pairs.public_coin import PublicCoinPair
from jaxacct.mechanisms.protocol import ScalarFields, directions, nothing_sampled
from jaxacct.precision import as_float64, in_float64, outside


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TruncatedPoissonGaussian(ScalarFields):
    """Gaussian mechanism on a Poisson sample, of which, if it exceeds B examples, B at random are used.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm.
        sampling_rate (...): q, probability of each example to be sampled, before the cut, in (0, 1].
        overflow_probability (...): upper bound on the probability that B or more *others* are sampled, for a given
            example of any of the data sets; shapes broadcast. :class:`.TruncatedPoissonSampler` knows it.

    Relations: "add_or_remove" (default), "remove", "add".

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Formal guarantee: with probability 1 - overflow_probability the pair is that of :class:`.PoissonSubsampledGaussian`,
    else the same for an example that moves the sum by 2; which of them is known, and costs nothing by itself. Proof:
    let S be the sampled others. Its law does not depend on the example at issue; give its size K away. If K < B, the
    batch is S, or with probability q S and the example. If K >= B, let T be a uniform B-subset of S, the batch without
    the example, and r uniform in T. With the example, the batch is T with r exchanged for the example with probability
    q B / (K + 1) <= q, else T. So given T and r the sum moves by a vector of norm at most 2. The divergence is jointly
    convex, and does not fall as the rate, the vector's norm, or the probability of the second case rises.

    Source: for the same sampling Ganesh (2025), "Tighter privacy analysis for truncated Poisson sampling"; an overflow
    as a failure, Chua et al. (2024), "Scalable DP-SGD".

    >>> TruncatedPoissonGaussian(1.0, 0.01, overflow_probability=1e-3).relations
    ('add_or_remove', 'remove', 'add')
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike
    overflow_probability: ArrayLike

    relations: ClassVar[tuple[str, ...]] = ("add_or_remove", "remove", "add")

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)
        validation.check_probability(self.overflow_probability, "overflow_probability")

    def releases_nothing(self) -> Any:
        """Returns where the noise has no end, or nothing is sampled."""
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    @in_float64
    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the mixed pairs of (mixture, base) for "remove" and of (base, mixture) for "add"."""
        s, q, weight = (as_float64(v) for v in (self.noise_multiplier, self.sampling_rate, self.overflow_probability))

        def pair(removes: bool) -> DominatingPair:
            one, two = SubsampledGaussianPair(s, q, removes), SubsampledGaussianPair(s / 2, q, removes)
            return outside(PublicCoinPair(one, two, weight))

        return tuple(pair(direction == "remove") for direction in directions(self, relation))
