"""Losses with atoms, and a density between two ends: a rule of quadrature, and a bound on the characteristic function.

*Quadrature.* On a panel of half-width H a Gauss-Legendre rule of n nodes errs by at most (64/15) H M rho^(2-2n)/(1 -
rho^-2), M the largest modulus on the ellipse around the panel whose half-axes are H (rho +- 1/rho)/2, for any rho > 1
that leaves the integrand analytic in it (Trefethen 2013, "Approximation Theory and Approximation Practice", Theorem
19.3).

*Decay.* Atoms do not fade, so neither does the characteristic function: only many steps make it small. Where the
density of the loss is at least m on a stretch of length l, a uniform law of mass m l is part of the law. Let nu be the
part of atoms and stretches near the heaviest of them. With what is known of the others,

    |phi(w')| <= |nu^(w')| + sum over other stretches of m l S(w l/2) + everything else,    w' >= w,

nu^ the transform of nu, S(x) the largest |sin y / y| for y >= x. |nu^|^2 has a second derivative of at least -V, V the
integral of (x - x')^2 over nu and nu; so on an interval of length d it is at most the larger of its values at the ends
plus V d^2/8. Intervals from w to 2^LEVELS w make a bound for all w' up to there; beyond, and wherever it is smaller,
that without nu stands, which falls with w. There long stretches are best for small w, and short ones, which leave out
less, for large w.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.arithmetic import scaled
from jaxacct.dominating_pairs.law import Law, Nodes, log_left_out, modulus_rounding
from jaxacct.dominating_pairs.turns import turned
from jaxacct.precision import log_complement

DEGREE = 32
"""Nodes of a panel."""

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(DEGREE)
POINTS, WEIGHTS = (_POINTS + 1) / 2, _WEIGHTS / 2
LOG_WEIGHTS = np.log(WEIGHTS)
"""Nodes, weights and their logs, on [0, 1]."""

PIECES = 8
"""Most pieces that the nodes for complex orders come in."""

HIGHEST = 0.95 * np.pi
"""Largest imaginary part of a log likelihood ratio that is used; at pi a mixture may vanish."""

LARGEST_POWER = 40.0
"""Largest order times loss, and largest loss, where losses are bounded: so that the logarithms of weights, of which
differences that large are taken, keep the digits that are counted on."""

RATIOS = np.geomspace(1.1, 60.0, 64)
"""Values of rho that the bound may use."""

LOG_GAINS = (2 * DEGREE - 2) * np.log(RATIOS) + np.log1p(-(RATIOS**-2))
"""Logs of what the bound is divided by for each."""

CELLS = 64
"""Stretches of a density, a power of two: so that they can be merged in pairs."""

LEVELS, POINTS_OF_LEVEL = 12, 6
"""Octaves of frequencies from w on, and intervals of each."""

OCTAVES, OCTAVE = 2.0 ** np.arange(LEVELS + 1), 2.0 ** (np.arange(POINTS_OF_LEVEL + 1) / POINTS_OF_LEVEL)
"""The octaves' beginnings over w, and the ends of the intervals over the beginning of theirs: the last one is 2."""

NEAR = 6.0
"""What lies within NEAR/w of the heaviest part makes nu: phases up to 12 in an octave, of which an interval has 1.5."""

SIDE = 0.21724
"""Above |sin x / x| for x >= pi."""

SHARE_ROUNDING = 1e-9
"""Relative error allowed for the masses of stretches in float64: for differences of shares, and of losses, of 1e-6 and
above."""


def panels(low: Array, width: Array, count: int) -> tuple[Array, Array]:
    """Returns nodes, and the logs of their weights, on so many panels of a width that start at ``low``."""
    starts = low + width * jnp.arange(count)
    x = jax.vmap(lambda start: start + width * jnp.asarray(POINTS))(starts).reshape(-1)
    return x, jnp.log(width) + jnp.tile(jnp.asarray(LOG_WEIGHTS), count)


