"""Functions of float64 arrays run in float32, as a program for a TPU runs them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.numerics.programs import by_float32


def in_single(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as one program in float32; its arguments are float32 numbers, its results NumPy's float64."""

    def run(*args: Any) -> Any:
        with jax.enable_x64(True):
            return by_float32(function, *args, result=jax.eval_shape(function, *args))

    program = jax.jit(run)

    def ask(*args: Any) -> Any:
        with jax.enable_x64(True):
            given = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), args)
            return jax.tree.map(np.asarray, program(*given))

    return ask
