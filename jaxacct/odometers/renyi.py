"""Odometers in Rényi divergence: bounds on the privacy loss that hold at every moment, for every mechanism.

They add up the divergences of the releases at several orders, and read from the sums a loss that is ever exceeded with
probability at most delta. :func:`most_steps`, which all odometers share, comes first: the steps that a reading allows.
Then the proofs, :class:`RenyiOdometer` (Lécuyer 2021) and :class:`VilleOdometer` (a mixture over the orders).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Int32

from jaxacct import validation
from jaxacct.convert.renyi import float64_leaf
from jaxacct.ledger import RenyiLedger, checked_orders, with_runs
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, in_float64, outside
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.rounded_sum import RoundedSum, log_inverse_above, precise, rounding_of_one

BITS = 30
"""Binary digits of a number of steps that is searched. Sound for any value up to 31, with which it fits int32."""


def rounding_of_reading() -> float:
    """Returns the relative rounding of a reading: some tens of operations; the sums' own is counted apart."""
    return 128 * roundoff()


def most_steps(reading: Callable[[Array, Array], Array], epsilon: ArrayLike) -> Int32[Array, ""]:
    """Returns the most steps, below 2^30, whose reading is at most ``epsilon``; int32, inside the float64 scope.

    Args:
        reading: the largest reading on the way to a number of steps, given that number and a factor above 1 for what
            rounding adds when they come one by one; it rises with both. NaN counts as too large.
        epsilon: traced or not.
    """
    epsilon = as_float64(epsilon)

    def fits(count: Array) -> Array:
        # Two readings of sums that rise may differ the wrong way by the errors of both.
        return reading(count, 1 + count * rounding_of_one()) * (1 + 2 * rounding_of_reading()) <= epsilon

    def refine(index: Array, count: Array) -> Array:
        more = count + jnp.left_shift(1, BITS - 1 - index)  # exp2 would not be exact
        return jnp.where(fits(more), more, count)

    # The largest number that fits, bit by bit from the highest: ``count`` fits after each.
    return jax.lax.fori_loop(0, BITS, refine, jnp.zeros(())).astype(jnp.int32)


# ----------------------------------------------------------------------------------------------------
# Readings and proofs: upper bounds on the privacy loss that hold at every moment.
#
# Let L_n be the privacy loss after n releases and S_n(a) the sum of their divergences of order a, each given its past.
# ``exp((a - 1) (L_n - S_n(a)))`` is a nonnegative supermartingale started at 1, whatever is chosen adaptively.
#
# * :class:`RenyiOdometer`, Lécuyer's, keeps a row of filters of growing budgets and reads the first that has not
#   refused. By Ville's inequality, applied to the process stopped by the f-th filter, the loss exceeds
#   ``budget_f + log(2 f^2 |orders|/delta)/(a - 1)`` before that filter refuses with probability at most
#   delta/(2 f^2 |orders|); the sum over f and the orders is below delta. (The paper shows it for the end of the
#   interaction; this is for all times at once.)
# * :class:`VilleOdometer` needs no row of filters. The mean of those supermartingales over the orders is one, too, so
#   by Ville's inequality it ever reaches 1/delta with probability at most delta. The reading is the loss at which it
#   would:
#
#       mean over a of exp((a - 1) (reading - S_n(a))) = 1/delta.
#
#   It is below ``S_n(a) + log(|orders|/delta)/(a - 1)`` for every a, hence below every reading of the other.
# ----------------------------------------------------------------------------------------------------

LECUYER_ORDERS: tuple[float, ...] = (*(1 + i / 4 for i in range(1, 37)), 16.0, 32.0)
"""Orders of :class:`RenyiOdometer` by default: 1.25 to 10 by 0.25, 16 and 32, as in section 4.5 of the paper. Its
authors' code and figures start at 2.25. Sound for any orders above 1."""

VILLE_ORDERS: tuple[float, ...] = tuple(1 + 0.05 * 2.0**j for j in range(16))
"""Orders of :class:`VilleOdometer` by default: 1.05 to 1639, some near the best one for epsilon from 0.01 to 1000, for
a cost of log(16) beside log(1/delta). Sound for any orders above 1.

Chosen by measuring: ratios from 1.35 to 3.5 between neighbours were tried on Gaussian, subsampled and
randomized-response runs, and 2 was within a few per cent of the best of them for each.
"""

NEWTON = 12
"""Steps of Newton's method from above. Sound for any value, as the reading is checked; a test compares it with a
bisection."""


