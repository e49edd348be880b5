"""Odometers of one number: time-uniform bounds on the privacy loss of pure, approximate and concentrated mechanisms.

The supermartingale. Let the i-th mechanism be rho_i-zCDP given its past, v_i = 2 rho_i, V the sum of the v_i and L the
privacy loss. Then ``exp(b (L - V/2) - b^2 V/2)`` is a supermartingale started at 1 for every b > 0, for
``E exp(b L_i) <= exp(b (b + 1) rho_i)``: around its drift V/2 the loss is sub-Gaussian with variance V. That drift is
in every reading here, and must be: for randomized response the loss is a random walk of mean near epsilon^2/2 a step,
and bounds without the drift are crossed almost surely in the end. Two special cases: epsilon-DP has rho = epsilon
tanh(epsilon/2), v <= epsilon^2; the Gaussian mechanism v = 1/s^2. In what follows M = L - V/2.

Failure probabilities. For fixed neighbours a delta_i-approximate mechanism can be simulated by one that says everything
with probability delta_i and is concentrated otherwise. While the delta_i sum to at most delta'', the simulation ever
says everything with probability at most delta''; beyond, the reading is inf. Where delta_i > 0 the statement is about
the loss of that simulation, so that what is released up to a reading of at most epsilon is (epsilon, delta)-DP; for
delta_i = 0 it is about the loss of the mechanisms themselves.

The boundaries u, with P(M ever exceeds u(V)) <= delta', l = log(1/delta'):

* Filter: a line. With b = 2 d the supermartingale is exp(2 d (M - d V)), so that M ever exceeds ``c + d V`` with
  probability at most e^(-2 c d). Tangent to sqrt(2 l V) at V = y: c = sqrt(l y/2), d = sqrt(l/(2 y)).
* Mixture: the supermartingales averaged over b, half-normal of variance 1/rho, are ``2 sqrt(rho/(V + rho))
  exp(z^2/2) Phi(z)``, z = M/sqrt(V + rho). With x = sqrt((V + rho)/rho)/(2 delta') and z^2 = 2 log(1 + x) that is
  (1 + x) Phi(z)/(x delta') >= 1/delta', for 1 - Phi(z) <= e^(-z^2/2) = 1/(1 + x).
* Stitched: lines for V in geometric epochs, with the probabilities of a convergent series (Howard et al. 2021, equation
  (2)): ``1.7 sqrt(V (log log(2 V/v0) + 0.72 log(5.2/delta')))`` with V raised to at least v0.
* Rogers: for V in [1/n^2, 1] ``sqrt(2 V (1 + log(3)/2) m)``, else ``sqrt(2 (1/n^2 + V) (1 + log(1 + n^2 V)/2) m)``,
  m = log(2 log2(n)/delta'). Cut [1/n^2, 1] into 2 log2(n) dyadic epochs, rounded up. Over one of them a line that
  touches sqrt(2 k V) in its middle stays below 1.0151 times it, so that the first boundary lies above the line for
  k = 1.503 m: an epoch costs e^(-1.503 m), all of them at most 0.6 delta' for n >= 4. The second lies above the mixture
  that costs e^(-m) <= delta'/4, for m >= 1.

Growth of the boundaries with V. The line, the mixture (log(1 + x) and V + rho grow) and the stitched boundary (log log
2 + 0.72 log 5.2 > 0, and both factors grow) rise. Rogers' does not: at V = 1/n^2 its square falls from (4 + 2 log 2)
m/n^2 to (2 + log 3) m/n^2. Within [1/n^2, 1] it rises, so does its second formula for every V, and at V = 1 that one is
the larger, for 2 (1 + log(1 + n^2)/2) > 2 + log 3. So the largest value up to V is u(V), or, if V began below 1/n^2 and
came to it, u(V) or that at 1/n^2 from below: :meth:`_TimeUniformOdometer.remaining` takes the larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Float32, Int

from jaxacct import convert, validation
from jaxacct.filters.additive import Cost, squared, total_cost
from jaxacct.ledger import Ledger
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps, listed
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, in_float64, is_zero, kept_positive, outside
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.odometers.renyi import most_steps, rounding_of_reading
from jaxacct.rounded_sum import LEAST_COST, RoundedSum, log_inverse_above, rounding


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
    delta_budget: RoundedSum
    log_inverse_delta: RoundedSum
    start: Float32[Array, ""]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _TimeUniformOdometer(Ledger):
    has_budget: ClassVar[bool] = False

    state: TimeUniformState

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        """Returns u(V); inside the float64 scope."""
        raise NotImplementedError

    def _highest(
        self, since: Float[Array, ""], variance: Float[Array, ""], start: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Returns the largest u between two values of V: at the latter, unless a subclass's boundary ever falls."""
        return self._boundary(variance, start)

    def _cost(self, mechanism: Mechanism, relation: Relation) -> Cost:
        """Returns v, the drift and the failure probability of one run."""
        rho, delta = convert.mechanism_to_zcdp(mechanism, relation=relation)
        return *_doubled(rho), delta

    @in_float64
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation = "add_or_remove"
    ) -> tuple[Bool[Array, ""], Self]:
        cost = total_cost(lambda each: self._cost(each, relation), mechanism, steps)
        first = listed(mechanism, steps)[0][0]
        granted, state = _spend(self.state, cost, self._cost(first, relation)[0])
        return granted, self._with(state)

    @in_float64
    def remaining(
        self, mechanism: Mechanism, epsilon: ArrayLike = math.inf, *, relation: Relation = "add_or_remove"
    ) -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` keep the reading at or below ``epsilon``; int32, below 2^30.

        The reading is there after each of them, also if they come one by one. For the default epsilon that is the most
        there is, as an odometer has no budget. 0 if one run cannot be counted.
        """
        validation.check_epsilon(epsilon)
        return outside(_remaining(self, self._cost(mechanism, relation), epsilon))

    def epsilon(self) -> Float[Array, ""]:
        """Returns the reading: the bound on the privacy loss of everything counted so far; float64, 0 at the start."""
        return outside(_epsilon(self))

    @property
    def spent(self) -> Float[Array, ""]:
        """V, the variance counted so far, rounded up; float64."""
        return outside(_value(self.state.variance))


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
    probability of their own, see the module's docstring). What is released up to a moment, itself chosen by looking at
    everything, at which it reads at most a fixed epsilon is (epsilon, delta)-DP.

    Source: Whitehouse, Ramdas, Rogers and Wu (2023), "Fully-adaptive composition in differential privacy", filter
    odometer; proof in the module's docstring.

    >>> import jaxacct as ja
    >>> _, odometer = FilterOdometer(delta=1e-6, epsilon=6.0).spend(ja.PureDP(0.1), steps=100)
    >>> round(float(odometer.epsilon()), 3)
    5.758
    """

    tightest_at: float

    def __init__(self, delta: ArrayLike, epsilon: float = 1.0, mechanism_delta: ArrayLike = 0.0) -> None:
        validation.check_positive(epsilon, "epsilon")
        self._fill(_opened(delta, mechanism_delta), float(epsilon))

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
        validation.check_positive(rho, "rho")
        self._fill(_opened(delta, mechanism_delta), float(rho))

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

    given: float | None

    def __init__(self, delta: ArrayLike, start: float | None = None, mechanism_delta: ArrayLike = 0.0) -> None:
        if start is not None:
            validation.check_positive(start, "start")
        self._fill(_opened(delta, mechanism_delta), None if start is None else float(start))

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        least = as_float64(start if self.given is None else self.given)
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
    epsilon_i (e^epsilon_i - 1)/2. Guarantee and errors are those of :class:`FilterOdometer`.

    Source: Rogers, Roth, Ullman and Vadhan (2016), "Privacy odometers and filters: pay-as-you-go composition", Theorem
    6.5; proof of the constants in the module's docstring.

    >>> import jaxacct as ja
    >>> _, odometer = RogersOdometer(delta=1e-6, examples=1000).spend(ja.PureDP(0.1), steps=100)
    >>> round(float(odometer.epsilon()), 3)
    7.743
    """

    examples: int

    def __init__(self, delta: ArrayLike, examples: int = 1000, mechanism_delta: ArrayLike = 0.0) -> None:
        validation.check_whole(examples, "examples", 4, 2**53, "the number of examples in the data set")
        self._fill(_opened(delta, mechanism_delta), int(examples))

    def _cost(self, mechanism: Mechanism, relation: Relation) -> Cost:
        epsilon, delta = convert.mechanism_to_dp(mechanism, relation=relation)
        return *_rogers_cost(epsilon), delta

    def _scale(self) -> Float[Array, ""]:
        return math.log(2 * math.log2(self.examples)) + self.state.log_inverse_delta.value()

    def _boundary(self, variance: Float[Array, ""], start: Float[Array, ""]) -> Float[Array, ""]:
        least, scale = float(self.examples) ** -2, self._scale()
        # The last epoch may end a rounding later: sums are rounded up, and the proof has a third of delta' to spare.
        within = (variance >= least) & (variance <= 1 + 2.0**-30)
        inside = 2 * variance * (1 + math.log(3) / 2) * scale
        beyond = 2 * (least + variance) * (1 + jnp.log1p(variance / least) / 2) * scale
        return jnp.sqrt(jnp.where(within, inside, beyond))

    def _highest(
        self, since: Float[Array, ""], variance: Float[Array, ""], start: Float[Array, ""]
    ) -> Float[Array, ""]:
        least = float(self.examples) ** -2
        came = (since < least) & (variance >= least)
        # The limit of the second formula as V comes to 1/n^2 from below.
        before = jnp.sqrt(2 * (2 * least) * (1 + math.log(2) / 2) * self._scale()) * (1 + rounding_of_reading())
        return jnp.maximum(self._boundary(variance, start), jnp.where(came, before, 0.0))


_value = in_float64(RoundedSum.value)
"""The value of a sum that is kept in two float32, from outside the float64 scope."""


@in_float64(by_programs=True)
@compiled
def _doubled(rho: ArrayLike) -> tuple[Array, Array]:
    rho = as_float64(rho)
    return 2 * rho, rho


@in_float64(by_programs=True)
@compiled
def _rogers_cost(epsilon: ArrayLike) -> tuple[Array, Array]:
    epsilon = as_float64(epsilon)
    drift = jnp.maximum(epsilon * jnp.expm1(epsilon) / 2 * (1 + 16 * roundoff()), LEAST_COST)
    return squared(epsilon), jnp.where(is_zero(epsilon), 0.0, drift)


def _opened(delta: ArrayLike, own: ArrayLike) -> TimeUniformState:
    validation.check_delta(delta)
    validation.check_probability(own, "mechanism_delta")
    kept, whole = validation.concrete_value(own), validation.concrete_value(delta)
    if kept is not None and whole is not None and not kept < whole:
        raise ValueError(f"mechanism_delta = {own} leaves nothing of delta = {delta} for the loss: give less.")
    return _open(delta, own)


@in_float64(by_programs=True)
@compiled
def _open(delta: ArrayLike, own: ArrayLike) -> TimeUniformState:
    delta, own = as_float64(delta), as_float64(own)
    left = jnp.where(own == 0, delta, (delta - own) * (1 - rounding()))
    valid = (delta > 0) & (delta < 1) & (own >= 0) & (left > 0)
    log_inverse = log_inverse_above(jnp.where(valid, left, 0.0))
    nothing = RoundedSum.above(0.0)
    kept = RoundedSum.below(jnp.where(valid, own, 0.0))
    return TimeUniformState(nothing, nothing, nothing, kept, RoundedSum.above(log_inverse), jnp.zeros((), jnp.float32))


@in_float64(by_programs=True)
@compiled
def _spend(state: TimeUniformState, cost: Cost, first: ArrayLike) -> tuple[Array, TimeUniformState]:
    added = [as_float64(each) for each in cost]
    old = (state.variance, state.drift, state.delta_total)
    new = [total.plus(each) for total, each in zip(old, added, strict=True)]
    granted = jnp.array(True)
    for each, total in zip(added, new, strict=True):
        granted = granted & (each >= 0) & ((total < jnp.inf) | (each == 0))
    sums = [total.replaced(value, granted & (each != 0)) for total, value, each in zip(old, new, added, strict=True)]
    # Within a sequence in one call the first mechanism that is not free cannot be told apart: the sequence's first
    # entry counts, or, where that is free, all of it at once.
    step = jnp.ravel(as_float64(first))[0]
    opens = granted & (state.start == 0) & (added[0] > 0)
    chosen = jnp.where(step > 0, step, added[0]).astype(jnp.float32)
    start = jnp.where(opens, jnp.maximum(chosen, jnp.float32(2.0**-100)), state.start)
    return granted, replace(state, variance=sums[0], drift=sums[1], delta_total=sums[2], start=start)


def _read(odometer: _TimeUniformOdometer, boundary: Array, variance: Array, drift: Array, delta: Array) -> Array:
    state = odometer.state
    reading = (boundary + drift) * (1 + rounding_of_reading())
    # Once the mechanisms' own failures may exceed their part of delta nothing is promised: the reading is inf.
    within = (delta <= state.delta_budget.value()) & (state.log_inverse_delta.value() < jnp.inf)
    known = within & (reading >= 0)
    return jnp.where(variance + drift + delta == 0, 0.0, jnp.where(known, reading, jnp.inf))


@in_float64(by_programs=True)
@compiled
def _epsilon(odometer: _TimeUniformOdometer) -> Array:
    state = odometer.state
    variance, drift, delta = (total.value() for total in (state.variance, state.drift, state.delta_total))
    return _read(odometer, odometer._boundary(variance, as_float64(state.start)), variance, drift, delta)


@in_float64(by_programs=True)
@compiled
def _remaining(odometer: _TimeUniformOdometer, cost: Cost, epsilon: ArrayLike) -> Array:
    state = odometer.state
    each = [kept_positive(as_float64(value), LEAST_COST) for value in cost]
    old = [total.value() for total in (state.variance, state.drift, state.delta_total)]
    start = jnp.where(state.start > 0, as_float64(state.start), each[0])
    possible = (each[0] >= 0) & (each[0] < jnp.inf) & (each[2] >= 0)

    def reading(count: Array, slack: Array) -> Array:
        now = [(have + count * more) * slack for have, more in zip(old, each, strict=True)]
        return _read(odometer, odometer._highest(old[0], now[0], start), *now)

    return jnp.where(possible, most_steps(reading, epsilon), 0)
