"""Hidden noisy iterations: contraction of hockey-stick divergences, amplification by iteration, projected noisy SGD.

An iteration whose result stays hidden can only blur what earlier ones told. In reading order:

- how much Gaussian noise contracts a hockey-stick divergence (:func:`theta`, :func:`contracted_delta`), for any update
  with bounded images;
- what iterations with contractive updates cost in all (:func:`amplified_mu`, :func:`amplified_rdp`);
- projected noisy SGD in one pass, of which the last iterate is released (:class:`ProjectedNoisySGD`,
  :func:`last_iterate_delta`, :func:`last_iterate_rdp`);
- the same, stopped at a random iteration (:func:`stopped_delta`, :func:`stopped_epsilon`, :func:`stopped_rdp`).

Each part has its theorem and proof in the comment above it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.renyi import Orders, checked_orders, log_delta_of_orders
from jaxacct.mechanisms.mechanism import Fields
from jaxacct.mechanisms.normal import log_delta_at
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.derivatives import Differences
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import TINY, kept_positive, kernel
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect_traced
from jaxacct.validation import as_array

__all__ = [
    "ProjectedNoisySGD",
    "amplified_mu",
    "amplified_rdp",
    "contracted_delta",
    "highest_order",
    "last_iterate_delta",
    "last_iterate_rdp",
    "stopped_delta",
    "stopped_epsilon",
    "stopped_rdp",
    "theta",
]


# ----------------------------------------------------------------------------------------------------
# Contraction: what Gaussian noise after an update with bounded images leaves of a hockey-stick divergence.
#
# E_eps(P || Q) = sup over events A of P(A) - e^eps Q(A) is the delta of a pair at eps. Two Gaussians of variance s^2
# whose means are D apart have E_eps = theta_eps(D / s),
#
#     theta_eps(r) = Phi(-a) - e^eps Phi(-b),   a = eps/r - r/2,   b = a + r.
#
# *Contraction* (Asoodeh et al., the generalisation of Dobrushin's theorem). For a kernel K, E_eps(mu K || nu K) <=
# E_eps(mu || nu) eta with eta the largest E_eps(K(x) || K(x')) over two inputs. Write mu - e^eps nu = d mu' - c nu' by
# its positive and negative parts, mu' and nu' probabilities, d = E_eps(mu || nu) and c = d + e^eps - 1. Then (mu -
# e^eps nu) K = d (mu' K - (c/d) nu' K), whose positive part is, by joint convexity, at most d sup E_eps'(K(x) || K(x'))
# with e^eps' = c/d = 1 + (e^eps - 1)/d >= e^eps. Dropping the prime gives the theorem; keeping it gives the sharper
# rule of Balle et al. (2019), Theorem 1 (2): the smaller delta is already, the more the next step contracts. The map is
# monotone in d, since its derivative is the excess (mu' K - nu' K)(A) >= 0 on the optimal event, so bounds may be fed
# into it. If x is mapped into a set of diameter D before Gaussian noise is added, eta is at most theta_eps(D / s), and
# equal to it where two inputs attain D.
# ----------------------------------------------------------------------------------------------------

LEAST_LOG = -1e300
"""Floor that stands in for a logarithm that float64 cannot hold: it is the larger number, so a bound stays one."""


elementwise = functools.partial(kernel, compiles=By.XLA, of_one_shape=True, derivatives=Differences())
"""Decorator of functions of numbers of one shape, whose loops may be long."""


def theta(epsilon: ArrayLike, ratio: ArrayLike | Sequence[float], *, log: bool = False) -> Float[Array, ...]:
    """Returns theta_epsilon(ratio), the hockey-stick divergence of N(ratio, 1) from N(0, 1), rounded up.

    Args:
        epsilon (...): at least 0. May be traced.
        ratio (...): distance of the means over the noise's standard deviation, at least 0; shapes broadcast.
        log: whether to return the natural logarithm, which holds values that float64 cannot.

    Returns float64 (...), in [0, 1].

    Formal guarantee: an upper bound on the divergence. With a = eps/ratio - ratio/2, it is above it by a relative
    1e-13 (1 + a^2) + 1e-15 ratio (1 + |a|) at most, or by the smallest normal float64, where that share is below 1/2
    and a at most 1e3: a is a difference of terms as large as the ratio. It is the contraction coefficient under
    E_epsilon of every kernel that maps its input into a set of diameter D and adds N(0, s^2 I), ratio = D / s, in any
    dimension; and the delta of the Gaussian mechanism with that ratio. Traced values out of range give 1.

    Source: Asoodeh, Diaz and Calmon (2020), "Privacy analysis of online learning algorithms via contraction
    coefficients", arXiv:2012.11035; the formula also Balle and Wang (2018), Theorem 8.

    >>> theta(0.0, 2.0).round(6).tolist()  # the total variation distance of two normals, two deviations apart
    0.682689
    >>> theta(50.0, [0.1, 0.2], log=True).round(2).tolist()
    [-124990.65, -31238.58]
    """
    validation.check_numbers(epsilon=epsilon, ratio=ratio)
    epsilon, ratio = as_array(epsilon), as_array(ratio)
    validation.check_epsilon(epsilon)
    validation.check_not_negative(ratio, "ratio", "the distance of the means over the noise's standard deviation")
    return _theta(epsilon, ratio, log)


def contracted_delta(
    epsilon: ArrayLike,
    delta: ArrayLike,
    ratio: ArrayLike,
    steps: ArrayLike,
    *,
    method: str = "recursive",
    log: bool = False,
) -> Float[Array, ...]:
    """Returns an upper bound on delta after further hidden noisy iterations: the strong data processing bound.

    The process is W_{t+1} = Psi_{t+1}(W_t) + Z_{t+1}, Z ~ N(0, s^2 I), the same on both data sets from here on; only
    the last W is released. (With a projection after the noise the bound holds too: that is post-processing, and at the
    start of the next iteration part of Psi.)

    Args:
        epsilon (...): at least 0. May be traced.
        delta (...): E_epsilon of the two laws before these iterations, in [0, 1].
        ratio (...): bound on the diameter of Psi's images over the noise, sup |Psi(w) - Psi(w')| / s, at least 0.
        steps (...): how many further iterations, a whole number. Time is linear in it for "recursive".
        method: "linear", delta * theta_epsilon(ratio)^steps, as the reference has it; "recursive", never larger: each
            step contracts by theta at eps' = log(1 + (e^eps - 1) / delta), delta being what is left before it.
        log: whether to return the natural logarithm, for what float64 does not hold.

    Returns float64 (...), the broadcast shape, in [0, 1].

    Formal guarantee: an upper bound, rounding included. Convexity is not needed. The iteration that first tells the
    data sets apart counts in ``delta``: a process whose first iteration has E_epsilon = d1 and that runs T iterations
    in all has contracted T - 1 times. Traced values out of range give 1.

    Source: Asoodeh, Diaz and Calmon (2020), arXiv:2012.11035; "recursive": Balle, Barthe, Gaboardi and Geumlek (2019),
    "Privacy amplification by mixing and diffusion mechanisms", Theorem 1 (2), iterated. Proof in the comment
    above :func:`theta`.

    >>> contracted_delta(1.0, delta=0.01, ratio=2.0, steps=3, method="linear").round(8).tolist()
    0.00132543
    >>> bool(contracted_delta(1.0, delta=0.01, ratio=2.0, steps=3) < 1e-22)
    True
    """
    validation.check_numbers(epsilon=epsilon, delta=delta, ratio=ratio, steps=steps)
    validation.check_one_of(method, "method", ("recursive", "linear"))
    epsilon, delta, ratio, steps = map(as_array, (epsilon, delta, ratio, steps))
    validation.check_epsilon(epsilon)
    validation.check_probability(delta, "delta")
    validation.check_not_negative(ratio, "ratio", "the diameter of the images over the noise's standard deviation")
    validation.check_steps(steps)
    return _contract(epsilon, delta, ratio, steps, method, log)


def from_log(log_delta: Array, *, log: bool) -> Array:
    """Returns a bound on delta, or its logarithm; a positive bound is at least the smallest normal float, never 0."""
    bounded = jnp.minimum(jnp.where(jnp.isnan(log_delta), 0.0, log_delta), 0.0)
    if log:
        return bounded
    linear = jnp.exp(bounded) * (1 + 2 * arithmetic().function)
    return jnp.where(bounded == -jnp.inf, 0.0, jnp.clip(linear, TINY, 1.0))


def log_theta(epsilon: Array, ratio: Array) -> Array:
    """Returns ``log theta`` rounded up, for arrays of one shape inside the scope; 0 for values out of range."""
    inside = (ratio > 0) & (ratio < jnp.inf) & (epsilon >= 0) & (epsilon < jnp.inf)
    r = jnp.where(inside, ratio, 1.0)
    # Capped where the square of epsilon / r would overflow: the divergence falls in epsilon, so a bound stays one.
    finite = jnp.minimum(jnp.where(inside, epsilon, 0.0), 1e150 * r)
    log_delta, allowance = log_delta_at(r, finite)
    value = jnp.clip(log_delta + allowance, LEAST_LOG, 0.0)
    # Equal laws, and no loss to bound, have no divergence at all.
    vanishes = ((ratio == 0) & (epsilon >= 0)) | ((epsilon == jnp.inf) & (ratio < jnp.inf))
    return jnp.where(inside, value, jnp.where(vanishes, -jnp.inf, 0.0))


def iterate(step: Callable[..., tuple[Array, ...]], most: Array, *start: Array) -> tuple[Array, ...]:
    """Returns what ``step(count, *state)`` makes of a state that begins as ``start``, for counts 1, 2, ... ``most``.

    One step is one hidden iteration of every lane. The loop ends with the lane of the most iterations; ``step`` keeps
    what lanes that are done have found.
    """
    longest = jnp.max(most)

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        count, *leaves = state
        return count + 1, *step(count, *leaves)

    _, *final = jax.lax.while_loop(lambda state: state[0] <= longest, body, (jnp.ones(()), *start))
    return tuple(final)


def raised_epsilon(epsilon: Array, log_delta: Array) -> Array:
    """Returns log(1 + (e^eps - 1) / delta) rounded down: the epsilon at which the next hidden iteration contracts."""
    log_rest = jnp.log(-jnp.expm1(-epsilon))
    log_excess = epsilon + log_rest  # log(e^eps - 1), -inf at eps = 0
    raised = jnp.logaddexp(0.0, log_excess - jnp.maximum(log_delta, LEAST_LOG))
    # The relative error of log(1 + e^z) is at most the absolute one of z, and its own.
    sizes = jnp.where(
        epsilon > 0, 2 * arithmetic().function * jnp.abs(log_rest) + 4 * roundoff() * jnp.abs(log_excess), 0.0
    )
    error = 8 * arithmetic().function + sizes + 4 * roundoff() * jnp.abs(log_delta)
    rounded = raised * (1 - jnp.minimum(error, 1.0))
    return jnp.where(jnp.isfinite(log_delta), jnp.maximum(rounded, epsilon), epsilon)


def extend(log_delta: Array, log_factor: Array) -> Array:
    """Returns the log of a product of two numbers in [0, 1], rounded up; never above the first, nor 0 for positive."""
    product = log_delta + log_factor
    rounded = jnp.minimum(jnp.maximum(product * (1 - 2 * roundoff()), LEAST_LOG), log_delta)
    return jnp.where((log_delta == -jnp.inf) | (log_factor == -jnp.inf), -jnp.inf, rounded)


@elementwise(static=1, derivatives=Differences(inside=lambda epsilon, ratio, log: (epsilon >= 0) & (ratio >= 0)))
def _theta(epsilon: Array, ratio: Array, log: bool) -> Array:
    return from_log(log_theta(epsilon, ratio), log=log)


def _is_process(epsilon: Array, delta: Array, ratio: Array, steps: Array, *_: Any) -> Array:
    is_count = (steps >= 0) & (jnp.floor(steps) == steps)
    return (delta >= 0) & (delta <= 1) & (epsilon >= 0) & is_count & (ratio >= 0)


@elementwise(static=2, derivatives=Differences(inside=_is_process))
def _contract(epsilon: Array, delta: Array, ratio: Array, steps: Array, method: str, log: bool) -> Array:
    valid = _is_process(epsilon, delta, ratio, steps)
    start = jnp.log(jnp.where(valid, delta, 1.0))
    start = start + 2 * arithmetic().function * jnp.where(start == -jnp.inf, 0.0, jnp.abs(start))
    if method == "linear":
        factor = log_theta(epsilon, ratio)
        total = jnp.where(steps == 0, 0.0, steps * factor * jnp.where(factor == -jnp.inf, 1.0, 1 - 4 * roundoff()))
        result = start + total
    else:

        def contract(current: Array) -> Array:
            return extend(current, log_theta(raised_epsilon(epsilon, current), ratio))

        # Each iteration contracts at the raised epsilon that what is left of the delta allows.
        def step(count: Array, current: Array) -> tuple[Array]:
            return (jnp.where(count <= steps, contract(current), current),)

        (result,) = iterate(step, jnp.where(valid & (steps < jnp.inf), steps, 0.0), start)
    return from_log(jnp.where(valid, result, 0.0), log=log)


# ----------------------------------------------------------------------------------------------------
# Amplification by iteration: the cost of hidden iterations with contractive updates, for given shifts and noise.
#
# Two processes X_t = psi_t(X_{t-1}) + Z_t and X'_t = psi'_t(X'_{t-1}) + Z'_t with all psi 1-Lipschitz, Z_t and Z'_t ~
# N(0, s_t^2 I), the same start, and sup |psi_t - psi'_t| <= c_t. Choose a_t >= 0 whose partial sums stay at or below
# those of c and end at the same total. Then the last iterates are at most as far apart as N(0, 1) and N(mu, 1),
#
#     mu^2 = sum of a_t^2 / s_t^2,
#
# in trade-off functions (Bok, Su and Altschuler 2024), hence in hockey-stick and in Rényi divergence, alpha mu^2 / 2;
# the last is Theorem 22 of Feldman et al. (2018).
#
# *Proof idea.* With the noise of X, let Y_0 = X_0 and Y_t = psi'_t(Y_{t-1}) + v_t + Z_t, where v_t points from
# psi'_t(Y_{t-1}) to psi_t(X_{t-1}) and covers as much of the way as a_t allows. The distance |X_t - Y_t| <= c_1 + ... +
# c_t - (a_1 + ... + a_t) by the Lipschitz property, so it ends at 0 and Y_T = X_T. Given the past, Y_t is
# N(psi'_t(Y_{t-1}) + v, s_t^2) averaged over v of norm at most a_t, against N(psi'_t(Y'), s_t^2): a Gaussian mechanism
# of ratio a_t / s_t. Adaptive composition over t adds the squares.
#
# *The best a.* Over v_t = s_1^2 + ... + s_t^2 the partial sums of a form a path from 0 to the total, below the points
# of c's; the path of least energy is their greatest convex minorant, and its slopes are the isotonic regression of c_t
# / s_t^2 with weights s_t^2, which has a closed form in minima and maxima of averages.
# ----------------------------------------------------------------------------------------------------


def amplified_mu(shifts: Float[ArrayLike, " steps"] | Sequence[float], noise: ArrayLike) -> Float[Array, ""]:
    """Returns the mu of N(mu, 1) against N(0, 1) that bounds a contractive noisy iteration's last iterate, rounded up.

    Args:
        shifts (T,): bounds on sup |psi_t(w) - psi'_t(w)|, at least 0; 0 where an iteration is the same on both data
            sets. For a distance of the starting points prepend it to the first.
        noise (T,): standard deviation of each iteration's Gaussian noise in each coordinate, above 0, or () for all.

    Returns float64 (). Memory grows as T^2.

    Formal guarantee: with every update 1-Lipschitz (a gradient step on a convex, beta-smooth loss with a learning rate
    of at most 2/beta; a projection onto a convex set) the last iterate is mu-GDP, ``theta(eps, mu)`` bounds its delta
    and ``alpha mu^2 / 2`` its Rényi divergence. Earlier iterates must stay hidden. Rounding is included. ``inf`` where
    a traced value is out of range.

    Raises ValueError where a concrete argument is out of range or the shapes do not match.

    Source: Bok, Su and Altschuler (2024), "Shifted interpolation for differential privacy", arXiv:2403.00278; in Rényi
    divergence Feldman, Mironov, Talwar and Thakurta (2018), "Privacy amplification by iteration", Theorem 22. The proof
    and the choice of the a_t are in the comments above this function.

    >>> amplified_mu([1.0, 0.0, 0.0, 0.0], noise=2.0).round(6).tolist()  # 1 / (2 sqrt(4))
    0.25
    """
    return _amplified_mu(*_checked_shifts(shifts, noise))


def _checked_shifts(shifts: Any, noise: Any) -> tuple[Any, Any]:
    """Returns both as arrays of one axis, the noise or () for all; raises ValueError where they do not match."""
    validation.check_numbers(shifts=shifts, noise=noise)
    shifts, noise = as_array(shifts), as_array(noise)
    validation.check_not_negative(shifts, "shifts", "bounds on how far the two updates can be apart")
    validation.check_positive(noise, "noise")
    if np.ndim(shifts) != 1 or np.ndim(noise) > 1 or np.shape(noise) not in ((), np.shape(shifts)):
        raise ValueError(
            f"shifts of shape {np.shape(shifts)} and noise of shape {np.shape(noise)} do not match: give one shift for "
            "each iteration, and one standard deviation for each or one for all."
        )
    return shifts, noise


def amplified_rdp(
    orders: Orders, shifts: Float[ArrayLike, " steps"] | Sequence[float], noise: ArrayLike
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of a contractive noisy iteration's last iterate at each order, rounded up.

    Arguments, guarantee, errors and source are those of :func:`amplified_mu`; ``orders`` (orders,) are above 1, and a
    traced one that is not gives ``inf``.

    >>> amplified_rdp([2.0, 8.0], shifts=[1.0, 0.0], noise=1.0).round(6).tolist()
    [0.5, 2.0]
    """
    return _amplified_rdp(checked_orders(orders), *_checked_shifts(shifts, noise))


