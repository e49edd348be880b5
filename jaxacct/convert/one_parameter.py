"""Conversions of the notions with one parameter: pure, concentrated, bounded-range and Gaussian differential privacy.

In reading order:

- epsilon-DP as Rényi and as concentrated differential privacy (:func:`pure_to_rdp`, :func:`pure_to_zcdp`),
- zCDP and tCDP to and from Rényi divergences and (epsilon, delta),
- the worst composition of mechanisms of bounded range (:func:`bounded_range_to_delta`,
  :func:`bounded_range_to_epsilon`),
- delta, epsilon and mu of Gaussian differential privacy from one another (:func:`gaussian_delta`,
  :func:`gaussian_epsilon`, :func:`gaussian_mu`), and its Rényi divergences (:func:`gdp_to_rdp`),
- the parameters of single mechanisms (:func:`mechanism_to_dp`, :func:`mechanism_to_zcdp`, :func:`mechanism_to_gdp`),
  which filters and odometers that track a single number add up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.convert.renyi import (
    METHODS,
    Conversion,
    Divergences,
    Orders,
    ToDelta,
    ToEpsilon,
    by_order,
    checked_divergences,
    checked_orders,
    least_between,
    softplus,
)
from jaxacct.mechanisms import (
    AboveThreshold,
    ApproximateDP,
    DiscreteGaussian,
    DiscreteGaussianVector,
    DiscreteLaplace,
    DiscretePair,
    DPWithoutReplacement,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    LaplaceWithoutReplacement,
    MatrixMechanism,
    Mechanism,
    PoissonSubsampledDP,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
    PrivacyLoss,
    PureDP,
    RandomizedResponse,
    RenyiOnly,
    TreeAggregation,
    ZeroConcentratedDP,
)
from jaxacct.mechanisms.approximate_dp import log_of_sampled
from jaxacct.mechanisms.mechanism import REVERSE, Relation, check_mechanism, directions, holds_one_way
from jaxacct.mechanisms.normal import LOG_NORMAL, delta_above, epsilon_bounds, mu_bounds, quantile
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.derivatives import Differences
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import (
    TINY,
    Params,
    Result,
    as_float64,
    is_zero,
    kept_positive,
    kernel,
    leave_scope,
    scope,
)
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.numerics.root_search import bisect
from jaxacct.rounded_sum import LEAST_COST, log_inverse_above


def margin_of_pure() -> float:
    """Returns a margin for the rounding of at most five functions, where a sum of three is at least a tenth of them."""
    return 32 * arithmetic().function


def pure_to_rdp(epsilon: Float[ArrayLike, "*batch"], orders: Orders) -> Float[Array, "*batch orders"]:
    """Returns the largest Rényi divergence of an epsilon-DP mechanism at each order; float64 (..., orders).

    Args:
        epsilon (...): at least 0.
        orders (orders,): above 1.

    Formal guarantee: an upper bound, attained by randomized response, which dominates every epsilon-DP mechanism
    (Kairouz, Oh and Viswanath 2015): log(cosh((order - 1/2) epsilon)/cosh(epsilon/2))/(order - 1). ``inf`` where an
    argument is traced and invalid. (An epsilon with delta > 0 bounds no divergence at all.)

    >>> pure_to_rdp(1.0, [2.0, 100.0]).round(6).tolist()
    [0.735326, 0.996836]
    """
    validation.check_numbers(epsilon=epsilon)
    validation.check_epsilon(epsilon)
    return _pure_to_rdp(epsilon, checked_orders(orders))


def pure_to_zcdp(epsilon: Float[ArrayLike, "*batch"]) -> Float[Array, "*batch"]:
    """Returns the least rho such that every epsilon-DP mechanism is rho-zCDP: epsilon tanh(epsilon/2); float64 (...).

    It is below the epsilon^2/2 of Bun and Steinke (2016), "Concentrated differential privacy", Proposition 1.4. With
    u = order - 1/2, the divergence of randomized response over its order is

        (log cosh(u epsilon) - log cosh(epsilon/2)) / (u^2 - 1/4),

    a chord's slope of v -> log cosh(epsilon sqrt(v)), which is concave; so its supremum is the slope at v = 1/4, that
    is, at order 1, and no smaller rho holds for randomized response.

    Formal guarantee: an upper bound, rounding included. ``inf`` where epsilon is traced and invalid. Raises ValueError
    where a concrete one is negative or NaN.

    >>> round(float(pure_to_zcdp(1.0)), 6)
    0.462117
    """
    validation.check_numbers(epsilon=epsilon)
    validation.check_epsilon(epsilon)
    return _pure_to_zcdp(epsilon)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _pure_to_rdp(epsilon: Array, orders: Array) -> Array:
    x, order = by_order(epsilon, orders)
    power = order - 1
    # The moment is 1 + (e^(b x) - 1) (1 - e^(-a x))/(1 + e^-x), a the order and b = a - 1. However close it is to 1,
    # this form keeps all of its distance from 1. Where b x is above 1 its logarithm, at least 0.43 then, is summed.
    excess = jnp.expm1(jnp.minimum(power * x, 1.0)) * -jnp.expm1(-(power + 1) * x) / (1 + jnp.exp(-x))
    far = power * x + softplus(-(2 * power + 1) * x) - softplus(-x)
    divergence = jnp.where(power * x < 1, jnp.log1p(excess), far) / power
    known = (x >= 0) & (power > 0) & (power < jnp.inf)
    # A product of two small numbers underflows; a divergence is above 0 unless epsilon is.
    x = kept_positive(x)
    bound = jnp.where(is_zero(x), 0.0, jnp.minimum(jnp.maximum(divergence * (1 + margin_of_pure()), TINY), x))
    return jnp.where(known, jnp.where(x == jnp.inf, jnp.inf, bound), jnp.inf)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _pure_to_zcdp(epsilon: Array) -> Array:
    epsilon = as_float64(epsilon)
    # Kept above 0 where the product underflows, so that a positive epsilon costs something.
    rho = jnp.maximum(epsilon * jnp.tanh(epsilon / 2) * (1 + margin_of_pure()), TINY)
    return jnp.where(epsilon >= 0, jnp.where(is_zero(epsilon), 0.0, rho), jnp.inf)


# ----------------------------------------------------------------------------------------------------
# Zero-concentrated and truncated concentrated differential privacy
#
# A mechanism is rho-zCDP if its Rényi divergence of every order a > 1 is at most rho a (Bun and Steinke 2016), and
# (rho, omega)-tCDP if that holds for a < omega (Bun, Dwork, Rothblum and Steinke 2018, "Composable and versatile
# privacy via truncated CDP"). At a = omega it holds then as well: the divergence is continuous from the left in its
# order.
# ----------------------------------------------------------------------------------------------------


def margin_of_products() -> float:
    """Returns a margin for the rounding of the products and quotients below, which are fewer and hold no function."""
    return 32 * roundoff()


def zcdp_to_rdp(rho: Float[ArrayLike, ""], orders: Orders) -> Float[Array, " orders"]:
    """Returns ``rho * order``, an upper bound on the divergence of a rho-zCDP mechanism; float64 (orders,).

    Formal guarantee: an upper bound by the definition of zCDP, rounding included, under the relation of the zCDP.

    Raises ValueError where a concrete rho is negative or an order is not above 1; traced ones give ``inf``.

    Source: Bun and Steinke (2016), "Concentrated differential privacy", Definition 1.1.

    >>> zcdp_to_rdp(0.5, [2.0, 10.0]).round(9).tolist()
    [1.0, 5.0]
    """
    return tcdp_to_rdp(rho, np.inf, orders)


def tcdp_to_rdp(rho: Float[ArrayLike, ""], omega: Float[ArrayLike, ""], orders: Orders) -> Float[Array, " orders"]:
    """Returns ``rho * order`` for orders up to omega, and ``inf`` above, where tCDP says nothing; float64.

    Formal guarantee: an upper bound by the definition of tCDP, rounding included, under the relation of the tCDP.

    Raises ValueError where a concrete rho is negative, omega is not above 1 or an order is not; traced ones give
    ``inf``.

    Source: Bun, Dwork, Rothblum and Steinke (2018), "Composable and versatile privacy via truncated CDP".

    >>> tcdp_to_rdp(0.5, 4.0, [2.0, 10.0]).round(9).tolist()
    [1.0, inf]
    """
    _check_rho_and_omega(rho, omega)
    return _tcdp_to_rdp(rho, omega, checked_orders(orders))


def rdp_to_tcdp(rdp: Divergences, orders: Orders) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the least rho known to hold, and omega, the largest order: (rho, omega)-tCDP; float64 (), ().

    Between two orders (order - 1) rdp is at most its chord, for it is convex and 0 at order 1 (a log moment); the
    largest ratio of the chord to (order - 1) order has a closed form. No zCDP follows from finitely many orders,
    whatever their divergences: beyond the largest one nothing is known.

    Args:
        rdp (orders,): divergences, at least 0.
        orders (orders,): above 1, increasing.

    Formal guarantee: a mechanism that is (order, rdp)-RDP for each order is (rho, omega)-tCDP; rounding included.
    Raises ValueError where a concrete argument is out of range or the orders do not increase. ``inf`` where they are
    traced and do not.

    >>> rho, omega = rdp_to_tcdp([0.2, 0.4, 0.8], [2.0, 4.0, 8.0])  # 0.1 order: 0.1-zCDP up to order 8, but for
    >>> round(float(rho), 6), float(omega)  # the range below order 2, where only 0.2 is known
    (0.2, 8.0)
    """
    orders = checked_orders(orders)
    if isinstance(orders, np.ndarray) and np.any(np.diff(orders) <= 0):
        raise ValueError(f"orders = {orders} do not increase: give them sorted, without repetition.")
    return _rdp_to_tcdp(checked_divergences(rdp, orders), orders)


