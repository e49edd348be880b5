"""Tree aggregation, in which a running sum is told from noisy sums of blocks of 2^l steps."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import validation
from jaxacct.precision import UNIT_ROUNDOFF
from jaxacct.pytrees import register_dataclass
from jaxacct.strategies.pattern import Pattern
from jaxacct.strategies.sensitivity import check_dense, of_matrix
from jaxacct.strategies.strategy import Step, Strategy, combined

ERROR = 64 * UNIT_ROUNDOFF
"""Bound on the relative error of an entry, or of a column's norm by so many levels."""


@register_dataclass
@dataclass(frozen=True)
class TreeAggregation(Strategy):
    """The strategy of binary trees with Honaker's online estimate: the noise of DP-FTRL, a buffer for each level.

    What makes the noise, to be accounted for by :class:`.MatrixMechanism`. Of trees that something else has built,
    whose nodes are told one by one, the account is the mechanism :class:`jaxacct.TreeAggregation`.

    Attributes:
        steps: number of steps, static.

    A block of 2^l steps that ends now is estimated from its own noisy sum and the estimates of its halves, with the
    weights of least variance; a prefix sum is the sum of at most one block of each level. With v_0 = 1 and
    v_l = 2 v_(l-1) / (2 v_(l-1) + 1) the variance of such an estimate, its noise is

        e_l = v_l f_l + (1 - v_l) (s_(l-1) + e_(l-1)),   e_0 = f_0,

    where s_(l-1) is that of the left half, which has been told before, e_(l-1) that of the right half, which ends with
    it, and f_l are independent. Only e_l of the largest block that ends now is ever used again. So the noise of one
    step is as good as that of all blocks that end with it: with L the level of the largest,

        e_L = sum over l < L of b_(L,l) s_l + w_L z,   b_(L,l) = product of (1 - v_j) over l < j <= L,

    and w_L^2 = v_L^2 + (1 - v_L)^2 w_(L-1)^2. A step's noise is e_L less the sum of those s_l. This has the law of the
    tree's estimates, and is lower-triangular like all strategies: the sensitivity is that of *its* C, at most the
    tree's, which tells blocks' sums one by one. (For 2 steps its square is 1.8; the tree's is 2.)

    Source: Honaker (2015), "Efficient use of differentially private binary trees"; Kairouz et al. (2021), "Practical
    and private (deep) learning without sampling or shuffling".

    >>> bool(TreeAggregation(steps=2).sensitivity(Pattern(2, 2, 1)) ** 2 < 1.8 + 1e-6)
    True
    """

    steps: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_count(self.steps, "steps", "the number of steps")

    @property
    def buffers(self) -> int:
        return int(self.steps).bit_length()

    def entries(self, step: Step) -> tuple[Array, Array]:
        own, factors = map(jnp.asarray, _tables(self.buffers))
        level = self._level(step)
        # Beyond the last step there is no level for what ends.
        return jnp.where(step < self.steps, own[level], jnp.nan), factors[level]

    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        # The row is what the block adds to its left halves' noise: their sum is the block's own.
        level = self._level(step)
        below = (jnp.arange(self.buffers) < level).astype(kept.dtype)
        return kept.at[level].set(row + combined(below, kept))

    def sensitivity(self, pattern: Pattern) -> float:
        if pattern.most > 1:
            return of_matrix(self.matrix(pattern.steps), pattern, ERROR)
        squares = np.zeros(self._checked(pattern.steps))
        for level, starts in _blocks(pattern.steps):
            # Blocks of a level do not overlap: an example is in at most one, and adds to one row.
            squares[starts[:, None] + np.arange(2**level)] += _row(level, self.buffers) ** 2
        return of_matrix(np.sqrt(np.max(squares))[None, None], Pattern(1, 1, 1), ERROR)

    def matrix(self, steps: int) -> np.ndarray:
        """Returns C (steps, steps), float64, of numbers as they are streamed: a row for the block that ends there."""
        check_dense(self._checked(steps))
        matrix = np.zeros((steps, steps))
        for level, starts in _blocks(steps):
            for start in starts:
                matrix[start + 2**level - 1, start : start + 2**level] = _row(level, self.buffers)
        return matrix

    def _checked(self, steps: int) -> int:
        if steps > self.steps:
            raise ValueError(f"steps = {steps} are more than the tree's {self.steps}: make one of as many.")
        return steps

    def _level(self, step: Step) -> Array:
        """Returns the level of the largest block that ends with a step: how many ones its number ends in."""
        ends = jnp.mod(step + 1, 2 ** jnp.arange(1, self.buffers, dtype=jnp.int32)) == 0
        return jnp.sum(ends).astype(jnp.int32)


def _blocks(steps: int) -> list[tuple[int, np.ndarray]]:
    """Returns for each level where its blocks start that are the largest to end where they do."""
    return [(level, np.arange(0, steps - 2**level + 1, 2 ** (level + 1))) for level in range(steps.bit_length())]


def _row(level: int, levels: int) -> np.ndarray:
    """Returns what C has for the steps of a block, the last of which is its own."""
    own, factors = (table.astype(np.float64) for table in _tables(levels))
    halves = [np.repeat(factors[level, half], 2**half) for half in reversed(range(level))]
    return np.concatenate([*halves, own[level, None]])


@functools.cache
def _tables(levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns 1 / w (levels,), and (1 - b) / w (levels, levels) with 0 where there is no half; float32."""
    variance = 1 / (2 - 2.0 ** -np.arange(levels))
    deviations, factors = np.ones(levels), np.zeros((levels, levels))
    for level in range(1, levels):
        deviations[level] = np.hypot(variance[level], (1 - variance[level]) * deviations[level - 1])
        for half in range(level):
            factors[level, half] = (1 - np.prod(1 - variance[half + 1 : level + 1])) / deviations[level]
    return (1 / deviations).astype(np.float32), factors.astype(np.float32)
