"""The Gaussian trade-off function and (epsilon, delta): delta from mu and epsilon, and both ways back.

A mu-GDP mechanism is as private as telling N(0, 1) from N(mu, 1), whose privacy loss at a point x drawn from the latter
is mu x - mu^2/2. With t = eps/mu - mu/2 the loss exceeds eps for noise above t, by mu for each unit, so that

    delta = integral over s > 0 of phi(t + s) (1 - e^(-mu s)) = phi(t) J,   J = int e^(-t s - s^2/2) (1 - e^(-mu s)) ds.

The integrand has one sign, so nothing cancels however small mu or delta is; the usual form, Phi(-t) - e^eps
Phi(-t - mu), is the difference of two numbers that may agree in all their digits. Where mu is large 1 is far above
e^(-mu s), and J = R(t) - R(t + mu) with R the Mills ratio, J's limit for mu = inf. For t < -1/2, where delta is above
0.38, it is taken from its complement, 1 - phi(t) (R(-t) + R(t + mu)).

The integrals end where t s + s^2/2 = REACH, which leaves out e^-38 = 3e-17 of them, and are taken by Gauss and
Legendre's rule in the root w of s over its end: of 2 w e^(-a w^2 - b w^4), a + b = REACH, times (1 - e^(-c w^2))/c in
J. That is entire, so that n nodes err by at most (32/15) M r^(-2n)/(1 - r^-2), M its largest size on the Bernstein
ellipse of r for [0, 1], for every r > 1 (Trefethen 2013, "Approximation theory and approximation practice", Theorem
19.3): for n = 32 at most 1.7e-15 of the integral, t >= -1/2 and c <= REACH/2 (tests/convert/test_normal_quadrature.py).

*Rounding*, with F what elementary functions may be off by (:mod:`.logs`). A term of a rule is within 2 F + 10 u on the
weighted average, for that of the exponents' sizes is at most 3/2; the sum of 32 terms of one sign adds 31 u, the rule
itself 15 u, its nodes and weights as NumPy has them 24 u, products the rest of 100 u. In a difference, R(t) - R(t + mu)
or 1 - phi(t) (R(-t) + R(t + mu)), that grows with its condition; of the former at most fivefold, for it is taken where
mu (t + sqrt(t^2 + 2 REACH)) >= REACH, and there R(t + mu) <= 2/3 R(t).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.logs import FUNCTION
from jaxacct.precision import TINY, UNIT_ROUNDOFF, as_float64, in_float64, log_complement, outside

REACH = 38.0
"""Nats by which the integrand has fallen where the integrals end."""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(32)
NODES, WEIGHTS = ((_POINTS + 1) / 2) ** 2, _WEIGHTS * (_POINTS + 1) / 2
"""Nodes and weights on [0, 1], for a variable whose root is integrated over."""

DIRECT = -0.5
"""Value of t below which delta is taken from its complement."""

NEWTON = 60
"""Most of Newton's steps. They run monotonically into the root; 25 is the most that random settings took."""

LOG_NORMAL = 0.5 * float(np.log(2 * np.pi))


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> Float[Array, ...]:
    """Returns the delta of a mu-GDP mechanism at ``epsilon``, rounded up; float64, of the arguments' common shape.

    Args:
        mu (...): at least 0; ``inf`` gives 1.
        epsilon (...): any real number, negative ones too; ``inf`` gives 0.

    Formal guarantee: an upper bound on the exact value, above it by less than ``2e-13 (1 + eps/mu + mu)^2`` of it for
    mu >= 1e-9, or by the smallest normal float64. Traced arguments out of range give 1. Derivatives are those of the
    exact value.

    Raises ValueError where a concrete mu is negative or NaN.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Corollary 2.13; eq. 3.2 of Bu, Dong, Long and Su
    (2020), "Deep learning with Gaussian differential privacy".

    >>> print(f"{gaussian_delta(1.0, 1.0):.8f} {gaussian_delta(0.1, 3.0):.4e}")
    0.12693674 7.3048e-200
    """
    check_mu(mu)
    return _exact("delta", mu, epsilon)


