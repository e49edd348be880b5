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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.precision import TINY

REACH = 38.0
"""Nats by which the integrand has fallen where the integrals end."""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(32)
NODES, WEIGHTS = ((_POINTS + 1) / 2)[None] ** 2, (_WEIGHTS * (_POINTS + 1) / 2)[None]
"""Nodes and weights (1, 32) on [0, 1], for a variable whose root is integrated over."""

FIRST = np.array([True, False])
"""Of two integrals the one that e^(-mu s) may be a factor of."""

DIRECT = -0.5
"""Value of t below which delta is taken from its complement."""

NEWTON = 60
"""Most of Newton's steps. They run monotonically into the root; 25 is the most that random settings took."""

FARTHEST = 1e9
"""Standard deviations beyond which delta is only bounded."""

FEW, LARGEST = 30.0, 700.0
"""Epsilons from which e^eps - 1 is e^eps, and up to which that is a number."""

LEAST = 1e-20
"""Mu below which 1 - e^(-mu s) is mu s to all digits of float64, for s up to REACH."""

LOG_NORMAL = 0.5 * float(np.log(2 * np.pi))


class Point(NamedTuple):
    """A point of the curve delta(epsilon; mu), elementwise."""

    log_delta: Array
    allowance: Array
    """Bound on the absolute error of ``log_delta``."""
    by_epsilon: Array
    """Derivative of log delta in epsilon, below 0."""
    by_log_mu: Array
    """Derivative of log delta in log mu, above 0."""


def point(mu: Array, epsilon: Array) -> Point:
    """Returns log delta and its slopes for mu in (0, inf) and epsilon >= 0, of one shape. Inside the float64 scope."""
    # t errs by 2 u of its terms, by which its two functions below move at most |t| + 2 times as far, relative to them.
    ratio, half = epsilon / mu, mu / 2
    t, terms = ratio - half, ratio + half
    direct = t >= DIRECT
    excess, rate, sign, scale = integrals(jnp.where(direct, t, -t), terms, mu, direct)
    # Of a difference the size is the sum: by so much its terms' errors may be larger than itself.
    inner, size = excess + sign * rate, excess + jnp.abs(sign) * rate
    log_density = -0.5 * t**2 - LOG_NORMAL
    front = jnp.where(direct, 1.0, jnp.exp(log_density))
    whole = jnp.where(direct, inner, 1 - front * inner)
    share = front / whole
    value = jnp.log(whole) + jnp.where(direct, log_density, 0.0) + jnp.log(scale)
    relative = roundoff() * (100 + 4 * (jnp.abs(t) + 2) * terms + 8 * t**2)
    allowance = relative * (share * size) + arithmetic().function * (1 + 2 * jnp.abs(value))
    return Point(value, allowance, -share * rate / scale, share * (mu / scale))


def integrals(t: Array, terms: Array, mu: Array, direct: Array) -> tuple[Array, Array, Array, Array]:
    """Returns two integrals, a sign, and the scale that the first is to be multiplied by.

    The second integral is R(``terms``), the Mills ratio, and the first one plus the sign times the second is J(t; mu)
    where delta is ``direct``, R(t) + R(terms) elsewhere. 0 where t^2 overflows. The scale is mu where the first one
    is J by itself, for small mu: over mu none of its terms underflows. Elsewhere it is 1.
    """
    first, nodes, weights = (np.reshape(row, (1,) * np.ndim(mu) + np.shape(row)) for row in (FIRST, NODES, WEIGHTS))
    places, across = jnp.stack([t, terms], axis=-1), jnp.expand_dims(mu, -1)
    length = _length(places)
    # The nodes resolve e^(-mu s) if it does not fall much faster than the rest.
    resolved = first & direct[..., None] & (across * length < REACH / 2)
    s = length[..., None] * nodes
    # Over mu: of 1 - e^(-x) the first term is all there is where x is below 1e-17.
    kept = jnp.maximum(across, LEAST)[..., None]
    falls = jnp.where(resolved[..., None], -jnp.expm1(-kept * s) / kept, 1.0)
    sums = length * jnp.sum(weights * jnp.exp(-(places[..., None] + 0.5 * s) * s) * falls, axis=-1)
    alone = resolved[..., 0]
    sign = jnp.where(alone, 0.0, jnp.where(direct, -1.0, 1.0))
    return sums[..., 0], sums[..., 1], sign, jnp.where(alone, mu, 1.0)


