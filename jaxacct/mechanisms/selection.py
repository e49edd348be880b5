"""Mechanisms that select: the sparse vector technique, and the best result of a random number of runs.

A selection releases far less than all that it looks at, and its pair or its curve counts that. The sparse vector
technique tells which of many queries is the first above a threshold, and of the queries before only that they are not;
:class:`RepeatAndSelect` tells the best of several results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, FinitePair
from jaxacct.dominating_pairs.above_threshold import first_above_pair, worst_tails_pair
from jaxacct.mechanisms.approximate_dp import ROUNDING_UNITS
from jaxacct.mechanisms.group import less_noise
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_endless
from jaxacct.mechanisms.renyi_only import Curves, OfOthers
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, exact_float64, kept_positive, outside, within_scope
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.selection import Binomial, Poisson, Trials, TruncatedNegativeBinomial

MOST_QUERIES = 2**30
"""Largest number of queries of a run with Gaussian noise. A limit of validation, far below 2^53, up to which float64
holds every whole number."""


@register_dataclass
@dataclass(frozen=True)
class AboveThreshold(Mechanism):
    """Sparse vector with Laplace noise: queries, one after the other, until the first above a noisy threshold.

    Noise is drawn for the threshold once, and for each query; the answer tells whether query plus noise reaches
    threshold plus noise. Queries may be chosen by the answers so far. The first "above" ends the run, which costs the
    same however many queries came before: c of them are ``steps=c`` runs, each with a threshold drawn anew.

    Attributes:
        threshold_scale (...): scale of the threshold's noise over the queries' sensitivity, the most that any of them
            moves between the neighbours of the relation asked for.
        query_scale (...): scale of each query's noise over the same. At a given cost about twice the threshold's is
            best, or as much for monotone queries. Shapes broadcast.
        monotone: static; whether no query ever falls when an example is added, as counts do. Not used under "replace".

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", "replace".

    Formal guarantee: pure, for any number of queries: with s and b the scales, losses are at most 1/s + 2/b, which is
    approached as queries become many. Most losses are far smaller, also without noise on the threshold, and the pair
    counts that: ten runs with s = 10 and b = 20 cost 1.33 at a delta of 1e-6, where the worst 0.2-DP mechanism costs
    2.00 (:mod:`jaxacct.dominating_pairs.above_threshold`). For monotone queries losses are at most 1/s + 1/b when an
    example is added and 1/b when it is removed, which bounds either from below as well; the pair has these two. It is
    not :attr:`~.Mechanism.tight`: of one run delta(0) is 0.0357, and the worst queries that were found had 0.0228.

    Proof. Let the queries' values be a on P and a' on Q, and F the distribution function of a query's noise. With z the
    noisy threshold, P(first above is j) = int p(z) prod_(i<j) F(z - a_i) (1 - F(z - a_j)) dz. Put z - 1 for z: p rises
    by at most e^(1/s); F(z - 1 - a_i) <= F(z - a'_i), for a'_i <= a_i + 1; and a_j exceeds a'_j - 1 by at most 2, so
    that the last factor rises by at most e^(2/b), or e^(1/b) where a <= a'. Where a >= a' no shift is needed: the first
    factors are at most those of Q, and the last one rises by at most e^(1/b). "None above" lacks the last factor.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: Dwork and Roth (2014), "The algorithmic foundations of differential privacy", Theorem 3.23; monotone
    queries, Lyu, Su and Li (2017), "Understanding the sparse vector technique for differential privacy".

    >>> from jaxacct import epsilon
    >>> round(float(epsilon(AboveThreshold(10.0, 20.0), 1, 0.0).upper), 9)
    0.2
    """

    threshold_scale: ArrayLike
    query_scale: ArrayLike
    monotone: bool = field(default=False, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out", "replace")

    def validate(self) -> None:
        validation.check_noise_scale(self.threshold_scale, "threshold_scale")
        validation.check_noise_scale(self.query_scale, "query_scale")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.threshold_scale) & is_endless(self.query_scale)

    def of_group(self, size: int) -> AboveThreshold:
        return AboveThreshold(less_noise(self.threshold_scale, size), less_noise(self.query_scale, size), self.monotone)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair; for monotone queries one of two losses for each direction."""
        asked = directions(self, relation)
        s, b = (kept_positive(exact_float64(value)) for value in (self.threshold_scale, self.query_scale))
        if not self.monotone or relation == "replace":
            return (outside(first_above_pair((1 / s + 2 / b) * (1 + 8 * roundoff()), b)),)
        ends = {"remove": (1 / b, 1 / s + 1 / b), "add": (1 / s + 1 / b, 1 / b)}
        return tuple(outside(_two_losses(*ends[direction])) for direction in asked)


@jax.jit
def _two_losses(most: Array, least: Array) -> FinitePair:
    """Returns the pair with the losses ``most`` and -``least`` alone, both at least 0.

    No law with losses between them has a larger divergence: that is the mean of a convex function of e^loss under Q,
    under which the mean of e^loss is 1.
    """
    most, least = most * (1 + 8 * roundoff()), least * (1 + 8 * roundoff())
    whole = jnp.expm1(-most - least)
    high, low = jnp.expm1(-least) / whole, jnp.expm1(-most) / whole
    p = jnp.stack([high, low * jnp.exp(-least)], axis=-1)
    q = jnp.stack([high * jnp.exp(-most), low], axis=-1)
    losses = jnp.stack([most, -least], axis=-1)
    return FinitePair(p, q, losses, jnp.full_like(p, ROUNDING_UNITS * roundoff()))


@register_dataclass
@dataclass(frozen=True)
class GaussianAboveThreshold(Mechanism):
    """Sparse vector with Gaussian noise: as :class:`AboveThreshold`, for a limited number of queries.

    Attributes:
        threshold_noise (...): standard deviation of the threshold's noise over the queries' sensitivity.
        query_noise (...): standard deviation of each query's noise over the same.
        queries (...): most queries of a run, which ends after them without one above; whole, from 1 to 2**30. Ten times
            as many cost little more. Shapes broadcast.
        monotone: static; as that of :class:`AboveThreshold`.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", "replace".

    Formal guarantee: the pair dominates. With s and b the deviations and k the queries, a run is (epsilon, delta)-DP
    for delta = (k + 1) times that of a Gaussian mechanism with noise (1/s^2 + 4/b^2)^(-1/2), or (1/s^2 + 1/b^2)^(-1/2)
    for monotone queries; and the pair is the least that says no more than this. Not :attr:`~.Mechanism.tight`.

    Proof. Let the first above be j, and fix the noise of the queries before. On P this is the event that the
    threshold's noise is above some m, and that the noise of query j is at least the threshold's plus some c; on Q these
    are at most m + 1, the values being larger by at most 1, and at most c + 1. So the event on P, moved by (1, 2), lies
    within that on Q: the divergence is at most that of two independent normals moved as far, on one event. For monotone
    queries (1, 1) is enough, or (0, 1) the other way. "None above" moves by (1). There are k + 1 events, and the
    divergence of the answers is the sum of theirs. The pair is derived in
    :mod:`jaxacct.dominating_pairs.above_threshold`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: the sum is proved above; by Rényi divergences, Zhu and Wang (2020), "Improving sparse vector technique with
    Rényi differential privacy".

    >>> from jaxacct import epsilon
    >>> f"{epsilon(GaussianAboveThreshold(10.0, 20.0, queries=100), 1, 1e-6):.3f}"
    '0.710'
    """

    threshold_noise: ArrayLike
    query_noise: ArrayLike
    queries: ArrayLike
    monotone: bool = field(default=False, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = AboveThreshold.relations
    may_fail: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.threshold_noise, "threshold_noise")
        validation.check_noise_multiplier(self.query_noise, "query_noise")
        validation.check_queries(self.queries, MOST_QUERIES)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.threshold_noise) & is_endless(self.query_noise)

    def of_group(self, size: int) -> GaussianAboveThreshold:
        noises = less_noise(self.threshold_noise, size), less_noise(self.query_noise, size)
        return GaussianAboveThreshold(*noises, self.queries, self.monotone)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        s, b = (kept_positive(exact_float64(value)) for value in (self.threshold_noise, self.query_noise))
        moved = 1.0 if self.monotone and relation != "replace" else 2.0
        reach = jnp.sqrt(1 / s**2 + (moved / b) ** 2) * (1 + 8 * roundoff())
        queries = as_float64(self.queries)
        proper = (queries >= 1) & (queries == jnp.floor(queries)) & (queries <= MOST_QUERIES)
        return (outside(worst_tails_pair(reach, jnp.where(proper, queries + 1, jnp.nan))),)


