"""Delta over epsilon of a composition: few compositions, each tilted for a part of the curve."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import roundoff
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Parts, check, directed_parts, facts_of, says_nothing
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.platforms import OUTWARD, outward
from jaxacct.precision import as_float64, in_float64, outside
from jaxacct.programs import compiled
from jaxacct.prv import accountant
from jaxacct.prv.compose import composed
from jaxacct.prv.evaluate import bounds_on_delta, infinite_share
from jaxacct.prv.kernel import LEAST, aimed_at, asked_of
from jaxacct.pytrees import register_dataclass
from jaxacct.question import ForDelta

REFERENCES = 4
"""Compositions of which a curve is made, each tilted for another part of it; every one bounds the whole curve."""


@register_dataclass
@dataclass(frozen=True)
class Curve:
    """A privacy profile: ``delta``, bounds of shape (n,), at each of the ``epsilon`` (n,)."""

    epsilon: Float[Array, " n"]
    delta: Bounds


# A bound holds at its epsilon, which leaves as it came.
OUTWARD[Curve] = lambda found: replace(found, delta=outward(found.delta))


@in_float64
def curve(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike | None = None,
    *,
    relation: Relation = "add_or_remove",
    points: int = accountant.DEFAULT_POINTS,
    method: str | None = None,
) -> Curve:
    """Returns certified bounds on delta at many epsilons of a composition.

    Args:
        mechanism: as of :func:`~jaxacct.prv.epsilon`.
        steps: likewise.
        epsilon (n,): where delta is wanted; negative ones too. By default 100 from 0 to where delta is 1e-12, for which
            the arguments must be concrete.
        relation: as of :func:`~jaxacct.prv.epsilon`.
        points: likewise.
        method: likewise.

    Formal guarantee: each entry as of :func:`~jaxacct.prv.delta`.

    Raises:
        ValueError: a concrete argument out of range, or no epsilon inside a trace.

    >>> from jaxacct import Gaussian
    >>> profile = curve(Gaussian(noise_multiplier=10.0), 100, [0.0, 1.0, 4.0])
    >>> [f"{d:.4f}" for d in profile.delta.upper.tolist()]
    ['0.3829', '0.1269', '0.0000']
    """
    check(mechanism, steps)
    accountant.check_method(method)
    accountant.check_points(points)
    if epsilon is None:
        last = accountant.epsilon(mechanism, steps, 1e-12, relation=relation, points=LEAST).upper
        if isinstance(last, jax.core.Tracer) or not np.isfinite(last):
            raise ValueError("epsilon = None: no range is known for these arguments; give the epsilons that you want.")
        epsilon = np.linspace(0.0, float(last), 100)
    at: Any = as_float64(epsilon) if isinstance(epsilon, jax.core.Tracer) else np.asarray(epsilon, np.float64)
    if at.ndim != 1 or not at.size:
        raise ValueError(f"epsilon of shape {at.shape} is not a list of epsilons: give one axis, at least one entry.")
    directions = directed_parts(mechanism, steps, relation)
    if says_nothing(directions):
        # Nothing is known of them on any mesh.
        nothing = Bounds(lower=0 * at, estimate=0 * at + 0.5, upper=0 * at + 1, converged=np.zeros(at.shape, bool))
        return Curve(epsilon=at, delta=nothing)
    found = [_profile(points, parts, at) for parts in directions]
    return outside(Curve(epsilon=at, delta=_largest(found, at)))


Profile = tuple[Array, Array, Facts]
"""Lower and upper bounds on delta, (n,) each, of one direction, and what is known of it without a mesh."""


@compiled(static=("points",))
def _profile(points: int, parts: Parts, epsilons: Array) -> Profile:
    """Returns bounds on delta at ``epsilons``: the best of compositions tilted for several of them."""
    places = np.linspace(0, len(epsilons) - 1, 2 * REFERENCES + 1)[1::2].round().astype(int)
    facts, goal = facts_of(parts), aimed_at(ForDelta, points)

    def bounded(reference: Array) -> Array:
        found = composed(parts, asked_of(facts, ForDelta(reference), goal), points)
        infinite = infinite_share(facts, found.lost)
        # One epsilon after the other: each is a sum over all frequencies.
        return jax.lax.map(lambda e: bounds_on_delta(found, infinite, e), epsilons)

    every = jax.lax.map(bounded, jnp.sort(epsilons)[places])
    return jnp.max(every[..., 1], axis=0), jnp.min(every[..., 0], axis=0), facts


@compiled
def _largest(directions: list[Profile], epsilons: Array) -> Bounds:
    """Returns the bounds on the largest delta of the directions."""
    # No loss at all: delta is 1 - e^epsilon below 0.
    nothing = jnp.maximum(-jnp.expm1(epsilons), 0.0)

    def of_one(lower: Array, upper: Array, facts: Facts) -> tuple[Array, Array]:
        upper = jnp.where(facts.is_valid & ~jnp.isnan(upper), upper, 1.0)
        lower = jnp.where(facts.is_valid, lower, 0.0)
        closed = ForDelta(jnp.maximum(epsilons, 0.0)).close(Bounds(lower, upper, upper), facts)
        idle = facts.is_valid & facts.is_idle
        return (
            jnp.where(idle, nothing * (1 - 8 * roundoff()), jnp.where(epsilons < 0, lower, closed.lower)),
            jnp.where(idle, nothing * (1 + 8 * roundoff()), jnp.where(epsilons < 0, upper, closed.upper)),
        )

    found = [of_one(*direction) for direction in directions]
    lower, upper = (functools.reduce(jnp.maximum, side) for side in zip(*found, strict=True))
    bounds = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper)
    return replace(bounds, converged=bounds.gap <= ForDelta.tolerance)
