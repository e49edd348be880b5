"""The interface of a dominating pair (P, Q): all that an accountant may ask of a privacy loss, and its moments.

A pair dominates a mechanism if its hockey-stick divergence is at least the mechanism's, at every epsilon. An accountant
sees a pair through the privacy loss Y = log P/Q alone: through the masses of cells of the loss (the mesh), two discrete
laws on either side of its own (:class:`~jaxacct.mechanisms.atoms.Atoms`), its cumulants at real orders (the Rényi
curve), or its characteristic function along a contour (the exact accountant). One abstract class states these
questions, and every kind of loss answers them in a class of its own.

The parts, in reading order; the first three serve the mesh and the Rényi curve, the others the contour:

1. the pair itself, all that an accountant asks: :class:`DominatingPair`;
2. moments of a likelihood ratio close to 1, without cancellation: :func:`log_excess`, :func:`log_integral`;
3. the difference P - e^y Q of a cell, and its rounding: :func:`hockey_stick`;
4. the law of a privacy loss, as weighted nodes with bounds on what these miss: :class:`Nodes`, :class:`Law`,
   :class:`TrapezoidLaw`, :func:`moments`, :func:`careful_moments`, :func:`rungs`;
5. laws with atoms, by panels, and how their characteristic functions fade: :class:`PanelLaw`, :func:`log_decay`.

Sources: Zhu, Dong and Wang (2022), Theorem 10, for composition; Trefethen and Weideman (2014), Theorem 5.1, for the
trapezoid rule; Trefethen (2013), Theorem 19.3, for panels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.mechanisms.atoms import Atoms, atoms_of_cells
from jaxacct.mechanisms.normal import cosm1_and_sin
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.precision import TINY, few_bits, log_complement

# ----------------------------------------------------------------------------------------------------
# The dominating pair: everything an accountant may ask of (P, Q).
#
# A pair dominates a mechanism if its hockey-stick divergence is at least the mechanism's for every epsilon and every
# two neighbouring data sets; adaptive composition of mechanisms is then dominated by the product of their pairs (Zhu,
# Dong and Wang 2022, Theorem 10). The privacy loss is ``Y = log P/Q``, drawn under P.
#
# A kind of loss is one class: a frozen dataclass, registered as a pytree, that derives from :class:`DominatingPair`.
# The abstract methods serve the mesh, and :meth:`~DominatingPair.cumulant` the Rényi curve; a
# :meth:`~DominatingPair.law` adds the exact accountant. The other methods have defaults, which a kind of loss replaces
# where it knows better. All methods are called inside the float64 scope; they take and return arrays and never raise.
# ----------------------------------------------------------------------------------------------------


class CellMasses(NamedTuple):
    """P- and Q-masses of the cells between consecutive boundaries, with bounds on their absolute rounding errors.

    Attributes:
        p (cells,): P's masses.
        q (cells,): Q's masses.
        p_error (cells,): bounds on the distance of P's masses from the true ones.
        q_error (cells,): bounds on the distance of Q's masses from the true ones.
    """

    p: Float[Array, " cells"]
    q: Float[Array, " cells"]
    p_error: Float[Array, " cells"]
    q_error: Float[Array, " cells"]


class DominatingPair(ABC):
    """A pair (P, Q) seen through its privacy loss."""

    has_attained_product: ClassVar[bool] = True
    """Whether several such pairs together are the pair of a composition: not where each is a supremum over many."""

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
        """Returns a bound on the distance of a cell's true edge from its boundary, for |loss| <= largest."""

    @abstractmethod
    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y); Y < inf]``, relative error about 1e-11, or an upper bound for orders >= 0."""

    def supremum(self) -> tuple[Array, Array]:
        """Returns bounds (lower, upper) on the supremum of the finite losses; the upper one is 0 only if that is.

        By default they are those of :meth:`loss_range`, taken to be right to the error of a boundary there.
        """
        _, highest = self.loss_range()
        error = jnp.where(jnp.isfinite(highest), self.boundary_error(jnp.abs(highest)), 0.0)
        return highest - error, highest + error

    def infimum(self) -> Array | None:
        """Returns a lower bound on the infimum of the finite losses; None, the default, where none is to be used.

        Where it meets the supremum all finite losses are one, and compositions are known without composing.
        """
        return None

    def infinite_mass(self) -> Array:
        """Returns P(Y = inf), P's mass where Q has none, which belongs to no cell; 0 by default."""
        return jnp.zeros(())

    def infinite_mass_error(self) -> Array:
        """Returns a bound on the relative error of :meth:`infinite_mass`."""
        return jnp.zeros(())

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns bounds (lower, upper) on ``E_P[(1 - e^(epsilon - Y))+; Y < inf]`` of one run, for epsilon () >= 0.

        By default they come from the masses of losses above and about epsilon. For every event A the difference P(A) -
        e^eps Q(A) is at most delta(eps), and A = {Y > eps} attains it. The masses that a pair gives to the losses above
        eps are those of an A whose edge e' lies within b of eps, b the boundary's error. Such an A misses P - e^eps Q =
        P (1 - e^(eps - Y)) over losses between eps and e': at most e^b - 1 of P's mass within b of eps. So delta is
        known to the error of the masses, and to a second order in b.
        """
        wrong = self.boundary_error(jnp.abs(epsilon)) + 4 * roundoff() * epsilon + TINY
        # The cells on either side of epsilon hold all mass that may lie on its wrong side.
        half_width = 4 * wrong
        cells = self.cell_masses(
            jnp.stack([epsilon - half_width, epsilon, epsilon + half_width, jnp.full_like(epsilon, jnp.inf)])
        )
        (below, just, above), (near_error, just_error, above_error) = cells.p, cells.p_error
        p, p_error = just + above, just_error + above_error
        q, q_error = cells.q[1] + cells.q[2], cells.q_error[1] + cells.q_error[2]
        scale, u = jnp.exp(epsilon), roundoff()
        near = jnp.expm1(wrong) * (below + just + near_error + just_error) * (1 + 16 * u)
        # Sums round where both terms count; the factor on errors covers the rounding of their sums and products.
        summed = jnp.where(just > 0, p, 0.0) + scale * jnp.where(cells.q[1] > 0, q, 0.0)
        value, rounding = hockey_stick(p, q, epsilon)
        rounding = (rounding + p_error + scale * q_error + 4 * u * summed) * (1 + 16 * u)
        upper = value + rounding + near
        # Where e^eps overflows, e^eps Q is not known: the bounds are P's mass and 0.
        upper = jnp.where(jnp.isnan(upper), (p + p_error) * (1 + 4 * u) + near, upper)
        lower = jnp.where(jnp.isnan(value - rounding), 0.0, value - rounding)
        return jnp.maximum(lower, 0.0), jnp.clip(upper, 0.0, 1.0)

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns two discrete laws of the loss, one that dominates it and one that it dominates.

        Args:
            cells: about how many atoms the laws have; static. A kind of loss and this number decide how many they are.
            nats (): how far tails are resolved, above 1: what is below e^-nats of P need not be.

        By default they come from :meth:`cell_masses`. The boundaries lie where P has its mass: they are dense about the
        central loss and less so in the tails, as sinh has them.
        """
        ladder = 2.0 ** np.arange(-40, 24)
        center, endless = self.central_loss(), jnp.full(1, jnp.inf)
        looks = center + jnp.asarray(np.concatenate([-ladder[::-1], np.zeros(1), ladder]), center.dtype)
        p = self.cell_masses(jnp.concatenate([-endless, looks, endless])).p
        below = jnp.matmul(jnp.asarray(np.tri(len(looks), len(looks) + 1), p.dtype), p, precision="highest")
        above = jnp.matmul(jnp.asarray(1 - np.tri(len(looks), len(looks) + 1), p.dtype), p, precision="highest")
        rare = jnp.exp(-nats)
        # The tails in which there is little, and a distance within which there is much: they only steer.
        low = jnp.max(jnp.where(below <= rare, looks, looks[0]))
        high = jnp.maximum(jnp.min(jnp.where(above <= rare, looks, looks[-1])), low)
        lowest, highest = self.loss_range()
        low, high = jnp.clip(low, lowest, highest), jnp.clip(high, lowest, highest)
        inside = above[: len(ladder)][::-1] - above[len(ladder) + 1 :]
        scale = jnp.min(jnp.where(inside >= 0.5 * (1 - above[-1]), ladder, ladder[-1]))
        ends = jnp.arcsinh(jnp.stack([low - center, high - center]) / scale)
        rising = ends[0] + (ends[1] - ends[0]) * jnp.asarray(np.linspace(0.0, 1.0, cells - 2), center.dtype)
        losses = jnp.sort(jnp.clip(center + scale * jnp.sinh(rising), low, high))
        masses = self.cell_masses(jnp.concatenate([-endless, losses, endless]))
        # A few large losses count as infinite: far away, they would be all that counts in a moment.
        last = jnp.where(high < highest, jnp.inf, jnp.maximum(self.supremum()[1], losses[-1]))
        edges = jnp.concatenate([-endless, losses, last[None]])
        doubts = jnp.pad(jax.vmap(self.boundary_error)(jnp.abs(losses)), 1)
        p, q, p_error, q_error = masses
        return atoms_of_cells(edges, p, p_error, q, q_error, doubts, self._infinite(), self.is_valid())

    def _infinite(self) -> tuple[Array, Array]:
        """Returns bounds on :meth:`infinite_mass`, from above and from below, for laws that are arrays."""
        mass, share = self.infinite_mass(), self.infinite_mass_error() + 4 * roundoff()
        return mass * (1 + share), mass * (1 - share)

    def law(self) -> Law | None:
        """Returns the law that the exact accountant integrates, or None where there is none in the ambient precision.

        The class and its static fields alone decide which of the two. By default it is None, and the mesh answers.
        """
        return None

    def divergence(self, orders: Array) -> Array:
        """Returns the Rényi divergence at ``orders`` (n,), each above 1: NaN where it is not known, or infinite.

        By default it comes from :meth:`cumulant`.
        """
        known = self.is_valid() & (self.infinite_mass() == 0)
        return jnp.where(known, self.cumulant(orders - 1) / (orders - 1), jnp.nan)

    @property
    def counts_rounding(self) -> bool:
        """Whether :meth:`divergence` bounds its rounding where digits are few: else all of an allowance may be that."""
        return False

    def largest_loss(self) -> Array:
        """Returns an upper bound on the loss, which is the divergence of order infinity: at least 0, or NaN."""
        # Only rounding makes a supremum negative: P and Q both sum to one.
        largest = jnp.maximum(self.supremum()[1], 0.0)
        return jnp.where(self.infinite_mass() > 0, jnp.inf, largest)

    def has_larger_divergences_than(self, other: DominatingPair) -> bool:
        """Returns whether the other's Rényi divergences are known to be at most this one's: then only these count."""
        return False


