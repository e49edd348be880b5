"""Clipping rules: by what factor each example's gradient is scaled, and the L2 sensitivity of the sum that results.

A rule is a frozen dataclass and a pytree, so that a training state can carry it through ``jit`` and ``scan``. It gets
upper bounds on the squared norms, one for each parameter, which already include all roundings
(:mod:`jaxacct.train.clipping.contributions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float64, PyTree

from jaxacct import validation
from jaxacct.precision import in_float64, is_concrete
from jaxacct.pytrees import register_dataclass
from jaxacct.train.clipping.contributions import LEAST_CLIP_NORM

MOST_CLIP_NORM = 1 / LEAST_CLIP_NORM
"""Gradients whose squares leave float32 count as zero anyway, little above it."""


class ClippingRule:
    """What every clipping rule answers. Subclasses are frozen dataclasses registered as pytrees."""

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
        """Returns the noise on the sum, over :attr:`sensitivity`, for a step that costs ``noise_multiplier`` in all."""
        validation.check_noise_multiplier(noise_multiplier)
        return float(noise_multiplier)

    def effective_noise_multiplier(self, gradient_noise_multiplier: float) -> float:
        """Returns the noise multiplier that a step costs whose sum has this noise: the inverse, a lower bound."""
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
    """Clips the whole gradient to one L2 norm: ``g min(1, clip_norm / |g|)``.

    Attributes:
        clip_norm (): above 0; ``inf`` clips nothing, and bounds nothing. It is the sensitivity.

    Source: Abadi et al. (2016), "Deep learning with differential privacy", Algorithm 1.

    >>> Flat(0.5).sensitivity
    0.5
    """

    clip_norm: ArrayLike

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)

    @property
    def sensitivity(self) -> ArrayLike:
        return self.clip_norm

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        return flat_factors(squares, self.clip_norm)


@register_dataclass
@dataclass(frozen=True)
class Automatic(ClippingRule):
    """Normalizes every gradient: ``g clip_norm / (|g| + stability)``. No example is left as it is.

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

    def __post_init__(self) -> None:
        check_finite_clip_norm(self.clip_norm)
        validation.check_positive(self.stability, "stability")

    @property
    def sensitivity(self) -> ArrayLike:
        return self.clip_norm

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        norm, bound = _norm(squares), _wide(self.clip_norm)
        factor = bound / (norm + _wide(self.stability))
        return jax.tree.map(lambda _: factor, squares), norm <= bound


@register_dataclass
@dataclass(frozen=True)
class PerLayer(ClippingRule):
    """Clips each group of parameters to a norm of its own; made by :meth:`of` or :meth:`equally`.

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

    def __post_init__(self) -> None:
        if not self.groups or len(self.groups) != len(self.clip_norms):
            raise ValueError(
                f"{len(self.clip_norms)} clip_norms for {len(self.groups)} groups: give one for each group."
            )
        for norm, group in zip(self.clip_norms, self.groups, strict=True):
            check_finite_clip_norm(norm, f"clip_norm of {'/'.join(group)!r}")

    @classmethod
    def of(cls, clip_norms: Mapping[str, Any]) -> Self:
        """Returns the rule for a mapping of names to norms, which may be nested, or have several names joined by "/".

        >>> PerLayer.of({"output/bias": 1.0}).groups
        (('output', 'bias'),)
        """
        found = list(_flatten(clip_norms))
        return cls(tuple(norm for _, norm in found), tuple(group for group, _ in found))

    @classmethod
    def equally(cls, params: PyTree, clip_norm: float) -> Self:
        """Returns the rule with the sensitivity ``clip_norm`` that gives each top-level group of ``params`` the same.

        >>> PerLayer.equally({"a": jnp.ones(1), "b": jnp.ones(2)}, 1.0).groups
        (('a',), ('b',))
        """
        check_finite_clip_norm(clip_norm)
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        groups = tuple(dict.fromkeys(_names(path)[:1] for path in paths))
        return cls((clip_norm / math.sqrt(len(groups)) * (1 - 2.0**-50),) * len(groups), groups)

    @property
    def sensitivity(self) -> ArrayLike:
        """``sqrt(sum c^2)``, since one example may use every group's norm; rounded up."""
        if is_concrete(self.clip_norms):
            return float(np.sqrt(np.sum(np.square(np.asarray(self.clip_norms, np.float64))))) * (1 + 2.0**-50)
        return self._traced_sensitivity()

    @in_float64
    def _traced_sensitivity(self) -> Array:
        return jnp.sqrt(sum(jnp.square(_wide(norm)) for norm in self.clip_norms)) * (1 + 2.0**-50)

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        leaves, structure = jax.tree_util.tree_flatten_with_path(squares)
        owners = self._owners([_names(path) for path, _ in leaves])
        scaled = [
            flat_factors([leaf for (_, leaf), owner in zip(leaves, owners, strict=True) if owner == group], norm)
            for group, norm in enumerate(self.clip_norms)
        ]
        within = jnp.stack([kept for _, kept in scaled]).all(axis=0)
        return jax.tree.unflatten(structure, [scaled[owner][0][0] for owner in owners]), within

    def _owners(self, names: list[tuple[str, ...]]) -> list[int]:
        owners = []
        for name in names:
            found = [i for i, group in enumerate(self.groups) if name[: len(group)] == group]
            if len(found) != 1:
                raise ValueError(
                    f"parameter {'/'.join(name)!r} belongs to {len(found)} groups of PerLayer, which has "
                    f"{', '.join('/'.join(group) for group in self.groups)}: give it exactly one."
                )
            owners += found
        unused = set(range(len(self.groups))) - set(owners)
        if unused:
            raise ValueError(
                f"group {'/'.join(self.groups[min(unused)])!r} of PerLayer holds no parameter; there are "
                f"{', '.join('/'.join(name) for name in names)}."
            )
        return owners


def flat_factors(squares: PyTree, clip_norm: ArrayLike) -> tuple[PyTree, Bool[Array, " batch"]]:
    """Inside the float64 scope: returns one factor for all parameters, and which norms are within ``clip_norm``."""
    norm, bound = _norm(squares), _wide(clip_norm)
    within = norm <= bound
    factor = jnp.where(within, 1.0, bound / norm)
    return jax.tree.map(lambda _: factor, squares), within


def check_clip_norm(value: Any) -> None:
    """Raises where a clipping norm is no single number, or is concrete and below 2^-60; infinity passes.

    Below, products of float32 vanish: nothing of any gradient would be left, and the budget would buy noise.
    """
    seen = validation.concrete_value(value)
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


def _wide(value: ArrayLike) -> Float64[Array, ""]:
    return jnp.asarray(value, jnp.float64)


def _norm(squares: PyTree) -> Float64[Array, " batch"]:
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))


def _flatten(norms: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in norms.items():
        group = (*above, *str(name).split("/"))
        if isinstance(below, Mapping):
            yield from _flatten(below, group)
        else:
            yield group, below
