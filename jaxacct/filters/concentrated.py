"""Filters of concentrated and of approximate differential privacy: they add up rho, and failure probabilities.

Let rho_i bound, for every order a, the divergence of the i-th mechanism by rho_i a, given what came before. If the
rho_i sum to at most rho on every path, Theorem 1 of Lécuyer (2021) says at *each* order a that the whole has a
divergence of at most rho a: every order is kept, none has to be selected, the whole is rho-zCDP, and any conversion
from zCDP holds as if nothing had been adaptive. Failure probabilities of approximate zCDP add up (Bun and Steinke 2016,
Lemma 8.2, with the events conditioned on the past).

An (epsilon, delta)-DP mechanism is delta-approximately epsilon^2/2-zCDP: for two fixed neighbours it is a
post-processing of randomized response that says everything with probability delta (Kairouz, Oh and Viswanath 2015).
With rho = sum of epsilon_i^2/2 and Mironov's rule, epsilon = rho + 2 sqrt(rho log(1/delta')), this is the filter of
Whitehouse et al. (2023): sqrt(2 log(1/delta') sum epsilon_i^2) + sum epsilon_i^2 / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct import convert, validation
from jaxacct.convert import METHODS
from jaxacct.filters.additive import AdditiveFilter, AdditiveState, Cost, open_state, squared
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, in_float64, outside
from jaxacct.numerics.programs import compiled
from jaxacct.rounded_sum import log_inverse_above, rounding

NARROWEST, WIDEST, TRIED = 1 / 64, 4.0, 64
"""Factors of Mironov's best order - 1 that are tried for the largest budget, and how many: the optimum is flat. Sound
for any value: each order tried is a proof."""

LEAST = {"optimal": "optimal", "closed": "f", "improved": "g"}
"""Lower bound on a divergence (:func:`.convert.least_rdp`) that belongs to each conversion; any of them is safe."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class _ConcentratedFilter(AdditiveFilter):
    conversion: str

    def _open(self, epsilon: ArrayLike, delta: ArrayLike, mechanism_delta: ArrayLike, conversion: str) -> None:
        validation.check_epsilon(epsilon)
        validation.check_delta(delta)
        validation.check_probability(mechanism_delta, "mechanism_delta")
        validation.check_one_of(conversion, "conversion", METHODS)
        own, whole = validation.concrete_value(mechanism_delta), validation.concrete_value(delta)
        if own is not None and whole is not None and not own < whole:
            raise ValueError(
                f"mechanism_delta = {mechanism_delta} leaves nothing of delta = {delta} for the composition: give less."
            )
        self._fill(_opened(epsilon, delta, mechanism_delta, conversion), conversion)

    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, at the filter's delta; float64.

        It is an upper bound for releases fixed in advance, 0 before the first. It is no guarantee at a moment chosen
        because it looks good: then the budget is what holds, or an odometer (:mod:`jaxacct.odometers`).
        """
        return outside(_epsilon(self.state, self.conversion))


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
    be zCDP, and whatever has an epsilon of its own. :attr:`budget` and :attr:`spent` are in units of rho.

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

    def _cost(self, mechanism: Mechanism, relation: Relation) -> Cost:
        return convert.mechanism_to_zcdp(mechanism, relation=relation)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False, repr=False)
class ApproximateDPFilter(_ConcentratedFilter):
    """Filter of (epsilon_n, delta_n)-DP releases, adaptively chosen: together they stay (epsilon, delta)-DP.

    Args:
        epsilon (): the budget, fixed before the first release.
        delta (): its failure probability, all included: delta' + delta'' of the theorem.
        mechanism_delta (): delta'', the most that the delta_n may sum to. Half of delta by default; 0 for pure
            mechanisms.
        conversion: "mironov" is the theorem, ``sqrt(2 log(1/delta') sum epsilon_n^2) + sum epsilon_n^2 / 2``; the
            tighter ones of :data:`.convert.METHODS` hold as well (see the module's docstring); static.

    It takes the mechanisms of :func:`.convert.mechanism_to_dp`. :attr:`budget` and :attr:`spent` are in units of
    ``sum epsilon_n^2 / 2``. :class:`ZCDPFilter` takes them too and grants a little more, as it charges epsilon_n
    tanh(epsilon_n / 2).

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
        if mechanism_delta is None:
            validation.check_delta(delta)
            mechanism_delta = _half(delta)
        self._open(epsilon, delta, mechanism_delta, conversion)

    def _cost(self, mechanism: Mechanism, relation: Relation) -> Cost:
        epsilon, delta = convert.mechanism_to_dp(mechanism, relation=relation)
        return _half_square(epsilon), delta


@in_float64
def _half(delta: ArrayLike) -> Any:
    return outside(as_float64(delta) / 2)


@in_float64(by_programs=True)
@compiled
def _half_square(epsilon: ArrayLike) -> Array:
    return squared(as_float64(epsilon)) / 2


@in_float64
def _opened(epsilon: ArrayLike, delta: ArrayLike, own: ArrayLike, conversion: str) -> AdditiveState:
    return _open(as_float64(epsilon), as_float64(delta), as_float64(own), conversion)


@compiled(static=("conversion",))
def _open(epsilon: Array, delta: Array, own: Array, conversion: str) -> AdditiveState:
    left = jnp.where(own == 0, delta, (delta - own) * (1 - rounding()))
    valid = (epsilon >= 0) & (delta > 0) & (delta < 1) & (own >= 0) & (left > 0)
    finite = jnp.where(valid & (epsilon < jnp.inf), epsilon, 1.0)
    budget = rho_budget(finite, jnp.where(valid, left, 0.5), conversion)
    return open_state(jnp.where(epsilon == jnp.inf, jnp.inf, budget), left, own, valid)


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
    factors = jnp.exp(jnp.linspace(jnp.log(NARROWEST), jnp.log(WIDEST), TRIED))
    orders = 1 + power * factors
    each = as_float64(convert.least_rdp(epsilon, delta, orders, LEAST[conversion])) / orders
    # A NaN proves nothing, and counts as a budget of 0.
    return jnp.maximum(jnp.max(jnp.where(each >= 0, each, 0.0)) * (1 - 8 * roundoff()), mironov)


@in_float64(by_programs=True)
@compiled(static=("conversion",))
def _epsilon(state: AdditiveState, conversion: str) -> Array:
    rho = state.total.value()
    log_inverse = state.log_inverse_delta.value()
    delta = jnp.exp(-log_inverse) * (1 - 8 * rounding())
    found = as_float64(convert.zcdp_to_epsilon(rho, jnp.where(delta > 0, delta, 0.5), conversion))
    return jnp.where((rho == 0) | (delta > 0), jnp.where(rho == 0, 0.0, found), jnp.inf)