def gaussian_epsilon(mu: ArrayLike, delta: ArrayLike) -> Float[Array, ...]:
    """Returns the epsilon of a mu-GDP mechanism at ``delta``, rounded up; float64, of the arguments' common shape.

    Args:
        mu (...): at least 0; ``inf`` gives ``inf``.
        delta (...): in (0, 1), from 1e-300 up.

    Formal guarantee: an upper bound on the exact value, above it by less than 1e-11 of it for mu in [1e-3, 1e3]; 0
    where epsilon = 0 already has that delta. Traced arguments out of range give ``inf``. Derivatives are exact.

    Raises ValueError where a concrete argument is out of range.

    Source: as for :func:`gaussian_delta`.

    >>> print(f"{gaussian_epsilon(1.0, 1e-5):.8f}")
    4.37717810
    """
    check_mu(mu)
    validation.check_delta(delta)
    return _exact("epsilon", mu, delta)


def gaussian_mu(epsilon: ArrayLike, delta: ArrayLike) -> Float[Array, ...]:
    """Returns the largest mu whose mu-GDP mechanisms are (epsilon, delta)-DP, rounded down; float64.

    Args:
        epsilon (...): at least 0, finite.
        delta (...): in (0, 1), from 1e-300 up; shapes broadcast.

    Formal guarantee: a mu-GDP mechanism with the mu returned is (epsilon, delta)-DP; it is less than 1e-11 of itself
    below the largest such mu where epsilon is at most 1e3. (An (epsilon, delta)-DP mechanism is *not* mu-GDP: a single
    point of the curve says nothing of the others.) Traced arguments out of range give 0. Derivatives are exact.

    Raises ValueError where a concrete argument is out of range.

    Source: as for :func:`gaussian_delta`.

    >>> print(f"{gaussian_mu(4.0, 1e-5):.8f}")
    0.92493090
    """
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    return _exact("mu", epsilon, delta)


def check_mu(mu: ArrayLike, name: str = "mu") -> None:
    """Raises where a concrete mu is negative or NaN."""
    seen = validation.concrete_value(mu)
    if seen is not None and not np.all(seen >= 0):
        raise ValueError(f"{name} = {mu} is not a GDP parameter: give a number of at least 0 (a distance of means).")


class Point(NamedTuple):
    """A point of the curve delta(epsilon; mu): scalars."""

    log_delta: Array
    allowance: Array
    """Bound on the absolute error of ``log_delta``."""
    by_epsilon: Array
    """Derivative of log delta in epsilon, below 0."""
    by_log_mu: Array
    """Derivative of log delta in log mu, above 0."""


def point(mu: Array, epsilon: Array) -> Point:
    """Returns log delta and its slopes for scalars mu in (0, inf) and epsilon >= 0. Inside the float64 scope."""
    # t errs by 2 u of its terms, by which its two functions below move at most |t| + 2 times as far, relative to them.
    terms = epsilon / mu + mu / 2
    t = epsilon / mu - mu / 2
    rate = _mills(terms)
    excess = _excess(jnp.maximum(t, DIRECT), mu)
    log_density = -0.5 * t**2 - LOG_NORMAL
    below = jnp.minimum(jnp.exp(log_density) * (_mills(jnp.maximum(-t, -DIRECT)) + rate), 0.99)
    direct = t < DIRECT
    value = jnp.where(direct, log_complement(below), log_density + jnp.log(excess))
    condition = jnp.minimum(1 + 2 * rate / excess, 5.0)
    relative = UNIT_ROUNDOFF * (100 + 4 * (jnp.abs(t) + 2) * terms + 8 * t**2)
    allowance = relative * jnp.where(direct, below / (1 - below), condition) + FUNCTION * (1 + 2 * jnp.abs(value))
    density = jnp.where(direct, jnp.exp(log_density - value), 1 / excess)
    return Point(value, allowance, -density * rate, density * mu)


def _length(t: Array) -> Array:
    """Returns s with t s + s^2/2 = REACH."""
    return 2 * REACH / (t + jnp.sqrt(t**2 + 2 * REACH))


def _mills(t: Array) -> Array:
    """Returns R(t) = Phi(-t)/phi(t) for t >= -1/2; 0 where t^2 overflows."""
    length = _length(t)
    s = length * NODES
    return length * jnp.sum(WEIGHTS * jnp.exp(-t * s - 0.5 * s**2))


