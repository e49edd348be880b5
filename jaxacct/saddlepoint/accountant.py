"""The exact accountant's verbs: delta and epsilon by an integral through the saddle point, with derivatives.

An answer is one compiled program (:mod:`.solve`), or a closed form where there is one (:mod:`.closed_forms`); inside a
trace it is a primitive with a derivative rule of its own. In reading order: :func:`epsilon` and :func:`delta`;
:func:`answer` and :func:`unchecked`, from arguments to a bracket; :func:`curve`, many questions of one composition;
then the derivatives, by the implicit function theorem from those of log delta, which are central differences in the
parameters.

Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, ArrayLike

from jaxacct import validation
from jaxacct.bounds import Bounds, zero
from jaxacct.choices import Certified
from jaxacct.composition import (
    ForDelta,
    ForEpsilon,
    Parts,
    Query,
    Question,
    check_asked,
    facts_of,
    is_out_of_range,
    query_of,
    runs_nothing,
    unknown,
    without_computing,
)
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, choose
from jaxacct.mechanisms.normal import slopes_of_log_delta
from jaxacct.numerics.arithmetic import CHOICES, scale_error
from jaxacct.numerics.batched_loops import one_by_one, padded_rows
from jaxacct.numerics.derivatives import is_real, of_first_order
from jaxacct.numerics.precision import (
    as_float64,
    by_host,
    exact_float64,
    is_concrete,
    leave_scope,
    scope,
    settle,
    within_scope,
)
from jaxacct.numerics.programs import as_held, asks_host, by_float32, by_platform, compiled
from jaxacct.saddlepoint import closed_forms, solve
from jaxacct.saddlepoint.closed_forms import Closed, find_closed_forms

ROW = 32
"""Number of questions of one compiled call of :func:`curve`: one size, so one compilation. Speed only."""


def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    arithmetic: Certified = "auto",
) -> Bounds:
    """Returns epsilon of a composition at ``delta``, exact to about ten digits, with a certified bracket.

    Args:
        mechanism: as in :func:`jaxacct.epsilon`: one mechanism, a sequence by a leading axis, or a tuple.
        steps: likewise.
        delta (): likewise.
        relation: likewise.
        arithmetic: "auto" or "float64": float64, and float32 in a program for a platform without it (a TPU).
            "float32": float32 on every platform. Its bracket, mostly some 1e-4 wide, is that of the float32 numbers
            nearest to the parameters given; for Gaussian noise, sampled or not, alone or composed, and for single
            runs. Others have none.

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
    return answer(mechanism, steps, ForEpsilon(delta), relation, arithmetic)


def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    arithmetic: Certified = "auto",
) -> Bounds:
    """Returns delta of a composition at ``epsilon``, exact to about ten digits, with a certified bracket.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta;
    ``inf`` asks for the mass of infinite losses. Where nothing is known the bracket is (0, 1).

    >>> from jaxacct import Gaussian
    >>> f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0).estimate:.8f}"
    '0.12693674'
    """
    return answer(mechanism, steps, ForDelta(epsilon), relation, arithmetic)


def has_closed_form(query: Query) -> bool:
    """Returns whether it can be seen that a composition is a single run, or one of plain Gaussian mechanisms."""
    forms: list[Closed] = []
    leaves, structure = jax.tree.flatten(query)

    def look(leaves: list[Any]) -> None:
        forms.extend(find_closed_forms(jax.tree.unflatten(structure, leaves)))

    without_computing(look, leaves)
    return bool(forms)


def answer(
    mechanism: Mechanisms, steps: Steps, question: Question, relation: Relation, arithmetic: Certified = "auto"
) -> Bounds:
    """Returns the result of :func:`epsilon` or :func:`delta`, by the question."""
    check_asked(mechanism, steps, question)
    validation.check_one_of(arithmetic, "arithmetic", CHOICES)
    if asks_host(mechanism, steps, question):
        by_cpu: Bounds = by_host(answer, (mechanism, steps, question, relation, arithmetic), {})
        return by_cpu
    query = query_of(mechanism, steps, question, relation)
    return in_float32(query, _answer) if arithmetic == "float32" else unchecked(query)


def in_float32(query: Query, find: Callable[[Query], Bounds]) -> Bounds:
    """Returns the bracket that ``find``, a function of a module, gives of a query in float32."""
    with scope():
        held = jax.tree.map(as_held, query) if query.is_concrete else settle(query)
        return leave_scope(_in_float32(find, held))


@compiled(static=("find",))
def _in_float32(find: Callable[[Query], Bounds], query: Query) -> Bounds:
    return by_float32(find, query, result=zero())


