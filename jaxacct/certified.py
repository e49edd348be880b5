"""The two verbs of the top level: the exact accountant, and the mesh where that one has not converged.

Both give brackets of the same number, so the larger lower bound and the smaller upper bound hold together. The exact
one is asked first: its brackets are a million times narrower and cost less. The mesh answers for everything.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from jaxacct import prv, saddlepoint
from jaxacct.batching import one_by_one
from jaxacct.bounds import Bounds
from jaxacct.precision import in_float64_by_programs, is_concrete, outside, scope
from jaxacct.prv.accountant import check_options
from jaxacct.prv.kernel import DEFAULT_TOLERANCE
from jaxacct.saddlepoint.accountant import has_closed_form, unchecked
from jaxacct.saddlepoint.one_run import is_single


def epsilon(
    mechanism: Any,
    steps: Any,
    delta: ArrayLike,
    *,
    relation: str = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
) -> Bounds:
    """Returns certified bounds on epsilon of a composition, at ``delta``, by the best route there is.

    Args:
        mechanism: one mechanism (scalar fields) run ``steps`` times; or fields with one leading axis (m,), a sequence
            composed together; or a tuple of mechanisms composed together. Batches are ``jax.vmap``.
        steps: number of adaptive runs, whole and at least 0, of the shape () or (m,), or a tuple. May be traced.
        delta (): failure probability in [0, 1); 0 asks for the pure epsilon, the supremum of the loss. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: relative gap wanted of :func:`jaxacct.prv.epsilon`, where it is asked; concrete arguments only.
        points: size of its mesh instead, where it is asked.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace. ``estimate`` is that
        of :mod:`jaxacct.saddlepoint` where it has converged, exact to about ten digits; so are derivatives, NaN
        elsewhere. In a batch on a CPU each setting takes its own route; other devices take both for all: call
        :mod:`jaxacct.saddlepoint` there.

    Formal guarantee: ``lower <= epsilon <= upper`` for the tight epsilon of the product of the dominating pairs, hence
    ``upper`` holds for the mechanisms composed adaptively with parameters fixed beforehand, under the given relation
    and the mechanisms' own sampling; rounding included. Invalid traced parameters and no noise give ``upper = inf``.

    Raises:
        ValueError: a concrete argument out of range, an unsupported relation, shapes that do not match, both or bad
            ``tolerance`` and ``points``.

    Source: :func:`jaxacct.saddlepoint.epsilon` and :func:`jaxacct.prv.epsilon`.

    >>> from jaxacct import Gaussian
    >>> bounds = epsilon(Gaussian(noise_multiplier=10.0), steps=100, delta=1e-5)
    >>> f"{bounds.upper:.7f}", bool(bounds.gap < 1e-9)
    ('4.3771781', True)
    """
    return _best("epsilon", mechanism, steps, delta, relation, tolerance, points)


def delta(
    mechanism: Any,
    steps: Any,
    epsilon: ArrayLike,
    *,
    relation: str = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
) -> Bounds:
    """Returns certified bounds on delta of a composition, at ``epsilon``, by the best route there is.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta;
    ``inf`` asks for the mass of infinite losses. Where nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0).upper:.7f}"
    '0.1269367'
    """
    return _best("delta", mechanism, steps, epsilon, relation, tolerance, points)


@in_float64_by_programs
def _best(
    quantity: str,
    mechanism: Any,
    steps: Any,
    value: ArrayLike,
    relation: str,
    tolerance: float | None,
    points: int | None,
) -> Bounds:
    concrete = is_concrete(mechanism, steps, value)
    check_options(tolerance, points, concrete=concrete)
    exact = getattr(saddlepoint, quantity)(mechanism, steps, value, relation=relation)
    if concrete:
        if exact.converged and tolerance is None:
            return exact
        wanted = DEFAULT_TOLERANCE[quantity] if tolerance is None else tolerance
        is_narrow = exact.gap <= wanted
        if exact.converged or is_narrow:
            return _shown(replace(exact, converged=is_narrow))
        mesh = getattr(prv, quantity)(mechanism, steps, value, relation=relation, tolerance=tolerance, points=points)
        return narrower(exact, mesh, wanted)
    leaves, structure = jax.tree.flatten((mechanism, steps, value))
    single = is_single(mechanism, steps)
    closed = has_closed_form(mechanism, steps, relation, single=single)
    return _traced(_Asked(quantity, relation, points, single, closed, structure), tuple(leaves))


def _shown(bounds: Bounds) -> Bounds:
    """Returns the bracket with its middle for an estimate where there is none, though it is narrow enough."""
    # By JAX, which does not warn of inf - inf.
    middle = bounds.lower + jnp.subtract(bounds.upper, bounds.lower) / 2
    return outside(replace(bounds, estimate=jnp.where(jnp.isnan(bounds.estimate), middle, bounds.estimate)))


@in_float64_by_programs
def narrower(exact: Bounds, mesh: Bounds, tolerance: float) -> Bounds:
    """Returns what both brackets prove together, of numbers or of arrays of one shape.

    It has converged where one of them has, or where their common gap is within the tolerance.
    """
    lower, upper = jnp.maximum(exact.lower, mesh.lower), jnp.minimum(exact.upper, mesh.upper)
    narrowed = Bounds(
        lower=lower,
        estimate=jnp.where(exact.converged, exact.estimate, jnp.clip(mesh.estimate, lower, upper)),
        upper=upper,
        converged=exact.converged | mesh.converged,
    )
    return outside(replace(narrowed, converged=narrowed.converged | (narrowed.gap <= tolerance)))


class _Asked(NamedTuple):
    """What is asked of traced numbers, all of it static."""

    quantity: str
    relation: str
    points: int | None
    single: bool
    """Whether one mechanism is run once: its count is traced from here on."""
    closed: bool
    """Whether the exact accountant has a closed form, beside which a mesh has nothing to say."""
    structure: Any


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _traced(asked: _Asked, leaves: tuple[Any, ...]) -> Bounds:
    return _with_mesh(asked, _exact(asked, leaves), leaves)


@_traced.defjvp
def _traced_jvp(asked: _Asked, primals: Any, tangents: Any) -> tuple[Bounds, Bounds]:
    exact, tangent = jax.jvp(functools.partial(_exact, asked), primals, tangents)
    return _with_mesh(asked, exact, *primals), tangent


def _exact(asked: _Asked, leaves: tuple[Any, ...]) -> Bounds:
    mechanism, steps, value = jax.tree.unflatten(asked.structure, leaves)
    return unchecked(asked.quantity, mechanism, steps, value, asked.relation, single=asked.single)


def _with_mesh(asked: _Asked, exact: Bounds, leaves: tuple[Any, ...]) -> Bounds:
    """Returns the exact accountant's bracket, narrowed by the mesh where that has not converged."""

    def is_settled(exact: Bounds, _: Any) -> Any:
        return exact.converged

    if is_concrete(exact, leaves) and exact.converged:
        return exact
    return one_by_one(_narrowed, asked, settled=is_settled)(exact, leaves)


def _narrowed(asked: _Asked, exact: Bounds, leaves: tuple[Any, ...]) -> Bounds:
    def both() -> Bounds:
        arguments = jax.tree.unflatten(asked.structure, leaves)
        mesh = getattr(prv, asked.quantity)(*arguments, relation=asked.relation, points=asked.points)
        return narrower(exact, mesh, wanted)

    wanted = DEFAULT_TOLERANCE[asked.quantity]
    with scope():
        is_narrow = exact.gap <= wanted
        enough = _shown(replace(exact, converged=exact.converged | is_narrow))
        return enough if asked.closed else jax.lax.cond(enough.converged, lambda: enough, both)
