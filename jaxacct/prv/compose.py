"""Self-composition by repeated squaring on an evolving mesh: constant memory, and time logarithmic in the steps.

After each squaring the loss is spread wider; a constant number of points then means a wider mesh. The mesh doubles when
what carries mass no longer fits, which for a bulk that grows like the square root of the steps is at every second
squaring (Ghazi, Kamath, Kumar and Manurangsi 2022, "Faster privacy accounting via evolving discretization", whose
recursive algorithm this is). A step of mesh h costs at most h^2/4 in variance, and the number of summands halves as the
squared mesh doubles, so each coarsening costs about the same and their sum grows like log(steps).

The bits of the number of steps are taken from the lowest: an accumulator of the powers met so far is brought to the
mesh of the next, so that like is merged with like.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.prv.convolve import convolve
from jaxacct.prv.lattice import LossLattice, coarsen, cut, identity_like, pad, quantile_range

_Tree = TypeVar("_Tree")

BLOCK = 32
"""Points by which windows are placed; a finer placing gains nothing."""

TRUNCATION = 2.0**-34
"""Share of the final tilted mass that all truncations together may lose, in the steps' plan. What is really lost is
measured and bounded; this only decides where to cut. Chosen by bench/prv_accuracy.py: 2^-26 left gaps where jumps are
rare, 2^-42 widened the windows."""


class _Progress(NamedTuple):
    remaining: Array
    """Steps still to take, in units of ``power``."""
    power: LossLattice
    """The sum of 2^j losses, j squarings so far."""
    accumulated: LossLattice
    """The sum of the losses of the bits met, on the mesh of ``power``."""


def truncation_tail(steps: Array) -> Array:
    """Returns the tilted mass that one side of a single step's window may lose when ``steps`` are composed."""
    return TRUNCATION / (16.0 * jnp.maximum(steps, 1).astype(jnp.float64))


def self_compose(step: LossLattice, steps: Array) -> LossLattice:
    """Returns the lattice of the sum of ``steps`` independent copies of a loss, with as many points as ``step`` has.

    Args:
        step: lattices of one step, with a leading axis: (rows, n). All rows take the same number of steps.
        steps: nonnegative int64 scalar, may be traced.
    """
    start = _Progress(jnp.maximum(steps, 0).astype(jnp.int64), step, jax.vmap(identity_like)(step))
    return jax.lax.while_loop(lambda progress: progress.remaining > 0, _advance, start).accumulated


def _advance(progress: _Progress) -> _Progress:
    """Takes in the lowest bit of the remaining steps and squares the power."""
    remaining, power, accumulated = progress
    odd = remaining % 2 == 1
    remaining = remaining // 2
    added, noise = jax.vmap(convolve)(accumulated, power)
    wide = jax.vmap(lambda row: pad(row, 2 * row.points))
    accumulated = _select(odd, added, wide(accumulated))

    def square(accumulated: LossLattice) -> tuple[LossLattice, LossLattice]:
        squared, noise = jax.vmap(convolve)(power, power)
        # What one side may lose is multiplied by the copies still to be made; below the noise no tail is told from 0.
        tail = jnp.maximum(truncation_tail(remaining), noise / 2)
        doubled, added_to = jax.vmap(_fit)((squared, accumulated), tail)
        return doubled, added_to

    def finish(accumulated: LossLattice) -> tuple[LossLattice, LossLattice]:
        return power, jax.vmap(_fit)((accumulated,), noise / 2)[0]

    power, accumulated = jax.lax.cond(remaining > 0, square, finish, accumulated)
    return _Progress(remaining, power, accumulated)


def _fit(lattices: tuple[LossLattice, ...], tail: Array) -> tuple[LossLattice, ...]:
    """Returns the lattices on half their points: cut to where the mass is, or on a mesh twice as wide.

    The first, the widest, decides for all, so that they stay on one mesh.
    """
    points = lattices[0].points // 2
    spans = [quantile_range(lattice.weights, tail, BLOCK) for lattice in lattices]
    fits = spans[0][1] - spans[0][0] <= points
    fitted = []
    for lattice, (first, end) in zip(lattices, spans, strict=True):
        start = jnp.clip((first + end - points) // 2, 0, points)
        fitted.append(_select(fits, cut(lattice, start, points), coarsen(lattice)))
    return tuple(fitted)


def _select(condition: Array, true: _Tree, false: _Tree) -> _Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), true, false)
