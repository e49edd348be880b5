"""The Rényi privacy filter: it grants a release while a budget fixed in advance still covers it, and refuses it after.

The divergences of the releases are added up at a few orders, each with a budget of its own.

Orders, and the reason that a filter has few of them
----------------------------------------------------
Theorem 1 of Lécuyer (2021) holds at one order fixed in advance. Corollary 1, the filter over a set of orders, grants
while *some* order is within its budget. Which order that is may depend on the results, and the corollary's proof takes
it as fixed. The following holds on every path. Let L be the privacy loss so far, S(a) the sum of the divergences of
order a and b(a) the budget. Stop the process of each order where S(a) would pass b(a). By Theorem 1 the stopped process
has a divergence of order a of at most b(a), so any conversion that holds at that one order bounds its hockey-stick
divergence E[(1 - e^(eps - L))+] by some delta(a). At the end S(a) <= b(a) for one order at least, whose stopped process
is the process itself there, and the hockey-stick divergence of the whole is at most the sum of the delta(a) over all
orders.

* "optimal" and "improved" choose b(a) so that delta(a) = delta/number of orders: their sum is delta. Any conversion at
  one fixed order is valid here, the optimal one of Asoodeh et al. included. It would not be valid to take the best
  order after the fact without paying for the choice.
* "mironov" keeps the paper's budgets, b(a) = eps - log(1/delta)/(a - 1). With ``c(a) = (1 - 1/a)^(a - 1) / a``,
  ``(1 - e^(eps - L))+ <= c(a) e^((a - 1) (L - eps))`` gives delta(a) = c(a) delta: the filter is (eps, delta)-DP on
  every path as soon as its orders are so few that the c(a) sum to at most 1, and FILTER_ORDERS is such a set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxacct import convert, validation
from jaxacct.convert.renyi import Orders, ToEpsilon, float64_leaf
from jaxacct.ledger import RenyiLedger, checked_orders, with_runs
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import as_float64, in_float64, outside
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.rounded_sum import RoundedSum, log_inverse_above, precise, rounding, runs_within

FILTER_ORDERS: tuple[float, ...] = tuple(round(1 + 1.4 * 1.3**j, 3) for j in range(26))
"""Orders of a filter unless others are given: 2.4 to 988, few enough for the sum of c(a) to stay below 1.

Any orders are sound, as ``proven_delta`` counts them. Against a dense set these cost a Gaussian at most 1.7 % of its
steps for epsilon in [0.1, 10] at delta = 1e-5, 8 % at 40.
"""

CONVERSIONS = ("mironov", "improved", "optimal")
"""Names of the ways to divide delta over the orders."""

LEAST = {"improved": "g", "optimal": "optimal"}
"""Lower bound on a divergence (:func:`.convert.least_rdp`) that is the inverse of each conversion."""


def log_share(order: float) -> float:
    """Returns ``log c(order)``, c the constant of the module's bound; c falls from 1 at order 1 like 1/(e order)."""
    return (order - 1) * math.log1p(-1 / order) - math.log(order)


