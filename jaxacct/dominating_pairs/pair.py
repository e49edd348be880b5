"""Dominating pairs: everything an accountant may ask of a pair (P, Q).

A pair dominates a mechanism if its hockey-stick divergence is at least the mechanism's for every epsilon and every two
neighbouring data sets; adaptive composition of mechanisms is then dominated by the product of their pairs (Zhu, Dong
and Wang 2022, Theorem 10). The privacy loss is ``Y = log P/Q``, drawn under P.

All methods are to be called inside the float64 scope; they take and return arrays and never raise.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jaxtyping import Array, ArrayLike, Float

from jaxacct.cumulants import QUADRATURE_NODES


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


class DominatingPair(Protocol):
    """A pair (P, Q) seen through its privacy loss."""

    def is_valid(self) -> Array:
        """Returns whether the parameters describe a pair; where not, epsilon is inf."""
        ...

    def loss_range(self) -> tuple[Array, Array]:
        """Returns the infimum and the supremum of the finite privacy losses."""
        ...

    def supremum(self) -> tuple[Array, Array]:
        """Returns bounds (lower, upper) on the supremum of the finite losses; the upper one is 0 only if that is."""
        ...

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns bounds (lower, upper) on ``E_P[(1 - e^(epsilon - Y))+; Y < inf]`` of one run, for epsilon >= 0."""
        ...

    def central_loss(self) -> Array:
        """Returns a loss amid the bulk of P, where a mesh should have a point."""
        ...

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        """Returns the masses of the ``n - 1`` cells of the loss between increasing ``boundaries`` (may be infinite)."""
        ...

    def boundary_error(self, largest: Array) -> Array:
        """Returns a bound on the distance of a cell's true edge from the boundary asked for, for |loss| <= largest."""
        ...

    def infinite_mass(self) -> Array:
        """Returns P(Y = inf): P's mass where Q has none. It belongs to no cell."""
        ...

    def infinite_mass_error(self) -> Array:
        """Returns a bound on the relative error of :meth:`infinite_mass`."""
        ...

    def anchors(self) -> tuple[Array, Array]:
        """Returns two losses at which a mesh should have points, the lower one first; NaN where any will do.

        For losses with atoms, which lose least where they are mesh points. Losses in arithmetic progression have all
        their atoms on the mesh if two neighbouring ones are. A single atom, or the one that matters most, comes as the
        lower loss with NaN for the upper.
        """
        ...

    def log_tail(self, order: Array, loss: Array) -> Array:
        """Returns an upper bound on ``log E_P[exp(order Y); loss < Y < inf]``, and on the same with order 0."""
        ...

    def log_head(self, loss: Array) -> Array:
        """Returns an approximation of ``log P(Y <= loss)``; used to place windows, never in a bound."""
        ...

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        """Returns ``log E_P[exp(order Y); Y < inf]``, relative error about 1e-11 at the default number of nodes."""
        ...
