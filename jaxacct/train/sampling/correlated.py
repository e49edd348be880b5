"""Samplers that bound an example's participation, and the joining of a sampler to correlated noise.

* :class:`Correlated`: a sampler's batches with a strategy's noise, which together are a matrix mechanism;
* :class:`CyclicPoissonSampler`: Poisson samples from groups that take turns;
* :class:`RandomAllocationSampler`: each example in k batches of every epoch;
* :class:`BallsInBinsSampler`: each example in the same batch of several epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Int32

from jaxacct import validation
from jaxacct.mechanisms import BallsInBins, MatrixMechanism, Mechanism, RandomAllocation, Relation
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.strategies import (
    BufferedStrategy,
    CyclicPoisson,
    FixedEpochs,
    MinSeparation,
    Participation,
    Restarted,
    Strategy,
    identity,
)
from jaxacct.train.ownership import arrays_of, digest
from jaxacct.train.sampling.sampler import (
    ALLOWANCE,
    MOST_BINS,
    Batch,
    Sampler,
    Separating,
    check_capacity,
    check_num_examples,
    coins,
    cut_cost,
    drawn_rate,
    least_capacity,
    log_overflow_bound,
    modulo,
    pack,
    places,
)


@takes_python_values
@dataclass(frozen=True, eq=False, repr=False)
class Correlated:
    """A sampler's batches with a strategy's noise: a :class:`.Sampler` of a matrix mechanism, or of balls in bins.

    Attributes:
        batches: the sampler that draws them; it says how examples take part: what is drawn is what is accounted.
        strategy: correlates the noise.
        steps: largest number of steps of the whole run.

    Formal guarantee: ``steps`` steps of these batches, each with its row of C^-1 z, are :meth:`mechanism` as often as
    they begin runs of ``steps_per_run`` steps: cycles, under cyclic Poisson sampling, else the whole training, once
    (:class:`.MatrixMechanism`). Where places of examples and the noise begin anew together (:func:`bins_of`), those are
    the runs, of :class:`.BallsInBins`. This holds for noise that is drawn once: a step that is made again from other
    keys is another run.

    Raises ValueError for a sampler that bounds no participation, and as :class:`.MatrixMechanism` does.

    >>> from jaxacct.strategies import square_root
    >>> from jaxacct.train.sampling import CyclicPoissonSampler
    >>> run = Correlated(CyclicPoissonSampler(1000, 4, 0.5, 200), square_root(4).normalized(), steps=100)
    >>> run.steps_per_run, run.mechanism(2.0).sampling_rate
    (4, 0.5)
    """

    batches: Sampler
    strategy: Strategy
    steps: int
    participation: Participation = field(init=False)
    _at_one: MatrixMechanism | BallsInBins = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise TypeError(f"strategy = {self.strategy!r} is none: give one of jaxacct.strategies.")
        participation = separating(self.batches).participation(self.steps, self.strategy.bands(self.steps))
        object.__setattr__(self, "participation", participation)
        bins = bins_of(self.batches, self.strategy, self.steps)
        object.__setattr__(self, "_at_one", bins or MatrixMechanism(self.strategy, 1.0, participation))

    @property
    def is_sampled(self) -> bool:
        """Whether the noise is amplified by sampling, and accounted by cycles, or by runs of bins."""
        return isinstance(self._at_one, BallsInBins) or self._at_one.is_sampled

    @property
    def sensitivity(self) -> float:
        """Sensitivity of the strategy for how examples take part."""
        at_one = self._at_one
        return at_one.sensitivity if isinstance(at_one, BallsInBins) else float(np.asarray(at_one.sensitivity))

    @property
    def covered(self) -> int:
        """Largest number of steps that the account covers."""
        return self.participation.pattern.steps

    @property
    def noise(self) -> str:
        """Description of the noise, in words."""
        of = "each turn" if self.is_sampled else str(self.participation)
        if isinstance(self._at_one, BallsInBins):
            of = f"all turns of an example, accounted by balls in bins: {places_of(self.batches)}"
        name = type(self.strategy).__name__
        if isinstance(self.strategy, Restarted):
            name = f"{type(self.strategy.strategy).__name__}, anew every {self.strategy.every} steps"
        return f"correlated over steps by {name}, of sensitivity {self.sensitivity:.9g} for {of}"

    def __repr__(self) -> str:
        return f"Correlated({self.batches}, {self.noise})"

    @property
    def num_examples(self) -> int:
        """Size of the sampler's data set; the properties below are the sampler's, too."""
        return self.batches.num_examples

    @property
    def capacity(self) -> int:
        return self.batches.capacity

    @property
    def relation(self) -> Relation:
        return self.batches.relation

    @property
    def expected_batch_size(self) -> float:
        return self.batches.expected_batch_size

    @property
    def steps_per_run(self) -> int:
        """Steps of a cycle, or of the whole training."""
        return self.batches.steps_per_run if self.is_sampled else self.participation.pattern.steps

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of ``steps_per_run`` steps: noise over clipping norm, at the strategy's sensitivity."""
        made = self._at_one.with_noise(noise_multiplier)
        return made if isinstance(made, BallsInBins) else made.decompose(1)[0][0]

    def sample(self, key: jax.Array, step: ArrayLike) -> Batch:
        return self.batches.sample(key, step)

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        return self.batches.overflow_delta(steps, epsilon)


