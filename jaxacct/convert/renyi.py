"""Rényi differential privacy to (epsilon, delta) and back, by the optimal relation or by a named older rule."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.convert import closed, optimal
from jaxacct.convert.kernels import kernel
from jaxacct.convert.logs import log_below
from jaxacct.convert.orders import Divergences, Orders, by_order, checked_divergences, checked_orders, least_between
from jaxacct.platforms import lowered
from jaxacct.precision import TINY, as_float64, first_index, is_concrete, log_complement

METHODS = ("optimal", "closed", "improved", "mironov")
"""How a divergence becomes (epsilon, delta): each of them is a bound, and none is below the one before it.

"optimal" is the whole truth about one order. "closed" is the bound in two branches of Asoodeh et al. (2021),
"improved" that of Canonne, Kamath and Steinke (2020) and Balle et al. (2020), "mironov" that of Mironov (2017).
"""

SPARING = ("optimal", "closed")
"""Those that spare log(1/(1 - delta)) where order delta >= 1."""

LEAST_METHODS = ("optimal", "g", "f")

_EPSILON = {
    "closed": closed.epsilon_closed,
    "improved": closed.epsilon_improved,
    "mironov": closed.epsilon_mironov,
}
_LOG_DELTA = {
    "closed": closed.log_delta_closed,
    "improved": closed.log_delta_improved,
    "mironov": closed.log_delta_mironov,
}
_LEAST = {"g": closed.least_rdp_g, "f": closed.least_rdp_f}


def margin() -> float:
    """Returns what a closed bound is rounded by, of the sizes that are added up beside it.

    By :mod:`.logs`, log(1 + (e^(b rdp) - 1)/(a delta)) is right to F (5 + 7 b rdp + 3.2 (log a - log delta)); others,
    sums of at most four terms, to less.
    """
    return 8 * arithmetic().function


def rdp_to_epsilon(
    rdp: Divergences,
    orders: Orders,
    delta: Float[ArrayLike, "*#batch"],
    method: str = "optimal",
) -> Float[Array, "*batch"]:
    """Returns the least epsilon, at least 0, that Rényi divergences imply at ``delta``; the best order counts; float64.

    Args:
        rdp (..., orders): Rényi divergence at each order, at least 0; ``inf`` where it is not known.
        orders (orders,): the orders, above 1; infinity, the supremum of the privacy loss, may be among them.
        delta (...): failure probability in (0, 1); scalar, or one for each of the leading axes. 0 asks for a pure
            epsilon, of which an infinite order alone says anything.
        method: one of :data:`METHODS`. The default is the tightest; the others compare with what was published.

    Formal guarantee: an upper bound, rounding included: whatever is (order, rdp)-RDP for each of the orders is
    (epsilon, delta)-DP. With "optimal" no smaller epsilon holds for *all* mechanisms with the divergence of the best
    order, to within rounding; the whole curve may allow less. ``inf`` where an argument is traced and invalid, 0 for a
    divergence of 0 at every order.

    Source: Asoodeh, Liao, Calmon, Kosut and Sankar (2021), "Three variants of differential privacy: lossless conversion
    and applications", Theorem 1; the proof that a minimum found only nearly errs on the safe side is in
    :mod:`jaxacct.convert.optimal`.

    >>> orders = [2.0, 4.0, 8.0, 16.0, 32.0]
    >>> [round(float(rdp_to_epsilon([0.005 * a for a in orders], orders, 1e-5, method)), 4) for method in METHODS]
    [0.3876, 0.3878, 0.3878, 0.5314]
    """
    validation.check_one_of(method, "method", METHODS)
    check_delta_or_none(delta)
    orders = checked_orders(orders, infinity=True)
    return least_implied(checked_divergences(rdp, orders), orders, delta, ToEpsilon(method))


def rdp_to_delta(
    rdp: Divergences,
    orders: Orders,
    epsilon: Float[ArrayLike, "*#batch"],
    method: str = "optimal",
) -> Float[Array, "*batch"]:
    """Returns the least delta, in [0, 1], that Rényi divergences imply at ``epsilon`` >= 0; the best order counts.

    Arguments, guarantee, errors and source are those of :func:`rdp_to_epsilon`; 1 stands for what is not known. What
    is above 0 is reported as at least 2.2e-308.

    >>> [round(float(rdp_to_delta([0.01, 0.02, 0.04], [2.0, 4.0, 8.0], 0.5, method)), 5) for method in METHODS]
    [0.0005, 0.00126, 0.00196, 0.03996]
    """
    validation.check_one_of(method, "method", METHODS)
    validation.check_epsilon(epsilon)
    orders = checked_orders(orders, infinity=True)
    return least_implied(checked_divergences(rdp, orders), orders, epsilon, ToDelta(method))


def least_rdp(
    epsilon: Float[ArrayLike, "*batch"],
    delta: Float[ArrayLike, "*batch"],
    orders: Orders,
    method: str = "optimal",
) -> Float[Array, "*batch orders"]:
    """Returns the least Rényi divergence, at each order, of any mechanism whose delta(epsilon) is ``delta``; float64.

    So a mechanism with less than this at *one* order is (epsilon, delta)-DP: it is the budget for that order. (The
    converse does not hold: with delta > 0 a divergence may be infinite.)

    Args:
        epsilon (...): at least 0.
        delta (...): in [0, 1), of the same shape or a scalar.
        orders (orders,): above 1; infinity is one.
        method: "optimal", or one of its closed lower bounds, for comparison: "g", which is the rule "improved", or "f".

    Formal guarantee: a lower bound on the divergence, rounding included, so that it is safe as a budget; with "optimal"
    attained, by a mechanism of two outcomes. 0 where an argument is traced and invalid.

    Source: Asoodeh et al. (2021), Theorem 1 and Theorem 2 (``g`` and ``f``).

    >>> least_rdp(1.0, 1e-5, [2.0, 8.0]).round(6).tolist()
    [6.9e-05, 0.028752]
    """
    validation.check_one_of(method, "method", LEAST_METHODS)
    validation.check_epsilon(epsilon)
    validation.check_probability(delta, "delta")
    return _least(epsilon, delta, checked_orders(orders, infinity=True), method)


def check_delta_or_none(delta: ArrayLike) -> None:
    """Raises where a concrete delta is neither in (0, 1) nor the 0 of pure differential privacy."""
    validation.check_number(delta, "delta")
    seen = validation.concrete_value(delta)
    if seen is None or np.any(seen != 0):
        validation.check_delta(delta)


@dataclass(frozen=True)
class Conversion(abc.ABC):
    """From Rényi divergences to one number at another; hashable, a static part of the programs.

    Attributes:
        method: one of :data:`METHODS`.
    """

    method: str

    @abc.abstractmethod
    def of_orders(self, rdp: Array, orders: Array, number: Array, *, many: bool = False) -> Array:
        """Returns what each order implies at ``number``, rounded up; elementwise, inside the float64 scope.

        ``number`` may be a scalar. Of ``many`` orders, from which the best counts, each is searched for less long.
        """

    @abc.abstractmethod
    def is_known(self, number: Array) -> Array:
        """Returns where ``number`` is one that may be asked of, so that nothing released implies 0."""

    def least(self, rdp: Array, orders: Array, number: Array) -> Array:
        """Returns the least that any of the orders (n,) implies, rounded up; 0 where nothing was released."""
        least = jnp.min(self.of_orders(rdp, orders, number, many=rdp.shape[0] >= optimal.MANY))
        return jnp.where(jnp.all(rdp == 0) & self.is_known(number), 0.0, least)

    def between(self, curve: Callable[[Array], Array], rdp: Array, orders: Array, number: Array) -> Array:
        """Returns the least implied by orders beside the best of ``orders``; ``curve`` gives divergences of others.

        The ends of ``orders`` go on a little. ``inf`` where nothing was released.
        """

        def bound(tried: Array) -> Array:
            return self.of_orders(curve(tried), tried, number)

        values = self.of_orders(rdp, orders, number, many=True)
        best = first_index(values == jnp.min(values))
        widened = jnp.concatenate([1 + (orders[:1] - 1) / 4, orders, 2 * orders[-1:]])
        least = least_between(bound, widened[best], widened[best + 2])
        return jnp.where(jnp.all(rdp == 0), jnp.inf, least)


@dataclass(frozen=True)
class ToEpsilon(Conversion):
    """The epsilon at a delta; ``inf`` where the divergence, the order or delta is none."""

    def is_known(self, number: Array) -> Array:
        return (number >= 0) & (number < 1)

    def of_orders(self, rdp: Array, orders: Array, number: Array, *, many: bool = False) -> Array:
        delta, all_orders = number, orders
        some, finite = (rdp >= 0) & (rdp < jnp.inf), _within(orders)
        possible, inside = (delta >= 0) & (delta < 1), (delta > 0) & (delta < 1)
        known = some & inside if finite is True else some & inside & finite
        given, asked = rdp, delta
        rdp, delta = jnp.where(known, rdp, 1.0), jnp.where(inside, delta, 0.5)
        orders = orders if finite is True else jnp.where(known, orders, 2.0)
        if self.method != "optimal":
            logs = jnp.log(orders) - jnp.log(delta)
            magnitude = rdp - log_below(orders - 1) + (1 + logs + (orders - 1) * rdp) / (orders - 1)
            bound = jnp.where(rdp == 0, 0.0, _EPSILON[self.method](rdp, orders, delta) + margin() * magnitude)
        else:
            rounds = optimal.EPSILON_ROUNDS_OF_MANY if many else optimal.EPSILON_ROUNDS
            bound = optimal.epsilon_at(rdp, orders, delta, rounds)
        bound = jnp.where(known, jnp.maximum(bound, 0.0), jnp.inf)
        if finite is True:
            return bound
        # Of order infinity all rules are the limit of theirs: rdp + log(1 - delta), or without that logarithm.
        spared = log_complement(jnp.where(possible, asked, 0.0)) if self.method in SPARING else jnp.zeros_like(asked)
        largest = jnp.maximum(given + spared * (1 - margin()), 0.0) * (1 + roundoff() * jnp.where(spared < 0, 2.0, 0.0))
        return jnp.where(some & possible & (all_orders == jnp.inf), largest, bound)


@dataclass(frozen=True)
class ToDelta(Conversion):
    """The delta at an epsilon; 1 where the divergence, the order or epsilon is none."""

    def is_known(self, number: Array) -> Array:
        return number >= 0

    def of_orders(self, rdp: Array, orders: Array, number: Array, *, many: bool = False) -> Array:
        epsilon = number
        pure = (rdp >= 0) & (rdp < jnp.inf) & (orders == jnp.inf) & (epsilon >= 0)
        largest = jnp.maximum(-jnp.expm1(jnp.minimum(epsilon - rdp, 0.0)) * (1 + margin()), TINY)
        largest = jnp.where(rdp <= epsilon, 0.0, jnp.minimum(largest, 1.0) if self.method in SPARING else 1.0)
        known = (rdp >= 0) & (rdp < jnp.inf) & (orders > 1) & (orders < jnp.inf) & (epsilon >= 0)
        finite = jnp.where((epsilon >= 0) & (epsilon < jnp.inf), epsilon, 1.0)
        rdp, orders = jnp.where(known, rdp, 1.0), jnp.where(known, orders, 2.0)
        logs = log_delta_of_orders(rdp, orders, finite, self.method, many=many)
        # What is below TINY would be flushed to zero.
        implied = jnp.where(
            epsilon == jnp.inf, TINY, jnp.maximum(jnp.exp(jnp.minimum(logs, 0.0)) * (1 + margin()), TINY)
        )
        implied = jnp.where(known & ((logs < 0) | (epsilon == jnp.inf)), jnp.minimum(implied, 1.0), 1.0)
        return jnp.where(pure, largest, implied)


def _within(orders: Array) -> Any:
    """Returns where orders are above 1 and finite: True where Python can see that all are."""
    if is_concrete(orders):
        within = (np.asarray(orders) > 1) & (np.asarray(orders) < np.inf)
        return True if np.all(within) else within
    return (orders > 1) & (orders < jnp.inf)


def log_delta_of_orders(rdp: Array, orders: Array, epsilon: Array, method: str, *, many: bool = False) -> Array:
    """Returns the log delta that each order implies, rounded up; elementwise, of finite arguments in range."""
    if method == "optimal":
        rounds = optimal.RATIO_ROUNDS_OF_MANY if many else optimal.RATIO_ROUNDS
        return optimal.log_delta_at(rdp, orders, epsilon, rounds)
    logs = _LOG_DELTA[method](rdp, orders, epsilon)
    return logs + margin() * (1 + (orders - 1) * (rdp + epsilon) + jnp.log(orders) + jnp.abs(logs))


@kernel(static=1)
def least_implied(rdp: Array, orders: Array, number: Array, to: Conversion) -> Array:
    """Returns :func:`least_of`, as a program of its own."""
    return least_of(rdp, orders, number, to)


def least_of(rdp: Array, orders: Array, number: Array, to: Conversion) -> Array:
    """Returns the least that divergences (..., orders) imply at ``number`` (...), for each of the leading axes."""
    rdp, number = as_float64(rdp), as_float64(number)
    orders = orders if is_concrete(orders) else as_float64(orders)
    batch = jnp.broadcast_shapes(rdp.shape[:-1], number.shape)
    if not batch:
        return to.least(rdp, orders, number)
    rows = jnp.broadcast_to(rdp, (*batch, *orders.shape)).reshape(-1, *orders.shape)
    numbers = jnp.broadcast_to(number, batch).reshape(-1)
    return jax.vmap(lambda row, value: to.least(row, orders, value))(rows, numbers).reshape(batch)


@kernel(static=1, safe=lowered)
def _least(epsilon: Array, delta: Array, orders: Array, method: str) -> Array:
    epsilon, delta = jnp.broadcast_arrays(epsilon, delta)
    (epsilon, _), (delta, orders) = by_order(epsilon, orders), by_order(delta, orders)
    some = (epsilon >= 0) & (epsilon < jnp.inf) & (delta > 0) & (delta < 1)
    pure, known = some & (orders == jnp.inf), some & (orders > 1) & (orders < jnp.inf)
    largest = (epsilon - log_complement(jnp.where(some, delta, 0.0))) * (1 - margin())
    epsilon, delta, orders = (jnp.where(known, v, w) for v, w in ((epsilon, 1.0), (delta, 0.1), (orders, 2.0)))
    if method == "optimal":
        bound = optimal.least_rdp_at(epsilon, delta, orders)
    else:
        magnitude = epsilon + (1 + jnp.log(orders) - jnp.log(delta)) / (orders - 1)
        bound = _LEAST[method](epsilon, delta, orders) - margin() * magnitude
        alone = (epsilon - log_complement(delta)) * (1 - margin())
        bound = jnp.where(orders * delta * (1 - margin()) >= 1, alone, bound)
    return jnp.where(pure, largest, jnp.where(known, jnp.fmax(bound, 0.0), 0.0))