@register_dataclass
@dataclass(frozen=True)
class RenyiTotals:
    """Counts of a Rényi odometer; float32 leaves.

    Attributes:
        total (orders,): the divergences' sums, rounded up.
        log_inverse_delta (): log(1/delta), rounded up.
    """

    total: RoundedSum
    log_inverse_delta: RoundedSum


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _RenyiOdometer(RenyiLedger):
    has_budget: ClassVar[bool] = False

    state: RenyiTotals
    orders: tuple[float, ...]

    def _reading(self, spent: Float[Array, " orders"]) -> Float[Array, ""]:
        """Returns the bound on the loss; inside the float64 scope."""
        raise NotImplementedError

    def _decide(self, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Bool[Array, ""], RoundedSum]:
        return _spend(self.state.total, curve, steps)

    @in_float64(by_programs=True)
    def remaining(
        self, mechanism: Mechanism, epsilon: ArrayLike = math.inf, *, relation: Relation = "add_or_remove"
    ) -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` keep the reading at or below ``epsilon``; int32, below 2^30.

        For the default epsilon that is the most there is, as an odometer has no budget. 0 if one run cannot be counted.
        """
        validation.check_epsilon(epsilon)
        return outside(_remaining(self, self.curve(mechanism, relation=relation), epsilon))

    def epsilon(self) -> Float[Array, ""]:
        """Returns the reading: the bound on the privacy loss of everything counted so far; float64, 0 at the start."""
        return outside(_epsilon(self))


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class RenyiOdometer(_RenyiOdometer):
    """Lécuyer's doubling odometer: its reading bounds, at every moment, the privacy loss of all releases so far.

    Args:
        delta (): failure probability; traced values out of range read inf.
        orders: the Rényi orders tracked, each above 1; static. The paper's by default; fewer, around the best one of
            the run that is expected, read less.
        base: the first filter's budget at order a is ``base/(a - 1)``; static. None for the paper's, log(2 |orders|/
            delta), which needs a concrete delta. A smaller one reads lower at first, and coarser steps later cost a
            larger f.
        growth: ratio of each filter's budget to the one before it, above 1; static. Nearer to 1 the steps are finer,
            and there are more of them to pay for.

    A pytree whose leaves are float32; sums are rounded up. Batches are ``jax.vmap``. :class:`VilleOdometer` reads less
    for the same mechanisms; this one is for comparison with the paper.

    Formal guarantee: however mechanisms are chosen from earlier results, for any two neighbours of the relation asked
    for, the privacy loss *ever* exceeds :meth:`epsilon` with probability at most delta. What is released up to a
    moment, itself chosen by looking at everything, at which it reads at most a fixed epsilon is (epsilon, delta)-DP.

    Source: Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy", Theorem 2,
    equation 5 and section 4.5; for all times at once, the proof above.

    >>> import jaxacct as ja
    >>> odometer = RenyiOdometer(delta=1e-6)
    >>> _, odometer = odometer.spend(ja.PoissonSubsampledGaussian(1.0, 512 / 50_000), steps=98)
    >>> round(float(odometer.epsilon()), 2)
    4.15
    """

    base: float
    growth: float

    def __init__(
        self,
        delta: ArrayLike,
        orders: Sequence[float] = LECUYER_ORDERS,
        *,
        base: float | None = None,
        growth: float = 2.0,
    ) -> None:
        validation.check_delta(delta)
        tried = checked_orders(orders)
        if base is None:
            seen = validation.concrete_value(delta)
            if seen is None:
                raise ValueError("base = None is made of delta, which is traced here: give base, a number.")
            base = math.log(2 * len(tried) / float(seen))
        validation.check_positive(base, "base")
        if not 1 < growth < math.inf:
            raise ValueError(f"growth = {growth} is no ratio of budgets: give a finite number above 1.")
        self._fill(_opened(delta, len(tried)), tried, float(base), float(growth))

    def _reading(self, spent: Float[Array, " orders"]) -> Float[Array, ""]:
        powers = as_float64(self.orders) - 1
        first = self.base / powers
        grown = jnp.log(self.growth)

        def budget(f: Array) -> Array:
            return first * jnp.exp((f - 1) * grown)

        # The logarithm's rounding could pick a filter that has refused, or the next one, so one lower and one higher
        # are tried as well; a growth next to 1 can be further off, and reads inf then.
        guess = 1 + jnp.maximum(jnp.ceil(jnp.log(jnp.maximum(spent, first) / first) / grown), 0.0)
        first_open = jnp.full_like(spent, jnp.inf)
        for f in (guess + 1, guess, jnp.maximum(guess - 1, 1.0)):
            first_open = jnp.where(spent <= budget(f), f, first_open)
        log_union = jnp.log(2.0 * len(self.orders)) + 2 * jnp.log(first_open) + self.state.log_inverse_delta.value()
        return jnp.min((budget(first_open) + log_union / powers) * (1 + rounding_of_reading()))


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class VilleOdometer(_RenyiOdometer):
    """Odometer by one mixture over Rényi orders: its reading bounds, at every moment, the privacy loss so far.

    Args:
        delta (): failure probability; traced values out of range read inf.
        orders: the Rényi orders tracked, each above 1; static. Fewer, around those that are best for the readings at
            issue, read less.

    A pytree whose leaves are float32; sums are rounded up. Batches are ``jax.vmap``.

    Formal guarantee: that of :class:`RenyiOdometer`, whose readings it never exceeds at the same orders.

    Source: the proof above; Ville's inequality, as in Howard, Ramdas, McAuliffe and Sekhon (2020), "Time-uniform
    Chernoff bounds via nonnegative supermartingales", and the method of mixtures.

    >>> import jaxacct as ja
    >>> odometer = VilleOdometer(delta=1e-6)
    >>> _, odometer = odometer.spend(ja.PoissonSubsampledGaussian(1.0, 512 / 50_000), steps=98)
    >>> round(float(odometer.epsilon()), 2)
    2.67
    """

    def __init__(self, delta: ArrayLike, orders: Sequence[float] = VILLE_ORDERS) -> None:
        validation.check_delta(delta)
        tried = checked_orders(orders)
        self._fill(_opened(delta, len(tried)), tried)

    def _reading(self, spent: Float[Array, " orders"]) -> Float[Array, ""]:
        powers = as_float64(self.orders) - 1
        known = spent < jnp.inf
        finite = jnp.where(known, spent, 0.0)
        log_weight = jnp.where(known, -jnp.log(1.0 * len(self.orders)), -jnp.inf)
        target = self.state.log_inverse_delta.value()
        # A union bound over the orders is the start; Newton's steps on a convex function stay above its root.
        alone = finite + (jnp.log(1.0 * len(self.orders)) + target) / powers
        start = jnp.min(jnp.where(known, alone, jnp.inf)) * (1 + rounding_of_reading())

        def log_mixture(loss: Array) -> tuple[Array, Array]:
            logs = log_weight + powers * (loss - finite)
            most = jnp.max(logs)
            shares = jnp.exp(logs - most)
            return most + jnp.log(jnp.sum(shares)), jnp.sum(shares * powers) / jnp.sum(shares)

        def advance(_: Array, loss: Array) -> Array:
            value, slope = log_mixture(loss)
            return loss - jnp.maximum(value - target, 0.0) / slope

        # Each step leaves the loss above the root, or where rounding moved it: the check below decides. A fixed number
        # of steps keeps the program short.
        found = jax.lax.fori_loop(0, NEWTON, advance, jnp.where(start < jnp.inf, start, 1.0))
        reading = found + rounding_of_reading() * (found + (1 + target) / powers[0])
        # Rounding of the mixture's logarithm: a weight's, a share's and the sum's logarithms, and exponents up to
        # the target's size.
        enough = log_mixture(reading)[0] >= target + 64 * roundoff() * (1 + target)
        return jnp.where(enough & (start < jnp.inf), jnp.minimum(reading, start), start)


@in_float64(by_programs=True)
def _opened(delta: ArrayLike, count: int) -> RenyiTotals:
    return _open(float64_leaf(delta), count)


@compiled(static=("count",))
def _open(delta: Array, count: int) -> RenyiTotals:
    nothing = RoundedSum(jnp.zeros(count, jnp.float32), jnp.zeros(count, jnp.float32))
    return RenyiTotals(nothing, RoundedSum.above(log_inverse_above(delta)))


@in_float64(by_programs=True)
@compiled
def _spend(total: RoundedSum, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Array, RoundedSum]:
    new, changed, valid = with_runs(total, curve, steps)
    granted = valid & (jnp.any(new < jnp.inf) | ~jnp.any(changed))
    return granted, total.replaced(new, granted & changed)


@in_float64(by_programs=True)
@compiled
def _epsilon(odometer: _RenyiOdometer) -> Array:
    spent = odometer.state.total.value()
    reading = odometer._reading(spent)
    return jnp.where(jnp.all(spent == 0), 0.0, jnp.where(jnp.isnan(reading), jnp.inf, jnp.maximum(reading, 0.0)))


@in_float64(by_programs=True)
@compiled
def _remaining(odometer: _RenyiOdometer, curve: ArrayLike, epsilon: ArrayLike) -> Array:
    curve, old = precise(curve), odometer.state.total.value()
    possible = jnp.all(curve >= 0) & jnp.any(old + curve < jnp.inf)
    return jnp.where(
        possible, most_steps(lambda count, slack: odometer._reading((old + count * curve) * slack), epsilon), 0
    )