def zcdp_to_epsilon(
    rho: Float[ArrayLike, ""], delta: Float[ArrayLike, ""], method: str = "optimal"
) -> Float[Array, ""]:
    """Returns an epsilon that every rho-zCDP mechanism has at ``delta``, over a continuum of orders; float64 ().

    Args:
        rho (): at least 0.
        delta (): in (0, 1).
        method: as in :func:`.rdp_to_epsilon`; "mironov" comes to rho + 2 sqrt(rho log(1/delta)), Proposition 1.3 of
            Bun and Steinke (2016).

    Formal guarantee: an upper bound, rounding included; not the least one, since each order is taken by itself.

    >>> [round(float(zcdp_to_epsilon(0.02, 1e-6, method)), 4) for method in ("optimal", "improved", "mironov")]
    [0.8999, 0.8999, 1.0713]
    """
    return tcdp_to_epsilon(rho, np.inf, delta, method)


def zcdp_to_delta(
    rho: Float[ArrayLike, ""], epsilon: Float[ArrayLike, ""], method: str = "optimal"
) -> Float[Array, ""]:
    """Returns a delta that every rho-zCDP mechanism has at ``epsilon`` (), at least 0; float64 ().

    Arguments, errors and source are those of :func:`zcdp_to_epsilon`.

    Formal guarantee: an upper bound, rounding included; not the least one, since each order is taken by itself. 1 for
    invalid traced values.

    >>> 1e-8 < float(zcdp_to_delta(0.02, 1.0)) < 1e-7
    True
    """
    return tcdp_to_delta(rho, np.inf, epsilon, method)


def tcdp_to_epsilon(
    rho: Float[ArrayLike, ""], omega: Float[ArrayLike, ""], delta: Float[ArrayLike, ""], method: str = "optimal"
) -> Float[Array, ""]:
    """Returns an epsilon that every (rho, omega)-tCDP mechanism has at ``delta`` (), in (0, 1); float64 ().

    Arguments, errors and source are those of :func:`zcdp_to_epsilon`; ``omega`` () is above 1.

    Formal guarantee: an upper bound, from orders up to omega alone, rounding included. ``inf`` for invalid traced
    values.

    >>> float(tcdp_to_epsilon(0.02, 10.0, 1e-6)) > float(zcdp_to_epsilon(0.02, 1e-6))
    True
    """
    validation.check_one_of(method, "method", METHODS)
    validation.check_delta(delta)
    _check_rho_and_omega(rho, omega)
    return _tcdp_implies(rho, omega, delta, ToEpsilon(method))


def tcdp_to_delta(
    rho: Float[ArrayLike, ""], omega: Float[ArrayLike, ""], epsilon: Float[ArrayLike, ""], method: str = "optimal"
) -> Float[Array, ""]:
    """Returns a delta that every (rho, omega)-tCDP mechanism has at ``epsilon`` (), at least 0; float64 ().

    Arguments, errors and source are those of :func:`zcdp_to_epsilon`; ``omega`` () is above 1.

    Formal guarantee: an upper bound, from orders up to omega alone, rounding included. 1 for invalid traced values.

    >>> float(tcdp_to_delta(0.02, 1e9, 1.0)) == float(zcdp_to_delta(0.02, 1.0))
    True
    """
    validation.check_numbers(epsilon=epsilon)
    validation.check_one_of(method, "method", METHODS)
    validation.check_epsilon(epsilon)
    _check_rho_and_omega(rho, omega)
    return _tcdp_implies(rho, omega, epsilon, ToDelta(method))