SIDES = np.array([-1.0, 1.0])
"""The axis of a bracket's two ends: from below, and from above."""


def _length(t: Array) -> Array:
    """Returns s with t s + s^2/2 = REACH."""
    return 2 * REACH / (t + jnp.sqrt(t**2 + 2 * REACH))


def mills(t: Array) -> Array:
    """Returns R(t) = Phi(-t)/phi(t) for a scalar t >= -1/2; 0 where t^2 overflows."""
    s = _length(t) * NODES[0]
    return _length(t) * jnp.sum(WEIGHTS[0] * jnp.exp(-(t + 0.5 * s) * s))


def bounds_of_log_delta(mu: Array, epsilon: Array) -> Array:
    """Returns bounds (..., 2) on log delta, from below and from above, of mu and epsilon (..., 2) on each side."""
    here = point(mu, epsilon)
    # Beyond, delta < e^(-t^2/2), and squares may overflow.
    far = epsilon / mu - mu / 2 > FARTHEST
    bounds = jnp.where(far, np.array([-np.inf, -0.1 * FARTHEST**2]), here.log_delta + SIDES * here.allowance)
    # Of what is no number nothing is known.
    return jnp.where(jnp.isnan(bounds), np.array([-np.inf, 0.0]), jnp.minimum(bounds, 0.0))


def epsilon_bounds(mu: Array, delta: Array) -> Array:
    """Returns bounds (2,), below and above, on epsilon at delta () in (0, 1), of mu in (0, inf): () or likewise (2,).

    In epsilon log delta falls and is concave, so Newton's steps run monotonically into the root from a start above it:
    delta is less than e^(-t^2/2).
    """
    target, mu = _targets(delta), jnp.broadcast_to(mu, (2,))

    def moved(x: Array, step: Array, here: Point) -> Array:
        return jnp.maximum(x + step / here.by_epsilon, 0.0)

    start = mu * (mu / 2 + jnp.sqrt(-2 * target))
    found = _ends(lambda x: point(mu, x), moved, lambda x, here: -x * here.by_epsilon, 1.0, target, start)
    return jnp.maximum(found, 0.0)


def mu_bounds(epsilon: Array, delta: Array) -> Array:
    """Returns bounds (2,), below and above, on mu of scalars, epsilon in [0, inf) and delta in (0, 1).

    As :func:`epsilon_bounds`, in log mu, in which log delta rises and is concave: from below. Two starts lie below: mu
    where e^(-t^2/2) is delta, and mu at epsilon = 0, which is at least sqrt(2 pi) delta.
    """
    target = _targets(delta)[::-1]
    z = jnp.sqrt(-2 * target)
    start = jnp.maximum(2 * epsilon / (jnp.sqrt(z**2 + 2 * epsilon) + z), jnp.sqrt(2 * jnp.pi) * delta)

    def moved(x: Array, step: Array, here: Point) -> Array:
        return x * jnp.exp(step / here.by_log_mu)

    epsilon = jnp.broadcast_to(epsilon, (2,))
    return jnp.maximum(
        _ends(lambda x: point(x, epsilon), moved, lambda _, here: here.by_log_mu, -1.0, target, start), 0
    )


