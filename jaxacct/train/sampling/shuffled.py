"""Shuffled batches: of a fixed size, dealt out of an order of the whole data set that is drawn anew for each epoch.

They are what most loaders make without privacy. Each example comes once in an epoch, and its place tells of the others'
places: so less is amplified than by Poisson samples or random allocation, and what is, :class:`.ShuffledGaussian`
bounds. They are for those who need batches of one size, or cannot have others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.mechanisms import Relation, ShuffledGaussian
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.strategies import MinSeparation
from jaxacct.train.sampling.sampler import Batch, check_num_examples, cut_cost, log_tie, of_ranks, pack, runs_of

Remainder = Literal["small", "dropped"]
"""Treatments of the examples of an epoch that fill no batch."""


@takes_python_values
@dataclass(frozen=True)
class ShuffledSampler:
    """A sampler that shuffles the data for each epoch, and takes its batches one after the other from that order.

    Attributes:
        num_examples: size of the data set; public, as neighbours under "zero_out" have the same.
        batch_size: number of examples of a batch, from 1 to ``num_examples``.
        remainder: what becomes of the ``num_examples % batch_size`` examples that fill no batch. "small": they are the
            epoch's last batch, which is divided by ``batch_size`` and noised as others are. "dropped": they are left
            out, in each epoch others. Nothing else is offered: of an order that is padded, where some examples come
            twice, the account is another.

    Formal guarantee: steps ``steps_per_run * e`` to ``steps_per_run * (e + 1) - 1`` are one run of :meth:`mechanism`,
    for each order of the examples is equally likely, in each epoch independently, but for ties in 96 random bits of two
    examples, which :meth:`overflow_delta` counts. The order must stay secret: it follows from the key of the run and
    the epoch's number. An epoch that is left early costs a whole one.

    Accounted for an example that is replaced by one that contributes nothing ("zero_out"). With an example more or less
    all batches behind it, and their number, could be others, for which there is no account.

    Raises ValueError where a field is out of range.

    >>> sampler = ShuffledSampler(num_examples=10, batch_size=4)
    >>> batches = [sampler.sample(jax.random.key(0), step) for step in range(3)]
    >>> [int(mask.sum()) for _, mask in batches]
    [4, 4, 2]
    >>> sorted(int(index) for indices, mask in batches for index in indices[mask]) == list(range(10))
    True
    """

    num_examples: int
    batch_size: int
    remainder: Remainder = "small"

    relation: ClassVar[Relation] = "zero_out"

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        validation.check_whole(self.batch_size, "batch_size", 1, self.num_examples, "the examples of a batch")
        validation.check_one_of(self.remainder, "remainder", get_args(Remainder))

    @property
    def batches(self) -> int:
        """Number of full batches of an epoch."""
        return self.num_examples // self.batch_size

    @property
    def steps_per_run(self) -> int:
        """Steps of an epoch: its full batches, and a small last one if there is one."""
        return self.batches + (self.remainder == "small" and self.num_examples % self.batch_size > 0)

    @property
    def capacity(self) -> int:
        """Rows of a batch: ``batch_size``."""
        return self.batch_size

    @property
    def expected_batch_size(self) -> float:
        """Divisor of the noisy sum: ``batch_size``, of a small last batch as well."""
        return float(self.batch_size)

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what ties in all random bits cost, once for each order: next to nothing."""
        return cut_cost(log_tie(self.num_examples), runs_of(self, steps), epsilon)

    def mechanism(self, noise_multiplier: float) -> ShuffledGaussian:
        """Returns the mechanism of an epoch of noisy sums.

        >>> ShuffledSampler(num_examples=10, batch_size=4).mechanism(2.0).remainder
        'small'
        """
        is_even = self.num_examples % self.batch_size == 0
        return ShuffledGaussian(noise_multiplier, self.batches, remainder="even" if is_even else self.remainder)

    def participation(self, steps: int, bands: int) -> MinSeparation:
        """Returns the participation that correlated noise is accounted by: once an epoch, without amplification."""
        most = -(-steps // self.steps_per_run)
        return MinSeparation(steps, steps if most == 1 else 1, min(most, steps))

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        """Returns the batch of a step: indices in rising order, and which of the rows are real."""
        epoch, batch = jnp.divmod(jnp.asarray(step, jnp.int32), self.steps_per_run)
        first, key = batch * self.batch_size, jax.random.fold_in(key, epoch)
        return pack(of_ranks(key, self.num_examples, first, first + self.batch_size), self.batch_size)