def log_rule_error(half: Array, growth: Callable[[Array, Array], Array]) -> Array:
    """Returns the log of the rule's error over H times the integrand's largest modulus on the real line.

    Args:
        half (): half-width of a panel.
        growth: (height, beyond) -> log of how much larger the modulus may be on an ellipse of that half-height, which
            reaches that far beyond the panel; inf where the integrand is not analytic.
    """
    grown = growth(half * (RATIOS - 1 / RATIOS) / 2, half * ((RATIOS + 1 / RATIOS) / 2 - 1))
    return jnp.log(64 / 15) + jnp.min(grown - LOG_GAINS)


class PanelLaw(Law):
    """A law of panels, as many to a piece as its class says."""

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns the least number of pieces that make the error as small as it is wanted, PIECES if none does."""
        errors = jax.vmap(lambda count: self.log_quadrature_error(order, w, self.step(window, count)))(
            jnp.arange(1, PIECES + 1)
        )
        # Next to what ends the nodes it then does not tell.
        short = jnp.sum(jnp.cumprod(jnp.where(errors > log_left_out() + 0.02, 1, 0)))
        return jnp.minimum(short + 1, PIECES).astype(jnp.int32)

    def log_total(self, order: Array, nodes: Nodes) -> tuple[Array, Array]:
        """Returns the log of the moment at a real order, and a bound on the relative error of shares of it."""
        missed = jnp.exp(self.log_quadrature_error(order, jnp.zeros_like(order), nodes.places[1]))
        return jax.nn.logsumexp(nodes.log_p + order * nodes.losses), missed + scaled(SHARE_ROUNDING)


def argument(share: Array, theta: Array) -> Array:
    """Returns arg(1 - share + share e^(i theta)), which grows with the share for theta in [0, pi)."""
    return jnp.arctan2(share * jnp.sin(theta), 1 - share + share * jnp.cos(theta))


def log_shrinkage(low: Array, high: Array, theta: Array) -> Array:
    """Returns the least log |1 - share + share e^(i theta)| for shares between two."""
    evenly = jnp.clip(0.5, low, high)
    return 0.5 * log_complement(4 * evenly * (1 - evenly) * jnp.sin(theta / 2) ** 2)


class Stretches(NamedTuple):
    """Parts of a law in which the density of the loss is bounded from below, each a row of CELLS neighbours.

    Attributes:
        low (rows, CELLS), high (rows, CELLS): ends of the losses.
        density (rows, CELLS): lower bound on the density.
    """

    low: Float[Array, "rows cells"]
    high: Float[Array, "rows cells"]
    density: Float[Array, "rows cells"]


def stretches(
    losses: Array, log_weight: Array, log_rate: Array, steepest: Array, flattest: Array, width: Array
) -> Stretches:
    """Returns the stretches of one density, (1, CELLS), from what is known at the CELLS + 1 ends of cells in x.

    Args:
        losses (CELLS + 1,): monotone.
        log_weight (CELLS + 1,): log of the density in x.
        log_rate (CELLS + 1,): log of |d loss/dx|.
        steepest (CELLS,): upper bound on the slope of their difference.
        flattest (CELLS,): lower bound.
        width () or (CELLS,): width of the cells in x.
    """
    at = log_weight - log_rate
    # From an end inwards the density of the loss falls no faster than at its steepest.
    down, up = jnp.minimum(flattest, 0.0) * width, jnp.maximum(steepest, 0.0) * width
    least = jnp.exp(jnp.maximum(at[:-1] + down, at[1:] - up))
    low, high = jnp.minimum(losses[:-1], losses[1:]), jnp.maximum(losses[:-1], losses[1:])
    known = jnp.isfinite(least) & (high > low) & (width > 0)
    return Stretches(*(value[None] for value in (low, high, jnp.where(known, least, 0.0))))


def joined(*parts: Stretches) -> Stretches:
    """Returns all rows."""
    return Stretches(*(jnp.concatenate(values) for values in zip(*parts, strict=True)))


def log_decay(w: Array, atoms: tuple[Array, Array], parts: Stretches, error: Array) -> Array:
    """Returns a bound, for all frequencies from w on, on log |phi|; see the module.

    Args:
        w (): frequency.
        atoms: losses (n,) and masses (n,).
        parts: of the same law, of mass 1.
        error (): relative error of the masses.
    """
    places, masses = atoms
    error = jnp.minimum(error, 1.0)
    density = parts.density * (1 - error)
    # All as stretches; an atom is one of no length.
    lengths = jnp.concatenate([jnp.zeros_like(places), (parts.high - parts.low).reshape(-1)])
    middles = jnp.concatenate([places, ((parts.low + parts.high) / 2).reshape(-1)])
    masses = jnp.concatenate([masses * (1 - error), (density * (parts.high - parts.low)).reshape(-1)])
    heaviest = masses == jnp.max(masses)
    anchor = jnp.max(jnp.where(heaviest, middles, -jnp.inf))
    offsets = middles - anchor

    def level(start: Array) -> Array:
        """Returns a bound for the frequencies from ``start`` to twice that."""
        near = jnp.abs(offsets) + lengths / 2 <= NEAR / start
        mass, x, length = (jnp.where(near, value, 0.0) for value in (masses, offsets, lengths))
        variation = 2 * (jnp.sum(mass) * jnp.sum(mass * (x**2 + length**2 / 12)) - jnp.sum(mass * x) ** 2)
        frequencies = start * OCTAVE

        def transform(w: Array) -> Array:
            half = w * length / 2
            cosines, sines = turned(jnp.stack([w * x, half]))
            heights = mass * jnp.where(half < 1e-4, 1 - half**2 / 6, sines[1] / jnp.maximum(half, 1e-4))
            return (jnp.sum(heights) + jnp.sum(heights * cosines[0])) ** 2 + jnp.sum(heights * sines[0]) ** 2

        squares = jax.vmap(transform)(frequencies)
        apart = frequencies[1:] - frequencies[:-1]
        here = jnp.sqrt(jnp.max(jnp.maximum(squares[:-1], squares[1:]) + variation * apart**2 / 8))
        faded = jnp.sum(jnp.where(near, 1.0, 1 - _largest_sinc(start * lengths / 2)) * masses)
        return 1 - faded + here

    def without(start: Array) -> Array:
        """Returns the bound by stretches, the best of those merged in twos, fours, ..."""

        def merge(cells: tuple[Array, Array, Array], count: Array) -> tuple[tuple[Array, Array, Array], Array]:
            """Doubles the cells that each holds from itself on; those that begin at a multiple of ``count`` are all."""
            least, low, high = cells
            length = high - low
            known = jnp.where(jnp.arange(size) % count == 0, least * length, 0.0)
            following = (jnp.arange(size) + count) % size
            next_least, next_low, next_high = (values[:, following] for values in cells)
            merged = jnp.minimum(least, next_least), jnp.minimum(low, next_low), jnp.maximum(high, next_high)
            return merged, jnp.sum(known * (1 - _largest_sinc(start * length / 2)))

        size = density.shape[1]
        _, found = jax.lax.scan(merge, (density, parts.low, parts.high), 2 ** jnp.arange(size.bit_length()))
        return 1 - jnp.max(found)

    starts = w * OCTAVES
    others = jax.vmap(without)(starts)
    levels = jnp.fmin(jax.vmap(level)(starts[:-1]), others[:-1])
    bound = jnp.maximum(jnp.max(levels), others[-1]) + modulus_rounding()
    return jnp.where(jnp.isnan(bound), 0.0, jnp.log(jnp.minimum(bound, 1.0)))


def _largest_sinc(x: Array) -> Array:
    """Returns an upper bound on |sin y / y| for y >= x >= 0."""
    # sin x/x lies below its Taylor polynomials of even sign; this one falls up to x^2 = 10.
    near = jnp.minimum(x, jnp.pi) ** 2
    polynomial = 1 - near / 6 * (1 - near / 20)
    return jnp.where(x < jnp.pi, jnp.maximum(polynomial, SIDE), jnp.minimum(SIDE, 1 / jnp.maximum(x, 1.0)))
