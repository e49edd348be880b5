"""Laplace mechanisms, alone and on Poisson samples: a query and noise of two exponential tails.

Their pairs are noise around one or more locations (:mod:`.shifted_noise`, which has the noise and the laws of its
loss); groups of examples on a sample are those of :mod:`.groups`, and samples of a fixed size of :mod:`.fixed_batches`.

Sources: Dwork, McSherry, Nissim and Smith (2006); Zhu, Dong and Wang (2022), for samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax  # noqa: F401  (whole, before jaxtyping asks for a part of it)
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.mechanisms.finite import seen_where_sampled, surely_seen
from jaxacct.mechanisms.groups import PoissonSubsampledGroup
from jaxacct.mechanisms.mechanism import (
    NoisyMechanism,
    Relation,
    SampledNoise,
    by_numpy_if_concrete,
    directions,
    less_noise,
)
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.mechanisms.shifted_noise import ShiftedNoisePair, subsampled_pair
from jaxacct.numerics.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Laplace(NoisyMechanism):
    """Laplace mechanism: a query of L1 sensitivity 1 plus independent Laplace noise on each coordinate.

    Attributes:
        scale (...): scale of the noise over the query's L1 sensitivity; (1/scale, 0)-DP. 0 means no noise, and every
            accountant answers with an infinite epsilon.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", one pair for all of them by symmetry; "replace",
    under which the query moves by up to 2.

    Source: Dwork, McSherry, Nissim and Smith (2006), "Calibrating noise to sensitivity in private data analysis". Many
    coordinates are dominated by one that moves by the sum of their shifts: the hockey-stick divergence of two
    coordinates with shifts a and b (noise scale 1) is at most that of one with a + b, ``1 - e^((epsilon - a - b)/2)``;
    it is ``1 - e^((epsilon - a - b)/2) (1 + c)`` with c = min(a, b, (a + b - |epsilon|)/2)/2 where |epsilon| < a + b,
    and the same beyond.

    >>> Laplace(scale=2.0).relations
    ('add_or_remove', 'remove', 'add', 'replace', 'zero_out')
    """

    scale: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_scale(self.scale)

    noiseless_pairs = surely_seen

    def of_group(self, size: int) -> Laplace:
        return Laplace(less_noise(self.scale, size))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair of noise around the shift against noise around 0; its mirror image is the same."""
        shift = 2.0 if "replace" in directions(self, relation) else 1.0

        def make(_: Any, scale: Any) -> ShiftedNoisePair:
            # Made by NumPy, the weights are concrete within a trace, too.
            p, q = (np.broadcast_to(weights, (*scale.shape, 2)) for weights in ([0.0, 1.0], [1.0, 0.0]))
            return ShiftedNoisePair(scale, shift * p, p, q, "laplace")

        return (by_numpy_if_concrete(make, self.scale),)


@dataclass(frozen=True)
class SampledLaplace(SampledNoise):
    """The base of Laplace mechanisms on a sample of the examples: their two fields."""

    scale: ArrayLike
    sampling_rate: ArrayLike

    noise: ClassVar[str] = "laplace"

    noiseless_pairs = seen_where_sampled

    def validate(self) -> None:
        validation.check_noise_scale(self.scale)
        validation.check_sampling_rate(self.sampling_rate, zero=True)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledLaplace(SampledLaplace):
    """Laplace mechanism on a Poisson sample: each example takes part independently with probability ``sampling_rate``.

    Attributes:
        scale (...): scale of the Laplace noise over the L1 norm of one example's contribution.
        sampling_rate (...): probability of each example to be in the batch, in (0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", "zero_out". Fixed-size batches are *not* this
    mechanism.

    Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function",
    Theorem 11; replacement as for :class:`.PoissonSubsampledGaussian`.

    >>> PoissonSubsampledLaplace(scale=1.0, sampling_rate=0.01).batch_shape
    ()
    """

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def of_group(self, size: int) -> PoissonSubsampledGroup:
        return PoissonSubsampledGroup(self.scale, self.sampling_rate, size, noise="laplace")

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns one pair for each direction: (mixture, base), (base, mixture), or one of two mixtures."""
        return tuple(
            subsampled_pair(self.scale, self.sampling_rate, direction, "laplace")
            for direction in directions(self, relation)
        )
