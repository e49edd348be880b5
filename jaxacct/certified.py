"""The top level's verbs, and the accountants that they ask: certified bounds on epsilon, delta and the privacy profile.

Every accountant proves a bracket of the compositions that it knows. Each bracket holds, so their intersection does:
:func:`certify` chooses the accountants of a query, and intersects their brackets until one has converged. In reading
order:

- :func:`epsilon`, :func:`delta` and :func:`curve`, the verbs;
- :func:`answer` and :func:`certify`, the order of the accountants and its reasons;
- Rényi curves; the exact accountant and the composers of laws, for concrete numbers; both as one program, for traced
  ones;
- searches (:class:`jaxacct.RepeatAndSelect`), by the profile of one run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import prv, saddlepoint, validation
from jaxacct.bounds import Bounds
from jaxacct.choices import Certified
from jaxacct.composition import (
    ForDelta,
    ForEpsilon,
    Query,
    Question,
    check,
    check_asked,
    directed_parts,
    flat_runs,
    query_of,
)
from jaxacct.mechanisms import DiscretePair, ExponentialMechanism, Mechanism, RenyiOnly, RepeatAndSelect
from jaxacct.mechanisms.bounded_range import has_blocks
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.discrete_gaussian import cost, nearby, total_variation
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, directions, knows_both_ways, parts_of
from jaxacct.numerics.arithmetic import CHOICES, arithmetic, roundoff
from jaxacct.numerics.batched_loops import one_by_one, stack, where_needed
from jaxacct.numerics.derivatives import differences, of_first_order
from jaxacct.numerics.precision import as_float64, by_host, is_concrete, kernel, leave_scope, scope, within_scope
from jaxacct.numerics.programs import asks_host, compiled
from jaxacct.refinement import warn_of
from jaxacct.saddlepoint import of_atoms
from jaxacct.saddlepoint.accountant import (
    decide,
    has_closed_form,
    in_float32,
    move_by,
    moving_leaves,
    unchecked,
    with_slopes,
)
from jaxacct.selection import LARGEST, Binomial, OneWay, Selection, pair_of
from jaxacct.validation import check_one_of


def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Certified = "auto",
) -> Bounds:
    """Returns certified bounds on epsilon of a composition, at ``delta``, by the best route there is.

    An array of noise multipliers is one composition of as many mechanisms, not a batch: batches are ``jax.vmap``.

    Args:
        mechanism: one mechanism (scalar fields) run ``steps`` times; or fields with one leading axis (m,), a sequence
            composed together; or a tuple of mechanisms composed together.
        steps: number of adaptive runs, whole and at least 0, of the shape () or (m,), or a tuple. May be traced.
        delta (): failure probability in [0, 1); 0 asks for the pure epsilon, the supremum of the loss. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: relative gap wanted, of concrete arguments only; by default 5e-5 of epsilon and 5e-4 of delta where
            the exact accountant leaves more open. Smaller ones take longer; a gap that is not reached is warned of.
        points: points of an evolving mesh, where one is composed: in a trace in place of atoms on a contour, elsewhere
            for what few of these leave open.
        arithmetic: "auto" or "float64": float64, and float32 in a program for a platform without it (a TPU).
            "float32": float32 on every platform. Its bracket, mostly some 1e-4 wide, is that of the float32 numbers
            nearest to the parameters given; where it has none Rényi curves bound from above. It takes no ``tolerance``.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace. ``estimate`` is that
        of :mod:`jaxacct.saddlepoint` where it has converged, exact to about ten digits; so are derivatives, elsewhere
        differences of :mod:`jaxacct.prv`, right to about four digits. In a batch on a CPU each setting takes its own
        route; other devices take both for all: call :mod:`jaxacct.saddlepoint` there.

    Formal guarantee: ``lower <= epsilon <= upper`` for the tight epsilon of the product of the dominating pairs, hence
    ``upper`` holds for the mechanisms composed adaptively with parameters fixed beforehand, under the given relation
    and the mechanisms' own sampling; ``lower`` where all are :attr:`~.Mechanism.tight`; rounding included. Invalid
    traced parameters and no noise give ``upper = inf``. If one of the mechanisms is known by its Rényi curve alone
    (:class:`jaxacct.mechanisms.RenyiOnly`) the composition is bounded by :func:`jaxacct.rdp.epsilon`: ``upper`` holds,
    ``lower`` is 0, and nothing has converged. Outside of a trace a :class:`jaxacct.RepeatAndSelect` is bounded by the
    profile of one run as well; alone it has a lower bound. A :class:`jaxacct.DiscreteGaussianVector` costs what
    Gaussian noise does, and what their distance adds to delta. A mechanism that says what neighbouring data sets attain
    (:meth:`.Mechanism.attained`, as shuffled batches do) has the ``lower`` of those, which holds for the mechanism;
    then ``estimate`` is NaN unless the bracket is narrow.

    Raises:
        ValueError: a concrete argument out of range, an unsupported relation, shapes that do not match, both or bad
            ``tolerance`` and ``points``.

    Source: :func:`jaxacct.saddlepoint.epsilon` and :func:`jaxacct.prv.epsilon`.

    >>> from jaxacct import Gaussian
    >>> bounds = epsilon(Gaussian(noise_multiplier=10.0), steps=100, delta=1e-5)
    >>> f"{bounds.upper:.7f}", bool(bounds.gap < 1e-9)
    ('4.3771781', True)
    """
    return answer(mechanism, steps, ForEpsilon(delta), relation, tolerance, points, arithmetic)


def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Certified = "auto",
) -> Bounds:
    """Returns certified bounds on delta of a composition, at ``epsilon``, by the best route there is.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta;
    ``inf`` asks for the mass of infinite losses. Where nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0).upper:.7f}"
    '0.1269367'
    """
    return answer(mechanism, steps, ForDelta(epsilon), relation, tolerance, points, arithmetic)


@kernel
def curve(
    mechanism: Mechanisms,
    steps: Steps,
    *,
    epsilons: ArrayLike | None = None,
    deltas: ArrayLike | None = None,
    relation: Relation = "add_or_remove",
) -> Bounds:
    """Returns certified bounds on delta at many epsilons of a composition, or on epsilon at many deltas: its profile.

    Args:
        mechanism: as in :func:`epsilon`.
        steps: likewise. May be traced.
        epsilons (n,): at least 0, in any order; or else
        deltas (n,): in [0, 1), in any order. Either may be traced.
        relation: neighbouring relation, one that the mechanisms support.

    Returns :class:`~jaxacct.bounds.Bounds` of shape (n,): on delta at each of the ``epsilons``, or on epsilon at each
    of the ``deltas``. Many epsilons share a program and laws.

    Formal guarantee: that of :func:`delta`, or of :func:`epsilon`, for each entry; errors and source are theirs.

    Raises:
        ValueError: as they do; both or neither of ``epsilons`` and ``deltas`` given; one that is no list.

    >>> from jaxacct import Gaussian
    >>> profile = curve(Gaussian(noise_multiplier=10.0), 100, epsilons=[0.0, 1.0, 4.0])
    >>> profile.upper.round(7).tolist()
    [0.3829249, 0.1269367, 4.71e-05]
    >>> curve(Gaussian(noise_multiplier=10.0), 100, deltas=[1e-5, 1e-3]).upper.round(7).tolist()
    [4.3771781, 3.1386705]
    """
    questions = _questions(epsilons, deltas)
    check(mechanism, steps)
    if not is_concrete(mechanism, steps, questions):
        # An array of JAX's, as a trace takes no mapped constant of NumPy's.
        return jax.vmap(lambda question: answer(mechanism, steps, question, relation))(
            jax.tree.map(as_float64, questions)
        )
    return _answer_many(query_of(mechanism, steps, questions, relation))


def _answer_many(query: Query) -> Bounds:
    """Returns the answers to concrete questions (n,), which share programs and compositions where they can."""
    if is_search(query):
        return leave_scope(stack(*of_search(query)))
    questions, facts = query.question, query.facts
    if facts.has_attained:
        return _between(query, _answer_many)
    is_single = facts.has_curves_only or facts.has_ranges or facts.has_integer_vectors
    if isinstance(questions, ForEpsilon) or is_single:
        return leave_scope(stack(*(certify(query.at(value)) for value in questions.value)))
    exact = saddlepoint.accountant.curve(query)
    return narrow_down(exact, functools.partial(of_atoms.curve, query), questions.tolerance)


def _questions(epsilons: ArrayLike | None, deltas: ArrayLike | None) -> Question:
    """Returns the questions (n,) that two optional lists ask; raises unless exactly one is given, and is in range."""
    if (epsilons is None) == (deltas is None):
        raise ValueError(f"epsilons = {epsilons} and deltas = {deltas}: give the one at which the other is wanted.")
    name, value = ("deltas", deltas) if epsilons is None else ("epsilons", epsilons)
    validation.check_numbers(**{name: value})
    values: Any = value if isinstance(value, jax.core.Tracer) else np.asarray(value, np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{name} of shape {values.shape}: give a list, one axis with at least one entry.")
    questions: Question = ForDelta(values) if deltas is None else ForEpsilon(values)
    questions.check()
    return questions


@within_scope
def answer(
    mechanism: Mechanisms,
    steps: Steps,
    question: Question,
    relation: Relation,
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Certified = "auto",
    *,
    by_pairs: bool = False,
) -> Bounds:
    """Returns the result of :func:`epsilon` or :func:`delta`, by the question, after the checks of the arguments.

    ``by_pairs`` asks for the bracket of the dominating pairs, of one number, also where data sets attain less.
    """
    check_asked(mechanism, steps, question)
    check_one_of(arithmetic, "arithmetic", CHOICES)
    if asks_host(mechanism, steps, question):
        options = tolerance, points, arithmetic
        by_cpu: Bounds = by_host(answer, (mechanism, steps, question, relation, *options), {"by_pairs": by_pairs})
        return by_cpu
    query = query_of(mechanism, steps, question, relation, arithmetic=arithmetic)
    if tolerance is not None or points is not None:
        is_refined = (query.is_concrete and arithmetic != "float32") or query.facts.has_curves_only
        tolerance, points = prv.accountant.check_options(tolerance, points, concrete=is_refined)
        query = replace(query, tolerance=tolerance, points=points)
    bounds = certify(_by_pairs(query) if by_pairs else query)
    return bounds if tolerance is None else _within_tolerance(bounds, tolerance)


def certify(query: Query) -> Bounds:
    """Returns the bracket of a query by the accountants that know it: what is cheap and final comes first.

    The arguments have been checked; the float64 scope is entered.
    """
    facts = query.facts
    if facts.has_integer_vectors:
        return _with_integer_vectors(query)
    if facts.has_attained:
        return _between(query, certify)
    if facts.is_gaussian and query.arithmetic == "auto" and query.tolerance is query.points is None:
        # A closed form may do where the caller leaves it open how the answer is found: it is the cheapest of all.
        bounds = unchecked(query)
    elif facts.has_curves_only:
        # Without a pair no accountant below knows anything.
        bounds = _with_searches(query) if query.is_concrete else _by_curves(query)
    elif query.arithmetic == "float32":
        bounds = in_float32(query, _answer_in_trace)
    elif not query.is_concrete:
        # Inside of a trace nothing can be looked at, so the exact accountant and a composer are one program.
        bounds = _answer_in_trace(query)
    else:
        # The exact accountant's brackets are a million times narrower than those of atoms, and cost less.
        bounds = _by_contour(query)
        if not bounds.converged:
            bounds = _by_composing(query, bounds)
        if not bounds.converged:
            # Curves may prove more than laws of atoms far out, where masses are below what these can tell from 0.
            bounds = _no_more_than(bounds, _by_curves(query))
    return _by_ranges(query, bounds) if facts.has_ranges else bounds


def _within_tolerance(bounds: Bounds, tolerance: float) -> Bounds:
    """Returns the bracket, converged only where it is as narrow as was asked."""
    return replace(bounds, converged=bounds.converged & ((bounds.gap <= tolerance) | (bounds.lower == bounds.upper)))


# ----------------------------------------------------------------------------------------------------
# Rényi curves: upper bounds for every mechanism, and all there is for some.
# ----------------------------------------------------------------------------------------------------


def _by_curves(query: Query) -> Bounds:
    """Returns the bracket by Rényi curves, which bound from above only."""
    from jaxacct import rdp  # late, as few answers need it

    verb = rdp.epsilon if isinstance(query.question, ForEpsilon) else rdp.delta
    mechanism, steps, question = query.run
    upper = verb(mechanism, steps, question.value, relation=query.relation)
    xp: Any = np if is_concrete(upper) else jnp
    return Bounds(xp.zeros_like(upper), xp.where(upper > 0, jnp.nan, 0.0), upper, upper == 0)


def _no_more_than(bounds: Bounds, curves: Bounds) -> Bounds:
    """Returns a bracket, or one with the curves' upper end if that is less, as it may be for loose pairs."""
    if bounds.upper <= curves.upper:
        return bounds
    lower = np.where(bounds.lower <= curves.upper, bounds.lower, 0.0)
    return Bounds(lower, np.asarray(np.nan), curves.upper, np.asarray(False))


