"""The odometer of a menu: a reading for every number of units spent, to stop at whenever it looks good.

Judge a path that stops by the reading e(s) there, s the units spent, in place of one epsilon: with U_s(L) = max((1 -
e^(e(s) - L))+, max over j of E[U_(s + c_j)(L + Y_j)]) the program and the proof are those of :mod:`.game`, the maximum
over times to stop at being part of it. So E[(1 - e^(e(s) - L))+] <= U_0(0) at every stopping time at once, and no union
over epsilons is paid for. Any rising e will do. Here it is the curve of a Gaussian mechanism at a smaller delta, whose
units are squares of mu: what most compositions come near to; begun a little above 0, for there are as many chances to
stop between a hundredth of the budget and a tenth as between that and all of it; and as long as U_0(0) allows.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64

from jaxacct.calibrate.secants import least
from jaxacct.convert.gaussian import gaussian_epsilon, gaussian_mu
from jaxacct.menus.filter import MenuFilter, MenuState, opened
from jaxacct.menus.menu import NEVER, Menu
from jaxacct.menus.played import MOST_LEVELS
from jaxacct.precision import in_float64, outside, scope

READINGS = 128
"""Steps of the reading."""

SHARE = 0.1
"""Of delta, at which the curve's shape is taken."""

EARLY = 0.1
"""Part of the budget whose reading is read at once: that of the very first releases would cost all later ones more."""

ROUNDS, CLOSE, SLOPE = 8, 2e-3, -8.0
"""Of the search for the longest budget: most solutions, the distance in log delta at which it ends, and by about how
much that falls for each unit of minus the budget's logarithm."""

MOST_BLOCKS = 1024
"""Blocks of the only item on a menu, at most: a plan needs none, and a level is solved for each."""


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class MenuOdometer(MenuFilter):
    """Counts releases from a finite menu, adaptively chosen, and reads an epsilon that holds wherever they stop.

    Args:
        epsilon: the largest reading, where the budget ends; concrete, as all arguments. Less is read before.
        delta: as of :class:`.MenuFilter`.
        items: likewise.
        costs: likewise.
        relation: likewise.

    A pytree, as :class:`.MenuFilter` is, which it is too: what exceeds its last reading is refused.

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

    readings: tuple[float, ...]

    def _open(self, menu: Menu) -> Self:
        menu, readings = _read(menu)
        return self._fill(opened(menu), menu, readings)

    def epsilon(self) -> Float64[Array, ""]:
        """Returns the reading: an upper bound for whatever stops here; 0 before anything is spent."""
        return outside(_reading(self.state, self.menu.budget, np.asarray(self.readings)))


def _read(menu: Menu) -> tuple[Menu, tuple[float, ...]]:
    """Returns the menu with the largest budget found that can be read, and the readings after each part of it."""
    if not menu.budget or not menu.epsilon:
        return menu, (0.0,) + (menu.epsilon,) * READINGS
    menu, delta = _in_blocks(menu), menu.delta * SHARE
    squares = (np.arange(READINGS + 1) / READINGS + EARLY) / (1 + EARLY)
    mu = float(gaussian_mu(menu.epsilon, delta))
    shape = np.asarray(gaussian_epsilon(mu * np.sqrt(squares), delta))
    readings = np.maximum.accumulate(np.where(np.isfinite(shape), shape, menu.epsilon))
    readings = np.minimum(readings * (menu.epsilon / readings[-1]), menu.epsilon)
    readings[0], readings[-1] = 0.0, menu.epsilon
    costs = [item.cost for item in menu.items if 0 < item.cost < NEVER]
    with scope(by_programs=True):
        game = menu.game()

        @functools.cache
        def value(budget: int) -> float:
            spent = budget - np.arange(budget + 1)
            judged = readings[-(-spent * READINGS // budget)]
            return float(game.solved(costs, budget, epsilons=judged).values[budget])

        most = min(menu.budget, MOST_LEVELS)
        found = least(
            lambda u: value(_units(u, most)) / menu.delta, -math.log(0.9 * most), close=CLOSE, rounds=ROUNDS,
            slope=SLOPE,
        )  # fmt: skip
    budget = _units(found, most) if math.isfinite(found) else 0
    if budget < max(costs):
        raise ValueError(
            f"epsilon = {menu.epsilon:g} is less than an odometer reads after a block of each item at delta = "
            f"{menu.delta:g}: raise it, or make blocks smaller."
        )
    return replace(menu, budget=budget, value=value(budget)), tuple(readings.tolist())


def _in_blocks(menu: Menu) -> Menu:
    """Returns the menu; where nothing but one item is paid for, with that in blocks of which there are not too many."""
    paid = [item for item in menu.items if 0 < item.cost < NEVER]
    if len(paid) > 1:
        return menu
    (item,) = paid
    runs = menu.budget // item.cost
    count = -(-runs // MOST_BLOCKS)
    block = replace(item, count=count, cost=1, alone=item.alone / count)
    return replace(menu, items=tuple(block if it is item else it for it in menu.items), budget=runs // count)


def _units(u: float, most: int) -> int:
    return min(max(round(math.exp(-u)), 1), most)


@in_float64
def _reading(state: MenuState, budget: int, readings: Any) -> Array:
    spent = (budget - state.left).astype(jnp.int64)
    return jnp.asarray(readings)[jnp.clip(-(-spent * READINGS // max(budget, 1)), 0, READINGS)]