# ----------------------------------------------------------------------------------------------------
# Moments of a likelihood ratio close to 1, without cancellation: the integrand, and an integral of its logarithm.
#
# With L = log P/Q and phi(x) = e^x - 1 - x, and since E_P[e^-L] = 1,
#
#     E_P[e^(t L)] - 1 = E_P[phi(t L) + t phi(-L)],
#
# a sum of terms of one sign for t >= 0. Nothing cancels, however close to 1 the moment is. For t in (-1/2, 0) the terms
# differ in sign, but their sum has one sign and loses no more than a few bits; for smaller t exchange P and Q:
# E_P[e^(t L)] = E_Q[e^(-(t+1) (-L))].
#
# A scan of the integrand finds the windows of the integral, and nothing here bounds the rule's error. No bound of the
# mesh uses a cumulant: the mesh takes its windows from Chernoff bounds on the lattice's weights. The Rényi divergences
# of shifted noise do use cumulants, as the exact value that :data:`jaxacct.rdp.ALLOWANCE` rounds up. That allowance was
# measured against quadrature at high precision; it is not proved.
# ----------------------------------------------------------------------------------------------------

CUT = 60.0
"""Log of the ratio of an integrand's maximum to what may be left out, in nats: e^-60 is 1e-26."""


def exp_remainder(x: Array, expm1_x: Array | float) -> Array:
    """Returns ``e^x - 1 - x`` given ``e^x - 1``, of which only the absolute accuracy counts.

    Where |x| < 1/2 the difference would cancel, so a ratio of polynomials replaces it; outside, the difference costs
    less than four bits. With w = x^2 and Lambert's fraction h coth h = 1 + v/(3 + v/(5 + v/(7 + v/(9 +
    v/(11 + ...))))), v = h^2 = w/4,

        e^x - 1 - x = x (h - g)/(1 + g - h),   h = x/2,   g = h coth h - 1,

    and g, cut after 11, is w n/(2 d) of the polynomials n and d below. All of the fraction's terms are positive, so g
    lies between this and the same cut after 13, which is 2.1e-15 of it away where |x| = 1/2. That is 2.4e-16 of the
    result, two and a half units of roundoff. Forming it adds 20 units at most: x n < d/11, so no difference loses a
    tenth.
    """
    is_small, ratio = _small_remainder(x)
    return jnp.where(is_small, ratio, expm1_x - x)


@jax.jit  # called more than once for arrays of a shape: part of a program's text once
def _small_remainder(x: Array) -> tuple[Array, Array]:
    """Returns whether |x| is at most 1/2, and :func:`exp_remainder` there."""
    small = jnp.minimum(jnp.maximum(x, -0.5), 0.5)
    w = small * small
    n, d = w * (w + 756.0) + 55440.0, w * (w * 42.0 + 10080.0) + 332640.0
    part = d - small * n
    return small == x, w * part / (d + d - small * part)


@jax.jit
def weighted_remainder(x: Array, weight: Array, grown: Array) -> Array:
    """Returns ``weight (e^x - 1 - x)`` given ``grown``, ``weight e^x``, where e^x alone may overflow."""
    is_small, ratio = _small_remainder(x)
    return jnp.where(is_small, ratio * weight, grown - (1.0 + x) * weight)


