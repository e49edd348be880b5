"""A dominating pair known by the distribution functions of its privacy loss, which the user gives as callables.

Nothing is known of the laws between two losses but the masses there. Moments are therefore bounded from above by moving
each piece's mass to its two ends so that P- and Q-mass stay: r^a is convex in r = p/q for a >= 1, and lies below its
chord. That is the discretization of Doroshenko et al. (2022), "Connect the dots", on a mesh of this module's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import FLOAT64, roundoff, scaled
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.dominating_pairs.surplus import surplus
from jaxacct.precision import TINY, as_float64
from jaxacct.pytrees import register_dataclass

Distribution = Callable[[Array, Any], Array]
"""A function of (losses, parameters) that returns a probability for each of the losses, in float64."""

VALUE_ERROR = 8 * FLOAT64.roundoff
"""Default error of the callables' values, computed in float64: four ulps of one."""

LOSS_UNITS = 8
"""Units of roundoff that are allowed, relatively, for the losses at which the callables jump."""

PIECES = 2048
"""Pieces of a moment's mesh. Those at a fraction x of its length are 3 x^(2/3) / PIECES of it wide."""


@register_dataclass
@dataclass(frozen=True)
class LossDistributionPair(DominatingPair):
    """A pair (P, Q) by the laws of its privacy loss under P and under Q.

    Attributes:
        cdf_p, cdf_q: P(Y <= y) and Q(Y <= y), asked at finite losses up to ``highest`` only. Q's mass at -inf counts.
        survival_p, survival_q: P(y < Y < inf) and Q(y < Y < inf) at the same losses, or None.
        parameters: any pytree of numbers and arrays, handed to the callables as float64.
        lowest (): loss below which hardly any mass lies; moments count what does as if it lay there.
        highest (): supremum of the finite losses.
        infinite_mass_p (): P(Y = inf).
        value_error (): bound on the absolute error of the values of ``cdf_p`` and ``cdf_q``, and on that of a survival
            function's value S over ``S (1 + |log S|)``; as computed in float64, and elsewhere in proportion.
        atoms (), (): two neighbouring losses with atoms, the lower one first, or NaN.

    :class:`~jaxacct.PrivacyLoss` is the mechanism that has it.

    >>> def uniform(losses, _):  # any two laws will do here; an accountant needs those of one loss
    ...     return jnp.clip((losses + 1) / 2, 0.0, 1.0)
    >>> free = float("nan")
    >>> pair = LossDistributionPair(-1.0, 1.0, (), 0.0, 1e-15, (free, free), uniform, uniform)
    >>> with jax.enable_x64(True):
    ...     pair.cell_masses(jnp.array([-1.0, 0.0, 1.0])).p.tolist()
    [0.5, 0.5]
    """

    lowest: ArrayLike
    highest: ArrayLike
    parameters: Any
    infinite_mass_p: ArrayLike
    value_error: ArrayLike
    atoms: tuple[ArrayLike, ArrayLike]
    cdf_p: Distribution = field(metadata={"static": True})
    cdf_q: Distribution = field(metadata={"static": True})
    survival_p: Distribution | None = field(default=None, metadata={"static": True})
    survival_q: Distribution | None = field(default=None, metadata={"static": True})

    def _value_error(self) -> Array:
        return as_float64(self.value_error) * scaled(1.0)

    def _parameters(self) -> Any:
        return jax.tree.map(as_float64, self.parameters)

    def _at(self, distribution: Distribution, losses: Array) -> Array:
        highest = as_float64(self.highest)
        inside = jnp.where(losses == -jnp.inf, highest, jnp.minimum(losses, highest))
        return as_float64(distribution(inside, self._parameters()))

    def is_valid(self) -> Array:
        low, high, infinite = (as_float64(v) for v in (self.lowest, self.highest, self.infinite_mass_p))
        error = self._value_error()
        ordered = (low < high) & jnp.isfinite(low) & jnp.isfinite(high)
        some = (infinite >= 0) & (infinite <= 1) & (error >= 0)
        # What lies above ``highest`` must have been counted as infinite; else it would be lost.
        counted = jnp.abs(self._at(self.cdf_p, high) + infinite - 1) <= 2 * error + 8 * roundoff()
        return ordered & some & counted & (self._at(self.cdf_q, high) <= 1 + error)

    def loss_range(self) -> tuple[Array, Array]:
        return as_float64(self.lowest), as_float64(self.highest)

    def supremum(self) -> tuple[Array, Array]:
        """Returns ``highest``, below which the callables may have their last loss anywhere."""
        highest = as_float64(self.highest)
        return jnp.full_like(highest, -jnp.inf), highest + LOSS_UNITS * roundoff() * jnp.abs(highest)

    def central_loss(self) -> Array:
        """Returns a median of the finite losses under P, by bisection."""
        half = (1 - as_float64(self.infinite_mass_p)) / 2

        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = low + (high - low) / 2
            below = self._at(self.cdf_p, middle) >= half
            return jnp.where(below, low, middle), jnp.where(below, middle, high)

        return jax.lax.fori_loop(0, 64, halve, (as_float64(self.lowest), as_float64(self.highest)))[1]

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        p, p_error = self._differences(self.cdf_p, self.survival_p, boundaries)
        q, q_error = self._differences(self.cdf_q, self.survival_q, boundaries)
        return CellMasses(p, q, p_error, q_error)

    def _differences(self, cdf: Distribution, survival: Distribution | None, boundaries: Array) -> tuple[Array, Array]:
        """Returns the masses between the boundaries, and their errors, from whichever function knows them better."""
        error = self._value_error()
        below = jnp.where(boundaries == -jnp.inf, 0.0, self._at(cdf, boundaries))
        mass = jnp.maximum(below[1:] - below[:-1], 0.0)
        mass_error = 2 * error + 2 * roundoff() * mass
        if survival is None:
            return mass, mass_error
        above = jnp.where(boundaries >= self.highest, 0.0, self._at(survival, boundaries))
        logs = jnp.abs(jnp.log(jnp.maximum(above, TINY)))
        above_error = error * above * (1 + logs) + 2 * TINY
        tail_mass = jnp.maximum(above[:-1] - above[1:], 0.0)
        tail_error = above_error[:-1] + above_error[1:] + 2 * roundoff() * tail_mass
        better = (tail_error < mass_error) & (boundaries[:-1] > -jnp.inf)
        return jnp.where(better, tail_mass, mass), jnp.where(better, tail_error, mass_error)

    def boundary_error(self, largest: Array) -> Array:
        return LOSS_UNITS * roundoff() * jnp.abs(largest)

    def infinite_mass(self) -> Array:
        return as_float64(self.infinite_mass_p)

    def anchors(self) -> tuple[Array, Array]:
        return as_float64(self.atoms[0]), as_float64(self.atoms[1])

    def log_tail(self, order: Array, loss: Array) -> Array:
        fractions = jnp.linspace(0.0, 1.0, PIECES + 1) ** 3
        highest = as_float64(self.highest)

        def bound(order: Array, loss: Array) -> Array:
            start = jnp.minimum(loss - LOSS_UNITS * roundoff() * jnp.abs(loss), highest)
            edge = jnp.maximum(start, as_float64(self.lowest))
            raised = self._raised(start, _ending(edge + (highest - edge) * fractions, highest))
            tail = jnp.maximum(_log_moment(raised, order), _log_moment(raised, jnp.zeros_like(order)))
            return jnp.where(loss >= highest + LOSS_UNITS * roundoff() * jnp.abs(highest), -jnp.inf, tail)

        return jnp.vectorize(bound)(order, loss)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns an upper bound on ``log E_P[exp(order Y); Y < inf]`` for orders from 0 up.

        Relative error about (range / (deviation PIECES))^2, and some thousand ulps of one. Between -1 and 0 the value
        is fit for planning only.
        """
        low, high, center = as_float64(self.lowest), as_float64(self.highest), self.central_loss()
        fractions = jnp.linspace(0.0, 1.0, PIECES + 1) ** 3
        mesh = jnp.concatenate([center - (center - low) * fractions[::-1], center + (high - center) * fractions[1:]])
        raised = self._raised(jnp.asarray(-jnp.inf, jnp.float64), _ending(mesh, high))
        return jnp.vectorize(lambda order: _log_moment(raised, order))(as_float64(order))

    def _raised(self, start: Array, mesh: Float[Array, " n"]) -> tuple[Array, Array]:
        """Returns losses and P-masses whose moments bound those of the losses above ``start``.

        What lies between ``start`` and the mesh moves up to its first point. The upper end's share of a piece,
        (P - e^y Q)/(1 - e^-h), is rounded up by its own error, the whole mass by its own.
        """
        cells = self.cell_masses(jnp.concatenate([start[None], mesh]))
        mass = cells.p + cells.p_error
        p, q, q_error = cells.p[1:], cells.q[1:], cells.q_error[1:]
        lower, width = mesh[:-1], mesh[1:] - mesh[:-1]
        value, rounding = surplus(p, q, lower)
        # The losses at which the callables jump are off by LOSS_UNITS, on either side.
        error = cells.p_error[1:] + jnp.exp(lower) * q_error + roundoff() * (4 + 32 * jnp.abs(lower)) * p + rounding
        upward = (value + error) / -jnp.expm1(-width) * (1 + 16 * roundoff())
        # Where the share is 0/0 or inf - inf nothing is known of it: all of the mass moves up.
        upward = jnp.clip(jnp.where(jnp.isnan(upward), mass[1:], upward), 0.0, mass[1:])
        stays = mass[1:] - upward
        return mesh, jnp.concatenate([mass[:1], upward]) + jnp.concatenate([stays, jnp.zeros(1)])


def _ending(mesh: Array, highest: Array) -> Array:
    """Returns the mesh with its last point at the supremum exactly, and none beyond it."""
    return jnp.concatenate([jnp.minimum(mesh[:-1], highest), highest[None]])


def _log_moment(raised: tuple[Array, Array], order: Array) -> Array:
    """Returns the log of the sum of ``e^(order y) p`` over the points, rounded up."""
    losses, masses = raised
    largest = jnp.maximum(jnp.abs(losses[0]), jnp.abs(losses[-1]))
    # The sum rounds once a point; logarithms are below 709; the losses at jumps are off by LOSS_UNITS.
    rounds = losses.shape[0] + 8 * 709 + 32 * jnp.abs(order) * largest
    return jax.nn.logsumexp(jnp.log(masses) + order * losses) + roundoff() * rounds
