"""Randomly stopped projected noisy SGD: the number of iterations is drawn uniformly from 1 to T, the last is released.

A run that stops before a record is read says nothing of it, and a run that reads it is hidden by the noise of the
iterations from there on. For every record the worst position is the first: no run then stops before it is read, and
the runs that read it are hidden by 1 to T noises. If stopping after k iterations costs delta_k, then by joint
convexity of E_eps all of it costs at most (delta_1 + ... + delta_T) / T, whether or not the stopping time is seen.

Asoodeh et al.'s corollary takes delta_k = theta(r0) c^(k-1), r0 = 2 L / noise, c = theta((diameter + 2 rate L) / (rate
noise)), and sums the geometric series to infinity. Rényi divergence is not jointly convex, but its moment e^((a-1) D)
is; Feldman et al. pass through a weak convexity that needs noise^2 >= 2 a (a - 1) L^2, and state

    zeta(a) = 4 a L^2 log T / (T noise^2).

The moment itself needs no such condition: zeta(a) = log of the mean of e^((a-1) z_k), over a - 1, z_k = 2 a L^2 /
(noise^2 k). Nor does it round the harmonic sum to a logarithm. *The display as printed is too small for T = 1*, where
it is 0 although one noisy gradient is released. For T >= 3 it is an upper bound: with x = (a-1) a 2 L^2 / noise^2 <= 1
the moment gives log(mean e^(x/k)) <= 2 x log T / T, since the left side is convex in x, is 0 at 0, and holds at x = 1:
for T >= 37 by log(1 + y) <= y, e^(1/k) - 1 <= (e - 1) / k and (e - 1) H_T <= 2 log T; for 3 to 36 by computing it (the
tests do). The reference's corollary for epsilon has (a - 1) a zeta where its zeta holds the factor a already; (a - 1)
zeta is meant.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.renyi import Orders, checked_orders
from jaxacct.iteration.contraction import as_array, from_log, kernel, log_theta
from jaxacct.iteration.sgd import (
    HIGHEST_ORDER,
    ProjectedNoisySGD,
    by_order,
    check_delta_call,
    first_ratio,
    image_ratio,
    is_contractive,
    is_valid,
    log_delta_of_rdp,
    next_log_delta,
    order_grid,
)
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.programs import lowered

NEEDS_CONVEXITY = ("feldman", "renyi", "shifted")
"""Names of the methods that need convex smooth losses."""
METHODS = ("contraction", "recursive", *NEEDS_CONVEXITY, "best")
"""Names of the methods of :func:`stopped_delta`."""
RENYI_METHODS = ("renyi", "feldman")
"""Names of the methods of :func:`stopped_rdp`."""

FEWEST_STEPS = 3
"""Least T at which Feldman et al.'s display is proved, in the module's docstring: below, it is not proved, or wrong. A
smaller value breaks the bound."""

BISECTIONS = 52
"""Halvings of the interval of epsilon: they leave 2^-52 of where it began. Sound for any value."""


def stopped_delta(
    sgd: ProjectedNoisySGD, epsilon: ArrayLike, *, method: str = "best", log: bool = False
) -> Float[Array, ...]:
    """Returns an upper bound on delta of randomly stopped projected noisy SGD.

    Args:
        sgd: the algorithm; ``sgd.steps`` is the most iterations that it can run. Fields broadcast with epsilon.
        epsilon (...): at least 0. May be traced.
        method: with r0 = 2 L / noise, r = (diameter + 2 learning_rate L) / (learning_rate noise)
            "contraction": Asoodeh et al.'s corollary, theta(r0) / (T (1 - theta(r))), and theta(r0) if that is less;
            "recursive": the mean of T deltas, each from the one before by the recursive rule of
            :func:`contracted_delta`; never larger;
            "feldman": Feldman et al.'s Rényi bound, converted by the rule in two branches, which is the reference's
            other corollary; convex smooth losses, T at least 3. (The optimal rule gives less: see
            :func:`jaxacct.convert.rdp_to_delta`.)
            "renyi": the same from the moments themselves, :func:`stopped_rdp`; never larger, any T;
            "shifted": the mean of theta(r0 / sqrt(k)), k = 1 ... T; convex smooth losses; never larger than "renyi";
            "best": at each iteration the least of "recursive" and, where it applies, "shifted".
        log: whether to return the natural logarithm, for what float64 does not hold.

    Returns float64 (...), in [0, 1]. Time is linear in the largest T but for "contraction" and "feldman".

    Formal guarantee: an upper bound on delta at epsilon for replacing one record, earlier iterates hidden, the stopping
    time uniform on 1 ... T, independent of the data, and seen or not. Rounding is included. 1 for no noise and for
    traced values out of range.

    Raises ValueError where a concrete argument is out of range or a precondition of ``method`` does not hold.

    Source: Asoodeh, Diaz and Calmon (2020), arXiv:2012.11035, and its corollary for randomly stopped SGD; Feldman,
    Mironov, Talwar and Thakurta (2018), theorem on random stopping; Bok, Su and Altschuler (2024) for "shifted".

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100, smoothness=1.0)
    >>> stopped_delta(sgd, 0.5, method="contraction").round(6).tolist()
    0.007214
    >>> bool(stopped_delta(sgd, 0.5) < 0.0006)
    True
    """
    check_delta_call(sgd, epsilon, method, METHODS)
    if method == "feldman":
        _check_feldman(sgd)
    return _stopped_delta(sgd, as_array(epsilon), method=method, log=log)


def stopped_epsilon(sgd: ProjectedNoisySGD, delta: ArrayLike, *, method: str = "best") -> Float[Array, ...]:
    """Returns an upper bound on epsilon of randomly stopped projected noisy SGD at ``delta``.

    Arguments, guarantee, errors and source are those of :func:`stopped_delta`; ``delta`` (...), in (0, 1), stands in
    for epsilon. It is the safe end of a bisection: :func:`stopped_delta` was at most ``delta`` there. ``inf`` for no
    noise and for traced values out of range.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100)
    >>> float(stopped_delta(sgd, stopped_epsilon(sgd, 1e-5, method="contraction"), method="contraction")) <= 1e-5
    True
    """
    check_delta_call(sgd, 0.0, method, METHODS)
    validation.check_delta(as_array(delta))
    if method == "feldman":
        _check_feldman(sgd)
    return _stopped_epsilon(sgd, as_array(delta), method=method)


def stopped_rdp(sgd: ProjectedNoisySGD, orders: Orders, *, method: str = "renyi") -> Float[Array, " orders"]:
    """Returns the Rényi divergence of randomly stopped projected noisy SGD at each order, rounded up.

    Args:
        sgd: the algorithm, scalar fields; batches are ``jax.vmap``. Its smoothness must be given.
        orders (orders,): Rényi orders above 1.
        method: "renyi", the mean of the moments, for every order and T; "feldman", 4 order L^2 log T / (T noise^2), for
            orders up to :func:`highest_order` and T at least 3.

    Returns float64 (orders,); ``inf`` where a traced value is out of range or breaks a precondition.

    Formal guarantee: an upper bound on the divergence for replacing one record, under what :func:`stopped_delta` says.

    Raises ValueError where a concrete argument is out of range or a precondition of ``method`` does not hold.

    Source: Feldman et al. (2018), theorem on random stopping; proofs in the module's docstring.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100, smoothness=1.0)
    >>> stopped_rdp(sgd, [2.0, 4.0], method="feldman").round(6).tolist()
    [0.014737, 0.029473]
    >>> stopped_rdp(sgd, [2.0, 4.0]).round(6).tolist()
    [0.008482, 0.019288]
    """
    validation.check_one_of(method, "method", RENYI_METHODS)
    sgd.validate()
    sgd.check_contractive(method)
    orders = checked_orders(orders)
    if method == "feldman":
        _check_feldman(sgd)
        _check_orders(sgd, orders)
    return _stopped_rdp(sgd, orders, method=method)


def highest_order(lipschitz: ArrayLike, noise: ArrayLike) -> Float[Array, ...]:
    """Returns the largest order a with noise^2 >= 2 a (a - 1) L^2, rounded down: where Feldman et al.'s bound ends.

    It is (1 + sqrt(1 + 2 noise^2 / L^2)) / 2. Arguments: lipschitz (...), noise (...), above 0. Returns float64 (...).

    Formal guarantee: a lower bound on that order, rounding included, so that ``method="feldman"`` of
    :func:`stopped_rdp` holds at it and below. Traced arguments are not checked.

    Raises ValueError where a concrete argument is not above 0.

    Source: Feldman, Mironov, Talwar and Thakurta (2018), "Privacy amplification by iteration".

    >>> highest_order(1.0, 5.0).round(4).tolist()
    4.0707
    """
    validation.check_positive(as_array(lipschitz), "lipschitz")
    validation.check_positive(as_array(noise), "noise")
    return _highest_order(as_array(lipschitz), as_array(noise))


def _check_feldman(sgd: ProjectedNoisySGD) -> None:
    steps = validation.concrete_value(sgd.steps)
    if steps is not None and np.any(steps < FEWEST_STEPS):
        raise ValueError(
            f"steps = {sgd.steps}: Feldman et al.'s bound has log(steps) in place of a harmonic sum, which promises "
            f"too much for one step; give at least {FEWEST_STEPS}, or choose method 'renyi'."
        )


def _check_orders(sgd: ProjectedNoisySGD, orders: Any) -> None:
    given = validation.concrete_value(orders)
    if given is None or isinstance(sgd.lipschitz, jax.core.Tracer) or isinstance(sgd.noise, jax.core.Tracer):
        return
    highest = np.min(highest_order(sgd.lipschitz, sgd.noise))
    if not np.all(given <= highest):
        raise ValueError(
            f"orders up to {np.max(given)} exceed {highest:.6g}: Feldman et al.'s bound needs "
            "noise^2 >= 2 order (order - 1) lipschitz^2; give lower orders or more noise, or choose method 'renyi', "
            "which needs neither."
        )


def _order_limit(lipschitz: Array, noise: Array) -> Array:
    squared = (noise / lipschitz) ** 2
    return (1 + jnp.sqrt(1 + 2 * squared)) / 2 * (1 - 16 * roundoff())


def _feldman(sgd: Any, orders: Array) -> Array:
    """Returns Feldman et al.'s divergence, rounded up, inf where it is not proved; fields of the orders' rank."""
    value = 4 * orders * (sgd.lipschitz / sgd.noise) ** 2 * jnp.log(sgd.steps) / sgd.steps * (1 + 32 * roundoff())
    limit = _order_limit(sgd.lipschitz, sgd.noise)
    return jnp.where((sgd.steps >= FEWEST_STEPS) & is_contractive(sgd) & (orders <= limit), value, jnp.inf)


def _moments(sgd: Any, orders: Array) -> Array:
    """Returns log(mean over k of e^((a-1) z_k)) / (a - 1), rounded up; fields of the orders' rank.

    With x_k = (a-1) z_k the sum carried is that of e^(x_k - x_1) (1 - e^(-x_k)): no overflow, no cancellation.
    """
    first = 2 * orders * (orders - 1) * (sgd.lipschitz / sgd.noise) ** 2 * (1 + 16 * roundoff())

    # One step adds one term to the mean's sum, in every lane that has that many iterations; it ends with the longest.
    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        count, total = state
        exponent = first / count
        term = jnp.exp(exponent - first) * -jnp.expm1(-exponent)
        return count + 1, total + jnp.where(count <= sgd.steps, term, 0.0)

    usable = first < jnp.inf
    most = jnp.max(jnp.where(is_valid(sgd), sgd.steps, 0.0))
    _, total = jax.lax.while_loop(lambda state: state[0] <= most, body, (jnp.ones(()), jnp.zeros_like(first)))
    moment = jnp.logaddexp(0.0, first + jnp.log(total / sgd.steps))
    # The argument of log(1 + e^y) errs by this, and the value by no more than the same share of itself.
    error = roundoff() * (4 * sgd.steps + 8 * first) + arithmetic().function * (8 + jnp.abs(jnp.log(total / sgd.steps)))
    above = moment * (1 + 8 * arithmetic().function) + jnp.minimum(moment, 1.0) * error
    return jnp.where(usable, above / (orders - 1), jnp.inf)


def _mean_log_delta(sgd: Any, epsilon: Array, method: str) -> Array:
    """Returns log of the mean of the T deltas, each from the one before."""

    # One step adds one more hidden iteration: ``before`` is log delta when stopped one earlier, ``total`` the sum of
    # the deltas so far over the first. It ends with the lane of the most iterations.
    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, before, largest, total = state
        current = next_log_delta(sgd, epsilon, before, count, method)
        # The first is the largest; taken relative to it the others neither overflow nor vanish.
        largest = jnp.where(count == 1, jnp.where(current == -jnp.inf, 0.0, current), largest)
        return count + 1, current, largest, total + jnp.where(count <= sgd.steps, jnp.exp(current - largest), 0.0)

    most = jnp.max(jnp.where(is_valid(sgd), sgd.steps, 0.0))
    zero = jnp.zeros_like(epsilon)
    begin = (jnp.ones(()), zero, zero, zero)
    _, _, largest, total = jax.lax.while_loop(lambda state: state[0] <= most, body, begin)
    return largest + jnp.log(total / sgd.steps) + roundoff() * (4 * sgd.steps + 4 * jnp.abs(largest) + 64)


def _log_delta(sgd: Any, epsilon: Array, method: str) -> Array:
    known = is_valid(sgd) & (epsilon >= 0)
    if method in NEEDS_CONVEXITY:
        known &= is_contractive(sgd)
    if method == "contraction":
        ratios = first_ratio(sgd), image_ratio(sgd, use_convexity=False)
        # The geometric series: theta(r0) / T times the sum of c^(k - 1), at most 1 / (1 - c), with c = theta(r).
        start, factor = log_theta(jnp.stack([epsilon, epsilon]), jnp.stack(ratios))
        rest = -jnp.log(sgd.steps) - jnp.log(-jnp.expm1(factor))
        # Where c rounds to 1 the series is infinite; its first T terms never exceed T times the first.
        bound = start + jnp.where(jnp.isfinite(rest), jnp.minimum(rest, 0.0), 0.0)
        terms = 8 + jnp.log(sgd.steps) + jnp.where(jnp.isfinite(bound), jnp.abs(bound), 0.0)
        result = bound + arithmetic().function * (terms + jnp.where(jnp.isfinite(rest), jnp.abs(rest), 0.0))
    elif method == "feldman":
        orders = order_grid(_order_limit(sgd.lipschitz, sgd.noise))
        result = log_delta_of_rdp(_feldman(by_order(sgd), orders), orders, epsilon)
    elif method == "renyi":
        orders = order_grid(jnp.full_like(epsilon, HIGHEST_ORDER))
        result = log_delta_of_rdp(_moments(by_order(sgd), orders), orders, epsilon)
    else:
        result = _mean_log_delta(sgd, epsilon, method)
    return jnp.where(known, jnp.where(epsilon == jnp.inf, -jnp.inf, result), 0.0)


@kernel
def _stopped_delta(sgd: Any, epsilon: Array, *, method: str, log: bool) -> Array:
    return from_log(_log_delta(sgd, epsilon, method), log=log)


@kernel
def _stopped_epsilon(sgd: Any, delta: Array, *, method: str) -> Array:
    # Rounded down by what the way back from the logarithm may round up as well.
    target = jnp.log(delta) - arithmetic().function * (4 + 2 * jnp.abs(jnp.log(delta)))
    valid = is_valid(sgd) & (delta > 0) & (delta < 1)
    # At ``highest`` theta(r0) alone has fallen to delta; Feldman's highest order gives at most (1 + log 1/delta) /
    # (order - 1).
    ratio = first_ratio(sgd)
    highest = ratio * (ratio + jnp.sqrt(-2 * target)) + 1e-9
    if method == "feldman":
        highest = (2 - target) / (_order_limit(sgd.lipschitz, sgd.noise) - 1)

    def narrow(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        # The first query is 0, the second the highest, then halves follow: so the program holds one evaluation. The
        # high end is always one that was enough; where none was it stays infinite.
        low, high = state
        query = jnp.where(index == 0, 0.0, jnp.where(index == 1, highest, (low + high) / 2))
        enough = _log_delta(sgd, query, method) <= target
        return jnp.where(enough, low, jnp.maximum(low, query)), jnp.where(enough, jnp.minimum(high, query), high)

    begin = (jnp.zeros_like(highest), jnp.full_like(highest, jnp.inf))
    _, result = jax.lax.fori_loop(0, BISECTIONS + 2, narrow, begin)
    return jnp.where(valid, result, jnp.inf)


@kernel
def _stopped_rdp(sgd: Any, orders: Array, *, method: str) -> Array:
    value = _feldman(sgd, orders) if method == "feldman" else _moments(sgd, orders)
    known = is_valid(sgd) & is_contractive(sgd) & (orders > 1) & (value >= 0)
    return jnp.where(known, value, jnp.inf)


@kernel(safe=lowered)
def _highest_order(lipschitz: Array, noise: Array) -> Array:
    return _order_limit(lipschitz, noise)
