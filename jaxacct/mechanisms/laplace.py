"""Mechanisms with Laplace noise, alone and on Poisson samples, and mechanisms with noise on the integers.

Laplace noise moved by a shift has bounded losses. Integer noise, discrete Laplace or discrete Gaussian, has finitely
many losses that count, and its pair lists them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.dominating_pairs import DiscreteGaussianPair, DominatingPair, FinitePair
from jaxacct.mechanisms.fixed_batches import shifted_pair, subsampled_pair
from jaxacct.mechanisms.group import PoissonSubsampledGroup, less_noise
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_endless, nothing_sampled
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, outside, within_scope
from jaxacct.numerics.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Laplace(Mechanism):
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

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.scale)

    def of_group(self, size: int) -> Laplace:
        return Laplace(less_noise(self.scale, size))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair of noise around the shift against noise around 0; its mirror image is the same."""
        shift = 2.0 if "replace" in directions(self, relation) else 1.0
        return (shifted_pair(self.scale, shift, "laplace"),)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledLaplace(Mechanism):
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

    scale: ArrayLike
    sampling_rate: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_scale(self.scale)
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.scale, self.sampling_rate)

    def of_group(self, size: int) -> PoissonSubsampledGroup:
        return PoissonSubsampledGroup(self.scale, self.sampling_rate, size, noise="laplace")

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns one pair for each direction: (mixture, base), (base, mixture), or one of two mixtures."""
        return tuple(
            subsampled_pair(self.scale, self.sampling_rate, direction, "laplace")
            for direction in directions(self, relation)
        )


# ----------------------------------------------------------------------------------------------------
# Noise on the integers: discrete Laplace and discrete Gaussian
# ----------------------------------------------------------------------------------------------------

LARGEST_SENSITIVITY = 2**16
"""Largest change of a query's integer value: discrete Laplace noise has an atom for each unit of it. A limit of memory
alone."""

LARGEST_REACH = 2**16
"""Most integers on either side of discrete Gaussian noise that are summed over by default; enough for a scale of 1700.
A limit of memory and time alone."""

DEFAULT_REACH = 2**11
"""Integers on either side for a traced scale, which Python cannot look at; enough for a scale of 54. Beyond it epsilon
is inf."""

SCALES_OF_REACH = 38
"""Number of scales beyond which the discrete Gaussian's mass, e^(-38^2/2) = e^-722, is below the smallest float64,
e^-708."""


@register_dataclass
@dataclass(frozen=True)
class DiscreteLaplace(Mechanism):
    """Discrete Laplace (two-sided geometric) mechanism: an integer query plus noise n of mass prop. to e^(-|n|/scale).

    Attributes:
        scale (...): above 0. The mechanism is (sensitivity/scale)-DP.
        sensitivity: largest change of the query's value, a whole number of at least 1; static.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out". All are the same pair by symmetry, and the pair
    of the largest shift dominates those of smaller ones, since the likelihood ratio is monotone. For replace-one
    neighbours give the sensitivity to a replacement.

    Source: Ghosh, Roughgarden and Sundararajan (2009), "Universally utility-maximizing privacy mechanisms",
    Definition 2.1; the loss from the definition.

    >>> pair, = DiscreteLaplace(scale=2.0, sensitivity=2).dominating_pairs()
    >>> [float(loss) for loss in pair.losses]
    [-1.0, 0.0, 1.0]
    """

    scale: ArrayLike
    sensitivity: int = field(default=1, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_discrete_scale(self.scale)
        check_sensitivity(self.sensitivity)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.scale)

    def of_group(self, size: int) -> DiscreteLaplace:
        return replace(self, sensitivity=self.sensitivity * size)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: the noise moved by the sensitivity D against the noise itself.

        Outcomes up to 0 have the loss -D/scale, those from D on D/scale, and n between (2n - D)/scale.
        """
        directions(self, relation)
        return (outside(_laplace_pair(as_float64(self.scale), self.sensitivity)),)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _laplace_pair(scale: Array, width: int) -> FinitePair:
    scale = jnp.where((scale > 0) & (scale < jnp.inf), scale, jnp.nan)[..., None]
    n = jnp.arange(width + 1, dtype=jnp.float64).reshape((1,) * (scale.ndim - 1) + (-1,))
    # An outcome between the ends has (1 - a)/(1 + a) a^distance, a = e^(-1/scale); an end has all beyond it too.
    growth = 1 + jnp.exp(-1 / scale)
    share = jnp.where((n == 0) | (n == width), 1.0, -jnp.expm1(-1 / scale)) / growth
    p = share * jnp.exp((n - width) / scale)
    rounding = roundoff() * (24 + 4 * width / scale)
    return FinitePair(p, p[..., ::-1], (2 * n - width) / scale, jnp.broadcast_to(rounding, p.shape))


@register_dataclass
@dataclass(frozen=True)
class DiscreteGaussian(Mechanism):
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

    scale: ArrayLike
    sensitivity: int = field(default=1, metadata={"static": True})
    reach: int | None = field(default=None, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")
    tight: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reach is None:
            object.__setattr__(self, "reach", _enough(validation.concrete_value(self.scale)))

    def validate(self) -> None:
        validation.check_discrete_scale(self.scale)
        check_sensitivity(self.sensitivity)
        if self.reach is not None:
            validation.check_whole(self.reach, "reach", 1, 2**30, "the integers summed over on either side")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.scale)

    def of_group(self, size: int) -> DiscreteGaussian:
        return replace(self, sensitivity=self.sensitivity * size)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: the noise moved by the sensitivity against the noise itself."""
        directions(self, relation)
        return (DiscreteGaussianPair(self.scale, self.sensitivity, self.reach or DEFAULT_REACH),)


def check_sensitivity(value: int) -> None:
    """Raises where a sensitivity is not a whole number in range."""
    validation.check_whole(value, "sensitivity", 1, LARGEST_SENSITIVITY, "the largest change of the query's value")


def _enough(scale: np.ndarray | None) -> int:
    """Returns a power of two that reaches far enough for each of the scales."""
    if scale is None or not np.any(np.isfinite(scale)):
        return DEFAULT_REACH
    # At least 64 integers, and a power of two: few programs serve all scales.
    largest = float(np.max(scale, where=np.isfinite(scale), initial=0.0))
    needed = 2 ** math.ceil(math.log2(max(SCALES_OF_REACH * largest + 1, 64)))
    if needed > LARGEST_REACH:
        raise ValueError(
            f"scale = {largest} needs sums over more than {LARGEST_REACH} integers on either side: give "
            f"reach = {needed}, if that much memory and time can be spent."
        )
    return needed