def separating(sampler: Sampler) -> Separating:
    """Returns a sampler that bounds how examples take part; raises ValueError for one that does not."""
    if isinstance(sampler, Separating):
        return sampler
    raise ValueError(
        f"sampler = {type(sampler).__name__} may take an example into any steps, for which correlated noise has no "
        "account: give a CyclicPoissonSampler or a RandomAllocationSampler; or leave noise out."
    )


def bins_of(sampler: Sampler, strategy: Strategy, steps: int) -> BallsInBins | None:
    """Returns the mechanism of a run of balls in bins; None where the noise is accounted without amplification.

    Places that are drawn anew for every epoch, or every few, need a strategy that begins anew with them
    (:class:`.strategies.Restarted`).

    Raises ValueError where a :class:`BallsInBinsSampler` draws new places and the noise goes on.
    """
    if not isinstance(sampler, RandomAllocationSampler) or sampler.participations > 1:
        return None
    run, is_fixed = sampler.steps_per_run, isinstance(sampler, BallsInBinsSampler)
    if isinstance(strategy, Restarted) and strategy.every == run:
        strategy = strategy.strategy
    elif not is_fixed:
        return None
    elif steps > run:
        raise ValueError(
            f"steps = {steps} are more than one run of {run}, for which places are drawn: noise that goes on would be "
            "shared between the turns of an example in two places, and has no account. Keep places for more epochs, or "
            f"give strategies.Restarted(strategy, every={run})."
        )
    if not isinstance(strategy, BufferedStrategy):
        raise ValueError(
            f"strategy = {type(strategy).__name__} has no rows, which bins are accounted by: give another."
        )
    return BallsInBins(strategy, 1.0, sampler.batches, run // sampler.batches)


def places_of(sampler: Sampler) -> str:
    """Returns in words whether the places of examples are kept over epochs."""
    epochs = sampler.epochs if isinstance(sampler, BallsInBinsSampler) else 1
    kept = "places are drawn anew for every epoch" if epochs == 1 else f"places are kept for {epochs} epochs"
    return f"{kept}, and noise begins anew with them"


def drawn_by(sampler: Sampler) -> Sampler:
    """Returns the sampler that draws the batches, whatever noise they get."""
    return sampler.batches if isinstance(sampler, Correlated) else sampler


def describe_noise(sampler: Correlated) -> str:
    """Returns what identifies the noise that a sampler correlates: words and a digest."""
    strategy = sampler.strategy
    numbers = [leaf for leaf in jax.tree.leaves(strategy) if isinstance(leaf, np.ndarray)]
    if not numbers:
        # A strategy without arrays is known by C^-1 of the first 32 steps. More would tell more, for a little time.
        first = np.eye(min(sampler.steps, 32))
        numbers = [np.asarray(jax.jit(strategy.solve)(first), np.float32).round(4) + 0.0]
    return f"{sampler.noise}, {digest(arrays_of(numbers))[:16]}"


# ----------------------------------------------------------------------------------------------------
# Cyclic Poisson sampling: groups of examples take turns, and a step samples from its group.
#
# The distance of two participations of an example is a multiple of the number of groups. Noise that is correlated over
# at most as many steps then keeps them independent, and amplified (:class:`.MatrixMechanism`). At rate 1 a step takes
# its whole group: the examples come in one fixed order, in a single pass or in several.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
@dataclass(frozen=True)
class CyclicPoissonSampler:
    """A sampler that draws step t's batch from group t mod ``groups``, by a coin of each of its examples.

    Attributes:
        num_examples: size of the data set; taken as public.
        groups: b, from 1 to 2**16. Give as many as the strategy has bands: correlation asks for that many, and more
            amplify less.
        sampling_rate: probability of an example of the group to be in the batch, in (0, 1]: the rate that is really
            drawn, as for :class:`.PoissonSampler`. For batches of B examples of m it is b B / m.
        capacity: rows of a batch. Examples beyond it are cut, at the price of :meth:`overflow_delta`.
        equal_groups: whether example i is of group i mod b: the group is its place's, so that neighbours are those of
            "replace". Else each example's group is drawn by itself, once for the whole run.

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
        check_capacity(self, *self._trials)

    @classmethod
    @takes_python_values
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
        """Number of examples that may be in a batch, and the probability of each.

        A group that is drawn by 64 bits has a slight bias, which the factor and the rounding up of the rate cover.
        """
        if self.equal_groups:
            return -(-self.num_examples // self.groups), self.sampling_rate
        return self.num_examples, min(math.nextafter(self.sampling_rate / self.groups * (1 + 2.0**-40), 1.0), 1.0)

    @property
    def relation(self) -> Relation:
        """Neighbouring relation: one example replaced for equal groups, else one added or removed."""
        return "replace" if self.equal_groups else "add_or_remove"

    @property
    def steps_per_run(self) -> int:
        """Steps of a cycle: ``groups``."""
        return self.groups

    @property
    def expected_batch_size(self) -> float:
        """Divisor of the noisy sum: ``num_examples * sampling_rate / groups``."""
        return self.num_examples * self.sampling_rate / self.groups

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what cut batches add to delta over ``steps`` steps: see :mod:`.sampling.sampler`."""
        return cut_cost(log_overflow_bound(*self._trials, self.capacity), steps, epsilon)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of a cycle of noisy sums, with noise that is independent."""
        cycle = CyclicPoisson(self.groups, self.groups, self.sampling_rate, self.equal_groups)
        return MatrixMechanism(identity(), noise_multiplier, cycle).cycle

    def participation(self, steps: int, bands: int) -> Participation:
        """Returns cyclic participation, in whole cycles, or that of fixed epochs where there is nothing to amplify.

        That is so at rate 1 with more bands than groups.
        """
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


# ----------------------------------------------------------------------------------------------------
# Random allocation, or balls-in-bins: in every epoch each example goes to k batches, independently of the others.
#
# Every example is used equally often in an epoch, as with shuffled data. Unlike a shuffle's, batches have random sizes,
# and an example's place says nothing of another's: hence a bound as good as Poisson sampling's, or better, is known.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
@dataclass(frozen=True)
class RandomAllocationSampler:
    """A sampler that draws for each example, anew in every epoch, ``participations`` of the ``batches`` batches.

    Attributes:
        num_examples: size of the data set; taken as public.
        batches: number of batches, and of steps, of an epoch, from 1 to 2**16.
        capacity: rows of a batch. Examples beyond it are cut, at the price of :meth:`overflow_delta`.
        participations: k, the number of batches of an epoch that an example is in, all different; from 1 to
            ``batches``. k epochs of ``batches / k`` cost a little more privacy, and use each example once in each.

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
        check_capacity(self, self.num_examples, self._rate)

    @classmethod
    @takes_python_values
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
        **kept: int,
    ) -> Self:
        """Returns the sampler of least capacity whose overflows cost at most ``allowance * delta``.

        Arguments are those of :meth:`.PoissonSampler.for_budget`, with the number of batches for the sampling rate, and
        the other fields.

        >>> sampler = RandomAllocationSampler.for_budget(60_000, 100, epsilon=3.0, delta=1e-5, steps=2000)
        >>> sampler.capacity, sampler.overflow_delta(steps=2000, epsilon=3.0) < 1.1e-8
        (795, True)
        """
        rate = cls(num_examples, batches, num_examples + 1, participations, **kept)._rate
        capacity = least_capacity(num_examples, rate, epsilon=epsilon, delta=delta, steps=steps, allowance=allowance)
        return cls(num_examples, batches, capacity, participations, **kept)

    @property
    def _rate(self) -> float:
        """Probability of an example to be in a given batch."""
        return self.participations / self.batches

    @property
    def steps_per_run(self) -> int:
        """Steps of an epoch: ``batches``."""
        return self.batches

    @property
    def expected_batch_size(self) -> float:
        """Divisor of the noisy sum: ``num_examples * participations / batches``."""
        return self.num_examples * self.participations / self.batches

    def overflow_delta(self, steps: int, epsilon: float) -> float:
        """Returns what cut batches, and the finite number of random bits, add to delta over ``steps`` steps.

        For cut batches see :mod:`.sampling.sampler`: in one step the size is Binomial(n, k/t). Each of the k draws, 64
        bits modulo t at most, is within t/2^64 of uniform in total variation. Only the draws of the one example at
        issue count; the others' places may follow any law, for the dominating pair holds given them.
        """
        cut = cut_cost(log_overflow_bound(self.num_examples, self._rate, self.capacity), steps, epsilon)
        uneven = math.log(self.batches * self.participations) - 64 * math.log(2)
        return min(cut + cut_cost(uneven, steps, epsilon), 1.0)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of an epoch of noisy sums.

        >>> RandomAllocationSampler(num_examples=10, batches=2, capacity=11).mechanism(2.0)
        RandomAllocation(noise_multiplier=2.0, batches=2, points=512, participations=1)
        """
        return RandomAllocation(noise_multiplier, self.batches, participations=self.participations)

    def participation(self, steps: int, bands: int) -> Participation:
        """Returns the participation that correlated noise is accounted by: k times an epoch, without amplification."""
        most = self.participations * -(-steps // self.batches)
        return MinSeparation(steps, steps if most == 1 else 1, min(most, steps))

    def places(self, key: jax.Array, epoch: ArrayLike) -> Int32[Array, "*k num_examples"]:
        """Returns the batch, from 0 to ``batches - 1``, that each example goes to in an epoch.

        The result has the shape (num_examples,), or (k, num_examples) for k > 1 participations: Floyd's draw of k out
        of t, in which the i-th is one of the first t - k + i places, or the last of these where it has been drawn
        before.
        """
        k, n = self.participations, self.num_examples
        key = jax.random.fold_in(key, epoch)
        if k == 1:
            return places(key, n, self.batches)
        words = jax.random.bits(key, (2 * k, n), jnp.uint32)

        # The state has each example's places so far, -1 where none is drawn; step i draws the i-th of k for all.
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


@takes_python_values
@dataclass(frozen=True)
class BallsInBinsSampler(RandomAllocationSampler):
    """A sampler that draws for each example one of the ``batches`` batches, and keeps it for several epochs.

    Keeping places costs more privacy than drawing them anew, and lets the noise of epochs cancel: correlated noise need
    not begin anew with each of them.

    Attributes:
        epochs: E, how many epochs keep their places. After them others are drawn.

    Formal guarantee: ``batches * E`` steps are one run of :meth:`mechanism`, except with the probability that
    :meth:`overflow_delta` pays for. A run that is left early costs a whole one.

    Raises ValueError where a field is out of range, ``participations`` among them, which is 1.

    >>> sampler = BallsInBinsSampler(num_examples=100, batches=4, capacity=101, epochs=2)
    >>> first, again, anew = (sampler.sample(jax.random.key(0), step)[0] for step in (0, 4, 8))
    >>> bool((first == again).all()), bool((first == anew).all())
    (True, False)
    """

    epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.check_whole(self.participations, "participations", 1, 1, "the batches of an example")
        validation.check_count(self.epochs, "epochs", "how many epochs keep their places")
        validation.check_count(self.batches * self.epochs, "batches * epochs", "the number of steps of a run")

    @property
    def steps_per_run(self) -> int:
        """Steps that keep their places."""
        return self.batches * self.epochs

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of a run of noisy sums, with noise that is independent."""
        return BallsInBins(identity(), noise_multiplier, self.batches, self.epochs)

    def participation(self, steps: int, bands: int) -> Participation:
        """Returns the participation that correlated noise would be accounted by without amplification, in a run."""
        return FixedEpochs(self.batches, self.epochs)

    def places(self, key: jax.Array, epoch: ArrayLike) -> Int32[Array, " num_examples"]:
        """Returns the batch, from 0 to ``batches - 1``, that each example goes to in an epoch."""
        return super().places(key, jnp.asarray(epoch, jnp.int32) // self.epochs)
