"""Randomized response."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs import DominatingPair, FinitePair
from jaxacct.mechanisms.approximate_dp import ROUNDING_UNITS, PureDP
from jaxacct.mechanisms.group import more_of_a_group
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Relation, directions, is_none
from jaxacct.precision import exact_float64, kept_positive, outside, within_scope
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Randomized response: one person's value, or with some probability another of the possible ones.

    The true one of k values is released with probability e^epsilon / (e^epsilon + k - 1), each other one with
    1 / (e^epsilon + k - 1). The loss is epsilon, -epsilon or, for k > 2, 0.

    Attributes:
        epsilon (...): at least 0; log of the ratio of those two probabilities.
        outcomes: k, the number of possible values, at least 2; static.

    Relations: "replace", and with the same pair "add_or_remove" (default), "remove" and "add". What is released is one
    person's report, and neighbours differ in the value behind it. Adding and removing are taken in that sense too: a
    person who is absent still sends a report, of some fixed value. Where absence means that *no report is sent*, the
    number of reports gives it away, and no epsilon holds. The pair is its own mirror image. "zero_out": the one of two
    neighbours sends a value drawn uniformly, whatever happens; the losses are those of the report against that, and
    back, log(k p) and log(k p') with p and p' the probabilities above.

    Source: Kairouz, Bonawitz and Ramage (2016), "Discrete distribution estimation under local privacy", equation (2).

    >>> pair, = RandomizedResponse(epsilon=1.0, outcomes=4).dominating_pairs("replace")
    >>> [float(loss) for loss in pair.losses]
    [1.0, 0.0, -1.0]
    """

    epsilon: ArrayLike
    outcomes: int = field(default=2, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)
        validation.check_whole(self.outcomes, "outcomes", 2, 2**53, "the number of possible values")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_none(self.epsilon)

    def of_group(self, size: int) -> PureDP:
        """Returns the pure size epsilon, of which the reports of a group are."""
        return PureDP(more_of_a_group(self.epsilon, 0.0, size)[0])

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: the law of the report for two different true values; of "zero_out", both directions."""
        asked = directions(self, relation)
        epsilon = kept_positive(exact_float64(self.epsilon))
        ratio = jnp.exp(jnp.where(epsilon >= 0, -epsilon, jnp.nan))
        total = 1 + (self.outcomes - 1) * ratio
        if relation == "zero_out":
            return tuple(self._against_uniform(epsilon, ratio, total, direction) for direction in asked)
        true, other, rest = 1 / total, ratio / total, (self.outcomes - 2) * ratio / total
        masses, losses = [true, rest, other], [epsilon, jnp.zeros_like(epsilon), -epsilon]
        if self.outcomes == 2:
            del masses[1], losses[1]
        p = jnp.stack(masses, axis=-1)
        pair = FinitePair(p, p[..., ::-1], jnp.stack(losses, axis=-1), jnp.full_like(p, ROUNDING_UNITS * roundoff()))
        return (outside(pair),)

    def _against_uniform(self, epsilon: Array, ratio: Array, total: Array, direction: str) -> DominatingPair:
        """Returns the true value against all others, of the report and of a uniform one, or the reverse."""
        k = self.outcomes
        report = jnp.stack([1 / total, (k - 1) * ratio / total], axis=-1)
        uniform = jnp.broadcast_to(jnp.array([1 / k, (k - 1) / k]), report.shape)
        # log(k/total), and -log(total/(k ratio)): each of 1 and what is positive.
        high = jnp.log1p((k - 1) * -jnp.expm1(-epsilon) / total)
        low = jnp.where(epsilon < 700, -jnp.log1p(jnp.expm1(jnp.minimum(epsilon, 700.0)) / k), math.log(k) - epsilon)
        losses, rounding = jnp.stack([high, low], axis=-1), jnp.full_like(report, ROUNDING_UNITS * roundoff())
        if direction == "remove":
            return outside(FinitePair(report, uniform, losses, rounding))
        return outside(FinitePair(uniform, report, -losses, rounding))