def _by_ranges(query: Query, of_pairs: Bounds) -> Bounds:
    """Returns the bracket of exponential mechanisms, or the curves' bound where that is notably less.

    It may be for many ranges that differ, for wide ones, and far out. It is then the estimate as well. Without blocks
    the pairs' own bracket may lie above that of the blocks, so that its lower end says nothing.
    """
    # Relative distance below which two bounds are the same but for the laws of a block. Tightness only.
    notably = 1e-4
    curves = _by_curves(query)
    xp: Any = np if is_concrete(of_pairs, curves) else jnp
    less = (curves.upper < of_pairs.upper * (1 - notably)) | (
        xp.isnan(of_pairs.estimate) & (curves.upper == of_pairs.upper)
    )
    return Bounds(
        xp.where(less & ~(of_pairs.lower <= curves.upper) | (not has_blocks()), 0.0, of_pairs.lower),
        xp.where(less, curves.upper, of_pairs.estimate),
        xp.where(less, curves.upper, of_pairs.upper),
        ~less & of_pairs.converged,
    )


# ----------------------------------------------------------------------------------------------------
# Discrete Gaussian noise on vectors: by Gaussian noise near to it, whose guarantee is converted first.
#
# With tau the total variation of all such noise in a composition from what is made of the Gaussian noise, whose profile
# is delta'(epsilon), delta(epsilon) <= delta'(epsilon) + (1 + e^epsilon) tau (:mod:`.discrete_gaussian`). So epsilon at
# delta is at most the Gaussian's epsilon' at delta - (1 + e^x) tau, for every x that is not below that epsilon'. From
# below, delta''(epsilon) <= delta(epsilon) + (1 + e^epsilon) tau'' for Gaussian noise that is nearly made of the
# discrete one. At an epsilon up to x, delta''(epsilon) is so at most delta + (1 + e^x) tau'': the epsilon at delta is
# at least x, or at least the epsilon'' there.
# ----------------------------------------------------------------------------------------------------


