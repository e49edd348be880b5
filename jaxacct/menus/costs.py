"""What the items of a menu cost: whole numbers, so that the game's budget is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

UNITS = 4096
"""The largest budget that costs are chosen for: a level of the game for each unit."""

LEAST = 3
"""Units that a block costs on average at least, where there are more blocks than units: one each would waste most."""

SCALES = 4
"""Scales tried for each unit."""

UNITS_CHOSEN, COSTS = 2000, range(4, 41)
"""The budget, about, where sizes are chosen, and the costs tried for a block."""

BLOCKS = 200
"""Blocks by which it is told how often a budget pays for an item alone, about."""

DEAREST = 512
"""Units that a single run costs at most, about, where a budget pays for few."""

CLOSE = 5e-4
"""Share of the budget that fewer units may cost."""


def whole_costs(plays: Sequence[float], units: int = UNITS) -> tuple[int, ...]:
    """Returns costs that are nearly in inverse proportion to ``plays``, how often a budget pays for each item alone.

    In proportion they are best for whatever item fares worst. Let S_j = c_j N_j, N_j the plays. The game's budget R(S)
    rises with every S_j, for what costs more only narrows the adversary's choice, and R(s S) = s R(S), up to a unit.
    Item j is granted R/S_j of what it would be alone. Scale S so that its largest entry is 1: then the least of these
    shares is R(S) <= R(1, ..., 1), which equal entries attain.

    >>> whole_costs([26.7, 48.7, 89.8, 179.7], units=800)
    (20, 11, 6, 3)
    """
    numbers = np.asarray(plays, np.float64)
    units = max(units, int(LEAST * numbers.max()))
    scales = np.arange(SCALES, SCALES * units + 1) / SCALES
    costs = np.maximum(np.rint(scales[:, None] / numbers), 1.0)
    products = costs * numbers
    budgets = products.min(axis=1)
    wasted = products.max(axis=1) / budgets - 1
    wasted = np.where(budgets <= units, wasted, np.inf)
    chosen = int(np.argmax(wasted <= wasted.min() + CLOSE))
    return tuple(int(cost) for cost in costs[chosen])


def sizes_and_costs(runs: Sequence[float], sizes: Sequence[int | None]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the runs of a block and its cost for each item, in the proportion of :func:`whole_costs`.

    Args:
        runs: how many a budget pays for of each item alone.
        sizes: runs of a block where they are given; where not, those that leave the least to rounding are chosen.

    >>> sizes_and_costs([2670.0, 4870.0], [None, None])
    ((8, 56), (6, 23))
    """
    given = [number / size for number, size in zip(runs, sizes, strict=True) if size]
    if given:
        costs = iter(whole_costs(given))
        known: list[int | None] = [next(costs) if size else None for size in sizes]
        units = min(c * n / size for c, n, size in zip(known, runs, sizes, strict=True) if c and size)
    else:
        known, units = [None] * len(sizes), min(UNITS_CHOSEN, DEAREST * min(runs))
    found = []
    for number, size, cost in zip(runs, sizes, known, strict=True):
        if size is None or cost is None:
            # As many runs as so many units pay for, or what a single one of few costs.
            tried = [(int(c * number / units), c) for c in COSTS if c * number >= units]
            tried += [(1, max(round(units / number), 1))]
            # What rounding wastes, and about what is left of the last block at the end.
            size, cost = min(
                tried, key=lambda pair: abs(pair[1] * number / (pair[0] * units) - 1) + pair[1] / units / 4
            )
        found.append((size, cost))
    return tuple(size for size, _ in found), tuple(cost for _, cost in found)
