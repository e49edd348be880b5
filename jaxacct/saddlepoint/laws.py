"""What the contour integral needs of one privacy loss: nodes for its moments, and bounds on what they miss.

A law is made for a dominating pair by :func:`law_of`, which knows the kinds of pairs for which moments of complex order
are sums of few terms. Everything here is written for the ambient precision: float64 inside the scope, float32 outside.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.cumulants import exp_remainder


class Precision(NamedTuple):
    """What follows from the number of bits."""

    roundoff: float
    cut: float
    """Log of what a truncation may leave out, relative to what is there."""
    reach: float
    """Standard deviations beyond which a normal law has less than e^-cut of its mass, and some to spare."""
    largest_exponent: float
    """Exponentials beyond are kept as their exponents."""


def precision() -> Precision:
    """Returns the precision of the ambient scope."""
    if jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64:
        return Precision(2.0**-53, 36.0, 10.0, 600.0)
    return Precision(2.0**-24, 16.0, 6.5, 80.0)


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


class Moments(NamedTuple):
    """``log E_P[e^(t Y); Y < inf]`` and its first two derivatives in t."""

    value: Array
    slope: Array
    curvature: Array


class Law(Protocol):
    """One loss, in the form that the contour integral takes it."""

    def largest_order(self) -> Array:
        """Returns the largest order for which :meth:`scan` gives moments."""
        ...

    def scan(self) -> Nodes:
        """Returns nodes for the moments of every real order up to the largest."""
        ...

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns where the nodes for the moments of the orders ``order + i w`` begin and end."""
        ...

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns how many pieces, each of a fixed number of nodes, the frequencies up to w take."""
        ...

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        """Returns one of so many pieces."""
        ...

    def step(self, window: tuple[Array, Array], pieces: Array) -> Array:
        """Returns the distance of the nodes."""
        ...

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        """Returns an upper bound, for all frequencies from w on, of ``log |E_t[e^(iwY)]|``; 0 where none is known."""
        ...

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        """Returns a bound on the log of the error of any moment of order t + iw', |w'| <= w, over that of order t.

        For nodes that are ``step`` apart.
        """
        ...


@functools.singledispatch
def law_of(pair: Any) -> Law:
    """Returns the law of a dominating pair, or raises TypeError where there is none in the ambient precision."""
    raise TypeError(
        f"no moments of complex order are known for {type(pair).__name__}: use jaxacct.prv for this mechanism."
    )


def only_in_float64(pair: Any) -> None:
    """Raises TypeError outside the float64 scope, for pairs that are written for it alone."""
    if precision().roundoff != 2.0**-53:
        raise TypeError(f"{type(pair).__name__} has moments of complex order in float64 only: use it, or jaxacct.prv.")


def has_law(pair: Any) -> bool:
    """Returns whether there is a law for this pair, in the ambient precision."""
    try:
        law_of(pair)
    except TypeError:
        return False
    return True


def moments(nodes: Nodes, order: Array) -> Moments:
    """Returns the moments at a real order t > 0, without cancellation however close to 1 the moment is.

    With phi(x) = e^x - 1 - x and E_P[e^-Y; Y finite] known, the moment's distance from 1 is the sum of p (phi(t Y) + t
    phi(-Y)), of one sign, and what infinite losses take; likewise its derivative, sum of p (Y (e^(tY) - 1) + phi(-Y)).
    """
    y, limit = nodes.losses, precision().largest_exponent
    p, power = jnp.exp(nodes.log_p), order * y
    logs = nodes.log_p + power
    top = jnp.max(logs)
    weights = jnp.exp(logs - top)
    total = jnp.sum(weights)
    weights = weights / total
    direct = top + jnp.log(total)
    capped, reverse = jnp.minimum(power, limit), jnp.minimum(-y, limit)
    # Far out p e^-Y is q, and p alone nothing beside it.
    back = jnp.where(-y > 30.0, jnp.exp(nodes.log_q), p * exp_remainder(reverse, jnp.exp(reverse) - 1))
    near = jnp.abs(direct) < 0.25
    # Where e^(tY) overflows it is all there is, and p e^(tY) what counts.
    huge = power > limit
    far = jnp.exp(jnp.where(huge & near, logs, -jnp.inf))
    remainder = exp_remainder(capped, jnp.exp(capped) - 1)
    up = jnp.where(huge, far, p * remainder)
    lean = jnp.where(huge, far, p * (remainder + capped))
    excess = jnp.sum(up + order * back) + order * nodes.missing - (order + 1) * nodes.infinite
    rise = jnp.sum(y * lean + back) + nodes.missing - nodes.infinite
    value = jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), direct)
    slope = jnp.where(near, rise / (1 + jnp.where(near, excess, 0.0)), jnp.sum(weights * y))
    return Moments(value, slope, jnp.sum(weights * (y - slope) ** 2))
