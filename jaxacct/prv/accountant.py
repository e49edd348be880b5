"""The accountant by privacy random variables: certified brackets on epsilon, on delta and on the privacy profile.

The laws of the dominating pairs' losses are composed on an evolving mesh (:mod:`.evolving`), from above and from below;
the order that makes the result a bound is described in :mod:`jaxacct.prv`. The mesh is refined until the gap
between the bounds is as small as was asked, and takes the largest delta over the directions of the relation
(:mod:`jaxacct.refinement`). In reading order:

- :class:`Diagnostics`, the record of the choices made and of the size of each allowance;
- :func:`answers`, the compiled program from laws and a question to a bracket;
- :func:`without_composing`, a bracket that needs no mesh;
- :func:`mesh_of`, the mesh as a composer that :mod:`jaxacct.refinement` asks for the directions of a relation;
- :func:`sum_each`, compositions as laws on meshes, for adaptive uses;
- :func:`epsilon` and :func:`delta`, the two verbs, and :func:`curve`, delta over epsilon.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.bounds import Bounds, zero
from jaxacct.choices import Certified
from jaxacct.composition import (
    Facts,
    ForDelta,
    ForEpsilon,
    Parts,
    Query,
    Question,
    bracket_of,
    check,
    check_asked,
    directed_parts,
    facts_of,
    is_out_of_range,
    laws_for,
    runs_nothing,
    unknown,
)
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics import batched_loops
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.derivatives import Differences, Known, by_slopes, differences
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    by_host,
    is_concrete,
    kernel,
    leave_scope,
    log_complement,
    within_scope,
)
from jaxacct.numerics.programs import asks_host, by_platform, compiled
from jaxacct.numerics.pytrees import of_each, register_dataclass
from jaxacct.prv import evolving
from jaxacct.prv.evolving import Method
from jaxacct.refinement import Composer, Goal, at_size, in_trace, refine, warn_of


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """The record of how a bracket came about, for the direction of the relation that decides it.

    Attributes are scalars unless shapes are given.

    Attributes:
        points: number of points of the mesh.
        order: the tilt; truncation and rounding count relative to the mass tilted by exp(order * loss).
        mesh: distance between points at the end, in nats.
        start: the least loss of the sum's window.
        length: points of the circle on which the sum lives: it covers the losses ``[start, start + length * mesh]``.
        slack (2,): truncated, aliased and rounded mass above and below, relative to the tilted mass.
        slack_delta (2,): the most that this mass adds to delta in the upper bound, and takes off it in the lower one.
        shift (2,): the most that rounding of the losses' positions adds to epsilon, and takes off it.
        infinite_mass: probability of an infinite loss, rounded up; a part of delta at every epsilon.
        lost: probability of finite losses that the upper bound counts as infinite.
        converged: the bracket's own flag: whether it is as tight as was asked.

    The rest of the gap between the bounds is the loss of discretizing, which falls with the square of the mesh.
    """

    points: int = field(metadata={"static": True})
    order: Float[Array, ""]
    mesh: Float[Array, ""]
    start: Float[Array, ""]
    length: Float[Array, ""]
    slack: Float[Array, " 2"]
    slack_delta: Float[Array, " 2"]
    shift: Float[Array, " 2"]
    infinite_mass: Float[Array, ""]
    lost: Float[Array, ""]
    converged: Bool[Array, ""] | np.ndarray


# ----------------------------------------------------------------------------------------------------
# The compiled part: from dominating pairs to laws, a program for each kind of pair, and from laws to a bracket, one
# program for all of them.
# ----------------------------------------------------------------------------------------------------

LEAST = 2**13
"""Number of points of the first mesh, and of a trace's. Tightness and speed only."""

SIZES = tuple(LEAST * 2**i for i in range(5))
"""Numbers of points among which a tolerance chooses, powers of two. They bound time and memory."""

PER_ATOM = 8
"""Points of the mesh for each atom of a law: what both cost of the gap is alike. Tightness and speed only."""


FARTHEST = 1e9
"""Largest epsilon, in nats, that a mesh is chosen for. Tightness only."""