def _with_integer_vectors(query: Query) -> Bounds:
    """Returns the bracket of a composition with discrete Gaussian noise on vectors, by two Gaussian ones."""
    # The x above, by a first answer: it has to be above epsilon, and e^x counts. Tightness only.
    factor, more = 1.5, 1.0
    value, is_epsilon = query.question.value, isinstance(query.question, ForEpsilon)
    xp: Any = np if query.is_concrete else jnp
    value = np.float64(value) if query.is_concrete else as_float64(value)

    def near(weight: Any, below: bool) -> tuple[Any, Any]:
        mechanism, total = nearby(query.mechanism, query.steps, weight, below=below)
        return mechanism, total_variation(total, xp.ones_like(total))

    def ask(mechanism: Any, value: Any) -> Bounds:
        # In the program's own arithmetic: float32 by choice would round the numbers of these mechanisms to its nearest.
        options = query.tolerance, query.points
        return certify(query_of(mechanism, query.steps, query.question.at(value), query.relation, *options))

    first = ask(near(0.0, False)[0], value).upper
    at, delta = (factor * first + more, value) if is_epsilon else (value, first)
    weight = (1 + xp.exp(xp.minimum(at, 80.0))) / xp.maximum(delta, 1e-30)
    # Each end: the mechanism near to this, and what it adds to delta.
    (upper_by, tau), (lower_by, other) = near(weight, True), near(weight, False)
    added, taken = cost(at, tau), cost(at, other)
    unit = 4 * roundoff()
    if is_epsilon:
        enough, some = added <= value / 2, value + taken < 1
        upper = ask(upper_by, xp.where(enough, (value - added) * (1 - unit), value)).upper
        upper = xp.where(enough & (upper <= at), upper, xp.inf)
        lower = ask(lower_by, xp.where(some, xp.minimum((value + taken) * (1 + unit), 1 - unit), 0.5)).lower
        lower = xp.where(some, xp.minimum(lower, at), 0.0)
    else:
        upper = xp.minimum((ask(upper_by, value).upper + added) * (1 + unit), 1.0)
        lower = xp.maximum((ask(lower_by, value).lower - taken) * (1 - unit), 0.0)
    bounds = Bounds(xp.minimum(lower, upper), xp.full_like(upper, xp.nan), upper, xp.zeros_like(upper, bool))
    return leave_scope(_judge(bounds, query.gap))


