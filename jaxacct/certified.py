"""The top level's verbs, and the accountants that they ask: certified bounds on epsilon, delta and the privacy profile.

An :class:`Accountant` proves a bracket of the compositions that it supports. Each bracket holds, so their intersection
does: a verb asks the accountants of :data:`ACCOUNTANTS` in order and intersects what they prove, until the bracket has
converged (:func:`ask`). In reading order:

- :func:`epsilon`, :func:`delta` and :func:`curve`, the verbs;
- :class:`Composition`, what is asked, :class:`Accountant`, and :func:`ask`;
- the accountants, in the order in which they are asked: a closed form, Rényi curves for what has nothing else, pairs of
  float32 and the program of a trace, the exact accountant, the composers of laws, and Rényi curves;
- the accountant of searches (:class:`jaxacct.RepeatAndSelect`), which is given others for the runs of a search;
- :data:`ACCOUNTANTS`, their order and its reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import ArrayLike

from jaxacct import prv, saddlepoint, validation
from jaxacct.bounds import Bounds
from jaxacct.composition import ForDelta, ForEpsilon, Question, check, check_asked, directed_parts
from jaxacct.mechanisms import DiscretePair, ExponentialMechanism, Mechanism, RenyiOnly, RepeatAndSelect
from jaxacct.mechanisms.bounded_range import has_blocks
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, directions, knows_both_ways, parts_of
from jaxacct.numerics.arithmetic import CERTIFIED, Chosen
from jaxacct.numerics.derivatives import differences, is_real, of_first_order
from jaxacct.numerics.precision import in_float64, is_concrete, leave_scope, scope, within_scope
from jaxacct.numerics.programs import by_pairs, compiled, needs_pairs
from jaxacct.numerics.vmapped_loops import one_by_one, stack, where_needed
from jaxacct.refinement import warn_of
from jaxacct.saddlepoint import closed_forms, of_atoms
from jaxacct.saddlepoint.accountant import Asked, unchecked
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
    arithmetic: Chosen = "auto",
) -> Bounds:
    """Returns certified bounds on epsilon of a composition, at ``delta``, by the best route there is.

    An array of noise multipliers is one composition of as many mechanisms, not a batch: batches are ``jax.vmap``.

    Args:
        mechanism: one mechanism (scalar fields) run ``steps`` times; or fields with one leading axis (m,), a sequence
            composed together; or a tuple of mechanisms composed together.
        steps: number of adaptive runs, whole and at least 0, of the shape () or (m,), or a tuple. May be traced.
        delta (): failure probability in [0, 1); 0 asks for the pure epsilon, the supremum of the loss. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: relative gap wanted of :func:`jaxacct.prv.epsilon`, where it is asked; concrete arguments only.
        points: points of an evolving mesh instead, that :func:`jaxacct.prv.epsilon` composes on.
        arithmetic: "auto" or "float64": float64, and pairs of float32 on platforms without it (a TPU). "pair": pairs of
            float32 on every platform. Pairs take no ``tolerance``, have no derivatives where they are asked for by
            name, and take a CPU seconds.

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
        return jax.vmap(lambda question: answer(mechanism, steps, question, relation))(questions)
    return _profile(mechanism, steps, questions, relation, ACCOUNTANTS)


def _profile(
    mechanism: Any, steps: Any, questions: Question, relation: Relation, accountants: Sequence[Accountant]
) -> Bounds:
    """Returns the answers to concrete questions (n,), which share programs and compositions where they can."""
    mechanism, steps = alone(mechanism, steps)
    if is_search(mechanism, steps):
        return leave_scope(stack(*of_search(mechanism, questions, relation, accountants)))
    whole = Composition(mechanism, steps, questions, relation)
    if isinstance(questions, ForEpsilon) or has_renyi_only(mechanism) or whole.has_ranges():
        each = [whole._replace(question=questions.at(value)) for value in questions.value]
        return leave_scope(stack(*(ask(asked, accountants) for asked in each)))
    exact = saddlepoint.accountant.curve(mechanism, steps, questions, relation)
    composed = functools.partial(of_atoms.curve, mechanism, steps, questions.epsilon, relation)
    return narrow_down(exact, composed, questions.tolerance)


