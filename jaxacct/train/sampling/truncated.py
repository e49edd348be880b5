"""Poisson sampling cut at a batch size of the user's choice, each cut accounted for as what it is.

For batches that hardly ever overflow :class:`.PoissonSampler` counts an overflow as a failure, (1 + e^epsilon) times
its probability. Here batches may overflow as often as the user likes: of a sample that is too large a uniformly random
part is taken, and the step accounted is :class:`~jaxacct.mechanisms.TruncatedPoissonGaussian`, which says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.binomial import binomial_tail
from jaxacct.mechanisms import TruncatedPoissonGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.train.sampling.overflow import cut_cost, log_tie
from jaxacct.train.sampling.packing import RATE_UNIT, Batch, random_order
from jaxacct.train.sampling.sampler import check_num_examples, drawn_rate


@dataclass(frozen=True)
class TruncatedPoissonSampler:
    """Draws Poisson samples, and of those above ``capacity`` that many at random.

    Attributes:
        num_examples: size of the data set; taken as public.
        sampling_rate: probability of each example to be sampled, before the cut. What is really drawn, as for
            :class:`.PoissonSampler`.
        capacity: largest batch, and the rows of each; from 1 to ``num_examples + 1``.

    Formal guarantee: each batch is a uniformly random part, of size at most ``capacity``, of a Poisson sample, but for
    ties in 96 random bits, which :meth:`overflow_delta` counts.

    Raises ValueError where a field is out of range.

    >>> sampler = TruncatedPoissonSampler(num_examples=1000, sampling_rate=0.1, capacity=110)
    >>> indices, mask = sampler.sample(jax.random.key(0), step=3)
    >>> indices.shape, 0.1 < sampler.overflow_probability < 0.2
    ((110,), True)
    """

    num_examples: int
    sampling_rate: float
    capacity: int

    relation: ClassVar[Relation] = "add_or_remove"
    steps_per_run: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        object.__setattr__(self, "sampling_rate", drawn_rate(self.sampling_rate))
        validation.check_whole(self.capacity, "capacity", 1, self.num_examples + 1, "the largest batch")

    @property
    def expected_batch_size(self) -> float:
        """``num_examples * sampling_rate``, or ``capacity`` if that is less: what the noisy sum is divided by."""
        return min(self.num_examples * self.sampling_rate, float(self.capacity))

    @property
    def overflow_probability(self) -> float:
        """Upper bound on the probability that of ``num_examples`` others ``capacity`` or more are sampled."""
        return binomial_tail(self.num_examples, self.sampling_rate, self.capacity).most

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what ties in all random bits cost: next to nothing. Cut batches are in the mechanism."""
        return cut_cost(log_tie(self.num_examples), steps, epsilon)

    def mechanism(self, noise_multiplier: float) -> TruncatedPoissonGaussian:
        """Returns the mechanism of one noisy sum over such a batch, for neighbours of one more and of one fewer."""
        sizes = (self.num_examples, self.num_examples + 1)
        return TruncatedPoissonGaussian.for_batches(noise_multiplier, self.sampling_rate, sizes, self.capacity)

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the batch of a step: indices, and which are real; real rows come first, in random order.

        Each example has 96 random bits; it is sampled if the first 32 are below a threshold, and the least are taken.
        """
        draw, ties = jax.random.split(jax.random.fold_in(key, step))
        bits = jax.random.bits(draw, (self.num_examples,), jnp.uint32)
        threshold = round(self.sampling_rate * RATE_UNIT)
        indices = random_order(ties, bits, self.capacity)
        if self.capacity > self.num_examples:
            indices = jnp.concatenate([indices, jnp.zeros(1, jnp.int32)])
        rows = jnp.arange(self.capacity) < self.num_examples
        # 2^32 itself does not fit into 32 bits.
        mask = rows if threshold == RATE_UNIT else rows & (bits[indices] < jnp.uint32(threshold))
        return jnp.where(mask, indices, 0), mask
