"""Noise whose law is known exactly: integers, added to sums on a grid.

A sum of clipped gradients is rounded to multiples of a public real number, the grid; an integer Z is added to each
entry; the result times the grid is what is released. Z has a law that is within a proved total variation of discrete
Gaussian noise, which is as near to rounded Gaussian noise. So the release is a post-processing of the Gaussian
mechanism of the multiplier that is accounted, up to that total variation, the *bill*, which is taken off delta.

* :func:`table`: one table of exact integers for all runs, from which draws X of a narrow law are looked up;
* :func:`noise_of_leaves`: Z = X1 + 765 X2, of deviation 2^20, or X1 + 32 (X2 + 765 X3), of about 2^25;
* :func:`grid_of`, :func:`add_noise`, :func:`add_correlated`: the grid for a noise multiplier, and what is released;
* :func:`bill`, :func:`noise_delta`: how far the law of a run's noise is from its account, and what that costs.

Noise multiplier and clipping norm only choose the grid. So one law of Z serves every step of every run, and adaptivity
costs nothing: all that a run shows is a function of the data, of other randomness, and of Z.

All that draws is in 32-bit integers, without branches: an entry is a function of the key, of its leaf and of its place
in the leaf, the same bits on any device, mesh, or number of entries that are drawn together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float64, Int32, PyTree, UInt32

from jaxacct import validation
from jaxacct.mechanisms.discrete_gaussian import chi_square_of_dither, cost, total_variation
from jaxacct.numerics.chacha20 import NOISE, NORMAL, SUFFIX, as_chacha20, blocks, is_chacha20
from jaxacct.numerics.precision import as_float64, is_concrete, kernel, scope
from jaxacct.strategies import BandedToeplitz, BufferedStrategy, BufferedToeplitz, NoiseState
from jaxacct.train.ownership import entries_of

# ----------------------------------------------------------------------------------------------------
# The table. |X| has integer masses W_m over 2^127, those nearest to the discrete Gaussian's of variance
# 2^40 / (765^2 + 1). Walker's alias method in integers: 2^14 rows of mass 2^113, each with a cut and an alias; 14 bits
# choose the row, and |X| is the row where a fraction of 113 bits is below the cut, else its alias. One bit is the sign,
# where -0 is 0. So P(|X| = m) is W_m 2^-127 exactly, as the table's words alone show.
# ----------------------------------------------------------------------------------------------------

COARSE = 765
"""Step of the coarse draw. With it tau = s1 / sqrt(1 + 765^2) = 1.79, whose theta is 6.0e-28; a larger one has less."""

ROWS_LOG, FRACTION_BITS = 14, 113
"""Bits of a row's number, and of a fraction: with the sign 128 bits a draw."""

ROWS, UNIT_MASS = 1 << ROWS_LOG, 1 << FRACTION_BITS
"""Number of rows, and the mass of each: together 2^127. The rows reach 11.95 deviations out."""

DRAW_VARIANCE = Fraction(2**40, COARSE**2 + 1)
"""Variance parameter s1^2 of one draw X."""

FACTORS = {2: (1, COARSE), 3: (1, 32, 32 * COARSE)}
"""Factors of the draws in Z, by their number."""

VARIANCES = {2: Fraction(2**40), 3: DRAW_VARIANCE + 32**2 * Fraction(2**40)}
"""Variance parameter s^2 of Z, by its number of draws."""


