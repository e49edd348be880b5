"""The accountant by privacy random variables: certified brackets on epsilon, on delta and on the privacy profile.

The privacy losses of the dominating pairs are put on lattices, as a measure above and one below, and composed through
their characteristic functions (:mod:`.plan`, :mod:`.compose`); the order that makes the result a bound is described in
:mod:`jaxacct.prv`. This file refines the lattices until the gap between the bounds is as small as was asked, and takes
the largest delta over the directions of the relation. In reading order:

- :class:`Diagnostics`, the record of the choices made and of the size of each allowance;
- :func:`answers`, the compiled program from dominating pairs and a question to a bracket;
- :func:`without_composing`, a bracket that needs no mesh;
- :func:`at_points`, :func:`within` and :func:`answer_in_trace`, from the directions of a relation to one answer;
- :class:`LossLattice`, a composition as two measures on an equidistant lattice, for adaptive uses;
- :func:`epsilon` and :func:`delta`, the two verbs, and :func:`curve`, delta over epsilon.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.bounds import Bounds, zero
from jaxacct.composition import (
    Facts,
    ForDelta,
    ForEpsilon,
    Kind,
    Parts,
    Question,
    check,
    check_asked,
    directed_parts,
    facts_of,
    is_out_of_range,
    runs_nothing,
)
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics import vmapped_loops
from jaxacct.numerics.arithmetic import CERTIFIED, Chosen, arithmetic, roundoff
from jaxacct.numerics.derivatives import Known, by_slopes, differences
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    in_float64,
    is_concrete,
    leave_scope,
    log_complement,
    within_scope,
)
from jaxacct.numerics.programs import OUTWARD, by_pairs, by_platform, compiled, needs_pairs, outward
from jaxacct.numerics.pytrees import of_each, register_dataclass
from jaxacct.numerics.vmapped_loops import stack
from jaxacct.prv.compose import (
    bounds_on_delta,
    bracket_of,
    compose,
    infinite_share,
    losses_of,
    masses_of,
    slack_effect,
    transform_error,
)
from jaxacct.prv.plan import Asked


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """The record of how a bracket came about, for the direction of the relation that decides it.

    Attributes are scalars unless shapes are given.

    Attributes:
        points: number of points of the lattice of each loss.
        order: the tilt; truncation and rounding count relative to the mass tilted by exp(order * loss).
        mesh: least distance between points, in nats.
        start: the least loss of the sum's window.
        length: points of the circle on which the sum lives: it covers the losses ``[start, start + length * mesh]``.
        slack (2,): truncated and rounded mass above and below, relative to the tilted mass.
        slack_delta (2,): the most that this mass adds to delta in the upper bound, and takes off it in the lower one.
        shift (2,): the most that rounding of the losses' positions adds to epsilon, and takes off it.
        infinite_mass: probability of an infinite loss, rounded up; a part of delta at every epsilon.
        lost: probability of losses beyond the lattices, which the upper bound counts as infinite.
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
# The compiled part: from dominating pairs and a question to a bracket.
#
# There is one program for each combination of kinds of pairs, number of points and kind of question.
# ----------------------------------------------------------------------------------------------------

Aim = tuple[Any, Any]
"""The gap that a mesh is chosen for: a part relative to the answer and an absolute part, which add."""

LEAST = 2**9
"""Number of points of each loss with which answers are looked for first. Sound for any value: speed only."""


def aimed_at(kind: Kind, points: int) -> Aim:
    """Returns the gap that lattices of so many points are chosen for: it falls with the square of the mesh."""
    # Share of the default tolerance that lattices of :data:`LEAST` points are chosen for, where their size is given.
    # Sound for any value: tightness only.
    aimed = 0.1
    return np.float64(aimed * kind.tolerance * min((LEAST / points) ** 2, 1.0)), np.float64(0.0)


def asked_of(facts: Facts, question: Question, goal: Aim) -> Asked:
    """Returns the aim of a plan: question and gap, with questions at the ends of their range moved inside of it."""
    # Largest size of an epsilon, in nats, that a mesh is chosen for. Sound for any value: tightness only.
    farthest = 1e9
    if isinstance(question, ForEpsilon):
        value = jnp.clip(question.value - facts.infinite[1], TINY, 1.0)
    else:
        value = jnp.clip(question.value, -farthest, farthest)
    return Asked(value, jnp.asarray(isinstance(question, ForEpsilon)), *goal)