def unchecked(query: Query) -> Bounds:
    """Returns the answer; where arguments are out of range the bracket says nothing."""
    if not query.is_concrete:
        query = settle(query)
    # The scope begins outside of the primitive, which would round NumPy's float64 numbers to float32 on the way in.
    with scope():
        return leave_scope(decide(query)[0] if query.is_concrete else _answer(query))


@jax.custom_jvp
def _answer(query: Query) -> Bounds:
    if query.facts.is_gaussian:
        return _of_plain(query)
    return one_by_one(_solve_in_scope, result=zero())(query)


@functools.partial(jax.jit, inline=True)
def _of_plain(query: Query) -> Bounds:
    """Returns the bracket by a closed form, which a batch evaluates side by side."""
    return by_platform(lambda query: decide(query)[0], query)


def _solve_in_scope(query: Query) -> Bounds:
    with scope():
        return decide(query)[0]


def decide(query: Query) -> tuple[Bounds, Any]:
    """Returns the largest of the directions' brackets, and the index of the direction that decides."""
    mechanism, steps, question = query.run
    if query.facts.is_gaussian:
        return closed_forms.of_plain(query.relation, query.facts, mechanism, steps, question), None
    directions = query.directions
    if query.is_concrete and runs_nothing(directions):
        return zero(), jnp.asarray(0)
    value = question.value
    question = question.at(np.asarray(value, np.float64) if is_concrete(value) else as_float64(value))
    runs = find_closed_forms(query)
    # Pairs that are not valid have no answer: a closed form would search in vain, for seconds.
    if is_out_of_range(directions) if runs else not has_laws(query):
        return unknown(question), jnp.asarray(0)
    if runs:
        return _of_runs(runs, question)
    if not _may_fall(query):
        bounds = _by_facts(tuple(directions), question.at(question.value[None]))
        return jax.tree.map(lambda leaf: leaf[0], bounds), jnp.asarray(0)
    return solve.bounds_of(tuple(directions), question)


@within_scope
def curve(query: Query) -> Bounds:
    """Returns the brackets that answer a query at numbers (n,), each as :func:`epsilon` or :func:`delta` would.

    Arguments are not checked. One program serves all mechanisms, relations and directions of a kind, which differ in
    numbers only.
    """
    directions, questions = query.directions, query.question
    runs = find_closed_forms(query)
    if is_out_of_range(directions) if runs else not has_laws(query):
        return leave_scope(unknown(questions.at(as_float64(questions.value))))
    solved = _one_by_one if _may_fall(query) else _by_facts
    each = functools.partial(_each_run, runs) if runs else functools.partial(solved, tuple(directions))
    # Rows of one length, the last one padded, so that one program serves any number of questions.
    pieces = [each(questions.at(as_float64(row))) for row in padded_rows(questions.value, ROW)]
    bounds = leave_scope(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces))
    # The cut of the padding comes last, where concrete arrays are NumPy's: it compiles nothing.
    return jax.tree.map(lambda leaf: leaf[: np.size(questions.value)], bounds)


@compiled
def _one_by_one(directions: tuple[Parts, ...], questions: Question) -> Bounds:
    # One question after the other: each takes as many lines and nodes as it needs.
    return jax.lax.map(lambda question: solve.bounds_of(directions, question)[0], questions)


@compiled
def _by_facts(directions: tuple[Parts, ...], questions: Question) -> Bounds:
    """Returns the brackets that need no integral, (n,): of the sum's supremum, and the mass of infinite losses."""

    def bracket(question: Question) -> Bounds:
        brackets = [question.close(unknown(question), facts_of(parts)) for parts in directions]
        return functools.reduce(lambda one, other: solve.larger(one, other)[0], brackets)

    return jax.vmap(bracket)(questions)


@compiled
def _each_run(runs: list[Closed], questions: Question) -> Bounds:
    return jax.lax.map(lambda question: _of_runs(runs, question)[0], questions)


def has_laws(query: Query) -> bool:
    """Returns whether this accountant knows all losses of a composition."""
    return all(pair.law() is not None for parts in query.directions for pair, _ in parts)


def may_answer(query: Query) -> bool:
    """Returns whether this accountant has a closed form of a composition, or an integral that may converge."""
    return bool(find_closed_forms(query)) or (has_laws(query) and _may_fall(query))


