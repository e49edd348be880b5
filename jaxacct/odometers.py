"""Privacy odometers: a running bound on the privacy loss of whatever has been released, to stop at any moment.

A filter promises a budget fixed in advance. An odometer can be read: training may stop because a model is good enough,
and the reading at that moment holds, for mechanisms chosen adaptively, too. The price is a somewhat larger bound. Each
odometer is a pytree: ``counted, new = odometer.spend(mechanism, steps)``, inside ``jit``, ``vmap`` and ``lax.scan``.
Odometers of mechanisms that answer once hold for interactive mechanisms side by side (Haney et al. (2023), as
:mod:`jaxacct.filters` says), where loss is measured by (epsilon, delta)-DP, f-DP or Rényi DP of a fixed order.

In reading order, each kind with its proofs before it:

- :class:`RenyiOdometer`, :class:`VilleOdometer`: Rényi divergences, for any mechanism.
- :class:`FilterOdometer`, :class:`MixtureOdometer`, :class:`StitchedOdometer`, :class:`RogersOdometer`: one number, for
  pure, approximate and concentrated mechanisms.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Float32, Int, Int32

from jaxacct import convert, validation
from jaxacct.filters import Cost, check_mechanism_delta, cost_of_runs, square, total_cost
from jaxacct.ledger import FIXED, Ledger, RenyiLedger, RenyiState, fixed_orders, open_sums, read_sum
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps, holds_one_way, parts_of
from jaxacct.menus.filter import MenuOdometer
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, float64_leaf, is_zero, kept_positive, kernel, leave_scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect_traced
from jaxacct.rounded_sum import LEAST_COST, RoundedSum, log_inverse_above, precise, rounding, rounding_of_one

__all__ = [
    "LECUYER_ORDERS",
    "FilterOdometer",
    "MenuOdometer",
    "MixtureOdometer",
    "RenyiOdometer",
    "RogersOdometer",
    "StitchedOdometer",
    "VilleOdometer",
]


# ----------------------------------------------------------------------------------------------------
# Odometers in Rényi divergence: bounds on the privacy loss that hold at every moment, for every mechanism.
#
# They add up the divergences of the releases at several orders, and read from the sums a loss that is ever exceeded
# with probability at most delta. :func:`most_steps`, which all odometers share, comes first: the steps that a reading
# allows. Then the proofs, :class:`RenyiOdometer` (Lécuyer 2021) and :class:`VilleOdometer` (a mixture over the orders).
# ----------------------------------------------------------------------------------------------------


def rounding_of_reading() -> float:
    """Returns the relative rounding of a reading: some tens of operations; the sums count their own."""
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

    # The search keeps the largest whole number below 2^30 that fits. Thirty halvings leave neighbours; any number of
    # them is sound, and any end up to 2^31, with which it fits int32.
    most = jnp.full((), 2.0**30)  # exp2 would not be exact
    return bisect_traced(
        fits, jnp.zeros(()), most, steps=30, middle=lambda one, other: jnp.floor((one + other) / 2)
    ).astype(jnp.int32)


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
authors' code and figures start at 2.25. Any orders above 1 are sound."""

VILLE_ORDERS: tuple[float, ...] = tuple(1 + 0.05 * 2.0**j for j in range(16))
"""Orders of :class:`VilleOdometer` by default: 1.05 to 1639, some near the best one for epsilon from 0.01 to 1000, for
a cost of log(16) beside log(1/delta). Any orders above 1 are sound.

Chosen by measuring: ratios from 1.35 to 3.5 between neighbours were tried on Gaussian, subsampled and
randomized-response runs, and 2 was within a few per cent of the best of them for each.
"""


