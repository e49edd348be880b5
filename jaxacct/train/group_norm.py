"""Group normalization in the place of batch normalization, which has no gradient of one example."""

from __future__ import annotations

import math
from typing import Any

import jax
from flax import nnx


class ExampleGroupNorm(nnx.GroupNorm):
    """``nnx.GroupNorm`` of one example, or of several along a first axis, which are never mixed.

    Flax's own always takes the first axis for the batch's: of one image without it, each row would be an example.

    Args:
        num_features: in the last axis.
        num_groups: that are normalized together, each over all other axes of an example.
        example_axes: how many axes one example has here; features are the last.
        **options: as of ``nnx.GroupNorm``.

    >>> ExampleGroupNorm(4, 2, example_axes=3, rngs=nnx.Rngs(0))(jax.numpy.ones((5, 5, 4))).shape
    (5, 5, 4)
    """

    def __init__(self, num_features: int, num_groups: int, *, example_axes: int, **options: Any) -> None:
        super().__init__(num_features, num_groups, **options)
        self.example_axes = example_axes

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns ``x``, normalized; of the same shape.

        ``use_running_average``: for calls as of ``nnx.BatchNorm``; it says nothing here, where there is no average.
        """
        if x.ndim == self.example_axes:
            return super().__call__(x[None], mask=None if mask is None else mask[None])[0]
        if x.ndim != self.example_axes + 1:
            raise ValueError(
                f"GroupNorm got an array of shape {x.shape}: its examples have {self.example_axes} axes, and one more "
                "in a batch. Give to_group_norm the example_axes that are there."
            )
        return super().__call__(x, mask=mask)


def to_group_norm(model: nnx.Module, groups: int = 32, *, example_axes: int = 3) -> nnx.Module:
    """Returns a copy of ``model`` with group normalization wherever it has ``nnx.BatchNorm``; all else stays as it is.

    Args:
        model: not modified.
        groups: of features that are normalized together; the greatest common divisor with their number where it does
            not divide that.
        example_axes: axes of one example where it is normalized: 3 for images (height, width, features), 1 behind
            dense layers. Convert parts with different ones by themselves.

    Scales and biases are kept; running averages are left out. The function that the model computes is another: a
    trained one has to be trained again.

    Raises ValueError where the features that are normalized are not in the last axis, or groups behind dense layers
    are of one feature each.

    Source: Wu and He (2018), "Group normalization".

    >>> model = nnx.Sequential(nnx.Conv(3, 8, (3, 3), rngs=nnx.Rngs(0)), nnx.BatchNorm(8, rngs=nnx.Rngs(0)))
    >>> to_group_norm(model, groups=4).layers[1].num_groups
    4
    """
    copied = nnx.clone(model)
    made: dict[int, ExampleGroupNorm] = {}  # one that is shared stays shared

    def group_norm(norm: nnx.BatchNorm) -> ExampleGroupNorm:
        if id(norm) not in made:
            made[id(norm)] = _group_norm(norm, groups, example_axes)
        return made[id(norm)]

    if isinstance(copied, nnx.BatchNorm):
        return group_norm(copied)
    for _, node in list(nnx.iter_graph(copied)):
        if isinstance(node, nnx.Pytree):
            for name, child in list(vars(node).items()):
                if isinstance(child, nnx.BatchNorm):
                    setattr(node, name, group_norm(child))
    return copied


def _group_norm(norm: nnx.BatchNorm, groups: int, example_axes: int) -> ExampleGroupNorm:
    if norm.axis != -1:
        raise ValueError(f"nnx.BatchNorm with axis = {norm.axis}: groups are made of features in the last axis, -1.")
    count = math.gcd(groups, norm.num_features)
    if example_axes == 1 and count == norm.num_features:
        raise ValueError(
            f"groups = {groups} puts each of {norm.num_features} features into a group of its own, and normalizes it "
            f"to 0 where an example has no other axes: give groups = {max(norm.num_features // 8, 1)} or another "
            "number well below theirs."
        )
    new = ExampleGroupNorm(
        norm.num_features, count, example_axes=example_axes, epsilon=norm.epsilon,
        dtype=norm.dtype, param_dtype=norm.param_dtype, use_bias=norm.use_bias, use_scale=norm.use_scale,
        use_fast_variance=norm.use_fast_variance, promote_dtype=norm.promote_dtype, rngs=nnx.Rngs(0),
    )  # fmt: skip
    new.scale, new.bias = norm.scale, norm.bias
    return new
