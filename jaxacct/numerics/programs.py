"""The library's own programs: what an eager call runs is one jitted function, compiled with cheap code generation.

A first answer is mostly compilation. On a CPU cheap code generation (:data:`jaxacct.numerics.elementary.FAST`) takes a
third of the time of JAX's default, for a program that runs up to three times as long: the right trade for single
answers, which take a millisecond. Programs stay in memory; across processes JAX's persistent compilation cache keeps
them, which the command ``jaxacct`` switches on and Python programs may (``jax_compilation_cache_dir``). Inside somebody
else's trace a program is traced into what calls it, and compiled as that is.

Bounds hold for either: they assume of arithmetic and of elementary functions only what
:mod:`jaxacct.numerics.elementary` asks of a compiler before the first program that it made is run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

import jax
import numpy as np

from jaxacct.numerics import elementary
from jaxacct.numerics.arithmetic import platform
from jaxacct.numerics.elementary import By

Result = TypeVar("Result")

_programs: WeakSet[Program[Any]] = WeakSet()


@overload
def compiled(function: Callable[..., Result]) -> Program[Result]: ...


@overload
def compiled(
    function: None = None, *, static: tuple[str, ...] = (), by: By = By.XLA_FAST
) -> Callable[[Callable[..., Result]], Program[Result]]: ...


def compiled(function: Any = None, *, static: tuple[str, ...] = (), by: By = By.XLA_FAST) -> Any:
    """Returns ``function`` as a :class:`Program`; to be used where ``jax.jit`` would be, as a decorator.

    Args:
        function: of arrays and of what is static.
        static: names of the arguments that are part of the program, hashable.
        by: how eager calls on a CPU are compiled; By.XLA, as JAX does by default, where running outweighs compiling.
    """
    return functools.partial(Program, static=static, by=by) if function is None else Program(function, static, by)


def forget() -> None:
    """Drops every program from memory, as ``jax.clear_caches`` does those of JAX."""
    for program in _programs:
        program.forget()


class Program(Generic[Result]):
    """A function that is one program for arguments of a shape; inside a trace it is part of what is traced."""

    def __init__(self, function: Callable[..., Result], static: tuple[str, ...] = (), by: By = By.XLA_FAST) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._by = by
        self._default: Any = jax.jit(function, static_argnames=static)
        self._fast: Any = jax.jit(function, static_argnames=static, compiler_options=elementary.FAST)
        _programs.add(self)

    def forget(self) -> None:
        """Drops what is in memory."""
        for jitted in (self._default, self._fast):
            jitted.clear_cache()

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        found: Result
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        fast = not traced and self._by is By.XLA_FAST and platform() == "cpu" and knows_fast()
        if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
            elementary.check(By.XLA_FAST if fast else By.XLA)
        if traced:
            found = self._default(*args, **kwargs)
            return found
        # Of numbers within somebody else's trace, too: they are constants there.
        with jax.core.eval_context(), elementary.running():
            found = (self._fast if fast else self._default)(*args, **kwargs)
        return found


@functools.cache
def knows_fast() -> bool:
    """Returns whether this version of XLA knows the options of cheap code generation."""
    try:
        jax.jit(lambda: 0).lower().compile(elementary.FAST)
    except (RuntimeError, ValueError):
        return False
    return True