@kernel(compiles=By.XLA, derivatives=Differences())
def _amplified_mu(shifts: Array, noise: Array) -> Array:
    return _mu_of(shifts, jnp.broadcast_to(noise, shifts.shape))


@kernel(compiles=By.XLA, derivatives=Differences())
def _amplified_rdp(orders: Array, shifts: Array, noise: Array) -> Array:
    mu = _mu_of(shifts, jnp.broadcast_to(noise, shifts.shape))
    divergence = jnp.where(mu > 0, jnp.maximum(orders * mu**2 / 2 * (1 + 8 * roundoff()), TINY), 0.0)
    return jnp.where(orders > 1, divergence, jnp.inf)


def _mu_of(shifts: Array, noise: Array) -> Array:
    """Returns mu, rounded up, ``inf`` where an argument is out of range."""
    count = shifts.shape[0]
    ordered = jnp.arange(count)[:, None] <= jnp.arange(count)[None, :]

    def sums_from_each_to_each(terms: Array) -> Array:
        # Summed from each start anew: in differences of partial sums a small term behind large ones would vanish.
        return jnp.cumsum(jnp.where(ordered, terms[None, :], 0.0), axis=1)

    # Shifts and noise are taken relative to the largest, so that no square that counts leaves the range of float64.
    valid = jnp.all((shifts >= 0) & (noise > 0) & (noise < jnp.inf))  # of negative noise the ratios would be positive
    shifts = kept_positive(shifts)
    furthest, widest = jnp.max(shifts), jnp.max(noise)
    shifts, noise = shifts / jnp.where(furthest > 0, furthest, 1.0), noise / widest
    variance = noise**2
    # The isotonic regression by its closed form: the largest over starts of the least average over ends.
    averages = jnp.where(ordered, sums_from_each_to_each(shifts) / sums_from_each_to_each(variance), jnp.inf)
    least_after = jax.lax.cummin(averages, axis=1, reverse=True)
    slopes = jnp.max(jnp.where(ordered, least_after, 0.0), axis=0)
    # A sum of T positive terms errs by a relative T u; three of them count, and a few single operations.
    ratio = jnp.sqrt(jnp.sum((slopes * noise) ** 2)) * (1 + roundoff() * (4 * count + 64))
    mu = jnp.maximum(jnp.maximum(furthest / widest, TINY) * ratio, TINY)
    return jnp.where(valid & (mu >= 0), jnp.where(furthest > 0, mu, 0.0), jnp.inf)


