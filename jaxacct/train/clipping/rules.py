"""Clipping rules: by what factor each example's gradient is scaled, and the sensitivity of the sum that this makes.

A rule is a frozen dataclass and a pytree, so that a training state can carry it through ``jit`` and ``scan``. It gets
upper bounds on the squared norms, one for each parameter, which already include all roundings
(:mod:`jaxacct.train.clipping.contributions`). :class:`AdaptiveQuantile` moves from step to step, by a noisy count that
the step pays for; the others stay.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float64, PyTree

from jaxacct import validation
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, is_concrete, kernel
from jaxacct.numerics.pytrees import register_dataclass, takes_python_values, widen_fields
from jaxacct.train.clipping.contributions import LEAST_CLIP_NORM
from jaxacct.train.integer_noise import add_noise
from jaxacct.train.ownership import path_of

MOST_CLIP_NORM = 1 / LEAST_CLIP_NORM
"""Largest finite clipping norm. Little above it, squares of gradients leave float32, and their examples count as zero
anyway."""


class ClippingRule:
    """A clipping rule: factors for the gradients, and the sensitivity of their sum.

    Subclasses are frozen dataclasses registered as pytrees.
    """

    @property
    def sensitivity(self) -> ArrayLike:
        """Upper bound on the L2 norm of one example's scaled gradient: the unit of the noise."""
        raise NotImplementedError

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        """Returns what to multiply each parameter's gradients by, and which examples stay unclipped.

        Args:
            squares: pytree like the parameters, of float64 (batch,): upper bounds on the squared norms.

        Called inside the float64 scope. Factors of rows that are not finite are not used.
        """
        raise NotImplementedError

    def gradient_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns the noise on the sum, over :attr:`sensitivity`, of a step that costs ``noise_multiplier`` in all."""
        validation.check_noise_multiplier(noise_multiplier)
        return float(noise_multiplier)

    def __post_init__(self) -> None:
        widen_fields(self)
        self.validate()

    def validate(self) -> None:
        """Raises where a concrete number is out of range, for JAX may have rebuilt the rule; a traced one cannot."""

    def effective_noise_multiplier(self, gradient_noise_multiplier: float) -> float:
        """Returns the noise multiplier of a whole step whose sum has this noise: the inverse, a lower bound."""
        validation.check_noise_multiplier(gradient_noise_multiplier, "gradient_noise_multiplier")
        return float(gradient_noise_multiplier)

    def update(self, key: jax.Array, unclipped: ArrayLike, expected_batch_size: float) -> Self:
        """Returns the rule of the next step; only adaptive rules change, and only they use the key.

        Args:
            key: typed scalar key, used for nothing else.
            unclipped (): the centred count of :func:`~jaxacct.train.clipping.clip_and_sum`.
            expected_batch_size: a public number.
        """
        return self


@register_dataclass
@dataclass(frozen=True)
class Flat(ClippingRule):
    """Flat clipping, of the whole gradient to one L2 norm: ``g min(1, clip_norm / |g|)``.

    Attributes:
        clip_norm (): above 0; ``inf`` clips nothing, and bounds nothing. It is the sensitivity.

    Source: Abadi et al. (2016), "Deep learning with differential privacy", Algorithm 1.

    >>> Flat(0.5).sensitivity
    0.5
    """

    clip_norm: ArrayLike

    def validate(self) -> None:
        check_clip_norm(self.clip_norm)

    @property
    def sensitivity(self) -> ArrayLike:
        return self.clip_norm

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        return flat_factors(squares, self.clip_norm)


@register_dataclass
@dataclass(frozen=True)
class Automatic(ClippingRule):
    """Automatic clipping, which normalizes every gradient: ``g clip_norm / (|g| + stability)``.

    No example is left as it is.

    Attributes:
        clip_norm (): above 0 and finite: the sensitivity. It only rescales the learning rate.
        stability (): above 0 and finite; the smaller, the closer all norms come to ``clip_norm``.

    Source: Bu et al. (2023), "Automatic clipping: differentially private deep learning made easier and stronger",
    AUTO-S.

    >>> Automatic(1.0).stability
    0.01
    """

    clip_norm: ArrayLike
    stability: ArrayLike = 0.01

    def validate(self) -> None:
        check_finite_clip_norm(self.clip_norm)
        validation.check_positive(self.stability, "stability")

    @property
    def sensitivity(self) -> ArrayLike:
        return self.clip_norm

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        norm, bound = _norm(squares), as_float64(self.clip_norm)
        factor = bound / (norm + jnp.maximum(as_float64(self.stability), 0.0))  # below 0 it would lengthen gradients
        return jax.tree.map(lambda _: factor, squares), norm <= bound


@register_dataclass
@dataclass(frozen=True)
class PerLayer(ClippingRule):
    """Clipping of each group of parameters to a norm of its own; made by :meth:`of` or :meth:`equally`.

    Attributes:
        clip_norms: norm of each group, above 0 and finite.
        groups: for each of them, the names on the way to it in the pytree of parameters; all parameters below belong to
            it. Each parameter must belong to exactly one group, which :meth:`factors` checks.

    Source: McMahan et al. (2018), "A general approach to adding differential privacy to iterative training procedures",
    section 3.1.

    >>> PerLayer.of({"hidden": 3.0, "output": {"kernel": 4.0}}).groups
    (('hidden',), ('output', 'kernel'))
    """

    clip_norms: tuple[ArrayLike, ...]
    groups: tuple[tuple[str, ...], ...] = field(metadata={"static": True})

    def validate(self) -> None:
        if not self.groups or len(self.groups) != len(self.clip_norms):
            raise ValueError(
                f"{len(self.clip_norms)} clip_norms for {len(self.groups)} groups: give one for each group."
            )
        for norm, group in zip(self.clip_norms, self.groups, strict=True):
            check_finite_clip_norm(norm, f"clip_norm of {'/'.join(group)!r}")

    @classmethod
    def of(cls, clip_norms: Mapping[str, Any]) -> Self:
        """Returns the rule for a mapping of names to norms; it may be nested, or have several names joined by "/".

        >>> PerLayer.of({"output/bias": 1.0}).groups
        (('output', 'bias'),)
        """
        norms = list(_flatten(clip_norms))
        return cls(tuple(norm for _, norm in norms), tuple(group for group, _ in norms))

    @classmethod
    @takes_python_values
    def equally(cls, params: PyTree, clip_norm: float) -> Self:
        """Returns the rule with the sensitivity ``clip_norm`` that gives each top-level group of ``params`` the same.

        >>> PerLayer.equally({"a": jnp.ones(1), "b": jnp.ones(2)}, 1.0).groups
        (('a',), ('b',))
        """
        check_finite_clip_norm(clip_norm)
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        groups = tuple(dict.fromkeys(tuple(path_of(path).split("/"))[:1] for path in paths))
        return cls((clip_norm / math.sqrt(len(groups)) * (1 - 2.0**-50),) * len(groups), groups)

    @property
    def sensitivity(self) -> ArrayLike:
        """L2 sensitivity ``sqrt(sum c^2)``, since one example may use every group's norm; rounded up."""
        if is_concrete(self.clip_norms):
            return float(np.sqrt(np.sum(np.square(np.asarray(self.clip_norms, np.float64))))) * self._rounded_up
        return self._traced_sensitivity()

    @kernel
    def _traced_sensitivity(self) -> Array:
        return jnp.sqrt(sum(jnp.square(as_float64(norm)) for norm in self.clip_norms)) * self._rounded_up

    @property
    def _rounded_up(self) -> float:
        # A sum of n squares errs by at most n + 1 units of roundoff of itself, its root by half of that and one more.
        return 1 + (8 + len(self.clip_norms)) * roundoff()

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        leaves, structure = jax.tree_util.tree_flatten_with_path(squares)
        owners = self._owners([tuple(path_of(path).split("/")) for path, _ in leaves])
        scaled = [
            flat_factors([leaf for (_, leaf), owner in zip(leaves, owners, strict=True) if owner == group], norm)
            for group, norm in enumerate(self.clip_norms)
        ]
        is_unclipped = jnp.stack([kept for _, kept in scaled]).all(axis=0)
        return jax.tree.unflatten(structure, [scaled[owner][0][0] for owner in owners]), is_unclipped

    def _owners(self, names: list[tuple[str, ...]]) -> list[int]:
        """Returns the group of each parameter; raises ValueError where it has none or several, or a group has none."""
        owners = []
        # One pass per parameter: one in no group would not be clipped, one in two groups would have two norms.
        for name in names:
            groups = [i for i, group in enumerate(self.groups) if name[: len(group)] == group]
            if len(groups) != 1:
                raise ValueError(
                    f"parameter {'/'.join(name)!r} belongs to {len(groups)} groups of PerLayer, which has "
                    f"{', '.join('/'.join(group) for group in self.groups)}: give it exactly one."
                )
            owners += groups
        unused = set(range(len(self.groups))) - set(owners)
        if unused:
            raise ValueError(
                f"group {'/'.join(self.groups[min(unused)])!r} of PerLayer holds no parameter; there are "
                f"{', '.join('/'.join(name) for name in names)}."
            )
        return owners


