"""Low-rank adapters beside linear layers: few parameters to train, so little noise in all, and a base that stays.

Noise has one deviation in every entry, and its norm grows as the root of the number of entries. The base, which may
have a million times as many, gets none: it is released as it is, and has to come from public data.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxacct import validation
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.train.models import copy_module


class LowRank(nnx.Module):
    """``base(x) + alpha / rank * x A B``: a linear layer whose own parameters need not be trained.

    Attributes:
        base: ``nnx.Linear``, or ``nnx.LinearGeneral`` over last axes. Where ``steps`` is given, its kernel is int8.
        down, up: A (inputs, rank) and B (rank, outputs), of type ``nnx.LoRAParam``; B is zero at first. For a stack of
            layers, as ``nnx.vmap`` makes it and ``nnx.scan`` runs it, all have the stack's axes in front.
        scale: alpha / rank.
        steps: float32, for each output: the value of 1 in an int8 kernel; None where the kernel has a float dtype.
    """

    def __init__(self, base: Any, rank: int, alpha: float, *, rngs: nnx.Rngs) -> None:
        stack, shape, contracted = _stack(base), _of_one(base), _contracted_axes(base)
        inside, outside = math.prod(shape[:contracted]), math.prod(shape[contracted:])
        dtype = jnp.promote_types(base.kernel.dtype, jnp.float32)
        self.base, self.scale = base, alpha / rank
        drawn = nnx.initializers.he_uniform(batch_axis=tuple(range(len(stack))))
        self.down = nnx.LoRAParam(drawn(rngs.params(), (*stack, inside, rank), dtype))
        self.up = nnx.LoRAParam(jnp.zeros((*stack, rank, outside), dtype))
        self.steps: Any = nnx.data(None)

    def __call__(self, inputs: Array, **options: Any) -> Array:
        outputs = self._base()(inputs, **options)
        flat = inputs.reshape(*inputs.shape[: inputs.ndim - _contracted_axes(self.base)], -1)
        flat, a, b = self.base.promote_dtype((flat, self.down[...], self.up[...]), dtype=self.base.dtype)
        return outputs + (self.scale * (flat @ a @ b)).reshape(outputs.shape).astype(outputs.dtype)

    def merge(self) -> Any:
        """Returns the base with the adapter added to its kernel, rounded once to the kernel's dtype."""
        base = self._base()
        kernel = base.kernel
        with jax.default_matmul_precision("highest"):
            added = self.scale * (self.down[...] @ self.up[...])
        base.kernel[...] = (kernel[...] + added.reshape(kernel.shape)).astype(kernel.dtype)
        return base

    def round_base(self) -> None:
        """Stores the base's kernel as int8: each entry as the nearest multiple of 1/127 of its output's largest."""
        kernel = self.base.kernel[...].astype(jnp.float32)
        first = len(_stack(self.base))
        steps = jnp.abs(kernel).max(axis=tuple(range(first, first + _contracted_axes(self.base))), keepdims=True) / 127
        rounded = jnp.round(kernel / jnp.where(steps == 0, 1, steps)).astype(jnp.int8)
        self.base.kernel, self.steps = self.base.kernel.replace(rounded), nnx.Param(steps)

    def _base(self) -> Any:
        """Returns the base with a kernel of floats: where it is int8, a copy."""
        if self.steps is None:
            return self.base
        graph, state = nnx.split(self.base)
        kernel: Any = state["kernel"]
        state["kernel"] = kernel.replace(kernel[...] * self.steps[...])
        return nnx.merge(graph, state)


