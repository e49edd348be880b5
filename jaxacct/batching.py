"""Batches for ``jax.vmap``: pytrees of one structure as one, and how the entries of one are run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.arithmetic import platform, with_pair_form
from jaxacct.by_work import in_blocks
from jaxacct.elementary import By
from jaxacct.platforms import by_platform
from jaxacct.precision import is_concrete
from jaxacct.programs import Program

Tree = TypeVar("Tree")
Result = TypeVar("Result")


def stack(*trees: Tree) -> Tree:
    """Returns pytrees of equal structure and shapes as one, with a new leading axis.

    >>> stack({"a": 1.0}, {"a": 2.0})["a"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def rows(values: Any, size: int) -> list[Any]:
    """Returns numbers (n,) in rows of one size, the last of them repeated; traced ones, of a known number, in one.

    >>> [row.tolist() for row in rows([1.0, 2.0, 3.0], 2)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    if isinstance(values, jax.core.Tracer):
        return [values]
    values = np.asarray(values, np.float64)
    return list(np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size))


MANY = 4096
"""Entries from which on a batch's program is compiled as JAX does by default. Cheap code generation, below, takes a
third of the time and makes entries up to three times slower. Speed only."""


def one_by_one(
    function: Callable[..., Result], *static: Any, settled: Callable[..., Any] | None = None, result: Any = None
) -> Callable[..., Result]:
    """Returns ``function`` of ``static`` and more, whose batches a CPU works off one entry after the other.

    Other devices do so side by side. So the arrays of an entry stay in the cache, its loops end when it is done and not
    when the slowest is, and only the branch that it takes is run. Batches may be traced after a scope is left: a
    function that needs one enters it.

    Args:
        function: defined in a module, not in a function: a batch that nobody else traces is a program of its own.
        static: hashable.
        settled: of the further arguments, whether the first of them is the result as it stands. It is asked of batches
            that nobody else traces; where it holds for all entries, nothing is run or compiled.
        result: of what shapes and types the result is, if that is known. Where a batch is all that there is, one entry
            is then not traced for nothing.
    """
    call = functools.partial(function, *static)
    wide = jax.dtypes.canonicalize_dtype(float) == jnp.float64  # here, and where a batch is traced later

    def alone(*args: Any) -> Any:
        with jax.enable_x64(wide):
            return by_platform(call, *args, result=result)

    single: Any = jax.custom_batching.custom_vmap(alone)

    @single.def_vmap
    def batch(size: int, is_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        which, concrete = tuple(jax.tree.leaves(is_batched)), is_concrete(args)
        if settled is not None and concrete and np.all(np.asarray(settled(*args))):
            return args[0], is_batched[0]
        with jax.enable_x64(wide):
            if concrete and platform() == "cpu":
                found = (_run_many if size >= MANY else _run_few)(function, static, which, args)
            else:
                found = (_by_platform if concrete else _side_by_side)(function, static, which, args)
        return found, jax.tree.map(lambda _: True, found)

    # What is traced for pairs is part of one of these programs already.
    return with_pair_form(single, traced=call)


def _side_by_side(function: Callable[..., Any], static: tuple[Any, ...], which: tuple[bool, ...], args: Any) -> Any:
    """Returns a batch's results: entry by entry on a CPU, and in blocks on other devices."""
    leaves, structure = jax.tree.flatten(args)
    size = next(leaf.shape[0] for leaf, is_batched in zip(leaves, which, strict=True) if is_batched)
    is_batched = jax.tree.unflatten(structure, which)
    at_once = functools.partial(in_blocks, functools.partial(function, *static), size, is_batched)
    return by_platform(lambda *args: _map(function, static, which, args), *args, at_once=at_once)


_by_platform = jax.jit(_side_by_side, static_argnames=("function", "static", "which"))


def _map(function: Callable[..., Any], static: tuple[Any, ...], which: tuple[bool, ...], args: Any) -> Any:
    leaves, structure = jax.tree.flatten(args)

    def entry(batched: list[Any]) -> Any:
        own = iter(batched)
        every = [next(own) if is_batched else leaf for leaf, is_batched in zip(leaves, which, strict=True)]
        return nested(*jax.tree.unflatten(structure, every))

    nested: Any = jax.custom_batching.custom_vmap(functools.partial(function, *static))

    @nested.def_vmap
    def batch(size: int, is_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        found = _map(function, static, tuple(jax.tree.leaves(is_batched)), args)
        return found, jax.tree.map(lambda _: True, found)

    return jax.lax.map(entry, [leaf for leaf, is_batched in zip(leaves, which, strict=True) if is_batched])


_run_few = Program(_map, static=("function", "static", "which"))
_run_many = Program(_map, static=("function", "static", "which"), by=By.XLA)
