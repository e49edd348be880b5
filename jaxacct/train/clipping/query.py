"""The query of DP-SGD: per-example gradients, scaled by a clipping rule and summed, at a known sensitivity.

:func:`clip_and_sum` goes block by block, and over several devices; :func:`added_up` adds the sums of parts of a batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float64, PyTree

from jaxacct.numerics.precision import is_concrete, scope, within_scope
from jaxacct.numerics.pytrees import python_value
from jaxacct.train.clipping.contributions import LEAST_CLIP_NORM, NORM_MARGIN, Contributions, Stacked, Stored, Together
from jaxacct.train.clipping.ghost import GhostLoss, Routes
from jaxacct.train.clipping.rows import WHOLE, Shards, check_rows, deal, fill_up, refuse, rows_at_once, separate_rows
from jaxacct.train.clipping.rules import ClippingRule, Flat

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
        microbatch_size: rows whose gradients are in memory at a time, on each device. The loop leaves out blocks
            behind the last row that counts: time then shows how many rows counted, in blocks. None: all rows, whether
            they count or not.
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
    microbatch_size = python_value(microbatch_size)
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(f"microbatch_size = {microbatch_size} is not a size: give a whole number of at least 1.")
    summed = functools.partial(_sum_rows, loss, ghost, microbatch_size, batch or len(mask))
    if sharding is None:
        return ClippedSum(*summed(None, params, rule, examples, mask))
    count = len(jax.tree.leaves(params))
    shards = Shards(sharding, (WHOLE,) * count if specs is None else tuple(jax.tree.leaves(specs)))
    return ClippedSum(*_sum_over_devices(functools.partial(summed, shards), shards, params, rule, examples, mask))


@within_scope
def added_up(parts: Sequence[ClippedSum]) -> ClippedSum:
    """Returns the clipped sums of parts of one batch, added in float64.

    Each was clipped by :func:`clip_and_sum` with the same ``batch``, whose margin pays for the roundings of a sum of so
    many rows in any order: rows that do not count add exact zeros.
    """
    total: ClippedSum = jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *parts)
    return total


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
    lying = shards.by_tensors if shards else None
    one = jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), examples)
    gradients = (GhostLoss if ghost else StoredLoss)(loss, params, one, lying)
    leaves, structure = jax.tree.flatten(params)
    # Blocks are whole tiles of rows, so that a row's bits do not depend on its place (:mod:`.rows`).
    size, rows = rows_at_once(len(mask), microbatch_size), len(mask)
    # Sums over no rows: as they are held together, or on a mesh the shards of each parameter's.
    with scope():
        totals = shards.zeros(leaves) if shards else gradients.together.zeros()
        sums = totals, jnp.zeros((), jnp.float64)
    add = functools.partial(_add, gradients, rule, structure, batch, shards)

    # The loop's state is the sums and the count so far; a step adds one block of ``size`` rows. It ends with the last
    # block that has a row that counts. Where devices meet in collectives, all go through as many blocks as the longest.
    def add_block(block: Array, sums: tuple[list[Array], Array]) -> tuple[list[Array], Array]:
        # The last block starts early where it would reach beyond the rows; rows of the block before are masked out.
        first = jnp.minimum(block * size, rows - size)
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        kept = cut(mask) & (first + jnp.arange(size) >= block * size)
        return add(gradients.contributions(params, jax.tree.map(cut, examples)), kept, sums)

    if size >= rows:
        parts = gradients.contributions(params, fill_up(examples, rows, size))
        sums = add(parts, jnp.pad(mask, (0, size - rows)), sums)
    else:
        used = jnp.max(jnp.where(mask, jnp.arange(1, rows + 1), 0))
        if shards and shards.meet:
            used = jax.lax.pmax(used, shards.axes)
        sums = jax.lax.fori_loop(0, (used + size - 1) // size, add_block, sums)
    with scope():
        totals = sums[0] if shards else gradients.restore(gradients.together.split(sums[0]))
        return jax.tree.unflatten(structure, totals), sums[1]


def _sum_over_devices(
    summed: Summing, shards: Shards, params: PyTree, rule: ClippingRule, examples: PyTree, mask: Array
) -> tuple[PyTree, Array]:
    """Returns ``summed`` with each device's rows summed by itself, and the sums added up."""

    def on_each(params: PyTree, rule: ClippingRule, examples: PyTree, mask: Array) -> tuple[PyTree, Array]:
        totals, count = summed(params, rule, *jax.tree.map(lambda rows: rows[:, 0], (examples, mask)))
        leaves, structure = jax.tree.flatten(totals)
        with scope():
            leaves, count = shards.added_up(leaves, count)
        return jax.tree.unflatten(structure, leaves), count

    # Copies of the last row fill up the last turn; ``real`` masks them out, whatever the mask says of that row.
    examples, kept = jax.tree.map(lambda rows: deal(rows, shards.devices), (examples, mask))
    real = np.arange(kept.size).reshape(kept.shape) < len(mask)
    structure, turns = jax.tree.structure(params), PartitionSpec(None, shards.axes)
    lying = jax.tree.unflatten(structure, shards.by_rows)
    # Unchecked: with JAX's check of what varies over devices, the derivative by a shared parameter would be added up
    # over devices before it is clipped.
    spread = jax.shard_map(
        on_each, mesh=shards.rows.mesh, in_specs=(WHOLE, WHOLE, turns, turns), out_specs=(lying, WHOLE),
        axis_names=set(shards.axes), check_vma=False,
    )  # fmt: skip
    return spread(params, rule, examples, kept & real)


