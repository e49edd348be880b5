"""From a composed lattice to delta and epsilon, with every allowance put on the safe side."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.precision import TINY, first_index
from jaxacct.prv.lattice import LossLattice

BLOCK = 64
"""Mesh points of a block: epsilon is looked for at the blocks' first points, then within one block."""


LOG_MASS_ROUNDINGS = 256
"""Roundings of a lattice's ``log_mass``, each by a unit of it at most: it is added to at 53 bits of the steps, and at
each of some 30 stages, 17 merges and as many doublings of the mesh as those take. Doubling it is exact."""

LEAST_SCALE = -670.0
"""Least logarithm of the unit in which masses are summed: none exceeds e^670 of it, and 2^19 of these can be summed."""


def _log_slack(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns the log of the most that the slack can change delta(epsilon).

    A measure of tilted mass m at order t changes it by at most m sup over y > epsilon of e^(-ty) (1 - e^(epsilon-y)),
    which is m e^(-t epsilon) t^t / (1+t)^(1+t), met at y = epsilon + log(1 + 1/t).
    """
    return jnp.log(lattice.slack) + lattice.log_mass - lattice.order * epsilon + _log_peak(lattice.order)


def _log_peak(t: Array) -> Array:
    """Returns log(t^t / (1+t)^(1+t)), at most 0, to a few units of 1 + log(1 + t)."""
    return -t * jnp.log1p(1 / t) - jnp.log1p(t)


def slack_effect(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns the most that the slack can change delta at ``epsilon``, at most 1."""
    return jnp.where(lattice.slack > 0, jnp.exp(jnp.minimum(_log_slack(lattice, epsilon), 0.0)), 0.0)


def _relative_rounding(lattice: LossLattice, epsilon: Array, log_scale: Array) -> Array:
    """Returns a bound on the relative error of a sum of n masses at the scale given, their own exponents' apart."""
    t = lattice.order
    of_exponent = (LOG_MASS_ROUNDINGS + 4) * jnp.abs(lattice.log_mass) + 4 * jnp.abs(t * epsilon) + 8 * jnp.log1p(t)
    return roundoff() * (2 * lattice.points + 64 + of_exponent + 8 * jnp.abs(log_scale))


def delta_of(lattice: LossLattice, epsilon: Array) -> Array:
    """Returns delta at ``epsilon`` (scalar): an upper bound of an upper lattice, a lower bound of a lower one.

    All is summed in units of e^c, c = min(log_mass - t epsilon, 0), so that nothing is flushed to zero that delta is
    made of. What is, of n terms and of the slack, is below the smallest normal number of those units.
    """
    side = jnp.where(lattice.is_upper, 1.0, -1.0)
    reach = epsilon - side * lattice.shift - side * 4 * roundoff() * jnp.abs(epsilon)
    over = lattice.losses - reach
    log_mass = lattice.log_mass - lattice.order * reach
    lift, log_scale = jnp.maximum(log_mass, 0.0), jnp.minimum(log_mass, 0.0)
    exponents = lift - lattice.order * over
    # No mass is above 1: see _masses. The exponent rounds by its parts.
    safe = 1 + side * roundoff() * (16 + 4 * jnp.abs(lattice.order * over) + jnp.abs(exponents))
    terms = lattice.weights * jnp.exp(jnp.minimum(exponents, 709.7)) * -jnp.expm1(-over) * safe
    total = jnp.sum(jnp.where(over > 0, terms, 0.0))
    slack = jnp.where(lattice.slack > 0, lattice.slack * jnp.exp(lift + _log_peak(lattice.order)), 0.0)
    bound = _bound(lattice, total, slack, _relative_rounding(lattice, reach, log_mass))
    # In two factors, of which neither is flushed before the product is.
    half = jnp.exp(log_scale / 2)
    value = jnp.clip(bound * half * half, 0.0, 1.0)
    return jnp.where(jnp.isnan(value), jnp.where(lattice.is_upper, 1.0, 0.0), value)


def _bound(lattice: LossLattice, total: Array, slack: Array, relative: Array) -> Array:
    """Returns a sum of masses with its slack, its rounding and what was flushed to zero on the safe side."""
    # Of each mass, and of each term; of the slack.
    flushed = 4 * (lattice.points + 1) * TINY
    upper = (total + slack) * (1 + relative) + flushed
    lower = jnp.maximum(total * (1 - relative) - slack * (1 + relative) - flushed, 0.0)
    return jnp.where(lattice.is_upper, upper, jnp.where(jnp.isnan(lower), 0.0, lower))


def epsilon_of(lattice: LossLattice, delta: Array) -> Array:
    """Returns epsilon at ``delta`` (scalar): an upper bound of an upper lattice, a lower bound of a lower one.

    At mesh points delta comes from running sums; between two of them it is D + B (1 - e^(epsilon - y)), y the upper
    one. Both forms add nonnegative terms only, in units of delta where float64 allows. The block and in it the segment
    are found by comparison, the rest by bisection, which keeps the end on the safe side.
    """
    h, n = lattice.mesh, lattice.points
    log_scale = jnp.clip(jnp.log(jnp.maximum(delta, TINY)), LEAST_SCALE, 0.0)
    wanted = delta * jnp.exp(-log_scale)
    # Sums of sums, and powers of a discount that errs by 4u and by u of its exponent.
    relative = roundoff() * n * (8 + 2 * h)

    def bound(total: Array, epsilon: Array) -> Array:
        log_slack = _log_slack(lattice, epsilon) - log_scale
        slack = jnp.where(lattice.slack > 0, jnp.exp(log_slack), 0.0)
        rounding = _relative_rounding(lattice, epsilon, jnp.abs(log_scale) + jnp.abs(log_slack)) + relative
        return _bound(lattice, total, slack, rounding)

    def crossing(totals: Array, losses: Array) -> Array:
        """Returns the upper end of a segment in which delta is met: one more than there are losses, if after them.

        Upper: the first point where delta suffices. Lower: the point after the last where it does not; far below
        epsilon the slack, which grows like e^(-t y), may hide that. Each is right whether or not the bound is monotone.
        """
        enough = jax.vmap(bound)(totals, losses) <= wanted
        return jnp.where(lattice.is_upper, first_index(enough), losses.shape[0] - first_index(~enough[::-1]))

    firsts = lattice.start + h * BLOCK * jnp.arange(n // BLOCK + 1)
    blocks = _masses(lattice, log_scale).reshape(-1, BLOCK)
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
        suffices = bound(totals[index] + remainders[index] * -jnp.expm1(middle - top), middle) <= wanted
        return jnp.where(suffices, low, middle), jnp.where(suffices, middle, high)

    # Below the first point the form holds all the way down; no epsilon below 0 is of interest.
    bottom = jnp.where((chosen == 0) & (index == 0), jnp.minimum(top - h, 0.0), top - h)
    low, high = jax.lax.fori_loop(0, 60, halve, (bottom, top))
    margin = lattice.shift + 4 * roundoff() * (jnp.abs(top) + jnp.abs(lattice.start))
    value = jnp.where(lattice.is_upper, high + margin, low - margin)
    # Past the last point only the slack is left: an upper bound is not to be had; a lower one is that point.
    value = jnp.where(beyond, jnp.where(lattice.is_upper, jnp.inf, top - margin), value)
    value = jnp.where(jnp.isnan(value), jnp.where(lattice.is_upper, jnp.inf, 0.0), value)
    return jnp.maximum(value, 0.0)


def _masses(lattice: LossLattice, log_scale: Array) -> Array:
    """Returns the masses without the tilt, (n,), over e^log_scale, rounded to the safe side.

    No mass is above 1, and a weight that is not rounding is at least TINY, so its factor is below e^(709 - log_scale),
    the square of what float64 holds. The limits keep products with weights of zero, and sums of what is above 1, from
    being undefined.
    """
    of_loss = lattice.order * lattice.losses
    exponents = lattice.log_mass - of_loss - log_scale
    half = jnp.exp(jnp.minimum(exponents / 2, 709.0))
    side = jnp.where(lattice.is_upper, 1.0, -1.0)
    safe = 1 + side * roundoff() * (16 + 4 * jnp.abs(of_loss) + 2 * jnp.abs(exponents))
    return jnp.minimum(lattice.weights * half * half * safe, math.exp(20.0 - LEAST_SCALE))


def _discounted_sums(values: Array, decay: Array) -> Array:
    """Returns S_i = sum over j >= i of values_j decay^(j-i), by doubling: log2(n) passes, all terms nonnegative."""
    n = values.shape[-1]
    sums, reach, factor = values, 1, decay
    while reach < n:
        sums = sums + factor * jnp.concatenate([sums[reach:], jnp.zeros(reach)])
        reach, factor = 2 * reach, factor * factor
    return sums
