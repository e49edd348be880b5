"""The two verbs of the certified accountant."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.arithmetic import CERTIFIED, Chosen
from jaxacct.bounds import zero
from jaxacct.composition import directed_parts, runs_nothing, says_nothing
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.platforms import by_pairs, by_platform, needs_pairs
from jaxacct.precision import as_float64, in_float64_by_programs, is_concrete, outside
from jaxacct.prv import refine
from jaxacct.question import ForDelta, ForEpsilon, Question, check_asked

DEFAULT_POINTS = 2**12
"""Points of each loss inside a trace, where no gap can be looked at."""


def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    method: str | None = None,
    return_diagnostics: bool = False,
    arithmetic: Chosen = "auto",
    error: tuple[float, float] | None = None,
) -> Any:
    """Returns certified bounds on epsilon of a composition, at ``delta``.

    Args:
        mechanism: as of :func:`jaxacct.epsilon`.
        steps: likewise.
        delta (): likewise.
        relation: likewise.
        tolerance: wanted relative gap ``(upper - lower) / upper``; concrete arguments only. The mesh is refined until
            the gap is that small or nothing more is gained; then ``converged`` is false and a
            :class:`~jaxacct.prv.ToleranceWarning` says so. Default 1e-3; 1e-6 is within reach of most settings.
        points: points of each loss's lattice, a power of two or three times one, in place of ``tolerance``. 4096 inside
            a trace.
        method: has no effect, and goes with the next minor version: there is one composition.
        return_diagnostics: whether to return a :class:`~jaxacct.prv.Diagnostics` as well.
        arithmetic: as of :func:`jaxacct.epsilon`.
        error: wanted errors ``(a, b)`` of epsilon and of delta, in place of ``tolerance``: with ``converged`` true,
            ``upper`` is at most a above epsilon at ``delta`` - b, and ``lower`` at most a below that at ``delta`` + b.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace. With
        ``return_diagnostics`` the pair of it and the record.

    Formal guarantee: that of :func:`jaxacct.epsilon`. Discretization, truncation and rounding are inside the bounds.

    Raises:
        ValueError: a concrete argument out of range, an unsupported relation, shapes that do not match, both
            or bad ``tolerance`` and ``points``.

    Source: discretization, Doroshenko et al. (2022), "Connect the dots"; composition, Ghazi et al. (2022), "Faster
    privacy accounting via evolving discretization".

    >>> from jaxacct import Gaussian
    >>> bounds = epsilon(Gaussian(noise_multiplier=10.0), steps=100, delta=1e-5)
    >>> bool(bounds.lower <= 4.377178 <= bounds.upper), bool(bounds.gap < 1e-3)
    (True, True)
    """
    check_method(method)
    return answer(
        mechanism, steps, ForEpsilon(delta), relation, tolerance, points, return_diagnostics, arithmetic, error
    )


def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    method: str | None = None,
    return_diagnostics: bool = False,
    arithmetic: Chosen = "auto",
    error: tuple[float, float] | None = None,
) -> Any:
    """Returns certified bounds on delta of a composition, at ``epsilon``.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta,
    ``inf`` asks for the mass of infinite losses, and ``tolerance`` is the relative gap of delta, 1e-2 by default. With
    ``error`` (a, b) ``upper`` is at most b above delta at ``epsilon`` - a, or at 0, and ``lower`` at most b below that
    at ``epsilon`` + a. Where nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> bounds = delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0)
    >>> bool(bounds.lower <= 0.12693674 <= bounds.upper), bool(bounds.gap < 1e-2)
    (True, True)
    """
    check_method(method)
    return answer(
        mechanism, steps, ForDelta(epsilon), relation, tolerance, points, return_diagnostics, arithmetic, error
    )


METHODS = ("recursive", "two_stage", "fixed")
"""What ``method`` could be."""


def check_method(method: str | None) -> None:
    """Warns where a method is asked for, of which there is one; raises where there never was such a one."""
    if method is not None:
        validation.check_one_of(method, "method", METHODS)
        text = f"method = {method!r} has no effect: there is one composition. Leave it out."
        warnings.warn(text, DeprecationWarning, stacklevel=3)


def check_points(points: int) -> None:
    """Raises where ``points`` is no size of a mesh."""
    validation.check_whole(points, "points", 1, 2**40, "the number of mesh points, a power of two or three times one,")
    whole = points > 0 and (points & (points - 1) == 0 or (points % 3 == 0 and (points // 3) & (points // 3 - 1) == 0))
    if points < 2**7 or not whole:
        raise ValueError(
            f"points = {points} is not a number of mesh points: give a power of two, or three times one, at least 128."
        )


def check_error(error: tuple[float, float], question: Question, *, concrete: bool) -> None:
    """Raises where errors are none, or cannot be asked for."""
    if not concrete:
        raise ValueError(
            f"error = {error} cannot be used inside jit, vmap or scan, where the shapes are fixed before the gap is "
            "known: give points, the number of mesh points, instead."
        )
    if not isinstance(error, tuple) or len(error) != 2:
        raise ValueError(f"error = {error} is no pair: give the errors (of epsilon, of delta) as a tuple.")
    is_epsilon = isinstance(question, ForEpsilon)
    for value, name, alone in zip(error, ("error[0]", "error[1]"), (is_epsilon, not is_epsilon), strict=True):
        validation.check_number(value, name)
        if not (value > 0 or (value == 0 and not alone)) or not np.isfinite(value):
            what = "above 0" if alone else "0 or above"
            raise ValueError(f"{name} = {value} is no error for {question.name}: give a finite number {what}.")
    if is_epsilon and not error[1] <= question.value < 1 - error[1]:
        raise ValueError(
            f"error[1] = {error[1]} is not below delta = {question.value}: give an error that leaves a delta to ask at."
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
def answer(
    mechanism: Mechanisms,
    steps: Steps,
    question: Question,
    relation: Relation,
    tolerance: float | None = None,
    points: int | None = None,
    return_diagnostics: bool = False,
    arithmetic: Chosen = "auto",
    error: tuple[float, float] | None = None,
) -> Any:
    """Returns what :func:`epsilon` or :func:`delta` does."""
    check_asked(mechanism, steps, question)
    validation.check_one_of(arithmetic, "arithmetic", CERTIFIED)
    if needs_pairs(arithmetic, mechanism, steps, question):
        check_options(tolerance, points, concrete=False)
        if error is not None:
            check_error(error, question, concrete=False)
        run = functools.partial(answer, relation=relation, points=points, return_diagnostics=return_diagnostics)
        return outside(by_pairs(run, mechanism, steps, question))
    concrete = is_concrete(mechanism, steps, question)
    check_options(tolerance, points, concrete=concrete)
    if error is not None:
        if tolerance is not None or points is not None:
            raise ValueError("error is given beside tolerance or points: give one of the three.")
        check_error(error, question, concrete=concrete)
    if not concrete:

        def traced(mechanism: Mechanisms, steps: Steps, question: Question) -> Any:
            directions = directed_parts(mechanism, steps, relation)
            question = question.at(as_float64(question.value))
            return refine.traced(directions, question, points=points or DEFAULT_POINTS)

        found = by_platform(traced, mechanism, steps, question)
    else:
        directions = directed_parts(mechanism, steps, relation)
        if runs_nothing(directions) and not return_diagnostics:
            return zero()
        question = question.at(np.asarray(question.value, np.float64))
        goal = error or tolerance or question.tolerance
        if not return_diagnostics and says_nothing(directions):
            return refine.nothing_known(question, goal if points is None else None)
        if points is None:
            found = refine.within(directions, question, goal)
        else:
            found = refine.at_points(directions, question, points)
    return outside(found) if return_diagnostics else found[0]
