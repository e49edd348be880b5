"""A program as a list of NumPy's operations, and how it is run. It can be pickled, and holds nothing of JAX."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

Value = Any


class WorkError(RuntimeError):
    """More is to be done than was allowed."""


class _Allowance(threading.local):
    left = float("inf")


_allowance = _Allowance()


class Code:
    """A program of arrays.

    Attributes:
        template: a place for each value, with the constants.
        inputs: the places of the arguments.
        steps: (operation, places of operands, place or places of results, places not needed any more).
        outputs: the places of the results.
        weight: about how many operations on few numbers take as long; loops and parts count for themselves.
        length: its operations, and those of all that it calls, once each.
    """

    __slots__ = ("inputs", "length", "outputs", "steps", "template", "weight")

    def __init__(self, template: Any, inputs: Any, steps: Any, outputs: Any, weight: int) -> None:
        self.template, self.inputs, self.steps, self.outputs, self.weight = template, inputs, steps, outputs, weight
        self.length = len(steps)

    def __call__(self, *args: Value) -> list[Value]:
        _allowance.left -= self.weight
        if _allowance.left < 0:
            raise WorkError
        values = self.template.copy()
        for place, arg in zip(self.inputs, args, strict=True):
            values[place] = arg
        for operation, taken, given, dropped in self.steps:
            found = operation(*[values[place] for place in taken])
            if given.__class__ is int:
                values[given] = found
            else:
                for place, value in zip(given, found, strict=True):
                    values[place] = value
            for place in dropped:
                values[place] = None
        return [values[place] for place in self.outputs]


def run(code: Code, args: Sequence[Value], allowed: float) -> tuple[list[Value], float]:
    """Returns the results, and the weight of what was done.

    Raises:
        WorkError: it would be more than ``allowed``.
    """
    before, _allowance.left = _allowance.left, allowed
    try:
        with np.errstate(all="ignore"):
            found = code(*args)
        return found, allowed - _allowance.left
    finally:
        _allowance.left = before


class While:
    """A loop: a condition, and a body."""

    def __init__(self, condition: Code, body: Code, of_condition: int, of_body: int) -> None:
        self.condition, self.body, self.counts = condition, body, (of_condition, of_condition + of_body)

    def __call__(self, *args: Value) -> Sequence[Value]:
        first, second = self.counts
        fixed, consts = args[:first], args[first:second]
        carry: Sequence[Value] = args[second:]
        condition, body = self.condition, self.body
        (goes_on,) = condition(*fixed, *carry)
        while goes_on.any():
            new = body(*consts, *carry)
            # A batch whose lanes end at their own times.
            carry = new if goes_on.all() else [_where(goes_on, *pair) for pair in zip(new, carry, strict=True)]
            (goes_on,) = condition(*fixed, *carry)
        return carry


def _where(which: Value, x: Value, y: Value) -> Value:
    return np.where(which.reshape(which.shape + (1,) * (np.ndim(x) - which.ndim)), x, y)


class Scan:
    """A body for each row."""

    def __init__(self, body: Code, counts: tuple[int, int], length: int, reverse: bool, rows: Any) -> None:
        self.body, self.length, self.reverse = body, length, reverse
        consts, self.carried = counts
        self.counts, self.rows = (consts, consts + self.carried), rows

    def __call__(self, *args: Value) -> Sequence[Value]:
        first, second = self.counts
        consts, given = args[:first], args[second:]
        carry: Sequence[Value] = args[first:second]
        found = [np.empty((self.length, *shape), dtype) for shape, dtype in self.rows]
        for i in reversed(range(self.length)) if self.reverse else range(self.length):
            result = self.body(*consts, *carry, *[row[i] for row in given])
            carry = result[: self.carried]
            for rows, row in zip(found, result[self.carried :], strict=True):
                rows[i] = row
        return [*carry, *found]


class Switch:
    """One of several branches."""

    def __init__(self, branches: list[Code]) -> None:
        self.branches = branches

    def __call__(self, which: Value, *args: Value) -> Sequence[Value]:
        return self.branches[min(max(int(which), 0), len(self.branches) - 1)](*args)
