"""What is known of a composition without composing, and how that closes a bracket at the ends of the range.

The loss of a composition is at most the sum S of its losses' suprema, if it is finite. So for a mass m of infinite
losses delta(eps) = m from eps = S on, delta(inf) = m, and epsilon(delta) <= S for every delta >= m. At delta = 0, if
m = 0, epsilon is S itself: the pure guarantee. Below S delta is above 0, however little float64 can hold of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxacct.bounds import Bounds
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms.protocol import is_count
from jaxacct.precision import TINY, UNIT_ROUNDOFF, log_complement
from jaxacct.prv.composition import Part

NEGLIGIBLE = 1e-9
"""Relative width below which a bracket has converged by any standard, and its middle is an estimate.

So has one below the smallest normal float64, within which XLA tells no numbers apart.
"""


class Known(NamedTuple):
    """What is known of a pair, or of several with a leading axis."""

    is_valid: Bool[Array, ""]
    infinite_mass: Float[Array, ""]
    infinite_mass_error: Float[Array, ""]
    """Bound on its relative error."""
    supremum: tuple[Array, Array]
    """Bounds (lower, upper) on that of the finite losses."""


class Facts(NamedTuple):
    """What is known of a composition without composing; bounds are pairs (lower, upper)."""

    is_valid: Bool[Array, ""]
    """Whether all counts, and the pairs that are run, are in range."""
    is_idle: Bool[Array, ""]
    """Whether nothing is run at all."""
    infinite: tuple[Array, Array]
    """Bounds on the probability of an infinite loss."""
    supremum: tuple[Array, Array]
    """Bounds on the supremum of the finite losses' sum."""


def known_of(pair: DominatingPair) -> Known:
    """Returns what is known of one pair."""
    return Known(pair.is_valid(), pair.infinite_mass(), pair.infinite_mass_error(), pair.supremum())


def facts_of(parts: tuple[Part, ...]) -> Facts:
    """Returns the facts of what is composed."""
    return combined([jax.vmap(known_of)(pairs) for pairs, _ in parts], [steps for _, steps in parts])


def combined(known: Sequence[Known], counts: Sequence[Array]) -> Facts:
    """Returns the facts of a composition: each entry knows the pairs of a part, (m,), whose counts are (m,)."""
    return Facts(
        _all_valid(known, counts),
        jnp.all(jnp.stack([jnp.all(steps == 0) for steps in counts])),
        _infinite_mass(known, counts),
        _supremum(known, counts),
    )


def _all_valid(known: Sequence[Known], counts: Sequence[Array]) -> Array:
    valid = jnp.asarray(True)
    for of_pairs, steps in zip(known, counts, strict=True):
        valid &= jnp.all((of_pairs.is_valid | (steps == 0)) & is_count(steps))
    return valid


def _infinite_mass(known: Sequence[Known], counts: Sequence[Array]) -> tuple[Array, Array]:
    steps = jnp.concatenate(list(counts))
    mass, error = (
        jnp.concatenate([leaf(of_pairs) for of_pairs in known])
        for leaf in (lambda row: row.infinite_mass, lambda row: row.infinite_mass_error)
    )
    run = steps > 0
    total = -jnp.expm1(jnp.sum(jnp.where(run, steps * log_complement(mass), 0.0)))
    # The masses', their logarithms', products' and sum's: relative errors of positive terms only. Of a single run it is
    # what is given.
    single = jnp.sum(jnp.where(run, steps, 0.0)) == 1
    total = jnp.where(single, jnp.sum(jnp.where(run, mass, 0.0)), total)
    own = jnp.max(jnp.where(run, error, 0.0)) * (1 + 1e-9)
    off = own + jnp.where(single, 0.0, (40 + 2 * len(steps)) * UNIT_ROUNDOFF)
    return jnp.maximum(total * (1 - off), 0.0), jnp.minimum(total * (1 + off), 1.0)


def _supremum(known: Sequence[Known], counts: Sequence[Array]) -> tuple[Array, Array]:
    def total(side: int, sign: float) -> Array:
        terms = jnp.concatenate(
            [
                jnp.where(steps > 0, steps * of_pairs.supremum[side], 0.0)
                for of_pairs, steps in zip(known, counts, strict=True)
            ]
        )
        # Products and sum round once each, relative to the terms.
        moved = jnp.sum(terms) + sign * 2 * len(terms) * UNIT_ROUNDOFF * jnp.sum(jnp.abs(terms))
        # One end that is not known leaves that of the sum unknown; else one that is infinite makes it infinite.
        unknown = jnp.any(jnp.isnan(terms) | (terms == -jnp.inf))
        return jnp.where(unknown, sign * jnp.inf, jnp.where(jnp.any(terms == jnp.inf), jnp.inf, moved))

    return total(0, -1.0), total(1, 1.0)


def close_epsilon(bounds: Bounds, facts: Facts, delta: Array) -> Bounds:
    """Returns a bracket of epsilon at ``delta`` (), closed by the supremum, and exact where nothing is run."""
    least, most = facts.infinite
    low, high = (jnp.maximum(end, 0.0) for end in facts.supremum)
    valid = facts.is_valid & (delta >= 0) & (delta < 1)
    upper = jnp.where(delta >= most, jnp.minimum(bounds.upper, high), bounds.upper)
    lower = jnp.where(delta == 0, jnp.maximum(bounds.lower, low), bounds.lower)
    lower = jnp.where(delta < least, jnp.inf, lower)
    return _settled(bounds, lower, upper, valid, facts.is_idle, jnp.inf)


def close_delta(bounds: Bounds, facts: Facts, epsilon: Array) -> Bounds:
    """Returns a bracket of delta at ``epsilon`` (), closed by the mass of infinite losses, exact where nothing is run.

    The upper end is not below the smallest normal float64 unless delta is 0, for the truth may be.
    """
    least, most = facts.infinite
    valid = facts.is_valid & (epsilon >= 0)
    beyond = (epsilon >= facts.supremum[1]) | (epsilon == jnp.inf)
    lower = jnp.where(epsilon == jnp.inf, least, jnp.maximum(bounds.lower, least))
    upper = jnp.where(beyond, jnp.minimum(most, 1.0), jnp.maximum(bounds.upper, TINY))
    return _settled(bounds, jnp.minimum(lower, upper), upper, valid, facts.is_idle, 1.0)


def _settled(bounds: Bounds, lower: Array, upper: Array, valid: Array, idle: Array, worst: float) -> Bounds:
    """Returns the bracket with these ends, 0 where nothing is run, and the whole range where arguments are wrong."""
    valid = valid & (idle | (lower <= upper))  # nor NaN
    lower = jnp.where(valid & ~idle, lower, 0.0)
    upper = jnp.where(valid, jnp.where(idle, 0.0, upper), worst)
    narrow = (upper < jnp.inf) & (upper - lower <= NEGLIGIBLE * upper)
    closed = valid & ((lower == upper) | narrow | (upper <= TINY))
    middle = jnp.where(lower == upper, upper, lower + (upper - lower) / 2)
    estimate = jnp.where(closed & jnp.isnan(bounds.estimate), middle, jnp.clip(bounds.estimate, lower, upper))
    return replace(bounds, lower=lower, estimate=estimate, upper=upper, converged=valid & (bounds.converged | closed))
