"""Clipping rules, and the query of DP-SGD: per-example gradients, scaled by a rule and summed, at a known sensitivity.

A rule says by what factor each example's gradient is scaled, and the sensitivity of the sum. It is a frozen dataclass
and a pytree, so that a training state can carry it through ``jit`` and ``scan``. It gets upper bounds on the squared
norms, one for each parameter, which already include all roundings (:mod:`jaxacct.train.clipping.contributions`).

* :class:`ClippingRule`, :class:`Flat`, :class:`Automatic`, :class:`PerLayer`: rules;
* :func:`clipped_sum`, :func:`clip_and_sum`: the query, block by block and over several devices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, ArrayLike, Bool, Float64, PyTree

from jaxacct import validation
from jaxacct.numerics.precision import in_float64, is_concrete, within_scope
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.train.clipping.contributions import LEAST_CLIP_NORM, NORM_MARGIN, Contributions, Stacked, Stored, Together
from jaxacct.train.clipping.ghost import GhostLoss, Routes
from jaxacct.train.clipping.rows import WHOLE, Shards, apart, check_rows, dealt, filled, refuse, rows_at_once
from jaxacct.train.owned import path_of

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

    def __post_init__(self) -> None:
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
        groups = tuple(dict.fromkeys(tuple(path_of(path).split("/"))[:1] for path in paths))
        return cls((clip_norm / math.sqrt(len(groups)) * (1 - 2.0**-50),) * len(groups), groups)

    @property
    def sensitivity(self) -> ArrayLike:
        """L2 sensitivity ``sqrt(sum c^2)``, since one example may use every group's norm; rounded up."""
        if is_concrete(self.clip_norms):
            return float(np.sqrt(np.sum(np.square(np.asarray(self.clip_norms, np.float64))))) * self._rounded_up
        return self._traced_sensitivity()

    @in_float64
    def _traced_sensitivity(self) -> Array:
        return jnp.sqrt(sum(jnp.square(_wide(norm)) for norm in self.clip_norms)) * self._rounded_up

    @property
    def _rounded_up(self) -> float:
        # A sum of n squares errs by at most n + 1 units of roundoff of itself, its root by half of that and one more.
        return 1 + 2.0**-50 + len(self.clip_norms) * 2.0**-53

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        leaves, structure = jax.tree_util.tree_flatten_with_path(squares)
        owners = self._owners([tuple(path_of(path).split("/")) for path, _ in leaves])
        scaled = [
            flat_factors([leaf for (_, leaf), owner in zip(leaves, owners, strict=True) if owner == group], norm)
            for group, norm in enumerate(self.clip_norms)
        ]
        within = jnp.stack([kept for _, kept in scaled]).all(axis=0)
        return jax.tree.unflatten(structure, [scaled[owner][0][0] for owner in owners]), within

    def _owners(self, names: list[tuple[str, ...]]) -> list[int]:
        """Returns the group of each parameter; raises ValueError where it has none or several, or a group has none."""
        owners = []
        # One pass per parameter: one in no group would not be clipped, one in two groups would have two norms.
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
    """Returns one factor for all parameters, and which norms are within ``clip_norm``; inside the float64 scope."""
    norm, bound = _norm(squares), _wide(clip_norm)
    # A norm that is NaN is not within, and its factor is not used.
    within = norm <= bound
    factor = jnp.where(within, 1.0, bound / norm)
    return jax.tree.map(lambda _: factor, squares), within


def check_clip_norm(value: Any) -> None:
    """Raises where a clipping norm is no single number, or is concrete and below 2^-60; infinity passes.

    Below 2^-60 products of float32 vanish: nothing of any gradient would be left, and the budget would buy noise.
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
    """Returns a number in float64."""
    return jnp.asarray(value, jnp.float64)


def _norm(squares: PyTree) -> Float64[Array, " batch"]:
    """Returns the norms of whole gradients from the squared norms by each parameter."""
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


def _flatten(norms: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the groups of a nested mapping, as tuples of names, with their norms."""
    for name, below in norms.items():
        group = (*above, *str(name).split("/"))
        if isinstance(below, Mapping):
            yield from _flatten(below, group)
        else:
            yield group, below


# ----------------------------------------------------------------------------------------------------
# Query of DP-SGD: per-example gradients, scaled by a clipping rule and summed, at a known sensitivity.
# ----------------------------------------------------------------------------------------------------

