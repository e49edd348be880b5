"""Privacy filters: they grant a release while a budget fixed in advance still covers it, and refuse it after.

What is released may be chosen from earlier results (noise, batch size, when to stop); composing the realized
mechanisms as if they had been fixed in advance would not cover that. Each filter is a pytree: ``granted, new =
filter.spend(mechanism, steps)`` leaves it unchanged where it refuses, inside ``jit``, ``vmap`` and ``lax.scan``. Its
leaves are float32; a budget or delta that is traced and out of range grants nothing that costs anything. The leaves of
:class:`MenuFilter` are whole numbers: it knows the worst adaptive use of a finite menu, and charges for it nearly what
a plan costs.

*Interactive mechanisms, side by side.* Haney et al. (2023) prove that every valid filter and every valid odometer of
mechanisms that answer once is valid for the concurrent composition of interactive ones, where privacy loss is measured
by (epsilon, delta)-DP, by f-DP, or by Rényi DP of a fixed order. So an :class:`.AboveThreshold` that was spent before
its first question may answer the rest between other releases, some of them spent later. Of the filters here these are
:class:`ApproximateDPFilter`, :class:`GDPFilter` and :class:`MenuFilter`, and :class:`RenyiFilter`, order by order;
about concentrated DP their theorems say nothing.

*Tradeoff curves.* A filter that composes the curves of what was released and stops where they cross that of the budget
is not valid ("f-Differential Privacy Filters: Validity and Approximate Solutions" (2026), arXiv:2602.06756, by its
abstract). :class:`MenuFilter` composes no such path: its budget is that of the worst adaptive use of a finite menu.

In reading order, each with its proof before it:

- :class:`AdditiveFilter`: the base of the filters that add up one number, and a failure probability.
- :class:`ZCDPFilter`, :class:`ApproximateDPFilter`: rho, and epsilon^2/2.
- :class:`GDPFilter`: mu^2.
- :class:`RenyiFilter`: divergences at a few orders, for any mechanism.
- :class:`IndividualRenyiFilter`: the same for each example by itself.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxacct import convert, validation
from jaxacct.convert import METHODS
from jaxacct.convert.renyi import Orders, ToEpsilon
from jaxacct.ledger import FIXED, Ledger, RenyiLedger, RenyiState, fixed_orders, open_sums, read_sum
from jaxacct.mechanisms.mechanism import (
    Mechanism,
    Mechanisms,
    Relation,
    Steps,
    check_count,
    holds_one_way,
    parts_of,
)
from jaxacct.menus.filter import MenuFilter
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import (
    as_float64,
    exact_float64,
    float64_leaf,
    is_zero,
    kept_positive,
    kernel,
    leave_scope,
)
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.rounded_sum import LEAST_COST, RoundedSum, log_inverse_above, precise, rounding, runs_within
from jaxacct.validation import shorten

__all__ = [
    "FILTER_ORDERS",
    "ApproximateDPFilter",
    "GDPFilter",
    "IndividualRenyiFilter",
    "MenuFilter",
    "RenyiFilter",
    "ZCDPFilter",
]

# ----------------------------------------------------------------------------------------------------
# Additive filters: they add up one number for each mechanism, zCDP's rho or the square of GDP's mu, and a delta.
#
# The budget is a number fixed in advance, so the sum stays within it on every path, and the theorem about one number
# applies to the composition, whatever was chosen adaptively: nobody selects an order, and adaptivity costs nothing. The
# second sum is that of the mechanisms' own failure probabilities.
# ----------------------------------------------------------------------------------------------------


Cost = tuple[Array, ...]
"""Type of the numbers that one run of a mechanism adds; the last is its failure probability."""


def square(number: Array) -> Array:
    """Returns the square of a number of at least 0, rounded up, and above 0 unless it is 0. In the float64 scope."""
    return jnp.where(is_zero(number), 0.0, jnp.maximum(number**2 * (1 + rounding()), LEAST_COST))


@register_dataclass
@dataclass(frozen=True)
class AdditiveState:
    """State of an additive filter: its budgets, and the sums of what it has granted; float32 leaves.

    Attributes:
        epsilon (): the epsilon that the budget keeps, rounded down where two float32 do not hold it.
        budget (): the most that the numbers may sum to.
        total (): what they sum to so far, rounded up.
        delta_budget (): the most that the mechanisms' own failure probabilities may sum to.
        delta_total (): what they sum to so far, rounded up.
        log_inverse_delta (): log(1/delta) of the conversion to epsilon.
    """

    epsilon: RoundedSum = field(metadata=FIXED)
    budget: RoundedSum = field(metadata=FIXED)
    total: RoundedSum
    delta_budget: RoundedSum = field(metadata=FIXED)
    delta_total: RoundedSum
    log_inverse_delta: RoundedSum = field(metadata=FIXED)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class AdditiveFilter(Ledger):
    """Base of the additive filters; a subclass says what a mechanism costs and what its epsilon is."""

    state: AdditiveState

    @abc.abstractmethod
    def _numbers(self, mechanism: Mechanism, relation: Relation) -> Cost:
        """Returns the numbers that one run adds."""

    @abc.abstractmethod
    def _convert(self, total: Array, delta: Array) -> Array:
        """Returns the epsilon at ``delta`` of a sum; inside the float64 scope. ``delta`` is above 0, or 0 if pure."""

    def _is_pure(self) -> bool:
        """Returns whether delta is 0."""
        return False

    def _promise(self) -> tuple[ArrayLike, ArrayLike] | None:
        if np.ndim(self.state.total.high):
            return None
        own, kept = read_sum(self.state.log_inverse_delta), read_sum(self.state.delta_budget)
        return read_sum(self.state.epsilon), np.exp(-own) + kept

    @kernel
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation | None = None
    ) -> tuple[Bool[Array, ""], Self]:
        return self._spend(total_cost(lambda part: self.cost(part, relation=relation), mechanism, steps))

    @kernel
    def cost(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Cost:
        """Returns the numbers that one run adds, float64, for :meth:`spend_cost`; the last is a failure probability."""
        return tuple(map(as_float64, self._numbers(mechanism, relation or self.relation)))

    @kernel
    def spend_cost(self, cost: Cost, steps: ArrayLike = 1) -> tuple[Bool[Array, ""], Self]:
        return self._spend(cost_of_runs(cost, steps))

    def _spend(self, cost: Cost) -> tuple[Bool[Array, ""], Self]:
        granted, total, delta_total = _spend(self.state, *cost)
        return granted, self._with(replace(self.state, total=total, delta_total=delta_total))

    @kernel
    def remaining(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` would be granted, at once or one by one; int32, at most 2^31 - 1.

        The number is on the safe side, never too large: of n runs, one or n^2 2^-46 fewer than would be granted at once
        (none of 1e6, 210 of 1e8), since one by one their sum is rounded up so often.
        """
        if mechanism.composed:
            cost = total_cost(lambda part: self.cost(part, relation=relation), mechanism, 1)
        else:
            cost = self.cost(mechanism, relation=relation)
        return leave_scope(_count_affordable(self.state, *cost))

    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, at the filter's delta; float64.

        It is an upper bound for releases fixed in advance, 0 before the first, and never above the filter's own
        epsilon, which the budget keeps. It is no guarantee at a moment chosen because it looks good: then the budget is
        what holds, or an odometer (:mod:`jaxacct.odometers`).
        """
        return leave_scope(_epsilon(self))

    @property
    def spent(self) -> Float[Array, ""]:
        """The sum granted so far, rounded up; float64."""
        return read_sum(self.state.total)

    @property
    def budget(self) -> Float[Array, ""]:
        """The most that is granted; float64."""
        return read_sum(self.state.budget)


def check_mechanism_delta(own: ArrayLike, delta: ArrayLike) -> None:
    """Raises ValueError where the mechanisms' own part of delta, which was checked, leaves nothing of it."""
    validation.check_scalar(own, "mechanism_delta")
    validation.check_probability(own, "mechanism_delta")
    spent, budget = validation.concrete_value(own), validation.concrete_value(delta)
    if spent is not None and budget is not None and not spent < budget:
        raise ValueError(f"mechanism_delta = {own} leaves nothing of delta = {delta} for the composition: give less.")


