"""What the contour integral needs of one privacy loss: nodes for its moments, and bounds on what they miss.

A pair whose moments of complex order are sums of few terms has one: :meth:`.DominatingPair.law`. Everything here is
written for the ambient precision: float64 inside the scope, float32 outside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.arithmetic import arithmetic, scaled, with_pair_form
from jaxacct.dominating_pairs.moments import exp_remainder
from jaxacct.float_pairs import few_digits

RULE = 256
"""Nodes of a trapezoid rule: of the scan, and of each piece for complex orders."""

BEYOND = 14.0
"""Nats below the cut at which nodes end, and the quadrature's error is wanted: what k steps leave out is k times it."""


LOG_UNITS = 16
"""Units of roundoff by which logs of masses and losses may err relative to themselves where a law ``is_close``."""


def log_left_out() -> float:
    """Returns the log of what the nodes leave out where a density falls below e^-(cut + BEYOND) of its maximum."""
    return -(arithmetic().cut + BEYOND - 4.0)


def modulus_rounding() -> float:
    """Returns what the rounding of a bound on the modulus of a characteristic function may come to.

    In float64 1e-13: sums of some hundred terms, below one together, each right to some 200 units. To the power of very
    many steps that counts. What proves nothing is not held up by it.
    """
    return scaled(1e-13) if arithmetic().is_certified else 0.0


class Nodes(NamedTuple):
    """A law of the loss as finitely many weighted values.

    Attributes:
        losses (J,): finite.
        log_p (J,), log_q (J,): logs of the masses under P and Q; -inf for a node that does not count.
        infinite (): P's mass where the loss is +inf.
        missing (): Q's mass where the loss is -inf.
        places (J,): where the nodes lie in the law's own coordinate.
    """

    losses: Float[Array, " J"]
    log_p: Float[Array, " J"]
    log_q: Float[Array, " J"]
    infinite: Array
    missing: Array
    places: Float[Array, " J"]


class Marked(NamedTuple):
    """The losses of one run beyond a place, which a law leaves out (:mod:`jaxacct.saddlepoint.rare`).

    Attributes:
        place (): in the law's own coordinate; inf where there are none.
        p (), q (): masses of P and Q.
        error (): bound on their relative errors.
        loss (): bound on their losses, from below where these ``are_large``, else from above.
        are_large (): whether losses rise with the place.
    """

    place: Array
    p: Array
    q: Array
    error: Array
    loss: Array
    are_large: Array


def tilted(nodes: Nodes, order: Array) -> Array:
    """Returns the shares (J,) that the nodes have in the moment of a real order."""
    return jax.nn.softmax(nodes.log_p + order * nodes.losses)


class Moments(NamedTuple):
    """``log E_P[e^(t Y); Y < inf]`` and its first two derivatives in t."""

    value: Array
    slope: Array
    curvature: Array


class Law(ABC):
    """One loss, in the form that the contour integral takes it.

    Nodes for complex orders come in pieces, for they must resolve the oscillation. By default the scan's will do for
    every frequency, and nothing is known of how the characteristic function fades: a sum of atoms.
    """

    has_marks: ClassVar[bool] = False
    """Whether losses beyond a place may be left out: :meth:`mark_from`, :meth:`marked`, :meth:`kept`."""

    recurring: ClassVar[float] = 0.0
    """About the modulus to which a characteristic function comes back however far out: the share of atoms.

    Where that of a sum cannot fall no integral along a line ends. Sound for any value: one too large costs convergence.
    """

    is_close: ClassVar[bool] = False
    """Whether logs of masses and losses are right to LOG_UNITS of themselves, as :func:`moments_and_errors` asks.

    Not where a loss is the difference of two logarithms that may be far larger.
    """

    @abstractmethod
    def largest_order(self) -> Array:
        """Returns the largest order for which :meth:`scan` gives moments."""

    @abstractmethod
    def scan(self) -> Nodes:
        """Returns nodes for the moments of every real order from -1, whose moment is Q's mass, up to the largest.

        Close to 1 moments are formed from what they differ from it by, which rests on Q's mass being 1.
        """

    def mark_from(self, large: Array, small: Array, log_mass: Array) -> Array:
        """Returns the place beyond which losses are left out; inf where that is not worth it.

        All of them are at least ``large``, if they are large, or at most ``small``, if they are not; or they have about
        ``log_mass`` of P. In the law's own coordinate, the lower of the two places.
        """
        return jnp.full_like(large, jnp.inf)

    def marked(self, place: Array) -> Marked:
        """Returns the losses beyond a place."""
        raise NotImplementedError

    def kept(self, marked: Marked) -> Law:
        """Returns the law without them."""
        raise NotImplementedError

    @abstractmethod
    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        """Returns a bound on the log of the error of any moment of order t + iw', |w'| <= w, over that of order t.

        For nodes that are ``step`` apart.
        """

    def log_scan_errors(self, orders: Array, step: Array) -> Array:
        """Returns the same at frequency 0 for several orders (n,)."""
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
"""Largest spacing of a scan, ``min(FINEST s^2/spread, COARSEST s)`` for locations that spread so far.

It errs by e^(-2 pi pi/0.3) = 3e-29; where nothing spreads all is a normal density, and the rule errs by 2 e^(-2 pi^2 /
0.25), 1e-34.
"""


