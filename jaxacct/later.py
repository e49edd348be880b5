"""A function that is traced where it is lowered, and not at all for platforms that nobody asked for.

What such a program is made of is decided there: in pairs of float32 a function is traced anew, with certificates of
their roundings. A batch, a derivative and its transpose are functions in their turn, made before the change to pairs:
so they are those of the formula and not of its roundings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, unmapped_aval
from jax.interpreters import ad, batching, mlir

from jaxacct.arithmetic import float64_elsewhere
from jaxacct.float_pairs.interpret import as_pairs

Function = Callable[..., tuple[Any, ...]]
"""Of arrays, to some."""

_later_p = Primitive("later")
_later_p.multiple_results = True


def later(function: Function, results: tuple[Any, ...], *args: Any, pairs: bool = False) -> list[Any]:
    """Returns the arrays that ``function`` gives of arrays, of known types; it is traced where it is lowered.

    With float64 enabled, which in ``pairs`` is made of these.
    """
    found: list[Any] = _later_p.bind(*args, function=function, results=results, pairs=pairs)
    return found


def _run(*args: Any, function: Function, results: Any, pairs: bool) -> list[Any]:
    with jax.enable_x64(True), float64_elsewhere():
        return list((as_pairs(function) if pairs else function)(*args))


def _batched(args: Any, dims: Any, *, function: Function, results: Any, pairs: bool) -> tuple[Any, Any]:
    axes = tuple(dim if dim is None else int(dim) for dim in dims)
    (size, *_) = {arg.shape[axis] for arg, axis in zip(args, axes, strict=True) if axis is not None}
    wider = tuple(unmapped_aval(size, 0, result) for result in results)
    return later(jax.vmap(function, in_axes=axes), wider, *args, pairs=pairs), [0] * len(wider)


def _is_real(kind: Any) -> bool:
    return bool(jnp.issubdtype(kind.dtype, jnp.floating))


def _tangents(function: Function, moves: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    """Returns the derivatives of the real results; ``args`` are those of ``function``, and how some of them move."""
    count = len(moves)
    given = iter(args[count:])
    every = tuple(
        next(given) if move else np.zeros(np.shape(arg), arg.dtype if _is_real(arg) else jax.dtypes.float0)
        for arg, move in zip(args[:count], moves, strict=True)
    )
    values, tangents = jax.jvp(function, args[:count], every)
    return tuple(tangent for value, tangent in zip(values, tangents, strict=True) if _is_real(value))


def _derived(primals: Any, tangents: Any, *, function: Function, results: Any, pairs: bool) -> tuple[Any, Any]:
    # Apart from the values, so that what is linear in the tangents is an operation by itself.
    values = later(function, results, *primals, pairs=pairs)
    moves = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    given = [tangent for tangent in tangents if not isinstance(tangent, ad.Zero)]
    of_reals = tuple(result for result in results if _is_real(result))
    found = iter(later(functools.partial(_tangents, function, moves), of_reals, *primals, *given, pairs=pairs))
    return values, [next(found) if _is_real(result) else ad.Zero(result.to_tangent_aval()) for result in results]


def _cotangents(function: Function, is_linear: tuple[bool, ...], types: Any, *args: Any) -> tuple[Any, ...]:
    """Returns the transpose of a function in its linear arguments; ``args`` are the others, and the cotangents."""
    count = len(is_linear) - sum(is_linear)

    def of_linear(*linear: Any) -> tuple[Any, ...]:
        moving, fixed = iter(linear), iter(args[:count])
        return tuple(function(*(next(moving) if is_it else next(fixed) for is_it in is_linear)))

    return tuple(jax.linear_transpose(of_linear, *types)(tuple(args[count:])))


def _transposed(cotangents: Any, *args: Any, function: Function, results: Any, pairs: bool) -> list[Any]:
    is_linear = tuple(map(ad.is_undefined_primal, args))
    types = tuple(arg.aval for arg in args if ad.is_undefined_primal(arg))
    known = [arg for arg in args if not ad.is_undefined_primal(arg)]
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    transpose = functools.partial(_cotangents, function, is_linear, types)
    found = iter(later(transpose, types, *known, *given, pairs=pairs))
    return [next(found) if is_it else None for is_it in is_linear]


@_later_p.def_abstract_eval
def _types_of(*args: Any, function: Any, results: tuple[Any, ...], pairs: bool) -> list[Any]:
    return list(results)


_later_p.def_impl(jax.jit(_run, static_argnames=("function", "results", "pairs")))
batching.primitive_batchers[_later_p] = _batched
ad.primitive_jvps[_later_p] = _derived
ad.primitive_transposes[_later_p] = _transposed
mlir.register_lowering(_later_p, mlir.lower_fun(_run, multiple_results=True))
