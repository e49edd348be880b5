"""Moments of a likelihood ratio close to 1, without cancellation: the integrand, and an integral of its logarithm.

With L = log P/Q and phi(x) = e^x - 1 - x, and since E_P[e^-L] = 1,

    E_P[e^(t L)] - 1 = E_P[phi(t L) + t phi(-L)],

a sum of terms of one sign for t >= 0. Nothing cancels, however close to 1 the moment is. For t in (-1/2, 0) the terms
differ in sign, but their sum has one sign and loses no more than a few bits; for smaller t exchange P and Q:
E_P[e^(t L)] = E_Q[e^(-(t+1) (-L))].

What rests on it: the windows of the integral are found by looking, and the rule's error is not bounded here. No bound
of the mesh uses a cumulant: its own windows come from Chernoff bounds on the lattice's weights, its tails from
``log_tail``. Rényi divergences of shifted noise do, as the exact value that :data:`jaxacct.rdp.divergence.ALLOWANCE`
rounds up: an allowance that was measured against quadrature at high precision, not proved.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import with_pair_form
from jaxacct.precision import log_complement

LARGEST_EXPONENT = 600.0
"""Above it e^x is kept as its exponent (float64 overflows at e^709); what stands beside it is below e^-500 of it."""

CUT = 60.0
"""Log of the ratio of an integrand's maximum to what may be left out: e^-60 is 1e-26."""

SCAN, ROUNDS = 128, 4
"""Points at which an integrand's logarithm is looked at, and how often the window is narrowed."""

FEWEST_PANELS, MOST_PANELS = 32, 8192
"""Panels of 16 Gauss-Legendre nodes over a window.

32 leave an exponential four e-foldings a panel where it falls by CUT on both sides; the rule then errs by 1e-30.
"""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(16)
NODES, WEIGHTS = (_POINTS + 1) / 2, _WEIGHTS / 2
"""Nodes and weights on [0, 1]."""


@with_pair_form
def exp_remainder(x: Array, expm1_x: Array | float) -> Array:
    """Returns ``e^x - 1 - x`` given ``e^x - 1``, of which only the absolute accuracy counts.

    By a ratio of polynomials where |x| < 1/2: there the difference would cancel, outside it costs less than four bits.
    With w = x^2 and Lambert's fraction h coth h = 1 + v/(3 + v/(5 + v/(7 + v/(9 + v/(11 + ...))))), v = h^2 = w/4,

        e^x - 1 - x = x (h - g)/(1 + g - h),   h = x/2,   g = h coth h - 1,

    and g, cut after 11, is w n/(2 d) of the polynomials n and d below. All of the fraction's terms are positive, so g
    lies between this and the same cut after 13, which is 2.1e-15 of it away where |x| = 1/2; of the result that is
    2.4e-16, two and a half units of roundoff. Forming it adds 20 units at most: x n < d/11, so no difference loses a
    tenth.
    """
    is_small, ratio = _small_remainder(x)
    return jnp.where(is_small, ratio, expm1_x - x)


@jax.jit  # called more than once for arrays of a shape: part of a program's text once
def _small_remainder(x: Array) -> tuple[Array, Array]:
    """Returns whether |x| is at most 1/2, and :func:`exp_remainder` there."""
    small = jnp.minimum(jnp.maximum(x, -0.5), 0.5)
    w = small * small
    n, d = w * (w + 756.0) + 55440.0, w * (w * 42.0 + 10080.0) + 332640.0
    part = d - small * n
    return small == x, w * part / (d + d - small * part)


@jax.jit
def weighted_remainder(x: Array, weight: Array, grown: Array) -> Array:
    """Returns ``weight (e^x - 1 - x)`` given ``grown``, ``weight e^x``, where e^x alone may overflow."""
    is_small, ratio = _small_remainder(x)
    return jnp.where(is_small, ratio * weight, grown - (1.0 + x) * weight)


