"""Cyclic Poisson sampling: groups of examples take turns, and a step samples from its group.

Two participations of an example are a multiple of the number of groups apart, so that noise correlated over at most as
many steps leaves them apart, and amplified (:class:`.MatrixMechanism`). At rate 1 a group's turn is all of it: examples
in one order, a single pass or several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int32

from jaxacct import validation
from jaxacct.mechanisms import MatrixMechanism, Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.strategies import CyclicPoisson, FixedEpochs, identity
from jaxacct.strategies.participation import Participation
from jaxacct.train.sampling.overflow import cut_cost, least_capacity, log_overflow_bound
from jaxacct.train.sampling.packing import MOST_BINS, Batch, coins, pack, places
from jaxacct.train.sampling.poisson import ALLOWANCE
from jaxacct.train.sampling.sampler import check_num_examples, drawn_rate


@dataclass(frozen=True)
class CyclicPoissonSampler:
    """Draws step t's batch from group t mod ``groups``, by a coin of each of its examples.

    Attributes:
        num_examples: size of the data set; taken as public.
        groups: b, from 1 to 2**16: as many as bands of the strategy, which is what correlation asks for, and no more,
            which amplifies less.
        sampling_rate: probability of an example of the group to be in the batch, in (0, 1]; what is really drawn, as
            for :class:`.PoissonSampler`. For batches of B examples of m it is b B / m.
        capacity: rows of a batch. What lies beyond is cut, at the price of :meth:`overflow_delta`.
        equal_groups: whether example i is of group i mod b: its place's, so that neighbours are those of "replace".
            Else each example's group is drawn by itself, once for the whole run.

    Formal guarantee: a cycle of b steps is one run of :meth:`mechanism`, with independent noise, and steps in a row are
    those of :class:`.strategies.CyclicPoisson`, except with the probability that :meth:`overflow_delta` pays for. The
    size of a batch is Binomial(m, rate / b), over the draw of the groups as well, and no more likely to be large where
    groups are equal. A cycle that is left early costs a whole one.

    Raises ValueError where a field is out of range, or the capacity is below the expected batch size.

    >>> sampler = CyclicPoissonSampler(num_examples=1000, groups=4, sampling_rate=0.5, capacity=200)
    >>> sampler.expected_batch_size, sampler.participation(100, bands=4).cycles
    (125.0, 25)
    >>> batches = [sampler.sample(jax.random.key(0), step) for step in (0, 1)]
    >>> bool(jnp.isin(batches[0][0][batches[0][1]], batches[1][0][batches[1][1]]).any())
    False
    """

    num_examples: int
    groups: int
    sampling_rate: float
    capacity: int
    equal_groups: bool = False

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        validation.check_whole(self.groups, "groups", 1, MOST_BINS, "the number of groups")
        object.__setattr__(self, "sampling_rate", drawn_rate(self.sampling_rate))
        size, rate = self._trials
        if self.capacity < min((size + 1) * rate + 1, size + 1):
            raise ValueError(
                f"capacity = {self.capacity} is not above the expected batch size, {self.expected_batch_size:.1f}: "
                "batches would be cut all the time. Use CyclicPoissonSampler.for_budget."
            )

    @classmethod
    def for_budget(
        cls,
        num_examples: int,
        groups: int,
        sampling_rate: float,
        *,
        epsilon: float,
        delta: float,
        steps: int,
        equal_groups: bool = False,
        allowance: float = ALLOWANCE,
    ) -> Self:
        """Returns the sampler of least capacity whose overflows cost at most ``allowance * delta``.

        Arguments are those of :meth:`.PoissonSampler.for_budget`, the rate being within a group.

        >>> sampler = CyclicPoissonSampler.for_budget(60_000, 16, 0.16, epsilon=3.0, delta=1e-5, steps=2000)
        >>> sampler.capacity, sampler.overflow_delta(steps=2000, epsilon=3.0) < 1e-8
        (795, True)
        """
        ideal = cls(num_examples, groups, sampling_rate, num_examples + 1, equal_groups)
        capacity = least_capacity(*ideal._trials, epsilon=epsilon, delta=delta, steps=steps, allowance=allowance)
        return cls(num_examples, groups, ideal.sampling_rate, capacity, equal_groups)

    @property
    def _trials(self) -> tuple[int, float]:
        """How many examples are in a batch with which probability; groups by 64 bits, whose bias is rounded away."""
        if self.equal_groups:
            return -(-self.num_examples // self.groups), self.sampling_rate
        return self.num_examples, min(math.nextafter(self.sampling_rate / self.groups * (1 + 2.0**-40), 1.0), 1.0)

    @property
    def relation(self) -> Relation:
        """That of one example replaced for equal groups, else of one added or removed."""
        return "replace" if self.equal_groups else "add_or_remove"

    @property
    def steps_per_run(self) -> int:
        """``groups``."""
        return self.groups

    @property
    def expected_batch_size(self) -> float:
        """``num_examples * sampling_rate / groups``: what the noisy sum is divided by."""
        return self.num_examples * self.sampling_rate / self.groups

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what cut batches add to delta over ``steps`` steps: see :mod:`.sampling.poisson`."""
        return cut_cost(log_overflow_bound(*self._trials, self.capacity), steps, epsilon)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of a cycle of noisy sums, with noise that is independent."""
        cycle = CyclicPoisson(self.groups, self.groups, self.sampling_rate, self.equal_groups)
        return MatrixMechanism(identity(), noise_multiplier, cycle).cycle

    def participation(self, steps: int, bands: int) -> Participation:
        """Returns turns, in whole cycles; at rate 1, where more bands than groups leave nothing to amplify, epochs."""
        cycles = -(-steps // self.groups)
        if self.sampling_rate == 1 and bands > self.groups:
            return FixedEpochs(self.groups, cycles)
        return CyclicPoisson(cycles * self.groups, self.groups, self.sampling_rate, self.equal_groups)

    def group_of_each(self, key: jax.Array) -> Int32[Array, " num_examples"]:
        """Returns the group of each example, for the key of the run: the same at every step."""
        if self.equal_groups:
            return jnp.arange(self.num_examples, dtype=jnp.int32) % self.groups
        return places(jax.random.split(key)[0], self.num_examples, self.groups)

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the batch of a step: indices in rising order, and which of the rows are real."""
        step = jnp.asarray(step, jnp.int32)
        drawn = coins(jax.random.fold_in(jax.random.split(key)[1], step), self.num_examples, self.sampling_rate)
        return pack(drawn & (self.group_of_each(key) == step % self.groups), self.capacity)
