"""From a bounded privacy profile to a pair that has it: the hull of finitely many points.

Let H(a) = sup over events E of P(E) - a Q(E), and H' the same from Q to P. H is convex, falls, and H(a) = 1 - a + a
H'(1/a). So bounds on both at points from a = 1 on bound both everywhere: between points by their chords, and beyond the
last by its value, since both fall. The largest convex function below the points of H from 1 on, (inf, last value) among
them, and the same for H', are the two halves of the profile of one finite pair: a line H'(b) = x + y b is the line
H(a) - (1 - a) = x a + y. Where the slope rises at a > 1 the pair has an outcome of ratio a, with the rise for its
Q-mass; where that of H' rises at b, one of ratio 1/b with the rise for its P-mass. What is left of H after the last
point is P's mass at infinity, (a, H) = (0, 1) is on the hull, and what is left of H' is Q's mass at zero. The rest has
the ratio 1. All sums but the last are of positive numbers, so that no rare mass is lost to cancellation.

The halves meet in H(1) = H'(1), lowered to the lowest chord across it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.numerics.arithmetic import roundoff, scale_error

MARGIN = 1e-11
"""Relative error by which bounds are raised, so that the pair dominates them after rounding, by :func:`dominate`."""


def dominate(
    epsilons: Float[Array, " n"], forth: Float[Array, " n"], back: Float[Array, " n"]
) -> tuple[Array, Array, Array, Array]:
    """Returns p, q, losses and rounding, (2 n + 1,) each, of a :class:`.FinitePair` (P, Q) that dominates a profile.

    The reverse pair dominates the reverse profile. Inside the float64 scope.

    Args:
        epsilons: rising, the first of them 0.
        forth: upper bounds, at most 1, on the delta from P to Q at these epsilons, NaN where unknown.
        back: those from Q to P.

    Formal guarantee: two laws that err from p and q by ``rounding``, relatively, have the given losses, and a profile
    at or above the bounds, both ways, at every epsilon. Masses of the laws sum to one. A slope errs by few units of
    itself, sums over slopes by as many for each, and so does the profile at a point, which the margin covers.
    """
    n = epsilons.shape[0]
    ends = jnp.minimum(jax.lax.cummin(jnp.stack([forth, back]) * (1 + scale_error(MARGIN)), axis=1), 1.0)
    one = jnp.minimum(jnp.min(ends[:, 0]), _least_chord(epsilons, ends))
    sides = jnp.minimum(ends, one).at[:, 0].set(one)
    slopes, rises = jax.vmap(_hull, (None, 0))(epsilons, sides)
    ratios = jnp.exp(epsilons[1:])
    upper, lower = rises[0], rises[1]
    middle = jnp.maximum(1 - one - jnp.sum(slopes), 0.0)
    p = jnp.concatenate([sides[0, -1:], (upper * ratios)[::-1], middle[None], lower, jnp.zeros(1)])
    q = jnp.concatenate([jnp.zeros(1), upper[::-1], middle[None], lower * ratios, sides[1, -1:]])
    infinite = jnp.full(1, jnp.inf)
    losses = jnp.concatenate([infinite, epsilons[:0:-1], -epsilons, -infinite])
    rounding = jnp.full(2 * n + 1, 16 * n * roundoff())
    return p, q, losses, rounding.at[n].add(16 * roundoff() / jnp.maximum(middle, 1e-300))


def _differences(epsilons: Array) -> Array:
    """Returns e^eps_k - e^eps_j at [j, k], right to few units, 1 where k is not above j."""
    gaps = epsilons[None] - epsilons[:, None]
    return jnp.where(gaps > 0, jnp.exp(epsilons)[:, None] * jnp.expm1(gaps), 1.0)


def _least_chord(epsilons: Array, ends: Array) -> Array:
    """Returns the least height at a = 1 of chords between points of H' at e^eps_j and of H at e^eps_k.

    With b = e^eps_j the former is the point (1/b, 1 - 1/b + h'/b) of H. The height is the mean of h' and h with the
    weights (a - 1)/(a b - 1) and b (a - 1)...
    """
    above = jnp.expm1(epsilons[1:])
    a, b = above[None], above[:, None]
    forth, back = ends[0, None, 1:], ends[1, 1:, None]
    # The chord from 1/b to a at 1, where 1 - 1/b + h'/b has the weight (a - 1)/(a - 1/b).
    left, right = a / (a + b / (1 + b)), (b / (1 + b)) / (a + b / (1 + b))
    return jnp.min(left * (b + back) / (1 + b) + right * forth)


def _hull(epsilons: Array, heights: Array) -> tuple[Array, Array]:
    """Returns the size of the hull's first slope, and the rises of the slope at all points but the first.

    A point is on the hull if the largest slope to its left is at most the least slope to its right; the rise is their
    difference. Both neighbours of an edge see the same number.
    """
    n = epsilons.shape[0]
    falls = (heights[:, None] - heights[None]) / _differences(epsilons)
    later = jnp.arange(n)[None] > jnp.arange(n)[:, None]
    # A fall is minus a slope, and 0 beyond the last point.
    after = jnp.maximum(jnp.max(jnp.where(later, falls, 0.0), axis=1), 0.0)
    before = jnp.min(jnp.where(later, falls, jnp.inf), axis=0)
    return after[0], jnp.maximum(before - after, 0.0)[1:]