# ----------------------------------------------------------------------------------------------------
# Projected noisy SGD in one pass, of which only the last iterate is released: its delta and its Rényi divergence.
#
# Each record is read once, in one iteration; the noise of all later iterations hides it. The bounds are the contraction
# of the hockey-stick divergence and amplification by iteration, as above.
# ----------------------------------------------------------------------------------------------------

NEEDS_CONVEXITY = ("feldman", "renyi", "shifted")
"""Names of the methods that need convex smooth losses. A method that is missing here would break its bound."""

METHODS = ("contraction", "recursive", *NEEDS_CONVEXITY, "best")
"""Names of the methods of :func:`stopped_delta`; without "feldman", those of :func:`last_iterate_delta`."""


def rounding_factor() -> float:
    """Returns a factor that covers the four roundings of each ratio below."""
    return 1 + 16 * roundoff()


@register_dataclass
@dataclass(frozen=True)
class ProjectedNoisySGD(Fields):
    """Projected noisy SGD: w <- projection onto K of w - learning_rate (gradient at w of record t's loss + Z).

    Z ~ N(0, noise^2 I). Iteration t reads record t and no other, so there are as many records as steps; data sets are
    neighbours if one record is *replaced* by another.

    Attributes:
        learning_rate (...): above 0.
        lipschitz (...): L, the Lipschitz constant of the loss in w: bound on the gradient's norm on K, above 0.
        noise (...): standard deviation of Z in each coordinate, at least 0. 0 promises nothing: delta is 1.
        steps (...): number of iterations T, at least 1.
        diameter (...): diameter of K, which the contraction bounds need; infinity for none. 1 in the reference.
        smoothness (...): beta, Lipschitz constant of the gradients, 0 for linear losses; giving it states that losses
            and K are *convex*. None claims nothing, and only the contraction bounds apply.

    Fields broadcast; they may be traced, and then what cannot raise promises nothing.

    Source: Feldman, Mironov, Talwar and Thakurta (2018), "Privacy amplification by iteration", Algorithm 1.

    >>> ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100).diameter
    1.0
    """

    learning_rate: ArrayLike
    lipschitz: ArrayLike
    noise: ArrayLike
    steps: ArrayLike
    diameter: ArrayLike = 1.0
    smoothness: ArrayLike | None = None

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_positive(self.learning_rate, "learning_rate")
        validation.check_positive(self.lipschitz, "lipschitz")
        validation.check_not_negative(self.noise, "noise", "the standard deviation of the noise added to each gradient")
        validation.check_steps(self.steps)
        steps = validation.concrete_value(self.steps)
        if steps is not None and not np.all(steps >= 1):
            raise ValueError(f"steps = {self.steps}: nothing is run, so nothing is released; give at least 1.")
        validation.check_not_negative(self.diameter, "diameter", "the diameter of the set projected onto")
        if self.smoothness is not None:
            meaning = "beta, the Lipschitz constant of the losses' gradients"
            validation.check_not_negative(self.smoothness, "smoothness", meaning)

    def check_contractive(self, method: str) -> None:
        """Raises ValueError unless gradient steps are known to be 1-Lipschitz, which ``method`` needs."""
        if self.smoothness is None:
            raise ValueError(
                f"smoothness = None: method {method!r} needs convex and smooth losses; give their smoothness (0 for "
                "linear ones) if they are, or choose method 'contraction' or 'recursive'."
            )
        rate, beta = validation.concrete_value(self.learning_rate), validation.concrete_value(self.smoothness)
        if rate is not None and beta is not None and np.any(rate * beta > 2):
            raise ValueError(
                f"learning_rate = {self.learning_rate} is above 2 / smoothness = {2 / np.max(beta):.6g}: gradient "
                f"steps are then no contractions, which method {method!r} needs; lower it, or choose 'contraction'."
            )


