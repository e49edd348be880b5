"""The policy that ends training when a noisy count says so."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float32, Int32, PyTree

from jaxacct import validation
from jaxacct.ledger import Ledger
from jaxacct.mechanisms import Gaussian
from jaxacct.policies.adaptive import SIGNIFICANT
from jaxacct.policies.policy import FinitePolicy, Policy, Setting
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Watched:
    """State of :class:`EarlyStopping`: that of the policy inside, the best answer, and answers since it was found."""

    inner: PyTree
    best: Float32[Array, ""]
    since: Int32[Array, ""]
    enough: Bool[Array, ""]


@dataclass(frozen=True)
class EarlyStopping:
    """Ends training when a noisy count is good enough, or has not risen for some time; to be used with an odometer.

    Attributes:
        policy: what chooses noise and rate.
        period: steps between answers; the policy's own, if it has one.
        query_noise: standard deviation of the noise on the count; if the policy asks for answers it is its own.
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
        validation.check_positive(self.query_noise, "query_noise")
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
        """Those of the policy inside."""
        return self.policy.choices if isinstance(self.policy, FinitePolicy) else ()

    def start(self, ledger: Ledger) -> Watched:
        nothing = jnp.zeros((), jnp.int32)
        return Watched(self.policy.start(ledger), jnp.zeros((), jnp.float32), nothing, jnp.zeros((), bool))

    def setting(self, state: Watched, step: ArrayLike) -> Setting:
        return self.policy.setting(state.inner, step)

    def adapt(self, state: Watched, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> Watched:
        answer = jnp.asarray(answer, jnp.float32)
        rise = answer - SIGNIFICANT * self.query.noise_multiplier > state.best
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
