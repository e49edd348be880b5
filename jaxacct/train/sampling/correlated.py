"""Batches of a sampler under correlated noise: what is drawn, what noise it gets, and what both together are."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct.mechanisms import MatrixMechanism, Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.strategies import Strategy
from jaxacct.strategies.participation import Participation
from jaxacct.train.sampling.packing import Batch
from jaxacct.train.sampling.sampler import Sampler, Separating


@dataclass(frozen=True, eq=False, repr=False)
class Correlated:
    """A sampler's batches with a strategy's noise: a :class:`.Sampler` whose mechanism is the matrix mechanism.

    Attributes:
        batches: draws them; it says how examples come to steps, and so what is accounted is what is drawn.
        strategy: correlates the noise.
        steps: most steps of the whole run.

    Formal guarantee: ``steps`` steps of these batches, each with its row of C^-1 z, are :meth:`mechanism` as often as
    they begin runs of ``steps_per_run`` steps: cycles, under cyclic Poisson sampling, else the whole training, once
    (:class:`.MatrixMechanism`). It takes noise that is not drawn again: a step that is made again from other keys is
    another run.

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
    _at_one: MatrixMechanism = field(init=False)

    def __post_init__(self) -> None:
        participation = separating(self.batches).participation(self.steps, self.strategy.bands(self.steps))
        object.__setattr__(self, "participation", participation)
        object.__setattr__(self, "_at_one", MatrixMechanism(self.strategy, 1.0, participation))

    @property
    def is_sampled(self) -> bool:
        """Whether it is amplified, and accounted by cycles."""
        return self._at_one.is_sampled

    @property
    def noise(self) -> str:
        """In words."""
        of = "each turn" if self.is_sampled else self.participation
        found = float(np.asarray(self._at_one.sensitivity))
        return f"correlated over steps by {type(self.strategy).__name__}, of sensitivity {found:.9g} for {of}"

    def __repr__(self) -> str:
        return f"Correlated({self.batches}, {self.noise})"

    @property
    def num_examples(self) -> int:
        """Of the sampler, as what follows."""
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
        """Returns what ``steps_per_run`` steps are: noise over the clipping norm, at the strategy's sensitivity."""
        return self._at_one.with_noise(noise_multiplier).apart(1)[0][0]

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


def drawn_by(sampler: Sampler) -> Sampler:
    """Returns what draws the batches, whatever noise they get."""
    return sampler.batches if isinstance(sampler, Correlated) else sampler
