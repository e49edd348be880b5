"""The dominating pair of two steps out of n, drawn at random, by convex order in two dimensions.

Q is N(0, s^2 I_n), P the mixture of its shifts by e_i + e_j over all pairs of steps. With X_i as in
:mod:`.random_allocation`, the likelihood ratio is the mean of X_i X_j. It is affine in every X_i, and these are
independent under Q. So its mean of a convex function grows where an X_i is spread, the others being as they are; and so
does it where any statistic of some of them is, in which it is affine.

*Parts.* Let the steps be divided, at random, into PARTS parts of equal sizes or sizes that differ by one, and let the
two steps be any two of different parts, all such pairs equally likely. The two steps so drawn are any two. Not to say
what the parts were is to average over them, P over P's and Q over the same Q: divergences are jointly convex, and by
symmetry the same for all divisions, so that of the pair given the parts is larger. With M_a the sum of part a, whose
law :func:`.random_allocation.allocated` spreads, the ratio is the sum of M_a M_b over a < b, over the number of pairs.

*The law.* S = M_1 + ... + M_a and T, the sum of products of two of these, are built up part by part: with M the next,
S + M and T + S M. The ratio is affine in (S, T), given all other parts: a spread of (S, T) that keeps its mean makes it
larger in convex order. Points are those with S on chosen columns and 2 T/S^2 on rows, between 0 and 1 - 1/a, which is
the most there is, with equal M. A point (x, y) goes to both columns beside x, in the shares that keep its mean, at the
one value of 2 T/S^2 that keeps y, not above the ratio 2 y/x^2; and from there, along each column, to both rows beside
it, which keeps T. The last part is put on values of the ratio. Below its most 2 T/S^2 is by the square of what M
deviates by: so rows get closer towards it, the more the less that is, and what they spread remains far below.

Rounding is counted as in :mod:`.random_allocation`: eta for masses, theta for values.

Source: convex order as there; division at random, Feldman and Shenfeld (2025), "Privacy amplification by random
allocation", where every part has one of the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs.random_allocation import (
    MOST_BATCHES,
    VALUE_ERROR,
    Grid,
    RandomAllocationPair,
    RatioLaw,
    allocated,
    allocation_pairs,
    coarsened,
    summed,
)
from jaxacct.precision import as_float64
from jaxacct.pytrees import register_dataclass

PARTS = 4
"""Two would give what two epochs of half the steps do; each further one takes a step of two dimensions. With 4, 5 and 8
the epsilon of a (100, 5) allocation with s = 0.6 was 7.86, 7.83 and 7.80; 8.09 with 2."""

ROWS, LEAST_ROW = 64, 1e-4
"""Values of 2 T/S^2 over its most: 0, and e^-u, u evenly in log(1 + u/width). Below the least one T hardly tells beside
S times what comes."""

FLATTEST = 2.0
"""Largest width of rows; what parts deviate by, squared, where that is less."""

LEAST_NOISE = 0.085
"""As there, for products of two values, which are then below e^430, too."""


class _Spread(NamedTuple):
    """The law of (S, T): masses (columns, ROWS) at columns of S and rows of 2 T/S^2; eta."""

    columns: Float[Array, " columns"]
    rows: Float[Array, " ROWS"]
    masses: Float[Array, "columns ROWS"]
    eta: Array

    def sums(self) -> RatioLaw:
        """Returns the law of S."""
        return RatioLaw(self.columns, jnp.sum(self.masses, axis=1), self.eta + ROWS * roundoff())

    def products(self) -> Array:
        """Returns T, (columns, ROWS)."""
        return self.rows[None] * self.columns[:, None] ** 2 / 2


@register_dataclass
@dataclass(frozen=True)
class PairedAllocationPair(RandomAllocationPair):
    """As :class:`.RandomAllocationPair`, for two steps out of ``batches``.

    ``in_tails`` is 0, or NaN where the parameters are not valid: all that divergences ask of the pair as spread, which
    a program that asks for no more need not compute.
    """

    def divergence(self, orders: Array) -> Array:
        """Returns an upper bound on the mechanism's: that of one step of each half of them."""
        n = as_float64(self.batches)
        halves = (jnp.floor(n / 2), jnp.ceil(n / 2))
        alone = [allocation_pairs(self.noise_multiplier, half, 512, [False])[0] for half in halves]
        total = sum(replace(pair, removes=self.removes).divergence(orders) for pair in alone)
        return jnp.where(as_float64(self.in_tails) == 0, total, jnp.nan)


