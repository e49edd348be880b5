"""Policies that choose nothing from results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, PyTree

from jaxacct import validation
from jaxacct.ledger import Ledger
from jaxacct.policies.policy import Setting


@dataclass(frozen=True)
class _Fixed:
    """What they share."""

    adaptive = False
    every_step = False
    period = 0
    query = None

    def start(self, ledger: Ledger) -> tuple[()]:
        return ()

    def adapt(self, state: PyTree, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> PyTree:
        return state

    def stopped(self, state: PyTree) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


@dataclass(frozen=True)
class Constant(_Fixed):
    """The same noise and rate at every step.

    >>> Constant(1.1, 0.01).setting((), 5)
    Setting(noise_multiplier=Array(1.1, dtype=float32), sampling_rate=Array(0.01, dtype=float32))
    """

    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate)

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.sampling_rate, self.sampling_rate

    @property
    def choices(self) -> tuple[tuple[float, float], ...]:
        """The one."""
        return ((self.noise_multiplier, self.sampling_rate),)

    def setting(self, state: PyTree, step: ArrayLike) -> Setting:
        return Setting(jnp.float32(self.noise_multiplier), jnp.float32(self.sampling_rate))


@dataclass(frozen=True)
class Schedule(_Fixed):
    """Noise as a function of the step, fixed in advance: an Optax schedule, or any traceable one.

    Attributes:
        noise_multiplier: ``noise_multiplier(step)``; what it returns is used in float32.
        sampling_rate: of every step.

    >>> float(Schedule(lambda step: 2.0 - 0.01 * step, 0.01).setting((), 50).noise_multiplier)
    1.5
    """

    noise_multiplier: Callable[[Array], ArrayLike]
    sampling_rate: float

    every_step = True

    def __post_init__(self) -> None:
        validation.check_sampling_rate(self.sampling_rate)

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.sampling_rate, self.sampling_rate

    def setting(self, state: PyTree, step: ArrayLike) -> Setting:
        noise = jnp.asarray(self.noise_multiplier(jnp.asarray(step)), jnp.float32)
        return Setting(noise, jnp.float32(self.sampling_rate))
