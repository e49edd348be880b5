"""Derivatives of first order: differences, where JAX's own rules fail or are wrong, and refusals in words.

Bounds come out of searches, of the best of many orders, and of sums on a lattice: loops that JAX cannot differentiate
backwards, and rounding that has no derivative. Their values are smooth to nearly all of their digits, so differences
are right to about four of them. In reading order: :func:`differences`, the values and slopes of a function;
:func:`by_slopes`, a function that has slopes for derivatives; :func:`_shared_moves`, by which an unknown slope matters
only where something moves; :func:`of_first_order`, which refuses a second derivative.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from jaxacct.numerics.arithmetic import FLOAT32, arithmetic, scale_error
from jaxacct.numerics.programs import lower_later
from jaxacct.numerics.pytrees import is_concrete

Known = Callable[[Any], Any]
"""A function of a result that tells whether it says anything: a boolean for all of it, or for each of its entries."""

Inside = Callable[..., Any]
"""A function of arguments that tells whether they are in range, in the same form: of those out of range a bound may be
as finite as any other (1 for a delta, 0 from below), so that the result does not tell."""


def step_of_differences() -> float:
    """Returns the step of differences, relative to the number that moves, for the arithmetic in use."""
    # In float64: the differences of a mesh's bracket err by about 1e-5 from 1e-4 to 1e-3. Derivatives alone depend on
    # it, as on the widest step in any arithmetic.
    step, widest = 3e-4, 1e-2
    return min(step * math.cbrt(scale_error(1.0)), widest)


def is_below_one(delta: Any) -> Any:
    """Returns whether a delta says anything: a :data:`Known`."""
    return delta < 1


def is_finite(result: Any) -> Any:
    """Returns whether numbers are finite: a :data:`Known`, for each entry where all parts have one shape."""
    finite = [jnp.isfinite(part) for part in jax.tree.leaves(result)]
    if len({part.shape for part in finite}) > 1:
        finite = [jnp.all(part) for part in finite]
    return functools.reduce(operator.and_, finite)


@dataclass(frozen=True)
class Differences:
    """Derivatives by :func:`differences`.

    Attributes:
        known: tells of a result whether it says anything.
        inside: tells of the arguments whether they are in range, where the result does not.
        nested: whether calls within others have these derivatives, too, and not those from outside alone, which trace
            less.
    """

    known: Known = is_finite
    inside: Inside | None = None
    nested: bool = False


def is_real(leaf: Any) -> bool:
    """Returns whether a number or an array has derivatives at all: whole numbers and booleans have none."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def differences(
    function: Callable[[list[Any]], Any],
    leaves: Sequence[Any],
    moving: Sequence[int],
    counts: Sequence[bool],
    known: Known,
    inside: Callable[[list[Any]], Any] | None = None,
) -> tuple[Any, list[Array]]:
    """Returns a function's value and, for each real leaf of it, its slopes (n, ...) in the n numbers that move.

    Numbers move by a small share of themselves, counts by one; infinite ones stay, with a slope of 0. The slope is
    one-sided where the function says nothing on one side, or that side is out of range. Where it says nothing on
    either, but here, it raises ValueError for concrete numbers, and is NaN for traced ones. It is called in the float64
    scope.

    Args:
        function: function of the list of leaves, to a pytree of arrays.
        leaves: numbers and arrays.
        moving: which of them move, by their places.
        counts: for each leaf whether it holds whole numbers of runs.
        known: whether a result says anything.
        inside: an :data:`Inside` of the list of leaves.
    """
    concrete = is_concrete(leaves)
    library: Any = np if concrete else jnp
    reals = [library.asarray(leaves[i], library.float64) for i in moving]
    step = step_of_differences()
    ends: list[tuple[Any, Any]] = []
    for i, real in zip(moving, reals, strict=True):
        # A number that is 0 has no share: it moves as if it were 1.
        size = library.ones_like(real) if counts[i] else step * library.where(real == 0, 1.0, library.abs(real))
        size = library.where(library.isinf(real), 0.0, size)
        ends.append((library.maximum(real - size, 0.0) if counts[i] else real - size, real + size))
    below, above = (library.concatenate([library.ravel(end[side]) for end in ends]) for side in (0, 1))
    flat = library.concatenate([library.ravel(real) for real in reals])
    sizes = [np.size(real) for real in reals]
    places = np.arange(len(flat))

    def at(row: tuple[Any, Any]) -> Any:
        place, value = row
        moved = list(leaves)
        numbers = library.where(places == place, value, flat)
        for i, real, part in zip(moving, reals, library.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
            moved[i] = part.reshape(np.shape(real))
        result = function(moved)
        return result, known(result) if inside is None else known(result) & inside(moved)

    rows = np.concatenate([[-1], places, places]), library.concatenate([np.zeros(1), below, above])
    results, says = _stacked_results(at, rows) if concrete else jax.lax.map(at, rows)
    count = len(places)

    def slope(leaf: Any) -> Any:
        def wide(part: Any) -> Any:
            return part.reshape(part.shape + (1,) * (leaf.ndim - part.ndim))

        here, lowered, raised = leaf[:1], leaf[1 : 1 + count], leaf[1 + count :]
        is_down, is_up = wide(says[1 : 1 + count]), wide(says[1 + count :])
        rise = library.where(is_up, raised, here) - library.where(is_down, lowered, here)
        run = library.where(is_up, wide(above), wide(flat)) - library.where(is_down, wide(below), wide(flat))
        is_any = (is_down | is_up) & wide(says[:1])
        return library.where(is_any, rise / library.where(run == 0, 1.0, run), library.nan)

    if concrete and np.any(says[:1] & ~(says[1 : 1 + count] | says[1 + count :])):
        raise ValueError(
            "the derivative in one of the numbers is not known, though the answer is: one that has to be whole "
            "(batches, participations, queries), or masses that have to sum to 1, do not move alone. Take differences "
            "of answers instead."
        )
    with np.errstate(invalid="ignore"):
        slopes = [slope(leaf) for leaf in jax.tree.leaves(results) if is_real(leaf)]
    return jax.tree.map(lambda leaf: leaf[0], results), slopes


def _stacked_results(at: Callable[[tuple[Any, Any]], Any], rows: tuple[Any, Any]) -> Any:
    """Returns the results at concrete rows, stacked; a side that is refused, as out of range, says nothing."""
    first, *others = zip(*rows, strict=True)
    at_first, says = at(first)
    results = [(at_first, says)]
    for row in others:
        try:
            results.append(at(row))
        except ValueError:
            results.append((at_first, np.zeros_like(says)))
    return jax.tree.map(lambda *row: np.stack(row), *results)


def by_slopes(
    function: Callable[[list[Any]], Any],
    slopes_of: Callable[[list[Any], tuple[int, ...]], tuple[Any, list[Array]]],
    name: str,
) -> Callable[[list[Any]], Any]:
    """Returns a function of leaves with derivatives of first order, within the float64 scope.

    Args:
        function: function of float64 leaves, and of whole numbers.
        slopes_of: function of the leaves and the places of those that move, to the result and its slopes, as
            :func:`differences` returns them.
        name: the function's name in the error of a second derivative.
    """

    def derive(leaves: list[Any], moves: list[Any], moving: tuple[int, ...]) -> tuple[Any, Iterator[Any]]:
        if moving:
            result, slopes = slopes_of(of_first_order(leaves, name), moving)
            move = jnp.concatenate([jnp.ravel(moves[i]).astype(jnp.float64) for i in moving])
        else:
            result = function(leaves)
            reals = filter(is_real, jax.tree.leaves(result))
            move, slopes = jnp.zeros(1), [jnp.zeros((1, *np.shape(leaf))) for leaf in reals]
        return jax.device_put(result), (_move(move, slope) for slope in slopes)

    return _with_derivatives(function, derive)


def _with_derivatives(
    function: Callable[[list[Any]], Any],
    derive: Callable[[list[Any], list[Any], tuple[int, ...]], tuple[Any, Iterator[Any]]],
) -> Callable[[list[Any]], Any]:
    """Returns a function of leaves with a rule for its derivatives, which is asked in the float64 scope.

    ``derive`` is given the leaves, their moves, and the places of real ones that move; it returns the result, and the
    tangents of its real leaves in their order. Whole numbers have none.
    """

    @jax.custom_jvp
    def value_of(leaves: list[Any]) -> Any:
        return function(leaves)

    @functools.partial(value_of.defjvp, symbolic_zeros=True)
    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (leaves,), (moves,) = primals, tangents
        moving = tuple(i for i, move in enumerate(moves) if not isinstance(move, SymbolicZero) and is_real(leaves[i]))

        def tangent_of(leaf: Any) -> Any:
            return next(rest) if is_real(leaf) else np.zeros(np.shape(leaf), jax.dtypes.float0)

        # JAX may take the derivative after the scope was left.
        with jax.enable_x64(True):
            result, rest = derive(leaves, moves, moving)
            return result, jax.tree.map(tangent_of, result)

    return value_of


@jax.jit
def _move(moves: Array, slopes: Array) -> Array:
    """Returns the sum over the numbers of moves (n,) times slopes (n, ...): one program, as its transpose is."""
    each = jnp.broadcast_to(moves.reshape(moves.shape + (1,) * (slopes.ndim - 1)), slopes.shape)
    # Programs in float32 are made of JAX's own operations.
    return jnp.sum(slopes * each if arithmetic() == FLOAT32 else _share_p.bind(slopes, each), axis=0)


# ----------------------------------------------------------------------------------------------------
# The product of slopes and moves of one shape, linear in the moves, that is 0 where a move is: a slope of NaN times a
# move of 0 would be NaN. Its transpose is a product of the same kind, so that an entry of a result whose slope is not
# known says so to those who ask for it, and to nobody else.
# ----------------------------------------------------------------------------------------------------

_share_p = Primitive("share")


def _shared_moves(slopes: Any, moves: Any) -> Array:
    with jax.enable_x64(True):  # a transpose is computed and lowered after the scope was left
        return jnp.where(moves == 0, 0.0, slopes * moves)


def _batch(args: Any, dims: Any) -> tuple[Any, int]:
    (size, *_) = {arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None}
    with jax.enable_x64(True):
        return _share_p.bind(*(batching.bdim_at_front(arg, dim, size) for arg, dim in zip(args, dims, strict=True))), 0


def _transpose(cotangent: Any, slopes: Any, moves: Any) -> tuple[None, Any]:
    return None, cotangent if type(cotangent) is ad.Zero else _share_p.bind(slopes, cotangent)


_share_p.def_impl(_shared_moves)
_share_p.def_abstract_eval(lambda slopes, moves: moves)
mlir.register_lowering(_share_p, mlir.lower_fun(_shared_moves, multiple_results=False))
batching.primitive_batchers[_share_p] = _batch
ad.defjvp(_share_p, None, lambda tangent, slopes, moves: _share_p.bind(slopes, tangent))
ad.primitive_transposes[_share_p] = _transpose


def in_scope(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Returns a function of leaves whose derivatives are JAX's own, taken and transposed with float64 enabled.

    JAX transposes after the scope was left, and then pads and scatters float64 numbers with zeros of float32, which it
    refuses.
    """

    def derive(leaves: list[Any], moves: list[Any], places: tuple[int, ...]) -> tuple[Any, Iterator[Any]]:
        def tangents_of(*args: Any) -> tuple[Any, ...]:
            numbers = list(args[: len(leaves)])

            def at(*reals: Any) -> list[Any]:
                moved = list(numbers)
                for place, real in zip(places, reals, strict=True):
                    moved[place] = real
                return list(filter(is_real, jax.tree.leaves(function(moved))))

            return tuple(jax.jvp(at, [numbers[place] for place in places], list(args[len(leaves) :]))[1])

        result = value_of(leaves)
        types = tuple(map(jax.typeof, filter(is_real, jax.tree.leaves(result))))
        return result, iter(lower_later(tangents_of, types, *leaves, *(moves[place] for place in places)))

    value_of = _with_derivatives(function, derive)
    return value_of


def of_first_order(leaves: Any, name: str) -> Any:
    """Returns numbers that a derivative is computed from; where it is differentiated again it raises TypeError."""
    return leaves if is_concrete(leaves) else _held(name, leaves)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _held(name: str, leaves: Any) -> Any:
    return leaves


@_held.defjvp
def _refuse(name: str, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        f"{name} has derivatives of first order only, which its second derivatives would be differences of: take "
        "differences of jax.grad yourself, with a step of a few percent."
    )