def total_cost(cost: Callable[[Mechanism], Cost], mechanism: Mechanisms, steps: Steps) -> Cost:
    """Returns the numbers that a composition adds, rounded up; float64, of shape () each.

    The numbers are NaN, which every filter and odometer refuses, for traced steps that are no whole number.
    """
    parts = parts_of(mechanism, steps)
    if not parts:
        raise ValueError("mechanism = () holds nothing to spend on: give at least one mechanism.")
    costs = []
    for part, count in parts:
        runs = validation.exact_steps(count)
        check_count(part, runs)
        costs.append(_times(cost(part), runs))
    return costs[0] if len(costs) == 1 else _add_costs(tuple(costs))


def cost_of_runs(cost: Cost, steps: ArrayLike) -> Cost:
    """Returns what so many runs of one cost add, rounded up; raises ValueError where either is several."""
    runs = validation.exact_steps(steps)
    if np.shape(runs) or any(map(np.shape, cost)):
        raise ValueError(
            f"steps of shape {np.shape(runs)} and a cost of shape {np.shape(cost[0])} are several: give spend the "
            "mechanisms, or one number of steps for one cost."
        )
    return _times(cost, runs)


@kernel
@compiled
def _add_costs(parts: tuple[Cost, ...]) -> Cost:
    slack = 1 + len(parts) * rounding()
    return tuple(jnp.sum(jnp.stack(list(map(as_float64, each)))) * slack for each in zip(*parts, strict=True))


@kernel
@compiled
def _times(cost: Cost, steps: ArrayLike) -> Cost:
    steps = as_float64(steps)
    slack = 1 + (steps.size + 1) * rounding()

    def total(each: ArrayLike) -> Array:
        return jnp.sum(jnp.where(steps == 0, 0.0, steps * kept_positive(as_float64(each), LEAST_COST))) * slack

    return tuple(map(total, cost))


Budget = Callable[..., Array]
"""Type of a function from an epsilon, a delta and static settings to nearly the largest sum that they allow."""


@kernel
def open_state(
    epsilon: ArrayLike, delta: ArrayLike, own: ArrayLike, budget_of: Budget, *settings: str, pure: bool = False
) -> AdditiveState:
    """Returns the state before the first release, ``own`` being kept for the mechanisms' own failure probabilities.

    Where ``pure``, delta is 0.
    """
    return _open(as_float64(epsilon), as_float64(delta), as_float64(own), budget_of, settings, pure)


@compiled(static=("budget_of", "settings", "pure"))
def _open(
    epsilon: Array, delta: Array, own: Array, budget_of: Budget, settings: tuple[str, ...], pure: bool
) -> AdditiveState:
    # Where a number is out of range, nothing is granted. The budget is that of the epsilon that can be kept.
    kept = RoundedSum.below(jnp.where(epsilon >= 0, epsilon, 0.0))
    left = jnp.where(own == 0, delta, (delta - own) * (1 - rounding()))
    some = (delta == 0) & (own == 0) if pure else (delta > 0) & (delta < 1) & (own >= 0) & (left > 0)
    valid = (epsilon >= 0) & some
    finite = jnp.where(valid & (epsilon < jnp.inf), kept.value(), 1.0)
    budget = budget_of(finite, jnp.where(valid & (left > 0), left, 0.5), *settings)
    budget = jnp.where(epsilon == jnp.inf, jnp.inf, budget)
    return AdditiveState(
        kept,
        RoundedSum.below(jnp.where(valid, jnp.maximum(budget, 0.0), 0.0)),
        RoundedSum.above(0.0),
        RoundedSum.below(jnp.where(valid, own, 0.0)),
        RoundedSum.above(0.0),
        RoundedSum.above(log_inverse_above(left)),
    )


