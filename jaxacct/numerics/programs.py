"""Programs: compiled functions for eager calls, and the choice of arithmetic where a program is lowered.

The first answer takes mostly compilation. On a CPU cheap code generation (:data:`jaxacct.numerics.elementary.FAST`)
takes a third of the time of JAX's default, for a program that runs up to three times as long: the right trade for
single answers, which take a millisecond. Programs stay in memory; across processes JAX's persistent compilation cache
keeps them, which the command ``jaxacct`` switches on and Python programs may (``jax_compilation_cache_dir``). Inside a
caller's trace a program becomes part of the caller's, and is compiled as that is.

Bounds hold for either: they assume of arithmetic and of elementary functions only what
:mod:`jaxacct.numerics.elementary` checks of a compiler before the first program that it made is run. In reading order:

- :class:`Program`, a function compiled for eager calls,
- :func:`lower_later`, a function that is traced where it is lowered,
- :func:`by_platform`, which gives each platform its arithmetic.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun, unmapped_aval
from jax.interpreters import ad, batching, mlir

from jaxacct.numerics import elementary
from jaxacct.numerics.arithmetic import FLOAT64, arithmetic, float64_elsewhere, is_decided, platform
from jaxacct.numerics.elementary import By
from jaxacct.numerics.elementary_float32 import LARGEST, TINY
from jaxacct.numerics.float32 import as_float32
from jaxacct.numerics.pytrees import is_concrete

Result = TypeVar("Result")

_programs: WeakSet[Program[Any]] = WeakSet()
"""All programs in use, for :func:`forget`."""


@overload
def compiled(function: Callable[..., Result]) -> Program[Result]: ...


@overload
def compiled(
    function: None = None, *, static: tuple[str, ...] = (), by: By = By.XLA_FAST
) -> Callable[[Callable[..., Result]], Program[Result]]: ...


def compiled(function: Any = None, *, static: tuple[str, ...] = (), by: By = By.XLA_FAST) -> Any:
    """Returns ``function`` as a :class:`Program`; a decorator, to be used in place of ``jax.jit``.

    Args:
        function: function of arrays and of static arguments.
        static: names of the arguments that are part of the program, hashable.
        by: the way that eager calls in float64 on a CPU are compiled; By.XLA, JAX's default, where running outweighs
            compiling.
    """
    return functools.partial(Program, static=static, by=by) if function is None else Program(function, static, by)


def forget() -> None:
    """Drops every program from memory, as ``jax.clear_caches`` drops those of JAX."""
    for program in _programs:
        program.forget()


class Program(Generic[Result]):
    """A function that is one program for all arguments of a shape; inside a trace it becomes part of the trace."""

    def __init__(self, function: Callable[..., Result], static: tuple[str, ...] = (), by: By = By.XLA_FAST) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._by = by
        self._default: Any = jax.jit(function, static_argnames=static)
        self._fast: Any = jax.jit(function, static_argnames=static, compiler_options=elementary.FAST)
        _programs.add(self)

    def forget(self) -> None:
        """Drops its compiled programs from memory."""
        for jitted in (self._default, self._fast):
            jitted.clear_cache()

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        # Within a trace the caller's program compiles this one, in JAX's default way.
        traced = not is_concrete(args, kwargs)
        ways = elementary.check() if jax.dtypes.canonicalize_dtype(np.float64) == np.float64 else ()
        fast = not traced and self._by is By.XLA_FAST and By.XLA_FAST in ways
        # Concrete arguments are computed with inside a caller's trace, too: they are constants there.
        with contextlib.nullcontext() if traced else jax.core.eval_context():
            result: Result = (self._fast if fast else self._default)(*args, **kwargs)
        return result


# ----------------------------------------------------------------------------------------------------
# Lowering: a function that is traced where it is lowered, and only for the platforms of the program
#
# The arithmetic of such a program is decided there: for float32 a function is traced anew, with certificates of its
# roundings. A batch, a derivative and its transpose are functions in their turn, made before the change to float32: so
# they are those of the formula and not of its roundings.
# ----------------------------------------------------------------------------------------------------

Function = Callable[..., tuple[Any, ...]]
"""A function of arrays, to a tuple of arrays."""

_later_p = Primitive("later")
"""Primitive of :func:`lower_later`: its parameters are the function, the results' types and the arithmetic."""