# ----------------------------------------------------------------------------------------------------
# Mechanisms between what dominates them and what neighbouring data sets attain.
#
# Replacing an example is zeroing out the one, and then undoing this for the other: for every event E, with M' the data
# set between, P(E) - e^(2 eps) Q(E) = (P - e^eps M')(E) + e^eps (M' - e^eps Q)(E), so that delta at 2 eps is at most
# (1 + e^eps) times that of zeroing out at eps, of the whole composition and the larger direction. Where epsilon of
# zeroing out, at delta/(1 + e^x), is at most x, epsilon of replacing is so at most twice that.
# ----------------------------------------------------------------------------------------------------


def _between(query: Query, ask: Callable[[Query], Bounds]) -> Bounds:
    """Returns the bracket with the upper end of the dominating pairs, and the lower one of what data sets attain.

    ``ask`` answers queries of mechanisms that are known by their pairs.
    """
    xp: Any = np if query.is_concrete else jnp
    upper = ask(_by_pairs(query)).upper
    if query.is_concrete and query.relation == "replace":
        upper = np.minimum(upper, _by_zeroing_out(query, ask))
    parts = flat_runs(query.mechanism, query.steps)
    counts = tuple(count for _, count in parts)
    known = [part.attained(query.relation) or ((part,),) for part, _ in parts]
    least: Any = query.question.worst
    # Of the cases that the mechanisms leave open the least lower end holds, and in each that of the best alternative.
    for case in itertools.product(*known):
        most: Any = 0.0
        for i in range(max(map(len, case))):
            mechanisms = tuple(alternatives[min(i, len(alternatives) - 1)] for alternatives in case)
            options = query.tolerance, query.points, query.arithmetic
            alternative = query_of(mechanisms, counts, query.question, query.relation, *options)
            most = xp.maximum(most, ask(_by_pairs(alternative)).lower)
            if query.is_concrete and np.all(most >= least):
                break
        least = xp.minimum(least, most)
    lower = xp.minimum(least, upper)
    bounds = Bounds(lower, xp.full_like(upper, xp.nan), upper, xp.zeros_like(upper, bool))
    return leave_scope(_judge(bounds, query.gap))


