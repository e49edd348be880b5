"""Functions of the normal law that pairs, laws and conversions rest on, each with a bound on its rounding.

1. :func:`cosm1_and_sin`: e^(ix) - 1 without cancellation, as fast as a CPU allows;
2. :func:`normal_cells`, :func:`lower_tail`: masses and tails;
3. the privacy profile of two normal laws a distance mu apart: delta from epsilon and mu (:func:`log_delta_at`), both
   ways back (:func:`epsilon_bounds`, :func:`mu_bounds`), and the same for a Poisson sample (:func:`sampled_delta`,
   :func:`sampled_epsilon`).

Source: Trefethen and Weideman (2014), "The exponentially convergent trapezoidal rule", Theorem 5.1, for the third.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array

from jaxacct.numerics.arithmetic import arithmetic, roundoff, with_own_form
from jaxacct.numerics.precision import TINY

# ----------------------------------------------------------------------------------------------------
# Sines and cosines of angles, to a few units of roundoff and of the angle.
# ----------------------------------------------------------------------------------------------------


@with_own_form
def cosm1_and_sin(angle: Array) -> tuple[Array, Array]:
    """Returns cos - 1 and sin, the first without cancellation, of angles below 2^52: XLA's take a CPU ten times longer.

    In float64 they err by five units of roundoff of the angle (tests/saddlepoint/test_tiles.py). Let h be a quarter of
    what is left of the angle after whole turns, and s = sin h, which is one series. The sine of 2h is 2 s sqrt(1 - s^2)
    and its cosine 1 - 2 s^2, and doubling h once more gives the angle: nothing cancels, for |h| <= pi/4. Where the
    products of turns round, as they do beyond 6 10^6, they move the angle by two units of itself, and the differences
    by three at most.
    """
    # 2 pi in three parts of 33 bits, so that in float64 the first two times a whole number below 2^20 are exact.
    turn = 6.28318530693650245666, 2.43084020252158637e-10, 8.08906498518380252e-21
    # Coefficients of sin(r)/r - 1 in powers of r^2, interpolated at Chebyshev's points of [0, (pi/4)^2]. There they are
    # off by 2.1e-17 of sin(r)/r at most, the coefficients' rounding counted (compared at 1,500 points in 50 digits).
    series = (
        -0.16666666666666666,
        0.008333333333330946,
        -0.0001984126983675497,
        2.755731610068312e-06,
        -2.5051131455447428e-08,
        1.591810123167728e-10,
    )
    turns = jnp.round(angle * (0.5 / math.pi))
    h = (((angle - turns * turn[0]) - turns * turn[1]) - turns * turn[2]) * 0.25
    square = h * h
    # Horner's scheme for sin(h)/h - 1, which is small: added to h last, its rounding hardly counts.
    value = series[-1] * square
    for c in series[-2::-1]:
        value = (value + c) * square
    sine = h + h * value
    square = sine * sine
    rest = 1 - square
    double = 2 * sine * jnp.sqrt(jnp.abs(rest))
    return -2 * double * double, 2 * double * (rest - square)


@with_own_form
def turn(angle: Array) -> tuple[Array, Array]:
    """Returns cos - 1 and sin less the angle, of which float32 keeps the digits: for sums without linear parts.

    They err by at most 7 and 6 units of min(x^2/2, 2 |x|) there (:func:`.elementary_float32.cos_and_sin_remainders`).
    """
    less, sine = cosm1_and_sin(angle)
    return less, sine - angle


# ----------------------------------------------------------------------------------------------------
# Masses and tails of normal distributions, with bounds on their rounding.
#
# An accountant of many steps raises a mesh's masses to high powers, and every cell's error counts. So a narrow cell's
# mass is a product, right relative to itself, and only a wide cell's is a difference of tails.
# ----------------------------------------------------------------------------------------------------


def normal_cells(x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
    """Returns the masses that N(center, scale^2) gives the cells between the monotone points x, with error bounds.

    A narrow cell's mass comes from the density at its middle, right to a few ulps: x[i+1] - x[i] rounds relative to
    itself, and the series in the width stops below 3e-18 relative. The middle is formed from the two ends' distances
    from the centre, each of which rounds relative to itself; formed from the ends' sum it would be off by units of
    |center| / scale, however near the centre it lies. A wide cell's mass is the difference of the tails on its own
    side, right to a few ulps of the tail. With differences alone the error of a mesh of n points would be n times
    larger, and tell after 10^6 compositions.
    """
    z = (x - center) / scale
    width = jnp.abs(x[..., 1:] - x[..., :-1]) / scale
    mass, error = _narrow_cell((z[..., 1:] + z[..., :-1]) / 2, width)
    wide, wide_error = _wide_cells(jnp.clip(z, -40.0, 40.0))
    # The series holds for narrow cells; an infinite end makes a cell a wide one.
    is_narrow = width * (1 + jnp.abs(z[..., 1:] + z[..., :-1]) / 2) < 0.1
    return jnp.where(is_narrow, mass, wide), jnp.where(is_narrow, error, wide_error)


def _wide_cells(z: Array) -> tuple[Array, Array]:
    """Returns the masses between the points, in standard deviations, by differences of tails."""
    tail = lower_tail(-jnp.abs(z))
    # The rounding of z, 2u of itself, moves the tail by a relative 2u |z| (|z| + 1) <= 3 (1 + z^2) u, for the density
    # is at most |z| + 1 times it; ndtr errs by 8 (1 + z^2) u (:data:`jaxacct.numerics.elementary.ASSUMED`).
    error = 12 * roundoff() * (1 + z**2) * tail
    # A cell about the centre holds all but the two tails.
    is_right = z > 0
    step = jnp.where(is_right, -tail, tail)
    step = jnp.abs(step[..., 1:] - step[..., :-1])
    mass = jnp.where(is_right[..., 1:] != is_right[..., :-1], 1.0 - step, step)
    return mass, error[..., 1:] + error[..., :-1] + 2 * roundoff() * mass


@with_own_form
def lower_tail(z: Array) -> Array:
    """Returns Phi(z) for z <= 0, right to 8 (1 + z^2) units of roundoff (:data:`.elementary.ASSUMED`)."""
    return ndtr(z)


def _narrow_cell(middle: Array, width: Array) -> tuple[Array, Array]:
    """Returns the normal mass of [middle - width/2, middle + width/2] where width (1 + |middle|) < 0.1.

    The mass is phi(m) w (1 + the sum over even n of He_n(m) w^n / (2^n (n + 1)!)), He the Hermite polynomials, taken up
    to n = 8. The polynomials' coefficients are at most |He_n(0)| times those of (1 + |m|)^n, so |He_n(m)| <= |He_n(0)|
    (1 + |m|)^n: the term of n = 10 is at most 945 (w (1 + |m|))^10 / 4 10^10 < 3e-18, and each further one is 10^-3 of
    the one before. The ends round by 2u of themselves and m by u: by 3u (|m| + 0.05), and the density by |m| times that
    and by u m^2 / 2 more. exp errs by 4u, the width by 2u, the products by 4u.
    """
    m = jnp.where(jnp.isfinite(middle), middle, 0.0)
    w = jnp.where(jnp.isfinite(width), width, 0.0)
    m2, w2 = m**2, w**2
    he2, he4, he6 = m2 - 1, (m2 - 6) * m2 + 3, ((m2 - 15) * m2 + 45) * m2 - 15
    he8 = (((m2 - 28) * m2 + 210) * m2 - 420) * m2 + 105
    series = 1 + w2 * (he2 / 24 + w2 * (he4 / 1920 + w2 * (he6 / 322560 + w2 * he8 / 92897280)))
    mass = jnp.exp(-0.5 * m2) * (w * series * (1 / math.sqrt(2 * math.pi)))
    return mass, roundoff() * (24 + 8 * m2) * mass


def normal_masses(low: Array, high: Array, center: Array, scale: Array) -> tuple[Array, Array]:
    """Returns the masses of N(center, scale^2) on cells, elementwise, with bounds on their errors.

    Args:
        low: one end of each cell, or -inf or inf.
        high: the other end, in whatever order. A cell with an infinite end has its centre outside.
        center: centres.
        scale: standard deviations.

    No difference of tails is taken: each mass is right relative to itself, and one formula serves all cells. Let a cell
    have the middle m and the half-width h, in standard deviations from the centre, and d = |m| + h. Eight Gauss nodes
    integrate the density phi with an error of (2h)^17 (8!)^4 / (17 (16!)^3) times the size of its 16th derivative
    He_16(z) phi(z) somewhere in the cell. There phi is at most phi(z'), z' = max(|m| - h, 0), and |He_16(z)| at most
    15!! (1 + |z|)^16: the polynomial's coefficients are at most 15!! times those of (1 + |z|)^16. In all that is below
    4e-17 (2h (1 + d))^16 of 2h phi(z'). Where a cell is so wide that this says little, its mass is between 0 and
    e^(-z'^2/2); and with an infinite end it is phi(z')/z' times a number between z'^2/(1 + z'^2) and 1.

    *Rounding.* The ends round by 2u of themselves, and a node between them by 2u more: 4u d, by which the density moves
    relatively by 4u d^2. The square in the exponent rounds by u d^2, exp errs by 8u, the width is right to 3u, products
    and the sum of eight terms round 12 times: in all 6 d^2 + 24 units are enough. A flushed number is below TINY.
    """
    u, density = roundoff(), 1 / math.sqrt(2 * math.pi)
    nodes, weights = (np.reshape(row, (-1, *(1,) * jnp.ndim(low))) for row in np.polynomial.legendre.leggauss(8))
    start, end, half = (low - center) / scale, (high - center) / scale, jnp.abs(high - low) * (0.5 / scale)
    inner = start[None] * jnp.asarray(0.5 - 0.5 * nodes, low.dtype) + end[None] * jnp.asarray(
        0.5 + 0.5 * nodes, low.dtype
    )
    mass = half * jnp.sum(jnp.exp(-0.5 * inner * inner) * jnp.asarray(weights * density, low.dtype), 0)
    # Nearest and farthest from the centre.
    near = jnp.maximum(jnp.maximum(jnp.minimum(start, end), -jnp.maximum(start, end)), 0.0)
    far, square = near + 2 * half, near * near
    peak = jnp.exp(-0.5 * square)
    error = u * (24 + 6 * far * far) * mass + 4e-17 * (2 * half * (1 + far)) ** 16 * half * peak
    share, is_infinite = 0.5 / (1 + square), half == jnp.inf
    most = peak * jnp.where(is_infinite, density / near, 1.0)
    least_share = jnp.where(is_infinite, 1 - share, 0.5)
    is_known = error < 0.5 * most
    mass = jnp.where(is_known, mass, most * least_share)
    return mass, jnp.where(is_known, error, most * (1 - least_share + u * (24 + 6 * square))) + TINY


# ----------------------------------------------------------------------------------------------------
# The privacy profile of two normal laws a distance mu apart.
#
# Delta from epsilon and mu, and both ways back.
#
# A mu-GDP mechanism is as private as telling N(0, 1) from N(mu, 1), whose privacy loss at a point x drawn from the
# latter is mu x - mu^2/2. :func:`log_delta_at` gives delta, :func:`epsilon_bounds` and :func:`mu_bounds` invert it, and
# :func:`sampled_delta` and :func:`sampled_epsilon` do the same for a Poisson sample; every result has a bound on its
# error. :func:`quantile` is the normal quantile, by the same rule.
#
# *The integral.* With t = eps/mu - mu/2 the loss exceeds eps for noise above t, by mu for each unit, so that
#
#     delta = integral over s > 0 of phi(t + s) F(mu s),   F(z) = 1 - e^(-z).
#
# The integrand has one sign, so nothing cancels however small mu or delta is; the usual form, Phi(-t) - e^eps Phi(-t -
# mu), is the difference of two numbers that may agree in all their digits. For t > 0 phi(t) is taken out.
#
# *The rule.* With s = log(1 + e^x) it is an integral over the whole line, taken by the trapezoidal rule of step h. Near
# 0 s is e^x, so that a step resolves e^(-mu s) and e^(-t s) however fast they fall; far out s is x, as phi asks. At x +
# i a, 0 < a < pi/2, let r > 0 be the real part of s. Then s has an angle below a, an imaginary part below a, and |ds|
# <= dr / cos a. From |F(z)| <= F(|z|) / cos(arg z), F(c z) <= c F(z) for c >= 1, and Re s^2 >= r^2 - a^2, the integral
# of the integrand's modulus there is at most e^(a^2/2) / cos^3 a times that over the real line, whatever t and mu are.
# So the rule errs by at most 2 e^(a^2/2) / (cos^3 a (e^(2 pi a/h) - 1)) of the integral (Trefethen and Weideman 2014,
# "The exponentially convergent trapezoidal rule", Theorem 5.1): 1.8e-16 for h = 13/64 and a = 1.4. The nodes end where
# less than 2e-17 + 2e-18 max(t, 0) of the integral lies beyond, for t in [LOWEST, HIGHEST], whatever mu is, and without
# F: 2e-18 is the first node, and t + 1 bounds what a unit of s has there. The second term only counts where mu t is
# above 10^19 or so; it is t/50 units of roundoff, few beside the 10 of t^2/2 below.
#
# *Rounding* is counted in units of roundoff; exp, expm1 and log err by 8 of them (:attr:`.Arithmetic.function`). Nodes
# are right to 4 and weights to 6. The exponent z = p (p/2 + t), with p = s, or its like for t < 0, moves by 4 t s + 4
# s^2 for the nodes and 3 z for rounding: on the weighted average, where t s + s^2 is 2 at most, 14; where t < 0, up to
# 5 |t| more. F moves by 5 with its argument. With functions, products and the cut that is below 90, besides the sum's
# own (:meth:`.Arithmetic.of_sum`). The logarithm of the sum and t^2/2 are no larger than log delta, and add 10 units of
# it.
# ----------------------------------------------------------------------------------------------------


STEP = 13 / 64
"""Step of the trapezoidal rule, whose multiples are exact. A larger one breaks the bound that the module derives."""

_X = STEP * np.arange(-201, 85)
NODES, WEIGHTS = np.log1p(np.exp(_X)), STEP / (1 + np.exp(-_X)) / np.sqrt(2 * np.pi)
"""Values of s at the nodes, in standard deviations, and their weights, which include phi's factor 1/sqrt(2 pi).

The module's bounds on the rule and on its rounding are for these.
"""

LOWEST, HIGHEST = -8.5, 1e3
"""Ends of t, in standard deviations. Below, delta is 1 to all digits; above, it is less than any float64."""

LOG_NORMAL = 0.5 * float(np.log(2 * np.pi))
"""Log of sqrt(2 pi): minus the log of the normal density at 0."""

SIDES = np.array([-1.0, 1.0])
"""Signs of a bracket's two ends along its axis: from below, and from above."""


def point(mu: Array, t: Array) -> tuple[Array, Array, Array]:
    """Returns a point of the curve delta(t; mu), elementwise, at t = eps/mu - mu/2, for mu in [1e-20, inf).

    It is log delta, the rate at which that falls in t, above 0, and delta over e^(-max(t, 0)^2/2). t is in
    [LOWEST, HIGHEST].
    """
    mu, t = (jnp.expand_dims(x, -1) if jnp.ndim(x) else x for x in (mu, t))
    nodes, weights = (np.reshape(row, (1,) * (jnp.ndim(t) - 1) + (-1,)) for row in (NODES, WEIGHTS))
    # The terms are those of phi(t + s) over phi(max(t, 0)): none underflows before delta does.
    above = jnp.maximum(t, 0.0)
    place = nodes + jnp.minimum(t, 0.0)
    mass = jnp.asarray(-weights * jnp.exp(place * (-0.5 * place - above)) * jnp.expm1(mu * -nodes))
    kept, first = _sum(mass), _sum(mass * place)
    above = above[..., 0] if jnp.ndim(above) else above
    # The derivative of the integral is -E[t + s].
    return jnp.log(kept) - 0.5 * above**2, above + first / kept, kept


def _sum(terms: Array) -> Array:
    """Returns the sum of one term for each node, in pairs first, which halves the bound on its rounding."""
    middle = NODES.size // 2
    return jnp.sum(terms[..., :middle] + terms[..., middle:], axis=-1)


def allowance(log_delta: Array, more: float = 0.0) -> Array:
    """Returns a bound on the error of log delta at a given t, with :func:`keep_normal`'s, from a number near it."""
    return (more + roundoff() * (90 + arithmetic().of_sum(NODES.size / 2))) - 10 * roundoff() * log_delta


def keep_normal(mu: Array) -> tuple[Array, Array]:
    """Returns mu, but at least 1e-20, and the logarithm by which delta is less: so no term of the sum is subnormal."""
    # Smallest mu that the rule takes: below it 1 - e^(-mu s) is mu s to all digits of float64, for all nodes.
    least = 1e-20
    kept = jnp.maximum(mu, least)
    return kept, jnp.log(mu / kept)


def log_delta_at(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns log delta, elementwise, for mu in (0, inf) and epsilon in [0, inf), and a bound on its error.

    Beyond HIGHEST, where phi(t) alone is below float64's range, the value is only an upper bound on log delta: delta /
    phi(t) falls in t.
    """
    # Largest t, in standard deviations, of an upper bound: there its rounding is negligible against
    # t^2/2. Delta falls in t, so that an upper bound at a smaller t is one.
    farthest = 1e25
    # Delta falls in t, so an upper bound at a smaller t is one.
    t = jnp.minimum(epsilon / mu - mu / 2, farthest)
    kept, less = keep_normal(mu)
    log_delta, falls, _ = point(kept, jnp.clip(t, LOWEST, HIGHEST))
    beyond = jnp.maximum(t - HIGHEST, 0.0)
    value = log_delta + less - beyond * (0.5 * beyond + HIGHEST)
    error = allowance(value)
    # t errs by 2 units of its terms, whose sum is t + mu.
    return value, error + shift_bound(3 * roundoff() * (t + mu), falls + beyond, error)


def slopes_of_log_delta(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns the derivatives of log delta in log mu and in epsilon: g = mu phi(t) / delta, and the slope in t."""
    t = jnp.clip(epsilon / mu - mu / 2, LOWEST, HIGHEST)
    kept, _ = keep_normal(mu)
    _, falls, rest = point(kept, t)
    by_mu = kept * jnp.exp(-0.5 * jnp.minimum(t, 0.0) ** 2 - LOG_NORMAL) / rest
    return by_mu, -falls / mu


def shift_bound(off: Array, falls: Array, error: Array) -> Array:
    """Returns a bound on the move of log delta where t moves by ``off``, in which its rate rises by ``off`` at most."""
    return off * (falls + 4 * error + off)


def bounds_of_log_delta(mu: Array, epsilon: Array) -> Array:
    """Returns bounds (..., 2) on log delta, from below and from above, of mu and epsilon (..., 2) on each side."""
    value, error = log_delta_at(mu, epsilon)
    bounds = jnp.where((SIDES < 0) & (value < -0.5 * HIGHEST**2), -jnp.inf, value + SIDES * error)
    # A value that is no number bounds nothing: log delta lies between -inf and 0.
    return jnp.where(jnp.isnan(bounds), np.array([-np.inf, 0.0]), jnp.minimum(bounds, 0.0))


def epsilon_bounds(mu: Array, delta: Array, of_mu: float = 0.0) -> tuple[Array, Array]:
    """Returns bounds, below and above, on epsilon at delta () in (0, 1), of mu () in (0, inf) and its relative error.

    In t log delta falls and is concave, and delta is less than e^(-t^2/2). So Newton's steps from the t at which that
    is ``delta`` run monotonically into the root. Its second derivative is at most 10 times the first: delta is a
    mixture of Phi(-t - v) over v > 0, whose hazards l at t + v, on the average the first derivative, have slopes l
    (l - t - v) <= l (l(t) - t) <= 10 l.
    """
    target = jnp.log(delta)
    kept, less = keep_normal(mu)
    # The error of log delta, of its target, and of mu: log delta rises by at most as much as log mu does.
    error, half = allowance(1.8 * target, of_mu), mu / 2

    def evaluate(t: Array) -> tuple[Any, ...]:
        log_delta, falls, _ = point(kept, t)
        return log_delta, -falls, np.float64(10.0), error

    # Where epsilon is 0 Newton's steps end.
    t, above, below = newton(evaluate, lambda t: jnp.maximum(t, -half), jnp.add, target - less, jnp.sqrt(-2 * target))
    # epsilon = mu (t + mu/2), with the errors of mu and of these operations.
    off = (4 * roundoff() + of_mu) * (jnp.abs(t) + mu)
    t = t + half
    return jnp.maximum(mu * (t - (below + off)), 0.0), jnp.maximum(mu * (t + (above + off)), 0.0)


def mu_bounds(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    """Returns bounds, below and above, on mu of scalars, epsilon in [0, inf) and delta in (0, 1).

    Newton's steps run as in :func:`epsilon_bounds`, but in log mu, in which log delta rises and is concave, and from
    below. Two starts lie below: mu where e^(-t^2/2) is delta, and mu at epsilon = 0, which is at least sqrt(2 pi)
    delta. The first derivative is g = mu phi(t) / delta, the second g (1 + t (t + mu) - g).
    """
    target = jnp.log(delta)
    z = jnp.sqrt(-2 * target)
    start = jnp.maximum(2 * epsilon / (jnp.sqrt(z**2 + 2 * epsilon) + z), jnp.sqrt(2 * jnp.pi) * delta)

    def evaluate(mu: Array) -> tuple[Array, ...]:
        ratio, half = epsilon / mu, mu / 2
        t, terms = ratio - half, ratio + half
        kept, less = keep_normal(mu)
        log_delta, falls, rest = point(kept, jnp.clip(t, LOWEST, HIGHEST))
        below = jnp.minimum(t, 0.0)
        slope = kept * jnp.exp(-0.5 * below**2 - LOG_NORMAL) / rest
        error = allowance(1.8 * target)
        error = error + shift_bound(3 * roundoff() * terms, falls, error)
        return log_delta + less, slope, slope + 1 + (1 + jnp.abs(t)) * terms, error

    def move(mu: Array, by: Array) -> Array:
        return mu + mu * jnp.expm1(by)

    mu, below, above = newton(evaluate, lambda mu: mu, move, target, start)
    off = 8 * roundoff()
    return jnp.maximum(mu * (1 - below - off), 0.0), mu * (1 + 1.02 * above + off)


def newton(
    evaluate: Callable[[Array], tuple[Any, ...]],
    inside: Callable[[Array], Array],
    moved: Callable[[Array, Array], Array],
    target: Array,
    start: Array,
) -> tuple[Array, Array, Array]:
    """Returns a place near the root of log delta = target, and how far the root may be from it on either side.

    Log delta is concave in the variable in which steps are made. So it lies below its tangent: with e its error, the
    root is not farther than e / slope beyond the end of Newton's step, on the side of smaller delta. On the other side
    it is not farther than e / slope plus b d^2 / 2, with d the step and b a bound on the second derivative over the
    first; a 16th more is for the slope's and b's own growth, where b times all of that is below 1/64. Elsewhere that
    side is inf.

    Args:
        evaluate: place -> log delta; its slope; b; e, the error of log delta and of the target.
        inside: place -> the nearest place at which log delta is known.
        moved: place, step -> the place that the step leads to.
        target (): log delta.
        start (): place from which Newton's steps run monotonically.
    """
    # Move of Newton's last step, over which a slope changes by less than is allowed for. Larger is sound, and wider.
    sure = 2.0**-29

    def advance(state: Any) -> Any:
        place, *_ = state
        here = inside(place)
        value, slope, bend, error = evaluate(here)
        miss, steep = target - value, jnp.abs(slope)
        step = miss / slope
        near = 1.0625 * error / steep
        far = near + 1.0625 * bend * step**2
        far = jnp.where(bend * (far + jnp.abs(step)) < 1 / 64, far, jnp.inf)
        following = moved(here, step)
        is_open = (jnp.abs(miss) > jnp.maximum(2 * error, sure * steep)) & (following != place)
        return following, near, far, is_open

    # The state is a place, how far the root may lie from it on either side, and whether to go on. Steps run
    # monotonically into the root, so they end: where the miss is within its error, or where a step moves nothing.
    first = start, jnp.inf, jnp.inf, True
    final: Any = jax.lax.while_loop(lambda state: state[3], advance, tuple(map(jnp.asarray, first)))
    return final[:3]


def solve_mu(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    """Returns the middle of :func:`mu_bounds`, and a bound on their distance from it."""
    lower, upper = mu_bounds(epsilon, delta)
    half = (upper - lower) / 2
    return lower + half, half + 4 * roundoff() * upper


def mills(t: Array) -> Array:
    """Returns R(t) = Phi(-t)/phi(t) for a scalar t in [0, HIGHEST], by the rule without F.

    Of its 90 units none is for F, and the t/50 of the part that lies before the first node, 17 at most, are among them.
    """
    return _sum(np.sqrt(2 * np.pi) * WEIGHTS * jnp.exp(-NODES * (0.5 * NODES + t)))


def quantile(probability: Array) -> tuple[Array, Array]:
    """Returns the normal quantile of a scalar in (0, 1), and a bound on its error. Inside the float64 scope.

    The library's quantile -t need only be near. At t the error r of log Phi(-t) = log(phi(t) R(t)) is known from R, and
    the slope of log Phi(-t) there is -1/R(t), with R falling: so r moves the quantile by r R(t), to first order.
    """
    tail = jnp.minimum(probability, 1 - probability)  # right to u, which is among the 128 below
    t = jnp.maximum(-ndtri(tail), 0.0)
    rate = mills(t)
    wanted = jnp.log(tail)
    miss = -0.5 * t**2 - LOG_NORMAL + jnp.log(rate) - wanted
    units = 128 + arithmetic().of_sum(NODES.size) + 4 * t**2
    off = roundoff() * units + 2 * arithmetic().function * (jnp.abs(jnp.log(rate)) - wanted)
    return jnp.where(probability < 0.5, -t, t), 2 * (jnp.abs(miss) + off) * rate


def delta_above(mu: Array, epsilon: Array) -> Array:
    """Returns delta of scalars, rounded up; 1 where they are out of range. Inside the scope."""
    return delta_bounds(mu, epsilon)[1]


def delta_bounds(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Returns delta of scalars, rounded down and up; 0 and 1 where they are out of range. Inside the scope."""
    ordinary = (mu > 0) & (mu < jnp.inf) & (jnp.abs(epsilon) < jnp.inf)
    place = jnp.where(ordinary, mu, 1.0), jnp.where(ordinary, jnp.abs(epsilon), 1.0)
    gained = jnp.exp(bounds_of_log_delta(*(jnp.broadcast_to(x, (2,)) for x in place)))
    # The trade-off function is its own inverse: delta(-e) = 1 - e^-e + e^-e delta(e).
    deltas = jnp.where(epsilon < 0, -jnp.expm1(epsilon) + jnp.exp(epsilon) * gained, gained)
    rounded = 1 + 4 * arithmetic().function * SIDES
    none = jnp.where(epsilon == jnp.inf, 0.0, jnp.maximum(-jnp.expm1(epsilon), 0.0) * rounded)
    known = (mu >= 0) & (mu < jnp.inf) & ~jnp.isnan(epsilon)
    values = jnp.where(ordinary, deltas * rounded, jnp.where(known, none, np.array([0.0, 1.0])))
    least = jnp.where(ordinary, TINY, 0.0)
    return jnp.minimum(values[0], 1.0), jnp.clip(values[1], least, 1.0)


def sampled_delta(mu: Array, sampling_rate: Array, epsilon: Array, removes: Any = True) -> tuple[Array, Array]:
    """Returns bounds on delta of (1-q) N(0, 1) + q N(mu, 1) against N(0, 1), or the reverse; scalars, epsilon >= 0.

    Either way P - e^eps Q is a share of the plain difference at eps', e^eps' = 1 + (e^eps - 1)/share, so delta is that
    share of the plain delta at eps'. The share is q where the mixture is P. Where it is Q, the share is 1 - (1-q)
    e^eps = q - (1-q) (e^eps - 1), and delta is 0 where that is not above 0. Like P - e^eps Q, delta rises with the
    share, so a bound on the share gives a bound on delta. ``mu`` is right to two units of roundoff.

    Eps' is formed as log(1 + (e^eps - 1)/share), to 20 u; from eps = 30 on, and where that quotient overflows, as eps -
    log(share) + log(1 - (1-share) e^-eps). There -log(share) is 705 - eps at least, and the sum right to 14 u; with a
    normal share the quotient overflows from eps = 1.6 on, so that log1p's argument is above -1/4.
    """
    # Epsilon, in nats, from which e^eps - 1 is e^eps to all digits.
    few = 30.0
    u, q = roundoff(), sampling_rate
    if isinstance(removes, bool) and removes:
        share, there = q, q > 0
    else:
        rest = (1 - q) * jnp.expm1(jnp.minimum(epsilon, arithmetic().largest_exponent))
        share = jnp.where(removes, q, jnp.minimum(q - rest + 12 * u * SIDES * (q + rest), 1.0))
        there = share > 0
    share = jnp.where(there, share, 1.0)
    ratio = jnp.expm1(jnp.minimum(epsilon, few)) / share
    large = epsilon - jnp.log(share) + jnp.log1p((share - 1) * jnp.exp(-jnp.maximum(epsilon, 1.5)))
    inner = jnp.where((epsilon < few) & (ratio < jnp.inf), jnp.log1p(ratio), large) * (1 - 24 * u * SIDES)
    deltas = share * jnp.exp(bounds_of_log_delta(mu * (1 + 2 * u * SIDES), inner)) * (1 + 12 * u * SIDES)
    lower, upper = jnp.where(there, jnp.minimum(deltas, 1.0), 0.0)
    return lower, upper


def sampled_epsilon(mu: Array, sampling_rate: Array, delta: Array) -> tuple[Array, Array]:
    """Returns bounds on epsilon at delta of (1-q) N(0, 1) + q N(mu, 1) against N(0, 1); scalars.

    The plain epsilon' at delta / q is known, and epsilon = log(1 + q (e^eps' - 1)), which moves less than epsilon'.
    """
    # Largest plain delta that a sampled one is read from. Above it, epsilon is at most the epsilon at it, and at
    # least 0. Any value below 1 is sound.
    most_level = 1 - 2.0**-20
    # Smallest rate for which 1 is nothing beside q e^eps' where that is cut: below it the lower bound is 0.
    least_rate = math.exp(40 - arithmetic().largest_exponent)
    level = delta / sampling_rate
    inner = jnp.stack(epsilon_bounds(mu, jnp.minimum(level, most_level), 4 * roundoff()))
    # Beyond the largest exponent e^eps' - 1 is e^eps', and the excess adds up, if its exponential is far above 1/q.
    most = jnp.minimum(inner, arithmetic().largest_exponent)
    lower, upper = (jnp.log1p(sampling_rate * jnp.expm1(most)) + (inner - most)) * (
        1 + 4 * arithmetic().function * SIDES
    )
    # Delta is at most q, whatever epsilon is.
    upper = jnp.where(level > 1 + 4 * roundoff(), 0.0, upper)
    return jnp.where((level < most_level) & (sampling_rate > least_rate), lower, 0.0), upper