@compiled(static=("points",))
def answers(points: int, parts: Parts, questions: Question, goal: Aim) -> tuple[Bounds, Diagnostics]:
    """Returns the brackets that answer questions (n,) of one kind for one direction, and the record of the first."""
    facts = facts_of(parts)
    first = questions.at(questions.value[0])
    found = compose(parts, asked_of(facts, first, goal), points)
    bounds = of_each(lambda question: bracket_of(found, question, facts))(questions)
    at = bounds.estimate[0] if isinstance(first, ForEpsilon) else first.value
    return bounds, Diagnostics(
        points=points,
        order=found.order,
        mesh=found.mesh,
        start=found.start,
        length=found.length,
        slack=found.slack,
        slack_delta=slack_effect(found, at),
        shift=found.shift,
        infinite_mass=facts.infinite[1],
        lost=found.lost,
        converged=bounds.converged[0],
    )


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
    return _bracket([steps for _, steps in parts], every, facts_of(parts), question)


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
    most = jnp.minimum(-jnp.expm1(-sum(noticed, jnp.zeros(()))) * (1 + rounding), 1.0)
    log_overlap = sum(sums, jnp.zeros(len(POWERS)))
    log_overlap = log_overlap + rounding * jnp.abs(log_overlap)
    rest = 1 - POWERS
    if isinstance(question, ForEpsilon):
        # The composition's delta at eps exceeds the given one as long as e^((1-a) eps) times the overlap is below one
        # less the given delta: epsilon is above every such eps.
        lower = jnp.max((log_complement(question.delta) - log_overlap) / rest)
        lower, upper = lower - rounding * jnp.abs(lower), jnp.where(most <= question.delta, 0.0, jnp.inf)
    else:
        log_missed = jnp.min(rest * question.epsilon + log_overlap)
        # An overlap of less than a unit of roundoff would leave exactly 1, which need not be below delta.
        lower = -jnp.expm1(log_missed + rounding * (jnp.abs(log_missed) + question.epsilon))
        lower = lower * (1 - 2 * arithmetic().function)
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
# The choice of lattices: from the directions of a relation to one answer, as tight as was asked.
#
# A relation such as add-or-remove has several directions, each with dominating pairs of its own; its delta, and its
# epsilon, are the largest of theirs. Concrete arguments are answered on finer and finer lattices; inside a trace the
# size of the lattices is fixed beforehand.
# ----------------------------------------------------------------------------------------------------

MOST = 2**17
"""Largest number of points of each loss where a tolerance is given. A power of two; bounds time and memory."""

Answer = tuple[Bounds, Diagnostics]
"""A bracket and its record."""

Goal = float | tuple[float, float]
"""The gap wanted of an answer: relative to its upper end, or as errors of epsilon and of delta."""


class ToleranceWarning(UserWarning):
    """The bracket is valid, but wider than the tolerance asked for."""


