"""Adaptive clipping: a norm that follows a quantile of the gradients' norms, by a noisy count that is paid for."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, PyTree

from jaxacct import validation
from jaxacct.numerics.precision import in_float64
from jaxacct.numerics.programs import as_it_is
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.train.clipping.contributions import LEAST_CLIP_NORM
from jaxacct.train.clipping.query import MOST_CLIP_NORM, ClippingRule, check_finite_clip_norm, flat_factors
from jaxacct.train.noise import standard_normal

COUNT_SENSITIVITY = 0.5
"""Sensitivity of the centred count, in examples: an example adds 1/2 to it if it is unclipped, and takes 1/2 away if
not. Another value breaks the guarantee."""


@register_dataclass
@dataclass(frozen=True)
class AdaptiveQuantile(ClippingRule):
    """Flat clipping whose norm moves towards a quantile of the examples' gradient norms.

    Each step counts, with Gaussian noise, the examples whose norm is within ``clip_norm``, and multiplies ``clip_norm``
    by ``exp(-learning_rate (share - target_quantile))``.

    Attributes:
        clip_norm (): the norm of this step, which :meth:`update` changes; within [2^-60, 2^60].
        target_quantile: share of examples that are to stay unclipped, in [0, 1]. Lower it where noise drowns the
            gradients.
        learning_rate: of the logarithm of ``clip_norm``. Raise it where a short run starts far from the norm it needs.
        count_noise: standard deviation of the noise on the count, in examples; a twentieth of the expected batch size
            was found to be enough by the source.

    Formal guarantee: a step costs exactly as much as a Gaussian mechanism with noise multiplier z, on the same batch,
    subsampled or not, where with z_g = :meth:`gradient_noise_multiplier` (z) the noise on the sum has the deviation
    z_g times ``clip_norm``. Proof: write C = ``clip_norm`` and s = ``count_noise``. The step releases the pair (S + C
    z_g N, T + s N'), S the clipped sum and T the centred count, the sum over examples of +1/2 or -1/2. Divided by
    the constants C z_g and s, that is one Gaussian mechanism of unit noise on the vector (S / (C z_g), T / s). Adding
    or removing an example moves it by at most sqrt(1/z_g^2 + (1/2)^2/s^2) = 1/z in L2, and by exactly that where the
    gradient has norm C: neither more nor less than a Gaussian mechanism of noise multiplier z. C depends on what
    earlier steps released, but z does not, so that every step is dominated by the same mechanism whatever came before,
    and composes as a non-adaptive one. Replacing an example moves both by at most twice as much, which costs as a
    Gaussian mechanism on a query of twice the sensitivity. Examples whose gradients are not finite count as clipped.

    Source: Andrew et al. (2021), "Differentially private learning with adaptive clipping", Algorithm 1 and Theorem 1.

    >>> rule = AdaptiveQuantile(clip_norm=1.0, count_noise=10.0)
    >>> round(rule.gradient_noise_multiplier(1.0), 6)
    1.001252
    """

    clip_norm: ArrayLike
    target_quantile: ArrayLike = 0.5
    learning_rate: ArrayLike = 0.2
    count_noise: float = dataclasses.field(default=10.0, metadata={"static": True})

    def __post_init__(self) -> None:
        check_finite_clip_norm(self.clip_norm)
        validation.check_probability(self.target_quantile, "target_quantile")
        validation.check_positive(self.learning_rate, "learning_rate")
        validation.check_positive(self.count_noise, "count_noise")

    @property
    def sensitivity(self) -> ArrayLike:
        return self.clip_norm

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        return flat_factors(squares, self.clip_norm)

    def gradient_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns ``z_g = (1/z^2 - 1/(2 s)^2)^(-1/2)``, rounded up: the noise multiplier that the gradients then have.

        Raises ValueError where ``count_noise`` alone costs more than ``noise_multiplier`` does.

        >>> AdaptiveQuantile(1.0, count_noise=0.5).gradient_noise_multiplier(0.6)
        0.75...
        """
        z, most = super().gradient_noise_multiplier(noise_multiplier), self._count_multiplier
        if z >= most:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier} costs no more than the count with count_noise = "
                f"{self.count_noise}: give a count_noise well above {z / 2:g}."
            )
        # 1/z^2 - 1/m^2 = (m - z)(m + z) / (z m)^2: no difference of rounded squares.
        return z * most / math.sqrt((most - z) * (most + z)) * (1 + 2.0**-49)

    def effective_noise_multiplier(self, gradient_noise_multiplier: float) -> float:
        """Returns ``z = (1/z_g^2 + 1/(2 s)^2)^(-1/2)``, rounded down: what a step costs in all.

        >>> AdaptiveQuantile(1.0, count_noise=0.5).effective_noise_multiplier(0.75)
        0.599...
        """
        z, most = super().effective_noise_multiplier(gradient_noise_multiplier), self._count_multiplier
        return z * (most / math.hypot(z, most)) * (1 - 2.0**-49) if math.isfinite(z) else most

    @property
    def _count_multiplier(self) -> float:
        """Noise multiplier of the count alone: m = 2 s."""
        return float(self.count_noise) / COUNT_SENSITIVITY

    def update(self, key: jax.Array, unclipped: ArrayLike, expected_batch_size: float) -> Self:
        validation.check_positive(expected_batch_size, "expected_batch_size")
        noise = standard_normal(key, ())
        new = self._moved(unclipped, noise, expected_batch_size)
        return dataclasses.replace(self, clip_norm=new.astype(jnp.result_type(self.clip_norm)))

    @in_float64(safe=as_it_is)
    def _moved(self, unclipped: ArrayLike, noise: Array, expected_batch_size: float) -> Array:
        """Returns the clipping norm after a step towards the quantile, by the noisy share of unclipped examples."""
        count = jnp.asarray(unclipped, jnp.float64) + self.count_noise * noise
        share = count / expected_batch_size + COUNT_SENSITIVITY
        step = -jnp.asarray(self.learning_rate, jnp.float64) * (share - jnp.asarray(self.target_quantile, jnp.float64))
        # Kept within the range in which float32 products of gradients lose nothing that matters.
        moved = jnp.asarray(self.clip_norm, jnp.float64) * jnp.exp(step)
        return jnp.clip(moved, LEAST_CLIP_NORM, MOST_CLIP_NORM)
