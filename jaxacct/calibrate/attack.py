"""From an attack's success to an (epsilon, delta) that rules it out.

Let a test tell neighbours apart with false-positive rate a and true-positive rate b. Under (eps, delta)-DP, applied to
the test's own outcome with either neighbour in the first place,

    b <= e^eps a + delta,        1 - a <= e^eps (1 - b) + delta,

for eps >= 0; so b <= min(delta + e^eps a, 1 - e^-eps (1 - delta - a)). Dong, Roth and Su (2022), Proposition 6: the
minimum of these over all eps is what the best test reaches, no more. Hence a target (a, b) is met if for *any one* eps

    delta(eps) <= b - e^eps a    or    delta(eps) <= 1 - a - e^eps (1 - b).

The second is the first for the target (1 - b, 1 - a). What is left is to choose the eps that needs least noise, that of
the trade-off curve's slope at the target; a poor choice costs noise, of second order, and never the guarantee.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array

from jaxacct.calibrate.guess import guess
from jaxacct.calibrate.solve import ENDS, Given, composition, gaussian_start
from jaxacct.precision import UNIT_ROUNDOFF, in_float64
from jaxacct.prv.composition import directed_parts

CHOICES = 12
"""Values of eps compared, evenly spaced over those that leave delta room; between them a parabola is fitted."""


def as_delta(rate: Array, false_rate: Array, epsilon: Array) -> Array:
    """Returns the delta at ``epsilon`` that rules a target out, rounded down: b - e^eps a."""
    return rate - jnp.exp(epsilon) * false_rate - 8 * UNIT_ROUNDOFF


@in_float64
@functools.partial(jax.jit, static_argnums=0)
def tangent(relation: str, rate: Array, false_rate: Array, sampling_rate: Array, steps: Array) -> tuple[Array, Array]:
    """Returns the epsilon and the delta that rule a target out with about the least noise, and each suffice for it.

    ``rate`` () and ``false_rate`` () are the true- and false-positive rates. NaN where they are no rates.
    """
    # A Gaussian's slope at the target is e^(c mu - mu^2/2), c the test's threshold. Below 1 the other form counts.
    mu = ndtri(rate) - ndtri(false_rate)
    turned = -ndtri(false_rate) * mu - mu**2 / 2 < 0
    rate, false_rate = jnp.where(turned, 1 - false_rate, rate), jnp.where(turned, 1 - rate, false_rate)
    epsilons = jnp.log(rate / false_rate) * (jnp.arange(CHOICES) + 0.5) / CHOICES

    def needed(epsilon: Array) -> Array:
        given = Given(epsilon, as_delta(rate, false_rate, epsilon), jnp.ones_like(rate), sampling_rate, steps)

        def parts_at(setting: Array):
            mechanism, count = composition("noise_multiplier", given, jnp.exp(setting))
            return directed_parts(mechanism, count, relation)[0]

        start = gaussian_start("noise_multiplier", given)
        near = guess(parts_at, start, epsilon, jnp.log(given.delta), ENDS["noise_multiplier"])
        return jnp.where(near.settled, near.setting, jnp.inf)

    settings = jax.lax.map(needed, epsilons)
    best = jnp.min(jnp.where(settings == jnp.min(settings), jnp.arange(CHOICES), CHOICES))
    middle = jnp.clip(best, 1, CHOICES - 2)
    left, here, right = (settings[middle + i] for i in (-1, 0, 1))
    vertex = 0.5 * (left - right) / (left - 2 * here + right)
    vertex = jnp.where(jnp.abs(vertex) <= 1.5, vertex, 0.0) + (middle - best) * (jnp.abs(vertex) > 1.5)
    spacing = epsilons[1] - epsilons[0]
    epsilon = jnp.where(jnp.isfinite(jnp.min(settings)), epsilons[middle] + vertex * spacing, epsilons[CHOICES // 2])
    epsilon = jnp.clip(epsilon, epsilons[0] * 0.1, epsilons[-1])
    return epsilon, as_delta(rate, false_rate, epsilon)
