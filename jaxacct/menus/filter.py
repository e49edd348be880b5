"""The filter and the odometer of a menu: whole numbers in the loop, as all costs were certified before.

:func:`.certify` finds the budget of a menu whose worst adaptive use is (epsilon, delta)-DP. What remains to be done
release by release is to subtract units: :class:`MenuFilter` grants a release while they last. :class:`MenuOdometer`
also reads an epsilon that holds wherever the releases stop; its program and its proof come with it, below.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float64, Int32

from jaxacct import validation
from jaxacct.convert.one_parameter import gaussian_epsilon, gaussian_mu
from jaxacct.ledger import Ledger
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps, check_mechanism
from jaxacct.menus.game import dominates
from jaxacct.menus.menu import MOST_LEVELS, NEVER, Items, Menu, certify
from jaxacct.numerics.precision import is_concrete, kernel, leave_scope, scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import least_by_secants


@register_dataclass
@dataclass(frozen=True)
class MenuState:
    """Rest of a menu's budget.

    Attributes:
        left (): units that are not yet spent.
        paid (items,): runs of each item that are paid for and not yet made.
    """

    left: Int32[Array, ""]
    paid: Int32[Array, " items"]


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class MenuFilter(Ledger):
    """Filter that grants releases from a finite menu, adaptively chosen, at nearly the price of a plan.

    Args:
        epsilon: the budget, fixed before the first release; concrete, as all arguments.
        delta: its failure probability, likewise.
        items: mechanisms, or pairs of one and the runs of a block, see :func:`.certify`: of any kinds. The fewer and
            the nearer to what will be chosen, the better; what is not on the menu is paid for as the cheapest item that
            is known to dominate it.
        costs: units of a block of each item; chosen by default.
        relation: neighbouring relation of all that is spent.

    A pytree whose leaves are int32: it passes through ``jit``, ``vmap`` and ``lax.scan``; the menu is static. Making it
    takes seconds, spending next to nothing.

    Formal guarantee: however releases are chosen from earlier results, in whatever order, and wherever they end,
    everything granted together is (epsilon, delta)-DP for ``relation``. The worst adaptive strategy was computed
    (:mod:`jaxacct.menus.game`); an FFT accountant along the path that was taken would *not* do.

    Raises ValueError where an argument is out of range, or no item is ever granted.

    >>> import jaxacct as ja
    >>> queries = [ja.Gaussian(20.0), ja.Gaussian(30.0)]
    >>> budget = MenuFilter(epsilon=1.0, delta=1e-5, items=queries)
    >>> granted, budget = budget.spend(queries[0], 14)
    >>> bool(granted), bool(budget.would_grant(queries[1], 30)), bool(budget.would_grant(queries[1], 40))
    (True, True, False)
    """

    state: MenuState
    menu: Menu

    def __init__(
        self,
        epsilon: float,
        delta: float,
        items: Items,
        *,
        costs: Sequence[int] | None = None,
        relation: Relation = "add_or_remove",
    ) -> None:
        self._open(certify(epsilon, delta, items, costs=costs, relation=relation))

    @classmethod
    def of(cls, menu: Menu) -> Self:
        """Returns the ledger of a menu that has been certified, before its first release.

        An odometer has the items and costs of the menu, and a budget of its own.
        """
        return object.__new__(cls)._open(menu)

    def _open(self, menu: Menu) -> Self:
        return self._fill(open_menu(menu), menu)

    @kernel
    def spend(
        self, item: Mechanisms | ArrayLike, steps: Steps = 1, *, relation: Relation | None = None
    ) -> tuple[Bool[Array, ""], Self]:
        """Returns whether ``steps`` runs of an item are granted, and the filter after them.

        Args:
            item: the index of an item on the menu, which may be traced; or a mechanism, whose numbers may be traced.
            steps: number of runs.
            relation: the menu's, which is meant by default.

        All of them are granted or none. A mechanism that releases nothing is granted always. Traced mechanisms that no
        item dominates are refused; concrete ones raise ValueError, as do other relations, and several mechanisms at
        once.
        """
        counts: Any = steps
        return self.spend_cost(self.cost(item, relation=relation), counts)

    def would_grant(
        self, item: Mechanisms | ArrayLike, steps: Steps = 1, *, relation: Relation | None = None
    ) -> Bool[Array, ""]:
        return self.spend(item, steps, relation=relation)[0]

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that the menu was certified for."""
        return self.menu.relation

    @kernel
    def cost(self, item: Mechanisms | ArrayLike, *, relation: Relation | None = None) -> Int32[Array, ""]:
        """Returns the index of the item that is paid for, for :meth:`spend_cost`: -1 if none dominates, int32."""
        if relation not in (None, self.menu.relation):
            raise ValueError(
                f"relation = {relation!r}, and the menu was certified for {self.menu.relation!r}: make a filter for it."
            )
        if isinstance(item, (tuple, list)):
            raise ValueError(f"item = {item} are several mechanisms: spend them one by one.")
        number = len(self.menu.items)
        if not isinstance(item, Mechanism):
            if isinstance(item, jax.core.Tracer):
                if item.shape or not jnp.issubdtype(item.dtype, jnp.integer):
                    raise TypeError(
                        f"item = {item}: give a mechanism, or one whole number, an item's place on the menu."
                    )
                return jnp.where((item >= 0) & (item < number), item.astype(jnp.int32), -1)  # before it could wrap
            place: Any = item.item() if isinstance(item, (np.ndarray, jax.Array)) and item.size == 1 else item
            place = validation.check_whole(place, "item", 0, number - 1, "the place of an item on the menu")
            return jnp.asarray(place, jnp.int32)
        check_mechanism(item)
        if item.batch_shape:
            raise ValueError(f"item = {item} are several mechanisms: spend them one by one.")
        # An item that dominates a mechanism costs at least as much loss after any history, so it may be paid in place.
        covers = [dominates(entry.mechanism, item) for entry in self.menu.items]
        if is_concrete(item) and not any(bool(cover) for cover in covers):
            listed = ", ".join(str(entry.mechanism) for entry in self.menu.items)
            raise ValueError(f"item = {item} is dominated by nothing on the menu ({listed}): put it there.")
        prices = np.asarray([entry.cost / entry.count for entry in self.menu.items], np.float32)
        each = jnp.where(jnp.stack([jnp.asarray(cover, bool) for cover in covers]), prices, jnp.inf)
        return jnp.where(jnp.min(each) < jnp.inf, jax.lax.argmin(each, 0, jnp.int32), -1)

    @kernel
    def spend_cost(self, cost: Int32[Array, ""], steps: ArrayLike = 1) -> tuple[Bool[Array, ""], Self]:
        """Returns :meth:`spend` of the item that :meth:`cost` has found: a few operations on whole numbers."""
        if np.shape(steps):
            raise ValueError(f"steps = {steps} are several numbers of runs: spend them one by one.")
        self._check_single()
        runs = validation.whole_steps(steps)
        granted, state = _spend(self.state, cost, runs, *self._blocks())
        return granted, self._with(state)

    @kernel
    def remaining(self, item: Mechanism | ArrayLike, *, relation: Relation | None = None) -> Int32[Array, ""]:
        """Returns how many more runs of an item would be granted if nothing else comes between; at most 2^31 - 1."""
        self._check_single()
        index = self.cost(item, relation=relation)
        return _remaining(self.state, index, *self._blocks())

    def epsilon(self) -> Float64[Array, ""]:
        """Returns the budget, which holds wherever it ends; 0 before anything is granted."""
        return leave_scope(_reading(self.state, self.menu.budget, self.menu.epsilon))

    def _promise(self) -> tuple[ArrayLike, ArrayLike] | None:
        return None if np.ndim(self.state.left) else (self.menu.epsilon, self.menu.delta)

    def _check_single(self) -> None:
        if np.shape(self.state.left):  # an item's place would be taken for a filter's
            raise ValueError(f"{np.shape(self.state.left)} filters are stacked: spend of each, by jax.vmap.")

    def _blocks(self) -> np.ndarray:
        """Returns the runs of each item's block, and below them what the block costs."""
        return np.asarray([(item.count, item.cost) for item in self.menu.items], np.int32).T