class StoredLoss:
    """A loss whose gradients are formed for all examples by ``vmap``: :class:`.GhostLoss` without its savings."""

    def __init__(
        self, loss: Loss, params: PyTree, example: PyTree, specs: Sequence[PartitionSpec] | None = None
    ) -> None:
        refuse(jax.make_jaxpr(loss)(params, example).jaxpr)
        self._gradients = jax.vmap(separate_rows(jax.grad(loss)), in_axes=(None, 0))
        self._specs = specs
        leaves = jax.tree.leaves(params)
        self.together = Together.of([leaf.shape for leaf in leaves], [leaf.dtype.itemsize <= 4 for leaf in leaves])

    def contributions(self, params: PyTree, examples: PyTree) -> list[Contributions]:
        gradients = jax.tree.leaves(self._gradients(params, examples))
        return list(map(Stored.of, gradients, self._specs or (WHOLE,) * len(gradients)))

    def restore(self, sums: list[Array]) -> list[Array]:
        return sums


def check_loss(
    loss: Loss, params: PyTree, example: PyTree, rows: int, *, microbatch_size: int | None, ghost: bool
) -> bool:
    """Raises ValueError where :func:`clip_and_sum` of so many rows would not map them one by one: :func:`.check_rows`.

    Arguments are as there, except that only shapes and dtypes of ``example`` are looked at, and params may be shapes as
    well. All rows are made up: the check reads nothing private. A block of one row passes: it has no neighbours.

    Returns whether the gradient is finite at any of the examples that were made up.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), (params, example))
    gradients = (GhostLoss if ghost else StoredLoss)(loss, *shapes)

    # Besides the loss, every array that norms and sums are made of is compared, with its axis of rows in front.
    def look(params: PyTree, examples: PyTree) -> list[Array]:
        arrays = [jax.vmap(loss, in_axes=(None, 0))(params, examples)]
        for part in gradients.contributions(params, examples):
            stacked = isinstance(part, Stacked)
            arrays += [jnp.moveaxis(leaf, 1, 0) if stacked else leaf for leaf in jax.tree.leaves(part)]
        return arrays

    return check_rows(look, params, shapes[1], rows_at_once(rows, microbatch_size))


@within_scope
def _add(
    gradients: GhostLoss | StoredLoss,
    rule: ClippingRule,
    structure: jax.tree_util.PyTreeDef,
    rows: int,
    shards: Shards | None,
    parts: list[Contributions],
    mask: Array,
    sums: tuple[list[Array], Array],
) -> tuple[list[Array], Array]:
    """Returns the sums with a block's contributions added, of a batch of ``rows`` in all."""
    # Norms are raised by all roundings before they are clipped; what is computed then keeps to the sensitivity.
    margin = NORM_MARGIN + max(part.margin(rows) for part in parts)
    if margin > 0.5:  # of the clipping norm; sound for any value, but gradients would shrink to nothing
        raise ValueError(f"a batch of {rows} rows is too large for the roundings of its sum: give smaller batches.")
    together = gradients.together if shards is None else Together(gradients.together.shapes, ())
    packed = together.side_by_side(parts)
    squares = [square * (1 + margin) ** 2 for square in together.squares(parts, packed)]
    factors, is_unclipped = rule.factors(jax.tree.unflatten(structure, squares))
    # A row that is not finite is left out by a select, never by a factor of 0, which would leave NaN. A traced norm
    # below LEAST_CLIP_NORM, whose float32 products would flush, leaves everything out.
    finite = jnp.isfinite(sum(squares))
    kept = mask & finite
    if isinstance(gradients, GhostLoss):
        kept &= jnp.asarray(rule.sensitivity, jnp.float64) >= LEAST_CLIP_NORM
    by = jax.tree.leaves(factors)
    if shards:  # the totals are shards: each block is summed whole on its device, and the sum is then scattered
        added = gradients.restore([part.sum(kept, factor, rows) for part, factor in zip(parts, by, strict=True)])
        added = [shards.scatter(leaf, total) for leaf, total in enumerate(added)]
        totals = [total + new for total, new in zip(sums[0], added, strict=True)]
    else:
        totals = together.sums(parts, packed, kept, by, rows, sums[0])
    # Multiples of 1/2, whose sum is exact: the count's sensitivity has no rounding.
    count = jnp.where(mask, jnp.where(is_unclipped & finite, 0.5, -0.5), 0.0).sum()
    return totals, sums[1] + count
