"""Losses with atoms, and a density between two ends: a rule of quadrature, and a bound on the characteristic function.

*Quadrature.* On a panel of half-width H a Gauss-Legendre rule of n nodes errs by at most (64/15) H M rho^(2-2n)/(1 -
rho^-2), M the largest modulus on the ellipse around the panel whose half-axes are H (rho +- 1/rho)/2, for any rho > 1
that leaves the integrand analytic in it (Trefethen 2013, "Approximation Theory and Approximation Practice", Theorem
19.3).

*Decay.* Atoms do not fade, so neither does the characteristic function: only many steps make it small. Where the
density of the loss is at least m on a stretch of length l, a uniform law of mass m l is part of the law. Let nu be the
part of atoms and stretches near the heaviest of them. The other stretches are a density of total variation V and mass
M, and of modulus at most V/w' at w' (by parts), or M. So

    |phi(w')| <= |nu^(w')| + min(M, V/w) + everything else,    w' >= w,

nu^ the transform of nu. |nu^|^2 has a second derivative of at least -V', V' the integral of (x - x')^2 over nu and nu;
so on an interval of length d it is at most the larger of its values at the ends plus V' d^2/8. Intervals from w to
2^LEVELS w make a bound for all w' up to there; beyond, and wherever it is smaller, that without nu stands.
"""

from __future__ import annotations

import math
from abc import abstractmethod
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

THETAS = np.concatenate([np.geomspace(0.02, 2.0, 24), np.linspace(2.2, HIGHEST, 4)])
"""Turns of a log likelihood ratio at the top of the ellipses that the bound may use."""

CELLS = 64
"""Stretches of a density."""

LEVELS, POINTS_OF_LEVEL = 12, 6
"""Octaves of frequencies from w on, and intervals of each."""

OCTAVES, OCTAVE = 2.0 ** np.arange(LEVELS + 1), 2.0 ** (np.arange(POINTS_OF_LEVEL + 1) / POINTS_OF_LEVEL)
"""The octaves' beginnings over w, and the ends of the intervals over the beginning of theirs: the last one is 2."""

NEAR = 6.0
"""What lies within NEAR/w of the heaviest part makes nu: phases up to 12 in an octave, of which an interval has 1.5."""

SHARE_ROUNDING = 1e-9
"""Relative error allowed for the masses of stretches in float64: for differences of shares, and of losses, of 1e-6 and
above."""


def panels(low: Array, width: Array, index: Array | int, count: int) -> tuple[Array, Array]:
    """Returns nodes, and the logs of their weights, on so many panels: the ``index``-th such row from ``low`` on."""
    grid = (np.arange(count)[:, None] + POINTS[None]).reshape(-1)
    log_weights = np.tile(LOG_WEIGHTS, count)
    return low + width * (count * index + grid), jnp.log(width) + log_weights


class Ellipses(NamedTuple):
    """What bounds the rule's error, for each of THETAS; see the law's module.

    Attributes:
        unit (): of the variable that it is said in, over that of the law's steps.
        heights (J,): of ellipses.
        costs (J,), turns (J,): logs of how much larger the modulus may be at that height than on the real line, and
            what a unit of frequency adds.
        fall () or (J,): by how much the log of the modulus may rise a unit beyond a panel's ends.
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
        # The ellipse reaches beyond the panel by half (root - 1).
        gain = (2 * DEGREE - 2) * jnp.log(rho) + jnp.log(1 - rho**-2.0)
        least = jnp.min(self.costs + w * self.turns + self.fall * half * (root - 1) - gain)
        return jnp.log(64 / 15 * jnp.exp(self.log_size + least) + math.exp(log_left_out()))


class PanelLaw(Law):
    """A law of panels, as many to a piece as its class says; a step is half of a panel's width."""

    @abstractmethod
    def ellipses(self, order: Array) -> Ellipses:
        """Returns what bounds the rule's error."""

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        return self.ellipses(order).log_error(w, step)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        """Returns the least number of pieces that make the error as small as it is wanted, PIECES if none does."""
        around, counts = self.ellipses(order), np.arange(1.0, PIECES + 1)
        errors = jax.vmap(lambda step: around.log_error(w, step))(self.step(window, 1) / counts)
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


