"""A finite menu of mechanisms with a budget that holds however they are chosen: certified before the first release."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxacct import certified, validation
from jaxacct.calibrate.runs import guessed_runs, most_runs
from jaxacct.composition import check
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.menus.costs import BLOCKS, sizes_and_costs
from jaxacct.menus.dominance import costlier
from jaxacct.menus.game import Solved, Window, solve
from jaxacct.menus.losses import MOST_TILT, Block, blocks_of, losses_on, window_for
from jaxacct.precision import is_concrete, outside, scope

RING, WIDE, LEVELS = 512, 2**14, 4096
"""Least sizes of the compiled program, so that few are compiled: levels kept, for up to so many points, and values."""

MOST_BYTES = 2**33
"""Memory of the levels that are kept, about twice what is taken."""

MOST_LEVELS = 2**20
"""The largest budget that is looked at."""

ROUNDS, NEAR = 5, 1.5
"""Attempts at a tilt, which suits a number of runs to within such a factor."""

NEVER = 2**30
"""A cost that no budget pays."""

Items = Sequence[Mechanism | tuple[Mechanism, int]]


@dataclass(frozen=True)
class Item:
    """A mechanism on a menu.

    Attributes:
        mechanism: one run of it, of plain numbers.
        count: runs of a block, which is paid for at once; its runs may be made at any later time.
        cost: units of a block; 0 for what releases nothing, :data:`NEVER` for what is never granted.
        alone: blocks, a real number, that the budget would pay for were nothing else on the menu and all fixed in
            advance.

    >>> from jaxacct import Gaussian
    >>> Item(Gaussian(20.0), count=5, cost=8, alone=61.5).cost
    8
    """

    mechanism: Mechanism
    count: int
    cost: int
    alone: float


@dataclass(frozen=True)
class Menu:
    """Mechanisms, what they cost, and the budget: hashable, and printed as a table.

    Attributes:
        epsilon: see :func:`certify`.
        delta: likewise.
        relation: likewise.
        items: in the order given.
        budget: units.
        value: what the worst use of the budget comes to, at most: an upper bound on delta at ``epsilon``.

    >>> from jaxacct import Gaussian
    >>> menu = certify(1.0, 1e-5, [Gaussian(20.0), Gaussian(30.0)])
    >>> menu.value <= 1e-5, menu.budget // menu.items[0].cost * menu.items[0].count
    (True, 28)
    """

    epsilon: float
    delta: float
    relation: Relation
    items: tuple[Item, ...]
    budget: int
    value: float

    def share(self, index: int) -> float:
        """Returns what part of a plan's runs of an item is granted of it alone: 1 less the price of the choice."""
        item = self.items[index]
        return self.budget / (item.cost * item.alone) if 0 < item.cost < NEVER else float(not item.cost)

    def fingerprint(self) -> str:
        """Returns a hash of all that the guarantee rests on, to be kept with a run."""
        return hashlib.sha256(repr(self.as_dict()).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Returns the menu in plain types, as for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "budget": self.budget,
            "value": self.value,
            "items": [
                {
                    "mechanism": repr(item.mechanism),
                    "count": item.count,
                    "cost": item.cost,
                    "alone": item.alone if math.isfinite(item.alone) else None,
                }
                for item in self.items
            ],
        }

    def __str__(self) -> str:
        guarantee = f"({self.epsilon:g}, {self.delta:g})-DP by {self.relation}"
        lines = [f"{guarantee}: {self.budget} units, which cost a delta of {self.value:.6g} at most"]
        for index, item in enumerate(self.items):
            if item.cost in (0, NEVER):
                lines.append(f"{index:3d}  {item.mechanism}: {'never' if item.cost else 'always'} granted")
                continue
            runs = self.budget // item.cost * item.count
            lines.append(
                f"{index:3d}  {item.mechanism}: {item.count} for {item.cost} units; alone {runs} runs, "
                f"{self.share(index):.1%} of a plan's"
            )
        return "\n".join(lines)