def excess(loss: Array, order: Array, expm1_back: Array) -> tuple[Array, Array]:
    """Returns c and e with ``|phi(t L) + t phi(-L)| = c e^e``, given ``e^-L - 1``, for order t >= -1/2."""
    # A term of another size is negligible against e^largest.
    power, largest = order * loss, arithmetic().largest_exponent
    huge, reverse = power > largest, -loss > largest
    ahead = exp_remainder(power, jnp.exp(jnp.minimum(power, largest)) - 1)
    series = ahead + order * exp_remainder(-loss, expm1_back)
    coefficient = jnp.where(huge, 1.0, jnp.abs(jnp.where(reverse, order, series)))
    return coefficient, jnp.where(huge, power, jnp.where(reverse, -loss, 0.0))


def log_excess(loss: Array, order: Array) -> Array:
    """Returns ``log |phi(t L) + t phi(-L)|`` for order t >= -1/2."""
    coefficient, exponent = excess(loss, order, jnp.expm1(jnp.minimum(-loss, arithmetic().largest_exponent)))
    return jnp.log(coefficient) + exponent


def log_moment(log_excess_moment: Array, order: Array) -> Array:
    """Returns ``log E[e^(t L)]`` given the log of its distance from 1."""
    # Strictly between orders -1 and 0 a moment is below 1; at both it is 1.
    below = log_complement(jnp.exp(jnp.minimum(log_excess_moment, 0.0)))
    moment = jnp.where((order > -1) & (order < 0), below, jnp.logaddexp(0.0, log_excess_moment))
    return jnp.where((order == 0) | (order == -1), 0.0, moment)


def reflect(order: Array) -> tuple[Array, Array]:
    """Returns whether to exchange P and Q, and the order, at least -1/2, to use then."""
    exchange = order < -0.5
    return exchange, jnp.where(exchange, -(order + 1), order)


