"""Composition of many steps on one mesh, from the few frequencies that are left of their sum.

Where many losses are summed the spectrum of the sum is next to nothing but for a hundred frequencies or so, however
fine the mesh is: it decays like that of a normal law whose width is that of the sum. So one mesh serves all steps, with
as many points as the losses of *one* step take; that of the sum, a circle of N points, is never filled. The steps:

1. *Moments* of the weights of one step about the centres of blocks (:func:`moments_of`): they give e^(sY)'s mean, from
   above, for Chernoff's bounds on where the sum lies, and e^(iwY)'s at low frequencies.
2. *The circle*: what lies outside of it is slack, as everywhere in :mod:`jaxacct.prv`.
3. *The spectrum* at the frequencies 2 pi j / N, j < J, to the power of the steps; for others a bound. With weights w
   and any m, phi(w) is half the sum over l of w_l e^(iwl) + w_(l+m) e^(iw(l+m)), and for a, b >= 0 with phases x apart

       |a + b e^(ix)| = sqrt((a + b)^2 - 2ab (1 - cos x)) <= a + b - (1 - cos x) ab / (a + b),

   so |phi(w)| <= 1 - (1 - cos mw) H_m with 2 H_m = sum of w_l w_(l+m) / (w_l + w_(l+m)): for w from pi/(2m) to pi/m
   it falls with w, and m = 1, 2, 4, ... reach from pi down to where the J frequencies end.
4. *Delta*, by Parseval (:mod:`.parseval`): the sum over points y above epsilon of v(y) e^(-ty) (1 - e^(epsilon-y)), v
   on the circle, is the sum over frequencies of its spectrum times that of the rest, which is two geometric series.
   Epsilon by Newton's iteration on the bound; what it ends at is asked of the bound once more, on its safe side.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct import by_work
from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs.turns import sine_and_cosine, turned
from jaxacct.precision import TINY, first_index, log_complement
from jaxacct.programs import compiled
from jaxacct.prv.discretize import Cells, measures
from jaxacct.prv.placing import Placed, positions_of

BLOCKS = 128
"""Blocks of the points of one step; in each they are equally far apart."""

TERMS = 16
"""Terms of an exponential about a block's centre; what the rest is, is counted."""

FREQUENCIES = 128
"""Most frequencies at which the spectrum is known, that at 0 included."""

AT_ONCE = 32
"""As many are added as long as what is beyond them may count."""

RATES = 0.2 * 1.5 ** np.arange(16)
"""Rates s of Chernoff's bounds on where the sum lies, over its standard deviation."""

RUNGS = 24
"""Most octaves of frequencies."""

LARGEST = 2.0**40
"""Most points of a circle: whole numbers times :data:`FREQUENCIES` are exact far beyond."""


class Moments(NamedTuple):
    """One step's loss from above and from below (2, ...), about ``place``; losses count in mesh points."""

    moments: Float[Array, "2 blocks terms"]
    """Sums over the points of a block of weight x^p, x from -1 to 1 in it."""
    about: Float[Array, " blocks"]
    """The middles of the blocks: exact."""
    half: Float[Array, " blocks"]
    """Half of each block's length."""
    overlaps: Float[Array, "2 rungs"]
    """H_m for m = 1, 2, 4, ..., rounded down."""
    excess: Float[Array, " 2"]
    """Bound on how far the weights' sum is from 1."""
    variance: Float[Array, ""]
    place: Float[Array, ""]
    """The loss there."""
    largest: Float[Array, ""]
    """Bound on the losses' size."""
    log_mass: Float[Array, " 2"]
    slack: Float[Array, " 2"]
    apart: Float[Array, " 2"]
    """Bound on the log of the tilted mass that the weights stand for over exp(log_mass)."""
    shift: Float[Array, " 2"]
    lost: Float[Array, ""]
    """Probability that counts as an infinite loss, above."""


class Sums(NamedTuple):
    """All steps, above and below (2, ...)."""

    spectrum: tuple[Array, Array]
    """Real and imaginary part (2, FREQUENCIES) on the circle, twice those of positive frequencies, over its length; 0
    where what it is counts as slack."""
    error: Float[Array, " 2"]
    """Bound on what the spectrum's errors change in the sum of step 4."""
    slack: Float[Array, " 2"]
    log_mass: Float[Array, " 2"]
    rounding: Float[Array, ""]
    """Bound on the error of ``log_mass``."""
    shift: Float[Array, " 2"]
    place: Float[Array, ""]
    """The loss of the circle's index 0."""
    first: Array
    """Index of the first point of the window."""
    points: Array
    """How many it has."""
    lost: Float[Array, ""]


