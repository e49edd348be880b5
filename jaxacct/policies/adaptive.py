"""Lécuyer's adaptive policies: more privacy while accuracy rises, less when it stalls."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float32, Int32

from jaxacct import validation
from jaxacct.ledger import Ledger
from jaxacct.mechanisms import Gaussian, PoissonSubsampledGaussian
from jaxacct.policies.policy import Setting
from jaxacct.precision import as_float64, in_float64
from jaxacct.pytrees import register_dataclass

SIGNIFICANT = 3.0
"""Standard deviations of the count's noise that make a rise: Lécuyer (2021), section 5.1."""

MOST_CHOICES, FARTHER = 12, 1.3
"""Settings that a menu has, at most, and by how much farther each of the last ones is from the least than the one
before: what lies between two is paid for as the costlier, and what lies beyond all as the last."""


@register_dataclass
@dataclass(frozen=True)
class Levels:
    """State of a policy that moves by whole levels.

    Attributes:
        level (): levels above the start (more private is up); exact, as sums of 0.1 would not be.
        best (): the answer at the last rise, 0 before.
    """

    level: Int32[Array, ""]
    best: Float32[Array, ""]


@dataclass(frozen=True, kw_only=True)
class _Levelled:
    """Lécuyer's policy: one level more private on a significant rise of a noisy count, one less without.

    A rise is an answer more than three standard deviations of its noise above the one at the last rise. It moves up
    only if the ledger would still grant ``lookahead`` expected passes over the data at the present setting.
    """

    increment: float
    period: int
    query_noise: float = 100.0
    lookahead: float = 0.0
    up: bool = True

    adaptive = True
    every_step = False

    @property
    def query(self) -> Gaussian:
        """The number of correctly classified training examples, with Gaussian noise; its sensitivity is 1."""
        return Gaussian(self.query_noise)

    def start(self, ledger: Ledger) -> Levels:
        return Levels(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def _range(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def choices(self) -> tuple[tuple[float, float], ...]:
        """The settings of all levels; of many, some that the others cost no more than."""
        least, most = self._range()
        # One by one from the least, then farther and farther apart.
        apart = np.maximum(np.arange(MOST_CHOICES), FARTHER ** np.arange(MOST_CHOICES) - 1).astype(int)
        levels = [least + int(step) for step in np.unique(apart) if step <= most - least]
        settings = [self.setting(Levels(jnp.int32(level), jnp.zeros(())), 0) for level in levels]
        return tuple((float(noise), float(rate)) for noise, rate in settings)

    def setting(self, state: Levels, step: ArrayLike) -> Setting:
        raise NotImplementedError

    def adapt(self, state: Levels, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> Levels:
        answer = jnp.asarray(answer, jnp.float32)
        rise = answer - SIGNIFICANT * self.query_noise > state.best
        move = jnp.where(rise, 1 if self.up else 0, -1)
        if self.up and self.lookahead:
            now = self.setting(state, step)
            steps = jnp.ceil(self.lookahead / now.sampling_rate)
            lasts = ledger.would_grant(PoissonSubsampledGaussian(*now), steps)
            move = jnp.where(rise & ~lasts, 0, move)
        level = jnp.clip(state.level + move, *self._range()).astype(jnp.int32)
        return Levels(level, jnp.where(rise, answer, state.best))

    def stopped(self, state: Levels) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


@dataclass(frozen=True, kw_only=True)
class AdaptiveNoise(_Levelled):
    """Lécuyer's adaptive noise: more of it while accuracy rises, less when it stalls.

    Attributes:
        sampling_rate: of every step.
        initial: noise multiplier of the first period.
        increment: what a level adds.
        least, most: bounds of the noise multiplier.
        period: steps between adaptations.
        query_noise: standard deviation of the noise on the count of correctly classified training examples, which each
            adaptation asks for and pays; more where it costs a visible part of the budget.
        lookahead: expected passes over the data that the ledger must still grant for the noise to rise; 0 for no such
            condition. An odometer grants whatever is valid: with one the condition holds always.
        up: whether it may rise at all. False for fine-tuning, as in the paper, which starts high and only goes down.

    Source: Lécuyer (2021), section 5.1 (``up``, every 10 epochs, 50 epochs of lookahead) and 5.2 (not ``up``, every
    epoch).

    >>> policy = AdaptiveNoise(sampling_rate=0.01, initial=2.0, increment=0.1, least=1.0, period=97, up=False)
    >>> state = policy.adapt(policy.start(None), None, 97, 50.0)  # no significant rise above 0
    >>> round(float(policy.setting(state, 98).noise_multiplier), 4)
    1.9
    """

    sampling_rate: float
    initial: float = 1.0
    least: float = 1.0
    most: float = float("inf")

    def __post_init__(self) -> None:
        validation.check_sampling_rate(self.sampling_rate)
        for name in ("increment", "initial", "least", "query_noise"):
            validation.check_positive(getattr(self, name), name)
        validation.check_count(self.period, "period", "the steps between adaptations")
        if not self.least <= self.initial <= self.most:
            raise ValueError(f"initial = {self.initial} is not between least = {self.least} and most = {self.most}.")

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.sampling_rate, self.sampling_rate

    def _range(self) -> tuple[int, int]:
        return _levels(self.initial, self.least, self.most, self.increment)

    def setting(self, state: Levels, step: ArrayLike) -> Setting:
        return Setting(self._noise(state.level), jnp.float32(self.sampling_rate))

    @in_float64
    def _noise(self, level: Int32[Array, ""]) -> Float32[Array, ""]:
        # In float64, so that the float32 is the same where a step is charged and where it is made: one of the two
        # programs may contract the product and the sum into one rounding, which float32 would show.
        return jnp.clip(self.initial + self.increment * as_float64(level), self.least, self.most).astype(jnp.float32)


@dataclass(frozen=True, kw_only=True)
class AdaptiveBatchSize(_Levelled):
    """Lécuyer's adaptive batch size: smaller batches while accuracy rises, larger ones when it stalls.

    Attributes:
        noise_multiplier: of every step.
        num_examples: size of the data set.
        initial: expected batch size of the first period.
        increment: examples that a level takes off.
        least, most: bounds of the expected batch size.
        period, query_noise, lookahead, up: as for :class:`AdaptiveNoise`.

    Source: Lécuyer (2021), section 5.1: 512, by 128, from 256 to 512.

    >>> policy = AdaptiveBatchSize(noise_multiplier=1.0, num_examples=50_000, increment=128, period=970)
    >>> state = policy.adapt(policy.start(None), None, 970, 20_000.0)
    >>> round(float(policy.setting(state, 970).sampling_rate) * 50_000, 3)
    384.0
    """

    noise_multiplier: float
    num_examples: int
    initial: float = 512.0
    least: float = 256.0
    most: float = 512.0

    def __post_init__(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_count(self.num_examples, "num_examples", "the size of the data set")
        for name in ("increment", "initial", "least", "query_noise"):
            validation.check_positive(getattr(self, name), name)
        validation.check_count(self.period, "period", "the steps between adaptations")
        if not self.least <= self.initial <= self.most <= self.num_examples:
            raise ValueError(
                f"initial = {self.initial} is not between least = {self.least} and most = {self.most}, or those exceed "
                f"num_examples = {self.num_examples}."
            )

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.least / self.num_examples, self.most / self.num_examples

    def _range(self) -> tuple[int, int]:
        low, high = _levels(self.initial, self.least, self.most, self.increment)
        return -high, -low

    def setting(self, state: Levels, step: ArrayLike) -> Setting:
        return Setting(jnp.float32(self.noise_multiplier), self._rate(state.level))

    @in_float64
    def _rate(self, level: Int32[Array, ""]) -> Float32[Array, ""]:
        # In float64 as above.
        size = jnp.clip(self.initial - self.increment * as_float64(level), self.least, self.most)
        return (size / self.num_examples).astype(jnp.float32)


def _levels(initial: float, least: float, most: float, increment: float) -> tuple[int, int]:
    """Returns the lowest and the highest level; the last one may be cut short by the bound."""
    down, up = (min((end - initial) / increment * sign, 2.0**30) for end, sign in ((least, -1), (most, 1)))
    # A quotient that should be whole may come out a rounding above.
    return -math.ceil(down - 1e-9), math.ceil(up - 1e-9)