def _by_pairs(query: Query) -> Query:
    """Returns the query that is answered by the dominating pairs alone."""
    return replace(query, facts=query.facts._replace(has_attained=False))


def _by_zeroing_out(query: Query, ask: Callable[[Query], Bounds]) -> Any:
    """Returns the bound on replacing an example by zeroing it out twice; the worst answer where that is not known."""
    if not all("zero_out" in part.relations for part, _ in flat_runs(query.mechanism, query.steps)):
        return query.question.worst
    zero = replace(_by_pairs(query), relation="zero_out")
    value, unit = query.question.value, 1 + 8 * roundoff()
    if isinstance(query.question, ForDelta):
        half = value / 2
        with np.errstate(over="ignore", invalid="ignore"):
            doubled = ask(zero.at(half)).upper * (1 + np.exp(half)) * unit
        return np.minimum(np.nan_to_num(doubled, nan=1.0), 1.0)

    def of_half(x: Any) -> Any:
        return ask(zero.at(value / (1 + np.exp(np.minimum(x, 600.0))) / unit)).upper

    # An x that is above the epsilon sought, then its answer, and then where the line through both meets the diagonal:
    # an x below its own answer counts for nothing.
    first = 1.5 * ask(zero).upper + 1.0
    second = of_half(first)
    third = of_half(second)
    with np.errstate(all="ignore"):
        rise = (second - third) / (first - second)
        last = np.where(rise < 1, third - (second - third) * rise / (1 - rise), second) * (1 + 1e-4)
    answers = [(first, second), (second, third), (last, of_half(np.nan_to_num(last, nan=np.inf)))]
    least = functools.reduce(np.minimum, (np.where((e <= x) & (x <= 600.0), e, np.inf) for x, e in answers))
    return 2 * least * unit


# ----------------------------------------------------------------------------------------------------
# Concrete numbers: the exact accountant takes milliseconds, a composer tens of them.
# ----------------------------------------------------------------------------------------------------


def _by_contour(query: Query) -> Bounds:
    """Returns the bracket of the exact accountant, converged if it is as narrow as the caller wants."""
    exact: Bounds = leave_scope(decide(query)[0])
    if query.tolerance is not None:
        # Its own standard is the question's.
        exact = _within_tolerance(exact, query.tolerance)
    return exact if exact.converged else leave_scope(_judge(exact, query.gap))


def _by_composing(query: Query, exact: Bounds) -> Bounds:
    """Returns the bracket with that of a composer of laws, which has an answer for every composition of pairs."""
    bounds = leave_scope(_judge(exact.intersection(_compose(query)), query.gap))
    if query.points is None and is_concrete(bounds) and not bounds.converged:
        warn_of(query.question, float(bounds.gap), query.gap)
    return bounds


