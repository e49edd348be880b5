"""Zero-concentrated and truncated concentrated differential privacy.

A mechanism is rho-zCDP if its Rényi divergence of every order a > 1 is at most rho a (Bun and Steinke 2016), and
(rho, omega)-tCDP if that holds for a < omega (Bun, Dwork, Rothblum and Steinke 2018, "Composable and versatile privacy
via truncated CDP"). At a = omega it holds then as well: the divergence is continuous from the left in its order.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.convert.kernels import kernel
from jaxacct.convert.orders import Divergences, Orders, checked_divergences, checked_orders, least_between
from jaxacct.convert.renyi import METHODS, Conversion, ToDelta, ToEpsilon
from jaxacct.platforms import lowered, raised
from jaxacct.precision import as_float64

NARROWEST, WIDEST = 1 / 32, 2.0
"""Factors of the order - 1 that is best for Mironov's rule, between which the search goes.

The best factor for "optimal" was between 0.07 and 1.0 in 3,000 settings (rho in [1e-8, 1e3], delta in [1e-300, 0.5]).
"""


def margin() -> float:
    """Returns the rounding of the products and quotients below: there are fewer, and no function among them."""
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
    """Returns ``rho * order`` for orders up to omega, and ``inf`` above, of which tCDP says nothing; float64.

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
    largest ratio of the chord to (order - 1) order is closed. From finitely many orders no zCDP follows, whatever their
    divergences: beyond the largest one nothing is known.

    Args:
        rdp (orders,): divergences, at least 0.
        orders (orders,): above 1, increasing.

    Formal guarantee: what is (order, rdp)-RDP for each order is (rho, omega)-tCDP; rounding included. Raises ValueError
    where a concrete argument is out of range or the orders do not increase. ``inf`` where they are traced and do not.

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
    return jnp.where(known, rho * orders * (1 + margin()), jnp.inf)


def _largest_rho(found: tuple[Array, Array]) -> tuple[Array, Array]:
    return raised(found[0]), lowered(found[1])


@kernel(safe=_largest_rho)
def _rdp_to_tcdp(rdp: Array, orders: Array) -> tuple[Array, Array]:
    rdp, orders = as_float64(rdp), as_float64(orders)
    x = jnp.concatenate([jnp.zeros(1), orders - 1])
    moments = jnp.concatenate([jnp.zeros(1), (orders - 1) * rdp])
    slope = jnp.diff(moments) / jnp.diff(x)
    # Of two crossing chords through 0 the intercept is at most 0 where the moments are convex; if they are not (they
    # are upper bounds only), the larger end counts as well.
    start = jnp.minimum(moments[:-1] - slope * x[:-1], 0.0)
    best = (-start + jnp.sqrt(start**2 - start * slope)) / jnp.where(slope > 0, slope, 1.0)

    def ratio(at: Array, intercept: Array) -> Array:
        return (intercept + slope * at) / (at * (at + 1))

    inner = jnp.clip(best, jnp.where(x[:-1] > 0, x[:-1], x[1:]), x[1:])
    values = jnp.maximum(ratio(inner, start), rdp / orders)
    # Below the first order the chord runs from 0, and its ratio is largest at order 1.
    values = values.at[0].set(rdp[0])
    known = jnp.all((rdp >= 0) & (orders > 1)) & jnp.all(jnp.diff(x) > 0)
    rho = jnp.max(values) * (1 + margin())
    return jnp.where(known & ~jnp.isnan(rho), rho, jnp.inf), orders[-1]


@kernel(static=1)
def _tcdp_implies(rho: Array, omega: Array, number: Array, to: Conversion) -> Array:
    """Returns the least implied at ``number``, over the orders around 1 + sqrt(size/rho), best for Mironov's rule."""
    if isinstance(to, ToEpsilon):
        size, valid, unknown = -jnp.log(number), (number > 0) & (number < 1), jnp.inf
    else:
        # Of Mironov's rule delta = e^(b (rho (b + 1) - epsilon)) is least at b = (epsilon/rho - 1)/2.
        size = jnp.where(number < jnp.inf, jnp.maximum(number / rho - 1, 0.1) ** 2 / 4 * rho, 1.0)
        valid, unknown = number >= 0, 1.0

    def bound(orders: Array) -> Array:
        tried = jnp.minimum(orders, omega)
        return to.of_orders(tried * rho * (1 + margin()), tried, jnp.broadcast_to(number, orders.shape))

    known = valid & (rho >= 0) & (rho < jnp.inf) & (omega > 1)
    power = jnp.sqrt(jnp.where(known & (rho > 0), size / rho, 1.0))
    # Kept in the range of float64, orders up to 1e15 included.
    power = jnp.clip(power, 1e-6, 1e15)
    least = least_between(bound, 1 + power * NARROWEST, 1 + power * WIDEST)
    return jnp.where(known, jnp.where(rho == 0, 0.0, jnp.fmin(least, unknown)), unknown)
