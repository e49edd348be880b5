"""Mechanisms known by their Rényi divergences, without a dominating pair of their own.

Accountants that compose privacy losses refuse them. :mod:`jaxacct.rdp` adds their curves up, and
:func:`jaxacct.epsilon` takes that route where one of them is composed. In reading order: the base class
:class:`RenyiOnly`, concentrated privacy, any composition run on one sample, and the best of a random number of runs.
"""

from __future__ import annotations

import abc
import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.mechanisms.mechanism import (
    DIRECTIONS,
    Mechanism,
    Mechanisms,
    Relation,
    Steps,
    check_parts,
    directions,
    is_exact_zero,
)
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, log_complement
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect_traced
from jaxacct.selection import Binomial, Poisson, Trials, TruncatedNegativeBinomial


class Curves(Protocol):
    """Questions that a curve may ask about the mechanisms that it is made of, under its own relation."""

    def of(self, mechanism: Mechanisms, steps: Steps, orders: ArrayLike) -> Array:
        """Returns an upper bound on the divergence of a composition at ``orders`` (n,)."""

    def delta(self, curve: Array, orders: Array, epsilon: Array) -> Array:
        """Returns an upper bound on delta at each ``epsilon`` (m,) that a curve at ``orders`` (n,) implies."""


class RenyiOnly(Mechanism):
    """The base class of mechanisms known by their Rényi curve alone: those here, and a user's own.

    Write a frozen dataclass as for :class:`.Mechanism`, with :meth:`divergence` in place of the pairs.
    :func:`jaxacct.epsilon`, :func:`jaxacct.delta` and :mod:`jaxacct.rdp` take it, alone and composed with any others;
    so do filters and odometers of Rényi divergences. Accountants that need a privacy loss raise ValueError.

    >>> import dataclasses
    >>> import jaxacct as ja
    >>> @ja.register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Published(ja.mechanisms.RenyiOnly):
    ...     variance: float
    ...     relations = ("add_or_remove",)
    ...     def validate(self):
    ...         ja.Gaussian(self.variance)
    ...     def divergence(self, orders, relation, curves):
    ...         return orders / (2 * self.variance)
    >>> f"{ja.epsilon(Published(100.0), steps=100, delta=1e-5).upper:.4f}"  # a Gaussian's is 4.3772
    '4.7285'
    """

    instead: ClassVar[str] = ""
    """A sentence on what else may serve whoever asks for a pair."""

    @abc.abstractmethod
    def divergence(self, orders: Float[Array, " n"], relation: Relation, curves: Curves) -> Float[Array, " n"]:
        """Returns an upper bound on the divergence of one run at ``orders``, each above 1 and finite.

        It has to be right to a relative 1e-10, by which accountants round up; NaN where it is not known. It is called
        inside the float64 scope.
        """

    def largest_loss(self) -> Array:
        """Returns an upper bound on the privacy loss, the divergence of order infinity: not known by default."""
        return jnp.full((), jnp.inf)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> NoReturn:
        """Raises ValueError: there is no pair."""
        directions(self, relation)
        raise ValueError(
            f"{type(self).__name__} is known by its Rényi curve alone, and has no dominating pair: use "
            f"jaxacct.epsilon, jaxacct.delta or jaxacct.rdp, which convert it{self.instead}."
        )