def log_integral(height: Callable[[Array], Array], low: Array, high: Array, panel: Array, scale: Array) -> Array:
    """Returns the log of the integral of ``e^height`` over [low, high], all scalars; the error is not bounded.

    Args:
        height: the log integrand, elementwise; smooth inside (low, high).
        low: lower end.
        high: upper end; where it equals the lower one the result is -inf.
        panel: longest panel that the rule resolves: a few tenths of the distance of the nearest complex singularity.
        scale: width of the noise, in which the integrand falls by some e-foldings.

    A scan on a grid, and then on finer ones, finds the window in which the integrand is above e^-CUT of its maximum. A
    peak between two points of the grid may rise above them by as much as a Gaussian of the given width that is CUT
    e-foldings down the flank; the window has such points. Narrower peaks stand alone, next to the highest point.
    """
    # Fewest and most panels of 16 Gauss-Legendre nodes over a window. 32 leave an exponential four e-foldings a panel
    # where it falls by CUT on both sides; the rule then errs by 1e-30.
    fewest, most = 32, 8192
    # Points of a scan, and scans, each of which narrows the window.
    scan, rounds = 128, 4

    def narrow(_: Any, window: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, right, _ = window
        step = (right - left) / scan
        x = left + (jnp.arange(scan) + 0.5) * step
        heights = height(x)
        top = jnp.max(heights)
        # A Gaussian CUT e-foldings down its flank rises by no more between two points: 11 is sqrt(2 CUT).
        half_step = step / (2 * scale)
        kept = heights > top - CUT - (11 * half_step + half_step**2 / 2)
        first = jnp.min(jnp.where(kept, x, jnp.inf))
        last = jnp.max(jnp.where(kept, x, -jnp.inf))
        some = top > -jnp.inf
        return (
            jnp.where(some, jnp.maximum(first - step, left), left),
            jnp.where(some, jnp.minimum(last + step, right), right),
            top,
        )

    # The state is the window and the highest log integrand seen. Each round looks at scan points of the window and
    # drops the ends at which the integrand is negligible; the window never grows.
    left, right, top = jax.lax.fori_loop(0, rounds, narrow, (low, high, jnp.zeros_like(low)))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    count = jnp.fmin(jnp.fmax(jnp.ceil((right - left) / panel), fewest), most)
    width = (right - left) / count

    points, weights = np.polynomial.legendre.leggauss(16)
    points, weights = (points + 1) / 2, weights / 2

    def add(i: Array, total: Array) -> Array:
        values = height(left + width * (i + points)) - top
        return total + jnp.sum(jnp.asarray(weights) * jnp.exp(values))

    # One panel a step, relative to the top, so that nothing overflows. The count is data and not a shape: narrow
    # windows cost little, and one program serves all.
    total = jax.lax.fori_loop(0, count.astype(jnp.int32), add, jnp.zeros_like(low))
    log_sum = top + jnp.log(total * width)
    if not arithmetic().has_few_digits:
        return log_sum
    # Logarithms round by units of squares of places, in widths, and of their own size: where that is not small against
    # a nat no window is certain, and the result is unknown.
    reach = jnp.maximum(jnp.abs(low), jnp.abs(high)) / scale
    is_known = (roundoff() * (reach * reach + jnp.abs(top)) < 2.0**-6) & ((total > 0) | (low >= high))
    return jnp.where(is_known, log_sum, jnp.nan)


# ----------------------------------------------------------------------------------------------------
# The difference P - e^y Q of a cell, and its rounding.
#
# The mesh splits a cell's mass between two mesh points, from above and from below, by this difference. Where P and Q
# are close it is all that counts.
# ----------------------------------------------------------------------------------------------------


def hockey_stick(p: Array, q: Array, loss: Array) -> tuple[Array, Array]:
    """Returns P - e^y Q, elementwise, and a bound on its rounding; NaN where e^y Q is infinity times 0.

    Near y = 0 it is formed as (P - Q) - (e^y - 1) Q. The first difference rounds by u of itself, and by IEEE 754 not at
    all where P and Q are within a factor of two of one another (Sterbenz); each further rounding is relative to a part
    of the size of y. So the result keeps its digits however small the losses are. exp errs by 4u and expm1 by 8u
    (:data:`jaxacct.numerics.elementary.ASSUMED`), the product by u, a difference by u of itself. Each number flushed to
    zero is below the smallest normal float64.
    """
    # Size of losses, in nats, below which the formula does without e^y. Any value is sound. However near to 1 e^y
    # is, it rounds by a unit of one.
    near_by = 0.25
    is_near = jnp.abs(loss) < near_by
    difference = p - q
    grown = jnp.expm1(jnp.where(is_near, loss, 0.0)) * q
    scaled_q = jnp.exp(loss) * q
    value = jnp.where(is_near, difference - grown, p - scaled_q)
    # Sterbenz: an exact difference.
    rounded = jnp.where((q <= 2 * p) & (p <= 2 * q), 0.0, jnp.abs(difference))
    near = rounded + 12 * jnp.abs(grown)
    rounding = roundoff() * (jnp.where(is_near, near, 6 * scaled_q) + 2 * jnp.abs(value))
    return value, rounding + 4 * TINY * (1 + jnp.exp(loss))


# ----------------------------------------------------------------------------------------------------
# The law of a privacy loss for the contour integral: nodes for its moments, and bounds on what they miss.
#
# A pair has a law (:meth:`DominatingPair.law`) where its moments of complex order t + iw are sums of few terms. The
# *scan* is the row of nodes that serves all real orders; *pieces* are the finer rows for complex orders, which must
# resolve the oscillation at frequency w. A law tilted by t has the density of P times e^(t Y) over its moment.
# Certificates for float32 spend work to keep its few digits (:attr:`.Arithmetic.has_few_digits`).
# ----------------------------------------------------------------------------------------------------

RULE = 256
"""Nodes of a trapezoid rule: of the scan, and of each piece for complex orders.

Any value is sound: a law bounds its rule's error from the spacing. More nodes serve larger orders, and cost time.
"""

BEYOND = 14.0
"""Nats below the cut at which nodes end, and to which the quadrature's error is brought: k steps leave out k times it.

:func:`log_left_out`, which enters every bound, follows from it.
"""


def log_left_out() -> float:
    """Returns the log of what the nodes leave out where a density falls below e^-(cut + BEYOND) of its maximum."""
    return -(arithmetic().cut + BEYOND - 4.0)


def modulus_rounding() -> float:
    """Returns a bound on the rounding of a bound on the modulus of a characteristic function.

    It is 1e-13 in float64: sums of some hundred terms, below one together, each right to some 200 units. To the power
    of very many steps that counts; where digits are few a law counts it term by term instead.
    """
    return scale_error(1e-13)


class Nodes(NamedTuple):
    """A law of the privacy loss as finitely many weighted values.

    Attributes:
        losses (J,): privacy losses, in nats, all finite.
        log_p (J,), log_q (J,): logs of the masses under P and Q; -inf for a node that does not count.
        infinite (): P's mass where the loss is +inf.
        missing (): Q's mass where the loss is -inf.
        places (J,): positions of the nodes in the law's own coordinate.
    """

    losses: Float[Array, " J"]
    log_p: Float[Array, " J"]
    log_q: Float[Array, " J"]
    infinite: Array
    missing: Array
    places: Float[Array, " J"]


class Roundings(NamedTuple):
    """Units of roundoff by which nodes err.

    Attributes:
        mass (J,): those of the logs of P's masses, absolute.
        loss (J,): those of the losses, relative to themselves.
        shift (J,): further ones of the losses, absolute.
    """

    mass: Array
    loss: Array
    shift: Array


class Marked(NamedTuple):
    """The losses of one run beyond a place, which a law leaves out (:mod:`jaxacct.saddlepoint.contour`).

    Attributes:
        place (): the place, in the law's own coordinate; inf where no loss is left out.
        p (), q (): masses of P and Q beyond it.
        error (): bound on the relative errors of these masses.
        loss (): bound on the losses beyond it, from below where these ``are_large``, else from above.
        are_large (): whether losses rise with the place.
    """

    place: Array
    p: Array
    q: Array
    error: Array
    loss: Array
    are_large: Array


def tilted_shares(nodes: Nodes, order: Array) -> Array:
    """Returns the shares (J,) that the nodes have in the moment of a real order."""
    return jax.nn.softmax(nodes.log_p + order * nodes.losses)


class Moments(NamedTuple):
    """``log E_P[e^(t Y); Y < inf]`` and its first two derivatives in t."""

    value: Array
    slope: Array
    curvature: Array


class Law(ABC):
    """The law of one privacy loss, in the form in which the contour integral takes it.

    Nodes for complex orders come in pieces, for they must resolve the oscillation. By default the scan's nodes will do
    for every frequency, and nothing is known of how the characteristic function fades: so it is for a sum of atoms.
    """

    has_marks: ClassVar[bool] = False
    """Whether losses beyond a place may be left out: :meth:`mark_from`, :meth:`mark`, :meth:`without_marked`."""

    recurring: ClassVar[float] = 0.0
    """Approximate modulus to which the characteristic function comes back however far out: the share of atoms.

    Where the characteristic function of a sum cannot fall, no integral along a line ends. Any value is sound: one too
    large costs convergence.
    """

    @abstractmethod
    def largest_order(self) -> Array:
        """Returns the largest order for which :meth:`scan` gives moments."""

    @abstractmethod
    def scan(self) -> Nodes:
        """Returns nodes for the moments of every real order from -1, whose moment is Q's mass, up to the largest.

        A moment close to 1 is formed from its distance from 1, which rests on Q's mass being 1.
        """

    def mark_from(self, large: Array, small: Array, log_mass: Array) -> Array:
        """Returns the place beyond which losses are left out, in the law's own coordinate; inf where none are.

        It is the lower of two places. Beyond the one all losses are at least ``large``, if losses rise with the place,
        or at most ``small``, if they fall; beyond the other lies about e^``log_mass`` of P.
        """
        return jnp.full_like(large, jnp.inf)

    def mark(self, place: Array) -> Marked:
        """Returns the losses beyond a place."""
        raise NotImplementedError

    def without_marked(self, marked: Marked) -> Law:
        """Returns the law without the losses that are marked."""
        raise NotImplementedError

    def roundings(self, nodes: Nodes) -> Roundings:
        """Returns the roundings of nodes, for certificates in few digits: of the laws that these are written for."""
        raise NotImplementedError

    @abstractmethod
    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        """Returns a bound on the log of the error of any moment of order t + iw', |w'| <= w, over that of order t.

        For nodes that are ``step`` apart.
        """

    def log_scan_errors(self, orders: Array, step: Array) -> Array:
        """Returns :meth:`log_quadrature_error` at frequency 0 for several orders (n,)."""
        return jax.vmap(lambda order: self.log_quadrature_error(order, jnp.zeros_like(order), step))(orders)

    def slope_error(self, order: Array, scan: Nodes, value: Array, step: Array) -> Array:
        """Returns a bound on the quadrature's error of a slope, where the cumulant is ``value``; inf if none is known.

        It holds for the scan's nodes, and for those of pieces that are no farther than ``step`` apart.
        """
        return jnp.full_like(order, jnp.inf)

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        """Returns an upper bound, for all frequencies from w on, of ``log |E_t[e^(iwY)]|``; 0 where none is known."""
        return jnp.zeros_like(w)

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns where the nodes for the moments of the orders ``order + i w`` begin and end."""
        return jnp.zeros_like(order), jnp.zeros_like(order)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns how many pieces, each of a fixed number of nodes, the frequencies up to w take."""
        return jnp.int32(1)

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        """Returns one of so many pieces."""
        return self.scan()

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        """Returns the distance of the nodes."""
        return window[0]


FINEST, COARSEST = 0.3, 0.5
"""Largest spacing of a scan's nodes: ``min(FINEST s^2/spread, COARSEST s)``, for noise s and locations of that spread.

The rule then errs by e^(-2 pi pi/0.3) = 3e-29. Where nothing spreads, all is a normal density, and the rule errs by
2 e^(-2 pi^2 / 0.25), 1e-34.
"""


ANGLES = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0])
"""Turns theta, in radians, of a likelihood ratio 1 - p + p e^(i theta) on the lines that a bound may use.

Any value below pi is sound.
"""

