"""Certified bounds on delta at many epsilons, from whichever accountant is sharpest, and what follows between them.

As a function of x = e^eps delta is convex and falls, with slopes in [-1, 0]: it is the supremum of the lines 1 - f(a) -
a x, f the trade-off function. So bounds at finitely many places bound it everywhere: from above by chords, from below
by chords prolonged.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import prv, rdp, validation
from jaxacct.precision import UNIT_ROUNDOFF, as_float64, in_float64, is_concrete
from jaxacct.prv.composition import Part, directed_parts
from jaxacct.prv.facts import facts_of
from jaxacct.saddlepoint.solve import delta_bounds

ACCOUNTANTS = ("best", "saddlepoint", "prv")

BATCH = 32
"""Epsilons of one call of the exact accountant: one size, so one compilation."""

MESH_BATCH = 2 * BATCH
"""The same of the accountant by meshes, which composes afresh in each call."""

WIDE = 1e-6
"""Relative gap of delta above which the exact accountant counts as not converged, and meshes are tried as well."""

NOTHING = 1e-13
"""Gap of delta that no mesh needs to close."""

LARGEST_MASS = 0.6
"""Probability of infinite losses up to which a profile is asked for: half as much again is a delta below 1."""

NEAR = 30.0
"""Largest loss up to which all of the losses' range is a profile's."""

POINTS = 2**13
"""Mesh points of the accountant by meshes."""


class Profile(NamedTuple):
    """Bounds on delta at increasing epsilons, each (n,)."""

    epsilon: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


def has_laws(mechanism: Any, steps: Any, relation: str) -> bool:
    """Returns whether the exact accountant knows all losses of a composition."""
    return all(pair.law() is not None for parts in directed_parts(mechanism, steps, relation) for pair, _ in parts)


@in_float64
def certified(mechanism: Any, steps: Any, epsilons: Any, relation: str, accountant: str = "best") -> Profile:
    """Returns the profile at ``epsilons`` (n,), at least 0 and increasing, of what :func:`jaxacct.prv.delta` takes.

    "best" asks the exact accountant where it knows the losses, and meshes (:func:`jaxacct.prv.curve`) where it does
    not or, outside a trace, where it did not converge; both brackets are valid, and so is what they share.
    """
    validation.check_one_of(accountant, "accountant", ACCOUNTANTS)
    concrete = is_concrete(mechanism, steps, epsilons)
    lower, upper = jnp.zeros(np.shape(epsilons)), jnp.ones(np.shape(epsilons))
    exact = accountant == "saddlepoint" or (accountant == "best" and has_laws(mechanism, steps, relation))
    if exact:
        lower, upper = _monotone(*_exact(mechanism, steps, epsilons, relation))
    missed = not exact
    if exact and concrete:
        missed = bool(np.any(np.asarray(upper - lower) > np.maximum(WIDE * np.asarray(upper), NOTHING)))
    if accountant == "prv" or (accountant == "best" and missed):
        found = [
            prv.curve(mechanism, steps, row, relation=relation, points=POINTS).delta
            for row in _rows(epsilons, MESH_BATCH)
        ]
        below, above = (
            jnp.concatenate(rows)[: len(lower)] for rows in zip(*((d.lower, d.upper) for d in found), strict=True)
        )
        lower, upper = _monotone(jnp.maximum(lower, below), jnp.minimum(upper, above))
    return Profile(as_float64(epsilons), lower, upper)


def _monotone(lower: Array, upper: Array) -> tuple[Array, Array]:
    """Returns the bounds that follow as delta falls, whatever those of one place alone are."""
    return jax.lax.cummax(as_float64(lower), reverse=True), jax.lax.cummin(as_float64(upper))


def _exact(mechanism: Any, steps: Any, epsilons: Any, relation: str) -> tuple[Array, Array]:
    """Returns the exact accountant's bounds, the larger of the directions'."""
    count = np.shape(epsilons)[0]
    lower, upper = jnp.zeros(count), jnp.zeros(count)
    for parts in directed_parts(mechanism, steps, relation):
        # One program for all directions, relations and mechanisms of a kind: they differ in numbers only.
        found = [_at(parts, as_float64(row)) for row in _rows(epsilons, BATCH)]
        below, above = (jnp.concatenate(rows)[:count] for rows in zip(*found, strict=True))
        lower, upper = jnp.maximum(lower, below), jnp.maximum(upper, above)
    return lower, upper


@jax.jit
def _at(parts: tuple[Part, ...], epsilons: Array) -> tuple[Array, Array]:
    def bounds(epsilon: Array) -> tuple[Array, Array]:
        found: Any = delta_bounds(parts, epsilon)
        return found.lower, found.upper

    lower, upper = jax.lax.map(bounds, epsilons)
    return lower, upper


def _rows(epsilons: Any, size: int) -> list[Any]:
    """Returns the epsilons in rows of one size, the last of them repeated; traced ones, of a known number, in one."""
    if not is_concrete(epsilons):
        return [epsilons]
    values = np.asarray(epsilons, np.float64)
    return list(np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size))


@in_float64
def largest_epsilon(mechanism: Any, steps: Any, delta: ArrayLike, relation: str) -> Array:
    """Returns about how far a profile has to go for deltas down to ``delta``: an epsilon, ``inf`` where none is known.

    By Rényi divergences, which need not be sharp here. Where losses may be infinite delta ends at their probability:
    outside a trace, the largest finite loss if it is near, or else the epsilon at half as much again, by meshes.
    """
    found = as_float64(rdp.epsilon(mechanism, steps, delta, relation=relation))
    if not is_concrete(mechanism, steps, delta) or np.isfinite(found):
        return found
    directions = directed_parts(mechanism, steps, relation)
    mass = max(float(facts_of(parts).infinite[1]) for parts in directions)
    if not 0 < mass < LARGEST_MASS:
        return found
    largest = max(_largest_loss(parts) for parts in directions)
    if largest < NEAR:
        return as_float64(largest)
    level = max(1.5 * mass, float(np.asarray(delta)))
    return as_float64(prv.epsilon(mechanism, steps, level, relation=relation, points=POINTS).upper)


def _largest_loss(parts: tuple[Part, ...]) -> float:
    """Returns the supremum of the finite losses of a composition."""
    suprema = [jnp.sum(counts * jax.vmap(lambda pair: pair.loss_range()[1])(pairs)) for pairs, counts in parts]
    return float(sum(suprema, jnp.zeros(())))


@in_float64
def infinite_share(mechanism: Any, steps: Any, relation: str) -> Array:
    """Returns a lower bound on the probability of an infinite loss, which delta does not fall below."""
    masses = [facts_of(parts).infinite[0] for parts in directed_parts(mechanism, steps, relation)]
    return functools.reduce(jnp.maximum, masses)


class Lines(NamedTuple):
    """On each of n - 1 segments between neighbouring x = e^eps two lines below delta, by their values at its ends."""

    from_left: tuple[Array, Array]
    """Of the chord of the segment before, prolonged; the first segment has none, and 0 in its place."""
    from_right: tuple[Array, Array]
    """Of the chord of the segment after, prolonged; the last segment has the constant of its end."""
    crossing: Array
    """Where they cross, as a share of the segment's length in x: in [0, 1], one of the ends if they do not."""

    def highest_crossing(self) -> Array:
        """Returns the larger of the two lines where they cross."""
        at = [first + self.crossing * (last - first) for first, last in (self.from_left, self.from_right)]
        return jnp.maximum(*at) * (1 - 16 * UNIT_ROUNDOFF)


