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

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.prv.convolve import convolve
from jaxacct.prv.lattice import LossLattice, coarsen, cut, identity_like, quantile_range, widen

BLOCK = 32
"""Points by which windows are placed; a finer placing gains nothing."""

TRUNCATION = 2.0**-26
"""Share of the final tilted mass that all truncations together may lose, in the steps' plan. What is really lost is
measured and bounded; this only decides where to cut. Found best by bench/prv_accuracy.py within a factor of 100."""


class _Progress(NamedTuple):
    remaining: Array
    """Steps still to take, in units of ``power``."""
    power: LossLattice
    """The sum of 2^j losses."""
    accumulated: LossLattice
    """The sum of the losses of the bits met."""


def truncation_tail(steps: Array) -> Array:
    """Returns the tilted mass that one side of a single step's window may lose when ``steps`` are composed."""
    return TRUNCATION / (16.0 * jnp.maximum(steps, 1).astype(jnp.float64))


def self_compose(step: LossLattice, steps: Array) -> LossLattice:
    """Returns the lattice of the sum of ``steps`` independent copies of a loss, with as many points as ``step`` has.

    Args:
        step: lattices of one step, with a leading axis: (rows, n). All rows take the same number of steps.
        steps: nonnegative int64 scalar, may be traced.
    """
    rows = step.weights.shape[0]
    count = jnp.maximum(steps, 0).astype(jnp.int64)
    start = _Progress(count, step, jax.vmap(identity_like)(step))

    def unfinished(progress: _Progress) -> Array:
        return progress.remaining > 0

    def advance(progress: _Progress) -> _Progress:
        remaining, power, accumulated = progress
        odd = remaining % 2 == 1
        remaining = remaining // 2
        last = remaining == 0
        added, rounding = jax.vmap(convolve)(accumulated, power)
        accumulated = _select(odd, added, jax.vmap(widen)(accumulated))
        squared, rounding = jax.lax.cond(
            last,
            lambda power: (jax.vmap(widen)(power), jnp.zeros(rows)),
            lambda power: jax.vmap(convolve)(power, power),
            power,
        )
        # What one side may lose here is multiplied by the number of copies still to be made. Below the rounding noise
        # no tail can be told from zero.
        tail = jnp.maximum(TRUNCATION / 16.0 / (2.0 * jnp.maximum(remaining, 1)), rounding / 2)
        power, accumulated = jax.vmap(_fit, in_axes=(0, 0, None, 0))(squared, accumulated, last, tail)
        return _Progress(remaining, power, accumulated)

    return jax.lax.while_loop(unfinished, advance, start).accumulated


def _fit(power: LossLattice, accumulated: LossLattice, last: Array, tail: Array) -> tuple[LossLattice, LossLattice]:
    """Returns both lattices on half their points: cut where they fit, on a mesh twice as wide where not.

    The power decides for both, for it is the wider; in the end only the accumulator matters.
    """
    points = power.points // 2
    power_range = quantile_range(power.weights, tail, BLOCK)
    accumulated_range = quantile_range(accumulated.weights, tail, BLOCK)
    first, end = _select(last, accumulated_range, power_range)
    fits = end - first <= points

    def halve(lattice: LossLattice, span: tuple[Array, Array]) -> LossLattice:
        middle_first = (span[0] + span[1] - points) // 2
        kept = cut(lattice, jnp.clip(middle_first, 0, points), points)
        return _select(fits, kept, coarsen(lattice))

    return halve(power, power_range), halve(accumulated, accumulated_range)


def _select(condition: Array, true, false):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), true, false)


def stack(*lattices: LossLattice) -> LossLattice:
    """Returns lattices of equal size as rows of one."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *lattices)