STEEPEST = 1.5
"""Largest such theta, in radians, of a decay's bound: beyond a right angle the argument gains nothing for small p.

Up to there arg(1 - p + p e^(i theta)) >= p sin(theta): with x = p (1 - cos(theta)) and y = p sin(theta) it is the arc
tangent of y/(1-x). At p = 1 that is theta >= sin(theta); tests/saddlepoint/test_laws.py asks for it on a grid.
"""


class Lines(NamedTuple):
    """Lines beside the real one on which a law's integrand is analytic, and bounds on its size there.

    The size is the log of the integral of the integrand's modulus over the moment of the order, for orders t >= 0 and
    frequencies up to w: at most ``constant + t of_order + w of_frequency``. A trapezoid rule of spacing h then errs by
    at most 2/(e^x - 1) times that integral on the line at height b, x = 2 pi b/h (Trefethen and Weideman 2014, "The
    exponentially convergent trapezoidal rule", Theorem 5.1).

    Attributes:
        heights (J,): heights b of the lines above the real one, in the law's own coordinate.
        constant (J,), of_order (J,), of_frequency (J,): terms of the bound, in nats; inf where there is none.
    """

    heights: Array
    constant: Array
    of_order: Array
    of_frequency: Array

    def costs(self, order: Array, w: Array | float) -> Array:
        """Returns the bounds (J,)."""
        return self.constant + order * self.of_order + w * self.of_frequency

    def log_error(self, order: Array, w: Array | float, step: Array) -> Array:
        """Returns a bound on the log of the rule's error over the moment."""
        x = self.heights * (2 * jnp.pi / step)
        least = jnp.min(self.costs(order, w) - x - jnp.log(-jnp.expm1(-x)))
        return jnp.log(2 * jnp.exp(least) + math.exp(log_left_out()))


class TrapezoidLaw(Law):
    """A law whose nodes are those of a trapezoid rule in the noise: equal weights, and geometric convergence."""

    most_pieces: ClassVar[int]
    """Most pieces that nodes for complex orders come in."""

    @abstractmethod
    def nodes(self, low: Array, step: Array) -> Nodes:
        """Returns RULE nodes in the middles of steps that start at ``low``."""

    def lines(self) -> Lines:
        """Returns the lines that bound the rule's error; a law with better bounds replaces the methods below."""
        raise NotImplementedError

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        return self.lines().log_error(order, w, step)

    def widest_step(self, order: Array, w: Array) -> Array:
        """Returns the largest step whose error, for frequencies up to w, is as small as what nodes leave out."""
        lines = self.lines()
        return jnp.max(lines.heights / (lines.costs(order, w) + (arithmetic().cut + BEYOND))) * (2 * jnp.pi)

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns the places between which the law tilted by ``order`` has more than e^-(cut + BEYOND) of its peak."""
        logs = scan.log_p + order * scan.losses
        counts = logs > jnp.max(logs) - arithmetic().cut - BEYOND
        x = scan.places
        spacing = x[1] - x[0]
        return jnp.min(jnp.where(counts, x, jnp.inf)) - spacing, jnp.max(jnp.where(counts, x, -jnp.inf)) + spacing

    def pieces_needed(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns how many pieces it takes, not capped by ``most_pieces``; one where that is not known."""
        needed = jnp.ceil((window[1] - window[0]) / (self.widest_step(order, w) * RULE))
        return jnp.clip(needed, 1, 2.0**20).astype(jnp.int32)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        return jnp.minimum(self.pieces_needed(order, w, window), self.most_pieces)

    def slope_error(self, order: Array, scan: Nodes, value: Array, step: Array) -> Array:
        # The rule's error is an analytic function of the order. By Cauchy's formula its slope at t is at most its
        # largest value within r of t, over r. There the error is at most that of order t + r and frequency r: it grows
        # with the order, as moments do, or they are at most 1. What the nodes leave out counts with the losses there,
        # not far beyond the scan's. Any r will do; within one of t, moments are not of another size where large losses
        # are rare.
        r = jnp.minimum(jnp.minimum(0.25 * order, 1.0), self.largest_order() - order)
        largest = jnp.exp(jnp.maximum(cumulant_above(scan, order + r, self), 0.0) - value)
        error = jnp.exp(self.log_quadrature_error(order + r, r, step))
        # In the slope of the logarithm the moment's own error counts besides, and that of P's and Q's masses, which
        # :func:`moments` takes for whole.
        return 2 * error * largest * (2 + 1 / r + 4 * jnp.max(jnp.abs(scan.losses)))

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        step = self.step(window, pieces)
        return self.nodes(begin(window[0], step) + step * RULE * index, step)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        return step_across(*window, RULE * pieces)


def step_across(low: Array, high: Array, count: Array | int) -> Array:
    """Returns the step of so many nodes from ``low`` to ``high``.

    In few digits it has few bits, and is so wide that nodes may begin up to one step below ``low`` (:func:`begin`).
    """
    if not arithmetic().has_few_digits:
        return (high - low) / count
    return few_bits((high - low) * (1 + 2.0**-8) / (count - 1))


def begin(low: Array, step: Array) -> Array:
    """Returns where nodes begin: at ``low``, or in few digits at a whole multiple of the step that is not above it."""
    return step * jnp.floor(low / step) if arithmetic().has_few_digits else low


def places_of(low: Array, step: Array) -> Array:
    """Returns RULE places in the middles of steps from ``low`` on.

    In few digits they are multiples of half a step, which are exact up to 2^12 steps from 0, as ``low`` is one of the
    step: a place that rounds is one more error of first order.
    """
    count = jnp.asarray(np.arange(RULE) + 0.5, step.dtype)
    return step * (jnp.round(low / step) + count) if arithmetic().has_few_digits else low + step * count


def least_bound(bound: Callable[[Array], Array], weights: Array, slope: Array, at_mode: Array) -> Array:
    """Returns the least of two bounds on ``log |E_t[e^(iwY)]|``, or 0 where neither is below that.

    Every height of a line beside the real one gives a bound, and the best is about w times the deviation of the loss.
    ``bound`` takes a slope of the loss in the law's own coordinate, which makes a height of it; two are tried. In few
    digits it counts its own rounding.

    Args:
        bound: slope () -> bound ().
        weights (J,): shares of the nodes in the moment.
        slope (J,): slopes of the loss at the nodes, at least 0.
        at_mode (): its slope at the heaviest nodes.
    """
    # The mean square counts the bulk, and not the rare jumps, as a deviation would; the mode only the bulk.
    bounds = jax.vmap(bound)(jnp.stack([jnp.sqrt(jnp.sum(weights * slope**2)), at_mode]))
    bounds = bounds if arithmetic().has_few_digits else bounds + modulus_rounding()
    return jnp.min(jnp.where(bounds < 0, bounds, 0.0))


def law_of(pair: DominatingPair) -> Law:
    """Returns the law of a pair; raises TypeError where it has none in the ambient precision."""
    law = pair.law()
    if law is None:
        kind = type(pair).__name__
        raise TypeError(
            f"{kind} has no moments of complex order in this precision: use jaxacct.prv for this mechanism."
        )
    return law