@kernel
@compiled
def _spend(state: AdditiveState, cost: ArrayLike, delta: ArrayLike) -> tuple[Array, RoundedSum, RoundedSum]:
    # Both sums have to fit; a release of no cost is granted whatever is left. NaN compares false, and is refused.
    cost, delta = as_float64(cost), as_float64(delta)
    new, new_delta = state.total.plus(cost), state.delta_total.plus(delta)
    budget = state.budget.value()
    fits = (new <= budget) & (new < jnp.inf) & (budget > 0) & (new_delta <= state.delta_budget.value())
    free = (cost == 0) & (delta == 0)
    granted = (fits | free) & (cost >= 0) & (delta >= 0)
    return (
        granted,
        state.total.replace_where(new, granted & (cost != 0)),
        state.delta_total.replace_where(new_delta, granted & (delta != 0)),
    )


@kernel
@compiled
def _epsilon(ledger: AdditiveFilter) -> Array:
    # Of a delta that is below the least float nothing is known but that no cost has no epsilon.
    total = ledger.state.total.value()
    delta = jnp.exp(-ledger.state.log_inverse_delta.value()) * (1 - 8 * rounding())
    epsilon = ledger._convert(total, jnp.where(delta > 0, delta, 0.5))
    # What is granted is within the budget, whose epsilon holds.
    epsilon = jnp.fmin(jnp.where((delta > 0) | ledger._is_pure(), epsilon, jnp.inf), ledger.state.epsilon.value())
    return jnp.where(total == 0, 0.0, epsilon)


@kernel
@compiled
def _count_affordable(state: AdditiveState, cost: ArrayLike, delta: ArrayLike) -> Array:
    # A cost that float64 may flush to 0 counts as the least one: as 0 it would be granted without end.
    cost, delta = (kept_positive(as_float64(each), LEAST_COST) for each in (cost, delta))
    budget = state.budget.value()
    left = jnp.minimum(
        runs_within(state.total.value(), budget, cost),
        runs_within(state.delta_total.value(), state.delta_budget.value(), delta),
    )
    return jnp.where((budget > 0) | ((cost == 0) & (delta == 0)), left, 0.0).astype(jnp.int32)


# ----------------------------------------------------------------------------------------------------
# Filters of concentrated and of approximate differential privacy: they add up rho, and failure probabilities.
#
# Let rho_i bound, for every order a, the divergence of the i-th mechanism by rho_i a, given what came before. If the
# rho_i sum to at most rho on every path, Theorem 1 of Lécuyer (2021) says at *each* order a that the composition has a
# divergence of at most rho a: every order remains, so the composition is rho-zCDP, and any conversion from zCDP holds
# as if nothing had been adaptive. Failure probabilities of approximate zCDP add up (Bun and Steinke 2016, Lemma 8.2,
# with the events conditioned on the past).
#
# An (epsilon, delta)-DP mechanism is delta-approximately epsilon^2/2-zCDP: for two fixed neighbours it is a
# post-processing of randomized response that says everything with probability delta (Kairouz, Oh and Viswanath 2015).
# With rho = sum of epsilon_i^2/2 and Mironov's rule, epsilon = rho + 2 sqrt(rho log(1/delta')), this is the filter of
# Whitehouse et al. (2023): sqrt(2 log(1/delta') sum epsilon_i^2) + sum epsilon_i^2 / 2. All this is of guarantees in
# both directions. One of a single direction has a loss of epsilon surely at worst, and is epsilon-zCDP, no better.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _ConcentratedFilter(AdditiveFilter):
    conversion: str

    def _open(self, epsilon: ArrayLike, delta: ArrayLike, mechanism_delta: ArrayLike, conversion: str) -> None:
        _check_budget(epsilon, delta)
        check_mechanism_delta(mechanism_delta, delta)
        validation.check_one_of(conversion, "conversion", METHODS)
        self._fill(open_state(epsilon, delta, mechanism_delta, rho_budget, conversion), conversion)

    def _convert(self, total: Array, delta: Array) -> Array:
        return as_float64(convert.zcdp_to_epsilon(total, delta, self.conversion))


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class ZCDPFilter(_ConcentratedFilter):
    """Filter that grants releases, adaptively chosen, while their rho sum to a zCDP that is (epsilon, delta)-DP.

    Args:
        epsilon (): the budget, fixed before the first release.
        delta (): its failure probability, all included.
        mechanism_delta (): the part of delta that is kept for the mechanisms' own failure probabilities; above 0 only
            where some of them are (epsilon, delta)-DP with a delta of their own.
        conversion: from zCDP to epsilon, one of :data:`.convert.METHODS`; static. The tightest is the right one; the
            others serve comparisons with papers.

    It takes the mechanisms of :func:`.convert.mechanism_to_zcdp`: Gaussian noise without sampling, mechanisms known to
    be zCDP, and whatever has an epsilon of its own. :attr:`budget` and :attr:`spent` are in units of rho. For Gaussian
    noise alone :class:`GDPFilter` grants more (1,065 runs for the 871 of this one, at epsilon = 0.01): zCDP says less.

    Formal guarantee: however the mechanisms are chosen from earlier results, everything granted together is (epsilon,
    delta)-DP for the relation asked for (and, without failures, ``budget``-zCDP), rounding included.

    Source: Lécuyer (2021), Theorem 1; Whitehouse et al. (2023), "Fully-adaptive composition in differential privacy",
    Theorem 1; conversion, Asoodeh et al. (2021), Theorem 1.

    >>> import jaxacct as ja
    >>> budget = ZCDPFilter(epsilon=1.0, delta=1e-5)
    >>> granted, budget = budget.spend(ja.Gaussian(noise_multiplier=10.0), steps=4)
    >>> bool(granted), int(budget.remaining(ja.Gaussian(noise_multiplier=10.0)))
    (True, 2)
    """

    def __init__(
        self, epsilon: ArrayLike, delta: ArrayLike, mechanism_delta: ArrayLike = 0.0, conversion: str = "optimal"
    ) -> None:
        self._open(epsilon, delta, mechanism_delta, conversion)

    def _numbers(self, mechanism: Mechanism, relation: Relation) -> Cost:
        return convert.mechanism_to_zcdp(mechanism, relation=relation)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class ApproximateDPFilter(_ConcentratedFilter):
    """Filter of (epsilon_n, delta_n)-DP releases, adaptively chosen: together they stay (epsilon, delta)-DP.

    Args:
        epsilon (): the budget, fixed before the first release.
        delta (): its failure probability, all included: delta' + delta'' of the theorem. 0 is for pure mechanisms
            alone, whose epsilon_n are then added up: basic composition, where the loss never exceeds their sum.
        mechanism_delta (): delta'', the most that the delta_n may sum to. Half of delta by default; 0 for pure
            mechanisms.
        conversion: "mironov" is the theorem, ``sqrt(2 log(1/delta') sum epsilon_n^2) + sum epsilon_n^2 / 2``; the
            tighter ones of :data:`.convert.METHODS` hold as well (see the proof before the class); static.

    It takes the mechanisms of :func:`.convert.mechanism_to_dp`. :attr:`budget` and :attr:`spent` are in units of
    ``sum epsilon_n^2 / 2``, and of epsilon for delta = 0. :class:`ZCDPFilter` takes them too and grants a little more,
    as it charges epsilon_n tanh(epsilon_n / 2). The theorem is about guarantees of both directions. One of a single
    direction (:class:`.PureDP` or :class:`.ApproximateDP` under "remove" or "add") is charged epsilon_n in the place of
    epsilon_n^2 / 2: it is epsilon_n-zCDP.

    Formal guarantee: everything granted together is (epsilon, delta)-DP for the relation asked for, rounding included.

    Source: Whitehouse, Ramdas, Rogers and Wu (2023), "Fully-adaptive composition in differential privacy", the filter
    for conditional (epsilon_n, delta_n)-DP.

    >>> import jaxacct as ja
    >>> budget = ApproximateDPFilter(epsilon=2.0, delta=1e-5, mechanism_delta=5e-6)
    >>> granted, budget = budget.spend(ja.ApproximateDP(epsilon=0.1, delta=1e-7), steps=10)
    >>> bool(granted), int(budget.remaining(ja.PureDP(epsilon=0.1)))
    (True, 5)
    """

    def __init__(
        self,
        epsilon: ArrayLike,
        delta: ArrayLike,
        mechanism_delta: ArrayLike | None = None,
        conversion: str = "mironov",
    ) -> None:
        validation.check_delta(delta, pure=True)
        if _is_zero(delta):
            if mechanism_delta is not None and not _is_zero(mechanism_delta):
                raise ValueError(f"mechanism_delta = {mechanism_delta}: give 0, or none, for delta = 0.")
            _check_budget(epsilon, delta, pure=True)
            validation.check_one_of(conversion, "conversion", METHODS)
            self._fill(open_state(epsilon, 0.0, 0.0, _same, pure=True), BASIC)
            return
        self._open(epsilon, delta, _half(delta) if mechanism_delta is None else mechanism_delta, conversion)

    def _is_pure(self) -> bool:
        return self.conversion == BASIC

    def _numbers(self, mechanism: Mechanism, relation: Relation) -> Cost:
        if holds_one_way(mechanism, relation):
            return convert.mechanism_to_zcdp(mechanism, relation=relation)
        epsilon, delta = convert.mechanism_to_dp(mechanism, relation=relation)
        return (epsilon if self._is_pure() else _half_square(epsilon)), delta

    def _convert(self, total: Array, delta: Array) -> Array:
        return total if self._is_pure() else super()._convert(total, delta)


