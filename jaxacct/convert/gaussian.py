"""Gaussian differential privacy to (epsilon, delta) and back, by Bu, Dong, Long and Su (2020), equation 3.2.

    delta = Phi(-a) - e^epsilon Phi(-b),   a = epsilon/mu - mu/2,   b = epsilon/mu + mu/2,

a difference that cancels wherever delta is small beside its terms. With phi(a) = e^epsilon phi(b) and Mills' ratio
R(x) = Phi(-x)/phi(x), the integral of e^(-x t - t^2/2) over t > 0, it is

    delta = phi(a) (R(a) - R(b)) = phi(a) integral of e^(-a t - t^2/2) (1 - e^(-mu t)),
    1 - delta = phi(a) (R(-a) + R(b)),

of which the first has a positive integrand and serves for a > -1/2, the second a sum of positive terms and serves
below. The integrals are taken by the double exponential rule t = c e^(x - e^-x), c = 1/(1 + |rate|).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.kernels import kernel
from jaxacct.convert.orders import checked_orders
from jaxacct.convert.roots import root
from jaxacct.precision import TINY, UNIT_ROUNDOFF, as_float64, log_complement

_STEP = 1 / 12
_X = np.arange(-4.2, 4.6, _STEP)
NODES = np.exp(_X - np.exp(-_X))
"""Where the double exponential rule looks, in units of c."""
WEIGHTS = _STEP * NODES * (1 + np.exp(-_X))
"""Its weights: 106 nodes leave 4e-15 of the integral, by comparison with 30 digits for rates to 1e5."""

SMALLEST_MU = 1e-30
"""Below it 1 - e^(-mu t) is mu t to all digits."""

MARGIN = 64 * UNIT_ROUNDOFF
"""Relative rounding of delta where its arguments are exact: quadrature and sums, five times what was measured."""

ROUNDS = 24
"""Evaluations in the search for a root: 20 were enough in each of 100,000 settings.

