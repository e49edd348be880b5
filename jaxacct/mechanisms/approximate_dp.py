"""Mechanisms of which no more is known than that they are (epsilon, delta)-DP."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs import DominatingPair, FinitePair
from jaxacct.mechanisms.group import more_of_a_group
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Relation, directions, is_none
from jaxacct.precision import exact_float64, kept_positive, outside, within_scope
from jaxacct.pytrees import register_dataclass

ROUNDING_UNITS = 16
"""Units of roundoff by which a binary probability errs, relatively: exp twice, two products, a sum and a quotient."""


@register_dataclass
@dataclass(frozen=True)
class PureDP(Mechanism):
    """Any mechanism that is epsilon-DP: as private as binary randomized response, at worst.

    Attributes:
        epsilon (...): the guarantee, at least 0. 0 means that nothing is released; inf, that nothing is guaranteed.

    Relations: "add_or_remove" (default), "remove", "add", "replace", "zero_out". The guarantee is stated for the
    relation asked for: an epsilon for adding and removing is *not* one for replacing. The pair is its own mirror image.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", where this is the
    dominating mechanism in the proof of the composition theorem; delta = 0.

    >>> pair, = PureDP(epsilon=0.5).dominating_pairs()
    >>> [float(loss) for loss in pair.losses]
    [0.5, -0.5]
    """

    epsilon: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_none(self.epsilon)

    def of_group(self, size: int) -> PureDP:
        return PureDP(more_of_a_group(self.epsilon, 0.0, size)[0])

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair of binary randomized response."""
        directions(self, relation)
        epsilon = kept_positive(exact_float64(self.epsilon))
        high, low = binary_probabilities(epsilon)
        p, losses = jnp.stack([high, low], axis=-1), jnp.stack([epsilon, -epsilon], axis=-1)
        return (outside(FinitePair(p, p[..., ::-1], losses, jnp.full_like(p, ROUNDING_UNITS * roundoff()))),)


@register_dataclass
@dataclass(frozen=True)
class ApproximateDP(Mechanism):
    """Any mechanism that is (epsilon, delta)-DP.

    At worst, it says everything with probability delta and is binary randomized response otherwise.

    Attributes:
        epsilon (...): at least 0.
        delta (...): in [0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", "zero_out". The guarantee is stated for the
    relation asked for, as it is by :class:`PureDP`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead. The Rényi
    accountant counts delta apart from the divergences, of which any delta above 0 makes all infinite.

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

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)
        validation.check_probability(self.delta, "delta")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_none(self.epsilon) & is_none(self.delta)

    def of_group(self, size: int) -> ApproximateDP:
        return ApproximateDP(*more_of_a_group(self.epsilon, self.delta, size))

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: infinite losses of mass delta, and binary randomized response."""
        directions(self, relation)
        # A delta that is flushed to zero would take the infinite losses with it.
        epsilon, delta = jnp.broadcast_arrays(
            *(kept_positive(exact_float64(value)) for value in (self.epsilon, self.delta))
        )
        high, low = binary_probabilities(epsilon)
        p = jnp.stack([delta, (1 - delta) * high, (1 - delta) * low, jnp.zeros_like(delta)], axis=-1)
        infinite = jnp.full_like(epsilon, jnp.inf)
        losses = jnp.stack([infinite, epsilon, -epsilon, -infinite], axis=-1)
        # delta is as it is given.
        units = jnp.array([0.0, ROUNDING_UNITS, ROUNDING_UNITS, 0.0])
        rounding = jnp.broadcast_to(units * roundoff(), p.shape)
        return (outside(FinitePair(p, p[..., ::-1], losses, rounding)),)


@functools.partial(jax.jit, inline=True)
def binary_probabilities(epsilon: Array) -> tuple[Array, Array]:
    """Returns the probabilities of the true and of the false answer; NaN, which no pair is valid with, below 0."""
    ratio = jnp.exp(jnp.where(epsilon >= 0, -epsilon, jnp.nan))
    return 1 / (1 + ratio), ratio / (1 + ratio)
