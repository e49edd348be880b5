"""The top level's verbs: certified bounds on epsilon, on delta and on the privacy profile, by the best route there is.

Each accountant proves a bracket of the same number, so the largest lower bound and the smallest upper bound hold
together. :func:`answer` takes the first route that applies to a composition. In reading order:

- searches (:class:`jaxacct.RepeatAndSelect`), alone and composed with others;
- :func:`epsilon`, :func:`delta` and :func:`curve`, the verbs;
- :func:`answer` and its routes;
- :func:`with_mesh`, the intersection of the exact accountant's bracket with that of the mesh.

*Searches* are bounded by the profile of one run, where Rényi curves alone would overstate the privacy loss. Accountants
come to these functions as an argument (:class:`Ask`), because the verbs that call them answer for the runs of a search
as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import prv, saddlepoint
from jaxacct.bounds import Bounds
from jaxacct.composition import ForDelta, ForEpsilon, Question, check, check_asked
from jaxacct.convert import one_parameter
from jaxacct.mechanisms import DiscretePair, ExponentialMechanism, Mechanism, RenyiOnly, RepeatAndSelect
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, directions, listed
from jaxacct.mechanisms.renyi_only import has_renyi_only
from jaxacct.numerics.arithmetic import CERTIFIED, Chosen
from jaxacct.numerics.by_work import one_by_one, stack, where_needed
from jaxacct.numerics.precision import in_float64, in_float64_by_programs, is_concrete, outside, scope
from jaxacct.numerics.programs import by_pairs, compiled, needs_pairs
from jaxacct.saddlepoint import one_run
from jaxacct.saddlepoint.accountant import Asked, unchecked
from jaxacct.selection import Binomial
from jaxacct.selection.profile import LARGEST, OneWay, Selection, pair_of
from jaxacct.validation import check_one_of

MOST_COMPOSED = 2.0**20
"""Largest number of runs of a search that are composed, in case that gives a smaller bound. Tightness only."""

RATIOS = 48
"""Number of epsilons at which the profile of one run is taken. Tightness and speed only.

