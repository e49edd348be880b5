"""Rare large losses, taken out of the integral: where they are rare they cost it most of its nodes.

Let A be the event that in any run the noise lies beyond a place of its own, from which on the loss is large: that the
run is marked. Then

    delta(eps) = E[(1 - e^(eps - S))+; not A] + E[(1 - e^(eps - S))+; A],

and the first is the integral of a law without those losses: it has moments of all orders, and no reach beyond the
largest loss that is kept. The second lies between P(A) - e^eps Q(A), for (x)+ >= x, and P(A). Where marked losses are
so large that S >= eps whatever the other runs lose, which is at least their infimum, the lower of the two is exact.
So marks begin at eps less the others' infima, or, where that comes first, where P(A) is nothing beside delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxacct.arithmetic import roundoff
from jaxacct.composition import Parts
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.law import Law, law_of
from jaxacct.pytrees import of_each, register_dataclass


class Rare(NamedTuple):
    """What is known of the marked losses of a composition: probabilities that any run is marked, and their errors.

    Attributes:
        p (): P(A), finite losses alone.
        q (): Q(A).
        error (): bound on the relative error of either.
        exact (): eps up to which the sum is at least eps wherever a run is marked.
    """

    p: Array
    q: Array
    error: Array
    exact: Array

    def between(self, epsilon: Array) -> tuple[Array, Array, Array]:
        """Returns what marked losses add to delta(epsilon): at least, how much more at most, and the rounding."""
        scale = jnp.exp(epsilon)
        of_q = jnp.where(self.q > 0, scale * self.q, 0.0)
        more = jnp.where(epsilon <= self.exact, 0.0, jnp.minimum(of_q, self.p))
        rounding = (self.error + 8 * roundoff()) * (self.p + of_q)
        return jnp.maximum(self.p - of_q, 0.0), jnp.where(self.p > 0, more, 0.0), rounding

    def slope(self, epsilon: Array) -> Array:
        """Returns the derivative of the former."""
        of_q = jnp.where(self.q > 0, jnp.exp(epsilon) * self.q, 0.0)
        return jnp.where(self.p > of_q, -of_q, 0.0)


@register_dataclass
@dataclass(frozen=True)
class Kept:
    """A pair without the runs that are marked.

    Attributes:
        pair: the pair.
        place (): where, in the coordinate of its law, marks begin; inf where there are none.
    """

    pair: DominatingPair
    place: ArrayLike

    def law(self) -> Law:
        """Returns the law of the pair, for the losses that are kept."""
        return law_of(self.pair).kept(jnp.asarray(self.place))


def may_be_rare(parts: Parts) -> bool:
    """Returns whether there are losses among them that can be marked."""
    return any(law_of(pairs).has_marks for pairs, _ in parts)


Places = tuple[Array | None, ...]
"""For each part where its rows' marks begin, (m,); None where its losses are never rare."""


def nowhere(parts: Parts) -> Places:
    """Returns places beyond which nothing is."""
    return tuple(jnp.full_like(counts, jnp.inf) if law_of(pairs).has_marks else None for pairs, counts in parts)


def kept(parts: Parts, places: Places) -> Parts:
    """Returns what is composed without the runs that are marked."""
    return tuple(
        (pairs, counts) if place is None else (Kept(pairs, place), counts)  # type: ignore[misc]
        for (pairs, counts), place in zip(parts, places, strict=True)
    )


def places_for(parts: Parts, epsilon: Array, log_mass: Array) -> Places:
    """Returns where marks begin for them to be exact up to ``epsilon``, or to have about that mass of P together.

    Whichever place comes first; none for the former where ``epsilon`` is inf.
    """
    low, least = _infima(parts)
    runs = jnp.log(sum(jnp.sum(counts) for _, counts in parts))
    found: list[Array | None] = []
    for (pairs, counts), each in zip(parts, low, strict=True):
        if not law_of(pairs).has_marks:
            found.append(None)
            continue
        others = least - each
        loss = jnp.where(jnp.isfinite(others), epsilon - others, jnp.inf)
        mass = jnp.full_like(counts, 0.0) + log_mass - runs
        place = of_each(lambda pair, loss, mass: law_of(pair).mark_from(loss, mass), (0, 0, 0))(pairs, loss, mass)
        found.append(jnp.where(counts > 0, place, jnp.inf))
    return tuple(found)


def rare_beyond(parts: Parts, places: Places) -> Rare:
    """Returns what the marked losses of a composition come to."""
    low, least = _infima(parts)
    some = jax.tree.leaves(parts)[0]
    nothing = jnp.zeros((), some.dtype)
    unmarked_p = unmarked_q = finite = worst = nothing
    exact = jnp.full_like(nothing, jnp.inf)
    for (pairs, counts), place, each in zip(parts, places, low, strict=True):
        infinite: Array = of_each(lambda pair: pair.infinite_mass())(pairs)
        finite = finite + _log_none(counts, infinite)
        if place is None:
            continue
        found = of_each(lambda rare: rare.law().marked())(Kept(pairs, place))
        # Of the finite losses, for the rest of a composition has finite ones, too.
        unmarked_p = unmarked_p + _log_none(counts, found.p / (1 - infinite))
        unmarked_q = unmarked_q + _log_none(counts, found.q)
        worst = jnp.maximum(worst, jnp.max(jnp.where(counts > 0, found.error, 0.0)))
        others = least - each
        margin = 64 * roundoff() * (jnp.abs(found.loss) + jnp.abs(others) + jnp.abs(least))
        reached = jnp.where((counts > 0) & jnp.isfinite(place), found.loss + others - margin, jnp.inf)
        exact = jnp.minimum(exact, jnp.min(reached))
    # Each is a sum of logarithms near 0, and its exponential's distance from 1, right to a few units of themselves.
    error = worst * (1 + 1e-9) + 64 * roundoff()
    return Rare(-jnp.expm1(unmarked_p) * jnp.exp(finite), -jnp.expm1(unmarked_q), error, exact)


def _infima(parts: Parts) -> tuple[list[Array], Array]:
    """Returns the infima of the losses, a row each, and that of their sum."""
    low = [of_each(lambda pair: pair.loss_range()[0])(pairs) for pairs, _ in parts]
    # Zero times infinity where nothing is run.
    sums = [jnp.sum(jnp.where(counts > 0, counts * each, 0.0)) for (_, counts), each in zip(parts, low, strict=True)]
    return low, jnp.sum(jnp.stack(sums))


def _log_none(counts: Array, mass: Array) -> Array:
    """Returns the log of the probability that no run falls into what has that mass for one."""
    return jnp.sum(jnp.where(counts > 0, counts * jnp.log1p(-mass), 0.0))
