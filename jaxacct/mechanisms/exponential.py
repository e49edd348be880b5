"""The exponential mechanism, and all else whose privacy losses span a bounded range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import ArrayLike, Bool

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.bounded_range import bounded_range_pair
from jaxacct.mechanisms.group import more_of_a_group
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Relation, directions, is_none
from jaxacct.precision import exact_float64, kept_positive, outside, within_scope
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """Exponential mechanism: outcome y with probability proportional to ``e^(epsilon q(y) / (2 S))``.

    q(y) is the score of an outcome, S the most that a neighbour may change a score by. Where all scores change in one
    direction ``e^(epsilon q(y) / S)`` is this mechanism as well. So is whatever is epsilon-bounded range: for any two
    neighbours all its privacy losses lie within some interval of length epsilon.

    Attributes:
        epsilon (...): the range, above 0 in what is run. The mechanism is also epsilon-DP; as one of bounded range it
            costs about half of that when composed: a :class:`.PureDP` may have losses from -epsilon to epsilon.

    Relations: "add_or_remove" (default), "remove", "add", "replace". The range is taken to be that of the relation
    asked for.

    Formal guarantee: the pair dominates one run, tightly, and so dominates adaptive compositions; of many runs it is
    not tight (:class:`.BoundedRangePair`), by a factor of up to (4/3)^(1/2) in epsilon. Many runs of one such
    mechanism, alone, :func:`jaxacct.epsilon` answers by their optimal composition
    (:func:`jaxacct.convert.bounded_range_to_epsilon`), within less than a per cent. :mod:`jaxacct.rdp` uses the
    mechanism's own divergences, and is asked as well where one is composed with others.

    Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for exponential mechanisms",
    Definition 4.1 and Lemma 4.2; Rényi divergences, Cesar and Rogers (2021), "Bounding, concentrating, and truncating".

    >>> from jaxacct import PureDP, delta
    >>> ranged, pure = (delta(kind(0.5), 1, epsilon=0.1).upper for kind in (ExponentialMechanism, PureDP))
    >>> f"{ranged:.4f} {pure:.4f}"
    '0.0835 0.2052'
    """

    epsilon: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_none(self.epsilon)

    def of_group(self, size: int) -> ExponentialMechanism:
        """Returns that of size epsilon: the losses of so many changes, one after another, lie in so many intervals."""
        return ExponentialMechanism(more_of_a_group(self.epsilon, 0.0, size)[0])

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        return (outside(bounded_range_pair(kept_positive(exact_float64(self.epsilon)))),)