def in_float64_only(law: Law) -> Law | None:
    """Returns the law, or None in float32: for laws whose certificates are written for float64 alone."""
    return None if arithmetic().has_few_digits else law


def moments(nodes: Nodes, orders: Array) -> Moments:
    """Returns the moments at real orders t >= -1/2, () or (n,), without cancellation however close to 1 a moment is.

    With phi(x) = e^x - 1 - x and E_P[e^-Y; Y finite] known, the moment's distance from 1 is the sum of p (phi(t Y) + t
    phi(-Y)), whose terms have one sign, plus t ``missing`` less (t + 1) ``infinite``. Its derivative is likewise the
    sum of p (Y (e^(tY) - 1) + phi(-Y)). For t in (-1/2, 0) the terms of the first differ in sign, but their sum loses
    no more than a few bits.
    """
    if jnp.ndim(orders) == 0:
        return _moments(nodes, orders)
    return jax.vmap(lambda order: _moments(nodes, order))(orders)


@jax.jit
def _moments(nodes: Nodes, t: Array) -> Moments:
    """Returns :func:`moments` at one order."""
    y, log_p, limit = nodes.losses, nodes.log_p, arithmetic().largest_exponent
    p, power = jnp.exp(log_p), t * y
    logs = log_p + power
    top = jnp.maximum(jnp.max(logs), -1e30)  # a number, where there is no mass at all
    weights = jnp.exp(logs - top)
    total = jnp.sum(weights)
    direct = top + jnp.log(total)
    # Near 1 the logarithm of a sum would have the sum's rounding for all of its digits.
    near = jnp.abs(direct) < 0.25
    # Remainders phi of the order, and of order -1, in one call.
    capped = jnp.minimum(jnp.stack([power, -y]), limit)
    ahead, back = exp_remainder(capped, jnp.exp(capped) - 1)
    # Far out p e^-Y is q, against which p alone is negligible.
    back = jnp.where(y < -30.0, jnp.exp(nodes.log_q), p * back)
    # Where e^(tY) overflows it dwarfs the rest of phi, and p e^(tY) comes from its logarithm.
    huge = power > limit
    remainder = jnp.where(huge, jnp.exp(jnp.where(huge & near, logs, -jnp.inf)), p * ahead)
    lean = remainder + jnp.where(huge, 0.0, p * power)
    of_value, of_slope = remainder + t * back, y * lean + back
    missing, infinite = nodes.missing, nodes.infinite
    excess = jnp.where(near, jnp.sum(of_value) + t * missing - (t + 1) * infinite, 0.0)
    rise = jnp.sum(of_slope) + missing - infinite
    slope = jnp.where(near, rise / (1 + excess), jnp.sum(weights * y) / total)
    curvature = jnp.sum(weights * (y - slope) ** 2) / total
    return Moments(jnp.where(near, jnp.log1p(excess), direct), slope, curvature)


class Careful(NamedTuple):
    """Moments at an order t, and bounds on what they err by, against the sums over exact nodes.

    Attributes:
        moments: the moments.
        value_error (), slope_error (): bounds on the errors of value and slope.
    """

    moments: Moments
    value_error: Array
    slope_error: Array


@jax.jit
def careful_moments(nodes: Nodes, t: Array, roundings: Roundings) -> Careful:
    """Returns moments at an order t () >= 0, whose errors are some hundred units of themselves, however small they are.

    All numbers are taken over e^T, T the largest log of a weight, at least 0. With x = tY, the value's terms are p
    phi(x) and t p phi(-Y), and the slope's p Y (e^x - 1) and p phi(-Y): none is negative. Masses err by ``a`` units and
    losses by ``b`` of themselves, and by ``d`` besides (:meth:`Law.roundings`).

    *Terms.* x is right to b + 1 units of itself, which move phi(x) by at most (2 + max(x, 0)) times that, relatively,
    and e^x - 1 by (1 + max(x, 0)). Both are right to 45 units besides (:func:`exp_remainder`; expm1 errs by 8). The
    logarithm of p over e^T rounds by |log p - T| if T is not 0, exp errs by 8, products round three times. So a + |log
    p| + |log p - T| + (b + 1)(3 + |x| + |Y|) + 64 units are enough of each. Beyond ``far`` phi(x) is e^x to all digits,
    and is formed from log p + x - T, whose two sums round by |log p + x| and by |log p + x - T|: 2 |x| more at most.
    The errors d move a term of the value by t p (|e^x - 1| + |e^-Y - 1|) d, and one of the slope by (p |e^x - 1| + |x|
    p e^x + p |e^-Y - 1|) d.

    *Results.* A sum adds its own units (:meth:`.Arithmetic.of_sum`). The moment over e^T is the value's sum and e^-T;
    its logarithm errs by 8 units of itself, and by one of its sum with T. The slope is a quotient of sums.
    """
    far = 40.0
    y, log_p, u = nodes.losses, nodes.log_p, roundoff()
    (a, b, d), x = roundings, t * y
    logs = log_p + x
    top = jnp.maximum(jnp.max(logs), 0.0)
    p, grown, q = (jnp.exp(jnp.maximum(log, -1e30)) for log in (log_p - top, logs - top, nodes.log_q - top))
    capped = jnp.minimum(jnp.stack([x, -y]), far)
    expm1 = jnp.expm1(capped)
    ahead, back = exp_remainder(capped, expm1)
    ahead, lean = jnp.where(x > far, grown, p * ahead), jnp.where(x > far, grown, p * expm1[0])
    back, fall = jnp.where(-y > far, q, p * back), jnp.where(-y > far, q, p * jnp.abs(expm1[1]))
    sizes = jnp.where(log_p > -jnp.inf, jnp.abs(log_p), 0.0)
    from_top = jnp.where(log_p > -jnp.inf, jnp.abs(log_p - top), 0.0)
    units = a + sizes + from_top + (b + 3) * (3 + jnp.abs(x) + jnp.abs(y)) + (64 + arithmetic().of_sum(y.shape[0]))
    of_value, of_slope = ahead + t * back, y * lean + back
    off_value = units * of_value + t * d * (jnp.abs(lean) + fall)
    off_slope = units * of_slope + d * (jnp.abs(lean) + jnp.abs(x) * grown + fall)
    excess, rise, off_value, off_slope = jnp.sum(jnp.stack([of_value, of_slope, off_value, off_slope]), axis=1)
    rest = jnp.exp(-top)
    moment = excess + rest
    value = jnp.where(top > 0, top + jnp.log(moment), jnp.log1p(excess))
    value_error = 1.01 * u * (off_value / moment + 10 * jnp.abs(value))
    slope = rise / moment
    slope_error = 1.01 * (u * off_slope / moment + jnp.abs(slope) * (value_error + 8 * u))
    weights = jnp.exp(logs - value)
    curvature = jnp.sum(weights * (y - slope) ** 2)
    return Careful(Moments(value, slope, curvature), value_error, slope_error)


