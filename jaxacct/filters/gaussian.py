"""The filter of Gaussian differential privacy: it adds up mu^2, and is tight for Gaussian noise.

Why adaptivity costs nothing. Fix two neighbours. A mu_i-GDP mechanism is a post-processing of one draw of N(b mu_i, 1),
b in {0, 1} telling the neighbours apart (Dong, Roth and Su 2022, Theorem 2, by Blackwell), which scaled by mu_i is the
increment of a Brownian motion with drift b over a time mu_i^2. One Brownian motion read on and on gives all of them,
also if each mu_i is chosen from what has been read. If the mu_i^2 sum to at most mu^2 on every path, everything is a
post-processing of the motion up to time mu^2, and of its end point, which is sufficient: one draw of N(b mu, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct import convert, validation
from jaxacct.filters.additive import AdditiveFilter, AdditiveState, Cost, open_state, squared
from jaxacct.mechanisms.mechanism import Mechanism, Relation
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, in_float64, outside
from jaxacct.numerics.programs import compiled
from jaxacct.rounded_sum import rounding


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
        validation.check_epsilon(epsilon)
        validation.check_delta(delta)
        self._fill(_opened(epsilon, delta))

    def _cost(self, mechanism: Mechanism, relation: Relation) -> Cost:
        return _squared(convert.mechanism_to_gdp(mechanism, relation=relation))

    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, at the filter's delta; float64.

        It is an upper bound for releases fixed in advance, 0 before the first; not one to stop at when it looks good.
        """
        return outside(_epsilon(self.state))


@in_float64(by_programs=True)
@compiled
def _squared(mu: ArrayLike) -> Cost:
    mu = as_float64(mu)
    return squared(mu), jnp.zeros(mu.shape)


@in_float64
def _opened(epsilon: ArrayLike, delta: ArrayLike) -> AdditiveState:
    return _open(as_float64(epsilon), as_float64(delta))


@compiled
def _open(epsilon: Array, delta: Array) -> AdditiveState:
    valid = (epsilon >= 0) & (delta > 0) & (delta < 1)
    finite = jnp.where(valid & (epsilon < jnp.inf), epsilon, 1.0)
    mu = as_float64(convert.dp_to_gdp(finite, jnp.where(valid, delta, 0.5)))
    budget = jnp.where(epsilon == jnp.inf, jnp.inf, mu**2 * (1 - 4 * roundoff()))
    return open_state(budget, delta, jnp.zeros(()), valid)


@in_float64(by_programs=True)
@compiled
def _epsilon(state: AdditiveState) -> Array:
    mu = jnp.sqrt(state.total.value()) * (1 + 4 * roundoff())
    delta = jnp.exp(-state.log_inverse_delta.value()) * (1 - 8 * rounding())
    found = as_float64(convert.gdp_to_epsilon(mu, jnp.where(delta > 0, delta, 0.5)))
    return jnp.where(mu == 0, 0.0, jnp.where(delta > 0, found, jnp.inf))