mu from 1e-6 to 1000, delta from 1e-300 to 0.999.
"""

NUDGES = 2.0 ** np.arange(-50.0, -19.0, 2.0)
"""Relative steps to the safe side of a root that are tried, until one is seen to be there."""


def gdp_to_delta(mu: Float[ArrayLike, "*batch"], epsilon: Float[ArrayLike, "*batch"]) -> Float[Array, "*batch"]:
    """Returns delta(epsilon) of a mu-GDP mechanism, in [0, 1]; float64 (...).

    Args:
        mu (...): the Gaussian parameter, at least 0: as hard to tell apart as N(0, 1) and N(mu, 1).
        epsilon (...): at least 0, of the same shape or a scalar.

    Formal guarantee: an upper bound, rounding included, above the exact value by a relative
    1e-14 (1 + |a|) (1 + epsilon/mu + mu), a as in the module's formula; exact means attained by the Gaussian mechanism.
    What is above 0 is reported as at least 2.2e-308. (A mu from a central limit theorem makes it an estimate.)

    Raises ValueError where a concrete argument is negative; traced ones give 1.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", equation 3.2; Balle and
    Wang (2018), Theorem 8.

    >>> float(gdp_to_delta(1.0, 1.0).round(6)), f"{gdp_to_delta(0.1, 3.5):.6e}"
    (0.126937, '1.844236e-270')
    """
    validation.check_epsilon(epsilon)
    _check_mu(mu)
    return _gdp_to_delta(mu, epsilon)


def gdp_to_epsilon(mu: Float[ArrayLike, "*batch"], delta: Float[ArrayLike, "*batch"]) -> Float[Array, "*batch"]:
    """Returns the least epsilon >= 0 of a mu-GDP mechanism at ``delta``; float64 (...).

    Args:
        mu (...): at least 0.
        delta (...): in (0, 1), of the same shape or a scalar.

    Formal guarantee: an upper bound, rounding included: :func:`gdp_to_delta` there is at most ``delta``. ``inf`` where
    an argument is traced and invalid.

    Raises ValueError where a concrete argument is out of range. Source: as :func:`gdp_to_delta`, inverted.

    >>> round(float(gdp_to_epsilon(1.0, 1e-5)), 4), round(float(gdp_to_epsilon(1.0, 1e-300)), 4)
    (4.3772, 37.4488)
    """
    validation.check_delta(delta)
    _check_mu(mu)
    return _gdp_to_epsilon(mu, delta)


def dp_to_gdp(epsilon: Float[ArrayLike, "*batch"], delta: Float[ArrayLike, "*batch"]) -> Float[Array, "*batch"]:
    """Returns the largest mu such that mu-GDP implies (epsilon, delta)-DP; float64 (...).

    It says how much Gaussian noise a budget asks for, 1/mu; an (epsilon, delta)-DP mechanism need *not* be mu-GDP.

    Args:
        epsilon (...): at least 0, finite.
        delta (...): in (0, 1), of the same shape or a scalar.

    Formal guarantee: a lower bound on that mu, rounding included, so that it keeps within the budget. 0 where an
    argument is traced and invalid.

    Raises ValueError where a concrete argument is out of range. Source: as :func:`gdp_to_delta`, solved for mu.

    >>> round(float(dp_to_gdp(1.0, 1e-5)), 6)
    0.268051
    """
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    return _dp_to_gdp(epsilon, delta)


def gdp_to_rdp(
    mu: Float[ArrayLike, "*batch"], orders: Sequence[float] | Float[ArrayLike, " orders"]
) -> Float[Array, "*batch orders"]:
    """Returns the Rényi divergence of a mu-GDP mechanism at each order, ``order mu^2 / 2``; float64 (..., orders).

    Formal guarantee: an upper bound, attained by the Gaussian mechanism; so mu-GDP implies (mu^2/2)-zCDP (Dong, Roth
    and Su 2022, "Gaussian differential privacy", Corollary B.6). Raises ValueError where a concrete mu is negative or
    an order is not above 1; traced ones give ``inf``.

    >>> gdp_to_rdp(0.5, [2.0, 8.0]).round(9).tolist()
    [0.25, 1.0]
    """
    _check_mu(mu)
    return _gdp_to_rdp(mu, checked_orders(orders))


def _check_mu(mu: ArrayLike) -> None:
    seen = validation.concrete_value(mu)
    if seen is not None and not np.all(seen >= 0):
        raise ValueError(f"mu = {mu} is not a Gaussian privacy parameter: give a number of at least 0.")


def log_delta(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns log delta for mu > 0 and epsilon >= 0, and a bound on its rounding; elementwise, in the float64 scope."""
    ratio = epsilon / mu
    a, b = ratio - mu / 2, ratio + mu / 2
    distance = jnp.abs(a)
    log_density = -0.5 * a**2 - 0.5 * jnp.log(2 * jnp.pi)
    # Linear in mu where mu is tiny; there mu t would be flushed to zero.
    held = jnp.maximum(mu, SMALLEST_MU)
    apart = jnp.log(_integral(jnp.maximum(a, -0.5), lambda t: -jnp.expm1(-held[None] * t)))
    apart = log_density + apart + jnp.log(mu / held)
    mills = _integral(distance, jnp.ones_like) + _integral(b, jnp.ones_like)
    near = log_complement(jnp.minimum(jnp.exp(log_density) * mills, 0.75))
    value = jnp.where(a > -0.5, apart, near)
    return value, MARGIN * (1 + (1 + distance) * (1 + b))


def _integral(rate: Array, factor: Callable[[Array], Array]) -> Array:
    """Returns the integral of ``factor(t) e^(-rate t - t^2/2)`` over t > 0, for rate >= -1/2."""
    nodes = (slice(None),) + (None,) * rate.ndim
    scale = 1 / (1 + jnp.abs(rate))[None]
    t = jnp.asarray(NODES)[nodes] * scale
    weights = jnp.asarray(WEIGHTS)[nodes] * scale
    return jnp.sum(weights * factor(t) * jnp.exp(-t * (rate[None] + t / 2)), axis=0)


def _pair(first: Array, second: Array) -> tuple[Array, Array]:
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second))
    return jnp.broadcast_to(as_float64(first), shape), jnp.broadcast_to(as_float64(second), shape)