def _may_fall(query: Query) -> bool:
    """Returns whether the characteristic functions may fall, as far as a line needs to end.

    That of a direction's sum recurs to the product of what those of its laws recur to; numbers of runs that are traced
    count as infinitely many.
    """
    # Log of the modulus to which a characteristic function must fall for a line to end. Sound for any value. One that
    # is too small costs convergence. Of 320 random compositions of Laplace noise with a larger modulus four converged.
    fallen = -40.0
    for parts in query.directions:
        log_modulus = 0.0
        # A law that does not recur, or is not known, adds nothing.
        for pairs, counts in parts:
            law = pairs.law()
            if law is None or law.recurring >= 1:
                continue
            least = math.log(law.recurring) if law.recurring else -math.inf
            if not is_concrete(counts):
                log_modulus -= math.inf
            elif np.any(counts):
                log_modulus += least * float(np.sum(np.maximum(counts, 0)))
        if not log_modulus < fallen:
            return False
    return True


_larger = compiled(solve.larger)


def _of_runs(runs: Sequence[Closed], question: Question) -> tuple[Bounds, Any]:
    """Returns the larger of the closed forms' brackets, and the index of the direction that decides."""
    brackets = closed_forms.bounds_of_each(list(runs), question)
    return (brackets[0], jnp.asarray(0)) if len(brackets) == 1 else _larger(*brackets)


@functools.partial(_answer.defjvp, symbolic_zeros=True)
def _answer_jvp(primals: tuple[Query], tangents: tuple[Query]) -> tuple[Bounds, Bounds]:
    (query,), (moves,) = primals, tangents
    bounds, slopes = with_slopes(query)
    moving = moving_leaves(query, moves)
    _check_known(query, bounds, [slopes[i] for i in moving])
    every = jax.tree.leaves(moves)
    return bounds, move_by(bounds, [slopes[i] for i in moving], [every[i] for i in moving])


def moving_leaves(query: Query, moves: Query) -> list[int]:
    """Returns the places of the leaves of a query that are real and have a tangent."""
    pairs = zip(jax.tree.leaves(query), jax.tree.leaves(moves), strict=True)
    return [i for i, (leaf, move) in enumerate(pairs) if not isinstance(move, SymbolicZero) and is_real(leaf)]


def with_slopes(query: Query) -> tuple[Bounds, list[Any]]:
    """Returns the answer and its derivative in each leaf of the query, NaN where it is not known."""
    with scope():
        if query.is_concrete:
            return _with_slopes(query)
        leaves, structure = jax.tree.flatten(query)
        query = jax.tree.unflatten(structure, of_first_order(tuple(leaves), "jaxacct.saddlepoint"))
        answer_and_slopes: tuple[Bounds, list[Any]] = by_platform(_with_slopes, query)
        return answer_and_slopes


def move_by(bounds: Bounds, slopes: list[Any], moves: list[Any]) -> Bounds:
    """Returns the tangent of a bracket: all three numbers move alike, for a bound has no derivative of its own."""
    with scope():
        tangent = _sum_of_moves(slopes, moves)
        flat = np.zeros(np.shape(bounds.converged), jax.dtypes.float0)
    return Bounds(lower=tangent, estimate=tangent, upper=tangent, converged=flat)


def _check_known(query: Query, bounds: Bounds, slopes: list[Any]) -> None:
    """Raises ValueError where it can be seen that the integral does not converge, and so has no derivatives."""
    if query.is_concrete:
        is_known = bool(bounds.converged) or not any(np.any(np.isnan(slope)) for slope in slopes)
    else:
        seen: list[bool] = []
        leaves, structure = jax.tree.flatten(query)

        def look(leaves: Any) -> None:
            anew: Query = jax.tree.unflatten(structure, leaves)
            seen.append(bool(find_closed_forms(anew)) or has_laws(anew))

        if not query.facts.is_gaussian:
            without_computing(look, leaves)
        is_known = all(seen)
    if not is_known:
        raise ValueError(
            "the exact accountant has not converged for this composition, so its epsilon and delta have no derivatives "
            "there: differentiate jaxacct.epsilon or jaxacct.delta, which take a mesh's differences then."
        )


def _with_slopes(query: Query) -> tuple[Bounds, list[Any]]:
    """Returns the answer and its derivative with respect to each leaf of the query."""
    if query.facts.is_gaussian:
        answer_and_slopes: tuple[Bounds, list[Any]] = _plain_with_slopes(query)
        return answer_and_slopes
    directions = query.directions
    # This converts concrete numbers outside of the program, within which JAX would take them as float32.
    reals: Query = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if query.is_concrete else _real(leaf), query)
    question = reals.question
    if has_laws(query) and not find_closed_forms(query) and not runs_nothing(directions):
        bounds, by_leaves, by_epsilon = _with_log_slopes(reals)
        answer = leave_scope(bounds.estimate)
    else:
        bounds, decides = decide(query)
        answer = leave_scope(bounds.estimate)
        epsilon = answer if isinstance(question, ForEpsilon) else question.epsilon
        by_leaves, by_epsilon = _log_slopes(reals, epsilon, leave_scope(decides))
    return bounds, _slopes(question, answer, *leave_scope((by_leaves, by_epsilon)))


