"""A menu's game on a lattice that suits it: what budgets of it are worth, and how long an item lasts alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxacct import validation
from jaxacct.elementary import By
from jaxacct.mechanisms.mechanism import Mechanism
from jaxacct.menus.dominance import costlier
from jaxacct.menus.game import Losses, Solved, Window, solve
from jaxacct.menus.losses import MOST_TILT, Guarantee, blocks_of, losses_on, masses_of, window_for
from jaxacct.precision import outside
from jaxacct.programs import Program
from jaxacct.prv.lattice import LossLattice

RING, WIDE, LEVELS = 64, 2**14, 4096
"""Least sizes of the compiled program, so that few are compiled: levels kept, for up to so many points, and values."""

MOST_BYTES = 2**33
"""Memory of the levels that are kept, about twice what is taken."""

MOST_LEVELS = 2**20
"""The largest budget that is looked at."""

LONG = 2e8
"""Points of all levels, items and directions from which the program is compiled as JAX does by default: that takes half
a second more, and five nanoseconds less for each of them. Speed only."""

MOST_WORK = 1e12
"""The same beyond which a game is refused, about two hours of a core."""

solve_well = Program(solve.function, ("ring",), by=By.XLA)

FAR = 10.0
"""Standard deviations of a sum that are looked at on either side."""


@dataclass(frozen=True)
class Game:
    """Blocks' losses, and the lattice that they are played on."""

    guarantee: Guarantee
    rows: list[list[LossLattice]]
    window: Window
    points: int

    @classmethod
    def of(cls, items: Sequence[tuple[Mechanism, int]], plays: Sequence[float], guarantee: Guarantee) -> Game:
        """Returns the game of blocks, of which the budget pays for about so many alone."""
        blocks = [(costlier(mechanism), count) for mechanism, count in items]
        shares = [number / len(items) for number in plays]
        while True:
            rows = blocks_of(blocks, shares, guarantee.relation, guarantee.epsilon)
            window, points = window_for(rows, plays, guarantee.epsilon, guarantee.delta)
            reach = max(guarantee.epsilon, -float(window.start * window.mesh))
            if np.max(window.order) * reach <= MOST_TILT or min(shares) > validation.MOST_COUNT:
                return cls(guarantee, rows, window, points)
            # So few runs never come near epsilon, which asks for a tilt without bound.
            shares = [1.5 * share for share in shares]

    @functools.cached_property
    def above(self) -> Losses:
        """The losses on the lattice, above the true ones."""
        return losses_on(self.rows, self.window, self.points, 0)

    def solved(self, costs: Sequence[int], most: int, *, side: int = 0, epsilons: np.ndarray | None = None) -> Solved:
        """Returns the values of budgets up to ``most``, from above (``side`` 0) or from below (1).

        Up to the first beyond delta; or, where a path is judged by other ``epsilons`` (most + 1,) than the game's
        according to what is left, up to ``most``.
        """
        ring = max(_power_of_two(max(cost for cost in costs if cost <= most)), RING if self.points <= WIDE else 1)
        levels = max(_power_of_two(most + 1), LEVELS)
        if 16 * len(self.rows) * ring * self.points > MOST_BYTES:
            raise ValueError(
                f"costs = {tuple(costs)} on a lattice of {self.points} points take too much memory: as many levels as "
                "the largest is are kept. Give smaller whole numbers, or let them be chosen."
            )
        work = most * len(self.rows) * (1 + len(costs)) * self.points
        if work > MOST_WORK:
            raise ValueError(
                f"{most} units on a lattice of {self.points} points, with costs = {tuple(costs)}, would be solved for "
                f"hours: rare large losses beside narrow ones ask for many points. Give larger blocks, of which the "
                "budget pays for some hundreds, or let them be chosen, or give smaller whole costs."
            )
        losses = losses_on(self.rows, self.window, self.points, side) if side else self.above
        judged = np.full(levels, self.guarantee.epsilon)
        if epsilons is not None:
            judged[: most + 1] = epsilons
        found: Solved = (solve_well if work > LONG else solve)(
            ring, losses, np.asarray(costs, np.int32), judged, self.window,
            np.float64(self.guarantee.delta if epsilons is None else 1.0), np.int32(most), np.bool_(side == 0),
        )  # fmt: skip
        return outside(found)

    def _costs_too_much(self, index: int) -> bool:
        """Returns whether one item alone seems to cost more than delta: a choice, and no bound."""
        for row in self.rows:
            losses, masses = masses_of(row[index])
            over = np.maximum(-np.expm1(np.minimum(self.guarantee.epsilon - losses, 0.0)), 0.0)
            if not np.sum(masses * over) + row[index].infinite[1] <= self.guarantee.delta:
                return True
        return False

    def alone(self, index: int, guess: float) -> float:
        """Returns about how often the budget pays for one item, nothing else being played, as a real number."""
        if self._costs_too_much(index):
            return 0.0

        @functools.cache
        def delta_of(number: int) -> float:
            return max(self._delta_of(row, index, number) for row in range(len(self.rows)))

        low, high = 0, max(math.ceil(guess), 1)
        while delta_of(high) <= self.guarantee.delta and high < MOST_LEVELS:
            low, high = high, min(2 * high, MOST_LEVELS)
        if delta_of(high) <= self.guarantee.delta:
            return float(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if delta_of(middle) <= self.guarantee.delta else (low, middle)
        if not low or not delta_of(low) or not delta_of(high) < math.inf:
            return float(low)
        rise = math.log(delta_of(high)) - math.log(delta_of(low))
        return low + (math.log(self.guarantee.delta) - math.log(delta_of(low))) / rise

    def _delta_of(self, row: int, index: int, number: int) -> float:
        """Returns delta of so many blocks of an item in a direction: a power of a transform, and no bound."""
        order, mesh = float(self.window.order[row]), float(self.window.mesh)
        weights = self.above.weights[row, index]
        places = np.arange(self.points)
        places = np.where(places > self.points - 1 - self.window.last, places - self.points, places)
        total = float(np.sum(weights))
        mean = float(np.sum(weights * places)) / total
        deviation = math.sqrt(float(np.sum(weights * (places - mean) ** 2)) / total)
        reach = FAR * math.sqrt(number) * deviation + max(self.window.first, self.points - self.window.last)
        size = _power_of_two(int(2 * reach) + 2)
        if size > 2**22:
            return math.inf
        folded = np.bincount(places % size, weights / total, size)
        summed = np.fft.irfft(np.fft.rfft(folded) ** number, size)
        first = math.floor(number * mean) - size // 2
        losses = mesh * (first + (np.arange(size) - first) % size)
        epsilon, delta = self.guarantee.epsilon, number * float(self.above.infinite[row, index])
        over = losses > epsilon
        with np.errstate(over="ignore"):
            exponents = number * math.log(total) - order * losses[over]
            values = -np.expm1(epsilon - losses[over]) * np.exp(np.minimum(exponents, 700.0))
        # What a transform cannot see counts as there.
        return (
            delta + float(np.sum(values * np.maximum(summed[over], 0.0))) + 1e-15 * float(np.max(values, initial=0.0))
        )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
