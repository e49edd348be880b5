"""Additive filters: they add up one number for each mechanism, zCDP's rho or the square of GDP's mu, and a delta.

The budget is a number fixed in advance, so the sum stays within it on every path, and the theorem about one number
applies to the whole, whatever was chosen adaptively: no order is selected, nothing is paid for adaptivity. The second
sum is that of the mechanisms' own failure probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxacct import validation
from jaxacct.ledger import Ledger
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps, check_count, listed
from jaxacct.numerics.precision import as_float64, in_float64, is_zero, kept_positive, outside
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.rounded_sum import LEAST_COST, RoundedSum, log_inverse_above, rounding, runs_within

Cost = tuple[Array, ...]
"""Type of the numbers that one run of a mechanism adds; the last is its failure probability."""


def squared(number: Array) -> Array:
    """Returns the square of a number of at least 0, rounded up, and above 0 unless it is 0. In the float64 scope."""
    return jnp.where(is_zero(number), 0.0, jnp.maximum(number**2 * (1 + rounding()), LEAST_COST))


@register_dataclass
@dataclass(frozen=True)
class AdditiveState:
    """State of an additive filter: its budgets, and the sums of what it has granted; float32 leaves.

    Attributes:
        budget (): the most that the numbers may sum to.
        total (): what they sum to so far, rounded up.
        delta_budget (): the most that the mechanisms' own failure probabilities may sum to.
        delta_total (): what they sum to so far, rounded up.
        log_inverse_delta (): log(1/delta) of the conversion to epsilon.
    """

    budget: RoundedSum
    total: RoundedSum
    delta_budget: RoundedSum
    delta_total: RoundedSum
    log_inverse_delta: RoundedSum


@dataclass(frozen=True, init=False, eq=False, repr=False)
class AdditiveFilter(Ledger):
    """Base of the additive filters; a subclass says what a mechanism costs and what its epsilon is."""

    state: AdditiveState

    def _cost(self, mechanism: Mechanism, relation: Relation) -> Cost:
        raise NotImplementedError

    @in_float64
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation = "add_or_remove"
    ) -> tuple[Bool[Array, ""], Self]:
        cost, delta = total_cost(lambda part: self._cost(part, relation), mechanism, steps)
        granted, total, delta_total = _spend(self.state, cost, delta)
        return granted, self._with(replace(self.state, total=total, delta_total=delta_total))

    @in_float64
    def remaining(self, mechanism: Mechanism, *, relation: Relation = "add_or_remove") -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` would be granted, at once or one by one; int32, at most 2^31 - 1.

        The number is on the safe side, never too large: of n runs, one or n^2 2^-46 fewer than would be granted at once
        (none of 1e6, 210 of 1e8), since one by one their sum is rounded up so often.
        """
        if mechanism.composed:
            cost = total_cost(lambda part: self._cost(part, relation), mechanism, 1)
        else:
            cost = self._cost(mechanism, relation)
        return outside(_remaining(self.state, *cost))

    @property
    def spent(self) -> Float[Array, ""]:
        """The sum granted so far, rounded up; float64."""
        return outside(_value(self.state.total))

    @property
    def budget(self) -> Float[Array, ""]:
        """The most that is granted; float64."""
        return outside(_value(self.state.budget))


def total_cost(cost: Callable[[Mechanism], Cost], mechanism: Mechanisms, steps: Steps) -> Cost:
    """Returns the numbers that a composition adds, rounded up; float64, of shape () each.

    The numbers are NaN, which every filter and odometer refuses, for traced steps that are no whole number.
    """
    parts = listed(mechanism, steps)
    if not parts:
        raise ValueError("mechanism = () holds nothing to spend on: give at least one mechanism.")
    costs = []
    for part, count in parts:
        runs = validation.exact_steps(count)
        check_count(part, runs)
        costs.append(_times(cost(part), runs))
    return costs[0] if len(costs) == 1 else _added(tuple(costs))


@in_float64(by_programs=True)
@compiled
def _added(parts: tuple[Cost, ...]) -> Cost:
    slack = 1 + len(parts) * rounding()
    return tuple(jnp.sum(jnp.stack(list(map(as_float64, each)))) * slack for each in zip(*parts, strict=True))


@in_float64(by_programs=True)
@compiled
def _times(cost: Cost, steps: ArrayLike) -> Cost:
    steps = as_float64(steps)
    slack = 1 + (steps.size + 1) * rounding()

    def total(each: ArrayLike) -> Array:
        return jnp.sum(jnp.where(steps == 0, 0.0, steps * kept_positive(as_float64(each), LEAST_COST))) * slack

    return tuple(map(total, cost))


def open_state(
    budget: Float[Array, ""], delta: Float[Array, ""], delta_budget: Float[Array, ""], valid: Bool[Array, ""]
) -> AdditiveState:
    """Returns the state before the first release. Inside the float64 scope; where not ``valid`` it grants nothing."""
    return AdditiveState(
        RoundedSum.below(jnp.where(valid, jnp.maximum(budget, 0.0), 0.0)),
        RoundedSum.above(0.0),
        RoundedSum.below(jnp.where(valid, delta_budget, 0.0)),
        RoundedSum.above(0.0),
        RoundedSum.above(log_inverse_above(delta)),
    )


_value = in_float64(RoundedSum.value)
"""The value of a sum that is kept in two float32, from outside the float64 scope."""


@in_float64(by_programs=True)
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
        state.total.replaced(new, granted & (cost != 0)),
        state.delta_total.replaced(new_delta, granted & (delta != 0)),
    )


@in_float64(by_programs=True)
@compiled
def _remaining(state: AdditiveState, cost: ArrayLike, delta: ArrayLike) -> Array:
    # A cost that float64 may flush to 0 counts as the least one: as 0 it would be granted without end.
    cost, delta = (kept_positive(as_float64(each), LEAST_COST) for each in (cost, delta))
    budget = state.budget.value()
    left = jnp.minimum(
        runs_within(state.total.value(), budget, cost),
        runs_within(state.delta_total.value(), state.delta_budget.value(), delta),
    )
    return jnp.where((budget > 0) | ((cost == 0) & (delta == 0)), left, 0.0).astype(jnp.int32)