Twice as many lower the epsilon of a search by a thousandth.
"""

BEYOND = 1e-3
"""Share of a given delta that the pairs of searches may count as infinite losses. Tightness only."""

RARE = 1e-12
"""Probability that the pairs of searches may count as infinite losses where delta is asked for. Tightness only."""


class Ask(NamedTuple):
    """The top level's accountants.

    Attributes:
        answer: certified bounds, from mechanism, steps, a question and a relation.
        curve: certified bounds on delta at many epsilons.
        by_curves: the bounds that Rényi curves alone prove, for the same arguments as ``answer``.
    """

    answer: Callable[..., Bounds]
    curve: Callable[..., Bounds]
    by_curves: Callable[..., Bounds]


def is_search(mechanism: Any, steps: Any) -> bool:
    """Returns whether a composition is one search alone."""
    return isinstance(mechanism, RepeatAndSelect) and np.ndim(steps) == 0 and steps == 1


def of_search(ask: Ask, search: RepeatAndSelect, questions: Question, relation: Relation) -> list[Bounds]:
    """Returns the bracket of a search for each number asked, the intersection of those by profile and Rényi curves."""
    directions(search, relation)
    run, trials = (search.mechanism, search.steps), search.trials
    each = [questions.at(value) for value in questions.value]
    by_curves = [ask.by_curves(search, 1, question, relation) for question in each]
    most: Any = trials.count if isinstance(trials, Binomial) else np.inf
    # Whoever sees all runs sees the best one, so their composition bounds the search.
    if most <= MOST_COMPOSED:
        often = jax.tree.map(lambda count: count * float(most), run[1])
        together = [ask.answer(run[0], often, question, relation) for question in each]
        by_curves = [no_more_than(*both) for both in zip(together, by_curves, strict=True)]
    selections = [
        Selection(way, trials) for way in profile_of_one_run(ask, run, questions, float(trials.mean), relation)
    ]
    if not selections:
        return [replace(found, lower=np.zeros(())) for found in by_curves]
    found = []
    # For each number asked, the worst of the directions by profile, and the curves' bound if that is less.
    for question, curves in zip(each, by_curves, strict=True):
        value = float(question.value)
        if isinstance(question, ForDelta):
            ends = [(way.lower(value), way.upper(value)) for way in selections]
        else:
            ends = [(way.most_epsilon(value), way.least_epsilon(value)) for way in selections]
        upper = min(max(high for _, high in ends), float(curves.upper))
        lower = min(max(low for low, _ in ends), upper)
        found.append(Bounds(np.float64(lower), np.float64(np.nan), np.float64(upper), np.asarray(False)))
    return found


def with_searches(ask: Ask, mechanism: Mechanisms, steps: Steps, question: Question, relation: Relation) -> Bounds:
    """Returns the bracket of a composition with mechanisms that are known by Rényi curves.

    The upper bound is that of the curves or, where all such mechanisms are searches, that of the composition of the
    pairs of their profiles, if it is less.
    """
    curves = ask.by_curves(mechanism, steps, question, relation)
    least = BEYOND * float(question.value) if isinstance(question, ForEpsilon) else RARE
    parts: list[Mechanism] = []
    counts: list[Any] = []
    # Each search is replaced by a pair that dominates it; where one has none, or another mechanism has only a Rényi
    # curve, the curves alone decide.
    for part, count in listed(mechanism, steps):
        if isinstance(part, RepeatAndSelect) and np.ndim(count) == 0 and least > 0:
            directions(part, relation)
            if count == 0:
                continue
            asked = ForEpsilon(np.array([least / float(np.asarray(count))]))
            ways = profile_of_one_run(ask, (part.mechanism, part.steps), asked, float(part.trials.mean), relation)
            pair = pair_of([Selection(way, part.trials) for way in ways], float(asked.value[0])) if ways else None
            if pair is None:
                return curves
            part = DiscretePair(*pair)
        elif isinstance(part, RenyiOnly):
            return curves
        parts.append(part)
        counts.append(count)
    if not parts:
        return curves
    found = no_more_than(ask.answer(tuple(parts), tuple(counts), question, relation), curves)
    return replace(found, lower=np.zeros(()), estimate=np.asarray(np.nan), converged=found.upper == 0)


def no_more_than(mesh: Bounds, curves: Bounds) -> Bounds:
    """Returns the mesh's bracket, or one with the curves' upper end if that is less, as it may be for loose pairs."""
    if mesh.upper <= curves.upper:
        return mesh
    lower = np.where(mesh.lower <= curves.upper, mesh.lower, 0.0)
    return Bounds(lower, np.asarray(np.nan), curves.upper, np.asarray(False))


def profile_of_one_run(
    ask: Ask, run: tuple[Any, Any], questions: Question, mean: float, relation: Relation
) -> list[OneWay]:
    """Returns the profile of one run, mechanism and steps, for questions on a search of ``mean`` runs.

    There is one profile for each direction, or the worse of both; none where no profile helps.
    """
    span = _span(ask, run, questions, mean, relation)
    if not 0 <= span < np.inf:
        return []
    apart = relation == "add_or_remove" and all({"remove", "add"} <= set(part.relations) for part, _ in listed(*run))
    ways: tuple[Relation, ...] = ("remove", "add") if apart else (relation,)
    epsilons = np.linspace(0.0, min(max(span, 1e-6), LARGEST), RATIOS)
    found = [ask.curve(*run, epsilons=epsilons, relation=way) for way in ways]
    # The largest of several profiles bounds from above alone: its chords are not those of any one of them.
    if not apart:
        found = [replace(found[0], lower=np.zeros(RATIOS))]
    return [OneWay.of(epsilons, forth, back) for forth, back in zip(found, found[::-1], strict=True)]


def _span(ask: Ask, run: tuple[Any, Any], questions: Question, mean: float, relation: Relation) -> float:
    """Returns the epsilon up to which the profile of one run is wanted: beyond it ``mean`` runs hardly count."""
    at = functools.partial(ask.answer, *run, relation=relation)
    lost = float(at(question=ForDelta(np.inf)).upper) * (1 + 1e-6)
    if isinstance(questions, ForEpsilon):
        return float(at(question=ForEpsilon(min(lost + float(np.min(questions.value)) / (100 * mean), 0.5))).upper)
    far, near = (float(at(question=ForEpsilon(min(lost + least, 0.5))).upper) for least in (1e-20, 1e-2))
    return max(min(far, float(np.max(questions.value))), near)


# ----------------------------------------------------------------------------------------------------
# The verbs of the top level: the exact accountant, and the mesh where that one has not converged.
#
# Both give brackets of the same number, so the larger lower bound and the smaller upper bound hold together. The exact
# accountant (:mod:`jaxacct.saddlepoint`) is asked first: its brackets are a million times narrower and cost less. The
# mesh (:mod:`jaxacct.prv`) answers for every composition.
# ----------------------------------------------------------------------------------------------------


def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Chosen = "auto",
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
        arithmetic: "auto" or "float64": float64, and pairs of float32 on platforms without it (a TPU). "pair": pairs of
            float32 on every platform. Pairs take no ``tolerance``, have no derivatives where they are asked for by
            name, and take a CPU seconds.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace. ``estimate`` is that
        of :mod:`jaxacct.saddlepoint` where it has converged, exact to about ten digits; so are derivatives, NaN
        elsewhere. In a batch on a CPU each setting takes its own route; other devices take both for all: call
        :mod:`jaxacct.saddlepoint` there.

    Formal guarantee: ``lower <= epsilon <= upper`` for the tight epsilon of the product of the dominating pairs, hence
    ``upper`` holds for the mechanisms composed adaptively with parameters fixed beforehand, under the given relation
    and the mechanisms' own sampling; ``lower`` where all are :attr:`~.Mechanism.tight`; rounding included. Invalid
    traced parameters and no noise give ``upper = inf``. If one of the mechanisms is known by its Rényi curve alone
    (:class:`jaxacct.mechanisms.RenyiOnly`) the composition is bounded by :func:`jaxacct.rdp.epsilon`: ``upper`` holds,
    ``lower`` is 0, and nothing has converged. Outside of a trace a :class:`jaxacct.RepeatAndSelect` is bounded by the
    profile of one run as well; alone it has a lower bound.

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
    arithmetic: Chosen = "auto",
) -> Bounds:
    """Returns certified bounds on delta of a composition, at ``epsilon``, by the best route there is.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta;
    ``inf`` asks for the mass of infinite losses. Where nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0).upper:.7f}"
    '0.1269367'
    """
    return answer(mechanism, steps, ForDelta(epsilon), relation, tolerance, points, arithmetic)


@in_float64(by_programs=True)
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
    of the ``deltas``. Many epsilons share a program and, where a mesh is needed, its few compositions.

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
        return jax.vmap(lambda question: answer(mechanism, steps, question, relation))(questions)
    alone = _alone(mechanism, steps)
    if is_search(*alone):
        return outside(stack(*of_search(_ASK, alone[0], questions, relation)))
    if isinstance(questions, ForEpsilon) or has_renyi_only(mechanism):
        return outside(stack(*(answer(mechanism, steps, questions.at(value), relation) for value in questions.value)))
    exact = saddlepoint.accountant.curve(mechanism, steps, questions, relation)
    mesh = functools.partial(prv.curve, mechanism, steps, questions.epsilon, relation=relation)
    return with_mesh(exact, lambda: mesh().delta, questions.tolerance)


def _questions(epsilons: ArrayLike | None, deltas: ArrayLike | None) -> Question:
    """Returns the questions (n,) that two optional lists ask; raises unless exactly one is given, and is in range."""
    if (epsilons is None) == (deltas is None):
        raise ValueError(f"epsilons = {epsilons} and deltas = {deltas}: give the one at which the other is wanted.")
    asked: Question = ForDelta(epsilons) if deltas is None else ForEpsilon(deltas)
    values = asked.value if isinstance(asked.value, jax.core.Tracer) else np.asarray(asked.value, np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{asked.given}s of shape {values.shape}: give a list, one axis with at least one entry.")
    asked.at(values).check()
    return asked.at(values)


class _Call(NamedTuple):
    """The arguments of a call of the top level."""

    mechanism: Any
    steps: Any
    question: Question
    relation: Relation
    tolerance: float | None
    points: int | None
    arithmetic: Chosen

    @property
    def run(self) -> tuple[Any, Any, Question]:
        """The arguments that have numbers to compute with."""
        return self.mechanism, self.steps, self.question

    def is_concrete(self) -> bool:
        """Returns whether Python sees all numbers."""
        return is_concrete(self.run)

    def is_certain(self) -> bool:
        """Returns whether the caller leaves the route open: then a closed form may do."""
        return self.arithmetic == "auto" and self.tolerance is self.points is None


@in_float64_by_programs
def answer(
    mechanism: Mechanisms,
    steps: Steps,
    question: Question,
    relation: Relation,
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Chosen = "auto",
) -> Bounds:
    """Returns the result of :func:`epsilon` or :func:`delta`, by the first of the routes that applies.

    Closed forms come first, then compositions that have one route only, then routes that depend on where they run. Each
    route's docstring names its case and the reason for it.
    """
    check_asked(mechanism, steps, question)
    check_one_of(arithmetic, "arithmetic", CERTIFIED)
    call = _Call(*_alone(mechanism, steps), question, relation, tolerance, points, arithmetic)
    # Each route returns None where it does not apply; the last one, ``_exact_first``, always does.
    for route in (_plain, _by_curve_alone, _of_range_alone, _in_pairs, _in_a_trace, _with_ranges):
        found = route(call)
        if found is not None:
            return found
    return _exact_first(call)


def _plain(call: _Call) -> Bounds | None:
    """Plain Gaussian mechanisms: a closed form, whatever the numbers, and no other route proves more."""
    known = call.is_certain() and one_run.is_plain(call.mechanism)
    if not known or needs_pairs("auto", *call.run):
        return None
    return unchecked(*saddlepoint.accountant.asked(*call.run, call.relation))


def _by_curve_alone(call: _Call) -> Bounds | None:
    """Compositions with a mechanism that is known by its Rényi curve alone: without a pair no accountant below applies.

    Searches have a second bound, by the profile of one run, if all numbers are concrete.
    """
    if not has_renyi_only(call.mechanism):
        return None
    prv.accountant.check_options(call.tolerance, call.points, concrete=True)
    mechanism, steps, question = call.run
    if not call.is_concrete():
        return _by_curves(*call.run, call.relation)
    if is_search(mechanism, steps):
        return of_search(_ASK, mechanism, question.at(np.atleast_1d(question.value)), call.relation)[0]
    return with_searches(_ASK, mechanism, steps, question, call.relation)


def _of_range_alone(call: _Call) -> Bounds | None:
    """Several runs of one exponential mechanism: their optimal composition is known, and tighter than that of pairs."""
    if not (call.is_certain() and _spans_a_range(*call.run)):
        return None
    return _of_range(*call.run, call.relation)


def _in_pairs(call: _Call) -> Bounds | None:
    """Numbers on a device without float64, or pairs asked for by name: this function, traced for pairs of float32."""
    if not needs_pairs(call.arithmetic, *call.run):
        return None
    prv.accountant.check_options(call.tolerance, call.points, concrete=False)
    return outside(by_pairs(functools.partial(answer, relation=call.relation, points=call.points), *call.run))


def _in_a_trace(call: _Call) -> Bounds | None:
    """Numbers that are traced: the exact accountant, and the mesh for what it leaves open, in one program."""
    asked, leaves = saddlepoint.accountant.asked(*call.run, call.relation)
    if is_concrete(leaves):
        return None
    prv.accountant.check_options(call.tolerance, call.points, concrete=False)
    # Beside a closed form a mesh would prove nothing more.
    closed = asked.has_closed_form(leaves)
    return _traced(asked, None if closed else call.points or prv.accountant.DEFAULT_POINTS, leaves)


def _with_ranges(call: _Call) -> Bounds | None:
    """Exponential mechanisms beside others: the mesh has their pairs, and Rényi curves may prove more than pairs do."""
    prv.accountant.check_options(call.tolerance, call.points, concrete=True)
    if not _holds_a_range(call.mechanism, call.steps):
        return None
    found = prv.accountant.answer(*call.run, call.relation, call.tolerance, call.points)
    return no_more_than(found, _by_curves(*call.run, call.relation))


def _exact_first(call: _Call) -> Bounds:
    """All other compositions: the exact accountant, then the mesh if that has not converged, then Rényi curves.

    The exact accountant takes milliseconds. Curves may prove more than a mesh far out, where masses are below what a
    mesh can tell from 0.
    """
    exact = unchecked(*saddlepoint.accountant.asked(*call.run, call.relation))
    if exact.converged:
        return exact if call.tolerance is None else replace(exact, converged=exact.gap <= call.tolerance)
    mesh = functools.partial(prv.accountant.answer, *call.run, call.relation, call.tolerance, call.points)
    found = with_mesh(exact, mesh, call.tolerance or call.question.tolerance)
    return found if found.converged else no_more_than(found, _by_curves(*call.run, call.relation))


def _by_curves(mechanism: Mechanisms, steps: Steps, question: Question, relation: Relation) -> Bounds:
    """Returns the bracket by Rényi curves, which bound from above only."""
    from jaxacct import rdp  # late, as few answers need it

    asked = rdp.epsilon if isinstance(question, ForEpsilon) else rdp.delta
    upper = asked(mechanism, steps, question.value, relation=relation)
    xp: Any = np if is_concrete(upper) else jnp
    nothing = xp.zeros_like(upper)
    return Bounds(nothing, xp.where(upper > 0, jnp.nan, 0.0), upper, upper == 0)


def _alone(mechanism: Any, steps: Any) -> tuple[Any, Any]:
    """Returns the one mechanism of a tuple of one, with its steps; others as they are."""
    if isinstance(mechanism, (tuple, list)) and len(mechanism) == 1:
        return mechanism[0], steps[0]
    return mechanism, steps


def _holds_a_range(mechanism: Any, steps: Any) -> bool:
    """Returns whether exponential mechanisms are composed with others, or with each other."""
    parts = mechanism if isinstance(mechanism, (tuple, list)) else (mechanism,) * np.ndim(steps)
    return any(isinstance(part, ExponentialMechanism) for part in parts)


def _spans_a_range(mechanism: Any, steps: Any, question: Question) -> bool:
    """Returns whether a composition is one exponential mechanism, run several times."""
    plain = isinstance(mechanism, ExponentialMechanism) and is_concrete(mechanism, steps, question)
    return plain and np.ndim(mechanism.epsilon) == np.ndim(steps) == 0 and 0 < mechanism.epsilon < np.inf and steps > 1


def _of_range(mechanism: Any, steps: Any, question: Question, relation: Relation) -> Bounds:
    """Returns the bracket of the optimal composition; for very many runs that of Rényi curves."""
    directions(mechanism, relation)
    span, count, value = float(mechanism.epsilon), int(steps), float(question.value)
    if isinstance(question, ForEpsilon) and value == 0:
        # Every t below the range has mass, so the losses' supremum is the number of runs times the range. Only one
        # product rounds.
        whole = np.float64(span * count)
        return Bounds(np.nextafter(whole, 0), whole, np.nextafter(whole, np.inf), np.True_)
    if not one_parameter.is_affordable(span, count):
        return _by_curves(mechanism, steps, question, relation)
    if isinstance(question, ForEpsilon):
        found = one_parameter.bounded_range_to_epsilon(span, count, value)
    else:
        found = one_parameter.bounded_range_to_delta(span, count, value)
    return found if found.converged else no_more_than(found, _by_curves(mechanism, steps, question, relation))


_ASK = Ask(answer, curve, _by_curves)
"""The accountants of this file, as the searches take them."""


def profile(run: tuple[Any, Any], questions: Question, mean: float, relation: Relation) -> list[OneWay]:
    """Returns the profile of one run by this file's accountants: see :func:`profile_of_one_run`."""
    return profile_of_one_run(_ASK, run, questions, mean, relation)


