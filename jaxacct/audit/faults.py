"""Trainers that break one promise each, to show that an audit notices. Not for training.

Each goes in where a user's own rule or sampler would: the trainer itself is untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, PyTree

from jaxacct import validation
from jaxacct.pytrees import register_dataclass
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.sampling import PoissonSampler
from jaxacct.train.sampling.packing import Batch

FAULTS = ("noise", "clipping", "shuffling")
"""What :func:`~jaxacct.audit.run` can break: half the noise, no clipping, a fixed order taken for Poisson samples."""


@register_dataclass
@dataclass(frozen=True)
class HalfNoise(Flat):
    """Adds half of the noise that is accounted."""

    def gradient_noise_multiplier(self, noise_multiplier: float) -> float:
        return super().gradient_noise_multiplier(noise_multiplier) / 2


@register_dataclass
@dataclass(frozen=True)
class NoClipping(Flat):
    """Leaves gradients as they are, and adds noise for clipped ones."""

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        ones, within = super().factors(squares)
        return jax.tree.map(jnp.ones_like, ones), within


@dataclass(frozen=True)
class FixedOrderSampler(PoissonSampler):
    """Shuffles the data once and goes through them in that order, epoch after epoch, accounted as Poisson samples.

    Every example is in exactly one batch of each epoch, the same one every time.
    """

    def sample(self, key: jax.Array, step: ArrayLike | None = None) -> Batch:
        batches = max(1, round(1 / self.sampling_rate))
        size = -(-self.num_examples // batches)
        order = jax.random.permutation(key, self.num_examples)
        places = jnp.asarray(0 if step is None else step, jnp.int32) % batches * size + jnp.arange(self.capacity)
        real = (jnp.arange(self.capacity) < size) & (places < self.num_examples)
        return jnp.where(real, order[jnp.minimum(places, self.num_examples - 1)], 0).astype(jnp.int32), real


def rule(clip_norm: float, fault: str | None) -> ClippingRule:
    """Returns flat clipping, or what takes its place in a trainer that breaks ``fault``."""
    if fault is not None:
        validation.check_one_of(fault, "fault", FAULTS)
    kinds: dict[Any, Any] = {"noise": HalfNoise, "clipping": NoClipping}
    return kinds.get(fault, Flat)(clip_norm)


def sampler(fault: str | None) -> type[PoissonSampler]:
    """Returns Poisson sampling, or what takes its place in a trainer that breaks ``fault``."""
    return FixedOrderSampler if fault == "shuffling" else PoissonSampler