# ----------------------------------------------------------------------------------------------------
# Private search: the best of a random number of runs
# ----------------------------------------------------------------------------------------------------

GRID = np.array([*np.round(np.arange(1.1, 11.0, 0.1), 1), *np.round(np.geomspace(11, 1024, 64))])
"""Orders from which the theorem's second order b, and an order above the one asked for, are chosen. The bound holds at
each of them, so the grid is sound for any values above 1."""

HALVINGS = 100
"""Number of halvings in the search for log(1/g). Its upper end is returned, so it is sound for any value."""


@register_dataclass
@dataclass(frozen=True)
class RepeatAndSelect(OfOthers):
    """A private search: a composition is run K times, K at random, and of the K results the best alone is released.

    "Best" may mean any order on the results that does not look at the data again; the number of runs is not released.
    :func:`jaxacct.epsilon`, :func:`jaxacct.delta` and :func:`jaxacct.curve`, outside of a trace, know it by the
    privacy profile of one run, certified: alone with a lower bound, and composed with others by the pair that has
    this profile (:mod:`jaxacct.selection`). In a trace it is known by its Rényi curve alone.

    Attributes:
        mechanism: what one run is composed of: a mechanism, or a tuple of them. A run may draw a setting first and
            release it, too, as long as this dominates it for every setting.
        steps: number of runs of each of them in it.
        trials: the law of K, of :mod:`jaxacct.selection`. With :class:`~.selection.Poisson` and
            :class:`~.selection.Binomial` there may be no run, which is released as such.

    Relations: "add_or_remove" (default), "replace", "zero_out": those under which the mechanisms within are known. One
    way alone is none of them: the bound on either direction uses the reverse one.

    Formal guarantee: an upper bound, for every order on the results: the lesser of two routes, each with rounding. The
    lower bound is that of the costliest of some orders on the results of the pair that dominates one run, under
    "add_or_remove"; it is 0 under the others. By Rényi divergences: let D be a curve of one run, g the law's parameter
    and eta its shape. For any order b >= 1 the divergence of order a is at most

        D_a + log(mean)/(a - 1) + (1 + eta) ((1 - 1/b) D_b + log(1/g)/b),

    and for Poisson's law D_a + log(mean)/(a - 1) + mean delta(log(1 + 1/(a - 1))). The divergence rises with the order,
    so a bound at a higher one holds as well. 1/g rises with the mean, (1/g - 1) times eta/(1 - g^eta), and is found
    from above: with u = log(1/g) the mean is expm1(u)/u times x/(1 - e^-x) at x = eta u, which is at least e^(u/2). All
    of at most n runs together cost no more than n D_a.

    Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy", Theorems 2 and 6;
    Koskela et al. (2024), "Privacy profiles for private selection".

    >>> from jaxacct import Gaussian, epsilon, rdp, selection
    >>> search = RepeatAndSelect(Gaussian(noise_multiplier=5.0), 1, selection.Geometric(mean=10.0))
    >>> print(f"{epsilon(search, 1, 1e-6):.2f} {rdp.epsilon(search, 1, 1e-6):.2f}")
    1.24 1.81
    """

    trials: Trials

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "replace", "zero_out")

    def check_numbers(self) -> None:
        super().check_numbers()
        if not isinstance(self.trials, Trials):
            raise TypeError(
                f"trials = {self.trials!r} is no law: give one of jaxacct.selection, such as Geometric(10.0)."
            )
        if any(np.ndim(leaf) for leaf in jax.tree.leaves(self.trials)):
            raise ValueError(f"trials = {self.trials} has arrays, and is one law: give numbers, or jax.vmap over laws.")

    def divergence(self, orders: Float[Array, " n"], relation: Relation, curves: Curves) -> Float[Array, " n"]:
        law = self.trials
        if isinstance(law, Binomial):
            most, chance = as_float64(law.count), as_float64(law.probability)
            valid = (most >= 1) & (chance > 0) & (chance <= 1)
            return jnp.where(valid, most * curves.of(self.mechanism, self.steps, orders), jnp.nan)
        mean, grid = as_float64(law.mean), jnp.asarray(GRID)
        asked = jnp.concatenate([orders, grid])
        own, fixed = (curves.of(self.mechanism, self.steps, values) for values in (orders, GRID))
        if isinstance(law, Poisson):
            added = mean * curves.delta(fixed, grid, jnp.log1p(1 / (asked - 1)))
        else:
            assert isinstance(law, TruncatedNegativeBinomial)
            eta = as_float64(law.shape)
            mean = jnp.where(eta >= 0, mean, jnp.nan)
            added = (1 + eta) * jnp.min((1 - 1 / grid) * fixed + _log_inverse(mean, eta) / grid)
        bound = jnp.concatenate([own, fixed]) + jnp.log(mean) / (asked - 1) + added
        above = jnp.where(grid[None, :] >= orders[:, None], bound[None, orders.shape[0] :], jnp.inf)
        least = jnp.minimum(bound[: orders.shape[0]], jnp.min(above, axis=1))
        if not isinstance(law, Poisson):  # K is 1 at least: with a mean of 1 it is 1
            least = jnp.where(mean == 1, own, least)
        return jnp.where((mean >= 1) & (mean < jnp.inf), least, jnp.nan)


def _log_inverse(mean: Array, eta: Array) -> Array:
    """Returns log(1/g), rounded up, for the truncated negative binomial law of a given mean."""

    def enough(u: Array) -> Array:
        x = eta * u
        growth = jnp.where(u > 0, jnp.expm1(u) / jnp.where(u > 0, u, 1.0), 1.0)
        spread = jnp.where(x > 0, x / -jnp.expm1(-jnp.where(x > 0, x, 1.0)), 1.0)
        return growth * spread * (1 - 512 * roundoff()) >= mean

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) / 2
        return jnp.where(enough(middle), low, middle), jnp.where(enough(middle), middle, high)

    # Bisection. The mean at its upper end is never below the given one: at first by the bound e^(u/2), as u there is
    # 2 log(mean).
    most = 2 * jnp.log(mean) * (1 + 4096 * roundoff()) + 4096 * roundoff()
    return jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(most), most))[1]