def _compose(query: Query) -> Bounds:
    """Returns the bracket by a composer of laws, or by Rényi curves in an arithmetic in which laws are not composed.

    In a trace that names points it is an evolving mesh, in place of the contour over atoms.
    """
    if not arithmetic().has_transforms:
        return _by_curves(query)
    if query.points is None or query.is_concrete:
        return of_atoms.answer(query)
    bounds: Bounds = prv.accountant.answer(*query.run, query.relation, points=query.points)
    return bounds


# ----------------------------------------------------------------------------------------------------
# Traced numbers: the exact accountant, and a composer for what it leaves open, as one program.
# ----------------------------------------------------------------------------------------------------


def _answer_in_trace(query: Query) -> Bounds:
    """Returns the bracket of the exact accountant, narrowed by a composer unless a closed form leaves nothing open."""
    return _answer_traced(has_closed_form(query), query)


LANES = 64
"""Number of a batch's compositions that are composed side by side. Speed and memory only."""


def _check_and_compose(query: Query) -> Bounds:
    """Returns :func:`_compose` of arguments that were traced; those that are concrete now are checked."""
    check_asked(*query.run)
    return _compose(query)


def is_settled(bounds: Bounds, tolerance: Any) -> Any:
    """Returns whether a bracket has converged, or is as narrow as is wanted."""
    return bounds.converged | (bounds.gap <= tolerance)


@within_scope
def narrow_down(exact: Bounds, other: Callable[..., Bounds] | None, tolerance: float, *run: Any) -> Bounds:
    """Returns the exact accountant's brackets, intersected with another's where they are not settled.

    Brackets are of numbers, or of concrete arrays of one shape. This is the one place that decides when another is
    asked, ``other(*run)``: once, if any bracket is not settled; never if it is None. In a traced batch it is asked for
    the lanes that are not settled alone: there it may depend on ``run`` only.
    """
    # Laws cost more than the exact accountant, so a composer comes last and as seldom as possible.
    enough = leave_scope(_judge(exact, tolerance))
    if other is None or (is_concrete(enough) and np.all(enough.converged)):
        return enough

    def both(enough: Bounds, run: tuple[Any, ...]) -> Bounds:
        return leave_scope(_judge(enough.intersection(other(*run)), tolerance))

    if is_concrete(enough):
        return both(enough, run)
    return where_needed(jnp.logical_not(enough.converged), both, enough, enough, run, width=LANES)


@compiled
def _judge(bounds: Bounds, tolerance: Any) -> Bounds:
    """Returns the bracket, converged where it is settled, and with its middle as the estimate where it has none."""
    settled = is_settled(bounds, tolerance)
    middle = bounds.lower + (bounds.upper - bounds.lower) / 2
    estimate = jnp.where(settled & jnp.isnan(bounds.estimate), middle, bounds.estimate)
    return replace(bounds, estimate=estimate, converged=settled)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _answer_traced(is_closed: bool, query: Query) -> Bounds:
    return _narrow(is_closed, unchecked(query), query)


@functools.partial(_answer_traced.defjvp, symbolic_zeros=True)
def _traced_jvp(is_closed: bool, primals: tuple[Query], tangents: tuple[Query]) -> tuple[Bounds, Bounds]:
    """Takes the exact accountant's derivatives, and where it has not converged the composer's differences."""
    (query,), (moves,) = primals, tangents
    moving, each = moving_leaves(query, moves), jax.tree.leaves(moves)
    exact, slopes = with_slopes(query)
    at = [slopes[i] for i in moving]
    with scope():
        if is_closed:
            bounds = _narrow(is_closed, exact, query)
        elif is_concrete(exact, at, query):
            bounds, at = jax.device_put(_with_differences(tuple(moving), (exact, at), query))
        else:
            narrowed = one_by_one(_with_differences, tuple(moving), settled=_is_known, result=(exact, at))
            bounds, at = narrowed((exact, at), query)
    return bounds, move_by(bounds, at, [each[i] for i in moving])


def _is_known(exact_and_slopes: tuple[Bounds, list[Any]], query: Query) -> Any:
    """Returns whether the exact accountant has converged, and knows its derivatives, for all of a batch."""
    exact, slopes = exact_and_slopes
    xp: Any = np if is_concrete(exact_and_slopes) else jnp
    return functools.reduce(lambda known, s: known & ~xp.any(xp.isnan(s)), slopes, xp.all(exact.converged))