def stretches(losses: Array, log_density: Array, steepest: Array, flattest: Array, width: Array) -> Stretches:
    """Returns the stretches of densities, from what is known at the CELLS + 1 ends of their cells in x.

    Args:
        losses (rows, CELLS + 1): monotone.
        log_density (rows, CELLS + 1): log of the density of the loss.
        steepest (rows, CELLS): upper bound on its slope in x.
        flattest (rows, CELLS): lower bound.
        width (rows, 1) or (rows, CELLS): width of the cells in x.
    """
    # From an end inwards the density of the loss falls no faster than at its steepest.
    down, up = jnp.minimum(flattest, 0.0) * width, jnp.maximum(steepest, 0.0) * width
    least = jnp.exp(jnp.maximum(log_density[:, :-1] + down, log_density[:, 1:] - up))
    low, high = jnp.minimum(losses[:, :-1], losses[:, 1:]), jnp.maximum(losses[:, :-1], losses[:, 1:])
    known = jnp.isfinite(least) & (high > low) & (width > 0)
    return Stretches(low, high, jnp.where(known, least, 0.0))


def log_decay(w: Array, atoms: tuple[Array, Array], parts: Stretches, error: Array) -> Array:
    """Returns a bound, for all frequencies from w on, on log |phi|; see the module.

    Args:
        w (): frequency.
        atoms: losses (n,) and masses (n,).
        parts: of the same law, of mass 1.
        error (): relative error of the masses.
    """
    places, masses = atoms
    density, widths = parts.density * (1 - jnp.minimum(error, 1.0)), parts.high - parts.low
    # All as stretches; an atom is one of no length.
    lengths = jnp.concatenate([jnp.zeros_like(places), widths.reshape(-1)])
    middles = jnp.concatenate([places, (parts.low + parts.high).reshape(-1) / 2])
    masses = jnp.concatenate([masses * (1 - jnp.minimum(error, 1.0)), (density * widths).reshape(-1)])
    offsets = middles - jnp.max(jnp.where(masses == jnp.max(masses), middles, -jnp.inf))
    atoms_first = len(places)

    def others(far: Array, start: Array) -> Array:
        """Returns by how much less than their masses stretches come to from a frequency on."""
        apart = jnp.abs(jnp.diff(far, axis=1, prepend=0.0, append=0.0))
        mass = jnp.sum(far * widths)
        return mass - jnp.minimum(mass, jnp.sum(apart) / start)

    def level(start: Array) -> Array:
        """Returns a bound for the frequencies from ``start`` to twice that."""
        near = jnp.abs(offsets) + lengths / 2 <= NEAR / start
        mass = jnp.where(near, masses, 0.0)
        first = jnp.sum(mass * offsets)
        variation = 2 * (jnp.sum(mass) * jnp.sum(mass * (offsets**2 + lengths**2 / 12)) - first**2)
        frequencies = start * OCTAVE

        def transform(w: Array) -> Array:
            half = w * lengths / 2
            cosines, sines = turned(jnp.stack([w * offsets, half]))
            heights = mass * jnp.where(half < 1e-4, 1 - half**2 / 6, sines[1] / jnp.maximum(half, 1e-4))
            return (jnp.sum(heights) + jnp.sum(heights * cosines[0])) ** 2 + jnp.sum(heights * sines[0]) ** 2

        squares = jax.vmap(transform)(frequencies)
        apart = frequencies[1:] - frequencies[:-1]
        here = jnp.sqrt(jnp.max(jnp.maximum(squares[:-1], squares[1:]) + variation * apart**2 / 8))
        far = jnp.where(near[atoms_first:].reshape(density.shape), 0.0, density)
        return 1 - jnp.sum(mass) - others(far, start) + here

    starts = w * OCTAVES
    without = 1 - others(density, starts)
    bound = jnp.maximum(jnp.max(jnp.fmin(jax.vmap(level)(starts[:-1]), without[:-1])), without[-1])
    bound = bound + modulus_rounding()
    return jnp.where(jnp.isnan(bound), 0.0, jnp.log(jnp.minimum(bound, 1.0)))
