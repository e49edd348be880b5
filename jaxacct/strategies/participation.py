"""How examples come to steps: what an account of correlated noise depends on beside the strategy.

An example added or removed must leave the steps of all others as they are: each of them has its steps by its own coins,
by its arrival, or by its place in a data set whose other places stay. Batches cut from a list of all examples do not:
there the relation is "replace", under which an example's place is taken by another one.

Not here, because only Monte Carlo estimates are known for them: b-min-sep sampling, and balls-in-bins (random
allocation) of correlated noise, of which :class:`jaxacct.monte_carlo.BallsInBins` has estimates. A bound for both that
takes no amplification is that of :class:`MinSeparation`; of independent noise random allocation is
:class:`.RandomAllocation`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import TypeAlias

from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.pytrees import register_dataclass
from jaxacct.strategies.pattern import Pattern


class Unsampled(abc.ABC):
    """Participation by a pattern, whoever chooses among its sets; adaptively, too. Nothing is amplified."""

    @property
    @abc.abstractmethod
    def pattern(self) -> Pattern:
        """The sets of steps that an example may take part in."""


@register_dataclass
@dataclass(frozen=True)
class SinglePass(Unsampled):
    """Each example takes part in at most one of ``steps`` steps.

    >>> SinglePass(steps=100).pattern
    Pattern(steps=100, separation=100, most=1, is_fixed=False)
    """

    steps: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        _check(self.steps, "steps", "the number of steps")

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.steps, self.steps, 1)


@register_dataclass
@dataclass(frozen=True)
class MinSeparation(Unsampled):
    """Each two participations of an example are at least ``separation`` steps apart.

    Attributes:
        steps: n, static as all of these.
        separation: b, at least 1, which is any steps at all.
        most: k, the most participations; None for as many as fit. Epochs in orders of their own are b = 1, k epochs.

    >>> MinSeparation(steps=100, separation=30).pattern.most
    4
    """

    steps: int = field(metadata={"static": True})
    separation: int = field(metadata={"static": True})
    most: int | None = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        _check(self.steps, "steps", "the number of steps")
        _check(self.separation, "separation", "the least distance of participations")
        if self.most is not None:
            _check(self.most, "most", "the most participations of an example")

    @property
    def pattern(self) -> Pattern:
        separation = min(self.separation, self.steps)
        fit = -(-self.steps // separation)
        return Pattern(self.steps, separation, fit if self.most is None else min(self.most, fit))


@register_dataclass
@dataclass(frozen=True)
class FixedEpochs(Unsampled):
    """Epochs in one order: an example takes part in the same step of each.

    >>> FixedEpochs(steps_per_epoch=10, epochs=3).pattern
    Pattern(steps=30, separation=10, most=3, is_fixed=True)
    """

    steps_per_epoch: int = field(metadata={"static": True})
    epochs: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        _check(self.steps_per_epoch, "steps_per_epoch", "the number of steps of an epoch")
        _check(self.epochs, "epochs", "the number of epochs")
        _check(self.steps_per_epoch * self.epochs, "steps_per_epoch * epochs", "the number of steps")

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.steps_per_epoch * self.epochs, self.steps_per_epoch, self.epochs, is_fixed=True)


@register_dataclass
@dataclass(frozen=True)
class CyclicPoisson:
    """Examples are in groups that take turns, and a step samples from its group by a coin of each example.

    Attributes:
        steps: n, static.
        groups: b, static: step t samples from group t mod b. As many as bands of the strategy, or more.
        sampling_rate (): probability of an example of the group to be in the batch. With batches of B examples of m it
            is b B / m.
        equal_groups: whether the examples were divided such that the groups have one size, static. Then one example
            more or less may move others to another group: the only relation is "replace". Else each example's group is
            drawn by itself, or is its place's, once for all epochs.

    >>> CyclicPoisson(steps=100, groups=8, sampling_rate=0.1).cycles
    13
    """

    steps: int = field(metadata={"static": True})
    groups: int = field(metadata={"static": True})
    sampling_rate: ArrayLike
    equal_groups: bool = field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        _check(self.steps, "steps", "the number of steps")
        _check(self.groups, "groups", "the number of groups")
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    @property
    def cycles(self) -> int:
        """How often the first group has its turn; the others at most as often."""
        return -(-self.steps // self.groups)

    @property
    def pattern(self) -> Pattern:
        """The sets of steps of one turn."""
        return Pattern(self.steps, self.steps, 1)


Participation: TypeAlias = Unsampled | CyclicPoisson
"""How examples come to steps."""


def _check(value: object, name: str, meaning: str) -> None:
    validation.check_count(value, name, meaning)
