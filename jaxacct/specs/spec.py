"""A spec as a composition, and what is asked of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import numpy as np

from jaxacct import rates, strict_json, validation
from jaxacct.mechanisms import DIRECTIONS, Mechanism, Relation, group
from jaxacct.mechanisms.records import record_of
from jaxacct.specs.parts import Release, number_of, part

ANY = "one record"
"""Whose privacy it is where nobody says."""

KEYS = ("parts", "delta", "epsilon", "relation", "unit", "group", "fixed")


@dataclass(frozen=True)
class Spec:
    """A composition and what is asked of it.

    Attributes:
        given: the spec, JSON that names no other file.
        releases: what is composed; equal ones are counted together.
        relation: neighbouring relation.
        group: records that change together.
        delta: at which epsilon is asked, or None.
        epsilon: at which delta is asked, or None; one of the two at most.
        cut_probability: bound on the probability that what ran was not what is composed: batches cut at capacity.

    >>> spec = parsed({"parts": [{"type": "laplace", "scale": 2.0, "count": 10}], "delta": 1e-5})
    >>> spec.mechanisms, spec.steps
    ((Laplace(scale=2.0),), (10,))
    """

    given: dict[str, Any]
    releases: tuple[Release, ...]
    relation: Relation
    group: int
    delta: float | None
    epsilon: float | None
    cut_probability: float

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """For the accountants, of groups."""
        return tuple(group(release.mechanism, self.group) for release in self.releases)

    @property
    def steps(self) -> tuple[Any, ...]:
        """How often each is run."""
        return tuple(release.count for release in self.releases)


def parsed(given: dict[str, Any]) -> Spec:
    """Returns the spec that an object is; raises ValueError, saying where, for anything else.

    >>> parsed({"parts": [{"type": "gaussian", "noise_multiplier": 4.0}], "group": 2}).mechanisms
    (Gaussian(noise_multiplier=np.float64(2.0)),)
    """
    try:
        return _parsed(given)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _parsed(given: dict[str, Any]) -> Spec:
    for key in given.keys() - set(KEYS):
        close = difflib.get_close_matches(key, KEYS, 1)
        raise ValueError(f"key {key!r}: {f'did you mean {close[0]}?' if close else 'give ' + ', '.join(KEYS)}")
    parts, fixed = given.get("parts"), given.get("fixed", "")
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"parts = {parts!r}: give a list of at least one mechanism, report, opacus or dp_event.")
    if fixed is False or str(fixed).casefold() in ("false", "no"):
        raise ValueError(
            "fixed = false: no certificate: settings that followed from results are bounded by no composition of what "
            "they happened to be. Spend a budget by jaxacct.filters or jaxacct.menus; their guarantee holds then."
        )
    found = [part(one, f"parts[{i}]") for i, one in enumerate(parts)]
    for key, words in (("fixed", "none" if fixed == "" else fixed), ("unit", unit_of(given))):
        if not isinstance(words, str) or not words.isprintable() or not words.strip():
            raise ValueError(f"{key} = {words!r} is no line of text: give words, such as 'one person, all visits'.")
    relations = {one for one in (given.get("relation"), *(one.relation for one in found)) if one is not None}
    if len(relations) > 1:
        raise ValueError(f"relation: {' and '.join(sorted(relations))} in one composition: one has to hold for all.")
    relation: Relation = cast(Any, min(relations, default="add_or_remove"))
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    size = given.get("group", 1)
    validation.check_whole(size, "group", 1, 2**31 - 1, "the number of records of one unit")
    if size > 1 and any(isinstance(one, dict) and "report" in one for one in parts):
        raise ValueError(
            f"group = {size}: no certificate of a trainer's report: its bound on cut batches is for neighbours that "
            "differ in one record. Leave group out, or give what ran as mechanisms, if no batch can be cut."
        )
    delta, epsilon = (number_of(given.get(key), key) for key in ("delta", "epsilon"))
    if delta is not None and epsilon is not None:
        raise ValueError(f"delta = {delta} and epsilon = {epsilon}: give the one at which the other is asked.")
    if epsilon is None and delta is None:
        delta = max((one.delta for one in found if one.delta is not None), default=None)
    together: dict[str, Release] = {}
    for release in (release for one in found for release in one.releases):
        mechanism, is_sequence = release.mechanism, bool(np.ndim(release.count))
        validation.check_one_of(relation, "relation", mechanism.relations, f" by {type(mechanism).__name__}")
        key = f"{len(together) if is_sequence else ''} {strict_json.dumps(record_of(mechanism))} {release.said_by}"
        before = together[key].count if key in together else 0
        together[key] = release._replace(count=release.count + before)
    cut = rates.up(sum((Fraction(one.cut_probability) for one in found), Fraction(0)))
    return Spec(given, tuple(together.values()), relation, size, delta, epsilon, cut)


def unit_of(given: dict[str, Any]) -> str:
    """Returns in words whose privacy a spec is about: as it says, else as reports do that are all its parts."""
    found = [one["report"]["config"].get("unit", ANY) if "report" in one else ANY for one in given["parts"]]
    return cast(str, given.get("unit", found[0] if all(unit == found[0] for unit in found) else ANY))


def combined(specs: Iterable[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Returns one spec of several; ``settings`` that are not None stand in for theirs, which have to agree.

    >>> combined([{"parts": [{"type": "laplace", "scale": 1.0}]}], delta=1e-5)
    {'parts': [{'type': 'laplace', 'scale': 1.0}], 'delta': 1e-05}
    """
    made: dict[str, Any] = {"parts": []}
    own = {key: value for key, value in settings.items() if value is not None}
    asked = {"delta", "epsilon"} if own.keys() & {"delta", "epsilon"} else set()
    for spec in specs:
        made["parts"] += spec["parts"] if isinstance(spec["parts"], list) else [spec["parts"]]
        for key in spec.keys() - own.keys() - asked - {"parts"}:
            if made.setdefault(key, spec[key]) != spec[key]:
                raise ValueError(f"{key} = {made[key]!r} in one spec and {spec[key]!r} in another: give one for all.")
        if spec.get("fixed") is False:  # which no other words undo
            own["fixed"] = False
    return made | own
