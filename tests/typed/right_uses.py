"""Programs as users write them, under the strictest settings of their type checkers; tests/project/test_typed.py runs
them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

import jaxacct as ja
from jaxacct import convert, filters, rdp
from jaxacct.mechanisms.pair import DominatingPair


def answers(noise: float, steps: int, relation: ja.Relation = "add_or_remove") -> tuple[float, str]:
    """Two numbers and a line for a report."""
    mechanism = ja.PoissonSubsampledGaussian(noise_multiplier=noise, sampling_rate=0.01)
    bounds = ja.epsilon(mechanism, steps=steps, delta=1e-5, relation=relation)
    lost: ja.Bounds = ja.delta(mechanism, steps, float(bounds), relation=relation)
    return float(bounds), f"epsilon = {bounds:.3f} at delta = {lost:.1e}, {bounds}"


def composed(noises: Sequence[float]) -> ja.Bounds:
    """Mechanisms of several kinds together."""
    several: list[ja.Mechanism] = [ja.Gaussian(noise) for noise in noises]
    several.append(ja.Laplace(scale=4.0))
    return ja.epsilon(several, [1] * len(several), 1e-5)


def of_one_kind() -> tuple[ja.Bounds, ja.Bounds]:
    """A list that a checker takes for one of Gaussians, a tuple, and a sequence along an axis."""
    gaussians = [ja.Gaussian(2.0), ja.Gaussian(4.0)]
    first = ja.epsilon(gaussians, (1, 2), delta=1e-5)
    return first, ja.epsilon(ja.Gaussian(np.array([2.0, 4.0])), np.array([1, 2]), 1e-5)


@jax.jit
def traced(noise: Array) -> Array:
    """Inside a trace."""
    upper = ja.epsilon(ja.Gaussian(noise), 10, 1e-5).upper
    return jnp.asarray(upper)


def renyi(orders: Sequence[float]) -> Float[Array, ""]:
    """Curves, and what they imply."""
    curve = rdp.curve(ja.Gaussian(2.0), orders)
    by_hand = convert.rdp_to_epsilon(10 * curve, orders, 1e-5)
    listed = convert.rdp_to_epsilon([0.25, 0.5], [2.0, 4.0], 1e-5, method="closed")
    return jnp.minimum(by_hand, listed)


def granted(budget: filters.ZCDPFilter, mechanism: ja.Mechanism) -> filters.ZCDPFilter:
    """Spends while it may."""
    may, after = budget.spend(mechanism, steps=2)
    return after if bool(may) else budget


@ja.register_dataclass
@dataclasses.dataclass(frozen=True)
class NoisyCount(ja.Mechanism):
    """A mechanism of the user's own."""

    deviation: ArrayLike
    most: float

    relations = ("add_or_remove", "remove", "add")

    def validate(self) -> None:
        """Leaves the check to another one."""
        ja.Gaussian(self.deviation)

    def dominating_pairs(self, relation: ja.Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """The pair of the Gaussian mechanism of the same ratio."""
        return ja.Gaussian(jnp.asarray(self.deviation) / self.most).dominating_pairs(relation)
