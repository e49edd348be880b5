"""Which arithmetic a program is made of, decided where it is lowered: for the platform that it will run on.

A TPU has no float64, though it takes programs of it: XLA makes them of pairs of float32, of which it promises nothing.
There a function is traced once more, for pairs of which the roundings are counted (:mod:`jaxacct.float_pairs`). Neither
the host that traces nor its devices are asked, so an export made on a CPU for a TPU is what a TPU would have made. What
no platform asked for is never traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun, unmapped_aval
from jax.interpreters import batching, mlir

from jaxacct.arithmetic import FLOAT64, PAIR, Chosen, arithmetic, float64_elsewhere, platform
from jaxacct.float_pairs.interpret import in_pairs
from jaxacct.precision import is_concrete


def by_platform(function: Callable[..., Any], *args: Any, at_once: Callable[..., Any] | None = None) -> Any:
    """Returns ``function(*args)``, in pairs of float32 on a TPU and in float64 elsewhere. Inside the float64 scope.

    Where a program is traced for another arithmetic already, it is that.

    Args:
        function: of pytrees of arrays, to one.
        args: those.
        at_once: the same function in another form, for devices other than CPUs.
    """
    if arithmetic() != FLOAT64:
        return (at_once or function)(*args)
    with float64_elsewhere():
        closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
    leaves, types = jax.tree.leaves(args), tuple(closed.out_avals)

    def native(*leaves: Any) -> tuple[Any, ...]:
        return tuple(jaxpr_as_fun(closed)(*leaves))

    def elsewhere(*leaves: Any) -> tuple[Any, ...]:
        return native(*leaves) if at_once is None else tuple(later(_flat(at_once, args), types, *leaves))

    def pairs(*leaves: Any) -> tuple[Any, ...]:
        return tuple(later(_flat(in_pairs(at_once or function), args), types, *leaves))

    given = [jnp.asarray(leaf) for leaf in leaves]
    found = jax.lax.platform_dependent(*given, cpu=native, tpu=pairs, default=elsewhere)
    return jax.tree.unflatten(jax.tree.structure(result), found)


def needs_pairs(chosen: Chosen, *args: Any) -> bool:
    """Returns whether pairs are asked for by name, or a number on a device that has no float64.

    A program that is traced needs no look at the device: :func:`by_platform`.
    """
    return chosen == "pair" or (platform() == "tpu" and is_concrete(args) and arithmetic() != PAIR)


def by_pairs(function: Callable[..., Any], *args: Any) -> Any:
    """Returns ``function(*args)`` in pairs of float32, on whatever device. Inside the float64 scope.

    Concrete arguments are worked off operation by operation; a trace is traced anew where it is lowered. That has no
    derivatives.
    """
    if is_concrete(args):
        return in_pairs(function, stepwise=True)(*args)
    types, result = jax.make_jaxpr(function, return_shape=True)(*args)
    found = later(_flat(in_pairs(function), args), tuple(types.out_avals), *map(jnp.asarray, jax.tree.leaves(args)))
    return jax.tree.unflatten(jax.tree.structure(result), found)


def _flat(function: Callable[..., Any], args: Any) -> Callable[..., tuple[Any, ...]]:
    """Returns ``function`` as one of the leaves of such arguments, to the leaves of its result."""
    structure = jax.tree.structure(args)
    return lambda *leaves: tuple(jax.tree.leaves(function(*jax.tree.unflatten(structure, leaves))))


_later_p = Primitive("later")
_later_p.multiple_results = True


def later(function: Callable[..., Any], results: tuple[Any, ...], *args: Any) -> list[Any]:
    """Returns the arrays that ``function`` gives of arrays, of known types; it is traced where it is lowered.

    With float64 enabled, and not at all for platforms that the program is not lowered for.
    """
    found: list[Any] = _later_p.bind(*args, function=function, results=results)
    return found


def _run(*args: Any, function: Callable[..., Any], results: Any) -> list[Any]:
    with jax.enable_x64(True):
        return list(function(*args))


def _batched(args: Any, dims: Any, *, function: Callable[..., Any], results: Any) -> tuple[Any, Any]:
    axes = tuple(dim if dim is None else int(dim) for dim in dims)
    (size, *_) = {arg.shape[axis] for arg, axis in zip(args, axes, strict=True) if axis is not None}
    wider = tuple(unmapped_aval(size, 0, result) for result in results)
    return later(jax.vmap(function, in_axes=axes), wider, *args), [0] * len(wider)


@_later_p.def_abstract_eval
def _types_of(*args: Any, function: Any, results: tuple[Any, ...]) -> list[Any]:
    return list(results)


_later_p.def_impl(jax.jit(_run, static_argnames=("function", "results")))
batching.primitive_batchers[_later_p] = _batched
mlir.register_lowering(_later_p, mlir.lower_fun(_run, multiple_results=True))