def _check_rho_and_omega(rho: ArrayLike, omega: ArrayLike) -> None:
    validation.check_numbers(rho=rho, omega=omega)
    for name, value, bound in (("rho", rho, "of at least 0"), ("omega", omega, "above 1")):
        seen = validation.seen_value(value, name)
        if seen is not None and not np.all(seen >= 0 if name == "rho" else seen > 1):
            raise ValueError(f"{name} = {value} is out of range: give a number {bound}.")


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _tcdp_to_rdp(rho: Array, omega: Array, orders: Array) -> Array:
    rho, omega, orders = as_float64(rho), as_float64(omega), as_float64(orders)
    known = (rho >= 0) & (orders > 1) & (orders <= omega) & (omega > 1)
    return jnp.where(known, kept_positive(rho) * orders * (1 + margin_of_products()), jnp.inf)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _rdp_to_tcdp(rdp: Array, orders: Array) -> tuple[Array, Array]:
    rdp, orders = as_float64(rdp), as_float64(orders)
    x = jnp.concatenate([jnp.zeros(1), orders - 1])
    moments = jnp.concatenate([jnp.zeros(1), (orders - 1) * rdp])
    slope = jnp.diff(moments) / jnp.diff(x)
    # A chord's intercept is at most 0 where the moments are convex, for they are 0 at order 1. Where they are not (they
    # are upper bounds only), the larger of its ends counts.
    start = jnp.minimum(moments[:-1] - slope * x[:-1], 0.0)
    best = (-start + jnp.sqrt(start**2 - start * slope)) / jnp.where(slope > 0, slope, 1.0)

    def ratio(place: Array, intercept: Array) -> Array:
        return (intercept + slope * place) / (place * (place + 1))

    inner = jnp.clip(best, jnp.where(x[:-1] > 0, x[:-1], x[1:]), x[1:])
    values = jnp.maximum(ratio(inner, start), rdp / orders)
    # Below the first order the chord runs from 0, and its ratio is largest at order 1.
    values = values.at[0].set(rdp[0])
    known = jnp.all((rdp >= 0) & (orders > 1)) & jnp.all(jnp.diff(x) > 0)
    rho = jnp.max(values) * (1 + margin_of_products())
    return jnp.where(known & ~jnp.isnan(rho), rho, jnp.inf), orders[-1]


def _are_in_range(rho: Array, omega: Array, number: Array, to: Conversion) -> Array:
    return (rho >= 0) & (omega > 1) & to.is_known(number)


@kernel(compiles=By.XLA_FAST, static=1, derivatives=Differences(inside=_are_in_range))
def _tcdp_implies(rho: Array, omega: Array, number: Array, to: Conversion) -> Array:
    """Returns the least implied at ``number``, over orders around 1 + sqrt(size/rho), the best for Mironov's rule."""
    rho = kept_positive(rho)
    if isinstance(to, ToEpsilon):
        size, valid, unknown = log_inverse_above(number), (number > 0) & (number < 1), jnp.inf
    else:
        # Mironov's delta = e^(b (rho (b + 1) - epsilon)) is least at b = (epsilon/rho - 1)/2.
        size = jnp.where(number < jnp.inf, jnp.maximum(number / rho - 1, 0.1) ** 2 / 4 * rho, 1.0)
        valid, unknown = number >= 0, 1.0

    def bound(orders: Array) -> Array:
        tried = jnp.minimum(orders, omega)
        return to.of_orders(tried * rho * (1 + margin_of_products()), tried, jnp.broadcast_to(number, orders.shape))

    known = valid & (rho >= 0) & (rho < jnp.inf) & (omega > 1)
    power = jnp.sqrt(jnp.where(known & (rho > 0), size / rho, 1.0))
    # Kept in the range of float64, with orders up to 1e15.
    power = jnp.clip(power, 1e-6, 1e15)
    # The best factor for "optimal" was between 0.07 and 1.0 in 3,000 settings (rho in [1e-8, 1e3], delta in [1e-300,
    # 0.5]). Tightness only.
    least = least_between(bound, 1 + power / 32, 1 + power * 2.0)
    if isinstance(to, ToEpsilon) and to.method == "mironov":
        # rho a + l/(a - 1) is least at a = 1 + sqrt(l/rho), where it is rho + 2 sqrt(rho l); below that order it falls.
        tried = jnp.minimum(power, omega - 1)
        closed = jnp.where(tried < power, rho * (tried + 1) + size / tried, rho + 2 * jnp.sqrt(rho * size))
        least = jnp.fmin(least, closed * (1 + margin_of_products()))
    return jnp.where(known, jnp.where(rho == 0, 0.0, jnp.fmin(least, unknown)), unknown)


# ----------------------------------------------------------------------------------------------------
# Bounded range: the worst adaptive composition of exponential mechanisms
#
# Of the mechanisms whose losses lie in [t - e, t] the one with these two losses is the worst, t with the P-mass
# p(t) = (1 - e^(t-e)) / (1 - e^-e), for a t in [0, e] (:class:`.BoundedRangePair`). Whoever composes k of them chooses
# each t by the losses so far. With D_0(x) = (1 - e^x)+ the worst delta at x of k of them is
#
#     D_k(x) = max over t in [0, e] of p(t) D_(k-1)(x - t) + (1 - p(t)) D_(k-1)(x - t + e).                        (*)
#
# *From above.* With x and t on a mesh of width h = e/m, (*) becomes exact sums of mesh values. Between two t's of the
# mesh let s = e^-t. D_(k-1) is convex in e^x, so at x - t it is at most its chord's value a + b s, and a' + b' s at
# x - t + e; a and a' are the chords' ends at s = 0, and a is the larger one. The chord's (*) is
# A + B s - C/s, with C = (a - a') e^-e / (1 - e^-e) at least 0. That is concave, and so at most (h_s)^2/8 times 2C/s^3
# above the larger of its ends. Left of the mesh D is at most 1, right of it at most its last value.
#
# For one run (*) has a closed form, with which the recursion starts.
#
# *From below.* All k runs have one t, so that the sum of their losses is binomial.
# ----------------------------------------------------------------------------------------------------

LONGEST_SPAN, MOST_RUNS = 100.0, 2000
"""Longest range, in nats, and most runs. Limits of work alone."""

FINE = 64
"""Mesh points in a range, for up to a hundred runs. Any value is sound; more are tighter and slower."""

