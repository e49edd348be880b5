"""What a trainer needs of a way of drawing batches, and the checks that all of them share."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.strategies.participation import Participation
from jaxacct.train.sampling.packing import RATE_UNIT, Batch


class Sampler(Protocol):
    """Draws batches of one static shape, and knows the mechanism that noisy sums over them are.

    Hashable and without arrays: a sampler is closed over in a compiled step.

    Attributes:
        num_examples: size of the data set.
        capacity: rows of a batch, used or not.
        relation: neighbouring relation that the accounting is for, to be handed to the accountant.
        steps_per_run: how many steps one run of :meth:`mechanism` covers: 1, or those of an epoch. A run that has begun
            counts as a whole one.
    """

    @property
    def num_examples(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def relation(self) -> Relation: ...

    @property
    def steps_per_run(self) -> int: ...

    @property
    def expected_batch_size(self) -> float:
        """What the noisy sum is divided by: a constant, never the size that was drawn."""
        ...

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the indices of a step's batch and which rows are real, for the key of the run; traceable."""
        ...

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of ``steps_per_run`` steps, noise over the clipping norm."""
        ...

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what is to be taken off delta, because what is drawn is not exactly what is accounted."""
        ...


@runtime_checkable
class Separating(Sampler, Protocol):
    """A sampler that knows in which steps an example may take part: what correlated noise is accounted by."""

    def participation(self, steps: int, bands: int) -> Participation:
        """Returns how an example comes to so many steps, for noise that at most ``bands`` steps share."""
        ...


def runs_of(sampler: Sampler, steps: int) -> int:
    """Returns how many runs of the sampler's mechanism so many steps cost, begun ones in full.

    Formal guarantee: an upper bound: the results of a part of a run are those of the whole run with the others left
    out, and leaving out is post-processing.

    >>> from jaxacct.train.sampling import PoissonSampler
    >>> runs_of(PoissonSampler(num_examples=10, sampling_rate=0.5, capacity=11), 7)
    7
    """
    return -(-int(steps) // sampler.steps_per_run)


def check_num_examples(num_examples: int) -> None:
    """Raises where a number of examples is no size."""
    if not isinstance(num_examples, int) or not 1 <= num_examples <= validation.MOST_COUNT:
        raise ValueError(
            f"num_examples = {num_examples} is not a size: give a whole number from 1 to {validation.MOST_COUNT}."
        )


def drawn_rate(sampling_rate: float) -> float:
    """Returns the rate that 32 random bits can meet exactly, next to the one given."""
    validation.check_sampling_rate(sampling_rate)
    threshold = round(float(sampling_rate) * RATE_UNIT)
    if threshold == 0:
        raise ValueError(f"sampling_rate = {sampling_rate} is below 2**-33: nothing would ever be drawn.")
    return threshold / RATE_UNIT