def is_settled(bounds: Bounds, tolerance: Any) -> Any:
    """Returns whether a bracket has converged, or is as narrow as is wanted."""
    return bounds.converged | (bounds.gap <= tolerance)


MESHES = 64
"""Number of meshes of a batch that are composed side by side. Speed and memory only."""


@in_float64_by_programs
def with_mesh(exact: Bounds, mesh: Callable[..., Bounds] | None, tolerance: float, *run: Any) -> Bounds:
    """Returns the exact accountant's brackets, intersected with the mesh's where they are not settled.

    Brackets are of numbers, or of concrete arrays of one shape. This is the one place that decides when a mesh is
    asked, ``mesh(*run)``: once, if any bracket is not settled; never if ``mesh`` is None. In a traced batch it is asked
    for the lanes that are not settled alone: there the mesh may depend on ``run`` only.
    """
    # A mesh costs far more than the exact accountant, so it is asked last and as seldom as possible.
    enough = outside(_judged(exact, tolerance))
    if mesh is None or (is_concrete(enough) and np.all(enough.converged)):
        return enough

    def both(enough: Bounds, run: tuple[Any, ...]) -> Bounds:
        return outside(_judged(enough.intersection(mesh(*run)), tolerance))

    if is_concrete(enough):
        return both(enough, run)
    return where_needed(jnp.logical_not(enough.converged), both, enough, enough, run, width=MESHES)


