"""Compositions as measures on an equidistant lattice, tilted alike: what adaptive uses of them are computed from.

The spectrum of a sum (:mod:`.compose`) is taken whole and inverted. An error of its values of norm e in L2, over the
root of the number n of points, is one of the weights, so in L1 it is at most e (Cauchy and Schwarz); the inverse
transform adds its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.arithmetic import roundoff
from jaxacct.composition import Facts, Parts, facts_of
from jaxacct.programs import compiled
from jaxacct.prv.compose import composed, losses_of, masses_of, transform_error
from jaxacct.prv.evaluate import infinite_share
from jaxacct.prv.kernel import aimed_at, asked_of
from jaxacct.pytrees import register_dataclass
from jaxacct.question import ForDelta, Question

NARROW = 1e-9
"""The relative error that windows are chosen for: what they leave out comes back elsewhere, and is seen. Tightness."""


@register_dataclass
@dataclass(frozen=True)
class LossLattice:
    """A measure above a loss and one below it: masses ``weights exp(log_mass - order y)`` at ``y = start + i mesh``.

    With T the measure that is stood for and E some positive measure of tilted mass at most ``slack exp(log_mass)``,
    T is at most the masses and E above, in the order of :mod:`jaxacct.prv`; below, the masses are at most T and E.

    Attributes:
        weights (2, n): tilted masses above and below, nonnegative, that sum to about 1.
        log_mass (2,), slack (2,): see above.
        log_total (2,): upper bound on the log of T's tilted mass.
        shift (2,): bound on how far the losses y are from those they stand for.
        infinite (2,): probability of an infinite loss, at most and at least.
        rounding: bound on the errors of ``log_mass`` and ``log_total``.
        start, mesh, order: scalars; the tilt is common to both.
    """

    weights: Float[Array, "2 n"]
    log_mass: Float[Array, " 2"]
    slack: Float[Array, " 2"]
    log_total: Float[Array, " 2"]
    shift: Float[Array, " 2"]
    infinite: Float[Array, " 2"]
    rounding: Float[Array, ""]
    start: Float[Array, ""]
    mesh: Float[Array, ""]
    order: Float[Array, ""]


@compiled(static=("points",))
def lattice(points: int, parts: Parts, question: Question, order: Array) -> LossLattice:
    """Returns a composition, tilted by ``order``, as it suits ``question``; losses have ``points`` points each."""
    facts = facts_of(parts)
    goal = np.float64(NARROW), np.float64(0.0)
    asked = asked_of(facts, question, goal)._replace(order=order, is_whole=True)
    found = composed(parts, asked, points)
    real, imaginary = found.spectrum
    size = 2 * (real.shape[1] - 1)
    weights = jnp.fft.irfft(real - 1j * imaginary, size)
    off = jnp.sqrt(2 * jnp.sum(found.off**2, axis=1))
    # The inverse's own error is relative to the norm of what it should give: that of what it gives but for the error.
    levels = transform_error(size)
    inverse = math.sqrt(size) * levels / (1 - levels) * jnp.sqrt(jnp.sum(weights**2, axis=1))
    allowed = off + inverse
    return LossLattice(
        # Weights that an error may be anywhere are left to what is allowed for, which counts twice: far below they
        # would be all the mass there is. The truth is not negative.
        weights=jnp.where(weights > (allowed / size)[:, None], weights, 0.0),
        log_mass=found.log_mass,
        slack=found.slack + 2 * allowed * (1 + 4 * size * roundoff()),
        log_total=found.log_total,
        shift=found.shift,
        infinite=infinite_share(facts, found.lost),
        rounding=found.rounding,
        start=found.start,
        mesh=found.mesh,
        order=found.order,
    )


@compiled(static=("points",))
def tilt(points: int, parts: Parts, question: Question) -> Array:
    """Returns the order that suits a composition."""
    facts = facts_of(parts)
    return masses_of(parts, asked_of(facts, question, aimed_at(type(question), points)), points)[0].order


@compiled(static=("points",))
def masses_above(points: int, parts: Parts, question: Question) -> tuple[Array, Array, Facts]:
    """Returns losses (m, points), masses above on them, and what is known of all."""
    facts = facts_of(parts)
    chosen, _, masses = masses_of(parts, asked_of(facts, question, aimed_at(type(question), points)), points)
    return losses_of(chosen), masses.upper, facts


def lattices_apart(
    compositions: Sequence[Parts], shares: Sequence[float], epsilon: float, points: int
) -> list[LossLattice]:
    """Returns several compositions, each by itself, tilted alike. Concrete arguments only.

    The tilt is chosen for delta at ``epsilon`` of a sum in which each occurs as often as ``shares`` say.
    """
    question = ForDelta(np.float64(epsilon))
    together = tuple(
        (pairs, share * steps) for parts, share in zip(compositions, shares, strict=True) for pairs, steps in parts
    )
    order = tilt(points, together, question)
    return [lattice(points, parts, question, order) for parts in compositions]