def paired_allocation_pairs(
    noise_multiplier: ArrayLike, batches: ArrayLike, points: int, removes: Sequence[bool]
) -> list[PairedAllocationPair]:
    """Returns what :func:`.allocation_pairs` does, for two steps of so many batches, 2 at least."""
    s, n = as_float64(noise_multiplier), as_float64(batches)
    valid = (s >= LEAST_NOISE) & (s < jnp.inf) & (n >= 2) & (n <= MOST_BATCHES) & (n == jnp.floor(n))
    s, n = jnp.where(valid, s, 1.0), jnp.where(valid, n, 2.0)
    less = jnp.floor(n / PARTS)
    few, many = (allocated(s, jnp.maximum(size, 1), points // 2) for size in (less, less + 1))
    square = jnp.expm1(jnp.minimum(1 / s**2, 40.0)) / n  # about what a part deviates by, squared
    (values, q, eta), theta = _paired(few.law, many.law, n, square, points)
    theta = theta + 2 * jnp.maximum(few.theta, many.theta)
    infinite = few.infinite * (2 - few.infinite)
    p = jnp.where(valid, jnp.concatenate([values * q, infinite[None]]), jnp.nan)
    q = jnp.concatenate([q, jnp.zeros(1)])
    losses = jnp.concatenate([jnp.log(values), jnp.array([jnp.inf])])
    rounding = jnp.where(valid, eta + theta + 4 * roundoff(), jnp.nan)
    sides = {True: (p, q, losses), False: (q, p, -losses)}
    valid_as_zero = jnp.where(valid, 0.0, jnp.nan)
    return [PairedAllocationPair(*sides[way], rounding, s, n, in_tails=valid_as_zero, removes=way) for way in removes]


@functools.partial(jax.jit, static_argnames="points")
def _paired(few: RatioLaw, many: RatioLaw, n: Array, square: Array, points: int) -> tuple[RatioLaw, Array]:
    """Returns the law of the ratio from those of the parts' means, of sizes floor(n/PARTS) and one more; and theta."""
    width = jnp.clip(jnp.sqrt(square) / 2, 1e-9, 0.5)
    less, longer = jnp.floor(n / PARTS), jnp.mod(n, PARTS)
    # Sums over the size of a part as it would be: near 1.
    few = few._replace(values=few.values * (less * PARTS / n))
    many = many._replace(values=many.values * ((less + 1) * PARTS / n))
    nobody = many._replace(masses=jnp.zeros_like(many.masses).at[0].set(1.0))
    few = jax.tree.map(lambda some, none: jnp.where(n < PARTS, none, some), few, nobody)
    parts = jax.tree.map(lambda a, b: jnp.stack([jnp.where(i < longer, b, a) for i in range(PARTS)]), few, many)
    first, middle, last = (RatioLaw(*(leaf[at] for leaf in parts)) for at in (0, slice(1, -1), -1))
    start = jnp.zeros((len(first.values), ROWS)).at[:, 0].set(first.masses)
    law = _Spread(first.values, jnp.zeros(ROWS), start, first.eta)
    numbers = jnp.arange(2.0, PARTS)
    law, _ = jax.lax.scan(lambda law, part: (_with_part(law, *part, width, square), None), law, (middle, numbers))
    # Of all pairs, over that size twice, those within parts do not count.
    within = (PARTS - longer) * less**2 + longer * (less + 1) ** 2
    return _ratio(law, last, (n**2 - within) / 2 * (PARTS / n) ** 2, width, points)


def _with_part(law: _Spread, part: RatioLaw, number: Array, width: Array, square: Array) -> _Spread:
    """Returns the law of (S + M, T + S M), of so many parts."""
    # As a mean: near 1, where the grid is close.
    least = jnp.log(jnp.minimum(law.columns[1], part.values[1]) / number)
    grid = Grid(least, jnp.log((law.columns[-1] + part.values[-1]) / number), width)
    fine = summed(law.sums(), 1 / number, part, 1 / number, grid)
    columns = number * coarsened(grid.logs(), fine.masses, fine.eta, number / PARTS, len(part.values)).values
    bend, most = jnp.clip(square, 1e-9, FLATTEST), 1 - 1 / number
    largest = jnp.log1p(-np.log(LEAST_ROW) / bend)
    falls = bend * jnp.expm1(largest * jnp.linspace(1.0, 0.0, ROWS - 1))
    rows = jnp.concatenate([jnp.zeros(1), most * jnp.exp(-falls)])
    squares, products = columns**2 / 2, law.products()
    cells = len(columns) - 2

    def point(into: Array, entry: tuple[Array, Array]) -> tuple[Array, None]:
        value, mass = entry
        x, y = law.columns + value, products + (law.columns * value)[:, None]
        i = jnp.clip(jnp.searchsorted(columns, x, side="right") - 1, 0, cells)
        right = jnp.clip((x - columns[i]) / (columns[i + 1] - columns[i]), 0.0, 1.0)
        square = ((1 - right) * squares[i] + right * squares[i + 1])[:, None]
        row = jnp.where(square > 0, y / jnp.where(square > 0, square, 1.0), 0.0)
        fall = jnp.maximum(-jnp.log(jnp.maximum(row, 1e-300) / most), 0.0)
        place = ROWS - 1 - jnp.log1p(fall / bend) / largest * (ROWS - 2)
        j = jnp.clip(jnp.floor(place), 0, ROWS - 2).astype(jnp.int32)
        up = jnp.clip((row - rows[j]) / (rows[j + 1] - rows[j]), 0.0, 1.0)
        both, i, right = mass * law.masses, i[:, None], right[:, None]
        for column, share in ((i, 1 - right), (i + 1, right)):
            lower, upper = (jnp.stack([both * share * side, jnp.ones_like(both)], -1) for side in (1 - up, up))
            into = into.at[column, j].add(lower).at[column, j + 1].add(upper)
        return into, None

    sums, _ = jax.lax.scan(point, jnp.zeros((len(columns), ROWS, 2)), (part.values, part.masses))
    masses, counts = sums[..., 0], sums[..., 1]
    eta = law.eta + part.eta + roundoff() * (jnp.max(counts) + 16 + len(columns) * ROWS)
    return _Spread(columns, rows, masses / jnp.sum(masses), eta)


def _ratio(law: _Spread, last: RatioLaw, pairs: Array, width: Array, points: int) -> tuple[RatioLaw, Array]:
    """Returns the law of (T + S M)/pairs, and theta."""
    products = law.products()
    least = jnp.minimum(law.rows[1] * law.columns[1] ** 2 / 2, law.columns[1] * last.values[1])
    most = products[-1, -1] + law.columns[-1] * last.values[-1]
    grid = Grid(jnp.log(least / pairs), jnp.log(most / pairs), width)
    values = jnp.concatenate([jnp.zeros(1), jnp.exp(grid.logs())])

    def point(into: Array, entry: tuple[Array, Array]) -> tuple[Array, None]:
        value, mass = entry
        ratio = (products + law.columns[:, None] * value) / pairs
        low = grid.cell(jnp.log(ratio))
        up = jnp.clip((ratio - values[low]) / (values[low + 1] - values[low]), 0.0, 1.0)
        both = mass * law.masses
        lower, upper = (jnp.stack([both * side, jnp.ones_like(both)], -1) for side in (1 - up, up))
        return into.at[low].add(lower).at[low + 1].add(upper), None

    sums, _ = jax.lax.scan(point, jnp.zeros((len(values), 2)), (last.values, last.masses))
    masses, counts = sums.T
    eta = law.eta + last.eta + roundoff() * (jnp.max(counts) + 16)
    found = coarsened(grid.logs(), masses / jnp.sum(masses), eta, 1.0, points)
    largest = 2 + jnp.maximum(jnp.abs(grid.low), jnp.abs(grid.high))
    return found, 4 * PARTS * largest * scaled(VALUE_ERROR)