def last_iterate_delta(
    sgd: ProjectedNoisySGD,
    epsilon: ArrayLike,
    *,
    position: ArrayLike | None = None,
    method: str = "best",
    log: bool = False,
) -> Float[Array, ...]:
    """Returns an upper bound on delta of releasing the last iterate alone.

    Args:
        sgd: the algorithm; its fields broadcast with the other arguments.
        epsilon (...): at least 0. May be traced.
        position (...): the iteration, from 1 to ``sgd.steps``, that reads the record in question; the earlier, the more
            noise hides it. None: the last one, which is the worst and has one noise alone.
        method: with k = steps - position iterations after it, ratio r0 = 2 L / noise and
            "contraction": theta(r0) theta(r)^k, r = (diameter + 2 learning_rate L) / (learning_rate noise);
            "recursive": the same with the recursive rule of :func:`contracted_delta`, never larger;
            "renyi": by Feldman et al.'s 2 order L^2 / (noise^2 (k + 1)), for convex smooth losses;
            "shifted": theta(r0 / sqrt(k + 1)), likewise;
            "best": the least that any of these gives at any iteration; the middle two only where they apply.
        log: whether to return the natural logarithm, for what float64 does not hold.

    Returns float64 (...), in [0, 1].

    Formal guarantee: an upper bound on delta at epsilon for replacing the record read at ``position``, earlier iterates
    hidden; rounding is included. 1 for no noise and for traced values out of range.

    Raises ValueError where a concrete argument is out of range, or where ``method`` needs convexity, smoothness and a
    learning rate of at most 2 / smoothness, and they are not given.

    Source: Asoodeh, Diaz and Calmon (2020), arXiv:2012.11035; Feldman et al. (2018), from their Theorem 22; Bok, Su and
    Altschuler (2024). Proofs in :mod:`jaxacct.iteration`: at its position the record moves the iterate by
    at most 2 learning_rate L, under noise of learning_rate * noise.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100)
    >>> last_iterate_delta(sgd, 0.1, method="contraction").round(6).tolist()
    0.119383
    >>> bool(last_iterate_delta(sgd, 0.1, position=90, method="contraction") < 0.09)
    True
    """
    validation.check_type(sgd, "sgd", ProjectedNoisySGD)
    validation.check_numbers(epsilon=epsilon)
    check_delta_call(sgd, epsilon, method, tuple(name for name in METHODS if name != "feldman"))
    if position is None:
        position = sgd.steps
    validation.check_numbers(position=position)
    position = as_array(position)
    seen, steps = validation.concrete_value(position), validation.concrete_value(sgd.steps)
    if seen is not None and steps is not None and not np.all((seen >= 1) & (seen <= steps) & (seen == np.floor(seen))):
        raise ValueError(f"position = {position} is no iteration: give a whole number from 1 to steps = {sgd.steps}.")
    return _last_iterate_delta(sgd, as_array(epsilon), position, method, log)