def lines_below(profile: Profile) -> Lines:
    """Returns two lines below delta on each segment, of which the larger is within second order of it.

    With d_0, d_1 the values at x_0 < x_1 a convex function is at least d_1 + (x - x_1) (d_1 - d_0)/(x_1 - x_0) beyond
    x_1, which rises in d_1 and falls in d_0; and likewise to the left of two places. Rounded down.
    """
    epsilon, lower, upper = profile
    steps = jnp.diff(epsilon)
    # Lengths in x over the value at the left end, and over that at the right one.
    ahead, back = jnp.expm1(steps), -jnp.expm1(-steps)

    def prolonged(inner: Array, outer: Array, ratio: Array) -> Array:
        line = inner - (outer - inner) * ratio - 16 * UNIT_ROUNDOFF * (inner + outer * ratio)
        # Of a segment longer than e^709 nothing is known but that delta is not negative.
        return jnp.where(jnp.isfinite(line), line, 0.0)

    far_right = prolonged(lower[1:-1], upper[:-2], ahead[1:] / back[:-1])
    far_left = prolonged(lower[1:-1], upper[2:], back[:-1] / ahead[1:])
    zero = jnp.zeros(1)
    left = jnp.concatenate([zero, lower[1:-1]]), jnp.concatenate([zero, far_right])
    right = jnp.concatenate([jnp.maximum(far_left, lower[1:-1]), lower[-1:]]), lower[1:]
    at_left, at_right = left[0] - right[0], left[1] - right[1]
    crosses = at_left * at_right < 0
    share = jnp.where(crosses, at_left / jnp.where(crosses, at_left - at_right, 1.0), 0.0)
    return Lines(left, right, share)
