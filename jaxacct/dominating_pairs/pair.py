"""Dominating pairs: everything an accountant may ask of a pair (P, Q).

A pair dominates a mechanism if its hockey-stick divergence is at least the mechanism's for every epsilon and every two
neighbouring data sets; adaptive composition of mechanisms is then dominated by the product of their pairs (Zhu, Dong
and Wang 2022, Theorem 10). The privacy loss is ``Y = log P/Q``, drawn under P.

A kind of loss is one class, in one file: a frozen dataclass registered as a pytree that derives from
:class:`DominatingPair`. What is abstract here makes the mesh work, and :meth:`~DominatingPair.cumulant` the Rényi
curve; a :meth:`~DominatingPair.law` adds the exact accountant. The rest has defaults, which a kind of loss replaces
where it knows better. All methods are called inside the float64 scope; they take and return arrays and never raise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs.law import Law
from jaxacct.dominating_pairs.surplus import surplus
from jaxacct.precision import TINY


class CellMasses(NamedTuple):
    """P- and Q-masses of the cells between consecutive boundaries, with bounds on their absolute rounding errors.

    Attributes:
        p (cells,): P's masses.
        q (cells,): Q's masses.
        p_error (cells,): at most so far are the masses of P from the true ones.
        q_error (cells,): likewise of Q.
    """

    p: Float[Array, " cells"]
    q: Float[Array, " cells"]
    p_error: Float[Array, " cells"]
    q_error: Float[Array, " cells"]


class DominatingPair(ABC):
    """A pair (P, Q) seen through its privacy loss."""

    @abstractmethod
    def is_valid(self) -> Array:
        """Returns whether the parameters describe a pair; where not, epsilon is inf."""

    @abstractmethod
    def loss_range(self) -> tuple[Array, Array]:
        """Returns the infimum and the supremum of the finite privacy losses."""

    @abstractmethod
    def central_loss(self) -> Array:
        """Returns a loss amid the bulk of P, where a mesh should have a point."""

    @abstractmethod
    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        """Returns the masses of the ``n - 1`` cells of the loss between increasing ``boundaries`` (may be infinite)."""

    @abstractmethod
    def boundary_error(self, largest: Array) -> Array:
        """Returns a bound on the distance of a cell's true edge from the boundary asked for, for |loss| <= largest."""

    @abstractmethod
    def log_tail(self, order: Array, loss: Array) -> Array:
        """Returns an upper bound on ``log E_P[exp(order Y); loss < Y < inf]``, and on the same with order 0."""

    @abstractmethod
    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y); Y < inf]``, relative error about 1e-11, or an upper bound for orders >= 0."""

    def log_head(self, loss: Array) -> Array:
        """Returns an approximation of ``log P(Y <= loss)``; used to place windows, never in a bound."""
        below = jnp.vectorize(lambda y: self.cell_masses(jnp.stack([jnp.full_like(y, -jnp.inf), y])).p[0])
        return jnp.log(below(loss))

    def supremum(self) -> tuple[Array, Array]:
        """Returns bounds (lower, upper) on the supremum of the finite losses; the upper one is 0 only if that is.

        By default that of :meth:`loss_range`, taken to be right to the error of a boundary there.
        """
        _, highest = self.loss_range()
        error = jnp.where(jnp.isfinite(highest), self.boundary_error(jnp.abs(highest)), 0.0)
        return highest - error, highest + error

    def infinite_mass(self) -> Array:
        """Returns P(Y = inf): P's mass where Q has none. It belongs to no cell. 0 by default."""
        return jnp.zeros(())

    def infinite_mass_error(self) -> Array:
        """Returns a bound on the relative error of :meth:`infinite_mass`."""
        return jnp.zeros(())

    def anchors(self) -> tuple[Array, Array]:
        """Returns two losses at which a mesh should have points, the lower one first; NaN where any will do.

        For losses with atoms, which lose least where they are mesh points. Losses in arithmetic progression have all
        their atoms on the mesh if two neighbouring ones are. A single atom, or the one that matters most, comes as the
        lower loss with NaN for the upper. By default any mesh will do.
        """
        return jnp.full((), jnp.nan), jnp.full((), jnp.nan)

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns bounds (lower, upper) on ``E_P[(1 - e^(epsilon - Y))+; Y < inf]`` of one run, for epsilon () >= 0.

        By default from the masses of losses above and about epsilon. For every event A the difference P(A) - e^eps Q(A)
        is at most delta(eps), and for A = {Y > eps} it is that. The masses that a pair gives to the losses above eps
        are those of an A whose edge e' lies within b of eps, b the boundary's error. What is missed is P - e^eps Q =
        P (1 - e^(eps - Y)) over losses between eps and e': at most e^b - 1 of P's mass within b of eps. So delta is
        known to the error of the masses, and to a second order in b.
        """
        wrong = self.boundary_error(jnp.abs(epsilon)) + 4 * roundoff() * epsilon + TINY
        apart = 4 * wrong
        cells = self.cell_masses(
            jnp.stack([epsilon - apart, epsilon, epsilon + apart, jnp.full_like(epsilon, jnp.inf)])
        )
        (below, just, above), (near_error, just_error, above_error) = cells.p, cells.p_error
        p, p_error = just + above, just_error + above_error
        q, q_error = cells.q[1] + cells.q[2], cells.q_error[1] + cells.q_error[2]
        scale, u = jnp.exp(epsilon), roundoff()
        near = jnp.expm1(wrong) * (below + just + near_error + just_error) * (1 + 16 * u)
        # Sums round where both terms count; errors are raised by more than their sums and products round.
        summed = jnp.where(just > 0, p, 0.0) + scale * jnp.where(cells.q[1] > 0, q, 0.0)
        found, rounding = surplus(p, q, epsilon)
        rounding = (rounding + p_error + scale * q_error + 4 * u * summed) * (1 + 16 * u)
        upper = found + rounding + near
        # Where e^eps overflows nothing is known of what Q takes off.
        upper = jnp.where(jnp.isnan(upper), (p + p_error) * (1 + 4 * u) + near, upper)
        lower = jnp.where(jnp.isnan(found - rounding), 0.0, found - rounding)
        return jnp.maximum(lower, 0.0), jnp.clip(upper, 0.0, 1.0)

    def law(self) -> Law | None:
        """Returns the loss as the exact accountant integrates it, or None where it cannot in the ambient precision.

        Which of them is for the class and its static fields to say. None by default: the mesh answers then.
        """
        return None

    def divergence(self, orders: Array) -> Array:
        """Returns the Rényi divergence at ``orders`` (n,), each above 1: NaN where it is not known, or infinite.

        By default from :meth:`cumulant`.
        """
        known = self.is_valid() & (self.infinite_mass() == 0)
        return jnp.where(known, self.cumulant(orders - 1) / (orders - 1), jnp.nan)

    def largest_loss(self) -> Array:
        """Returns an upper bound on the loss, which is the divergence of order infinity: at least 0, or NaN."""
        # A supremum below 0 is one of rounding: P and Q both sum to one.
        largest = jnp.maximum(self.supremum()[1], 0.0)
        return jnp.where(self.infinite_mass() > 0, jnp.inf, largest)

    def outcosts(self, other: DominatingPair) -> bool:
        """Returns whether the other's Rényi divergence is known never to be larger, so that nobody need compute it."""
        return False