def units_of_shares(nodes: Nodes, t: Array, roundings: Roundings, known: Careful) -> Array:
    """Returns units of roundoff (J,) by which shares p e^(tY) / M of a moment err, relative to themselves.

    The log of the weight errs by a + |log p + x| + (b + 1) |x| + t d units, in the terms of :func:`careful_moments`,
    and that of the moment by what is known; their difference rounds, and exp errs by 8.
    """
    logs = nodes.log_p + t * nodes.losses
    sizes = jnp.where(nodes.log_p > -jnp.inf, jnp.abs(logs) + jnp.abs(logs - known.moments.value), 0.0)
    mass, loss, shift = roundings
    return mass + sizes + (loss + 1) * jnp.abs(t * nodes.losses) + t * shift + (8 + known.value_error / roundoff())


class Rungs(NamedTuple):
    """Moments that nodes give at real orders t (n,), without care for their last digits.

    Attributes:
        value (n,): ``log E_P[e^(t Y); Y < inf]``, as summed over the nodes.
        off (n,): bounds on the rounding of the values.
        slope (n,), curvature (n,): derivatives in t.
    """

    value: Array
    off: Array
    slope: Array
    curvature: Array

    @property
    def above(self) -> Array:
        """Upper bounds (n,) on the sums over the nodes."""
        return self.value + self.off


def rungs(nodes: Nodes, orders: Array, law: Law | None = None) -> Rungs:
    """Returns moments at real orders (n,), by one product of matrices; in few digits with care (:class:`Careful`).

    It is cheaper than :func:`moments`, but its error is absolute: it is not made for a moment that is raised to the
    power of the steps and wanted to the last digit. With logs l = log p + t y, each off by a few units of |log p| and
    of |t y|, sixteen here, the sum of e^l is off relative to itself by their mean under its own weights, and by the
    roundings of a sum.
    """
    if arithmetic().has_few_digits:
        assert law is not None  # which knows the roundings of its nodes
        roundings = law.roundings(nodes)
        careful = jax.vmap(lambda order: careful_moments(nodes, order, roundings))(orders)
        return Rungs(careful.moments.value, careful.value_error, careful.moments.slope, careful.moments.curvature)
    y, u = nodes.losses, arithmetic().roundoff
    logs = nodes.log_p[None] + orders[:, None] * y[None]
    top = jnp.maximum(jnp.max(logs, axis=1), -1e30)
    weights = jnp.exp(logs - top[:, None])
    sizes = jnp.where(nodes.log_p > -jnp.inf, jnp.abs(nodes.log_p), 0.0)
    # One product sums the weights, their first and second moments, and the sizes that the rounding depends on.
    columns = jnp.stack([jnp.ones_like(y), y, y * y, sizes, jnp.abs(y)])
    total, slope, square, *off = jnp.matmul(columns, weights.T, precision="highest")
    slope = slope / total
    units = y.shape[0] + 16 + 4 * jnp.abs(top) + 16 * (off[0] + jnp.abs(orders) * off[1]) / total
    curvature = jnp.maximum(square / total - slope * slope, 0.0)
    return Rungs(top + jnp.log(total), u * units, slope, curvature)


def cumulant_above(nodes: Nodes, orders: Array, law: Law | None = None) -> Array:
    """Returns upper bounds on ``log E_P[e^(t Y); Y < inf]``, t () or (n,), summed over nodes; see :func:`rungs`."""
    return jnp.reshape(rungs(nodes, jnp.reshape(orders, -1), law).above, jnp.shape(orders))


# ----------------------------------------------------------------------------------------------------
# Laws with atoms, and a density between two ends: a rule of quadrature, and a bound on the characteristic function.
#
# *Quadrature.* On a panel of half-width H a Gauss-Legendre rule of n nodes errs by at most (64/15) H M rho^(2-2n)/(1 -
# rho^-2), M the largest modulus on the ellipse around the panel whose half-axes are H (rho +- 1/rho)/2, for any rho > 1
# that leaves the integrand analytic in it (Trefethen 2013, "Approximation Theory and Approximation Practice", Theorem
# 19.3).
#
# *Decay.* Atoms do not fade, so neither does the characteristic function: only many steps make it small. Where the
# density of the loss is at least m on a stretch of length l, a uniform law of mass m l is part of the law. Let nu be
# the part of atoms and stretches near the heaviest of them. The other stretches are a density of total variation V and
# mass M, whose transform at w' is of modulus at most V/w' (by parts), or M. So
#
#     |phi(w')| <= |nu^(w')| + min(M, V/w) + everything else,    w' >= w,
#
# nu^ the transform of nu. |nu^|^2 has a second derivative of at least -V', V' the integral of (x - x')^2 over nu and
# nu; so on an interval of length d it is at most the larger of its values at the ends plus V' d^2/8. Intervals from w
# to 2^12 w make a bound for all w' up to there; beyond, and wherever it is smaller, the bound without nu stands.
# ----------------------------------------------------------------------------------------------------

DEGREE = 32
"""Nodes of a panel. Any value is sound: the bound on the rule's error follows from it."""

LARGEST_POWER = 40.0
"""Largest order times loss, and largest loss, in nats, where losses are bounded.

Logarithms of weights are subtracted that differ by so much; up to this they keep the digits that are counted on.
"""

THETAS = np.concatenate([np.geomspace(0.02, 2.0, 24), np.linspace(2.2, 0.95 * np.pi, 4)])
"""Turns of a log likelihood ratio, in radians, at the top of the ellipses that the bound may use.

Any value below pi is sound, where a mixture may vanish.
"""

CELLS = 64
"""Number of stretches that a density is divided into. Any value is sound: more tighten the bound."""


def panel_nodes(low: Array, width: Array, index: Array | int, count: int) -> tuple[Array, Array]:
    """Returns nodes and the logs of their weights on ``count`` panels: the ``index``-th such row from ``low`` on."""
    points, weights = np.polynomial.legendre.leggauss(DEGREE)
    grid = (np.arange(count)[:, None] + ((points + 1) / 2)[None]).reshape(-1)
    return low + width * (count * index + grid), jnp.log(width) + np.tile(np.log(weights / 2), count)


class Ellipses(NamedTuple):
    """Ellipses around a law's panels, one for each of THETAS, and bounds on the integrand in them.

    The comments on each law derive the bounds; :meth:`log_error` makes a bound on the rule's error of them.

    Attributes:
        unit (): unit of the variable in which they are stated, over the unit of the law's steps.
        heights (J,): heights of the ellipses.
        costs (J,), turns (J,): the log of the modulus at that height over the one on the real line, at most, in nats;
            and the nats that a unit of frequency adds.
        fall () or (J,): largest rise of the log of the modulus in a unit of length beyond a panel's ends.
        log_size (): log of the largest density over the moment, times half of the length.
    """

    unit: Array
    heights: Array
    costs: Array
    turns: Array
    fall: Array
    log_size: Array

    def log_error(self, w: Array, step: Array) -> Array:
        """Returns a bound on the log of the rule's error over the moment, for panels of this half-width."""
        half = self.unit * step
        ratio = self.heights / half
        root = jnp.sqrt(1 + ratio**2)
        rho = root + ratio
        # The ellipse reaches beyond the panel by half (root - 1). Every ellipse bounds the error: the best one counts.
        gain = (2 * DEGREE - 2) * jnp.log(rho) + jnp.log(1 - rho**-2.0)
        least = jnp.min(self.costs + w * self.turns + self.fall * half * (root - 1) - gain)
        return jnp.log(64 / 15 * jnp.exp(self.log_size + least) + math.exp(log_left_out()))