def last_iterate_rdp(
    sgd: ProjectedNoisySGD, orders: Orders, *, position: ArrayLike | None = None
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of releasing the last iterate alone, at each order, rounded up.

    Args:
        sgd: the algorithm, scalar fields; batches are ``jax.vmap``. Its smoothness must be given.
        orders (orders,): Rényi orders above 1.
        position (): the iteration that reads the record in question; the last one by default, which is the worst.

    Returns float64 (orders,): 2 order L^2 / (noise^2 (steps - position + 1)).

    Formal guarantee: an upper bound on the divergence for replacing the record read at ``position``, earlier iterates
    hidden, rounding included, for convex smooth losses and a learning rate of at most 2 / smoothness. ``inf`` for
    traced values out of range.

    Raises ValueError as :func:`last_iterate_delta` does.

    Source: Feldman et al. (2018), Theorem 22 with one shift of 2 learning_rate L.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100, smoothness=1.0)
    >>> last_iterate_rdp(sgd, [2.0, 4.0], position=91).round(6).tolist()
    [0.016, 0.032]
    """
    validation.check_type(sgd, "sgd", ProjectedNoisySGD)
    if position is not None:
        validation.check_numbers(position=position)
    sgd.check_contractive("renyi")
    return _last_iterate_rdp(sgd, checked_orders(orders), sgd.steps if position is None else position)


def check_delta_call(sgd: ProjectedNoisySGD, epsilon: Any, method: str, methods: tuple[str, ...]) -> None:
    """Raises where the arguments that all deltas have in common are not valid."""
    sgd.validate()
    validation.check_one_of(method, "method", methods)
    validation.check_epsilon(as_array(epsilon))
    if method in NEEDS_CONVEXITY:
        sgd.check_contractive(method)
    if method == "feldman":
        _check_feldman(sgd)


def is_valid(sgd: Any) -> Array:
    """Returns whether traced fields are in range; inside the scope."""
    is_count = (sgd.steps >= 1) & (jnp.floor(sgd.steps) == sgd.steps) & (sgd.steps < jnp.inf)
    sizes = (sgd.learning_rate > 0) & (sgd.lipschitz > 0) & (sgd.noise > 0) & (sgd.diameter >= 0)
    return is_count & sizes & (sgd.learning_rate < jnp.inf) & (sgd.lipschitz < jnp.inf)


def is_contractive(sgd: Any) -> Array:
    """Returns whether gradient steps are known to be 1-Lipschitz; inside the scope."""
    if sgd.smoothness is None:
        return jnp.zeros(sgd.steps.shape, bool)
    return (sgd.smoothness >= 0) & (sgd.learning_rate * sgd.smoothness <= 2)


def first_ratio(sgd: Any) -> Array:
    """Returns 2 L / noise, rounded up: how far the record moves the iterate at its own position, over the noise."""
    return at_least_tiny(2 * sgd.lipschitz / sgd.noise * rounding_factor())


def at_least_tiny(bound: Array) -> Array:
    """Returns an upper bound on a number above 0 that may have underflowed; NaN and negative numbers as they are."""
    return jnp.where((bound >= 0) & (bound < TINY), TINY, bound)


def image_ratio(sgd: Any, *, use_convexity: bool) -> Array:
    """Returns the diameter of a gradient step's images over the noise, rounded up.

    Two gradients differ by at most 2 L; where gradient steps are contractions, images are as near as inputs, or nearer.
    """
    distance = sgd.diameter + 2 * sgd.learning_rate * sgd.lipschitz
    if use_convexity:
        distance = jnp.where(is_contractive(sgd), sgd.diameter, distance)
    # One of the two is right where a product overflows or a quotient underflows, and neither is less.
    ratio = jnp.maximum(distance / (sgd.learning_rate * sgd.noise), distance / sgd.learning_rate / sgd.noise)
    return at_least_tiny(ratio * rounding_factor())


def next_log_delta(sgd: Any, epsilon: Array, before: Array, count: Array, method: str) -> Array:
    """Returns log delta after ``count`` iterations from the record's own on, given log delta after one fewer."""
    own = epsilon, at_least_tiny(first_ratio(sgd) / jnp.sqrt(count) * rounding_factor())
    if method == "shifted":
        return log_theta(*own)
    further = raised_epsilon(epsilon, before), image_ratio(sgd, use_convexity=method == "best")
    # One batch of two: half the code to compile.
    shifted, factor = log_theta(*map(jnp.stack, zip(own, further, strict=True)))
    hidden = extend(before, factor)
    if method == "best":
        hidden = jnp.where(is_contractive(sgd), jnp.minimum(hidden, shifted), hidden)
    # At count 1 nothing came before: the record's own noise alone decides, and both bounds are theta(r0).
    return jnp.where(count == 1, shifted, hidden)