def _reading_of(odometer: Ledger, log_inverse_delta: RoundedSum) -> list[tuple[str, Any]]:
    """Returns what a printed odometer begins with: what it reads; nothing of several that are stacked."""
    if any(leaf.ndim for leaf in jax.tree.leaves(log_inverse_delta)):
        return []
    return [("reading", float(odometer.epsilon()))]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _RenyiOdometer(RenyiLedger):
    has_budget: ClassVar[bool] = False

    def _account(self) -> list[tuple[str, Any]]:
        """Returns the reading, of an odometer that is not stacked."""
        return _reading_of(self, self.state.log_inverse_delta)

    @abc.abstractmethod
    def _reading(self, spent: Float[Array, " orders"]) -> Float[Array, ""]:
        """Returns the bound on the loss; inside the float64 scope."""

    @kernel
    def remaining(
        self, mechanism: Mechanism, epsilon: ArrayLike = math.inf, *, relation: Relation | None = None
    ) -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` keep the reading at or below ``epsilon``; int32, below 2^30.

        For the default epsilon that is the most there is, as an odometer has no budget. 0 if one run cannot be counted.
        """
        validation.check_epsilon(epsilon)
        return leave_scope(_count_affordable_runs(self, self.cost(mechanism, relation=relation), epsilon))

    def epsilon(self) -> Float[Array, ""]:
        """Returns the reading: the bound on the privacy loss of everything counted so far; float64, 0 at the start."""
        return leave_scope(_epsilon(self))


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
        tried = fixed_orders(orders)
        if base is None:
            seen = validation.concrete_value(delta)
            if seen is None:
                raise ValueError("base = None is made of delta, which is traced here: give base, a number.")
            base = math.log(2 * len(tried) / float(seen))
        validation.check_scalar(base, "base")
        validation.check_positive(base, "base")
        validation.check_scalar(growth, "growth")
        if not 1 < growth < math.inf:
            raise ValueError(f"growth = {growth} is no ratio of budgets: give a finite number above 1.")
        self._fill(_open(delta, len(tried)), tried, float(base), float(growth))

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
        tried = fixed_orders(orders)
        self._fill(_open(delta, len(tried)), tried)

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

        # Each step leaves the loss above the root, or where rounding moved it: the check below decides. So any number
        # of steps is sound: a test compares 12 with a bisection. A fixed number keeps the program short.
        root = jax.lax.fori_loop(0, 12, advance, jnp.where(start < jnp.inf, start, 1.0))
        reading = root + rounding_of_reading() * (root + (1 + target) / powers[0])
        # Rounding of the mixture's logarithm: a weight's, a share's and the sum's logarithms, and exponents up to
        # the target's size.
        enough = log_mixture(reading)[0] >= target + 64 * roundoff() * (1 + target)
        return jnp.where(enough & (start < jnp.inf), jnp.minimum(reading, start), start)


@kernel
def _open(delta: ArrayLike, orders: int) -> RenyiState:
    return open_sums(float64_leaf(delta), orders, None)


@kernel
@compiled
def _epsilon(odometer: _RenyiOdometer) -> Array:
    spent = odometer.state.total.value()
    reading = odometer._reading(spent)
    return jnp.where(jnp.all(spent == 0), 0.0, jnp.where(jnp.isnan(reading), jnp.inf, jnp.maximum(reading, 0.0)))


@kernel
@compiled
def _count_affordable_runs(odometer: _RenyiOdometer, curve: ArrayLike, epsilon: ArrayLike) -> Array:
    curve, old = precise(curve), odometer.state.total.value()
    possible = jnp.all(curve >= 0) & jnp.any(old + curve < jnp.inf)
    return jnp.where(
        possible, most_steps(lambda count, slack: odometer._reading((old + count * curve) * slack), epsilon), 0
    )


# ----------------------------------------------------------------------------------------------------
# Odometers of one number: time-uniform bounds on the privacy loss of pure, approximate and concentrated mechanisms.
#
# The supermartingale. Let the i-th mechanism be rho_i-zCDP given its past, v_i = 2 rho_i, V the sum of the v_i and L
# the privacy loss. Then ``exp(b (L - V/2) - b^2 V/2)`` is a supermartingale started at 1 for every b > 0, for ``E exp(b
# L_i) <= exp(b (b + 1) rho_i)``: around its drift V/2 the loss is sub-Gaussian with variance V. That drift is in every
# reading here, and must be: for randomized response the loss is a random walk of mean near epsilon^2/2 a step, and
# bounds without the drift are crossed almost surely in the end. Two special cases: epsilon-DP has rho = epsilon
# tanh(epsilon/2), v <= epsilon^2; the Gaussian mechanism v = 1/s^2. (A guarantee of one direction alone has rho =
# epsilon, as its loss may be epsilon surely.) In what follows M = L - V/2.
#
# Failure probabilities. For fixed neighbours a delta_i-approximate mechanism can be simulated by one that says
# everything with probability delta_i and is concentrated otherwise. While the delta_i sum to at most delta'', the
# simulation ever says everything with probability at most delta''; beyond, the reading is inf. Where delta_i > 0 the
# statement is about the loss of that simulation, so that what is released up to a reading of at most epsilon is
# (epsilon, delta)-DP; for delta_i = 0 it is about the loss of the mechanisms themselves.
#
# The boundaries u, with P(M ever exceeds u(V)) <= delta', l = log(1/delta'):
#
# * Filter: a line. With b = 2 d the supermartingale is exp(2 d (M - d V)), so that M ever exceeds ``c + d V`` with
#   probability at most e^(-2 c d). Tangent to sqrt(2 l V) at V = y: c = sqrt(l y/2), d = sqrt(l/(2 y)).
# * Mixture: the supermartingales averaged over b, half-normal of variance 1/rho, are ``2 sqrt(rho/(V + rho))
#   exp(z^2/2) Phi(z)``, z = M/sqrt(V + rho). With x = sqrt((V + rho)/rho)/(2 delta') and z^2 = 2 log(1 + x) that is
#   (1 + x) Phi(z)/(x delta') >= 1/delta', for 1 - Phi(z) <= e^(-z^2/2) = 1/(1 + x).
# * Stitched: lines for V in geometric epochs, with the probabilities of a convergent series (Howard et al. 2021,
#   equation (2)): ``1.7 sqrt(V (log log(2 V/v0) + 0.72 log(5.2/delta')))`` with V raised to at least v0.
# * Rogers: for V in [1/n^2, 1] ``sqrt(2 V (1 + log(3)/2) m)``, else ``sqrt(2 (1/n^2 + V) (1 + log(1 + n^2 V)/2) m)``, m
#   = log(2 log2(n)/delta'). Cut [1/n^2, 1] into 2 log2(n) dyadic epochs, rounded up. Over one of them a line that
#   touches sqrt(2 k V) in its middle stays below 1.0151 times it, so that the first boundary lies above the line for k
#   = 1.503 m: an epoch costs e^(-1.503 m), all of them at most 0.6 delta' for n >= 4. The second lies above the mixture
#   that costs e^(-m) <= delta'/4, for m >= 1.
#
# Growth of the boundaries with V. The line, the mixture (log(1 + x) and V + rho grow) and the stitched boundary (log
# log 2 + 0.72 log 5.2 > 0, and both factors grow) rise. Rogers' does not: at V = 1/n^2 its square falls from (4 + 2 log
# 2) m/n^2 to (2 + log 3) m/n^2. Within [1/n^2, 1] it rises, so does its second formula for every V, and at V = 1 that
# one is the larger, for 2 (1 + log(1 + n^2)/2) > 2 + log 3. So the largest value up to V is u(V), or, if V began below
# 1/n^2 and came to it, u(V) or that at 1/n^2 from below: :meth:`_TimeUniformOdometer.remaining` takes the larger.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class TimeUniformState:
    """Counts of a time-uniform odometer; float32 leaves.

    Attributes:
        variance (): V, the sum of the v_i, rounded up.
        drift (): the sum of the drifts, which is added to the boundary, rounded up: V/2 or more.
        delta_total (): the mechanisms' own failure probabilities, summed and rounded up.
        delta_budget (): delta'', the most that they may sum to.
        log_inverse_delta (): log(1/delta').
        start (): the v_i of the first mechanism that was not free, 0 before it.
    """

    variance: RoundedSum
    drift: RoundedSum
    delta_total: RoundedSum
    delta_budget: RoundedSum = field(metadata=FIXED)
    log_inverse_delta: RoundedSum = field(metadata=FIXED)
    start: Float32[Array, ""]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _TimeUniformOdometer(Ledger):
    has_budget: ClassVar[bool] = False

    state: TimeUniformState

    def _account(self) -> list[tuple[str, Any]]:
        """Returns the reading, of an odometer that is not stacked."""
        return _reading_of(self, self.state.log_inverse_delta)

    @abc.abstractmethod
    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        """Returns u(V); inside the float64 scope."""

    def _highest(
        self, since: Float[Array, ""], variance: Float[Array, ""], start: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Returns the largest u between two values of V: at the latter, unless a subclass's boundary ever falls."""
        return self._boundary(variance, start)

    def _numbers(self, mechanism: Mechanism, relation: Relation) -> Cost:
        """Returns v, the drift and the failure probability of one run."""
        rho, delta = convert.mechanism_to_zcdp(mechanism, relation=relation)
        return *_double(rho), delta

    @kernel
    def cost(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Cost:
        """Returns v, the drift and the failure probability of one run, float64, for :meth:`spend_cost`."""
        return tuple(map(as_float64, self._numbers(mechanism, relation or self.relation)))

    @kernel
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation | None = None
    ) -> tuple[Bool[Array, ""], Self]:
        cost = total_cost(lambda each: self.cost(each, relation=relation), mechanism, steps)
        first = parts_of(mechanism, steps)[0][0]
        granted, state = _add_cost(self.state, cost, self.cost(first, relation=relation)[0])
        return granted, self._with(state)

    @kernel
    def spend_cost(self, cost: Cost, steps: ArrayLike = 1) -> tuple[Bool[Array, ""], Self]:
        granted, state = _add_cost(self.state, cost_of_runs(cost, steps), cost[0])
        return granted, self._with(state)

    @kernel
    def remaining(
        self, mechanism: Mechanism, epsilon: ArrayLike = math.inf, *, relation: Relation | None = None
    ) -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` keep the reading at or below ``epsilon``; int32, below 2^30.

        The reading is there after each of them, also if they come one by one. For the default epsilon that is the most
        there is, as an odometer has no budget. 0 if one run cannot be counted.
        """
        validation.check_epsilon(epsilon)
        return leave_scope(_time_uniform_remaining(self, self.cost(mechanism, relation=relation), epsilon))

    def epsilon(self) -> Float[Array, ""]:
        """Returns the reading: the bound on the privacy loss of everything counted so far; float64, 0 at the start."""
        return leave_scope(_time_uniform_epsilon(self))

    @property
    def spent(self) -> Float[Array, ""]:
        """V, the variance counted so far, rounded up; float64."""
        return read_sum(self.state.variance)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class FilterOdometer(_TimeUniformOdometer):
    """Odometer whose reading bounds, at every moment, the privacy loss so far, and is tightest where it is ``epsilon``.

    Args:
        delta (): failure probability, all included; traced values out of range read inf.
        epsilon: where the reading is as tight as a filter of that budget, above 0; static.
        mechanism_delta (): the part of delta that is kept for the mechanisms' own failure probabilities; above 0 only
            where some of them are (epsilon, delta)-DP with a delta of their own.

    It takes the mechanisms of :func:`.convert.mechanism_to_zcdp`. A pytree of float32 leaves; sums are rounded up.

    Formal guarantee: however mechanisms are chosen from earlier results, for any two neighbours of the relation asked
    for, the privacy loss *ever* exceeds :meth:`epsilon` with probability at most delta (where mechanisms fail with a
    probability of their own, see the proofs before the class). What is released up to a moment, itself chosen by
    looking at everything, at which it reads at most a fixed epsilon is (epsilon, delta)-DP.

    Source: Whitehouse, Ramdas, Rogers and Wu (2023), "Fully-adaptive composition in differential privacy", filter
    odometer; proof before the class.

    >>> import jaxacct as ja
    >>> _, odometer = FilterOdometer(delta=1e-6, epsilon=6.0).spend(ja.PureDP(0.1), steps=100)
    >>> round(float(odometer.epsilon()), 3)
    5.758
    """

    tightest_at: float

    def __init__(self, delta: ArrayLike, epsilon: float = 1.0, mechanism_delta: ArrayLike = 0.0) -> None:
        validation.check_scalar(epsilon, "epsilon")
        validation.check_positive(epsilon, "epsilon")
        self._fill(_open_time_uniform(delta, mechanism_delta), float(epsilon))

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        log_inverse = self.state.log_inverse_delta.value()
        root = 2 * self.tightest_at / (jnp.sqrt(2 * log_inverse + 2 * self.tightest_at) + jnp.sqrt(2 * log_inverse))
        return jnp.sqrt(log_inverse / 2) * (root + variance / root)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class MixtureOdometer(_TimeUniformOdometer):
    """Odometer by the conjugate mixture: its reading bounds, at every moment, the privacy loss so far.

    Args:
        delta (): as of :class:`FilterOdometer`.
        rho: of the mixture, above 0; static. The reading is tightest near V = rho (2 log(1/delta) + log log(1/delta)).
            The default of 0.04 suits V around 1.
        mechanism_delta (): likewise.

    Guarantee, mechanisms, errors and source are those of :class:`FilterOdometer`.

    >>> import jaxacct as ja
    >>> _, odometer = MixtureOdometer(delta=1e-6).spend(ja.PureDP(0.1), steps=100)
    >>> round(float(odometer.epsilon()), 3)
    6.037
    """

    rho: float

    def __init__(self, delta: ArrayLike, rho: float = 0.04, mechanism_delta: ArrayLike = 0.0) -> None:
        validation.check_scalar(rho, "rho")
        validation.check_positive(rho, "rho")
        self._fill(_open_time_uniform(delta, mechanism_delta), float(rho))

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        x = jnp.sqrt(variance / self.rho + 1) / 2 * jnp.exp(self.state.log_inverse_delta.value())
        return jnp.sqrt(2 * jnp.log1p(x) * (variance + self.rho))


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class StitchedOdometer(_TimeUniformOdometer):
    """Stitched odometer: its reading bounds the privacy loss so far at every moment, and grows like sqrt(V log log V).

    Args:
        delta (): as of :class:`FilterOdometer`.
        start: v0, the variance from which on the boundary is meant, above 0; static. By default the v of the first
            mechanism, epsilon_1^2, as in the paper. That one was chosen before anything was released; so v0 is fixed in
            advance.
        mechanism_delta (): likewise.

    Guarantee, mechanisms, errors and source are those of :class:`FilterOdometer`; boundary, Howard, Ramdas, McAuliffe
    and Sekhon (2021), "Time-uniform, nonparametric, nonasymptotic confidence sequences", equation (2).

    >>> import jaxacct as ja
    >>> _, odometer = StitchedOdometer(delta=1e-6).spend(ja.PureDP(0.1), steps=100)
    >>> round(float(odometer.epsilon()), 3)
    6.58
    """

    least_variance: float | None

    def __init__(self, delta: ArrayLike, start: float | None = None, mechanism_delta: ArrayLike = 0.0) -> None:
        if start is not None:
            validation.check_scalar(start, "start")
            validation.check_positive(start, "start")
        self._fill(_open_time_uniform(delta, mechanism_delta), None if start is None else float(start))

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        least = as_float64(start if self.least_variance is None else self.least_variance)
        variance = jnp.maximum(variance, least)
        epochs = jnp.log(jnp.log(2 * variance / least))
        return 1.7 * jnp.sqrt(variance * (epochs + 0.72 * (math.log(5.2) + self.state.log_inverse_delta.value())))


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class RogersOdometer(_TimeUniformOdometer):
    """First odometer, for comparison: its reading bounds, at every moment, the privacy loss so far.

    Args:
        delta (): as of :class:`FilterOdometer`.
        examples: n, the size of the data set, at least 4; it sets the range of V, 1/n^2 to 1, that the boundary is
            meant for; static.
        mechanism_delta (): likewise; half of delta in the paper.

    It takes the mechanisms of :func:`.convert.mechanism_to_dp`; V is the sum of the epsilon_i^2 and the drift that of
    epsilon_i (e^epsilon_i - 1)/2. The paper is about guarantees of both directions; one of a single direction
    (:class:`.PureDP` or :class:`.ApproximateDP` under "remove" or "add") adds 2 epsilon_i to V and epsilon_i to the
    drift. Guarantee and errors are those of :class:`FilterOdometer`.

    Source: Rogers, Roth, Ullman and Vadhan (2016), "Privacy odometers and filters: pay-as-you-go composition", Theorem
    6.5; proof of the constants before :class:`FilterOdometer`.

    >>> import jaxacct as ja
    >>> _, odometer = RogersOdometer(delta=1e-6, examples=1000).spend(ja.PureDP(0.1), steps=100)
    >>> round(float(odometer.epsilon()), 3)
    7.743
    """

    examples: int

    def __init__(self, delta: ArrayLike, examples: int = 1000, mechanism_delta: ArrayLike = 0.0) -> None:
        examples = validation.check_whole(examples, "examples", 4, 2**53, "the number of examples in the data set")
        self._fill(_open_time_uniform(delta, mechanism_delta), int(examples))

    def _numbers(self, mechanism: Mechanism, relation: Relation) -> Cost:
        if holds_one_way(mechanism, relation):
            return super()._numbers(mechanism, relation)
        epsilon, delta = convert.mechanism_to_dp(mechanism, relation=relation)
        return *_rogers_cost(epsilon), delta

    def _scale(self) -> Float[Array, ""]:
        return math.log(2 * math.log2(self.examples)) + self.state.log_inverse_delta.value()

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        least, scale = float(self.examples) ** -2, self._scale()
        # The last epoch may end a rounding later: sums are rounded up, and the proof has a third of delta' to spare.
        is_inner = (variance >= least) & (variance <= 1 + 2.0**-30)
        inside = 2 * variance * (1 + math.log(3) / 2) * scale
        beyond = 2 * (least + variance) * (1 + jnp.log1p(variance / least) / 2) * scale
        return jnp.sqrt(jnp.where(is_inner, inside, beyond))

    def _highest(
        self, since: Float[Array, ""], variance: Float[Array, ""], start: Float[Array, ""]
    ) -> Float[Array, ""]:
        least = float(self.examples) ** -2
        came = (since < least) & (variance >= least)
        # The limit of the second formula as V comes to 1/n^2 from below.
        before = jnp.sqrt(2 * (2 * least) * (1 + math.log(2) / 2) * self._scale()) * (1 + rounding_of_reading())
        return jnp.maximum(self._boundary(variance, start), jnp.where(came, before, 0.0))


@kernel
@compiled
def _double(rho: ArrayLike) -> tuple[Array, Array]:
    rho = as_float64(rho)
    return 2 * rho, rho


@kernel
@compiled
def _rogers_cost(epsilon: ArrayLike) -> tuple[Array, Array]:
    epsilon = as_float64(epsilon)
    drift = jnp.maximum(epsilon * jnp.expm1(epsilon) / 2 * (1 + 16 * roundoff()), LEAST_COST)
    return square(epsilon), jnp.where(is_zero(epsilon), 0.0, drift)


def _open_time_uniform(delta: ArrayLike, own: ArrayLike) -> TimeUniformState:
    validation.check_delta(delta)
    check_mechanism_delta(own, delta)
    return _time_uniform_state(delta, own)


@kernel
@compiled
def _time_uniform_state(delta: ArrayLike, own: ArrayLike) -> TimeUniformState:
    delta, own = as_float64(delta), as_float64(own)
    left = jnp.where(own == 0, delta, (delta - own) * (1 - rounding()))
    valid = (delta > 0) & (delta < 1) & (own >= 0) & (left > 0)
    log_inverse = log_inverse_above(jnp.where(valid, left, 0.0))
    nothing = RoundedSum.above(0.0)
    kept = RoundedSum.below(jnp.where(valid, own, 0.0))
    return TimeUniformState(nothing, nothing, nothing, kept, RoundedSum.above(log_inverse), jnp.zeros((), jnp.float32))


@kernel
@compiled
def _add_cost(state: TimeUniformState, cost: Cost, first: ArrayLike) -> tuple[Array, TimeUniformState]:
    added = [as_float64(each) for each in cost]
    old = (state.variance, state.drift, state.delta_total)
    new = [total.plus(each) for total, each in zip(old, added, strict=True)]
    granted = jnp.array(True)
    for each, total in zip(added, new, strict=True):
        granted = granted & (each >= 0) & ((total < jnp.inf) | (each == 0))
    sums = [
        total.replace_where(value, granted & (each != 0)) for total, value, each in zip(old, new, added, strict=True)
    ]
    # A sequence in one call does not show which of its mechanisms is the first that is not free: its first entry
    # counts, or, where that is free, all of it at once.
    step = jnp.ravel(as_float64(first))[0]
    opens = granted & (state.start == 0) & (added[0] > 0)
    chosen = jnp.where(step > 0, step, added[0]).astype(jnp.float32)
    start = jnp.where(opens, jnp.maximum(chosen, jnp.float32(2.0**-100)), state.start)
    return granted, replace(state, variance=sums[0], drift=sums[1], delta_total=sums[2], start=start)


def _read_boundary(
    odometer: _TimeUniformOdometer, boundary: Array, variance: Array, drift: Array, delta: Array
) -> Array:
    state = odometer.state
    reading = (boundary + drift) * (1 + rounding_of_reading())
    # Once the mechanisms' own failures may exceed their part of delta nothing is promised: the reading is inf.
    fits = (delta <= state.delta_budget.value()) & (state.log_inverse_delta.value() < jnp.inf)
    known = fits & (reading >= 0)
    return jnp.where(variance + drift + delta == 0, 0.0, jnp.where(known, reading, jnp.inf))


@kernel
@compiled
def _time_uniform_epsilon(odometer: _TimeUniformOdometer) -> Array:
    state = odometer.state
    variance, drift, delta = (total.value() for total in (state.variance, state.drift, state.delta_total))
    return _read_boundary(odometer, odometer._boundary(variance, as_float64(state.start)), variance, drift, delta)


@kernel
@compiled
def _time_uniform_remaining(odometer: _TimeUniformOdometer, cost: Cost, epsilon: ArrayLike) -> Array:
    state = odometer.state
    each = [kept_positive(as_float64(value), LEAST_COST) for value in cost]
    old = [total.value() for total in (state.variance, state.drift, state.delta_total)]
    start = jnp.where(state.start > 0, as_float64(state.start), each[0])
    possible = (each[0] >= 0) & (each[0] < jnp.inf) & (each[2] >= 0)

    def reading(count: Array, slack: Array) -> Array:
        now = [(have + count * more) * slack for have, more in zip(old, each, strict=True)]
        return _read_boundary(odometer, odometer._highest(old[0], now[0], start), *now)

    return jnp.where(possible, most_steps(reading, epsilon), 0)
