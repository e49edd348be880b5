"""Policies of a run: they choose its noise multiplier and its sampling rate step by step, and when it stops.

A policy is a small pure program: :meth:`~Policy.start` gives its state, a pytree; :meth:`~Policy.setting` the setting
of a step; every :attr:`~Policy.period` steps :meth:`~Policy.adapt` looks at the ledger and at a noisy answer to
:attr:`~Policy.query`, whose cost is the ledger's to grant like any other. All of it works under ``jit`` and ``scan``.

A policy with :attr:`~Policy.adaptive` false chooses nothing from results, and the run it makes may be accounted as if
fixed in advance. One that is adaptive is covered by a filter or an odometer only.

In reading order: the protocols :class:`Policy` and :class:`FinitePolicy`; :class:`Constant` and :class:`Schedule`,
fixed in advance; :class:`SpendRemaining`; :class:`AdaptiveNoise` and :class:`AdaptiveBatchSize` (Lécuyer 2021);
:class:`EarlyStopping`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax import numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float32, Int32, PyTree

from jaxacct import validation
from jaxacct.ledger import Ledger
from jaxacct.mechanisms import Gaussian, PoissonSubsampledGaussian
from jaxacct.numerics.precision import as_float64, kernel
from jaxacct.numerics.pytrees import register_dataclass, takes_python_values
from jaxacct.numerics.root_search import bisect_traced, geometric_mean

__all__ = [
    "AdaptiveBatchSize",
    "AdaptiveNoise",
    "Constant",
    "EarlyStopping",
    "FinitePolicy",
    "Policy",
    "Schedule",
    "Setting",
    "SpendRemaining",
]


class Setting(NamedTuple):
    """Setting of one step: ``noise_multiplier`` () and ``sampling_rate`` (), float32."""

    noise_multiplier: Float32[Array, ""]
    sampling_rate: Float32[Array, ""]


@runtime_checkable
class Policy(Protocol):
    """Interface of a policy, as the trainer asks for it.

    Attributes:
        adaptive: whether anything it chooses depends on results.
        period: steps between calls of :meth:`adapt`; 0 for never.
        every_step: whether the setting may change at every step, and not only after :meth:`adapt`.
        query: the mechanism of the answer that :meth:`adapt` gets, of sensitivity 1: the trainer counts the training
            examples that its ``correct`` calls right. None if it gets none.
        sampling_rates: the least and the largest sampling rate that it can choose, for static shapes.
    """

    @property
    def adaptive(self) -> bool: ...

    @property
    def period(self) -> int: ...

    @property
    def every_step(self) -> bool: ...

    @property
    def query(self) -> Gaussian | None: ...

    @property
    def sampling_rates(self) -> tuple[float, float]: ...

    def start(self, ledger: Ledger) -> PyTree:
        """Returns the state before the first step."""
        ...

    def setting(self, state: PyTree, step: ArrayLike) -> Setting:
        """Returns the setting of the step with this number, from 0."""
        ...

    def adapt(self, state: PyTree, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> PyTree:
        """Returns the state after ``step`` steps, with the ledger as it is after the query."""
        ...

    def stopped(self, state: PyTree) -> Bool[Array, ""]:
        """Returns whether training ends here."""
        ...


@runtime_checkable
class FinitePolicy(Policy, Protocol):
    """Policy that chooses among finitely many settings: a run may pay for it by a menu, nearly at a plan's price.

    Attributes:
        choices: settings such that each that it chooses has at least the noise and at most the rate of one of them;
            a dozen at most, as each makes the choice a little dearer. Empty where none are known.
    """

    @property
    def choices(self) -> tuple[tuple[float, float], ...]: ...


# ----------------------------------------------------------------------------------------------------
# Fixed policies: they choose nothing from results.
# ----------------------------------------------------------------------------------------------------


class _PlainPolicy:
    """Base of policies: unless they say otherwise they choose nothing, ask nothing and keep no state.

    They do not end training, at a sampling rate of their own.
    """

    sampling_rate: float

    adaptive = False
    every_step = False

    @property
    def query(self) -> Gaussian | None:
        return None

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.sampling_rate, self.sampling_rate

    def start(self, ledger: Ledger) -> PyTree:
        return ()

    def adapt(self, state: PyTree, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> PyTree:
        return state

    def stopped(self, state: PyTree) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


@takes_python_values
@dataclass(frozen=True)
class Constant(_PlainPolicy):
    """Constant policy: the same noise and rate at every step.

    >>> Constant(1.1, 0.01).setting((), 5)
    Setting(noise_multiplier=Array(1.1, dtype=float32), sampling_rate=Array(0.01, dtype=float32))
    """

    noise_multiplier: float
    sampling_rate: float

    period = 0

    def __post_init__(self) -> None:
        validation.check_numbers(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate)

    @property
    def choices(self) -> tuple[tuple[float, float], ...]:
        """Only setting that it has."""
        return ((self.noise_multiplier, self.sampling_rate),)

    def setting(self, state: PyTree, step: ArrayLike) -> Setting:
        return Setting(jnp.float32(self.noise_multiplier), jnp.float32(self.sampling_rate))


@takes_python_values
@dataclass(frozen=True)
class Schedule(_PlainPolicy):
    """Noise that is a function of the step, fixed in advance: an Optax schedule, or any traceable one.

    Attributes:
        noise_multiplier: ``noise_multiplier(step)``; its value is used in float32.
        sampling_rate: of every step.

    >>> float(Schedule(lambda step: 2.0 - 0.01 * step, 0.01).setting((), 50).noise_multiplier)
    1.5
    """

    noise_multiplier: Callable[[Array], ArrayLike]
    sampling_rate: float

    period = 0
    every_step = True

    def __post_init__(self) -> None:
        if not callable(self.noise_multiplier):
            shown = validation.shorten(self.noise_multiplier)
            raise TypeError(f"noise_multiplier = {shown}: give a function of the step; Constant has a number.")
        validation.check_number(self.sampling_rate, "sampling_rate")
        validation.check_sampling_rate(self.sampling_rate)

    def setting(self, state: PyTree, step: ArrayLike) -> Setting:
        noise = jnp.asarray(self.noise_multiplier(jnp.asarray(step)), jnp.float32)
        return Setting(noise, jnp.float32(self.sampling_rate))


# ----------------------------------------------------------------------------------------------------
# The remaining budget: a policy that spends it over the steps that are left.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
@dataclass(frozen=True)
class SpendRemaining(_PlainPolicy):
    """Policy that spends what is left of the budget evenly over the steps left: it asks for the least noise that does.

    Attributes:
        sampling_rate: of every step.
        steps: of the whole run.
        period: steps between calibrations; 1 for every step, more to save their time.
        least, most: bounds of the noise multiplier that is searched; wider for budgets far from 1.

    The noise of a period is the least, within 1e-4 of itself, with which the ledger grants all steps that are left. The
    ledger has to be a filter: an odometer has nothing that could remain, and it raises ValueError. The policy looks at
    what has been spent only. It cannot know whether that depends on results, and so it counts as adaptive.

    >>> from jaxacct.filters import RenyiFilter
    >>> policy = SpendRemaining(sampling_rate=0.01, steps=1000, period=100)
    >>> budget = RenyiFilter(epsilon=2.0, delta=1e-5)
    >>> noise = policy.setting(policy.start(budget), 0).noise_multiplier
    >>> steps = budget.remaining(PoissonSubsampledGaussian(noise, 0.01))
    >>> bool(1000 <= steps <= 1001)
    True
    """

    sampling_rate: float
    steps: int
    period: int = 1
    least: float = 0.3
    most: float = 1000.0

    adaptive = True

    def __post_init__(self) -> None:
        validation.check_scalar(self.sampling_rate, "sampling_rate")
        validation.check_sampling_rate(self.sampling_rate)
        validation.check_count(self.steps, "steps", "the steps of the whole run")
        validation.check_count(self.period, "period", "the steps between calibrations")
        for value, name in ((self.least, "least"), (self.most, "most")):
            validation.check_scalar(value, name)
        if not 0 < self.least < self.most:
            raise ValueError(f"least = {self.least} and most = {self.most} are no range of noise multipliers.")

    def start(self, ledger: Ledger) -> Float32[Array, ""]:
        if not ledger.has_budget:
            raise ValueError(
                f"ledger is a {type(ledger).__name__}, an odometer: it has no budget of which something could remain. "
                "Give SpendRemaining a filter."
            )
        return self.adapt(None, ledger, 0, 0.0)

    def setting(self, state: Float32[Array, ""], step: ArrayLike) -> Setting:
        return Setting(state, jnp.float32(self.sampling_rate))

    def adapt(self, state: PyTree, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> Float32[Array, ""]:
        left = jnp.maximum(self.steps - jnp.asarray(step), 0)

        def would_grant(noise: Array) -> Array:
            return ledger.would_grant(PoissonSubsampledGaussian(noise, self.sampling_rate), left)

        # A factor of 3e3 halved 17 times in its logarithm is 1 + 6e-5. What is found was granted, or is ``most``.
        most, least = jnp.float32(self.most), jnp.float32(self.least)
        high = bisect_traced(would_grant, most, least, steps=17, middle=geometric_mean)
        return high if state is None else jnp.where(left > 0, high, state)


# ----------------------------------------------------------------------------------------------------
# Adaptive policies of Lécuyer: more privacy while accuracy rises, less when it stalls.
# ----------------------------------------------------------------------------------------------------


def is_rise(answer: ArrayLike, query_noise: ArrayLike, best: ArrayLike) -> Bool[Array, ""]:
    """Returns whether a noisy count is higher than the best one so far by more than noise explains."""
    # Three standard deviations: Lécuyer (2021), section 5.1. Any value is sound.
    return jnp.asarray(answer, jnp.float32) - 3.0 * query_noise > best


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
class _Levelled(_PlainPolicy):
    """Base of Lécuyer's policies: one level more private on a significant rise of a noisy count, one less without.

    A rise is an answer more than three standard deviations of its noise above the one at the last rise. The level moves
    up only if the ledger would still grant ``lookahead`` expected passes over the data at the present setting.
    """

    increment: float
    period: int
    query_noise: float = 100.0
    lookahead: float = 0.0
    may_rise: bool = True

    adaptive = True

    def _check(self, least: float, initial: float, most: float) -> None:
        """Raises where a field is out of range that both policies have."""
        sizes = {"increment": self.increment, "query_noise": self.query_noise, "least": least, "initial": initial}
        for name, value in sizes.items():
            validation.check_scalar(value, name)
            validation.check_positive(value, name)
        validation.check_count(self.period, "period", "the steps between adaptations")
        if not least <= initial <= most:
            raise ValueError(f"initial = {initial} is not between least = {least} and most = {most}.")

    @property
    def query(self) -> Gaussian:
        """Number of correctly classified training examples, with Gaussian noise; its sensitivity is 1."""
        return Gaussian(self.query_noise)

    def start(self, ledger: Ledger) -> Levels:
        return Levels(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def _range(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def choices(self) -> tuple[tuple[float, float], ...]:
        """Settings of all levels; if these are many, some that cost no less than the others."""
        least, most = self._range()
        # Twelve levels at most: one by one from the least, which is the costliest, then each 1.3 times farther from it.
        # A setting between two is paid for as the costlier, and all beyond the last as the last: any values are sound.
        distances = np.maximum(np.arange(12), 1.3 ** np.arange(12) - 1).astype(int)
        levels = [least + int(step) for step in np.unique(distances) if step <= most - least]
        settings = [self.setting(Levels(jnp.int32(level), jnp.zeros(())), 0) for level in levels]
        return tuple((float(noise), float(rate)) for noise, rate in settings)

    def setting(self, state: Levels, step: ArrayLike) -> Setting:
        raise NotImplementedError

    def adapt(self, state: Levels, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> Levels:
        rise = is_rise(answer, self.query_noise, state.best)
        move = jnp.where(rise, 1 if self.may_rise else 0, -1)
        if self.may_rise and self.lookahead:
            now = self.setting(state, step)
            steps = jnp.ceil(self.lookahead / now.sampling_rate)
            lasts = ledger.would_grant(PoissonSubsampledGaussian(*now), steps)
            move = jnp.where(rise & ~lasts, 0, move)
        level = jnp.clip(state.level + move, *self._range()).astype(jnp.int32)
        return Levels(level, jnp.where(rise, jnp.asarray(answer, jnp.float32), state.best))


@takes_python_values
@dataclass(frozen=True, kw_only=True)
class AdaptiveNoise(_Levelled):
    """Lécuyer's adaptive noise: more of it while accuracy rises, less when it stalls.

    Each period it moves up a level if the noisy count is more than three ``query_noise`` above the count at the last
    rise, and down a level otherwise.

    Attributes:
        sampling_rate: of every step.
        initial: noise multiplier of the first period.
        increment: what a level adds.
        least, most: bounds of the noise multiplier.
        period: steps between adaptations.
        query_noise: standard deviation of the noise on the count of correctly classified training examples, which each
            adaptation asks for and pays: some per cent of the number of examples. More where it costs a visible part of
            the budget (``trainer.menu`` has its price beside a step's).
        lookahead: expected passes over the data that the ledger must still grant for the noise to rise; 0 for no such
            condition. An odometer grants whatever is valid, so with one the condition always holds.
        may_rise: whether the level may rise at all. False for fine-tuning, as in the paper, which starts high and only
            goes down.

    Source: Lécuyer (2021), section 5.1 (``may_rise``, every 10 epochs, 50 epochs of lookahead) and 5.2 (without, every
    epoch).

    >>> policy = AdaptiveNoise(sampling_rate=0.01, initial=2.0, increment=0.1, least=1.0, period=97, may_rise=False)
    >>> state = policy.adapt(policy.start(None), None, 97, 50.0)  # no significant rise above 0
    >>> round(float(policy.setting(state, 98).noise_multiplier), 4)
    1.9
    """

    sampling_rate: float
    initial: float = 1.0
    least: float = 1.0
    most: float = float("inf")

    def __post_init__(self) -> None:
        validation.check_scalar(self.sampling_rate, "sampling_rate")
        validation.check_sampling_rate(self.sampling_rate)
        self._check(self.least, self.initial, self.most)

    def _range(self) -> tuple[int, int]:
        return _levels(self.initial, self.least, self.most, self.increment)

    def setting(self, state: Levels, step: ArrayLike) -> Setting:
        return Setting(self._noise(state.level), jnp.float32(self.sampling_rate))

    @kernel
    def _noise(self, level: Int32[Array, ""]) -> Float32[Array, ""]:
        # In float64, so that the float32 result is the same where a step is charged and where it is made: one of the
        # two programs may contract the product and the sum into one rounding, which float32 would show.
        return jnp.clip(self.initial + self.increment * as_float64(level), self.least, self.most).astype(jnp.float32)


@takes_python_values
@dataclass(frozen=True, kw_only=True)
class AdaptiveBatchSize(_Levelled):
    """Lécuyer's adaptive batch size: smaller batches while accuracy rises, larger ones when it stalls.

    Attributes:
        noise_multiplier: of every step.
        num_examples: size of the data set.
        initial: expected batch size of the first period.
        increment: examples that a level takes off.
        least, most: bounds of the expected batch size.
        period, query_noise, lookahead, may_rise: as for :class:`AdaptiveNoise`.

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
        validation.check_scalar(self.noise_multiplier, "noise_multiplier")
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_count(self.num_examples, "num_examples", "the size of the data set")
        self._check(self.least, self.initial, self.most)
        if self.most > self.num_examples:
            raise ValueError(f"most = {self.most} exceeds num_examples = {self.num_examples}: give a smaller batch.")

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.least / self.num_examples, self.most / self.num_examples

    def _range(self) -> tuple[int, int]:
        low, high = _levels(self.initial, self.least, self.most, self.increment)
        return -high, -low

    def setting(self, state: Levels, step: ArrayLike) -> Setting:
        return Setting(jnp.float32(self.noise_multiplier), self._rate(state.level))

    @kernel
    def _rate(self, level: Int32[Array, ""]) -> Float32[Array, ""]:
        # In float64 for the same reason as the noise of :class:`AdaptiveNoise`.
        size = jnp.clip(self.initial - self.increment * as_float64(level), self.least, self.most)
        return (size / self.num_examples).astype(jnp.float32)


def _levels(initial: float, least: float, most: float, increment: float) -> tuple[int, int]:
    """Returns the lowest and the highest level; the last one may be cut short by the bound."""
    falls, rises = (min((end - initial) / increment * sign, 2.0**30) for end, sign in ((least, -1), (most, 1)))
    # A quotient that should be whole may come out a rounding above.
    return -math.ceil(falls - 1e-9), math.ceil(rises - 1e-9)


# ----------------------------------------------------------------------------------------------------
# Early stopping: a policy that ends training when a noisy count says so.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Watched:
    """State of :class:`EarlyStopping`: that of the policy inside, the best answer, and answers since it was found."""

    inner: PyTree
    best: Float32[Array, ""]
    since: Int32[Array, ""]
    enough: Bool[Array, ""]


@takes_python_values
@dataclass(frozen=True)
class EarlyStopping:
    """Policy that ends training when a noisy count is good enough, or has stopped rising; to be used with an odometer.

    Attributes:
        policy: the policy that chooses noise and rate.
        period: steps between answers; the policy's own, if it has one.
        query_noise: standard deviation of the noise on the count; a policy that asks for answers has its own instead.
        target: the answer at which to stop, where one is known to be good enough; None for none.
        patience: answers without a significant rise after which to stop; None for no limit.

    A filter's budget, or a menu's, is spent whether training stops early or not; an odometer's reading at that moment
    holds.

    Source: Lécuyer (2021), section 5.2.

    >>> from jaxacct.policies import Constant
    >>> policy = EarlyStopping(Constant(1.0, 0.01), period=98, target=40_000.0)
    >>> state = policy.adapt(policy.start(None), None, 98, 40_100.0)
    >>> bool(policy.stopped(state))
    True
    """

    policy: Policy
    period: int
    query_noise: float = 100.0
    target: float | None = None
    patience: int | None = None

    adaptive = True

    @property
    def every_step(self) -> bool:
        return self.policy.every_step

    def __post_init__(self) -> None:
        validation.check_count(self.period, "period", "the steps between answers")
        validation.check_scalar(self.query_noise, "query_noise")
        validation.check_positive(self.query_noise, "query_noise")
        if self.target is not None:
            validation.check_scalar(self.target, "target")
        if self.patience is not None:
            validation.check_count(self.patience, "patience", "the answers without a rise that end a run")
        if not isinstance(self.policy, Policy):
            raise TypeError(f"policy = {validation.shorten(self.policy)} is none: give one of jaxacct.policies.")
        if self.policy.period not in (0, self.period):
            raise ValueError(
                f"period = {self.period} is not that of the policy inside, {self.policy.period}: give the same one."
            )
        if self.target is None and self.patience is None:
            raise ValueError("target and patience are both None: training would never stop early; give one of them.")

    @property
    def query(self) -> Gaussian:
        return self.policy.query or Gaussian(self.query_noise)

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.policy.sampling_rates

    @property
    def choices(self) -> tuple[tuple[float, float], ...]:
        """Settings of the policy inside."""
        return self.policy.choices if isinstance(self.policy, FinitePolicy) else ()

    def start(self, ledger: Ledger) -> Watched:
        nothing = jnp.zeros((), jnp.int32)
        return Watched(self.policy.start(ledger), jnp.zeros((), jnp.float32), nothing, jnp.zeros((), bool))

    def setting(self, state: Watched, step: ArrayLike) -> Setting:
        return self.policy.setting(state.inner, step)

    def adapt(self, state: Watched, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> Watched:
        answer = jnp.asarray(answer, jnp.float32)
        rise = is_rise(answer, self.query.noise_multiplier, state.best)
        since = jnp.where(rise, 0, state.since + 1).astype(jnp.int32)
        enough = jnp.zeros((), bool)
        if self.target is not None:
            enough |= answer >= self.target
        if self.patience is not None:
            enough |= since >= self.patience
        inner = self.policy.adapt(state.inner, ledger, step, answer)
        return Watched(inner, jnp.where(rise, answer, state.best), since, state.enough | enough)

    def stopped(self, state: Watched) -> Bool[Array, ""]:
        return state.enough
