"""Gaussian noise on a random sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_endless
from jaxacct.mechanisms.shifts import mixture_pair
from jaxacct.pytrees import register_dataclass

SUM_TOLERANCE = 1e-6
"""How far from 1 concrete probabilities may sum: what float32 leaves of them. They are normalized."""


@register_dataclass
@dataclass(frozen=True)
class GaussianMixture(Mechanism):
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

    def __post_init__(self) -> None:
        for name in ("sensitivities", "probabilities"):
            value = getattr(self, name)
            if isinstance(value, (list, tuple)):  # a pytree of its own, were it left as it is
                object.__setattr__(self, name, np.asarray(value, np.float64))
        self.validate()

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sensitivities(self.sensitivities)
        validation.check_probabilities(self.probabilities, "probabilities", SUM_TOLERANCE)
        if not all(hasattr(value, "shape") for value in (self.sensitivities, self.probabilities)):
            return  # a pytree of something else
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

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields, without that of the sensitivities."""
        return np.shape(self.probabilities)[:-1]

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.noise_multiplier)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"."""
        return tuple(
            mixture_pair(self.noise_multiplier, self.sensitivities, self.probabilities, direction)
            for direction in directions(self, relation)
        )