class _Found:
    """The brackets of a relation's directions, as far as they have been needed; for concrete arguments only.

    ``answers`` has, by direction, the bracket and its record; ``beside`` the brackets at an error below and above the
    value asked at, where the goal is errors.
    """

    def __init__(self, directions: list[Parts], question: Question, goal: Goal, aim: Aim):
        self.directions, self.question, self.goal, self.aim = directions, question, goal, aim
        self.answers: dict[int, Answer] = {}
        self.beside: dict[int, list[Bounds]] = {}

    def improve(self, points: int) -> None:
        """Narrows, by lattices of so many points, the brackets of those directions that may be the largest."""
        # One direction at a time, so that the one solved last is skipped where the others' lower ends rule it out.
        for i in range(len(self.directions)):
            threshold = max((bounds.lower for bounds, _ in self.answers.values()), default=0.0)
            old = self.answers.get(i)
            if old is None or old[0].upper > threshold:
                (new, *self.beside[i]), record = self.solve(i, points)
                # Both brackets hold, so their intersection does; the finer lattice gives the estimate.
                self.answers[i] = new if old is None else replace(old[0], converged=False).intersection(new), record

    def solve(self, which: int, points: int) -> tuple[list[Bounds], Diagnostics]:
        """Returns the brackets that answer all questions of a direction, and the record of the first."""
        values = self.question.at(np.asarray(self.values(), np.float64))
        bounds, record = leave_scope(answers(points, self.directions[which], values, self.aim))
        ends: Any = bounds.lower, bounds.estimate, bounds.upper, bounds.converged
        return [Bounds(*row) for row in zip(*ends, strict=True)], record

    def values(self) -> list[Any]:
        """Returns the value asked at and, if the goal is errors, the values an error below and above it."""
        value = self.question.value
        if not isinstance(self.goal, tuple):
            return [value]
        step = self.goal[isinstance(self.question, ForEpsilon)]
        return [value, max(value - step, 0.0), value + step]

    def excess(self) -> float:
        """Returns the gap between the bounds over the goal: at most 1 where the goal is reached.

        With errors (a, b), and e(d) for epsilon at delta d: upper <= e(d - b) + a if the upper end is at most a above
        the lower end at d - b, and lower >= e(d + b) - a if the upper end at d + b is at most a above the lower end.
        The same holds for delta with the roles of a and b exchanged.
        """
        every = [bounds for bounds, _ in self.answers.values()]
        lower, upper = max(b.lower for b in every), max(b.upper for b in every)
        if lower == upper:
            return 0.0
        if not isinstance(self.goal, tuple):
            return float(Bounds(lower=lower, estimate=lower, upper=upper).gap) / self.goal
        before = max(below.lower for below, _ in self.beside.values())
        after = max(above.upper for _, above in self.beside.values())
        apart = max(upper - before, after - lower) / self.goal[not isinstance(self.question, ForEpsilon)]
        return float(apart) if np.isfinite(apart) else float("inf")

    def narrow(self) -> None:
        """Intersects each bracket with that of :func:`without_composing`, which is wide but needs no mesh."""
        for i, (bounds, record) in self.answers.items():
            lower, upper = without_composing(self.directions[i], self.question)
            rough = Bounds(lower=lower, estimate=bounds.estimate, upper=upper, converged=False)
            self.answers[i] = rough.intersection(bounds), record

    def largest(self) -> Answer:
        """Returns the bracket of the largest direction, and the record of the one with the largest upper end.

        It has converged where both ends are one number, be it infinite, or are as near as was asked.
        """
        every = [bounds for bounds, _ in self.answers.values()]
        _, record = max(self.answers.values(), key=lambda answer: float(answer[0].upper))
        converged = np.asarray(self.excess() <= 1)[()]
        bounds = Bounds(
            lower=max(b.lower for b in every),
            estimate=max(b.estimate for b in every),
            upper=max(b.upper for b in every),
            converged=converged,
        )
        return bounds, replace(record, converged=converged)


def at_points(directions: list[Parts], question: Question, points: int) -> Answer:
    """Returns the answer of concrete arguments by lattices of ``points`` points."""
    found = _Found(directions, question, question.tolerance, aimed_at(type(question), points))
    found.improve(points)
    return found.largest()


def answer_in_trace(directions: list[Parts], question: Question, points: int) -> Answer:
    """Returns the answer inside a trace.

    Directions of one structure share their code, and the lanes of a batch under ``vmap`` share one block of work.
    """
    return vmapped_loops.in_lanes(functools.partial(_answer_traced, points=points))(directions, question)


def _answer_traced(directions: list[Parts], question: Question, points: int) -> Answer:
    goal = aimed_at(type(question), points)
    questions = question.at(question.value[None])

    def answer(parts: Parts) -> Answer:
        bounds, record = answers(points, parts, questions, goal)
        return jax.tree.map(operator.itemgetter(0), bounds), record

    if len({jax.tree.structure(parts) for parts in directions}) > 1 or len(directions) == 1:
        every = [answer(parts) for parts in directions]
    else:
        batch = jax.lax.map(answer, stack(*directions))
        every = [jax.tree.map(operator.itemgetter(i), batch) for i in range(len(directions))]
    return functools.reduce(functools.partial(_larger, question.tolerance), every)


def _larger(tolerance: float, first: Answer, second: Answer) -> Answer:
    (a, record), (b, other) = first, second
    decides = b.upper > a.upper
    bounds = Bounds(
        lower=jnp.maximum(a.lower, b.lower),
        estimate=jnp.maximum(a.estimate, b.estimate),
        upper=jnp.maximum(a.upper, b.upper),
        converged=a.converged & b.converged,
    )
    # It is enough that the direction that decides is tight.
    bounds = replace(bounds, converged=bounds.converged | (bounds.gap <= tolerance))
    return bounds, jax.tree.map(lambda x, y: jnp.where(decides, y, x), record, other)