def sum_for(points: int, laws: Atoms, counts: Array, question: Question, method: Method, last: Array) -> evolving.Sum:
    """Returns the sum of all losses on a mesh that is chosen for a question.

    ``last`` is the least delta, or the largest epsilon, of all questions.
    """
    # The inside of the range stands in for questions at its ends.
    if isinstance(question, ForEpsilon):
        log_delta, log_last = (jnp.log(jnp.clip(delta, TINY, 1.0)) for delta in (question.delta, last))
        return evolving.compose(laws, counts, points, log_delta=log_delta, last=log_last, method=method)
    at, farthest = (jnp.minimum(epsilon, FARTHEST) for epsilon in (question.epsilon, last))
    return evolving.compose(laws, counts, points, epsilon=at, last=farthest, method=method)


def read(total: evolving.Sum, question: Question) -> tuple[Array, Array]:
    """Returns the lower and the upper bound that answer a question, read off a sum."""
    if isinstance(question, ForEpsilon):
        return evolving.bound_epsilon(total, jnp.clip(question.delta, TINY, 1.0))
    return evolving.bound_delta(total, jnp.minimum(question.epsilon, FARTHEST))


@compiled(static=("points", "method"))
def answers(
    points: int, laws: Atoms, counts: Array, questions: Question, facts: Facts, method: Method = Method.RECURSIVE
) -> tuple[Bounds, Diagnostics]:
    """Returns the brackets that answer questions (n,) of one kind for one direction, and the record of the first."""
    first = questions.at(questions.value[0])
    values = questions.value
    last = jnp.min(values) if isinstance(first, ForEpsilon) else jnp.max(values)
    total = sum_for(points, laws, counts, first, method, last)
    bounds = of_each(lambda question: bracket_of(*read(total, question), question, facts))(questions)
    at = bounds.estimate[0] if isinstance(first, ForEpsilon) else first.value
    return bounds, Diagnostics(
        points=points,
        order=total.order,
        mesh=total.mesh,
        start=total.first,
        length=jnp.full_like(total.mesh, points),
        slack=total.error,
        slack_delta=jnp.minimum(evolving.error_of_delta(total, at), 1.0),
        shift=jnp.stack([total.shift, total.shift]),
        infinite_mass=facts.infinite[1],
        lost=jnp.maximum(evolving.infinite_mass(total)[0] - facts.infinite[1], 0.0),
        converged=bounds.converged[0],
    )


_answers_of_many = compiled(static=("points", "method"), by=By.XLA)(answers.function)


def answers_by_work(
    points: int, laws: Atoms, counts: Array, questions: Question, facts: Facts, method: Method = Method.RECURSIVE
) -> tuple[Bounds, Diagnostics]:
    """Returns :func:`answers`, for many laws by a program that is compiled for speed: five times as fast."""
    # Laws on meshes of ``LEAST`` points from which on running outweighs compiling. Speed only.
    many = 64
    program = _answers_of_many if len(counts) * points >= many * LEAST else answers
    return program(points, laws, counts, questions, facts, method)


# ----------------------------------------------------------------------------------------------------
# The bracket without composing, for where a mesh says nothing: few rare losses, or a delta next to 1.
#
# *From above.* A run that goes unnoticed in both data sets changes nothing. So the total variation of a composition is
# at most one less the product, over its runs, of one less their total variations. As delta falls with epsilon,
# delta(eps) <= 1 - prod (1 - delta_i(0))^k_i. The delta of a single run is that of its own pair.
#
# *From below.* 1 - delta(eps) is the integral of min(P, e^eps Q). For any 0 < a < 1 this is at most the integral of
# P^a (e^eps Q)^(1-a), which for a product of laws is a product. By Hölder's inequality a cell contributes at most
# P(cell)^a Q(cell)^(1-a), so
#
#     delta(eps) >= 1 - e^((1-a) eps) prod (sum over cells P^a Q^(1-a))^k_i.
# ----------------------------------------------------------------------------------------------------