@register_dataclass
@dataclass(frozen=True)
class _State:
    budget: RoundedSum
    total: RoundedSum
    log_inverse_delta: RoundedSum


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class RenyiFilter(RenyiLedger):
    """Filter of releases, adaptively chosen, that counts Rényi divergences and keeps the whole (epsilon, delta)-DP.

    Args:
        epsilon (): the budget, fixed before the first release.
        delta (): its failure probability, likewise.
        orders: the Rényi orders tracked, each above 1; static. A run with a plan does best with the one order that is
            best for it; but for "mironov", all of them share delta.
        conversion: "mironov", budget ``epsilon - log(1/delta)/(order - 1)`` at each order, as in the paper; or
            "optimal" or the older "improved", which split delta over the orders and use the tighter conversion at
            each: among the default orders these favour the large ones, that is, a small epsilon; static. With a
            *single* order, known from the plan of a run, "optimal" is the tightest filter.

    A pytree whose leaves are float32, so that it passes through ``jit``, ``vmap``, ``lax.scan`` and ``jnp.where`` of a
    float32 program unchanged. Sums are pairs of float32 (48 bits), rounded up. Batches are ``jax.vmap``.

    Formal guarantee: however the mechanisms are chosen from earlier results, everything granted together is
    (epsilon, :attr:`proven_delta`)-DP, for the neighbouring relation asked for. ``proven_delta`` is ``delta`` for the
    default orders, for a single order, and for "improved" and "optimal"; many orders with "mironov" cost a factor (see
    the module's docstring). If nothing is chosen from results, it is ``delta`` for any orders.

    Raises ValueError where a concrete epsilon, delta or order is out of range.

    Source: Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy", Theorem 1,
    Corollary 1 and section 3.4; Mironov (2017), Proposition 3; Asoodeh et al. (2021), Theorem 1.

    >>> import jaxacct as ja
    >>> budget = RenyiFilter(epsilon=1.0, delta=1e-5)
    >>> granted, budget = budget.spend(ja.Gaussian(noise_multiplier=10.0), steps=4)
    >>> bool(granted), bool(budget.would_grant(ja.Gaussian(noise_multiplier=1.0)))
    (True, False)
    """

    state: _State
    orders: tuple[float, ...]
    conversion: str

    def __init__(
        self,
        epsilon: ArrayLike,
        delta: ArrayLike,
        orders: Sequence[float] = FILTER_ORDERS,
        conversion: str = "mironov",
    ) -> None:
        validation.check_epsilon(epsilon)
        validation.check_delta(delta)
        for name, value in (("epsilon", epsilon), ("delta", delta)):
            validation.check_scalar(value, name)
        validation.check_one_of(conversion, "conversion", CONVERSIONS)
        self._fill(_opened(epsilon, delta, checked_orders(orders), conversion), checked_orders(orders), conversion)

    @classmethod
    def with_divergences(cls, budgets: Orders, orders: Sequence[float], *, delta: ArrayLike) -> RenyiFilter:
        """Returns the filter of Theorem 1 (one order) or Corollary 1 (several): budgets in Rényi divergence.

        Args:
            budgets (orders,): the most that is granted at each order; it grants while one of them is kept.
            orders: as above.
            delta (): for :meth:`epsilon` only.

        Formal guarantee: for a single order, everything granted is (order, budget)-RDP on every path. For several, the
        order that is kept may depend on the results; :attr:`proven_delta` does not apply.

        >>> import jaxacct as ja
        >>> budget = RenyiFilter.with_divergences([1.5], orders=[8.0], delta=1e-5)
        >>> int(budget.remaining(ja.Gaussian(noise_multiplier=2.0)))
        1
        """
        validation.check_delta(delta)
        budgets = np.asarray(budgets, np.float64) if isinstance(budgets, (list, tuple)) else budgets
        seen = validation.concrete_value(budgets)
        if np.shape(budgets) != (len(orders),) or (seen is not None and not np.all(seen >= 0)):
            raise ValueError(f"budgets = {budgets} do not fit: give one number of at least 0 for each order.")
        return object.__new__(cls)._fill(_opened_with(budgets, delta), checked_orders(orders), "mironov")

    def _decide(self, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Bool[Array, ""], RoundedSum]:
        return _spend(self.state, curve, steps)

    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, at the filter's delta and by its conversion; float64.

        It is an upper bound for releases fixed in advance, 0 before the first. It is no guarantee at a moment chosen
        because it looks good: then the budget is what holds, or an odometer (:mod:`jaxacct.odometers`).
        """
        return outside(_epsilon(self.state, self.orders, self.conversion))

    @in_float64(by_programs=True)
    def remaining(self, mechanism: Mechanism, *, relation: Relation = "add_or_remove") -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` would be granted, at once or one by one; int32, at most 2^31 - 1.

        The number is on the safe side, never too large: of n runs, one or n^2 2^-46 fewer than would be granted at once
        (none of 1e6, 210 of 1e8), since one by one their sum is rounded up so often.
        """
        return outside(_remaining(self.state, self.curve(mechanism, relation=relation)))

    @property
    def proven_delta(self) -> Float[Array, ""]:
        """The delta proven on every path, float64: ``delta`` times the sum of c(a) where that is above 1."""
        total = sum(math.exp(log_share(order)) for order in self.orders) if self.conversion == "mironov" else 1.0
        return outside(_proven_delta(self.state.log_inverse_delta, max(total, 1.0)))


