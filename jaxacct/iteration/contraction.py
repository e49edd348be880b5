"""Hidden noisy iterations: the contraction of hockey-stick divergences, and amplification by iteration.

An iteration whose result stays hidden can only blur what earlier ones told. The first part bounds how much Gaussian
noise contracts a hockey-stick divergence (:func:`theta`, :func:`contracted_delta`), for any update with bounded images.
The second bounds what iterations with contractive updates cost in all (:func:`amplified_mu`, :func:`amplified_rdp`).

E_eps(P || Q) = sup over events A of P(A) - e^eps Q(A) is the delta of a pair at eps. Two Gaussians of variance s^2
whose means are D apart have E_eps = theta_eps(D / s),

    theta_eps(r) = Phi(-a) - e^eps Phi(-b),   a = eps/r - r/2,   b = a + r.

*Contraction* (Asoodeh et al., the generalisation of Dobrushin's theorem). For a kernel K, E_eps(mu K || nu K) <=
E_eps(mu || nu) eta with eta the largest E_eps(K(x) || K(x')) over two inputs. Write mu - e^eps nu = d mu' - c nu' by
its positive and negative parts, mu' and nu' probabilities, d = E_eps(mu || nu) and c = d + e^eps - 1. Then (mu - e^eps
nu) K = d (mu' K - (c/d) nu' K), whose positive part is, by joint convexity, at most d sup E_eps'(K(x) || K(x')) with
e^eps' = c/d = 1 + (e^eps - 1)/d >= e^eps. Dropping the prime gives the theorem; keeping it gives the sharper rule of
Balle et al. (2019), Theorem 1 (2): the smaller delta is already, the more the next step contracts. The map is monotone
in d, since its derivative is the excess (mu' K - nu' K)(A) >= 0 on the optimal event, so bounds may be fed into it. If
x is mapped into a set of diameter D before Gaussian noise is added, eta is at most theta_eps(D / s), and equal to it
where two inputs attain D.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.renyi import Orders, checked_orders
from jaxacct.mechanisms.normal import log_delta_at
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, as_float64, in_float64, outside
from jaxacct.numerics.programs import outward

LEAST_LOG = -1e300
"""Floor that stands in for a logarithm that float64 cannot hold: it is the larger number, so a bound stays one."""

METHODS = ("recursive", "linear")
"""Names of the rules by which further iterations contract a delta."""


def kernel(function: Callable[..., Any] | None = None, *, safe: Callable[[Any], Any] = outward) -> Callable[..., Any]:
    """Returns ``function(*trees, **static)`` compiled, run in float64, on leaves of one shape.

    Numbers come in as float64 arrays, broadcast against one another; concrete results leave as NumPy values. Keyword
    arguments are static: one compilation serves all values of one shape. ``safe`` is as of
    :func:`.precision.in_float64`.
    """
    if function is None:
        return functools.partial(kernel, safe=safe)
    parameters = inspect.signature(function).parameters.values()
    static = [parameter.name for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY]
    compiled = jax.jit(function, static_argnames=static)

    @functools.wraps(function)
    @in_float64(safe=safe)
    def run(*trees: Any, **options: Any) -> Any:
        leaves, structure = jax.tree.flatten(trees)
        shape = np.broadcast_shapes(*(np.shape(leaf) for leaf in leaves))
        same = [_float64_of_shape(leaf, shape) for leaf in leaves]
        return outside(compiled(*jax.tree.unflatten(structure, same), **options))

    return run


def _float64_of_shape(leaf: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return jnp.broadcast_to(as_float64(leaf), shape)
    return np.broadcast_to(np.asarray(leaf, np.float64), shape)


def theta(epsilon: ArrayLike, ratio: ArrayLike | Sequence[float], *, log: bool = False) -> Float[Array, ...]:
    """Returns theta_epsilon(ratio), the hockey-stick divergence of N(ratio, 1) from N(0, 1), rounded up.

    Args:
        epsilon (...): at least 0. May be traced.
        ratio (...): distance of the means over the noise's standard deviation, at least 0; shapes broadcast.
        log: whether to return the natural logarithm, which holds values that float64 cannot.

    Returns float64 (...), in [0, 1].

    Formal guarantee: an upper bound on the divergence, above it by a relative 1e-13 (1 + a^2), a = eps/ratio - ratio/2,
    at most. It is the contraction coefficient under E_epsilon of every kernel that maps its input into a set of
    diameter D and adds N(0, s^2 I), ratio = D / s, in any dimension; and the delta of the Gaussian mechanism with that
    ratio. Traced values out of range give 1.

    Source: Asoodeh, Diaz and Calmon (2020), "Privacy analysis of online learning algorithms via contraction
    coefficients", arXiv:2012.11035; the formula also Balle and Wang (2018), Theorem 8.

    >>> theta(0.0, 2.0).round(6).tolist()  # the total variation distance of two normals, two deviations apart
    0.682689
    >>> theta(50.0, [0.1, 0.2], log=True).round(2).tolist()
    [-124990.65, -31238.58]
    """
    validation.check_epsilon(as_array(epsilon))
    check_not_negative(as_array(ratio), "ratio", "the distance of the means over the noise's standard deviation")
    return _theta(as_array(epsilon), as_array(ratio), log=log)


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
    "Privacy amplification by mixing and diffusion mechanisms", Theorem 1 (2), iterated. Proof in the module's
    docstring.

    >>> contracted_delta(1.0, delta=0.01, ratio=2.0, steps=3, method="linear").round(8).tolist()
    0.00132543
    >>> bool(contracted_delta(1.0, delta=0.01, ratio=2.0, steps=3) < 1e-22)
    True
    """
    validation.check_one_of(method, "method", METHODS)
    validation.check_epsilon(as_array(epsilon))
    validation.check_probability(as_array(delta), "delta")
    check_not_negative(as_array(ratio), "ratio", "the diameter of the images over the noise's standard deviation")
    validation.check_steps(as_array(steps))
    return _contracted(as_array(epsilon), as_array(delta), as_array(ratio), as_array(steps), method=method, log=log)


