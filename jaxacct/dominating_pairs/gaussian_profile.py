"""The profile of two normal laws a distance mu apart: delta from epsilon and mu, and both ways back.

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

*Rounding*, with F what elementary functions may be off by
(:attr:`.Arithmetic.function`). A term of a rule is within 2 F + 10 u on the
weighted average, for that of the exponents' sizes is at most 3/2; the sum of 32 terms of one sign adds 31 u, the rule
itself 15 u, its nodes and weights as NumPy has them 24 u, products the rest of 100 u. In a difference, R(t) - R(t + mu)
or 1 - phi(t) (R(-t) + R(t + mu)), that grows with its condition; of the former at most fivefold, for it is taken where
mu (t + sqrt(t^2 + 2 REACH)) >= REACH, and there R(t + mu) <= 2/3 R(t).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.precision import TINY, log_complement
from jaxacct.programs import compiled

REACH = 38.0
"""Nats by which the integrand has fallen where the integrals end."""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(32)
NODES, WEIGHTS = ((_POINTS + 1) / 2) ** 2, _WEIGHTS * (_POINTS + 1) / 2
"""Nodes and weights on [0, 1], for a variable whose root is integrated over."""

DIRECT = -0.5
"""Value of t below which delta is taken from its complement."""

NEWTON = 60
"""Most of Newton's steps. They run monotonically into the root; 25 is the most that random settings took."""

FARTHEST = 1e9
"""Standard deviations beyond which delta is only bounded."""

FEW, LARGEST = 30.0, 700.0
"""Epsilons from which e^eps - 1 is e^eps, and up to which that is a number."""

LOG_NORMAL = 0.5 * float(np.log(2 * np.pi))


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
    relative = roundoff() * (100 + 4 * (jnp.abs(t) + 2) * terms + 8 * t**2)
    allowance = relative * jnp.where(direct, below / (1 - below), condition)
    allowance = allowance + arithmetic().function * (1 + 2 * jnp.abs(value))
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
    error = 2 * (here.allowance + jnp.abs(miss)) / -here.by_epsilon + 4 * roundoff() * epsilon
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
    error = 2 * (here.allowance + jnp.abs(miss)) / here.by_log_mu + 4 * arithmetic().function
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
    tail = jnp.minimum(probability, 1 - probability)  # right to u, which is among the 128 below
    t = jnp.maximum(-ndtri(tail), 0.0)
    rate = _mills(t)
    wanted = jnp.log(tail)
    miss = -0.5 * t**2 - LOG_NORMAL + jnp.log(rate) - wanted
    allowance = roundoff() * (128 + 4 * t**2) + 2 * arithmetic().function * (jnp.abs(jnp.log(rate)) - wanted)
    return jnp.where(probability < 0.5, -t, t), 2 * (jnp.abs(miss) + allowance) * rate


def delta_above(mu: Array, epsilon: Array) -> Array:
    """Returns delta of scalars, rounded up; 1 where they are out of range. Inside the scope."""
    return delta_bounds(mu, epsilon)[1]