def _with_differences(
    moving: tuple[int, ...], exact_and_slopes: tuple[Bounds, list[Any]], query: Query
) -> tuple[Bounds, list[Any]]:
    """Returns bracket and slopes, by a composer and its differences where the exact accountant does not know them."""
    counts, structure, worst = query.counts_runs(), jax.tree.structure(query), query.question.worst

    def compose(leaves: Sequence[Any]) -> Bounds:
        return _check_and_compose(jax.tree.unflatten(structure, leaves))

    def both(exact_and_slopes: tuple[Bounds, list[Any]], query: Query) -> tuple[Bounds, list[Any]]:
        exact, slopes = exact_and_slopes
        leaves = of_first_order(jax.tree.leaves(query), "jaxacct.epsilon")
        composed, rises = differences(compose, leaves, moving, counts, lambda bounds: bounds.upper < worst)
        ends = np.cumsum([np.size(leaves[i]) for i in moving])[:-1]
        # Of the slopes of all three ends those of the estimate.
        parts = [part.reshape(np.shape(leaves[i])) for part, i in zip(jnp.split(rises[1], ends), moving, strict=True)]
        slopes = [jnp.where(exact.converged & ~jnp.isnan(s), s, new) for s, new in zip(slopes, parts, strict=True)]
        return leave_scope((_judge(exact.intersection(composed), query.question.tolerance), slopes))

    known = _is_known(exact_and_slopes, query)
    if is_concrete(known):
        return exact_and_slopes if known else both(exact_and_slopes, query)
    exact, slopes = exact_and_slopes
    start = leave_scope((_judge(exact, query.question.tolerance), slopes))
    return where_needed(jnp.logical_not(known), both, start, exact_and_slopes, query, width=LANES)


def _narrow(is_closed: bool, exact: Bounds, query: Query) -> Bounds:
    """Returns the exact accountant's bracket with that of a composer, if there is no closed form."""
    if is_concrete(exact, query):
        if exact.converged:
            return exact
        narrowed = _with_composer(is_closed, exact, query)
        with scope():  # outside of the scope NumPy's float64 numbers would have float32 tangents
            return jax.device_put(narrowed)
    return one_by_one(_with_composer, is_closed, settled=lambda exact, _: exact.converged, result=exact)(exact, query)


def _with_composer(is_closed: bool, exact: Bounds, query: Query) -> Bounds:
    return narrow_down(exact, None if is_closed else _check_and_compose, query.question.tolerance, query)


# ----------------------------------------------------------------------------------------------------
# Searches, by the profile of one run, where Rényi curves alone would overstate the privacy loss.
# ----------------------------------------------------------------------------------------------------


def is_search(query: Query) -> bool:
    """Returns whether a composition is one search alone."""
    return isinstance(query.mechanism, RepeatAndSelect) and np.ndim(query.steps) == 0 and query.steps == 1


def of_search(query: Query) -> list[Bounds]:
    """Returns the bracket of a search for each number asked, the intersection of those by profile and Rényi curves."""
    # The largest number of runs of a search to compose, in case that gives a smaller bound. Tightness only.
    most_composed = 2.0**20
    search, questions, relation = query.mechanism, query.question, query.relation
    directions(search, relation)
    run, trials = (search.mechanism, search.steps), search.trials
    each = [questions.at(value) for value in questions.value]
    by_curves = [_by_curves(query.at(value)) for value in questions.value]
    most: Any = trials.count if isinstance(trials, Binomial) else np.inf
    # Whoever sees all runs sees the best one, so their composition bounds the search.
    if most <= most_composed:
        often = jax.tree.map(lambda count: count * float(most), run[1])
        together = [certify(query_of(run[0], often, question, relation)) for question in each]
        by_curves = [_no_more_than(*both) for both in zip(together, by_curves, strict=True)]
    ways = profile_of_one_run(run, questions, float(trials.mean), relation)
    selections = [Selection(way, trials) for way in ways]
    if not selections:
        return [replace(bounds, lower=np.zeros(())) for bounds in by_curves]
    brackets = []
    # For each number asked, the worst of the directions by profile, and the curves' bound if that is less.
    for question, curves in zip(each, by_curves, strict=True):
        value = float(question.value)
        if isinstance(question, ForDelta):
            ends = [(way.lower(value), way.upper(value)) for way in selections]
        else:
            ends = [(way.most_epsilon(value), way.least_epsilon(value)) for way in selections]
        upper = min(max(high for _, high in ends), float(curves.upper))
        lower = min(max(low for low, _ in ends), upper)
        brackets.append(Bounds(np.float64(lower), np.float64(np.nan), np.float64(upper), np.asarray(False)))
    return brackets