@takes_python_values
def lora(
    model: nnx.Module,
    rank: int,
    alpha: float | None = None,
    *,
    targets: str | Sequence[str] = "",
    base_dtype: jax.typing.DTypeLike | None = None,
    rngs: nnx.Rngs | None = None,
) -> nnx.Module:
    """Returns a copy of a module with a :class:`LowRank` in place of each of its linear layers that is a target.

    A trainer trains the module's ``nnx.LoRAParam``, where it has any, and nothing else: only adapters are clipped, get
    noise, and are kept by the optimizer. :func:`merge_lora` makes an ordinary module of it again. At first it computes
    what ``model`` does.

    Args:
        model: not modified. Stacks of layers have their axes in front; a stack along another axis of the same size
            cannot be told from one in front.
        rank: of each adapter. Raise it where adapters cannot learn the task; noise grows with its root.
        alpha: an adapter's output is multiplied by alpha / rank; None: by 1.
        targets: regular expressions, searched in the layers' paths such as ``blocks/0/attention/query``: of
            ``nnx.Linear``, and of ``nnx.LinearGeneral`` over last axes, as attention has. "": all of them.
        base_dtype: dtype of what is not trained, where it takes too much memory. ``jnp.bfloat16``: half of float32's.
            ``jnp.int8``: the targets' kernels take a quarter, each entry rounded to a multiple of 1/127 of the largest
            that adds to the same output; all else is bfloat16. None: as it is. The guarantee is the same: the adapters'
            gradients are clipped, summed and noised. Merged kernels of int8 are float32.
        rngs: random streams for A, whose draws are public; None: ``nnx.Rngs(0)``.

    Raises ValueError where the rank is no whole number of at least 1, alpha is not above 0, base_dtype is another
    integer, nothing is a target, or a target shares its kernel with another or is a stack of layers along other axes
    than the first.

    Source: Hu et al. (2022), "LoRA: low-rank adaptation of large language models"; under differential privacy, Yu et
    al. (2022), "Differentially private fine-tuning of language models"; for int8, Dettmers et al. (2022), "LLM.int8():
    8-bit matrix multiplication for transformers at scale", section 2.1.

    >>> model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 2, rngs=nnx.Rngs(1)))
    >>> adapted = lora(model, 2, targets="layers/1")
    >>> [leaf.shape for leaf in jax.tree.leaves(nnx.state(adapted, nnx.LoRAParam))]
    [(3, 2), (2, 2)]
    >>> bool((adapted(jnp.ones(4)) == model(jnp.ones(4))).all())
    True
    """
    rank = validation.check_count(rank, "rank", "the rank of each adapter")
    alpha = float(rank) if alpha is None else alpha
    validation.check_positive(alpha, "alpha")
    rngs = nnx.Rngs(0) if rngs is None else rngs
    wanted = (targets,) if isinstance(targets, str) else tuple(targets)
    if not wanted:
        raise ValueError(f"targets = {targets!r} leaves the model without adapters: give '' for all layers.")
    linear: list[str] = []
    fitted: set[str] = set()

    if base_dtype is not None and not (jnp.issubdtype(base_dtype, jnp.floating) or jnp.dtype(base_dtype) == jnp.int8):
        raise ValueError(
            f"base_dtype = {base_dtype} is not supported: give jnp.int8, or a float's, such as jnp.bfloat16."
        )
    kernels = {
        "/".join(map(str, path)): id(node.kernel) for path, node in nnx.iter_graph(model) if hasattr(node, "kernel")
    }
    owners = Counter(kernels.values())

    def adapt(path: Any, node: Any) -> Any:
        if isinstance(node, LowRank):
            raise ValueError(f"{'/'.join(map(str, path))} has adapters: merge them first (merge_lora).")
        if not isinstance(node, (nnx.Linear, nnx.LinearGeneral)) or not _contracted_axes(node):
            return node
        linear.append("/".join(map(str, path)))
        fits = [pattern for pattern in wanted if re.search(pattern, linear[-1])]
        fitted.update(fits)
        if fits and node.kernel.shape != (*_stack(node), *_of_one(node)):
            raise ValueError(
                f"{linear[-1]} is a stack of layers, of kernels {node.kernel.shape}: stack them along first axes."
            )
        if fits and owners[kernels[linear[-1]]] > 1:
            raise ValueError(f"{linear[-1]} shares its kernel with another layer, whose output would change: untie it.")
        return LowRank(node, int(rank), alpha, rngs=rngs) if fits else node

    adapted = nnx.recursive_map(adapt, copy_module(model))
    if base_dtype is not None:
        _narrow(adapted, base_dtype)
    if lost := [pattern for pattern in wanted if pattern not in fitted]:
        raise ValueError(f"targets = {lost[0]!r} fits no linear layer: the model has {', '.join(linear) or 'none'}.")
    return adapted


def merge_lora(model: nnx.Module) -> nnx.Module:
    """Returns a copy of a module with each :class:`LowRank` merged into its base: the layers that were there before.

    Raises ValueError where there is none.

    >>> model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    >>> type(merge_lora(lora(model, 2))).__name__
    'Linear'
    """
    if not any(isinstance(node, LowRank) for _, node in nnx.iter_graph(model)):
        raise ValueError("model has no adapters of jaxacct_recipes.lora: there is nothing to merge.")
    merge = lambda _, node: node.merge() if isinstance(node, LowRank) else node  # noqa: E731
    return nnx.recursive_map(merge, copy_module(model))


def _narrow(model: nnx.Module, dtype: Any) -> None:
    """Writes a module's parameters, except adapters, in that dtype.

    For int8 these are the kernels beside adapters; all other parameters become bfloat16.
    """
    nodes = [node for _, node in nnx.iter_graph(model)]
    adapted = [node for node in nodes if isinstance(node, LowRank)] if jnp.dtype(dtype) == jnp.int8 else []
    rounded = {id(node.base.kernel) for node in adapted}
    # This loop leaves out adapters, and the kernels beside them, which are rounded below.
    for leaf in nodes:
        if not isinstance(leaf, nnx.Param) or isinstance(leaf, nnx.LoRAParam) or id(leaf) in rounded:
            continue
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            leaf.set_value(leaf[...].astype(jnp.bfloat16 if adapted else dtype))
    for node in adapted:
        node.round_base()


def _of_one(layer: Any) -> tuple[int, ...]:
    """Returns the shape of one layer's kernel, of a linear layer or of a stack of them."""
    inside, outside = (size if isinstance(size, tuple) else (size,) for size in (layer.in_features, layer.out_features))
    return (*inside, *outside)


def _stack(layer: Any) -> tuple[int, ...]:
    """Returns the sizes of a stack of linear layers along its first axes; () for a single layer."""
    shape = layer.kernel.shape
    return shape[: len(shape) - len(_of_one(layer))]


def _contracted_axes(layer: Any) -> int:
    """Returns how many last axes a linear layer sums over; 0 where it sums over others."""
    if isinstance(layer, nnx.Linear):
        return 1
    axes = layer.axis if isinstance(layer.axis, tuple) else (layer.axis,)
    return len(axes) if not layer.batch_axis and axes == tuple(range(-len(axes), 0)) else 0