@kernel
def _gdp_to_delta(mu: Array, epsilon: Array) -> Array:
    mu, epsilon = _pair(mu, epsilon)
    known = (mu > 0) & (mu < jnp.inf) & (epsilon >= 0) & (epsilon < jnp.inf)
    value, error = log_delta(jnp.where(known, mu, 1.0), jnp.where(known, epsilon, 1.0))
    bound = jnp.clip(jnp.exp(value + error), TINY, 1.0)
    rest = jnp.where((epsilon == jnp.inf) & (mu < jnp.inf), TINY, 1.0)
    return jnp.where((mu == 0) & (epsilon >= 0), 0.0, jnp.where(known, bound, jnp.where(mu > 0, rest, 1.0)))


@kernel
def _gdp_to_epsilon(mu: Array, delta: Array) -> Array:
    mu, delta = _pair(mu, delta)
    known = (mu > 0) & (mu < jnp.inf) & (delta > 0) & (delta < 1)
    m, d = jnp.where(known, mu, 1.0), jnp.where(known, delta, 0.5)
    log_target = jnp.log(d)

    def epsilon_of(a: Array) -> Array:
        return jnp.maximum(m * (a + m / 2), 0.0)

    def excess(a: Array) -> Array:
        value, error = log_delta(m, epsilon_of(a))
        return value + error - log_target + MARGIN * jnp.abs(log_target)

    # delta <= Phi(-a) <= e^(-a^2/2) for a >= 0.
    low, high = -m / 2, jnp.sqrt(-2 * log_target) * (1 + MARGIN)
    a = root(excess, high, low, ROUNDS)  # it falls: from the larger end to the smaller
    nudges = jnp.asarray(NUDGES).reshape(-1, *(1,) * a.ndim) * (jnp.abs(a) + m + 1)[None]
    tried = jnp.concatenate([low[None], jnp.minimum(a[None] + nudges, high[None])])
    best = jnp.min(jnp.where(jax.vmap(excess)(tried) <= 0, tried, high[None]), axis=0)
    bound = epsilon_of(best) * (1 + MARGIN)
    return jnp.where((mu == 0) & (delta > 0) & (delta < 1), 0.0, jnp.where(known, bound, jnp.inf))


@kernel
def _dp_to_gdp(epsilon: Array, delta: Array) -> Array:
    epsilon, delta = _pair(epsilon, delta)
    known = (epsilon >= 0) & (epsilon < jnp.inf) & (delta > 0) & (delta < 1)
    e, d = jnp.where(known, epsilon, 1.0), jnp.where(known, delta, 0.5)
    log_target = jnp.log(d)

    def excess(log_mu: Array) -> Array:
        value, error = log_delta(jnp.exp(log_mu), e)
        return value + error - log_target + MARGIN * jnp.abs(log_target)

    # mu = sqrt(a^2 + 2 epsilon) - a. At the larger a delta(epsilon) <= e^(-a^2/2) = delta, at the smaller one
    # 1 - delta(epsilon) <= 2 Phi(-|a|) <= e^(-a^2/2) = 1 - delta; and delta(epsilon) <= mu/sqrt(2 pi).
    far = jnp.sqrt(-2 * log_target)
    low = jnp.maximum(2 * e / (far + jnp.sqrt(far**2 + 2 * e)), 2 * d) * (1 - MARGIN)
    back = -2 * log_complement(d)
    high = (jnp.sqrt(back) + jnp.sqrt(back + 2 * e)) * (1 + MARGIN)
    log_mu = root(excess, jnp.log(low), jnp.log(high), ROUNDS)
    nudges = jnp.asarray(NUDGES).reshape(-1, *(1,) * log_mu.ndim) * (1 + jnp.abs(log_mu))[None]
    tried = jnp.maximum(log_mu[None] - nudges, jnp.log(low)[None])
    best = jnp.max(jnp.where(jax.vmap(excess)(tried) <= 0, tried, jnp.log(low)[None]), axis=0)
    return jnp.where(known, jnp.exp(best) * (1 - MARGIN * (1 + jnp.abs(best))), 0.0)


@kernel
def _gdp_to_rdp(mu: Array, orders: Array) -> Array:
    mu, orders = as_float64(mu), as_float64(orders)
    shape = (*mu.shape, *orders.shape)
    mu = jnp.broadcast_to(mu[..., None], shape)
    orders = jnp.broadcast_to(orders.reshape((1,) * (len(shape) - 1) + orders.shape), shape)
    known = (mu >= 0) & (orders > 1) & (orders < jnp.inf)
    return jnp.where(known, orders * mu**2 / 2 * (1 + MARGIN), jnp.inf)
