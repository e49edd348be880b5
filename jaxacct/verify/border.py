"""The border between the library and its referee: a mechanism becomes its JSON record here, and nowhere else.

A record is the object of :mod:`jaxacct.mechanisms.records`: the class's name as ``type``, and fields, which are plain
numbers. All of the referee beyond this file works on records; it knows no class of the library, and needs no JAX. So
the kernel is imported within functions, where the caller's mechanism has brought it already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxacct.verify.statements import STATEMENTS, Record, run_count

if TYPE_CHECKING:
    from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation


def _check_is_mechanism(mechanism: Any) -> None:
    """Raises TypeError where an object is no mechanism."""
    if not hasattr(type(mechanism), "dominating_pairs"):
        raise TypeError(f"mechanism = {repr(mechanism)[:80]} is no mechanism: give one of jaxacct.mechanisms.")


def runs_of(mechanism: Any, steps: Any, relation: Relation) -> list[tuple[Record, int]]:
    """Returns the records of a composition's mechanisms one by one, with scalar fields, and how often each is run.

    Raises ValueError where a mechanism, its steps or its relation are out of range.
    """
    if isinstance(mechanism, (tuple, list)):
        for part in mechanism:
            if not isinstance(part, (tuple, list)):
                _check_is_mechanism(part)
        if not isinstance(steps, (tuple, list)) or len(steps) != len(mechanism):
            raise ValueError(f"steps = {steps} do not match {len(mechanism)} mechanisms: give one number for each.")
        return [run for part, count in zip(mechanism, steps, strict=True) for run in runs_of(part, count, relation)]
    _check_is_mechanism(mechanism)
    if not isinstance(relation, str):
        raise ValueError(f"relation = {repr(relation)[:80]} is none: give one of {', '.join(mechanism.relations)}.")
    mechanism.check_numbers()
    mechanism.validate()
    # A mechanism that is a composition by definition is judged by its parts, itself perhaps among them.
    if mechanism.composed:
        return [run for part, count in mechanism.decompose(steps) for run in _runs_of_fields(part, count, relation)]
    return _runs_of_fields(mechanism, steps, relation)


def _runs_of_fields(mechanism: Mechanism, steps: Any, relation: Relation) -> list[tuple[Record, int]]:
    """Returns :func:`runs_of` one mechanism, or of a sequence whose fields have a leading axis."""
    shape = mechanism.batch_shape
    if len(shape) > 1 or np.shape(steps) not in ((), shape):
        raise ValueError(f"steps of shape {np.shape(steps)} do not match a mechanism of shape {shape}.")
    record = _record_of(mechanism)
    each = np.broadcast_to(np.asarray(steps, dtype=object), shape) if shape else [steps]
    counts = [run_count(count) for count in each]
    # The statements know no relation that a mechanism lacks; what is never run, or has no statement, needs none.
    if any(counts) and record["type"] in STATEMENTS and relation not in mechanism.relations:
        known = ", ".join(mechanism.relations)
        raise ValueError(f"relation = {relation!r} is not supported by {record['type']}: give one of {known}.")
    if not shape:
        return [(record, counts[0])]
    # Fields with one axis more than their own are those of a sequence: each mechanism has its row of them.
    own = {"p": 1, "q": 1, "sensitivities": 1, "probabilities": 1}
    return [
        ({name: value[i] if np.ndim(value) > own.get(name, 0) else value for name, value in record.items()}, count)
        for i, count in enumerate(counts)
    ]


def _record_of(mechanism: Mechanism) -> Record:
    """Returns a mechanism's record; its type alone where no JSON holds it, which has no statement then."""
    import jax

    from jaxacct.mechanisms import PrivacyLoss, records

    for value in jax.tree.leaves(mechanism):
        if isinstance(value, jax.core.Tracer):
            raise TypeError(f"a field = {value} is traced: a verdict is about numbers.")
    kind = type(mechanism)
    if records.KINDS.get(kind.__name__) is kind:
        return records.record_of(mechanism)
    # A user's own class may bear the name of one that has a statement, which says nothing about it.
    own = kind.__name__ in STATEMENTS and kind is not PrivacyLoss
    return {"type": f"{kind.__module__}.{kind.__name__}" if own else kind.__name__}


def states_less(mechanism: Mechanisms) -> bool:
    """Returns whether the referee states a mechanism's own law, while the accountants use a pair that dominates it.

    Only their upper bound can be judged then: their lower bound holds for their pair, and not for the mechanism.
    """
    from jaxacct.mechanisms import RandomAllocation

    parts = mechanism if isinstance(mechanism, (tuple, list)) else (mechanism,)
    return any(isinstance(part, RandomAllocation) for part in parts)