def within(directions: list[Parts], question: Question, goal: Goal) -> Answer:
    """Returns the answer of concrete arguments by the smallest lattices found to reach a goal.

    The first lattices tell how far the gap has to fall; it falls with the square of the mesh as long as rounding and
    truncation do not count. A direction whose upper end lies below another's lower end needs no refinement.
    """
    # Factor by which the gap foreseen for a lattice must lie below the tolerance for it to be chosen. Speed only.
    safety = 1.5
    # Largest factor by which the number of points grows before another look at the gap. Speed only.
    growth = 16
    aim = (0.0, goal[not isinstance(question, ForEpsilon)]) if isinstance(goal, tuple) else (goal, 0.0)
    found, points = _Found(directions, question, goal, (np.float64(aim[0]), np.float64(aim[1]))), LEAST
    previous, stalls, is_narrowed = float("inf"), 0, False
    # Each round intersects the brackets with those of finer lattices, so they only narrow. The number of points at
    # least doubles from one round to the next, so the loop ends at MOST if not before.
    while True:
        found.improve(points)
        bounds, record = found.largest()
        if float(bounds.gap) >= 0.5 and not is_narrowed:
            # The bracket that needs no lattice may be all that is asked, or rule out a direction.
            found.narrow()
            bounds, record = found.largest()
            is_narrowed = True
        gap, excess = float(bounds.gap), found.excess()
        # Where only rounding or truncation is left of the gap a finer lattice does not help: two stalls tell.
        stalls += 0.8 * previous < gap
        if bounds.converged or stalls == 2 or points == MOST:
            break
        # A gap far above the goal is a poor guide to how it will fall with the mesh: 0.3 caps what is read from it.
        finer = points * (safety * excess * min(0.3 / gap, 1.0)) ** 0.5 if np.isfinite(gap) else MOST
        least = min(max(finer, points + 1), growth * points, MOST)
        points, previous = 1 << (int(np.ceil(least)) - 1).bit_length(), gap
    if not bounds.converged:
        _warn(question, gap, goal)
    return bounds, record


def nothing_known(question: Question, goal: Goal | None) -> Bounds:
    """Returns the trivial bracket, for pairs that are not valid, which no mesh narrows; warns where a goal is given."""
    worst = np.float64(question.worst)
    if goal is not None:
        _warn(question, worst, goal)
    return Bounds(lower=np.float64(0.0), estimate=worst / 2, upper=worst, converged=np.bool_(False))


def _warn(question: Question, gap: float, goal: Goal) -> None:
    asked = "the errors" if isinstance(goal, tuple) else f"the {goal:.1e}"
    warnings.warn(
        f"{question.name} is known to a relative gap of {gap:.1e}, not {asked} asked for: the bracket is valid and "
        "as wide as it says.",
        ToleranceWarning,
        stacklevel=6,
    )


# ----------------------------------------------------------------------------------------------------
# Loss lattices: compositions as measures on an equidistant lattice, all at one tilt, for adaptive uses.
#
# The spectrum of a sum (:mod:`.compose`) is taken whole and inverted. An error of its values of L2 norm e is an error
# of the weights of L2 norm e over the root of the number n of points, so in L1 at most e (Cauchy and Schwarz). The
# inverse transform adds its own error.
# ----------------------------------------------------------------------------------------------------

NARROW = 1e-9
"""Relative error that windows are chosen for. Sound for any value: tightness only.

It is small because mass outside of a window wraps around the circle, and is seen elsewhere in the weights.
"""


@register_dataclass
@dataclass(frozen=True)
class LossLattice:
    """A measure above a loss and one below it: masses ``weights exp(log_mass - order y)`` at ``y = start + i mesh``.

    Let T be the true measure and <= the order of :mod:`jaxacct.prv`. Above, T <= masses + E, and below,
    masses <= T + E, each for some positive measure E of tilted mass at most ``slack exp(log_mass)``.

    Attributes:
        weights (2, n): tilted masses above and below, nonnegative, that sum to about 1.
        log_mass (2,), slack (2,): see above.
        log_total (2,): upper bound on the log of T's tilted mass.
        shift (2,): bound on how far the losses y are from those they stand for.
        infinite (2,): probability of an infinite loss, from above and from below.
        rounding: bound on the errors of ``log_mass`` and ``log_total``.
        start, mesh, order: scalars, the least loss, the distance between losses and the tilt, common to both measures.
    """

    weights: Float[Array, "2 n"]
    log_mass: Float[Array, " 2"]
    slack: Float[Array, " 2"]
    log_total: Float[Array, " 2"]
    shift: Float[Array, " 2"]
    infinite: Float[Array, " 2"]
    rounding: Float[Array, ""]
    start: Float[Array, ""]
    mesh: Float[Array, ""]
    order: Float[Array, ""]