@compiled
def _judged(bounds: Bounds, tolerance: Any) -> Bounds:
    """Returns the bracket, converged where it is settled, and with its middle as the estimate where it has none."""
    settled = is_settled(bounds, tolerance)
    middle = bounds.lower + (bounds.upper - bounds.lower) / 2
    estimate = jnp.where(settled & jnp.isnan(bounds.estimate), middle, bounds.estimate)
    return replace(bounds, estimate=estimate, converged=settled)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _traced(asked: Asked, points: int | None, leaves: tuple[Any, ...]) -> Bounds:
    return _narrowed(asked, points, unchecked(asked, leaves), leaves)


@_traced.defjvp
def _traced_jvp(asked: Asked, points: int | None, primals: Any, tangents: Any) -> tuple[Bounds, Bounds]:
    # Derivatives are the exact accountant's: a mesh has none.
    exact, tangent = jax.jvp(functools.partial(unchecked, asked), primals, tangents)
    return _narrowed(asked, points, exact, *primals), tangent


def _narrowed(asked: Asked, points: int | None, exact: Bounds, leaves: tuple[Any, ...]) -> Bounds:
    """Returns the exact accountant's bracket with that of a mesh of so many points; None asks for no mesh."""
    if is_concrete(exact, leaves):
        if exact.converged:
            return exact
        narrowed = _with_points(asked, points, exact, leaves)
        with scope(by_programs=True):  # outside of the scope NumPy's float64 numbers would have float32 tangents
            return jax.device_put(narrowed)
    return one_by_one(_with_points, asked, points, settled=_has_converged, result=exact)(exact, leaves)


def _has_converged(exact: Bounds, leaves: tuple[Any, ...]) -> Any:
    return exact.converged


def _with_points(asked: Asked, points: int | None, exact: Bounds, leaves: tuple[Any, ...]) -> Bounds:
    def mesh(leaves: tuple[Any, ...]) -> Bounds:
        return prv.accountant.answer(*asked.arguments(leaves), asked.relation, points=points)

    return with_mesh(exact, mesh if points else None, asked.arguments(leaves)[-1].tolerance, leaves)
