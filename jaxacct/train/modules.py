"""Which Flax modules can be trained with differential privacy, and which cannot, and why."""

from __future__ import annotations

import jax
from flax import nnx


def check_module(model: nnx.Module) -> None:
    """Raises where ``model`` cannot be trained by per-example gradients.

    Raises:
        TypeError: not a Flax ``nnx`` module.
        ValueError: it holds BatchNorm or running statistics, or random state.

    >>> check_module(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    >>> check_module(nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    Traceback (most recent call last):
        ...
    ValueError: model has nnx.BatchNorm at the top: it mixes the examples of a batch, ...
    """
    if not isinstance(model, nnx.Module):
        raise TypeError(f"model is a {type(model).__name__}: give a flax.nnx module.")
    for path, module in nnx.iter_modules(model):
        where = "/".join(map(str, path)) or "the top"
        if isinstance(module, nnx.BatchNorm):
            raise ValueError(
                f"model has nnx.BatchNorm at {where}: it mixes the examples of a batch, so that one example moves the "
                "gradients of all others and clipping bounds nothing, and its running statistics are released without "
                "noise. Use nnx.GroupNorm or nnx.LayerNorm."
            )
    state = nnx.state(model)
    for path, variable in nnx.to_flat_state(state):
        where = "/".join(map(str, path))
        if isinstance(variable, nnx.BatchStat):
            raise ValueError(
                f"model keeps running statistics at {where} (nnx.BatchStat): they would be made from private data "
                "without noise. Remove them."
            )
        if isinstance(variable, nnx.RngState):
            raise ValueError(
                f"model keeps random state at {where} (nnx.Dropout, or a stored nnx.Rngs): this trainer gives modules "
                "no keys. Remove it; the noise of DP-SGD regularizes already."
            )
    if not jax.tree.leaves(nnx.state(model, nnx.Param)):
        raise ValueError("model has no nnx.Param: there is nothing to train.")
