"""Batches of a fixed size, drawn without replacement, afresh for every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.mechanisms import GaussianWithoutReplacement
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.train.sampling.overflow import cut_cost, log_tie
from jaxacct.train.sampling.packing import Batch, random_order
from jaxacct.train.sampling.sampler import check_num_examples


@dataclass(frozen=True)
class WithoutReplacementSampler:
    """Draws uniformly random subsets of a fixed size, a new one for every step.

    Attributes:
        num_examples: size of the data set; public, as neighbours under "replace" have the same.
        batch_size: examples of a batch, from 1 to ``num_examples``; all rows are real.

    Formal guarantee: each subset of that size is equally likely, but for ties in 96 random bits of two examples, which
    :meth:`overflow_delta` counts. Accounted for replacing one example: the noise multiplier stays that over the
    clipping norm, the mechanism counts that a sum then changes by up to twice the norm.

    Raises ValueError where a field is out of range.

    >>> sampler = WithoutReplacementSampler(num_examples=10, batch_size=4)
    >>> indices, mask = sampler.sample(jax.random.key(0), step=0)
    >>> len(set(indices.tolist())), bool(mask.all()), sampler.mechanism(2.0)
    (4, True, GaussianWithoutReplacement(noise_multiplier=2.0, sampling_rate=0.4))
    """

    num_examples: int
    batch_size: int

    relation: ClassVar[Relation] = "replace"
    steps_per_run: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        validation.check_whole(self.batch_size, "batch_size", 1, self.num_examples, "the examples of a batch")

    @property
    def capacity(self) -> int:
        """``batch_size``."""
        return self.batch_size

    @property
    def expected_batch_size(self) -> float:
        """``batch_size``: what the noisy sum is divided by."""
        return float(self.batch_size)

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what ties in all random bits cost: next to nothing."""
        return cut_cost(log_tie(self.num_examples), steps, epsilon)

    def mechanism(self, noise_multiplier: float) -> GaussianWithoutReplacement:
        """Returns the mechanism of one noisy sum over such a batch; its relation is "replace"."""
        return GaussianWithoutReplacement(noise_multiplier, self.batch_size / self.num_examples)

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the batch of a step: the examples with the least of random numbers of 96 bits, in that order."""
        draw, ties = jax.random.split(jax.random.fold_in(key, step))
        bits = jax.random.bits(draw, (self.num_examples,), jnp.uint32)
        return random_order(ties, bits, self.batch_size), jnp.ones(self.batch_size, bool)
