"""What a strategy is: a lower-triangular matrix C whose inverse correlates the noise of steps, row by row."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxacct.precision import is_concrete
from jaxacct.pytrees import register_dataclass
from jaxacct.strategies.pattern import Pattern

Step: TypeAlias = Int[Array, ""] | int
"""The number of a step, from 0; or a number of steps."""


@register_dataclass
@dataclass(frozen=True)
class NoiseState:
    """What a stream of correlated noise remembers between steps: a pytree for the trainer's state and checkpoints.

    Attributes:
        step (): number of rows streamed so far, int32.
        buffers: pytree like the parameters, with one more axis in front, that of the strategy's buffers; float32 at
            least. Sharded like the parameters, with the first axis whole.

    >>> from jaxacct.strategies import square_root
    >>> square_root(4).start(jnp.zeros(10)).buffers.shape
    (3, 10)
    """

    step: Int[Array, ""]
    buffers: PyTree


class Strategy(abc.ABC):
    """A strategy matrix C of the matrix mechanism: steps release ``x_t + (C^-1 z)_t`` in place of ``x_t + z_t``.

    x_t is the clipped sum of a step and z_t independent Gaussian noise. All that is released is a function of C x + z,
    row by row: a Gaussian mechanism whose sensitivity is that of C x (:meth:`sensitivity`). Prefix sums, and so what a
    model is after t steps, get the noise of A C^-1 in place of A, which may be far less (:func:`.squared_errors`).

    Streaming needs :attr:`buffers` copies of the noise, never all steps. With y = C^-1 z, row t of C y = z says that
    z_t is y_t times one number plus a combination of buffers, which hold what matters of the rows before. A subclass
    says which numbers, and what is kept: :meth:`entries` and :meth:`keep`. All are pure functions of noise and state:
    a restart that draws the same noise for the same step (keys by ``jax.random.fold_in(key, step)``) goes on as if
    there had been none. Numbers are float32's, and are used as they are, so that what is accounted for is the matrix
    that makes the noise, up to the rounding of the noise itself.

    Source: Li et al. (2015), "The matrix mechanism"; adaptive inputs, Denisov et al. (2022), "Improved differential
    privacy for SGD via optimal private linear operators on adaptive streams", and :class:`.MatrixMechanism`.
    """

    @property
    @abc.abstractmethod
    def buffers(self) -> int:
        """Number of copies of the noise that a stream remembers."""

    @abc.abstractmethod
    def entries(self, step: Step) -> tuple[Array, Array]:
        """Returns what row ``step`` of C has: its entry () on the diagonal, and factors (buffers,) of what is kept."""

    @abc.abstractmethod
    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        """Returns the buffers (buffers, ...) of one leaf after ``row`` (...)."""

    @abc.abstractmethod
    def sensitivity(self, pattern: Pattern) -> float:
        """Returns an upper bound on the L2 sensitivity of C x, rounding included; of inputs with norms of at most 1.

        Raises TypeError where the strategy is traced: bounds are of numbers, found on the host.
        """

    def bands(self, steps: int) -> int:
        """Returns a number b with C[i, j] = 0 for i - j >= b: below it steps share noise. All of them, if not told."""
        return steps

    def start(self, like: PyTree) -> NoiseState:
        """Returns the state before the first step, of noise like these arrays (or ``jax.ShapeDtypeStruct``)."""

        def empty(leaf: Any) -> Array:
            return jnp.zeros((self.buffers, *leaf.shape), _wide(leaf.dtype))

        return NoiseState(jnp.int32(0), jax.tree.map(empty, like))

    def correlate(self, noise: PyTree, state: NoiseState) -> tuple[PyTree, NoiseState]:
        """Returns the next row of C^-1 z and the state after it, ``noise`` being the next row of z."""
        own, factors = self.entries(state.step)

        def row(new: Array, kept: Array) -> Array:
            return (new.astype(kept.dtype) - combined(factors, kept)) / own.astype(kept.dtype)

        rows = jax.tree.map(row, noise, state.buffers)
        buffers = jax.tree.map(lambda kept, row: self.keep(kept, row, state.step), state.buffers, rows)
        return rows, NoiseState(state.step + 1, buffers)

    def after(self, steps: Step, draw: Callable[[Array], PyTree], like: PyTree) -> NoiseState:
        """Returns the state after some steps, recomputed from the noise ``draw(step)`` of each: never drawn anew."""

        def following(step: Array, state: NoiseState) -> NoiseState:
            return self.correlate(draw(step), state)[1]

        return jax.lax.fori_loop(0, steps, following, self.start(like))

    def solve(self, noise: PyTree) -> PyTree:
        """Returns C^-1 z, for arrays (steps, ...): what :meth:`correlate` gives one by one."""
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), noise)
        return jax.lax.scan(lambda state, row: self.correlate(row, state)[::-1], self.start(like), noise)[1]

    def multiply(self, rows: PyTree) -> PyTree:
        """Returns C x, for arrays (steps, ...)."""

        def one(state: NoiseState, rows: PyTree) -> tuple[NoiseState, PyTree]:
            own, factors = self.entries(state.step)

            def undone(row: Array, kept: Array) -> Array:
                return own.astype(kept.dtype) * row.astype(kept.dtype) + combined(factors, kept)

            noise = jax.tree.map(undone, rows, state.buffers)
            wide = jax.tree.map(lambda row, kept: row.astype(kept.dtype), rows, state.buffers)
            buffers = jax.tree.map(lambda kept, row: self.keep(kept, row, state.step), state.buffers, wide)
            return NoiseState(state.step + 1, buffers), noise

        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
        return jax.lax.scan(one, self.start(like), rows)[1]


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def combined(factors: Array, kept: Array) -> Array:
    """Returns the combination of the buffers; on no device by products of half precision."""
    # jnp.tensordot says which type it is to give, and that is cut to float32 where vmap meets it out of the scope.
    over_first = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(factors.astype(kept.dtype), kept, over_first, precision=jax.lax.Precision.HIGHEST)


def as_float32(strategy: Any, *names: str) -> None:
    """Rounds concrete fields of a frozen dataclass to float32, in which noise is streamed.

    So what is accounted for, in float64, is the very matrix that the noise is made by.
    """
    for name in names:
        value = getattr(strategy, name)
        # Not what JAX puts in their place, of whatever type.
        if is_concrete(value) and isinstance(value, (list, tuple, np.ndarray, jax.Array)):
            object.__setattr__(strategy, name, np.asarray(value, np.float32))


def numbers(value: Any, name: str) -> np.ndarray:
    """Returns a concrete field as float64; raises TypeError where it is traced."""
    if not is_concrete(value):
        raise TypeError(
            f"{name} is traced: sensitivities are bounded on the host, by concrete numbers; make the strategy outside "
            "of jit and vmap."
        )
    return np.asarray(value, np.float64)