@functools.cache
def masses() -> tuple[int, ...]:
    """Returns the integers W_m, m < 2^14, of sum 2^127: W_m 2^-127 is P(|X| = m), to nearest; the sum is mended at 0.

    >>> sum(masses()) == 2**127
    True
    """
    # Fixed point of so many bits; the powers below err by less than 2^16 units, 2^-300 of the whole. Each nearest
    # integer is decided, which is checked: no mass times 2^127 is so near to a half.
    bits = 320
    ratio = _exponential(-1 / (2 * DRAW_VARIANCE), bits)  # rho(m) = ratio^(m^2)
    square = ratio * ratio >> bits
    # rho(m + 1) = rho(m) ratio^(2 m + 1): the second factor is multiplied by ratio^2 at each step.
    rho, factor = [1 << bits], ratio
    for _ in range(ROWS - 1):
        rho.append(rho[-1] * factor >> bits)
        factor = factor * square >> bits
    weights = [rho[0], *(2 * one for one in rho[1:])]
    total, doubt = sum(weights), 1 << (bits - 200)
    nearest = [((weight * ROWS * UNIT_MASS << 1) + total) // (2 * total) for weight in weights]
    for sign in (-1, 1):
        moved = [((weight + sign * doubt) * ROWS * UNIT_MASS * 2 + total) // (2 * total) for weight in weights]
        assert [near - one for near, one in zip(moved, nearest, strict=True)].count(0) == ROWS
    nearest[0] += ROWS * UNIT_MASS - sum(nearest)
    return tuple(nearest)


def _exponential(x: Fraction, bits: int) -> int:
    """Returns e^x times 2^bits for x in [-1, 0], to a few units, by its series."""
    term, total, n = 1 << bits, 0, 0
    while term:
        total, n = total + term, n + 1
        term = term * x.numerator // (x.denominator * n) if abs(term) > 1 else 0
    return total


@functools.cache
def table() -> UInt32[np.ndarray, "rows 4"]:
    """Returns the table: the alias, 15 bits, above the top 17 bits of the cut, and then its lower 96 bits.

    >>> table().nbytes
    262144
    """
    left, alias, cut = list(masses()), list(range(ROWS)), [0] * ROWS
    small, large = ([m for m in range(ROWS) if (left[m] < UNIT_MASS) == is_small] for is_small in (True, False))
    # Walker and Vose: each pass fills a row of less than the unit by the last one that has more, and takes it off
    # there. What is left at the end has the unit exactly.
    while small:
        m, other = small.pop(), large[-1]
        alias[m], cut[m] = other, left[m]
        left[other] -= UNIT_MASS - left[m]
        if left[other] < UNIT_MASS:
            small.append(large.pop())
    words = [
        [alias[m] << 17 | cut[m] >> 96, *(cut[m] >> shift & 0xFFFFFFFF for shift in (64, 32, 0))] for m in range(ROWS)
    ]
    return np.array(words, np.uint32)


def law_of(words: UInt32[np.ndarray, "rows 4"]) -> tuple[int, ...]:
    """Returns the integers W_m that a table draws by, from its words alone.

    >>> law_of(table()) == masses()
    True
    """
    law = [0] * ROWS
    for row, (head, high, middle, low) in enumerate(words.tolist()):
        cut = (head & 0x1FFFF) << 96 | high << 64 | middle << 32 | low
        law[row] += cut
        law[head >> 17] += UNIT_MASS - cut
    return tuple(law)


# ----------------------------------------------------------------------------------------------------
# The noise. Entries of a leaf come in units of 64, in 8 groups of 8. The i-th of the draws of a group takes a block of
# its own, two words for each of the group's entries, and the 8 groups of a unit share one block of suffixes for it, two
# words for each group. So eight draws share a suffix of 64 bits. It matters to a draw only where all of its own 49 bits
# of the fraction equal those of its row's cut: for two of the eight with probability 28 2^-98 at most.
# ----------------------------------------------------------------------------------------------------

UNIT_ENTRIES = 64
"""Entries that share blocks of suffixes."""

GROUPS = 8
"""Groups of a unit, and entries of a group."""

MOST_UNITS = 256
"""Units that are hashed at a time, to stay in a processor's cache: speed only."""


def draw(words: Array, own: tuple[Array, Array], shared: tuple[Array, Array]) -> Int32[Array, ...]:
    """Returns X from a draw's own two words and the two that its block shares."""
    row = (own[0] >> 17 & jnp.uint32(ROWS - 1)).astype(jnp.int32)
    entry = words.at[row].get(mode="promise_in_bounds")
    head, high, middle, low = (entry[..., k] for k in range(4))
    top, cut = own[0] & jnp.uint32(0x1FFFF), head & jnp.uint32(0x1FFFF)
    is_below = (shared[0] < middle) | ((shared[0] == middle) & (shared[1] < low))
    is_below = (top < cut) | ((top == cut) & ((own[1] < high) | ((own[1] == high) & is_below)))
    size = jnp.where(is_below, row, (head >> 17).astype(jnp.int32))
    return jnp.where(own[0] >> 31 == 1, -size, size)


def noise_of_units(key: Array, leaf: Array, unit: Array, draws: int) -> Int32[Array, "units 64"]:
    """Returns Z at all entries of some units; ``leaf`` and ``unit`` (units,) are their leaves and places in these."""
    groups = jnp.arange(GROUPS, dtype=jnp.uint32)[:, None, None]
    which = jnp.arange(draws, dtype=jnp.uint32)[:, None]
    own = blocks(key, (unit[None, None] * GROUPS + groups) * draws + which[None], (NOISE, leaf, 0))
    suffix = blocks(key, unit[None] * draws + which, (SUFFIX, leaf, 0))
    first, second = (jnp.stack(own[k::2]) for k in (0, 1))  # (entries, groups, draws, units)
    shared = jnp.stack(suffix[0::2])[None], jnp.stack(suffix[1::2])[None]  # (1, groups, draws, units)
    x = draw(jnp.asarray(table()), (first, second), shared)
    z = sum((factor * x[:, :, i] for i, factor in enumerate(FACTORS[draws])), jnp.zeros((), jnp.int32))
    return in_order(z)


def in_order(values: Array) -> Array:
    """Returns values (entries, groups, units) as (units, 64), in the order of a leaf's entries."""
    return jnp.transpose(values, (2, 1, 0)).reshape(-1, UNIT_ENTRIES)


def normals_of_units(key: Array, leaf: Array, unit: Array) -> Float64[Array, "units 64"]:
    """Returns normal numbers at all entries of some units, from two words each; inside the float64 scope.

    For experiments, and for noise that cannot be drawn in integers. The law is close to the normal one, but nobody has
    proved how close, and the last bits of a sum tell of what it is made (Mironov, 2012, "On significance of the least
    significant bits for differential privacy").
    """
    groups = jnp.arange(GROUPS, dtype=jnp.uint32)[:, None]
    words = blocks(key, unit[None] * GROUPS + groups, (NORMAL, leaf, 0))
    high, low = jnp.stack(words[0::2]), jnp.stack(words[1::2])
    # One bit is the sign, and 63 are a number below 1/2, whose quantile reaches 9.1 deviations out.
    top = (high & jnp.uint32(2**31 - 1)).astype(jnp.float64)
    size = ndtri((top * 2.0**32 + low.astype(jnp.float64) + 0.5) * 2.0**-64)
    return in_order(jnp.where(high >> 31 == 1, -size, size))


OF_UNITS: dict[int, Callable[[Array, Array, Array], Array]] = {
    0: normals_of_units,
    2: functools.partial(noise_of_units, draws=2),
    3: functools.partial(noise_of_units, draws=3),
}
"""Functions that draw the noise of some units, by its number of draws of integers; 0: normal numbers of float64."""


@dataclass(frozen=True)
class LeafWindow:
    """The part of a leaf that one device draws: its own shard, with axes that are completed until rows are long.

    Attributes:
        shape: of the whole leaf.
        part: of the device's shard.
        spec: names of the mesh's axes along which the leaf lies, by its own axes.
    """

    shape: tuple[int, ...]
    part: tuple[int, ...]
    spec: tuple[Any, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], place: NamedSharding | None) -> LeafWindow:
        """Returns the window of a leaf that lies so; None: whole."""
        if place is None:
            return cls(shape, shape, (None,) * len(shape))
        return cls(shape, place.shard_shape(shape), (*place.spec, *(None,) * (len(shape) - len(place.spec))))

    @functools.cached_property
    def _runs(self) -> tuple[tuple[int, ...], int]:
        """Shape of what is drawn, in runs of at least a unit where a leaf has that many, and the length of these."""
        drawn, run = list(self.part), 1
        for axis in reversed(range(len(drawn))):
            if run * drawn[axis] < UNIT_ENTRIES:
                drawn[axis] = self.shape[axis]
            run *= drawn[axis]
            if drawn[axis] < self.shape[axis]:
                break
        return tuple(drawn), run

    @property
    def drawn(self) -> tuple[int, ...]:
        """Shape of what is drawn: the shard's, with whole axes where runs would be short."""
        return self._runs[0]

    @property
    def run(self) -> int:
        """Number of entries that are neighbours in the whole leaf: the product of the last axes, up to a cut one."""
        return self._runs[1]

    @property
    def units(self) -> int:
        """Units that one run touches. All runs begin at multiples of their length, or the only one at 0."""
        is_aligned = self.run % UNIT_ENTRIES == 0 or self.drawn == self.shape
        return -(-(self.run + (0 if is_aligned else UNIT_ENTRIES - 1)) // UNIT_ENTRIES)

    def origin(self) -> list[Array]:
        """Returns the coordinates in the leaf of the shard's first entry."""
        at = [0 if e is None else jax.lax.axis_index(e) * side for e, side in zip(self.spec, self.part, strict=True)]
        return [jnp.asarray(value, jnp.uint32) for value in at]

    def starts(self) -> Array:
        """Returns the places in the leaf at which the window's runs begin, in order."""
        starts, stride, inner, origin = jnp.zeros(1, jnp.uint32), 1, 1, self.origin()
        # Axes from the last to the first: those within a run only move its start, others make more runs.
        for axis in reversed(range(len(self.shape))):
            first = jnp.uint32(0) if self.drawn[axis] == self.shape[axis] else origin[axis]
            count = 1 if inner < self.run else self.drawn[axis]
            steps = (first + jnp.arange(count, dtype=jnp.uint32)) * jnp.uint32(stride)
            starts = (steps[:, None] + starts[None]).reshape(-1)
            inner, stride = inner * self.drawn[axis], stride * self.shape[axis]
        return starts

    def cut(self, z: Array, starts: Array) -> Array:
        """Returns the shard's noise from that of the units of all runs."""
        rows = z.reshape(len(starts), -1)
        if self.run % UNIT_ENTRIES and self.drawn != self.shape:
            slide = lambda row, start: jax.lax.dynamic_slice(row, (start % UNIT_ENTRIES,), (self.run,))  # noqa: E731
            rows = jax.vmap(slide)(rows, starts.astype(jnp.int32))
        window = rows[:, : self.run].reshape(self.drawn)
        if self.drawn == self.part:
            return window
        first = [
            jnp.uint32(0) if part == drawn else start
            for start, part, drawn in zip(self.origin(), self.part, self.drawn, strict=True)
        ]
        return jax.lax.dynamic_slice(window, [start.astype(jnp.int32) for start in first], self.part)


MOST_ENTRIES = 2**32 - 1
"""Most entries of a leaf, whose places are counted in 32 bits; its blocks, 24 for each 64 entries, are fewer."""


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def noise_of_leaves(
    key: UInt32[Array, 8],
    shapes: tuple[tuple[int, ...], ...],
    draws: int,
    places: tuple[NamedSharding, ...] | None = None,
) -> list[Array]:
    """Returns Z for leaves of those shapes, int32; or normal numbers of float64, inside its scope.

    Args:
        key: words of a ChaCha20 key, used for nothing else.
        shapes: of the leaves, each of at most 2^32 - 1 entries.
        draws: 2 or 3, of integers; 0 for normal numbers.
        places: how the leaves lie on a mesh. Each device then draws what its shards need. None: on one device.

    One loop goes over units of all leaves, so that a program has the operations of a draw once.

    >>> z, = noise_of_leaves(jnp.zeros(8, jnp.uint32), ((3,),), 2)
    >>> z.dtype, bool(jnp.all(jnp.abs(z) < 2**24))
    (dtype('int32'), True)
    """
    if any(math.prod(shape) > MOST_ENTRIES for shape in shapes):
        raise ValueError(f"a leaf has more than {MOST_ENTRIES} entries: train it as several parameters.")
    windows = [LeafWindow.of(shape, places[i] if places else None) for i, shape in enumerate(shapes)]
    numbers = [i for i, shape in enumerate(shapes) if math.prod(shape)]

    def on_each(key: Array) -> list[Array]:
        drawn = [jnp.zeros(window.part, jnp.int32 if draws else jnp.float64) for window in windows]
        if not numbers:
            return drawn
        starts = {i: windows[i].starts() for i in numbers}
        units = [
            jnp.ravel((starts[i] // UNIT_ENTRIES)[:, None] + jnp.arange(windows[i].units, dtype=jnp.uint32)[None])
            for i in numbers
        ]
        leaves = [jnp.full(unit.shape, i, jnp.uint32) for i, unit in zip(numbers, units, strict=True)]
        size = sum(unit.size for unit in units)
        # Units in chunks, the last one filled up by units that nobody looks at. The loop has no state.
        chunk = min(MOST_UNITS, size)
        rows = [jnp.pad(jnp.concatenate(some), (0, -size % chunk)).reshape(-1, chunk) for some in (leaves, units)]
        z = jax.lax.map(lambda row: OF_UNITS[draws](key, *row), tuple(rows)).reshape(-1, UNIT_ENTRIES)
        ends = np.cumsum([unit.size for unit in units]).tolist()
        for i, unit, end in zip(numbers, units, ends, strict=True):
            drawn[i] = windows[i].cut(z[end - unit.size : end], starts[i])
        return drawn

    if places is None:
        return on_each(key)
    spread = jax.shard_map(
        on_each, mesh=places[0].mesh, in_specs=PartitionSpec(), out_specs=[place.spec for place in places],
        check_vma=False,
    )  # fmt: skip
    on_mesh: list[Array] = spread(key)
    return on_mesh


# ----------------------------------------------------------------------------------------------------
# The grid. S is a sum as it was computed, in float64, and one example moves it by at most C. On a grid gamma it is
# x = rint(clip(S / gamma)), coordinate by coordinate. The scaling errs by at most eta of itself, clip by nothing more,
# and rint by 1/2 for each of two neighbours, whose clipped quotients are at most 2^44. By Minkowski
#
#     |x - x'| <= C/gamma + sqrt(d) (1 + 2^45 eta) =: Delta,   d the number of entries of all leaves,
#
# and this is attained: entries 1/2 - e and 1/2 + e are rounded apart. With s'^2 = s^2 - 49/16 the release x + Z is, up
# to total variation, a post-processing of x plus Gaussian noise of deviation s', so that the multiplier accounted is
# s'/Delta: gamma = C / (s'/sigma - sqrt(d) (1 + 2^45 eta)), which exists where the difference is positive.
#
# Under sampling the sum after rounding is no longer additive, and need not be. Let r be any map from batches to integer
# vectors with |r(B + x) - r(B)| <= Delta for all B and x. Given the others' batch B, whose law is the same in both
# worlds, and all that was shown, w = r(B + x) - r(B) is fixed. From one number y of the pair
# ((1 - q) N(0, s'^2) + q N(Delta, s'^2), N(0, s'^2)) form y |w|/Delta + N(0, s'^2 (1 - |w|^2/Delta^2)): its law is
# N(0, s'^2), or the mixture with |w| in the place of Delta. Put it along w, independent noise across, add r(B), round:
# that is the step, as a post-processing of the pair. So every account holds that uses a query only by the norms of its
# differences between batches: Poisson sampling, truncated, without replacement, allocation, groups.
# ----------------------------------------------------------------------------------------------------

DITHER = 49 / 16
"""t^2, what is taken off the variance s^2: with less the bill grows, by e^(-4 pi^2 t^2)."""

MOST_MULTIPLE = 2.0**44
"""Largest multiple of the grid that a sum may have; beyond it is clipped, which is part of the query. The sum with Z is
an integer below 2^53, exact in float64. A smaller one would bind for large batches of like gradients: this one does
for coordinates of 2^24 sigma C with two draws, and of 2^19 sigma C with three."""

SCALING_ERROR = 2.0**-47
"""Bound eta on the relative error of a sum over the grid. A division in float64, or a product with a rounded
reciprocal, errs by 2^-51; of a TPU's pairs of float32 numbers, of 48 bits, this is assumed. Grids rest on it."""

ROUNDING_OF_ENTRY = 1 + 2 * MOST_MULTIPLE * SCALING_ERROR
"""The most that rounding moves one entry of the difference between two neighbours, in units of the grid."""

MOST_EXTRA = 1e-3
"""Share of noise that two draws may add to what is accounted before three are taken: utility alone."""


def draws_of(noise_multiplier: ArrayLike, entries: int, rounding: float = 0.0) -> int:
    """Returns how many draws make Z: two where that adds little noise, else three, as for traced multipliers.

    Raises ValueError where no grid exists for a concrete multiplier.
    """
    if not is_concrete(noise_multiplier):
        return 3
    sigma = float(np.asarray(noise_multiplier))
    lost = sigma * (math.sqrt(entries) * ROUNDING_OF_ENTRY + rounding)
    for draws, share in ((2, MOST_EXTRA), (3, 0.5)):
        if lost <= share * deviation_below(draws):
            break
    else:
        raise ValueError(
            f"noise_multiplier = {sigma:g} for {entries} entries: rounding all of them to integers would take more "
            "than half of the noise. Give a smaller one, train fewer parameters, or give noise_arithmetic='float64'."
        )
    if not sigma > 2 * deviation_below(draws) / MOST_MULTIPLE:
        raise ValueError(
            f"noise_multiplier = {sigma:g} is so small that its integers would clip the sum below the clipping norm: "
            "give a larger one, or noise_arithmetic='float64'."
        )
    return draws


def deviation_below(draws: int) -> float:
    """Returns s', the deviation of the Gaussian noise whose post-processing Z nearly is, rounded down."""
    return math.sqrt(VARIANCES[draws] - Fraction(DITHER)) * (1 - 2.0**-50)


@kernel(own_float64=True)
def grid_of(
    noise_multiplier: ArrayLike, sensitivity: ArrayLike, entries: int, draws: int, rounding: ArrayLike = 0.0
) -> Float64[Array, ""]:
    """Returns the grid at which Z is noise of that multiplier for sums of that sensitivity; NaN where there is none.

    Args:
        noise_multiplier (): what is accounted; above 0, finite.
        sensitivity (): by how much one example moves the sums in L2, jointly.
        entries: number of entries of all leaves together.
        draws: of Z, as :func:`draws_of` gives it.
        rounding (): what else rounding adds to the sensitivity, in units of the grid.

    Formal guarantee: s'/(sensitivity/grid + sqrt(entries) ROUNDING_OF_ENTRY + rounding) is at least the multiplier: the
    last factor below is for the roundings of this function.

    >>> round(1.0 / float(grid_of(1.0, 1.0, 10, 2)))
    1048572
    """
    sigma, norm = as_float64(noise_multiplier), as_float64(sensitivity)
    room = deviation_below(draws) / sigma - (math.sqrt(entries) * ROUNDING_OF_ENTRY + as_float64(rounding))
    # Where nearly all of the noise pays for roundings, those of this difference would count: of a sixteenth they are
    # less than the last factor below, also where arithmetic has 48 bits. A grid of 0, or a subnormal one, would show
    # the sum.
    is_sound = (sigma > 0) & (norm > 2.0**-900) & (norm < jnp.inf)
    is_sound &= (room * sigma > deviation_below(draws) / 16) & (room < MOST_MULTIPLE)
    return jnp.where(is_sound, norm / room * (1 + 2.0**-40), jnp.nan)


@kernel(own_float64=True)
def add_noise(
    key: jax.Array,
    total: PyTree,
    *,
    noise_multiplier: ArrayLike,
    sensitivity: ArrayLike,
    places: tuple[NamedSharding, ...] | None = None,
) -> PyTree:
    """Returns sums with independent Gaussian noise of deviation ``noise_multiplier * sensitivity`` on every entry.

    Args:
        key: typed scalar key, used for nothing else. A ChaCha20 key draws integers on a grid; any other one, for
            experiments, normal numbers of float64 (:func:`normals_of_units`).
        total: pytree of float64 sums, which one example moves by at most ``sensitivity`` in L2, jointly; none is NaN.
        noise_multiplier (): traced, it gives NaN where there is no grid for it; a concrete 0 adds nothing.
        sensitivity (): finite.
        places: how the leaves lie on a mesh; None: on one device, or as the compiler likes.

    Formal guarantee: with a ChaCha20 key, up to what a bill takes off delta (:func:`bill`), a post-processing of the
    Gaussian mechanism with that multiplier, also where the sums are of a sample (proof above). With another key the law
    of the noise is close to normal, and its last bits may tell what it was added to.

    Raises TypeError for sums of another dtype: the scaling of float32 would err by up to 2^16 units of the grid.
    """
    check_float64(total)
    if is_concrete(noise_multiplier) and float(np.asarray(noise_multiplier)) == 0:
        return total
    if not is_chacha20(key):
        deviation = as_float64(noise_multiplier) * as_float64(sensitivity)
        return jax.tree.map(lambda leaf, z: leaf + deviation * z, total, drawn_like(key, total, 0, places))
    entries = entries_of(total)
    draws = draws_of(noise_multiplier, entries)
    return _add_on_grid(key, total, grid_of(noise_multiplier, sensitivity, entries, draws), draws, places)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _add_on_grid(
    key: jax.Array, total: PyTree, grid: Array, draws: int, places: tuple[NamedSharding, ...] | None
) -> PyTree:
    """Returns sums with integers on a grid, in one program."""
    return jax.tree.map(lambda leaf, z: (on_grid(leaf, grid) + z) * grid, total, drawn_like(key, total, draws, places))


def check_float64(total: PyTree) -> None:
    """Raises TypeError where a leaf of sums is not of float64."""
    leaves = jax.tree.leaves(total)
    if any(leaf.dtype != jnp.float64 for leaf in leaves):
        raise TypeError(f"total has leaves of {sorted({str(leaf.dtype) for leaf in leaves})}: give sums of float64.")


def drawn_like(key: jax.Array, total: PyTree, draws: int, places: tuple[NamedSharding, ...] | None) -> PyTree:
    """Returns :func:`noise_of_leaves` in float64 for a pytree of sums; inside the float64 scope."""
    leaves, structure = jax.tree.flatten(total)
    words = jax.random.key_data(as_chacha20(key))
    z = noise_of_leaves(words, tuple(np.shape(leaf) for leaf in leaves), draws, places)
    return jax.tree.unflatten(structure, [leaf.astype(jnp.float64) for leaf in z])


def on_grid(leaf: Float64[Array, ...], grid: Float64[Array, ""]) -> Float64[Array, ...]:
    """Returns the nearest multiples of the grid, whole numbers of at most 2^44; inside the float64 scope."""
    return jnp.rint(jnp.clip(leaf / grid, -MOST_MULTIPLE, MOST_MULTIPLE))


# ----------------------------------------------------------------------------------------------------
# Correlated noise, without sampling. A strategy's row t of C y = z reads z_t = own_t y_t + (combination of y before t).
# In units of the grid of step t, gamma / own_t, what is added is
#
#     w_t = Z_t - rint(sum over u < t of C_tu w_u / own_u),   released is  o_t = x_t + w_t.
#
# Given all o and one of two neighbours, w = o - x and so Z are determined step by step. Let x, x' be the sums of two
# neighbours and e = Z' - Z what their noise would have to differ by for the same o: w' - w = x - x', and
#
#     e_t = (C1 (x - x'))_t + rho_t,   C1 = C diag(own)^-1,   |rho_t| <= 1 + 2^45 eta in each coordinate,
#
# as each of the two roundings errs by 1/2, and what it rounds by 2^44 eta = 2^-3. What is combined are exact multiples
# over own entries, which MOST_GROWTH keeps small: where buffers add them up over steps, each addition errs by 2^-53 of
# a buffer. (It was 2^-23 in all after 20,000 steps.)
# x - x' is the difference of sums, own_t/gamma of it, and of its rounding, in the steps an example takes part in alone.
# With sens the strategy's sensitivity for how examples take part, fixed beforehand, whatever o,
#
#     |e| <= E = sens (C/gamma + sqrt(d) ROUNDING_OF_ENTRY / min own) + sqrt(d T) (1 + 2^45 eta).
#
# That is enough: adaptive Gaussian steps whose shifts have sum |e_t|^2 <= E^2 surely are a post-processing of one
# Gaussian mechanism of sensitivity E (a Brownian motion of drift 0 or 1 on [0, E^2], of which step t takes the next
# |e_t|^2; Smith and Thakurta, 2022, "Fully adaptive composition for Gaussian differential privacy"). The account has
# the multiplier sigma/sens, so gamma is such that s' sens/sigma = E. Not under sampling: the roundings rho_t depend on
# whether an example was in a batch, in all later steps, where proofs for sampled bands need differences that vanish.
# ----------------------------------------------------------------------------------------------------


MOST_GROWTH = 2.0**17
"""Largest sum of the magnitudes of a row of C^-1, times the terms of a combination. Z is below 2^29, so that rows are
below 2^46, and float64 combines them to 2^-7 for each unit of a row of C: a larger one would break the bound on rho."""


def rounding_of_rows(strategy: BufferedStrategy, sensitivity: float, steps: int, entries: int) -> float:
    """Returns what rounding adds to the sensitivity of correlated noise, as :func:`grid_of` takes it.

    Raises ValueError where a strategy's noise grows so much that float64 does not round it to whole numbers.
    """
    with jax.core.eval_context(), scope():  # also while a step is traced
        own = jax.jit(jax.vmap(lambda step: strategy.entries(step)[0]))(jnp.arange(steps, dtype=jnp.int32))
        least = float(jnp.min(own))
        # A Toeplitz inverse is known by its first column; others by all rows, of the first steps where there are many.
        shown = min(steps, 2**12)
        basis = (
            jnp.zeros(steps).at[0].set(1.0)
            if isinstance(strategy, (BandedToeplitz, BufferedToeplitz))
            else jnp.eye(shown)
        )
        inverse = jnp.abs(jax.jit(strategy.solve)(basis))
        growth = float(jnp.sum(inverse) if inverse.ndim == 1 else jnp.max(jnp.sum(inverse, axis=1)))
    if not growth * (strategy.buffers + 2) <= MOST_GROWTH:
        raise ValueError(
            f"noise = {type(strategy).__name__} makes rows of {growth:.3g} times its noise over {steps} steps, which "
            "are not rounded to whole numbers in float64: give another strategy, or noise_arithmetic='float64'."
        )
    rounded = ROUNDING_OF_ENTRY * math.sqrt(entries)
    return rounded / least + rounded * math.sqrt(steps) / sensitivity


@kernel(own_float64=True)
def add_correlated(
    key: jax.Array,
    total: PyTree,
    strategy: BufferedStrategy,
    state: NoiseState,
    *,
    noise_multiplier: ArrayLike,
    sensitivity: ArrayLike,
    rounding: float,
    places: tuple[NamedSharding, ...] | None = None,
) -> tuple[PyTree, NoiseState]:
    """Returns sums with the next row of a strategy's noise, in integers on a grid, and the state after it.

    Arguments are those of :func:`add_noise`, the key one of ChaCha20; ``rounding`` is :func:`rounding_of_rows`.

    Formal guarantee: that of the strategy's Gaussian mechanism over all steps without sampling, up to the bill (proof
    above).
    """
    check_float64(total)
    draws = draws_of(noise_multiplier, 0, rounding)
    own = strategy.entries(state.step)[0].astype(jnp.float64)
    grid = grid_of(noise_multiplier, sensitivity, 0, draws, rounding) / own
    before, _ = strategy.correlate(jax.tree.map(jnp.zeros_like, total), state)  # less the combination, over own
    rows = jax.tree.map(lambda z, row: z + jnp.rint(own * row), drawn_like(key, total, draws, places), before)
    noisy = jax.tree.map(lambda leaf, row: (on_grid(leaf, grid) + row) * grid, total, rows)
    return noisy, strategy.advance(state, jax.tree.map(lambda row: row / own, rows))


# ----------------------------------------------------------------------------------------------------
# The bill: how far the noise of a whole run is from one that is exactly a post-processing of Gaussian noise. For N
# samples of three draws each, which cost more than two,
#
#     bridge    D(s) against the dithered Gaussian of variance s^2 - 49/16:          sqrt(expm1(N chi2(49/16)))/2
#     sums      X1 + 32 X and X2 + 765 X3 against D:                                 the same of tau^2, for both
#     table     the table's law against D(s1): its tail, and roundings to 2^-127:    3 N (tail + 2^-113)
#     suffix    eight draws that share one:                                          3 N 28/8 2^-98
#
# The chi2 and their sum over samples are proved in :mod:`jaxacct.mechanisms.discrete_gaussian`. A policy may choose
# noise on the way: it chooses grids, and the law of Z stays, or is one of two with the same bounds, given the past.
# ----------------------------------------------------------------------------------------------------

MOST_SHARE = 0.01
"""Share of delta beyond which a run refuses to take the bill off it: utility alone."""


def bill(samples: float) -> dict[str, float]:
    """Returns the total variation of so many samples by its parts, each an upper bound.

    >>> parts = bill(1e13)
    >>> sorted(parts), 2.0e-16 < sum(parts.values()) < 3.4e-16
    (['bridge', 'suffix', 'sums', 'table'], True)
    """
    inner = float(DRAW_VARIANCE) / (COARSE**2 + 1)
    outer = float(DRAW_VARIANCE * VARIANCES[2] / VARIANCES[3])
    s1 = math.sqrt(DRAW_VARIANCE)
    # The geometric series of the tail's first term and its ratio to the next, over the integers' sum; both signs.
    first, ratio = math.exp(-(ROWS**2) / (2 * s1**2)), math.exp(-(2 * ROWS + 1) / (2 * s1**2))
    tail = 2 * first / (1 - ratio) / (s1 * math.sqrt(2 * math.pi)) * (1 + 1e-9)
    return {
        "bridge": float(total_variation(samples, chi_square_of_dither(DITHER))),
        "sums": sum(float(total_variation(samples, chi_square_of_dither(tau * (1 - 1e-12)))) for tau in (inner, outer)),
        "table": 3 * samples * (tail + 2.0**-113),
        "suffix": 3 * samples * 3.5 * 2.0**-98 * (1 + 2.0**-50),
    }


def noise_delta(samples: float, epsilon: float, delta: float) -> float:
    """Returns what the distance of integer noise from its account takes off ``delta`` at ``epsilon``.

    A planned run, and the filter of a trainer, have it taken off. Take it off the delta of a filter that pays for
    :meth:`.PrivateGradients.paid_by`.

    Args:
        samples: values that the whole run can draw: entries of the parameters, and counts, of all steps; 0: none.
        epsilon: of the guarantee, to which the run keeps.
        delta: of the guarantee.

    Formal guarantee: an upper bound on ``(1 + e^epsilon) tau``, tau being the sum of :func:`bill`. If the run with real
    Gaussian noise is (epsilon, delta')-DP, the run as it is drawn is (epsilon, delta' + this)-DP, adaptively.

    Raises ValueError where it is more than a hundredth of delta, or epsilon is infinite; and, or TypeError, for what is
    no finite number of values of at least 0, no epsilon or no delta.

    >>> noise_delta(samples=1e13, epsilon=8.0, delta=1e-8) < 1e-12
    True
    """
    for name, value in (("samples", samples), ("epsilon", epsilon), ("delta", delta)):
        validation.check_scalar(value, name)
    validation.check_not_negative(samples, "samples", "a number of values of noise")
    validation.check_finite(samples, "samples")
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    if samples == 0:
        return 0.0
    distance = sum(bill(samples).values())
    added = float(cost(epsilon, distance)) if math.isfinite(epsilon) else 1.0
    if not added <= MOST_SHARE * delta:
        raise ValueError(
            f"epsilon = {epsilon:g}: integer noise of {samples:.3g} samples is within "
            f"{distance:.2g} of its account, which here costs {added:.3g} of delta = {delta:g}, "
            "and a hundredth is the most. Give a smaller epsilon, a larger delta or, where you left it open, the "
            "number of entries that there are; or noise_arithmetic='float64', of no proved law."
        )
    return added