_later_p.multiple_results = True


def lower_later(function: Function, results: tuple[Any, ...], *args: Any, narrow: bool = False) -> list[Any]:
    """Returns the arrays that ``function`` gives of arrays, of known types; it is traced where it is lowered.

    It is traced with float64 enabled, which with ``narrow`` becomes float32.
    """
    arrays: list[Any] = _later_p.bind(*args, function=function, results=results, narrow=narrow)
    return arrays


def _run(*args: Any, function: Function, results: Any, narrow: bool) -> list[Any]:
    with jax.enable_x64(True), float64_elsewhere():
        return list((as_float32(function) if narrow else function)(*args))


def _batch(args: Any, dims: Any, *, function: Function, results: Any, narrow: bool) -> tuple[Any, Any]:
    # A batch is the vmapped function, traced later in its turn: so a function's own form is of the batch as a whole.
    axes = tuple(dim if dim is None else int(dim) for dim in dims)
    (size, *_) = {arg.shape[axis] for arg, axis in zip(args, axes, strict=True) if axis is not None}
    wider = tuple(unmapped_aval(size, 0, result) for result in results)
    return lower_later(jax.vmap(function, in_axes=axes), wider, *args, narrow=narrow), [0] * len(wider)


def _is_real(kind: Any) -> bool:
    return bool(jnp.issubdtype(kind.dtype, jnp.floating))