@register_dataclass
@dataclass(frozen=True)
class AdaptiveQuantile(Flat):
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

    target_quantile: ArrayLike = 0.5
    learning_rate: ArrayLike = 0.2
    count_noise: float = dataclasses.field(default=10.0, metadata={"static": True})

    def validate(self) -> None:
        check_finite_clip_norm(self.clip_norm)
        validation.check_probability(self.target_quantile, "target_quantile")
        validation.check_positive(self.learning_rate, "learning_rate")
        validation.check_positive(self.count_noise, "count_noise")

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
        return 2.0 * float(self.count_noise)  # the centred count has the sensitivity 1/2

    def update(self, key: jax.Array, unclipped: ArrayLike, expected_batch_size: float) -> Self:
        validation.check_positive(expected_batch_size, "expected_batch_size")
        new = self._move(key, unclipped, expected_batch_size)
        return dataclasses.replace(self, clip_norm=new.astype(jnp.result_type(self.clip_norm)))

    @kernel(own_float64=True)
    def _move(self, key: jax.Array, unclipped: ArrayLike, expected_batch_size: float) -> Array:
        """Returns the clipping norm after a step towards the quantile, by the noisy share of unclipped examples."""
        # The centred count is 1/2 above and below.
        count = add_noise(key, as_float64(unclipped), noise_multiplier=2 * self.count_noise, sensitivity=0.5)
        share = count / expected_batch_size + 0.5
        step = -as_float64(self.learning_rate) * (share - as_float64(self.target_quantile))
        # Kept within the range in which float32 products of gradients lose nothing that matters.
        moved = as_float64(self.clip_norm) * jnp.exp(step)
        return jnp.clip(moved, LEAST_CLIP_NORM, MOST_CLIP_NORM)