STEP_ERROR = 4e-14
"""Relative error of one evaluation of (*): t is off by an ulp of the range, which near its end is 64 of p(t). The upper
bounds rest on it: it must not be lowered."""


@takes_python_values
def bounded_range_to_delta(span: float, steps: int, epsilon: float) -> Bounds:
    """Returns bounds on the worst delta, at ``epsilon``, of adaptively composed mechanisms of bounded range.

    Args:
        span: length of the interval that a mechanism's privacy losses lie in, in (0, 100]: the epsilon of an
            :class:`jaxacct.ExponentialMechanism`.
        steps: number of runs, from 1 to 2000; fewer where the range is long.
        epsilon: at least 0.

    Formal guarantee: ``upper`` holds for all of them, rounding included. ``lower`` is reached by some, not adaptive.

    Raises ValueError or TypeError where an argument is out of range.

    Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for exponential mechanisms",
    Lemma 4.2 (two losses); sections 5 (not adaptive) and 6 (the recursion).

    >>> print(bounded_range_to_delta(0.1, 100, epsilon=1.0))
    [0.006885, 0.006982] not converged
    """
    validation.check_numbers(span=span, epsilon=epsilon)
    validation.check_epsilon(epsilon)
    x, worst = _worst_profile(span, steps)
    if epsilon >= span * steps:
        upper = 0.0
    elif epsilon >= x[-1]:
        upper = float(worst[-1])
    else:
        place = int(np.searchsorted(x, epsilon, side="right")) - 1
        share = math.expm1(epsilon - x[place]) / math.expm1(x[place + 1] - x[place])
        upper = float((1 - share) * worst[place] + share * worst[place + 1]) * (1 + 1e-12)
    upper = min(upper, 1.0)  # after the chord's slack
    lower = min(_best_equal_choice(span, steps, float(epsilon)), upper)
    return Bounds(lower, math.nan, upper, upper - lower <= 1e-2 * upper)


@takes_python_values
def bounded_range_to_epsilon(span: float, steps: int, delta: float) -> Bounds:
    """Returns bounds on the worst epsilon of the same compositions, at ``delta`` in (0, 1).

    Arguments, guarantee, errors and source are those of :func:`bounded_range_to_delta`.

    >>> print(bounded_range_to_epsilon(0.1, 100, delta=1e-6))
    [2.2457, 2.2514] not converged
    """
    validation.check_numbers(span=span, delta=delta)
    validation.check_delta(delta)
    x, worst = _worst_profile(span, steps)
    upper = _epsilon_of_profile(x, worst, delta)
    # Where the lower bound exceeds delta, some composition has no smaller epsilon.
    low = bisect(lambda epsilon: _best_equal_choice(span, steps, epsilon) > delta, 0.0, span * steps, steps=40)
    upper = min(upper, span * steps * (1 + STEP_ERROR))
    return Bounds(min(low, upper), math.nan, upper, upper - low <= 1e-3 * upper)


def _epsilon_of_profile(x: np.ndarray, worst: np.ndarray, delta: float) -> float:
    """Returns the least epsilon >= 0 at which the chords are at most delta; inf where none is on the mesh."""
    passing = np.flatnonzero((worst <= delta) & (x >= 0))
    if not passing.size:
        return math.inf
    place = int(passing[0])
    if x[place] == 0 or worst[place - 1] <= delta:
        return max(float(x[place]), 0.0)
    share = (worst[place - 1] - delta) / (worst[place - 1] - worst[place])
    return float(x[place - 1] + math.log1p(share * math.expm1(x[place] - x[place - 1]))) * (1 + 1e-12)


