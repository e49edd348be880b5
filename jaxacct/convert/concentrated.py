"""Conversions of pure, concentrated and bounded-range differential privacy.

In reading order:

- epsilon-DP as Rényi and as concentrated differential privacy (:func:`pure_to_rdp`, :func:`pure_to_zcdp`),
- zCDP and tCDP to and from Rényi divergences and (epsilon, delta),
- the worst composition of mechanisms of bounded range (:func:`bounded_range_to_delta`,
  :func:`bounded_range_to_epsilon`).
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
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
    kernel,
    least_between,
    softplus,
)
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, as_float64, is_zero
from jaxacct.numerics.programs import lowered, raised
from jaxacct.numerics.root_search import bisect


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
    validation.check_epsilon(epsilon)
    return _pure_to_zcdp(epsilon)


@kernel
def _pure_to_rdp(epsilon: Array, orders: Array) -> Array:
    x, order = by_order(epsilon, orders)
    power = order - 1
    # The moment is 1 + (e^(b x) - 1) (1 - e^(-a x))/(1 + e^-x), a the order and b = a - 1. However close it is to 1,
    # this form keeps all of its distance from 1. Where b x is above 1 its logarithm, at least 0.43 then, is summed.
    excess = jnp.expm1(jnp.minimum(power * x, 1.0)) * -jnp.expm1(-(power + 1) * x) / (1 + jnp.exp(-x))
    far = power * x + softplus(-(2 * power + 1) * x) - softplus(-x)
    divergence = jnp.where(power * x < 1, jnp.log1p(excess), far) / power
    known = (x >= 0) & (power > 0) & (power < jnp.inf)
    bound = jnp.where(x == 0, 0.0, jnp.minimum(divergence * (1 + margin_of_pure()), x))
    return jnp.where(known, jnp.where(x == jnp.inf, jnp.inf, bound), jnp.inf)


@kernel
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

NARROWEST, WIDEST = 1 / 32, 2.0
"""Ends of the search, as factors of the order - 1 that is best for Mironov's rule. Tightness only.

The best factor for "optimal" was between 0.07 and 1.0 in 3,000 settings (rho in [1e-8, 1e3], delta in [1e-300, 0.5]).
"""


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
    _check(rho, omega)
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
    _check(rho, omega)
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
    validation.check_one_of(method, "method", METHODS)
    validation.check_epsilon(epsilon)
    _check(rho, omega)
    return _tcdp_implies(rho, omega, epsilon, ToDelta(method))


def _check(rho: ArrayLike, omega: ArrayLike) -> None:
    for name, value, bound in (("rho", rho, "of at least 0"), ("omega", omega, "above 1")):
        seen = validation.concrete_value(value)
        if seen is not None and not np.all(seen >= 0 if name == "rho" else seen > 1):
            raise ValueError(f"{name} = {value} is out of range: give a number {bound}.")


@kernel
def _tcdp_to_rdp(rho: Array, omega: Array, orders: Array) -> Array:
    rho, omega, orders = as_float64(rho), as_float64(omega), as_float64(orders)
    known = (rho >= 0) & (orders > 1) & (orders <= omega) & (omega > 1)
    return jnp.where(known, rho * orders * (1 + margin_of_products()), jnp.inf)


def _largest_rho(found: tuple[Array, Array]) -> tuple[Array, Array]:
    return raised(found[0]), lowered(found[1])


@kernel(safe=_largest_rho)
def _rdp_to_tcdp(rdp: Array, orders: Array) -> tuple[Array, Array]:
    rdp, orders = as_float64(rdp), as_float64(orders)
    x = jnp.concatenate([jnp.zeros(1), orders - 1])
    moments = jnp.concatenate([jnp.zeros(1), (orders - 1) * rdp])
    slope = jnp.diff(moments) / jnp.diff(x)
    # A chord's intercept is at most 0 where the moments are convex, for they are 0 at order 1. Where they are not (they
    # are upper bounds only), the larger of its ends counts.
    start = jnp.minimum(moments[:-1] - slope * x[:-1], 0.0)
    best = (-start + jnp.sqrt(start**2 - start * slope)) / jnp.where(slope > 0, slope, 1.0)

    def ratio(at: Array, intercept: Array) -> Array:
        return (intercept + slope * at) / (at * (at + 1))

    inner = jnp.clip(best, jnp.where(x[:-1] > 0, x[:-1], x[1:]), x[1:])
    values = jnp.maximum(ratio(inner, start), rdp / orders)
    # Below the first order the chord runs from 0, and its ratio is largest at order 1.
    values = values.at[0].set(rdp[0])
    known = jnp.all((rdp >= 0) & (orders > 1)) & jnp.all(jnp.diff(x) > 0)
    rho = jnp.max(values) * (1 + margin_of_products())
    return jnp.where(known & ~jnp.isnan(rho), rho, jnp.inf), orders[-1]


@kernel(static=1)
def _tcdp_implies(rho: Array, omega: Array, number: Array, to: Conversion) -> Array:
    """Returns the least implied at ``number``, over orders around 1 + sqrt(size/rho), the best for Mironov's rule."""
    if isinstance(to, ToEpsilon):
        size, valid, unknown = -jnp.log(number), (number > 0) & (number < 1), jnp.inf
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
    least = least_between(bound, 1 + power * NARROWEST, 1 + power * WIDEST)
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