BASIC = "basic"
"""The setting of a filter whose delta is 0, in the place of a conversion: epsilons are added up."""


def _same(epsilon: Array, delta: Array) -> Array:
    return epsilon


def _is_zero(delta: ArrayLike) -> bool:
    seen = validation.concrete_value(delta)
    return seen is not None and seen.ndim == 0 and bool(seen == 0)


def _check_budget(epsilon: ArrayLike, delta: ArrayLike, *, pure: bool = False) -> None:
    """Raises where a filter's epsilon or delta is out of range, or no number alone."""
    validation.check_scalar(epsilon, "epsilon")
    validation.check_epsilon(epsilon)
    validation.check_scalar(delta, "delta")
    if not pure and _is_zero(delta):
        raise ValueError(
            "delta = 0 is not in (0, 1): give the failure probability, well below one over the number of examples "
            "(1e-5, say); or take ApproximateDPFilter or RenyiFilter, which keep a pure epsilon for what has one."
        )
    validation.check_delta(delta, pure=pure)


@kernel
def _half(delta: ArrayLike) -> Any:
    return leave_scope(as_float64(delta) / 2)


@kernel
@compiled
def _half_square(epsilon: ArrayLike) -> Array:
    return square(as_float64(epsilon)) / 2


def rho_budget(epsilon: Array, delta: Array, conversion: str) -> Array:
    """Returns nearly the largest rho such that rho-zCDP is (epsilon, delta)-DP by ``conversion``. In the scope.

    At one order a it is enough that the divergence is below the least one that any mechanism beyond (epsilon, delta)
    has; rho is that over a. Every order tried is a proof; the best of a grid around Mironov's counts.
    """
    log_inverse = log_inverse_above(delta)
    # (sqrt(l + eps) - sqrt(l))^2, without its cancellation.
    mironov = (epsilon / (jnp.sqrt(log_inverse + epsilon) + jnp.sqrt(log_inverse))) ** 2 * (1 - 16 * roundoff())
    if conversion == "mironov":
        return mironov
    power = jnp.clip(jnp.sqrt(log_inverse / jnp.maximum(mironov, 1e-30)), 1e-6, 1e15)
    # 64 orders, with order - 1 from 1/64 of Mironov's best to 4 times it: the optimum is flat. Any orders are sound.
    orders = 1 + power * jnp.exp(jnp.linspace(jnp.log(1 / 64), jnp.log(4.0), 64))
    # The lower bound on a divergence that belongs to each conversion; any of them is safe.
    bound = {"optimal": "optimal", "closed": "f", "improved": "g"}[conversion]
    each = as_float64(convert.least_rdp(epsilon, delta, orders, bound)) / orders
    # A NaN proves nothing, and counts as a budget of 0.
    return jnp.maximum(jnp.max(jnp.where(each >= 0, each, 0.0)) * (1 - 8 * roundoff()), mironov)


