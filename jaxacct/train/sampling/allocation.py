"""Random allocation, or balls-in-bins: in every epoch each example goes to one batch, independently of the others.

Every example is used exactly once an epoch, as with shuffled data. Unlike a shuffle's, batches have random sizes, and
an example's place tells nothing of another's: so a bound as good as Poisson sampling's, or better, is known.

k uses of each example in t steps are k runs of t/k batches: choosing one place in each of k parts. With the parts
themselves drawn at random this is a uniform choice of k out of t steps, so that one is dominated by k runs, too
(Feldman and Shenfeld 2025, "Privacy amplification by random allocation", section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int32

from jaxacct import validation
from jaxacct.mechanisms import RandomAllocation
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.strategies import MinSeparation
from jaxacct.train.sampling.overflow import cut_cost, least_capacity, log_overflow_bound
from jaxacct.train.sampling.packing import MOST_BINS, Batch, pack, places
from jaxacct.train.sampling.poisson import ALLOWANCE
from jaxacct.train.sampling.sampler import check_num_examples


@dataclass(frozen=True)
class RandomAllocationSampler:
    """Draws, for every epoch anew, one of ``batches`` batches for each example.

    Attributes:
        num_examples: size of the data set; taken as public.
        batches: batches, and steps, of an epoch, from 1 to 2**16.
        capacity: rows of a batch. What lies beyond is cut, at the price of :meth:`overflow_delta`.

    Formal guarantee: steps ``batches * e`` to ``batches * (e + 1) - 1`` are one run of :meth:`mechanism`, except with
    the probability that :meth:`overflow_delta` pays for. An epoch that is left early costs a whole one.

    Raises ValueError where a field is out of range, or the capacity is below the expected batch size.

    >>> sampler = RandomAllocationSampler(num_examples=1000, batches=10, capacity=200)
    >>> sum(int(sampler.sample(jax.random.key(0), step)[1].sum()) for step in range(10))
    1000
    """

    num_examples: int
    batches: int
    capacity: int

    relation: ClassVar[Relation] = "add_or_remove"

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        validation.check_whole(self.batches, "batches", 1, MOST_BINS, "the batches of an epoch")
        if self.capacity < min((self.num_examples + 1) / self.batches + 1, self.num_examples + 1):
            raise ValueError(
                f"capacity = {self.capacity} is not above the expected batch size, "
                f"{self.expected_batch_size:.1f}: batches would be cut all the time. Use "
                "RandomAllocationSampler.for_budget."
            )

    @classmethod
    def for_budget(
        cls, num_examples: int, batches: int, *, epsilon: float, delta: float, steps: int, allowance: float = ALLOWANCE
    ) -> RandomAllocationSampler:
        """Returns the sampler of least capacity whose overflows cost at most ``allowance * delta``.

        Arguments are those of :meth:`.PoissonSampler.for_budget`, with the number of batches for the sampling rate.

        >>> sampler = RandomAllocationSampler.for_budget(60_000, 100, epsilon=3.0, delta=1e-5, steps=2000)
        >>> sampler.capacity, sampler.overflow_delta(steps=2000, epsilon=3.0) < 1.1e-8
        (795, True)
        """
        rate = 1 / cls(num_examples, batches, num_examples + 1).batches
        capacity = least_capacity(num_examples, rate, epsilon=epsilon, delta=delta, steps=steps, allowance=allowance)
        return cls(num_examples, batches, capacity)

    @property
    def steps_per_run(self) -> int:
        """``batches``."""
        return self.batches

    @property
    def expected_batch_size(self) -> float:
        """``num_examples / batches``: what the noisy sum is divided by."""
        return self.num_examples / self.batches

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what cut batches, and the finite number of random bits, add to delta over ``steps`` steps.

        For cut batches see :mod:`.sampling.poisson`: in one step the size is Binomial(n, 1/t). 64 bits modulo t are
        within t/2^64 of uniform in total variation; the one example at issue counts, the others' places may follow any
        law, for the dominating pair holds given them.
        """
        cut = cut_cost(log_overflow_bound(self.num_examples, 1 / self.batches, self.capacity), steps, epsilon)
        return min(cut + cut_cost(math.log(self.batches) - 64 * math.log(2), steps, epsilon), 1.0)

    def mechanism(self, noise_multiplier: float) -> RandomAllocation:
        """Returns the mechanism of an epoch of noisy sums.

        >>> RandomAllocationSampler(num_examples=10, batches=2, capacity=11).mechanism(2.0)
        RandomAllocation(noise_multiplier=2.0, batches=2, points=512)
        """
        return RandomAllocation(noise_multiplier, self.batches)

    def participation(self, steps: int, bands: int) -> MinSeparation:
        """Returns what correlated noise is accounted by: once an epoch, which nothing of the allocation amplifies."""
        return MinSeparation(steps, steps if steps <= self.batches else 1, -(-steps // self.batches))

    def places(self, key: jax.Array, epoch: ArrayLike) -> Int32[Array, " num_examples"]:
        """Returns the batch, from 0 to ``batches - 1``, that each example goes to in an epoch."""
        return places(jax.random.fold_in(key, epoch), self.num_examples, self.batches)

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the batch of a step: indices in rising order, and which of the rows are real."""
        epoch, batch = jnp.divmod(jnp.asarray(step, jnp.int32), self.batches)
        return pack(self.places(key, epoch) == batch, self.capacity)