WIDEST_RANGE, MOST = 100.0, 2000
"""Longest range, in nats, and most runs. Limits of work alone."""

WORK = 1e9
"""Most mesh values that are formed, some four seconds of them; their number grows as the runs' to the power 3/2. A
limit of time alone."""

FINE, COARSE = 64, 32
"""Mesh points in a range, for up to a hundred runs and for more. Sound for any value; more are tighter and slower."""

ROUNDING = 4e-14
"""Relative error of one evaluation of (*): t is off by an ulp of the range, which near its end is 64 of p(t). The upper
bounds rest on it: it must not be lowered."""


def _size(span: float, steps: int) -> tuple[int, int]:
    """Returns the numbers of mesh points in a range, and on either side of 0.

    The losses' sum has mean k e^2/8 and deviation sqrt(k) e/2 at most; 12 of these are e^-72.
    """
    points = FINE if steps <= 100 else COARSE
    ranges = min(float(steps), steps * span / 4 + 6 * math.sqrt(steps)) + 2
    return points, math.ceil(ranges * points)


def is_affordable(span: float, steps: float) -> bool:
    """Returns whether a range and a number of runs are within the limits above, that of :data:`WORK` included."""
    if not (0 < span <= WIDEST_RANGE and 1 <= steps <= MOST):
        return False
    points, count = _size(span, int(steps))
    return 2.0 * points * count * steps <= WORK


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
    validation.check_epsilon(epsilon)
    return _at(*_worst(span, steps), span, steps, float(epsilon))


def bounded_range_to_epsilon(span: float, steps: int, delta: float) -> Bounds:
    """Returns bounds on the worst epsilon of the same compositions, at ``delta`` in (0, 1).

    Arguments, guarantee, errors and source are those of :func:`bounded_range_to_delta`.

    >>> print(bounded_range_to_epsilon(0.1, 100, delta=1e-6))
    [2.2457, 2.2514] not converged
    """
    validation.check_delta(delta)
    x, worst = _worst(span, steps)
    upper = _inverse(x, worst, delta)
    # Where the lower bound exceeds delta, some composition has no smaller epsilon.
    low = bisect(lambda epsilon: _together(span, steps, epsilon) > delta, 0.0, span * steps, steps=40)
    upper = min(upper, span * steps * (1 + ROUNDING))
    return Bounds(min(low, upper), math.nan, upper, upper - low <= 1e-3 * upper)


def _at(x: np.ndarray, worst: np.ndarray, span: float, steps: int, epsilon: float) -> Bounds:
    if epsilon >= span * steps:
        upper = 0.0
    elif epsilon >= x[-1]:
        upper = float(worst[-1])
    else:
        place = int(np.searchsorted(x, epsilon, side="right")) - 1
        share = math.expm1(epsilon - x[place]) / math.expm1(x[place + 1] - x[place])
        upper = float((1 - share) * worst[place] + share * worst[place + 1]) * (1 + 1e-12)
    lower = min(_together(span, steps, epsilon), upper)
    return Bounds(lower, math.nan, upper, upper - lower <= 1e-2 * upper)