Loss = Callable[[PyTree, Any], Array]
"""Loss of one example without a batch axis, ``loss(params, example)``, a scalar."""


class ClippedSum(NamedTuple):
    """A sum of clipped gradients, which is private until noise is added.

    Attributes:
        total: pytree like the parameters, float64, of sensitivity ``rule.sensitivity``.
        unclipped (): the centred count, float64, of sensitivity 1/2: +1/2 for each example whose norm is within the
            rule's, -1/2 for each other; for :meth:`ClippingRule.update`.
    """

    total: PyTree
    unclipped: Float64[Array, ""]


def clipped_sum(
    loss: Loss,
    params: PyTree,
    examples: PyTree,
    mask: Bool[Array, " batch"],
    *,
    clip_norm: float,
    microbatch_size: int | None = None,
    ghost: bool = False,
) -> PyTree:
    """Returns the sum over the masked-in examples of their gradients, each clipped to L2 norm ``clip_norm``.

    :func:`clip_and_sum` under :class:`~jaxacct.train.clipping.Flat`: see there. ``clip_norm`` is above 0; ``inf`` clips
    nothing (and bounds nothing). Returns a pytree like ``params``, float64.

    Formal guarantee: adding or removing one row moves the computed sum by at most ``clip_norm``, roundings included.

    >>> total = clipped_sum(lambda w, x: w @ x, jnp.zeros(2), jnp.array([[3.0, 4.0], [0.0, 0.5]]),
    ...                     jnp.array([True, True]), clip_norm=1.0)
    >>> [round(float(value), 3) for value in total]
    [0.6, 1.3]
    """
    return clip_and_sum(
        loss, params, examples, mask, rule=Flat(clip_norm), microbatch_size=microbatch_size, ghost=ghost
    )[0]


def clip_and_sum(
    loss: Loss,
    params: PyTree,
    examples: PyTree,
    mask: Bool[Array, " batch"],
    *,
    rule: ClippingRule,
    microbatch_size: int | None = None,
    ghost: bool = False,
    sharding: jax.sharding.NamedSharding | None = None,
    specs: PyTree | None = None,
    batch: int | None = None,
) -> ClippedSum:
    """Returns the sum over the masked-in examples of their gradients, scaled by ``rule``, and how many it left as is.

    Args:
        loss: ``loss(params, example)``, a scalar; traced under the caller's precision.
        params: pytree of floating-point arrays: what is trained, and no more. Frozen parameters belong into ``loss``.
        examples: pytree with leading axis ``batch``.
        mask (batch,): rows that count; the others contribute exactly zero, whatever they hold.
        rule: how gradients are scaled.
        microbatch_size: rows whose gradients are in memory at a time, on each device. Blocks behind the last row that
            counts are left out: time then tells how many rows counted, in blocks. None: all rows, whether they count or
            not.
        ghost: whether to form gradients only of those parameters that need it, such as biases: the same sums up to
            rounding, in less memory and mostly less time (:mod:`jaxacct.train.clipping.ghost`). Any loss will do.
        sharding: its first entry names the mesh's axes over which the rows are dealt: each device sums its own, and the
            sums are added.
        specs: pytree like ``params`` of ``PartitionSpec``: how they lie on that mesh. The sums, and gradients of single
            examples where they are held, lie in the same way (:mod:`jaxacct.train.clipping.rows`). None: on every
            device.
        batch: most rows that count in all sums that :func:`added_up` adds to this one. None: this one is whole.

    Formal guarantee: each contribution, as computed, has L2 norm at most ``rule.sensitivity``, and adding or removing
    one row moves the computed sum by at most that, roundings included
    (:mod:`jaxacct.train.clipping.contributions`). This is said of gradients as computed: an example's gradient must not
    depend on its place in the batch, which holds for compiled code that treats all rows alike. A gradient with an
    infinite or NaN entry, or one whose square leaves float32 (above 1e19 in norm), contributes zero and counts as
    clipped.

    Raises ValueError where mask and examples differ in their rows, where microbatch_size is out of range, where the
    batch is so large that roundings cannot be paid for, or, with ``ghost``, for clipping norms below 2^-60, where
    float32 products vanish.

    Source: Abadi et al. (2016), "Deep learning with differential privacy", Algorithm 1; for the roundings, Casacuberta
    et al. (2022), "Widespread underestimation of sensitivity in differentially private libraries".

    >>> total, unclipped = clip_and_sum(lambda w, x: w @ x, jnp.zeros(2), jnp.array([[3.0, 4.0], [0.0, 0.5]]),
    ...                                 jnp.array([True, True]), rule=Flat(1.0), ghost=True)
    >>> [round(float(value), 3) for value in total], float(unclipped)
    ([0.6, 1.3], 0.0)
    """
    if np.ndim(mask) != 1 or any(np.shape(rows)[:1] != np.shape(mask) for rows in jax.tree.leaves(examples)):
        shapes = [np.shape(rows) for rows in jax.tree.leaves(examples)]
        raise ValueError(
            f"mask has shape {np.shape(mask)} and examples {shapes}: give one entry of mask for each row, or rows that "
            "are padding would count."
        )
    if jnp.asarray(mask).dtype != bool:
        raise TypeError(
            f"mask has dtype {jnp.asarray(mask).dtype}: give booleans, whether a row counts: mask != 0, say."
        )
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            raise TypeError(
                f"params has a leaf of dtype {jnp.asarray(leaf).dtype}: give real floating-point arrays; complex ones "
                "as their real and imaginary parts, and what is not trained within loss."
            )
    bound = rule.sensitivity
    if np.ndim(bound):
        raise ValueError(f"the rule's sensitivity has shape {np.shape(bound)}: give one clipping norm.")
    if ghost and is_concrete(bound) and not np.all(np.asarray(bound) >= LEAST_CLIP_NORM):
        raise ValueError(f"the rule's sensitivity {bound} is below 2^-60: scale the loss up, or leave ghost out.")
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(f"microbatch_size = {microbatch_size} is not a size: give a whole number of at least 1.")
    summed = functools.partial(_sum_rows, loss, ghost, microbatch_size, batch or len(mask))
    if sharding is None:
        return ClippedSum(*summed(None, params, rule, examples, mask))
    count = len(jax.tree.leaves(params))
    shards = Shards(sharding, (WHOLE,) * count if specs is None else tuple(jax.tree.leaves(specs)))
    return ClippedSum(*_over_devices(functools.partial(summed, shards), shards)(params, rule, examples, mask))