def excess(loss: Array, order: Array, expm1_back: Array) -> tuple[Array, Array]:
    """Returns c and e with ``|phi(t L) + t phi(-L)| = c e^e``, given ``e^-L - 1``, for order t >= -1/2."""
    power = order * loss
    huge, reverse = power > LARGEST_EXPONENT, -loss > LARGEST_EXPONENT
    ahead = exp_remainder(power, jnp.exp(jnp.minimum(power, LARGEST_EXPONENT)) - 1)
    series = ahead + order * exp_remainder(-loss, expm1_back)
    coefficient = jnp.where(huge, 1.0, jnp.abs(jnp.where(reverse, order, series)))
    return coefficient, jnp.where(huge, power, jnp.where(reverse, -loss, 0.0))


def log_excess(loss: Array, order: Array) -> Array:
    """Returns ``log |phi(t L) + t phi(-L)|`` for order t >= -1/2."""
    coefficient, exponent = excess(loss, order, jnp.expm1(jnp.minimum(-loss, LARGEST_EXPONENT)))
    return jnp.log(coefficient) + exponent


def log_moment(log_excess_moment: Array, order: Array) -> Array:
    """Returns ``log E[e^(t L)]`` given the log of its distance from 1."""
    below = log_complement(jnp.exp(jnp.minimum(log_excess_moment, 0.0)))
    moment = jnp.where((order > -1) & (order < 0), below, jnp.logaddexp(0.0, log_excess_moment))
    return jnp.where((order == 0) | (order == -1), 0.0, moment)


def reflected(order: Array) -> tuple[Array, Array]:
    """Returns whether to exchange P and Q, and the order, at least -1/2, to use then."""
    exchange = order < -0.5
    return exchange, jnp.where(exchange, -(order + 1), order)


def log_integral(height: Callable[[Array], Array], low: Array, high: Array, panel: Array, scale: Array) -> Array:
    """Returns the log of the integral of ``e^height`` over [low, high], all scalars.

    Args:
        height: the log integrand, elementwise; smooth inside (low, high).
        low: lower end.
        high: upper end; where it equals the lower one the result is -inf.
        panel: longest panel that the rule resolves: a few tenths of the distance of the nearest complex singularity.
        scale: width of the noise, in which the integrand falls by some e-foldings.

    Where the integrand is above e^-CUT of its maximum is found by looking: on a grid over the window, then on finer
    ones. A peak between two points of the grid may rise above them by as much as a Gaussian of the given width that is
    CUT e-foldings down the flank; such points are kept. Narrower peaks stand alone, next to the highest point.
    """

    def narrow(_, window: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, right, _ = window
        step = (right - left) / SCAN
        x = left + (jnp.arange(SCAN) + 0.5) * step
        heights = height(x)
        top = jnp.max(heights)
        apart = step / (2 * scale)
        kept = heights > top - CUT - (11 * apart + apart**2 / 2)
        first = jnp.min(jnp.where(kept, x, jnp.inf))
        last = jnp.max(jnp.where(kept, x, -jnp.inf))
        some = top > -jnp.inf
        return (
            jnp.where(some, jnp.maximum(first - step, left), left),
            jnp.where(some, jnp.minimum(last + step, right), right),
            top,
        )

    left, right, top = jax.lax.fori_loop(0, ROUNDS, narrow, (low, high, jnp.zeros_like(low)))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    count = jnp.fmin(jnp.fmax(jnp.ceil((right - left) / panel), FEWEST_PANELS), MOST_PANELS)
    width = (right - left) / count

    def add(i: Array, total: Array) -> Array:
        values = height(left + width * (i + NODES)) - top
        return total + jnp.sum(jnp.asarray(WEIGHTS) * jnp.exp(values))

    total = jax.lax.fori_loop(0, count.astype(jnp.int32), add, jnp.zeros_like(low))
    return top + jnp.log(total * width)