# ----------------------------------------------------------------------------------------------------
# The filter of Gaussian differential privacy: it adds up mu^2, and is tight for Gaussian noise.
#
# Why adaptivity costs nothing. Fix two neighbours. A mu_i-GDP mechanism is a post-processing of one draw of N(b mu_i,
# 1), b in {0, 1} naming the neighbour (Dong, Roth and Su 2022, Theorem 2, by Blackwell), which scaled by mu_i
# is the increment of a Brownian motion with drift b over a time mu_i^2. One Brownian motion read on and on gives all of
# them, also if each mu_i is chosen from what has been read. If the mu_i^2 sum to at most mu^2 on every path, everything
# is a post-processing of the motion up to time mu^2, and of its end point, which is sufficient: one draw of N(b mu, 1).
# ----------------------------------------------------------------------------------------------------


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class GDPFilter(AdditiveFilter):
    """Filter of releases, adaptively chosen: their mu^2 sum to a Gaussian mechanism that is (epsilon, delta)-DP.

    Args:
        epsilon (): the budget, fixed before the first release.
        delta (): its failure probability, likewise.

    It takes the mechanisms of :func:`.convert.mechanism_to_gdp`: Gaussian noise without sampling, and whatever has a
    pure epsilon. :attr:`budget` and :attr:`spent` are in units of mu^2.

    Formal guarantee: however the mechanisms are chosen from earlier results, everything granted together is
    sqrt(:attr:`budget`)-GDP and (epsilon, delta)-DP for the relation asked for, rounding included. For Gaussian noise
    this is tight: no filter grants more.

    Source: Smith and Thakurta (2022), "Fully adaptive composition for Gaussian differential privacy"; Koskela, Tobaben
    and Honkela (2023), "Individual privacy accounting with Gaussian differential privacy"; conversion, Dong, Roth and
    Su (2022), Corollary 1.

    >>> import jaxacct as ja
    >>> budget = GDPFilter(epsilon=1.0, delta=1e-5)
    >>> granted, budget = budget.spend(ja.Gaussian(noise_multiplier=10.0), steps=4)
    >>> bool(granted), int(budget.remaining(ja.Gaussian(noise_multiplier=10.0)))
    (True, 3)
    """

    def __init__(self, epsilon: ArrayLike, delta: ArrayLike) -> None:
        _check_budget(epsilon, delta)
        self._fill(open_state(epsilon, delta, 0.0, _mu_squared_budget))

    def _numbers(self, mechanism: Mechanism, relation: Relation) -> Cost:
        return _gaussian_cost(convert.mechanism_to_gdp(mechanism, relation=relation))

    def _convert(self, total: Array, delta: Array) -> Array:
        return as_float64(convert.gdp_to_epsilon(jnp.sqrt(total) * (1 + 4 * roundoff()), delta))


@kernel
@compiled
def _gaussian_cost(mu: ArrayLike) -> Cost:
    mu = as_float64(mu)
    return square(mu), jnp.zeros(mu.shape)


def _mu_squared_budget(epsilon: Array, delta: Array) -> Array:
    """Returns nearly the largest mu^2 such that mu-GDP is (epsilon, delta)-DP. In the scope."""
    return as_float64(convert.dp_to_gdp(epsilon, delta)) ** 2 * (1 - 4 * roundoff())


# ----------------------------------------------------------------------------------------------------
# The Rényi privacy filter: it grants a release while a budget fixed in advance still covers it, and refuses it after.
#
# The divergences of the releases are added up at a few orders, each with a budget of its own.
#
# *Orders, and the reason that a filter has few of them.*
# Theorem 1 of Lécuyer (2021) holds at one order fixed in advance. Corollary 1, the filter over a set of orders, grants
# while *some* order is within its budget. Which order that is may depend on the results, and the corollary's proof
# takes it as fixed. The following holds on every path. Let L be the privacy loss so far, S(a) the sum of the
# divergences of order a and b(a) the budget. Stop the process of each order where S(a) would pass b(a). By Theorem 1
# the stopped process has a divergence of order a of at most b(a), so any conversion that holds at that one order bounds
# its hockey-stick divergence E[(1 - e^(eps - L))+] by some delta(a). At the end S(a) <= b(a) for one order at least,
# whose stopped process is the process itself there, and the hockey-stick divergence of all releases is at most the sum
# of the delta(a) over all orders.
#
# * "optimal" and "improved" choose b(a) so that delta(a) = delta/number of orders: their sum is delta. Any conversion
#   at one fixed order is valid here, the optimal one of Asoodeh et al. included. It would not be valid to take the best
#   order after the fact without paying for the choice.
# * "mironov" keeps the paper's budgets, b(a) = eps - log(1/delta)/(a - 1). With ``c(a) = (1 - 1/a)^(a - 1) / a``,
#   ``(1 - e^(eps - L))+ <= c(a) e^((a - 1) (L - eps))`` gives delta(a) = c(a) delta: the filter is (eps, delta)-DP on
#   every path as soon as its orders are so few that the c(a) sum to at most 1, and FILTER_ORDERS is such a set.
# ----------------------------------------------------------------------------------------------------


FILTER_ORDERS: tuple[float, ...] = tuple(round(1 + 1.4 * 1.3**j, 3) for j in range(26))
"""Orders of a filter unless others are given: 2.4 to 988, few enough for the sum of c(a) to stay below 1.

Any orders are sound, as ``proven_delta`` counts them. Against a dense set these cost a Gaussian at most 1.7 % of its
steps for epsilon in [0.1, 10] at delta = 1e-5, 8 % at 40. For smaller budgets :func:`orders_for` moves them up.
"""


def orders_for(epsilon: ArrayLike, delta: ArrayLike) -> tuple[float, ...]:
    """Returns a filter's default orders: :data:`FILTER_ORDERS`, with order - 1 scaled up for a small budget.

    An order grants something only where order - 1 > log(1/delta)/epsilon, and the best one for Gaussian noise has

        order - 1 = (l + sqrt(l (l + epsilon)))/epsilon,  l = log(1/delta),

    2 l/epsilon for a small epsilon: where epsilon (order - 1 - l/epsilon)/(order (order - 1)) is largest. The default
    orders reach 8.6 l/epsilon at epsilon = l/115 (0.1 at delta = 1e-5); below that they are scaled by l/(115 epsilon),
    and reach as far. Tightness only: any orders are sound, and larger ones have smaller c(a), whose sum stays below 1.
    A traced epsilon or delta cannot decide on orders, which are static: it has FILTER_ORDERS. For delta = 0 infinity is
    the one order.

    >>> orders_for(1.0, 1e-5) == FILTER_ORDERS, max(orders_for(0.01, 1e-6)) > 10_000
    (True, True)
    """
    target, failing = validation.concrete_value(epsilon), validation.concrete_value(delta)
    if failing is not None and failing == 0:
        return (math.inf,)
    if target is None or failing is None or not 0 < target < math.inf:
        return FILTER_ORDERS
    scale = -math.log(float(failing)) / float(target) / 115
    # The largest scale keeps orders, and their products with divergences, among the finite numbers of every arithmetic.
    return FILTER_ORDERS if scale <= 1 else tuple(1 + min(scale, 1e12) * (order - 1) for order in FILTER_ORDERS)