def _with_searches(query: Query) -> Bounds:
    """Returns the bracket of a composition with mechanisms that are known by Rényi curves, or of a search alone.

    The upper bound is that of the curves or, where all such mechanisms are searches, that of the composition of the
    pairs of their profiles, if it is less.
    """
    # The pairs of searches may count so much probability as infinite losses in a bound on delta. Tightness only.
    unasked = 1e-12
    # Share of a given delta that the pairs of searches may count as infinite losses. Tightness only.
    beyond = 1e-3
    mechanism, steps, question, relation = *query.run, query.relation
    if is_search(query):
        return of_search(query.at(np.atleast_1d(question.value)))[0]
    curves = _by_curves(query)
    least = beyond * float(question.value) if isinstance(question, ForEpsilon) else unasked
    parts: list[Mechanism] = []
    counts: list[Any] = []
    # Each search is replaced by a pair that dominates it; where one has none, or another mechanism has only a Rényi
    # curve, the curves alone decide.
    for part, count in parts_of(mechanism, steps):
        if isinstance(part, RepeatAndSelect) and np.ndim(count) == 0 and least > 0:
            directions(part, relation)
            if count == 0:
                continue
            rare = ForEpsilon(np.array([least / float(np.asarray(count))]))
            run = part.mechanism, part.steps
            ways = profile_of_one_run(run, rare, float(part.trials.mean), relation)
            pair = pair_of([Selection(way, part.trials) for way in ways], float(rare.value[0])) if ways else None
            if pair is None:
                return curves
            part = DiscretePair(*pair)
        elif isinstance(part, RenyiOnly):
            return curves
        parts.append(part)
        counts.append(count)
    if not parts:
        return curves
    composed = query_of(tuple(parts), tuple(counts), question, relation)
    bounds = _no_more_than(certify(composed), curves)
    return replace(bounds, lower=np.zeros(()), estimate=np.asarray(np.nan), converged=bounds.upper == 0)


@within_scope
def profile_of_one_run(run: tuple[Any, Any], questions: Question, mean: float, relation: Relation) -> list[OneWay]:
    """Returns the profile of one run, mechanism and steps, for questions on a search of ``mean`` runs.

    There is one profile for each direction, or the worse of both; none where no profile helps. The bound on a search in
    either direction takes the profiles of both, so ``relation`` is one that holds in both.

    Raises ValueError for "remove" and "add".
    """
    check_one_of(relation, "relation", RepeatAndSelect.relations, " by searches, whose bounds take both directions")
    # The profile of one run has so many epsilons. Tightness and speed only. Twice as many lower the epsilon of a search
    # by a thousandth.
    ratios = 48
    span = _span(run, questions, mean, relation)
    if not 0 <= span < np.inf:
        return []
    has_both_ways = relation == "add_or_remove" and knows_both_ways(*run)
    ways: tuple[Relation, ...] = ("remove", "add") if has_both_ways else (relation,)
    epsilons = np.linspace(0.0, min(max(span, 1e-6), LARGEST), ratios)
    queries = [query_of(*run, ForDelta(epsilons), way) for way in ways]
    profiles = list(map(_answer_many, queries))
    # The largest of several profiles bounds from above alone: its chords are not those of any one of them. A single
    # pair for both directions has one profile; but scores of an exponential mechanism are others at each epsilon, and
    # so may be the data sets that attain most.
    is_largest = not has_both_ways
    if relation == "add_or_remove" and not has_both_ways and not has_renyi_only(run[0]):
        is_largest = len(directed_parts(*run, relation)) > 1
    is_mixed = queries[0].facts.has_attained or any(
        isinstance(part, ExponentialMechanism) for part, _ in parts_of(*run)
    )
    if is_largest or is_mixed:
        profiles = [replace(profile, lower=np.zeros(ratios)) for profile in profiles]
    return [OneWay.of(epsilons, forth, back) for forth, back in zip(profiles, profiles[::-1], strict=True)]


def _span(run: tuple[Any, Any], questions: Question, mean: float, relation: Relation) -> float:
    """Returns the epsilon up to which the profile of one run is wanted: beyond it ``mean`` runs hardly count."""

    def upper(question: Question) -> float:
        return float(certify(query_of(*run, question, relation)).upper)

    lost = upper(ForDelta(np.inf)) * (1 + 1e-6)
    if isinstance(questions, ForEpsilon):
        return upper(ForEpsilon(min(lost + float(np.min(questions.value)) / (100 * mean), 0.5)))
    far, near = (upper(ForEpsilon(min(lost + least, 0.5))) for least in (1e-20, 1e-2))
    return max(min(far, float(np.max(questions.value))), near)
