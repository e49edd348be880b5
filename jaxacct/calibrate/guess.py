"""Where the search starts: the setting that meets a target by Laplace's method, without any bracket.

One evaluation of the certified accountant costs as much as a hundred of these, so nearly all of the way is gone here.
Delta at eps is the integral of ``exp(phi(z))`` along a line, ``phi(z) = K(z) - z eps - log z - log(1 + z)``, K the
cumulant function of the sum of the losses. At the saddle point t, where phi' = 0, with phi_n its n-th derivative there,

    log delta = phi(t) - log(2 pi phi_2)/2 + log(1 + phi_4/(8 phi_2^2) - 5 phi_3^2/(24 phi_2^3)) + ...

(Daniels 1954, "Saddlepoint approximations in statistics", section 2). Newton's method moves the setting u and log t
together: nothing is gained from a saddle point met exactly at a setting that is not the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtri
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.composition import Part
from jaxacct.saddlepoint.sums import largest_order, scanned, total

STEPS = 24
"""Most steps of the joint iteration. Half of random targets take 4, nearly all of them 10 (bench/calibration.py's)."""

CORRECTED = 10
"""Steps with the expansion's second term. Where large losses are rare it is of either sign, and none comes to rest."""

CLOSE = 1e-5
"""Change of the setting at which it ends: that of one step more is below the error of the expansion."""

FARTHEST = 0.7
"""Longest step in u and in log t. Both vary by a few units in all; a step from afar must not leave the range."""

TURN = 1.0
"""By how much a step in u may move the saddle point's equation; it is steep where large losses are rare."""

NEAR = 0.5
"""Distance from the saddle point, in units of its equation, from which on the setting moves. Farther off the expansion
is too large, and the two coordinates would chase each other."""

MET = 0.2
"""Distance from it at which the search may end."""

LARGEST = 0.2
"""Largest correction of log delta by the expansion's second term."""

GAUSSIAN_STEPS = 12
"""Newton's steps for the mu of a Gaussian; chosen by tests/calibrate/test_guess.py."""


class Guess(NamedTuple):
    """A setting and what is known about it.

    Attributes:
        setting (): u, the setting's coordinate: the larger, the more private.
        order (): t, the saddle point there; log delta falls by about t per unit of eps.
        slope (): derivative of log delta in u, at a fixed eps.
        settled (): whether the iteration came to rest.
    """

    setting: Array
    order: Array
    slope: Array
    settled: Array


def gaussian_mu(epsilon: Array, delta: Array) -> Array:
    """Returns roughly the mu for which a mu-GDP mechanism has ``delta`` () at ``epsilon`` ().

    From delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Dong, Roth and Su 2022, Corollary 2.13), whose
    derivative in mu is the normal density at mu/2 - eps/mu.
    """
    z = -ndtri(delta)
    # Without the second term; and at eps = 0.
    start = jnp.maximum(jnp.sqrt(z**2 + 2 * epsilon) - z, 2 * ndtri((1 + delta) / 2))

    def newton(_, log_mu: Array) -> Array:
        mu = jnp.exp(log_mu)
        high = mu / 2 - epsilon / mu
        first, second = log_ndtr(high), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        found = first + jnp.log(-jnp.expm1(jnp.minimum(second - first, -1e-16)))
        slope = jnp.exp(-0.5 * high**2 - 0.5 * jnp.log(2 * jnp.pi) - found) * mu
        step = (jnp.log(delta) - found) / slope
        return log_mu + jnp.where(jnp.isnan(step), 0.0, jnp.clip(step, -1.0, 1.0))

    return jnp.exp(jax.lax.fori_loop(0, GAUSSIAN_STEPS, newton, jnp.log(start)))


def expansion(
    parts: tuple[Part, ...], order: Array, epsilon: Array, corrected: Array | bool
) -> tuple[Array, Array, Array, Array]:
    """Returns log delta by the expansion at ``order``, the saddle point's equation and its slope in log t, an excess.

    With the second term where it is to be ``corrected``.

    The equation t K'(t) = t eps + 1 + t/(1 + t) is taken in logarithms, for K' grows like an exponential where large
    losses are rare. The excess is half the square of its difference over t^2 phi_2: by so much is log delta too large.
    """
    t, scans = order, scanned(parts)
    found = total(parts, scans, t)
    third, fourth = jnp.zeros_like(t), jnp.zeros_like(t)
    for (_, steps), nodes in zip(parts, scans, strict=True):
        weights = jax.nn.softmax(nodes.log_p + t * nodes.losses, axis=-1)
        deviations = nodes.losses - jnp.sum(weights * nodes.losses, axis=-1, keepdims=True)
        squares = weights * deviations**2
        variance = jnp.sum(squares, axis=-1)
        third = third + jnp.sum(steps * jnp.sum(squares * deviations, axis=-1))
        fourth = fourth + jnp.sum(steps * (jnp.sum(squares * deviations**2, axis=-1) - 3 * variance**2))
    # All times t^n: then nothing overflows however small t is.
    near = t / (1 + t)
    second = t**2 * found.curvature + 1 + near**2
    third, fourth = t**3 * third - 2 - 2 * near**3, t**4 * fourth + 6 + 6 * near**4
    correction = fourth / (8 * second**2) - 5 * third**2 / (24 * second**3)
    value = found.value - t * epsilon - jnp.log1p(t) - 0.5 * jnp.log(2 * jnp.pi * second)
    wanted = t * epsilon + 1 + near
    lean = jnp.log(t * found.slope) - jnp.log(wanted)
    bend = 1 + t * found.curvature / found.slope - t * (epsilon + 1 / (1 + t) ** 2) / wanted
    excess = 0.5 * (t * found.slope - wanted) ** 2 / second
    # Where the correction is large it is no correction.
    return value + jnp.where(corrected, LARGEST * jnp.tanh(correction / LARGEST), 0.0), lean, bend, excess


def guess(
    parts_at: Callable[[Any, Array], tuple[Part, ...]],
    given: Any,
    start: Guess,
    epsilon: Array,
    log_delta: Array,
    ends: tuple[Any, Any],
) -> Guess:
    """Returns the setting in [ends] whose delta at ``epsilon`` is about ``exp(log_delta)``; ``start`` need be rough.

    ``parts_at(given, setting)`` is what is composed.
    """

    def step(state: tuple[Array, Guess], of_lane: Any) -> tuple[Array, Guess]:
        (i, at), (given, epsilon, log_delta, ends) = state, of_lane

        def expanded(setting: Array) -> tuple[Array, ...]:
            return expansion(parts_at(given, setting), at.order, epsilon, i < CORRECTED)

        (value, lean, bend, above), (slope, turn, _, _) = jax.jvp(expanded, (at.setting,), (jnp.ones_like(at.setting),))
        # As a function of t log delta is least at the saddle point: ``above`` is what it is too large by here.
        move = (log_delta - value + jnp.minimum(above, 1.0)) / slope
        longest = jnp.minimum(FARTHEST, TURN / jnp.abs(turn))
        is_sound = jnp.isfinite(move) & (slope < 0) & (jnp.abs(lean) < NEAR)
        move = jnp.where(is_sound, jnp.clip(move, -longest, longest), 0.0)
        turned = -(lean + turn * move) / bend
        turned = jnp.where(jnp.isfinite(turned), jnp.clip(turned, -FARTHEST, FARTHEST), 0.0)
        moved = jnp.clip(at.setting + move, *ends)
        highest = largest_order(parts_at(given, moved)) * 0.9
        settled = (jnp.abs(moved - at.setting) < CLOSE) & (jnp.abs(lean) < MET)
        return i + 1, Guess(moved, jnp.minimum(at.order * jnp.exp(turned), highest), slope, settled)

    found: Guess
    _, found = by_work.while_loop(
        lambda state, _: (state[0] < STEPS) & ~state[1].settled,
        step,
        (jnp.asarray(0, jnp.int32), start),
        (given, epsilon, log_delta, ends),
    )
    settled = found.settled & jnp.isfinite(found.setting) & (found.slope < 0)
    setting = jnp.where(jnp.isfinite(found.setting), found.setting, start.setting)
    return Guess(setting, found.order, jnp.where(settled, found.slope, start.slope), settled)