def _real(leaf: Any) -> Array:
    """Returns traced numbers as real ones; NaN for whole numbers that are too large to be exact."""
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return exact_float64(leaf)
    return (
        jnp.where(leaf > validation.MOST_STEPS, jnp.nan, as_float64(leaf))
        if leaf.dtype.itemsize > 4
        else as_float64(leaf)
    )


@compiled
def _plain_with_slopes(query: Query) -> tuple[Bounds, list[Any]]:
    """Returns the answer for plain Gaussian mechanisms, and its derivatives in closed form."""
    bounds, _ = decide(query)
    *run, question = jax.tree.map(as_float64, query).run

    def log_mu(run: Any) -> tuple[Array, Any]:
        gaussian = closed_forms.from_user(query.relation, query.facts, *run)
        return jnp.log(gaussian.mu), gaussian

    # By the chain rule through log mu, of which delta is a closed form.
    by_run, gaussian = jax.grad(log_mu, has_aux=True)(run)
    epsilon: Any = bounds.estimate if isinstance(question, ForEpsilon) else question.epsilon
    by_mu, by_epsilon = slopes_of_log_delta(gaussian.mu, epsilon)
    by_leaves = [by_mu * slope for slope in jax.tree.leaves(by_run)]
    return bounds, _slopes(question, bounds.estimate, by_leaves, by_epsilon)


@jax.jit
def _sum_of_moves(slopes: list[Array], moves: list[Array]) -> Array:
    """Returns the sum of slopes times moves.

    One program, as otherwise every operation and its transpose would be compiled by itself.
    """
    each = [jnp.sum(slope * jnp.asarray(move, slope.dtype)) for slope, move in zip(slopes, moves, strict=True)]
    return jnp.sum(jnp.stack(each)) if each else jnp.zeros(())


def _slopes(question: Question, answer: Any, by_leaves: list[Any], by_epsilon: Any) -> list[Any]:
    """Returns the derivative of the answer in each leaf of the arguments, by the implicit function theorem.

    ``by_leaves`` and ``by_epsilon`` are the derivatives of log delta in the leaves of mechanism and steps, and in
    epsilon. Where the answer is at an end of its range the derivative is 0.
    """
    # Epsilon solves log delta(epsilon, leaf) = log of the given delta, and the slopes of delta are delta times those of
    # its log.
    with np.errstate(all="ignore"):
        if isinstance(question, ForEpsilon):
            slopes = [-slope / by_epsilon for slope in by_leaves] + [1 / (question.delta * by_epsilon)]
            is_bound = answer <= 0
        else:
            slopes = [slope * answer for slope in by_leaves] + [by_epsilon * answer]
            is_bound = answer >= 1
    concrete = is_concrete(answer, slopes)
    return [(np if concrete else jnp).where(is_bound, 0.0, slope) for slope in slopes]


def _difference() -> float:
    """Returns the relative step of differences for the arithmetic in use."""
    # Relative step of central differences in float64: about the cube root of delta's relative error. Derivatives alone
    # depend on it.
    difference = 3e-5
    # Largest relative step of central differences in any arithmetic. Derivatives alone depend on it.
    widest = 1e-2
    return min(difference * math.cbrt(scale_error(1.0)), widest)


@compiled
def _with_log_slopes(query: Query) -> tuple[Bounds, list[Array], Array]:
    """Returns the answer, and the derivatives of log delta there in each leaf of mechanism and steps, and in epsilon.

    The derivative in epsilon is taken under the integral. Those in the parameters are central differences of the
    integral, which is exact enough for that: with a relative step h they err by about h^2, and by the integral's own
    error over h. One program does all, row by row: the answer first, then log delta at the answer, and then log delta
    with each number that it depends on moved up and moved down.
    """
    step = _difference()
    (*reals, value_asked), structure = jax.tree.flatten(query)
    question = query.question
    sizes = [leaf.size for leaf in reals]
    each = np.eye(sum(sizes), dtype=question.value.dtype)
    # Rows of moves: none for the answer, none for log delta at it, then each number up, and each number down.
    moves = np.concatenate([0 * each[:1], 0 * each[:1], each, -each])

    def row(decided_before: Any, task: Any) -> Any:
        (epsilon, decides), (is_asked, move) = decided_before, task
        moved: Query = jax.tree.unflatten(structure, [*_scale_leaves(reals, sizes, step * move), value_asked])
        state = solve.answer_directions(moved.directions, question, solve.Point(is_asked, epsilon, decides))
        at = state.bounds.estimate if isinstance(question, ForEpsilon) else question.epsilon
        decided = jnp.where(is_asked, epsilon, at), jnp.where(is_asked, decides, state.decides)
        return decided, (state.bounds, state.read)

    start = jnp.zeros_like(question.value), jnp.int32(0)
    # The state is the epsilon and the direction of the answer, which the first row finds and all others read at.
    _, (bounds, read) = jax.lax.scan(row, start, (np.arange(len(moves)) > 0, moves))
    (value, by_epsilon), count = read[1], sum(sizes)
    raised, lowered = read[2 : 2 + count, 0], read[2 + count :, 0]
    by_leaves = _differences(reals, sizes, value, raised, lowered, step)
    return jax.tree.map(lambda leaf: leaf[0], bounds), by_leaves, by_epsilon