def _excess(t: Array, mu: Array) -> Array:
    """Returns the module's J for t >= -1/2."""
    length = _length(t)
    s = length * NODES
    # The nodes resolve e^(-mu s) if it does not fall much faster than the rest.
    resolved = mu * length < REACH / 2
    # Over mu, lest it underflow: of 1 - e^(-x) the first term is all there is where x is below 1e-17.
    rate = jnp.where(mu * s > 1e-17, -jnp.expm1(-mu * s) / mu, s)
    falls = jnp.where(resolved, rate, 1 / mu)
    total = mu * (length * jnp.sum(WEIGHTS * jnp.exp(-t * s - 0.5 * s**2) * falls))
    return total - jnp.where(resolved, 0.0, _mills(jnp.minimum(t + mu, 1e300)))


def solve_epsilon(mu: Array, delta: Array) -> tuple[Array, Array]:
    """Returns epsilon of scalars, mu in (0, inf) and delta in (0, 1), and a bound on its error. Inside the scope.

    In epsilon log delta falls and is concave, so Newton's steps from above run monotonically into the root. Without
    its second term delta is larger: the start, where the first term alone is delta, lies above.
    """
    start = jnp.maximum(mu * (mu / 2 - ndtri(delta)), 0.0)
    target = jnp.log(delta)
    epsilon, miss, here = _newton(
        lambda e: point(mu, e), lambda e, miss, here: jnp.maximum(e - miss / here.by_epsilon, 0.0), target, start
    )
    error = 2 * (here.allowance + jnp.abs(miss)) / -here.by_epsilon + 4 * UNIT_ROUNDOFF * epsilon
    enough = (epsilon == 0) & (miss + here.allowance <= 0)
    return epsilon, jnp.where(enough, 0.0, error)


