"""Privacy filters: they grant a release while a budget fixed in advance still covers it, and refuse it after.

What is released may be chosen from earlier results (noise, batch size, when to stop); composing the realized
mechanisms as if they had been fixed in advance would not cover that.

The orders, and why a filter has few of them
--------------------------------------------
Theorem 1 of Lécuyer (2021) holds at one order fixed in advance. Corollary 1, the filter over a set of orders, grants
while *some* order is within its budget. Which order that is may depend on the results, and the corollary's proof takes
it as fixed. What holds on every path: let L be the privacy loss so far, S(a) the sum of the divergences of order a and
b(a) the budget. ``exp((a - 1) (L - S(a)))`` is a supermartingale started at 1, whatever is chosen adaptively. At the
end S(a) <= b(a) for one order, and ``(1 - e^(eps - L))+ <= c(a) e^((a - 1) (L - eps))`` for each, with
``c(a) = (1 - 1/a)^(a - 1) / a``. Bounding the indicator of the order that survives by 1,

    delta <= sum over all orders of c(a) e^((a - 1) (b(a) - eps)).

With Mironov's budgets, b(a) = eps - log(1/delta)/(a - 1), that is delta times the sum of c(a): the filter is
(eps, delta)-DP on every path as soon as its orders are so few that this sum is at most 1, and FILTER_ORDERS is such a
set. The conversion "improved" splits delta equally over the orders, c(a) e^((a - 1) (b(a) - eps)) = delta / number of
orders, which needs no condition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Float32, Int

from jaxacct import rdp, validation
from jaxacct.mechanisms import Mechanism
from jaxacct.precision import as_float64, in_float64, outside

FILTER_ORDERS: tuple[float, ...] = tuple(round(1 + 1.4 * 1.3**j, 3) for j in range(26))
"""Orders of a filter unless others are given: 2.4 to 988, few enough for the sum of c(a) to stay below 1.

Against a dense set they cost a Gaussian at most 1.7 % of its steps for epsilon in [0.1, 10] at delta = 1e-5, 8 % at 40.
"""

CONVERSIONS = ("mironov", "improved")

SMALLEST = 2.0**-126
"""Smallest normal float32: below it XLA may flush to zero, so a positive remainder is never stored as less."""

ROUNDING = 2.0**-51
"""Four units of float64 roundoff: covers the at most three roundings of ``spent + steps * curve``, all terms >= 0."""

MOST_STEPS = 2**31 - 1


def log_share(order: float) -> float:
    """Returns ``log c(order)``, c the constant of the module's bound; c falls from 1 at order 1 like 1/(e order)."""
    return (order - 1) * math.log1p(-1 / order) - math.log(order)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False)
