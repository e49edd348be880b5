"""Certified bounds on delta at many epsilons, from whichever accountant is sharpest, and what follows between them.

As a function of x = e^eps delta is convex and falls, with slopes in [-1, 0]: it is the supremum of the lines 1 - f(a) -
a x, f the trade-off function. So bounds at finitely many places bound it everywhere: from above by chords, from below
by chords prolonged.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import prv, validation
from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.batching import rows
from jaxacct.bounds import Bounds
from jaxacct.certified import with_mesh
from jaxacct.composition import Parts, directed_parts, facts_of
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.precision import as_float64, in_float64, is_concrete
from jaxacct.programs import compiled
from jaxacct.pytrees import of_each
from jaxacct.question import ForDelta
from jaxacct.rdp.divergence import composed
from jaxacct.saddlepoint.accountant import ROW, curve, has_laws

ACCOUNTANTS = ("best", "saddlepoint", "prv")

BATCH = ROW
"""Epsilons of one call of the exact accountant."""

MESH_BATCH = 2 * BATCH
"""The same of the accountant by meshes, which composes afresh in each call: one size, so one compilation."""

WIDE = 1e-6
"""Relative gap of delta above which the exact accountant counts as not converged, and meshes are tried as well."""

NOTHING = 1e-13
"""Gap of delta that no mesh needs to close."""

ORDERS = np.geomspace(0.1, 1e5, 28)
"""Orders by which the end of a profile is placed: for losses that deviate by 1e-4 to 10 to be within a quarter."""


class Profile(NamedTuple):
    """Bounds on delta at increasing epsilons, each (n,)."""

    epsilon: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


@in_float64
def certified(mechanism: Any, steps: Any, epsilons: Any, relation: Relation, accountant: str = "best") -> Profile:
    """Returns the profile at ``epsilons`` (n,), at least 0 and increasing, of what :func:`jaxacct.curve` takes.

    "best" asks the exact accountant where it knows the losses, and meshes (:func:`jaxacct.prv.curve`) where it does
    not or, outside a trace, where it did not converge; both brackets are valid, and so is what they share.
    """
    validation.check_one_of(accountant, "accountant", ACCOUNTANTS)

    def mesh() -> Bounds:
        found = [prv.curve(mechanism, steps, row, relation=relation).delta for row in rows(epsilons, MESH_BATCH)]
        return _monotone(jax.tree.map(lambda *parts: jnp.concatenate(parts)[: np.shape(epsilons)[0]], *found))

    if accountant == "prv" or (accountant == "best" and not has_laws(mechanism, steps, relation)):
        bounds = mesh()
    else:
        bounds = _monotone(curve(mechanism, steps, ForDelta(epsilons), relation))
        if accountant == "best" and is_concrete(mechanism, steps, epsilons):
            # What is open in no more than this no mesh need close.
            small = bounds.upper - bounds.lower <= NOTHING
            bounds = _monotone(with_mesh(replace(bounds, converged=small), mesh, WIDE))
    return Profile(as_float64(epsilons), as_float64(bounds.lower), as_float64(bounds.upper))


def _monotone(bounds: Bounds) -> Bounds:
    """Returns the bounds that follow as delta falls, whatever those of one place alone are."""
    if is_concrete(bounds):  # of any length, and without a program for each
        least, most = np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)
        return replace(bounds, lower=np.maximum.accumulate(least[::-1])[::-1], upper=np.minimum.accumulate(most))
    lower, upper = as_float64(bounds.lower), as_float64(bounds.upper)
    return replace(bounds, lower=jax.lax.cummax(lower, reverse=True), upper=jax.lax.cummin(upper))


@in_float64
def largest_epsilon(mechanism: Any, steps: Any, delta: ArrayLike, relation: Relation) -> Array:
    """Returns about how far a profile has to go for deltas down to ``delta``: an epsilon, no number if none is known.

    By Chernoff's bound of finite losses, at a few orders; it need not be sharp here. Of infinite losses delta has their
    probability besides, everywhere. Where there are none Rényi divergences have the moments, of all directions at once.
    """
    directions, level = directed_parts(mechanism, steps, relation), as_float64(delta)
    if all(type(pairs).infinite_mass is DominatingPair.infinite_mass for parts in directions for pairs, _ in parts):
        return _last_of_all(directions, as_float64(composed(mechanism, steps, ORDERS + 1, relation)), level)
    return functools.reduce(jnp.maximum, [_last(parts, level) for parts in directions])


@compiled
def _last_of_all(directions: list[Parts], curve: Array, delta: Array) -> Array:
    """Returns how far the profiles of all directions go, given the largest Rényi divergences of them."""
    return functools.reduce(jnp.maximum, [_end(parts, curve * ORDERS, delta) for parts in directions])


@compiled
def _last(parts: Parts, delta: Array) -> Array:
    """Returns how far the profile of one direction goes."""
    log_moments = [jnp.where(k[:, None] > 0, k[:, None] * of_each(_cumulants)(pairs), 0.0) for pairs, k in parts]
    return _end(parts, functools.reduce(jnp.add, [jnp.sum(rows, axis=0) for rows in log_moments]), delta)


def _end(parts: Parts, log_moments: Array, delta: Array) -> Array:
    """Returns the least epsilon over the orders t at which E[e^(tY)] leaves no more than delta.

    Beyond epsilon e^(-ty) (1 - e^(eps - y)) is at most e^(-t eps) t^t/(1+t)^(1+t), which is by what a moment bounds
    delta.
    """
    log_most = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)
    end: Array = jnp.min((log_moments + log_most - jnp.log(delta)) / ORDERS)
    highest = facts_of(parts).suprema
    return jnp.maximum(end if highest is None else jnp.minimum(end, highest[1]), 0.0)


def _cumulants(pair: DominatingPair) -> Array:
    return pair.cumulant(jnp.asarray(ORDERS))


@in_float64
def infinite_share(mechanism: Any, steps: Any, relation: Relation) -> Array:
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
        rises = [(first, self.crossing * (last - first)) for first, last in (self.from_left, self.from_right)]
        # What rounds is the terms, beside which their sum may be small; and where they cross moves by 4 u of itself.
        return jnp.maximum(
            *(first + rise - 16 * roundoff() * (jnp.abs(first) + jnp.abs(rise)) for first, rise in rises)
        )


def lines_below(profile: Profile) -> Lines:
    """Returns two lines below delta on each segment, of which the larger is within second order of it.

    With d_0, d_1 the values at x_0 < x_1 a convex function is at least d_1 + (x - x_1) (d_1 - d_0)/(x_1 - x_0) beyond
    x_1, which rises in d_1 and falls in d_0; and likewise to the left of two places. Rounded down.
    """
    epsilon, lower, upper = profile
    steps = jnp.diff(epsilon)
    # Of a ratio of two lengths, and what it is multiplied by.
    margin = 4 * arithmetic().function + 4 * roundoff() * jnp.max(steps)
    # Lengths in x over the value at the left end, and over that at the right one.
    ahead, back = jnp.expm1(steps), -jnp.expm1(-steps)

    def prolonged(inner: Array, outer: Array, ratio: Array) -> Array:
        line = inner - (outer - inner) * ratio - margin * (inner + outer * ratio)
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
