"""What an event says, as classes, fields and counts: to be compared and counted before mechanisms are made of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from jaxacct.mechanisms import Mechanism, PureDP, Relation

MOST_STEPS = 2**53
"""Most runs of one mechanism: whole numbers up to here are exact in float64."""


class Part(NamedTuple):
    """One mechanism: its class, its fields (numbers or tuples of them), its static fields, and what it has within."""

    kind: type[Mechanism]
    fields: tuple[Any, ...]
    static: tuple[tuple[str, Any], ...] = ()
    inner: tuple[tuple[Part, int], ...] | None = None


Parts = dict[Part, int]
"""How often each mechanism runs. Their order does not matter: the loss of a composition is a sum."""

NO_PRIVACY = Part(PureDP, (math.inf,))


def one(kind: type[Mechanism], *fields: Any, inner: Parts | None = None, **static: Any) -> Parts:
    """Returns a single run of a mechanism."""
    return {Part(kind, fields, tuple(static.items()), None if inner is None else tuple(inner.items())): 1}


def lacking(parts: Parts, relation: Relation) -> type[Mechanism] | None:
    """Returns a mechanism among them, or within one, that is not known under a neighbouring relation."""
    for part in parts:
        if relation not in part.kind.relations:
            return part.kind
        if part.inner and (kind := lacking(dict(part.inner), relation)):
            return kind
    return None


def made(parts: Parts) -> tuple[tuple[Mechanism, ...], tuple[ArrayLike, ...]]:
    """Returns mechanisms and steps: those of one class are one sequence."""
    if not parts:
        return (PureDP(0.0),), (1,)
    groups: dict[tuple[Any, ...], list[tuple[Part, int]]] = {}
    for part, count in parts.items():
        alike = part if part.inner else tuple(np.shape(value) for value in part.fields)
        groups.setdefault((part.kind, part.static, alike), []).append((part, count))
    mechanisms: list[Mechanism] = []
    steps: list[ArrayLike] = []
    for members in groups.values():
        kind, _, static, inner = members[0][0]
        within = made(dict(inner)) if inner else ()
        counts = [count for _, count in members]
        columns = list(zip(*(part.fields for part, _ in members), strict=True))
        if len(members) == 1:
            mechanisms.append(kind(*within, *(column[0] for column in columns), **dict(static)))
            steps.append(counts[0])
        else:
            mechanisms.append(kind(*(np.array(column, np.float64) for column in columns), **dict(static)))
            steps.append(np.array(counts, np.float64))
    return tuple(mechanisms), tuple(steps)
