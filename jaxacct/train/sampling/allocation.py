"""Random allocation, or balls-in-bins: in every epoch each example goes to k batches, independently of the others.

Every example is used equally often in an epoch, as with shuffled data. Unlike a shuffle's, batches have random sizes,
and an example's place tells nothing of another's: so a bound as good as Poisson sampling's, or better, is known.
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
from jaxacct.train.sampling.packing import MOST_BINS, Batch, modulo, pack, places
from jaxacct.train.sampling.poisson import ALLOWANCE
from jaxacct.train.sampling.sampler import check_num_examples


@dataclass(frozen=True)
class RandomAllocationSampler:
    """Draws, for every epoch anew, ``participations`` of ``batches`` batches for each example.

    Attributes:
        num_examples: size of the data set; taken as public.
        batches: batches, and steps, of an epoch, from 1 to 2**16.
        capacity: rows of a batch. What lies beyond is cut, at the price of :meth:`overflow_delta`.
        participations: k, batches of an epoch that an example is in, all different; from 1 to ``batches``. k epochs of
            ``batches / k`` cost a little more privacy, and use each example once in each.

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
    participations: int = 1

    relation: ClassVar[Relation] = "add_or_remove"

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        validation.check_whole(self.batches, "batches", 1, MOST_BINS, "the batches of an epoch")
        validation.check_whole(self.participations, "participations", 1, self.batches, "the batches of an example")
        if self.capacity < min((self.num_examples + 1) * self._rate + 1, self.num_examples + 1):
            raise ValueError(
                f"capacity = {self.capacity} is not above the expected batch size, "
                f"{self.expected_batch_size:.1f}: batches would be cut all the time. Use "
                "RandomAllocationSampler.for_budget."
            )

    @classmethod
    def for_budget(
        cls,
        num_examples: int,
        batches: int,
        *,
        epsilon: float,
        delta: float,
        steps: int,
        allowance: float = ALLOWANCE,
        participations: int = 1,
    ) -> RandomAllocationSampler:
        """Returns the sampler of least capacity whose overflows cost at most ``allowance * delta``.

        Arguments are those of :meth:`.PoissonSampler.for_budget`, with the number of batches for the sampling rate, and
        the participations.

        >>> sampler = RandomAllocationSampler.for_budget(60_000, 100, epsilon=3.0, delta=1e-5, steps=2000)
        >>> sampler.capacity, sampler.overflow_delta(steps=2000, epsilon=3.0) < 1.1e-8
        (795, True)
        """
        rate = cls(num_examples, batches, num_examples + 1, participations)._rate
        capacity = least_capacity(num_examples, rate, epsilon=epsilon, delta=delta, steps=steps, allowance=allowance)
        return cls(num_examples, batches, capacity, participations)

    @property
    def _rate(self) -> float:
        return self.participations / self.batches

    @property
    def steps_per_run(self) -> int:
        """``batches``."""
        return self.batches

    @property
    def expected_batch_size(self) -> float:
        """``num_examples * participations / batches``: what the noisy sum is divided by."""
        return self.num_examples * self.participations / self.batches

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what cut batches, and the finite number of random bits, add to delta over ``steps`` steps.

        For cut batches see :mod:`.sampling.poisson`: in one step the size is Binomial(n, k/t). Each of k times 64 bits,
        modulo t at most, are within t/2^64 of uniform in total variation; the one example at issue counts, the others'
        places may follow any law, for the dominating pair holds given them.
        """
        cut = cut_cost(log_overflow_bound(self.num_examples, self._rate, self.capacity), steps, epsilon)
        uneven = math.log(self.batches * self.participations) - 64 * math.log(2)
        return min(cut + cut_cost(uneven, steps, epsilon), 1.0)

    def mechanism(self, noise_multiplier: float) -> RandomAllocation:
        """Returns the mechanism of an epoch of noisy sums.

        >>> RandomAllocationSampler(num_examples=10, batches=2, capacity=11).mechanism(2.0)
        RandomAllocation(noise_multiplier=2.0, batches=2, points=512, participations=1)
        """
        return RandomAllocation(noise_multiplier, self.batches, participations=self.participations)

    def participation(self, steps: int, bands: int) -> MinSeparation:
        """Returns what correlated noise is accounted by: k times an epoch; the allocation amplifies nothing."""
        most = self.participations * -(-steps // self.batches)
        return MinSeparation(steps, steps if most == 1 else 1, min(most, steps))

    def places(self, key: jax.Array, epoch: ArrayLike) -> Int32[Array, "*k num_examples"]:
        """Returns the batch, from 0 to ``batches - 1``, that each example goes to in an epoch.

        Of the shape (num_examples,), or (k, num_examples) for k > 1 participations: Floyd's draw of k out of t, in
        which the i-th is one of the first t - k + i places, or the last of these where it has been drawn before.
        """
        k, n = self.participations, self.num_examples
        key = jax.random.fold_in(key, epoch)
        if k == 1:
            return places(key, n, self.batches)
        words = jax.random.bits(key, (2 * k, n), jnp.uint32)

        def draw(drawn: Array, i: Array) -> tuple[Array, None]:
            last = self.batches - k + i
            place = modulo(jax.lax.dynamic_slice_in_dim(words, 2 * i, 2), (last + 1).astype(jnp.uint32))
            return drawn.at[i].set(jnp.where(jnp.any(drawn == place[None], axis=0), last, place)), None

        return jax.lax.scan(draw, jnp.full((k, n), -1, jnp.int32), jnp.arange(k, dtype=jnp.int32))[0]

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the batch of a step: indices in rising order, and which of the rows are real."""
        epoch, batch = jnp.divmod(jnp.asarray(step, jnp.int32), self.batches)
        drawn = self.places(key, epoch).reshape(self.participations, -1)
        return pack(jnp.any(drawn == batch, axis=0), self.capacity)
