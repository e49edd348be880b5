"""Results of some entries: the compiled program for all of them, then the mesh for those that this leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxacct.sweep.program import program_of, run
from jaxacct.sweep.quantities import Accountant, Entry, Quantity
from jaxacct.sweep.settings import MECHANISM, Settings

Arrays = dict[str, np.ndarray]


def computed(
    quantity: Quantity,
    settings: Settings,
    devices: tuple[Any, ...],
    memory: int,
    part: slice,
    advance: Callable[[int], None],
) -> Arrays:
    """Returns the results of a part of the entries; ``advance`` is called with how many more are done."""
    numbers = np.arange(part.start, part.stop)
    columns = settings.columns(numbers)
    classes = columns.pop(MECHANISM, np.zeros(len(numbers)))
    results = empty(quantity, len(numbers))
    for code in np.unique(classes):
        mechanism, places = settings.mechanisms[int(code)], np.flatnonzero(classes == code)
        program = program_of(quantity.exact, mechanism, tuple(columns), devices, memory)
        start = 0
        for block in run(program, {name: column[places] for name, column in columns.items()}):
            at = places[start : start + len(block["upper"])]
            for name, values in block.items():
                results[name][at] = values
            unsettled = at[~block["converged"]] if quantity.mode == "certified" else at[:0]
            advance(len(at) - len(unsettled))
            for i in unsettled:
                _by_mesh(quantity, mechanism, columns, results, int(i))
                advance(1)
            start += len(at)
    return _on_the_safe_side(quantity, results)


def _on_the_safe_side(quantity: Quantity, results: Arrays) -> Arrays:
    """Returns the results with the worst there is in place of bounds that are no numbers, should there be any."""
    undefined = np.isnan(results["lower"]) | np.isnan(results["upper"])
    results["lower"][undefined] = 0.0
    results["upper"][undefined] = quantity.worst
    results["converged"][undefined] = False
    results["accountant"][undefined] = Accountant.NONE
    if "noise_multiplier" in results:
        results["noise_multiplier"][undefined | np.isnan(results["noise_multiplier"])] = np.inf
    return results


def _by_mesh(quantity: Quantity, mechanism: type, columns: Arrays, results: Arrays, i: int) -> None:
    """Puts what the mesh adds in the place of entry ``i``."""
    entry: Entry = {name: float(column[i]) for name, column in columns.items()}
    before: Entry = {name: values[i] for name, values in results.items()}
    try:
        answer = quantity.by_mesh(mechanism, entry, before)
    except (ValueError, ArithmeticError, RuntimeError):
        # One entry's failure must not end a sweep of millions: what was known of it holds, and it is flagged.
        answer = before | {"accountant": Accountant.FAILED}
    for name, value in answer.items():
        results[name][i] = value


def empty(quantity: Quantity, size: int) -> Arrays:
    """Returns arrays for results."""
    return {name: np.zeros(size, kind) for name, kind in quantity.arrays.items()}
