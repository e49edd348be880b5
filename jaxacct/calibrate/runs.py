"""How often a budget pays for a composition, whatever it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jaxacct import certified, rdp, validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate.search import Aim, search_by_calls
from jaxacct.composition import check
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.precision import in_float64
from jaxacct.validation import MOST_COUNT

ORDERS = tuple(1 + 0.5 * 1.7**j for j in range(32))
"""Rényi orders of the first guess."""

SHARE = 1.4
"""By how much more runs than a Rényi filter's a budget typically pays for."""

SLOPE = -8.0
"""Of log delta over the logarithm of the runs, typically; negative: u is minus the latter."""


def most_runs(mechanism: Mechanism, epsilon: float, delta: float, *, relation: Relation = "add_or_remove") -> int:
    """Returns how many runs of ``mechanism`` cost at most (epsilon, delta), fixed in advance; at most 2^31 - 1.

    Args:
        mechanism: one, concrete.
        epsilon: budget, at least 0.
        delta: budget, in (0, 1).
        relation: one that the mechanism supports.

    Formal guarantee: that many runs are (epsilon, delta)-DP by the certified accountant's upper bound. 0 where a single
    run costs more. One more is not certified, unless bounds are loose or the number is above 10^8.

    Raises ValueError where an argument is out of range.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> most_runs(PoissonSubsampledGaussian(3.8128189, 0.01), 1.0, 1e-5)
    10000
    """
    check(mechanism, 1)
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    if np.all(np.asarray(mechanism.releases_nothing())):
        return MOST_COUNT
    guess = guessed_runs(mechanism, epsilon, delta, relation)

    def delta_at(runs: int) -> Bounds:
        return certified.delta(mechanism, runs, epsilon, relation=relation)

    return most_certified(delta_at, delta, guess)


def guessed_runs(mechanism: Mechanism, epsilon: float, delta: float, relation: Relation) -> float:
    """Returns about how many runs a budget pays for: by Rényi divergences, and by what they are known to cost."""
    curve = np.asarray(rdp.curve(mechanism, ORDERS, relation=relation))
    with np.errstate(all="ignore"):
        of_orders = (epsilon + math.log(1 / delta) / (1 - np.asarray(ORDERS))) / curve
    return min(SHARE * float(np.nanmax(of_orders, initial=1.0)), float(MOST_COUNT))


@in_float64(by_programs=True)
def most_certified(delta_at: Callable[[int], Bounds], delta: float, guess: float) -> int:
    """Returns the most runs whose certified delta is at most ``delta``; 0 for none. ``delta_at`` rises with them."""
    real = np.float64
    aim = Aim(
        real(delta), least=real(-math.log(MOST_COUNT)), most=real(0.0), tolerance=real(0.0), scale=None, rises=False,
        whole=True,
    )  # fmt: skip
    first = real(-math.log(min(max(guess, 1.0), MOST_COUNT)))
    slope = real(SLOPE * float(aim.steepness()))
    state = search_by_calls(lambda value: delta_at(int(value)), aim, first, slope, np.bool_(False))
    return int(state.found.value) if math.isfinite(float(state.found.setting)) else 0