@within_scope
def added_up(parts: Sequence[ClippedSum]) -> ClippedSum:
    """Returns the clipped sums of parts of one batch, added in float64.

    Each was clipped by :func:`clip_and_sum` with the same ``batch``, whose margin pays for the roundings of a sum of so
    many rows in any order: rows that do not count add exact zeros.
    """
    found: ClippedSum = jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *parts)
    return found


def routes(loss: Loss, params: PyTree, example: PyTree, *, ghost: bool = True) -> Routes:
    """Returns in which form :func:`clip_and_sum` holds the gradients by each parameter, and why; prints as a table.

    Arguments are as there, but for ``example``: one example, or its shapes.

    >>> print(routes(lambda w, x: (x @ w).sum(), jnp.zeros((3, 2)), jnp.zeros(3)))
      Outer  6 entries, used at 1 position: an outer product
    """
    if ghost:
        return GhostLoss(loss, params, example).routes()
    return Routes.of(params, itertools.repeat(Stored), itertools.repeat("ghost = False"))


Summing = Callable[[PyTree, ClippingRule, PyTree, Array], tuple[PyTree, Array]]
"""Sum over rows, of parameters, rule, examples and mask: the sums and the centred count."""


def _sum_rows(
    loss: Loss,
    ghost: bool,
    microbatch_size: int | None,
    batch: int,
    shards: Shards | None,
    params: PyTree,
    rule: ClippingRule,
    examples: PyTree,
    mask: Array,
) -> tuple[PyTree, Array]:
    """Returns the sums over these rows, of ``batch`` in all, block by block up to the last one that counts."""
    # Traced here, where each device runs: values that the loss closes over, such as a step's key, lie as they do there.
    lying = tuple(map(shards.by_tensors, range(len(shards.specs)))) if shards else None
    gradients = (GhostLoss if ghost else StoredLoss)(loss, params, jax.tree.map(_one, examples), lying)
    # Blocks are whole tiles of rows, so that a row's bits do not depend on its place (:mod:`.rows`).
    size, rows = rows_at_once(len(mask), microbatch_size), len(mask)
    start = _zeros(gradients, params, shards)
    if size >= rows:
        mask, examples = jnp.pad(mask, (0, size - rows)), filled(examples, rows, size)
        sums = _add(gradients, gradients.contributions(params, examples), mask, start, rule, params, batch, shards)
        return _finished(gradients, params, sums, shards)

    # The loop's state is the sums and the count so far; a step adds one block of ``size`` rows. It ends with the last
    # block that has a row that counts. Where devices meet in collectives, all go through as many blocks as the longest.
    def add_block(block: Array, sums: tuple[list[Array], Array]) -> tuple[list[Array], Array]:
        # The last block starts early where it would reach beyond the rows; rows of the block before are masked out.
        first = jnp.minimum(block * size, rows - size)
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        kept = cut(mask) & (first + jnp.arange(size) >= block * size)
        parts = gradients.contributions(params, jax.tree.map(cut, examples))
        return _add(gradients, parts, kept, sums, rule, params, batch, shards)

    used = jnp.max(jnp.where(mask, jnp.arange(1, rows + 1), 0))
    if shards and shards.meet:
        used = jax.lax.pmax(used, shards.axes)
    sums = jax.lax.fori_loop(0, (used + size - 1) // size, add_block, start)
    return _finished(gradients, params, sums, shards)


def _over_devices(summed: Summing, shards: Shards) -> Summing:
    """Returns ``summed`` with each device's rows summed by itself, and the sums added up."""

    @within_scope
    def added_up(sums: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        totals, structure = jax.tree.flatten(sums[0])
        totals, count = shards.added_up(totals, sums[1])
        return jax.tree.unflatten(structure, totals), count

    def on_each(params: PyTree, rule: ClippingRule, examples: PyTree, mask: Array) -> tuple[PyTree, Array]:
        own = jax.tree.map(lambda rows: rows[:, 0], (examples, mask))
        return added_up(summed(params, rule, *own))

    def over_devices(params: PyTree, rule: ClippingRule, examples: PyTree, mask: Array) -> tuple[PyTree, Array]:
        # Copies of the last row fill up the last turn; ``real`` masks them out, whatever the mask says of that row.
        examples, kept = jax.tree.map(lambda rows: dealt(rows, shards.devices), (examples, mask))
        real = np.arange(kept.size).reshape(kept.shape) < len(mask)
        structure, turns = jax.tree.structure(params), PartitionSpec(None, shards.axes)
        lying = jax.tree.unflatten(structure, map(shards.by_rows, range(len(shards.specs))))
        # Unchecked: with JAX's check of what varies over devices, the derivative by a shared parameter would be added
        # up over devices before it is clipped.
        spread = jax.shard_map(
            on_each, mesh=shards.rows.mesh, in_specs=(WHOLE, WHOLE, turns, turns), out_specs=(lying, WHOLE),
            axis_names=set(shards.axes), check_vma=False,
        )  # fmt: skip
        return spread(params, rule, examples, kept & real)

    return over_devices


class StoredLoss:
    """A loss whose gradients are formed for all examples by ``vmap``: :class:`.GhostLoss` without its savings."""

    def __init__(
        self, loss: Loss, params: PyTree, example: PyTree, specs: Sequence[PartitionSpec] | None = None
    ) -> None:
        refuse(jax.make_jaxpr(loss)(params, example).jaxpr)
        self._gradients = jax.vmap(apart(jax.grad(loss)), in_axes=(None, 0))
        self._specs = specs
        leaves = jax.tree.leaves(params)
        self.together = Together.of([leaf.shape for leaf in leaves], [leaf.dtype.itemsize <= 4 for leaf in leaves])

    def contributions(self, params: PyTree, examples: PyTree) -> list[Contributions]:
        found = jax.tree.leaves(self._gradients(params, examples))
        return list(map(Stored.of, found, self._specs or (WHOLE,) * len(found)))

    def restored(self, sums: list[Array]) -> list[Array]:
        return sums


def check_loss(
    loss: Loss, params: PyTree, example: PyTree, rows: int, *, microbatch_size: int | None, ghost: bool
) -> bool:
    """Raises ValueError where :func:`clip_and_sum` of so many rows would not map them one by one: :func:`.check_rows`.

    Arguments are as there, except that only shapes and dtypes of ``example`` are looked at, and params may be shapes as
    well. Nothing private is touched: all rows are made up. A block of one row passes: nothing stands beside it.

    Returns whether the gradient is finite at any of the examples that were made up.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), (params, example))
    gradients = (GhostLoss if ghost else StoredLoss)(loss, *shapes)

    # Besides the loss, every array that norms and sums are made of is compared, with its axis of rows in front.
    def look(params: PyTree, examples: PyTree) -> list[Array]:
        found = [jax.vmap(loss, in_axes=(None, 0))(params, examples)]
        for part in gradients.contributions(params, examples):
            stacked = isinstance(part, Stacked)
            parts = [leaf for leaf in jax.tree.leaves(part) if isinstance(leaf, jax.Array)]
            found += [jnp.moveaxis(leaf, 1, 0) if stacked else leaf for leaf in parts]
        return found

    return check_rows(look, params, shapes[1], rows_at_once(rows, microbatch_size))


def _one(rows: Array) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of one row."""
    return jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)


@within_scope
def _zeros(
    gradients: GhostLoss | StoredLoss, params: PyTree, shards: Shards | None
) -> tuple[list[Array], Float64[Array, ""]]:
    """Returns the sums over no rows: as they are held together, or on a mesh the shards of each parameter's."""
    if shards is None:
        return gradients.together.zeros(), jnp.zeros((), jnp.float64)
    shapes = [shards.shard_shape(leaf, value.shape) for leaf, value in enumerate(jax.tree.leaves(params))]
    return [jnp.zeros(shape, jnp.float64) for shape in shapes], jnp.zeros((), jnp.float64)


@within_scope
def _finished(
    gradients: GhostLoss | StoredLoss, params: PyTree, sums: tuple[list[Array], Array], shards: Shards | None
) -> tuple[PyTree, Array]:
    """Returns the sums over all rows as a pytree like the parameters, and the count."""
    totals = sums[0] if shards else gradients.restored(gradients.together.apart(sums[0]))
    return jax.tree.unflatten(jax.tree.structure(params), totals), sums[1]


@within_scope
def _add(
    gradients: GhostLoss | StoredLoss,
    parts: list[Contributions],
    mask: Array,
    sums: tuple[list[Array], Array],
    rule: ClippingRule,
    params: PyTree,
    rows: int,
    shards: Shards | None,
) -> tuple[list[Array], Array]:
    """Returns the sums with a block's contributions added, of a batch of ``rows`` in all."""
    # Norms are raised by all roundings before they are clipped; what is computed then keeps to the sensitivity.
    margin = NORM_MARGIN + max(part.margin(rows) for part in parts)
    if margin > 0.5:  # of the clipping norm; sound for any value, but gradients would shrink to nothing
        raise ValueError(f"a batch of {rows} rows is too large for the roundings of its sum: give smaller batches.")
    together = gradients.together if shards is None else Together(gradients.together.shapes, ())
    packed = together.side_by_side(parts)
    squares = [square * (1 + margin) ** 2 for square in together.squares(parts, packed)]
    factors, within = rule.factors(jax.tree.unflatten(jax.tree.structure(params), squares))
    # A row that is not finite is left out by a select, never by a factor of 0, which would leave NaN. A traced norm
    # below LEAST_CLIP_NORM, whose float32 products would flush, leaves everything out.
    finite = jnp.isfinite(sum(squares))
    kept = mask & finite
    if isinstance(gradients, GhostLoss):
        kept &= jnp.asarray(rule.sensitivity, jnp.float64) >= LEAST_CLIP_NORM
    by = jax.tree.leaves(factors)
    if shards:  # the totals are shards: each block is summed whole on its device, and the sum is then scattered
        added = gradients.restored([part.sum(kept, factor, rows) for part, factor in zip(parts, by, strict=True)])
        added = [shards.scattered(leaf, total) for leaf, total in enumerate(added)]
        totals = [total + new for total, new in zip(sums[0], added, strict=True)]
    else:
        totals = together.sums(parts, packed, kept, by, rows, sums[0])
    # Multiples of 1/2, whose sum is exact: the count's sensitivity has no rounding.
    count = jnp.where(mask, jnp.where(within & finite, 0.5, -0.5), 0.0).sum()
    return totals, sums[1] + count