def solve_mu(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    """Returns the middle of :func:`mu_bounds`, and how far they are from it at most."""
    lower, upper = mu_bounds(epsilon, delta)
    half = (upper - lower) / 2
    return lower + half, half + 4 * roundoff() * upper


def _targets(delta: Array) -> Array:
    """Returns log delta (2,), moved by its rounding: up, where delta is to be at least that, and down."""
    return jnp.log(delta) * (1 + arithmetic().function * SIDES)


def _ends(
    at: Callable[[Array], Point],
    moved: Callable[[Array, Array, Point], Array],
    scale: Callable[[Array, Point], Array],
    falls: float,
    target: Array,
    start: Array,
) -> Array:
    """Returns bounds (2,), below and above, on the root of log delta = target: one loop for both, -inf and inf if none.

    Newton's steps, each side on its own bound of log delta. They aim a little beside the root, at the side on which
    the bound is proved, so that what is returned was itself evaluated: the nearest place seen at which delta from above
    is small enough, and the nearest at which delta from below is large enough. Nothing about the steps, or the
    number of them, needs to be right for that.

    Args:
        at: place -> point (2,).
        moved: the place where log delta, by its slope, has changed by so much.
        scale: what a relative error of a place comes to in log delta.
        falls: 1 where log delta falls in the place, -1 where it rises.
        target (2,): log delta.
        start (2,): places from which Newton's steps run monotonically.
    """
    side = falls * SIDES

    def advance(state: Any) -> Any:
        count, x, best, _ = state
        here = at(x)
        aside = here.allowance / 8 + 4 * roundoff() * scale(x, here)
        off = here.log_delta - target + side * here.allowance
        best = jnp.where(side * off <= 0, jnp.minimum(best, SIDES * x), best)
        missed = off + side * aside
        following = moved(x, -missed, here)
        is_open = jnp.any((jnp.abs(missed) > aside) & (following != x))
        return count + 1, following, best, is_open

    first = jnp.int32(0), start, jnp.full_like(start, jnp.inf), jnp.asarray(True)
    final: Any = jax.lax.while_loop(lambda state: state[3] & (state[0] < NEWTON), advance, first)
    found: Array = SIDES * final[2]
    return found


def quantile(probability: Array) -> tuple[Array, Array]:
    """Returns the normal quantile of a scalar in (0, 1), and a bound on its error. Inside the float64 scope.

    Nothing is asked of the library's quantile -t but to be near. At t the error r of log Phi(-t) = log(phi(t) R(t)) is
    known from R, and its slope there is -1/R(t), with R falling: so it moves the quantile by r R(t), to first order.
    """
    tail = jnp.minimum(probability, 1 - probability)  # right to u, which is among the 128 below
    t = jnp.maximum(-ndtri(tail), 0.0)
    rate = mills(t)
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
    ends = here.log_delta + here.allowance * SIDES
    gained = jnp.where(far, np.array([0.0, TINY]), jnp.exp(ends))
    # The trade-off function is its own inverse: delta(-e) = 1 - e^-e + e^-e delta(e).
    found = jnp.where(epsilon < 0, -jnp.expm1(epsilon) + jnp.exp(epsilon) * gained, gained)
    rounded = 1 + 4 * arithmetic().function * SIDES
    none = jnp.where(epsilon == jnp.inf, 0.0, jnp.maximum(-jnp.expm1(epsilon), 0.0) * rounded)
    known = (mu >= 0) & (mu < jnp.inf) & ~jnp.isnan(epsilon)
    values = jnp.where(ordinary, found * rounded, jnp.where(known, none, np.array([0.0, 1.0])))
    least = jnp.where(ordinary, TINY, 0.0)
    return jnp.minimum(values[0], 1.0), jnp.clip(values[1], least, 1.0)


def sampled_delta(mu: Array, sampling_rate: Array, epsilon: Array, removes: Any = True) -> tuple[Array, Array]:
    """Returns bounds on delta of (1-q) N(0, 1) + q N(mu, 1) against N(0, 1), or the reverse; scalars, epsilon >= 0.

    Either way P - e^eps Q is a share of the plain difference at eps', e^eps' = 1 + (e^eps - 1)/share, so delta is the
    share of the plain one there. The share is q where the mixture is P. Where it is Q the share is 1 - (1-q) e^eps =
    q - (1-q) (e^eps - 1), and delta 0 where that is not above 0; like P - e^eps Q it rises with the share, of which a
    bound therefore makes a bound. ``mu`` is right to two units of roundoff.
    """
    u, q = roundoff(), sampling_rate
    grown = jnp.expm1(jnp.minimum(epsilon, LARGEST))
    rest = (1 - q) * grown
    share = jnp.where(removes, q, jnp.minimum(q - rest + 12 * u * SIDES * (q + rest), 1.0))
    there = share > 0
    share = jnp.where(there, share, 1.0)
    small = jnp.log1p(jnp.expm1(jnp.minimum(epsilon, FEW)) / share)
    large = epsilon - jnp.log(share) + jnp.log1p((share - 1) * jnp.exp(-jnp.maximum(epsilon, FEW)))
    inner = jnp.where(epsilon < FEW, small, large) * (1 - 24 * u * SIDES)
    found = share * jnp.exp(bounds_of_log_delta(mu * (1 + 2 * u * SIDES), inner)) * (1 + 12 * u * SIDES)
    lower, upper = jnp.where(there, jnp.minimum(found, 1.0), 0.0)
    return lower, upper