def _tangents(function: Function, moves: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    """Returns the derivatives of the real results; ``args`` are those of ``function``, and the tangents of some."""
    count = len(moves)
    moving = iter(args[count:])
    every = tuple(
        next(moving) if move else np.zeros(np.shape(arg), arg.dtype if _is_real(arg) else jax.dtypes.float0)
        for arg, move in zip(args[:count], moves, strict=True)
    )
    values, tangents = jax.jvp(function, args[:count], every)
    return tuple(tangent for value, tangent in zip(values, tangents, strict=True) if _is_real(value))


def _derive(primals: Any, tangents: Any, *, function: Function, results: Any, narrow: bool) -> tuple[Any, Any]:
    # Values and derivatives are two operations, as the one that is linear in the tangents has a transpose.
    values = lower_later(function, results, *primals, narrow=narrow)
    moves = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    moving = [tangent for tangent in tangents if not isinstance(tangent, ad.Zero)]
    of_reals = tuple(result for result in results if _is_real(result))
    derivatives = iter(
        lower_later(functools.partial(_tangents, function, moves), of_reals, *primals, *moving, narrow=narrow)
    )
    return values, [next(derivatives) if _is_real(result) else ad.Zero(result.to_tangent_aval()) for result in results]


def _cotangents(function: Function, is_linear: tuple[bool, ...], types: Any, *args: Any) -> tuple[Any, ...]:
    """Returns the transpose of a function in its linear arguments; ``args`` are the others, and the cotangents."""
    count = len(is_linear) - sum(is_linear)

    def of_linear(*linear: Any) -> tuple[Any, ...]:
        moving, fixed = iter(linear), iter(args[:count])
        return tuple(function(*(next(moving) if is_it else next(fixed) for is_it in is_linear)))

    return tuple(jax.linear_transpose(of_linear, *types)(tuple(args[count:])))


def _transpose(cotangents: Any, *args: Any, function: Function, results: Any, narrow: bool) -> list[Any]:
    is_linear = tuple(map(ad.is_undefined_primal, args))
    types = tuple(arg.aval for arg in args if ad.is_undefined_primal(arg))
    known = [arg for arg in args if not ad.is_undefined_primal(arg)]
    cotangents_of_results = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    transpose = functools.partial(_cotangents, function, is_linear, types)
    transposed = iter(lower_later(transpose, types, *known, *cotangents_of_results, narrow=narrow))
    return [next(transposed) if is_it else None for is_it in is_linear]


@_later_p.def_abstract_eval
def _types_of(*args: Any, function: Any, results: tuple[Any, ...], narrow: bool) -> list[Any]:
    return list(results)


_later_p.def_impl(jax.jit(_run, static_argnames=("function", "results", "narrow")))
batching.primitive_batchers[_later_p] = _batch
ad.primitive_jvps[_later_p] = _derive
ad.primitive_transposes[_later_p] = _transpose
mlir.register_lowering(_later_p, mlir.lower_fun(_run, multiple_results=True))


# ----------------------------------------------------------------------------------------------------
# Platforms: the arithmetic of a program, decided where it is lowered, for the platform that it will run on
#
# A TPU has no float64, though it takes programs of it: XLA makes them of pairs of float32, for which it promises no
# error bound. There a function is traced once more, in float32, whose roundings are counted
# (:mod:`jaxacct.numerics.float32`). Neither the host that traces nor its devices are asked, so an export made on a CPU
# for a TPU is the program that a TPU would have made. Only the programs of such platforms are traced.
# ----------------------------------------------------------------------------------------------------


def by_platform(
    function: Callable[..., Any], *args: Any, at_once: Callable[..., Any] | None = None, result: Any = None
) -> Any:
    """Returns ``function(*args)``, in float32 on a TPU and in float64 elsewhere; inside the float64 scope.

    Where a program is traced for another arithmetic already, that one is kept.

    Args:
        function: function of pytrees of arrays, to one.
        args: its arguments.
        at_once: the same function in another form, for devices other than CPUs.
        result: the result's shapes and types. If it is given, nothing is traced before it is lowered.
    """
    if arithmetic() != FLOAT64 or (is_decided() and at_once is None):
        return (at_once or function)(*args)
    leaves_of_arguments = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
    if result is None:
        with float64_elsewhere():
            closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
        types, native = tuple(closed.out_avals), jaxpr_as_fun(closed)
    else:
        types = _types(result)

        def native(*leaves: Any) -> Any:
            return lower_later(_flat(function, args), types, *leaves)

    def elsewhere(*leaves: Any) -> tuple[Any, ...]:
        return tuple(native(*leaves) if at_once is None else lower_later(_flat(at_once, args), types, *leaves))

    def narrow(*leaves: Any) -> tuple[Any, ...]:
        # Traced numbers came in float32.
        held = [
            as_held(one) if is_concrete(one) else leaf for one, leaf in zip(leaves_of_arguments, leaves, strict=True)
        ]
        return tuple(lower_later(_flat(at_once or function, args), types, *held, narrow=True))

    # Other forms are traced only where they are lowered for their platform; the native one may be a finished trace.
    forms = {} if is_decided() else {"tpu": narrow}
    if at_once is not None:
        forms["cpu"] = lambda *leaves: tuple(native(*leaves))
    results = jax.lax.platform_dependent(*leaves_of_arguments, default=elsewhere, **forms)
    return jax.tree.unflatten(jax.tree.structure(result), results)


def by_float32(function: Callable[..., Any], *args: Any, result: Any) -> Any:
    """Returns ``function(*args)`` in float32, on whatever device; inside the float64 scope of a trace.

    The program is traced where it is lowered; ``result`` has the result's structure and types.
    """
    leaves = map(jnp.asarray, jax.tree.leaves(args))
    results = lower_later(_flat(function, args), _types(result), *leaves, narrow=True)
    return jax.tree.unflatten(jax.tree.structure(result), results)


def as_held(value: Any) -> Any:
    """Returns concrete numbers, with NaN, which is not known, for those beyond float32's range: 0 would be another."""
    if np.asarray(value).dtype != np.float64:
        return value
    numbers = np.asarray(value)
    size = np.abs(numbers)
    is_held = (size == 0) | ((size >= TINY) & (size <= LARGEST)) | ~np.isfinite(size)
    return value if np.all(is_held) else np.where(is_held, numbers, np.nan)


def _types(result: Any) -> tuple[Any, ...]:
    """Returns the types of the leaves of a pytree of arrays, or of their shapes and types."""
    zeros = jax.make_jaxpr(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), result))()
    return tuple(zeros.out_avals)


def asks_host(*args: Any) -> bool:
    """Returns whether concrete numbers are on a device without float64: the CPU beside it computes with them.

    A traced program does not depend on the device: :func:`by_platform`.
    """
    return platform() == "tpu" and is_concrete(args) and not is_decided()


def _flat(function: Callable[..., Any], args: Any) -> Callable[..., tuple[Any, ...]]:
    """Returns ``function`` as a function from the leaves of such arguments to the leaves of its result."""
    structure = jax.tree.structure(args)
    return lambda *leaves: tuple(jax.tree.leaves(function(*jax.tree.unflatten(structure, leaves))))
