"""From a composed lattice to delta and epsilon, with every allowance put on the safe side."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.precision import TINY, UNIT_ROUNDOFF, first_index
from jaxacct.prv.lattice import LossLattice


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
    upper = jnp.clip(total * (1 + relative) + slack + TINY, 0.0, 1.0)
    lower = jnp.clip(total * (1 - relative) - slack, 0.0, 1.0)
    upper = jnp.where(jnp.isnan(upper), 1.0, upper)
    return jnp.where(lattice.is_upper, upper, jnp.where(jnp.isnan(lower), 0.0, lower))


def epsilon_of(lattice: LossLattice, delta: Array) -> Array:
    """Returns epsilon at ``delta`` (scalar): an upper bound of an upper lattice, a lower bound of a lower one.

    At mesh points delta comes from two running sums; between two of them it is D + B (1 - e^(epsilon - y)), y the upper
    one. Both forms add nonnegative terms only. The segment is found by comparison, the rest by bisection, which keeps
    the end on the safe side.
    """
    n = lattice.points
    losses = lattice.losses
    masses = jnp.exp(jnp.log(lattice.weights) + lattice.log_mass - lattice.order * losses)
    decay = jnp.exp(-lattice.mesh)
    above = jnp.cumsum(masses[::-1])[::-1]
    strictly = jnp.concatenate([above[1:], jnp.zeros(1)])
    at_points = _discounted_sums(strictly, decay) * -jnp.expm1(-lattice.mesh)
    discounted = _discounted_sums(masses, decay)
    relative = _relative_rounding(lattice, losses) + 8 * n * UNIT_ROUNDOFF
    bounds = jax.vmap(_safe_delta, in_axes=(None, 0, 0, 0))(lattice, at_points, relative, _log_slack(lattice, losses))

    # Upper: the first point where delta suffices. Lower: the point after the last where it does not; far below epsilon
    # the slack, which grows like e^(-t y), may hide that. Each is right whether or not the bound is monotone.
    enough = bounds <= delta
    index = jnp.where(lattice.is_upper, first_index(enough), n - first_index(~enough[::-1]))
    beyond = index == n
    index = jnp.minimum(index, n - 1)
    top = losses[index]

    def between(epsilon: Array) -> Array:
        total = at_points[index] + discounted[index] * -jnp.expm1(epsilon - top)
        relative = _relative_rounding(lattice, epsilon) + 8 * n * UNIT_ROUNDOFF
        return _safe_delta(lattice, total, relative, _log_slack(lattice, epsilon))

    def halve(_, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        suffices = between(middle) <= delta
        return jnp.where(suffices, low, middle), jnp.where(suffices, middle, high)

    # Below the first point the form holds all the way down; no epsilon below 0 is of interest.
    bottom = jnp.where(index == 0, jnp.minimum(top - lattice.mesh, 0.0), top - lattice.mesh)
    low, high = jax.lax.fori_loop(0, 60, halve, (bottom, top))
    is_upper = lattice.is_upper
    margin = lattice.shift + 4 * UNIT_ROUNDOFF * jnp.abs(top)
    value = jnp.where(is_upper, high + margin, low - margin)
    # Above the last point only the slack is left: an upper bound is not to be had; a lower one is that point.
    value = jnp.where(beyond, jnp.where(is_upper, jnp.inf, top - margin), value)
    value = jnp.where(jnp.isnan(value), jnp.where(is_upper, jnp.inf, 0.0), value)
    return jnp.maximum(value, 0.0)


def _discounted_sums(values: Array, decay: Array) -> Array:
    """Returns S_i = sum over j >= i of values_j decay^(j-i), by doubling: log2(n) passes, all terms nonnegative."""
    n = values.shape[-1]
    sums, reach, factor = values, 1, decay
    while reach < n:
        sums = sums + factor * jnp.concatenate([sums[reach:], jnp.zeros(reach)])
        reach, factor = 2 * reach, factor * factor
    return sums