def certify(
    epsilon: float,
    delta: float,
    items: Items,
    *,
    costs: Sequence[int] | None = None,
    relation: Relation = "add_or_remove",
) -> Menu:
    """Returns the menu with the largest budget whose worst adaptive use is (epsilon, delta)-DP.

    Args:
        epsilon: budget, at least 0 and finite.
        delta: budget, in (0, 1).
        items: mechanisms of plain numbers, or pairs of one and the runs of a block of it. Without a number it is
            chosen so that the budget pays for some 50 to 500 blocks. Smaller blocks waste less at the end of a run,
            where one of each item may be left unused; they take longer to certify, and their finer choices cost a
            little more.
        costs: units of a block of each item, whose sizes are 1 unless given. By default the best for whatever item
            fares worst.
        relation: one that all mechanisms support.

    Formal guarantee: whatever is chosen from earlier results, when the runs of a block are made, and wherever it ends,
    blocks whose costs sum to at most ``budget`` are together (epsilon, delta)-DP for ``relation``: :mod:`.game`.

    An item of which a single block costs more than the budget is never granted, and costs the others nothing.

    Raises ValueError where an argument is out of range, or no item is ever granted.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> menu = certify(1.0, 1e-5, [PoissonSubsampledGaussian(noise, 0.01) for noise in (1.5, 3.0)])
    >>> [round(menu.share(index), 2) for index in range(2)]
    [0.99, 0.99]
    """
    validation.check_epsilon(epsilon)
    validation.check_finite(epsilon, "epsilon")
    validation.check_delta(delta)
    pairs = tuple(_checked(item) for item in items)
    if not pairs:
        raise ValueError("menu is empty: give at least one mechanism.")
    if costs is not None:
        if len(costs) != len(pairs):
            raise ValueError(f"costs = {tuple(costs)} do not fit {len(pairs)} items: give one for each.")
        for cost in costs:
            validation.check_whole(cost, "costs", 1, 2**20, "the units of a block")
    chosen = None if costs is None else tuple(int(cost) for cost in costs)
    return _certified(float(epsilon), float(delta), pairs, chosen, relation)


@functools.lru_cache(maxsize=64)
def _certified(
    epsilon: float,
    delta: float,
    pairs: tuple[tuple[Mechanism, int | None], ...],
    costs: tuple[int, ...] | None,
    relation: Relation,
) -> Menu:
    free = [bool(np.all(np.asarray(mechanism.releases_nothing()))) for mechanism, _ in pairs]
    paid = [pair for pair, is_free in zip(pairs, free, strict=True) if not is_free]
    chosen = None if costs is None else [c for c, is_free in zip(costs, free, strict=True) if not is_free]
    found, budget, value = _of_several(paid, chosen, epsilon, delta, relation) if paid else ([], 0, 0.0)
    every = iter(found)
    listed = tuple(
        Item(mechanism, count or 1, 0, math.inf) if is_free else next(every)
        for (mechanism, count), is_free in zip(pairs, free, strict=True)
    )
    return Menu(epsilon, delta, relation, listed, budget, value)


def limit(menu: Menu) -> int:
    """Returns a budget that no certificate of the same costs can exceed: an adversary that is played beats the next.

    Formal guarantee: with one unit more some adaptive choice from the menu is not (epsilon, delta)-DP, where each
    mechanism's dominating pair is attained: a lower bound on the value of the same game.

    >>> from jaxacct import Gaussian
    >>> menu = certify(1.0, 1e-5, [Gaussian(20.0), Gaussian(30.0)])
    >>> menu.budget <= limit(menu) <= 1.01 * menu.budget
    True
    """
    paid = [item for item in menu.items if 0 < item.cost < NEVER]
    if len(paid) < 2:
        return menu.budget
    with scope(by_programs=True):
        game = Game.on(menu)
        return int(game.solved([item.cost for item in paid], min(2 * menu.budget, MOST_LEVELS), side=1).budget)