@kernel
def open_menu(menu: Menu) -> MenuState:
    """Returns the state before the first release."""
    return MenuState(jnp.asarray(menu.budget, jnp.int32), jnp.zeros(len(menu.items), jnp.int32))


@compiled
def _spend(
    state: MenuState, index: Array, runs: Array, counts: Array, costs: Array
) -> tuple[Bool[Array, ""], MenuState]:
    valid = (index >= 0) & (runs >= 0)
    place, wanted = jnp.maximum(index, 0), jnp.maximum(runs, 0)
    count, cost, paid = counts[place], costs[place], state.paid[place]
    lacking = jnp.maximum(wanted - paid, 0)
    blocks = lacking // count + jnp.where(lacking % count > 0, 1, 0)
    # Blocks are compared, not costs, as a product could overflow. NEVER is tested by itself: a budget may exceed it.
    affordable = blocks <= jnp.where(cost < NEVER, state.left // jnp.maximum(cost, 1), 0)
    granted = valid & (affordable | (cost == 0))
    bought = jnp.where(granted & (cost > 0), blocks, 0)
    rest = paid + bought * count - wanted
    paid = jnp.where(granted & (cost > 0), state.paid.at[place].set(rest), state.paid)
    return granted, replace(state, left=state.left - bought * cost, paid=paid)


@compiled
def _remaining(state: MenuState, index: Array, counts: Array, costs: Array) -> Int32[Array, ""]:
    place = jnp.maximum(index, 0)
    blocks = jnp.where(costs[place] < NEVER, state.left // jnp.maximum(costs[place], 1), 0)
    most = (validation.MOST_COUNT - state.paid[place]) // counts[place]
    runs = state.paid[place] + jnp.minimum(blocks, most) * counts[place]
    return jnp.where(index < 0, 0, jnp.where(costs[place] == 0, validation.MOST_COUNT, runs))


@kernel
def _reading(state: MenuState, budget: int, epsilon: float) -> Array:
    return jnp.where(state.left == budget, 0.0, epsilon)


# ----------------------------------------------------------------------------------------------------
# The odometer: a reading for every number of units spent, such that it is safe to stop whenever it looks good.
#
# Judge a path that stops by the reading e(s) there, s the units spent, in place of one epsilon: with U_s(L) = max((1 -
# e^(e(s) - L))+, max over j of E[U_(s + c_j)(L + Y_j)]) the program and the proof are those of :mod:`.game`, the
# maximum over times to stop at being part of it. So E[(1 - e^(e(s) - L))+] <= U_0(0) at every stopping time at once,
# and no union over epsilons is paid for. Any rising e will do. The one chosen here is the curve of a Gaussian mechanism
# at a smaller delta, whose units are squares of mu, for most compositions come near to it. It begins a little above 0,
# as there are as many chances to stop between a hundredth of the budget and a tenth as between that and all of it. The
# budget is as long as U_0(0) allows.
# ----------------------------------------------------------------------------------------------------

READINGS = 128
"""Steps of the reading. Any value is sound; more make it finer."""


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class MenuOdometer(MenuFilter):
    """Odometer of a finite menu: it counts releases, adaptively chosen, and its epsilon holds wherever they stop.

    Args:
        epsilon: the largest reading, where the budget ends; concrete, as all arguments. Less is read before.
        delta: as of :class:`.MenuFilter`.
        items: likewise.
        costs: likewise.
        relation: likewise.

    It is a pytree, and a :class:`.MenuFilter` as well: what exceeds its last reading is refused.

    Formal guarantee: let T be any rule that stops by what was released, and e its reading there. Then P(A) <= E_Q[e^e;
    A] + delta for every event A of what was released up to T, for neighbours of ``relation``, P and Q its laws under
    the two. In particular what is released up to a moment at which it reads at most a fixed epsilon is (epsilon,
    delta)-DP.

    Raises ValueError where an argument is out of range, or no item is ever granted.

    >>> import jaxacct as ja
    >>> odometer = MenuOdometer(epsilon=1.0, delta=1e-5, items=[ja.Gaussian(20.0), ja.Gaussian(30.0)])
    >>> _, odometer = odometer.spend(ja.Gaussian(30.0), 10)
    >>> print(f"{odometer.epsilon():.2f}")
    0.47
    """

    has_budget: ClassVar[bool] = False

    readings: tuple[float, ...]

    def _open(self, menu: Menu) -> Self:
        menu, readings = _read(menu)
        return self._fill(open_menu(menu), menu, readings)

    def epsilon(self) -> Float64[Array, ""]:
        """Returns the reading: an upper bound for whatever stops here; 0 before anything is spent."""
        return leave_scope(_odometer_reading(self.state, self.menu.budget, np.asarray(self.readings)))


def _read(menu: Menu) -> tuple[Menu, tuple[float, ...]]:
    """Returns the menu with the largest budget found that can be read, and the readings after each part of it."""
    if not menu.budget or not menu.epsilon:
        return menu, (0.0,) + (menu.epsilon,) * READINGS
    # The curve's shape is taken at a tenth of delta, and a tenth of the budget is read at once: to read less for the
    # very first releases would cost all later ones more. Any shares are sound.
    menu, delta = _in_blocks(menu), menu.delta * 0.1
    squares = (np.arange(READINGS + 1) / READINGS + 0.1) / 1.1
    mu = float(gaussian_mu(menu.epsilon, delta))
    shape = np.asarray(gaussian_epsilon(mu * np.sqrt(squares), delta))
    readings = np.maximum.accumulate(np.where(np.isfinite(shape), shape, menu.epsilon))
    readings = np.minimum(readings * (menu.epsilon / readings[-1]), menu.epsilon)
    readings[0], readings[-1] = 0.0, menu.epsilon
    costs = [item.cost for item in menu.items if 0 < item.cost < NEVER]
    with scope():
        game = menu.game()

        @functools.cache
        def value(budget: int) -> float:
            spent = budget - np.arange(budget + 1)
            judged = readings[-(-spent * READINGS // budget)]
            return float(game.solve(costs, budget, epsilons=judged).values[budget])

        # Only a budget whose value was found to be at most delta is returned, after eight solutions or within 2e-3 of
        # log delta, whose slope in minus the budget's logarithm is about -8. Any numbers are sound.
        most = min(menu.budget, MOST_LEVELS)
        log_share = least_by_secants(
            lambda u: value(_units(u, most)) / menu.delta, -math.log(0.9 * most), close=2e-3, rounds=8, slope=-8.0
        )
    budget = _units(log_share, most) if math.isfinite(log_share) else 0
    if budget < max(costs):
        raise ValueError(
            f"epsilon = {menu.epsilon:g} is less than an odometer reads after a block of each item at delta = "
            f"{menu.delta:g}: raise it, or make blocks smaller."
        )
    return replace(menu, budget=budget, value=value(budget)), tuple(readings.tolist())


def _in_blocks(menu: Menu) -> Menu:
    """Returns the menu, an only item that is paid for being divided into blocks of which there are not too many."""
    paid = [item for item in menu.items if 0 < item.cost < NEVER]
    if len(paid) > 1:
        return menu
    (item,) = paid
    runs = menu.budget // item.cost
    # At most 1,024 blocks: a plan needs none, and the odometer solves a level for each. Any number is sound.
    count = -(-runs // 1024)
    block = replace(item, count=count, cost=1, alone=item.alone / count)
    return replace(menu, items=tuple(block if it is item else it for it in menu.items), budget=runs // count)


def _units(u: float, most: int) -> int:
    return min(max(round(math.exp(-u)), 1), most)


@kernel
def _odometer_reading(state: MenuState, budget: int, readings: Any) -> Array:
    # Rounded up to the next step of the reading, in int64: spent * READINGS would overflow int32.
    spent = (budget - state.left).astype(jnp.int64)
    return jnp.asarray(readings)[jnp.clip(-(-spent * READINGS // max(budget, 1)), 0, READINGS)]