def delta_bounds(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns delta of scalars, rounded down and up; 0 and 1 where they are out of range. Inside the scope."""
    ordinary = (mu > 0) & (mu < jnp.inf) & (jnp.abs(epsilon) < jnp.inf)
    # Beyond, delta < e^(-t^2/2), and squares may overflow.
    far = ordinary & (jnp.abs(epsilon) / mu - mu / 2 > FARTHEST)
    near = ordinary & ~far
    here = point(jnp.where(near, mu, 1.0), jnp.where(near, jnp.abs(epsilon), 1.0))
    ends = here.log_delta + here.allowance * np.array([-1.0, 1.0])
    gained = jnp.where(far, np.array([0.0, TINY]), jnp.exp(ends))
    # The trade-off function is its own inverse: delta(-e) = 1 - e^-e + e^-e delta(e).
    found = jnp.where(epsilon < 0, -jnp.expm1(epsilon) + jnp.exp(epsilon) * gained, gained)
    rounded = 1 + 4 * arithmetic().function * np.array([-1.0, 1.0])
    none = jnp.where(epsilon == jnp.inf, 0.0, jnp.maximum(-jnp.expm1(epsilon), 0.0) * rounded)
    known = (mu >= 0) & (mu < jnp.inf) & ~jnp.isnan(epsilon)
    values = jnp.where(ordinary, found * rounded, jnp.where(known, none, np.array([0.0, 1.0])))
    least = jnp.where(ordinary, TINY, 0.0)
    return jnp.minimum(values[0], 1.0), jnp.clip(values[1], least, 1.0)


@compiled
def log_delta_between(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns bounds on log delta of scalars: mu in (0, inf), itself right to two units, and epsilon >= 0."""
    t = epsilon / mu - mu / 2
    far = t > FARTHEST
    here = point(mu, jnp.where(far, 0.0, epsilon))
    allowance = here.allowance + 2 * roundoff() * here.by_log_mu
    low, high = here.log_delta - allowance, jnp.minimum(here.log_delta + allowance, 0.0)
    # Beyond, delta < e^(-t^2/2).
    return jnp.where(far, -jnp.inf, low), jnp.where(far, -0.1 * FARTHEST**2, jnp.where(jnp.isnan(high), 0.0, high))


def sampled_delta(mu: Array, sampling_rate: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns bounds on delta of (1-q) N(0, 1) + q N(mu, 1) against N(0, 1), scalars, epsilon >= 0.

    P - e^eps Q is q times N(mu, 1) - e^eps' N(0, 1) with e^eps' = 1 + (e^eps - 1)/q: q times the profile at eps'.
    """
    q = sampling_rate
    small = jnp.log1p(jnp.expm1(jnp.minimum(epsilon, FEW)) / q)
    large = epsilon - jnp.log(q) + jnp.log1p(-(1 - q) * jnp.exp(-jnp.maximum(epsilon, FEW)))
    inner = jnp.where(epsilon < FEW, small, large)
    lower, upper = (_scaled(q, log, side) for log, side in _both_ways(mu, inner))
    return lower, upper


def reversed_delta(mu: Array, sampling_rate: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns bounds on delta of N(0, 1) against (1-q) N(0, 1) + q N(mu, 1), scalars, epsilon >= 0.

    P - e^eps Q is c times N(0, 1) - e^eps' N(mu, 1), with c = 1 - (1-q) e^eps = q - (1-q) (e^eps - 1) and e^eps' =
    1 + (e^eps - 1)/c: c times the profile at eps', and 0 where c is not above 0. Like P - e^eps Q it rises with c, of
    which a bound therefore makes a bound.
    """
    q, grown = sampling_rate, jnp.expm1(jnp.minimum(epsilon, LARGEST))
    c, error = q - (1 - q) * grown, 8 * roundoff() * (q + (1 - q) * grown)
    bounds = []
    for i, side in enumerate((-1.0, 1.0)):
        share = jnp.minimum(c + side * error, 1.0)
        some = jnp.where(share > 0, share, 1.0)
        log, _ = _both_ways(mu, jnp.log1p(grown / some))[i]
        bounds.append(jnp.where((share > 0) & (epsilon < LARGEST), _scaled(some, log, side), 0.0))
    return bounds[0], jnp.where(
        (q == 1) & (epsilon >= LARGEST), _scaled(q, _both_ways(mu, epsilon)[1][0], 1.0), bounds[1]
    )


def _both_ways(mu: Array, inner: Array) -> tuple[tuple[Array, float], tuple[Array, float]]:
    """Returns log delta from below and from above, at an epsilon that is right to 16 units of roundoff."""
    off = 16 * roundoff()
    low, _ = log_delta_between(mu, inner * (1 + off))
    _, high = log_delta_between(mu, inner * (1 - off))
    return (low, -1.0), (high, 1.0)


def _scaled(share: Array, log_delta: Array, side: float) -> Array:
    """Returns share e^log_delta, rounded to the side."""
    return jnp.clip(share * jnp.exp(log_delta) * (1 + side * 8 * roundoff()), 0.0, 1.0)
