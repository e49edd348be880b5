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

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.composition import Part, Parts
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.law import Law, Marked, Nodes, law_of
from jaxacct.pytrees import each, register_dataclass

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

    def shares(self, epsilon: Array) -> tuple[Array, Array, Array, Array]:
        """Returns what marked losses add to delta(epsilon).

        At least; how much that falls with epsilon; how much more they add at most; and the rounding of these.
        """
        of_q = jnp.where(self.q > 0, jnp.exp(epsilon) * self.q, 0.0)
        least = jnp.maximum(self.p - of_q, 0.0)
        more = jnp.where(epsilon <= self.above, 0.0, jnp.minimum(of_q, self.p))
        more = more + jnp.where(epsilon >= self.below, 0.0, self.small * (1 + self.error))
        return least, jnp.where(least > 0, of_q, 0.0), more, (self.error + 8 * roundoff()) * (self.p + of_q)

    def between(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """Returns what marked losses add to delta(epsilon): at least, how much more at most, and the rounding."""
        least, _, more, off = self.shares(epsilon)
        return least, more, off


def with_rare(log_delta: Array, rare: Rare | None, epsilon: Array) -> Array:
    """Returns an upper bound on log delta(eps) together with what is marked, given one on it without.

    Both exponentials and the sum are right to 24 units; the logarithm is, to eight of itself.
    """
    if rare is None:
        return log_delta
    whole = jnp.exp(log_delta) + sum(rare.between(epsilon)) + jnp.finfo(log_delta.dtype).tiny
    found = jnp.log(whole)
    return found + 24 * roundoff() * (1 + jnp.abs(found))


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
    """Returns whether there are losses among them that can be marked, and programs that may be so long."""
    return any(map(_has_marks, parts))


def _has_marks(part: Part) -> bool:
    return arithmetic().leaves_out_rare and law_of(part[0]).has_marks


Marks = tuple[Marked | None, ...]
"""For each part what is marked of its rows; None where its losses are never rare."""


def nowhere(parts: Parts) -> Marks:
    """Returns that nothing is marked."""
    no = tuple(jnp.full_like(counts, 0.0) for _, counts in parts)
    return tuple(
        Marked(zero + jnp.inf, zero, zero, zero, zero, zero) if _has_marks(part) else None
        for zero, part in zip(no, parts, strict=True)
    )


def kept(parts: Parts, marks: Marks) -> Parts:
    """Returns what is composed without the runs that are marked."""
    return tuple(
        (pairs if marked is None else Kept(pairs, marked), counts)  # type: ignore[misc]
        for (pairs, counts), marked in zip(parts, marks, strict=True)
    )


class Ends(NamedTuple):
    """For each part the infima and the suprema of its losses, and what all the other runs' come to beside one of it."""

    rows: list[tuple[Array, Array]]
    others: list[tuple[Array, Array]]


def ends_of(parts: Parts) -> Ends:
    """Returns where losses end; where what others come to is not known, NaN."""
    rows = [each(part, lambda pair: pair.loss_range()) for part in parts]
    # Zero times infinity where nothing is run.
    each_part = [
        jnp.stack([jnp.sum(jnp.where(counts > 0, counts * end, 0.0)) for end in ends])
        for (_, counts), ends in zip(parts, rows, strict=True)
    ]
    least, most = sum(each_part[1:], each_part[0])
    return Ends(rows, [(least - low, most - high) for low, high in rows])


def marks_for(parts: Parts, ends: Ends, high: Array, low: Array, log_mass: Array) -> Marks:
    """Returns what is marked for it to be known, or to have about that mass of P together, where that comes first.

    Known are large losses for eps up to ``high`` (if not inf), small ones for eps from ``low`` on (if not -inf).
    """
    runs = jnp.log(sum(jnp.sum(counts) for _, counts in parts))

    def marks(part: Part, least: Array, most: Array) -> Marked | None:
        if not _has_marks(part):
            return None

        def of_row(pair: DominatingPair, counts: Array, least: Array, most: Array) -> Marked:
            large, small = high - least, low - most
            large = jnp.where(jnp.isnan(large), jnp.inf, large)
            small = jnp.where(jnp.isnan(small), -jnp.inf, small)
            law = law_of(pair)
            place = law.mark_from(large, small, log_mass - runs)
            return law.marked(jnp.where(counts > 0, place, jnp.inf))

        found: Marked = each(part, of_row, part[1], least, most)
        return found

    return tuple(marks(part, *others) for part, others in zip(parts, ends.others, strict=True))


def rare_beyond(parts: Parts, marks: Marks, scans: list[Nodes], ends: Ends) -> Rare:
    """Returns what the losses come to that are marked, and left out, of what is composed; ``scans`` are of the rest."""
    u, worst, off = roundoff(), jnp.zeros(()), jnp.zeros(())
    # Logs of probabilities: that no run is marked, where losses are large, under P and Q, and where they are small;
    # that no loss is infinite, and that P can have made every run that is not of these parts.
    none, finite, present = jnp.zeros(3), jnp.zeros(()), jnp.zeros(())
    above, below = jnp.full((), jnp.inf), jnp.full((), -jnp.inf)

    def log_none(counts: Array, mass: Array) -> Array:
        counts = jnp.reshape(counts, (-1, 1))
        logs = jnp.log1p(-jnp.reshape(mass, (counts.shape[0], -1)))
        return jnp.sum(jnp.where(counts > 0, counts * logs, 0.0), axis=0)

    for part, marked, scan, (lowest, highest), (least, most) in zip(parts, marks, scans, *ends, strict=True):
        counts, infinite = part[1], None
        if type(part[0]).infinite_mass is not DominatingPair.infinite_mass:
            infinite = each(part, lambda pair: pair.infinite_mass())
            finite = finite + log_none(counts, infinite)[0]
        if marked is None:
            # A run that P cannot have made has no share in what Q says of large losses beside it.
            missing = jnp.clip(scan.missing, 0.0, 1 - u)
            present = present + log_none(counts, missing)[0]
            off = off + UNITS * u * jnp.sum(jnp.where(counts > 0, counts * missing / (1 - missing), 0.0))
            continue
        # Of the finite losses, for the rest of a composition has finite ones, too.
        p, q, large = marked.p if infinite is None else marked.p / (1 - infinite), marked.q, marked.are_large
        none = none + log_none(counts, jnp.stack([large * p, large * q, (1 - large) * p], axis=-1))
        there = (counts > 0) & jnp.isfinite(marked.place)
        worst = jnp.maximum(worst, jnp.max(jnp.where(counts > 0, marked.error, 0.0)))
        # The sum of all is right to units of itself, and so is it less one's own.
        size = jnp.abs(marked.loss)
        up = marked.loss + least - 64 * u * (size + jnp.abs(least) + jnp.abs(lowest))
        down = marked.loss + most + 64 * u * (size + jnp.abs(most) + jnp.abs(highest))
        is_large = large > 0
        above = jnp.minimum(above, jnp.min(jnp.where(there & is_large, up, jnp.inf)))
        below = jnp.maximum(below, jnp.max(jnp.where(there & ~is_large, down, -jnp.inf)))
    # NaN, of infinite ends, is not known.
    above, below = jnp.where(jnp.isnan(above), -jnp.inf, above), jnp.where(jnp.isnan(below), jnp.inf, below)
    # Each is a sum of logarithms near 0, and its exponential's distance from 1, right to a few units of themselves.
    p, q, small = -jnp.expm1(none)
    return Rare(p * jnp.exp(finite), q * jnp.exp(present), small, 2 * worst + 64 * u + off, above, below)