def _scale_leaves(reals: list[Any], sizes: list[int], shares: Array) -> list[Array]:
    """Returns the leaves with each number moved by a share (n,) of itself.

    A number whose share is 0 stays the same bit by bit: a product would lose a subnormal number of steps.
    """
    parts = [part.reshape(x.shape) for x, part in zip(reals, jnp.split(shares, np.cumsum(sizes)[:-1]), strict=True)]
    return [jnp.where(part == 0, x, x * (1 + part)) for x, part in zip(reals, parts, strict=True)]


def _differences(reals: list[Any], sizes: list[int], value: Any, raised: Any, lowered: Any, step: Any) -> list[Any]:
    """Returns derivatives in each leaf from values (n,) where each number is moved up and down by a share of itself."""
    # At the end of a range only one side has a value: the difference is one-sided there.
    difference = jnp.where(
        jnp.isnan(raised), 2 * (value - lowered), jnp.where(jnp.isnan(lowered), 2 * (raised - value), raised - lowered)
    )
    pieces = jnp.split(difference / (2 * step), np.cumsum(sizes)[:-1])
    return [piece.reshape(x.shape) / jnp.where(x == 0, jnp.inf, x) for piece, x in zip(pieces, reals, strict=True)]


def _of_direction(decides: Array, *directions: Any) -> Any:
    """Returns the one of ``directions`` that decides."""
    return jax.tree.map(
        lambda *both: both[0] if len(both) == 1 else choose(decides == 1, both[1], both[0]), *directions
    )


@compiled
def _log_slopes(query: Query, epsilon: Array, decides: Array) -> tuple[list[Array], Array]:
    """Returns the derivatives of log delta at ``epsilon`` in each leaf of mechanism and steps, and in epsilon.

    They are central differences of closed forms. Next to the largest loss, beyond which delta is 0, steps are short of
    the distance to it: log delta falls there as the logarithm of the distance does.
    """
    # Largest step of differences, over the distance of epsilon from the largest loss. Derivatives alone depend on it.
    # Differences of a logarithm err by a third of the square of this share, and magnify roundings by its inverse.
    share_of_room = 1 / 256
    (*reals, value_asked), structure = jax.tree.flatten(query)

    def forms_of(reals: list[Array]) -> list[Closed]:
        return find_closed_forms(jax.tree.unflatten(structure, [*reals, value_asked]))

    largest = [jnp.inf if run.facts.suprema is None else run.facts.suprema[1] for run in forms_of(reals)]
    room = 1 - epsilon / _of_direction(decides, *largest) if largest else jnp.ones_like(epsilon)
    step = jnp.minimum(_difference(), share_of_room * room)

    def log_delta(reals: list[Array]) -> tuple[Array, Array]:
        runs = forms_of(reals)
        if not runs:
            return jnp.full_like(epsilon, jnp.nan), jnp.full_like(epsilon, jnp.nan)
        return _of_direction(decides, *(closed_forms.log_delta_at(run, epsilon, step) for run in runs))

    sizes = [leaf.size for leaf in reals]
    # The first row is the point itself; the next ones move each number up, and the last ones each number down.
    each = np.eye(sum(sizes), dtype=epsilon.dtype)

    moves = np.concatenate([0 * each[:1], each, -each])
    values, by_epsilon = jax.lax.map(lambda move: log_delta(_scale_leaves(reals, sizes, step * move)), moves)
    value, raised, lowered = values[0], values[1 : 1 + sum(sizes)], values[1 + sum(sizes) :]
    return _differences(reals, sizes, value, raised, lowered, step), by_epsilon[0]
