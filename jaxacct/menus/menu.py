"""Certified menus of mechanisms: the game on a lattice that suits it, and the largest budget whose worst use is safe.

:class:`Game` puts the losses of items on a lattice and solves the program of :mod:`jaxacct.menus.game`; it also tells
how long an item lasts alone. :func:`certify` chooses blocks and costs, and searches the largest budget of a menu;
:func:`limit` gives one that no certificate can exceed.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxacct import certified, validation
from jaxacct.calibrate.targets import most_runs
from jaxacct.composition import check
from jaxacct.display import rounded_up
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.menus.game import (
    Guarantee,
    Losses,
    Solved,
    Window,
    blocks_of,
    costlier,
    guessed_runs,
    losses_on,
    masses_of,
    sizes_and_costs,
    solve_game,
    window_for,
)
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import is_concrete, leave_scope, scope
from jaxacct.numerics.programs import Program
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.numerics.root_search import bisect, bracket
from jaxacct.prv.evolving import Sum

MOST_LEVELS = 2**20
"""Largest budget (units) that a game is solved for."""

solve_well = Program(solve_game.function, ("ring",), by=By.XLA)
"""The program :func:`.solve_game` as JAX compiles it by default."""


@dataclass(frozen=True)
class Game:
    """Game of blocks: their losses, and the lattice that they are played on."""

    guarantee: Guarantee
    rows: list[list[Sum]]
    window: Window
    points: int

    @classmethod
    def of(
        cls,
        items: Sequence[tuple[Mechanism, int]],
        plays: Sequence[float],
        guarantee: Guarantee,
        *,
        from_below: bool = False,
    ) -> Game:
        """Returns the game of blocks, for a budget that pays for about ``plays`` of each alone.

        ``from_below`` says that the game is solved for lower bounds, which hold of some adversary.
        """
        # Above, an item pays for what float32 makes of its parameters, too.
        blocks = [(mechanism if from_below else costlier(mechanism), count) for mechanism, count in items]
        shares = [number / len(items) for number in plays]
        # Tilts are made for more and more runs until one fits the window; every pass multiplies the shares, so it ends.
        while True:
            rows = blocks_of(blocks, shares, guarantee.relation, guarantee.epsilon, from_below=from_below)
            window, points = window_for(rows, plays, guarantee.epsilon, guarantee.delta)
            reach = max(guarantee.epsilon, -float(window.start * window.mesh))
            # Float64 ends at about e^700. Any number is sound: a tilt that is too high makes values infinite.
            if np.max(window.order) * reach <= 500.0 or min(shares) > validation.MOST_COUNT:
                return cls(guarantee, rows, window, points)
            # So few runs never come near epsilon, and the tilt that would bring them there has no bound.
            shares = [1.5 * share for share in shares]

    @functools.cached_property
    def above(self) -> Losses:
        """The losses on the lattice, above the true ones."""
        return losses_on(self.rows, self.window, self.points, 0)

    def solve(self, costs: Sequence[int], most: int, *, side: int = 0, epsilons: np.ndarray | None = None) -> Solved:
        """Returns the values of budgets up to ``most``, from above (``side`` 0) or from below (1).

        The values end at the first beyond delta. Where a path is judged by other ``epsilons`` (most + 1,) than the
        game's, according to the budget left, they go up to ``most``.
        """
        # Least sizes of the compiled program, so that few are compiled: 64 levels in the ring for up to 2^14 points,
        # and 4,096 values. Speed only.
        ring = max(_power_of_two(max(cost for cost in costs if cost <= most)), 64 if self.points <= 2**14 else 1)
        levels = max(_power_of_two(most + 1), 4096)
        # The memory of the levels that are kept, as estimated, is about twice what is taken.
        if 16 * len(self.rows) * ring * self.points > 2**33:
            raise ValueError(
                f"costs = {tuple(costs)} on a lattice of {self.points} points take too much memory: as many levels as "
                "the largest is are kept. Give smaller whole numbers, or let them be chosen."
            )
        work = most * len(self.rows) * (1 + len(costs)) * self.points
        if work > 1e12:
            raise ValueError(
                f"{most} units on a lattice of {self.points} points, with costs = {tuple(costs)}, would be solved for "
                f"hours: rare large losses beside narrow ones ask for many points. Give larger blocks, of which the "
                "budget pays for some hundreds, or let them be chosen, or give smaller whole costs."
            )
        losses = losses_on(self.rows, self.window, self.points, side) if side else self.above
        judged = np.full(levels, self.guarantee.epsilon)
        if epsilons is not None:
            judged[: most + 1] = epsilons
        # A longer game is compiled as JAX does by default: that takes half a second more, and five nanoseconds less for
        # each point of all levels, items and directions. Speed only.
        solved: Solved = (solve_well if work > 2e8 else solve_game)(
            ring, losses, np.asarray(costs, np.int32), judged, self.window,
            np.float64(self.guarantee.delta if epsilons is None else 1.0), np.int32(most), np.bool_(side == 0),
        )  # fmt: skip
        return leave_scope(solved)

    def _costs_too_much(self, index: int) -> bool:
        """Returns whether one item alone seems to cost more than delta: a choice, and no bound."""
        # In either direction the item's own delta is compared with the menu's.
        for row in self.rows:
            losses, masses = masses_of(row[index])
            over = np.maximum(-np.expm1(np.minimum(self.guarantee.epsilon - losses, 0.0)), 0.0)
            infinite = -np.expm1(row[index].log_finite[1])
            if not np.sum(masses * over) + infinite <= self.guarantee.delta:
                return True
        return False

    def alone(self, index: int, guess: float) -> float:
        """Returns about how often the budget pays for one item, nothing else being played, as a real number."""
        if self._costs_too_much(index):
            return 0.0

        @functools.cache
        def delta_of(number: int) -> float:
            return max(self._delta_of(row, index, number) for row in range(len(self.rows)))

        def pays(number: int) -> bool:
            return delta_of(number) <= self.guarantee.delta

        low, high = bracket(pays, max(math.ceil(guess), 1), MOST_LEVELS, safe=0)
        if low == high:
            return float(high)
        low = bisect(pays, low, high)
        high = low + 1
        if not low or not delta_of(low) or not delta_of(high) < math.inf:
            return float(low)
        rise = math.log(delta_of(high)) - math.log(delta_of(low))
        return low + (math.log(self.guarantee.delta) - math.log(delta_of(low))) / rise

    def _delta_of(self, row: int, index: int, number: int) -> float:
        """Returns delta of a number of blocks of an item in a direction: a power of a transform, and no bound."""
        order, mesh = float(self.window.order[row]), float(self.window.mesh)
        weights = self.above.weights[row, index]
        places = np.arange(self.points)
        places = np.where(places > self.points - 1 - self.window.last, places - self.points, places)
        total = float(np.sum(weights))
        mean = float(np.sum(weights * places)) / total
        deviation = math.sqrt(float(np.sum(weights * (places - mean) ** 2)) / total)
        # The sum of the tilted losses is folded on a circle that holds ten deviations about its mean, then untilted.
        reach = 10.0 * math.sqrt(number) * deviation + max(self.window.first, self.points - self.window.last)
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
        # Mass too small for a transform to show counts as present.
        return (
            delta + float(np.sum(values * np.maximum(summed[over], 0.0))) + 1e-15 * float(np.max(values, initial=0.0))
        )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


# ----------------------------------------------------------------------------------------------------
# Certification: a finite menu with a budget that holds however its mechanisms are chosen, before the first release.
# ----------------------------------------------------------------------------------------------------

NEVER = 2**30
"""Cost that marks an item as refused, however many units a budget has: above any cost that may be given."""

Items = Sequence[Mechanism | tuple[Mechanism, int]]
"""Type of a menu as it is given: mechanisms, or pairs of one and the runs of a block."""


@dataclass(frozen=True)
class Item:
    """Item on a menu: a mechanism, sold in blocks.

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
    """Menu of mechanisms with their costs and the budget: hashable, and printed as a table.

    Attributes:
        epsilon: see :func:`certify`.
        delta: likewise.
        relation: likewise.
        items: in the order given.
        budget: units.
        value: an upper bound on delta at ``epsilon`` for the worst use of the budget.

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
        """Returns the part of a plan's runs of an item that is granted of it alone: 1 less the price of the choice."""
        item = self.items[index]
        return self.budget / (item.cost * item.alone) if 0 < item.cost < NEVER else float(not item.cost)

    def game(self, *, from_below: bool = False) -> Game:
        """Returns the game of the items that cost something, in the scope of programs."""
        paid = [item for item in self.items if 0 < item.cost < NEVER]
        blocks, plays = [(item.mechanism, item.count) for item in paid], [item.alone for item in paid]
        return Game.of(blocks, plays, Guarantee(self.epsilon, self.delta, self.relation), from_below=from_below)

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
        guarantee = f"({rounded_up(self.epsilon)}, {rounded_up(self.delta)})-DP by {self.relation}"
        lines = [f"{guarantee}: {self.budget} units, which cost a delta of {rounded_up(self.value)} at most"]
        # A line for each item, with what it costs and how often the budget pays for it.
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


