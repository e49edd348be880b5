"""Mechanisms with Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, SubsampledGaussianPair
from jaxacct.mechanisms.protocol import directions, shape_of_scalars


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Gaussian mechanism: a query of sensitivity 1 plus noise of the given standard deviation.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the query's L2 sensitivity. 0 means no noise, and
            every accountant answers with an infinite epsilon.

    Relations: "add_or_remove" (default), "remove", "add". The two directions are the same pair by symmetry. For
    replace-one neighbours the sensitivity doubles: halve the noise multiplier.

    Raises ValueError where the noise multiplier is negative or NaN; a traced one cannot raise and costs inf instead.

    >>> Gaussian(noise_multiplier=2.0).relations
    ('add_or_remove', 'remove', 'add')
    """

    noise_multiplier: ArrayLike

    relations: ClassVar[tuple[str, ...]] = ("add_or_remove", "remove", "add")

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_noise_multiplier(self.noise_multiplier)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields."""
        return shape_of_scalars(self)

    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair ``N(1, s^2)`` against ``N(0, s^2)``; the opposite direction is its mirror image."""
        directions(self, relation)
        return (SubsampledGaussianPair(self.noise_multiplier, 1.0, removes=True),)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledGaussian:
    """Gaussian mechanism on a Poisson sample: one step of DP-SGD.

    Each example takes part independently with probability ``sampling_rate``; the sum of the sampled examples' clipped
    contributions gets Gaussian noise.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm.
        sampling_rate (...): probability of each example to be in the batch, in (0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add". Fixed-size or shuffled batches are *not* this mechanism.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Theorem 11.

    >>> PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01).sampling_rate
    0.01
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike

    relations: ClassVar[tuple[str, ...]] = ("add_or_remove", "remove", "add")

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields."""
        return shape_of_scalars(self)

    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"."""
        return tuple(
            SubsampledGaussianPair(self.noise_multiplier, self.sampling_rate, removes=direction == "remove")
            for direction in directions(self, relation)
        )