@compiled(static=("points",))
def lattice(points: int, parts: Parts, question: Question, order: Array) -> LossLattice:
    """Returns a composition on a lattice chosen for ``question``, tilted by ``order``, of ``points`` points a loss."""
    facts = facts_of(parts)
    goal = np.float64(NARROW), np.float64(0.0)
    asked = asked_of(facts, question, goal)._replace(order=order, is_whole=True)
    found = compose(parts, asked, points)
    real, imaginary = found.spectrum
    size = 2 * (real.shape[1] - 1)
    weights = jnp.fft.irfft(real - 1j * imaginary, size)
    off = jnp.sqrt(2 * jnp.sum(found.off**2, axis=1))
    # The inverse's own error is relative to the norm of the exact result, at most that of the computed one / (1 - err).
    levels = transform_error(size)
    inverse = math.sqrt(size) * levels / (1 - levels) * jnp.sqrt(jnp.sum(weights**2, axis=1))
    allowed = off + inverse
    return LossLattice(
        # Weights at or below the error that each may have become 0, and the slack counts the allowance twice: far out
        # in the lower tail such weights would be all the mass there is. The true weights are not negative.
        weights=jnp.where(weights > (allowed / size)[:, None], weights, 0.0),
        log_mass=found.log_mass,
        slack=found.slack + 2 * allowed * (1 + 4 * size * roundoff()),
        log_total=found.log_total,
        shift=found.shift,
        infinite=infinite_share(facts, found.lost),
        rounding=found.rounding,
        start=found.start,
        mesh=found.mesh,
        order=found.order,
    )


@compiled(static=("points",))
def tilt(points: int, parts: Parts, question: Question) -> Array:
    """Returns the order that suits a composition."""
    facts = facts_of(parts)
    return masses_of(parts, asked_of(facts, question, aimed_at(type(question), points)), points)[0].order


@compiled(static=("points",))
def masses_above(points: int, parts: Parts, question: Question) -> tuple[Array, Array, Facts]:
    """Returns the losses (m, points) of the lattices, the masses above on them, and the facts of the composition."""
    facts = facts_of(parts)
    chosen, _, masses = masses_of(parts, asked_of(facts, question, aimed_at(type(question), points)), points)
    return losses_of(chosen), masses.upper, facts


def lattices_apart(
    compositions: Sequence[Parts], shares: Sequence[float], epsilon: float, points: int
) -> list[LossLattice]:
    """Returns the lattices of several compositions, each by itself, at one common tilt. Concrete arguments only.

    The tilt is chosen for delta at ``epsilon`` of a sum in which each occurs as often as ``shares`` say.
    """
    question = ForDelta(np.float64(epsilon))
    together = tuple(
        (pairs, share * steps) for parts, share in zip(compositions, shares, strict=True) for pairs, steps in parts
    )
    order = tilt(points, together, question)
    return [lattice(points, parts, question, order) for parts in compositions]


# ----------------------------------------------------------------------------------------------------
# The two verbs of the certified accountant, with the checks of their arguments.
# ----------------------------------------------------------------------------------------------------

DEFAULT_POINTS = 2**12
"""Number of points of each loss inside a trace, where no gap can be looked at. Tightness and speed only."""


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
        mechanism: as in :func:`jaxacct.epsilon`.
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
        arithmetic: as in :func:`jaxacct.epsilon`.
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
    ``error`` (a, b) ``upper`` is at most b above delta at ``epsilon`` - a, or at 0, and ``lower`` at most b below delta
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
"""The accepted values of ``method``, none of which has an effect."""


def check_method(method: str | None) -> None:
    """Warns where one of :data:`METHODS` is given, as there is a single composition; raises for any other."""
    if method is not None:
        validation.check_one_of(method, "method", METHODS)
        text = f"method = {method!r} has no effect: there is one composition. Leave it out."
        warnings.warn(text, DeprecationWarning, stacklevel=3)