def log_share(order: float) -> float:
    """Returns ``log c(order)``, c the constant of the proof above; c falls from 1 at order 1 like 1/(e order)."""
    return -math.inf if order == math.inf else (order - 1) * math.log1p(-1 / order) - math.log(order)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class RenyiFilter(RenyiLedger):
    """Filter of releases, adaptively chosen, that counts Rényi divergences and keeps the whole (epsilon, delta)-DP.

    Args:
        epsilon (): the budget, fixed before the first release.
        delta (): its failure probability, likewise. 0 keeps a pure epsilon, of mechanisms whose losses end: order
            infinity, at which the largest losses add up.
        orders: the Rényi orders tracked, each above 1; static. By default :data:`FILTER_ORDERS`, for a small budget
            larger ones (:func:`orders_for`), always as many. A run with a plan does best with the one order that is
            best for it; but for "mironov", all of them share delta. Infinity may be among them.
        conversion: "mironov", budget ``epsilon - log(1/delta)/(order - 1)`` at each order, as in the paper; or
            "optimal" or the older "improved", which split delta over the orders and use the tighter conversion at
            each: among the default orders these favour the large ones, that is, a small epsilon (at epsilon = 0.01
            "optimal" grants 1.6 times as much Gaussian noise); static. With a *single* order, known from the plan of a
            run, "optimal" is the tightest filter.

    A pytree whose leaves are float32, so that it passes through ``jit``, ``vmap``, ``lax.scan`` and ``jnp.where`` of a
    float32 program unchanged. Sums are two float32 numbers each (48 bits), rounded up. Batches are ``jax.vmap``.

    Formal guarantee: however the mechanisms are chosen from earlier results, everything granted together is
    (epsilon, :attr:`proven_delta`)-DP, for the neighbouring relation asked for. ``proven_delta`` is ``delta`` for the
    default orders, for a single order, and for "improved" and "optimal"; many orders with "mironov" cost a factor (see
    the proof before the class). If nothing is chosen from results, it is ``delta`` for any orders.

    Raises ValueError where a concrete epsilon, delta or order is out of range. Warns where "mironov" has no budget at
    any order given, so that nothing would ever be granted.

    Source: Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy", Theorem 1,
    Corollary 1 and section 3.4; Mironov (2017), Proposition 3; Asoodeh et al. (2021), Theorem 1.

    >>> import jaxacct as ja
    >>> budget = RenyiFilter(epsilon=1.0, delta=1e-5)
    >>> granted, budget = budget.spend(ja.Gaussian(noise_multiplier=10.0), steps=4)
    >>> bool(granted), bool(budget.would_grant(ja.Gaussian(noise_multiplier=1.0)))
    (True, False)
    """

    conversion: str

    def __init__(
        self,
        epsilon: ArrayLike,
        delta: ArrayLike,
        orders: Sequence[float] | None = None,
        conversion: str = "mironov",
    ) -> None:
        _check_budget(epsilon, delta, pure=True)
        validation.check_one_of(conversion, "conversion", ("mironov", "improved", "optimal"))
        tried = fixed_orders(orders_for(epsilon, delta) if orders is None else orders, infinity=True)
        _check_some_budget(epsilon, delta, tried, conversion)
        self._fill(_open_renyi(epsilon, delta, tried, conversion), tried, conversion)

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
        validation.check_scalar(delta, "delta")
        orders = fixed_orders(orders, infinity=True)
        validation.check_numbers(budgets=budgets)
        budgets = validation.as_array(budgets, "budgets")
        seen = validation.concrete_value(budgets)
        if np.shape(budgets) != (len(orders),) or (seen is not None and not np.all(seen >= 0)):
            raise ValueError(f"budgets = {shorten(budgets)} do not fit orders: give one of at least 0 for each.")
        return object.__new__(cls)._fill(_open_divergences(budgets, delta), orders, "mironov")

    def _promise(self) -> tuple[ArrayLike, ArrayLike] | None:
        if np.ndim(self.state.log_inverse_delta.high):
            return None
        return leave_scope(_epsilon_of_budget(self.state, self.orders, self.conversion)), np.exp(
            -read_sum(self.state.log_inverse_delta)
        )

    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, at the filter's delta and by its conversion; float64.

        It is an upper bound for releases fixed in advance, 0 before the first. It is no guarantee at a moment chosen
        because it looks good: then the budget is what holds, or an odometer (:mod:`jaxacct.odometers`).
        """
        return leave_scope(_epsilon_of_sums(self.state, self.orders, self.conversion))

    @kernel
    def remaining(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` would be granted, at once or one by one; int32, at most 2^31 - 1.

        The number is on the safe side, never too large: of n runs, one or n^2 2^-46 fewer than would be granted at once
        (none of 1e6, 210 of 1e8), since one by one their sum is rounded up so often.
        """
        return leave_scope(_remaining_of_cost(self.state, self.cost(mechanism, relation=relation)))

    @property
    def proven_delta(self) -> Float[Array, ""]:
        """The delta proven on every path, float64: ``delta`` times the sum of c(a) where that is above 1."""
        total = sum(math.exp(log_share(order)) for order in self.orders) if self.conversion == "mironov" else 1.0
        return leave_scope(_proven_delta(self.state.log_inverse_delta, max(total, 1.0)))


@kernel
def _open_renyi(epsilon: ArrayLike, delta: ArrayLike, orders: tuple[float, ...], conversion: str) -> RenyiState:
    return _renyi_state(float64_leaf(epsilon), float64_leaf(delta), orders, conversion)