def check_not_negative(value: Any, name: str, meaning: str) -> None:
    """Raises where a concrete value is negative or NaN; infinity passes, and promises nothing."""
    seen = validation.concrete_value(value)
    if seen is not None and not np.all(seen >= 0):
        raise ValueError(f"{name} = {value} is out of range: give {meaning}, at least 0.")


def as_array(value: Any) -> Any:
    """Returns a list or tuple of numbers as an array; everything else as it is."""
    return np.asarray(value, np.float64) if isinstance(value, (list, tuple)) else value


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


def extended(log_delta: Array, log_factor: Array) -> Array:
    """Returns the log of a product of two numbers in [0, 1], rounded up; never above the first, nor 0 for positive."""
    product = log_delta + log_factor
    rounded = jnp.minimum(jnp.maximum(product * (1 - 2 * roundoff()), LEAST_LOG), log_delta)
    return jnp.where((log_delta == -jnp.inf) | (log_factor == -jnp.inf), -jnp.inf, rounded)


@kernel
def _theta(epsilon: Array, ratio: Array, *, log: bool) -> Array:
    return from_log(log_theta(epsilon, ratio), log=log)


@kernel
def _contracted(epsilon: Array, delta: Array, ratio: Array, steps: Array, *, method: str, log: bool) -> Array:
    valid = (delta >= 0) & (delta <= 1) & (epsilon >= 0) & (steps >= 0) & (jnp.floor(steps) == steps) & (ratio >= 0)
    start = jnp.log(jnp.where(valid, delta, 1.0))
    start = start + 2 * arithmetic().function * jnp.where(start == -jnp.inf, 0.0, jnp.abs(start))
    if method == "linear":
        factor = log_theta(epsilon, ratio)
        total = jnp.where(steps == 0, 0.0, steps * factor * jnp.where(factor == -jnp.inf, 1.0, 1 - 4 * roundoff()))
        result = start + total
    else:

        def contract(current: Array) -> Array:
            return extended(current, log_theta(raised_epsilon(epsilon, current), ratio))

        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            done, current = state
            return done + 1, jnp.where(done < steps, contract(current), current)

        # One step is one hidden iteration of every lane, at the raised epsilon that what is left of its delta allows.
        # Lanes that are done keep their delta; the loop ends with the longest.
        most = jnp.max(jnp.where(valid & (steps < jnp.inf), steps, 0.0))
        _, result = jax.lax.while_loop(lambda state: state[0] < most, body, (jnp.zeros(()), start))
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
    shifts, noise = as_array(shifts), as_array(noise)
    check_not_negative(shifts, "shifts", "bounds on how far the two updates can be apart")
    validation.check_positive(noise, "noise")
    if np.ndim(shifts) != 1 or np.ndim(noise) > 1 or np.shape(noise) not in ((), np.shape(shifts)):
        raise ValueError(
            f"shifts of shape {np.shape(shifts)} and noise of shape {np.shape(noise)} do not match: give one shift for "
            "each iteration, and one standard deviation for each or one for all."
        )
    return _amplified_mu(shifts, noise)


@in_float64
def amplified_rdp(
    orders: Orders, shifts: Float[ArrayLike, " steps"] | Sequence[float], noise: ArrayLike
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of a contractive noisy iteration's last iterate at each order, rounded up.

    Arguments, guarantee, errors and source are those of :func:`amplified_mu`; ``orders`` (orders,) are above 1, and a
    traced one that is not gives ``inf``.

    >>> amplified_rdp([2.0, 8.0], shifts=[1.0, 0.0], noise=1.0).round(6).tolist()
    [0.5, 2.0]
    """
    orders = checked_orders(orders)
    mu = amplified_mu(shifts, noise)
    return _rdp_of_mu(orders, mu)


@kernel
def _amplified_mu(shifts: Array, noise: Array) -> Array:
    count = shifts.shape[0]
    ordered = jnp.arange(count)[:, None] <= jnp.arange(count)[None, :]

    def sums_from_each_to_each(terms: Array) -> Array:
        # Summed from each start anew: in differences of partial sums a small term behind large ones would vanish.
        return jnp.cumsum(jnp.where(ordered, terms[None, :], 0.0), axis=1)

    variance = noise**2
    # The isotonic regression by its closed form: the largest over starts of the least average over ends.
    averages = jnp.where(ordered, sums_from_each_to_each(shifts) / sums_from_each_to_each(variance), jnp.inf)
    least_after = jax.lax.cummin(averages, axis=1, reverse=True)
    slopes = jnp.max(jnp.where(ordered, least_after, 0.0), axis=0)
    # A sum of T positive terms errs by a relative T u; three of them count, and a few single operations.
    mu = jnp.sqrt(jnp.sum(slopes**2 * variance)) * (1 + roundoff() * (4 * count + 64))
    valid = jnp.all((shifts >= 0) & (noise > 0) & (noise < jnp.inf))
    return jnp.where(valid & (mu >= 0), mu, jnp.inf)


@kernel
def _rdp_of_mu(orders: Array, mu: Array) -> Array:
    return jnp.where(orders > 1, orders * mu**2 / 2 * (1 + 8 * roundoff()), jnp.inf)
