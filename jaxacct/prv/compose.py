"""Self-composition by repeated squaring on an evolving mesh: constant memory, and time logarithmic in the steps.

After each squaring the loss is spread wider; a constant number of points then means a wider mesh. The mesh doubles when
what carries mass no longer fits, which for a bulk that grows like the square root of the steps is at every second
squaring (Ghazi, Kamath, Kumar and Manurangsi 2022, "Faster privacy accounting via evolving discretization", whose recursive
algorithm this is). A step of mesh h costs at most h^2/4 in variance, and the number of summands halves as the squared
mesh doubles, so each coarsening costs about the same and their sum grows like log(steps).

The bits of the number of steps are taken from the lowest: an accumulator of the powers met so far is brought to the
mesh of the next, so that like is merged with like.
"""

from __future__ import annotations

import functools
from dataclasses import replace
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
measured and bounded; this only decides where to cut. Found best by bench/prv_accuracy.py within a factor of 100."""


class _Progress(NamedTuple):
    remaining: Array
    """Steps still to take, in units of ``power``."""
    power: LossLattice
    """The sum of 2^j losses, j squarings so far."""
    accumulated: LossLattice
    """The sum of the losses of the bits met, on the mesh and the number of points of ``power``."""
    result: LossLattice
    """The final sum once ``remaining`` is 0, on the first number of points."""


def truncation_tail(steps: Array) -> Array:
    """Returns the tilted mass that one side of a single step's window may lose when ``steps`` are composed."""
    return TRUNCATION / (16.0 * jnp.maximum(steps, 1).astype(jnp.float64))


def stage_sizes(points: int, floor: int) -> list[int]:
    """Returns the number of points of the powers 1, 2, 4, ...: halved at every second squaring down to ``floor``.

    The window of a step with rare large losses grows slower at first than its bulk, so the mesh can widen while the
    window stays: arrays shrink by a factor sqrt 2 a squaring.
    """
    sizes = [points]
    while sizes[-1] > floor:
        sizes += [sizes[-1], sizes[-1] // 2] if len(sizes) > 1 else [sizes[-1] // 2]
    return sizes


def self_compose(step: LossLattice, steps: Array, floor: int) -> LossLattice:
    """Returns the lattice of the sum of ``steps`` independent copies of a loss, with as many points as ``step`` has.

    Args:
        step: lattices of one step, with a leading axis: (rows, n). All rows take the same number of steps.
        steps: nonnegative int64 scalar, may be traced.
        floor: number of points that the arrays shrink to, a power of two, at most n.
    """
    identity = jax.vmap(identity_like)(step)
    progress = _Progress(jnp.maximum(steps, 0).astype(jnp.int64), step, identity, identity)
    for size in stage_sizes(step.points, min(floor, step.points))[1:]:
        progress = jax.lax.cond(
            progress.remaining > 0,
            functools.partial(_square, points=size),
            functools.partial(_resize, points=size),
            progress,
        )
    return jax.lax.while_loop(
        lambda progress: progress.remaining > 0,
        functools.partial(_square, points=progress.power.points),
        progress,
    ).result


def _square(progress: _Progress, points: int) -> _Progress:
    """Takes in the lowest bit of the remaining steps and squares the power, onto ``points`` points."""
    remaining, power, accumulated, result = progress
    size = power.points
    odd = remaining % 2 == 1
    remaining = remaining // 2
    last = remaining == 0
    added, rounding = jax.vmap(convolve)(accumulated, power)
    accumulated = _select(odd, added, _pad(accumulated, 2 * size))
    # Below the rounding noise no tail can be told from zero.
    if 2 * size > result.points:
        whole = jax.vmap(lambda row, noise: _fit(row, row, noise / 2, result.points)[0])(accumulated, rounding)
    else:
        whole = _pad(accumulated, result.points)
    result = _select(last, whole, result)

    def square(operands: tuple[LossLattice, LossLattice]) -> tuple[LossLattice, LossLattice]:
        squared, rounding = jax.vmap(convolve)(operands[0], operands[0])
        # What one side may lose here is multiplied by the number of copies still to be made.
        tail = jnp.maximum(truncation_tail(remaining), rounding / 2)
        return jax.vmap(functools.partial(_fit, points=points))(squared, operands[1], tail)

    def skip(operands: tuple[LossLattice, LossLattice]) -> tuple[LossLattice, LossLattice]:
        return _shorten(operands[0], points), _shorten(operands[1], points)

    power, accumulated = jax.lax.cond(last, skip, square, (power, accumulated))
    return _Progress(remaining, power, accumulated, result)


def _resize(progress: _Progress, points: int) -> _Progress:
    """Gives a finished progress the shapes of the next stage; the result alone is looked at from here on."""
    return progress._replace(power=_shorten(progress.power, points), accumulated=_shorten(progress.accumulated, points))


def _fit(power: LossLattice, accumulated: LossLattice, tail: Array, points: int) -> tuple[LossLattice, LossLattice]:
    """Returns both lattices on ``points`` points: cut to where the mass is, on the finest mesh on which it fits.

    The power decides the mesh for both, for it is the wider.
    """
    spans = [quantile_range(lattice.weights, tail, BLOCK) for lattice in (power, accumulated)]
    width = spans[0][1] - spans[0][0]
    fitted = []
    for lattice, (first, end) in zip((power, accumulated), spans, strict=True):
        candidates, limits = [], []
        factor = 1
        while lattice.points > points:
            start = jnp.clip(((first + end) // factor - points) // 2, 0, lattice.points - points)
            candidates.append(cut(lattice, start, points))
            limits.append(points * factor)
            lattice, factor = coarsen(lattice), 2 * factor
        for candidate, limit in zip(reversed(candidates), reversed(limits), strict=True):
            lattice = _select(width <= limit, candidate, lattice)
        fitted.append(lattice)
    return fitted[0], fitted[1]


def _pad(rows: LossLattice, points: int) -> LossLattice:
    return jax.vmap(lambda row: pad(row, points))(rows)


def _shorten(rows: LossLattice, points: int) -> LossLattice:
    return replace(rows, weights=rows.weights[..., :points])


def _select(condition: Array, true: _Tree, false: _Tree) -> _Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), true, false)


def stack(*lattices: LossLattice) -> LossLattice:
    """Returns lattices of equal size as rows of one."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *lattices)