POWERS = np.array([1e-3, 1e-2, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 0.99, 0.999])
"""Exponents a of the bound from below. Sound for any values between 0 and 1: tightness only."""


@compiled
def logs_of(pairs: DominatingPair, epsilon: Array) -> tuple[Array, Array, Array]:
    """Returns bounds on one run of each of the pairs (m,), whatever it is composed with.

    They are upper bounds (m,) on -log(1 - delta(0)), upper bounds (m, a) on the logs of the sums over cells of
    P^a Q^(1-a), and bounds (m, 2) on delta at ``epsilon``.

    The log of a sum of n terms, each two functions of an exponent that is at most 750 in size, is right to
    16 F (n + 750), where F is the error of a function in this arithmetic (``arithmetic().function``).
    """
    # Edges of the cells, in nats from the pair's central loss. Sound for any values that increase: tightness only.
    edges = np.concatenate([-np.exp2(np.arange(12.0, -40.0, -0.25)), np.exp2(np.arange(-40.0, 12.25, 0.25))])

    def of(pair: DominatingPair) -> tuple[Array, Array, Array]:
        infinity = jnp.full(1, jnp.inf)
        cells = pair.cell_masses(jnp.concatenate([-infinity, pair.central_loss() + jnp.asarray(edges), infinity]))
        log_p, log_q = jnp.log(cells.p + cells.p_error + TINY), jnp.log(cells.q + cells.q_error + TINY)
        sums = jax.vmap(lambda a: jax.nn.logsumexp(a * log_p + (1 - a) * log_q))(jnp.asarray(POWERS))
        sums = sums + arithmetic().function * 16 * (len(edges) + 750)
        _, unnoticed = pair.one_run(jnp.zeros(()))
        noticed = jnp.minimum(unnoticed + pair.infinite_mass(), 1.0)
        return -log_complement(noticed) * (1 + 2 * arithmetic().function), sums, jnp.stack(pair.one_run(epsilon))

    return of_each(of)(pairs)


def without_composing(parts: Parts, question: Question) -> tuple[Array, Array]:
    """Returns bounds (lower, upper) that answer a question, for one direction."""
    epsilon = np.float64(0.0) if isinstance(question, ForEpsilon) else question.epsilon
    every = [logs_of(pairs, epsilon) for pairs, _ in parts]
    lower, upper = _bracket([steps for _, steps in parts], every, facts_of(parts), question)
    # From below the bound is that of the pairs' product.
    return (lower if all(pairs.has_attained_product for pairs, _ in parts) else 0 * lower), upper


@compiled
def _bracket(
    counts: list[Array], every: list[tuple[Array, Array, Array]], facts: Facts, question: Question
) -> tuple[Array, Array]:
    run = [steps > 0 for steps in counts]
    noticed = [jnp.sum(jnp.where(r, k * log, 0.0)) for r, k, (log, *_) in zip(run, counts, every, strict=True)]
    sums = [
        jnp.sum(jax.vmap(lambda r, k, row: jnp.where(r, k * row, 0.0))(r, k, logs), axis=0)
        for r, k, (_, logs, _) in zip(run, counts, every, strict=True)
    ]
    # Relative allowance for sums and products, which round once for each term, and for the function applied to them.
    rounding = arithmetic().function * (4 + sum(map(len, counts)))
    # Where sums of P miss one, the product of all takes the place of the 1 that is left of each bound. From above the
    # other product only helps: the difference grows with every sum.
    missed = 0.0 if facts.missed is None else facts.missed
    most = jnp.minimum(-jnp.expm1(-sum(noticed, jnp.zeros(()))) * (1 + rounding) + missed, 1.0)
    log_overlap = sum(sums, jnp.zeros(len(POWERS)))
    log_overlap = log_overlap + rounding * jnp.abs(log_overlap)
    rest = 1 - POWERS
    if isinstance(question, ForEpsilon):
        # The composition's delta at eps exceeds the given one as long as e^((1-a) eps) times the overlap is below one
        # less the given delta: epsilon is above every such eps.
        lower = jnp.max((log_complement(jnp.minimum(question.delta + missed, 1.0)) - log_overlap) / rest)
        lower, upper = lower - rounding * jnp.abs(lower), jnp.where(most <= question.delta, 0.0, jnp.inf)
    else:
        log_missed = jnp.min(rest * question.epsilon + log_overlap)
        # An overlap of less than a unit of roundoff would leave exactly 1, which need not be below delta.
        lower = -jnp.expm1(log_missed + rounding * (jnp.abs(log_missed) + question.epsilon)) - missed
        lower = lower - 2 * arithmetic().function * jnp.abs(lower)
        # A single run's delta is the pair's own. Infinite losses take part with their least probability from below and
        # their greatest from above.
        alone = [jnp.sum(jnp.where(r[:, None], own, 0.0), axis=0) for r, (*_, own) in zip(run, every, strict=True)]
        is_alone = sum(map(jnp.sum, counts), jnp.zeros(())) == 1
        least, greatest = sum(alone, jnp.zeros(2)) + jnp.stack(facts.infinite) * (1 + jnp.array([-rounding, rounding]))
        lower = jnp.where(is_alone, jnp.maximum(lower, least * (1 - rounding)), lower)
        upper = jnp.where(is_alone, jnp.minimum(most, greatest * (1 + rounding)), most)
    known = facts.is_valid & ~jnp.isnan(lower)
    return jnp.where(known, jnp.maximum(lower, 0.0), 0.0), jnp.where(facts.is_valid, upper, question.worst)


