"""The policy that spends what is left of a budget over the steps that are left."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float32, PyTree

from jaxacct import validation
from jaxacct.ledger import Ledger
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.odometers import RenyiOdometer, VilleOdometer
from jaxacct.policies.policy import Setting


@dataclass(frozen=True)
class SpendRemaining:
    """Spends what is left of the budget evenly over the steps that are left: it asks for the least noise that does.

    Attributes:
        sampling_rate: of every step.
        steps: of the whole run.
        period: steps between calibrations; 1 for every step, more to save their time.
        least, most: bounds of the noise multiplier that is searched; wider for budgets far from 1.

    The noise of a period is the least, within 1e-4 of itself, of which the ledger grants all steps that are left. The
    ledger has to be a filter: of an odometer nothing remains, and it raises ValueError. It looks at what has been spent
    only; whether that depends on results it cannot know, and so it counts as adaptive.

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
    every_step = False
    query = None

    def __post_init__(self) -> None:
        validation.check_sampling_rate(self.sampling_rate)
        validation.check_count(self.steps, "steps", "the steps of the whole run")
        validation.check_count(self.period, "period", "the steps between calibrations")
        if not 0 < self.least < self.most:
            raise ValueError(f"least = {self.least} and most = {self.most} are no range of noise multipliers.")

    @property
    def sampling_rates(self) -> tuple[float, float]:
        return self.sampling_rate, self.sampling_rate

    def start(self, ledger: Ledger) -> Float32[Array, ""]:
        if isinstance(ledger, (RenyiOdometer, VilleOdometer)):
            raise ValueError(
                f"ledger is a {type(ledger).__name__}, an odometer: it has no budget of which something could remain. "
                "Give SpendRemaining a filter."
            )
        return self.adapt(None, ledger, 0, 0.0)

    def setting(self, state: Float32[Array, ""], step: ArrayLike) -> Setting:
        return Setting(state, jnp.float32(self.sampling_rate))

    def adapt(self, state: PyTree, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> Float32[Array, ""]:
        left = jnp.maximum(self.steps - jnp.asarray(step), 0)

        def granted(noise: Array) -> Array:
            return ledger.would_grant(PoissonSubsampledGaussian(noise, self.sampling_rate), left)

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = jnp.sqrt(low * high)
            enough = granted(middle)
            return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

        # A factor of 3e3 halved 17 times is 1 + 6e-5; ``high`` has always been granted, or is ``most``.
        _, high = jax.lax.fori_loop(0, 17, halve, (jnp.float32(self.least), jnp.float32(self.most)))
        return high if state is None else jnp.where(left > 0, high, state)

    def stopped(self, state: PyTree) -> Bool[Array, ""]:
        return jnp.zeros((), bool)
