"""Rare losses, taken out of the integral: where they are rare they cost it most of its nodes.

A run is marked where its noise lies beyond a place, where losses are large and rare, or small. With A the event that a
run is marked where losses are large, and B that none is so but one where they are small,

    delta(eps) = E[(1 - e^(eps - S))+; no mark] + E[(1 - e^(eps - S))+; A] + E[(1 - e^(eps - S))+; B],

and the first is the integral of a law without those losses: it has moments of all orders, and no reach beyond the
losses that are kept. The second lies between P(A) - e^eps Q(A), for (x)+ >= x, and P(A), where of A only what P has
mass on counts for Q: other runs may lose -inf. Where marked losses are so large that S >= eps whatever the other runs
lose, which is at least their infimum, the lower of the two is exact. The
third lies between 0 and P(B), and is 0 where marked losses are so small that S <= eps though the other runs lose their
suprema. So marks begin where that is so, or, where it comes first, where they are nothing beside delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import FLOAT64, arithmetic, roundoff
from jaxacct.composition import Part, Parts
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.law import Law, Marked, law_of
from jaxacct.pytrees import of_each, register_dataclass

UNITS = 1024
"""Units of roundoff by which Q's mass where P has none may err, relative to itself: a sum of so many atoms."""


class Rare(NamedTuple):
    """What is known of the marked losses of a composition.

    Attributes:
        p (), q (): probabilities that any run is marked where losses are large, all losses finite, those of -inf
            being none that P has.
        small (): P's probability that any run is marked where losses are small.
        error (): bound on the relative errors of these.
        above (): eps up to which the sum is at least eps wherever a run is marked where losses are large.
        below (): eps from which on it is at most eps wherever one is marked where losses are small.
    """

    p: Array
    q: Array
    small: Array
    error: Array
    above: Array
    below: Array

    @property
    def there(self) -> Array:
        """Whether anything is marked."""
        return (self.p > 0) | (self.small > 0)

    def between(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """Returns what marked losses add to delta(epsilon): at least, how much more at most, and the rounding."""
        of_q = jnp.where(self.q > 0, jnp.exp(epsilon) * self.q, 0.0)
        more = jnp.where(epsilon <= self.above, 0.0, jnp.minimum(of_q, self.p))
        more = more + jnp.where(epsilon >= self.below, 0.0, self.small * (1 + self.error))
        return jnp.maximum(self.p - of_q, 0.0), more, (self.error + 8 * roundoff()) * (self.p + of_q)

    def value_and_slope(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns the least that they add, and its derivative."""
        of_q = jnp.where(self.q > 0, jnp.exp(epsilon) * self.q, 0.0)
        return jnp.maximum(self.p - of_q, 0.0), jnp.where(self.p > of_q, -of_q, 0.0)


@register_dataclass
@dataclass(frozen=True)
class Kept:
    """A pair without the losses that are marked."""

    pair: DominatingPair
    marked: Marked

    def law(self) -> Law:
        """Returns the law of the pair, for the losses that are kept."""
        return law_of(self.pair).kept(self.marked)


def may_be_rare(parts: Parts) -> bool:
    """Returns whether there are losses among them that can be marked: in float64, for pairs' programs would double."""
    return any(map(_has_marks, parts))


def _has_marks(part: Part) -> bool:
    return arithmetic() == FLOAT64 and law_of(part[0]).has_marks


Places = tuple[Array | None, ...]
"""For each part where its rows' marks begin, (m,); None where its losses are never rare."""


def nowhere(parts: Parts) -> Places:
    """Returns places beyond which nothing is."""
    return tuple(jnp.full_like(part[1], jnp.inf) if _has_marks(part) else None for part in parts)


def kept(parts: Parts, places: Places) -> Parts:
    """Returns what is composed without the runs that are marked."""

    def without(pair: DominatingPair, place: Array) -> Kept:
        return Kept(pair, law_of(pair).marked(place))

    return tuple(
        (pairs if place is None else of_each(without, (0, 0))(pairs, place), counts)
        for (pairs, counts), place in zip(parts, places, strict=True)
    )


def places_for(parts: Parts, high: Array, low: Array, log_mass: Array) -> Places:
    """Returns where marks begin for them to be known, or to have about that mass of P together, where that comes first.

    Known are large losses for eps up to ``high`` (if not inf), small ones for eps from ``low`` on (if not -inf).
    """
    infima, suprema, (least, most) = _ends(parts)
    runs = jnp.log(sum(jnp.sum(counts) for _, counts in parts))
    found: list[Array | None] = []
    for (pairs, counts), lowest, highest in zip(parts, infima, suprema, strict=True):
        if not _has_marks((pairs, counts)):
            found.append(None)
            continue
        large, small = high - (least - lowest), low - (most - highest)
        large = jnp.where(jnp.isnan(large), jnp.inf, large)
        small = jnp.where(jnp.isnan(small), -jnp.inf, small)
        mass = jnp.full_like(counts, 0.0) + log_mass - runs
        place = of_each(lambda pair, *at: law_of(pair).mark_from(*at), (0, 0, 0, 0))(pairs, large, small, mass)
        found.append(jnp.where(counts > 0, place, jnp.inf))
    return tuple(found)


def rare_beyond(parts: Parts) -> Rare:
    """Returns what the losses come to that are marked, and left out, of what is composed."""
    infima, suprema, (least, most) = _ends(parts)
    nothing = jnp.zeros_like(least)
    none_large = none_large_q = none_small = finite = present = worst = off = nothing
    above, below = jnp.full_like(nothing, jnp.inf), jnp.full_like(nothing, -jnp.inf)
    for (pairs, counts), lowest, highest in zip(parts, infima, suprema, strict=True):
        infinite: Array = of_each(lambda pair: _pair_of(pair).infinite_mass())(pairs)
        finite = finite + _log_none(counts, infinite)
        if not isinstance(pairs, Kept):
            # A run that P cannot have made has no share in what Q says of large losses beside it.
            missing = jnp.clip(of_each(lambda pair: law_of(pair).scan().missing)(pairs), 0.0, 1 - roundoff())
            present = present + _log_none(counts, missing)
            off = off + UNITS * roundoff() * jnp.sum(jnp.where(counts > 0, counts * missing / (1 - missing), 0.0))
            continue
        found = pairs.marked
        # Of the finite losses, for the rest of a composition has finite ones, too.
        p, large = found.p / (1 - infinite), found.are_large
        none_large = none_large + _log_none(counts, jnp.where(large, p, 0.0))
        none_large_q = none_large_q + _log_none(counts, jnp.where(large, found.q, 0.0))
        none_small = none_small + _log_none(counts, jnp.where(large, 0.0, p))
        worst = jnp.maximum(worst, jnp.max(jnp.where(counts > 0, found.error, 0.0)))
        there = (counts > 0) & jnp.isfinite(found.place)
        up, down = found.loss + (least - lowest), found.loss + (most - highest)
        margins = 64 * roundoff() * (jnp.abs(found.loss)[None] + jnp.stack([jnp.abs(least), jnp.abs(most)])[:, None])
        above = jnp.minimum(above, jnp.min(jnp.where(there & large, up - margins[0], jnp.inf)))
        below = jnp.maximum(below, jnp.max(jnp.where(there & ~large, down + margins[1], -jnp.inf)))
    # NaN, of infinite ends, is not known.
    above, below = jnp.where(jnp.isnan(above), -jnp.inf, above), jnp.where(jnp.isnan(below), jnp.inf, below)
    # Each is a sum of logarithms near 0, and its exponential's distance from 1, right to a few units of themselves.
    error = 2 * worst + 64 * roundoff() + off
    p, q = -jnp.expm1(none_large) * jnp.exp(finite), -jnp.expm1(none_large_q) * jnp.exp(present)
    return Rare(p, q, -jnp.expm1(none_small), error, above, below)


def _pair_of(pair: DominatingPair | Kept) -> DominatingPair:
    return pair.pair if isinstance(pair, Kept) else pair


def _ends(parts: Parts) -> tuple[list[Array], list[Array], tuple[Array, Array]]:
    """Returns the infima and suprema of the losses, rows for each part, and those of their sum."""
    ranges = [of_each(lambda pair: _pair_of(pair).loss_range())(pairs) for pairs, _ in parts]

    def of_sum(side: int) -> Array:
        # Zero times infinity where nothing is run.
        each = [
            jnp.sum(jnp.where(counts > 0, counts * ends[side], 0.0))
            for (_, counts), ends in zip(parts, ranges, strict=True)
        ]
        return jnp.sum(jnp.stack(each))

    return [low for low, _ in ranges], [high for _, high in ranges], (of_sum(0), of_sum(1))


def _log_none(counts: Array, mass: Array) -> Array:
    """Returns the log of the probability that no run falls into what has that mass for one."""
    return jnp.sum(jnp.where(counts > 0, counts * jnp.log1p(-mass), 0.0))