# ----------------------------------------------------------------------------------------------------
# The evolving mesh as a composer, whose sizes are numbers of points.
# ----------------------------------------------------------------------------------------------------

Answer = tuple[Bounds, Diagnostics]
"""A bracket and its record."""


def mesh_of(method: Method) -> Composer:
    """Returns the evolving mesh by a choice of meshes; the gap falls with the square of the number of points."""
    return Composer(
        sizes=SIZES,
        shares=tuple((LEAST / points) ** 2 for points in SIZES),
        cells=lambda points: points // PER_ATOM,
        # Numbers that lanes hold at a time, some 32 for each point: a gigabyte. Speed and memory only.
        lanes=lambda points: max(2**22 // points, 1),
        answers=functools.partial(answers_by_work, method=method),
        rough=without_composing,
    )


# ----------------------------------------------------------------------------------------------------
# Compositions as laws on meshes, all at one tilt, for adaptive uses.
# ----------------------------------------------------------------------------------------------------


def sum_each(compositions: Sequence[Parts], shares: Sequence[float], epsilon: float, points: int) -> list[evolving.Sum]:
    """Returns the sums of several compositions, each by itself, at one common tilt. Concrete arguments only.

    The tilt is chosen for delta at ``epsilon`` of a sum in which each occurs as often as ``shares`` say, and so are
    the tails that may be lost.
    """
    together = tuple(
        (pairs, share * steps) for parts, share in zip(compositions, shares, strict=True) for pairs, steps in parts
    )
    question = ForDelta(np.float64(epsilon))
    laws, counts = laws_for(points // PER_ATOM, together, question)
    plan = _plan_together(points, laws, counts, question, np.float64(max(*shares, 1.0)))
    sums, start = [], 0
    # The rows of all compositions lie one after the other.
    for parts in compositions:
        runs = np.concatenate([steps for _, steps in parts])
        rows = slice(start, start + len(runs))
        sums.append(_sum_as_planned(points, Atoms(*(leaf[rows] for leaf in laws)), runs, plan))
        start = rows.stop
    return sums


@compiled(static=("points",))
def _plan_together(points: int, laws: Atoms, counts: Array, question: Question, times: Array) -> evolving.MeshPlan:
    # Sums are read anywhere.
    plan = evolving.plan_sum(laws, counts, points, epsilon=question.value, last=np.inf)
    # What a composition loses counts as often as it is run.
    return plan._replace(nats=plan.nats + jnp.log(times) + math.log(64.0))


@compiled(static=("points",))
def _sum_as_planned(points: int, laws: Atoms, counts: Array, plan: evolving.MeshPlan) -> evolving.Sum:
    return evolving.compose(laws, counts, points, plan=plan)


# ----------------------------------------------------------------------------------------------------
# The two verbs of the certified accountant, with the checks of their arguments.
# ----------------------------------------------------------------------------------------------------


def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    method: Method | str = Method.RECURSIVE,
    return_diagnostics: bool = False,
    arithmetic: Certified = "auto",
    error: tuple[float, float] | None = None,
) -> Any:
    """Returns certified bounds on epsilon of a composition, at ``delta``.

    Args:
        mechanism: as in :func:`jaxacct.epsilon`.
        steps: likewise.
        delta (): likewise.
        relation: likewise.
        tolerance: wanted relative gap ``(upper - lower) / upper``; concrete arguments only. The mesh is refined until
            the gap is that small or nothing more is gained; then ``converged`` is false and a
            :class:`~jaxacct.prv.ToleranceWarning` says so. Default 1e-3; 1e-6 is within reach of most settings.
        points: points of the mesh, at least 256 and a power of two or three times one, in place of ``tolerance``. 8192
            inside a trace.
        method: the choice of meshes: "recursive", which adds what fits at every stage, is best; "two_stage", in two
            steps of about the root of the number of runs, and "fixed", on one mesh, are for comparison
            (:class:`jaxacct.prv.Method`).
        return_diagnostics: whether to return a :class:`~jaxacct.prv.Diagnostics` as well.
        arithmetic: "auto" or "float64". There is no mesh in float32: on devices without float64 a traced call
            says nothing, and for concrete arguments the CPU beside them computes.
        error: wanted errors ``(a, b)`` of epsilon and of delta, in place of ``tolerance``: with ``converged`` true,
            ``upper`` is at most a above epsilon at ``delta`` - b, and ``lower`` at most a below epsilon at
            ``delta`` + b.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace. With
        ``return_diagnostics`` a pair of the bounds and the record.

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
    question = ForEpsilon(delta)
    return answer(
        mechanism, steps, question, relation, tolerance, points, return_diagnostics, arithmetic, error, method
    )


def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    method: Method | str = Method.RECURSIVE,
    return_diagnostics: bool = False,
    arithmetic: Certified = "auto",
    error: tuple[float, float] | None = None,
) -> Any:
    """Returns certified bounds on delta of a composition, at ``epsilon``.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta,
    ``inf`` asks for the mass of infinite losses, and ``tolerance`` is the relative gap of delta, 1e-2 by default. With
    ``error`` (a, b) ``upper`` is at most b above delta at ``epsilon`` - a, or at 0, and ``lower`` at most b below delta
    at ``epsilon`` + a. Where nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> bounds = delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0)
    >>> bool(bounds.lower <= 0.12693674 <= bounds.upper), bool(bounds.gap < 1e-2)
    (True, True)
    """
    question = ForDelta(epsilon)
    return answer(
        mechanism, steps, question, relation, tolerance, points, return_diagnostics, arithmetic, error, method
    )


def check_method(method: Method | str) -> Method:
    """Returns the choice of meshes that a name stands for; raises for any other."""
    if not isinstance(method, Method):
        validation.check_one_of(method, "method", tuple(each.value for each in Method))
    return Method(method)


def check_points(points: int) -> int:
    """Returns a mesh size as a Python integer; raises unless it is 2^n or 3 2^n, and a multiple of 128."""
    meaning = "the number of mesh points, a power of two or three times one"
    points = validation.check_whole(points, "points", 1, 2**24, meaning)
    is_length = points > 0 and (
        points & (points - 1) == 0 or (points % 3 == 0 and (points // 3) & (points // 3 - 1) == 0)
    )
    if points % 2**7 or not is_length:
        raise ValueError(
            f"points = {points} is not a number of mesh points: give a power of two, or three times one, at least 128 "
            "and a multiple of it."
        )
    return points


def check_error(error: tuple[float, float], question: Question, *, concrete: bool) -> None:
    """Raises where ``error`` is not a pair of errors, or has no answer."""
    if not concrete:
        raise ValueError(
            f"error = {error} cannot be used inside jit, vmap or scan, where the shapes are fixed before the gap is "
            "known: give points, the number of mesh points, instead."
        )
    if not isinstance(error, tuple) or len(error) != 2:
        raise ValueError(f"error = {error} is no pair: give the errors (of epsilon, of delta) as a tuple.")
    is_epsilon = isinstance(question, ForEpsilon)
    # The error of the answer has to be above 0; the other one may be 0.
    for value, name, alone in zip(error, ("error[0]", "error[1]"), (is_epsilon, not is_epsilon), strict=True):
        validation.check_number(value, name)
        if not (value > 0 or (value == 0 and not alone)) or not np.isfinite(value):
            what = "above 0" if alone else "0 or above"
            raise ValueError(f"{name} = {value} is no error for {question.name}: give a finite number {what}.")
    if is_epsilon and not error[1] <= question.value < 1 - error[1]:
        raise ValueError(
            f"error[1] = {error[1]} is not below delta = {question.value}: give an error that leaves a delta to ask at."
        )


def check_options(tolerance: float | None, points: int | None, *, concrete: bool) -> tuple[float | None, int | None]:
    """Returns tolerance and points as numbers of Python; raises where they do not go together, or are out of range."""
    if tolerance is not None:
        validation.check_scalar(tolerance, "tolerance")
    if points is not None:
        if tolerance is not None:
            raise ValueError("tolerance and points are both given: give the gap wanted, or the size of the mesh.")
        points = check_points(points)
    if tolerance is not None:
        if not concrete or isinstance(tolerance, jax.core.Tracer):
            raise ValueError(
                f"tolerance = {tolerance} cannot be used inside jit, vmap or scan, where the shapes are fixed before "
                "the gap is known: give points, the number of mesh points, instead."
            )
        validation.check_positive(tolerance, "tolerance")
        tolerance = float(tolerance)
    return tolerance, points


def _in_trace(query: Query, points: int, method: Method) -> Answer:
    """Returns the answer inside a trace, whose derivatives are differences on meshes of as many points."""
    leaves, structure = jax.tree.flatten(query)

    def value_of(leaves: list[Any]) -> Answer:
        anew: Query = jax.tree.unflatten(structure, leaves)
        if not anew.is_concrete:
            return _answer_query(points, method, anew)
        check_asked(*anew.run)
        return at_size(mesh_of(method), anew.directions, anew.question, points)

    def slopes_of(leaves: list[Any], moving: tuple[int, ...]) -> Any:
        if is_concrete(leaves):
            return differences(value_of, leaves, moving, query.counts_runs(), _says(query.question.worst))
        return _slopes_of_query(points, method, moving, jax.tree.unflatten(structure, leaves))

    return by_slopes(value_of, slopes_of, "jaxacct.prv")(leaves)


def _says(worst: float) -> Known:
    """Returns a function that tells whether an answer says more than the worst one."""
    return lambda answer: answer[0].upper < worst


def _of_query(points: int, method: Method, query: Query) -> Answer:
    question = query.question.at(as_float64(query.question.value))
    if not arithmetic().has_transforms:
        # Nothing is known where transforms are not certified.
        nothing, none = jnp.zeros(()), jnp.full(2, jnp.inf)
        numbers = {name: nothing for name in ("order", "mesh", "start", "length", "infinite_mass", "lost")}
        record = Diagnostics(points=0, slack=none, slack_delta=none, shift=none, converged=nothing > 0, **numbers)
        return unknown(question), record
    return in_trace(mesh_of(method), query.directions, question, points)


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _answer_query(points: int, method: Method, query: Query) -> Answer:
    # On a CPU the lanes of a batch are worked off one after the other: each ends with its own loops.
    return batched_loops.one_by_one(_of_query, points, method)(query)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _slopes_of_query(points: int, method: Method, moving: tuple[int, ...], query: Query) -> Any:
    """Returns the answer, and its slopes in the numbers that move."""
    structure = jax.tree.structure(query)

    def find(leaves: list[Any]) -> Answer:
        return _of_query(points, method, jax.tree.unflatten(structure, leaves))

    def with_slopes(leaves: list[Any]) -> Any:
        return differences(find, leaves, moving, query.counts_runs(), _says(query.question.worst))

    return by_platform(with_slopes, jax.tree.leaves(query))


@within_scope
def answer(
    mechanism: Mechanisms,
    steps: Steps,
    question: Question,
    relation: Relation,
    tolerance: float | None = None,
    points: int | None = None,
    return_diagnostics: bool = False,
    arithmetic: Certified = "auto",
    error: tuple[float, float] | None = None,
    method: Method | str = Method.RECURSIVE,
) -> Any:
    """Returns the result of :func:`epsilon` or :func:`delta`, by the question."""
    check_asked(mechanism, steps, question)
    method = check_method(method)
    # A mesh composes by Fourier transforms, whose certificate is one of float64 alone.
    reason = " for a mesh; jaxacct.epsilon and jaxacct.delta have brackets in float32"
    validation.check_one_of(arithmetic, "arithmetic", ("auto", "float64"), reason)
    if asks_host(mechanism, steps, question):
        options = tolerance, points, return_diagnostics, arithmetic, error, method
        return by_host(answer, (mechanism, steps, question, relation, *options), {})
    concrete = is_concrete(mechanism, steps, question)
    tolerance, points = check_options(tolerance, points, concrete=concrete)
    if error is not None:
        if tolerance is not None or points is not None:
            raise ValueError("error is given beside tolerance or points: give one of the three.")
        check_error(error, question, concrete=concrete)
    query = Query(mechanism, steps, question, relation)
    if not concrete:
        bounds, record = _in_trace(query, points or LEAST, method)
    else:
        bounds, record = _of_numbers(
            query, error or tolerance or question.tolerance, points, method, return_diagnostics
        )
    return leave_scope((bounds, record)) if return_diagnostics else bounds


def _of_numbers(query: Query, goal: Goal, points: int | None, method: Method, has_record: bool) -> tuple[Bounds, Any]:
    """Returns the answer of concrete arguments, by meshes that reach a goal or by one of so many points.

    Where no mesh is needed there is one if the caller wants its record.
    """
    directions = query.directions
    if runs_nothing(directions) and not has_record:
        return zero(), None
    question, mesh = query.question.at(np.asarray(query.question.value, np.float64)), mesh_of(method)
    if is_out_of_range(directions) and not has_record:
        # No mesh narrows the bracket of pairs that are not valid.
        worst = np.float64(question.worst)
        if points is None:
            warn_of(question, worst, goal)
        return Bounds(np.float64(0.0), worst / 2, worst, np.bool_(False)), None
    return refine(mesh, directions, question, goal) if points is None else at_size(mesh, directions, question, points)


# ----------------------------------------------------------------------------------------------------
# The privacy profile: delta over epsilon, from a few compositions, each tilted for a part of the curve.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Curve:
    """A privacy profile: ``delta``, bounds of shape (n,), at each of the ``epsilon`` (n,)."""

    epsilon: Float[Array, " n"]
    delta: Bounds


@kernel(derivatives=Differences(lambda profile: profile.delta.upper < 1, nested=True))
def curve(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike | None = None,
    *,
    relation: Relation = "add_or_remove",
    points: int = LEAST,
    method: Method | str = Method.RECURSIVE,
) -> Curve:
    """Returns certified bounds on delta at many epsilons of a composition.

    Args:
        mechanism: as in :func:`~jaxacct.prv.epsilon`.
        steps: likewise.
        epsilon (n,): where delta is wanted; negative ones too. By default 100 from 0 to where delta is 1e-12, for which
            the arguments must be concrete.
        relation: as in :func:`~jaxacct.prv.epsilon`.
        points: likewise.
        method: likewise.

    Formal guarantee: for each entry that of :func:`~jaxacct.prv.delta`.

    Raises:
        ValueError: a concrete argument out of range, or no epsilon inside a trace.

    >>> from jaxacct import Gaussian
    >>> profile = curve(Gaussian(noise_multiplier=10.0), 100, [0.0, 1.0, 4.0])
    >>> [f"{d:.4f}" for d in profile.delta.upper.tolist()]
    ['0.3829', '0.1269', '0.0000']
    """
    check(mechanism, steps)
    method, points = check_method(method), check_points(points)
    if epsilon is None:
        last = answer(mechanism, steps, ForEpsilon(1e-12), relation, points=points).upper
        if isinstance(last, jax.core.Tracer) or not np.isfinite(last):
            raise ValueError("epsilon = None: no range is known for these arguments; give the epsilons that you want.")
        epsilon = np.linspace(0.0, float(last), 100)
    at: Any = as_float64(epsilon) if isinstance(epsilon, jax.core.Tracer) else np.asarray(epsilon, np.float64)
    if at.ndim != 1 or not at.size:
        raise ValueError(f"epsilon of shape {at.shape} is not a list of epsilons: give one axis, at least one entry.")
    directions = directed_parts(mechanism, steps, relation)
    if not arithmetic().has_transforms or is_out_of_range(directions):
        # Nothing is known without certified transforms, nor, on any mesh, of pairs that are not valid.
        nothing = Bounds(lower=0 * at, estimate=0 * at + 0.5, upper=0 * at + 1, converged=np.zeros(at.shape, bool))
        return Curve(epsilon=at, delta=nothing)
    profiles = [_profile(points, parts, at, method) for parts in directions]
    return leave_scope(Curve(epsilon=at, delta=_largest(profiles, at)))


Profile = tuple[Array, Array, Facts]
"""Lower and upper bounds on delta, (n,) each, of one direction, and the facts known of it without a mesh."""


@compiled(static=("points", "method"))
def _profile(points: int, parts: Parts, epsilons: Array, method: Method) -> Profile:
    """Returns bounds on delta at ``epsilons``: the best of sums tilted for several of them."""
    # Number of sums that make a curve, each tilted for another part of it. Tightness and speed only. Each of them
    # bounds the whole curve, so the best of them does.
    references = 4
    places = np.linspace(0, len(epsilons) - 1, 2 * references + 1)[1::2].round().astype(int)
    facts = facts_of(parts)

    def bound(reference: Array) -> tuple[Array, Array]:
        question = ForDelta(reference)
        laws, counts = laws_for(points // PER_ATOM, parts, question)
        total = sum_for(points, laws, counts, question, method, jnp.max(epsilons))
        # One epsilon after the other, to save memory: each is a sum over all points.
        return jax.lax.map(functools.partial(evolving.bound_delta, total), epsilons)

    # One sum after the other, each tilted for an epsilon in the middle of its part of the curve.
    lower, upper = jax.lax.map(bound, jnp.sort(epsilons)[places])
    return jnp.max(lower, axis=0), jnp.min(upper, axis=0), facts


@compiled
def _largest(directions: list[Profile], epsilons: Array) -> Bounds:
    """Returns the bounds on the largest delta of the directions."""
    # Where every loss is 0, delta is 1 - e^epsilon for epsilon below 0, and 0 otherwise.
    nothing = jnp.maximum(-jnp.expm1(epsilons), 0.0)

    def of_one(lower: Array, upper: Array, facts: Facts) -> tuple[Array, Array]:
        upper = jnp.where(facts.is_valid & ~jnp.isnan(upper), upper, 1.0)
        lower = jnp.where(facts.is_valid, lower, 0.0)
        closed = ForDelta(jnp.maximum(epsilons, 0.0)).close(Bounds(lower, upper, upper), facts)
        idle = facts.is_valid & facts.is_idle
        return (
            jnp.where(idle, nothing * (1 - 8 * roundoff()), jnp.where(epsilons < 0, lower, closed.lower)),
            jnp.where(idle, nothing * (1 + 8 * roundoff()), jnp.where(epsilons < 0, upper, closed.upper)),
        )

    sides = [of_one(*direction) for direction in directions]
    lower, upper = (functools.reduce(jnp.maximum, side) for side in zip(*sides, strict=True))
    bounds = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper)
    return replace(bounds, converged=bounds.gap <= ForDelta.tolerance)