@compiled
def moments_of(placed: Placed, cells: Cells, order: Array, log_weight: Array) -> Moments:
    """Returns the moments of a step's loss, tilted by ``order``."""
    lattices, lost = measures(placed, cells, order, log_weight)
    weights, points, u = lattices.weights, lattices.points, roundoff()
    size, mesh = points // BLOCKS, lattices.mesh[0]
    spacing = jnp.ones(BLOCKS) if placed.spacing is None else placed.spacing
    positions = positions_of(spacing, points)
    places = (np.arange(size) - (size - 1) / 2) * (2 / size)
    moments = jnp.matmul(
        weights.reshape(2, BLOCKS, size), jnp.asarray(places[:, None] ** np.arange(TERMS)), precision="highest"
    )
    mass, half = moments[0, :, 0], spacing * (size / 2)
    middles = positions[::size] + spacing * ((size - 1) / 2)
    # Counted from a point of the block of the mean: a whole number.
    center = jnp.clip(jnp.sum(middles < jnp.sum(middles * mass)) - 1, 0, BLOCKS - 1)
    origin = positions[center * size + size // 2]
    about = middles - origin
    mean = jnp.sum(about * mass + half * moments[0, :, 1])
    square = jnp.sum(about**2 * mass + 2 * half * about * moments[0, :, 1] + half**2 * moments[0, :, 2])
    total = jnp.sum(moments[:, :, 0], axis=1)
    log_total, log_mass = lattices.log_total, lattices.log_mass
    apart = log_total - log_mass + 512 * u * (jnp.abs(log_total) + jnp.abs(log_mass))
    start = lattices.start[0]
    return Moments(
        moments=moments,
        about=about,
        half=half,
        overlaps=_overlaps(weights, positions) * (1 - 8 * points * u),
        # A sum of sums, and its difference from 1.
        excess=jnp.abs(total - 1) + (size + BLOCKS + 8) * u,
        variance=jnp.maximum(square - mean**2, 0.0),
        place=start + mesh * origin,
        largest=jnp.maximum(jnp.abs(start), jnp.abs(start + mesh * positions[-1])),
        log_mass=log_mass, slack=lattices.slack, apart=jnp.maximum(apart, 0.0), shift=lattices.shift, lost=lost,
    )  # fmt: skip


def _overlaps(weights: Array, positions: Array) -> Array:
    """Returns H_m for m = 1, 2, 4, ..., each over the pairs of points that are m apart, (2, rungs)."""
    rungs, found = 2.0 ** np.arange(RUNGS), jnp.zeros((2, RUNGS))
    for lag in (2 ** np.arange(int(math.log2(len(positions))) - 1)).tolist():
        a, b = weights[:, :-lag], weights[:, lag:]
        is_rung = (positions[lag:] - positions[:-lag])[:, None] == rungs[None, :]
        found = found + jnp.matmul(a * b / (a + b + TINY), is_rung.astype(a.dtype), precision="highest") / 2
    return found


def log_moments(row: Moments, rates: Array, size: int) -> Array:
    """Returns upper bounds on the logs of the means of e^(sY), (2, rates), at signed rates per mesh point.

    In a block e^x <= 1 + x + e^d x^2/2 for |x| <= d (Taylor). Less 1 it is summed, so that it may be taken many times.
    """
    exponents, inner = rates[None, :] * row.about[:, None], rates[None, :] * row.half[:, None]
    growth = jnp.expm1(exponents)
    mass, first, second = (row.moments[:, :, p] for p in range(3))
    # Not from what e^x - 1 leaves of e^x, which far below is nothing, and is multiplied by what is huge.
    linear, square = jnp.exp(exponents) * inner, jnp.exp(exponents + jnp.abs(inner)) * inner**2 / 2
    above = jnp.matmul(mass, growth) + jnp.matmul(first, linear) + jnp.matmul(second, square)
    # Sums of a block and of blocks, and exponentials of exponents that round.
    units = (size + BLOCKS + 64 + 8 * jnp.abs(exponents)) * roundoff()
    error = jnp.matmul(mass, units * (2 + growth + jnp.abs(linear) + square))
    above = jnp.where(jnp.isnan(above + error), jnp.inf, above + error + row.excess[:, None])
    return log_complement(-above) + 16 * roundoff()


def _log_spectrum(row: Moments, steps: Array, angles: Array, size: int) -> tuple[Array, ...]:
    """Returns log modulus and phase of all steps' spectrum, (2, angles), and a bound on the error of both.

    As in :mod:`jaxacct.saddlepoint.characteristic`, phi - 1 is summed; if each factor b is off by at most e |b|, k of
    them are by ((1 + e)^k - 1) |b|^k. Relative to the mean of |w Y| it errs by the units of a block's sum and that
    of the blocks, and by 150 for what else is done.
    """
    u, orders = roundoff(), np.arange(TERMS)
    mass = row.moments[:, :, 0]
    # (i a)^p / p! times the moments of order p, those of even orders real, of all blocks for e^(ia) and a angle 1.
    scaled = (
        row.moments * (row.half[:, None] ** orders[None, :] / np.array([[math.factorial(p) for p in orders]]))[None]
    )
    powers = angles[:, None] ** orders[None, :] * np.array([[1.0, 1.0, -1.0, -1.0]])[:, orders % 4]
    cosine, sine = turned(angles[:, None] * row.about[None, :])

    # Cosines and sines of all blocks times the series of all orders, above and below: (2, angles, 2, orders).
    turns = jnp.concatenate([cosine, sine])
    by_order = jnp.matmul(turns, jnp.moveaxis(scaled, 1, 0).reshape(BLOCKS, -1), precision="highest")
    by_order = by_order.reshape(2, len(angles), 2, TERMS) * powers[None, :, None, :]
    of_cosine, of_sine = jnp.moveaxis(by_order, 2, 1)
    even, odd, inner = orders[::2], orders[1::2], jnp.sum(scaled[:, None], axis=2) * powers[None]
    x = jnp.sum(of_cosine[..., even] - of_sine[..., odd], axis=2) + jnp.sum(inner[:, :, even[1:]], axis=2)
    y = jnp.sum(of_sine[..., even] + of_cosine[..., odd], axis=2) + jnp.sum(inner[:, :, odd], axis=2)
    largest = angles[-1] * row.half
    spread = jnp.matmul(mass, jnp.abs(row.about) + row.half * jnp.exp(jnp.minimum(largest, 700.0)))
    missed = jnp.matmul(mass, (row.half[:, None] * angles[None, :]) ** TERMS / math.factorial(TERMS)) * (1 + 1e-9)
    excess, square = 2 * x + x**2 + y**2, jnp.maximum((1 + x) ** 2 + y**2, u**2)
    log_modulus = 0.5 * jnp.where(excess > -0.5, log_complement(-jnp.maximum(excess, -0.5)), jnp.log(square))
    off = (size + BLOCKS + 150) * u * angles[None, :] * spread[:, None] + missed + row.excess[:, None]
    error = jnp.log1p(off * jnp.exp(-log_modulus))
    phase = jnp.arctan2(y, 1 + x)
    return tuple(jnp.where(steps > 0, steps * part, 0.0) for part in (log_modulus, phase, error))


def sums_of(rows: Moments, steps: Array, mesh: Array, order: Array, log_tail: Array, points: int) -> Sums:
    """Returns what is known of the sum of the losses (m,), each ``steps`` times, on meshes of one width.

    ``log_tail``: log of the tilted mass that the window may leave out on each side.
    """
    u, size, count = roundoff(), points // BLOCKS, len(steps)
    many = 1 + (count + 8) * u

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(_beside(steps, values) > 0, _beside(steps, values) * values, 0.0), axis=0)

    deviation = jnp.sqrt(jnp.maximum(total(rows.variance), 1e-6))
    signed = jnp.concatenate([RATES, -RATES]) / deviation
    used = jnp.max(jnp.where(steps > 0, np.arange(1, count + 1), 1))
    of_rows = by_work.map_rows(used, lambda _, row, rates: log_moments(row, rates, size), rows, signed)
    kappa = total(of_rows) + (count + 8) * u * total(jnp.abs(of_rows))
    ends = (kappa - log_tail) / signed[None, :]
    ends = jnp.where(jnp.isnan(ends), jnp.sign(signed)[None, :] * jnp.inf, ends)
    low = jnp.min(jnp.max(ends[:, len(RATES) :], axis=1))
    high = jnp.max(jnp.min(ends[:, : len(RATES)], axis=1))
    length = high - low + 8
    known = (length < LARGEST) & (length > 4 * FREQUENCIES) & (jnp.abs(low) < LARGEST**1.2)
    first, length = jnp.where(known, jnp.floor(low) - 3, 0.0), jnp.where(known, jnp.ceil(length), 4.0 * FREQUENCIES)

    angles = 2 * math.pi / length * np.arange(FREQUENCIES)
    octaves = math.pi * 0.5 ** np.arange(RUNGS + 1.0)
    excess, overlaps = total(rows.excess)[:, None], total(rows.overlaps)

    def above(frequencies: Array, ends: Any) -> Array:
        """Returns upper bounds on log |phi| of all steps, (2, n), from frequencies to the ends of their octaves."""
        falls = -turned(frequencies[:, None] * 2.0 ** np.arange(RUNGS)[None, :])[0] * (1 - 64 * u)
        reached = ends[:, None] <= octaves[None, :-1]
        return excess - jnp.max(jnp.where(reached, falls, 0.0)[None] * overlaps[:, None], axis=2)

    def above_beyond(known: Array) -> Array:
        """Returns the same of all frequencies from the first one on that is not among so many, (2,).

        From octave to octave: in each the best of what the rungs that reach its end say at its start.
        """
        beyond = 2 * math.pi * known / length
        starts = jnp.maximum(np.append(octaves[1:], 0.0), beyond) * (1 - 8 * u)
        return jnp.max(jnp.where((octaves > beyond)[None], above(starts, octaves), -jnp.inf), axis=1)

    blocks = FREQUENCIES // AT_ONCE
    every_beyond = jax.vmap(above_beyond)(AT_ONCE * jnp.arange(1.0, blocks + 1))
    most_beyond = jnp.max(every_beyond, axis=1)
    enough = most_beyond <= jnp.maximum(log_tail - jnp.log(length), most_beyond[-1] + 0.1)
    last = jnp.minimum(first_index(enough), blocks - 1)
    log_beyond, log_most = every_beyond[last], above(angles, angles)

    def summed(_: Array, angles: Array, given: tuple[Moments, Array]) -> tuple[Array, ...]:
        """Returns log modulus, phase and error of all, (2, angles), and the sum of the phases' sizes."""

        def add(_: Array, row: tuple[Moments, Array], angles: Array) -> tuple[Array, ...]:
            log_modulus, phase, off = _log_spectrum(*row, angles, size)
            return log_modulus, phase, off, jnp.abs(phase)

        return tuple(jnp.sum(part, axis=0) for part in by_work.map_rows(used, add, given, angles))

    of_blocks = by_work.map_rows(last + 1, summed, angles.reshape(blocks, AT_ONCE), (rows, steps))
    log_modulus, phase, off, phases = (jnp.concatenate(list(part), axis=1) for part in of_blocks)
    off = off * many + (64 + count) * u * (1 + jnp.abs(log_modulus) + phases)
    # Where little is known of the spectrum but that it is small, that is an error.
    is_known = np.arange(FREQUENCIES) < AT_ONCE * (last + 1)
    size_of = jnp.where(is_known, jnp.exp(jnp.minimum(log_modulus, log_most)), 0.0)
    off = jnp.where(log_modulus <= log_most, size_of * jnp.expm1(off), jnp.inf)
    off = jnp.minimum(jnp.where(jnp.isnan(off), jnp.inf, off), size_of + jnp.exp(log_most))
    off = jnp.where(is_known, off, 0.0)
    sine, cosine = sine_and_cosine(phase)
    weights = jnp.asarray(np.where(np.arange(FREQUENCIES) == 0, 1.0, 2.0))[None, :] / length
    modulus = weights * size_of
    mean_slack = total(rows.slack + rows.excess)
    lower_slack = total(rows.slack) * jnp.exp(total(rows.apart) + total(rows.excess))
    of_steps = jnp.where(jnp.array([True, False]), jnp.expm1(mean_slack), lower_slack) * many * (1 + 64 * u)
    slack = of_steps + 2 * jnp.exp(log_tail) + length * jnp.exp(log_beyond)
    # A step from one point to the next, at most, of what Parseval's sum has there.
    greatest = 1 / (mesh * order * (1 + order)) + 1
    series = jnp.hypot(*over_geometric(angles, mesh, order)) + jnp.hypot(*over_geometric(angles, mesh, 1 + order))
    error = jnp.sum(weights * off * greatest + 512 * u * modulus * series[None, :], axis=1) * (1 + 1e-9)
    place = total(rows.place)
    shift = total(rows.shift) + 16 * u * (count + 1) * (total(rows.largest) + mesh * jnp.abs(first) + mesh * length)
    return Sums(
        spectrum=(modulus * cosine, modulus * sine),
        error=jnp.where(known, error, jnp.inf), slack=jnp.where(known, slack, jnp.inf),
        log_mass=total(rows.log_mass), rounding=16 * (count + 4) * u * jnp.max(total(jnp.abs(rows.log_mass))),
        shift=shift, place=place, first=first, points=length, lost=total(rows.lost) * many,
    )  # fmt: skip


def _beside(steps: Array, values: Array) -> Array:
    return steps.reshape(-1, *[1] * (values.ndim - 1))


def over_geometric(angles: Array, mesh: Array, rate: Array) -> tuple[Array, Array]:
    """Returns 1 / (1 - e^(-rate mesh - i angle)), a sum of e^(-(rate mesh + i angle) n) over n >= 0, in two parts."""
    cosine, sine = turned(angles)
    decay = jnp.exp(-rate * mesh)
    real, imaginary = -jnp.expm1(-rate * mesh) - decay * cosine, decay * sine
    square = real**2 + imaginary**2
    return real / square, -imaginary / square
