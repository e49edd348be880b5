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

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.calibrate.solve import Config, Given, least_setting
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.platforms import lowered
from jaxacct.precision import in_float64
from jaxacct.programs import compiled
from jaxacct.question import ForDelta

TRIED, ZOOMS = np.array([-0.3, 0.0, 0.3]), 2
"""How far beside the last best epsilon others are tried, in the logit of its share of the largest that leaves room for
a delta, and how often, each time a third as far: the noises are three points of a parabola. A poor choice costs noise.
"""

CLOSE = 1e-6
"""Tolerance of the noises that are compared."""


def as_delta(rate: Array, false_rate: Array, epsilon: Array) -> Array:
    """Returns the delta at ``epsilon`` that rules a target out, rounded down: b - e^eps a."""
    return rate - jnp.exp(epsilon) * false_rate - 2 * arithmetic().function


def _each_enough(found: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns an epsilon and a delta that are enough still if reading the epsilon moves it: by at most 4 u of it, and
    the delta by no more, for e^eps false_rate is below 1.
    """
    epsilon, delta = found
    return epsilon, lowered(delta - 8 * roundoff() * epsilon)


@in_float64(safe=_each_enough)
@compiled(static=("relation",))
def tangent(
    relation: Relation, rate: Array, false_rate: Array, sampling_rate: Array, steps: Array
) -> tuple[Array, Array]:
    """Returns the epsilon and the delta that rule a target out with about the least noise, and each suffice for it.

    It starts at the tangent of the Gaussian's trade-off curve through the target. ``rate`` () and ``false_rate`` () are
    the true- and false-positive rates. NaN where they are no rates.
    """
    # A Gaussian's slope at the target is e^(c mu - mu^2/2), c the test's threshold. Below 1 the other form counts.
    mu = ndtri(rate) - ndtri(false_rate)
    slope = -ndtri(false_rate) * mu - mu**2 / 2
    rate, false_rate = jnp.where(slope < 0, 1 - false_rate, rate), jnp.where(slope < 0, 1 - rate, false_rate)
    widest = jnp.log(rate / false_rate)
    config = Config("noise_multiplier", ForDelta, relation, CLOSE)

    def setting_at(epsilon: Array) -> Array:
        given = Given(epsilon, as_delta(rate, false_rate, epsilon), jnp.ones(()), sampling_rate, steps)
        return least_setting(config, given)

    def zoomed(i: Array, centre: Array) -> Array:
        tried = centre + TRIED / 3.0**i
        left, here, right = jax.lax.map(lambda place: setting_at(widest * jax.nn.sigmoid(place)), tried)
        bend = left - 2 * here + right
        moved = centre + jnp.clip(0.5 * (left - right) / bend, -2.0, 2.0) * TRIED[-1] / 3.0**i
        return jnp.where((bend > 0) & jnp.isfinite(moved), moved, centre)

    share = jnp.minimum(jnp.abs(slope) / widest, 0.99)
    place = jax.lax.fori_loop(0, ZOOMS, zoomed, jnp.log(share) - jnp.log1p(-share))
    epsilon = widest * jax.nn.sigmoid(place)
    return epsilon, as_delta(rate, false_rate, epsilon)