def _worst_profile(span: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a mesh of epsilons, negative ones too, and upper bounds on D_k there."""
    steps = validation.check_whole(steps, "steps", 1, MOST_RUNS, "the number of runs")
    if not 0 < span <= LONGEST_SPAN:
        raise ValueError(f"span = {span} is out of range: give the length of the losses' interval, in (0, 100].")
    # Mesh points in a range, and on either side of 0: the losses' sum has mean k e^2/8 and deviation sqrt(k) e/2 at
    # most, and 12 of these are e^-72.
    points = FINE if steps <= 100 else FINE // 2
    count = math.ceil((min(float(steps), steps * span / 4 + 6 * math.sqrt(steps)) + 2) * points)
    # 10^9 mesh values take four seconds; their number grows as that of the runs to the power 3/2.
    if 2.0 * points * count * steps > 1e9:
        raise ValueError(f"steps = {steps} at span = {span} are too many: give fewer, or use jaxacct.rdp.")
    h = span / points
    x = h * np.arange(-count, count + 1)
    t = np.append(h * np.arange(points), span)
    high = -np.expm1(t - span) / -math.expm1(-span)
    low = np.exp(t - span) * -np.expm1(-t) / -math.expm1(-span)
    # The bulge of (*) between two t's: (h_s)^2 / (4 s^3) at the smaller s, times e^-e / (1 - e^-e).
    bulge = np.exp(t[1:]) * math.expm1(h) ** 2 / 4 / math.expm1(span)
    inside = np.clip(x, -span, span)
    single = np.expm1((inside - span) / 2) ** 2 / -math.expm1(-span) * (1 + STEP_ERROR)
    worst = np.where(x < -span, -np.expm1(x), np.where(x > span, 0.0, single))

    def shift(padded: np.ndarray, by: int) -> np.ndarray:
        first = (padded.size - x.size) // 2 + by
        return padded[first : first + x.size]

    # Each step turns D_(k-1) on the mesh into an upper bound on D_k: the largest of (*) over the t's of the mesh, with
    # the bulge between each two of them.
    for _ in range(steps - 1):
        padded = np.concatenate([np.ones(points + 1), worst, np.full(points + 1, worst[-1])])
        # The chord from each mesh point to the one before it, at its left end: its value at e^x = 0.
        ends = np.concatenate([[1.0], padded[:-1] + (padded[:-1] - padded[1:]) / math.expm1(h)])
        before, best = None, np.zeros_like(worst)
        # At each t of the mesh its value of (*); between two of them the larger one and the bulge.
        for j in range(points + 1):
            value = shift(padded, -j) * high[j] + shift(padded, points - j) * low[j]
            if before is not None:
                gap = shift(ends, 1 - j) - shift(ends, points + 1 - j)
                best = np.maximum(best, np.maximum(before, value) + bulge[j - 1] * np.maximum(gap, 0.0))
            before = value
        worst = np.minimum(best * (1 + STEP_ERROR), 1.0)
    return x, np.minimum.accumulate(worst)


def _best_equal_choice(span: float, steps: int, epsilon: float) -> float:
    """Returns a lower bound on the worst delta: the best of many t that are the same for all runs, rounded down.

    The logarithms of a run's two masses are formed each by itself: as the complement of the larger one, the smaller
    would lose its digits from a range of a few nats on, and be 0 from one of 36. Logs of masses err by 1e-10 at most,
    nearly all from log-factorials of up to 13,000 and k t of up to 200,000.
    """
    t = span * np.arange(1, 4 * FINE)[:, None] / (4 * FINE)
    log_whole = math.log(-math.expm1(-span))
    log_high = np.log(-np.expm1(t - span)) - log_whole
    log_low = t - span + np.log(-np.expm1(-t)) - log_whole
    k = np.arange(steps + 1)[None, :]
    logs = np.array([math.lgamma(i + 1) for i in range(steps + 1)])
    counts = logs[-1] - logs - logs[::-1]
    log_mass = counts[None, :] + (steps - k) * log_high + k * log_low
    gain = -np.expm1(np.minimum(epsilon - (steps * t - k * span), 0.0))
    return float(np.max(np.sum(np.exp(log_mass) * gain, axis=1))) * (1 - 1e-9)


# ----------------------------------------------------------------------------------------------------
# Gaussian differential privacy: delta from mu and epsilon, both ways back, and Rényi divergences.
#
# The values are those of :mod:`jaxacct.mechanisms.normal`, rounded to the safe side.
# ----------------------------------------------------------------------------------------------------


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> Float[Array, ...]:
    """Returns the delta of a mu-GDP mechanism at ``epsilon``, rounded up; float64, of the arguments' common shape.

    Args:
        mu (...): at least 0; ``inf`` gives 1.
        epsilon (...): any real number, negative ones too; ``inf`` gives 0.

    Formal guarantee: an upper bound on the exact value, above it by less than ``2e-13 (1 + |eps|/mu + mu)^2`` of it
    for mu >= 1e-9, or by the smallest normal float64. Traced arguments out of range give 1. Derivatives are those of
    the exact value.

    Raises ValueError where a concrete mu is negative or NaN.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Corollary 2.13; eq. 3.2 of Bu, Dong, Long and Su
    (2020), "Deep learning with Gaussian differential privacy".

    >>> print(f"{gaussian_delta(1.0, 1.0):.8f} {gaussian_delta(0.1, 3.0):.4e}")
    0.12693674 7.3048e-200
    """
    validation.check_numbers(mu=mu, epsilon=epsilon)
    check_mu(mu)
    return _exact("delta", mu, epsilon)


def gaussian_epsilon(mu: ArrayLike, delta: ArrayLike) -> Float[Array, ...]:
    """Returns the epsilon of a mu-GDP mechanism at ``delta``, rounded up; float64, of the arguments' common shape.

    Args:
        mu (...): at least 0; ``inf`` gives ``inf``.
        delta (...): in (0, 1), from 1e-300 up.

    Formal guarantee: an upper bound on the exact value; 0 where epsilon = 0 already has that delta. For mu in
    [1e-3, 1e3] it is above the exact value by less than 1e-11 of that where delta is at most half of the one at epsilon
    = 0. Elsewhere a rounding of log delta may move epsilon by much of itself, and it is above by less than

        1e-13 (1 + |log delta|) |d eps / d log delta| + 1e-15 (eps + 2 mu^2),

    while the first term is below mu / 1000, as it is unless delta is within 1e-9 of 1. Traced arguments out of range
    give ``inf``. Derivatives are exact.

    Source: as for :func:`gaussian_delta`.

    >>> print(f"{gaussian_epsilon(1.0, 1e-5):.8f}")
    4.37717810
    """
    validation.check_numbers(mu=mu, delta=delta)
    check_mu(mu)
    validation.check_delta(delta)
    return _exact("epsilon", mu, delta)


def gaussian_mu(epsilon: ArrayLike, delta: ArrayLike) -> Float[Array, ...]:
    """Returns the largest mu whose mu-GDP mechanisms are (epsilon, delta)-DP, rounded down; float64.

    Args:
        epsilon (...): at least 0, finite.
        delta (...): in (0, 1), from 1e-300 up; shapes broadcast.

    Formal guarantee: a mu-GDP mechanism with the mu returned is (epsilon, delta)-DP; it is less than 1e-11 of itself
    below the largest such mu where epsilon is at most 1e3 and delta at most 0.999. (Next to 1 log delta hardly moves
    with mu, and its rounding costs more.) An (epsilon, delta)-DP mechanism is *not* mu-GDP: a single point of the curve
    says nothing of the others. Traced arguments out of range give 0. Derivatives are exact.

    Source: as for :func:`gaussian_delta`.

    >>> print(f"{gaussian_mu(4.0, 1e-5):.8f}")
    0.92493090
    """
    validation.check_numbers(epsilon=epsilon, delta=delta)
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    return _exact("mu", epsilon, delta)


def gdp_to_rdp(mu: Float[ArrayLike, "*batch"], orders: Orders) -> Float[Array, "*batch orders"]:
    """Returns the Rényi divergence of a mu-GDP mechanism at each order, ``order mu^2 / 2``; float64 (..., orders).

    Formal guarantee: an upper bound, attained by the Gaussian mechanism; so mu-GDP implies (mu^2/2)-zCDP (Dong, Roth
    and Su 2022, "Gaussian differential privacy", Corollary B.6). Raises ValueError where a concrete mu is negative or
    an order is not above 1; traced ones give ``inf``.

    >>> gdp_to_rdp(0.5, [2.0, 8.0]).round(9).tolist()
    [0.25, 1.0]
    """
    validation.check_numbers(mu=mu)
    check_mu(mu)
    return _gdp_to_rdp(mu, checked_orders(orders))


def check_mu(mu: ArrayLike, name: str = "mu") -> None:
    """Raises where a concrete mu is negative or NaN."""
    seen = validation.seen_value(mu, name)
    if seen is not None and not np.all(seen >= 0):
        raise ValueError(f"{name} = {mu} is not a GDP parameter: give a number of at least 0 (a distance of means).")


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _gdp_to_rdp(mu: Array, orders: Array) -> Array:
    mu, orders = by_order(mu, orders)
    known = (mu >= 0) & (orders > 1) & (orders < jnp.inf)
    # A product of three numbers, rounded up, and above 0 where it underflows.
    bound = jnp.where(is_zero(mu), 0.0, jnp.maximum(orders * mu**2 / 2 * (1 + 8 * roundoff()), TINY))
    return jnp.where(known, bound, jnp.inf)


def _epsilon_above(mu: Array, delta: Array) -> Array:
    valid = (delta > 0) & (delta < 1)
    ordinary = valid & (mu > 0) & (mu < jnp.inf)
    _, above = epsilon_bounds(jnp.where(ordinary, mu, 1.0), jnp.where(ordinary, delta, 0.5))
    return jnp.where(ordinary, above, jnp.where(valid & (mu == 0), 0.0, jnp.inf))


def _mu_below(epsilon: Array, delta: Array) -> Array:
    ordinary = (delta > 0) & (delta < 1) & (epsilon >= 0) & (epsilon < jnp.inf)
    below, _ = mu_bounds(jnp.where(ordinary, epsilon, 1.0), jnp.where(ordinary, delta, 0.5))
    return jnp.where(ordinary, below, 0.0)


@kernel
def _exact(quantity: str, first: ArrayLike, second: ArrayLike) -> Array:
    # The scope is entered before the derivative's rule, which would take NumPy's float64 for float32. A mu that XLA
    # would flush to 0 is not 0.
    first = as_float64(first) if quantity == "mu" else kept_positive(as_float64(first))
    return leave_scope(_gdp_conversion(quantity, first, as_float64(second)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@compiled(static=("quantity",))
def _gdp_conversion(quantity: str, first: Array, second: Array) -> Array:
    # Functions of the three quantities, each from the other two and rounded to its safe side.
    quantities = {"delta": delta_above, "epsilon": _epsilon_above, "mu": _mu_below}
    return jnp.vectorize(quantities[quantity])(first, second)


@_gdp_conversion.defjvp
def _gdp_conversion_jvp(quantity: str, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    """Differentiates delta in closed form, the other two by the implicit function."""
    value = _gdp_conversion(quantity, *primals)
    with scope():
        first, second = (as_float64(primal) for primal in primals)
        answer = as_float64(value)
        mu, epsilon = {"delta": (first, second), "epsilon": (first, answer), "mu": (answer, first)}[quantity]
        # At a mu of 0, no loss at all, epsilon = 0 keeps the slopes that it has next to there.
        place = jnp.where(epsilon == 0, 0.0, epsilon / mu)
        by_mu = jnp.exp(-0.5 * (place - mu / 2) ** 2 - LOG_NORMAL)
        by_epsilon = -jnp.exp(epsilon + log_ndtr(-place - mu / 2))
        by_first, by_second = {
            "delta": (by_mu, by_epsilon),
            "epsilon": (-by_mu / by_epsilon, 1 / by_epsilon),
            "mu": (-by_epsilon / by_mu, 1 / by_mu),
        }[quantity]
        if quantity == "epsilon":
            # An epsilon of 0 stays at 0, whichever way the arguments move.
            by_first, by_second = (jnp.where(answer <= 0, 0.0, slope) for slope in (by_first, by_second))
        first_move, second_move = (as_float64(move) for move in tangents)
        return value, by_first * first_move + by_second * second_move


# ----------------------------------------------------------------------------------------------------
# Privacy parameters of single mechanisms: (epsilon, delta), zCDP and GDP. Mechanisms without them are refused.
#
# A subsampled Gaussian has no useful number of this kind: its zCDP and GDP parameters are those of the Gaussian without
# sampling. Rényi filters are for it.
# ----------------------------------------------------------------------------------------------------


def margin_of_costs() -> float:
    """Returns the relative rounding of a handful of operations, two elementary functions among them."""
    return 8 * arithmetic().function


def _of_one_run(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Returns a function of a mechanism entered in float64, with derivatives by differences.

    JAX's own are 0 at the ends of ranges, where a minimum or an exception decides. They are right for
    :class:`.DiscretePair`, whose masses sum to 1 and so do not move alone.
    """
    by_differences = kernel(derivatives=Differences())(function)
    plain = kernel(function)

    @functools.wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        mechanism = args[0] if args else kwargs["mechanism"]
        return (plain if isinstance(mechanism, DiscretePair) else by_differences)(*args, **kwargs)

    return run


@_of_one_run
def mechanism_to_dp(
    mechanism: Mechanism, *, relation: Relation = "add_or_remove"
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    """Returns an (epsilon, delta) of one run, for mechanisms that have a natural one: float64, of its batch shape.

    The pure ones have delta 0: :class:`.PureDP`, :class:`.RandomizedResponse`, :class:`.ExponentialMechanism`, Laplace
    noise (sampled or discrete), and :class:`.AboveThreshold`. :class:`.ApproximateDP` has its own, and sampled ones
    that of their theorem (:class:`.PoissonSubsampledDP`, :class:`.DPWithoutReplacement`). :class:`.DiscretePair` and
    :class:`.PrivacyLoss` have the largest finite loss, and the probability of an infinite one.

    Formal guarantee: upper bounds, rounding included, for ``relation``; each run is (epsilon, delta)-DP. For delta = 0
    the privacy loss is at most epsilon surely. ``inf`` for invalid traced parameters. Of :class:`.PureDP` and
    :class:`.ApproximateDP` under "remove" or "add" it is a guarantee of that direction alone; that of every other
    mechanism holds in both.

    Raises ValueError for a mechanism without such a pair (Gaussian noise has a curve of them: give the one to be used
    as :class:`.ApproximateDP`), and where a concrete field or the relation is not valid.

    >>> from jaxacct import Laplace
    >>> tuple(float(value) for value in mechanism_to_dp(Laplace(scale=4.0), relation="replace"))
    (0.5000000000000036, 0.0)
    """
    _check_run(mechanism, relation)
    # A subclass may be another mechanism. The epsilon of RandomizedResponse is the log ratio of its probabilities, for
    # any number of outcomes.
    kind, known, delta = type(mechanism), cast(Any, mechanism), 0.0
    if kind in (PureDP, ApproximateDP, ExponentialMechanism, RandomizedResponse):
        epsilon, delta = known.epsilon, getattr(known, "delta", 0.0)
    elif kind is Laplace:
        epsilon = _noise_ratio(_shift(relation), known.scale)
    elif kind is DiscreteLaplace:
        epsilon = _noise_ratio(float(known.sensitivity), known.scale)
    elif kind is PoissonSubsampledLaplace:
        if relation == "replace":
            raise ValueError(
                'relation = "replace" has no pure epsilon here for a sampled Laplace: use "add_or_remove".'
            )
        epsilon = _amplify(_noise_ratio(1.0, known.scale), known.sampling_rate)
    elif kind in (PoissonSubsampledDP, DPWithoutReplacement):
        epsilon = _amplify(known.epsilon, known.sampling_rate)
        delta = _amplify_delta(known.delta, known.sampling_rate)
    elif kind in (AboveThreshold, DiscretePair, LaplaceWithoutReplacement, PrivacyLoss):
        # Their losses end, and the pairs say where. The two directions of a pair may differ: what is said of "remove"
        # or "add" holds for the reverse, too.
        return _end_of_losses(mechanism, "add_or_remove" if relation in REVERSE else relation)
    else:
        raise ValueError(_no_epsilon(mechanism))
    return _valid_dp(epsilon, delta)


def _no_epsilon(mechanism: Mechanism) -> str:
    """Returns why no epsilon bounds the losses of a mechanism, and what to do."""
    name = type(mechanism).__name__
    if isinstance(mechanism, (ZeroConcentratedDP, RenyiOnly)):
        what = f"{name} is known by its Rényi divergences, of which no epsilon at delta = 0 follows"
    elif isinstance(mechanism, (Gaussian, DiscreteGaussian, TreeAggregation, MatrixMechanism)):
        what = f"{name} has Gaussian noise, whose losses have no upper end: no epsilon bounds them surely"
    elif isinstance(mechanism, PoissonSubsampledGaussian):
        what = f"{name} has a curve of (epsilon, delta), and no one number that counts its sampling"
    else:
        what = f"no (epsilon, delta) of one run of {name} is stated here"
    return (
        f"{what}. Give ja.ApproximateDP(epsilon, delta) with a pair that it satisfies (ja.epsilon finds one), or use a "
        "Rényi filter or odometer."
    )


@_of_one_run
def mechanism_to_zcdp(
    mechanism: Mechanism, *, relation: Relation = "add_or_remove"
) -> tuple[Float[Array, " ..."], Float[Array, " ..."]]:
    """Returns (rho, delta): one run is delta-approximately rho-zCDP; float64, of the mechanism's batch shape.

    It is 1/(2 s^2) for Gaussian noise, continuous or discrete, or correlated without sampling, epsilon^2/8 for the
    exponential mechanism (Hoeffding's lemma on a range of epsilon), and epsilon tanh(epsilon/2) for an epsilon of
    :func:`mechanism_to_dp`, which is less than epsilon^2/2 (:func:`.pure_to_zcdp`). For :class:`.ZeroConcentratedDP` it
    is rho + xi: at orders a above 1, xi + rho a is at most (xi + rho) a. For :class:`.PureDP` and
    :class:`.ApproximateDP` under "remove" or "add" it is epsilon itself: beside its failures the worst pair of one
    direction has a loss of epsilon surely, and so a divergence of epsilon at every order.

    Formal guarantee: upper bounds, rounding included, for ``relation``. ``inf`` for invalid traced parameters.

    Raises ValueError for a mechanism without such a number, and where a concrete field or the relation is not valid.

    Source: Bun and Steinke (2016), "Concentrated differential privacy", Proposition 1.6 and Definition 8.1; discrete
    Gaussian, Canonne, Kamath and Steinke (2020), Theorem 4.

    >>> from jaxacct import Gaussian
    >>> tuple(round(float(value), 9) for value in mechanism_to_zcdp(Gaussian(noise_multiplier=2.0)))
    (0.125, 0.0)
    """
    gaussian = _of_gaussian(mechanism, relation)
    if gaussian is not None:
        rho, delta, _ = gaussian
        return rho, delta
    if isinstance(mechanism, ZeroConcentratedDP):
        return _convert_concentrated(mechanism.rho, mechanism.xi)
    if isinstance(mechanism, ExponentialMechanism):
        return _zcdp_of_range(mechanism.epsilon), jnp.zeros(np.shape(mechanism.epsilon))
    epsilon, delta = mechanism_to_dp(mechanism, relation=relation)
    return epsilon if holds_one_way(mechanism, relation) else pure_to_zcdp(epsilon), delta


@_of_one_run
def mechanism_to_gdp(mechanism: Mechanism, *, relation: Relation = "add_or_remove") -> Float[Array, " ..."]:
    """Returns mu: one run is mu-GDP; float64, of the mechanism's batch shape.

    It is 1/s for Gaussian noise. For a pure epsilon it is twice the normal quantile of e^epsilon/(1 + e^epsilon): the
    trade-off function of randomized response, which bounds that of every epsilon-DP mechanism from below, has its only
    vertex on the Gaussian one's curve; lying on the convex curve's chords it is above it.

    Formal guarantee: an upper bound, rounding included, for ``relation``. ``inf`` for invalid traced parameters.

    Raises ValueError for a mechanism that is not GDP or whose mu is not known, among them an (epsilon, delta) with
    delta above 0 and :class:`.PureDP` under "remove" or "add" (an event may then have a probability of 1 here and below
    1 there, which no mu allows), and where a concrete field or the relation is not valid.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Theorem 1; the vertex as above.

    >>> from jaxacct import Gaussian, PureDP
    >>> [round(float(mechanism_to_gdp(each)), 6) for each in (Gaussian(2.0), PureDP(1.0))]
    [0.5, 1.232035]
    """
    # Noise on integers is no Gaussian noise: of scale 1/2 its two laws are .79 apart, and those of mu = 2 are .68.
    if isinstance(mechanism, (ApproximateDP, DiscreteGaussian)):
        _check_run(mechanism, relation)
        raise ValueError(f"{type(mechanism).__name__} is not known to be GDP: use a zCDP or a Rényi filter.")
    gaussian = _of_gaussian(mechanism, relation)
    if gaussian is not None:
        return gaussian[2]
    if holds_one_way(mechanism, relation):
        raise ValueError(
            f"{type(mechanism).__name__} under relation = {relation!r} is a guarantee of one direction, which is not "
            'GDP: use a zCDP or a Rényi filter, or "add_or_remove" where it holds both ways.'
        )
    epsilon, delta = mechanism_to_dp(mechanism, relation=relation)
    seen = validation.concrete_value(delta)
    if seen is not None and np.any(seen > 0):
        raise ValueError(
            f"{type(mechanism).__name__} may tell everything with probability delta = {np.max(seen):.3g}, so it is "
            "not GDP: use an (epsilon, delta) or zCDP filter, with mechanism_delta."
        )
    return _gdp_of_pure(epsilon, delta)


def _check_run(mechanism: Mechanism, relation: Relation) -> None:
    check_mechanism(mechanism)
    directions(mechanism, relation)
    if isinstance(mechanism, DiscreteGaussianVector):
        mechanism.dominating_pairs(relation)  # raises, with the reason


def _shift(relation: Relation) -> float:
    """Returns the distance that a query of sensitivity 1 moves between neighbours."""
    return 2.0 if relation == "replace" else 1.0


def _of_gaussian(mechanism: Mechanism, relation: Relation) -> tuple[Array, Array, Array] | None:
    """Returns rho, a delta of 0 and mu: Gaussian noise is rho-zCDP surely, and mu-GDP. None for other mechanisms."""
    _check_run(mechanism, relation)
    if isinstance(mechanism, Gaussian):
        return _gaussian_cost(_shift(relation), mechanism.noise_multiplier)
    if isinstance(mechanism, DiscreteGaussian):
        return _gaussian_cost(float(mechanism.sensitivity), mechanism.scale)
    if isinstance(mechanism, TreeAggregation) or (isinstance(mechanism, MatrixMechanism) and not mechanism.is_sampled):
        return _gaussian_cost(_shift(relation), mechanism.as_gaussian().noise_multiplier)
    return None


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _gaussian_cost(shift: Array, scale: Array) -> tuple[Array, Array, Array]:
    ratio = jnp.maximum((shift / scale) ** 2 * (1 + margin_of_costs()), LEAST_COST)
    mu_squared = jnp.where(scale > 0, jnp.where(scale < jnp.inf, ratio, 0.0), jnp.inf)
    return mu_squared / 2, jnp.zeros(scale.shape), jnp.sqrt(mu_squared) * (1 + margin_of_costs())


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _convert_concentrated(rho: Array, xi: Array) -> tuple[Array, Array]:
    rho, xi = jnp.broadcast_arrays(as_float64(rho), as_float64(xi))
    total = jnp.maximum((rho + xi) * (1 + margin_of_costs()), LEAST_COST)
    free, valid = is_zero(rho) & is_zero(xi), (rho >= 0) & (xi >= 0)
    return jnp.where(valid, jnp.where(free, 0.0, total), jnp.inf), jnp.zeros(rho.shape)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _noise_ratio(shift: Array, scale: Array) -> Array:
    ratio = jnp.maximum(as_float64(shift) / scale * (1 + margin_of_costs()), TINY)
    return jnp.where(scale > 0, jnp.where(scale < jnp.inf, ratio, 0.0), jnp.inf)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _amplify(epsilon: Array, rate: Array) -> Array:
    """Returns :func:`.log_of_sampled`, rounded up."""
    bound = log_of_sampled(epsilon, rate)
    raised = jnp.maximum(bound * (1 + 8 * margin_of_costs()), TINY)
    free = is_zero(epsilon) | is_zero(rate)
    valid = (epsilon >= 0) & ((epsilon < jnp.inf) | free) & (rate >= 0) & (rate <= 1)
    return jnp.where(valid, jnp.where(free, 0.0, jnp.minimum(raised, epsilon)), jnp.inf)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _amplify_delta(delta: Array, rate: Array) -> Array:
    """Returns rate delta, rounded up, and at most delta; 0 only where one of the two is, NaN where delta is invalid."""
    delta, rate = jnp.broadcast_arrays(as_float64(delta), as_float64(rate))
    raised = jnp.minimum(jnp.maximum(delta * rate * (1 + margin_of_costs()), TINY), delta)
    valid = (delta >= 0) & (delta <= 1)  # a share of what is no probability may be one
    return jnp.where(valid, jnp.where(is_zero(delta) | is_zero(rate), 0.0, raised), jnp.nan)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _zcdp_of_range(epsilon: Array) -> Array:
    """Returns the least known rho of losses that lie in a range of ``epsilon``, rounded up."""
    hoeffding = jnp.maximum(epsilon * epsilon / 8 * (1 + margin_of_products()), LEAST_COST)
    known = jnp.minimum(hoeffding, epsilon * jnp.tanh(epsilon / 2) * (1 + margin_of_pure()) + LEAST_COST)
    return jnp.where(epsilon >= 0, jnp.where(is_zero(epsilon), 0.0, known), jnp.inf)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _valid_dp(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    epsilon, delta = jnp.broadcast_arrays(as_float64(epsilon), as_float64(delta))
    valid = (epsilon >= 0) & (delta >= 0) & (delta <= 1)
    return jnp.where(valid, kept_positive(epsilon), jnp.inf), jnp.where(valid, kept_positive(delta), 1.0)


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _gdp_of_pure(epsilon: Array, delta: Array) -> Array:
    """Returns the least known mu of a pure epsilon, rounded up; ``inf`` where delta is above 0."""
    epsilon = as_float64(epsilon)
    probability = (1 - margin_of_costs()) / (1 + jnp.exp(jnp.minimum(epsilon, 700.0)))
    place, error = jnp.vectorize(quantile)(probability)
    bound = jnp.where(epsilon < 700, 2 * (error - place) * (1 + margin_of_costs()), jnp.inf)
    # Near 0 the rounding above exceeds the value. There tanh(epsilon/2) = 2 Phi(mu/2) - 1, where the left side is at
    # most epsilon/2 and the right side at least mu (1 - mu^2/24)/sqrt(2 pi).
    near = jnp.sqrt(jnp.pi / 2) * epsilon * (1 + 0.07 * epsilon**2) * (1 + margin_of_costs())
    bound = jnp.maximum(jnp.where(epsilon < 0.5, jnp.minimum(bound, near), bound), TINY)
    return jnp.where(delta == 0, jnp.where(is_zero(epsilon), 0.0, jnp.where(epsilon >= 0, bound, jnp.inf)), jnp.inf)


def _end_of_losses(mechanism: Mechanism, relation: Relation) -> tuple[Any, Any]:
    """Returns the largest finite loss of a mechanism's pairs and the largest probability of infinite ones, rounded up.

    At the largest finite loss y a pair's delta is P(Y = inf) + E[(1 - e^(y - Y))+; Y < inf], whose second part is 0.
    """
    if mechanism.batch_shape:
        raise ValueError(
            f"mechanism of shape {mechanism.batch_shape}: give one {type(mechanism).__name__}, or use jax.vmap."
        )
    return _end_of_pairs(mechanism.dominating_pairs(relation))


@kernel(compiles=By.XLA_FAST, derivatives=Differences())
def _end_of_pairs(pairs: tuple[DominatingPair, ...]) -> tuple[Array, Array]:
    epsilons, deltas = [], []
    for pair in pairs:
        infinite = pair.infinite_mass() * (1 + pair.infinite_mass_error()) * (1 + margin_of_costs())
        # Masses may sum to one within a tolerance alone: a pair that cannot vouch for them is left to its other checks.
        known = pair.is_valid() & (infinite >= 0)
        epsilons.append(jnp.where(known, jnp.maximum(pair.supremum()[1], 0.0), jnp.inf))
        deltas.append(jnp.where(known, jnp.minimum(infinite, 1.0), 1.0))
    return functools.reduce(jnp.maximum, epsilons), kept_positive(functools.reduce(jnp.maximum, deltas))
