"""The profile of a single run from its masses, for pairs that have no form of their own.

For every event A the difference P(A) - e^eps Q(A) is at most delta(eps), and for A = {Y > eps} it is that. The masses
that a pair gives to the losses above eps are those of an A whose edge e' lies within b of eps, b the boundary's error.
What is missed is P - e^eps Q = P (1 - e^(eps - Y)) over losses between eps and e': at most e^b - 1 of P's mass within b
of eps. So delta is known to the error of the masses, and to a second order in b.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.precision import TINY, UNIT_ROUNDOFF

if TYPE_CHECKING:
    from jaxacct.dominating_pairs.pair import DominatingPair


def one_run_by_masses(pair: DominatingPair, epsilon: Array) -> tuple[Array, Array]:
    """Returns what :meth:`.DominatingPair.one_run` does, by the masses of losses above and about ``epsilon`` ()."""
    wrong = pair.boundary_error(jnp.abs(epsilon)) + 4 * UNIT_ROUNDOFF * epsilon + TINY
    apart = 4 * wrong
    cells = pair.cell_masses(jnp.stack([epsilon - apart, epsilon, epsilon + apart, jnp.full_like(epsilon, jnp.inf)]))
    (below, just, above), (near_error, just_error, above_error) = cells.p, cells.p_error
    p, p_error = just + above, just_error + above_error
    q, q_error = cells.q[1] + cells.q[2], cells.q_error[1] + cells.q_error[2]
    scale, u = jnp.exp(epsilon), UNIT_ROUNDOFF
    near = jnp.expm1(wrong) * (below + just + near_error + just_error) * (1 + 16 * u)
    # The exponential, the products and the differences, each right to a few units of what it is made of.
    rounding = p_error + scale * q_error + 16 * u * (p + scale * q)
    found = p - scale * q
    upper = found + rounding + near
    # Where e^eps overflows nothing is known of what Q takes off.
    upper = jnp.where(jnp.isnan(upper), (p + p_error) * (1 + 4 * u) + near, upper)
    lower = jnp.where(jnp.isnan(found - rounding), 0.0, found - rounding)
    return jnp.maximum(lower, 0.0), jnp.clip(upper, 0.0, 1.0)
