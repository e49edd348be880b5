"""Mechanisms with Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import ArrayLike, Bool

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, SubsampledGaussianPair
from jaxacct.mechanisms.group import PoissonSubsampledGroup, less_noise
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_endless, nothing_sampled
from jaxacct.mechanisms.shifts import subsampled_pair
from jaxacct.precision import as_float64, scope
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian mechanism: a query of sensitivity 1 plus noise of the given standard deviation.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the query's L2 sensitivity. 0 means no noise, and
            every accountant answers with an infinite epsilon.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", one pair for all of them by symmetry; "replace",
    where the query moves by up to 2, which is as half the noise multiplier.

    >>> Gaussian(noise_multiplier=2.0).relations
    ('add_or_remove', 'remove', 'add', 'replace', 'zero_out')
    """

    noise_multiplier: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.noise_multiplier)

    def of_group(self, size: int) -> Gaussian:
        return Gaussian(less_noise(self.noise_multiplier, size))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair ``N(1, s^2)`` against ``N(0, s^2)``; the opposite direction is its mirror image."""
        noise = self.noise_multiplier
        if "replace" in directions(self, relation):
            with scope():  # halving is exact, were it not for the type
                noise = as_float64(noise) / 2
        return (SubsampledGaussianPair(noise, 1.0, removes=True),)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledGaussian(Mechanism):
    """Gaussian mechanism on a Poisson sample: one step of DP-SGD.

    Each example takes part independently with probability ``sampling_rate``; the sum of the sampled examples' clipped
    contributions gets Gaussian noise.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm.
        sampling_rate (...): probability of each example to be in the batch, in (0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", and "zero_out", whose pairs are those of adding
    and removing: an example that contributes nothing is as good as none, and the others are sampled independently of
    it. Fixed-size or shuffled batches are *not* this mechanism.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Theorem 11. Replacement: the pair (1-q) N(0, s^2) + q N(1, s^2) against
    (1-q) N(0, s^2) + q N(-1, s^2). Let mu_v be the law of the output if the example at issue takes part and contributes
    v, given what else is sampled, and mu_0 if it does not. For c >= 1 and an event of mu_0-probability a,

        P - c Q = (1-q) (1-c) a + q (mu_v - c mu_w).

    By Neyman and Pearson mu_v is at most Phi(Phi^-1(a) + |v|/s) and mu_w at least Phi(Phi^-1(a) - |w|/s), with norms of
    at most 1; for v = -w of norm 1 one half-space attains both for every a, and so the pair's supremum is an upper
    bound. For c < 1 exchange the two. Other examples sampled shift all three laws alike; the divergence is convex.

    >>> PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01).sampling_rate
    0.01
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    def of_group(self, size: int) -> PoissonSubsampledGroup:
        return PoissonSubsampledGroup(self.noise_multiplier, self.sampling_rate, size)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"; for "replace" two mixtures."""
        asked = directions(self, relation)
        if "replace" in asked:
            return (subsampled_pair(self.noise_multiplier, self.sampling_rate, "replace", "gaussian"),)
        return tuple(
            SubsampledGaussianPair(self.noise_multiplier, self.sampling_rate, removes=direction == "remove")
            for direction in asked
        )
