"""The exact accountant: delta and epsilon by an integral through the saddle point."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxacct import validation
from jaxacct.batching import one_by_one, stack
from jaxacct.bounds import Bounds, zero
from jaxacct.precision import as_real, is_concrete, outside, scope
from jaxacct.programs import compiled
from jaxacct.prv.composition import check, directed_parts, runs_nothing
from jaxacct.saddlepoint.laws import has_law
from jaxacct.saddlepoint.one_run import (
    closed_forms,
    delta_of_one_run,
    epsilon_of_one_run,
    is_single,
    log_delta_of_one_run,
)
from jaxacct.saddlepoint.solve import delta_bounds, epsilon_bounds, log_delta_at

PRECISIONS = ("float64", "float32")

DIFFERENCE = {"float64": 3e-5, "float32": 1e-2}
"""Relative steps of central differences: about the cube root of delta's relative error."""


def epsilon(
    mechanism: Any, steps: Any, delta: ArrayLike, *, relation: str = "add_or_remove", precision: str = "float64"
) -> Bounds:
    """Returns epsilon of a composition at ``delta``, exact to about ten digits, with a certified bracket.

    Args:
        mechanism: as of :func:`jaxacct.prv.epsilon`: one mechanism, a sequence by a leading axis, or a tuple.
        steps: likewise. May be traced.
        delta (): failure probability in [0, 1); 0 asks for the pure epsilon, the supremum of the loss. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        precision: "float64", or "float32" for devices without it: estimates right to about 1e-3 of delta, no bracket;
            for Gaussian noise, sampled or not, and finite pairs.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of scalars: NumPy ones, or JAX ones inside a trace. Its cost does not depend on
        the number of steps. Derivatives with respect to the mechanism's fields, steps and delta are those of the exact
        epsilon (first order).

    Formal guarantee: ``lower <= truth <= upper``, every error counted (:mod:`jaxacct.saddlepoint`). Where the integral
    has not converged (few steps of a small sampling rate, losses on a lattice) or no law is known for a mechanism,
    ``converged`` is false, ``estimate`` is NaN and the bracket (0, inf): use :func:`jaxacct.prv.epsilon`.

    Raises:
        ValueError: a concrete argument out of range.

    Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function"; the
    contour and its errors, :mod:`jaxacct.saddlepoint.contour`.

    >>> from jaxacct import Gaussian
    >>> bounds = epsilon(Gaussian(noise_multiplier=10.0), steps=100, delta=1e-5)
    >>> f"{bounds.estimate:.8f}", bool(bounds.lower <= bounds.estimate <= bounds.upper)
    ('4.37717810', True)
    """
    validation.check_delta(delta, pure=True)
    return _bounds("epsilon", mechanism, steps, delta, relation, precision)


def delta(
    mechanism: Any, steps: Any, epsilon: ArrayLike, *, relation: str = "add_or_remove", precision: str = "float64"
) -> Bounds:
    """Returns delta of a composition at ``epsilon``, exact to about ten digits, with a certified bracket.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta;
    ``inf`` asks for the mass of infinite losses. Where nothing is known the bracket is (0, 1).

    >>> from jaxacct import Gaussian
    >>> f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0).estimate:.8f}"
    '0.12693674'
    """
    validation.check_epsilon(epsilon)
    return _bounds("delta", mechanism, steps, epsilon, relation, precision)


def _bounds(quantity: str, mechanism: Any, steps: Any, value: ArrayLike, relation: str, precision: str) -> Bounds:
    check(mechanism, steps)
    validation.check_one_of(precision, "precision", PRECISIONS)
    validation.check_scalar(value, "delta or epsilon")
    return unchecked(
        quantity,
        mechanism,
        steps,
        value,
        relation,
        precision,
        single=precision == "float64" and is_single(mechanism, steps),
    )


def has_closed_form(mechanism: Any, steps: Any, relation: str, *, single: bool) -> bool:
    """Returns whether it can be seen that a composition is a single run, or one of plain Gaussian mechanisms."""
    return bool(closed_forms(directed_parts(mechanism, steps, relation), single=single))


