"""What is released: mechanisms as pytrees, each knowing the pairs of distributions that dominate it.

A mechanism says nothing about accountants. They ask it for its dominating pairs under a neighbouring relation
(:mod:`jaxacct.dominating_pairs`) and work on those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import jax
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, SubsampledGaussianPair

DIRECTIONS: dict[str, tuple[str, ...]] = {
    "add_or_remove": ("remove", "add"),
    "remove": ("remove",),
    "add": ("add",),
}
"""Which directed pairs a neighbouring relation asks for; the larger privacy loss of them counts."""


@runtime_checkable
class Mechanism(Protocol):
    """What an accountant needs of a mechanism."""

    relations: ClassVar[tuple[str, ...]]

    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns one pair for each direction of ``relation``."""
        ...

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        ...


def _directions(mechanism: Mechanism, relation: str) -> tuple[str, ...]:
    validation.check_one_of(relation, "relation", mechanism.relations, f" by {type(mechanism).__name__}")
    return DIRECTIONS[relation]


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

    relations: ClassVar[tuple[str, ...]] = tuple(DIRECTIONS)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_noise_multiplier(self.noise_multiplier)

    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair ``N(1, s^2)`` against ``N(0, s^2)``; the opposite direction is its mirror image."""
        _directions(self, relation)
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

    relations: ClassVar[tuple[str, ...]] = tuple(DIRECTIONS)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate)

    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"."""
        return tuple(
            SubsampledGaussianPair(self.noise_multiplier, self.sampling_rate, removes=direction == "remove")
            for direction in _directions(self, relation)
        )