class Game(NamedTuple):
    """Blocks' losses, and the lattice that they are played on."""

    rows: list[list[Block]]
    window: Window
    points: int
    epsilon: float
    delta: float

    @classmethod
    def of(
        cls, items: Sequence[tuple[Mechanism, int]], plays: Sequence[float], epsilon: float, delta: float, to: Relation
    ) -> Game:
        """Returns the game of blocks, of which the budget pays for about so many alone."""
        blocks = [(costlier(mechanism), count) for mechanism, count in items]
        shares = [number / len(items) for number in plays]
        while True:
            rows = blocks_of(blocks, shares, to, epsilon)
            window, points = window_for(rows, plays, epsilon, delta)
            reach = max(epsilon, -float(window.start * window.mesh))
            if np.max(window.order) * reach <= MOST_TILT or min(shares) > validation.MOST_COUNT:
                return cls(rows, window, points, epsilon, delta)
            # So few runs never come near epsilon, which asks for a tilt without bound.
            shares = [1.5 * share for share in shares]

    @classmethod
    def on(cls, menu: Menu) -> Game:
        """Returns the game of a menu's items that cost something."""
        paid = [item for item in menu.items if 0 < item.cost < NEVER]
        pairs, plays = [(item.mechanism, item.count) for item in paid], [item.alone for item in paid]
        return cls.of(pairs, plays, menu.epsilon, menu.delta, menu.relation)

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
        losses = losses_on(self.rows, self.window, self.points, side)
        judged = np.full(levels, self.epsilon)
        if epsilons is not None:
            judged[: most + 1] = epsilons
        found: Solved = solve(
            ring, losses, np.asarray(costs, np.int32), judged, self.window,
            np.float64(self.delta if epsilons is None else 1.0), np.int32(most), np.bool_(side == 0),
        )  # fmt: skip
        return outside(found)

    def costs_too_much(self, index: int) -> bool:
        """Returns whether one item alone seems to cost more than delta: a choice, and no bound."""
        for row in self.rows:
            losses, masses = row[index].masses()
            over = np.maximum(-np.expm1(np.minimum(self.epsilon - losses, 0.0)), 0.0)
            if not np.sum(masses * over) + row[index].infinite[1] <= self.delta:
                return True
        return False

    def alone(self, index: int, guess: float) -> float:
        """Returns how often the budget pays for one item, nothing else being played, as a real number."""
        most = math.ceil(2 * guess) + 2
        while True:
            costs = [1 if j == index else NEVER for j in range(len(self.rows[0]))]
            found = self.solved(costs, most)
            last = int(found.budget)
            if last < most or most >= MOST_LEVELS:
                break
            most = min(4 * most, MOST_LEVELS)
        if not last or last == most:
            return float(last)
        low, high = np.log(found.values[last]), np.log(found.values[last + 1])
        return last + float((math.log(self.delta) - low) / (high - low)) if np.isfinite(low) else float(last)


def _of_one(
    pair: tuple[Mechanism, int | None], costs: list[int] | None, epsilon: float, delta: float, relation: Relation
) -> tuple[list[Item], int, float]:
    """Returns a menu without a choice: a plan that is stopped anywhere, by the certified accountant."""
    mechanism = costlier(pair[0])
    runs = most_runs(mechanism, epsilon, delta, relation=relation)
    if not runs:
        return _without([True], [pair], costs, epsilon, delta, relation)
    cost = costs[0] if costs else 1
    value = float(certified.delta(mechanism, runs, epsilon, relation=relation).upper)
    return [Item(pair[0], 1, cost, float(runs))], min(runs * cost, validation.MOST_COUNT), value


