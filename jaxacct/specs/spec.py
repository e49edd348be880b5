"""A spec as a composition, and what is asked of it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from jaxacct import strict_json, validation
from jaxacct.mechanisms import DIRECTIONS, Mechanism, Relation, group
from jaxacct.mechanisms.records import record_of
from jaxacct.specs.parts import Release, number_of, part

KEYS = {
    "parts": "what is composed",
    "delta": "at which epsilon is asked",
    "epsilon": "at which delta is asked, in place of delta",
    "relation": "which data sets are neighbours",
    "unit": "whose data one record is, in words",
    "group": "records that change together",
    "fixed": "who fixed the settings, and when; false where they followed from results",
}
"""Keys of a spec, and what they say."""


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
    """Returns the spec that an object is; raises ValueError, saying where, for anything else."""
    for key in given:
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, 1)
            raise ValueError(f"key {key!r}: {f'did you mean {close[0]}?' if close else 'give ' + ', '.join(KEYS)}")
    parts = given.get("parts")
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"parts = {parts!r}: give a list of at least one mechanism, report, opacus or dp_event.")
    if given.get("fixed", "") is False:
        raise ValueError(
            "fixed = false: no certificate: settings that followed from results are bounded by no composition of what "
            "they happened to be. Spend a budget by jaxacct.filters or jaxacct.menus; their guarantee holds then."
        )
    if not isinstance(given.get("fixed", ""), str) or not isinstance(given.get("unit", ""), str):
        raise ValueError("fixed and unit are words: give text, such as fixed = 'by the privacy team, before training'.")
    found = [part(one, f"parts[{i}]") for i, one in enumerate(parts)]
    relation = _one("relation", given.get("relation"), [one.relation for one in found]) or "add_or_remove"
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    size = given.get("group", 1)
    validation.check_whole(size, "group", 1, 2**31 - 1, "the number of records of one unit")
    delta, epsilon = (number_of(given.get(key), key) for key in ("delta", "epsilon"))
    if delta is None and epsilon is None:
        delta = max((one.delta for one in found if one.delta is not None), default=None)
    if delta is not None and epsilon is not None:
        raise ValueError(f"delta = {delta} and epsilon = {epsilon}: give the one at which the other is asked.")
    releases = tuple(merged([release for one in found for release in one.releases]))
    for release in releases:
        validation.check_one_of(
            relation, "relation", release.mechanism.relations, f" by {type(release.mechanism).__name__}"
        )
    cut = math.fsum(one.cut_probability for one in found)
    return Spec(given, releases, cast(Relation, relation), size, delta, epsilon, cut)


def combined(specs: Iterable[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Returns one spec of several; ``settings`` that are not None stand in for theirs, which have to agree."""
    made: dict[str, Any] = {"parts": []}
    own = {key: value for key, value in settings.items() if value is not None}
    for spec in specs:
        made["parts"] += spec["parts"] if isinstance(spec.get("parts"), list) else [spec.get("parts")]
        for key, value in spec.items():
            if key != "parts" and key not in own and made.setdefault(key, value) != value:
                raise ValueError(f"{key} = {made[key]!r} in one spec and {value!r} in another: give one for all.")
    for one, other in (("delta", "epsilon"), ("epsilon", "delta")):
        if one in own and other not in own:
            made.pop(other, None)
    return made | own


def merged(releases: list[Release]) -> list[Release]:
    """Returns the releases, equal ones of one number of runs each counted together."""
    found: dict[str, Release] = {}
    for release in releases:
        key = strict_json.dumps([record_of(release.mechanism), release.said_by])
        if np.ndim(release.count) or key not in found:
            found[key if not np.ndim(release.count) else f"{len(found)} {key}"] = release
        else:
            found[key] = release._replace(count=release.count + found[key].count)
    return list(found.values())


def _one(key: str, given: Any, others: list[str | None]) -> Any:
    """Returns the one value that all say who say any."""
    said = {value for value in (given, *others) if value is not None}
    if len(said) > 1:
        raise ValueError(f"{key}: {' and '.join(sorted(map(repr, said)))} in one composition: one has to hold for all.")
    return next(iter(said), None)