class RenyiFilter:
    """Grants releases, adaptively chosen, while they stay within (epsilon, delta)-DP; counts them in Rényi divergence.

    Args:
        epsilon (): the budget, fixed before the first release; traced values out of range refuse everything.
        delta (): its failure probability, likewise.
        orders: the Rényi orders tracked, each above 1; static.
        conversion: "mironov", budget ``epsilon - log(1/delta)/(order - 1)`` at each order, or "improved", which splits
            delta over the orders; of the default ones it favours those above 10, that is, a small epsilon; static.

    A pytree whose leaves are float32, so that it passes through ``jit``, ``vmap``, ``lax.scan`` and ``jnp.where`` of a
    float32 program unchanged. Sums are pairs of float32 (48 bits), rounded up. Batches are ``jax.vmap``.

    Formal guarantee: however the mechanisms are chosen from earlier results, everything granted together is
    (epsilon, :attr:`proven_delta`)-DP, for the neighbouring relation asked for. ``proven_delta`` is ``delta`` for the
    default orders, for a single order, and for "improved"; many orders with "mironov" cost a factor (see the module).
    If nothing is chosen from results, it is ``delta`` for any orders.

    Raises ValueError where a concrete epsilon, delta or order is out of range.

    Source: Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy", Theorem 1,
    Corollary 1 and section 3.4; Mironov (2017), Proposition 3.

    >>> import jaxacct as ja
    >>> budget = RenyiFilter(epsilon=1.0, delta=1e-5)
    >>> granted, budget = budget.spend(ja.Gaussian(noise_multiplier=10.0), steps=4)
    >>> bool(granted), bool(budget.would_grant(ja.Gaussian(noise_multiplier=1.0)))
    (True, False)
    """

    target_epsilon: Float32[Array, " 2"]
    log_inverse_delta: Float32[Array, " 2"]
    spent_high: Float32[Array, " orders"]
    spent_low: Float32[Array, " orders"]
    orders: tuple[float, ...]
    conversion: str

    def __init__(
        self,
        epsilon: ArrayLike,
        delta: ArrayLike,
        orders: Sequence[float] = FILTER_ORDERS,
        conversion: str = "mironov",
    ) -> None:
        validation.check_epsilon(epsilon)
        validation.check_delta(delta)
        validation.check_one_of(conversion, "conversion", CONVERSIONS)
        orders = tuple(float(order) for order in orders)
        if not orders or not all(1 < order < math.inf for order in orders):
            raise ValueError(f"orders = {orders} are not Rényi orders: give at least one, each finite and above 1.")
        target, log_inverse = _targets(epsilon, delta)
        zeros = jnp.zeros(len(orders), jnp.float32)
        self._fill(target, log_inverse, zeros, zeros, orders, conversion)

    def _fill(self, *fields) -> RenyiFilter:
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)
        return self

    def _replace_spent(self, high: Array, low: Array) -> RenyiFilter:
        fields = (self.target_epsilon, self.log_inverse_delta, high, low, self.orders, self.conversion)
        return object.__new__(type(self))._fill(*fields)

    def tree_flatten_with_keys(self):
        names = ("target_epsilon", "log_inverse_delta", "spent_high", "spent_low")
        children = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names)
        return children, (self.orders, self.conversion)

    @classmethod
    def tree_unflatten(cls, static, children) -> RenyiFilter:
        return object.__new__(cls)._fill(*children, *static)

    def curve(self, mechanism: Mechanism, *, relation: str = "add_or_remove") -> Float[Array, " orders"]:
        """Returns the RDP of one run of ``mechanism`` at the filter's orders, for :meth:`spend_curve`.

        A float64 JAX array, which stays one as an argument of a jitted function (a NumPy one would become float32).
        """
        return _as_jax(rdp.curve(mechanism, self.orders, relation=relation))

    def spend(
        self, mechanism: Mechanism, steps: ArrayLike = 1, *, relation: str = "add_or_remove"
    ) -> tuple[Bool[Array, ""], RenyiFilter]:
        """Returns whether ``steps`` runs of ``mechanism`` are granted, and the filter after them.

        All of them or none: where it refuses, the new filter is the old one bit for bit. Nothing may be released
        before it is granted. Sequences are granted together, as in :func:`jaxacct.rdp.composed_curve`. Invalid
        mechanisms, NaN and traced steps that are no whole number are refused; concrete ones raise ValueError.
        """
        return _spend(self, rdp.composed_curve(mechanism, steps, self.orders, relation=relation), 1)

    def spend_curve(self, curve: Float[Array, " orders"], steps: ArrayLike = 1) -> tuple[Bool[Array, ""], RenyiFilter]:
        """Returns :meth:`spend` of a mechanism with the given :meth:`curve`: cheap, for a step of a training loop.

        A curve that was made less precise than float64 on its way is rounded up by its last bit.
        """
        validation.check_steps(steps)
        return _spend(self, curve, steps)

    def would_grant(
        self, mechanism: Mechanism, steps: ArrayLike = 1, *, relation: str = "add_or_remove"
    ) -> Bool[Array, ""]:
        """Returns whether :meth:`spend` would grant, spending nothing."""
        return self.spend(mechanism, steps, relation=relation)[0]

    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, at the filter's delta and by its conversion; float64.

        An upper bound for releases fixed in advance, 0 before the first. It is no guarantee to stop at when it looks
        good: the budget is what holds then, or an odometer.
        """
        return outside(_epsilon(self))

    def remaining(self, mechanism: Mechanism, *, relation: str = "add_or_remove") -> Int[Array, ""]:
        """Returns how many more runs of ``mechanism`` would be granted, at once or one by one; int32, at most 2^31 - 1.

        On the safe side: rounding may make it one too small, never too large.
        """
        return outside(_remaining(self, self.curve(mechanism, relation=relation)))

    @property
    def spent(self) -> Float[Array, " orders"]:
        """The Rényi divergence granted so far at each order, rounded up; float64."""
        return outside(_spent(self))

    @property
    def proven_delta(self) -> Float[Array, ""]:
        """The delta proven on every path, float64: ``delta`` times the sum of c(a) where that is above 1."""
        return outside(_proven_delta(self))


def _shares(filter_: RenyiFilter) -> tuple[float, ...]:
    """Returns log(delta's factor) at each order: the budget is ``epsilon - (log(1/delta) + factor)/(order - 1)``."""
    if filter_.conversion == "mironov":
        return (0.0,) * len(filter_.orders)
    return tuple(math.log(len(filter_.orders)) + log_share(order) for order in filter_.orders)


_as_jax = in_float64(as_float64)


def _split(value: Array) -> tuple[Array, Array]:
    """Returns two float32 arrays whose exact sum is at least the float64 ``value`` and above it by 2^-47 at most.

    ``reduce_precision`` and not a cast there and back: XLA may drop such a pair of casts as excess precision.
    """
    high = jnp.where(jnp.abs(value) < SMALLEST, 0.0, jax.lax.reduce_precision(value, 8, 23))
    rest = jnp.where(jnp.isinf(high), 0.0, value - high)
    low = jax.lax.reduce_precision(rest, 8, 23)
    rounded = jnp.where(low < rest, jnp.nextafter(low.astype(jnp.float32), jnp.float32(jnp.inf)), low)
    low32 = jnp.where(jnp.abs(rest) < SMALLEST, jnp.where(rest > 0, SMALLEST, 0.0), rounded)
    return high.astype(jnp.float32), low32.astype(jnp.float32)


def _join(high: Array, low: Array) -> Array:
    if high.dtype != jnp.float32 or low.dtype != jnp.float32:
        raise TypeError(
            f"the state of a filter came back as {high.dtype}: keep its leaves float32 "
            "(exclude it from casts to a training precision, which would drop what has been spent)."
        )
    return jnp.where(jnp.isinf(high), high.astype(jnp.float64), high.astype(jnp.float64) + low.astype(jnp.float64))


@in_float64
@jax.jit
def _targets(epsilon: ArrayLike, delta: ArrayLike) -> tuple[Array, Array]:
    """Returns epsilon rounded down and log(1/delta) rounded up, each as a pair; an invalid delta gives inf."""
    epsilon, delta = as_float64(epsilon), as_float64(delta)
    log_inverse = jnp.where((delta > 0) & (delta < 1), -jnp.log(delta) * (1 + ROUNDING), jnp.inf)
    return -jnp.stack(_split(-epsilon)), jnp.stack(_split(log_inverse))


def _offsets(filter_: RenyiFilter) -> tuple[Array, Array]:
    """Returns epsilon minus the budget, for each order, and a bound on its rounding error."""
    slope = 1 / (as_float64(filter_.orders) - 1)
    log_inverse = _join(*filter_.log_inverse_delta)
    shares = as_float64(_shares(filter_))
    return (log_inverse + shares) * slope, (log_inverse + jnp.abs(shares)) * slope * 2**-49


def _budget(filter_: RenyiFilter) -> Array:
    """Returns the budget of each order, rounded down."""
    epsilon = _join(*filter_.target_epsilon)
    offset, error = _offsets(filter_)
    return jnp.where(jnp.isposinf(epsilon), epsilon, epsilon * (1 - ROUNDING) - offset - error)


def _precise(curve: ArrayLike, filter_: RenyiFilter) -> Array:
    """Returns ``curve`` in float64, rounded up by its last bit where it came in less."""
    curve = jnp.asarray(curve)
    if curve.shape != (len(filter_.orders),):
        raise ValueError(f"a curve of shape {curve.shape} does not fit {len(filter_.orders)} orders.")
    if curve.dtype == jnp.float64:
        return curve
    return as_float64(curve) * (1 + float(jnp.finfo(curve.dtype).eps)) + SMALLEST


@in_float64
@jax.jit
def _spend(filter_: RenyiFilter, curve: ArrayLike, steps: ArrayLike) -> tuple[Array, RenyiFilter]:
    curve, steps = _precise(curve, filter_), as_float64(steps)
    old = _join(filter_.spent_high, filter_.spent_low)
    added = jnp.where(steps == 0, 0.0, steps * curve)
    # An order whose curve is 0 throughout has nothing to round up.
    new = jnp.where(added == 0, old, (old + added) * (1 + ROUNDING))
    budget = _budget(filter_)
    valid = (steps >= 0) & (steps < jnp.inf) & (jnp.floor(steps) == steps) & jnp.all(curve >= 0)
    granted = valid & jnp.any((new <= budget) & (budget > 0) & (new < jnp.inf))
    high, low = _split(new)
    changed = granted & (added != 0)
    return granted, filter_._replace_spent(
        jnp.where(changed, high, filter_.spent_high), jnp.where(changed, low, filter_.spent_low)
    )


@in_float64
@jax.jit
def _epsilon(filter_: RenyiFilter) -> Array:
    spent = _join(filter_.spent_high, filter_.spent_low)
    offset, error = _offsets(filter_)
    least = jnp.min((spent + offset + error) * (1 + ROUNDING))
    safe = jnp.where(jnp.isnan(least), jnp.inf, jnp.maximum(least, 0.0))
    return jnp.where(jnp.all(spent == 0), 0.0, safe)


@in_float64
@jax.jit
def _remaining(filter_: RenyiFilter, curve: ArrayLike) -> Array:
    step = _precise(curve, filter_) + 2 * SMALLEST
    old = _join(filter_.spent_high, filter_.spent_low)
    budget = _budget(filter_)
    guess = jnp.clip(jnp.floor((budget - old) / step), 0, MOST_STEPS)
    # n spends one by one are rounded up n times, by 2^-47 + 2^-51 each: 2^-46 covers it up to n = 2^31.
    most = jnp.zeros(())
    for fewer in range(3):  # the guess may be off by its rounding
        count = jnp.maximum(guess - fewer, 0.0)
        fits = (old + count * step) * (1 + count * 2.0**-46) <= budget
        most = jnp.maximum(most, jnp.max(jnp.where(fits & (budget > 0), count, 0.0)))
    return jnp.where(jnp.all(step >= 0), most, 0.0).astype(jnp.int32)


@in_float64
@jax.jit
def _spent(filter_: RenyiFilter) -> Array:
    return _join(filter_.spent_high, filter_.spent_low)


@in_float64
@jax.jit
def _proven_delta(filter_: RenyiFilter) -> Array:
    total = sum(math.exp(log_share(order)) for order in filter_.orders) if filter_.conversion == "mironov" else 1.0
    return jnp.minimum(jnp.exp(-_join(*filter_.log_inverse_delta)) * max(total, 1.0) * (1 + 8 * ROUNDING), 1.0)
