"""From a composed lattice to delta and epsilon, with every allowance put on the safe side."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.precision import TINY, UNIT_ROUNDOFF, first_index
from jaxacct.prv.lattice import LossLattice

BLOCK = 64
"""Mesh points of a block: epsilon is looked for at the blocks' first points, then within one block."""


def _log_slack(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns the log of the most that the slack can change delta(epsilon).

    A measure of tilted mass m at order t changes it by at most m sup over y > epsilon of e^(-ty) (1 - e^(epsilon-y)),
    which is m e^(-t epsilon) t^t / (1+t)^(1+t), met at y = epsilon + log(1 + 1/t).
    """
    t = lattice.order
    peak = -t * jnp.log1p(1 / t) - jnp.log1p(t)
    return jnp.log(lattice.slack) + lattice.log_mass - t * epsilon + peak


def slack_effect(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns the most that the slack can change delta at ``epsilon``, at most 1."""
    return jnp.where(lattice.slack > 0, jnp.exp(jnp.minimum(_log_slack(lattice, epsilon), 0.0)), 0.0)


def _relative_rounding(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns a bound on the relative error of the sums below.

    Each term is the exponential of log_mass - t y, off by a few ulps of its parts' magnitude (log_mass was doubled and
    added to at each squaring, 64 at most); a sum of n nonnegative terms errs by n u at most.
    """
    magnitude = jnp.abs(lattice.log_mass) + jnp.abs(lattice.order * epsilon) + 1
    return UNIT_ROUNDOFF * (4 * lattice.points + 64 * magnitude + 64 * (1 + lattice.order))


def delta_of(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns delta at ``epsilon`` (scalar): an upper bound of an upper lattice, a lower bound of a lower one."""
    side = jnp.where(lattice.is_upper, 1.0, -1.0)
    reach = epsilon - side * lattice.shift - side * 4 * UNIT_ROUNDOFF * jnp.abs(epsilon)
    over = lattice.losses - reach
    log_scale = lattice.log_mass - lattice.order * reach
    terms = lattice.weights * jnp.exp(-lattice.order * over + log_scale) * -jnp.expm1(-over)
    total = jnp.sum(jnp.where(over > 0, terms, 0.0))
    return _safe_delta(lattice, total, _relative_rounding(lattice, reach), _log_slack(lattice, reach))


def _safe_delta(lattice: LossLattice, total: Array, relative: Array, log_slack: Array) -> Array:
    slack = jnp.where(lattice.slack > 0, jnp.exp(log_slack) * (1 + relative), 0.0)
    # What a mass or a sum was flushed to zero from.
    flushed = 4 * lattice.points * TINY
    upper = jnp.clip(total * (1 + relative) + slack + flushed, 0.0, 1.0)
    lower = jnp.clip(total * (1 - relative) - slack, 0.0, 1.0)
    upper = jnp.where(jnp.isnan(upper), 1.0, upper)
    return jnp.where(lattice.is_upper, upper, jnp.where(jnp.isnan(lower), 0.0, lower))


def epsilon_of(lattice: LossLattice, delta: Array) -> Array:
    """Returns epsilon at ``delta`` (scalar): an upper bound of an upper lattice, a lower bound of a lower one.

    At mesh points delta comes from running sums; between two of them it is D + B (1 - e^(epsilon - y)), y the upper
    one. Both forms add nonnegative terms only. The block and in it the segment are found by comparison, the rest by
    bisection, which keeps the end on the safe side.
    """
    h, n = lattice.mesh, lattice.points
    relative = 8 * n * UNIT_ROUNDOFF

    def bound(total: Array, epsilon: Array) -> Array:
        rounding = _relative_rounding(lattice, epsilon) + relative
        return _safe_delta(lattice, total, rounding, _log_slack(lattice, epsilon))

    def crossing(totals: Array, losses: Array) -> Array:
        """Returns the upper end of a segment in which delta is met: one more than there are losses, if after them.

        Upper: the first point where delta suffices. Lower: the point after the last where it does not; far below
        epsilon the slack, which grows like e^(-t y), may hide that. Each is right whether or not the bound is monotone.
        """
        enough = jax.vmap(bound)(totals, losses) <= delta
        return jnp.where(lattice.is_upper, first_index(enough), losses.shape[0] - first_index(~enough[::-1]))

    firsts = lattice.start + h * BLOCK * jnp.arange(n // BLOCK + 1)
    blocks = _masses(lattice).reshape(-1, BLOCK)
    offsets = h * jnp.arange(BLOCK)
    # At the blocks' first points, and past the last: mass from there on, mass discounted by e^(y_first - y), delta.
    end = jnp.zeros(1)
    mass = jnp.concatenate([jnp.cumsum(jnp.sum(blocks, axis=1)[::-1])[::-1], end])
    discount = jnp.exp(-h * BLOCK)
    discounted = jnp.concatenate([_discounted_sums(jnp.matmul(blocks, jnp.exp(-offsets)), discount), end])
    gained = jnp.matmul(blocks, -jnp.expm1(-offsets)) - jnp.expm1(-h * BLOCK) * mass[1:]
    at_firsts = jnp.concatenate([_discounted_sums(gained, discount), end])

    chosen = jnp.clip(crossing(at_firsts, firsts) - 1, 0, n // BLOCK - 1)
    inside, decay = blocks[chosen], jnp.exp(-h)
    above = jnp.cumsum(inside[::-1])[::-1]
    strictly = jnp.concatenate([above[1:], end]) + mass[chosen + 1]
    losses = firsts[chosen] + h * jnp.arange(BLOCK + 1)
    totals = _discounted_sums(jnp.append(strictly * -jnp.expm1(-h), at_firsts[chosen + 1]), decay)
    remainders = _discounted_sums(jnp.append(inside, discounted[chosen + 1]), decay)
    index = crossing(totals, losses)
    beyond = index > BLOCK
    index = jnp.minimum(index, BLOCK)
    top = losses[index]

    def halve(_, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        suffices = bound(totals[index] + remainders[index] * -jnp.expm1(middle - top), middle) <= delta
        return jnp.where(suffices, low, middle), jnp.where(suffices, middle, high)

    # Below the first point the form holds all the way down; no epsilon below 0 is of interest.
    bottom = jnp.where((chosen == 0) & (index == 0), jnp.minimum(top - h, 0.0), top - h)
    low, high = jax.lax.fori_loop(0, 60, halve, (bottom, top))
    margin = lattice.shift + 4 * UNIT_ROUNDOFF * (jnp.abs(top) + jnp.abs(lattice.start))
    value = jnp.where(lattice.is_upper, high + margin, low - margin)
    # Past the last point only the slack is left: an upper bound is not to be had; a lower one is that point.
    value = jnp.where(beyond, jnp.where(lattice.is_upper, jnp.inf, top - margin), value)
    value = jnp.where(jnp.isnan(value), jnp.where(lattice.is_upper, jnp.inf, 0.0), value)
    return jnp.maximum(value, 0.0)


def _masses(lattice: LossLattice) -> Array:
    """Returns the masses without the tilt, (n,).

    No mass is above 1, so a weight that is not rounding calls for no factor above e^708.4: the limit keeps products
    with weights of zero from being undefined, and whatever else it meets above 1.
    """
    exponents = lattice.log_mass - lattice.order * lattice.losses
    return lattice.weights * jnp.exp(jnp.minimum(exponents, 709.7))


def _discounted_sums(values: Array, decay: Array) -> Array:
    """Returns S_i = sum over j >= i of values_j decay^(j-i), by doubling: log2(n) passes, all terms nonnegative."""
    n = values.shape[-1]
    sums, reach, factor = values, 1, decay
    while reach < n:
        sums = sums + factor * jnp.concatenate([sums[reach:], jnp.zeros(reach)])
        reach, factor = 2 * reach, factor * factor
    return sums