@takes_python_values
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
            where a part of a block of each item may be left unused; they take longer to certify, and their finer
            choices cost a little more.
        costs: units of a block of each item, whose sizes are 1 unless given. By default the best for whatever item
            fares worst.
        relation: one that all mechanisms support.

    Formal guarantee: blocks whose costs sum to at most ``budget`` are together (epsilon, delta)-DP for ``relation``,
    whatever is chosen from earlier results, whenever the runs of a block are made, and wherever it ends: :mod:`.game`.

    An item whose single block costs more than the budget is never granted, and costs the others nothing.

    Raises ValueError where an argument is out of range, or no item is ever granted.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> menu = certify(1.0, 1e-5, [PoissonSubsampledGaussian(noise, 0.01) for noise in (1.5, 3.0)])
    >>> [round(menu.share(index), 2) for index in range(2)]
    [0.99, 0.99]
    """
    validation.check_numbers(epsilon=epsilon, delta=delta)
    validation.check_epsilon(epsilon)
    validation.check_finite(epsilon, "epsilon")
    validation.check_delta(delta)
    validation.check_type(relation, "relation", str)
    if not isinstance(items, (tuple, list)):
        raise TypeError(f"items = {validation.shorten(items)}: give a list of mechanisms, or of pairs (one, runs).")
    try:
        pairs = tuple(_check_item(item) for item in items)
    except TypeError as error:
        raise TypeError(f"items: {error}") from None
    if not pairs:
        raise ValueError("items: menu is empty: give at least one mechanism.")
    if costs is not None:
        if not isinstance(costs, (tuple, list)):
            raise TypeError(f"costs = {validation.shorten(costs)}: give a list of one whole number for each item.")
        if len(costs) != len(pairs):
            raise ValueError(f"costs = {tuple(costs)} do not fit {len(pairs)} items: give one for each.")
        costs = [validation.check_whole(cost, "costs", 1, 2**20, "the units of a block") for cost in costs]
    known_costs = [None] * len(pairs) if costs is None else costs
    offers = tuple(Offer(mechanism, count, cost) for (mechanism, count), cost in zip(pairs, known_costs, strict=True))
    return _certify(Guarantee(float(epsilon), float(delta), relation), offers)


@dataclass(frozen=True)
class Offer:
    """Item before its certification, with None for a number that :func:`certify` chooses."""

    mechanism: Mechanism
    count: int | None
    cost: int | None


Found = tuple[list[Item], int, float]
"""Type of a result for offers: items in their order, the largest budget, and an upper bound on its value."""


@functools.lru_cache(maxsize=64)
def _certify(guarantee: Guarantee, offers: tuple[Offer, ...]) -> Menu:
    free = {
        i: Item(offer.mechanism, offer.count or 1, 0, math.inf)
        for i, offer in enumerate(offers)
        if np.all(np.asarray(offer.mechanism.releases_nothing()))
    }
    items, budget, value = (
        _with_others(guarantee, offers, free) if len(free) < len(offers) else (list(free.values()), 0, 0.0)
    )
    return Menu(*guarantee, tuple(items), budget, value)


def limit(menu: Menu) -> int:
    """Returns a budget that no certificate of the same costs can exceed, whatever proves it.

    Formal guarantee: with one unit more some adaptive choice from the menu is not (epsilon, delta)-DP, where the
    mechanisms are :attr:`~jaxacct.Mechanism.tight`: a lower bound on the value of the same game, or of one item's runs.
    A pair that is the worst of many mechanisms, as that of exponential mechanisms is, is attained by no adversary who
    goes on. The game then has the losses of one of these mechanisms: the limit holds, and may lie a third above the
    budget.

    >>> from jaxacct import Gaussian
    >>> menu = certify(1.0, 1e-5, [Gaussian(20.0), Gaussian(30.0)])
    >>> menu.budget <= limit(menu) <= 1.01 * menu.budget
    True
    """
    paid = [item for item in menu.items if 0 < item.cost < NEVER]
    if not paid:
        return menu.budget
    if len(paid) == 1:
        (item,) = paid

        def may_hold(blocks: int) -> bool:
            runs = blocks * item.count
            lower = certified.delta(item.mechanism, runs, menu.epsilon, relation=menu.relation).lower
            return bool(lower <= menu.delta)

        blocks = menu.budget // item.cost
        blocks = bisect(may_hold, *bracket(may_hold, blocks + 1, validation.MOST_COUNT, safe=blocks))
        return (blocks + 1) * item.cost - 1
    most, reached = menu.budget, menu.budget
    with scope():
        game = menu.game(from_below=True)
        # An end that no adversary has broken is no limit, unless it is the largest budget of all.
        while reached == most < MOST_LEVELS:
            most = min(2 * most, MOST_LEVELS)
            reached = int(game.solve([item.cost for item in paid], most, side=1).budget)
    return reached


def _with_others(guarantee: Guarantee, offers: Sequence[Offer], known: dict[int, Item]) -> Found:
    """Returns the result for the offers whose places are not in ``known``, put together with the known items."""
    items, budget, value = _choose_items(guarantee, [offer for i, offer in enumerate(offers) if i not in known])
    others = iter(items)
    return [known[i] if i in known else next(others) for i in range(len(offers))], budget, value


def _choose_items(guarantee: Guarantee, offers: Sequence[Offer]) -> Found:
    """Returns offers with all choices made; an item that is never granted is not played."""
    if len(offers) == 1:
        return _of_one(guarantee, offers[0])
    with scope():
        # A tilt for less than a block leaves nothing of the block's likely losses.
        guesses = [max(guessed_runs(offer.mechanism, guarantee), offer.count or 1) for offer in offers]
        # Each item alone is measured by blocks that are not too many, about 200, as each takes a level. The tilt suits
        # a number of runs within a factor of 1.5, so it is made anew until the number found is near the number it was
        # made for, or five times. Any numbers are sound.
        for _ in range(5):
            sizes = [max(offer.count or 1, round(guess / 200)) for offer, guess in zip(offers, guesses, strict=True)]
            game = _game(guarantee, offers, sizes, guesses)
            alone = [game.alone(i, guess / size) for i, (guess, size) in enumerate(zip(guesses, sizes, strict=True))]
            never = [
                number < 1 and size == (offer.count or 1)
                for offer, number, size in zip(offers, alone, sizes, strict=True)
            ]
            if any(never):
                return _without(guarantee, offers, never)
            runs = [number * size for number, size in zip(alone, sizes, strict=True)]
            ratios = [number / guess for number, guess in zip(runs, guesses, strict=True)]
            if 1 / 1.5 <= min(ratios) <= max(ratios) <= 1.5:
                break
            # Where the budget paid for no block, smaller ones are tried.
            guesses = [max(number, 0.1) * size for number, size in zip(alone, sizes, strict=True)]
        if offers[0].cost:
            counts, costs = tuple(offer.count or 1 for offer in offers), tuple(offer.cost or 1 for offer in offers)
        else:
            counts, costs = sizes_and_costs(runs, [offer.count for offer in offers])
        if list(counts) != sizes:
            game = _game(guarantee, offers, counts, runs)
        alone = [number / count for number, count in zip(runs, counts, strict=True)]
        most = math.ceil(min(cost * number for cost, number in zip(costs, alone, strict=True))) + 1
        solved = game.solve(costs, min(most, MOST_LEVELS))
    mechanisms, budget = [offer.mechanism for offer in offers], int(solved.budget)
    if budget < min(costs):
        # Where delta is below what a game can tell from 0, the others are tried without the item that costs most.
        return _without(guarantee, offers, [i == alone.index(min(alone)) for i in range(len(offers))])
    items = [Item(*parts) for parts in zip(mechanisms, counts, costs, alone, strict=True)]
    return items, budget, float(solved.values[budget])


def _game(guarantee: Guarantee, offers: Sequence[Offer], counts: Sequence[int], runs: Sequence[float]) -> Game:
    """Returns the game of blocks of so many runs, of which the budget pays for about so many alone."""
    plays = [number / count for number, count in zip(runs, counts, strict=True)]
    return Game.of([(offer.mechanism, count) for offer, count in zip(offers, counts, strict=True)], plays, guarantee)


def _of_one(guarantee: Guarantee, offer: Offer) -> Found:
    """Returns a menu without a choice: a plan that may be stopped anywhere, by the certified accountant."""
    epsilon, delta, relation = guarantee
    mechanism, cost = costlier(offer.mechanism), offer.cost or 1
    runs = most_runs(mechanism, epsilon, delta, relation=relation)
    if not runs:
        return _without(guarantee, [offer], [True])
    value = float(certified.delta(mechanism, runs, epsilon, relation=relation).upper)
    return [Item(offer.mechanism, 1, cost, float(runs))], min(runs * cost, validation.MOST_COUNT), value


def _without(guarantee: Guarantee, offers: Sequence[Offer], never: Sequence[bool]) -> Found:
    """Returns the result for the others; items that are ``never`` granted get a cost that no budget pays."""
    if all(never):
        raise ValueError(
            f"menu = {[offer.mechanism for offer in offers]}: a block of each alone costs more than (epsilon = "
            f"{guarantee.epsilon:g}, delta = {guarantee.delta:g}); give more noise or smaller blocks, or raise the "
            "budget."
        )
    refused = {
        i: Item(offer.mechanism, offer.count or 1, NEVER, 0.0)
        for i, (offer, is_never) in enumerate(zip(offers, never, strict=True))
        if is_never
    }
    return _with_others(guarantee, offers, refused)


def _check_item(item: Mechanism | tuple[Mechanism, int]) -> tuple[Mechanism, int | None]:
    """Returns a mechanism of plain numbers, and the runs of a block."""
    mechanism, count = item if isinstance(item, tuple) else (item, None)
    check(mechanism, 1)
    if mechanism.batch_shape or not is_concrete(mechanism):
        raise ValueError(
            f"menu has {mechanism}: an item is one mechanism of concrete numbers; list several one by one."
        )
    if any(np.ndim(leaf) for leaf in jax.tree.leaves(mechanism)):
        raise ValueError(
            f"menu has a {type(mechanism).__name__}, whose fields are arrays: an item is a mechanism of plain numbers. "
            "Give one that dominates it, such as ApproximateDP."
        )
    if count is not None:
        count = validation.check_count(count, "count", "the runs of a block")
    plain = jax.tree.map(lambda leaf: np.asarray(leaf).item(), mechanism)
    return plain, count