def flat_factors(squares: PyTree, clip_norm: ArrayLike) -> tuple[PyTree, Bool[Array, " batch"]]:
    """Returns one factor for all parameters, and which norms are within ``clip_norm``; inside the float64 scope."""
    norm, bound = _norm(squares), as_float64(clip_norm)
    # A norm that is NaN is not within, and its factor is not used.
    is_unclipped = norm <= bound
    factor = jnp.where(is_unclipped, 1.0, bound / norm)
    return jax.tree.map(lambda _: factor, squares), is_unclipped


def check_clip_norm(value: Any) -> None:
    """Raises where a clipping norm is no single number, or is concrete and below 2^-60; infinity passes.

    Below 2^-60 products of float32 vanish: nothing of any gradient would be left, and the budget would buy noise.
    """
    seen = validation.seen_value(value, "clip_norm")
    if seen is None or not np.all(seen == np.inf):
        check_finite_clip_norm(value)


def check_finite_clip_norm(value: Any, name: str = "clip_norm") -> None:
    """Raises as :func:`check_clip_norm` does, and where it is infinite, or above 2^60: its noise may overflow."""
    validation.check_positive(value, name)
    seen = validation.concrete_value(value)
    if seen is not None and not np.all(seen >= LEAST_CLIP_NORM):
        raise ValueError(
            f"{name} = {value} is below 2^-60, where float32 loses gradients: give a larger one, and scale the loss up."
        )
    if seen is not None and not np.all(seen <= MOST_CLIP_NORM):
        raise ValueError(
            f"{name} = {value} is above 2^60: gradients as long as that are left out, and noise of its size would be "
            "all that is learned. Give a smaller one."
        )


def _norm(squares: PyTree) -> Float64[Array, " batch"]:
    """Returns the norms of whole gradients from the squared norms by each parameter."""
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


def _flatten(norms: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the groups of a nested mapping, as tuples of names, with their norms."""
    # Nested names and names with a slash mean the same group.
    for name, below in norms.items():
        group = (*above, *str(name).split("/"))
        if isinstance(below, Mapping):
            yield from _flatten(below, group)
        else:
            yield group, below
