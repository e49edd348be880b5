"""The two verbs of the certified accountant."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.bounds import zero
from jaxacct.precision import as_float64, in_float64_by_programs, is_concrete, outside
from jaxacct.prv import refine
from jaxacct.prv.compose import METHODS
from jaxacct.prv.composition import check, directed_parts, runs_nothing
from jaxacct.prv.kernel import DEFAULT_TOLERANCE

DEFAULT_POINTS = 2**13
"""Mesh points inside a trace, where no gap can be looked at."""


def epsilon(
    mechanism: Any,
    steps: Any,
    delta: ArrayLike,
    *,
    relation: str = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    method: str = "recursive",
    return_diagnostics: bool = False,
) -> Any:
    """Returns certified bounds on epsilon of a composition, at ``delta``.

    Args:
        mechanism: one mechanism (scalar fields) run ``steps`` times; or fields with one leading axis (m,), a sequence
            composed together; or a tuple of mechanisms composed together. Batches are ``jax.vmap``.
        steps: number of adaptive runs, whole and at least 0, of the shape () or (m,), or a tuple. May be traced.
        delta (): failure probability in [0, 1); 0 asks for the pure epsilon, the supremum of the loss. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: wanted relative gap ``(upper - lower) / upper``; concrete arguments only. The mesh is refined until
            the gap is that small or nothing more is gained; then ``converged`` is false and a
            :class:`~jaxacct.prv.ToleranceWarning` says so. Default 1e-3; 1e-6 is within reach of most settings.
        points: mesh points, a power of two or three times one, in place of ``tolerance``. 8192 inside a trace.
        method: "recursive" (the evolving mesh, cost flat in the steps), or for comparison "two_stage" and "fixed",
            whose points must grow with the fourth root, or the square root, of the steps: with too few they give inf.
        return_diagnostics: whether to return a :class:`~jaxacct.prv.Diagnostics` as well.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace. With
        ``return_diagnostics`` the pair of it and the record.

    Formal guarantee: ``lower <= epsilon <= upper`` for the tight epsilon of the product of the dominating pairs, hence
    ``upper`` holds for the mechanisms composed adaptively with parameters fixed beforehand, under the given relation
    and the mechanisms' own sampling. Discretization, truncation and rounding are inside the bounds. Invalid traced
    parameters and no noise give ``upper = inf``.

    Raises:
        ValueError: a concrete argument out of range, an unsupported relation or method, shapes that do not match, both
            or bad ``tolerance`` and ``points``.

    Source: discretization, Doroshenko et al. (2022), "Connect the dots"; composition, Ghazi et al. (2022), "Faster
    privacy accounting via evolving discretization".

    >>> from jaxacct import Gaussian
    >>> bounds = epsilon(Gaussian(noise_multiplier=10.0), steps=100, delta=1e-5)
    >>> bool(bounds.lower <= 4.377178 <= bounds.upper), bool(bounds.gap < 1e-3)
    (True, True)
    """
    validation.check_delta(delta, pure=True)
    return _bounds("epsilon", mechanism, steps, delta, relation, tolerance, points, method, return_diagnostics)


def delta(
    mechanism: Any,
    steps: Any,
    epsilon: ArrayLike,
    *,
    relation: str = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    method: str = "recursive",
    return_diagnostics: bool = False,
) -> Any:
    """Returns certified bounds on delta of a composition, at ``epsilon``.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta,
    ``inf`` asks for the mass of infinite losses, and ``tolerance`` is the relative gap of delta, 1e-2 by default. Where
    nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> bounds = delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0)
    >>> bool(bounds.lower <= 0.12693674 <= bounds.upper), bool(bounds.gap < 1e-2)
    (True, True)
    """
    validation.check_epsilon(epsilon)
    return _bounds("delta", mechanism, steps, epsilon, relation, tolerance, points, method, return_diagnostics)


def check_points(points: int) -> None:
    """Raises where ``points`` is no size of a mesh."""
    validation.check_whole(points, "points", 1, 2**40, "the number of mesh points, a power of two or three times one,")
    whole = points > 0 and (points & (points - 1) == 0 or (points % 3 == 0 and (points // 3) & (points // 3 - 1) == 0))
    if points < 2**7 or not whole:
        raise ValueError(
            f"points = {points} is not a number of mesh points: give a power of two, or three times one, at least 128."
        )


def check_options(tolerance: float | None, points: int | None, *, concrete: bool) -> None:
    """Raises where the two do not go together, or are out of range, or need concrete arguments."""
    if points is not None:
        if tolerance is not None:
            raise ValueError("tolerance and points are both given: give the gap wanted, or the size of the mesh.")
        check_points(points)
    if tolerance is not None:
        if not concrete or isinstance(tolerance, jax.core.Tracer):
            raise ValueError(
                f"tolerance = {tolerance} cannot be used inside jit, vmap or scan, where the shapes are fixed before "
                "the gap is known: give points, the number of mesh points, instead."
            )
        validation.check_positive(tolerance, "tolerance")


@in_float64_by_programs
def _bounds(
    quantity: str,
    mechanism: Any,
    steps: Any,
    value: ArrayLike,
    relation: str,
    tolerance: float | None,
    points: int | None,
    method: str,
    return_diagnostics: bool,
) -> Any:
    check(mechanism, steps)
    validation.check_one_of(method, "method", METHODS)
    validation.check_scalar(value, "delta or epsilon")
    concrete = is_concrete(mechanism, steps, value)
    check_options(tolerance, points, concrete=concrete)
    directions = directed_parts(mechanism, steps, relation)
    if concrete and runs_nothing(directions) and not return_diagnostics:
        return zero()
    if concrete:
        value = np.asarray(value, np.float64)
        if points is not None:
            answer = refine.at_points(directions, value, quantity, points, method)
        else:
            wanted = DEFAULT_TOLERANCE[quantity] if tolerance is None else tolerance
            answer = refine.within(directions, value, quantity, wanted, method)
    else:
        answer = refine.traced(directions, as_float64(value), quantity, points or DEFAULT_POINTS, method)
    return outside(answer) if return_diagnostics else answer[0]