def log_delta_of_rdp(
    divergence_of: Callable[[Any, Array], Array], sgd: Any, epsilon: Array, highest: Array | None = None
) -> Array:
    """Returns the least log delta at epsilon (...) that Rényi divergences at orders up to ``highest`` (...) imply.

    ``divergence_of`` gives them, for an algorithm whose fields have a leading axis and for orders (orders, ...). The
    rule is that of Asoodeh et al.'s corollary, in two branches: close to the optimum at a fraction of its cost.
    """
    # 128 orders, geometric in order - 1, up to 4096 unless a method ends before: any of them gives a bound.
    highest = jnp.full_like(epsilon, 4096.0) if highest is None else highest
    grid = np.geomspace(1e-5, 1.0, 128).reshape((-1,) + (1,) * highest.ndim)
    orders = 1 + (highest - 1)[None] * grid
    divergence = divergence_of(jax.tree.map(lambda field: field[None], sgd), orders)
    known = divergence < jnp.inf
    divergence, epsilon = jnp.where(known, divergence, 1.0), jnp.broadcast_to(epsilon, divergence.shape)
    logs = log_delta_of_orders(divergence, orders, jnp.minimum(epsilon, 1e300), "closed")
    return jnp.min(jnp.where(known, logs, 0.0), axis=0)


def _is_last_iterate(sgd: Any, epsilon: Array, position: Array, method: str, log: bool) -> Array:
    after = sgd.steps - position
    known = is_valid(sgd) & (position >= 1) & (after >= 0) & (jnp.floor(position) == position) & (epsilon >= 0)
    return known & is_contractive(sgd) if method in NEEDS_CONVEXITY else known


@elementwise(static=2, derivatives=Differences(inside=_is_last_iterate))
def _last_iterate_delta(sgd: Any, epsilon: Array, position: Array, method: str, log: bool) -> Array:
    after, known = sgd.steps - position, _is_last_iterate(sgd, epsilon, position, method, log)
    if method == "contraction":
        ratios = first_ratio(sgd), image_ratio(sgd, use_convexity=False)
        start, factor = log_theta(jnp.stack([epsilon, epsilon]), jnp.stack(ratios))
        result = start + jnp.where(after > 0, after * factor * (1 - 4 * roundoff()), 0.0)
    elif method == "shifted":
        result = next_log_delta(sgd, epsilon, epsilon, after + 1, method)
    elif method == "renyi":
        result = log_delta_of_rdp(lambda each, orders: _divergence(each, orders, after[None] + 1), sgd, epsilon)
    else:
        # ``before`` is log delta after the iterations so far.
        def step(count: Array, before: Array) -> tuple[Array]:
            later = next_log_delta(sgd, epsilon, before, count, method)
            return (jnp.where(count <= after + 1, later, before),)

        (result,) = iterate(step, jnp.where(known, after + 1, 0.0), jnp.zeros_like(epsilon))
    return from_log(jnp.where(known, result, 0.0), log=log)


def _divergence(sgd: Any, orders: Array, count: Array) -> Array:
    """Returns 2 order L^2 / (noise^2 count), rounded up."""
    return at_least_tiny(orders * 2 * (sgd.lipschitz / sgd.noise) ** 2 / count * rounding_factor())


@elementwise
def _last_iterate_rdp(sgd: Any, orders: Array, position: Array) -> Array:
    after = sgd.steps - position
    known = is_valid(sgd) & is_contractive(sgd) & (orders > 1) & (position >= 1) & (after >= 0)
    return jnp.where(known & (jnp.floor(position) == position), _divergence(sgd, orders, after + 1), jnp.inf)