@in_float64(by_programs=True)
def _opened(epsilon: ArrayLike, delta: ArrayLike, orders: tuple[float, ...], conversion: str) -> _State:
    return _open(float64_leaf(epsilon), float64_leaf(delta), orders, conversion)


@in_float64(by_programs=True)
def _opened_with(budgets: Orders, delta: ArrayLike) -> _State:
    return _open_with(float64_leaf(budgets), float64_leaf(delta))


@compiled(
    static=(
        "orders",
        "conversion",
    )
)
def _open(epsilon: Array, delta: Array, orders: tuple[float, ...], conversion: str) -> _State:
    valid = (epsilon >= 0) & (delta > 0) & (delta < 1)
    finite = jnp.where(valid & (epsilon < jnp.inf), epsilon, 1.0)
    possible = jnp.where(valid, delta, 0.5)
    tried = as_float64(orders)
    if conversion == "mironov":
        offset = -jnp.log(possible) / (tried - 1)
        budget = finite * (1 - rounding()) - offset * (1 + 16 * roundoff())
    else:
        budget = as_float64(
            convert.least_rdp(finite, possible / len(orders) * (1 - rounding()), orders, LEAST[conversion])
        )
    budget = jnp.where(epsilon == jnp.inf, jnp.inf, budget)
    return _state(jnp.where(valid, budget, 0.0), delta)


@compiled
def _open_with(budgets: Array, delta: Array) -> _State:
    return _state(budgets * (1 - rounding()), delta)


def _state(budget: Array, delta: Array) -> _State:
    nothing = RoundedSum(jnp.zeros(budget.shape, jnp.float32), jnp.zeros(budget.shape, jnp.float32))
    return _State(RoundedSum.below(jnp.maximum(budget, 0.0)), nothing, RoundedSum.above(log_inverse_above(delta)))


@in_float64(by_programs=True)
@compiled
def _spend(state: _State, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Array, RoundedSum]:
    # One order within its budget is enough, as delta was divided over all of them. A release of no cost is granted.
    new, changed, valid = with_runs(state.total, curve, steps)
    budget = state.budget.value()
    granted = valid & (jnp.any((new <= budget) & (budget > 0) & (new < jnp.inf)) | ~jnp.any(changed))
    return granted, state.total.replaced(new, granted & changed)


@in_float64(by_programs=True)
@compiled(
    static=(
        "orders",
        "conversion",
    )
)
def _epsilon(state: _State, orders: tuple[float, ...], conversion: str) -> Array:
    spent, tried = state.total.value(), as_float64(orders)
    log_inverse = state.log_inverse_delta.value()
    if conversion == "mironov":
        each = (spent + log_inverse / (tried - 1) * (1 + 16 * roundoff())) * (1 + rounding())
    else:
        delta = jnp.exp(-log_inverse) / len(orders) * (1 - 8 * rounding())
        each = ToEpsilon(conversion).of_orders(spent, tried, jnp.broadcast_to(delta, tried.shape))
    least = jnp.min(each)
    safe = jnp.where(jnp.isnan(least), jnp.inf, jnp.maximum(least, 0.0))
    return jnp.where(jnp.all(spent == 0), 0.0, safe)


@in_float64(by_programs=True)
@compiled
def _remaining(state: _State, curve: ArrayLike) -> Array:
    curve, budget = precise(curve), state.budget.value()
    most = runs_within(state.total.value(), budget, curve)
    left = jnp.max(jnp.where((budget > 0) | jnp.all(curve == 0), most, 0.0))
    return jnp.where(jnp.all(curve >= 0), left, 0.0).astype(jnp.int32)


@in_float64(by_programs=True)
@compiled
def _proven_delta(log_inverse_delta: RoundedSum, total: ArrayLike) -> Array:
    # The logarithm that is kept was rounded up, by 2^-47 where it was stored.
    least = log_inverse_delta.value() * (1 - 2.0**-46 - 2 * arithmetic().function)
    return jnp.minimum(jnp.exp(-least) * as_float64(total) * (1 + 8 * rounding()), 1.0)