def _of_several(
    pairs: list[tuple[Mechanism, int | None]], costs: list[int] | None, epsilon: float, delta: float, relation: Relation
) -> tuple[list[Item], int, float]:
    """Returns the items with a cost each, the budget, and its value; what is never granted is not played."""
    if len(pairs) == 1:
        return _of_one(pairs[0], costs, epsilon, delta, relation)
    mechanisms, sizes = [mechanism for mechanism, _ in pairs], [size for _, size in pairs]
    guesses = [guessed_runs(mechanism, epsilon, delta, relation) for mechanism in mechanisms]

    def game_of(sizes: Sequence[int], runs: Sequence[float]) -> Game:
        plays = [number / size for number, size in zip(runs, sizes, strict=True)]
        return Game.of(list(zip(mechanisms, sizes, strict=True)), plays, epsilon, delta, relation)

    with scope(by_programs=True):
        # What each is alone is told by blocks that are not too many: it takes a level for each.
        for _ in range(ROUNDS):
            usual = [max(round(guess / BLOCKS), 1) for guess in guesses]
            first = [max(size or 1, own) for size, own in zip(sizes, usual, strict=True)]
            game = game_of(first, guesses)
            never, runs = [game.costs_too_much(i) for i in range(len(pairs))], guesses
            if any(never):
                break
            alone = [game.alone(i, guess / size) for i, (guess, size) in enumerate(zip(guesses, first, strict=True))]
            never = [number < 1 for number in alone]
            runs = [number * size for number, size in zip(alone, first, strict=True)]
            ratios = [number / guess for number, guess in zip(runs, guesses, strict=True)]
            if 1 / NEAR <= min(ratios) <= max(ratios) <= NEAR:
                break
            guesses = [max(number, 0.5) for number in runs]
        if any(never):
            return _without(never, pairs, costs, epsilon, delta, relation)
        counts, chosen = sizes_and_costs(runs, sizes)
        if costs:
            counts, chosen = tuple(size or 1 for size in sizes), tuple(costs)
        if list(counts) != first:
            game = game_of(counts, runs)
        alone = [number / count for number, count in zip(runs, counts, strict=True)]
        most = math.ceil(min(cost * number for cost, number in zip(chosen, alone, strict=True))) + 1
        found = game.solved(chosen, min(most, MOST_LEVELS))
    budget = int(found.budget)
    items = [Item(*parts) for parts in zip(mechanisms, counts, chosen, alone, strict=True)]
    return items, budget, float(found.values[budget])


def _without(
    never: list[bool],
    pairs: list[tuple[Mechanism, int | None]],
    costs: list[int] | None,
    epsilon: float,
    delta: float,
    relation: Relation,
) -> tuple[list[Item], int, float]:
    """Returns what is found of the others, and for the items that are ``never`` granted a cost that no budget pays."""
    if all(never):
        raise ValueError(
            f"menu = {[mechanism for mechanism, _ in pairs]}: a block of each alone costs more than (epsilon = "
            f"{epsilon:g}, delta = {delta:g}); give more noise or smaller blocks, or raise the budget."
        )
    rest = [pair for pair, is_never in zip(pairs, never, strict=True) if not is_never]
    left = None if costs is None else [cost for cost, is_never in zip(costs, never, strict=True) if not is_never]
    found, budget, value = _of_several(rest, left, epsilon, delta, relation)
    every = iter(found)
    items = [
        Item(mechanism, count or 1, NEVER, 0.0) if is_never else next(every)
        for (mechanism, count), is_never in zip(pairs, never, strict=True)
    ]
    return items, budget, value


def _checked(item: Mechanism | tuple[Mechanism, int]) -> tuple[Mechanism, int | None]:
    """Returns a mechanism of plain numbers, and the runs of a block."""
    mechanism, count = item if isinstance(item, tuple) else (item, None)
    check(mechanism, 1)
    if mechanism.batch_shape or not is_concrete(mechanism):
        raise ValueError(
            f"menu has {mechanism}: an item is one mechanism of concrete numbers; list several one by one."
        )
    if count is not None:
        validation.check_count(count, "count", "the runs of a block")
    plain = jax.tree.map(lambda leaf: np.asarray(leaf).item(), mechanism)
    return plain, None if count is None else int(count)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