@dataclass(frozen=True)
class OfOthers(RenyiOnly):
    """The base class of mechanisms made of one composition of others, and known by what their curves imply."""

    mechanism: Mechanisms
    steps: Steps

    def validate(self) -> None:
        check_parts(self.mechanism, self.steps)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The empty shape, always: a sequence is what is composed within."""
        return ()


def has_renyi_only(mechanism: Any) -> bool:
    """Returns whether a mechanism, or any of several, is known by its Rényi curve alone."""
    if isinstance(mechanism, (tuple, list)):
        return any(map(has_renyi_only, mechanism))
    return isinstance(mechanism, RenyiOnly)


@register_dataclass
@dataclass(frozen=True)
class ZeroConcentratedDP(RenyiOnly):
    """Any mechanism that is (xi, rho)-zCDP: its divergence of every order a above 1 is at most xi + rho a.

    Attributes:
        rho (...): at least 0.
        xi (...): at least 0; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", "zero_out". The guarantee is taken to be stated
    for the relation in use.

    Formal guarantee: what accountants conclude holds for every mechanism with that guarantee. :func:`jaxacct.epsilon`
    gives no lower bound, for there is none: a mechanism that releases nothing is one of them.

    Source: Bun and Steinke (2016), "Concentrated differential privacy", Definition 8.1.

    >>> from jaxacct import epsilon
    >>> f"{epsilon(ZeroConcentratedDP(rho=0.005), steps=100, delta=1e-5).upper:.4f}"
    '4.7285'
    """

    rho: ArrayLike
    xi: ArrayLike = 0.0

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    one_way: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_epsilon(self.rho, "rho")
        validation.check_epsilon(self.xi, "xi")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_exact_zero(self.rho) & is_exact_zero(self.xi)

    def divergence(self, orders: Float[Array, " n"], relation: Relation, curves: Curves) -> Float[Array, " n"]:
        rho, xi = as_float64(self.rho), as_float64(self.xi)
        return jnp.where((rho >= 0) & (xi >= 0), xi + rho * orders, jnp.nan)

    def largest_loss(self) -> Array:
        """Returns ``xi`` where ``rho`` is 0: that is a pure guarantee."""
        xi = as_float64(self.xi)
        return jnp.where(is_exact_zero(self.rho) & (xi >= 0), xi, jnp.inf)


# ----------------------------------------------------------------------------------------------------
# One sample for a whole composition: a bound on its Rényi divergences from those without sampling
#
# Let M run on a sample that holds the example with probability q. The divergence of a whole order a is a sum over the
# number l of factors of the likelihood ratio: with p_l = C(a, l) q^l (1-q)^(a-l) and moments m_l = e^((l-1) D_l), which
# are at least 1, the a-th moment is at most sum_l c_l p_l m_l, c_0 = c_1 = c_2 = 1. As the p_l sum to one it is
#
#     1 + sum_(l >= 2) p_l (c_l m_l - 1) = 1 + X,
#
# which is how the code forms it: no term is negative, and nothing cancels. (a - 1) D_a is a convex function of a that
# vanishes at 1, so that between whole orders the chord bounds it. Sampling never costs more than its absence, by joint
# convexity.
# ----------------------------------------------------------------------------------------------------

LARGEST = 128
"""Largest whole order whose sum is formed. Above it the divergence is bounded by that without sampling, so it is sound
for any value."""


@dataclass(frozen=True)
class _OnOneSample(OfOthers):
    """The base of both kinds of sampling: a composition on one sample, with the sum that bounds its moments."""

    sampling_rate: ArrayLike

    def validate(self) -> None:
        super().validate()
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def divergence(self, orders: Float[Array, " n"], relation: Relation, curves: Curves) -> Float[Array, " n"]:
        whole_orders = np.arange(2.0, LARGEST + 1)
        plain = curves.of(self.mechanism, self.steps, orders)
        moments = (whole_orders - 1) * curves.of(self.mechanism, self.steps, whole_orders)
        rate = as_float64(self.sampling_rate)
        valid = (rate >= 0) & (rate <= 1)
        q = jnp.where(valid & (rate < 1), rate, 0.5)
        # (a - 1) D_a at the whole orders a from 1 to LARGEST; between two neighbours the chord bounds it.
        cumulants = jnp.concatenate([jnp.zeros(1), jnp.log1p(jnp.exp(self._log_excess(jnp.asarray(moments), q)))])
        first = jnp.clip(jnp.floor(orders - 1), 0, LARGEST - 2).astype(jnp.int32)
        share = jnp.clip(orders - 1 - first, 0.0, 1.0)
        chord = (1 - share) * cumulants[first] + share * cumulants[first + 1]
        sampled = jnp.where((orders <= LARGEST) & (rate < 1) & ~jnp.isnan(chord), chord / (orders - 1), jnp.inf)
        bound = jnp.where(rate == 0, 0.0, jnp.fmin(sampled, plain))
        return jnp.where(valid, bound, jnp.nan)

    def _log_excess(self, moments: Array, q: Array) -> Array:
        """Returns log X at the orders 2, 3, ..., from log m_l of the same orders; ``inf`` where it is not known."""
        raise NotImplementedError


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampled(_OnOneSample):
    """Any composition, run on one Poisson sample: known by its Rényi curve alone.

    This is for compositions without a dominating pair on a sample: concentrated privacy, several releases of one
    sample. (One release of a mechanism with a pair has one, too: :class:`.PoissonSampledMechanism`, and of Gaussian or
    Laplace noise :class:`.PoissonSubsampledGaussian` and :class:`.PoissonSubsampledLaplace`.)

    Attributes:
        mechanism: what is composed on the sample: a mechanism, or a tuple of them.
        steps: number of runs of each of them there.
        sampling_rate (): q, probability of each example to be in the sample, in [0, 1].

    Relations: "add_or_remove". All mechanisms within have to be known under it.

    Formal guarantee: an upper bound on the divergences, both ways, given upper bounds on those of the composition, both
    ways: c_l = 3 from l = 3 on, in the notation above.

    Source: Zhu and Wang (2019), "Poisson subsampled Rényi differential privacy", Theorem 6.

    >>> from jaxacct import ZeroConcentratedDP, epsilon
    >>> sampled = PoissonSubsampled(ZeroConcentratedDP(rho=0.1), 1, sampling_rate=0.01)
    >>> bool(epsilon(sampled, steps=100, delta=1e-5).upper < 0.3)
    True
    """

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove",)
    instead: ClassVar[str] = "; of one run of a mechanism with a pair the sample is PoissonSampledMechanism"

    def _log_excess(self, moments: Array, q: Array) -> Array:
        log_counts, order, place = _binomials()
        log_factor = jnp.where(jnp.arange(2.0, LARGEST + 1) == 2, 0.0, np.log(3.0))
        weights = log_counts + place * jnp.log(q) + (order - place) * log_complement(q)
        return _log_sum(weights + _log_less_one(log_factor + moments)[None, :])


@register_dataclass
@dataclass(frozen=True)
class SubsampledWithoutReplacement(_OnOneSample):
    """Any composition, run on one sample of fixed size without replacement: known by its Rényi curve alone.

    Attributes:
        mechanism: what is composed on the sample: a mechanism, or a tuple of them.
        steps: number of runs of each of them there.
        sampling_rate (): q, size of the sample over that of the data, in [0, 1].

    Relations: "replace", under which the number of examples is public. All mechanisms within have to be known under it.

    Formal guarantee: an upper bound on the divergences, given upper bounds on those of the composition under "replace":
    the moment is at most 1 + q^2 C(a, 2) min(4 (m_2 - 1), 2 m_2) + 2 sum_(l >= 3) q^l C(a, l) m_l.

    Source: Wang, Balle and Kasiviswanathan (2019), "Subsampled Rényi differential privacy and analytical moments
    accountant", Theorem 9.

    >>> from jaxacct import ZeroConcentratedDP, epsilon
    >>> sampled = SubsampledWithoutReplacement(ZeroConcentratedDP(rho=0.1), 1, sampling_rate=0.01)
    >>> bool(epsilon(sampled, steps=100, delta=1e-5, relation="replace").upper < 0.5)
    True
    """

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)

    def _log_excess(self, moments: Array, q: Array) -> Array:
        log_counts, _, place = _binomials()
        pairs = jnp.minimum(np.log(4.0) + _log_less_one(moments[:1]), np.log(2.0) + moments[:1])
        log_terms = jnp.concatenate([pairs, np.log(2.0) + moments[1:]])
        return _log_sum(log_counts + place * jnp.log(q) + log_terms[None, :])


@functools.cache
def _binomials() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns log C(a, l) for a and l from 2 to LARGEST, -inf for l > a, with the columns of a and the rows of l."""
    whole_orders = range(2, LARGEST + 1)
    logs = [[math.log(math.comb(a, k)) if k <= a else -math.inf for k in whole_orders] for a in whole_orders]
    places = np.arange(2.0, LARGEST + 1)
    return np.array(logs), places[:, None], places[None, :]