# ----------------------------------------------------------------------------------------------------
# Randomly stopped projected noisy SGD: the number of iterations is drawn uniformly from 1 to T, the last is released.
#
# A run that stops before a record is read says nothing of it, and a run that reads it is hidden by the noise of the
# iterations from there on. For every record the worst position is the first: no run then stops before it is read, and
# the runs that read it are hidden by 1 to T noises. If stopping after k iterations costs delta_k, then by joint
# convexity of E_eps all of it costs at most (delta_1 + ... + delta_T) / T, whether or not the stopping time is seen.
#
# Asoodeh et al.'s corollary takes delta_k = theta(r0) c^(k-1), r0 = 2 L / noise, c = theta((diameter + 2 rate L) /
# (rate noise)), and sums the geometric series to infinity. Rényi divergence is not jointly convex, but its moment
# e^((a-1) D) is; Feldman et al. pass through a weak convexity that needs noise^2 >= 2 a (a - 1) L^2, and state
#
#     zeta(a) = 4 a L^2 log T / (T noise^2).
#
# The moment itself needs no such condition: zeta(a) = log of the mean of e^((a-1) z_k), over a - 1, z_k = 2 a L^2 /
# (noise^2 k). Nor does it round the harmonic sum to a logarithm. *The display as printed is too small for T = 1*, where
# it is 0 although one noisy gradient is released. For T >= 3 it is an upper bound: with x = (a-1) a 2 L^2 / noise^2 <=
# 1 the moment gives log(mean e^(x/k)) <= 2 x log T / T, since the left side is convex in x, is 0 at 0, and holds at x =
# 1: for T >= 37 by log(1 + y) <= y, e^(1/k) - 1 <= (e - 1) / k and (e - 1) H_T <= 2 log T; for 3 to 36 by computing it
# (the tests do). The reference's corollary for epsilon has (a - 1) a zeta where its zeta holds the factor a already; (a
# - 1) zeta is meant.
# ----------------------------------------------------------------------------------------------------


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
    validation.check_type(sgd, "sgd", ProjectedNoisySGD)
    validation.check_numbers(epsilon=epsilon)
    check_delta_call(sgd, epsilon, method, METHODS)
    return _stopped_delta(sgd, as_array(epsilon), method, log)