@kernel
def _open_divergences(budgets: Orders, delta: ArrayLike) -> RenyiState:
    return _state_of_divergences(float64_leaf(budgets), float64_leaf(delta))


@compiled(static=("orders", "conversion"))
def _renyi_state(epsilon: Array, delta: Array, orders: tuple[float, ...], conversion: str) -> RenyiState:
    valid = (epsilon >= 0) & (delta > 0) & (delta < 1)
    finite = jnp.where(valid & (epsilon < jnp.inf), epsilon, 1.0)
    possible = jnp.where(valid, delta, 0.5)
    tried = as_float64(orders)
    if conversion == "mironov" or set(orders) == {math.inf}:
        # By the logarithm that is kept, which reads what is spent. At order infinity a divergence bounds every loss.
        offset = RoundedSum.above(log_inverse_above(possible)).value() / (tried - 1) * (1 + 16 * roundoff())
        offset = jnp.where(tried == jnp.inf, 0.0, offset)
        budget = finite * (1 - 4 * rounding()) - offset * (1 + 32 * roundoff())
        valid = valid | ((epsilon >= 0) & (delta == 0) & (tried == jnp.inf))
    else:
        # delta is divided over the orders; the bound on a divergence is the inverse of the conversion. Both numbers are
        # lowered by more than what is read of the budget, at the logarithm that is kept, is rounded up or missed by a
        # search (2e-12 of it). Tightness only: what is granted is (epsilon, delta)-DP for any lower numbers.
        kept = jnp.exp(-RoundedSum.above(log_inverse_above(possible)).value()) * (1 - 16 * rounding())
        share, bound = kept / len(orders), {"improved": "g", "optimal": "optimal"}[conversion]
        budget = as_float64(convert.least_rdp(finite * (1 - 2.0**-34 - 64 * roundoff()), share, orders, bound))
    budget = jnp.where(epsilon == jnp.inf, jnp.inf, budget)
    return open_sums(delta, len(orders), jnp.where(valid, budget, 0.0))


@compiled
def _state_of_divergences(budgets: Array, delta: Array) -> RenyiState:
    return open_sums(delta, len(budgets), budgets * (1 - rounding()))


@kernel
@compiled(static=("orders", "conversion"))
def _epsilon_of_sums(state: RenyiState, orders: tuple[float, ...], conversion: str) -> Array:
    spent, tried = state.total.value(), as_float64(orders)
    log_inverse = state.log_inverse_delta.value()
    if conversion == "mironov" or set(orders) == {math.inf}:
        offset = jnp.where(tried == jnp.inf, 0.0, log_inverse / (tried - 1) * (1 + 16 * roundoff()))
        each = (spent + offset) * (1 + rounding())
    else:
        delta = jnp.exp(-log_inverse) / len(orders) * (1 - 8 * rounding())
        each = ToEpsilon(conversion).of_orders(spent, tried, jnp.broadcast_to(delta, tried.shape))
    least = jnp.min(each)
    safe = jnp.where(jnp.isnan(least), jnp.inf, jnp.maximum(least, 0.0))
    return jnp.where(jnp.all(spent == 0), 0.0, safe)


@kernel
@compiled(static=("orders", "conversion"))
def _epsilon_of_budget(state: RenyiState, orders: tuple[float, ...], conversion: str) -> Array:
    """Returns nearly the epsilon that the budgets were made of, the least that one of them stands for; for print."""
    assert state.budget is not None
    budget, nothing = state.budget.value(), RoundedSum.above(jnp.zeros(len(orders)))
    full = replace(state, total=RoundedSum.above(jnp.where(budget > 0, budget, jnp.inf)), budget=nothing)
    return jnp.where(jnp.any(budget > 0), _epsilon_of_sums(full, orders, conversion), 0.0)


def _check_some_budget(epsilon: ArrayLike, delta: ArrayLike, orders: tuple[float, ...], conversion: str) -> None:
    """Warns where "mironov" leaves no budget at any order to a concrete epsilon above 0; nothing would be granted.

    Raises ValueError where a concrete delta is 0, and an order is finite.
    """
    target, failing = validation.concrete_value(epsilon), validation.concrete_value(delta)
    if failing is not None and failing == 0 and set(orders) != {math.inf}:
        raise ValueError(f"orders = {shorten(orders)} say nothing at delta = 0: leave orders out, or give infinity.")
    if conversion != "mironov" or max(orders) == math.inf:
        return
    if target is None or failing is None or not 0 < target < math.inf:
        return
    least = 1 - math.log(float(failing)) / float(target)
    if max(orders) <= least:
        validation.warn_caller(
            f"orders = {shorten(orders)} have no budget at epsilon = {epsilon}, delta = {delta}, and grant nothing: "
            f"give some above 1 + log(1/delta)/epsilon = {least:.6g}, best near {2 * least:.6g}, or leave orders out."
        )


@kernel
@compiled
def _remaining_of_cost(state: RenyiState, cost: ArrayLike) -> Array:
    assert state.budget is not None  # only an odometer has none
    cost, budget = precise(cost), state.budget.value()
    most = runs_within(state.total.value(), budget, cost)
    left = jnp.max(jnp.where((budget > 0) | jnp.all(cost == 0), most, 0.0))
    return jnp.where(jnp.all(cost >= 0), left, 0.0).astype(jnp.int32)


@kernel
@compiled
def _proven_delta(log_inverse_delta: RoundedSum, total: ArrayLike) -> Array:
    # The stored logarithm was rounded up, by 2^-47.
    least = log_inverse_delta.value() * (1 - 2.0**-46 - 2 * arithmetic().function)
    return jnp.minimum(jnp.exp(-least) * as_float64(total) * (1 + 8 * rounding()), 1.0)


