"""Functions of float64 arrays, compiled once for all values of a shape and usable from float32 programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxacct import elementary
from jaxacct.platforms import outward
from jaxacct.precision import exact_float64, in_float64, is_concrete, outside
from jaxacct.programs import Program


def kernel(
    function: Callable[..., Any] | None = None, *, static: int = 0, safe: Callable[[Any], Any] = outward
) -> Callable[..., Any]:
    """Returns ``function`` compiled once for all values of one shape, and entered in float64.

    Numbers of every type come in as float64, lest an int and a float be compiled apart; concrete results leave as NumPy
    arrays. Arguments are positional; the last ``static`` of them are hashable and part of the program. ``safe`` is that
    of :func:`.precision.in_float64`.
    """
    if function is None:
        return functools.partial(kernel, static=static, safe=safe)
    count = function.__code__.co_argcount
    names = function.__code__.co_varnames[count - static : count]
    program: Program[Any] = Program(function, names)

    @functools.wraps(function)
    @in_float64(safe=safe, by_programs=True)
    def run(*args: Any) -> Any:
        arrays, rest = args[: count - static], args[count - static :]
        leaves = jax.tree.map(float64_leaf, arrays)
        if is_concrete(leaves):
            return outside(program(*leaves, *rest))
        # Part of somebody else's trace, in which what is known stays so: it decides what need not be traced.
        elementary.check()
        return outside(function(*leaves, *rest))

    return run


def float64_leaf(leaf: Any) -> Any:
    """Returns a number or an array as float64, inside the scope: of NumPy where it is known."""
    return exact_float64(leaf) if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf, np.float64)
