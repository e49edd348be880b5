"""Per-example gradients, clipped and summed: the query whose sensitivity is the clipping norm.

The sensitivity has to hold for the numbers the machine computes, not only on paper. Two roundings matter.

* The norm. Float32 sums of d squares can err by d roundoffs, which for a large model is no small number. Squares are
  summed in float32 over chunks of NORM_CHUNK, whatever the order (relative error at most NORM_CHUNK * 2^-24), then in
  float64. Squares that float32 flushes to zero are paid for by FLUSHED an entry. The scale is made smaller by
  NORM_MARGIN, which covers both.
* The sum. In float32, adding or removing one example shifts the rounding of every partial sum, by up to
  (batch size)^2 * 2^-24 clipping norms in all. Contributions are added in float64, and the noise joins them there: what
  is rounded to float32 afterwards is post-processing. Batches up to 2^30 stay inside NORM_MARGIN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from jaxacct import validation
from jaxacct.precision import in_float64

NORM_CHUNK = 256
NORM_MARGIN = 2.0**-15
"""Above half of NORM_CHUNK + 1 float32 roundoffs, 7.7e-6, plus the roundings in float64."""

FLUSHED = 2.0**-125
"""Above what one square loses where float32 has no normal number for it."""

Loss = Callable[[PyTree, Any], Array]
"""``loss(params, example)``: scalar, of one example without a batch axis."""


def clipped_sum(
    loss: Loss,
    params: PyTree,
    examples: PyTree,
    mask: Bool[Array, " batch"],
    *,
    clip_norm: float,
    microbatch_size: int | None = None,
) -> PyTree:
    """Returns the sum over the masked-in examples of their gradients, each clipped to L2 norm ``clip_norm``.

    Args:
        loss: ``loss(params, example)``, a scalar; traced under the caller's precision.
        params: pytree of floating-point arrays; the norm is taken over all of it (flat clipping).
        examples: pytree with leading axis ``batch``.
        mask (batch,): rows that count; the others contribute exactly zero, whatever they hold.
        clip_norm: above 0; ``inf`` clips nothing (and bounds nothing).
        microbatch_size: rows whose gradients are in memory at a time. None: all.

    Returns:
        Pytree like ``params``, float64.

    Formal guarantee: each contribution, as computed, has L2 norm at most ``clip_norm``, and adding or removing one row
    moves the computed sum by at most ``clip_norm``, roundings included. A gradient with an infinite or NaN entry, or
    one above 1e19 in norm, where its square leaves float32, contributes zero.

    Raises ValueError where clip_norm or microbatch_size is out of range.

    Source: Abadi et al. (2016), "Deep learning with differential privacy", Algorithm 1; for the roundings, Casacuberta
    et al. (2022), "Widespread underestimation of sensitivity in differentially private libraries".

    >>> total = clipped_sum(lambda w, x: w @ x, jnp.zeros(2), jnp.array([[3.0, 4.0], [0.0, 0.5]]),
    ...                     jnp.array([True, True]), clip_norm=1.0)
    >>> [round(float(value), 3) for value in total]
    [0.6, 1.3]
    """
    if clip_norm != float("inf"):
        validation.check_positive(clip_norm, "clip_norm")
    if microbatch_size is None:
        return _sum_in_float64(_gradients(loss, params, examples), mask, _zeros(params), clip_norm)
    if microbatch_size < 1:
        raise ValueError(f"microbatch_size = {microbatch_size} is not a size: give a whole number of at least 1.")
    blocks = jax.tree.map(lambda rows: _in_blocks(rows, microbatch_size), (examples, mask))

    def add_block(total: PyTree, block: tuple[PyTree, Array]) -> tuple[PyTree, None]:
        rows, kept = block
        return _sum_in_float64(_gradients(loss, params, rows), kept, total, clip_norm), None

    return jax.lax.scan(add_block, _zeros(params), blocks)[0]


def _gradients(loss: Loss, params: PyTree, examples: PyTree) -> PyTree:
    return jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, examples)


def _in_blocks(rows: Array, size: int) -> Array:
    """Returns the rows in blocks, the last one filled up with zeros (a false mask, for the mask)."""
    missing = -rows.shape[0] % size
    padded = jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
    return padded.reshape(-1, size, *rows.shape[1:])


@in_float64
def _zeros(params: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float64), params)


@in_float64
def _sum_in_float64(gradients: PyTree, mask: Array, start: PyTree, clip_norm: float) -> PyTree:
    scale, finite = clip_scale(gradients, clip_norm)
    kept = mask & finite

    def contribution(leaf: Array, kept: Array, scale: Array) -> Array:
        factor, used = (value.reshape(value.shape + (1,) * (leaf.ndim - value.ndim)) for value in (scale, kept))
        return jnp.where(used, leaf.astype(jnp.float64) * factor, 0.0)

    def add_one(total: PyTree, row: tuple[PyTree, Array, Array]) -> tuple[PyTree, None]:
        gradient, kept, scale = row
        return jax.tree.map(lambda sum_, leaf: sum_ + contribution(leaf, kept, scale), total, gradient), None

    def one_by_one(start: PyTree, gradients: PyTree, kept: Array, scale: Array) -> PyTree:
        return jax.lax.scan(add_one, start, (gradients, kept, scale))[0]

    def at_once(start: PyTree, gradients: PyTree, kept: Array, scale: Array) -> PyTree:
        return jax.tree.map(lambda sum_, leaf: sum_ + contribution(leaf, kept, scale).sum(axis=0), start, gradients)

    # XLA's CPU reduction over the leading axis in float64 is twenty times slower than adding row by row.
    return jax.lax.platform_dependent(start, gradients, kept, scale, cpu=one_by_one, default=at_once)


def clip_scale(gradients: PyTree, clip_norm: float) -> tuple[Array, Array]:
    """Inside the float64 scope: returns the factor (batch,) that clips each gradient, and whether it is finite."""
    squared = sum(_squared_norms(leaf) for leaf in jax.tree.leaves(gradients))
    norm = jnp.sqrt(jnp.asarray(squared, jnp.float64))
    bound = float(clip_norm) * (1 - NORM_MARGIN)
    return jnp.where(norm <= bound, 1.0, bound / norm), jnp.isfinite(norm)


def _squared_norms(leaf: Array) -> Array:
    """Returns the squared norm of each row of ``leaf``, float64."""
    flat = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    whole = flat.shape[1] // NORM_CHUNK * NORM_CHUNK
    chunks = jnp.square(flat[:, :whole].reshape(flat.shape[0], -1, NORM_CHUNK)).sum(axis=-1).astype(jnp.float64)
    rest = jnp.square(flat[:, whole:]).sum(axis=-1).astype(jnp.float64)
    return chunks.sum(axis=-1) + rest + flat.shape[1] * FLUSHED