def _log_less_one(log_value: Array) -> Array:
    """Returns log(e^x - 1) for x >= 0."""
    return log_value + jnp.log(-jnp.expm1(-log_value))


def _log_sum(logs: Array) -> Array:
    return jax.nn.logsumexp(jnp.where(jnp.isnan(logs), jnp.inf, logs), axis=1)


# ----------------------------------------------------------------------------------------------------
# Private search: the best of a random number of runs
# ----------------------------------------------------------------------------------------------------


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
    "add_or_remove"; it is 0 under the others, and for runs with an :class:`.ExponentialMechanism`, whose worst scores
    differ from one epsilon to another. By Rényi divergences: let D be a curve of one run, g the law's parameter
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

    def validate(self) -> None:
        super().validate()
        if not isinstance(self.trials, Trials):
            raise TypeError(
                f"trials = {self.trials!r} is no law: give one of jaxacct.selection, such as Geometric(10.0)."
            )
        if any(np.ndim(leaf) for leaf in jax.tree.leaves(self.trials)):
            raise ValueError(f"trials = {self.trials} has arrays, and is one law: give numbers, or jax.vmap over laws.")
        self.trials.validate()

    def divergence(self, orders: Float[Array, " n"], relation: Relation, curves: Curves) -> Float[Array, " n"]:
        # Candidates for the theorem's second order b, and for an order above the one in question. The bound
        # holds at each of them, so the grid is sound for any values above 1.
        grid_of_orders = np.array([*np.round(np.arange(1.1, 11.0, 0.1), 1), *np.round(np.geomspace(11, 1024, 64))])
        law = self.trials
        if isinstance(law, Binomial):
            most, chance = as_float64(law.count), as_float64(law.probability)
            valid = (most >= 1) & (chance > 0) & (chance <= 1)
            return jnp.where(valid, most * curves.of(self.mechanism, self.steps, orders), jnp.nan)
        mean, grid = as_float64(law.mean), jnp.asarray(grid_of_orders)
        every_order = jnp.concatenate([orders, grid])
        own, fixed = (curves.of(self.mechanism, self.steps, values) for values in (orders, grid_of_orders))
        if isinstance(law, Poisson):
            added = mean * curves.delta(fixed, grid, jnp.log1p(1 / (every_order - 1)))
        else:
            assert isinstance(law, TruncatedNegativeBinomial)
            eta = as_float64(law.shape)
            mean = jnp.where(eta >= 0, mean, jnp.nan)
            added = (1 + eta) * jnp.min((1 - 1 / grid) * fixed + _log_inverse(mean, eta) / grid)
        bound = jnp.concatenate([own, fixed]) + jnp.log(mean) / (every_order - 1) + added
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

    # The mean at the end returned is never below the given one: at first by the bound e^(u/2), with u = 2 log(mean).
    # A hundred halvings; sound for any number.
    most = 2 * jnp.log(mean) * (1 + 4096 * roundoff()) + 4096 * roundoff()
    return bisect_traced(enough, most, jnp.zeros_like(most), steps=100)
