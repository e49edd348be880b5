"""From a bounded privacy profile to a pair that has it: the hull of finitely many points.

Let H(a) = sup over events E of P(E) - a Q(E), and H' the same from Q to P. H is convex, falls, and H(a) = 1 - a + a
H'(1/a). So bounds on both at points from a = 1 on bound both everywhere: between points by their chords, and beyond the
last by its value. The largest convex function below the points of H from 1 on, with the last value at infinity, and the
same for H', are the two halves of the profile of one finite pair: a line H'(b) = x + y b is the line H(a) = 1 - a + x a
+ y. Where the slope of H rises, at a > 1, the pair has an outcome of ratio a, with the rise for its Q-mass; where that
of H' rises, at b, one of ratio 1/b with the rise for its P-mass. What is left of H after the last point is P's mass at
infinity, and what is left of H' is Q's mass at 0: so H(0) = 1 is a point of the hull. The rest has the ratio 1. All
masses but that one come of sums of positive numbers, so that no rare mass is lost to cancellation.

The halves meet in H(1) = H'(1), lowered to the lowest chord across it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.numerics.arithmetic import roundoff, scale_error

MARGIN = 1e-11
"""Relative error by which bounds are raised, so that the pair's profile is above them in spite of its rounding."""


def dominate(
    epsilons: Float[Array, " n"], forth: Float[Array, " n"], back: Float[Array, " n"]
) -> tuple[Array, Array, Array, Array]:
    """Returns p, q, losses and rounding, (2 n + 1,) each, of a :class:`.FinitePair` that dominates a profile.

    The reverse pair dominates the reverse profile. Inside the float64 scope.

    Args:
        epsilons: rising, the first of them 0.
        forth: upper bounds on the delta from P to Q at these epsilons; 1 where it is unknown.
        back: those from Q to P.

    Formal guarantee: two laws that err from p and q by ``rounding``, relatively, have the losses, and a profile at or
    above the bounds, both ways, at every epsilon. Take for them the slopes as computed: then all masses but the middle
    one are exact but for a rounding, and scaling one half by 1 + 4 n units makes the halves meet. The middle one errs
    by some units of one; take it as computed, too, and divide both laws by their sum, which is the same. The profile at
    a point, a sum of slopes times gaps, each right to a few units, is off by as many for each of them.
    """
    n, u = epsilons.shape[0], roundoff()
    ends = jnp.minimum(jax.lax.cummin(jnp.stack([forth, back]) * (1 + scale_error(MARGIN)), axis=1), 1.0)
    one = jnp.minimum(jnp.min(ends[:, 0]), _lowest_chord(epsilons, ends))
    ends = jnp.minimum(ends, one).at[:, 0].set(one)
    falls, rises = jax.vmap(_hull, (None, 0))(epsilons, ends)
    ratios = jnp.exp(epsilons[1:])
    middle = jnp.maximum(1 - one - jnp.sum(falls), 64 * u)
    p = jnp.concatenate([ends[0, -1:], (rises[0] * ratios)[::-1], middle[None], rises[1], jnp.zeros(1)])
    q = jnp.concatenate([jnp.zeros(1), rises[0, ::-1], middle[None], rises[1] * ratios, ends[1, -1:]])
    infinite = jnp.full(1, jnp.inf)
    losses = jnp.concatenate([infinite, epsilons[:0:-1], -epsilons, -infinite])
    return p, q, losses, jnp.full(2 * n + 1, (16 * n + 128) * u)


def _lowest_chord(epsilons: Array, ends: Array) -> Array:
    """Returns the least height at a = 1 of chords from points of H' to points of H.

    A point (1 + b, h') of H' is the point (1/(1 + b), (b + h')/(1 + b)) of H.
    """
    above = jnp.expm1(epsilons[1:])
    a, before = above[None], (above / (1 + above))[:, None]
    back = (above[:, None] + ends[1, 1:, None]) / (1 + above[:, None])
    return jnp.min((a * back + before * ends[0, None, 1:]) / (a + before))


def _hull(epsilons: Array, heights: Array) -> tuple[Array, Array]:
    """Returns by how much the hull falls from its first point on, and the rises (n - 1,) of its slope at all others.

    A point is on the hull if the least fall to its left is above the largest to its right. Points at which they differ
    by little are left out, by which the hull grows: then both ends of an edge see the same number for it.
    """
    little = 1e-7
    n = epsilons.shape[0]
    gaps = epsilons[None] - epsilons[:, None]
    is_later = jnp.arange(n)[None] > jnp.arange(n)[:, None]
    widths = jnp.exp(epsilons)[:, None] * jnp.expm1(jnp.where(is_later, gaps, 1.0))
    falls = (heights[:, None] - heights[None]) / widths

    def on_both_sides(kept: Array) -> tuple[Array, Array]:
        after = jnp.max(jnp.where(is_later & kept[None], falls, 0.0), axis=1)
        return after, jnp.min(jnp.where(is_later & kept[:, None], falls, jnp.inf), axis=0)

    after, before = on_both_sides(jnp.ones(n, bool))
    kept = before - after > little * before
    after, before = on_both_sides(kept.at[0].set(True))
    return after[0], jnp.where(kept, jnp.maximum(before - after, 0.0), 0.0)[1:]