class PanelLaw(Law):
    """A law by Gauss-Legendre panels, a fixed number of them to a piece; a step is half a panel's width."""

    @abstractmethod
    def ellipses(self, order: Array) -> Ellipses:
        """Returns the ellipses whose bounds bound the rule's error."""

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        return self.ellipses(order).log_error(w, step)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns the least number of pieces whose error is about that of the left-out tails, 8 if none's is."""
        most = 8  # sound for any number: more reach higher frequencies
        around, counts = self.ellipses(order), np.arange(1.0, most + 1)
        errors = jax.vmap(lambda step: around.log_error(w, step))(self.step(window, 1) / counts)
        # An error of the size of what the nodes leave out hardly adds to it.
        short = jnp.sum(jnp.cumprod(jnp.where(errors > log_left_out() + 0.02, 1, 0)))
        return jnp.minimum(short + 1, most).astype(jnp.int32)

    def log_total(self, order: Array, nodes: Nodes) -> tuple[Array, Array]:
        """Returns the log of the moment at a real order, and a bound on the relative error of shares of it."""
        missed = jnp.exp(self.log_quadrature_error(order, jnp.zeros_like(order), nodes.places[1]))
        # 1e-9 covers the masses of stretches: differences of shares, and of losses, of 1e-6 and above.
        return jax.nn.logsumexp(nodes.log_p + order * nodes.losses), missed + scale_error(1e-9)


def argument(share: Array, theta: Array) -> Array:
    """Returns arg(1 - share + share e^(i theta)), which grows with the share for theta in [0, pi)."""
    return jnp.arctan2(share * jnp.sin(theta), 1 - share + share * jnp.cos(theta))


def log_shrinkage(low: Array, high: Array, theta: Array) -> Array:
    """Returns the least log |1 - share + share e^(i theta)| for shares in [low, high]."""
    evenly = jnp.clip(0.5, low, high)
    return 0.5 * log_complement(4 * evenly * (1 - evenly) * jnp.sin(theta / 2) ** 2)


def log_decay(
    w: Array,
    atoms: tuple[Array, Array],
    losses: Array,
    log_density: Array,
    steepest: Array,
    flattest: Array,
    width: Array,
    error: Array,
) -> Array:
    """Returns a bound on log |phi|, phi the characteristic function, for all frequencies from w on.

    The comments at the head of this part derive it. The density of the loss is given at the ends of cells in the law's
    own coordinate x; each cell is a stretch of the loss on which it is bounded from below.

    Args:
        w (): frequency.
        atoms: losses (n,) and masses (n,).
        losses (rows, CELLS + 1): losses at the cells' ends, monotone.
        log_density (rows, CELLS + 1): log of the density of the loss there; the whole mass, with the atoms', is 1.
        steepest (rows, CELLS): upper bound on its slope in x.
        flattest (rows, CELLS): lower bound on its slope in x.
        width (rows, 1) or (rows, CELLS): width of the cells in x.
        error (): relative error of the masses.
    """
    # From an end inwards the density falls no faster than at its extreme slope: both ends give a lower bound.
    fall, rise = jnp.minimum(flattest, 0.0) * width, jnp.maximum(steepest, 0.0) * width
    least = jnp.exp(jnp.maximum(log_density[:, :-1] + fall, log_density[:, 1:] - rise))
    low, high = jnp.minimum(losses[:, :-1], losses[:, 1:]), jnp.maximum(losses[:, :-1], losses[:, 1:])
    known = jnp.isfinite(least) & (high > low) & (width > 0)
    places, masses = atoms
    density, widths = jnp.where(known, least, 0.0) * (1 - jnp.minimum(error, 1.0)), high - low
    # Atoms and stretches in one list, an atom as a stretch of no length.
    lengths = jnp.concatenate([jnp.zeros_like(places), widths.reshape(-1)])
    middles = jnp.concatenate([places, (low + high).reshape(-1) / 2])
    masses = jnp.concatenate([masses * (1 - jnp.minimum(error, 1.0)), (density * widths).reshape(-1)])
    offsets = middles - jnp.max(jnp.where(masses == jnp.max(masses), middles, -jnp.inf))
    atoms_first = len(places)
    # Twelve octaves of frequencies from w on, with six intervals in each, whose ends over the octave's beginning are
    # ``octave``, and 6/w, within which atoms and stretches make nu, are sound for any values: more octaves tighten the
    # bound. Phases are up to 12 in an octave then, of which an interval has 1.5.
    starts, octave = w * 2.0 ** np.arange(13), 2.0 ** (np.arange(7) / 6)

    def deficit(far: Array, start: Array) -> Array:
        """Returns how far the transform of the other stretches is below their mass, from a frequency on."""
        jumps = jnp.abs(jnp.diff(far, axis=1, prepend=0.0, append=0.0))
        mass = jnp.sum(far * widths)
        return mass - jnp.minimum(mass, jnp.sum(jumps) / start)

    def octave_bound(start: Array) -> Array:
        """Returns a bound for the frequencies from ``start`` to twice that."""
        near = jnp.abs(offsets) + lengths / 2 <= 6.0 / start
        mass = jnp.where(near, masses, 0.0)
        first = jnp.sum(mass * offsets)
        # V' of the bound above: twice the mass times the second moment, less the first moment squared.
        variation = 2 * (jnp.sum(mass) * jnp.sum(mass * (offsets**2 + lengths**2 / 12)) - first**2)
        frequencies = start * octave

        def transform(w: Array) -> Array:
            half = w * lengths / 2
            # The squared modulus of nu's transform, from cos - 1 so that nothing cancels where phases are small.
            cosines, sines = cosm1_and_sin(jnp.stack([w * offsets, half]))
            heights = mass * jnp.where(half < 1e-4, 1 - half**2 / 6, sines[1] / jnp.maximum(half, 1e-4))
            return (jnp.sum(heights) + jnp.sum(heights * cosines[0])) ** 2 + jnp.sum(heights * sines[0]) ** 2

        squares = jax.vmap(transform)(frequencies)
        spacing = frequencies[1:] - frequencies[:-1]
        here = jnp.sqrt(jnp.max(jnp.maximum(squares[:-1], squares[1:]) + variation * spacing**2 / 8))
        far = jnp.where(near[atoms_first:].reshape(density.shape), 0.0, density)
        return 1 - jnp.sum(mass) - deficit(far, start) + here

    # Beyond the last octave, and where an octave's bound is worse, atoms and near stretches count with their whole
    # mass.
    without = 1 - deficit(density, starts)
    bound = jnp.maximum(jnp.max(jnp.fmin(jax.vmap(octave_bound)(starts[:-1]), without[:-1])), without[-1])
    bound = bound + modulus_rounding()
    return jnp.where(jnp.isnan(bound), 0.0, jnp.log(jnp.minimum(bound, 1.0)))