def unchecked(
    quantity: str,
    mechanism: Any,
    steps: Any,
    value: ArrayLike,
    relation: str,
    precision: str = "float64",
    *,
    single: bool = False,
) -> Bounds:
    """Returns what :func:`epsilon` or :func:`delta` does; where arguments are out of range the bracket says nothing.

    ``single``: one mechanism is run once, which a traced count does not tell.
    """
    # Leaves, not mechanisms: tangents of a mechanism would be checked as one.
    leaves, structure = jax.tree.flatten((mechanism, steps, value))
    # Within the scope already here: float64 numbers of NumPy would be rounded to float32 on the way in.
    with scope(x64=precision == "float64", by_programs=True):
        if is_concrete(leaves):
            return outside(_decided(quantity, relation, single, (mechanism, steps, value))[0])
        return outside(_answer(quantity, relation, precision, single, structure, tuple(leaves)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3, 4))
def _answer(
    quantity: str, relation: str, precision: str, single: bool, structure: Any, leaves: tuple[Any, ...]
) -> Bounds:
    return one_by_one(_solved, quantity, relation, precision, single, structure)(leaves)


def _solved(
    quantity: str, relation: str, precision: str, single: bool, structure: Any, leaves: tuple[Any, ...]
) -> Bounds:
    with scope(x64=precision == "float64"):
        return _decided(quantity, relation, single, jax.tree.unflatten(structure, leaves))[0]


def _decided(quantity: str, relation: str, single: bool, arguments: tuple[Any, Any, Any]) -> tuple[Bounds, Any]:
    """Returns the larger of the directions' brackets, and which direction decides."""
    mechanism, steps, value = arguments
    directions = directed_parts(mechanism, steps, relation)
    if is_concrete(arguments) and runs_nothing(directions):
        return zero(), jnp.asarray(0)
    real = jax.dtypes.canonicalize_dtype(jnp.float64)
    number = np.asarray(value, real) if is_concrete(value) else as_real(value)
    runs = closed_forms(directions, single=single)
    if runs:
        solve_run = epsilon_of_one_run if quantity == "epsilon" else delta_of_one_run
        found = [solve_run(run, number) for run in runs]
        return (found[0], jnp.asarray(0)) if len(found) == 1 else _larger(*found)
    solve = epsilon_bounds if quantity == "epsilon" else delta_bounds
    if not all(has_law(pair) for parts in directions for pair, _ in parts):
        nothing = jnp.zeros_like(number)
        worst = nothing + (jnp.inf if quantity == "epsilon" else 1.0)
        unknown = Bounds(lower=nothing, estimate=nothing + jnp.nan, upper=worst, converged=nothing > 0)
        return unknown, jnp.asarray(0)
    if len(directions) == 1:
        return solve(directions[0], number), jnp.asarray(0)
    if not is_concrete(arguments) and len({jax.tree.structure(parts) for parts in directions}) == 1:
        every = jax.lax.map(lambda parts: solve(parts, number), stack(*directions))
        return _larger(*(jax.tree.map(lambda leaf, i=i: leaf[i], every) for i in range(2)))
    return _larger(*(solve(parts, number) for parts in directions))


@compiled
def _larger(first: Bounds, second: Bounds) -> tuple[Bounds, Array]:
    """Returns the larger of two brackets, and which one decides."""
    every: Any = stack(first, second)
    # A direction that has not converged matters only where its bracket reaches beyond the other's.
    estimates = jnp.where(every.converged, every.estimate, -jnp.inf)
    decides = jnp.where(estimates[1] > estimates[0], 1, 0)
    upper, known = jnp.max(every.upper), jnp.where(decides == 1, every.converged[1], every.converged[0])
    settled = known & jnp.all(every.converged | (every.upper < upper))
    bounds = Bounds(
        lower=jnp.max(every.lower),
        estimate=jnp.where(settled, jnp.max(estimates), jnp.nan),
        upper=upper,
        converged=settled,
    )
    return bounds, decides