class Lines(NamedTuple):
    """Lines beside the real one on which a law's integrand is analytic, and bounds on its size there.

    That is the log of the integral of its modulus, for orders t >= 0 and frequencies up to w, over the moment of the
    order: ``constant + t of_order + w of_frequency``. A trapezoid rule of spacing h then errs by at most 2/(e^x - 1)
    times that integral on the line at height b, x = 2 pi b/h (Trefethen and Weideman 2014, "The exponentially
    convergent trapezoidal rule", Theorem 5.1).

    Attributes:
        heights (J,), constant (J,), of_order (J,), of_frequency (J,): inf where there is no bound.
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
        least = jnp.min(self.costs(order, w) - self.heights * (2 * jnp.pi / step))
        return jnp.log(2 * jnp.exp(least) + math.exp(log_left_out()))


class TrapezoidLaw(Law):
    """A trapezoid rule in the noise, of which all weights are alike; it converges geometrically."""

    most_pieces: ClassVar[int]
    """The most pieces that nodes for complex orders come in."""

    @abstractmethod
    def nodes(self, low: Array, step: Array) -> Nodes:
        """Returns RULE nodes in the middles of steps that start at ``low``."""

    def lines(self) -> Lines:
        """Returns what bounds the rule's error. A law that knows better replaces what follows from it."""
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
        apart = x[1] - x[0]
        return jnp.min(jnp.where(counts, x, jnp.inf)) - apart, jnp.max(jnp.where(counts, x, -jnp.inf)) + apart

    def pieces_needed(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns how many pieces it takes, however many that are; one where that is not known."""
        needed = jnp.ceil((window[1] - window[0]) / (self.widest_step(order, w) * RULE))
        return jnp.clip(needed, 1, 2.0**20).astype(jnp.int32)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        return jnp.minimum(self.pieces_needed(order, w, window), self.most_pieces)

    def slope_error(self, order: Array, scan: Nodes, value: Array, step: Array) -> Array:
        # The rule's error is an analytic function of the order. By Cauchy's formula its slope at t is at most what it
        # is within r of t over r, and there it is at most that of order t + r and frequency r: it grows with the order,
        # as moments do, or they are at most 1. What the nodes leave out counts with the losses there, not far beyond
        # the scan's. Any r will do; within one of t, moments are not of another size where large losses are rare.
        r = jnp.minimum(jnp.minimum(0.25 * order, 1.0), self.largest_order() - order)
        largest = jnp.exp(jnp.maximum(cumulant_above(scan, order + r), 0.0) - value)
        error = jnp.exp(self.log_quadrature_error(order + r, r, step))
        # In the slope of the logarithm the moment's own error counts besides, and that of P's and Q's masses, which
        # :func:`moments` takes for whole.
        return 2 * error * largest * (2 + 1 / r + 4 * jnp.max(jnp.abs(scan.losses)))

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        step = self.step(window, pieces)
        return self.nodes(window[0] + step * RULE * index, step)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        return (window[1] - window[0]) / (RULE * pieces)


class HasLaw(Protocol):
    """A pair, or what is left of one."""

    def law(self) -> Law | None:
        """Returns the law, or None."""


def law_of(pair: HasLaw) -> Law:
    """Returns the law of a pair; raises TypeError where it has none in the ambient precision."""
    law = pair.law()
    if law is None:
        kind = type(pair).__name__
        raise TypeError(
            f"{kind} has no moments of complex order in this precision: use jaxacct.prv for this mechanism."
        )
    return law


def in_float64_only(law: Law) -> Law | None:
    """Returns the law within the float64 scope, and None outside: for those that are written for it alone."""
    return law if arithmetic().is_certified else None


def moments(nodes: Nodes, orders: Array) -> Moments:
    """Returns the moments at real orders t >= -1/2, () or (n,), without cancellation however close to 1 a moment is.

    With phi(x) = e^x - 1 - x and E_P[e^-Y; Y finite] known, the moment's distance from 1 is the sum of p (phi(t Y) + t
    phi(-Y)), of one sign, and what infinite losses take; likewise its derivative, sum of p (Y (e^(tY) - 1) + phi(-Y)).
    For t in (-1/2, 0) the terms of the first differ in sign, but their sum loses no more than a few bits.
    """
    return moments_and_errors(nodes, orders)[0]


def moments_and_errors(nodes: Nodes, orders: Array) -> tuple[Moments, Array | None, Array | None]:
    """Returns the moments, and bounds on what rounding does to value and slope; inf where they are taken directly.

    None where a share of the value will do, for digits are many.
    """
    if jnp.ndim(orders) == 0:
        return _moments(nodes, orders)
    return jax.vmap(lambda order: _moments(nodes, order))(orders)


@jax.jit
def _moments(nodes: Nodes, t: Array) -> tuple[Moments, Array | None, Array | None]:
    """Returns the same at one order."""
    y, log_p, limit = nodes.losses, nodes.log_p, arithmetic().largest_exponent
    p, power = jnp.exp(log_p), t * y
    logs = log_p + power
    top = jnp.maximum(jnp.max(logs), -1e30)  # a number, where there is no mass at all
    weights = jnp.exp(logs - top)
    total = jnp.sum(weights)
    direct = top + jnp.log(total)
    near = jnp.abs(direct) < 0.25
    # Those of the order, and of -1, at once.
    capped = jnp.minimum(jnp.stack([power, -y]), limit)
    ahead, back = exp_remainder(capped, jnp.exp(capped) - 1)
    # Far out p e^-Y is q, and p alone nothing beside it.
    back = jnp.where(y < -30.0, jnp.exp(nodes.log_q), p * back)
    # Where e^(tY) overflows it is all there is, and p e^(tY) what counts.
    huge = power > limit
    up = jnp.where(huge, jnp.exp(jnp.where(huge & near, logs, -jnp.inf)), p * ahead)
    lean = up + jnp.where(huge, 0.0, p * power)
    of_value, of_slope = up + t * back, y * lean + back
    missing, infinite = nodes.missing, nodes.infinite
    excess = jnp.where(near, jnp.sum(of_value) + t * missing - (t + 1) * infinite, 0.0)
    rise = jnp.sum(of_slope) + missing - infinite
    slope = jnp.where(near, rise / (1 + excess), jnp.sum(weights * y) / total)
    curvature = jnp.sum(weights * (y - slope) ** 2) / total
    found = Moments(jnp.where(near, jnp.log1p(excess), direct), slope, curvature)
    return found, *_rounding_of_moments((of_value, of_slope), nodes, t, slope, near, LOG_UNITS)


@with_pair_form(traced=few_digits.rounding_of_moments)
def _rounding_of_moments(*_: Any) -> tuple[Array | None, Array | None]:
    """Returns that nothing is said of value and slope."""
    return None, None


class Rungs(NamedTuple):
    """What nodes say at real orders t (n,): moments without care for their last digits.

    Attributes:
        value (n,): ``log E_P[e^(t Y); Y < inf]``, as nodes have it.
        off (n,): bounds on the rounding of these.
        slope (n,), curvature (n,): derivatives in t.
    """

    value: Array
    off: Array
    slope: Array
    curvature: Array

    @property
    def above(self) -> Array:
        """Upper bounds (n,) on what the nodes say."""
        return self.value + self.off


def rungs(nodes: Nodes, orders: Array) -> Rungs:
    """Returns moments at real orders (n,), by one product of matrices.

    Cheaper than :func:`moments`, and not made for what is raised to the power of the steps and wanted to the last
    digit: the error is absolute. With logs l = log p + t y, each off by a few units of |log p| and of |t y|, sixteen
    here, the sum of e^l is off relative to itself by their mean under its own weights, and by the roundings of a sum.
    """
    y, u = nodes.losses, arithmetic().roundoff
    logs = nodes.log_p[None] + orders[:, None] * y[None]
    top = jnp.maximum(jnp.max(logs, axis=1), -1e30)
    weights = jnp.exp(logs - top[:, None])
    sizes = jnp.where(nodes.log_p > -jnp.inf, jnp.abs(nodes.log_p), 0.0)
    columns = jnp.stack([jnp.ones_like(y), y, y * y, sizes, jnp.abs(y)])
    total, slope, square, *off = jnp.matmul(columns, weights.T, precision="highest")
    slope = slope / total
    units = y.shape[0] + 16 + 4 * jnp.abs(top) + 16 * (off[0] + jnp.abs(orders) * off[1]) / total
    curvature = jnp.maximum(square / total - slope * slope, 0.0)
    return Rungs(top + jnp.log(total), u * units, slope, curvature)


def cumulant_above(nodes: Nodes, orders: Array) -> Array:
    """Returns upper bounds on ``log E_P[e^(t Y); Y < inf]``, t () or (n,), as nodes have it; see :func:`rungs`."""
    return jnp.reshape(rungs(nodes, jnp.reshape(orders, -1)).above, jnp.shape(orders))