def _inverse(x: np.ndarray, worst: np.ndarray, delta: float) -> float:
    """Returns the least epsilon >= 0 at which the chords are at most delta; inf where none is on the mesh."""
    passing = np.flatnonzero((worst <= delta) & (x >= 0))
    if not passing.size:
        return math.inf
    place = int(passing[0])
    if x[place] == 0 or worst[place - 1] <= delta:
        return max(float(x[place]), 0.0)
    share = (worst[place - 1] - delta) / (worst[place - 1] - worst[place])
    return float(x[place - 1] + math.log1p(share * math.expm1(x[place] - x[place - 1]))) * (1 + 1e-12)


def _worst(span: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a mesh of epsilons, negative ones too, and upper bounds on D_k there."""
    validation.check_whole(steps, "steps", 1, MOST, "the number of runs")
    if not 0 < span <= WIDEST_RANGE:
        raise ValueError(f"span = {span} is out of range: give the length of the losses' interval, in (0, 100].")
    if not is_affordable(span, steps):
        raise ValueError(f"steps = {steps} at span = {span} are too many: give fewer, or use jaxacct.rdp.")
    points, count = _size(span, steps)
    h = span / points
    x = h * np.arange(-count, count + 1)
    t = np.append(h * np.arange(points), span)
    high = -np.expm1(t - span) / -math.expm1(-span)
    low = np.exp(t - span) * -np.expm1(-t) / -math.expm1(-span)
    # The bulge of (*) between two t's: (h_s)^2 / (4 s^3) at the smaller s, times e^-e / (1 - e^-e).
    bulge = np.exp(t[1:]) * math.expm1(h) ** 2 / 4 / math.expm1(span)
    inside = np.clip(x, -span, span)
    single = np.expm1((inside - span) / 2) ** 2 / -math.expm1(-span) * (1 + ROUNDING)
    worst = np.where(x < -span, -np.expm1(x), np.where(x > span, 0.0, single))
    # Each step turns D_(k-1) on the mesh into an upper bound on D_k: the largest of (*) over the t's of the mesh, with
    # the bulge between each two of them.
    for _ in range(steps - 1):
        padded = np.concatenate([np.ones(points + 1), worst, np.full(points + 1, worst[-1])])
        # The chord from each mesh point to the one before it, at its left end: its value at e^x = 0.
        ends = np.concatenate([[1.0], padded[:-1] + (padded[:-1] - padded[1:]) / math.expm1(h)])
        before, best = None, np.zeros_like(worst)
        for j in range(points + 1):
            value = _from(padded, -j, x.size) * high[j] + _from(padded, points - j, x.size) * low[j]
            if before is not None:
                apart = _from(ends, 1 - j, x.size) - _from(ends, points + 1 - j, x.size)
                best = np.maximum(best, np.maximum(before, value) + bulge[j - 1] * np.maximum(apart, 0.0))
            before = value
        worst = np.minimum(best * (1 + ROUNDING), 1.0)
    return x, np.minimum.accumulate(worst)


def _from(padded: np.ndarray, by: int, size: int) -> np.ndarray:
    first = (padded.size - size) // 2 + by
    return padded[first : first + size]


def _together(span: float, steps: int, epsilon: float) -> float:
    """Returns a lower bound on the worst delta: the best of many t that are the same for all runs, rounded down."""
    t = span * np.arange(1, 4 * FINE)[:, None] / (4 * FINE)
    high = -np.expm1(t - span) / -math.expm1(-span)
    k = np.arange(steps + 1)[None, :]
    logs = np.array([math.lgamma(i + 1) for i in range(steps + 1)])
    counts = logs[-1] - logs - logs[::-1]
    log_mass = counts[None, :] + (steps - k) * np.log(high) + k * np.log1p(-high)
    gain = -np.expm1(np.minimum(epsilon - (steps * t - k * span), 0.0))
    return float(np.max(np.sum(np.exp(log_mass) * gain, axis=1))) * (1 - 1e-9)