def solve_mu(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    """Returns mu of scalars, epsilon in [0, inf) and delta in (0, 1), and a bound on its error. Inside the scope.

    As :func:`solve_epsilon`, in log mu, in which log delta rises and is concave: from below. Two starts lie below: mu
    without delta's second term, and mu at epsilon = 0, which is at least sqrt(2 pi) delta.
    """
    z = -ndtri(delta)
    root = jnp.sqrt(z**2 + 2 * epsilon)
    first = jnp.where(z > 0, 2 * epsilon / (root + jnp.abs(z)), root + jnp.abs(z))
    start = jnp.log(jnp.maximum(first, jnp.sqrt(2 * jnp.pi) * delta))
    log_mu, miss, here = _newton(
        lambda w: point(jnp.exp(w), epsilon), lambda w, miss, here: w - miss / here.by_log_mu, jnp.log(delta), start
    )
    error = 2 * (here.allowance + jnp.abs(miss)) / here.by_log_mu + 4 * FUNCTION
    mu = jnp.exp(log_mu)
    return mu, mu * error


def _newton(
    at: Callable[[Array], Point], step: Callable[[Array, Array, Point], Array], target: Array, start: Array
) -> tuple[Array, Array, Point]:
    """Returns where the steps come to rest, within the allowance or where they stop moving; what is missed there."""
    nothing = jnp.zeros_like(start)
    first = (jnp.int32(0), start, start + 1.0, nothing, Point(nothing, nothing, nothing, nothing))

    def advance(state: tuple[Array, Array, Array, Array, Point]) -> tuple[Array, Array, Array, Array, Point]:
        count, x, _, _, _ = state
        here = at(x)
        miss = here.log_delta - target
        moved = jnp.where(jnp.abs(miss) <= here.allowance, x, step(x, miss, here))
        # The last step does not move: what is returned belongs to where it is.
        stays = jnp.isnan(moved) | (count >= NEWTON)
        return count + 1, jnp.where(stays, x, moved), x, miss, here

    _, x, _, miss, here = jax.lax.while_loop(
        lambda state: (state[0] <= NEWTON) & (state[1] != state[2]), advance, first
    )
    return x, miss, here


def quantile(probability: Array) -> tuple[Array, Array]:
    """Returns the normal quantile of a scalar in (0, 1), and a bound on its error. Inside the float64 scope.

    Nothing is asked of the library's quantile -t but to be near. At t the error r of log Phi(-t) = log(phi(t) R(t)) is
    known from R, and its slope there is -1/R(t), with R falling: so it moves the quantile by r R(t), to first order.
    """
    tail = jnp.minimum(probability, 1 - probability)  # exact where it is used
    t = jnp.maximum(-ndtri(tail), 0.0)
    rate = _mills(t)
    wanted = jnp.log(tail)
    miss = -0.5 * t**2 - LOG_NORMAL + jnp.log(rate) - wanted
    allowance = UNIT_ROUNDOFF * (128 + 4 * t**2) + 2 * FUNCTION * (jnp.abs(jnp.log(rate)) - wanted)
    return jnp.where(probability < 0.5, -t, t), 2 * (jnp.abs(miss) + allowance) * rate


def delta_above(mu: Array, epsilon: Array) -> Array:
    """Returns delta of scalars, rounded up; 1 where they are out of range. Inside the scope."""
    return delta_bounds(mu, epsilon)[1]


def delta_bounds(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns delta of scalars, rounded down and up; 0 and 1 where they are out of range. Inside the scope."""
    ordinary = (mu > 0) & (mu < jnp.inf) & (jnp.abs(epsilon) < jnp.inf)
    here = point(jnp.where(ordinary, mu, 1.0), jnp.where(ordinary, jnp.abs(epsilon), 1.0))
    gained = jnp.exp(here.log_delta + here.allowance * np.array([-1.0, 1.0]))
    # The trade-off function is its own inverse: delta(-e) = 1 - e^-e + e^-e delta(e).
    found = jnp.where(epsilon < 0, -jnp.expm1(epsilon) + jnp.exp(epsilon) * gained, gained)
    rounded = 1 + 4 * FUNCTION * np.array([-1.0, 1.0])
    none = jnp.where(epsilon == jnp.inf, 0.0, jnp.maximum(-jnp.expm1(epsilon), 0.0) * rounded)
    known = (mu >= 0) & (mu < jnp.inf) & ~jnp.isnan(epsilon)
    values = jnp.where(ordinary, found * rounded, jnp.where(known, none, np.array([0.0, 1.0])))
    least = jnp.where(ordinary, TINY, 0.0)
    return jnp.minimum(values[0], 1.0), jnp.clip(values[1], least, 1.0)


def _epsilon_above(mu: Array, delta: Array) -> Array:
    valid = (delta > 0) & (delta < 1)
    ordinary = valid & (mu > 0) & (mu < jnp.inf)
    epsilon, error = solve_epsilon(jnp.where(ordinary, mu, 1.0), jnp.where(ordinary, delta, 0.5))
    above = epsilon + error
    known = ordinary & (above >= 0)  # not NaN, where squares overflow
    return jnp.where(known, above, jnp.where(valid & (mu == 0), 0.0, jnp.inf))


def _mu_below(epsilon: Array, delta: Array) -> Array:
    ordinary = (delta > 0) & (delta < 1) & (epsilon >= 0) & (epsilon < jnp.inf)
    mu, error = solve_mu(jnp.where(ordinary, epsilon, 1.0), jnp.where(ordinary, delta, 0.5))
    return jnp.where(ordinary, jnp.fmax(mu - error, 0.0), 0.0)


_QUANTITIES = {"delta": delta_above, "epsilon": _epsilon_above, "mu": _mu_below}


@in_float64
def _exact(quantity: str, first: ArrayLike, second: ArrayLike) -> Array:
    # Entered before the derivative's rule, which would take NumPy's float64 for float32.
    return outside(_answer(quantity, first, second))


@functools.partial(jax.jit, static_argnums=0)
def _each(quantity: str, first: Array, second: Array) -> Array:
    return jnp.vectorize(_QUANTITIES[quantity])(first, second)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _answer(quantity: str, first: ArrayLike, second: ArrayLike) -> Array:
    return _each(quantity, as_float64(first), as_float64(second))


@_answer.defjvp
def _answer_jvp(quantity: str, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    """Differentiates delta in closed form, the other two by the implicit function."""
    value = _answer(quantity, *primals)
    with jax.enable_x64(True):
        first, second = (as_float64(primal) for primal in primals)
        found = as_float64(value)
        mu, epsilon = {"delta": (first, second), "epsilon": (first, found), "mu": (found, first)}[quantity]
        by_mu = jnp.exp(-0.5 * (epsilon / mu - mu / 2) ** 2 - LOG_NORMAL)
        by_epsilon = -jnp.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
        slopes = {
            "delta": (by_mu, by_epsilon),
            "epsilon": (-by_mu / by_epsilon, 1 / by_epsilon),
            "mu": (-by_epsilon / by_mu, 1 / by_mu),
        }[quantity]
        # An epsilon of 0 stays where it is.
        held = (found <= 0) if quantity == "epsilon" else False
        moves = (as_float64(move) for move in tangents)
        tangent = sum(slope * move for slope, move in zip(slopes, moves, strict=True))
        return value, jnp.where(held, 0.0, tangent)