def stopped_epsilon(sgd: ProjectedNoisySGD, delta: ArrayLike, *, method: str = "best") -> Float[Array, ...]:
    """Returns an upper bound on epsilon of randomly stopped projected noisy SGD at ``delta``.

    Arguments, guarantee, errors and source are those of :func:`stopped_delta`; ``delta`` (...), in (0, 1), stands in
    for epsilon. It is the safe end of a bisection: :func:`stopped_delta` was at most ``delta`` there. ``inf`` for no
    noise and for traced values out of range.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100)
    >>> float(stopped_delta(sgd, stopped_epsilon(sgd, 1e-5, method="contraction"), method="contraction")) <= 1e-5
    True
    """
    validation.check_type(sgd, "sgd", ProjectedNoisySGD)
    validation.check_numbers(delta=delta)
    check_delta_call(sgd, 0.0, method, METHODS)
    validation.check_delta(as_array(delta))
    return _stopped_epsilon(sgd, as_array(delta), method)


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

    Source: Feldman et al. (2018), theorem on random stopping; proofs in the comment above :func:`stopped_delta`.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100, smoothness=1.0)
    >>> stopped_rdp(sgd, [2.0, 4.0], method="feldman").round(6).tolist()
    [0.014737, 0.029473]
    >>> stopped_rdp(sgd, [2.0, 4.0]).round(6).tolist()
    [0.008482, 0.019288]
    """
    validation.check_type(sgd, "sgd", ProjectedNoisySGD)
    validation.check_one_of(method, "method", ("renyi", "feldman"))
    sgd.validate()
    sgd.check_contractive(method)
    orders = checked_orders(orders)
    if method == "feldman":
        _check_feldman(sgd)
        _check_orders(sgd, orders)
    return _stopped_rdp(sgd, orders, method)


def highest_order(lipschitz: ArrayLike, noise: ArrayLike) -> Float[Array, ...]:
    """Returns the largest order a with noise^2 >= 2 a (a - 1) L^2, rounded down: where Feldman et al.'s bound ends.

    It is (1 + sqrt(1 + 2 noise^2 / L^2)) / 2. Arguments: lipschitz (...), noise (...), above 0. Returns float64 (...).

    Formal guarantee: a lower bound on that order, rounding included, so that ``method="feldman"`` of
    :func:`stopped_rdp` holds at it and below; 1, an order at which nothing is claimed, where a traced argument is not
    above 0.

    Raises ValueError where a concrete argument is not above 0.

    Source: Feldman, Mironov, Talwar and Thakurta (2018), "Privacy amplification by iteration".

    >>> highest_order(1.0, 5.0).round(4).tolist()
    4.0707
    """
    validation.check_numbers(lipschitz=lipschitz, noise=noise)
    validation.check_positive(as_array(lipschitz), "lipschitz")
    validation.check_positive(as_array(noise), "noise")
    return _highest_order(as_array(lipschitz), as_array(noise))


def _check_feldman(sgd: ProjectedNoisySGD) -> None:
    steps = validation.concrete_value(sgd.steps)
    if steps is not None and np.any(steps < 3):
        raise ValueError(
            f"steps = {sgd.steps}: Feldman et al.'s bound has log(steps) in place of a harmonic sum, which promises "
            "too much for one step; give at least 3, or choose method 'renyi'."
        )


def _check_orders(sgd: ProjectedNoisySGD, orders: Any) -> None:
    known = validation.concrete_value(orders)
    if known is None or isinstance(sgd.lipschitz, jax.core.Tracer) or isinstance(sgd.noise, jax.core.Tracer):
        return
    highest = np.min(highest_order(sgd.lipschitz, sgd.noise))
    if not np.all(known <= highest):
        raise ValueError(
            f"orders up to {np.max(known)} exceed {highest:.6g}: Feldman et al.'s bound needs "
            "noise^2 >= 2 order (order - 1) lipschitz^2; give lower orders or more noise, or choose method 'renyi', "
            "which needs neither."
        )


def _order_limit(lipschitz: Array, noise: Array) -> Array:
    squared = (noise / lipschitz) ** 2
    return (1 + jnp.sqrt(1 + 2 * squared)) / 2 * (1 - 16 * roundoff())


def _feldman(sgd: Any, orders: Array) -> Array:
    """Returns Feldman et al.'s divergence, rounded up, inf where it is not proved; fields of the orders' rank."""
    square = at_least_tiny((sgd.lipschitz / sgd.noise) ** 2)
    value = 4 * orders * square * jnp.log(sgd.steps) / sgd.steps * (1 + 32 * roundoff())
    limit = _order_limit(sgd.lipschitz, sgd.noise)
    # From T = 3 on the display is proved, in the comment above; below, it is not proved, or wrong.
    return jnp.where((sgd.steps >= 3) & is_contractive(sgd) & (orders <= limit), value, jnp.inf)


def _log_mean_moments(sgd: Any, orders: Array) -> Array:
    """Returns log(mean over k of e^((a-1) z_k)) / (a - 1), rounded up; fields of the orders' rank.

    With x_k = (a-1) z_k the sum carried is that of e^(x_k - x_1) (1 - e^(-x_k)): no overflow, no cancellation.
    """
    first = 2 * orders * (orders - 1) * (sgd.lipschitz / sgd.noise) ** 2 * (1 + 16 * roundoff())

    # One step adds one term to the mean's sum, in every lane that has that many iterations.
    def step(count: Array, total: Array) -> tuple[Array]:
        exponent = first / count
        term = jnp.exp(exponent - first) * -jnp.expm1(-exponent)
        return (total + jnp.where(count <= sgd.steps, term, 0.0),)

    usable = first < jnp.inf
    (total,) = iterate(step, jnp.where(is_valid(sgd), sgd.steps, 0.0), jnp.zeros_like(first))
    moment = jnp.logaddexp(0.0, first + jnp.log(total / sgd.steps))
    # The argument of log(1 + e^y) errs by this, and the value by no more than the same share of itself.
    error = roundoff() * (4 * sgd.steps + 8 * first) + arithmetic().function * (8 + jnp.abs(jnp.log(total / sgd.steps)))
    above = moment * (1 + 8 * arithmetic().function) + jnp.minimum(moment, 1.0) * error
    return jnp.where(usable, above / (orders - 1), jnp.inf)


def _mean_log_delta(sgd: Any, epsilon: Array, method: str) -> Array:
    """Returns log of the mean of the T deltas, each from the one before."""

    # ``before`` is log delta when stopped one iteration earlier, ``total`` the sum of the deltas so far over the first.
    def step(count: Array, before: Array, largest: Array, total: Array) -> tuple[Array, Array, Array]:
        current = next_log_delta(sgd, epsilon, before, count, method)
        # The first is the largest; taken relative to it the others neither overflow nor vanish.
        largest = jnp.where(count == 1, jnp.where(current == -jnp.inf, 0.0, current), largest)
        return current, largest, total + jnp.where(count <= sgd.steps, jnp.exp(current - largest), 0.0)

    zero = jnp.zeros_like(epsilon)
    _, largest, total = iterate(step, jnp.where(is_valid(sgd), sgd.steps, 0.0), zero, zero, zero)
    return largest + jnp.log(total / sgd.steps) + roundoff() * (4 * sgd.steps + 4 * jnp.abs(largest) + 64)


def _is_stopped(sgd: Any, epsilon: Array, method: str, *_: Any) -> Array:
    known = is_valid(sgd) & (epsilon >= 0)
    return known & is_contractive(sgd) if method in NEEDS_CONVEXITY else known


def _log_delta(sgd: Any, epsilon: Array, method: str) -> Array:
    known = _is_stopped(sgd, epsilon, method)
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
        result = log_delta_of_rdp(_feldman, sgd, epsilon, _order_limit(sgd.lipschitz, sgd.noise))
    elif method == "renyi":
        result = log_delta_of_rdp(_log_mean_moments, sgd, epsilon)
    else:
        result = _mean_log_delta(sgd, epsilon, method)
    return jnp.where(known, jnp.where(epsilon == jnp.inf, -jnp.inf, result), 0.0)


@elementwise(static=2, derivatives=Differences(inside=_is_stopped))
def _stopped_delta(sgd: Any, epsilon: Array, method: str, log: bool) -> Array:
    return from_log(_log_delta(sgd, epsilon, method), log=log)


@elementwise(static=1)
def _stopped_epsilon(sgd: Any, delta: Array, method: str) -> Array:
    # Rounded down by what the way back from the logarithm may round up as well.
    target = jnp.log(delta) - arithmetic().function * (4 + 2 * jnp.abs(jnp.log(delta)))
    valid = is_valid(sgd) & (delta > 0) & (delta < 1)
    # At ``highest`` theta(r0) alone has fallen to delta; Feldman's highest order gives at most (1 + log 1/delta) /
    # (order - 1).
    ratio = first_ratio(sgd)
    highest = ratio * (ratio + jnp.sqrt(-2 * target)) + 1e-9
    if method == "feldman":
        highest = (2 - target) / (_order_limit(sgd.lipschitz, sgd.noise) - 1)

    def is_enough(epsilon: Array) -> Array:
        return _log_delta(sgd, epsilon, method) <= target

    # 52 halvings leave 2^-52 of the interval. Any number is sound.
    result = bisect_traced(is_enough, highest, jnp.zeros_like(highest), steps=52, otherwise=math.inf)
    return jnp.where(valid, result, jnp.inf)


@elementwise(static=1)
def _stopped_rdp(sgd: Any, orders: Array, method: str) -> Array:
    value = _feldman(sgd, orders) if method == "feldman" else _log_mean_moments(sgd, orders)
    known = is_valid(sgd) & is_contractive(sgd) & (orders > 1) & (value >= 0)
    return jnp.where(known, value, jnp.inf)


@elementwise
def _highest_order(lipschitz: Array, noise: Array) -> Array:
    # Order 1, at which nothing is claimed, where a number is out of range: squares would hide a sign.
    return jnp.where((lipschitz > 0) & (noise > 0), _order_limit(lipschitz, noise), 1.0)