def _questions(epsilons: ArrayLike | None, deltas: ArrayLike | None) -> Question:
    """Returns the questions (n,) that two optional lists ask; raises unless exactly one is given, and is in range."""
    if (epsilons is None) == (deltas is None):
        raise ValueError(f"epsilons = {epsilons} and deltas = {deltas}: give the one at which the other is wanted.")
    asked: Question = ForDelta(epsilons) if deltas is None else ForEpsilon(deltas)
    validation.check_numbers(**{"deltas" if epsilons is None else "epsilons": asked.value})
    values = asked.value if isinstance(asked.value, jax.core.Tracer) else np.asarray(asked.value, np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{asked.given}s of shape {values.shape}: give a list, one axis with at least one entry.")
    asked.at(values).check()
    return asked.at(values)


class Composition(NamedTuple):
    """A composition and what is asked of it, as accountants take it."""

    mechanism: Any
    """One mechanism, a sequence by a leading axis, or a tuple of at least two."""
    steps: Any
    """The numbers of runs."""
    question: Question
    """Epsilon at a delta, or delta at an epsilon."""
    relation: Relation
    """The relation of neighbouring data sets."""
    tolerance: float | None = None
    """The relative gap that is wanted; None: the question's own."""
    points: int | None = None
    """Points of an evolving mesh instead."""
    arithmetic: Chosen = "auto"
    """The arithmetic that the caller wants."""

    @property
    def run(self) -> tuple[Any, Any, Question]:
        """The arguments that have numbers to compute with."""
        return self.mechanism, self.steps, self.question

    @property
    def gap(self) -> float:
        """The relative gap at which a bracket is narrow enough."""
        return self.tolerance or self.question.tolerance

    def is_concrete(self) -> bool:
        """Returns whether Python sees all numbers."""
        return is_concrete(self.run)

    def leaves_open(self) -> bool:
        """Returns whether the caller leaves it open how the answer is found: then a closed form may do."""
        return self.arithmetic == "auto" and self.tolerance is self.points is None

    def has_ranges(self) -> bool:
        """Returns whether exponential mechanisms may be run several times."""
        parts = self.mechanism if isinstance(self.mechanism, (tuple, list)) else (self.mechanism,)
        counts = self.steps if isinstance(self.mechanism, (tuple, list)) else (self.steps,)
        ranges = [
            (part, count) for part, count in zip(parts, counts, strict=True) if type(part) is ExponentialMechanism
        ]
        runs = [np.broadcast_to(count, np.shape(part.epsilon)) if is_concrete(count) else 2.0 for part, count in ranges]
        return sum(float(np.sum(count)) for count in runs) > 1


class Accountant(NamedTuple):
    """One way to a certified bracket."""

    supports: Callable[[Composition], bool]
    """Whether it proves anything of a composition that others would not prove for less."""
    narrow: Callable[[Composition, Bounds | None], Bounds]
    """The bracket that it proves, intersected with the one that is known already, if there is one."""
    suffices: bool = False
    """Whether no accountant after it proves more of what it supports, converged or not."""


def ask(asked: Composition, accountants: Sequence[Accountant]) -> Bounds:
    """Returns the bracket of a composition by accountants, asked in order until it has converged.

    ``asked`` has been checked; the float64 scope is entered.
    """
    found: Bounds | None = None
    # Brackets of one number: each accountant narrows what those before it have proved.
    for accountant in accountants:
        if accountant.supports(asked):
            found = accountant.narrow(asked, found)
            if accountant.suffices or found.converged:
                break
    assert found is not None  # the last of the accountants supports every composition
    return _by_ranges(asked, found) if asked.has_ranges() else found


@within_scope(by_programs=True)
def answer(
    mechanism: Mechanisms,
    steps: Steps,
    question: Question,
    relation: Relation,
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Chosen = "auto",
) -> Bounds:
    """Returns the result of :func:`epsilon` or :func:`delta`, by the question, after the checks of the arguments."""
    check_asked(mechanism, steps, question)
    check_one_of(arithmetic, "arithmetic", CERTIFIED)
    asked = Composition(*alone(mechanism, steps), question, relation, tolerance, points, arithmetic)
    if not asked.leaves_open():
        is_seen = asked.is_concrete() and not needs_pairs(arithmetic, *asked.run)
        prv.accountant.check_options(tolerance, points, concrete=is_seen or has_renyi_only(asked.mechanism))
    found = ask(asked, ACCOUNTANTS)
    if tolerance is None:
        return found
    return replace(found, converged=found.converged & ((found.gap <= tolerance) | (found.lower == found.upper)))


def alone(mechanism: Any, steps: Any) -> tuple[Any, Any]:
    """Returns the one mechanism of a tuple of one, with its steps; others as they are."""
    if isinstance(mechanism, (tuple, list)) and len(mechanism) == 1:
        return mechanism[0], steps[0]
    return mechanism, steps


# ----------------------------------------------------------------------------------------------------
# A closed form: plain Gaussian mechanisms.
# ----------------------------------------------------------------------------------------------------


def _is_plain(asked: Composition) -> bool:
    return asked.leaves_open() and closed_forms.is_plain(asked.mechanism) and not needs_pairs("auto", *asked.run)


def _by_normal_tails(asked: Composition, found: Bounds | None) -> Bounds:
    """Returns the bracket of plain Gaussian mechanisms, whose composition is one Gaussian mechanism."""
    return unchecked(*saddlepoint.accountant.ask(*asked.run, asked.relation))


# ----------------------------------------------------------------------------------------------------
# Rényi curves: upper bounds for every mechanism, and all there is for some.
# ----------------------------------------------------------------------------------------------------


def _has_curves_alone(asked: Composition) -> bool:
    return has_renyi_only(asked.mechanism)


def _by_curves(asked: Composition, found: Bounds | None = None) -> Bounds:
    """Returns the bracket by Rényi curves, which bound from above only, or the one that is known if that is tighter."""
    from jaxacct import rdp  # late, as few answers need it

    verb = rdp.epsilon if isinstance(asked.question, ForEpsilon) else rdp.delta
    mechanism, steps, question = asked.run
    upper = verb(mechanism, steps, question.value, relation=asked.relation)
    xp: Any = np if is_concrete(upper) else jnp
    curves = Bounds(xp.zeros_like(upper), xp.where(upper > 0, jnp.nan, 0.0), upper, upper == 0)
    return curves if found is None else no_more_than(found, curves)


def no_more_than(bounds: Bounds, curves: Bounds) -> Bounds:
    """Returns a bracket, or one with the curves' upper end if that is less, as it may be for loose pairs."""
    if bounds.upper <= curves.upper:
        return bounds
    lower = np.where(bounds.lower <= curves.upper, bounds.lower, 0.0)
    return Bounds(lower, np.asarray(np.nan), curves.upper, np.asarray(False))


def _by_ranges(asked: Composition, found: Bounds) -> Bounds:
    """Returns the bracket of exponential mechanisms, or the curves' bound where that is notably less.

    It may be for many ranges that differ, for wide ones, and far out. It is then the estimate as well. Without blocks
    the pairs' own bracket may lie above that of the blocks, so that its lower end says nothing.
    """
    # Relative distance below which two bounds are the same but for the laws of a block. Tightness only.
    notably = 1e-4
    curves = _by_curves(asked)
    xp: Any = np if is_concrete(found, curves) else jnp
    less = curves.upper < found.upper * (1 - notably)
    return Bounds(
        xp.where(less & ~(found.lower <= curves.upper) | (not has_blocks()), 0.0, found.lower),
        xp.where(less, curves.upper, found.estimate),
        xp.where(less, curves.upper, found.upper),
        ~less & found.converged,
    )


# ----------------------------------------------------------------------------------------------------
# Traced numbers: the exact accountant, and a composer for what it leaves open, as one program.
# ----------------------------------------------------------------------------------------------------


def _is_traced(asked: Composition) -> bool:
    return not asked.is_concrete()


def _in_a_trace(asked: Composition, found: Bounds | None) -> Bounds:
    """Returns the bracket of the exact accountant, narrowed by a composer unless a closed form leaves nothing open."""
    static, leaves = saddlepoint.accountant.ask(*asked.run, asked.relation)
    closed = static.has_closed_form(leaves)
    return _answer_traced(static, None if closed else Fallback(asked.points), leaves)


def in_pairs(given: Sequence[Accountant]) -> Accountant:
    """Returns the accountant for numbers on a device without float64, or where pairs are asked for by name.

    It is given the accountants that are traced for pairs of float32.
    """

    def supports(asked: Composition) -> bool:
        return needs_pairs(asked.arithmetic, *asked.run)

    def narrow(asked: Composition, found: Bounds | None) -> Bounds:
        @within_scope(by_programs=True)
        def in_order(mechanism: Mechanisms, steps: Steps, question: Question) -> Bounds:
            return ask(Composition(mechanism, steps, question, asked.relation, points=asked.points), given)

        return leave_scope(by_pairs(in_order, *asked.run))

    return Accountant(supports, narrow, suffices=True)


# ----------------------------------------------------------------------------------------------------
# Concrete numbers: the exact accountant takes milliseconds, a composer tens of them.
# ----------------------------------------------------------------------------------------------------


def _by_contour(asked: Composition, found: Bounds | None) -> Bounds:
    """Returns the bracket of the exact accountant, converged if it is as narrow as is asked."""
    exact = unchecked(*saddlepoint.accountant.ask(*asked.run, asked.relation))
    return exact if exact.converged else leave_scope(_judge(exact, asked.gap))


def _by_composing(asked: Composition, found: Bounds | None) -> Bounds:
    """Returns the bracket by a composer of laws, which has an answer for every composition of pairs."""
    composed = Fallback(asked.points).answer(*asked.run, asked.relation, asked.tolerance)
    narrow = leave_scope(_judge(composed if found is None else found.intersection(composed), asked.gap))
    if asked.points is None and is_concrete(narrow) and not narrow.converged:
        warn_of(asked.question, float(narrow.gap), asked.gap)
    return narrow


LANES = 64
"""Number of a batch's compositions that are composed side by side. Speed and memory only."""


class Fallback(NamedTuple):
    """The composer of laws for what the exact accountant leaves open; a key of programs."""

    points: int | None
    """Number of points of an evolving mesh; None: the contour over atoms."""

    def answer(
        self, mechanism: Any, steps: Any, question: Question, relation: Relation, goal: float | None = None
    ) -> Bounds:
        """Returns its bracket; ``goal`` is the gap wanted of concrete arguments where no mesh is named."""
        if self.points is None:
            return of_atoms.answer(mechanism, steps, question, relation, goal)
        found: Bounds = prv.accountant.answer(mechanism, steps, question, relation, points=self.points)
        return found

    def answer_leaves(self, asked: Asked, leaves: Any) -> Bounds:
        """Returns its bracket of a question; arguments that were traced and are concrete now are checked."""
        run = asked.arguments(leaves)
        check_asked(*run)
        return self.answer(*run, asked.relation)


def is_settled(bounds: Bounds, tolerance: Any) -> Any:
    """Returns whether a bracket has converged, or is as narrow as is wanted."""
    return bounds.converged | (bounds.gap <= tolerance)


@within_scope(by_programs=True)
def narrow_down(exact: Bounds, other: Callable[..., Bounds] | None, tolerance: float, *run: Any) -> Bounds:
    """Returns the exact accountant's brackets, intersected with another's where they are not settled.

    Brackets are of numbers, or of concrete arrays of one shape. This is the one place that decides when another is
    asked, ``other(*run)``: once, if any bracket is not settled; never if it is None. In a traced batch it is asked for
    the lanes that are not settled alone: there it may depend on ``run`` only.
    """
    # Laws cost more than the exact accountant, so they are composed last and as seldom as possible.
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _answer_traced(asked: Asked, fallback: Fallback | None, leaves: tuple[Any, ...]) -> Bounds:
    return _narrow(asked, fallback, unchecked(asked, leaves), leaves)


@functools.partial(_answer_traced.defjvp, symbolic_zeros=True)
def _traced_jvp(asked: Asked, fallback: Fallback | None, primals: Any, tangents: Any) -> tuple[Bounds, Bounds]:
    """Takes the exact accountant's derivatives, and where it has not converged the composer's differences."""
    (leaves,), (moves,) = primals, tangents
    moving = [i for i, move in enumerate(moves) if not isinstance(move, SymbolicZero) and is_real(leaves[i])]
    exact, slopes = saddlepoint.accountant.with_slopes(asked, leaves)
    at = [slopes[i] for i in moving]
    with scope(by_programs=True):
        if fallback is None:
            found = _narrow(asked, None, exact, leaves)
        elif is_concrete(exact, at, leaves):
            found, at = jax.device_put(_with_differences(asked, fallback, tuple(moving), (exact, at), leaves))
        else:
            static = asked, fallback, tuple(moving)
            narrowed = one_by_one(_with_differences, *static, settled=_is_known, result=(exact, at))
            found, at = narrowed((exact, at), leaves)
    return found, saddlepoint.accountant.move_by(found, at, [moves[i] for i in moving])


def _is_known(given: tuple[Bounds, list[Any]], leaves: Any) -> Any:
    """Returns whether the exact accountant has converged, and knows its derivatives, for all of a batch."""
    exact, slopes = given
    xp: Any = np if is_concrete(given) else jnp
    return functools.reduce(lambda known, s: known & ~xp.any(xp.isnan(s)), slopes, xp.all(exact.converged))


def _with_differences(
    asked: Asked, fallback: Fallback, moving: tuple[int, ...], given: tuple[Bounds, list[Any]], leaves: Sequence[Any]
) -> tuple[Bounds, list[Any]]:
    """Returns bracket and slopes, by a composer and its differences where the exact accountant does not know them."""
    mechanism, _, question = asked.arguments(leaves)
    compose = functools.partial(fallback.answer_leaves, asked)
    # The numbers of runs stand behind the mechanism's leaves, before the question's one.
    first = len(jax.tree.leaves(mechanism))
    counts = [first <= i < len(leaves) - 1 for i in range(len(leaves))]

    def both(given: tuple[Bounds, list[Any]], leaves: Any) -> tuple[Bounds, list[Any]]:
        exact, slopes = given
        leaves = of_first_order(leaves, "jaxacct.epsilon")
        found, rises = differences(compose, leaves, moving, counts, lambda bounds: bounds.upper < question.worst)
        ends = np.cumsum([np.size(leaves[i]) for i in moving])[:-1]
        # Of the slopes of all three ends those of the estimate.
        parts = [part.reshape(np.shape(leaves[i])) for part, i in zip(jnp.split(rises[1], ends), moving, strict=True)]
        slopes = [jnp.where(exact.converged & ~jnp.isnan(s), s, new) for s, new in zip(slopes, parts, strict=True)]
        return leave_scope((_judge(exact.intersection(found), question.tolerance), slopes))

    known = _is_known(given, leaves)
    if is_concrete(known):
        return given if known else both(given, leaves)
    start = leave_scope((_judge(given[0], question.tolerance), given[1]))
    return where_needed(jnp.logical_not(known), both, start, given, tuple(leaves), width=LANES)


def _narrow(asked: Asked, fallback: Fallback | None, exact: Bounds, leaves: tuple[Any, ...]) -> Bounds:
    """Returns the exact accountant's bracket with that of a composer, if there is one."""
    if is_concrete(exact, leaves):
        if exact.converged:
            return exact
        narrowed = _with_fallback(asked, fallback, exact, leaves)
        with scope(by_programs=True):  # outside of the scope NumPy's float64 numbers would have float32 tangents
            return jax.device_put(narrowed)
    return one_by_one(_with_fallback, asked, fallback, settled=_has_converged, result=exact)(exact, leaves)


def _has_converged(exact: Bounds, leaves: tuple[Any, ...]) -> Any:
    return exact.converged


def _with_fallback(asked: Asked, fallback: Fallback | None, exact: Bounds, leaves: tuple[Any, ...]) -> Bounds:
    other = None if fallback is None else functools.partial(fallback.answer_leaves, asked)
    return narrow_down(exact, other, asked.arguments(leaves)[-1].tolerance, leaves)


# ----------------------------------------------------------------------------------------------------
# Searches, by the profile of one run, where Rényi curves alone would overstate the privacy loss.
#
# The accountant of searches is given the accountants that answer for one run, and for all runs together.
# ----------------------------------------------------------------------------------------------------


def searches(given: Sequence[Accountant]) -> Accountant:
    """Returns the accountant of searches, alone and composed with others; for concrete numbers.

    It is given the accountants of the runs of a search, to which it adds itself, as a run may hold searches again.
    """

    def supports(asked: Composition) -> bool:
        return has_renyi_only(asked.mechanism) and asked.is_concrete()

    def narrow(asked: Composition, found: Bounds | None) -> Bounds:
        if is_search(asked.mechanism, asked.steps):
            return of_search(
                asked.mechanism, asked.question.at(np.atleast_1d(asked.question.value)), asked.relation, all_of_them
            )[0]
        return _with_searches(asked, all_of_them)

    itself = Accountant(supports, narrow, suffices=True)
    all_of_them = (itself, *given)
    return itself


def is_search(mechanism: Any, steps: Any) -> bool:
    """Returns whether a composition is one search alone."""
    return isinstance(mechanism, RepeatAndSelect) and np.ndim(steps) == 0 and steps == 1


def of_search(
    search: RepeatAndSelect, questions: Question, relation: Relation, accountants: Sequence[Accountant]
) -> list[Bounds]:
    """Returns the bracket of a search for each number asked, the intersection of those by profile and Rényi curves."""
    # Largest number of runs of a search that are composed, in case that gives a smaller bound. Tightness only.
    most_composed = 2.0**20
    directions(search, relation)
    run, trials = (search.mechanism, search.steps), search.trials
    each = [questions.at(value) for value in questions.value]
    by_curves = [_by_curves(Composition(search, 1, question, relation)) for question in each]
    most: Any = trials.count if isinstance(trials, Binomial) else np.inf
    # Whoever sees all runs sees the best one, so their composition bounds the search.
    if most <= most_composed:
        often = jax.tree.map(lambda count: count * float(most), run[1])
        together = [ask(Composition(*alone(run[0], often), question, relation), accountants) for question in each]
        by_curves = [no_more_than(*both) for both in zip(together, by_curves, strict=True)]
    ways = profile_of_one_run(run, questions, float(trials.mean), relation, accountants)
    selections = [Selection(way, trials) for way in ways]
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


def _with_searches(asked: Composition, accountants: Sequence[Accountant]) -> Bounds:
    """Returns the bracket of a composition with mechanisms that are known by Rényi curves.

    The upper bound is that of the curves or, where all such mechanisms are searches, that of the composition of the
    pairs of their profiles, if it is less.
    """
    # Probability that the pairs of searches may count as infinite losses where delta is asked for. Tightness only.
    unasked = 1e-12
    # Share of a given delta that the pairs of searches may count as infinite losses. Tightness only.
    beyond = 1e-3
    mechanism, steps, question, relation = *asked.run, asked.relation
    curves = _by_curves(asked)
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
            ways = profile_of_one_run(run, rare, float(part.trials.mean), relation, accountants)
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
    composed = Composition(*alone(tuple(parts), tuple(counts)), question, relation)
    found = no_more_than(ask(composed, accountants), curves)
    return replace(found, lower=np.zeros(()), estimate=np.asarray(np.nan), converged=found.upper == 0)


@within_scope(by_programs=True)
def profile_of_one_run(
    run: tuple[Any, Any], questions: Question, mean: float, relation: Relation, accountants: Sequence[Accountant]
) -> list[OneWay]:
    """Returns the profile of one run, mechanism and steps, for questions on a search of ``mean`` runs.

    There is one profile for each direction, or the worse of both; none where no profile helps. The bound on a search in
    either direction takes the profiles of both, so ``relation`` is one that holds in both.

    Raises ValueError for "remove" and "add".
    """
    check_one_of(relation, "relation", RepeatAndSelect.relations, " by searches, whose bounds take both directions")
    # Number of epsilons at which the profile of one run is taken. Tightness and speed only. Twice as many lower the
    # epsilon of a search by a thousandth.
    ratios = 48
    run = alone(*run)
    span = _span(run, questions, mean, relation, accountants)
    if not 0 <= span < np.inf:
        return []
    apart = relation == "add_or_remove" and knows_both_ways(*run)
    ways: tuple[Relation, ...] = ("remove", "add") if apart else (relation,)
    epsilons = np.linspace(0.0, min(max(span, 1e-6), LARGEST), ratios)
    found = [_profile(*run, ForDelta(epsilons), way, accountants) for way in ways]
    # The largest of several profiles bounds from above alone: its chords are not those of any one of them. A single
    # pair for both directions has one profile.
    if not apart and not _is_its_own_mirror(run, relation):
        found = [replace(found[0], lower=np.zeros(ratios))]
    return [OneWay.of(epsilons, forth, back) for forth, back in zip(found, found[::-1], strict=True)]


def _is_its_own_mirror(run: tuple[Any, Any], relation: Relation) -> bool:
    """Returns whether one pair stands for both directions of a composition under "add_or_remove"."""
    return relation == "add_or_remove" and not has_renyi_only(run[0]) and len(directed_parts(*run, relation)) == 1


def _span(
    run: tuple[Any, Any], questions: Question, mean: float, relation: Relation, accountants: Sequence[Accountant]
) -> float:
    """Returns the epsilon up to which the profile of one run is wanted: beyond it ``mean`` runs hardly count."""

    def upper(question: Question) -> float:
        return float(ask(Composition(*run, question, relation), accountants).upper)

    lost = upper(ForDelta(np.inf)) * (1 + 1e-6)
    if isinstance(questions, ForEpsilon):
        return upper(ForEpsilon(min(lost + float(np.min(questions.value)) / (100 * mean), 0.5)))
    far, near = (upper(ForEpsilon(min(lost + least, 0.5))) for least in (1e-20, 1e-2))
    return max(min(far, float(np.max(questions.value))), near)


# ----------------------------------------------------------------------------------------------------
# The list of accountants.
# ----------------------------------------------------------------------------------------------------

PLAIN = Accountant(_is_plain, _by_normal_tails, suffices=True)
"""Plain Gaussian mechanisms: a closed form, of numbers that are traced or not, and the cheapest of all."""

BY_PROGRAMS = (
    # Inside of a trace nothing can be looked at, so the exact accountant and a composer are one program.
    Accountant(_is_traced, _in_a_trace, suffices=True),
    # The exact accountant's brackets are a million times narrower than those of atoms, and cost less.
    Accountant(lambda _: True, _by_contour),
    Accountant(lambda _: True, _by_composing),
    # Curves may prove more than laws of atoms far out, where masses are below what these can tell from 0.
    Accountant(lambda _: True, _by_curves),
)
"""The accountants of dominating pairs, which compute by JAX."""

OF_RUNS = (
    PLAIN,
    # Without a pair no accountant below applies.
    Accountant(_has_curves_alone, _by_curves, suffices=True),
    in_pairs((PLAIN, *BY_PROGRAMS)),
    *BY_PROGRAMS,
)
"""The accountants of all compositions; for those of searches by their Rényi curves alone."""

ACCOUNTANTS = (PLAIN, searches(OF_RUNS), *OF_RUNS[1:])
"""The accountants of the top level, in the order in which they are asked: what is cheap and final comes first."""