@_answer.defjvp
def _answer_jvp(
    quantity: str, relation: str, precision: str, single: bool, structure: Any, primals: Any, tangents: Any
) -> tuple[Bounds, Bounds]:
    (leaves,), (moves,) = primals, tangents
    with scope(x64=precision == "float64"):
        bounds, decides = _decided(quantity, relation, single, jax.tree.unflatten(structure, leaves))
        reals = [as_real(leaf) for leaf in leaves]
        slopes = _slopes(quantity, relation, single, structure, reals, jnp.asarray(bounds.estimate), decides)
        tangent = jnp.zeros_like(bounds.estimate)
        for slope, move in zip(slopes, moves, strict=True):
            # A tangent may be a Python number; one of a whole number is nothing at all.
            if getattr(move, "dtype", None) != jax.dtypes.float0:
                tangent = tangent + jnp.sum(slope * jnp.asarray(move, slope.dtype))
        flat = np.zeros(np.shape(bounds.converged), jax.dtypes.float0)
    return bounds, Bounds(lower=tangent, estimate=tangent, upper=tangent, converged=flat)


def _slopes(
    quantity: str, relation: str, single: bool, structure: Any, reals: list[Array], answer: Array, decides: Array
) -> list[Array]:
    """Returns the derivative of the answer with respect to each leaf of the arguments, by the implicit function."""
    at = answer if quantity == "epsilon" else reals[-1]
    by_leaves, by_epsilon = _log_slopes(relation, single, structure, reals, at, decides)
    if quantity == "epsilon":
        slopes = [-slope / by_epsilon for slope in by_leaves] + [1 / (reals[-1] * by_epsilon)]
        is_bound = answer <= 0
    else:
        slopes = [slope * answer for slope in by_leaves] + [by_epsilon * answer]
        is_bound = answer >= 1
    return [jnp.where(is_bound, 0.0, slope) for slope in slopes]


def _chosen(decides: Array, *directions: Any) -> Any:
    """Returns what belongs to the direction that decides."""
    return jax.tree.map(
        lambda *both: both[0] if len(both) == 1 else jnp.where(decides == 1, both[1], both[0]), *directions
    )


@compiled(static=("relation", "single", "structure"))
def _log_slopes(
    relation: str, single: bool, structure: Any, reals: list[Array], epsilon: Array, decides: Array
) -> tuple[list[Array], Array]:
    """Returns the derivatives of log delta at ``epsilon`` in each leaf of mechanism and steps, and in epsilon.

    In epsilon it is differentiated under the integral. In the parameters it is a central difference of the integral,
    which is exact enough for that: of relative step h it errs by about h^2, and by its own error over h.
    """
    step = DIFFERENCE[epsilon.dtype.name]

    def log_delta(reals: list[Array]) -> tuple[Array, Array]:
        mechanism, steps, _ = jax.tree.unflatten(structure, reals)
        directions = directed_parts(mechanism, steps, relation)
        runs = closed_forms(directions, single=single)
        if runs:
            return _chosen(decides, *(log_delta_of_one_run(run, epsilon, step) for run in runs))
        if len({jax.tree.structure(parts) for parts in directions}) == 1:
            return log_delta_at(_chosen(decides, *directions), epsilon)
        return _chosen(decides, *(log_delta_at(parts, epsilon) for parts in directions))

    sizes = [leaf.size for leaf in reals[:-1]]
    # One row for each number that the answer depends on, moved up and moved down; the first is as it stands.
    moves = jnp.concatenate([jnp.zeros((1, sum(sizes))), jnp.eye(sum(sizes)), -jnp.eye(sum(sizes))])

    def moved(move: Array) -> tuple[Array, Array]:
        parts = jnp.split(move, np.cumsum(sizes)[:-1])
        shifted = [x * (1 + step * part.reshape(x.shape)) for x, part in zip(reals[:-1], parts, strict=True)]
        return log_delta([*shifted, reals[-1]])

    values, by_epsilon = jax.lax.map(moved, moves.astype(epsilon.dtype))
    value, up, down = values[0], values[1 : 1 + sum(sizes)], values[1 + sum(sizes) :]
    # At the end of a range only one side is there.
    difference = jnp.where(jnp.isnan(up), 2 * (value - down), jnp.where(jnp.isnan(down), 2 * (up - value), up - down))
    pieces = jnp.split(difference / (2 * step), np.cumsum(sizes)[:-1])
    by_leaves = [
        piece.reshape(x.shape) / jnp.where(x == 0, jnp.inf, x) for piece, x in zip(pieces, reals, strict=False)
    ]
    return by_leaves, by_epsilon[0]
