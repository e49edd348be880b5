"""Pytrees: registered dataclasses that JAX tells apart, rows of stacked trees, and the counts of a traced scan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from jaxacct.numerics.python_values import converting


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values that a traced ``lax.scan`` takes, before its rows.

    >>> import jax, jax.numpy as jnp
    >>> looped = lambda k, c, rows: jax.lax.scan(lambda c, row: (c + k * row, c), c, rows)
    >>> scan_counts(jax.make_jaxpr(looped)(2.0, 0.0, jnp.ones(3)).eqns[-1].params)
    (1, 1)
    """
    if "num_carry" in params:  # until JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


# ----------------------------------------------------------------------------------------------------
# Dataclasses as pytrees that JAX tells apart
#
# ``jax.tree_util.register_dataclass`` makes a node whose structure JAX (0.10.2) compares *without its class*: two
# classes with as many fields have equal structures, of different hashes. JAX's own caches look for keys by a few bits
# of the hash and compare then, so a compiled function of the one is now and then run on the other: about once in 64
# pairs and processes. ``Gaussian(0.02)`` in the place of ``PureDP(0.02)``, or a bound on delta in the place of one on
# epsilon, would then be reported. Nodes registered by functions are compared by their class. So are those of
# :func:`register_dataclass` here; accountants refuse dataclasses that are registered otherwise
# (:func:`check_told_apart`).
# ----------------------------------------------------------------------------------------------------

Class = TypeVar("Class", bound=type)


def register_dataclass(cls: Class) -> Class:
    """Registers a dataclass as a pytree, and returns it: a decorator, to stand above ``@dataclass``.

    Fields are children, in their order; those declared as ``field(metadata={"static": True})`` are part of the
    structure and must be hashable. It differs from ``jax.tree_util.register_dataclass`` as stated above, and in two
    more ways. Numbers of NumPy and JAX that are given for static fields become those of Python
    (:mod:`.python_values`): what equals has one program. And JAX rebuilds an instance without its constructor, so that
    anything may stand in its fields, as pytrees of masks, gradients, names or shapes want: checks are the
    constructor's. A field that ``__post_init__`` fills in (``field(init=False)``) is a child like the others, or
    static, unless it has a default, which is the class's.

    >>> @register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Pair:
    ...     first: float
    ...     second: float
    >>> jax.tree.leaves(Pair(1.0, 2.0))
    [1.0, 2.0]
    """
    children, settings = _parts(cls)
    keys = tuple(map(GetAttrKey, children))

    def flatten(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(tree, name) for name in children), tuple(getattr(tree, name) for name in settings)

    def flatten_with_keys(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        leaves, fixed = flatten(tree)
        return tuple(zip(keys, leaves, strict=True)), fixed

    def unflatten(fixed: tuple[Any, ...], leaves: Any) -> Any:
        made: Any = object.__new__(cls)
        for names, values in ((children, leaves), (settings, fixed)):
            for name, value in zip(names, values, strict=True):
                object.__setattr__(made, name, value)
        return made

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return converting(cls, settings, is_strict=True)


def _parts(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the fields of a dataclass that are children, and of those that are static."""
    fields = [field for field in dataclasses.fields(cls) if field.init or field.default is dataclasses.MISSING]
    static = [field.name for field in fields if field.metadata.get("static", False)]
    return tuple(field.name for field in fields if field.name not in static), tuple(static)


def check_told_apart(value: Any) -> None:
    """Raises TypeError where a dataclass is registered such that JAX may take it for one of another class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_told_apart(type(value)):
        name = type(value).__name__
        raise TypeError(
            f"{name} is registered by jax.tree_util.register_dataclass: JAX compares such classes by their number of "
            f"fields alone, and may run on a {name} what was compiled for another. Put @jaxacct.register_dataclass "
            "above its @dataclass instead."
        )


@functools.cache
def _is_told_apart(cls: type) -> bool:
    """Returns whether the class's structures differ from those of another with the same fields."""
    children, static = _parts(cls)
    names = children + static
    other = dataclasses.make_dataclass("Other", names)
    jax.tree_util.register_dataclass(other, list(children), list(static))
    blank: Any = object.__new__(cls)
    another: Any = object.__new__(other)
    for name in names:
        for made in (blank, another):
            object.__setattr__(made, name, 0)
    structures: list[Any] = [jax.tree.structure(blank), jax.tree.structure(another)]
    return bool(structures[0] != structures[1])


def is_concrete(*trees) -> bool:
    """Returns whether no leaf of ``trees`` is a tracer, so that Python may look at the values."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def of_each(function: Callable[..., Any], in_axes: tuple[int | None, ...] = (0,)) -> Callable[..., Any]:
    """Returns ``jax.vmap`` of a function, except for axes of length 1, where it calls the function itself.

    Most compositions are of one loss, and tracing an operation under ``vmap`` takes three times as long.

    >>> import jax.numpy as jnp
    >>> of_each(lambda x, y: x + y, (0, None))(jnp.ones((1, 3)), 2.0).shape
    (1, 3)
    """
    batched = jax.vmap(function, in_axes)

    def each(*args: Any) -> Any:
        leaves = [leaf for axis, arg in zip(in_axes, args, strict=True) if axis == 0 for leaf in jax.tree.leaves(arg)]
        if any(jnp.shape(leaf)[:1] != (1,) for leaf in leaves):
            return batched(*args)
        entries = [
            arg if axis is None else jax.tree.map(lambda leaf: leaf.reshape(jnp.shape(leaf)[1:]), arg)
            for axis, arg in zip(in_axes, args, strict=True)
        ]
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*entries))

    return each


def each(part: tuple[Any, Any], function: Callable[..., Any], *args: Any) -> Any:
    """Returns ``function(pair, *args)`` for each row of a part, or for the part itself where its counts have no axis.

    >>> import jax.numpy as jnp
    >>> float(each((jnp.float32(2.0), jnp.float32(1.0)), lambda x, y: x + y, 3.0))
    5.0
    """
    pairs, counts = part
    return function(pairs, *args) if np.ndim(counts) == 0 else of_each(function, (0,) * (1 + len(args)))(pairs, *args)


def without_axes(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the parts, with the row axis removed from those that have one row."""
    return tuple(jax.tree.map(lambda leaf: leaf[0], part) if np.shape(part[1]) == (1,) else part for part in parts)
