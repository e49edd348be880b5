"""Poisson sampling into batches of a fixed shape, and the mechanism that it is.

A compiled step needs a static batch shape; a Poisson sample has a random size. The sample is packed into ``capacity``
rows under a mask. What is left is the event that more than ``capacity`` examples are drawn. Then the batch is cut, and
the run is no longer the mechanism that is accounted. No branch and no compilation depend on the realized size.

What the cut costs. Let M be ``steps`` steps with unbounded batches and M' the same with cut ones, both run on the same
sample and the same noise, and let p bound the probability of an overflow in one step on every data set of at most
``num_examples + 1`` examples (both of any two neighbours). The two outputs differ only where some step overflows, so
eta = steps * p bounds their total variation distance, also if the run stops by an adaptive rule within ``steps``. If M
is (epsilon, delta')-DP, for neighbours D and D' and any event S

    P(M'(D) in S) <= P(M(D) in S) + eta <= e^epsilon P(M(D') in S) + delta' + eta
                  <= e^epsilon (P(M'(D') in S) + eta) + delta' + eta,

so M' is (epsilon, delta' + (1 + e^epsilon) eta)-DP. :meth:`PoissonSampler.overflow_delta` is that last term; it has to
be taken off delta before the budget is spent.

p comes from Chernoff's bound: for X ~ Binomial(N, q) and m > N q, P(X >= m) <= exp(-N KL(m/N || q)), KL the divergence
between Bernoulli laws. Capacities above ``num_examples`` never overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.platforms import as_it_is
from jaxacct.precision import in_float64, scope
from jaxacct.train.sampling.overflow import cut_cost, least_capacity, log_overflow_bound
from jaxacct.train.sampling.packing import RATE_UNIT, Batch, coins, pack
from jaxacct.train.sampling.sampler import Sampler, check_num_examples, drawn_rate

ALLOWANCE = 1e-3
"""Share of delta that overflows may cost, by default. The batch grows by the logarithm of its inverse only."""


def present_of(sampler: Sampler) -> int:
    """Returns how many examples there are to draw from; of samplers that protect their number not the public one.

    >>> present_of(PoissonSampler(num_examples=40, sampling_rate=0.5, capacity=41, present=31))
    31
    """
    present = sampler.present if isinstance(sampler, PoissonSampler) else None
    return sampler.num_examples if present is None else present


@dataclass(frozen=True)
class PoissonSampler:
    """Draws batches in which each example takes part independently, and knows what mechanism that makes.

    Attributes:
        num_examples: size of the data set; taken as public, as it sets the expected batch size. With ``present`` a
            public number that the data has at most.
        sampling_rate: probability of each example to be in a batch. The multiple of 2^-32 next to the one given: the
            attribute is what is really drawn, and what :meth:`mechanism` accounts.
        capacity: rows of a batch. What lies beyond is cut, at the price of :meth:`overflow_delta`.
        present: how many examples there are, where that is to be protected as well; the others of ``num_examples`` are
            drawn and contribute nothing. All else depends on ``num_examples`` alone, so that an example that is not
            there is one whose gradient is zero. None: all.

    Hashable and without arrays: close over it in a compiled function.

    Formal guarantee: a batch is a Poisson sample of the data set, except with probability at most
    :attr:`overflow_probability`.

    Raises ValueError where a field is out of range, or the capacity is below the expected batch size.

    >>> sampler = PoissonSampler(num_examples=1000, sampling_rate=0.1, capacity=200)
    >>> indices, mask = sampler.sample(jax.random.key(0))
    >>> indices.shape, mask.shape, bool(80 < mask.sum() < 120)
    ((200,), (200,), True)
    >>> sampler.overflow_probability < 1e-17
    True
    """

    num_examples: int
    sampling_rate: float
    capacity: int
    present: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_num_examples(self.num_examples)
        present = self.present
        if present is not None and not (isinstance(present, int) and 0 < present <= self.num_examples):
            raise ValueError(
                f"present = {present} examples of at most num_examples = {self.num_examples}: give there a "
                "public number that was chosen without looking, large enough."
            )
        object.__setattr__(self, "sampling_rate", drawn_rate(self.sampling_rate))
        if self.capacity < min((self.num_examples + 1) * self.sampling_rate + 1, self.num_examples + 1):
            raise ValueError(
                f"capacity = {self.capacity} is not above the expected batch size, "
                f"{self.expected_batch_size:.1f}: batches would be cut all the time. Use PoissonSampler.for_budget."
            )

    @classmethod
    def for_budget(
        cls,
        num_examples: int,
        sampling_rate: float,
        *,
        epsilon: float,
        delta: float,
        steps: int,
        allowance: float = ALLOWANCE,
    ) -> PoissonSampler:
        """Returns the sampler of least capacity whose overflows cost at most ``allowance * delta``.

        Args:
            num_examples: size of the data set.
            sampling_rate: probability of each example to be in a batch.
            epsilon: budget of the whole run.
            delta: budget of the whole run.
            steps: the most steps that the run can take.
            allowance: share of delta given away, in (0, 1). Raise it where rows of padding cost too much time.

        The capacity depends on these public parameters only.

        >>> sampler = PoissonSampler.for_budget(60_000, 0.01, epsilon=3.0, delta=1e-5, steps=2000)
        >>> sampler.capacity, sampler.overflow_delta(steps=2000, epsilon=3.0) <= 1e-8
        (795, True)
        """
        rate = cls(num_examples, sampling_rate, num_examples + 1).sampling_rate
        capacity = least_capacity(num_examples, rate, epsilon=epsilon, delta=delta, steps=steps, allowance=allowance)
        return cls(num_examples, rate, capacity)

    @property
    def expected_batch_size(self) -> float:
        """``num_examples * sampling_rate``: what the noisy sum is divided by."""
        return self.num_examples * self.sampling_rate

    relation: ClassVar[Relation] = "add_or_remove"
    steps_per_run: ClassVar[int] = 1

    @property
    def overflow_probability(self) -> float:
        """Upper bound on the probability that one batch is cut."""
        return math.exp(log_overflow_bound(self.num_examples, self.sampling_rate, self.capacity))

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what cut batches add to delta over ``steps`` steps of an (epsilon, .)-DP run: see the module.

        >>> PoissonSampler(num_examples=10, sampling_rate=0.5, capacity=11).overflow_delta(steps=5, epsilon=1.0)
        0.0
        """
        return cut_cost(log_overflow_bound(self.num_examples, self.sampling_rate, self.capacity), steps, epsilon)

    def mechanism(self, noise_multiplier: float) -> PoissonSubsampledGaussian:
        """Returns the mechanism of one noisy sum over such a batch.

        >>> PoissonSampler(num_examples=10, sampling_rate=0.5, capacity=11).mechanism(2.0)
        PoissonSubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.5)
        """
        return PoissonSubsampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=self.sampling_rate)

    def sample(self, key: jax.Array, step: ArrayLike | None = None) -> Batch:
        """Returns the batch of a step: indices into the data set, and which of them are real.

        Args:
            key: typed key of the run; without ``step`` that of this batch alone, to be used once.
            step: number of the step, which is folded into the key.

        Real rows come first, in rising order, each example at most once; rows under a false mask point at example 0
        and must count for nothing. A batch may be empty.
        """
        return pack(self.draw(key if step is None else jax.random.fold_in(key, step)), self.capacity)

    def mechanism_at(self, noise_multiplier: ArrayLike, sampling_rate: ArrayLike) -> PoissonSubsampledGaussian:
        """Returns the mechanism of a noisy sum over :meth:`sample_at`, whose rate is chosen on the way; traceable."""
        return PoissonSubsampledGaussian(noise_multiplier, self._drawn_at(sampling_rate))

    def sample_at(self, key: jax.Array, step: ArrayLike, sampling_rate: ArrayLike) -> Batch:
        """Returns the batch of a step at another rate, traced or not, of at most :attr:`sampling_rate`.

        The rate is rounded to a multiple of 2^-32, which is what :meth:`mechanism_at` accounts. Being lower, it
        overflows more rarely.
        """
        bits = jax.random.bits(jax.random.fold_in(key, step), (self.num_examples,), jnp.uint32)
        with scope():
            threshold = self._drawn_at(sampling_rate) * RATE_UNIT
            selected = bits.astype(jnp.float64) < threshold
        return pack(self._of_present(selected), self.capacity)

    @in_float64(safe=as_it_is)
    def _drawn_at(self, sampling_rate: ArrayLike) -> Array:
        rate = jnp.minimum(jnp.asarray(sampling_rate, jnp.float64), self.sampling_rate)
        return jnp.ceil(rate * RATE_UNIT) / RATE_UNIT

    def draw(self, key: jax.Array) -> Bool[Array, " num_examples"]:
        """Returns which examples take part, before packing."""
        return self._of_present(coins(key, self.num_examples, self.sampling_rate))

    def _of_present(self, selected: Bool[Array, " num_examples"]) -> Bool[Array, " num_examples"]:
        return selected if self.present is None else selected & (jnp.arange(self.num_examples) < self.present)