def check_points(points: int) -> int:
    """Returns a mesh size as a Python integer; raises unless it is 2^n or 3 2^n, and a multiple of 128."""
    meaning = "the number of mesh points, a power of two or three times one,"
    points = validation.check_whole(points, "points", 1, 2**40, meaning)
    whole = points > 0 and (points & (points - 1) == 0 or (points % 3 == 0 and (points // 3) & (points // 3 - 1) == 0))
    if points % 2**7 or not whole:
        raise ValueError(
            f"points = {points} is not a number of mesh points: give a power of two, or three times one, at least 128 "
            "and a multiple of it."
        )
    return points


def check_error(error: tuple[float, float], question: Question, *, concrete: bool) -> None:
    """Raises where ``error`` is not a pair of errors, or cannot be asked for."""
    if not concrete:
        raise ValueError(
            f"error = {error} cannot be used inside jit, vmap or scan, where the shapes are fixed before the gap is "
            "known: give points, the number of mesh points, instead."
        )
    if not isinstance(error, tuple) or len(error) != 2:
        raise ValueError(f"error = {error} is no pair: give the errors (of epsilon, of delta) as a tuple.")
    is_epsilon = isinstance(question, ForEpsilon)
    # The error of what is asked for has to be above 0; the other one may be 0.
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


def _in_trace(mechanism: Any, steps: Any, question: Question, relation: Relation, points: int) -> Answer:
    """Returns the answer inside a trace, whose derivatives are differences on lattices of as many points."""
    leaves, structure = jax.tree.flatten((mechanism, steps, question))
    # The numbers of runs stand behind the mechanism's leaves, before the question's one.
    first = len(jax.tree.leaves(mechanism))
    counts = tuple(first <= i < len(leaves) - 1 for i in range(len(leaves)))
    static = structure, relation, points

    def value_of(leaves: list[Any]) -> Answer:
        if not is_concrete(leaves):
            return _answer_leaves(static, leaves)
        mechanism, steps, question = jax.tree.unflatten(structure, leaves)
        check_asked(mechanism, steps, question)
        return leave_scope(at_points(directed_parts(mechanism, steps, relation), question, points))

    def slopes_of(leaves: list[Any], moving: tuple[int, ...]) -> Any:
        if is_concrete(leaves):
            return differences(value_of, leaves, moving, counts, _says(question.worst))
        return _slopes_of_leaves(static, moving, counts, leaves)

    return by_slopes(value_of, slopes_of, "jaxacct.prv")(leaves)


Static = tuple[Any, Relation, int]
"""The static part of a program of traced numbers: the structure of the arguments, the relation, the lattice's size."""


def _says(worst: float) -> Known:
    """Returns a function that tells whether an answer says more than the worst one."""
    return lambda answer: answer[0].upper < worst


def _of_leaves(static: Static, leaves: list[Any]) -> Answer:
    structure, relation, points = static
    mechanism, steps, question = jax.tree.unflatten(structure, leaves)
    question = question.at(as_float64(question.value))
    return answer_in_trace(directed_parts(mechanism, steps, relation), question, points)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _answer_leaves(static: Static, leaves: list[Any]) -> Answer:
    return by_platform(functools.partial(_of_leaves, static), leaves)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _slopes_of_leaves(static: Static, moving: tuple[int, ...], counts: tuple[bool, ...], leaves: list[Any]) -> Any:
    """Returns the answer, and its slopes in the numbers that move."""
    *_, question = jax.tree.unflatten(static[0], leaves)
    return by_platform(
        lambda leaves: differences(
            functools.partial(_of_leaves, static), leaves, moving, counts, _says(question.worst)
        ),
        leaves,
        safe=lambda found: (outward(found[0]), found[1]),
    )


@within_scope(by_programs=True)
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
    """Returns the result of :func:`epsilon` or :func:`delta`, by the question."""
    check_asked(mechanism, steps, question)
    validation.check_one_of(arithmetic, "arithmetic", CERTIFIED)
    if needs_pairs(arithmetic, mechanism, steps, question):
        _, points = check_options(tolerance, points, concrete=False)
        if error is not None:
            check_error(error, question, concrete=False)
        run = functools.partial(answer, relation=relation, points=points, return_diagnostics=return_diagnostics)
        return leave_scope(by_pairs(run, mechanism, steps, question))
    concrete = is_concrete(mechanism, steps, question)
    tolerance, points = check_options(tolerance, points, concrete=concrete)
    if error is not None:
        if tolerance is not None or points is not None:
            raise ValueError("error is given beside tolerance or points: give one of the three.")
        check_error(error, question, concrete=concrete)
    if not concrete:
        found = _in_trace(mechanism, steps, question, relation, points or DEFAULT_POINTS)
    else:
        directions = directed_parts(mechanism, steps, relation)
        if runs_nothing(directions) and not return_diagnostics:
            return zero()
        question = question.at(np.asarray(question.value, np.float64))
        goal = error or tolerance or question.tolerance
        if not return_diagnostics and is_out_of_range(directions):
            return nothing_known(question, goal if points is None else None)
        found = within(directions, question, goal) if points is None else at_points(directions, question, points)
    return leave_scope(found) if return_diagnostics else found[0]


# ----------------------------------------------------------------------------------------------------
# The privacy profile: delta over epsilon, from a few compositions, each tilted for a part of the curve.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Curve:
    """A privacy profile: ``delta``, bounds of shape (n,), at each of the ``epsilon`` (n,)."""

    epsilon: Float[Array, " n"]
    delta: Bounds


# Only delta is rounded outward: each bound holds at its epsilon as given.
OUTWARD[Curve] = lambda found: replace(found, delta=outward(found.delta))


def _says_of_each(found: Curve) -> Any:
    """Returns where a profile says anything."""
    return found.delta.upper < 1


@in_float64(known=_says_of_each)
def curve(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike | None = None,
    *,
    relation: Relation = "add_or_remove",
    points: int = DEFAULT_POINTS,
    method: str | None = None,
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
    check_method(method)
    points = check_points(points)
    if epsilon is None:
        last = answer(mechanism, steps, ForEpsilon(1e-12), relation, points=LEAST).upper
        if isinstance(last, jax.core.Tracer) or not np.isfinite(last):
            raise ValueError("epsilon = None: no range is known for these arguments; give the epsilons that you want.")
        epsilon = np.linspace(0.0, float(last), 100)
    at: Any = as_float64(epsilon) if isinstance(epsilon, jax.core.Tracer) else np.asarray(epsilon, np.float64)
    if at.ndim != 1 or not at.size:
        raise ValueError(f"epsilon of shape {at.shape} is not a list of epsilons: give one axis, at least one entry.")
    directions = directed_parts(mechanism, steps, relation)
    if is_out_of_range(directions):
        # Pairs that are not valid stay unknown on every mesh: the bracket is [0, 1].
        nothing = Bounds(lower=0 * at, estimate=0 * at + 0.5, upper=0 * at + 1, converged=np.zeros(at.shape, bool))
        return Curve(epsilon=at, delta=nothing)
    found = [_profile(points, parts, at) for parts in directions]
    return leave_scope(Curve(epsilon=at, delta=_largest(found, at)))


Profile = tuple[Array, Array, Facts]
"""Lower and upper bounds on delta, (n,) each, of one direction, and the facts known of it without a mesh."""


@compiled(static=("points",))
def _profile(points: int, parts: Parts, epsilons: Array) -> Profile:
    """Returns bounds on delta at ``epsilons``: the best of compositions tilted for several of them."""
    # Number of compositions that make a curve, each tilted for another part of it. Tightness and speed only. Each of
    # them bounds the whole curve, so the best of them does.
    references = 4
    places = np.linspace(0, len(epsilons) - 1, 2 * references + 1)[1::2].round().astype(int)
    facts, goal = facts_of(parts), aimed_at(ForDelta, points)

    def bound(reference: Array) -> Array:
        found = compose(parts, asked_of(facts, ForDelta(reference), goal), points)
        infinite = infinite_share(facts, found.lost)
        # One epsilon after the other, to save memory: each is a sum over all frequencies.
        return jax.lax.map(lambda e: bounds_on_delta(found, infinite, e), epsilons)

    # One composition after the other, each tilted for an epsilon in the middle of its part of the curve.
    every = jax.lax.map(bound, jnp.sort(epsilons)[places])
    return jnp.max(every[..., 1], axis=0), jnp.min(every[..., 0], axis=0), facts


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

    found = [of_one(*direction) for direction in directions]
    lower, upper = (functools.reduce(jnp.maximum, side) for side in zip(*found, strict=True))
    bounds = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper)
    return replace(bounds, converged=bounds.gap <= ForDelta.tolerance)
