"""Conversions of Rényi divergences to (epsilon, delta) and back, with all of their numerical analysis.

A Rényi divergence of one order limits the privacy profile. The optimal relation between the two has no closed form; it
is approached by tangents, each of which is a valid bound, so that an imperfect search costs tightness alone. In reading
order:

- orders, and the search for the best one (:func:`least_between`),
- logarithms of sums and differences, with their error bounds,
- closed bounds (:func:`epsilon_mironov` and the others),
- the optimal relation, with its proof (:func:`optimal_epsilon`, :func:`optimal_log_delta`,
  :func:`optimal_least_rdp`),
- the public functions :func:`rdp_to_epsilon`, :func:`rdp_to_delta` and :func:`least_rdp`.

Source: Asoodeh, Liao, Calmon, Kosut and Sankar (2021), "Three variants of differential privacy: lossless conversion and
applications".
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.mechanisms.pair import exp_remainder, weighted_remainder
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.derivatives import Differences
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    first_index,
    is_concrete,
    kernel,
    log_complement,
)
from jaxacct.numerics.root_search import least_near_root
from jaxacct.validation import shorten

Orders: TypeAlias = Float[ArrayLike, " orders"] | Sequence[float]
"""Rényi orders: an array, or a list of numbers."""

Divergences: TypeAlias = Float[ArrayLike, "*batch orders"] | Sequence[float]
"""Rényi divergences, one for each order: an array, or a list of numbers."""


def checked_orders(orders: Orders, *, one: bool = False, infinity: bool = False) -> Any:
    """Returns ``orders`` as a float64 array, or as they are where they are traced; raises ValueError on a bad one.

    Orders are above 1 and finite. Two others may be allowed: order ``one``, the Kullback-Leibler divergence, and
    ``infinity``, the supremum of the privacy loss.
    """
    if isinstance(orders, (list, tuple)) and any(isinstance(order, jax.core.Tracer) for order in orders):
        return tuple(orders)
    if isinstance(orders, jax.core.Tracer):
        return orders
    try:
        values = np.asarray(orders, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"orders = {shorten(orders)}: give a vector of numbers.") from None
    known = (values > 1) & np.isfinite(values) | (values == 1) & one | (values == np.inf) & infinity
    if values.ndim != 1 or not values.size or not np.all(known):
        wanted = ("finite " if not infinity else "") + "numbers " + ("of at least 1" if one else "above 1")
        raise ValueError(f"orders = {shorten(orders)} are not Rényi orders: give a vector of {wanted}.")
    return values


def checked_divergences(rdp: Any, orders: Any) -> Any:
    """Returns divergences as a float64 array, or as they are where traced; raises ValueError on a bad one."""
    is_sequence = isinstance(rdp, (list, tuple))
    if is_sequence and any(isinstance(value, jax.core.Tracer) for value in rdp):
        rdp = tuple(rdp)
        shape: tuple[int, ...] = (len(rdp),)
    elif isinstance(rdp, jax.core.Tracer):
        shape = rdp.shape
    else:
        try:
            rdp = np.asarray(rdp, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"rdp = {shorten(rdp)}: give one divergence for each order.") from None
        shape = rdp.shape
        if not np.all(rdp >= 0):
            raise ValueError(f"rdp = {rdp[~(rdp >= 0)].ravel()[0]} is not a divergence: give numbers of at least 0.")
    count = len(orders)
    if not shape or shape[-1] != count:
        raise ValueError(f"rdp of shape {shape} does not match {count} orders: give one divergence for each of them.")
    return rdp


def by_order(values: Array, orders: Array) -> tuple[Array, Array]:
    """Returns both with the shape (..., orders): each value (...) at each order. Inside the float64 scope."""
    values, orders = as_float64(values), as_float64(orders)
    shape = (*values.shape, *orders.shape)
    each = orders.reshape((1,) * values.ndim + orders.shape)
    return jnp.broadcast_to(values[..., None], shape), jnp.broadcast_to(each, shape)


def least_between(bound: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Returns the least value of ``bound`` found between two orders, each a scalar.

    ``bound`` takes orders (n,) and returns (n,) numbers, each of which is a bound by itself; so the result is a bound
    however good the search is. It tries a geometric grid of order - 1 and goes on between the best point's neighbours.
    Infinite values are passed over.
    """
    # Each of four rounds tries twelve orders, and leaves 2/13 of the interval; four leave 6e-4 of it: of second order
    # in a bound, 4e-7 of the difference between one order and the next. Tightness only.
    points = 12
    inner = jnp.arange(1, points + 1) / (points + 1)

    def narrow(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, right, least = state
        step = (right - left) / (points + 1)
        values = bound(1 + jnp.exp(left + (right - left) * inner))
        smallest = jnp.nanmin(values)
        best = left + step * (1 + first_index(values == smallest))
        return jnp.maximum(best - step, left), jnp.minimum(best + step, right), jnp.fmin(least, smallest)

    # The state is an interval of log(order - 1) and the least bound so far; each round narrows it to two grid steps.
    start = (jnp.log(low - 1), jnp.log(high - 1), jnp.full_like(low, jnp.inf))
    return jax.lax.fori_loop(0, 4, narrow, start)[2]


# ----------------------------------------------------------------------------------------------------
# Logarithms of sums and differences, with their error bounds, on which the margins below rest
#
# There is one assumption on a device's elementary functions, ``arithmetic().function``; all else follows from it and
# from sums, products, quotients and roots right to a relative ``roundoff()``. In the proofs F is the former, u the
# latter, F is 8 u; an error is absolute where nothing else is said; terms of second order are left to the slack of the
# last factor. An argument that is a float64 is exact: errors of arguments are added where they arise.
# ----------------------------------------------------------------------------------------------------

CUT_EXPONENT = 600.0
"""Exponent at which e^x is cut off, below float64's 709; another term is then below e^-500 of it. Proofs of this
file rest on it."""


def softplus(x: Array) -> Array:
    """Returns ``log(1 + e^x)``; relative error 3 F.

    The exponential is within F. log1p carries a relative error of a positive argument over, at most whole, and adds F.
    As its slope, the sigmoid, is at most itself, an error d of x, d small, is a relative error of at most d.
    """
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def log_below(power: Array) -> Array:
    """Returns ``log(1 - 1/order)`` for order = power + 1, as -log(1 + 1/power): relative error 2 F."""
    return -jnp.log1p(1 / power)


def log_excess_above(x: Array) -> Array:
    """Returns ``log(e^x - 1)`` for x >= 0, rounded up; x may have a relative error of u.

    In x + log(-expm1(-x)) expm1 contributes F and log F |log|, |log| <= |result| + x; x itself, whose slope is
    x/(1 - e^-x) <= 1 + x relative to it, u (1 + x); the sum u |result|. Together below 2 F (1 + |result| + x). An x
    that underflowed counts as the smallest normal number: a larger divergence.
    """
    x = jnp.maximum(x, TINY)
    value = x + jnp.log(-jnp.expm1(-x))
    return value + 2 * arithmetic().function * (1 + jnp.abs(value) + x)


def log_deficit_above(y: Array, power: Array) -> Array:
    """Returns ``log(1 - B(e^-y))``, rounded up, y of either sign: B(t) = a t^b - b t^a, ``power`` is b = a - 1.

    It is above the exact value by at most 32 F (1 + |value|), by at most 16 F |b y| more where y is negative, and where
    1 - B is not far above (2 + b) 2^-1022 by what adding that to it makes.

    With x = b y and s = max(-x, 0) it is s + log(w phi(x) + w b phi(-y)), w = e^(-x - s), phi(z) = e^z - 1 - z: a sum
    of positive terms. w phi(x) is a series times w next to 0, and e^-s - w (1 + x) elsewhere, so that nothing
    overflows.

    * Where x is at most 1, phi is right to 11.1 F + 6 u, worst at z = 1/2, where e^z is 11.1 of it (below it is a
      series; far to the other side phi is about |z|); w adds F. x is off by u, which phi takes at most 2.4-fold (z
      phi'/phi at 1); log adds F (|value| + |x|): 14 F + 1.3 F (|value| + |x|). Squares and products underflow: phi(x)
      loses at most the smallest normal number, and b phi(-y) that or b times that. (2 + b) times that is added.
    * Where x is above 1, w (1 + x) <= 0.74 is right to 2 F + (x + 3) u, which is at most 7 F of 1 - w (1 + x) (that
      ratio is at most 2.8, and so is x times it), and w b phi(-y), at most x^2/2 w, is right to 13 F + x u of itself,
      less than 3 F of the sum; and the logarithm adds 4 u + F |value|: 11 F + F |value|.
    * Where e^-y would overflow, t^b (b t) alone: 1 - B = 1 - a t^b + b t^a is below it, for t > 1.

    -y is capped from above alone: if it were capped from below, where phi(-y) is about y, the deficit would be too
    small, and with it every bound made of it.
    """
    x = power * y
    surplus, back = jnp.maximum(-x, 0.0), jnp.minimum(-y, CUT_EXPONENT)
    weight = jnp.exp(-x - surplus)
    ahead = weighted_remainder(x, weight, jnp.exp(-surplus))
    part = ahead + power * weight * exp_remainder(back, jnp.exp(back) - 1)
    value = surplus + jnp.log(part + (2 + power) * TINY)
    value = jnp.where(-y > CUT_EXPONENT, jnp.log(power) - y - x, value)
    return value + 16 * arithmetic().function * (1 + jnp.abs(value) + jnp.abs(jnp.minimum(x, 1.0)))


def log_falling_deficit(y: Array, power: Array) -> Array:
    """Returns :func:`log_deficit_above` for y >= 0, where it is at most 0, in fewer operations.

    The margin is that function's, with 1 in place of the terms that are at most 1 there.
    """
    x = power * y
    weight = jnp.exp(-x)
    part = weighted_remainder(x, weight, jnp.ones_like(x)) + power * weight * exp_remainder(-y, jnp.exp(-y) - 1)
    margin = 16 * arithmetic().function
    return jnp.log(part + (2 + power) * TINY) * (1 - margin) + 2 * margin


# ----------------------------------------------------------------------------------------------------
# Closed bounds between one Rényi divergence and (epsilon, delta)
#
# They are elementwise, in float64, and do not count their rounding. Asoodeh, Liao, Calmon, Kosut and Sankar (2021),
# "Three variants of differential privacy: lossless conversion and applications", is called "the paper" here.
# ----------------------------------------------------------------------------------------------------


def epsilon_mironov(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies, elementwise; if negative, take 0.

    Args:
        rdp (...): Rényi divergences of these orders.
        orders (...): above 1; the three broadcast.
        delta (...): in (0, 1).

    Formal guarantee: an upper bound where ``rdp`` is one. It does not count its own rounding, and does not check for
    arguments out of range: :func:`jaxacct.convert.rdp_to_epsilon` does both.

    Source: Mironov (2017), "Rényi differential privacy", Proposition 3.

    >>> round(float(epsilon_mironov(0.5, 2.0, 1e-3)), 4)
    7.4078
    """
    return rdp - jnp.log(delta) / (orders - 1)


def log_delta_mironov(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_mironov` solved for delta, for ``epsilon`` (...).

    Formal guarantee, other arguments and source are those of :func:`epsilon_mironov`. If it is above 0, take 0.

    >>> log_delta_mironov(0.5, 2.0, 3.5)
    -3.0
    """
    return (orders - 1) * (rdp - epsilon)


def epsilon_improved(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies, never above :func:`epsilon_mironov`, elementwise.

    Formal guarantee and arguments are those of :func:`epsilon_mironov`.

    Source: Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", Proposition 12. The
    same as Balle, Barthe, Gaboardi, Hsu and Sato (2020), "Hypothesis testing interpretations and Rényi differential
    privacy", Theorem 21, and the branch ``g`` of the paper.

    >>> round(float(epsilon_improved(0.5, 2.0, 1e-3)), 4)
    6.0215
    """
    return rdp + log_below(orders - 1) - (jnp.log(delta) + jnp.log(orders)) / (orders - 1)


def log_delta_improved(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_improved` solved for delta, for ``epsilon`` (...).

    Formal guarantee, other arguments and source are those of :func:`epsilon_improved`. If it is above 0, take 0.

    >>> round(float(log_delta_improved(0.5, 2.0, 3.5)), 4)
    -4.3863
    """
    return (orders - 1) * (rdp - epsilon + log_below(orders - 1)) - jnp.log(orders)


def epsilon_closed(rdp: Array, orders: Array, delta: Array) -> Array:
    """Returns the epsilon that each order implies by the paper's bound in two branches, from its ``g`` and ``f``.

    It is rdp + log(1 - delta) where order delta >= 1, and elsewhere the lesser of :func:`epsilon_improved` and
    log(1 + (e^((order - 1) rdp) - 1)/(order delta))/(order - 1), which is the lesser where the divergence is small.
    """
    log_odds = log_excess_above((orders - 1) * rdp) - jnp.log(orders) - jnp.log(delta)
    branches = jnp.minimum(epsilon_improved(rdp, orders, delta), softplus(log_odds) / (orders - 1))
    return jnp.where(orders * delta >= 1, rdp + log_complement(delta), branches)


def log_delta_closed(rdp: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the log delta that each order implies: :func:`epsilon_closed` solved for delta."""
    power = orders - 1
    # The log of (e^(b rdp) - 1)/(e^(b epsilon) - 1), formed as one logarithm so that no two large ones cancel.
    shares = jnp.expm1(-jnp.maximum(power * rdp, TINY)) / jnp.expm1(-power * epsilon)
    linear = power * (rdp - epsilon) + jnp.log(shares) - jnp.log(orders)
    branches = jnp.fmin(log_delta_improved(rdp, orders, epsilon), linear)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(rdp - epsilon, 0.0)))
    return jnp.where(certain + jnp.log(orders) >= 0, certain, branches)


def least_rdp_g(epsilon: Array, delta: Array, orders: Array) -> Array:
    """Returns the paper's lower bound ``g`` on the divergence: :func:`epsilon_improved` solved for it. May be < 0."""
    return epsilon - log_below(orders - 1) + (jnp.log(orders) + jnp.log(delta)) / (orders - 1)


def least_rdp_f(epsilon: Array, delta: Array, orders: Array) -> Array:
    """Returns the paper's lower bound ``f`` on the divergence, for order delta < 1.

    It is epsilon + log((e^epsilon - order delta) ((1 - delta)/(e^epsilon - delta))^order + order delta)/(order - 1).
    """
    power = orders - 1
    scaled = jnp.exp(-epsilon)
    # (e^eps - a d) ((1-d)/(e^eps - d))^a = (1 - a d e^-eps) (1-d)^a (1 - d e^-eps)^-a e^(-b eps)
    log_rest = (
        log_complement(orders * delta * scaled)
        + orders * (log_complement(delta) - log_complement(delta * scaled))
        - power * epsilon
    )
    log_linear = jnp.log(orders) + jnp.log(delta)
    total = jnp.logaddexp(log_rest, log_linear)
    # Where epsilon is small the two terms sum to nearly one, and the logarithm comes from their distance from one.
    near = jnp.log1p(jnp.expm1(jnp.minimum(log_rest, 0.0)) + jnp.exp(jnp.minimum(log_linear, CUT_EXPONENT)))
    return epsilon + jnp.where(jnp.abs(total) < 0.25, near, total) / power


# ----------------------------------------------------------------------------------------------------
# The optimal relation between one Rényi divergence and (epsilon, delta), approached from the safe side
#
# The delta(epsilon) that a divergence of order a = b + 1 allows is decided by two outcomes (Asoodeh, Liao, Calmon,
# Kosut and Sankar 2021, "Three variants of differential privacy", Theorem 1, from the joint range of two
# f-divergences):
#
#     e^(b rdp) >= M e^(b epsilon),   M = min over p in (delta, 1) of
#                                         p^a (p - delta)^-b + (1 - p)^a (e^epsilon - p + delta)^-b,
#
# where p and q = (p - delta) e^-epsilon are the probabilities of the first outcome. Here a p that is not the least
# gives an M that is too large: an epsilon or a delta concluded from it would be *too small*. So the search does not
# look for the minimum.
#
# **The dual.** x^a y^-b is convex and homogeneous of degree one. Its tangent plane at the ratio t lies below it,
#
#     x^a y^-b >= a t^b x - b t^a y   for every t >= 0,
#
# and with t = t1 for the first outcome and t = t2 for the second, with delta = p - e^epsilon q,
#
#     e^(b rdp) >= a t1^b p - b t1^a q + a t2^b (1 - p) - b t2^a (1 - q)
#               =  a (t1^b - t2^b) delta + B(t2) + q (h(t1) - h(t2)),
#
# B(t) = a t^b - b t^a <= 1 and h(t) = a e^epsilon t^b - b t^a. *Every* pair t1 > t2 with h(t1) = h(t2) thus proves
#
#     delta <= (e^(b rdp) - B(t2)) / (a (t1^b - t2^b)),                                                       (*)
#
# and solved for e^epsilon = (b/a) (t1^a - t2^a) / (t1^b - t2^b) a bound on epsilon, solved for rdp a lower bound on it.
# (P and Q reach these two outcomes by post-processing, {log P/Q > epsilon} and the rest, which raises no divergence and
# keeps delta.) A (t1, t2) that is not the best one gives a looser bound, never a wrong one. The problem being convex,
# the best pair attains the optimum: t1 = p/q, t2 = (1-p)/(1-q) of the least p, which is where
#
#     (t1 - e^epsilon) (1 - t2) = delta (t1 - t2).                                                             (**)
#
# t2 = 0 is the rule of Canonne, Kamath and Steinke; t2 = 1 with t1 = e^epsilon, where h is largest, is the other branch
# of the paper's closed bound. Where a delta >= 1 the least p is 1, and rdp >= epsilon - log(1 - delta) is all there is:
# p^a (p - delta)^-b alone is at least its value there.
#
# All formulas are in logarithms and without cancellation: 1 - B(e^-y) = e^(-b y) (phi(b y) + b phi(-y)) with
# phi(x) = e^x - 1 - x, and so on. Each term is moved to its bound's safe side by its own rounding, as derived above; so
# the bound holds for every pair that the search may come upon, a bad one too.
# ----------------------------------------------------------------------------------------------------


def margin_of_optimal() -> float:
    """Returns the margin for a bound's rounding, relative to the sizes that are added up beside it.

    Each term is within 3 F of its size, and there are a few; terms that were rounded up already are not in it.
    """
    return 4 * arithmetic().function


def optimal_epsilon(rdp: Array, order: Array, delta: Array, *, many: bool = False) -> Array:
    """Returns the least epsilon >= 0 that ``rdp`` at one order implies at ``delta``, rounded up; elementwise.

    It is (*) solved for epsilon, with t2 = e^-y at the y where (**) holds. The search goes over log y, for next to
    order 1 y may have any size up to 1/b. As 1 - t2 >= delta there, y starts from -log(1 - delta). The end t2 = 0 is
    tried too. ``delta`` may be a scalar. With ``many`` orders, from which the best counts, the search is shorter.
    """
    # Tightness only. In 100,000 settings (orders 1.01 to 1000, divergences 1e-10 to 50, delta 1e-30 to 0.3) 20 rounds
    # came within 2e-9 of the least epsilon relative to max(epsilon, 1e-6), and the errors there were all below 1e-14.
    # In 1,500 compositions of subsampled Gaussians, with the accountant's orders, ten missed at most 5e-12 of epsilon.
    rounds = 10 if many else 22
    power, log_order, log_delta = order - 1, jnp.log(order), jnp.log(delta)
    log_excess, base = log_excess_above(power * rdp), log_below(power)
    # -log(a delta), and the margin of the terms that it is added to.
    lift = log_order * (margin_of_optimal() - 1) + (margin_of_optimal() - (1 + margin_of_optimal()) * log_delta)

    def tangent(log_y: Array) -> tuple[Array, Array]:
        """Returns the logarithm of the two sides' ratio in (**), and the bound that (*) gives, at t2 = e^-y.

        *Rounding.* t2 is e^-y with the float64 y, exactly. In the step s = log(t1^b - t2^b), epsilon - log of a chord's
        slope of w -> w^(a/b) from w = t2^b - rises, by at most 1/b of it: so s, rounded up, is enough. What remains is
        the evaluation at that s: with z = b y + s, off by 2 u (b y + |s|), epsilon is the sum of log(t2^b + e^s)/b,
        log(b/a), log(1 + e^-z) and log(1 - e^(-a w)), w = log(1 + e^z)/b, each right to a margin of its size and of 1.
        z's error counts by the slopes of log(1 + e^-z) and of log w, at most 1/(1 + z) and 2/(1 + z) for z > 0.
        """
        y = jnp.exp(log_y)
        # log (t1^b - t2^b) at equality in (*), then b log t1, log(t1/t2), and log(e^epsilon/t1) <= 0.
        log_numerator = _log_sum(log_excess, log_falling_deficit(y, power))
        log_step = log_numerator + margin_of_optimal() * jnp.abs(log_numerator) + lift
        fall = power * y
        z = log_step + fall
        above, beyond = jnp.maximum(z, 0.0), jnp.log1p(jnp.exp(-jnp.abs(z)))  # log(1 + e^z) is their sum
        log_t1_power = jnp.maximum(-fall, log_step) + beyond
        log_ratio, near = (above + beyond) / power, beyond + (above - z)
        far = jnp.log(-jnp.expm1(-order * log_ratio))
        below = jnp.minimum(base + near + far, 0.0)
        rounding = (1 + jnp.abs(log_t1_power)) / power + 2 + near - far
        rounding = rounding + (fall + jnp.abs(log_step)) / (1 + above)
        sides = jnp.expm1(below) * jnp.expm1(-y) / -jnp.expm1(-log_ratio)
        return jnp.log(sides) - log_delta, log_t1_power / power + below + margin_of_optimal() * rounding

    low = jnp.broadcast_to(jnp.log(-log_complement(delta)), rdp.shape)
    least = least_near_root(tangent, low, jnp.log(60 + 60 / power), rounds)
    raised = rdp * (1 + margin_of_optimal())
    canonne = raised + base + lift / power
    # Where order delta >= 1 this is all that the divergence implies.
    certain = raised + (margin_of_optimal() + log_complement(delta) * (1 - margin_of_optimal()))
    is_certain = order * (delta * (1 - 8 * roundoff())) >= 1
    least = jnp.minimum(jnp.where(is_certain, certain, least), canonne)
    return jnp.where(rdp == 0, 0.0, jnp.maximum(least, 0.0))


def _log_sum(first: Array, second: Array) -> Array:
    """Returns ``log(e^first + e^second)`` of numbers of which one at least is finite."""
    return jnp.maximum(first, second) + jnp.log1p(jnp.exp(-jnp.abs(first - second)))


def optimal_log_delta(rdp: Array, order: Array, epsilon: Array, *, many: bool = False) -> Array:
    """Returns the log of the least delta that ``rdp`` at one order implies at ``epsilon``, rounded up; elementwise.

    It is (*), with t2 = t1 e^-x at the x where (**) holds. ``epsilon`` may be a scalar; ``many`` is as above.
    """
    # Tightness only: in the settings above more than 28 changed nothing, and 15 missed at most 1e-12 of delta.
    rounds = 15 if many else 28
    power = order - 1
    log_excess = log_excess_above(power * rdp)

    def tangent(log_x: Array) -> tuple[Array, Array]:
        x = jnp.exp(log_x)
        log_t1, log_deficit, log_denominator = _tangent_points(x, order, epsilon)
        log_numerator = _log_sum(log_excess, log_deficit)
        sizes = 1 + jnp.abs(log_numerator) + jnp.abs(log_denominator)
        bound = log_numerator - log_denominator + margin_of_optimal() * sizes
        return _imbalance(x, log_t1, epsilon, bound), bound

    least = _least_over_ratios(tangent, power, rounds)
    canonne = power * (rdp - epsilon + log_below(power)) - jnp.log(order)
    canonne = canonne + margin_of_optimal() * (1 + power * (rdp + epsilon) + jnp.log(order))
    least = jnp.minimum(least, canonne)
    # If 1/order or more of delta is true, so is rdp >= epsilon - log(1 - delta): delta <= max(1 - e^-gap, 1/order).
    gap = rdp - epsilon + margin_of_optimal() * (rdp + epsilon)
    certain = jnp.log(-jnp.expm1(-jnp.maximum(gap, 0.0)))
    allowance = margin_of_optimal() * (1 + jnp.abs(certain) + jnp.log(order))
    alone = certain + jnp.log(order) > allowance
    return jnp.where(rdp == 0, -jnp.inf, jnp.minimum(jnp.where(alone, certain + allowance, least), 0.0))


def optimal_least_rdp(epsilon: Array, delta: Array, order: Array) -> Array:
    """Returns the least divergence of one order that delta(epsilon) = ``delta`` allows, rounded down; elementwise.

    It uses e^(b rdp) - 1 >= delta a (t1^b - t2^b) - (1 - B(t2)), the first rounded down, the second up.
    """
    power = order - 1

    def tangent(log_x: Array) -> tuple[Array, Array]:
        x = jnp.exp(log_x)
        log_t1, log_missing, log_denominator = _tangent_points(x, order, epsilon)
        log_linear = jnp.log(delta) + log_denominator
        log_linear = log_linear - margin_of_optimal() * (1 - jnp.log(delta) + jnp.abs(log_denominator))
        excess = jnp.exp(jnp.minimum(log_linear, CUT_EXPONENT)) * (1 - margin_of_optimal())
        excess = excess - jnp.exp(jnp.minimum(log_missing, CUT_EXPONENT)) * (1 + margin_of_optimal())
        # The formula leaves 1 out where it is negligible against the two terms.
        share = jnp.exp(jnp.minimum(log_missing - log_linear, 0.0)) * (1 + margin_of_optimal())
        vast = log_linear + log_complement(jnp.minimum(share, 1.0))
        log_moment = jnp.where(log_linear > CUT_EXPONENT / 2, vast, jnp.log1p(jnp.maximum(excess, 0.0)))
        bound = jnp.maximum(log_moment, 0.0) / power * (1 - 2 * margin_of_optimal())
        return _imbalance(x, log_t1, epsilon, jnp.log(delta)), -bound

    # As many rounds as for delta. Tightness only.
    interior = -_least_over_ratios(tangent, power, 28)
    canonne = epsilon + (jnp.log(delta) + jnp.log(order)) / power - log_below(power)
    canonne = canonne - margin_of_optimal() * (epsilon + (1 - jnp.log(delta) + jnp.log(order)) / power)
    interior = jnp.maximum(interior, canonne)
    certain = (epsilon - log_complement(delta)) * (1 - margin_of_optimal())
    alone = order * delta * (1 - 4 * roundoff()) >= 1
    return jnp.where(delta == 0, 0.0, jnp.maximum(jnp.where(alone, certain, interior), 0.0))


def _least_over_ratios(tangent: Callable[[Array], tuple[Array, Array]], power: Array, rounds: int) -> Array:
    """Returns the least bound of the pairs that a search over log(log(t1/t2)) meets."""
    # The range of the search. Tightness only.
    return least_near_root(tangent, jnp.full_like(power, -40.0), jnp.log(60 + 60 / power), rounds)


def _tangent_points(x: Array, order: Array, epsilon: Array) -> tuple[Array, Array, Array]:
    """Returns log t1, log(1 - B(t2)) rounded up and log(a (t1^b - t2^b)) rounded down, where t2 = t1 e^-x.

    Both have one value of h. x is a float64 and exact, while t1 and t2 are known to some error.

    log t1 = epsilon + log(1 + e^l), l = log(1 - B(e^-x)) - log b - log(1 - e^(-a x)), is right to d = log(1 + e^l) 32 F
    (2 + |its terms|) + u log t1, as the slope of log(1 + e^l) is at most itself. That moves log(t1^b - t2^b) by b d,
    and 1 - B(t2), whose derivative in log t2 is a b t2^b (t2 - 1), by at most a b t2^b (|1 - t2| + d) d, doubled for
    the second order. Both errors are added on the safe side.
    """
    power = order - 1
    # t1 e^-epsilon = a (1 - e^(-b x)) / (b (1 - e^(-a x))) = 1 + (1 - B(e^-x)) / (b (1 - e^(-a x))).
    terms = log_deficit_above(x, power), jnp.log(power), jnp.log(-jnp.expm1(-order * x))
    above = softplus(terms[0] - terms[1] - terms[2])
    log_t1 = epsilon + above
    error = 32 * arithmetic().function * above * (2 + sum(map(jnp.abs, terms), jnp.zeros_like(x))) + roundoff() * log_t1
    log_t2 = log_t1 - x
    log_apart = jnp.log(-jnp.expm1(-power * x))
    log_denominator = jnp.log(order) + power * log_t1 + log_apart
    sizes = 2 + jnp.log(order) + power * log_t1 - log_apart
    shift = error + roundoff() * jnp.abs(log_t2)
    distance = -jnp.expm1(-jnp.abs(log_t2)) + shift
    log_moved = jnp.log(2 * order * power) + power * log_t2 + jnp.maximum(log_t2, 0.0) + jnp.log(distance * shift)
    deficit = _log_sum(log_deficit_above(-log_t2, power), log_moved)
    return log_t1, deficit + margin_of_optimal(), log_denominator - power * error - 2 * arithmetic().function * sizes


def _imbalance(x: Array, log_t1: Array, epsilon: Array, log_delta: Array) -> Array:
    """Returns the difference of the two sides of (**), over t1, for t2 = t1 e^-x."""
    above = -jnp.expm1(epsilon - log_t1) * -jnp.expm1(jnp.minimum(log_t1 - x, CUT_EXPONENT))
    return above + jnp.exp(jnp.minimum(log_delta, CUT_EXPONENT)) * jnp.expm1(-x)


# ----------------------------------------------------------------------------------------------------
# Public conversions: Rényi divergences to (epsilon, delta) and back, by the optimal relation or by an older rule
# ----------------------------------------------------------------------------------------------------

METHODS = ("optimal", "closed", "improved", "mironov")
"""Rules that turn a divergence into (epsilon, delta): each of them is a bound, and none is below the one before it.

"optimal" is the exact relation for one order. "closed" is the bound in two branches of Asoodeh et al. (2021),
"improved" that of Canonne, Kamath and Steinke (2020) and Balle et al. (2020), "mironov" that of Mironov (2017).
"""

SPARING = ("optimal", "closed")
"""Rules that spare log(1/(1 - delta)) where order delta >= 1."""


def margin_of_closed() -> float:
    """Returns the margin for a closed bound's rounding, relative to the sizes that are added up beside it.

    By the error bounds above, log(1 + (e^(b rdp) - 1)/(a delta)) is right to F (5 + 7 b rdp + 3.2 (log a - log delta));
    the others, sums of at most four terms, are right to less.
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
        method: one of :data:`METHODS`. The default is the tightest; the others allow comparison with published numbers.

    Formal guarantee: an upper bound, rounding included: a mechanism that is (order, rdp)-RDP for each of the orders is
    (epsilon, delta)-DP. With "optimal" no smaller epsilon holds for *all* mechanisms with the divergence of the best
    order, to within rounding; the whole curve may allow less. ``inf`` where an argument is traced and invalid, 0 for a
    divergence of 0 at every order.

    Source: Asoodeh, Liao, Calmon, Kosut and Sankar (2021), "Three variants of differential privacy: lossless conversion
    and applications", Theorem 1; the proof that a minimum found only nearly errs on the safe side is in
    :mod:`jaxacct.convert.renyi`.

    >>> orders = [2.0, 4.0, 8.0, 16.0, 32.0]
    >>> [round(float(rdp_to_epsilon([0.005 * a for a in orders], orders, 1e-5, method)), 4) for method in METHODS]
    [0.3876, 0.3878, 0.3878, 0.5314]
    """
    validation.check_one_of(method, "method", METHODS)
    validation.check_delta(delta, pure=True)
    orders = checked_orders(orders, infinity=True)
    return least_implied(checked_divergences(rdp, orders), orders, delta, ToEpsilon(method))


def rdp_to_delta(
    rdp: Divergences,
    orders: Orders,
    epsilon: Float[ArrayLike, "*#batch"],
    method: str = "optimal",
) -> Float[Array, "*batch"]:
    """Returns the least delta, in [0, 1], that Rényi divergences imply at ``epsilon`` >= 0; the best order counts.

    Arguments, guarantee, errors and source are those of :func:`rdp_to_epsilon`; it is 1 where nothing is known. A delta
    above 0 is reported as at least 2.2e-308.

    >>> [round(float(rdp_to_delta([0.01, 0.02, 0.04], [2.0, 4.0, 8.0], 0.5, method)), 5) for method in METHODS]
    [0.0005, 0.00126, 0.00196, 0.03996]
    """
    validation.check_numbers(epsilon=epsilon)
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
    validation.check_numbers(epsilon=epsilon, delta=delta)
    validation.check_one_of(method, "method", ("optimal", "g", "f"))
    validation.check_epsilon(epsilon)
    validation.check_probability(delta, "delta")
    return _least(epsilon, delta, checked_orders(orders, infinity=True), method)


@dataclass(frozen=True)
class Conversion(abc.ABC):
    """A conversion from Rényi divergences to one number at another; hashable, a static part of the programs.

    Attributes:
        method: one of :data:`METHODS`.
    """

    method: str

    @abc.abstractmethod
    def of_orders(self, rdp: Array, orders: Array, number: Array, *, many: bool = False) -> Array:
        """Returns the number that each order implies at ``number``, rounded up; elementwise, inside the float64 scope.

        ``number`` may be a scalar. With ``many`` orders, from which the best counts, each search is shorter.
        """

    @abc.abstractmethod
    def is_known(self, number: Array) -> Array:
        """Returns where ``number`` is a valid argument, at which a mechanism that releases nothing has 0."""

    def least(self, rdp: Array, orders: Array, number: Array) -> Array:
        """Returns the least that any of the orders (n,) implies, rounded up; 0 where nothing was released."""
        # Number of orders from which on shorter searches find the best of them. Tightness only.
        many = 6
        least = jnp.min(self.of_orders(rdp, orders, number, many=rdp.shape[0] >= many))
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
    """The conversion to the epsilon at a delta; ``inf`` where the divergence, the order or delta is none."""

    def is_known(self, number: Array) -> Array:
        return (number >= 0) & (number < 1)

    def of_orders(self, rdp: Array, orders: Array, number: Array, *, many: bool = False) -> Array:
        # Closed rules for epsilon, by the names of `METHODS`.
        epsilon = {"closed": epsilon_closed, "improved": epsilon_improved, "mironov": epsilon_mironov}
        delta, all_orders = number, orders
        some, finite = (rdp >= 0) & (rdp < jnp.inf), _are_finite_orders(orders)
        possible, inside = (delta >= 0) & (delta < 1), (delta > 0) & (delta < 1)
        known = some & inside if finite is True else some & inside & finite
        every_rdp, every_delta = rdp, delta
        rdp, delta = jnp.where(known, rdp, 1.0), jnp.where(inside, delta, 0.5)
        orders = orders if finite is True else jnp.where(known, orders, 2.0)
        if self.method != "optimal":
            logs = jnp.log(orders) - jnp.log(delta)
            magnitude = rdp - log_below(orders - 1) + (1 + logs + (orders - 1) * rdp) / (orders - 1)
            bound = jnp.where(rdp == 0, 0.0, epsilon[self.method](rdp, orders, delta) + margin_of_closed() * magnitude)
        else:
            bound = optimal_epsilon(rdp, orders, delta, many=many)
        bound = jnp.where(known, jnp.maximum(bound, 0.0), jnp.inf)
        if finite is True:
            return bound
        # At order infinity each rule is its own limit: rdp + log(1 - delta), or without that logarithm.
        spared = (
            log_complement(jnp.where(possible, every_delta, 0.0))
            if self.method in SPARING
            else jnp.zeros_like(every_delta)
        )
        largest = jnp.maximum(every_rdp + spared * (1 - margin_of_closed()), 0.0) * (
            1 + roundoff() * jnp.where(spared < 0, 2.0, 0.0)
        )
        return jnp.where(some & possible & (all_orders == jnp.inf), largest, bound)


@dataclass(frozen=True)
class ToDelta(Conversion):
    """The conversion to the delta at an epsilon; 1 where the divergence, the order or epsilon is none."""

    def is_known(self, number: Array) -> Array:
        return number >= 0

    def of_orders(self, rdp: Array, orders: Array, number: Array, *, many: bool = False) -> Array:
        epsilon = number
        pure = (rdp >= 0) & (rdp < jnp.inf) & (orders == jnp.inf) & (epsilon >= 0)
        largest = jnp.maximum(-jnp.expm1(jnp.minimum(epsilon - rdp, 0.0)) * (1 + margin_of_closed()), TINY)
        largest = jnp.where(rdp <= epsilon, 0.0, jnp.minimum(largest, 1.0) if self.method in SPARING else 1.0)
        known = (rdp >= 0) & (rdp < jnp.inf) & (orders > 1) & (orders < jnp.inf) & (epsilon >= 0)
        finite = jnp.where((epsilon >= 0) & (epsilon < jnp.inf), epsilon, 1.0)
        rdp, orders = jnp.where(known, rdp, 1.0), jnp.where(known, orders, 2.0)
        logs = log_delta_of_orders(rdp, orders, finite, self.method, many=many)
        # Values below TINY would be flushed to zero.
        implied = jnp.where(
            epsilon == jnp.inf, TINY, jnp.maximum(jnp.exp(jnp.minimum(logs, 0.0)) * (1 + margin_of_closed()), TINY)
        )
        implied = jnp.where(known & ((logs < 0) | (epsilon == jnp.inf)), jnp.minimum(implied, 1.0), 1.0)
        return jnp.where(pure, largest, implied)


def _are_finite_orders(orders: Array) -> Any:
    """Returns where orders are above 1 and finite; True itself where all are concrete and so."""
    if is_concrete(orders):
        are_finite = (np.asarray(orders) > 1) & (np.asarray(orders) < np.inf)
        return True if np.all(are_finite) else are_finite
    return (orders > 1) & (orders < jnp.inf)


def log_delta_of_orders(rdp: Array, orders: Array, epsilon: Array, method: str, *, many: bool = False) -> Array:
    """Returns the log delta that each order implies, rounded up; elementwise, for finite arguments in range."""
    # The same rules for the logarithm of delta.
    log_delta = {"closed": log_delta_closed, "improved": log_delta_improved, "mironov": log_delta_mironov}
    if method == "optimal":
        return optimal_log_delta(rdp, orders, epsilon, many=many)
    logs = log_delta[method](rdp, orders, epsilon)
    return logs + margin_of_closed() * (1 + (orders - 1) * (rdp + epsilon) + jnp.log(orders) + jnp.abs(logs))


def _are_in_range(rdp: Array, orders: Array, number: Array, to: Conversion) -> Array:
    return jnp.all(rdp >= 0, axis=-1) & jnp.all(orders > 1) & to.is_known(number)


@kernel(compiles=By.XLA_FAST, static=1, derivatives=Differences(inside=_are_in_range))
def least_implied(rdp: Array, orders: Array, number: Array, to: Conversion) -> Array:
    """Returns :func:`least_of`, compiled as one program."""
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


def _are_epsilon_and_delta(epsilon: Array, delta: Array, orders: Array, method: str) -> Array:
    inside, above = by_order((epsilon >= 0) & (delta >= 0) & (delta < 1), orders)
    return (inside > 0) & (above > 1)


@kernel(compiles=By.XLA_FAST, static=1, derivatives=Differences(inside=_are_epsilon_and_delta))
def _least(epsilon: Array, delta: Array, orders: Array, method: str) -> Array:
    epsilon, delta = jnp.broadcast_arrays(epsilon, delta)
    (epsilon, _), (delta, orders) = by_order(epsilon, orders), by_order(delta, orders)
    some = (epsilon >= 0) & (epsilon < jnp.inf) & (delta > 0) & (delta < 1)
    pure, known = some & (orders == jnp.inf), some & (orders > 1) & (orders < jnp.inf)
    largest = (epsilon - log_complement(jnp.where(some, delta, 0.0))) * (1 - margin_of_closed())
    epsilon, delta, orders = (jnp.where(known, v, w) for v, w in ((epsilon, 1.0), (delta, 0.1), (orders, 2.0)))
    if method == "optimal":
        bound = optimal_least_rdp(epsilon, delta, orders)
    else:
        magnitude = epsilon + (1 + jnp.log(orders) - jnp.log(delta)) / (orders - 1)
        bound = {"g": least_rdp_g, "f": least_rdp_f}[method](epsilon, delta, orders) - margin_of_closed() * magnitude
        alone = (epsilon - log_complement(delta)) * (1 - margin_of_closed())
        bound = jnp.where(orders * delta * (1 - margin_of_closed()) >= 1, alone, bound)
    return jnp.where(pure, largest, jnp.where(known, jnp.fmax(bound, 0.0), 0.0))
