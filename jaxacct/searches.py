"""Searches, alone and composed with others: by the profile of one run, where Rényi curves would say more than is lost.

Accountants come as arguments: the top level's verbs, which ask here, answer for the runs of a search as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxacct.bounds import Bounds
from jaxacct.mechanisms import DiscretePair, Mechanism, RenyiOnly, RepeatAndSelect
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, directions, listed
from jaxacct.question import ForDelta, ForEpsilon, Question
from jaxacct.selection import Binomial
from jaxacct.selection.profile import LARGEST, OneWay, Selection, pair_of

MOST_COMPOSED = 2.0**20
"""Most runs of a search that are composed, to see whether that is less."""

RATIOS = 48
"""Epsilons at which the profile of one run is taken; twice as many lower the epsilon of a search by a thousandth."""

BEYOND = 1e-3
"""Share of a given delta that the pairs of searches may count as infinite losses."""

RARE = 1e-12
"""The same where delta is asked for."""


class Ask(NamedTuple):
    """The top level's accountants.

    Attributes:
        answer: certified bounds, from mechanism, steps, a question and a relation.
        curve: those at many epsilons.
        by_curves: what Rényi curves alone say to the same question.
    """

    answer: Callable[..., Bounds]
    curve: Callable[..., Bounds]
    by_curves: Callable[..., Bounds]


def is_search(mechanism: Any, steps: Any) -> bool:
    """Returns whether it is one search alone."""
    return isinstance(mechanism, RepeatAndSelect) and np.ndim(steps) == 0 and steps == 1


def of_search(ask: Ask, search: RepeatAndSelect, questions: Question, relation: Relation) -> list[Bounds]:
    """Returns the bracket of a search for each number asked: the least that the profile and Rényi curves prove."""
    directions(search, relation)
    run, trials = (search.mechanism, search.steps), search.trials
    each = [questions.at(value) for value in questions.value]
    by_curves = [ask.by_curves(search, 1, question, relation) for question in each]
    most: Any = trials.count if isinstance(trials, Binomial) else np.inf
    if most <= MOST_COMPOSED:  # whoever sees all runs sees the best one
        often = jax.tree.map(lambda count: count * float(most), run[1])
        together = [ask.answer(run[0], often, question, relation) for question in each]
        by_curves = [no_more_than(*both) for both in zip(together, by_curves, strict=True)]
    selections = [Selection(way, trials) for way in profile(ask, run, questions, float(trials.mean), relation)]
    if not selections:
        return [replace(found, lower=np.zeros(())) for found in by_curves]
    found = []
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

    The least that these prove and, where all of those are searches, the composition of the pairs of their profiles.
    """
    curves = ask.by_curves(mechanism, steps, question, relation)
    least = BEYOND * float(question.value) if isinstance(question, ForEpsilon) else RARE
    parts: list[Mechanism] = []
    counts: list[Any] = []
    for part, count in listed(mechanism, steps):
        if isinstance(part, RepeatAndSelect) and np.ndim(count) == 0 and least > 0:
            directions(part, relation)
            if count == 0:
                continue
            asked = ForEpsilon(np.array([least / float(np.asarray(count))]))
            ways = profile(ask, (part.mechanism, part.steps), asked, float(part.trials.mean), relation)
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
    """Returns the mesh's bracket below what Rényi curves say: where pairs are not tight either may be the less."""
    if mesh.upper <= curves.upper:
        return mesh
    lower = np.where(mesh.lower <= curves.upper, mesh.lower, 0.0)
    return Bounds(lower, np.asarray(np.nan), curves.upper, np.asarray(False))


def profile(ask: Ask, run: tuple[Any, Any], questions: Question, mean: float, relation: Relation) -> list[OneWay]:
    """Returns the profile of one run, mechanism and steps, for questions on a search of ``mean`` runs.

    Each way, or the worse for both; none where nothing is known that helps.
    """
    span = _span(ask, run, questions, mean, relation)
    if not 0 <= span < np.inf:
        return []
    apart = relation == "add_or_remove" and all({"remove", "add"} <= set(part.relations) for part, _ in listed(*run))
    ways: tuple[Relation, ...] = ("remove", "add") if apart else (relation,)
    epsilons = np.linspace(0.0, min(max(span, 1e-6), LARGEST), RATIOS)
    found = [ask.curve(*run, epsilons=epsilons, relation=way) for way in ways]
    if not apart:  # of several pairs no chord is one's
        found = [replace(found[0], lower=np.zeros(RATIOS))]
    return [OneWay.of(epsilons, forth, back) for forth, back in zip(found, found[::-1], strict=True)]


def _span(ask: Ask, run: tuple[Any, Any], questions: Question, mean: float, relation: Relation) -> float:
    """Returns how far the profile of one run is wanted: to where ``mean`` times it hardly counts."""
    at = functools.partial(ask.answer, *run, relation=relation)
    lost = float(at(question=ForDelta(np.inf)).upper) * (1 + 1e-6)
    if isinstance(questions, ForEpsilon):
        return float(at(question=ForEpsilon(min(lost + float(np.min(questions.value)) / (100 * mean), 0.5))).upper)
    far, near = (float(at(question=ForEpsilon(min(lost + least, 0.5))).upper) for least in (1e-20, 1e-2))
    return max(min(far, float(np.max(questions.value))), near)