# ----------------------------------------------------------------------------------------------------
# The individual Rényi filter: one budget for each example, spent by what that example contributes.
#
# Feldman and Zrnic (2021), "Individual privacy accounting via a Rényi filter", Algorithm 2 and Theorem 4.5: let every
# example stay in the computation only while the divergences of its own contributions, each measured before it is made,
# stay within the budget. Then the computation is differentially private for adding or removing an example, though small
# contributions have been charged less than the largest possible one.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class IndividualRenyiFilter:
    """Filter that grants each example's contributions while its own budget of (epsilon, delta) lasts.

    Made by :meth:`create`. Attributes:
        filters: a :class:`.RenyiFilter` whose leaves have a leading axis (examples,).

    Formal guarantee: if an example takes part in a release only where it is granted, and contributes nothing where it
    is not, all releases together are (epsilon, delta)-DP for adding or removing one example, however they are chosen
    from earlier results, with delta as :attr:`.RenyiFilter.proven_delta`. The mechanism charged for an example must
    bound the divergence between the release with its contribution and without it, *given all other examples*, both
    ways; for a sum with Gaussian noise s that is ``Gaussian(s / norm)``, norm that of the example's own contribution.
    Which examples are still active, and what they have spent, depends on the data and must not be released.

    Source: Feldman and Zrnic (2021), Theorem 4.5; the orders as in :class:`.RenyiFilter`.

    >>> import jaxacct as ja
    >>> budgets = IndividualRenyiFilter.create(examples=3, epsilon=1.0, delta=1e-5)
    >>> norms = np.array([0.0, 0.1, 1.0])
    >>> granted, budgets = budgets.spend(ja.Gaussian(noise_multiplier=4.0 / np.maximum(norms, 1e-30)))
    >>> granted.tolist(), budgets.remaining(ja.Gaussian(noise_multiplier=np.full(3, 20.0))).tolist()
    ([True, True, False], [16, 16, 16])
    """

    filters: RenyiFilter

    @classmethod
    def create(
        cls,
        examples: int,
        epsilon: ArrayLike,
        delta: ArrayLike,
        orders: Sequence[float] | None = None,
        conversion: str = "mironov",
    ) -> IndividualRenyiFilter:
        """Returns the filter before the first release, with the same budget for each of ``examples`` examples.

        Arguments and errors are those of :class:`.RenyiFilter`; memory is 16 bytes for each order and example.
        """
        examples = validation.check_count(examples, "examples", "the number of examples")
        one = RenyiFilter(epsilon, delta, orders, conversion)
        return cls(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (examples, *jnp.shape(leaf))), one))

    @kernel
    def spend(
        self,
        mechanism: Mechanism,
        steps: Int[ArrayLike, " examples"] | int = 1,
        *,
        relation: Relation | None = None,
    ) -> tuple[Bool[Array, " examples"], IndividualRenyiFilter]:
        """Returns whether each example may take part in ``steps`` runs, and the filter after them.

        Args:
            mechanism: fields with the leading axis (examples,): the mechanism that each one's contribution amounts to.
            steps (examples,): or one number for all.
            relation: neighbouring relation, one that the mechanism supports; None: "add_or_remove".

        An example that is not granted spends nothing. Errors are those of :meth:`.RenyiFilter.spend`, and ValueError
        where shapes do not fit.
        """
        return self.spend_cost(self.cost(mechanism, relation=relation), steps)

    @kernel
    def cost(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Float[Array, "examples orders"]:
        """Returns the RDP of one run of each example's mechanism, at the filters' orders, for :meth:`spend_cost`."""
        self._check(mechanism)
        each = jax.vmap(lambda one, mechanism: one.cost(mechanism, relation=relation))
        return each(self.filters, _broadcast_fields(mechanism, self._shape))

    @kernel
    def spend_cost(
        self, cost: Float[Array, "examples orders"], steps: Int[ArrayLike, " examples"] | int = 1
    ) -> tuple[Bool[Array, " examples"], IndividualRenyiFilter]:
        """Returns :meth:`spend` of mechanisms with the given :meth:`cost` (examples, orders)."""
        runs = validation.exact_steps(steps)
        if np.shape(cost)[:1] != self._shape:
            raise ValueError(f"cost of shape {np.shape(cost)} does not match {self._shape[0]} examples.")
        if np.shape(runs) not in ((), self._shape):
            raise ValueError(
                f"steps of shape {np.shape(runs)} do not fit {self._shape[0]} examples: give one number for all, or "
                "one for each."
            )
        granted, filters = _spend_each(self.filters, cost, runs)
        return granted, IndividualRenyiFilter(filters)

    def would_grant(
        self, mechanism: Mechanism, steps: ArrayLike = 1, *, relation: Relation | None = None
    ) -> Bool[Array, " examples"]:
        """Returns whether :meth:`spend` would grant each example, spending nothing."""
        return self.spend(mechanism, steps, relation=relation)[0]

    @kernel
    def remaining(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Int[Array, " examples"]:
        """Returns how many more runs of its mechanism each example would be granted; int32."""
        self._check(mechanism)
        return jax.vmap(lambda one, each: one.remaining(each, relation=relation))(
            self.filters, _broadcast_fields(mechanism, self._shape)
        )

    @kernel
    def epsilon(self) -> Float[Array, " examples"]:
        """Returns the epsilon that each example has spent; not to be released, for it depends on the data."""
        return jax.vmap(RenyiFilter.epsilon)(self.filters)

    @property
    def _shape(self) -> tuple[int, ...]:
        return jax.tree.leaves(self.filters)[0].shape[:1]

    def _check(self, mechanism: Mechanism) -> None:
        mechanism.validate()
        if mechanism.batch_shape != self._shape:
            raise ValueError(
                f"a mechanism of shape {mechanism.batch_shape} does not fit {self._shape[0]} examples: give fields "
                "with that leading axis, what each example's own contribution amounts to."
            )


@kernel
def _broadcast_fields(mechanism: Mechanism, shape: tuple[int, ...]) -> Mechanism:
    """Returns the mechanism with every field of the batch's shape, in float64."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(exact_float64(leaf), shape), mechanism)


@kernel  # outside the scope vmap would make float32 of the runs, and int32 of integers
def _spend_each(filters: RenyiFilter, costs: ArrayLike, runs: ArrayLike) -> tuple[Array, RenyiFilter]:
    each = jnp.broadcast_to(as_float64(runs), jnp.shape(costs)[:1])
    return jax.vmap(lambda one, cost, count: one.spend_cost(cost, count))(filters, costs, each)
